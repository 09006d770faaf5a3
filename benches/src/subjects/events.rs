//! The measured operation of every kind of event, in Rust and in C++.

use std::ffi::CString;

use atrace::{
    AtraceTag, Name, atrace_async_begin, atrace_async_end, atrace_async_for_track_begin,
    atrace_async_for_track_end, atrace_begin, atrace_begin_args, atrace_counter, atrace_end, atrace_instant,
    atrace_instant_args, atrace_instant_for_track, atrace_int, atrace_int64, begin_scoped_event,
    trace_method, trace_name,
};

use crate::catalogue::{EVENTS, Event};

/// The default tag of events.
const TAG: AtraceTag = AtraceTag::App;
const TRACK: &str = "bench track";

/// A closure that runs an operation the given number of times.
pub type Run = Box<dyn FnMut(u64)>;

/// The measured operation of a kind of event, in Rust and in C++.
pub struct Operation {
    /// The kind of event.
    pub event: &'static Event,
    /// The operation in Rust.
    pub rust: Run,
    /// The operation in C++, or `None` if libcutils, or the libcutils of this device, has no function for the event.
    pub cc: Option<Run>,
    /// The reason why the libcutils of this device lacks the function for the event, if it does.
    pub missing: Option<&'static str>,
}

/// Makes a name of `length` characters, for an event.
pub fn text(length: usize) -> String {
    "0123456789".chars().cycle().take(length).collect()
}

/// Returns a name as a C string, for the C++ cases.
///
/// # Panics
///
/// Panics if the name contains a NUL.
pub fn c_text(text: &str) -> CString {
    CString::new(text).expect("bench names have no NUL")
}

/// Returns the operations of the kinds of event in [`EVENTS`], in the order of [`EVENTS`].
pub fn operations() -> Vec<Operation> {
    EVENTS.iter().map(operation).collect()
}

fn operation(event: &'static Event) -> Operation {
    let missing = event.cc.and_then(cc_bench::missing);
    let cc = event.cc.filter(|_| missing.is_none()).map(|_| in_cc(event));
    Operation { event, rust: in_rust::<{ TAG.bits() }>(event), cc, missing }
}

/// A constant name. The Perfetto backend does not send the text of such a name with every event.
static LITERAL: Name = Name::new("0123456789");

/// Returns the Rust operation of an event. The tag is the constant parameter `TAGS`, because most programs use constant
/// tags.
///
/// # Panics
///
/// Panics if the event is not one of the catalogue.
pub fn in_rust<const TAGS: u64>(event: &Event) -> Run {
    // The tag is a constant expression, so that the closures below do not capture a variable.
    let tag = || const { AtraceTag::from_bits_retain(TAGS) };
    let name = text(if event.name == "begin/1000" { 1000 } else { 10 });
    match event.name {
        "begin/10" | "begin/1000" => Box::new(move |n| (0..n).for_each(|_| atrace_begin(tag(), &name))),
        "end" => Box::new(move |n| (0..n).for_each(|_| atrace_end(tag()))),
        "scoped" => Box::new(move |n| (0..n).for_each(|_| drop(begin_scoped_event(tag(), &name)))),
        "instant" => Box::new(move |n| (0..n).for_each(|_| atrace_instant(tag(), &name))),
        "int" => Box::new(move |n| (0..n).for_each(|i| atrace_int(tag(), &name, i as i32))),
        "int64" => Box::new(move |n| (0..n).for_each(|i| atrace_int64(tag(), &name, i as i64))),
        "async_begin" => Box::new(move |n| (0..n).for_each(|i| atrace_async_begin(tag(), &name, i as i32))),
        "async_end" => Box::new(move |n| (0..n).for_each(|i| atrace_async_end(tag(), &name, i as i32))),
        "track_begin" => Box::new(move |n| {
            (0..n).for_each(|i| atrace_async_for_track_begin(tag(), TRACK, &name, i as i32))
        }),
        "track_end" => {
            Box::new(move |n| (0..n).for_each(|i| atrace_async_for_track_end(tag(), TRACK, i as i32)))
        }
        "track_instant" => {
            Box::new(move |n| (0..n).for_each(|_| atrace_instant_for_track(tag(), TRACK, &name)))
        }
        "begin_fmt" => {
            Box::new(move |n| (0..n).for_each(|i| atrace_begin_args(tag(), format_args!("frame {i}"), &[])))
        }
        "method" if TAGS == TAG.bits() => Box::new(|n| (0..n).for_each(|_| traced())),
        "method" => Box::new(|n| (0..n).for_each(|_| traced_as::<TAGS>())),
        "begin_literal/10" => Box::new(move |n| (0..n).for_each(|_| atrace_begin_args(tag(), &LITERAL, &[]))),
        "instant_literal" => {
            Box::new(move |n| (0..n).for_each(|_| atrace_instant_args(tag(), &LITERAL, &[])))
        }
        "int64_literal" => Box::new(move |n| (0..n).for_each(|i| atrace_counter(tag(), &LITERAL, i as i64))),
        "scoped_literal" => Box::new(move |n| (0..n).for_each(|_| named::<TAGS>())),
        other => unreachable!("{other} is no event of the catalogue"),
    }
}

fn in_cc(event: &Event) -> Run {
    let name = c_text(&text(if event.name == "begin/1000" { 1000 } else { 10 }));
    let track = c_text(TRACK);
    match event.name {
        "begin/10" | "begin/1000" => Box::new(move |n| cc_bench::begin(&name, n)),
        "end" => Box::new(cc_bench::end),
        "scoped" => Box::new(move |n| cc_bench::scoped(&name, n)),
        "instant" => Box::new(move |n| cc_bench::instant(&name, n)),
        "int" => Box::new(move |n| cc_bench::counter_int(&name, n)),
        "int64" => Box::new(move |n| cc_bench::counter_int64(&name, n)),
        "async_begin" => Box::new(move |n| cc_bench::async_begin(&name, n)),
        "async_end" => Box::new(move |n| cc_bench::async_end(&name, n)),
        "track_begin" => Box::new(move |n| cc_bench::async_for_track_begin(&track, &name, n)),
        "track_end" => Box::new(move |n| cc_bench::async_for_track_end(&track, n)),
        "track_instant" => Box::new(move |n| cc_bench::instant_for_track(&track, &name, n)),
        other => unreachable!("C++ has no {other}"),
    }
}

/// Traces its own call by `trace_method!`. The function is not generic, so the name of its slice has no type
/// parameters. It is marked `#[inline]`, so that it can be inlined into a bench like a function of the bench's own
/// crate.
#[inline]
fn traced() {
    trace_method!(TAG);
}

fn traced_as<const TAGS: u64>() {
    trace_method!(AtraceTag::from_bits_retain(TAGS));
}

fn named<const TAGS: u64>() {
    trace_name!(AtraceTag::from_bits_retain(TAGS), "0123456789");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::LITERALS;

    #[test]
    fn every_event_of_the_catalogue_has_an_operation() {
        LITERALS.iter().for_each(|event| in_rust::<{ TAG.bits() }>(event)(1));
        for event in EVENTS.iter() {
            let mut operation = operation(event);
            (operation.rust)(1);
            assert_eq!(
                operation.cc.is_some() || operation.missing.is_some(),
                event.cc.is_some(),
                "{}",
                event.name
            );
        }
    }
}
