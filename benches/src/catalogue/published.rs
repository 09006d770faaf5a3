//! The benchmark that this one repeats: the numbers that the authors of AOSP's `libatrace_rust` published, and
//! their names for the cases.
//!
//! They measured on a Cuttlefish virtual device (`aosp_cf_x86_64_phone-userdebug`), so only ratios can be compared
//! with what is measured elsewhere. Rust's three numbers are Criterion's estimate with its 95 % interval; C++'s is
//! the `Time` of Google Benchmark.

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

/// A case of the wrapper benchmark.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wrapper {
    /// The case, as in ids.
    pub name: &'static str,
    /// The Rust wrapper.
    pub rust: Published,
    /// C++.
    pub cc: Published,
}

/// A case of the subscriber's benchmark.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Subscriber {
    /// The case, as in ids.
    pub name: &'static str,
    /// What was published.
    pub rust: Published,
}

const fn times(low: f64, ns: f64, high: f64) -> Published {
    Published { low, ns, high }
}

const fn time(ns: f64) -> Published {
    times(ns, ns, ns)
}

/// The wrapper benchmark.
pub const WRAPPER: [Wrapper; 6] = [
    Wrapper { name: "tracing_off_begin/10", rust: times(6.0211, 6.0382, 6.0607), cc: time(4.0) },
    Wrapper { name: "tracing_off_begin/1000", rust: times(6.0119, 6.0418, 6.0823), cc: time(4.05) },
    Wrapper { name: "tracing_off_end", rust: times(6.5417, 6.6801, 6.8131), cc: time(4.08) },
    Wrapper { name: "tracing_on_begin/10", rust: times(1284.7, 1292.9, 1304.4), cc: time(1119.0) },
    Wrapper { name: "tracing_on_begin/1000", rust: times(1539.5, 1547.6, 1558.0), cc: time(1151.0) },
    Wrapper { name: "tracing_on_end", rust: times(1115.3, 1120.8, 1127.6), cc: time(1076.0) },
];

/// The subscriber's benchmark.
pub const SUBSCRIBER: [Subscriber; 12] = [
    Subscriber { name: "tracing_off_event", rust: times(47.444, 47.945, 48.585) },
    Subscriber { name: "filtered_event", rust: times(26.852, 26.942, 27.040) },
    Subscriber { name: "tracing_off_event_args", rust: times(80.597, 80.997, 81.475) },
    Subscriber { name: "filtered_event_args", rust: times(26.680, 26.782, 26.887) },
    Subscriber { name: "tracing_off_span", rust: times(316.48, 317.72, 319.12) },
    Subscriber { name: "filtered_span", rust: times(27.900, 27.959, 28.018) },
    Subscriber { name: "tracing_off_span_args", rust: times(364.92, 367.57, 370.95) },
    Subscriber { name: "filtered_span_args", rust: times(27.625, 27.919, 28.207) },
    Subscriber { name: "tracing_on_event", rust: times(1463.9, 1480.5, 1495.4) },
    Subscriber { name: "tracing_on_event_args", rust: times(2008.8, 2019.7, 2031.4) },
    Subscriber { name: "tracing_on_span", rust: times(2790.7, 2799.6, 2810.3) },
    Subscriber { name: "tracing_on_span_args", rust: times(3684.6, 3699.2, 3716.8) },
];

/// Returns what the original benchmark calls the case of a row: C++'s have names of their own.
#[must_use]
pub fn label(id: &str) -> String {
    let Some(name) = id.strip_prefix("cc/tracing_") else { return id.to_owned() };
    let mut out = String::from("BM_Tracing");
    for (index, part) in name.split('_').enumerate() {
        if index == 1 {
            out.push_str("Atrace");
        }
        let mut chars = part.chars();
        out.extend(chars.next().into_iter().flat_map(char::to_uppercase));
        out.push_str(chars.as_str());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_the_originals() {
        assert_eq!(label("cc/tracing_off_begin/1000"), "BM_TracingOffAtraceBegin/1000");
        assert_eq!(label("cc/tracing_on_async_end"), "BM_TracingOnAtraceAsyncEnd");
        assert_eq!(label("rust/tracing_on_end"), "rust/tracing_on_end");
    }

    #[test]
    fn bounds_hold_what_they_are_of() {
        let all = WRAPPER.iter().flat_map(|w| [w.rust, w.cc]).chain(SUBSCRIBER.iter().map(|s| s.rust));
        for Published { low, ns, high } in all {
            assert!(low <= ns && ns <= high);
        }
    }
}
