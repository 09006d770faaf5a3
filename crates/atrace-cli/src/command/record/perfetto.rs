//! `atrace record` with Perfetto: as a consumer of the system's service or, if no such service runs, as the service
//! itself.

use std::fmt::Display;
use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::net::UnixListener;
use std::os::unix::prelude::*;
use std::path::{Path, PathBuf};

use crate::consumer::{Consumer, State, Wanted};
use crate::escape::shown;
use crate::service::{Service, Storage, Terms};
use crate::tracefs;
use atrace_perfetto::socket::{self, Refused, Socket, Trust};
use atrace_sys::fork::{Generation, generation};
use atrace_sys::properties::{self, Properties};
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::losses::Losses;
use super::{RecordArgs, silence, wait};
use crate::command::buffer;
use crate::command::caller::Caller;
use crate::command::file::{Existing, Output};
use crate::command::notes::{self, Note};
use crate::command::program::Signals;
use crate::command::run;
use crate::command::stores::{self, Content, Store};
use crate::command::terminal::{Failure, Result, failed, say, shown_path, thousands};
use crate::process;

/// The default size of the service's buffer in KB.
const BUFFER: u64 = 65536;
/// The kernel's event for a write to its marker. Perfetto's service records ATrace's messages as this event.
const MARKER: &str = "ftrace/print";
/// Whether this command has to switch tracing on in the programs that use ATrace. Perfetto's `traced_probes` switches
/// tracing on in programs on Android only.
const SWITCHES: bool = cfg!(not(target_os = "android"));

fn output(args: &RecordArgs, caller: Option<&Caller>) -> Result<Output> {
    let path = args.output.as_deref().unwrap_or("recording.pftrace".as_ref());
    Output::create(path, Existing::rule(args.force, args.output.is_some()), caller, true)
}

/// Lets the system's service record. If the service ends the recording early, the data that it has written until
/// then is saved.
pub(super) fn by_system(args: &RecordArgs, mut consumer: Consumer) -> Result {
    let asked = "asking Perfetto's service (--kernel records without it)";
    // This call makes programs that found no service when they started look for a service again. An error is ignored:
    // if this user's store can't be used, no program waits for the property in it.
    let _ = try_announce();
    let state = consumer.state().map_err(failed(asked))?;
    let mut events = events(args, &state)?;
    let (patterns, stores) = by_atrace(args, &state)?;
    let is_on = stores.iter().any(|store| store.content != Content::default());
    if is_on || !patterns.is_empty() || !events.is_empty() {
        events.push(MARKER.to_owned());
    }
    let wanted = Wanted {
        buffer_kib: args.buffer.unwrap_or(BUFFER),
        producers: args.apps.clone(),
        atrace_apps: if SWITCHES { Vec::new() } else { patterns.clone() },
        events,
    };
    let caller = Caller::behind_sudo()?;
    let output = output(args, caller.as_ref())?;
    let file = output.file()?;
    let is_noted = SWITCHES && !patterns.is_empty();
    let mut note = is_noted.then(|| Note::write(output.named(), caller.as_ref())).transpose()?;
    let signals = Signals::catch(None)?;
    consumer.start(&wanted, &file).map_err(failed(asked))?;
    if let Some(note) = &mut note {
        note.switch_on(|_| patterns.clone(), &stores)?;
    }
    let waited = wait(args.time, &signals, || match consumer.ended() {
        Some(why) => Err(ended(why)),
        None => Ok(format!("{} KB", thousands(file.metadata()?.len() >> 10))),
    });
    if let Some(note) = &mut note {
        note.switch_off();
    }
    let stopped = consumer.stop().map_err(ended);
    let done = waited.and(stopped);
    if done.is_err() && file.metadata().is_ok_and(|data| data.len() == 0) {
        return done;
    }
    match Losses::read(&file) {
        Ok(losses) => losses.lines().into_iter().for_each(say),
        Err(e) => say(format_args!("reading which events were lost: {e}")),
    }
    let path = output.finish()?;
    say(format_args!("saved {}: open it at https://ui.perfetto.dev", shown_path(&path)));
    done
}

fn ended(why: impl Display) -> Failure {
    Failure::new(format!("the service ended the recording: {why}; later events are lost"))
}

/// Returns the patterns that match no producer's name, and the property stores to which these patterns must be added.
/// Until the programs that match such a pattern connect to the service, they can trace only by ATrace. If the service
/// can't record events of the kernel, it can't record ATrace's messages either. The function then prints a line about
/// each of these patterns, and returns no patterns and no stores.
fn by_atrace(args: &RecordArgs, state: &State) -> Result<(Vec<String>, Vec<Store>)> {
    let is_there = |pattern: &String| {
        state.producers.iter().any(|(name, _)| process::matches(pattern.as_bytes(), name.as_bytes()))
    };
    let patterns: Vec<_> = args.apps.iter().filter(|pattern| !is_there(pattern)).cloned().collect();
    if !has_kernel(state) {
        for pattern in &patterns {
            say(format_args!("no producer of Perfetto's service is called {} yet", shown(pattern)));
        }
        return Ok((Vec::new(), Vec::new()));
    }
    let running = process::matching(&patterns);
    notes::sweep();
    Ok((patterns, stores::all(running.iter().filter_map(|process| process.uid()))?))
}

fn has_kernel(state: &State) -> bool {
    state.sources.iter().any(|source| source == "linux.ftrace")
}

/// Returns the kernel events that the user asked for.
fn events(args: &RecordArgs, state: &State) -> Result<Vec<String>> {
    if !args.categories.is_empty() && !has_kernel(state) {
        return Err(Failure::new(
            "Perfetto's service can't record events of the kernel, because its traced_probes does not run: start it, or record without \
             the service by --kernel, as root",
        ));
    }
    buffer::events(tracefs::root().ok().as_deref(), &args.categories)
}

/// The socket of a service. Dropping the `Listening` removes the socket.
pub(super) struct Listening {
    path: PathBuf,
    /// The socket file itself. While the file is open, its inode number is not reused, so the number
    /// identifies the file.
    own: OwnedFd,
    by: Generation,
}

impl Listening {
    /// Listens at the path at which programs look for a service. Returns an error if a service already listens at that
    /// path. `refused` is the reason why such a service can't be asked to record; the error's text contains it.
    pub(super) fn start(refused: &io::Error) -> Result<(Self, UnixListener)> {
        let path = PathBuf::from(socket::producers(socket::named_producers().as_deref()).0);
        let listen = || -> io::Result<_> {
            let listener = UnixListener::bind(&path)?;
            fs::set_permissions(&path, Permissions::from_mode(0o600))?;
            Ok((open_place(&path)?, listener))
        };
        let bound = listen().or_else(|e: io::Error| {
            let left = if e.kind() == ErrorKind::AddrInUse { open_place(&path).ok() } else { None };
            // If the socket refuses a connection, its service was killed. A file that is not a socket refuses
            // connections, too, so the type of the file is checked first.
            let is_left = |left: &OwnedFd| {
                fstat(left).is_ok_and(|left| FileType::from_raw_mode(left.st_mode) == FileType::Socket)
                    && Socket::connect(path.as_os_str(), Trust::Any)
                        .is_err_and(|e| e == Refused::Errno(Errno::CONNREFUSED.raw_os_error()))
            };
            let left = left.filter(is_left).ok_or(e)?;
            remove(&path, &left);
            listen()
        });
        let advice =
            "as root, `atrace record --kernel` needs no service; `atrace run -- CMD` none of the system's";
        let (own, listener) = bound.map_err(|e| {
            let why = match e.kind() {
                ErrorKind::AddrInUse => {
                    format!("{e}; the service there does not let this user record: {refused}")
                }
                _ => e.to_string(),
            };
            Failure::new(format!("listening at {}: {why}\natrace: {advice}", shown_path(&path)))
        })?;
        Ok((Self { path, own, by: generation() }, listener))
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        if self.by == generation() {
            remove(&self.path, &self.own);
        }
    }
}

/// Opens the file at a path, without following a link, so that the file can be identified.
fn open_place(path: &Path) -> io::Result<OwnedFd> {
    Ok(open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?)
}

/// Removes the file at a path, if it is still the file `this`.
fn remove(path: &Path, this: &OwnedFd) {
    let identity = |fd: &OwnedFd| fstat(fd).map(|data| (data.st_dev, data.st_ino)).ok();
    if open_place(path).is_ok_and(|there| identity(&there) == identity(this)) {
        let _ = fs::remove_file(path);
    }
}

/// Sets the property that tells waiting programs that a service has started (`atrace/src/attach.rs`). The value of the
/// property is the id of this process, which is only information for users.
fn try_announce() -> std::result::Result<(), properties::Error> {
    Properties::open()?.set("debug.atrace.service", atrace_sys::process::id().text())
}

/// Announces to the running programs of this user that a service listens now. Prints a line if that fails.
pub(super) fn announce() {
    if let Err(e) = try_announce() {
        say(format_args!(
            "announcing a service: {e}: programs that run and have called perfetto::connect may need 30 s to connect, \
             others must be started again"
        ));
    }
}

/// Makes this command the service, which records the programs of this user.
pub(super) fn by_this(args: &RecordArgs, refused: &io::Error) -> Result {
    let output = output(args, Caller::behind_sudo()?.as_ref())?;
    let signals = Signals::catch(None)?;
    let (listening, listener) = Listening::start(refused)?;
    let keep = Storage::File { file: output.file()?, max: None };
    let terms = Terms { patterns: &args.apps, ..Terms::default() };
    let service = Service::start_for(listener, geteuid().as_raw(), &terms, keep);
    let service = service.map_err(failed("starting a service"))?;
    say(format_args!(
        "no Perfetto service runs here: this command acts as one, at {}",
        shown_path(&listening.path)
    ));
    announce();
    let waited = wait(args.time, &signals, || Ok(format!("{} events", thousands(service.events()))));
    let found = if service.events() == 0 { silence::look(&args.apps, &listening.path) } else { None };
    drop(listening);
    let report = service.finish();
    let why = silence::why(&report.counts, found);
    run::finish(output, report, Ok(()), why)?;
    waited
}
