//! The words of the gate, and the protocol by which threads change them: versioned claims.
//!
//! ```text
//! local     serial, 32 bits | disabled, 1 | claimed, 1 | unused, 2 | tags, 28 bits
//! serial →  the current serial, a word of the property store
//! foreign → enabled tags that somebody else maintains: libcutils' mask if events go through libcutils;
//!           else the tags of Perfetto's sessions once the backend is chosen for each event; else zero
//! ```
//!
//! # Claims
//!
//! Several threads may read the properties at once, and a slow thread must not overwrite the result of a thread that
//! read later. The protocol is optimistic concurrency control with a version number (Kung and Robinson, "On
//! Optimistic Methods for Concurrency Control", 1981):
//!
//! 1. A thread *claims* the local word: it replaces the word by a number that no other claim has.
//! 2. The thread reads the serial and then the properties.
//! 3. The thread publishes the tags by a compare-and-swap, which succeeds only if the word still has the
//!    thread's claim.
//!
//! A later claim makes the earlier thread's publication fail; the result of the later thread is at least as new. While
//! the word is claimed, every event reads the properties itself. No thread waits.
//!
//! # The serial's word
//!
//! The reference `serial` changes at most twice: to the serial of the whole store, and, once the flags property
//! exists, to the serial of that property. The first thread that finds the property claims the local word a second
//! time, and then sets `serial`. Threads with an older claim may have found no property, but they can't publish any
//! more. Threads that claim later find the property.
//!
//! An event may load one word before this change and the other word after it. It then compares words that do not belong
//! together. If the serials in the two words happen to be equal, the event is lost, as if tracing were off. The next
//! event is not lost.

use crate::sync::AtomicRef;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};

pub(crate) const SERIAL_SHIFT: u32 = 32;
pub(crate) const CLAIMED: u64 = 1 << 30;

/// The words that the fast path loads, and the number of claims. The words are in one struct, so that an event computes
/// only one address.
#[repr(align(32))]
pub(crate) struct Gate {
    pub(crate) serial: AtomicRef<AtomicU32>,
    pub(crate) local: AtomicU64,
    pub(crate) foreign: AtomicRef<AtomicU64>,
    /// The number of claims so far, from which the next claim gets its number.
    pub(crate) claims: AtomicU32,
}

/// A serial: a reference to its word, and the value that the word had before the properties were read. The word
/// changes whenever the properties must be read again.
#[derive(Clone, Copy)]
pub(crate) struct Serial {
    /// The word, or `None` if there is no word to load. Without a word nothing can be published, and every
    /// event reads the properties itself.
    pub(crate) word: Option<&'static AtomicU32>,
    pub(crate) value: u32,
    /// Whether this serial belongs to the flags property, rather than to the whole store.
    pub(crate) is_property: bool,
}

impl Gate {
    /// Returns the exclusive-or of the local word and the current serial, and returns the foreign word. The upper half
    /// of the first word is 0 if the serial has not changed.
    #[inline(always)]
    pub(crate) fn look(&self) -> (u64, u64) {
        // Relaxed is enough: the answer "off" reads nothing that depends on this load. The word may lie in memory that is
        // mapped read-only.
        let serial = self.serial.get().load(Ordering::Relaxed);
        let local = self.local.load(Ordering::Acquire) ^ (u64::from(serial) << SERIAL_SHIFT);
        (local, self.foreign.get().load(Ordering::Relaxed))
    }

    /// Claims the local word and returns the claim. The caller then reads the properties, and may publish the result
    /// unless another thread has claimed the word since.
    pub(super) fn claim(&self) -> u64 {
        let number = self.claims.fetch_add(1, Ordering::Relaxed);
        let claim = u64::from(number) << SERIAL_SHIFT | CLAIMED;
        // Acquire and release: a thread that claims later sees all that happened before this claim, so what it finds is at
        // least as new.
        self.local.swap(claim, Ordering::AcqRel);
        claim
    }

    /// Claims the local word, calls `serial` to read the serial and then `find` to read the enabled tags, and
    /// publishes the tags.
    ///
    /// `find` returns two values: the bits to publish, or `None` if they must not be published; and the result for
    /// the caller. `read` returns the result, and whether the bits were published. `nothing` is the word to which the
    /// field `serial` refers at first.
    pub(crate) fn read<T>(
        &self,
        nothing: &'static AtomicU32,
        mut serial: impl FnMut() -> Serial,
        find: impl FnOnce(&Serial) -> (Option<u64>, T),
    ) -> (T, bool) {
        // `begin` and `publish` are functions of their own, so that their variables are not on the stack during `find`. It may
        // be a signal handler's stack.
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
        // Before the local word is set. This is safe: if the reference does not match the local word, every event reads the
        // properties itself. If the reference is to the flags property already, this does nothing.
        let _ = self.serial.replace(nothing, word);
        let found = u64::from(found.value) << SERIAL_SHIFT | bits;
        // Fails if another thread has claimed the word since; what that thread finds is at least as new.
        self.local.compare_exchange(claim, found, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}
