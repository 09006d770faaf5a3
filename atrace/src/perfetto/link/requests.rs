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
        let Some(found) = self.methods.get(method).copied().flatten() else { return Ok(0) };
        self.request += 1;
        let bytes = wire::invoke(&mut self.scratch, self.request, found, wants_reply, arguments);
        self.outbox.extend_from_slice(bytes.ok_or(Gone::Unable)?);
        Ok(self.request)
    }

    /// Invokes a method whose arguments are these numbers, by their fields; nobody waits for the reply.
    #[inline(never)]
    pub(super) fn notify(&mut self, method: usize, numbers: &[(u32, u64)]) -> Result<(), Gone> {
        self.invoke(method, false, |arguments| {
            for (field, number) in numbers {
                arguments.number(*field, *number);
            }
        })?;
        Ok(())
    }

    /// Sends the requests, the first of them with a descriptor.
    pub(super) fn send(&mut self, descriptor: Option<i32>) -> Result<(), Gone> {
        let is_sent = self.socket.send(&self.outbox, descriptor);
        self.outbox.clear();
        if is_sent { Ok(()) } else { Err(Gone::Errno(EPIPE)) }
    }

    pub(super) fn receive(&mut self, say: fn(Standing)) -> Result<(), Gone> {
        let mut received = [0; RECEIVED_MAX];
        let (len, descriptor) = match self.socket.receive(&mut received) {
            Ok(Some(got)) => got,
            Ok(None) => return Ok(()),
            Err(code) => return Err(Gone::Errno(code)),
        };
        if descriptor.is_some() {
            self.received = descriptor;
        }
        let mut inbox = std::mem::take(&mut self.inbox);
        inbox.extend_from_slice(received.get(..len).unwrap_or_default());
        let mut rest = &inbox[..];
        while let Some((frame, len)) = wire::split(rest)? {
            self.handle(frame.request, frame.body, say)?;
            rest = rest.get(len..).unwrap_or_default();
        }
        self.inbox = rest.to_vec();
        Ok(())
    }
}
