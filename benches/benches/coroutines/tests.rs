//! The check of this bench's own code, which runs if the bench is called with `--test`.

use std::time::Duration;

use atrace_benches::measure::workload::Done;
use cc_bench::coroutines::Compiler;

use super::tasks::Batch;
use super::{Kind, Place, Runner, is_original};

/// Checks that the reported results of 60 tasks in two batches are computed correctly from known times and counts.
pub(crate) fn prove() {
    of_known_times();
    batches();
}

/// Checks the numbers of tasks in a batch: 1,000 as in the original benchmark, except for long tasks in Rust without
/// `ATRACE_BENCH_ORIGINAL=1`.
fn batches() {
    for (fibonacci, in_rust) in [(15, 1000), (25, if is_original() { 1000 } else { 30 })] {
        let place = Place { fibonacci, one_core: false };
        assert_eq!(place.batch(Runner::Cc(Compiler::Gcc, Kind::Coroutine)), 1000);
        assert_eq!(
            [Runner::Sequential, Runner::Future, Runner::Tokio].map(|it| place.batch(it)),
            [in_rust; 3]
        );
    }
}

fn of_known_times() {
    let nanos = Duration::from_nanos;
    let coroutine = |kind| Runner::Cc(Compiler::Gcc, kind);
    for (runner, makings) in [(coroutine(Kind::Coroutine), 60), (coroutine(Kind::Yield), 2)] {
        let batch = Batch {
            total: nanos(66600),
            creation: nanos(6000),
            resume: nanos(60000),
            inside: Some([nanos(51000), nanos(9000)]),
            destruction: nanos(600),
            sum: 0.0,
            resumes: Some(60),
            frame: Some(8.0),
            news: Some(60),
        };
        // A reading of the clock takes 10 ns. There are four readings for each of the 60 tasks, and one reading for
        // each of the three parts of the two batches.
        let expected = Done { took: Some(nanos(66600 - 2460)), ..Done::new() }
            .gauge("clock_ns", 10.0)
            .gauge("clock_readings", 246.0 / 60.0)
            .count("resumes", 60)
            .part("creation", nanos(6000 - 20), makings)
            .part("resume", nanos(60000 - 2420), 60)
            .part("resume/compute", nanos(51000 - 600), 60)
            .part("resume/switch", nanos(9000 - 1200), 60)
            .part("destruction", nanos(600 - 20), makings)
            .gauge("frame_bytes", 8.0)
            .count("new", 60);
        assert_eq!(batch.done(Done::new(), runner, 60, 30, 10.0), expected);
    }
}
