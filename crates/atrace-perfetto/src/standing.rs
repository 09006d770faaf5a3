//! How this process stands to the service, in words and packed into one.

use std::fmt;

use crate::socket::Refused;
use crate::wire::Malformed;

use crate::words::Words;

/// Why there is no connection, or that there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    kind: Kind,
    /// An errno, or a user's.
    number: u32,
}

/// What is said of it, by its place in [`TEXTS`].
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
/// A text that ends in a space has the number behind it.
const TEXTS: Words = Words::apart(
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
    /// Nobody asked for a connection.
    pub const APART: Self = Self::new(Kind::Apart, 0);
    pub(crate) const CONNECTING: Self = Self::new(Kind::Connecting, 0);
    /// The service is there.
    pub const CONNECTED: Self = Self::new(Kind::Connected, 0);
    /// Gone, as it does not know what every service knows.
    pub(crate) const UNABLE: Self = Self::new(Kind::Unable, 0);
    /// Gone, as `ATRACE_SHMEM_KB` is no size.
    pub(crate) const SIZE: Self = Self::new(Kind::Size, 0);
    /// There is no thread to talk to it.
    pub(crate) const THREADLESS: Self = Self::new(Kind::Threadless, 0);
    /// Gone, as it wants memory of pages that are not ours.
    pub(crate) const PAGES: Self = Self::new(Kind::Memory, 0);

    const fn new(kind: Kind, number: u32) -> Self {
        Self { kind, number }
    }

    /// Gone, by this errno.
    pub(crate) const fn ended(code: i32) -> Self {
        Self::new(Kind::Ended, code.cast_unsigned())
    }

    /// Gone, by what failed as memory was shared.
    #[cold]
    #[inline(never)]
    pub(crate) fn memory(error: std::io::Error) -> Self {
        Self::new(Kind::Memory, error.raw_os_error().unwrap_or_default().cast_unsigned())
    }

    /// In one word: what it is, and a number that goes with it.
    pub(crate) const fn packed(self) -> u64 {
        (self.kind as u64) << 32 | self.number as u64
    }

    /// From [`packed`](Self::packed).
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
            // The system's text of it allocates, which the socket's thread must not.
            Kind::Errno | Kind::Ended | Kind::Memory if f.alternate() => write!(f, "errno {}", self.number),
            Kind::Errno | Kind::Ended | Kind::Memory => {
                std::io::Error::from_raw_os_error(self.number.cast_signed()).fmt(f)
            }
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
            // Miri has texts of its own.
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
