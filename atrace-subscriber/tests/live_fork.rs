//! Forked children know their own spans. One test, as `tracing` itself has locks that another test's thread may hold at
//! a fork: while it learns of a subscriber, or of a callsite.

#![allow(unsafe_code, reason = "processes are forked")]

use std::sync::atomic::{AtomicBool, Ordering};

use atrace_subscriber::live::LiveLayer;
use tracing::dispatcher::with_default;
use tracing::{Dispatch, Span, info_span};
use tracing_subscriber::prelude::*;

fn in_fork(body: impl FnOnce()) {
    // SAFETY: the child does what this test is about, and ends without returning from here.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // SAFETY: a child that hangs ends by this signal.
        unsafe { libc::alarm(60) };
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).is_ok();
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(if done { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: `status` is writable.
    let ended = unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!((ended, status), (child, 0), "the child failed, or hung until its alarm");
}

/// One callsite for all, so that none is new to a child.
fn span(of: &'static str) -> Span {
    info_span!("span", of)
}

#[test]
fn a_child_begins_with_none() {
    let layer = LiveLayer::new();
    let live = layer.handle();
    let dispatch: Dispatch = tracing_subscriber::registry().with(layer).into();
    let over = AtomicBool::new(false);
    with_default(&dispatch, || {
        let outer = span("parent").entered();
        std::thread::scope(|scope| {
            // Threads that hold locks at any moment.
            for _ in 0..3 {
                scope.spawn(|| {
                    with_default(&dispatch, || {
                        while !over.load(Ordering::Relaxed) {
                            drop([(); 10].map(|()| span("parent's thread")));
                        }
                    });
                });
            }
            for round in 0..50 {
                in_fork(|| {
                    assert!(live.dump().is_empty());
                    let spans = [(); 100].map(|()| span("child"));
                    spans[0].in_scope(|| {
                        let dump = live.dump();
                        assert_eq!(dump.len(), 100);
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
                    assert!(live.dump().is_empty());
                });
            }
            over.store(true, Ordering::Relaxed);
        });
        assert_eq!(live.dump().len(), 1);
        drop(outer);
    });
    assert!(live.dump().is_empty());
}
