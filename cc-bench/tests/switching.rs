//! Tests how tracing is switched on and off for the C++ benchmarks, where they write, and which libcutils they use.
#![cfg(target_os = "linux")]
#![allow(unsafe_code, reason = "the tests call libcutils' C functions and load it once more")]

mod alone;

use std::fs::File;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use alone::{Place, alone, alone_with};
use atrace_sys::bindings::*;

const FLAGS: &str = "debug.atrace.tags.enableflags";

#[test]
fn nothing_is_written_while_off() {
    alone("nothing_is_written_while_off", |place| {
        place.set(FLAGS, "0xffffffffffff");
        assert_eq!(cc_bench::enabled_tags() & cc_bench::TAG, 0);
        let written = place.written_by(|| {
            cc_bench::begin(c"name", 3);
            cc_bench::end(3);
            cc_bench::scoped(c"name", 3);
            cc_bench::instant(c"name", 3);
            cc_bench::counter_int(c"name", 3);
            cc_bench::async_begin(c"name", 3);
            assert_eq!(cc_bench::is_enabled(3), 0);
        });
        assert_eq!(written, "");
    });
}

#[test]
fn tags_follow_the_flags() {
    alone("tags_follow_the_flags", |place| {
        let all = ATRACE_TAG_VALID_MASK & !ATRACE_TAG_APP;
        for (flags, tags) in [
            ("0", ATRACE_TAG_ALWAYS),
            ("", ATRACE_TAG_ALWAYS),
            ("0x2", ATRACE_TAG_ALWAYS | ATRACE_TAG_GRAPHICS),
            ("010", ATRACE_TAG_ALWAYS | ATRACE_TAG_VIEW),
            (" 16", ATRACE_TAG_ALWAYS | ATRACE_TAG_WEBVIEW),
            ("0x1000", ATRACE_TAG_ALWAYS),
            ("0x7fffffffffffffff", all),
            ("-2", all),
            ("0xffffffffffffffff", 0),
            ("-1", 0),
            ("99999999999999999999", 0),
            ("2 ", 0),
            ("two", 0),
            ("0x", 0),
        ] {
            place.set(FLAGS, flags);
            assert_eq!(cc_bench::enabled_tags(), tags, "flags {flags:?}");
        }
    });
}

#[test]
fn app_follows_the_patterns() {
    alone("app_follows_the_patterns", |place| {
        let program = std::env::args().next().unwrap();
        let (directory, file) = program.rsplit_once('/').unwrap();
        let tail = &file[file.len() - 16..];
        for (number, pattern, chosen) in [
            ("1", "*".to_string(), true),
            ("0x1", "*".to_string(), true),
            ("1 of these", "*".to_string(), true),
            ("0", "*".to_string(), false),
            ("-1", "*".to_string(), false),
            ("", "*".to_string(), false),
            ("many", "*".to_string(), false),
            ("4294967297", "*".to_string(), false),
            ("1", format!("*{tail}"), true),
            ("1", format!("*[{}]{}", &tail[..1], &tail[1..]), true),
            ("1", format!("*\\{tail}"), false),
            ("1", tail.to_string(), false),
            ("1", format!("/*/{}*", &file[..1]), directory.starts_with('/')),
            ("1", String::new(), false),
        ] {
            place.set("debug.atrace.app_number", number);
            place.set("debug.atrace.app_0", &pattern);
            place.set(FLAGS, "0");
            let enabled = cc_bench::enabled_tags() & ATRACE_TAG_APP != 0;
            assert_eq!(enabled, chosen, "number {number:?}, pattern {pattern:?} for {program}");
        }
        place.set("debug.atrace.app_0", "no such program");
        place.set("debug.atrace.app_2", "*");
        place.set("debug.atrace.app_number", "3");
        place.set(FLAGS, "0");
        assert_eq!(cc_bench::enabled_tags() & ATRACE_TAG_APP, ATRACE_TAG_APP);
    });
}

#[test]
fn patterns_alone_are_not_noticed() {
    alone("patterns_alone_are_not_noticed", |place| {
        place.set(FLAGS, "0");
        // The first call looks up the property, and the second call looks up the property's serial. Both calls read the
        // property's value.
        cc_bench::enabled_tags();
        assert_eq!(cc_bench::enabled_tags(), ATRACE_TAG_ALWAYS);
        place.set("debug.atrace.app_0", "*");
        place.set("debug.atrace.app_number", "1");
        assert_eq!(cc_bench::enabled_tags(), ATRACE_TAG_ALWAYS);
        cc_bench::update_tags();
        assert_eq!(cc_bench::enabled_tags(), ATRACE_TAG_ALWAYS | ATRACE_TAG_APP);
    });
}

#[test]
fn flags_that_appear_late_are_never_noticed() {
    alone("flags_that_appear_late_are_never_noticed", |place| {
        assert_eq!(cc_bench::enabled_tags(), ATRACE_TAG_ALWAYS);
        place.switch_on();
        place.switch_on();
        assert_eq!(cc_bench::enabled_tags(), ATRACE_TAG_ALWAYS);
        cc_bench::update_tags();
        assert_eq!(cc_bench::enabled_tags(), ATRACE_TAG_ALWAYS | ATRACE_TAG_APP);
    });
}

#[test]
fn a_process_can_be_told_not_to_trace() {
    alone("a_process_can_be_told_not_to_trace", |place| {
        place.switch_on();
        // SAFETY: may be called at any time.
        unsafe { atrace_set_tracing_enabled(false) };
        assert_eq!(cc_bench::enabled_tags(), ATRACE_TAG_NOT_READY);
        assert_eq!(place.written_by(|| cc_bench::begin(c"name", 1)), "");
        // SAFETY: may be called at any time.
        unsafe { atrace_set_tracing_enabled(true) };
        assert_eq!(cc_bench::enabled_tags(), ATRACE_TAG_ALWAYS | ATRACE_TAG_APP);
        assert_eq!(place.written_by(|| cc_bench::end(1)), format!("E|{}", std::process::id()));
    });
}

/// Leaves a descriptor open in the process that is about to start, and names the descriptor in ATRACE_MARKER.
fn hand_down(command: &mut std::process::Command, file: OwnedFd, inode: u64, device: u64) {
    // Uses standard input, because Rust opens files with O_CLOEXEC, and only standard descriptors can be handed to a
    // child without unsafe code.
    command.stdin(file).env("ATRACE_MARKER", format!("fd:0:{device}:{inode}"));
}

fn marker_fd() -> i32 {
    cc_bench::enabled_tags();
    // SAFETY: the variable is an aligned `int`, which is written only once, by the call above.
    unsafe { (&raw const atrace_marker_fd).read() }
}

#[test]
fn an_inherited_marker_is_used() {
    let hand = |command: &mut std::process::Command, marker: &std::path::Path| {
        let file = File::options().append(true).open(marker).unwrap();
        let meta = file.metadata().unwrap();
        hand_down(command, file.into(), meta.ino(), meta.dev());
    };
    alone_with("an_inherited_marker_is_used", hand, |place| {
        place.switch_on();
        assert_eq!(place.written_by(|| cc_bench::end(1)), format!("E|{}", std::process::id()));
        assert_ne!(marker_fd(), 0, "it has a number of its own");
    });
}

fn refuses(place: &Place) {
    place.switch_on();
    assert_eq!(marker_fd(), -1);
    assert_eq!(
        cc_bench::enabled_tags() & ATRACE_TAG_APP,
        ATRACE_TAG_APP,
        "libcutils says so even without a marker"
    );
    cc_bench::begin(c"name", 1);
}

#[test]
fn an_inherited_descriptor_of_another_file_is_refused() {
    let hand = |command: &mut std::process::Command, marker: &std::path::Path| {
        let file = File::options().append(true).open(marker).unwrap();
        let meta = file.metadata().unwrap();
        hand_down(command, file.into(), meta.ino() + 1, meta.dev());
    };
    alone_with("an_inherited_descriptor_of_another_file_is_refused", hand, refuses);
}

#[test]
fn an_inherited_pipe_is_refused() {
    let hand = |command: &mut std::process::Command, _: &std::path::Path| {
        let (reader, writer) = std::io::pipe().unwrap();
        let meta = std::fs::metadata(format!("/proc/self/fd/{}", writer.as_raw_fd())).unwrap();
        hand_down(command, writer.into(), meta.ino(), meta.dev());
        let _ = OwnedFd::from(reader).into_raw_fd(); // The pipe stays valid, so it is refused only because it is a pipe.
    };
    alone_with("an_inherited_pipe_is_refused", hand, refuses);
}

#[test]
fn a_malformed_descriptor_is_refused() {
    let name = |command: &mut std::process::Command, _: &std::path::Path| {
        command.env("ATRACE_MARKER", "fd:0:1");
    };
    alone_with("a_malformed_descriptor_is_refused", name, refuses);
}

#[test]
fn a_marker_that_is_not_there_is_not_made() {
    let name = |command: &mut std::process::Command, marker: &std::path::Path| {
        command.env("ATRACE_MARKER", marker.with_file_name("none"));
    };
    alone_with("a_marker_that_is_not_there_is_not_made", name, |place| {
        refuses(place);
        assert!(!place.path("none").exists());
    });
}

#[test]
fn a_damaged_store_is_no_store() {
    let damage = |command: &mut std::process::Command, marker: &std::path::Path| {
        let store = marker.with_file_name("damaged");
        std::fs::write(&store, vec![0xff; 98_368]).unwrap();
        command.env("ATRACE_PROPERTIES", store);
    };
    alone_with("a_damaged_store_is_no_store", damage, |_| {
        assert_eq!(cc_bench::enabled_tags(), ATRACE_TAG_ALWAYS);
    });
}

#[test]
fn a_full_store_of_nonsense_is_survived() {
    let damage = |command: &mut std::process::Command, marker: &std::path::Path| {
        let store = marker.with_file_name("damaged");
        let mut bytes = vec![0xff; 98_368];
        bytes[..12].copy_from_slice(b"ATRPROP\x01\0\x01\0\0");
        let flags = FLAGS.as_bytes();
        bytes[68..72].copy_from_slice(&u32::to_ne_bytes(flags.len() as u32));
        bytes[72..72 + flags.len()].copy_from_slice(flags);
        std::fs::write(&store, bytes).unwrap();
        command.env("ATRACE_PROPERTIES", store);
    };
    alone_with("a_full_store_of_nonsense_is_survived", damage, |_| {
        assert_eq!(cc_bench::enabled_tags(), 0, "91 times 0xff is no number");
    });
}

#[test]
fn the_path_of_the_library_gives_the_same_instance() {
    alone("the_path_of_the_library_gives_the_same_instance", |_| {
        let path = cc_bench::cutils_library();
        assert!(path.is_absolute() && path.ends_with("libcutils.so"), "{path:?}");
        // SAFETY: the library is already loaded.
        let library = unsafe { libloading::Library::new(path) }.unwrap();
        // SAFETY: only the address is used.
        let tags = unsafe { *library.get::<*const u64>("atrace_enabled_tags").unwrap() };
        assert_eq!(tags, &raw const atrace_enabled_tags);
    });
}

#[test]
fn the_libcutils_built_here_lacks_nothing() {
    for function in [
        "atrace_get_enabled_tags",
        "atrace_begin_body",
        "atrace_end_body",
        "atrace_async_for_track_begin_body",
        "atrace_async_for_track_end_body",
        "atrace_instant_body",
        "atrace_instant_for_track_body",
    ] {
        assert_eq!(cc_bench::missing(function), None);
    }
}
