//! A separate trace buffer: creating, configuring, reading and removing it.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use atrace_sys::fork::{Generation, generation};

use super::{Markers, Stats, context, root};

/// How often, and how far apart, a busy instance is tried again before it is left to [`sweep`](super::sweep).
const RMDIR_TRIES: u32 = 40;
const RMDIR_PAUSE: Duration = Duration::from_millis(5);

/// A tracefs instance.
///
/// One that was [created](Self::create) is removed on drop, in the process that made it only: a forked child
/// that drops its copy leaves the instance alone. One that was [attached](Self::attach) is never removed.
#[derive(Debug)]
pub struct Instance {
    path: PathBuf,
    /// The process that has to remove it; `None` once removed, or where someone else will.
    owner: Option<Generation>,
}

impl Instance {
    /// Makes the instance `<prefix>-<pid>-<n>`, with `n` counting in this process.
    ///
    /// # Errors
    ///
    /// What [`root`] says, `InvalidInput` for a prefix that is not a file name, or what the kernel answered.
    pub fn create(prefix: &str) -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);

        if prefix.is_empty() || prefix.starts_with('.') || prefix.contains(['/', '\0']) {
            return Err(io::Error::new(
                ErrorKind::InvalidInput,
                format!("{prefix:?} can't begin an instance's name"),
            ));
        }
        let instances = root()?.join("instances");
        let pid = std::process::id();
        loop {
            let n = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = instances.join(format!("{prefix}-{pid}-{n}"));
            match fs::create_dir(&path) {
                Ok(()) => {
                    return Ok(Self { path, owner: Some(generation()) });
                }
                // Left by an earlier process of this number.
                Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
                Err(e) if e.kind() == ErrorKind::PermissionDenied => {
                    return Err(context(e, "only root can make the instance", &path));
                }
                Err(e) => return Err(context(e, "making the instance", &path)),
            }
        }
    }

    /// Uses an instance that someone else made and will remove, or tracefs' own top directory.
    ///
    /// # Errors
    ///
    /// Where there is no `trace_marker` at `path`, or this process may not look.
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

    /// Returns the file that takes this instance's messages: what `ATRACE_MARKER` can name.
    pub fn marker_path(&self) -> PathBuf {
        self.path.join("trace_marker")
    }

    /// Reads the text of the trace, byte for byte, without consuming it.
    ///
    /// # Errors
    ///
    /// What the kernel answered.
    pub fn read_trace(&self) -> io::Result<Vec<u8>> {
        let path = self.path.join("trace");
        fs::read(&path).map_err(|e| context(e, "reading", &path))
    }

    /// Parses the messages that are in the trace now.
    ///
    /// # Errors
    ///
    /// What the kernel answered.
    pub fn markers(&self) -> io::Result<Markers> {
        Ok(Markers::parse(self.read_trace()?))
    }

    /// Empties the ring buffer; its statistics start again at zero.
    ///
    /// # Errors
    ///
    /// What the kernel answered.
    pub fn clear(&self) -> io::Result<()> {
        let path = self.path.join("trace");
        OpenOptions::new()
            .write(true)
            .truncate(true)
            .open(&path)
            .map(drop)
            .map_err(|e| context(e, "emptying the trace through", &path))
    }

    /// Switches the ring buffer on or off. While it is off, a write to the marker fails with `EBADF`.
    ///
    /// # Errors
    ///
    /// What the kernel answered.
    pub fn set_tracing_on(&self, on: bool) -> io::Result<()> {
        self.control("tracing_on", if on { "1" } else { "0" })
    }

    /// Chooses the clock of the timestamps (`boot` is what Perfetto wants) and empties the ring buffer.
    ///
    /// # Errors
    ///
    /// What the kernel answered: `InvalidInput` for a clock that it does not know.
    pub fn set_clock(&self, clock: &str) -> io::Result<()> {
        self.control("trace_clock", clock)
    }

    /// Sets one of the switches in this instance's `options` directory, such as `record-tgid` or `markers`.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for a name that is not a file name, or what the kernel answered.
    pub fn set_option(&self, name: &str, on: bool) -> io::Result<()> {
        if name.is_empty() || name.starts_with('.') || name.contains(['/', '\0']) {
            return Err(io::Error::new(
                ErrorKind::InvalidInput,
                format!("{name:?} is not the name of a trace option"),
            ));
        }
        self.control(&format!("options/{name}"), if on { "1" } else { "0" })
    }

    /// Sets the size of the ring buffer, in KiB for each CPU.
    ///
    /// # Errors
    ///
    /// What the kernel answered, such as `OutOfMemory`.
    pub fn set_buffer_kb(&self, kb_per_cpu: u64) -> io::Result<()> {
        self.control("buffer_size_kb", &kb_per_cpu.to_string())
    }

    /// Reads the statistics of the ring buffer, summed over all CPUs.
    ///
    /// # Errors
    ///
    /// What the kernel answered, or `InvalidData` where it can't be understood.
    pub fn stats(&self) -> io::Result<Stats> {
        let mut sum = Stats::default();
        self.cpu_stats()?.iter().for_each(|cpu| sum.add(cpu));
        Ok(sum)
    }

    /// Reads the statistics of the ring buffer, one for each CPU, in no order: each has a part of its own.
    ///
    /// # Errors
    ///
    /// As [`stats`](Self::stats).
    pub fn cpu_stats(&self) -> io::Result<Vec<Stats>> {
        let dir = self.path.join("per_cpu");
        let mut cpus = Vec::new();
        for entry in fs::read_dir(&dir).map_err(|e| context(e, "listing", &dir))? {
            let path = entry.map_err(|e| context(e, "listing", &dir))?.path().join("stats");
            let text = read_at_once(&path).map_err(|e| context(e, "reading", &path))?;
            cpus.push(Stats::parse(&text).ok_or_else(|| {
                io::Error::new(
                    ErrorKind::InvalidData,
                    format!("{} is not understood: {text:?}", path.display()),
                )
            })?);
        }
        if cpus.is_empty() {
            return Err(io::Error::new(ErrorKind::InvalidData, format!("{} lists no CPU", dir.display())));
        }
        Ok(cpus)
    }

    /// Removes the instance now, and tells whether that worked. An attached one is left alone.
    ///
    /// # Errors
    ///
    /// `ResourceBusy` while a process still holds one of its files open; it is then left to [`sweep`](super::sweep).
    pub fn remove(mut self) -> io::Result<()> {
        self.remove_if_owned()
    }

    /// Leaves the instance where it is, and returns its directory.
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

    /// Writes to one of this instance's files, such as `events/sched/sched_switch/enable`.
    ///
    /// # Errors
    ///
    /// What the kernel answered.
    pub fn control(&self, file: &str, value: &str) -> io::Result<()> {
        let path = self.path.join(file);
        OpenOptions::new()
            .write(true)
            .open(&path)
            .and_then(|mut f| f.write_all(value.as_bytes()))
            .map_err(|e| context(e, &format!("writing {value:?} to"), &path))
    }
}

/// Reads a short text that the kernel makes anew whenever it is asked for a part of it: two parts would be of two texts.
fn read_at_once(path: &Path) -> io::Result<String> {
    let mut text = vec![0; 4096];
    let len = fs::File::open(path)?.read(&mut text)?;
    text.truncate(len);
    String::from_utf8(text).map_err(io::Error::other)
}

impl Drop for Instance {
    fn drop(&mut self) {
        if let Err(e) = self.remove_if_owned() {
            // Not `eprintln!`, which panics when stderr is gone.
            let _ = writeln!(io::stderr(), "atrace: {e}: the instance is left behind");
        }
    }
}
