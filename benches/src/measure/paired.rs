//! Compares cases (measured operations) in interleaved rounds.
//!
//! A machine's speed changes within milliseconds: its clock speed, the content of its caches and its other load vary.
//! So no case is measured alone. Every *round* runs one *slice* (a short measurement) of every case that is still
//! needed, in a random order. A comparison of two cases uses their slices of the same round. The median over hundreds
//! of rounds shows how the cases differ, and the median's confidence interval shows how certain the difference is. A
//! disturbance of a single round has little effect on the median. A disturbance of all rounds affects both cases, so it
//! cancels out.
//!
//! A measurement of one case in a round is long compared with a reading of the clock, and short compared with the
//! scheduler's time slice.
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

use std::fmt;
use std::time::{Duration, Instant};

use crate::catalogue::Id;
use crate::catalogue::promises::Promise;
use crate::harness::args::Args;
use crate::harness::output;
use crate::instruments::chain;
use crate::instruments::clock::timer_floor;
use crate::instruments::cpu::Pin;
use crate::measure::rounds::{self, Comparison, Stopped};
use crate::row::{Above, Row, Sink, Versus, note_comparisons};
use crate::stats::Interval;
use crate::stats::sample::{self, Sample};

pub use crate::measure::rounds::Config;

/// A measured case: an id, and a closure that runs the operation a given number of times.
pub struct Case<'a> {
    id: String,
    run: Box<dyn FnMut(u64) + 'a>,
    before: Box<dyn FnMut() + 'a>,
    after: Box<dyn FnMut() + 'a>,
    most: u64,
}

impl<'a> Case<'a> {
    /// Makes a case. `run(n)` runs the operation `n` times and must consume the results (`black_box`). The measured
    /// time includes the loop in `run`.
    pub fn new(id: impl Into<String>, run: impl FnMut(u64) + 'a) -> Self {
        let [before, after] = [(); 2].map(|()| Box::new(|| ()) as Box<dyn FnMut()>);
        Self { id: id.into(), run: Box::new(run), before, after, most: 1 << 40 }
    }

    /// Sets a function that runs, untimed, before each slice (measurement) and its warm-up, for example to switch
    /// tracing on.
    pub fn before(mut self, f: impl FnMut() + 'a) -> Self {
        self.before = Box::new(f);
        self
    }

    /// Sets a function that runs, untimed, after each slice (measurement).
    pub fn after(mut self, f: impl FnMut() + 'a) -> Self {
        self.after = Box::new(f);
        self
    }

    /// Limits the number of operations in a slice (measurement) and in a warm-up, for operations that fill a buffer of
    /// limited size.
    pub fn at_most(mut self, most: u64) -> Self {
        self.most = most.max(1);
        self
    }

    /// Measures `iters` operations between two runs of the reference chain (`instruments/chain.rs`), which measure the
    /// speed of the processor. Runs `warm_up` operations, untimed, before that.
    fn sample(&mut self, warm_up: u64, iters: u64) -> Sample {
        (self.before)();
        if warm_up > 0 {
            (self.run)(warm_up);
        }
        let before = chain::time();
        let start = Instant::now();
        (self.run)(iters);
        let took = start.elapsed();
        let after = chain::time();
        (self.after)();
        Sample { ns: nanos(took, iters), chain: [before, after] }
    }
}

/// A set of cases that are measured side by side, and the requested comparisons of these cases.
pub struct Paired<'a> {
    config: Config,
    cases: Vec<Case<'a>>,
    comparisons: Vec<Compared>,
}

impl<'a> Paired<'a> {
    /// Makes a set without cases.
    pub fn new(config: Config) -> Self {
        Self { config, cases: Vec::new(), comparisons: Vec::new() }
    }

    /// Adds a case that needs no preparation before its measurements and no work after them.
    pub fn case(&mut self, id: impl Into<String>, run: impl FnMut(u64) + 'a) {
        self.add(Case::new(id, run));
    }

    /// Adds a case.
    ///
    /// # Panics
    ///
    /// Panics if a case with the same id exists.
    pub fn add(&mut self, case: Case<'a>) {
        assert!(self.cases.iter().all(|c| c.id != case.id), "two cases are called {:?}", case.id);
        self.cases.push(case);
    }

    /// Requests the ratio of the time of case `id` to the time of case `base`. Rounds continue until all requested
    /// comparisons are precise enough, or until a limit of the [`Config`] is reached. The ratio is in the field `vs` of
    /// the row of case `id`.
    pub fn compare(&mut self, id: impl Into<String>, base: impl Into<String>) {
        let (id, base) = (id.into(), base.into());
        self.comparisons.push(Compared { id, base, at_most: None, above: false });
    }

    /// Requests the ratio of the times of two cases, and the difference of the times in nanoseconds. The difference is
    /// in the field `above` of the row of case `id`.
    pub fn compare_above(&mut self, id: impl Into<String>, base: impl Into<String>) {
        self.compare(id, base);
        self.comparisons.iter_mut().last().expect("it was added just now").above = true;
    }

    /// Sets the promised limits of the requested ratios. Rounds for such a ratio continue until its promise is decided,
    /// not until the ratio is precise enough.
    pub fn promise(&mut self, promises: &[Promise]) {
        for Promise { id, base, at_most, .. } in promises {
            let [id, base] = [id, base].map(Id::to_string);
            let asked = self.comparisons.iter_mut().find(|asked| asked.id == id && asked.base == base);
            if let Some(asked) = asked {
                asked.at_most = Some(*at_most);
            }
        }
    }

    /// Removes all cases except the cases that the command line selects, and the cases with which a selected case is
    /// compared.
    pub fn select(&mut self, args: &Args) {
        self.comparisons.retain(|asked| args.selects(&asked.id));
        let needed = |id: &str| self.comparisons.iter().any(|asked| asked.base == id);
        self.cases.retain(|c| args.selects(&c.id) || needed(&c.id));
    }

    /// Returns the ids of the cases, in the order in which they were added.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.cases.iter().map(|c| &c.id[..])
    }

    /// Measures the cases in rounds, until the comparisons are decided or a limit of the [`Config`] is reached.
    ///
    /// # Panics
    ///
    /// Panics if a comparison names an unknown case.
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
            output::step(&ids[case]);
            let (warm_up, slice) = iters[case];
            self.cases[case].sample(warm_up, slice)
        };
        let (samples, stopped) =
            rounds::run(&self.config, ids.len(), &comparisons, slice, || start.elapsed());
        Measured { ids, samples, comparisons: self.comparisons, stopped, took: start.elapsed(), floor }
    }
}

/// Returns the number of operations for the warm-up and the number for a measurement of `case`, so that both take the
/// configured time.
fn calibrate(case: &mut Case<'_>, config: &Config) -> (u64, u64) {
    if config.once {
        return (0, 1);
    }
    let mut n = 1;
    let quarter = config.slice.as_secs_f64() * 1e9 / 4.0;
    while case.sample(0, n).ns * (n as f64) < quarter && n < case.most {
        n = (n * 2).min(case.most);
    }
    // The time of an operation is that of the fastest of three runs, because this run was interrupted least.
    let per = (0..3).map(|_| case.sample(0, n).ns).fold(f64::INFINITY, f64::min);
    let fit = |d: Duration| ((d.as_secs_f64() * 1e9 / per.max(1e-3)).round() as u64).min(case.most);
    (fit(config.warm_up), fit(config.slice).max(1))
}

pub(crate) fn nanos(took: Duration, iters: u64) -> f64 {
    took.as_secs_f64() * 1e9 / iters as f64
}

/// A requested comparison of two cases.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Compared {
    pub(crate) id: String,
    pub(crate) base: String,
    /// The promised maximum of the ratio, if there is a promise.
    pub(crate) at_most: Option<f64>,
    /// Whether the difference was requested, in addition to the ratio.
    pub(crate) above: bool,
}

/// The measured rounds of cases that ran side by side.
#[derive(Clone, Debug)]
pub struct Measured {
    pub(crate) ids: Vec<String>,
    /// For every case, its samples, each from one measurement. Samples with the same index belong to the same round.
    pub(crate) samples: Vec<Vec<Sample>>,
    pub(crate) comparisons: Vec<Compared>,
    /// The reason why the rounds ended.
    pub stopped: Stopped,
    pub(crate) took: Duration,
    pub(crate) floor: Duration,
}

impl Measured {
    /// Returns the ids of the measured cases.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.ids.iter().map(|id| &id[..])
    }

    fn samples(&self, id: &str) -> Option<&[Sample]> {
        Some(&self.samples[self.ids.iter().position(|i| i == id)?])
    }

    /// Returns the duration of the reference chain (a fixed sequence of instructions) at the reference speed. The
    /// reference speed is the speed of the processor to which all times are converted.
    pub fn reference(&self) -> f64 {
        sample::reference(self.samples.iter().flatten())
    }

    /// Returns the nanoseconds of one operation of case `id` in every round, as measured, that is, not converted to the
    /// processor's reference speed.
    pub fn rounds(&self, id: &str) -> Option<Vec<f64>> {
        Some(self.samples(id)?.iter().map(|sample| sample.ns).collect())
    }

    /// Returns the nanoseconds of one operation of case `id`, converted to the processor's reference speed.
    pub fn ns(&self, id: &str) -> Option<Interval> {
        sample::at_reference(self.samples(id)?, self.reference())
    }

    /// Returns the ratio of the time of case `id` to the time of case `base`.
    pub fn ratio(&self, id: &str, base: &str) -> Option<Interval> {
        sample::ratio(self.samples(id)?, self.samples(base)?)
    }

    /// Returns the time of case `id` minus the time of case `base` in nanoseconds, converted to the processor's
    /// reference speed.
    pub fn difference(&self, id: &str, base: &str) -> Option<Interval> {
        sample::difference(self.samples(id)?, self.samples(base)?, self.reference())
    }

    /// Returns a ratio of times: the time of case `id` minus the time of case `base`, divided by the time of case
    /// `unit`.
    pub fn excess(&self, id: &str, base: &str, unit: &str) -> Option<Interval> {
        sample::excess(self.samples(id)?, self.samples(base)?, self.samples(unit)?)
    }

    /// Makes the rows (results) of all cases, with the requested comparisons, in the order of the cases.
    ///
    /// There is no row for a case that has no median because one of its measured values was not a finite number.
    pub fn rows(&self, sink: Sink) -> Vec<Row> {
        let mut rows: Vec<Row> = self.ids.iter().filter_map(|id| self.row(id, sink)).collect();
        note_comparisons(&mut rows);
        rows
    }

    /// Makes the row (the result) of one case, with the requested comparisons.
    pub fn row(&self, id: &str, sink: Sink) -> Option<Row> {
        let mut row = Row::new(id, self.ns(id)?, sink).with_rounds(&self.rounds(id)?);
        row.speeds = sample::range(self.samples(id)?, self.reference());
        for Compared { base, above, .. } in self.comparisons.iter().filter(|asked| asked.id == id) {
            if let Some(ratio) = self.ratio(id, base) {
                row.vs.insert(base.clone(), Versus::from(ratio));
            }
            if let Some(ns) = self.difference(id, base).filter(|_| *above) {
                row.above.insert(base.clone(), Above::from(ns));
            }
        }
        Some(row)
    }
}

impl fmt::Display for Measured {
    /// Formats one line: the numbers of cases and rounds, the duration, and the reason why the rounds ended.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rounds = self.samples.iter().map(Vec::len).max().unwrap_or(0);
        write!(f, "{} cases, {rounds} rounds in {:.1} s", self.ids.len(), self.took.as_secs_f64())?;
        match self.stopped {
            Stopped::Tight => write!(f, ": everything is decided")?,
            Stopped::Rounds => write!(f, ": the maximum number of rounds; the intervals may be wide")?,
            Stopped::Budget => write!(f, ": time was up; the intervals may be wide")?,
            Stopped::Once => return write!(f, ": each ran once, nothing was measured"),
        }
        if self.floor > Duration::ZERO {
            write!(f, " (a reading of the timer takes {} ns)", self.floor.as_nanos())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod paired_tests {
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
        // Twenty random draws from 24 orders yield about fourteen different orders.
        let different: std::collections::BTreeSet<_> = orders.iter().collect();
        assert!(different.len() > 6, "{orders:?}");
    }

    #[test]
    fn what_has_little_room_runs_no_more_often() {
        let most = Cell::new(0);
        let mut case = Case::new("a", |n| most.set(most.get().max(n))).at_most(7);
        let iters = calibrate(&mut case, &Config::quick());
        assert_eq!(iters, (7, 7));
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
        let took = Duration::from_secs_f64(case.sample(2, 1).ns / 1e9);
        assert!(took <= warmed.get().unwrap().elapsed());
    }

    #[test]
    fn slices_are_as_long_as_the_fastest_try_says() {
        // The first run finds the number of operations, and three runs time them. The second of these is the fastest.
        let mut tries = [50, 100, 0, 100].map(Duration::from_millis).into_iter();
        let mut case = Case::new("a", move |_| std::thread::sleep(tries.next().unwrap()));
        let config = Config { slice: Duration::from_millis(200), ..Config::quick() };
        let iters = calibrate(&mut case, &config);
        assert!(iters.1 > 2, "{iters:?}");
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
        // An empty operation takes some millionths of a nanosecond, so its interval is narrow on any machine.
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

#[cfg(test)]
mod measured_tests {
    use super::*;

    #[test]
    fn rows_have_the_ratios_that_were_asked_for() {
        let measured = Measured {
            ids: vec!["rust/a".into(), "cc/a".into()],
            samples: [1.0, 4.0].map(|ns| vec![Sample::of(ns); 20]).into(),
            comparisons: vec![Compared {
                id: "rust/a".into(),
                base: "cc/a".into(),
                at_most: None,
                above: true,
            }],
            stopped: Stopped::Tight,
            took: Duration::from_millis(1234),
            floor: Duration::from_nanos(20),
        };
        let rows = measured.rows(Sink::Null);
        assert_eq!(rows.len(), 2);
        assert_eq!((rows[0].median, rows[0].noisy, rows[0].sink), (1.0, false, Sink::Null));
        assert_eq!(rows[0].vs["cc/a"].ratio, 0.25);
        assert!(rows[0].vs_process.is_empty() && rows[1].vs.is_empty());
        assert_eq!((rows[0].above["cc/a"].ns, rows[0].speeds), (-3.0, Some([1.0, 1.0])));
        assert_eq!(measured.difference("rust/a", "cc/a").unwrap().median, -3.0);
        assert!(measured.ratio("rust/a", "cc/b").is_none());
        assert_eq!(
            measured.to_string(),
            "2 cases, 20 rounds in 1.2 s: everything is decided (a reading of the timer takes 20 ns)"
        );
    }
}
