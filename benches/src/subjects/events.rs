//! What is measured: every kind of event, in Rust and in C++.

use std::ffi::CString;

use atrace::{
    AtraceTag, atrace_async_begin, atrace_async_end, atrace_async_for_track_begin,
    atrace_async_for_track_end, atrace_begin, atrace_begin_fmt, atrace_end, atrace_instant,
    atrace_instant_for_track, atrace_int, atrace_int64, begin_scoped_event, trace_method,
};

const TAG: AtraceTag = AtraceTag::App;
const TRACK: &str = "bench track";

/// What one operation is, in Rust and in C++.
pub struct Operation {
    /// As in the seed, without `tracing_off_`.
    pub name: &'static str,
    /// How many events it writes.
    pub events: u64,
    /// Runs it this often in Rust.
    pub rust: Box<dyn FnMut(u64)>,
    /// None where C++ has nothing like it, or not on this device.
    pub cc: Option<Box<dyn FnMut(u64)>>,
    /// Why not on this device.
    pub missing: Option<&'static str>,
}

/// The function of libcutils that C++ calls, and its loop.
type Cc = (&'static str, Box<dyn FnMut(u64)>);

/// Makes a name of so many characters.
#[must_use]
pub fn text(length: usize) -> String {
    "0123456789".chars().cycle().take(length).collect()
}

/// The same name for C++.
///
/// # Panics
///
/// If the name has a NUL in it.
#[must_use]
pub fn c_text(text: &str) -> CString {
    CString::new(text).expect("bench names have no NUL")
}

/// Returns every kind of event, in the order of the tables.
#[must_use]
pub fn operations() -> Vec<Operation> {
    let mut all = Vec::new();
    let mut add = |name, events, rust: Box<dyn FnMut(u64)>, cc: Option<Cc>| {
        let missing = cc.as_ref().and_then(|(function, _)| cc_bench::missing(function));
        let cc = cc.filter(|_| missing.is_none()).map(|(_, run)| run);
        all.push(Operation { name, events, rust, cc, missing });
    };
    for (name, length) in [("begin/10", 10), ("begin/1000", 1000)] {
        let (rust, cc) = (text(length), c_text(&text(length)));
        add(
            name,
            1,
            Box::new(move |n| (0..n).for_each(|_| atrace_begin(TAG, &rust))),
            Some(("atrace_begin_body", Box::new(move |n| cc_bench::begin(&cc, n)))),
        );
    }
    add(
        "end",
        1,
        Box::new(|n| (0..n).for_each(|_| atrace_end(TAG))),
        Some(("atrace_end_body", Box::new(cc_bench::end))),
    );
    let (rust, cc) = (text(10), c_text(&text(10)));
    add(
        "scoped",
        2,
        Box::new(move |n| (0..n).for_each(|_| drop(begin_scoped_event(TAG, &rust)))),
        Some(("atrace_end_body", Box::new(move |n| cc_bench::scoped(&cc, n)))),
    );
    let (rust, cc) = (text(10), c_text(&text(10)));
    add(
        "instant",
        1,
        Box::new(move |n| (0..n).for_each(|_| atrace_instant(TAG, &rust))),
        Some(("atrace_instant_body", Box::new(move |n| cc_bench::instant(&cc, n)))),
    );
    let (rust, cc) = (text(10), c_text(&text(10)));
    add(
        "int",
        1,
        Box::new(move |n| (0..n).for_each(|i| atrace_int(TAG, &rust, i as i32))),
        Some(("atrace_int_body", Box::new(move |n| cc_bench::counter_int(&cc, n)))),
    );
    let (rust, cc) = (text(10), c_text(&text(10)));
    add(
        "int64",
        1,
        Box::new(move |n| (0..n).for_each(|i| atrace_int64(TAG, &rust, i as i64))),
        Some(("atrace_int64_body", Box::new(move |n| cc_bench::counter_int64(&cc, n)))),
    );
    let (rust, cc) = (text(10), c_text(&text(10)));
    add(
        "async_begin",
        1,
        Box::new(move |n| (0..n).for_each(|i| atrace_async_begin(TAG, &rust, i as i32))),
        Some(("atrace_async_begin_body", Box::new(move |n| cc_bench::async_begin(&cc, n)))),
    );
    let (rust, cc) = (text(10), c_text(&text(10)));
    add(
        "async_end",
        1,
        Box::new(move |n| (0..n).for_each(|i| atrace_async_end(TAG, &rust, i as i32))),
        Some(("atrace_async_end_body", Box::new(move |n| cc_bench::async_end(&cc, n)))),
    );
    let (rust, cc, track) = (text(10), c_text(&text(10)), c_text(TRACK));
    add(
        "track_begin",
        1,
        Box::new(move |n| (0..n).for_each(|i| atrace_async_for_track_begin(TAG, TRACK, &rust, i as i32))),
        Some((
            "atrace_async_for_track_begin_body",
            Box::new(move |n| cc_bench::async_for_track_begin(&track, &cc, n)),
        )),
    );
    let track = c_text(TRACK);
    add(
        "track_end",
        1,
        Box::new(move |n| (0..n).for_each(|i| atrace_async_for_track_end(TAG, TRACK, i as i32))),
        Some((
            "atrace_async_for_track_end_body",
            Box::new(move |n| cc_bench::async_for_track_end(&track, n)),
        )),
    );
    let (rust, cc, track) = (text(10), c_text(&text(10)), c_text(TRACK));
    add(
        "track_instant",
        1,
        Box::new(move |n| (0..n).for_each(|_| atrace_instant_for_track(TAG, TRACK, &rust))),
        Some((
            "atrace_instant_for_track_body",
            Box::new(move |n| cc_bench::instant_for_track(&track, &cc, n)),
        )),
    );
    add(
        "begin_fmt",
        1,
        Box::new(|n| (0..n).for_each(|i| atrace_begin_fmt(TAG, format_args!("frame {i}")))),
        None,
    );
    add("method", 2, Box::new(|n| (0..n).for_each(|_| traced())), None);
    all
}

fn traced() {
    trace_method!(TAG);
}

/// Returns the id of the row of an operation.
#[must_use]
pub fn id(who: &str, state: &str, operation: &str) -> String {
    format!("{who}/tracing_{state}_{operation}")
}
