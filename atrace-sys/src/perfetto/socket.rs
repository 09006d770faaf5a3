//! The socket to the service: where it is, whom to talk to, and how bytes and descriptors go over it.

use std::ffi::OsStr;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::time::Duration;

use crate::system::{self, Plain, c, check, errno, file, zeros};

// SAFETY: zeros are an empty message, nothing beside it, an address, and ids.
unsafe impl Plain for libc::msghdr {}
// SAFETY: as above.
unsafe impl Plain for libc::cmsghdr {}
// SAFETY: as above.
unsafe impl Plain for libc::sockaddr_un {}
// SAFETY: as above.
unsafe impl Plain for libc::ucred {}

/// Who may be the service, by user id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// This user, root, or Android's `traced`.
    Usual,
    /// Whoever listens there: the user has named the place.
    Any,
}

/// Android's user `nobody`, as whom its services of tracing run.
#[cfg(target_os = "android")]
const TRACED: libc::uid_t = 9999;

/// A connection to the service.
#[derive(Debug)]
pub struct Socket(OwnedFd);

/// Why there is no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The errno: nobody listens there, as a rule.
    Errno(i32),
    /// Another user listens there.
    Stranger(u32),
    /// The name is no socket's.
    Name,
}

impl Refused {
    #[cold]
    #[inline(never)]
    fn errno(error: std::io::Error) -> Self {
        Self::Errno(error.raw_os_error().unwrap_or_default())
    }
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Errno(code) => {
                write!(f, "nobody to talk to: {}", std::io::Error::from_raw_os_error(*code))
            }
            Self::Stranger(user) => write!(f, "its socket is another user's, {user}"),
            Self::Name => f.write_str("its name is no socket's"),
        }
    }
}

impl Socket {
    /// A connection that there is already.
    pub fn new(socket: OwnedFd) -> Self {
        Self(socket)
    }

    /// Connects to the socket with this name: a path, or `@` and an abstract name.
    ///
    /// # Errors
    ///
    /// Returns why there is no connection.
    pub fn connect(name: &OsStr, trust: Trust) -> Result<Self, Refused> {
        let (address, len) = address(name).ok_or(Refused::Name)?;
        let flags = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let made = file::owned(c::socket(libc::AF_UNIX, flags, 0));
        let socket = Self(made.map_err(Refused::errno)?.into());
        let fd = socket.0.as_raw_fd();
        // SAFETY: an address of that length.
        check(unsafe { libc::connect(fd, (&raw const address).cast(), len) }).map_err(Refused::errno)?;
        if trust == Trust::Usual {
            let (_, peer) = peer(socket.0.as_fd()).ok_or(Refused::Errno(libc::EPERM))?;
            let (own, _) = system::effective_ids();
            let is_trusted = peer == own || peer == 0;
            #[cfg(target_os = "android")]
            let is_trusted = is_trusted || peer == TRACED;
            if !is_trusted {
                return Err(Refused::Stranger(peer));
            }
        }
        Ok(socket)
    }

    /// Waits until there is something to receive, at most so long (`None`: without end). An end of the connection
    /// counts.
    pub fn wait(&self, timeout: Option<Duration>) -> bool {
        self.poll(libc::POLLIN, timeout)
    }

    fn poll(&self, events: libc::c_short, timeout: Option<Duration>) -> bool {
        let mut place = [libc::pollfd { fd: self.0.as_raw_fd(), events, revents: 0 }];
        file::poll(&mut place, timeout).is_ok_and(|ready| ready > 0)
    }

    /// Sends all of these bytes, the first of them with a descriptor; false: the connection is of no more use. Waits at
    /// most five seconds for a service that does not read.
    pub fn send(&self, mut bytes: &[u8], mut descriptor: Option<i32>) -> bool {
        while !bytes.is_empty() {
            match self.send_some(bytes, descriptor) {
                Ok(sent) => {
                    descriptor = None;
                    bytes = bytes.get(sent..).unwrap_or_default();
                }
                Err(libc::EINTR) => {}
                Err(libc::EAGAIN) if self.poll(libc::POLLOUT, Some(Duration::from_secs(5))) => {}
                Err(_) => return false,
            }
        }
        true
    }

    fn send_some(&self, bytes: &[u8], descriptor: Option<i32>) -> Result<usize, i32> {
        let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let mut message: libc::msghdr = zeros();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        let mut control = descriptor.map(Control::new);
        if let Some(control) = &mut control {
            control.offer(&mut message);
        }
        // SAFETY: the message's parts live until after the call.
        let sent = unsafe { libc::sendmsg(self.0.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
        usize::try_from(sent).map_err(|_| errno())
    }

    /// Receives what there is, and a descriptor if one came along; `Ok(None)` where nothing is there yet.
    ///
    /// # Errors
    ///
    /// When the connection has ended.
    pub fn receive(&self, bytes: &mut [u8]) -> Result<Option<(usize, Option<OwnedFd>)>, i32> {
        let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let mut control = Control::new(-1);
        let mut message: libc::msghdr = zeros();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        control.offer(&mut message);
        let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT;
        // SAFETY: the message's parts are writable and live until after the call.
        let got = unsafe { libc::recvmsg(self.0.as_raw_fd(), &raw mut message, flags) };
        match usize::try_from(got) {
            Ok(0) => Err(libc::ECONNRESET),
            Ok(got) => Ok(Some((got, control.take(&message)))),
            Err(_) => match errno() {
                libc::EAGAIN | libc::EINTR => Ok(None),
                code => Err(code),
            },
        }
    }
}

/// Who is at the other end of a socket, as the kernel says: the process (0 where it can't be named here) and its user.
pub fn peer(socket: BorrowedFd<'_>) -> Option<(u32, u32)> {
    let mut peer: libc::ucred = zeros();
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let (level, option) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    // SAFETY: writable memory of that length.
    let code =
        unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, (&raw mut peer).cast(), &raw mut len) };
    (code == 0).then_some((peer.pid.cast_unsigned(), peer.uid))
}

/// One descriptor beside a message, as the kernel lays it out. No more: what aligns its end is no room for a second one, which would
/// be nobody's.
#[repr(C)]
struct Control {
    header: libc::cmsghdr,
    descriptor: libc::c_int,
}

impl Control {
    const LEN: usize = std::mem::offset_of!(Self, descriptor) + size_of::<libc::c_int>();

    fn new(descriptor: libc::c_int) -> Self {
        let mut header: libc::cmsghdr = zeros();
        header.cmsg_len = Self::LEN as _;
        header.cmsg_level = libc::SOL_SOCKET;
        header.cmsg_type = libc::SCM_RIGHTS;
        Self { header, descriptor }
    }

    fn offer(&mut self, message: &mut libc::msghdr) {
        message.msg_control = std::ptr::from_mut(self).cast();
        message.msg_controllen = Self::LEN as _;
    }

    /// What the kernel has put here, beside this message; it is ours from now on.
    fn take(&self, message: &libc::msghdr) -> Option<OwnedFd> {
        let Self { header, descriptor } = self;
        let is_there = message.msg_controllen >= Self::LEN as _
            && (header.cmsg_level, header.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS)
            && header.cmsg_len >= Self::LEN as _;
        is_there.then(|| file::owned(*descriptor).ok()).flatten().map(OwnedFd::from)
    }
}

/// The address of a name.
fn address(name: &OsStr) -> Option<(libc::sockaddr_un, libc::socklen_t)> {
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
    Some((address, len as libc::socklen_t))
}

/// Where the service listens for producers, and who may listen there. What the environment says does not count in a
/// process with elevated rights.
pub fn producers() -> (std::ffi::OsString, Trust) {
    #[cfg(target_os = "android")]
    let names = ["/dev/socket/traced_producer"; 2];
    #[cfg(not(target_os = "android"))]
    let names = ["/run/perfetto/traced-producer.sock", "/tmp/perfetto-producer"];
    place("PERFETTO_PRODUCER_SOCK_NAME", names)
}

/// Where it listens for consumers, and who may listen there, as with [`producers`].
pub fn consumers() -> (std::ffi::OsString, Trust) {
    #[cfg(target_os = "android")]
    let names = ["/dev/socket/traced_consumer"; 2];
    #[cfg(not(target_os = "android"))]
    let names = ["/run/perfetto/traced-consumer.sock", "/tmp/perfetto-consumer"];
    place("PERFETTO_CONSUMER_SOCK_NAME", names)
}

/// What a variable names, or the first of two places, where its directory can be looked into.
fn place(variable: &str, [first, other]: [&str; 2]) -> (std::ffi::OsString, Trust) {
    if let Some(name) = crate::process::variable(variable) {
        return (name, Trust::Any);
    }
    let has_run = c::access(c"/run/perfetto/".into(), libc::X_OK) == 0;
    (if has_run { first } else { other }.into(), Trust::Usual)
}
