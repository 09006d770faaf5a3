//! `atrace record`: programs that are running already, and the kernel, for a while.
//!
//! Such programs write to the marker of the kernel's top-level buffer. Since Linux 6.16 an instance can be
//! given a copy of what is written there, and the top-level buffer is left alone; before, it is used itself
//! and put back as it was, provided that nobody else is using it.

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use atrace::shown::shown;
use atrace::tracefs::{self, Instance};

use crate::command::buffer::{self, Tally, Top};
use crate::command::caller::Caller;
use crate::command::file::Output;
use crate::command::notes::{self, Note};
use crate::command::processes::{self, Process};
use crate::command::program::Signals;
use crate::command::stores::{self, Content};
use crate::command::terminal::{Failure, Result, say, thousands};

#[derive(clap::Args, Debug)]
pub(crate) struct RecordArgs {
    /// How long, such as 10s, 500ms or 2m [default: until Ctrl-C]
    #[arg(short, long, value_name = "TIME", value_parser = duration)]
    time: Option<Duration>,
    /// Switch on programs whose name (argv[0]) matches, for the recording; may be given several times
    #[arg(short, long = "app", value_name = "PATTERN")]
    apps: Vec<String>,
    /// Events of the kernel: sched, freq, idle, irq, disk, …, or its own groups; separated by commas
    #[arg(short, long, value_name = "CATEGORIES", value_delimiter = ',')]
    categories: Vec<String>,
    /// The file to save
    #[arg(short, long, value_name = "FILE", default_value = "recording.ftrace")]
    output: PathBuf,
    /// Replace the file if it exists
    #[arg(short, long)]
    force: bool,
    /// The size of the ring buffer for each CPU, in KB [default: 16384, less where memory is small]
    #[arg(short, long, value_name = "KB", value_parser = clap::value_parser!(u64).range(1..))]
    buffer: Option<u64>,
    /// Record although no running program matches: one may start
    #[arg(short, long)]
    wait: bool,
    /// Use the kernel's top-level buffer, as kernels before 6.16 need
    #[arg(long, hide = true)]
    top: bool,
    /// Discard what the kernel's top-level buffer holds, where that has to be used
    #[arg(long)]
    discard: bool,
}

/// Reads a time such as `10s`.
fn duration(text: &str) -> std::result::Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let scale = match unit {
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("{unit:?} is none of ms, s, m, h")),
    };
    let seconds = number.parse::<f64>().map_err(|_| format!("{number:?} is no number"))? * scale;
    let time = Duration::try_from_secs_f64(seconds).map_err(|e| e.to_string())?;
    if time.is_zero() { Err("no time to record".to_owned()) } else { Ok(time) }
}

/// The buffer that the events come to, which is put back as it was when this is dropped.
enum Buffer {
    Copy(Instance, Option<Top>),
    Top(Top),
}

impl Buffer {
    fn make(args: &RecordArgs) -> Result<Self> {
        buffer::sweep()?;
        if !args.top && !cfg!(target_os = "android") && Top::can_be_copied()? {
            let instance = buffer::make(args.buffer)?;
            return Ok(Self::Copy(instance, None));
        }
        let top = Top::take(args.discard)?;
        buffer::prepare(top.instance(), args.buffer)?;
        Ok(Self::Top(top))
    }

    fn instance(&self) -> &Instance {
        match self {
            Self::Copy(instance, _) => instance,
            Self::Top(top) => top.instance(),
        }
    }

    fn start(&mut self) -> Result<()> {
        self.instance().clear()?;
        match self {
            Self::Copy(instance, silenced) => {
                // While the top-level buffer is off, a write to its marker fails although the copy was made.
                *silenced = Top::silence()?;
                Ok(instance.set_option(tracefs::COPY, true)?)
            }
            Self::Top(top) => Ok(top.instance().set_tracing_on(true)?),
        }
    }

    fn stop(&mut self) -> Result<()> {
        if let Self::Copy(instance, silenced) = self {
            instance.set_option(tracefs::COPY, false)?;
            *silenced = None;
        }
        Ok(self.instance().set_tracing_on(false)?)
    }
}

pub(crate) fn main(args: &RecordArgs) -> Result<()> {
    let caller = Caller::behind_sudo()?;
    stores::check_all(&args.apps)?;
    let root = tracefs::root()?;
    let events = buffer::events(&root, &args.categories)?;
    notes::sweep();
    let matching = processes::matching(&args.apps);
    if !args.apps.is_empty() && matching.is_empty() && !args.wait {
        let text = processes::none_matches(&args.apps);
        return Err(Failure::new(format!("{text}\natrace: --wait records nevertheless")));
    }
    let stores = stores::all(matching.iter().filter_map(|process| process.uid()))?;
    let is_on = stores.iter().any(|store| store.content != Content::default());
    if args.apps.is_empty() && events.is_empty() && !is_on {
        return Err(Failure::new(
            "there is nothing to record: name programs with -a PATTERN, or events of the kernel with -c sched",
        ));
    }
    let output = Output::create(&args.output, args.force, caller.as_ref())?;
    let mut note = match Note::write(&args.output, caller.as_ref()) {
        Err(e) if !args.apps.is_empty() => return Err(e),
        note => note.ok(),
    };
    let signals = Signals::catch()?;
    let mut buffer = Buffer::make(args)?;
    buffer::enable(buffer.instance(), &events)?;
    matching.iter().for_each(|process| warn_of(*process));

    let mut tally = Tally::default();
    buffer.start()?;
    if let Some(note) = note.as_mut().filter(|_| !args.apps.is_empty()) {
        note.switch_on(&args.apps, &stores)?;
    }
    let waited = wait(args.time, &signals, || {
        tally.look(buffer.instance())?;
        Ok(tally.written())
    });
    if let Some(note) = &mut note {
        note.switch_off();
    }
    buffer.stop()?;
    waited?;
    tally.look(buffer.instance())?;
    finish(buffer, output, &tally)?;
    if tally.written() == 0 && !args.apps.is_empty() {
        say("nothing was written: `atrace doctor PID` tells why");
    }
    Ok(())
}

fn finish(buffer: Buffer, output: Output, tally: &Tally) -> Result<()> {
    let name = |pid| {
        let name = Process(pid).argv0()?;
        Some(name.to_string_lossy().rsplit('/').next()?.to_owned())
    };
    // Those there are, and as many again that came and went.
    let count = processes::all().len() * 2;
    let path = match buffer {
        Buffer::Copy(instance, _) => {
            let (path, instance) = buffer::save(instance, output, count, name)?;
            buffer::remove(instance)?;
            path
        }
        Buffer::Top(mut top) => match buffer::save_from(top.instance(), output, count, name) {
            Ok(path) => path,
            Err(e) => {
                top.keep_content();
                return Err(buffer::kept(
                    e,
                    &format!("cat {}/trace > FILE", top.instance().path().display()),
                ));
            }
        },
    };
    say(tally.report("events"));
    say(format_args!("saved {}: open it at https://ui.perfetto.dev", path.display()));
    Ok(())
}

/// A process whose events go elsewhere.
fn warn_of(process: Process) {
    if let Some(marker) = process.variable("ATRACE_MARKER") {
        say(format_args!(
            "{process} writes to {} (ATRACE_MARKER), so nothing of it will be recorded",
            shown(marker.as_encoded_bytes())
        ));
    }
}

/// Waits for the time to pass or a signal to come, and shows how far it is.
fn wait(time: Option<Duration>, signals: &Signals, mut count: impl FnMut() -> Result<u64>) -> Result<()> {
    let is_terminal = std::io::stderr().is_terminal();
    let start = Instant::now();
    let whole = time.map_or(String::new(), |time| format!(" of {} s", time.as_secs_f64()));
    say(format_args!(
        "recording{}; Ctrl-C ends it and saves",
        time.map_or(String::new(), |t| format!(" for {} s", t.as_secs_f64()))
    ));
    let step = Duration::from_secs(1);
    let mut shown = start;
    loop {
        let left = time.map_or(step, |time| time.saturating_sub(start.elapsed()));
        let (came, _) = signals.wait(None::<&std::fs::File>, left.min(Duration::from_millis(250)))?;
        let events = count()?;
        let is_over = came.is_some() || time.is_some_and(|time| start.elapsed() >= time);
        if shown.elapsed() >= step && !is_over {
            shown = Instant::now();
            let line = format!("{} s{whole}, {} events", start.elapsed().as_secs(), thousands(events));
            if is_terminal {
                let _ = write!(std::io::stderr(), "\ratrace: {line}  ");
            } else {
                say(line);
            }
        }
        if is_over {
            if is_terminal && shown != start {
                let _ = writeln!(std::io::stderr());
            }
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        for (text, milliseconds) in
            [("10s", 10_000), ("2", 2000), ("500ms", 500), ("1.5m", 90_000), ("1h", 3_600_000)]
        {
            assert_eq!(duration(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        for text in ["", "s", "10x", "-1s", "0s", "1e400s", "9999999999999999999999h", "1.2.3s", "nan"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
