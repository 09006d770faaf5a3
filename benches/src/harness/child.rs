//! Starts child processes of a measuring process. A child runs the same program, usually with the argument `--mode` and
//! the name of the child's role.
//!
//! A child that is started [in a mode](in_mode) uses the same sink as its parent, has no supervisor process of its own,
//! and is killed when its parent ends. The child [reports](report) its results on stdout, and the parent [reads](rows)
//! the results.

use std::io::{self, BufRead as _, BufReader, Lines, Write as _};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};

use super::output::say;
use super::session::CHILD;
use crate::row::Row;

/// The prefix of the line on stdout that has the rows (results) of a child process.
const REPORT: &str = "atrace-benches rows: ";

/// A child process that gets requests on its stdin and answers with lines on its stdout. Dropping the `Helper` kills
/// the process.
#[derive(Debug)]
pub struct Helper {
    child: Child,
    said: Lines<BufReader<ChildStdout>>,
}

impl Drop for Helper {
    fn drop(&mut self) {
        // `kill` does nothing if the process was already waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Helper {
    /// Starts the process. If `command` is from [`in_mode`], the calling thread must live as long as the process,
    /// because the kernel kills the process when this thread ends.
    ///
    /// # Errors
    ///
    /// Returns an error if the process can't be started.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let said = BufReader::new(child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?).lines();
        Ok(Self { child, said })
    }

    /// Returns the process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a request to the process. A write error is ignored, because the exit status of the
    /// process, which the caller checks later, gives more information.
    pub fn tell(&mut self, what: &[u8]) {
        let _ = self.child.stdin.as_mut().map(|stdin| stdin.write_all(what));
    }

    /// Reads lines of the process' output until a line begins with `mark`, and returns the rest of that line. Prints
    /// the other lines. Returns `None` at the end of the output.
    ///
    /// # Errors
    ///
    /// Returns the system's error.
    pub fn hear(&mut self, mark: &str) -> io::Result<Option<String>> {
        for line in &mut self.said {
            let line = line?;
            match line.strip_prefix(mark) {
                Some(rest) => return Ok(Some(rest.to_owned())),
                None => say(line),
            }
        }
        Ok(None)
    }

    /// Closes the process' stdin, prints the rest of its output, and returns its exit status.
    ///
    /// # Errors
    ///
    /// Returns the system's error.
    pub fn end(&mut self) -> io::Result<ExitStatus> {
        drop(self.child.stdin.take());
        self.said.try_for_each(|line| line.map(say))?;
        self.child.wait()
    }
}

/// Returns the command that starts this program as a child process with the role `mode`.
///
/// # Errors
///
/// Returns an error if the path of this program can't be found.
pub fn in_mode(mode: &str) -> io::Result<Command> {
    let mut command = again()?;
    command.args(["--mode", mode]);
    Ok(command)
}

/// Returns the command that starts this program as a child process that uses the same sink and has no supervisor.
///
/// # Errors
///
/// Returns an error if the path of this program can't be found.
pub fn again() -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.env(CHILD, std::process::id().to_string());
    Ok(command)
}

/// Reports the rows (results) of this process to its parent.
///
/// # Errors
///
/// Returns an error if the parent has ended.
pub fn report(rows: &[Row]) -> io::Result<()> {
    let json = serde_json::to_string(rows)?;
    writeln!(io::stdout(), "{REPORT}{json}")
}

/// Runs this program as a child process with the role `mode` and additional environment variables. Returns the rows
/// (results) that the child reports.
///
/// # Errors
///
/// Returns an error if the child process fails or reports no rows.
pub fn rows(mode: &str, env: &[(&str, &str)]) -> io::Result<Vec<Row>> {
    let error = |what: &str| io::Error::other(format!("the process of mode {mode:?} {what}"));
    let mut command = in_mode(mode)?;
    let mut helper = Helper::start(command.args(std::env::args_os().skip(1)).envs(env.iter().copied()))?;
    let rows = helper.hear(REPORT)?;
    let status = helper.end()?;
    if !status.success() {
        return Err(error(&format!("ended with {status}")));
    }
    Ok(serde_json::from_str(&rows.ok_or_else(|| error("reported nothing"))?)?)
}
