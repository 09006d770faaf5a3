//! Programs that are waited for no longer than anyone wants to wait.
//!
//! Each runs in a process group of its own. So Ctrl-C reaches this process alone, which ends the
//! child when it has decided to, and runs others to clean up, which nobody ends.

use std::cell::Cell;
use std::io::{self, BufRead as _, BufReader, Read, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::harness::supervise::is_ignored;

const POLL: Duration = Duration::from_millis(20);
/// How long a child that was asked to end may take before it is killed.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long output is awaited after the child's end. A daemon that it started may keep the pipe open
/// for ever.
const DRAIN: Duration = Duration::from_millis(500);

/// The signals that ask this process to end.
#[derive(Debug)]
pub(crate) struct Interrupt {
    signal: Arc<AtomicUsize>,
    heeded: Cell<bool>,
}

impl Interrupt {
    /// Takes the signals from now on, but for those that whoever started this process wants ignored.
    pub(crate) fn new() -> io::Result<Self> {
        let this = Self { signal: Arc::default(), heeded: Cell::new(true) };
        for signal in [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|&signal| !is_ignored(signal)) {
            let number = usize::try_from(signal).unwrap_or_default();
            signal_hook::flag::register_usize(signal, Arc::clone(&this.signal), number)?;
        }
        Ok(this)
    }

    /// From now on, a signal is answered with a line and changes nothing.
    pub(crate) fn ignore(&self) {
        self.heeded.set(false);
    }

    /// Returns the signal to end for, if there was one since this was last asked.
    pub(crate) fn take(&self) -> Option<i32> {
        let signal = self.signal.swap(0, SeqCst);
        if signal == 0 {
            return None;
        }
        if !self.heeded.get() {
            let _ = writeln!(io::stderr(), "still cleaning up the device; it ends by itself");
            return None;
        }
        i32::try_from(signal).ok()
    }
}

/// Where a line came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    Out,
    Err,
}

/// How a child ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ended {
    ByItself(ExitStatus),
    /// This process was asked to end by this signal, and the child was ended.
    Interrupted(i32),
    /// The child was ended as it took too long.
    TimedOut,
}

/// Runs a program with no input, and hands on what it says line by line, the line end included. What
/// stdout and stderr are is set here unless `inherit_err`.
///
/// # Errors
///
/// When it can't be started.
pub(crate) fn run(
    command: &mut Command,
    interrupt: &Interrupt,
    timeout: Option<Duration>,
    inherit_err: bool,
    mut line: impl FnMut(Stream, &[u8]),
) -> io::Result<Ended> {
    if let Some(signal) = interrupt.take() {
        return Ok(Ended::Interrupted(signal));
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
    command.stderr(if inherit_err { Stdio::inherit() } else { Stdio::piped() });
    let mut child = command.spawn()?;
    let (sender, lines) = mpsc::channel();
    read_lines(child.stdout.take(), Stream::Out, &sender);
    read_lines(child.stderr.take(), Stream::Err, &sender);
    drop(sender);

    let start = Instant::now();
    let mut open = true;
    let mut ended: Option<(ExitStatus, Instant)> = None;
    let mut why = None;
    let mut killed = None;
    loop {
        match lines.recv_timeout(POLL) {
            Ok((stream, text)) => line(stream, &text),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => open = false,
        }
        if let Some((status, since)) = ended {
            if !open || since.elapsed() > DRAIN {
                return Ok(why.unwrap_or(Ended::ByItself(status)));
            }
            continue;
        }
        if let Some(status) = child.try_wait()? {
            ended = Some((status, Instant::now()));
            continue;
        }
        if !open {
            std::thread::sleep(POLL);
        }
        match killed {
            None => {
                let late = timeout.is_some_and(|timeout| start.elapsed() > timeout);
                why = interrupt.take().map(Ended::Interrupted).or(late.then_some(Ended::TimedOut));
                if why.is_some() {
                    end(&child, Signal::TERM);
                    killed = Some(Instant::now());
                }
            }
            Some(since) if since.elapsed() > PATIENCE => end(&child, Signal::KILL),
            Some(_) => {}
        }
    }
}

/// Asks the child, and what it started, to end. It was not waited for, so the number is still its own.
fn end(child: &Child, signal: Signal) {
    let _ = kill_process_group(Pid::from_child(child), signal);
}

fn read_lines(from: Option<impl Read + Send + 'static>, stream: Stream, to: &Sender<(Stream, Vec<u8>)>) {
    let Some(from) = from else { return };
    let to = to.clone();
    std::thread::spawn(move || {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        while from.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
            if to.send((stream, std::mem::take(&mut line))).is_err() {
                return;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str, timeout: Option<Duration>) -> (Ended, String) {
        let interrupt = Interrupt { signal: Arc::default(), heeded: Cell::new(true) };
        let mut said = String::new();
        let ended =
            run(Command::new("sh").args(["-c", script]), &interrupt, timeout, false, |stream, line| {
                said.push_str(&format!("{stream:?} {}", String::from_utf8_lossy(line)));
            });
        (ended.unwrap(), said)
    }

    #[test]
    fn lines_and_statuses() {
        let (ended, said) = sh("echo a; sleep 0.1; echo b >&2; sleep 0.1; printf c; exit 3", None);
        assert!(matches!(ended, Ended::ByItself(status) if status.code() == Some(3)), "{ended:?}");
        assert_eq!(said, "Out a\nErr b\nOut c");
    }

    #[test]
    fn nobody_waits_for_a_daemons_pipe() {
        let start = Instant::now();
        let (ended, said) = sh("sleep 5 & echo a", None);
        assert!(matches!(ended, Ended::ByItself(status) if status.success()), "{ended:?}");
        assert_eq!(said, "Out a\n");
        assert!(start.elapsed() < Duration::from_secs(4));
    }

    #[test]
    fn what_takes_too_long_is_ended() {
        let start = Instant::now();
        let (ended, said) = sh("trap 'echo asked; exit' TERM; sleep 60 & wait", Some(POLL));
        assert!(matches!(ended, Ended::TimedOut), "{ended:?}");
        assert_eq!(said, "Out asked\n");
        let (ended, _) = sh("trap '' TERM; sleep 60", Some(POLL));
        assert!(matches!(ended, Ended::TimedOut), "{ended:?}");
        assert!(start.elapsed() < PATIENCE * 3);
    }

    #[test]
    fn signals_are_heeded_until_the_clean_up() {
        let interrupt = Interrupt { signal: Arc::new(AtomicUsize::new(2)), heeded: Cell::new(true) };
        let ended = run(&mut Command::new("true"), &interrupt, None, false, |_, _| ()).unwrap();
        assert!(matches!(ended, Ended::Interrupted(2)), "{ended:?}");
        interrupt.ignore();
        interrupt.signal.store(15, SeqCst);
        let ended = run(&mut Command::new("true"), &interrupt, None, false, |_, _| ()).unwrap();
        assert!(matches!(ended, Ended::ByItself(_)), "{ended:?}");
    }
}
