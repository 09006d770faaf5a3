//! Estimates a sum from a random sample, with its 99 % interval.
//!
//! The values are the durations of calls. The first calls are all timed, so the sum of their durations is exact. Each
//! of the other calls is in the sample with the same probability. The sum of their durations is estimated as the number
//! of these calls times the mean of the sample. The variance of this estimate is computed from the variance of the
//! sample, with the correction for a finite population (W. G. Cochran, "Sampling Techniques", 1977, chapter 2). The
//! variance of the sample counts as at least the variance of a rounding to whole ticks. Student's quantile is exact for
//! up to four degrees of freedom, and otherwise approximated as in Abramowitz and Stegun, 26.7.5.

/// The measurements of one kind of call of a callsite. Times are in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sampled {
    /// The number of calls.
    pub calls: u64,
    /// The number of calls that were timed, as first calls or as a part of a sample.
    pub timed: u64,
    /// The number of first calls that were timed.
    pub firsts: u64,
    /// The sum of the durations of the first calls.
    pub of_firsts: f64,
    /// A sample of the durations of the calls after the first calls, in which the duration of a long call counts as 0.
    /// (A long call takes more than 10 µs.)
    pub short: Sample,
    /// The number of long calls in the sample `short`.
    pub longs: u64,
    /// The processor times of the long calls in a second sample of the calls after the first calls.
    pub long: Sample,
    /// The time that is assumed for a long call if the sample `long` is empty.
    pub long_at_least: f64,
}

/// A random sample: its size, its sum, and the sum of its squares.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// The number of values in the sample.
    pub number: u64,
    /// The sum of the values.
    pub sum: f64,
    /// The sum of the squares of the values.
    pub squares: f64,
}

/// An estimated sum, and half the width of its 99 % interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Estimate {
    pub(crate) sum: f64,
    pub(crate) half: f64,
}

/// The two-sided quantile of the normal distribution for 99 %.
const Z: f64 = 2.576;

fn student(freedom: f64) -> f64 {
    // For one to four degrees of freedom, the approximation is too small. These are the exact quantiles.
    const FEW: [f64; 4] = [63.657, 9.925, 5.841, 4.604];
    if let Some(quantile) = FEW.get(freedom as usize - 1) {
        return *quantile;
    }
    Z + (Z.powi(3) + Z) / (4.0 * freedom)
        + (5.0 * Z.powi(5) + 16.0 * Z.powi(3) + 3.0 * Z) / (96.0 * freedom * freedom)
}

impl Sampled {
    pub(crate) fn estimate(&self) -> Estimate {
        let others = self.calls.saturating_sub(self.firsts) as f64;
        let first = Estimate { sum: self.of_firsts, half: 0.0 };
        if others < 1.0 {
            return first;
        }
        if self.short.number < 2 {
            // The spread of the durations is unknown, so the interval of their sum extends from 0 to twice the
            // estimate.
            let timed = self.firsts + self.short.number;
            let rest = others * (self.of_firsts + self.short.sum) / timed.max(1) as f64;
            return Estimate { sum: self.of_firsts + rest, half: rest };
        }
        first.plus(self.short.estimate(others)).plus(self.of_long(others))
    }

    /// Estimates the sum of the times of the long calls among `all` calls. The estimate is the number of long calls,
    /// computed from their share in the sample `short`, times their mean processor time.
    fn of_long(&self, all: f64) -> Estimate {
        let (number, share) = (self.short.number as f64, self.longs as f64 / self.short.number as f64);
        let one = match self.long.number {
            0 => Estimate { sum: self.long_at_least, half: self.long_at_least },
            1 => Estimate { sum: self.long.sum, half: self.long.sum },
            _ => self.long.mean(),
        };
        // The number of long calls in the sample varies by chance. So two long calls and two other calls are added to
        // the sample, as for the interval of a proportion (A. Agresti, B. A. Coull, "Approximate Is Better than Exact",
        // 1998).
        let [few, many] = [self.longs as f64 + 2.0, number + 4.0];
        let is_known = self.longs + self.long.number > 0;
        let of_share = if is_known { Z * (few / many * (1.0 - few / many) / many).sqrt() } else { 0.0 };
        Estimate { sum: all * share * one.sum, half: all * (of_share * one.sum).hypot(share * one.half) }
    }
}

impl Sample {
    /// Estimates the mean duration, as if the sample were drawn from an infinite number of calls. The sample must have
    /// at least two values.
    fn mean(&self) -> Estimate {
        let number = self.number as f64;
        let mean = self.sum / number;
        // A duration is the difference of two clock readings, which are rounded to whole ticks. So even if all
        // durations of the sample are equal, their variance counts as at least the mean variance that this rounding
        // causes.
        let variance = ((self.squares - number * mean * mean) / (number - 1.0)).max(1.0 / 6.0);
        Estimate { sum: mean, half: student(number - 1.0) * (variance / number).sqrt() }
    }

    /// Estimates the sum of the times of `all` calls.
    fn estimate(&self, all: f64) -> Estimate {
        let Estimate { sum: mean, half } = self.mean();
        let missed = (1.0 - self.number as f64 / all).max(0.0);
        Estimate { sum: all * mean, half: all * half * missed.sqrt() }
    }
}

impl Estimate {
    /// Returns the sum of two independent estimates.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self { sum: self.sum + other.sum, half: self.half.hypot(other.half) }
    }

    pub(crate) fn times(self, factor: f64) -> Self {
        Self { sum: self.sum * factor, half: self.half * factor }
    }

    pub(crate) fn low(self) -> f64 {
        (self.sum - self.half).max(0.0)
    }

    pub(crate) fn high(self) -> f64 {
        self.sum + self.half
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A generator of pseudorandom numbers, which are the same in each run of the tests.
    struct Random(u64);

    impl Random {
        fn uniform(&mut self) -> f64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            ((self.0 >> 11) + 1) as f64 / (1_u64 << 53) as f64
        }

        fn normal(&mut self) -> f64 {
            (-2.0 * self.uniform().ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos()
        }
    }

    /// Returns the fraction of simulations in which the estimate's interval contains the true sum of the calls' times.
    /// `time` returns the duration of a simulated call.
    fn coverage(calls: usize, mut time: impl FnMut(&mut Random) -> f64) -> f64 {
        const FIRSTS: usize = 16;
        let rounds = if cfg!(miri) { 2 } else { 1000 };
        let mut random = Random(0x2545_f491_4f6c_dd1d);
        let mut held = 0;
        for _ in 0..rounds {
            let (mut truth, mut sampled) = (0.0, Sampled { calls: calls as u64, ..Sampled::default() });
            for call in 0..calls {
                let took = time(&mut random);
                truth += took;
                if call < FIRSTS {
                    sampled.firsts += 1;
                    sampled.of_firsts += took;
                } else if random.uniform() < 1.0 / 16.0 {
                    sampled.short.number += 1;
                    sampled.short.sum += took;
                    sampled.short.squares += took * took;
                }
            }
            let estimate = sampled.estimate();
            held += usize::from(estimate.low() <= truth && truth <= estimate.high());
        }
        held as f64 / rounds as f64
    }

    #[test]
    #[cfg_attr(miri, ignore = "slow")]
    fn intervals_hold_the_truth() {
        let even = coverage(2_000, |random| 100.0 + 10.0 * random.normal());
        let few = coverage(200, |random| 100.0 + 10.0 * random.normal());
        let skewed = coverage(10_000, |random| (4.0 + 1.0 * random.normal()).exp());
        let heavy = coverage(10_000, |random| (4.0 + 1.5 * random.normal()).exp());
        println!("NOTE even {even}, few {few}, skewed {skewed}, heavy {heavy}");
        assert!(even >= 0.98 && few >= 0.97, "{even} {few}");
        assert!(skewed >= 0.97 && heavy >= 0.95, "{skewed} {heavy}");
    }

    /// Tests calls during which the thread loses the processor, because there are more threads than processors. The
    /// milliseconds without a processor must not be billed.
    #[test]
    #[cfg_attr(miri, ignore = "slow")]
    fn calls_that_lose_the_processor_are_billed_for_their_processor_time() {
        const LONG: f64 = 10_000.0;
        const CALLS: u64 = 20_000;
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let (rounds, mut held, mut ratios) = (300, 0, 0.0);
        for _ in 0..rounds {
            let mut sampled = Sampled { calls: CALLS, long_at_least: LONG, ..Sampled::default() };
            let (mut truth, mut others) = (0.0, 0);
            for _ in 0..CALLS {
                let mut processor = (5.7 + 0.3 * random.normal()).exp();
                let is_long = random.uniform() < 0.01;
                if is_long {
                    processor += (8.5 + 0.5 * random.normal()).exp();
                }
                truth += processor;
                let (with, without) = (sampled.long.number + others, sampled.short.number);
                if random.uniform() >= 1.0 / 16.0 {
                    continue;
                }
                // Chooses the samples whose processor time is read, by the same rule as the meter, which measures calls
                // in real programs.
                let longs = sampled.longs + sampled.long.number;
                let reads = (with + without) % 2 == 1 && with < without / 32 + 8 * longs;
                let sample = if is_long { &mut sampled.long } else { &mut sampled.short };
                match (reads, is_long) {
                    (true, false) => others += 1,
                    (false, true) => {
                        sampled.longs += 1;
                        sampled.short.number += 1;
                    }
                    _ => {
                        sample.number += 1;
                        sample.sum += processor;
                        sample.squares += processor * processor;
                    }
                }
            }
            let estimate = sampled.estimate();
            held += usize::from(estimate.low() <= truth && truth <= estimate.high());
            ratios += estimate.sum / truth;
        }
        let (held, ratio) = (held as f64 / f64::from(rounds), ratios / f64::from(rounds));
        println!("NOTE held {held}, ratio {ratio}");
        assert!(held >= 0.95 && (0.97..1.05).contains(&ratio), "{held} {ratio}");
    }

    #[test]
    fn what_was_timed_whole_is_exact_and_what_is_unknown_is_wide() {
        let exact = Sampled { calls: 4, firsts: 4, of_firsts: 40.0, ..Sampled::default() };
        assert_eq!(exact.estimate(), Estimate { sum: 40.0, half: 0.0 });
        let unknown = Sampled { calls: 8, ..exact };
        assert_eq!(unknown.estimate(), Estimate { sum: 80.0, half: 40.0 });
        assert_eq!(Sampled { calls: 9, ..Sampled::default() }.estimate(), Estimate::default());
        let short = Sample { number: 2, sum: 30.0, squares: 500.0 };
        let all = Sampled { calls: 2, short, ..Sampled::default() };
        assert_eq!(all.estimate(), Estimate { sum: 30.0, half: 0.0 });
        // One of the four sampled calls is long.
        let short = Sample { number: 4, sum: 30.0, squares: 300.0 };
        let long = Sample { number: 2, sum: 200.0, squares: 20_000.0 };
        let both = Sampled { calls: 1000, short, longs: 1, long, ..Sampled::default() }.estimate();
        assert_eq!(both.sum, 1000.0 * (7.5 + 0.25 * 100.0));
        assert!(both.half > both.sum, "{both:?}");
        let unread = Sampled { calls: 1000, short, longs: 1, long_at_least: 40.0, ..Sampled::default() };
        assert_eq!(unread.estimate().sum, 1000.0 * (7.5 + 0.25 * 40.0));
    }

    #[test]
    fn few_equal_or_once_read_calls_are_not_exact() {
        assert!(student(1.0) > 63.0 && student(4.0) > student(5.0), "{} {}", student(4.0), student(5.0));
        // A coarse clock shows the same number of ticks for both samples, although their times may differ.
        let short = Sample { number: 2, sum: 6.0, squares: 18.0 };
        let equal = Sampled { calls: 1000, short, ..Sampled::default() }.estimate();
        assert!(equal.sum == 3000.0 && equal.half > 1000.0, "{equal:?}");
        // The processor time of the only long call was read, so this call is not among the 33 short samples.
        let short = Sample { number: 33, sum: 19_800.0, squares: 11_880_000.0 };
        let long = Sample { number: 1, sum: 1e5, squares: 1e10 };
        let once = Sampled { calls: 4400, short, long, ..Sampled::default() }.estimate();
        assert!(once.high() > 1.5e7, "{once:?}");
    }
}
