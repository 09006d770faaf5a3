//! What a thread knows: its lane of counters, and how many calls remain until it times one.
//!
//! Each lane has one thread that writes, so a count is a load and a store. A thread takes a lane at its first metered call. When
//! all lanes are taken, it looks for one whose thread has ended: a thread does not release its lane, because a thread-local with a destructor may
//! allocate. A thread without a lane shares the last one, by atomic additions.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use atrace_sys::{fork, thread, timer};

/// How many threads have counters of their own.
pub(super) const LANES: usize = 64;
/// The lane of a thread that has made no metered call yet. No lane and no line has this number.
const NONE: usize = usize::MAX / 2;
/// The lane of a thread that shares its counters. No line has this number.
const SHARED: usize = NONE + 1;

/// The owner of each lane: its process' generation and its thread's number. 0: none.
static OWNERS: [AtomicU64; LANES] = [const { AtomicU64::new(0) }; LANES];
/// Whether a thread made calls that no lane knows any more.
static IS_LOST: AtomicBool = AtomicBool::new(false);

/// The state of a thread, for all meters.
pub(super) struct Thread {
    /// [`SHARED`], if the thread shares its counters.
    pub(super) lane: Cell<usize>,
    /// How many calls remain, including the one that is timed.
    pub(super) left: Cell<u32>,
    /// Whether the thread is in a timed call.
    pub(super) is_timing: Cell<bool>,
    /// The ticks that calls nested in the timed one have taken.
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
    /// Takes a lane and chooses the first call to be timed, if this is the thread's first call.
    pub(super) fn prepare(&self, seed: u64, one_in: u32) {
        if self.lane.get() != NONE {
            return;
        }
        self.lane.set(free_lane());
        self.random.set(seed ^ std::ptr::from_ref(self).addr() as u64 | 1);
        self.choose(one_in);
    }

    /// Chooses the next call to be timed. Each has the same chance, 1 / `one_in`: the distance is uniformly distributed, with that
    /// mean.
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

/// Returns the processor time of all threads that have made calls; `None`, if one of them has ended.
pub(super) fn processor_time() -> Option<u64> {
    let generation = fork::generation().number() << 32;
    let owners = OWNERS.iter().map(|owner| owner.load(Ordering::Relaxed)).filter(|owner| *owner != 0);
    let time = |owner: u64| match owner >> 32 == generation >> 32 {
        true => timer::time_of_thread(owner as u32),
        false => None,
    };
    if IS_LOST.load(Ordering::Relaxed) { None } else { owners.map(time).sum() }
}
