//! The wire format: one message, written into a buffer on the stack.
//!
//! A message is `KIND|pid|…`, at most 1023 bytes, and no more than that is ever read of a name. What would
//! corrupt a trace is replaced while copying: bytes 0x00–0x1F and 0x7F become `?` (a newline would forge an
//! event, a NUL swallow one); `|` becomes `/` in every text but the name of a begin, which alone runs to the
//! end of the line. Perfetto takes `</script>` for the end of the trace, so its `<` becomes `?` too; and as
//! it refuses an event with an empty field, other than a begin's name, an empty text is written as `?`. What
//! is too long is cut at a character boundary. The name gives way first; a track only where it leaves no room
//! for one character of any name and any cookie, so that it comes out the same in the begin, the end and the
//! instants of that track.
//!
//! Names that need replacing are rare: they are copied as they are while looking for such a byte ([`copy`]),
//! and only if one was seen gone over again.
//!
//! All of it is inlined into one function for each kind of event. Without optimisation that function would need
//! 7 KiB of stack, more than a signal handler has, so there (`debug_assertions`) its parts stay apart.

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

use self::copy::{copy, has_suspect, is_unsafe};
pub use self::pieces::{__Text, __with_text};

/// The longest message: libcutils' buffer of 1024 bytes less its NUL.
pub(crate) const MESSAGE_MAX: usize = 1023;

/// Bytes kept free behind a track: a bar, one character of a name, a bar and the longest cookie
/// (`-2147483648`).
const BEHIND_TRACK: usize = 1 + 4 + 1 + 11;

/// What a message tells, with the number that stands at its end. (All of one type, so that it is passed in registers:
/// cookies and the values of [`Int`](Self::Int) were an `i32`.)
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
}

impl Kind {
    /// What a message of this kind starts with.
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
            Self::Int(_) | Self::Int64(_) => b'C',
        }
    }

    #[inline(always)]
    const fn number(self) -> Option<i64> {
        match self {
            Self::Begin | Self::End | Self::Instant | Self::TrackInstant => None,
            Self::AsyncBegin(number)
            | Self::AsyncEnd(number)
            | Self::TrackBegin(number)
            | Self::TrackEnd(number)
            | Self::Int(number)
            | Self::Int64(number) => Some(number),
        }
    }
}

/// What of a text may stand where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stays {
    /// What is text, and is no `|`.
    Text,
    /// What is text: the name of a begin.
    Bar,
    /// All: it is no message.
    All,
}

/// Where the texts of a message lie in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Texts {
    track: (u16, u16),
    name: (u16, u16),
}

/// A message being built, then the bytes of it.
pub(crate) struct Message {
    /// Initialised up to `len`. One byte more than a message, for the NUL of a C string.
    buffer: [MaybeUninit<u8>; MESSAGE_MAX + 1],
    len: usize,
    /// A `<` was written: it may be one of `</script>`.
    has_angle: bool,
}

impl Message {
    #[cfg_attr(debug_assertions, inline(never))]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn new() -> Self {
        Self { buffer: [const { MaybeUninit::uninit() }; MESSAGE_MAX + 1], len: 0, has_angle: false }
    }

    /// Builds `KIND|pid`, then `|track`, `|name` as given and the kind's `|number`, and tells where the texts lie.
    #[cfg_attr(debug_assertions, inline(never))]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn encode(
        &mut self,
        kind: Kind,
        pid: ProcessId,
        track: Option<&str>,
        name: Option<impl FnOnce(&mut NameWriter<'_>)>,
    ) -> Texts {
        let mut texts = Texts::default();
        self.head(kind, pid);
        let mut digits = itoa::Buffer::new();
        let number = kind.number().map(|number| digits.format(number).as_bytes());
        let tail = number.map_or(0, |digits| digits.len() + 1);
        if let Some(track) = track {
            let start = self.len;
            self.text(track, MESSAGE_MAX - BEHIND_TRACK, Stays::Text);
            if self.len == start {
                self.byte(b'?');
            }
            texts.track = (start as u16, self.len as u16);
            self.byte(b'|');
        }
        if let Some(name) = name {
            let start = self.len;
            let stays = if kind == Kind::Begin { Stays::Bar } else { Stays::Text };
            let limit = MESSAGE_MAX - tail;
            let mut writer = NameWriter { first: start, limit, stays, unchecked: false, message: self };
            name(&mut writer);
            if writer.unchecked {
                self.check(start, stays);
            }
            if kind != Kind::Begin {
                self.fill_empty(start, number.is_none());
            }
            texts.name = (start as u16, self.len as u16);
            if number.is_some() {
                self.byte(b'|');
            }
        } else if number.is_none() {
            self.len -= 1; // `E|pid`: nothing follows the bar of the head.
        }
        if self.has_angle {
            self.replace_script_end();
        }
        if let Some(number) = number {
            self.raw(number);
        }
        texts
    }

    /// Has `name` write a text that is no message: nothing is replaced in it, and it is cut at the same length.
    pub(crate) fn plain(&mut self, name: impl FnOnce(&mut NameWriter<'_>)) -> &str {
        let (first, limit, stays) = (NOWHERE, MESSAGE_MAX, Stays::All);
        name(&mut NameWriter { first, limit, stays, unchecked: false, message: self });
        self.as_str()
    }

    /// Makes an empty name that starts at `start` a `?`; at the end of the line the reader trims spaces, so
    /// there a name of nothing but spaces is as good as empty.
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

    /// Perfetto's reader takes `</script>`, in lower case, for the end of a trace in HTML, and drops all that
    /// follows.
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

    /// Appends bytes that need no replacing.
    #[cfg_attr(debug_assertions, inline(never))]
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn raw(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.byte(byte);
        }
    }

    /// Appends `text`, replaced and cut so that the message does not grow beyond `limit`; tells whether all
    /// fitted.
    #[cfg_attr(debug_assertions, inline(never))]
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn text(&mut self, text: &str, limit: usize, stays: Stays) -> bool {
        let room = limit.saturating_sub(self.len);
        let (text, whole) = if text.len() <= room { (text, true) } else { (cut(text, room), false) };
        let Some(place) = self.buffer.get_mut(self.len..).and_then(|rest| rest.get_mut(..text.len())) else {
            return false; // Not reached: limit is within the buffer.
        };
        if copy(text.as_bytes(), place, stays == Stays::Text) {
            self.has_angle |= replace(text.as_bytes(), place, stays);
        }
        self.len += text.len();
        whole
    }

    /// Replaces what must be in the text that starts at `start` and was appended as it is.
    #[inline(never)]
    fn check(&mut self, start: usize, stays: Stays) {
        // SAFETY: as in `bytes`.
        let message =
            unsafe { std::slice::from_raw_parts_mut(self.buffer.as_mut_ptr().cast::<u8>(), self.len) };
        let text = message.get_mut(start..).unwrap_or_default();
        if has_suspect(text, stays == Stays::Text) {
            for byte in text {
                self.has_angle |= *byte == b'<';
                *byte = replaced(*byte, stays);
            }
        }
    }

    /// The message.
    #[cfg_attr(debug_assertions, inline(never))]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: every method that raises `len` has initialised the bytes up to it, and `len` is within the
        // buffer.
        unsafe { std::slice::from_raw_parts(self.buffer.as_ptr().cast(), self.len) }
    }

    /// The message, as a text.
    #[inline(always)]
    fn as_str(&self) -> &str {
        // SAFETY: all of it are strings, cut between characters, in which bytes of ASCII may have become others of ASCII.
        unsafe { str::from_utf8_unchecked(self.bytes()) }
    }

    /// The track and the name as C strings (empty where there is none): what stands behind each becomes a
    /// NUL, until [`restore`](Self::restore).
    #[inline(always)]
    pub(crate) fn c_strings(&mut self, texts: Texts) -> (&CStr, &CStr) {
        self.put_behind(texts, 0);
        (self.c_string(texts.track), self.c_string(texts.name))
    }

    /// Makes it the message of `length` bytes again that it was before [`c_strings`](Self::c_strings).
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
            // SAFETY: `put_behind` made the byte at `end` a NUL, and the text before it has none: they were
            // replaced.
            Some(text) if start > 0 => unsafe { CStr::from_bytes_with_nul_unchecked(text) },
            _ => c"",
        }
    }
}

/// Cuts `text` to at most `room` bytes, between characters.
#[inline]
fn cut(text: &str, room: usize) -> &str {
    let mut end = room;
    while !text.is_char_boundary(end) {
        end -= 1; // 0 is a boundary.
    }
    text.get(..end).unwrap_or("")
}

/// Writes `from` to `to`, each byte as it may stand in a message; tells whether there was a `<`.
#[cold]
#[inline(never)]
fn replace(from: &[u8], to: &mut [MaybeUninit<u8>], stays: Stays) -> bool {
    let mut has_angle = false;
    for (&from, to) in from.iter().zip(to) {
        has_angle |= from == b'<';
        to.write(replaced(from, stays));
    }
    has_angle
}

/// The byte as it may stand in a message.
#[inline(always)]
fn replaced(byte: u8, stays: Stays) -> u8 {
    match byte {
        byte if stays == Stays::All => byte,
        b'|' if stays == Stays::Text => b'/',
        byte if is_unsafe(byte) => b'?',
        byte => byte,
    }
}

/// Writes the name of an event straight into its message.
///
/// What is written is escaped and cut as the crate's documentation says; when the message is full, the rest
/// is ignored and [`is_full`](Self::is_full) turns true. As a [`fmt::Write`] it then answers with an error,
/// so that `write!` of a huge value stops early.
pub struct NameWriter<'a> {
    message: &'a mut Message,
    /// Where a piece is the first one of a name, which is looked at while it is copied: many names are one piece.
    first: usize,
    /// The length of the message that the name may fill it up to; lowered to the present one when text was cut.
    limit: usize,
    stays: Stays,
    /// Something was appended as it is, and not looked at or found suspect. Pieces that a formatter brings are small and
    /// many: looking at each costs several times what looking at all of them at the end does.
    unchecked: bool,
}

/// In place of [`NameWriter::first`], where nothing is looked at.
const NOWHERE: usize = usize::MAX;

impl NameWriter<'_> {
    /// Appends `text`.
    #[inline(always)]
    pub fn push_str(&mut self, text: &str) {
        if !self.message.text(text, self.limit, self.stays) {
            self.limit = self.message.len;
        }
    }

    /// Appends an integer in decimal.
    #[inline]
    pub fn push_int(&mut self, number: impl itoa::Integer) {
        self.push_str(itoa::Buffer::new().format(number));
    }

    /// Tells whether the name has no room left: nothing more will be written.
    pub fn is_full(&self) -> bool {
        self.message.len >= self.limit
    }

    /// Appends `value`'s text, and `<panicked>` in place of the rest when formatting it panics.
    ///
    /// A tracer must not take its program down because a value can't be shown.
    pub fn push_fmt(&mut self, value: fmt::Arguments<'_>) {
        if let Some(text) = value.as_str() {
            return self.push_str(text);
        }
        // It is several pieces, as a rule.
        self.first = NOWHERE;
        // An error is the message being full, or a value that gave up: what came out stays.
        self.__catching(|writer| _ = fmt::Write::write_fmt(writer, value));
    }
}

impl fmt::Debug for NameWriter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NameWriter").field("message", &String::from_utf8_lossy(self.message.bytes())).finish()
    }
}
