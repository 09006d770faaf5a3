//! The state of a thread that makes metered calls: its lane (a set of counters), and whether it is in a timed call.
//!
//! Only one thread writes to a lane, so counting a call takes only a load and a store. A thread takes a lane at its
//! first metered call. When all lanes are taken, a new thread takes a lane whose thread has ended. (A thread that ends
//! does not release its lane itself, because a thread-local with a destructor may allocate.) Threads without a lane
//! share the counters behind the last lane, to which they add atomically.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use atrace_sys::{fork, thread, timer};

use crate::callsites::FIRST_NUMBERS;

/// The number of lanes: this many threads have counters of their own.
pub(super) const LANES: usize = 64;
/// The number of lines of counters in a lane: one for each callsite, and one for unknown callsites. A lane is denoted
/// by the position of its first line among the lines of all lanes.
pub(super) const LANE: usize = FIRST_NUMBERS + 1;
/// The value of [`Thread::lane`] for a thread that has made no metered call yet, or is in a timed call. Other values
/// are the position of a line of counters; no line has this position.
pub(super) const NONE: usize = usize::MAX / 2;
/// The value of [`Thread::lane`] for a thread that shares its counters with other threads. No line has this position.
const SHARED: usize = NONE + 1;

/// The owner of each lane: the generation of the process (a number that changes at each fork) and the id of the thread
/// that has the lane, or 0 if the lane is free.
static OWNERS: [AtomicU64; LANES] = [const { AtomicU64::new(0) }; LANES];
/// Whether a thread has found no free lane. Such a thread takes the lane of a thread that has ended, or shares
/// counters, so [`OWNERS`] no longer has all threads that have made metered calls.
static IS_LOST: AtomicBool = AtomicBool::new(false);

/// The state of a thread. All meters share it.
pub(super) struct Thread {
    /// The thread's lane; [`NONE`] during a timed call; [`SHARED`] if the thread shares its counters.
    pub(super) lane: Cell<usize>,
    /// The thread's lane, even during a timed call; [`SHARED`] if the thread shares its counters.
    own: Cell<usize>,
    /// The time of the calls that are nested in the timed call, in ticks.
    pub(super) nested: Cell<u64>,
    /// Whether the timed call also reads the processor time.
    pub(super) reads: Cell<bool>,
    random: Cell<u64>,
}

thread_local! {
    static THREAD: Thread = const {
        Thread {
            lane: Cell::new(NONE),
            own: Cell::new(NONE),
            nested: Cell::new(0),
            reads: Cell::new(false),
            random: Cell::new(0),
        }
    };
}

/// Calls `then` with the state of the calling thread.
#[inline(always)]
pub(super) fn with<R>(then: impl FnOnce(&Thread) -> R) -> R {
    THREAD.with(then)
}

impl Thread {
    /// Takes a lane, if this is the thread's first metered call. `seed` returns a different number at each call.
    pub(super) fn prepare(&self, seed: impl FnOnce() -> u64) {
        if self.own.get() != NONE {
            return;
        }
        self.own.set(free_lane().map_or(SHARED, |number| number * LANE));
        self.random.set(seed() ^ std::ptr::from_ref(self).addr() as u64 | 1);
        self.end_timing();
    }

    /// Returns the position of the first line of the thread's counters, even during a timed call.
    pub(super) fn first_line(&self) -> usize {
        self.own.get().min(LANES * LANE)
    }

    pub(super) fn is_timing(&self) -> bool {
        self.lane.get() != self.own.get()
    }

    pub(super) fn end_timing(&self) {
        self.lane.set(self.own.get());
    }

    /// Chooses how many calls come before the next timed call. Each call has the same chance to be timed, 1 / `one_in`:
    /// the distance between timed calls is uniformly distributed, with the mean `one_in`.
    pub(super) fn random_left(&self, one_in: u32) -> u64 {
        // G. Marsaglia, "Xorshift RNGs", 2003.
        let mut random = self.random.get();
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        self.random.set(random);
        ((random >> 32) * (2 * u64::from(one_in) - 1)) >> 32
    }
}

#[cold]
fn free_lane() -> Option<usize> {
    let generation = fork::generation().number() << 32;
    let own = generation | u64::from(thread::number().unwrap_or(1));
    let take = |at: &usize, from| {
        OWNERS[*at].compare_exchange(from, own, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    };
    // An owner of another generation is a thread of the parent. It may be the thread that has forked, which continues
    // in this process, so its lane stays taken.
    let has_ended = |owner: u64| owner >> 32 == generation >> 32 && !thread::is_there(owner as u32);
    let ended = |at: &usize| {
        let owner = OWNERS[*at].load(Ordering::Relaxed);
        has_ended(owner) && take(at, owner)
    };
    if let Some(free) = (0..LANES).find(|at| take(at, 0)) {
        return Some(free);
    }
    IS_LOST.store(true, Ordering::Relaxed);
    (0..LANES).find(ended)
}

/// The processor times of the process's threads at a moment, by the threads' ids.
pub(super) struct Times(Vec<(u32, u64)>);

impl Times {
    /// Reads the present times. Returns `None` if `/proc` does not list the threads of the process, or lists them with
    /// other ids than [`thread::number`] returns. Allocates memory.
    pub(super) fn now() -> Option<Self> {
        let threads = std::fs::read_dir("/proc/self/task").ok()?;
        let numbers = threads.filter_map(|thread| thread.ok()?.file_name().to_str()?.parse().ok());
        let times: Vec<_> =
            numbers.filter_map(|number| Some((number, timer::time_of_thread(number)?))).collect();
        let own = thread::number()?;
        times.iter().any(|(number, _)| *number == own).then_some(Self(times))
    }

    /// Returns the processor time that a thread had used when these times were read, or 0 if there was no such thread.
    fn of(&self, thread: u32) -> u64 {
        self.0.iter().find(|(number, _)| *number == thread).map_or(0, |(_, time)| *time)
    }
}

/// Returns the processor time since `began` of all threads that have made metered calls, in nanoseconds. Returns `None`
/// if one of these threads has ended, or if not all of them are known ([`IS_LOST`]).
pub(super) fn processor_time(began: &Times) -> Option<u64> {
    let generation = fork::generation().number() << 32;
    let owners = OWNERS.iter().map(|owner| owner.load(Ordering::Relaxed)).filter(|owner| *owner != 0);
    let time = |owner: u64| match owner >> 32 == generation >> 32 {
        true => timer::time_of_thread(owner as u32).map(|now| now.saturating_sub(began.of(owner as u32))),
        false => None,
    };
    if IS_LOST.load(Ordering::Relaxed) { None } else { owners.map(time).sum() }
}
