//! What a program is told of its sink.

use std::fmt;

/// Where this process' events go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SinkKind {
    /// Nowhere: tracing is off in this process.
    None,
    /// The kernel's ring buffer, through `trace_marker`.
    Tracefs,
    /// A regular file that `ATRACE_MARKER` names.
    File,
    /// A character device that `ATRACE_MARKER` names.
    Device,
    /// libcutils.
    Cutils,
    /// libandroid's `ATrace_*`.
    Ndk,
    /// Perfetto's service alone.
    Perfetto,
}

/// Where this process' events go, and why.
///
/// # Examples
///
/// ```
/// let sink = atrace::sink();
/// println!("{sink}");
/// if sink.kind() == atrace::SinkKind::None {
///     // Not allowed to write to the kernel's marker: every event is dropped.
/// }
/// ```
#[derive(Clone, Debug)]
pub struct SinkInfo {
    pub(super) kind: SinkKind,
    pub(super) detail: String,
    pub(super) dropped: u64,
}

impl SinkInfo {
    /// The kind of place.
    pub fn kind(&self) -> SinkKind {
        self.kind
    }

    /// How many events were lost because writing them failed: a full disk, a ring buffer that is switched off.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}

impl fmt::Display for SinkInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}
