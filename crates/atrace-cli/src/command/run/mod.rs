//! `atrace run`: records one program and its children. Tracing is switched on in no other process.
//!
//! There are three ways of recording:
//!
//! - By default, this command acts as a tracing service for the program and its children (`service`). This needs no
//!   special rights.
//! - With `--categories`, which needs root's rights, the command also adds events of the kernel to the service's trace
//!   (`kernel`).
//! - With `--kernel`, or if the kernel's events can't be in the service's trace, the command records with a separate
//!   ring buffer of the kernel, as text. The program and its children inherit the open marker of this buffer, and their
//!   environment names a property store that enables all tags for all programs. The messages that they write to the
//!   kernel's top-level marker, as C and C++ programs do, are copied to a second buffer (Linux 6.16).

mod kernel;
mod service;

pub(crate) use self::service::finish;

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use rustix::process::geteuid;
use tracing_subscriber::filter::Targets;

use crate::command::buffer::{self, Copies, Names, Tally};
use crate::command::caller::Caller;
use crate::command::file::{Existing, Output};
use crate::command::notes::Note;
use crate::command::program::{
    FAILED, ProgramStore, Signals, Tree, Witness, code, start, wait, wait_for_rest,
};
use crate::command::terminal::{Failure, Result, say, shown_path};
use crate::escape::shown;
use crate::tracefs;

#[derive(clap::Args, Debug)]
pub(crate) struct RunArgs {
    /// The file to save [default: the program's name with .pftrace, or with .ftrace for the kernel's buffer; with a
    /// number if the file exists]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replace the file if it exists
    #[arg(short, long)]
    force: bool,
    /// End the recording, but not the program, when the file has this size, such as 500M or 2G
    #[arg(long, value_name = "SIZE", value_parser = size, conflicts_with = "ring")]
    max_size: Option<u64>,
    /// Keep the last events in memory: they are saved when the program ends, and each time that this command
    /// gets SIGUSR1
    #[arg(long)]
    ring: bool,
    /// Make the program's threads wait for room, at most a second at a time, before they lose an event (not with -c or
    /// --kernel)
    #[arg(short, long, conflicts_with_all = ["kernel", "categories"])]
    wait: bool,
    /// The size that --ring keeps, in KB [default: 65536]; with the kernel's buffer, its size for each CPU [default:
    /// 16384, less if there are more than 16 CPUs or memory is small]
    #[arg(short, long, value_name = "KB", value_parser = clap::value_parser!(u64).range(1..))]
    buffer: Option<u64>,
    /// Record with a ring buffer of the kernel, as root: from Linux 6.16 on, includes what C and C++ programs write to
    /// trace_marker. A process that closes all its descriptors loses its later events: this is noticed only if it then
    /// runs for at least half a second, on a busy machine longer
    #[arg(long, conflicts_with_all = ["ring", "max_size"])]
    kernel: bool,
    /// Also record these events of the kernel, as root: sched, freq, idle, irq, disk, …, or its own groups;
    /// separated by commas
    #[arg(short, long, value_name = "CATEGORIES", value_delimiter = ',', conflicts_with = "ring")]
    categories: Vec<String>,
    /// Record only those spans and events of `tracing` that match, such as info,sqlx=off or my_crate::db=trace (targets
    /// and levels); the program must use atrace-subscriber
    #[arg(long, value_name = "DIRECTIVES", value_parser = directives)]
    filter: Option<String>,
    /// Run the program as root, even if another user called sudo
    #[arg(long)]
    root: bool,
    /// The program and its arguments; put `--` before them if the program's name begins with a
    /// hyphen
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Records the program. The exit status is [`FAILED`] if this command itself fails.
pub(crate) fn main(args: &RunArgs) -> Result<u8> {
    let done = is_kernels(args)
        .and_then(|is_kernels| if is_kernels { record_by_kernel(args) } else { service::record(args) });
    done.map_err(|e| if e.status == 1 { e.with_status(FAILED) } else { e })
}

/// Returns whether all events are recorded with the kernel's buffer, as text. This is so if the user has given
/// `--kernel`, or if the user has given `--categories` and this kernel lacks the clock of the service's trace.
fn is_kernels(args: &RunArgs) -> Result<bool> {
    Ok(args.kernel || !args.categories.is_empty() && !buffer::has_clock()?)
}

/// The names of the signals, in the order of their numbers, beginning with number 1.
const SIGNALS: &str = "HUP INT QUIT ILL TRAP ABRT BUS FPE KILL USR1 SEGV USR2 PIPE ALRM TERM STKFLT CHLD CONT STOP TSTP TTIN TTOU \
                       URG XCPU XFSZ VTALRM PROF WINCH IO PWR SYS";

/// Reports the signal that killed the program, if there was one.
fn tell_end(status: ExitStatus) {
    let Some(number) = status.signal() else { return };
    let place = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
    match place.and_then(|place| SIGNALS.split(' ').nth(place)) {
        Some(name) => say(format_args!("the program was killed by SIG{name}")),
        None => say(format_args!("the program was killed by signal {number}")),
    }
}

/// Parses a size such as `500M`.
fn size(text: &str) -> std::result::Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit {
        "" => 0,
        "K" | "k" => 10,
        "M" | "m" => 20,
        "G" | "g" => 30,
        _ => return Err(format!("{unit:?} is none of K, M, G")),
    };
    let number = number.parse::<u64>().map_err(|_| format!("{number:?} is no number"))?;
    let size = number.checked_mul(1 << shift).ok_or("that is too much")?;
    if size < 4096 { Err("the size must be at least 4096 bytes".to_owned()) } else { Ok(size) }
}

/// Checks the filter and returns its text. The program parses this text again.
fn directives(text: &str) -> std::result::Result<String, String> {
    match text.parse::<Targets>() {
        Ok(_) => Ok(text.to_owned()),
        Err(e) => Err(format!("{e}: write targets and levels, such as info,sqlx=off")),
    }
}

impl RunArgs {
    /// Adds to `variables` the environment variable that passes the filter to the program. Without the option
    /// `--filter`, adds nothing, so the program inherits this command's value of the variable.
    fn with_filter<'a>(
        &'a self,
        variables: &[(&'a str, Option<&'a Path>)],
    ) -> Vec<(&'a str, Option<&'a Path>)> {
        let filter = self.filter.as_deref().map(|filter| ("ATRACE_FILTER", Some(Path::new(filter))));
        variables.iter().copied().chain(filter).collect()
    }

    /// Returns a text which says that the program's filter may be the reason why the program wrote no event. Returns
    /// `None` if the program has no filter.
    fn about_filter(&self) -> Option<String> {
        let filter = self.filter.clone().map(OsString::from).or_else(|| std::env::var_os("ATRACE_FILTER"))?;
        let text = format!("the filter {} may exclude all of its events", shown(filter.as_encoded_bytes()));
        Some(text).filter(|_| !filter.is_empty())
    }
}

/// Returns the path of the output file for the case that the user gives none: the program's name with this extension,
/// in the current directory.
fn default_name(command: &[OsString], extension: &str) -> PathBuf {
    let program = command.first().map(Path::new);
    let mut name = program.and_then(Path::file_name).unwrap_or("trace".as_ref()).to_owned();
    name.push(extension);
    name.into()
}

/// The expected number of processes of a program. If there are more processes, the text in the file may have to be
/// moved to make room for their names.
const PROCESSES: usize = 100;

fn record_by_kernel(args: &RunArgs) -> Result<u8> {
    if cfg!(target_os = "android") {
        return Err(Failure::new(
            "on Android, all programs write to one buffer of the device: use `atrace record`",
        ));
    }
    if args.max_size.is_some() {
        say("with the buffer of this old kernel, --max-size limits nothing");
    }
    let caller = Caller::behind_sudo()?;
    let signals = Signals::catch(None)?;
    buffer::sweep()?;
    let events = buffer::events(Some(&tracefs::root()?), &args.categories)?;
    let instance = buffer::make(buffer::PREFIX, args.buffer)?;
    let mut copies = Copies::make(args.buffer)?;
    let path = args.output.clone().unwrap_or_else(|| default_name(&args.command, ".ftrace"));
    let existing = Existing::rule(args.force, args.output.is_some());
    let output = Output::create(&path, existing, caller.as_ref(), false)?;
    let _note = Note::write(&path, caller.as_ref());
    let user = if args.root { None } else { caller.as_ref() };
    let store = ProgramStore::make(user)?;
    let names = Names::make()?;

    let witness = Witness::start(&signals)?;
    let (marker, properties) = (instance.marker_path(), store.path());
    let uid = user.map_or_else(|| geteuid().as_raw(), |user| user.uid);
    let mut tree = Tree::new(marker.clone(), properties, uid);
    buffer::enable(&instance, &events)?;
    let stage = [("--marker", Some(&*marker)), ("--names", names.directory())];
    let variables = args.with_filter(&[("ATRACE_PROPERTIES", Some(properties)), ("ATRACE_BACKEND", None)]);
    copies.iter_mut().try_for_each(Copies::start)?;
    let mut child = start(&args.command, user, &signals, &stage, &variables)?;
    let pid = child.id();
    let (mut tally, mut counted) = (Tally::default(), Ok(()));
    let mut look = || {
        if counted.is_ok() {
            counted = tally.look(&instance);
        }
        tree.look(&names.living(pid), tally.written() == 0);
        copies.iter_mut().for_each(Copies::look);
        true
    };
    // From here on, the recording is saved even if an error occurs.
    let waited = wait(&mut child, &signals, witness, |_| _ = look()).and_then(|(status, is_asked)| {
        tell_end(status);
        if !is_asked {
            wait_for_rest(uid, ("ATRACE_PROPERTIES", properties), Vec::new, &signals, |_| look())?;
        }
        Ok(status)
    });
    // First, tracing is switched off in the property store, so that processes that still run stop writing. Then the
    // buffer is switched off.
    store.switch_off();
    let stopped = copies.iter_mut().try_for_each(Copies::stop);
    let stopped = stopped.and(instance.set_tracing_on(false).map_err(Failure::from));
    counted = counted.and_then(|()| tally.look(&instance));
    let processes = names.read();
    let is_its = |process| processes.has(process);
    let copied = copies.as_ref().map(|copies| buffer::copied(copies.instance(), &is_its)).transpose();
    let name = |process| processes.name(process);
    let saved = copied.and_then(|copied| buffer::save_from(&instance, copied, output, PROCESSES, name));
    if let Some(copies) = &copies {
        copies.report(&processes);
    }
    let copied = copies.map(Copies::into_instance);
    let path = match saved {
        Ok((path, messages)) => {
            tally.add_copied(messages);
            path
        }
        Err(e) => return Err(buffer::keep_all(e, [instance].into_iter().chain(copied))),
    };
    let has_copies = copied.is_some();
    let mut problems = if tally.written() == 0 { tree.silence() } else { tree.lost().into_iter().collect() };
    if tally.written() == 0 && !has_copies {
        let text = "events that a program writes directly to the top-level trace_marker are recorded since Linux 6.16; before that, use atrace record";
        problems.push(text.to_owned());
    }
    if tally.written() == 0 {
        problems.extend(args.about_filter());
    }
    let is_whole = problems.is_empty() && stopped.is_ok() && counted.is_ok();
    say(if is_whole { tally.report("events") } else { tally.report_of_some("events") });
    problems.iter().for_each(say);
    say(format_args!("saved {}: open it at https://ui.perfetto.dev", shown_path(&path)));
    buffer::remove(instance)?;
    copied.map_or(Ok(()), buffer::remove)?;
    let status = waited?;
    stopped.and(counted)?;
    Ok(code(status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        for (text, bytes) in [("4096", 4096), ("4K", 4096), ("500M", 500 << 20), ("2g", 2 << 30)] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "M", "-1", "1", "1.5G", "5T", "99999999999999999999", "99999999999999G"] {
            assert!(size(text).is_err(), "{text}");
        }
    }
}
