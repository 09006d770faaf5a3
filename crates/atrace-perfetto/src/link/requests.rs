//! Sending requests and receiving replies. Requests are collected and sent together.

use crate::proto::Writer;
use crate::wire;

use super::connection::{Link, REQUEST_MAX};
use crate::standing::Standing;

/// The errno of sending to a peer that is gone.
const EPIPE: i32 = 32;
/// The maximum size of a request in addition to its arguments.
pub(super) const AROUND: usize = 64;

impl Link {
    /// Adds a request to the outbox: invokes a method with encoded arguments. Returns the request's number, or 0 if
    /// the service lacks the method.
    ///
    /// `arguments` is `None` if they did not fit into their buffer, which is an error. The outbox is sent before the
    /// next wait, or when it is full.
    #[inline(never)]
    pub(super) fn invoke(
        &mut self,
        method: usize,
        wants_reply: bool,
        arguments: Option<&[u8]>,
    ) -> Result<u64, Standing> {
        let Some(found) = self.terms.methods.get(method).copied().filter(|found| found.method != 0) else {
            return Ok(0);
        };
        let arguments = arguments.ok_or(Standing::UNABLE)?;
        if REQUEST_MAX < self.unsent + AROUND + arguments.len() {
            self.send(None)?;
        }
        self.terms.request += 1;
        let request = self.terms.request;
        let room = self.outbox.get_mut(self.unsent..).unwrap_or_default();
        let frame = wire::invoke(room, request, found, wants_reply, |to| to.raw(arguments));
        self.unsent += frame.ok_or(Standing::UNABLE)?.len();
        Ok(request)
    }

    /// Invokes a method without waiting for its reply. The arguments are pairs of a field's number and its value.
    #[inline(never)]
    pub(super) fn notify(&mut self, method: usize, numbers: &[(u32, u64)]) -> Result<(), Standing> {
        let mut arguments = [0; 32];
        let mut writer = Writer::new(&mut arguments);
        for (field, number) in numbers {
            writer.number(*field, *number);
        }
        self.invoke(method, false, writer.finish())?;
        Ok(())
    }

    /// Sends the outbox, with a descriptor if there is one.
    #[inline(never)]
    pub(super) fn send(&mut self, descriptor: Option<i32>) -> Result<(), Standing> {
        let requests = self.outbox.get(..std::mem::take(&mut self.unsent)).unwrap_or_default();
        let is_sent = self.socket.as_ref().is_some_and(|socket| socket.send(requests, descriptor));
        if is_sent { Ok(()) } else { Err(Standing::ended(EPIPE)) }
    }

    /// Receives bytes behind the `len` bytes of an incomplete message, and handles all messages that are complete.
    pub(super) fn receive(
        &mut self,
        inbox: &mut [u8],
        len: &mut usize,
        say: fn(Standing),
    ) -> Result<(), Standing> {
        let Some((socket, room)) = self.socket.as_ref().zip(inbox.get_mut(*len..)) else { return Ok(()) };
        match socket.receive(room) {
            Ok(Some((received, descriptor))) => {
                *len += received;
                self.received = descriptor.or(self.received.take());
            }
            Ok(None) => return Ok(()),
            Err(code) => return Err(Standing::ended(code)),
        }
        let mut rest = inbox.get(..*len).unwrap_or_default();
        while let Some((frame, len)) = wire::split(rest)? {
            self.handle(frame.request, frame.body, say)?;
            rest = rest.get(len..).unwrap_or_default();
        }
        let done = *len - rest.len();
        inbox.copy_within(done..*len, 0);
        *len -= done;
        Ok(())
    }
}
