//! `atrace record` with the kernel's ring buffers: records the messages that programs write to the marker, and the
//! kernel's events.
//!
//! The programs write to the marker of the kernel's top-level buffer. Since Linux 6.16, an instance (a separate buffer)
//! can receive a copy of these messages. The command then records into an instance. If the top-level buffer is switched
//! off, the command makes the marker write to instances only. On older kernels, on Android, and with `--top`, the
//! command records into the top-level buffer, provided that no other process uses this buffer, and restores its
//! settings afterwards.

use crate::escape::shown;
use crate::tracefs::{self, Instance};

use super::{RecordArgs, wait};
use crate::command::buffer::{self, Silence, Tally, Top};
use crate::command::caller::Caller;
use crate::command::file::{Existing, Output};
use crate::command::notes::{self, Note};
use crate::command::program::Signals;
use crate::command::stores::{self, Content};
use crate::command::terminal::{Failure, Result, say, shown_path, thousands};
use crate::process::{self, Process};

/// The buffer into which the events are recorded: an instance, or the kernel's top-level buffer. Dropping the `Buffer`
/// restores the settings of the top-level buffer.
enum Buffer {
    Copy(Instance, Option<Silence>),
    Top(Top),
}

impl Buffer {
    fn make(args: &RecordArgs, is_top: bool, note: Option<&Note>) -> Result<Self> {
        buffer::sweep()?;
        if !is_top {
            let instance = buffer::make(buffer::PREFIX, args.buffer)?;
            return Ok(Self::Copy(instance, None));
        }
        let top = Top::take(args.discard, note)?;
        buffer::prepare(&top.instance, args.buffer)?;
        Ok(Self::Top(top))
    }

    fn instance(&self) -> &Instance {
        match self {
            Self::Copy(instance, _) => instance,
            Self::Top(top) => &top.instance,
        }
    }

    fn start(&mut self, note: Option<&Note>) -> Result {
        self.instance().clear()?;
        match self {
            Self::Copy(instance, silenced) => {
                // While the top-level buffer is off, a write to the marker fails, although the message was copied to
                // the instance. The `Silence` prevents this.
                *silenced = Silence::start(tracefs::root()?)?;
                Ok(instance.set_option(tracefs::COPY, true)?)
            }
            Self::Top(top) => top.start(note),
        }
    }

    fn look(&mut self) {
        if let Self::Copy(_, silenced) = self {
            Silence::look(silenced);
        }
    }

    fn stop(&mut self) -> Result {
        if let Self::Copy(instance, silenced) = self {
            instance.set_option(tracefs::COPY, false)?;
            *silenced = None;
        }
        Ok(self.instance().set_tracing_on(false)?)
    }
}

pub(super) fn record(args: &RecordArgs) -> Result {
    let caller = Caller::behind_sudo()?;
    let path = args.output.clone().unwrap_or_else(|| "recording.ftrace".into());
    let events = buffer::events(Some(&tracefs::root()?), &args.categories)?;
    notes::sweep();
    let matching = process::matching(&args.apps);
    if !args.apps.is_empty() && matching.is_empty() && !args.wait {
        let text = process::none_matches(&args.apps);
        return Err(Failure::new(format!("{text}\natrace: --wait records nevertheless")));
    }
    let stores = stores::all(matching.iter().filter_map(|process| process.uid()))?;
    let is_on = stores.iter().any(|store| store.content != Content::default());
    if args.apps.is_empty() && events.is_empty() && !is_on {
        return Err(Failure::new(
            "there is nothing to record: name programs with -a PATTERN, or events of the kernel with -c sched",
        ));
    }
    let existing = Existing::rule(args.force, args.output.is_some());
    let output = Output::create(&path, existing, caller.as_ref(), false)?;
    let is_top = args.top || cfg!(target_os = "android") || !tracefs::can_copy(&tracefs::root()?);
    let mut note = match Note::write(&path, caller.as_ref()) {
        Err(e) if is_top || !args.apps.is_empty() => return Err(e),
        note => note.ok(),
    };
    let signals = Signals::catch(None)?;
    let mut buffer = Buffer::make(args, is_top, note.as_ref())?;
    buffer::enable(buffer.instance(), &events)?;
    matching.iter().for_each(|process| warn_of(*process));

    let mut tally = Tally::default();
    buffer.start(note.as_ref())?;
    if let Some(note) = note.as_mut().filter(|_| !args.apps.is_empty()) {
        note.switch_on(|_| args.apps.clone(), &stores)?;
    }
    let waited = wait(args.time, &signals, || {
        tally.look(buffer.instance())?;
        buffer.look();
        Ok(format!("{} events", thousands(tally.written())))
    });
    if let Some(note) = &mut note {
        note.switch_off();
    }
    let done = waited.and(buffer.stop()).and_then(|()| tally.look(buffer.instance()));
    finish(buffer, note, output, &tally, done.is_ok())?;
    if tally.written() == 0 && !args.apps.is_empty() {
        say("nothing was written: `atrace doctor PID` tells why");
    }
    done
}

/// Saves the recording. `is_whole` means that no error has occurred until now.
fn finish(buffer: Buffer, note: Option<Note>, output: Output, tally: &Tally, is_whole: bool) -> Result {
    let name = |pid| Process(pid).program_name();
    // The estimate counts the processes that exist now, and assumes that as many have ended during the recording.
    let count = process::all().len() * 2;
    let path = match buffer {
        Buffer::Copy(instance, _) => {
            let path = match buffer::save_from(&instance, None, output, count, name) {
                Ok((path, _)) => path,
                Err(e) => return Err(buffer::keep_all(e, [instance])),
            };
            buffer::remove(instance)?;
            path
        }
        Buffer::Top(top) => match buffer::save_from(&top.instance, None, output, count, name) {
            Ok((path, _)) => {
                if let Err(e) = top.restore() {
                    say(e);
                    note.into_iter().for_each(|mut note| note.leave());
                }
                path
            }
            Err(e) => {
                let trace = shown_path(&top.instance.path().join("trace")).to_string();
                top.keep();
                note.into_iter().for_each(|mut note| note.leave());
                return Err(Failure::new(format!(
                    "{e}\natrace: nothing is lost yet: the recording is still in {trace}; make room, and the next recording \
                     saves it"
                )));
            }
        },
    };
    say(if is_whole { tally.report("events") } else { tally.report_of_some("events") });
    say(format_args!("saved {}: open it at https://ui.perfetto.dev", path.display()));
    Ok(())
}

/// Warns about a process that was started with the environment variable `ATRACE_MARKER`. The process writes its events
/// to the file that this variable names, so they are not recorded.
fn warn_of(process: Process) {
    if let Some(marker) = process.variable("ATRACE_MARKER") {
        say(format_args!(
            "{process} writes to {} (ATRACE_MARKER), so its events will not be recorded",
            shown(marker.as_encoded_bytes())
        ));
    }
}
