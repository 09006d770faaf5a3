//! Tests watches, which call functions when the enabled tags change.

mod common;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use atrace::watch::{Watch, watch, watch_without_descriptors};
use atrace::*;
use common::{Place, case, control, threads, until};

const ALWAYS: AtraceTag = AtraceTag::Always;
const CAMERA: AtraceTag = AtraceTag::Camera;

type Start = fn(Box<dyn Fn(AtraceTag) + Send + Sync>) -> std::io::Result<Watch>;

const KINDS: [Start; 2] = [|callback| watch(callback), |callback| watch_without_descriptors(callback)];

/// Returns a watch whose callback stores the tags of each call, and the list in which the callback stores them.
fn telling(start: Start) -> (Watch, Arc<Mutex<Vec<AtraceTag>>>) {
    let told = Arc::new(Mutex::new(Vec::new()));
    let telling = Arc::clone(&told);
    (start(Box::new(move |tags| telling.lock().unwrap().push(tags))).unwrap(), told)
}

fn last(told: &Mutex<Vec<AtraceTag>>) -> Option<AtraceTag> {
    told.lock().unwrap().last().copied()
}

#[test]
fn a_change_is_told_and_nothing_else() {
    let name = case!({
        for start in KINDS {
            let alone = threads();
            let (watch, told) = telling(start);
            assert_eq!(threads(), alone + 1);
            assert_eq!(last(&told), None, "what is so already is no change");
            let switched = control().enable(CAMERA).unwrap();
            until("the change is told", || last(&told) == Some(ALWAYS | CAMERA));
            // These switches enable no tag of this process, so they cause no call of the callback.
            control().enable("nobody").unwrap().keep();
            control().disable("nobody").unwrap().keep();
            drop(switched);
            until("the change is told", || last(&told) == Some(ALWAYS));
            let app = control().enable("*").unwrap();
            until("the change is told", || last(&told) == Some(ALWAYS | AtraceTag::App));
            drop(app);
            until("the change is told", || last(&told) == Some(ALWAYS));
            assert_eq!(*told.lock().unwrap(), [ALWAYS | CAMERA, ALWAYS, ALWAYS | AtraceTag::App, ALWAYS]);
            drop(watch);
            until("the thread is gone", || threads() == alone);
            let switched = control().enable(CAMERA).unwrap();
            atrace_set_tracing_enabled(false);
            atrace_set_tracing_enabled(true);
            assert_eq!(told.lock().unwrap().len(), 4, "told after its end");
            drop(switched);
        }
    });
    Place::file().run(&name);
}

#[test]
fn calls_of_this_process_are_told_at_once() {
    let name = case!({
        for start in KINDS {
            let (_watch, told) = telling(start);
            // The callback runs on this thread, or on the watching thread if that thread is reading the tags at this
            // moment.
            atrace_set_tracing_enabled(false);
            until("it is told", || last(&told) == Some(AtraceTag::NotReady));
            atrace_set_tracing_enabled(true);
            until("it is told", || last(&told) == Some(ALWAYS));
            let store = atrace_sys::properties::Properties::open().unwrap();
            store.set("debug.atrace.tags.enableflags", "0").unwrap();
            store.set("debug.atrace.app_0", "*").unwrap();
            store.set("debug.atrace.app_number", "1").unwrap();
            atrace_update_tags();
            until("it is told", || last(&told) == Some(ALWAYS | AtraceTag::App));
            store.set("debug.atrace.app_number", "0").unwrap();
            atrace_update_tags();
            until("it is told", || last(&told) == Some(ALWAYS));
            assert_eq!(told.lock().unwrap().len(), 4);
        }
    });
    Place::file().run(&name);
}

/// Tests watches that begin when the process has no sink and no recording, so that nothing can be traced yet.
#[test]
fn the_end_of_a_later_recording_is_told() {
    let name = case!({
        let place = tempfile::tempdir().unwrap();
        let alone = threads();
        let start = KINDS[usize::from(std::env::var_os("DETACHED").is_some())];
        // In the second round there is a second watch, with a new thread.
        for round in 0..2 {
            let (watch, told) = telling(start);
            assert!(round > 0 || threads() == alone, "a thread that waits for nothing");
            let before = atrace_get_enabled_tags();
            for _ in 0..2 {
                let recording = perfetto::record_to(place.path().join("trace")).unwrap();
                assert!(last(&told).unwrap().contains(AtraceTag::App), "the start is told at once");
                drop(recording);
                until("the end is told", || last(&told) == Some(before));
            }
            drop(watch);
            until("the thread is gone", || threads() == alone);
        }
    });
    for variables in [&[][..], &[("DETACHED", "1")]] {
        common::run(
            Place::file().command(&name).env("ATRACE_BACKEND", "none").envs(variables.iter().copied()),
        );
    }
}

/// Tests a watch that ends before its thread has run, and a second watch that begins afterwards. The threads of both
/// watches run on the same processor. The first thread has a lower real-time priority, so it runs only when the second
/// thread sleeps.
#[test]
#[allow(unsafe_code, reason = "std has no priorities")]
fn a_thread_that_starts_late_takes_no_wake_up() {
    let name = case!({
        // SAFETY: no preconditions. Zero is a valid value of all fields that are not set.
        let set = |priority| unsafe {
            let mut processors: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(libc::sched_getcpu() as usize, &mut processors);
            assert_eq!(libc::sched_setaffinity(0, size_of_val(&processors), &processors), 0);
            let mut parameters: libc::sched_param = std::mem::zeroed();
            parameters.sched_priority = priority;
            libc::sched_setscheduler(0, libc::SCHED_FIFO, &parameters)
        };
        let place = tempfile::tempdir().unwrap();
        for start in KINDS {
            let alone = threads();
            // Once the process has recorded itself, sessions are possible, so watches start threads.
            drop(perfetto::record_to(place.path().join("trace")).unwrap());
            until("the recording's thread is gone", || threads() == alone);
            if set(10) != 0 {
                return common::skipped("a_thread_that_starts_late", "only root may have such priorities");
            }
            drop(telling(start).0);
            assert_eq!(set(20), 0);
            let (watch, told) = telling(start);
            until("the first thread is gone", || threads() == alone + 1);
            let before = atrace_get_enabled_tags();
            let recording = perfetto::record_to(place.path().join("trace")).unwrap();
            drop(recording);
            until("the end is told", || last(&told) == Some(before));
            drop(watch);
            until("the thread is gone", || threads() == alone);
        }
    });
    common::run(Place::file().command(&name).env("ATRACE_BACKEND", "none"));
}

/// Tests that the last of many changes is reported, that reports are in order, and that callbacks never overlap.
#[test]
fn of_many_changes_the_last_is_told() {
    let name = case!({
        static WITHIN: AtomicUsize = AtomicUsize::new(0);
        let told = Arc::new(Mutex::new(Vec::new()));
        let telling = Arc::clone(&told);
        let _watch = watch(move |tags| {
            assert_eq!(WITHIN.fetch_add(1, Ordering::SeqCst), 0, "two calls at once");
            telling.lock().unwrap().push(tags);
            std::thread::yield_now();
            WITHIN.fetch_sub(1, Ordering::SeqCst);
        })
        .unwrap();
        let store = atrace_sys::properties::Properties::open().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| (0..500).for_each(|_| atrace_update_tags()));
            for round in 0..500_u64 {
                store.set("debug.atrace.tags.enableflags", (round << 1).to_string()).unwrap();
            }
        });
        store.set("debug.atrace.tags.enableflags", "0x400").unwrap();
        until("the last is told", || last(&told) == Some(ALWAYS | CAMERA));
        let told = told.lock().unwrap();
        // The flags only grew until the last change, so the reported tags must grow, too.
        let (end, grown) = told.split_last().unwrap();
        let bits: Vec<u64> =
            grown.iter().map(|tags| tags.bits()).filter(|bits| *bits != end.bits()).collect();
        assert!(bits.is_sorted(), "{bits:?}");
        assert!(told.windows(2).all(|two| two[0] != two[1]), "told twice");
    });
    Place::file().run(&name);
}

#[test]
fn one_thread_serves_all_watches_of_a_kind() {
    let name = case!({
        let alone = threads();
        for start in KINDS {
            let (first, told_first) = telling(start);
            let (second, told_second) = telling(start);
            assert_eq!(threads(), alone + 1);
            let switched = control().enable(CAMERA).unwrap();
            for told in [&told_first, &told_second] {
                until("both are told", || last(told) == Some(ALWAYS | CAMERA));
            }
            drop(first);
            drop(switched);
            until("who is left is told", || last(&told_second) == Some(ALWAYS));
            assert_eq!(told_first.lock().unwrap().len(), 1);
            assert_eq!(threads(), alone + 1);
            drop(second);
            until("the thread is gone", || threads() == alone);
        }
        // Watches are started and stopped repeatedly: no thread is left, and a new watch works.
        for round in 0..200 {
            let (watch, told) = telling(KINDS[round % 2]);
            let switched = control().enable(CAMERA).unwrap();
            until("it is told", || last(&told) == Some(ALWAYS | CAMERA));
            drop(switched);
            drop(watch);
        }
        until("the threads are gone", || threads() == alone);
    });
    Place::file().run(&name);
}

#[test]
fn a_callback_may_do_what_it_likes() {
    let name = case!({
        std::panic::set_hook(Box::new(|_| {}));
        let alone = threads();
        for start in KINDS {
            // A callback panics, with a value that panics when it is dropped.
            struct Bomb;
            impl Drop for Bomb {
                fn drop(&mut self) {
                    if !std::thread::panicking() {
                        panic!("again");
                    }
                }
            }
            let panicking = start(Box::new(|_| std::panic::resume_unwind(Box::new(Bomb)))).unwrap();
            let (others, told) = telling(start);
            for tags in [ALWAYS | CAMERA, ALWAYS] {
                let _switched = (tags != ALWAYS).then(|| control().enable(CAMERA).unwrap());
                until("the others are told", || last(&told) == Some(tags));
                // The panic must also do no harm if a thread of the program runs the callback.
                atrace_set_tracing_enabled(false);
                until("the others are told", || last(&told) == Some(AtraceTag::NotReady));
                atrace_set_tracing_enabled(true);
                until("the others are told", || last(&told) == Some(tags));
                if tags == ALWAYS {
                    break;
                }
            }
            drop((panicking, others));

            // A callback drops its own watch, which is the last watch of the process. A value in that callback panics
            // when it is freed.
            let own = Arc::new(Mutex::new(None::<Watch>));
            let called = Arc::new(AtomicUsize::new(0));
            let (in_callback, counted, bomb) = (Arc::clone(&own), Arc::clone(&called), Bomb);
            *own.lock().unwrap() = Some(
                start(Box::new(move |_| {
                    let _ = &bomb;
                    counted.fetch_add(1, Ordering::SeqCst);
                    let watch = in_callback.lock().unwrap().take();
                    drop(watch);
                }))
                .unwrap(),
            );
            let switched = control().enable(CAMERA).unwrap();
            until("it is called", || called.load(Ordering::SeqCst) == 1);
            until("the thread is gone", || threads() == alone);
            drop(switched);
            assert_eq!(called.load(Ordering::SeqCst), 1);

            // A callback calls all functions that run callbacks, and starts another watch.
            let more = Arc::new(Mutex::new(Vec::new()));
            let rounds = Arc::new(AtomicUsize::new(0));
            let (inner, counted) = (Arc::clone(&more), Arc::clone(&rounds));
            let watch = start(Box::new(move |_| {
                if counted.fetch_add(1, Ordering::SeqCst) < 4 {
                    atrace_update_tags();
                    atrace_set_tracing_enabled(counted.load(Ordering::SeqCst) % 2 == 0);
                    inner.lock().unwrap().push(watch(|_| ()).unwrap());
                }
            }))
            .unwrap();
            let switched = control().enable(CAMERA).unwrap();
            // Waits until the last callback has also stored its watch in `more`.
            until("it calls itself", || more.lock().unwrap().len() == 4);
            drop(switched);
            drop(watch);
            // Drops the watches after the lock was released, because the end of a watch may run callbacks, which take
            // the lock.
            let watches = std::mem::take(&mut *more.lock().unwrap());
            drop(watches);
            until("the threads are gone", || threads() == alone);
            atrace_set_tracing_enabled(true);
        }
    });
    Place::file().run(&name);
}

/// Tests a watch whose thread has no descriptors. This thread can't write events, and must not make other threads use a
/// descriptor number that is not open in them.
#[test]
fn a_thread_without_descriptors_disturbs_no_other() {
    let name = case!({
        let marker = std::path::PathBuf::from(std::env::var_os("ATRACE_MARKER").unwrap());
        atrace_instant(ALWAYS, "before");
        let before = common::descriptors();
        let called = Arc::new(AtomicBool::new(false));
        let calling = Arc::clone(&called);
        let _watch = watch_without_descriptors(move |_| {
            // The documentation of `watch_without_descriptors` forbids events in the callback.
            atrace_instant(ALWAYS, "lost");
            calling.store(true, Ordering::SeqCst);
        })
        .unwrap();
        let _switched = control().enable(CAMERA).unwrap();
        until("it is called", || called.load(Ordering::SeqCst));
        assert_eq!(common::descriptors(), before);
        let dropped = sink().dropped();
        atrace_instant(ALWAYS, "after");
        assert_eq!(sink().dropped(), dropped);
        assert_eq!((dropped, marker.exists()), (1, true));
    });
    let level = atrace_sys::properties::Properties::open().ok().and_then(|properties| properties.api_level());
    if cfg!(target_os = "android") && level < Some(33) {
        return common::skipped(&name, "a thread parts with its descriptors since Android 13");
    }
    let place = Place::file();
    let pid = place.run(&name).pid;
    assert_eq!(place.text(), format!("I|{pid}|beforeI|{pid}|after"));
}

/// Tests that signals to the process are delivered to the program's threads, not to the watching thread.
#[test]
fn no_signal_lands_on_the_watching_thread() {
    let name = case!({
        let watching = || {
            // If a thread has ended in the meantime, its file `comm` does not exist any more.
            let is_it = |path: &std::path::PathBuf| {
                std::fs::read_to_string(path.join("comm")).is_ok_and(|name| name.trim() == "atrace-watch")
            };
            std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path()).find(is_it)
        };
        for start in KINDS {
            let watch = start(Box::new(|_| ())).unwrap();
            until("the thread has its name", || watching().is_some());
            let status = std::fs::read_to_string(watching().unwrap().join("status")).unwrap();
            let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap().trim();
            // The thread must block all signals except KILL, STOP and the signals that the C library reserves: two in
            // glibc, nine in bionic.
            let kept = if cfg!(target_os = "android") { 0xff_8004_0100 } else { 0x1_8004_0100 };
            assert_eq!(u64::from_str_radix(blocked, 16).unwrap() | kept, u64::MAX);
            drop(watch);
            until("the thread is gone", || watching().is_none());
        }
    });
    Place::file().run(&name);
}

/// Tests that a callback gets the same tags from its watch (`backend_tags`) as in its argument. No session is open, so
/// both contain only the tags that ATrace has enabled.
#[test]
fn a_callback_finds_in_the_watch_what_it_is_told() {
    let name = case!({
        for start in KINDS {
            let own = Arc::new(Mutex::new(None::<Watch>));
            let (asked, found) = (Arc::clone(&own), Arc::new(Mutex::new(Vec::new())));
            let finding = Arc::clone(&found);
            let watch = start(Box::new(move |tags| {
                let known = asked.lock().unwrap().as_ref().unwrap().backend_tags();
                finding.lock().unwrap().push((tags, known));
            }))
            .unwrap();
            *own.lock().unwrap() = Some(watch);
            let switched = control().enable(CAMERA).unwrap();
            until("it is told", || found.lock().unwrap().len() == 1);
            drop(switched);
            until("it is told", || found.lock().unwrap().len() == 2);
            assert_eq!(*found.lock().unwrap(), [ALWAYS | CAMERA, ALWAYS].map(|tags| (tags, tags.bits())));
            let watch = own.lock().unwrap().take();
            drop(watch);
        }
    });
    Place::file().run(&name);
}

/// Tests that a watching thread which must stop is woken. A thread that is not woken sleeps for ten seconds, and all
/// rounds together would then take longer than a case may.
#[test]
fn a_thread_that_is_to_stop_is_woken() {
    let name = case!({
        let alone = threads();
        for round in 0..120 {
            let watch = KINDS[round % 2](Box::new(|_| ())).unwrap();
            // By now, the watching thread sleeps, or will sleep soon.
            std::thread::sleep(std::time::Duration::from_millis(5));
            drop(watch);
            until("the thread is gone", || threads() == alone);
        }
    });
    Place::file().run(&name);
}

#[test]
fn a_callback_may_own_a_watch_and_change_errno_at_its_end() {
    let name = case!({
        struct Owned(#[expect(dead_code, reason = "is dropped")] Watch);
        impl Drop for Owned {
            fn drop(&mut self) {
                common::set_errno(libc::EIO);
            }
        }
        let alone = threads();
        for start in KINDS {
            let owned = Owned(start(Box::new(|_| ())).unwrap());
            let watch = start(Box::new(move |_| {
                let _ = &owned;
            }))
            .unwrap();
            common::set_errno(libc::EPROTO);
            drop(watch);
            assert_eq!(common::errno(), libc::EPROTO);
            until("the thread is gone", || threads() == alone);
        }
    });
    Place::file().run(&name);
}

/// Tests that a forked child does not have the watches of its parent, and can start watches of its own.
#[test]
#[allow(unsafe_code, reason = "fork has no safe form")]
fn a_child_has_watches_of_its_own() {
    let name = case!({
        for start in KINDS {
            let (watch, told) = telling(start);
            // SAFETY: the child ends within this block. No other thread holds a lock that the child needs.
            let child = unsafe { libc::fork() };
            assert!(child >= 0);
            if child == 0 {
                let went_well = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    drop(watch);
                    assert_eq!(threads(), 1);
                    let (_watch, told) = telling(start);
                    let _switched = control().enable(AtraceTag::Video).unwrap();
                    until("the child is told", || {
                        last(&told).is_some_and(|it| it.contains(AtraceTag::Video))
                    });
                }));
                // SAFETY: no preconditions; ends the child at once.
                unsafe { libc::_exit(i32::from(went_well.is_err())) };
            }
            let mut status = 0;
            // SAFETY: a child of this process, and a writable status.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0, "the child failed");
            let switched = control().enable(CAMERA).unwrap();
            until("the parent is told", || last(&told).is_some_and(|it| it.contains(CAMERA)));
            drop(switched);
            let store = atrace_sys::properties::Properties::open().unwrap();
            store.set("debug.atrace.tags.enableflags", "0").unwrap();
            drop(watch);
        }
    });
    Place::file().run(&name);
}

/// Tests that the tick function (see `on_tick`) is not called more than once in each interval of 50 ms, even if there
/// are two watching threads that also wake for other reasons.
#[test]
fn ticks_have_their_time_between_them() {
    let name = case!({
        static TICKS: AtomicUsize = AtomicUsize::new(0);
        static TICK: fn() = || _ = TICKS.fetch_add(1, Ordering::SeqCst);
        let directory = tempfile::tempdir().unwrap();
        atrace::watch::on_tick(&TICK);
        let begin = std::time::Instant::now();
        let recording = perfetto::record_to(directory.path().join("trace")).unwrap();
        let _watches = KINDS.map(|start| telling(start).0);
        for _ in 0..100 {
            drop(control().enable(CAMERA).unwrap());
        }
        until("there are ticks", || TICKS.load(Ordering::SeqCst) > 1);
        let (ticks, most) = (TICKS.load(Ordering::SeqCst), begin.elapsed().as_millis() as usize / 50 + 1);
        assert!(ticks <= most, "{ticks} ticks, at most {most} expected");
        recording.finish().unwrap();
    });
    Place::file().run(&name);
}
