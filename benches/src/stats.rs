//! Medians, and how sure they are.
//!
//! Rounds on a shared machine have outliers in one direction and no known distribution, so nothing
//! here assumes one: the interval of a median is made of two of the samples themselves. Whether a
//! sample lies below the true median is a fair coin, so the number that do is binomial, and the
//! ranks are those that a fair coin leaves outside with at most 5 % probability.

/// The confidence of every interval.
pub const CONFIDENCE: f64 = 0.95;

/// A row whose interval reaches further than this part of its median to each side is noisy, if it
/// is also wider than [`NOISY_NS`].
pub const NOISY_RATIO: f64 = 0.05;

/// Half an interval of at most this many nanoseconds is never noisy, however small the median.
pub const NOISY_NS: f64 = 0.15;

/// A median with its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// The median of the samples.
    pub median: f64,
    /// The lower bound.
    pub low: f64,
    /// The upper bound.
    pub high: f64,
    /// Whether there were samples enough (six) for bounds of 95 %. If not, they are the smallest
    /// and the largest sample and promise less.
    pub sure: bool,
}

impl Interval {
    /// Returns the median of `samples` with its interval; `None` where there is none: no sample, or
    /// one that is not a finite number.
    #[must_use]
    pub fn of(samples: &[f64]) -> Option<Self> {
        if samples.is_empty() || samples.iter().any(|x| !x.is_finite()) {
            return None;
        }
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len();
        let median = (sorted[(n - 1) / 2] + sorted[n / 2]) / 2.0;
        let outside = outside(n);
        let cut = outside.unwrap_or(0);
        Some(Self { median, low: sorted[cut], high: sorted[n - 1 - cut], sure: outside.is_some() })
    }

    /// Returns half the width of the interval.
    #[must_use]
    pub fn half_width(&self) -> f64 {
        (self.high - self.low) / 2.0
    }

    /// Returns half the width of the interval as a part of the median; infinite for a median of 0.
    #[must_use]
    pub fn relative(&self) -> f64 {
        let half = self.half_width();
        if half == 0.0 { 0.0 } else { half / self.median.abs() }
    }

    /// Tells whether this, in nanoseconds, is too uncertain to mean anything.
    #[must_use]
    pub fn is_noisy(&self) -> bool {
        !self.sure || (self.relative() > NOISY_RATIO && self.half_width() > NOISY_NS)
    }
}

/// How many of `n` sorted samples may be left out at each end, or `None` where even the outermost
/// two don't hold the median with 95 % confidence.
fn outside(n: usize) -> Option<usize> {
    // In logarithms: 0.5^n is below the smallest f64 from 1075 samples on.
    #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 rounds")]
    let f = |x: usize| x as f64;
    let mut ln_p = -f(n) * std::f64::consts::LN_2;
    let mut tail = 0.0;
    for k in 0..=n / 2 {
        tail += ln_p.exp();
        if 2.0 * tail > 1.0 - CONFIDENCE {
            return k.checked_sub(1);
        }
        ln_p += (f(n - k) / f(k + 1)).ln();
    }
    // Not reached: the tail up to the middle is at least a half.
    None
}

/// Returns the median of the ratios of `a` to `b`, round by round.
///
/// # Panics
///
/// When they don't have the same number of rounds.
#[must_use]
pub fn ratio(a: &[f64], b: &[f64]) -> Option<Interval> {
    pairwise(a, b, |a, b| a / b)
}

/// Returns the median of the differences of `a` and `b`, round by round.
///
/// # Panics
///
/// When they don't have the same number of rounds.
#[must_use]
pub fn difference(a: &[f64], b: &[f64]) -> Option<Interval> {
    pairwise(a, b, |a, b| a - b)
}

fn pairwise(a: &[f64], b: &[f64], f: impl Fn(f64, f64) -> f64) -> Option<Interval> {
    assert_eq!(a.len(), b.len(), "rounds come in pairs");
    let both: Vec<f64> = a.iter().zip(b).map(|(&a, &b)| f(a, b)).collect();
    Interval::of(&both)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shuffle::Shuffle;

    #[test]
    fn medians() {
        let median = |x: &[f64]| Interval::of(x).unwrap().median;
        assert_eq!(median(&[3.0]), 3.0);
        assert_eq!(median(&[3.0, 1.0]), 2.0);
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert!(Interval::of(&[]).is_none());
        assert!(Interval::of(&[1.0, f64::NAN]).is_none());
        assert!(ratio(&[1.0], &[0.0]).is_none());
    }

    #[test]
    fn ranks_are_those_of_the_tables() {
        // Sign test tables, 5 % two-sided: the samples left out at each end.
        let table = [(5, None), (6, Some(0)), (8, Some(0)), (9, Some(1)), (12, Some(2)), (20, Some(5))];
        for (n, expected) in table {
            assert_eq!(outside(n), expected, "n = {n}");
        }
        assert_eq!(outside(100), Some(39));
        // Where the normal distribution is as good: n/2 - 1.96 sqrt(n)/2.
        let (n, expected) = (10_000, 5_000 - 98);
        assert!(outside(n).unwrap().abs_diff(expected) <= 1);
    }

    #[test]
    fn few_rounds_are_never_sure() {
        let five = Interval::of(&[1.0, 1.0, 1.0, 1.0, 1.0]).unwrap();
        assert!(!five.sure && five.is_noisy());
        let six = Interval::of(&[1.0; 6]).unwrap();
        assert!(six.sure && !six.is_noisy());
    }

    #[test]
    fn noisy_needs_both() {
        let interval =
            |median, half| Interval { median, low: median - half, high: median + half, sure: true };
        assert!(interval(100.0, 6.0).is_noisy());
        assert!(!interval(100.0, 4.0).is_noisy());
        assert!(!interval(0.8, 0.1).is_noisy());
        assert!(interval(0.8, 0.2).is_noisy());
    }

    #[test]
    fn the_interval_holds_the_median_nineteen_times_in_twenty() {
        let mut random = Shuffle::new(7);
        let mut held = 0;
        for _ in 0..2000 {
            // Skewed, with outliers, as rounds are; the median of u² is a quarter.
            let samples: Vec<f64> = (0..25)
                .map(|_| {
                    let u = (random.next() >> 11) as f64 / (1u64 << 53) as f64;
                    u * u
                })
                .collect();
            let i = Interval::of(&samples).unwrap();
            held += u32::from(i.low <= 0.25 && 0.25 <= i.high);
        }
        assert!((1880..=1980).contains(&held), "{held} of 2000");
    }

    #[test]
    fn ratios_cancel_what_both_rounds_share() {
        let drift: Vec<f64> = (0..50).map(|i| 1.0 + f64::from(i)).collect();
        let a: Vec<f64> = drift.iter().map(|d| 3.0 * d).collect();
        assert_eq!(ratio(&a, &drift).unwrap(), Interval { median: 3.0, low: 3.0, high: 3.0, sure: true });
        let up: Vec<f64> = drift.iter().map(|d| d + 20.0).collect();
        assert_eq!(difference(&up, &drift).unwrap().median, 20.0);
    }
}
