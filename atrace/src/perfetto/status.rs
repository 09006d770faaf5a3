//! How this process stands to Perfetto's service, in words.

use std::fmt;

use super::standing::Standing;
use super::{category, producer};
use crate::AtraceTag;

/// How this process stands to Perfetto's service: see [`status`].
#[derive(Clone, Debug)]
pub struct Status {
    standing: Standing,
    sessions: u32,
    tags: AtraceTag,
    lost: u64,
}

/// Tells how this process stands to Perfetto's service.
///
/// # Examples
///
/// ```
/// println!("{}", atrace::perfetto::status());
/// ```
pub fn status() -> Status {
    let (standing, sessions) = producer::standing();
    let is_apart = standing == Standing::APART;
    let tags = if is_apart { AtraceTag::empty() } else { producer::tags() };
    Status { standing, sessions, tags, lost: producer::lost() }
}

impl Status {
    /// Whether the service is there.
    pub fn is_connected(&self) -> bool {
        self.standing == Standing::CONNECTED
    }

    /// How many sessions want events of this process.
    pub fn sessions(&self) -> u32 {
        self.sessions
    }

    /// The tags that they want.
    pub fn tags(&self) -> AtraceTag {
        self.tags
    }

    /// How many events were lost: without room in the memory, or within another event of their thread.
    pub fn lost(&self) -> u64 {
        self.lost
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.standing {
            Standing::CONNECTED => {
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
            other => write!(f, "Perfetto's service: {other}"),
        }
    }
}
