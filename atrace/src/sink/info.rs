//! The public description of the sink of this process.

use std::fmt;

/// Describes where the events of this process go, and why. `Display` formats the description for users.
///
/// # Examples
///
/// ```
/// let sink = atrace::sink();
/// println!("{sink}");
/// if sink.kind() == "None" {
///     // Every event is dropped, for example because the process may not write to the kernel's marker.
/// }
/// ```
#[derive(Clone, Debug)]
pub struct SinkInfo {
    pub(super) kind: &'static str,
    pub(super) detail: String,
    pub(super) dropped: u64,
}

impl SinkInfo {
    /// Returns the kind of backend to which the events of this process go, in one word. The state page
    /// ([`state_page`](crate::state_page)) has the same word, but `None` in place of `Perfetto`.
    ///
    /// | word | events go to |
    /// |---|---|
    /// | `Tracefs` | the kernel's ring buffer, through `trace_marker` |
    /// | `File` | a regular file that `ATRACE_MARKER` names |
    /// | `Device` | a character device that `ATRACE_MARKER` names |
    /// | `Cutils` | the library libcutils |
    /// | `Ndk` | the functions `ATrace_*` of libandroid |
    /// | `Perfetto` | only Perfetto's service |
    /// | `None` | nowhere: there is no sink of ATrace, and no connection to Perfetto's service was asked for. Only a [recording](crate::perfetto::record_to) of the process itself gets events |
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// Returns how many events were lost because they could not be written, for example to a full disk or to a ring
    /// buffer that is switched off. For libcutils and libandroid, which report no losses, the result is 0. For
    /// Perfetto, see [`Status::lost`](crate::perfetto::Status::lost).
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}

impl fmt::Display for SinkInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}
