//! Perfetto's way: events as packets in memory that is shared with the tracing service, without a system call.
//!
//! [`connect`] makes this process a *producer* of Perfetto's data source `track_event`; the same functions and tags as
//! ever then write for the sessions that ask for them, by AOSP's short names of the tags (`app`, `view`, `wm` …). Without
//! a service, or where it goes away, it is tried again with a growing back-off; a program never fails by it.
//!
//! In a build without it, on another system or without the feature `perfetto`, [`connect`] does nothing, and [`record_to`]
//! fails.

use std::io;
use std::path::Path;

pub use crate::producer::Recording;
use crate::sink::first;
pub use crate::status::{Status, status};
use crate::{AtraceTag, producer, refresh, watch};

/// Makes this process a producer of Perfetto's data source `track_event`, for good.
///
/// Waits for the sessions that are there, at most 100 ms, or 5 s where `ATRACE_BACKEND=perfetto` asks for every event, as under
/// `atrace run`; without a service it does not wait. What is written before the service has said which sessions there are
/// counts as [lost](Status::lost), where one of them wants it. Calling it again does nothing. The process has a thread more from then on, in which no code of the program runs. A forked child connects
/// at its first event, as a producer of its own.
pub fn connect() {
    if producer::EXISTS {
        first::have_two_ways();
        producer::connect();
        refresh::update();
        watch::tags_may_have_changed();
    }
}

/// Records this process into a new file, which <https://ui.perfetto.dev> opens, until the returned guard is dropped.
///
/// Needs no service and no right. Events of all tags that go Perfetto's way are in it: those that are not on for ATrace.
/// What a thread wrote is in the file some milliseconds later, at the latest when the guard is dropped; not when the
/// process is killed before that. A forked child is not recorded.
///
/// # Examples
///
/// ```
/// use atrace::{AtraceTag, begin_scoped_event, perfetto};
///
/// let directory = std::env::temp_dir();
/// let recording = perfetto::record_to(directory.join("example.pftrace"))?;
/// drop(begin_scoped_event(AtraceTag::App, "work"));
/// recording.finish()?;
/// # std::fs::remove_file(directory.join("example.pftrace"))?;
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
///
/// When the file can't be created, there is no memory or no thread for it, the process records itself already, or a
/// thread is in the middle of an event of the recording before.
pub fn record_to(path: impl AsRef<Path>) -> io::Result<Recording> {
    first::have_two_ways();
    let recording = producer::record(path.as_ref(), AtraceTag::ValidMask.bits())?;
    refresh::update();
    watch::tags_may_have_changed();
    Ok(recording)
}
