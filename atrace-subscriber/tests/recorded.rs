//! Fields that are recorded while a slice is open, through Perfetto's backend: the slice's end has them, wherever and
//! whenever it ends.

#[path = "../../atrace/tests/common/mod.rs"]
mod common;
#[allow(dead_code, unreachable_pub, reason = "it is of the tests of Perfetto's own service, too")]
#[path = "../../crates/real-service/src/trace.rs"]
mod trace;

mod cases {
    use atrace::perfetto;
    use atrace_subscriber::AtraceSubscriber;
    use tracing::field::Empty;
    use tracing::{info, info_span};

    use crate::common::{self, case};
    use crate::trace::{Event, Trace};

    /// Returns the events that `body` writes.
    fn recorded(body: impl FnOnce()) -> Vec<Event> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("trace");
        let recording = perfetto::record_to(&path).unwrap();
        tracing::subscriber::with_default(AtraceSubscriber::default(), body);
        recording.finish().unwrap();
        assert_eq!(perfetto::status().lost(), 0);
        Trace::open(&path).events()
    }

    fn args(number: u64) -> Vec<(String, String)> {
        vec![("later".to_owned(), number.to_string())]
    }

    /// In the same chunk and in a later one, and if the reader was told of the callsite long before.
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
                    // Slow enough that the memory is never full.
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

    /// A reader knows callsites per thread.
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
