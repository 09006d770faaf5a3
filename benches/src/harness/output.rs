//! The output of a bench. If stdout is a terminal, all output goes there, except the output of [`Output::aside`]. If
//! not, the output goes to a file in the directory of the rows (results), and only one line goes to stdout.
//!
//! So if the stdout of `cargo bench` is a pipe, the output of all benches fits on a screen, and the details are in
//! files. A test, and a run of selected cases, print all output to stdout.
//!
//! This module also has the progress line on a terminal, the exit code of a bench, and functions that print. These are
//! used in place of `println!` and `eprintln!`, which panic if the reader of a pipe has closed it.

use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::catalogue::BENCHES;
use crate::harness::args::Args;
use crate::promise::{self, Judged, Screen};
use crate::row::{self, Row};

/// The destination of a bench's output.
#[derive(Debug)]
pub struct Output {
    bench: &'static str,
    /// The file to which output is redirected, or `None` if all output goes to stdout.
    file: Option<PathBuf>,
    aside: Option<Aside>,
    started: Instant,
}

impl Output {
    /// Decides whether output of the bench goes to a file. If so, makes an empty file and begins the progress line.
    ///
    /// # Errors
    ///
    /// Returns an error if the file can't be written.
    pub fn begin(bench: &'static str, args: &Args) -> io::Result<Self> {
        let mut this = Self { bench, file: None, aside: None, started: Instant::now() };
        if args.test || !args.filters.is_empty() {
            return Ok(this);
        }
        // Checks this first, so that the bench does not fail after a minute of measuring.
        row::can_write(bench)?;
        let path = row::dir().join(format!("{bench}.txt"));
        File::create(&path)?;
        this.file = Some(path);
        begin(bench, args.quick);
        if !io::stdout().is_terminal() {
            this.aside = this.turn_aside(false)?;
        }
        Ok(this)
    }

    /// Runs `talk`, which prints a long output. If the bench has a file for output, the output of `talk` goes to this
    /// file, and a terminal only shows the progress line.
    ///
    /// # Errors
    ///
    /// Returns the error of `talk`, or the error of writing the file.
    pub fn aside<R>(&self, talk: impl FnOnce() -> io::Result<R>) -> io::Result<R> {
        let _aside = self.turn_aside(!io::stderr().is_terminal())?;
        talk()
    }

    /// Runs `measure`, which measures with Criterion. If stdout is a terminal, Criterion's output is shown there. If
    /// not, the output goes to the bench's file, as in [`aside`](Self::aside).
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`aside`](Self::aside).
    pub fn criterion<R>(&self, measure: impl FnOnce() -> io::Result<R>) -> io::Result<R> {
        if io::stdout().is_terminal() { measure() } else { self.aside(measure) }
    }

    fn turn_aside(&self, with_stderr: bool) -> io::Result<Option<Aside>> {
        self.file.as_ref().map(|path| Aside::to(path, with_stderr)).transpose()
    }

    /// Ends the output of the bench. If the bench has a file for output, writes the files of the rows (results) and of
    /// the judged promises, and prints a line that summarizes them; the text about the promises goes to the terminal or
    /// to the output file. If the bench has no file for output, only prints the text about the promises.
    ///
    /// # Errors
    ///
    /// Returns an error if a file can't be written.
    pub fn end(self, rows: &[Row], judged: &[Judged]) -> io::Result<()> {
        end();
        let is_aside = self.aside.is_some();
        drop(self.aside);
        let mut screen = Screen::default();
        screen.add(self.bench, judged);
        let lines = format!("\n{}", screen.lines());
        let Some(file) = self.file else {
            if !screen.is_empty() {
                say(lines);
            }
            return Ok(());
        };
        let path = row::write(self.bench, rows)?;
        promise::write(self.bench, judged)?;
        match is_aside {
            true => writeln!(OpenOptions::new().append(true).open(&file)?, "{lines}")?,
            false => say(lines),
        }
        let [missed, open, kept] = promise::counts(judged);
        say(format_args!(
            "{}: {} rows in {:.0} s; promises: {kept} kept, {missed} missed, {open} open; {} and .txt",
            self.bench,
            rows.len(),
            self.started.elapsed().as_secs_f64(),
            path.display()
        ));
        Ok(())
    }
}

/// A redirection to a file of the stdout of this process and its children and, if requested, of their stderr. It ends
/// when the `Aside` is dropped.
#[derive(Debug)]
struct Aside {
    path: PathBuf,
    stdout: OwnedFd,
    stderr: Option<OwnedFd>,
}

impl Aside {
    fn to(path: &Path, with_stderr: bool) -> io::Result<Self> {
        io::stdout().flush()?;
        let file = OpenOptions::new().append(true).open(path)?;
        let stdout = rustix::io::fcntl_dupfd_cloexec(io::stdout(), 3)?;
        let stderr = with_stderr.then(|| rustix::io::fcntl_dupfd_cloexec(io::stderr(), 3)).transpose()?;
        let this = Self { path: path.to_owned(), stdout, stderr };
        rustix::stdio::dup2_stdout(&file)?;
        if this.stderr.is_some() {
            rustix::stdio::dup2_stderr(&file)?;
        }
        Ok(this)
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        let _ = io::stdout().flush();
        // Restores stdout, so that later output does not go to the file.
        let _ = rustix::stdio::dup2_stdout(&self.stdout);
        if let Some(stderr) = &self.stderr {
            let _ = rustix::stdio::dup2_stderr(stderr);
            if std::thread::panicking() {
                complain(format_args!("the reason is at the end of {}", self.path.display()));
            }
        }
    }
}

/// The shortest time between two updates of the progress line. Updates are rare because they take CPU time on the
/// measured machine.
const EVERY: Duration = Duration::from_millis(500);

#[derive(Debug)]
struct Progress {
    bench: &'static str,
    started: Instant,
    expected: Duration,
    /// The earliest time of the next update of the progress line.
    next: Instant,
}

impl Progress {
    fn new(bench: &'static str, seconds: u64) -> Self {
        let now = Instant::now();
        Self { bench, started: now, expected: Duration::from_secs(seconds), next: now }
    }
}

static PROGRESS: Mutex<Option<Progress>> = Mutex::new(None);

/// Prepares the progress line of a bench if stderr is a terminal. Calls of [`step`] show the line.
pub(crate) fn begin(bench: &'static str, quick: bool) {
    let known = BENCHES.iter().find(|known| known.name == bench);
    if let Some(known) = known.filter(|_| io::stderr().is_terminal()) {
        let progress = Progress::new(bench, if quick { known.seconds.1 } else { known.seconds.0 });
        *PROGRESS.lock().unwrap_or_else(PoisonError::into_inner) = Some(progress);
    }
}

/// Shows in the progress line which case runs now. Call this function only between measurements, so that it does not
/// disturb them.
pub fn step(what: &str) {
    let mut progress = PROGRESS.lock().unwrap_or_else(PoisonError::into_inner);
    let now = Instant::now();
    let Some(progress) = progress.as_mut().filter(|progress| progress.next <= now) else { return };
    progress.next = now + EVERY;
    let left = progress.expected.saturating_sub(progress.started.elapsed()).as_secs();
    let what: String = what.chars().take(40).collect();
    let _ = write!(io::stderr(), "\r{}: about {left} s left: {what}\x1b[K", progress.bench);
}

/// Removes the progress line from the terminal.
pub(crate) fn end() {
    if PROGRESS.lock().unwrap_or_else(PoisonError::into_inner).take().is_some() {
        let _ = write!(io::stderr(), "\r\x1b[K");
    }
}

/// Returns the exit code of a bench with these rows. The bench fails, with a message, if no row has a usable time,
/// ratio or difference. (The ratios of a row can be usable even if its time is noisy.)
pub fn exit_code(rows: &[Row]) -> ExitCode {
    let compares = |row: &Row| {
        row.vs.values().chain(row.vs_process.values()).any(|v| v.sure) || row.above.values().any(|a| a.sure)
    };
    if rows.iter().any(|row| !row.noisy || compares(row)) {
        return ExitCode::SUCCESS;
    }
    let why =
        if rows.is_empty() { "no row was measured" } else { "every row is noisy and compared with nothing" };
    fail(1, format_args!("{why}: nothing can be said about this machine"))
}

/// Prints a line on stdout.
pub(crate) fn say(line: impl Display) {
    let mut out = io::stdout();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Prints an error on stderr.
pub(crate) fn complain(what: impl Display) {
    let _ = writeln!(io::stderr(), "error: {what}");
}

/// Prints an error and returns the exit code of a failure.
pub fn fail(status: u8, what: impl Display) -> ExitCode {
    complain(what);
    ExitCode::from(status)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::Versus;

    #[test]
    fn the_first_case_is_shown_at_once() {
        let Progress { started, next, .. } = Progress::new("x", 1);
        assert_eq!(next, started);
    }

    #[test]
    fn a_run_fails_only_when_nothing_is_known() {
        let (good, bad) = (Row::around("a", 100.0, 1.0), Row::around("b", 100.0, 50.0));
        // Compares exit codes as text, because `ExitCode` can't be compared.
        let code = |rows: &[Row]| format!("{:?}", exit_code(rows));
        let (ok, failed) = (format!("{:?}", ExitCode::SUCCESS), format!("{:?}", ExitCode::FAILURE));
        assert_eq!(code(&[good.clone(), bad.clone()]), ok);
        assert_eq!(code(std::slice::from_ref(&bad)), failed);
        for (sure, ends) in [(true, &ok), (false, &failed)] {
            let mut beside = bad.clone();
            beside.vs.insert("c".into(), Versus { ratio: 2.0, low: 1.9, high: 2.1, sure });
            assert_eq!(code(&[beside]), *ends);
        }
        assert_eq!(code(&[]), failed);
    }
}
