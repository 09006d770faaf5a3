//! The state of the connection to Perfetto's service, for users.

use std::fmt;

use crate::AtraceTag;
use crate::producer::{self, ConnectionState, category};

/// The state of this process's connection to Perfetto's service, which [`status`] returns.
#[derive(Clone, Debug)]
pub struct Status {
    state: ConnectionState,
    sessions: u32,
    tags: AtraceTag,
    lost: u64,
}

/// Returns the state of this process's connection to Perfetto's service.
///
/// # Examples
///
/// ```
/// println!("{}", atrace::perfetto::status());
/// ```
pub fn status() -> Status {
    let (state, sessions) = producer::connection_state();
    let is_not_requested = state == ConnectionState::NOT_REQUESTED;
    // In a forked child, `tags` connects to the service.
    let presumed = if is_not_requested { AtraceTag::empty() } else { producer::tags() };
    let tags = if sessions > 0 { presumed } else { AtraceTag::empty() };
    Status { state, sessions, tags, lost: producer::lost() }
}

impl Status {
    /// Returns whether the process is connected to the service.
    pub fn is_connected(&self) -> bool {
        self.state == ConnectionState::CONNECTED
    }

    /// Returns the number of sessions that are open in this process, whichever tags these sessions want. After a thread
    /// has seen a session here, the thread's events are checked against the tags of this session. A
    /// [recording](crate::perfetto::record_to) into a file counts as a session. Returns 0 if the process has not asked
    /// for a connection to the service.
    pub fn sessions(&self) -> u32 {
        self.sessions
    }

    /// Returns the tags that the open sessions want. Returns no tags if the process has not asked for a connection to
    /// the service.
    pub fn tags(&self) -> AtraceTag {
        self.tags
    }

    /// Returns how many events were lost: because the memory was full, because a signal handler wrote them while it
    /// interrupted another event of its thread, because more than 4095 living threads have written events, or because
    /// the service had not yet reported which sessions exist. An event that two sessions lost because the memory was
    /// full counts twice.
    pub fn lost(&self) -> u64 {
        self.lost
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.state {
            ConnectionState::CONNECTED => {
                write!(f, "Perfetto's service: connected, {} sessions", self.sessions)?;
                match self.tags {
                    AtraceTag::ValidMask => f.write_str(" (all categories)")?,
                    tags => (0..category::COUNT)
                        .filter(|bit| tags.bits() >> bit & 1 != 0)
                        .enumerate()
                        .try_for_each(|(at, bit)| {
                            f.write_str(if at == 0 { " of the categories " } else { ", " })?;
                            f.write_str(category::name(bit))
                        })?,
                }
                write!(f, ", {} events lost", self.lost)
            }
            other if f.alternate() => write!(f, "Perfetto's service: {other:#}"),
            other => write!(f, "Perfetto's service: {other}"),
        }
    }
}

#[cfg(all(test, feature = "perfetto", not(no_tracing)))]
mod tests {
    use super::*;

    #[test]
    fn every_tag_has_its_name() {
        let of = |tag: AtraceTag| category::name(tag.bits().trailing_zeros());
        assert_eq!(of(AtraceTag::Always), "always");
        assert_eq!(of(AtraceTag::SyncManager), "syncmanager");
        assert_eq!(of(AtraceTag::App), "app");
        assert_eq!(of(AtraceTag::SystemServer), "ss");
        assert_eq!(of(AtraceTag::Aidl), "aidl");
        assert_eq!(of(AtraceTag::Last), "thermal");
        assert_eq!(AtraceTag::ValidMask.bits(), (1 << category::COUNT) - 1);
        assert_eq!(category::name(category::COUNT), "");
    }
}
