//! Pieces of text, appended to a message as they are.
//!
//! A formatter brings many small pieces. To look at each for bytes that must be replaced costs several times what it
//! costs to look at all of them at the end, which [`Message::encode`] does where there were any.

use std::fmt;

use atrace_sys::panics::{PANICKED, is_caught};
use atrace_sys::text::{SHORT, as_uninit, put};

use super::copy::copy_short;
use super::{MESSAGE_MAX, Message, NOWHERE, NameWriter, Stays, cut};

impl NameWriter<'_> {
    /// Appends the pieces, one behind the other, as [`push_str`](Self::push_str) would.
    ///
    /// For `atrace-subscriber`, where most are constants, whose lengths the compiler then knows.
    #[doc(hidden)]
    #[cfg_attr(debug_assertions, inline(never))]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn __push_pieces<const N: usize>(&mut self, pieces: [&str; N]) {
        let start = self.message.len;
        // No address space is so large that lengths of pieces add up to 2^64.
        let end = pieces.iter().fold(start as u64, |end, piece| end + piece.len() as u64);
        if end > self.limit as u64 {
            // A copy, so that those of the fast way stay in registers.
            return self.__push_what_fits(&{ pieces });
        }
        self.unchecked = true;
        let mut at = start;
        for piece in pieces {
            // SAFETY: `at + piece.len()` is at most `end`, and so within the buffer: `limit` is at most MESSAGE_MAX.
            let place = unsafe { self.message.buffer.get_unchecked_mut(at..at + piece.len()) };
            put(piece.as_bytes(), place);
            at += piece.len();
        }
        self.message.len = at;
    }

    /// Appends the pieces as far as they fit. Nothing follows what was cut.
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
        // What is rare is elsewhere, and so this is without a frame.
        let start = self.message.len;
        if text.len() >= SHORT || start + text.len() >= self.limit {
            return self.write_long(text);
        }
        // SAFETY: the piece ends below `limit`, and so within the buffer.
        let place = unsafe { self.message.buffer.get_unchecked_mut(start..start + text.len()) };
        if start == self.first {
            // Whether a `|` may stay is asked where there is one.
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

/// Calls `then` with the text that `write` writes, as it is, cut to the length of a message, on the stack; and with what
/// `write` returns.
///
/// For `atrace-subscriber`. What `write` appends by other means than pieces and formatting is replaced as in a message.
#[doc(hidden)]
#[inline(always)]
pub fn __with_text<W, T>(write: impl FnOnce(&mut NameWriter<'_>) -> W, then: impl FnOnce(&str, W) -> T) -> T {
    let mut message = Message::new();
    let written = write(&mut NameWriter {
        message: &mut message,
        first: NOWHERE,
        limit: MESSAGE_MAX,
        stays: Stays::Bar,
        unchecked: false,
    });
    then(message.as_str(), written)
}

/// A text on the stack, of at most the length of a message. Nothing is replaced in it.
///
/// For `atrace-subscriber`.
#[doc(hidden)]
pub struct __Text(Message);

impl Default for __Text {
    #[inline(always)]
    fn default() -> Self {
        Self(Message::new())
    }
}

impl __Text {
    /// Has `write` write it.
    #[inline(always)]
    pub fn write(&mut self, write: impl FnOnce(&mut NameWriter<'_>)) -> &str {
        self.0.plain(write)
    }
}
