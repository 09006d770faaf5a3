//! What an event looks like in Perfetto's memory: packets, written in place.
//!
//! A packet is its length and a `TracePacket` with a `TrackEvent`. Events of a thread's own track with a name of up to
//! [`SHORT`] bytes, nearly all, have lengths of one byte and are put together from a few words; all others have lengths of
//! two bytes. Both are varints, of which the shortest form is not demanded. Times are differences to the packet before.
//!
//! What a callsite never changes is in a packet of its own, [`tell`]; events then have its number in place of names. All
//! its numbers have fixed lengths.
//!
//! Source: Perfetto's `trace_packet.proto`, `track_event.proto`, `track_descriptor.proto`, `interned_data.proto`,
//! `debug_annotation.proto`.

#![expect(
    unsafe_code,
    reason = "packets are written into shared memory, whose room was asked for once and not for each byte"
)]

mod put;
pub(super) mod state;

use atrace_sys::perfetto::memory::Chunk;

pub(super) use self::put::SHORT;
use self::put::{Put, SITE_NAME_MAX, SITE_TEXT_MAX, known, pair, wide};

pub(super) use crate::args::TEXT_MAX;
use crate::args::{FLOW_ROOM, NAME_MAX as ARG_NAME_MAX, cut, flow, key_number};
use crate::callsite::Site;
use crate::hash::{FACTOR, mix};

/// The room that such a packet needs, and that of an end.
pub(super) const SHORT_ROOM: usize = 128;
pub(super) const END_ROOM: usize = 24;
/// The room that a packet with a callsite's number in place of a name needs.
const NAMED_ROOM: usize = 32;
/// The room that a counter's value needs.
const COUNTER_ROOM: usize = 48;
/// What a packet of an event of the thread's track needs beside its texts.
const RICH_ROOM: usize = 80;
/// The room that an event on a track of its own needs, with short names, and the track's description.
pub(super) const TRACK_ROOM: usize = 2 * SHORT_ROOM + 16;
/// What a longer packet needs beside its texts: an event with a track's number, all categories, a callsite and a value,
/// and a track's description.
pub(super) const LONG_ROOM: usize = 160;

/// `TrackEvent.Type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Type {
    Begin = 1,
    End = 2,
    Instant = 3,
    Counter = 4,
}

/// A counter's value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Amount {
    Whole(i64),
    Real(f64),
}

/// Writes the begin of a slice, or an instant, of the thread's track, with one category. False where the name is too
/// long or there is no room.
#[inline(always)]
pub(super) fn short(chunk: &mut Chunk, kind: Type, since: u64, category: u32, name: &[u8]) -> bool {
    if name.len() > SHORT || chunk.room() < SHORT_ROOM {
        return false;
    }
    let start = chunk.at();
    // SAFETY: at most 1 + 11 + 8 + 3 + 96 bytes are written, and one beyond them.
    unsafe {
        let mut put = Put(start.add(1));
        put.since(since);
        // sequence_flags: 2, track_event: its length, type, category_iids
        let len = 7 + name.len() as u8;
        put.bytes([0x68, 2, 0x5a, len, 0x48, kind as u8, 0x18, category as u8]);
        put.0.cast::<[u8; 4]>().write_unaligned([0xba, 1, name.len() as u8, 0]);
        put.0 = put.0.add(3);
        put.short_text(name);
        start.write((put.0.addr() - start.addr() - 1) as u8);
        chunk.publish(put.0);
    }
    true
}

/// What an event of the thread's track has beside its kind and category.
#[derive(Clone, Copy)]
pub(super) struct Rich<'a> {
    /// The number and the level of a callsite that was told. Without a name, the event has its name.
    pub(super) site: Option<(u32, u8)>,
    pub(super) name: Option<&'a [u8]>,
    /// A flow that it is part of; 0: of none.
    pub(super) flow: u64,
    /// Fields that were encoded before: arguments and flows.
    pub(super) args: &'a [u8],
}

/// [`short`] with more than a name, or one of any length. False where it is too long for a chunk, or there is no room.
#[inline(always)]
pub(super) fn rich(chunk: &mut Chunk, kind: Type, since: u64, category: u32, event: Rich<'_>) -> bool {
    // No address space is so large that lengths add up to 2^64.
    if chunk.room() < RICH_ROOM + event.name.map_or(0, <[u8]>::len) + event.args.len() {
        return false;
    }
    let (by_number, site) = if event.site.is_some() { (3, 14) } else { (0, 0) };
    let name = event.name.map_or(by_number, |name| 4 + name.len());
    // What follows the type and the category.
    let rest = name + site + if event.flow == 0 { 0 } else { FLOW_ROOM } + event.args.len();
    // SAFETY: at most 2 + 11 + 5 + 8 bytes and the name, 3 + 14 for the callsite, 10 for the flow and the arguments are
    // written, and 16 beyond.
    unsafe {
        let mut put = Put(chunk.at());
        let whole = put.later();
        put.since(since);
        // sequence_flags: 2, track_event: its length, type, category_iids
        let head = u64::from_le_bytes([0x68, 2, 0x5a, 0, 0, 0x48, kind as u8, 0x18]);
        put.bytes((head | u64::from(wide(4 + rest)) << 24).to_le_bytes());
        put.bytes([category as u8]);
        Put(put.0.add(rest)).close(whole);
        if let Some(name) = event.name {
            put.bytes((0x01ba | u32::from(wide(name.len())) << 16).to_le_bytes());
            put.any_text(name);
        }
        if let Some((number, level)) = event.site {
            if event.name.is_none() {
                let [low, high] = pair(number);
                put.bytes([0x50, low, high]);
            }
            let (number, level) = known(number, level);
            put.bytes(number);
            put.bytes(level);
        }
        if event.flow != 0 {
            put.bytes(flow(event.flow));
        }
        if !event.args.is_empty() {
            put.text(event.args);
        }
        chunk.publish(put.0);
    }
    true
}

/// Writes the begin of a slice on a track of its own with one category, after the track's description. The room is
/// [`TRACK_ROOM`], and the names are short.
#[inline(always)]
pub(super) fn on_track(chunk: &mut Chunk, since: u64, category: u32, track: &Described<'_>, name: &[u8]) {
    let number = spread(track.track);
    // SAFETY: at most 25 bytes and a name, then 1 + 11 + 8 + 9 + 3 bytes and a name, each of at most 96, and 16 beyond.
    unsafe {
        let start = chunk.at();
        let mut put = Put(start.add(1));
        // track_descriptor: its length, uuid, parent_uuid, name
        put.bytes([0xe2, 3, 20 + track.name.len() as u8, 0x08]);
        put.bytes(number);
        put.bytes([0x28]);
        put.bytes(spread(track.parent));
        put.bytes([0x12, track.name.len() as u8]);
        put = put.called_text(track.name);
        start.write(23 + track.name.len() as u8);
        chunk.publish(put.0);

        let start = chunk.at();
        let mut put = Put(start.add(1));
        put.since(since);
        // sequence_flags: 2, track_event: its length, type, category_iids, track_uuid, name
        put.bytes([0x68, 2, 0x5a, 16 + name.len() as u8, 0x48, Type::Begin as u8, 0x18, category as u8]);
        put.bytes([0x58]);
        put.bytes(number);
        put.bytes([0xba, 1, name.len() as u8]);
        put = put.called_text(name);
        start.write((put.0.addr() - start.addr() - 1) as u8);
        chunk.publish(put.0);
    }
}

/// Writes a counter's value, with one category. False where there is no room.
#[inline(always)]
pub(super) fn counter(chunk: &mut Chunk, since: u64, category: u32, track: u64, value: i64) -> bool {
    if chunk.room() < COUNTER_ROOM {
        return false;
    }
    let start = chunk.at();
    // SAFETY: at most 1 + 11 + 8 + 9 + 12 bytes are written.
    unsafe {
        let mut put = Put(start.add(1));
        put.since(since);
        // sequence_flags: 2, track_event: its length, type, category_iids
        put.bytes([0x68, 2, 0x5a, 0, 0x48, Type::Counter as u8, 0x18, category as u8]);
        let event = put.0.sub(4);
        put.bytes([0x58]);
        put.bytes(spread(track));
        put.bytes([0xf0, 1]);
        put.varint(value as u64);
        event.sub(1).write((put.0.addr() - event.addr()) as u8);
        start.write((put.0.addr() - start.addr() - 1) as u8);
        chunk.publish(put.0);
    }
    true
}

/// Writes the end of a slice of the thread's track. False where there is no room.
#[inline(always)]
pub(super) fn end(chunk: &mut Chunk, since: u64) -> bool {
    if chunk.room() < END_ROOM {
        return false;
    }
    let start = chunk.at();
    // SAFETY: at most 1 + 11 + 8 bytes are written.
    unsafe {
        let mut put = Put(start.add(1));
        put.since(since);
        put.0.cast::<[u8; 8]>().write_unaligned([0x68, 2, 0x5a, 2, 0x48, Type::End as u8, 0, 0]);
        put.0 = put.0.add(6);
        start.write((put.0.addr() - start.addr() - 1) as u8);
        chunk.publish(put.0);
    }
    true
}

/// Writes the begin of a slice, or an instant, of the thread's track, with one category and the name of a callsite that was
/// told. False where there is no room.
#[inline(always)]
pub(super) fn named(chunk: &mut Chunk, kind: Type, since: u64, category: u32, number: u32) -> bool {
    if chunk.room() < NAMED_ROOM {
        return false;
    }
    let start = chunk.at();
    // SAFETY: at most 1 + 11 + 8 + 3 bytes are written.
    unsafe {
        let mut put = Put(start.add(1));
        put.since(since);
        // sequence_flags: 2, track_event: its length, type, category_iids
        put.bytes([0x68, 2, 0x5a, 7, 0x48, kind as u8, 0x18, category as u8]);
        let [low, high] = pair(number);
        put.bytes([0x50, low, high]);
        start.write((put.0.addr() - start.addr() - 1) as u8);
        chunk.publish(put.0);
    }
    true
}

/// An event with anything.
#[derive(Clone, Copy, Debug)]
pub(super) struct Long<'a> {
    pub(super) kind: Type,
    /// The categories, by the bits of tags.
    pub(super) tags: u64,
    /// The track, unless it is the thread's.
    pub(super) track: Option<u64>,
    pub(super) name: Option<&'a [u8]>,
    pub(super) amount: Option<Amount>,
    /// The callsite, which was told where it has a number. Without a name, the event has its name; but an end, of which its
    /// arguments alone are.
    pub(super) site: Option<Site<'a>>,
    /// A flow that it is part of; 0: of none.
    pub(super) flow: u64,
    /// Fields that were encoded before: arguments and flows.
    pub(super) args: &'a [u8],
}

impl Long<'static> {
    /// Nothing but this.
    pub(super) const fn new(kind: Type, tags: u64) -> Self {
        Self { kind, tags, track: None, name: None, amount: None, site: None, flow: 0, args: &[] }
    }
}

impl Long<'_> {
    /// The room that its packet needs at most.
    #[inline(always)]
    pub(super) fn room(&self) -> usize {
        let site = match &self.site {
            Some(site) if !site.has_number() => site_room(site),
            _ => 0,
        };
        LONG_ROOM + self.name.map_or(0, <[u8]>::len) + self.args.len() + site
    }
}

/// Writes it. False where there is no room.
#[inline(never)]
pub(super) fn long(chunk: &mut Chunk, since: u64, event: &Long<'_>) -> bool {
    if event.name.is_some_and(|name| name.len() > TEXT_MAX) || chunk.room() < event.room() {
        return false;
    }
    let start = chunk.at();
    // SAFETY: 2 + 11 + 5 bytes, 2 for the type, 2 for each of 28 categories, 18 for the callsite, 9 for the track, 4 and the
    // name, 12 for the value, 10 for the flow, the arguments: less than its room. A callsite without a number has room of its own.
    unsafe {
        let mut put = Put(start);
        let whole = put.later();
        put.since(since);
        put.bytes([0x68, 2, 0x5a]);
        let inner = put.later();
        put.bytes([0x48, event.kind as u8]);
        let mut tags = event.tags;
        while tags != 0 {
            put.bytes([0x18, tags.trailing_zeros() as u8 + 1]);
            tags &= tags - 1;
        }
        if let Some(track) = event.track {
            put.bytes([0x58]);
            put.bytes(spread(track));
        }
        if let Some(name) = event.name {
            put.bytes([0xba, 1]);
            let text = put.later();
            put.any_text(name);
            put.close(text);
        }
        if let Some(site) = event.site.as_ref().filter(|_| event.kind != Type::End) {
            put.site(site, event.name.is_none());
        }
        if event.flow != 0 {
            put.bytes(flow(event.flow));
        }
        if !event.args.is_empty() {
            put.text(event.args);
        }
        match event.amount {
            None => {}
            Some(Amount::Whole(value)) => {
                put.bytes([0xf0, 1]);
                put.varint(value as u64);
            }
            Some(Amount::Real(value)) => {
                put.bytes([0xe1, 2]);
                put.bytes(value.to_le_bytes());
            }
        }
        put.close(inner);
        put.close(whole);
        chunk.publish(put.0);
    }
    true
}

/// The room that the packet about a callsite needs at most.
#[inline(never)]
pub(super) fn site_room(site: &Site<'_>) -> usize {
    const HEAD: usize = 12; // Of a text with a number.
    let mut room = 64 + site.name.len().min(SITE_NAME_MAX);
    if let Some(about) = site.about {
        room += HEAD + about.target().len().min(SITE_TEXT_MAX);
        room += HEAD + about.place().map_or(0, |(file, _)| file.len().min(SITE_TEXT_MAX));
        about.arguments(&mut |name| room += HEAD + name.len().min(ARG_NAME_MAX));
    }
    room
}

/// Writes what a callsite with a number never changes. False where there is no room.
#[inline(never)]
pub(super) fn tell(chunk: &mut Chunk, site: &Site<'_>) -> bool {
    if chunk.room() < site_room(site) {
        return false;
    }
    let number = pair(site.number);
    // SAFETY: what `site_room` counts: an entry has at most 11 bytes beside its text, all of it 12 more.
    unsafe {
        let mut put = Put(chunk.at());
        let whole = put.later();
        put.bytes([0x68, 2, 0x62]);
        let all = put.later();
        put.entry(0x12, &number, cut(site.name, SITE_NAME_MAX), None);
        if let Some(about) = site.about {
            put.entry(0x0a, &number, cut(about.target(), SITE_TEXT_MAX), None);
            if let Some((file, line)) = about.place() {
                put.entry(0x22, &number, cut(file, SITE_TEXT_MAX), Some(line));
            }
            let mut at = 0;
            about.arguments(&mut |name| {
                let key = key_number(site.number, at);
                let number = [key as u8 | 0x80, (key >> 7) as u8 | 0x80, (key >> 14) as u8];
                put.entry(0x1a, &number, cut(name, ARG_NAME_MAX), None);
                at += 1;
            });
        }
        put.close(all);
        put.close(whole);
        chunk.publish(put.0);
    }
    true
}

/// The packet that names the levels, with its length: interned_data, of which debug_annotation_names has `level`, and
/// debug_annotation_string_values each level by its number.
pub(super) const LEVELS: &[u8] = b"\x49\x68\x02\x62\x45\
    \x1a\x09\x08\x01\x12\x05level\
    \xea\x01\x09\x08\x01\x12\x05ERROR\
    \xea\x01\x08\x08\x02\x12\x04WARN\
    \xea\x01\x08\x08\x03\x12\x04INFO\
    \xea\x01\x09\x08\x04\x12\x05DEBUG\
    \xea\x01\x09\x08\x05\x12\x05TRACE";

/// The packet that says that what follows is lost, with its length: previous_packet_dropped, the shared memory was full.
pub(super) const LOST: &[u8] = b"\x04\xd0\x02\x81\x02";

/// What stands above a track.
#[derive(Clone, Copy, Debug)]
pub(super) struct Described<'a> {
    pub(super) track: u64,
    pub(super) parent: u64,
    pub(super) name: &'a [u8],
    pub(super) is_counter: bool,
}

impl Described<'_> {
    /// The room that its packet needs at most.
    #[inline(always)]
    pub(super) const fn room(&self) -> usize {
        LONG_ROOM / 2 + self.name.len()
    }
}

/// Writes a track's description. False where there is no room.
#[inline(never)]
pub(super) fn describe(chunk: &mut Chunk, track: &Described<'_>) -> bool {
    if track.name.len() > TEXT_MAX || chunk.room() < track.room() {
        return false;
    }
    // SAFETY: 6 bytes, 9 for each number, 4 and the name, 2 for what it counts.
    unsafe {
        let mut put = Put(chunk.at());
        let whole = put.later();
        put.bytes([0xe2, 3]);
        let inner = put.later();
        put.bytes([0x08]);
        put.bytes(spread(track.track));
        put.bytes([0x28]);
        put.bytes(spread(track.parent));
        put.bytes([0x12]);
        let text = put.later();
        put.any_text(track.name);
        put.close(text);
        if track.is_counter {
            put.bytes([0x42, 0]);
        }
        put.close(inner);
        put.close(whole);
        chunk.publish(put.0);
    }
    true
}

/// The bits of a track's number.
const TRACK_BITS: u32 = 56;

/// A track's number made of any bits: so many that its varint has eight bytes, and never 0.
pub(super) const fn track(bits: u64) -> u64 {
    bits >> (64 - TRACK_BITS) | 1 << (TRACK_BITS - 1)
}

/// The varint of a track's number.
#[inline(always)]
fn spread(track: u64) -> [u8; 8] {
    // Seven bits to each byte, from fourteen twice, from twenty-eight twice.
    let wide = (track & 0x0fff_ffff) | (track & 0x00ff_ffff_f000_0000) << 4;
    let half = (wide & 0x0000_3fff_0000_3fff) | (wide & 0x0fff_c000_0fff_c000) << 2;
    let each = (half & 0x007f_007f_007f_007f) | (half & 0x3f80_3f80_3f80_3f80) << 1;
    (each | 0x0080_8080_8080_8080).to_le_bytes()
}

/// A number for a text of this [hash](crate::hash); `seed` tells apart what has the same text.
#[inline(always)]
pub(super) const fn seeded(seed: u64, hash: u64) -> u64 {
    mix(mix(hash, seed), FACTOR)
}

#[cfg(test)]
mod tests {
    use super::*;
    use atrace_sys::perfetto::abi::Layout;
    use atrace_sys::perfetto::memory::Arena;
    use atrace_sys::perfetto::proto::Reader;

    #[test]
    fn levels_have_names_by_their_numbers() {
        use super::put::{LEVEL_NUMBER, level_name};

        let (len, packet) = LEVELS.split_first().unwrap();
        assert_eq!(usize::from(*len), packet.len());
        let fields: Vec<_> = Reader::new(packet).collect();
        assert_eq!((fields.len(), fields[0].0, fields[0].1.number()), (2, 13, 2));
        assert_eq!(fields[1].0, 12);
        let mut entries = Reader::new(fields[1].1.bytes());
        let named = |entry: &[u8]| {
            (Reader::first(entry, 1).unwrap().number(), Reader::first(entry, 2).unwrap().bytes().to_vec())
        };
        let (field, entry) = entries.next().unwrap();
        assert_eq!((field, named(entry.bytes())), (3, (LEVEL_NUMBER.into(), b"level".to_vec())));
        let levels: Vec<_> = entries.by_ref().map(|(field, entry)| (field, named(entry.bytes()))).collect();
        let expected = |level: u8| (29, (level.into(), level_name(level).as_bytes().to_vec()));
        assert_eq!(levels, [1, 2, 3, 4, 5].map(expected));
        assert_eq!(
            (entries.is_whole(), level_name(1), level_name(5), level_name(0)),
            (true, "ERROR", "TRACE", "")
        );
    }

    #[test]
    fn a_tracks_number_has_eight_bytes() {
        for bits in [0, 1, u64::MAX, 0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210] {
            let track = track(bits);
            let bytes = [&[0x08][..], &spread(track)].concat();
            let mut reader = Reader::new(&bytes);
            assert_eq!(reader.next().map(|(_, value)| value.number()), Some(track));
            assert!(reader.next().is_none() && reader.is_whole());
        }
    }

    /// The packets of a chunk, from where it began.
    pub(super) fn packets(start: *const u8, end: *const u8) -> Vec<Vec<u8>> {
        // SAFETY: what was written there.
        let bytes = unsafe { std::slice::from_raw_parts(start, end.addr() - start.addr()) };
        // A packet and its length are a field of the trace without its key.
        let mut packets = Vec::new();
        let mut rest = bytes;
        while !rest.is_empty() {
            let keyed = [&[0x0a], rest].concat();
            let (_, value) = Reader::new(&keyed).next().unwrap();
            let packet = value.bytes().to_vec();
            rest =
                &rest[keyed.iter().skip(1).position(|byte| byte & 0x80 == 0).unwrap() + 1 + packet.len()..];
            packets.push(packet);
        }
        packets
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps memory files")]
    fn packets_are_whole_whatever_the_name_and_time() {
        for len in (0..=SHORT).chain([SHORT + 1, 127, 128, 300, TEXT_MAX]) {
            let name: Vec<u8> = (0..len).map(|at| at as u8).collect();
            for since in [0, 1, 127, 128, 16_383, 16_384, 1 << 40, u64::MAX] {
                let (arena, _) = Arena::make(1).unwrap();
                let mut chunk = arena.open(Layout::Whole, 1, 0, 1).unwrap();
                let start = chunk.at();
                let is_short = short(&mut chunk, Type::Instant, since, 13, &name);
                assert_eq!(is_short, len <= SHORT);
                let event = Long {
                    track: Some(track(7)),
                    name: Some(&name),
                    amount: Some(Amount::Whole(-1)),
                    ..Long::new(Type::Counter, 0x0fff_ffff)
                };
                assert!(long(&mut chunk, since, &event) && end(&mut chunk, since));
                let described =
                    Described { track: track(1), parent: track(2), name: &name, is_counter: true };
                let has_room = chunk.room() >= LONG_ROOM / 2 + len;
                assert_eq!(describe(&mut chunk, &described), has_room);
                let found = packets(start, chunk.at());
                assert_eq!(found.len(), 2 + usize::from(is_short) + usize::from(has_room));
                for (packet, kind) in found.iter().zip([3, 4, 2].iter().skip(usize::from(!is_short))) {
                    let mut fields = Reader::new(packet);
                    assert_eq!(fields.next().map(|(field, value)| (field, value.number())), Some((8, since)));
                    assert_eq!(fields.next().map(|(field, value)| (field, value.number())), Some((13, 2)));
                    let (field, event) = fields.next().unwrap();
                    assert_eq!((field, fields.next(), fields.is_whole()), (11, None, true));
                    let event = event.bytes();
                    assert_eq!(Reader::first(event, 9).unwrap().number(), *kind);
                    let found_name = Reader::first(event, 23).map(|value| value.bytes());
                    assert_eq!(found_name, (*kind != 2).then_some(name.as_slice()));
                }
                chunk.complete();
                let mut handed = Vec::new();
                handed.extend(arena.take_handed().map(|place| (place.page, place.chunk, place.buffer)));
                assert_eq!(handed, [(0, 0, 1)]);
                arena.retire();
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps memory files")]
    fn names_of_any_length_and_tracks_are_whole() {
        for len in [0, 1, 3, 7, 15, 16, 17, SHORT - 1, SHORT, SHORT + 1, 1000, TEXT_MAX] {
            let name: Vec<u8> = (0..len).map(|at| at as u8).collect();
            for since in [0, 127, 16_383, 16_384, u64::MAX] {
                let (arena, _) = Arena::make(1).unwrap();
                let mut chunk = arena.open(Layout::Whole, 1, 0, 1).unwrap();
                let (start, room) = (chunk.at(), chunk.room());
                assert!(rich(
                    &mut chunk,
                    Type::Instant,
                    since,
                    13,
                    Rich { name: Some(&name), site: None, flow: 0, args: &[] }
                ));
                assert!(room - chunk.room() <= RICH_ROOM + len);
                let mut expected = vec![vec![(9, 3), (3, 13), (23, 0)]];
                if len <= SHORT {
                    let room = chunk.room();
                    let described =
                        Described { track: track(1), parent: track(2), name: &name, is_counter: false };
                    on_track(&mut chunk, since, 28, &described, &name);
                    assert!(room - chunk.room() + 16 <= TRACK_ROOM);
                    expected.push(vec![(1, track(1)), (5, track(2)), (2, 0)]);
                    expected.push(vec![(9, 1), (3, 28), (11, track(1)), (23, 0)]);
                }
                let found = packets(start, chunk.at());
                assert_eq!(found.len(), expected.len());
                for (packet, expected) in found.iter().zip(expected) {
                    let is_event = expected[0].0 == 9;
                    let time = Reader::first(packet, 8).map(|value| value.number());
                    assert_eq!(time, is_event.then_some(since));
                    let inner = Reader::first(packet, if is_event { 11 } else { 60 }).unwrap().bytes();
                    let mut fields = Reader::new(inner);
                    for (field, number) in expected {
                        let (found, value) = fields.next().unwrap();
                        assert_eq!(found, field);
                        if number == 0 {
                            assert_eq!(value.bytes(), name);
                        } else {
                            assert_eq!(value.number(), number);
                        }
                    }
                    assert!(fields.next().is_none() && fields.is_whole());
                }
                arena.retire();
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps memory files")]
    fn a_counters_value_is_whole_whatever_it_is_and_the_time() {
        let (arena, _) = Arena::make(1).unwrap();
        let mut chunk = arena.open(Layout::Whole, 1, 0, 1).unwrap();
        let start = chunk.at();
        let times = [0, 127, 128, 16_383, 16_384, u64::MAX];
        let values = [0, 127, 128, -1, i64::MAX, i64::MIN];
        for (since, value) in times.into_iter().zip(values) {
            let room = chunk.room();
            assert!(counter(&mut chunk, since, 28, track(value as u64), value));
            assert!(room - chunk.room() <= COUNTER_ROOM);
        }
        let found = packets(start, chunk.at());
        assert_eq!(found.len(), values.len());
        for ((packet, since), value) in found.iter().zip(times).zip(values) {
            assert_eq!(Reader::first(packet, 8).unwrap().number(), since);
            let event = Reader::first(packet, 11).unwrap().bytes();
            let numbers: Vec<_> = Reader::new(event).map(|(field, value)| (field, value.number())).collect();
            assert_eq!(numbers, [(9, 4), (3, 28), (11, track(value as u64)), (30, value as u64)]);
        }
        while counter(&mut chunk, 1, 1, track(1), 1) {}
        assert!(chunk.room() < COUNTER_ROOM);
        arena.retire();
    }

    /// What a tracer knows of a callsite.
    #[derive(Debug)]
    struct Known(usize);

    impl crate::callsite::About for Known {
        fn target(&self) -> &str {
            "target"
        }

        fn place(&self) -> Option<(&str, u32)> {
            Some(("src/file.rs", 70_000))
        }

        fn arguments(&self, each: &mut dyn FnMut(&str)) {
            (0..self.0).for_each(|at| each(&"x".repeat(at * 8)));
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps memory files")]
    fn a_callsite_is_told_whole_and_then_named_by_its_number() {
        use crate::callsite::{BEYOND, FIRST};

        for (number, len, arguments) in [(FIRST, 0, 0), (BEYOND - 1, 300, 32), (1000, 5000, 1)] {
            let (name, about) = ("n".repeat(len), Known(arguments));
            let site = Site { number, name: &name, level: 3, about: Some(&about) };
            let (arena, _) = Arena::make(1).unwrap();
            let mut chunk = arena.open(Layout::Whole, 1, 0, 1).unwrap();
            let (start, room) = (chunk.at(), chunk.room());
            assert!(tell(&mut chunk, &site));
            assert!(room - chunk.room() <= site_room(&site));
            assert!(named(&mut chunk, Type::Begin, 5, 13, number));
            let event = Long { site: Some(site), args: &[0x22, 0], ..Long::new(Type::Instant, 1) };
            let before = chunk.room();
            assert!(long(&mut chunk, 5, &event));
            assert!(before - chunk.room() <= event.room());
            let beyond = Site { number: BEYOND, ..site };
            let before = chunk.room();
            let event = Long { site: Some(beyond), ..event };
            assert!(long(&mut chunk, 5, &event));
            assert!(before - chunk.room() <= event.room());

            let found = packets(start, chunk.at());
            let numbers = |field, of: &[u8]| -> Vec<u64> {
                Reader::new(of)
                    .filter(|(found, _)| *found == field)
                    .map(|(_, value)| value.number())
                    .collect()
            };
            let told = Reader::first(&found[0], 12).unwrap().bytes();
            let entries: Vec<_> = Reader::new(told).collect();
            assert_eq!(entries.len(), 3 + arguments);
            for (field, entry) in &entries {
                let entry = entry.bytes();
                let text = Reader::first(entry, 2).unwrap().bytes();
                let number = numbers(1, entry)[0];
                match field {
                    1 => assert_eq!((text, number), (&b"target"[..], site.number.into())),
                    2 => assert_eq!((text.len(), number), (len.min(SITE_NAME_MAX), site.number.into())),
                    3 => assert_eq!(number >> 5, site.number.into()),
                    4 => assert_eq!((text, numbers(4, entry)), (&b"src/file.rs"[..], vec![70_000])),
                    other => panic!("{other}"),
                }
            }
            let arguments_found = entries.iter().filter(|(field, _)| *field == 3).map(|(_, entry)| entry);
            for (at, entry) in arguments_found.enumerate() {
                assert_eq!(numbers(1, entry.bytes()), [u64::from(number) << 5 | at as u64]);
                assert_eq!(
                    Reader::first(entry.bytes(), 2).unwrap().bytes().len(),
                    (at * 8).min(ARG_NAME_MAX)
                );
            }
            let event_of = |packet: usize| Reader::first(&found[packet], 11).unwrap().bytes();
            assert_eq!(numbers(10, event_of(1)), [u64::from(number)]);
            assert_eq!(numbers(3, event_of(1)), [13]);
            assert_eq!(numbers(3, event_of(2)), [1, number.into()]);
            assert_eq!(
                (numbers(10, event_of(2)), numbers(34, event_of(2))),
                (vec![number.into()], vec![number.into()])
            );
            let level = Reader::first(event_of(2), 4).unwrap().bytes();
            assert_eq!((numbers(1, level), numbers(17, level)), (vec![1], vec![3]));
            let inline = event_of(3);
            assert_eq!(Reader::first(inline, 23).unwrap().bytes().len(), len.min(SITE_NAME_MAX));
            assert_eq!(Reader::first(inline, 22).unwrap().bytes(), b"target");
            let place = Reader::first(inline, 33).unwrap().bytes();
            assert_eq!(
                (Reader::first(place, 2).unwrap().bytes(), numbers(4, place)),
                (&b"src/file.rs"[..], vec![70_000])
            );
            let level = Reader::first(inline, 4).unwrap().bytes();
            assert_eq!(Reader::first(level, 6).unwrap().bytes(), b"INFO");
            arena.retire();
        }
    }

    /// Of whatever both can write: the one is for what is written often.
    #[test]
    #[cfg_attr(miri, ignore = "maps memory files")]
    fn what_is_rich_has_the_bytes_of_what_is_long() {
        use crate::callsite::{BEYOND, FIRST};

        let about = Known(0);
        let text: Vec<u8> = (0..2048).map(|at| at as u8).collect();
        let names = [0, 1, 7, SHORT, SHORT + 1, 1000].map(|len| Some(&text[..len]));
        let numbers = [None, Some(FIRST), Some(127), Some(128), Some(BEYOND - 1)];
        let (arena, _) = Arena::make(1).unwrap();
        let mut chunk = arena.open(Layout::Whole, 1, 0, 1).unwrap();
        for (name, number) in
            names.iter().chain(&[None]).flat_map(|name| numbers.map(|number| (*name, number)))
        {
            for (since, flow, len) in
                [(0, 0, 0), (16_383, 7, 5), (16_384, u64::MAX, SHORT + 1), (u64::MAX, 0, 2048)]
            {
                let (args, level) = (&text[..len], 1 + (len % 5) as u8);
                let site = number.map(|number| Site { number, name: "", level, about: Some(&about) });
                let long_event = Long { name, site, flow, args, ..Long::new(Type::Begin, 1 << 12) };
                let event = Rich { site: number.map(|number| (number, level)), name, flow, args };
                let both: [&dyn Fn(&mut Chunk) -> bool; 2] =
                    [&|chunk| rich(chunk, Type::Begin, since, 13, event), &|chunk| {
                        long(chunk, since, &long_event)
                    }];
                let [rich, long] = both.map(|write| {
                    if chunk.room() < 3 * text.len() {
                        chunk.complete();
                        arena.take_handed().for_each(|place| arena.read(&place, |_, _| ()));
                        chunk = arena.open(Layout::Whole, 1, 0, 1).unwrap();
                    }
                    let (start, room) = (chunk.at(), chunk.room());
                    assert!(write(&mut chunk));
                    let texts = name.map_or(0, <[u8]>::len) + args.len();
                    assert!(room - chunk.room() <= RICH_ROOM - 16 + texts);
                    packets(start, chunk.at())
                });
                assert_eq!(rich, long);
                assert_eq!(rich.len(), 1);
            }
        }
        arena.retire();
    }

    #[test]
    fn texts_have_numbers_of_their_own() {
        use crate::hash::hash;

        let mut texts = vec![&b""[..], b"a", b"b", b"\0", b"\0\0", b"abcdefgh", b"abcdefgh\0", b"abcdefghi"];
        // Each length, and each byte of them another.
        let others: Vec<Vec<u8>> = (1..20)
            .flat_map(|len| (0..=len).map(move |at| (0..len).map(|byte| 1 + u8::from(byte == at)).collect()))
            .collect();
        texts.extend(others.iter().map(Vec::as_slice));
        let mut numbers: Vec<_> =
            texts.iter().flat_map(|text| [0, 1, 2].map(|seed| seeded(seed, hash(text)))).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 3 * texts.len());
    }
}
