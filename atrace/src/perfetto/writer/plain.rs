//! Events that are written at once: their chunk has room, and the reader knows what they name.
//!
//! Each function is false where that is not so, and has written nothing: [`Writer::any`] takes it from there.

use super::{ALL_LEVELS, Event, Place, REMEMBERED, Writer};
use crate::callsite::Site;
use crate::perfetto::packet::{self, Described, Long, Rich, SHORT, TRACK_ROOM, Type};

impl Writer {
    /// Writes the begin of a slice, or an instant, where nothing stands against it.
    #[inline(always)]
    pub(in crate::perfetto) fn short(
        &mut self,
        epoch: u32,
        kind: Type,
        tags: u64,
        now: u64,
        name: &[u8],
    ) -> bool {
        let since = self.since(now);
        self.is_plain(epoch, tags)
            && packet::short(&mut self.chunk, kind, since, category(tags), name)
            && self.wrote(since, opens(kind))
    }

    /// [`short`](Self::short) with a name of any length.
    #[inline(always)]
    pub(in crate::perfetto) fn lengthy(
        &mut self,
        epoch: u32,
        kind: Type,
        tags: u64,
        now: u64,
        name: &[u8],
    ) -> bool {
        let since = self.since(now);
        let rich = Rich { site: None, name: Some(name), flow: 0, args: &[] };
        self.is_plain(epoch, tags)
            && packet::rich(&mut self.chunk, kind, since, category(tags), rich)
            && self.wrote(since, opens(kind))
    }

    /// [`short`](Self::short) with more than a name, of a tracer's callsite that has a number.
    #[inline(always)]
    pub(in crate::perfetto) fn known(
        &mut self,
        epoch: u32,
        kind: Type,
        tags: u64,
        now: u64,
        event: Rich<'_>,
    ) -> bool {
        let since = self.since(now);
        let is_told = event.site.is_none_or(|(number, _)| self.told_sites.has(number));
        self.is_plain(epoch, tags)
            && is_told
            && self.categories & ALL_LEVELS != 0
            && packet::rich(&mut self.chunk, kind, since, category(tags), event)
            && self.wrote(since, opens(kind))
    }

    /// Writes the begin of a slice on a track of its own, which is described first, where nothing stands against it and names
    /// are short.
    #[inline(always)]
    pub(in crate::perfetto) fn begin_on_track(
        &mut self,
        epoch: u32,
        tags: u64,
        now: u64,
        track: &Described<'_>,
        name: &[u8],
    ) -> bool {
        let since = self.since(now);
        let is_short = track.name.len() <= SHORT && name.len() <= SHORT;
        if !is_short || !self.is_plain(epoch, tags) || self.chunk.room() < TRACK_ROOM {
            return false;
        }
        packet::on_track(&mut self.chunk, since, category(tags), track, name);
        self.wrote(since, 0)
    }

    /// [`short`](Self::short) with the name of a callsite that has this number.
    #[inline(always)]
    pub(in crate::perfetto) fn named(
        &mut self,
        epoch: u32,
        kind: Type,
        tags: u64,
        now: u64,
        number: u32,
    ) -> bool {
        let since = self.since(now);
        self.is_plain(epoch, tags)
            && self.told_sites.has(number)
            && packet::named(&mut self.chunk, kind, since, category(tags), number)
            && self.wrote(since, opens(kind))
    }

    /// Sets a counter that is described, where nothing stands against it.
    #[inline(always)]
    pub(in crate::perfetto) fn counter(
        &mut self,
        epoch: u32,
        tags: u64,
        now: u64,
        track: u64,
        value: i64,
    ) -> bool {
        let since = self.since(now);
        self.is_plain(epoch, tags)
            && self.counters[track as usize % REMEMBERED] == track
            && packet::counter(&mut self.chunk, since, category(tags), track, value)
            && self.wrote(since, 0)
    }

    /// Writes the end of a slice, where nothing stands against it.
    #[inline(always)]
    pub(in crate::perfetto) fn end(&mut self, epoch: u32, now: u64) -> bool {
        let since = self.since(now);
        self.may_end(epoch) && packet::end(&mut self.chunk, since) && self.wrote(since, -1)
    }

    /// Writes any event, at once where nothing stands against it; what it returns is [`any`](Self::any)'s.
    #[inline(never)]
    pub(in crate::perfetto) fn event(&mut self, place: &Place, event: &Event<'_>, now: u64) -> bool {
        let (epoch, long) = (place.epoch, &event.long);
        let is_written = match &event.track {
            Some(track) => self.may_begin_on(epoch, long, track) && self.long(long, now, 0),
            None => match long {
                Long { kind: Type::End, .. } => {
                    self.may_end(epoch) && self.is_told(long.site.as_ref()) && self.long(long, now, -1)
                }
                // Where there are several sessions, most are such events.
                &Long {
                    kind,
                    tags,
                    track: None,
                    name: Some(name),
                    amount: None,
                    site: None,
                    flow: 0,
                    args: [],
                } if !cfg!(small) && name.len() <= SHORT => self.short(epoch, kind, tags, now, name),
                _ => {
                    let is_plain = self.is_plain(epoch, long.tags) && self.is_told(long.site.as_ref());
                    is_plain && self.long(long, now, opens(long.kind))
                }
            },
        };
        is_written || self.any(place, event, now)
    }

    /// Writes an event that nothing stands against, where there is room for it.
    #[inline(always)]
    fn long(&mut self, event: &Long<'_>, now: u64, opened: i32) -> bool {
        let since = self.since(now);
        packet::long(&mut self.chunk, since, event) && self.wrote(since, opened)
    }

    /// Whether nothing stands against an event on a track of its own; the track is described.
    #[inline(always)]
    fn may_begin_on(&mut self, epoch: u32, event: &Long<'_>, track: &Described<'_>) -> bool {
        let is_named = event.tags as u32 & !self.categories == 0;
        self.epoch == epoch
            && self.debts.is_none()
            && is_named
            && self.is_told(event.site.as_ref())
            && self.chunk.room() >= event.room() + track.room()
            && (self.knows(track) || packet::describe(&mut self.chunk, track))
    }

    /// How long after the last packet this is: times never go back.
    #[inline(always)]
    pub(super) const fn since(&self, now: u64) -> u64 {
        now.saturating_sub(self.last)
    }

    /// A packet was written, so long after the one before; it opened so many slices of the thread. True.
    #[inline(always)]
    pub(super) const fn wrote(&mut self, since: u64, opened: i32) -> bool {
        self.last += since;
        self.depth = self.depth.wrapping_add_signed(opened);
        true
    }

    /// Whether readers know all that never changes of the callsite, if it is one.
    #[inline(always)]
    fn is_told(&self, site: Option<&Site<'_>>) -> bool {
        site.is_none_or(|site| {
            self.told_sites.has(site.number) && (site.about.is_none() || self.categories & ALL_LEVELS != 0)
        })
    }

    /// Whether nothing stands against an event of the thread's track that is no end: one category, which was named.
    #[inline(always)]
    fn is_plain(&self, epoch: u32, tags: u64) -> bool {
        self.epoch == epoch
            && self.debts.is_none()
            && tags as u32 & self.categories != 0
            && tags & (tags - 1) == 0
    }

    /// Whether nothing stands against the end of a slice of the thread's track.
    #[inline(always)]
    fn may_end(&self, epoch: u32) -> bool {
        self.epoch == epoch && self.debts.is_none() && self.depth > 0
    }
}

/// How many slices of the thread an event of this kind opens, which ends none.
#[inline(always)]
const fn opens(kind: Type) -> i32 {
    matches!(kind, Type::Begin) as i32
}

/// The number of the one category of these tags.
#[inline(always)]
const fn category(tags: u64) -> u32 {
    tags.trailing_zeros() + 1
}
