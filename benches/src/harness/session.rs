//! What a process that measures works with: its command line, and the sink that it asks what arrived.

use std::io;
use std::path::{Path, PathBuf};

use atrace::SinkKind;
use atrace_cli::tracefs::Instance;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use super::args::Args;
use super::sink::{self, LIBCUTILS_IS_THE_DEVICES, MARKER, SINK, is_of};
use crate::row::{Sink, environment};

/// Set for a child, to the number of the process that started it.
pub(crate) const CHILD: &str = "ATRACE_BENCH_CHILD";

/// What the child works with.
#[derive(Debug)]
pub struct Session {
    args: Args,
    sink: Sink,
    marker: Option<PathBuf>,
    instance: Option<Instance>,
}

impl Session {
    /// Returns the command line.
    pub fn args(&self) -> &Args {
        &self.args
    }

    /// Returns where messages go, for the rows.
    pub fn sink(&self) -> Sink {
        match atrace::sink().kind() {
            SinkKind::Cutils => Sink::Cutils,
            SinkKind::Ndk => Sink::Ndk,
            _ => self.sink,
        }
    }

    /// Returns the file that messages are written to: what `ATRACE_MARKER` names.
    pub fn marker(&self) -> Option<&Path> {
        self.marker.as_deref()
    }

    /// Returns the instance that has the marker, if the sink is [`Sink::Tracefs`].
    pub fn instance(&self) -> Option<&Instance> {
        self.instance.as_ref()
    }

    /// Tells whether what C++ writes through libcutils arrives where this process' events do. A device's libcutils writes to
    /// the kernel and nowhere else.
    pub fn is_where_libcutils_writes(&self) -> bool {
        !LIBCUTILS_IS_THE_DEVICES || self.sink == Sink::Tracefs
    }

    /// Returns the messages of this process that are in the sink now; `None` where that is no ring buffer.
    ///
    /// # Errors
    ///
    /// What the system answered.
    pub fn messages(&self) -> io::Result<Option<Vec<Vec<u8>>>> {
        let Some(instance) = &self.instance else { return Ok(None) };
        let all = instance.markers()?.map(|marker| marker.payload);
        let (id, shared) = (std::process::id(), self.is_shared());
        Ok(Some(all.filter(|message| !shared || is_of(message, id)).collect()))
    }

    /// Empties the sink, where it can be emptied.
    ///
    /// # Errors
    ///
    /// What the system answered.
    pub fn clear(&self) -> io::Result<()> {
        match (&self.instance, &self.marker) {
            (Some(instance), _) => instance.clear(),
            (None, Some(file)) if self.sink == Sink::File => {
                std::fs::OpenOptions::new().write(true).truncate(true).open(file).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Runs `f` with an empty sink and returns how much it got: events where the sink is a marker,
    /// bytes where it is a file, so that 0 means that nothing arrived. `None` where nobody can tell.
    ///
    /// What every row rests on: tracing is on when an operation shows here, and off when it does
    /// not.
    ///
    /// # Errors
    ///
    /// What the system answered.
    pub fn wrote(&self, f: impl FnOnce()) -> io::Result<Option<u64>> {
        self.clear()?;
        f();
        match self.is_shared() {
            true => Ok(self.messages()?.map(|all| all.len() as u64)),
            false => self.arrived(),
        }
    }

    /// Returns how much the sink got since it was last cleared, as [`wrote`](Self::wrote) does: two of these tell what came
    /// between, without the milliseconds that clearing takes. In the whole system's ring buffer others' events are among
    /// them: they can't be told apart when older ones are gone.
    ///
    /// # Errors
    ///
    /// What the system answered.
    pub fn arrived(&self) -> io::Result<Option<u64>> {
        match (&self.instance, &self.marker) {
            (Some(instance), _) => Ok(Some(instance.stats()?.written())),
            (None, Some(file)) if self.sink == Sink::File => Ok(Some(std::fs::metadata(file)?.len())),
            _ => Ok(None),
        }
    }

    /// Tells whether others write to the sink's ring buffer, too.
    pub(crate) fn is_shared(&self) -> bool {
        self.instance.as_ref().is_some_and(sink::is_shared)
    }

    /// Says by what it is known that tracing was on, or off.
    pub fn verified_by(&self) -> &'static str {
        match self.sink {
            Sink::Tracefs => "what arrived there",
            Sink::File => "whether something arrived there",
            _ => "that alone: nobody can tell what arrived there",
        }
    }

    /// The session of a process that was started to measure; `None` in one that was not.
    pub(super) fn inherited(args: &Args) -> io::Result<Option<Self>> {
        let Some(parent) = std::env::var_os(CHILD) else { return Ok(None) };
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // It may have gone before that call.
        if getppid().map(|pid| pid.to_string().into()) != Some(parent) {
            return Err(io::Error::other(format!("the process that {CHILD} names has not started this one")));
        }
        environment::start();
        let sink = match std::env::var_os(SINK) {
            Some(name) => sink::of_name(&name)?,
            None => Sink::None,
        };
        let marker = std::env::var_os(MARKER).map(PathBuf::from);
        let instance = match &marker {
            Some(marker) if sink == Sink::Tracefs => marker.parent().map(Instance::attach).transpose()?,
            _ => None,
        };
        Ok(Some(Self { args: args.clone(), sink, marker, instance }))
    }

    /// The session of a process that only lists its cases.
    pub(super) fn without_sink(args: Args) -> Self {
        Self { args, sink: Sink::None, marker: None, instance: None }
    }
}
