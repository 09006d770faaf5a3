//! Tests that a process with `atrace` reads the properties by the rules of libcutils.

mod common;

use std::os::unix::process::CommandExt as _;
use std::sync::atomic::{AtomicU32, Ordering};

use atrace::*;
use atrace_sys::properties::Properties;
use common::{Place, case};

const FLAGS: &str = "debug.atrace.tags.enableflags";
const NUMBER: &str = "debug.atrace.app_number";

fn set(key: &str, value: &str) {
    Properties::open().unwrap().set(key, value).unwrap();
}

fn tags() -> AtraceTag {
    atrace_get_enabled_tags()
}

const ALWAYS: AtraceTag = AtraceTag::Always;
const APP: AtraceTag = AtraceTag::App;

#[test]
fn flags_are_a_number_in_any_base_or_nothing() {
    let name = case!({
        for (text, expected) in [
            ("", Some(0)),
            ("0", Some(0)),
            ("0x402", Some(0x402)),
            ("1026", Some(0x402)),
            ("02002", Some(0x402)),
            (" \t+0X402", Some(0x402)),
            ("-0", Some(0)),
            ("-2", Some(!1)),
            ("0xffffffffffffffff", None),
            ("18446744073709551616", None),
            ("-1", None),
            ("402 ", None),
            ("0x", None),
            ("gfx", None),
            (" ", None),
            ("1026\n", None),
        ] {
            set(FLAGS, text);
            let expected = match expected {
                Some(bits) => ((AtraceTag::from_bits_retain(bits) & AtraceTag::ValidMask) - APP) | ALWAYS,
                None => AtraceTag::empty(),
            };
            assert_eq!(tags(), expected, "{text:?}");
            assert_eq!(atrace_is_tag_enabled(ALWAYS), expected.contains(ALWAYS));
        }
    });
    Place::file().run(&name);
}

#[test]
fn app_follows_the_patterns_and_not_the_mask() {
    let name = case!({
        let argv0 = std::env::args().next().unwrap();
        let file = argv0.rsplit('/').next().unwrap();
        let with = |number: &str, patterns: &[&str]| {
            for (index, pattern) in patterns.iter().enumerate() {
                set(&format!("debug.atrace.app_{index}"), pattern);
            }
            set(NUMBER, number);
            set(FLAGS, "0");
            tags()
        };
        let star = format!("*{file}");
        assert_eq!(with("1", &["*"]), APP | ALWAYS);
        assert_eq!(with("0", &["*"]), ALWAYS);
        assert_eq!(with("-1", &["*"]), ALWAYS);
        assert_eq!(with("1", &[&star]), APP | ALWAYS);
        // On a host, a pattern may match argv[0] or only its last part. On Android, a pattern must match the whole
        // argv[0].
        let by_last_part = if cfg!(target_os = "android") { ALWAYS } else { APP | ALWAYS };
        assert_eq!(with("1", &[file]), by_last_part);
        assert_eq!(with("1", &[&file[1..]]), ALWAYS);
        assert_eq!(with("1", &["other", "*"]), ALWAYS);
        assert_eq!(with("2", &["other", "*"]), APP | ALWAYS);
        assert_eq!(with("2 and more", &["other", "*"]), APP | ALWAYS);
        assert_eq!(with("0x2", &["other", "*"]), APP | ALWAYS);
        assert_eq!(with("+02", &["other", "*"]), APP | ALWAYS);
        assert_eq!(with("two", &["other", "*"]), ALWAYS);
        assert_eq!(with("", &["other", "*"]), ALWAYS);
        for damaged in ["2147483648", "99999999999999999999", "-99999999999999999999", "0x80000000"] {
            assert_eq!(with(damaged, &["other", "*"]), ALWAYS, "{damaged}");
        }
        // A very large count does not make the reader search for that many patterns.
        assert_eq!(with("2147483647", &["other", "*"]), APP | ALWAYS);
        assert_eq!(with("2147483647", &["other", "no"]), ALWAYS);
        assert_eq!(with("1", &["[*"]), ALWAYS);
        assert_eq!(with("1", &["\\*"]), ALWAYS, "a backslash is a backslash");
        assert_eq!(with("1", &["?*"]), APP | ALWAYS);
        assert_eq!(with("1", &[""]), ALWAYS);
        // If the mask of tags is not a number, patterns have no effect. The bit of the tag App in a mask enables
        // nothing.
        assert_eq!(with("1", &["*"]), APP | ALWAYS);
        set(FLAGS, "no number");
        assert_eq!(tags(), AtraceTag::empty());
        assert_eq!(with("0", &[]), ALWAYS);
        set(FLAGS, "0x1000");
        assert_eq!(tags(), ALWAYS);
    });
    Place::file().run(&name);
}

#[test]
fn a_process_without_a_name_is_matched_as_an_empty_one() {
    let name = case!({
        assert_eq!(std::env::args().next().as_deref(), Some(""));
        assert_eq!(tags(), ALWAYS);
        set("debug.atrace.app_0", "");
        set(NUMBER, "1");
        set(FLAGS, "0");
        assert_eq!(tags(), APP | ALWAYS);
        assert!(control::Control::open().unwrap().enable(control::ThisProcess).is_err());
    });
    let place = Place::file();
    common::run(place.command(&name).arg0(""));
}

#[test]
fn a_property_that_appears_late_is_noticed() {
    let name = case!({
        atrace_init();
        atrace_instant(AtraceTag::Camera, "early");
        for index in 0..10 {
            // Before the flags are set, other properties are created and changed.
            set(&format!("debug.other.{index}"), "x");
            set("debug.other.0", "y");
            assert_eq!(tags(), ALWAYS);
            atrace_instant(AtraceTag::Camera, "early");
        }
        set(FLAGS, "0x400");
        atrace_instant(AtraceTag::Camera, "late");
        set(FLAGS, "0");
        atrace_instant(AtraceTag::Camera, "later");
        set("debug.other.0", "z");
        atrace_instant(AtraceTag::Camera, "later");
        set(FLAGS, "0x400");
        atrace_instant(AtraceTag::Camera, "last");
    });
    let place = Place::file();
    let pid = place.run(&name).pid;
    assert_eq!(place.text(), format!("I|{pid}|lateI|{pid}|last"));
}

#[test]
fn a_pattern_alone_is_not_noticed() {
    let name = case!({
        assert_eq!(tags(), ALWAYS);
        set(FLAGS, "0");
        assert_eq!(tags(), ALWAYS);
        set("debug.atrace.app_0", "*");
        set(NUMBER, "1");
        assert_eq!(tags(), ALWAYS, "nothing was said of a change");
        atrace_instant(APP, "unseen");
        atrace_update_tags();
        assert_eq!(tags(), APP | ALWAYS);
        atrace_instant(APP, "updated");
        set(NUMBER, "0");
        assert_eq!(tags(), APP | ALWAYS);
        set(FLAGS, "0");
        assert_eq!(tags(), ALWAYS);
        set(NUMBER, "1");
        assert_eq!(tags(), ALWAYS);
        set(FLAGS, "0");
        atrace_instant(APP, "announced");
    });
    let place = Place::file();
    let pid = place.run(&name).pid;
    assert_eq!(place.text(), format!("I|{pid}|updatedI|{pid}|announced"));
}

#[test]
fn a_parked_process_traces_nothing() {
    let name = case!({
        let on = APP | AtraceTag::Camera | ALWAYS;
        assert_eq!(tags(), on);
        for _ in 0..3 {
            atrace_set_tracing_enabled(false);
            assert_eq!(tags(), AtraceTag::NotReady);
            for tag in [APP, AtraceTag::Camera, ALWAYS, AtraceTag::NotReady, AtraceTag::from_bits_retain(!0)]
            {
                assert!(!atrace_is_tag_enabled(tag));
                atrace_instant(tag, "parked");
            }
            // Neither a change of the properties nor an explicit update switches tracing on again.
            set(FLAGS, "0x402");
            assert_eq!(tags(), AtraceTag::NotReady);
            atrace_update_tags();
            atrace_init();
            assert_eq!(tags(), AtraceTag::NotReady);
            atrace_instant(AtraceTag::Graphics, "parked");
            set(FLAGS, "0x400");
            atrace_set_tracing_enabled(true);
            assert_eq!(tags(), on);
            atrace_instant(APP, "on");
        }
    });
    let place = Place::file().on();
    place.set(FLAGS, "0x400");
    let pid = place.run(&name).pid;
    assert_eq!(place.text(), format!("I|{pid}|on").repeat(3));
}

#[test]
fn parking_before_the_first_event_holds_also_where_there_is_no_marker() {
    let name = case!({
        atrace_set_tracing_enabled(false);
        assert_eq!(tags(), AtraceTag::NotReady);
        assert!(!atrace_is_tag_enabled(ALWAYS));
        atrace_begin(ALWAYS, "parked");
        assert_eq!(tags(), AtraceTag::NotReady);
        atrace_set_tracing_enabled(true);
        assert_eq!(tags().is_empty(), std::env::var_os("ATRACE_BACKEND").is_some());
        atrace_begin(ALWAYS, "on");
    });
    let place = Place::file().on();
    common::run(place.command(&name).env("ATRACE_BACKEND", "none"));
    assert_eq!(place.text(), "");
    let pid = place.run(&name).pid;
    assert_eq!(place.text(), format!("B|{pid}|on"));
}

/// The number of calls of `atrace_set_tracing_enabled`.
static SWITCHES: AtomicU32 = AtomicU32::new(0);

/// Handles a signal: disables tracing in this process, or makes the process follow the properties again, in turn.
extern "C" fn switch(_: libc::c_int) {
    let before = SWITCHES.load(Ordering::Relaxed);
    atrace_set_tracing_enabled(before % 2 == 1);
    SWITCHES.store(before + 1, Ordering::Relaxed);
}

/// Tests that the last call of `atrace_set_tracing_enabled` determines whether tracing is enabled, even if the call
/// interrupts code that reads the tags. A signal handler makes the calls, at random times.
#[test]
#[allow(unsafe_code, reason = "a signal interrupts the thread, as it could in a C program")]
fn parking_is_exact_while_tags_are_read() {
    let name = case!({
        const MANY: u32 = 10_000;
        // SAFETY: the handler may run anywhere.
        let before = unsafe { libc::signal(libc::SIGUSR1, switch as *const () as libc::sighandler_t) };
        assert_ne!(before, libc::SIG_ERR);
        // SAFETY: no preconditions.
        let thread = unsafe { libc::pthread_self() };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while SWITCHES.load(Ordering::Relaxed) < MANY {
                    // SAFETY: `thread` still exists, because it waits for the end of this thread.
                    assert_eq!(unsafe { libc::pthread_kill(thread, libc::SIGUSR1) }, 0);
                    std::thread::sleep(std::time::Duration::from_micros(20));
                }
            });
            while SWITCHES.load(Ordering::Relaxed) < MANY {
                atrace_update_tags();
                let before = SWITCHES.load(Ordering::Relaxed);
                let found = tags();
                let switches = SWITCHES.load(Ordering::Relaxed);
                let expected = if switches.is_multiple_of(2) { APP | ALWAYS } else { AtraceTag::NotReady };
                assert!(before != switches || found == expected, "{found:?} after {switches} switches");
            }
        });
    });
    Place::file().on().run(&name);
}

/// Tests a store that can't be used: tracing is off, one line names the store, and the program does not
/// crash.
fn refused(case: &str, reason: &str, prepare: impl FnOnce(&Place)) {
    let place = Place::file();
    prepare(&place);
    // The store is the only fault, so the only line on stderr is about the store.
    let ran = common::run(&mut place.command(case));
    assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
    assert!(ran.stderr.contains(reason) && ran.stderr.ends_with("tracing is off\n"), "{}", ran.stderr);
    assert_eq!(place.text(), "");
}

#[test]
#[cfg_attr(target_os = "android", ignore = "the store is the system's")]
fn a_store_that_can_not_be_used_switches_off() {
    let name = case!({
        for _ in 0..3 {
            atrace_begin(ALWAYS | APP, "x");
            atrace_update_tags();
            atrace_set_tracing_enabled(true);
            assert_eq!(tags(), AtraceTag::empty());
        }
        assert_eq!(sink().kind(), "None");
        assert!(control::Control::open().is_err());
        // A watch can be started although the store can't be used. Its callback is never called.
        drop(watch::watch(|_| panic!("called")).unwrap());
    });
    refused(&name, "not begin like a property store", |place| {
        place.control();
        let mut content = std::fs::read(place.properties()).unwrap();
        content[0] = b'x';
        std::fs::write(place.properties(), content).unwrap();
    });
    refused(&name, "properties", |place| std::fs::write(place.properties(), "x").unwrap());
    refused(&name, "properties", |place| std::fs::create_dir(place.properties()).unwrap());
    refused(&name, "properties", |place| std::os::unix::fs::symlink("nowhere", place.properties()).unwrap());
    refused(&name, "properties", |place| {
        place.control();
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(place.properties(), std::fs::Permissions::from_mode(0o666)).unwrap();
    });
}

#[test]
#[cfg_attr(target_os = "android", ignore = "the store is the system's")]
fn a_named_store_that_is_missing_is_complained_about_without_a_named_marker() {
    let name = case!({
        atrace_begin(ALWAYS | APP, "x");
        assert_eq!((tags(), sink().kind()), (AtraceTag::empty(), "None"));
    });
    let place = Place::file();
    if !common::is_root(&name) {
        return; // By default only root can open the kernel's marker. Other users get no message about the store.
    }
    let ran = common::run(
        place.command(&name).env_remove("ATRACE_MARKER").env("ATRACE_PROPERTIES", "/nonexistent/store"),
    );
    assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
    assert!(ran.stderr.contains("/nonexistent/store"), "{}", ran.stderr);
}

#[test]
#[cfg_attr(target_os = "android", ignore = "the store is the system's")]
fn a_store_that_is_damaged_while_it_is_read_harms_nothing() {
    let name = case!({
        atrace_begin(APP, "before");
        let path = std::path::PathBuf::from(std::env::var_os("ATRACE_PROPERTIES").unwrap());
        let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
        use std::os::unix::fs::FileExt;
        let length = file.metadata().unwrap().len() as usize;
        let mut chance = common::Chance(7);
        for round in 0..600 {
            let bytes: Vec<u8> = (0..length.min(4096)).map(|_| chance.next() as u8).collect();
            match round % 3 {
                // Overwrites the first 4 KiB; or a number in the header, such as the count or the serial; or a byte of
                // an entry.
                0 => file.write_all_at(&bytes, 0).unwrap(),
                1 => file.write_all_at(&bytes[..4], 8 + 4 * chance.below(3) as u64).unwrap(),
                _ => file.write_all_at(&bytes[..1], 64 + chance.below(2000) as u64).unwrap(),
            }
            atrace_begin(APP | ALWAYS, "during");
            atrace_end(APP | ALWAYS);
            let _ = tags();
            atrace_update_tags();
        }
    });
    let place = Place::file().on();
    let ran = place.run(&name);
    assert_eq!(ran.stderr, "");
    assert!(place.text().starts_with(&format!("B|{}|before", ran.pid)));
}

/// Tests a store whose file is deleted. A process that has the file open continues to read it. The process does not
/// create another file.
#[test]
#[cfg_attr(target_os = "android", ignore = "the store is the system's")]
fn a_deleted_store_stays_as_it_was() {
    let name = case!({
        atrace_instant(APP, "before");
        std::fs::remove_file(std::env::var_os("ATRACE_PROPERTIES").unwrap()).unwrap();
        atrace_instant(APP, "after");
        assert!(control::Control::open().unwrap().enable("x").is_err());
        atrace_update_tags();
        atrace_instant(APP, "updated");
    });
    let place = Place::file().on();
    let pid = place.run(&name).pid;
    assert_eq!(place.text(), format!("I|{pid}|beforeI|{pid}|afterI|{pid}|updated"));
    assert!(!place.properties().exists());
}
