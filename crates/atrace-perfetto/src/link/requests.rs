//! Requests to the service and the service's replies: the greeting, commits, and the sending and receiving of messages.
//! Requests are collected and sent together, except for commits that contain the bytes of a chunk.
//!
//! The greeting has these steps: a request that binds the service by its name (the reply contains the numbers of the
//! methods); `InitializeConnection`; `GetAsyncCommand` (its replies are the service's commands); `RegisterDataSource`;
//! and `Sync` (its reply comes after all commands for sessions that already exist). A commit reports to the service
//! which chunks are complete.
//!
//! # Memory
//!
//! The service provides the memory with the connection's first session (`SetupTracing`), so that the session can choose
//! the size. This process offers memory of its own with `InitializeConnection` in two cases: if `ATRACE_SHMEM_KB` names
//! a size, and if the service's memory could not be used on the previous connection.
//!
//! A relay to another machine ends a connection on which a descriptor arrives, so the next connection is made without
//! an offer of memory. The service then asks for *emulation*: a commit contains the bytes of a chunk, and the socket
//! thread itself frees the chunk. The service can't read the chunks that threads are still writing. So at a flush, the
//! socket thread sends the bytes of these chunks, too.

use std::ffi::{CStr, OsStr};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;

use super::{COMMANDS, COMMIT, INITIALIZE, LOOKS_MAX, Link, METHODS, NEEDED, REGISTER, REQUEST_MAX, SYNC};
use crate::connection_state::ConnectionState;
use crate::memory::{Arena, Completed};
use crate::proto::{Reader, Writer};
use crate::socket::Socket;
use crate::wire::{self, Body, ChunkPlace, Command};
use crate::{abi, category, early, startup};
use atrace_sys::memory::sealed_size;
use atrace_sys::{Descriptor, process};

/// Returns the number of pages of the shared memory, from its size in KiB, or `None` if that size is not valid. If no
/// size is given, the memory has 1 MiB; a given size must be from 64 KiB to 32 MiB. Pages that are never written take
/// no memory.
fn pages(kib: Option<&OsStr>) -> Option<usize> {
    let kib: usize = kib.map_or(Some(1024), |kib| str::from_utf8(kib.as_bytes()).ok()?.parse().ok())?;
    (KIB_MIN..=KIB_MAX).contains(&kib).then_some(kib * 1024 / abi::PAGE)
}

/// The minimum size of the memory that this process makes, in KiB.
const KIB_MIN: usize = 64;
/// The maximum size of the memory that this process makes, in KiB.
const KIB_MAX: usize = 32 << 10;

/// The maximum size of the arguments of a request in the greeting, in bytes.
const ARGUMENTS_MAX: usize = 512;

/// The errno of a send to a process that has closed the connection.
const EPIPE: i32 = 32;
/// The maximum size of a request without its arguments, in bytes.
const AROUND: usize = 64;

/// The maximum number of chunks that one message names.
const MOVED_MAX: usize = 240;
/// The maximum size of an entry that names a chunk, in bytes.
const MOVED_LEN: usize = 15;
const _: () = assert!(MOVED_MAX * MOVED_LEN + AROUND < REQUEST_MAX);

impl Link {
    pub(super) fn introduce(&mut self) -> Result<(), ConnectionState> {
        self.terms.request = 1;
        let frame = wire::bind(&mut self.outbox, self.terms.request, "ProducerPort");
        self.unsent = frame.ok_or(ConnectionState::UNABLE)?.len();
        Ok(())
    }

    pub(super) fn handle(
        &mut self,
        request: u64,
        body: Body<'_>,
        say: fn(ConnectionState),
    ) -> Result<(), ConnectionState> {
        match body {
            Body::Bound(bound) if self.terms.methods[COMMIT].method == 0 => {
                for (name, method) in wire::methods(bound).ok_or(ConnectionState::UNABLE)? {
                    let place = METHODS.place(name);
                    if let Some(place) = place.and_then(|place| self.terms.methods.get_mut(place)) {
                        *place = method;
                    }
                }
                if self.terms.methods[..NEEDED].iter().any(|method| method.method == 0) {
                    return Err(ConnectionState::UNABLE);
                }
                self.initialize()
            }
            Body::Reply { is_success, reply, .. } if request == self.terms.initialize => {
                if !is_success {
                    return Err(ConnectionState::UNABLE);
                }
                let is_set = |field| Reader::first(reply, field).is_some_and(|value| value.number() != 0);
                // Fields: using_shmem_provided_by_producer, use_shmem_emulation
                let (is_ours, sends_bytes) = (is_set(1), is_set(3));
                if !is_ours && let Some(arena) = self.arena.take() {
                    self.shared.early.take_back(arena);
                    arena.give_back(); // The service's memory comes with `SetupTracing`.
                }
                if sends_bytes && self.arena.is_none() {
                    // `SetupTracing` will bring no memory from the service. No other process has the memory that is
                    // made here.
                    self.use_arena(Arena::make(self.pages()?).map_err(ConnectionState::memory)?.0);
                    self.terms.sends_bytes = true;
                    startup::set_sends(true);
                }
                if !sends_bytes {
                    (self.offers, self.replaced) = (self.environment.memory.is_some(), 0);
                }
                self.register()
            }
            Body::Reply { is_success: true, reply, .. } if request == self.terms.commands => {
                self.handle_command(Command::read(reply)?)
            }
            Body::Reply { .. } if request == self.terms.last && !self.terms.is_settled => {
                // The commands for sessions that already existed have come before this reply.
                self.terms.is_settled = true;
                startup::end(self.shared);
                say(ConnectionState::CONNECTED);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Returns whether the service has accepted `InitializeConnection`. (The rest of the greeting may still be
    /// unanswered.)
    pub(super) fn is_greeted(&self) -> bool {
        self.terms.commands != 0
    }

    /// Returns whether `InitializeConnection` was sent, but not accepted by the service. (This is the request with
    /// which the descriptor of the memory is sent.)
    pub(super) fn is_initializing(&self) -> bool {
        self.terms.initialize != 0 && !self.is_greeted()
    }

    /// Chooses the memory of the next connection, after this connection has ended. Returns whether the next connection
    /// uses other memory than this connection.
    pub(super) fn changes_memory(&mut self) -> bool {
        self.offers &= !(self.is_initializing() && self.terms.has_offered);
        self.terms.initialize != 0 && self.offers != self.terms.has_offered
    }

    /// Uses the memory that the service provides. If this is not possible, and this connection has not offered memory,
    /// the next connection offers memory of this process, of the same size if possible.
    pub(super) fn take_memory(&mut self, page_size: u64) -> Result<(), ConnectionState> {
        let file = self.received.take().ok_or(ConnectionState::UNABLE);
        let size = file.as_ref().ok().and_then(|file| sealed_size(file.as_raw_fd()).ok());
        let arena = file.and_then(|file| {
            if page_size != abi::PAGE as u64 {
                return Err(ConnectionState::PAGES);
            }
            Arena::of_service(file.as_raw_fd()).map_err(ConnectionState::memory)
        });
        if arena.is_err() && !self.terms.has_offered {
            self.offers = true;
            self.replaced = size.map_or(0, |size| (size >> 10).clamp(KIB_MIN, KIB_MAX) * 1024 / abi::PAGE);
        }
        self.use_arena(arena?);
        Ok(())
    }

    fn pages(&self) -> Result<u32, ConnectionState> {
        let pages = match self.replaced {
            0 => pages(self.environment.memory.as_deref()).ok_or(ConnectionState::SIZE)?,
            pages => pages,
        };
        Ok(pages as u32)
    }

    fn initialize(&mut self) -> Result<(), ConnectionState> {
        let mut pages = self.pages()?;
        let mut file = None;
        self.terms.has_offered = self.offers;
        if self.offers {
            let (arena, made) = Arena::make(pages).map_err(ConnectionState::memory)?;
            pages = arena.pages();
            self.use_arena(arena);
            file = Some(made);
        }
        self.terms.initialize = process::with_argv0(|name| {
            let name = name.map_or(&[][..], CStr::to_bytes);
            let size = u64::from(pages) * abi::PAGE as u64;
            let mut arguments = [0; ARGUMENTS_MAX];
            let mut writer = Writer::new(&mut arguments);
            writer.number(1, abi::PAGE as u64).number(2, size).bytes(3, &name[..name.len().min(255)]);
            // Fields: smb_scraping_mode (enabled), producer_provided_shmem, sdk_version
            writer.number(4, 1).number(6, file.is_some().into());
            writer.bytes(8, concat!("atrace ", env!("CARGO_PKG_VERSION")).as_bytes());
            self.invoke(INITIALIZE, true, writer.finish())
        })?;
        self.send(file.as_ref().map(Descriptor::as_raw_fd))
    }

    pub(super) fn use_arena(&mut self, arena: &'static Arena) {
        self.arena = Some(arena);
        early::set_arena(self.arena);
        self.shared.early.publish();
    }

    fn register(&mut self) -> Result<(), ConnectionState> {
        self.terms.commands = self.invoke(COMMANDS, true, Some(&[]))?;
        let mut arguments = [0; ARGUMENTS_MAX];
        let mut writer = Writer::new(&mut arguments);
        writer.message(1, |source| {
            // Fields: name, will_notify_on_stop, will_notify_on_start, handles_incremental_state_clear
            source.bytes(1, b"track_event").number(2, 1).number(3, 1).number(4, 1);
            source.message(6, |categories| {
                for bit in 0..category::COUNT {
                    categories.message(1, |entry| {
                        entry.bytes(1, category::name(bit).as_bytes());
                    });
                }
            });
        });
        let registered = self.invoke(REGISTER, true, writer.finish())?;
        // A service before Android 11 has no Sync. It starts the existing sessions while it handles the registration of
        // the data source.
        self.terms.last = match self.invoke(SYNC, true, Some(&[]))? {
            0 => registered,
            sync => sync,
        };
        Ok(())
    }

    /// Adds a request to the outbox. The request invokes a method with encoded arguments. Returns the request's number,
    /// or 0 if the service lacks the method.
    ///
    /// `arguments` is `None` if the arguments did not fit into their buffer, which is an error. The outbox is sent
    /// when it is full, or before the socket thread waits the next time.
    #[inline(never)]
    pub(super) fn invoke(
        &mut self,
        method: usize,
        wants_reply: bool,
        arguments: Option<&[u8]>,
    ) -> Result<u64, ConnectionState> {
        let Some(found) = self.terms.methods.get(method).copied().filter(|found| found.method != 0) else {
            return Ok(0);
        };
        let arguments = arguments.ok_or(ConnectionState::UNABLE)?;
        if REQUEST_MAX < self.unsent + AROUND + arguments.len() {
            self.send(None)?;
        }
        self.terms.request += 1;
        let request = self.terms.request;
        let room = self.outbox.get_mut(self.unsent..).unwrap_or_default();
        let frame = wire::invoke(room, request, found, wants_reply, |to| to.raw(arguments));
        self.unsent += frame.ok_or(ConnectionState::UNABLE)?.len();
        Ok(request)
    }

    /// Invokes a method and asks for no reply. The arguments are given as pairs of a field's number and its value.
    #[inline(never)]
    pub(super) fn notify(&mut self, method: usize, numbers: &[(u32, u64)]) -> Result<(), ConnectionState> {
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
    pub(super) fn send(&mut self, descriptor: Option<i32>) -> Result<(), ConnectionState> {
        let requests = self.outbox.get(..std::mem::take(&mut self.unsent)).unwrap_or_default();
        send(self.socket.as_ref(), requests, descriptor)
    }

    /// Receives the bytes that have arrived, behind the `len` bytes of an incomplete message in `inbox`, and
    /// handles all messages that are complete. Returns whether any bytes came.
    pub(super) fn receive(
        &mut self,
        inbox: &mut [u8],
        len: &mut usize,
        say: fn(ConnectionState),
    ) -> Result<bool, ConnectionState> {
        let Some((socket, room)) = self.socket.as_ref().zip(inbox.get_mut(*len..)) else { return Ok(false) };
        match socket.receive(room) {
            Ok(Some((received, descriptor))) => {
                *len += received;
                self.received = descriptor.or(self.received.take());
            }
            Ok(None) => return Ok(false),
            Err(code) => return Err(ConnectionState::ended(code)),
        }
        let mut rest = inbox.get(..*len).unwrap_or_default();
        while let Some((frame, len)) = wire::split(rest)? {
            self.handle(frame.request, frame.body, say)?;
            rest = rest.get(len..).unwrap_or_default();
        }
        let done = *len - rest.len();
        inbox.copy_within(done..*len, 0);
        *len -= done;
        Ok(true)
    }

    /// Reports all completed chunks to the service. Then, if `flush` is the number of the service's request for a
    /// flush, answers this request.
    #[inline(never)]
    pub(super) fn commit(&mut self, flush: Option<u64>) -> Result<(), ConnectionState> {
        self.commit_chunks(true)?;
        // A flush is answered even if there is no memory yet.
        if let Some(flush) = flush {
            self.send_open()?;
            self.notify(COMMIT, &[(3, flush)])?;
        }
        Ok(())
    }

    /// Reports the completed chunks to the service. If `all` is false, stops when the socket has no room for the next
    /// message, and continues at the next call. Returns whether a message was sent.
    pub(super) fn commit_chunks(&mut self, all: bool) -> Result<bool, ConnectionState> {
        let mut is_any = false;
        // The chunks for which the socket had no room earlier are reported first, because they are the oldest completed
        // chunks.
        if let Some(rest) = self.rest.take() {
            is_any = self.commit_list(rest, all)?;
        }
        if self.rest.is_none()
            && let Some(arena) = self.arena
        {
            is_any |= self.commit_list(arena.take_completed(), all)?;
        }
        Ok(is_any)
    }

    #[inline(never)]
    fn commit_list(&mut self, mut completed: Completed, all: bool) -> Result<bool, ConnectionState> {
        let mut is_any = false;
        while !completed.is_empty() {
            if !all && !self.has_room()? {
                self.rest = Some(completed);
                break;
            }
            is_any = true;
            if self.terms.sends_bytes {
                completed.next().map_or(Ok(()), |place| self.send_completed(place))?;
                continue;
            }
            let mut moved = [0; MOVED_MAX * MOVED_LEN];
            let mut writer = Writer::new(&mut moved);
            completed.by_ref().take(MOVED_MAX).for_each(|place| place.write(&mut writer));
            self.invoke(COMMIT, false, writer.finish())?;
        }
        Ok(is_any)
    }

    /// Returns whether the socket has room for a message with completed chunks.
    ///
    /// # Errors
    ///
    /// Returns an error if the socket has had no room in [`LOOKS_MAX`] calls in a row.
    fn has_room(&mut self) -> Result<bool, ConnectionState> {
        let has_room = self.socket.as_ref().is_none_or(Socket::has_room);
        self.looks = if has_room { 0 } else { self.looks + 1 };
        if self.looks > LOOKS_MAX { Err(ConnectionState::ended(libc::ETIMEDOUT)) } else { Ok(has_room) }
    }

    /// Sends the bytes of a completed chunk to a service that can't read the memory, and then frees the chunk.
    #[inline(never)]
    fn send_completed(&mut self, place: ChunkPlace) -> Result<(), ConnectionState> {
        let mut bytes = [0; abi::PAGE];
        match self.arena.and_then(|arena| arena.take_out(&place, &mut bytes)) {
            Some(chunk) => self.send_chunk(place, chunk, false),
            None => Ok(()),
        }
    }

    /// Sends the finished packets of the chunks that threads are still writing, if the service can't read the
    /// memory. A service that can read the memory reads these packets itself.
    ///
    /// Before a thread finishes a packet in a chunk, it completes its previous chunk. So this function sends all
    /// completed chunks before each open chunk: the service then gets the chunks of a thread in their order.
    #[inline(never)]
    pub(super) fn send_open(&mut self) -> Result<(), ConnectionState> {
        let Some(arena) = self.arena.filter(|_| self.terms.sends_bytes) else { return Ok(()) };
        for (open, _) in arena.open_chunks() {
            arena.take_completed().try_for_each(|place| self.send_completed(place))?;
            let mut bytes = [0; abi::PAGE];
            if let Some(chunk) = arena.copy_finished(&open, &mut bytes) {
                self.send_chunk(open.place, chunk, true)?;
            }
        }
        Ok(())
    }

    /// Sends a commit with the bytes of one chunk, after all earlier requests.
    fn send_chunk(&mut self, place: ChunkPlace, chunk: &[u8], is_open: bool) -> Result<(), ConnectionState> {
        self.send(None)?;
        self.terms.request += 1;
        let mut bytes = [0; abi::PAGE + AROUND];
        let commit = |to: &mut Writer<'_>| place.write_bytes(to, chunk, is_open);
        let method = self.terms.methods[COMMIT];
        let frame = wire::invoke(&mut bytes, self.terms.request, method, false, commit);
        send(self.socket.as_ref(), frame.ok_or(ConnectionState::UNABLE)?, None)
    }
}

/// Sends bytes, with a descriptor if there is one.
fn send(socket: Option<&Socket>, bytes: &[u8], descriptor: Option<i32>) -> Result<(), ConnectionState> {
    let is_sent = socket.is_some_and(|socket| socket.send(bytes, descriptor));
    if is_sent { Ok(()) } else { Err(ConnectionState::ended(EPIPE)) }
}
