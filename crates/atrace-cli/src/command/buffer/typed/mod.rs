//! The kernel's events as packets for a Perfetto trace, with timestamps in nanoseconds, typed arguments, and the names
//! of processes.
//!
//! A separate ring buffer receives the events. The events are read in the kernel's binary form (`trace_pipe_raw`)
//! during the recording, so the buffer needs room only for the events between two reads. `pages` reads the binary
//! form, `packets` encodes the events. The process of each thread is read from `/proc` at the start; later it is
//! taken from the kernel's events `task_newtask` and `task_rename`.
//!
//! The timestamps come from the clock `boot` (Linux 4.10), which is also the clock of the other packets of the trace.

mod packets;
mod pages;

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use atrace_perfetto::clock;
use rustix::fs::OFlags;

use crate::command::buffer::ring::{self, Tally};
use crate::command::buffer::{enable, events};
use crate::command::terminal::{Failure, Result, failed, shown_path};
use crate::process::{self, Process};
use crate::service::packet;
use crate::tracefs::{self, Instance};

use self::packets::{Formats, PRINT};
use self::pages::Layout;

/// The prefix of the tracefs instances whose events become packets.
pub(crate) const PREFIX: &str = "atrace-kernel";

/// The kernel events that contain the names of processes and threads, or report the end of processes and threads.
const NAMES: [&str; 4] =
    ["task/task_newtask", "task/task_rename", "sched/sched_process_exit", "sched/sched_process_free"];

/// The maximum number of pages of one CPU that are read in a row during a recording. Without this limit, the reading
/// might not end, because the kernel may write as fast as the pages are read.
const PAGES: usize = 4096;

/// The maximum number of threads whose names are in one packet.
const THREADS: usize = 256;

/// Encoded packets.
pub(crate) type Packets = Vec<Vec<u8>>;

/// Returns whether this kernel has the clock `boot`, which the other packets of a trace use.
pub(crate) fn has_clock() -> Result<bool> {
    let path = tracefs::root()?.join("trace_clock");
    let text = fs::read_to_string(&path).map_err(failed(shown_path(&path)))?;
    Ok(text.split_whitespace().any(|word| word.trim_matches(['[', ']']) == "boot"))
}

/// A ring buffer whose events become packets. Dropping the `Stream` removes the buffer.
pub(crate) struct Stream {
    /// The reader of the buffer. It is dropped before the instance, because the kernel can't remove the buffer while
    /// the reader has its files open.
    reader: Reader,
    instance: Instance,
    tally: Tally,
}

impl Stream {
    /// Creates a buffer that records the kernel events of these categories, and the events in [`NAMES`].
    pub(crate) fn make(categories: &[String], kb: Option<u64>) -> Result<Self> {
        let root = tracefs::root()?;
        let mut events = events(Some(&root), categories)?;
        let names = NAMES.into_iter().filter(|event| root.join("events").join(event).exists());
        let names: Vec<_> = names.map(str::to_owned).filter(|event| !events.contains(event)).collect();
        events.extend(names);
        let instance = ring::make(PREFIX, kb)?;
        let reader = Reader::open(&instance, &events)?;
        enable(&instance, &events)?;
        instance.clear()?;
        Ok(Self { reader, instance, tally: Tally::default() })
    }

    pub(crate) fn instance(&self) -> &Instance {
        &self.instance
    }

    /// Returns how many events the kernel has written to the buffer.
    pub(crate) fn written(&self) -> u64 {
        self.tally.written()
    }

    /// Reads the events that have arrived since the last call.
    pub(crate) fn take(&mut self) -> Result<Packets> {
        self.tally.look(&self.instance)?;
        self.reader.take(PAGES, |_| true)
    }

    /// Ends the recording, and passes the remaining events to `add`. If ending the recording fails, the events are
    /// still read, and the error is returned afterwards.
    pub(crate) fn end(&mut self, add: impl FnOnce(Packets)) -> Result {
        let ended = self.instance.set_tracing_on(false);
        let looked = self.tally.look(&self.instance);
        let read = self.reader.take(usize::MAX, |_| true).map(add);
        ended?;
        looked.and(read)
    }

    /// Removes the buffer. Returns a line with the number of events. `is_whole` means that all packets were stored in
    /// the trace.
    pub(crate) fn finish(self, is_whole: bool) -> Result<String> {
        let tally = if is_whole { Tally::report } else { Tally::report_of_some };
        let line = tally(&self.tally, "events of the kernel");
        drop(self.reader);
        ring::remove(self.instance)?;
        Ok(line)
    }
}

/// Returns packets with the messages in the buffer `instance` that programs have written to markers. Only messages for
/// which `is_wanted` returns true are included. The buffer must be off.
pub(crate) fn messages(instance: &Instance, is_wanted: impl Fn(&[u8]) -> bool) -> Result<Packets> {
    Reader::open(instance, &[])?.take(usize::MAX, is_wanted)
}

/// A reader of the pages of a buffer.
struct Reader {
    layout: Layout,
    formats: Formats,
    cpus: Vec<(u32, File)>,
    page: Vec<u8>,
}

impl Reader {
    /// Opens a buffer to read the events in `events`, and the messages that were written to markers.
    fn open(instance: &Instance, events: &[String]) -> Result<Self> {
        let root = tracefs::root()?;
        let path = root.join("events/header_page");
        let text = tracefs::read_at_once(&path).map_err(failed(shown_path(&path)))?;
        let events: Vec<_> = events.iter().cloned().chain([format!("ftrace/{PRINT}")]).collect();
        let (layout, formats) = (Layout::parse(&text), Formats::read(&root, &events));
        let (Some(layout), Some(formats)) = (layout, formats) else {
            return Err(Failure::new(
                "the format of this kernel's events is not known: record with --kernel, which saves their text",
            ));
        };
        let cpus = instance.path().join("per_cpu");
        let entries = fs::read_dir(&cpus).map_err(failed(shown_path(&cpus)))?.flatten();
        let open = |path: &Path| {
            let cpu = path.file_name()?.to_str()?.strip_prefix("cpu")?.parse().ok()?;
            let path = path.join("trace_pipe_raw");
            let flags = OFlags::NONBLOCK.bits().cast_signed();
            let file = OpenOptions::new().read(true).custom_flags(flags).open(&path);
            Some(file.map(|file| (cpu, file)).map_err(failed(shown_path(&path))))
        };
        let cpus = entries.filter_map(|entry| open(&entry.path())).collect::<Result<_>>()?;
        let page = vec![0; layout.size()];
        Ok(Self { layout, formats, cpus, page })
    }

    /// Reads at most `pages` pages of each CPU. Only messages to markers for which `is_wanted` returns true are
    /// included.
    fn take(&mut self, pages: usize, is_wanted: impl Fn(&[u8]) -> bool) -> Result<Packets> {
        let mut packets = Packets::new();
        for (cpu, file) in &mut self.cpus {
            for _ in 0..pages {
                let len = match file.read(&mut self.page) {
                    Ok(0) => break,
                    Ok(len) => len,
                    Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                    Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                    Err(e) => return Err(failed(format!("reading the events of CPU {cpu}"))(e)),
                };
                let page = self.page.get(..len).and_then(|page| self.layout.page(page));
                packets.extend(page.and_then(|page| self.formats.packet(*cpu, page, &is_wanted)));
            }
        }
        Ok(packets)
    }
}

/// Returns packets with the names of this system, and of its processes and threads.
pub(crate) fn names() -> Packets {
    let processes = std::iter::once(Process::this()).chain(process::all());
    std::iter::once(system()).chain(processes.flat_map(of_process)).collect()
}

/// Returns a packet with the version of the kernel. A reader of the trace needs the version, because the numbers for
/// the states of threads depend on it.
fn system() -> Vec<u8> {
    let read = |name: &str| fs::read_to_string(Path::new("/proc/sys/kernel").join(name)).unwrap_or_default();
    packet(1024, |packet| {
        packet.message(45, |system| {
            system.message(1, |name| {
                name.bytes(1, b"Linux").bytes(2, read("version").trim().as_bytes());
                name.bytes(3, read("osrelease").trim().as_bytes());
                name.bytes(4, std::env::consts::ARCH.as_bytes());
            });
        });
    })
}

/// Returns packets with the name of a process and the names of its threads, except the main thread.
fn of_process(process: Process) -> Packets {
    let Some(status) = process.status() else { return Packets::new() };
    let tasks = fs::read_dir(process.path("task")).into_iter().flatten().flatten();
    let threads = tasks.filter_map(|task| {
        let thread: u32 = task.file_name().to_str()?.parse().ok()?;
        Some((thread, process.read(&format!("task/{thread}/comm"))?))
    });
    let threads: Vec<_> = threads.filter(|(thread, _)| *thread != process.0).collect();
    let name = process.argv0().and_then(|name| Some(name.to_string_lossy().rsplit('/').next()?.to_owned()));
    let name = name.or_else(|| status.get("Name").map(str::to_owned)).unwrap_or_default();
    let parent = status.numbers("PPid").first().copied().unwrap_or(0);
    let mut parts: Vec<_> = threads.chunks(THREADS).collect();
    if parts.is_empty() {
        parts.push(&[]);
    }
    let of = |threads: &[(u32, Vec<u8>)]| {
        packet(8192 + THREADS * 64, |packet| {
            packet.number(8, clock::asked()).message(2, |tree| {
                tree.message(1, |it| {
                    it.number(1, process.0.into()).number(2, parent.into()).bytes(3, name.as_bytes());
                });
                for (thread, name) in threads {
                    let name = String::from_utf8_lossy(name.trim_ascii_end());
                    tree.message(2, |it| {
                        it.number(1, (*thread).into()).number(3, process.0.into()).bytes(2, name.as_bytes());
                    });
                }
            });
        })
    };
    parts.into_iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io::Write as _;

    use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};

    use super::*;

    /// Tests messages that fill more pages than a recording reads in one go.
    #[test]
    fn all_messages_of_a_buffer_are_read() {
        const MESSAGES: usize = PAGES + 100;
        let Some(instance) = tracefs::tests::instance("all_messages_of_a_buffer_are_read") else { return };
        instance.set_buffer_kb(24 << 10).unwrap();
        let mut cpu = CpuSet::new();
        cpu.set(sched_getcpu());
        sched_setaffinity(None, &cpu).unwrap();
        let mut marker = OpenOptions::new().write(true).open(instance.marker_path()).unwrap();
        for _ in 0..MESSAGES {
            // A page has room for only one such message. A kernel that allows only shorter messages takes a part of the
            // message.
            assert!(marker.write(&[b'x'; 3000]).unwrap() > 0);
        }
        assert_eq!(instance.stats().unwrap().lost(), 0);
        let seen = Cell::new(0);
        messages(&instance, |_| {
            seen.set(seen.get() + 1);
            false
        })
        .unwrap();
        assert_eq!(seen.get(), MESSAGES);
    }
}
