//! A ring buffer of the kernel's that goes with the process that made it, however that ends.
//!
//! A process that is killed removes nothing, and an instance can't be removed while another process has one of its files open.
//! So each instance has a shell that removes it: when the test is done with it, or when the shell's input ends because the test's
//! process did. The shell alone removes the instance, so nobody else can have made one of the same name before.

use std::io::{self, Write as _};
use std::ops::Deref;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use super::Instance;

/// Reads the instance's path and waits for another line or the end of its input. It tries for a minute, as processes that were
/// killed need time to end.
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
    /// Where the instance can't be made.
    pub fn create(prefix: &str) -> io::Result<Self> {
        // In a group of its own: Ctrl-C ends the test, not the shell.
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
                shell.wait()?; // It closes the input first.
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
        // Said, as a forked child may have a copy of the input. Such a child can't wait for the shell.
        let _ = self.shell.stdin.as_ref().map(|mut stdin| stdin.write_all(b"\n"));
        let is_left = self.shell.wait().is_ok_and(|status| !status.success());
        if is_left && !std::thread::panicking() {
            panic!("a process still has {} open", self.instance.path().display());
        }
    }
}
