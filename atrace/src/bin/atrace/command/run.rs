//! `atrace run`: one program, traced into a ring buffer of its own.
//!
//! The program finds the buffer's marker open, and a property store in which everything is on, through its
//! environment. So do its children, whatever they call themselves; no other process is reached.

use std::ffi::OsString;
use std::fs::DirBuilder;
use std::io::Read as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt as _, lchown};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use atrace::shown::shown;
use atrace::tracefs::Instance;
use atrace_sys::errand::User;
use atrace_sys::fork::{Generation, generation};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::signal::kill;
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::{Pid, geteuid, getpgid, getpgrp};

use crate::command::buffer::names::Names;
use crate::command::buffer::ring::{self, Tally};
use crate::command::caller::Caller;
use crate::command::file::output::Output;
use crate::command::processes::Process;
use crate::command::program::signals::Signals;
use crate::command::program::tree::{Tree, patience};
use crate::command::program::witness::Witness;
use crate::command::stores::errands::{Work, perform_one, remove};
use crate::command::terminal::{Failure, Result, failed, place, say};

/// The exit status where this command itself fails, as other commands that start one have it.
const FAILED: u8 = 125;

/// How often the buffer is looked at, so that the advice knows how large the lost events were.
const LOOK: Duration = Duration::from_millis(250);

/// How many processes a program has as a rule: more are named, too, but the recording is copied once more.
const PROCESSES: usize = 100;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The file to save [default: the program's name, then .ftrace]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replace the file if it exists
    #[arg(short, long)]
    force: bool,
    /// The size of the ring buffer for each CPU, in KB [default: 16384, less where memory is small]
    #[arg(short, long, value_name = "KB", value_parser = clap::value_parser!(u64).range(1..))]
    buffer: Option<u64>,
    /// Run the program as root, although sudo was called by somebody else
    #[arg(long)]
    root: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD")]
    command: Vec<OsString>,
}

pub(crate) fn main(args: &Args) -> Result<u8> {
    record(args).map_err(|e| if e.status == 1 { e.with_status(FAILED) } else { e })
}

fn record(args: &Args) -> Result<u8> {
    if cfg!(target_os = "android") {
        return Err(Failure::new(
            "the programs of Android write to the device's one buffer: use `atrace record`",
        ));
    }
    let caller = Caller::behind_sudo()?;
    let signals = Signals::hold()?;
    let instance = ring::make(args.buffer)?;
    let path = args.output.clone().unwrap_or_else(|| default_name(&args.command));
    let output = Output::create(&path, args.force, caller.as_ref())?;
    let store = Store::make(caller.as_ref())?;
    let names = Names::make()?;
    let program = if args.root { None } else { caller.as_ref() };
    let uid = program.map_or_else(|| geteuid().as_raw(), |user| user.uid);

    let witness = Witness::start(&signals)?;
    let mut tree = Tree::new(instance.marker_path(), &store.path(), uid);
    let mut child = start(args, &signals, &instance, &names, &store, program)?;
    let mut tally = Tally::default();
    let status = wait(&mut child, &signals, witness, || {
        tally.look(&instance)?;
        tree.look(&names.living(), tally.written() == 0);
        Ok(())
    })?;

    // Its children may go on: they find tracing off, then the marker too.
    store.close();
    instance.set_tracing_on(false)?;
    tally.look(&instance)?;
    let names = names.read();
    let (path, instance) = ring::save(instance, output, PROCESSES, |process| names.get(&process).cloned())?;
    match tree.lost() {
        _ if tally.written() == 0 => {
            say(tally.report_of_some("events"));
            tree.silence().iter().for_each(say);
        }
        Some(lost) => {
            say(tally.report_of_some("events"));
            say(lost);
        }
        None => say(tally.report("events")),
    }
    say(format_args!("saved {}: open it at https://ui.perfetto.dev", place(&path)));
    ring::remove(instance)?;
    Ok(code(status))
}

/// The name of the program, in the current directory.
fn default_name(command: &[OsString]) -> PathBuf {
    let program = command.first().map(Path::new);
    let mut name = program.and_then(Path::file_name).unwrap_or("trace".as_ref()).to_owned();
    name.push(".ftrace");
    name.into()
}

fn start(
    args: &Args,
    signals: &Signals,
    instance: &Instance,
    names: &Names,
    store: &Store,
    user: Option<&Caller>,
) -> Result<Child> {
    let this = std::env::current_exe().map_err(failed("finding this command itself"))?;
    let (mut errors, report) = std::io::pipe()?;
    fcntl(&report, FcntlArg::F_SETFD(FdFlag::empty())).map_err(failed("sharing a pipe"))?;
    let list = |numbers: Vec<String>| numbers.join(",");
    let mut command = Command::new(this);
    command.arg("__become").arg("--report").arg(report.as_raw_fd().to_string());
    command.arg("--marker").arg(instance.marker_path());
    if let Some(names) = names.place() {
        command.arg("--names").arg(names);
    }
    let held = list(signals.held().map(|number| number.to_string()).collect());
    if !held.is_empty() {
        command.arg("--unblock").arg(held);
    }
    if let Some(user) = user {
        command.arg("--uid").arg(user.uid.to_string()).arg("--gid").arg(user.gid.to_string());
        command.arg("--groups").arg(list(user.groups.iter().map(u32::to_string).collect()));
        for name in ["SUDO_UID", "SUDO_GID", "SUDO_USER", "SUDO_COMMAND", "PKEXEC_UID"] {
            command.env_remove(name);
        }
        if let Some((name, home)) = &user.known {
            command.env("USER", name).env("LOGNAME", name).env("HOME", home);
        }
    }
    command.env("ATRACE_PROPERTIES", store.path()).env_remove("ATRACE_BACKEND");
    let child = command.arg("--").args(&args.command).spawn().map_err(failed("starting the program"))?;
    drop(report);
    let mut told = String::new();
    let _ = errors.read_to_string(&mut told);
    match told.split_once(' ') {
        None => Ok(child),
        Some((status, text)) => {
            let mut child = child;
            let _ = child.wait();
            Err(Failure::new(text).with_status(status.parse().unwrap_or(FAILED)))
        }
    }
}

/// Waits for the program, hands on what this process is asked, and has `look` called from time to time.
fn wait(
    child: &mut Child,
    signals: &Signals,
    mut witness: Option<Witness>,
    mut look: impl FnMut() -> Result<()>,
) -> Result<ExitStatus> {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX));
    let (ended, end) = std::io::pipe()?;
    std::thread::spawn(move || {
        // Leaves it to be waited for, so that its number stays its own until then.
        while waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT)
            == Err(nix::errno::Errno::EINTR)
        {}
        drop(end);
    });
    for looks in 0.. {
        let (came, is_over) = signals.wait(Some(&ended), patience(looks, LOOK))?;
        if let Some(came) = came {
            let is_groups = witness.as_mut().is_some_and(|witness| witness.saw(came.signal));
            // What the terminal sends is for those who are in its job; what a process sends to a group reaches the
            // program if it has not left that.
            if came.from_process && !(is_groups && getpgid(Some(pid)) == Ok(getpgrp())) {
                let _ = kill(pid, came.signal);
            }
        }
        if is_over {
            break;
        }
        if let Some(witness) = &mut witness {
            witness.look();
        }
        look()?;
    }
    child.wait().map_err(failed("waiting for the program"))
}

/// The exit status as a shell tells it: 128 and the number of the signal that ended the program.
fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(FAILED)
}

/// A property store for the program alone, with everything on. Where the program is another user's, so is the store,
/// and this process never opens it.
struct Store {
    directory: PathBuf,
    user: Option<User>,
    by: Generation,
}

/// What the directory of such a store begins with; the number of the process that made it follows.
const STORE: &str = "/dev/shm/atrace-run-";

impl Store {
    fn make(user: Option<&Caller>) -> Result<Self> {
        sweep_stores();
        let directory = PathBuf::from(format!("{STORE}{}", std::process::id()));
        let problem = |e: &dyn std::fmt::Display| {
            let (path, e) = (place(&directory), e.to_string());
            Failure::new(format!("making a property store for the program, {path}: {}", shown(&e)))
        };
        DirBuilder::new().mode(0o700).create(&directory).map_err(|e| problem(&e))?;
        let user = user.map(|user| User { uid: user.uid, gid: user.gid });
        let store = Self { directory: directory.clone(), user, by: generation() };
        if let Some(user) = user {
            // Empty, and just made: nobody else could put another one there.
            lchown(&directory, Some(user.uid), Some(user.gid)).map_err(|e| problem(&e))?;
        }
        perform_one(user, &store.path(), Work::All(true)).map_err(|e| problem(&e))?;
        Ok(store)
    }

    fn path(&self) -> PathBuf {
        self.directory.join("properties")
    }

    /// Switches everything off again, for what children of the program are still there.
    fn close(self) {
        if let Err(e) = perform_one(self.user, &self.path(), Work::All(false)) {
            say(format_args!("switching off what is left of the program: {}", shown(&e)));
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if self.by == generation() {
            remove(&self.directory);
        }
    }
}

/// Removes the stores of recordings that were killed.
fn sweep_stores() {
    let Some((directory, prefix)) = STORE.rsplit_once('/') else { return };
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(prefix)?.parse().ok());
        if pid.is_some_and(|pid| pid == std::process::id() || !Process(pid).exists()) {
            remove(&entry.path());
        }
    }
}
