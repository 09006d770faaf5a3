//! The modes of a workload: whether a program is instrumented, which subscriber receives its events, and whether
//! tracing is on.

use std::future::Future;
use std::io;

use atrace::AtraceTag;
use atrace::control::{Control, Switched, ThisProcess};
use atrace_subscriber::AtraceSubscriber;
use tracing::Subscriber;
use tracing::instrument::{Instrument as _, Instrumented};

use crate::harness::reader::Reading;

/// The configuration of a process: whether instrumentation is compiled in, which subscriber is installed, and whether
/// tracing is on.
#[derive(Clone, Copy)]
pub struct Mode {
    /// The name of the mode.
    pub name: &'static str,
    /// Whether instrumentation is compiled in.
    pub compiled_in: bool,
    /// Whether tracing is on for the process, so that messages are written to the marker.
    pub writes: bool,
    /// The number of sessions of the mode's own Perfetto consumer, or `None` if there is no consumer. Each session
    /// records all events, and no message is written to the marker. If there is a consumer with 0 sessions, no event is
    /// recorded.
    pub sessions: Option<u32>,
    /// The other mode whose raw writes (writes of its messages without this library) are compared with this mode, if
    /// this mode writes no messages itself.
    pub writes_of: Option<&'static str>,
    /// The function that sets the global subscriber, and prepares everything else that the process needs. It is called
    /// before the cases are made.
    pub install: fn(),
    /// The names of the modes with which this mode is compared. Names that are not in the workload's list of modes are
    /// ignored.
    pub bases: &'static [&'static str],
    /// The twin: the mode, among the bases, about which there is a promise that it takes the same time as this mode.
    /// Many measurements are needed to show that there is no difference, so twins get most of the measuring time.
    pub twin: Option<&'static str>,
    /// The group of modes that run the same number of operations in a measurement as this mode.
    pub pace: Pace,
    /// Whether the counts of allocations are the same in each run.
    pub exact: bool,
}

/// The group of modes that run the same number of operations in a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// The group of all modes that are in no other group.
    Common,
    /// The group with this name.
    Of(&'static str),
    /// A group of the mode alone. Use this for a mode that takes many times as long as the others. In a common group,
    /// this mode would cause a small number of operations for all modes.
    Own,
}

/// The names of the modes with which an instrumented mode is compared by default.
const BASES: &[&str] = &["none", "nosub"];

impl Mode {
    /// The mode without instrumentation.
    pub const NONE: Self = Self { compiled_in: false, bases: &[], ..Self::new("none", || ()) };
    /// The mode with instrumentation and without a subscriber.
    pub const NOSUB: Self = Self { bases: &["none"], ..Self::new("nosub", || ()) };
    /// The mode with `AtraceSubscriber::default().with_filter()`, while tracing is off.
    pub const FILTERED: Self = Self {
        twin: Some("nosub"),
        ..Self::new("filtered", || Self::install(AtraceSubscriber::default().with_filter()))
    };
    /// The mode with `AtraceSubscriber::default()`, while tracing is off.
    pub const OFF: Self = Self::new("off", || Self::install(AtraceSubscriber::default()));
    /// The mode with `AtraceSubscriber::default()`, while tracing is on.
    pub const ON: Self = Self { writes: true, name: "on", ..Self::OFF };

    /// The mode with `AtraceSubscriber::default()`, while tracing is on for a Perfetto session only. The counts of
    /// allocations are not exact, because the thread that communicates with the service allocates at any time.
    pub const PERFETTO: Self = Self { sessions: Some(1), exact: false, name: "perfetto", ..Self::OFF };

    /// Returns the six modes that a workload has by default.
    pub fn all() -> Vec<Self> {
        vec![Self::NONE, Self::NOSUB, Self::FILTERED, Self::OFF, Self::ON, Self::PERFETTO]
    }

    /// Makes an instrumented mode with tracing off, which is compared with the modes `none` and `nosub`.
    pub const fn new(name: &'static str, install: fn()) -> Self {
        Self {
            name,
            compiled_in: true,
            writes: false,
            sessions: None,
            writes_of: None,
            install,
            bases: BASES,
            twin: None,
            pace: Pace::Common,
            exact: true,
        }
    }

    /// Makes a subscriber the global default.
    ///
    /// # Panics
    ///
    /// Panics if there is a global default already.
    pub fn install(subscriber: impl Subscriber + Send + Sync) {
        tracing::subscriber::set_global_default(subscriber).expect("no other subscriber was set");
    }

    /// Returns whether a Perfetto session records the events.
    pub(super) const fn is_by_perfetto(&self) -> bool {
        matches!(self.sessions, Some(1..))
    }

    /// Returns whether this mode and `other` run the same number of operations in a measurement.
    pub(super) fn keeps_pace_with(&self, other: &Self) -> bool {
        self.name == other.name || (self.pace == other.pace && self.pace != Pace::Own)
    }

    /// Switches tracing on or off for this process, and connects the process to the mode's Perfetto consumer, if there
    /// is a consumer. After the switch has taken effect, installs the subscriber. The switch is undone when the
    /// returned [`Switched`] is dropped.
    ///
    /// # Errors
    ///
    /// Returns the system's error, or an error if the state of tracing is not the requested state.
    pub fn set_up(&self) -> io::Result<(Option<Switched>, Option<Reading>)> {
        let control = Control::open().map_err(io::Error::other)?;
        // Tracing is first switched on in all modes, so that the properties exist: if libcutils looks for the
        // properties before they exist, it never notices them later.
        let mut switched = Some(control.enable(ThisProcess).map_err(io::Error::other)?);
        if !self.writes {
            switched.take().map_or(Ok(()), Switched::restore).map_err(io::Error::other)?;
        }
        let reading = self.sessions.map(|_| Reading::begin()).transpose()?;
        let on = self.writes || self.is_by_perfetto();
        if atrace::atrace_is_tag_enabled(AtraceTag::App) != on {
            let sink = atrace::sink();
            return Err(io::Error::other(format!("tracing should be on = {on}; {sink}")));
        }
        (self.install)();
        Ok((switched, reading.filter(|reading| reading.sessions() > 0)))
    }
}

/// The instrumentation of a workload. Cases are generic over this trait, so that the mode `none` has machine code of
/// its own, and its futures are as small as in an uninstrumented program.
///
/// Spans are made by closures, which [`Bare`] never calls. Futures are `Send + 'static`, so that a workload can spawn
/// them on any runtime.
pub trait Tracing: 'static {
    /// Whether instrumentation is compiled in.
    const COMPILED_IN: bool;

    /// The type of a span. Without instrumentation, the type is `()`.
    type Span: Clone + Send + Sync + 'static;

    /// The type of a future within a span. Without instrumentation, it is the type of the unchanged future.
    type Spanned<F: Future + Send + 'static>: Future<Output = F::Output> + Send + 'static;

    /// Makes a span. An example of a call is `T::span(|| info_span!("task"))`.
    fn span(make: impl FnOnce() -> tracing::Span) -> Self::Span;

    /// Runs `f` within the span: enters the span before `f`, and exits the span after `f`.
    fn within<R>(span: &Self::Span, f: impl FnOnce() -> R) -> R;

    /// Wraps `future` like `future.instrument(make())`: each poll of `future` is within the span.
    fn spanned<F: Future + Send + 'static>(
        future: F,
        make: impl FnOnce() -> tracing::Span,
    ) -> Self::Spanned<F>;

    /// Runs `f`, which writes an event. Without instrumentation, does nothing. An example of a call is `T::event(||
    /// info!("late"))`.
    fn event(f: impl FnOnce());
}

/// No instrumentation, for the mode `none`.
#[derive(Clone, Copy, Debug)]
pub enum Bare {}

/// Instrumentation, for every mode but `none`.
#[derive(Clone, Copy, Debug)]
pub enum Traced {}

impl Tracing for Bare {
    const COMPILED_IN: bool = false;
    type Span = ();
    type Spanned<F: Future + Send + 'static> = F;

    #[inline(always)]
    fn span(_: impl FnOnce() -> tracing::Span) {}

    #[inline(always)]
    fn within<R>((): &(), f: impl FnOnce() -> R) -> R {
        f()
    }

    #[inline(always)]
    fn spanned<F: Future + Send + 'static>(future: F, _: impl FnOnce() -> tracing::Span) -> F {
        future
    }

    #[inline(always)]
    fn event(_: impl FnOnce()) {}
}

impl Tracing for Traced {
    const COMPILED_IN: bool = true;
    type Span = tracing::Span;
    type Spanned<F: Future + Send + 'static> = Instrumented<F>;

    #[inline(always)]
    fn span(make: impl FnOnce() -> tracing::Span) -> tracing::Span {
        make()
    }

    #[inline(always)]
    fn within<R>(span: &tracing::Span, f: impl FnOnce() -> R) -> R {
        let _entered = span.enter();
        f()
    }

    #[inline(always)]
    fn spanned<F: Future + Send + 'static>(
        future: F,
        make: impl FnOnce() -> tracing::Span,
    ) -> Instrumented<F> {
        future.instrument(make())
    }

    #[inline(always)]
    fn event(f: impl FnOnce()) {
        f();
    }
}
