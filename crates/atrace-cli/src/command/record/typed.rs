//! `atrace record -c` as root, on a machine on which Perfetto's service does not run: records the events of the kernel
//! and of the programs in one trace.
//!
//! This command acts as the service to which root's programs connect, and adds the kernel's events to the trace as
//! packets. Messages that programs write to the kernel's top-level marker are among these events (Linux 6.16). So for
//! programs that do not connect, such as programs of other users, the command switches tracing by ATrace on. Then their
//! events are in the trace, too, with arguments as text.

use std::io;
use std::time::{Duration, Instant};

use rustix::process::geteuid;

use super::perfetto::{Listening, announce};
use super::{RecordArgs, wait};
use crate::command::buffer::{self, Silence, Stream};
use crate::command::caller::Caller;
use crate::command::file::{Existing, Output};
use crate::command::notes::{self, Note};
use crate::command::program::{ServiceSocket, Signals};
use crate::command::run;
use crate::command::stores::{self, Store};
use crate::command::terminal::{Failure, Result, failed, say, thousands};
use crate::process::{self, Process};
use crate::service::{Service, Storage, Terms};
use crate::tracefs;

/// The time that programs have to connect to the service. If a quarter of the recording's time is shorter, programs
/// have only that time. Afterwards, tracing by ATrace is switched on for programs that have not connected.
const PATIENCE: Duration = Duration::from_secs(2);

/// Returns whether this system supports this kind of recording. Android does not support it. The kernel must have the
/// clock `boot`, and must be able to copy the messages that are written to its top-level marker.
pub(super) fn is_possible() -> bool {
    !cfg!(target_os = "android")
        && buffer::has_clock().unwrap_or(false)
        && tracefs::root().is_ok_and(|root| tracefs::can_copy(&root))
}

pub(super) fn record(args: &RecordArgs, refused: &io::Error) -> Result {
    let caller = Caller::behind_sudo()?;
    notes::sweep();
    let matching = process::matching(&args.apps);
    if !args.apps.is_empty() && matching.is_empty() && !args.wait {
        let text = process::none_matches(&args.apps);
        return Err(Failure::new(format!("{text}\natrace: --wait records nevertheless")));
    }
    buffer::events(Some(&tracefs::root()?), &args.categories)?;
    let path = args.output.as_deref().unwrap_or("recording.pftrace".as_ref());
    let existing = Existing::rule(args.force, args.output.is_some());
    let output = Output::create(path, existing, caller.as_ref(), true)?;
    let signals = Signals::catch(None)?;
    buffer::sweep()?;
    let mut stream = Stream::make(&args.categories, args.buffer)?;
    // If another process, such as another recording, is the service already, the kernel's events are recorded
    // nevertheless.
    let (listening, _own, listener) = match Listening::start(refused) {
        Ok((listening, listener)) => (Some(listening), None, listener),
        Err(e) => {
            say(format_args!("programs are recorded as far as they trace by ATrace: {e}"));
            let (own, listener) = ServiceSocket::make(None)?;
            (None, Some(own), listener)
        }
    };
    let keep = Storage::File { file: output.file()?, max: None };
    let terms = Terms { patterns: &args.apps, ..Terms::default() };
    let service = Service::start_for(listener, geteuid().as_raw(), &terms, keep);
    let service = service.map_err(failed("starting a service"))?;
    if listening.is_some() {
        announce();
    }
    let mut note = None;
    let mut silence = Silence::start(tracefs::root()?)?;
    stream.instance().set_option(tracefs::COPY, true)?;
    service.add(buffer::names());

    let start = Instant::now();
    let mut patience = Some(args.time.map_or(PATIENCE, |time| PATIENCE.min(time / 4)));
    let waited = wait(args.time, &signals, || {
        service.add(stream.take()?);
        Silence::look(&mut silence);
        if patience.take_if(|patience| start.elapsed() >= *patience).is_some() {
            note = switch_on(args, &service.connected(), path, caller.as_ref()).unwrap_or_else(|e| {
                say(e);
                None
            });
        }
        Ok(format!("{} events, {} of the kernel", thousands(service.events()), thousands(stream.written())))
    });
    // From here on, the recording is saved even if an error occurs. Copying is switched off first, before the buffer:
    // while a buffer that gets copies is off, writes to the top-level marker fail.
    let stopped = stream.instance().set_option(tracefs::COPY, false).map_err(Failure::from);
    drop((silence, note, listening));
    let ended = stream.end(|packets| service.add(packets));
    let report = service.finish();
    let is_whole = report.ended.is_none() && waited.is_ok() && ended.is_ok();
    let removed = stream.finish(is_whole).map(say);
    run::finish(output, report, Ok(()), None)?;
    waited.and(stopped).and(ended).and(removed)
}

/// Switches on tracing by ATrace for programs of other users, because they can't connect to the service. Also switches
/// it on for each pattern that matches running programs of this user, if none of them has connected.
fn switch_on(
    args: &RecordArgs,
    connected: &[u32],
    path: &std::path::Path,
    owner: Option<&Caller>,
) -> Result<Option<Note>> {
    let own = Some(geteuid().as_raw());
    let (mut own_apart, mut others) = (Vec::new(), Vec::new());
    for pattern in &args.apps {
        let running = process::matching(std::slice::from_ref(pattern));
        let (of_own, of_others): (Vec<Process>, Vec<Process>) =
            running.into_iter().partition(|process| process.uid() == own);
        if !of_own.is_empty() && !of_own.iter().any(|process| connected.contains(&process.0)) {
            own_apart.push(pattern.clone());
        }
        if !of_others.is_empty() {
            others.push(pattern.clone());
        }
    }
    if own_apart.is_empty() && others.is_empty() {
        return Ok(None);
    }
    let patterns = |store: &Store| match store.uid {
        uid if uid == own => own_apart.clone(),
        Some(_) => others.clone(),
        None => {
            args.apps.iter().filter(|it| own_apart.contains(it) || others.contains(it)).cloned().collect()
        }
    };
    let mut note = Note::write(path, owner)?;
    let running = process::matching(&args.apps);
    note.switch_on(patterns, &stores::all(running.iter().filter_map(|process| process.uid()))?)?;
    Ok(Some(note))
}
