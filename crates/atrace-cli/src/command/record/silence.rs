//! Explains in one line why no event of the requested programs was recorded. The line is about one process of these
//! programs.

use std::path::Path;

use rustix::process::geteuid;

use crate::command::stores;
use crate::command::terminal::shown_path;
use crate::doctor;
use crate::escape::shown;
use crate::process::{self, Process};
use crate::service::Counts;

/// Returns the reason why no event was recorded, or `None` if events were recorded or lost. `found` is the result of
/// [`look`], and takes precedence over the reasons that follow from `counts`.
pub(super) fn why(counts: &Counts, found: Option<String>) -> Option<String> {
    let text = match counts {
        Counts { events: 0, lost: 0, producers: 0, .. } => {
            "no program of this user connected: none that uses this library or Perfetto's SDK runs and looks here"
        }
        Counts { events: 0, lost: 0, .. } => "the programs that connected wrote no event",
        _ => return None,
    };
    Some(found.unwrap_or_else(|| text.to_owned()))
}

/// Looks for the reason why no event of the requested programs has arrived so far. Call this while the programs are
/// still connected. Returns `None` if no programs were requested. `socket` is the path at which this command listens.
pub(super) fn look(patterns: &[String], socket: &Path) -> Option<String> {
    if patterns.is_empty() {
        return None;
    }
    let found = process::matching(patterns);
    let Some(first) = found.first() else { return Some(process::none_matches(patterns)) };
    // Prefers a process of this user, because processes of other users can't be recorded by this command anyway.
    let process = found.iter().find(|process| process.uid() == Some(geteuid().as_raw())).unwrap_or(first);
    Some(format!("{process} {}", reason(*process, socket)))
}

fn reason(process: Process, socket: &Path) -> String {
    let own = geteuid().as_raw();
    if let Some(uid) = process.uid().filter(|uid| *uid != own) {
        return format!("belongs to user {uid}: record as that user");
    }
    if process.is_elevated() {
        return "has elevated rights, so it does not connect to a user's recording".to_owned();
    }
    let set = |name: &str| Some((name.to_owned(), process.variable(name).filter(|value| !value.is_empty())?));
    let directed = [set("ATRACE_BACKEND"), set("ATRACE_MARKER")].into_iter().flatten();
    if let Some((name, value)) = directed.into_iter().find(|(_, value)| value != "perfetto") {
        let value = shown(value.as_encoded_bytes());
        return format!(
            "was started with {name}={value}, so its events go there, and it does not look for recordings"
        );
    }
    let (_, named) = set("PERFETTO_PRODUCER_SOCK_NAME").unzip();
    if let Some(other) = named.filter(|other| other != socket.as_os_str()) {
        let other = shown(other.as_encoded_bytes());
        return format!(
            "looks for a service at {other}, as PERFETTO_PRODUCER_SOCK_NAME says, and this one is at {}",
            shown_path(socket)
        );
    }
    let publishes =
        process.descriptors().is_ok_and(|mut all| all.any(|(_, target)| doctor::is_state(&target)));
    match doctor::connection_states(&[process.0], stores::left).known.get(&process.0) {
        Some(said) if said.contains(": connected") => match set("ATRACE_FILTER") {
            Some((_, filter)) => {
                let filter = shown(filter.as_encoded_bytes());
                format!(
                    "is connected and wrote no event: its filter {filter} (ATRACE_FILTER) may exclude them"
                )
            }
            None => "is connected and wrote no event".to_owned(),
        },
        Some(said) => format!("looks for a recording and did not connect: {}", shown(said)),
        None if publishes => {
            "uses this library, but does not look for recordings: it has called neither atrace_init nor \
                              perfetto::connect, and has no subscriber of this library's that looks for them \
                              (without_attach() turns this off)"
                .to_owned()
        }
        None => "does not use this library, as far as can be seen".to_owned(),
    }
}
