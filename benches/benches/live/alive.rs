//! The tasks that are alive while they are dumped.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use atrace_benches::measure::workload::{Tracing, Wrong};
use atrace_subscriber::live;
use tokio::runtime::Builder;
use tokio::sync::Notify;
use tracing::info_span;

use super::modes;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One task in a delay that doesn't end.
    Delay,
    /// One task in one of 10,000 short delays, again and again.
    Delays,
    /// A thousand, each in a delay that doesn't end.
    Tasks,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::Delay, Self::Delays, Self::Tasks];

    /// The case of its dumps, with or without the frames of each span's creation.
    pub(crate) fn id(self, fetched: bool) -> String {
        let name = match self {
            Self::Delay => "long_delay",
            Self::Delays => "10000_delays",
            Self::Tasks => "1000_tasks",
        };
        format!("rust/dump_of_{name}{}", if fetched { "/fetched" } else { "" })
    }

    /// How many frames a dump of them has, once it is known: each as many, as they are made in the same place.
    pub(crate) fn frames(self) -> &'static OnceLock<u64> {
        static FRAMES: [OnceLock<u64>; 3] = [const { OnceLock::new() }; 3];
        &FRAMES[self as usize]
    }

    pub(crate) fn tasks(self) -> u64 {
        match self {
            Self::Delay | Self::Delays => 1,
            Self::Tasks => 1000,
        }
    }
}

/// A thread with a runtime that has them, until it is dropped.
pub(crate) struct Alive<T> {
    kind: Kind,
    over: Arc<Notify>,
    thread: Option<JoinHandle<()>>,
    tracing: PhantomData<T>,
}

impl<T> Drop for Alive<T> {
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
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    }
}

impl<T: Tracing> Alive<T> {
    /// Starts them, and waits until all wait and the layer, if there is one, knows as many.
    pub(crate) fn new(kind: Kind) -> Result<Self, Wrong> {
        let over = Arc::new(Notify::new());
        let [failed, all_wait] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let thread = std::thread::spawn({
            let (over, failed, all_wait) = (Arc::clone(&over), Arc::clone(&failed), Arc::clone(&all_wait));
            move || match Builder::new_current_thread().enable_time().build() {
                Ok(runtime) => runtime.block_on(async {
                    let waiting = Arc::new(AtomicU64::new(0));
                    for n in 0..kind.tasks() {
                        let waiting = Arc::clone(&waiting);
                        // Of 10,000 delays at least 10 s pass: longer than anybody asks.
                        tokio::spawn(T::spanned(
                            async move {
                                loop {
                                    delay(kind, Arc::clone(&waiting)).await;
                                }
                            },
                            || info_span!("task", n),
                        ));
                    }
                    // While this runs, none of them does: it is inside no span.
                    while waiting.load(Ordering::Relaxed) < kind.tasks() {
                        tokio::task::yield_now().await;
                    }
                    all_wait.store(true, Ordering::Relaxed);
                    over.notified().await;
                }),
                Err(_) => failed.store(true, Ordering::Relaxed),
            }
        });
        let alive = Self { kind, over, thread: Some(thread), tracing: PhantomData };
        let expected = modes::expected(kind.tasks()).spans;
        let start = Instant::now();
        while !all_wait.load(Ordering::Relaxed) || live::dump().len() as u64 != expected {
            if failed.load(Ordering::Relaxed) || start.elapsed() > Duration::from_secs(20) {
                return Err(format!("{} of {expected} spans are alive", live::dump().len()));
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(alive)
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }
}
