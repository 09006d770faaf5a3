//! The values that a tracer keeps for open slices, and that show whether the begin was written: [`Slice`] and
//! [`TrackSlice`].
//!
//! The backend that wrote the begin of a slice must also write the end, whichever tags are enabled by then. A forked
//! child has copies of its parent's slices and must not end them. A child is recognised by the generation of its
//! process ([`atrace_sys::fork`]), a number that differs from its parent's. So a [`Slice`] has an *origin*, which is
//! one word:
//!
//! ```text
//! by ATrace      the generation of the process
//! by Perfetto    bit 63 set, the generation above the tags, the tags
//! ```

use std::marker::PhantomData;
use std::num::NonZeroU64;

use atrace_sys::fork::{Generation, generation};

use crate::AtraceTag;
use crate::backend::{self, Outcome, emit};
use crate::message::Kind;
use crate::name::EventName;
use crate::producer::{self, Site, Track, TrackKey, Type, Written};

/// The origin of a slice: the process and the backend that wrote the begin and, for Perfetto's backend, the tags. This
/// backend must also write the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SliceOrigin(NonZeroU64);

/// The backend by which a slice must be ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SliceEnd {
    ByAtrace,
    ByPerfetto { tags: u64 },
}

const TAGS: u64 = AtraceTag::ValidMask.bits();
/// The bit of an origin ([`SliceOrigin`]) that marks a slice in Perfetto's memory. The generation of a process never
/// has this bit.
const BY_PERFETTO: u64 = 1 << 63;

/// Returns the origin ([`SliceOrigin`]) of a slice in Perfetto's memory, without the slice's tags.
#[inline(always)]
fn by_perfetto(generation: Generation) -> u64 {
    generation.number() << TAGS.trailing_ones() | BY_PERFETTO
}

impl SliceOrigin {
    /// Returns the origin ([`SliceOrigin`]) of a slice that this process begins now, or `None` if the origin's word
    /// would be 0.
    #[inline(always)]
    fn now(written: Written, tag: AtraceTag) -> Option<Self> {
        let word = match written {
            Written::ByAtrace => generation().number(),
            Written::ByPerfetto { .. } => by_perfetto(generation()) | (tag.bits() & TAGS),
        };
        NonZeroU64::new(word).map(Self)
    }

    /// Returns the backend by which the slice must be ended, or `None` if another process began it.
    #[inline(always)]
    fn end(self) -> Option<SliceEnd> {
        let (word, present) = (self.0.get(), generation());
        if word == present.number() {
            Some(SliceEnd::ByAtrace)
        } else if word & !TAGS == by_perfetto(present) {
            Some(SliceEnd::ByPerfetto { tags: word & TAGS })
        } else {
            None
        }
    }
}

/// A slice that the calling thread has begun and must end. The value exists only if the begin was written, or counts as
/// lost for Perfetto.
///
/// A `Slice` is for code that itself records which slices are open, such as a `tracing` subscriber. Dropping a
/// `Slice` writes no end. Other code should use [`ScopedEvent`](crate::ScopedEvent), which ends its slice when
/// it is dropped.
///
/// A `Slice` is neither `Send` nor `Sync`, because an end closes the youngest slice of the thread that writes the end.
///
/// ```compile_fail,E0277
/// fn is_send<T: Send>() {}
/// is_send::<atrace::tracer::Slice>();
/// ```
#[derive(Debug)]
#[must_use = "the slice stays open until `end` is called"]
pub struct Slice {
    origin: SliceOrigin,
    _not_send: PhantomData<*const ()>,
}

impl Slice {
    /// Writes the end if this process wrote the begin, even if the tag has been disabled meanwhile. If the slice is in
    /// Perfetto's memory, the end gets the arguments in `args`: the callsite, and the arguments that an [`Encoder`] has
    /// encoded for it.
    ///
    /// [`Encoder`]: crate::tracer::Encoder
    #[inline(always)]
    pub fn end(self, args: Option<(Site<'_>, &[u8])>) {
        match args {
            None => end_slice(self.origin),
            Some((site, args)) => end_slice_with(self.origin, site, args),
        }
    }
}

impl Outcome for Option<Slice> {
    #[inline(always)]
    fn of(written: Option<Written>, tag: AtraceTag) -> Self {
        Some(Slice { origin: SliceOrigin::now(written?, tag)?, _not_send: PhantomData })
    }
}

#[inline(never)]
fn end_slice(origin: SliceOrigin) {
    match origin.end() {
        Some(SliceEnd::ByAtrace) => backend::end_by_sink(),
        Some(SliceEnd::ByPerfetto { tags }) => producer::end(tags),
        None => {}
    }
}

#[inline(never)]
fn end_slice_with(origin: SliceOrigin, site: Site<'_>, args: &[u8]) {
    match origin.end() {
        Some(SliceEnd::ByPerfetto { tags }) => {
            let end = producer::Event::new(Type::End, tags);
            producer::write(&producer::Event { site: Some(site), args, ..end });
        }
        _ => end_slice(origin),
    }
}

/// An async slice on a named track, whose begin was written.
///
/// A `TrackSlice` may end on any thread. Dropping it writes no end.
#[derive(Debug)]
#[must_use = "the slice stays open until `end` is called"]
pub struct TrackSlice {
    by: Generation,
    /// The tags of the slice if the begin is in Perfetto's memory; otherwise no tags.
    tags: AtraceTag,
    /// The number of Perfetto sessions that had begun in this process before the slice began.
    begun: u32,
}

impl TrackSlice {
    /// Begins a slice as [`atrace_async_for_track_begin`](crate::atrace_async_for_track_begin) does, with a name of any
    /// type. Returns `None` if the begin was not written. It also returns `None` if the begin counts as lost for
    /// Perfetto, unlike [`Enabled::begin`](crate::tracer::Enabled::begin).
    #[inline(always)]
    pub fn begin(tag: AtraceTag, track_name: &str, name: impl EventName, cookie: i32) -> Option<Self> {
        emit(tag, track_name, name, move || Kind::TrackBegin(cookie.into()), ())
    }

    /// Writes the end if this process wrote the begin, even if the tag has been disabled meanwhile. `track` must be the
    /// track of the begin.
    ///
    /// If the slice is in Perfetto's memory, the end gets the arguments in `args`, as for [`Slice::end`], and its
    /// timestamp is `time`, in nanoseconds of `CLOCK_BOOTTIME` (see [`now`]). If `time` is 0, the timestamp is the
    /// present time.
    ///
    /// [`now`]: crate::tracer::now
    #[inline(always)]
    pub fn end(self, track: &NamedTrack<'_>, args: Option<(&Site<'_>, &[u8])>, time: u64) {
        if self.by != generation() {
            return;
        }
        if self.tags.is_empty() {
            backend::end_track_by_sink(track.name, track.cookie);
        } else {
            let (tags, (site, args)) = (backend::valid(self.tags), args.unzip());
            producer::end_traced(tags, &track.track(), site, time, self.begun, args.unwrap_or_default());
        }
    }
}

impl Outcome for Option<TrackSlice> {
    #[inline(always)]
    fn of(written: Option<Written>, tag: AtraceTag) -> Self {
        let (tags, begun) = match written? {
            Written::ByAtrace => (AtraceTag::Never, 0),
            Written::ByPerfetto { begun } => (tag & AtraceTag::ValidMask, begun),
        };
        Some(TrackSlice { by: generation(), tags, begun })
    }
}

/// A track of this process: a name, its hash, and a cookie that distinguishes tracks of one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NamedTrack<'a> {
    name: &'a str,
    hash: u64,
    cookie: i32,
}

impl<'a> NamedTrack<'a> {
    /// Returns the track with this name and this cookie. `hash` must be the result of [`hash_of`](Self::hash_of) for
    /// the name.
    #[inline(always)]
    pub const fn new(name: &'a str, hash: u64, cookie: i32) -> Self {
        Self { name, hash, cookie }
    }

    /// Returns the hash of a track's name.
    pub fn hash_of(name: &str) -> u64 {
        producer::hash::of_name(name)
    }

    #[inline(always)]
    pub(crate) fn track(&self) -> Track<'a> {
        // The type in the key does not matter here.
        Track::new(TrackKey::named(Type::Begin, self.cookie.into()), self.name, self.hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_ends_the_way_that_it_began_in_its_process() {
        let tag = AtraceTag::App | AtraceTag::View;
        let marked = SliceOrigin::now(Written::ByAtrace, tag).unwrap();
        assert_eq!(marked.end(), Some(SliceEnd::ByAtrace));
        let packed = SliceOrigin::now(Written::ByPerfetto { begun: 0 }, tag | AtraceTag::NotReady).unwrap();
        assert_eq!(packed.end(), Some(SliceEnd::ByPerfetto { tags: tag.bits() }));
        // A forked child has another generation number, so a slice of its parent has no end in the child.
        let other = 1 << TAGS.trailing_ones();
        assert_eq!(SliceOrigin(packed.0.checked_add(other).unwrap()).end(), None);
        assert_eq!(SliceOrigin(marked.0.checked_add(1).unwrap()).end(), None);
    }
}
