//! Tests the lives of asynchronous spans (slices from their creation until they close) through Perfetto's backend: each
//! asynchronous span has one such slice, and the slices nest on lanes (tracks for lives). Numbers in the arguments of a
//! slice lead to the life of the span's parent and to the span's polls.

#[path = "../../atrace/tests/common/mod.rs"]
mod common;
#[allow(dead_code, unreachable_pub, reason = "this module is shared with the tests in `crates/real-service`")]
#[path = "../../crates/real-service/src/trace.rs"]
mod trace;

#[allow(unsafe_code, reason = "one test forks")]
mod cases {
    use std::cell::Cell;
    use std::collections::{HashMap, HashSet};
    use std::future::{Future, poll_fn};
    use std::io::{self, ErrorKind};
    use std::ops::Range;
    use std::os::unix::net::UnixListener;
    use std::path::Path;
    use std::pin::pin;
    use std::process::Stdio;
    use std::sync::Arc;
    use std::task::{Context, Poll, Waker};
    use std::thread::JoinHandle;
    use std::time::{Duration, Instant};

    use atrace::perfetto::{self, Recording};
    use atrace_cli::service::{Service, Storage};
    use atrace_subscriber::{AsyncSpans, AtraceLayer, AtraceSubscriber};
    use tracing::field::Empty;
    use tracing::{Dispatch, Instrument as _, Span, info, info_span};
    use tracing_subscriber::prelude::*;

    use crate::common::{self, case};
    use crate::trace::{Event, Trace, WRONG, processed};

    /// A slice on a named track, as a reader of the trace sees it.
    #[derive(Clone, Debug)]
    struct Life {
        name: String,
        track: u64,
        begin: u64,
        end: Option<u64>,
        args: HashMap<String, String>,
        flows: Vec<u64>,
        /// The number of the span whose life contains this life on the track.
        inside: Option<String>,
        process: u64,
    }

    impl Life {
        fn of(&self, arg: &str) -> &str {
            self.args.get(arg).map_or("", String::as_str)
        }

        fn span(&self) -> &str {
            self.of("span")
        }
    }

    /// Returns the slices of all named tracks as a reader builds them: events in the order of their times, and each
    /// end closes the innermost slice. Panics if an end has no begin.
    fn lives(events: &[Event]) -> Vec<Life> {
        let mut events: Vec<_> = events.iter().filter(|event| event.track.is_some()).collect();
        events.sort_by_key(|event| event.time);
        let (mut open, mut all) = (HashMap::<u64, Vec<usize>>::new(), Vec::<Life>::new());
        for event in events {
            let track = event.track.unwrap();
            let open = open.entry(track).or_default();
            match event.kind {
                1 => {
                    let inside = open.last().map(|outer| all[*outer].span().to_owned());
                    open.push(all.len());
                    all.push(Life {
                        name: event.name(),
                        track,
                        begin: event.time,
                        end: None,
                        args: event.args.iter().cloned().collect(),
                        flows: event.flows.clone(),
                        inside,
                        process: event.pid,
                    });
                }
                2 => {
                    let life = open.pop().unwrap_or_else(|| panic!("an end without a begin: {event:?}"));
                    all[life].end = Some(event.time);
                    all[life].args.extend(event.args.iter().cloned());
                }
                _ => {}
            }
        }
        all
    }

    fn named<'a>(lives: &'a [Life], name: &str) -> Vec<&'a Life> {
        lives.iter().filter(|life| life.name == name).collect()
    }

    /// Returns the begins of slices with this name on the tracks of threads.
    fn polls<'a>(events: &'a [Event], name: &str) -> Vec<&'a Event> {
        let is_poll = |event: &&Event| event.track.is_none() && event.kind == 1 && event.name() == name;
        events.iter().filter(is_poll).collect()
    }

    fn arg<'a>(event: &'a Event, name: &str) -> &'a str {
        event.args.iter().find(|(of, _)| of == name).map_or("", |(_, value)| value)
    }

    /// Runs `body` with each kind of subscriber. Returns the events and the lives of each trace.
    fn recorded(options: impl Fn(bool) -> Dispatch, body: impl Fn()) -> Vec<(Vec<Event>, Vec<Life>)> {
        recorded_and(options, body, |_| ())
    }

    /// Does the same as [`recorded`], and passes the path of each trace to `look`.
    fn recorded_and(
        options: impl Fn(bool) -> Dispatch,
        body: impl Fn(),
        look: impl Fn(&Path),
    ) -> Vec<(Vec<Event>, Vec<Life>)> {
        let directory = tempfile::tempdir().unwrap();
        [true, false]
            .map(|is_alone| {
                let path = directory.path().join(format!("trace {is_alone}"));
                let is_recorded = || {
                    let recording = begin(&path);
                    tracing::dispatcher::with_default(&options(is_alone), &body);
                    is_whole(recording)
                };
                assert!(TRIES.clone().any(|_| is_recorded()), "each recording lacks an event");
                assert_eq!(perfetto::status().lost(), 0);
                look(&path);
                let events = Trace::open(&path).events();
                let lives = lives(&events);
                (events, lives)
            })
            .into()
    }

    /// The tries of a recording. A try fails if a thread in the middle of an event is not scheduled for a second, which
    /// hardly happens this often in a row.
    const TRIES: Range<u32> = 0..20;

    /// Begins to record into the file at `path`.
    fn begin(path: &Path) -> Recording {
        let mut begun = TRIES.clone().map(|_| perfetto::record_to(path));
        // A thread may still be in the middle of an event of the previous recording.
        let is_settled =
            |begun: &io::Result<_>| !begun.as_ref().is_err_and(|e| e.kind() == ErrorKind::TimedOut);
        begun.find(is_settled).expect("no thread stays in an event").unwrap()
    }

    /// Returns whether the watch thread is asleep or does not exist. The watch thread begins the lives of spans that
    /// hang. If it was preempted after it had begun a life, it ends that life when it runs again, if the span was
    /// closed meanwhile.
    fn is_watch_idle() -> bool {
        let threads = std::fs::read_dir("/proc/self/task").unwrap();
        let mut states =
            threads.filter_map(|it| std::fs::read_to_string(it.unwrap().path().join("stat")).ok());
        states.all(|state| !state.contains("(atrace-watch)") || state.contains("(atrace-watch) S "))
    }

    /// Ends the recording. Returns false if the recording lacks an event, because a thread that was in the middle of the
    /// event was not scheduled.
    fn is_whole(recording: Recording) -> bool {
        common::until("the watch sleeps", is_watch_idle);
        let ended = recording.finish();
        let is_stuck = ended.as_ref().is_err_and(|e| e.kind() == ErrorKind::TimedOut);
        assert!(ended.is_ok() || is_stuck, "{ended:?}");
        !is_stuck
    }

    /// The shortest time after which an unchanged span may count as hanging, so that its life begins: half the time
    /// between two ticks of the watch thread, because one of the ticks may be late.
    const SHORTEST_HANG: Duration = Duration::from_millis(25);

    /// Calls `make`, which makes spans. Sets `is_slow` if that took so long that a span may count as hanging, because
    /// the thread was not scheduled.
    fn swiftly(is_slow: &Cell<bool>, make: impl FnOnce()) {
        let start = Instant::now();
        make();
        is_slow.set(is_slow.get() || start.elapsed() >= SHORTEST_HANG);
    }

    /// Runs the test case in a new process, again and again, until it was so fast that no span can have hung.
    fn run_swiftly(case: &str) {
        common::until("no span has hung", || !common::Place::file().run(case).stdout.contains("SLOW"));
    }

    fn by_default(is_alone: bool) -> Dispatch {
        if is_alone {
            Dispatch::new(AtraceSubscriber::default())
        } else {
            Dispatch::new(tracing_subscriber::registry().with(AtraceLayer::default()))
        }
    }

    fn with(mode: AsyncSpans) -> impl Fn(bool) -> Dispatch {
        move |is_alone| {
            if is_alone {
                Dispatch::new(AtraceSubscriber::default().with_async_spans("", mode))
            } else {
                let layer = AtraceLayer::default().with_async_spans("", mode);
                Dispatch::new(tracing_subscriber::registry().with(layer))
            }
        }
    }

    fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    /// Returns a future that is ready at its `times`th poll, and pending before.
    async fn pend(mut times: u32) {
        poll_fn(|_| {
            times = times.saturating_sub(1);
            if times == 0 { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Runs a future to its end on this thread.
    fn finish<F: Future>(future: F) -> F::Output {
        let mut future = pin!(future);
        loop {
            if let Poll::Ready(output) = poll(future.as_mut()) {
                return output;
            }
        }
    }

    async fn request(number: u32) {
        pend(2).instrument(info_span!("acquire")).await;
        pend(3).instrument(info_span!("query", number)).await;
        std::future::ready(()).instrument(info_span!("answer")).await;
    }

    #[test]
    fn a_life_is_one_slice_with_its_children_below_and_its_polls_on_threads() {
        let name = case!({
            for (events, lives) in recorded(by_default, || {
                for number in 0..20 {
                    let future = request(number).instrument(info_span!("request", number));
                    finish(future);
                }
            }) {
                assert_eq!(lives.len(), 20 * 4, "{lives:#?}");
                let tracks: HashSet<_> = lives.iter().map(|life| life.track).collect();
                assert_eq!(tracks.len(), 1);
                let mut ids = HashSet::new();
                for request in named(&lives, "request") {
                    assert!(request.inside.is_none() && ids.insert(request.span()), "{request:#?}");
                    assert_eq!((request.of("parent"), request.of("level")), ("", "INFO"));
                    let children: Vec<_> =
                        lives.iter().filter(|life| life.of("parent") == request.span()).collect();
                    let names: Vec<_> = children.iter().map(|life| &*life.name).collect();
                    assert_eq!(names, ["acquire", "query", "answer"]);
                    for child in &children {
                        assert_eq!(child.inside.as_deref(), Some(request.span()));
                        assert!(request.begin < child.begin && child.end < request.end);
                    }
                    assert_eq!(children[1].of("number"), request.of("number"));
                    // Every poll of the future, and its drop, is a slice on a thread. An arrow leads to each of these
                    // slices.
                    let of_request: Vec<_> = polls(&events, "request")
                        .into_iter()
                        .filter(|poll| arg(poll, "span") == request.span())
                        .collect();
                    assert_eq!(of_request.len(), 5);
                    assert!(of_request[0].time >= request.begin);
                    assert!(
                        of_request.iter().all(|poll| poll.flows == request.flows && poll.flows.len() == 1)
                    );
                }
                assert_eq!(ids.len(), 20);
                for (name, count) in [("request", 5), ("acquire", 3), ("query", 4), ("answer", 2)] {
                    assert_eq!(polls(&events, name).len(), 20 * count, "{name}");
                    assert!(polls(&events, name).iter().all(|poll| !arg(poll, "span").is_empty()), "{name}");
                }
            }
        });
        common::Place::file().run(&name);
    }

    #[test]
    fn a_synchronous_span_has_no_life() {
        let name = case!({
            let is_slow = Cell::new(false);
            let all = recorded(by_default, || {
                for number in 0..1000 {
                    swiftly(&is_slow, || {
                        let _outer = info_span!("outer").entered();
                        let _with = info_span!("with fields", number).entered();
                        let span = info_span!("in scope");
                        span.in_scope(|| info_span!("inner", number).in_scope(|| info!("event")));
                    });
                }
            });
            if is_slow.get() {
                return println!("SLOW");
            }
            for (events, lives) in all {
                assert!(lives.is_empty(), "{lives:#?}");
                for name in ["outer", "with fields", "in scope", "inner"] {
                    let all = polls(&events, name);
                    assert_eq!(all.len(), 1000);
                    // The first 16 spans may have numbers, until the callsite's spans are presumed to be synchronous.
                    let plain = &all[16..];
                    let is_identified = |poll: &&&Event| !arg(poll, "span").is_empty();
                    assert_eq!(plain.iter().filter(is_identified).count(), 0, "{name}");
                }
            }
        });
        run_swiftly(&name);
    }

    /// Tests that every asynchronous span has a life, whatever the earlier spans of its callsite were. A synchronous
    /// span has a life only if the last span of its callsite was asynchronous.
    #[test]
    fn a_span_is_what_it_does_not_what_its_callsite_did() {
        let name = case!({
            let make = |number: u32| info_span!("either", number);
            let is_slow = Cell::new(false);
            let pass = |number| swiftly(&is_slow, || make(number).in_scope(|| ()));
            let all = recorded(by_default, || {
                (0..100).for_each(pass);
                finish(pend(3).instrument(make(100)));
                (101..200).for_each(pass);
                finish(pend(3).instrument(make(200)));
                pass(201);
            });
            if is_slow.get() {
                return println!("SLOW");
            }
            for (events, lives) in all {
                let shown: Vec<_> = named(&lives, "either").iter().map(|life| life.of("number")).collect();
                // The spans 101 and 201 have lives, too, because each of them came right after an asynchronous span.
                assert_eq!(shown, ["100", "101", "200", "201"]);
                assert!(lives.iter().all(|life| life.end.is_some() && life.track == lives[0].track));
                let identified: Vec<_> = polls(&events, "either")
                    .into_iter()
                    .filter(|poll| arg(poll, "number") == "200")
                    .collect();
                assert_eq!(identified.len(), 4);
                assert!(identified[1..].iter().all(|poll| arg(poll, "span") == lives[2].span()));
            }
        });
        run_swiftly(&name);
    }

    /// Tests a callsite without fields whose spans are presumed to be synchronous: one of 1024 of these spans is
    /// watched, so lives begin again when the spans become asynchronous.
    #[test]
    fn a_callsite_without_fields_that_becomes_asynchronous_has_lives_again() {
        let name = case!({
            let make = || info_span!("becomes asynchronous");
            for (_, lives) in recorded(by_default, || {
                (0..100).for_each(|_| make().in_scope(|| ()));
                (0..3000).for_each(|_| finish(pend(3).instrument(make())));
            }) {
                assert!(lives.len() >= 1900, "{} lives", lives.len());
                assert!(lives.iter().all(|life| life.end.is_some()));
            }
        });
        common::Place::file().run(&name);
    }

    #[test]
    fn a_life_begins_with_its_span_not_with_its_first_poll() {
        let name = case!({
            for (events, lives) in recorded(by_default, || {
                let future = pend(2).instrument(info_span!("queued"));
                info!("between");
                finish(future);
            }) {
                let [life] = &lives[..] else { panic!("{lives:#?}") };
                let between = events.iter().find(|event| event.kind == 3).unwrap();
                assert!(life.begin < between.time && between.time < polls(&events, "queued")[0].time);
            }
        });
        common::Place::file().run(&name);
    }

    #[test]
    fn siblings_that_overlap_have_lanes_that_are_used_again() {
        let name = case!({
            for (_, lives) in recorded(by_default, || {
                for _ in 0..50 {
                    let both = async {
                        let (mut one, mut other) = (
                            pin!(pend(3).instrument(info_span!("one"))),
                            pin!(pend(5).instrument(info_span!("other"))),
                        );
                        let mut done = (false, false);
                        poll_fn(|context| {
                            done.0 = done.0 || one.as_mut().poll(context).is_ready();
                            done.1 = done.1 || other.as_mut().poll(context).is_ready();
                            if done == (true, true) { Poll::Ready(()) } else { Poll::Pending }
                        })
                        .await;
                    };
                    finish(both.instrument(info_span!("parent")));
                }
            }) {
                assert_eq!(lives.len(), 150);
                let tracks: HashSet<_> = lives.iter().map(|life| life.track).collect();
                assert_eq!(tracks.len(), 2);
                let parents: HashMap<_, _> =
                    named(&lives, "parent").iter().map(|life| (life.span(), life.track)).collect();
                for child in lives.iter().filter(|life| life.name != "parent") {
                    let is_below = child.track == parents[child.of("parent")];
                    assert_eq!(child.inside.is_some(), is_below, "{child:#?}");
                    assert!(child.end.is_some());
                }
            }
        });
        common::Place::file().run(&name);
    }

    /// Runs sixteen requests at a time, on four threads. The life of each query refers to the life of its request as its
    /// parent, and there are at most twice as many lanes as there are requests at the same time.
    #[test]
    fn lanes_follow_concurrency_and_parents_are_found_by_numbers() {
        const REQUESTS: u32 = 500;
        const AT_ONCE: usize = 16;
        let name = case!({
            let body = || {
                let dispatch = tracing::dispatcher::get_default(Clone::clone);
                let runtime = tokio::runtime::Builder::new_multi_thread()
                    .worker_threads(4)
                    .enable_time()
                    .on_thread_start(move || std::mem::forget(tracing::dispatcher::set_default(&dispatch)))
                    .build()
                    .unwrap();
                runtime.block_on(async {
                    let permits = Arc::new(tokio::sync::Semaphore::new(AT_ONCE));
                    let mut tasks = Vec::new();
                    for number in 0..REQUESTS {
                        let permit = Arc::clone(&permits).acquire_owned().await.unwrap();
                        let request = async move {
                            for query in 0..3 {
                                let wait = async {
                                    tokio::task::yield_now().await;
                                    tokio::time::sleep(Duration::from_micros(100)).await;
                                };
                                wait.instrument(info_span!("db.query", number, query)).await;
                            }
                            info_span!("render").in_scope(|| ());
                        };
                        let request = request.instrument(info_span!(parent: None, "request", number));
                        tasks.push(tokio::spawn(async move {
                            request.await;
                            drop(permit);
                        }));
                    }
                    for task in tasks {
                        task.await.unwrap();
                    }
                });
            };
            // Combines the queries of docs/perfetto.md into one query.
            let joined = "WITH life AS MATERIALIZED (SELECT s.*, extract_arg(arg_set_id, 'debug.span') AS span,
                extract_arg(arg_set_id, 'debug.parent') AS parent FROM slice s JOIN process_track t ON t.id = s.track_id)
                SELECT count(), sum(q.depth = 1), sum(q.dur > 0 AND q.ts + q.dur < r.ts + r.dur)
                FROM life q JOIN life r ON r.span = q.parent WHERE q.name = 'db.query' AND r.name = 'request'";
            let look = |path: &Path| {
                let Some(answers) = processed(path, &[WRONG, joined]) else { return };
                assert!(answers[0].ends_with("\"rows\":[]}"), "{answers:?}");
                let all = 3 * REQUESTS;
                assert!(answers[1].ends_with(&format!("\"rows\":[[{all},{all},{all}]]}}")), "{answers:?}");
            };
            for (events, lives) in recorded_and(by_default, body, look) {
                let requests: HashMap<_, _> =
                    named(&lives, "request").into_iter().map(|life| (life.span(), life)).collect();
                assert_eq!(requests.len(), REQUESTS as usize);
                let queries = named(&lives, "db.query");
                assert_eq!(queries.len(), 3 * REQUESTS as usize);
                for query in queries {
                    assert_eq!(requests[query.of("parent")].of("number"), query.of("number"));
                    assert!(query.end.is_some() && query.end < requests[query.of("parent")].end);
                }
                let tracks: HashSet<_> = lives.iter().map(|life| life.track).collect();
                assert!(tracks.len() <= AT_ONCE * 2, "{}", tracks.len());
                let spans: HashSet<_> = lives.iter().map(Life::span).collect();
                for name in ["request", "db.query"] {
                    assert!(polls(&events, name).iter().all(|poll| spans.contains(arg(poll, "span"))));
                }
            }
        });
        common::Place::file().run(&name);
    }

    #[test]
    fn modes_choose_threads_lives_or_both() {
        let name = case!({
            let body = || {
                finish(pend(3).instrument(info_span!("async")));
                info_span!("sync").in_scope(|| ());
                info_span!("tracked", atrace.track = "requests").in_scope(|| ());
            };
            for (mode, on_threads, as_lives) in [
                (AsyncSpans::Never, [4, 1, 1], [0, 0, 1]),
                (AsyncSpans::Beside, [4, 1, 1], [1, 0, 1]),
                (AsyncSpans::Instead, [0, 0, 0], [1, 1, 1]),
            ] {
                for (events, lives) in recorded(with(mode), body) {
                    let names = ["async", "sync", "tracked"];
                    assert_eq!(names.map(|name| polls(&events, name).len()), on_threads, "{mode:?}");
                    assert_eq!(names.map(|name| named(&lives, name).len()), as_lives, "{mode:?}");
                    assert!(lives.iter().all(|life| life.end.is_some()));
                }
            }
        });
        common::Place::file().run(&name);
    }

    /// Tests spans that the program uses in other ways than by polls of futures.
    #[test]
    fn lives_nest_and_end_whatever_is_done() {
        let name = case!({
            for (_, lives) in recorded(by_default, || {
                // Makes a parent whose child outlives the handles of the parent.
                let parent = info_span!("parent", later = Empty);
                parent.in_scope(|| ());
                let child = parent.in_scope(|| info_span!("child"));
                (0..2).for_each(|_| child.in_scope(|| ()));
                parent.record("later", 7);
                drop(parent);
                std::thread::spawn(move || {
                    child.in_scope(|| ());
                    drop(child);
                })
                .join()
                .unwrap();
                // Makes a span with an explicit parent, which is never entered, and a span without a parent, which
                // follows from another span.
                let root = info_span!("root");
                let below = info_span!(parent: &root, "below");
                below.in_scope(|| ());
                below.in_scope(|| ());
                let apart = root.in_scope(|| info_span!(parent: None, "apart", n = 1));
                apart.follows_from(&below);
                apart.in_scope(|| ());
                apart.in_scope(|| ());
                drop((root, below, apart));
                // Makes a span that several threads enter at once.
                let shared = info_span!("shared");
                std::thread::scope(|scope| {
                    for _ in 0..4 {
                        let dispatch = tracing::dispatcher::get_default(Clone::clone);
                        let shared = &shared;
                        scope.spawn(move || {
                            tracing::dispatcher::with_default(&dispatch, || {
                                (0..100).for_each(|_| shared.in_scope(|| ()));
                            });
                        });
                    }
                });
            }) {
                let all = ["parent", "child", "root", "below", "apart", "shared"];
                let of = |name: &str| match named(&lives, name)[..] {
                    [life] => life,
                    _ => panic!("{name}: {lives:#?}"),
                };
                assert_eq!(lives.len(), all.len());
                assert!(lives.iter().all(|life| life.end.is_some()));
                assert_eq!(of("child").inside.as_deref(), Some(of("parent").span()));
                assert_eq!(of("parent").of("later"), "7");
                assert_eq!(of("below").of("parent"), of("root").span());
                assert_eq!(of("below").inside.as_deref(), Some(of("root").span()));
                assert_eq!((of("apart").of("parent"), of("apart").inside.is_none()), ("", true));
                assert!(of("shared").inside.is_none());
            }
        });
        common::Place::file().run(&name);
    }

    /// Tests a session that begins while a span is alive: the session does not get the end of the span's life.
    #[test]
    fn a_life_ends_only_where_it_began() {
        let name = case!({
            let directory = tempfile::tempdir().unwrap();
            let record = |name: &str| begin(&directory.path().join(name));
            let lives = |name: &str| lives(&Trace::open(&directory.path().join(name)).events());
            let (is_retry, may_be_begun) = (Cell::new(false), Cell::new(false));
            let record_both = || {
                let before = info_span!("before");
                let first = record("first");
                let during = info_span!("during", n = 1);
                (0..2).for_each(|_| during.in_scope(|| ()));
                (0..2).for_each(|_| before.in_scope(|| ()));
                let unknown = info_span!("unknown", n = 1);
                unknown.in_scope(|| ());
                let left = Instant::now();
                let is_first_whole = is_whole(first);
                may_be_begun.set(is_retry.replace(true) || left.elapsed() >= SHORTEST_HANG);
                let second = record("second");
                (0..2).for_each(|_| during.in_scope(|| ()));
                drop((before, during));
                let other = info_span!("other", n = 1);
                (0..2).for_each(|_| other.in_scope(|| ()));
                drop((other, unknown));
                is_whole(second) && is_first_whole
            };
            let is_recorded =
                tracing::dispatcher::with_default(&by_default(true), || TRIES.clone().any(|_| record_both()));
            assert!(is_recorded, "each recording lacks an event");
            let shown = |lives: Vec<Life>| -> Vec<_> {
                lives.into_iter().map(|life| (life.name, life.end.is_some())).collect()
            };
            let [first, second] = ["first", "second"].map(|name| shown(lives(name)));
            let [during, other] =
                [("during", false), ("other", true)].map(|(name, ended)| (name.to_owned(), ended));
            let unknown = |ended| ("unknown".to_owned(), ended);
            if first.len() == 1 {
                // The span `unknown` began before the second session, but its life is first shown in that session.
                assert_eq!((first, second), (vec![during], vec![unknown(true), other]));
            } else {
                // The end of the first session took so long that the span `unknown` hung, or, in a retry, the callsite
                // is already known to be asynchronous.
                assert!(may_be_begun.get());
                assert_eq!((first, second), (vec![during, unknown(false)], vec![other]));
            }
        });
        common::Place::file().run(&name);
    }

    /// Tests a span that is entered while the tag is off. In the span stack, it has the place of a span without slices
    /// that the thread has left, which must not count as a parent.
    #[test]
    fn a_span_that_was_left_is_no_parent() {
        let name = case!({
            let directory = tempfile::tempdir().unwrap();
            let record = |name: &str| perfetto::record_to(directory.path().join(name)).unwrap();
            let dispatch = with(AsyncSpans::Instead)(true);
            tracing::dispatcher::with_default(&dispatch, || {
                let first = record("first");
                let left = info_span!("left", n = 1);
                left.in_scope(|| ());
                first.finish().unwrap();
                let unseen = info_span!("unseen");
                let _unseen = unseen.enter();
                let second = record("second");
                finish(pend(2).instrument(info_span!("root")));
                let outer = info_span!("outer");
                outer.in_scope(|| finish(pend(2).instrument(info_span!("inner"))));
                let on_track = info_span!("on a track", atrace.track = "track");
                on_track.in_scope(|| finish(pend(2).instrument(info_span!("below"))));
                drop((outer, left, on_track));
                second.finish().unwrap();
            });
            let lives = lives(&Trace::open(&directory.path().join("second")).events());
            let parents: Vec<_> = lives.iter().map(|life| (&*life.name, life.of("parent"))).collect();
            let span = |name| named(&lives, name)[0].span();
            let expected = [
                ("root", ""),
                ("outer", ""),
                ("inner", span("outer")),
                ("on a track", ""),
                ("below", span("on a track")),
            ];
            assert_eq!(parents, expected);
        });
        common::Place::file().run(&name);
    }

    fn at_once(path: &Path) -> (Recording, Option<JoinHandle<()>>) {
        (begin(path), None)
    }

    /// Creates a span that is entered and left once, and a span that is never entered. After that, waits until the
    /// lives of both spans are in the trace. `record` begins a recording into the file at the given path; the file is
    /// complete when the thread that `record` may return has ended.
    fn wait_for_idle_lives(
        dispatch: &Dispatch,
        record: impl Fn(&Path) -> (Recording, Option<JoinHandle<()>>),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let mut wait = Duration::from_millis(100);
        for _ in TRIES {
            let path = directory.path().join("trace");
            let (recording, copy) = record(&path);
            let new = || (info_span!("hangs"), info_span!("waits", n = 1));
            let (span, waits) = tracing::dispatcher::with_default(dispatch, new);
            span.in_scope(|| ());
            std::thread::sleep(wait);
            let is_whole = is_whole(recording);
            copy.into_iter().for_each(|copy| copy.join().unwrap());
            let lives = lives(&Trace::open(&path).events());
            assert!(lives.iter().all(|life| life.end.is_none()));
            drop((span, waits));
            if !is_whole {
                continue;
            }
            if lives.len() == 2 {
                return;
            }
            assert!(wait < Duration::from_secs(30), "{lives:?}");
            wait *= 2;
        }
        panic!("each recording lacks an event");
    }

    /// Tests a thread that has left a span and does nothing more: the life of the span is in the trace nevertheless.
    #[test]
    fn the_life_of_a_span_that_hangs_is_in_the_trace() {
        let name = case!({
            wait_for_idle_lives(&by_default(true), at_once);
        });
        common::Place::file().run(&name);
    }

    #[test]
    fn the_life_of_a_span_that_hangs_is_in_the_trace_if_only_its_target_has_lives() {
        let name = case!({
            let subscriber = AtraceSubscriber::default()
                .with_async_spans(module_path!(), AsyncSpans::Beside)
                .with_async_spans("", AsyncSpans::Never);
            wait_for_idle_lives(&subscriber.into(), at_once);
        });
        common::Place::file().run(&name);
    }

    /// Tests a recording that begins slowly, because its file is a pipe that nobody reads yet. The watch thread, which
    /// looks for spans that hang, must not look for a session too early, find none, and then sleep.
    #[test]
    fn the_life_of_a_span_that_hangs_is_in_a_recording_that_begins_slowly() {
        let name = case!({
            wait_for_idle_lives(&by_default(true), |path| {
                let pipe = path.with_extension("pipe");
                let name = std::ffi::CString::new(pipe.as_os_str().as_encoded_bytes()).unwrap();
                // SAFETY: the name is a C string.
                assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
                let mut file = std::fs::File::create(path).unwrap();
                let reader = pipe.clone();
                let copy = std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_millis(300));
                    let mut reader = std::fs::File::open(&reader).unwrap();
                    std::io::copy(&mut reader, &mut file).unwrap();
                });
                let recording = at_once(&pipe);
                std::fs::remove_file(&pipe).unwrap();
                (recording.0, Some(copy))
            });
        });
        common::Place::file().run(&name);
    }

    /// Records a test case by a service, kills the case's process after it was idle for the time `idle`, and returns
    /// the trace.
    fn killed(case: &str, idle: Duration) -> Trace {
        let place = common::Place::file();
        let socket = place.path("socket");
        let (listener, file) =
            (UnixListener::bind(&socket).unwrap(), std::fs::File::create(place.path("trace")).unwrap());
        // SAFETY: no preconditions.
        let user = unsafe { libc::geteuid() };
        let service = Service::start(listener, user, Storage::File { file, max: None }).unwrap();
        let mut command = place.command(case);
        command
            .env("PERFETTO_PRODUCER_SOCK_NAME", &socket)
            .env("ATRACE_BACKEND", "perfetto")
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
        assert!(lines.any(|line| line.unwrap().contains("LEFT")), "the program has not written");
        std::thread::sleep(idle);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(service.finish().lost.len(), 0);
        Trace::open(Path::new(&place.path("trace")))
    }

    #[test]
    fn a_span_that_was_polled_once_is_in_the_trace_of_a_killed_program() {
        let name = case!({
            tracing::subscriber::set_global_default(AtraceSubscriber::default().with_filter()).unwrap();
            common::until("a session is open", || perfetto::status().sessions() > 0);
            let mut parent = Span::none();
            common::until("the filter has followed", || {
                parent = info_span!("parent", n = 1);
                !parent.is_none() && !parent.is_disabled()
            });
            let mut future = pin!(pend(2).instrument(parent.in_scope(|| info_span!("polled once"))));
            assert!(poll(future.as_mut()).is_pending());
            println!("LEFT");
            loop {
                std::thread::sleep(Duration::from_secs(100));
            }
        });
        let mut idle = Duration::from_millis(150);
        loop {
            let lives = lives(&killed(&name, idle).events());
            let is_there = |name| named(&lives, name).iter().any(|life| life.end.is_none());
            if is_there("polled once") && is_there("parent") {
                let (child, parent) = (named(&lives, "polled once")[0], named(&lives, "parent")[0]);
                assert_eq!(child.of("parent"), parent.span());
                return;
            }
            assert!(idle < Duration::from_secs(30), "{lives:#?}");
            idle *= 2;
        }
    }

    /// A layer that holds a reference to the span `child` during the callback that reports the close of the span
    /// `other`.
    struct Holding(Arc<Holder>);

    struct Holder {
        child: std::sync::Mutex<Option<tracing::span::Id>>,
        step: std::sync::Barrier,
    }

    impl<S> tracing_subscriber::Layer<S> for Holding
    where
        S: tracing::Subscriber + for<'a> tracing_subscriber::registry::LookupSpan<'a>,
    {
        fn on_new_span(
            &self,
            attributes: &tracing::span::Attributes<'_>,
            id: &tracing::span::Id,
            _: tracing_subscriber::layer::Context<'_, S>,
        ) {
            if attributes.metadata().name() == "child" {
                *self.0.child.lock().unwrap() = Some(id.clone());
            }
        }

        fn on_close(&self, id: tracing::span::Id, context: tracing_subscriber::layer::Context<'_, S>) {
            if context.metadata(&id).unwrap().name() == "other" {
                let child = self.0.child.lock().unwrap().take().unwrap();
                let _held = context.span(&child).unwrap();
                self.0.step.wait();
                // Between the two waits, the main thread closes the span `child` and its parent.
                self.0.step.wait();
            }
        }
    }

    /// Tests a span whose data the registry does not drop, because the span closes while the registry reports, on the
    /// same thread, that another span closes.
    #[test]
    fn a_life_ends_though_another_layer_held_a_child_of_its_span() {
        let name = case!({
            for is_presumed_sync in [false, true] {
                let directory = tempfile::tempdir().unwrap();
                let path = directory.path().join("trace");
                let recording = begin(&path);
                let step = std::sync::Barrier::new(2);
                let holder = Arc::new(Holder { child: std::sync::Mutex::new(None), step });
                let layer = Holding(Arc::clone(&holder));
                let dispatch =
                    Dispatch::new(tracing_subscriber::registry().with(layer).with(AtraceLayer::default()));
                tracing::dispatcher::with_default(&dispatch, || {
                    let parent = info_span!("parent", n = 1);
                    parent.in_scope(|| ());
                    let child = parent.in_scope(|| info_span!("child", n = 2));
                    if !is_presumed_sync {
                        (0..2).for_each(|_| child.in_scope(|| ()));
                    }
                    std::thread::scope(|scope| {
                        scope.spawn(|| {
                            tracing::dispatcher::with_default(&dispatch, || drop(info_span!("other")));
                        });
                        holder.step.wait();
                        drop((child, parent));
                        holder.step.wait();
                    });
                    // Waits for so long that the watch thread would begin the lives of spans that hang. It must not
                    // begin the life of a closed span.
                    std::thread::sleep(Duration::from_millis(if is_presumed_sync { 600 } else { 0 }));
                });
                recording.finish().unwrap();
                let lives = lives(&Trace::open(&path).events());
                assert!(lives.iter().all(|life| life.end.is_some()), "{lives:#?}");
                assert_eq!(named(&lives, "parent").len(), 1, "{lives:#?}");
                drop(dispatch);
            }
        });
        common::Place::file().run(&name);
    }

    /// Tests that a forked child, which has copies of its parent's spans, does not end the lives of these spans in the
    /// trace.
    #[test]
    fn a_child_ends_no_life_of_its_parents() {
        let name = case!({
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("child");
            tracing::subscriber::set_global_default(AtraceSubscriber::default()).unwrap();
            let recording = perfetto::record_to(directory.path().join("parent")).unwrap();
            let begun = info_span!("begun");
            (0..2).for_each(|_| begun.in_scope(|| ()));
            let unknown = info_span!("unknown");
            unknown.in_scope(|| ());
            // The child has no copy of the thread that would close this span.
            let (other, (done, end)) = (info_span!("of another thread"), std::sync::mpsc::channel::<()>());
            let other = std::thread::spawn(move || {
                other.in_scope(|| ());
                let _ = end.recv();
            });
            let child = common::fork();
            if child == 0 {
                let recording = perfetto::record_to(&path).unwrap();
                drop((begun, unknown));
                finish(pend(3).instrument(info_span!("own")));
                std::thread::sleep(Duration::from_millis(600)); // A hanging span's life begins earlier.
                recording.finish().unwrap();
                // SAFETY: no preconditions.
                unsafe { libc::_exit(0) };
            }
            let mut status = 0;
            // SAFETY: `status` is writable.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0);
            drop((begun, unknown, done));
            other.join().unwrap();
            recording.finish().unwrap();
            let of_parent = lives(&Trace::open(&directory.path().join("parent")).events());
            let names: HashSet<_> = of_parent.iter().map(|life| (&*life.name, life.end.is_some())).collect();
            assert!(names.contains(&("begun", true)), "{of_parent:#?}");
            let of_child = lives(&Trace::open(&path).events());
            assert!(of_child.iter().all(|life| life.name != "begun" && life.end.is_some()), "{of_child:#?}");
            assert_eq!(named(&of_child, "own").len(), 1);
            assert!(of_child.iter().all(|life| life.process != of_parent[0].process));
        });
        common::Place::file().run(&name);
    }
}
