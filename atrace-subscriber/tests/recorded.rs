//! Tests fields that are recorded while a slice is open, through Perfetto's backend: the end of the slice has these
//! fields, wherever and whenever the slice ends.

#[path = "../../atrace/tests/common/mod.rs"]
mod common;
#[allow(dead_code, unreachable_pub, reason = "this module is shared with the tests in `crates/real-service`")]
#[path = "../../crates/real-service/src/trace.rs"]
mod trace;

mod cases {
    use atrace::perfetto;
    use atrace_subscriber::{AsyncSpans, AtraceLayer, AtraceSubscriber};
    use tracing::field::Empty;
    use tracing::{Dispatch, info, info_span};
    use tracing_subscriber::prelude::*;

    use crate::common::{self, case};
    use crate::trace::{Event, Trace};

    /// Returns the events that `body` writes.
    fn recorded(body: impl FnOnce()) -> Vec<Event> {
        recorded_by(AtraceSubscriber::default(), body)
    }

    /// Returns the names of the events that `body` writes.
    fn names(subscriber: impl Into<Dispatch>, body: impl FnOnce()) -> Vec<String> {
        let name = |event: Event| event.name.map(|name| String::from_utf8(name).unwrap());
        recorded_by(subscriber, body).into_iter().filter_map(name).collect()
    }

    fn recorded_by(subscriber: impl Into<Dispatch>, body: impl FnOnce()) -> Vec<Event> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("trace");
        let recording = perfetto::record_to(&path).unwrap();
        tracing::dispatcher::with_default(&subscriber.into(), body);
        recording.finish().unwrap();
        assert_eq!(perfetto::status().lost(), 0);
        Trace::open(&path).events()
    }

    fn args(number: u64) -> Vec<(String, String)> {
        vec![("later".to_owned(), number.to_string())]
    }

    /// Tests that the end of a slice has the recorded fields, whether the end is in the same chunk as the begin or in a
    /// later chunk, and even if the reader got the callsite's data long before.
    #[test]
    fn every_end_has_what_was_recorded() {
        const SPANS: u64 = 3000;
        let name = case!({
            let events = recorded(|| {
                let outer = info_span!("outer", later = Empty).entered();
                for number in 0..SPANS {
                    let inner = info_span!("inner", later = Empty).entered();
                    inner.record("later", number);
                }
                for _ in 0..20 {
                    // Pauses so often that the memory is never full.
                    (0..1000).for_each(|_| info!("many"));
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
                outer.record("later", SPANS);
            });
            let ends: Vec<_> = events.iter().filter(|event| event.kind == 2).collect();
            assert_eq!(ends.len() as u64, SPANS + 1);
            for (number, end) in ends.into_iter().enumerate() {
                assert_eq!((&end.args, &end.name), (&args(number as u64), &None), "end {number}");
            }
        });
        common::Place::file().run(&name);
    }

    /// Tests spans that are named by the field of OpenTelemetry, by another field, by a field that is recorded later,
    /// or by no field; with the subscriber alone and in a stack.
    #[test]
    fn a_field_may_name_a_span() {
        let name = case!({
            let subscribers: [Dispatch; 2] = [
                AtraceSubscriber::default()
                    .with_name_field("name")
                    .with_async_spans("", AsyncSpans::Never)
                    .into(),
                tracing_subscriber::registry()
                    .with(
                        AtraceLayer::default()
                            .with_name_field("name")
                            .with_async_spans("", AsyncSpans::Never),
                    )
                    .into(),
            ];
            for subscriber in subscribers {
                let names = names(subscriber, || {
                    info_span!("request", otel.name = "GET /", status = 200).in_scope(|| ());
                    info_span!("system", name = %format_args!("move {}", 7)).in_scope(|| ());
                    let late = info_span!("late", otel.name = Empty, other = 1);
                    late.in_scope(|| ());
                    late.record("otel.name", "POST /").in_scope(|| ());
                    late.record("other", 2).in_scope(|| ());
                    info_span!("request", otel.name = Empty).in_scope(|| ());
                });
                assert_eq!(names, ["GET /", "move 7", "late", "POST /", "POST /", "request"]);
            }
        });
        common::Place::file().run(&name);
    }

    #[test]
    fn an_event_without_a_message_is_named_by_its_place_in_the_program() {
        let name = case!({
            let line = line!() + 2;
            let mut names = names(AtraceSubscriber::default(), || {
                (0..2).for_each(|n| info!(n));
                info!(name: "event with a name", number = 1);
            });
            assert_eq!(names.pop().unwrap(), "event with a name");
            assert_eq!(names, [format!("{}:{line}", module_path!()), format!("{}:{line}", module_path!())]);
        });
        common::Place::file().run(&name);
    }

    /// Returns the value of the argument `left_out`, or 0 if the event has none.
    fn left_out(event: &Event) -> u32 {
        let all: Vec<_> = event.args.iter().filter(|(name, _)| name == "left_out").collect();
        assert!(all.len() <= 1, "{event:?}");
        all.first().map_or(0, |(_, value)| value.parse().unwrap())
    }

    /// Tests fields for which a span has no room: the ends of the open slices, the begins of later slices, and the end
    /// of the async slice contain the number of these fields.
    #[test]
    fn fields_without_room_are_counted() {
        let name = case!({
            let text = "t".repeat(900);
            let dispatch: Dispatch =
                AtraceSubscriber::default().with_async_spans("", AsyncSpans::Beside).into();
            let events = recorded_by(dispatch, || {
                let span = info_span!("span", later = Empty, other = Empty);
                span.in_scope(|| (0..5).for_each(|_| _ = span.record("later", &*text)));
                span.in_scope(|| span.record("other", &*text));
                span.in_scope(|| (0..200).for_each(|_| _ = span.record("other", &*text)));
                span.record("later", 7); // There is room for this field.
                span.in_scope(|| ());
            });
            let on_thread = |event: &&Event| event.track.is_none() && event.kind < 3;
            let slices: Vec<_> = events.iter().filter(on_thread).map(left_out).collect();
            assert_eq!(slices, [0, 3, 3, 4, 4, 204, 204, 0]);
            let (is_end, later) = (|event: &&Event| event.track.is_some() && event.kind == 2, "later");
            let end = events.iter().rfind(is_end).unwrap();
            assert_eq!(left_out(end), 204);
            assert_eq!(end.args.iter().rfind(|(name, _)| name == later).unwrap().1, "7");
        });
        common::Place::file().run(&name);
    }

    /// Tests a span that has no room for all fields of its creation, nor for a field that is recorded later.
    #[test]
    fn fields_without_room_at_the_creation_and_later_are_counted_together() {
        let name = case!({
            let text = &*"t".repeat(900);
            let dispatch: Dispatch =
                AtraceSubscriber::default().with_async_spans("", AsyncSpans::Beside).into();
            let events = recorded_by(dispatch, || {
                let span =
                    info_span!("span", a = text, b = text, c = text, d = text, e = text, later = Empty);
                span.in_scope(|| (0..3).for_each(|_| _ = span.record("later", text)));
                span.in_scope(|| ());
            });
            let on_thread = |event: &&Event| event.track.is_none() && event.kind < 3;
            let slices: Vec<_> = events.iter().filter(on_thread).map(left_out).collect();
            assert_eq!(slices, [2, 5, 5, 0]);
        });
        common::Place::file().run(&name);
    }

    /// Tests an async slice that begins on one thread and ends on another. A reader gets the data of callsites from
    /// each thread separately.
    #[test]
    fn an_async_slice_that_ends_on_another_thread_has_what_was_recorded() {
        let name = case!({
            let events = recorded(|| {
                let span = info_span!("request", atrace.track = "requests", later = Empty);
                span.record("later", 7);
                std::thread::spawn(|| drop(span)).join().unwrap();
            });
            let one = |kind| events.iter().find(|event| event.kind == kind).unwrap();
            let (begin, end) = (one(1), one(2));
            assert_eq!((events.len(), begin.track), (2, end.track));
            assert_ne!(begin.sequence, end.sequence);
            assert_eq!((&end.args, &end.name), (&args(7), &None));
        });
        common::Place::file().run(&name);
    }
}
