//! Measures how much a watch (a thread that notices changed properties) slows down the events of a process that
//! otherwise has only one thread. Each configuration is measured in a process of its own, because a watch exists until
//! its process ends.

use std::io;

use atrace::{AtraceTag, atrace_begin};
use atrace_benches::catalogue::{Id, Who};
use atrace_benches::measure::workload::{Case, Done, Info, Mode, Names, Pace, RawWrites, Tracing, Workload};
use atrace_benches::subjects::events::text;

pub(crate) struct Watched;

impl Workload for Watched {
    const NAME: &'static str = "watch";
    const BEGINS_ALONE: bool = true;

    fn cases<T: Tracing>() -> Vec<Case> {
        let name = text(10);
        vec![Case::new(Info::of("rust/begin"), move |n| {
            (0..n).for_each(|_| atrace_begin(AtraceTag::App, &name));
            Ok(Done { messages: n, ..Done::new() })
        })]
    }

    fn modes() -> Vec<Mode> {
        let mode = |name, bases, install: fn()| Mode {
            writes: true,
            pace: Pace::Own,
            bases,
            ..Mode::new(name, install)
        };
        vec![
            mode("alone", &[], || ()),
            mode("watched", &["alone"], || keep(atrace::watch::watch(|_| ()))),
            mode("watched_without_descriptors", &["alone"], || {
                keep(atrace::watch::watch_without_descriptors(|_| ()));
            }),
        ]
    }

    fn names() -> Names {
        let row = |_: &str, kind: &str| Id::begin_in(Who::Rust, kind).to_string();
        Names { row, raw_writes: RawWrites::Untimed, ..Names::default() }
    }

    fn seconds() -> u64 {
        8
    }
}

/// Keeps a watch until the process ends.
fn keep(watch: io::Result<atrace::watch::Watch>) {
    std::mem::forget(watch.expect("a watch needs a thread"));
}
