//! Retrying operations that other processes can disturb for a moment.

use std::time::{Duration, Instant};

use super::super::error::Error;

/// The reason why an attempt failed.
pub(super) enum Failure {
    /// The failure is final.
    Now(Error),
    /// Another process may be about to change the cause. The operation is tried again, and the error reported if it
    /// persists.
    Lasting(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Now(error)
    }
}

/// Tries an operation until it succeeds, fails finally, or has taken longer than `patience`. Without patience it is
/// tried once.
pub(super) fn persist<T>(
    patience: Duration,
    mut attempt: impl FnMut() -> Result<T, Failure>,
) -> Result<T, Error> {
    let start = Instant::now();
    let mut pause = Duration::from_micros(20);
    loop {
        match attempt() {
            Ok(done) => return Ok(done),
            Err(Failure::Now(error)) => return Err(error),
            // It is not known whether the failure persists.
            Err(Failure::Lasting(error)) if patience.is_zero() => return Err(error.into_busy()),
            Err(Failure::Lasting(error)) if start.elapsed() >= patience => return Err(error),
            Err(Failure::Lasting(_)) => {}
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(2));
    }
}
