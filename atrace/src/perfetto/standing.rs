//! How this process stands to the service, in words and packed into one.

use atrace_sys::perfetto::socket::Refused;
use atrace_sys::perfetto::wire::Malformed;

/// Why there is no connection, or that there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Nobody asked for one.
    Apart,
    Connecting,
    Connected,
    Refused(Refused),
    /// It came to an end, by this errno or the service's fault.
    Gone(Gone),
}

/// How a connection came to an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gone {
    Errno(i32),
    Malformed,
    /// It does not know what every service knows.
    Unable,
    /// It wants memory that can shrink, or of pages that are not ours.
    Memory(i32),
    /// `ATRACE_SHMEM_KB` is no size.
    Size,
}

impl Gone {
    /// By what failed as memory was shared.
    #[cold]
    #[inline(never)]
    pub(crate) fn memory(error: std::io::Error) -> Self {
        Self::Memory(error.raw_os_error().unwrap_or_default())
    }
}

impl From<Malformed> for Gone {
    fn from(_: Malformed) -> Self {
        Self::Malformed
    }
}

impl Standing {
    /// In one word: what it is, and a number that goes with it.
    pub(super) const fn packed(self) -> u64 {
        let (kind, number) = match self {
            Self::Apart => (0, 0),
            Self::Connecting => (1, 0),
            Self::Connected => (2, 0),
            Self::Refused(Refused::Errno(code)) => (3, code as u32),
            Self::Refused(Refused::Stranger(user)) => (4, user),
            Self::Refused(Refused::Name) => (5, 0),
            Self::Gone(Gone::Errno(code)) => (6, code as u32),
            Self::Gone(Gone::Malformed) => (7, 0),
            Self::Gone(Gone::Unable) => (8, 0),
            Self::Gone(Gone::Memory(code)) => (9, code as u32),
            Self::Gone(Gone::Size) => (10, 0),
        };
        (kind << 32) | number as u64
    }

    /// From [`packed`](Self::packed).
    pub(super) const fn of(word: u64) -> Self {
        let number = word as u32;
        match word >> 32 {
            1 => Self::Connecting,
            2 => Self::Connected,
            3 => Self::Refused(Refused::Errno(number as i32)),
            4 => Self::Refused(Refused::Stranger(number)),
            5 => Self::Refused(Refused::Name),
            6 => Self::Gone(Gone::Errno(number as i32)),
            7 => Self::Gone(Gone::Malformed),
            8 => Self::Gone(Gone::Unable),
            9 => Self::Gone(Gone::Memory(number as i32)),
            10 => Self::Gone(Gone::Size),
            _ => Self::Apart,
        }
    }
}

impl std::fmt::Display for Standing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let error = |code: i32| std::io::Error::from_raw_os_error(code);
        match *self {
            Self::Apart => f.write_str("not asked for"),
            Self::Connecting => f.write_str("being connected to"),
            Self::Connected => f.write_str("connected"),
            Self::Refused(Refused::Errno(code)) => write!(f, "nobody to talk to: {}", error(code)),
            Self::Refused(Refused::Stranger(user)) => write!(f, "its socket is another user's, {user}"),
            Self::Refused(Refused::Name) => f.write_str("PERFETTO_PRODUCER_SOCK_NAME is no socket's name"),
            Self::Gone(Gone::Errno(code)) => write!(f, "gone: {}", error(code)),
            Self::Gone(Gone::Malformed) => f.write_str("what it said made no sense"),
            Self::Gone(Gone::Unable) => f.write_str("it lacks what is needed"),
            Self::Gone(Gone::Memory(code)) => write!(f, "no memory to share: {}", error(code)),
            Self::Gone(Gone::Size) => f.write_str("ATRACE_SHMEM_KB is no number from 64 to 32768"),
        }
    }
}
