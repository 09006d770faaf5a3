//! Plans the measurement: the length of slices (short measurements of a case in a mode), and the
//! order of turns (slices that are measured directly one after the other). This module only plans;
//! it runs no case.

use std::time::Duration;

use fastrand::Rng;

use super::mode::Mode;
use super::results::Results;
use crate::harness::args::Args;

/// The plan of a measurement: the length of slices (short measurements), and the number of generations (sets of
/// processes).
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// The minimum and the maximum number of generations (sets of processes).
    pub(super) generations: [usize; 2],
    /// The duration of the whole measurement.
    pub(super) budget: Duration,
    pub(super) slice: Duration,
    /// Whether allocations are counted over fewer operations (`--quick`).
    pub(super) counts_less: bool,
    pub(super) once: bool,
}

impl Plan {
    /// Makes the plan of a run with the command line `args`. A full run takes `seconds`.
    pub(super) fn of(args: &Args, seconds: u64) -> Self {
        let slice = Duration::from_millis(1);
        let seconds = Duration::from_secs(seconds);
        let full = Self { generations: [9, 40], budget: seconds, slice, counts_less: false, once: false };
        match args {
            args if args.test => Self { generations: [1, 1], budget: Duration::ZERO, once: true, ..full },
            args if args.quick => {
                Self { generations: [6, 9], budget: seconds / 5, counts_less: true, ..full }
            }
            _ => full,
        }
    }

    /// Returns the number of operations over which allocations are counted, for a case that asks for `asked` operations
    /// and has batches of `batch` operations.
    pub(super) fn counted_over(&self, asked: u64, batch: u64) -> u64 {
        let over = if self.counts_less { asked.min(100.max(asked / 10)) } else { asked };
        // A test counts two batches, if the case asks for so many operations, to show that the counts of the batches
        // add up.
        (if self.once { over.min(100.max(2 * batch)) } else { over }).next_multiple_of(batch)
    }

    /// Returns how long raw writes (writes without this library) are measured after a slice that took the time
    /// `beside`. The time is that of the slice, because rare disturbances would otherwise hit the longer measurement
    /// more often (`measure/simulation.rs`). It is limited to 16 slices of the usual length, because most disturbances
    /// are shorter.
    pub(super) fn writes(&self, beside: Duration) -> Duration {
        if self.once { self.slice } else { beside.clamp(self.slice, self.slice * 16) }
    }

    /// Returns the number of generations (sets of processes, one for each mode) for which there is time. `round` is the
    /// duration of a generation's first round, `left` is the remaining time, and `most` is the maximum of the result.
    pub(super) fn generations(&self, round: Duration, left: Duration, most: usize) -> usize {
        // The first rounds may take a quarter of the time, so that three quarters are left for other measurements.
        let fit = left.as_nanos() / (4 * round.as_nanos()).max(1);
        usize::try_from(fit).unwrap_or(usize::MAX).clamp(self.generations[0], most.max(self.generations[0]))
    }
}

/// For each mode, how many operations a case runs in a slice (a short measurement), and in which rounds.
#[derive(Clone, Debug)]
pub(super) struct Pace {
    /// For every mode, the number of operations in a slice (a short measurement).
    pub(super) slice: Vec<u64>,
    /// For every mode, the number k such that the case runs in this mode in every k-th round. The number is above 1 if
    /// a measurement takes longer than planned.
    pub(super) every: Vec<usize>,
}

/// Computes the pace of a case: the number of operations in a measurement, and the rounds in which it is measured. A
/// measurement should take the time `long`, and consists of whole batches. `operation` has the duration of one
/// operation in each mode. The modes in `loud` write messages, and the modes in `silent` do not.
pub(super) fn pace(
    plan: &Plan,
    (long, batch): (Duration, u64),
    modes: &[Mode],
    operation: &[Duration],
    silent: &[usize],
    loud: &[usize],
) -> Pace {
    let fit = |slice: Duration, mode: usize| {
        let fit = slice.as_nanos() / operation[mode].as_nanos().max(1);
        let fit = if plan.once { 1 } else { u64::try_from(fit).unwrap_or(u64::MAX).min(1 << 30) };
        (fit / batch).max(1) * batch
    };
    let with = |mode: usize| -> Vec<usize> {
        let keeps = |other: &usize| modes[*other].keeps_pace_with(&modes[mode]);
        let with: Vec<usize> = silent.iter().copied().filter(keeps).collect();
        if with.is_empty() { vec![mode] } else { with }
    };
    // Modes that are compared run the same number of operations in a measurement, unless this would take too long.
    let shared = |mode: usize| with(mode).iter().map(|&other| fit(long, other)).min().unwrap_or(batch);
    let mut slice: Vec<u64> = (0..operation.len()).map(shared).collect();
    for &mode in loud {
        slice[mode] = slice[mode].min(fit(long * 5, mode));
    }
    let together = |modes: &[usize], slices: u32| {
        let took = modes.iter().map(|&mode| operation[mode].mul_f64(slice[mode] as f64)).sum::<Duration>();
        let should = long * slices * u32::try_from(modes.len()).unwrap_or(1);
        let every = took.as_nanos().div_ceil(should.as_nanos().max(1));
        usize::try_from(every).unwrap_or(1).max(1)
    };
    let mut every: Vec<usize> = (0..operation.len()).map(|mode| together(&with(mode), 3)).collect();
    // Modes that write need less precision, so they run in fewer rounds.
    let of_loud = together(loud, 1);
    for &mode in loud {
        // A mode that writes only runs in rounds in which the mode with which it is compared runs, too.
        every[mode] = of_loud.next_multiple_of(every[mode]);
    }
    Pace { slice, every }
}

/// The slices (short measurements) of a turn, as pairs of a case and a mode. The slices run directly one after the
/// other, with only raw writes (writes without this library) in between, so they can be compared.
pub(super) type Turn = Vec<(usize, usize)>;

/// Returns the turns of a round in random order. A turn measures a group of cases that are compared with each other,
/// directly one after the other.
pub(super) fn round(results: &Results, paces: &[Pace], round: usize, random: &mut Rng) -> Vec<Turn> {
    let mut groups = results.groups();
    random.shuffle(&mut groups);
    let turn = |mut group: Vec<usize>| {
        random.shuffle(&mut group);
        let mut modes: Vec<usize> = (0..results.modes.len()).collect();
        random.shuffle(&mut modes);
        gather_twins(results, &mut modes);
        let due = |&(case, mode): &(usize, usize)| {
            results.runs_in(case, mode) && round.is_multiple_of(paces[case].every[mode])
        };
        let slices = modes.into_iter().flat_map(|mode| group.iter().map(move |&case| (case, mode)));
        slices.filter(due).collect()
    };
    groups.into_iter().map(turn).collect()
}

/// Reorders the modes so that twins (modes that execute the same instructions) are next to each other, at the position
/// of the first of them.
fn gather_twins(results: &Results, modes: &mut [usize]) {
    let order = modes.to_vec();
    let first = |mode: usize| order.iter().position(|&other| results.twin(other) == results.twin(mode));
    modes.sort_by_key(|&mode| first(mode));
}

/// The twins of a case (modes that are promised to take the same time), and the precision with which their difference
/// is known.
#[derive(Clone, Debug)]
pub(super) struct Twins {
    case: usize,
    modes: Vec<usize>,
    /// The typical difference between two of these modes in one turn (directly one after the other), as a multiple of
    /// the allowed difference.
    spread: f64,
    /// How many times these modes were measured in the current generation (set of processes). Earlier generations do
    /// not count: otherwise all missing measurements would be made in one generation, on which the result would depend.
    turns: usize,
}

impl Twins {
    /// Returns the twins (modes that are promised to take the same time) of all cases that were measured before.
    pub(super) fn all(results: &Results) -> Vec<Self> {
        let mut all = Vec::new();
        for case in 0..results.cases.len() {
            let modes: Vec<usize> = results.modes_of(case).collect();
            for &base in &modes {
                let modes: Vec<_> =
                    modes.iter().copied().filter(|&mode| results.twin(mode) == base).collect();
                let spreads = modes.iter().filter_map(|&mode| results.spread(case, mode, base));
                if let Some(spread) = spreads.reduce(f64::max) {
                    all.push(Self { case, modes, spread, turns: 1 });
                }
            }
        }
        all
    }

    /// Returns the next slices to measure: one for each mode of those twins (modes promised to take the same time)
    /// whose difference has the widest expected interval, as a multiple of the allowed difference.
    pub(super) fn next(all: &mut [Self], random: &mut Rng) -> Option<Turn> {
        let width = |twins: &Self| twins.spread / (twins.turns as f64).sqrt();
        let next = all.iter_mut().max_by(|a, b| width(a).total_cmp(&width(b)))?;
        next.turns += 1;
        random.shuffle(&mut next.modes);
        Some(next.modes.iter().map(|&mode| (next.case, mode)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::super::case as exchange;
    use super::super::case::{Case, Done, Info};
    use super::super::results::Names;
    use super::*;
    use crate::row::Sink;

    fn cases(ids: &[&str]) -> Vec<Case> {
        ids.iter().map(|&id| Case::new(Info::of(id), |_| Ok(Done::new()))).collect()
    }

    /// Returns artificial results of two cases. In each turn, `filtered` takes `apart[case]` ns more or less than
    /// `nosub`.
    fn results(apart: [u64; 2]) -> Results {
        let mut results =
            Results::new(Mode::all(), cases(&["rust/a", "rust/b"]), Sink::Null, Names::default());
        for _ in 0..2 {
            results.generations += 1;
            for turn in 0..10 {
                for (case, apart) in apart.into_iter().enumerate() {
                    for (mode, nanos) in [(1, 1000), (2, 1000 + turn % 2 * 2 * apart - apart)] {
                        let took = Duration::from_nanos(nanos);
                        let slice =
                            exchange::Slice { took, elapsed: took, chain: [1.0; 2], done: Done::new() };
                        results.add((case, mode), usize::try_from(turn).unwrap(), 1, &slice);
                    }
                }
            }
        }
        results
    }

    #[test]
    fn the_first_generation_has_no_twins_to_prefer() {
        let results = Results::new(Mode::all(), cases(&["rust/a"]), Sink::Null, Names::default());
        assert!(Twins::all(&results).is_empty());
        assert!(Twins::next(&mut [], &mut Rng::with_seed(1)).is_none());
    }

    #[test]
    fn those_have_turns_that_are_the_widest_beside_what_is_allowed() {
        // The allowed difference is 10 ns: the larger of 2 ns and 1 % of 1000 ns.
        let mut twins = Twins::all(&results([20, 40]));
        assert_eq!(twins.len(), 2);
        for (twins, spread) in twins.iter().zip([20.0, 40.0]) {
            assert_eq!((&twins.modes[..], twins.turns), (&[1, 2][..], 1));
            assert!((twins.spread - spread / 10.0 / 0.6745).abs() < 1e-6, "{twins:?}");
        }
        let (mut had, mut random) = ([0, 0], Rng::with_seed(1));
        for _ in 0..80 {
            let turn = Twins::next(&mut twins, &mut random).unwrap();
            assert_eq!(turn.len(), 2);
            had[turn[0].0] += 1;
        }
        // The case whose spread is twice as wide gets four times as many turns.
        assert!((had[1] + 1 - 4 * (had[0] + 1_i32)).abs() <= 4, "{had:?}");
    }

    #[test]
    fn twins_are_one_after_the_other() {
        let results = results([1, 1]);
        let mut modes = [2, 4, 0, 1, 3, 5];
        gather_twins(&results, &mut modes);
        assert_eq!(modes, [2, 1, 4, 0, 3, 5]);
    }

    #[test]
    fn a_round_has_a_turn_for_each_group_and_in_it_each_mode_of_all_its_cases() {
        let mut all = cases(&["rust/a", "rust/b", "rust/c"]);
        for case in &mut all[..2] {
            case.info.beside = Some("ab".into());
        }
        all[2].info.not_in = &["on"];
        let results = Results::new(Mode::all(), all, Sink::Null, Names::default());
        let mut paces = vec![Pace { slice: vec![1; 6], every: vec![1; 6] }; 3];
        paces[2].every[0] = 2;
        let mut random = Rng::with_seed(1);
        let mut orders = std::collections::BTreeSet::new();
        for n in 0..40 {
            let mut turns = round(&results, &paces, n, &mut random);
            orders.insert(turns.clone());
            turns.sort_by_key(Vec::len);
            assert_eq!(turns.iter().map(Vec::len).collect::<Vec<_>>(), [5 - n % 2, 12]);
            // In a turn (slices that run directly one after the other), the slices of a mode's two cases are
            // neighbours.
            assert!(turns[1].chunks(2).all(|two| two[0].1 == two[1].1 && two[0].0 + two[1].0 == 1));
        }
        assert!(orders.len() > 30);
    }

    #[test]
    fn slices_are_as_long_as_asked_and_what_takes_longer_has_fewer() {
        let plan = Plan::of(&Args { test: false, ..Args::default() }, 8);
        let modes = Mode::all();
        let micros = |of: [u64; 5]| of.map(Duration::from_micros);
        let pace_of = |slice: Duration, operation: [u64; 5]| {
            pace(&plan, (slice, 2), &modes[..5], &micros(operation), &[0, 1, 2, 3], &[4])
        };
        let pace = |operation| pace_of(plan.slice, operation);
        // All modes that write nothing get the number of operations that the slowest of them can run in a slice. A mode
        // that writes may take as long as five slices.
        let even = pace([10, 20, 20, 25, 100]);
        assert_eq!((&even.slice[..], &even.every[..]), (&[40; 5][..], &[1, 1, 1, 1, 4][..]));
        assert_eq!(pace_of(plan.slice * 16, [10, 20, 20, 25, 100]).slice, [640; 5]);
        // If an operation takes longer than a slice, the mode runs a batch of operations in only one of several rounds.
        let long = pace([2000, 2000, 2000, 2000, 4000]);
        assert_eq!((&long.slice[..], long.every[0], long.every[4]), (&[2; 5][..], 2, 8));
    }

    #[test]
    fn generations_are_as_many_as_rounds_fit() {
        let plan = Plan::of(&Args::default(), 80);
        let fit = |round| plan.generations(Duration::from_secs(round), plan.budget, 40);
        assert_eq!([fit(1), fit(5), fit(0)], [20, 9, 40]);
        assert_eq!(plan.counted_over(1000, 1), 1000);
        assert_eq!([0, 1, 9, 30].map(|ms| plan.writes(Duration::from_millis(ms)).as_millis()), [1, 1, 9, 16]);
        let quick = Plan::of(&Args { quick: true, ..Args::default() }, 80);
        assert_eq!((quick.budget, quick.counted_over(5000, 30)), (Duration::from_secs(16), 510));
        let test = Plan::of(&Args { test: true, ..Args::default() }, 80);
        assert_eq!((test.generations, test.counted_over(5000, 30)), ([1, 1], 120));
        assert_eq!((test.counted_over(5000, 1000), test.counted_over(1000, 1)), (2000, 100));
        assert_eq!(test.writes(Duration::from_secs(1)), test.slice);
    }
}
