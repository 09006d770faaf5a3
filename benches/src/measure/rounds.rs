//! Rounds of slices, until what is compared is decided.
//!
//! Each round runs a slice of every case, in an order that changes. A comparison is settled when its promise is decided, or,
//! where nothing is promised, when its ratio or difference is known well enough. A case that no open comparison needs has no
//! slices any more, so the time goes where something is undecided.

use std::time::Duration;

use fastrand::Rng;

use super::config::Config;
use crate::promise::Verdict;
use crate::stats::sample::{self, Sample};

/// Why there were no more rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// Everything is decided, or known well enough.
    Tight,
    /// There were as many as allowed, and not everything is known well enough.
    Rounds,
    /// Time was up, and not everything is known well enough.
    Budget,
    /// A test: nothing was measured.
    Once,
}

/// Two cases that are compared, by their places, and the highest ratio that is promised, if any.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Comparison {
    pub(crate) of: usize,
    pub(crate) base: usize,
    pub(crate) at_most: Option<f64>,
}

impl Comparison {
    /// Whether nothing is to be learnt from more rounds.
    fn is_settled(&self, samples: &[Vec<Sample>], config: &Config) -> bool {
        let (of, base) = (&samples[self.of], &samples[self.base]);
        let Some(ratio) = sample::ratio(of, base).filter(|ratio| ratio.sure) else { return false };
        match self.at_most {
            Some(limit) => Verdict::at_most(limit, ratio) != Verdict::Open,
            None => {
                let reference = sample::reference(of.iter().chain(base));
                let difference = sample::difference(of, base, reference);
                ratio.relative() <= config.tight
                    || difference.is_some_and(|ns| ns.half_width() <= config.tight_ns)
            }
        }
    }
}

/// Runs rounds of `cases`. `slice(case)` runs one of them; `elapsed()` tells the time since the first.
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
        active.retain(|&case| {
            open.iter().any(|comparison| [comparison.of, comparison.base].contains(&case))
                || comparisons.iter().all(|comparison| ![comparison.of, comparison.base].contains(&case))
                    && is_noisy(&samples[case])
        });
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

/// Whether the time itself is not known, of a case that is compared with nothing.
fn is_noisy(samples: &[Sample]) -> bool {
    sample::at_reference(samples, sample::reference(samples)).is_none_or(|ns| ns.is_noisy())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn config(max_rounds: usize) -> Config {
        Config { min_rounds: 16, max_rounds, ..Config::full() }
    }

    /// Runs cases, whose n-th slice takes so long; returns how many slices each had.
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
        // Decided, though not tight; tight; undecided.
        let (far, near) = (compared(0, 1, Some(2.0)), compared(0, 1, Some(1.0)));
        let tight = compared(2, 3, None);
        assert_eq!(slices(&config(400), &[far, tight], &all), (vec![16; 4], Stopped::Tight));
        assert_eq!(slices(&config(400), &[near, tight], &all), (vec![400, 400, 16, 16], Stopped::Rounds));
        // What is compared with nothing goes on while it is noisy.
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
