//! Tests that forked children wait for no thread of their parent. The process forks while one of its threads is in the
//! middle of an operation.
//!
//! Each child sets an alarm, which ends the child if it hangs.

#![cfg(unix)]
#![allow(unsafe_code, reason = "processes are forked")]

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use atrace_subscriber::AtraceSubscriber;
use atrace_sys::process::Undisturbed;
use tracing::field::FieldSet;
use tracing::metadata::Kind;
use tracing::span::Attributes;
use tracing::subscriber::Interest;
use tracing::{Dispatch, Level, Metadata};

/// Runs `body` in a child. Returns what `body` has returned, or `None` if the child hung or failed.
fn in_fork(body: impl FnOnce() -> bool) -> Option<bool> {
    // SAFETY: the child runs `body`, and ends without returning from this function.
    let child = unsafe { libc::fork() };
    let _undisturbed = Undisturbed::new();
    assert!(child >= 0);
    if child == 0 {
        // The time until the alarm is long enough for the slowest machine. SAFETY: no preconditions; the signal ends a
        // child that hangs.
        unsafe { libc::alarm(600) };
        let returned = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        if let Err(panic) = &returned {
            // Prints the panic's message. The test harness would capture it in the child's memory, where it would be
            // lost.
            let text = || panic.downcast_ref::<&str>().copied();
            let message = panic.downcast_ref().map(String::as_str).or_else(text).unwrap_or_default();
            _ = writeln!(std::io::stderr(), "a child panicked: {message}");
        }
        // SAFETY: no preconditions; ends the child at once.
        unsafe { libc::_exit(returned.map_or(2, i32::from)) };
    }
    let mut status = 0;
    // SAFETY: `status` is writable.
    let ended = unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(ended, child);
    match (libc::WIFEXITED(status), libc::WEXITSTATUS(status)) {
        (true, code @ 0..=1) => Some(code == 1),
        _ => {
            _ = writeln!(std::io::stderr(), "a child ended with the wait status {status:#x}");
            None
        }
    }
}

struct Callsite;

impl tracing::Callsite for Callsite {
    fn set_interest(&self, _: Interest) {}

    fn metadata(&self) -> &Metadata<'_> {
        unreachable!("never registered")
    }
}

/// Returns the metadata of a new callsite, which need not be registered with `tracing`.
fn metadata(fields: &'static [&'static str]) -> &'static Metadata<'static> {
    let fields = FieldSet::new(fields, tracing::callsite::Identifier(&Callsite));
    let metadata = Metadata::new("span", "target", Level::INFO, None, None, None, fields, Kind::SPAN);
    Box::leak(Box::new(metadata))
}

fn span(dispatch: &Dispatch, metadata: &'static Metadata<'static>) -> tracing::Id {
    let field = metadata.fields().iter().next();
    match field {
        Some(field) => {
            let values = [(&field, Some(&1_u64 as &dyn tracing::field::Value))];
            dispatch.new_span(&Attributes::new(metadata, &metadata.fields().value_set(&values)))
        }
        None => dispatch.new_span(&Attributes::new(metadata, &metadata.fields().value_set(&[]))),
    }
}

/// Runs `work` on a thread, and forks whenever that thread is in a long operation, until the thread has ended. Panics
/// if a child hangs or fails. Returns whether there was a child: if the calling thread is not scheduled in time, it
/// notices no long operation.
fn forks_during(work: impl Fn(&AtomicUsize) + Sync, child: impl Fn()) -> bool {
    let (done, progress) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            work(&progress);
            done.store(true, Ordering::Relaxed);
        });
        let mut has_forked = false;
        let mut last = (progress.load(Ordering::Relaxed), Instant::now());
        while !done.load(Ordering::Relaxed) {
            let now = progress.load(Ordering::Relaxed);
            if now != last.0 {
                last = (now, Instant::now());
            } else if now > 0 && last.1.elapsed() > Duration::from_micros(100) {
                let completed = in_fork(|| {
                    child();
                    true
                });
                assert!(completed.is_some(), "a child waited for a thread that it does not have");
                has_forked = true;
            }
        }
        has_forked
    })
}

#[test]
fn a_child_numbers_callsites_while_the_parents_table_grows() {
    const CALLSITES: usize = 80_000;
    let all: Vec<_> = (0..CALLSITES).map(|_| metadata(&[])).collect();
    let dispatch = Dispatch::new(AtraceSubscriber::default());
    // Each round runs in a new process, because the table of a process grows only a few times.
    let mut processes = 0;
    for _ in 0..1000 {
        let has_forked = in_fork(|| {
            let work = |progress: &AtomicUsize| {
                for (at, metadata) in all.iter().enumerate() {
                    span(&dispatch, metadata);
                    progress.store(at, Ordering::Relaxed);
                }
            };
            let child = || {
                // Until the child knows that Perfetto has no session, its spans are stored, and their ids are not the
                // numbers of callsites.
                let start = Instant::now();
                while atrace::atrace_is_tag_enabled(atrace::AtraceTag::App) {
                    assert!(start.elapsed() < Duration::from_secs(600), "tracing is on");
                    std::thread::sleep(Duration::from_millis(1));
                }
                // These callsites are new to the child, and belong to the part of the table that grows.
                let last = &all[CALLSITES - 5000..];
                let ids = || last.iter().map(|metadata| span(&dispatch, metadata)).collect::<Vec<_>>();
                assert_eq!(ids(), ids());
            };
            forks_during(work, child)
        });
        processes += usize::from(has_forked.expect("no child hangs or fails"));
        if processes == 10 {
            return;
        }
    }
    panic!("children were forked in {processes} processes only");
}

/// Tests a fork while a thread of this crate makes `tracing` query all subscribers: with several dispatchers, `tracing`
/// holds a lock meanwhile, for which the child's new dispatcher would wait. The test runs in a process of its own,
/// because no other test may create a dispatcher during the fork.
#[cfg(all(feature = "perfetto", any(target_os = "linux", target_os = "android")))]
#[test]
fn a_child_makes_a_dispatcher_though_its_parent_was_rebuilding_the_cache() {
    /// Whether a fork has begun.
    static FORKS: AtomicBool = AtomicBool::new(false);
    static REBUILT_DURING_FORK: AtomicBool = AtomicBool::new(false);

    extern "C" fn note_fork() {
        FORKS.store(true, Ordering::SeqCst);
    }

    extern "C" fn ignore() {}

    /// A subscriber that delays a single answer until 20 ms after the process has begun to fork.
    struct Slow(&'static std::sync::Barrier, AtomicBool);

    impl tracing::Subscriber for Slow {
        fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
            if self.1.swap(false, Ordering::SeqCst) {
                self.0.wait();
                let limit = Instant::now() + Duration::from_secs(600);
                while !FORKS.load(Ordering::SeqCst) && Instant::now() < limit {
                    std::thread::sleep(Duration::from_millis(1));
                }
                std::thread::sleep(Duration::from_millis(20));
                REBUILT_DURING_FORK.store(FORKS.load(Ordering::SeqCst), Ordering::SeqCst);
            }
            Interest::sometimes()
        }

        fn enabled(&self, _: &Metadata<'_>) -> bool {
            false
        }

        fn new_span(&self, _: &Attributes<'_>) -> tracing::Id {
            tracing::Id::from_u64(1)
        }

        fn record(&self, _: &tracing::Id, _: &tracing::span::Record<'_>) {}
        fn record_follows_from(&self, _: &tracing::Id, _: &tracing::Id) {}
        fn event(&self, _: &tracing::Event<'_>) {}
        fn enter(&self, _: &tracing::Id) {}
        fn exit(&self, _: &tracing::Id) {}
    }

    const TEST: &str = "a_child_makes_a_dispatcher_though_its_parent_was_rebuilding_the_cache";
    if std::env::var_os(TEST).is_none() {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        let ran = command.args([TEST, "--exact"]).env(TEST, "1").output().unwrap();
        let said = String::from_utf8_lossy(&ran.stdout);
        return assert!(ran.status.success() && said.contains("1 passed"), "{said}");
    }
    let step: &'static std::sync::Barrier = Box::leak(Box::new(std::sync::Barrier::new(2)));
    let slow = Dispatch::new(Slow(step, AtomicBool::new(false)));
    let filter = Dispatch::new(AtraceSubscriber::default().with_filter());
    tracing::dispatcher::with_default(&filter, || tracing::info!("a callsite to be asked"));
    // At a fork, `note_fork` is called before the functions that were registered earlier.
    assert!(atrace_sys::fork::around(note_fork, ignore, ignore));
    slow.downcast_ref::<Slow>().unwrap().1.store(true, Ordering::SeqCst);
    let recording = std::thread::spawn(|| atrace::perfetto::record_to("/dev/null").unwrap());
    step.wait();
    let fork = || {
        // Cancels this thread: in the fork, the wait for the rebuild must not be a cancellation point. SAFETY: no
        // preconditions; cancellation is deferred, and is disabled once the thread has forked.
        #[cfg(target_os = "linux")]
        assert_eq!(unsafe { libc::pthread_cancel(libc::pthread_self()) }, 0);
        let child = in_fork(|| {
            drop(Dispatch::new(AtraceSubscriber::default()));
            true
        });
        std::mem::forget(Undisturbed::new());
        child
    };
    let child = std::thread::scope(|scope| scope.spawn(fork).join().unwrap());
    recording.join().unwrap().finish().unwrap();
    assert!(REBUILT_DURING_FORK.load(Ordering::SeqCst), "the process did not fork during the rebuild");
    assert_eq!(child, Some(true), "the child waited for a thread that it does not have");
}

#[test]
fn a_child_keeps_spans_while_its_parent_makes_room_for_more() {
    const SPANS: usize = 1 << 17;
    let dispatch = Dispatch::new(AtraceSubscriber::default().with_fields_while_off());
    let metadata = metadata(&["field"]);
    let work = |progress: &AtomicUsize| {
        for at in 0..SPANS {
            // No span is closed, so the number of live spans keeps growing.
            span(&dispatch, metadata);
            progress.store(at, Ordering::Relaxed);
        }
    };
    let child = || {
        let ids: Vec<_> = (0..4000).map(|_| span(&dispatch, metadata)).collect();
        let mut different = ids.clone();
        different.sort_by_key(tracing::Id::into_u64);
        different.dedup();
        assert_eq!(different.len(), ids.len());
        assert!(ids.into_iter().all(|id| dispatch.try_close(id)));
    };
    assert!((0..100).any(|_| forks_during(work, child)), "there was no child");
}
