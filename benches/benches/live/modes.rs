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

/// The options of a mode of the original.
#[derive(Clone, Copy, Default)]
struct Options {
    creation: bool,
    sanitised: bool,
    lazy: bool,
    by_frame_pointers: bool,
}

const NO: Options = Options { creation: false, sanitised: false, lazy: false, by_frame_pointers: false };

impl Options {
    fn layer(self) -> LiveLayer {
        let symbols = if self.lazy { Symbols::Lazy } else { Symbols::Eager };
        let walk = if self.by_frame_pointers { Walk::FramePointers } else { Walk::Unwinding };
        LiveLayer::new()
            .with_backtraces(self.creation)
            .with_sanitised(self.sanitised)
            .with_symbols(symbols)
            .with_walk(walk)
    }

    fn install(self) {
        KEEPS.set(self.creation).expect("a process has one mode");
        Mode::install(tracing_subscriber::registry().with(self.layer()));
    }
}

/// The layer as it is in DEFAULT, and the capture of C_L beside, whose result is thrown away.
struct Bare(LiveLayer, Walk);

impl Bare {
    fn install(walk: Walk) {
        KEEPS.set(false).expect("a process has one mode");
        Mode::install(tracing_subscriber::registry().with(Self(NO.layer(), walk)));
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
    modes.push(plain(Mode::new(DEFAULT, || NO.install()).above(&["registry"])));
    let null = |name, install: fn()| plain(above(name, install)).same_as(DEFAULT);
    modes.push(null("S", || Options { sanitised: true, ..NO }.install()));
    modes.push(null("L", || Options { lazy: true, ..NO }.install()));
    modes.push(null("S_L", || Options { sanitised: true, lazy: true, ..NO }.install()));
    modes.push(above("C", || Options { creation: true, ..NO }.install()).apart());
    modes.push(above("C_S", || Options { creation: true, sanitised: true, ..NO }.install()).apart());
    modes.push(above("C_L", || Options { creation: true, lazy: true, ..NO }.install()).apart());
    modes.push(
        above("C_S_L", || Options { creation: true, sanitised: true, lazy: true, ..NO }.install()).apart(),
    );
    modes.push(above("bare", || Bare::install(Walk::Unwinding)).apart());
    if Walk::of_this_program() == Walk::FramePointers {
        modes.push(plain(above("C_L_fp", || {
            Options { creation: true, lazy: true, by_frame_pointers: true, ..NO }.install();
        })));
        modes.push(plain(above("C_S_L_fp", || {
            Options { creation: true, sanitised: true, lazy: true, by_frame_pointers: true }.install();
        })));
        modes.push(plain(above("bare_fp", || Bare::install(Walk::FramePointers))));
    }
    modes
}
