//! The messages of a text trace.

use std::borrow::Cow;

use super::header;

/// A message that was written to a `trace_marker`, as the text trace shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Marker {
    /// The thread's name, or `<...>` if the kernel did not keep it.
    pub task: Vec<u8>,
    /// The thread id.
    pub tid: u32,
    /// The process id, if the option `record-tgid` was on and the kernel kept it.
    pub tgid: Option<u32>,
    /// The CPU that the thread ran on.
    pub cpu: u32,
    /// The timestamp in units of the instance's clock: nanoseconds for all clocks that count time. The text trace
    /// rounds them to microseconds.
    pub timestamp: u64,
    /// The bytes of the message, without the line end.
    pub payload: Vec<u8>,
}

impl Marker {
    /// Returns the message as text; bytes that are not UTF-8 become U+FFFD.
    #[must_use]
    pub fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.payload)
    }

    /// Returns the timestamp in seconds, for clocks that count time.
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        reason = "the text has microseconds, f64 holds those for a century"
    )]
    pub fn seconds(&self) -> f64 {
        self.timestamp as f64 / 1e9
    }
}

/// An iterator over the marker messages of a text trace, in the trace's order.
///
/// The columns before a message have fixed positions, so neither a thread's name nor a message can be mistaken for
/// another column. There is one exception: if a message contains a newline and the text after it looks exactly like
/// an event, that text is returned as an event. Otherwise the further lines belong to the message.
#[derive(Clone, Debug)]
pub struct Markers {
    text: Vec<u8>,
    at: usize,
}

impl Markers {
    /// Parses the text of a `trace` file.
    pub fn parse(text: impl Into<Vec<u8>>) -> Self {
        Self { text: text.into(), at: 0 }
    }
}

impl Iterator for Markers {
    type Item = Marker;

    fn next(&mut self) -> Option<Marker> {
        loop {
            let (header, text) = header::next(&self.text, &mut self.at)?;
            if let Some(payload) = text.strip_prefix(b"tracing_mark_write: ") {
                return Some(Marker {
                    task: header.task.to_vec(),
                    tid: header.tid,
                    tgid: header.tgid,
                    cpu: header.cpu,
                    timestamp: header.timestamp,
                    payload: payload.to_vec(),
                });
            }
        }
    }
}
