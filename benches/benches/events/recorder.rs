//! Compares the crate perfetto-recorder with this workspace's Perfetto backend. perfetto-recorder keeps the events of a
//! thread in a list until the program asks for a trace.
//!
//! As in the cases `scoped` and `scoped_literal`, an operation is a scope, whose begin and end are two events. No other
//! process reads the list, and the list has room for all events before each measurement. So the result is the lowest
//! cost that an event can have with perfetto-recorder.

use atrace_benches::catalogue::{Event, Id, State, Who};
use atrace_benches::measure::paired::{Case, Paired};
use perfetto_recorder::{
    EVENTS_PER_SPAN, ThreadTraceData, TraceBuilder, current_thread_reserve, scope, start,
};

/// Adds the case of perfetto-recorder to `paired`, with at most `most` operations in a measurement.
pub(crate) fn add(paired: &mut Paired<'_>, most: u64) {
    start().expect("it is built with its recording");
    assert!(recorded(10) > recorded(0), "perfetto-recorder records the events");
    let literal = Event::named("scoped_literal").expect("it is of the catalogue");
    let id = Id::event(Who::Other("peer-perfetto-recorder".to_owned()), State::On, literal).to_string();
    let entries = usize::try_from(2 * most).expect("a slice is small") * EVENTS_PER_SPAN;
    let before = move || {
        drop(ThreadTraceData::take_current_thread());
        current_thread_reserve(entries);
    };
    paired.add(Case::new(&id, scopes).before(before).at_most(most));
    for name in ["scoped_literal", "scoped"] {
        let event = Event::named(name).expect("it is of the catalogue");
        paired.compare(Id::event(Who::Perfetto, State::On, event).to_string(), &id);
    }
}

fn scopes(n: u64) {
    for _ in 0..n {
        scope!("0123456789");
    }
}

/// Returns the length, in bytes, of the trace of `n` scopes.
fn recorded(n: u64) -> usize {
    drop(ThreadTraceData::take_current_thread());
    scopes(n);
    let mut trace = TraceBuilder::new().expect("it was started");
    trace.process_thread_data(&ThreadTraceData::take_current_thread()).encode_to_vec().len()
}
