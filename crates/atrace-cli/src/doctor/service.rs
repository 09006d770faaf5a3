//! Checks the connection to Perfetto's service. A connection needs no special rights: a program connects to the
//! system's service, to the service of `atrace run` or to the service of `atrace record`.

use atrace_sys::memory::has_memory_files;
use atrace_sys::properties::pattern_for;
use rustix::fs::{Access, access};

use super::Patient;
use super::facts::Published;
use super::properties::in_quotes;
use super::report::{Report, Topic};

/// The beginning of the text that a process publishes as its reason for having no sink, if it writes events only to
/// Perfetto's service.
const PERFETTO_ALONE: &str = "ATRACE_BACKEND=perfetto";

/// The command that records any program.
const RUN: &str = "atrace run -- CMD";

/// Returns whether `atrace run` can record, which needs the Perfetto backend and a directory for the socket.
pub(super) fn can_run() -> bool {
    cfg!(feature = "perfetto")
        && has_memory_files()
        && (cfg!(target_os = "android") || access("/dev/shm", Access::WRITE_OK | Access::EXEC_OK).is_ok())
}

impl Patient {
    /// Reports on the connection to Perfetto's service. Returns true if ATrace need not be checked, because a session
    /// records the process, or because the process can't be recorded in another way.
    pub(super) fn by_service(&self, published: Option<&Published>, report: &mut Report) -> bool {
        if self.is_new && can_run() {
            report.good(Topic::Service, format!("`{RUN}` records a program by Perfetto, without any rights"));
        }
        let Some(published) = published else {
            let is_alone = self.facts.get("ATRACE_BACKEND") == Some(b"perfetto");
            if is_alone {
                let text = "it writes for sessions of Perfetto's service alone; whether one wants its events can't be seen";
                report.note(Topic::Event, text);
            } else {
                let text = "whether it looks for Perfetto's service can't be seen; a program that is started anew does:";
                report.hint(Topic::Service, text, RUN);
            }
            return is_alone;
        };
        let reason = published.get("reason").unwrap_or_default();
        let is_alone = reason.starts_with(PERFETTO_ALONE);
        let state = published.get("perfetto");
        if published.sessions() > 0 {
            let state = state.unwrap_or_default();
            report.good(Topic::Service, format!("the process last reported: {state}"));
            let text = "an event written now, of a category that a session wants, is in its trace";
            report.good(Topic::Event, text);
            return true;
        }
        if self.is_new {
            if is_alone {
                report.note(Topic::Backend, reason.to_owned());
                report.note(
                    Topic::Event,
                    "whether a session wants its events is known only while the program runs",
                );
            }
            return is_alone;
        }
        // The connection exists, or the process will connect as soon as a service runs.
        let is_near = state.is_some_and(|state| {
            [": connected", ": can't connect to", ": the connection has ended"]
                .iter()
                .any(|it| state.contains(it))
        });
        let record = || {
            let name = self.name.as_deref().unwrap_or_default();
            format!("atrace record -a {}", in_quotes(&pattern_for(name)))
        };
        if let Some(state) = state {
            let text = format!("the process last reported: {state}");
            report.hint(Topic::Service, text, if is_near { record() } else { RUN.to_owned() });
        }
        let has_marker = published.get("sink").is_some_and(|sink| sink != "None");
        let is_refused = !reason.starts_with("ATRACE_") && !has_marker;
        if !(is_alone || is_near && is_refused) {
            return false;
        }
        report.note(Topic::Backend, format!("no event is written to ATrace: {reason}"));
        let text = "an event written now would not arrive: no session of Perfetto's service wants it";
        report.bad(Topic::Event, text, record());
        true
    }
}
