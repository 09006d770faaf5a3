//! Two threads, each with a runtime of its own, that run the same at the same time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use atrace_benches::measure::workload::Wrong;
use tokio::runtime::Runtime;

use super::Body;

pub(crate) const THREADS: u32 = 2;

/// What is to be done. Nothing in it allocates: what is counted is the work alone.
#[derive(Default)]
struct Work {
    body: Mutex<Option<Body>>,
    operations: AtomicU64,
    over: AtomicBool,
    ran: AtomicU64,
    nanos: AtomicU64,
    failed: AtomicBool,
}

pub(crate) struct Team {
    work: Arc<Work>,
    /// Where all meet before work, and after.
    meet: Arc<Barrier>,
    threads: Vec<JoinHandle<()>>,
}

impl Drop for Team {
    fn drop(&mut self) {
        self.work.over.store(true, Ordering::Relaxed);
        self.meet.wait();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Team {
    pub(crate) fn new(runtime: fn() -> Result<Runtime, Wrong>) -> Self {
        let work = Arc::<Work>::default();
        let meet = Arc::new(Barrier::new(THREADS as usize + 1));
        let start = |number| {
            let (work, meet) = (Arc::clone(&work), Arc::clone(&meet));
            std::thread::spawn(move || member(number, &work, &meet, runtime))
        };
        let threads = (0..u64::from(THREADS)).map(start).collect();
        Self { work, meet, threads }
    }

    /// Has each run half of the operations; returns how many bodies ran, and the time of all threads together.
    pub(crate) fn run(&self, body: Body, n: u64) -> Result<(u64, Duration), Wrong> {
        let work = &self.work;
        *work.body.lock().unwrap_or_else(PoisonError::into_inner) = Some(body);
        for (word, value) in [(&work.operations, n), (&work.ran, 0), (&work.nanos, 0)] {
            word.store(value, Ordering::Relaxed);
        }
        self.meet.wait();
        self.meet.wait();
        if work.failed.load(Ordering::Relaxed) {
            return Err("a thread has no runtime, or panicked".to_owned());
        }
        Ok((work.ran.load(Ordering::Relaxed), Duration::from_nanos(work.nanos.load(Ordering::Relaxed))))
    }
}

/// Proves that the time of both is added up, of a body that takes so long at least.
pub(crate) fn prove(runtime: fn() -> Result<Runtime, Wrong>) {
    const LONG: Duration = Duration::from_millis(5);
    let sleeps = |_: &Runtime, n| {
        std::thread::sleep(LONG);
        n
    };
    let (ran, took) = Team::new(runtime).run(sleeps, 2).expect("both have a runtime");
    assert!(ran == 2 && took >= LONG * THREADS, "{ran} bodies in {took:?}");
}

fn member(number: u64, work: &Work, meet: &Barrier, runtime: fn() -> Result<Runtime, Wrong>) {
    let runtime = runtime();
    loop {
        meet.wait();
        if work.over.load(Ordering::Relaxed) {
            return;
        }
        let all = work.operations.load(Ordering::Relaxed);
        let threads = u64::from(THREADS);
        let own = all / threads + u64::from(number < all % threads);
        let body = *work.body.lock().unwrap_or_else(PoisonError::into_inner);
        let start = Instant::now();
        // One that panics must come to the meeting, or everybody waits.
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            Some(body?(runtime.as_ref().ok()?, own))
        }));
        let nanos = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        match ran.ok().flatten() {
            Some(ran) => {
                work.ran.fetch_add(ran, Ordering::Relaxed);
                work.nanos.fetch_add(nanos, Ordering::Relaxed);
            }
            None => work.failed.store(true, Ordering::Relaxed),
        }
        meet.wait();
    }
}
