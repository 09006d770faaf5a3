//! Ring buffers to record into: creating, configuring, finding and removing them.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::tracefs::{self, Instance};

use crate::command::processes::name_holders;
use crate::command::terminal::{Failure, Result, failed, say, shown_path, thousands};

/// The prefix of this command's instances.
pub(crate) const PREFIX: &str = "atrace-recording";

/// The event that makes the kernel store which process a thread belongs to.
pub(in crate::command::buffer) const TEACHER: &str = "sched/sched_process_exit";

/// How many names of threads the kernel is to keep for the whole machine. Before Linux 6.10 it kept 128.
const NAMES: u64 = 4096;

/// The limits for the default size of a buffer: for each CPU, and in total.
const DEFAULT_KB: u64 = 16 << 10;
const DEFAULT_TOTAL_KB: u64 = 256 << 10;

/// Creates an instance that takes events in the form that Perfetto expects.
pub(crate) fn make(kb: Option<u64>) -> Result<Instance> {
    let root = tracefs::root()?;
    let instance = Instance::create(PREFIX)?;
    prepare(&instance, kb)?;
    keep_names(&root);
    Ok(instance)
}

/// Sets the clock, the size, and the option that adds the process id to each event.
pub(crate) fn prepare(instance: &Instance, kb: Option<u64>) -> Result<()> {
    instance.set_clock("boot")?;
    resize(instance, kb)?;
    instance.set_option("record-tgid", true)?;
    // The kernel stores the processes and names of threads only while some event is enabled. This event is, but its
    // filter never passes.
    let teacher = format!("events/{TEACHER}");
    if instance.path().join(&teacher).exists() {
        instance.control(&format!("{teacher}/filter"), "pid == -2")?;
        instance.control(&format!("{teacher}/enable"), "1")?;
    } else {
        say("this kernel has no events/sched: the picture will not be grouped by process");
    }
    Ok(())
}

/// Enables these kernel events in the instance.
pub(crate) fn enable(instance: &Instance, events: &[String]) -> Result<()> {
    for event in events {
        if event == TEACHER {
            instance.control(&format!("events/{event}/filter"), "0")?;
        }
        instance.control(&format!("events/{event}/enable"), "1")?;
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

/// Sets the size of a buffer. The size can't change while someone reads the buffer, so the call is repeated for up to
/// two seconds.
pub(crate) fn set_size(instance: &Instance, kb: u64) -> std::io::Result<()> {
    let mut result = instance.set_buffer_kb(kb);
    for _ in 0..100 {
        if !result.as_ref().is_err_and(|e| e.kind() == ErrorKind::ResourceBusy) {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
        result = instance.set_buffer_kb(kb);
    }
    result
}

/// Returns the memory that is available, in KiB.
pub(crate) fn available_kb() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse().ok()).unwrap_or(u64::MAX / 1024)
}

/// Enlarges the kernel's table of thread names, of which the machine has one. It is not made smaller afterwards:
/// other users may rely on it by then, it is small, and shrinking it drops all names.
fn keep_names(root: &Path) {
    let path = root.join("saved_cmdlines_size");
    let size = fs::read_to_string(&path).ok().and_then(|text| text.trim().parse::<u64>().ok());
    if size.is_some_and(|size| size < NAMES) {
        let _ = fs::write(path, NAMES.to_string());
    }
}

/// Returns the instances with this prefix, and the ids of the processes that created them. Their names are
/// `PREFIX-PID-N`.
pub(crate) fn instances(prefix: &str) -> Result<Vec<(PathBuf, u32)>> {
    let instances = tracefs::root()?.join("instances");
    let entries = fs::read_dir(&instances).map_err(failed(shown_path(&instances)))?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    Ok(paths.filter_map(|path| maker(&path, prefix).map(|pid| (path, pid))).collect())
}

/// Returns the id of the process that created an instance.
pub(crate) fn maker(path: &Path, prefix: &str) -> Option<u32> {
    let name = path.file_name()?.to_str()?.strip_prefix(prefix)?.strip_prefix('-')?;
    name.split_once('-')?.0.parse().ok()
}

/// Removes an instance, or says which processes hold it open.
pub(crate) fn remove(instance: Instance) -> Result<()> {
    let path = instance.path().to_owned();
    // An empty buffer costs little while a process still holds it open.
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
