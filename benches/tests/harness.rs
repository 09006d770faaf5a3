//! Checks on this machine that the *sure* results of a bench (results from enough pairs of slices at the same speed)
//! are true. To do this, it lets the benches' code compare an operation with itself, and with the same operation plus
//! known extra work, while other processes (*neighbours*) keep the machine busy.
//!
//! The extra work is a chain of [`EXTRA`] blocks. The true time of this work is known: each step of a chain needs the
//! result of the step before, so a block always takes the same number of cycles, and the reference chain shows how long
//! a cycle is. Both sides of a comparison are the same machine code, which calls one of two chains, because two copies
//! of the same code can differ by nanoseconds, depending on their addresses.
//!
//! `cargo test` makes few comparisons, and fails only if a correct comparison would give such bad results less than
//! once in a million runs. With `ATRACE_LONG_TESTS` there are 200 comparisons of each kind at each load, and the test
//! requires the fractions of sure results and of true results that docs/design.md states. With `ATRACE_LONG_TESTS`, the
//! test takes half an hour:
//!
//! ```sh
//! ATRACE_LONG_TESTS=1 cargo test -p atrace-benches --test harness -- --nocapture
//! ```
//!
//! `ATRACE_TEST_LOADS=8,32` selects the loads: first 8 neighbours, and then 32.

#[path = "../../atrace/tests/common/buffer.rs"]
#[allow(unreachable_pub, reason = "other test programs use it, too")]
mod buffer;

use std::array;
use std::cell::Cell;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::hint::black_box;
use std::io::{self, Write as _};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use self::buffer::Buffer;
use atrace_benches::instruments::chain;
use atrace_benches::measure::paired::{Config, Measured, Paired};
use atrace_benches::stats::Interval;
use atrace_cli::tracefs::Instance;

/// Runs the four blocks of the chain that both sides of a comparison have. These blocks take longer than the processor
/// needs to finish the instructions before them.
#[inline(never)]
fn four(x: u64) -> u64 {
    chain::block(chain::block(chain::block(chain::block(x))))
}

/// The number of blocks of the known extra work.
const EXTRA: usize = 8;

/// The relative error of the true time of the extra work. The work has 480 cycles, and the calls of its blocks can take
/// two further cycles.
const KNOWN: f64 = 0.005;

/// Runs the four blocks and the extra work. This function has no loop, because after a system call, the processor may
/// mispredict the last jump of a loop.
#[inline(never)]
fn twelve(x: u64) -> u64 {
    four(four(four(x)))
}

/// A function that runs steps, each of which depends on the one before, so that their duration is known.
type Chain = fn(u64) -> u64;

/// A function that runs an operation a given number of times, with a given chain as a part of the operation.
type Operation = Box<dyn Fn(u64, Chain)>;

fn chains(n: u64, chain: Chain) {
    black_box((0..n).fold(n, |x, _| chain(x)));
}

/// Walks through memory in a random order, and runs a chain after every 16 steps.
fn walks() -> impl Fn(u64, Chain) {
    const PLACES: u32 = 1 << 16;
    let mut order: Vec<u32> = (0..PLACES).collect();
    fastrand::Rng::with_seed(1).shuffle(&mut order);
    let mut next = vec![0; order.len()];
    order.iter().zip(order.iter().cycle().skip(1)).for_each(|(&from, &to)| next[from as usize] = to);
    let (place, nothing) = (Cell::new(0_u64), black_box(0));
    move |n, chain| {
        let mut at = place.get();
        for _ in 0..n {
            (0..16).for_each(|_| at = next[at as usize].into());
            at ^= chain(at) & nothing;
        }
        place.set(at);
    }
}

/// Writes to a file, and runs a chain before each write. The chain runs between two readings of the clock, before each
/// of which the processor finishes all instructions. Otherwise a part of the chain would run while the processor enters
/// or leaves the kernel.
fn writes(file: File) -> impl Fn(u64, Chain) {
    let start = Instant::now();
    #[inline(never)]
    fn reading(start: Instant) -> u64 {
        black_box(start.elapsed()).subsec_nanos().into()
    }
    move |n, chain| {
        for _ in 0..n {
            black_box(chain(reading(start)));
            black_box(reading(start));
            (&file).write_all(black_box(b"B|12345|0123456789")).unwrap();
        }
    }
}

/// Returns the true time of the extra work as a fraction of the time of the reference chain.
///
/// The function times 2,000 pairs of a long chain and the reference chain, and uses the tenth of the pairs with the
/// fastest long chains. The time of a block is computed from the long chain, which takes so long that the clock's
/// resolution does not matter.
fn truth() -> f64 {
    let long = || {
        let start = Instant::now();
        chain::run::<{ chain::BLOCKS }>(21);
        start.elapsed().as_secs_f64() * 1e9
    };
    let mut both: Vec<[f64; 2]> = (0..2000).map(|_| [long(), chain::time()]).collect();
    both.sort_by(|a, b| a[0].total_cmp(&b[0]));
    let fastest = &both[..200];
    let [long, short] = [0, 1].map(|at| fastest.iter().map(|both| both[at]).sum::<f64>() / 200.0);
    // Both times contain the time of the clock's readings, so the difference of the times is used.
    EXTRA as f64 * (long - short) / (20 * chain::BLOCKS) as f64 / short
}

/// Processes that keep the machine busy. The processes end when the `Neighbours` are dropped, and when the test's
/// process ends.
struct Neighbours(Vec<Child>);

impl Neighbours {
    /// Starts this many neighbours. Every fourth neighbour writes to `marker`.
    fn start(count: usize, marker: Option<&File>) -> Self {
        const WORK: [&str; 4] = ["yes", "md5sum /dev/zero", "dd if=/dev/zero of=/dev/null bs=16M", "yes"];
        let neighbour = |place: usize| {
            let work = WORK[place % WORK.len()];
            let out =
                marker.filter(|_| place.is_multiple_of(WORK.len())).map(|file| file.try_clone().unwrap());
            Command::new("sh")
                .args(["-c", &format!("{work} & read -r _; kill $!")])
                .stdin(Stdio::piped())
                .stdout(out.map_or_else(Stdio::null, Stdio::from))
                .stderr(Stdio::null())
                .spawn()
                .unwrap()
        };
        Self((0..count).map(neighbour).collect())
    }
}

impl Drop for Neighbours {
    fn drop(&mut self) {
        self.0.iter_mut().for_each(|shell| drop(shell.stdin.take()));
        self.0.iter_mut().for_each(|shell| drop(shell.wait()));
    }
}

/// Compares the operation with itself, or with the same operation plus the extra work.
fn compare(run: &dyn Fn(u64, Chain), chains: [Chain; 2], seed: u64) -> Measured {
    let mut paired = Paired::new(Config { budget: Duration::from_millis(400), seed, ..Config::quick() });
    // The compiler must not know which chains these are, so that the same machine code calls either chain.
    let [a, b] = black_box(chains);
    paired.case("a", move |n| run(n, a));
    paired.case("b", move |n| run(n, b));
    paired.compare_above("b", "a");
    paired.run()
}

/// The numbers of all comparisons, of comparisons with a sure result, and of comparisons with a sure result whose
/// interval contains the true value.
#[derive(Clone, Copy, Default)]
struct Counts {
    all: u64,
    sure: u64,
    held: u64,
}

impl Counts {
    /// Counts a comparison with the result `of`. The true value is `truth`, which has a relative error of at most
    /// `within`.
    fn add(&mut self, of: Interval, truth: f64, within: f64) {
        let is_held = of.low <= truth * (1.0 + within) && truth * (1.0 - within) <= of.high;
        self.all += 1;
        self.sure += u64::from(of.sure);
        self.held += u64::from(of.sure && is_held);
        if of.sure && !is_held {
            println!("not true: {truth} is not in {of:?}");
        }
    }

    fn sum(all: &[Self]) -> Self {
        let sum = |count: fn(&Self) -> u64| all.iter().map(count).sum();
        Self { all: sum(|it| it.all), sure: sum(|it| it.sure), held: sum(|it| it.held) }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percents = |k, n| {
            let [low, high] = bounds(k, n).map(|p| 100.0 * p);
            format!("{k} of {n}: {:.1} % ({low:.1}–{high:.1})", 100.0 * k as f64 / n as f64)
        };
        write!(f, "sure {}; of these true {}", percents(self.sure, self.all), percents(self.held, self.sure))
    }
}

/// Returns the probability of at most `k` of `n` events that each have the probability `p`, between 0 and 1.
fn at_most(k: u64, n: u64, p: f64) -> f64 {
    let ln = |x: u64| (1..=x).map(|i| (i as f64).ln()).sum::<f64>();
    let one = |i| ln(n) - ln(i) - ln(n - i) + i as f64 * p.ln() + (n - i) as f64 * (-p).ln_1p();
    (0..=k).map(|i| one(i).exp()).sum()
}

/// Returns the 95 % interval of a probability, after `k` of `n` events (Clopper and Pearson, "The use of confidence or
/// fiducial limits illustrated in the case of the binomial", 1934).
fn bounds(k: u64, n: u64) -> [f64; 2] {
    let solve = |is_above: &dyn Fn(f64) -> bool| {
        let halved = |[low, high]: [f64; 2], _| {
            let middle = f64::midpoint(low, high);
            if is_above(middle) { [low, middle] } else { [middle, high] }
        };
        (0..30).fold([0.0, 1.0], halved)[0]
    };
    let low = if k == 0 { 0.0 } else { solve(&|p| 1.0 - at_most(k - 1, n, p) > 0.025) };
    [low, if k == n { 1.0 } else { solve(&|p| at_most(k, n, p) < 0.025) }]
}

#[test]
fn probabilities_are_those_of_the_tables() {
    assert!((at_most(2, 10, 0.5) - 56.0 / 1024.0).abs() < 1e-12);
    let [low, high] = bounds(8, 10);
    assert!((low - 0.4439).abs() < 1e-4 && (high - 0.9748).abs() < 1e-4, "{low} {high}");
    assert_eq!((bounds(0, 9)[0], bounds(9, 9)[1]), (0.0, 1.0));
}

#[test]
fn what_is_called_sure_is_true() {
    let is_long = std::env::var_os("ATRACE_LONG_TESTS").is_some();
    let loads = std::env::var("ATRACE_TEST_LOADS");
    let loads = loads.unwrap_or_else(|_| if is_long { "0,2,8,32" } else { "0,4" }.to_owned());
    let instance = Buffer::create("atrace-benches-test");
    let open = |path| OpenOptions::new().write(true).open(path).unwrap();
    let marker = match &instance {
        Ok(instance) => Some(open(instance.marker_path())),
        // Writes to stderr directly, because libtest shows printed output of failed tests only.
        Err(e) => writeln!(io::stderr(), "skipped the marker in what_is_called_sure_is_true: {e}")
            .map(|()| None)
            .unwrap(),
    };
    let mut operations: Vec<(&str, Operation)> = vec![
        ("chain", Box::new(chains)),
        ("memory", Box::new(walks())),
        ("write to /dev/null", Box::new(writes(open("/dev/null".into())))),
    ];
    if let Some(file) = &marker {
        operations.push(("write to the marker", Box::new(writes(file.try_clone().unwrap()))));
    }
    let truth = truth();
    let mut all = Vec::new();
    for load in loads.split(',').map(|load| load.parse().unwrap()) {
        let neighbours = Neighbours::start(load, marker.as_ref());
        let (mut at_load, start) = (Vec::new(), Instant::now());
        for (name, run) in &operations {
            let [mut same, mut more] = array::from_fn(|_| Counts::default());
            for seed in 0..if is_long { 50 } else { 2 } {
                let measured = compare(run, [four, four], seed);
                same.add(measured.ratio("b", "a").unwrap(), 1.0, 0.0);
                let measured = compare(run, [four, twelve], seed);
                more.add(measured.difference("b", "a").unwrap(), truth * measured.reference(), KNOWN);
            }
            println!("{load} neighbours, {name} twice: {same}");
            println!("{load} neighbours, {name} and an extra: {more}");
            at_load.extend([same, more]);
        }
        drop(neighbours);
        let counts = Counts::sum(&at_load);
        println!("{load} neighbours: {counts}; {:.0} s", start.elapsed().as_secs_f64());
        if is_long {
            assert!(load > 2 || counts.sure * 100 >= counts.all * 60, "{load} neighbours: {counts}");
            assert!(counts.held * 100 >= counts.sure * 90, "{load} neighbours: {counts}");
        }
        all.push(counts);
    }
    let counts = Counts::sum(&all);
    println!("all: {counts}");
    if is_long {
        assert!(counts.held * 100 >= counts.sure * 93, "{counts}");
    }
    assert!(at_most(counts.held, counts.sure, 0.93) > 1e-6, "{counts}");
    if let Ok(instance) = &instance {
        assert!(instance.stats().unwrap().written() > 0);
    }
}
