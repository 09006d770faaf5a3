//! Tests that forked children trace under their own process id, and do not end slices of their parent.

mod common;

#[allow(unsafe_code, reason = "processes are forked")]
mod cases {
    use std::sync::atomic::{AtomicBool, Ordering};

    use atrace::tracer::{GateCheck, PreparedTag};
    use atrace::*;

    use crate::common::{Place, case, control, pid, threads, until};

    const TAG: AtraceTag = AtraceTag::App;

    /// Calls `body` in a forked child, and returns the child's process id. Panics if the child fails.
    ///
    /// In general, a forked child of a program with threads may only call async-signal-safe functions. In these tests
    /// the child also calls other functions.
    fn in_fork(body: impl FnOnce()) -> i32 {
        // SAFETY: the child calls only functions that work in these tests (see the function's comment), and ends
        // without returning from here.
        let child = unsafe { libc::fork() };
        finish(child, body)
    }

    /// Does the same as [`in_fork`], but forks by the bare system call `clone`, so that libc does not run its fork
    /// handlers.
    fn in_clone(body: impl FnOnce()) -> i32 {
        // SAFETY: without flags except the signal at the end, the call is a fork.
        let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
        finish(i32::try_from(child).unwrap(), body)
    }

    fn finish(child: i32, body: impl FnOnce()) -> i32 {
        assert!(child >= 0);
        if child == 0 {
            // SAFETY: no preconditions; the signal ends a child that hangs.
            unsafe { libc::alarm(600) };
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).is_ok();
            // SAFETY: no preconditions; ends the child at once.
            unsafe { libc::_exit(if done { 0 } else { 1 }) };
        }
        let mut status = 0;
        // SAFETY: `status` is writable.
        let ended = unsafe { libc::waitpid(child, &mut status, 0) };
        assert_eq!((ended, status), (child, 0), "the child failed, or hung until its alarm");
        child
    }

    #[test]
    fn a_child_is_itself_at_once() {
        let name = case!({
            atrace_instant(TAG, "parent");
            let forked = in_fork(|| {
                atrace_instant(TAG, "child");
                let grandchild = in_fork(|| atrace_instant(TAG, "grandchild"));
                println!("GRANDCHILD {grandchild}");
                atrace_instant(TAG, "child again");
            });
            atrace_instant(TAG, "parent again");
            let cloned = in_clone(|| atrace_instant(TAG, "clone"));
            println!("FORKED {forked}\nCLONED {cloned}");
            atrace_instant(TAG, "end");
        });
        let place = Place::file().on();
        let ran = place.run(&name);
        let number = |word: &str| ran.said(word)[0].to_owned();
        let (parent, child, grandchild) = (ran.pid.to_string(), number("FORKED"), number("GRANDCHILD"));
        let expected = [
            ("parent", &parent),
            ("child", &child),
            ("grandchild", &grandchild),
            ("child again", &child),
            ("parent again", &parent),
            ("clone", &number("CLONED")),
            ("end", &parent),
        ];
        assert_eq!(place.text(), expected.map(|(name, pid)| format!("I|{pid}|{name}")).concat());
    }

    /// Tests a kernel before Linux 4.14, which can't wipe pages in a child (`MADV_WIPEONFORK`).
    #[test]
    #[cfg(target_os = "linux")]
    #[cfg(not(no_tracing))]
    fn the_child_of_a_bare_clone_is_itself_on_an_old_kernel() {
        let name = case!({
            crate::common::with_an_old_kernel();
            let _outer = begin_scoped_event(TAG, "outer");
            let cloned = in_clone(|| {
                atrace_instant(TAG, "clone");
                let grandchild = in_clone(|| drop(begin_scoped_event(TAG, "own")));
                println!("GRANDCHILD {grandchild}");
                let forked = in_fork(|| atrace_instant(TAG, "forked"));
                println!("FORKED {forked}");
                drop(_outer); // Writes nothing, because the slice belongs to the parent.
                atrace_instant(TAG, "again");
            });
            println!("CLONED {cloned}");
        });
        let place = Place::file().on();
        let ran = place.run(&name);
        let number = |word: &str| ran.said(word)[0].to_owned();
        let (parent, child, grandchild) = (ran.pid, number("CLONED"), number("GRANDCHILD"));
        let expected = [
            format!("B|{parent}|outerI|{child}|cloneB|{grandchild}|ownE|{grandchild}"),
            format!("I|{}|forkedI|{child}|againE|{parent}", number("FORKED")),
        ];
        assert_eq!(place.text(), expected.concat());
    }

    /// Tests a child that writes the first event: the parent has written no event before the fork.
    #[test]
    fn a_child_may_be_the_first() {
        let name = case!({
            let child = in_clone(|| atrace_instant(TAG, "child"));
            println!("CHILD {child}");
            atrace_instant(TAG, "parent");
        });
        let place = Place::file().on();
        let ran = place.run(&name);
        assert_eq!(place.text(), format!("I|{}|childI|{}|parent", ran.said("CHILD")[0], ran.pid));
    }

    #[test]
    fn a_scoped_event_is_ended_by_who_began_it() {
        let name = case!({
            let outer = begin_scoped_event(TAG, "outer");
            let enabled = PreparedTag::new(TAG).check().and_then(GateCheck::enabled).unwrap();
            let slice = enabled.begin("slice").unwrap();
            let child = in_fork(|| {
                slice.end(None); // Writes nothing, because the slice belongs to the parent.
                drop(outer);
                drop(begin_scoped_event(TAG, "own"));
            });
            println!("CHILD {child}");
        });
        let place = Place::file().on();
        let ran = place.run(&name);
        let (pid, child) = (ran.pid, ran.said("CHILD")[0]);
        // Both processes have copies of the guards of the two slices. Only the parent's guard writes an end, when the
        // case returns.
        let text = place.text();
        assert!(text.starts_with(&format!("B|{pid}|outerB|{pid}|sliceB|{child}|ownE|{child}")), "{text}");
        assert!(
            text.ends_with(&format!("E|{pid}")) && text.matches(&format!("E|{child}")).count() == 1,
            "{text}"
        );
        assert_eq!(text.matches("B|").count(), 3);
    }

    #[test]
    fn a_child_inherits_the_state_and_follows_the_properties() {
        let name = case!({
            atrace_set_tracing_enabled(false);
            let parked = in_fork(|| {
                assert_eq!(atrace_get_enabled_tags(), AtraceTag::NotReady);
                atrace_instant(TAG, "parked");
                atrace_set_tracing_enabled(true);
                atrace_instant(TAG, "child");
            });
            assert_eq!(atrace_get_enabled_tags(), AtraceTag::NotReady);
            atrace_set_tracing_enabled(true);
            let switching = in_fork(|| drop(control().disable("*").unwrap()));
            let switched = in_fork(|| {
                let _off = control().disable("*").unwrap();
                atrace_instant(TAG, "off");
                let again = in_fork(|| atrace_instant(TAG, "off, too"));
                assert!(again > 0);
            });
            atrace_instant(TAG, "end");
            println!("PARKED {parked}\nOTHERS {switching} {switched}");
        });
        let place = Place::file().on();
        let ran = place.run(&name);
        assert_eq!(place.text(), format!("I|{}|childI|{}|end", ran.said("PARKED")[0], ran.pid));
    }

    /// Tests forks while other threads are in the middle of events, switches and watches. The child must not wait for
    /// one of these threads, which it does not have.
    #[test]
    fn a_child_of_busy_threads_never_hangs() {
        let name = case!({
            static STOP: AtomicBool = AtomicBool::new(false);
            let threads: Vec<_> = (0..7)
                .map(|number| {
                    std::thread::spawn(move || {
                        while !STOP.load(Ordering::Relaxed) {
                            match number {
                                0 => atrace_set_tracing_enabled(true),
                                1 => atrace_update_tags(),
                                2 => {
                                    drop(watch::watch(|_| atrace_instant(TAG, "watch")).unwrap());
                                }
                                3 => drop(control().enable(AtraceTag::Camera).unwrap()),
                                _ => {
                                    let _event = begin_scoped_event(TAG, "thread");
                                    atrace_int(AtraceTag::Camera, "camera", 1);
                                }
                            }
                        }
                    })
                })
                .collect();
            for _ in 0..200 {
                in_clone_or_fork();
            }
            STOP.store(true, Ordering::Relaxed);
            threads.into_iter().for_each(|thread| thread.join().unwrap());

            /// Writes events in a child. The child's own code allocates nothing and takes no lock.
            fn in_clone_or_fork() {
                in_fork(|| {
                    atrace_set_tracing_enabled(true);
                    {
                        let _event = begin_scoped_event(TAG, "child");
                        atrace_instant_args(TAG, format_args!("{}", 1), &[]);
                    }
                    atrace_update_tags();
                    assert!(atrace_is_tag_enabled(TAG));
                    atrace_set_tracing_enabled(false);
                    assert_eq!(atrace_get_enabled_tags(), AtraceTag::NotReady);
                    atrace_instant(TAG, "parked");
                });
            }
        });
        let place = Place::file().on();
        let ran = place.run(&name);
        let text = place.text();
        let mut children = std::collections::HashMap::<&str, Vec<char>>::new();
        let mut rest = text.as_str();
        // Messages have no separators. Each message begins with B, E, I or C, and no name in this test contains one of
        // these letters.
        while !rest.is_empty() {
            let end = rest[1..].find(|c: char| "BEIC".contains(c)).map_or(rest.len(), |at| at + 1);
            let (message, after) = rest.split_at(end);
            rest = after;
            let by = message.split('|').nth(1).unwrap();
            if by != ran.pid.to_string() {
                children.entry(by).or_default().push(message.chars().next().unwrap());
            }
        }
        assert_eq!(children.len(), 200);
        assert!(children.values().all(|kinds| kinds == &['B', 'I', 'E']), "{children:?}");
    }

    #[test]
    fn a_child_has_no_watch_until_it_asks() {
        let name = case!({
            static SEEN: AtomicBool = AtomicBool::new(false);
            let before = threads();
            let parents = watch::watch(|_| SEEN.store(true, Ordering::SeqCst)).unwrap();
            let detached = watch::watch_without_descriptors(|_| SEEN.store(true, Ordering::SeqCst)).unwrap();
            assert_eq!(threads(), before + 2);
            in_fork(|| {
                assert_eq!(threads(), 1);
                // No way of switching tracing notifies the parent's watches in the child.
                atrace_set_tracing_enabled(false);
                atrace_set_tracing_enabled(true);
                let switched = control().enable(AtraceTag::Camera).unwrap();
                atrace_update_tags();
                drop(switched);
                assert!(!SEEN.load(Ordering::SeqCst));
                static OWN: AtomicBool = AtomicBool::new(false);
                let own = watch::watch(|_| OWN.store(true, Ordering::SeqCst)).unwrap();
                assert_eq!(threads(), 2);
                // The switch stays on, because the parent's watch may notice it late.
                control().enable(AtraceTag::Camera).unwrap().keep();
                until("the child's own watch is told", || OWN.load(Ordering::SeqCst));
                assert!(!SEEN.load(Ordering::SeqCst), "a watch of the parent's was told in the child");
                drop(own);
                // The child does not have the thread of the parent's watch, so this drop has no thread to stop.
                drop(parents);
                until("the child's thread is gone", || threads() == 1);
            });
            // The parent's watch notices the switch that the child has made.
            until("the parent's watch is told", || SEEN.load(Ordering::SeqCst));
            drop(detached);
            assert_ne!(pid(), 0);
        });
        Place::file().on().run(&name);
    }
}
