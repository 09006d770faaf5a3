//! A reader of Perfetto's way: the command's tracing service, at work in a process of its own.
//!
//! The bench is started once more to be it. It takes what programs write out of the memory that they share with it, into a
//! file in memory, of which nothing is kept for long. [`Reader`] is of who starts it; it ends with that, however that ends. A
//! process with the reader's [environment](Reader::offer) has events taken by it from [`Reading::begin`] on, and asks it how many
//! have come: that is by what it is known that tracing was on.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
#[cfg(target_os = "android")]
use std::os::android::net::SocketAddrExt as _;
#[cfg(not(target_os = "android"))]
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use atrace_cli::service::{Keep, Service};
use rustix::fs::{MemfdFlags, OFlags, fcntl_setfl, memfd_create};

use super::child;
use crate::instruments::clock::process_cpu;

/// The mode of the process that is it.
pub(super) const MODE: &str = "reader";
/// Where a program looks for its service: `@` and an abstract name here, of which nothing is left behind.
const PRODUCERS: &str = "PERFETTO_PRODUCER_SOCK_NAME";
/// How many sessions the reader has.
const SESSIONS: &str = "ATRACE_BENCH_SESSIONS";
const READY: &str = "ready";
/// Beyond so many bytes, what was recorded is thrown away.
const KEPT: u64 = 64 << 20;
/// How long is waited for a session, and for events: a chunk that nobody fills is looked at once a second.
const PATIENCE: Duration = Duration::from_secs(10);

/// The process of a reader, which ends when this is dropped.
#[derive(Debug)]
pub struct Reader {
    child: Child,
    env: [(&'static str, String); 2],
}

impl Reader {
    /// Starts one. The calling thread has to live as long as it.
    ///
    /// # Errors
    ///
    /// When it does not begin to listen.
    pub fn start() -> io::Result<Self> {
        Self::with_sessions(1)
    }

    /// Starts one that has every program write each event for so many sessions.
    ///
    /// # Errors
    ///
    /// When it does not begin to listen.
    pub fn with_sessions(sessions: u32) -> io::Result<Self> {
        let place = format!("@atrace-bench-{}-{:x}", std::process::id(), fastrand::u64(..));
        let mut command = Command::new(std::env::current_exe()?);
        let env = [(PRODUCERS, place), (SESSIONS, sessions.to_string())];
        command.args(["--mode", MODE]).envs(env.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut this = Self { child: child::adopt(&mut command).spawn()?, env };
        let said = this.child.stdout.take().and_then(|out| BufReader::new(out).lines().next());
        match said.transpose()?.as_deref() {
            Some(READY) => Ok(this),
            _ => Err(io::Error::other("the reader of Perfetto's way does not begin to listen")),
        }
    }

    /// The number of its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// What a process finds in its environment that is to write for this reader.
    pub fn env(&self) -> [(&'static str, &str); 2] {
        self.env.each_ref().map(|(name, value)| (*name, &value[..]))
    }

    /// Lets a process that is started here write for this reader.
    pub fn offer<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        command.envs(self.env())
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a reader has taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Events of this process and of others that write for it, since it was started.
    pub events: u64,
    /// The processor's time that it has used.
    pub cpu: Duration,
}

/// This process, whose events a reader takes.
#[derive(Debug)]
pub struct Reading {
    questions: Mutex<UnixStream>,
    sessions: u32,
    /// What was taken and lost before.
    before: (Taken, u64),
}

impl Reading {
    /// Connects this process to the reader that its environment names, for good; returns once all sessions have begun.
    ///
    /// # Errors
    ///
    /// When there is none, or fewer sessions.
    pub fn begin() -> io::Result<Self> {
        let place = std::env::var(PRODUCERS).map_err(|_| io::Error::other("no reader was started"))?;
        let questions = Mutex::new(UnixStream::connect_addr(&questions(&place)?)?);
        let sessions = sessions()?;
        atrace::perfetto::connect();
        let is_ready = |now: atrace::perfetto::Status| now.is_connected() && now.sessions() >= sessions;
        until(
            || Ok(is_ready(atrace::perfetto::status())),
            || format!("not connected, or too few sessions have begun; {}", atrace::perfetto::status()),
        )?;
        let mut this = Self { questions, sessions, before: (Taken::default(), 0) };
        this.before = (this.taken()?, lost());
        Ok(this)
    }

    /// As many sessions get each event.
    pub fn sessions(&self) -> u32 {
        self.sessions
    }

    /// What the reader has taken so far: the events of chunks that are full, and once a second those of all others.
    ///
    /// # Errors
    ///
    /// When it is gone.
    pub fn taken(&self) -> io::Result<Taken> {
        let mut questions = self.questions.lock().unwrap_or_else(PoisonError::into_inner);
        questions.write_all(&[0])?;
        let mut answer = [[0; 8]; 2];
        for part in &mut answer {
            questions.read_exact(part)?;
        }
        let [events, cpu] = answer.map(u64::from_ne_bytes);
        Ok(Taken { events, cpu: Duration::from_nanos(cpu) })
    }

    /// How many events of this process came since [`begin`](Self::begin), for each session one, and how many were lost, as it
    /// says itself. Others that write for the same reader must have been quiet.
    ///
    /// # Errors
    ///
    /// When the reader is gone.
    pub fn come_and_lost(&self) -> io::Result<(u64, u64)> {
        let (taken, before) = self.before;
        Ok((self.taken()?.events - taken.events, lost() - before))
    }

    /// Waits until all but `open` of the `written` events of this process have come, for each session one, or were lost.
    ///
    /// # Errors
    ///
    /// When they do not come, or more of them than were written.
    pub fn wait_for(&self, written: u64, open: u64) -> io::Result<()> {
        let [written, open] = [written, open].map(|events| events * u64::from(self.sessions));
        let mut now = (0, 0);
        let all_came = || {
            now = self.come_and_lost()?;
            Ok(now.0 + now.1 + open >= written)
        };
        until(all_came, || format!("of {written} events that were written, some have not come"))?;
        if now.0 + now.1 > written {
            let (come, lost) = now;
            return Err(io::Error::other(format!(
                "{written} events were written, {come} came, {lost} were lost"
            )));
        }
        Ok(())
    }
}

/// How many events this process knows that it lost.
fn lost() -> u64 {
    atrace::perfetto::status().lost()
}

/// Waits until it is so; fails with `why` where it does not become so.
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

/// As many sessions the reader has that the environment names.
fn sessions() -> io::Result<u32> {
    std::env::var(SESSIONS).map_or(Ok(1), |n| n.parse()).map_err(io::Error::other)
}

/// The place of questions to the reader that listens there.
fn questions(place: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("{}-questions", place.trim_start_matches('@')))
}

/// Is the reader, until the process is ended.
pub(super) fn run() -> io::Result<std::convert::Infallible> {
    let place = std::env::var(PRODUCERS).map_err(io::Error::other)?;
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(place.trim_start_matches('@'))?)?;
    let asked = UnixListener::bind_addr(&questions(&place)?)?;
    let file = File::from(memfd_create("atrace-bench", MemfdFlags::CLOEXEC)?);
    // So that it is short again once it was cut.
    fcntl_setfl(&file, OFlags::APPEND)?;
    let keep = Keep::File { file: file.try_clone()?, max: None };
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

/// Answers who asks, until that is gone.
fn answer(mut who: &UnixStream, service: &Service) -> io::Result<()> {
    loop {
        who.read_exact(&mut [0])?;
        let cpu = u64::try_from(process_cpu().as_nanos()).unwrap_or(u64::MAX);
        let answer = [service.events(), cpu].map(u64::to_ne_bytes);
        who.write_all(answer.as_flattened())?;
    }
}
