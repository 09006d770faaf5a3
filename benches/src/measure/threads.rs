//! Measures how a case behaves when several threads run it.
//!
//! What counts is the CPU time of one operation: threads that wait for each other's cache lines
//! burn it, threads that merely wait for a CPU don't, so that eight threads can be measured on two
//! CPUs. Every round runs every number of threads, in an order that changes.
//!
//! One thread is measured as the single thread of its process. From the second on, the kernel
//! shares the table of open files, and each system call on a file costs more; that is part of what
//! several threads cost.

use std::sync::Barrier;
use std::time::Duration;

use crate::instruments::clock::thread_cpu;
use crate::measure::paired::{Config, nanos};
use crate::row::{Row, Sink, Versus};
use crate::stats::{self, Interval};

/// How often a case ran with several numbers of threads, and what it cost.
#[derive(Clone, Debug)]
pub struct Scaling {
    threads: Vec<usize>,
    /// For every number of threads, the nanoseconds of one operation in every round.
    rounds: Vec<Vec<f64>>,
}

/// Runs a case on each of these numbers of threads.
///
/// `make(i)` is called on thread `i` and makes what that thread runs, so that each has its own
/// state. The calling thread is the first; it should be the only one of its process, and not be
/// [pinned](crate::instruments::cpu::Pin), since those it starts would be too.
///
/// # Panics
///
/// When a number of threads is zero. A case that panics aborts the process: the other threads would
/// wait for it forever.
pub fn scale<F: FnMut(u64)>(threads: &[usize], config: &Config, make: impl Fn(usize) -> F + Sync) -> Scaling {
    let [scaling] = scale_beside(threads, config, || (), [&|i| Box::new(make(i))]);
    scaling
}

/// What makes what thread `i` runs.
pub type Make<'a> = &'a (dyn Fn(usize) -> Box<dyn FnMut(u64) + 'a> + Sync);

/// The same for several cases, in the same rounds, each as often as the first. `before` is called before each of them, while no
/// other thread runs.
///
/// # Panics
///
/// As [`scale`].
pub fn scale_beside<const N: usize>(
    threads: &[usize],
    config: &Config,
    mut before: impl FnMut(),
    cases: [Make<'_>; N],
) -> [Scaling; N] {
    assert!(threads.iter().all(|&n| n > 0), "no thread runs nothing");
    let iters = calibrate(config, &mut before, cases[0](0));
    // A thread is started in each round: enough of them to be sure, not as many as for slices.
    let rounds = if config.once { 1 } else { (config.min_rounds / 4).max(12) };
    let none = || Scaling { threads: threads.to_vec(), rounds: vec![Vec::new(); threads.len()] };
    let mut all = std::array::from_fn(|_| none());
    let mut order: Vec<(usize, usize)> =
        (0..N).flat_map(|case| (0..threads.len()).map(move |i| (case, i))).collect();
    let mut random = fastrand::Rng::with_seed(config.seed);
    for _ in 0..rounds {
        random.shuffle(&mut order);
        for &(case, i) in &order {
            before();
            all[case].rounds[i].push(round(threads[i], iters, &cases[case]));
        }
    }
    all
}

/// Runs the case once on `threads` threads and returns the nanoseconds of one operation.
fn round<F: FnMut(u64)>(threads: usize, iters: u64, make: &(impl Fn(usize) -> F + Sync)) -> f64 {
    let barrier = Barrier::new(threads);
    let work = &|i: usize| {
        let bomb = AbortOnUnwind;
        let mut run = make(i);
        run(iters / 8 + 1);
        barrier.wait();
        let start = thread_cpu();
        run(iters);
        let took = thread_cpu() - start;
        // A thread that ends makes the table of open files the others' alone again: all stay.
        barrier.wait();
        std::mem::forget(bomb);
        took
    };
    let total: Duration = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|i| scope.spawn(move || work(i))).collect();
        let own = work(0);
        others.into_iter().map(|t| t.join().expect("a thread that panics aborts")).sum::<Duration>() + own
    });
    nanos(total, iters * threads as u64)
}

/// Aborts when it is dropped, which is only when something unwinds.
struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        std::process::abort();
    }
}

/// Finds how often the case runs in a slice of CPU time, long enough to start threads for.
fn calibrate(config: &Config, before: &mut impl FnMut(), mut run: impl FnMut(u64)) -> u64 {
    if config.once {
        return 1;
    }
    let slice = config.slice * 4;
    let mut n = 1_u64;
    loop {
        before();
        let start = thread_cpu();
        run(n);
        let took = thread_cpu() - start;
        if took >= slice / 2 || n >= 1 << 40 {
            return n;
        }
        n *= 2;
    }
}

impl Scaling {
    /// Returns the CPU nanoseconds of one operation on this many threads.
    pub fn ns(&self, threads: usize) -> Option<Interval> {
        Interval::of(self.rounds(threads)?)
    }

    /// Returns how many times as much CPU time an operation takes as on `base` threads.
    pub fn ratio(&self, threads: usize, base: usize) -> Option<Interval> {
        stats::ratio(self.rounds(threads)?, self.rounds(base)?)
    }

    /// Returns how many times as much more CPU time an operation takes than on `base` threads as one of `other` does, which
    /// ran in the same rounds.
    pub fn growth(&self, other: &Self, threads: usize, base: usize) -> Option<Interval> {
        let of = |scaling: &Self| {
            let (many, few) = (scaling.rounds(threads)?, scaling.rounds(base)?);
            Some(many.iter().zip(few).map(|(many, few)| many / few).collect::<Vec<_>>())
        };
        stats::ratio(&of(self)?, &of(other)?)
    }

    /// Makes a row `<id>/<n>_threads` for every number of threads, compared to the first of them.
    pub fn rows(&self, id: &str, sink: Sink) -> Vec<Row> {
        let name = |n: usize| format!("{id}/{n}_thread{}", if n == 1 { "" } else { "s" });
        let row = |&n: &usize| {
            let mut row = Row::new(name(n), self.ns(n)?, sink).with_rounds(self.rounds(n)?);
            let first = *self.threads.first()?;
            if n != first {
                row.vs.insert(name(first), Versus::from(self.ratio(n, first)?));
            }
            Some(row)
        };
        self.threads.iter().filter_map(row).collect()
    }

    fn rounds(&self, threads: usize) -> Option<&[f64]> {
        Some(&self.rounds[self.threads.iter().position(|&n| n == threads)?])
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

    use super::*;

    #[test]
    fn every_thread_runs_its_own() {
        let made = [const { AtomicUsize::new(0) }; 4];
        let ran = AtomicU64::new(0);
        let config = Config::test();
        let scaling = scale(&[1, 4], &config, |i| {
            made[i].fetch_add(1, Relaxed);
            let ran = &ran;
            move |n| {
                ran.fetch_add(n, Relaxed);
            }
        });
        // Thread 0 once more, to calibrate.
        assert_eq!(made.map(|m| m.into_inner()), [3, 1, 1, 1]);
        // Each of the five ran once to warm up and once timed.
        assert_eq!(ran.into_inner(), 10);
        assert!(scaling.ns(4).is_some() && scaling.ns(2).is_none());
    }

    #[test]
    fn growth_is_beside_what_else_grew() {
        let scaling =
            |one: f64, two: f64| Scaling { threads: vec![1, 2], rounds: vec![vec![one; 9], vec![two; 9]] };
        let growth = scaling(10.0, 33.0).growth(&scaling(5.0, 15.0), 2, 1).unwrap();
        assert!((growth.median - 1.1).abs() < 1e-9, "{growth:?}");
        assert_eq!(scaling(1.0, 1.0).growth(&scaling(1.0, 1.0), 4, 1), None);
    }

    #[test]
    fn what_shares_nothing_does_not_grow() {
        // More threads than CPUs, and whatever else runs: CPU time is all that counts.
        let scaling = scale(&[1, 2, 4], &Config::quick(), |_| crate::instruments::chain::run::<2>);
        let ratio = scaling.ratio(4, 1).unwrap();
        // Two hyperthreads of one core share its units: half as much again would be no surprise.
        assert!((0.6..1.8).contains(&ratio.median), "{ratio:?}");
        let rows = scaling.rows("limit/chain", Sink::None);
        assert_eq!(
            rows.iter().map(|r| &r.id[..]).collect::<Vec<_>>(),
            ["limit/chain/1_thread", "limit/chain/2_threads", "limit/chain/4_threads"]
        );
        assert_eq!(rows[2].vs.keys().collect::<Vec<_>>(), ["limit/chain/1_thread"]);
    }
}
