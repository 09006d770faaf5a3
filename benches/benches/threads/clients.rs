//! The threads that start the others: each runs one operation after the other.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use atrace_benches::instruments::cpu::{self, Pin};
use atrace_benches::measure::workload::Wrong;

/// How many of them there are, as in the original.
pub(crate) const CLIENTS: usize = 2;

/// What a client does.
pub(crate) trait Client: Send + 'static {
    /// Runs an operation, and checks what came of it.
    fn operate(&mut self, number: u64) -> Result<(), Wrong>;

    /// Checks more of the last one, once a slice and not timed.
    fn check(&mut self) -> Result<(), Wrong>;
}

/// What a client has done in a slice.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Share {
    pub(crate) ops: u64,
    pub(crate) took: Duration,
}

impl Share {
    /// What all of them took together, and how many operations a second: each one's, added up.
    pub(crate) fn sum(shares: &[Self]) -> (Duration, f64) {
        let ran = || shares.iter().filter(|share| share.ops > 0);
        (
            ran().map(|share| share.took).sum(),
            ran().map(|share| share.ops as f64 / share.took.as_secs_f64()).sum(),
        )
    }
}

struct Shared {
    begin: Barrier,
    end: Barrier,
    stop: AtomicBool,
    /// Each is to run one operation.
    each: AtomicBool,
    /// The next operation's number, and the first that is not to be run any more.
    next: AtomicU64,
    until: AtomicU64,
    shares: [Mutex<Result<Share, Wrong>>; CLIENTS],
}

/// Clients that wait to be told how many operations to run together.
///
/// Telling them allocates nothing.
pub(crate) struct Clients {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Clients {
    /// Starts them.
    pub(crate) fn start<C: Client>(make: impl Fn() -> C) -> Result<Self, Wrong> {
        let shared = Arc::new(Shared {
            begin: Barrier::new(CLIENTS + 1),
            end: Barrier::new(CLIENTS + 1),
            stop: AtomicBool::new(false),
            each: AtomicBool::new(false),
            next: AtomicU64::new(0),
            until: AtomicU64::new(0),
            shares: [const { Mutex::new(Ok(Share { ops: 0, took: Duration::ZERO })) }; CLIENTS],
        });
        let start = |i: usize| {
            let (shared, mut client) = (Arc::clone(&shared), make());
            let run = move || {
                roles::enter("clients");
                let _stays = stay(i);
                serve(&shared, &mut client, i);
            };
            std::thread::Builder::new().name(format!("client {i}")).spawn(run)
        };
        let threads: Result<Vec<_>, _> = (0..CLIENTS).map(start).collect();
        let threads = threads.map_err(|e| format!("a client can't be started: {e}"))?;
        Ok(Self { shared, threads })
    }

    /// Has them run `n` operations, each taking the next one when it is free, so that they end together.
    pub(crate) fn run(&self, n: u64) -> Result<[Share; CLIENTS], Wrong> {
        self.shared.each.store(false, Relaxed);
        self.turn(n)
    }

    /// Has each of them run one operation: then whatever a thread sets up once is set up in all of them.
    pub(crate) fn run_each(&self) -> Result<(), Wrong> {
        self.shared.each.store(true, Relaxed);
        self.turn(CLIENTS as u64).map(drop)
    }

    fn turn(&self, n: u64) -> Result<[Share; CLIENTS], Wrong> {
        let first = self.shared.until.load(Relaxed);
        self.shared.next.store(first, Relaxed);
        self.shared.until.store(first + n, Relaxed);
        self.shared.begin.wait();
        self.shared.end.wait();
        let mut shares = [Share::default(); CLIENTS];
        for (share, of) in shares.iter_mut().zip(&self.shared.shares) {
            *share = of.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        }
        let ops = shares.iter().map(|share| share.ops).sum::<u64>();
        if ops == n { Ok(shares) } else { Err(format!("{ops} operations instead of {n}")) }
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
        self.shared.begin.wait();
        for thread in self.threads.drain(..) {
            // It has aborted the process rather than panicked.
            let _ = thread.join();
        }
    }
}

/// Is client `i`.
fn serve(shared: &Shared, client: &mut impl Client, i: usize) {
    let bomb = AbortOnUnwind;
    loop {
        shared.begin.wait();
        if shared.stop.load(Relaxed) {
            break;
        }
        let share = slice(shared, client);
        *shared.shares[i].lock().unwrap_or_else(PoisonError::into_inner) = share;
        shared.end.wait();
    }
    std::mem::forget(bomb);
}

fn slice(shared: &Shared, client: &mut impl Client) -> Result<Share, Wrong> {
    let mut share = Share::default();
    let until = shared.until.load(Relaxed);
    let start = Instant::now();
    loop {
        let number = shared.next.fetch_add(1, Relaxed);
        if number >= until {
            break;
        }
        client.operate(number)?;
        share.ops += 1;
        share.took = start.elapsed();
        if shared.each.load(Relaxed) {
            break;
        }
    }
    if share.ops > 0 {
        client.check()?;
    }
    Ok(share)
}

/// Ends the process if a client panics: the others would wait for it forever.
struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        std::process::abort();
    }
}

/// Keeps the calling thread, and those that it starts, on a CPU of its place, until dropped.
///
/// Left alone, the kernel now and then has all threads on one CPU for some milliseconds, and an operation takes twice as
/// long: by chance, and much longer than what tracing adds. Where it can't be had, it is done without.
pub(crate) fn stay(place: usize) -> Option<Pin> {
    cpu::of_place(place).and_then(Pin::to).ok()
}

/// Which threads of this process are what, by their numbers.
pub(crate) mod roles {
    use std::collections::BTreeMap;
    use std::sync::{Mutex, PoisonError};

    use rustix::thread::gettid;

    static ROLES: Mutex<BTreeMap<i32, &'static str>> = Mutex::new(BTreeMap::new());

    /// Says what the calling thread is.
    pub(crate) fn enter(role: &'static str) {
        let tid = gettid().as_raw_nonzero().get();
        ROLES.lock().unwrap_or_else(PoisonError::into_inner).insert(tid, role);
    }

    /// Forgets all threads but the calling one.
    pub(crate) fn clear() {
        ROLES.lock().unwrap_or_else(PoisonError::into_inner).clear();
        enter("main");
    }

    /// Returns what a thread is: whoever did not say was started by an operation.
    pub(crate) fn of(tid: i32) -> &'static str {
        ROLES.lock().unwrap_or_else(PoisonError::into_inner).get(&tid).copied().unwrap_or("operations")
    }
}
