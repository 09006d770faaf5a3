//! The text format of ATrace: encodes one event as a message in a buffer on the stack.
//!
//! # Format
//!
//! A message is `KIND|pid|…`, at most 1023 bytes. This is the format of libcutils. Perfetto's systrace importer reads
//! it.
//!
//! # Replacement
//!
//! Texts come from the program and may contain any characters. Bytes that would corrupt the trace are replaced:
//!
//! - 0x00–0x1F and 0x7F become `?`. A newline would forge an event, and a NUL would swallow one.
//! - `|` becomes `/`, except in the name of a begin, because that name extends to the end of the line.
//! - The `<` of `</script>` becomes `?`, because Perfetto takes `</script>` for the end of the trace.
//! - An empty text becomes `?`, except the name of a begin, because Perfetto refuses events with any other empty text.
//!
//! # Truncation
//!
//! A text that is too long is cut at a character boundary. The event's name is cut first. The name of a track is cut
//! only if it would leave no room for one character of the event's name and the longest cookie. This limit is the same
//! for all kinds of events, so the name of a track is the same in all of its events.
//!
//! # Speed
//!
//! Texts rarely need replacements. So a text is copied unchanged while it is scanned for bytes that may need a
//! replacement ([`copy()`]). The text is processed again, byte by byte, only if it has such a byte. The bytes of a text
//! that do not fit into the message are not read.
//!
//! The encoder is inlined into one function for each kind of event. In an unoptimised build such a function would need
//! 7 KiB of stack, more than a signal handler may have. So the functions of the encoder are not inlined in a build with
//! `debug_assertions`.

#![expect(
    unsafe_code,
    reason = "the buffer is not zeroed before use: that would cost more than writing the message"
)]

mod copy;
mod pieces;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

use std::ffi::CStr;
use std::fmt;
use std::mem::MaybeUninit;

use atrace_sys::process::ProcessId;
use atrace_sys::text::cut;

use self::copy::{copy, has_suspect, is_unsafe};
pub use self::pieces::TextBuffer;

/// The maximum length of a message in bytes: the size of libcutils' buffer, 1024 bytes, minus the NUL at its end.
pub(crate) const MESSAGE_MAX: usize = 1023;

/// The number of bytes that stay free after the name of a track: for a `|`, one character of a name, a `|`, and the
/// longest cookie (`-2147483648`).
const BEHIND_TRACK: usize = 1 + 4 + 1 + 11;

/// The kind of a message. Some kinds have a number, with which the message ends.
///
/// All these numbers have 64 bits, so that a `Kind` is passed in registers. Cookies and the values of
/// [`Int`](Self::Int) are in the range of an `i32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Begin,
    End,
    AsyncBegin(i64),
    AsyncEnd(i64),
    TrackBegin(i64),
    TrackEnd(i64),
    Instant,
    TrackInstant,
    Int(i64),
    Int64(i64),
    /// The value of a floating-point counter, as its bits. ATrace has only integers: the value is rounded.
    Float(u64),
}

impl Kind {
    /// Returns the letter that a message of this kind starts with.
    #[inline(always)]
    pub(crate) const fn letter(self) -> u8 {
        match self {
            Self::Begin => b'B',
            Self::End => b'E',
            Self::AsyncBegin(_) => b'S',
            Self::AsyncEnd(_) => b'F',
            Self::TrackBegin(_) => b'G',
            Self::TrackEnd(_) => b'H',
            Self::Instant => b'I',
            Self::TrackInstant => b'N',
            Self::Int(_) | Self::Int64(_) | Self::Float(_) => b'C',
        }
    }

    /// Returns true for the values NaN and infinity, for which ATrace has no number.
    #[inline(always)]
    pub(crate) fn is_dropped(self) -> bool {
        matches!(self, Self::Float(bits) if !f64::from_bits(bits).is_finite())
    }

    #[inline(always)]
    pub(crate) fn number(self) -> Option<i64> {
        match self {
            Self::Begin | Self::End | Self::Instant | Self::TrackInstant => None,
            Self::AsyncBegin(number)
            | Self::AsyncEnd(number)
            | Self::TrackBegin(number)
            | Self::TrackEnd(number)
            | Self::Int(number)
            | Self::Int64(number) => Some(number),
            // `as` saturates: a value beyond the range of i64 becomes the nearest i64.
            Self::Float(bits) => Some(f64::from_bits(bits).round() as i64),
        }
    }
}

/// The bytes of a text that are replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Replacement {
    /// Control characters and `|`.
    ControlsAndBar,
    /// Only control characters, as in the name of a slice's begin.
    Controls,
    /// No bytes: the text is not part of a message.
    Nothing,
}

/// The positions of the track and of the name in a message: the start and the end of each text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Texts {
    track: (u16, u16),
    name: (u16, u16),
}

/// A message: a buffer, and how many bytes of it are used.
pub struct Message {
    /// The bytes of the message, initialised up to `len`. The buffer has one byte more than a message, for
    /// the NUL of a C string.
    buffer: [MaybeUninit<u8>; MESSAGE_MAX + 1],
    len: usize,
    /// Whether the message contains a `<`, which may belong to `</script>`.
    has_angle: bool,
}

impl Message {
    #[cfg_attr(debug_assertions, inline(never))]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn new() -> Self {
        Self { buffer: [const { MaybeUninit::uninit() }; MESSAGE_MAX + 1], len: 0, has_angle: false }
    }

    /// Builds `KIND|pid`, then `|track` and `|name` if given, and `|number` if the kind has a number. Returns the
    /// positions of the track and the name.
    #[cfg_attr(debug_assertions, inline(never))]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn encode(
        &mut self,
        kind: Kind,
        pid: ProcessId,
        track: Option<&str>,
        name: Option<impl WriteName>,
    ) -> Texts {
        let mut texts = Texts::default();
        self.head(kind, pid);
        let mut digits = itoa::Buffer::new();
        let number = kind.number().map(|number| digits.format(number).as_bytes());
        let tail = number.map_or(0, |digits| digits.len() + 1);
        if let Some(track) = track {
            let start = self.len;
            self.text(track, MESSAGE_MAX - BEHIND_TRACK, Replacement::ControlsAndBar);
            if self.len == start {
                self.byte(b'?');
            }
            texts.track = (start as u16, self.len as u16);
            self.byte(b'|');
        }
        if let Some(name) = name {
            let start = self.len;
            let replacement =
                if kind == Kind::Begin { Replacement::Controls } else { Replacement::ControlsAndBar };
            let limit = MESSAGE_MAX - tail;
            let mut writer = NameWriter { first: start, limit, replacement, unchecked: false, message: self };
            name.write(&mut writer);
            if writer.unchecked {
                self.check(start, replacement);
            }
            if kind != Kind::Begin {
                self.fill_empty(start, number.is_none());
            }
            texts.name = (start as u16, self.len as u16);
            if number.is_some() {
                self.byte(b'|');
            }
        } else if number.is_none() {
            self.len -= 1; // `E|pid`: removes the bar of the head, because nothing follows.
        }
        if self.has_angle {
            self.replace_script_end();
        }
        if let Some(number) = number {
            self.raw(number);
        }
        texts
    }

    /// Calls `name` to write a text that is not part of a message, and returns the text. No bytes are replaced. A
    /// text that is longer than a message is cut.
    #[inline(always)]
    pub(crate) fn plain(&mut self, name: impl FnOnce(&mut NameWriter<'_>)) -> &str {
        let (first, limit, replacement) = (NOWHERE, MESSAGE_MAX, Replacement::Nothing);
        name(&mut NameWriter { first, limit, replacement, unchecked: false, message: self });
        self.as_str()
    }

    /// Replaces an empty text at `start` by `?`. If the text is the last one of the line (`last`) and consists of
    /// spaces, `?` replaces its last space, because the reader of the trace trims spaces at the end of a line.
    #[cfg_attr(debug_assertions, inline(never))]
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn fill_empty(&mut self, start: usize, last: bool) {
        if self.len == start {
            self.byte(b'?');
        } else if last && self.bytes().last() == Some(&b' ') {
            self.end_in_ink(start);
        }
    }

    #[cold]
    #[inline(never)]
    fn end_in_ink(&mut self, start: usize) {
        if self.bytes().get(start..).is_some_and(|name| name.iter().all(|&byte| byte == b' ')) {
            self.len -= 1;
            self.byte(b'?');
        }
    }

    /// Replaces the `<` of each `</script>`. Perfetto's reader takes this text, in lower case, for the end of a trace
    /// in HTML, and drops everything after it.
    #[cold]
    #[inline(never)]
    fn replace_script_end(&mut self) {
        const END: &[u8] = b"</script>";
        let mut at = 0;
        while let Some(found) =
            self.bytes().get(at..).and_then(|rest| rest.windows(END.len()).position(|part| part == END))
        {
            at += found;
            if let Some(place) = self.buffer.get_mut(at) {
                place.write(b'?');
            }
        }
    }

    /// Starts the message with `KIND|pid|`.
    #[cfg_attr(debug_assertions, inline(never))]
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn head(&mut self, kind: Kind, pid: ProcessId) {
        let [a, b, id @ ..] = self.buffer.first_chunk_mut::<10>().expect("the buffer is longer");
        a.write(kind.letter());
        b.write(b'|');
        *id = pid.bytes().map(MaybeUninit::new);
        self.len = 2 + pid.len_with_bar();
    }

    #[cfg_attr(debug_assertions, inline(never))]
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn byte(&mut self, byte: u8) {
        if let Some(place) = self.buffer.get_mut(self.len) {
            place.write(byte);
            self.len += 1;
        }
    }

    /// Appends bytes that need no replacement.
    #[cfg_attr(debug_assertions, inline(never))]
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn raw(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.byte(byte);
        }
    }

    /// Appends `text`, in which characters that a message may not contain are replaced. Cuts the text so that the
    /// message does not become longer than `limit`. Returns true if the whole text fitted.
    #[cfg_attr(debug_assertions, inline(never))]
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn text(&mut self, text: &str, limit: usize, replacement: Replacement) -> bool {
        let room = limit.saturating_sub(self.len);
        let (text, whole) = if text.len() <= room { (text, true) } else { (cut(text, room), false) };
        let Some(place) = self.buffer.get_mut(self.len..).and_then(|rest| rest.get_mut(..text.len())) else {
            return false; // Unreachable: `limit` is within the buffer.
        };
        if copy(text.as_bytes(), place, replacement == Replacement::ControlsAndBar) {
            self.has_angle |= replace(text.as_bytes(), place, replacement);
        }
        self.len += text.len();
        whole
    }

    /// Makes the replacements in the text from `start` to the end of the message. This text was appended unchanged.
    #[inline(never)]
    fn check(&mut self, start: usize, replacement: Replacement) {
        let text = self.bytes().get(start..).unwrap_or_default();
        if has_suspect(text, replacement == Replacement::ControlsAndBar) {
            for at in start..self.len {
                let Some(&byte) = self.bytes().get(at) else { break };
                self.has_angle |= byte == b'<';
                if let Some(place) = self.buffer.get_mut(at) {
                    place.write(replaced(byte, replacement));
                }
            }
        }
    }

    /// Returns the bytes of the message.
    #[cfg_attr(debug_assertions, inline(never))]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: each method initialises the bytes before it raises `len` over them, and `len` is within the buffer.
        unsafe { std::slice::from_raw_parts(self.buffer.as_ptr().cast(), self.len) }
    }

    /// Returns the message as text.
    #[inline(always)]
    fn as_str(&self) -> &str {
        // SAFETY: the content is made of ASCII and of strings that were cut between characters. Replacements change only
        // ASCII bytes, into other ASCII bytes. So it is UTF-8.
        unsafe { str::from_utf8_unchecked(self.bytes()) }
    }

    /// Returns the track and the name as C strings. A C string is empty if the message has no such text. The byte
    /// after each text is overwritten by a NUL, until [`restore`](Self::restore) is called.
    #[inline(always)]
    pub(crate) fn c_strings(&mut self, texts: Texts) -> (&CStr, &CStr) {
        self.put_behind(texts, 0);
        (self.c_string(texts.track), self.c_string(texts.name))
    }

    /// Puts back the bytes that [`c_strings`](Self::c_strings) has overwritten, and returns the message, which has
    /// `length` bytes.
    pub(crate) fn restore(&mut self, texts: Texts, length: usize) -> &[u8] {
        self.put_behind(texts, b'|');
        self.len = self.len.min(length);
        self.bytes()
    }

    #[inline(always)]
    fn put_behind(&mut self, texts: Texts, byte: u8) {
        for (start, end) in [texts.track, texts.name] {
            if start > 0
                && let Some(place) = self.buffer.get_mut(usize::from(end))
            {
                place.write(byte);
                self.len = self.len.max(usize::from(end) + 1);
            }
        }
    }

    #[inline(always)]
    fn c_string(&self, (start, end): (u16, u16)) -> &CStr {
        match self.bytes().get(start.into()..=end.into()) {
            // SAFETY: `put_behind` has set the byte at `end` to NUL. The text before it has none, because each NUL was
            // replaced.
            Some(text) if start > 0 => unsafe { CStr::from_bytes_with_nul_unchecked(text) },
            _ => c"",
        }
    }
}

/// Writes `from` to `to` with the replacements. Returns whether `from` has a `<`.
#[cold]
#[inline(never)]
fn replace(from: &[u8], to: &mut [MaybeUninit<u8>], replacement: Replacement) -> bool {
    let mut has_angle = false;
    for (&from, to) in from.iter().zip(to) {
        has_angle |= from == b'<';
        to.write(replaced(from, replacement));
    }
    has_angle
}

/// Returns the replacement of a byte, or the byte itself if it needs no replacement.
#[inline(always)]
fn replaced(byte: u8, replacement: Replacement) -> u8 {
    match byte {
        byte if replacement == Replacement::Nothing => byte,
        b'|' if replacement == Replacement::ControlsAndBar => b'/',
        byte if is_unsafe(byte) => b'?',
        byte => byte,
    }
}

/// Writes the name of an event: directly into its message for ATrace, or into a buffer for Perfetto.
///
/// A long name is cut and, for ATrace, bytes are replaced: see [Names](crate#names). When the message is full, further
/// text is ignored, and the functions of [`fmt::Write`] return an error, so that `write!` of a huge value stops early.
pub struct NameWriter<'a> {
    message: &'a mut Message,
    /// The length of the message at which its name begins. A piece of text that is appended at this length is the
    /// first piece of the name. The first piece is scanned while it is copied, because many names consist of one
    /// piece.
    first: usize,
    /// The maximum length of the message up to the end of its name. When a text is cut, `limit` is set to the current
    /// length, so that no text can follow.
    limit: usize,
    replacement: Replacement,
    /// Whether the name has a piece that was not yet scanned for bytes that must be replaced, or in which the scan
    /// found a byte that may have to be replaced. A formatter writes many small pieces, and scanning each of them costs
    /// several times as much as scanning all of them at the end.
    unchecked: bool,
}

/// A value that writes the name of an event. This is a trait, not a closure, because the functions of a trait can be
/// inlined into each caller.
pub trait WriteName {
    /// Writes the name.
    fn write(self, writer: &mut NameWriter<'_>);
}

impl WriteName for &str {
    #[inline(always)]
    fn write(self, writer: &mut NameWriter<'_>) {
        writer.push_str(self);
    }
}

impl WriteName for &String {
    #[inline(always)]
    fn write(self, writer: &mut NameWriter<'_>) {
        writer.push_str(self);
    }
}

impl<F: FnOnce(&mut NameWriter<'_>)> WriteName for F {
    #[inline(always)]
    fn write(self, writer: &mut NameWriter<'_>) {
        self(writer);
    }
}

/// A value of [`NameWriter::first`] that is longer than any message. With this value, no piece of the name is scanned
/// while it is copied.
const NOWHERE: usize = usize::MAX;

impl NameWriter<'_> {
    /// Appends `text`.
    #[inline(always)]
    pub fn push_str(&mut self, text: &str) {
        if !self.message.text(text, self.limit, self.replacement) {
            self.limit = self.message.len;
        }
    }

    /// Appends an integer in decimal.
    #[inline]
    pub(crate) fn push_int(&mut self, number: impl itoa::Integer) {
        self.push_str(itoa::Buffer::new().format(number));
    }

    /// Returns whether the message is full. Further text is ignored.
    fn is_full(&self) -> bool {
        self.message.len >= self.limit
    }

    /// Appends the text of `value`. If the formatting panics, `<panicked>` replaces the rest of the text, and the
    /// panic is caught: a tracer must not stop its program because a value can't be formatted.
    pub fn push_fmt(&mut self, value: fmt::Arguments<'_>) {
        if let Some(text) = value.as_str() {
            return self.push_str(text);
        }
        // The formatted text usually consists of several pieces, so its first piece is not scanned separately.
        self.first = NOWHERE;
        // An error means that the message is full or that a value's formatting failed. The text written so far stays.
        self.catching(|writer| _ = fmt::Write::write_fmt(writer, value));
    }
}

impl fmt::Debug for NameWriter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NameWriter").field("message", &String::from_utf8_lossy(self.message.bytes())).finish()
    }
}
