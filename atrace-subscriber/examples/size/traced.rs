//! The work of the server program, with events that the program writes by calling `atrace` directly. Code that runs too
//! often for `tracing` calls `atrace` in this way.

use atrace::{AtraceTag, atrace_begin_args, atrace_end, atrace_int64, begin_scoped_event, trace_method};

use super::work;

pub(crate) fn main() -> std::io::Result<()> {
    trace_method!(AtraceTag::App);
    let _serving = begin_scoped_event(AtraceTag::App, "serve");
    atrace_begin_args(AtraceTag::App, format_args!("of {}", std::process::id()), &[]);
    let done = work::main();
    atrace_end(AtraceTag::App);
    atrace_int64(AtraceTag::App, "done", i64::from(done.is_ok()));
    done
}
