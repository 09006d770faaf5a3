//! Runs rounds of slices (short measurements, each of one case) until the comparisons of the cases are decided.
//!
//! Each round measures every case once, in a random order. A comparison is settled when the promise about it is
//! decided. A comparison without a promise is settled when its ratio or difference is precise enough. A case is no
//! longer measured once all comparisons with the case are settled, so that the time is used for the other comparisons.
//! A case that is compared with no other case is measured until its time is no longer noisy.
//!
//! [`Config`] limits the duration and the number of rounds, and sets the required precision.

use std::time::Duration;

use fastrand::Rng;

use crate::harness::args::Args;
use crate::promise::Verdict;
use crate::stats::CONFIDENCE;
use crate::stats::sample::{self, Sample};

/// The confidence with which a promise must be decided before the rounds of its comparison may end early. The interval
/// of the ratio is computed up to 25 times during the rounds. If the rounds ended as soon as a 95 % interval excludes
/// the promised limit, one in six of the final intervals would be wrong for a ratio that is exactly at the limit.
const DECIDED: f64 = 0.998;

/// The reason why the rounds ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// Every comparison is settled: its promise is decided, or it is precise enough.
    Tight,
    /// The maximum number of rounds was reached before all comparisons were settled.
    Rounds,
    /// The time was used up before all comparisons were settled.
    Budget,
    /// The bench runs as a test, and nothing was measured.
    Once,
}

/// A comparison of two cases, which are named by their indices, and the promised maximum of the ratio of their times,
/// if there is a promise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Comparison {
    pub(crate) of: usize,
    pub(crate) base: usize,
    pub(crate) at_most: Option<f64>,
}

impl Comparison {
    /// Returns whether the comparison needs no more rounds, because its promise is decided or because it is precise
    /// enough.
    fn is_settled(&self, samples: &[Vec<Sample>], config: &Config) -> bool {
        let (of, base) = (&samples[self.of], &samples[self.base]);
        let ratio = |confidence| sample::ratio_at(of, base, confidence).filter(|ratio| ratio.sure);
        match self.at_most {
            Some(limit) => {
                ratio(DECIDED).is_some_and(|ratio| Verdict::at_most(limit, ratio) != Verdict::Open)
            }
            None => {
                let reference = sample::reference(of.iter().chain(base));
                let difference = sample::difference(of, base, reference);
                ratio(CONFIDENCE).is_some_and(|ratio| ratio.relative() <= config.tight)
                    || difference.is_some_and(|ns| ns.sure && ns.half_width() <= config.tight_ns)
            }
        }
    }
}

/// Runs rounds of `cases` cases. `slice(case)` measures the case with this index once; `elapsed()` returns the time
/// since calibration began. Returns the samples of each case, and the reason why the rounds ended.
pub(crate) fn run(
    config: &Config,
    cases: usize,
    comparisons: &[Comparison],
    mut slice: impl FnMut(usize) -> Sample,
    elapsed: impl Fn() -> Duration,
) -> (Vec<Vec<Sample>>, Stopped) {
    let mut samples = vec![Vec::with_capacity(config.max_rounds); cases];
    let mut open = comparisons.to_vec();
    let mut active: Vec<usize> = (0..cases).collect();
    let mut random = Rng::with_seed(config.seed);
    let mut next_check = config.min_rounds;
    for rounds in 1.. {
        random.shuffle(&mut active);
        for &case in &active {
            samples[case].push(slice(case));
        }
        if config.once {
            return (samples, Stopped::Once);
        }
        if rounds < next_check {
            continue;
        }
        next_check = (rounds + rounds.div_ceil(8)).min(config.max_rounds);
        open.retain(|comparison| !comparison.is_settled(&samples, config));
        let is_in = |all: &[Comparison], case| all.iter().any(|of| [of.of, of.base].contains(&case));
        active.retain(|&case| is_in(&open, case) || !is_in(comparisons, case) && is_noisy(&samples[case]));
        if active.is_empty() {
            return (samples, Stopped::Tight);
        }
        if rounds >= config.max_rounds {
            return (samples, Stopped::Rounds);
        }
        if elapsed() > config.budget {
            return (samples, Stopped::Budget);
        }
    }
    unreachable!("the rounds end by themselves")
}

/// Returns whether the median time of a case is still too uncertain. Only a case that is not compared with another case
/// gets further rounds for this reason.
fn is_noisy(samples: &[Sample]) -> bool {
    sample::at_reference(samples, sample::reference(samples)).is_none_or(|ns| ns.is_noisy())
}

/// The configuration of rounds: their duration, their number and the required precision.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The duration of a slice (a measurement of one case). If one operation of a case takes longer, its slice is a
    /// single operation.
    pub slice: Duration,
    /// The duration of the untimed warm-up before each measurement, which brings code and data into the caches. Zero
    /// means no warm-up. There is also no warm-up for an operation that takes longer than twice this duration.
    pub warm_up: Duration,
    /// The minimum number of rounds of a comparison.
    pub min_rounds: usize,
    /// The maximum number of rounds of a comparison.
    pub max_rounds: usize,
    /// The maximum duration of calibration and all rounds together. It applies once `min_rounds` rounds have run. The
    /// limit is only checked each time that the number of rounds has grown by an eighth.
    pub budget: Duration,
    /// A precision that settles a comparison without a promise: half of the width of the ratio's interval is at most
    /// this fraction of the ratio.
    pub tight: f64,
    /// Another precision that settles a comparison without a promise: half of the width of the difference's interval is
    /// at most this number of nanoseconds.
    pub tight_ns: f64,
    /// Whether the measuring thread is pinned to one CPU.
    pub pin: bool,
    /// The seed of the random order of the cases in a round.
    pub seed: u64,
    /// Whether to run only one operation of every case, without measuring.
    pub once: bool,
}

impl Config {
    /// Returns the configuration of a full run.
    pub fn full() -> Self {
        Self {
            slice: Duration::from_micros(300),
            warm_up: Duration::from_micros(30),
            min_rounds: 200,
            max_rounds: 3000,
            budget: Duration::from_secs(12),
            tight: 0.005,
            tight_ns: 0.02,
            pin: true,
            seed: 0xA7ACE,
            once: false,
        }
    }

    /// Returns the configuration of a run with `--quick`.
    pub fn quick() -> Self {
        Self {
            min_rounds: 60,
            max_rounds: 400,
            budget: Duration::from_millis(2500),
            tight: 0.01,
            tight_ns: 0.05,
            ..Self::full()
        }
    }

    /// Returns the configuration for a bench that runs as a test.
    pub fn test() -> Self {
        Self { once: true, min_rounds: 1, max_rounds: 1, pin: false, ..Self::full() }
    }

    /// Returns the configuration of a full, quick or test run, as the command line requests.
    pub fn of(args: &Args) -> Self {
        match args {
            Args { test: true, .. } => Self::test(),
            Args { quick: true, .. } => Self::quick(),
            _ => Self::full(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn config(max_rounds: usize) -> Config {
        Config { min_rounds: 16, max_rounds, ..Config::full() }
    }

    /// Runs cases whose n-th slice takes `ns[case](n)` nanoseconds. Returns the number of slices of each case, and why
    /// the measurement stopped.
    fn slices(
        config: &Config,
        comparisons: &[Comparison],
        ns: &[&dyn Fn(usize) -> f64],
    ) -> (Vec<usize>, Stopped) {
        let had = vec![Cell::new(0); ns.len()];
        let slice = |case: usize| {
            had[case].set(had[case].get() + 1);
            Sample::of(ns[case](had[case].get()))
        };
        let (samples, stopped) = run(config, ns.len(), comparisons, slice, || Duration::ZERO);
        let counts: Vec<usize> = samples.iter().map(Vec::len).collect();
        assert_eq!(counts, had.iter().map(Cell::get).collect::<Vec<_>>());
        (counts, stopped)
    }

    const fn compared(of: usize, base: usize, at_most: Option<f64>) -> Comparison {
        Comparison { of, base, at_most }
    }

    #[test]
    fn time_goes_where_something_is_undecided() {
        let wild = |n: usize| if n.is_multiple_of(2) { 70.0 } else { 130.0 };
        let steady = |_: usize| 100.0;
        let all: [&dyn Fn(usize) -> f64; 4] = [&wild, &steady, &steady, &steady];
        // The comparison `far` is decided but not precise, `tight` is precise, and `near` stays undecided.
        let (far, near) = (compared(0, 1, Some(2.0)), compared(0, 1, Some(1.0)));
        let tight = compared(2, 3, None);
        assert_eq!(slices(&config(400), &[far, tight], &all), (vec![16; 4], Stopped::Tight));
        assert_eq!(slices(&config(400), &[near, tight], &all), (vec![400, 400, 16, 16], Stopped::Rounds));
        // A case that is compared with no other case runs as long as its time is noisy.
        assert_eq!(slices(&config(400), &[tight], &all), (vec![400, 16, 16, 16], Stopped::Rounds));
    }

    #[test]
    fn too_few_rounds_decide_nothing() {
        let few = Config { min_rounds: 1, max_rounds: 5, ..config(5) };
        let steady = |_: usize| 100.0;
        let compared = [compared(0, 1, Some(2.0))];
        assert_eq!(slices(&few, &compared, &[&steady, &steady]), (vec![5, 5], Stopped::Rounds));
    }
}
