//! A helper thread, on systems without tracing: one of std's.

use std::io;

/// Starts a thread. Nobody waits for it.
///
/// # Errors
///
/// When the system has no more threads.
pub fn spawn_quiet(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(body).map(drop)
}
