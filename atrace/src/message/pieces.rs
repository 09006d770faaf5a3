//! Appends pieces of text to a message unchanged; replacements are made later.
//!
//! A formatter writes many small pieces. Scanning each of them for bytes that must be replaced would cost several times as much
//! as scanning the whole name at its end. So pieces set [`NameWriter::unchecked`], and [`Message::encode`] scans the name.

use std::fmt;

use atrace_sys::panics::{PANICKED, is_caught};
use atrace_sys::text::{SHORT, as_uninit, put};

use super::copy::copy_short;
use super::{MESSAGE_MAX, Message, NOWHERE, NameWriter, Replacement, cut};

impl NameWriter<'_> {
    /// Appends the pieces one after the other, as [`push_str`](Self::push_str) does with each.
    ///
    /// For `atrace-subscriber`: most of its pieces are constants, whose lengths the compiler knows here.
    #[doc(hidden)]
    #[cfg_attr(debug_assertions, inline(never))]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn __push_pieces<const N: usize>(&mut self, pieces: [&str; N]) {
        let start = self.message.len;
        // No overflow: the pieces are in memory, so their lengths add up to far less than 2^64.
        let end = pieces.iter().fold(start as u64, |end, piece| end + piece.len() as u64);
        if end > self.limit as u64 {
            // A copy, so that the pieces of the fast path stay in registers.
            return self.__push_what_fits(&{ pieces });
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

    /// Appends the pieces as far as they fit. After a piece that was cut, nothing more is appended.
    #[doc(hidden)]
    #[inline(never)]
    pub fn __push_what_fits(&mut self, pieces: &[&str]) {
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
    #[doc(hidden)]
    #[inline(always)]
    pub fn __catching(&mut self, format: impl FnOnce(&mut Self)) {
        if is_caught(|| format(self)) {
            self.__push_what_fits(&[PANICKED]);
        }
    }

    #[inline(never)]
    fn write_long(&mut self, text: &str) -> fmt::Result {
        self.__push_pieces([text]);
        if self.is_full() { Err(fmt::Error) } else { Ok(()) }
    }

    /// The length of the message up to here.
    #[doc(hidden)]
    #[inline(always)]
    pub fn __len(&self) -> usize {
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
            // A `|` counts as suspect here. Whether it may stay is decided in the second look.
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

/// Calls `write` to write a text on the stack, cut at the length of a message. Then calls `then` with the text and with the
/// value that `write` returned.
///
/// For `atrace-subscriber`. Pieces and formatted values are not changed; text by other functions of the writer gets the
/// replacements of a message.
#[doc(hidden)]
#[inline(always)]
pub fn __with_text<W, T>(write: impl FnOnce(&mut NameWriter<'_>) -> W, then: impl FnOnce(&str, W) -> T) -> T {
    let mut message = Message::new();
    let written = write(&mut NameWriter {
        message: &mut message,
        first: NOWHERE,
        limit: MESSAGE_MAX,
        replacement: Replacement::Controls,
        unchecked: false,
    });
    then(message.as_str(), written)
}

/// A text on the stack, at most as long as a message, without replacements. For `atrace-subscriber`.
#[doc(hidden)]
pub struct __Text(Message);

impl Default for __Text {
    #[inline(always)]
    fn default() -> Self {
        Self(Message::new())
    }
}

impl __Text {
    /// Calls `write` to write the text, and returns it.
    #[inline(always)]
    pub fn write(&mut self, write: impl FnOnce(&mut NameWriter<'_>)) -> &str {
        self.0.plain(write)
    }
}
