//! Tests the process's global dispatcher. The global dispatcher gets even spans that are created while another span is
//! being formatted. There is a single test, because a process has only one global dispatcher.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

use atrace_subscriber::live::{self, LiveLayer};
use tracing::info_span;
use tracing_subscriber::prelude::*;

/// A value whose formatting calls a closure.
struct Does<F>(F);

impl<F: Fn()> fmt::Debug for Does<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("before")?;
        (self.0)();
        f.write_str(" after")
    }
}

fn fields(name: &str) -> String {
    let dump = live::dump();
    let span = dump.spans().find(|span| span.metadata().name() == name);
    span.unwrap_or_else(|| panic!("{name} is not in {dump}")).fields().to_owned()
}

#[test]
fn what_formatting_makes_is_there_too() {
    tracing_subscriber::registry().with(LiveLayer::default().with_backtraces(64)).init();
    // A panic while a field is formatted would be caught. So the value that is formatted only stores its result here,
    // and the result is checked later.
    static FOUND: AtomicUsize = AtomicUsize::new(usize::MAX);
    let deepest = Does(|| FOUND.store(live::dump().spans().len(), Ordering::Relaxed));
    let spans = Does(|| {
        let span = info_span!("within", a = 1, b = tracing::field::Empty).entered();
        span.record("b", tracing::field::debug(Does(|| drop(info_span!("deeper", c = 2, d = ?deepest)))));
        assert_eq!(fields("within"), "a = 1, b = before after");
    });
    let span = info_span!("spans", value = ?spans, last = "text");
    assert_eq!(FOUND.load(Ordering::Relaxed), 1);
    assert_eq!(fields("spans"), r#"value = before after, last = "text""#);
    assert_eq!(live::dump().spans().len(), 1);
    drop(span);
    assert_eq!(live::dump().spans().len(), 0);
}
