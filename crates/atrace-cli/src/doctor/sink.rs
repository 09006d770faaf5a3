//! Checks where the events of a process go, and whether an event arrives in the ring buffer behind a marker.
//!
//! The test writes an instant to the marker and compares the kernel's statistics of the ring buffer before and after.
//! Only root can read the statistics; for other users, the test only checks that the write succeeds.

use std::fs;
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use atrace_sys::marker::MOUNT_COMMAND;
use atrace_sys::probe::open_marker;
use rustix::process::geteuid;

use super::Patient;
use super::facts::Published;
use super::report::{Report, Topic};
use crate::escape::shown;
use crate::process::Process;
use crate::tracefs::{self, Instance};

impl Patient {
    /// Reports where the events of the process go. Returns this target if it is a ring buffer of the kernel or a file,
    /// and if the process can still write to the target.
    pub(super) fn sink(&self, published: &Published, report: &mut Report) -> Option<Written> {
        let kind = published.get("sink").unwrap_or("None");
        let place = published.get("place").unwrap_or_default();
        match kind {
            "None" => {
                self.nowhere(published.get("reason").unwrap_or("no event was written yet"), report);
                return None;
            }
            "Cutils" | "Ndk" => {
                let path = published.get("library").filter(|path| !path.is_empty());
                let library = if kind == "Ndk" { "libandroid" } else { "libcutils" };
                report.good(Topic::Backend, format!("events go to {library}"));
                report.good(Topic::Library, format!("found: {}", path.unwrap_or("a library without a name")));
                let lacks = published.all("lacks").collect::<Vec<_>>().join(", ");
                if !lacks.is_empty() && published.get("marker").is_some() {
                    let text = format!("it lacks {lacks}: those events are written to the marker");
                    report.note(Topic::Library, text);
                } else if !lacks.is_empty() {
                    let text = format!(
                        "it lacks {lacks}, or their arguments are unknown, and there is no marker: those events are dropped"
                    );
                    let mend = "a libcutils of this Android (ro.build.version.sdk), or the right to write to trace_marker";
                    report.bad(Topic::Library, text, mend);
                }
                // The library does not publish where it writes. The marker examined below is used for the functions
                // that the library lacks.
            }
            "File" => {
                report.note(Topic::Backend, format!("events go to the file {place}, not to the kernel"))
            }
            "Device" => {
                let text = format!("events go to the device {place}, which stores none");
                report.bad(Topic::Backend, text, "start it without ATRACE_MARKER");
            }
            _ => report.good(Topic::Backend, "events go to the kernel's marker"),
        }
        let (fd, identity) = published.marker()?;
        if !self.descriptor(fd, place, report) {
            return None;
        }
        match kind {
            "File" => return Some(Written::File),
            "Device" => return None,
            _ => {}
        }
        let Some(buffer) = Buffer::find(identity, self.pid, fd) else {
            if tracefs::root().is_err() {
                let text = format!("tracefs is not mounted here, so the buffer of {place} can't be examined");
                report.bad(Topic::Mount, text, MOUNT_COMMAND);
                return None;
            }
            let text = format!("it writes to {place}, which is not a marker of the kernel's tracing");
            report.bad(Topic::Marker, text, "start it without ATRACE_MARKER");
            return None;
        };
        buffer.report(report);
        Some(Written::Buffer(buffer))
    }

    /// Reports why the events of the process go nowhere.
    fn nowhere(&self, reason: &str, report: &mut Report) {
        let again = "start the program again";
        let value = |name| self.facts.get(name).unwrap_or_default();
        let backend = value("ATRACE_BACKEND");
        if reason.starts_with("ATRACE_BACKEND") {
            let text = format!("events go nowhere: {reason}");
            report.bad(Topic::Backend, text, "start it without ATRACE_BACKEND");
        } else if backend.starts_with(b"cutils") || backend.starts_with(b"ndk") {
            let text = format!("ATRACE_BACKEND={}, and the library can't be used: {reason}", shown(backend));
            let mend =
                "name one that is there, as cutils:/path/libcutils.so; or start it without ATRACE_BACKEND";
            report.bad(Topic::Library, text, mend);
        } else if let Some(reason) = reason.strip_prefix("ATRACE_MARKER: ") {
            let is_of_instance = String::from_utf8_lossy(value("ATRACE_MARKER")).contains("/instances/");
            let (topic, text) = if is_of_instance && !self.facts.is("has_marker") {
                (Topic::Buffer, "the ring buffer that ATRACE_MARKER names is gone")
            } else {
                (Topic::Marker, "ATRACE_MARKER can't be used")
            };
            let mend = "start it without ATRACE_MARKER, or with one that is there";
            report.bad(topic, format!("{text}: {reason}"), mend);
        } else if tracefs::root().is_err_and(|e| e.kind() == ErrorKind::NotFound) {
            let mend = format!("{MOUNT_COMMAND}; then {again}");
            report.bad(Topic::Mount, format!("tracefs is not mounted: {reason}"), mend);
        } else if reason.contains(MOUNT_COMMAND) {
            let text = format!("tracefs is not mounted where it runs, as in a chroot or container: {reason}");
            let mend = "record it with `atrace run -- PROGRAM`, or mount tracefs there and start it again";
            report.bad(Topic::Mount, text, mend);
        } else if reason.contains("propert") {
            report.bad(Topic::Properties, format!("the property store can't be used: {reason}"), again);
        } else {
            let mend = "record it with `atrace run -- PROGRAM`, or run it as root";
            report.bad(Topic::Marker, format!("the marker can't be written to: {reason}"), mend);
        }
    }

    /// Reports where the events of a process that does not publish its state will go. On Android, all processes write
    /// to one marker, unless an environment variable names another target. So on Android this function returns the
    /// buffer of this marker, if the calling process can see the marker. Then `event` tries to write a test event.
    pub(super) fn unknown_sink(&self, report: &mut Report) -> Option<Written> {
        match tracefs::root() {
            Ok(_) => report.good(Topic::Mount, "tracefs is mounted"),
            Err(e) if e.kind() == ErrorKind::NotFound => {
                report.bad(Topic::Mount, e.to_string(), MOUNT_COMMAND);
            }
            Err(_) => {}
        }
        for name in ["ATRACE_BACKEND", "ATRACE_MARKER"] {
            if let Some(value) = self.facts.get(name) {
                report.note(Topic::Backend, format!("it was started with {name}={}", shown(value)));
            }
        }
        if !cfg!(target_os = "android") {
            return None;
        }
        // Android has one ring buffer with one marker, to which all processes write.
        let buffer = Buffer::at(tracefs::root().ok()?)?;
        buffer.report(report);
        Some(Written::Buffer(buffer))
    }

    /// Reports a descriptor of the process that no longer refers to the marker. Returns true if the descriptor refers
    /// to the marker, or if the descriptor is closed and the path of the marker still leads to the marker.
    fn descriptor(&self, fd: u32, place: &str, report: &mut Report) -> bool {
        if self.facts.is("is_it") {
            return true;
        }
        let link = self.facts.get("link");
        let text = match link {
            Some(link) => format!("descriptor {fd} is not the marker any more, but {}", shown(link)),
            None => format!("the program closed descriptor {fd}, its marker"),
        };
        if self.facts.is("is_place") && link.is_none() {
            report.note(Topic::Descriptor, format!("{text}; the next event opens {place} again"));
            return true;
        }
        if place.starts_with("/sys") && !self.facts.is("has_place") {
            report.bad(Topic::Buffer, format!("{text}, and {place} is gone"), "start the program again");
        } else {
            let text = match self.facts.is("is_place") {
                true => text,
                false => format!("{text}, and {place} is not the marker either"),
            };
            let mend = "start it again, and have it close its own descriptors only";
            report.bad(Topic::Descriptor, text, mend);
        }
        false
    }
}

/// The target to which the events of the examined process are written.
pub(super) enum Written {
    Buffer(Buffer),
    /// A file instead of a ring buffer.
    File,
}

/// A ring buffer of the kernel.
pub(super) struct Buffer {
    /// The directory of the buffer, or `None` if the calling process can't access it.
    directory: Option<PathBuf>,
    /// The path by which the calling process can open the marker: the marker's path in tracefs, or the path of the
    /// examined process's descriptor.
    marker: PathBuf,
    identity: (u64, u64),
}

impl Buffer {
    /// Returns the ring buffer in a directory of tracefs, or `None` if the directory has no marker.
    fn at(directory: PathBuf) -> Option<Self> {
        let marker = directory.join("trace_marker");
        let data = fs::symlink_metadata(&marker).ok()?;
        Some(Self { directory: Some(directory), marker, identity: (data.dev(), data.ino()) })
    }

    /// Finds the ring buffer whose marker has this device and inode. The process `pid` has the marker open as `fd`.
    fn find(identity: (u64, u64), pid: u32, fd: u32) -> Option<Self> {
        let root = match tracefs::root() {
            Ok(root) => root,
            // An ordinary user can't read tracefs, so the marker is opened by the descriptor of the examined process,
            // which belongs to the same user. `open_marker` checks that the file is on tracefs. Root does not use the
            // descriptor, because root could write to files to which the user of the process may not write.
            Err(_) if !geteuid().is_root() => {
                return Some(Self {
                    directory: None,
                    marker: Process(pid).path(&format!("fd/{fd}")),
                    identity,
                });
            }
            Err(_) => return None,
        };
        let instances = fs::read_dir(root.join("instances")).into_iter().flatten().flatten();
        let all = std::iter::once(root).chain(instances.map(|entry| entry.path()));
        all.filter_map(Self::at).find(|buffer| buffer.identity == identity)
    }

    /// Reports whether the buffer records events, and whether it takes messages to the marker.
    pub(super) fn report(&self, report: &mut Report) {
        let Some(directory) = &self.directory else {
            report.good(Topic::Marker, "open: a marker of the kernel's");
            return report.note(Topic::TracingOn, "only root can see whether the ring buffer records");
        };
        report.good(Topic::Marker, format!("open: {}", self.marker.display()));
        let shown = directory.display();
        for (topic, switch) in [(Topic::TracingOn, "tracing_on"), (Topic::Markers, "options/markers")] {
            match fs::read_to_string(directory.join(switch)) {
                Ok(text) if text.trim() == "0" => {
                    let what = if topic == Topic::Markers { "takes no markers" } else { "records nothing" };
                    let text = format!("the ring buffer {what}: {shown}/{switch} is 0");
                    report.bad(topic, text, format!("echo 1 > {shown}/{switch}"));
                }
                Ok(_) => report.good(topic, format!("{shown}/{switch} is 1")),
                Err(e) => report.note(topic, format!("{shown}/{switch}: {e}")),
            }
        }
    }

    /// Writes an event from the calling process, and checks whether the event arrived. Returns a text with the result.
    fn probe(&self) -> io::Result<&'static str> {
        let mut marker = open_marker(&self.marker, self.identity, self.directory.is_none())?;
        let text = format!("I|{}|atrace doctor", std::process::id());
        let counted = || {
            let directory = self.directory.as_ref().ok_or(io::ErrorKind::PermissionDenied)?;
            Instance::attach(directory).and_then(|instance| instance.stats()).map(|stats| stats.written())
        };
        let before = counted();
        marker.write_all(text.as_bytes())?;
        match (before, counted()) {
            (Ok(before), Ok(after)) if after > before => Ok("an event written now arrived"),
            (Ok(_), Ok(_)) => Err(io::Error::other("it was written, and is not in the buffer")),
            _ => Ok("an event written now was taken by the kernel (only root can look whether it is there)"),
        }
    }
}

impl Patient {
    /// Reports whether an event arrives. The test is skipped if an earlier check has already failed.
    pub(super) fn event(&self, is_known: bool, written: Option<Written>, report: &mut Report) {
        let wrong: Vec<_> = report.wrong().map(|it| it.topic.name()).collect();
        if !wrong.is_empty() {
            let text = format!("an event written now would not arrive: {}", wrong.join(", "));
            return report.bad(Topic::Event, text, "repair the faults above, and run `atrace doctor` again");
        }
        match written {
            Some(Written::Buffer(buffer)) => match buffer.probe() {
                Ok(text) if !is_known => {
                    let text = format!("{text}, where the process writes if nothing redirects it");
                    report.good(Topic::Event, text);
                }
                Ok(text) => report.good(Topic::Event, text),
                Err(e) => {
                    report.bad(Topic::Event, format!("no test event could be written: {e}"), "ask as root")
                }
            },
            Some(Written::File) => report.good(Topic::Event, "an event written now arrives in the file"),
            None if is_known => report.good(Topic::Event, "an event written now is handed to the library"),
            None if cfg!(target_os = "android") => report
                .note(Topic::Event, "no check found a fault; only root can see whether an event arrives"),
            None => {
                let text = "whether an event written now arrives is not known";
                report.bad(
                    Topic::Event,
                    text,
                    "run `atrace doctor` again when the process publishes its state",
                );
            }
        }
    }
}
