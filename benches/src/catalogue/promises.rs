//! The promises about rows (measured results). `promises.txt` has a line for each promised ratio, difference and number
//! of instructions. Promises about numbers of instructions can be judged even on a busy machine. They limit the cost of
//! an event while tracing is off, and the cost that this library adds to the system call.
//!
//! Promises about all workloads are in `measure/workload/bars.rs`; promises about one workload are in the bench of that
//! workload. `benches/bounds.toml` has upper bounds for the instructions of operations. The outcome of a promise is a
//! [`Judged`](crate::promise::Judged).

use super::id::{Id, Who};
use super::kinds::TracingCase;

/// A promise about a row (a measured result), or about a row compared with another row.
#[derive(Clone, Debug, PartialEq)]
pub struct Promise {
    /// The promise in words. Several promises may have the same name.
    pub name: &'static str,
    /// The row that the promise is about.
    pub id: Id,
    /// The row with which the row `id` is compared. The field is empty for a promise about a single number of
    /// instructions.
    pub base: Id,
    /// The maximum ratio, number of nanoseconds, or number of instructions.
    pub at_most: f64,
}

/// The name of a comparison between two growths of CPU time with the number of threads: the growth for threads that
/// write events, and the growth for threads that only fill their own memory.
pub const GROWTH: &str = "own_memory_growth";
/// The name of a count, and its promised maximum: the number of system calls per event, at 100,000 events a second.
pub const SYSTEM_CALLS: (&str, f64) = ("system_calls", 0.01);

/// Returns the promises of a group in `promises.txt`.
///
/// # Panics
///
/// Panics if the group does not exist, or if a line is malformed.
pub fn of(group: &str) -> Vec<Promise> {
    let text = include_str!("promises.txt");
    let (_, lines) = text.split_once(&format!("[{group}]\n")).expect("the file has the group");
    let lines = lines.lines().take_while(|line| !line.is_empty());
    lines.map(|line| parse(line).unwrap_or_else(|| panic!("a promise has another form: {line}"))).collect()
}

fn parse(line: &'static str) -> Option<Promise> {
    let parts: Vec<&str> = line.split('|').map(str::trim).collect();
    let [name, id, base, at_most] = parts[..] else { return None };
    Some(Promise { name, id: Id::of(id), base: Id::of(base), at_most: at_most.parse().ok()? })
}

/// Returns whether there is a promise that an operation does not allocate. There is such a promise for all operations
/// of this workspace with the marker backend or the Perfetto backend, with one exception: while tracing is on, a span
/// may allocate if the subscriber is a layer (with the Perfetto backend, only a span with fields).
pub fn must_not_allocate(id: &Id) -> bool {
    let case = id.as_tracing().and_then(|(kind, case)| (kind == "layer_on").then_some(case));
    match id.who {
        Who::Rust => !matches!(case, Some(TracingCase::Span | TracingCase::SpanArgs)),
        Who::Perfetto => !matches!(case, Some(TracingCase::SpanArgs)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::Event;

    /// Checks that the ids in the promises exist. A promise with a misspelt id would match no row, and would not be
    /// judged.
    #[test]
    fn promises_are_of_rows_that_exist() {
        let groups = [
            "events",
            "perfetto",
            "differences",
            "subscribers",
            "layers",
            "instructions",
            "instructions of others",
        ];
        let all = groups.map(of);
        assert_eq!(all.each_ref().map(Vec::len), [13, 14, 2, 25, 6, 10, 16]);
        let known = ["on_990_more", "copy_of_990", "own_memory_growth/8_threads", "timestamp"];
        let is_known = |name: &str| {
            let operation =
                name.strip_prefix("raw_write_").map_or(name, |of| of.strip_prefix("of_").unwrap_or(of));
            let id = Id::new(Who::Rust, operation);
            let is_event = Event::named(operation).is_some() || id.as_event().is_some() || id.is_by_threads();
            is_event
                || id.as_tracing().is_some()
                || operation.starts_with("on_begin_")
                || known.contains(&name)
        };
        for Promise { name, id, base, at_most } in all.iter().flatten() {
            let none = if *name == "instructions" { "" } else { "no row" };
            for what in [id, base].map(|id| &id.name).into_iter().filter(|what| *what != none) {
                assert!(is_known(what), "{name}: {what}");
            }
            assert!(*at_most > 0.0, "{name}: {id}");
        }
    }

    #[test]
    fn a_layers_span_may_allocate_while_on() {
        for (id, must_not) in [
            ("rust/tracing_on_event", true),
            ("rust/layer_off_span", true),
            ("rust/layer_on_event_args", true),
            ("rust/layer_on_span", false),
            ("rust/layer_on_span_args", false),
            ("cc/tracing_on_end", false),
            ("perfetto/tracing_on_int", true),
            ("perfetto/layer_filtered_span_args", true),
            ("perfetto/layer_on_span", true),
            ("perfetto/layer_on_span_args", false),
        ] {
            assert_eq!(must_not_allocate(&Id::of(id)), must_not, "{id}");
        }
    }
}
