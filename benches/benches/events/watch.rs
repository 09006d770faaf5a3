//! Measures how much a watch (a thread that notices changed properties) slows down the events of a process that had
//! only one thread. Each measurement runs in a process of its own, because a process that once had two threads stays
//! slower.

use std::io;

use atrace::{AtraceTag, atrace_begin};
use atrace_benches::catalogue::{Id, What, Who};
use atrace_benches::measure::workload::{Case, Done, Mode, Names, RawWrites, Tracing, Workload};
use atrace_benches::subjects::events::text;

pub(crate) struct Watched;

impl Workload for Watched {
    const NAME: &'static str = "watch";
    const BEGINS_ALONE: bool = true;

    fn cases<T: Tracing>() -> Vec<Case> {
        let name = text(10);
        vec![Case::new("rust/begin", move |n| {
            (0..n).for_each(|_| atrace_begin(AtraceTag::App, &name));
            Ok(Done::new().messages(n))
        })]
    }

    fn modes() -> Vec<Mode> {
        let mode = |name, install: fn()| Mode::new(name, install).on().apart();
        vec![
            mode("alone", || ()).above(&[]),
            mode("watched", || keep(atrace::watch::watch(|_| ()))).above(&["alone"]),
            mode("watched_without_descriptors", || keep(atrace::watch::watch_without_descriptors(|_| ())))
                .above(&["alone"]),
        ]
    }

    fn names() -> Names {
        let row =
            |_: &str, kind: &str| Id { who: Who::Rust, what: What::Watched(kind.to_owned()) }.to_string();
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
