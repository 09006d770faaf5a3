//! What fails at the first event and may pass: it is asked again later, and what does not pass is not.

mod common;

#[allow(unsafe_code, reason = "limits are set as a C program would")]
mod cases {
    use std::fs::File;
    use std::sync::atomic::{AtomicU32, Ordering};

    use atrace::*;

    use crate::common::{Place, case, control, descriptors, limit, until};

    const TAG: AtraceTag = AtraceTag::App;

    fn limit_to(number: libc::rlim_t) {
        limit(libc::RLIMIT_NOFILE, number, 4096).unwrap();
    }

    fn all_descriptors() -> Vec<File> {
        limit_to(40);
        std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
    }

    #[test]
    fn no_descriptor_at_the_first_event_is_not_for_life() {
        let name = case!({
            let all = all_descriptors();
            for _ in 0..5000 {
                atrace_instant(TAG, "too early");
                assert!(!atrace_is_tag_enabled(TAG) && atrace_get_enabled_tags().is_empty());
            }
            assert_eq!(sink().kind(), SinkKind::None);
            assert!(sink().to_string().contains("Too many open files"), "{}", sink());
            drop(all);
            let before = descriptors().len();
            // Asked again at every so many events at least.
            let waited = (0..2000).take_while(|_| !atrace_is_tag_enabled(TAG)).count();
            assert!(waited < 1100, "{waited}");
            atrace_instant(TAG, "event");
            assert_eq!(sink().kind(), SinkKind::File);
            assert_eq!(descriptors().len(), before + 1);
            drop(control().disable("*").unwrap());
            atrace_instant(TAG, "last");
        });
        let place = Place::file().on();
        let ran = place.run(&name);
        assert_eq!(place.text(), format!("I|{0}|eventI|{0}|last", ran.pid));
        assert_eq!(ran.stderr, "");
    }

    #[test]
    fn who_asks_by_name_is_answered_at_once() {
        let name = case!({
            let asks: [fn(); 4] = [
                || assert_eq!(sink().kind(), SinkKind::File),
                atrace_update_tags,
                || atrace_set_tracing_enabled(true),
                || drop(watch::watch(|_| ()).unwrap()),
            ];
            for ask in asks {
                // SAFETY: the child ends without returning from here.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    let all = all_descriptors();
                    for _ in 0..3000 {
                        atrace_instant(TAG, "too early");
                    }
                    drop(all);
                    ask();
                    atrace_instant(TAG, "event");
                    // SAFETY: ends the child.
                    unsafe { libc::_exit(0) };
                }
                let mut status = 0;
                // SAFETY: `status` is writable.
                assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
                assert_eq!(status, 0);
                println!("CHILD {child}");
            }
        });
        let place = Place::file().on();
        let ran = place.run(&name);
        let expected: String = ran.said("CHILD").iter().map(|child| format!("I|{child}|event")).collect();
        assert_eq!(place.text(), expected);
    }

    /// Nothing else may ask: a subscriber that is told by its watch has no events written while they are off.
    #[test]
    fn a_watch_asks_by_itself() {
        let name = case!({
            static TOLD: AtomicU32 = AtomicU32::new(0);
            let told = |tags: AtraceTag| {
                TOLD.fetch_add(u32::from(tags.contains(TAG)), Ordering::SeqCst);
            };
            let all = all_descriptors();
            let watches = [watch::watch(told).unwrap(), watch::watch_without_descriptors(told).unwrap()];
            assert!(watches.iter().all(|watch| watch.tags().is_empty()));
            drop(all);
            until("both are told", || TOLD.load(Ordering::SeqCst) == 2);
            atrace_instant(TAG, "event");
            drop(watches);
        });
        let place = Place::file().on();
        let ran = place.run(&name);
        assert_eq!(place.text(), format!("I|{}|event", ran.pid));
    }

    #[test]
    fn a_parked_process_stays_parked_and_a_child_goes_on_asking() {
        let name = case!({
            let all = all_descriptors();
            atrace_instant(TAG, "too early");
            atrace_set_tracing_enabled(false);
            assert_eq!(atrace_get_enabled_tags(), AtraceTag::NotReady);
            drop(all);
            for _ in 0..3000 {
                atrace_instant(TAG, "parked");
            }
            assert_eq!(atrace_get_enabled_tags(), AtraceTag::NotReady);
            // SAFETY: the child ends without returning from here.
            let child = unsafe { libc::fork() };
            if child == 0 {
                atrace_set_tracing_enabled(true);
                atrace_instant(TAG, "child");
                // SAFETY: ends the child.
                unsafe { libc::_exit(0) };
            }
            // SAFETY: waits for the child.
            assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
            println!("CHILD {child}");
        });
        let place = Place::file().on();
        let ran = place.run(&name);
        assert_eq!(place.text(), format!("I|{}|child", ran.said("CHILD")[0]));
    }
}
