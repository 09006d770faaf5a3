//! The session of a measuring process: its command line, and its sink, in which the bench checks which events have
//! arrived. By default, and if the process has the necessary rights, the sink is a tracefs instance of its own.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use atrace_cli::tracefs::{self, Instance};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use crate::harness::args::Args;
use crate::harness::output::say;
use crate::row::{Sink, environment};

/// The environment variable of a child process with the id of the process that started it.
pub(crate) const CHILD: &str = "ATRACE_BENCH_CHILD";

/// The command line and the sink of a child process, which measures.
#[derive(Debug)]
pub struct Session {
    /// The parsed command line of this process.
    pub args: Args,
    sink: Sink,
    /// The path of the file to which messages are written, from the environment variable `ATRACE_MARKER`.
    pub marker: Option<PathBuf>,
    /// The tracefs instance that has the marker, if the sink is [`Sink::Tracefs`].
    pub instance: Option<Instance>,
}

impl Session {
    /// Returns the kind of the sink, which is stored in the rows (results).
    pub fn sink(&self) -> Sink {
        match atrace::sink().kind() {
            "Cutils" => Sink::Cutils,
            "Ndk" => Sink::Ndk,
            _ => self.sink,
        }
    }

    /// Returns whether messages that C++ writes through libcutils arrive in the same sink as the events of this
    /// process. They do not if libcutils is that of an Android device, which only writes to the kernel's marker, and
    /// the sink is another file.
    pub fn is_where_libcutils_writes(&self) -> bool {
        !LIBCUTILS_IS_THE_DEVICES || self.sink == Sink::Tracefs
    }

    /// Returns the messages in the sink, or `None` if the sink is not the ring buffer of a tracefs instance. If other
    /// programs share the ring buffer, returns only the messages of this process.
    ///
    /// # Errors
    ///
    /// Returns the system's error.
    pub fn messages(&self) -> io::Result<Option<Vec<Vec<u8>>>> {
        let Some(instance) = &self.instance else { return Ok(None) };
        let all = instance.markers()?.map(|marker| marker.payload);
        let (id, shared) = (std::process::id(), self.is_shared());
        Ok(Some(all.filter(|message| !shared || is_of(message, id)).collect()))
    }

    /// Empties the sink if it is a ring buffer or a temporary file.
    ///
    /// # Errors
    ///
    /// Returns the system's error.
    pub fn clear(&self) -> io::Result<()> {
        match (&self.instance, &self.marker) {
            (Some(instance), _) => instance.clear(),
            (None, Some(file)) if self.sink == Sink::File => {
                std::fs::OpenOptions::new().write(true).truncate(true).open(file).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Empties the sink, runs `f`, and returns how much has arrived in the sink: the number of events if the sink is a
    /// ring buffer, or the number of bytes if it is a file. Returns `None` if the sink can't be read.
    ///
    /// The benches check the state of tracing by this number: tracing is on if the events of an operation arrive in the
    /// sink, and off if no event arrives.
    ///
    /// # Errors
    ///
    /// Returns the system's error.
    pub fn wrote(&self, f: impl FnOnce()) -> io::Result<Option<u64>> {
        self.clear()?;
        f();
        match self.is_shared() {
            true => Ok(self.messages()?.map(|all| all.len() as u64)),
            false => self.arrived(),
        }
    }

    /// Returns how much the sink has received since it was last cleared, in the same unit as [`wrote`](Self::wrote).
    /// The difference between the results of two calls is the amount that arrived between them; computing this
    /// difference takes less time than clearing the sink. If the ring buffer is shared with the whole system, the count
    /// includes events of other programs. They are not subtracted, because once events are overwritten, it is unknown
    /// how many of them were of other programs.
    ///
    /// # Errors
    ///
    /// Returns the system's error.
    pub fn arrived(&self) -> io::Result<Option<u64>> {
        match (&self.instance, &self.marker) {
            (Some(instance), _) => Ok(Some(instance.stats()?.written())),
            (None, Some(file)) if self.sink == Sink::File => Ok(Some(std::fs::metadata(file)?.len())),
            _ => Ok(None),
        }
    }

    /// Returns whether other programs also write to the ring buffer of the sink.
    pub(crate) fn is_shared(&self) -> bool {
        self.instance.as_ref().is_some_and(is_shared)
    }

    /// Returns the end of a sentence about how the state of tracing (on or off) was verified.
    pub fn verified_by(&self) -> &'static str {
        match self.sink {
            Sink::Tracefs => "what arrived there",
            Sink::File => "whether something arrived there",
            _ => "that file alone: the bench can't check what arrived there",
        }
    }

    /// Returns the session of this process if it was started as a child process to measure, otherwise `None`.
    pub(super) fn inherited(args: &Args) -> io::Result<Option<Self>> {
        let Some(parent) = std::env::var_os(CHILD) else { return Ok(None) };
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The parent may have ended before the kernel was told to kill this process with its parent.
        if getppid().map(|pid| pid.to_string().into()) != Some(parent) {
            return Err(io::Error::other(format!(
                "the process that {CHILD} names did not start this process"
            )));
        }
        environment::start();
        let sink = std::env::var_os(SINK).map_or(Ok(Sink::None), |name| of_name(&name))?;
        let marker = std::env::var_os(MARKER).map(PathBuf::from);
        let instance = match &marker {
            Some(marker) if sink == Sink::Tracefs => marker.parent().map(Instance::attach).transpose()?,
            _ => None,
        };
        Ok(Some(Self { args: args.clone(), sink, marker, instance }))
    }

    /// Returns the session of a process that only lists its cases and measures nothing.
    pub(super) fn without_sink(args: Args) -> Self {
        Self { args, sink: Sink::None, marker: None, instance: None }
    }
}

/// The prefix of the names of tracefs instances.
pub(super) const PREFIX: &str = "atrace-bench";

/// The environment variable with the kind of the sink. For a child process, it is the kind of its sink. For the first
/// process, it is the kind that the user requests.
pub(super) const SINK: &str = "ATRACE_BENCH_SINK";
pub(super) const MARKER: &str = "ATRACE_MARKER";

/// The directories in which libcutils looks for tracefs and its marker.
const MOUNTS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// The sink that is prepared for a child process. If a tracefs instance was made for the sink, dropping this value
/// removes it.
pub(super) struct Prepared {
    pub(super) sink: Sink,
    pub(super) marker: PathBuf,
    instance: Option<Instance>,
    /// Whether the ring buffer was off before the bench switched it on. If so, it is switched off again at the end.
    was_off: bool,
}

impl Drop for Prepared {
    fn drop(&mut self) {
        if let (true, Some(instance)) = (self.was_off, &self.instance) {
            let _ = instance.set_tracing_on(false);
        }
    }
}

impl Prepared {
    pub(super) fn new(args: &Args, temp: &Path) -> io::Result<Self> {
        let asked = std::env::var_os(SINK).map(|name| of_name(&name)).transpose()?;
        let mut why = format!("{SINK} asks for it");
        if asked.is_none_or(|sink| sink == Sink::Tracefs) {
            match instance() {
                Ok(instance) => {
                    let marker = instance.marker_path();
                    let state = std::fs::read_to_string(instance.path().join("tracing_on"));
                    let was_off = state.is_ok_and(|state| state.trim() == "0");
                    if was_off {
                        instance.set_tracing_on(true)?;
                    }
                    return Ok(Self { sink: Sink::Tracefs, marker, instance: Some(instance), was_off });
                }
                Err(e) if asked.is_some() => return Err(e),
                Err(e) => why = format!("{e}; the real one: {}", real(args)),
            }
        }
        // A file is only used for tests: in a measurement, it would grow by gigabytes.
        let sink = asked.unwrap_or(if args.test { Sink::File } else { Sink::Null });
        let mut marker = PathBuf::from("/dev/null");
        if sink == Sink::File {
            marker = temp.join("marker");
            std::fs::write(&marker, "")?;
        }
        say(format_args!("sink: {sink}, not the kernel's trace_marker ({why})"));
        Ok(Self { sink, marker, instance: None, was_off: false })
    }
}

/// Whether the C++ code uses the libcutils of the Android device, which can only write to the kernel's marker.
pub(super) const LIBCUTILS_IS_THE_DEVICES: bool =
    cfg!(all(target_os = "android", not(target_feature = "crt-static")));

/// Returns whether other programs also write to the ring buffer of `instance`. This is true for the ring buffer at the
/// top of tracefs.
pub(super) fn is_shared(instance: &Instance) -> bool {
    MOUNTS.iter().any(|mount| instance.path() == Path::new(mount))
}

/// Returns whether the process with the id `id` wrote a message. The second field of a message is the process id.
pub(super) fn is_of(message: &[u8], id: u32) -> bool {
    let part = message.split(|&byte| byte == b'|').nth(1).unwrap_or_default();
    str::from_utf8(part).is_ok_and(|part| part.parse() == Ok(id))
}

/// Returns the instance with the ring buffer to which the device's libcutils writes, if this process may write to the
/// ring buffer and read it.
fn everyones() -> io::Result<Instance> {
    let mut why = None;
    for mount in MOUNTS {
        let all = || -> io::Result<Instance> {
            let instance = Instance::attach(mount)?;
            std::fs::OpenOptions::new().append(true).open(instance.marker_path())?;
            std::fs::OpenOptions::new().read(true).write(true).open(Path::new(mount).join("trace"))?;
            Ok(instance)
        };
        match all() {
            Ok(instance) => return Ok(instance),
            Err(e) => why = why.or(Some(io::Error::new(e.kind(), format!("{mount}: {e}")))),
        }
    }
    Err(why.unwrap_or_else(|| io::ErrorKind::NotFound.into()))
}

/// Removes tracefs instances that killed runs have left, and makes a new instance. If the C++ code uses the device's
/// libcutils, makes no instance, and returns the one with the ring buffer to which that library writes.
fn instance() -> io::Result<Instance> {
    if LIBCUTILS_IS_THE_DEVICES {
        return everyones();
    }
    // An error is ignored, because an old instance that can't be removed does no harm.
    let _ = tracefs::sweep(PREFIX);
    Instance::create(PREFIX)
}

/// Returns the shell command by which a user can run this bench with the kernel's marker as the sink.
fn real(args: &Args) -> String {
    let exe = std::env::current_exe().unwrap_or_default();
    let mount = tracefs::root().is_err_and(|e| e.kind() == io::ErrorKind::NotFound);
    let mount = if mount { "sudo mount -t tracefs nodev /sys/kernel/tracing; " } else { "" };
    format!("{mount}sudo {}{}", exe.display(), if args.test { "" } else { " --bench" })
}

pub(super) fn of_name(name: &OsStr) -> io::Result<Sink> {
    match name.to_str() {
        Some("tracefs") => Ok(Sink::Tracefs),
        Some("file") => Ok(Sink::File),
        Some("null") => Ok(Sink::Null),
        _ => Err(io::Error::other(format!("{SINK}={} is none of tracefs, file, null", name.display()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_say_whose_they_are() {
        for message in ["B|42|name", "E|42", "C|42|a|7", "N|42|1|2"] {
            assert!(is_of(message.as_bytes(), 42) && !is_of(message.as_bytes(), 4), "{message}");
        }
        for message in ["B|421|42", "E", "", "B|", "|", "trace_event_clock_sync: parent_ts=42"] {
            assert!(!is_of(message.as_bytes(), 42), "{message}");
        }
    }

    #[test]
    fn sinks_have_names() {
        for sink in [Sink::Tracefs, Sink::File, Sink::Null] {
            assert_eq!(of_name(OsStr::new(&sink.to_string())).unwrap(), sink);
        }
        let e = of_name(OsStr::new("pipe")).unwrap_err();
        assert_eq!(e.to_string(), "ATRACE_BENCH_SINK=pipe is none of tracefs, file, null");
    }
}
