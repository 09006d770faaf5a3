//! Tests whether an event arrives in the ring buffer behind a marker.
//!
//! The test writes an instant to the marker and compares the kernel's statistics of the ring buffer before and after.
//! Only root can read the statistics; for other users the write alone counts.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use atrace_sys::probe::open_marker;

use super::Patient;
use super::report::{Report, Topic};
use crate::process::Process;
use crate::tracefs::{self, Instance};

const MARKER: &str = "trace_marker";

/// The target of the events.
pub(super) enum Written {
    Buffer(Buffer),
    /// A file that exists.
    File,
}

/// A ring buffer of the kernel.
pub(super) struct Buffer {
    /// The buffer's directory in this process's file system; `None` if this process may not look there.
    directory: Option<PathBuf>,
    /// The path to open the marker with: in this process's file system, or the descriptor of another process of the
    /// same user.
    marker: PathBuf,
    identity: (u64, u64),
}

impl Buffer {
    /// Returns the top-level ring buffer.
    pub(super) fn top() -> Option<Self> {
        let directory = tracefs::root().ok()?;
        let marker = directory.join(MARKER);
        let data = fs::symlink_metadata(&marker).ok()?;
        Some(Self { directory: Some(directory), marker, identity: (data.dev(), data.ino()) })
    }

    /// Finds the ring buffer whose marker has this device and inode. The process `pid` has the marker open as `fd`.
    pub(super) fn find(identity: (u64, u64), pid: u32, fd: u32) -> Option<Self> {
        let is_it = |directory: &PathBuf| {
            fs::symlink_metadata(directory.join(MARKER))
                .is_ok_and(|data| (data.dev(), data.ino()) == identity)
        };
        match tracefs::root() {
            Ok(root) => {
                let instances = fs::read_dir(root.join("instances")).into_iter().flatten().flatten();
                let all = std::iter::once(root).chain(instances.map(|entry| entry.path()));
                let directory = all.into_iter().find(is_it)?;
                Some(Self { marker: directory.join(MARKER), directory: Some(directory), identity })
            }
            // This process may not read tracefs, so the other process's descriptor is used. `open_marker` checks that
            // it is on tracefs.
            Err(_) => {
                let marker = Process(pid).path(&format!("fd/{fd}"));
                Some(Self { directory: None, marker, identity })
            }
        }
    }

    fn open(&self) -> io::Result<File> {
        open_marker(&self.marker, self.identity, self.directory.is_none())
    }

    /// Reports the buffer's switches.
    pub(super) fn report(&self, report: &mut Report) {
        let Some(directory) = &self.directory else {
            report.good(Topic::Marker, "open: a marker of the kernel's");
            return report.note(Topic::TracingOn, "whether the ring buffer records is for root to see");
        };
        report.good(Topic::Marker, format!("open: {}", self.marker.display()));
        let shown = directory.display();
        for (topic, switch) in [(Topic::TracingOn, "tracing_on"), (Topic::Markers, "options/markers")] {
            match fs::read_to_string(directory.join(switch)) {
                Ok(text) if text.trim() == "0" => {
                    let what = if topic == Topic::Markers { "takes no markers" } else { "records nothing" };
                    report.bad(
                        topic,
                        format!("the ring buffer {what}: {shown}/{switch} is 0"),
                        format!("echo 1 > {shown}/{switch}"),
                    );
                }
                Ok(_) => report.good(topic, format!("{shown}/{switch} is 1")),
                Err(e) => report.note(topic, format!("{shown}/{switch}: {e}")),
            }
        }
    }

    /// Writes an event of this process and checks whether it arrived.
    fn probe(&self) -> io::Result<&'static str> {
        let mut marker = self.open()?;
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
            return report.bad(Topic::Event, text, "repair that, and ask again");
        }
        match written {
            Some(Written::Buffer(buffer)) => match buffer.probe() {
                Ok(text) if !is_known => {
                    report.good(
                        Topic::Event,
                        format!("{text}, where the process writes if nothing redirects it"),
                    );
                }
                Ok(text) => report.good(Topic::Event, text),
                Err(e) => {
                    report.bad(Topic::Event, format!("an event could not be tried: {e}"), "ask as root")
                }
            },
            Some(Written::File) => report.good(Topic::Event, "an event written now arrives in the file"),
            None if is_known => report.good(Topic::Event, "an event written now is handed to the library"),
            None if cfg!(target_os = "android") => report.note(
                Topic::Event,
                "nothing that can be seen keeps an event from arriving; whether it does is for root to see",
            ),
            None => report.bad(
                Topic::Event,
                "whether an event written now arrives is not known",
                "ask again when it says its state",
            ),
        }
    }
}
