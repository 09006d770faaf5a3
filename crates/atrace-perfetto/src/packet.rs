//! The encoding of events: packets, written in place in Perfetto's shared memory.
//!
//! # Format
//!
//! The packet of an event consists of a length and a `TracePacket`, which contains a `TrackEvent`. The time in a packet
//! is usually the time since the previous packet of the thread, in nanoseconds. If [`Event::time`] is not 0, the packet
//! contains this time itself, and the number of its clock (`CLOCK_BOOTTIME`). A difference could be negative here, and
//! would then turn back the clock of the packet sequence. Lengths are varints that are filled in after the content is
//! written, so their size is fixed in advance: one byte if `IS_SHORT` is true (names of up to
//! [`SHORT`](crate::event::SHORT) bytes and no arguments), otherwise two bytes. Protobuf does not require the shortest
//! form of a varint, so two bytes may also hold a small length.
//!
//! A callsite's constant data is interned: [`intern`] writes the data in a separate packet, and the packets of events
//! then contain the callsite's number in place of its texts. The encoded numbers of all callsites have the same size.
//!
//! # Rules
//!
//! A writer checks once that the chunk has room for the largest possible packet of the event ([`Event::room`]), and
//! then writes without checks. Readers see a packet once [`Chunk::publish`] has counted it. One encoder, [`event`],
//! writes all kinds of events except long events ([`whole_event`]). It is inlined, and each caller gets code only for
//! the fields that its events have.
//!
//! Source: Perfetto's `trace_packet.proto`, `track_event.proto`, `track_descriptor.proto`, `interned_data.proto`,
//! `debug_annotation.proto`.

#![expect(
    unsafe_code,
    reason = "packets are written into shared memory; the room is checked once, not for each byte"
)]

mod cursor;
mod filter;
pub(crate) mod state;
mod thread_time;
mod whole;

use atrace_sys::text::cut;

use crate::memory::Chunk;

use self::cursor::{Cursor, SITE_NAME_MAX, SITE_TEXT_MAX, pair, wide};
pub(crate) use self::filter::{FILTERED_ROOM, KEPT_MAX, filter};
pub(crate) use self::thread_time::{SAMPLE_MAX, SAMPLE_ROOM, sample, track as thread_time_track};
pub(crate) use self::whole::{PART_MIN, whole_event};

use crate::args::{FLOW_ROOM, NAME_MAX as ARG_NAME_MAX, flow, key_number};
use crate::callsite::Site;
use crate::category;
use crate::event::{Amount, Event, TEXT_MAX, Track, Type};

/// The maximum size of the parts that every event has, in bytes: lengths, the time, flags, the type and one
/// category.
const HEAD_ROOM: usize = 24;
/// The size of the field with the clock's number in the packet of an event that has a time of its own, in bytes.
const CLOCK_ROOM: usize = 3;

impl Event<'_> {
    /// Returns the maximum size of the event's packet in bytes, without the description of its track.
    /// `IS_USUAL` has the same meaning as in [`event`].
    #[inline(always)]
    pub(crate) fn room<const IS_USUAL: bool>(&self) -> usize {
        let mut room = HEAD_ROOM + self.args.len();
        if !IS_USUAL && self.has_categories() {
            room += 2 * category::COUNT as usize;
        }
        room += if self.track.is_some() { 9 } else { 0 };
        room += self.name.map_or(0, |name| 5 + name.len());
        room += if self.value.is_some() { 12 } else { 0 };
        room += if self.flow == 0 { 0 } else { FLOW_ROOM };
        room += if self.time == 0 { 0 } else { CLOCK_ROOM };
        room + match &self.site {
            Some(site) if !site.has_number() => site_room(*site),
            Some(_) => 17,
            None => 0,
        }
    }
}

/// Writes an event, with further encoded fields of a `TrackEvent` in `more`. Returns false if there is no room.
///
/// - `IS_USUAL` means that the event is one of the usual events, for which
///   [`event_fast`](crate::writer::Writer::event_fast) gives the conditions. This function makes use of only one
///   condition: the event names exactly one category, or is an end.
/// - `IS_SHORT` means that all lengths fit into one byte: names have at most [`SHORT`] bytes, there are no
///   arguments and no flow, and a callsite has only a name.
///
/// The function is inlined, so that each caller has code only for the parts that its events can have. If a reference to
/// the event were passed to a function that is not inlined, here or in a caller, the compiler could not use the fact
/// that some fields of [`Event`] are constant. So functions that are not inlined get copies of the fields that they
/// need.
#[cfg_attr(debug_assertions, inline(never))]
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn event<const IS_SHORT: bool, const IS_USUAL: bool>(
    chunk: &mut Chunk,
    since: u64,
    event: &Event<'_>,
    more: &[u8],
) -> bool {
    // Every length that passes this check has at most 14 bits. The sum can't overflow, because no address space is
    // large enough for texts with such lengths.
    if chunk.room() < event.room::<IS_USUAL>() + more.len() {
        return false;
    }
    // SAFETY: writes at most what `room` counts. `HEAD_ROOM` covers two lengths (4 bytes), the time (11; the number of
    // its clock has room of its own), sequence_flags (2), the keys of the event (1), the type (2) and one category (2),
    // and one byte that is written behind a name's length.
    unsafe {
        let mut cursor = Cursor(chunk.at());
        let whole = cursor.later::<IS_SHORT>();
        if event.time == 0 {
            cursor.since(since);
        } else {
            cursor = cursor.own_time(event.time);
        }
        let inner;
        // Fields: sequence_flags (2), track_event: its length, type, category_iids
        if IS_USUAL && event.kind != Type::End {
            let category = event.tags.trailing_zeros() as u8 + 1;
            inner = cursor.0.add(3);
            if IS_SHORT {
                cursor.bytes([0x68, 2, 0x5a, 0, 0x48, event.kind as u8, 0x18, category]);
            } else {
                cursor.bytes([0x68, 2, 0x5a, 0, 0, 0x48, event.kind as u8, 0x18]);
                cursor.bytes([category]);
            }
        } else {
            cursor.bytes([0x68, 2, 0x5a]);
            inner = cursor.later::<IS_SHORT>();
            cursor.bytes([0x48, event.kind as u8]);
            let mut categories = event.categories();
            while categories != 0 {
                cursor.bytes([0x18, categories.trailing_zeros() as u8 + 1]);
                categories &= categories - 1;
            }
        }
        if let Some(track) = &event.track {
            cursor.bytes([0x58]);
            cursor.bytes(spread(track.uuid));
        }
        if let Some(name) = event.name {
            let name = name.as_bytes();
            if IS_SHORT {
                cursor.0.cast::<[u8; 4]>().write_unaligned([0xba, 1, name.len() as u8, 0]);
                cursor.0 = cursor.0.add(3);
                cursor.short_text(name);
            } else {
                cursor.bytes((0x01ba | u32::from(wide(name.len())) << 16).to_le_bytes());
                cursor.any_text(name);
            }
        }
        if let Some(site) = event.site.as_ref().filter(|_| event.kind != Type::End) {
            cursor.site(site, event.name.is_none());
        }
        if event.flow != 0 {
            cursor.bytes(flow(event.flow));
        }
        if !event.args.is_empty() {
            cursor.text(event.args);
        }
        if !more.is_empty() {
            cursor.text(more);
        }
        match event.value {
            None => {}
            Some(Amount::Whole(value)) => {
                cursor.bytes([0xf0, 1]);
                cursor.varint(value as u64);
            }
            Some(Amount::Real(value)) => {
                cursor.bytes([0xe1, 2]);
                cursor.bytes(value.to_le_bytes());
            }
        }
        cursor.close::<IS_SHORT>(inner);
        cursor.close::<IS_SHORT>(whole);
        chunk.publish(cursor.0);
    }
    true
}

/// Returns the maximum size of the packet that interns a callsite, in bytes.
#[inline(never)]
pub(crate) fn site_room(site: Site<'_>) -> usize {
    const HEAD: usize = 12; // The size of an entry without its text.
    let mut room = 64 + site.name.len().min(SITE_NAME_MAX);
    if let Some(about) = site.about {
        room += HEAD + about.target().len().min(SITE_TEXT_MAX);
        room += HEAD + about.location().map_or(0, |(file, _)| file.len().min(SITE_TEXT_MAX));
        about.arguments(&mut |name| room += HEAD + name.len().min(ARG_NAME_MAX));
    }
    room
}

/// Interns a callsite that has a number: writes its name and, if it has metadata, its target, its source location and
/// the names of its arguments. Returns false if there is no room.
#[inline(never)]
pub(crate) fn intern(chunk: &mut Chunk, site: &Site<'_>) -> bool {
    if chunk.room() < site_room(*site) {
        return false;
    }
    let number = pair(site.number);
    // SAFETY: writes at most what `site_room` counts: for each entry at most 10 bytes beside its text, 6 more for the
    // line, and 7 bytes for the packet.
    unsafe {
        let mut cursor = Cursor(chunk.at());
        let whole = cursor.later::<false>();
        cursor.bytes([0x68, 2, 0x62]);
        let all = cursor.later::<false>();
        cursor.entry(0x12, &number, cut(site.name, SITE_NAME_MAX), None);
        if let Some(about) = site.about {
            cursor.entry(0x0a, &number, cut(about.target(), SITE_TEXT_MAX), None);
            if let Some((file, line)) = about.location() {
                cursor.entry(0x22, &number, cut(file, SITE_TEXT_MAX), Some(line));
            }
            let mut at = 0;
            about.arguments(&mut |name| {
                let key = key_number(site.number, at);
                let number = [key as u8 | 0x80, (key >> 7) as u8 | 0x80, (key >> 14) as u8];
                cursor.entry(0x1a, &number, cut(name, ARG_NAME_MAX), None);
                at += 1;
            });
        }
        cursor.close::<false>(all);
        cursor.close::<false>(whole);
        chunk.publish(cursor.0);
    }
    true
}

/// The packet that defines the names of the levels, with its length. Its field `interned_data` defines the name `level`
/// in `debug_annotation_names`. In `debug_annotation_string_values`, it defines the name of each level, under the
/// level's number.
pub(crate) const LEVELS: &[u8] = b"\x49\x68\x02\x62\x45\
    \x1a\x09\x08\x01\x12\x05level\
    \xea\x01\x09\x08\x01\x12\x05ERROR\
    \xea\x01\x08\x08\x02\x12\x04WARN\
    \xea\x01\x08\x08\x03\x12\x04INFO\
    \xea\x01\x09\x08\x04\x12\x05DEBUG\
    \xea\x01\x09\x08\x05\x12\x05TRACE";

/// The packet that reports a loss of events at the end of a chunk, with its length. The packet has the field
/// `previous_packet_dropped`, whose value says that the shared memory was full.
pub(crate) const LOST: &[u8] = b"\x04\xd0\x02\x81\x02";

impl Track<'_> {
    /// Returns the maximum size of the packet that describes the track, in bytes.
    #[inline(always)]
    pub(crate) const fn room(&self) -> usize {
        42 + self.name.len()
    }
}

/// Writes a track's description. Returns false if there is no room. If `IS_SHORT` is true, the name must have at most
/// [`SHORT`](crate::event::SHORT) bytes.
#[cfg_attr(debug_assertions, inline(never))]
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn describe<const IS_SHORT: bool>(chunk: &mut Chunk, track: &Track<'_>) -> bool {
    if track.name.len() > TEXT_MAX || chunk.room() < track.room() {
        return false;
    }
    // SAFETY: there is room for what `room` counts.
    unsafe {
        let end = description::<IS_SHORT>(Cursor(chunk.at()), track);
        chunk.publish(end.0);
    }
    true
}

/// Writes the packet that describes a track. Returns the cursor behind the packet.
///
/// # Safety
///
/// The chunk must have as much room as [`Track::room`] returns: 6 bytes for a key and two lengths, 9 and 11 for two
/// numbers, 3 more than the length of the name, and 2 for a counter.
#[cfg_attr(debug_assertions, inline(never))]
#[cfg_attr(not(debug_assertions), inline(always))]
unsafe fn description<const IS_SHORT: bool>(mut cursor: Cursor, track: &Track<'_>) -> Cursor {
    // SAFETY: the caller's contract.
    unsafe {
        let whole = cursor.later::<IS_SHORT>();
        cursor.bytes([0xe2, 3]);
        let inner = cursor.later::<IS_SHORT>();
        cursor.bytes([0x08]);
        cursor.bytes(spread(track.uuid));
        cursor.bytes([0x28]);
        let (low, high) = full(track.parent);
        cursor.bytes(low);
        cursor.bytes(high);
        cursor.bytes([0x12]);
        let text = cursor.later::<IS_SHORT>();
        cursor = cursor.called_text(track.name.as_bytes());
        cursor.close::<IS_SHORT>(text);
        if track.is_counter {
            cursor.bytes([0x42, 0]);
        }
        cursor.close::<IS_SHORT>(inner);
        cursor.close::<IS_SHORT>(whole);
    }
    cursor
}

/// Writes the description of any track. Returns false if there is no room.
#[inline(never)]
pub(crate) fn describe_any(chunk: &mut Chunk, track: &Track<'_>) -> bool {
    describe::<false>(chunk, track)
}

/// Does the same as [`spread`]. This function is not inlined, because it is for packets that are rarely written.
#[inline(never)]
fn called_spread(track: u64) -> [u8; 8] {
    spread(track)
}

/// Returns a track's number, which has 56 bits, as a varint of eight bytes.
#[inline(always)]
fn spread(track: u64) -> [u8; 8] {
    // Moves each group of seven bits into a byte of its own: first splits the 56 bits into halves of 28 bits, then
    // these into quarters of 14 bits, and then the quarters into single groups.
    let wide = (track & 0x0fff_ffff) | (track & 0x00ff_ffff_f000_0000) << 4;
    let half = (wide & 0x0000_3fff_0000_3fff) | (wide & 0x0fff_c000_0fff_c000) << 2;
    let each = (half & 0x007f_007f_007f_007f) | (half & 0x3f80_3f80_3f80_3f80) << 1;
    (each | 0x0080_8080_8080_8080).to_le_bytes()
}

/// Returns a number as a varint of ten bytes, in two parts: the first eight bytes and the last two.
#[inline(always)]
fn full(number: u64) -> ([u8; 8], [u8; 2]) {
    let low = u64::from_le_bytes(spread(number)) | 1 << 63;
    let high = (number >> 56) as u16 & 0x7f | 0x80 | ((number >> 63) as u16) << 8;
    (low.to_le_bytes(), high.to_le_bytes())
}

/// Returns a number as a varint of ten bytes, as [`full`] does, but in one part. This function is not inlined: it is
/// for packets that are rarely written.
#[inline(never)]
fn called_full(number: u64) -> [u8; 10] {
    let (low, high) = full(number);
    let mut bytes = [0; 10];
    bytes[..8].copy_from_slice(&low);
    bytes[8..].copy_from_slice(&high);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::Layout;
    use crate::event::SHORT;
    use crate::memory::Arena;
    use crate::proto::{Reader, Value};
    use crate::track;

    #[test]
    fn levels_have_names_by_their_numbers() {
        use super::cursor::{LEVEL_NUMBER, level_name};

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
            let track = track::number(bits);
            let bytes = [&[0x08][..], &spread(track)].concat();
            let mut reader = Reader::new(&bytes);
            assert_eq!(reader.next().map(|(_, value)| value.number()), Some(track));
            assert!(reader.next().is_none() && reader.is_whole());
        }
    }

    /// Returns the packets that a chunk contains between two addresses.
    pub(crate) fn packets(start: *const u8, end: *const u8) -> Vec<Vec<u8>> {
        // SAFETY: the chunk's writer has written these bytes.
        let bytes = unsafe { std::slice::from_raw_parts(start, end.addr() - start.addr()) };
        // The bytes are packets, each after its length. With a key before it, a length and its packet are a field of a
        // `Trace` message.
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
    fn an_event_with_a_time_of_its_own_names_the_clock() {
        let (arena, _) = Arena::make(1).unwrap();
        let mut chunk = arena.open(Layout::Whole, 1, 0, 1).unwrap();
        let track = Some(Track {
            uuid: track::number(1),
            parent: track::number(2),
            name: "lane",
            is_counter: false,
            is_kept: false,
        });
        for time in [1, 1 << 40, u64::MAX] {
            let begin = Event { track, name: Some("life"), time, ..Event::new(Type::Begin, 1 << 12) };
            let (start, room) = (chunk.at(), chunk.room());
            assert!(form::<false, false>(&mut chunk, 0, &begin));
            assert!(room - chunk.room() <= begin.room::<false>());
            let found = packets(start, chunk.at());
            let [packet] = &found[..] else { panic!("{found:?}") };
            let fields: Vec<_> = Reader::new(packet).collect();
            let numbers: Vec<_> = fields[..3].iter().map(|(field, value)| (*field, value.number())).collect();
            assert_eq!(numbers, [(8, time), (58, 6), (13, 2)]);
            assert_eq!((fields.len(), fields[3].0), (4, 11));
        }
    }

    type Form = fn(&mut Chunk, u64, &Event<'_>) -> bool;

    /// Writes an event as [`event`] does, without further fields.
    fn form<const IS_SHORT: bool, const IS_USUAL: bool>(
        chunk: &mut Chunk,
        since: u64,
        of: &Event<'_>,
    ) -> bool {
        event::<IS_SHORT, IS_USUAL>(chunk, since, of, &[])
    }

    /// Returns a text of this length.
    fn letters(len: usize) -> String {
        (0..len).map(|at| char::from(b'a' + (at % 26) as u8)).collect()
    }

    /// Returns the fields of an event's packet: the time, and the fields of the `TrackEvent`.
    fn fields(packet: &[u8]) -> (u64, Vec<(u32, Value<'_>)>) {
        let mut fields = Reader::new(packet);
        let mut next = || fields.next().unwrap();
        let ((8, time), (13, flags), (11, event)) = (next(), next(), next()) else { panic!("{packet:?}") };
        assert_eq!((flags.number(), fields.next(), fields.is_whole()), (2, None, true));
        let mut fields = Reader::new(event.bytes());
        let all = fields.by_ref().collect();
        assert!(fields.is_whole());
        (time.number(), all)
    }

    const TIMES: [u64; 8] = [0, 1, 127, 128, 16_383, 16_384, 1 << 40, u64::MAX];

    #[test]
    #[cfg_attr(miri, ignore = "maps memory files")]
    fn packets_are_whole_whatever_the_name_and_time() {
        let lengths = [0, 1, 3, 7, 15, 16, 17, SHORT - 1, SHORT, SHORT + 1, 127, 128, 300, 1000, TEXT_MAX];
        for (len, since) in lengths.into_iter().flat_map(|len| TIMES.map(|since| (len, since))) {
            let name = letters(len);
            let (arena, _) = Arena::make(1).unwrap();
            let mut chunk = arena.open(Layout::Whole, 1, 0, 1).unwrap();
            let track = Track {
                uuid: track::number(1),
                parent: !track::number(2),
                name: &name,
                is_counter: len % 2 == 1,
                is_kept: false,
            };
            let instant = Event { name: Some(&name), ..Event::new(Type::Instant, 1 << 12) };
            let begin = Event { track: Some(track), ..Event { kind: Type::Begin, ..instant } };
            let end = Event::new(Type::End, 1 << 12);
            let all =
                Event { tags: 0x0fff_ffff, kind: Type::Counter, value: Some(Amount::Whole(-1)), ..begin };
            for what in [instant, begin, end, all] {
                let is_short = len <= SHORT && what.tags.is_power_of_two();
                let has_one = what.tags.is_power_of_two();
                let forms: [Option<Form>; 3] = [
                    Some(form::<false, false>),
                    has_one.then_some(form::<false, true>),
                    is_short.then_some(form::<true, true>),
                ];
                for form in forms.into_iter().flatten() {
                    if chunk.room() < what.room::<false>() {
                        chunk.complete();
                        arena.take_completed().for_each(|place| arena.read(&place, |_| ()));
                        chunk = arena.open(Layout::Whole, 1, 0, 1).unwrap();
                    }
                    let (start, room) = (chunk.at(), chunk.room());
                    assert!(form(&mut chunk, since, &what));
                    assert!(room - chunk.room() <= what.room::<false>());
                    let found = packets(start, chunk.at());
                    let [packet] = &found[..] else { panic!("{found:?}") };
                    let (time, fields) = fields(packet);
                    assert_eq!(time, since);
                    let mut fields = fields.into_iter();
                    let mut number = |of| fields.next().map(|(field, value)| (field == of, value.number()));
                    assert_eq!(number(9), Some((true, what.kind as u64)));
                    for category in (0..28).filter(|bit| what.categories() >> bit & 1 == 1) {
                        assert_eq!(number(3), Some((true, category + 1)));
                    }
                    if what.track.is_some() {
                        assert_eq!(number(11), Some((true, track.uuid)));
                    }
                    let named = what.name.map(|_| fields.next().map(|(field, value)| (field, value.bytes())));
                    assert_eq!(named, what.name.map(|name| Some((23, name.as_bytes()))));
                    let value = fields.next().map(|(field, value)| (field, value.number()));
                    assert_eq!((value, fields.next()), (what.value.map(|_| (30, u64::MAX)), None));
                }
            }
            let has_room = chunk.room() >= track.room();
            let (start, room) = (chunk.at(), chunk.room());
            assert_eq!(describe_any(&mut chunk, &track), has_room);
            assert!(room - chunk.room() <= track.room());
            for packet in packets(start, chunk.at()) {
                let described = Reader::first(&packet, 60).unwrap().bytes();
                let of = |field| Reader::first(described, field);
                assert_eq!([of(1), of(5)].map(|of| of.unwrap().number()), [track.uuid, track.parent]);
                assert_eq!(of(2).unwrap().bytes(), name.as_bytes());
                assert_eq!(of(8).is_some(), track.is_counter);
            }
            chunk.complete();
            assert!(arena.take_completed().count() > 0);
            arena.retire();
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps memory files")]
    fn a_counters_value_is_whole_whatever_it_is_and_the_time() {
        let (arena, _) = Arena::make(1).unwrap();
        let mut chunk = arena.open(Layout::Whole, 1, 0, 1).unwrap();
        let start = chunk.at();
        let counter = |number: u64, value| Event {
            track: Some(Track {
                uuid: track::number(number),
                parent: track::number(2),
                name: "",
                is_counter: true,
                is_kept: true,
            }),
            value: Some(Amount::Whole(value)),
            ..Event::new(Type::Counter, 1 << 27)
        };
        let times = [0, 127, 128, 16_383, 16_384, u64::MAX];
        let values = [0, 127, 128, -1, i64::MAX, i64::MIN];
        for (since, value) in times.into_iter().zip(values) {
            let (room, counter) = (chunk.room(), counter(value as u64, value));
            assert!(form::<true, true>(&mut chunk, since, &counter));
            assert!(room - chunk.room() <= counter.room::<false>());
        }
        let found = packets(start, chunk.at());
        assert_eq!(found.len(), values.len());
        for ((packet, since), value) in found.iter().zip(times).zip(values) {
            let (time, fields) = fields(packet);
            let numbers: Vec<_> = fields.into_iter().map(|(field, value)| (field, value.number())).collect();
            assert_eq!(
                (time, numbers),
                (since, vec![(9, 4), (3, 28), (11, track::number(value as u64)), (30, value as u64)])
            );
        }
        while form::<true, true>(&mut chunk, 1, &counter(1, 1)) {}
        assert!(chunk.room() < counter(1, 1).room::<false>());
        arena.retire();
    }

    /// The metadata of a callsite with this many arguments.
    #[derive(Debug)]
    struct Known(usize);

    impl crate::callsite::About for Known {
        fn target(&self) -> &str {
            "target"
        }

        fn location(&self) -> Option<(&str, u32)> {
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
            assert!(intern(&mut chunk, &site));
            assert!(room - chunk.room() <= site_room(site));
            let mut write = |form: Form, event: Event<'_>| {
                let before = chunk.room();
                assert!(form(&mut chunk, 5, &event));
                assert!(before - chunk.room() <= event.room::<false>());
            };
            let begin = Event::new(Type::Begin, 1 << 12);
            write(form::<true, true>, Event { site: Some(Site { about: None, ..site }), ..begin });
            let instant = Event { args: &[0x22, 0], ..Event::new(Type::Instant, 1) };
            write(form::<false, false>, Event { site: Some(site), ..instant });
            write(form::<false, false>, Event { site: Some(Site { number: BEYOND, ..site }), ..instant });

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

    /// Tests events with many combinations of a name, a callsite, a flow, an argument and a time.
    #[test]
    #[cfg_attr(miri, ignore = "maps memory files")]
    fn what_an_event_has_is_whole() {
        use crate::callsite::{BEYOND, FIRST};

        let about = Known(0);
        let text = letters(2048);
        let names = [0, 1, 7, SHORT, SHORT + 1, 1000].map(|len| Some(&text[..len]));
        let numbers = [None, Some(FIRST), Some(127), Some(128), Some(BEYOND - 1)];
        let (arena, _) = Arena::make(1).unwrap();
        let mut chunk = arena.open(Layout::Whole, 1, 0, 1).unwrap();
        for (name, number) in
            names.iter().chain(&[None]).flat_map(|name| numbers.map(|number| (*name, number)))
        {
            for (since, flow, len) in
                [(0, 0, 0), (16_383, 7, 5), (16_384, u64::MAX, SHORT + 1), (u64::MAX, 0, 2000)]
            {
                let level = 1 + (len % 5) as u8;
                let argument =
                    [&[0x22, len as u8 | 0x80, (len >> 7) as u8][..], &text.as_bytes()[..len]].concat();
                let site = number.map(|number| Site { number, name: "", level, about: Some(&about) });
                let event = Event { name, site, flow, args: &argument, ..Event::new(Type::Begin, 1 << 12) };
                if chunk.room() < event.room::<false>() {
                    chunk.complete();
                    arena.take_completed().for_each(|place| arena.read(&place, |_| ()));
                    chunk = arena.open(Layout::Whole, 1, 0, 1).unwrap();
                }
                let (start, room) = (chunk.at(), chunk.room());
                assert!(form::<false, false>(&mut chunk, since, &event));
                assert!(room - chunk.room() <= event.room::<false>());
                let found = packets(start, chunk.at());
                let [packet] = &found[..] else { panic!("{found:?}") };
                let (time, fields) = fields(packet);
                let count = |of| fields.iter().filter(|(field, _)| *field == of).count();
                let first = |of| fields.iter().find(|(field, _)| *field == of).map(|(_, value)| *value);
                assert_eq!((time, count(9), count(11), count(30)), (since, 1, 0, 0));
                assert_eq!(first(23).map(Value::bytes), name.map(str::as_bytes));
                let number = number.map(u64::from);
                let by_number = number.filter(|_| name.is_none());
                assert_eq!(first(10).map(Value::number), by_number);
                assert_eq!(
                    (first(34).map(Value::number), count(3)),
                    (number, 1 + usize::from(site.is_some()))
                );
                assert_eq!(first(47).map(Value::number), (flow != 0).then_some(flow));
                assert_eq!(count(4), 1 + usize::from(site.is_some()));
                let last = fields.iter().rfind(|(field, _)| *field == 4).unwrap();
                assert_eq!(last.1.bytes(), &text.as_bytes()[..len]);
            }
        }
        arena.retire();
    }
}
