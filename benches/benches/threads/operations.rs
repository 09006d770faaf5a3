//! The operation of this bench: it creates and starts a thread or a task, and waits until it has ended.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use atrace_benches::instruments::profile::{Started, minor_faults};
use atrace_benches::measure::workload::{Done, Tracing, Wrong};
use tokio::runtime::Runtime;

use super::clients::{CLIENTS, Clients, Share, roles, stay};
use super::jobs::{KeyPairs, Requests, Work};
use super::{Job, Kind, Setup, WORKERS, count, server};

/// Returns a closure that runs a number of operations with the configuration `setup`, and returns a report about them.
pub(crate) fn of<T: Tracing>(setup: Setup) -> impl FnMut(u64) -> Result<Done, Wrong> + 'static {
    let mut team = None;
    move |n| {
        let team: &mut Team = match &mut team {
            Some(team) => team,
            none => none.insert(Team::start::<T>(setup)?),
        };
        team.run(setup, n)
    }
}

/// The clients (threads that start operations), and the counters of their work.
pub(crate) struct Team {
    clients: Clients,
    polls: Arc<AtomicU64>,
    /// The number of threads on which an operation of this team has ever run.
    started: u64,
    /// Whether each client (a thread that starts operations) has already run an operation.
    warm: bool,
}

impl Team {
    fn start<T: Tracing>(setup: Setup) -> Result<Self, Wrong> {
        match setup.job {
            Job::Nonio => Self::of::<T, _>(setup.kind, KeyPairs),
            Job::Io(delay) => {
                let address = server().map_err(|e| format!("where the server is: {e}"))?;
                Self::of::<T, _>(setup.kind, Requests { address, delay })
            }
        }
    }

    pub(crate) fn of<T: Tracing, W: Work>(kind: Kind, work: W) -> Result<Self, Wrong> {
        let polls = Arc::new(AtomicU64::new(0));
        let clients = match kind {
            Kind::Kernel => Clients::start::<W>(move |number| {
                let thread = std::thread::Builder::new().spawn(move || {
                    Started::seen();
                    let span = T::span(|| W::span(number));
                    T::within(&span, || {
                        let output = work.block(number);
                        T::event(W::event);
                        output
                    })
                });
                let thread = thread.map_err(|e| format!("a thread can't be started: {e}"))?;
                thread.join().map_err(|_| format!("thread {number} has panicked"))?
            }),
            Kind::Task => {
                let runtime = runtime().map_err(|e| format!("the runtime: {e}"))?;
                let polls = Arc::clone(&polls);
                Clients::start::<W>(move |number| {
                    let task = counted(Arc::clone(&polls), async move {
                        let output = work.poll(number).await;
                        T::event(W::event);
                        output
                    });
                    let task = runtime.spawn(T::spanned(task, || W::span(number)));
                    runtime.block_on(task).map_err(|e| format!("task {number}: {e}"))?
                })
            }
        };
        Ok(Self { clients, polls, started: 0, warm: false })
    }

    pub(crate) fn run(&mut self, Setup { kind, job }: Setup, n: u64) -> Result<Done, Wrong> {
        let delay = match job {
            Job::Nonio => Duration::ZERO,
            Job::Io(milliseconds) => Duration::from_millis(milliseconds.into()),
        };
        let faults = || minor_faults().map_err(|e| format!("page faults: {e}"));
        // Returns the number of messages of `n` operations that were polled `polls` times.
        let messages = |n: u64, polls: u64| match kind {
            // There are two messages for the span, and one for the event.
            Kind::Kernel => 3 * n,
            // The span is entered for each poll, and when the task is dropped. There is also one message for the event.
            Kind::Task => 2 * (polls + n) + n,
        };
        let (first_polls, first_started) = (self.polls.load(Relaxed), Started::count());
        let (mut before, mut lives) = (0, n);
        if !self.warm {
            self.clients.run(CLIENTS as u64, true)?;
            before = messages(CLIENTS as u64, self.polls.load(Relaxed) - first_polls);
            lives += CLIENTS as u64;
            self.warm = true;
        }
        let (faults_before, started_before) = (faults()?, Started::count());
        let polls_before = self.polls.load(Relaxed);
        // If there are as many operations as clients, each client runs one operation, so that all clients are busy.
        let shares = self.clients.run(n, n == CLIENTS as u64)?;
        let polls = self.polls.load(Relaxed) - polls_before;
        let started = Started::count() - started_before;
        let faults = faults()? - faults_before;
        self.started += Started::count() - first_started;
        let messages = messages(n, polls);
        // A client sends its next request only after an answer, so the delays of its requests add up.
        let waits = |share: &Share| delay * u32::try_from(share.ops).unwrap_or(u32::MAX);
        if let Some(share) = shares.iter().find(|share| share.took < waits(share)) {
            return Err(format!("{} answers in {:?}: each should take {delay:?}", share.ops, share.took));
        }
        match kind {
            Kind::Kernel if started != n => {
                return Err(format!("{n} operations have started {started} threads"));
            }
            Kind::Task if self.started > WORKERS as u64 => {
                return Err(format!("tasks ran on {} threads, there are {WORKERS} workers", self.started));
            }
            Kind::Task if polls < n => return Err(format!("{n} tasks were polled {polls} times")),
            _ => {}
        }
        // As in the original benchmark, the time of an operation is the sum of both clients' times, divided by the
        // number of operations. So the reported time is this sum.
        let (busy_ops, busy_time) = Share::all_busy(&shares);
        // Only the spans of tasks have lives (slices from the creation of a span until it closes), because the span of
        // a task is entered more than once.
        let lives = if kind == Kind::Task { [lives; 2] } else { [0; 2] };
        let took = Some(Share::time(&shares));
        Ok(Done { messages: before + messages, lives, took, ..Done::new() }
            .count(count::MESSAGES, messages)
            .count(count::POLLS, polls)
            .count(count::FAULTS, faults)
            .count(count::STARTED, started)
            .rate(count::THROUGHPUT, busy_ops, busy_time))
    }
}

fn runtime() -> std::io::Result<Runtime> {
    let places = AtomicUsize::new(0);
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .enable_io()
        .on_thread_start(move || {
            roles::enter("workers");
            // The pin is never dropped, so that the thread stays pinned until it ends.
            std::mem::forget(stay(places.fetch_add(1, Relaxed)));
        })
        .build()
}

/// Counts how many times a future is polled, and how many threads poll futures. Polls are counted in every mode
/// (configuration of tracing), so that the counting changes no comparison.
async fn counted<F: Future>(polls: Arc<AtomicU64>, future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|context| {
        Started::seen();
        polls.fetch_add(1, Relaxed);
        future.as_mut().poll(context)
    })
    .await
}
