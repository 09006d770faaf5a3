//! A stream socket to a service on this machine: which peers are trusted, and how bytes and descriptors are
//! sent and received.
//!
//! # Trust
//!
//! A process that listens at the service's address gets the events of every program that connects, so the kernel is
//! asked for the user of the peer (`SO_PEERCRED`). With [`Trust::Usual`], the peer is trusted if it runs as this
//! process's user, as root, as Android's `traced`, or as the owner of the socket's directory. The owner is trusted only
//! if only root can have given the directory to that owner. With [`Trust::Any`], which is for an address that the
//! caller has named, any peer is trusted.
//!
//! # Descriptors
//!
//! A message can carry one descriptor (`SCM_RIGHTS`). The control data have exactly the size for one descriptor, so the
//! kernel delivers no second descriptor, which would stay open. If the peer must not send descriptors, the message is
//! inspected before its bytes are received (`MSG_PEEK`). A descriptor that it carries stays in the queue of the socket,
//! and the socket stays open, because closing a descriptor of an untrusted peer may block.
//!
//! # The threads that use a socket
//!
//! The thread that uses a socket may be a [bare thread](crate::thread::spawn_bare). So no function that this thread
//! calls allocates, or uses a thread-local of the C library such as errno. On architectures that have bare threads, the
//! system calls are made without the C library. The thread usually has a descriptor table of its own. If it does not,
//! the program may close the socket's descriptor and reuse its number. So a [guarded](Socket::guarded) socket compares
//! the device, inode and mode of its descriptor with those of the socket before it sends, receives or closes.
//!
//! A socket that [`Socket::connect`] made is non-blocking. [`Socket::send`] waits for a slow peer, but gives up when
//! the peer has read nothing for five seconds. If the service's queue of connections is full, [`Socket::connect`] tries
//! again for a second.

use std::ffi::{CStr, OsStr};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::time::Duration;

use crate::clock;
use crate::marker::Identity;
use crate::marker::open::{duplicate_high, identity_of};
pub use crate::system::file::may_enter;
use crate::system::{self, Descriptor, Errno, bare, c, file, zeros};
use crate::thread;

/// The users that are trusted to run the service at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// This user, root, Android's `traced`, or the owner of the socket's directory, if only root can have given the
    /// directory to that owner. The id that stands for all users that this user namespace does not map is never
    /// trusted.
    Usual,
    /// Any user, because the caller has named the address.
    Any,
}

/// Android's user `nobody`, which runs its tracing services.
#[cfg(target_os = "android")]
const TRACED: libc::uid_t = 9999;

/// The maximum length of a socket's path in bytes, with the NUL at its end.
const PATH_MAX: usize = size_of::<libc::sockaddr_un>() - std::mem::offset_of!(libc::sockaddr_un, sun_path);

/// How long [`Socket::connect`] waits for room in the service's queue, in nanoseconds, and the pause between two
/// attempts.
const QUEUE_NS: u64 = 1_000_000_000;
const QUEUE_PAUSE: Duration = Duration::from_millis(4);

/// A connection to the service.
#[derive(Debug)]
pub struct Socket {
    descriptor: ManuallyDrop<Descriptor>,
    /// The socket's device, inode and mode, if the program may close the descriptor and use its number for another file.
    identity: Option<(Identity, u32)>,
}

/// The reason why there is no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The system's error. It usually means that no process listens at the address.
    Errno(i32),
    /// The process that listens at the address belongs to the user with this id, who is not trusted.
    Stranger(u32),
    /// The address is not valid for a socket.
    Name,
}

impl Refused {
    fn errno(Errno(code): Errno) -> Self {
        Self::Errno(code)
    }
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Errno(code) => {
                write!(f, "can't connect to its socket: {}", Errno(*code))
            }
            Self::Stranger(user) => write!(f, "it runs as user {user}, who is not trusted"),
            Self::Name => f.write_str(
                "its address is not a socket's name: a path, or @ and a name, of at most 107 bytes",
            ),
        }
    }
}

impl Socket {
    /// Wraps a connected socket.
    pub fn new(socket: OwnedFd) -> Self {
        Self::of(socket.into())
    }

    const fn of(descriptor: Descriptor) -> Self {
        Self { descriptor: ManuallyDrop::new(descriptor), identity: None }
    }

    /// Returns the same connection for a thread that shares its descriptors with the program. The descriptor gets a
    /// high number, because the kernel gives out low numbers first. Before each use, the connection checks that the
    /// number still refers to the socket. If the number does not refer to the socket any more, the connection counts as
    /// ended, and the number is not closed.
    ///
    /// # Errors
    ///
    /// Returns the system's error if there is no free number.
    pub fn guarded(self) -> Result<Self, Refused> {
        let identity = Some(identity_of(self.raw()).ok_or(Refused::Errno(libc::EBADF))?);
        let made = duplicate_high(self.raw(), None).map_err(Refused::errno)?;
        Ok(Self { descriptor: ManuallyDrop::new(Descriptor::new(made as isize)), identity })
    }

    fn raw(&self) -> i32 {
        self.descriptor.as_raw_fd()
    }

    /// Returns whether the descriptor's number still refers to the socket.
    fn is_own(&self) -> bool {
        self.identity.is_none() || identity_of(self.raw()) == self.identity
    }

    /// Connects to the socket with this address: a path, or `@` followed by an abstract name. If so many processes
    /// connect at once that the service's queue is full, waits for room in it, for at most a second.
    ///
    /// # Errors
    ///
    /// Returns the reason if there is no connection.
    pub fn connect(name: &OsStr, trust: Trust) -> Result<Self, Refused> {
        let (address, len) = address(name).ok_or(Refused::Name)?;
        let flags = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let socket = c::socket(libc::AF_UNIX, flags).map(Descriptor::new).map_err(Refused::errno)?;
        let until = clock::asked() + QUEUE_NS;
        while let Err(error) = c::connect(socket.as_raw_fd(), &address, len) {
            if error != Errno(libc::EAGAIN) || clock::asked() >= until {
                return Err(Refused::errno(error));
            }
            thread::pause(QUEUE_PAUSE);
        }
        if trust == Trust::Usual {
            let (_, peer) = peer(socket.as_raw_fd()).ok_or(Refused::Errno(libc::EPERM))?;
            let (own, _) = system::effective_ids();
            let is_expected = peer == own || owner_by_root(name) == Some(peer);
            let is_trusted = peer == 0 || is_expected && system::is_known_by_number(peer);
            #[cfg(target_os = "android")]
            let is_trusted = is_trusted || peer == TRACED;
            if !is_trusted {
                return Err(Refused::Stranger(peer));
            }
        }
        Ok(Self::of(socket))
    }

    /// Waits until data can be received, for at most `timeout` (`None`: forever). Returns whether there is
    /// data. The end of the connection counts as data.
    ///
    /// If the system denies the system call for waiting, this returns true after at most 50 ms, and the caller has to
    /// check for data itself.
    pub fn wait(&self, timeout: Option<Duration>) -> bool {
        self.poll(libc::POLLIN, timeout).unwrap_or_else(|error| error != Errno(libc::EINTR))
    }

    /// Waits as [`wait`](Self::wait) does, but also returns when the queue [has room](Self::has_room). So there may be
    /// no data when this returns.
    pub fn wait_for_room(&self, timeout: Option<Duration>) {
        let _ = self.poll(libc::POLLIN | libc::POLLOUT, timeout);
    }

    fn poll(&self, events: libc::c_short, timeout: Option<Duration>) -> system::Result<bool> {
        let mut place = [libc::pollfd { fd: self.raw(), events, revents: 0 }];
        file::poll(&mut place, timeout).map(|ready| ready > 0)
    }

    /// Returns whether three quarters of the socket's queue are free, so that a message of up to 100 KiB is sent
    /// without a wait. Returns true if the connection has ended, or if the system denies the system call `poll`.
    pub fn has_room(&self) -> bool {
        !self.is_own() || self.poll(libc::POLLOUT, Some(Duration::ZERO)).unwrap_or(true)
    }

    /// Sends all bytes. If there is a descriptor, sends it with the first byte. Returns false if the connection can't
    /// be used any more.
    ///
    /// While the service reads nothing, waits for at most five seconds, however often signals interrupt the wait.
    /// [`has_room`](Self::has_room) returns in advance whether a short message can be sent without a wait.
    pub fn send(&self, mut bytes: &[u8], mut descriptor: Option<i32>) -> bool {
        const RETRY: Duration = Duration::from_millis(50);
        const PATIENCE: u64 = 5_000_000_000;
        // The time at which the wait for room in the queue ends, or `None` while there is no such wait.
        let mut until = None;
        while !bytes.is_empty() {
            match self.send_some(bytes, descriptor) {
                Ok(sent) => {
                    (descriptor, until) = (None, None);
                    bytes = bytes.get(sent..).unwrap_or_default();
                }
                Err(libc::EINTR) => {}
                Err(libc::EAGAIN) => {
                    let now = clock::asked();
                    let left = until.get_or_insert(now + PATIENCE).saturating_sub(now);
                    if left == 0 {
                        return false;
                    }
                    // `poll` reports room only once three quarters of the queue are free. A busy service may take
                    // longer to read so much, so the next attempt is made whatever `poll` returns.
                    let _ = self.poll(libc::POLLOUT, Some(RETRY.min(Duration::from_nanos(left))));
                }
                Err(_) => return false,
            }
        }
        true
    }

    fn send_some(&self, bytes: &[u8], descriptor: Option<i32>) -> Result<usize, i32> {
        if !self.is_own() {
            return Err(libc::EBADF);
        }
        let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let mut control = descriptor.map(Control::new);
        let message = message(&mut part, control.as_mut());
        let sent = c::sendmsg(self.raw(), &message, libc::MSG_NOSIGNAL);
        sent.map(|sent| sent as usize).map_err(|Errno(code)| code)
    }

    /// Receives bytes from a peer that must not send descriptors. Returns `Ok(None)` if no bytes have arrived
    /// yet.
    ///
    /// # Errors
    ///
    /// Returns an errno if the connection has ended, and EPROTO if the peer has sent a descriptor. Closing a
    /// descriptor of an untrusted peer may block, so the descriptor is left in the socket's queue, and the socket
    /// stays open until the process ends.
    pub fn receive_bytes(&self, bytes: &mut [u8]) -> Result<Option<usize>, i32> {
        let seen = self.receive_as(bytes, None, libc::MSG_PEEK)?;
        let Some((seen, flags)) = seen else { return Ok(None) };
        if flags & libc::MSG_CTRUNC != 0 {
            // Duplicates the socket's descriptor. The duplicate is never closed, so the socket stays open.
            let _ = file::control(self.raw(), libc::F_DUPFD_CLOEXEC, 0);
            return Err(libc::EPROTO);
        }
        // Receives no more bytes than were inspected above, because a descriptor may have arrived behind these bytes.
        let received = self.receive_as(bytes.get_mut(..seen).unwrap_or_default(), None, 0)?;
        Ok(received.map(|(received, _)| received))
    }

    /// Receives bytes, and a descriptor if the peer has sent one. Returns `Ok(None)` if no bytes have arrived
    /// yet.
    ///
    /// # Errors
    ///
    /// Returns an errno if the connection has ended.
    pub fn receive(&self, bytes: &mut [u8]) -> Result<Option<(usize, Option<Descriptor>)>, i32> {
        let mut control = Control::new(-1);
        let received = self.receive_as(bytes, Some(&mut control), 0)?;
        Ok(received.map(|(received, _)| (received, control.take())))
    }

    /// Receives bytes with the given flags of `recvmsg(2)`. Returns the number of bytes, and the flags of the received
    /// message.
    fn receive_as(
        &self,
        bytes: &mut [u8],
        mut control: Option<&mut Control>,
        flags: libc::c_int,
    ) -> Result<Option<(usize, libc::c_int)>, i32> {
        if !self.is_own() {
            return Err(libc::EBADF);
        }
        let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let mut message = message(&mut part, control.as_deref_mut());
        let flags = flags | libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT;
        let place = (&raw mut message).expose_provenance() as isize;
        let numbers = [self.raw() as isize, place, flags as isize, 0, 0, 0];
        // SAFETY: all parts of the message are writable and live until after the call.
        let got = unsafe { bare::call(libc::SYS_recvmsg, numbers) };
        if let Some(control) = control {
            control.is_full = message.msg_controllen >= Control::LEN as _;
        }
        match got {
            0 => Err(libc::ECONNRESET),
            got @ 1.. => Ok(Some((got as usize, message.msg_flags))),
            code => match -code as i32 {
                libc::EAGAIN | libc::EINTR => Ok(None),
                code => Err(code),
            },
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.is_own() {
            // SAFETY: the descriptor is dropped only here, and only once.
            unsafe { ManuallyDrop::drop(&mut self.descriptor) };
        }
    }
}

/// Returns whether there is a file of any kind at a socket's address. Returns true for an abstract address, which has
/// no file.
pub fn may_be_there(name: &OsStr) -> bool {
    let name = name.as_bytes();
    let mut path = [0; PATH_MAX];
    let Some(place) = path.get_mut(..name.len()) else { return false };
    place.copy_from_slice(name);
    name.first() == Some(&b'@') || CStr::from_bytes_until_nul(&path).is_ok_and(file::exists)
}

/// Returns the process id and the user id of a socket's peer, as the kernel reports them. The process id is 0 if the
/// peer is in a PID namespace that this process can't see.
pub fn peer(socket: impl AsRawFd) -> Option<(u32, u32)> {
    let mut peer: libc::ucred = zeros();
    c::peer(socket.as_raw_fd(), &mut peer).ok()?;
    Some((peer.pid.cast_unsigned(), peer.uid))
}

/// Returns the owner of a socket's directory, if only root can have given the directory to that owner.
///
/// This is certain if only root can write to each directory above that directory, and only the owner can write to the
/// directory itself. Otherwise another user could put a directory there, or mount a file system over the directory.
/// Every component of the directory's path must be a directory, not a symbolic link.
#[cold]
fn owner_by_root(name: &OsStr) -> Option<u32> {
    const BY_OTHERS: u32 = 0o022;
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let name = name.as_bytes();
    if name.first() != Some(&b'/') {
        return None;
    }
    let mut owner = 0;
    for (end, _) in name.iter().enumerate().filter(|(_, byte)| **byte == b'/') {
        let directory = name.get(..end.max(1))?;
        let mut path = [0; PATH_MAX];
        path.get_mut(..directory.len())?.copy_from_slice(directory);
        let path = CStr::from_bytes_until_nul(&path).ok()?;
        let found = file::stat(file::open_number(libc::AT_FDCWD, path, flags).ok()?.as_raw_fd()).ok()?;
        // `owner` is still the owner of the parent directory.
        if owner != 0 || found.st_mode & BY_OTHERS != 0 {
            return None;
        }
        owner = found.st_uid;
    }
    Some(owner)
}

/// The control data for one descriptor, in the kernel's layout.
///
/// The part that the kernel gets ([`Control::LEN`]) ends with the descriptor, without padding. Otherwise the kernel
/// could put a second descriptor into the padding, and no code would close that descriptor.
#[repr(C)]
struct Control {
    header: libc::cmsghdr,
    descriptor: libc::c_int,
    /// Whether the kernel has filled in the control data.
    is_full: bool,
}

impl Control {
    const LEN: usize = std::mem::offset_of!(Self, descriptor) + size_of::<libc::c_int>();

    fn new(descriptor: libc::c_int) -> Self {
        let mut header: libc::cmsghdr = zeros();
        header.cmsg_len = Self::LEN as _;
        header.cmsg_level = libc::SOL_SOCKET;
        header.cmsg_type = libc::SCM_RIGHTS;
        Self { header, descriptor, is_full: false }
    }

    /// Takes the received descriptor, which the caller now owns.
    fn take(&self) -> Option<Descriptor> {
        let Self { header, descriptor, is_full } = self;
        let is_there = *is_full
            && (header.cmsg_level, header.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS)
            && header.cmsg_len >= Self::LEN as _;
        (is_there && *descriptor >= 0).then(|| Descriptor::new(*descriptor as isize))
    }
}

/// Returns a message header for the bytes of `part` and, if there are any, for control data.
fn message(part: &mut libc::iovec, control: Option<&mut Control>) -> libc::msghdr {
    let mut message: libc::msghdr = zeros();
    (message.msg_iov, message.msg_iovlen) = (part, 1);
    if let Some(control) = control {
        message.msg_control = std::ptr::from_mut(control).cast();
        message.msg_controllen = Control::LEN as _;
    }
    message
}

/// Returns the socket address for a name, and the length of the address, or `None` if the name is not valid.
fn address(name: &OsStr) -> Option<(libc::sockaddr_un, usize)> {
    let mut address: libc::sockaddr_un = zeros();
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = name.as_bytes();
    let is_abstract = bytes.first() == Some(&b'@');
    if bytes.is_empty() || bytes.contains(&0) || bytes.len() >= address.sun_path.len() {
        return None;
    }
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    if is_abstract {
        address.sun_path[0] = 0;
    }
    // An abstract name has no NUL at its end.
    let len = std::mem::offset_of!(libc::sockaddr_un, sun_path) + bytes.len() + usize::from(!is_abstract);
    Some((address, len))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;
    use std::os::unix::net::UnixStream;
    use std::os::unix::thread::JoinHandleExt as _;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    #[cfg_attr(miri, ignore = "makes system calls")]
    fn a_peer_has_its_process_and_user() {
        let (one, _other) = UnixStream::pair().unwrap();
        // SAFETY: no preconditions.
        let own = unsafe { (libc::getpid().cast_unsigned(), libc::geteuid()) };
        assert_eq!(peer(one.as_raw_fd()), Some(own));
    }

    /// Tests that signals do not end a wait for the peer, no matter how many of them interrupt the wait.
    #[test]
    #[cfg_attr(miri, ignore = "sends signals")]
    fn signals_do_not_end_a_connection_whose_peer_reads_late() {
        const SIZE: usize = 1 << 20;
        static SIGNALS: AtomicU32 = AtomicU32::new(0);
        extern "C" fn count(_: libc::c_int) {
            SIGNALS.fetch_add(1, Ordering::Relaxed);
        }
        let mut action: libc::sigaction = zeros();
        action.sa_sigaction = count as extern "C" fn(libc::c_int) as usize;
        // SAFETY: the handler only counts.
        assert_eq!(unsafe { libc::sigaction(libc::SIGUSR2, &raw const action, std::ptr::null_mut()) }, 0);
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let start = std::time::Instant::now();
        let sender = std::thread::spawn(move || Socket::new(ours.into()).send(&vec![0; SIZE], None));
        for number in 1..=300 {
            // The sender waits for the peer for five seconds only. On a busy machine, sending 300 signals takes longer,
            // so fewer are sent.
            if start.elapsed() > Duration::from_secs(3) {
                break;
            }
            // SAFETY: the thread was not joined yet.
            unsafe { libc::pthread_kill(sender.as_pthread_t(), libc::SIGUSR2) };
            while SIGNALS.load(Ordering::Relaxed) < number && !sender.is_finished() {
                std::thread::yield_now();
            }
        }
        let mut received = Vec::new();
        theirs.read_to_end(&mut received).unwrap();
        assert_eq!((sender.join().unwrap(), received.len()), (true, SIZE));
    }

    /// Tests a peer that reads so slowly that `poll` does not report room in time. `poll` reports room in a socket's
    /// queue only after three quarters of the queue are free.
    #[test]
    #[cfg_attr(miri, ignore = "makes system calls")]
    fn a_peer_that_reads_slowly_is_waited_for() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let ours = Socket::new(ours.into());
        let mut queued = 0;
        while ours.send_some(&[0], None).is_ok() {
            queued += 1;
        }
        let pause = Duration::from_secs(10) / queued;
        std::thread::scope(|scope| {
            let sent = scope.spawn(|| (0..3).all(|_| ours.send(&[1], None)));
            while !sent.is_finished() {
                theirs.read_exact(&mut [0]).unwrap();
                std::thread::sleep(pause);
            }
            assert!(sent.join().unwrap());
        });
    }

    /// Tests a service whose queue is full, because many processes connect at once. A process waits one second for its
    /// connection. On a busy machine, the service may not accept the earlier connections in this second. Then the test
    /// is repeated, up to 20 times in all.
    #[test]
    #[cfg_attr(miri, ignore = "no sockets")]
    fn a_full_queue_is_not_the_lack_of_a_service() {
        assert!((0..20).any(has_connected_to_a_full_queue), "never emptied in time");
    }

    /// Tests a connection to a service whose queue is full at first. Returns false if the queue was not emptied within
    /// a second.
    fn has_connected_to_a_full_queue(attempt: u32) -> bool {
        let name = format!("@atrace-queue-{}-{attempt}", std::process::id());
        let (address, len) = address(OsStr::new(&name)).unwrap();
        let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
        let socket = |kind| Descriptor::new(c::socket(libc::AF_UNIX, kind).unwrap());
        let listener = socket(kind);
        // SAFETY: `listener` is an open socket, and `address` has the length `len`.
        unsafe {
            assert_eq!(libc::bind(listener.as_raw_fd(), (&raw const address).cast(), len as u32), 0);
            assert_eq!(libc::listen(listener.as_raw_fd(), 0), 0);
        }
        let mut waiting = Vec::new();
        let full = loop {
            let other = socket(kind | libc::SOCK_NONBLOCK);
            if let Err(full) = c::connect(other.as_raw_fd(), &address, len) {
                break full;
            }
            waiting.push(other);
        };
        assert_eq!(full, Errno(libc::EAGAIN));
        let start = std::time::Instant::now();
        std::thread::scope(|scope| {
            let connected = scope.spawn(|| Socket::connect(OsStr::new(&name), Trust::Any).map(drop));
            std::thread::sleep(Duration::from_millis(20));
            // SAFETY: `listener` is an open socket. The null pointers mean that the peer's address is not needed.
            let accept =
                || unsafe { libc::accept(listener.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut()) };
            let accepted: Vec<_> = waiting.iter().map(|_| Descriptor::new(accept() as isize)).collect();
            assert!(accepted.iter().all(|accepted| accepted.as_raw_fd() >= 0));
            let is_in_time = start.elapsed() < Duration::from_secs(1);
            let connected = connected.join().unwrap();
            assert!(connected == Ok(()) || !is_in_time, "{connected:?}");
            is_in_time
        })
    }
}
