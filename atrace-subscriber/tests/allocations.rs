//! Tests that spans and events allocate no memory.

mod common;
mod counting;

use std::hint::black_box;

use atrace_subscriber::{AsyncSpans, AtraceFilter, AtraceLayer, AtraceSubscriber};
use common::{Place, Role, case, on};
use counting::allocations;
use tracing::level_filters::LevelFilter;
use tracing::{Dispatch, Level, enabled, info, info_span};
use tracing_subscriber::prelude::*;

fn counted(work: impl FnOnce()) -> u64 {
    let before = allocations();
    work();
    allocations() - before
}

type Row = (&'static str, fn(&[i32]));

/// The kinds of spans and events whose allocations are counted, with their names.
const ROWS: [Row; 6] = [
    ("event", |_| info!("bench info event")),
    ("event_args", |vector| {
        info!(arg1 = 123, arg2 = "argument", arg3 = ?vector, arg4 = "last", float = 1.5, yes = true, "bench info event");
    }),
    ("counter", |_| info!(counter.name = 1)),
    ("span", |_| info_span!("bench info span").in_scope(|| ())),
    ("span_args", |vector| {
        info_span!("bench info span", arg1 = 123, arg2 = "argument", arg3 = ?vector, arg4 = "last")
            .in_scope(|| ());
    }),
    ("record", |_| {
        let span = info_span!("bench info span", later = tracing::field::Empty);
        span.record("later", "text");
        span.in_scope(|| ());
    }),
];

/// Writes the spans or events of each row a hundred times. If `first_counts` is true, returns the number of allocations
/// of each row in all hundred times. Otherwise, writes each row once without counting before that, and returns the
/// number of allocations per time.
fn rows(first_counts: bool) -> Vec<(&'static str, u64)> {
    let vector = vec![1, 2, 3, 4];
    ROWS.iter()
        .map(|(name, row)| {
            if !first_counts {
                row(black_box(&vector));
            }
            let mut all = counted(|| (0..100).for_each(|_| row(black_box(&vector))));
            if !first_counts {
                assert_eq!(all % 100, 0, "{name}: {all} allocations in 100 times");
                all /= 100;
            }
            (*name, all)
        })
        .collect()
}

const NONE: [u64; 6] = [0; 6];

fn check(what: &str, expected: [u64; 6]) {
    let counts = rows(false);
    println!("NOTE {what}: {counts:?}");
    assert_eq!(counts.iter().map(|(_, count)| *count).collect::<Vec<_>>(), expected, "{what}: {counts:?}");
}

fn run(name: &str) {
    let Some(place) = Place::new(name) else { return };
    for line in place.run(name, Role::Alone).lines().filter(|line| line.contains("NOTE")) {
        eprintln!("{line}");
    }
    assert!(!place.messages().is_empty());
}

#[test]
fn alone_nothing_is_ever_allocated() {
    let name = case!({
        let filtered: Dispatch = AtraceSubscriber::default().with_filter().into();
        let asked: Dispatch =
            AtraceSubscriber::default().with(AtraceFilter::default().without_watch()).into();
        let plain: Dispatch = AtraceSubscriber::default().into();
        let kept: Dispatch = AtraceSubscriber::default().with_fields_while_off().into();
        let all = [("filtered", filtered), ("asked", asked), ("plain", plain), ("fields while off", kept)];
        for (what, dispatch) in &all {
            tracing::dispatcher::with_default(dispatch, || {
                check(&format!("{what}, off"), NONE);
                let _on = on();
                common::until("on", || enabled!(Level::INFO));
                check(&format!("{what}, on"), NONE);
            });
        }
    });
    run(&name);
}

#[test]
fn alone_not_even_the_first_time() {
    let name = case!({
        let _on = on();
        atrace::atrace_init();
        tracing::subscriber::set_global_default(AtraceSubscriber::default()).unwrap();
        let counts = rows(true);
        assert!(counts.iter().all(|(_, count)| *count == 0), "{counts:?}");
        println!("NOTE from the first time on: {counts:?}");
        // Enters spans on another thread, more deeply nested than before.
        let deep = || {
            let spans: [_; 30] = std::array::from_fn(|_| info_span!("deep").entered());
            drop(spans);
        };
        std::thread::spawn(move || assert_eq!(counted(deep), 0)).join().unwrap();
    });
    run(&name);
}

#[test]
fn a_layer_allocates_nothing_off_or_on() {
    let name = case!({
        let layer: Dispatch = tracing_subscriber::registry().with(AtraceLayer::default()).into();
        let filtered: Dispatch = tracing_subscriber::registry()
            .with(AtraceLayer::default().with_filter(AtraceFilter::default()))
            .into();
        let aosp: Dispatch =
            tracing_subscriber::registry().with(AtraceSubscriber::default().with_filter()).into();
        for (what, dispatch) in [("layer", layer), ("its filter", filtered), ("the stack's filter", aosp)] {
            tracing::dispatcher::with_default(&dispatch, || {
                check(&format!("{what}, off"), NONE);
                let _on = on();
                common::until("on", || LevelFilter::current() == LevelFilter::TRACE);
                std::thread::sleep(std::time::Duration::from_millis(20));
                check(&format!("{what}, on"), NONE);
            });
        }
    });
    run(&name);
}

/// Tests spans without fields over a registry, while a session of Perfetto's wants them. Some of these spans are stored,
/// to learn whether they are asynchronous: the first ones of a callsite, and one of 1024 later ones.
#[test]
fn a_layer_allocates_nothing_for_spans_without_fields() {
    let name = case!({
        let spans = || {
            for _ in 0..5000 {
                info_span!("alone").in_scope(|| info_span!("inside").in_scope(|| ()));
            }
        };
        let recording = atrace::perfetto::record_to("/dev/null").unwrap();
        tracing_subscriber::registry().with(AtraceLayer::default()).init();
        assert!(tracing::enabled!(tracing::Level::INFO));
        spans();
        assert_eq!(counted(spans), 0);
        recording.finish().unwrap();
        assert_eq!(atrace::perfetto::status().lost(), 0);
        // Spans that close while tracing is off free their slots. (The buffers of the slots still grow in the second round.)
        let of_rounds = [(); 10].map(|()| {
            let recording = atrace::perfetto::record_to("/dev/null").unwrap();
            let mut open = [const { None }; 30];
            let count = counted(|| open = std::array::from_fn(|_| Some(info_span!("closes while off"))));
            recording.finish().unwrap();
            drop(open);
            count
        });
        assert_eq!(of_rounds[2..], [0; 8], "{of_rounds:?}");
    });
    let Some(place) = Place::new(&name) else { return };
    place.run(&name, Role::Alone);
}

#[test]
fn async_slices_alone_allocate_nothing() {
    let name = case!({
        let dispatch: Dispatch = AtraceSubscriber::default().with_async_spans("", AsyncSpans::Beside).into();
        tracing::dispatcher::with_default(&dispatch, || {
            let _on = on();
            check("async", NONE);
        });
    });
    run(&name);
}

/// Tests lives of spans with and without fields, and of children that nest or do not nest. Only the first lives
/// allocate slots and lanes.
#[test]
fn lives_allocate_nothing() {
    let name = case!({
        let polled = |parent: &tracing::Span, number: u32| {
            let spans = parent.in_scope(|| [info_span!("one", number), info_span!("other")]);
            for _ in 0..5 {
                spans.iter().for_each(|span| span.in_scope(|| ()));
            }
        };
        let requests = || {
            for number in 0..100 {
                let request = info_span!("request", number);
                (0..5).for_each(|_| request.in_scope(|| ()));
                polled(&request, number);
            }
        };
        let recording = atrace::perfetto::record_to("/dev/null").unwrap();
        tracing::subscriber::set_global_default(AtraceSubscriber::default()).unwrap();
        assert!(tracing::enabled!(tracing::Level::INFO));
        requests();
        assert_eq!(counted(requests), 0);
        recording.finish().unwrap();
        assert_eq!(atrace::perfetto::status().lost(), 0);
    });
    let Some(place) = Place::new(&name) else { return };
    place.run(&name, Role::Alone);
}
