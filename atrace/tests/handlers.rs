//! Events in signal handlers that interrupt the allocator or another event, and in children that such handlers fork.
#![cfg(target_os = "linux")]

mod common;

#[allow(unsafe_code, reason = "handlers, timers and children are made as a C program would")]
mod cases {
    use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};
    use std::time::{Duration, Instant};

    use atrace::*;

    use crate::common::{self, Place, case};

    const TAG: AtraceTag = AtraceTag::App;
    /// How many children each case has; a fault in one of two would be missed once in a million times.
    const CHILDREN: u32 = 20;
    /// How many signals a child has.
    const SIGNALS: u32 = 1000;
    /// How long a child may take: it is a hang, or a very busy machine.
    const PATIENCE: Duration = Duration::from_secs(40);

    /// Calls `handler` in 20 µs, as often as that asks for the [next].
    fn on_alarm(handler: extern "C" fn(libc::c_int)) {
        // SAFETY: the handlers below do what a handler may, and write events.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as *const () as libc::sighandler_t;
            // As programs do: nothing tells the library that this is a handler.
            action.sa_flags = libc::SA_NODEFER | libc::SA_RESTART;
            assert_eq!(libc::sigaction(libc::SIGALRM, &action, std::ptr::null_mut()), 0);
            let mut timer: libc::timer_t = std::mem::zeroed();
            assert_eq!(libc::timer_create(libc::CLOCK_MONOTONIC, std::ptr::null_mut(), &mut timer), 0);
            TIMER.store(timer.cast(), Ordering::Relaxed);
        }
        next();
    }

    static TIMER: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());

    /// Has the next signal come in 20 µs: not before the handler has ended, as they would nest without end.
    fn next() {
        let never = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let soon = libc::timespec { tv_sec: 0, tv_nsec: 20_000 };
        let times = libc::itimerspec { it_interval: never, it_value: soon };
        // SAFETY: the timer of this process, or none in a child.
        unsafe { libc::timer_settime(TIMER.load(Ordering::Relaxed).cast(), 0, &times, std::ptr::null_mut()) };
    }

    /// Has no more signals come.
    fn no_alarm() {
        // SAFETY: no preconditions.
        unsafe { libc::signal(libc::SIGALRM, libc::SIG_IGN) };
    }

    /// Ends a process that hangs, by a signal that nobody handles.
    fn end_if_it_hangs() {
        // SAFETY: a limit of this process, which its children have as well: so many seconds of processor time.
        unsafe {
            let limit = libc::rlimit { rlim_cur: 20, rlim_max: 20 };
            libc::setrlimit(libc::RLIMIT_CPU, &limit);
        }
    }

    /// Allocates and frees until there were so many signals.
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

    /// Runs `body` in a child, which must end well within some seconds.
    fn in_child(body: impl FnOnce()) {
        // SAFETY: the child ends without returning from here; a child that hangs is ended by its alarm.
        unsafe {
            let child = libc::fork();
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

    /// The status of a child, which is ended where it sleeps for ever.
    fn ended(child: libc::pid_t) -> i32 {
        let mut status = 0;
        let start = Instant::now();
        // SAFETY: a child of this process, that nobody else waits for.
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

    /// The child's first event starts the thread that connects.
    #[test]
    fn a_child_of_a_connected_process_may_write_its_first_event_in_a_handler() {
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

    /// Nothing could be opened: no event tries, and formats what fails.
    #[test]
    fn events_in_a_handler_without_descriptors_do_no_harm() {
        let name = case!({
            atrace_init();
            assert_eq!(sink().kind(), SinkKind::None);
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

    /// The marker can't be opened again: each event finds that out.
    #[test]
    fn events_in_a_handler_whose_marker_is_gone_do_no_harm() {
        let name = case!({
            atrace_instant(TAG, "before");
            let marker = std::env::var("ATRACE_MARKER").unwrap();
            let (number, _) =
                common::descriptors().into_iter().find(|(_, path)| path.to_str() == Some(&marker)).unwrap();
            // SAFETY: the library's; what it must bear is what is tested.
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

    /// The process that [`fork_here`] forked: 0 in that one, which has no timer.
    static CHILD: AtomicI32 = AtomicI32::new(-1);

    /// Whether the signals have come.
    fn is_over(written: u64) -> bool {
        let child = CHILD.load(Ordering::Relaxed);
        (child == 0 && written > 5000) || (child > 0 && SIGNALED.load(Ordering::Relaxed) > 60)
    }

    /// Forks, once, in the middle of whatever the signal interrupts; the child returns, too.
    extern "C" fn fork_here(_: libc::c_int) {
        // Not before the first events are over.
        if SIGNALED.fetch_add(1, Ordering::Relaxed) == 50 {
            // SAFETY: the only thread but the recording's, which holds no lock of the C library for long.
            CHILD.store(unsafe { libc::fork() }, Ordering::Relaxed);
        }
        next();
    }

    /// The child goes on with the event, in memory that its parent has no part in.
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
                    }
                });
            }
        });
        Place::file().run(&name);
    }

    /// A child may record itself after its parent's recording was interrupted.
    #[test]
    fn a_child_of_a_handler_can_record_itself() {
        let name = case!({
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("child");
            in_child(|| {
                let recording = perfetto::record_to(directory.path().join("parent")).unwrap();
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
            assert_eq!(count, 1);
            assert!(!trace.windows(11).any(|window| window == b"interrupted"));
        });
        Place::file().run(&name);
    }

    /// A heavy fence that the system refuses is made up for.
    #[test]
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    fn a_filter_may_deny_the_barrier_of_a_recording_that_runs() {
        let name = case!({
            let directory = tempfile::tempdir().unwrap();
            let recording = perfetto::record_to(directory.path().join("trace")).unwrap();
            atrace_instant(TAG, "before");
            deny(libc::SYS_membarrier);
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        for _ in 0..20_000 {
                            atrace_instant(TAG, "beside");
                        }
                    });
                }
                std::thread::sleep(Duration::from_millis(3));
                recording.finish().unwrap();
            });
            let again = perfetto::record_to(directory.path().join("again")).unwrap();
            atrace_instant(TAG, "again");
            again.finish().unwrap();
            let trace = std::fs::read(directory.path().join("again")).unwrap();
            assert!(trace.windows(5).any(|window| window == b"again"));
        });
        Place::file().run(&name);
    }

    /// Has the system refuse a call from now on, in all threads.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    fn deny(call: libc::c_long) {
        let op = |code: u32, k: u32, jt: u8| libc::sock_filter { code: code as u16, jt, jf: 0, k };
        let mut filter = [
            op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
            op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, call as u32, 1),
            op(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0),
            op(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, 0),
        ];
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        // SAFETY: a live program of that length.
        unsafe {
            assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
            let flags = libc::SECCOMP_FILTER_FLAG_TSYNC;
            let set =
                libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program);
            assert_eq!(set, 0);
        }
    }

    /// A round of the storm: what its process writes by, and how long it lasts.
    fn storm(seed: u64) {
        static CHANCE: AtomicU32 = AtomicU32::new(1);
        // glibc's fork() takes the locks of its allocator: where that is what the signal interrupted, it hangs by itself.
        static FORKS: AtomicU32 = AtomicU32::new(0);
        fn chance(of: u32) -> bool {
            // Of a handler and what it interrupts both may have the same number.
            let next = CHANCE.load(Ordering::Relaxed).wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            CHANCE.store(next, Ordering::Relaxed);
            (next >> 8).is_multiple_of(of)
        }
        fn write() {
            match CHANCE.load(Ordering::Relaxed) >> 28 {
                0..4 => atrace_instant(TAG, "instant"),
                4..8 => drop(begin_scoped_event(TAG, "scope")),
                8..10 => atrace_int64(TAG, "counter", 7),
                10..12 => atrace_begin_fmt(TAG, format_args!("slice {}", 7)),
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
            // A child in a handler, that ends there or goes on with what the signal interrupted.
            if FORKS.load(Ordering::Relaxed) != 0 && chance(2000) {
                // SAFETY: as in `fork_here`. What is not waited for, init takes.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    end_if_it_hangs();
                    CHILD.store(0, Ordering::Relaxed);
                    write();
                    if chance(2) {
                        // SAFETY: ends the child.
                        unsafe { libc::_exit(0) };
                    }
                } else if child > 0 && ended(child) != 0 {
                    // SAFETY: ends the process, by what is found out.
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
            // SAFETY: ends the child, whose parent's recording it is not to wait for.
            unsafe { libc::_exit(0) };
        }
        drop(recording);
    }

    /// Handlers and forks at random, for ten minutes where there is time for that: nobody dies, nobody hangs.
    #[test]
    fn a_storm_of_handlers_and_forks_ends_nobody() {
        let name = case!({
            let long = std::env::var_os("ATRACE_LONG").is_some();
            let (start, seconds) = (Instant::now(), if long { 600 } else { 5 });
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
        // Somebody listens and says nothing; a child's first event waits for it a little, but in a handler.
        let socket = place.path("socket");
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        // A round that hangs is ended by its parent.
        let ran = command.env("PERFETTO_PRODUCER_SOCK_NAME", &socket).output().unwrap();
        drop(listener);
        assert!(ran.status.success(), "{ran:?}");
    }
}
