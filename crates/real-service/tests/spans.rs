//! Tests spans and events of `tracing` with Perfetto's own service and with its trace processor, including unusual
//! uses.
#![cfg(not(no_tracing))]

use std::fmt;
use std::time::Duration;

use atrace::{AtraceTag, begin_scoped_event, perfetto};
use atrace_real_service::{
    Config, Event, Session, Setup, Trace, WRONG, is_program, place, step, until, wait_for,
};
use atrace_subscriber::{AsyncSpans, AtraceFilter, AtraceLayer, AtraceSubscriber};
use tracing::{Instrument as _, Span};
use tracing::{debug, error, info, info_span, span, trace, warn};
use tracing_core::field::FieldSet;
use tracing_core::{Callsite, Interest, Kind, Level, Metadata};
use tracing_subscriber::prelude::*;

/// Returns the events of a trace that are on threads and on the track `requests`, without the lives of spans.
fn but_lives(trace: &Trace) -> Vec<Event> {
    let names = trace.names_of_tracks();
    let is_of_life = |event: &Event| {
        let name = event.track.and_then(|track| names.get(&track));
        event.kind < 3 && name.is_some_and(|name| name != "requests")
    };
    trace.events().into_iter().filter(|event| !is_of_life(event)).collect()
}

/// Formats an event as a line: its type, name, level and arguments, except the numbers of spans.
fn shown(event: &Event) -> String {
    let kind = ["", "begin", "end", "instant", "counter"][event.kind as usize];
    let mut line = if event.kind == 2 { kind.to_owned() } else { format!("{kind} {}", event.name()) };
    for (name, value) in event.args.iter().filter(|(name, _)| name != "span" && name != "parent") {
        line += &format!(", {name}={value}");
    }
    line
}

fn constructs() {
    let vector = vec![1, 2];
    info!("message");
    let number = 7;
    warn!(yes = true, int = -7, uint = 7_u64, float = 0.5, text = "a \"text\"", debug = ?vector, "with {number}");
    error!(name: "named", big = i128::MAX, shown = %"displayed");
    debug!(counter.waiting = 3);
    debug!(counter.load = 0.25, other = 1);
    log::info!("logged");
    let outer = info_span!("outer", number = 1, later = tracing::field::Empty);
    {
        let _entered = outer.enter();
        // The field that is recorded for `outer` must not appear in `inner`, which is open at that time.
        span!(tracing::Level::TRACE, "inner", number = 2, has = "more").in_scope(|| {
            trace!("within");
            outer.record("later", "recorded");
        });
    }
    outer.in_scope(|| ());
    drop(outer);
    let track = info_span!("request", atrace.track = "requests", number = 2, status = tracing::field::Empty);
    track.record("status", 200);
    drop(track);
}

const EXPECTED: [&str; 16] = [
    "instant message, level=INFO",
    "instant with 7, level=WARN, yes=true, int=-7, uint=7, float=0.5, text=a \"text\", debug=[1, 2]",
    "instant named, level=ERROR, big=170141183460469231731687303715884105727, shown=displayed",
    "counter waiting",
    "counter load",
    "instant spans:NUMBER, level=DEBUG, other=1",
    "instant logged, level=INFO, log.target=spans, log.module_path=spans, log.file=crates/real-service/tests/spans.rs, log.line=LINE",
    "begin outer, level=INFO, number=1",
    "begin inner, level=TRACE, number=2, has=more",
    "instant within, level=TRACE",
    "end",
    "end, later=recorded",
    "begin outer, level=INFO, number=1, later=recorded",
    "end",
    "begin request, level=INFO, number=2",
    "end, status=200",
];

/// Replaces the line in the name of an event without a message, because that name is its module and line.
fn without_line(line: &str) -> String {
    match line.split_once(" spans:") {
        Some((kind, rest)) => format!("{kind} spans:NUMBER{}", rest.trim_start_matches(char::is_numeric)),
        None => line.to_owned(),
    }
}

/// Checks the events that [`constructs`] writes.
fn expect(trace: &Trace) {
    let lines: Vec<_> = but_lives(trace).iter().map(shown).collect();
    assert_eq!(lines.len(), EXPECTED.len(), "{lines:#?}");
    for (line, expected) in lines.iter().zip(EXPECTED) {
        // A counter event has no name of its own (`Event::name` returns "end"), because it has the name of its track.
        let line = without_line(line);
        let (line, expected) = match (line.split_once("log.line="), expected.split_once("LINE")) {
            (Some((line, _)), Some((expected, _))) => (line.to_owned() + "log.line=", expected),
            _ if line == "counter end" => ("counter".to_owned(), "counter"),
            _ => (line, expected),
        };
        assert_eq!(line, expected);
    }
    for event in but_lives(trace) {
        let (is_end, is_log) = (event.kind == 2 || event.kind == 4, event.name() == "logged");
        let categories =
            if event.kind == 2 { vec![] } else { vec!["app", if is_log { "log" } else { "spans" }] };
        if event.kind == 4 {
            assert_eq!(event.categories, ["app"]);
        } else {
            assert_eq!(event.categories, categories);
        }
        let place = event.place.as_ref();
        assert_eq!(
            place.is_some_and(|(file, line)| file == "crates/real-service/tests/spans.rs" && *line > 20),
            !is_end && !is_log
        );
    }
}

#[test]
fn every_construct_is_shown_alone() {
    const ROLE: &str = "every_construct_is_shown_alone";
    if is_program(ROLE) {
        perfetto::connect();
        AtraceSubscriber::default().init();
        return constructs();
    }
    let Some(setup) = Setup::start(ROLE) else { return };
    let trace = setup.traced();
    expect(&trace);
    let track = "select s.name, t.name, s.dur > 0, extract_arg(s.arg_set_id, 'debug.number'), extract_arg(s.arg_set_id, 'debug.status') \
                 from slice s join process_track t on s.track_id = t.id order by s.ts";
    let named = "select count(distinct name), count(*) from slice where name = 'outer'";
    let later = "select extract_arg(arg_set_id, 'debug.later'), extract_arg(arg_set_id, 'debug.level') from slice where name = 'outer'";
    let counters = "select t.name, c.value from counter c join process_counter_track t on c.track_id = t.id order by t.name";
    let place = "select extract_arg(arg_set_id, 'source.file_name') from slice where name = 'outer'";
    let Some(answers) = setup.rows(&trace, &[WRONG, track, named, later, counters, place]) else { return };
    assert_eq!(answers[0], "[]");
    // The span `outer`, which was entered twice, has a life. The span `inner` has none.
    assert_eq!(answers[1], "[[\"outer\",\"outer\",1,1,null],[\"request\",\"requests\",1,2,200]]");
    assert_eq!(answers[2], "[[1,3]]");
    assert_eq!(answers[3], "[[\"recorded\",\"INFO\"],[\"recorded\",\"INFO\"],[\"recorded\",\"INFO\"]]");
    assert_eq!(answers[4], "[[\"load\",0.25],[\"waiting\",3]]");
    assert_eq!(
        answers[5],
        "[[\"crates/real-service/tests/spans.rs\"],[\"crates/real-service/tests/spans.rs\"],[\"crates/real-service/tests/spans.rs\"]]"
    );
}

#[test]
fn every_construct_is_shown_by_a_layer() {
    const ROLE: &str = "every_construct_is_shown_by_a_layer";
    if is_program(ROLE) {
        perfetto::connect();
        tracing_subscriber::registry().with(AtraceLayer::default()).init();
        return constructs();
    }
    let Some(setup) = Setup::start(ROLE) else { return };
    let trace = setup.traced();
    expect(&trace);
}

/// Enters a span on two threads, one after the other, and creates spans that follow from this span.
fn flows() {
    let first = info_span!("first", n = 1);
    for _ in 0..2 {
        std::thread::scope(|scope| {
            scope.spawn(|| first.in_scope(|| ()));
        });
    }
    let second = info_span!("second", n = 2);
    second.follows_from(&first);
    second.in_scope(|| ());
    let plain = info_span!("plain");
    plain.follows_from(&first);
    plain.in_scope(|| ());
    info_span!("plain").in_scope(|| ());
}

/// Returns the flows between slices, as pairs of names.
fn arrows(setup: &Setup, trace: &Trace) -> Option<String> {
    let arrows = "select a.name || ' ' || b.name || ' ' || count(*) from flow join slice a on a.id = slice_out join slice b on b.id = slice_in group by a.name, b.name order by 1";
    let answers = setup.rows(trace, &[WRONG, arrows])?;
    assert_eq!(answers[0], "[]");
    Some(answers[1].clone())
}

/// The expected arrows. An entry names the slice in which an arrow begins, the slice in which the arrow ends, and the
/// number of such arrows. If a span has a life, the first arrow leads from the life to the span's first poll. The second
/// `plain` span, at the end of `flows`, has no life.
const ARROWS: &str = "[[\"first first 2\"],[\"first second 1\"],[\"plain plain 2\"],[\"second plain 1\"],[\"second second 2\"]]";

#[test]
fn polls_are_a_flow_alone() {
    const ROLE: &str = "polls_are_a_flow_alone";
    if is_program(ROLE) {
        perfetto::connect();
        tracing::subscriber::set_global_default(AtraceSubscriber::default()).unwrap();
        return flows();
    }
    let Some(setup) = Setup::start(ROLE) else { return };
    let trace = setup.traced();
    let of = |wanted: &str| -> Vec<_> {
        but_lives(&trace).into_iter().filter(|it| it.name() == wanted).map(|it| it.flows).collect()
    };
    let (first, second) = (of("first"), of("second"));
    assert!(first.len() == 2 && first[0].len() == 1 && first[1] == first[0]);
    assert!(second.len() == 1 && second[0].len() == 2 && second[0][1] == first[0][0]);
    assert_eq!(of("plain").iter().map(Vec::len).collect::<Vec<_>>(), [2, 1]);
    if let Some(arrows) = arrows(&setup, &trace) {
        assert_eq!(arrows, ARROWS);
    }
}

#[test]
fn polls_are_a_flow_by_a_layer() {
    const ROLE: &str = "polls_are_a_flow_by_a_layer";
    if is_program(ROLE) {
        perfetto::connect();
        tracing_subscriber::registry().with(AtraceLayer::default()).init();
        return flows();
    }
    let Some(setup) = Setup::start(ROLE) else { return };
    let trace = setup.traced();
    if let Some(arrows) = arrows(&setup, &trace) {
        assert_eq!(arrows, ARROWS);
    }
}

struct Panics;

impl fmt::Debug for Panics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("half")?;
        panic!("on purpose");
    }
}

/// A value whose formatting writes an event with another such value, nested deeper and deeper.
struct Traces(u32);

impl fmt::Debug for Traces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let below = Self(self.0 + 1);
        info_span!("nested", depth = self.0).in_scope(|| info!(value = ?below, "nested {}", self.0));
        write!(f, "Traces({})", self.0)
    }
}

/// A value whose formatting starts another program.
struct Starts;

impl fmt::Debug for Starts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let child = std::process::Command::new("true").status();
        write!(f, "{}", child.is_ok())
    }
}

fn hostile() {
    info!(before = 1, value = ?Panics, after = 2, "message");
    info!("message {:?}", Panics);
    info_span!("span", before = 1, value = ?Panics, after = 2).in_scope(|| ());
    info!(value = ?Traces(0), "outer");
    info_span!("made", value = ?Traces(7)).in_scope(|| ());
    info!(value = ?Starts, "starts");
    info!(value = %"x".repeat(1 << 20), short = 1, "{}", "m".repeat(1 << 20));
    info!(
        f0 = 0,
        f1 = 1,
        f2 = 2,
        f3 = 3,
        f4 = 4,
        f5 = 5,
        f6 = 6,
        f7 = 7,
        f8 = 8,
        f9 = 9,
        f10 = 10,
        f11 = 11,
        f12 = 12,
        f13 = 13,
        f14 = 14,
        f15 = 15,
        f16 = 16,
        f17 = 17,
        f18 = 18,
        f19 = 19,
        f20 = 20,
        f21 = 21,
        f22 = 22,
        f23 = 23,
        f24 = 24,
        f25 = 25,
        f26 = 26,
        f27 = 27,
        f28 = 28,
        f29 = 29,
        f30 = 30,
        f31 = 31
    );
    info!(counter.float = f64::NAN, counter.huge = u128::MAX, r#type = "keyword", "|\n\0");
}

/// Tests values that panic, trace, start a program, or produce very long text while they are formatted. All events are
/// recorded, only long texts are cut, and the program continues.
#[test]
fn values_may_do_what_they_like() {
    const ROLE: &str = "values_may_do_what_they_like";
    if is_program(ROLE) {
        std::panic::set_hook(Box::new(|_| ()));
        perfetto::connect();
        tracing::subscriber::set_global_default(AtraceSubscriber::default()).unwrap();
        return hostile();
    }
    let Some(setup) = Setup::start(ROLE) else { return };
    let trace = setup.traced();
    assert_eq!(trace.losses(), atrace_real_service::Losses::default());
    let lines: Vec<_> = trace.events().iter().filter(|event| event.kind != 2).map(shown).collect();
    let cut = |letter: &str, count| letter.repeat(count);
    let nested = |depth| {
        [format!("begin nested, level=INFO, depth={depth}"), format!("instant nested {depth}, level=INFO")]
    };
    let value = |depth| format!(", value=Traces({depth})");
    let mut expected = vec![
        "instant message, level=INFO, before=1, value=half<panicked>".to_owned(),
        "instant message half<panicked>, level=INFO".to_owned(),
        "begin span, level=INFO, before=1, value=half<panicked>".to_owned(),
    ];
    for (first, last) in
        [(0, "instant outer, level=INFO, value=Traces(0)"), (7, "begin made, level=INFO, value=Traces(7)")]
    {
        // From the fourth level of nesting on, fields are left out of the events. The begins of the enclosing spans
        // come first.
        let depths = || first..first + 3;
        expected.extend(depths().map(|depth| nested(depth)[0].clone()));
        expected.push("begin nested, level=INFO".to_owned());
        expected.push("instant spans:NUMBER, level=INFO".to_owned());
        expected.extend(depths().rev().map(|depth| nested(depth)[1].clone() + &value(depth + 1)));
        expected.push(last.to_owned());
    }
    expected.push("instant starts, level=INFO, value=true".to_owned());
    expected.push(format!("instant {}, level=INFO, value={}…, short=1", cut("m", 1023), cut("x", 997)));
    let fields: String = (0..32).map(|at| format!(", f{at}={at}")).collect();
    let line = lines.iter().position(|line| line.contains("f31=31")).unwrap();
    assert!(lines[line].ends_with(&format!(", level=INFO{fields}")), "{}", lines[line]);
    expected.push(lines[line].clone());
    expected.extend(["counter end", "counter end"].map(str::to_owned));
    expected.push("instant |\n\0, level=INFO, type=keyword".to_owned());
    for (line, expected) in lines.iter().zip(&expected) {
        let line = without_line(line);
        assert!(line == *expected || expected.contains("f31"), "{line}\n{expected}");
    }
    assert_eq!(lines.len(), expected.len(), "{lines:#?}");
    if let Some(answers) = setup.rows(&trace, &[WRONG]) {
        assert_eq!(answers[0], "[]");
    }
}

/// A callsite that is created at run time.
struct Made;

impl Callsite for Made {
    fn set_interest(&self, _: Interest) {}

    fn metadata(&self) -> &Metadata<'_> {
        unreachable!("never registered")
    }
}

#[test]
fn ten_thousand_callsites() {
    const ROLE: &str = "ten_thousand_callsites";
    const CALLSITES: usize = 10_000;
    if is_program(ROLE) {
        static MADE: Made = Made;
        static FIELDS: &[&str] = &["first", "second"];
        perfetto::connect();
        tracing::subscriber::set_global_default(AtraceSubscriber::default()).unwrap();
        let made: Vec<&'static Metadata<'static>> = (0..CALLSITES)
            .map(|number| {
                let leak = |text: String| &*Box::leak(text.into_boxed_str());
                let fields = FieldSet::new(FIELDS, tracing_core::identify_callsite!(&MADE));
                let (name, target) = (leak(format!("event {number}")), leak(format!("target {number}")));
                let place = (Some("made.rs"), Some(number as u32));
                let metadata =
                    Metadata::new(name, target, Level::INFO, place.0, place.1, None, fields, Kind::EVENT);
                &*Box::leak(Box::new(metadata))
            })
            .collect();
        for _ in 0..2 {
            for (number, metadata) in made.iter().enumerate() {
                let fields = metadata.fields();
                let (first, second) = (fields.field("first").unwrap(), fields.field("second").unwrap());
                let values: [(&tracing_core::Field, Option<&dyn tracing_core::field::Value>); 2] =
                    [(&first, Some(&number)), (&second, Some(&"text"))];
                tracing_core::Event::dispatch(metadata, &fields.value_set(&values));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        return;
    }
    let Some(setup) = Setup::start(ROLE) else { return };
    let trace = setup.traced();
    let events = trace.events();
    assert!(events.len() > CALLSITES);
    for event in events {
        let name = event.name();
        let number = name.strip_prefix("event ").expect(&name);
        assert_eq!(event.categories, ["app".to_owned(), format!("target {number}")]);
        assert_eq!(event.place, Some(("made.rs".to_owned(), number.parse().unwrap())));
        let args = [("level", "INFO"), ("first", number), ("second", "text")];
        assert_eq!(event.args, args.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }
}

/// Tests that, before a session starts and after it has ended, callsites behave as if there were no subscriber.
#[test]
fn filters_follow_sessions() {
    const ROLE: &str = "filters_follow_sessions";
    const ROUNDS: usize = 5;
    if is_program(ROLE) {
        perfetto::connect();
        if std::env::var_os("AS_LAYER").is_some() {
            tracing_subscriber::registry().with(AtraceLayer::default()).with(AtraceFilter::default()).init();
        } else {
            tracing::subscriber::set_global_default(AtraceSubscriber::default().with_filter()).unwrap();
        }
        for round in 0..ROUNDS {
            until("off", || {
                !tracing::enabled!(Level::ERROR)
                    && tracing::level_filters::LevelFilter::current()
                        == tracing::level_filters::LevelFilter::OFF
            });
            step(&place(&format!("session {round}?")));
            until("on", || tracing::enabled!(Level::ERROR));
            info!(round, "seen");
            info_span!("span", round).in_scope(|| ());
            step(&place(&format!("stop {round}?")));
        }
        return;
    }
    for as_layer in [false, true] {
        let Some(setup) = Setup::start(ROLE) else { return };
        let mut program = setup.program();
        if as_layer {
            program.env("AS_LAYER", "1");
        }
        let mut child = program.spawn().unwrap();
        for round in 0..ROUNDS {
            wait_for(&setup.place(&format!("session {round}?")));
            let wanted = Config { enabled: vec!["app"], disabled: vec!["*"], ..Config::default() };
            let session = Session::start(&setup.service, &wanted);
            wait_for(&setup.place(&format!("stop {round}?")));
            let lines: Vec<_> = session.stop().events().iter().map(shown).collect();
            let expected = [
                format!("instant seen, level=INFO, round={round}"),
                format!("begin span, level=INFO, round={round}"),
                "end".to_owned(),
            ];
            assert_eq!(lines, expected);
        }
        assert!(child.wait().unwrap().success());
    }
}

/// A running program. Dropping the `Running` kills the program, in case the test fails.
struct Running(std::process::Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Tests a thousand tasks on eight workers, while sessions start and stop. No slice ends without a begin. A slice has
/// the arguments of its span, unless the span may be older than the session.
#[test]
fn a_thousand_tasks_while_sessions_come_and_go() {
    const ROLE: &str = "a_thousand_tasks_while_sessions_come_and_go";
    let sessions = if std::env::var_os("ATRACE_LONG_TESTS").is_some() { 1000 } else { 30 };
    if is_program(ROLE) {
        perfetto::connect();
        let subscriber = AtraceSubscriber::default().with_async_spans("spans::waits", AsyncSpans::Beside);
        tracing::subscriber::set_global_default(subscriber).unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(8).enable_time().build().unwrap();
        runtime.block_on(async {
            let tasks: Vec<_> = (0..1000_u32)
                .map(|number| {
                    let done = place("done");
                    tokio::spawn(async move {
                        while !done.exists() {
                            let span = info_span!("task", number, later = tracing::field::Empty);
                            async {
                                tokio::task::yield_now().await;
                                info!(number, "event");
                                Span::current().record("later", number);
                                info_span!(target: "spans::waits", "waits", number).in_scope(|| ());
                                tokio::time::sleep(Duration::from_millis(10)).await;
                            }
                            .instrument(span)
                            .await;
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
        });
        return;
    }
    let Some(setup) = Setup::start(ROLE) else { return };
    let mut child = Running(setup.program().spawn().unwrap());
    let mut events = 0;
    for number in 0..sessions {
        let session = setup.session();
        if number % 10 == 0 {
            std::thread::sleep(Duration::from_millis(20));
        }
        let trace = session.stop();
        let mut depth = std::collections::HashMap::new();
        let mut sequences = std::collections::HashSet::new();
        for event in trace.events() {
            events += 1;
            let is_first = sequences.insert(event.sequence);
            let depth = depth.entry((event.sequence, event.track)).or_insert(0_i32);
            // Ends on tracks are not counted, because a life may end on another thread than the one on which it began.
            *depth += match event.kind {
                1 => 1,
                2 if event.track.is_none() => -1,
                _ => 0,
            };
            assert!(*depth >= 0, "an end without a begin: {event:?}");
            if event.kind == 1 || event.kind == 3 {
                let names = event.args.iter().map(|(name, _)| name.as_str());
                let arguments: Vec<_> = names.filter(|name| *name != "span" && *name != "parent").collect();
                // A span that is older than the session has only its name. The span of a task may be older. All other
                // spans are entered as soon as they are created, so only the first span of a thread may be older.
                let is_task = event.name() == "task";
                let is_whole = match arguments[..] {
                    ["level"] => is_task || is_first && event.name() == "waits",
                    ["level", "number", "later"] => is_task,
                    ["level", "number"] => true,
                    _ => false,
                };
                assert!(is_whole, "{event:?}");
            }
        }
        if number % 25 == 0 {
            let wrong = "select name, value from stats where severity = 'error' and value > 0";
            if let Some(answers) = setup.rows(&trace, &[wrong]) {
                assert_eq!(answers[0], "[]");
            }
        }
    }
    step(&setup.place("done"));
    assert!(child.0.wait().unwrap().success());
    assert!(events > 1000, "{events}");
}

/// Tests spans that were created while no session ran. Such a span has only its name or, with `with_fields_while_off`,
/// also its fields.
#[test]
fn spans_that_were_made_before_the_session() {
    const ROLE: &str = "spans_that_were_made_before_the_session";
    if is_program(ROLE) {
        perfetto::connect();
        let subscriber = AtraceSubscriber::default();
        let keeps = std::env::var_os("KEEPS").is_some();
        let subscriber = if keeps { subscriber.with_fields_while_off() } else { subscriber };
        tracing::subscriber::set_global_default(subscriber).unwrap();
        let span = info_span!("span", number = 1, later = tracing::field::Empty);
        let entered = span.enter();
        step(&place("session?"));
        until("a session", || atrace::atrace_is_tag_enabled(AtraceTag::App));
        span.record("later", 2);
        let inner = begin_scoped_event(AtraceTag::App, "inner");
        drop(entered);
        drop(inner);
        span.in_scope(|| ());
        return;
    }
    for keeps in [false, true] {
        let Some(setup) = Setup::start(ROLE) else { return };
        let mut program = setup.program();
        if keeps {
            program.env("KEEPS", "1");
        }
        let mut child = program.spawn().unwrap();
        wait_for(&setup.place("session?"));
        let session = setup.session();
        assert!(child.wait().unwrap().success());
        let lines: Vec<_> = session.stop().events().iter().map(shown).collect();
        let args = if keeps { ", number=1, later=2" } else { "" };
        assert_eq!(lines, ["begin inner", "end", &format!("begin span, level=INFO{args}"), "end"]);
    }
}
