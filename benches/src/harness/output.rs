//! What a bench prints: on a terminal on the screen, elsewhere into a file beside its rows, with one line on stdout.
//!
//! So a whole `cargo bench` in a pipe is a screen of text, and nothing is lost. A test, and a run of some cases only, print as
//! they go.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::args::Args;
use super::progress;
use super::terminal::{self, say};
use crate::promise::{self, Judged, Screen, Verdict};
use crate::row::{self, Row};

/// Where a bench prints.
#[derive(Debug)]
pub struct Output {
    bench: &'static str,
    /// None where nothing is kept.
    file: Option<PathBuf>,
    aside: Option<Aside>,
    started: Instant,
}

impl Output {
    /// Decides where the bench prints from now on.
    ///
    /// # Errors
    ///
    /// When its file can't be written.
    pub fn begin(bench: &'static str, args: &Args) -> io::Result<Self> {
        let mut this = Self { bench, file: None, aside: None, started: Instant::now() };
        if args.test || !args.filters.is_empty() {
            return Ok(this);
        }
        // Rather now than after a minute.
        row::can_write(bench)?;
        let path = row::dir().join(format!("{bench}.txt"));
        File::create(&path)?;
        this.file = Some(path);
        progress::begin(bench, args.quick);
        if !io::stdout().is_terminal() {
            this.aside = this.turn_aside(false)?;
        }
        Ok(this)
    }

    /// Runs something that talks much: where there is a file, it talks to that only, and on a terminal of its progress.
    ///
    /// # Errors
    ///
    /// What `talk` returned, or when the file can't be written.
    pub fn aside<R>(&self, talk: impl FnOnce() -> io::Result<R>) -> io::Result<R> {
        let _aside = self.turn_aside(!io::stderr().is_terminal())?;
        talk()
    }

    fn turn_aside(&self, with_stderr: bool) -> io::Result<Option<Aside>> {
        self.file.as_ref().map(|path| Aside::to(path, with_stderr)).transpose()
    }

    /// Keeps the rows and what was judged, and says in a line how it went; on a terminal, all promises.
    ///
    /// # Errors
    ///
    /// When they can't be written.
    pub fn end(self, rows: &[Row], judged: &[Judged]) -> io::Result<()> {
        progress::end();
        let is_aside = self.aside.is_some();
        drop(self.aside);
        let Some(file) = self.file else {
            let mut screen = Screen::default();
            screen.add(self.bench, judged);
            if !screen.is_empty() {
                say(format_args!("\n{}", screen.lines()));
            }
            return Ok(());
        };
        let path = row::write(self.bench, rows)?;
        promise::write(self.bench, judged)?;
        let mut screen = Screen::default();
        screen.add(self.bench, judged);
        if is_aside {
            let mut file = OpenOptions::new().append(true).open(&file)?;
            writeln!(file, "\n{}", screen.lines())?;
        } else {
            say(format_args!("\n{}", screen.lines()));
        }
        let of = |verdict| judged.iter().filter(|judged| judged.verdict == verdict).count();
        let [kept, missed, open] = [Verdict::Kept, Verdict::Missed, Verdict::Open].map(of);
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

/// While it lives, what this process prints, and those that it starts, goes to a file.
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
        // Otherwise what follows is in the file, too.
        let _ = rustix::stdio::dup2_stdout(&self.stdout);
        if let Some(stderr) = &self.stderr {
            let _ = rustix::stdio::dup2_stderr(stderr);
            if std::thread::panicking() {
                terminal::complain(format_args!("why it ended stands at the end of {}", self.path.display()));
            }
        }
    }
}
