//! The input of the encoder: an event, its track and its value; and the forms of events.
//!
//! # Events
//!
//! An [`Event`] has a field for everything that the packet of an event can contain; most fields are optional. The
//! encoder (`packet.rs`) is inlined. So if the compiler knows that a field is absent, it generates no code for this
//! field. Only events with long texts have another encoder (`packet/whole.rs`).
//!
//! # Tracks and callsites
//!
//! An event is on the calling thread's track, unless it names another [`Track`]. A [`TrackKey`] and a name identify a
//! track: [`Track::new`] computes the track's number from both. Before a writer (a thread's state for a session) writes
//! an event on the track, it writes a description of the track, with the track's name.
//!
//! A callsite ([`Site`]) is the place in the program that writes the event. It has the data that all its events share:
//! a name, a source location, the names of the arguments. A writer writes these data once for each incremental state
//! (it *interns* them), and the packets of events contain only the callsite's number. An event without a name of its
//! own has the name of its callsite.
//!
//! # Forms
//!
//! A [`Form`] is a set of events with the same fields: for example, the form [`Named`] consists of the instants and
//! slice begins that have an interned name and are on the calling thread's track. An [`Event`] has too many fields to
//! be passed in registers. So callers of [`write_as`](crate::producer::write_as) pass only a few arguments, from which
//! [`Form::event`] makes the event. `write_as` is compiled for each form, and so encodes only the fields that the form
//! has. The constants of a form select the fast paths for its events. Counters and ends have functions of their own,
//! which have fast paths, too. An event with arguments but without a tracer's callsite is passed to
//! [`write`](crate::producer::write()).

use std::fmt;

use atrace_sys::text::cut;

use crate::args::{Put, TRACK_NAME_MAX};
use crate::callsite::{Number, Site};
use crate::hash;
use crate::track;

/// The type of an event. The numbers are those of Perfetto's `TrackEvent.Type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Type {
    /// A slice begins.
    Begin = 1,
    /// The innermost open slice of the track ends.
    End = 2,
    /// An event without a duration.
    Instant = 3,
    /// A counter gets a new value.
    Counter = 4,
}

/// A key that, together with a track's name, identifies the track. The key also holds the type of the event that is
/// written on the track.
///
/// The key is packed into one word, so that an event on a track can be passed in registers.
#[derive(Clone, Copy, Debug)]
pub struct TrackKey(u64);

/// The position of the lowest bit of the event's type in the key. Below the type are a cookie of 32 bits and, in bits 0
/// and 1, the kind of track.
const KIND_SHIFT: u32 = 56;

impl TrackKey {
    /// The key of an instant on a named track.
    pub const INSTANT: Self = Self::new(Type::Instant, 2);
    /// The key of a counter.
    pub const COUNTER: Self = Self::new(Type::Counter, 3);

    const fn new(kind: Type, number: u64) -> Self {
        Self((kind as u64) << KIND_SHIFT | number)
    }

    /// Returns the key of an async slice with this cookie. Such a slice has a track of its own.
    #[inline(always)]
    pub const fn of_async(kind: Type, cookie: i64) -> Self {
        Self::new(kind, (cookie as u32 as u64) << 2)
    }

    /// Returns the key of a slice with this cookie on a named track.
    #[inline(always)]
    pub const fn named(kind: Type, cookie: i64) -> Self {
        Self::new(kind, (cookie as u32 as u64) << 2 | 1)
    }

    /// Returns the key as a number, without the type of the event.
    #[inline(always)]
    pub(crate) const fn number(self) -> u64 {
        self.0 & ((1 << KIND_SHIFT) - 1)
    }

    /// Returns the type of the event.
    #[inline(always)]
    pub const fn kind(self) -> Type {
        // The lowest two bits identify the type, because the type 4 (counters) becomes 0, which no other type has. With
        // two bits, the compiler needs no comparison.
        match self.0 >> KIND_SHIFT & 3 {
            1 => Type::Begin,
            2 => Type::End,
            3 => Type::Instant,
            _ => Type::Counter,
        }
    }
}

/// The backend that wrote an event.
///
/// This crate returns only [`ByPerfetto`](Self::ByPerfetto). In a program with both backends, all functions between an
/// event and its encoder return this type, so that their calls can be tail calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// The event was written for ATrace.
    ByAtrace,
    /// The event was written by Perfetto's producer.
    ByPerfetto {
        /// For the begin of a slice on a track, a number that is larger than the number of each session that got the
        /// event, and not larger than the number of any later session. The end of the slice must have this number as
        /// its [`Event::begun`]. For other events, this field is 0 or such a number.
        begun: u32,
    },
}

/// The value of a counter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// An integer.
    Whole(i64),
    /// A floating-point number.
    Real(f64),
}

/// The maximum length in bytes of a text that is written in one packet of one chunk. Such a text fits into an empty
/// chunk that fills a page ([`Layout::Whole`](crate::abi::Layout::Whole)), together with the definitions at the chunk's
/// start.
pub(crate) const TEXT_MAX: usize = 6 << 10;
/// The maximum length in bytes of a name in a packet whose length fields have one byte each.
pub(crate) const SHORT: usize = 96;

/// A track of this process.
#[derive(Clone, Copy, Debug)]
pub struct Track<'a> {
    pub(crate) uuid: u64,
    /// The number of the track below which this track is shown: the process's track or, for the counter of a thread's
    /// processor time, the thread's track.
    pub(crate) parent: u64,
    pub(crate) name: &'a str,
    pub(crate) is_counter: bool,
    /// Whether a writer remembers that it has described the track, so that it does not describe the track before each
    /// event. This is true for the program's counters, and for the tracks of [`TracedOnTrack`] and
    /// [`end_traced`](crate::producer::end_traced).
    pub(crate) is_kept: bool,
}

impl<'a> Track<'a> {
    /// Returns the track with this key and name.
    #[inline(never)]
    pub fn of(key: TrackKey, name: &'a str) -> Self {
        Self::new(key, name, hash::of_name(name))
    }

    /// Returns the track of a counter. `hash` is the result of [`hash::of_name`] for the name.
    #[inline(always)]
    pub fn counter(name: &'a str, hash: u64) -> Self {
        Self { is_counter: true, is_kept: true, ..Self::new(TrackKey::COUNTER, name, hash) }
    }

    /// Returns the track with this key and name. `hash` is the result of [`hash::of_name`] for the name.
    #[inline(always)]
    pub fn new(key: TrackKey, name: &'a str, hash: u64) -> Self {
        let parent = track::process_track();
        let seed = parent ^ key.number().wrapping_mul(0xd6e8_feb8_6659_fd93);
        let uuid = track::number(hash::seeded(seed, hash));
        Self { uuid, parent, name: cut(name, TRACK_NAME_MAX), is_counter: false, is_kept: false }
    }
}

/// An event to be encoded.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    /// The type of the event.
    pub kind: Type,
    /// The tags of the event, which are its categories. Only sessions that want at least one of the tags get the event.
    /// The packet of an end names no categories.
    pub tags: u64,
    /// The track of the event. `None` means the calling thread's track.
    pub track: Option<Track<'a>>,
    /// The name of the event. If the event also has a callsite, a name of more than [`TRACK_NAME_MAX`] bytes may be cut
    /// to that length.
    pub name: Option<&'a str>,
    /// The value of a counter.
    pub value: Option<Amount>,
    /// The callsite. An event without a name has the callsite's name. An end has neither a name nor a source
    /// location; its callsite is only needed for the names of its arguments.
    pub site: Option<Site<'a>>,
    /// The flow to which the event belongs, or 0 for none.
    pub flow: u64,
    /// Encoded fields of a `TrackEvent`: arguments and flows.
    pub args: &'a [u8],
    /// All arguments, if they do not fit into `args`; `args` then has the same arguments, but cut. The end of a slice
    /// of the thread never has this field. All arguments are written only if the event has no value, flow or time, and
    /// if one of these is true:
    ///
    /// - the event has no callsite;
    /// - the event has no name of its own, and its callsite has a number and no metadata.
    ///
    /// Otherwise, the cut arguments are written.
    pub whole_args: Option<WholeArgs<'a>>,
    /// The time of the event in nanoseconds of `CLOCK_BOOTTIME`, or 0 for the present time. Only an event with a
    /// `track` may have a time other than 0.
    pub time: u64,
    /// Only sessions whose number is smaller than this value get the event. So the end of a slice goes only to the
    /// sessions that had begun before the slice began.
    pub begun: u32,
    /// The sessions that may get the event: bit `n` stands for the session in slot `n` of the pool. If the service has
    /// not yet reported its sessions, and one of these sessions is not open, the event waits for the report, or counts
    /// as lost.
    pub sessions: u32,
}

/// Arguments of any length: a function that passes the encoded bytes to its parameter, piece by piece. Each call
/// passes the same bytes.
#[derive(Clone, Copy)]
pub struct WholeArgs<'a>(pub &'a dyn Fn(&mut Put<'_>));

impl fmt::Debug for WholeArgs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WholeArgs")
    }
}

impl Event<'static> {
    /// The value of [`sessions`](Self::sessions) for an event that no session has got yet.
    pub const ALL: u32 = u32::MAX;

    /// Creates an event of the calling thread without optional fields.
    #[inline(always)]
    pub const fn new(kind: Type, tags: u64) -> Self {
        Self {
            kind,
            tags,
            track: None,
            name: None,
            value: None,
            site: None,
            flow: 0,
            args: &[],
            whole_args: None,
            time: 0,
            begun: u32::MAX,
            sessions: Self::ALL,
        }
    }
}

impl Event<'_> {
    /// Returns by how much the event changes the number of open slices of its thread: 1 for a begin, -1 for an end,
    /// and 0 for other events and for events on other tracks.
    #[inline(always)]
    pub const fn opens(&self) -> i32 {
        match self.kind {
            Type::Begin if self.track.is_none() => 1,
            Type::End if self.track.is_none() => -1,
            _ => 0,
        }
    }

    /// Returns the categories that the packet names, as the bits of tags.
    #[inline(always)]
    pub const fn categories(&self) -> u32 {
        if matches!(self.kind, Type::End) { 0 } else { self.tags as u32 }
    }

    /// Returns whether the packet names more than one category.
    #[inline(always)]
    pub const fn has_categories(&self) -> bool {
        let categories = self.categories();
        categories & categories.wrapping_sub(1) != 0
    }

    /// Returns whether the event may be too long for one packet in an empty chunk.
    #[inline(always)]
    pub(crate) fn is_long(&self) -> bool {
        // An event with a callsite also needs room for the callsite's definitions, beside a name of its own.
        let max = if self.site.is_some() { TRACK_NAME_MAX } else { TEXT_MAX };
        self.whole_args.is_some() || self.name.is_some_and(|name| name.len() > max)
    }

    /// Returns whether the event has only fields that [`whole_event`](crate::packet::whole_event) writes.
    pub(crate) fn may_be_whole(&self) -> bool {
        let site = self.site.as_ref();
        site.is_none_or(|site| self.name.is_none() && site.has_number() && site.about.is_none())
            && (self.value, self.flow, self.time) == (None, 0, 0)
    }

    /// Returns a copy of the event whose name and arguments are cut, so that it fits into one packet of one chunk.
    #[inline(never)]
    pub(crate) fn cut(&self) -> Self {
        Self { name: self.name.map(|name| cut(name, TRACK_NAME_MAX)), whole_args: None, ..*self }
    }
}

/// Keeps other crates from implementing [`Form`], because the encoder relies on the constants of a form.
mod sealed {
    pub trait Sealed {}
}

impl sealed::Sealed for ShortText {}
impl sealed::Sealed for LongText {}
impl sealed::Sealed for Named {}
impl sealed::Sealed for OnTrack {}
impl sealed::Sealed for Traced {}
impl sealed::Sealed for TracedOnTrack {}
impl sealed::Sealed for End {}

/// A form of events: the fields that its events have, and the function that makes an event from a call's arguments. The
/// arguments are passed in registers. [`write_as`](crate::producer::write_as) writes an event of a form.
pub trait Form<'a>: sealed::Sealed {
    /// The event's type; for an event on a track, the track's key or the track itself.
    type Key: Copy;
    /// The name of the event or of its track.
    type Text: Copy;
    /// The data of the event apart from its key, tags and text.
    type More: Copy;
    /// Whether all lengths in the packet fit into one byte each. `packet::event` has a parameter with the same meaning.
    const IS_SHORT: bool;
    /// Whether the events are often so long that they need a new chunk.
    const IS_LONG: bool = false;
    /// Whether the events are so frequent that the form has a fast path for several open sessions, too.
    const IS_FOR_SEVERAL: bool = false;

    /// Returns whether the form has events with this key. After this check, the compiler drops the code for events with
    /// other keys.
    #[inline(always)]
    fn has(_: Self::Key) -> bool {
        true
    }

    /// Makes the event.
    fn event(key: Self::Key, tags: u64, text: Self::Text, more: Self::More) -> Event<'a>;

    /// Makes the event for the fast paths. It has no interned texts, because the fast paths don't need these. Returns
    /// `None` if the event can't take a fast path; the compiler then omits the code for such events from the fast
    /// paths.
    #[inline(always)]
    fn usual(key: Self::Key, tags: u64, text: Self::Text, more: Self::More) -> Option<Event<'a>> {
        Some(Self::event(key, tags, text, more))
    }
}

/// Returns whether events of this type have names. Ends have none, so there is no form for an end with a name. (The
/// function tests for this one type, because a test for two types would cost ten instructions.)
#[inline(always)]
const fn has_name(kind: Type) -> bool {
    !matches!(kind, Type::End)
}

/// A text of at most [`SHORT`] bytes, which fits into a packet whose length fields have one byte each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Short<'a>(&'a str);

impl<'a> Short<'a> {
    /// Returns the text, or `None` if it is longer than [`SHORT`] bytes.
    #[inline(always)]
    pub(crate) const fn new(text: &'a str) -> Option<Self> {
        if text.len() <= SHORT { Some(Self(text)) } else { None }
    }
}

/// Instants and begins of slices of the calling thread, with a short name.
#[derive(Debug)]
pub(crate) struct ShortText;

impl<'a> Form<'a> for ShortText {
    type Key = Type;
    type Text = Short<'a>;
    type More = ();
    const IS_SHORT: bool = true;
    const IS_FOR_SEVERAL: bool = true;

    #[inline(always)]
    fn event(kind: Type, tags: u64, name: Short<'a>, (): ()) -> Event<'a> {
        Event { name: Some(name.0), ..Event::new(kind, tags) }
    }

    #[inline(always)]
    fn has(kind: Type) -> bool {
        has_name(kind)
    }
}

/// Instants and begins of slices of the calling thread, with a name of any length.
#[derive(Debug)]
pub(crate) struct LongText;

impl<'a> Form<'a> for LongText {
    type Key = Type;
    type Text = &'a str;
    type More = ();
    const IS_SHORT: bool = false;
    const IS_LONG: bool = true;

    #[inline(always)]
    fn event(kind: Type, tags: u64, name: &'a str, (): ()) -> Event<'a> {
        Event { name: Some(name), ..Event::new(kind, tags) }
    }

    #[inline(always)]
    fn has(kind: Type) -> bool {
        has_name(kind)
    }
}

/// Instants and begins of slices of the calling thread, with a name that is interned under a callsite's number: later
/// packets have the number instead of the name.
#[derive(Debug)]
pub struct Named;

impl<'a> Form<'a> for Named {
    type Key = Type;
    type Text = &'a str;
    type More = &'a Number;
    const IS_SHORT: bool = true;
    const IS_FOR_SEVERAL: bool = true;

    /// Returns the event. If all callsite numbers are in use, the name is written like any other text.
    #[inline(always)]
    fn event(kind: Type, tags: u64, name: &'a str, number: &'a Number) -> Event<'a> {
        let site = Site::named(number, name);
        let event = Event::new(kind, tags);
        if site.has_number() {
            Event { site: Some(site), ..event }
        } else {
            Event { name: Some(name), ..event }
        }
    }

    #[inline(always)]
    fn has(kind: Type) -> bool {
        has_name(kind)
    }

    #[inline(always)]
    fn usual(kind: Type, tags: u64, _: &'a str, number: &'a Number) -> Option<Event<'a>> {
        let site = Site::named(number, "");
        site.has_number().then_some(Event { site: Some(site), ..Event::new(kind, tags) })
    }
}

/// Events on a track other than the thread's. `Key` is the track's key, `Text` the track's name, and `More` the event's
/// name.
#[derive(Debug)]
pub struct OnTrack;

impl<'a> Form<'a> for OnTrack {
    type Key = TrackKey;
    type Text = &'a str;
    type More = Option<&'a str>;
    const IS_SHORT: bool = true;

    #[inline(always)]
    fn event(key: TrackKey, tags: u64, track: &'a str, name: Option<&'a str>) -> Event<'a> {
        Event { track: Some(Track::of(key, track)), name, ..Event::new(key.kind(), tags) }
    }

    #[inline(always)]
    fn usual(key: TrackKey, tags: u64, track: &'a str, name: Option<&'a str>) -> Option<Event<'a>> {
        let is_short = |text: &str| text.len() <= SHORT;
        if !is_short(track) || !name.is_none_or(is_short) {
            return None;
        }
        let kind = key.kind();
        // This does the same as `Track::of`, but is inlined.
        let track = Track::new(key, track, hash::of_name(track));
        Some(Event { track: Some(track), name, ..Event::new(kind, tags) })
    }
}

/// A call of a tracer: its callsite, its flow, and its encoded arguments.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The callsite.
    pub site: &'a Site<'a>,
    /// The flow to which the event belongs, or 0 for none.
    pub flow: u64,
    /// Encoded arguments.
    pub args: &'a [u8],
}

/// Instants and begins of slices of the calling thread, for a tracer's callsite. If the name is `None`, the event has the
/// callsite's name; a name of more than [`TRACK_NAME_MAX`] bytes may be cut to that length.
#[derive(Debug)]
pub struct Traced;

impl<'a> Form<'a> for Traced {
    type Key = Type;
    type Text = Option<&'a str>;
    type More = &'a Call<'a>;
    const IS_SHORT: bool = false;
    const IS_FOR_SEVERAL: bool = true;

    #[inline(always)]
    fn event(kind: Type, tags: u64, name: Option<&'a str>, call: &'a Call<'a>) -> Event<'a> {
        let Call { site, flow, args } = *call;
        Event { name, site: Some(*site), flow, args, ..Event::new(kind, tags) }
    }

    #[inline(always)]
    fn has(kind: Type) -> bool {
        has_name(kind)
    }

    #[inline(always)]
    fn usual(kind: Type, tags: u64, name: Option<&'a str>, call: &'a Call<'a>) -> Option<Event<'a>> {
        let site = Site { name: "", ..*call.site };
        // Nearly every callsite has a number and metadata.
        let is_usual = site.has_number() && site.about.is_some();
        is_usual.then_some(Event { site: Some(site), ..Self::event(kind, tags, name, call) })
    }
}

/// Begins of slices on a track, for a tracer's callsite. The number in `More` is a time in nanoseconds: the slice
/// begins at this time, or now if the number is 0.
#[derive(Debug)]
pub struct TracedOnTrack;

impl<'a> Form<'a> for TracedOnTrack {
    type Key = &'a Track<'a>;
    type Text = Option<&'a str>;
    type More = (u64, &'a Call<'a>);
    const IS_SHORT: bool = false;

    #[inline(always)]
    fn event(track: &'a Track<'a>, tags: u64, name: Option<&'a str>, (time, call): Self::More) -> Event<'a> {
        let track = Some(Track { is_kept: true, ..*track });
        Event { track, time, ..Traced::event(Type::Begin, tags, name, call) }
    }

    #[inline(always)]
    fn usual(
        track: &'a Track<'a>,
        tags: u64,
        name: Option<&'a str>,
        (time, call): Self::More,
    ) -> Option<Event<'a>> {
        let event = Traced::usual(Type::Begin, tags, name, call)?;
        Some(Event { track: Some(Track { is_kept: true, ..*track }), time, ..event })
    }
}

/// Ends of the calling thread's innermost slice.
#[derive(Debug)]
pub(crate) struct End;

impl<'a> Form<'a> for End {
    type Key = ();
    type Text = ();
    type More = ();
    const IS_SHORT: bool = true;
    const IS_FOR_SEVERAL: bool = true;

    #[inline(always)]
    fn event((): (), tags: u64, (): (), (): ()) -> Event<'a> {
        Event::new(Type::End, tags)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_form_with_a_name_has_ends() {
        for kind in [Type::Begin, Type::End, Type::Instant] {
            let have = [ShortText::has(kind), LongText::has(kind), Named::has(kind), Traced::has(kind)];
            assert_eq!(have, [kind != Type::End; 4], "{kind:?}");
        }
    }
}
