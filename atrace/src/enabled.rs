//! Asking once for several events, for tracers built on this crate.

use atrace_sys::text::cut;

use crate::message::{Kind, NameWriter};
use crate::producer::{self, Event, Site, TRACK_NAME_MAX, Track, TrackKey, Type};
use crate::way::{self, Way};
use crate::{AtraceTag, Slice, TrackSlice, gate};

/// What a look at the gate found: the tags may be enabled.
///
/// A tracer with little code where events are written looks there with [`glance`], inlined, and calls the
/// rest of itself only when it gets one of these; the rest then asks [`enabled`](Self::enabled), which does
/// not look again. The functions that write an event do the same.
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

/// Looks whether one of the tags may be enabled. None is exact: they are not.
#[inline(always)]
pub fn glance(tag: AtraceTag) -> Option<Glance> {
    gate::glance(tag).map(|found| Glance { found, tag })
}

/// Tags about which one question after the other is asked.
///
/// Spares a tracer whose tag is no constant some instructions each time; of a constant, [`glance`] makes the
/// same.
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
    /// Prepares questions about these tags.
    pub const fn new(tag: AtraceTag) -> Self {
        Self { tag, mask: gate::Mask::of(tag) }
    }

    /// The tags.
    pub const fn tag(self) -> AtraceTag {
        self.tag
    }

    /// As [`glance`] of the tags.
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

    /// Tells for sure whether one of the tags is enabled.
    #[inline]
    pub fn enabled(self) -> Option<Enabled> {
        way::enabled(self.found, self.tag).map(|way| Enabled { way, tag: self.tag })
    }

    /// [`enabled`](Self::enabled), with more code, of which the usual answer takes less.
    #[doc(hidden)]
    #[inline(always)]
    pub fn __enabled_short(self) -> Option<Enabled> {
        way::enabled_short(self.found, self.tag).map(|way| Enabled { way, tag: self.tag })
    }
}

/// A tag that was seen enabled: what is written with it is written, whatever is switched meanwhile.
///
/// Keep it for one moment's events only.
#[derive(Clone, Copy, Debug)]
pub struct Enabled {
    way: Way,
    tag: AtraceTag,
}

impl Enabled {
    /// Writes an instant, as [`atrace_instant_with`](crate::atrace_instant_with).
    #[inline(always)]
    pub fn instant_with(self, name: impl FnOnce(&mut NameWriter<'_>)) {
        self.way.write(self.tag, Kind::Instant, None, Some(name));
    }

    /// Sets a counter, as [`atrace_int64`](crate::atrace_int64).
    #[inline(never)]
    pub fn int64(self, name: &str, value: i64) {
        self.way.write_str(self.tag, Kind::Int64(value), None, Some(name));
    }

    /// Sets a counter to a value with a fraction, as [`atrace_f64`](crate::atrace_f64).
    #[inline(never)]
    pub fn f64(self, name: &str, value: f64) {
        self.way.write_f64(self.tag, name, value);
    }

    /// The tags, where events go into Perfetto's memory. The functions below are for this case.
    #[doc(hidden)]
    #[inline(always)]
    pub fn __for_perfetto(self) -> Option<AtraceTag> {
        self.way.is_perfetto().then_some(self.tag & AtraceTag::ValidMask)
    }

    /// Writes an instant with encoded arguments, named as its callsite where no name is given.
    #[doc(hidden)]
    #[inline(always)]
    pub fn __instant(self, site: &Site<'_>, name: Option<&str>, encoded: &[u8]) {
        let tags = (self.tag & AtraceTag::ValidMask).bits();
        let name = name.map(|name| cut(name, TRACK_NAME_MAX));
        producer::traced(Type::Instant, tags, site, name, 0, encoded);
    }

    /// Begins a slice with encoded arguments, named as its callsite; part of a flow, unless that is 0.
    #[doc(hidden)]
    #[inline(always)]
    pub fn __begin(self, site: &Site<'_>, flow: u64, args: &[u8]) -> Slice {
        let tags = (self.tag & AtraceTag::ValidMask).bits();
        let written = producer::traced(Type::Begin, tags, site, None, flow, args);
        Slice::by(written, self.tag)
    }

    /// Begins a slice on a track with encoded arguments, named as its callsite.
    #[doc(hidden)]
    pub fn __begin_on_track(self, track_name: &str, site: Site<'_>, args: &[u8], cookie: i32) -> TrackSlice {
        let Some(tags) = self.__for_perfetto() else { return TrackSlice::none() };
        let key = TrackKey::named(Type::Begin, cookie.into());
        let (track, site) = (Some(Track::of(key, track_name)), Some(site));
        let begin = Event { track, site, args, ..Event::new(Type::Begin, tags.bits()) };
        TrackSlice::by(producer::write(&begin), tags)
    }

    /// Begins a slice, as [`Slice::begin_with`].
    #[inline(always)]
    pub fn begin_with(self, name: impl FnOnce(&mut NameWriter<'_>)) -> Slice {
        Slice::by(self.way.write(self.tag, Kind::Begin, None, Some(name)), self.tag)
    }
}
