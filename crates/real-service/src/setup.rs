//! The program that a test traces. It is the test itself, which runs once more in a separate process, because all tests
//! of one process would share the process's connection to the service.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::{Config, Service, Session, Trace, processed};

const PROGRAM: &str = "ATRACE_TEST_PROGRAM";
const DIRECTORY: &str = "ATRACE_TEST_DIRECTORY";

/// Returns whether this process is the program of the test with this name.
pub fn is_program(test: &str) -> bool {
    std::env::var(PROGRAM).is_ok_and(|present| present == test)
}

/// Returns a path in the test's directory. Only the test's program may call this function.
///
/// # Panics
///
/// Panics if this process is not the program of a test.
pub fn place(name: &str) -> PathBuf {
    PathBuf::from(std::env::var_os(DIRECTORY).expect("it is the program")).join(name)
}

/// Waits until `is_so` returns true. `what` names the condition in the message of a panic.
///
/// # Panics
///
/// Panics if the condition is not true within ten minutes.
pub fn until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(600), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Signals to the other process (the program or its test) that a step is done, by creating the file `place`.
///
/// # Panics
///
/// Panics if the file can't be written.
pub fn step(place: &Path) {
    std::fs::write(place, "").expect("it can be written");
}

/// Waits until the file `place` exists, which the other process creates when it has done its step.
///
/// # Panics
///
/// Panics if the file does not exist after ten minutes.
pub fn wait_for(place: &Path) {
    until(&place.display().to_string(), || place.exists());
}

/// A directory, a service with its sockets in the directory, and a program that is a producer of the service.
#[derive(Debug)]
pub struct Setup {
    /// The service.
    pub service: Service,
    directory: TempDir,
    test: &'static str,
}

impl Setup {
    /// Starts a service for the test with this name. If the service's program was not built, prints that the
    /// test is skipped, and returns `None`.
    pub fn start(test: &'static str) -> Option<Self> {
        Self::start_for_relays(test, None)
    }

    /// Starts a service that also listens for relays; see [`Service::start_for_relays`].
    pub fn start_for_relays(test: &'static str, port: Option<u16>) -> Option<Self> {
        let directory = tempfile::tempdir().expect("a directory");
        let service = Service::start_for_relays(directory.path(), port)?;
        Some(Self { service, directory, test })
    }

    /// Returns the directory of the service's sockets and the test's files.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Returns a path in the directory of the test.
    pub fn place(&self, name: &str) -> PathBuf {
        self.directory().join(name)
    }

    /// Returns the command that starts the test's program.
    pub fn program(&self) -> Command {
        let mut command = Command::new(std::env::current_exe().expect("a path"));
        command.args([self.test, "--exact", "--nocapture", "--test-threads=1"]);
        command.env(PROGRAM, self.test).env(DIRECTORY, self.directory()).env("ATRACE_BACKEND", "perfetto");
        command.env("PERFETTO_PRODUCER_SOCK_NAME", self.service.producers());
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    /// Starts a session with all categories.
    pub fn session(&self) -> Session {
        Session::start(&self.service, &Config::default())
    }

    /// Traces the test's program from its start to its end.
    pub fn traced(&self) -> Trace {
        let session = self.session();
        assert!(self.program().status().expect("it starts").success());
        session.stop()
    }

    /// Returns the rows of the trace processor's answers to these SQL statements, as JSON; see [`processed`].
    pub fn rows(&self, trace: &Trace, statements: &[&str]) -> Option<Vec<String>> {
        let path = self.place("trace");
        trace.save(&path).expect("it can be written");
        let rows = |answer: &String| {
            answer.split_once("\"rows\":").expect("an answer").1.trim_end_matches('}').to_owned()
        };
        Some(processed(&path, statements)?.iter().map(rows).collect())
    }
}
