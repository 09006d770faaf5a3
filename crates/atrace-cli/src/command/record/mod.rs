//! `atrace record`: records programs that are already running, and the kernel, for a while.
//!
//! The way of recording depends on the user and on the options:
//!
//! - If Perfetto's system service runs, the command asks this service to record (`perfetto::by_system`).
//! - If the service does not run, root records with the kernel's ring buffer: as text (`kernel`) or, if `--categories`
//!   selects events of the kernel, as packets (`typed`).
//! - If the service does not run, an ordinary user's command acts as the service for the user's programs
//!   (`perfetto::by_this`).
//! - With `--kernel`, root always records with the kernel's ring buffer, as text.

mod kernel;
mod losses;
mod perfetto;
mod silence;
mod typed;

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::consumer::Consumer;
use rustix::process::geteuid;

use crate::command::program::Signals;
use crate::command::stores;
use crate::command::terminal::{Result, say};

#[derive(clap::Args, Debug)]
pub(crate) struct RecordArgs {
    /// How long to record, such as 10s, 500ms or 2m [default: until Ctrl-C]
    #[arg(short, long, value_name = "TIME", value_parser = duration)]
    time: Option<Duration>,
    /// Record programs if this pattern matches their name (argv[0]), whole or, except on Android, after its last '/'; may
    /// be given several times
    #[arg(short, long = "app", value_name = "PATTERN")]
    apps: Vec<String>,
    /// Also record these events of the kernel: sched, freq, idle, irq, disk, …, or its own groups;
    /// separated by commas
    #[arg(short, long, value_name = "CATEGORIES", value_delimiter = ',')]
    categories: Vec<String>,
    /// The file to save [default: recording.pftrace, or recording.ftrace with the kernel's buffer; with a number if the
    /// file exists]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replace the file if it exists
    #[arg(short, long)]
    force: bool,
    /// The size of the service's buffer, in KB [default: 65536]; with the kernel's buffer, the size for each CPU
    /// [default: 16384, less if there are more than 16 CPUs or memory is small]
    #[arg(short, long, value_name = "KB", value_parser = clap::value_parser!(u64).range(1..))]
    buffer: Option<u64>,
    /// Record with a ring buffer of the kernel, as root, even if Perfetto's service runs
    #[arg(long)]
    kernel: bool,
    /// Record even if no running program matches: one may start later
    #[arg(short, long)]
    wait: bool,
    /// Use the kernel's top-level buffer, as kernels before 6.16 need
    #[arg(long, hide = true)]
    top: bool,
    /// Discard the content of the kernel's top-level buffer, if that buffer has to be used
    #[arg(long)]
    discard: bool,
}

pub(crate) fn main(args: &RecordArgs) -> Result {
    stores::check_all(&args.apps)?;
    if args.kernel || args.top {
        return kernel::record(args);
    }
    match Consumer::connect() {
        Ok(consumer) => perfetto::by_system(args, consumer),
        Err(refused) if args.categories.is_empty() && !geteuid().is_root() => {
            perfetto::by_this(args, &refused)
        }
        Err(refused) if !args.categories.is_empty() && typed::is_possible() => typed::record(args, &refused),
        Err(_) => kernel::record(args),
    }
}

/// Parses a time such as `10s`.
pub(crate) fn duration(text: &str) -> std::result::Result<Duration, String> {
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
    if time.is_zero() { Err("the time must be longer than zero".to_owned()) } else { Ok(time) }
}

/// Waits until the time is over or a signal arrives, and prints the progress every second.
///
/// `progress` returns a text about the amount of data that was recorded so far.
fn wait(time: Option<Duration>, signals: &Signals, mut progress: impl FnMut() -> Result<String>) -> Result {
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
        let (came, _) = signals.wait(None, left.min(Duration::from_millis(250)))?;
        let done = progress()?;
        let is_over = came.is_some() || time.is_some_and(|time| start.elapsed() >= time);
        if shown.elapsed() >= step && !is_over {
            shown = Instant::now();
            let line = format!("{} s{whole}, {done}", start.elapsed().as_secs());
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
