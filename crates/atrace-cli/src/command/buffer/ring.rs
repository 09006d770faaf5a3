//! Creates, configures, saves and removes the kernel's ring buffers for recordings. A buffer whose content can't be
//! saved is not removed.
//!
//! # Names
//!
//! Most processes of a program have ended before the recording is saved, so `/proc` can't show their names. The names
//! come from a small separate ring buffer. In that buffer, the kernel records the events `sched_process_exec` (a
//! process executes a program) of the started program and its children (`set_event_pid`, option `event-fork`). If the
//! kernel copies messages of all programs to a buffer of the recording (see `copies`), the kernel also records
//! `task_newtask` (a process starts another process).
//!
//! # How full a buffer became
//!
//! The statistics of a buffer are read from time to time ([`Tally`]), so that the command can give advice on
//! the buffer's size.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{BufReader, ErrorKind, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::command::buffer::text;
use crate::command::file::Output;
use crate::command::file::systrace::{self, Copied};
use crate::command::terminal::{Failure, Result, failed, quoted_path, say, shown_path, thousands};
use crate::process::name_holders;
use crate::tracefs::{self, Instance, Stats};

/// The prefix of the tracefs instances into which `run` and `record` record text.
pub(crate) const PREFIX: &str = "atrace-recording";

/// The event that is enabled so that the kernel stores the names of threads, and to which process each thread belongs.
pub(in crate::command::buffer) const TEACHER: &str = "sched/sched_process_exit";

/// The number of thread names that the kernel is to store for the whole machine. By default, older kernels store only
/// 128 names.
const THREAD_NAMES: u64 = 4096;

/// The maximum size, in KiB for each CPU, of a buffer for which the user has given no size.
const DEFAULT_KB: u64 = 16 << 10;
/// The maximum size, in KiB for all CPUs together, of a buffer for which the user has given no size.
const DEFAULT_TOTAL_KB: u64 = 256 << 10;

/// Creates a tracefs instance (a separate ring buffer) whose events have the form that Perfetto expects.
pub(crate) fn make(prefix: &str, kb: Option<u64>) -> Result<Instance> {
    let root = tracefs::root()?;
    let instance = Instance::create(prefix)?;
    prepare(&instance, kb)?;
    keep_names(&root);
    Ok(instance)
}

/// The clocks for the timestamps, the best clock first, and texts that say how the other clocks differ from it.
const CLOCKS: [(&str, &str); 3] = [
    ("boot", ""),
    ("mono", "stands still while the machine sleeps"),
    ("global", "has no defined starting point"),
];

/// The option that adds the process id to each event: its name on Linux, and its older name on Android's kernels.
pub(crate) const PROCESS_IDS: [&str; 2] = ["record-tgid", "print-tgid"];

/// Selects the best clock that the kernel has.
fn set_clock(instance: &Instance) -> Result {
    let path = instance.path().join("trace_clock");
    let text = fs::read_to_string(&path).map_err(failed(shown_path(&path)))?;
    let has = |name: &str| text.split_whitespace().any(|word| word.trim_matches(['[', ']']) == name);
    let (clock, _) = *CLOCKS.iter().find(|(name, _)| has(name)).unwrap_or(&CLOCKS[0]);
    instance.set_clock(clock)?;
    remark(clock).into_iter().for_each(say);
    Ok(())
}

/// Returns a sentence that tells readers of a trace that its clock is not the best one of [`CLOCKS`]. Returns `None`
/// for the best clock.
fn remark(clock: &str) -> Option<String> {
    let (_, how) = CLOCKS.iter().skip(1).find(|(name, _)| *name == clock)?;
    Some(format!(
        "this kernel has no trace clock boot (Linux 4.10): the timestamps are of {clock}, which {how}"
    ))
}

/// Returns the remark about the selected clock, as a comment of the trace.
fn comment(instance: &Instance) -> String {
    let text = fs::read_to_string(instance.path().join("trace_clock")).unwrap_or_default();
    let clock = text.split_once('[').and_then(|(_, rest)| Some(rest.split_once(']')?.0));
    clock.and_then(remark).map_or_else(String::new, |remark| format!("# {remark}\n"))
}

/// Sets the clock, the size, and the option that adds the process id to each event. Makes the kernel store the names of
/// threads, and to which processes the threads belong.
pub(crate) fn prepare(instance: &Instance, kb: Option<u64>) -> Result {
    set_clock(instance)?;
    resize(instance, kb)?;
    match PROCESS_IDS.iter().find(|name| instance.has_option(name)) {
        Some(name) => instance.set_option(name, true)?,
        None => say(
            "this kernel (before 4.13) does not record which process a thread belongs to: only the programs' messages show it",
        ),
    }
    // The kernel stores the processes and names of threads only while some event is enabled. So `TEACHER` is enabled,
    // with a filter that no event passes.
    let teacher = format!("events/{TEACHER}");
    if instance.path().join(&teacher).exists() {
        instance.control(&format!("{teacher}/filter"), "pid == -2")?;
        instance.control(&format!("{teacher}/enable"), "1")?;
    } else {
        say("this kernel has no events/sched: the trace will not be grouped by process");
    }
    Ok(())
}

/// Enables kernel events in the instance.
pub(crate) fn enable(instance: &Instance, events: &[String]) -> Result {
    for event in events {
        if event == TEACHER {
            instance.control(&format!("events/{event}/filter"), "0")?;
        }
        instance.control(&format!("events/{event}/enable"), "1")?;
    }
    Ok(())
}

/// Returns the largest size that a buffer may have if `available_kb` KiB of memory are available, in KiB for each CPU.
const fn most_kb(available_kb: u64, cpus: u64) -> u64 {
    available_kb / 10 * 9 / cpus
}

fn resize(instance: &Instance, kb: Option<u64>) -> Result {
    let cpus = instance.cpu_stats()?.len() as u64;
    let available = available_kb();
    let Some(kb) = kb else {
        let modest = DEFAULT_KB.min(DEFAULT_TOTAL_KB / cpus).min(available / 8 / cpus).max(1408);
        return Ok(set_size(instance, modest)?);
    };
    let most = most_kb(available, cpus);
    if kb > most {
        return Err(Failure::new(format!(
            "--buffer {kb}: {cpus} CPUs with {} KB each is more than the {} KB of memory that are free; at most {most}",
            thousands(kb),
            thousands(available),
        )));
    }
    set_size(instance, kb).map_err(|e| Failure::new(format!("--buffer {kb}: {e}: name a smaller one")))
}

/// Sets the size of a buffer. The size can't change while a process reads the buffer, so the call is repeated for up
/// to two seconds.
pub(crate) fn set_size(instance: &Instance, kb: u64) -> std::io::Result<()> {
    for _ in 0..100 {
        match instance.set_buffer_kb(kb) {
            Err(e) if e.kind() == ErrorKind::ResourceBusy => std::thread::sleep(Duration::from_millis(20)),
            done => return done,
        }
    }
    instance.set_buffer_kb(kb)
}

/// Returns how much memory is available, in KiB.
pub(crate) fn available_kb() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse().ok()).unwrap_or(u64::MAX / 1024)
}

/// Enlarges the kernel's table of thread names, which all processes of the machine share. The table is not made smaller
/// after the recording: it takes little memory, other users may rely on its size by then, and a smaller table would
/// lose all names.
fn keep_names(root: &Path) {
    let path = root.join("saved_cmdlines_size");
    let size = fs::read_to_string(&path).ok().and_then(|text| text.trim().parse::<u64>().ok());
    if size.is_some_and(|size| size < THREAD_NAMES) {
        let _ = fs::write(path, THREAD_NAMES.to_string());
    }
}

/// Removes an instance. If other processes hold the instance open, prints a line that names them, and leaves the empty
/// instance to the next recording.
pub(crate) fn remove(instance: Instance) -> Result {
    let path = instance.path().to_owned();
    // If the buffer can't be removed yet because a process holds it open, it at least takes little memory when it is
    // empty.
    let _ = instance.clear();
    match instance.remove() {
        Err(e) if e.kind() == ErrorKind::ResourceBusy => {
            let (shown, holders) = (shown_path(&path), name_holders(&path));
            say(format_args!("{shown} is still held open by {holders}: the next recording removes it"));
            Ok(())
        }
        result => Ok(result?),
    }
}

/// The option that marks a buffer whose recording could not be saved. The mark is the value 0, with which a buffer does
/// not overwrite old events. (The recording is stopped already, so this has no effect on the events.)
const MARK: &str = "options/overwrite";

/// Saves the trace of `instance` with the names of its processes. `processes` is the expected number of processes.
/// Returns the path of the file, and the number of messages that were saved from `copied`.
pub(crate) fn save_from(
    instance: &Instance,
    copied: Option<Copied<'_>>,
    output: Output,
    processes: usize,
    mut name: impl FnMut(u32) -> Option<String>,
) -> Result<(PathBuf, u64)> {
    let kept = thread_names()?;
    // The kernel stores only names of threads. The name of the main thread, whose id is the process id, is used if
    // `name` knows no name of the process.
    let name = |process: u32| name(process).or_else(|| kept.get(&process).cloned());
    let problem = format!("can't save {}", shown_path(output.named()));
    let comment = comment(instance);
    let saved = File::open(instance.path().join("trace")).and_then(|source| {
        let source = comment.as_bytes().chain(BufReader::with_capacity(1 << 16, source));
        systrace::write(source, copied, &mut output.file()?, processes, name)
    });
    let copied = saved.map_err(failed(&problem))?;
    Ok((output.finish().map_err(failed(problem))?, copied))
}

/// Keeps instances whose content could not be saved. Returns the error `e`, with the shell command that saves the
/// content added to its text.
pub(crate) fn keep_all(e: Failure, instances: impl IntoIterator<Item = Instance>) -> Failure {
    let paths: Vec<_> = instances.into_iter().map(keep).collect();
    let rescue = rescue(&paths.iter().map(PathBuf::as_path).collect::<Vec<_>>());
    Failure::new(format!("{e}\natrace: nothing is lost yet; make room and run: {rescue}"))
}

/// Marks an instance that could not be saved, so that no command removes it, and leaves it in
/// place.
pub(crate) fn keep(instance: Instance) -> PathBuf {
    let _ = instance.control(MARK, "0");
    instance.keep()
}

/// Returns whether an instance holds a recording that could not be saved.
pub(crate) fn is_kept(path: &Path) -> bool {
    fs::read_to_string(path.join(MARK)).is_ok_and(|text| text.trim() == "0")
}

/// Returns the shell command with which a user can save the content of buffers.
pub(crate) fn rescue(paths: &[&Path]) -> String {
    let traces: String = paths.iter().map(|path| format!("{} ", quoted_path(&path.join("trace")))).collect();
    let directories: String = paths.iter().map(|path| format!(" {}", quoted_path(path))).collect();
    format!("cat {traces}> FILE; rmdir{directories}")
}

/// The prefix of the instances in which the names of processes are recorded.
pub(crate) const NAMES: &str = "atrace-names";

const EVENT: &str = "events/sched/sched_process_exec/enable";
/// The option that makes the kernel record the events of the children of the processes in `set_event_pid`, too.
const FORK: &str = "event-fork";
const NEW: &str = "events/task/task_newtask";
/// The filter that passes the starts of new processes, but not the starts of new threads (`CLONE_THREAD`).
const NEW_PROCESS: &str = "!(clone_flags & 65536)";

pub(crate) struct Names(Option<Instance>);

impl Names {
    /// Creates the buffer for names. If the kernel lacks the event `sched_process_exec`, or can't record the events of
    /// a program's children (before Linux 4.12), no names are recorded.
    pub(crate) fn make() -> Result<Self> {
        let root = tracefs::root()?;
        if !root.join(EVENT).exists() || !root.join("options").join(FORK).exists() {
            return Ok(Self(None));
        }
        let instance = Instance::create(NAMES)?;
        set_size(&instance, 128)?;
        // The option extends `set_event_pid` to the children of the processes in that file. The file is still empty.
        instance.set_option(FORK, true)?;
        Ok(Self(Some(instance)))
    }

    /// Returns the directory of the buffer, for the function [`begin`](Self::begin).
    pub(crate) fn directory(&self) -> Option<&Path> {
        self.0.as_ref().map(Instance::path)
    }

    /// Starts to record which programs the calling process and its children execute.
    pub(crate) fn begin(instance: &Path) -> std::io::Result<()> {
        fs::write(instance.join("set_event_pid"), std::process::id().to_string())?;
        if tracefs::can_copy(&tracefs::root()?) {
            fs::write(instance.join(NEW).join("filter"), NEW_PROCESS)?;
            fs::write(instance.join(NEW).join("enable"), "1")?;
        }
        fs::write(instance.join(EVENT), "1")
    }

    /// Returns the ids of the program's threads that exist now, including the threads of processes whose parent has
    /// ended. If there is no buffer for names, returns only `started`, the process id of the program.
    pub(crate) fn living(&self, started: u32) -> Vec<u32> {
        let Some(directory) = self.directory() else { return vec![started] };
        let text = fs::read_to_string(directory.join("set_event_pid")).unwrap_or_default();
        text.lines().filter_map(|line| line.trim().parse().ok()).collect()
    }

    /// Returns the processes of the recorded program.
    pub(crate) fn read(&self) -> Processes {
        self.0.as_ref().map(Processes::read).unwrap_or_default()
    }
}

/// The processes of a program that were recorded in a buffer for names.
#[derive(Default)]
pub(crate) struct Processes {
    /// For each process, the name of the program that it executed last, without the path.
    names: HashMap<u32, String>,
    /// The ids of all processes of the program, or `None` if they are not known.
    all: Option<HashSet<u32>>,
}

impl Processes {
    /// Reads the processes from a buffer for names, which this or another command has created.
    pub(crate) fn read(instance: &Instance) -> Self {
        let (Ok(text), Ok(stats)) = (instance.read_trace(), instance.stats()) else { return Self::default() };
        let text::Started { names, processes, events } = text::started(&text);
        if events != stats.entries {
            // The name of an executed file contains text that looks like further events, so nothing in the buffer can
            // be trusted.
            return Self::default();
        }
        Self { names, all: (stats.lost() == 0).then_some(processes) }
    }

    pub(crate) fn count(&self) -> usize {
        self.names.len()
    }

    pub(crate) fn name(&self, process: u32) -> Option<String> {
        self.names.get(&process).cloned()
    }

    /// Returns whether a process belongs to the program, or may belong to it.
    pub(crate) fn has(&self, process: u32) -> bool {
        self.all.as_ref().is_none_or(|all| all.contains(&process))
    }

    pub(crate) fn is_known(&self) -> bool {
        self.all.is_some()
    }
}

/// Returns the names of threads that the kernel has stored.
fn thread_names() -> Result<HashMap<u32, String>> {
    let text = fs::read(tracefs::root()?.join("saved_cmdlines")).unwrap_or_default();
    Ok(text::kept(&text))
}

/// Statistics about the events in a buffer, which are read at intervals.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// The largest mean size of an event in bytes, among the CPUs whose part of the buffer was full when the statistics
    /// were read.
    largest: f64,
    last: Vec<Stats>,
    /// The number of the program's messages that are in the buffer for copies.
    copied: u64,
}

impl Tally {
    /// Reads the statistics of the buffer `instance`. This takes a few system calls for each CPU.
    pub(crate) fn look(&mut self, instance: &Instance) -> Result {
        self.last = instance.cpu_stats()?;
        for cpu in self.last.iter().filter(|cpu| cpu.overrun > 0 && cpu.entries > 0) {
            self.largest = self.largest.max(cpu.bytes as f64 / cpu.entries as f64);
        }
        Ok(())
    }

    /// Adds `messages` to the number of the program's messages that are in the buffer for copies.
    pub(crate) fn add_copied(&mut self, messages: u64) {
        self.copied += messages;
    }

    pub(crate) fn written(&self) -> u64 {
        Stats::sum(&self.last).written() + self.copied
    }

    pub(crate) fn lost(&self) -> u64 {
        Stats::sum(&self.last).lost()
    }

    /// Returns a size of the buffer, in KiB for each CPU, and whether it is certain. A certain size would have kept all
    /// events even if all threads of the program had run on one CPU. If such a buffer takes more than half of the
    /// available memory, the function returns an estimate instead, which is not certain.
    fn needed_kb(&self, available_kb: u64) -> (u64, bool) {
        let cpus = self.last.len().max(1) as u64;
        let mean = |cpu: &Stats| if cpu.entries == 0 { 0.0 } else { cpu.bytes as f64 / cpu.entries as f64 };
        let size = self.last.iter().map(mean).fold(self.largest, f64::max).max(8.0);
        // A ring buffer consists of pages of the kernel's size.
        let page = atrace_sys::memory::page_size() as f64;
        let kb = |events: u64, margin: f64| {
            // A page has a header of 16 bytes. At its end is unused space, in which the next event did not fit.
            let in_page = ((page - 16.0) / size).floor().max(1.0);
            let pages = (events as f64 / in_page).ceil() * margin + 8.0;
            ((pages * page / 1024.0) as u64).next_multiple_of(64)
        };
        let alone = kb(Stats::sum(&self.last).written(), 1.15);
        if alone.saturating_mul(cpus) <= available_kb / 2 {
            return (alone, true);
        }
        // A buffer with room for all events on each CPU would take too much memory. The estimate assumes that the
        // events of the next recording are spread over the CPUs as in this recording, with a margin of one half.
        (kb(self.last.iter().map(Stats::written).max().unwrap_or(0), 1.5), false)
    }

    /// Returns a text with the number of written events and the number of lost events. `what` is the word for the
    /// events.
    pub(crate) fn report(&self, what: &str) -> String {
        let is_whole = self.lost() == 0;
        self.report_of_some(what) + if is_whole { ", none lost" } else { "" }
    }

    /// Returns a text that names a size with which the buffer would have kept all events, if there is enough memory for
    /// that size.
    fn advice(&self, available_kb: u64) -> String {
        let most = most_kb(available_kb, self.last.len().max(1) as u64);
        match self.needed_kb(available_kb) {
            (kb, _) if kb > most => "there is not enough free memory for a buffer that keeps them".to_owned(),
            (kb, true) => format!("--buffer {kb} would have kept them"),
            (kb, false) => format!("--buffer {kb} would probably have kept them"),
        }
    }

    /// Returns a text as [`report`](Self::report) does, but without the words "none lost". It is for recordings in
    /// which events may be missing for other reasons than the size of the buffer.
    pub(crate) fn report_of_some(&self, what: &str) -> String {
        let (written, lost) = (self.written(), self.lost());
        let mut text = format!("{} {what} written", thousands(written));
        if lost > 0 {
            text += &format!(", of which the buffer lost {}: ", thousands(lost));
            text += &self.advice(available_kb());
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a directory that tests use in place of a tracefs instance. It has the files that an instance has on a
    /// kernel with these clocks and options. Each file contains the text that was last written to it.
    fn stand_in(clocks: &str, options: &[&str]) -> (tempfile::TempDir, Instance) {
        let root = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for file in ["trace_marker", "trace", "buffer_size_kb"] {
            write(file, "");
        }
        write("trace_clock", clocks);
        options.iter().for_each(|name| write(&format!("options/{name}"), "0"));
        write(
            "per_cpu/cpu0/stats",
            "entries: 0\noverrun: 0\ncommit overrun: 0\nbytes: 0\ndropped events: 0\n",
        );
        for file in ["enable", "filter"] {
            write(&format!("events/{TEACHER}/{file}"), "");
        }
        let instance = Instance::attach(root.path()).unwrap();
        (root, instance)
    }

    #[test]
    fn a_buffer_is_prepared_as_far_as_the_kernel_can() {
        let kernels: [(&str, &[&str], &str, &str); 5] = [
            // Linux 3.10, whose instances have no options; Android's Linux 3.10 and 3.18; Linux 4.9 and 4.14.
            ("[local] global counter uptime perf x86-tsc\n", &[], "global", ""),
            ("[local] global counter uptime perf\n", &["overwrite", "print-tgid"], "global", "print-tgid"),
            ("[local] global counter uptime perf mono\n", &["overwrite", "print-tgid"], "mono", "print-tgid"),
            ("[local] global counter uptime perf mono mono_raw\n", &["overwrite"], "mono", ""),
            (
                "[local] global counter uptime perf mono mono_raw boot\n",
                &["record-tgid"],
                "boot",
                "record-tgid",
            ),
        ];
        for (clocks, options, clock, switched) in kernels {
            let (root, instance) = stand_in(clocks, options);
            prepare(&instance, Some(64)).unwrap();
            let read = |file: &str| fs::read_to_string(root.path().join(file)).unwrap();
            assert!(read("trace_clock").starts_with(clock), "{clocks}");
            assert_eq!(read("buffer_size_kb"), "64", "{clocks}");
            for option in options {
                let expected = if *option == switched { "1" } else { "0" };
                assert_eq!(read(&format!("options/{option}")), expected, "{option} of {clocks}");
            }
            assert_eq!(read(&format!("events/{TEACHER}/enable")), "1", "{clocks}");
            // If the clock is not `boot`, a comment in the trace tells its reader.
            fs::write(
                root.path().join("trace_clock"),
                clocks.replace(['[', ']'], "").replace(clock, &format!("[{clock}]")),
            )
            .unwrap();
            let text = comment(&instance);
            assert_eq!(text.is_empty(), clock == "boot", "{text}");
            assert!(text.is_empty() || text.contains(&format!("of {clock}, which")), "{text}");
        }
    }

    fn stats(entries: u64, overrun: u64, size: u64) -> Stats {
        let mut stats = Stats::default();
        (stats.entries, stats.overrun, stats.bytes) = (entries, overrun, entries * size);
        stats
    }

    #[test]
    fn the_advice_has_room_for_all_events_on_one_cpu() {
        let tally =
            Tally { last: vec![stats(1000, 499_000, 48), stats(1000, 499_000, 40)], ..Tally::default() };
        assert_eq!((tally.written(), tally.lost()), (1_000_000, 998_000));
        let (kb, is_sure) = tally.needed_kb(u64::MAX);
        assert!(is_sure);
        // A page of 4 KiB holds 85 events of 48 bytes, and a larger page holds at least as many for each KiB.
        assert!((1_000_000 / 85 * 4..1_000_000 / 85 * 5).contains(&kb), "{kb}");
        // If this size is too large for the memory, the advice is a size for the events as they were spread over the
        // CPUs, plus a margin.
        let (less, is_sure) = tally.needed_kb(kb);
        assert!(less >= 500_000 / 85 * 4 && less < kb && !is_sure, "{less}");
        // The advice must not name a size that `resize` refuses.
        let advice = |available| tally.advice(available);
        assert_eq!(advice(u64::MAX / 2), format!("--buffer {kb} would have kept them"));
        assert_eq!(advice(3 * less), format!("--buffer {less} would probably have kept them"));
        assert_eq!(advice(2 * less), "there is not enough free memory for a buffer that keeps them");
    }

    #[test]
    fn sizes_seen_before_count() {
        let last = vec![stats(1000, 9000, 40)];
        let small = Tally { last: last.clone(), ..Tally::default() }.needed_kb(u64::MAX).0;
        let large = Tally { largest: 1050.0, last, ..Tally::default() }.needed_kb(u64::MAX).0;
        // Each event of 1,050 bytes takes more than a KiB of the buffer, however large a page is.
        assert!(large >= 10_000 && small < large / 10, "{small} {large}");
    }

    #[test]
    fn the_report_says_what_was_lost() {
        let kept = Tally { last: vec![stats(1234, 0, 40)], ..Tally::default() };
        assert_eq!(kept.report("events"), "1,234 events written, none lost");
        let lost = Tally { last: vec![stats(1000, 1, 40)], ..Tally::default() };
        assert!(lost.report("events").contains("lost 1: --buffer "), "{}", lost.report("events"));
    }
}
