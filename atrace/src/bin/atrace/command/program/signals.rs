//! Signals that ask this command to end, taken from a descriptor instead of a handler.

use std::os::fd::AsFd;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::command::terminal::{Result, failed};

const ENDS: [Signal; 4] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT];

/// A signal that came, and whether a process sent it to this one; the terminal sends it to all of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Came {
    pub(crate) signal: Signal,
    pub(crate) from_process: bool,
}

/// Holds back the signals that end a process, and tells which came.
///
/// Made while the process has one thread; those started later inherit that it holds them back.
#[derive(Debug)]
pub(crate) struct Signals {
    fd: SignalFd,
    /// Those that were not held back before.
    held: Vec<Signal>,
}

impl Signals {
    pub(crate) fn hold() -> Result<Self> {
        let before = SigSet::thread_get_mask().map_err(failed("looking at the signal mask"))?;
        // Whoever started this with `nohup` wants it to go on.
        let ignored = ignored();
        let held: Vec<_> = ENDS
            .into_iter()
            .filter(|&signal| !before.contains(signal) && ignored >> (signal as i32 - 1) & 1 == 0)
            .collect();
        Self::of(held)
    }

    /// Holds back these.
    pub(crate) fn of(signals: impl IntoIterator<Item = Signal>) -> Result<Self> {
        let held: Vec<_> = signals.into_iter().collect();
        let set: SigSet = held.iter().copied().collect();
        set.thread_block().map_err(failed("holding back signals"))?;
        let fd = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
            .map_err(failed("opening a descriptor for signals"))?;
        Ok(Self { fd, held })
    }

    /// The numbers of the signals that a started program must have back.
    pub(crate) fn held(&self) -> impl Iterator<Item = i32> + '_ {
        self.held.iter().map(|&signal| signal as i32)
    }

    /// Waits for a signal, for `other` to be closed at its other end (then true), or for `timeout`.
    pub(crate) fn wait(&self, other: Option<&impl AsFd>, timeout: Duration) -> Result<(Option<Came>, bool)> {
        let mut places = vec![PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)];
        places.extend(other.map(|other| PollFd::new(other.as_fd(), PollFlags::POLLIN)));
        let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX);
        match poll(&mut places, timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(e) => return Err(failed("waiting for signals")(e)),
        }
        let is_closed = places.get(1).is_some_and(|place| place.any().unwrap_or(true));
        let came = self.fd.read_signal().map_err(failed("reading a signal"))?;
        let came = came.and_then(|info| {
            let signal = Signal::try_from(i32::try_from(info.ssi_signo).ok()?).ok()?;
            // Positive codes are the kernel's own.
            Some(Came { signal, from_process: info.ssi_code <= 0 })
        });
        Ok((came, is_closed))
    }
}

/// The signals that this process ignores, a bit each.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Has the calling thread take these signals again.
pub(crate) fn release(numbers: &[i32]) -> Result<()> {
    let set: SigSet = numbers.iter().filter_map(|&number| Signal::try_from(number).ok()).collect();
    set.thread_unblock().map_err(failed("giving signals back"))
}
