//! The benches, how to run each, and the rows that each leaves at least: so that what is missing can be named.

use super::case::TracingCase;
use super::event::{EVENTS, LITERALS};
use super::id::{Id, State, What, Who};
use super::subscriber::SUBSCRIBERS;

/// The bench of events.
pub const ATRACE: &str = "atrace";
/// The bench of subscribers.
pub const SUBSCRIBER: &str = "subscriber";
/// The count of instructions.
pub const INSTRUCTIONS: &str = "instructions";

/// A bench.
#[derive(Clone, Copy, Debug)]
pub struct Bench {
    /// Its name, and that of its file of rows.
    pub name: &'static str,
    /// About how many seconds a full and a quick run take.
    pub seconds: (u64, u64),
}

/// All, in the order in which a full run has them.
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
    /// Returns the command that runs it.
    pub fn command(&self) -> String {
        let features = if self.name == INSTRUCTIONS { " --features instructions" } else { "" };
        format!("cargo bench -p atrace-benches{features} --bench {}", self.name)
    }

    /// Returns the ids of the rows that a full run leaves at least.
    pub fn rows(&self) -> Vec<Id> {
        match self.name {
            ATRACE => {
                let limits = ["load_and_test"].map(Id::limit);
                let raw = ["begin/10", "begin/1000", "end"].into_iter().filter_map(super::Event::named);
                let raw = raw.map(|event| Id { who: Who::Limit, what: What::RawWrite(event) });
                let threads = EVENTS.iter().take(1).flat_map(|event| {
                    let of = move |n| State::ALL.map(|state| What::Threads(state, event, n));
                    [1, 2].into_iter().flat_map(of).map(|what| Id { who: Who::Rust, what })
                });
                events().chain(limits).chain(raw).chain(threads).chain(perfetto()).collect()
            }
            SUBSCRIBER => {
                let raw = |case| Id { who: Who::Limit, what: What::RawWriteOf("on".to_owned(), case) };
                kinds().chain(TracingCase::ALL.map(raw)).collect()
            }
            INSTRUCTIONS => events().chain(kinds()).chain(perfetto()).collect(),
            _ => Vec::new(),
        }
    }
}

/// Every event in both states, by all that have it.
fn events() -> impl Iterator<Item = Id> {
    let of = |state| {
        EVENTS.iter().flat_map(move |event| {
            let cc = event.cc.map(|_| Who::Cc);
            [Who::Rust, Who::Ffi].into_iter().chain(cc).map(move |who| Id::event(who, state, event))
        })
    };
    State::ALL.into_iter().flat_map(of)
}

/// What a program does with `tracing`, under each subscriber whose instructions are counted, too.
fn kinds() -> impl Iterator<Item = Id> {
    let counted = SUBSCRIBERS.iter().filter(|subscriber| subscriber.counted);
    counted.flat_map(|subscriber| TracingCase::ALL.map(|case| subscriber.id(case)))
}

/// Every event by Perfetto's way, which is measured while a session wants it.
fn perfetto() -> impl Iterator<Item = Id> {
    EVENTS.iter().chain(&LITERALS).map(|event| Id::event(Who::Perfetto, State::On, event))
}
