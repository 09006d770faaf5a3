//! `atrace record` by Perfetto: as a consumer of the system's service, or, without one, as the service at its place.

use std::collections::HashSet;
use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

use atrace::perfetto::consumer::{Consumer, State, Wanted};
use atrace::perfetto::service::{Keep, Service};
use atrace_sys::fork::{Generation, generation};
use atrace_sys::perfetto::socket;
use atrace_sys::process::matches;
use rustix::process::geteuid;

use super::{RecordArgs, wait};
use crate::command::buffer;
use crate::command::caller::Caller;
use crate::command::file::Output;
use crate::command::program::Signals;
use crate::command::run::tell;
use crate::command::terminal::{Failure, Result, failed, say, shown_path, thousands};

/// The size of the service's buffer, in KB.
const BUFFER: u64 = 65536;

fn output(args: &RecordArgs) -> Result<Output> {
    let path = args.output.clone().unwrap_or_else(|| "recording.pftrace".into());
    Output::create_live(&path, args.force, Caller::behind_sudo()?.as_ref())
}

/// Has the system's service record.
pub(super) fn by_system(args: &RecordArgs, mut consumer: Consumer) -> Result<()> {
    let asked = "asking Perfetto's service (--kernel records without it)";
    let state = consumer.state().map_err(failed(asked))?;
    let wanted = wanted(args, &state)?;
    let output = output(args)?;
    let file = output.file()?;
    let signals = Signals::catch()?;
    consumer.start(&wanted, &file).map_err(failed(asked))?;
    let size = || Ok(format!("{} KB", thousands(file.metadata()?.len() >> 10)));
    let waited = wait(args.time, &signals, size);
    consumer.stop().map_err(failed("ending the recording of Perfetto's service"))?;
    waited?;
    let path = output.finish_live()?;
    say(format_args!("saved {}: open it at https://ui.perfetto.dev", shown_path(&path)));
    Ok(())
}

/// What is asked of the service: what comes by Perfetto is not wanted by ATrace as well.
fn wanted(args: &RecordArgs, state: &State) -> Result<Wanted> {
    let names: HashSet<_> = state.producers.iter().map(|(name, _)| name.as_str()).collect();
    let is_there = |pattern: &String| {
        let pattern = std::ffi::CString::new(pattern.as_str()).unwrap_or_default();
        let name = |name: &&str| std::ffi::CString::new(*name).is_ok_and(|name| matches(&pattern, &name));
        names.iter().any(name)
    };
    let has_kernel = state.sources.iter().any(|source| source == "linux.ftrace");
    if !args.categories.is_empty() && !has_kernel {
        return Err(Failure::new(
            "Perfetto's service has no events of the kernel, as its traced_probes does not run: start it, or record without \
             the service by --kernel, as root",
        ));
    }
    let atrace_apps = args.apps.iter().filter(|pattern| has_kernel && !is_there(pattern)).cloned().collect();
    for pattern in args.apps.iter().filter(|pattern| !has_kernel && !is_there(pattern)) {
        say(format_args!(
            "no producer of Perfetto's service is called {} yet",
            atrace::shown::shown(pattern)
        ));
    }
    Ok(Wanted {
        buffer_kib: args.buffer.unwrap_or(BUFFER),
        producers: args.apps.clone(),
        atrace_apps,
        events: buffer::events_of(&args.categories),
    })
}

/// The socket of a service, which goes with this.
struct Listening {
    path: PathBuf,
    by: Generation,
}

impl Listening {
    /// Listens where programs look for a service, if nobody does.
    fn start() -> Result<(Self, UnixListener)> {
        let path = PathBuf::from(socket::producers().0);
        let listen = || {
            let listener = UnixListener::bind(&path)?;
            fs::set_permissions(&path, Permissions::from_mode(0o600))?;
            Ok(listener)
        };
        let bound = listen().or_else(|e: std::io::Error| {
            let is_left = e.kind() == ErrorKind::AddrInUse
                && UnixStream::connect(&path).is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused);
            if !is_left {
                return Err(e);
            }
            fs::remove_file(&path)?; // Of one that was killed.
            listen()
        });
        let advice =
            "as root, `atrace record --kernel` needs no service; `atrace run -- CMD` none of the system's";
        let listener = bound.map_err(|e| {
            Failure::new(format!("listening at {}: {e}\natrace: {advice}", shown_path(&path)))
        })?;
        Ok((Self { path, by: generation() }, listener))
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        if self.by == generation() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Is the service, for programs of this user.
pub(super) fn by_this(args: &RecordArgs) -> Result<()> {
    let output = output(args)?;
    let signals = Signals::catch()?;
    let (listening, listener) = Listening::start()?;
    let keep = Keep::File { file: output.file()?, max: None };
    let service = Service::start_for(listener, geteuid().as_raw(), &args.apps, keep);
    let service = service.map_err(failed("starting a service"))?;
    say(format_args!(
        "no service of Perfetto's runs here: this is one, at {}; programs that look for one connect within 30 s",
        shown_path(&listening.path)
    ));
    let waited = wait(args.time, &signals, || Ok(format!("{} events", thousands(service.events()))));
    drop(listening);
    let report = service.finish();
    waited?;
    tell(&report);
    let path = output.finish_live()?;
    say(format_args!("saved {}: open it at https://ui.perfetto.dev", shown_path(&path)));
    Ok(())
}
