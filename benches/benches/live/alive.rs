//! The threads that run beside the measuring thread. Either one thread keeps tasks alive, and the measuring thread
//! makes dumps of the tasks' spans. Or two threads, each with its own runtime, run the same operation at the same time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use atrace_benches::measure::threads::Crew;
use atrace_benches::measure::workload::{Tracing, Wrong};
use atrace_subscriber::live;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;
use tracing::info_span;

use crate::{Body, modes};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One task, which waits for a delay of an hour.
    Delay,
    /// One task, which awaits 10,000 delays of 10 ms, one after the other.
    Delays,
    /// A thousand tasks, each of which waits for a delay of an hour.
    Tasks,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::Delay, Self::Delays, Self::Tasks];

    /// Returns the id of the case that makes dumps of these tasks' spans. If `fetched` is true, the case also gets the
    /// frames of each span's backtrace.
    pub(crate) fn id(self, fetched: bool) -> String {
        let name = ["long_delay", "10000_delays", "1000_tasks"][self as usize];
        format!("rust/dump_of_{name}{}", if fetched { "/fetched" } else { "" })
    }

    /// Returns the cell for the number of frames in a dump, which is set once the number is known. All dumps have the
    /// same number of frames, because all spans are created in the same place in the code.
    pub(crate) fn frames(self) -> &'static OnceLock<u64> {
        static FRAMES: [OnceLock<u64>; 3] = [const { OnceLock::new() }; 3];
        &FRAMES[self as usize]
    }

    pub(crate) fn tasks(self) -> u64 {
        if self == Self::Tasks { 1000 } else { 1 }
    }
}

/// A thread that keeps tasks alive in a runtime until this value is dropped.
pub(crate) struct Alive {
    pub(crate) kind: Kind,
    over: Arc<Notify>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.over.notify_one();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

async fn delay(kind: Kind, waiting: Arc<AtomicU64>) {
    waiting.fetch_add(1, Ordering::Relaxed);
    match kind {
        Kind::Delay | Kind::Tasks => tokio::time::sleep(Duration::from_secs(3600)).await,
        Kind::Delays => {
            for _ in 0..10_000 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

/// Runs the tasks of a kind until `over` is notified. Sets `all_wait` to true when all tasks wait.
fn have<T: Tracing>(kind: Kind, all_wait: &AtomicBool, over: &Notify) {
    let Ok(runtime) = Builder::new_current_thread().enable_time().build() else { return };
    runtime.block_on(async {
        let waiting = Arc::new(AtomicU64::new(0));
        for n in 0..kind.tasks() {
            let waiting = Arc::clone(&waiting);
            // The loop never runs a second time while the tasks are needed: even the 10,000 delays take at least 100 s.
            let task = async move {
                loop {
                    delay(kind, Arc::clone(&waiting)).await;
                }
            };
            tokio::spawn(T::spanned(task, || info_span!("task", n)));
        }
        // All tasks run on this thread. So when this loop finds that all tasks wait, no task is inside its span.
        while waiting.load(Ordering::Relaxed) < kind.tasks() {
            tokio::task::yield_now().await;
        }
        all_wait.store(true, Ordering::Relaxed);
        over.notified().await;
    });
}

impl Alive {
    /// Starts the thread and the tasks. Returns when all tasks wait and, if a layer that tracks spans is installed,
    /// when the layer has recorded the spans of all tasks.
    pub(crate) fn new<T: Tracing>(kind: Kind) -> Result<Self, Wrong> {
        let (over, all_wait) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
        let theirs = (Arc::clone(&all_wait), Arc::clone(&over));
        let thread = std::thread::spawn(move || have::<T>(kind, &theirs.0, &theirs.1));
        let alive = Self { kind, over, thread: Some(thread) };
        let expected = modes::expected(kind.tasks()).spans;
        let start = Instant::now();
        while !all_wait.load(Ordering::Relaxed) || live::dump().spans().len() as u64 != expected {
            let failed = alive.thread.as_ref().is_none_or(JoinHandle::is_finished);
            if failed || start.elapsed() > Duration::from_secs(20) {
                return Err(format!("{} of {expected} spans are alive", live::dump().spans().len()));
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(alive)
    }
}

pub(crate) const THREADS: u32 = 2;

/// Two threads, each with its own runtime, that run the same operation at the same time, a given number of times in
/// total.
pub(crate) type Team = Crew<(Body, u64), Result<(u64, Duration), Wrong>>;

pub(crate) fn team(runtime: fn() -> Result<Runtime, Wrong>) -> Team {
    let start = move |number| {
        let runtime = runtime();
        move |(body, all): (Body, u64)| {
            let threads = u64::from(THREADS);
            let own = all / threads + u64::from((number as u64) < all % threads);
            let start = Instant::now();
            let ran = body(runtime.as_ref().map_err(Wrong::clone)?, own);
            Ok((ran, start.elapsed()))
        }
    };
    Crew::start(THREADS as usize, start)
}

/// Runs half of the `n` operations on each thread. Returns how many operations ran, and the sum of the times of the two
/// threads.
pub(crate) fn together(team: &Team, body: Body, n: u64) -> Result<(u64, Duration), Wrong> {
    team.run((body, n)).try_fold((0, Duration::ZERO), |(ran, took), share| {
        share.map(|(more, longer)| (ran + more, took + longer))
    })
}
