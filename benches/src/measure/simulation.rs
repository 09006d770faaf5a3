//! Tests, on simulated machines, that the verdicts about promises are decided and correct. The code under test runs the
//! rounds. Only the measured times and the clock are simulated, so the true ratio of each comparison is known.

use std::cell::RefCell;
use std::time::Duration;

use super::rounds::{Comparison, Config, run};
use crate::promise::Verdict;
use crate::stats::Interval;
use crate::stats::sample::{Sample, compare, ratio};
use crate::stats::simulated::{Machine, Simulated};

/// Returns the simulated machines. Each machine has a list of the true ratios to test, as fractions of the promised
/// limit.
fn machines() -> impl Iterator<Item = (Machine, &'static [f64])> {
    let near = |machine: &Machine| machine.name == Machine::QUIET.name;
    Machine::all().into_iter().map(move |machine| {
        (machine, if near(&machine) { &[0.995, 1.005][..] } else { &[0.90, 0.97, 1.03, 1.10] })
    })
}

const LIMIT: f64 = 1.05;

/// Returns the ratios that are measured by `runs` simulated full runs, one ratio for each run.
fn ratios(machine: Machine, of_limit: f64, runs: u64) -> impl Iterator<Item = Interval> {
    (0..runs).map(move |seed| {
        let simulated = RefCell::new(Simulated::new(machine, seed * 7919 + of_limit.to_bits()));
        let compared = [Comparison { of: 0, base: 1, at_most: Some(LIMIT) }];
        let slice =
            |case: usize| simulated.borrow_mut().slice([400.0 * LIMIT * of_limit, 400.0][case], 300.0);
        let elapsed = || Duration::from_secs_f64(simulated.borrow().now / 1e6);
        // The maximum number of rounds is a third of that of a full run.
        let config = Config { max_rounds: 1000, ..Config::full() };
        let (samples, _) = run(&config, 2, &compared, slice, elapsed);
        ratio(&samples[0], &samples[1]).unwrap()
    })
}

/// Returns three numbers: how many of `runs` simulated full runs end with a promise that is kept, missed and open.
fn verdicts(machine: Machine, of_limit: f64, runs: u64) -> [usize; 3] {
    let all: Vec<_> = ratios(machine, of_limit, runs).map(|ratio| Verdict::at_most(LIMIT, ratio)).collect();
    [Verdict::Kept, Verdict::Missed, Verdict::Open]
        .map(|verdict| all.iter().filter(|it| **it == verdict).count())
}

/// Tests that promises are decided correctly: at most one run in ten may leave its promise open, and at most one run in
/// twenty may end with a wrong verdict.
#[test]
fn promises_are_decided_and_rightly() {
    for (machine, truths) in machines() {
        for &truth in truths {
            let name = machine.name;
            let [kept, missed, open] = verdicts(machine, truth, 40);
            println!("{name} at {truth} of the limit: {kept} kept, {missed} missed, {open} open");
            let wrong = if truth < 1.0 { missed } else { kept };
            assert!(open <= 4, "{name} at {truth} of the limit: {open} of 40 are open");
            assert!(wrong <= 2, "{name} at {truth} of the limit: {wrong} of 40 are wrong");
        }
    }
}

/// Tests that the final intervals contain the true ratio, although the rounds end as soon as the promise is decided.
/// The decision needs a higher confidence than 95 %: if a 95 % interval were enough, one in six of the final intervals
/// would not contain a true ratio that is exactly at the limit.
#[test]
fn intervals_are_true_though_rounds_end_early() {
    let [mut held, mut all] = [0, 0];
    for machine in Machine::all() {
        let of_machine =
            ratios(machine, 1.0, 60).filter(|ratio| (ratio.low..=ratio.high).contains(&LIMIT)).count();
        println!("{}: {of_machine} of 60", machine.name);
        (held, all) = (held + of_machine, all + 60);
    }
    assert!(held * 100 >= all * 92, "{held} of {all}");
}

/// Returns the difference between a traced measurement of 12 ms and an untraced measurement of 2 ms, divided by the
/// time of the raw writes of the traced messages (writes without this library). The true quotient is 1. In each of many
/// turns, the three are measured one after the other, the raw writes for `micros` microseconds.
fn above_of_writes(machine: Machine, micros: f64) -> f64 {
    let ratio = |seed: u64| {
        let mut simulated = Simulated::new(machine, seed * 7919);
        let mut turn = |_| {
            [(12e6, 12e3), (2e6, 2e3), (10e6, micros)].map(|(ns, for_micros)| simulated.slice(ns, for_micros))
        };
        let turns: Vec<[Sample; 3]> = (0..60).map(&mut turn).collect();
        compare(&[turns], 2e3, |[on, off, writes]| (on.ns - off.ns) / writes.ns, Interval::of_clusters)
            .unwrap()
            .median
    };
    Interval::of(&(0..15).map(ratio).collect::<Vec<_>>()).unwrap().median
}

/// Tests that raw writes (writes without this library) must be measured for as long as the operations with which they
/// are compared: a disturbance that hits one in a hundred measurements of a millisecond hits one in eight measurements
/// of 12 ms.
#[test]
fn messages_are_written_for_as_long_as_what_they_are_compared_with() {
    let mut misjudged = 0;
    for (machine, _) in machines() {
        let [short, long] = [1e3, 12e3].map(|micros| above_of_writes(machine, micros));
        let name = machine.name;
        println!("{name}: {short:.3} of a millisecond's writes, {long:.3} of writes that last as long");
        assert!((long - 1.0).abs() <= 0.015, "{name}: {long}");
        misjudged += u32::from(short >= 1.04);
    }
    assert!(misjudged >= 2, "{misjudged} machines misjudge what is compared with a millisecond's writes");
}

/// Shows why pairs of times that were measured at different speeds are not used, not even after a conversion to the
/// same speed. The speed is measured by a chain of instructions, and a disturbance slows down the chain more than an
/// operation that waits for memory or the kernel.
#[test]
fn scaling_would_be_wrong_where_an_operation_is_slowed_less_than_the_chain() {
    let sample = |ns: f64, chain: f64| Sample { ns, chain: [chain; 2] };
    let (mut of, mut base) = (Vec::new(), Vec::new());
    for round in 0..90 {
        // In two of three rounds, the machine's speed changes between the two measurements. The change slows down the
        // chain by a factor of 1.7, and the operation by a factor of 1.4.
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
