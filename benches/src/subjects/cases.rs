//! The `tracing` cases: the operations of AOSP's benchmark of its `tracing` subscriber, with the same texts and with
//! the same names and types of fields.

use std::hint::black_box;
use std::sync::{LazyLock, OnceLock};

use crate::catalogue::TracingCase;

/// The value of a field that is recorded with `Debug`. The vector is made only once, so that its allocation is not
/// counted with the allocations of `tracing`.
static VECTOR: LazyLock<Vec<i32>> = LazyLock::new(|| vec![1, 2, 3, 4]);

/// A function that calls its first argument, a loop over operations, with the number of operations, and runs other code
/// before and after the calls.
type Around = fn(fn(u64), u64);

static AROUND: OnceLock<Around> = OnceLock::new();

/// Sets the function through which [`run`] runs the operations of this process.
pub fn run_within(around: Around) {
    let _ = AROUND.set(around);
}

/// Runs the operation of a case `n` times, through the function that [`run_within`] has set, if any.
#[inline(always)]
pub fn run(case: TracingCase, n: u64) {
    match AROUND.get() {
        Some(around) => around(body(case), n),
        None => body(case)(n),
    }
}

fn body(case: TracingCase) -> fn(u64) {
    match case {
        TracingCase::Event => |n| {
            for _ in 0..n {
                tracing::info!("bench info event");
            }
        },
        TracingCase::EventArgs => |n| {
            let vector = black_box(&*VECTOR);
            for _ in 0..n {
                tracing::info!(
                    debug_arg1 = 123,
                    debug_arg2 = "argument",
                    debug_arg3 = ?vector,
                    debug_arg4 = "last",
                    "bench info event"
                );
            }
        },
        TracingCase::Span => |n| {
            for _ in 0..n {
                let _entered = tracing::info_span!("bench info span").entered();
            }
        },
        TracingCase::SpanArgs => |n| {
            let vector = black_box(&*VECTOR);
            for _ in 0..n {
                let _entered = tracing::info_span!(
                    "bench info span",
                    debug_arg1 = 123,
                    debug_arg2 = "argument",
                    debug_arg3 = ?vector,
                    debug_arg4 = "last"
                )
                .entered();
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::{Debug, Write as _};
    use std::sync::{Arc, Mutex};

    use tracing::field::{Field, Visit};
    use tracing::{Event, Metadata, Subscriber, span};

    use super::*;

    /// Collects the fields of events and spans, as text.
    struct Fields(Arc<Mutex<String>>);

    impl Visit for Fields {
        fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
            write!(self.0.lock().unwrap(), "{field} = {value:?}; ").unwrap();
        }
    }

    impl Subscriber for Fields {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, span: &span::Attributes<'_>) -> span::Id {
            span.record(&mut Self(Arc::clone(&self.0)));
            span::Id::from_u64(1)
        }

        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

        fn event(&self, event: &Event<'_>) {
            event.record(&mut Self(Arc::clone(&self.0)));
        }

        fn enter(&self, _: &span::Id) {}

        fn exit(&self, _: &span::Id) {}
    }

    #[test]
    fn fields_have_the_names_and_values_of_the_original() {
        let fields =
            r#"debug_arg1 = 123; debug_arg2 = "argument"; debug_arg3 = [1, 2, 3, 4]; debug_arg4 = "last"; "#;
        let recorded = |case| {
            let found = Arc::default();
            tracing::subscriber::with_default(Fields(Arc::clone(&found)), || run(case, 1));
            found.lock().unwrap().clone()
        };
        assert_eq!(recorded(TracingCase::Event), "message = bench info event; ");
        assert_eq!(recorded(TracingCase::EventArgs), format!("message = bench info event; {fields}"));
        assert_eq!(recorded(TracingCase::Span), "");
        assert_eq!(recorded(TracingCase::SpanArgs), fields);
    }
}
