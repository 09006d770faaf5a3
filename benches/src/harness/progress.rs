//! A line on a terminal that says what runs, how far it is, and how long it still takes.

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::catalogue::BENCHES;

/// How often the line is written anew at most: writing takes time of a machine that is measured.
const EVERY: Duration = Duration::from_millis(500);
/// How many characters the bar has.
const BAR: usize = 24;

#[derive(Debug)]
struct Progress {
    bench: &'static str,
    started: Instant,
    expected: Duration,
    written: Instant,
}

static PROGRESS: Mutex<Option<Progress>> = Mutex::new(None);

/// Begins the line of a bench, if there is a terminal.
pub(crate) fn begin(bench: &'static str, quick: bool) {
    let known = BENCHES.iter().find(|known| known.name == bench);
    if let Some(known) = known.filter(|_| io::stderr().is_terminal()) {
        let expected = Duration::from_secs(if quick { known.seconds.1 } else { known.seconds.0 });
        let now = Instant::now();
        let progress = Progress { bench, started: now, expected, written: now - EVERY.min(now.elapsed()) };
        *PROGRESS.lock().unwrap_or_else(PoisonError::into_inner) = Some(progress);
    }
}

/// Says what runs now. Nothing is measured meanwhile: it is called between slices.
pub fn step(what: &str) {
    let mut progress = PROGRESS.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(progress) = progress.as_mut().filter(|progress| progress.written.elapsed() >= EVERY) else {
        return;
    };
    progress.written = Instant::now();
    let line = line(progress.bench, what, progress.started.elapsed(), progress.expected);
    let _ = write!(io::stderr(), "\r{line}\x1b[K");
}

/// Takes the line away.
pub(crate) fn end() {
    if PROGRESS.lock().unwrap_or_else(PoisonError::into_inner).take().is_some() {
        let _ = write!(io::stderr(), "\r\x1b[K");
    }
}

fn line(bench: &str, what: &str, elapsed: Duration, expected: Duration) -> String {
    let part = (elapsed.as_secs_f64() / expected.as_secs_f64().max(1.0)).min(1.0);
    let full = (part * BAR as f64) as usize;
    let left = expected.saturating_sub(elapsed).as_secs();
    let what: String = what.chars().take(40).collect();
    format!("{bench} [{:#<full$}{:-<rest$}] about {left} s left: {what}", "", "", rest = BAR - full)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_grows_and_the_time_shrinks() {
        let at = |seconds| line("live", "rust/launch", Duration::from_secs(seconds), Duration::from_secs(80));
        assert_eq!(at(0), "live [------------------------] about 80 s left: rust/launch");
        assert_eq!(at(20), "live [######------------------] about 60 s left: rust/launch");
        assert_eq!(at(100), "live [########################] about 0 s left: rust/launch");
    }
}
