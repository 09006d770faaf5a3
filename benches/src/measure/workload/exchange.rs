//! What the bench and the processes of its modes say to each other: a line of JSON for a request, one for its
//! reply.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::case::Done;
use crate::instruments::alloc::Counts;
use crate::measure::paired::nanos;
use crate::stats::sample::Sample;

/// What a line of stdout begins with that is a reply.
pub(super) const REPLY: &str = "atrace-benches reply: ";

/// How many messages of a case are kept to be written again.
pub(super) const KEPT: usize = 64;

/// What a process is asked to do. Cases are named by their place.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// Run `warm_up` operations, then `n` that are timed and checked, the first on the CPU of this place. Reply:
    /// [`Slice`].
    Slice { case: usize, place: usize, warm_up: u64, n: u64 },
    /// Count allocations of `n` operations, so many times. Reply: [`Counted`].
    Count { case: usize, n: u64, times: usize },
    /// Run one operation. Reply: the first messages of it, as many as are [`KEPT`].
    Capture { case: usize },
    /// Wait until all events that were written for a reader of Perfetto's way have come. Reply: nothing.
    Settle,
    /// Write messages, those given now or before, as long as told, by the inlined system call or by `write()`. Reply:
    /// [`Sample`] of one.
    Raw { case: usize, messages: Option<Vec<Vec<u8>>>, slice: Duration, inlined: bool },
}

/// A reply: what was asked for, or why not.
pub(super) type Reply<T> = Result<T, String>;

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Slice {
    /// What is measured.
    pub(super) took: Duration,
    /// The same with what the case leaves out.
    pub(super) elapsed: Duration,
    /// How long the chain took before and after.
    pub(super) chain: [f64; 2],
    pub(super) done: Done,
}

impl Slice {
    /// What one of `n` operations took, and anything else that took so long in it.
    pub(super) fn sample(&self, took: Duration, n: u64) -> Sample {
        Sample { ns: nanos(took, n), chain: self.chain }
    }
}

/// What each of some runs allocated; `None` where nobody counts.
pub(super) type Counted = Option<Vec<Counts>>;
