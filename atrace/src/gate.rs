//! "Is it on?", answered by three loads and a branch, inlined where an event is written.
//!
//! Properties are memory that every process maps, and the flags property has a *serial* that changes whenever it is
//! set. The gate keeps, in one word, the serial it last read the properties at and the tags it found then, so that one
//! comparison tells both that nothing changed and that the tag is off:
//!
//! ```text
//! LOCAL     serial, 32 bits | parked, 1 | unused, 3 | tags, 28 bits
//! SERIAL →  the serial now: a word of the property store
//! FOREIGN → the tags of libcutils, where events go through it; else a zero
//! ```
//!
//! Anything else than "same serial, bit clear" leaves the fast path. There a changed serial has the properties read again, so a
//! switch is noticed by the first event after it: no interval, no stale answer. A flags property that does not exist yet has no
//! serial; then `SERIAL` is that of the whole store, which changes when the property appears.
//!
//! Nothing here waits or locks: a word is published by compare-and-swap from what it was before the properties were read,
//! so a slower reader can't overwrite the finding of a later one, and a child forked in between finds nothing locked.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use atrace_sys::AtomicRef;
use atrace_sys::process::Undisturbed;
use atrace_sys::properties::{Properties, Wait};

use crate::AtraceTag;
use crate::flags;
use crate::sink::{self, Sink};

const SERIAL_SHIFT: u32 = 32;
const CHANGED: u64 = 0xffff_ffff << SERIAL_SHIFT;
const PARKED: u64 = 1 << 31;
const TAGS: u64 = AtraceTag::ValidMask.bits();

/// Tells the fast path that the answer is not known: no property and no store ever has this serial (bionic's lowest bit
/// says "being written", a host's counts to half of that), so it equals nothing that LOCAL holds.
static UNKNOWN: AtomicU32 = AtomicU32::new(u32::MAX);
/// For processes that can't be switched on.
static NEVER_CHANGES: AtomicU32 = AtomicU32::new(0);
static NO_TAGS: AtomicU64 = AtomicU64::new(0);

static SERIAL: AtomicRef<AtomicU32> = AtomicRef::new(&UNKNOWN);
static LOCAL: AtomicU64 = AtomicU64::new(0);
static FOREIGN: AtomicRef<AtomicU64> = AtomicRef::new(&NO_TAGS);
/// Tracing was disabled for this process by `atrace_set_tracing_enabled(false)`.
static DISABLED: AtomicBool = AtomicBool::new(false);
/// Counts what the properties' serial does not show: calls that disable, enable, or ask to read again.
static CALLS: AtomicU32 = AtomicU32::new(0);

/// What the fast path found, handed to the slow one so that nothing is loaded twice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Glance(u64);

/// Looks whether `tag` may be enabled; None, "no", is exact.
#[inline(always)]
pub(crate) fn glance(tag: AtraceTag) -> Option<Glance> {
    // Relaxed: the word may lie in memory mapped read-only, and "off" reads nothing that depends on it.
    let serial = SERIAL.get().load(Ordering::Relaxed);
    let local = LOCAL.load(Ordering::Acquire) ^ (u64::from(serial) << SERIAL_SHIFT);
    let foreign = FOREIGN.get().load(Ordering::Relaxed) & TAGS;
    let found = (local | foreign) & (CHANGED | (tag.bits() & TAGS));
    (found != 0).then_some(Glance(found))
}

impl Glance {
    /// Tells for sure whether `tag` is enabled, reading the properties if they changed; returns where events go.
    #[inline(always)]
    pub(crate) fn enabled(self, tag: AtraceTag) -> Option<&'static Sink> {
        if self.0 & CHANGED != 0 && refresh().bits() & tag.bits() & TAGS == 0 {
            return None;
        }
        Some(sink::present())
    }
}

/// Returns the tags enabled now.
pub(crate) fn tags() -> AtraceTag {
    match glance(AtraceTag::ValidMask) {
        Some(Glance(found)) if found & CHANGED != 0 => refresh(),
        Some(Glance(found)) => AtraceTag::from_bits_retain(found & TAGS),
        None => parked_or(AtraceTag::empty()),
    }
}

fn parked_or(tags: AtraceTag) -> AtraceTag {
    let parked = LOCAL.load(Ordering::Acquire) & PARKED != 0
        || FOREIGN.get().load(Ordering::Relaxed) & AtraceTag::NotReady.bits() != 0;
    if parked { AtraceTag::NotReady } else { tags }
}

/// Parks the gate, or has it follow the properties again.
pub(crate) fn set_enabled(enabled: bool) {
    let _undisturbed = Undisturbed::new();
    DISABLED.store(!enabled, Ordering::SeqCst);
    CALLS.fetch_add(1, Ordering::SeqCst);
    if let Sink::Cutils(library) = sink::chosen() {
        library.library.set_tracing_enabled(enabled);
    }
    update();
}

/// Reads the properties again although their serial may be the same: app patterns have none that counts.
pub(crate) fn update() {
    let _undisturbed = Undisturbed::new();
    CALLS.fetch_add(1, Ordering::SeqCst);
    if let Sink::Cutils(library) = sink::chosen() {
        library.library.update_tags();
    }
    read_properties();
}

/// The slow path of a changed serial: finds out what is enabled and returns it.
#[cold]
#[inline(never)]
fn refresh() -> AtraceTag {
    let _undisturbed = Undisturbed::new();
    read_properties()
}

/// The word whose value tells that the flags changed.
struct Watched {
    word: Option<&'static AtomicU32>,
    /// Asks the property system, where there is no word that can be loaded.
    serial: u32,
}

impl Watched {
    fn of(properties: &Properties) -> Self {
        match properties.find(flags::FLAGS) {
            Some(property) => Self { word: property.serial_word(), serial: property.serial() },
            None => Self { word: properties.area_serial_word(), serial: properties.area_serial() },
        }
    }
}

/// What to wait for, to learn that the flags changed, and its serial now.
pub(crate) fn watched(properties: &Properties) -> (Wait, u32) {
    match properties.find(flags::FLAGS) {
        Some(property) => (Wait::Property(property), property.serial()),
        None => (Wait::Any, properties.area_serial()),
    }
}

fn read_properties() -> AtraceTag {
    let sink = sink::chosen();
    let Some(properties) = sink.properties() else {
        return without_properties(sink);
    };
    // Each turn lost is another thread's finding published; after a few, ours is as good as theirs.
    let mut tags = AtraceTag::empty();
    for _ in 0..16 {
        let calls = CALLS.load(Ordering::SeqCst);
        let before = LOCAL.load(Ordering::Acquire);
        let watched = Watched::of(properties);
        let disabled = DISABLED.load(Ordering::SeqCst);
        let found = match sink {
            Sink::Cutils(cutils) => {
                cutils.follow(watched.serial);
                FOREIGN.set(cutils.library.enabled_tags());
                0
            }
            _ if disabled => PARKED,
            _ => flags::enabled_tags(|key| properties.get(key).ok().flatten()).bits(),
        };
        tags = match sink {
            Sink::Cutils(cutils) => {
                AtraceTag::from_bits_retain(cutils.library.enabled_tags().load(Ordering::Relaxed))
            }
            _ if disabled => AtraceTag::NotReady,
            _ => AtraceTag::from_bits_retain(found),
        };
        // Without a word to load, LOCAL's serial stays 0 and UNKNOWN has every event come here.
        let serial = if watched.word.is_some() { watched.serial } else { 0 };
        let after = u64::from(serial) << SERIAL_SHIFT | found;
        if LOCAL.compare_exchange(before, after, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            continue;
        }
        SERIAL.set(watched.word.unwrap_or(&UNKNOWN));
        // The property may have appeared, or changed again, meanwhile. So may what has no serial: then LOCAL may have
        // gone away from `before` and come back to it, unnoticed by the exchange.
        if Watched::of(properties).serial == watched.serial && CALLS.load(Ordering::SeqCst) == calls {
            return tags;
        }
    }
    // Somebody switches as fast as we look: the next event looks again.
    SERIAL.set(&UNKNOWN);
    tags
}

/// What is enabled where no properties can be read: libcutils knows by itself, everything else is off.
fn without_properties(sink: &'static Sink) -> AtraceTag {
    match sink {
        Sink::Cutils(cutils) => {
            cutils.library.init();
            AtraceTag::from_bits_retain(cutils.library.enabled_tags().load(Ordering::Relaxed))
        }
        _ => {
            let disabled = DISABLED.load(Ordering::SeqCst);
            LOCAL.store(if disabled { PARKED } else { 0 }, Ordering::Release);
            SERIAL.set(&NEVER_CHANGES);
            if disabled { AtraceTag::NotReady } else { AtraceTag::empty() }
        }
    }
}
