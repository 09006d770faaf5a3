//! Tests `atrace record`, as an ordinary user, with programs that already run and that never asked for a connection to
//! Perfetto's service.

#[path = "../../../atrace/tests/common/mod.rs"]
mod common;
mod here;

#[cfg(target_os = "linux")]
#[allow(unsafe_code, reason = "processes fork, and are confined, as C programs")]
mod cases {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, chown};
    use std::os::unix::net::UnixListener;
    use std::os::unix::process::CommandExt as _;
    use std::path::{Path, PathBuf};
    use std::process::{Child, Command};
    use std::time::{Duration, Instant};

    use atrace::{AtraceTag, atrace_init, atrace_instant, perfetto};
    use atrace_cli::service::{Service, Storage};
    use atrace_subscriber::{AtraceFilter, AtraceLayer, AtraceSubscriber};
    use tracing_subscriber::prelude::*;

    use crate::common::{self, Ran, case, is_root, until};
    use crate::here::{Here, Recording, without_memory_files};

    const TAG: AtraceTag = AtraceTag::App;
    /// The id of a user without an account.
    const USER: u32 = 48_151;

    /// The directory of a user, with the socket of `atrace record`, the command's output file, and a property store.
    struct Place(Here);

    impl Place {
        fn new() -> Self {
            let here = Here::new();
            fs::create_dir(here.path("place")).unwrap();
            fs::set_permissions(here.path("place"), fs::Permissions::from_mode(0o755)).unwrap();
            // SAFETY: no preconditions.
            if unsafe { libc::geteuid() } == 0 {
                chown(here.path("place"), Some(USER), Some(USER)).unwrap();
            }
            Self(here)
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.path("place").join(name)
        }

        fn of_user<'a>(&self, command: &'a mut Command) -> &'a mut Command {
            command.current_dir(self.path("")).env("ATRACE_PROPERTIES", self.path("properties"));
            command.env("PERFETTO_PRODUCER_SOCK_NAME", self.path("socket"));
            command.env("PERFETTO_CONSUMER_SOCK_NAME", "/nonexistent");
            // SAFETY: no preconditions.
            if unsafe { libc::geteuid() } == 0 {
                command.uid(USER).gid(USER);
            }
            command
        }

        fn program(&self, case: &str) -> Command {
            let mut program = self.0.cleared(&self.0.path("program"), case);
            program.args([case, "--exact", "--nocapture", "--test-threads=1"]);
            self.of_user(&mut program);
            program
        }

        fn record(&self, pattern: &str) -> Command {
            let mut record = self.0.atrace("none");
            record.args(["record", "-fo", "out", "-t", "2min", "-a", pattern]);
            self.of_user(&mut record);
            record
        }

        /// Records until the trace has events with all these names or, if `time` is given, for this time. Returns how
        /// long the recording took, and the command's result.
        fn recorded(&self, pattern: &str, names: &[&str], time: Option<Duration>) -> (Duration, Ran) {
            self.recorded_by(&mut self.record(pattern), names, time)
        }

        fn recorded_by(
            &self,
            record: &mut Command,
            names: &[&str],
            time: Option<Duration>,
        ) -> (Duration, Ran) {
            let recording = Recording::start(record);
            let live = self.path(&format!(".out.{}", recording.child.id()));
            let took = match time {
                None => until("all are there", || {
                    // The file's last packet may be incomplete, so the names are searched in the bytes of the file.
                    let bytes = fs::read(&live).unwrap_or_default();
                    names.iter().all(|name| bytes.windows(name.len()).any(|part| part == name.as_bytes()))
                }),
                Some(time) => {
                    std::thread::sleep(time);
                    time
                }
            };
            (took, recording.stop())
        }
    }

    /// A program that runs as long as the file `runs` exists. Dropping the `Running` ends the program, even if the test
    /// fails.
    struct Running(Option<Child>, PathBuf);

    impl Running {
        fn start(place: &Place, mut command: Command) -> Self {
            fs::write(place.path("runs"), "").unwrap();
            let child = command.spawn().unwrap();
            let running = Self(Some(child), place.path("runs"));
            until("it runs", || place.path("is there").exists());
            running
        }

        fn end(mut self) -> Ran {
            fs::remove_file(&self.1).unwrap();
            common::end_of(self.0.take().unwrap())
        }
    }

    impl Drop for Running {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.1);
            if let Some(mut child) = self.0.take() {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }

    /// Calls `each` again and again until the test removes the file `runs`.
    fn run(mut each: impl FnMut()) {
        fs::write("is there", "").unwrap();
        while Path::new("runs").exists() {
            each();
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Tests the program in the README's example of `tracing`, which has no code for Perfetto.
    #[test]
    fn a_program_with_the_subscriber_is_found_while_it_runs() {
        let name = case!({
            let subscriber = AtraceSubscriber::default().with_filter();
            tracing::subscriber::set_global_default(subscriber).unwrap();
            run(|| {
                let _span = tracing::info_span!("load", items = 3).entered();
                tracing::warn!("late");
            });
        });
        let place = Place::new();
        let running = Running::start(&place, place.program(&name));
        for _ in 0..3 {
            let (took, ran) = place.recorded("*program", &["load", "late"], None);
            assert!(ran.stderr.contains("none lost") && !ran.stderr.contains("30 s"), "{ran:?}");
            eprintln!("{took:?}");
        }
        // A pattern may be the program's basename. A pattern that matches only a part of the name finds no program.
        place.recorded("program", &["load"], None);
        let (_, ran) = place.recorded("*ogra", &[], Some(Duration::from_secs(2)));
        assert!(ran.stderr.contains("atrace: 0 events written"), "{ran:?}");
        let ran = running.end();
        assert!(ran.status.success(), "{ran:?}");
    }

    #[test]
    fn a_program_that_turns_it_off_is_not_found() {
        let name = case!({
            let subscriber = AtraceSubscriber::default().without_attach().with_filter();
            tracing::subscriber::set_global_default(subscriber).unwrap();
            run(|| tracing::warn!("late"));
        });
        let place = Place::new();
        let running = Running::start(&place, place.program(&name));
        let (_, ran) = place.recorded("*program", &[], Some(Duration::from_secs(2)));
        assert!(ran.stderr.contains("atrace: 0 events written"), "{ran:?}");
        assert!(running.end().status.success());
    }

    /// Tests a kernel before Linux 3.17, on which the service makes the shared memory as a file of `/dev/shm`.
    #[test]
    fn a_program_is_found_on_a_kernel_without_memory_files() {
        let name = case!({
            atrace_init();
            run(|| atrace_instant(TAG, "on an old kernel"));
        });
        let place = Place::new();
        let mut program = place.program(&name);
        without_memory_files(&mut program);
        let running = Running::start(&place, program);
        let mut record = place.record("*program");
        let (_, ran) = place.recorded_by(without_memory_files(&mut record), &["on an old kernel"], None);
        assert!(ran.stderr.contains("none lost"), "{ran:?}");
        assert!(running.end().status.success());
    }

    /// Tests a program whose subscriber has a layer with a filter. The filter has its own thread, and a different
    /// thread connects to the service.
    #[test]
    fn a_program_with_a_layer_is_found() {
        let name = case!({
            let layer = AtraceLayer::default().with_filter(AtraceFilter::default());
            tracing_subscriber::registry().with(layer).init();
            run(|| tracing::info!("from the layer"));
        });
        let place = Place::new();
        let running = Running::start(&place, place.program(&name));
        place.recorded("*program", &["from the layer"], None);
        assert!(running.end().status.success());
    }

    /// Tests a daemon. Its parent was never connected, and has ended before the recording begins.
    #[test]
    fn a_daemon_is_found() {
        let name = case!({
            atrace_init();
            // SAFETY: the child only traces, which is allowed after a fork, and ends.
            unsafe {
                if libc::fork() == 0 {
                    run(|| atrace_instant(TAG, "of a daemon"));
                    libc::_exit(0);
                }
            }
        });
        let place = Place::new();
        let running = Running::start(&place, place.program(&name));
        for _ in 0..2 {
            place.recorded("*program", &["of a daemon"], None);
        }
        running.end();
    }

    /// Tests a program that writes only one event and ends. The service was started before the program, so the program
    /// waits in `atrace_init` for the service's answer, for at most 100 ms.
    #[test]
    fn a_program_that_ends_at_once_is_recorded() {
        let name = case!({
            if std::env::var_os("ONCE").is_some() {
                let start = Instant::now();
                atrace_init();
                let is_answered = || perfetto::status().sessions() == 1;
                assert!(is_answered() || start.elapsed() >= Duration::from_millis(100));
                // On a busy machine, the service's answer may take longer than `atrace_init` waits.
                until("the service answers", is_answered);
                atrace_instant(TAG, "the only one");
            }
        });
        let place = Place::new();
        let recording = Recording::start(&mut place.record("*program"));
        let ran = common::run(place.program(&name).env("ONCE", "1"));
        assert!(ran.status.success(), "{ran:?}");
        let ran = recording.stop();
        assert!(ran.stderr.contains("1 events written, none lost"), "{ran:?}");
    }

    /// Makes the kernel end the process at each system call that a connection to Perfetto's service needs, or that
    /// events in Perfetto's memory need. If `all` is true, the filter applies to all threads of the process, otherwise
    /// only to the calling thread. If `is_recorded` is true, `mmap` stays allowed, because the end of a recording needs
    /// `mmap`.
    fn confine(all: bool, is_recorded: bool) {
        let op = |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter { code: code as u16, jt, jf, k };
        let mut filter = vec![op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0)];
        let calls = [
            libc::SYS_socket,
            libc::SYS_connect,
            libc::SYS_openat,
            libc::SYS_prctl,
            libc::SYS_gettid,
            libc::SYS_clone,
            libc::SYS_clone3,
            libc::SYS_memfd_create,
            libc::SYS_mmap,
        ];
        for call in calls.into_iter().filter(|call| !is_recorded || *call != libc::SYS_mmap) {
            filter.push(op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, call as u32, 0, 1));
            filter.push(op(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_KILL_PROCESS, 0, 0));
        }
        filter.push(op(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0));
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        let flags = if all { libc::SECCOMP_FILTER_FLAG_TSYNC } else { 0 };
        // SAFETY: the filter is alive and has that length.
        unsafe {
            assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
            let mode = libc::SECCOMP_SET_MODE_FILTER;
            assert_eq!(libc::syscall(libc::SYS_seccomp, mode, flags, &raw const program), 0);
        }
    }

    #[test]
    fn a_program_that_has_confined_itself_is_left_alone() {
        let name = case!({
            let child = common::fork();
            if child == 0 {
                fs::write("will be there", "").unwrap();
                if std::env::var_os("LATE").is_some() && !common::delay::named_threads() {
                    println!("PUNCTUAL");
                }
                atrace_init();
                let is_recorded = std::env::var_os("RECORDED").is_some();
                if is_recorded {
                    until("it is recorded", || !perfetto::status().tags().is_empty());
                    atrace_instant(TAG, "allowed");
                }
                confine(std::env::var_os("ALL").is_some(), is_recorded);
                fs::rename("will be there", "is there").unwrap();
                while Path::new("runs").exists() {
                    // Writes no event during the recording, because an event may then need system calls that are not
                    // allowed.
                    if !is_recorded || !Path::new("is recorded").exists() {
                        atrace_instant(TAG, "not allowed");
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
                let is_over = !perfetto::status().is_connected() && !atrace::atrace_is_tag_enabled(TAG);
                // SAFETY: no preconditions.
                unsafe { libc::_exit(i32::from(!is_over)) };
            }
            let mut status = 0;
            // SAFETY: `status` is writable.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            println!("STATUS {status}");
        });
        let check = &|all: bool, is_recorded: bool, late: Option<bool>| {
            let place = Place::new();
            let mut program = place.program(&name);
            if late.is_some() {
                program.env("LATE", "1");
            }
            if late == Some(true) {
                drop(UnixListener::bind(place.path("socket")).unwrap());
            }
            if all {
                program.env("ALL", "1");
            }
            // The program confines itself during the first recording if `is_recorded` is true, otherwise before any
            // recording.
            let first = is_recorded.then(|| {
                program.env("RECORDED", "1");
                fs::write(place.path("is recorded"), "").unwrap();
                Recording::start(&mut place.record("*program"))
            });
            let running = Running::start(&place, program);
            if let Some(first) = first {
                first.stop();
                fs::remove_file(place.path("is recorded")).unwrap();
            }
            if late == Some(true) {
                fs::remove_file(place.path("socket")).unwrap();
            }
            for _ in 0..2 {
                place.recorded("*program", &[], Some(Duration::from_secs(1)));
            }
            let ran = running.end();
            if ran.stdout.contains("PUNCTUAL") {
                common::skipped(&name, "the kernel can't delay a thread");
            }
            assert_eq!(ran.said("STATUS"), ["0"], "{all} {is_recorded} {late:?}: {ran:?}");
        };
        std::thread::scope(|scope| {
            for (all, is_recorded) in [(false, false), (true, false), (false, true), (true, true)] {
                scope.spawn(move || check(all, is_recorded, None));
            }
            // The start of the socket thread is delayed. There is no service, and either no socket or a socket at which
            // nobody listens.
            for has_socket in [false, true] {
                scope.spawn(move || check(true, false, Some(has_socket)));
            }
        });
    }

    #[test]
    fn a_program_with_elevated_rights_looks_for_nothing() {
        let name = case!({
            atrace_init();
            // SAFETY: no preconditions.
            println!("USER {}", unsafe { libc::geteuid() });
            println!("STATUS {} THREADS {}", perfetto::status(), common::threads());
        });
        if !is_root(&name) {
            return;
        }
        let place = Place::new();
        let program = place.0.path("elevated");
        common::copy_program(std::env::current_exe().unwrap(), &program);
        chown(&program, Some(USER), None).unwrap();
        for (mode, is_attached) in [(0o755, true), (0o4755, false)] {
            fs::set_permissions(&program, fs::Permissions::from_mode(mode)).unwrap();
            let mut command = place.0.cleared(&program, &name);
            command.args([&name, "--exact", "--nocapture", "--test-threads=1"]);
            let ran = common::end_of(command.uid(USER + 1).gid(USER + 1).current_dir("/").spawn().unwrap());
            let _ = fs::remove_dir_all(format!("/dev/shm/atrace-{}", USER + 1));
            let _ = fs::remove_dir_all(format!("/dev/shm/atrace-{USER}"));
            assert!(ran.status.success(), "{ran:?}");
            if mode == 0o4755 && ran.said("USER")[0] == (USER + 1).to_string() {
                return common::skipped(&name, "set-user-id has no effect there (nosuid?)");
            }
            assert_eq!(
                !ran.said("STATUS")[0].contains("no connection was asked for"),
                is_attached,
                "{ran:?}"
            );
        }
    }

    /// Returns the size of this process's private memory, in KiB.
    fn memory() -> u64 {
        let all = fs::read_to_string("/proc/self/smaps_rollup").unwrap();
        let line = all.lines().find_map(|line| line.strip_prefix("Anonymous:")).unwrap();
        line.trim().trim_end_matches("kB").trim().parse().unwrap()
    }

    #[test]
    fn looking_for_a_recording_costs_a_thread_and_little_memory() {
        let name = case!({
            atrace::atrace_get_enabled_tags();
            println!("BEFORE {}", memory());
            let (before, threads) = (memory(), common::threads());
            atrace_init();
            until("the thread sleeps", || common::threads() == threads + 1);
            std::thread::sleep(Duration::from_millis(300));
            println!("KIB {}", memory() - before);
            assert!(!atrace::atrace_is_tag_enabled(TAG));
        });
        let place = Place::new();
        // The first run of the program also creates the property store, so the second run is measured.
        common::run(&mut place.program(&name));
        let ran = common::run(&mut place.program(&name));
        let pages = ran.said("KIB")[0].parse::<usize>().unwrap() * 1024 / atrace_sys::memory::page_size();
        assert!((1..=24).contains(&pages), "{pages} pages");
    }

    /// Tests a program that has no free descriptor when it first calls `atrace_init`.
    #[test]
    fn a_program_without_descriptors_is_found_after_a_later_call() {
        let name = case!({
            let looks = || {
                let tasks = fs::read_dir("/proc/self/task").unwrap();
                let names = tasks.map(|task| fs::read_to_string(task.unwrap().path().join("comm")).unwrap());
                names.filter(|name| name.trim() == "atrace-perfetto").count()
            };
            common::limit(libc::RLIMIT_NOFILE, 0, 4096).unwrap();
            atrace_init();
            common::limit(libc::RLIMIT_NOFILE, 1024, 4096).unwrap();
            assert_eq!(looks(), 0);
            atrace_init();
            until("it looks for recordings", || looks() == 1);
            run(|| atrace_instant(TAG, "found late"));
        });
        let place = Place::new();
        let running = Running::start(&place, place.program(&name));
        place.recorded("*program", &["found late"], None);
        assert!(running.end().status.success());
    }

    /// Tests a program that calls `atrace_init`, and later asks for a connection to Perfetto's service. From then on,
    /// the program also finds services that are not announced, whether a service starts before or after the program has
    /// asked.
    #[test]
    fn a_program_that_asks_for_the_connection_later_looks_again_and_again() {
        let name = case!({
            atrace_init();
            fs::write("waits", "").unwrap();
            until("it may ask", || Path::new("ask").exists());
            perfetto::connect();
            atrace_instant(TAG, "first");
            run(|| atrace_instant(TAG, "later"));
        });
        for is_there_first in [true, false] {
            let place = Place::new();
            let serve = || {
                let listener = UnixListener::bind(place.path("socket")).unwrap();
                fs::set_permissions(place.path("socket"), fs::Permissions::from_mode(0o666)).unwrap();
                let keep = Storage::File { file: fs::File::create(place.path("trace")).unwrap(), max: None };
                let own = atrace_sys::process::user();
                let uid = if own == 0 { USER } else { own };
                Service::start(listener, uid, keep).unwrap()
            };
            fs::write(place.path("runs"), "").unwrap();
            let running = Running(Some(place.program(&name).spawn().unwrap()), place.path("runs"));
            until("it waits", || place.path("waits").exists());
            let mut service = is_there_first.then(serve);
            fs::write(place.path("ask"), "").unwrap();
            until("it has asked", || place.path("is there").exists());
            let service = service.take().unwrap_or_else(serve);
            until("an event has come", || service.events() > 0);
            let ran = running.end();
            assert!(ran.status.success(), "{ran:?}");
            let report = service.finish();
            let trace = fs::read(place.path("trace")).unwrap();
            let has_first = trace.windows(5).any(|part| part == b"first");
            assert!(has_first || !is_there_first, "the first event is missing: {report:?}");
        }
    }

    #[test]
    fn why_nothing_was_recorded_is_said_in_a_line() {
        let name = case!({
            let is_filtered = std::env::var_os("ATRACE_FILTER").is_some();
            if is_filtered {
                atrace_init()
            } else {
                _ = atrace::atrace_get_enabled_tags()
            }
            run(|| {
                if !is_filtered {
                    atrace_instant(TAG, "never")
                }
            });
        });
        let place = Place::new();
        let second = Some(Duration::from_millis(300));
        let said = |pattern: &str| place.recorded(pattern, &[], second).1.stderr;
        let text = said("*/nobody-is-called-so");
        assert!(text.contains("no running process matches */nobody-is-called-so"), "{text}");
        for (variable, value, expected) in [
            ("", "", "uses this library, but does not look for recordings"),
            ("ATRACE_BACKEND", "none", "was started with ATRACE_BACKEND=none"),
            ("ATRACE_MARKER", "/dev/null", "was started with ATRACE_MARKER=/dev/null"),
            ("PERFETTO_PRODUCER_SOCK_NAME", "/other", "looks for a service at /other"),
            ("ATRACE_FILTER", "off", "is connected and wrote no event: its filter off (ATRACE_FILTER)"),
        ] {
            let mut program = place.program(&name);
            if !variable.is_empty() {
                program.env(variable, value);
            }
            let running = Running::start(&place, program);
            let pid = running.0.as_ref().unwrap().id();
            let recording =
                Recording::start(&mut place.record(&place.0.path("program").display().to_string()));
            if expected.contains("is connected") {
                let status = || {
                    let mut command = place.0.atrace(&name);
                    common::end_of(command.arg("status").spawn().unwrap()).stdout
                };
                let is_connected =
                    |line: &str| line.contains(&format!("{pid} (")) && line.contains(": connected");
                until("it is connected", || status().lines().any(is_connected));
            } else {
                std::thread::sleep(Duration::from_millis(300));
            }
            let text = recording.stop().stderr;
            assert!(text.contains(expected) && text.contains(&format!("{pid} (")), "{variable}: {text}");
            assert!(!text.contains("nobody connected"), "{text}");
            fs::remove_file(place.path("is there")).unwrap();
            running.end();
        }
    }
}
