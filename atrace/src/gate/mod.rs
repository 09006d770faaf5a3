//! "Is it on?", answered by three loads and a branch, inlined where an event is written.
//!
//! Properties are memory that every process maps, and the flags property has a *serial* that changes whenever
//! it is set. The gate keeps, in one word, the serial it last read the properties at and the tags it found
//! then, so that one comparison tells both that nothing changed and that the tag is off: see `word.rs`.
//!
//! Anything else than "same serial, not claimed, bit clear" leaves the fast path: `refresh.rs` then reads the
//! properties again. So the first event after a switch notices it, without an interval or a stale answer. A flags
//! property that does not exist yet has no serial; then `serial` is that of the whole store, which changes when
//! the property appears.
//!
//! Nothing here waits or locks, so a child forked in between finds nothing locked.

mod word;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

pub(crate) use self::word::Serial;
use self::word::{CLAIMED, Gate, SERIAL_SHIFT};
use crate::AtraceTag;
use crate::producer::ASK;
use crate::sync::AtomicRef;

/// Tracing was disabled for this process by `atrace_set_tracing_enabled(false)`.
pub(crate) const PARKED: u64 = 1 << 31;
/// The bits that are set, after the serial of now was subtracted bit by bit, where the tags are not known.
const CHANGED: u64 = 0xffff_ffff << SERIAL_SHIFT | CLAIMED;
const TAGS: u64 = AtraceTag::ValidMask.bits();

/// The serial where there is none: of processes that can't be switched on, or of a word that stays claimed.
pub(crate) static NO_SERIAL: AtomicU32 = AtomicU32::new(0);
static NO_TAGS: AtomicU64 = AtomicU64::new(0);

pub(crate) static GATE: Gate = Gate {
    serial: AtomicRef::new(&NO_SERIAL),
    local: AtomicU64::new(CLAIMED),
    foreign: AtomicRef::new(&NO_TAGS),
    claims: AtomicU32::new(0),
};

/// The bits that were found: of the tags, if they are known, and of a serial that changed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Glance(u64);

/// Looks whether `tag` may be enabled; None, "no", is exact.
#[inline(always)]
pub(crate) fn glance(tag: AtraceTag) -> Option<Glance> {
    Mask::of(tag).glance()
}

/// The bits that a question about a tag is about; worth keeping where the tag is no constant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mask {
    local: u64,
    /// The tags alone.
    foreign: u32,
}

impl Mask {
    #[inline(always)]
    pub(crate) const fn of(tag: AtraceTag) -> Self {
        let tags = tag.bits() & TAGS;
        Self { local: CHANGED | tags, foreign: tags as u32 }
    }

    /// As [`glance`].
    #[inline(always)]
    pub(crate) fn glance(self) -> Option<Glance> {
        let (local, foreign) = GATE.look();
        let found = (local & self.local) | (foreign & u64::from(self.foreign));
        (found != 0).then_some(Glance(found))
    }
}

impl Glance {
    /// Tells whether the tag is enabled for sure, rather than the tags not known.
    #[inline(always)]
    pub(crate) fn is_sure(self) -> bool {
        self.0 & CHANGED == 0
    }
}

/// Whether one of the tags is enabled by `word`, the foreign one, alone; after it was found that one is enabled. False may be
/// wrong.
#[inline(always)]
pub(crate) fn is_by(word: &'static AtomicU64, tags: u64) -> bool {
    let local = GATE.local.load(Ordering::Acquire);
    let foreign = word.load(Ordering::Relaxed);
    std::ptr::eq(GATE.foreign.get(), word)
        && local & (CLAIMED | PARKED | tags) == 0
        && foreign & ASK == 0
        && foreign & tags != 0
}

/// The tags enabled now; None where they are not known.
pub(crate) fn tags() -> Option<AtraceTag> {
    let (local, foreign) = GATE.look();
    (local & CHANGED == 0).then(|| tags_of(local, foreign))
}

/// The tags that the local word has; None where they are not known.
pub(crate) fn local_tags() -> Option<AtraceTag> {
    let (local, _) = GATE.look();
    (local & CHANGED == 0).then(|| tags_of(local, 0))
}

/// Has the next event find out anew which tags are enabled.
pub(crate) fn forget() {
    GATE.claim();
}

/// The serial and the tags that were published last; None while somebody is finding out.
pub(crate) fn published() -> Option<(u32, AtraceTag)> {
    let local = GATE.local.load(Ordering::Acquire);
    let tags = tags_of(local, GATE.foreign.get().load(Ordering::Relaxed));
    (local & CLAIMED == 0).then_some(((local >> SERIAL_SHIFT) as u32, tags))
}

fn tags_of(local: u64, foreign: u64) -> AtraceTag {
    if local & PARKED != 0 || foreign & AtraceTag::NotReady.bits() != 0 {
        AtraceTag::NotReady
    } else {
        // A child of fork that is still to connect to Perfetto's service says nothing of its tags.
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
        assert_eq!((PARKED, CLAIMED, TAGS), (0x8000_0000, 0x4000_0000, 0x0fff_ffff));
        let of = |tag| (Mask::of(tag).local, Mask::of(tag).foreign);
        assert_eq!(of(AtraceTag::App), (CHANGED | 1 << 12, 1 << 12));
        assert_eq!(of(AtraceTag::NotReady), (CHANGED, 0));
    }

    #[test]
    fn a_glance_is_sure_where_the_serial_is_that_of_now_and_nobody_claims() {
        assert!(Glance(1 << 12).is_sure());
        for changed in [CLAIMED, 1 << 32, 1 << 63, CHANGED] {
            assert!(!Glance(changed).is_sure() && !Glance(changed | 1 << 12).is_sure(), "{changed:x}");
        }
    }

    #[test]
    fn tags_are_those_of_both_words_unless_disabled() {
        let (app, camera) = (AtraceTag::App.bits(), AtraceTag::Camera.bits());
        assert_eq!(tags_of(app | 7 << 32, camera), AtraceTag::App | AtraceTag::Camera);
        assert_eq!(tags_of(app | 1 << 28, app | 1 << 40), AtraceTag::App);
        assert_eq!(tags_of(app | PARKED, camera), AtraceTag::NotReady);
        assert_eq!(tags_of(app, camera | AtraceTag::NotReady.bits()), AtraceTag::NotReady);
    }
}
