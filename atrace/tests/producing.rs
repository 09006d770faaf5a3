//! What a process that connects to Perfetto's service costs and heeds: memory, its user's variables, the processor's
//! counter, children.

#![cfg(not(no_tracing))]

mod common;
#[allow(dead_code, unreachable_pub, reason = "it is of the tests of Perfetto's own service, too")]
#[path = "../../real-service/src/trace.rs"]
mod trace;

#[allow(unsafe_code, reason = "processes are made, and denied rights, as C programs do it")]
mod cases {
    use std::fs::{self, File, Permissions};
    use std::io::{Read as _, Write as _};
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::os::unix::process::CommandExt as _;
    use std::path::Path;
    use std::process::Command;
    use std::sync::atomic::{AtomicI64, Ordering};

    use atrace::perfetto;
    use atrace::perfetto::service::{Keep, Service};
    use atrace::*;
    use atrace_sys::perfetto::proto::Writer;
    use atrace_sys::perfetto::wire::{self, Body};

    use crate::common::{self, Place, Ran, case, is_root, until};
    use crate::trace::Trace;

    const TAG: AtraceTag = AtraceTag::App;

    /// The case, as a producer of the service at this socket.
    fn producer(place: &Place, program: &Path, case: &str, socket: &Path) -> Command {
        let mut command = place.command_of(program, case);
        command.env("PERFETTO_PRODUCER_SOCK_NAME", socket);
        command
    }

    /// Runs the case, recorded by a service of this user; returns what became of it and the names of its events.
    fn recorded(case: &str) -> (Ran, Vec<String>) {
        let place = Place::file();
        let socket = place.path("socket");
        let file = File::create(place.path("trace")).unwrap();
        // SAFETY: no preconditions.
        let user = unsafe { libc::geteuid() };
        let listener = UnixListener::bind(&socket).unwrap();
        let service = Service::start(listener, user, Keep::File { file, max: None }).unwrap();
        let ran = common::run(&mut producer(&place, &std::env::current_exe().unwrap(), case, &socket));
        service.finish();
        let events = Trace::open(&place.path("trace")).events();
        let name = |name: Vec<u8>| String::from_utf8(name).unwrap();
        (ran, events.into_iter().filter_map(|event| event.name.map(name)).collect())
    }

    /// The memory that is the process' own, or shared with a service, in KiB: what it has of files is theirs.
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

    /// A service that is there, and starts no session.
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
                        // The producer's memory is used.
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
            println!("BEFORE {}", memory()); // What this needs itself is there from now on.
            let before = memory();
            perfetto::connect();
            assert!(perfetto::status().is_connected() && perfetto::status().sessions() == 0);
            std::thread::sleep(std::time::Duration::from_millis(1500)); // It looks at the clock for a while.
            println!("KIB {}", memory() - before);
        });
        let place = Place::file();
        let socket = place.path("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        std::thread::spawn(move || listener.incoming().flatten().for_each(idle));
        let ran = common::run(&mut producer(&place, &std::env::current_exe().unwrap(), &name, &socket));
        let kib: u64 = ran.said("KIB")[0].parse().unwrap();
        assert!((1..=64).contains(&kib), "{kib} KiB");
    }

    /// A program with more rights than its caller connects to nobody whom its caller names.
    #[test]
    fn elevated_rights_ignore_the_name_of_a_socket() {
        let name = case!({
            // SAFETY: no preconditions.
            println!("UIDS {:?}", unsafe { (libc::getuid(), libc::geteuid()) });
            perfetto::connect();
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

    /// Where the process may not read the counter, to read it would end the process.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_refused_counter_is_not_read() {
        let name = case!({
            let time = || {
                let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
                // SAFETY: writable. The call itself: libc's function reads the counter.
                unsafe { libc::syscall(libc::SYS_clock_gettime, libc::CLOCK_BOOTTIME, &raw mut time) };
                time.tv_sec * 1_000_000_000 + time.tv_nsec
            };
            atrace_init(); // std asks for the time as the properties are opened, of libc.
            // SAFETY: for this thread, and those that it makes.
            assert_eq!(unsafe { libc::prctl(libc::PR_SET_TSC, libc::PR_TSC_SIGSEGV) }, 0);
            perfetto::connect();
            println!("SESSIONS {}", perfetto::status().sessions());
            for _ in 0..3 {
                atrace_instant(TAG, &format!("after {}", time()));
                atrace_instant(TAG, &format!("before {}", time()));
                // SAFETY: no preconditions. An anchor would be made meanwhile.
                unsafe { libc::usleep(60_000) };
            }
            // SAFETY: as above: the harness asks for the time.
            assert_eq!(unsafe { libc::prctl(libc::PR_SET_TSC, libc::PR_TSC_ENABLE) }, 0);
        });
        let (ran, events) = recorded(&name);
        assert_eq!(ran.said("SESSIONS"), ["1"]);
        assert_eq!(events.len(), 6, "{events:?}");
    }

    /// A child that libc knows nothing of has no thread for the socket, and must not write as its parent.
    #[test]
    fn the_child_of_a_bare_clone_is_off() {
        let name = case!({
            perfetto::connect();
            until("a session", || perfetto::status().sessions() == 1);
            atrace_instant(TAG, "parent");
            // SAFETY: no flags but the signal at the end: a fork. The child ends without returning from here.
            let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
            if child == 0 {
                let is_on = atrace_is_tag_enabled(TAG);
                for _ in 0..1000 {
                    atrace_instant(TAG, "child");
                }
                let is_off = !is_on && perfetto::status().sessions() == 0;
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(i32::from(!is_off)) };
            }
            let mut status = 0;
            // SAFETY: writable.
            unsafe { libc::waitpid(child as i32, &raw mut status, 0) };
            assert_eq!(status, 0, "it was on");
            atrace_instant(TAG, "parent again");
        });
        assert_eq!(recorded(&name).1, ["parent", "parent again"]);
    }

    /// The socket's thread looks at the system's clock once a second; in between, the processor's counter is what there is.
    #[test]
    fn the_clock_stays_with_the_systems() {
        let name = case!({
            use atrace_sys::perfetto::clock;

            perfetto::connect();
            until("a session", || perfetto::status().sessions() == 1);
            atrace_instant(TAG, "once"); // Else there is nobody to look at the clock for.
            let seconds = if std::env::var_os("ATRACE_LONG").is_some() { 60 } else { 3 };
            let (start, mut off) = (std::time::Instant::now(), 0);
            while start.elapsed().as_secs() < seconds {
                // Of some, the one that nothing came in between of.
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
        let keep = Keep::File { file: File::create(place.path("trace")).unwrap(), max: None };
        let _service = Service::start(UnixListener::bind(&socket).unwrap(), user, keep).unwrap();
        let mut command = producer(&place, &std::env::current_exe().unwrap(), &name, &socket);
        if std::env::var_os("ATRACE_LONG_TESTS").is_some() {
            command.env("ATRACE_LONG", "yes");
        }
        let ran = common::run(&mut command);
        let ns: u64 = ran.said("OFF")[0].parse().unwrap();
        println!("off by {ns} ns at most");
        assert!(ns <= 1000, "{ns} ns");
    }

    /// A first event waits for a session, which a service that says nothing never begins; but not in a handler.
    #[test]
    fn a_handler_does_not_wait_for_a_session() {
        /// `RUSAGE_THREAD`, which the crate `libc` does not have for Android.
        const THREAD: libc::c_int = 1;
        /// How often the thread has slept.
        fn sleeps() -> i64 {
            // SAFETY: zeros are such numbers, and the kernel fills them.
            unsafe {
                let mut used: libc::rusage = std::mem::zeroed();
                assert_eq!(libc::getrusage(THREAD, &raw mut used), 0);
                used.ru_nvcsw
            }
        }
        extern "C" fn first_event(_: libc::c_int) {
            let before = sleeps();
            atrace_instant(TAG, "first");
            SLEEPS.store(sleeps() - before, Ordering::SeqCst);
        }
        static SLEEPS: AtomicI64 = AtomicI64::new(-1);
        let name = case!({
            let handler = first_event as extern "C" fn(libc::c_int) as libc::sighandler_t;
            if std::env::var_os("ATRACE_TEST_IN_HANDLER").is_some() {
                // SAFETY: the handler is for a program that is about nothing else.
                unsafe {
                    libc::signal(libc::SIGUSR1, handler);
                    libc::raise(libc::SIGUSR1);
                }
            } else {
                first_event(0);
            }
            println!("SLEEPS {}", SLEEPS.load(Ordering::SeqCst));
        });
        let place = Place::file();
        let socket = place.path("socket");
        let _listener = UnixListener::bind(&socket).unwrap();
        let sleeps = |is_in_handler: bool| {
            let mut command = producer(&place, &std::env::current_exe().unwrap(), &name, &socket);
            command.env("ATRACE_BACKEND", "perfetto");
            if is_in_handler {
                command.env("ATRACE_TEST_IN_HANDLER", "yes");
            }
            common::run(&mut command).said("SLEEPS")[0].parse::<i64>().unwrap()
        };
        // A millisecond each.
        assert!(sleeps(false) >= 100);
        assert!((0..50).contains(&sleeps(true)));
    }
}
