//! The service's thread: its socket, its connections, and what is to be done now and then.
//!
//! It never waits for a producer: what one does not read waits in memory, up to a limit. Nor can producers keep it from
//! ending.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, PipeReader, PipeWriter, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use atrace_sys::perfetto::socket;
use atrace_sys::process;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use rustix::process::{Resource, getrlimit};

use super::Fault;
use super::keep::{Keep, Kept};
use super::producer::{Books, Producer};
use super::report::{Counts, CutOff, Report};

/// How often what lies in producers' memory is looked for.
const LOOK: Duration = Duration::from_secs(1);
/// How often clocks are told.
const CLOCKS: Duration = Duration::from_secs(10);
/// As long may a connection say nothing.
const SILENCE: Duration = Duration::from_secs(10);
/// As long producers have to end what was started.
const END: Duration = Duration::from_secs(2);
/// As much is received of a producer before the others have their turn.
const TURN: usize = 256 << 10;
/// Descriptors that are left for others than producers.
const DESCRIPTORS_LEFT: u64 = 64;
const CONNECTIONS_MAX: u64 = 4096;

/// A service that runs, in a thread of this process. Dropped, it ends.
#[derive(Debug)]
pub struct Service {
    /// A byte: there are orders. Closed: it is to end.
    wake: Option<PipeWriter>,
    orders: mpsc::Sender<Order>,
    events: Arc<AtomicU64>,
    thread: Option<JoinHandle<Report>>,
}

/// To save the ring, and to say when that was done.
type Order = (File, mpsc::Sender<io::Result<()>>);

impl Service {
    /// Serves the programs of this user that connect to `listener`, from now on.
    ///
    /// # Errors
    ///
    /// When there is no pipe or no thread.
    pub fn start(listener: UnixListener, uid: u32, keep: Keep) -> io::Result<Self> {
        Self::start_for(listener, uid, &[], keep)
    }

    /// The same with so many sessions at once, which all record the same: to see what each costs.
    ///
    /// # Errors
    ///
    /// As with [`start`](Self::start).
    pub fn start_sessions(listener: UnixListener, uid: u32, sessions: u32, keep: Keep) -> io::Result<Self> {
        Self::begin(listener, uid, &[], sessions, keep)
    }

    /// The same for programs whose names some of these patterns mean; none: all.
    ///
    /// # Errors
    ///
    /// As with [`start`](Self::start); or a pattern holds a NUL.
    pub fn start_for(listener: UnixListener, uid: u32, patterns: &[String], keep: Keep) -> io::Result<Self> {
        Self::begin(listener, uid, patterns, 1, keep)
    }

    fn begin(
        listener: UnixListener,
        uid: u32,
        patterns: &[String],
        sessions: u32,
        keep: Keep,
    ) -> io::Result<Self> {
        let patterns =
            patterns.iter().map(|pattern| CString::new(pattern.as_str())).collect::<Result<_, _>>()?;
        listener.set_nonblocking(true)?;
        let (woken, wake) = io::pipe()?;
        let (orders, received) = mpsc::channel();
        let events = Arc::new(AtomicU64::new(0));
        let mut serving = Serving::new(listener, uid, (patterns, sessions), keep, Arc::clone(&events));
        let thread = std::thread::Builder::new().name("atrace-service".to_owned());
        let thread = thread.spawn(move || {
            serving.run(woken, &received);
            serving.end()
        })?;
        Ok(Self { wake: Some(wake), orders, events, thread: Some(thread) })
    }

    /// How many events there are so far.
    pub fn events(&self) -> u64 {
        self.events.load(Ordering::Relaxed)
    }

    /// Whether it has ended by itself.
    pub fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Saves what a ring holds.
    ///
    /// # Errors
    ///
    /// What the file says; or the service records into a file, or has ended.
    pub fn save(&self, file: File) -> io::Result<()> {
        let (done, waits) = mpsc::channel();
        let gone = || io::Error::other("the recording has ended");
        self.orders.send((file, done)).map_err(|_| gone())?;
        if let Some(mut wake) = self.wake.as_ref() {
            let _ = wake.write_all(&[0]);
        }
        waits.recv().map_err(|_| gone())?
    }

    /// Ends it: what programs wrote until now is kept.
    pub fn finish(mut self) -> Report {
        self.end()
    }

    fn end(&mut self) -> Report {
        self.wake = None;
        let report = self.thread.take().map(JoinHandle::join);
        report.and_then(Result::ok).unwrap_or_default()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.end();
    }
}

/// A connection.
struct Connection {
    socket: UnixStream,
    producer: Producer,
    since: Instant,
}

/// The thread's.
struct Serving {
    listener: Option<UnixListener>,
    uid: u32,
    connections: Vec<Connection>,
    connections_max: usize,
    books: Books,
    report: Report,
    events: Arc<AtomicU64>,
    looked: Instant,
    told: Instant,
    /// So many bytes there were when state was asked for last.
    cleared: u64,
    clear_each: u64,
    bytes: Vec<u8>,
}

/// What is ready of what was waited for.
struct Ready {
    wake: bool,
    listener: bool,
    connections: Vec<bool>,
}

impl Serving {
    fn new(
        listener: UnixListener,
        uid: u32,
        (patterns, sessions): (Vec<CString>, u32),
        keep: Keep,
        events: Arc<AtomicU64>,
    ) -> Self {
        let clear_each = if let Keep::Ring { bytes } = keep { bytes / 4 } else { u64::MAX };
        let kept = Kept::new(keep, process::raw_id(), process::user());
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(CONNECTIONS_MAX);
        let connections_max = descriptors.saturating_sub(DESCRIPTORS_LEFT).clamp(16, CONNECTIONS_MAX);
        let now = Instant::now();
        Self {
            listener: Some(listener),
            uid,
            connections: Vec::new(),
            connections_max: connections_max as usize,
            // The first sequence is the service's own.
            books: Books { kept, counts: Counts::default(), sequences: 1, mapped: 0, patterns, sessions },
            report: Report::default(),
            events,
            looked: now,
            told: now,
            cleared: 0,
            clear_each,
            bytes: vec![0; 64 << 10],
        }
    }

    /// Serves until it is to end, or nothing more can be kept.
    fn run(&mut self, wake: PipeReader, orders: &mpsc::Receiver<Order>) {
        self.books.kept.flush();
        while !self.books.kept.is_over() {
            let timeout = if self.connections.is_empty() { CLOCKS } else { LOOK };
            let Ok(ready) = self.wait(Some(&wake), timeout) else { return };
            if ready.wake && matches!((&wake).read(&mut [0; 16]), Ok(0)) {
                return;
            }
            self.serve(&ready);
            while let Ok((file, done)) = orders.try_recv() {
                self.look();
                let counts = self.counts();
                let _ = done.send(self.books.kept.save(file, &counts));
            }
        }
    }

    /// Ends all sources, and takes what is left.
    fn end(mut self) -> Report {
        self.listener = None;
        self.books.counts.connected = self.connections.len() as u64;
        for connection in &mut self.connections {
            connection.producer.stop();
        }
        let start = Instant::now();
        while let Some(left) = END.checked_sub(start.elapsed()) {
            self.connections.iter_mut().for_each(|it| send(&it.socket, &mut it.producer));
            let is_over = self.books.kept.is_over();
            if is_over || self.connections.iter().all(|connection| connection.producer.has_stopped()) {
                break;
            }
            let Ok(ready) = self.wait(None, left.min(Duration::from_millis(50))) else { break };
            self.serve(&ready);
        }
        for mut connection in std::mem::take(&mut self.connections) {
            let done = connection.producer.finish(&mut self.books);
            self.close(connection.producer, done);
        }
        let counts = self.books.counts;
        self.events.store(counts.events, Ordering::Relaxed);
        let Self { books, report, .. } = self;
        let ended = books.kept.end(&counts);
        Report { counts: Counts { lies: report.counts.lies, ..counts }, ended, ..report }
    }

    fn counts(&self) -> Counts {
        Counts {
            connected: self.connections.len() as u64,
            lies: self.report.counts.lies,
            ..self.books.counts
        }
    }

    fn wait(&self, wake: Option<&PipeReader>, timeout: Duration) -> rustix::io::Result<Ready> {
        let mut places = Vec::with_capacity(2 + self.connections.len());
        places.extend(wake.map(|wake| PollFd::new(wake, PollFlags::IN)));
        places.extend(self.listener.as_ref().map(|listener| PollFd::new(listener, PollFlags::IN)));
        for Connection { socket, producer, .. } in &self.connections {
            let has_more = if producer.outbox.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
            places.push(PollFd::new(socket, PollFlags::IN | has_more));
        }
        let timeout = Timespec::try_from(timeout).ok();
        match poll(&mut places, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
        let mut ready = places.iter().map(|place| !place.revents().is_empty());
        Ok(Ready {
            wake: wake.is_some() && ready.next().unwrap_or(false),
            listener: self.listener.is_some() && ready.next().unwrap_or(false),
            connections: ready.collect(),
        })
    }

    fn serve(&mut self, ready: &Ready) {
        let connections = std::mem::take(&mut self.connections);
        let is_ready = ready.connections.iter().copied().chain(std::iter::repeat(false));
        for (mut connection, is_ready) in connections.into_iter().zip(is_ready) {
            match self.attend(&mut connection, is_ready) {
                Ok(true) => self.connections.push(connection),
                Ok(false) => {
                    let done = connection.producer.finish(&mut self.books);
                    self.close(connection.producer, done);
                }
                Err(fault) => self.close(connection.producer, Err(fault)),
            }
        }
        if ready.listener {
            self.accept();
        }
        if self.looked.elapsed() >= LOOK {
            self.look();
        }
        if self.told.elapsed() >= CLOCKS {
            self.told = Instant::now();
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

    /// Receives and sends; false: the connection has ended.
    fn attend(&mut self, connection: &mut Connection, is_ready: bool) -> Result<bool, Fault> {
        let Connection { socket, producer, since } = connection;
        let mut is_there = true;
        if is_ready {
            let mut received = 0;
            while is_there && received < TURN {
                match receive(&*socket, &mut self.bytes) {
                    Ok((0, _)) => is_there = false,
                    Ok((len, descriptor)) => {
                        producer.receive(&self.bytes[..len], descriptor, &mut self.books)?;
                        received += len;
                    }
                    Err(Errno::AGAIN) => break,
                    Err(Errno::INTR) => {}
                    Err(_) => is_there = false,
                }
            }
        } else if !producer.is_initialized && since.elapsed() > SILENCE {
            return Err(Fault::Silent);
        }
        send(socket, producer);
        Ok(is_there)
    }

    fn close(&mut self, producer: Producer, done: Result<(), Fault>) {
        if let Err(fault) = done {
            self.report.cut_off(CutOff { pid: producer.pid(), name: producer.name.clone(), fault });
        }
        producer.leave(&mut self.books);
    }

    /// Takes what lies in producers' memory.
    fn look(&mut self) {
        self.looked = Instant::now();
        for mut connection in std::mem::take(&mut self.connections) {
            match connection.producer.scrape(&mut self.books) {
                Ok(()) => self.connections.push(connection),
                fault => self.close(connection.producer, fault),
            }
        }
    }

    fn accept(&mut self) {
        // A flood has its turn, as others do.
        for _ in 0..64 {
            let Some(Ok((socket, _))) = self.listener.as_ref().map(UnixListener::accept) else { return };
            let peer = socket::peer(socket.as_fd()).filter(|(_, uid)| *uid == self.uid);
            let Some((pid, uid)) = peer.filter(|_| socket.set_nonblocking(true).is_ok() && self.has_room())
            else {
                self.books.counts.refused += 1;
                continue;
            };
            self.books.counts.producers += 1;
            let producer = Producer::new(pid, uid);
            self.connections.push(Connection { socket, producer, since: Instant::now() });
        }
    }

    /// Makes room for a connection: the oldest that has said nothing goes.
    fn has_room(&mut self) -> bool {
        if self.connections.len() < self.connections_max {
            return true;
        }
        let silent = self.connections.iter().position(|connection| !connection.producer.is_initialized);
        let Some(silent) = silent else { return false };
        let connection = self.connections.remove(silent);
        self.close(connection.producer, Err(Fault::Silent));
        true
    }
}

/// Receives what there is, and the last of the descriptors that came along.
fn receive(socket: impl AsFd, bytes: &mut [u8]) -> rustix::io::Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let got = recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, flags)?;
    let mut descriptor = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            descriptor = descriptors.last();
        }
    }
    Ok((got.bytes, descriptor))
}

/// Sends what can be sent now. Nothing is sent to one that has gone; what it said before is still to be received.
fn send(socket: &UnixStream, producer: &mut Producer) {
    while !producer.outbox.is_empty() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        // A descriptor goes with the first byte of its frame.
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
