//! Measures what tracing costs a program that starts a thread or a task for each operation.
//!
//! The workload is the benchmark of virtual and kernel threads of Java's project Loom, with `std::thread` and tokio
//! tasks. Each of two client threads creates, starts and joins one thread or task after the other. The work of such
//! a thread or task is one of these:
//!
//! - `io`: sends a request to an HTTP/1.1 server on a new connection, and waits for the answer. The server is a process
//!   on this machine and answers at once or after 5 ms; the original used a server on the internet.
//! - `nonio`: makes a P-256 key pair (the original made a DSA-1024 key pair, which takes about as long).
//!
//! When traced, the work of a thread or task is within a span, which has the operation's number, and ends with an
//! event. A task's span is entered for each poll, and once more when the task is dropped.
//!
//! The bench checks that every answer matches its request and that every public key is on the curve; some keys are also
//! checked with a signature. The bench fails unless exactly one kernel thread is started for each operation, and tasks
//! run on no more threads than there are workers.
//!
//! The runtime is `tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_io()`. The time of an
//! operation is the sum of both clients' times, divided by the number of operations.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use atrace_benches::catalogue::Id;
use atrace_benches::harness::args::Args;
use atrace_benches::harness::output::fail;
use atrace_benches::harness::{child, supervise};
use atrace_benches::instruments::alloc::Counting;
use atrace_benches::instruments::profile::{Sampler, Samples, Started, ThreadState, WAITS, wait_of};
use atrace_benches::measure::workload::{self, Bare, Case, Fixture, Info, Results, Tracing, Workload, Wrong};
use atrace_benches::promise::{Judged, Verdict};
use atrace_benches::subjects::http::{self, Server};

mod clients;
#[path = "../common/criterion.rs"]
mod criterion_cases;
mod jobs;
mod operations;
mod tests;

use self::clients::{CLIENTS, roles};
use self::criterion_cases::{Cases, can_run};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The number of threads of the runtime on which tasks run.
const WORKERS: usize = 2;

/// The argument that makes a process of the bench the server.
const SERVER: &str = "server";
/// The environment variable that tells the process of each mode the server's address.
const ADDRESS: &str = "ATRACE_BENCH_HTTP";

fn main() -> ExitCode {
    // The bench reports errors in the command line, so they are ignored here.
    if Args::from_env().is_ok_and(|args| args.mode.as_deref() == Some(SERVER)) {
        let code = |()| ExitCode::SUCCESS;
        let failed = |e| fail(1, format_args!("the HTTP server: {e}"));
        return supervise::run(|_| http::serve().map_or_else(failed, code));
    }
    workload::run::<Threads>()
}

/// Whether an operation starts a thread or a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Kernel,
    Task,
}

impl Kind {
    const fn name(self) -> &'static str {
        ["kernel", "task"][self as usize]
    }
}

/// The work of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Job {
    Nonio,
    /// A request, with the number of milliseconds until the answer.
    Io(u32),
}

impl Job {
    fn name(self) -> String {
        match self {
            Self::Nonio => "nonio".to_owned(),
            Self::Io(delay) => format!("io_{delay}ms"),
        }
    }
}

/// A configuration of the benchmark. All names are derived from it.
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
        format!("rust/threads_{}_{}", self.kind.name(), self.job.name())
    }

    /// Returns the length of slices (periods of measuring). Slices are short, so that slices that are compared run at
    /// nearly the same time. But a slice has several operations of each client, or dozens of operations if the
    /// clients share a CPU.
    fn slice(self) -> Duration {
        Duration::from_millis(if self.job == Job::Io(5) { 25 } else { 4 })
    }

    /// Returns the number of operations over which allocations are counted.
    fn counted_over(self) -> u64 {
        if self.job == Job::Io(5) { 24 } else { 100 }
    }
}

struct Threads;

impl Workload for Threads {
    const NAME: &'static str = "threads";

    fn cases<T: Tracing>() -> Vec<Case> {
        let case = |setup: Setup| {
            let info = Info {
                // An even number of operations, so that no client works alone for long.
                batch: CLIENTS as u64,
                counted_over: setup.counted_over(),
                slice: Some(setup.slice()),
                threads: CLIENTS as u32,
                waits: setup.job == Job::Io(5),
                // The runtime keeps a list of sockets to deregister, and allocates a new list each time that it
                // processes the list.
                exact: setup.kind == Kind::Kernel || setup.job == Job::Nonio,
                ..Info::of(setup.id())
            };
            let case = match setup.job {
                // A slice has few operations of each client, which does not justify making everything anew.
                Job::Io(5) => Case::new(info, operations::of::<T>(setup)),
                _ => Case::afresh(info, move || operations::of::<T>(setup)),
            };
            match setup {
                // A span (two messages) and an event, in a thread started for the operation.
                Setup { kind: Kind::Kernel, .. } => {
                    case.has(count::MESSAGES, || 3.0).has(count::STARTED, || 1.0)
                }
                Setup { job: Job::Nonio, .. } => case.has(count::MESSAGES, || 5.0).has(count::POLLS, || 1.0),
                _ => case,
            }
        };
        Setup::all().map(case).collect()
    }

    fn fixture() -> io::Result<Fixture> {
        let server = Server::start(&mut child::in_mode(SERVER)?)?;
        let address = server.address();
        OWN.get_or_init(|| address);
        Ok(Fixture::of(server).with_env(ADDRESS, address.to_string()))
    }

    fn prove() -> Result<(), Wrong> {
        tests::prove()
    }

    fn profile(results: &mut Results, args: &Args) -> io::Result<()> {
        for setup in Setup::all() {
            if results.traced_cases().any(|case| case == setup.id()) {
                profile(setup, results, args)?;
            }
        }
        Ok(())
    }

    fn criterion(args: &Args) -> io::Result<()> {
        if args.test || !can_run(args) {
            return Ok(());
        }
        let mut cases = Cases::new(args);
        for setup in Setup::all() {
            let mut run = operations::of::<Bare>(setup);
            let id = setup.id();
            let name = id.trim_start_matches("rust/").to_owned();
            let mut wrong = None;
            cases.case(&Id::of_workload(&id, "none"), &name, |n| match run(n) {
                Ok(done) => done.took.unwrap_or_default(),
                Err(reason) => {
                    wrong.get_or_insert(reason);
                    Duration::from_nanos(1)
                }
            });
            if let Some(reason) = wrong {
                return Err(io::Error::other(reason));
            }
        }
        cases.end();
        Ok(())
    }

    fn seconds() -> u64 {
        45
    }

    fn bars(results: &Results) -> Vec<Judged> {
        bars(results)
    }
}

/// The server's address in the process that has started the server.
static OWN: OnceLock<SocketAddr> = OnceLock::new();

/// Returns the server's address.
fn server() -> io::Result<SocketAddr> {
    if let Some(&address) = OWN.get() {
        return Ok(address);
    }
    let address = std::env::var(ADDRESS).map_err(io::Error::other)?;
    address.parse().map_err(io::Error::other)
}

/// The names of counts and gauges.
mod count {
    pub(super) const FAULTS: &str = "minor_faults";
    pub(super) const MESSAGES: &str = "messages";
    pub(super) const POLLS: &str = "polls";
    pub(super) const STARTED: &str = "threads_started";
    pub(super) const THROUGHPUT: &str = "ops_per_s";
    // The names of the values from the profile.
    pub(super) const ALIVE: &str = "threads_alive";
    pub(super) const DAEMON: &str = "threads_daemon";
    pub(super) const FREED: &str = "freed_bytes";
    pub(super) const PEAK: &str = "peak_live_bytes";
    pub(super) const PROFILED: &str = "profiled_ops";
    pub(super) const PROFILED_STARTED: &str = "profiled_threads_started";
}

fn state_name(role: &str, state: ThreadState) -> String {
    format!("{role}_{}", state.name().to_lowercase())
}

/// The number of operations that wait 5 ms and run after the generations, for the throughput.
const MORE: u64 = 240;
/// The prefix of the names for samples in a kernel function.
const FRAME: &str = "frame ";
/// The role under which the samples of all threads together are listed.
const ALL: &str = "all";

/// Samples the states of the threads of the uninstrumented workload, which runs in this process.
fn profile(setup: Setup, results: &mut Results, args: &Args) -> io::Result<()> {
    let mut run = operations::of::<Bare>(setup);
    let started_before = Started::count();
    let time = match args {
        args if args.test => Duration::ZERO,
        args if args.quick => Duration::from_millis(100),
        _ => Duration::from_millis(600),
    };
    roles::clear();
    // A run before the samples starts the threads that start only once.
    run(if args.test { 1 } else { setup.counted_over() }).map_err(io::Error::other)?;
    if setup.job == Job::Io(5) && !args.test && !args.quick {
        // The generations have few operations that wait. Further operations make the throughput more certain; for its
        // interval they are one more generation.
        for _ in 0..MORE / setup.counted_over() {
            let done = run(setup.counted_over()).map_err(io::Error::other)?;
            results.add_rates(&setup.id(), "none", &done);
        }
    }
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

/// Adds the results of the samples to the rows. `ops` operations ran, and `started` threads were started.
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
    // Only the main thread keeps the process alive.
    gauge(count::DAEMON, alive - 1.0);
    for state in ThreadState::ALL {
        let name = state_name(ALL, state);
        gauge(&name, samples.part(|found| found.1 == state));
        for (wait, _) in WAITS {
            let waits = |frame: &Option<String>| frame.as_deref().and_then(wait_of) == Some(wait);
            let part = samples.part(|found| found.1 == state && waits(&found.2));
            gauge(&format!("{name}_in_{wait}"), part);
        }
        for role in ["clients", "workers", "operations"] {
            gauge(&format!("{name}_{role}"), samples.part(|found| (found.0, found.1) == (role, state)));
        }
    }
    let frames = samples.found.keys().filter_map(|(_, state, frame)| Some((*state, frame.as_deref()?)));
    for (state, frame) in frames.collect::<BTreeSet<_>>() {
        let part = samples.part(|found| (found.1, found.2.as_deref()) == (state, Some(frame)));
        gauge(&format!("{FRAME}{} {frame}", state.name()), part);
    }
    for role in samples.found.keys().map(|found| found.0).collect::<BTreeSet<_>>() {
        for state in ThreadState::ALL {
            gauge(&state_name(role, state), samples.part_of_role(role, state));
        }
    }
}

/// Judges the promise that a kernel thread was really started for each operation, which the original did not show, and
/// that tasks ran on no more threads than there are workers.
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
