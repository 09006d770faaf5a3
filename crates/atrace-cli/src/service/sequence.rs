//! Reads the packets of one writer out of the writer's chunks: in the order of the chunks, with packets that span
//! several chunks, and with bytes that arrive later (*patches*).
//!
//! # Chunks
//!
//! A writer numbers its chunks. Numbers wrap around and are compared modulo 2³². A chunk may be read more than once:
//! while it is being written, and again when it is complete. So the service stores the number of packets that it has
//! already read from the last chunk. The last packet of an incomplete chunk is not read, because it is still being
//! written.
//!
//! # Losses
//!
//! If a chunk is missing, the next packet is marked as following a loss. A packet that continues in a missing chunk
//! is dropped.
//!
//! # Patches
//!
//! A writer may know the length of a nested message only after it has completed the chunk in which the message begins.
//! The writer then marks the chunk (`NEEDS_PATCHES`) and later sends the missing bytes (*patches*) over the socket. The
//! chunk and all chunks after it wait until the bytes have arrived. If the memory for waiting chunks is used up, the
//! packets of the oldest chunk are stored without the incomplete packet.
//!
//! # Memory
//!
//! The memory for unfinished data is limited ([`Room`]). Unfinished data is incomplete frames, messages that a producer
//! has not read, packets that continue in another chunk, chunks that wait for patches, and the entries of known
//! writers. There is one limit per connection and one for all connections together. A connection gets at most half of
//! the memory that the other connections have left free, so there is always memory for the next connection.

use std::collections::VecDeque;

use atrace_perfetto::foreign::{CONTINUES, GOES_ON, Head, NEEDS_PATCHES};
use atrace_perfetto::proto::varint;

use super::{Fault, Result};

/// The maximum size of a packet that spans several chunks.
const PACKET_MAX: usize = 4 << 20;
/// A length with a special meaning: the packet must be dropped (`kPacketSizeDropPacket`).
const LEFT_OUT: usize = 0x0fff_ffff;

/// The packets of one writer.
#[derive(Default)]
pub(super) struct Sequence {
    last: Option<LastChunk>,
    /// The first part of a packet that continues in the next chunk.
    begun: Option<Vec<u8>>,
    /// Complete chunks whose packets were not read yet, because the first of these chunks waits for patches.
    waiting: VecDeque<Waiting>,
    /// Whether packets of this writer were lost before its next packet.
    is_after_loss: bool,
}

/// The last chunk that was read.
#[derive(Clone, Copy, Debug)]
struct LastChunk {
    number: u32,
    /// The number of packets of this chunk that were already read.
    taken: u16,
    is_complete: bool,
}

struct Waiting {
    head: Head,
    bytes: Vec<u8>,
    /// The number of packets of this chunk that were read before the chunk had to wait for patches.
    taken: u16,
}

impl Waiting {
    /// Returns the size of the memory that the chunk needs, in bytes.
    fn size(&self) -> usize {
        size_of::<Self>() + self.bytes.len()
    }
}

/// A function that checks and stores a packet. Its second argument is whether packets were lost before this packet. The
/// function returns whether the packet was stored.
type Take<'a> = Box<dyn FnMut(&[u8], bool) -> bool + 'a>;

/// The destination of a sequence's packets, and the limits for the memory of packets that are not complete
/// yet.
pub(super) struct PacketTarget<'a> {
    pub(super) room: Room<'a>,
    pub(super) take: Take<'a>,
}

/// The maximum amount of unfinished data of one connection, in bytes.
const OF_ONE: usize = 16 << 20;
/// The maximum amount of unfinished data of all connections together, in bytes.
const OF_ALL: usize = 64 << 20;

/// The amounts of memory that one connection and all connections together use for unfinished data. The methods enforce
/// the limits.
#[derive(Debug)]
pub(super) struct Room<'a> {
    pub(super) own: &'a mut usize,
    pub(super) all: &'a mut usize,
}

impl Room<'_> {
    /// Reserves memory. Returns false, and reserves nothing, if a limit would be exceeded.
    pub(super) fn take(&mut self, bytes: usize) -> bool {
        let others = *self.all - *self.own;
        let is_there = *self.own + bytes <= OF_ONE.min((OF_ALL - others.min(OF_ALL)) / 2);
        if is_there {
            *self.own += bytes;
            *self.all += bytes;
        }
        is_there
    }

    /// Releases reserved memory.
    pub(super) fn give(&mut self, bytes: usize) {
        *self.own -= bytes;
        *self.all -= bytes;
    }
}

impl Sequence {
    /// Returns how far a chunk's number is ahead of the number of the last chunk that was read, modulo 2^32. If no
    /// chunk was read, returns the number itself.
    pub(super) fn age(&self, number: u32) -> u32 {
        self.last.map_or(number, |last| number.wrapping_sub(last.number))
    }

    /// Begins the sequence of a new writer that has the number of an earlier writer. The chunk numbers start anew, and
    /// the waiting chunks of the earlier writer will not be patched any more.
    pub(super) fn begin_anew(&mut self, to: &mut PacketTarget<'_>) -> Result {
        let done = self.give_up(to);
        self.last = None;
        if self.begun.is_some() {
            self.lose(to);
        }
        done
    }

    /// Returns whether nothing of the chunk with this number is left to read: the chunk was read when it was complete,
    /// or is older than the last chunk that was read.
    pub(super) fn is_over(&self, number: u32) -> bool {
        self.last.is_some_and(|last| match number.wrapping_sub(last.number).cast_signed() {
            0 => last.is_complete,
            ahead => ahead < 0,
        })
    }

    /// Reads those packets of a chunk that were not read before. No packets are added to a complete chunk.
    pub(super) fn chunk(
        &mut self,
        head: Head,
        bytes: &[u8],
        is_complete: bool,
        to: &mut PacketTarget<'_>,
    ) -> Result {
        if self.is_over(head.number) {
            return Ok(());
        }
        let mut taken = 0;
        if let Some(last) = self.last {
            match head.number.wrapping_sub(last.number) {
                0 => taken = last.taken,
                1 if last.is_complete => {}
                _ => self.lose(to),
            }
        }
        if !is_complete && (head.flags & NEEDS_PATCHES != 0 || !self.waiting.is_empty()) {
            return Ok(()); // The chunk is read when it is complete.
        }
        // The last packet of an incomplete chunk is still being written.
        let whole = if is_complete { head.packets } else { head.packets.saturating_sub(1) };
        if whole < taken {
            return Err(Fault::Count);
        }
        self.last = Some(LastChunk { number: head.number, taken: whole, is_complete });
        if is_complete && (head.flags & NEEDS_PATCHES != 0 || !self.waiting.is_empty()) {
            let waiting = Waiting { head, bytes: bytes.to_vec(), taken };
            while !to.room.take(waiting.size()) {
                if self.waiting.is_empty() {
                    self.lose(to);
                    return Ok(());
                }
                self.take_waiting(to)?;
            }
            self.waiting.push_back(waiting);
            return Ok(());
        }
        let flags = if is_complete { head.flags } else { head.flags & CONTINUES };
        self.packets(flags, bytes, taken, whole, to)
    }

    /// Reads the packets of a chunk, beginning with the packet that has the index `taken`.
    fn packets(
        &mut self,
        flags: u16,
        bytes: &[u8],
        taken: u16,
        count: u16,
        to: &mut PacketTarget<'_>,
    ) -> Result {
        let mut rest = bytes;
        for index in 0..count {
            let (len, behind) = length(rest).ok_or(Fault::Packet)?;
            if len == LEFT_OUT {
                if index >= taken {
                    self.lose(to);
                }
                return Ok(());
            }
            let (packet, behind) = behind.split_at_checked(len).ok_or(Fault::Packet)?;
            rest = behind;
            if index < taken {
                continue;
            }
            let continues = index == 0 && flags & CONTINUES != 0;
            let goes_on = index + 1 == count && flags & GOES_ON != 0;
            self.packet(packet, continues, goes_on, to);
        }
        Ok(())
    }

    fn packet(&mut self, packet: &[u8], continues: bool, goes_on: bool, to: &mut PacketTarget<'_>) {
        if continues == self.begun.is_none() {
            // The start of a packet without its end, or an end without its start: neither can be used.
            self.lose(to);
            if continues {
                return;
            }
        }
        if !continues && !goes_on {
            return self.give(packet, to);
        }
        let mut whole = self.begun.take().unwrap_or_default();
        let before = whole.capacity();
        whole.extend_from_slice(packet);
        let has_room = whole.len() <= PACKET_MAX && to.room.take(whole.capacity() - before);
        let held = if has_room { whole.capacity() } else { before };
        if has_room && goes_on {
            self.begun = Some(whole);
            return;
        }
        to.room.give(held);
        if has_room {
            self.give(&whole, to);
        } else {
            self.is_after_loss = true;
        }
    }

    fn give(&mut self, packet: &[u8], to: &mut PacketTarget<'_>) {
        if !packet.is_empty() && (to.take)(packet, self.is_after_loss) {
            self.is_after_loss = false;
        }
    }

    fn lose(&mut self, to: &mut PacketTarget<'_>) {
        to.room.give(self.begun.take().map_or(0, |begun| begun.capacity()));
        self.is_after_loss = true;
    }

    /// Patches a chunk that waits for patches. Returns false if no chunk with this number waits. After the last patch
    /// (`is_last`) the chunk waits only for earlier chunks.
    pub(super) fn patch<'a>(
        &mut self,
        number: u32,
        patches: impl Iterator<Item = (u64, &'a [u8])>,
        is_last: bool,
        to: &mut PacketTarget<'_>,
    ) -> Result<bool> {
        // The waiting chunks are sorted by number. The numbers wrap around, so they are compared by their distance
        // from the first.
        let Some(first) = self.waiting.front().map(|first| first.head.number) else { return Ok(false) };
        let age = |waiting: &Waiting| waiting.head.number.wrapping_sub(first);
        let found = self.waiting.binary_search_by_key(&number.wrapping_sub(first), age).ok();
        let Some(waiting) = found.and_then(|at| self.waiting.get_mut(at)) else { return Ok(false) };
        for (offset, bytes) in patches {
            let offset = usize::try_from(offset).map_err(|_| Fault::Patch)?;
            let end = offset.checked_add(bytes.len()).ok_or(Fault::Patch)?;
            waiting.bytes.get_mut(offset..end).ok_or(Fault::Patch)?.copy_from_slice(bytes);
        }
        if is_last {
            waiting.head.flags &= !NEEDS_PATCHES;
        }
        while self.waiting.front().is_some_and(|waiting| waiting.head.flags & NEEDS_PATCHES == 0) {
            self.take_waiting(to)?;
        }
        Ok(true)
    }

    /// Reads the packets of the waiting chunks, without the packets that lack bytes. Call this when no patch can arrive
    /// any more.
    pub(super) fn give_up(&mut self, to: &mut PacketTarget<'_>) -> Result {
        while !self.waiting.is_empty() {
            self.take_waiting(to)?;
        }
        Ok(())
    }

    /// Reads the packets of the first waiting chunk. A packet that lacks bytes is left out.
    fn take_waiting(&mut self, to: &mut PacketTarget<'_>) -> Result {
        let Some(waiting) = self.waiting.pop_front() else { return Ok(()) };
        to.room.give(waiting.size());
        let Waiting { head, bytes, taken } = waiting;
        let is_whole = head.flags & NEEDS_PATCHES == 0;
        // Only the last packet of a chunk can need a patch: the writer patches a packet only if the packet continues in
        // the next chunk.
        let count = if is_whole { head.packets } else { head.packets.saturating_sub(1) };
        let flags = if is_whole { head.flags } else { head.flags & CONTINUES };
        self.packets(flags, &bytes, taken, count, to)?;
        if !is_whole {
            self.lose(to);
        }
        Ok(())
    }
}

/// Returns the length of the packet at the start of `bytes`, and the bytes behind the length. The length is a varint of
/// at most four bytes.
fn length(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let (len, before) = varint(4, |at| bytes.get(at).copied())?;
    Some((len as usize, &bytes[before..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sequence of chunks, with the memory that its connection (`own`) and all connections (`all`) use.
    #[derive(Default)]
    struct Tried {
        sequence: Sequence,
        own: usize,
        all: usize,
    }

    impl Tried {
        fn parts(&mut self) -> (&mut Sequence, Room<'_>) {
            (&mut self.sequence, Room { own: &mut self.own, all: &mut self.all })
        }

        fn patch<'a>(
            &mut self,
            number: u32,
            patches: impl Iterator<Item = (u64, &'a [u8])>,
            is_last: bool,
            take: impl FnMut(&[u8], bool) -> bool,
        ) -> Result<bool> {
            let (sequence, room) = self.parts();
            sequence.patch(number, patches, is_last, &mut PacketTarget { room, take: Box::new(take) })
        }
    }

    fn head(number: u32, packets: u16, flags: u16) -> Head {
        Head { number, writer: 1, packets, flags }
    }

    /// Passes chunks to the sequence. Returns the packets that the sequence has stored, with a `!` before each packet
    /// that follows a loss, and the result of the last chunk.
    fn taken(tried: &mut Tried, chunks: &[(Head, &[u8], bool)]) -> (Vec<String>, Result) {
        let mut all = Vec::new();
        let (sequence, room) = tried.parts();
        let take = |packet: &[u8], is_after_loss: bool| {
            let text = String::from_utf8_lossy(packet);
            all.push(format!("{}{text}", if is_after_loss { "!" } else { "" }));
            true
        };
        let mut to = PacketTarget { room, take: Box::new(take) };
        let done =
            chunks.iter().try_for_each(|(head, bytes, whole)| sequence.chunk(*head, bytes, *whole, &mut to));
        drop(to);
        (all, done)
    }

    #[test]
    fn an_open_chunk_is_taken_as_far_as_it_is_whole() {
        let mut tried = Tried::default();
        let bytes = b"\x01a\x01b\x01c\x00";
        let chunks = [
            (head(7, 1, 0), &bytes[..], false),
            (head(7, 3, 0), bytes, false),
            (head(7, 3, 0), bytes, false),
            (head(7, 4, 0), bytes, true),
            (head(7, 4, 0), bytes, true),
            (head(8, 1, 0), b"\x81\x80\x80\x00d", true),
            (head(6, 1, 0), b"\x01e", true),
        ];
        assert_eq!(taken(&mut tried, &chunks), (["a", "b", "c", "d"].map(String::from).to_vec(), Ok(())));
        assert_eq!(tried.sequence.age(10), 2);
        // The number of packets in a chunk may only grow: a smaller number is a fault.
        let back = [(head(9, 3, 0), &bytes[..], false), (head(9, 2, 0), bytes, false)];
        assert_eq!(taken(&mut tried, &back).1, Err(Fault::Count));
    }

    #[test]
    fn what_is_missing_is_told() {
        let mut tried = Tried::default();
        let one = |number, flags, bytes| (head(number, 1, flags), bytes, true);
        let chunks = [
            one(u32::MAX, 0, &b"\x01a"[..]),
            one(0, GOES_ON, b"\x01b"),
            one(1, CONTINUES | GOES_ON, b"\x01c"),
            one(2, CONTINUES, b"\x01d"),
            one(4, 0, b"\x01e"),
            one(5, GOES_ON, b"\x01f"),
            one(6, 0, b"\x01g"),
            one(7, CONTINUES, b"\x01h"),
            one(8, 0, b"\xff\xff\xff\x7f"),
            one(9, 0, b"\x01i"),
            one(10, 0, b"\x01j"),
        ];
        let expected = ["a", "bcd", "!e", "!g", "!i", "j"].map(String::from).to_vec();
        assert_eq!(taken(&mut tried, &chunks), (expected, Ok(())));
        for wrong in [&b""[..], b"\x02a", b"\x80\x80\x80\x80\x00"] {
            assert_eq!(taken(&mut tried, &[one(11, 0, wrong)]).1, Err(Fault::Packet));
            let (sequence, room) = tried.parts();
            assert_eq!(sequence.begin_anew(&mut PacketTarget { room, take: Box::new(|_, _| true) }), Ok(()));
        }
    }

    #[test]
    fn a_chunk_waits_for_its_bytes_and_holds_up_those_behind_it() {
        let mut tried = Tried::default();
        let chunks = [
            (head(0, 2, NEEDS_PATCHES | GOES_ON), &b"\x01a\x02b?"[..], true),
            (head(1, 1, CONTINUES | NEEDS_PATCHES | GOES_ON), b"\x01?", true),
            (head(2, 2, CONTINUES), b"\x01d\x01e", true),
        ];
        assert_eq!(taken(&mut tried, &chunks), (Vec::new(), Ok(())));
        let mut all = Vec::new();
        let mut take = |packet: &[u8], _| {
            all.push(packet.to_vec());
            true
        };
        let patch = |offset, bytes| std::iter::once((offset, bytes));
        assert_eq!(tried.patch(5, patch(0, &b"!"[..]), true, &mut take), Ok(false));
        assert_eq!(tried.patch(1, patch(1, b"c"), true, &mut take), Ok(true));
        assert_eq!(tried.patch(0, patch(4, b"!"), false, &mut take), Ok(true));
        assert_eq!(tried.patch(0, patch(5, b"!"), true, &mut take), Err(Fault::Patch));
        assert_eq!(tried.patch(0, patch(u64::MAX, b"!"), true, &mut take), Err(Fault::Patch));
        assert_eq!(tried.patch(0, std::iter::empty(), true, &mut take), Ok(true));
        assert_eq!(all, [&b"a"[..], b"b!cd", b"e"]);
        // The packets of these chunks are not stored, because the patches of the first chunk do not arrive.
        let late = [(head(3, 2, NEEDS_PATCHES), &b"\x01f\x01?"[..], true), (head(4, 1, 0), b"\x01g", true)];
        assert_eq!(taken(&mut tried, &late), (Vec::new(), Ok(())));
        let mut all = Vec::new();
        let (sequence, room) = tried.parts();
        let take = |packet: &[u8], is_after_loss| {
            all.push((packet.to_vec(), is_after_loss));
            true
        };
        sequence.give_up(&mut PacketTarget { room, take: Box::new(take) }).unwrap();
        assert_eq!(all, [(b"f".to_vec(), false), (b"g".to_vec(), true)]);
        assert_eq!(tried.own, 0);
    }

    #[test]
    fn what_has_no_room_is_lost_and_told() {
        // The other connections leave 2 KiB, half of which this connection may use.
        let mut tried = Tried { all: (64 << 20) - (2 << 10), ..Tried::default() };
        let long = [&b"\x80\x04"[..], &[b'x'; 512]].concat();
        let chunk = |number, flags| (head(number, 1, flags), &long[..], true);
        let chunks = [
            chunk(0, GOES_ON),
            chunk(1, CONTINUES | GOES_ON),
            chunk(2, CONTINUES | GOES_ON),
            chunk(3, CONTINUES),
        ];
        assert_eq!(taken(&mut tried, &chunks), (Vec::new(), Ok(())));
        assert_eq!(tried.own, 0);
        // If waiting chunks use too much memory, the oldest of them are given up.
        let waits = |number| (head(number, 2, NEEDS_PATCHES), &b"\x01a\x01?"[..], true);
        let many: Vec<_> = (4..40).map(waits).collect();
        let (all, done) = taken(&mut tried, &many);
        assert!(all.len() > 10 && all.len() < 36 && all.iter().all(|text| text == "!a") && done == Ok(()));
        assert!(tried.own > 512 && tried.own <= 1 << 10, "{}", tried.own);
    }

    #[test]
    fn nobody_takes_all() {
        let (mut all, mut owns) = (0, [0; 8]);
        for own in &mut owns {
            let mut room = Room { own, all: &mut all };
            while room.take(1 << 10) {}
            assert!(*room.own <= OF_ONE && *room.own >= 64 << 10, "{room:?}");
        }
        assert!(all < OF_ALL && owns[..2] == [OF_ONE; 2], "{owns:?}");
        let freed = owns[0];
        Room { own: &mut owns[0], all: &mut all }.give(freed);
        assert_eq!((owns[0], all), (0, owns.iter().sum()));
    }
}
