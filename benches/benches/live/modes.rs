//! The modes: those of every workload, and those of the original.

use std::hint::black_box;
use std::sync::OnceLock;

use atrace_benches::measure::workload::Mode;
use atrace_subscriber::live::{LiveLayer, Symbols, Walk, return_addresses};
use tracing::Subscriber;
use tracing::span::{Attributes, Id, Record};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;

/// The layer alone: what all its other modes are compared to, and what a dump finds it by.
pub(crate) const DEFAULT: &str = "DEFAULT";

/// What this process' layer keeps.
static KEEPS: OnceLock<bool> = OnceLock::new();

/// What a dump must find.
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

/// A layer of the original's options: backtraces of creations, sanitised, symbols when asked; and by frame pointers.
fn layer(creation: bool, sanitised: bool, lazy: bool, by_frame_pointers: bool) -> LiveLayer {
    let symbols = if lazy { Symbols::Lazy } else { Symbols::Eager };
    let walk = if by_frame_pointers { Walk::FramePointers } else { Walk::Unwinding };
    LiveLayer::new().with_backtraces(creation).with_sanitised(sanitised).with_symbols(symbols).with_walk(walk)
}

fn install<const C: bool, const S: bool, const L: bool, const FP: bool>() {
    KEEPS.set(C).expect("a process has one mode");
    Mode::install(tracing_subscriber::registry().with(layer(C, S, L, FP)));
}

/// The layer as it is in DEFAULT, and the capture of C_L beside, whose result is thrown away.
struct Bare(LiveLayer, Walk);

impl Bare {
    fn install(walk: Walk) {
        KEEPS.set(false).expect("a process has one mode");
        Mode::install(tracing_subscriber::registry().with(Self(layer(false, false, false, false), walk)));
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Bare {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut addresses = [0; 64];
        return_addresses(self.1, black_box(&mut addresses));
        self.0.on_new_span(attributes, id, context);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        self.0.on_record(id, values, context);
    }

    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        self.0.on_enter(id, context);
    }

    fn on_exit(&self, id: &Id, context: Context<'_, S>) {
        self.0.on_exit(id, context);
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        self.0.on_close(id, context);
    }
}

/// What has nothing to dump.
pub(crate) const EMPTY: [&str; 8] =
    ["nosub", "filtered", "off", "on", "perfetto", "registry", "bare", "bare_fp"];

/// What is there to be compared with one case.
pub(crate) const BARE: [&str; 2] = ["bare", "bare_fp"];

pub(crate) fn all() -> Vec<Mode> {
    let plain = |mode: Mode| mode.paced_with(DEFAULT);
    let above = |name, install: fn()| Mode::new(name, install).above(&[DEFAULT]);
    let mut modes = Mode::all();
    modes.push(plain(
        Mode::new("registry", || Mode::install(tracing_subscriber::registry())).above(&["nosub"]),
    ));
    modes.push(plain(Mode::new(DEFAULT, install::<false, false, false, false>).above(&["registry"])));
    let null = |name, install: fn()| plain(above(name, install)).same_as(DEFAULT);
    modes.push(null("S", install::<false, true, false, false>));
    modes.push(null("L", install::<false, false, true, false>));
    modes.push(null("S_L", install::<false, true, true, false>));
    modes.push(above("C", install::<true, false, false, false>).apart());
    modes.push(above("C_S", install::<true, true, false, false>).apart());
    modes.push(above("C_L", install::<true, false, true, false>).apart());
    modes.push(above("C_S_L", install::<true, true, true, false>).apart());
    modes.push(above("bare", || Bare::install(Walk::Unwinding)).apart());
    if Walk::of_this_program() == Walk::FramePointers {
        modes.push(plain(above("C_L_fp", install::<true, false, true, true>)));
        modes.push(plain(above("C_S_L_fp", install::<true, true, true, true>)));
        modes.push(plain(above("bare_fp", || Bare::install(Walk::FramePointers))));
    }
    modes
}
