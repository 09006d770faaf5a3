//! "Is it on?", answered by three loads and a branch, inlined where an event is written.
//!
//! Properties are memory that every process maps, and the flags property has a *serial* that changes whenever
//! it is set. The gate keeps, in one word, the serial it last read the properties at and the tags it found
//! then, so that one comparison tells both that nothing changed and that the tag is off: see [`word`].
//!
//! Anything else than "same serial, not claimed, bit clear" leaves the fast path. There a changed serial has
//! the properties read again, so a switch is noticed by the first event after it: no interval, no stale
//! answer. A flags property that does not exist yet has no serial; then `serial` is that of the whole store,
//! which changes when the property appears.
//!
//! Nothing here waits or locks, so a child forked in between finds nothing locked. What is read from a library is
//! published only once it is sure: see `sink/reload.rs` for libcutils, `sink/debounce.rs` for libandroid.

mod word;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use atrace_sys::process::{self, Undisturbed};
use atrace_sys::properties::{Properties, Wait};

pub(crate) use self::word::Watched;
use self::word::{CLAIMED, Gate, SERIAL_SHIFT};
use crate::AtraceTag;
use crate::flags;
use crate::sink::{self, Sink};
use crate::state;
use crate::sync::AtomicRef;

const PARKED: u64 = 1 << 31;
/// The bits that are set, after the serial of now was subtracted bit by bit, where the tags are not known.
const CHANGED: u64 = 0xffff_ffff << SERIAL_SHIFT | CLAIMED;
const TAGS: u64 = AtraceTag::ValidMask.bits();

/// The serial where there is none: of processes that can't be switched on, or of a word that stays claimed.
static NO_SERIAL: AtomicU32 = AtomicU32::new(0);
static NO_TAGS: AtomicU64 = AtomicU64::new(0);

static GATE: Gate = Gate {
    serial: AtomicRef::new(&NO_SERIAL),
    local: AtomicU64::new(CLAIMED),
    foreign: AtomicRef::new(&NO_TAGS),
    claims: AtomicU32::new(0),
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
        let (local, foreign) = GATE.look();
        let found = (local & self.0) | (foreign & self.0 & TAGS);
        (found != 0).then_some(Glance(found))
    }
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
    let (local, foreign) = GATE.look();
    if local & CHANGED != 0 { refresh() } else { tags_of(local, foreign) }
}

fn tags_of(local: u64, foreign: u64) -> AtraceTag {
    if local & PARKED != 0 || foreign & AtraceTag::NotReady.bits() != 0 {
        AtraceTag::NotReady
    } else {
        AtraceTag::from_bits_retain((local | foreign) & TAGS)
    }
}

/// The serial and the tags that were published last; None while somebody is finding out.
pub(crate) fn published() -> Option<(u32, AtraceTag)> {
    let local = GATE.local.load(Ordering::Acquire);
    let tags = tags_of(local, GATE.foreign.get().load(Ordering::Relaxed));
    (local & CLAIMED == 0).then_some(((local >> SERIAL_SHIFT) as u32, tags))
}

/// How soon to ask again where it is not settled.
pub(crate) const ASKED_AGAIN_AFTER: Duration = crate::sink::debounce::APART;

/// Whether what a library answered last is sure.
pub(crate) fn is_settled() -> bool {
    published().is_some() || sink::present().is_settled()
}

/// Parks the gate, or has it follow the properties again.
pub(crate) fn set_enabled(enabled: bool) {
    let _undisturbed = Undisturbed::new();
    DISABLED.store(!enabled, Ordering::SeqCst);
    if let Sink::Cutils(cutils) = sink::chosen() {
        cutils.have(|library| library.set_tracing_enabled(enabled));
    }
    update();
}

/// Reads the properties again although their serial may be the same: app patterns have none that counts.
pub(crate) fn update() {
    let _undisturbed = Undisturbed::new();
    process::reread_argv0();
    if let Sink::Cutils(cutils) = sink::chosen() {
        cutils.have(|library| library.update_tags());
    }
    read_properties();
}

/// The slow path of a changed serial: finds out what is enabled and returns it.
#[cold]
#[inline(never)]
fn refresh() -> AtraceTag {
    // Where events go nowhere for now, each comes here: few of them ask the system again.
    if sink::present().is_waiting() && !sink::retry() {
        return AtraceTag::empty();
    }
    let _undisturbed = Undisturbed::new();
    read_properties()
}

impl Watched {
    /// Of a process that can't be switched on.
    const NOTHING: Self = Self { word: Some(&NO_SERIAL), serial: 0, is_property: false };
    /// Every event is to find out for itself.
    const UNSURE: Self = Self { word: None, serial: 0, is_property: false };

    fn of(properties: &'static Properties) -> Self {
        match properties.find(flags::FLAGS) {
            // Asks the property system for the serial, where there is no word that can be loaded.
            Some(property) => {
                Self { word: property.serial_word(), serial: property.serial(), is_property: true }
            }
            None => Self {
                word: properties.area_serial_word(),
                serial: properties.area_serial(),
                is_property: false,
            },
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

/// Finds out what is enabled, publishes it and returns it.
fn read_properties() -> AtraceTag {
    let sink = sink::chosen();
    sink.check();
    let watch = || match (sink, sink.properties()) {
        (Sink::Cutils(cutils), properties) => {
            cutils.follow(properties, Watched::of).unwrap_or(Watched::UNSURE)
        }
        (_, Some(properties)) => Watched::of(properties),
        (_, None) if sink.is_waiting() => Watched::UNSURE,
        (_, None) => Watched::NOTHING,
    };
    let mut is_noted = false;
    let find = |watched: &Watched| match sink {
        Sink::Cutils(cutils) => {
            let mask = cutils.library.enabled_tags();
            GATE.foreign.set(mask);
            is_noted = watched.word.is_none();
            (Some(0), AtraceTag::from_bits_retain(mask.load(Ordering::Relaxed)))
        }
        _ if DISABLED.load(Ordering::SeqCst) => (Some(PARKED), AtraceTag::NotReady),
        Sink::Ndk(ndk) => {
            let (enabled, settled) = ndk.ask(watched.serial);
            let tags = if enabled { AtraceTag::App } else { AtraceTag::empty() };
            (settled.then_some(tags.bits()), tags)
        }
        _ => {
            is_noted = sink.is_waiting();
            // In two steps, as both together are large on the stack of a signal handler.
            let read = |properties: &'static Properties| {
                flags::enabled_tags(|key| properties.find(key)?.read().map(|(_, value)| value))
            };
            let tags = sink.properties().map_or(AtraceTag::empty(), read);
            (Some(tags.bits()), tags)
        }
    };
    let (tags, is_published) = GATE.read(&NO_SERIAL, watch, find);
    if is_published {
        state::publish();
    } else if is_noted {
        state::note(tags); // Where nothing is ever published.
    }
    tags
}
