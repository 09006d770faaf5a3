//! Attempts that other processes can disturb for a moment.

use std::time::{Duration, Instant};

use super::super::error::Error;

/// Why an attempt failed.
pub(super) enum Failure {
    /// For good.
    Now(Error),
    /// Another process may be about to change that: to be tried again, and reported when it lasts.
    Lasting(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Now(error)
    }
}

/// Attempts something until it works, fails for good or takes longer than `patience`; without any, once.
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
            // Whether it lasts is not known.
            Err(Failure::Lasting(error)) if patience.is_zero() => return Err(error.into_busy()),
            Err(Failure::Lasting(error)) if start.elapsed() >= patience => return Err(error),
            Err(Failure::Lasting(_)) => {}
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(2));
    }
}
