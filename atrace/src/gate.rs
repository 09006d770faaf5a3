//! "Is it on?", answered by three loads and a branch, inlined where an event is written.
//!
//! Properties are memory that every process maps, and the flags property has a *serial* that changes whenever
//! it is set. The gate keeps, in one word, the serial it last read the properties at and the tags it found
//! then, so that one comparison tells both that nothing changed and that the tag is off:
//!
//! ```text
//! local     serial, 32 bits | parked, 1 | claimed, 1 | unused, 2 | tags, 28 bits
//! serial →  the serial now: a word of the property store
//! foreign → the tags of libcutils, where events go through it; else a zero
//! ```
//!
//! Anything else than "same serial, not claimed, bit clear" leaves the fast path. There a changed serial has
//! the properties read again, so a switch is noticed by the first event after it: no interval, no stale
//! answer. A flags property that does not exist yet has no serial; then `serial` is that of the whole store,
//! which changes when the property appears.
//!
//! Nothing here waits or locks, so a child forked in between finds nothing locked. Who reads the properties
//! first *claims* the word, with a number that no other reader has, and publishes its finding only where its
//! claim still stands: a slower reader can't overwrite the finding of a later one. While the word is claimed,
//! every event reads for itself.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use atrace_sys::AtomicRef;
use atrace_sys::process::Undisturbed;
use atrace_sys::properties::{Properties, Wait};

use crate::AtraceTag;
use crate::flags;
use crate::sink::{self, CutilsSink, Sink};
use crate::state;

const SERIAL_SHIFT: u32 = 32;
const PARKED: u64 = 1 << 31;
const CLAIMED: u64 = 1 << 30;
/// The bits that are set, after the serial of now was subtracted bit by bit, where the tags are not known.
const CHANGED: u64 = 0xffff_ffff << SERIAL_SHIFT | CLAIMED;
const TAGS: u64 = AtraceTag::ValidMask.bits();

/// The serial where there is none: of processes that can't be switched on, or of a word that stays claimed.
static NO_SERIAL: AtomicU32 = AtomicU32::new(0);
static NO_TAGS: AtomicU64 = AtomicU64::new(0);

/// What the fast path loads, in one place: its address is computed once.
#[repr(align(32))]
struct Gate {
    serial: AtomicRef<AtomicU32>,
    local: AtomicU64,
    foreign: AtomicRef<AtomicU64>,
}

static GATE: Gate = Gate {
    serial: AtomicRef::new(&NO_SERIAL),
    local: AtomicU64::new(CLAIMED),
    foreign: AtomicRef::new(&NO_TAGS),
};
/// Tracing was disabled for this process by `atrace_set_tracing_enabled(false)`.
static DISABLED: AtomicBool = AtomicBool::new(false);

/// What the fast path found, handed to the slow one so that nothing is loaded twice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Glance(u64);

/// Looks whether `tag` may be enabled; None, "no", is exact.
#[inline(always)]
pub(crate) fn glance(tag: AtraceTag) -> Option<Glance> {
    Mask::of(tag).glance()
}

/// The bits that a question about a tag is about; worth keeping where the tag is no constant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mask(u64);

impl Mask {
    #[inline(always)]
    pub(crate) const fn of(tag: AtraceTag) -> Self {
        Self(CHANGED | (tag.bits() & TAGS))
    }

    /// As [`glance`].
    #[inline(always)]
    pub(crate) fn glance(self) -> Option<Glance> {
        let (local, foreign) = look();
        let found = (local & self.0) | (foreign & self.0 & TAGS);
        (found != 0).then_some(Glance(found))
    }
}

/// The local word, its serial zero if it is that of now, and the foreign one.
#[inline(always)]
fn look() -> (u64, u64) {
    // Relaxed: the word may lie in memory mapped read-only, and "off" reads nothing that depends on it.
    let serial = GATE.serial.get().load(Ordering::Relaxed);
    let local = GATE.local.load(Ordering::Acquire) ^ (u64::from(serial) << SERIAL_SHIFT);
    (local, GATE.foreign.get().load(Ordering::Relaxed))
}

impl Glance {
    /// Tells for sure whether `tag` is enabled, reading the properties if they changed; returns where events
    /// go.
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
    let (local, foreign) = look();
    if local & CHANGED != 0 {
        refresh()
    } else if local & PARKED != 0 || foreign & AtraceTag::NotReady.bits() != 0 {
        AtraceTag::NotReady
    } else {
        AtraceTag::from_bits_retain((local | foreign) & TAGS)
    }
}

/// Parks the gate, or has it follow the properties again.
pub(crate) fn set_enabled(enabled: bool) {
    let _undisturbed = Undisturbed::new();
    DISABLED.store(!enabled, Ordering::SeqCst);
    if let Sink::Cutils(library) = sink::chosen() {
        library.library.set_tracing_enabled(enabled);
    }
    update();
}

/// Reads the properties again although their serial may be the same: app patterns have none that counts.
pub(crate) fn update() {
    let _undisturbed = Undisturbed::new();
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
    fn of(properties: &'static Properties) -> Self {
        match properties.find(flags::FLAGS) {
            Some(property) => Self { word: property.serial_word(), serial: property.serial() },
            None => Self { word: properties.area_serial_word(), serial: properties.area_serial() },
        }
    }
}

/// What to wait for, to learn that the flags changed, and its serial now.
pub(crate) fn watched(properties: &Properties) -> (Wait<'_>, u32) {
    match properties.find(flags::FLAGS) {
        Some(property) => (Wait::Property(property), property.serial()),
        None => (Wait::Any, properties.area_serial()),
    }
}

/// Claims the local word: what is read from now on may be published in place of the claim, unless another one
/// follows.
fn claim() -> u64 {
    static LAST: AtomicU32 = AtomicU32::new(0);
    let number = LAST.fetch_add(1, Ordering::Relaxed);
    let claim = u64::from(number) << SERIAL_SHIFT | CLAIMED;
    // Acquire, release: who claims later sees what was done before this, and so finds what is as new.
    GATE.local.swap(claim, Ordering::AcqRel);
    claim
}

/// Has libcutils follow the flags. Its reading and storing of them is no single step, so who was slow might
/// leave it with those of before: looks again.
fn follow(cutils: &CutilsSink, properties: &'static Properties) -> Watched {
    let mut watched = Watched::of(properties);
    // Somebody who switches without pause will be followed by the next event.
    for _ in 0..16 {
        if !cutils.follow(watched.serial) {
            break;
        }
        let now = Watched::of(properties);
        if now.serial == watched.serial {
            break;
        }
        watched = now;
    }
    watched
}

/// Finds out what is enabled, publishes it and returns it.
fn read_properties() -> AtraceTag {
    let sink = sink::chosen();
    let claim = claim();
    let disabled = DISABLED.load(Ordering::SeqCst);
    let (word, serial, found, tags) = match (sink, sink.properties()) {
        (Sink::Cutils(cutils), properties) => {
            let watched = properties.map(|properties| follow(cutils, properties));
            if watched.is_none() {
                cutils.library.init();
            }
            GATE.foreign.set(cutils.library.enabled_tags());
            let tags = AtraceTag::from_bits_retain(cutils.library.enabled_tags().load(Ordering::Relaxed));
            let (word, serial) = watched.map_or((None, 0), |watched| (watched.word, watched.serial));
            (word, serial, 0, tags)
        }
        (Sink::Ndk(ndk), Some(properties)) => {
            let watched = Watched::of(properties);
            let tags = match (disabled, ndk.library.is_enabled()) {
                (true, _) => AtraceTag::NotReady,
                (false, true) => AtraceTag::App,
                (false, false) => AtraceTag::empty(),
            };
            (watched.word, watched.serial, if disabled { PARKED } else { tags.bits() }, tags)
        }
        (_, Some(properties)) => {
            let watched = Watched::of(properties);
            let tags = if disabled {
                AtraceTag::NotReady
            } else {
                flags::enabled_tags(|key| properties.get(key).ok().flatten())
            };
            (watched.word, watched.serial, if disabled { PARKED } else { tags.bits() }, tags)
        }
        (_, None) if disabled => (Some(&NO_SERIAL), 0, PARKED, AtraceTag::NotReady),
        (_, None) => (Some(&NO_SERIAL), 0, 0, AtraceTag::empty()),
    };
    // Without a word that can be loaded the claim stays, and every event comes here.
    if let Some(word) = word {
        // First: a serial that is not that of the local word has every event come here, too.
        GATE.serial.set(word);
        let found = u64::from(serial) << SERIAL_SHIFT | found;
        // Not where another thread claimed it since: what that one finds is as new.
        let _ = GATE.local.compare_exchange(claim, found, Ordering::AcqRel, Ordering::Relaxed);
    }
    state::note(serial, tags);
    tags
}
