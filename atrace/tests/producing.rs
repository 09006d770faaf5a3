//! Tests what a connection to Perfetto's service costs, and how a producer (a process that writes for the service)
//! behaves: its memory, environment variables, clock, forked children and lost events.

#![cfg(not(no_tracing))]

mod common;
#[allow(dead_code, unreachable_pub, reason = "this module is shared with the tests in `crates/real-service`")]
#[path = "../../crates/real-service/src/trace.rs"]
mod trace;

#[allow(unsafe_code, reason = "processes are made, and denied rights, as C programs do it")]
mod cases {
    use std::fs::{self, File, Permissions};
    use std::io::{Read as _, Write as _};
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::os::unix::process::CommandExt as _;
    use std::path::Path;
    use std::process::{Command, Stdio};
    use std::sync::atomic::{AtomicIsize, AtomicU64, Ordering};
    use std::time::Duration;

    use atrace::perfetto;
    use atrace::*;
    use atrace_cli::service::{Report, Service, Storage};
    use atrace_perfetto::proto::Writer;
    use atrace_perfetto::wire::{self, Body};

    use crate::common::{self, Place, Ran, case, is_root, until};
    use crate::trace::{Event, Trace};

    const TAG: AtraceTag = AtraceTag::App;

    /// Returns the command that runs the test case as a producer: the process connects to the service at this socket.
    fn producer(place: &Place, program: &Path, case: &str, socket: &Path) -> Command {
        let mut command = place.command_of(program, case);
        command.env("PERFETTO_PRODUCER_SOCK_NAME", socket);
        command
    }

    /// Runs the test case while a service that runs as this user records it. Returns the result of the case and the
    /// names of its events.
    fn recorded(case: &str) -> (Ran, Vec<String>) {
        let (ran, events) = recorded_events(case);
        let name = |name: Vec<u8>| String::from_utf8(name).unwrap();
        (ran, events.into_iter().filter_map(|event| event.name.map(name)).collect())
    }

    /// Runs the test case while a service that runs as this user records it. Returns the result of the case and its
    /// events.
    fn recorded_events(case: &str) -> (Ran, Vec<Event>) {
        let place = Place::file();
        let socket = place.path("socket");
        let file = File::create(place.path("trace")).unwrap();
        // SAFETY: no preconditions.
        let user = unsafe { libc::geteuid() };
        let listener = UnixListener::bind(&socket).unwrap();
        let service = Service::start(listener, user, Storage::File { file, max: None }).unwrap();
        let ran = common::run(&mut producer(&place, &std::env::current_exe().unwrap(), case, &socket));
        service.finish();
        (ran, Trace::open(&place.path("trace")).events())
    }

    /// Returns the process's private memory and the memory that it shares with a service, in KiB. Mapped files don't
    /// count.
    fn memory() -> u64 {
        let all = fs::read_to_string("/proc/self/smaps").unwrap();
        let (mut is_shared, mut kib) = (false, 0);
        for line in all.lines() {
            let mut words = line.split_whitespace();
            match (words.next().unwrap_or_default(), words.next()) {
                ("Anonymous:", Some(size)) if !is_shared => kib += size.parse::<u64>().unwrap(),
                ("Rss:", Some(size)) if is_shared => kib += size.parse::<u64>().unwrap(),
                (range, Some(_)) if range.contains('-') => is_shared = line.contains("/memfd:"),
                _ => {}
            }
        }
        kib
    }

    /// Answers the requests of one connection, like a service that never starts a session.
    fn idle(mut stream: UnixStream) {
        const METHODS: [&str; 5] =
            ["InitializeConnection", "RegisterDataSource", "CommitData", "GetAsyncCommand", "Sync"];
        let (mut inbox, mut bytes, mut more) = (Vec::new(), [0; 1024], [0; 4096]);
        while let Ok(len @ 1..) = stream.read(&mut more) {
            inbox.extend_from_slice(&more[..len]);
            while let Some((frame, len)) = wire::split(&inbox).unwrap() {
                let answer = match frame.body {
                    Body::Bind(_) => wire::bound(&mut bytes, frame.request, &METHODS),
                    Body::Invoke { method, wants_reply: true, .. } if method.method != 4 => {
                        // Tells the producer to use the shared memory that it has created itself.
                        wire::reply_to(
                            &mut bytes,
                            frame.request,
                            false,
                            Some(|reply: &mut Writer<'_>| {
                                reply.number(1, 1);
                            }),
                        )
                    }
                    _ => Some(&[][..]),
                };
                stream.write_all(answer.unwrap()).unwrap();
                inbox.drain(..len);
            }
        }
    }

    #[test]
    fn without_a_session_it_costs_little_memory() {
        let name = case!({
            atrace_init();
            println!("BEFORE {}", memory()); // This first call may allocate, so `before` is read after it.
            let before = memory();
            perfetto::connect();
            until("it is connected", || perfetto::status().is_connected());
            assert_eq!(perfetto::status().sessions(), 0);
            std::thread::sleep(std::time::Duration::from_millis(1500)); // The socket thread reads the clock in this time.
            println!("KIB {}", memory() - before);
        });
        let place = Place::file();
        let socket = place.path("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        std::thread::spawn(move || listener.incoming().flatten().for_each(idle));
        let ran = common::run(&mut producer(&place, &std::env::current_exe().unwrap(), &name, &socket));
        let pages = ran.said("KIB")[0].parse::<usize>().unwrap() * 1024 / atrace_sys::memory::page_size();
        assert!((1..=16).contains(&pages), "{pages} pages");
    }

    /// Tests that a program with more rights than its caller ignores a socket that its caller names.
    #[test]
    fn elevated_rights_ignore_the_name_of_a_socket() {
        let name = case!({
            // SAFETY: no preconditions.
            let (user, effective) = unsafe { (libc::getuid(), libc::geteuid()) };
            println!("UIDS {:?}", (user, effective));
            perfetto::connect();
            if user == effective {
                until("it is connected", || perfetto::status().is_connected());
            }
            println!("STATUS {}", perfetto::status());
        });
        if !is_root(&name) {
            return;
        }
        let place = Place::file();
        let program = place.path("program");
        common::copy_program(std::env::current_exe().unwrap(), &program);
        fs::set_permissions(place.path(""), Permissions::from_mode(0o755)).unwrap();
        let socket = place.path("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        fs::set_permissions(&socket, Permissions::from_mode(0o777)).unwrap();
        std::thread::spawn(move || listener.incoming().flatten().for_each(idle));
        for (mode, uids, is_heeded) in [(0o755, "(65534, 65534)", true), (0o4755, "(65534, 0)", false)] {
            fs::set_permissions(&program, Permissions::from_mode(mode)).unwrap();
            let mut command = producer(&place, &program, &name, &socket);
            command.uid(65534).gid(65534).current_dir("/");
            let ran = common::end_of(command.spawn().unwrap());
            if !ran.said("UIDS").contains(&uids) {
                return common::skipped(&name, "set-user-id has no effect there (nosuid?)");
            }
            assert!(ran.status.success(), "{ran:?}");
            assert_eq!(ran.said("STATUS")[0].contains(": connected"), is_heeded, "{mode:o} {ran:?}");
        }
    }

    /// Tests a process that may not read the processor's time-stamp counter (`PR_TSC_SIGSEGV`). An attempt to read the
    /// counter would end the process.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_refused_counter_is_not_read() {
        let name = case!({
            let time = || {
                let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
                // SAFETY: `time` is writable. The system call is made directly, because libc's function reads the
                // counter.
                unsafe { libc::syscall(libc::SYS_clock_gettime, libc::CLOCK_BOOTTIME, &raw mut time) };
                time.tv_sec * 1_000_000_000 + time.tv_nsec
            };
            atrace_init(); // Opening the properties makes std ask libc for the time.
            // SAFETY: applies to this thread, and to threads that it creates later.
            assert_eq!(unsafe { libc::prctl(libc::PR_SET_TSC, libc::PR_TSC_SIGSEGV) }, 0);
            perfetto::connect();
            while perfetto::status().sessions() == 0 {
                // SAFETY: no preconditions. `until` can't be used here, because it asks for the time.
                unsafe { libc::usleep(1000) };
            }
            for _ in 0..3 {
                atrace_instant(TAG, &format!("after {}", time()));
                atrace_instant(TAG, &format!("before {}", time()));
                // SAFETY: no preconditions. If the counter were usable, the library would read the clock in this time.
                unsafe { libc::usleep(60_000) };
            }
            // SAFETY: applies to this thread. The test harness will ask for the time.
            assert_eq!(unsafe { libc::prctl(libc::PR_SET_TSC, libc::PR_TSC_ENABLE) }, 0);
        });
        let (_, events) = recorded_events(&name);
        assert_eq!(events.len(), 6, "{events:?}");
        // The name of an event contains the time at which the name was made. So the first event of a pair was written
        // between the times in the two names.
        for pair in events.chunks(2) {
            let [after, before] = ["after ", "before "].map(|word| {
                let name = pair.iter().find_map(|event| event.name().strip_prefix(word).map(str::to_owned));
                name.unwrap().parse::<u64>().unwrap()
            });
            assert!((after..=before).contains(&pair[0].time) && pair[1].time >= before, "{pair:?}");
        }
    }

    /// Tests that the socket thread sleeps while there is no session, even if it can't read the processor's counter and
    /// so never learns the counter's speed.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn without_a_counter_the_idle_thread_sleeps() {
        /// Returns how often the socket thread has slept, and the thread's processor time in hundredths of a second.
        fn used() -> [u64; 2] {
            let threads = fs::read_dir("/proc/self/task").unwrap().map(|thread| thread.unwrap().path());
            let is_it = |path: &std::path::PathBuf| {
                fs::read_to_string(path.join("comm")).is_ok_and(|name| name == "atrace-perfetto\n")
            };
            let [thread] = &threads.filter(is_it).collect::<Vec<_>>()[..] else { panic!("no socket thread") };
            let status = fs::read_to_string(thread.join("status")).unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
            let stat = fs::read_to_string(thread.join("stat")).unwrap();
            let times = stat.rsplit(") ").next().unwrap().split(' ').skip(11).take(2);
            [line.trim().parse().unwrap(), times.map(|time| time.parse::<u64>().unwrap()).sum()]
        }
        let name = case!({
            atrace_init();
            // SAFETY: applies to this thread, and to threads that it creates later.
            assert_eq!(unsafe { libc::prctl(libc::PR_SET_TSC, libc::PR_TSC_SIGSEGV) }, 0);
            perfetto::connect();
            // SAFETY: applies to this thread. The test and the harness will ask for the time.
            assert_eq!(unsafe { libc::prctl(libc::PR_SET_TSC, libc::PR_TSC_ENABLE) }, 0);
            until("it is connected", || perfetto::status().is_connected());
            std::thread::sleep(Duration::from_millis(500));
            let before = used();
            std::thread::sleep(Duration::from_secs(2));
            let after = used();
            println!("SLEEPS {}", after[0] - before[0]);
            println!("HUNDREDTHS {}", after[1] - before[1]);
        });
        let place = Place::file();
        let socket = place.path("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        std::thread::spawn(move || listener.incoming().flatten().for_each(idle));
        let ran = common::run(&mut producer(&place, &std::env::current_exe().unwrap(), &name, &socket));
        let [sleeps, hundredths] = ["SLEEPS", "HUNDREDTHS"].map(|it| ran.said(it)[0].parse::<u64>().unwrap());
        // A thread of a process with special rights checks these rights once a second, so a few sleeps are allowed.
        assert!(sleeps < 5 && hundredths < 10, "{sleeps} {hundredths}");
    }

    /// Tests a child that was created by the bare system call `clone`, not by libc. This child has no socket thread,
    /// and must not write events under its parent's process id.
    #[test]
    fn the_child_of_a_bare_clone_is_off() {
        let name = case!({ parent_of_a_bare_clone() });
        assert_eq!(recorded(&name).1, ["parent", "parent again"]);
    }

    /// Tests a kernel before Linux 4.14, which can't wipe pages in a child (`MADV_WIPEONFORK`).
    #[test]
    #[cfg(target_os = "linux")]
    fn the_child_of_a_bare_clone_is_off_on_an_old_kernel() {
        let name = case!({
            common::with_an_old_kernel();
            parent_of_a_bare_clone();
        });
        assert_eq!(recorded(&name).1, ["parent", "parent again"]);
    }

    /// Tests that a child that was created by the bare system call `clone` can connect to the service, even on a kernel
    /// that can't wipe pages in a child.
    #[test]
    #[cfg(target_os = "linux")]
    fn the_child_of_a_bare_clone_may_connect_on_an_old_kernel() {
        let name = case!({
            common::with_an_old_kernel();
            perfetto::connect();
            until("a session", || perfetto::status().sessions() == 1);
            atrace_instant(TAG, "parent");
            in_clone(|| {
                perfetto::connect();
                until("a session of the child's", || perfetto::status().sessions() == 1);
                assert!(atrace_is_tag_enabled(TAG));
                atrace_instant(TAG, "child");
            });
            assert_eq!(perfetto::status().tags(), atrace_get_enabled_tags());
            assert!(atrace_is_tag_enabled(TAG));
            atrace_instant(TAG, "parent again");
        });
        let (_, mut names) = recorded(&name);
        names.sort(); // Sorted, because the order of the events of two processes in the trace is not known.
        assert_eq!(names, ["child", "parent", "parent again"]);
    }

    fn parent_of_a_bare_clone() {
        perfetto::connect();
        until("a session", || perfetto::status().sessions() == 1);
        atrace_instant(TAG, "parent");
        in_clone(|| {
            assert_eq!(perfetto::status().sessions(), 0);
            assert!(!atrace_get_enabled_tags().contains(TAG) && !atrace_is_tag_enabled(TAG));
            for _ in 0..1000 {
                atrace_instant(TAG, "child");
            }
        });
        atrace_instant(TAG, "parent again");
    }

    /// Calls `body` in a child that is made by the bare system call `clone`. Panics if the child fails.
    fn in_clone(body: impl FnOnce()) {
        // SAFETY: without flags except the signal at the end, the call is a fork. The child ends without returning
        // from here.
        let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
        assert!(child >= 0);
        if child == 0 {
            // SAFETY: no preconditions; the signal ends a child that hangs.
            unsafe { libc::alarm(60) };
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).is_ok();
            // SAFETY: no preconditions; ends the child at once.
            unsafe { libc::_exit(i32::from(!done)) };
        }
        let mut status = 0;
        // SAFETY: `status` is writable.
        unsafe { libc::waitpid(child as i32, &raw mut status, 0) };
        assert_eq!(status, 0, "the child failed, or hung until its alarm");
    }

    /// Tests that timestamps stay close to the system's clock. The socket thread reads that clock once a second; in
    /// between, timestamps come from the processor's counter.
    #[test]
    fn the_clock_stays_with_the_systems() {
        let name = case!({
            use atrace_perfetto::clock;

            perfetto::connect();
            until("a session", || perfetto::status().sessions() == 1);
            atrace_instant(TAG, "once"); // No thread reads the clock before the first event.
            // At first the speed of the counter is measured over short times, so timestamps are less exact if the
            // socket thread reads the clock late.
            std::thread::sleep(std::time::Duration::from_secs(2));
            let seconds = if std::env::var_os("ATRACE_LONG").is_some() { 60 } else { 3 };
            let (start, mut off) = (std::time::Instant::now(), 0);
            while start.elapsed().as_secs() < seconds {
                // The result is the deviation of the attempt that took the least time, that is, the attempt that was
                // interrupted the least.
                let look = |_| {
                    let (before, now, after) = (clock::asked(), clock::now(), clock::asked());
                    (after - before, before.saturating_sub(now).max(now.saturating_sub(after)))
                };
                off = (0..100).map(look).min().unwrap().1.max(off);
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            println!("OFF {off}");
        });
        let place = Place::file();
        let socket = place.path("socket");
        // SAFETY: no preconditions.
        let user = unsafe { libc::geteuid() };
        let keep = Storage::File { file: File::create(place.path("trace")).unwrap(), max: None };
        let _service = Service::start(UnixListener::bind(&socket).unwrap(), user, keep).unwrap();
        let mut command = producer(&place, &std::env::current_exe().unwrap(), &name, &socket);
        if std::env::var_os("ATRACE_LONG_TESTS").is_some() {
            command.env("ATRACE_LONG", "yes");
        }
        // On a busy machine the socket thread may read the clock late. In this case no accuracy is promised.
        let mut all = Vec::new();
        while all.len() < 5 && all.iter().all(|ns| *ns > 1000) {
            all.push(common::run(&mut command).said("OFF")[0].parse::<u64>().unwrap());
        }
        println!("off by {all:?} ns at most");
        assert!(all.iter().any(|ns| *ns <= 1000), "{all:?} ns");
    }

    /// Tests the first event of a process whose service never begins a session. The event waits for a session, except
    /// in a signal handler.
    #[test]
    fn a_handler_does_not_wait_for_a_session() {
        /// The value of `RUSAGE_THREAD`, which the crate `libc` does not define for Android.
        const THREAD: libc::c_int = 1;
        /// Returns how many times the thread has slept.
        fn sleeps() -> libc::c_long {
            // SAFETY: zeros are valid for these numbers, and the kernel fills them.
            unsafe {
                let mut used: libc::rusage = std::mem::zeroed();
                assert_eq!(libc::getrusage(THREAD, &raw mut used), 0);
                used.ru_nvcsw
            }
        }
        extern "C" fn first_event(_: libc::c_int) {
            let (before, start) = (sleeps(), atrace_perfetto::clock::asked());
            atrace_instant(TAG, "first");
            SLEEPS.store((sleeps() - before) as isize, Ordering::SeqCst);
            WAITED.store(atrace_perfetto::clock::asked() - start, Ordering::SeqCst);
        }
        static SLEEPS: AtomicIsize = AtomicIsize::new(-1);
        static WAITED: AtomicU64 = AtomicU64::new(0);
        let name = case!({
            let handler = first_event as extern "C" fn(libc::c_int) as libc::sighandler_t;
            if std::env::var_os("ATRACE_TEST_IN_HANDLER").is_some() {
                // SAFETY: this program installs no other handler and does nothing else.
                unsafe {
                    libc::signal(libc::SIGUSR1, handler);
                    libc::raise(libc::SIGUSR1);
                }
            } else {
                first_event(0);
            }
            println!("SLEEPS {}", SLEEPS.load(Ordering::SeqCst));
            println!("WAITED {}", WAITED.load(Ordering::SeqCst));
        });
        let place = Place::file();
        let socket = place.path("socket");
        let _listener = UnixListener::bind(&socket).unwrap();
        let sleeps = &|is_in_handler: bool| {
            let mut command = producer(&place, &std::env::current_exe().unwrap(), &name, &socket);
            command.env("ATRACE_BACKEND", "perfetto");
            if is_in_handler {
                command.env("ATRACE_TEST_IN_HANDLER", "yes");
            }
            let ran = common::run(&mut command);
            ["SLEEPS", "WAITED"].map(|what| ran.said(what)[0].parse::<i64>().unwrap())
        };
        // Each sleep takes at least a millisecond. The programs run at the same time, because both wait at their end.
        let [outside, within] = std::thread::scope(|scope| {
            [false, true]
                .map(|is_in_handler| scope.spawn(move || sleeps(is_in_handler)))
                .map(|it| it.join().unwrap())
        });
        let ([some, waited], [few, _]) = (outside, within);
        assert!(some > 0 && waited >= 5_000_000_000 && (0..50).contains(&few), "{outside:?} {within:?}");
    }

    /// Does the same as [`recorded_late`], for programs that must end within five seconds, the time for which events
    /// wait for a service. On a busy machine a program may take longer, so there are up to 20 attempts.
    fn recorded_soon(case: &str, kind: &str, wait: Option<Duration>) -> (Ran, Report, Vec<Event>) {
        let mut tries = (0..20).map(|_| recorded_late(case, kind, wait));
        let in_time = tries.find(|(.., took)| *took < Duration::from_secs(5));
        let (ran, report, events, _) = in_time.expect("it ends in time");
        (ran, report, events)
    }

    /// Runs a program whose service is busy at first. If `wait` is given, the service begins to serve after this time;
    /// otherwise it begins when the program calls [`may_be_served`]. The last returned value is how long the program
    /// ran after [`wait_to_go`].
    fn recorded_late(case: &str, kind: &str, wait: Option<Duration>) -> (Ran, Report, Vec<Event>, Duration) {
        let place = Place::file();
        let socket = place.path("socket");
        let mut program = producer(&place, &std::env::current_exe().unwrap(), case, &socket);
        program.env("ATRACE_BACKEND", "perfetto").env("KIND", kind).env("GO", place.path("go"));
        let child = program.stdout(Stdio::piped()).spawn().unwrap();
        until("the program is ready", || place.path("go.ready").exists());
        // Connections wait in the listener's queue until the service starts.
        let listener = UnixListener::bind(&socket).unwrap();
        fs::write(place.path("go"), "").unwrap();
        let asked = std::time::Instant::now();
        until("the program may be served", || match wait {
            Some(wait) => asked.elapsed() > wait,
            None => place.path("go.served").exists(),
        });
        let keep = Storage::File { file: File::create(place.path("trace")).unwrap(), max: None };
        // SAFETY: no preconditions.
        let service = Service::start(listener, unsafe { libc::geteuid() }, keep).unwrap();
        let ran = common::end_of(child);
        let took = asked.elapsed();
        assert!(ran.status.success(), "{ran:?}");
        let report = service.finish();
        (ran, report, Trace::open(&place.path("trace")).events(), took)
    }

    fn wait_to_go() {
        let go = std::path::PathBuf::from(std::env::var_os("GO").unwrap());
        fs::write(go.with_extension("ready"), "").unwrap();
        until("it may go", || go.exists());
    }

    /// Lets the service of [`recorded_late`] begin to serve.
    fn may_be_served() {
        let go = std::path::PathBuf::from(std::env::var_os("GO").unwrap());
        fs::write(go.with_extension("served"), "").unwrap();
    }

    fn hundred() {
        for number in 0..50 {
            drop(begin_scoped_event(TAG, if number % 2 == 0 { "even" } else { "odd" }));
        }
    }

    /// Tests that the first events wait for a late service, in every thread and process.
    #[test]
    fn first_events_wait_for_a_busy_service() {
        let name = case!({
            let kind = std::env::var("KIND").unwrap();
            if kind == "forked" {
                perfetto::connect(); // At this time, there is no service yet.
            }
            wait_to_go();
            match kind.as_str() {
                "threads" => {
                    let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(hundred)).collect();
                    threads.into_iter().for_each(|thread| thread.join().unwrap());
                }
                "forked" => {
                    // SAFETY: the child only writes events, which it may do, and ends.
                    unsafe {
                        let child = common::fork();
                        if child == 0 {
                            hundred();
                            libc::_exit(0);
                        }
                        let mut status = 1;
                        libc::waitpid(child, &raw mut status, 0);
                        assert_eq!(status, 0);
                    }
                }
                _ => hundred(),
            }
            // SAFETY: no preconditions. The process ends without cleanup on purpose.
            unsafe { libc::_exit(0) };
        });
        // This time is long enough that the program normally waits for the service. The events must be in the trace
        // even if the program does not wait.
        let wait = Some(Duration::from_millis(300));
        for (kind, expected) in [("one", 100), ("threads", 400), ("forked", 100)] {
            let (ran, report, events) = recorded_soon(&name, kind, wait);
            assert_eq!(events.len(), expected, "{kind}: {ran:?} {report:?}");
        }
    }

    /// Tests that events which can't wait for the service, because they are in a signal handler, are counted as lost.
    /// The service gets the number of lost events, even from a program that ends right after them.
    #[test]
    fn what_does_not_wait_for_a_busy_service_is_counted() {
        extern "C" fn on_signal(_: libc::c_int) {
            hundred();
        }
        let name = case!({
            let kind = std::env::var("KIND").unwrap();
            wait_to_go();
            // SAFETY: the handler only writes events, which it may do.
            unsafe {
                libc::signal(libc::SIGUSR1, on_signal as *const () as libc::sighandler_t);
                libc::raise(libc::SIGUSR1);
            }
            assert_eq!(perfetto::status().lost(), 100);
            may_be_served();
            if kind == "ends" {
                std::process::exit(0);
            }
            hundred();
            println!("LOST {}", perfetto::status().lost());
        });
        for (kind, expected) in [("goes on", 100), ("ends", 0)] {
            let (ran, report, events) = recorded_soon(&name, kind, None);
            assert_eq!((events.len(), report.counts.lost), (expected, 100), "{kind}: {ran:?} {report:?}");
            assert_eq!(report.lost[0].early, 100, "{report:?}");
            assert_eq!(ran.said("LOST").len(), usize::from(expected > 0));
            assert!(ran.said("LOST").iter().all(|lost| *lost == "100"), "{ran:?}");
        }
    }

    /// Tests events that are written while the process records itself, before the service has answered. The recording
    /// contains these events, and the service gets the number of them as lost events.
    #[test]
    fn a_recording_hides_no_loss_of_the_service() {
        extern "C" fn on_signal(_: libc::c_int) {
            hundred();
        }
        let name = case!({
            let trace = std::path::PathBuf::from(std::env::var_os("GO").unwrap()).with_extension("trace");
            wait_to_go();
            let recording = perfetto::record_to(&trace).unwrap();
            // SAFETY: the handler only writes events, which it may do. Its events don't wait.
            unsafe {
                libc::signal(libc::SIGUSR1, on_signal as *const () as libc::sighandler_t);
                libc::raise(libc::SIGUSR1);
            }
            may_be_served();
            until("there is another session", || perfetto::status().sessions() == 2);
            assert_eq!(perfetto::status().lost(), 100);
            hundred();
            recording.finish().unwrap();
            assert_eq!(Trace::open(&trace).events().len(), 200);
            assert_eq!(perfetto::status().lost(), 100);
        });
        let (ran, report, events) = recorded_soon(&name, "", None);
        assert_eq!((events.len(), report.counts.lost), (100, 100), "{ran:?} {report:?}");
        assert_eq!(report.lost[0].early, 100, "{report:?}");
    }

    /// Tests a process whose first event can't start the socket thread, because the user has too many processes at that
    /// moment. A later event starts the thread.
    #[test]
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    fn an_event_starts_the_thread_once_the_system_allows_it() {
        const USER: u32 = 65534;
        let name = case!({
            let mut own = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: `own` is writable.
            assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NPROC, &raw mut own) }, 0);
            common::limit(libc::RLIMIT_NPROC, 1, own.rlim_max).unwrap();
            atrace_instant(TAG, "lost");
            println!("LOST {} {}", perfetto::status().lost(), perfetto::status());
            common::limit(libc::RLIMIT_NPROC, own.rlim_cur, own.rlim_max).unwrap();
            let mut written = 1;
            until("a later event starts the thread", || {
                atrace_instant(TAG, "again");
                written += 1;
                perfetto::status().sessions() == 1
            });
            (0..10).for_each(|_| atrace_instant(TAG, "recorded"));
            println!("WRITTEN {}", written + 10);
        });
        if !is_root(&name) {
            return;
        }
        let place = Place::file();
        let program = place.path("program");
        common::copy_program(std::env::current_exe().unwrap(), &program);
        fs::set_permissions(place.path(""), Permissions::from_mode(0o755)).unwrap();
        let socket = place.path("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        fs::set_permissions(&socket, Permissions::from_mode(0o777)).unwrap();
        let keep = Storage::File { file: File::create(place.path("trace")).unwrap(), max: None };
        let service = Service::start(listener, USER, keep).unwrap();
        let mut command = producer(&place, &program, &name, &socket);
        command.env("ATRACE_BACKEND", "perfetto").uid(USER).gid(USER).current_dir("/");
        let ran = common::run(&mut command);
        let report = service.finish();
        let told = ran.said("LOST")[0];
        assert!(told.starts_with("1 ") && told.contains("can't start a thread"), "{told}");
        let events = Trace::open(&place.path("trace")).events();
        let recorded = events.iter().filter(|event| event.name.as_deref() == Some(b"recorded")).count();
        let written: u64 = ran.said("WRITTEN")[0].parse().unwrap();
        assert_eq!((recorded, events.len() as u64 + report.counts.lost), (10, written), "{report:?}");
        assert!(report.lost[0].early >= 1, "{report:?}");
    }

    /// Tests that a thread which has waited for the service for the maximum time does not wait again. Its next events
    /// are counted as lost until there is a session.
    #[test]
    fn a_service_that_is_very_late_is_told_what_was_lost() {
        let name = case!({
            wait_to_go();
            hundred();
            may_be_served();
            until("there is a session", || perfetto::status().sessions() == 1);
            hundred();
        });
        let (ran, report, events, _) = recorded_late(&name, "", None);
        assert_eq!((events.len(), report.counts.lost), (100, 100), "{ran:?} {report:?}");
    }

    /// Tests a service that ends in the middle of a session. The next service gets the number of events that were
    /// written while there was no service.
    #[test]
    fn what_is_written_between_two_services_is_counted() {
        let name = case!({
            if std::env::var("KIND").unwrap() == "serve" {
                let socket = std::env::var_os("PERFETTO_PRODUCER_SOCK_NAME").unwrap();
                let keep = Storage::Ring { bytes: 1 << 20 };
                // SAFETY: no preconditions.
                let user = unsafe { libc::geteuid() };
                let _service = Service::start(UnixListener::bind(socket).unwrap(), user, keep).unwrap();
                // The read returns only if the test has failed. Otherwise the test kills the service here.
                let _ = std::io::stdin().read(&mut [0]);
                return;
            }
            hundred();
            until("there is a session", || perfetto::status().sessions() == 1);
            wait_to_go();
            until("the service is gone", || perfetto::status().sessions() == 0);
            hundred();
            fs::write(std::env::var_os("WRITTEN").unwrap(), "").unwrap();
            until("there is a session", || perfetto::status().sessions() == 1);
            hundred();
        });
        let place = Place::file();
        let (socket, next) = (place.path("socket"), place.path("next"));
        let start = |kind: &str| {
            let mut command = producer(&place, &std::env::current_exe().unwrap(), &name, &socket);
            command.env("ATRACE_BACKEND", "perfetto").env("KIND", kind).stdin(Stdio::piped());
            command.env("GO", place.path("go")).env("WRITTEN", place.path("written")).spawn().unwrap()
        };
        let mut serving = start("serve");
        until("it serves", || socket.exists());
        let program = start("trace");
        until("the program was recorded", || place.path("go.ready").exists());
        // The next service's socket exists now, but no process accepts connections at the socket yet.
        let listener = UnixListener::bind(&next).unwrap();
        fs::rename(next, &socket).unwrap();
        serving.kill().unwrap();
        serving.wait().unwrap();
        fs::write(place.path("go"), "").unwrap();
        until("the program has written", || place.path("written").exists());
        let keep = Storage::File { file: File::create(place.path("trace")).unwrap(), max: None };
        // SAFETY: no preconditions.
        let service = Service::start(listener, unsafe { libc::geteuid() }, keep).unwrap();
        let ran = common::end_of(program);
        assert!(ran.status.success(), "{ran:?}");
        let (report, events) = (service.finish(), Trace::open(&place.path("trace")).events());
        assert_eq!((events.len(), report.counts.lost), (100, 100), "{ran:?} {report:?}");
    }

    /// Tests a slice that is open when the session begins. The begin of the slice was lost, so the end of the slice is
    /// counted as lost, too.
    #[test]
    fn a_slice_that_began_too_early_is_lost_whole() {
        extern "C" fn on_signal(_: libc::c_int) {
            atrace_begin(TAG, "outer");
            atrace_begin(TAG, "inner");
            atrace_end(TAG);
        }
        let name = case!({
            wait_to_go();
            // SAFETY: the handler only writes events, which it may do.
            unsafe {
                libc::signal(libc::SIGUSR1, on_signal as *const () as libc::sighandler_t);
                libc::raise(libc::SIGUSR1);
            }
            may_be_served();
            atrace_instant(TAG, "in between");
            atrace_end(TAG);
            drop(begin_scoped_event(TAG, "later"));
        });
        let (ran, report, events) = recorded_soon(&name, "", None);
        assert_eq!((events.len(), report.counts.lost), (3, 4), "{ran:?} {report:?}");
    }

    /// Tests that no event counts as lost if the service starts no session.
    #[test]
    fn without_a_session_nothing_is_lost() {
        let name = case!({
            for _ in 0..3 {
                hundred();
            }
            until("it is connected", || perfetto::status().is_connected());
            assert!(!atrace_is_tag_enabled(TAG) && perfetto::status().tags().is_empty());
            hundred();
            assert_eq!(perfetto::status().lost(), 0);
        });
        let place = Place::file();
        let socket = place.path("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        std::thread::spawn(move || listener.incoming().flatten().for_each(idle));
        let mut command = producer(&place, &std::env::current_exe().unwrap(), &name, &socket);
        common::run(command.env("ATRACE_BACKEND", "perfetto"));
    }
}
