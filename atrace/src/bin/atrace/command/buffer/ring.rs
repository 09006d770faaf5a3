//! A ring buffer to record into: made, watched while it fills, and saved.

use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::time::Duration;

use atrace::tracefs::{self, Instance, Stats};

use crate::command::buffer::leftover::{self, holders};
use crate::command::buffer::names;
use crate::command::file::output::Output;
use crate::command::file::systrace;
use crate::command::terminal::{Failure, Result, failed, place, say, thousands};

/// What the instances of this command are called.
pub(crate) const PREFIX: &str = "atrace-recording";

/// The event that has the kernel learn which process a thread is of.
pub(crate) const TEACHER: &str = "sched/sched_process_exit";

/// How many names of threads the kernel shall keep. It kept 128 before Linux 6.10, for the whole machine.
const NAMES: u64 = 4096;

/// The most that a buffer gets unasked: for each CPU, and for all.
const DEFAULT_KB: u64 = 16 << 10;
const DEFAULT_TOTAL_KB: u64 = 256 << 10;

/// Makes an instance that takes events as Perfetto wants them.
pub(crate) fn make(kb: Option<u64>) -> Result<Instance> {
    let root = tracefs::root()?;
    leftover::sweep()?;
    let instance = Instance::create(PREFIX)?;
    prepare(&instance, kb)?;
    keep_names(&root);
    Ok(instance)
}

/// Sets the clock, the size, and that the events say which process their thread is of.
pub(crate) fn prepare(instance: &Instance, kb: Option<u64>) -> Result<()> {
    instance.set_clock("boot")?;
    resize(instance, kb)?;
    instance.set_option("record-tgid", true)?;
    // The kernel learns the processes and names of threads only while some event is enabled: one that never
    // passes its filter.
    let teacher = format!("events/{TEACHER}");
    if instance.path().join(&teacher).exists() {
        instance.control(&format!("{teacher}/filter"), "pid == -2")?;
        instance.control(&format!("{teacher}/enable"), "1")?;
    } else {
        say("this kernel has no events/sched: the picture will not be grouped by process");
    }
    Ok(())
}

fn resize(instance: &Instance, kb: Option<u64>) -> Result<()> {
    let cpus = instance.cpu_stats()?.len() as u64;
    let available = available_kb();
    let Some(kb) = kb else {
        let modest = DEFAULT_KB.min(DEFAULT_TOTAL_KB / cpus).min(available / 8 / cpus).max(1408);
        return Ok(set_size(instance, modest)?);
    };
    let most = available / 10 * 9 / cpus;
    if kb > most {
        return Err(Failure::new(format!(
            "--buffer {kb}: {cpus} CPUs with {} KB each is more than the {} KB of memory that are free; at most {most}",
            thousands(kb),
            thousands(available),
        )));
    }
    set_size(instance, kb).map_err(|e| Failure::new(format!("--buffer {kb}: {e}: name a smaller one")))
}

/// Nobody can be reading a buffer while its size changes: who looks at this one is soon done.
pub(crate) fn set_size(instance: &Instance, kb: u64) -> std::io::Result<()> {
    for _ in 0..100 {
        match instance.set_buffer_kb(kb) {
            Err(e) if e.kind() == std::io::ErrorKind::ResourceBusy => {
                std::thread::sleep(Duration::from_millis(20));
            }
            other => return other,
        }
    }
    instance.set_buffer_kb(kb)
}

/// How much memory can be had.
fn available_kb() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse().ok()).unwrap_or(u64::MAX / 1024)
}

/// The size of the table of names is one for the machine. It is left as it was made: others may have come to
/// rely on it, it is small, and to make it smaller drops every name.
fn keep_names(root: &Path) {
    let path = root.join("saved_cmdlines_size");
    let size = fs::read_to_string(&path).ok().and_then(|text| text.trim().parse::<u64>().ok());
    if size.is_some_and(|size| size < NAMES) {
        let _ = fs::write(path, NAMES.to_string());
    }
}

/// How full a buffer became, seen now and again.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// The largest mean size of the events in a full part of the buffer.
    largest: f64,
    last: Vec<Stats>,
}

impl Tally {
    /// Looks at the buffer. Costs a few system calls for each CPU.
    pub(crate) fn look(&mut self, instance: &Instance) -> Result<()> {
        self.last = instance.cpu_stats()?;
        for cpu in self.last.iter().filter(|cpu| cpu.overrun > 0 && cpu.entries > 0) {
            self.largest = self.largest.max(cpu.bytes as f64 / cpu.entries as f64);
        }
        Ok(())
    }

    fn sum(&self, of: impl Fn(&Stats) -> u64) -> u64 {
        self.last.iter().map(of).sum()
    }

    pub(crate) fn written(&self) -> u64 {
        self.sum(Stats::written)
    }

    pub(crate) fn lost(&self) -> u64 {
        self.sum(Stats::lost)
    }

    /// The size for each CPU that would have kept everything, wherever the program's threads run next time.
    fn needed_kb(&self, available_kb: u64) -> u64 {
        let cpus = self.last.len().max(1) as u64;
        let mean = |cpu: &Stats| if cpu.entries == 0 { 0.0 } else { cpu.bytes as f64 / cpu.entries as f64 };
        let size = self.last.iter().map(mean).fold(self.largest, f64::max).max(8.0);
        let kb = |events: u64, margin: f64| {
            // A page has a header, and room at its end where an event did not fit.
            let in_page = ((PAGE - 16.0) / size).floor().max(1.0);
            let pages = (events as f64 / in_page).ceil() * margin + 8.0;
            ((pages * PAGE / 1024.0) as u64).next_multiple_of(64)
        };
        let alone = kb(self.written(), 1.15);
        if alone.saturating_mul(cpus) <= available_kb / 2 {
            return alone;
        }
        // Too much memory for "wherever": as it was spread this time, and half as much again.
        kb(self.last.iter().map(Stats::written).max().unwrap_or(0), 1.5)
    }

    /// What became of the events, in words.
    pub(crate) fn report(&self, what: &str) -> String {
        let is_whole = self.lost() == 0;
        self.report_of_some(what) + if is_whole { ", none lost" } else { "" }
    }

    /// The same where others have not come so far.
    pub(crate) fn report_of_some(&self, what: &str) -> String {
        let (written, lost) = (self.written(), self.lost());
        let mut text = format!("{} {what} written", thousands(written));
        if lost > 0 {
            let kb = self.needed_kb(available_kb());
            text.push_str(&format!(
                ", of which the buffer lost {}: --buffer {kb} would have kept them",
                thousands(lost)
            ));
        }
        text
    }
}

/// The least that a part of the buffer is made of.
const PAGE: f64 = 4096.0;

/// Saves the trace, with the names of its processes: there are perhaps as many as `processes`.
pub(crate) fn save_from(
    instance: &Instance,
    mut output: Output,
    processes: usize,
    mut name: impl FnMut(u32) -> Option<String>,
) -> Result<PathBuf> {
    let kept = names::kept()?;
    // The names that the kernel kept are those of threads, and so of main threads too.
    let name = |process: u32| name(process).or_else(|| kept.get(&process).cloned());
    let problem = format!("can't save {}", place(output.named()));
    let saved = File::open(instance.path().join("trace")).and_then(|source| {
        let source = BufReader::with_capacity(1 << 16, source);
        output.fill(|to| systrace::write(source, to, processes, name))
    });
    saved.map_err(failed(&problem))?;
    output.finish().map_err(failed(problem))
}

/// Saves the trace of an instance of ours. Where that fails the instance stays, and the error says how to get
/// at it.
pub(crate) fn save(
    instance: Instance,
    output: Output,
    processes: usize,
    name: impl FnMut(u32) -> Option<String>,
) -> Result<(PathBuf, Instance)> {
    match save_from(&instance, output, processes, name) {
        Ok(path) => Ok((path, instance)),
        Err(e) => {
            let path = leftover::keep(instance);
            Err(Failure::new(format!(
                "{e}\natrace: nothing is lost yet; make room and run: {}",
                leftover::rescue(&path)
            )))
        }
    }
}

/// Removes an instance, or says who keeps it from going.
pub(crate) fn remove(instance: Instance) -> Result<()> {
    let path = instance.path().to_owned();
    // Emptied: a process that holds it open holds little.
    let _ = instance.clear();
    match instance.remove() {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == std::io::ErrorKind::ResourceBusy => {
            say(format_args!(
                "{} is still held open by {}: the next recording removes it",
                place(&path),
                holders(&path)
            ));
            Ok(())
        }
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(entries: u64, overrun: u64, size: u64) -> Stats {
        let mut stats = Stats::default();
        (stats.entries, stats.overrun, stats.bytes) = (entries, overrun, entries * size);
        stats
    }

    #[test]
    fn the_advice_has_room_for_all_events_on_one_cpu() {
        let tally = Tally { largest: 0.0, last: vec![stats(1000, 499_000, 48), stats(1000, 499_000, 40)] };
        assert_eq!((tally.written(), tally.lost()), (1_000_000, 998_000));
        let kb = tally.needed_kb(u64::MAX);
        // 85 events of 48 bytes a page.
        assert!((1_000_000 / 85 * 4..1_000_000 / 85 * 5).contains(&kb), "{kb}");
        // Where that is too much for the machine, as they were spread, and more.
        let less = tally.needed_kb(kb);
        assert!(less >= 500_000 / 85 * 4 && less < kb, "{less}");
    }

    #[test]
    fn sizes_seen_before_count() {
        let last = vec![stats(1000, 9000, 40)];
        let small = Tally { largest: 0.0, last: last.clone() }.needed_kb(u64::MAX);
        let large = Tally { largest: 1050.0, last }.needed_kb(u64::MAX);
        // Three of those fill a page.
        assert!(large >= 10_000 / 3 * 4 && small < large / 10, "{small} {large}");
    }

    #[test]
    fn the_report_says_what_was_lost() {
        let kept = Tally { largest: 0.0, last: vec![stats(1234, 0, 40)] };
        assert_eq!(kept.report("events"), "1,234 events written, none lost");
        let lost = Tally { largest: 0.0, last: vec![stats(1000, 1, 40)] };
        assert!(lost.report("events").contains("lost 1: --buffer "), "{}", lost.report("events"));
    }
}
