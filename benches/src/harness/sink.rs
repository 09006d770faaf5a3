//! The sink of a measuring process: a tracefs instance of its own, where the rights allow one.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use atrace_cli::tracefs::{self, Instance};

use super::args::Args;
use super::terminal::say;
use crate::row::Sink;

/// What the names of the tracefs instances begin with.
pub(super) const PREFIX: &str = "atrace-bench";

/// The kind of the child's sink; for the first process, which one to use.
pub(super) const SINK: &str = "ATRACE_BENCH_SINK";
pub(super) const MARKER: &str = "ATRACE_MARKER";

/// Where the kernel's own ring buffer may be, as libcutils looks for it.
const MOUNTS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// The sink, which goes when this is dropped.
pub(super) struct Prepared {
    pub(super) sink: Sink,
    pub(super) marker: PathBuf,
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
    pub(super) fn new(args: &Args, temp: &Path) -> io::Result<Self> {
        let asked = std::env::var_os(SINK).map(|name| of_name(&name)).transpose()?;
        let mut why = format!("{SINK} asks for it");
        if asked.is_none_or(|sink| sink == Sink::Tracefs) {
            match instance() {
                Ok(instance) => {
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
pub(super) const LIBCUTILS_IS_THE_DEVICES: bool =
    cfg!(all(target_os = "android", not(target_feature = "crt-static")));

/// Whether others write to the ring buffer, too: that at the top of tracefs.
pub(super) fn is_shared(instance: &Instance) -> bool {
    MOUNTS.iter().any(|mount| instance.path() == Path::new(mount))
}

/// Whether a message is of the process `id`, which each says in its second part.
pub(super) fn is_of(message: &[u8], id: u32) -> bool {
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

pub(super) fn of_name(name: &OsStr) -> io::Result<Sink> {
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
