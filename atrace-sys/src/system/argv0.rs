//! argv\[0\]: the first string of `/proc/self/cmdline`.

use std::ffi::CStr;

use super::{Mapped, Plain, file};
use crate::word::{OnceRef, offer};

/// The string, padded with zeroes.
struct Argv0([u8; Self::SIZE]);

// SAFETY: zeroes are valid bytes.
unsafe impl Plain for Argv0 {}

impl Argv0 {
    const SIZE: usize = 4096;

    /// Reads the string as libcutils does: at most 4095 bytes and at most one line.
    ///
    /// It is read into a mapping, because a signal handler may ask, whose stack may be small and during which the
    /// heap may be locked.
    fn read() -> Option<Mapped<Self>> {
        Mapped::filled(|Self(text)| {
            let length = file::read_start(c"/proc/self/cmdline", &mut text[..Self::SIZE - 1]);
            let end = text.iter().position(|byte| *byte == 0).unwrap_or(length);
            let end = text[..end].iter().position(|byte| *byte == b'\n').map_or(end, |at| at + 1);
            text[end..].fill(0);
            length > 0
        })
    }
}

/// The string that was read last.
static ARGV0: OnceRef<Argv0> = OnceRef::new();

#[inline(never)]
pub(crate) fn reread() {
    loop {
        let present = ARGV0.get();
        let Some(new) = Argv0::read() else { return };
        if present.is_some_and(|present| present.0 == new.0) {
            return;
        }
        // Only replaces the name that was compared above, so that an older name never replaces a newer one.
        if offer(new, |new| ARGV0.replace(present, new)).is_ok() {
            return;
        }
    }
}

#[inline(never)]
pub(crate) fn read() -> Option<&'static CStr> {
    if ARGV0.get().is_none() {
        reread();
    }
    ARGV0.get().and_then(|Argv0(text)| CStr::from_bytes_until_nul(text).ok())
}
