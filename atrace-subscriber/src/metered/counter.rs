//! A counter of calls, which also selects the calls to be timed.
//!
//! A counter is one word. Its lowest bits hold the number of calls that come before the next timed call. The other bits
//! hold the sum of this number and the number of calls that were counted. So a call that is not timed is counted by
//! decrementing the word, which takes a load, a test and a store. A new counter is 0, and its first call is timed.

use std::sync::atomic::{AtomicU64, Ordering};

/// The number of bits that hold the number of calls before the next timed call.
const LEFT_BITS: u32 = 16;
const LEFT: u64 = (1 << LEFT_BITS) - 1;

/// The maximum number of calls of which one is timed on average.
pub(super) const ONE_IN_MAX: u32 = 1 << (LEFT_BITS - 1);

/// Returns the word for a counter that has counted `calls` calls and has `left` calls before the next timed call.
pub(super) const fn word(calls: u64, left: u64) -> u64 {
    (calls + left) << LEFT_BITS | left
}

/// Returns the number of calls that a word has counted.
pub(super) const fn calls(word: u64) -> u64 {
    (word >> LEFT_BITS) - (word & LEFT)
}

/// Counts a call that is not timed. Returns false, and counts nothing, if the call has to be timed. Only one thread may
/// write to the counter.
#[inline(always)]
pub(super) fn passes(counter: &AtomicU64) -> bool {
    let now = counter.load(Ordering::Relaxed);
    let passes = now & LEFT != 0;
    if passes {
        counter.store(now - 1, Ordering::Relaxed);
    }
    passes
}

/// Counts a call. If the call has to be timed, returns the number of calls before it. In that case, `left` is called
/// with this number, and returns how many calls come before the next timed call.
pub(super) fn count(counter: &AtomicU64, left: impl Fn(u64) -> u64) -> Option<u64> {
    let next = |now| Some(if now & LEFT == 0 { word(calls(now) + 1, left(calls(now))) } else { now - 1 });
    let before = counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).unwrap_or_default();
    (before & LEFT == 0).then(|| calls(before))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_call_counts_and_those_that_are_selected_are_timed() {
        let counter = AtomicU64::new(0);
        let mut timed = Vec::new();
        for at in 0..100 {
            assert_eq!(calls(counter.load(Ordering::Relaxed)), at);
            if !passes(&counter) {
                timed.extend(count(&counter, |calls| if calls < 2 { 0 } else { 2 * calls }));
            }
        }
        assert_eq!(timed, [0, 1, 2, 7, 22, 67]);
        let most = AtomicU64::new(word(7, LEFT));
        assert!((0..LEFT).all(|_| passes(&most)) && !passes(&most));
        assert_eq!(calls(most.load(Ordering::Relaxed)), 7 + LEFT);
    }
}
