//! Reads the messages in a trace that the kernel prints as text.
//!
//! # Where an event begins
//!
//! The kernel writes a thread's name unchanged into a column of 16 bytes. A name may contain a newline, which ends a
//! line but not an event. A name could also imitate the beginning of an event.
//!
//! An event is recognized by its whole header. The kernel writes everything that follows the name, up to the message,
//! in columns. A name of at most 15 bytes is too short to imitate these columns. So a name can't be mistaken for the
//! beginning of an event, and the parser does not assume that an event is one line.

use std::borrow::Cow;

/// A message that was written to a `trace_marker`, as the text trace shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Marker {
    /// The name of the thread, or `<...>` if the kernel has not stored it.
    pub task: Vec<u8>,
    /// The thread id.
    pub tid: u32,
    /// The process id, if the option `record-tgid` was on and the kernel has stored it.
    pub tgid: Option<u32>,
    /// The CPU on which the thread ran.
    pub cpu: u32,
    /// The timestamp in units of the instance's clock: nanoseconds for `boot`, `mono` and most other clocks. In the
    /// text of a trace, nanoseconds are rounded to microseconds.
    pub timestamp: u64,
    /// The bytes of the message, without the line feed at its end.
    pub payload: Vec<u8>,
}

impl Marker {
    /// Returns the message as text. Bytes that are not UTF-8 become U+FFFD.
    #[must_use]
    pub fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.payload)
    }
}

/// An iterator over the marker messages of a text trace, in the trace's order.
///
/// The columns before a message have a fixed form, so neither a thread's name nor a message can be mistaken for another
/// column. There are two exceptions, for messages that contain a newline: text after the newline that looks exactly
/// like an event is returned as an event, and a line that looks like a remark of the kernel ends the message. All other
/// lines belong to the message.
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
            let (header, text) = next(&self.text, &mut self.at)?;
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

/// The header of an event: `TASK-PID [(TGID)] [CPU] flags timestamp: `.
pub(crate) struct Header<'a> {
    /// The name of the thread.
    pub(crate) task: &'a [u8],
    pub(crate) tid: u32,
    pub(crate) tgid: Option<u32>,
    pub(crate) cpu: u32,
    pub(crate) timestamp: u64,
    /// The header's length in bytes.
    pub(crate) len: usize,
}

impl<'a> Header<'a> {
    /// The width of the name's column in bytes. A name has at most 15 bytes.
    pub(crate) const TASK: usize = 16;

    /// Parses the header at the start of `text`.
    pub(crate) fn parse(text: &'a [u8]) -> Option<Self> {
        let (task, rest) = text.split_at_checked(Self::TASK)?;
        let task = spaces(task.strip_prefix(b" ")?);
        let mut rest = rest.strip_prefix(b"-")?;
        let before = rest.len();
        let tid = number(&mut rest)?;
        // The thread id is padded to seven columns (to five columns before Linux 5.10), and a space follows.
        let digits = before - rest.len();
        let padding = rest.len() - spaces(rest).len();
        if ![7_usize, 5].iter().any(|width| padding == width.saturating_sub(digits) + 1) {
            return None;
        }
        let mut tgid = None;
        rest = spaces(rest);
        if let Some(inner) = rest.strip_prefix(b"(") {
            rest = spaces(inner);
            tgid = number(&mut rest);
            if tgid.is_none() {
                rest = rest.get(rest.iter().take_while(|&&byte| byte == b'-').count()..)?;
            }
            rest = spaces(rest.strip_prefix(b")")?);
        }
        rest = rest.strip_prefix(b"[")?;
        let cpu = number(&mut rest)?;
        rest = spaces(rest.strip_prefix(b"] ")?);
        // The flags, which are absent if the option `irq-info` is off.
        let word = rest.iter().position(|&byte| byte == b' ' || byte == b'\n')?;
        if word > 0 && rest.get(word - 1) != Some(&b':') {
            rest = spaces(rest.get(word..)?);
        }
        let whole = number::<u64>(&mut rest)?;
        let timestamp = match rest.strip_prefix(b".") {
            Some(fraction) => {
                let (mut micros, after) = fraction.split_at_checked(6)?;
                rest = after;
                let value = number::<u64>(&mut micros).filter(|_| micros.is_empty())?;
                whole.checked_mul(1_000_000)?.checked_add(value)?.checked_mul(1_000)?
            }
            None => whole,
        };
        rest = rest.strip_prefix(b": ")?;
        Some(Self { task, tid, tgid, cpu, timestamp, len: text.len() - rest.len() })
    }
}

/// Returns the header of the first event that begins at or after `at`, and the rest of this event without the line feed
/// at its end. Moves `at` to the end of the event. An event ends where the next event begins, or where the kernel
/// inserts a remark.
pub(crate) fn next<'a>(text: &'a [u8], at: &mut usize) -> Option<(Header<'a>, &'a [u8])> {
    loop {
        let rest = text.get(*at..).filter(|rest| !rest.is_empty())?;
        let Some(header) = Header::parse(rest) else {
            *at += line(rest).len();
            continue;
        };
        let start = *at + header.len;
        *at = start + line(text.get(start..)?).len();
        while let Some(rest) = text.get(*at..).filter(|rest| !rest.is_empty()) {
            if Header::parse(rest).is_some() || is_remark(without_end(line(rest))) {
                break;
            }
            *at += line(rest).len();
        }
        return Some((header, without_end(text.get(start..*at)?)));
    }
}

/// Returns the first line, including its line feed.
fn line(text: &[u8]) -> &[u8] {
    text.split_inclusive(|&byte| byte == b'\n').next().unwrap_or_default()
}

fn without_end(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\n").unwrap_or(line)
}

/// Returns whether this line looks like a remark that the kernel writes between events: that a CPU's part of the buffer
/// starts, or that events were lost.
fn is_remark(line: &[u8]) -> bool {
    line.starts_with(b"##### CPU ") || (line.starts_with(b"CPU:") && line.ends_with(b" EVENTS]"))
}

/// Returns the bytes after the leading spaces.
fn spaces(bytes: &[u8]) -> &[u8] {
    bytes.get(bytes.iter().take_while(|&&byte| byte == b' ').count()..).unwrap_or_default()
}

/// Removes the decimal number at the start of `bytes`, and returns the number.
fn number<T: std::str::FromStr>(bytes: &mut &[u8]) -> Option<T> {
    let digits = bytes.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (number, rest) = bytes.split_at_checked(digits)?;
    let number = std::str::from_utf8(number).ok()?.parse().ok()?;
    *bytes = rest;
    Some(number)
}
