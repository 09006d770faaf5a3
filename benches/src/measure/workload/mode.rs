//! The modes: how a program is instrumented, and who listens.

use std::io;

use atrace::AtraceTag;
use atrace::control::{Control, Switched};
use atrace_subscriber::AtraceSubscriber;
use tracing::Subscriber;

use crate::harness::reader::Reading;

/// A process of its own: whether instrumentation is compiled in, which subscriber there is, and whether
/// tracing is on.
#[derive(Clone, Copy)]
pub struct Mode {
    /// Its name.
    pub name: &'static str,
    /// Whether instrumentation is compiled in.
    pub(super) compiled_in: bool,
    /// Whether messages are written.
    pub(super) writes: bool,
    /// As many sessions the reader of Perfetto's way has; `None`: there is no reader.
    pub(super) sessions: Option<u32>,
    /// The mode whose raw writes it is compared to, where those are not its own.
    pub(super) writes_of: Option<&'static str>,
    install: fn(),
    /// The modes that it is compared to.
    pub(super) bases: &'static [&'static str],
    /// The mode that it is promised to take as long as.
    pub(super) twin: Option<&'static str>,
    pace: Pace,
    pub(super) exact: bool,
}

/// Who runs equally often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    Common,
    Of(&'static str),
    Own,
}

/// What instrumented modes are compared to.
const BASES: &[&str] = &["none", "nosub"];

impl Mode {
    /// No instrumentation.
    pub const NONE: Self = Self { compiled_in: false, ..Self::new("none", || ()).above(&[]) };
    /// Instrumented, and no subscriber.
    pub const NOSUB: Self = Self::new("nosub", || ()).above(&["none"]);
    /// `AtraceSubscriber::default().with_filter()`, tracing off.
    pub const FILTERED: Self =
        Self::new("filtered", || Self::install(AtraceSubscriber::default().with_filter())).same_as("nosub");
    /// `AtraceSubscriber::default()`, tracing off.
    pub const OFF: Self = Self::new("off", || Self::install(AtraceSubscriber::default()));
    /// `AtraceSubscriber::default()`, tracing on.
    pub const ON: Self = Self::new("on", || Self::install(AtraceSubscriber::default())).on();

    /// `AtraceSubscriber::default()`, tracing on because a session of Perfetto's asks, and for nobody else. The thread that
    /// talks to its service allocates when it pleases.
    pub const PERFETTO: Self =
        Self::new("perfetto", || Self::install(AtraceSubscriber::default())).by_perfetto().inexact();

    /// Returns the six that all workloads have.
    pub fn all() -> Vec<Self> {
        vec![Self::NONE, Self::NOSUB, Self::FILTERED, Self::OFF, Self::ON, Self::PERFETTO]
    }

    /// Makes an instrumented mode of another kind, tracing off, compared to `none` and `nosub`. `install`
    /// sets the global subscriber, and whatever else its process needs, before the cases are made.
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

    /// Compares it to these modes instead, which must come before it.
    pub const fn above(self, bases: &'static [&'static str]) -> Self {
        Self { bases, ..self }
    }

    /// Is promised to take as long as the mode `base`, one that it is compared to. Such a small difference takes more turns
    /// than others to be seen: these modes have most of the time.
    pub const fn same_as(self, base: &'static str) -> Self {
        Self { twin: Some(base), ..self }
    }

    /// Has slices of its own size, for what takes many times as long as the other modes, whose slices would else be as
    /// short as its own has to be.
    pub const fn apart(self) -> Self {
        Self { pace: Pace::Own, ..self }
    }

    /// Has slices of the size that all of this `group` have, and not that of the others.
    pub const fn paced_with(self, group: &'static str) -> Self {
        Self { pace: Pace::Of(group), ..self }
    }

    /// Has a subscriber that allocates when it pleases: the counts may differ from run to run.
    pub const fn inexact(self) -> Self {
        Self { exact: false, ..self }
    }

    /// Switches tracing on for its process: the messages of the cases are written.
    pub const fn on(self) -> Self {
        Self { writes: true, ..self }
    }

    /// Has a reader of Perfetto's way of its own, whose session asks for everything: the events of the cases go there, and
    /// nothing is written.
    pub const fn by_perfetto(self) -> Self {
        Self { sessions: Some(1), ..self }
    }

    /// Is connected to a reader of Perfetto's way of its own, which has no session: nobody wants its events.
    pub const fn connected(self) -> Self {
        Self { sessions: Some(0), ..self }
    }

    /// Is compared to the raw writes of what this mode writes.
    pub const fn beside_writes_of(self, mode: &'static str) -> Self {
        Self { writes_of: Some(mode), ..self }
    }

    /// Makes a subscriber the global default.
    ///
    /// # Panics
    ///
    /// When there is one already.
    pub fn install(subscriber: impl Subscriber + Send + Sync) {
        tracing::subscriber::set_global_default(subscriber).expect("no other subscriber was set");
    }

    /// Tells whether events go to a reader of Perfetto's way.
    pub(super) const fn is_by_perfetto(&self) -> bool {
        matches!(self.sessions, Some(1..))
    }

    /// Tells whether both have slices of the same size.
    pub(super) fn keeps_pace_with(&self, other: &Self) -> bool {
        self.name == other.name || (self.pace == other.pace && self.pace != Pace::Own)
    }

    /// Switches tracing for this process, and installs what the mode has. The switch comes first, so that what follows it
    /// is not still on its way. It stays so until what is returned is dropped.
    ///
    /// # Errors
    ///
    /// What the system answered, or that tracing is not as it was switched.
    pub fn set_up(&self) -> io::Result<(Option<Switched>, Option<Reading>)> {
        let control = Control::open().map_err(io::Error::other)?;
        // The properties have to be there in any case: a libcutils that looks before they are never notices them.
        let mut switched = Some(control.enable_this_process().map_err(io::Error::other)?);
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
