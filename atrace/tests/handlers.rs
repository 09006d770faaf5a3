//! Tests events in signal handlers that interrupt the allocator or another event. Also tests events in children that
//! such signal handlers fork.
#![cfg(target_os = "linux")]

mod common;
#[cfg(target_arch = "x86_64")]
#[allow(dead_code, unreachable_pub, reason = "a test uses a part of this")]
#[path = "../../crates/real-service/src/trace.rs"]
mod trace;

#[allow(unsafe_code, reason = "handlers, timers and children are made as a C program would")]
mod cases {
    use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};
    use std::time::{Duration, Instant};

    use atrace::*;

    use crate::common::{self, Place, case};
    use crate::trace::Trace;

    const TAG: AtraceTag = AtraceTag::App;
    /// The number of children in each case. If a fault appears in a child with a probability of one half, the test
    /// misses the fault once in a million runs.
    const CHILDREN: u32 = 20;
    /// The number of signals that a child receives before it ends.
    const SIGNALS: u32 = 1000;
    /// The time limit for a child. A child that needs more time hangs, unless the machine is very busy.
    const PATIENCE: Duration = Duration::from_secs(40);

    fn on_signal(signal: libc::c_int, handler: extern "C" fn(libc::c_int)) {
        // SAFETY: except for writing events, the handlers below do only what a signal handler may do.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as *const () as libc::sighandler_t;
            // Ordinary programs install handlers like this. The flags do not show the library that it runs in a signal
            // handler.
            action.sa_flags = libc::SA_NODEFER | libc::SA_RESTART;
            assert_eq!(libc::sigaction(signal, &action, std::ptr::null_mut()), 0);
        }
    }

    /// Calls `handler` after 20 µs, and again whenever the handler calls [`next`].
    fn on_alarm(handler: extern "C" fn(libc::c_int)) {
        on_signal(libc::SIGALRM, handler);
        // SAFETY: the timer's value is initialized by the call.
        unsafe {
            let mut timer: libc::timer_t = std::mem::zeroed();
            assert_eq!(libc::timer_create(libc::CLOCK_MONOTONIC, std::ptr::null_mut(), &mut timer), 0);
            TIMER.store(timer.cast(), Ordering::Relaxed);
        }
        next();
    }

    static TIMER: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());

    /// Schedules the next signal in 20 µs. A periodic timer is not used, because on a slow machine signal handlers
    /// would interrupt each other without end.
    fn next() {
        let never = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let soon = libc::timespec { tv_sec: 0, tv_nsec: 20_000 };
        let times = libc::itimerspec { it_interval: never, it_value: soon };
        // SAFETY: the timer id belongs to this process. In a child, which has no such timer, the call fails.
        unsafe { libc::timer_settime(TIMER.load(Ordering::Relaxed).cast(), 0, &times, std::ptr::null_mut()) };
    }

    /// Stops the signals that [`on_alarm`] has started.
    fn no_alarm() {
        // SAFETY: no preconditions.
        unsafe { libc::signal(libc::SIGALRM, libc::SIG_IGN) };
    }

    /// Makes the kernel end this process by SIGXCPU or SIGKILL if the process uses more than 20 s of processor time.
    fn end_if_it_hangs() {
        // SAFETY: `limit` is alive. The limit applies to this process and to children that it forks later.
        unsafe {
            let limit = libc::rlimit { rlim_cur: 20, rlim_max: 20 };
            libc::setrlimit(libc::RLIMIT_CPU, &limit);
        }
    }

    /// Allocates and frees memory until this many signals have arrived.
    fn allocate_until(signals: &AtomicU32) {
        let mut kept = Vec::new();
        let mut size = 1_usize;
        while signals.load(Ordering::Relaxed) < SIGNALS {
            size = size * 7 % 5003 + 1;
            kept.push(std::hint::black_box(vec![1_u8; size]));
            if kept.len() > 64 {
                kept.drain(..48);
            }
        }
    }

    /// Runs `body` in a child. Fails if the child does not end with status 0 within the time limit.
    fn in_child(body: impl FnOnce()) {
        // SAFETY: the child ends without returning from here. A child that hangs is killed.
        unsafe {
            let child = common::fork();
            if child == 0 {
                end_if_it_hangs();
                body();
                libc::_exit(0);
            }
            let status = ended(child);
            assert!(
                libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0,
                "a child ended by {status:#x}"
            );
        }
    }

    /// Waits for a child's end, and returns its status. Kills a child that does not end, for example because it sleeps
    /// forever.
    fn ended(child: libc::pid_t) -> i32 {
        let mut status = 0;
        let start = Instant::now();
        // SAFETY: a child of this process that no one else waits for.
        unsafe {
            while libc::waitpid(child, &mut status, libc::WNOHANG) == 0 {
                if start.elapsed() > PATIENCE {
                    libc::kill(child, libc::SIGKILL);
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        status
    }

    static SIGNALED: AtomicU32 = AtomicU32::new(0);

    extern "C" fn event(_: libc::c_int) {
        atrace_instant(TAG, "in a handler");
        atrace_begin(TAG, "slice");
        atrace_end(TAG);
        SIGNALED.fetch_add(1, Ordering::Relaxed);
        next();
    }

    /// Tests a child whose first event is in a signal handler. This event starts the thread that connects to the
    /// service.
    #[test]
    fn a_child_of_a_process_without_a_service_may_write_its_first_event_in_a_handler() {
        let name = case!({
            atrace_init();
            perfetto::connect();
            for _ in 0..CHILDREN {
                in_child(|| {
                    on_alarm(event);
                    allocate_until(&SIGNALED);
                });
            }
        });
        let place = Place::file();
        common::run(place.command(&name).env("PERFETTO_PRODUCER_SOCK_NAME", place.path("nobody")));
    }

    /// Tests a library that could not open any file when it was loaded. Events do not try again to open files, and do
    /// not format errors.
    #[test]
    fn events_in_a_handler_without_descriptors_do_no_harm() {
        let name = case!({
            atrace_init();
            assert_eq!(sink().kind(), "None");
            for _ in 0..CHILDREN {
                in_child(|| {
                    on_alarm(event);
                    allocate_until(&SIGNALED);
                });
            }
        });
        let place = Place::file().on();
        common::run(&mut common::without_descriptors(&place.command(&name)));
    }

    /// Tests a marker that is closed and can't be opened again. Each event tries to write to the marker.
    #[test]
    fn events_in_a_handler_whose_marker_is_gone_do_no_harm() {
        let name = case!({
            atrace_instant(TAG, "before");
            let marker = std::env::var("ATRACE_MARKER").unwrap();
            let (number, _) =
                common::descriptors().into_iter().find(|(_, path)| path.to_str() == Some(&marker)).unwrap();
            // SAFETY: closes the library's descriptor, which the library must tolerate in this test.
            assert_eq!(unsafe { libc::close(number) }, 0);
            std::fs::remove_file(&marker).unwrap();
            for _ in 0..CHILDREN {
                in_child(|| {
                    on_alarm(event);
                    allocate_until(&SIGNALED);
                });
            }
        });
        let place = Place::file().on();
        place.run(&name);
    }

    /// The id of the child that [`fork_here`] has forked, or -1 before the fork. In the child the value is 0, and no
    /// timer runs.
    static CHILD: AtomicI32 = AtomicI32::new(-1);

    /// Returns whether this process may stop: the forked child has written more than 5,000 events, or more than
    /// 60 signals have arrived in its parent.
    fn is_over(written: u64) -> bool {
        let child = CHILD.load(Ordering::Relaxed);
        (child == 0 && written > 5000) || (child > 0 && SIGNALED.load(Ordering::Relaxed) > 60)
    }

    /// A signal handler that forks once, in the middle of the code that the signal interrupts. The handler returns in
    /// the parent and in the child.
    extern "C" fn fork_here(_: libc::c_int) {
        // The fork comes with the 51st signal, when some events have already been written.
        if SIGNALED.fetch_add(1, Ordering::Relaxed) == 50 {
            // SAFETY: the only other thread belongs to the recording. This thread never holds a lock of the C library
            // for long.
            CHILD.store(unsafe { libc::fork() }, Ordering::Relaxed);
        }
        next();
    }

    /// Tests a child that is forked in the middle of an event. The child continues the event, and writes the rest of it
    /// into memory that it does not share with its parent.
    #[test]
    fn a_handler_may_fork_in_the_middle_of_an_event() {
        let name = case!({
            let directory = tempfile::tempdir().unwrap();
            for round in 0..60 {
                in_child(|| {
                    let path = directory.path().join(format!("{round}"));
                    let recording = perfetto::record_to(&path).unwrap();
                    on_alarm(fork_here);
                    let mut written = 0_u64;
                    while !is_over(written) {
                        atrace_begin(TAG, "slice that is written when the signal comes");
                        atrace_int64(TAG, "counter", 7);
                        atrace_end(TAG);
                        written += 1;
                    }
                    no_alarm();
                    recording.finish().unwrap();
                    let child = CHILD.load(Ordering::Relaxed);
                    if child > 0 {
                        assert_eq!(ended(child), 0, "the child of the handler, after {written} slices");
                        let begins =
                            Trace::open(&path).events().iter().filter(|event| event.kind == 1).count();
                        let lost = perfetto::status().lost();
                        let found = begins as u64;
                        assert!(found == written || found < written && lost > 0, "{found} of {written}");
                    }
                });
            }
        });
        Place::file().run(&name);
    }

    /// Tests that a child can record itself even if a signal handler forked it while its parent was being recorded.
    #[test]
    fn a_child_of_a_handler_can_record_itself() {
        let name = case!({
            let directory = tempfile::tempdir().unwrap();
            for round in 0..60 {
                let path = directory.path().join(format!("child {round}"));
                in_child(|| {
                    let recording =
                        perfetto::record_to(directory.path().join(format!("parent {round}"))).unwrap();
                    on_alarm(fork_here);
                    while CHILD.load(Ordering::Relaxed) < 0 {
                        atrace_instant(TAG, "interrupted");
                    }
                    if CHILD.load(Ordering::Relaxed) == 0 {
                        drop(recording);
                        let own = perfetto::record_to(&path).unwrap();
                        atrace_instant(TAG, "of the child");
                        own.finish().unwrap();
                        return;
                    }
                    no_alarm();
                    assert_eq!(ended(CHILD.load(Ordering::Relaxed)), 0);
                    recording.finish().unwrap();
                });
                let trace = std::fs::read(&path).unwrap();
                let count = trace.windows(12).filter(|window| window == b"of the child").count();
                assert_eq!(count, 1, "the child of round {round}");
                assert!(!trace.windows(11).any(|window| window == b"interrupted"));
            }
        });
        Place::file().run(&name);
    }

    /// Tests that the library works even if the system starts to refuse the system call `membarrier` during a
    /// recording.
    #[test]
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    fn a_filter_may_deny_the_barrier_of_a_recording_that_runs() {
        let name = case!({
            let directory = tempfile::tempdir().unwrap();
            let again = directory.path().join("again");
            let record = || {
                let recording = perfetto::record_to(directory.path().join("trace")).unwrap();
                atrace_instant(TAG, "before");
                let (refused, all) =
                    (libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, libc::SECCOMP_FILTER_FLAG_TSYNC);
                common::deny(libc::SYS_membarrier, refused, all);
                let finished = std::thread::scope(|scope| {
                    for _ in 0..4 {
                        scope.spawn(|| {
                            for _ in 0..20_000 {
                                atrace_instant(TAG, "beside");
                            }
                        });
                    }
                    std::thread::sleep(Duration::from_millis(3));
                    recording.finish()
                });
                match finished {
                    Ok(_) => {}
                    Err(error) if error.kind() == std::io::ErrorKind::TimedOut => return,
                    Err(error) => panic!("{error}"),
                }
                let recording = perfetto::record_to(&again).unwrap();
                atrace_instant(TAG, "again");
                recording.finish().unwrap();
            };
            // On a busy machine, a recording may time out because a thread is preempted in the middle of an event. So
            // there are up to five attempts.
            for _ in 0..5 {
                in_child(record);
                if again.exists() {
                    break;
                }
            }
            let trace = std::fs::read(again).unwrap();
            assert!(trace.windows(5).any(|window| window == b"again"));
        });
        Place::file().run(&name);
    }

    /// Selects the signal whose handler writes an event: 1 is the first signal that arrives, 2 the second, and so on.
    /// If the value is 0, the handler writes an event at every signal.
    #[cfg(target_arch = "x86_64")]
    static ONLY: AtomicU32 = AtomicU32::new(0);

    #[cfg(target_arch = "x86_64")]
    extern "C" fn instant(_: libc::c_int) {
        let number = SIGNALED.fetch_add(1, Ordering::Relaxed) + 1;
        let only = ONLY.load(Ordering::Relaxed);
        if only == 0 || only == number {
            atrace_instant(TAG, "in a handler");
        }
    }

    /// Writes events of several kinds, and allocates memory. A handler writes an event after each instruction.
    #[cfg(target_arch = "x86_64")]
    fn write_step_by_step() {
        on_signal(libc::SIGTRAP, instant);
        for _ in 0..4 {
            common::step_by_step(|| {
                atrace_begin_args(TAG, format_args!("begin {}", 7), &[Arg::Uint("number", 7)]);
                atrace_instant(TAG, "instant");
                drop(std::hint::black_box(vec![1_u8; 3000]));
                atrace_int64(TAG, "counter", 7);
                atrace_async_begin(TAG, "async", 7);
                atrace_async_end(TAG, "async", 7);
                drop(begin_scoped_event(TAG, "scoped"));
                atrace_end(TAG);
            });
        }
        let signals = SIGNALED.load(Ordering::Relaxed);
        assert!(signals > 1000, "{signals} signals");
    }

    /// Returns the values of [`ONLY`] that [`write_first_events`] uses, one for each thread.
    #[cfg(target_arch = "x86_64")]
    fn interrupted() -> impl Iterator<Item = u32> {
        (1..4000).step_by(97)
    }

    /// Writes the first events of many threads. In each thread, the signal handler writes an event after one
    /// instruction of the first event, but not after the other instructions (see [`ONLY`]).
    #[cfg(target_arch = "x86_64")]
    fn write_first_events() {
        on_signal(libc::SIGTRAP, instant);
        for only in interrupted() {
            ONLY.store(only, Ordering::Relaxed);
            SIGNALED.store(0, Ordering::Relaxed);
            std::thread::spawn(|| common::step_by_step(|| atrace_instant(TAG, "first"))).join().unwrap();
            let signals = SIGNALED.load(Ordering::Relaxed);
            assert!(signals > 100, "{signals} signals");
        }
    }

    /// Tests a signal handler that writes an event, and that interrupts other events between any two instructions. No
    /// event of the interrupted code may be lost or changed.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_handler_may_run_between_any_two_instructions_of_an_event() {
        let name = case!({ in_child(write_step_by_step) });
        let Some(place) = Place::kernel(&name) else { return };
        place.instance().set_buffer_kb(32 << 10).unwrap();
        let place = place.on();
        place.run(&name);
        let texts = place.messages();
        let (by_handler, own): (Vec<_>, Vec<_>) =
            texts.iter().partition(|text| text.ends_with("|in a handler"));
        let pid = format!("|{}", own[0].split('|').nth(1).unwrap());
        let own: Vec<_> = own.iter().map(|text| text.replace(&pid, "")).collect();
        let of_round = [
            "B|begin 7, number = 7",
            "I|instant",
            "C|counter|7",
            "S|async|7",
            "F|async|7",
            "B|scoped",
            "E",
            "E",
        ];
        assert_eq!(own, of_round.repeat(4));
        assert!(by_handler.len() > 1000, "{}", by_handler.len());
    }

    /// Tests the same as the test above, but with a recording by Perfetto's backend.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_handler_may_run_between_any_two_instructions_of_a_packet() {
        let name = case!({
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("trace");
            let record = |write: fn()| {
                in_child(|| {
                    let recording = perfetto::record_to(&path).unwrap();
                    write();
                    recording.finish().unwrap();
                });
            };
            record(write_first_events);
            let trace = Trace::open(&path);
            let first = trace.events().iter().filter(|event| event.name() == "first").count();
            assert_eq!((first, trace.losses().told), (interrupted().count(), 0));
            record(write_step_by_step);
            let trace = Trace::open(&path);
            let mut events = trace.events();
            events.sort_by_key(|event| event.time);
            let (by_handler, own): (Vec<_>, Vec<_>) =
                events.iter().partition(|event| event.name() == "in a handler");
            let own: Vec<_> = own
                .iter()
                .map(|event| format!("{} {} {:?}", event.kind, event.name(), event.value))
                .collect();
            let of_round = [
                "1 begin 7 None",
                "3 instant None",
                "4 end Some(7)",
                "1 async None",
                "2 end None",
                "1 scoped None",
                "2 end None",
                "2 end None",
            ];
            assert_eq!(own, of_round.repeat(4));
            assert!(by_handler.len() > 1000, "{}", by_handler.len());
            assert_eq!(trace.losses().told, 0);
        });
        Place::file().run(&name);
    }

    /// Runs one round of random events, in the program and in signal handlers. `seed` selects the backend, and whether
    /// some of the signal handlers fork.
    fn storm(seed: u64) {
        static CHANCE: AtomicU32 = AtomicU32::new(1);
        // Whether signal handlers fork (1) or not (0). If they fork, the program allocates no memory, because glibc's
        // fork() takes the locks of the allocator: in a handler that interrupts the allocator, fork() would hang.
        static FORKS: AtomicU32 = AtomicU32::new(0);
        fn chance(of: u32) -> bool {
            // A handler and the code that it interrupts may get the same number, which does no harm.
            let next = CHANCE.load(Ordering::Relaxed).wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            CHANCE.store(next, Ordering::Relaxed);
            (next >> 8).is_multiple_of(of)
        }
        fn write() {
            match CHANCE.load(Ordering::Relaxed) >> 28 {
                0..4 => atrace_instant(TAG, "instant"),
                4..8 => drop(begin_scoped_event(TAG, "scope")),
                8..10 => atrace_int64(TAG, "counter", 7),
                10..12 => atrace_begin_args(TAG, format_args!("slice {}", 7), &[]),
                12..14 => atrace_end(TAG),
                14 => atrace_async_begin(TAG, "task", 7),
                _ => atrace_async_end(TAG, "task", 7),
            }
        }
        extern "C" fn handle(_: libc::c_int) {
            for _ in 0..5 {
                chance(2);
                write();
            }
            // Forks in the handler. The child ends in the handler, or returns from it and continues the interrupted
            // code.
            if FORKS.load(Ordering::Relaxed) != 0 && chance(2000) {
                // SAFETY: if another thread exists, it never holds a lock of the C library for long. Init waits for
                // children that outlive this process.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    end_if_it_hangs();
                    CHILD.store(0, Ordering::Relaxed);
                    write();
                    if chance(2) {
                        // SAFETY: no preconditions; ends the child.
                        unsafe { libc::_exit(0) };
                    }
                } else if child > 0 && ended(child) != 0 {
                    // SAFETY: no preconditions; ends the process with a status that reports the fault.
                    unsafe { libc::_exit(7) };
                }
            }
            SIGNALED.fetch_add(1, Ordering::Relaxed);
            next();
        }
        CHANCE.store(seed as u32 | 1, Ordering::Relaxed);
        FORKS.store(seed as u32 / 3 % 2, Ordering::Relaxed);
        let directory = tempfile::tempdir().unwrap();
        let recording = match seed % 3 {
            0 => Some(perfetto::record_to(directory.path().join("trace")).unwrap()),
            1 => {
                perfetto::connect();
                None
            }
            _ => None,
        };
        on_alarm(handle);
        let mut written = 0_u64;
        let mut kept = Vec::new();
        while SIGNALED.load(Ordering::Relaxed) < 4000 && CHILD.load(Ordering::Relaxed) != 0 {
            chance(2);
            write();
            if FORKS.load(Ordering::Relaxed) == 0 {
                kept.push(std::hint::black_box(vec![1_u8; (written % 700) as usize]));
                kept.truncate(32);
                if chance(3000) {
                    std::thread::spawn(write).join().unwrap();
                }
            }
            written += 1;
        }
        no_alarm();
        if CHILD.load(Ordering::Relaxed) == 0 {
            // SAFETY: no preconditions. Ends the child here, because the child must not wait for its parent's
            // recording.
            unsafe { libc::_exit(0) };
        }
        drop(recording);
    }

    /// Runs random signal handlers and forks, for ten minutes in the long tests. No process may crash or hang.
    #[test]
    fn a_storm_of_handlers_and_forks_ends_nobody() {
        let name = case!({
            let long = std::env::var_os("ATRACE_LONG").is_some();
            let (start, seconds) = (Instant::now(), if long { 600 } else { 2 });
            let mut seed = u64::from(common::pid());
            while start.elapsed().as_secs() < seconds {
                seed += 1;
                in_child(|| storm(seed));
            }
            println!("ROUNDS {seed}");
        });
        let place = Place::file().on();
        let mut command = place.command(&name);
        if std::env::var_os("ATRACE_LONG_TESTS").is_some() {
            command.env("ATRACE_LONG", "yes");
        }
        // Connections to this socket succeed, but no service answers. A child's first event waits a short time for an
        // answer, except in a signal handler.
        let socket = place.path("socket");
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        // If a round hangs, the test case kills the round's process.
        let ran = command.env("PERFETTO_PRODUCER_SOCK_NAME", &socket).output().unwrap();
        drop(listener);
        let said = String::from_utf8_lossy(&ran.stdout);
        assert!(ran.status.success() && said.contains("1 passed"), "{ran:?}");
    }
}
