//! The process of a mode, as the bench has it: it is asked, and waited for.

use std::collections::BTreeSet;
use std::io::{self, BufRead as _, BufReader, Lines, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::Fixture;
use super::case::Info;
use super::exchange::{Counted, REPLY, Reply, Request, Slice};
use super::mode::Mode;
use super::results::Results;
use crate::harness::child;
use crate::harness::reader::Reader;
use crate::harness::terminal::say;
use crate::instruments::alloc::Counts;
use crate::stats::sample::Sample;

/// Has glibc's allocator keep what it has, as it does in a program that has run for long. By default it gives memory
/// back to the kernel, and asks for it again, until a large block was freed: whether that has happened is different for
/// each process, and a quarter of what a task costs.
const ALLOCATOR: [(&str, &str); 2] =
    [("MALLOC_TRIM_THRESHOLD_", "268435456"), ("MALLOC_MMAP_THRESHOLD_", "33554432")];

/// How often that is counted which differs from run to run.
const INEXACT: usize = 7;

/// The process of a mode.
pub(super) struct Process {
    mode: Mode,
    child: Child,
    /// Closing it is how the process is told to end.
    requests: Option<ChildStdin>,
    replies: Lines<BufReader<ChildStdout>>,
    /// The cases whose messages it has.
    has: BTreeSet<usize>,
    /// Who takes its events, or would, if they go by Perfetto's way.
    _reader: Option<Reader>,
}

impl Drop for Process {
    fn drop(&mut self) {
        // After an error. One that has ended is not hit: it was waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    /// Starts it and waits until it is ready, under a name of its own: switching tracing on for one must not
    /// for the others.
    pub(super) fn start(bench: &str, mode: &Mode, generation: usize, fixture: &Fixture) -> io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg0(format!("{bench}-{}-{}-{generation}", mode.name, std::process::id()))
            .args(["--mode", mode.name])
            .args(std::env::args_os().skip(1))
            .envs(ALLOCATOR)
            .envs(fixture.env())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let reader = mode.sessions.map(Reader::with_sessions).transpose()?;
        if let Some(reader) = &reader {
            reader.offer(&mut command);
        }
        let mut child = child::adopt(&mut command).spawn()?;
        let requests = child.stdin.take();
        let replies = BufReader::new(child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?).lines();
        let has = BTreeSet::new();
        let mut process = Self { mode: *mode, child, requests, replies, has, _reader: reader };
        // One after the other: what switches tracing reads the properties and writes them back.
        process.reply::<()>("its start")?;
        Ok(process)
    }

    pub(super) fn is_by_perfetto(&self) -> bool {
        self.mode.is_by_perfetto()
    }

    /// Runs a slice of a case, and unless it is the first operation ever, some before that are not timed.
    pub(super) fn slice(
        &mut self,
        results: &Results,
        case: usize,
        place: usize,
        n: u64,
        warm: bool,
    ) -> io::Result<Slice> {
        let Info { batch, afresh, .. } = results.cases()[case];
        // What comes in batches is short, and the first one has a runtime's threads start.
        let least = if afresh && batch > 1 { batch } else { 0 };
        let warm_up = if warm { least.max(n / 8 / batch * batch) } else { 0 };
        self.ask(&Request::Slice { case, place, warm_up, n }, results.case_id(case))
    }

    /// Finds how long one operation takes.
    pub(super) fn calibrate(
        &mut self,
        results: &Results,
        case: usize,
        slice: Duration,
    ) -> io::Result<Duration> {
        let mut n = results.cases()[case].batch;
        loop {
            let Slice { took, elapsed, .. } = self.slice(results, case, 0, n, false)?;
            // What is made anew, is made outside of what is timed, once for however many.
            let took = if results.cases()[case].afresh { took } else { elapsed };
            if took >= slice || n >= 1 << 30 {
                return Ok(took.div_f64(n as f64));
            }
            n *= 2;
        }
    }

    /// Counts the allocations of `n` operations.
    pub(super) fn count(&mut self, results: &Results, case: usize, n: u64) -> io::Result<Option<Counts>> {
        let id = results.case_id(case);
        let exact = results.is_exact(case) && self.mode.exact;
        let times = if exact { 2 } else { INEXACT };
        let counted: Counted = self.ask(&Request::Count { case, n, times }, id)?;
        let Some(mut counts) = counted else { return Ok(None) };
        if exact
            && let [once, again] = counts[..]
            && (once.allocs, once.bytes) != (again.allocs, again.bytes)
        {
            return Err(self.error(id, &format!("allocates {once:?}, and the second time {again:?}")));
        }
        counts.sort_unstable_by_key(|counts| (counts.allocs, counts.bytes));
        Ok(counts.get(counts.len() / 2).copied())
    }

    /// Returns the first messages of one operation; none where the sink can't be read.
    pub(super) fn capture(&mut self, results: &Results, case: usize) -> io::Result<Vec<Vec<u8>>> {
        self.ask(&Request::Capture { case }, results.case_id(case))
    }

    /// Has it only write messages, and returns what one takes.
    pub(super) fn raw(
        &mut self,
        case: usize,
        messages: &[Vec<u8>],
        slice: Duration,
        inlined: bool,
    ) -> io::Result<Sample> {
        let messages = self.has.insert(case).then(|| messages.to_vec());
        self.ask(&Request::Raw { case, messages, slice, inlined }, "its raw writes")
    }

    /// Waits until a reader of Perfetto's way has all that it wrote, no more and no less.
    pub(super) fn settle(&mut self) -> io::Result<()> {
        self.ask(&Request::Settle, "all that it wrote for its reader")
    }

    /// Has it end.
    pub(super) fn end(mut self) -> io::Result<()> {
        self.requests = None;
        for line in &mut self.replies {
            say(line?);
        }
        let status = self.child.wait()?;
        if status.success() { Ok(()) } else { Err(self.error("its end", &format!("ended with {status}"))) }
    }

    fn ask<T: DeserializeOwned>(&mut self, request: &Request, about: &str) -> io::Result<T> {
        let mut line = serde_json::to_string(request)?;
        line.push('\n');
        if let Some(requests) = &mut self.requests {
            // When it is gone, how it ended says more than this error.
            let _ = requests.write_all(line.as_bytes());
        }
        self.reply(about)
    }

    fn reply<T: DeserializeOwned>(&mut self, about: &str) -> io::Result<T> {
        for line in &mut self.replies {
            let line = line?;
            if let Some(json) = line.strip_prefix(REPLY) {
                let reply: Reply<T> = serde_json::from_str(json)?;
                return reply.map_err(|wrong| self.error(about, &wrong));
            }
            say(line);
        }
        let status = self.child.wait()?;
        Err(self.error(about, &format!("the process ended with {status}")))
    }

    fn error(&self, about: &str, what: &str) -> io::Error {
        io::Error::other(format!("mode {}, {about}: {what}", self.mode.name))
    }
}
