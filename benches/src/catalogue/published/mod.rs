//! What the originals published: the times of AOSP's `libatrace_rust` benchmarks, and in [`lines`] every line of all five.
//!
//! They measured on a Cuttlefish virtual device (`aosp_cf_x86_64_phone-userdebug`), so only ratios can be compared
//! with what is measured elsewhere. Rust's three numbers are Criterion's estimate with its 95 % interval; C++'s is
//! the `Time` of Google Benchmark.

pub mod lines;

use super::case::TracingCase;
use super::event::Event;
use super::id::{Id, State, What, Who};

/// A published time in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Published {
    /// The lower bound, or the time itself where no bounds were published.
    pub low: f64,
    /// The time.
    pub ns: f64,
    /// The upper bound, or the time itself.
    pub high: f64,
}

/// A case of the benchmark of events.
#[derive(Clone, Debug, PartialEq)]
pub struct OfEvent {
    /// Whether tracing was on.
    pub state: State,
    /// The [kind of event](super::EVENTS).
    pub event: &'static str,
    /// The Rust wrapper.
    pub rust: Published,
    /// C++.
    pub cc: Published,
}

impl OfEvent {
    /// Returns the id of the row of the same case here.
    ///
    /// # Panics
    ///
    /// Never: the catalogue has every event that was published.
    pub fn id(&self, who: Who) -> Id {
        Id::event(who, self.state, Event::named(self.event).expect("the catalogue has it"))
    }
}

/// A case of the subscriber's benchmark.
#[derive(Clone, Debug, PartialEq)]
pub struct OfTracing {
    /// The [kind of subscriber](super::SUBSCRIBERS).
    pub kind: &'static str,
    /// What was done.
    pub case: TracingCase,
    /// What was published.
    pub rust: Published,
}

impl OfTracing {
    /// Returns the id of the row of the same case here.
    pub fn id(&self) -> Id {
        Id { who: Who::Rust, what: What::Tracing(self.kind.to_owned(), self.case) }
    }
}

const fn times(low: f64, ns: f64, high: f64) -> Published {
    Published { low, ns, high }
}

const fn time(ns: f64) -> Published {
    times(ns, ns, ns)
}

/// The benchmark of events.
pub const EVENTS: [OfEvent; 6] = [
    OfEvent { state: State::Off, event: "begin/10", rust: times(6.0211, 6.0382, 6.0607), cc: time(4.0) },
    OfEvent { state: State::Off, event: "begin/1000", rust: times(6.0119, 6.0418, 6.0823), cc: time(4.05) },
    OfEvent { state: State::Off, event: "end", rust: times(6.5417, 6.6801, 6.8131), cc: time(4.08) },
    OfEvent { state: State::On, event: "begin/10", rust: times(1284.7, 1292.9, 1304.4), cc: time(1119.0) },
    OfEvent { state: State::On, event: "begin/1000", rust: times(1539.5, 1547.6, 1558.0), cc: time(1151.0) },
    OfEvent { state: State::On, event: "end", rust: times(1115.3, 1120.8, 1127.6), cc: time(1076.0) },
];

/// The subscriber's benchmark.
pub const TRACING: [OfTracing; 12] = [
    OfTracing { kind: "tracing_off", case: TracingCase::Event, rust: times(47.444, 47.945, 48.585) },
    OfTracing { kind: "filtered", case: TracingCase::Event, rust: times(26.852, 26.942, 27.040) },
    OfTracing { kind: "tracing_off", case: TracingCase::EventArgs, rust: times(80.597, 80.997, 81.475) },
    OfTracing { kind: "filtered", case: TracingCase::EventArgs, rust: times(26.680, 26.782, 26.887) },
    OfTracing { kind: "tracing_off", case: TracingCase::Span, rust: times(316.48, 317.72, 319.12) },
    OfTracing { kind: "filtered", case: TracingCase::Span, rust: times(27.900, 27.959, 28.018) },
    OfTracing { kind: "tracing_off", case: TracingCase::SpanArgs, rust: times(364.92, 367.57, 370.95) },
    OfTracing { kind: "filtered", case: TracingCase::SpanArgs, rust: times(27.625, 27.919, 28.207) },
    OfTracing { kind: "tracing_on", case: TracingCase::Event, rust: times(1463.9, 1480.5, 1495.4) },
    OfTracing { kind: "tracing_on", case: TracingCase::EventArgs, rust: times(2008.8, 2019.7, 2031.4) },
    OfTracing { kind: "tracing_on", case: TracingCase::Span, rust: times(2790.7, 2799.6, 2810.3) },
    OfTracing { kind: "tracing_on", case: TracingCase::SpanArgs, rust: times(3684.6, 3699.2, 3716.8) },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_hold_what_they_are_of() {
        let all = EVENTS.iter().flat_map(|e| [e.rust, e.cc]).chain(TRACING.iter().map(|s| s.rust));
        for Published { low, ns, high } in all {
            assert!(low <= ns && ns <= high);
        }
    }
}
