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
//! If another thread claims the word later, the publication of the earlier thread fails. Nothing is lost by this,
//! because the later thread's result is at least as new. While the word is claimed, every event reads the properties
//! itself. No thread waits.
//!
//! # The serial's word
//!
//! The reference `serial` changes at most twice: to the serial of the whole store, and, once the flags property
//! (`debug.atrace.tags.enableflags`) exists, to the serial of this property. The first thread that finds the property
//! claims the local word a second time, and then sets `serial`. Threads with an older claim may not have found the
//! property, but they can't publish any more. Threads that claim the word later find the property.
//!
//! An event may load one of the two words (the current serial and the local word) before this change, and the other
//! word after it. Then it compares words that do not belong together. If the serials in the two words happen to be
//! equal, the event is lost, as if tracing were off. The next event is not lost.

use crate::sync::AtomicRef;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};

pub(crate) const SERIAL_SHIFT: u32 = 32;
pub(crate) const CLAIMED: u64 = 1 << 30;

/// The words that the fast path loads, and the number of claims. The words are in one struct, so that an event computes
/// only one address.
#[repr(align(32))]
pub(crate) struct Gate {
    pub(crate) serial: AtomicRef<AtomicU32>,
    /// The *local word*: the serial and the enabled tags when the properties were last read, or a thread's claim.
    pub(crate) local: AtomicU64,
    /// The *foreign word*: enabled tags that libcutils or Perfetto's producer stores.
    pub(crate) foreign: AtomicRef<AtomicU64>,
    /// The number of times that a thread has claimed the local word. The next claim gets this number.
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
    /// Whether this serial belongs to the property `debug.atrace.tags.enableflags` (the flags property), rather than to
    /// the whole property store.
    pub(crate) is_property: bool,
}

impl Gate {
    /// Returns two words: the exclusive-or of the [local word](Self::local) and the current serial, and the [foreign
    /// word](Self::foreign). The upper half of the exclusive-or is 0 if the serial has not changed.
    #[inline(always)]
    pub(crate) fn look(&self) -> (u64, u64) {
        // Relaxed is enough: if the tag is off, the event reads nothing that depends on this load. The serial may lie
        // in memory that is mapped read-only.
        let serial = self.serial.get().load(Ordering::Relaxed);
        let local = self.local.load(Ordering::Acquire) ^ (u64::from(serial) << SERIAL_SHIFT);
        (local, self.foreign.get().load(Ordering::Relaxed))
    }

    /// Claims the [local word](Self::local) for the calling thread, and returns the claim. The caller then reads the
    /// properties, and may publish the result unless another thread has claimed the word since.
    pub(super) fn claim(&self) -> u64 {
        let number = self.claims.fetch_add(1, Ordering::Relaxed);
        let claim = u64::from(number) << SERIAL_SHIFT | CLAIMED;
        // Acquire and release: a thread that claims later sees all that happened before this claim, so its result is at
        // least as new.
        self.local.swap(claim, Ordering::AcqRel);
        claim
    }

    /// Claims the [local word](Self::local), calls `serial` to read the serial and then `find` to read the enabled
    /// tags, and publishes the tags.
    ///
    /// `find` returns two values: the bits to publish, or `None` if they must not be published; and the result for the
    /// caller. `read` returns the result, and whether the bits were published. `nothing` is the word to which the field
    /// `serial` refers initially.
    pub(crate) fn read<T>(
        &self,
        nothing: &'static AtomicU32,
        mut serial: impl FnMut() -> Serial,
        find: impl FnOnce(&Serial) -> (Option<u64>, T),
    ) -> (T, bool) {
        // `begin` and `publish` are functions of their own, so that their variables are not on the stack during `find`.
        // The stack may be that of a signal handler, which is small.
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
        // Sets the reference before the local word. This order is safe: as long as the serial does not match the local
        // word, every event reads the properties itself. If the reference already leads to the flags property, this
        // does nothing.
        let _ = self.serial.replace(nothing, word);
        let found = u64::from(found.value) << SERIAL_SHIFT | bits;
        // Fails if another thread has claimed the word since; the result of that thread is at least as new.
        self.local.compare_exchange(claim, found, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}
