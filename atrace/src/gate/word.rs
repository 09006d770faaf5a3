//! The words that the fast path compares, and who may change them: by claims.
//!
//! ```text
//! local     serial, 32 bits | parked, 1 | claimed, 1 | unused, 2 | tags, 28 bits
//! serial →  the serial now: a word of the property store
//! foreign → the tags of libcutils, where events go through it; else a zero
//! ```
//!
//! Who finds out what is enabled *claims* the local word first, with a number that no other thread has, and
//! publishes what it found only where its claim still stands: a slower one can't overwrite what a later one
//! found. While the word is claimed, every event finds out for itself. Nobody waits.
//!
//! `serial` changes twice at most: to the serial of the whole store, then, once the flags property exists, to
//! that of the property. Who finds the property first claims a second time and sets it within that claim: of
//! those who claimed before, and perhaps found none, nobody can publish any more; who claims later finds it. (An
//! event that is between its two loads at this one moment compares words that do not belong together. It is
//! told "off" wrongly if they are equal by chance, which the next one is not.)

use crate::sync::AtomicRef;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};

pub(crate) const SERIAL_SHIFT: u32 = 32;
pub(crate) const CLAIMED: u64 = 1 << 30;

/// What the fast path loads, in one place: its address is computed once.
#[repr(align(32))]
pub(crate) struct Gate {
    pub(crate) serial: AtomicRef<AtomicU32>,
    pub(crate) local: AtomicU64,
    pub(crate) foreign: AtomicRef<AtomicU64>,
    /// How many claims there were.
    pub(crate) claims: AtomicU32,
}

/// A serial: its word, which changes when what was found no longer holds, and its value before that was found.
#[derive(Clone, Copy)]
pub(crate) struct Serial {
    /// None where it can't be loaded: then the claim stays, and every event finds out for itself.
    pub(crate) word: Option<&'static AtomicU32>,
    pub(crate) value: u32,
    /// It is that of the flags property, not of something that says when to look for it.
    pub(crate) is_property: bool,
}

impl Gate {
    /// The local word, its serial zero if it is that of now, and the foreign one.
    #[inline(always)]
    pub(crate) fn look(&self) -> (u64, u64) {
        // Relaxed: the word may lie in memory mapped read-only, and "off" reads nothing that depends on it.
        let serial = self.serial.get().load(Ordering::Relaxed);
        let local = self.local.load(Ordering::Acquire) ^ (u64::from(serial) << SERIAL_SHIFT);
        (local, self.foreign.get().load(Ordering::Relaxed))
    }

    /// Claims the local word: what is found from now on may be published in place of the claim, unless another
    /// one follows.
    pub(super) fn claim(&self) -> u64 {
        let number = self.claims.fetch_add(1, Ordering::Relaxed);
        let claim = u64::from(number) << SERIAL_SHIFT | CLAIMED;
        // Acquire, release: who claims later sees what was done before this, and so finds what is as new.
        self.local.swap(claim, Ordering::AcqRel);
        claim
    }

    /// Has `serial` read the serial and then `find` what is enabled: the bits to be published, if they may be, and
    /// the answer. Returns the answer, and whether it was published. `nothing` is the serial's word at
    /// first.
    pub(crate) fn read<T>(
        &self,
        nothing: &'static AtomicU32,
        mut serial: impl FnMut() -> Serial,
        find: impl FnOnce(&Serial) -> (Option<u64>, T),
    ) -> (T, bool) {
        // In three steps: what the first and the last need is not on the stack, perhaps a signal handler's, of the second.
        let (claim, serial) = self.begin(&mut serial);
        let (bits, answer) = find(&serial);
        let is_published = bits.is_some_and(|bits| self.publish(nothing, claim, &serial, bits));
        (answer, is_published)
    }

    #[inline(never)]
    fn begin(&self, read: &mut dyn FnMut() -> Serial) -> (u64, Serial) {
        let mut claim = self.claim();
        let mut serial = read();
        if let Serial { word: Some(word), is_property: true, .. } = serial
            && !std::ptr::eq(self.serial.get(), word)
        {
            claim = self.claim();
            let mut present = self.serial.get();
            while let Err(other) = self.serial.replace(present, word) {
                present = other;
            }
            serial = read();
        }
        (claim, serial)
    }

    #[inline(never)]
    fn publish(&self, nothing: &'static AtomicU32, claim: u64, found: &Serial, bits: u64) -> bool {
        let Some(word) = found.word else { return false };
        // First: a serial that is not that of the local word has every event come here, too. That of the flags property
        // was set already, and stays.
        let _ = self.serial.replace(nothing, word);
        let found = u64::from(found.value) << SERIAL_SHIFT | bits;
        // Not where another thread claimed it since: what that one finds is as new.
        self.local.compare_exchange(claim, found, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}
