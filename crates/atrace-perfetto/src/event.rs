//! What is encoded: an event, its track and its value.

use crate::callsite::Site;

/// `TrackEvent.Type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Type {
    /// A slice begins.
    Begin = 1,
    /// The last slice of the track ends.
    End = 2,
    /// Something happens.
    Instant = 3,
    /// A counter has this value from now on.
    Counter = 4,
}

/// An event's kind and what tells apart tracks that have the same name, in one word, so that all of an event on a track is
/// passed in registers.
#[derive(Clone, Copy, Debug)]
pub struct TrackKey(u64);

/// Where the kind is, above a cookie of 32 bits and two bits of what a track is for.
const KIND_SHIFT: u32 = 56;

impl TrackKey {
    /// An instant on a named track.
    pub const INSTANT: Self = Self::new(Type::Instant, 2);
    /// A counter.
    pub const COUNTER: Self = Self::new(Type::Counter, 3);

    const fn new(kind: Type, number: u64) -> Self {
        Self((kind as u64) << KIND_SHIFT | number)
    }

    /// An async slice with this cookie, which has a track of its own.
    #[inline(always)]
    pub const fn of_async(kind: Type, cookie: i64) -> Self {
        Self::new(kind, (cookie as u32 as u64) << 2)
    }

    /// A slice with this cookie on a named track.
    #[inline(always)]
    pub const fn named(kind: Type, cookie: i64) -> Self {
        Self::new(kind, (cookie as u32 as u64) << 2 | 1)
    }

    /// The number without the kind.
    #[inline(always)]
    pub(crate) const fn number(self) -> u64 {
        self.0 & ((1 << KIND_SHIFT) - 1)
    }

    /// The kind.
    #[inline(always)]
    pub const fn kind(self) -> Type {
        match self.0 >> KIND_SHIFT {
            1 => Type::Begin,
            2 => Type::End,
            3 => Type::Instant,
            _ => Type::Counter,
        }
    }

    /// The cookie of a slice.
    pub const fn cookie(self) -> i64 {
        (self.0 >> 2) as i32 as i64
    }

    /// Whether it is of an async slice, which has a track of its own.
    pub const fn is_of_async(self) -> bool {
        self.0 & 3 == 0
    }
}

/// The backend that an event was written by. (Of a program that has both, so that the functions between an event and its encoder
/// end in jumps.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// ATrace's.
    ByAtrace,
    /// Perfetto's.
    ByPerfetto,
}

/// The value of a counter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// An integer.
    Whole(i64),
    /// A number with a fraction.
    Real(f64),
}

/// A track of the process. (How it is made: `producer.rs`.)
#[derive(Clone, Copy, Debug)]
pub struct Track<'a> {
    pub(crate) uuid: u64,
    /// The process' track.
    pub(crate) parent: u64,
    pub(crate) name: &'a str,
    pub(crate) is_counter: bool,
}

/// An event, as Perfetto is told it.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    /// What happens.
    pub kind: Type,
    /// The categories, by the bits of tags: sessions that want one of them get the event. An end does not name them.
    pub tags: u64,
    /// The track, unless it is the thread's.
    pub track: Option<Track<'a>>,
    /// The name.
    pub name: Option<&'a str>,
    /// The value of a counter.
    pub value: Option<Amount>,
    /// The callsite. Without a name, the event has the callsite's; an end has neither, only its arguments refer to it.
    pub site: Option<Site<'a>>,
    /// The flow that the event is part of; 0: none.
    pub flow: u64,
    /// Encoded fields of a `TrackEvent`: arguments and flows.
    pub args: &'a [u8],
    /// Sessions that are younger than this many don't get the event.
    pub begun: u32,
}

impl Event<'static> {
    /// An event of the calling thread without anything else.
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
            begun: u32::MAX,
        }
    }
}

impl Event<'_> {
    /// How many slices of the thread it opens: 1, 0, or -1 for the end of one.
    #[inline(always)]
    pub const fn opens(&self) -> i32 {
        match self.kind {
            Type::Begin if self.track.is_none() => 1,
            Type::End if self.track.is_none() => -1,
            _ => 0,
        }
    }

    /// The categories that its packet names.
    #[inline(always)]
    pub const fn categories(&self) -> u32 {
        if matches!(self.kind, Type::End) { 0 } else { self.tags as u32 }
    }

    /// Whether its packet names several categories.
    #[inline(always)]
    pub const fn has_categories(&self) -> bool {
        let categories = self.categories();
        categories & categories.wrapping_sub(1) != 0
    }
}
