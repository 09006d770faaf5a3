//! What is measured: the bodies of the original benchmark.

use std::hint::black_box;
use std::sync::LazyLock;

/// One thing a program does with `tracing`, and how many messages it makes of it.
pub struct Case {
    /// As in ids.
    pub name: &'static str,
    /// How many messages one operation makes while it is traced.
    pub messages: u64,
    /// Runs the operation this often.
    pub run: fn(u64),
}

/// What is shown by `Debug`; made once, as only what `tracing` allocates is counted.
static VECTOR: LazyLock<Vec<i32>> = LazyLock::new(|| vec![1, 2, 3, 4]);

/// The bodies of the original benchmark.
pub const CASES: [Case; 4] = [
    Case {
        name: "event",
        messages: 1,
        run: |n| {
            for _ in 0..n {
                tracing::info!("bench info event");
            }
        },
    },
    Case {
        name: "event_args",
        messages: 1,
        run: |n| {
            let vector = black_box(&*VECTOR);
            for _ in 0..n {
                tracing::info!(arg = 123, arg2 = "argument", arg3 = ?vector, arg4 = "last", "bench info event");
            }
        },
    },
    Case {
        name: "span",
        messages: 2,
        run: |n| {
            for _ in 0..n {
                let _entered = tracing::info_span!("bench info span").entered();
            }
        },
    },
    Case {
        name: "span_args",
        messages: 2,
        run: |n| {
            let vector = black_box(&*VECTOR);
            for _ in 0..n {
                let _entered =
                    tracing::info_span!("bench info span", arg = 123, arg2 = "argument", arg3 = ?vector, arg4 = "last")
                        .entered();
            }
        },
    },
];
