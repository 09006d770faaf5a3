//! Medians with their confidence intervals.
//!
//! No interval in this module assumes that the samples have a certain distribution. There are two kinds of intervals:
//!
//! - *Of independent samples* ([`Interval::of`]): the bounds are two of the sorted samples, by the binomial distribution
//!   (see the crate's documentation). This is the interval of the sign test.
//! - *Of clusters* ([`Interval::of_clusters`]): samples of one process resemble each other, so they are not
//!   independent, and an interval of the first kind would be far too narrow. So a bootstrap draws whole clusters. The
//!   interval is then widened by two factors, one of them from Student's distribution, because few clusters show too
//!   little of the variation.
//!
//! An interval of either kind is [*sure*](Interval::sure) only if there are enough samples or clusters for its
//! confidence. The intervals of two independent results are combined by their outer bounds ([`Interval::minus`],
//! [`Interval::over`]); the combined interval is wider than necessary.

use fastrand::Rng;

/// The confidence of an interval, unless a function has a parameter for the confidence.
pub const CONFIDENCE: f64 = 0.95;

/// A result is noisy if half of its interval exceeds this fraction of its median, and also exceeds
/// [`NOISY_NS`].
pub const NOISY_RATIO: f64 = 0.05;

/// A result from enough samples is not noisy if half of its interval is at most this many nanoseconds, however small
/// its median is.
pub const NOISY_NS: f64 = 0.15;

/// A median with its interval. The documentation of the function that makes the interval states the confidence, which
/// is usually 95 %.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// The central value: usually the median of the samples; from [`ranks`](crate::ranks), the median of the means of
    /// any two samples.
    pub median: f64,
    /// The lower bound of the interval.
    pub low: f64,
    /// The upper bound of the interval.
    pub high: f64,
    /// Whether the interval has the required confidence. Usually this needs enough samples (for 95 %, at least six).
    /// With fewer samples, the bounds that [`Interval::of`] returns are the smallest and the largest sample.
    pub sure: bool,
}

impl Interval {
    /// Makes an interval that extends by `half` to each side of the median.
    pub const fn around(median: f64, half: f64) -> Self {
        Self { median, low: median - half, high: median + half, sure: true }
    }

    /// Returns the median of `samples` with its interval, or `None` if there is no sample, or if a sample is not a
    /// finite number.
    pub fn of(samples: &[f64]) -> Option<Self> {
        Self::at(samples, CONFIDENCE)
    }

    /// Does the same as [`of`](Self::of), with another confidence than 95 %. A higher confidence requires
    /// more samples.
    pub fn at(samples: &[f64], confidence: f64) -> Option<Self> {
        if samples.is_empty() || samples.iter().any(|x| !x.is_finite()) {
            return None;
        }
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len();
        let median = (sorted[(n - 1) / 2] + sorted[n / 2]) / 2.0;
        let outside = outside(n, confidence);
        let cut = outside.unwrap_or(0);
        Some(Self { median, low: sorted[cut], high: sorted[n - 1 - cut], sure: outside.is_some() })
    }

    /// Returns the median, with its interval, of samples that come in clusters; for example, all samples that were
    /// measured in one process are a cluster. The interval is valid even if the samples of a cluster are more alike
    /// than samples of different clusters. Returns `None` if there is no sample, or if a sample is not a finite number.
    ///
    /// The interval comes from a bootstrap: it contains 95 % of the medians of random sets of clusters. Each set has as
    /// many clusters as the data, drawn with repetition. If there are few clusters, such an interval is too narrow
    /// (Cameron, Gelbach and Miller, "Bootstrap-based improvements for inference with clustered errors", 2008), so it
    /// is widened by two factors: the ratio of the quantiles of Student's distribution and the normal distribution, and
    /// the ratio of the true standard deviation to the standard deviation in a sample. Both factors use the effective
    /// number of clusters: the number of clusters of equal size that would give as much information. The interval is
    /// [`sure`](Self::sure) if there are at least six clusters, and their effective number is at least three. The
    /// random draws are the same in each run.
    pub fn of_clusters(clusters: &[Vec<f64>]) -> Option<Self> {
        let clusters: Vec<&[f64]> =
            clusters.iter().map(|all| &all[..]).filter(|all| !all.is_empty()).collect();
        let all = clusters.concat();
        if all.iter().any(|x| !x.is_finite()) {
            return None;
        }
        let median = middle(&mut all.clone())?;
        let mut random = Rng::with_seed(0xC105);
        let mut drawn = Vec::with_capacity(all.len());
        let mut draw = || {
            drawn.clear();
            for _ in 0..clusters.len() {
                drawn.extend_from_slice(clusters[random.usize(..clusters.len())]);
            }
            middle(&mut drawn)
        };
        let mut medians: Vec<f64> = (0..DRAWS).filter_map(|_| draw()).collect();
        medians.sort_by(f64::total_cmp);
        // A single cluster tells nothing about the differences between clusters, so its interval is not widened.
        let effective = effective(&clusters);
        let wider = widening(effective).unwrap_or(1.0);
        let tail = DRAWS / 40;
        let low = median - (median - medians[tail]) * wider;
        let high = median + (medians[DRAWS - 1 - tail] - median) * wider;
        Some(Self {
            median,
            low: low.min(median),
            high: high.max(median),
            sure: outside(clusters.len(), CONFIDENCE).is_some() && effective >= EFFECTIVE_MIN,
        })
    }

    /// Converts the interval to another unit. `f` must be increasing.
    pub fn map(self, f: impl Fn(f64) -> f64) -> Self {
        Self { median: f(self.median), low: f(self.low), high: f(self.high), ..self }
    }

    /// Returns `self` minus `other`, an independent interval. The lower bound is the lower bound of `self` minus the
    /// upper bound of `other`. The upper bound is the upper bound of `self` minus the lower bound of `other`.
    pub fn minus(&self, other: &Self) -> Self {
        let (median, sure) = (self.median - other.median, self.sure && other.sure);
        Self { median, low: self.low - other.high, high: self.high - other.low, sure }
    }

    /// Returns the ratio of this interval to an independent interval, with bounds combined as in
    /// [`minus`](Self::minus). Both intervals must be above zero.
    pub fn over(&self, other: &Self) -> Self {
        let (median, sure) = (self.median / other.median, self.sure && other.sure);
        Self { median, low: self.low / other.high, high: self.high / other.low, sure }
    }

    /// Returns half the width of the interval.
    pub fn half_width(&self) -> f64 {
        (self.high - self.low) / 2.0
    }

    /// Returns half the width of the interval, divided by the median. The result is 0 if the width is 0; otherwise it
    /// is infinite if the median is 0.
    pub fn relative(&self) -> f64 {
        let half = self.half_width();
        if half == 0.0 { 0.0 } else { half / self.median.abs() }
    }

    /// Returns whether the interval, in nanoseconds, is too wide for a useful result, or is not
    /// [`sure`](Interval::sure).
    pub fn is_noisy(&self) -> bool {
        !self.sure || (self.relative() > NOISY_RATIO && self.half_width() > NOISY_NS)
    }
}

/// The least effective number of clusters for a sure interval. With fewer clusters, the series in [`widening`] is too
/// far from Student's distribution.
const EFFECTIVE_MIN: f64 = 3.0;

/// The number of draws of a bootstrap.
const DRAWS: usize = 1000;

/// Returns the median without sorting all samples, or `None` if there is no sample.
fn middle(samples: &mut [f64]) -> Option<f64> {
    let n = samples.len();
    if n == 0 {
        return None;
    }
    let (below, &mut upper, _) = samples.select_nth_unstable_by(n / 2, f64::total_cmp);
    if n % 2 == 1 {
        return Some(upper);
    }
    let lower = below.iter().copied().max_by(f64::total_cmp)?;
    Some((lower + upper) / 2.0)
}

/// Returns the effective number of clusters: the number of clusters of equal size that would give as much information
/// as `clusters`.
fn effective(clusters: &[&[f64]]) -> f64 {
    let sizes = clusters.iter().map(|all| all.len() as f64);
    sizes.clone().sum::<f64>().powi(2) / sizes.map(|size| size * size).sum::<f64>()
}

/// Returns the factor by which the interval of a bootstrap is widened, or `None` for fewer than two effective clusters.
fn widening(clusters: f64) -> Option<f64> {
    let freedom = Some(clusters - 1.0).filter(|&n| n >= 1.0)?;
    // The 97.5 % quantiles of the normal distribution and of Student's distribution. Student's quantile is computed by
    // the series of Cornish and Fisher.
    let z = 1.959_964_f64;
    let [z3, z5, z7] = [3, 5, 7].map(|power| z.powi(power));
    let student = z
        + (z3 + z) / (4.0 * freedom)
        + (5.0 * z5 + 16.0 * z3 + 3.0 * z) / (96.0 * freedom.powi(2))
        + (3.0 * z7 + 19.0 * z5 + 17.0 * z3 - 15.0 * z) / (384.0 * freedom.powi(3));
    Some(student / z * ((freedom + 1.0) / freedom).sqrt())
}

/// Returns how many of `n` sorted samples are outside the interval at each end, or `None` if even the interval between
/// the outermost samples does not contain the true median with this confidence.
fn outside(n: usize, confidence: f64) -> Option<usize> {
    // Computes with logarithms, because 0.5^n is below the smallest f64 for 1075 samples and more.
    let f = |x: usize| x as f64;
    let mut ln_p = -f(n) * std::f64::consts::LN_2;
    let mut tail = 0.0;
    for k in 0..=n / 2 {
        tail += ln_p.exp();
        if 2.0 * tail > 1.0 - confidence {
            return k.checked_sub(1);
        }
        ln_p += (f(n - k) / f(k + 1)).ln();
    }
    // Unreachable: the tail up to the middle is at least a half.
    None
}

/// Returns the median of the ratios of `a` to `b`, one ratio for each round.
///
/// # Panics
///
/// Panics if `a` and `b` have different numbers of rounds.
pub fn ratio(a: &[f64], b: &[f64]) -> Option<Interval> {
    assert_eq!(a.len(), b.len(), "rounds come in pairs");
    Interval::of(&a.iter().zip(b).map(|(a, b)| a / b).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

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
        // From tables of the two-sided sign test at 5 %: the number of samples that are outside of the interval at each
        // end.
        let table = [(5, None), (6, Some(0)), (8, Some(0)), (9, Some(1)), (12, Some(2)), (20, Some(5))];
        for (n, expected) in table {
            assert_eq!(outside(n, CONFIDENCE), expected, "n = {n}");
        }
        assert_eq!(outside(100, CONFIDENCE), Some(39));
        // From tables of the two-sided sign test at 1 %.
        assert_eq!([7, 8, 20, 100].map(|n| outside(n, 0.99)), [None, Some(0), Some(3), Some(36)]);
        // For large n, the normal approximation holds: n/2 - 1.96 sqrt(n)/2.
        let (n, expected) = (10_000, 5_000 - 98);
        assert!(outside(n, CONFIDENCE).unwrap().abs_diff(expected) <= 1);
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
        let interval = Interval::around;
        assert!(interval(100.0, 6.0).is_noisy());
        assert!(!interval(100.0, 4.0).is_noisy());
        assert!(!interval(0.8, 0.1).is_noisy());
        assert!(interval(0.8, 0.2).is_noisy());
    }

    #[test]
    fn the_interval_holds_the_median_nineteen_times_in_twenty() {
        let mut random = Rng::with_seed(7);
        let mut held = 0;
        for _ in 0..2000 {
            // Draws skewed samples, as the times of rounds are skewed. The median of u² is a quarter.
            let samples: Vec<f64> = (0..25)
                .map(|_| {
                    let u = random.f64();
                    u * u
                })
                .collect();
            let i = Interval::of(&samples).unwrap();
            held += u32::from(i.low <= 0.25 && 0.25 <= i.high);
        }
        assert!((1880..=1980).contains(&held), "{held} of 2000");
    }

    #[test]
    fn medians_of_clusters_are_in_the_middle() {
        for (samples, expected) in [
            (&mut [4.0][..], 4.0),
            (&mut [9.0, 1.0], 5.0),
            (&mut [5.0, 1.0, 9.0, 2.0, 4.0], 4.0),
            (&mut [9.0, 1.0, 4.0, 2.0], 3.0),
            (&mut [7.0, 9.0, 1.0, 20.0, 2.0, 4.0, 8.0], 7.0),
        ] {
            assert_eq!(middle(samples), Some(expected));
        }
        assert_eq!(middle(&mut []), None);
    }

    #[test]
    fn students_distribution_is_that_of_the_tables() {
        for (n, t) in [(6.0_f64, 2.571), (10.0, 2.262), (25.0, 2.064)] {
            let wider = widening(n).unwrap();
            assert!((wider * 1.96 / (n / (n - 1.0)).sqrt() - t).abs() < 0.01, "{n}: {wider}");
        }
        // For two degrees of freedom, the terms of the series that `widening` uses give 4.171, and the exact value is
        // 4.303.
        let few = widening(3.0).unwrap() * 1.959_964 / 1.5_f64.sqrt();
        assert!((few - 4.171).abs() < 0.005, "{few}");
        assert_eq!(widening(1.0), None);
        assert_eq!(effective(&[&[0.0; 4], &[0.0; 4]]), 2.0);
        assert_eq!(effective(&[&[0.0; 9], &[0.0]]), 100.0 / 82.0);
    }

    #[test]
    fn the_interval_of_clusters_holds_the_median_though_samples_of_one_are_alike() {
        let mut random = Rng::with_seed(11);
        let mut unit = move || random.f64() - 0.5;
        let (mut held, mut naively) = (0, 0);
        for _ in 0..300 {
            let cluster = |_| {
                let own = unit();
                (0..8 + (own.abs() * 16.0) as usize).map(|_| own + unit()).collect::<Vec<f64>>()
            };
            let clusters: Vec<Vec<f64>> = (0..20).map(cluster).collect();
            let holds = |i: Interval| u32::from(i.low <= 0.0 && 0.0 <= i.high);
            held += holds(Interval::of_clusters(&clusters).unwrap());
            naively += holds(Interval::of(&clusters.concat()).unwrap());
        }
        assert!((276..=297).contains(&held), "{held} of 300");
        // An interval that ignores the clusters is too narrow.
        assert!(naively < 220, "{naively} of 300");
    }

    #[test]
    fn the_interval_of_clusters_is_widened_to_both_sides() {
        // If two clusters are drawn from two with replacement, a quarter of the draws has the lower cluster twice, and
        // a quarter the upper cluster twice. This is far more than the one in forty that may be outside at each end.
        let interval = Interval::of_clusters(&[vec![1.0], vec![3.0]]).unwrap();
        let wider = widening(2.0).unwrap();
        assert!(wider > 2.0);
        assert_eq!((interval.median, interval.low, interval.high), (2.0, 2.0 - wider, 2.0 + wider));
    }

    /// Tests six clusters, one of which has nearly all samples. They count as little more than one cluster: the true
    /// value is often outside of the interval, so the interval must not be called sure.
    #[test]
    fn few_effective_clusters_are_not_sure() {
        let mut random = Rng::with_seed(7);
        let mut normal = move || (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
        let mut of_sizes = |sizes: [usize; 6]| {
            let (mut sure, mut held) = (0, 0);
            for _ in 0..200 {
                let cluster = |size| {
                    let centre = normal();
                    (0..size).map(|_| centre + 0.1 * normal()).collect()
                };
                let found = Interval::of_clusters(&sizes.map(cluster)).unwrap();
                sure += u32::from(found.sure);
                held += u32::from(found.sure && found.low <= 0.0 && found.high >= 0.0);
            }
            (sure, held)
        };
        assert_eq!(of_sizes([100, 1, 1, 1, 1, 1]).0, 0);
        for sizes in [[20; 6], [40, 20, 20, 20, 10, 10], [60, 40, 10, 10, 10, 10]] {
            let (sure, held) = of_sizes(sizes);
            assert!(sure == 200 && held >= 180, "{sizes:?}: {held} of {sure}");
        }
    }

    #[test]
    fn clusters_without_samples_say_nothing() {
        let clusters = vec![vec![1.0], vec![], vec![3.0, 2.0]];
        assert_eq!(Interval::of_clusters(&clusters), Interval::of_clusters(&[vec![1.0], vec![3.0, 2.0]]));
        assert_eq!(Interval::of_clusters(&clusters).unwrap().median, 2.0);
        assert!(!Interval::of_clusters(&clusters).unwrap().sure);
        assert_eq!(Interval::of_clusters(&[vec![]]), None);
        assert_eq!(Interval::of_clusters(&[vec![1.0, f64::NAN]]), None);
    }

    #[test]
    fn ratios_cancel_what_both_rounds_share() {
        let drift: Vec<f64> = (0..50).map(|i| 1.0 + f64::from(i)).collect();
        let a: Vec<f64> = drift.iter().map(|d| 3.0 * d).collect();
        assert_eq!(ratio(&a, &drift).unwrap(), Interval { median: 3.0, low: 3.0, high: 3.0, sure: true });
    }
}
