//! Measures how the cost of a case grows with the number of threads.
//!
//! The result is the CPU time of one operation. Threads that wait for each other's cache lines use CPU time, and
//! threads that wait for a CPU do not. So the effect of eight threads on each other can be measured on two CPUs. Every
//! round measures every number of threads, in a random order.
//!
//! The measurement with one thread runs in a process with a single thread. When a process has a second thread, the
//! threads share the table of open files, and each system call on a file costs more. So the results for several threads
//! include this additional cost.

use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::instruments::clock::thread_cpu;
use crate::measure::paired::{Config, nanos};
use crate::row::{Row, Sink, Versus};
use crate::stats::{self, Interval};

/// The measured CPU times of a case with several numbers of threads.
#[derive(Clone, Debug)]
pub struct Scaling {
    threads: Vec<usize>,
    /// For every number of threads, the nanoseconds of CPU time that one operation took in each round.
    rounds: Vec<Vec<f64>>,
}

/// Measures a case on each of the numbers of threads in `threads`.
///
/// `make(i)` is called on thread `i` and makes the closure that the thread runs, so each thread has its own state. The
/// calling thread is thread 0. It should be the only thread of its process, and should not be
/// [pinned](crate::instruments::cpu::Pin), because the started threads would inherit the pinning.
///
/// # Panics
///
/// Panics if a number of threads is zero. A panic in a case aborts the process, because the other threads would wait
/// forever. During calibration, no other thread waits, and the panic unwinds to the caller.
pub fn scale<F: FnMut(u64)>(threads: &[usize], config: &Config, make: impl Fn(usize) -> F + Sync) -> Scaling {
    let [scaling] = scale_beside(threads, config, || (), [&|i| Box::new(make(i))]);
    scaling
}

/// A function that makes the closure for the thread with index `i`.
pub type Make<'a> = &'a (dyn Fn(usize) -> Box<dyn FnMut(u64) + 'a> + Sync);

/// Measures several cases like [`scale`], in the same rounds. Each case runs the number of operations that is
/// calibrated for the first case. `before` is called before each measurement, while no other thread runs.
///
/// # Panics
///
/// Panics in the same cases as [`scale`].
pub fn scale_beside<const N: usize>(
    threads: &[usize],
    config: &Config,
    mut before: impl FnMut(),
    cases: [Make<'_>; N],
) -> [Scaling; N] {
    assert!(threads.iter().all(|&n| n > 0), "no thread runs nothing");
    let iters = calibrate(config, &mut before, cases[0](0));
    // Each round starts threads, so there are fewer rounds than for cases on one thread.
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

/// Measures a case once on `threads` threads, each of which runs `iters` operations. Returns the CPU time of one
/// operation in nanoseconds.
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
        // No thread ends before all threads have measured: when only one thread is left, the table of open files is no
        // longer shared, and system calls on files cost less.
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

/// A guard that aborts the process when it is dropped, which only happens in a panic. Without the abort, the other
/// threads would wait forever for the thread that has panicked.
struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        std::process::abort();
    }
}

/// A crew: a set of threads that wait for a job, and then all run the job at the same time. Starting a job allocates
/// nothing. The threads end when the crew is dropped.
pub struct Crew<J, R> {
    shared: Arc<Shared<J, R>>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared<J, R> {
    /// The barrier at which all threads meet before and after a job.
    meet: Barrier,
    /// The next job. `None` tells the threads to end.
    job: Mutex<Option<J>>,
    results: Vec<Mutex<Option<R>>>,
}

impl<J: Copy + Send + 'static, R: Send + 'static> Crew<J, R> {
    /// Starts `count` threads. `make(i)` is called on thread `i` and makes the closure that runs the jobs on this
    /// thread. A panic in the closure aborts the process.
    ///
    /// # Panics
    ///
    /// Panics if a thread can't be started. The threads that were started then wait until the process ends.
    pub fn start<F: FnMut(J) -> R>(count: usize, make: impl Fn(usize) -> F + Send + Sync + 'static) -> Self {
        let results = (0..count).map(|_| Mutex::new(None)).collect();
        let shared = Arc::new(Shared { meet: Barrier::new(count + 1), job: Mutex::new(None), results });
        let make = Arc::new(make);
        let start = |i: usize| {
            let (shared, make) = (Arc::clone(&shared), Arc::clone(&make));
            std::thread::spawn(move || {
                let bomb = AbortOnUnwind;
                let mut work = make(i);
                loop {
                    shared.meet.wait();
                    let job = *shared.job.lock().unwrap_or_else(PoisonError::into_inner);
                    let Some(job) = job else { break };
                    let result = Some(work(job));
                    *shared.results[i].lock().unwrap_or_else(PoisonError::into_inner) = result;
                    shared.meet.wait();
                }
                std::mem::forget(bomb);
            })
        };
        let threads = (0..count).map(start).collect();
        Self { shared, threads }
    }

    /// Runs a job on all threads of the crew, and returns the results in the order of the threads.
    pub fn run(&self, job: J) -> impl Iterator<Item = R> {
        let Shared { meet, job: next, results } = &*self.shared;
        *next.lock().unwrap_or_else(PoisonError::into_inner) = Some(job);
        meet.wait();
        meet.wait();
        results.iter().filter_map(|result| result.lock().unwrap_or_else(PoisonError::into_inner).take())
    }
}

impl<J, R> Drop for Crew<J, R> {
    fn drop(&mut self) {
        *self.shared.job.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.shared.meet.wait();
        for thread in self.threads.drain(..) {
            // The join cannot fail: a panic aborts the process.
            let _ = thread.join();
        }
    }
}

/// Returns a number of operations that takes enough CPU time to justify the start of threads for a measurement.
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
    /// Returns the nanoseconds of CPU time of one operation with this number of threads.
    pub fn ns(&self, threads: usize) -> Option<Interval> {
        Interval::of(self.rounds(threads)?)
    }

    /// Returns the CPU time of an operation on `threads` threads, divided by the CPU time of an operation on `base`
    /// threads.
    pub fn ratio(&self, threads: usize, base: usize) -> Option<Interval> {
        stats::ratio(self.rounds(threads)?, self.rounds(base)?)
    }

    /// Returns the ratio of the growth in this case to the growth in the case `other`, which ran in the same rounds.
    /// The growth is the factor by which the CPU time of an operation grows from `base` to `threads` threads.
    pub fn growth(&self, other: &Self, threads: usize, base: usize) -> Option<Interval> {
        let of = |scaling: &Self| {
            let (many, few) = (scaling.rounds(threads)?, scaling.rounds(base)?);
            Some(many.iter().zip(few).map(|(many, few)| many / few).collect::<Vec<_>>())
        };
        stats::ratio(&of(self)?, &of(other)?)
    }

    /// Makes a row (a result) `<id>/<n>_threads` for every number `n` of threads. Each row has the ratio to the row of
    /// the first number of threads.
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
        // The closure of thread 0 is created two more times than the others: for the run of one thread, and for the
        // calibration.
        assert_eq!(made.map(|m| m.into_inner()), [3, 1, 1, 1]);
        // In all, five threads ran, and each of them ran one warm-up operation and one timed operation.
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
    fn each_number_of_threads_has_a_row() {
        let scaling = scale(&[1, 2, 4], &Config::quick(), |_| crate::instruments::chain::run::<2>);
        assert!(scaling.ratio(4, 1).unwrap().median > 0.0);
        let rows = scaling.rows("limit/chain", Sink::None);
        assert_eq!(
            rows.iter().map(|r| &r.id[..]).collect::<Vec<_>>(),
            ["limit/chain/1_thread", "limit/chain/2_threads", "limit/chain/4_threads"]
        );
        assert_eq!(rows[2].vs.keys().collect::<Vec<_>>(), ["limit/chain/1_thread"]);
    }
}
