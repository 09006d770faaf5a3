//! Decides at which moments (*looks*) the intervals of a comparison are computed, so that the comparison can end early
//! without a loss of confidence.
//!
//! If the intervals were checked after each pair of runs, and the comparison ended as soon as they were narrow enough,
//! the result would be wrong far more often than the confidence of each interval suggests. So there are five looks:
//! after a sixteenth, an eighth, a quarter and a half of the time, and at its end. The looks share the error of
//! [`CONFIDENCE`]: each early look gets a tenth of the error, and the last look the rest (Bonferroni's inequality; Lan
//! and DeMets, "Discrete sequential boundaries for clinical trials", 1983). So the intervals of one measurement at all
//! looks together contain the true value with the confidence [`CONFIDENCE`], at whichever look the comparison ends. If
//! a comparison has several measurements, this confidence applies to each measurement, not to all measurements
//! together.
//!
//! Each sample is the logarithm of the ratio of the two times of a pair, and a coin decides which part of the pair runs
//! first. If the two parts do not differ, a ratio above 1 is as likely as a ratio below 1, whatever the machine does:
//! drift, bursts and outliers do not make a wrong claim more likely. If the two parts differ by a factor, this is true
//! of the ratios divided by that factor.

use std::time::{Duration, Instant};

use crate::{Interval, ranks};

/// The confidence of the result. It does not depend on the look (the check of the intervals) at which the comparison
/// ends.
pub const CONFIDENCE: f64 = 0.99;

/// The smallest number of pairs for which the interval at the last look can have the required confidence, if there is
/// no covariate ([`ranks`]). With a covariate, one more pair is needed.
pub const PAIRS_MIN: usize = 9;

/// The fractions of the time after which there is a look, before the last look at the end.
const PARTS: [f64; 4] = [1.0 / 16.0, 1.0 / 8.0, 1.0 / 4.0, 1.0 / 2.0];
/// The fraction of the permitted probability of error that each look before the last look may use.
const SHARE: f64 = 0.1;

/// The comparison ends if half the width of each interval is at most this number.
const TIGHT: f64 = 0.0025;
/// An interval that is wider than [`TIGHT`] allows also suffices if half its width is at most this fraction of its
/// median.
const TIGHT_PART: f64 = 0.1;

/// The progress of a comparison: how many of the moments for early looks had passed at the most recent look.
#[derive(Clone, Copy, Debug, Default)]
pub struct Looks(usize);

impl Looks {
    /// Returns the intervals of the differences if it is time for a look. `part` is the fraction of the time that has
    /// passed. If `part` is 1 or more, the look is the last one.
    ///
    /// Each element of `pairs` has the logarithms of the ratios of one measurement. The returned interval at the same
    /// index is the interval of the ratio minus 1. An interval is `None` if there is no ratio, or if a logarithm is not
    /// finite. With too few pairs, or if the covariate explains a difference of any size, the interval is marked as
    /// uncertain ([`Interval::sure`] is false). `covariate` has a value for each pair, or is empty ([`ranks`]).
    pub fn look(&mut self, part: f64, pairs: &[&[f64]], covariate: &[f64]) -> Option<Vec<Option<Interval>>> {
        let passed = PARTS.iter().filter(|at| part >= **at).count();
        let error = 1.0 - CONFIDENCE;
        let share = if part >= 1.0 {
            1.0 - SHARE * PARTS.len() as f64
        } else if passed > self.0 {
            SHARE
        } else {
            return None;
        };
        self.0 = passed;
        let interval =
            |pairs: &&[f64]| Some(ranks::interval(pairs, covariate, 1.0 - error * share)?.map(f64::exp_m1));
        Some(pairs.iter().map(interval).collect())
    }
}

/// A comparison that ends when all its intervals are decided ([`is_decided`]), or when the time is over.
#[derive(Clone, Copy, Debug)]
pub struct Timed {
    start: Instant,
    time: Duration,
    /// The duration of the longest pair.
    longest: Duration,
    looks: Looks,
}

impl Timed {
    /// Makes a comparison whose time has begun at `start`.
    pub fn new(start: Instant, time: Duration) -> Self {
        Self { start, time, longest: Duration::ZERO, looks: Looks::default() }
    }

    /// Returns the time that is left.
    pub fn left(&self) -> Duration {
        self.time.saturating_sub(self.start.elapsed())
    }

    /// Returns `None` if there is time for `pairs` pairs, each of which takes `pair`. Otherwise returns a time, in
    /// seconds, that would be enough for the comparison.
    pub fn needed(&self, pair: Duration, pairs: usize) -> Option<f64> {
        let end = |pairs: usize| self.start.elapsed() + pair * pairs as u32;
        (end(pairs) > self.time).then(|| end(pairs + 3).as_secs_f64().ceil())
    }

    /// Must be called after each pair. `begun` is the time at which the pair began; see [`Looks::look`] for the other
    /// arguments. If the comparison ends with this pair, returns the intervals and the seconds since the start. It ends
    /// if all intervals are decided, or if a further pair might end too late.
    pub fn ended(
        &mut self,
        begun: Instant,
        pairs: &[&[f64]],
        covariate: &[f64],
    ) -> Option<(Vec<Option<Interval>>, f64)> {
        self.longest = self.longest.max(begun.elapsed());
        let passed = self.start.elapsed();
        let is_last = passed + self.longest > self.time;
        let part = (passed.as_secs_f64() / self.time.as_secs_f64()).min(0.999);
        let found = self.looks.look(if is_last { 1.0 } else { part }, pairs, covariate)?;
        let is_over = is_last || found.iter().all(|it| it.is_some_and(is_decided));
        is_over.then_some((found, passed.as_secs_f64()))
    }
}

/// Returns whether the comparison can end, because the interval of the difference comes from enough pairs and is
/// narrow.
pub fn is_decided(difference: Interval) -> bool {
    difference.sure && difference.half_width() <= TIGHT.max(TIGHT_PART * difference.median.abs())
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;

    use super::*;
    use crate::simulated::{Machine, Simulated};

    #[test]
    fn a_comparison_tells_whether_its_time_is_enough() {
        let timed = Timed::new(Instant::now(), Duration::from_secs(1000));
        assert!(timed.left() > Duration::from_secs(500));
        assert_eq!(timed.needed(Duration::from_secs(10), PAIRS_MIN), None);
        let needed = timed.needed(Duration::from_secs(200), PAIRS_MIN).unwrap();
        assert!((2400.0..2900.0).contains(&needed), "{needed}");
    }

    /// Compares until the comparison is decided or `most` pairs have run. `pair` runs a pair, with the side `off` first
    /// if its argument is true, and returns the times of `off` and `on`.
    fn compare(most: usize, random: &mut Rng, mut pair: impl FnMut(bool) -> [f64; 2]) -> Option<Interval> {
        let (mut looks, mut pairs) = (Looks::default(), Vec::new());
        loop {
            let [off, on] = pair(random.bool());
            pairs.push((on / off).ln());
            if let Some(found) = looks.look(pairs.len() as f64 / most as f64, &[&pairs], &[]) {
                let found = found[0];
                if pairs.len() >= most || found.is_some_and(is_decided) {
                    return found;
                }
            }
        }
    }

    /// Simulates `runs` comparisons. Returns three numbers: how many comparisons claim a difference, how many intervals
    /// do not contain the true difference `extra`, and how many comparisons have a result from enough pairs
    /// ([`Interval::sure`]). `time` returns the random time of the same work in a run of either side.
    fn judge(extra: f64, runs: u64, most: usize, mut time: impl FnMut(u64) -> f64) -> [u64; 3] {
        let mut counted = [0; 3];
        for seed in 0..runs {
            let mut random = Rng::with_seed(seed * 7919 + most as u64);
            let found = compare(most, &mut random, |is_off_first| {
                let factors = if is_off_first { [1.0, 1.0 + extra] } else { [1.0 + extra, 1.0] };
                let [first, second] = factors.map(|factor| factor * time(seed));
                if is_off_first { [first, second] } else { [second, first] }
            });
            let Some(found) = found.filter(|found| found.sure) else { continue };
            counted[0] += u64::from(found.low > 0.0 || found.high < 0.0);
            counted[1] += u64::from(!(found.low <= extra && extra <= found.high));
            counted[2] += 1;
        }
        counted
    }

    /// Returns a source of times for a test. The distribution of the times has such a heavy tail that it has no mean;
    /// the times drift; and the second run of a pair is faster.
    fn wild() -> impl FnMut(u64) -> f64 {
        let (mut random, mut runs) = (Rng::with_seed(5), 0_u32);
        move |_| {
            runs += 1;
            let warm = if runs.is_multiple_of(2) { 0.97 } else { 1.0 };
            let drift = 1.0 + 0.3 * (f64::from(runs) / 500.0).sin();
            let normal = (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
            let tail = if random.f64() < 0.1 { 0.05 / (1.0 - random.f64()) } else { 0.0 };
            warm * drift * (1.0 + 0.02 * normal + tail)
        }
    }

    #[test]
    fn what_does_not_differ_is_seldom_said_to() {
        let [mut wrong, mut all] = [0, 0];
        for machine in Machine::all() {
            for most in [12, 40, 150] {
                let (mut simulated, mut seeded) = (Simulated::new(machine, 0), 0);
                let [claimed, _, runs] = judge(0.0, 40, most, |seed| {
                    if seed != seeded {
                        (simulated, seeded) = (Simulated::new(machine, seed), seed);
                    }
                    simulated.slice(100.0, 1000.0).ns
                });
                println!("{}, {most} pairs: {claimed} of {runs}", machine.name);
                (wrong, all) = (wrong + claimed, all + runs);
            }
        }
        let [claimed, _, runs] = judge(0.0, 1000, 100, wild());
        println!("wild: {claimed} of {runs}");
        (wrong, all) = (wrong + claimed, all + runs);
        assert!(all > 2000 && wrong * 50 <= all, "{wrong} of {all}");
    }

    #[test]
    fn the_interval_holds_a_known_difference() {
        let [mut missed, mut all] = [0, 0];
        for extra in [0.005, 0.01, 0.02, 0.05, 0.2] {
            for machine in Machine::all() {
                let mut simulated = Simulated::new(machine, 1);
                let [claimed, outside, runs] = judge(extra, 20, 100, |_| simulated.slice(100.0, 1000.0).ns);
                println!("{} with {extra} more: {outside} of {runs} miss it", machine.name);
                (missed, all) = (missed + outside, all + runs);
                assert!(extra < 0.2 || claimed == runs, "{}: {claimed} of {runs} see it", machine.name);
            }
            let [_, outside, runs] = judge(extra, 200, 100, wild());
            (missed, all) = (missed + outside, all + runs);
        }
        assert!(all > 2000 && missed * 100 <= all * 3, "{missed} of {all}");
    }

    #[test]
    fn a_percent_is_seen_in_a_minute() {
        // In a minute, a command of 100 ms runs in 300 pairs. Its times vary by 2 %.
        let mut random = Rng::with_seed(9);
        let time = |_| 1.0 + 0.02 * ((0..12).map(|_| random.f64()).sum::<f64>() - 6.0);
        let [claimed, outside, runs] = judge(0.01, 300, 300, time);
        assert!(runs > 290, "{runs} of 300 are sure");
        assert!(claimed * 10 >= runs * 9 && outside * 50 <= runs, "{claimed} see it, {outside} miss it");
    }

    #[test]
    fn looking_after_each_pair_would_be_wrong() {
        let (mut random, mut claims) = (Rng::with_seed(2), 0);
        for _ in 0..200 {
            let mut pairs = Vec::new();
            let is_claimed = (0..200).any(|_| {
                pairs.push(random.f64() - 0.5);
                Interval::at(&pairs, CONFIDENCE).is_some_and(|it| it.sure && (it.low > 0.0 || it.high < 0.0))
            });
            claims += u32::from(is_claimed);
        }
        assert!(claims > 8, "{claims} of 200");
    }

    #[test]
    fn a_comparison_ends_when_it_is_decided_or_its_time_is_over() {
        let (hour, same, wide) = (Duration::from_secs(3600), [0.01; 12], [0.5, -0.5].repeat(6));
        let now = Instant::now();
        let ago = |part: f64| now.checked_sub(hour.mul_f64(part)).unwrap();
        let ended = |part, length: f64, pairs: &[&[f64]]| {
            Timed::new(ago(part), hour).ended(ago(length), pairs, &[]).map(|(found, _)| found.len())
        };
        assert_eq!(ended(0.07, 0.01, &[&same]), Some(1));
        assert_eq!(ended(0.07, 0.01, &[&same, &wide]), None);
        assert_eq!(ended(0.05, 0.01, &[&same]), None, "there is no look yet");
        assert_eq!(ended(0.7, 0.4, &[&wide, &wide]), Some(2), "the next pair would end too late");
    }

    #[test]
    fn each_look_comes_once() {
        let mut looks = Looks::default();
        let pairs = [0.01_f64; 12];
        let at = |part: f64| looks.look(part, &[&pairs], &[]).map(|found| found[0].unwrap().sure);
        let found = [0.01, 0.07, 0.1, 0.3, 0.49, 0.5, 0.9, 1.0, 1.2].map(at);
        let yes = Some(true);
        assert_eq!(found, [None, yes, None, yes, None, yes, None, yes, yes]);
        // Eight pairs would be enough for an interval of 99 %, but not here, where each look may use only a part of the
        // allowed error.
        assert!(!Looks::default().look(1.0, &[&pairs[..PAIRS_MIN - 1]], &[]).unwrap()[0].unwrap().sure);
        assert!(Looks::default().look(1.0, &[&pairs[..PAIRS_MIN]], &[]).unwrap()[0].unwrap().sure);
        assert_eq!(Looks::default().look(1.0, &[&[]], &[]), Some(vec![None]));
    }
}
