//! The incremental state: the packets that a reader needs before it can decode a thread's events. The module [`writer`]
//! decides when these packets are written.
//!
//! The state consists of three packets: one with the clock and the default track, one that describes the thread's
//! track, and one that describes the process's track. Further packets define the names of categories, each packet
//! before the first event that has these categories. All fields except names have a fixed size, so the state can be
//! written with a few stores.
//!
//! Source: Perfetto's `trace_packet.proto`, `trace_packet_defaults.proto`, `clock_snapshot.proto`,
//! `thread_descriptor.proto`, `process_descriptor.proto`.
//!
//! [`writer`]: crate::writer

use crate::memory::Chunk;
use atrace_sys::{process, thread};

use super::cursor::{BOOTTIME, Cursor};
use super::{called_full as full, called_spread as spread};
use crate::category;

/// The maximum size of the incremental state without the names of categories, in bytes.
pub(crate) const ROOM: usize = 320;
/// The maximum length of the name of a process, in bytes. A longer name is cut.
const NAME_MAX: usize = 100;
/// Checks the size of the three packets: 77 bytes; 48 bytes and a thread's name; 29 bytes and a process's name.
const _: () = assert!(77 + 48 + thread::NAME_MAX + 29 + NAME_MAX <= ROOM);

/// A flag of `TracePacket.SequenceFlags`, which means that the packet begins the incremental state anew.
const STATE_CLEARED: u8 = 1;
const NEEDS_STATE: u8 = 2;
/// The number of the sequence's own clock. A time of this clock is the time since the previous packet.
const OWN_CLOCK: u8 = 64;

/// Writes the incremental state of the calling thread's packet sequence. Returns false if there is no room.
///
/// `process` is the number of the process's track, and `now` is the starting time of the sequence's own clock.
/// `is_first` means that this is the sequence's first packet in the session. `is_lost` means that events before the
/// state were lost; the state's first packet then says that the shared memory was full.
#[inline(never)]
pub(crate) fn write(chunk: &mut Chunk, process: u64, now: u64, is_first: bool, is_lost: bool) -> bool {
    if chunk.room() < ROOM {
        return false;
    }
    let tid = thread::number().unwrap_or_default();
    let (own, pid) = (full(process ^ u64::from(tid)), number(process::raw_id()));
    let (process, now) = (full(process), time(now));
    // SAFETY: writes at most what `ROOM` is asserted to hold, and both names are cut.
    unsafe {
        let mut cursor = Cursor(chunk.at());
        let whole = cursor.later::<false>();
        // Fields: timestamp, timestamp_clock_id, sequence_flags
        cursor.bytes([0x40]);
        cursor.bytes(now);
        cursor.bytes([0xd0, 3, BOOTTIME, 0x68, STATE_CLEARED]);
        // Fields: trace_packet_defaults: timestamp_clock_id, track_event_defaults: track_uuid
        cursor.bytes([0xda, 3, 16, 0xd0, 3, OWN_CLOCK, 0x5a, 11, 0x58]);
        cursor.bytes(own);
        // Fields: clock_snapshot: clocks: clock_id, timestamp; for the own clock also is_incremental,
        // unit_multiplier_ns
        cursor.bytes([0x32, 32, 0x0a, 12, 0x08, BOOTTIME, 0x10]);
        cursor.bytes(now);
        cursor.bytes([0x0a, 16, 0x08, OWN_CLOCK, 0x10]);
        cursor.bytes(now);
        cursor.bytes([0x18, 1, 0x20, 1]);
        if is_first {
            cursor.bytes([0xb8, 5, 1]); // first_packet_on_sequence
        }
        if is_lost {
            cursor.bytes([0xd0, 2, 0x81, 2]); // previous_packet_dropped
        }
        cursor.close::<false>(whole);
        chunk.publish(cursor.0);

        let mut cursor = Cursor(chunk.at());
        let whole = cursor.later::<false>();
        // Fields: track_descriptor: uuid, parent_uuid, thread: pid, tid, thread_name
        cursor.bytes([0xe2, 3]);
        let track = cursor.later::<false>();
        cursor.bytes([0x08]);
        cursor.bytes(own);
        cursor.bytes([0x28]);
        cursor.bytes(process);
        cursor.bytes([0x22]);
        let thread = cursor.later::<false>();
        cursor.bytes([0x08]);
        cursor.bytes(pid);
        cursor.bytes([0x10]);
        cursor.bytes(number(tid));
        thread::with_name(|name| cursor.field(0x2a, name));
        cursor.close::<false>(thread);
        // Field: disallow_merging_with_system_tracks, because slices that come through ATrace have times of another
        // clock, and end by another rule.
        cursor.bytes([0x48, 1]);
        cursor.close::<false>(track);
        cursor.close::<false>(whole);
        chunk.publish(cursor.0);

        let mut cursor = Cursor(chunk.at());
        let whole = cursor.later::<false>();
        // Fields: track_descriptor: uuid, process: pid, process_name
        cursor.bytes([0xe2, 3]);
        let track = cursor.later::<false>();
        cursor.bytes([0x08]);
        cursor.bytes(process);
        cursor.bytes([0x1a]);
        let inner = cursor.later::<false>();
        cursor.bytes([0x08]);
        cursor.bytes(pid);
        process::with_argv0(|name| {
            let name = name.map_or(&[][..], std::ffi::CStr::to_bytes);
            cursor.field(0x32, &name[..name.len().min(NAME_MAX)]);
        });
        cursor.close::<false>(inner);
        cursor.close::<false>(track);
        cursor.close::<false>(whole);
        chunk.publish(cursor.0);
    }
    true
}

/// Writes the packet that defines the names of categories. The categories are given as bits of tags. Returns false if
/// there is no room.
#[inline(never)]
pub(crate) fn name_categories(chunk: &mut Chunk, tags: u32) -> bool {
    if chunk.room() < categories_room(tags) {
        return false;
    }
    // SAFETY: writes at most what `categories_room` counts.
    unsafe {
        let mut cursor = Cursor(chunk.at());
        let whole = cursor.later::<false>();
        // Fields: sequence_flags, interned_data: event_categories: iid, name
        cursor.bytes([0x68, NEEDS_STATE, 0x62]);
        let interned = cursor.later::<false>();
        let mut missing = tags;
        while missing != 0 {
            let bit = missing.trailing_zeros();
            missing &= missing - 1;
            let name = category::name(bit).as_bytes();
            cursor.bytes([0x0a, 5 + name.len() as u8, 0x08, bit as u8 + 1]);
            cursor.field(0x12, name);
        }
        cursor.close::<false>(interned);
        cursor.close::<false>(whole);
        chunk.publish(cursor.0);
    }
    true
}

/// Returns the maximum size, in bytes, of the packet that defines the names of these categories: 7 bytes, and at most
/// 21 for each category.
pub(crate) const fn categories_room(categories: u32) -> usize {
    7 + 21 * categories.count_ones() as usize
}

/// Returns a time below 2^63 as a varint of nine bytes.
fn time(ns: u64) -> [u8; 9] {
    let [low @ .., _] = spread(ns);
    let mut bytes = [0; 9];
    bytes[..7].copy_from_slice(&low);
    bytes[7] = (ns >> 49) as u8 | 0x80;
    bytes[8] = (ns >> 56) as u8 & 0x7f;
    bytes
}

/// Returns the id of a process or thread as a varint of five bytes.
fn number(id: u32) -> [u8; 5] {
    [
        id as u8 | 0x80,
        (id >> 7) as u8 | 0x80,
        (id >> 14) as u8 | 0x80,
        (id >> 21) as u8 | 0x80,
        (id >> 28) as u8,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::Layout;
    use crate::memory::Arena;
    use crate::packet::tests::packets;
    use crate::proto::{Reader, Value};
    use crate::track;

    /// Returns the field at the end of `path`, which leads through nested messages.
    fn field<'a>(packet: &'a [u8], path: &[u32]) -> Option<Value<'a>> {
        let (last, before) = path.split_last()?;
        let inner = before.iter().try_fold(packet, |of, field| Some(Reader::first(of, *field)?.bytes()));
        Reader::first(inner?, *last)
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps memory files")]
    fn the_state_is_told_at_any_time_within_its_room() {
        let longest = std::thread::Builder::new().name("n".repeat(thread::NAME_MAX));
        longest.spawn(tell_at_any_time).unwrap().join().unwrap();
    }

    fn tell_at_any_time() {
        thread::note_name();
        let (arena, _) = Arena::make(1).unwrap();
        let now = [0, 127, 1 << 49, (1 << 56) - 1, 1 << 56, (1 << 63) - 1];
        for (now, [is_first, is_lost]) in
            now.into_iter().zip([[true, true], [false, false]].into_iter().cycle())
        {
            let mut chunk = arena.open(Layout::Small, 1, 0, 1).unwrap();
            let (start, room) = (chunk.at(), chunk.room());
            let process_track = !track::number(7); // All 64 bits are used.
            assert!(write(&mut chunk, process_track, now, is_first, is_lost));
            let taken = room - chunk.room();
            let found = packets(start, chunk.at());
            let [state, thread, process] = &found[..] else { panic!("{found:?}") };
            let number = |of: &[u8], path: &[u32]| field(of, path).map(|value| value.number());
            assert_eq!(number(state, &[8]), Some(now));
            assert_eq!(number(state, &[58]), Some(6));
            assert_eq!(number(state, &[13]), Some(1));
            assert_eq!(number(state, &[87]), is_first.then_some(1));
            assert_eq!(number(state, &[42]), is_lost.then_some(257));
            assert_eq!(number(state, &[59, 58]), Some(64));
            let clocks: Vec<Vec<_>> = Reader::new(field(state, &[6]).unwrap().bytes())
                .map(|(_, clock)| {
                    Reader::new(clock.bytes()).map(|(field, value)| (field, value.number())).collect()
                })
                .collect();
            assert_eq!(clocks, [vec![(1, 6), (2, now)], vec![(1, 64), (2, now), (3, 1), (4, 1)]]);

            let tid = u64::from(thread::number().unwrap());
            let pid = u64::from(std::process::id());
            assert_eq!(number(state, &[59, 11, 11]), number(thread, &[60, 1]));
            assert_eq!(number(thread, &[60, 1]), Some(process_track ^ tid));
            assert_eq!(number(thread, &[60, 5]), Some(process_track));
            assert_eq!(number(process, &[60, 1]), Some(process_track));
            assert_eq!([1, 2].map(|of| number(thread, &[60, 4, of])), [Some(pid), Some(tid)]);
            assert_eq!(number(thread, &[60, 9]), Some(1));
            assert_eq!(number(process, &[60, 3, 1]), Some(pid));
            let name = field(thread, &[60, 4, 5]).unwrap().bytes();
            assert_eq!(name, "n".repeat(thread::NAME_MAX).as_bytes());
            let name = field(process, &[60, 3, 6]).unwrap().bytes();
            process::with_argv0(|argv0| assert!(argv0.unwrap().to_bytes().starts_with(name)));
            assert!(!name.is_empty());
            assert!(taken + NAME_MAX - name.len() <= ROOM, "{taken}");
        }
        arena.retire();
    }

    /// Tests that sets of categories can be named, even all categories at once. A reader could not understand an event
    /// with a category that was not named.
    #[test]
    #[cfg_attr(miri, ignore = "maps memory files")]
    fn any_categories_are_named() {
        let (arena, _) = Arena::make(1).unwrap();
        for tags in [1, 1 << 27, 0b1010, (1 << category::COUNT) - 1] {
            let mut chunk = arena.open(Layout::Whole, 1, 0, 1).unwrap();
            let (start, room) = (chunk.at(), chunk.room());
            assert!(name_categories(&mut chunk, tags));
            assert!(room - chunk.room() <= categories_room(tags));
            let found = packets(start, chunk.at());
            let named = field(&found[0], &[12]).unwrap().bytes();
            let mut of = 0;
            for (kind, entry) in Reader::new(named) {
                let bit = Reader::first(entry.bytes(), 1).unwrap().number() as u32 - 1;
                assert_eq!(
                    (kind, field(entry.bytes(), &[2]).unwrap().bytes()),
                    (1, category::name(bit).as_bytes())
                );
                of |= 1 << bit;
            }
            assert_eq!((found.len(), of), (1, tags));
            chunk.complete();
            arena.take_completed().for_each(|place| arena.read(&place, |_| ()));
        }
        arena.retire();
    }
}
