//! Prints how much processor time each span and event of a program costs. One of the events is expensive.
//!
//! ```text
//! cargo run --release -p atrace-subscriber --example bill                # prints the bill
//! cargo run --release -p atrace-subscriber --example bill -- none 300000 # the same work without a subscriber
//! ```
//!
//! The first argument is the mode: `metered`, a subscriber with a meter (the default); `plain`, the same subscriber
//! without a meter; `none`, no subscriber; or `atrace`, an `AtraceSubscriber`, which is metered if `ATRACE_BILL=PATH`
//! is set. The second argument is the number of rounds.

use std::hint::black_box;
use std::io;

use atrace_subscriber::AtraceSubscriber;
use atrace_subscriber::metered::Metered;
use tracing::{Level, debug, debug_span, info, info_span, trace};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::prelude::*;

/// An account: a part of the state on which the program works.
#[derive(Debug)]
struct Account {
    _number: u64,
    _balance: u128,
    _history: [u32; 12],
}

mod state {
    use super::*;

    pub(super) fn prefetch(round: u64) -> u64 {
        let _span = debug_span!("prefetch", round, kind = "account", slots = 12, warm = true).entered();
        let account = Account { _number: round, _balance: u128::from(round) << 70, _history: [7; 12] };
        debug!(?account, "loaded");
        super::work(400)
    }

    pub(super) fn lookup(key: u64) -> u64 {
        let _span = info_span!("lookup", key).entered();
        trace!(target: "bill::state::cache", key, "hit");
        super::work(400)
    }
}

/// Does a part of the program's work: reads `numbers` numbers.
fn work(numbers: usize) -> u64 {
    static NUMBERS: [u64; 4096] = [3; 4096];
    black_box(&NUMBERS)[..black_box(numbers)].iter().fold(0, |sum, number| sum ^ number.rotate_left(7))
}

fn run(rounds: u64) {
    for round in 0..rounds {
        let _round = info_span!("round").entered();
        black_box(state::prefetch(round));
        black_box(state::lookup(round) + state::lookup(round + 1));
        for _ in 0..4 {
            black_box(work(4096));
        }
        if round % 1000 == 0 {
            info!(round, "progress");
        }
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mode = arguments.next().unwrap_or_else(|| "metered".to_owned());
    let rounds = arguments.next().map_or(100_000, |rounds| rounds.parse().expect("a number of rounds"));
    let stack = || {
        let writes = tracing_subscriber::fmt::layer().with_writer(io::sink);
        tracing_subscriber::registry().with(writes).with(LevelFilter::from_level(Level::DEBUG))
    };
    match &*mode {
        "metered" => {
            let metered = Metered::new(stack());
            let meter = metered.meter();
            metered.init();
            run(rounds);
            print!("{}", meter.bill());
        }
        "plain" => {
            stack().init();
            run(rounds);
        }
        "atrace" => {
            tracing::subscriber::set_global_default(AtraceSubscriber::default())
                .expect("none was set before");
            run(rounds);
        }
        "none" => run(rounds),
        _ => panic!("not a mode: {mode}"),
    }
}
