//! What tracing costs a program that starts a thread, or a task, for each thing it does.
//!
//! The benchmark of virtual and kernel threads of Java's project Loom, with `std::thread` and tokio's tasks. Two client
//! threads each create, start and join one thread or task after the other, which
//!
//! - `io`: asks an HTTP/1.1 server once, on a connection of its own, and waits for the answer. The server is on this
//!   machine, in a process of its own, and answers at once or after 5 ms: the original asked one in the internet.
//! - `nonio`: makes a P-256 key pair (the original DSA-1024, which takes about as long).
//!
//! Traced, what the thread or task does is within a span, with its number, and ends with an event. A task's span is
//! entered for each of its polls and once more when it is dropped.
//!
//! Every answer is compared with what was asked; every public key is checked to be on the curve, some by a signature. A
//! kernel thread is started for each operation, no less and no more; tasks run on no more threads than there are
//! workers; otherwise the bench fails.
//!
//! The runtime is `tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_io()`. A nanosecond is one that a
//! client waits: what both together take, by the number of operations.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::process::{Command, ExitCode};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use atrace_benches::harness::args::Args;
use atrace_benches::harness::{child, supervise};
use atrace_benches::instruments::alloc::Counting;
use atrace_benches::instruments::profile::{Sampler, Samples, Started, ThreadState};
use atrace_benches::measure::workload::{self, Bare, Case, Fixture, Results, Tracing, Workload};
use atrace_benches::promise::{Judged, Verdict};
use atrace_benches::subjects::http::{self, Server};

mod clients;
mod jobs;
mod operations;

use self::clients::{CLIENTS, roles};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The threads of the runtime that tasks run on.
const WORKERS: usize = 2;

/// What the process of the server is told to be.
const SERVER: &str = "server";
/// Tells the processes of the modes where the server is.
const ADDRESS: &str = "ATRACE_BENCH_HTTP";

fn main() -> ExitCode {
    // What is wrong with the command line is said by the bench.
    if Args::from_env().is_ok_and(|args| args.mode.as_deref() == Some(SERVER)) {
        return supervise::run(|_| match http::serve() {
            Ok(()) => ExitCode::SUCCESS,
            Err(e) => {
                eprintln!("error: the HTTP server: {e}");
                ExitCode::FAILURE
            }
        });
    }
    workload::run::<Threads>()
}

/// What carries an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Kernel,
    Task,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Kernel => "kernel",
            Self::Task => "task",
        })
    }
}

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Job {
    Nonio,
    /// With so many milliseconds until the answer.
    Io(u32),
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nonio => f.pad("nonio"),
            Self::Io(delay) => f.pad(&format!("io_{delay}ms")),
        }
    }
}

/// One of the benchmark's configurations: all names are made of it.
#[derive(Clone, Copy, Debug)]
struct Setup {
    kind: Kind,
    job: Job,
}

impl Setup {
    fn all() -> impl Iterator<Item = Self> {
        let jobs = [Job::Nonio, Job::Io(0), Job::Io(5)];
        [Kind::Kernel, Kind::Task].into_iter().flat_map(move |kind| jobs.map(|job| Self { kind, job }))
    }

    fn id(self) -> String {
        format!("rust/threads_{}_{}", self.kind, self.job)
    }

    /// How long slices are: short, as what is compared is to run at the same time; but an operation of each client, or
    /// dozens where they take turns on a CPU.
    fn slice(self) -> Duration {
        Duration::from_millis(if self.job == Job::Io(5) { 6 } else { 4 })
    }

    /// How many operations allocations are counted over.
    fn counted_over(self) -> u64 {
        if self.job == Job::Io(5) { 24 } else { 100 }
    }
}

struct Threads;

impl Workload for Threads {
    const NAME: &'static str = "threads";

    fn cases<T: Tracing>() -> Vec<Case> {
        let case = |setup: Setup| {
            let case = match setup.job {
                // Each client has one operation: not worth what surrounds it.
                Job::Io(5) => Case::new(setup.id(), operations::of::<T>(setup)),
                _ => Case::afresh(setup.id(), move || operations::of::<T>(setup)),
            };
            let case =
                case.counted_over(setup.counted_over()).slices_of(setup.slice()).by_threads(CLIENTS as u32);
            let case = match setup {
                // A span and an event, in a thread that is started for it.
                Setup { kind: Kind::Kernel, .. } => {
                    case.has(count::MESSAGES, || 3.0).has(count::STARTED, || 1.0)
                }
                Setup { job: Job::Nonio, .. } => case.has(count::MESSAGES, || 5.0).has(count::POLLS, || 1.0),
                _ => case,
            };
            match setup {
                // The runtime keeps a list of sockets to forget, and makes a new one each time that it looks at it.
                Setup { kind: Kind::Task, job: Job::Io(_) } => case.inexact(),
                _ => case,
            }
        };
        Setup::all().map(case).collect()
    }

    fn fixture() -> io::Result<Fixture> {
        let mut command = Command::new(std::env::current_exe()?);
        let server = Server::start(child::adopt(command.args(["--mode", SERVER])))?;
        let address = server.address();
        OWN.get_or_init(|| address);
        Ok(Fixture::of(server).with_env(ADDRESS, address.to_string()))
    }

    fn profile(results: &mut Results, args: &Args) -> io::Result<()> {
        if args.test {
            operations::prove().map_err(io::Error::other)?;
        }
        for setup in Setup::all() {
            if results.traced_cases().any(|case| case == setup.id()) {
                profile(setup, results, args)?;
            }
        }
        Ok(())
    }

    fn seconds() -> u64 {
        45
    }

    fn bars(results: &Results) -> Vec<Judged> {
        bars(results)
    }
}

/// Where the server is, in the process that has started it.
static OWN: OnceLock<SocketAddr> = OnceLock::new();

/// Where the server is.
fn server() -> io::Result<SocketAddr> {
    if let Some(&address) = OWN.get() {
        return Ok(address);
    }
    let address = std::env::var(ADDRESS).map_err(io::Error::other)?;
    address.parse().map_err(io::Error::other)
}

/// The names of what is found beside time.
mod count {
    pub(super) const FAULTS: &str = "minor_faults";
    pub(super) const MESSAGES: &str = "messages";
    pub(super) const POLLS: &str = "polls";
    pub(super) const STARTED: &str = "threads_started";
    pub(super) const THROUGHPUT: &str = "ops_per_s";
    // Those of the profile.
    pub(super) const ALIVE: &str = "threads_alive";
    pub(super) const FREED: &str = "freed_bytes";
    pub(super) const PEAK: &str = "peak_live_bytes";
    pub(super) const PROFILED: &str = "profiled_ops";
    pub(super) const PROFILED_STARTED: &str = "profiled_threads_started";
}

fn state_name(role: &str, state: ThreadState) -> String {
    format!("{role}_{}", state.name().to_lowercase())
}

/// What the names begin with of the parts of samples that were in a function of the kernel.
const FRAME: &str = "frame ";
/// The role of all threads.
const ALL: &str = "all";

/// Looks at the threads of the uninstrumented program, in this process.
fn profile(setup: Setup, results: &mut Results, args: &Args) -> io::Result<()> {
    let mut run = operations::of::<Bare>(setup);
    let started_before = Started::count();
    let time = match args {
        args if args.test => Duration::ZERO,
        args if args.quick => Duration::from_millis(100),
        _ => Duration::from_millis(600),
    };
    roles::clear();
    // Then what is started once is there.
    run(if args.test { 1 } else { setup.counted_over() }).map_err(io::Error::other)?;
    let started_since = match setup.kind {
        Kind::Kernel => Started::count(),
        Kind::Task => started_before,
    };
    let sampler = Sampler::start(Duration::from_millis(1), roles::of)?;
    let start = Instant::now();
    let mut ops = 0;
    loop {
        let n = if args.test { 1 } else { 2 * CLIENTS as u64 };
        run(n).map_err(io::Error::other)?;
        ops += n;
        if start.elapsed() >= time {
            break;
        }
    }
    found(setup, results, &sampler.stop()?, [ops, Started::count() - started_since]);
    Ok(())
}

/// Adds what so many operations have shown that have started so many threads.
fn found(setup: Setup, results: &mut Results, samples: &Samples, [ops, started]: [u64; 2]) {
    let id = setup.id();
    let allocated = results.allocated(&id, "none");
    let mut gauge = |name: &str, value: f64| results.gauge(&id, "none", name, value);
    if let Some((counts, n)) = allocated {
        gauge(count::FREED, counts.freed as f64 / n as f64);
        gauge(count::PEAK, counts.peak as f64);
    }
    gauge(count::PROFILED, ops as f64);
    gauge(count::PROFILED_STARTED, started as f64);
    let Some(alive) = samples.mean_alive() else { return };
    gauge(count::ALIVE, alive);
    for state in ThreadState::ALL {
        gauge(&state_name(ALL, state), samples.part_of_all(state).unwrap_or(0.0));
    }
    for (state, frame, part) in samples.frames() {
        gauge(&format!("{FRAME}{} {frame}", state.name()), part);
    }
    for role in samples.roles() {
        for state in ThreadState::ALL {
            gauge(&state_name(role, state), samples.part(role, state).unwrap_or(0.0));
        }
    }
}

/// What the original never said: that its threads were threads.
fn bars(results: &Results) -> Vec<Judged> {
    let bar = |setup: Setup| {
        let row = results.row(&setup.id(), "none")?;
        let (started, ops) = (row.counts.get(count::PROFILED_STARTED)?, row.counts.get(count::PROFILED)?);
        let (asked, kept) = match setup.kind {
            Kind::Kernel => ("as many as operations".to_owned(), started == ops),
            Kind::Task => (format!("at most {WORKERS}"), *started <= WORKERS as f64),
        };
        let measured = format!("{started:.0} in {ops:.0} operations");
        Some(Judged::new("threads started", setup.id(), measured, asked, Verdict::kept_if(kept)).exact())
    };
    Setup::all().filter_map(bar).collect()
}
