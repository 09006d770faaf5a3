//! Compares cases in interleaved rounds.
//!
//! A machine is never the same twice: its clock, its caches and what else runs on it change within
//! milliseconds. So no case is measured by itself. Every *round* runs one short slice of every
//! case, in an order that changes each time, and what is compared is the two slices of one round;
//! the median over hundreds of rounds then says how the cases differ, and its interval how sure
//! that is. What disturbs one round, or all of them alike, cancels.
//!
//! Slices are long beside the timer and short beside the scheduler's time slice.
//!
//! ```
//! use std::hint::black_box;
//!
//! use atrace_benches::measure::paired::{Config, Paired};
//!
//! let mut paired = Paired::new(Config::test());
//! paired.case("rust/add", |n| (0..n).for_each(|i| drop(black_box(i + 1))));
//! paired.case("limit/empty_loop", |n| (0..n).for_each(|i| drop(black_box(i))));
//! paired.compare("rust/add", "limit/empty_loop");
//! let measured = paired.run();
//! assert!(measured.ns("rust/add").is_some());
//! // So short a run can't be sure of it.
//! assert!(measured.ratio("rust/add", "limit/empty_loop").is_none_or(|ratio| !ratio.sure));
//! ```

use std::time::{Duration, Instant};

use crate::catalogue::Id;
use crate::catalogue::promises::Promise;
use crate::harness::args::Args;
use crate::harness::progress;
use crate::instruments::chain;
use crate::instruments::clock::timer_floor;
use crate::instruments::cpu::Pin;
pub use crate::measure::config::Config;
use crate::measure::measured::{Compared, Measured};
use crate::measure::rounds::{self, Comparison};
use crate::stats::sample::Sample;

/// Something to measure: an id, and a closure that runs the operation as often as it is told.
pub struct Case<'a> {
    id: String,
    run: Box<dyn FnMut(u64) + 'a>,
    before: Option<Box<dyn FnMut() + 'a>>,
    after: Option<Box<dyn FnMut() + 'a>>,
    most: u64,
}

impl<'a> Case<'a> {
    /// Makes a case. `run(n)` runs the operation `n` times; its loop is part of what is measured,
    /// and what it computes has to be consumed (`black_box`).
    pub fn new(id: impl Into<String>, run: impl FnMut(u64) + 'a) -> Self {
        Self { id: id.into(), run: Box::new(run), before: None, after: None, most: 1 << 40 }
    }

    /// Runs `f`, untimed, before each slice and its warm-up: to switch tracing on, for example.
    pub fn before(mut self, f: impl FnMut() + 'a) -> Self {
        self.before = Some(Box::new(f));
        self
    }

    /// Runs `f`, untimed, after each slice.
    pub fn after(mut self, f: impl FnMut() + 'a) -> Self {
        self.after = Some(Box::new(f));
        self
    }

    /// Runs the operation at most so often at once, and as often at most to warm up: where what it fills has no room for more.
    pub fn at_most(mut self, most: u64) -> Self {
        self.most = most.max(1);
        self
    }

    fn slice(&mut self, warm_up: u64, iters: u64) -> Duration {
        self.timed(warm_up, iters).0
    }

    /// Runs a slice, between two chains.
    fn sample(&mut self, warm_up: u64, iters: u64) -> Sample {
        let (took, chain) = self.timed(warm_up, iters);
        Sample { ns: nanos(took, iters), chain }
    }

    fn timed(&mut self, warm_up: u64, iters: u64) -> (Duration, [f64; 2]) {
        if let Some(before) = &mut self.before {
            before();
        }
        if warm_up > 0 {
            (self.run)(warm_up);
        }
        let before = chain::time();
        let start = Instant::now();
        (self.run)(iters);
        let took = start.elapsed();
        let after = chain::time();
        if let Some(after) = &mut self.after {
            after();
        }
        (took, [before, after])
    }
}

/// Cases to run beside each other, and which of them to compare.
pub struct Paired<'a> {
    config: Config,
    cases: Vec<Case<'a>>,
    comparisons: Vec<Compared>,
}

impl<'a> Paired<'a> {
    /// Begins with no cases.
    pub fn new(config: Config) -> Self {
        Self { config, cases: Vec::new(), comparisons: Vec::new() }
    }

    /// Adds a case without anything to do before or after its slices.
    pub fn case(&mut self, id: impl Into<String>, run: impl FnMut(u64) + 'a) {
        self.add(Case::new(id, run));
    }

    /// Adds a case.
    ///
    /// # Panics
    ///
    /// When there is one of the same id.
    pub fn add(&mut self, case: Case<'a>) {
        assert!(self.cases.iter().all(|c| c.id != case.id), "two cases are called {:?}", case.id);
        self.cases.push(case);
    }

    /// Asks for the ratio of the case `id` to the case `base`. Rounds go on until all these are
    /// known well enough; the rows have them under `vs`.
    pub fn compare(&mut self, id: impl Into<String>, base: impl Into<String>) {
        let (id, base) = (id.into(), base.into());
        self.comparisons.push(Compared { id, base, at_most: None, above: false });
    }

    /// Asks for the ratio, and for the difference in nanoseconds, which the rows have under `above`.
    pub fn compare_above(&mut self, id: impl Into<String>, base: impl Into<String>) {
        self.compare(id, base);
        self.comparisons.iter_mut().last().expect("it was added just now").above = true;
    }

    /// Tells what is promised of the ratios that were asked for. These have rounds until that is decided.
    pub fn promise(&mut self, promises: &[Promise]) {
        for Promise { id, base, at_most, .. } in promises {
            let [id, base] = [id, base].map(Id::to_string);
            let asked = self.comparisons.iter_mut().find(|asked| asked.id == id && asked.base == base);
            if let Some(asked) = asked {
                asked.at_most = Some(*at_most);
            }
        }
    }

    /// Keeps the cases that the command line selects, with what they are compared to.
    pub fn select(&mut self, args: &Args) {
        self.comparisons.retain(|asked| args.selects(&asked.id));
        let needed = |id: &str| self.comparisons.iter().any(|asked| asked.base == id);
        self.cases.retain(|c| args.selects(&c.id) || needed(&c.id));
    }

    /// Returns the ids of the cases, in the order they were added.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.cases.iter().map(|c| &c.id[..])
    }

    /// Runs the rounds.
    ///
    /// # Panics
    ///
    /// When a comparison names no case.
    pub fn run(mut self) -> Measured {
        let place = |id: &String| {
            self.cases.iter().position(|c| c.id == *id).unwrap_or_else(|| panic!("no case is called {id:?}"))
        };
        let comparison = |Compared { id, base, at_most, .. }: &Compared| Comparison {
            of: place(id),
            base: place(base),
            at_most: *at_most,
        };
        let comparisons: Vec<_> = self.comparisons.iter().map(comparison).collect();
        let ids: Vec<String> = self.cases.iter().map(|c| c.id.clone()).collect();

        let _pin = if self.config.pin { Pin::here().ok() } else { None };
        let floor = timer_floor();
        let start = Instant::now();
        let iters: Vec<_> = self.cases.iter_mut().map(|c| calibrate(c, &self.config)).collect();
        let slice = |case: usize| {
            progress::step(&ids[case]);
            let Iters { warm_up, slice } = iters[case];
            self.cases[case].sample(warm_up, slice)
        };
        let (samples, stopped) =
            rounds::run(&self.config, ids.len(), &comparisons, slice, || start.elapsed());
        Measured { ids, samples, comparisons: self.comparisons, stopped, took: start.elapsed(), floor }
    }
}

/// How often a case runs its operation, untimed and timed.
#[derive(Clone, Copy, Debug)]
struct Iters {
    warm_up: u64,
    slice: u64,
}

/// Finds how often `case` runs in one slice.
fn calibrate(case: &mut Case<'_>, config: &Config) -> Iters {
    if config.once {
        return Iters { warm_up: 0, slice: 1 };
    }
    let mut n = 1;
    while case.slice(0, n) < config.slice / 4 && n < case.most {
        n = (n * 2).min(case.most);
    }
    // The fastest of three: the one that nothing interrupted.
    let per = (0..3).map(|_| nanos(case.slice(0, n), n)).fold(f64::INFINITY, f64::min);
    let fit = |d: Duration| ((d.as_secs_f64() * 1e9 / per.max(1e-3)).round() as u64).min(case.most);
    Iters { warm_up: fit(config.warm_up), slice: fit(config.slice).max(1) }
}

pub(crate) fn nanos(took: Duration, iters: u64) -> f64 {
    took.as_secs_f64() * 1e9 / iters as f64
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;
    use crate::measure::rounds::Stopped;

    #[test]
    fn once_runs_each_case_once() {
        let ran = RefCell::new(Vec::new());
        let mut paired = Paired::new(Config::test());
        paired.add(
            Case::new("a", |n| ran.borrow_mut().push(("a", n)))
                .before(|| ran.borrow_mut().push(("before", 0)))
                .after(|| ran.borrow_mut().push(("after", 0))),
        );
        paired.case("b", |n| ran.borrow_mut().push(("b", n)));
        let measured = paired.run();
        assert_eq!(measured.stopped, Stopped::Once);
        let mut ran = ran.take();
        let a = ran.iter().position(|r| r.0 == "before").unwrap();
        assert_eq!(ran.drain(a..a + 3).collect::<Vec<_>>(), [("before", 0), ("a", 1), ("after", 0)]);
        assert_eq!(ran, [("b", 1)]);
    }

    #[test]
    fn every_round_runs_every_case_as_often_as_calibrated() {
        let (a, b) = (Cell::new(Vec::new()), Cell::new(Vec::new()));
        let work = |log: &Cell<Vec<u64>>, n: u64| {
            let mut all = log.take();
            all.push(n);
            log.set(all);
            crate::instruments::chain::run::<1>(n);
        };
        let config = Config {
            slice: Duration::from_micros(20),
            warm_up: Duration::from_micros(5),
            min_rounds: 10,
            max_rounds: 10,
            tight: 0.0,
            tight_ns: 0.0,
            ..Config::quick()
        };
        let mut paired = Paired::new(config);
        paired.case("a", |n| work(&a, n));
        paired.case("b", |n| work(&b, n));
        paired.compare("a", "b");
        let measured = paired.run();
        assert_eq!(measured.stopped, Stopped::Rounds);
        assert!(measured.samples.iter().all(|r| r.len() == 10));
        for log in [a.take(), b.take()] {
            let (_, slices) = log.split_at(log.len() - 20);
            let (warm_up, slice) = (slices[0], slices[1]);
            assert!(warm_up > 0 && slice > warm_up);
            assert!(slices.chunks(2).all(|c| c == [warm_up, slice]), "{slices:?}");
        }
    }

    #[test]
    fn every_round_has_an_order_of_its_own() {
        let ran = RefCell::new(Vec::new());
        let config =
            Config { min_rounds: 20, max_rounds: 20, tight: -1.0, tight_ns: -1.0, ..Config::quick() };
        let mut paired = Paired::new(Config { warm_up: Duration::ZERO, ..config });
        for id in ["a", "b", "c", "d"] {
            let ran = &ran;
            paired.case(id, move |_| ran.borrow_mut().push(id));
        }
        paired.compare("a", "b");
        assert_eq!(paired.run().stopped, Stopped::Rounds);
        let ran = ran.take();
        let orders: Vec<_> = ran[ran.len() - 80..].chunks(4).collect();
        for order in &orders {
            let mut sorted = order.to_vec();
            sorted.sort_unstable();
            assert_eq!(sorted, ["a", "b", "c", "d"]);
        }
        // Of 24 orders, twenty draws find thirteen or so.
        let different: std::collections::BTreeSet<_> = orders.iter().collect();
        assert!(different.len() > 6, "{orders:?}");
    }

    #[test]
    fn what_has_little_room_runs_no_more_often() {
        let most = Cell::new(0);
        let mut case = Case::new("a", |n| most.set(most.get().max(n))).at_most(7);
        let iters = calibrate(&mut case, &Config::quick());
        assert_eq!((iters.warm_up, iters.slice), (7, 7));
        drop(case);
        assert_eq!(most.get(), 7);
    }

    #[test]
    fn the_warm_up_is_not_timed() {
        let warmed = Cell::new(None);
        let mut case = Case::new("a", |n| {
            if n == 2 {
                std::thread::sleep(Duration::from_millis(20));
                warmed.set(Some(Instant::now()));
            }
        });
        let took = case.slice(2, 1);
        assert!(took <= warmed.get().unwrap().elapsed());
    }

    #[test]
    fn slices_are_as_long_as_the_fastest_try_says() {
        // One try to find how often, three to find how long that takes: the second is the one that nothing interrupted.
        let mut tries = [50, 100, 0, 100].map(Duration::from_millis).into_iter();
        let mut case = Case::new("a", move |_| std::thread::sleep(tries.next().unwrap()));
        let config = Config { slice: Duration::from_millis(200), ..Config::quick() };
        let iters = calibrate(&mut case, &config);
        assert!(iters.slice > 2, "{iters:?}");
    }

    #[test]
    fn rounds_are_run_on_one_cpu_when_asked() {
        let cpus = || rustix::thread::sched_getaffinity(None).unwrap().count();
        let all = cpus();
        for (pin, expected) in [(true, 1), (false, all)] {
            let seen = Cell::new(0);
            let mut paired = Paired::new(Config { pin, ..Config::test() });
            paired.case("a", |_| seen.set(cpus()));
            drop(paired.run());
            assert_eq!((seen.get(), cpus()), (expected, all));
        }
    }

    #[test]
    fn what_is_known_well_enough_ends_the_run() {
        // Without anything to do, an operation takes some millionths of a nanosecond: whatever else runs, that is tight.
        let mut paired = Paired::new(Config { min_rounds: 8, ..Config::quick() });
        paired.case("a", |_| ());
        paired.case("b", |_| ());
        paired.compare("a", "b");
        let measured = paired.run();
        assert_eq!(measured.stopped, Stopped::Tight);
    }

    #[test]
    fn the_budget_stops_what_never_gets_tight() {
        let config = Config {
            budget: Duration::ZERO,
            max_rounds: 1000,
            min_rounds: 8,
            tight: 0.0,
            tight_ns: 0.0,
            ..Config::quick()
        };
        let mut paired = Paired::new(config);
        paired.case("a", |_| std::thread::sleep(Duration::from_micros(50)));
        paired.case("b", |_| std::thread::sleep(Duration::from_micros(50)));
        paired.compare("a", "b");
        let measured = paired.run();
        assert_eq!((measured.stopped, measured.samples[0].len()), (Stopped::Budget, 8));
    }

    #[test]
    fn selecting_keeps_the_baselines() {
        let mut paired = Paired::new(Config::test());
        for id in ["rust/x/10", "cc/x/10", "limit/y", "rust/z"] {
            paired.case(id, |_| ());
        }
        paired.compare("rust/x/10", "cc/x/10");
        paired.compare("rust/z", "limit/y");
        paired.select(&Args::parse(["--bench", "rust/x"]).unwrap());
        assert_eq!(paired.ids().collect::<Vec<_>>(), ["rust/x/10", "cc/x/10"]);
        drop(paired.run());
    }

    #[test]
    #[should_panic(expected = "no case is called \"c\"")]
    fn an_unknown_baseline_is_an_error() {
        let mut paired = Paired::new(Config::test());
        paired.case("a", |_| ());
        paired.compare("a", "c");
        drop(paired.run());
    }
}
