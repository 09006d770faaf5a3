//! Debounces libandroid's answer to "is tracing enabled?".
//!
//! # The problem
//!
//! libandroid asks libcutils. In libcutils, the first thread that sees a new serial stores this serial *before* it
//! reads the properties. Between these two steps libcutils gives the old answer to all other threads.
//!
//! # The solution
//!
//! An answer is *settled* once the same answer was given, for the same serial, more than [`APART`] earlier. While an
//! answer is not settled, it is not published at the gate, and every event asks libandroid. No thread waits.
//!
//! If a thread takes longer than [`APART`] between the two steps of libcutils, the old answer may become settled. In
//! this case, the old answer is used until the next switch of tracing.

use std::time::Duration;

use crate::sync::atomic::{AtomicU64, Ordering};

/// An answer is settled once the library has given it twice, at least this time apart.
pub(crate) const APART: Duration = Duration::from_millis(10);

/// One word, from the highest bit: the serial (32 bits); whether the library was asked at all (1 bit); its answer,
/// whether tracing is enabled (1 bit); whether the answer is settled (1 bit, see [`APART`]); and a time in milliseconds
/// (29 bits).
///
/// If the library gives the same answer several times in a row, for the same serial, the word keeps the time of the
/// first of these answers.
#[derive(Debug)]
pub(crate) struct Debounce(pub(crate) AtomicU64);

const SERIAL_SHIFT: u32 = 32;
const KNOWN: u64 = 1 << 31;
const ENABLED: u64 = 1 << 30;
const SETTLED: u64 = 1 << 29;
const MILLISECONDS: u64 = SETTLED - 1;

impl Debounce {
    /// Calls `ask` for the library's answer at this serial. Returns whether tracing is enabled, and whether this answer
    /// is settled (the library has given it twice, [`APART`] apart). `now` returns a monotonic time.
    pub(crate) fn ask(
        &self,
        serial: u32,
        now: impl Fn() -> Duration,
        ask: impl FnOnce() -> bool,
    ) -> (bool, bool) {
        let milliseconds = |time: Duration| time.as_millis() as u64 & MILLISECONDS;
        let begun = milliseconds(now());
        let enabled = ask();
        let answer = u64::from(serial) << SERIAL_SHIFT | KNOWN | if enabled { ENABLED } else { 0 };
        let kept = self.0.load(Ordering::Relaxed);
        if kept & !(SETTLED | MILLISECONDS) != answer {
            self.0.store(answer | milliseconds(now()), Ordering::Relaxed);
            return (enabled, false);
        }
        // The comparison is `>`, because both times are cut to whole milliseconds. The subtraction wraps around,
        // because the clock with its 29 bits does so, too.
        let apart = begun.wrapping_sub(kept) & MILLISECONDS;
        let settled = kept & SETTLED != 0 || u128::from(apart) > APART.as_millis();
        if settled && kept & SETTLED == 0 {
            let _ = self.0.compare_exchange(kept, kept | SETTLED, Ordering::Relaxed, Ordering::Relaxed);
        }
        (enabled, settled)
    }

    /// Returns true if the last answer is settled (the library has given it twice, [`APART`] apart), or if there was no
    /// answer yet.
    pub(crate) fn is_settled(&self) -> bool {
        let kept = self.0.load(Ordering::Relaxed);
        kept & KNOWN == 0 || kept & SETTLED != 0
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn two_answers_of_one_serial_must_agree_ten_milliseconds_apart() {
        let answers = Debounce(AtomicU64::new(0));
        let clock = Cell::new(Duration::ZERO);
        let ask = |milliseconds, serial, answer| {
            clock.set(Duration::from_millis(milliseconds));
            let asked = answers.ask(serial, || clock.get(), || answer);
            assert_eq!(asked.0, answer);
            assert_eq!(asked.1, answers.is_settled());
            asked.1
        };
        assert!(answers.is_settled(), "nobody asked");
        assert!(!ask(0, 2, false));
        assert!(!ask(10, 2, false), "the first may have been given up to a millisecond later");
        assert!(ask(11, 2, false));
        assert!(ask(12, 2, false), "it stays so");
        assert!(!ask(12, 4, false), "another serial");
        assert!(!ask(20, 4, true), "another answer");
        assert!(!ask(30, 4, true));
        assert!(ask(31, 4, true));
        assert!(!ask(50, 4, false), "it changed without a serial, as patterns do");
        assert!(ask(61, 4, false));
        // The stored time wraps around: it has 29 bits of milliseconds.
        assert!(!ask((1 << 29) - 5, 6, true));
        assert!(!ask((1 << 29) + 5, 6, true));
        assert!(ask((1 << 29) + 6, 6, true));
    }

    /// Tests that the time between two answers is measured from the end of the first call to the begin of the second
    /// call, because an answer may describe the state at the begin of its call.
    #[test]
    fn the_time_between_the_answers_counts() {
        let answers = Debounce(AtomicU64::new(0));
        let clock = Cell::new(Duration::ZERO);
        let slowly = || {
            clock.set(clock.get() + Duration::from_millis(100));
            true
        };
        assert_eq!(answers.ask(2, || clock.get(), slowly), (true, false));
        assert_eq!(answers.ask(2, || clock.get(), slowly), (true, false));
        clock.set(clock.get() + Duration::from_millis(11));
        assert_eq!(answers.ask(2, || clock.get(), || true), (true, true));
    }
}
