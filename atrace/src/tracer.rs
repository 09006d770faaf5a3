//! The interface for tracers. A *tracer* is code that passes the events of another library, such as `tracing`, to this
//! crate. With this interface, a tracer can check a tag once for several events, keep a value for each open slice that
//! shows whether the begin was written, describe callsites (the places in the program that write events), and encode
//! arguments.
//!
//! `examples/log.rs` is a small tracer, for the crate `log`.
//!
//! # One check for several events
//!
//! A check has two steps. [`PreparedTag::check`] is the check of the *gate*: a few inlined instructions, which usually
//! find that the tag is off. If the tag may be enabled, [`GateCheck::enabled`] determines whether it is, and chooses
//! the backend. The resulting [`Enabled`] writes any number of events without another check.
//!
//! At the place where an event is written, a tracer should inline only [`PreparedTag::check`], and call the rest of
//! its code only if it gets a [`GateCheck`].
//!
//! # Callsites and arguments
//!
//! For Perfetto, a tracer can describe its callsites once and encode arguments with their types:
//!
//! 1. The tracer has a static [`Number`] for each callsite, and a type that implements [`About`]: this type returns the
//!    callsite's target, source location and names of arguments. A [`Site`] combines the two.
//! 2. For each event the tracer encodes the arguments with an [`Encoder`], under the keys of [`Site::key`].
//! 3. The tracer passes the site and the encoded arguments to the functions of [`Enabled`] that end in `_at`,
//!    if [`Enabled::is_perfetto`] returns true.
//!
//! For ATrace's backends the tracer writes the arguments into the name, as text.
//!
//! # Names
//!
//! A [`NameWriter`](crate::NameWriter) has faster functions for a name that consists of many pieces
//! ([`push_pieces`](crate::NameWriter::push_pieces)). [`TextBuffer`] is a buffer on the stack in which a tracer can
//! compose a text before it passes the text to a function.

use atrace_sys::text::cut;

use crate::backend::{self, Backend, Outcome};
use crate::event::Event;
use crate::message::Kind;
use crate::name::EventName;
use crate::producer::{self, Call, TRACK_NAME_MAX, Traced, TracedOnTrack, Type};
use crate::{AtraceTag, gate};

pub use crate::backend::{backend_tags_enable, only_atrace, only_perfetto};
pub use crate::message::TextBuffer;
pub use crate::producer::{About, ArgKey, Encoder, Number, Scalar, Site, flow_number, now};
pub use crate::sink::is_perfetto_enabled;
pub use crate::slice::{NamedTrack, Slice, TrackSlice};

/// The result of [`PreparedTag::check`] if at least one of the tags may be enabled.
#[derive(Clone, Copy, Debug)]
pub struct GateCheck {
    found: gate::GateCheck,
    tag: AtraceTag,
}

/// Tags, with the precomputed bits that a check of these tags tests.
///
/// # Examples
///
/// ```
/// use atrace::tracer::{GateCheck, PreparedTag};
/// use atrace::AtraceTag;
///
/// const TAG: PreparedTag = PreparedTag::new(AtraceTag::Database);
///
/// #[inline]
/// fn on_query(text: &str, rows: usize) {
///     if let Some(check) = TAG.check() {
///         write_events(check, text, rows);
///     }
/// }
///
/// #[inline(never)]
/// fn write_events(check: GateCheck, text: &str, rows: usize) {
///     if let Some(enabled) = check.enabled() {
///         enabled.instant(text);
///         enabled.instant(format_args!("{rows} rows"));
///     }
/// }
/// # on_query("text", 7);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct PreparedTag {
    tag: AtraceTag,
    mask: gate::Mask,
}

impl PreparedTag {
    /// Prepares the tags in `tag` for checks.
    #[inline(always)]
    pub const fn new(tag: AtraceTag) -> Self {
        Self { tag, mask: gate::Mask::of(tag) }
    }

    /// Checks by a few inlined instructions whether at least one of the tags may be enabled. Returns `None` if it is
    /// certain that no tag is enabled.
    #[inline(always)]
    pub fn check(self) -> Option<GateCheck> {
        self.mask.check().map(|found| GateCheck { found, tag: self.tag })
    }

    /// Checks whether a session of Perfetto's may want one of the tags. This takes fewer instructions than
    /// [`check`](Self::check). If the result is false, no session wants any of the tags at this moment. If the result
    /// is true, the next event may still go to another backend.
    #[inline(always)]
    pub fn may_be_in_session(self) -> bool {
        producer::EXISTS && self.mask.is_in_session()
    }
}

impl GateCheck {
    /// Returns the tags for which the check was made.
    #[inline(always)]
    pub fn tag(self) -> AtraceTag {
        self.tag
    }

    /// Determines whether at least one of the tags is enabled. If so, returns a value that writes events.
    #[inline(always)]
    pub fn enabled(self) -> Option<Enabled> {
        backend::enabled(self.found, self.tag, false).map(|backend| Enabled { backend, tag: self.tag })
    }
}

/// Tags of which at least one is enabled, and the backend for their events.
///
/// The functions of an `Enabled` do not check the tags again: for ATrace, they write events even if tracing was
/// switched off meanwhile. So use an `Enabled` only for events of the same moment, and do not store it.
#[derive(Clone, Copy, Debug)]
pub struct Enabled {
    backend: Backend,
    tag: AtraceTag,
}

impl Enabled {
    /// Returns whether the events go to Perfetto's memory. The functions that end in `_at` are for this case only.
    #[inline(always)]
    pub fn is_perfetto(self) -> bool {
        self.backend.is_perfetto()
    }

    /// Writes an instant as [`atrace_instant_args`](crate::atrace_instant_args) does, without arguments.
    #[inline(always)]
    pub fn instant(self, name: impl EventName) {
        self.backend.write(self.tag, Event::new(Kind::Instant, name));
    }

    /// Begins a slice as [`atrace_begin_args`](crate::atrace_begin_args) does, without arguments. Returns `None` if the
    /// begin was not written.
    ///
    /// For Perfetto, the function also returns a slice if the begin was [lost](crate::perfetto::Status::lost) because
    /// the memory was full, or because the service had not reported its sessions yet. In that case the end is lost,
    /// too.
    #[inline(always)]
    pub fn begin(self, name: impl EventName) -> Option<Slice> {
        Outcome::of(self.backend.write(self.tag, Event::new(Kind::Begin, name)), self.tag)
    }

    /// Writes an instant with encoded arguments into Perfetto's memory. If `name` is `None`, the event has the name
    /// of its callsite.
    #[inline(always)]
    pub fn instant_at(self, site: &Site<'_>, name: Option<&str>, args: &[u8]) {
        let name = name.map(|name| cut(name, TRACK_NAME_MAX));
        producer::write_as::<Traced>(
            Type::Instant,
            backend::valid(self.tag),
            name,
            &Call { site, flow: 0, args },
        );
    }

    /// Begins a slice with encoded arguments in Perfetto's memory. If `name` is `None`, the slice has the name of its
    /// callsite. If `flow` is not 0, the slice is part of that flow (see [`flow_number`]).
    #[inline(always)]
    pub fn begin_at(self, site: &Site<'_>, name: Option<&str>, flow: u64, args: &[u8]) -> Option<Slice> {
        let (name, tags) = (name.map(|name| cut(name, TRACK_NAME_MAX)), backend::valid(self.tag));
        Outcome::of(
            producer::write_as::<Traced>(Type::Begin, tags, name, &Call { site, flow, args }),
            self.tag,
        )
    }

    /// Begins a slice on a track, with encoded arguments, in Perfetto's memory. If `name` is `None`, the slice has
    /// the name of its callsite. If `flow` is not 0, the slice is part of that flow (see [`flow_number`]). If `time`
    /// is not 0, the slice began at that time, in nanoseconds of `CLOCK_BOOTTIME` (see [`now`]). A program that reads
    /// the trace while it is still being written may discard events with an old `time`.
    ///
    /// A thread describes a track to the service before its first event on the track, and remembers some tracks that it
    /// has described. So an event costs less on a track that the thread has used recently.
    #[inline(always)]
    pub fn begin_on_track_at(
        self,
        track: &NamedTrack<'_>,
        site: &Site<'_>,
        name: Option<&str>,
        (flow, time): (u64, u64),
        args: &[u8],
    ) -> Option<TrackSlice> {
        let name = name.map(|name| cut(name, TRACK_NAME_MAX));
        let (track, tags) = (track.track(), backend::valid(self.tag));
        let written =
            producer::write_as::<TracedOnTrack>(&track, tags, name, (time, &Call { site, flow, args }));
        Outcome::of(written, self.tag)
    }
}
