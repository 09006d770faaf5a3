//! Macros that trace the rest of a function.

/// Traces the rest of the function (or block) as a slice that is named by the function's path, such as
/// `my_crate::Type::method`.
///
/// The argument is the tag. While the tag is off, the macro costs only the check. The macro works even if the caller's
/// `Cargo.toml` gives this crate another name. Each thread sends the name to Perfetto's service only once in many
/// events.
///
/// # Examples
///
/// ```
/// use atrace::{AtraceTag, trace_method};
///
/// fn decode() {
///     trace_method!(AtraceTag::App);
///     // …
/// }
/// # decode();
/// ```
#[macro_export]
macro_rules! trace_method {
    ($tag:expr $(,)?) => {
        let _atrace_scoped_event = {
            fn here() {}
            static CALLSITE: $crate::Name = $crate::Name::new("");
            $crate::__private::begin_scoped_event_at($tag, &CALLSITE, &here)
        };
    };
}

/// Traces the rest of the function (or block) as a slice with a constant name and arguments.
///
/// The macro calls [`begin_scoped_event_args`](crate::begin_scoped_event_args) with a static [`Name`](crate::Name),
/// so each thread sends the name to Perfetto's service only once in many events.
///
/// # Examples
///
/// ```
/// use atrace::{Arg, AtraceTag, trace_name};
///
/// fn decode(block: u64) {
///     trace_name!(AtraceTag::App, "decode");
///     for row in 0..2 {
///         trace_name!(AtraceTag::App, "row", Arg::Uint("block", block), Arg::Int("row", row));
///         // …
///     }
/// }
/// # decode(7);
/// ```
#[doc(alias = "ATRACE_NAME")]
#[macro_export]
macro_rules! trace_name {
    ($tag:expr, $name:expr $(, $arg:expr)* $(,)?) => {
        let _atrace_scoped_event = {
            static NAME: $crate::Name = $crate::Name::new($name);
            $crate::begin_scoped_event_args($tag, &NAME, &[$($arg),*])
        };
    };
}
