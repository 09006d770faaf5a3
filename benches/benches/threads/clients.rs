//! The clients: threads that run operations one after the other. An operation starts a thread or a task, and waits
//! until it has ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use atrace_benches::instruments::cpu::{self, Pin};
use atrace_benches::measure::threads::Crew;
use atrace_benches::measure::workload::Wrong;

use super::jobs::Work;

/// The number of clients. The original benchmark has the same number.
pub(crate) const CLIENTS: usize = 2;

/// The number of operations that a client has run in a measurement, and the time that they took.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Share {
    pub(crate) ops: u64,
    pub(crate) took: Duration,
}

impl Share {
    /// Returns the sum of the times of all clients.
    pub(crate) fn time(shares: &[Self]) -> Duration {
        shares.iter().map(|share| share.took).sum()
    }

    /// Returns the number of operations that ran while all clients were busy, and the length of that time. The time
    /// ends when the first client has finished its last operation. Each client's number of operations is scaled to this
    /// time, so that the operations still running at its end count in part.
    pub(crate) fn all_busy(shares: &[Self]) -> (f64, Duration) {
        let time = shares.iter().map(|share| share.took).min().unwrap_or_default();
        let part = |share: &Self| share.ops as f64 * time.as_secs_f64() / share.took.as_secs_f64();
        let ops = if time.is_zero() { 0.0 } else { shares.iter().map(part).sum() };
        (ops, time)
    }
}

/// A request to the clients: the number of the first operation that must not run, and whether each client runs only one
/// operation.
type Order = (u64, bool);

/// A crew of clients (threads), which together run a requested number of operations.
pub(crate) struct Clients {
    crew: Crew<Order, Result<Share, Wrong>>,
    /// The number of the operation that the next free client runs.
    next: Arc<AtomicU64>,
    until: u64,
}

impl Clients {
    /// Starts the clients. `operate` runs the operation with a given number, and returns the result of the work.
    pub(crate) fn start<W: Work>(
        operate: impl Fn(u64) -> Result<W::Output, Wrong> + Send + Sync + 'static,
    ) -> Self {
        let (next, operate) = (Arc::new(AtomicU64::new(0)), Arc::new(operate));
        let numbers = Arc::clone(&next);
        let make = move |i| {
            roles::enter("clients");
            let (stays, mut last) = (stay(i), None);
            let (numbers, operate) = (Arc::clone(&numbers), Arc::clone(&operate));
            move |order| {
                let _ = &stays;
                slice::<W>(&numbers, order, &*operate, &mut last)
            }
        };
        Self { crew: Crew::start(CLIENTS, make), next, until: 0 }
    }

    /// Runs `n` operations. A client takes the next operation whenever it is free, so the clients end at about the same
    /// time. If `each` is true, each client runs only one operation, so that all clients do the work that a thread does
    /// only at first.
    pub(crate) fn run(&mut self, n: u64, each: bool) -> Result<[Share; CLIENTS], Wrong> {
        self.next.store(self.until, Relaxed);
        self.until += n;
        let mut shares = [Share::default(); CLIENTS];
        for (share, ran) in shares.iter_mut().zip(self.crew.run((self.until, each))) {
            *share = ran?;
        }
        let ops = shares.iter().map(|share| share.ops).sum::<u64>();
        if ops == n { Ok(shares) } else { Err(format!("{ops} operations instead of {n}")) }
    }
}

/// Runs operations one after the other on one client, and checks their results. The last result is also checked
/// thoroughly, which is not timed.
fn slice<W: Work>(
    next: &AtomicU64,
    (until, each): Order,
    operate: &impl Fn(u64) -> Result<W::Output, Wrong>,
    last: &mut Option<W::Output>,
) -> Result<Share, Wrong> {
    let mut share = Share::default();
    let start = Instant::now();
    while share.ops == 0 || !each {
        let number = next.fetch_add(1, Relaxed);
        if number >= until {
            break;
        }
        let output = operate(number)?;
        W::check(&output, last.as_ref())?;
        *last = Some(output);
        share.ops += 1;
        share.took = start.elapsed();
    }
    match last {
        Some(last) if share.ops > 0 => W::check_well(last)?,
        _ => {}
    }
    Ok(share)
}

/// Pins the calling thread, and the threads that it starts, to the CPU with index `place` until the returned
/// value is dropped.
///
/// Without pinning, the kernel occasionally runs all threads on one CPU for some milliseconds. An operation then takes
/// twice as long, which is a much larger difference than the cost of tracing. If pinning fails, the function returns
/// `None`, and the thread is not pinned.
pub(crate) fn stay(place: usize) -> Option<Pin> {
    cpu::of_place(place).and_then(Pin::to).ok()
}

/// The roles of the threads of this process, by thread id, for the sampler of thread states.
pub(crate) mod roles {
    use std::collections::BTreeMap;
    use std::sync::{Mutex, PoisonError};

    use rustix::thread::gettid;

    static ROLES: Mutex<BTreeMap<i32, &'static str>> = Mutex::new(BTreeMap::new());

    /// Sets the role of the calling thread.
    pub(crate) fn enter(role: &'static str) {
        let tid = gettid().as_raw_nonzero().get();
        ROLES.lock().unwrap_or_else(PoisonError::into_inner).insert(tid, role);
    }

    /// Removes the roles of all threads, and gives the calling thread the role `main`.
    pub(crate) fn clear() {
        ROLES.lock().unwrap_or_else(PoisonError::into_inner).clear();
        enter("main");
    }

    /// Returns the role of a thread. The role is `operations` if none was set, because such threads were started by an
    /// operation.
    pub(crate) fn of(tid: i32) -> &'static str {
        ROLES.lock().unwrap_or_else(PoisonError::into_inner).get(&tid).copied().unwrap_or("operations")
    }
}
