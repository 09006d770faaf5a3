//! Typed arguments of events: [`Arg`], and how each way has them.
//!
//! By ATrace they are text behind the name; for Perfetto they are encoded.

use crate::message::NameWriter;
use crate::producer::{ArgKey, Encoder};

/// An argument of an event: its name and a value, or a flow.
///
/// In Perfetto's memory it has this type; by ATrace it is text behind the event's name, `, name = value`, and a flow is
/// nothing.
///
/// # Examples
///
/// ```
/// use atrace::{Arg, AtraceTag, atrace_instant_args};
///
/// let args = [Arg::Str("path", "/tmp/image"), Arg::Uint("bytes", 4096)];
/// atrace_instant_args(AtraceTag::App, "opened", &args);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Arg<'a> {
    /// Yes or no.
    Bool(&'a str, bool),
    /// A signed integer.
    Int(&'a str, i64),
    /// An unsigned integer.
    Uint(&'a str, u64),
    /// A number with a fraction.
    Float(&'a str, f64),
    /// A text.
    Str(&'a str, &'a str),
    /// The event is part of a flow: the viewer draws an arrow to it from the event before that has the same number.
    ///
    /// The number is the whole trace's: choose one that no other process does.
    Flow(u64),
}

/// Appends arguments to a name, as text.
pub(crate) fn push(writer: &mut NameWriter<'_>, args: &[Arg<'_>]) {
    for arg in args {
        let (Arg::Bool(name, _)
        | Arg::Int(name, _)
        | Arg::Uint(name, _)
        | Arg::Float(name, _)
        | Arg::Str(name, _)) = *arg
        else {
            continue;
        };
        writer.push_str(", ");
        writer.push_str(name);
        writer.push_str(" = ");
        match *arg {
            Arg::Bool(_, value) => writer.push_str(if value { "true" } else { "false" }),
            Arg::Int(_, value) => writer.push_int(value),
            Arg::Uint(_, value) => writer.push_int(value),
            Arg::Float(_, value) => writer.push_fmt(format_args!("{value:?}")),
            Arg::Str(_, value) => {
                writer.push_str("\"");
                writer.push_str(value);
                writer.push_str("\"");
            }
            Arg::Flow(_) => {}
        }
    }
}

/// Encodes the arguments of an event.
pub(crate) fn encode(encoder: &mut Encoder, args: &[Arg<'_>]) {
    for arg in args {
        match *arg {
            Arg::Bool(name, value) => encoder.scalar(ArgKey::Text(name), value.into()),
            Arg::Int(name, value) => encoder.scalar(ArgKey::Text(name), value.into()),
            Arg::Uint(name, value) => encoder.scalar(ArgKey::Text(name), value.into()),
            Arg::Float(name, value) => encoder.scalar(ArgKey::Text(name), value.into()),
            Arg::Str(name, value) => encoder.str(ArgKey::Text(name), value),
            Arg::Flow(number) => encoder.flow(number),
        }
    }
}
