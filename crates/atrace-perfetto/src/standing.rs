//! The state of the connection to the service, as a text and packed into one word.

use std::fmt;

use atrace_sys::Errno;

use crate::socket::Refused;
use crate::wire::Malformed;

use crate::names::Names;

/// Whether there is a connection, and if not, why.
///
/// Its `Display` is a text for people; with `{:#}` it does not allocate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    kind: Kind,
    /// An errno or a user id, if the kind has one.
    number: u32,
}

/// The kinds of states, in the order of [`TEXTS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Apart,
    Connecting,
    Connected,
    Errno,
    Stranger,
    Name,
    Ended,
    Malformed,
    Unable,
    Memory,
    Size,
    Threadless,
}

const KINDS: [Kind; 12] = [
    Kind::Apart,
    Kind::Connecting,
    Kind::Connected,
    Kind::Errno,
    Kind::Stranger,
    Kind::Name,
    Kind::Ended,
    Kind::Malformed,
    Kind::Unable,
    Kind::Memory,
    Kind::Size,
    Kind::Threadless,
];
/// Texts that end in a space are followed by the number.
const TEXTS: Names = Names::separated_by(
    "not asked for\n\
    being connected to\n\
    connected\n\
    nobody to talk to: \n\
    its socket is another user's, \n\
    PERFETTO_PRODUCER_SOCK_NAME is no socket's name\n\
    gone: \n\
    what it said made no sense\n\
    it lacks what is needed\n\
    no memory to share: \n\
    ATRACE_SHMEM_KB is no number from 64 to 32768\n\
    this process has no thread for it, and an event can't start one here: call perfetto::connect",
    b'\n',
);

impl Standing {
    /// No connection was asked for.
    pub const APART: Self = Self::new(Kind::Apart, 0);
    pub(crate) const CONNECTING: Self = Self::new(Kind::Connecting, 0);
    /// The service is connected.
    pub const CONNECTED: Self = Self::new(Kind::Connected, 0);
    /// Not connected: the service lacks a method that every service has.
    pub(crate) const UNABLE: Self = Self::new(Kind::Unable, 0);
    /// Not connected: `ATRACE_SHMEM_KB` is not a valid size.
    pub(crate) const SIZE: Self = Self::new(Kind::Size, 0);
    /// Not connected: no thread could be started for the connection.
    pub(crate) const THREADLESS: Self = Self::new(Kind::Threadless, 0);
    /// Not connected: the service wants memory with another page size.
    pub(crate) const PAGES: Self = Self::new(Kind::Memory, 0);

    const fn new(kind: Kind, number: u32) -> Self {
        Self { kind, number }
    }

    /// Returns the state after the connection broke with this errno.
    pub(crate) const fn ended(code: i32) -> Self {
        Self::new(Kind::Ended, code.cast_unsigned())
    }

    /// Returns the state after sharing memory failed.
    pub(crate) const fn memory(Errno(code): Errno) -> Self {
        Self::new(Kind::Memory, code.cast_unsigned())
    }

    /// Packs the state into one word: the kind above, the number in the lower half.
    pub(crate) const fn packed(self) -> u64 {
        (self.kind as u64) << 32 | self.number as u64
    }

    /// Unpacks what [`packed`](Self::packed) returned.
    pub(crate) fn of(word: u64) -> Self {
        Self::new(KINDS.get((word >> 32) as usize).copied().unwrap_or(Kind::Apart), word as u32)
    }
}

impl From<Malformed> for Standing {
    fn from(_: Malformed) -> Self {
        Self::new(Kind::Malformed, 0)
    }
}

impl From<Refused> for Standing {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Errno(code) => Self::new(Kind::Errno, code.cast_unsigned()),
            Refused::Stranger(user) => Self::new(Kind::Stranger, user),
            Refused::Name => Self::new(Kind::Name, 0),
        }
    }
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(TEXTS.at(self.kind as usize))?;
        match self.kind {
            Kind::Stranger => self.number.fmt(f),
            // The system's text for an errno allocates, which the socket thread must not do.
            Kind::Errno | Kind::Ended | Kind::Memory if f.alternate() => write!(f, "errno {}", self.number),
            Kind::Errno | Kind::Ended | Kind::Memory => Errno(self.number.cast_signed()).fmt(f),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_what_it_was_before_it_was_packed_and_has_a_text() {
        for (place, kind) in KINDS.into_iter().enumerate() {
            let standing = Standing::new(kind, 13);
            assert_eq!((kind as usize, Standing::of(standing.packed())), (place, standing));
            // Miri has other texts than the system.
            let denied = std::io::Error::from_raw_os_error(13).to_string();
            let numbered = match kind {
                Kind::Stranger => "13",
                Kind::Errno | Kind::Ended | Kind::Memory => &denied,
                _ => "",
            };
            let text = TEXTS.at(place);
            assert_eq!(
                (text.ends_with(' '), standing.to_string()),
                (!numbered.is_empty(), format!("{text}{numbered}"))
            );
        }
        assert_eq!(Standing::of(u64::MAX), Standing::new(Kind::Apart, u32::MAX));
    }
}
