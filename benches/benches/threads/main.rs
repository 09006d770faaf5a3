//! Measures what tracing costs a program that starts a thread or a task for each operation.
//!
//! The workload is the benchmark of virtual and kernel threads of Java's project Loom, with tokio tasks and
//! `std::thread`. Each of two client threads creates, starts and joins one thread or task after the other. The work of
//! such a thread or task is one of these:
//!
//! - `io`: sends a request to an HTTP/1.1 server on a new connection, and waits for the answer. The server is a process
//!   on this machine and answers at once or after 5 ms; the original benchmark used a server on the internet.
//! - `nonio`: makes a P-256 key pair. (The original benchmark made a DSA-1024 key pair, which takes about as long.)
//!
//! With instrumentation, the work of a thread or task is within a span, which has the operation's number as a field. At
//! the end of the work, an event is written. A task's span is entered for each poll, and once more when the task is
//! dropped.
//!
//! The bench checks that every answer matches its request and that every public key is on the curve; some keys are also
//! checked with a signature. The bench fails if an operation with a kernel thread does not start exactly one thread, or
//! if tasks run on more threads than the runtime has workers.
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

/// The role (the argument of `--mode`) of the process that is the HTTP server.
const SERVER: &str = "server";
/// The environment variable with the address of the HTTP server, for the processes that measure.
const ADDRESS: &str = "ATRACE_BENCH_HTTP";

fn main() -> ExitCode {
    // Errors in the command line are ignored here, because `workload::run` parses it again and reports them.
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
    /// A request to the HTTP server, with the number of milliseconds until the answer.
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

/// A configuration of the benchmark. The ids of cases are made from it.
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

    /// Returns the length of a measurement. It is short, so that measurements that are compared run at nearly the same
    /// time. But it is long enough for several operations of each client, or for dozens of operations if the clients
    /// share a CPU.
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
                // The number of operations is a multiple of the number of clients, so that no client works alone for
                // long.
                batch: CLIENTS as u64,
                counted_over: setup.counted_over(),
                slice: Some(setup.slice()),
                threads: CLIENTS as u32,
                waits: setup.job == Job::Io(5),
                // The allocation counts of tasks with sockets are not exact: the runtime keeps a list of sockets to
                // deregister, and allocates a new list each time that it processes the list.
                exact: setup.kind == Kind::Kernel || setup.job == Job::Nonio,
                ..Info::of(setup.id())
            };
            let case = match setup.job {
                // A measurement has few operations of each client, which would not justify making the clients and the
                // runtime anew.
                Job::Io(5) => Case::new(info, operations::of::<T>(setup)),
                _ => Case::afresh(info, move || operations::of::<T>(setup)),
            };
            match setup {
                // An operation writes three messages (two for the span and one for the event), and starts a thread.
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

/// The address of the HTTP server. It is only set in the process that has started the server.
static OWN: OnceLock<SocketAddr> = OnceLock::new();

/// Returns the address of the HTTP server, in the process that has started the server and in the processes that
/// measure.
fn server() -> io::Result<SocketAddr> {
    if let Some(&address) = OWN.get() {
        return Ok(address);
    }
    let address = std::env::var(ADDRESS).map_err(io::Error::other)?;
    address.parse().map_err(io::Error::other)
}

/// The names of the counts and values in the rows (results).
mod count {
    pub(super) const FAULTS: &str = "minor_faults";
    pub(super) const MESSAGES: &str = "messages";
    pub(super) const POLLS: &str = "polls";
    pub(super) const STARTED: &str = "threads_started";
    pub(super) const THROUGHPUT: &str = "ops_per_s";
    // The names of the values that the profile of the threads adds:
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

/// The number of operations with answers after 5 ms that run after all other measurements, so that the throughput is
/// more certain.
const MORE: u64 = 240;
/// The prefix of the names of values about a kernel function in which threads were sampled.
const FRAME: &str = "frame ";
/// The name, in place of a role, of values about the samples of all threads together.
const ALL: &str = "all";

/// Profiles the threads of the uninstrumented workload, which runs in this process: samples the states of all threads.
fn profile(setup: Setup, results: &mut Results, args: &Args) -> io::Result<()> {
    let mut run = operations::of::<Bare>(setup);
    let started_before = Started::count();
    let time = match args {
        args if args.test => Duration::ZERO,
        args if args.quick => Duration::from_millis(100),
        _ => Duration::from_millis(600),
    };
    roles::clear();
    // A run before the samples starts the threads that are started only once, such as the runtime's workers.
    run(if args.test { 1 } else { setup.counted_over() }).map_err(io::Error::other)?;
    if setup.job == Job::Io(5) && !args.test && !args.quick {
        // The generations (sets of processes) that were measured have few operations with answers after 5 ms. Further
        // operations make the throughput more certain. For its interval, they count as one more generation.
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

/// Adds the results of the profile to the rows. `ops` is the number of operations that ran, and `started` the number of
/// threads that they have started or used.
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
    // All threads except the main thread are counted as daemons, because only the main thread keeps the process alive.
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

/// Judges the promise that a kernel thread was started for each operation with a kernel thread (the original benchmark
/// did not show this), and that tasks ran on no more threads than the runtime has workers.
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
