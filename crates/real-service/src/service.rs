//! The process in which Perfetto's service runs.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Returns the path of the service's program, or `None` without the feature `real`.
pub fn program() -> Option<&'static Path> {
    option_env!("REAL_SERVICE").map(Path::new)
}

/// A tracing service on private sockets. Dropping the `Service` kills the service.
#[derive(Debug)]
pub struct Service {
    directory: PathBuf,
    child: Child,
}

impl Service {
    /// Starts Perfetto's own service, with its sockets in `directory`. If the program of the service was not built,
    /// prints that the test is skipped, and returns `None`.
    pub fn start(directory: &Path) -> Option<Self> {
        Self::start_for_relays(directory, None)
    }

    /// Starts the service as [`start`](Self::start) does. If there is a `port`, the service also listens at this port
    /// of the loopback interface. Relays connect to this port, and act as if they were on other machines.
    pub fn start_for_relays(directory: &Path, port: Option<u16>) -> Option<Self> {
        let Some(program) = program() else {
            // Does not use `eprintln!`, because libtest hides its output.
            let _ = writeln!(std::io::stderr(), "skipped: needs the feature `real`");
            return None;
        };
        for socket in [Self::producers_in(directory), Self::consumers_in(directory)] {
            let _ = std::fs::remove_file(socket); // A service that was killed has left this file.
        }
        let mut command = Command::new(program);
        let mut producers = Self::producers_in(directory).into_os_string();
        if let Some(port) = port {
            producers.push(format!(",127.0.0.1:{port}"));
        }
        command.arg(producers).arg(Self::consumers_in(directory));
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("the service starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("it speaks");
        assert_eq!(line, "ready\n");
        Some(Self { directory: directory.to_owned(), child })
    }

    fn producers_in(directory: &Path) -> PathBuf {
        directory.join("producers")
    }

    fn consumers_in(directory: &Path) -> PathBuf {
        directory.join("consumers")
    }

    /// Returns the path of the socket for producers.
    pub fn producers(&self) -> PathBuf {
        Self::producers_in(&self.directory)
    }

    /// Returns the path of the socket for consumers.
    pub fn consumers(&self) -> PathBuf {
        Self::consumers_in(&self.directory)
    }

    /// Returns the process id of the service.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Kills the service.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.kill();
    }
}
