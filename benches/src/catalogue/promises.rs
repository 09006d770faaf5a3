//! What is promised of rows: `promises.txt` has a line for each promise. Of instructions, too, which say what is off, and what is this
//! library's own, on the busiest machine.
//!
//! What is promised of all workloads is in `measure/workload/bars.rs`, of one in its bench. That no operation takes more
//! instructions than before is `benches/bounds.toml`'s. What came of a promise is a [`Judged`](crate::promise::Judged), whichever it was.

use super::case::TracingCase;
use super::id::{Id, What, Who};

/// A promise about a row, alone or beside another.
#[derive(Clone, Debug, PartialEq)]
pub struct Promise {
    /// What is promised, in words that all of a group have.
    pub name: &'static str,
    /// The row.
    pub id: Id,
    /// What it is compared to.
    pub base: Id,
    /// The highest ratio, the most nanoseconds, or the most instructions.
    pub at_most: f64,
}

/// By how much more processors' time an event takes on threads than on one.
pub const GROWTH: &str = "own_memory_growth";
/// How many system calls a process makes for an event of a hundred thousand in a second: the name of the count, and the most.
pub const SYSTEM_CALLS: (&str, f64) = ("system_calls", 0.01);

/// Returns the promises of a group of the file.
///
/// # Panics
///
/// If there is no such group, or a line has another form.
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

/// Tells whether an operation is promised not to allocate: everything of this workspace's, but a layer's span while on; by
/// Perfetto's way, only one with fields.
pub fn must_not_allocate(id: &Id) -> bool {
    let case = match &id.what {
        What::Tracing(kind, case) if kind == "layer_on" => Some(case),
        _ => None,
    };
    match id.who {
        Who::Rust => !matches!(case, Some(TracingCase::Span | TracingCase::SpanArgs)),
        Who::Perfetto => !matches!(case, Some(TracingCase::SpanArgs)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An id that is misspelt would be one of something else, and its promise left out.
    #[test]
    fn promises_are_of_rows_that_exist() {
        let groups =
            ["events", "perfetto", "differences", "subscribers", "instructions", "instructions of others"];
        let all = groups.map(of);
        assert_eq!(all.each_ref().map(Vec::len), [13, 14, 2, 25, 10, 16]);
        let known = ["on_990_more", "copy_of_990", "own_memory_growth/8_threads", "timestamp"];
        for Promise { name, id, base, at_most } in all.iter().flatten() {
            let none = if *name == "instructions" { "" } else { "no row" };
            for what in [id, base].map(Id::name).iter().filter(|what| *what != none) {
                let is_known = !matches!(Id::of(&format!("rust/{what}")).what, What::Other(_));
                assert!(is_known || known.contains(&&what[..]), "{name}: {what}");
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
