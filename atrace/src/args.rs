//! Typed arguments of events ([`Arg`]), as text for ATrace and encoded for Perfetto.

use crate::message::NameWriter;
use crate::producer::{self, ArgKey, Encoder, Put};

/// An argument of an event: a name and a value, or a flow (the number of an arrow between events).
///
/// For Perfetto, the value keeps its type. For ATrace's backends, the value becomes text after the event's name, in the
/// form `, name = value` (a string in quotation marks); a flow is left out.
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
    /// A boolean.
    Bool(&'a str, bool),
    /// A signed integer.
    Int(&'a str, i64),
    /// An unsigned integer.
    Uint(&'a str, u64),
    /// A floating-point number.
    Float(&'a str, f64),
    /// A text.
    Str(&'a str, &'a str),
    /// Makes the event part of a flow: the viewer draws an arrow to this event from the previous event with the same
    /// number.
    ///
    /// All processes in a trace share the flow numbers, so choose a number that no other process uses.
    Flow(u64),
}

/// The arguments of an event, which can be written as text (for ATrace) and encoded (for Perfetto). They are passed as
/// a trait object, so that a program without arguments does not contain the code that formats and encodes them.
pub(crate) trait Arguments {
    /// Appends the arguments to a name as text.
    fn push(&self, writer: &mut NameWriter<'_>);

    /// Encodes the arguments for Perfetto.
    fn encode(&self, encoder: &mut Encoder);

    /// Encodes the arguments for Perfetto as [`encode`](Self::encode) does, but with texts of up to 64 KiB and any number
    /// of arguments, and passes the bytes to `put`.
    fn put(&self, put: &mut Put<'_>);
}

impl Arguments for &[Arg<'_>] {
    fn push(&self, writer: &mut NameWriter<'_>) {
        for arg in *self {
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

    fn encode(&self, encoder: &mut Encoder) {
        for arg in *self {
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

    fn put(&self, put: &mut Put<'_>) {
        for arg in *self {
            match *arg {
                Arg::Bool(name, value) => producer::put_scalar(name, value.into(), put),
                Arg::Int(name, value) => producer::put_scalar(name, value.into(), put),
                Arg::Uint(name, value) => producer::put_scalar(name, value.into(), put),
                Arg::Float(name, value) => producer::put_scalar(name, value.into(), put),
                Arg::Str(name, value) => producer::put_text(name, value, put),
                Arg::Flow(number) => put(&producer::flow(number)),
            }
        }
    }
}
