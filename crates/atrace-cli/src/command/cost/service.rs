//! Measures a service, which runs until it is stopped. Tracing is switched while the service works.
//!
//! # Slices
//!
//! A *slice* is a period in which tracing stays on or off. Slices come in pairs, and the order of each pair is random.
//! In a slice, the service's processor time and its units of work are read at two *edges*: when [`SETTLE`] has passed
//! after tracing was switched, and right before tracing is switched again. So the cost of switching is excluded. A
//! request that is in progress at an edge counts as a whole unit or not at all. With slices of equal length, this error
//! could be the same in most slices, so the length of each slice is random (`atrace_paired::slices`).
//!
//! In each slice, the speed of the processors is measured, too (`speed`). The part of a pair's difference that the
//! speed explains is subtracted (`atrace_paired::ranks`), unless tracing certainly changes the measured speed.
//!
//! # Processor time
//!
//! The processor time is the time that all processes of the service have used. For living processes it is read from a
//! clock in nanoseconds; for processes that have ended it is read from the process that waited for them, in ticks of
//! the kernel.

use std::cell::Cell;
use std::ffi::OsString;
use std::io::Read as _;
use std::process::{Child, ChildStdout, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::Builder;
use std::time::{Duration, Instant};

use atrace_paired::looks::{PAIRS_MIN, Timed};
use atrace_paired::ranks;
use atrace_paired::slices::{STEPS, length};
use atrace_sys::usage::processor_time;
use fastrand::Rng;
use rustix::param::clock_ticks_per_second;
use rustix::process::{Pid, Signal, kill_process_group};

use super::CostArgs;
use super::program::{self, Variables, not_started};
use super::report::{Shown, Sides, Unit};
use super::session::{Session, Sessions};
use super::speed::Reference;
use super::verdict::Verdict;
use crate::command::file::chance;
use crate::command::program::Signals;
use crate::command::terminal::{Failure, Result, failed, say};
use crate::escape::shown;
use crate::process::Process;

/// The time after a switch of tracing in which nothing is measured.
const SETTLE: Duration = Duration::from_millis(50);
/// The number of slices (periods with tracing on or off) within which the first events must arrive.
const TRIES: u32 = 5;
/// How long a service may take to end after it was asked to end.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the command of --unit may take.
const IDLE: Duration = Duration::from_secs(10);
/// The pause between two checks while waiting for a condition.
const REST: Duration = Duration::from_millis(20);

/// A running service. Dropping the `Running` ends the service.
struct Running {
    child: Child,
    /// The number of lines that the service has printed, if lines are the units of its work.
    lines: Option<Arc<AtomicU64>>,
    /// A process of the service that ignores SIGCHLD and has no children.
    ignores: Option<u32>,
}

impl Running {
    fn start(program: &[OsString], session: &Session, unit: &str) -> Result<Self> {
        let mut command = program::command(program, &session.on);
        command.stdout(if unit == "lines" { Stdio::piped() } else { Stdio::null() });
        let child = command.spawn().map_err(not_started(program))?;
        let mut it = Self { child, lines: None, ignores: None };
        it.lines = it.child.stdout.take().map(count_lines).transpose()?;
        Ok(it)
    }

    /// Returns an error if the service has ended.
    fn check(&mut self) -> Result {
        let Some(status) = self.child.try_wait()? else { return Ok(()) };
        let (end, advice) = (super::end(status), "measure it without --switch and --unit");
        Err(Failure::new(format!("the program ended ({end}), so it is no service: {advice}")))
    }

    /// Returns the processor time of the service's processes in nanoseconds. Returns an error if a process with
    /// children ignores SIGCHLD, because the kernel then does not keep the processor time of children that have ended.
    fn used(&mut self) -> Result<f64> {
        let tick = 1e9 / clock_ticks_per_second() as f64;
        let (mut all, mut open) = (0.0, vec![self.child.id()]);
        while let Some(number) = open.pop() {
            all += processor_time(number).unwrap_or_default() as f64;
            let process = Process(number);
            let stat = process.read("stat").unwrap_or_default();
            // After the process's name in parentheses, the 14th and the 15th field are the processor times (user and
            // system) of children that were waited for.
            let stat = String::from_utf8_lossy(&stat);
            let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
            let ticks = fields.split(' ').skip(13).take(2).filter_map(|field| field.parse::<f64>().ok());
            let (ended, living) = (ticks.sum::<f64>() * tick, open.len());
            all += ended;
            for thread in std::fs::read_dir(process.path("task")).into_iter().flatten().flatten() {
                let children = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
                open.extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
            }
            if process.ignored_signals() >> (Signal::CHILD.as_raw() - 1) & 1 == 1 {
                if ended > 0.0 || open.len() > living {
                    let lost = "ignores SIGCHLD, so the processor time of its children is lost at their end: can it be \
                                started by env --default-signal=CHLD?";
                    return Err(Failure::new(format!("process {number} of the service {lost}")));
                }
                self.ignores = Some(number);
            }
        }
        Ok(all)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let (pid, start) = (Pid::from_child(&self.child), Instant::now());
        // If the child was waited for already, another process may have its process id by now. Then no signal is sent
        // to it.
        let is_running = matches!(self.child.try_wait(), Ok(None));
        let mut asked = if is_running { program::kill(pid, Signal::TERM) } else { Ok(()) };
        while asked.is_ok() && matches!(self.child.try_wait(), Ok(None)) {
            if start.elapsed() > PATIENCE {
                asked = program::kill(pid, Signal::KILL);
            }
            std::thread::sleep(REST);
        }
        // Kills the processes of the service's process group that are still alive.
        let _ = kill_process_group(pid, Signal::KILL);
        let _ = asked.map_err(say);
    }
}

/// Starts a thread that counts the lines that the service prints, until the service ends. Returns the counter.
fn count_lines(mut stdout: ChildStdout) -> Result<Arc<AtomicU64>> {
    let lines = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&lines);
    let count = move || {
        let mut bytes = vec![0; 64 << 10];
        while let Ok(len @ 1..) = stdout.read(&mut bytes) {
            let more = bytes[..len].iter().filter(|byte| **byte == b'\n').count();
            counted.fetch_add(more as u64, Ordering::Relaxed);
        }
    };
    Builder::new().spawn(count).map_err(failed("starting a thread"))?;
    Ok(lines)
}

/// The result of a slice: a period with tracing on or off.
#[derive(Default)]
struct Slice {
    /// The processor time per unit of work, in nanoseconds.
    each: f64,
    per_second: f64,
    /// The processor time of a piece of the reference work, in nanoseconds.
    reference: f64,
}

/// A service, and the session in which tracing is switched on and off.
struct Switched<'a> {
    // `running` is dropped before the session, so the service ends first.
    running: Running,
    session: Session,
    reference: Reference,
    unit: &'a str,
    /// The shortest length of a slice.
    slice: Duration,
    timed: Timed,
    random: Rng,
    signals: &'a Signals,
}

impl Switched<'_> {
    /// Waits for `time`. Returns an error if a signal arrives or the service ends.
    fn wait(&mut self, time: Duration) -> Result {
        let start = Instant::now();
        while let left = time.saturating_sub(start.elapsed())
            && !left.is_zero()
        {
            self.running.check()?;
            program::no_signal(self.signals, None, left)?;
        }
        Ok(())
    }

    /// Returns the number of units of work that are done.
    fn units(&self) -> Result<f64> {
        if let Some(lines) = &self.running.lines {
            return Ok(lines.load(Ordering::Relaxed) as f64);
        }
        let command = ["sh", "-c", self.unit].map(OsString::from);
        let run = program::run(&command, &Variables::new(), self.signals, IDLE, ["--unit: the command", ""])?;
        let output = String::from_utf8_lossy(&run.output);
        let number = output.split_whitespace().last().and_then(|word| word.parse::<f64>().ok());
        number.filter(|number| run.status.success() && number.is_finite()).ok_or_else(|| {
            let text = "--unit: the command has to print a number that grows with the service's work, and to succeed";
            let printed = [run.output, run.errors].concat();
            let printed = shown(&printed[..printed.len().min(80)]).to_string();
            Failure::new(format!("{text}: it printed {printed:?}, {}", super::end(run.status)))
        })
    }

    /// Returns the number of units, or `None` if it does not exceed `last`. Until the service works, the command of
    /// --unit may fail. Then the function stores the failure in `why` and returns `None`.
    fn grown(&self, last: f64, why: &Cell<Option<Failure>>) -> Result<Option<f64>> {
        why.set(None);
        match self.units() {
            // A status of 128 or more means that a signal arrived, and not that the command failed.
            Err(failure) if failure.status < 128 => {
                why.set(Some(failure));
                Ok(None)
            }
            units => Ok(Some(units?).filter(|units| *units > last)),
        }
    }

    /// Calls `value` repeatedly until it returns `Some`, and returns this value. Returns `None` if that takes longer
    /// than `patience`.
    fn until<T>(
        &mut self,
        patience: Duration,
        value: impl Fn(&Self) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let start = Instant::now();
        loop {
            let found = value(self)?;
            if found.is_some() || start.elapsed() > patience {
                return Ok(found);
            }
            self.wait(REST)?;
        }
    }

    /// Waits until the number of units grows. Then makes the slices so long that the number grows [`STEPS`] times in
    /// each.
    fn prepare(&mut self) -> Result {
        let why = Cell::new(None);
        let mut last = self.until(self.timed.left(), |it| it.grown(f64::NEG_INFINITY, &why))?;
        let (mut first, mut steps) = (None, 0);
        while steps <= STEPS
            && let Some(before) = last
            && let Some(units) = self.until(self.timed.left(), |it| it.grown(before, &why))?
        {
            (last, steps) = (Some(units), steps + 1);
            first.get_or_insert_with(Instant::now);
        }
        let Some(first) = first else {
            let text = "--unit: the number did not grow: is the service at work?";
            return Err(why.take().unwrap_or_else(|| Failure::new(text)));
        };
        self.slice = self.slice.max(first.elapsed() * STEPS / (steps - 1).max(1));
        self.enough_time()
    }

    /// Returns an error if the time of the measurement is too short for [`PAIRS`] pairs of slices.
    fn enough_time(&self) -> Result {
        let pair = self.slice * 3;
        let Some(needed) = self.timed.needed(pair, PAIRS) else { return Ok(()) };
        Err(Failure::new(format!(
            "--unit: the number has to grow in each slice, so a pair of slices takes about {pair:.1?}, and {PAIRS} pairs are \
             needed for 99 %: give it --time {needed}s"
        )))
    }

    /// Reads the numbers at an edge of a slice: the processor time and the units of the service, the processor time and
    /// the pieces of the reference work, and the time since `start` in seconds.
    fn edge(&mut self, start: Instant) -> Result<[f64; 5]> {
        let (before, [spent, pieces], now) = (self.running.used()?, self.reference.done(), start.elapsed());
        let units = self.units()?;
        // The command of --unit takes a while, so the processor time is the mean of the times before and after it.
        Ok([f64::midpoint(before, self.running.used()?), units, spent, pieces, now.as_secs_f64()])
    }

    /// Switches tracing and measures a slice. If the number of units does not grow in the slice, returns `None` and
    /// makes all later slices longer. (If only this slice were made longer, until the number grows, it would end right
    /// after a growth, which would distort the result.)
    fn slice(&mut self, is_on: bool) -> Result<Option<Slice>> {
        if !self.session.service.switch(is_on) {
            return Err(Failure::new("the recording has ended: is the directory for temporary files full?"));
        }
        self.wait(SETTLE)?;
        let start = Instant::now();
        let begin = self.edge(start)?;
        let length = length(self.slice, &mut self.random);
        self.wait(length)?;
        let end = self.edge(start)?;
        let [used, units, spent, pieces, seconds] = std::array::from_fn(|at| end[at] - begin[at]);
        if units <= 0.0 {
            self.slice *= 2;
            return self.enough_time().map(|()| None);
        }
        Ok(Some(Slice { each: used / units, per_second: units / seconds, reference: spent / pieces }))
    }
}

/// The number of pairs that an interval needs. It is one more than [`PAIRS_MIN`], because the reference work is a
/// covariate (`atrace_paired::ranks`).
const PAIRS: usize = PAIRS_MIN + 1;

/// Returns whether tracing certainly changes the time of the reference work. If it does, the reference work must not
/// correct the result: it would explain a part of tracing's cost, and this part would be subtracted.
fn is_affected(speeds: &[f64]) -> bool {
    ranks::interval(speeds, &[], 0.999).is_some_and(|it| it.sure && (it.low > 0.0 || it.high < 0.0))
}

/// Runs the service, and measures until the result is precise enough or the time is over.
pub(super) fn measure(args: &CostArgs, signals: &Signals) -> Result<Shown> {
    let (unit, slice) = (args.unit.as_deref().unwrap_or_default(), args.slice);
    let sessions = Sessions::make()?;
    let session = sessions.start()?;
    session.service.switch(false);
    let running = Running::start(&args.command, &session, unit)?;
    let reference = Reference::start(Pid::from_child(&running.child))?;
    let random = Rng::with_seed(chance());
    let timed = Timed::new(Instant::now(), args.time);
    let mut it = Switched { running, session, reference, unit, slice, timed, random, signals };
    it.prepare()?;
    // The slices in this loop are not counted. They only show whether the service writes events, which its processes
    // hand over when tracing is switched off. There are several slices, because a service may write seldom.
    let mut tries = 0..TRIES;
    while it.session.service.events() == 0 {
        let text = "the service wrote no event while it was traced, so there is nothing to measure: add atrace or atrace-subscriber \
                    to it, and see `atrace run -- CMD`";
        tries.next().ok_or_else(|| Failure::new(text))?;
        if it.slice(true)?.is_some_and(|slice| slice.each <= 0.0) {
            let text = "the service's processor time did not grow while it worked: are its processes no children of the program?";
            return Err(Failure::new(text));
        }
        it.session.service.switch(false);
        it.until(slice, |it| Ok(Some(it.session.service.events()).filter(|events| *events > 0)))?;
    }
    let (mut pairs, mut speeds, mut slices) = (Vec::new(), Vec::new(), Sides::<Slice>::default());
    let mut notes = Vec::new();
    let (found, seconds) = loop {
        let begun = Instant::now();
        let is_on_first = it.random.bool();
        let [Some(one), Some(other)] = [it.slice(is_on_first)?, it.slice(!is_on_first)?] else {
            (pairs, speeds, slices) = Default::default();
            continue;
        };
        let [off, on] = if is_on_first { [other, one] } else { [one, other] };
        if off.each > 0.0 && on.each > 0.0 {
            pairs.push((on.each / off.each).ln());
            // If no reference work was done in a slice, the speed is not known, and the pair counts as one without a
            // difference in speed.
            let speed = (on.reference / off.reference).ln();
            speeds.push(if speed.is_finite() { speed } else { 0.0 });
            slices.0[0].push(off);
            slices.0[1].push(on);
        } else if notes.is_empty() {
            let text = "some pairs are not counted: no more processor time was known at the end of a slice than at its begin, as if \
                        processes had ended without being waited for";
            notes.push(text.to_owned());
        }
        let covariate = if is_affected(&speeds) { &[][..] } else { &speeds };
        if let Some(ended) = it.timed.ended(begun, &[&pairs], covariate) {
            break ended;
        }
    };
    if is_affected(&speeds) {
        let text = "tracing changes the time of the reference work, too, so that work does not correct the result for the machine's \
                    speed";
        notes.push(text.to_owned());
    }
    let missing = "ignores SIGCHLD: if it has started others that ended, their processor time is missing";
    notes.extend(it.running.ignores.map(|number| format!("process {number} {missing}")));
    drop(it.running);
    let report = it.session.service.finish();
    let mut shown = Shown::new(("tracing", ["off", "on"]), pairs.len(), PAIRS, seconds);
    let of = |value: fn(&Slice) -> f64| slices.medians(value);
    shown.judge("processor time per unit", of(|it| it.each), Verdict::of(found[0]));
    shown.beside("units per second", Unit::Count, of(|it| it.per_second));
    shown.beside("reference work", Unit::Nanoseconds, of(|it| it.reference));
    shown.recorded(&[report], ["events in all", "bytes recorded in all", "events lost in all"]);
    shown.notes.extend(notes);
    Ok(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_that_tracing_changes_corrects_nothing() {
        let slower: Vec<f64> = (0..12).map(|at| 0.02 + 0.001 * f64::from(at)).collect();
        assert!(is_affected(&slower) && !is_affected(&slower[..3]));
        assert!(!is_affected(&[0.02, -0.02].repeat(6)) && !is_affected(&[]));
    }
}
