//! What a slice says, and what two say of each other that ran side by side.

use serde::{Deserialize, Serialize};

use super::Interval;

/// Two slices ran at the same speed if the chains beside them differ by at most this part.
pub const SAME_SPEED: f64 = 0.03;

/// A slice: what one operation took, and how fast the processor was.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The nanoseconds of one operation.
    pub ns: f64,
    /// The nanoseconds of a [chain of known length](crate::instruments::chain::time), right before and right after.
    pub chain: [f64; 2],
}

impl Sample {
    /// A sample of which nobody knows how fast the processor was.
    #[must_use]
    pub fn of(ns: f64) -> Self {
        Self { ns, chain: [1.0; 2] }
    }

    fn chain(&self) -> f64 {
        f64::midpoint(self.chain[0], self.chain[1])
    }

    /// Tells whether the processor was equally fast during both, from before to after.
    #[must_use]
    pub fn is_as_fast_as(&self, other: &Self) -> bool {
        let all = [self.chain, other.chain].concat();
        let least = all.iter().copied().fold(f64::INFINITY, f64::min);
        all.iter().all(|&chain| chain <= least * (1.0 + SAME_SPEED))
    }

    /// What the operation would have taken where the chain takes `reference` nanoseconds.
    #[must_use]
    pub fn at(&self, reference: f64) -> f64 {
        self.ns * reference / self.chain()
    }
}

/// Returns how long the chain takes at the reference speed: what a tenth of the slices were at least as fast as. One that
/// happens to be the fastest is nothing to go by.
#[must_use]
pub fn reference<'a>(samples: impl IntoIterator<Item = &'a Sample>) -> f64 {
    let mut chains: Vec<f64> = samples.into_iter().map(Sample::chain).collect();
    chains.sort_by(f64::total_cmp);
    chains.get(chains.len() / 10).copied().unwrap_or(1.0)
}

/// Returns the range of speeds, without the twentieth at each end: how many times as long as at the reference speed the
/// same work took.
#[must_use]
pub fn range(samples: &[Sample], reference: f64) -> Option<[f64; 2]> {
    let mut all: Vec<f64> = samples.iter().map(|sample| sample.chain() / reference).collect();
    all.sort_by(f64::total_cmp);
    let cut = all.len() / 20;
    Some([*all.get(cut)?, *all.get(all.len() - 1 - cut)?])
}

/// Returns the ratios of slices that ran side by side, without those that the processor was not equally fast in.
#[must_use]
pub fn ratios(of: &[Sample], base: &[Sample]) -> Vec<f64> {
    pairs(of, base).map(|(of, base)| of.ns / base.ns).collect()
}

/// Returns the differences of slices that ran side by side, at the reference speed, without those that the processor was
/// not equally fast in.
#[must_use]
pub fn differences(of: &[Sample], base: &[Sample], reference: f64) -> Vec<f64> {
    pairs(of, base).map(|(of, base)| of.at(reference) - base.at(reference)).collect()
}

fn pairs<'a>(of: &'a [Sample], base: &'a [Sample]) -> impl Iterator<Item = (&'a Sample, &'a Sample)> {
    of.iter().zip(base).filter(|(of, base)| of.is_as_fast_as(base))
}

/// Returns the median at the reference speed.
#[must_use]
pub fn at_reference(samples: &[Sample], reference: f64) -> Option<Interval> {
    Interval::of(&samples.iter().map(|sample| sample.at(reference)).collect::<Vec<_>>())
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
        assert!(fast.is_as_fast_as(&fast) && slow.is_as_fast_as(&slow) && !fast.is_as_fast_as(&slow));
        // One that changed while it ran is as fast as none, not even itself.
        assert!(!between.is_as_fast_as(&between));
        let (of, base) = ([fast, slow, fast, between], [fast, slow, slow, between]);
        assert_eq!(ratios(&of, &base), [1.0, 1.0]);
        assert_eq!(differences(&of, &base, 100.0), [0.0, 0.0]);
        assert_eq!(ratios(&[sample(20.0, 100.0, 100.0)], &[fast]), [2.0]);
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
