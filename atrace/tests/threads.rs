//! Tests many threads that write events while tracing is switched on and off. No event is lost, each slice that begins
//! also ends, and each switch applies to the next event.

mod common;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;

use atrace::control::{Properties, ThisProcess};
use atrace::tracer::{GateCheck, PreparedTag};
use atrace::*;
use common::{Place, case, control};

const TAG: AtraceTag = AtraceTag::App;
const FLAGS: &str = "debug.atrace.tags.enableflags";

#[test]
fn scoped_events_stay_balanced_however_fast_it_is_switched() {
    let name = case!({
        static STOP: AtomicBool = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let tracing: Vec<_> = (0..8)
                .map(|number| {
                    scope.spawn(move || {
                        // Limits the number of events, so that the ring buffer can hold all of them, even on a slow
                        // machine.
                        let mut budget = 2000;
                        for round in 0.. {
                            if STOP.load(Ordering::Relaxed) {
                                break;
                            }
                            if budget == 0 {
                                std::thread::yield_now();
                                continue;
                            }
                            budget -= i32::from(atrace_is_tag_enabled(AtraceTag::Camera));
                            let _outer = begin_scoped_event(AtraceTag::Camera, "outer");
                            for _ in 0..round % 3 {
                                let _inner = begin_scoped_event_args(
                                    AtraceTag::Camera,
                                    format_args!("inner {number}"),
                                    &[],
                                );
                            }
                            trace_method!(AtraceTag::Camera);
                            drop(begin_scoped_event_args(AtraceTag::Camera, "slice", &[]));
                        }
                    })
                })
                .collect();
            // Switches tracing without a pause, in two ways in turn: by the flags, and by `atrace_set_tracing_enabled`.
            let properties = Properties::open().unwrap();
            for round in 0..2000 {
                match round % 4 {
                    0 => properties.set(FLAGS, "0x400").unwrap(),
                    1 => properties.set(FLAGS, "0").unwrap(),
                    2 => {
                        atrace_set_tracing_enabled(false);
                        properties.set(FLAGS, "0x402").unwrap();
                    }
                    _ => atrace_set_tracing_enabled(true),
                }
            }
            STOP.store(true, Ordering::Relaxed);
            tracing.into_iter().for_each(|thread| thread.join().unwrap());
        });
        assert_eq!(sink().dropped(), 0);
    });
    let Some(place) = Place::kernel(&name) else { return };
    place.instance().set_buffer_kb(16384).unwrap();
    let ran = place.run(&name);
    assert_eq!(place.instance().stats().unwrap().lost(), 0);
    let mut open = HashMap::<u32, Vec<Vec<u8>>>::new();
    let mut begins = 0;
    for marker in place.instance().markers().unwrap() {
        let text = marker.text().into_owned();
        let slices = open.entry(marker.tid).or_default();
        if let Some(name) = text.strip_prefix(&format!("B|{}|", ran.pid)) {
            slices.push(name.as_bytes().to_vec());
            begins += 1;
        } else {
            assert_eq!(text, format!("E|{}", ran.pid));
            assert!(slices.pop().is_some(), "an end without a begin in thread {}", marker.tid);
        }
    }
    assert!(open.values().all(Vec::is_empty), "begins without ends: {open:?}");
    assert!(begins > 100, "hardly anything was traced: {begins}");
}

/// Tests `note_thread_name`, which makes the full name of a thread known to the library. The kernel stores only the
/// first 15 bytes of a name.
#[test]
fn a_thread_that_notes_its_name_has_its_whole_name() {
    let name = case!({
        let in_thread = |name: &str, body: &(dyn Fn() + Sync)| {
            std::thread::scope(|scope| {
                let thread = std::thread::Builder::new().name(name.to_owned());
                thread.spawn_scoped(scope, body).unwrap().join().unwrap();
            });
        };
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("trace");
        in_thread("a thread that records the process", &|| {
            let recording = perfetto::record_to(&path).unwrap();
            in_thread("the name of a thread that notes it", &|| {
                perfetto::note_thread_name();
                atrace_instant(TAG, "noted");
            });
            in_thread("another name, which is not noted", &|| atrace_instant(TAG, "not noted"));
            recording.finish().unwrap();
        });
        let trace = std::fs::read(&path).unwrap();
        let has = |text: &str| trace.windows(text.len()).any(|part| part == text.as_bytes());
        assert!(has("the name of a thread that notes it"));
        assert!(has("another name, w") && !has("another name, wh"));
    });
    Place::file().run(&name);
}

/// Tests events and recordings in the destructor of a thread key. The destructor runs after std has destroyed its data
/// of the thread, so std panics if it is asked for the current thread. A panic runs the program's panic hook, and
/// aborts a program that is built with `panic = "abort"`.
#[test]
#[cfg(target_os = "linux")]
#[allow(unsafe_code, reason = "a destructor as a C library registers it")]
fn an_ending_thread_may_record_and_connect_without_a_panic() {
    use std::path::PathBuf;
    use std::sync::OnceLock;
    use std::sync::atomic::AtomicU32;

    static ENDED: AtomicU64 = AtomicU64::new(0);
    static KEY: AtomicU32 = AtomicU32::new(0);
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    extern "C" fn at_end(round: *mut libc::c_void) {
        // If a destructor sets its key's value again, the C library calls the destructor in a second round. By then,
        // std's own key was destroyed.
        if round.addr() == 1 {
            set(2);
            return;
        }
        let path = PATH.get().unwrap();
        let recording = perfetto::record_to(path).unwrap();
        atrace_instant(TAG, "of an ending thread");
        recording.finish().unwrap();
        perfetto::connect();
        let trace = std::fs::read(path).unwrap();
        let count = trace.windows(19).filter(|window| window == b"of an ending thread").count();
        ENDED.store(count as u64, Ordering::Relaxed);
    }
    fn set(round: usize) {
        // SAFETY: the key exists. The value is a number, not an address.
        let result = unsafe {
            libc::pthread_setspecific(KEY.load(Ordering::Relaxed), std::ptr::without_provenance(round))
        };
        assert_eq!(result, 0);
    }
    let name = case!({
        std::panic::set_hook(Box::new(|panic| {
            eprintln!("{panic}");
            std::process::abort();
        }));
        let directory = tempfile::tempdir().unwrap();
        PATH.set(directory.path().join("trace")).unwrap();
        let mut key = 0;
        // SAFETY: the destructor has the type that the C library requires.
        unsafe { assert_eq!(libc::pthread_key_create(&raw mut key, Some(at_end)), 0) };
        KEY.store(key, Ordering::Relaxed);
        let thread = std::thread::Builder::new().name("a name that the kernel cuts".to_owned());
        thread.spawn(|| set(1)).unwrap().join().unwrap();
        assert_eq!(ENDED.load(Ordering::Relaxed), 1);
    });
    let place = Place::file();
    common::run(place.command(&name).env("PERFETTO_PRODUCER_SOCK_NAME", place.path("nobody")));
}

#[test]
fn a_switch_holds_for_the_very_next_event_of_the_thread() {
    let name = case!({
        let control = control();
        let properties = Properties::open().unwrap();
        for round in 0..2000 {
            let switched = control.enable(ThisProcess).unwrap();
            assert!(atrace_is_tag_enabled(TAG));
            atrace_int(TAG, "on", round);
            drop(switched);
            atrace_int(TAG, "off", round);
            assert!(!atrace_is_tag_enabled(TAG));
            properties.set(FLAGS, "0x400").unwrap();
            atrace_int(AtraceTag::Camera, "flag", round);
            properties.set(FLAGS, "0").unwrap();
            atrace_int(AtraceTag::Camera, "off", round);
            atrace_set_tracing_enabled(false);
            atrace_int(AtraceTag::Always, "off", round);
            atrace_set_tracing_enabled(true);
            atrace_int(AtraceTag::Always, "unparked", round);
        }
    });
    let place = Place::file();
    let pid = place.run(&name).pid;
    let expected: String = (0..2000)
        .flat_map(|round| ["on", "flag", "unparked"].map(|name| format!("C|{pid}|{name}|{round}")))
        .collect();
    assert_eq!(place.text(), expected);
}

#[test]
fn a_switch_holds_for_the_very_next_event_of_every_thread() {
    let name = case!({
        // At first, the property with the flags does not exist. Meanwhile, two other threads read the tags all the
        // time, and one of them also sets another property.
        let properties = Properties::open().unwrap();
        let stop = AtomicBool::new(false);
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        std::thread::scope(|scope| {
            let _stop = Stop(&stop);
            for number in 0..2 {
                let stop = &stop;
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        match number {
                            0 => atrace_update_tags(),
                            _ => properties.set("debug.other", "x").unwrap(),
                        }
                        let _ = atrace_get_enabled_tags();
                    }
                });
            }
            let workers: Vec<_> = (0..3)
                .map(|_| {
                    let (ask, asked) = mpsc::channel::<()>();
                    let (answer, answered) = mpsc::channel();
                    scope.spawn(move || {
                        while asked.recv().is_ok() {
                            let before = MARK.load(Ordering::SeqCst);
                            let enabled =
                                PreparedTag::new(AtraceTag::Camera).check().and_then(GateCheck::enabled);
                            let slice = enabled.and_then(|enabled| enabled.begin("x"));
                            answer.send((slice.is_some(), before)).unwrap();
                            slice.into_iter().for_each(|slice| slice.end(None));
                        }
                    });
                    (ask, answered)
                })
                .collect();
            static MARK: AtomicU64 = AtomicU64::new(0);
            for round in 0..2500 {
                let on = round % 2 == 1;
                match round % 6 {
                    4 => atrace_set_tracing_enabled(false),
                    5 => {
                        properties.set(FLAGS, "0x400").unwrap();
                        atrace_set_tracing_enabled(true);
                    }
                    _ => properties.set(FLAGS, if on { "0x400" } else { "0" }).unwrap(),
                }
                MARK.store(round, Ordering::SeqCst);
                workers.iter().for_each(|(ask, _)| ask.send(()).unwrap());
                for (_, answered) in &workers {
                    assert_eq!(answered.recv().unwrap(), (on, round), "round {round}");
                }
            }
            drop(workers);
        });
        assert_eq!(sink().dropped(), 0);
    });
    let Some(place) = Place::kernel(&name) else { return };
    place.run(&name);
}

#[test]
fn nothing_is_lost_while_it_stays_on() {
    let name = case!({
        std::thread::scope(|scope| {
            for number in 0..8 {
                scope.spawn(move || {
                    for round in 0..2000_i64 {
                        atrace_counter(TAG, format_args!("thread {number}"), round);
                    }
                });
            }
            // Another thread enables and disables a tag that no event has, and makes the library read the properties
            // again.
            scope.spawn(|| {
                for _ in 0..300 {
                    drop(control().enable(AtraceTag::Camera).unwrap());
                    atrace_update_tags();
                }
            });
        });
    });
    let Some(place) = Place::kernel(&name) else { return };
    place.instance().set_buffer_kb(16384).unwrap();
    let place = place.on();
    let pid = place.run(&name).pid;
    let mut next = HashMap::<String, i64>::new();
    for message in place.messages() {
        let [kind, by, thread, value] = message.split('|').collect::<Vec<_>>()[..] else {
            panic!("{message}")
        };
        assert_eq!((kind, by), ("C", &*pid.to_string()));
        let next = next.entry(thread.to_owned()).or_default();
        assert_eq!(value.parse(), Ok(*next));
        *next += 1;
    }
    assert_eq!(next.len(), 8);
    assert!(next.values().all(|count| *count == 2000), "{next:?}");
}

/// Tests events in destructors of thread-local values, which run at the end of a thread, when other thread-local values
/// may already be destroyed. Also tests an event in an exit handler.
#[test]
fn a_thread_traces_to_its_very_end() {
    let name = case!({
        struct AtEnd;
        impl Drop for AtEnd {
            fn drop(&mut self) {
                let _event = begin_scoped_event(TAG, "local");
                atrace_instant_args(TAG, format_args!("{:?}", std::thread::current().id()), &[]);
            }
        }
        thread_local! { static LOCAL: AtEnd = const { AtEnd }; }
        for _ in 0..20 {
            std::thread::spawn(|| LOCAL.with(|_| ())).join().unwrap();
        }
        extern "C" fn at_exit() {
            atrace_instant(TAG, "exit");
        }
        #[allow(unsafe_code, reason = "atexit")]
        // SAFETY: the function may be called at any time.
        unsafe {
            libc::atexit(at_exit)
        };
    });
    let place = Place::file().on();
    let pid = place.run(&name).pid;
    let text = place.text();
    assert_eq!(text.matches(&format!("B|{pid}|localI|{pid}|ThreadId(")).count(), 20);
    assert_eq!(text.matches(&format!("E|{pid}")).count(), 20);
    assert!(text.ends_with(&format!("I|{pid}|exit")), "{text}");
}
