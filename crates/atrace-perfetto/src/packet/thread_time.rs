//! The processor time of a thread, as the value of a counter that is shown below the thread's track. If a session asks
//! for the processor time, each event on the thread's track has the counter's present value. From these values, readers
//! compute how long a thread ran during a slice.
//!
//! Source: Perfetto's `track_event.proto`, `counter_descriptor.proto`.

use atrace_sys::{clock, thread};

use crate::event::Track;
use crate::hash::seeded;
use crate::proto::Writer;
use crate::track;

/// The name by which readers of the trace recognise the counter.
const NAME: &str = "thread_time";
/// The maximum size of an encoded sample, in bytes: two numbers of ten bytes, and their keys.
pub(crate) const SAMPLE_MAX: usize = 23;
/// The maximum size of a sample and the description of its counter, in bytes.
pub(crate) const SAMPLE_ROOM: usize = SAMPLE_MAX + 42 + NAME.len();

/// Returns the track of the counter for the calling thread's processor time. The parent of the counter's track is the
/// thread's track, whose number is computed from `process`, the number of the process's track.
pub(crate) fn track(process: u64) -> Track<'static> {
    let parent = process ^ u64::from(thread::number().unwrap_or_default());
    let uuid = track::number(seeded(parent, u64::from_le_bytes(*b"cpu time")));
    Track { uuid, parent, name: NAME, is_counter: true, is_kept: false }
}

/// Encodes the fields of an event that hold the processor time of the calling thread. Returns `None` if the time is not
/// known. This includes a thread that has given up system calls, because such a thread must not ask the system for the
/// time.
pub(crate) fn sample(counter: u64, bytes: &mut [u8; SAMPLE_MAX]) -> Option<&[u8]> {
    let time = if thread::is_confined() { None } else { clock::of_thread() }?;
    let mut writer = Writer::new(bytes);
    // Fields: extra_counter_track_uuids, extra_counter_values
    writer.number(31, counter).number(12, time);
    writer.finish()
}
