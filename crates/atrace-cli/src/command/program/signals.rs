//! The signals that ask this command to end.
//!
//! A handler writes each signal to a pipe, so that the main thread can wait for signals with `poll` (the *self-pipe
//! trick*).

use std::io::PipeReader;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::{Errno, read, write};
use rustix::process::Signal;

use crate::command::processes::Process;
use crate::command::terminal::{Result, failed};

const ENDS: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];

/// The pause in place of a wait if a system call filter denies `poll`.
const REST: Duration = Duration::from_millis(50);

/// A signal that was caught, and whether a process sent it. Otherwise the kernel did, for a key of the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Caught {
    pub(crate) signal: Signal,
    pub(crate) from_process: bool,
}

/// The signals that this process catches. A program that it starts inherits no handlers.
#[derive(Debug)]
pub(crate) struct Signals {
    pipe: PipeReader,
    pub(crate) caught: Vec<Signal>,
}

impl Signals {
    /// Catches the signals that ask a process to end. Ignored signals stay ignored, as under `nohup`.
    pub(crate) fn catch() -> Result<Self> {
        Self::catch_also(None)
    }

    /// Like [`catch`](Self::catch), with one more signal.
    pub(crate) fn catch_also(other: Option<Signal>) -> Result<Self> {
        let ignored = Process::this().ignored_signals();
        let ends = ENDS.into_iter().filter(|signal| ignored >> (signal.as_raw() - 1) & 1 == 0);
        Self::of(ends.chain(other))
    }

    #[allow(unsafe_code, reason = "a handler may do little, which the compiler does not know")]
    pub(crate) fn of(signals: impl IntoIterator<Item = Signal>) -> Result<Self> {
        let (pipe, end) = std::io::pipe()?;
        for end in [pipe.as_fd(), end.as_fd()] {
            fcntl_setfl(end, OFlags::NONBLOCK).map_err(failed("making a pipe for signals"))?;
        }
        let (end, caught) = (Arc::new(end), signals.into_iter().collect::<Vec<_>>());
        for signal in &caught {
            let (number, end) = (signal.as_raw(), Arc::clone(&end));
            // SAFETY: the handler makes one call, `write` on a non-blocking pipe, which is async-signal-safe. It
            // allocates nothing, takes no lock, and does not panic. `signal_hook_registry` restores errno after it.
            let done = unsafe {
                signal_hook_registry::register_sigaction(number, move |info| {
                    // The code is positive if the kernel sent the signal itself.
                    let _ = write(&*end, &[number as u8, u8::from(info.si_code <= 0)]);
                })
            };
            done.map_err(failed("catching signals"))?;
        }
        Ok(Self { pipe, caught })
    }

    /// Waits for a signal, for the other end of `other` to be closed (the result is then true), or for `timeout`.
    pub(crate) fn wait(
        &self,
        other: Option<&impl AsFd>,
        timeout: Duration,
    ) -> Result<(Option<Caught>, bool)> {
        let is_closed = is_ready([Some(self.pipe.as_fd()), other.map(AsFd::as_fd)], timeout)
            .map_err(failed("waiting for signals"))?;
        let mut bytes = [0; 2];
        let came = match read(&self.pipe, &mut bytes) {
            Ok(2) => Signal::from_named_raw(bytes[0].into())
                .map(|signal| Caught { signal, from_process: bytes[1] == 1 }),
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => None,
            Err(e) => return Err(failed("reading a signal")(e)),
        };
        Ok((came, is_closed))
    }
}

/// Waits until a descriptor is ready or the time is over. Returns whether the last descriptor is ready.
pub(crate) fn is_ready<const N: usize>(
    descriptors: [Option<BorrowedFd<'_>>; N],
    timeout: Duration,
) -> rustix::io::Result<bool> {
    let mut places: Vec<_> = descriptors.iter().flatten().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    let (rest, timeout) = (timeout, Timespec::try_from(timeout).ok());
    match poll(&mut places, timeout.as_ref()) {
        Ok(_) => {}
        Err(Errno::INTR) => return Ok(false),
        // A system call filter may deny `poll`. The caller then checks for itself after a pause.
        Err(Errno::PERM | Errno::ACCESS | Errno::NOSYS) => {
            std::thread::sleep(rest.min(REST));
            return Ok(false);
        }
        Err(e) => return Err(e),
    }
    Ok(descriptors.last().is_some_and(Option::is_some)
        && places.last().is_some_and(|place| !place.revents().is_empty()))
}
