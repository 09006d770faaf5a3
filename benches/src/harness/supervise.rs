//! Gives a bench what it needs, and takes it away again however the bench ends.
//!
//! A bench that cleans up behind itself leaves its things behind when it is killed. So [`run`] runs
//! the program a second time, as a child that measures, while the first does nothing but wait, and
//! then removes the tracefs instance and the temporary directory. It hands on the signals that ask
//! it to end, and ends as the child did. The child does not outlive it, and what is left behind
//! when the first is killed too is swept by the next run.
//!
//! The child has one thread and no handlers: a second thread would make each of its system calls
//! on files dearer, and it is those that are measured.
//!
//! What the child finds in its environment:
//!
//! - `ATRACE_MARKER` names the sink: the marker of an instance of its own; without the rights for
//!   one, `/dev/null`, or as a test, where little is written, a temporary file. `ATRACE_BENCH_SINK`
//!   (`tracefs`, `file`, `null`) asks for one of them.
//! - `ATRACE_PROPERTIES` names a property store of its own, unless it was set already; then what a bench that
//!   was killed left switched on there is switched off.
//! - `ATRACE_BACKEND` is not set.
//! - On Android, unless statically linked: `ATRACE_MARKER` is the marker at the top of tracefs, the only one that the device's
//!   libcutils knows. Its ring buffer is everyone's: it is switched on as long as the bench runs, and emptied, and of what is in
//!   it only the messages of this process count.
//! - On Android, where a bench is started from a directory that it may not write to and by a runner
//!   that hands on no environment, `CRITERION_HOME`, `ATRACE_OVERHEAD_DIR` and `TMPDIR` are below
//!   `/data/local/tmp/atrace-bench`, or where that can't be, beside the program, unless they are set.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus};

use atrace::SinkKind;
use atrace::control::Control;
use atrace::tracefs::{self, Instance};
use rustix::process::{Pid, Signal, getppid, kill_process, set_parent_process_death_signal};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::harness::args::Args;
use crate::harness::terminal::{complain, fail, say};
use crate::row::environment;
use crate::row::{Sink, env_path};

/// What the names of the tracefs instances begin with.
pub const PREFIX: &str = "atrace-bench";

/// Set for a child, to the number of the process that started it.
pub(crate) const CHILD: &str = "ATRACE_BENCH_CHILD";
/// The kind of the child's sink; for the first process, which one to use.
const SINK: &str = "ATRACE_BENCH_SINK";
const MARKER: &str = "ATRACE_MARKER";
const PROPERTIES: &str = "ATRACE_PROPERTIES";
const BACKEND: &str = "ATRACE_BACKEND";
const TMPDIR: &str = "TMPDIR";

/// Where a device lets the shell write and run.
pub(crate) const DEVICE_TEMP: &str = "/data/local/tmp";

/// Where the kernel's own ring buffer may be, as libcutils looks for it.
const MOUNTS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// From this signal on, the child is killed.
const PATIENCE: u32 = 3;

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
    #[must_use]
    pub fn args(&self) -> &Args {
        &self.args
    }

    /// Returns where messages go, for the rows.
    #[must_use]
    pub fn sink(&self) -> Sink {
        match atrace::sink().kind() {
            SinkKind::Cutils => Sink::Cutils,
            SinkKind::Ndk => Sink::Ndk,
            _ => self.sink,
        }
    }

    /// Returns the file that messages are written to: what `ATRACE_MARKER` names.
    #[must_use]
    pub fn marker(&self) -> Option<&Path> {
        self.marker.as_deref()
    }

    /// Returns the instance that has the marker, if the sink is [`Sink::Tracefs`].
    #[must_use]
    pub fn instance(&self) -> Option<&Instance> {
        self.instance.as_ref()
    }

    /// Tells whether what C++ writes through libcutils arrives where this process' events do. A device's libcutils writes to
    /// the kernel and nowhere else.
    #[must_use]
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
            false => self.written(),
        }
    }

    /// Returns how much the sink got since it was last cleared, as [`wrote`](Self::wrote) does: two of these tell what came
    /// between, without the milliseconds that clearing takes. In the whole system's ring buffer others' events are among
    /// them: they can't be told apart when older ones are gone.
    ///
    /// # Errors
    ///
    /// What the system answered.
    pub fn written(&self) -> io::Result<Option<u64>> {
        match (&self.instance, &self.marker) {
            (Some(instance), _) => Ok(Some(instance.stats()?.written())),
            (None, Some(file)) if self.sink == Sink::File => Ok(Some(std::fs::metadata(file)?.len())),
            _ => Ok(None),
        }
    }

    /// Tells whether others write to the sink's ring buffer, too.
    pub(crate) fn is_shared(&self) -> bool {
        self.instance.as_ref().is_some_and(is_shared)
    }

    /// Says by what it is known that tracing was on, or off.
    #[must_use]
    pub fn verified_by(&self) -> &'static str {
        match self.sink {
            Sink::Tracefs => "what arrived there",
            Sink::File => "whether something arrived there",
            _ => "that alone: nobody can tell what arrived there",
        }
    }

    /// The session of a process that was started to measure; `None` in one that was not.
    fn inherited(args: &Args) -> io::Result<Option<Self>> {
        let Some(parent) = std::env::var_os(CHILD) else { return Ok(None) };
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // It may have gone before that call.
        if getppid().map(|pid| pid.to_string().into()) != Some(parent) {
            return Err(io::Error::other(format!("the process that {CHILD} names has not started this one")));
        }
        environment::start();
        let sink = match std::env::var_os(SINK) {
            Some(name) => sink_of(&name)?,
            None => Sink::None,
        };
        let marker = std::env::var_os(MARKER).map(PathBuf::from);
        let instance = match &marker {
            Some(marker) if sink == Sink::Tracefs => marker.parent().map(Instance::attach).transpose()?,
            _ => None,
        };
        Ok(Some(Self { args: args.clone(), sink, marker, instance }))
    }
}

/// Runs `main_child` in a child process, with a sink of its own, and returns how it ended: with
/// what it returned, with 128 + n if signal n ended it, and as after such a signal if one asked
/// this process to end (130 for Ctrl-C).
///
/// For `--list` nothing is prepared: `main_child` runs here.
#[must_use]
pub fn run(main_child: impl FnOnce(Session) -> ExitCode) -> ExitCode {
    let args = match Args::from_env() {
        Ok(args) => args,
        Err(e) => return fail(2, e),
    };
    if args.list {
        return main_child(Session { args, sink: Sink::None, marker: None, instance: None });
    }
    match Session::inherited(&args) {
        Ok(Some(session)) => main_child(session),
        Ok(None) => supervise(&args).map_or_else(|e| fail(2, e), ExitCode::from),
        Err(e) => fail(2, e),
    }
}

fn supervise(args: &Args) -> io::Result<u8> {
    // Before there is anything to clean up, so that no signal comes between.
    let ends = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|&signal| !is_ignored(signal));
    let mut signals = Signals::new(ends.chain([SIGCHLD]))?;
    let exe = std::env::current_exe()?;
    let places = match cfg!(target_os = "android") {
        true => places(|| home(&exe, is_usable), |name| env_path(name).is_some()),
        false => Vec::new(),
    };
    let temp_root = places.iter().find(|(name, _)| *name == TMPDIR).map(|(_, path)| path.clone());
    let temp = tempfile::Builder::new()
        .prefix("atrace-bench-")
        .tempdir_in(temp_root.unwrap_or_else(std::env::temp_dir))?;
    let prepared = Prepared::new(args, temp.path())?;
    // A store that outlives this run must not keep what a killed bench switched on.
    let is_shared = cfg!(target_os = "android") || std::env::var_os(PROPERTIES).is_some();
    let _switches = is_shared.then(Switches::note).flatten();

    let mut command = Command::new(exe);
    command.args(std::env::args_os().skip(1)).env(CHILD, std::process::id().to_string());
    if !args.test && !std::env::args_os().any(|arg| arg == "--bench") {
        // Criterion reads the command line too, and would only test.
        command.arg("--bench");
    }
    command.envs(places);
    command.env(SINK, prepared.sink.to_string()).env(MARKER, &prepared.marker).env_remove(BACKEND);
    if std::env::var_os(PROPERTIES).is_none() {
        command.env(PROPERTIES, temp.path().join("properties"));
    }
    let mut child = command.spawn()?;
    wait(&mut child, &mut signals)
    // The instance goes, then the directory.
}

/// The app patterns of a property store, to which it is brought back when this is dropped.
struct Switches {
    control: Control,
    before: Vec<String>,
}

impl Switches {
    /// None where there are no properties: then nobody can switch them either.
    fn note() -> Option<Self> {
        let control = Control::open().ok()?;
        Some(Self { before: control.patterns(), control })
    }
}

impl Drop for Switches {
    fn drop(&mut self) {
        for pattern in self.control.patterns() {
            if self.before.contains(&pattern) {
                continue;
            }
            match self.control.disable(&pattern) {
                Ok(switched) => switched.keep(),
                Err(e) => complain(format_args!("{pattern} is still switched on: {e}")),
            }
        }
    }
}

/// Returns where a bench on a device keeps its results: the first of two places that is `usable`.
fn home(exe: &Path, usable: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    let shell = Path::new(DEVICE_TEMP).join(PREFIX);
    let beside = exe.parent().map(|dir| dir.join(PREFIX));
    [Some(shell), beside].into_iter().flatten().find(|dir| usable(dir))
}

/// Whether `dir` can be made, if it is not there, and written to.
fn is_usable(dir: &Path) -> bool {
    std::fs::create_dir_all(dir).is_ok() && tempfile::tempfile_in(dir).is_ok()
}

/// Returns what a bench on a device finds in its environment beside what is set. Only if something is not,
/// `home` is asked.
fn places(
    home: impl FnOnce() -> Option<PathBuf>,
    is_set: impl Fn(&str) -> bool,
) -> Vec<(&'static str, PathBuf)> {
    let all = [("CRITERION_HOME", "criterion"), ("ATRACE_OVERHEAD_DIR", "overhead"), (TMPDIR, "")];
    let unset: Vec<_> = all.into_iter().filter(|(name, _)| !is_set(name)).collect();
    if unset.is_empty() {
        return Vec::new();
    }
    let home = home();
    unset.into_iter().filter_map(|(name, part)| Some((name, home.as_ref()?.join(part)))).collect()
}

/// Waits for the child, handing on what this process is asked, and returns the exit status.
fn wait(child: &mut Child, signals: &mut Signals) -> io::Result<u8> {
    let pid = Pid::from_child(child);
    let mut asked = 0;
    let mut first = None;
    for signal in signals.forever() {
        if signal == SIGCHLD {
            // Also sent when the child merely stops.
            if let Some(status) = child.try_wait()? {
                return Ok(first.map_or_else(|| code(status), by_signal));
            }
            continue;
        }
        first.get_or_insert(signal);
        asked += 1;
        let signal = match signal {
            _ if asked >= PATIENCE => Signal::KILL,
            SIGINT => Signal::INT,
            SIGHUP => Signal::HUP,
            _ => Signal::TERM,
        };
        // It may be gone: then its SIGCHLD is on its way.
        let _ = kill_process(pid, signal);
    }
    // Signals are never closed.
    child.wait().map(code)
}

fn code(status: ExitStatus) -> u8 {
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    code.or_else(|| status.signal().map(by_signal)).unwrap_or(1)
}

pub(crate) fn by_signal(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}

/// Whether whoever started this process wants it to ignore `signal`, as `nohup` does.
pub(crate) fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask =
        status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    mask.unwrap_or(0) >> (signal - 1) & 1 == 1
}

/// The sink, which goes when this is dropped.
struct Prepared {
    sink: Sink,
    marker: PathBuf,
    instance: Option<Instance>,
    /// The ring buffer was off, and is to be so again.
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
    fn new(args: &Args, temp: &Path) -> io::Result<Self> {
        let asked = std::env::var_os(SINK).map(|name| sink_of(&name)).transpose()?;
        let mut why = format!("{SINK} asks for it");
        if asked.is_none_or(|sink| sink == Sink::Tracefs) {
            match instance() {
                Ok(instance) => {
                    say(format_args!("sink: tracefs, {}", instance.path().display()));
                    let marker = instance.marker_path();
                    let state =
                        std::fs::read_to_string(instance.path().join("tracing_on")).unwrap_or_default();
                    let was_off = state.trim() == "0";
                    if was_off {
                        instance.set_tracing_on(true)?;
                    }
                    return Ok(Self { sink: Sink::Tracefs, marker, instance: Some(instance), was_off });
                }
                Err(e) if asked.is_some() => return Err(e),
                Err(e) => why = format!("{e}; the real one: {}", real(args)),
            }
        }
        // Unless it is a test, a file would grow by gigabytes.
        let sink = asked.unwrap_or(if args.test { Sink::File } else { Sink::Null });
        let marker = match sink {
            Sink::File => temp.join("marker"),
            _ => PathBuf::from("/dev/null"),
        };
        if sink == Sink::File {
            std::fs::write(&marker, "")?;
        }
        say(format_args!("sink: {sink}, not the kernel's trace_marker ({why})"));
        Ok(Self { sink, marker, instance: None, was_off: false })
    }
}

/// Whether the C++ side writes through a library of the device's, which knows no other marker than the kernel's own.
const LIBCUTILS_IS_THE_DEVICES: bool = cfg!(all(target_os = "android", not(target_feature = "crt-static")));

/// Whether others write to the ring buffer, too: that at the top of tracefs.
fn is_shared(instance: &Instance) -> bool {
    MOUNTS.iter().any(|mount| instance.path() == Path::new(mount))
}

/// Whether a message is of the process `id`, which each says in its second part.
fn is_of(message: &[u8], id: u32) -> bool {
    let part = message.split(|&byte| byte == b'|').nth(1).unwrap_or_default();
    str::from_utf8(part).is_ok_and(|part| part.parse() == Ok(id))
}

/// The ring buffer that a device's libcutils writes to, if it may be written to and read.
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

/// Makes an instance, after removing those that killed runs have left; or takes what the device's libcutils writes to.
fn instance() -> io::Result<Instance> {
    if LIBCUTILS_IS_THE_DEVICES {
        return everyones();
    }
    // Whatever can't be swept is in nobody's way.
    let _ = tracefs::sweep(PREFIX);
    Instance::create(PREFIX)
}

/// The command that runs this bench on the real marker.
fn real(args: &Args) -> String {
    let exe = std::env::current_exe().unwrap_or_default();
    let mount = tracefs::root().is_err_and(|e| e.kind() == io::ErrorKind::NotFound);
    let mount = if mount { "sudo mount -t tracefs nodev /sys/kernel/tracing; " } else { "" };
    format!("{mount}sudo {}{}", exe.display(), if args.test { "" } else { " --bench" })
}

fn sink_of(name: &OsStr) -> io::Result<Sink> {
    match name.to_str() {
        Some("tracefs") => Ok(Sink::Tracefs),
        Some("file") => Ok(Sink::File),
        Some("null") => Ok(Sink::Null),
        _ => {
            let name = OsString::from(name);
            Err(io::Error::other(format!("{SINK}={} is none of tracefs, file, null", name.display())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses() {
        assert_eq!(code(ExitStatus::from_raw(0)), 0);
        assert_eq!(code(ExitStatus::from_raw(101 << 8)), 101);
        assert_eq!(code(ExitStatus::from_raw(9)), 137);
        assert_eq!(by_signal(SIGINT), 130);
    }

    #[test]
    fn ignored_signals_are_known() {
        // Rust programs ignore this one.
        assert!(is_ignored(signal_hook::consts::SIGPIPE));
        assert!(!is_ignored(signal_hook::consts::SIGUSR2));
    }

    #[test]
    fn a_device_keeps_results_where_it_can() {
        let exe = Path::new("/x/deps/bench");
        let (shell, beside) = (Path::new("/data/local/tmp/atrace-bench"), Path::new("/x/deps/atrace-bench"));
        assert_eq!(home(exe, |_| true).as_deref(), Some(shell));
        assert_eq!(home(exe, |dir| dir != shell).as_deref(), Some(beside));
        assert_eq!(home(exe, |_| false), None);

        let temp = tempfile::tempdir().unwrap();
        let new = temp.path().join("a/b");
        assert!(is_usable(&new) && is_usable(&new));
        std::fs::write(temp.path().join("file"), "").unwrap();
        assert!(!is_usable(&temp.path().join("file/b")));
    }

    #[test]
    fn what_is_set_stays() {
        let names = |set: &'static [&str]| {
            let all = places(|| Some("/h".into()), |name| set.contains(&name));
            all.into_iter().map(|(name, path)| format!("{name}={}", path.display())).collect::<Vec<_>>()
        };
        let all = ["CRITERION_HOME=/h/criterion", "ATRACE_OVERHEAD_DIR=/h/overhead", "TMPDIR=/h/"];
        assert_eq!(names(&[]), all);
        assert_eq!(names(&["CRITERION_HOME", "TMPDIR"]), all[1..2]);
        // Nothing is made on a device for those who need nothing.
        assert!(places(|| panic!("asked"), |_| true).is_empty());
        assert!(places(|| None, |_| false).is_empty());
    }

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
            assert_eq!(sink_of(OsStr::new(&sink.to_string())).unwrap(), sink);
        }
        let e = sink_of(OsStr::new("pipe")).unwrap_err();
        assert_eq!(e.to_string(), "ATRACE_BENCH_SINK=pipe is none of tracefs, file, null");
    }
}
