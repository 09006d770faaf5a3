//! Packets of long events, which may span several chunks.
//!
//! A packet is divided into parts, one for each chunk, and each part has a length of its own. A chunk's flags show
//! whether its last packet continues in the writer's next chunk, and whether its first packet began in the previous
//! chunk. The length of the packet is known before the first byte is written, so nothing has to be filled in
//! afterwards.
//!
//! If a part were missing, the service would hold back all later packets of the sequence. So all chunks are taken
//! before the first byte is written, and a part is missing only if the process was killed between two chunks.

use std::ptr;

use atrace_sys::text::cut;

use super::cursor::wide;
use crate::abi::Layout;
use crate::args::{Put, WHOLE_MAX};
use crate::event::Event;
use crate::memory::Chunk;
use crate::proto::Writer;

/// The minimum room for the first part of a packet, in bytes. If a chunk has less room, the packet begins in
/// the next chunk.
pub(crate) const PART_MIN: usize = 256;
/// The maximum number of chunks that a packet takes in addition to the chunk in which it begins.
const CHUNKS_MAX: usize = 32;
/// The size of the length before a part, in bytes.
const LENGTH: usize = 2;
/// The maximum length of a part, in bytes.
const PAYLOAD: usize = Layout::Whole.room() - LENGTH;
/// The maximum size of the head of a packet, in bytes. The head consists of the time, flags, a length, the event's
/// type, all categories, a track or the processor time, an interned name, and the length of the name.
const HEAD_MAX: usize = 24 + 96;

/// Writes a long event: its name, up to [`WHOLE_MAX`] bytes, and all of its arguments. `sample` contains the encoded
/// fields of the thread's processor time. `take` takes a further chunk. Returns `Some(true)` if there were enough free
/// chunks, and otherwise `Some(false)`. In the latter case, the further chunks that were taken are complete and empty.
/// The first chunk is complete, too, and `chunk` now means "no chunk". Returns `None`, and writes nothing, if the event
/// is too long for `chunk` and [`CHUNKS_MAX`] further chunks.
///
/// The event must be one that [may be whole](Event::may_be_whole): its name is either its own or that of its callsite,
/// and it has no metadata, value, flow number or time. The chunk must have room for [`PART_MIN`] bytes.
#[inline(never)]
pub(crate) fn whole_event(
    chunk: &mut Chunk,
    since: u64,
    event: &Event<'_>,
    sample: &[u8],
    take: &mut dyn FnMut() -> Option<Chunk>,
) -> Option<bool> {
    let name = cut(event.name.unwrap_or_default(), WHOLE_MAX).as_bytes();
    let each_arg = |put: &mut Put<'_>| match event.whole_args {
        Some(args) => (args.0)(put),
        None => put(event.args),
    };
    let mut inner = [0; HEAD_MAX];
    let mut writer = Writer::new(&mut inner);
    writer.number(9, event.kind as u64);
    let mut categories = event.categories();
    while categories != 0 {
        writer.number(3, u64::from(categories.trailing_zeros()) + 1);
        categories &= categories - 1;
    }
    if let Some(track) = &event.track {
        writer.number(11, track.uuid);
    }
    writer.raw(sample);
    match &event.site {
        Some(site) => _ = writer.number(10, site.number.into()),
        None => writer.length(23, name.len()),
    }
    let inner = writer.finish()?;
    let mut args_len = 0;
    each_arg(&mut |bytes| args_len += bytes.len());
    let inner_len = inner.len() + name.len() + args_len;
    let mut outer = [0; HEAD_MAX];
    let mut writer = Writer::new(&mut outer);
    // Fields: timestamp, sequence_flags, track_event
    writer.number(8, since).number(13, 2).length(11, inner_len);
    let outer = writer.finish()?;
    let left = outer.len() + inner_len;
    let mut beyond = left.saturating_sub(room_of(chunk));
    if beyond > CHUNKS_MAX * PAYLOAD {
        return None;
    }
    let mut more: [Chunk; CHUNKS_MAX] = Default::default();
    for next in &mut more {
        if beyond == 0 {
            break;
        }
        *next = take().unwrap_or_default();
        if !next.is_some() {
            break;
        }
        beyond = beyond.saturating_sub(room_of(next));
    }
    if beyond > 0 {
        chunk.complete();
        more.iter_mut().for_each(Chunk::complete);
        return Some(false);
    }
    let mut parts = Parts { chunk, more: more.iter_mut(), at: ptr::null_mut(), room: 0, left };
    [outer, inner, name].into_iter().for_each(|bytes| parts.put(bytes));
    each_arg(&mut |bytes| parts.put(bytes));
    debug_assert_eq!(parts.left, 0, "the arguments are the same each time");
    Some(true)
}

/// Returns the maximum length of a part of a packet in this chunk.
fn room_of(chunk: &Chunk) -> usize {
    chunk.room().saturating_sub(LENGTH)
}

/// The parts of a packet that is being written.
struct Parts<'a> {
    chunk: &'a mut Chunk,
    more: std::slice::IterMut<'a, Chunk>,
    /// The address of the next byte of the current part, or null before the first part.
    at: *mut u8,
    /// The number of bytes for which the current part still has room, or 0 if no part was begun.
    room: usize,
    /// The number of bytes of the packet that still have to be written.
    left: usize,
}

impl Parts<'_> {
    fn put(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && (self.room > 0 || self.next_part()) {
            let (some, rest) = bytes.split_at(bytes.len().min(self.room));
            self.room -= some.len();
            self.left -= some.len();
            bytes = rest;
            // SAFETY: `next_part` has made sure that the chunk has `room` bytes. Shared memory is never part of a text,
            // so the ranges don't overlap. The published bytes are a whole packet, or its last part, within the chunk.
            unsafe {
                ptr::copy_nonoverlapping(some.as_ptr(), self.at, some.len());
                self.at = self.at.add(some.len());
                if self.left == 0 {
                    self.chunk.publish(self.at);
                }
            }
        }
    }

    /// Begins a part. The first part begins in the present chunk, and every later part begins in the next chunk.
    /// Returns false if there is no next chunk.
    fn next_part(&mut self) -> bool {
        if !self.at.is_null() {
            let Some(next) = self.more.next().filter(|_| self.left > 0) else { return false };
            self.chunk.complete_with_part();
            *self.chunk = std::mem::take(next);
            self.chunk.continue_packet();
        }
        self.room = self.left.min(room_of(self.chunk));
        if self.room == 0 {
            return false;
        }
        // SAFETY: the chunk has room for the length and the part.
        unsafe {
            self.chunk.at().cast::<[u8; LENGTH]>().write_unaligned(wide(self.room).to_le_bytes());
            self.at = self.chunk.at().add(LENGTH);
        }
        true
    }
}
