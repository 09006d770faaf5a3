//! The service's thread: its socket, its connections, and the work that it does at intervals.
//!
//! # How it works
//!
//! One thread serves all producers with `poll`. In each round it handles what has arrived on every connection (a
//! connection's *turn*), accepts new connections, and does the periodic work that is due: it reads the producers'
//! shared memory (`LOOK`), records the clocks (`CLOCKS`), asks the producers to write their incremental state (the
//! definitions that later packets refer to) anew, and writes to the file.
//!
//! # Nobody can make it wait
//!
//! - The thread never waits for a producer. Messages that a producer does not read stay in memory, up to a limit.
//! - The thread never receives a descriptor from a producer, and closes only descriptors of memory files, because
//!   closing another descriptor could block the thread. The threads of a pool (`blocking`) receive descriptors and
//!   close all others. After a connection has sent a descriptor, no bytes are read from it until the pool has received
//!   the descriptor.
//! - A turn is short (`TURN`), and between two turns the thread checks whether the service was stopped. So producers
//!   can't keep the service from ending.
//!
//! # The end
//!
//! At the end, the service stops all data sources and gives the producers the time `END` to answer. Then the service
//! reads the data that is left in the producers' memory, for about the time `FINISH` at most.
//!
//! # Threads
//!
//! [`Service`] is a handle of the service's thread. The handle sends requests to the thread through a channel, wakes
//! the thread by a pipe, and stops the thread by a flag.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, PipeReader, PipeWriter, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use atrace_perfetto::foreign::Foreign;
use atrace_perfetto::socket;
use atrace_sys::{process, thread};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use rustix::process::{Resource, getrlimit};

use super::blocking::Blocking;
use super::producer::{Books, Producer, Received};
use super::report::{Counts, CutOff, Report};
use super::storage::{Storage, StoredPackets};
use super::{Fault, Result};

/// The interval at which the memory of the producers is read.
const LOOK: Duration = Duration::from_secs(1);
/// The interval at which a snapshot of the clocks is recorded.
const CLOCKS: Duration = Duration::from_secs(10);
/// The time in which a producer must send `InitializeConnection` after it has connected.
const SILENCE: Duration = Duration::from_secs(10);
/// The time that the producers have, at the end of the service, to stop their data sources.
const END: Duration = Duration::from_secs(1);
/// The time limit for the last reading of the producers' memory, after [`END`]. When this time is over, the reading of
/// the current producer's memory is still completed, but no other producer's memory is read. A busy machine takes
/// seconds to read 32 MiB.
const FINISH: Duration = Duration::from_secs(3);
/// How long the thread pauses after `accept` or `poll` failed for lack of resources. Without the pause, the thread
/// would wake up again at once.
const REST: Duration = Duration::from_millis(50);
/// The maximum amount of work in one turn of a connection: the number of bytes that are received or copied.
const TURN: u64 = 256 << 10;
/// The number of descriptors that are reserved for purposes other than producers.
const DESCRIPTORS_LEFT: u64 = 64;
/// The maximum number of connections. Together with all other open files, the process then has fewer than 256
/// descriptors.
const CONNECTIONS_MAX: u64 = 176;
/// The number of ended connections that may wait to be closed while [`CONNECTIONS_MAX`] connections are open. If as
/// many wait, no connection is accepted until some are closed.
const CLOSING_MAX: usize = 16;
/// The maximum number of messages with descriptors that are being received, or were received and wait to be handled.
const RECEIVING_MAX: usize = 16;

/// A running service, with a thread in this process. Dropping the `Service` ends the service.
#[derive(Debug)]
pub struct Service {
    /// The pipe that wakes the thread. A byte in the pipe means that there are requests; closing the pipe ends the
    /// service.
    wake: Option<PipeWriter>,
    /// Whether the service should end. Unlike the pipe, this flag can be read without a system call.
    is_to_end: Arc<AtomicBool>,
    orders: mpsc::Sender<Order>,
    events: Arc<AtomicU64>,
    thread: Option<JoinHandle<Report>>,
}

/// A request from the handle ([`Service`]) to the service's thread.
enum Order {
    /// Save the ring in a file. The result is sent through the channel.
    Save(File, mpsc::Sender<io::Result<()>>),
    /// Store packets.
    Add(Vec<Vec<u8>>),
    /// Start or stop the programs' data sources. A message is sent through the channel after the commands were sent to
    /// the programs.
    Switch(bool, mpsc::Sender<()>),
    /// Send the process ids of the connected producers through the channel.
    Connected(mpsc::Sender<Vec<u32>>),
}

/// The options of a recording.
pub(crate) struct Terms<'a> {
    /// Patterns for the names of the programs that are recorded. If there are none, all programs are
    /// recorded.
    pub(crate) patterns: &'a [String],
    /// The number of sessions. All sessions record the same events.
    pub(crate) sessions: u32,
    /// Whether a program's thread waits for room in the shared memory, for at most a second at a time, before an event
    /// is lost.
    pub(crate) waits: bool,
}

impl Default for Terms<'_> {
    fn default() -> Self {
        Self { patterns: &[], sessions: 1, waits: false }
    }
}

impl Service {
    /// Starts to serve the programs of the user `uid` that connect to `listener`.
    ///
    /// # Errors
    ///
    /// Returns an error if no pipe or thread can be created.
    pub fn start(listener: UnixListener, uid: u32, keep: Storage) -> io::Result<Self> {
        Self::start_for(listener, uid, &Terms::default(), keep)
    }

    /// Does the same as [`start`](Self::start), with several sessions that all record the same events. The benches
    /// measure the cost of a session with this function.
    ///
    /// # Errors
    ///
    /// Returns an error in the same cases as [`start`](Self::start).
    pub fn start_sessions(
        listener: UnixListener,
        uid: u32,
        sessions: u32,
        keep: Storage,
    ) -> io::Result<Self> {
        Self::start_for(listener, uid, &Terms { sessions, ..Terms::default() }, keep)
    }

    /// Does the same as [`start`](Self::start), with the options in `terms`. Also returns an error if a pattern
    /// contains a NUL.
    pub(crate) fn start_for(
        listener: UnixListener,
        uid: u32,
        terms: &Terms<'_>,
        keep: Storage,
    ) -> io::Result<Self> {
        let patterns = terms.patterns.iter().map(|pattern| CString::new(pattern.as_str()));
        let patterns = patterns.collect::<std::result::Result<_, _>>()?;
        listener.set_nonblocking(true)?;
        let (woken, wake) = pipe()?;
        let (pool_events, notify) = pipe()?;
        let (orders, received) = mpsc::channel();
        let (events, is_to_end) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let clear_each = if let Storage::Ring { bytes } = keep { bytes / 4 } else { u64::MAX };
        let kept = StoredPackets::new(keep, process::raw_id(), process::user());
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let connections_max = descriptors.saturating_sub(DESCRIPTORS_LEFT).clamp(16, CONNECTIONS_MAX);
        let now = Instant::now();
        let mut serving = Serving {
            listener: Some(listener),
            accepts_from: now,
            uid,
            connections: Vec::new(),
            connections_max: connections_max as usize,
            blocking: Blocking::start()?,
            ended: Vec::new(),
            receiving: 0,
            pool_events,
            notify: Arc::new(notify),
            books: Books::new(kept, patterns, terms.sessions, terms.waits),
            report: Report::default(),
            events: Arc::clone(&events),
            is_to_end: Arc::clone(&is_to_end),
            ends_at: None,
            last_look: now,
            last_clocks: now,
            cleared: 0,
            clear_each,
            bytes: vec![0; 64 << 10],
        };
        let thread = std::thread::Builder::new().name("atrace-service".to_owned());
        // All signals are blocked in the thread. So if the trace file reaches the process's limit for the size of files
        // (`RLIMIT_FSIZE`), `write` returns an error, and SIGXFSZ does not end the process.
        let thread = thread::without_signals(|| {
            thread.spawn(move || {
                serving.run(woken, &received);
                serving.end()
            })
        })?;
        Ok(Self { wake: Some(wake), is_to_end, orders, events, thread: Some(thread) })
    }

    /// Returns the number of events recorded so far.
    pub fn events(&self) -> u64 {
        self.events.load(Ordering::Relaxed)
    }

    /// Returns whether the service has ended by itself.
    pub fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Saves the packets of the ring.
    ///
    /// # Errors
    ///
    /// Returns the error of writing the file. Also returns an error if the service records into a file instead of a
    /// ring, or has ended.
    pub fn save(&self, file: File) -> io::Result<()> {
        let (done, waits) = mpsc::channel();
        let gone = || io::Error::other("the recording has ended");
        self.order(Order::Save(file, done)).ok_or_else(gone)?;
        waits.recv().map_err(|_| gone())?
    }

    /// Stops the recording of all programs, or starts it again. Recording can be stopped and started any number of
    /// times. Returns after the commands were sent to the programs, which obey within milliseconds. Returns false if
    /// the service has ended.
    pub(crate) fn switch(&self, is_on: bool) -> bool {
        let (done, waits) = mpsc::channel();
        self.order(Order::Switch(is_on, done)).and_then(|()| waits.recv().ok()).is_some()
    }

    /// Returns the ids of the processes that are connected, as the kernel reported them when the processes connected.
    /// Returns no ids if the service has ended.
    pub(crate) fn connected(&self) -> Vec<u32> {
        let (done, waits) = mpsc::channel();
        self.order(Order::Connected(done)).and_then(|()| waits.recv().ok()).unwrap_or_default()
    }

    /// Stores packets that do not come from a producer, such as events of the kernel. Packets that come after the end
    /// of the recording are dropped.
    pub(crate) fn add(&self, packets: Vec<Vec<u8>>) {
        if !packets.is_empty() {
            let _ = self.order(Order::Add(packets));
        }
    }

    fn order(&self, order: Order) -> Option<()> {
        self.orders.send(order).ok()?;
        if let Some(mut wake) = self.wake.as_ref() {
            let _ = wake.write_all(&[0]);
        }
        Some(())
    }

    /// Ends the service, and returns its results. All events that are in the programs' shared memory at the time of the
    /// call are recorded, unless reading this memory takes more than three seconds.
    pub fn finish(mut self) -> Report {
        self.end()
    }

    fn end(&mut self) -> Report {
        self.is_to_end.store(true, Ordering::Relaxed);
        self.wake = None;
        self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.end();
    }
}

/// A connection of a producer.
struct Connection {
    socket: Arc<UnixStream>,
    producer: Producer,
    since: Instant,
    receiving: Receiving,
}

/// The thread that receives the connection's messages: the service's thread, or a thread of the pool.
enum Receiving {
    Here,
    /// A thread of the pool is receiving a message with a descriptor, and sends it through this channel.
    InPool(mpsc::Receiver<Arrived>),
    /// A message with a descriptor waits in the socket until the pool has room.
    Waits,
}

/// A message that the pool has received: the bytes and, if a descriptor came with them, the memory file, or the reason
/// why the descriptor can't be used.
type Arrived = rustix::io::Result<(Vec<u8>, Option<Received>)>;

/// The state of the service's thread.
struct Serving {
    listener: Option<UnixListener>,
    /// The time at which connections are accepted again after `accept` has failed.
    accepts_from: Instant,
    uid: u32,
    connections: Vec<Connection>,
    connections_max: usize,
    blocking: Blocking,
    /// Connections that have ended and wait to be closed by the pool.
    ended: Vec<Arc<UnixStream>>,
    /// The number of connections whose message the pool is receiving.
    receiving: usize,
    /// A byte in this pipe means that the pool has received a message, or has room for another task.
    pool_events: PipeReader,
    notify: Arc<PipeWriter>,
    books: Books,
    report: Report,
    events: Arc<AtomicU64>,
    is_to_end: Arc<AtomicBool>,
    /// The time at which the current phase of the service's end ([`END`] or [`FINISH`]) is over, or `None` before the
    /// end has begun.
    ends_at: Option<Instant>,
    last_look: Instant,
    last_clocks: Instant,
    /// The number of recorded bytes when the service last asked the producers for new incremental state.
    cleared: u64,
    clear_each: u64,
    bytes: Vec<u8>,
}

/// The polled descriptors that are ready.
struct Ready {
    wake: bool,
    listener: bool,
    connections: Vec<bool>,
}

impl Serving {
    /// Serves until the service is stopped or nothing more can be stored.
    fn run(&mut self, wake: PipeReader, orders: &mpsc::Receiver<Order>) {
        self.books.kept.flush();
        while !self.books.kept.is_over() && !self.is_due() {
            let timeout = if self.connections.is_empty() { CLOCKS } else { LOOK };
            let ready = self.wait(Some(&wake), timeout);
            if ready.wake && matches!((&wake).read(&mut [0; 16]), Ok(0)) {
                break;
            }
            self.serve(&ready);
            self.obey(orders);
        }
        self.obey(orders);
    }

    fn obey(&mut self, orders: &mpsc::Receiver<Order>) {
        while let Ok(order) = orders.try_recv() {
            match order {
                Order::Save(file, done) => {
                    self.look();
                    let counts = self.counts();
                    let _ = done.send(self.books.kept.save(file, &counts));
                }
                Order::Add(packets) => packets.iter().for_each(|packet| self.books.kept.add_own(packet)),
                Order::Switch(is_on, done) => {
                    self.switch(is_on);
                    let _ = done.send(());
                }
                Order::Connected(done) => {
                    let pids = self.connections.iter().map(|connection| connection.producer.pid);
                    let _ = done.send(pids.collect());
                }
            }
        }
    }

    /// Returns true if no connection may get another turn, because the service must end, or because the present phase
    /// of its end is over.
    fn is_due(&self) -> bool {
        match self.ends_at {
            None => self.is_to_end.load(Ordering::Relaxed),
            Some(at) => Instant::now() >= at,
        }
    }

    /// Stops all data sources, and reads the packets that are left in the producers' memory.
    fn end(mut self) -> Report {
        let start = Instant::now();
        self.ends_at = Some(start + END);
        if let Some(listener) = self.listener.take() {
            self.blocking.run(move || drop(listener));
        }
        self.books.counts.connected = self.connections.len() as u64;
        self.connections.iter_mut().for_each(|connection| connection.producer.stop());
        while let Some(left) = END.checked_sub(start.elapsed()) {
            self.connections.iter_mut().for_each(|it| send(&it.socket, &mut it.producer));
            if self.books.kept.is_over()
                || self.connections.iter().all(|connection| connection.producer.has_stopped())
            {
                break;
            }
            let ready = self.wait(None, left.min(Duration::from_millis(50)));
            self.serve(&ready);
        }
        self.ends_at = Some(Instant::now() + FINISH);
        // Producers with less memory are read first, so that producers with much memory can't use up their time.
        self.connections.sort_by_key(|connection| connection.producer.memory());
        for mut connection in std::mem::take(&mut self.connections) {
            let is_due = self.is_due();
            let done = if is_due { Err(Fault::TooMuch) } else { connection.producer.finish(&mut self.books) };
            self.close(connection, done);
        }
        for socket in self.ended.drain(..) {
            self.blocking.run(move || drop(socket));
        }
        let counts = self.books.counts;
        self.events.store(counts.events, Ordering::Relaxed);
        let Self { books, report, .. } = self;
        let (ended, late, failed) = books.kept.end(&counts);
        let counts = Counts { events: counts.events - failed, unsaved: late + failed, ..counts };
        Report { counts, ended, ..report }
    }

    fn counts(&self) -> Counts {
        Counts { connected: self.connections.len() as u64, ..self.books.counts }
    }

    fn wait(&self, wake: Option<&PipeReader>, timeout: Duration) -> Ready {
        let rests = self.accepts_from.saturating_duration_since(Instant::now());
        let listener = self.listener.as_ref().filter(|_| rests.is_zero());
        let timeout = if rests.is_zero() { timeout } else { timeout.min(rests) };
        let mut poll_fds = vec![PollFd::new(&self.pool_events, PollFlags::IN)];
        poll_fds.extend(wake.map(|wake| PollFd::new(wake, PollFlags::IN)));
        poll_fds.extend(listener.map(|listener| PollFd::new(listener, PollFlags::IN)));
        for Connection { socket, producer, receiving, .. } in &self.connections {
            let has_more = if producer.outbox.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
            poll_fds.push(match receiving {
                Receiving::Here => PollFd::new(socket, PollFlags::IN | has_more),
                // A placeholder that is never ready. If the socket itself were polled here after its peer has hung up,
                // `poll` would return at once in every round.
                _ => PollFd::new(&self.pool_events, PollFlags::empty()),
            });
        }
        let is_woken = match poll(&mut poll_fds, Timespec::try_from(timeout).ok().as_ref()) {
            Ok(_) | Err(Errno::INTR) => true,
            // `poll` failed, so every descriptor is treated as ready.
            Err(_) => {
                std::thread::sleep(REST.min(timeout));
                false
            }
        };
        let mut ready = poll_fds.iter().skip(1).map(|place| !is_woken || !place.revents().is_empty());
        Ready {
            wake: wake.is_some() && ready.next().unwrap_or(false),
            listener: listener.is_some() && ready.next().unwrap_or(false),
            connections: ready.collect(),
        }
    }

    fn serve(&mut self, ready: &Ready) {
        let mut has_news = false;
        while matches!((&self.pool_events).read(&mut [0; 64]), Ok(1..)) {
            has_news = true;
            self.accepts_from = Instant::now();
        }
        let connections = std::mem::take(&mut self.connections);
        let is_ready = ready.connections.iter().copied().chain(std::iter::repeat(false));
        for (mut connection, mut is_ready) in connections.into_iter().zip(is_ready) {
            if has_news && matches!(connection.receiving, Receiving::Waits) {
                connection.receiving = Receiving::Here;
                is_ready = true;
            }
            let came = match &connection.receiving {
                Receiving::InPool(arrived) => arrived.try_recv().ok(),
                _ => None,
            };
            self.receiving -= usize::from(came.is_some());
            match self.attend(&mut connection, is_ready, came) {
                Ok(true) => self.connections.push(connection),
                // The service is ending: `Serving::end` will finish this connection.
                Ok(false) if self.is_due() => self.connections.push(connection),
                Ok(false) => {
                    let done = connection.producer.finish(&mut self.books);
                    self.close(connection, done);
                }
                Err(fault) => self.close(connection, Err(fault)),
            }
        }
        if ready.listener {
            self.accept();
        }
        self.close_ended();
        if self.last_look.elapsed() >= LOOK {
            self.look();
        }
        if self.last_clocks.elapsed() >= CLOCKS {
            self.last_clocks = Instant::now();
            self.books.kept.say_clocks();
        }
        let bytes = self.books.counts.bytes;
        if bytes - self.cleared > self.clear_each {
            self.cleared = bytes;
            self.connections.iter_mut().for_each(|connection| connection.producer.clear_state());
        }
        self.books.kept.flush();
        self.events.store(self.books.counts.events, Ordering::Relaxed);
    }

    /// Gives a connection its turn: handles the message that the pool has received, receives bytes, and sends
    /// bytes. Returns false if the connection has ended.
    fn attend(&mut self, connection: &mut Connection, is_ready: bool, came: Option<Arrived>) -> Result<bool> {
        let start = self.books.work;
        let mut is_there = true;
        if came.is_some() {
            connection.receiving = Receiving::Here;
        }
        match came {
            Some(Ok((bytes, descriptor))) => {
                is_there = !bytes.is_empty();
                connection.producer.receive(&bytes, descriptor, &mut self.books)?;
            }
            None | Some(Err(Errno::AGAIN | Errno::INTR)) => {}
            Some(Err(_)) => return Ok(false),
        }
        while is_ready
            && is_there
            && matches!(connection.receiving, Receiving::Here)
            && self.books.work - start < TURN
            && !self.is_due()
        {
            match peek(&*connection.socket, &mut self.bytes) {
                Ok((0, _)) => is_there = false,
                Ok((_, true)) => self.receive_in_pool(connection)?,
                Ok((len, false)) => match (&*connection.socket).read(&mut self.bytes[..len]) {
                    Ok(len) => connection.producer.receive(&self.bytes[..len], None, &mut self.books)?,
                    Err(_) => is_there = false,
                },
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(_) => is_there = false,
            }
        }
        let Connection { socket, producer, since, .. } = connection;
        if !producer.is_initialized && since.elapsed() > SILENCE {
            return Err(Fault::Silent);
        }
        send(socket, producer);
        // The descriptor of the memory is sent with the first messages to the producer, while the socket still has
        // room. So if the descriptor could not be sent, the producer does not read its messages.
        if producer.descriptor.is_some() {
            return Err(Fault::Deaf);
        }
        producer.settle(&mut self.books)?;
        if self.books.work > start {
            producer.forget();
        }
        Ok(is_there)
    }

    /// Makes a thread of the pool receive a message with a descriptor. Until the message has arrived, nothing else is
    /// received from this connection. If the pool has no room, the message waits in the socket, but a producer whose
    /// descriptor is unexpected is disconnected.
    fn receive_in_pool(&mut self, connection: &mut Connection) -> Result {
        let is_wanted = !connection.producer.is_initialized;
        if self.receiving >= RECEIVING_MAX || !self.blocking.has_room() {
            connection.receiving = Receiving::Waits;
            return if is_wanted { Ok(()) } else { Err(Fault::TooMuch) };
        }
        let (socket, len) = (Arc::clone(&connection.socket), self.bytes.len());
        let (arrives, arrived) = mpsc::channel();
        let notify = Arc::clone(&self.notify);
        self.blocking.run(move || {
            let received = receive_with(&*socket, len, is_wanted);
            // If this is the last reference to the socket, the connection is closed here, by the pool's thread.
            drop(socket);
            let _ = arrives.send(received);
            let _ = (&*notify).write(&[0]);
        });
        self.receiving += 1;
        connection.receiving = Receiving::InPool(arrived);
        Ok(())
    }

    /// Removes a connection that has ended or has a fault.
    fn close(&mut self, connection: Connection, done: Result) {
        let Connection { socket, producer, receiving, .. } = connection;
        self.receiving -= usize::from(matches!(receiving, Receiving::InPool(_)));
        if let Err(fault) = done {
            self.books.counts.lies += 1;
            self.report.cut_off(CutOff { pid: producer.pid, name: producer.name.clone(), fault });
        }
        if let Some(lost) = producer.lost() {
            self.report.lost(lost);
        }
        producer.leave(&mut self.books);
        self.end_of(socket);
    }

    /// Shuts a connection down. The pool closes the connection as soon as the pool has room.
    fn end_of(&mut self, socket: Arc<UnixStream>) {
        let _ = socket.shutdown(Shutdown::Both);
        self.ended.push(socket);
    }

    fn close_ended(&mut self) {
        while self.blocking.has_room()
            && let Some(socket) = self.ended.pop()
        {
            let notify = Arc::clone(&self.notify);
            self.blocking.run(move || {
                drop(socket);
                let _ = (&*notify).write(&[0]);
            });
        }
    }

    /// Stops or starts the data sources of all producers.
    fn switch(&mut self, is_on: bool) {
        self.books.is_paused = !is_on;
        for mut connection in std::mem::take(&mut self.connections) {
            let Connection { socket, producer, .. } = &mut connection;
            let done = if is_on { producer.start(&mut self.books) } else { producer.pause(&mut self.books) };
            send(socket, producer);
            match done {
                Ok(()) => self.connections.push(connection),
                fault => self.close(connection, fault),
            }
        }
    }

    /// Reads the memory of all producers.
    fn look(&mut self) {
        self.last_look = Instant::now();
        for mut connection in std::mem::take(&mut self.connections) {
            match if self.is_due() { Ok(()) } else { connection.producer.scrape(&mut self.books) } {
                Ok(()) => self.connections.push(connection),
                fault => self.close(connection, fault),
            }
        }
    }

    fn accept(&mut self) {
        // The number of connections accepted in one round is limited, so a flood of connections can't stop the
        // service's other work.
        for _ in 0..64 {
            self.close_ended();
            // Ended connections that are not closed yet still have their descriptors.
            let closing = self.ended.len() + self.blocking.len();
            let has_descriptor = self.connections.len() + closing < self.connections_max + CLOSING_MAX;
            let accepted = match &self.listener {
                Some(listener) if has_descriptor => listener.accept(),
                _ => Err(Errno::MFILE.into()),
            };
            let socket = match accepted {
                Ok((socket, _)) => socket,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => continue,
                // No descriptor is free. The connections stay in the listener's queue.
                Err(_) => {
                    self.accepts_from = Instant::now() + REST;
                    return;
                }
            };
            let peer = socket::peer(socket.as_fd()).filter(|(_, uid)| *uid == self.uid);
            let peer = peer.filter(|(pid, _)| socket.set_nonblocking(true).is_ok() && self.has_room(*pid));
            let socket = Arc::new(socket);
            let Some((pid, uid)) = peer else {
                self.books.counts.refused += 1;
                self.end_of(socket);
                continue;
            };
            self.books.counts.producers += 1;
            let producer = Producer::new(pid, uid);
            let (since, receiving) = (Instant::now(), Receiving::Here);
            self.connections.push(Connection { socket, producer, since, receiving });
        }
    }

    /// Makes room for a new connection of the process `pid`, or returns false. A process gets at most half of the
    /// connections that the other processes have left free. If there is no room, the oldest connection that has not
    /// sent `InitializeConnection` is closed. If the process has used up its own share, only such a connection of the
    /// same process is closed. A connection that has sent `InitializeConnection` is never closed to make room.
    fn has_room(&mut self, pid: u32) -> bool {
        let own = self.connections.iter().filter(|connection| connection.producer.pid == pid).count();
        let left = self.connections_max.saturating_sub(self.connections.len() - own);
        let is_full = self.connections.len() >= self.connections_max;
        let has_its_share = own >= left.div_ceil(2);
        if !is_full && !has_its_share {
            return true;
        }
        let silent = self.connections.iter().position(|Connection { producer, .. }| {
            !producer.is_initialized && (!has_its_share || producer.pid == pid)
        });
        let Some(silent) = silent else { return false };
        let connection = self.connections.remove(silent);
        self.close(connection, Err(Fault::Silent));
        true
    }
}

/// Creates a pipe whose two ends are non-blocking.
fn pipe() -> io::Result<(PipeReader, PipeWriter)> {
    let (reader, writer) = io::pipe()?;
    ioctl_fionbio(&reader, true)?;
    ioctl_fionbio(&writer, true)?;
    Ok((reader, writer))
}

/// Examines the bytes that have arrived, without receiving them. Returns their number, and whether descriptors come
/// with them. The descriptors stay in the socket: they are neither received nor closed.
fn peek(socket: impl AsFd, bytes: &mut [u8]) -> rustix::io::Result<(usize, bool)> {
    let mut control = RecvAncillaryBuffer::default();
    let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
    let got = recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, flags)?;
    Ok((got.bytes, got.flags.contains(ReturnFlags::CTRUNC)))
}

/// Receives at most `len` bytes and, if `is_wanted`, a memory file that comes with them. All other descriptors
/// are closed, which may block.
fn receive_with(socket: impl AsFd, len: usize, is_wanted: bool) -> Arrived {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control =
        if is_wanted { RecvAncillaryBuffer::new(&mut space) } else { RecvAncillaryBuffer::default() };
    let mut bytes = vec![0; len];
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let got = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags)?;
    let mut descriptor = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            descriptor = descriptors.last();
        }
    }
    bytes.truncate(got.bytes);
    let check = |file: OwnedFd| Foreign::size_of(file.as_fd()).map(|_| file);
    Ok((bytes, descriptor.map(check)))
}

/// Sends as many bytes as the socket accepts without blocking. If the producer has closed the connection, the bytes
/// that wait to be sent are dropped. Bytes that the producer sent before it closed the connection are still received.
fn send(socket: &UnixStream, producer: &mut Producer) {
    while !producer.outbox.is_empty() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        // A descriptor is sent with the first byte of its frame.
        let (start, file) =
            producer.descriptor.as_ref().map_or((usize::MAX, None), |(at, file)| (*at, Some(file)));
        let files: Vec<_> = file.filter(|_| start == 0).map(AsFd::as_fd).into_iter().collect();
        let end = if start == 0 { producer.outbox.len() } else { start.min(producer.outbox.len()) };
        if !files.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&files));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match sendmsg(socket, &[IoSlice::new(&producer.outbox[..end])], &mut control, flags) {
            Ok(sent) => {
                producer.outbox.drain(..sent);
                match &mut producer.descriptor {
                    Some((0, _)) => producer.descriptor = None,
                    Some((at, _)) => *at -= sent,
                    None => {}
                }
            }
            Err(Errno::AGAIN) => return,
            Err(Errno::INTR) => {}
            Err(_) => {
                producer.outbox.clear();
                producer.descriptor = None;
            }
        }
    }
}
