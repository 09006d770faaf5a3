//! Appends pieces of text to a message unchanged. Bytes that must be replaced are replaced later.
//!
//! A formatter writes many small pieces. Scanning each of them for bytes that must be replaced would cost several
//! times as much as scanning the whole name at its end. So the functions here set [`NameWriter::unchecked`], and
//! [`Message::encode`] scans the name. (Only `write_str` scans the first piece of a name while it copies that piece.)

use std::fmt;

use atrace_sys::panics::{PANICKED, is_caught};
use atrace_sys::text::{SHORT, as_uninit, cut, put};

use super::copy::copy_short;
use super::{Message, NameWriter};

impl NameWriter<'_> {
    /// Appends the pieces one after the other, as [`push_str`](Self::push_str) does with each.
    ///
    /// This is fast for constant texts: the function is inlined, and the compiler knows the lengths.
    #[cfg_attr(debug_assertions, inline(never))]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn push_pieces<const N: usize>(&mut self, pieces: [&str; N]) {
        let start = self.message.len;
        // No overflow: the pieces are in memory, so their lengths add up to far less than 2^64.
        let end = pieces.iter().fold(start as u64, |end, piece| end + piece.len() as u64);
        if end > self.limit as u64 {
            // Passes a copy, so that the pieces of the fast path stay in registers.
            return self.push_what_fits(&{ pieces });
        }
        self.unchecked = true;
        let mut at = start;
        for piece in pieces {
            // SAFETY: `at + piece.len()` is at most `end`. `end` is at most `limit`, which is at most MESSAGE_MAX, so this is
            // within the buffer.
            let place = unsafe { self.message.buffer.get_unchecked_mut(at..at + piece.len()) };
            put(piece.as_bytes(), place);
            at += piece.len();
        }
        self.message.len = at;
    }

    /// Appends the pieces one after the other until the message is full. The last piece may be cut; no piece after it
    /// is appended.
    #[inline(never)]
    pub(super) fn push_what_fits(&mut self, pieces: &[&str]) {
        self.unchecked = true;
        for piece in pieces {
            let start = self.message.len;
            let room = self.limit.saturating_sub(start);
            let fits = piece.len() <= room;
            let part = if fits { piece } else { cut(piece, room) };
            if let Some(place) = self.message.buffer.get_mut(start..start + part.len()) {
                place.copy_from_slice(as_uninit(part.as_bytes()));
                self.message.len += part.len();
            }
            if !fits {
                self.limit = self.message.len;
            }
        }
    }

    /// Calls `format`, and appends `<panicked>` if it panics.
    #[inline(always)]
    pub(super) fn catching(&mut self, format: impl FnOnce(&mut Self)) {
        if is_caught(|| format(self)) {
            self.push_what_fits(&[PANICKED]);
        }
    }

    #[inline(never)]
    fn write_long(&mut self, text: &str) -> fmt::Result {
        self.push_pieces([text]);
        if self.is_full() { Err(fmt::Error) } else { Ok(()) }
    }

    /// Returns the length in bytes of the message that was written so far, including the part before the name.
    #[inline(always)]
    pub fn position(&self) -> usize {
        self.message.len
    }
}

impl fmt::Write for NameWriter<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // Rare cases are in another function, so this one needs no stack frame.
        let start = self.message.len;
        if text.len() >= SHORT || start + text.len() >= self.limit {
            return self.write_long(text);
        }
        // SAFETY: the piece ends below `limit`, which is at most MESSAGE_MAX, so it is within the buffer.
        let place = unsafe { self.message.buffer.get_unchecked_mut(start..start + text.len()) };
        if start == self.first {
            // Here, a `|` counts as a byte that may have to be replaced. The later scan of the whole name decides
            // whether the `|` may stay.
            if copy_short(text.as_bytes(), place, true) {
                self.unchecked = true;
            }
        } else {
            self.unchecked = true;
            put(text.as_bytes(), place);
        }
        self.message.len = start + text.len();
        Ok(())
    }
}

/// A buffer on the stack for a text of at most 1023 bytes, the maximum length of a message. No bytes of the text are
/// replaced.
pub struct TextBuffer(Message);

impl Default for TextBuffer {
    #[inline(always)]
    fn default() -> Self {
        Self(Message::new())
    }
}

impl TextBuffer {
    /// Calls `write` to write the text, and returns the text. A second call appends to the text of the first call.
    #[inline(always)]
    pub fn write(&mut self, write: impl FnOnce(&mut NameWriter<'_>)) -> &str {
        self.0.plain(write)
    }
}
