//! The incremental state: the packets that a reader must have before a thread's events. The module [`writer`] decides
//! when these packets are written.
//!
//! The state consists of three packets: one with the clock and the default track, one that describes the thread's
//! track, and one that describes the process's track. A fourth packet names categories before the first event that has
//! them.
//!
//! Source: Perfetto's `trace_packet.proto`, `trace_packet_defaults.proto`, `clock_snapshot.proto`,
//! `thread_descriptor.proto`, `process_descriptor.proto`.
//!
//! [`writer`]: crate::writer

use crate::memory::Chunk;
use atrace_sys::{process, thread};

use super::cursor::{BOOTTIME, wide};
use crate::category;
use crate::proto::Writer;

/// The maximum size of the state without the categories, in bytes.
pub(crate) const ROOM: usize = 320;
/// The maximum length of the name of a process, in bytes. A longer name is cut.
const NAME_MAX: usize = 100;

/// A flag of `TracePacket.SequenceFlags`: the packet begins the state anew.
const STATE_CLEARED: u64 = 1;
pub(super) const NEEDS_STATE: u64 = 2;
/// The number of the sequence's own clock. On this clock, each packet has the time since the previous packet.
const OWN_CLOCK: u64 = 64;
/// The size of a packet's length, in bytes.
const LENGTH: usize = 2;
/// The size of the largest of the state's packets, in bytes: a process's name, and 40 bytes more.
const LARGEST: usize = NAME_MAX + 40;

/// Writes the state of the calling thread's sequence. Returns false if there is no room.
///
/// `process` is the number of the process's track, and `now` is the starting time of the sequence's own clock.
/// `is_first` means that this is the sequence's first packet in the session. `is_lost` means that packets before
/// the state were lost because the shared memory was full.
#[inline(never)]
pub(crate) fn write(chunk: &mut Chunk, process: u64, now: u64, is_first: bool, is_lost: bool) -> bool {
    if chunk.room() < ROOM {
        return false;
    }
    let (tid, pid) = (u64::from(thread::number().unwrap_or_default()), u64::from(process::raw_id()));
    let own = process ^ tid;
    packet::<LARGEST>(chunk, |packet| {
        // timestamp, timestamp_clock_id, sequence_flags
        packet.number(8, now).number(58, BOOTTIME.into()).number(13, STATE_CLEARED);
        // trace_packet_defaults: timestamp_clock_id, track_event_defaults: track_uuid
        packet.message(59, |defaults| {
            defaults.number(58, OWN_CLOCK).message(11, |event| _ = event.number(11, own));
        });
        // clock_snapshot: clocks: clock_id, timestamp; for the own clock also is_incremental, unit_multiplier_ns
        packet.message(6, |clocks| {
            clocks.message(1, |clock| _ = clock.number(1, BOOTTIME.into()).number(2, now));
            clocks
                .message(1, |clock| _ = clock.number(1, OWN_CLOCK).number(2, now).number(3, 1).number(4, 1));
        });
        if is_first {
            packet.number(87, 1); // first_packet_on_sequence
        }
        if is_lost {
            packet.number(42, 257); // previous_packet_dropped
        }
    });
    packet::<LARGEST>(chunk, |packet| {
        // track_descriptor: uuid, parent_uuid, thread: pid, tid, thread_name
        packet.message(60, |track| {
            track.number(1, own).number(5, process).message(4, |thread| {
                thread.number(1, pid).number(2, tid);
                thread::with_name(|name| _ = thread.bytes(5, name));
            });
            // disallow_merging_with_system_tracks: slices that come through ATrace have another clock and end by another
            // rule.
            track.number(9, 1);
        });
    });
    packet::<LARGEST>(chunk, |packet| {
        // track_descriptor: uuid, process: pid, process_name
        packet.message(60, |track| {
            track.number(1, process).message(3, |inner| {
                inner.number(1, pid);
                process::with_argv0(|name| {
                    let name = name.map_or(&[][..], std::ffi::CStr::to_bytes);
                    inner.bytes(6, &name[..name.len().min(NAME_MAX)]);
                });
            });
        });
    });
    true
}

/// Encodes a packet in a buffer of `SIZE` bytes, and appends it to the chunk. Returns false if there is no room.
pub(super) fn packet<const SIZE: usize>(chunk: &mut Chunk, fill: impl FnOnce(&mut Writer<'_>)) -> bool {
    let mut bytes = [0; SIZE];
    let mut writer = Writer::new(bytes.get_mut(LENGTH..).unwrap_or_default());
    fill(&mut writer);
    let Some(len) = writer.finish().map(<[u8]>::len) else { return false };
    bytes[..LENGTH].copy_from_slice(&wide(len).to_le_bytes());
    chunk.write(&bytes[..LENGTH + len])
}

/// Writes the packet that names categories, which are given as bits of tags. Returns false if there is no
/// room.
#[inline(never)]
pub(crate) fn name_categories(chunk: &mut Chunk, tags: u32) -> bool {
    if chunk.room() < categories_room(tags) {
        return false;
    }
    packet::<{ categories_room(u32::MAX) }>(chunk, |packet| {
        // sequence_flags, interned_data: event_categories: iid, name
        packet.number(13, NEEDS_STATE).message(12, |interned| {
            for bit in (0..u32::BITS).filter(|bit| tags & 1 << bit != 0) {
                let name = category::name(bit).as_bytes();
                interned.message(1, |entry| _ = entry.number(1, u64::from(bit) + 1).bytes(2, name));
            }
        });
    })
}

/// Returns the maximum size of the packet that names these categories: 7 bytes, and at most 21 for each
/// category.
pub(crate) const fn categories_room(categories: u32) -> usize {
    7 + 21 * categories.count_ones() as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::Layout;
    use crate::memory::Arena;
    use crate::packet::tests::packets;
    use crate::packet::track;
    use crate::proto::{Reader, Value};

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
            let process_track = !track(7); // All 64 bits are used.
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

    /// Any set of categories can be named, even all categories at once. A reader could not understand an event with a
    /// category that was not named.
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
            arena.take_handed().for_each(|place| arena.read(&place, |_| ()));
        }
        arena.retire();
    }
}
