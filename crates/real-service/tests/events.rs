//! Tests every kind of event with Perfetto's own service. Perfetto's trace processor reads the trace.
//!
//! The traced program is this test in a separate process, because the connection to the service belongs to the
//! process.
#![cfg(not(no_tracing))]

use atrace::{AtraceTag, Name, begin_scoped_event, perfetto};
use atrace_real_service::{Setup, is_program};

#[test]
fn every_kind_of_event_is_shown() {
    const ROLE: &str = "every_kind_of_event_is_shown";
    static COUNT: Name = Name::new("count");
    static OTHER: Name = Name::new("other count");
    if is_program(ROLE) {
        perfetto::note_thread_name();
        perfetto::connect();
        let outer = begin_scoped_event(AtraceTag::App, "outer");
        atrace::atrace_begin(AtraceTag::App, "inner");
        atrace::atrace_instant(AtraceTag::View, "moment");
        atrace::atrace_end(AtraceTag::App);
        drop(outer);
        atrace::atrace_begin(AtraceTag::Camera | AtraceTag::Hal, "two categories");
        atrace::atrace_end(AtraceTag::Camera | AtraceTag::Hal);
        atrace::atrace_begin(AtraceTag::App, &"long ".repeat(100));
        atrace::atrace_end(AtraceTag::App);
        atrace::atrace_int(AtraceTag::App, "count", -7);
        atrace::atrace_int64(AtraceTag::App, "count", 1 << 40);
        atrace::atrace_f64(AtraceTag::App, "count", 0.5);
        atrace::atrace_counter(AtraceTag::App, &COUNT, -8);
        atrace::atrace_counter(AtraceTag::App, &OTHER, 9);
        atrace::atrace_counter(AtraceTag::App, &OTHER, 10);
        atrace::atrace_async_begin(AtraceTag::App, "async", 1);
        atrace::atrace_async_begin(AtraceTag::App, "async", 2);
        atrace::atrace_async_end(AtraceTag::App, "async", 1);
        atrace::atrace_async_end(AtraceTag::App, "async", 2);
        atrace::atrace_async_for_track_begin(AtraceTag::App, "row", "on a row", 5);
        atrace::atrace_async_for_track_end(AtraceTag::App, "row", 5);
        atrace::atrace_instant_for_track(AtraceTag::App, "row", "moment of a row");
        atrace::atrace_begin_args(AtraceTag::App, format_args!("plain | {}\n", 7), &[]);
        atrace::atrace_end(AtraceTag::App);
        return;
    }
    let Some(setup) = Setup::start(ROLE) else { return };
    let trace = setup.traced();
    let names: Vec<_> = trace
        .events()
        .into_iter()
        .filter_map(|event| {
            Some((event.kind, String::from_utf8(event.name?).unwrap(), event.categories.join("+")))
        })
        .collect();
    let name = |kind, name: &str, category: &str| (kind, name.to_owned(), category.to_owned());
    assert_eq!(
        names,
        [
            name(1, "outer", "app"),
            name(1, "inner", "app"),
            name(3, "moment", "view"),
            name(1, "two categories", "camera+hal"),
            name(1, &"long ".repeat(100), "app"),
            name(1, "async", "app"),
            name(1, "async", "app"),
            name(1, "on a row", "app"),
            name(3, "moment of a row", "app"),
            name(1, "plain | 7\n", "app"),
        ]
    );
    let Some(answers) = setup.rows(
        &trace,
        &[
            "select name, value from stats where severity in ('error', 'data_loss') and value > 0",
            "select s.name, s.depth, s.dur > 0 as ended, s.category from slice s join thread_track t on s.track_id = t.id order by s.ts",
            "select s.name, t.name as track, s.dur > 0 as ended from slice s join process_track t on s.track_id = t.id order by s.ts",
            "select t.name, c.value from counter c join process_counter_track t on c.track_id = t.id order by c.ts",
            "select distinct p.name is not null as named, t.name as thread from thread t join process p using (upid) join thread_track tt using (utid)",
        ],
    ) else {
        return;
    };
    assert_eq!(answers[0], "[]");
    let long = "long ".repeat(100);
    assert_eq!(
        answers[1],
        format!(
            "[[\"outer\",0,1,\"app\"],[\"inner\",1,1,\"app\"],[\"moment\",2,0,\"view\"],\
             [\"two categories\",0,1,\"camera,hal\"],[\"{long}\",0,1,\"app\"],[\"plain | 7\\n\",0,1,\"app\"]]"
        )
    );
    assert_eq!(
        answers[2],
        "[[\"async\",\"async\",1],[\"async\",\"async\",1],[\"on a row\",\"row\",1],[\"moment of a row\",\"row\",0]]"
    );
    assert_eq!(
        answers[3],
        "[[\"count\",-7],[\"count\",1099511627776],[\"count\",0.5],[\"count\",-8],\
         [\"other count\",9],[\"other count\",10]]"
    );
    assert_eq!(answers[4], "[[1,\"every_kind_of_event_is_shown\"]]");
}
