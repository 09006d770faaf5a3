//! Time stamps of `CLOCK_BOOTTIME` without a call: the processor's counter, scaled.
//!
//! An *anchor* says which time a count of the counter was, and how fast it counts. A thread that records makes a new one
//! each second, since the system's clock is slewed and the counter is not. A count that lies too far from the anchor
//! (the thread was away, the machine slept) is not scaled: that event asks the system.
//!
//! Source: Intel's manual, volume 3, "Invariant TSC"; Arm's, "The Generic Timer".

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

pub use atrace_sys::clock::asked;
use atrace_sys::fork::Turn;

/// An anchor that is older is not used.
const AGE_MAX_NS: u64 = 2_000_000_000;
/// The least time between two anchors of which the counter's speed is learnt.
const BASE_MIN_NS: u64 = 20_000_000;
/// Speeds are in nanoseconds a tick, times 2^32.
const SHIFT: u32 = 32;

/// The words of an anchor.
#[derive(Debug)]
struct Anchor {
    ticks: AtomicU64,
    ns: AtomicU64,
    speed: AtomicU64,
    /// How many ticks after it a count may be scaled; 0: it is not to be used.
    reach: AtomicU64,
}

impl Anchor {
    const fn none() -> Self {
        Self {
            ticks: AtomicU64::new(0),
            ns: AtomicU64::new(0),
            speed: AtomicU64::new(0),
            reach: AtomicU64::new(0),
        }
    }
}

/// Anchors, of which readers use the last. One thread makes them at a time.
#[derive(Debug)]
struct Anchors {
    /// How many were made; the last is at the lowest bit.
    made: AtomicU32,
    anchors: [Anchor; 2],
}

impl Anchors {
    /// None yet.
    const fn new() -> Self {
        Self { made: AtomicU32::new(0), anchors: [const { Anchor::none() }; 2] }
    }

    /// The time of the count that `ticks` tells, which is asked where there is an anchor; `None` where none is near enough.
    #[inline(always)]
    fn scale(&self, ticks: impl FnOnce() -> u64) -> Option<u64> {
        let made = self.made.load(Ordering::Acquire);
        if made == 0 {
            return None;
        }
        let ticks = ticks();
        let anchor = &self.anchors[(made & 1) as usize];
        let since = ticks.wrapping_sub(anchor.ticks.load(Ordering::Relaxed));
        let reach = anchor.reach.load(Ordering::Relaxed);
        let speed = anchor.speed.load(Ordering::Relaxed);
        let ns = anchor.ns.load(Ordering::Relaxed);
        // While this thread was away, both may have been made anew.
        fence(Ordering::Acquire);
        if since >= reach || self.made.load(Ordering::Relaxed) != made {
            return None;
        }
        Some(ns + ((u128::from(since) * u128::from(speed)) >> SHIFT) as u64)
    }

    /// Makes an anchor: at this count it was this time, and the counter has this speed.
    fn set(&self, ticks: u64, ns: u64, speed: u64) {
        // A reader that sees a word of this anchor sees that the one before was made, too.
        fence(Ordering::Release);
        let made = self.made.load(Ordering::Relaxed).wrapping_add(1);
        let anchor = &self.anchors[(made & 1) as usize];
        let reach = (AGE_MAX_NS << SHIFT).checked_div(speed).map_or(0, |ticks| ticks + 1);
        anchor.ticks.store(ticks, Ordering::Relaxed);
        anchor.ns.store(ns, Ordering::Relaxed);
        anchor.speed.store(speed, Ordering::Relaxed);
        anchor.reach.store(reach, Ordering::Relaxed);
        self.made.store(made, Ordering::Release);
    }
}

/// What the thread that makes the anchors knows of the counter's speed: it compares the clocks over some seconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Speed {
    /// The counts and times that it was looked at: the older one is compared with.
    older: Option<(u64, u64)>,
    newer: (u64, u64),
    per_tick: u64,
}

impl Speed {
    /// How far apart the two looks are kept.
    const BASE_NS: u64 = 4_000_000_000;

    /// The speed, after the counter was `ticks` at `ns`; 0 while it is not known. Where it changes by more than a
    /// clock is ever slewed (the machine has slept), it is learnt anew.
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
        self.per_tick = speed;
        if ns - self.newer.1 > Self::BASE_NS {
            self.older = Some(self.newer);
            self.newer = (ticks, ns);
        }
        speed
    }

    /// Whether it was learnt.
    pub const fn is_known(&self) -> bool {
        self.per_tick != 0
    }

    fn forget(&mut self, ticks: u64, ns: u64) -> u64 {
        *self = Self { older: Some((ticks, ns)), newer: (ticks, ns), per_tick: 0 };
        0
    }
}

/// The speed of a counter that took so many nanoseconds for so many ticks, where it has one. Of a long time both lose their
/// lowest bits: 32 of the time's are left, which divide in one word.
fn speed_of(ns: u64, ticks: u64) -> Option<u64> {
    let more = (u64::BITS - SHIFT).saturating_sub(ns.leading_zeros());
    ((ns >> more) << SHIFT).checked_div(ticks >> more)
}

static ANCHORS: Anchors = Anchors::new();

/// The time of `CLOCK_BOOTTIME` in nanoseconds.
#[inline(always)]
pub fn now() -> u64 {
    // Without an anchor the counter is perhaps not allowed: to read it would end the process.
    ANCHORS.scale(counter).unwrap_or_else(asked)
}

/// Asks whether the counter may be used, once: a process may take away its own right to open files.
pub fn prepare() -> bool {
    /// 0: not asked, 1: no, 2: yes.
    static IS_USABLE: AtomicU32 = AtomicU32::new(0);
    if IS_USABLE.load(Ordering::Relaxed) == 0 {
        IS_USABLE.store(1 + u32::from(is_usable()), Ordering::Relaxed);
    }
    IS_USABLE.load(Ordering::Relaxed) == 2
}

/// Makes an anchor, where the counter may be used.
#[inline(never)]
pub fn anchor(speed: &mut Speed) {
    /// Of two threads that come at once, one makes it.
    static TURN: Turn = Turn::new();
    if prepare() {
        TURN.run(|| make_anchor(speed));
    }
}

fn make_anchor(speed: &mut Speed) {
    // Of some pairs, the one whose reading took least: nothing came in between.
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

/// The processor's counter; its meaning is to be asked first.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
fn counter() -> u64 {
    // SAFETY: every x86-64 has it; where a process may not use it there is no anchor, and this is not called.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(all(target_arch = "aarch64", not(miri)))]
#[inline(always)]
fn counter() -> u64 {
    let ticks: u64;
    // SAFETY: reads the virtual counter, which Linux lets programs read.
    unsafe {
        std::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack, preserves_flags))
    };
    ticks
}

#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
#[inline(always)]
fn counter() -> u64 {
    0
}

/// Whether the counter is as steady as a clock and may be read.
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn is_usable() -> bool {
    // CPUID 8000_0007h, EDX bit 8: it counts at one speed, also in sleep states.
    #[allow(unused_unsafe, reason = "asking the processor is safe in newer compilers only")]
    // SAFETY: every x86-64 answers.
    let is_invariant = unsafe {
        let most = std::arch::x86_64::__cpuid(0x8000_0000).eax;
        most >= 0x8000_0007 && std::arch::x86_64::__cpuid(0x8000_0007).edx & 1 << 8 != 0
    };
    // The kernel watches whether the processors' counters agree, and takes another clock where they do not.
    let mut name = [0; 16];
    let len = atrace_sys::clock::source(&mut name);
    let is_trusted = len == 0 || name.starts_with(b"tsc\n") || name.starts_with(b"kvm-clock\n");
    is_invariant && is_trusted && atrace_sys::clock::is_allowed()
}

#[cfg(all(target_arch = "aarch64", not(miri)))]
fn is_usable() -> bool {
    true
}

#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
fn is_usable() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_scaled_near_its_anchor_only() {
        let anchors = Anchors::new();
        assert_eq!(anchors.scale(|| 0), None);
        // Half a nanosecond a tick.
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
        // 19.2 MHz, slewed by 300 parts of a million from then on.
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

    /// Whatever the counter is: a time between two that the system says.
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
