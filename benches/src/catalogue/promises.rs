//! What is promised of ratios: an operation takes at most so many times as long as another.
//!
//! What is promised of programs is in [`workload::Bar`](crate::measure::workload::Bar), of instructions in
//! `benches/bounds.toml`.

use super::event::Event;
use super::id::{Id, State, What, Who};
use super::tracing::Case;

/// A promise about the ratio of two rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Promise {
    /// The row.
    pub id: Id,
    /// What it is compared to.
    pub base: Id,
    /// The highest ratio.
    pub at_most: f64,
}

/// What is promised of the bench `atrace`.
#[must_use]
pub fn of_events() -> Vec<Promise> {
    use State::{Off, On};
    let named = |name| Event::named(name).expect("the catalogue has it");
    let of = |who, state, name, base: Who, at_most| {
        let (id, base) = (Id::event(who, state, named(name)), Id::event(base, state, named(name)));
        Promise { id, base, at_most }
    };
    let mut all = vec![
        of(Who::Rust, Off, "begin/10", Who::Cc, 0.20),
        of(Who::Rust, Off, "begin/1000", Who::Cc, 0.20),
        of(Who::Rust, Off, "end", Who::Cc, 0.20),
        of(Who::Rust, Off, "scoped", Who::Cc, 0.15),
        of(Who::Rust, On, "begin/10", Who::Cc, 0.85),
        of(Who::Rust, On, "begin/1000", Who::Cc, 0.85),
        of(Who::Rust, On, "end", Who::Cc, 0.85),
    ];
    all.extend([("begin/10", 1.05), ("begin/1000", 1.10), ("end", 1.05)].map(|(name, at_most)| Promise {
        id: Id::event(Who::Rust, On, named(name)),
        base: Id { who: Who::Limit, what: What::RawWrite(named(name)) },
        at_most,
    }));
    all.extend(["begin/10", "begin/1000", "end"].map(|name| of(Who::Ffi, On, name, Who::Cc, 1.04)));
    all
}

/// What is promised of the bench `subscriber`.
#[must_use]
pub fn of_subscribers() -> Vec<Promise> {
    let row = |who, kind: &str, case| Id { who, what: What::Tracing(kind.to_owned(), case) };
    let raw = |mode: &str, case| Id { who: Who::Limit, what: What::RawWriteOf(mode.to_owned(), case) };
    let [event, event_args, span, span_args] = Case::ALL;
    let mut all = Vec::new();
    let mut promise = |id, base, at_most| all.push(Promise { id, base, at_most });
    for case in Case::ALL {
        promise(row(Who::Rust, "filtered", case), row(Who::Limit, "no_subscriber", case), 1.15);
    }
    for (case, at_most) in [(event, 1.15), (event_args, 1.15), (span, 1.20), (span_args, 1.20)] {
        promise(row(Who::Rust, "tracing_off", case), row(Who::Limit, "noop_always", case), at_most);
    }
    for (case, at_most) in [(event, 1.07), (event_args, 1.30), (span, 1.05), (span_args, 1.20)] {
        promise(row(Who::Rust, "tracing_on", case), raw("on", case), at_most);
    }
    for (case, at_most) in [(event, 1.08), (span, 1.15)] {
        promise(row(Who::Rust, "layer_on", case), raw("layer_on", case), at_most);
    }
    for case in Case::ALL {
        promise(row(Who::Rust, "on_filtered", case), row(Who::Rust, "tracing_on", case), 1.03);
    }
    all
}

/// Tells whether an operation is promised not to allocate: everything of this workspace's, but a layer's span while on.
#[must_use]
pub fn must_not_allocate(id: &Id) -> bool {
    let is_span_of_layer = matches!(&id.what,
        What::Tracing(kind, Case::Span | Case::SpanArgs) if kind == "layer_on");
    id.who == Who::Rust && !is_span_of_layer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layers_span_may_allocate_while_on() {
        for (id, must_not) in [
            ("rust/tracing_on_event", true),
            ("rust/layer_off_span", true),
            ("rust/layer_on_event_args", true),
            ("rust/layer_on_span", false),
            ("rust/layer_on_span_args", false),
            ("cc/tracing_on_end", false),
        ] {
            assert_eq!(must_not_allocate(&Id::of(id)), must_not, "{id}");
        }
    }
}
