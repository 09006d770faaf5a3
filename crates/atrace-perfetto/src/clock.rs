//! Timestamps of `CLOCK_BOOTTIME` without a system call: they are computed from the processor's counter (on x86-64, the
//! TSC).
//!
//! # Scaling
//!
//! An *anchor* is a value of the counter, the time at that moment, and the counter's speed. A timestamp is the sum of
//! the anchor's time and the product of the speed and the ticks since then. The kernel adjusts the speed of its clock
//! but not the speed of the counter. So during a session, the socket thread (in a recording, the recording's thread)
//! makes a new anchor about once a second. At first, while the counter's speed is known less exactly, the thread makes
//! anchors more often. If the counter is more than two seconds past the anchor, or before the anchor (for example
//! because the thread was descheduled or the machine slept), a timestamp is read from the system's clock instead.
//!
//! # Reading an anchor
//!
//! The anchors are a double-buffered seqlock. The writer fills the older of two buffers and then increments `made`,
//! whose lowest bit selects the newer buffer. A reader loads `made`, then the words of the newer buffer, and then
//! `made` again. If `made` has changed, the words may belong to different anchors, and the reader reads the system's
//! clock. Readers never wait, so a writer may be stopped at any point. See H. Boehm, "Can Seqlocks Get Along With
//! Programming Language Memory Models?", 2012, for the fences.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use atrace_sys::OnceRef;
pub use atrace_sys::clock::asked;
use atrace_sys::fork::Turn;
use atrace_sys::timer::{counter, has_counter};

/// The maximum age of an anchor, in nanoseconds.
const AGE_MAX_NS: u64 = 2_000_000_000;
/// The usual time between two anchors, in nanoseconds.
const INTERVAL_NS: u64 = 900_000_000;
/// The shortest time over which the counter's speed is measured, in nanoseconds.
const BASE_MIN_NS: u64 = 20_000_000;
/// The number of fractional bits of a speed. A speed is a fixed-point number: nanoseconds per tick, times
/// 2^32.
const SHIFT: u32 = 32;

/// An anchor: the ticks, the time in nanoseconds, the speed, and the number of ticks after the anchor for which the
/// anchor may be used (0: never).
type Anchor = [AtomicU64; 4];

/// The two buffers of the seqlock. Only one thread at a time writes to them.
#[derive(Debug)]
struct Anchors {
    /// The number of anchors that were made. Its lowest bit selects the buffer of the newest anchor.
    made: AtomicU32,
    anchors: [Anchor; 2],
}

impl Anchors {
    /// Creates the buffers without an anchor.
    const fn new() -> Self {
        Self { made: AtomicU32::new(0), anchors: [const { [const { AtomicU64::new(0) }; 4] }; 2] }
    }

    /// Returns the time at which the counter had the value that `ticks` returns, or `None` if there is no recent anchor
    /// or the anchor changes meanwhile. `ticks` is called only if there is an anchor, because without an anchor the
    /// process may not be allowed to read the counter.
    #[inline(always)]
    fn scale(&self, ticks: impl FnOnce() -> u64) -> Option<u64> {
        let made = self.made.load(Ordering::Acquire);
        if made == 0 {
            return None;
        }
        let ticks = ticks();
        let [start, ns, speed, reach] = &self.anchors[(made & 1) as usize];
        let since = ticks.wrapping_sub(start.load(Ordering::Relaxed));
        let reach = reach.load(Ordering::Relaxed);
        let speed = speed.load(Ordering::Relaxed);
        let ns = ns.load(Ordering::Relaxed);
        // If this thread was descheduled, both buffers may have been overwritten since `made` was loaded.
        fence(Ordering::Acquire);
        if since >= reach || self.made.load(Ordering::Relaxed) != made {
            return None;
        }
        Some(ns + ((u128::from(since) * u128::from(speed)) >> SHIFT) as u64)
    }

    /// Makes an anchor: at the time `ns`, the counter had the value `ticks`; it runs at the speed `speed`.
    fn set(&self, ticks: u64, ns: u64, speed: u64) {
        // A reader of this buffer's former content may load words of the new content. The fence makes sure that such a
        // reader then also sees that `made` has changed, and rejects the words.
        fence(Ordering::Release);
        let made = self.made.load(Ordering::Relaxed).wrapping_add(1);
        let reach = (AGE_MAX_NS << SHIFT).checked_div(speed).map_or(0, |ticks| ticks + 1);
        for (word, value) in self.anchors[(made & 1) as usize].iter().zip([ticks, ns, speed, reach]) {
            word.store(value, Ordering::Relaxed);
        }
        self.made.store(made, Ordering::Release);
    }
}

/// The measured speed of the counter. The thread that makes the anchors compares the counter with the system's
/// clock over some seconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Speed {
    /// A counter value and its time. The speed is measured from this pair to the present.
    older: Option<(u64, u64)>,
    /// The pair of a counter value and its time that will replace `older`.
    newer: (u64, u64),
    per_tick: u64,
    /// The time over which the speed was measured, in nanoseconds.
    measured: u64,
}

impl Speed {
    /// The age, in nanoseconds, at which the newer pair of a counter value and a time becomes the older pair.
    const BASE_NS: u64 = 4_000_000_000;

    /// Updates the speed with a pair of a counter value and a time. Returns the speed, or 0 while it is unknown.
    ///
    /// If the speed changes by more than 0.1 %, which is more than NTP adjusts the kernel's clock, the machine has
    /// probably slept, and the measurement starts anew.
    fn learn(&mut self, ticks: u64, ns: u64) -> u64 {
        let Some((older_ticks, older_ns)) = self.older else { return self.forget(ticks, ns) };
        let since = ns.wrapping_sub(older_ns);
        if ns < older_ns || ticks <= older_ticks {
            return self.forget(ticks, ns);
        }
        if since < BASE_MIN_NS {
            return self.per_tick;
        }
        let Some(speed) = speed_of(since, ticks - older_ticks) else { return self.forget(ticks, ns) };
        if self.per_tick != 0 && speed.abs_diff(self.per_tick) > self.per_tick / 1000 {
            return self.forget(ticks, ns);
        }
        (self.per_tick, self.measured) = (speed, since);
        if ns - self.newer.1 > Self::BASE_NS {
            self.older = Some(self.newer);
            self.newer = (ticks, ns);
        }
        speed
    }

    /// Returns whether the speed is known, or will never be known because the counter can't be used.
    pub fn is_settled(&self) -> bool {
        self.per_tick != 0 || !prepare()
    }

    /// Returns whether the next anchor is due when `since` nanoseconds have passed since the last anchor.
    pub fn is_due(&self, since: u64) -> bool {
        since > if prepare() { self.interval() } else { INTERVAL_NS }
    }

    /// Returns the time between two anchors, in nanoseconds: the time over which the speed was measured, but at most
    /// [`INTERVAL_NS`]. So a speed is used for no longer than it was measured, and an error of the speed adds no more
    /// to a timestamp than the errors of the pairs from which the speed was computed.
    fn interval(&self) -> u64 {
        self.measured.min(INTERVAL_NS)
    }

    fn forget(&mut self, ticks: u64, ns: u64) -> u64 {
        *self = Self { older: Some((ticks, ns)), newer: (ticks, ns), per_tick: 0, measured: 0 };
        0
    }
}

/// Returns the speed of a counter that counts `ticks` in `ns` nanoseconds, or `None` if `ticks`, after the shift that
/// is described below, is 0.
///
/// Both numbers are shifted right until `ns` has at most 32 bits; then the division fits into one word.
fn speed_of(ns: u64, ticks: u64) -> Option<u64> {
    let more = (u64::BITS - SHIFT).saturating_sub(ns.leading_zeros());
    ((ns >> more) << SHIFT).checked_div(ticks >> more)
}

static ANCHORS: Anchors = Anchors::new();

/// Returns the time of `CLOCK_BOOTTIME` in nanoseconds.
#[inline(always)]
pub fn now() -> u64 {
    // `scale` reads the counter only if there is an anchor: a process that is not allowed to read the counter would be
    // killed.
    ANCHORS.scale(counter).unwrap_or_else(asked)
}

/// Returns whether the counter may be used. Only the first call asks the system, because the process may later give
/// up the right to open files.
pub fn prepare() -> bool {
    static IS_USABLE: OnceRef<bool> = OnceRef::new();
    *IS_USABLE.get_or(|| if has_counter() { &true } else { &false })
}

/// Makes an anchor if the counter may be used.
#[inline(never)]
pub fn anchor(speed: &mut Speed) {
    /// Makes sure that only one thread at a time makes an anchor.
    static TURN: Turn = Turn::new();
    if prepare() {
        TURN.run(|| make_anchor(speed));
    }
}

fn make_anchor(speed: &mut Speed) {
    // The pair that took the least time to read is the most precise pair, because nothing interrupted the reading.
    let (mut least, mut pair, mut others) = (u64::MAX, (0, 0), 0);
    while others < 4 {
        let before = counter();
        let ns = asked();
        let took = counter().wrapping_sub(before);
        others += 1;
        if took < least {
            (least, pair, others) = (took, (before.wrapping_add(took / 2), ns), 0);
        }
    }
    ANCHORS.set(pair.0, pair.1, speed.learn(pair.0, pair.1));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_scaled_near_its_anchor_only() {
        let anchors = Anchors::new();
        assert_eq!(anchors.scale(|| 0), None);
        // A tick of the counter takes half a nanosecond.
        anchors.set(1000, 5_000, 1 << (SHIFT - 1));
        assert_eq!(anchors.scale(|| 1000), Some(5_000));
        assert_eq!(anchors.scale(|| 3001), Some(6_000));
        assert_eq!(anchors.scale(|| 1000 + 2 * AGE_MAX_NS), Some(5_000 + AGE_MAX_NS));
        assert_eq!(anchors.scale(|| 1001 + 2 * AGE_MAX_NS), None);
        assert_eq!(anchors.scale(|| 999), None);
        anchors.set(0, 0, 0);
        assert_eq!(anchors.scale(|| 1), None);
    }

    #[test]
    fn the_speed_is_learnt_and_forgotten_when_it_changes() {
        let mut speed = Speed::default();
        assert_eq!(speed.learn(0, 1_000), 0);
        assert_eq!(speed.learn(1_000, 2_000), 0);
        // The counter runs at 19.2 MHz. Later the system's clock is slewed by 300 parts per million.
        let per_tick = |ns: u64, ticks: u64| ((u128::from(ns) << SHIFT) / u128::from(ticks)) as u64;
        let known = speed.learn(19_200_000, 1_000_001_000);
        assert_eq!(known, per_tick(1_000_000_000, 19_200_000));
        let mut last = known;
        for second in 2..60 {
            last = speed.learn(19_200_000 * second, 1_000_300_000 * second + 1_000);
            assert!(last >= known && last - known < known / 3_000, "{second}");
        }
        assert!(last - known > known / 3_500);
        assert_eq!(speed.learn(19_200_000 * 60, 90_000_000_000), 0);
    }

    /// Tests that the error of a timestamp stays near the error of a pair (a count and a time that are read together),
    /// also soon after the first anchor.
    #[test]
    fn the_error_of_the_speed_does_not_add_up() {
        const ERROR: i64 = 50;
        // The times that are read are alternately too early and too late.
        let error = |ticks: u64| if (ticks / 4_000_000).is_multiple_of(2) { -ERROR } else { ERROR };
        let (mut speed, mut ticks) = (Speed::default(), 1_000_000_000);
        speed.learn(ticks, ticks.wrapping_add_signed(error(ticks)));
        while ticks < 60_000_000_000 {
            // A tick takes a nanosecond. The socket thread looks every 4 ms whether the next pair is due.
            let mut since = 4_000_000;
            while since <= speed.interval() {
                since += 4_000_000;
            }
            if speed.per_tick != 0 {
                let scaled = (u128::from(since) * u128::from(speed.per_tick)) >> SHIFT;
                let off = error(ticks) + scaled as i64 - since as i64;
                assert!(off.abs() <= 4 * ERROR, "{off} ns at {ticks}");
            }
            ticks += since;
            speed.learn(ticks, ticks.wrapping_add_signed(error(ticks)));
        }
    }

    /// Tests that a timestamp is at most 50 µs before the system's time that is read just before it, and at most 50 µs
    /// after the system's time that is read just after it, whatever the counter does.
    #[test]
    #[cfg_attr(miri, ignore = "no clock of the time since the start of the machine")]
    fn now_is_the_systems_time() {
        let mut speed = Speed::default();
        anchor(&mut speed);
        std::thread::sleep(std::time::Duration::from_millis(30));
        anchor(&mut speed);
        for _ in 0..1000 {
            let (before, now, after) = (asked(), now(), asked());
            assert!(before - 50_000 <= now && now <= after + 50_000, "{before} {now} {after}");
        }
    }
}
