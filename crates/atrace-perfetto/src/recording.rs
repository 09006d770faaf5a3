//! Records this process without a service: a recording is a session whose chunks are written to a file by a thread of
//! the process.
//!
//! The packets are the same as those for Perfetto's service. Like a service, the recording adds fields to each packet:
//! the packet's sequence, and the process and the user that wrote the packet. The file is a valid trace after each
//! write.
//!
//! Only one recording is possible at a time, because there is one session slot for recordings. A recording ends when
//! its thread has closed the session and has read all chunks. If a thread is stuck in the middle of an event, that
//! event is missing in the file, and the slot stays in use until the thread continues.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::abi;
use crate::clock::{self, Speed};
use crate::memory::{Arena, Part};
use crate::pool::{OWN_SESSION, Shared};
use crate::trace_file::{ADDED_MAX, PacketOrigin, TraceFile, add};
use atrace_sys::fork::{Generation, PerProcess, generation};
use atrace_sys::process;

use crate::writer::{self, POOL};
use crate::{category, changes, producer};

/// The number of pages of the memory through which the threads pass packets to the recording's thread: 32 MiB, or less
/// if a file size limit forbids that. Pages that are never touched take no memory.
const PAGES: u32 = 4096;
/// The size of the buffer for bytes that are written to the file at once. The buffer is allocated at the start of the
/// recording, so that the recording goes on if memory runs out. Only a packet that spans several chunks needs more
/// memory.
const AT_ONCE: usize = 256 << 10;
const SHORTEST: Duration = Duration::from_millis(2);
const LONGEST: Duration = Duration::from_millis(250);

/// A recording of this process. Dropping the `Recording` ends the recording.
///
/// In a forked child, dropping a copy has no effect, because the recording belongs to the parent.
#[derive(Debug)]
#[must_use = "the recording ends when this is dropped"]
pub struct Recording {
    by: Generation,
    thread: Option<Arc<Ends>>,
    arena: &'static Arena,
}

/// The flags and the error that the recording and its thread share.
#[derive(Debug, Default)]
struct Ends {
    stop: AtomicBool,
    is_done: AtomicBool,
    failure: std::sync::Mutex<Option<io::Error>>,
}

/// A guard of the recording's thread. When it is dropped, it reports that the thread has ended. If the thread has
/// panicked, it also closes the session.
struct Done<'a>(&'a Ends, &'static Shared);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        let Self(ends, shared) = self;
        if std::thread::panicking() {
            shared.close(OWN_SESSION);
            if let Ok(mut failure) = ends.failure.lock() {
                *failure = Some(io::Error::other("the recording's thread panicked"));
            }
        }
        ends.is_done.store(true, Ordering::Release);
    }
}

/// Whether a recording exists in this process.
static IS_TAKEN: PerProcess<AtomicBool> = PerProcess::new();

/// Begins to record events with these tags into a file at `path`. A file that exists there is overwritten, unless
/// this function returns an error.
///
/// # Errors
///
/// Returns an error if the file can't be created, if memory can't be allocated or a thread can't be started, if
/// this process is already being recorded, or if a thread is still in the middle of an event of the previous
/// recording.
pub fn begin(path: &Path, tags: u64) -> io::Result<Recording> {
    let is_taken = IS_TAKEN.get_or_make(AtomicBool::default);
    if is_taken.swap(true, Ordering::AcqRel) {
        return Err(io::Error::other("this process records itself already"));
    }
    let begun = Recording::start(path, tags);
    if begun.is_err() {
        is_taken.store(false, Ordering::Release);
    }
    begun
}

impl Recording {
    fn start(path: &Path, tags: u64) -> io::Result<Self> {
        free_place()?; // Frees the slot of the previous recording.
        // The file is not emptied yet, because the recording may fail to begin.
        let file = File::options().write(true).create(true).truncate(false).open(path)?;
        let shared =
            producer::prepare().ok_or_else(|| io::Error::other("no memory for the threads' slots"))?;
        let (arena, _file) = Arena::make(PAGES)?;
        let begun = Writer::new(file, arena).and_then(|writer| Self::record(writer, shared, tags));
        if begun.is_err() && free_place().is_ok() {
            arena.give_back();
        }
        begun
    }

    /// Opens the session and starts the recording's thread.
    fn record(writer: Writer, shared: &'static Shared, tags: u64) -> io::Result<Self> {
        let arena = writer.arena;
        let ends = Arc::new(Ends::default());
        let thread = Arc::clone(&ends);
        // The generation, which identifies the process, is read first: from here on, a signal handler may fork. The
        // child then opens no session, and its thread does not write to the file.
        let by = generation();
        // The session is opened before the thread starts, because the thread may fail at once, and then closes the
        // session.
        if by == generation() {
            shared.open(OWN_SESSION, arena, 0, tags & category::ALL, 0);
        }
        let started = atrace_sys::thread::spawn_quiet("atrace-record", move || {
            if by != generation() {
                return;
            }
            let _done = Done(&thread, shared);
            let result = writer.run(&thread.stop);
            shared.close(OWN_SESSION);
            changes::changed();
            let rest = result.and_then(|mut writer| writer.finish());
            if rest.is_ok() || free_place().is_ok() {
                arena.give_back()
            } else {
                arena.retire()
            }
            if let (Err(error), Ok(mut failure)) = (rest, thread.failure.lock()) {
                *failure = Some(error);
            }
        });
        if let Err(error) = started {
            shared.close(OWN_SESSION);
            changes::changed();
            return Err(error);
        }
        Ok(Self { by, thread: Some(ends), arena })
    }

    /// Ends the recording.
    ///
    /// # Errors
    ///
    /// Returns the first error of writing the file, for example of a full disk. Returns
    /// [`TimedOut`](io::ErrorKind::TimedOut) if a thread is stuck in the middle of an event. In that case the
    /// file has all events except that one.
    pub fn finish(mut self) -> io::Result<()> {
        self.end()
    }

    fn end(&mut self) -> io::Result<()> {
        let Some(ends) = self.thread.take().filter(|_| self.by == generation()) else { return Ok(()) };
        ends.stop.store(true, Ordering::Release);
        while !ends.is_done.load(Ordering::Acquire) {
            self.arena.wake();
            std::thread::sleep(Duration::from_millis(1));
        }
        if let Some(is_taken) = IS_TAKEN.get() {
            is_taken.store(false, Ordering::Release);
        }
        let failure = ends.failure.lock().map_or(None, |mut failure| failure.take());
        failure.map_or(Ok(()), Err)
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// How long [`begin`] and the end of a recording wait for threads that are in the middle of an event, in milliseconds.
const DRAIN_MS: u32 = 100;

/// Completes the chunks of the closed session in place of their threads, so that the session slot is free.
///
/// A thread that stays in the middle of an event, because it was stopped or has left the event by `longjmp`, keeps its
/// last chunk; the session slot then stays in use, and this function returns an error.
fn free_place() -> io::Result<()> {
    for _ in 0..DRAIN_MS {
        if POOL.reclaim(OWN_SESSION, writer::Writer::finish) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let what = "a thread is stuck in the middle of an event: that event is not in the recording";
    Err(io::Error::new(io::ErrorKind::TimedOut, what))
}

/// The state of the recording's thread: the file, and the bytes that are still to be written.
struct Writer {
    file: TraceFile,
    arena: &'static Arena,
    speed: Speed,
    anchored: u64,
    bytes: Vec<u8>,
    /// The parts that were already read of incomplete packets, by the number of the writer. A packet that spans several
    /// chunks has several parts.
    begun: HashMap<u16, Vec<u8>>,
    pid: u32,
    uid: u32,
}

impl Writer {
    fn new(file: File, arena: &'static Arena) -> io::Result<Self> {
        let (pid, uid) = (process::raw_id(), process::user());
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(AT_ONCE).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        Ok(Self {
            file: TraceFile::new(file),
            arena,
            speed: Speed::default(),
            anchored: 0,
            bytes,
            begun: HashMap::new(),
            pid,
            uid,
        })
    }

    fn run(mut self, stop: &AtomicBool) -> io::Result<Self> {
        self.file.empty()?;
        let mut pause = SHORTEST;
        // A thread that waits for changes may have been about to sleep when the recording began, so it is notified again.
        let mut notify_again = 3;
        loop {
            if notify_again > 0 {
                notify_again -= 1;
                changes::changed();
            }
            // `stop` is read before the last round, so that all events which were written before the stop are in the
            // file.
            let is_last = stop.load(Ordering::Acquire);
            self.anchor();
            let is_any = self.write()?;
            if is_last {
                return Ok(self);
            }
            pause = if is_any { SHORTEST } else { LONGEST.min(pause * 2) };
            if !self.arena.sleep(pause) {
                std::thread::sleep(SHORTEST);
            }
        }
    }

    /// Writes the rest of the trace after the session was closed: the chunks that threads have not completed.
    fn finish(&mut self) -> io::Result<()> {
        let freed = free_place();
        self.write()?;
        if freed.is_err() {
            let arena = self.arena;
            let mut result = Ok(());
            arena.read_left(|part| self.add(part, &mut result));
            result.and_then(|()| self.write_bytes())?;
        }
        freed
    }

    fn anchor(&mut self) {
        let now = clock::asked();
        if self.speed.is_due(now.wrapping_sub(self.anchored)) {
            clock::anchor(&mut self.speed);
            self.anchored = now;
            POOL.look_for_ended(writer::finish);
        }
    }

    /// Writes the packets of the completed chunks to the file. Chunks that threads are still filling are written later.
    /// Returns whether there were any packets.
    fn write(&mut self) -> io::Result<bool> {
        let (arena, mut is_any, mut result) = (self.arena, false, Ok(()));
        for place in arena.take_completed() {
            arena.read(&place, |part| {
                is_any = true;
                self.add(part, &mut result);
            });
        }
        result.and_then(|()| self.write_bytes())?;
        Ok(is_any)
    }

    /// Adds a packet to the buffer. The parts of a packet that spans several chunks are joined first.
    fn add(&mut self, Part { writer, bytes, flags }: Part<'_>, result: &mut io::Result<()>) {
        let begun = self.begun.remove(&writer);
        match (flags & abi::CONTINUES != 0, flags & abi::GOES_ON != 0) {
            (false, false) => self.add_whole(writer, bytes, result),
            (false, true) => _ = self.begun.insert(writer, bytes.to_vec()),
            (true, goes_on) => {
                // If the earlier parts of the packet were lost, this part is dropped.
                let Some(mut packet) = begun else { return };
                packet.extend_from_slice(bytes);
                if goes_on {
                    self.begun.insert(writer, packet);
                } else {
                    self.add_whole(writer, &packet, result);
                }
            }
        }
    }

    /// Adds a packet to the buffer. If the packet does not fit, the buffer is written to the file first.
    fn add_whole(&mut self, writer: u16, packet: &[u8], result: &mut io::Result<()>) {
        if self.bytes.capacity() - self.bytes.len() < packet.len() + ADDED_MAX && result.is_ok() {
            *result = self.write_bytes();
        }
        if result.is_ok() {
            add(&mut self.bytes, packet, &PacketOrigin::new(writer.into(), self.pid, self.uid), false);
        }
    }

    fn write_bytes(&mut self) -> io::Result<()> {
        let written = self.file.write(&self.bytes);
        self.bytes.clear();
        written
    }
}
