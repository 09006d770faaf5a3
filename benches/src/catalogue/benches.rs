//! The list of benches: how to run each bench, and the rows (results) that a full run must write. The report uses the
//! list to name rows that are missing.

use super::id::{Id, State, Who};
use super::kinds::{EVENTS, LITERALS, SUBSCRIBERS, TracingCase};

/// The name of the bench of events.
pub const ATRACE: &str = "atrace";
/// The name of the bench of subscribers.
pub const SUBSCRIBER: &str = "subscriber";
/// The name of the bench that counts instructions.
pub const INSTRUCTIONS: &str = "instructions";

/// A bench of this crate.
#[derive(Clone, Copy, Debug)]
pub struct Bench {
    /// The name of the bench, which is also the name of the file with the bench's results.
    pub name: &'static str,
    /// The approximate duration of a full run and of a quick run, in seconds.
    pub seconds: (u64, u64),
}

/// All benches that measure, in the order of the report. (The bench `verdict` is not in this list: it only prints the
/// outcome of the promises.)
pub const BENCHES: [Bench; 7] = [
    Bench { name: ATRACE, seconds: (165, 55) },
    Bench { name: SUBSCRIBER, seconds: (70, 20) },
    Bench { name: "suspension", seconds: (48, 12) },
    Bench { name: "coroutines", seconds: (84, 20) },
    Bench { name: "threads", seconds: (50, 12) },
    Bench { name: "live", seconds: (66, 15) },
    Bench { name: INSTRUCTIONS, seconds: (80, 80) },
];

impl Bench {
    /// Returns the command that runs the bench.
    pub fn command(&self) -> String {
        let features = if self.name == INSTRUCTIONS { " --features instructions" } else { "" };
        format!("cargo bench -p atrace-benches{features} --bench {}", self.name)
    }

    /// Returns the ids of the rows (results) that a full run must write. The list is empty for all benches except those
    /// of events, subscribers and instructions.
    pub fn rows(&self) -> Vec<Id> {
        match self.name {
            ATRACE => {
                let limits = [Id::limit("load_and_test")];
                let raw = ["begin/10", "begin/1000", "end"].map(Id::raw_write);
                let threads = [
                    "off_begin/10/1_thread",
                    "on_begin/10/1_thread",
                    "off_begin/10/2_threads",
                    "on_begin/10/2_threads",
                ];
                let threads = threads.map(|name| Id::new(Who::Rust, format!("tracing_{name}")));
                events().chain(limits).chain(raw).chain(threads).chain(perfetto()).collect()
            }
            SUBSCRIBER => {
                let raw = |case: TracingCase| Id::raw_write(format_args!("of_on_{}", case.name()));
                kinds().chain(TracingCase::ALL.map(raw)).collect()
            }
            INSTRUCTIONS => events().chain(kinds()).chain(perfetto()).collect(),
            _ => Vec::new(),
        }
    }
}

/// Returns the row ids of every event, with tracing off and on: in Rust, in Rust through libcutils and, if libcutils
/// has the event, in C++.
fn events() -> impl Iterator<Item = Id> {
    let of = |state| {
        EVENTS.iter().flat_map(move |event| {
            let cc = event.cc.map(|_| Who::Cc);
            [Who::Rust, Who::Ffi].into_iter().chain(cc).map(move |who| Id::event(who, state, event))
        })
    };
    State::ALL.into_iter().flat_map(of)
}

/// Returns the row ids of each `tracing` case with each subscriber whose instructions are counted.
fn kinds() -> impl Iterator<Item = Id> {
    let counted = SUBSCRIBERS.iter().filter(|subscriber| subscriber.counted);
    counted.flat_map(|subscriber| TracingCase::ALL.map(|case| subscriber.id(case)))
}

/// Returns the row ids of every event that is written by the Perfetto backend, which is measured while a session
/// records.
fn perfetto() -> impl Iterator<Item = Id> {
    EVENTS.iter().chain(LITERALS.iter()).map(|event| Id::event(Who::Perfetto, State::On, event))
}
