//! Processes that a measuring process starts: itself once more, told by `--mode` what to be.
//!
//! One that is [adopted](adopt) takes part in the session: it uses the same sink, is not supervised anew, and is killed
//! when its parent ends. What it measured it [reports](report) on stdout, to the [one that asks](rows).

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};

use super::session::CHILD;
use super::terminal::say;
use crate::row::Row;

/// What a line of stdout begins with that carries rows.
const REPORT: &str = "atrace-benches rows: ";

/// Lets a process that is started here take part in this one's session. The calling thread has to live as long as it.
pub fn adopt(command: &mut Command) -> &mut Command {
    command.env(CHILD, std::process::id().to_string())
}

/// Hands the rows of this process to the one that started it.
///
/// # Errors
///
/// When that is gone.
pub fn report(rows: &[Row]) -> io::Result<()> {
    let json = serde_json::to_string(rows)?;
    writeln!(io::stdout(), "{REPORT}{json}")
}

/// Runs this program in a mode, with these variables in its environment, and returns the rows that it reported.
///
/// # Errors
///
/// When it fails or reports nothing, saying so.
pub fn rows(mode: &str, env: &[(&str, &str)]) -> io::Result<Vec<Row>> {
    let error = |what: &str| io::Error::other(format!("the process of mode {mode:?} {what}"));
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--mode", mode]).args(std::env::args_os().skip(1)).envs(env.iter().copied());
    let mut child = adopt(&mut command).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut rows = None;
    for line in child.stdout.take().map(|out| BufReader::new(out).lines()).into_iter().flatten() {
        let line = line?;
        match line.strip_prefix(REPORT) {
            Some(json) => rows = Some(serde_json::from_str(json)?),
            None => say(line),
        }
    }
    let status = child.wait()?;
    if !status.success() {
        return Err(error(&format!("ended with {status}")));
    }
    rows.ok_or_else(|| error("reported nothing"))
}
