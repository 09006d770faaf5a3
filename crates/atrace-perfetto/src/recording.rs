//! A process that records itself: a session of its own, whose chunks a thread of it writes to a file.
//!
//! The packets are those that Perfetto's service would get; what it would add to each (whose it is) is added here. The
//! file is a whole trace after each write.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::clock::{self, Speed};
use crate::memory::Arena;
use crate::pool::{OWN_SESSION, Shared};
use crate::trace_file::{ADDED_MAX, TraceFile, Whose, add};
use atrace_sys::fork::{Generation, PerProcess, generation};
use atrace_sys::process;

use crate::writer::{self, POOL};
use crate::{category, changes, producer};

/// The memory between threads and the file: 4 MiB.
const PAGES: u32 = 512;
/// How many bytes are written at once, at most. They have room from the start: where there is no memory later, the recording
/// goes on.
const AT_ONCE: usize = 256 << 10;
const SHORTEST: Duration = Duration::from_millis(2);
const LONGEST: Duration = Duration::from_millis(250);

/// Records this process, until it is dropped.
///
/// In a forked child it does nothing: the recording is its parent's.
#[derive(Debug)]
#[must_use = "the recording ends when this is dropped"]
pub struct Recording {
    by: Generation,
    thread: Option<Arc<Ends>>,
}

/// How the recording's thread is told to end, and says that it has, and what went wrong.
#[derive(Debug, Default)]
struct Ends {
    stop: AtomicBool,
    is_done: AtomicBool,
    failure: std::sync::Mutex<Option<io::Error>>,
}

/// Says that the thread has ended when it is dropped; by a panic, the session with it.
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

/// Whether this process records itself: one recording at a time.
static IS_TAKEN: PerProcess<AtomicBool> = PerProcess::new();

/// Begins to record events of these tags into a new file.
///
/// # Errors
///
/// When the file can't be created, there is no memory or no thread for it, the process records itself already, or a
/// thread is in the middle of an event of the recording before.
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
        free_place()?; // Of the recording before.
        let file = File::create(path)?;
        let shared =
            producer::prepare().ok_or_else(|| io::Error::other("no memory for the threads' places"))?;
        let (arena, _file) = Arena::make(PAGES)?;
        let writer = Writer::new(file, arena)?;
        let ends = Arc::new(Ends::default());
        let thread = Arc::clone(&ends);
        // Before there is a thread: a signal handler may fork, and the child has none.
        let by = generation();
        atrace_sys::thread::spawn_quiet("atrace-record", move || {
            let _done = Done(&thread, shared);
            let result = writer.run(&thread.stop);
            shared.close(OWN_SESSION);
            changes::changed();
            let rest = result.and_then(|mut writer| writer.finish());
            if rest.is_ok() {
                arena.give_back()
            } else {
                arena.retire()
            }
            if let (Err(error), Ok(mut failure)) = (rest, thread.failure.lock()) {
                *failure = Some(error);
            }
        })?;
        if by == generation() {
            shared.open(OWN_SESSION, arena, 0, tags & category::ALL);
        }
        Ok(Self { by, thread: Some(ends) })
    }

    /// Ends the recording, and tells whether all of it was written.
    ///
    /// # Errors
    ///
    /// What the file said: the disk is full, perhaps. [`TimedOut`](io::ErrorKind::TimedOut) where a thread is in the middle
    /// of an event and does not come out: all but that one is in the file.
    pub fn finish(mut self) -> io::Result<()> {
        self.end()
    }

    fn end(&mut self) -> io::Result<()> {
        let Some(ends) = self.thread.take().filter(|_| self.by == generation()) else { return Ok(()) };
        ends.stop.store(true, Ordering::Release);
        while !ends.is_done.load(Ordering::Acquire) {
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

/// How long is waited for threads in the middle of an event.
const DRAIN_MS: u32 = 100;

/// Takes the chunks of the session that has ended. A thread that is in the middle of an event for long, since it is
/// stopped there or has left it by a long jump, has its last chunk, and the session's place.
fn free_place() -> io::Result<()> {
    for _ in 0..DRAIN_MS {
        if POOL.reclaim(OWN_SESSION, writer::Writer::finish) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let what = "a thread does not come out of an event: that one is not in the recording";
    Err(io::Error::new(io::ErrorKind::TimedOut, what))
}

/// The file, and what is added to each packet.
struct Writer {
    file: TraceFile,
    arena: &'static Arena,
    speed: Speed,
    anchored: u64,
    bytes: Vec<u8>,
    pid: u32,
    uid: u32,
}

impl Writer {
    fn new(file: File, arena: &'static Arena) -> io::Result<Self> {
        let (pid, uid) = (process::raw_id(), process::user());
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(AT_ONCE).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        Ok(Self { file: TraceFile::new(file), arena, speed: Speed::default(), anchored: 0, bytes, pid, uid })
    }

    fn run(mut self, stop: &AtomicBool) -> io::Result<Self> {
        let mut pause = SHORTEST;
        loop {
            // Looked at before the last round: what was written until then is in the file.
            let is_last = stop.load(Ordering::Acquire);
            self.anchor();
            let is_any = self.write()?;
            if is_last {
                return Ok(self);
            }
            pause = if is_any { SHORTEST } else { LONGEST.min(pause * 2) };
            // In short steps, so that the end is not waited for.
            let mut left = pause;
            while !left.is_zero() && !stop.load(Ordering::Acquire) {
                let step = left.min(Duration::from_millis(10));
                std::thread::sleep(step);
                left -= step;
            }
        }
    }

    /// After the session was closed: what its threads had begun.
    fn finish(&mut self) -> io::Result<()> {
        let freed = free_place();
        self.write()?;
        if freed.is_err() {
            let arena = self.arena;
            let mut result = Ok(());
            arena.read_left(|writer, packet| self.add(writer, packet, &mut result));
            result.and_then(|()| self.write_bytes())?;
        }
        freed
    }

    fn anchor(&mut self) {
        let now = clock::asked();
        if !self.speed.is_known() || now.wrapping_sub(self.anchored) > 900_000_000 {
            clock::anchor(&mut self.speed);
            self.anchored = now;
            POOL.look_for_ended(writer::finish);
        }
    }

    /// Writes what was handed over; tells whether there was anything.
    fn write(&mut self) -> io::Result<bool> {
        let (arena, mut is_any, mut result) = (self.arena, false, Ok(()));
        for place in arena.take_handed() {
            arena.read(&place, |writer, packet| {
                is_any = true;
                self.add(writer, packet, &mut result);
            });
        }
        result.and_then(|()| self.write_bytes())?;
        Ok(is_any)
    }

    /// Adds a packet to the bytes, which are written first where it has no room.
    fn add(&mut self, writer: u16, packet: &[u8], result: &mut io::Result<()>) {
        if self.bytes.capacity() - self.bytes.len() < packet.len() + ADDED_MAX && result.is_ok() {
            *result = self.write_bytes();
        }
        if result.is_ok() {
            add(&mut self.bytes, packet, &Whose::new(writer.into(), self.pid, self.uid), false);
        }
    }

    fn write_bytes(&mut self) -> io::Result<()> {
        let written = self.file.write(&self.bytes);
        self.bytes.clear();
        written
    }
}
