//! Tests live spans: which spans exist, where they were created, and which threads are inside, while other
//! threads make dumps.

mod counting;

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use atrace_subscriber::live::{self, Dump, Handle, LiveLayer, Walk, return_addresses};
use atrace_subscriber::{AtraceFilter, AtraceLayer};
use counting::allocations;
use tracing::dispatcher::with_default;
use tracing::field::Empty;
use tracing::{Dispatch, Instrument as _, Span, info_span, span};
use tracing_subscriber::layer::Context;
use tracing_subscriber::prelude::*;
use tracing_subscriber::{Layer, Registry};

/// Returns a subscriber with this layer, and the handle that dumps the layer's spans.
fn with(layer: LiveLayer) -> (Dispatch, Handle) {
    let handle = layer.handle();
    (tracing_subscriber::registry().with(layer).into(), handle)
}

fn plain() -> (Dispatch, Handle) {
    with(LiveLayer::default())
}

fn backtraces() -> LiveLayer {
    LiveLayer::default().with_backtraces(64)
}

fn names(dump: &Dump) -> Vec<&'static str> {
    let mut names: Vec<_> = dump.spans().map(|span| span.metadata().name()).collect();
    names.sort_unstable();
    names
}

fn named<'a>(dump: &'a Dump, name: &str) -> live::Span<'a> {
    let mut found = dump.spans().filter(|span| span.metadata().name() == name);
    let span = found.next().unwrap_or_else(|| panic!("{name} is not in {dump:#}"));
    assert!(found.next().is_none(), "{name} is twice in {dump:#}");
    span
}

/// Returns the paths of the functions in the backtrace of the span's creation.
fn functions(span: &live::Span<'_>) -> Vec<String> {
    span.frames().iter().map(|frame| frame.function().unwrap_or("?").to_owned()).collect()
}

/// Returns the tree of spans that a dump prints, without targets, ages and threads.
fn drawn(dump: &Dump) -> String {
    let text = format!("{dump:#}");
    text.lines().map(|line| line.split("  live  ").next().unwrap()).collect::<Vec<_>>().join("\n")
}

/// A guard whose drop tells other threads to stop, even if the test fails. Without this guard, the threads would run
/// forever.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn until(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(600), "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_span_is_there_from_its_making_to_its_close() {
    let (dispatch, live) = plain();
    with_default(&dispatch, || {
        assert_eq!(live.dump().spans().len(), 0);
        assert_eq!(live.dump().to_string(), "no span is alive\n");
        let before = Instant::now();
        let span = info_span!(target: "some::where", "first", number = 7, text = "a|b", yes = true);
        let after = Instant::now();
        std::thread::sleep(Duration::from_millis(3));

        let early = after.elapsed();
        let dump = live.dump();
        let late = before.elapsed();
        assert_eq!(dump.spans().len(), 1);
        let first = named(&dump, "first");
        assert_eq!(first.fields(), r#"number = 7, text = "a|b", yes = true"#);
        assert_eq!((first.metadata().target(), first.parent()), ("some::where", None));
        assert_eq!(first.metadata().level(), &tracing::Level::INFO);
        assert_eq!(Some(first.id()), span.id().map(|id| id.into_u64()));
        assert!(first.age() >= early && first.age() <= late, "{early:?} {:?} {late:?}", first.age());
        assert_eq!(first.threads().len(), 0);
        assert!(first.addresses().is_empty() && first.frames().is_empty());

        let clone = span.clone();
        drop(span);
        assert_eq!(live.dump().spans().len(), 1, "its clone is alive");
        drop(clone);
        assert_eq!(live.dump().spans().len(), 0);
        // A dump is a copy, so it stays unchanged.
        assert_eq!(named(&dump, "first").metadata().name(), "first");
    });
}

#[test]
fn the_tree_shows_parents_and_the_oldest_first() {
    let (dispatch, live) = plain();
    with_default(&dispatch, || {
        let root = info_span!("root");
        let child = info_span!(parent: &root, "child", n = 1);
        let grandchild = child.in_scope(|| info_span!("grandchild"));
        let other = info_span!(parent: None, "other root");
        let second = root.in_scope(|| info_span!("second"));
        let unrelated = root.in_scope(|| info_span!(parent: None, "unrelated"));

        let dump = live.dump();
        assert_eq!(named(&dump, "child").parent(), Some(named(&dump, "root").id()));
        assert_eq!(named(&dump, "grandchild").parent(), Some(named(&dump, "child").id()));
        assert_eq!(named(&dump, "unrelated").parent(), None);
        assert_eq!(
            drawn(&dump),
            "6 spans are alive\n\
             ├─ root\n\
             │  ├─ child{n = 1}\n\
             │  │  └─ grandchild\n\
             │  └─ second\n\
             ├─ other root\n\
             └─ unrelated"
        );
        // A child keeps its parent alive.
        drop(root);
        drop(other);
        drop((second, unrelated, child));
        assert_eq!(names(&live.dump()), ["child", "grandchild", "root"]);
        drop(grandchild);
        assert_eq!(live.dump().spans().len(), 0);
    });
}

#[test]
fn a_deep_tree_is_printed_too() {
    let (dispatch, live) = plain();
    with_default(&dispatch, || {
        let mut spans: Vec<Span> = vec![info_span!("deep")];
        for _ in 1..20_000 {
            let parent = spans.last().and_then(Span::id);
            spans.push(info_span!(parent: parent, "deep"));
        }
        let text = format!("{:#}", live.dump());
        assert_eq!(text.lines().count(), 20_001);
        assert!(text.lines().all(|line| line.len() < 400));
        while spans.pop().is_some() {}
        assert_eq!(live.dump().spans().len(), 0);
    });
}

#[test]
fn fields_that_are_recorded_later_are_added() {
    let (dispatch, live) = plain();
    with_default(&dispatch, || {
        let fields = || named(&live.dump(), "late").fields().to_owned();
        let span = info_span!("late", first = 1, second = Empty, third = Empty, atrace.track = Empty);
        assert_eq!(fields(), "first = 1");
        span.record("second", "two");
        assert_eq!(fields(), r#"first = 1, second = "two""#);
        let before = live.dump();
        span.record("third", tracing::field::debug(vec![3]));
        assert_eq!(fields(), r#"first = 1, second = "two", third = [3]"#);
        span.record("atrace.track", "net");
        assert_eq!(fields(), r#"first = 1, second = "two", third = [3], atrace.track = "net""#);
        assert_eq!(named(&before, "late").fields(), r#"first = 1, second = "two""#);
        drop(span);

        let empty = info_span!("late", first = Empty);
        assert_eq!(fields(), "");
        empty.record("first", 1);
        assert_eq!(fields(), "first = 1");
        for _ in 0..1000 {
            empty.record("first", "some more");
        }
        assert!(fields().len() <= 1025 && fields().len() > 1000, "{}", fields().len());
    });
}

#[test]
fn fields_recorded_by_many_threads_are_all_there() {
    let (dispatch, live) = plain();
    // Tests many spans, because two of the threads rarely record a field at the same time.
    for _ in 0..300 {
        let span = with_default(&dispatch, || info_span!("all", n = Empty));
        let begin = Barrier::new(4);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (span, begin) = (&span, &begin);
                scope.spawn(move || {
                    begin.wait();
                    for n in 0..20 {
                        span.record("n", 1000 + thread * 20 + n);
                    }
                });
            }
        });
        let dump = live.dump();
        let numbers: HashSet<_> = named(&dump, "all").fields().split(", ").map(str::to_owned).collect();
        assert_eq!(numbers.len(), 80, "{numbers:?}");
    }
}

#[test]
fn threads_are_shown_while_they_are_inside() {
    let (dispatch, live) = plain();
    let span = with_default(&dispatch, || info_span!("shared"));
    let inside = Barrier::new(3);
    let leave = Barrier::new(3);
    std::thread::scope(|scope| {
        for name in ["one", "two"] {
            let (span, inside, leave) = (&span, &inside, &leave);
            let work = move || {
                let entered = span.enter();
                let again = span.enter();
                drop(again);
                inside.wait();
                leave.wait();
                drop(entered);
            };
            std::thread::Builder::new().name(name.into()).spawn_scoped(scope, work).unwrap();
        }
        inside.wait();
        let dump = live.dump();
        let tasks: HashSet<_> = std::fs::read_dir("/proc/self/task")
            .unwrap()
            .map(|task| task.unwrap().file_name().into_string().unwrap().parse().ok())
            .collect();
        // Lets the threads go on before the checks, because they would wait forever if a check failed.
        leave.wait();
        let shared = named(&dump, "shared");
        let mut threads: Vec<_> = shared.threads().map(|thread| thread.name().unwrap().to_owned()).collect();
        threads.sort_unstable();
        assert_eq!(threads, ["one", "two"]);
        let numbers: HashSet<_> = shared.threads().map(|thread| thread.number()).collect();
        assert_eq!(numbers.len(), 2);
        assert!(numbers.is_subset(&tasks), "{numbers:?} {tasks:?}");
        assert!(shared.to_string().contains(" and "), "{shared}");
    });
    assert_eq!(named(&live.dump(), "shared").threads().len(), 0);
    // A thread that has entered a span twice is inside the span until it has left the span twice.
    let first = span.enter();
    let second = span.enter();
    assert_eq!(named(&live.dump(), "shared").threads().len(), 1);
    drop(first);
    assert_eq!(named(&live.dump(), "shared").threads().len(), 1);
    drop(second);
    assert_eq!(named(&live.dump(), "shared").threads().len(), 0);
}

#[test]
fn spans_of_other_filters_are_left_out() {
    let layer = LiveLayer::default();
    let live = layer.handle();
    let registry = tracing_subscriber::registry()
        .with(
            layer.with_filter(tracing_subscriber::filter::filter_fn(|metadata| metadata.name() != "hidden")),
        )
        .with(AtraceLayer::default().with_filter(AtraceFilter::default()))
        .with(tracing_subscriber::fmt::layer().with_writer(std::io::sink));
    with_default(&registry.into(), || {
        let outer = info_span!("outer").entered();
        let hidden = info_span!("hidden").entered();
        let inner = info_span!("inner").entered();
        let dump = live.dump();
        assert_eq!(names(&dump), ["inner", "outer"]);
        assert_eq!(named(&dump, "inner").parent(), Some(named(&dump, "outer").id()));
        drop(inner);
        drop(hidden);
        drop(outer);
        assert_eq!(live.dump().spans().len(), 0);
    });
}

#[test]
fn each_layer_has_its_own_and_the_process_all() {
    let (one, of_one) = plain();
    let (two, of_two) = plain();
    let a = with_default(&one, || info_span!("own a"));
    let b = with_default(&two, || info_span!("own b"));
    assert_eq!(names(&of_one.dump()), ["own a"]);
    assert_eq!(names(&of_two.dump()), ["own b"]);
    let own =
        |dump: &Dump| names(dump).into_iter().filter(|name| name.starts_with("own")).collect::<Vec<_>>();
    // The dump also contains spans of the layers of other tests in this process.
    assert_eq!(own(&live::dump()), ["own a", "own b"]);
    let text = format!("{:#}", live::dump());
    assert!(text.contains("─ own a") && text.contains("─ own b"), "{text}");
    drop((a, b));
    assert_eq!(own(&live::dump()), [""; 0]);
}

#[test]
fn a_line_is_a_line_whatever_is_in_it() {
    let (dispatch, live) = plain();
    with_default(&dispatch, || {
        let _span = info_span!("two\nlines", text = %"a\nb\r\u{1b}[31m");
        let text = live.dump().to_string();
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.contains("two?lines{text = a?b??[31m}"), "{text}");
    });
}

/// A layer that makes a dump in each of its callbacks. It is above or below the layer whose spans are dumped.
struct Dumps {
    live: Handle,
    seen: Arc<Mutex<Vec<usize>>>,
}

impl Dumps {
    fn dump(&self) {
        let dump = self.live.dump();
        let _ = dump.to_string();
        self.seen.lock().unwrap().push(dump.spans().len());
    }
}

impl Layer<Registry> for Dumps {
    fn on_new_span(&self, _: &span::Attributes<'_>, _: &span::Id, _: Context<'_, Registry>) {
        self.dump();
    }

    fn on_record(&self, _: &span::Id, _: &span::Record<'_>, _: Context<'_, Registry>) {
        self.dump();
    }

    fn on_enter(&self, _: &span::Id, _: Context<'_, Registry>) {
        self.dump();
    }

    fn on_exit(&self, _: &span::Id, _: Context<'_, Registry>) {
        self.dump();
    }

    fn on_close(&self, _: span::Id, _: Context<'_, Registry>) {
        self.dump();
    }
}

#[test]
fn a_dump_within_a_callback_waits_for_nobody() {
    let layer = backtraces();
    let live = layer.handle();
    let seen = Arc::default();
    let dumps = || Dumps { live: live.clone(), seen: Arc::clone(&seen) };
    let both: Vec<Box<dyn Layer<Registry> + Send + Sync>> =
        vec![Box::new(dumps()), Box::new(layer), Box::new(dumps())];
    with_default(&tracing_subscriber::registry().with(both).into(), || {
        let span = info_span!("seen", later = Empty);
        span.in_scope(|| span.record("later", 1));
        drop(span);
    });
    // The numbers of spans in the dumps. When the span is created, entered, recorded, left and closed, a layer dumps
    // the spans before the live layer is notified, and another layer after that.
    assert_eq!(*seen.lock().unwrap(), [0, 1, 1, 1, 1, 1, 1, 1, 1, 0]);
}

/// A value whose formatting calls a closure.
struct Does<F>(F);

impl<F: Fn()> fmt::Debug for Does<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("before")?;
        (self.0)();
        f.write_str(" after")
    }
}

#[test]
fn formatting_may_do_anything() {
    let (dispatch, live) = plain();
    with_default(&dispatch, || {
        let dumped = AtomicUsize::new(usize::MAX);
        let dumps = Does(|| dumped.store(live.dump().spans().len(), Ordering::Relaxed));
        let span = info_span!("dumps", value = ?dumps);
        assert_eq!(dumped.load(Ordering::Relaxed), 0, "it is not made yet");
        assert_eq!(named(&live.dump(), "dumps").fields(), "value = before after");
        drop(span);

        let panics = Does(|| panic!("on purpose"));
        let span = info_span!("panics", first = 1, value = ?panics, last = 2);
        assert_eq!(named(&live.dump(), "panics").fields(), "first = 1, value = before<panicked>");
        drop(span);

        let later = info_span!("recorded", value = Empty);
        later.record("value", tracing::field::debug(Does(|| panic!("on purpose"))));
        assert_eq!(named(&live.dump(), "recorded").fields(), "value = before<panicked>");
        drop(later);
        assert_eq!(live.dump().spans().len(), 0);
    });
}

#[test]
fn a_thread_that_ends_may_still_enter_and_close() {
    struct AtTheEnd(Span, Handle, bool);
    impl Drop for AtTheEnd {
        fn drop(&mut self) {
            self.0.record("later", 1);
            assert_eq!(named(&self.1.dump(), "at the end").fields(), "later = 1");
            // After its thread-local memory is gone, the registry can't handle an enter.
            if !self.2 {
                self.0.in_scope(|| {
                    let dump = self.1.dump();
                    assert_eq!(named(&dump, "at the end").threads().len(), 1);
                });
            }
            self.0 = Span::none();
            assert_eq!(self.1.dump().spans().len(), 0);
            SEEN.fetch_add(1, Ordering::Relaxed);
        }
    }
    static SEEN: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static FIRST: Cell<Option<AtTheEnd>> = const { Cell::new(None) };
        static LAST: Cell<Option<AtTheEnd>> = const { Cell::new(None) };
    }
    // Sets the test's thread-local value before the layer's own thread-local value is first used, and then after that.
    for first in [true, false] {
        let (dispatch, live) = with(backtraces());
        let work = move || {
            let make = || with_default(&dispatch, || info_span!("at the end", later = Empty));
            if first {
                FIRST.set(Some(AtTheEnd(make(), live, first)));
                with_default(&dispatch, || info_span!("used", n = 1).in_scope(|| ()));
            } else {
                with_default(&dispatch, || info_span!("used", n = 1).in_scope(|| ()));
                LAST.set(Some(AtTheEnd(make(), live, first)));
            }
        };
        std::thread::spawn(work).join().unwrap();
    }
    assert_eq!(SEEN.load(Ordering::Relaxed), 2);
}

#[test]
fn no_memory_is_asked_for_again() {
    fn counted(work: impl Fn()) -> u64 {
        // Makes the one-time allocations, including those of the registry.
        (0..200).for_each(|_| work());
        let before = allocations();
        (0..100).for_each(|_| work());
        allocations() - before
    }
    let with_backtraces = backtraces().with_walk(Walk::FramePointers);
    for (layer, is_plain) in [(LiveLayer::default(), true), (with_backtraces, false)] {
        let (dispatch, live) = with(layer);
        with_default(&dispatch, || {
            if is_plain || Walk::default() == Walk::FramePointers {
                assert_eq!(counted(|| drop(info_span!("nothing").entered())), 0);
                assert_eq!(counted(|| drop([(); 20].map(|()| info_span!("nothing").entered()))), 0);
                // Each span makes one allocation, for the text of its fields.
                assert_eq!(counted(|| drop(info_span!("text", n = 1).entered())), 100);
            }
            let _some = [(); 50].map(|()| info_span!("text", n = 1));
            // A dump allocates its two lists, and a list of the layers.
            let allocations = counted(|| assert_eq!(live.dump().spans().len(), 50)) / 100;
            assert!(allocations <= 3, "{allocations}");
        });
    }
}

/// Tests that dumps are right while eight threads create, enter, record and close spans.
#[test]
fn a_dump_is_right_while_eight_threads_trace() {
    static OVER: AtomicBool = AtomicBool::new(false);
    let (dispatch, live) = with(LiveLayer::default().with_backtraces(16));
    let made = AtomicU64::new(0);
    let mut most = 0;
    let mut records = 0;
    std::thread::scope(|scope| {
        for thread in 0..8_u64 {
            let (dispatch, made) = (dispatch.clone(), &made);
            let work = move || {
                let mut kept = Vec::new();
                let mut n = 0;
                while !OVER.load(Ordering::Relaxed) {
                    n += 1;
                    let outer = info_span!("outer", thread, n, twice = 2 * n);
                    let inner =
                        outer.in_scope(|| info_span!("inner", thread, n, twice = 2 * n, later = Empty));
                    inner.record("later", n);
                    kept.push(inner);
                    if kept.len() > 50 {
                        let at = (n as usize * 7) % kept.len();
                        drop(kept.swap_remove(at));
                        kept.truncate(40);
                    }
                    made.fetch_add(2, Ordering::Relaxed);
                }
            };
            scope.spawn(move || with_default(&dispatch, work));
        }
        let over = Over(&OVER);
        let start = Instant::now();
        let is_enough =
            |records: u64, most: usize| made.load(Ordering::Relaxed) > 1000 && records > 1000 && most > 200;
        // Printing the first dump reads the program's debug information, which may take seconds.
        while start.elapsed() < Duration::from_millis(1500)
            || !is_enough(records, most) && start.elapsed() < Duration::from_secs(600)
        {
            let dump = live.dump();
            most = most.max(dump.spans().len());
            let mut ids = HashMap::new();
            for span in dump.spans() {
                assert!(ids.insert(span.id(), span.metadata().name()).is_none(), "an id is there twice");
            }
            for span in dump.spans() {
                records += 1;
                let value = |name: &str| -> Option<u64> {
                    let (_, value) = span
                        .fields()
                        .split(", ")
                        .find_map(|field| field.split_once(" = ").filter(|(key, _)| *key == name))?;
                    value.parse().ok()
                };
                // All fields of a dumped span must be of the same span.
                let n = value("n").unwrap();
                assert_eq!(value("twice"), Some(2 * n), "{span}");
                assert!(value("later").is_none_or(|later| later == n), "{span}");
                assert!(value("thread").unwrap() < 8);
                assert!(span.threads().len() <= 1);
                let addresses = span.addresses();
                assert!(
                    addresses.len() > 2 && addresses.iter().all(|address| *address > 4096),
                    "{addresses:x?}"
                );
                match span.metadata().name() {
                    "outer" => assert_eq!(span.parent(), None),
                    _ => assert!(ids.get(&span.parent().unwrap()).is_none_or(|name| *name == "outer")),
                }
            }
            if dump.spans().len().is_multiple_of(7) {
                assert!(dump.to_string().lines().count() > dump.spans().len());
            }
        }
        drop(over);
    });
    eprintln!("{} spans made, {records} seen, {most} at a time", made.load(Ordering::Relaxed));
    assert!(made.load(Ordering::Relaxed) > 1000 && records > 1000 && most > 200);
    assert_eq!(live.dump().spans().len(), 0);
}

#[test]
fn tasks_are_alive_while_they_wait() {
    async fn work(n: u32, gate: Arc<tokio::sync::Semaphore>) {
        drop(gate.acquire().instrument(info_span!("wait", n)).await.unwrap());
        tokio::task::yield_now().await;
    }
    let (dispatch, live) = with(backtraces().with_sanitised(true));
    let set = dispatch.clone();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .on_thread_start(move || std::mem::forget(tracing::dispatcher::set_default(&set)))
        .build()
        .unwrap();
    with_default(&dispatch, || {
        runtime.block_on(async {
            let gate = Arc::new(tokio::sync::Semaphore::new(0));
            let tasks: Vec<_> = (0..100)
                .map(|n| tokio::spawn(work(n, Arc::clone(&gate)).instrument(info_span!("task", n))))
                .collect();
            until("all wait", || {
                let dump = live.dump();
                dump.spans().len() == 200 && dump.spans().all(|span| span.threads().len() == 0)
            });
            let dump = live.dump();
            let ids: HashMap<_, _> = dump.spans().map(|span| (span.id(), span)).collect();
            for wait in dump.spans().filter(|span| span.metadata().name() == "wait") {
                let task = ids[&wait.parent().unwrap()];
                assert_eq!((task.metadata().name(), task.fields()), ("task", wait.fields()));
                assert!(task.age() >= wait.age());
                let frames = wait.frames();
                let files: Vec<_> = frames.iter().map(|frame| frame.location().unwrap().0).collect();
                assert!(!files.is_empty() && files.iter().all(|file| file.ends_with("live.rs")), "{files:?}");
            }
            gate.add_permits(100);
            for task in tasks {
                task.await.unwrap();
            }
        });
    });
    assert_eq!(live.dump().spans().len(), 0);
}

#[inline(never)]
fn outer_function<T>(make: impl FnOnce() -> T) -> T {
    std::hint::black_box(inner_function(make))
}

#[inline(never)]
fn inner_function<T>(make: impl FnOnce() -> T) -> T {
    std::hint::black_box(make())
}

fn position(functions: &[String], name: &str) -> usize {
    functions
        .iter()
        .position(|function| function.contains(name))
        .unwrap_or_else(|| panic!("{name}: {functions:#?}"))
}

#[test]
fn a_backtrace_says_who_made_it() {
    let (dispatch, live) = with(backtraces());
    with_default(&dispatch, || {
        let _span = outer_function(|| info_span!("made"));
        let dump = live.dump();
        let made = named(&dump, "made");
        let functions = functions(&made);
        assert!(position(&functions, "inner_function") < position(&functions, "outer_function"));
        // In the backtrace, a closure of the test is between these two functions, and the test itself is around them.
        let around = &functions[position(&functions, "outer_function")..];
        assert!(
            around.iter().any(|function| function.contains("a_backtrace_says_who_made_it")),
            "{functions:#?}"
        );
        position(&functions, "std");
        let text = dump.to_string();
        assert!(text.contains("outer_function") && !format!("{dump:#}").contains("outer_function"));
        let frames = made.frames();
        assert_eq!(text.lines().count(), 2 + frames.len(), "a line for each frame: {text}");
        let frame = frames.iter().find(|frame| frame.function().unwrap().contains("outer_function")).unwrap();
        let (file, line, _) = frame.location().unwrap();
        assert!(file.ends_with("live.rs") && line > 0, "{frame}");
        assert!(frame.to_string().contains("live.rs:"), "{frame}");
        assert!(made.addresses().contains(&frame.address()));
        // Resolved frames are shared between dumps.
        assert!(Arc::ptr_eq(&frames, &named(&live.dump(), "made").frames()));
    });
}

#[test]
fn sanitised_only_the_program_is_left() {
    let made = |layer: LiveLayer| {
        let (dispatch, live) = with(layer);
        with_default(&dispatch, || {
            let _span = outer_function(|| info_span!("made"));
            functions(&named(&live.dump(), "made"))
        })
    };
    let whole = made(backtraces());
    let sanitised = made(backtraces().with_sanitised(true));
    let eager = made(backtraces().with_sanitised(true).with_eager_symbols(true));
    assert!(sanitised.len() + 10 < whole.len(), "{sanitised:?} {whole:?}");
    assert!(
        sanitised.iter().all(|function| function.contains("live::") || !function.contains("::")),
        "{sanitised:?}"
    );
    for function in ["inner_function", "outer_function", "sanitised_only_the_program_is_left"] {
        position(&sanitised, function);
        position(&eager, function);
    }
    assert_eq!(sanitised, eager);
    let hidden = made(backtraces().with_sanitised(true).with_hidden(["live::outer_f"]));
    assert!(hidden.iter().all(|function| !function.contains("outer_function")), "{hidden:?}");
    position(&hidden, "inner_function");
    // If the frames are not sanitized, no frame is hidden.
    position(&made(backtraces().with_hidden(["live::outer_f"])), "outer_function");
}

#[test]
fn lazy_or_eager_by_pointers_or_unwinding_the_frames_are_the_same() {
    let layers = [false, true].map(|is_eager| {
        [Walk::FramePointers, Walk::Unwinding]
            .map(|walk| with(backtraces().with_eager_symbols(is_eager).with_walk(walk)))
    });
    let mut all = Vec::new();
    for (dispatch, live) in layers.iter().flatten() {
        with_default(dispatch, || {
            // Creates the span twice, because the first walk on a thread uses the unwinder.
            for _ in 0..2 {
                let _span = outer_function(|| info_span!("made"));
                all.push(functions(&named(&live.dump(), "made")));
            }
        });
    }
    // The frames below `tracing` differ, because they were called from different places in this crate. The outermost
    // frames, of the C library, have no frame pointers.
    let of_program = |functions: &[String]| {
        let first = position(functions, "inner_function");
        let last = functions.iter().rposition(|function| function.contains("std::")).unwrap();
        functions[first..=last].to_vec()
    };
    let first = of_program(&all[0]);
    assert!(first.len() > 5, "{first:?}");
    for other in &all {
        assert_eq!(of_program(other), first);
    }
}

#[inline(never)]
fn recurse<T>(calls: u32, last: &mut dyn FnMut() -> T) -> T {
    let result = if calls == 0 { last() } else { recurse(calls - 1, last) };
    std::hint::black_box(result)
}

#[test]
fn of_a_deep_stack_the_innermost_frames_are_kept() {
    for walk in [Walk::FramePointers, Walk::Unwinding] {
        for (depth, kept) in [(1, 1), (20, 20), (64, 64), (1000, 256)] {
            let (dispatch, live) = with(LiveLayer::default().with_backtraces(depth).with_walk(walk));
            let work = move || {
                with_default(&dispatch, || {
                    // The deep walks have the same result whether a shallow walk comes first or not.
                    let _shallow = (depth == 20).then(|| info_span!("shallow"));
                    recurse(20_000, &mut || {
                        let _deep = [(); 3].map(|()| info_span!("deep"));
                        let dump = live.dump();
                        let deep = dump.spans().filter(|span| span.metadata().name() == "deep");
                        let frames: Vec<_> = deep.map(|span| span.addresses().len()).collect();
                        assert_eq!(frames, [kept; 3]);
                        if kept > 20 {
                            let span = dump.spans().find(|span| span.metadata().name() == "deep").unwrap();
                            let functions = functions(&span);
                            assert!(
                                functions[functions.len() - 10..].iter().all(|name| name.contains("recurse"))
                            );
                        }
                    });
                });
            };
            std::thread::Builder::new().stack_size(32 << 20).spawn(work).unwrap().join().unwrap();
        }
    }
}

#[test]
fn a_small_stack_is_enough() {
    for walk in [Walk::FramePointers, Walk::Unwinding] {
        let (dispatch, live) = with(backtraces().with_walk(walk));
        let work = move || {
            with_default(&dispatch, || {
                for _ in 0..3 {
                    let _span = info_span!("small", n = 1).entered();
                    assert!(named(&live.dump(), "small").addresses().len() > 3);
                }
            });
        };
        std::thread::Builder::new().stack_size(64 << 10).spawn(work).unwrap().join().unwrap();
    }
}

#[test]
fn return_addresses_are_of_the_caller() {
    for walk in [Walk::FramePointers, Walk::Unwinding] {
        for _ in 0..2 {
            let mut addresses = [0; 64];
            let found = outer_function(|| return_addresses(walk, &mut addresses));
            assert!(found > 5 && found < 64);
            let (found, rest) = addresses.split_at(found);
            assert!(found.iter().all(|address| *address > 4096) && rest.iter().all(|address| *address == 0));
        }
        let mut few = [0; 3];
        assert_eq!(return_addresses(walk, &mut few), 3);
        assert_eq!(return_addresses(walk, &mut []), 0);
    }
}

/// Prints whether this run has tested frame pointers at all. Where frame pointers are expected, checks that they are
/// used.
#[test]
fn frame_pointers_are_used_where_there_are_some() {
    let found = Walk::default();
    let wanted = option_env!("LIVE_TEST_FRAME_POINTERS").is_some() || cfg!(target_arch = "aarch64");
    eprintln!("this program's stacks are walked by {found:?}");
    assert!(!wanted || found == Walk::FramePointers);
}
