//! The state of the connection to the service. It can be formatted as text, and packed into one word.

use std::fmt;

use atrace_sys::Errno;

use crate::socket::Refused;
use crate::wire::Malformed;

use crate::names::Names;

/// The state of the connection to the service: connected, or the reason why there is no connection.
///
/// `Display` formats the state as a text for users. Formatting with `{:#}` does not allocate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionState {
    /// The index of the state's text in [`TEXTS`].
    kind: u32,
    /// The errno or the user id that follows the state's text. It is not used if the text does not end in a space.
    number: u32,
}

/// The texts of the states. An errno or a user id follows a text that ends in a space.
const TEXTS: Names = Names(
    "no connection was asked for\n\
    connecting\n\
    connected\n\
    can't connect to its socket (is the service running?): \n\
    not trusted unless PERFETTO_PRODUCER_SOCK_NAME names its socket: it runs as user \n\
    PERFETTO_PRODUCER_SOCK_NAME is not a socket's name: a path, or @ and a name, of at most 107 bytes\n\
    the connection has ended: \n\
    it sent an invalid message: it may not be a tracing service of Perfetto\n\
    it lacks or refused a request that is needed: a newer version may have it\n\
    can't share memory with it: \n\
    ATRACE_SHMEM_KB is not a number from 64 to 32768\n\
    this process has no thread for it, and an event can't start one here: call perfetto::connect\n\
    its pages have a size that this process does not support\n\
    can't start a thread for it: ",
    b'\n',
);

/// The index of the only text that is followed by a user id.
const STRANGER: u32 = 4;

impl ConnectionState {
    /// The process has not asked for a connection.
    pub const NOT_REQUESTED: Self = Self::new(0, 0);
    pub(crate) const CONNECTING: Self = Self::new(1, 0);
    /// The process is connected to the service.
    pub const CONNECTED: Self = Self::new(2, 0);
    /// Not connected: the service lacks a method that every service has, has refused one of the first requests (the
    /// greeting), or has announced shared memory without sending its descriptor.
    pub(crate) const UNABLE: Self = Self::new(8, 0);
    /// Not connected: the service's shared memory has pages of a size that this process does not support.
    pub(crate) const PAGES: Self = Self::new(12, 0);
    /// Not connected: `ATRACE_SHMEM_KB` is not a valid size.
    pub(crate) const SIZE: Self = Self::new(10, 0);
    /// Not connected: there is no thread for the connection, and an event can't start one on this architecture.
    const THREADLESS: Self = Self::new(11, 0);

    const fn new(kind: u32, number: u32) -> Self {
        Self { kind, number }
    }

    /// Returns the state for a connection that has ended with this errno.
    pub(crate) const fn ended(code: i32) -> Self {
        Self::new(6, code.cast_unsigned())
    }

    /// Returns the state for a process that could not start a thread for the connection, because of this errno.
    pub(crate) const fn threadless(Errno(code): Errno) -> Self {
        if code == libc::ENOSYS { Self::THREADLESS } else { Self::new(13, code.cast_unsigned()) }
    }

    /// Returns whether the process has no thread for the connection because none could be started.
    pub(crate) const fn is_threadless(self) -> bool {
        matches!(self.kind, 11 | 13)
    }

    /// Returns the state "not connected, because the memory could not be shared", with the errno.
    pub(crate) const fn memory(Errno(code): Errno) -> Self {
        Self::new(9, code.cast_unsigned())
    }

    /// Packs the state into one word: the kind in the upper half, the number in the lower half.
    pub(crate) const fn packed(self) -> u64 {
        (self.kind as u64) << 32 | self.number as u64
    }

    /// Unpacks a word that [`packed`](Self::packed) returned.
    pub(crate) const fn of(word: u64) -> Self {
        Self::new((word >> 32) as u32, word as u32)
    }
}

impl From<Malformed> for ConnectionState {
    fn from(_: Malformed) -> Self {
        Self::new(7, 0)
    }
}

impl From<Refused> for ConnectionState {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Errno(code) => Self::new(3, code.cast_unsigned()),
            Refused::Stranger(user) => Self::new(STRANGER, user),
            Refused::Name => Self::new(5, 0),
        }
    }
}

impl fmt::Display for ConnectionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = TEXTS.at(self.kind as usize);
        f.write_str(text)?;
        match self.number {
            _ if !text.ends_with(' ') => Ok(()),
            user if self.kind == STRANGER => user.fmt(f),
            // Getting the system's text for an errno allocates memory, which the socket thread must not do.
            code if f.alternate() => write!(f, "errno {code}"),
            code => Errno(code.cast_signed()).fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_what_it_was_before_it_was_packed_and_has_a_text() {
        // Miri has other texts than the system.
        let denied = std::io::Error::from_raw_os_error(13).to_string();
        for kind in 0..14 {
            let state = ConnectionState::new(kind, 13);
            assert_eq!(ConnectionState::of(state.packed()), state);
            let numbered = match kind {
                STRANGER => "13",
                3 | 6 | 9 | 13 => &denied,
                _ => "",
            };
            let text = TEXTS.at(kind as usize);
            assert_eq!(
                (text.ends_with(' '), state.to_string()),
                (!numbered.is_empty(), format!("{text}{numbered}"))
            );
        }
        let texts = [
            (ConnectionState::CONNECTED, "connected"),
            (
                ConnectionState::UNABLE,
                "it lacks or refused a request that is needed: a newer version may have it",
            ),
            (ConnectionState::SIZE, "ATRACE_SHMEM_KB is not a number from 64 to 32768"),
            (
                ConnectionState::from(Malformed),
                "it sent an invalid message: it may not be a tracing service of Perfetto",
            ),
            (
                ConnectionState::from(Refused::Stranger(7)),
                "not trusted unless PERFETTO_PRODUCER_SOCK_NAME names its socket: it runs as user 7",
            ),
            (
                ConnectionState::from(Refused::Name),
                "PERFETTO_PRODUCER_SOCK_NAME is not a socket's name: a path, or @ and a name, of at most 107 bytes",
            ),
        ];
        assert!(texts.iter().all(|(state, text)| state.to_string() == *text), "{texts:?}");
        let [errno, ended, memory] =
            [Refused::Errno(13).into(), ConnectionState::ended(13), ConnectionState::memory(Errno(13))];
        let shown = [errno, ended, memory].map(|state| format!("{state:#}"));
        assert_eq!(
            shown,
            [
                "can't connect to its socket (is the service running?): errno 13",
                "the connection has ended: errno 13",
                "can't share memory with it: errno 13"
            ]
        );
        let threadless = ConnectionState::threadless(Errno(libc::ENOSYS));
        assert!(threadless.to_string().starts_with("this process has no thread for it"));
    }
}
