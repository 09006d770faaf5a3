//! The `tracing` cases: the bodies of AOSP's benchmark.

use std::hint::black_box;
use std::sync::{LazyLock, OnceLock};

use crate::catalogue::TracingCase;

/// A value that is recorded with `Debug`. The value is made only once, so that only the allocations of `tracing`
/// are counted.
static VECTOR: LazyLock<Vec<i32>> = LazyLock::new(|| vec![1, 2, 3, 4]);

/// A function that runs a number of operations, with other code around them.
type Around = fn(fn(u64), u64);

static AROUND: OnceLock<Around> = OnceLock::new();

/// Sets the function that runs around the operations of this process.
pub fn run_within(around: Around) {
    let _ = AROUND.set(around);
}

/// Runs the operation of a case `n` times.
#[inline(always)]
pub fn run(case: TracingCase, n: u64) {
    match AROUND.get() {
        Some(around) => around(body(case), n),
        None => body(case)(n),
    }
}

fn body(case: TracingCase) -> fn(u64) {
    match case {
        TracingCase::Event => |n| {
            for _ in 0..n {
                tracing::info!("bench info event");
            }
        },
        TracingCase::EventArgs => |n| {
            let vector = black_box(&*VECTOR);
            for _ in 0..n {
                tracing::info!(arg = 123, arg2 = "argument", arg3 = ?vector, arg4 = "last", "bench info event");
            }
        },
        TracingCase::Span => |n| {
            for _ in 0..n {
                let _entered = tracing::info_span!("bench info span").entered();
            }
        },
        TracingCase::SpanArgs => |n| {
            let vector = black_box(&*VECTOR);
            for _ in 0..n {
                let _entered =
                    tracing::info_span!("bench info span", arg = 123, arg2 = "argument", arg3 = ?vector, arg4 = "last")
                        .entered();
            }
        },
    }
}
