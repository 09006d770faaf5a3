//! The gate: the check that each event makes first. It determines whether the event's tag may be enabled.
//!
//! # Why
//!
//! Tracing is off nearly always, so an event must cost next to nothing while tracing is off. But other processes switch
//! tracing on and off. So a process may cache the enabled tags only if it has a way to notice a switch.
//!
//! # How it works
//!
//! The properties are memory that every process maps. The property with the enabled tags (the *flags property*) has a
//! *serial*, which changes each time the property is set. The gate compares three words:
//!
//! - the *current serial*, in the property store;
//! - the *local word*: the serial and the enabled tags at the time when the properties were last
//!   read;
//! - the *foreign word*: enabled tags that other code stores, either libcutils or Perfetto's producer.
//!
//! The tag is off if the serials are equal, no thread has claimed the local word in order to read the properties, and
//! neither the local nor the foreign word has the tag's bit set. [`Gate::look`] and [`Mask`] combine the words so that
//! a single test covers all three conditions. The check is inlined into the caller; it makes no call and takes no lock.
//!
//! In all other cases the event leaves the fast path. If the serial has changed, or a thread is reading the properties
//! right now, `refresh.rs` reads them again. So the first event after a switch notices the switch, and no thread polls.
//! (libandroid may notice it a moment later.)
//!
//! A flags property that does not exist yet has no serial. Until the property exists, the gate compares the serial
//! of the whole property store, which changes when a property is added.
//!
//! The gate chooses no backend; `backend.rs` does. But the gate knows which words can be its foreign word: libcutils'
//! mask of tags, or the word with the tags of Perfetto's sessions. In the latter, the bits [`ASK`] and [`COMPARE`] mean
//! that Perfetto's producer must be asked before the tags are valid.
//!
//! # Threading
//!
//! `word.rs` explains how threads publish the tags that they have read. They do so without locks, so a forked child
//! never inherits a held lock.

mod word;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

pub(crate) use self::word::Serial;
use self::word::{CLAIMED, Gate, SERIAL_SHIFT};
use crate::AtraceTag;
use crate::producer::{ASK, COMPARE};
use crate::sync::AtomicRef;

/// The bit of the [local word](Gate::local) which says that `atrace_set_tracing_enabled(false)` has disabled tracing in
/// this process.
pub(crate) const DISABLED_BIT: u64 = 1 << 31;
/// The bits which show that the properties must be read again, in the exclusive-or of the [local word](Gate::local) and
/// the current serial: at least one of these bits is set if the serial has changed, or if a thread has claimed the
/// local word (is reading the properties).
const CHANGED: u64 = 0xffff_ffff << SERIAL_SHIFT | CLAIMED;
const TAGS: u64 = AtraceTag::ValidMask.bits();

/// A serial that never changes. The gate uses this serial in a process in which tracing can't be switched on, and while
/// every event must read the properties.
pub(crate) static NO_SERIAL: AtomicU32 = AtomicU32::new(0);
static NO_TAGS: AtomicU64 = AtomicU64::new(0);

pub(crate) static GATE: Gate = Gate {
    serial: AtomicRef::new(&NO_SERIAL),
    local: AtomicU64::new(CLAIMED),
    foreign: AtomicRef::new(&NO_TAGS),
    claims: AtomicU32::new(0),
};

/// The word with the tags that Perfetto's sessions want. This word is also the gate's [foreign word](Gate::foreign),
/// unless the foreign word is libcutils' mask.
static SESSIONS: AtomicRef<AtomicU64> = AtomicRef::new(&NO_TAGS);

/// Makes `tags` the word with the tags that Perfetto's sessions want and, if `is_foreign` is true, also the gate's
/// [foreign word](Gate::foreign).
pub(crate) fn see_sessions(tags: &'static AtomicU64, is_foreign: bool) {
    SESSIONS.set(tags);
    if is_foreign {
        GATE.foreign.set(tags);
    }
}

/// The result of a check at the gate, if the tag may be enabled. It has the bits that say why: bits of enabled tags, of
/// a serial that has changed, or of a claim (a thread is reading the properties).
#[derive(Clone, Copy, Debug)]
pub(crate) struct GateCheck(u64);

/// Checks whether `tag` may be enabled. `None` means that the tag is certainly off.
#[inline(always)]
pub(crate) fn check(tag: AtraceTag) -> Option<GateCheck> {
    Mask::of(tag).check()
}

/// The bits that the check of a tag tests. A tracer whose tag is not a constant computes these bits once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mask {
    local: u64,
    /// The bits that are tested in the [foreign word](Gate::foreign): only the bits of the tag.
    foreign: u32,
}

impl Mask {
    #[inline(always)]
    pub(crate) const fn of(tag: AtraceTag) -> Self {
        let tags = tag.bits() & TAGS;
        Self { local: CHANGED | tags, foreign: tags as u32 }
    }

    /// Checks whether the tag may be enabled, as [`check`] does.
    #[inline(always)]
    pub(crate) fn check(self) -> Option<GateCheck> {
        let (local, foreign) = GATE.look();
        let found = (local & self.local) | (foreign & u64::from(self.foreign));
        (found != 0).then_some(GateCheck(found))
    }

    /// Returns whether a session of Perfetto's may want one of the tags. Perfetto's producer changes the word of the
    /// sessions' tags when a session begins or ends, without changing a serial.
    #[inline(always)]
    pub(crate) fn is_in_session(self) -> bool {
        SESSIONS.get().load(Ordering::Relaxed) as u32 & self.foreign != 0
    }
}

impl GateCheck {
    /// Returns true if the tag is certainly enabled. Returns false if the properties must be read first.
    #[inline(always)]
    pub(crate) fn is_sure(self) -> bool {
        self.0 & CHANGED == 0
    }
}

/// Returns true only if Perfetto's sessions want at least one of `tags`, and the [local word](Gate::local) enables none
/// of them. The result may be false even if both conditions hold, for example if the [foreign word](Gate::foreign) is
/// libcutils' mask. The caller must have found at the gate that one of the tags may be enabled, because this function
/// does not compare serials.
#[inline(always)]
pub(crate) fn is_only_in_sessions(tags: u64) -> bool {
    let sessions = SESSIONS.get();
    let local = GATE.local.load(Ordering::Acquire);
    let foreign = sessions.load(Ordering::Relaxed);
    std::ptr::eq(GATE.foreign.get(), sessions)
        && local & (CLAIMED | DISABLED_BIT | tags) == 0
        && foreign & ASK == 0
        && foreign & tags != 0
}

/// Returns the enabled tags, or `None` if the properties must be read first.
pub(crate) fn tags() -> Option<AtraceTag> {
    let (local, foreign) = GATE.look();
    (local & CHANGED == 0 && foreign & COMPARE == 0).then(|| tags_of(local, foreign))
}

/// Returns the enabled tags of the [local word](Gate::local), or `None` if the properties must be read first.
pub(crate) fn local_tags() -> Option<AtraceTag> {
    let (local, _) = GATE.look();
    (local & CHANGED == 0).then(|| tags_of(local, 0))
}

/// Makes the next event read the enabled tags again.
pub(crate) fn forget() {
    GATE.claim();
}

/// Returns the serial that was last published in the [local word](Gate::local), and the tags that are enabled in the
/// local word or the [foreign word](Gate::foreign). Returns `None` while a thread has claimed the local word in order
/// to read the properties.
pub(crate) fn published() -> Option<(u32, AtraceTag)> {
    let local = GATE.local.load(Ordering::Acquire);
    let tags = tags_of(local, GATE.foreign.get().load(Ordering::Relaxed));
    (local & CLAIMED == 0).then_some(((local >> SERIAL_SHIFT) as u32, tags))
}

fn tags_of(local: u64, foreign: u64) -> AtraceTag {
    if local & DISABLED_BIT != 0 || foreign & AtraceTag::NotReady.bits() != 0 {
        AtraceTag::NotReady
    } else {
        // If the bit `ASK` is set, the process connects to Perfetto's service at its first event. Until then, the tags
        // of the foreign word are not valid.
        let foreign = if foreign & ASK == 0 { foreign } else { 0 };
        AtraceTag::from_bits_retain((local | foreign) & TAGS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bits_of_the_word_do_not_overlap() {
        assert_eq!(CHANGED, 0xffff_ffff_4000_0000);
        assert_eq!((DISABLED_BIT, CLAIMED, TAGS), (0x8000_0000, 0x4000_0000, 0x0fff_ffff));
        let of = |tag| (Mask::of(tag).local, Mask::of(tag).foreign);
        assert_eq!(of(AtraceTag::App), (CHANGED | 1 << 12, 1 << 12));
        assert_eq!(of(AtraceTag::NotReady), (CHANGED, 0));
    }

    #[test]
    fn a_check_is_sure_where_the_serial_is_that_of_now_and_nobody_claims() {
        assert!(GateCheck(1 << 12).is_sure());
        for changed in [CLAIMED, 1 << 32, 1 << 63, CHANGED] {
            assert!(!GateCheck(changed).is_sure() && !GateCheck(changed | 1 << 12).is_sure(), "{changed:x}");
        }
    }

    #[test]
    fn tags_are_those_of_both_words_unless_disabled() {
        let (app, camera) = (AtraceTag::App.bits(), AtraceTag::Camera.bits());
        assert_eq!(tags_of(app | 7 << 32, camera), AtraceTag::App | AtraceTag::Camera);
        assert_eq!(tags_of(app | 1 << 28, app | 1 << 40), AtraceTag::App);
        assert_eq!(tags_of(app | DISABLED_BIT, camera), AtraceTag::NotReady);
        assert_eq!(tags_of(app, camera | AtraceTag::NotReady.bits()), AtraceTag::NotReady);
    }
}
