//! The check of this bench's own code, which runs if the bench is called with `--test`.

use std::time::Duration;

use tokio::runtime::Runtime;

use super::alive::{THREADS, team, together};
use super::runtime;

/// Checks that the times of both threads are added up. In this check, each thread's work takes at least `LONG`.
pub(crate) fn prove() {
    const LONG: Duration = Duration::from_millis(5);
    let sleeps = |_: &Runtime, n| {
        std::thread::sleep(LONG);
        n
    };
    let team = team(runtime);
    let (ran, took) = together(&team, sleeps, 2).expect("both have a runtime");
    assert!(ran == 2 && took >= LONG * THREADS, "{ran} bodies in {took:?}");
}
