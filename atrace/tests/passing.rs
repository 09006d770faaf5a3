//! Tests a program in which descriptors become available only after the library was loaded. Functions that write no
//! events try again to open the marker and the properties. Events never try again.

mod common;

#[allow(unsafe_code, reason = "children are forked as a C program would")]
mod cases {
    use std::sync::atomic::{AtomicU32, Ordering};

    use atrace::*;

    use crate::common::{
        self, Place, Ran, case, control, descriptors, free_descriptors, until, without_descriptors,
    };

    const TAG: AtraceTag = AtraceTag::App;

    /// Runs a case in a process that has too few free descriptors at its start: see [`without_descriptors`].
    fn run(place: &Place, name: &str) -> Ran {
        common::run(&mut without_descriptors(&place.command(name)))
    }

    #[test]
    fn no_descriptor_at_first_is_not_for_life() {
        let name = case!({
            for _ in 0..5000 {
                atrace_instant(TAG, "too early");
                assert!(!atrace_is_tag_enabled(TAG));
            }
            assert!(atrace_get_enabled_tags().is_empty());
            assert_eq!(sink().kind(), "None");
            assert!(sink().to_string().contains("Too many open files"), "{}", sink());
            free_descriptors();
            let before = descriptors().len();
            // Events do not open the marker, even if descriptors are free.
            for _ in 0..5000 {
                atrace_instant(TAG, "nobody asked");
            }
            assert_eq!(descriptors().len(), before);
            atrace_init();
            atrace_instant(TAG, "event");
            assert_eq!(sink().kind(), "File");
            assert_eq!(descriptors().len(), before + 1);
            drop(control().disable("*").unwrap());
            atrace_instant(TAG, "last");
        });
        let place = Place::file().on();
        let ran = run(&place, &name);
        assert_eq!(place.text(), format!("I|{0}|eventI|{0}|last", ran.pid));
        assert_eq!(ran.stderr, "");
    }

    #[test]
    fn who_asks_by_name_is_answered_at_once() {
        let name = case!({
            free_descriptors();
            let asks: [fn(); 5] = [
                atrace_init,
                || assert_eq!(sink().kind(), "File"),
                atrace_update_tags,
                || atrace_set_tracing_enabled(true),
                || drop(watch::watch(|_| ()).unwrap()),
            ];
            for ask in asks {
                let child = common::fork();
                if child == 0 {
                    for _ in 0..3000 {
                        atrace_instant(TAG, "too early");
                    }
                    ask();
                    atrace_instant(TAG, "event");
                    // SAFETY: no preconditions; ends the child.
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
        let ran = run(&place, &name);
        let expected: String = ran.said("CHILD").iter().map(|child| format!("I|{child}|event")).collect();
        assert_eq!(place.text(), expected);
    }

    /// Tests that the thread of a watch tries again to open the marker and the properties. This is necessary because a
    /// subscriber with a watch calls no other function of this library while tracing is off.
    #[test]
    fn a_watch_asks_by_itself() {
        let name = case!({
            static TOLD: AtomicU32 = AtomicU32::new(0);
            let told = |tags: AtraceTag| {
                TOLD.fetch_add(u32::from(tags.contains(TAG)), Ordering::SeqCst);
            };
            let watches = [watch::watch(told).unwrap(), watch::watch_without_descriptors(told).unwrap()];
            assert!(watches.iter().all(|watch| watch.backend_tags() == 0));
            free_descriptors();
            until("both are told", || TOLD.load(Ordering::SeqCst) == 2);
            atrace_instant(TAG, "event");
            drop(watches);
        });
        let place = Place::file().on();
        let ran = run(&place, &name);
        assert_eq!(place.text(), format!("I|{}|event", ran.pid));
    }

    #[test]
    fn a_parked_process_stays_parked_and_a_child_goes_on_asking() {
        let name = case!({
            atrace_instant(TAG, "too early");
            atrace_set_tracing_enabled(false);
            assert_eq!(atrace_get_enabled_tags(), AtraceTag::NotReady);
            free_descriptors();
            atrace_init();
            for _ in 0..3000 {
                atrace_instant(TAG, "parked");
            }
            assert_eq!(atrace_get_enabled_tags(), AtraceTag::NotReady);
            let child = common::fork();
            if child == 0 {
                atrace_set_tracing_enabled(true);
                atrace_instant(TAG, "child");
                // SAFETY: no preconditions; ends the child.
                unsafe { libc::_exit(0) };
            }
            let mut status = 0;
            // SAFETY: `status` is writable.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0);
            println!("CHILD {child}");
        });
        let place = Place::file().on();
        let ran = run(&place, &name);
        assert_eq!(place.text(), format!("I|{}|child", ran.said("CHILD")[0]));
    }
}
