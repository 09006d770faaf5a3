//! One check for several events, for tracers that are built on this crate.
//!
//! A check has two steps. [`glance`] is the gate's check: a few inlined instructions, which usually say "off". If they do not,
//! [`Glance::enabled`] checks for sure and chooses the backend. The resulting [`Enabled`] writes any number of events without
//! another check.

use atrace_sys::text::cut;

use crate::backend::{self, Backend};
use crate::message::{Kind, NameWriter};
use crate::producer::{self, Event, Site, TRACK_NAME_MAX, Track, TrackKey, Type};
use crate::{AtraceTag, Slice, TrackSlice, gate};

/// The result of a check at the gate that did not say "off": the tags may be enabled.
///
/// A tracer should inline only [`glance`] where events are written, and call the rest of itself only if it gets a `Glance`.
/// The rest then calls [`enabled`](Self::enabled), which does not repeat the gate's check. The functions of this crate that
/// write an event do the same.
///
/// # Examples
///
/// ```
/// use atrace::{AtraceTag, Glance, glance};
///
/// #[inline]
/// fn on_event(text: &str) {
///     if let Some(glance) = glance(AtraceTag::App) {
///         write_event(glance, text);
///     }
/// }
///
/// #[inline(never)]
/// fn write_event(glance: Glance, text: &str) {
///     if let Some(enabled) = glance.enabled() {
///         enabled.instant_with(|writer| writer.push_str(text));
///         enabled.int64("length", text.len() as i64);
///     }
/// }
/// # on_event("text");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Glance {
    found: gate::Glance,
    tag: AtraceTag,
}

/// Checks at the gate whether one of the tags may be enabled. `None` is certain: none of them is.
#[inline(always)]
pub fn glance(tag: AtraceTag) -> Option<Glance> {
    gate::glance(tag).map(|found| Glance { found, tag })
}

/// Tags prepared for repeated checks.
///
/// It saves a few instructions at each check if the tag is not a constant. For a constant, [`glance`] compiles to the same
/// code.
///
/// # Examples
///
/// ```
/// use atrace::{AtraceTag, PreparedTag};
///
/// struct Tracer {
///     tag: PreparedTag,
/// }
///
/// let tracer = Tracer { tag: PreparedTag::new(AtraceTag::Database) };
/// if let Some(enabled) = tracer.tag.glance().and_then(|glance| glance.enabled()) {
///     enabled.int64("rows", 7);
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct PreparedTag {
    tag: AtraceTag,
    mask: gate::Mask,
}

impl PreparedTag {
    /// Prepares checks of these tags.
    pub const fn new(tag: AtraceTag) -> Self {
        Self { tag, mask: gate::Mask::of(tag) }
    }

    /// Returns the tags.
    pub const fn tag(self) -> AtraceTag {
        self.tag
    }

    /// Checks the tags at the gate, as [`glance`] does.
    #[inline(always)]
    pub fn glance(self) -> Option<Glance> {
        self.mask.glance().map(|found| Glance { found, tag: self.tag })
    }
}

impl Glance {
    #[doc(hidden)]
    #[inline(always)]
    pub fn __tag(self) -> AtraceTag {
        self.tag
    }

    /// Checks for sure whether one of the tags is enabled. If it is, the returned value writes events.
    #[inline]
    pub fn enabled(self) -> Option<Enabled> {
        backend::enabled(self.found, self.tag).map(|backend| Enabled { backend, tag: self.tag })
    }

    /// Inlined variant of [`enabled`](Self::enabled): larger, but fewer instructions on the common path.
    #[doc(hidden)]
    #[inline(always)]
    pub fn __enabled_short(self) -> Option<Enabled> {
        backend::enabled_inlined(self.found, self.tag).map(|backend| Enabled { backend, tag: self.tag })
    }
}

/// A tag that was found enabled, and the backend for its events.
///
/// Its functions write events without another check, even if tracing is switched off meanwhile. So use it only for events of
/// the same moment, and do not store it.
#[derive(Clone, Copy, Debug)]
pub struct Enabled {
    backend: Backend,
    tag: AtraceTag,
}

impl Enabled {
    /// Writes an instant as [`atrace_instant_with`](crate::atrace_instant_with) does.
    #[inline(always)]
    pub fn instant_with(self, name: impl FnOnce(&mut NameWriter<'_>)) {
        self.backend.write(self.tag, Kind::Instant, None, Some(name));
    }

    /// Sets a counter as [`atrace_int64`](crate::atrace_int64) does.
    #[inline(never)]
    pub fn int64(self, name: &str, value: i64) {
        self.backend.write_str(self.tag, Kind::Int64(value), None, Some(name));
    }

    /// Sets a counter to a floating-point value as [`atrace_f64`](crate::atrace_f64) does.
    #[inline(never)]
    pub fn f64(self, name: &str, value: f64) {
        self.backend.write_f64(self.tag, name, value);
    }

    /// Returns the tags if events go to Perfetto's memory. The functions with encoded arguments are for this case only.
    #[doc(hidden)]
    #[inline(always)]
    pub fn __for_perfetto(self) -> Option<AtraceTag> {
        self.backend.is_perfetto().then_some(self.tag & AtraceTag::ValidMask)
    }

    /// Writes an instant with encoded arguments. Without a name it has the name of its callsite.
    #[doc(hidden)]
    #[inline(always)]
    pub fn __instant(self, site: &Site<'_>, name: Option<&str>, encoded: &[u8]) {
        let tags = (self.tag & AtraceTag::ValidMask).bits();
        let name = name.map(|name| cut(name, TRACK_NAME_MAX));
        producer::traced(Type::Instant, tags, site, name, 0, encoded);
    }

    /// Begins a slice with encoded arguments and the name of its callsite. It is part of the flow `flow`, unless that is 0.
    #[doc(hidden)]
    #[inline(always)]
    pub fn __begin(self, site: &Site<'_>, flow: u64, args: &[u8]) -> Slice {
        let tags = (self.tag & AtraceTag::ValidMask).bits();
        let written = producer::traced(Type::Begin, tags, site, None, flow, args);
        Slice::by(written, self.tag)
    }

    /// Begins a slice on a track with encoded arguments and the name of its callsite.
    #[doc(hidden)]
    pub fn __begin_on_track(self, track_name: &str, site: Site<'_>, args: &[u8], cookie: i32) -> TrackSlice {
        let Some(tags) = self.__for_perfetto() else { return TrackSlice::none() };
        let key = TrackKey::named(Type::Begin, cookie.into());
        let (track, site) = (Some(Track::of(key, track_name)), Some(site));
        let begin = Event { track, site, args, ..Event::new(Type::Begin, tags.bits()) };
        TrackSlice::by(producer::write(&begin), tags)
    }

    /// Begins a slice as [`Slice::begin_with`] does.
    #[inline(always)]
    pub fn begin_with(self, name: impl FnOnce(&mut NameWriter<'_>)) -> Slice {
        Slice::by(self.backend.write(self.tag, Kind::Begin, None, Some(name)), self.tag)
    }
}
