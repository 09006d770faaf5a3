//! An instance (a separate trace buffer of the kernel): creates, configures, reads and removes the instance.
//!
//! # Sweeping
//!
//! [`sweep`] removes the instances of processes that ended without removing them. The name of an instance contains the
//! id of the process that created it. If no process has this id, the instance is removed. An instance can't be removed
//! while one of its files is open.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use atrace_sys::fork::{Generation, generation};

use super::{Markers, context, root};
use crate::process::Process;

/// The number of attempts to remove a busy instance. After the last attempt the instance is left to [`sweep`].
const RMDIR_TRIES: u32 = 40;
/// The pause between two attempts to remove a busy instance.
const RMDIR_PAUSE: Duration = Duration::from_millis(5);

/// A tracefs instance.
///
/// Dropping an `Instance` that was [created](Self::create) removes the instance, but only in the process that created
/// it: a forked child that drops its copy does not remove the instance. Dropping an [attached](Self::attach) instance
/// removes nothing.
#[derive(Debug)]
pub struct Instance {
    path: PathBuf,
    /// The process that has to remove the instance, or `None` if the instance is already removed, or if this
    /// value must not remove it.
    owner: Option<Generation>,
}

impl Instance {
    /// Creates the instance `<prefix>-<pid>-<n>`. `n` counts the instances of this process.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`root`], `InvalidInput` for a prefix that is not a file name or begins with a dot, or the
    /// kernel's error.
    pub fn create(prefix: &str) -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);

        check_name(prefix, "can't begin an instance's name")?;
        let instances = root()?.join("instances");
        let pid = std::process::id();
        loop {
            let n = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = instances.join(format!("{prefix}-{pid}-{n}"));
            match fs::create_dir(&path) {
                Ok(()) => return Ok(Self { path, owner: Some(generation()) }),
                // An earlier process with the same id left an instance with this name, so the next number is tried.
                Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
                Err(e) if e.kind() == ErrorKind::PermissionDenied => {
                    return Err(context(e, "only root can make the instance", &path));
                }
                Err(e) if e.kind() == ErrorKind::NotFound => {
                    return Err(context(
                        e,
                        "this kernel has no instances of its buffer (Linux 3.10):",
                        &path,
                    ));
                }
                Err(e) => return Err(context(e, "making the instance", &path)),
            }
        }
    }

    /// Uses an instance that another process created and will remove, or the top directory of
    /// tracefs.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no `trace_marker` in `path`, or this process may not access it.
    pub fn attach(path: impl Into<PathBuf>) -> io::Result<Self> {
        let path = path.into();
        let marker = path.join("trace_marker");
        fs::metadata(&marker).map_err(|e| context(e, "looking for", &marker))?;
        Ok(Self { path, owner: None })
    }

    /// Returns the directory of this instance.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of the file that takes messages for this instance. The variable `ATRACE_MARKER` can
    /// name this file.
    pub fn marker_path(&self) -> PathBuf {
        self.path.join("trace_marker")
    }

    /// Reads the text of the trace, byte for byte. The events stay in the ring buffer.
    ///
    /// # Errors
    ///
    /// Returns the kernel's error.
    pub fn read_trace(&self) -> io::Result<Vec<u8>> {
        let path = self.path.join("trace");
        fs::read(&path).map_err(|e| context(e, "reading", &path))
    }

    /// Returns the messages that are in the trace now.
    ///
    /// # Errors
    ///
    /// Returns the kernel's error.
    pub fn markers(&self) -> io::Result<Markers> {
        Ok(Markers::parse(self.read_trace()?))
    }

    /// Empties the ring buffer and resets its statistics to zero.
    ///
    /// # Errors
    ///
    /// Returns the kernel's error.
    pub fn clear(&self) -> io::Result<()> {
        let path = self.path.join("trace");
        let emptied = OpenOptions::new().write(true).truncate(true).open(&path).map(drop);
        emptied.map_err(|e| context(e, "emptying the trace through", &path))
    }

    /// Switches the ring buffer on or off. While it is off, a write to the marker fails with `EBADF`.
    ///
    /// # Errors
    ///
    /// Returns the kernel's error.
    pub fn set_tracing_on(&self, on: bool) -> io::Result<()> {
        self.control("tracing_on", if on { "1" } else { "0" })
    }

    /// Selects the clock of the timestamps and empties the ring buffer. Perfetto expects the clock `boot`.
    ///
    /// # Errors
    ///
    /// Returns the kernel's error, which is `InvalidInput` for a clock that the kernel does not have.
    pub fn set_clock(&self, clock: &str) -> io::Result<()> {
        self.control("trace_clock", clock)
    }

    /// Sets one of the switches in this instance's `options` directory, such as `record-tgid` or `markers`.
    ///
    /// # Errors
    ///
    /// Returns `InvalidInput` for a name that is not a file name or begins with a dot, or the kernel's error.
    pub fn set_option(&self, name: &str, on: bool) -> io::Result<()> {
        check_name(name, "is not the name of a trace option")?;
        self.control(&format!("options/{name}"), if on { "1" } else { "0" })
    }

    /// Returns whether the kernel has this option for the instance. Before Linux 4.4, only the top directory of
    /// tracefs has options.
    pub(crate) fn has_option(&self, name: &str) -> bool {
        self.path.join("options").join(name).exists()
    }

    /// Sets the size of the ring buffer, in KiB for each CPU.
    ///
    /// # Errors
    ///
    /// Returns the kernel's error, such as `OutOfMemory`.
    pub fn set_buffer_kb(&self, kb_per_cpu: u64) -> io::Result<()> {
        self.control("buffer_size_kb", &kb_per_cpu.to_string())
    }

    /// Reads the statistics of the ring buffer, summed over all CPUs.
    ///
    /// # Errors
    ///
    /// Returns the kernel's error, or `InvalidData` if the text can't be parsed.
    pub fn stats(&self) -> io::Result<Stats> {
        Ok(Stats::sum(&self.cpu_stats()?))
    }

    /// Reads the statistics of each CPU's part of the ring buffer, in no particular order.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`stats`](Self::stats).
    pub fn cpu_stats(&self) -> io::Result<Vec<Stats>> {
        let dir = self.path.join("per_cpu");
        let mut cpus = Vec::new();
        for entry in fs::read_dir(&dir).map_err(|e| context(e, "listing", &dir))? {
            let path = entry.map_err(|e| context(e, "listing", &dir))?.path().join("stats");
            let text = read_at_once(&path).map_err(|e| context(e, "reading", &path))?;
            let strange = || format!("{} is not understood: {text:?}", path.display());
            let stats = Stats::parse(&text);
            cpus.push(stats.ok_or_else(|| io::Error::new(ErrorKind::InvalidData, strange()))?);
        }
        if cpus.is_empty() {
            return Err(io::Error::new(ErrorKind::InvalidData, format!("{} lists no CPU", dir.display())));
        }
        Ok(cpus)
    }

    /// Removes the instance now. An attached instance is not removed.
    ///
    /// # Errors
    ///
    /// Returns `ResourceBusy` if a process still holds one of the instance's files open. The instance is then left to
    /// [`sweep`].
    pub fn remove(mut self) -> io::Result<()> {
        self.remove_if_owned()
    }

    /// Keeps the instance from being removed, and returns its directory.
    pub fn keep(mut self) -> PathBuf {
        self.owner = None;
        std::mem::take(&mut self.path)
    }

    fn remove_if_owned(&mut self) -> io::Result<()> {
        if self.owner.take() != Some(generation()) {
            return Ok(());
        }
        for _ in 1..RMDIR_TRIES {
            match fs::remove_dir(&self.path) {
                Err(e) if e.kind() == ErrorKind::ResourceBusy => std::thread::sleep(RMDIR_PAUSE),
                Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
                other => return other.map_err(|e| context(e, "removing", &self.path)),
            }
        }
        fs::remove_dir(&self.path).map_err(|e| context(e, "removing", &self.path))
    }

    /// Writes a value to one of this instance's files, such as `events/sched/sched_switch/enable`.
    ///
    /// # Errors
    ///
    /// Returns the kernel's error.
    pub fn control(&self, file: &str, value: &str) -> io::Result<()> {
        let path = self.path.join(file);
        let file = OpenOptions::new().write(true).open(&path);
        let written = file.and_then(|mut file| file.write_all(value.as_bytes()));
        written.map_err(|e| context(e, &format!("writing {value:?} to"), &path))
    }
}

/// Returns an error for a name that is not a file name or begins with a dot.
fn check_name(name: &str, problem: &str) -> io::Result<()> {
    if name.is_empty() || name.starts_with('.') || name.contains(['/', '\0']) {
        return Err(io::Error::new(ErrorKind::InvalidInput, format!("{name:?} {problem}")));
    }
    Ok(())
}

/// Reads a short text in one `read`. The kernel generates the text anew for each `read`, so two calls could
/// return parts of two different texts.
pub(crate) fn read_at_once(path: &Path) -> io::Result<String> {
    let mut text = vec![0; 4096];
    let len = fs::File::open(path)?.read(&mut text)?;
    text.truncate(len);
    String::from_utf8(text).map_err(io::Error::other)
}

impl Drop for Instance {
    fn drop(&mut self) {
        if let Err(e) = self.remove_if_owned() {
            // Does not use `eprintln!`, which panics if the write fails.
            let _ = writeln!(io::stderr(), "atrace: {e}: the instance is left behind");
        }
    }
}

/// The statistics of a ring buffer: the statistics of one CPU's part of the buffer, or the sums over all CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// The number of events that can be read now.
    pub entries: u64,
    /// The number of events that were overwritten by newer events before they were read.
    pub overrun: u64,
    /// The number of events that were never stored, because the buffer was full and does not overwrite, or because
    /// the writer was interrupted too many times.
    pub dropped: u64,
    /// The number of events that a consuming reader (`trace_pipe`) has taken.
    pub read: u64,
    /// The number of bytes in use.
    pub bytes: u64,
}

impl Stats {
    /// Returns the number of events written since the buffer was last cleared, including events that were lost or read.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.entries + self.overrun + self.read + self.dropped
    }

    /// Returns the number of events that were lost before they were read.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.overrun + self.dropped
    }

    pub(crate) fn sum(cpus: &[Self]) -> Self {
        let sum = |of: fn(&Self) -> u64| cpus.iter().map(of).sum();
        Self {
            entries: sum(|cpu| cpu.entries),
            overrun: sum(|cpu| cpu.overrun),
            dropped: sum(|cpu| cpu.dropped),
            read: sum(|cpu| cpu.read),
            bytes: sum(|cpu| cpu.bytes),
        }
    }

    /// Parses one CPU's `stats` file. Returns `None` if a required line is missing.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let field = |name: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.trim().parse::<u64>().ok())
        };
        Some(Self {
            entries: field("entries")?,
            overrun: field("overrun")?,
            // The lines with the numbers of dropped and of read events exist since Linux 3.7.
            dropped: field("dropped events").unwrap_or(0) + field("commit overrun")?,
            read: field("read events").unwrap_or(0),
            bytes: field("bytes")?,
        })
    }
}

/// The kernel's error for an instance that is being removed (`ENODEV`). Its number is the same on every architecture.
const ENODEV: i32 = 19;

/// The result of [`sweep`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Swept {
    /// The instances that were removed.
    pub removed: Vec<PathBuf>,
    /// The instances that another process still holds open although their creator has ended.
    pub busy: Vec<PathBuf>,
}

/// Removes the instances that [`Instance::create`] made with this prefix in a process that no longer exists.
///
/// A process in another PID namespace seems not to exist, so its instance is removed as soon as no file of the
/// instance is open. Use a separate prefix for programs that run in containers.
///
/// # Errors
///
/// Returns the errors of [`root`], or the kernel's error.
pub fn sweep(prefix: &str) -> io::Result<Swept> {
    sweep_where(prefix, |_, _| true)
}

/// Does the same as [`sweep`], but removes only the instances for which `removable` returns true. `removable` gets the
/// path of the instance and the id of the process that created the instance.
pub(crate) fn sweep_where(prefix: &str, mut removable: impl FnMut(&Path, u32) -> bool) -> io::Result<Swept> {
    let mut swept = Swept::default();
    for (pid, path) in instances(prefix)? {
        if Process(pid).exists() || !removable(&path, pid) {
            continue;
        }
        match fs::remove_dir(&path) {
            Ok(()) => swept.removed.push(path),
            Err(e) if e.kind() == ErrorKind::ResourceBusy => swept.busy.push(path),
            // The sweep of another process has already removed the instance, or is removing it now.
            Err(e) if e.kind() == ErrorKind::NotFound || e.raw_os_error() == Some(ENODEV) => {}
            Err(e) => return Err(context(e, "removing", &path)),
        }
    }
    Ok(swept)
}

/// Returns the instances with this prefix, with the ids of the processes that created them.
pub(crate) fn instances(prefix: &str) -> io::Result<Vec<(u32, PathBuf)>> {
    let instances = root()?.join("instances");
    let entries = match fs::read_dir(&instances) {
        Ok(entries) => entries,
        // This kernel has no instances.
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(context(e, "listing", &instances)),
    };
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    Ok(paths.filter_map(|path| Some((maker(path.file_name()?.to_str()?, prefix)?, path))).collect())
}

/// Returns the id of the process that created the instance `name`, if the name's prefix is exactly `prefix`.
pub(super) fn maker(name: &str, prefix: &str) -> Option<u32> {
    let (pid, n) = name.strip_prefix(prefix)?.strip_prefix('-')?.split_once('-')?;
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    if digits(pid) && digits(n) { pid.parse().ok() } else { None }
}
