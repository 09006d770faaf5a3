//! The sample that a *slice* (a short period of measuring) gives, and comparisons of slices that ran side by side.

use serde::{Deserialize, Serialize};

use crate::{CONFIDENCE, Interval};

/// Two slices count as run at the same speed if the durations of the chains beside them differ by at most this
/// fraction. (A *chain* is work of a known length, whose duration shows the processor's speed.)
pub const SAME_SPEED: f64 = 0.03;

/// The sample of a slice: the time of one operation, and the speed of the processor.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The time of one operation, in nanoseconds.
    pub ns: f64,
    /// The times of a chain, which is work of a known length, directly before and directly after the slice, in
    /// nanoseconds. Both are 0 for an operation that only waits, because its time does not depend on the processor's
    /// speed.
    pub chain: [f64; 2],
}

impl Sample {
    /// Makes a sample with no information about the processor's speed.
    pub fn of(ns: f64) -> Self {
        Self { ns, chain: [1.0; 2] }
    }

    /// Makes a sample of a time that does not depend on the processor's speed.
    pub fn of_wait(ns: f64) -> Self {
        Self { ns, chain: [0.0; 2] }
    }

    fn is_of_wait(&self) -> bool {
        self.chain == [0.0; 2]
    }

    fn chain(&self) -> f64 {
        f64::midpoint(self.chain[0], self.chain[1])
    }

    /// Converts the time of the operation to the speed at which the chain takes `reference` nanoseconds. The time of an
    /// operation that only waits stays the same.
    pub fn at(&self, reference: f64) -> f64 {
        if self.is_of_wait() { self.ns } else { self.ns * reference / self.chain() }
    }

    fn scaled_to(&self, reference: f64) -> Self {
        Self { ns: self.at(reference), chain: [reference; 2] }
    }
}

/// Returns whether the processor had the same speed before and after all of these slices.
pub fn equally_fast(all: &[Sample]) -> bool {
    let chains = || all.iter().flat_map(|sample| sample.chain);
    let least = chains().fold(f64::INFINITY, f64::min);
    chains().all(|chain| chain <= least * (1.0 + SAME_SPEED))
}

/// Returns the duration of the chain at the *reference speed*, the speed to which times are converted: the first decile
/// of the durations of the chain in all slices. (Their minimum would depend on a single slice.)
pub fn reference<'a>(samples: impl IntoIterator<Item = &'a Sample>) -> f64 {
    let measured = samples.into_iter().filter(|sample| !sample.is_of_wait());
    let mut chains: Vec<f64> = measured.map(Sample::chain).collect();
    chains.sort_by(f64::total_cmp);
    chains.get(chains.len() / 10).copied().unwrap_or(1.0)
}

/// Returns the range of speeds, as factors of slowdown relative to the reference speed, without the extreme 5 %
/// at each end.
pub fn range(samples: &[Sample], reference: f64) -> Option<[f64; 2]> {
    let measured = samples.iter().filter(|sample| !sample.is_of_wait());
    let mut all: Vec<f64> = measured.map(|sample| sample.chain() / reference).collect();
    all.sort_by(f64::total_cmp);
    let cut = all.len() / 20;
    Some([*all.get(cut)?, *all.get(all.len() - 1 - cut)?])
}

/// Returns the ratio of the times of the slices `of` to the times of the slices `base`, which ran side by side with
/// them. If fewer than six pairs of slices ran at the same speed, all pairs are compared, and the interval is marked as
/// uncertain ([`Interval::sure`] is false).
pub fn ratio(of: &[Sample], base: &[Sample]) -> Option<Interval> {
    ratio_at(of, base, CONFIDENCE)
}

/// Does the same as [`ratio`], with another confidence than 95 %. A higher confidence requires more pairs.
pub fn ratio_at(of: &[Sample], base: &[Sample], confidence: f64) -> Option<Interval> {
    compare_pairs(of, base, 1.0, confidence, |[of, base]| of.ns / base.ns)
}

/// Returns the difference between the times of slices that ran side by side, at the reference speed, in nanoseconds. If
/// fewer than six pairs ran at the same speed, all pairs are compared, and the interval is marked as uncertain
/// ([`Interval::sure`] is false).
///
/// Some disturbances lengthen an operation in proportion to its duration: another processor takes cache lines away, or
/// the caches are cold at the beginning of each slice. Such disturbances slow the longer operation by more nanoseconds
/// than the shorter one, so they increase the difference, and the pairing does not cancel this. They slow the base,
/// too: the ratio of the base's first decile (its undisturbed time) to its median shows by how much. So the interval is
/// extended towards zero by this ratio.
pub fn difference(of: &[Sample], base: &[Sample], reference: f64) -> Option<Interval> {
    let found =
        compare_pairs(of, base, reference, CONFIDENCE, |[of, base]| of.at(reference) - base.at(reference))?;
    let mut times: Vec<f64> = base.iter().map(|sample| sample.at(reference)).collect();
    times.sort_by(f64::total_cmp);
    let part = times[times.len() / 10] / times[times.len() / 2];
    // If the ratio of the decile to the median is not a number (0 / 0), the interval is not extended.
    let part = if part.is_finite() { part } else { 1.0 };
    Some(Interval { low: found.low.min(found.low * part), high: found.high.max(found.high * part), ..found })
}

/// Returns the ratio (`of` − `base`) / `unit` of the times of slices that ran side by side. If fewer than six triples
/// ran at the same speed, all triples are compared, and the interval is marked as uncertain ([`Interval::sure`] is
/// false).
pub fn excess(of: &[Sample], base: &[Sample], unit: &[Sample]) -> Option<Interval> {
    let all: Vec<_> = of.iter().zip(base).zip(unit).map(|((of, base), unit)| [*of, *base, *unit]).collect();
    let f = |[of, base, unit]: [Sample; 3]| (of.ns - base.ns) / unit.ns;
    compare(&[all], 1.0, f, |clusters| Interval::of(&clusters[0]))
}

fn compare_pairs(
    of: &[Sample],
    base: &[Sample],
    reference: f64,
    confidence: f64,
    f: impl Fn([Sample; 2]) -> f64,
) -> Option<Interval> {
    let pairs: Vec<_> = of.iter().zip(base).map(|(of, base)| [*of, *base]).collect();
    compare(&[pairs], reference, f, |clusters| Interval::at(&clusters[0], confidence))
}

/// Returns the interval of the results of `f` for the times of slices that ran side by side at the same speed. If there
/// are too few such slices, all slices are used, with times that are converted to the reference speed, and the interval
/// is marked as uncertain ([`Interval::sure`] is false).
pub fn compare<const N: usize>(
    clusters: &[Vec<[Sample; N]>],
    reference: f64,
    f: impl Fn([Sample; N]) -> f64,
    interval: impl Fn(&[Vec<f64>]) -> Option<Interval>,
) -> Option<Interval> {
    let of = |f: &dyn Fn(&[Sample; N]) -> Option<f64>| {
        let each = clusters.iter().map(|cluster| cluster.iter().filter_map(f).collect());
        interval(&each.collect::<Vec<Vec<f64>>>())
    };
    of(&|slices| equally_fast(slices).then(|| f(*slices))).filter(|interval| interval.sure).or_else(|| {
        let all = of(&|slices| Some(f(slices.map(|slice| slice.scaled_to(reference)))));
        all.map(|interval| Interval { sure: false, ..interval })
    })
}

/// Returns the median of the times, with its interval. The times are converted to the reference speed, unless
/// [`in_range`] finds that they can't depend on the processor's speed.
pub fn at_reference(samples: &[Sample], reference: f64) -> Option<Interval> {
    in_range(samples, |convert| {
        Interval::of(&samples.iter().map(|sample| convert(sample, reference)).collect::<Vec<_>>())
    })
}

/// Returns the interval that `median` computes from times that are converted to the reference speed. If the median of
/// this interval is outside the range of the measured times, the time of the operation can't depend on the processor's
/// speed. The interval is then computed from the measured times instead.
pub fn in_range(
    samples: &[Sample],
    median: impl Fn(fn(&Sample, f64) -> f64) -> Option<Interval>,
) -> Option<Interval> {
    let all = || samples.iter().map(|sample| sample.ns);
    let range = all().fold(f64::INFINITY, f64::min)..=all().fold(f64::NEG_INFINITY, f64::max);
    let converted = median(|sample, reference| sample.at(reference));
    converted.filter(|it| range.contains(&it.median)).or_else(|| median(|sample, _| sample.ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(ns: f64, before: f64, after: f64) -> Sample {
        Sample { ns, chain: [before, after] }
    }

    #[test]
    fn slices_are_compared_that_ran_equally_fast() {
        let (fast, slow) = (sample(10.0, 100.0, 101.0), sample(34.0, 170.0, 171.0));
        let between = sample(15.0, 100.0, 170.0);
        assert!(equally_fast(&[fast, fast]) && equally_fast(&[slow, slow]) && !equally_fast(&[fast, slow]));
        // A slice during which the speed changed does not have the same speed as any slice, not even as itself.
        assert!(!equally_fast(&[between]));
        let same = Interval::around(1.0, 0.0);
        let (of, base) = ([fast, slow, fast, between].repeat(3), [fast, slow, slow, between].repeat(3));
        assert_eq!(ratio(&of, &base), Some(same));
        let no_more = Interval::around(0.0, 0.0);
        assert_eq!(difference(&of, &base, 100.0), Some(no_more));
    }

    #[test]
    fn a_stretched_difference_holds_the_undisturbed_one() {
        // The slices of two thirds of the pairs take a third longer than the undisturbed ones.
        let slices = |ns: f64| {
            let stretch = |i| if i % 3 == 0 { 1.0 } else { 4.0 / 3.0 };
            (0..60).map(|i| sample(ns * stretch(i), 100.0, 100.0)).collect::<Vec<_>>()
        };
        let (of, base) = (slices(230.0), slices(100.0));
        let more = difference(&of, &base, 100.0).unwrap();
        assert!(more.sure && more.low <= 130.0 && more.low > 95.0 && more.high > 173.0, "{more:?}");
        let less = difference(&base, &of, 100.0).unwrap();
        assert!(less.high >= -130.0 && less.high < -95.0 && less.low < -173.0, "{less:?}");
        let same = difference(&of, &of, 100.0).unwrap();
        assert_eq!((same.low, same.high), (0.0, 0.0));
    }

    #[test]
    fn where_too_few_ran_equally_fast_all_are_compared_and_nothing_is_sure() {
        let (fast, slow) = (sample(20.0, 100.0, 100.0), sample(17.0, 170.0, 170.0));
        let few = ratio(&[fast; 9], &[slow; 9]).unwrap();
        assert!(!few.sure && (few.median - 2.0).abs() < 1e-9, "{few:?}");
        let more = difference(&[fast; 9], &[slow; 9], 100.0).unwrap();
        assert!(!more.sure && (more.median - 10.0).abs() < 1e-9, "{more:?}");
        assert!(!ratio(&[fast; 5], &[fast; 5]).unwrap().sure && ratio(&[fast; 6], &[fast; 6]).unwrap().sure);
        assert_eq!(ratio(&[], &[]), None);
    }

    #[test]
    fn a_wait_is_not_converted_and_no_median_is_outside_of_what_was_measured() {
        // The samples are of a request that waits for 5 ms, whatever the speed of the machine is.
        let mut all = vec![Sample::of_wait(5e6); 9];
        assert_eq!(at_reference(&all, 100.0), Some(Interval::around(5e6, 0.0)));
        assert!(equally_fast(&all) && ratio(&all, &all) == Some(Interval::around(1.0, 0.0)));
        assert_eq!((reference(&all), range(&all, 100.0)), (1.0, None));
        all.push(sample(1.0, 100.0, 100.0));
        assert_eq!((reference(&all), range(&all, 100.0)), (100.0, Some([1.0, 1.0])));
        // The times of these samples do not depend on the machine's speed, but the samples are not marked as waits.
        let all: Vec<Sample> = (0..9).map(|i| sample(5000.0 + f64::from(i), 170.0, 170.0)).collect();
        assert_eq!(at_reference(&all, 100.0).unwrap().median, 5004.0);
    }

    #[test]
    fn an_excess_is_in_units_of_the_same_speed() {
        let three = |of, base, unit| [of, base, unit].map(|ns| vec![sample(ns, 100.0, 100.0); 9]);
        let [of, base, mut unit] = three(50.0, 20.0, 10.0);
        assert_eq!(excess(&of, &base, &unit), Some(Interval::around(3.0, 0.0)));
        unit[0] = sample(1.0, 170.0, 170.0);
        assert_eq!(excess(&of, &base, &unit), Some(Interval::around(3.0, 0.0)));
        assert_eq!(excess(&of, &base, &[]), None);
    }

    #[test]
    fn times_are_those_at_the_reference_speed() {
        let mut all = vec![sample(170.0, 1700.0, 1700.0); 80];
        all.extend(vec![sample(100.0, 1000.0, 1000.0); 20]);
        all.push(sample(1.0, 10.0, 10.0));
        let reference = reference(&all);
        assert_eq!(reference, 1000.0);
        let interval = at_reference(&all, reference).unwrap();
        assert!((interval.low - 100.0).abs() < 1e-9 && (interval.high - 100.0).abs() < 1e-9, "{interval:?}");
        assert_eq!(range(&all, reference), Some([1.0, 1.7]));
        assert_eq!(range(&[], 1.0), None);
    }
}
