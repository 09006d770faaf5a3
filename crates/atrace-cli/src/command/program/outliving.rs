//! Waits for processes of a program that are still running after the program has ended, such as a server that
//! a script starts in the background.
//!
//! Such processes are recognised by an environment variable, whose value is a path in the directory of this run. No
//! process of another program has this value. Some servers overwrite their environment to show their state in `ps`.
//! Such a process is recognised by its connection to the service of this run. (The command could become the parent of
//! such processes instead (`PR_SET_CHILD_SUBREAPER`), but then they would have another parent than without this
//! command.)

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::command::program::signals::Signals;
use crate::command::terminal::{Result, say};
use crate::process::{self, Process};

/// The time between two searches for processes that outlive the program.
const LOOK: Duration = Duration::from_millis(250);

/// How long a search waits for processes that are just executing a program (`execve`), because their environment can't
/// be read then.
const EXECUTION: Duration = Duration::from_secs(1);

/// The maximum number of processes that a message names.
const NAMED: usize = 5;

/// Waits for the processes of the user `uid` that have the environment variable or are connected to the service, and
/// names them in a message. `connected` returns the ids of the connected processes. `look` is called at intervals; its
/// argument is true if SIGUSR1 arrived. The wait ends early if another signal arrives, or `look` returns false.
pub(crate) fn wait_for_rest(
    uid: u32,
    variable: (&str, &Path),
    connected: impl Fn() -> Vec<u32>,
    signals: &Signals,
    mut look: impl FnMut(bool) -> bool,
) -> Result {
    let mut rest = rest(uid, variable, &connected(), EXECUTION);
    if rest.is_empty() {
        return Ok(());
    }
    let run = |rest: &[Process]| if rest.len() == 1 { "still runs" } else { "still run" };
    say(format_args!(
        "the program has ended, but {} {}: the recording goes on until their end; Ctrl-C ends it and saves",
        names(&rest),
        run(&rest)
    ));
    while !rest.is_empty() {
        let (came, _) = signals.wait(None, LOOK)?;
        let asks = came.is_some_and(|came| came.signal == Signal::USR1);
        if !look(asks) {
            return Ok(());
        }
        rest = self::rest(uid, variable, &connected(), EXECUTION);
        if came.is_some() && !asks && !rest.is_empty() {
            say(format_args!("{} {}, and their events are no longer recorded", names(&rest), run(&rest)));
            return Ok(());
        }
    }
    Ok(())
}

/// Returns the processes of the user `uid` that have the environment variable or are in `connected`. All waits together
/// take at most `patience`, but each process is examined at least once.
fn rest(uid: u32, (name, value): (&str, &Path), connected: &[u32], patience: Duration) -> Vec<Process> {
    let start = Instant::now();
    let is_of_program = |process: &Process| {
        loop {
            let before = process.environment_end();
            if process.environment().get(name) == Some(value.as_os_str().as_bytes()) {
                return true;
            }
            // If the address of the environment's end has changed, the process has begun to execute a program in the
            // meantime, and the environment that was read may be incomplete.
            let is_whole = before.is_some() && before == process.environment_end();
            if is_whole || process.read_link("exe").is_none() || start.elapsed() >= patience {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let mut all = process::all();
    // A process that has ended has no `exe`, even if it still exists as a zombie.
    let is_connected =
        |process: &Process| connected.contains(&process.0) && process.read_link("exe").is_some();
    all.retain(|process| process.uid() == Some(uid) && (is_connected(process) || is_of_program(process)));
    all
}

fn names(processes: &[Process]) -> String {
    let mut names: Vec<_> = processes.iter().take(NAMED).map(Process::to_string).collect();
    if processes.len() > NAMED {
        names.push(format!("{} more", processes.len() - NAMED));
    }
    names.join(", ")
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_executes_programs_is_found_at_every_moment() {
        let directory = tempfile::tempdir().unwrap();
        let script = directory.path().join("again");
        std::fs::write(&script, "exec sh \"$0\"").unwrap();
        let mut again = std::process::Command::new("sh");
        let mut again = again.arg(&script).env("ATRACE_TEST_PLACE", directory.path()).spawn().unwrap();
        let uid = rustix::process::geteuid().as_raw();
        let variable = ("ATRACE_TEST_PLACE", directory.path());
        let found =
            |_: &i32| rest(uid, variable, &[], Duration::from_secs(600)).contains(&Process(again.id()));
        let missed = (0..300).filter(|round| !found(round)).count();
        again.kill().unwrap();
        again.wait().unwrap();
        assert_eq!(missed, 0);
    }

    /// Tests a search whose time limit for waits has passed before the search reaches a process.
    #[test]
    fn a_process_is_found_without_a_wait() {
        let variable = ("ATRACE_TEST_PLACE", Path::new("a process is found without a wait"));
        let mut sleeps = std::process::Command::new("sleep");
        let mut sleeps = sleeps.arg("600").env(variable.0, variable.1).spawn().unwrap();
        while Process(sleeps.id()).argv0().is_none_or(|name| name.to_bytes() != b"sleep") {}
        let found = rest(rustix::process::geteuid().as_raw(), variable, &[], Duration::ZERO);
        sleeps.kill().unwrap();
        sleeps.wait().unwrap();
        assert_eq!(found, [Process(sleeps.id())]);
    }
}
