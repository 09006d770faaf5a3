//! Tests the messages that libcutils and the C++ benchmarks write to the marker.
#![cfg(target_os = "linux")]
#![allow(unsafe_code, reason = "the tests call libcutils' C functions")]

mod alone;

use std::ffi::{CStr, CString};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;

use alone::{Place, alone};
use atrace_sys::bindings::*;

/// Calls each of `calls`, and returns the message that each has written to the marker.
fn messages(place: &Place, calls: &[&dyn Fn()]) -> Vec<String> {
    calls.iter().map(|call| place.written_by(call)).collect()
}

fn c(text: impl Into<Vec<u8>>) -> CString {
    CString::new(text).unwrap()
}

#[test]
fn every_function_writes_its_message() {
    alone("every_function_writes_its_message", |place| {
        cc_bench::update_tags();
        cc_bench::enabled_tags(); // This call opens the marker.
        let pid = std::process::id();
        let (name, track) = (c"a|b\n\x7f", c"row 1");
        // SAFETY: both are C strings.
        let written = unsafe {
            messages(
                place,
                &[
                    &|| atrace_begin_body(name.as_ptr()),
                    &|| atrace_end_body(),
                    &|| atrace_async_begin_body(name.as_ptr(), i32::MIN),
                    &|| atrace_async_end_body(name.as_ptr(), i32::MAX),
                    &|| atrace_async_for_track_begin_body(track.as_ptr(), name.as_ptr(), -1),
                    &|| atrace_async_for_track_end_body(track.as_ptr(), 0),
                    &|| atrace_instant_body(name.as_ptr()),
                    &|| atrace_instant_for_track_body(track.as_ptr(), name.as_ptr()),
                    &|| atrace_int_body(name.as_ptr(), i32::MIN),
                    &|| atrace_int64_body(name.as_ptr(), i64::MIN),
                    &|| atrace_begin_body(c"".as_ptr()),
                    &|| atrace_instant_for_track_body(c"".as_ptr(), name.as_ptr()),
                ],
            )
        };
        let expected = [
            format!("B|{pid}|a|b\n\x7f"),
            format!("E|{pid}"),
            format!("S|{pid}|a|b\n\x7f|-2147483648"),
            format!("F|{pid}|a|b\n\x7f|2147483647"),
            format!("G|{pid}|row 1|a|b\n\x7f|-1"),
            format!("H|{pid}|row 1|0"),
            format!("I|{pid}|a|b\n\x7f"),
            format!("N|{pid}|row 1|a|b\n\x7f"),
            format!("C|{pid}|a|b\n\x7f|-2147483648"),
            format!("C|{pid}|a|b\n\x7f|-9223372036854775808"),
            format!("B|{pid}|"),
            // libcutils leaves out an empty track and the track's separator.
            format!("N|{pid}|a|b\n\x7f"),
        ];
        assert_eq!(written, expected);
    });
}

#[test]
fn loops_write_once_an_iteration() {
    alone("loops_write_once_an_iteration", |place| {
        place.switch_on();
        let pid = std::process::id();
        let written = messages(
            place,
            &[
                &|| cc_bench::begin(c"name", 2),
                &|| cc_bench::end(2),
                &|| cc_bench::scoped(c"name", 2),
                &|| cc_bench::instant(c"name", 2),
                &|| cc_bench::instant_for_track(c"track", c"name", 2),
                &|| cc_bench::counter_int(c"name", 2),
                &|| cc_bench::counter_int64(c"name", 2),
                &|| cc_bench::async_begin(c"name", 2),
                &|| cc_bench::async_end(c"name", 2),
                &|| cc_bench::async_for_track_begin(c"track", c"name", 2),
                &|| cc_bench::async_for_track_end(c"track", 2),
                &|| cc_bench::wrapper::begin(cc_bench::TAG, "name"),
                &|| cc_bench::wrapper::end(cc_bench::TAG),
                &|| cc_bench::wrapper::begin(1 << 3, "name"),
                &|| cc_bench::wrapper::end(1 << 3),
                &|| cc_bench::begin(c"name", 0),
                &|| assert_eq!(cc_bench::is_enabled(3), 3),
            ],
        );
        let expected = [
            format!("B|{pid}|nameB|{pid}|name"),
            format!("E|{pid}E|{pid}"),
            format!("B|{pid}|nameE|{pid}B|{pid}|nameE|{pid}"),
            format!("I|{pid}|nameI|{pid}|name"),
            format!("N|{pid}|track|nameN|{pid}|track|name"),
            format!("C|{pid}|name|0C|{pid}|name|1"),
            format!("C|{pid}|name|0C|{pid}|name|1"),
            format!("S|{pid}|name|0S|{pid}|name|1"),
            format!("F|{pid}|name|0F|{pid}|name|1"),
            format!("G|{pid}|track|name|0G|{pid}|track|name|1"),
            format!("H|{pid}|track|0H|{pid}|track|1"),
            format!("B|{pid}|name"),
            format!("E|{pid}"),
            String::new(),
            String::new(),
            String::new(),
            String::new(),
        ];
        assert_eq!(written, expected);
    });
}

#[test]
fn raw_and_inlined_writes_are_counted_when_taken_whole() {
    alone("raw_and_inlined_writes_are_counted_when_taken_whole", |place| {
        let file = std::fs::File::create(place.path("raw")).unwrap();
        assert_eq!(cc_bench::raw_write(file.as_fd(), b"abc", 3), 3);
        assert_eq!(std::fs::read(place.path("raw")).unwrap(), b"abcabcabc");
        let unwritable = std::fs::File::open(place.path("raw")).unwrap();
        assert_eq!(cc_bench::raw_write(unwritable.as_fd(), b"abc", 3), 0);
        let inlined = cc_bench::InlineWrites::of(&["d", "ef"]);
        assert_eq!((inlined.run(file.as_fd(), 2), inlined.run(unwritable.as_fd(), 2)), (4, 0));
        assert_eq!(std::fs::read(place.path("raw")).unwrap(), b"abcabcabcdefdef");
    });
}

/// The length of the longest message: libcutils' buffer without its NUL.
const LIMIT: usize = 1023;

/// Checks how libcutils cuts a message whose name has `name` characters and whose track has `track` characters.
fn check_cut(
    place: &Place,
    head: &str,
    tail: &str,
    track: Option<usize>,
    name: usize,
    write: &dyn Fn(&CStr, &CStr),
) {
    let whole_name = "n".repeat(name);
    let whole_track = "t".repeat(track.unwrap_or(0));
    let written = place.written_by(|| write(&c(whole_track.as_str()), &c(whole_name.as_str())));
    place.end_line();

    let bar = if track.is_some() { "|" } else { "" };
    let fixed = head.len() + bar.len() + tail.len();
    let (mut name_kept, mut track_kept) = (name, whole_track.len());
    if fixed + name + whole_track.len() > LIMIT {
        if fixed + whole_track.len() < LIMIT {
            name_kept = LIMIT - fixed - whole_track.len();
        } else if track.is_some() && fixed + 1 < LIMIT {
            // libcutils keeps one byte for the name, even if the name is empty, and cuts the track.
            (name_kept, track_kept) = (name.min(1), LIMIT - fixed - 1);
        } else {
            assert_eq!(written, "", "nothing of it fits");
            return;
        }
    }
    let expected = format!("{head}{}{bar}{}{tail}", &whole_track[..track_kept], &whole_name[..name_kept]);
    assert_eq!(written, expected, "name of {name}, track of {track:?}");
    assert!(written.len() <= LIMIT);
}

#[test]
fn long_messages_are_cut_as_libcutils_cuts_them() {
    alone("long_messages_are_cut_as_libcutils_cuts_them", |place| {
        cc_bench::enabled_tags();
        let pid = std::process::id();
        let fixed = format!("B|{pid}|").len();
        // Tests lengths around the length at which a message of each kind just fits. A 64-bit counter has the longest
        // tail after the name.
        let lengths: Vec<usize> =
            (0..3).chain(LIMIT - fixed - 24..LIMIT - fixed + 4).chain([2000, 100_000]).collect();
        for &name in &lengths {
            let check = |head: &str, tail: &str, write: &dyn Fn(&CStr)| {
                check_cut(place, &format!("{head}|{pid}|"), tail, None, name, &|_, name| write(name));
            };
            // SAFETY: the names are C strings.
            unsafe {
                check("B", "", &|name| atrace_begin_body(name.as_ptr()));
                check("I", "", &|name| atrace_instant_body(name.as_ptr()));
                check("S", "|7", &|name| atrace_async_begin_body(name.as_ptr(), 7));
                check("F", "|-2147483648", &|name| atrace_async_end_body(name.as_ptr(), i32::MIN));
                check("H", "|7", &|name| atrace_async_for_track_end_body(name.as_ptr(), 7));
                check("C", "|-1", &|name| atrace_int_body(name.as_ptr(), -1));
                check("C", "|-9223372036854775808", &|name| atrace_int64_body(name.as_ptr(), i64::MIN));
            }
        }
        for &track in lengths.iter().filter(|&&track| track > 0) {
            for &name in &lengths {
                // SAFETY: both are C strings.
                let begin = |track: &CStr, name: &CStr| unsafe {
                    atrace_async_for_track_begin_body(track.as_ptr(), name.as_ptr(), -5);
                };
                check_cut(place, &format!("G|{pid}|"), "|-5", Some(track), name, &begin);
                // SAFETY: both are C strings.
                let instant = |track: &CStr, name: &CStr| unsafe {
                    atrace_instant_for_track_body(track.as_ptr(), name.as_ptr());
                };
                check_cut(place, &format!("N|{pid}|"), "", Some(track), name, &instant);
            }
        }
    });
}

#[test]
fn a_forked_child_writes_its_own_id() {
    alone("a_forked_child_writes_its_own_id", |place| {
        place.switch_on();
        cc_bench::begin(c"parent", 1);
        let mut child = std::process::Command::new("true");
        // SAFETY: the closure runs between fork and exec, where libcutils writes from its stack and takes no lock.
        unsafe {
            child.pre_exec(|| {
                cc_bench::begin(c"child", 1);
                Ok(())
            })
        };
        let mut id = 0;
        let written = place.written_by(|| {
            let mut child = child.spawn().unwrap();
            id = child.id();
            child.wait().unwrap();
        });
        assert_ne!(id, std::process::id());
        assert_eq!(written, format!("B|{id}|child"));
    });
}
