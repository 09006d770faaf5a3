//! Perfetto's way, in a build without it: a system that has no such service, or without the feature `perfetto`.
//!
//! [`connect`] does nothing, and [`record_to`] fails.

use std::convert::Infallible;
use std::path::Path;
use std::{fmt, io};

use crate::AtraceTag;

/// Does nothing in this build.
pub fn connect() {}

/// Fails in this build.
///
/// # Errors
///
/// Always.
pub fn record_to(_path: impl AsRef<Path>) -> io::Result<Recording> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Records this process: in this build there is none.
#[derive(Debug)]
pub struct Recording(Infallible);

impl Recording {
    /// Ends the recording.
    ///
    /// # Errors
    ///
    /// None, as there is no recording.
    pub fn finish(self) -> io::Result<()> {
        match self.0 {}
    }
}

/// How this process stands to Perfetto's service: not at all.
#[derive(Clone, Debug)]
pub struct Status(());

/// Tells how this process stands to Perfetto's service.
pub fn status() -> Status {
    Status(())
}

impl Status {
    /// Whether the service is there.
    pub fn is_connected(&self) -> bool {
        false
    }

    /// How many sessions want events of this process.
    pub fn sessions(&self) -> u32 {
        0
    }

    /// The tags that they want.
    pub fn tags(&self) -> AtraceTag {
        AtraceTag::empty()
    }

    /// How many events were lost.
    pub fn lost(&self) -> u64 {
        0
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Perfetto's service: not in this build")
    }
}

pub(crate) mod producer {
    //! No producer: nothing is written, and nothing is asked.

    use std::fmt;
    use std::sync::atomic::AtomicU64;

    use crate::AtraceTag;
    use crate::callsite::Site;

    #[derive(Clone, Copy, PartialEq)]
    pub(crate) enum Type {
        Begin,
        End,
        Instant,
        Counter,
    }

    #[derive(Clone, Copy)]
    #[expect(dead_code, reason = "nothing reads the numbers")]
    pub(crate) enum Amount {
        Whole(i64),
        Real(f64),
    }

    #[derive(Clone, Copy)]
    pub(crate) struct Row;

    impl Row {
        pub(crate) const INSTANTS: Self = Self;
        pub(crate) const COUNTER: Self = Self;

        pub(crate) const fn of_async(_: i64) -> Self {
            Self
        }

        pub(crate) const fn named(_: i64) -> Self {
            Self
        }
    }

    #[derive(Clone, Copy, PartialEq, Eq)]
    pub(crate) struct Standing;

    impl Standing {
        pub(crate) const APART: Self = Self;
    }

    impl fmt::Display for Standing {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("not in this build")
        }
    }

    pub(crate) fn start() {}

    pub(crate) fn standing() -> (Standing, u32) {
        (Standing::APART, 0)
    }

    pub(crate) fn lost() -> u64 {
        0
    }

    pub(crate) const EXISTS: bool = false;

    pub(crate) fn can_be_used() -> bool {
        false
    }

    /// Never.
    #[inline]
    pub fn is_used() -> bool {
        false
    }

    #[inline(always)]
    pub(crate) fn tags() -> AtraceTag {
        AtraceTag::empty()
    }

    pub(crate) fn tags_word() -> Option<&'static AtomicU64> {
        None
    }

    pub(crate) fn on_change(_: &'static fn()) {}

    pub(crate) fn begun() -> u32 {
        0
    }

    pub(crate) fn short(_: Type, _: u64, _: &str) -> bool {
        false
    }

    pub(crate) fn short_called(_: Type, _: u64, _: &str) -> bool {
        false
    }

    pub(crate) fn end(_: u64) -> bool {
        false
    }

    pub(crate) fn named(_: Type, _: u64, _: &Site<'_>) -> bool {
        false
    }

    pub(crate) fn known(_: Type, _: u64, _: &Site<'_>, _: Option<&str>, _: u64, _: &[u8]) -> bool {
        false
    }

    pub(crate) fn rich(_: Type, _: u64, _: (Option<Site<'_>>, Option<&str>), _: u64, _: &[u8]) -> bool {
        false
    }

    /// No flow.
    pub fn flow_number(_: u64) -> u64 {
        0
    }

    pub(crate) fn rich_on_track(
        _: Type,
        _: u64,
        _: (Row, &str),
        _: (Option<Site<'_>>, Option<&str>),
        _: &[u8],
        _: u32,
    ) -> bool {
        false
    }

    pub(crate) fn end_with(_: u64, _: Option<Site<'_>>, _: &[u8]) -> bool {
        false
    }

    pub(crate) fn counter(_: u64, _: &str, _: u64, _: i64) -> bool {
        false
    }

    pub(crate) fn slow_counter(_: u64, _: &str, _: i64) -> bool {
        false
    }

    pub(crate) fn on_track(
        _: Type,
        _: u64,
        _: (Row, &str),
        _: Option<&str>,
        _: Option<Amount>,
        _: u32,
    ) -> bool {
        false
    }
}
