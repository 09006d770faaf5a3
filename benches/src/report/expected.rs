//! What a full run leaves, so that what is missing can be named.

use crate::catalogue::published;
use crate::measure::instructions::EVENTS;

/// The benches, and how to run each.
pub(crate) const BENCHES: [(&str, &str); 7] = [
    ("atrace", "cargo bench -p atrace-benches --bench atrace"),
    ("subscriber", "cargo bench -p atrace-benches --bench subscriber"),
    ("suspension", "cargo bench -p atrace-benches --bench suspension"),
    ("coroutines", "cargo bench -p atrace-benches --bench coroutines"),
    ("threads", "cargo bench -p atrace-benches --bench threads"),
    ("live", "cargo bench -p atrace-benches --bench live"),
    ("instructions", "cargo run -p atrace-benches --bin instructions"),
];

/// The rows that a bench leaves at least.
pub(crate) fn rows(bench: &str) -> Vec<String> {
    let mut all = Vec::new();
    match bench {
        "atrace" | "instructions" => {
            for state in ["off", "on"] {
                for (operation, _, in_cc) in EVENTS {
                    all.push(format!("rust/tracing_{state}_{operation}"));
                    all.push(format!("ffi/tracing_{state}_{operation}"));
                    if in_cc {
                        all.push(format!("cc/tracing_{state}_{operation}"));
                    }
                }
            }
        }
        _ => {}
    }
    match bench {
        "atrace" => {
            let limits = ["load_and_test", "raw_write_begin/10", "raw_write_begin/1000", "raw_write_end"];
            all.extend(limits.map(|limit| format!("limit/{limit}")));
            for n in ["1_thread", "2_threads"] {
                all.extend(["off", "on"].map(|state| format!("rust/tracing_{state}_begin/10/{n}")));
            }
        }
        "subscriber" => {
            all.extend(published::SUBSCRIBER.map(|case| format!("rust/{}", case.name)));
            for case in ["event", "event_args", "span", "span_args"] {
                for limit in ["no_subscriber", "noop_always", "registry", "raw_write_of_on"] {
                    all.push(format!("limit/{limit}_{case}"));
                }
                all.extend(
                    ["layer_off", "layer_filtered", "layer_on"].map(|kind| format!("rust/{kind}_{case}")),
                );
            }
        }
        "instructions" => all.extend(published::SUBSCRIBER.map(|case| format!("rust/{}", case.name))),
        _ => {}
    }
    all
}
