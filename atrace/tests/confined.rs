//! Tests a process that calls `atrace_init` and then gives up the right to make most system calls, by a seccomp filter.
#![cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]

mod common;

#[allow(unsafe_code, reason = "filters of system calls are set as a C program would")]
mod cases {
    use std::sync::atomic::{AtomicU32, Ordering};

    use atrace::*;

    use crate::common::{self, Place, case, control, fork, until};

    const TAG: AtraceTag = AtraceTag::App;

    /// The system calls that events and switches of tracing need, and the system calls that this test itself needs.
    const ALLOWED: [libc::c_long; 4] =
        [libc::SYS_write, libc::SYS_fstat, libc::SYS_newfstatat, libc::SYS_exit_group];

    /// Confines the process: from now on, any system call except those in [`ALLOWED`] and `also` ends the process.
    fn confine(also: &[libc::c_long]) {
        let op = |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter { code: code as u16, jt, jf, k };
        let mut filter = vec![op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0)];
        for call in ALLOWED.iter().chain(also) {
            filter.push(op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, *call as u32, 0, 1));
            filter.push(op(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0));
        }
        filter.push(op(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_KILL_PROCESS, 0, 0));
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        // SAFETY: `program` points to the live filter and has its length.
        unsafe {
            assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
            assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
        }
    }

    /// Returns a word in memory that a process shares with the children that it forks later.
    fn shared() -> &'static AtomicU32 {
        let anonymous = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        // SAFETY: the mapping is new and is never unmapped. Zeros are a valid word.
        unsafe {
            let page =
                libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ | libc::PROT_WRITE, anonymous, -1, 0);
            assert_ne!(page, libc::MAP_FAILED);
            &*page.cast()
        }
    }

    /// Does the work of the child. The child reports its progress in the word `step`, and waits at each step until the
    /// parent lets it continue.
    fn confined(step: &AtomicU32, also: &[libc::c_long]) -> ! {
        let reach = |number| {
            step.store(number, Ordering::SeqCst);
            while step.load(Ordering::SeqCst) != number + 1 {
                std::hint::spin_loop();
            }
        };
        atrace_init();
        confine(also);
        let many = |name| (0..600).for_each(|_| atrace_instant(TAG, name));
        many("off");
        reach(1);
        many("on");
        reach(3);
        many("off");
        reach(5);
        drop(begin_scoped_event(TAG, "on"));
        // SAFETY: no preconditions; ends the child.
        unsafe { libc::_exit(0) }
    }

    fn is_followed(also: &[libc::c_long]) {
        let step = shared();
        let child = fork();
        if child == 0 {
            confined(step, also);
        }
        let mut ended = None;
        let mut has_ended = || {
            let mut status = 0;
            // SAFETY: `status` is writable.
            if ended.is_none() && unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == child {
                ended = Some(status);
            }
            ended
        };
        let mut switched = None;
        for number in [1, 3, 5] {
            until("the child is there, or dead", || {
                step.load(Ordering::SeqCst) == number || has_ended().is_some()
            });
            if has_ended().is_some() {
                break;
            }
            switched = (number != 3).then(|| control().enable("*").unwrap());
            step.store(number + 1, Ordering::SeqCst);
        }
        until("the child has ended", || has_ended().is_some());
        drop(switched);
        assert_eq!(has_ended(), Some(0), "the child was ended at step {}", step.load(Ordering::SeqCst));
        println!("CHILD {child}");
    }

    fn expected(child: &str) -> Vec<String> {
        let mut all = vec![format!("I|{child}|on"); 600];
        all.extend([format!("B|{child}|on"), format!("E|{child}")]);
        all
    }

    #[test]
    fn a_switch_makes_no_system_call_but_fstat() {
        let name = case!({ is_followed(&[]) });
        let Some(place) = Place::kernel(&name) else { return };
        let ran = place.run(&name);
        assert_eq!(place.messages(), expected(ran.said("CHILD")[0]));
    }

    /// Tests an exit of a process that the service has not answered. The process's only event does not wait for the
    /// answer, because it is in a signal handler.
    #[test]
    fn an_exit_without_an_answer_does_not_sleep() {
        extern "C" fn write(_: libc::c_int) {
            atrace_instant(TAG, "early");
        }
        let name = case!({
            // SAFETY: the handler may be called at any time. `exit` runs the exit handlers, which this test is about.
            unsafe {
                libc::signal(libc::SIGUSR1, write as *const () as libc::sighandler_t);
                libc::raise(libc::SIGUSR1);
                assert_eq!(perfetto::status().lost(), 1, "the event that the service is told of");
                println!("RAN");
                confine(&[libc::SYS_prctl, libc::SYS_munmap]);
                libc::exit(0);
            }
        });
        let place = Place::file();
        let socket = place.path("socket");
        let _never_answers = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let mut command = place.command(&name);
        command.env("ATRACE_BACKEND", "perfetto").env("PERFETTO_PRODUCER_SOCK_NAME", socket);
        let ran = common::end_of(command.spawn().unwrap());
        assert!(ran.status.success() && ran.said("RAN").len() == 1, "{ran:?}");
    }

    /// Tests that Perfetto's thread has made its first attempt to connect when `atrace_init` or `atrace_update_tags`
    /// returns. A program calls these functions before it confines itself. The status is "connecting" until the first
    /// attempt is over.
    #[test]
    fn the_first_attempt_is_over_before_a_program_confines_itself() {
        let name = case!({
            let has_tried = || perfetto::status().to_string().contains("can't connect");
            atrace_init();
            assert!(has_tried(), "{}", perfetto::status());
            let child = fork();
            if child == 0 {
                atrace_update_tags();
                assert!(has_tried(), "{}", perfetto::status());
                // SAFETY: no preconditions; ends the child.
                unsafe { libc::_exit(0) }
            }
            let mut status = 0;
            // SAFETY: `status` is writable.
            assert_eq!((unsafe { libc::waitpid(child, &mut status, 0) }, status), (child, 0));
        });
        let place = Place::file();
        for _ in 0..10 {
            let mut command = place.command(&name);
            command.env("ATRACE_BACKEND", "perfetto").env("PERFETTO_PRODUCER_SOCK_NAME", place.path("none"));
            common::run(&mut command);
        }
    }

    /// Tests a marker that is a regular file. With such a marker, an event after a switch of tracing must also read the
    /// limit of the size of files (`prlimit64`).
    #[test]
    fn a_switch_looks_at_the_limit_of_a_file() {
        let name = case!({ is_followed(&[libc::SYS_prlimit64]) });
        let place = Place::file();
        let ran = place.run(&name);
        assert_eq!(place.text(), expected(ran.said("CHILD")[0]).concat());
    }
}
