//! Proves on machines whose truth is known that promises are decided, and rightly: the rounds are those of a real
//! measurement, only the slices and the clock are simulated.

use std::cell::RefCell;
use std::time::Duration;

use fastrand::Rng;

use super::config::Config;
use super::rounds::{Comparison, run};
use crate::promise::Verdict;
use crate::stats::Interval;
use crate::stats::sample::{Sample, ratio};

/// What disturbs a machine.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Machine {
    /// Two speeds, 1.7 apart, each for some seconds or less.
    TwoStates,
    /// A speed that wanders by a third.
    Drifting,
    /// Somebody else takes 30 % of the time, in bursts of some milliseconds.
    Neighbour,
    Quiet,
}

/// A machine at a moment, in microseconds.
struct Simulated {
    machine: Machine,
    random: Rng,
    now: f64,
    /// How many times as long everything takes.
    factor: f64,
    /// When the state or the burst ends.
    until: f64,
    is_burst: bool,
}

impl Simulated {
    fn new(machine: Machine, seed: u64) -> Self {
        let random = Rng::with_seed(seed);
        Self { machine, random, now: 0.0, factor: 1.0, until: 0.0, is_burst: false }
    }

    /// A factor near 1, as no two runs are the same; outliers are to one side.
    fn jitter(&mut self, part: f64) -> f64 {
        let normal = (0..4).map(|_| self.random.f64() - 0.5).sum::<f64>() * 1.7;
        let outlier = if self.random.f64() < 0.02 { self.random.f64() } else { 0.0 };
        1.0 + part * normal + outlier
    }

    fn go_on(&mut self, micros: f64) {
        self.now += micros;
        match self.machine {
            Machine::TwoStates if self.now > self.until => {
                self.factor = if self.factor > 1.0 { 1.0 } else { 1.7 };
                self.until = self.now - (1.0 - self.random.f64()).ln() * 1e6 * self.random.f64();
            }
            Machine::Drifting => {
                let step = (self.random.f64() - 0.5) * micros * 2e-5;
                self.factor = (self.factor + step).clamp(1.0, 1.33);
            }
            Machine::Neighbour if self.now > self.until => {
                self.is_burst = !self.is_burst;
                let mean = if self.is_burst { 6e3 } else { 14e3 };
                self.until = self.now - (1.0 - self.random.f64()).ln() * mean;
            }
            _ => {}
        }
    }

    /// How long work takes that would take so many microseconds, which pass.
    fn takes(&mut self, micros: f64, jitter: f64) -> f64 {
        let mut took = micros * self.factor * self.jitter(jitter);
        if self.is_burst {
            // In a burst, half of the time is the neighbour's, in pieces: short work may be spared.
            let pieces = (micros / 50.0).ceil();
            took += (0..pieces as u32).map(|_| self.random.f64()).filter(|x| *x > 0.5).sum::<f64>() * 100.0;
        }
        self.go_on(took);
        took
    }

    /// The shortest of three chains of two microseconds.
    fn chain(&mut self) -> f64 {
        (0..3).map(|_| self.takes(2.0, 0.002)).fold(f64::INFINITY, f64::min)
    }

    /// A slice of an operation that truly takes so many nanoseconds.
    fn slice(&mut self, ns: f64) -> Sample {
        const MICROS: f64 = 300.0;
        let before = self.chain();
        let took = self.takes(MICROS, 0.01);
        let after = self.chain();
        Sample { ns: ns * took / MICROS, chain: [before * 1e3, after * 1e3] }
    }
}

/// How many of these promises are kept, missed and open, as a full run says.
fn verdicts(machine: Machine, of_limit: f64, runs: u64) -> [u32; 3] {
    const LIMIT: f64 = 1.05;
    let mut counted = [0; 3];
    for seed in 0..runs {
        let simulated = RefCell::new(Simulated::new(machine, seed * 7919 + of_limit.to_bits()));
        let compared = [Comparison { of: 0, base: 1, at_most: Some(LIMIT) }];
        let slice = |case: usize| simulated.borrow_mut().slice([400.0 * LIMIT * of_limit, 400.0][case]);
        let elapsed = || Duration::from_secs_f64(simulated.borrow().now / 1e6);
        // A third of the rounds that a full run may have.
        let config = Config { max_rounds: 1000, ..Config::full() };
        let (samples, _) = run(&config, 2, &compared, slice, elapsed);
        let verdict = Verdict::at_most(LIMIT, ratio(&samples[0], &samples[1]).unwrap());
        counted
            [[Verdict::Kept, Verdict::Missed, Verdict::Open].iter().position(|v| *v == verdict).unwrap()] +=
            1;
    }
    counted
}

/// Decided in nine runs of ten, and wrong in one of twenty at most.
#[test]
fn promises_are_decided_and_rightly() {
    let near = [0.995, 1.005];
    let far = [0.90, 0.97, 1.03, 1.10];
    let machines = [
        (Machine::TwoStates, &far[..]),
        (Machine::Drifting, &far),
        (Machine::Neighbour, &far),
        (Machine::Quiet, &near),
    ];
    for (machine, truths) in machines {
        for &truth in truths {
            let [kept, missed, open] = verdicts(machine, truth, 40);
            println!("{machine:?} at {truth} of the limit: {kept} kept, {missed} missed, {open} open");
            let wrong = if truth < 1.0 { missed } else { kept };
            assert!(open <= 4, "{machine:?} at {truth} of the limit: {open} of 40 are open");
            assert!(wrong <= 2, "{machine:?} at {truth} of the limit: {wrong} of 40 are wrong");
        }
    }
}

/// Why slices of different speed are left out rather than scaled: an operation that waits for memory or the kernel is not
/// slowed down as the chain is.
#[test]
fn scaling_would_be_wrong_where_an_operation_is_slowed_less_than_the_chain() {
    let sample = |ns: f64, chain: f64| Sample { ns, chain: [chain; 2] };
    let (mut of, mut base) = (Vec::new(), Vec::new());
    for round in 0..90 {
        // In two of three rounds, the machine changes between the two slices. 1.7 for the chain is 1.4 for the operation.
        let (first, second) =
            [((1.0, 1.0), (1.4, 1.7)), ((1.0, 1.0), (1.4, 1.7)), ((1.4, 1.7), (1.4, 1.7))][round % 3];
        of.push(sample(100.0 * first.0, first.1));
        base.push(sample(100.0 * second.0, second.1));
    }
    let scaled: Vec<f64> = of.iter().zip(&base).map(|(of, base)| of.at(1.0) / base.at(1.0)).collect();
    assert!((Interval::of(&scaled).unwrap().median - 1.7 / 1.4).abs() < 1e-9);
    let left = ratio(&of, &base).unwrap();
    assert_eq!((left.low, left.median, left.high), (1.0, 1.0, 1.0));
}
