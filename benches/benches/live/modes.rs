//! The modes (configurations) of the bench, and the promises ("bars") about them. The bench has the default modes of a
//! workload, the modes of the original benchmark, `registry` (a registry without a layer), and `bare` (backtraces are
//! captured and discarded).

use std::hint::black_box;
use std::sync::OnceLock;

use atrace_benches::measure::workload::{Mode, Pace, Results};
use atrace_benches::promise::{Judged, Verdict};
use atrace_benches::stats::Interval;
use atrace_subscriber::live::{LiveLayer, Walk, return_addresses};
use tracing::Subscriber;
use tracing::span::{Attributes, Id};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};

/// The mode in which the layer that tracks spans has no options. The other modes with such a layer are compared with
/// this mode.
pub(crate) const DEFAULT: &str = "DEFAULT";

/// Whether this process's layer that tracks spans also stores backtraces. The value is not set if the process has no
/// layer that tracks spans.
static KEEPS: OnceLock<bool> = OnceLock::new();

/// The content that a dump is expected to have.
pub(crate) struct Expected {
    pub(crate) spans: u64,
    pub(crate) backtraces: bool,
}

pub(crate) fn expected(tasks: u64) -> Expected {
    match KEEPS.get() {
        Some(&backtraces) => Expected { spans: tasks, backtraces },
        None => Expected { spans: 0, backtraces: false },
    }
}

/// The maximum number of return addresses that a backtrace has.
const DEPTH: usize = 64;

/// Makes a layer that tracks spans, with the options of the original benchmark: backtraces of creations, sanitised
/// backtraces, and symbols only on request. `by_frame_pointers` determines whether backtraces are made by frame
/// pointers or by unwinding.
fn layer(creation: bool, sanitised: bool, lazy: bool, by_frame_pointers: bool) -> LiveLayer {
    let walk = if by_frame_pointers { Walk::FramePointers } else { Walk::Unwinding };
    LiveLayer::default()
        .with_backtraces(if creation { DEPTH } else { 0 })
        .with_sanitised(sanitised)
        .with_eager_symbols(!lazy)
        .with_walk(walk)
}

fn install<const C: bool, const S: bool, const L: bool, const FP: bool>() {
    KEEPS.set(C).expect("a process has one mode");
    Mode::install(tracing_subscriber::registry().with(layer(C, S, L, FP)));
}

/// A layer that captures the same backtraces as the layer of the mode C_L, and discards them.
struct Bare(Walk);

impl Bare {
    /// Installs this layer below the layer of the mode `DEFAULT`.
    fn install(walk: Walk) {
        KEEPS.set(false).expect("a process has one mode");
        let bare = tracing_subscriber::registry().with(Self(walk));
        Mode::install(bare.with(layer(false, false, false, false)));
    }
}

impl<S: Subscriber> Layer<S> for Bare {
    fn on_new_span(&self, _: &Attributes<'_>, _: &Id, _: Context<'_, S>) {
        return_addresses(self.0, black_box(&mut [0; DEPTH]));
    }
}

/// The modes in which no dump is measured: the modes without a layer that tracks spans, except `none`, and the modes in
/// which [`Bare`] is installed.
pub(crate) const EMPTY: [&str; 8] =
    ["nosub", "filtered", "off", "on", "perfetto", "registry", "bare", "bare_fp"];

/// The modes in which only the case `creation` runs.
pub(crate) const BARE: [&str; 2] = ["bare", "bare_fp"];

pub(crate) fn all() -> Vec<Mode> {
    let plain = |name, bases, install: fn()| {
        let pace = Pace::Of(DEFAULT);
        Mode { bases, pace, ..Mode::new(name, install) }
    };
    let null = |name, install| Mode { twin: Some(DEFAULT), ..plain(name, &[DEFAULT], install) };
    let apart = |name, install| Mode { pace: Pace::Own, ..plain(name, &[DEFAULT], install) };
    let mut modes = Mode::all();
    modes.extend([
        plain("registry", &["nosub"], || Mode::install(tracing_subscriber::registry())),
        plain(DEFAULT, &["registry"], install::<false, false, false, false>),
        null("S", install::<false, true, false, false>),
        null("L", install::<false, false, true, false>),
        null("S_L", install::<false, true, true, false>),
        apart("C", install::<true, false, false, false>),
        apart("C_S", install::<true, true, false, false>),
        apart("C_L", install::<true, false, true, false>),
        apart("C_S_L", install::<true, true, true, false>),
        apart("bare", || Bare::install(Walk::Unwinding)),
    ]);
    if Walk::default() == Walk::FramePointers {
        modes.extend([
            plain("C_L_fp", &[DEFAULT], install::<true, false, true, true>),
            plain("C_S_L_fp", &[DEFAULT], install::<true, true, true, true>),
            plain("bare_fp", &[DEFAULT], || Bare::install(Walk::FramePointers)),
        ]);
    }
    modes
}

const CREATION: &str = "rust/creation";
const TASKS: &str = "rust/dump_of_1000_tasks";
const FETCHED_TASKS: &str = "rust/dump_of_1000_tasks/fetched";

pub(crate) fn bars(results: &Results) -> Vec<Judged> {
    let mut bars = Vec::new();
    // Returns the time that a mode adds to the creation of a span in the mode `DEFAULT`.
    let added = |mode: &str| results.difference((CREATION, mode), (CREATION, DEFAULT));
    type Judge = fn(f64, Interval) -> Verdict;
    let comparisons: [(&str, [&str; 2], Judge, f64, &str); 3] = [
        ("a lazy backtrace of the bare capture", ["C_L", "bare"], Verdict::at_most, 1.10, "≤ 1.10"),
        ("an eager backtrace, in lazy ones", ["C", "C_L"], Verdict::at_least, 5.0, "≥ 5"),
        ("the same, in lazy ones by frame pointers", ["C", "C_L_fp"], Verdict::at_least, 50.0, "≥ 50"),
    ];
    for (what, [of, base], judge, limit, asked) in comparisons {
        let Some((of, base)) = added(of).zip(added(base)) else { continue };
        if of.low <= 0.0 || base.low <= 0.0 {
            bars.push(Judged::new(what, CREATION, "lost in the noise", asked, Verdict::Open));
            continue;
        }
        let ratio = of.over(&base);
        let more =
            format!("{:.2} – {:.2}: {:.1} ns of {:.1} ns", ratio.low, ratio.high, of.median, base.median);
        let measured = format!("{:.2}", ratio.median);
        bars.push(Judged::new(what, CREATION, measured, asked, judge(limit, ratio)).more(more));
    }
    // With frame pointers, the added time is only a few nanoseconds. The layout of code alone can cause such a
    // difference between two programs. So the whole times are compared, and not the added times.
    if let Some(ratio) = results.ratio((CREATION, "C_L_fp"), (CREATION, "bare_fp")) {
        let what = "a creation with a lazy backtrace by frame pointers, of one with the bare capture";
        bars.push(Judged::at_most(what, CREATION, ratio, 1.10, (2, "")));
    }
    let mode = if results.row(TASKS, "C_L_fp").is_some() { "C_L_fp" } else { "C_L" };
    for (what, case, most) in [
        ("a dump of 1000 spans with backtraces", TASKS, 60.0),
        ("the same with symbols, warm", FETCHED_TASKS, 500.0),
    ] {
        if let Some(row) = results.row(case, mode) {
            let us = row.interval().map(|ns| ns / 1e3);
            bars.push(Judged::at_most(what, format!("in the mode {mode}"), us, most, (1, " µs")));
        }
    }
    bars
}
