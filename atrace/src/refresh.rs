//! Finds out which tags are enabled, and publishes it at the gate: what an event does that finds the serial changed.
//!
//! It asks the properties, or the library that events go to. What a library says is published only once it is sure:
//! see `sink/reload.rs` for libcutils, `sink/debounce.rs` for libandroid. Each result also goes to the state page.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use atrace_sys::cutils::Cutils;
use atrace_sys::process::{self, Undisturbed};
use atrace_sys::properties::{Properties, Wait};

use crate::AtraceTag;
use crate::flags;
use crate::gate::{self, GATE, Glance, NO_SERIAL, PARKED, Serial};
use crate::producer;
use crate::sink::{self, Sink, choice, first};
use crate::state;

/// The property that has tags go to Perfetto where both ways are on.
const PREFER: &str = "debug.atrace.prefer_sdk";
/// The tags that it has.
static PREFERRED: AtomicU64 = AtomicU64::new(0);
/// Tracing was disabled for this process.
static DISABLED: AtomicBool = AtomicBool::new(false);

/// Tells for sure whether `tag` is enabled, for either way, after a look at the gate.
#[inline(always)]
pub(crate) fn is_enabled(glance: Glance, tag: AtraceTag) -> bool {
    glance.is_sure() || refreshed().intersects(tag & AtraceTag::ValidMask)
}

/// Returns the tags enabled now; for who may allocate.
pub(crate) fn tags() -> AtraceTag {
    choice::chosen();
    gate::tags().unwrap_or_else(refreshed)
}

/// Finds out which tags are enabled, for either way.
#[cold]
#[inline(never)]
fn refreshed() -> AtraceTag {
    match refresh() {
        AtraceTag::NotReady => AtraceTag::NotReady,
        tags => tags | producer::tags(),
    }
}

/// Returns the tags that are enabled for ATrace.
#[inline(always)]
pub(crate) fn atrace_tags() -> AtraceTag {
    match (gate::local_tags(), choice::present()) {
        (None, _) => refresh(),
        (_, Sink::Cutils(cutils)) => {
            AtraceTag::from_bits_retain(cutils.library.enabled_tags().load(Ordering::Relaxed))
        }
        (Some(tags), _) => tags,
    }
}

/// Whether tracing was disabled in this process.
pub(crate) fn is_disabled() -> bool {
    DISABLED.load(Ordering::SeqCst)
}

/// The tags that go to Perfetto where both ways are on.
pub(crate) fn preferred() -> AtraceTag {
    AtraceTag::from_bits_retain(PREFERRED.load(Ordering::Relaxed))
}

/// Perfetto's sessions want other tags than before, or it stands otherwise: on the socket's thread.
fn sessions_changed() {
    state::publish();
    // With libcutils the sessions' tags stand in the gate's local word: the next event puts them there.
    if let Sink::Cutils(_) = choice::present() {
        gate::forget();
    }
}

/// Whether what was found last is sure, or else how soon to look again.
pub(crate) fn look_again_after() -> Option<Duration> {
    let is_settled = gate::published().is_some() || choice::present().is_settled();
    (!is_settled).then_some(sink::APART)
}

/// Disables tracing in this process, or has it follow the properties again.
pub(crate) fn set_enabled(enabled: bool) {
    let _undisturbed = Undisturbed::new();
    DISABLED.store(!enabled, Ordering::SeqCst);
    if let Sink::Cutils(cutils) = choice::chosen() {
        cutils.reload(|library| library.set_tracing_enabled(enabled));
    }
    update();
}

/// Reads the properties again although their serial may be the same: app patterns have none that counts.
pub(crate) fn update() {
    let _undisturbed = Undisturbed::new();
    process::reread_argv0();
    if let Sink::Cutils(cutils) = choice::chosen() {
        cutils.reload(Cutils::update_tags);
    }
    read();
}

#[cold]
#[inline(never)]
fn refresh() -> AtraceTag {
    // Where events go nowhere for now, each comes here, until somebody asks who may allocate.
    if choice::for_event().is_waiting() {
        return if is_disabled() { AtraceTag::NotReady } else { AtraceTag::empty() };
    }
    let _undisturbed = Undisturbed::new();
    read()
}

/// What to wait for, to learn that the flags changed, and its serial now.
pub(crate) fn awaited(properties: &Properties) -> (Wait<'_>, u32) {
    match properties.find(flags::FLAGS) {
        Some(property) => (Wait::Property(property), property.serial()),
        None => (Wait::Any, properties.area_serial()),
    }
}

/// The serial to watch.
fn serial(properties: &'static Properties) -> Serial {
    match properties.find(flags::FLAGS) {
        // Asks the property system for the serial, where there is no word that can be loaded.
        Some(property) => {
            Serial { word: property.serial_word(), value: property.serial(), is_property: true }
        }
        None => Serial {
            word: properties.area_serial_word(),
            value: properties.area_serial(),
            is_property: false,
        },
    }
}

/// Has Perfetto's sessions seen at the gate, and reads which tags prefer that way. A call: its value is on a stack that may
/// be a signal handler's.
#[cold]
#[inline(never)]
fn follow_perfetto(sink: &'static Sink) {
    static SESSIONS_CHANGED: fn() = sessions_changed;
    producer::on_change(&SESSIONS_CHANGED);
    if !matches!(sink, Sink::Cutils(_))
        && let Some(tags) = producer::tags_word()
    {
        GATE.foreign.set(tags);
    }
    if let Some(properties) = sink.properties() {
        let value = properties.find(PREFER).and_then(|property| property.read());
        let tags = value.map_or(0, |(_, value)| flags::parse_flags_or_0(value.as_bytes()));
        PREFERRED.store(tags, Ordering::Relaxed);
    }
}

/// Finds out what is enabled, publishes it and returns it. Below an event.
fn read() -> AtraceTag {
    /// Every event is to find out for itself.
    const UNSURE: Serial = Serial { word: None, value: 0, is_property: false };

    static FAILED: fn() = state::publish;
    atrace_sys::marker::on_failure(&FAILED);
    let sink = choice::for_event();
    sink.check();
    if first::are_two_ways() {
        follow_perfetto(sink);
    }
    let serial = || match (sink, sink.properties()) {
        (Sink::Cutils(cutils), Some(properties)) => {
            let now = || {
                let serial = serial(properties);
                (serial.value, serial)
            };
            cutils.follow(now).unwrap_or(UNSURE)
        }
        (Sink::Cutils(cutils), None) => {
            cutils.reload(Cutils::init);
            UNSURE
        }
        (_, Some(properties)) => serial(properties),
        (_, None) if sink.is_waiting() => UNSURE,
        // It can't be switched on.
        (_, None) => Serial { word: Some(&NO_SERIAL), value: 0, is_property: false },
    };
    let mut is_never_published = false;
    let find = |serial: &Serial| match sink {
        Sink::Cutils(cutils) => {
            let mask = cutils.library.enabled_tags();
            GATE.foreign.set(mask);
            is_never_published = serial.word.is_none();
            // Perfetto's stand in the local word: the foreign one is the library's.
            (Some(producer::tags().bits()), AtraceTag::from_bits_retain(mask.load(Ordering::Relaxed)))
        }
        _ if DISABLED.load(Ordering::SeqCst) => (Some(PARKED), AtraceTag::NotReady),
        Sink::Ndk(ndk) => {
            let (enabled, settled) = ndk.ask(serial.value);
            let tags = if enabled { AtraceTag::App } else { AtraceTag::empty() };
            (settled.then_some(tags.bits()), tags)
        }
        _ => {
            is_never_published = sink.is_waiting();
            // In two steps, as both together are large on the stack of a signal handler.
            let read = |properties: &'static Properties| {
                flags::enabled_tags(|key| properties.find(key)?.read().map(|(_, value)| value))
            };
            let tags = sink.properties().map_or(AtraceTag::empty(), read);
            (Some(tags.bits()), tags)
        }
    };
    let (tags, is_published) = GATE.read(&NO_SERIAL, serial, find);
    if is_published {
        state::publish();
    } else if is_never_published {
        state::publish_unsure(tags);
    }
    tags
}
