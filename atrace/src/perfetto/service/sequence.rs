//! One writer's packets: chunks in their order, packets that are spread over several, bytes that come later.
//!
//! A chunk may be looked at more than once: while it is written, then when it is complete. So it is remembered how many
//! packets of the last one were taken. Where a chunk is missing, the next packet says that something was lost.

use std::collections::VecDeque;

use atrace_sys::perfetto::foreign::{CONTINUES, GOES_ON, Head, NEEDS_PATCHES};

use super::Fault;

/// The longest packet.
const PACKET_MAX: usize = 4 << 20;
/// As many bytes at most wait to be mended.
const WAITING_MAX: usize = 4 << 20;
/// A length that says: the packet is to be left out.
const LEFT_OUT: usize = 0x0fff_ffff;

/// A writer's packets.
#[derive(Debug, Default)]
pub(super) struct Sequence {
    last: Option<Last>,
    /// The start of a packet that goes on in the next chunk.
    begun: Option<Vec<u8>>,
    /// Chunks that wait for bytes of the first of them.
    waiting: VecDeque<Waiting>,
    /// Something was lost before the next packet.
    is_after_loss: bool,
}

/// The last chunk that was looked at.
#[derive(Clone, Copy, Debug)]
struct Last {
    number: u32,
    /// How many of its packets were taken.
    taken: u16,
    is_complete: bool,
}

#[derive(Debug)]
struct Waiting {
    head: Head,
    bytes: Vec<u8>,
    /// So many of its packets were taken before.
    taken: u16,
}

/// Takes packets: calls with each, and whether something was lost before it; tells whether it was kept.
pub(super) trait Take: FnMut(&[u8], bool) -> bool {}
impl<F: FnMut(&[u8], bool) -> bool> Take for F {}

impl Sequence {
    /// How far a chunk with this number is behind those that were looked at.
    pub(super) fn age(&self, number: u32) -> u32 {
        self.last.map_or(number, |last| number.wrapping_sub(last.number))
    }

    /// The writer is another from now on: its chunks are counted anew.
    pub(super) fn begin_anew(&mut self) {
        self.last = None;
        self.is_after_loss |= self.begun.take().is_some();
    }

    /// Takes the packets of a chunk that were not taken; with `is_complete`, there will be no more of them.
    pub(super) fn chunk(
        &mut self,
        head: Head,
        bytes: &[u8],
        is_complete: bool,
        take: &mut impl Take,
    ) -> Result<(), Fault> {
        let mut taken = 0;
        if let Some(last) = self.last {
            let ahead = head.number.wrapping_sub(last.number).cast_signed();
            if ahead < 0 || ahead == 0 && last.is_complete {
                return Ok(());
            }
            if ahead == 0 {
                taken = last.taken;
            } else if ahead > 1 || !last.is_complete {
                self.lose();
            }
        }
        if !is_complete && (head.flags & NEEDS_PATCHES != 0 || !self.waiting.is_empty()) {
            return Ok(()); // Later, once it is complete.
        }
        // The last of an open one is being written.
        let whole = if is_complete { head.packets } else { head.packets.saturating_sub(1) };
        if whole < taken {
            return Err(Fault::Count);
        }
        self.last = Some(Last { number: head.number, taken: whole, is_complete });
        if is_complete && (head.flags & NEEDS_PATCHES != 0 || !self.waiting.is_empty()) {
            self.waiting.push_back(Waiting { head, bytes: bytes.to_vec(), taken });
            while self.waiting.iter().map(|waiting| waiting.bytes.len()).sum::<usize>() > WAITING_MAX {
                self.give_up_one(take)?;
            }
            return Ok(());
        }
        let flags = if is_complete { head.flags } else { head.flags & CONTINUES };
        self.packets(flags, bytes, taken, whole, take)
    }

    /// Takes a chunk's packets, those from `taken` on.
    fn packets(
        &mut self,
        flags: u16,
        bytes: &[u8],
        taken: u16,
        count: u16,
        take: &mut impl Take,
    ) -> Result<(), Fault> {
        let mut rest = bytes;
        for index in 0..count {
            let (len, behind) = length(rest).ok_or(Fault::Packet)?;
            if len == LEFT_OUT {
                if index >= taken {
                    self.lose();
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
            self.packet(packet, continues, goes_on, take);
        }
        Ok(())
    }

    fn packet(&mut self, packet: &[u8], continues: bool, goes_on: bool, take: &mut impl Take) {
        if continues {
            // Of one whose start was lost, nothing is of use.
            let Some(mut whole) = self.begun.take() else { return self.lose() };
            if whole.len() + packet.len() > PACKET_MAX {
                return self.lose();
            }
            whole.extend_from_slice(packet);
            if goes_on {
                self.begun = Some(whole);
            } else {
                self.give(&whole, take);
            }
            return;
        }
        if self.begun.is_some() {
            self.lose();
        }
        if goes_on {
            self.begun = Some(packet.to_vec());
        } else {
            self.give(packet, take);
        }
    }

    fn give(&mut self, packet: &[u8], take: &mut impl Take) {
        if !packet.is_empty() && take(packet, self.is_after_loss) {
            self.is_after_loss = false;
        }
    }

    fn lose(&mut self) {
        self.begun = None;
        self.is_after_loss = true;
    }

    /// Mends a chunk that waits; tells whether there is such a one. With `is_last` it waits no longer.
    pub(super) fn patch<'a>(
        &mut self,
        number: u32,
        patches: impl Iterator<Item = (u64, &'a [u8])>,
        is_last: bool,
        take: &mut impl Take,
    ) -> Result<bool, Fault> {
        let Some(waiting) = self.waiting.iter_mut().find(|waiting| waiting.head.number == number) else {
            return Ok(false);
        };
        for (offset, bytes) in patches {
            let offset = usize::try_from(offset).map_err(|_| Fault::Patch)?;
            let end = offset.checked_add(bytes.len()).ok_or(Fault::Patch)?;
            waiting.bytes.get_mut(offset..end).ok_or(Fault::Patch)?.copy_from_slice(bytes);
        }
        if is_last {
            waiting.head.flags &= !NEEDS_PATCHES;
        }
        while self.waiting.front().is_some_and(|waiting| waiting.head.flags & NEEDS_PATCHES == 0)
            && let Some(Waiting { head, bytes, taken }) = self.waiting.pop_front()
        {
            self.packets(head.flags, &bytes, taken, head.packets, take)?;
        }
        Ok(true)
    }

    /// Nothing more comes: takes what waits, without the packets that lack bytes.
    pub(super) fn give_up(&mut self, take: &mut impl Take) -> Result<(), Fault> {
        while !self.waiting.is_empty() {
            self.give_up_one(take)?;
        }
        Ok(())
    }

    fn give_up_one(&mut self, take: &mut impl Take) -> Result<(), Fault> {
        let Some(Waiting { head, bytes, taken }) = self.waiting.pop_front() else { return Ok(()) };
        let is_whole = head.flags & NEEDS_PATCHES == 0;
        // Only the last packet can lack something: the writer leaves a chunk in the middle of one.
        let count = if is_whole { head.packets } else { head.packets.saturating_sub(1) };
        let flags = if is_whole { head.flags } else { head.flags & CONTINUES };
        self.packets(flags, &bytes, taken, count, take)?;
        if !is_whole {
            self.lose();
        }
        Ok(())
    }
}

/// Splits a packet's length off: at most four bytes.
fn length(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let mut len = 0;
    for (at, byte) in bytes.iter().enumerate().take(4) {
        len |= usize::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Some((len, &bytes[at + 1..]));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(number: u32, packets: u16, flags: u16) -> Head {
        Head { number, writer: 1, packets, flags }
    }

    /// Hands chunks over, and returns the packets that came, with a `!` before those after a loss.
    fn taken(sequence: &mut Sequence, chunks: &[(Head, &[u8], bool)]) -> (Vec<String>, Result<(), Fault>) {
        let mut all = Vec::new();
        let mut take = |packet: &[u8], is_after_loss: bool| {
            let text = String::from_utf8_lossy(packet);
            all.push(format!("{}{text}", if is_after_loss { "!" } else { "" }));
            true
        };
        let done = chunks
            .iter()
            .try_for_each(|(head, bytes, whole)| sequence.chunk(*head, bytes, *whole, &mut take));
        (all, done)
    }

    #[test]
    fn an_open_chunk_is_taken_as_far_as_it_is_whole() {
        let mut sequence = Sequence::default();
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
        assert_eq!(taken(&mut sequence, &chunks), (["a", "b", "c", "d"].map(String::from).to_vec(), Ok(())));
        assert_eq!(sequence.age(10), 2);
        // Counts only grow.
        let back = [(head(9, 3, 0), &bytes[..], false), (head(9, 2, 0), bytes, false)];
        assert_eq!(taken(&mut sequence, &back).1, Err(Fault::Count));
    }

    #[test]
    fn what_is_missing_is_told() {
        let mut sequence = Sequence::default();
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
        assert_eq!(taken(&mut sequence, &chunks), (expected, Ok(())));
        for wrong in [&b""[..], b"\x02a", b"\x80\x80\x80\x80\x00"] {
            assert_eq!(taken(&mut sequence, &[one(11, 0, wrong)]).1, Err(Fault::Packet));
            sequence.begin_anew();
        }
    }

    #[test]
    fn a_chunk_waits_for_its_bytes_and_holds_up_those_behind_it() {
        let mut sequence = Sequence::default();
        let chunks = [
            (head(0, 2, NEEDS_PATCHES | GOES_ON), &b"\x01a\x02b?"[..], true),
            (head(1, 1, CONTINUES | NEEDS_PATCHES | GOES_ON), b"\x01?", true),
            (head(2, 2, CONTINUES), b"\x01d\x01e", true),
        ];
        assert_eq!(taken(&mut sequence, &chunks), (Vec::new(), Ok(())));
        let mut all = Vec::new();
        let mut take = |packet: &[u8], _| {
            all.push(packet.to_vec());
            true
        };
        let patch = |offset, bytes| std::iter::once((offset, bytes));
        assert_eq!(sequence.patch(5, patch(0, &b"!"[..]), true, &mut take), Ok(false));
        assert_eq!(sequence.patch(1, patch(1, b"c"), true, &mut take), Ok(true));
        assert_eq!(sequence.patch(0, patch(4, b"!"), false, &mut take), Ok(true));
        assert_eq!(sequence.patch(0, patch(5, b"!"), true, &mut take), Err(Fault::Patch));
        assert_eq!(sequence.patch(0, patch(u64::MAX, b"!"), true, &mut take), Err(Fault::Patch));
        assert_eq!(sequence.patch(0, std::iter::empty(), true, &mut take), Ok(true));
        assert_eq!(all, [&b"a"[..], b"b!cd", b"e"]);
        // What never gets its bytes.
        let late = [(head(3, 2, NEEDS_PATCHES), &b"\x01f\x01?"[..], true), (head(4, 1, 0), b"\x01g", true)];
        assert_eq!(taken(&mut sequence, &late), (Vec::new(), Ok(())));
        let mut all = Vec::new();
        sequence
            .give_up(&mut |packet: &[u8], is_after_loss| {
                all.push((packet.to_vec(), is_after_loss));
                true
            })
            .unwrap();
        assert_eq!(all, [(b"f".to_vec(), false), (b"g".to_vec(), true)]);
    }
}
