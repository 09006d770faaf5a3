//! Tests the bill (the cost of each callsite) of a metered subscriber: its counts, its order, and that metering does
//! not change what the subscriber does.

mod counting;

use std::collections::HashMap;
use std::fmt;
use std::hint::black_box;
use std::io;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use atrace_subscriber::metered::{Bill, Meter, Metered};
use atrace_subscriber::{AtraceLayer, AtraceSubscriber};
use serde_json::Value;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{Interest, Subscriber, with_default};
use tracing::{Dispatch, Event, Metadata, debug, info, info_span, trace, warn};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::prelude::*;

/// A subscriber that enables all callsites except those of level trace, gives each span an id, and is slow to handle
/// events whose targets end with `slow`.
#[derive(Default)]
struct Plain {
    last: AtomicU64,
    reached: AtomicU64,
    /// The number of ids after which the ids begin at 1 again; `None` if no id is given twice.
    ids: Option<u64>,
}

impl Subscriber for Plain {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if *metadata.level() == tracing::Level::TRACE { Interest::never() } else { Interest::always() }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.reached.fetch_add(u64::from(*metadata.level() == tracing::Level::TRACE), Ordering::Relaxed);
        true
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        attributes.record(&mut |_: &tracing::field::Field, value: &dyn fmt::Debug| {
            black_box(format!("{value:?}"));
        });
        let given = self.last.fetch_add(1, Ordering::Relaxed);
        Id::from_u64(1 + self.ids.map_or(given, |ids| given % ids))
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut |_: &tracing::field::Field, value: &dyn fmt::Debug| {
            black_box(format!("{value:?}"));
        });
        if event.metadata().target().ends_with("slow") {
            (0..2_000_u64).for_each(|number| _ = black_box(number));
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}

    fn try_close(&self, _: Id) -> bool {
        true
    }
}

fn json(bill: &Bill) -> Value {
    serde_json::from_str(&bill.to_json()).expect("the bill is JSON")
}

/// Returns the callsites of a bill. The key of a callsite is the name of the span or the target of the event.
fn callsites(bill: &Value) -> HashMap<String, Value> {
    let all = bill["callsites"].as_array().unwrap().iter();
    all.map(|callsite| (callsite["name"].as_str().unwrap().to_owned(), callsite.clone())).collect()
}

#[test]
fn counts_are_exact_from_eight_threads_and_the_expensive_callsite_is_first() {
    const NAME: &str = "counts_are_exact_from_eight_threads_and_the_expensive_callsite_is_first";
    const ROUNDS: u64 = 20_000;
    // Runs in a process of its own, because `tracing` caches no interest while other tests have subscribers, too.
    if std::env::var_os(ROLE).is_none() {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let ran = command.args([NAME, "--exact"]).env(ROLE, "counts").output().unwrap();
        let said = String::from_utf8_lossy(&ran.stdout);
        assert!(ran.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let dispatch = Dispatch::new(Metered::new(Plain::default()));
    let run = |rounds: std::ops::Range<u64>| {
        for round in rounds {
            let span = info_span!("counted", round, later = tracing::field::Empty);
            span.record("later", round);
            span.in_scope(|| info!(target: "counted::event", "message"));
            span.in_scope(|| ());
            if round % 4 == 0 {
                warn!(target: "counted::slow", round);
            }
            trace!(target: "counted::never", round);
        }
    };
    // Registers the callsites on one thread first. While a thread registers a callsite, `tracing` asks the subscriber
    // on the other threads whether the callsite is enabled, which would count as calls.
    tracing::dispatcher::with_default(&dispatch, || run(0..1));
    std::thread::scope(|scope| {
        for first in [1, 0, 0, 0, 0, 0, 0, 0] {
            scope.spawn({
                let (dispatch, run) = (&dispatch, &run);
                move || tracing::dispatcher::with_default(dispatch, || run(first..ROUNDS))
            });
        }
    });
    let metered = dispatch.downcast_ref::<Metered<Plain>>().unwrap();
    let bill = json(&metered.meter().bill());
    let all = callsites(&bill);
    let calls = |name: &str| all[name]["calls"].clone();
    let of = |name: &str, call: &str| calls(name)[call].as_u64().unwrap();
    let counted =
        ["new", "enter", "exit", "record", "close", "clone", "event"].map(|call| of("counted", call));
    assert_eq!(counted, [8, 16, 16, 8, 8, 0, 0].map(|times| times * ROUNDS));
    assert_eq!(of("counted::event", "event"), 8 * ROUNDS);
    assert_eq!(of("counted::slow", "event"), 2 * ROUNDS);
    // The filtered callsite costs nothing, and the subscriber was never queried about it.
    assert!(all["counted::never"]["ns"] == 0 && calls("counted::never")["check"] == 0);
    let never = &metered.meter().bill().to_string();
    assert!(never.contains("filtered or not reached: "), "{never}");
    assert_eq!(bill["callsites"][0]["name"], "counted::slow");
    assert_eq!(all["counted"]["fields"], 2);
    assert!(!all.contains_key("unknown"));
    assert!(bill["timed_calls"].as_u64().unwrap() > 16);
    // The number of timed calls depends on the time that a timed call takes on this machine. Repeats the rounds until
    // enough calls are timed for a lower bound of the cost above 0.
    for tries in 0.. {
        let slow = callsites(&json(&metered.meter().bill())).remove("counted::slow").unwrap();
        let [low, ns, high] = ["low", "ns", "high"].map(|bound| slow[bound].as_f64().unwrap());
        assert!(0.0 < ns && low <= ns && ns <= high && tries < 100, "{low} {ns} {high}");
        if low > 0.0 {
            break;
        }
        tracing::dispatcher::with_default(&dispatch, || run(0..ROUNDS));
    }
}

#[test]
fn the_bill_of_a_stack_can_be_read_while_it_runs() {
    let writes = tracing_subscriber::fmt::layer().with_writer(io::sink);
    let stack = tracing_subscriber::registry().with(writes).with(LevelFilter::DEBUG);
    let metered = Metered::new(stack);
    let meter = metered.meter();
    with_default(metered, || {
        for round in 0..500 {
            let outer = info_span!("outer_of_stack", round).entered();
            let inner = info_span!("inner_of_stack");
            inner.in_scope(|| debug!(target: "of_stack", round, "message"));
            drop((inner, outer));
        }
        let all = callsites(&json(&meter.bill()));
        let count = |name: &str, call: &str| all[name]["calls"][call].as_u64().unwrap();
        for span in ["outer_of_stack", "inner_of_stack"] {
            assert_eq!([count(span, "new"), count(span, "enter"), count(span, "exit")], [500; 3]);
            // When a span closes, the registry closes a reference to the span's parent, too, through the dispatcher.
            assert_eq!(count(span, "close"), if span.starts_with("outer") { 1000 } else { 500 });
        }
        assert_eq!(count("of_stack", "event"), 500);
        let text = meter.bill().to_string();
        assert!(
            text.contains("span: new, 1 enter, 1 field, close") && text.contains("tests/metered.rs:"),
            "{text}"
        );
    });
}

#[test]
fn everything_is_passed_on() {
    let stack = tracing_subscriber::registry().with(LevelFilter::INFO);
    let metered = Metered::new(Metered::new(stack));
    assert_eq!(metered.max_level_hint(), Some(LevelFilter::INFO));
    let dispatch = Dispatch::new(metered);
    assert!(dispatch.downcast_ref::<tracing_subscriber::Registry>().is_some());
    assert!(dispatch.downcast_ref::<Meter>().is_some());
    assert!(dispatch.downcast_ref::<String>().is_none());
    tracing::dispatcher::with_default(&dispatch, || {
        let span = info_span!("passed_on").entered();
        assert_eq!(tracing::Span::current().id(), span.id());
        assert!(dispatch.current_span().metadata().is_some_and(|metadata| metadata.name() == "passed_on"));
    });
    let notes = Notes::default();
    with_default(Metered::new(tracing_subscriber::registry().with(notes.clone())), || {
        let span = info_span!("passed_on", later = tracing::field::Empty);
        span.record("later", 1);
        span.follows_from(span.id());
        drop(span.clone());
        span.in_scope(|| info!("refused"));
    });
    let all = ["new", "record", "follows", "enter", "asked", "exit", "close"];
    assert_eq!(*notes.0.lock().unwrap(), all);
}

/// A layer that writes down which of its functions are called, and wants no event.
#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<&'static str>>>);

impl Notes {
    fn note(&self, call: &'static str) {
        self.0.lock().unwrap().push(call);
    }
}

impl<S: Subscriber> Layer<S> for Notes {
    fn on_new_span(&self, _: &Attributes<'_>, _: &Id, _: Context<'_, S>) {
        self.note("new");
    }

    fn on_record(&self, _: &Id, _: &Record<'_>, _: Context<'_, S>) {
        self.note("record");
    }

    fn on_follows_from(&self, _: &Id, _: &Id, _: Context<'_, S>) {
        self.note("follows");
    }

    fn event_enabled(&self, _: &Event<'_>, _: Context<'_, S>) -> bool {
        self.note("asked");
        false
    }

    fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
        self.note("event");
    }

    fn on_enter(&self, _: &Id, _: Context<'_, S>) {
        self.note("enter");
    }

    fn on_exit(&self, _: &Id, _: Context<'_, S>) {
        self.note("exit");
    }

    fn on_close(&self, _: Id, _: Context<'_, S>) {
        self.note("close");
    }
}

/// A value whose formatting takes time and writes an event.
struct Traces;

/// Uses processor time of this thread.
fn work() {
    (0..30_000_u64).for_each(|number| _ = black_box(number));
}

impl fmt::Debug for Traces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dispatch = NESTED.get().unwrap();
        let dispatch = dispatch.clone();
        // Calls the subscriber directly. `tracing` calls a subscriber within its own calls only if it is the program's
        // only subscriber, but here other subscribers exist.
        nested_event(&dispatch);
        f.write_str("traces")
    }
}

static NESTED: std::sync::OnceLock<Dispatch> = std::sync::OnceLock::new();

/// Sends an event, one of whose fields takes long to format, directly to the subscriber.
fn nested_event(dispatch: &Dispatch) {
    struct Works;
    impl fmt::Debug for Works {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            work();
            f.write_str("works")
        }
    }
    let metadata = NESTED_CALLSITE.metadata();
    let field = metadata.fields().iter().next().unwrap();
    let value = tracing::field::debug(Works);
    let values = [(&field, Some(&value as &dyn tracing::field::Value))];
    dispatch.event(&Event::new(metadata, &metadata.fields().value_set(&values)));
}

struct NestedCallsite;

impl tracing::Callsite for NestedCallsite {
    fn set_interest(&self, _: Interest) {}

    fn metadata(&self) -> &Metadata<'_> {
        NESTED_CALLSITE.metadata()
    }
}

impl NestedCallsite {
    fn metadata(&self) -> &'static Metadata<'static> {
        static METADATA: Metadata<'static> = Metadata::new(
            "nested",
            "nested::inner",
            tracing::Level::INFO,
            None,
            None,
            None,
            tracing::field::FieldSet::new(&["works"], tracing::callsite::Identifier(&NESTED_CALLSITE)),
            tracing::metadata::Kind::EVENT,
        );
        &METADATA
    }
}

static NESTED_CALLSITE: NestedCallsite = NestedCallsite;

#[test]
fn a_nested_call_is_billed_to_its_own_callsite_only() {
    let metered = Metered::new(Plain::default()).with_sampling(1);
    let meter = metered.meter();
    let dispatch = NESTED.get_or_init(|| Dispatch::new(metered));
    tracing::dispatcher::with_default(dispatch, || {
        for _ in 0..300 {
            nested_event(dispatch);
            info!(target: "nested::outer", value = ?Traces);
        }
    });
    let all = callsites(&json(&meter.bill()));
    let number = |name: &str, what: &str| all[name][what].as_f64().unwrap();
    assert_eq!(all["nested::inner"]["calls"]["event"], 600);
    assert_eq!(all["nested::outer"]["calls"]["event"], 300);
    // Half of the inner events are within outer ones. Apart from the inner event, an outer event takes hardly any time.
    assert!(number("nested::outer", "ns") < number("nested::inner", "ns") / 4.0, "{all:?}");
}

#[test]
fn a_meter_within_a_meter_counts_the_same_calls() {
    let inner = Metered::new(Plain::default());
    let (inner_meter, outer) = (inner.meter(), Metered::new(inner));
    let outer_meter = outer.meter();
    with_default(outer, || {
        for round in 0..5_000 {
            info_span!("twice", round).in_scope(|| ());
        }
    });
    let bills = [inner_meter, outer_meter].map(|meter| callsites(&json(&meter.bill()))["twice"].clone());
    assert_eq!(bills[0]["calls"], bills[1]["calls"]);
    assert_eq!(bills[0]["calls"]["close"], 5_000);
}

#[test]
fn threads_that_end_leave_their_counts_and_more_threads_than_lanes_share() {
    let dispatch = Dispatch::new(Metered::new(Plain::default()));
    let event = || tracing::dispatcher::with_default(&dispatch, || info!(target: "of_threads", "one"));
    for _ in 0..3 {
        // Starts more threads at once than the meter has lanes (sets of counters).
        let barrier = std::sync::Barrier::new(100);
        std::thread::scope(|scope| {
            for _ in 0..100 {
                scope.spawn(|| {
                    (0..50).for_each(|_| event());
                    barrier.wait();
                    (0..50).for_each(|_| event());
                });
            }
        });
    }
    let bill = json(&dispatch.downcast_ref::<Meter>().unwrap().bill());
    assert_eq!(callsites(&bill)["of_threads"]["calls"]["event"], 3 * 100 * 100);
}

#[test]
fn spans_beyond_the_table_are_unknown_and_reused_ids_are_not() {
    let dispatch = Dispatch::new(Metered::new(Plain::default()));
    let bill = || callsites(&json(&dispatch.downcast_ref::<Meter>().unwrap().bill()));
    tracing::dispatcher::with_default(&dispatch, || {
        let spans: Vec<_> = (0..60_000).map(|_| info_span!("of_many")).collect();
        spans.iter().for_each(|span| span.in_scope(|| ()));
        drop(spans);
        let all = bill();
        let [known, unknown] =
            ["of_many", "unknown"].map(|name| all[name]["calls"]["enter"].as_u64().unwrap());
        assert!(known > 30_000 && unknown > 20_000 && known + unknown == 60_000, "{known} {unknown}");
        // The table's entries of the closed spans are free again.
        (0..10).for_each(|_| info_span!("of_few").in_scope(|| ()));
        assert_eq!(bill()["of_few"]["calls"]["enter"], 10);
    });
    let reusing = Metered::new(Plain { ids: Some(3), ..Plain::default() });
    let meter = reusing.meter();
    with_default(reusing, || {
        for _ in 0..1_000 {
            info_span!("reused_one").in_scope(|| ());
            info_span!("reused_other").in_scope(|| ());
        }
    });
    let all = callsites(&json(&meter.bill()));
    assert_eq!([&all["reused_one"]["calls"]["exit"], &all["reused_other"]["calls"]["exit"]], [1_000, 1_000]);
    assert!(!all.contains_key("unknown"));
}

/// A subscriber that waits in each event.
struct Waits;

impl Subscriber for Waits {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        std::thread::sleep(Duration::from_millis(2));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
#[cfg(any(target_os = "linux", target_os = "android"))]
fn waiting_is_not_billed() {
    let metered = Metered::new(Waits);
    let meter = metered.meter();
    let start = Instant::now();
    with_default(metered, || (0..100).for_each(|_| info!(target: "waits", "waits")));
    let elapsed = start.elapsed().as_nanos() as f64;
    let billed = callsites(&json(&meter.bill()))["waits"]["ns"].as_f64().unwrap();
    assert!(billed < elapsed / 4.0, "{billed} of {elapsed}");
}

#[test]
fn after_the_start_nothing_is_allocated() {
    struct Silent;
    impl Subscriber for Silent {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(7)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, _: &Event<'_>) {}
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }
    fn work() {
        info_span!("silent", field = 1).in_scope(|| info!(target: "silent_event", "message"));
    }
    let dispatch = Dispatch::new(Metered::new(Silent).with_sampling(3));
    let counted = || {
        tracing::dispatcher::with_default(&dispatch, || {
            let before = counting::allocations();
            (0..1_000).for_each(|_| work());
            counting::allocations() - before
        })
    };
    tracing::dispatcher::with_default(&dispatch, work);
    assert_eq!(counted(), 0);
    // Counts the allocations on a thread that is new to the meter.
    let of_thread = std::thread::scope(|scope| scope.spawn(counted).join().unwrap());
    assert_eq!(of_thread, 0);
}

/// Uses this much processor time on the calling thread.
fn burn(time: Duration) {
    let begin = atrace_sys::timer::thread_time().unwrap();
    while atrace_sys::timer::thread_time().unwrap() - begin < time.as_nanos() as u64 {}
}

/// Tests that the processor time of threads that have made no call is counted from the moment at which the meter was
/// made. The test runs in a process of its own, because threads of other tests use processor time.
#[cfg(any(target_os = "linux", target_os = "android"))]
#[test]
fn the_time_of_other_threads_is_counted_from_the_start_of_the_meter() {
    const TEST: &str = "the_time_of_other_threads_is_counted_from_the_start_of_the_meter";
    const LONG: Duration = Duration::from_millis(300);
    if std::env::var(ROLE).as_deref() != Ok(TEST) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let ran = command.args([TEST, "--exact"]).env(ROLE, TEST).output().unwrap();
        let said = String::from_utf8_lossy(&ran.stdout);
        return assert!(ran.status.success() && said.contains("1 passed"), "{said}");
    }
    let (early, late) = (&std::sync::Barrier::new(2), &std::sync::Barrier::new(2));
    std::thread::scope(|scope| {
        // This thread uses processor time before the meter is made, and makes a call after that.
        let (sender, dispatch) = std::sync::mpsc::channel::<Dispatch>();
        scope.spawn(move || {
            burn(LONG);
            early.wait();
            tracing::dispatcher::with_default(&dispatch.recv().unwrap(), || info!("a call"));
            early.wait();
            early.wait();
        });
        scope.spawn(|| burn(LONG)).join().unwrap();
        burn(LONG);
        early.wait();
        let metered = Metered::new(Plain::default());
        let meter = metered.meter();
        let dispatch = Dispatch::new(metered);
        sender.send(dispatch.clone()).unwrap();
        early.wait();
        // This thread uses processor time before its first call.
        scope.spawn(move || {
            burn(LONG);
            tracing::dispatcher::with_default(&dispatch, || info!("a late call"));
            late.wait();
            late.wait();
        });
        late.wait();
        let others = |meter: Meter| json(&meter.bill())["other_threads_ns"].as_u64().unwrap();
        let without = others(meter);
        scope.spawn(|| burn(LONG)).join().unwrap();
        let with = others(meter);
        early.wait();
        late.wait();
        let long = LONG.as_nanos() as u64;
        assert!(without < long / 2, "{without}");
        assert!((9 * long / 10..3 * long / 2).contains(&with), "{with}");
    });
}

const ROLE: &str = "METERED_TEST_ROLE";

/// Does the work of the processes that the tests below start, as selected by [`ROLE`].
fn work_of_process(role: &str) {
    let work = || {
        for round in 0..100 {
            let _span = info_span!("asked", round).entered();
            info!(target: "asked_event", round);
        }
    };
    match role {
        "layer" => {
            // A layer is billed while tracing is on.
            let recording = atrace::perfetto::record_to("/dev/null").unwrap();
            with_default(tracing_subscriber::registry().with(AtraceLayer::default()), || {
                work();
                // Tracing is switched off within a span.
                let _over = info_span!("over").entered();
                recording.finish().unwrap();
            });
        }
        "off" => with_default(AtraceSubscriber::default().with_filter(), work),
        "elsewhere" => {
            with_default(AtraceSubscriber::default(), work);
            std::env::set_current_dir("/").unwrap();
        }
        "full" => {
            with_default(AtraceSubscriber::default(), work);
            allow_small_files_only();
        }
        "planted" => {
            with_default(AtraceSubscriber::default(), work);
            let bill = std::env::var("ATRACE_BILL").unwrap();
            let new = format!("{bill}.{}.new", std::process::id());
            std::os::unix::fs::symlink(format!("{bill}.victim"), new).unwrap();
        }
        _ => with_default(AtraceSubscriber::default(), work),
    }
    #[cfg(target_os = "linux")]
    if role == "fork" {
        #[allow(unsafe_code, reason = "fork has no safe form")]
        // SAFETY: the child needs only this thread, and ends at once by `exit` and its handlers.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            std::process::exit(0);
        }
        let mut status = 0;
        #[allow(unsafe_code, reason = "waitpid has no safe form")]
        // SAFETY: `status` is writable.
        let ended = unsafe { libc::waitpid(child, &mut status, 0) };
        assert!(ended == child && status == 0);
        // The child has not written the bill.
        let bill = std::env::var_os("ATRACE_BILL").unwrap();
        assert!(!std::path::Path::new(&bill).exists());
    }
}

/// Makes the process unable to write a file of more than 64 bytes, as on a full disk.
#[allow(unsafe_code, reason = "limits have no safe form")]
fn allow_small_files_only() {
    let limit = libc::rlimit { rlim_cur: 64, rlim_max: 64 };
    // SAFETY: `limit` is readable; the signal is ignored, so that a write fails instead of ending the process.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit), 0);
    }
}

const NAME: &str = "a_program_that_is_asked_writes_its_bill_at_the_end";

/// Runs a process in this role, whose bill goes to the file `bill` of the process's current directory. Returns the
/// names of the files that are then in that directory, and the process's standard error.
fn run_beside(role: &str) -> (Vec<String>, String) {
    let directory = tempfile::tempdir().unwrap();
    let victim = directory.path().join("bill.victim");
    std::fs::write(&victim, "of the victim").unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([NAME, "--exact"]).env(ROLE, role).env("ATRACE_BILL", "bill").env("ATRACE_BACKEND", "none");
    let ran = command.current_dir(directory.path()).output().unwrap();
    assert!(ran.status.success(), "{role}");
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "of the victim");
    let files = std::fs::read_dir(directory.path()).unwrap();
    let files = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut files: Vec<_> = files.filter(|name| name != "bill.victim").collect();
    files.sort();
    (files, String::from_utf8_lossy(&ran.stderr).into_owned())
}

#[test]
#[cfg(any(target_os = "linux", target_os = "android"))]
fn a_bill_goes_to_the_directory_of_the_first_subscriber() {
    assert_eq!(run_beside("elsewhere"), (vec!["bill".to_owned()], String::new()));
}

#[test]
#[cfg(any(target_os = "linux", target_os = "android"))]
fn a_bill_that_has_no_room_leaves_nothing_behind() {
    let (files, complaint) = run_beside("full");
    assert!(files.is_empty() && complaint.contains("can't write the bill"), "{files:?} {complaint}");
}

#[test]
#[cfg(any(target_os = "linux", target_os = "android"))]
fn a_bill_follows_no_planted_link() {
    assert_eq!(run_beside("planted"), (vec!["bill".to_owned()], String::new()));
}

#[test]
#[cfg(any(target_os = "linux", target_os = "android"))]
fn a_program_that_is_asked_writes_its_bill_at_the_end() {
    if let Ok(role) = std::env::var(ROLE) {
        return work_of_process(&role);
    }
    for role in ["alone", "layer", "fork", "off"] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("bill");
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([NAME, "--exact"]).env(ROLE, role).env("ATRACE_BILL", &path);
        if role != "layer" {
            command.env("ATRACE_BACKEND", "none");
        }
        let ran = command.output().unwrap();
        assert!(ran.status.success(), "{role}: {}", String::from_utf8_lossy(&ran.stderr));
        let bill = Bill::read(&std::fs::read(&path).unwrap()).unwrap();
        let text = bill.to_string();
        assert!(
            text.contains("total: ") && text.contains("AtraceLayer without the rest of its stack"),
            "{text}"
        );
        let bill = json(&bill);
        let all = callsites(&bill);
        assert!(!all.contains_key("unknown"), "{role}");
        let expected = if role == "off" { 0 } else { 100 };
        for (name, call) in
            [("asked", "new"), ("asked", "enter"), ("asked", "exit"), ("asked_event", "event")]
        {
            let calls = all.get(name).map_or(0, |callsite| callsite["calls"][call].as_u64().unwrap());
            // While tracing is off, the subscriber takes no events.
            let is_taken = call != "event" || role == "layer";
            assert_eq!(calls, if is_taken { expected } else { 0 }, "{role}: {name} {call}");
        }
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "{role}: nothing else is left");
    }
    // If the bill can't be written, the program ends successfully, and prints the failure.
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([NAME, "--exact"]).env(ROLE, "alone").env("ATRACE_BILL", "/nonexistent/bill");
    let ran = command.output().unwrap();
    let complaint = String::from_utf8_lossy(&ran.stderr);
    assert!(
        ran.status.success() && complaint.contains("can't write the bill to /nonexistent/bill"),
        "{complaint}"
    );
}
