//! A client of the system's tracing service: this client makes the service record programs and the kernel into a file,
//! and lists the producers that are connected to the service.
//!
//! # Protocol
//!
//! Perfetto's service listens on a second socket for *consumers*. A consumer invokes methods of the `ConsumerPort`
//! interface, in the same frames as on the producer's socket (`atrace_perfetto::wire`). One `EnableTracing` request,
//! which carries the trace configuration and the file's descriptor, starts a session. The service itself writes to the
//! file, so packets never pass through this process. The service replies to `EnableTracing` when the session ends.
//!
//! # Time limits
//!
//! The time to wait for replies is limited: to `PATIENCE` for all replies together until the recording has begun, to
//! `PATIENCE` again for the flush at the end of the recording, and to `PATIENCE_AT_END` for the end itself. If the
//! service does not answer in time, the functions return an error.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

use atrace_perfetto::proto::{Reader, Writer};
use atrace_perfetto::socket::{self, Socket};
use atrace_perfetto::wire::{self, Body, FRAME_MAX, Method, PREFIX};

use crate::escape::shown;
use crate::service::{bytes, number, source_config};

/// The time limit for all replies together until a recording has begun. Also the time limit for the flush at the end of
/// the recording.
const PATIENCE: Duration = Duration::from_secs(3);
/// The time limit for the end of a recording. This limit is longer than the five seconds that a service gives its
/// producers to stop.
const PATIENCE_AT_END: Duration = Duration::from_secs(6);
/// The maximum number of bytes that the service may send before a reply is complete.
const REPLY_MAX: usize = 4 << 20;
/// The maximum length of the service's reason for ending a recording, in bytes. The rest is not shown.
const FAULT_MAX: usize = 1000;
/// The interval at which the service writes to the file, in milliseconds.
const PERIOD_MS: u64 = 1000;
/// The interval at which the service asks the producers to commit their chunks, in milliseconds.
const FLUSH_PERIOD_MS: u64 = 5000;
/// The time in which producers must commit their chunks in the final flush, in milliseconds.
const FLUSH_MS: u64 = 2000;

/// The programs and kernel events to record.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// The size of the service's buffer, in KiB.
    pub buffer_kib: u64,
    /// Patterns for the names of the producers; `*` matches any text. If there are no patterns, all producers are
    /// recorded.
    pub producers: Vec<String>,
    /// Apps that use ATrace and that the service should switch on. The service switches apps on only on Android.
    pub atrace_apps: Vec<String>,
    /// Events of the kernel: `group/event`, or `group` for the whole group.
    pub events: Vec<String>,
}

/// The service's state: the producers and data sources that are connected to it.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// The names of the producers, and the ids of their users.
    pub producers: Vec<(String, u32)>,
    /// The names of the data sources that can be recorded.
    pub sources: Vec<String>,
    /// The number of recording sessions of the service.
    pub sessions: u64,
}

/// A connection to the service.
#[derive(Debug)]
pub struct Consumer {
    socket: Socket,
    inbox: Vec<u8>,
    scratch: Vec<u8>,
    request: u64,
    /// The remaining time in which the service must send its replies.
    left: Duration,
    methods: HashMap<Vec<u8>, Method>,
    /// The number of the `EnableTracing` request, which the service answers when the session has ended.
    enabled: u64,
    /// The reason why the session ended, if this client did not end it.
    ended: Option<String>,
}

impl Consumer {
    /// Connects to the system's service.
    ///
    /// # Errors
    ///
    /// Returns an error if no trusted service listens, if the service does not answer in time, or if its answer is
    /// invalid.
    pub fn connect() -> io::Result<Self> {
        let (name, trust) = socket::consumers();
        let socket =
            Socket::connect(&name, trust).map_err(|refused| io::Error::other(refused.to_string()))?;
        let scratch = vec![0; FRAME_MAX + PREFIX];
        let (inbox, methods) = (Vec::new(), HashMap::new());
        let mut consumer =
            Self { socket, inbox, scratch, request: 1, left: PATIENCE, methods, enabled: 0, ended: None };
        let bind = wire::bind(&mut consumer.scratch, 1, "ConsumerPort").ok_or_else(too_long)?;
        if !consumer.socket.send(bind, None) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let bound = consumer.receive(|request, body| match body {
            Body::Bound(bound) if request == 1 => Some(bound.to_vec()),
            _ => None,
        })?;
        let lacks = || io::Error::other("the service has no ConsumerPort");
        let methods = wire::methods(&bound).ok_or_else(lacks)?;
        consumer.methods = methods.map(|(name, method)| (name.to_vec(), method)).collect();
        Ok(consumer)
    }

    /// Invokes a method and returns the request's number.
    fn invoke(
        &mut self,
        method: &str,
        file: Option<&File>,
        arguments: impl FnOnce(&mut Writer<'_>),
    ) -> io::Result<u64> {
        let lacks = || io::Error::other(format!("the service has no {method}"));
        let found = *self.methods.get(method.as_bytes()).ok_or_else(lacks)?;
        self.request += 1;
        let frame = wire::invoke(&mut self.scratch, self.request, found, true, arguments);
        let frame = frame.ok_or_else(too_long)?;
        if !self.socket.send(frame, file.map(std::os::fd::AsRawFd::as_raw_fd)) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        Ok(self.request)
    }

    /// Receives frames until `what` returns a value for a frame. The waiting time is subtracted from `left`. If no time
    /// is left, only frames that have already arrived are received.
    fn receive<T>(&mut self, mut what: impl FnMut(u64, Body<'_>) -> Option<T>) -> io::Result<T> {
        let (had_time, mut received) = (!self.left.is_zero(), 0);
        loop {
            let (mut at, mut found) = (0, None);
            while found.is_none()
                && let Some((frame, len)) = wire::split(self.inbox.get(at..).unwrap_or_default())
                    .map_err(|_| io::Error::other("the service sent an invalid frame"))?
            {
                found = what(frame.request, frame.body);
                at += len;
            }
            self.inbox.drain(..at);
            if let Some(found) = found {
                return Ok(found);
            }
            if received > REPLY_MAX {
                return Err(io::Error::other("the service's reply is too long"));
            }
            let start = Instant::now();
            let is_ready = !(had_time && self.left.is_zero()) && self.socket.wait(Some(self.left));
            self.left = self.left.saturating_sub(start.elapsed());
            if !is_ready && self.left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            // A signal may have ended the wait before any bytes arrived.
            let old = self.inbox.len();
            self.inbox.resize(old + FRAME_MAX, 0);
            let got = self.socket.receive_bytes(&mut self.inbox[old..]);
            let len = got.as_ref().map_or(0, |got| got.unwrap_or(0));
            self.inbox.truncate(old + len);
            received += len;
            got.map_err(io::Error::from_raw_os_error)?;
        }
    }

    /// Passes the replies to the request with the number `wanted` to `each`. Returns when the last reply has arrived.
    fn replies(&mut self, wanted: u64, mut each: impl FnMut(&[u8])) -> io::Result<()> {
        let is_done = self.receive(|request, body| match body {
            Body::Reply { is_success, has_more, reply } if request == wanted => {
                each(reply);
                (!has_more).then_some(is_success)
            }
            _ => None,
        })?;
        if is_done { Ok(()) } else { Err(io::Error::other("the service refused")) }
    }

    /// Asks the service for its state.
    ///
    /// # Errors
    ///
    /// Returns an error if the service does not answer.
    pub fn state(&mut self) -> io::Result<State> {
        let wanted = self.invoke("QueryServiceState", None, |_| ())?;
        let mut state = State::default();
        let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
        self.replies(wanted, |reply| {
            for (field, value) in Reader::new(bytes(reply, 1)) {
                let part = value.bytes();
                match field {
                    1 => state.producers.push((text(bytes(part, 2)), number(part, 3) as u32)),
                    2 => state.sources.push(text(bytes(bytes(part, 1), 1))),
                    3 => state.sessions = value.number(),
                    _ => {}
                }
            }
        })?;
        Ok(state)
    }

    /// Makes the service record into a file, until [`stop`](Self::stop).
    ///
    /// # Errors
    ///
    /// Returns an error if the service refuses the session, does not answer in time, or has closed the
    /// connection.
    pub fn start(&mut self, wanted: &Wanted, file: &File) -> io::Result<()> {
        self.enabled = self.invoke("EnableTracing", Some(file), |arguments| {
            arguments.message(1, |config| wanted.write(config));
        })?;
        // The service answers `QueryCapabilities` after it has set up the session. If the service refuses the session,
        // it answers `EnableTracing` first.
        let (enabled, asked) = (self.enabled, self.invoke("QueryCapabilities", None, |_| ())?);
        let refused = self.receive(|request, body| match body {
            Body::Reply { reply, .. } if request == enabled => Some(Some(end_of(reply))),
            Body::Reply { .. } if request == asked => Some(None),
            _ => None,
        })?;
        refused.map_or(Ok(()), |why| Err(io::Error::other(format!("the service refused: {why}"))))
    }

    /// Returns the reason why the recording ended, if this client did not end it: for example, the service has exited,
    /// or its disk is full. Returns `None` while the recording runs. This function does not wait.
    pub fn ended(&mut self) -> Option<&str> {
        let enabled = self.enabled;
        if self.ended.is_none() {
            let left = std::mem::take(&mut self.left);
            let ended = self.receive(|request, body| match body {
                Body::Reply { reply, .. } if request == enabled => Some(end_of(reply)),
                _ => None,
            });
            self.left = left;
            self.ended = match ended {
                Err(e) if e.kind() == io::ErrorKind::TimedOut => None,
                ended => Some(ended.unwrap_or_else(|e| e.to_string())),
            };
        }
        self.ended.as_deref()
    }

    /// Ends the recording. Before that, the service collects the events that the producers have written until now.
    ///
    /// # Errors
    ///
    /// Returns an error if the service does not answer, has already [ended](Self::ended) the recording, or reports that
    /// the recording failed.
    pub fn stop(&mut self) -> io::Result<()> {
        if let Some(why) = self.ended() {
            return Err(io::Error::other(why));
        }
        self.left = PATIENCE;
        let flushed = self.invoke("Flush", None, |flush| {
            flush.number(1, FLUSH_MS);
        })?;
        match self.replies(flushed, |_| ()) {
            Err(e) if e.kind() == io::ErrorKind::TimedOut => return Err(e),
            // The flush fails if a producer has just exited and so does not answer. The packets of that producer are
            // recorded nevertheless.
            _ => {}
        }
        self.left = PATIENCE_AT_END;
        self.invoke("DisableTracing", None, |_| ())?;
        let mut error = String::new();
        self.replies(self.enabled, |reply| error = fault_of(reply))?;
        let freed = self.invoke("FreeBuffers", None, |_| ())?;
        self.replies(freed, |_| ())?;
        if error.is_empty() { Ok(()) } else { Err(io::Error::other(error)) }
    }
}

impl Wanted {
    /// Writes the `TraceConfig`.
    fn write(&self, config: &mut Writer<'_>) {
        config.message(1, |buffer| {
            buffer.number(1, self.buffer_kib).number(4, 1);
        });
        config.message(2, |source| {
            source.message(1, |source| source_config(source, 0, false));
            for pattern in &self.producers {
                // The pattern may match the whole name, or the part after one of the slashes in the name.
                source.bytes(3, format!("(.*/)?{}", regex(pattern)).as_bytes());
            }
        });
        if !self.atrace_apps.is_empty() || !self.events.is_empty() {
            config.message(2, |source| {
                source.message(1, |source| {
                    source.bytes(1, b"linux.ftrace").message(100, |kernel| {
                        for event in &self.events {
                            let group = if event.contains('/') { "" } else { "/*" };
                            kernel.bytes(1, format!("{event}{group}").as_bytes());
                        }
                        for app in &self.atrace_apps {
                            kernel.bytes(3, app.as_bytes());
                        }
                    });
                });
            });
            config.message(2, |source| {
                source.message(1, |source| {
                    source.bytes(1, b"linux.process_stats");
                });
            });
        }
        // write_into_file, file_write_period_ms, flush_period_ms
        config.number(8, 1).number(9, PERIOD_MS).number(13, FLUSH_PERIOD_MS);
    }
}

fn too_long() -> io::Error {
    io::Error::other("the request is too long")
}

/// Returns the reason that the service gives for the failure of an ended session, escaped for a terminal. The text is
/// empty if the session did not fail.
fn fault_of(reply: &[u8]) -> String {
    let fault = bytes(reply, 3);
    shown(&fault[..fault.len().min(FAULT_MAX)]).to_string()
}

/// Returns the reason why the service has ended a session that this client did not end. (If the service can't write the
/// file, the service gives no reason.)
fn end_of(reply: &[u8]) -> String {
    let fault = fault_of(reply);
    if fault.is_empty() { "it does not say why; the disk may be full".to_owned() } else { fault }
}

/// Converts a pattern to a regular expression. The caller puts `(.*/)?` before it, and the service compares the whole
/// name of a producer with the result.
fn regex(pattern: &str) -> String {
    let (mut regex, mut rest) = (String::new(), pattern);
    while let Some(c) = rest.chars().next() {
        let mut len = c.len_utf8();
        match (c, end_of_set(rest)) {
            ('*', _) => regex.push_str(".*"),
            ('?', _) => regex.push('.'),
            ('[', Some(end)) => {
                let inner = rest.get(1..end).unwrap_or_default();
                let (start, inner) =
                    inner.strip_prefix(['!', '^']).map_or(("[", inner), |inner| ("[^", inner));
                regex.push_str(start);
                // In a pattern, `]` as the first character of a set is an ordinary character.
                regex.push_str(if inner.starts_with(']') { "\\" } else { "" });
                regex.push_str(&inner.replace('\\', "\\\\"));
                regex.push(']');
                len = end + 1;
            }
            (c, _) if "^$\\.+()[]{}|".contains(c) => regex.extend(['\\', c]),
            (c, _) => regex.push(c),
        }
        rest = rest.get(len..).unwrap_or_default();
    }
    regex
}

/// Returns the index of the `]` that ends the set of characters at the start of `set`, such as `[a-z]`, `[!]]` or
/// `[[:digit:]]`. Returns `None` if no set begins there.
fn end_of_set(set: &str) -> Option<usize> {
    let mut at = 1 + usize::from(set.strip_prefix('[')?.starts_with(['!', '^']));
    at += usize::from(set.get(at..)?.starts_with(']'));
    loop {
        at += set.get(at..)?.find(['[', ']'])?;
        let rest = set.get(at..)?;
        if rest.starts_with(']') {
            return Some(at);
        }
        at += if rest.starts_with("[:") { rest.find(":]")? + 2 } else { 1 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_a_regular_expression() {
        for (pattern, expected) in [
            ("plain", "plain"),
            ("*/my_app.x", r".*/my_app\.x"),
            ("(a|b)+{2}^$\\", r"\(a\|b\)\+\{2\}\^\$\\"),
            ("a?é?", "a.é."),
            ("x[1]y", "x[1]y"),
            ("[!a-z][^b]", "[^a-z][^b]"),
            ("[]a][!]a]", r"[\]a][^\]a]"),
            ("[[:digit:]x][[]", "[[:digit:]x][[]"),
            (r"[\]", r"[\\]"),
            ("no[set", r"no\[set"),
            ("no[[:set", r"no\[\[:set"),
        ] {
            assert_eq!(regex(pattern), expected, "{pattern}");
        }
    }
}
