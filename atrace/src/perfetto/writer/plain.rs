//! Events that are written at once: their chunk has room, and the reader knows what they name.
//!
//! Each function is false where that is not so, and has written nothing: [`Writer::any`] takes it from there.

use super::{ALL_LEVELS, REMEMBERED, Writer};
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
        if !self.is_plain(epoch, tags) {
            return false;
        }
        let time = now.max(self.last);
        if !packet::short(&mut self.chunk, kind, time - self.last, tags.trailing_zeros() + 1, name) {
            return false;
        }
        self.last = time;
        self.depth += u32::from(kind == Type::Begin);
        true
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
        if !self.is_plain(epoch, tags) {
            return false;
        }
        let time = now.max(self.last);
        let rich = Rich { site: None, name: Some(name), flow: 0, args: &[] };
        if !packet::rich(&mut self.chunk, kind, time - self.last, tags.trailing_zeros() + 1, rich) {
            return false;
        }
        self.last = time;
        self.depth += u32::from(kind == Type::Begin);
        true
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
        let is_told = event.site.is_none_or(|(number, _)| self.told_sites.has(number));
        if !self.is_plain(epoch, tags) || !is_told || self.categories & ALL_LEVELS == 0 {
            return false;
        }
        let time = now.max(self.last);
        if !packet::rich(&mut self.chunk, kind, time - self.last, tags.trailing_zeros() + 1, event) {
            return false;
        }
        self.last = time;
        self.depth += u32::from(kind == Type::Begin);
        true
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
        let is_short = track.name.len() <= SHORT && name.len() <= SHORT;
        if !is_short || !self.is_plain(epoch, tags) || self.chunk.room() < TRACK_ROOM {
            return false;
        }
        let time = now.max(self.last);
        packet::on_track(&mut self.chunk, time - self.last, tags.trailing_zeros() + 1, track, name);
        self.last = time;
        true
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
        if !self.is_plain(epoch, tags) || !self.told_sites.has(number) {
            return false;
        }
        let time = now.max(self.last);
        if !packet::named(&mut self.chunk, kind, time - self.last, tags.trailing_zeros() + 1, number) {
            return false;
        }
        self.last = time;
        self.depth += u32::from(kind == Type::Begin);
        true
    }

    /// [`short`](Self::short) with more than a name; of a callsite that has a number, if of any.
    pub(in crate::perfetto) fn rich(&mut self, epoch: u32, event: &Long<'_>, now: u64) -> bool {
        if !self.is_plain(epoch, event.tags) || !self.is_told(event.site.as_ref()) {
            return false;
        }
        let time = now.max(self.last);
        if !packet::long(&mut self.chunk, time - self.last, event) {
            return false;
        }
        self.last = time;
        self.depth += u32::from(event.kind == Type::Begin);
        true
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
        if !self.is_plain(epoch, tags) || self.counters[track as usize % REMEMBERED] != track {
            return false;
        }
        let time = now.max(self.last);
        if !packet::counter(&mut self.chunk, time - self.last, tags.trailing_zeros() + 1, track, value) {
            return false;
        }
        self.last = time;
        true
    }

    /// Writes an event on a track of its own, which is described first, where nothing stands against it.
    #[inline(always)]
    pub(in crate::perfetto) fn on_track(
        &mut self,
        epoch: u32,
        event: &Long<'_>,
        track: &Described<'_>,
        now: u64,
    ) -> bool {
        let is_named = event.tags as u32 & !self.categories == 0;
        if self.epoch != epoch
            || !self.debts.is_none()
            || !is_named
            || !self.is_told(event.site.as_ref())
            || self.chunk.room() < event.room() + track.room()
        {
            return false;
        }
        if !self.knows(track) && !packet::describe(&mut self.chunk, track) {
            return false;
        }
        let time = now.max(self.last);
        let is_written = packet::long(&mut self.chunk, time - self.last, event);
        if is_written {
            self.last = time;
        }
        is_written
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

    /// Writes the end of a slice with arguments, where nothing stands against it.
    #[inline]
    pub(in crate::perfetto) fn end_with(&mut self, epoch: u32, now: u64, args: &[u8]) -> bool {
        let time = now.max(self.last);
        let event = Long { args, ..Long::new(Type::End, 0) };
        let is_written = self.epoch == epoch
            && self.debts.is_none()
            && self.depth > 0
            && packet::long(&mut self.chunk, time - self.last, &event);
        if is_written {
            self.last = time;
            self.depth -= 1;
        }
        is_written
    }

    /// Writes the end of a slice, where nothing stands against it.
    #[inline(always)]
    pub(in crate::perfetto) fn end(&mut self, epoch: u32, now: u64) -> bool {
        let time = now.max(self.last);
        let is_written = self.epoch == epoch
            && self.debts.is_none()
            && self.depth > 0
            && packet::end(&mut self.chunk, time - self.last);
        if is_written {
            self.last = time;
            self.depth -= 1;
        }
        is_written
    }
}
