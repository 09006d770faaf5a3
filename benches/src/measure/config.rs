//! How long a measurement takes, how many rounds it has, and how sure it is to be.

use std::time::Duration;

use crate::harness::args::Args;

/// How long, how often, and how sure.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// How long one slice of a case takes: 0.2 to 1 ms. A case slower than that runs once.
    pub slice: Duration,
    /// How long a case runs untimed before each of its slices, to have its code and data in the
    /// caches; zero for not at all.
    pub warm_up: Duration,
    /// No comparison rests on fewer rounds.
    pub min_rounds: usize,
    /// No comparison is given more rounds, however uncertain it is.
    pub max_rounds: usize,
    /// How long all rounds together may take, once there are `min_rounds`.
    pub budget: Duration,
    /// Rounds go on until each compared ratio of which nothing is promised has half its interval within this part of it…
    pub tight: f64,
    /// …or the difference has half its interval within this many nanoseconds.
    pub tight_ns: f64,
    /// Whether to stay on one CPU while measuring.
    pub pin: bool,
    /// What the order of the cases is drawn from.
    pub seed: u64,
    /// Run one operation of every case, once, and measure nothing.
    pub once: bool,
}

impl Config {
    /// Returns the configuration of a full run.
    pub fn full() -> Self {
        Self {
            slice: Duration::from_micros(300),
            warm_up: Duration::from_micros(30),
            min_rounds: 200,
            max_rounds: 3000,
            budget: Duration::from_secs(12),
            tight: 0.005,
            tight_ns: 0.02,
            pin: true,
            seed: 0xA7ACE,
            once: false,
        }
    }

    /// Returns the configuration of a run with `--quick`.
    pub fn quick() -> Self {
        Self {
            min_rounds: 60,
            max_rounds: 400,
            budget: Duration::from_millis(2500),
            tight: 0.01,
            tight_ns: 0.05,
            ..Self::full()
        }
    }

    /// Returns the configuration of a bench that runs as a test.
    pub fn test() -> Self {
        Self { once: true, min_rounds: 1, max_rounds: 1, pin: false, ..Self::full() }
    }

    /// Returns the configuration that a command line asks for.
    pub fn of(args: &Args) -> Self {
        match args {
            Args { test: true, .. } => Self::test(),
            Args { quick: true, .. } => Self::quick(),
            _ => Self::full(),
        }
    }
}
