//! Instances of the kernel's trace buffer: make one, write into it, read it back, remove it.
//!
//! A tracefs *instance* is a ring buffer of one's own, with its own `trace_marker`, clock, options and
//! statistics, isolated from whatever else is traced on the machine. That makes tests hermetic (one
//! [`Instance`] each), lets a benchmark fill a buffer that nobody else reads, and lets a recording start
//! empty.
//!
//! Only root can make one. Every error of this module says what was attempted on which file, and what to do
//! where that is known.
//!
//! # Examples
//!
//! ```no_run
//! use std::io::Write;
//!
//! use atrace::tracefs::Instance;
//!
//! let instance = Instance::create("doc")?;
//! std::fs::OpenOptions::new().write(true).open(instance.marker_path())?.write_all(b"B|1|hello")?;
//! let marker = instance.markers()?.next().expect("one event was written");
//! assert_eq!(marker.payload, b"B|1|hello");
//! instance.remove()?;
//! # Ok::<(), std::io::Error>(())
//! ```

use std::borrow::Cow;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Where tracefs is mounted, the usual place first.
const MOUNTS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// The option of an instance to get a copy of what is written to the top-level marker (Linux 6.16).
pub const COPY: &str = "copy_trace_marker";

/// What the kernel answers about an instance that is being removed, in every architecture.
const ENODEV: i32 = 19;

/// How often, and how far apart, a busy instance is tried again before it is left to [`sweep`].
const RMDIR_TRIES: u32 = 40;
const RMDIR_PAUSE: Duration = Duration::from_millis(5);

/// Returns the directory where tracefs is mounted.
///
/// # Errors
///
/// `NotFound` where it is not mounted, `PermissionDenied` where this process may not look into it; the
/// message says what to do.
pub fn root() -> io::Result<PathBuf> {
    let mut denied = None;
    for mount in MOUNTS {
        match fs::metadata(Path::new(mount).join("instances")) {
            Ok(_) => return Ok(PathBuf::from(mount)),
            Err(e) if e.kind() == ErrorKind::PermissionDenied => denied = denied.or(Some(mount)),
            Err(_) => {}
        }
    }
    Err(match denied {
        Some(mount) => io::Error::new(
            ErrorKind::PermissionDenied,
            format!("no permission to use {mount}: run this as root (sudo)"),
        ),
        None => io::Error::new(
            ErrorKind::NotFound,
            format!("tracefs is not mounted: run as root: mount -t tracefs nodev {}", MOUNTS[0]),
        ),
    })
}

/// A tracefs instance.
///
/// One that was [created](Self::create) is removed on drop, in the process that made it only: a forked child
/// that drops its copy leaves the instance alone. One that was [attached](Self::attach) is never removed.
#[derive(Debug)]
pub struct Instance {
    path: PathBuf,
    /// The process that has to remove it; `None` once removed, or where someone else will.
    owner: Option<u32>,
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
                    return Ok(Self { path, owner: Some(pid) });
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
            let text = fs::read_to_string(&path).map_err(|e| context(e, "reading", &path))?;
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
    /// `ResourceBusy` while a process still holds one of its files open; it is then left to [`sweep`].
    pub fn remove(mut self) -> io::Result<()> {
        self.remove_if_owned()
    }

    /// Leaves the instance where it is, and returns its directory.
    pub fn keep(mut self) -> PathBuf {
        self.owner = None;
        std::mem::take(&mut self.path)
    }

    fn remove_if_owned(&mut self) -> io::Result<()> {
        if self.owner.take() != Some(std::process::id()) {
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

impl Drop for Instance {
    fn drop(&mut self) {
        if let Err(e) = self.remove_if_owned() {
            // Not `eprintln!`, which panics when stderr is gone.
            let _ = writeln!(io::stderr(), "atrace: {e}: the instance is left behind");
        }
    }
}

/// What [`sweep`] did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Swept {
    /// The instances that are gone now.
    pub removed: Vec<PathBuf>,
    /// The instances whose maker is gone but that some process still holds open.
    pub busy: Vec<PathBuf>,
}

/// Removes the instances made by [`Instance::create`] with this prefix whose process no longer exists.
///
/// A process of another PID namespace looks as if it did not exist: its instance survives only while its
/// files are open. Give programs that run in containers a prefix of their own.
///
/// # Errors
///
/// What [`root`] says, or what the kernel answered.
pub fn sweep(prefix: &str) -> io::Result<Swept> {
    sweep_where(prefix, |_| true)
}

/// [`sweep`], of those instances only that `removable` says may go.
///
/// # Errors
///
/// As [`sweep`].
pub fn sweep_where(prefix: &str, mut removable: impl FnMut(&Path) -> bool) -> io::Result<Swept> {
    let instances = root()?.join("instances");
    let mut swept = Swept::default();
    for entry in fs::read_dir(&instances).map_err(|e| context(e, "listing", &instances))? {
        let entry = entry.map_err(|e| context(e, "listing", &instances))?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| maker(name, prefix)) else {
            continue;
        };
        if Path::new("/proc").join(pid.to_string()).exists() {
            continue;
        }
        let path = entry.path();
        if !removable(&path) {
            continue;
        }
        match fs::remove_dir(&path) {
            Ok(()) => swept.removed.push(path),
            Err(e) if e.kind() == ErrorKind::ResourceBusy => swept.busy.push(path),
            // Another sweep was faster, or is at it.
            Err(e) if e.kind() == ErrorKind::NotFound || e.raw_os_error() == Some(ENODEV) => {}
            Err(e) => return Err(context(e, "removing", &path)),
        }
    }
    Ok(swept)
}

/// The process that made the instance called `name`, if its prefix is exactly `prefix`.
fn maker(name: &str, prefix: &str) -> Option<u32> {
    let (pid, n) = name.strip_prefix(prefix)?.strip_prefix('-')?.split_once('-')?;
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    if digits(pid) && digits(n) { pid.parse().ok() } else { None }
}

/// The state of a ring buffer: of one CPU's part, or summed over all CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Events that can be read now.
    pub entries: u64,
    /// Events that were overwritten by newer ones before anyone read them.
    pub overrun: u64,
    /// Events that were never stored: the buffer was full and does not overwrite, or the writer was
    /// interrupted too deeply.
    pub dropped: u64,
    /// Events that a consuming reader (`trace_pipe`) took.
    pub read: u64,
    /// Bytes that are in use.
    pub bytes: u64,
}

impl Stats {
    /// Returns how many events were written since the buffer was last cleared, whatever became of them.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.entries + self.overrun + self.read + self.dropped
    }

    /// Returns how many of them nobody can read any more and nobody did.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.overrun + self.dropped
    }

    fn add(&mut self, other: &Self) {
        self.entries += other.entries;
        self.overrun += other.overrun;
        self.dropped += other.dropped;
        self.read += other.read;
        self.bytes += other.bytes;
    }

    /// Parses one CPU's `stats` file; `None` where a line that is needed is missing.
    fn parse(text: &str) -> Option<Self> {
        let field = |name: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.trim().parse::<u64>().ok())
        };
        Some(Self {
            entries: field("entries")?,
            overrun: field("overrun")?,
            dropped: field("dropped events")? + field("commit overrun")?,
            read: field("read events").unwrap_or(0),
            bytes: field("bytes")?,
        })
    }
}

/// One message that was written to a `trace_marker`, as the text trace shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Marker {
    /// The name of the thread, `<...>` where the kernel did not keep it.
    pub task: Vec<u8>,
    /// The thread's number.
    pub tid: u32,
    /// The process' number, where the option `record-tgid` was on and the kernel kept it.
    pub tgid: Option<u32>,
    /// The CPU it was written on.
    pub cpu: u32,
    /// When, in the units of the instance's clock: nanoseconds for all clocks that count time. The text trace
    /// rounds these to microseconds.
    pub timestamp: u64,
    /// The bytes of the message, without the line end.
    pub payload: Vec<u8>,
}

impl Marker {
    /// Returns the message as text; what is not UTF-8 becomes U+FFFD.
    #[must_use]
    pub fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.payload)
    }

    /// Returns the timestamp in seconds, for clocks that count time.
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        reason = "the text has microseconds, f64 holds those for a century"
    )]
    pub fn seconds(&self) -> f64 {
        self.timestamp as f64 / 1e9
    }
}

/// An iterator over the marker messages of a text trace, in its order.
///
/// The columns before a message have fixed places, so no thread name and no payload can be taken for
/// something else. What a text trace can't tell is a payload that holds a newline: its further lines belong
/// to the payload unless they look exactly like an event, in which case they are one.
#[derive(Clone, Debug)]
pub struct Markers {
    text: Vec<u8>,
    at: usize,
}

impl Markers {
    /// Parses the text of a `trace` file.
    pub fn parse(text: impl Into<Vec<u8>>) -> Self {
        Self { text: text.into(), at: 0 }
    }
}

impl Iterator for Markers {
    type Item = Marker;

    fn next(&mut self) -> Option<Marker> {
        loop {
            let (line, mut next) = line_at(&self.text, self.at)?;
            let Some(header) = Header::parse(line) else {
                self.at = next;
                continue;
            };
            let start = self.at + header.len;
            let mut end = self.at + line.len();
            while let Some((line, after)) = line_at(&self.text, next) {
                if Header::parse(line).is_some() || is_remark(line) {
                    break;
                }
                end = next + line.len();
                next = after;
            }
            self.at = next;
            let Some(payload) = self.text[start..end].strip_prefix(b"tracing_mark_write: ") else {
                continue;
            };
            return Some(Marker {
                task: header.task,
                tid: header.tid,
                tgid: header.tgid,
                cpu: header.cpu,
                timestamp: header.timestamp,
                payload: payload.to_vec(),
            });
        }
    }
}

/// The line that starts at `at`, without its end, and where the next one starts.
fn line_at(text: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let rest = text.get(at..).filter(|rest| !rest.is_empty())?;
    Some(match rest.iter().position(|&b| b == b'\n') {
        Some(len) => (&rest[..len], at + len + 1),
        None => (rest, text.len()),
    })
}

/// Whether the kernel wrote this line between events to say that a CPU's buffer begins or lost something.
fn is_remark(line: &[u8]) -> bool {
    line.starts_with(b"##### CPU ") || (line.starts_with(b"CPU:") && line.ends_with(b" EVENTS]"))
}

/// What stands before an event: `TASK-PID [(TGID)] [CPU] flags timestamp: `.
struct Header {
    task: Vec<u8>,
    tid: u32,
    tgid: Option<u32>,
    cpu: u32,
    timestamp: u64,
    len: usize,
}

impl Header {
    /// The width of the name's column. A name has at most 15 bytes.
    const TASK: usize = 16;

    fn parse(line: &[u8]) -> Option<Self> {
        let (task, rest) = line.split_at_checked(Self::TASK)?;
        let task = task.strip_prefix(b" ")?.trim_ascii_start().to_vec();
        let mut rest = rest.strip_prefix(b"-")?;
        let tid = number(&mut rest)?;
        rest = rest.trim_ascii_start();
        let mut tgid = None;
        if let Some(inner) = rest.strip_prefix(b"(") {
            rest = inner.trim_ascii_start();
            tgid = number(&mut rest);
            if tgid.is_none() {
                rest = &rest[rest.iter().take_while(|&&b| b == b'-').count()..];
            }
            rest = rest.strip_prefix(b")")?.trim_ascii_start();
        }
        rest = rest.strip_prefix(b"[")?;
        let cpu = number(&mut rest)?;
        rest = rest.strip_prefix(b"] ")?.trim_ascii_start();
        // The flags; absent where the option `irq-info` is off.
        if let Some(space) = rest.iter().position(|&b| b == b' ')
            && rest[space - 1] != b':'
        {
            rest = rest[space..].trim_ascii_start();
        }
        let whole = number::<u64>(&mut rest)?;
        let timestamp = match rest.strip_prefix(b".") {
            Some(fraction) => {
                let (micros, after) = fraction.split_at_checked(6)?;
                rest = after;
                let mut micros = micros;
                let value = number::<u64>(&mut micros).filter(|_| micros.is_empty())?;
                whole.checked_mul(1_000_000)?.checked_add(value)?.checked_mul(1_000)?
            }
            None => whole,
        };
        rest = rest.strip_prefix(b": ")?;
        Some(Self { task, tid, tgid, cpu, timestamp, len: line.len() - rest.len() })
    }
}

/// Takes the decimal number that `bytes` begins with.
fn number<T: std::str::FromStr>(bytes: &mut &[u8]) -> Option<T> {
    let digits = bytes.iter().take_while(|b| b.is_ascii_digit()).count();
    let (number, rest) = bytes.split_at(digits);
    let number = std::str::from_utf8(number).ok()?.parse().ok()?;
    *bytes = rest;
    Some(number)
}

/// Says what was attempted, on which file, beside what the kernel answered.
fn context(e: io::Error, what: &str, path: &Path) -> io::Error {
    io::Error::new(e.kind(), format!("{what} {}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An instance, or `None` and a line that says why the test was skipped.
    fn instance(test: &str) -> Option<Instance> {
        match Instance::create("atrace-tracefs-test") {
            Ok(instance) => Some(instance),
            Err(e) => {
                // Past libtest, which keeps what `eprintln!` says of a test that passes to itself.
                let _ = writeln!(io::stderr(), "skipped {test}: {e}");
                None
            }
        }
    }

    fn write(instance: &Instance, message: &[u8]) -> io::Result<()> {
        OpenOptions::new().write(true).open(instance.marker_path())?.write(message).map(drop)
    }

    /// The columns as the kernel prints them, before `rest`.
    fn line(task: &str, tid: u32, rest: &str) -> String {
        format!("{task:>16}-{tid:<7} {rest}")
    }

    fn payloads(text: &str) -> Vec<String> {
        Markers::parse(text).map(|m| m.text().into_owned()).collect()
    }

    #[test]
    fn parses_every_shape_of_line() {
        let text = [
            "# tracer: nop\n#\n#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION\n".to_owned(),
            line("<...>", 4795, "[000] ...1.   811.025064: tracing_mark_write: B|1|he llo\n"),
            line("a-7 [003] b: c", 12, "(     11) [017] d..2. 99811.000001: tracing_mark_write: E|11\n"),
            line("idle", 0, "(-------) [001] .....     7: tracing_mark_write: C|1|x|2\n"),
            "##### CPU 1 buffer started ####\n".to_owned(),
            line("x", 1_234_567, "[1023]     5.000002: tracing_mark_write: \n"),
            "CPU:1 [LOST 12 EVENTS]\n".to_owned(),
            line("x", 1, "[000] d..3.     6.000000: sched_waking: comm=a pid=2\n"),
            line("x", 1, "[000] .....     6.000001: tracing_mark_write:   two  "),
        ]
        .concat();
        let got: Vec<_> = Markers::parse(text).collect();
        let marker = |task: &str, tid, tgid, cpu, timestamp, payload: &str| Marker {
            task: task.into(),
            tid,
            tgid,
            cpu,
            timestamp,
            payload: payload.into(),
        };
        assert_eq!(
            got,
            [
                marker("<...>", 4795, None, 0, 811_025_064_000, "B|1|he llo"),
                marker("a-7 [003] b: c", 12, Some(11), 17, 99_811_000_001_000, "E|11"),
                marker("idle", 0, None, 1, 7, "C|1|x|2"),
                marker("x", 1_234_567, None, 1023, 5_000_002_000, ""),
                marker("x", 1, None, 0, 6_000_001_000, "  two  "),
            ]
        );
        assert!((got[0].seconds() - 811.025_064).abs() < 1e-9);
    }

    #[test]
    fn keeps_further_lines_of_a_payload() {
        let head = line("x", 1, "[000] .....     6.000001: tracing_mark_write: ");
        assert_eq!(payloads(&format!("{head}a\nb\n# c\n{head}d\n")), ["a\nb\n# c", "d"]);
        assert_eq!(payloads(&format!("{head}it says x-1 [000] ..... 1.0: tracing_mark_write: y\n")).len(), 1);
        let other = head.replace("tracing_mark_write", "sched_waking");
        assert_eq!(payloads(&format!("{other}a\nb\n{head}c")), ["c"]);
    }

    #[test]
    fn survives_any_prefix_and_any_byte() {
        let line = line("<...>", 4795, "(     11) [000] ...1.   811.025064: tracing_mark_write: B|1|n\n");
        for cut in (0..line.len()).step_by(if cfg!(miri) { 5 } else { 1 }) {
            let _ = Markers::parse(&line.as_bytes()[..cut]).count();
            for byte in [0, b' ', b'-', b':', b'[', b'9', b'\n', 0xFF] {
                let mut odd = line.as_bytes().to_vec();
                odd[cut] = byte;
                let _ = Markers::parse(odd).count();
            }
        }
    }

    #[test]
    fn a_maker_is_found_only_under_its_own_prefix() {
        assert_eq!(maker("a-12-0", "a"), Some(12));
        assert_eq!(maker("a-b-12-0", "a-b"), Some(12));
        for (name, prefix) in
            [("a-b-12-0", "a"), ("a-12", "a"), ("a-+2-0", "a"), ("a-12-0-1", "a"), ("ab-1-2", "a")]
        {
            assert_eq!(maker(name, prefix), None, "{name}");
        }
    }

    #[test]
    fn bad_names_are_refused() {
        for name in ["", ".", "..", "a/b", "a\0b"] {
            assert_eq!(Instance::create(name).unwrap_err().kind(), ErrorKind::InvalidInput, "{name:?}");
        }
    }

    #[test]
    fn stats_are_summed() {
        let text = "entries: 3\noverrun: 2\ncommit overrun: 1\nbytes: 148\noldest event ts:   811.025064\n\
                    now ts:   811.028539\ndropped events: 4\nread events: 5\n";
        let mut sum = Stats::default();
        let cpu = Stats::parse(text).unwrap();
        sum.add(&cpu);
        sum.add(&cpu);
        assert_eq!(sum, Stats { entries: 6, overrun: 4, dropped: 10, read: 10, bytes: 296 });
        assert_eq!((sum.written(), sum.lost()), (30, 14));
        assert!(Stats::parse("entries: 3\n").is_none());
    }

    #[test]
    #[cfg_attr(miri, ignore = "no tracefs")]
    fn what_is_written_is_read_back() {
        let Some(instance) = instance("what_is_written_is_read_back") else {
            return;
        };
        instance.set_clock("boot").unwrap();
        instance.set_option("record-tgid", true).unwrap();
        instance.set_buffer_kb(64).unwrap();
        let odd: &[u8] = b"odd\x01\xFF [007] fake-1 (2) [001] ..... 1.0: tracing_mark_write: x ";
        for message in [b"B|1|he llo", odd, b"E|1"] {
            write(&instance, message).unwrap();
        }
        let got: Vec<_> = instance.markers().unwrap().collect();
        assert_eq!(got.iter().map(|m| &m.payload[..]).collect::<Vec<_>>(), [b"B|1|he llo", odd, b"E|1"]);
        assert!(got.windows(2).all(|w| w[0].timestamp <= w[1].timestamp));
        assert_eq!(instance.stats().unwrap().entries, 3);
        instance.clear().unwrap();
        assert_eq!(instance.stats().unwrap().written(), 0);
        instance.set_tracing_on(false).unwrap();
        assert!(write(&instance, b"E|1").is_err());
        instance.set_tracing_on(true).unwrap();
        assert!(instance.set_clock("no such clock").is_err());
        assert!(instance.set_option("no-such-option", true).is_err());
        let path = instance.path().to_owned();
        drop(Instance::attach(&path).unwrap());
        assert!(path.exists());
        instance.remove().unwrap();
        assert!(!path.exists());
        assert!(Instance::attach(&path).is_err());
    }

    #[test]
    #[cfg_attr(miri, ignore = "no tracefs")]
    fn instances_differ_between_threads_and_go_with_their_drop() {
        let Some(first) = instance("instances_differ_between_threads_and_go_with_their_drop") else {
            return;
        };
        let made: Vec<Instance> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..4).map(|_| scope.spawn(|| Instance::create("atrace-tracefs-test").unwrap())).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        let mut paths: Vec<_> = made.iter().chain([&first]).map(|i| i.path().to_owned()).collect();
        paths.sort();
        paths.dedup();
        assert_eq!(paths.len(), 5);
        drop((made, first));
        assert!(paths.iter().all(|p| !p.exists()));
    }

    #[test]
    #[cfg_attr(miri, ignore = "no tracefs")]
    fn a_busy_instance_is_reported_and_swept_later() {
        let Some(instance) = instance("a_busy_instance_is_reported_and_swept_later") else {
            return;
        };
        let prefix = format!("atrace-tracefs-sweep{}", std::process::id());
        // A process that is gone: it was waited for.
        let mut gone = std::process::Command::new("true").spawn().unwrap();
        let pid = gone.id();
        gone.wait().unwrap();
        let orphan = instance.path().with_file_name(format!("{prefix}-{pid}-0"));
        let alive = Instance::create(&prefix).unwrap();
        fs::create_dir(&orphan).unwrap();
        let held = OpenOptions::new().write(true).open(orphan.join("trace_marker")).unwrap();
        assert_eq!(sweep(&prefix).unwrap(), Swept { removed: vec![], busy: vec![orphan.clone()] });
        drop(held);
        assert_eq!(sweep(&prefix).unwrap(), Swept { removed: vec![orphan.clone()], busy: vec![] });
        assert!(!orphan.exists() && alive.path().exists());

        let held = OpenOptions::new().write(true).open(instance.marker_path()).unwrap();
        let path = instance.path().to_owned();
        assert_eq!(instance.remove().unwrap_err().kind(), ErrorKind::ResourceBusy);
        drop(held);
        fs::remove_dir(path).unwrap();
    }
}
