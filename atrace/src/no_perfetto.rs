//! Replaces `producer.rs` in a build without the feature `perfetto`, and on systems without tracing.
//!
//! This module has the same items as `producer.rs`. Its functions do nothing.

use std::convert::Infallible;
use std::marker::PhantomData;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::{fmt, io};

use crate::AtraceTag;

pub(crate) const ASK: u64 = 1 << 62;
pub(crate) const COMPARE: u64 = 1 << 61;
pub(crate) const TRACK_NAME_MAX: usize = 1024;
const FLOW_ROOM: usize = 10;
pub(crate) const EXISTS: bool = false;

/// The number of a callsite. In this build, the value is empty.
#[derive(Debug)]
pub struct Number(());

impl Number {
    #[expect(clippy::new_without_default, reason = "the type in `atrace-perfetto` has no default either")]
    pub const fn new() -> Self {
        Self(())
    }
}

pub trait About: fmt::Debug {
    fn target(&self) -> &str;
    fn location(&self) -> Option<(&str, u32)>;
    fn arguments(&self, each: &mut dyn FnMut(&str));
}

#[derive(Clone, Copy, Debug)]
pub struct Site<'a>(PhantomData<&'a str>);

impl<'a> Site<'a> {
    #[inline(always)]
    pub fn new(_: Option<&Number>, _: &'a str, _: u8, _: &'a dyn About) -> Self {
        Self(PhantomData)
    }

    #[inline(always)]
    pub(crate) fn named(_: &Number, _: &'a str) -> Self {
        Self(PhantomData)
    }

    pub(crate) const fn has_number(&self) -> bool {
        false
    }

    #[inline(always)]
    pub fn key<'b>(&self, _: usize, name: &'b str) -> ArgKey<'b> {
        ArgKey::Text(name)
    }
}

#[derive(Clone, Copy, Debug)]
pub enum ArgKey<'a> {
    Text(&'a str),
}

#[derive(Clone, Copy, Debug)]
pub struct Scalar(());

impl<T> From<T> for Scalar
where
    T: Copy + PartialOrd,
{
    #[inline]
    fn from(_: T) -> Self {
        Self(())
    }
}

/// Replaces the encoder of typed arguments. Encodes nothing.
#[derive(Debug, Default)]
pub struct Encoder(());

impl Encoder {
    #[inline(always)]
    pub fn new() -> Self {
        Self(())
    }

    #[inline(always)]
    pub fn scalar(&mut self, _: ArgKey<'_>, _: Scalar) {}

    #[inline(always)]
    pub fn str(&mut self, _: ArgKey<'_>, _: &str) {}

    #[inline(always)]
    pub fn formatted(&mut self, _: ArgKey<'_>, _: fmt::Arguments<'_>) -> bool {
        true
    }

    #[inline(always)]
    pub fn flow(&mut self, _: u64) {}

    #[inline(always)]
    pub fn encoded(&mut self, _: &[u8]) {}

    pub(crate) const fn is_whole(&self) -> bool {
        true
    }

    #[inline(always)]
    pub fn finish(&mut self) -> &[u8] {
        &[]
    }
}

pub(crate) const fn flow(_: u64) -> [u8; FLOW_ROOM] {
    [0; FLOW_ROOM]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    Begin,
    End,
    Instant,
    Counter,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Amount {
    Whole(i64),
    Real(f64),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Track<'a>(PhantomData<&'a str>);

impl<'a> Track<'a> {
    pub(crate) const fn new(_: TrackKey, _: &'a str, _: u64) -> Self {
        Self(PhantomData)
    }

    pub(crate) const fn of(_: TrackKey, _: &'a str) -> Self {
        Self(PhantomData)
    }

    pub(crate) const fn counter(_: &'a str, _: u64) -> Self {
        Self(PhantomData)
    }
}

/// The backend that wrote an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    ByAtrace,
    ByPerfetto { begun: u32 },
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct TrackKey {
    kind: Type,
}

impl TrackKey {
    pub(crate) const INSTANT: Self = Self { kind: Type::Instant };

    pub(crate) const fn of_async(kind: Type, _: i64) -> Self {
        Self { kind }
    }

    pub(crate) const fn named(kind: Type, _: i64) -> Self {
        Self { kind }
    }

    pub(crate) const fn kind(self) -> Type {
        self.kind
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Event<'a> {
    pub(crate) track: Option<Track<'a>>,
    pub(crate) name: Option<&'a str>,
    pub(crate) value: Option<Amount>,
    pub(crate) site: Option<Site<'a>>,
    pub(crate) flow: u64,
    pub(crate) args: &'a [u8],
    pub(crate) whole_args: Option<WholeArgs<'a>>,
    pub(crate) time: u64,
    pub(crate) begun: u32,
}

#[derive(Clone, Copy)]
pub(crate) struct WholeArgs<'a>(pub(crate) &'a dyn Fn(&mut Put<'_>));

impl fmt::Debug for WholeArgs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WholeArgs")
    }
}

impl Event<'static> {
    pub(crate) const fn new(_: Type, _: u64) -> Self {
        Self {
            track: None,
            name: None,
            value: None,
            site: None,
            flow: 0,
            args: &[],
            whole_args: None,
            time: 0,
            begun: 0,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionState(bool);

impl ConnectionState {
    pub(crate) const NOT_REQUESTED: Self = Self(false);
    pub(crate) const CONNECTED: Self = Self(true);
}

impl fmt::Display for ConnectionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not in this build")
    }
}

/// A recording of this process. In this build, no recording can exist.
#[derive(Debug)]
pub struct Recording(Infallible);

impl Recording {
    /// Ends the recording.
    ///
    /// # Errors
    ///
    /// Never returns an error, because there is no recording.
    pub fn finish(self) -> io::Result<()> {
        match self.0 {}
    }
}

/// In a build with the feature, dropping a `Recording` ends the recording. This type implements `Drop`, too, so that a
/// program with `drop(recording)` compiles without a warning in both builds.
impl Drop for Recording {
    fn drop(&mut self) {
        match self.0 {}
    }
}

pub(crate) fn record(_: &Path, _: u64) -> io::Result<Recording> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(crate) mod category {
    pub(crate) const COUNT: u32 = 0;

    pub(crate) fn name(_: u32) -> &'static str {
        ""
    }
}

pub(crate) mod hash {
    pub(crate) const fn of_name(_: &str) -> u64 {
        0
    }
}

pub(crate) fn connect() {}

pub(crate) fn note_name() {}

pub(crate) fn seek(_: &'static AtomicU32) {}

pub(crate) fn is_linked() -> bool {
    false
}

pub(crate) fn is_service_there() -> bool {
    false
}

pub(crate) fn expect_events() {}

pub(crate) fn start_if_expected() {}

pub(crate) fn connection_state() -> (ConnectionState, u32) {
    (ConnectionState::NOT_REQUESTED, 0)
}

pub(crate) fn lost() -> u64 {
    0
}

pub(crate) fn can_be_used() -> bool {
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

pub(crate) fn write(_: &Event<'_>) -> Option<Written> {
    None
}

pub(crate) type Put<'a> = dyn FnMut(&[u8]) + 'a;

pub(crate) fn put_scalar(_: &str, _: Scalar, _: &mut Put<'_>) {}

pub(crate) fn put_text(_: &str, _: &str, _: &mut Put<'_>) {}

pub(crate) trait Form<'a> {
    type Key;
    type Text;
    type More;
}

/// Defines a form of events (a set of events with the same fields) by the types of the arguments that `write_as`
/// takes for these events.
macro_rules! form {
    ($name:ident, $key:ty, $text:ty, $more:ty) => {
        pub(crate) struct $name;

        impl<'a> Form<'a> for $name {
            type Key = $key;
            type Text = $text;
            type More = $more;
        }
    };
}
form!(Named, Type, &'a str, &'a Number);
form!(OnTrack, TrackKey, &'a str, Option<&'a str>);
form!(Traced, Type, Option<&'a str>, &'a Call<'a>);
form!(TracedOnTrack, &'a Track<'a>, Option<&'a str>, (u64, &'a Call<'a>));

pub(crate) struct Call<'a> {
    pub(crate) site: &'a Site<'a>,
    pub(crate) flow: u64,
    pub(crate) args: &'a [u8],
}

pub(crate) fn write_as<'a, F: Form<'a>>(_: F::Key, _: u64, _: F::Text, _: F::More) -> Option<Written> {
    None
}

pub(crate) fn write_text(_: Type, _: u64, _: &str) -> Option<Written> {
    None
}

pub(crate) fn end_traced(_: u64, _: &Track<'_>, _: Option<&Site<'_>>, _: u64, _: u32, _: &[u8]) {}

pub(crate) fn end(_: u64) {}

pub(crate) fn count(_: u64, _: &str, _: u64, _: i64) -> Option<Written> {
    None
}

/// Returns 0, which means that no time is given.
pub fn now() -> u64 {
    0
}

/// Returns 0, which means no flow (no arrow between events).
pub fn flow_number(_: u64) -> u64 {
    0
}
