//! A ring buffer of the kernel (a tracefs *instance*). The buffer is removed at the end of the process that created it,
//! no matter how the process ends.
//!
//! A killed process removes nothing, and an instance can't be removed while another process has one of its files open.
//! So each instance has its own shell process. The shell removes the instance when the test no longer needs the
//! instance, or when the shell's input ends because the test's process has ended. Only the shell removes the instance,
//! so it can't remove a newer instance with the same name.

use std::io::{self, Write as _};
use std::ops::Deref;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use super::Instance;

/// The script of the shell. It reads the instance's path, and then waits for another line or the end of its input. Then
/// it tries for a minute to remove the instance, because killed processes need time to end.
const REMOVE: &str = r#"
read -r path && read -r _
tries=0
while [ -d "$path" ] && ! rmdir "$path" 2>/dev/null; do
    tries=$((tries + 1))
    [ $tries -lt 3000 ] || exit 1
    sleep 0.02
done"#;

pub struct Buffer {
    instance: Instance,
    shell: Child,
}

impl Buffer {
    /// # Errors
    ///
    /// Returns an error if the instance can't be created.
    pub fn create(prefix: &str) -> io::Result<Self> {
        // The shell runs in a separate process group, so that Ctrl-C ends the test, but not the shell.
        let mut shell = Command::new("sh")
            .args(["-c", REMOVE])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        let made = Instance::create(prefix).and_then(|instance| {
            writeln!(shell.stdin.as_ref().expect("it is a pipe"), "{}", instance.path().display())?;
            Instance::attach(instance.keep())
        });
        match made {
            Ok(instance) => Ok(Self { instance, shell }),
            Err(e) => {
                shell.wait()?; // `wait` first closes the shell's input.
                Err(e)
            }
        }
    }
}

impl Deref for Buffer {
    type Target = Instance;

    fn deref(&self) -> &Instance {
        &self.instance
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // Sends a line to the shell. Closing the shell's input is not enough, because a forked child may have a copy of
        // the pipe open. `wait` fails in such a child, because the shell is not its child.
        let _ = self.shell.stdin.as_ref().map(|mut stdin| stdin.write_all(b"\n"));
        let is_left = self.shell.wait().is_ok_and(|status| !status.success());
        if is_left && !std::thread::panicking() {
            panic!("a process still has {} open", self.instance.path().display());
        }
    }
}
