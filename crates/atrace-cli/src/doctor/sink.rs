//! Checks where the events of a process go.

use std::io::ErrorKind;

use atrace_sys::marker::MOUNT_COMMAND;

use super::event::{Buffer, Written};
use super::published::Published;
use super::report::{Report, Topic};
use super::{Patient, event};
use crate::escape::shown;
use crate::tracefs;

/// The start of the reason that a process publishes if it writes to Perfetto's service only, and nothing by ATrace.
const PERFETTO_ALONE: &str = "ATRACE_BACKEND=perfetto";

impl Patient {
    /// Reports where the events go. Returns the target if a test event can be written to it.
    pub(super) fn sink(&self, published: &Published, report: &mut Report) -> Option<Written> {
        let kind = published.get("sink").unwrap_or("None");
        let place = published.get("place").unwrap_or_default();
        if let Some(standing) = published.get("perfetto") {
            report.note(Topic::Service, format!("as the process said last: {standing}"));
        }
        match kind {
            "None" => {
                self.nowhere(published.get("reason").unwrap_or("no event was written yet"), report);
                return None;
            }
            "Cutils" | "Ndk" => {
                let path = published
                    .get("library")
                    .filter(|path| !path.is_empty())
                    .unwrap_or("a library without a name");
                report.good(
                    Topic::Backend,
                    format!("events go to {}", if kind == "Ndk" { "libandroid" } else { "libcutils" }),
                );
                report.good(Topic::Library, format!("found: {path}"));
                let lacks = published.lacks.join(", ");
                if !lacks.is_empty() && published.get("marker").is_some() {
                    report.note(
                        Topic::Library,
                        format!("it lacks {lacks}: those events are written to the marker"),
                    );
                } else if !lacks.is_empty() {
                    report.bad(
                        Topic::Library,
                        format!("it lacks {lacks}, or nobody knows their arguments, and there is no marker: those events are dropped"),
                        "a libcutils of this Android (ro.build.version.sdk), or the right to write to trace_marker",
                    );
                }
                // The library does not tell where it writes. The marker examined below is used for the functions that
                // the library lacks.
            }
            "File" => {
                report.note(Topic::Backend, format!("events go to the file {place}, not to the kernel"))
            }
            "Device" => {
                report.bad(
                    Topic::Backend,
                    format!("events go to the device {place}, which keeps none"),
                    "start it without ATRACE_MARKER",
                );
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
            report.bad(
                Topic::Marker,
                format!("what it writes to, {place}, is no marker of the kernel's tracing"),
                "start it without ATRACE_MARKER",
            );
            return None;
        };
        buffer.report(report);
        Some(Written::Buffer(buffer))
    }

    /// Reports on a process that takes part in a session of Perfetto's service, or that writes to that service only.
    /// Properties do not matter for such a process. Returns whether it is one.
    pub(super) fn by_service(&self, published: Option<&Published>, report: &mut Report) -> bool {
        let Some(published) = published else {
            let is_alone = self.facts.backend.as_deref() == Some(b"perfetto");
            if is_alone {
                report.note(
                    Topic::Event,
                    "it writes for sessions of Perfetto's service alone; whether one wants its events can't be seen",
                );
            }
            return is_alone;
        };
        let is_alone = published.get("reason").is_some_and(|reason| reason.starts_with(PERFETTO_ALONE));
        if published.sessions() > 0 {
            report.good(
                Topic::Event,
                "an event written now, of a category that a session wants, is in its trace",
            );
        } else if is_alone && self.is_new {
            report.note(Topic::Event, "whether a session wants its events shows when it runs");
        } else if is_alone {
            report.bad(
                Topic::Event,
                "an event written now would not arrive: no session of Perfetto's service wants it",
                "atrace record -a PATTERN",
            );
        } else {
            return false;
        }
        true
    }

    /// Reports why events go nowhere.
    fn nowhere(&self, reason: &str, report: &mut Report) {
        let again = "start the program again";
        let backend = self.facts.backend.as_deref().unwrap_or_default();
        if reason.starts_with(PERFETTO_ALONE) {
            report.note(Topic::Backend, reason.to_owned());
        } else if reason.starts_with("ATRACE_BACKEND") {
            report.bad(
                Topic::Backend,
                format!("events go nowhere: {reason}"),
                "start it without ATRACE_BACKEND",
            );
        } else if backend.starts_with(b"cutils") || backend.starts_with(b"ndk") {
            report.bad(
                Topic::Library,
                format!("ATRACE_BACKEND={}, and the library can't be used: {reason}", shown(backend)),
                "name one that is there, as cutils:/path/libcutils.so; or start it without ATRACE_BACKEND",
            );
        } else if let Some(reason) = reason.strip_prefix("ATRACE_MARKER: ") {
            let named = self.facts.marker.as_deref().unwrap_or_default();
            let is_of_instance = String::from_utf8_lossy(named).contains("/instances/");
            let is_gone = is_of_instance && !self.facts.has_marker;
            let topic = if is_gone { Topic::Buffer } else { Topic::Marker };
            let text = if is_gone {
                "the ring buffer that ATRACE_MARKER names is gone"
            } else {
                "ATRACE_MARKER can't be used"
            };
            report.bad(
                topic,
                format!("{text}: {reason}"),
                "start it without ATRACE_MARKER, or with one that is there",
            );
        } else if tracefs::root().is_err_and(|e| e.kind() == ErrorKind::NotFound) {
            report.bad(
                Topic::Mount,
                format!("tracefs is not mounted: {reason}"),
                format!("{}; then {again}", MOUNT_COMMAND),
            );
        } else if reason.contains("propert") {
            report.bad(Topic::Properties, format!("the property store can't be used: {reason}"), again);
        } else {
            report.bad(
                Topic::Marker,
                format!("the marker can't be written to: {reason}"),
                "record it with `atrace run -- PROGRAM`, or run it as root",
            );
        }
    }

    /// Reports the target that the process will find, if it does not publish its state.
    pub(super) fn unknown_sink(&self, report: &mut Report) -> Option<Written> {
        match tracefs::root() {
            Ok(_) => report.good(Topic::Mount, "tracefs is mounted"),
            Err(e) if e.kind() == ErrorKind::NotFound => {
                report.bad(Topic::Mount, e.to_string(), MOUNT_COMMAND);
            }
            Err(_) => {}
        }
        let variables = [("ATRACE_BACKEND", &self.facts.backend), ("ATRACE_MARKER", &self.facts.marker)];
        for (name, value) in variables {
            if let Some(value) = value {
                report.note(Topic::Backend, format!("it was started with {name}={}", shown(value)));
            }
        }
        if !cfg!(target_os = "android") {
            return None;
        }
        // Android has one ring buffer with one marker, to which all processes write.
        let buffer = event::Buffer::top()?;
        buffer.report(report);
        Some(Written::Buffer(buffer))
    }

    /// Reports whether the descriptor still refers to the marker, or the marker's path still leads to it.
    fn descriptor(&self, fd: u32, place: &str, report: &mut Report) -> bool {
        let found = &self.facts.descriptor;
        if found.is_it {
            return true;
        }
        let text = match &found.link {
            Some(link) => format!("descriptor {fd} is not the marker any more, but {}", shown(link)),
            None => format!("the program closed descriptor {fd}, its marker"),
        };
        if found.is_place && found.link.is_none() {
            report.note(Topic::Descriptor, format!("{text}; the next event opens {place} again"));
            return true;
        }
        if place.starts_with("/sys") && !found.has_place {
            report.bad(Topic::Buffer, format!("{text}, and {place} is gone"), "start the program again");
            return false;
        }
        report.bad(
            Topic::Descriptor,
            format!("{text}, and {place} is not it either"),
            "start it again, and have it close its own descriptors only",
        );
        false
    }
}
