//! The service's process.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The service's program; None without the feature `real`.
pub fn program() -> Option<&'static Path> {
    option_env!("REAL_SERVICE").map(Path::new)
}

/// A tracing service, on sockets of its own. It is killed when this is dropped.
#[derive(Debug)]
pub struct Service {
    directory: PathBuf,
    child: Child,
}

impl Service {
    /// Starts it with its sockets in `directory`; says what is skipped, and returns None, where there is no program.
    pub fn start(directory: &Path) -> Option<Self> {
        let Some(program) = program() else {
            // Not `eprintln!`, which libtest hides.
            let _ = writeln!(std::io::stderr(), "skipped: needs the feature `real`");
            return None;
        };
        for socket in [Self::producers_in(directory), Self::consumers_in(directory)] {
            let _ = std::fs::remove_file(socket); // Of one that was killed.
        }
        let mut command = Command::new(program);
        command.args([Self::producers_in(directory), Self::consumers_in(directory)]);
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

    /// The socket for producers.
    pub fn producers(&self) -> PathBuf {
        Self::producers_in(&self.directory)
    }

    /// The socket for consumers.
    pub fn consumers(&self) -> PathBuf {
        Self::consumers_in(&self.directory)
    }

    /// Kills it.
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
