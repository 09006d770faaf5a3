//! The state of a thread that makes metered calls: its lane (a set of counters), and how many calls remain
//! until it times one.
//!
//! Only one thread writes to a lane, so counting is a load and a store. A thread takes a lane at its first metered
//! call. When all lanes are taken, it takes a lane whose thread has ended: a thread that ends does not release its
//! lane, because a thread-local with a destructor may allocate. Threads without a lane share the counters behind the
//! last lane, to which they add atomically.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use atrace_sys::{fork, thread, timer};

/// The number of lanes: so many threads have counters of their own.
pub(super) const LANES: usize = 64;
/// The value for a thread that has made no metered call yet. No lane and no line has this number.
const NONE: usize = usize::MAX / 2;
/// The value for a thread that shares its counters. No line has this number.
const SHARED: usize = NONE + 1;

/// The owner of each lane: the generation of its process and the number of its thread. It is 0 if the lane is
/// free.
static OWNERS: [AtomicU64; LANES] = [const { AtomicU64::new(0) }; LANES];
/// Whether the lane of a thread that has made calls was taken by another thread, or might be.
static IS_LOST: AtomicBool = AtomicBool::new(false);

/// The state of a thread. All meters share it.
pub(super) struct Thread {
    /// The number of the thread's lane, or [`SHARED`] if the thread shares its counters.
    pub(super) lane: Cell<usize>,
    /// The number of calls until the next sample, including the call that is then timed.
    pub(super) left: Cell<u32>,
    /// Whether the thread is in a timed call.
    pub(super) is_timing: Cell<bool>,
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
            left: Cell::new(0),
            is_timing: Cell::new(false),
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
    /// If this is the thread's first metered call, takes a lane and chooses which call is the first to be
    /// timed.
    pub(super) fn prepare(&self, seed: u64, one_in: u32) {
        if self.lane.get() != NONE {
            return;
        }
        self.lane.set(free_lane());
        self.random.set(seed ^ std::ptr::from_ref(self).addr() as u64 | 1);
        self.choose(one_in);
    }

    /// Chooses the next call to be timed. Each call has the same chance, 1 / `one_in`: the distance to it is
    /// uniformly distributed, with the mean `one_in`.
    pub(super) fn choose(&self, one_in: u32) {
        // G. Marsaglia, "Xorshift RNGs", 2003.
        let mut random = self.random.get();
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        self.random.set(random);
        let most = 2 * u64::from(one_in) - 1;
        self.left.set(1 + (((random >> 32) * most) >> 32) as u32);
    }
}

#[cold]
fn free_lane() -> usize {
    let generation = fork::generation().number() << 32;
    let own = generation | u64::from(thread::number().unwrap_or(1));
    let take = |at: &usize, from| {
        OWNERS[*at].compare_exchange(from, own, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    };
    // An owner of another generation is a thread of the parent: this process may have continued it.
    let has_ended = |owner: u64| owner >> 32 == generation >> 32 && !thread::is_there(owner as u32);
    let ended = |at: &usize| {
        let owner = OWNERS[*at].load(Ordering::Relaxed);
        has_ended(owner) && take(at, owner)
    };
    if let Some(free) = (0..LANES).find(|at| take(at, 0)) {
        return free;
    }
    IS_LOST.store(true, Ordering::Relaxed);
    (0..LANES).find(ended).unwrap_or(SHARED)
}

/// Returns the processor time of all threads that have made metered calls, in nanoseconds. Returns `None` if
/// one of these threads has ended.
pub(super) fn processor_time() -> Option<u64> {
    let generation = fork::generation().number() << 32;
    let owners = OWNERS.iter().map(|owner| owner.load(Ordering::Relaxed)).filter(|owner| *owner != 0);
    let time = |owner: u64| match owner >> 32 == generation >> 32 {
        true => timer::time_of_thread(owner as u32),
        false => None,
    };
    if IS_LOST.load(Ordering::Relaxed) { None } else { owners.map(time).sum() }
}
