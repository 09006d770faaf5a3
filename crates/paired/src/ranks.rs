//! Intervals from signed ranks, for pairs whose order was random.
//!
//! A sample is the difference of the logarithms of the times of a pair's two parts. A coin has decided which part of
//! each pair ran first. If the true difference is `shift`, each sample minus `shift` is as likely to be positive as to
//! be negative, whatever its size is, and whatever the machine did. So the number of pairs of such differences with a
//! positive sum has a known distribution: the distribution of Wilcoxon's signed-rank statistic. The interval ends at
//! the smallest and the largest `shift` for which this number is neither too small nor too large. Both ends are found
//! by bisection (Hodges and Lehmann, "Estimates of location based on rank tests", 1963). If the samples are normally
//! distributed, such an interval is a fifth narrower than the interval of a median.
//!
//! # Covariates
//!
//! A *covariate* is another measurement in the two parts of a pair, which tracing does not affect. An example is the
//! time of a fixed piece of work, which shows the processor's speed. The part of a sample that the covariate explains
//! is subtracted from the sample. This part is the covariate times a slope: the slope of a line through the origin that
//! is fitted to the data. For the true `shift`, the slope does not depend on the coins, because a coin inverts the
//! signs of both the sample and the covariate. So the distribution stays the same, and the interval is as often right
//! as without the covariate, whatever the covariate is. A covariate that is the same in all pairs, for example, can
//! explain a shift of any size. Then no shift is excluded, and the interval is marked as uncertain.

use crate::Interval;

/// The largest number of samples for which the distribution is computed exactly.
const EXACT: usize = 100;

/// The maximum number of doublings of the range in which an end of the interval is searched.
const DOUBLINGS: u32 = 20;

/// Returns the centre of the `samples`, with its interval. `covariate` has a value for each sample, or is empty.
/// Returns `None` if there is no sample, or if a value is not finite.
///
/// # Panics
///
/// Panics if there is a covariate with another number of values than samples.
pub fn interval(samples: &[f64], covariate: &[f64], confidence: f64) -> Option<Interval> {
    assert!(covariate.is_empty() || covariate.len() == samples.len(), "a sample has one covariate");
    if samples.is_empty() || samples.iter().chain(covariate).any(|x| !x.is_finite()) {
        return None;
    }
    let mut order: Vec<usize> = (0..samples.len()).collect();
    // The samples are sorted once for each shift. This is fast if they are already in order.
    order.sort_by(|one, other| samples[*one].total_cmp(&samples[*other]));
    let [samples, covariate] = [samples, covariate]
        .map(|all| order.iter().filter_map(|at| all.get(*at).copied()).collect::<Vec<f64>>());
    let n = samples.len();
    let [first, last] = [samples[0], samples[n - 1]];
    // The range is above 0 even if all samples are equal.
    let range = (last - first).max(1e-9);
    let (all, outside) = (n * (n + 1) / 2, outside(n, confidence));
    let sums = |shift: f64| positive(residuals(&samples, &covariate, shift));
    let beyond = |from: f64, step: f64, is_beyond: &dyn Fn(usize) -> bool| {
        let mut shifts = (0..=DOUBLINGS).map(|doublings| from + step * f64::from(1_u32 << doublings));
        shifts.find(|shift| is_beyond(sums(*shift)))
    };
    // Returns two shifts close to each other, between which the number of positive sums falls to `most`. Returns `None`
    // if the covariate explains a shift of any size.
    let edge = |most: usize| {
        let mut low = beyond(first, -range, &|sums| sums > most)?;
        let mut high = beyond(last, range, &|sums| sums <= most)?;
        for _ in 0..48 + DOUBLINGS {
            let middle = f64::midpoint(low, high);
            *if sums(middle) <= most { &mut high } else { &mut low } = middle;
        }
        Some([low, high])
    };
    let cut = outside.unwrap_or(0);
    let [lowest, highest] = [edge(all - cut - 1), edge(cut)];
    let is_bounded = lowest.is_some() && highest.is_some();
    // Each end of the interval is the outer one of the two shifts of its edge. So if an end is equal to a sample, such
    // as 0, the interval contains this sample.
    let low = lowest.map_or(first - range, |[low, _]| low);
    let high = highest.map_or(last + range, |[_, high]| high);
    let centre = edge(all / 2).zip(edge(all.div_ceil(2) - 1));
    let median = centre.map_or(f64::midpoint(low, high), |([_, one], [_, other])| f64::midpoint(one, other));
    Some(Interval { median, low, high, sure: outside.is_some() && is_bounded })
}

/// Subtracts `shift` from the samples, and then subtracts the part that the covariate explains.
fn residuals(samples: &[f64], covariate: &[f64], shift: f64) -> Vec<f64> {
    let mut left: Vec<f64> = samples.iter().map(|sample| sample - shift).collect();
    let slope = slope(&left, covariate);
    for (left, x) in left.iter_mut().zip(covariate) {
        // The line goes through one of the points. The residual of this point is 0, and rounding must not make it
        // positive or negative.
        *left = if *left / x == slope { 0.0 } else { *left - slope * x };
    }
    left
}

/// Returns the slope of the line through the origin from which the values have the least mean distance: the weighted
/// median of the slopes of the lines through each point. A few outliers among the values hardly change it.
fn slope(values: &[f64], covariate: &[f64]) -> f64 {
    let points = values.iter().zip(covariate).filter(|(_, x)| **x != 0.0);
    let mut slopes: Vec<[f64; 2]> = points.map(|(value, x)| [value / x, x.abs()]).collect();
    slopes.sort_by(|one, other| one[0].total_cmp(&other[0]));
    let mut left = slopes.iter().map(|[_, weight]| weight).sum::<f64>() / 2.0;
    let middle = slopes.iter().find(|[_, weight]| {
        left -= weight;
        left <= 0.0
    });
    middle.map_or(0.0, |[slope, _]| *slope)
}

/// Returns the number of pairs of values whose sum is positive. Each value also makes a pair with itself.
fn positive(mut values: Vec<f64>) -> usize {
    values.sort_by(f64::total_cmp);
    let mut partner = 0;
    let counts = values.iter().enumerate().rev().map(|(at, value)| {
        // The smaller a value is, the larger its partner has to be for a positive sum.
        while partner <= at && values[partner] + value <= 0.0 {
            partner += 1;
        }
        (at + 1).saturating_sub(partner)
    });
    counts.sum()
}

/// Returns `k`: a shift is outside of the interval if at most `k` sums of pairs of samples are positive, or if at most
/// `k` sums are not positive. `k` is the largest number for which, at the true shift, both numbers of sums are above
/// `k` with a probability of at least `confidence`. Returns `None` if there are too few samples for this confidence.
fn outside(n: usize, confidence: f64) -> Option<usize> {
    let tail = (1.0 - confidence) / 2.0;
    if n > EXACT {
        // The normal distribution has longer tails than the exact distribution, so this interval is not too narrow.
        let n = n as f64;
        let deviation = (n * (n + 1.0) * (2.0 * n + 1.0) / 24.0).sqrt();
        return Some((n * (n + 1.0) / 4.0 - quantile(tail) * deviation - 0.5).max(0.0) as usize);
    }
    // The probability of each number of positive sums: a positive sample of rank r adds r to the number, a negative
    // sample nothing.
    let mut probabilities = vec![0.0; n * (n + 1) / 2 + 1];
    probabilities[0] = 1.0;
    for rank in 1..=n {
        for at in (0..probabilities.len()).rev() {
            let without = if at >= rank { probabilities[at - rank] } else { 0.0 };
            probabilities[at] = (probabilities[at] + without) / 2.0;
        }
    }
    let mut sum = 0.0;
    probabilities
        .iter()
        .take_while(|probability| {
            sum += **probability;
            sum <= tail
        })
        .count()
        .checked_sub(1)
}

/// Returns the distance above the mean, in standard deviations, that a normally distributed value exceeds with the
/// probability `tail` (Abramowitz and Stegun, "Handbook of Mathematical Functions", 26.2.23; the error is less than
/// 0.00045).
fn quantile(tail: f64) -> f64 {
    let t = (-2.0 * tail.ln()).sqrt();
    let above = 2.515_517 + t * (0.802_853 + t * 0.010_328);
    t - above / (1.0 + t * (1.432_788 + t * (0.189_269 + t * 0.001_308)))
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;

    use super::*;

    #[test]
    fn bounds_are_those_of_the_tables() {
        // From tables of the two-sided signed-rank test: the largest value of the statistic that is outside of the
        // interval.
        let of = |confidence, all: [usize; 4]| all.map(|n| outside(n, confidence));
        assert_eq!(of(0.95, [5, 6, 10, 20]), [None, Some(0), Some(8), Some(52)]);
        assert_eq!(of(0.99, [7, 8, 10, 25]), [None, Some(0), Some(3), Some(68)]);
        // The approximation for large `n` continues the exact numbers for small `n`.
        let [exact, next] = [EXACT, EXACT + 1].map(|n| outside(n, 0.99).unwrap());
        assert!((exact..exact + EXACT).contains(&next), "{exact} {next}");
        for (tail, z) in [(0.025, 1.959_964), (0.005, 2.575_829), (0.0005, 3.290_527)] {
            assert!((quantile(tail) - z).abs() < 5e-4);
        }
    }

    #[test]
    fn bounds_are_means_of_two_samples() {
        let mut random = Rng::with_seed(1);
        for n in [1, 2, 9, 10, 41] {
            let samples: Vec<f64> = (0..n).map(|_| random.f64() - 0.3).collect();
            let mut means: Vec<f64> = (0..n)
                .flat_map(|i| (0..=i).map(move |j| (i, j)))
                .map(|(i, j)| f64::midpoint(samples[i], samples[j]))
                .collect();
            means.sort_by(f64::total_cmp);
            let found = interval(&samples, &[], 0.99).unwrap();
            let cut = outside(n, 0.99).unwrap_or(0);
            let expected = [
                means[cut],
                (means[(means.len() - 1) / 2] + means[means.len() / 2]) / 2.0,
                means[means.len() - 1 - cut],
            ];
            for (found, expected) in [found.low, found.median, found.high].into_iter().zip(expected) {
                assert!((found - expected).abs() < 1e-12, "{n}: {found} {expected}");
            }
            assert_eq!(found.sure, n >= 9);
        }
        assert_eq!(interval(&[], &[], 0.99), None);
        assert_eq!(interval(&[f64::NAN], &[], 0.99), None);
        assert_eq!(interval(&[0.0], &[f64::INFINITY], 0.99), None);
    }

    /// Simulates comparisons of a service on a machine whose speed varies. A covariate shows the speed with a random
    /// error. Returns how many of the 300 intervals do not contain the true difference, and the intervals' mean width.
    fn judge(explains: f64, uses: bool) -> (u32, f64) {
        let mut random = Rng::with_seed(7);
        let mut normal = move || (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
        let (mut missed, mut width) = (0, 0.0);
        for run in 0..300 {
            let (mut samples, mut covariate) = (Vec::new(), Vec::new());
            for _ in 0..50 {
                // The difference of the machine's speed between the two runs of the pair. The random order of the runs
                // (`coin`) decides its sign.
                let speed = 0.03 * normal() * if normal() > 1.5 { 5.0 } else { 1.0 };
                let coin = if normal() > 0.0 { 1.0 } else { -1.0 };
                let drift = 0.01;
                samples.push(1.03_f64.ln() + coin * (drift + explains * speed + 0.01 * normal()));
                covariate.push(coin * (speed + 0.003 * normal()));
            }
            // In a third of the simulations, one value of the covariate is far too large.
            covariate[0] *= if run % 3 == 0 { 50.0 } else { 1.0 };
            let found = interval(&samples, if uses { &covariate } else { &[] }, 0.95).unwrap();
            missed += u32::from(!(found.low..=found.high).contains(&1.03_f64.ln()));
            width += (found.high - found.low) / 300.0;
        }
        (missed, width)
    }

    #[test]
    fn a_covariate_narrows_the_interval_and_never_makes_it_wrong() {
        for explains in [1.0, 0.4, 0.0] {
            let [(missed, width), (missed_without, without)] =
                [true, false].map(|uses| judge(explains, uses));
            println!(
                "explains {explains}: {missed} miss, width {width}; without {missed_without}, {without}"
            );
            // 5 % of the 300 intervals are expected to miss the true difference. The probability that more than 28 miss
            // it is one in a thousand.
            assert!(missed <= 28 && missed_without <= 28, "{explains}: {missed} {missed_without}");
            assert!(
                width < without * if explains == 1.0 { 0.6 } else { 1.05 },
                "{explains}: {width} {without}"
            );
        }
    }

    #[test]
    fn a_covariate_that_explains_any_shift_leaves_nothing_sure() {
        let samples: Vec<f64> = (0..12).map(|at| 0.1 + 0.001 * f64::from(at % 5)).collect();
        let found = interval(&samples, &[0.1; 12], 0.95).unwrap();
        assert!(!found.sure, "{found:?}");
        let found = interval(&samples, &[0.1, -0.1].repeat(6), 0.95).unwrap();
        assert!(found.sure && found.low < 0.1015 && found.high > 0.1015, "{found:?}");
        // With nine points, the fitted line always goes through one of them. So one residual is 0 for each shift, and
        // no shift is excluded.
        let nine: Vec<f64> = (0..9).map(|at| 0.05 + 0.0001 * f64::from(at)).collect();
        let speeds = [0.003, -0.002, 0.001, -0.004, 0.002, -0.001, 0.0035, -0.003, 0.001];
        for factor in [1.0, 1.1, 1.23, 3.0, 7.7] {
            let speeds = speeds.map(|speed| factor * speed);
            assert!(!interval(&nine, &speeds, 0.994).unwrap().sure, "{factor}");
        }
        assert!(interval(&nine, &[], 0.994).unwrap().sure);
    }

    #[test]
    fn an_end_that_is_a_sample_is_in_the_interval() {
        let samples = [vec![0.0; 17], vec![0.01, 0.02, 0.02]].concat();
        for sign in [1.0, -1.0] {
            let samples: Vec<f64> = samples.iter().map(|sample| sign * sample).collect();
            let found = interval(&samples, &[], 0.994).unwrap();
            let end = sign * if sign > 0.0 { found.low } else { found.high };
            assert!(end <= 0.0 && end > -1e-9 && found.sure, "{found:?}");
        }
        let found = interval(&[0.0; 12], &[], 0.994).unwrap();
        assert!(
            found.sure && found.low <= 0.0 && found.high >= 0.0 && found.half_width() < 1e-9,
            "{found:?}"
        );
    }

    #[test]
    fn a_slope_is_that_of_most_points() {
        assert_eq!(slope(&[1.0, 2.0, 3.0], &[]), 0.0);
        assert_eq!(slope(&[2.0, -4.0, 6.0, 100.0, 9.0], &[1.0, -2.0, 3.0, 1.0, 0.0]), 2.0);
        assert_eq!(slope(&[5.0], &[0.0]), 0.0);
    }
}
