//! The kernel's statistics of a ring buffer.

/// The statistics of a ring buffer: of one CPU's part, or summed over all CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Events that can be read now.
    pub entries: u64,
    /// Events that were overwritten by newer events before anyone read them.
    pub overrun: u64,
    /// Events that were never stored: the buffer was full and does not overwrite, or the writer was interrupted too
    /// deeply.
    pub dropped: u64,
    /// Events that a consuming reader (`trace_pipe`) took.
    pub read: u64,
    /// Bytes in use.
    pub bytes: u64,
}

impl Stats {
    /// Returns the number of events written since the buffer was last cleared, including those that were lost or
    /// read.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.entries + self.overrun + self.read + self.dropped
    }

    /// Returns the number of events that were lost before anyone read them.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.overrun + self.dropped
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.entries += other.entries;
        self.overrun += other.overrun;
        self.dropped += other.dropped;
        self.read += other.read;
        self.bytes += other.bytes;
    }

    /// Parses one CPU's `stats` file. Returns `None` if a required line is missing.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let field = |name: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.trim().parse::<u64>().ok())
        };
        Some(Self {
            entries: field("entries")?,
            overrun: field("overrun")?,
            dropped: field("dropped events")? + field("commit overrun")?,
            read: field("read events").unwrap_or(0),
            bytes: field("bytes")?,
        })
    }
}
