//! Reads which tags are enabled, and publishes them in the words of the gate.
//!
//! This code runs for an event if the check at the gate (`gate/mod.rs`) does not show that the event's tag is off: the
//! serial has changed, a thread has claimed the gate's local word, or the tag's bit is set. If the words of the gate
//! are not valid, [`refreshed`] calls [`read`], which reads the properties.
//!
//! # Where the tags come from
//!
//! | the sink | the tags for ATrace |
//! |---|---|
//! | the marker | the properties, by libcutils' rules (`flags.rs`) |
//! | libcutils | its tag mask, which becomes the gate's foreign word |
//! | libandroid | its answer to "is tracing enabled?", for [`AtraceTag::App`] |
//!
//! After a switch of tracing, a library may give an old answer for a moment. Such an answer is not published:
//! `sink/reload.rs` determines when libcutils' mask is up to date, and `sink/debounce.rs` when libandroid's answer is
//! up to date. Until then, every event asks the library.
//!
//! Perfetto's producer stores the tags that sessions want in a word, which the gate reads as its *foreign word* (tags
//! that other code stores). If the foreign word is already libcutils' mask, the sessions' tags are copied into the
//! gate's *local word* (tags that this module stores).
//!
//! # Threading
//!
//! Events call [`refreshed`], even in signal handlers and in a child that was forked while another thread held a lock.
//! So `refreshed` and the functions that it calls neither allocate nor take a lock (libcutils takes a lock of its own
//! when it reads its tags again). Variables that need much stack are in separate functions that are not inlined.
//!
//! When the tags are published at the gate, the state page is updated, too ([`crate::state`]).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use atrace_sys::cutils::Cutils;
use atrace_sys::process::{self, Undisturbed};
use atrace_sys::properties::{FLAGS, Properties, Wait};

use crate::AtraceTag;
use crate::flags;
use crate::gate::{self, DISABLED_BIT, GATE, NO_SERIAL, Serial};
use crate::producer;
use crate::sink::{self, Sink, choice};
use crate::state;

/// The property that holds the mask of preferred tags. If a preferred tag is enabled for both ATrace and Perfetto, its
/// events go to Perfetto.
const PREFER: &str = "debug.atrace.prefer_sdk";
/// The tags of the property [`PREFER`] when it was last read.
static PREFERRED: AtomicU64 = AtomicU64::new(0);
/// Whether tracing is disabled in this process by [`set_enabled`]`(false)`.
static DISABLED: AtomicBool = AtomicBool::new(false);

/// Returns the enabled tags. This function may open the sink and therefore allocate, so an event must not call it.
pub(crate) fn tags() -> AtraceTag {
    choice::chosen();
    gate::tags().unwrap_or_else(refreshed)
}

/// Reads which tags are enabled for at least one backend. An event calls this function if the check at the gate
/// (`gate/mod.rs`) has not shown whether the event's tag is enabled.
#[cold]
#[inline(never)]
pub(crate) fn refreshed() -> AtraceTag {
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

/// Returns whether tracing is disabled in this process.
pub(crate) fn is_disabled() -> bool {
    DISABLED.load(Ordering::SeqCst)
}

/// Returns the preferred tags: if such a tag is enabled for both ATrace and Perfetto, its events go to Perfetto.
pub(crate) fn preferred() -> AtraceTag {
    AtraceTag::from_bits_retain(PREFERRED.load(Ordering::Relaxed))
}

/// Adapts the gate and the state page to a change of the tags that sessions want, or of the state of the connection.
/// Usually the socket thread, which talks to Perfetto's service, calls this function (see `on_change` in
/// `atrace-perfetto`).
fn sessions_changed() {
    // The condition is true at the first session of a process that until now only looked for a service (`attach.rs`).
    if !sink::is_perfetto_enabled()
        && producer::tags_word().is_some_and(|tags| tags.load(Ordering::Relaxed) != 0)
    {
        choose_per_event();
    }
    state::publish();
    // If the sink is libcutils, the gate has a copy of the sessions' tags, in its local word. The next event renews
    // this copy.
    if let Sink::Cutils(_) = choice::present() {
        gate::forget();
    }
}

/// Returns the time after which the tags must be read again, if the last answer of libcutils or libandroid may be out
/// of date. Returns `None` if the answer is up to date.
pub(crate) fn look_again_after() -> Option<Duration> {
    let is_settled = gate::published().is_some() || choice::present().is_settled();
    (!is_settled).then_some(sink::APART)
}

/// Disables tracing in this process, or makes it follow the properties again.
pub(crate) fn set_enabled(enabled: bool) {
    let _undisturbed = Undisturbed::new();
    DISABLED.store(!enabled, Ordering::SeqCst);
    if let Sink::Cutils(cutils) = choice::chosen() {
        cutils.reload(|library| library.set_tracing_enabled(enabled));
    }
    update();
}

/// Reads the properties again even if the serial at the gate is the same, because a change of an app pattern does not
/// change that serial.
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
    // While there is no sink, each event calls this function, until another function, which may allocate, opens the
    // sink.
    if choice::current().is_waiting() {
        return if is_disabled() { AtraceTag::NotReady } else { AtraceTag::empty() };
    }
    let _undisturbed = Undisturbed::new();
    read()
}

/// Returns the property, or the whole store, whose serial changes at the next switch, and the serial's current value. A
/// watch waits for this serial to change.
pub(crate) fn awaited(properties: &Properties) -> (Wait<'_>, u32) {
    match properties.find(FLAGS) {
        Some(property) => (Wait::Property(property), property.serial()),
        None => (Wait::Any, properties.area_serial()),
    }
}

/// Returns the serial that the gate must compare.
fn serial(properties: &'static Properties) -> Serial {
    match properties.find(FLAGS) {
        // If the property's serial has no word that can be loaded, this asks the property system for the serial.
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

/// Makes each event choose its backend from now on, and makes the next event read the tags again. Async-signal-safe.
/// A thread without thread-locals may call it, too.
pub(crate) fn choose_per_event() {
    sink::choose_per_event();
    see_sessions(choice::present());
    gate::forget();
}

/// Makes the gate read the word with the tags of Perfetto's sessions, as its [foreign word](crate::gate), unless the
/// foreign word is libcutils' mask.
fn see_sessions(sink: &'static Sink) {
    if let Some(tags) = producer::tags_word() {
        gate::see_sessions(tags, !matches!(sink, Sink::Cutils(_)));
    }
}

/// Registers [`sessions_changed`] as a function that the socket thread (which talks to Perfetto's service) calls after
/// a change.
pub(crate) fn follow_sessions() {
    static SESSIONS_CHANGED: fn() = sessions_changed;
    producer::on_change(&SESSIONS_CHANGED);
}

/// Makes the gate (`gate/mod.rs`) read the tags of Perfetto's sessions, and reads the property [`PREFER`]. This
/// function is not inlined, because the value of the property takes room on the stack, and the stack of a signal
/// handler may be small.
#[cold]
#[inline(never)]
fn follow_perfetto(sink: &'static Sink) {
    follow_sessions();
    see_sessions(sink);
    if let Some(properties) = sink.properties() {
        let value = properties.find(PREFER).and_then(|property| property.read());
        let tags = value.and_then(|(_, value)| value.mask()).unwrap_or(0);
        PREFERRED.store(tags, Ordering::Relaxed);
    }
}

/// Reads which tags are enabled for ATrace, publishes these tags at the gate, and returns them. An event may call this
/// function.
fn read() -> AtraceTag {
    /// A serial that prevents a publication of the tags, so that every event reads the tags again.
    const UNSURE: Serial = Serial { word: None, value: 0, is_property: false };

    static FAILED: fn() = state::publish;
    atrace_sys::marker::on_failure(&FAILED);
    let sink = choice::current();
    sink.check();
    if sink::is_perfetto_enabled() {
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
        // Without properties, nothing can switch tracing on for this sink.
        (_, None) => Serial { word: Some(&NO_SERIAL), value: 0, is_property: false },
    };
    let mut is_never_published = false;
    let find = |serial: &Serial| match sink {
        Sink::Cutils(cutils) => {
            let mask = cutils.library.enabled_tags();
            GATE.foreign.set(mask);
            is_never_published = serial.word.is_none();
            // The sessions' tags go into the gate's local word, because its foreign word is the library's mask.
            (Some(producer::tags().bits()), AtraceTag::from_bits_retain(mask.load(Ordering::Relaxed)))
        }
        _ if DISABLED.load(Ordering::SeqCst) => (Some(DISABLED_BIT), AtraceTag::NotReady),
        Sink::Ndk(ndk) => {
            let (enabled, settled) = ndk.ask(serial.value);
            let tags = if enabled { AtraceTag::App } else { AtraceTag::empty() };
            (settled.then_some(tags.bits()), tags)
        }
        _ => {
            is_never_published = sink.is_waiting();
            // This is a closure of its own, to use less stack: the stack may be that of a signal handler.
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
