//! Perfetto as a backend: events become packets in memory that is shared with the tracing service, without system
//! calls.
//!
//! [`connect`] makes this process a *producer* of Perfetto's data source `track_event`. After that, the usual functions
//! also write events for Perfetto's tracing sessions. A session selects tags by AOSP's short names (`app`, `view`, `wm`
//! …). If no service runs, or the service ends, the process tries again to connect, after pauses that grow. The
//! program's calls of this crate do not fail because of that.
//!
//! In a build without the feature `perfetto`, and on systems without tracing, [`connect`] does nothing, and
//! [`record_to`] returns an error.

use std::io;
use std::path::Path;

pub use crate::producer::Recording;
use crate::sink;
pub use crate::status::{Status, status};
use crate::{AtraceTag, producer, refresh, watch};

/// Makes this process a producer of Perfetto's data source `track_event`, permanently.
///
/// If a service runs, this function waits until the service has reported which sessions exist: at most 100 ms, or 5 s
/// with `ATRACE_BACKEND=perfetto`, as under `atrace run`. An event that another thread writes before this report waits
/// for the report, too. An event that a session wants counts as [lost](Status::lost) if it waits in vain, or if it does
/// not wait because it is written in a signal handler.
///
/// After the call, the process has one more thread, which runs no code of the program. Calling this again does nothing.
/// A forked child connects at its first event, as a separate producer.
pub fn connect() {
    if producer::EXISTS {
        sink::enable_perfetto();
        producer::connect();
        refresh::update();
        // If no thread can be started, watches are not told of later changes. `connect` can't return this error.
        let _ = watch::sessions_are_possible();
        watch::tags_may_have_changed();
    }
}

/// Records this process into the file at `path` until the returned guard is dropped. An existing file is overwritten.
/// <https://ui.perfetto.dev> opens the file.
///
/// A recording needs no service and no special rights. The file gets the events of all tags, except events whose tag is
/// enabled for ATrace and is not set in the property `debug.atrace.prefer_sdk`. A thread collects its events in a chunk
/// of at most 8 KiB. The events of a chunk are written to the file within 250 ms after the chunk is full, and at the
/// latest when the guard is dropped. If the process is killed, the events that are not in the file yet are missing. A
/// forked child is not recorded.
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
/// Returns an error if the file can't be created, if memory can't be allocated or a thread can't be started, if the
/// process already records itself, or if a thread is still in the middle of an event of the previous recording.
pub fn record_to(path: impl AsRef<Path>) -> io::Result<Recording> {
    sink::enable_perfetto();
    let recording = producer::record(path.as_ref(), AtraceTag::ValidMask.bits())?;
    refresh::update();
    // This call comes after the begin of the recording, because it wakes the thread that calls a tracer's tick
    // function.
    watch::sessions_are_possible()?;
    watch::tags_may_have_changed();
    Ok(recording)
}

/// Gives the calling thread's track in a Perfetto trace the whole name that std has for the thread, up to 64 bytes.
///
/// The kernel cuts the name of a thread at 15 bytes, and an event can't ask std for the name. So each thread with a
/// longer name has to call this once, before its first event: at the start of the thread, or by `on_thread_start` of
/// tokio's `runtime::Builder`. The call has no effect if the kernel's name for the thread is not the beginning of std's
/// name.
///
/// The function may allocate, so a signal handler must not call it.
///
/// # Panics
///
/// Panics, as [`std::thread::current`] does, in a thread whose thread-local data has been destroyed: in a destructor of
/// a C library's thread key.
///
/// # Examples
///
/// ```
/// use atrace::perfetto::note_thread_name;
///
/// let thread = std::thread::Builder::new().name("connections of the west".to_owned());
/// thread.spawn(|| {
///     note_thread_name();
///     // …
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn note_thread_name() {
    producer::note_name();
}
