//! `atrace run` as a tracing service: in a thread of this command, on a socket that only the program's user may use.
//!
//! What comes is written beside the file's place, under a hidden name, and can be read there at any moment; it is moved
//! at the end. The file of a command that was killed stays.

use std::fs::File;
use std::path::{Path, PathBuf};

use atrace::perfetto::service::{CutOff, Ended, Keep, Report, Service};
use atrace::shown::shown;
use rustix::process::{Signal, geteuid};

use super::{RunArgs, default_name};
use crate::command::caller::Caller;
use crate::command::file::Output;
use crate::command::program::{Program, ServicePlace, Signals, Witness, code, wait};
use crate::command::terminal::{Failure, Result, failed, say, shown_path, thousands};

/// What a ring keeps, in KB.
const RING: u64 = 65536;

pub(super) fn record(args: &RunArgs) -> Result<u8> {
    let caller = Caller::behind_sudo()?;
    let signals = Signals::catch_also(args.ring.then_some(Signal::USR1))?;
    let path = args.output.clone().unwrap_or_else(|| default_name(&args.command, ".pftrace"));
    let output = Output::create_live(&path, args.force, caller.as_ref())?;
    let file = output.file().map_err(failed(shown_path(&path)))?;
    let user = if args.root { None } else { caller.as_ref() };
    let uid = user.map_or_else(|| geteuid().as_raw(), |user| user.uid);
    let (place, listener) = ServicePlace::make(user)?;
    let keep = if args.ring {
        Keep::Ring { bytes: args.buffer.unwrap_or(RING).saturating_mul(1024) }
    } else {
        Keep::File { file: file.try_clone()?, max: args.max_size }
    };
    let service = Service::start(listener, uid, keep).map_err(failed("starting the service"))?;
    let mut witness = Some(Witness::start(&signals)?);
    let mut child = Program::of_service(&args.command, place.socket(), user).start()?;
    let (mut is_over, mut saves) = (false, 0);
    let status = wait(&mut child, &signals, witness.take().flatten(), |asks| {
        if asks {
            saves += 1;
            save_once(&service, &numbered(&path, saves), args.force, caller.as_ref());
        }
        if service.is_over() && !is_over {
            is_over = true;
            say("no more is recorded; the program goes on");
        }
        Ok(())
    })?;
    let saved = if args.ring { service.save(file) } else { Ok(()) };
    let report = service.finish();
    drop(place);
    tell(&report);
    finish(output, report, saved)?;
    Ok(code(status))
}

fn finish(output: Output, report: Report, saved: std::io::Result<()>) -> Result<()> {
    let problem = format!("can't save {}", shown_path(output.named()));
    saved.map_err(failed(&problem))?;
    let path = output.finish_live().map_err(failed(problem))?;
    say(format_args!("saved {}: open it at https://ui.perfetto.dev", shown_path(&path)));
    match report.ended {
        Some(Ended::Failed(e)) => {
            Err(Failure::new(format!("{}: {e}: what came after that is lost", shown_path(&path))))
        }
        _ => Ok(()),
    }
}

/// Saves what the ring holds now; the recording goes on whatever becomes of it.
fn save_once(service: &Service, path: &Path, replace: bool, owner: Option<&Caller>) {
    let saved = Output::create_live(path, replace, owner).and_then(|output| {
        let problem = format!("can't save {}", shown_path(path));
        let file: File = output.file()?;
        service.save(file).map_err(failed(problem))?;
        output.finish_live()
    });
    match saved {
        Ok(path) => say(format_args!("saved {}", shown_path(&path))),
        Err(e) => say(e),
    }
}

/// The name of what is saved before the end: `out.1.pftrace`.
fn numbered(path: &Path, number: u32) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!(".{number}"));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

/// Says what was recorded, what was not, and why.
pub(crate) fn tell(report: &Report) {
    let counts = &report.counts;
    let written = format!("{} events written", thousands(counts.events));
    match counts.losses {
        0 => say(format_args!("{written}, none lost")),
        losses => say(format_args!(
            "{written}; {} times some were lost, as they came faster than they could be taken",
            thousands(losses)
        )),
    }
    if counts.invalid > 0 {
        say(format_args!("{} packets were no such and left out", thousands(counts.invalid)));
    }
    for CutOff { pid, name, fault } in &report.cut_off {
        say(format_args!("process {pid} ({}) was cut off: {fault}", shown(name)));
    }
    if counts.refused > 0 {
        say(format_args!("{} connections were refused", thousands(counts.refused)));
    }
    if let Some(Ended::Full) = report.ended {
        say("the recording ended before the program: the file has the size of --max-size");
    }
    if counts.producers == 0 {
        say(
            "nobody connected: the program uses neither this library nor Perfetto's SDK, ended before its first event, has \
             elevated rights, or was started with another environment (env -i, sudo, su: keep PERFETTO_PRODUCER_SOCK_NAME \
             and ATRACE_BACKEND)",
        );
    } else if counts.events == 0 {
        say("the program connected and traced nothing");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_saved_before_the_end_has_a_number() {
        for (path, name) in [("a/out.pftrace", "a/out.2.pftrace"), ("out", "out.2"), ("a.b.c", "a.b.2.c")] {
            assert_eq!(numbered(Path::new(path), 2), Path::new(name));
        }
    }
}
