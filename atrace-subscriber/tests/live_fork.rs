//! Tests that a dump in a forked child shows the child's own spans. The tests run one at a time: `tracing` itself takes
//! locks when a subscriber or a callsite is registered, and a thread of another test could hold these locks during a
//! fork.

#![allow(unsafe_code, reason = "processes are forked")]

use std::sync::atomic::{AtomicBool, Ordering};

use std::sync::{Mutex, PoisonError};

use atrace_subscriber::live::{self, LiveLayer};
use tracing::dispatcher::with_default;
use tracing::{Dispatch, Span, info_span};
use tracing_subscriber::prelude::*;

fn in_fork(body: impl FnOnce()) {
    // SAFETY: the child runs `body`, and ends without returning from this function.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // SAFETY: no preconditions; the signal ends a child that hangs.
        unsafe { libc::alarm(600) };
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).is_ok();
        // SAFETY: no preconditions; ends the child at once.
        unsafe { libc::_exit(if done { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: `status` is writable.
    let ended = unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!((ended, status), (child, 0), "the child failed, or hung until its alarm");
}

/// Creates a span. All spans have the same callsite, so a child never creates the first span of a callsite.
fn span(of: &'static str) -> Span {
    info_span!("span", of)
}

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A guard whose drop tells other threads to stop, even if the test fails. Without this guard, the threads would run
/// forever.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_child_begins_with_none() {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let layer = LiveLayer::default();
    let live = layer.handle();
    let dispatch: Dispatch = tracing_subscriber::registry().with(layer).into();
    let over = AtomicBool::new(false);
    with_default(&dispatch, || {
        let outer = span("parent").entered();
        std::thread::scope(|scope| {
            // Starts threads that may hold locks at any moment.
            for _ in 0..3 {
                scope.spawn(|| {
                    with_default(&dispatch, || {
                        while !over.load(Ordering::Relaxed) {
                            drop([(); 10].map(|()| span("parent's thread")));
                        }
                    });
                });
            }
            let done = Over(&over);
            for round in 0..50 {
                in_fork(|| {
                    assert_eq!(live.dump().spans().len(), 0);
                    let spans = [(); 100].map(|()| span("child"));
                    spans[0].in_scope(|| {
                        let dump = live.dump();
                        assert_eq!(dump.spans().len(), 100);
                        let thread = dump.spans().find_map(|span| span.threads().next().cloned());
                        assert_eq!(thread.unwrap().number(), Some(std::process::id()));
                    });
                    if round == 0 {
                        in_fork(|| {
                            let _span = span("grandchild");
                            let dump = live.dump();
                            let fields: Vec<_> = dump.spans().map(|span| span.fields()).collect();
                            assert_eq!(fields, [r#"of = "grandchild""#]);
                        });
                    }
                    drop(spans);
                    assert_eq!(live.dump().spans().len(), 0);
                });
            }
            drop(done);
        });
        assert_eq!(live.dump().spans().len(), 1);
        drop(outer);
    });
    assert_eq!(live.dump().spans().len(), 0);
}

/// Tests forks while threads look up symbols. Such a thread holds a lock for milliseconds, and in a forked child no
/// thread releases that lock.
#[test]
fn a_child_looks_symbols_up_or_does_without() {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let layer = LiveLayer::default().with_backtraces(8).with_eager_symbols(true);
    let live = layer.handle();
    let dispatch: Dispatch = tracing_subscriber::registry().with(layer).into();
    let lazy = LiveLayer::default().with_backtraces(8);
    let shown = lazy.handle();
    let to_lazy: Dispatch = tracing_subscriber::registry().with(lazy).into();
    let over = AtomicBool::new(false);
    let named = |dump: &atrace_subscriber::live::Dump| {
        let span = dump.spans().next().expect("it is alive");
        span.frames().iter().any(|frame| frame.function().is_some())
    };
    let in_child = || {
        with_default(&dispatch, || {
            let _span = span("child");
            assert!(!live.dump().to_string().is_empty());
        });
        with_default(&to_lazy, || {
            let _span = span("child");
            let dump = shown.dump();
            assert!(dump.to_string().lines().count() > 3);
            let _ = named(&dump);
        });
    };
    with_default(&to_lazy, || drop(span("known")));
    // No other thread looks up symbols yet, so the child gets the names of functions.
    in_fork(|| {
        with_default(&to_lazy, || {
            let _span = span("child");
            assert!(named(&shown.dump()));
        });
    });
    std::thread::scope(|scope| {
        scope.spawn(|| {
            with_default(&dispatch, || {
                while !over.load(Ordering::Relaxed) {
                    drop(span("parent's thread"));
                }
            });
        });
        let _done = Over(&over);
        for _ in 0..30 {
            in_fork(in_child);
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    });
    // In the parent, the backtraces still contain the names of functions.
    with_default(&to_lazy, || {
        let _span = span("parent");
        assert!(named(&shown.dump()));
    });
}

/// Tests forks while a thread creates layers all the time, and so holds the lock of the list of all layers most of the
/// time.
#[test]
fn a_child_dumps_all_layers_that_it_has_spans_of() {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let layer = LiveLayer::default();
    let dispatch: Dispatch = tracing_subscriber::registry().with(layer).into();
    let others: Vec<_> = (0..2000).map(|_| LiveLayer::default().handle()).collect();
    let over = AtomicBool::new(false);
    let fields = || live::dump().spans().map(|span| span.fields().to_owned()).collect::<Vec<_>>();
    with_default(&dispatch, || {
        let outer = span("parent").entered();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    drop(LiveLayer::default().handle());
                }
            });
            let _done = Over(&over);
            for round in 0..20 {
                in_fork(|| {
                    assert_eq!(live::dump().spans().len(), 0);
                    let _span = span("child");
                    assert_eq!(fields(), [r#"of = "child""#]);
                    let own = LiveLayer::default();
                    let handle = own.handle();
                    let own: Dispatch = tracing_subscriber::registry().with(own).into();
                    with_default(&own, || {
                        let _span = span("own");
                        assert_eq!((handle.dump().spans().len(), live::dump().spans().len()), (1, 2));
                    });
                    if round == 0 {
                        in_fork(|| {
                            assert_eq!(live::dump().spans().len(), 0);
                            let _span = span("grandchild");
                            assert_eq!(fields(), [r#"of = "grandchild""#]);
                        });
                    }
                    drop((own, handle));
                    assert_eq!(live::dump().spans().len(), 1);
                });
            }
        });
        assert_eq!(fields(), [r#"of = "parent""#]);
        drop(outer);
    });
    drop(others);
}
