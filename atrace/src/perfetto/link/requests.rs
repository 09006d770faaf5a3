//! Requests and replies: what is said to the service, in frames that are sent together.

use atrace_sys::perfetto::proto::Writer;
use atrace_sys::perfetto::wire;

use super::connection::Link;
use crate::perfetto::standing::{Gone, Standing};

/// As much is received at once.
const RECEIVED_MAX: usize = 4 << 10;

/// How a send fails whose peer is gone.
const EPIPE: i32 = 32;

impl Link {
    /// Invokes a method; returns the request's number. A method that the service does not have is not missed. Requests
    /// are sent together, before the next wait.
    pub(super) fn invoke(
        &mut self,
        method: usize,
        wants_reply: bool,
        mut arguments: impl FnMut(&mut Writer<'_>),
    ) -> Result<u64, Gone> {
        self.invoke_by(method, wants_reply, &mut arguments)
    }

    #[inline(never)]
    fn invoke_by(
        &mut self,
        method: usize,
        wants_reply: bool,
        arguments: &mut dyn FnMut(&mut Writer<'_>),
    ) -> Result<u64, Gone> {
        let Some(found) = self.methods[method] else { return Ok(0) };
        self.request += 1;
        let bytes = wire::invoke(&mut self.scratch, self.request, found, wants_reply, arguments);
        self.outbox.extend_from_slice(bytes.ok_or(Gone::Unable)?);
        Ok(self.request)
    }

    /// Sends the requests, the first of them with a descriptor.
    pub(super) fn send(&mut self, descriptor: Option<i32>) -> Result<(), Gone> {
        let is_sent = self.socket.send(&self.outbox, descriptor);
        self.outbox.clear();
        if is_sent { Ok(()) } else { Err(Gone::Errno(EPIPE)) }
    }

    pub(super) fn receive(&mut self, say: fn(Standing)) -> Result<(), Gone> {
        let old = self.inbox.len();
        self.inbox.resize(old + RECEIVED_MAX, 0);
        let got = self.socket.receive(&mut self.inbox[old..]);
        let (len, descriptor) = match got {
            Ok(Some(got)) => got,
            Ok(None) => (0, None),
            Err(code) => return Err(Gone::Errno(code)),
        };
        self.inbox.truncate(old + len);
        if descriptor.is_some() {
            self.received = descriptor;
        }
        let inbox = std::mem::take(&mut self.inbox);
        let mut at = 0;
        while let Some((frame, len)) = wire::split(&inbox[at..])? {
            self.handle(frame.request, frame.body, say)?;
            at += len;
        }
        self.inbox = inbox;
        self.inbox.drain(..at);
        Ok(())
    }
}
