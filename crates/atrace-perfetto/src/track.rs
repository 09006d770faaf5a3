//! The numbers (`uuid`) of tracks.
//!
//! The number of the process's track is computed from the start time and the id of the process. The number of a
//! thread's track is the exclusive-or of the number of the process's track and the thread's id. The number of a track
//! with a name of its own is derived from the hash of the name, the key of the track and the number of the process's
//! track (see [`Track::new`](crate::event::Track::new)). The number of the counter for a thread's processor time is
//! derived from the number of the thread's track (`packet/thread_time.rs`).

use std::sync::atomic::{AtomicU64, Ordering};

/// The number of the process's track.
static PROCESS_TRACK: AtomicU64 = AtomicU64::new(0);

/// Computes and stores the number of this process's track. The process began at `start_time` and has the id `id`.
pub(crate) fn prepare(start_time: u64, id: u32) {
    PROCESS_TRACK.store(of_process(start_time, id), Ordering::Relaxed);
}

/// Returns the number of the process's track, which is the parent of the process's other tracks, except the counters of
/// processor time.
#[inline(always)]
pub(crate) fn process_track() -> u64 {
    PROCESS_TRACK.load(Ordering::Relaxed)
}

/// Returns the number of a process's track: the 64-bit FNV-1a hash of its start time and its id.
///
/// This is the rule of Perfetto's SDK (`ComputeProcessUuid` in `src/tracing/track.cc`). So the SDK and all copies of
/// this library in a process write to the same tracks, before and after `exec`.
fn of_process(start_time: u64, id: u32) -> u64 {
    // The bytes of both numbers are not chained as one iterator, because the compiler would generate much code for the
    // chain.
    let of = |hash, bytes: &[u8]| {
        bytes.iter().fold(hash, |hash: u64, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
    };
    of(of(0xcbf2_9ce4_8422_2325, &start_time.to_ne_bytes()), &id.to_ne_bytes())
}

/// The number of bits of a track's number, unless it is the track of the process or of a thread.
const BITS: u32 = 56;

/// Makes a track's number of 56 bits from any 64 bits. The number is never 0, and its varint has exactly eight bytes.
pub(crate) const fn number(bits: u64) -> u64 {
    bits >> (64 - BITS) | 1 << (BITS - 1)
}
