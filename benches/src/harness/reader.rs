//! The consumer of a bench's Perfetto events: the tracing service of the command `atrace`, in a process of its own.
//!
//! This consumer is called the reader. It is a process of the same program as the bench. The bench starts the process,
//! and has a [`Reader`] as its handle. The process ends when its parent ends, for whatever reason. The service in the
//! process shares memory with the measured processes, and copies the events from there to a file in memory. The file is
//! emptied whenever it is large. A measured process that is started with the reader's [environment
//! variables](Reader::env) connects to the reader by [`Reading::begin`]. From then on, the reader records the events of
//! the measured process. The measured process can ask the reader how many events have arrived; this number proves that
//! tracing was on.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
#[cfg(target_os = "android")]
use std::os::android::net::SocketAddrExt as _;
#[cfg(not(target_os = "android"))]
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use atrace_cli::service::{Service, Storage};
use rustix::fs::{MemfdFlags, OFlags, fcntl_setfl, memfd_create};

use super::child::{self, Helper};
use crate::instruments::clock::process_cpu;

/// The argument of `--mode` that makes a process of the bench the reader.
pub(super) const MODE: &str = "reader";
/// The environment variable with the address of the tracing service. The address is an abstract socket name (it begins
/// with `@`), so that no socket file is left behind.
const PRODUCERS: &str = "PERFETTO_PRODUCER_SOCK_NAME";
/// The environment variable with the number of Perfetto sessions in which the reader records.
const SESSIONS: &str = "ATRACE_BENCH_SESSIONS";
const READY: &str = "ready";
/// The size, in bytes, of the file of recorded data above which the data is discarded.
const KEPT: u64 = 64 << 20;
/// The time limit for the start of a session, and for the arrival of events. It must be longer than a second, because
/// the service reads chunks that are not full only once a second.
const PATIENCE: Duration = Duration::from_secs(10);

/// The handle of a reader's process (a consumer of Perfetto events). Dropping this value ends the process.
#[derive(Debug)]
pub struct Reader {
    process: Helper,
    env: [(&'static str, String); 2],
}

impl Reader {
    /// Starts a reader with a number of Perfetto sessions, each of which records every event. The calling thread must
    /// live as long as the reader, because the kernel kills the reader when this thread ends.
    ///
    /// # Errors
    ///
    /// Returns an error if the reader's process does not begin to listen.
    pub fn with_sessions(sessions: u32) -> io::Result<Self> {
        let place = format!("@atrace-bench-{}-{:x}", std::process::id(), fastrand::u64(..));
        let env = [(PRODUCERS, place), (SESSIONS, sessions.to_string())];
        let mut command = child::in_mode(MODE)?;
        let mut process = Helper::start(command.envs(env.iter().map(|(name, value)| (name, value))))?;
        process
            .hear(READY)?
            .ok_or("the reader of Perfetto's memory does not begin to listen")
            .map_err(io::Error::other)?;
        Ok(Self { process, env })
    }

    /// Returns the process id of the reader.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Returns the environment variables with which a process must be started, so that this reader can record its
    /// events.
    pub fn env(&self) -> [(&'static str, &str); 2] {
        self.env.each_ref().map(|(name, value)| (*name, &value[..]))
    }
}

/// The number of events that a reader has received, and the reader's CPU time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// The number of events that have arrived from all processes since the reader was started. An event is counted once
    /// for each session.
    pub events: u64,
    /// The CPU time that the reader's process has used.
    pub cpu: Duration,
}

/// The connection of this process to a reader (the consumer that records its Perfetto events).
#[derive(Debug)]
pub struct Reading {
    questions: Mutex<UnixStream>,
    sessions: u32,
    /// The number of events that the reader had received, and the number that this process had lost, when the sessions
    /// had begun.
    before: (Taken, u64),
}

impl Reading {
    /// Connects this process to the reader that the environment variables name. The connection lasts until the process
    /// ends. The function returns when all sessions have begun.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no reader, or if the reader has fewer sessions than the environment variables say.
    pub fn begin() -> io::Result<Self> {
        let place = std::env::var(PRODUCERS).map_err(|_| io::Error::other("no reader was started"))?;
        let questions = Mutex::new(UnixStream::connect_addr(&questions(&place)?)?);
        let sessions = sessions()?;
        atrace::perfetto::connect();
        let status = atrace::perfetto::status;
        let is_ready = || Ok(status().is_connected() && status().sessions() >= sessions);
        until(is_ready, || format!("not connected, or too few sessions have begun; {}", status()))?;
        let mut this = Self { questions, sessions, before: (Taken::default(), 0) };
        this.before = (this.taken()?, lost());
        Ok(this)
    }

    /// Returns the number of the reader's sessions. Each session records each event.
    pub fn sessions(&self) -> u32 {
        self.sessions
    }

    /// Returns the number of events that the reader has received so far, and its CPU time. The events in a full chunk
    /// arrive within milliseconds. The events in other chunks arrive once a second.
    ///
    /// # Errors
    ///
    /// Returns an error if the reader has ended.
    pub fn taken(&self) -> io::Result<Taken> {
        let mut questions = self.questions.lock().unwrap_or_else(PoisonError::into_inner);
        questions.write_all(&[0])?;
        let mut answer = [[0; 8]; 2];
        questions.read_exact(answer.as_flattened_mut())?;
        let [events, cpu] = answer.map(u64::from_ne_bytes);
        Ok(Taken { events, cpu: Duration::from_nanos(cpu) })
    }

    /// Returns two numbers since [`begin`](Self::begin): how many events of this process have arrived, counted once for
    /// each session, and how many events this process has lost. No other process may have written to the same reader.
    ///
    /// # Errors
    ///
    /// Returns an error if the reader has ended.
    pub fn come_and_lost(&self) -> io::Result<(u64, u64)> {
        let (taken, before) = self.before;
        Ok((self.taken()?.events - taken.events, lost() - before))
    }

    /// Waits until all events that this process has written, except at most `open` events, have arrived in each session
    /// or were lost. The number of written events is between `least` and `most`. A lost event counts twice here: on a
    /// named track, if the begin of a slice was lost, its end is neither written nor counted as lost.
    ///
    /// # Errors
    ///
    /// Returns an error if the events do not arrive, or if more events arrive than were written.
    pub fn wait_for(&self, [least, most]: [u64; 2], open: u64) -> io::Result<()> {
        let [least, most, open] = [least, most, open].map(|events| events * u64::from(self.sessions));
        let now = Cell::new((0, 0));
        let all_came = || {
            now.set(self.come_and_lost()?);
            let (come, lost) = now.get();
            Ok(come + 2 * lost + open >= least)
        };
        until(all_came, || {
            format!("{least} events were written, {} came, {} were lost", now.get().0, now.get().1)
        })?;
        let (come, lost) = now.get();
        let all = format!("{most} events were written, {come} came, {lost} were lost");
        if come + lost > most { Err(io::Error::other(all)) } else { Ok(()) }
    }
}

/// Returns how many events of this process were lost, as counted by this process.
fn lost() -> u64 {
    atrace::perfetto::status().lost()
}

/// Waits until `so` returns true. If the time limit [`PATIENCE`] is exceeded, returns an error with the text that `why`
/// returns.
fn until(mut so: impl FnMut() -> io::Result<bool>, why: impl FnOnce() -> String) -> io::Result<()> {
    let start = Instant::now();
    while !so()? {
        if start.elapsed() > PATIENCE {
            return Err(io::Error::other(why()));
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    Ok(())
}

/// Returns the number of sessions that the environment variables name.
fn sessions() -> io::Result<u32> {
    std::env::var(SESSIONS).map_or(Ok(1), |n| n.parse()).map_err(io::Error::other)
}

/// Returns the address of the socket on which a reader answers questions about the number of arrived events. `place` is
/// the address of the reader's tracing service.
fn questions(place: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("{}-questions", place.trim_start_matches('@')))
}

/// Runs as the reader, until this process is killed.
pub(super) fn run() -> io::Result<std::convert::Infallible> {
    let place = std::env::var(PRODUCERS).map_err(io::Error::other)?;
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(place.trim_start_matches('@'))?)?;
    let asked = UnixListener::bind_addr(&questions(&place)?)?;
    let file = File::from(memfd_create("atrace-bench", MemfdFlags::CLOEXEC)?);
    // With O_APPEND, writing continues at the new end of the file after the file was truncated.
    fcntl_setfl(&file, OFlags::APPEND)?;
    let keep = Storage::File { file: file.try_clone()?, max: None };
    let uid = rustix::process::geteuid().as_raw();
    let service = Arc::new(Service::start_sessions(listener, uid, sessions()?, keep)?);
    std::thread::spawn(move || {
        for who in asked.incoming().filter_map(Result::ok) {
            let service = Arc::clone(&service);
            std::thread::spawn(move || answer(&who, &service));
        }
    });
    println!("{READY}");
    loop {
        std::thread::sleep(Duration::from_millis(20));
        if file.metadata()?.len() > KEPT {
            file.set_len(0)?;
        }
    }
}

/// Answers the questions that a measured process sends on a connection, until the connection is closed.
fn answer(mut who: &UnixStream, service: &Service) -> io::Result<()> {
    loop {
        who.read_exact(&mut [0])?;
        let cpu = u64::try_from(process_cpu().as_nanos()).unwrap_or(u64::MAX);
        let answer = [service.events(), cpu].map(u64::to_ne_bytes);
        who.write_all(answer.as_flattened())?;
    }
}
