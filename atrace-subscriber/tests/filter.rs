//! Tests filters: the interest cache of `tracing` follows the switches of tracing.

mod common;
#[allow(dead_code, unreachable_pub, reason = "this module is shared with the tests in `crates/real-service`")]
#[path = "../../crates/real-service/src/trace.rs"]
mod trace;

use std::io::{self, Read as _, Write as _};
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

#[cfg(target_os = "linux")]
use atrace::AtraceTag;
#[cfg(target_os = "linux")]
use atrace::tracer::{only_atrace, only_perfetto};
use atrace_subscriber::{AtraceFilter, AtraceLayer, AtraceSubscriber};
use common::{
    Place, Role, case, each_role, filtered, install_filtered, off_in_each_role, on, settled, until,
};
use tracing::callsite::{Callsite, Identifier};
use tracing::field::FieldSet;
use tracing::level_filters::LevelFilter;
use tracing::metadata::Kind;
use tracing::subscriber::Interest;
use tracing::{Dispatch, Level, Metadata, Span, debug, enabled, info, info_span};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

use crate::trace::Trace;

/// Tests that callsites follow many switches, with each of three subscribers whose callsites cost nothing while tracing
/// is off: the subscriber alone; a layer over a registry, with a filter for this layer only; and a filter for the whole
/// stack, like AOSP's.

#[test]
fn switched_again_and_again_events_follow_at_once() {
    let name = case!({
        install_filtered();
        let mut took = Vec::new();
        for n in 0..30 {
            assert_eq!(LevelFilter::current(), LevelFilter::OFF);
            assert!(!enabled!(Level::ERROR));
            info!(n, "off");
            let span = info_span!("off", n);
            assert!(span.is_disabled());
            span.in_scope(|| ());
            let switched = on();
            took.push(settled(true));
            info!(n, "on");
            info_span!("on", n).in_scope(|| ());
            drop(switched);
            info!(n, "off");
            took.push(settled(false));
        }
        took.sort();
        println!("NOTE slowest switch {:?}", took[59]);
        // Checks only the median, because a busy machine may delay a single switch.
        assert!(took[30] < Duration::from_secs(1), "{took:?}");
    });
    off_in_each_role(&name, |_, texts| {
        let expected: Vec<_> =
            (0..30).flat_map(|n| [format!("I|on, n = {n}"), format!("B|on, n = {n}"), "E".into()]).collect();
        assert_eq!(texts, expected);
    });
}

#[test]
fn tracing_that_is_on_from_the_start_is_on_from_the_start() {
    let name = case!({
        let switched = on();
        install_filtered();
        info!("at once");
        drop(switched);
        settled(false);
        info!("off");
    });
    off_in_each_role(&name, |_, texts| assert_eq!(texts, ["I|at once"]));
}

#[test]
fn scoped_subscribers_follow_too_alone_and_among_others() {
    let name = case!({
        // `tracing` rebuilds the newest callsites first, and this callsite is the oldest. So once this callsite is off,
        // the rebuild for "off" is done with all callsites, and can't disable an event after the next switch.
        let is_on = || enabled!(Level::INFO);
        is_on();
        // Waits for this callsite, because another one may be enabled earlier, if a rebuild for "off" is still under
        // way at the next switch.
        let pass = |n| {
            let mut span = Span::none();
            until("on", || {
                span = info_span!("number", n);
                !span.is_disabled()
            });
            span.in_scope(|| ());
        };
        for others in [false, true] {
            // With one dispatcher, `tracing` queries only the default dispatcher of the thread that rebuilds the cache.
            // With several dispatchers, `tracing` queries all of them.
            let other = others.then(|| Dispatch::new(tracing::subscriber::NoSubscriber::new()));
            let dispatch = filtered();
            let _default = tracing::dispatcher::set_default(&dispatch);
            for n in 0..10 {
                assert!(!is_on());
                let switched = on();
                pass(n);
                drop(switched);
                until("off", || !is_on());
            }
            drop(other);
        }
        // Sets one subscriber after another on the same thread, so the watch ends and starts again.
        for n in 10..13 {
            let _default = tracing::dispatcher::set_default(&filtered());
            let switched = on();
            pass(n);
            drop(switched);
            until("off", || !is_on());
        }
        until("the watch is gone", || threads("atrace-watch") == 0);
    });
    off_in_each_role(&name, |_, texts| {
        let numbers = (0..10).chain(0..10).chain(10..13);
        let expected: Vec<_> = numbers.flat_map(|n| [format!("B|number, n = {n}"), "E".into()]).collect();
        assert_eq!(texts, expected);
    });
}

/// Tests that a filter for one backend ignores tags that are enabled for the other backend, and notices every switch
/// for its own backend.
#[test]
#[cfg(target_os = "linux")]
fn a_filter_of_one_backend_follows_that_backend_alone() {
    let name = case!({
        let filtered_by = |tag| -> Dispatch {
            let filter = AtraceFilter::new(tag);
            let alone = AtraceSubscriber::new(tag).with_filter();
            match common::role() {
                Role::Alone => alone.into(),
                Role::Layer => {
                    tracing_subscriber::registry().with(AtraceLayer::new(tag).with_filter(filter)).into()
                }
                Role::Aosp => tracing_subscriber::registry().with(alone).into(),
            }
        };
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("trace");
        let recorded = |text: &str| {
            let bytes = std::fs::read(&path).unwrap();
            bytes.windows(text.len()).any(|window| window == text.as_bytes())
        };
        // The sleep is long enough for an unwanted rebuild, which would take a millisecond.
        let stays = |on: bool| {
            std::thread::sleep(Duration::from_millis(100));
            assert_eq!(LevelFilter::current() != LevelFilter::OFF, on);
        };
        {
            let _default = tracing::dispatcher::set_default(&filtered_by(only_perfetto(AtraceTag::App)));
            let by_atrace = on();
            stays(false);
            info!("of ATrace only");
            let recording = atrace::perfetto::record_to(&path).unwrap();
            settled(true);
            info!("of both");
            drop(by_atrace);
            stays(true);
            recording.finish().unwrap();
            settled(false);
            assert!(recorded("of both") && !recorded("of ATrace only"));
        }
        let _default = tracing::dispatcher::set_default(&filtered_by(only_atrace(AtraceTag::App)));
        let recording = atrace::perfetto::record_to(&path).unwrap();
        stays(false);
        info!("of the recording only");
        let by_atrace = on();
        settled(true);
        info!("of both");
        recording.finish().unwrap();
        stays(true);
        drop(by_atrace);
        settled(false);
        assert!(!recorded("of "));
    });
    off_in_each_role(&name, |_, texts| assert_eq!(texts, ["I|of both"]));
}

/// Tests that no span is lost if the program itself switches tracing on, although another thread rebuilds the caches.
#[test]
fn a_switch_by_the_program_itself_takes_effect_at_once() {
    let name = case!({
        install_filtered();
        let directory = tempfile::tempdir().unwrap();
        for round in 0..20 {
            let path = directory.path().join("trace");
            let recording = atrace::perfetto::record_to(&path).unwrap();
            for _ in 0..3 {
                info_span!("work").in_scope(|| info!("step"));
            }
            recording.finish().unwrap();
            let events = Trace::open(&path).events();
            assert_eq!(events.len(), 9, "round {round}: {events:?}");
            settled(false);
        }
    });
    off_in_each_role(&name, |_, texts| assert!(texts.is_empty(), "{texts:?}"));
}

/// Returns the number of this process's threads with this name.
fn threads(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|other| other.trim() == name).count()
}

#[test]
fn without_a_watch_there_is_no_thread_and_every_event_asks() {
    let name = case!({
        let dispatch: Dispatch = match common::role() {
            Role::Alone => AtraceSubscriber::default().with(AtraceFilter::default().without_watch()).into(),
            Role::Layer => tracing_subscriber::registry()
                .with(AtraceLayer::default().with_filter(AtraceFilter::default().without_watch()))
                .into(),
            Role::Aosp => tracing_subscriber::registry()
                .with(AtraceSubscriber::default())
                .with(AtraceFilter::default().without_watch())
                .into(),
        };
        tracing::dispatcher::set_global_default(dispatch).unwrap();
        assert_eq!(threads("atrace-watch"), 0);
        for n in 0..3 {
            // A registry answers "enabled" even if the filter of a single layer rejects the event, which is dropped
            // later.
            assert!(!enabled!(Level::ERROR) || common::role() == Role::Layer);
            assert!(info_span!("off").is_disabled() || common::role() == Role::Layer);
            let _on = on();
            assert!(enabled!(Level::TRACE));
            info!(n);
        }
        assert_eq!(threads("atrace-watch"), 0);
    });
    off_in_each_role(&name, |_, texts| assert_eq!(texts, ["I|n = 0", "I|n = 1", "I|n = 2"]));
}

#[test]
fn the_level_of_log_follows() {
    let name = case!({
        use tracing_subscriber::util::SubscriberInitExt as _;
        match common::role() {
            Role::Alone => AtraceSubscriber::default().with_filter().init(),
            Role::Layer => {
                tracing_subscriber::registry()
                    .with(AtraceLayer::default().with_filter(AtraceFilter::default()))
                    .init();
            }
            Role::Aosp => {
                tracing_subscriber::registry().with(AtraceSubscriber::default().with_filter()).init()
            }
        }
        for n in 0..3 {
            assert_eq!(log::max_level(), log::LevelFilter::Off);
            log::error!("off {n}");
            let switched = on();
            until("log is on", || log::max_level() == log::LevelFilter::Trace);
            log::trace!("on {n}");
            assert!(log::log_enabled!(log::Level::Debug));
            drop(switched);
            until("log is off", || log::max_level() == log::LevelFilter::Off);
        }
        // The maximum level of `log` does not change if other code has set it.
        log::set_max_level(log::LevelFilter::Warn);
        let switched = on();
        settled(true);
        assert_eq!(log::max_level(), log::LevelFilter::Warn);
        drop(switched);
        settled(false);
        assert_eq!(log::max_level(), log::LevelFilter::Warn);
    });
    off_in_each_role(&name, |_, texts| assert_eq!(texts, ["I|on 0", "I|on 1", "I|on 2"]));
}

/// A layer that counts events and spans.
#[derive(Clone, Default)]
struct Other {
    events: Arc<AtomicUsize>,
    spans: Arc<AtomicUsize>,
}

impl Other {
    fn seen(&self) -> (usize, usize) {
        (self.events.load(Ordering::Relaxed), self.spans.load(Ordering::Relaxed))
    }
}

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Other {
    fn on_event(&self, _: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        self.events.fetch_add(1, Ordering::Relaxed);
    }

    fn on_new_span(
        &self,
        _: &tracing::span::Attributes<'_>,
        _: &tracing::Id,
        _: tracing_subscriber::layer::Context<'_, S>,
    ) {
        self.spans.fetch_add(1, Ordering::Relaxed);
    }
}

/// Writes an event and a span at each of two levels.
fn trace() {
    info!("info");
    debug!("debug");
    info_span!("info").in_scope(|| ());
    tracing::debug_span!("debug").in_scope(|| ());
}

#[test]
fn the_filter_of_a_layer_leaves_the_others_alone() {
    let name = case!({
        let (all, infos) = (Other::default(), Other::default());
        let filter = LevelFilter::INFO;
        tracing_subscriber::registry()
            .with(infos.clone().with_filter(filter))
            .with(AtraceLayer::default().with_filter(AtraceFilter::default()))
            .with((common::role() == Role::Alone).then(|| all.clone()))
            .try_init()
            .unwrap();
        let mut times = 0;
        for _ in 0..3 {
            trace();
            times += 1;
            // While tracing is off, DEBUG events are enabled only if the stack has the layer `all`.
            assert_eq!(enabled!(Level::DEBUG), common::role() == Role::Alone);
            let switched = on();
            until("on", || enabled!(Level::DEBUG) && LevelFilter::current() == LevelFilter::TRACE);
            trace();
            times += 1;
            drop(switched);
            let level = if common::role() == Role::Alone { LevelFilter::TRACE } else { LevelFilter::INFO };
            until("off", || LevelFilter::current() == level);
        }
        assert_eq!(infos.seen(), (times, times));
        if common::role() == Role::Alone {
            assert_eq!(all.seen(), (2 * times, 2 * times));
        }
    });
    off_in_each_role(&name, |_, texts| {
        assert_eq!(texts.join(" "), ["I|info I|debug B|info E B|debug E"; 3].join(" "));
    });
}

#[test]
fn the_filter_of_a_stack_silences_the_others_while_off() {
    let name = case!({
        let other = Other::default();
        let stack = tracing_subscriber::registry().with(other.clone());
        match common::role() {
            Role::Alone => {
                stack.with(LevelFilter::INFO).with(AtraceSubscriber::default().with_filter()).init()
            }
            Role::Layer => stack.with(AtraceLayer::default()).with(AtraceFilter::default()).init(),
            Role::Aosp => stack.with(AtraceSubscriber::default().with_filter()).init(),
        }
        // The callsites are rebuilt one after another. Only the counts of the layer `other` show when all of them are
        // rebuilt.
        let seen = || {
            let (events, spans) = other.seen();
            trace();
            let now = other.seen();
            (now.0 - events, now.1 - spans)
        };
        let all = if common::role() == Role::Alone { (1, 1) } else { (2, 2) };
        assert_eq!(seen(), (0, 0));
        for _ in 0..3 {
            let switched = on();
            until("on", || seen() == all);
            (0..5).for_each(|_| assert_eq!(seen(), all));
            drop(switched);
            until("silent while off", || seen() == (0, 0));
            (0..5).for_each(|_| assert_eq!(seen(), (0, 0)));
        }
    });
    off_in_each_role(&name, |role, texts| {
        let once = if role == Role::Alone { "I|info B|info E" } else { "I|info I|debug B|info E B|debug E" };
        let texts = texts.join(" ");
        assert!(texts.matches(once).count() >= 18, "{texts}");
    });
}

/// tokio-rs/tracing#2519: a layer whose filter's answers are cached misses a span if the program queried another
/// callsite just before, as `log_enabled!` does.
#[test]
fn no_span_is_missed_for_what_was_asked_before() {
    let name = case!({
        let kept = Other::default();
        let stack = tracing_subscriber::registry();
        let filter = AtraceFilter::default();
        let targets =
            Targets::new().with_default(LevelFilter::TRACE).with_target("elsewhere", LevelFilter::OFF);
        match common::role() {
            Role::Alone => stack.with(AtraceLayer::default().with_filter(filter)).init(),
            Role::Layer => {
                use tracing_subscriber::filter::FilterExt as _;
                stack.with(AtraceLayer::default().with_filter(filter.and(targets))).init();
            }
            // This test's own layer has a filter whose answers are cached, so the layer misses spans.
            Role::Aosp => {
                stack.with(kept.clone().with_filter(targets)).init();
            }
        }
        let _on = on();
        until("on", || LevelFilter::current() == LevelFilter::TRACE && enabled!(Level::INFO));
        log::set_max_level(log::LevelFilter::Trace);
        for n in 0..10 {
            let _ = log::log_enabled!(target: "elsewhere", log::Level::Info);
            let span = info_span!("span", n);
            let _inside = span.enter();
            let _ = log::log_enabled!(target: "elsewhere", log::Level::Info);
            info!("event");
        }
        if common::role() == Role::Aosp {
            let (_, spans) = kept.seen();
            println!("NOTE a filter whose answer is kept saw {spans} of 10 spans");
            assert!(spans < 10, "the layer of the test shows nothing");
        }
    });
    off_in_each_role(&name, |role, texts| {
        if role != Role::Aosp {
            let expected: Vec<_> =
                (0..10).flat_map(|n| [format!("B|span, n = {n}"), "I|event".into(), "E".into()]).collect();
            assert_eq!(texts, expected);
        }
    });
}

/// A callsite that is created at run time, and queried in the same way as the callsites of `tracing`'s
/// macros.
struct Made {
    interest: AtomicU8,
    metadata: OnceLock<Metadata<'static>>,
    /// A function that is called before an answer is stored.
    before: fn(),
}

const NEVER: u8 = 1;
const SOMETIMES: u8 = 2;
const ALWAYS: u8 = 3;

impl Callsite for Made {
    fn set_interest(&self, interest: Interest) {
        let interest = match interest {
            _ if interest.is_never() => NEVER,
            _ if interest.is_always() => ALWAYS,
            _ => SOMETIMES,
        };
        (self.before)();
        self.interest.store(interest, Ordering::SeqCst);
    }

    fn metadata(&self) -> &Metadata<'_> {
        self.metadata.get().unwrap()
    }
}

impl Made {
    fn new() -> &'static Self {
        Self::calling(|| ())
    }

    fn calling(before: fn()) -> &'static Self {
        let made: &'static Self =
            Box::leak(Box::new(Self { interest: AtomicU8::new(0), metadata: OnceLock::new(), before }));
        let fields = FieldSet::new(&[], Identifier(made));
        let metadata = Metadata::new("made", "here", Level::INFO, None, None, None, fields, Kind::EVENT);
        made.metadata.set(metadata).unwrap();
        made
    }

    /// Registers the callsite at the first call, like `tracing`'s macros. Returns whether an event would be written.
    fn is_enabled(&'static self) -> bool {
        if Level::INFO > LevelFilter::current() {
            return false;
        }
        if self.interest.load(Ordering::SeqCst) == 0 {
            tracing_core::callsite::register(self);
        }
        match self.interest.load(Ordering::SeqCst) {
            NEVER => false,
            ALWAYS => true,
            _ => tracing::dispatcher::get_default(|dispatch| dispatch.enabled(self.metadata.get().unwrap())),
        }
    }
}

#[test]
fn callsites_first_hit_while_it_is_switched_are_not_lost() {
    let name = case!({
        install_filtered();
        let stop = AtomicUsize::new(0);
        let made = std::sync::Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut mine = Vec::new();
                    while stop.load(Ordering::Relaxed) == 0 && mine.len() < 1500 {
                        let callsite = Made::new();
                        let _ = callsite.is_enabled();
                        mine.push(callsite);
                        std::thread::sleep(Duration::from_micros(50));
                    }
                    made.lock().unwrap().extend(mine);
                });
            }
            // Rebuilds the cache and creates a dispatcher again and again, as other code of a program may do.
            scope.spawn(|| {
                while stop.load(Ordering::Relaxed) == 0 {
                    tracing::callsite::rebuild_interest_cache();
                    drop(Dispatch::new(tracing::subscriber::NoSubscriber::new()));
                    std::thread::sleep(Duration::from_micros(500));
                }
            });
            for _ in 0..100 {
                let switched = on();
                std::thread::sleep(Duration::from_micros(700));
                drop(switched);
                std::thread::sleep(Duration::from_micros(700));
            }
            stop.store(1, Ordering::Relaxed);
        });
        let made = made.into_inner().unwrap();
        let _on = on();
        let took = until("all are enabled", || made.iter().all(|callsite| callsite.is_enabled()));
        println!("NOTE {} callsites, all enabled after {took:?}", made.len());
        std::thread::sleep(Duration::from_millis(1500));
        assert!(made.iter().all(|callsite| callsite.is_enabled()));
        if common::role() != Role::Layer {
            assert!(made.iter().all(|callsite| callsite.interest.load(Ordering::SeqCst) >= SOMETIMES));
        }
        info!("written");
    });
    off_in_each_role(&name, |_, texts| assert_eq!(texts, ["I|written"]));
}

thread_local! {
    /// A channel on which a thread waits before it stores an answer. The channel is set only on threads that are to be
    /// delayed.
    static STALL: std::cell::RefCell<Option<std::sync::mpsc::Receiver<()>>> =
        const { std::cell::RefCell::new(None) };
}

/// Tests a query that is answered long before a switch of tracing, and whose answer is stored long after the switch.
#[test]
fn an_answer_that_is_stored_late_does_not_stay() {
    let name = case!({
        install_filtered();
        let made = Made::calling(|| {
            if let Some(stalled) = STALL.take() {
                stalled.recv().unwrap();
            }
        });
        let (release, stalled) = std::sync::mpsc::channel();
        let asker = std::thread::spawn(move || {
            STALL.set(Some(stalled));
            // Registers the callsite although the maximum level is off, like a thread that has read the level before it
            // became off.
            tracing_core::callsite::register(made);
        });
        // Waits until the first rebuild is no longer repeated, which takes about a second.
        std::thread::sleep(Duration::from_millis(1300));
        let switched = on();
        until("the others follow", || LevelFilter::current() == LevelFilter::TRACE);
        std::thread::sleep(Duration::from_millis(1300));
        release.send(()).unwrap();
        asker.join().unwrap();
        until("the late answer is mended", || made.interest.load(Ordering::SeqCst) >= SOMETIMES);
        drop(switched);
    });
    off_in_each_role(&name, |_, _| ());
}

/// A layer that calls a function when it is queried about a callsite with the target `asked`, while its counter is 1.
struct Asked(&'static AtomicUsize, fn());

impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Asked {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if metadata.target() == "asked" && self.0.load(Ordering::SeqCst) == 1 {
            (self.1)();
        }
        Interest::always()
    }
}

fn asked() {
    info!(target: "asked", "asked");
}

/// Tests a layer that switches tracing during a rebuild. The watch for stacks with other layers and the watch for
/// subscribers alone are then both notified on the thread that rebuilds.
#[test]
fn a_layer_may_switch_while_it_is_asked() {
    static ARMED: AtomicUsize = AtomicUsize::new(0);
    let name = case!({
        let alone = Dispatch::new(AtraceSubscriber::default().with_filter());
        let switching = Asked(&ARMED, || {
            atrace::atrace_set_tracing_enabled(false);
            ARMED.store(0, Ordering::SeqCst);
        });
        let layer = AtraceLayer::default().with_filter(AtraceFilter::default());
        let stack = Dispatch::new(tracing_subscriber::registry().with(switching).with(layer));
        let _default = tracing::dispatcher::set_default(&stack);
        asked();
        for round in 0..5 {
            ARMED.store(1, Ordering::SeqCst);
            let switched = on();
            until("it switches", || ARMED.load(Ordering::SeqCst) == 0);
            atrace::atrace_set_tracing_enabled(true);
            until("it is on", || {
                tracing::dispatcher::with_default(&alone, || enabled!(Level::INFO)) && enabled!(Level::INFO)
            });
            info!(round);
            drop(switched);
            until("it is off", || tracing::dispatcher::with_default(&alone, || !enabled!(Level::INFO)));
        }
    });
    let Some(place) = Place::new(&name) else { return };
    place.run(&name, Role::Layer);
    assert_eq!(place.texts(), (0..5).map(|round| format!("I|round = {round}")).collect::<Vec<_>>());
}

/// Tests a layer that switches tracing during the rebuild for which the program's own switch waits: the layer's switch
/// does not wait for the program's switch.
#[test]
fn a_layer_that_switches_while_it_is_asked_waits_for_no_switch() {
    static ARMED: AtomicUsize = AtomicUsize::new(0);
    static RETURNED: AtomicUsize = AtomicUsize::new(0);
    let name = case!({
        let switching = Asked(&ARMED, || {
            ARMED.store(0, Ordering::SeqCst);
            atrace::atrace_set_tracing_enabled(true);
            RETURNED.fetch_add(1, Ordering::SeqCst);
        });
        tracing_subscriber::registry().with(switching).with(AtraceSubscriber::default().with_filter()).init();
        let switched = on();
        settled(true);
        asked();
        let has_returned = |round: usize| {
            atrace::atrace_set_tracing_enabled(false);
            settled(false);
            ARMED.store(1, Ordering::SeqCst);
            atrace::atrace_set_tracing_enabled(true);
            let has_returned = RETURNED.load(Ordering::SeqCst) > round;
            until("the layer is asked", || RETURNED.load(Ordering::SeqCst) > round);
            has_returned
        };
        // The program's switch waits for at most a second. There are three tries, because a busy machine may need
        // longer.
        assert!((0..3).any(has_returned));
        drop(switched);
    });
    let Some(place) = Place::new(&name) else { return };
    place.run(&name, Role::Aosp);
}

#[test]
fn a_layer_that_panics_while_it_is_asked_hinders_no_later_switch() {
    static ARMED: AtomicUsize = AtomicUsize::new(0);
    let name = case!({
        std::panic::set_hook(Box::new(|_| {}));
        let panicking = Asked(&ARMED, || {
            ARMED.store(0, Ordering::SeqCst);
            panic!("of a layer");
        });
        tracing_subscriber::registry().with(panicking).with(AtraceSubscriber::default().with_filter()).init();
        let switched = on();
        settled(true);
        asked();
        drop(switched);
        settled(false);
        for n in 0..3 {
            ARMED.store(1, Ordering::SeqCst);
            let switched = on();
            until("it panics", || ARMED.load(Ordering::SeqCst) == 0);
            drop(switched);
            settled(false);
            let switched = on();
            settled(true);
            info!(n);
            drop(switched);
            settled(false);
        }
    });
    let Some(place) = Place::new(&name) else { return };
    place.run(&name, Role::Aosp);
    assert_eq!(place.texts(), ["I|asked", "I|n = 0", "I|n = 1", "I|n = 2"]);
}

#[test]
fn while_off_callsites_are_cached_as_disabled() {
    let name = case!({
        let made = Made::new();
        install_filtered();
        tracing_core::callsite::register(made);
        // A callsite that is registered while tracing is off gets the answer "never" at once.
        assert_eq!(made.interest.load(Ordering::SeqCst), NEVER);
        let switched = on();
        settled(true);
        let wanted = if common::role() == Role::Layer { SOMETIMES } else { ALWAYS };
        until("rebuilt", || made.interest.load(Ordering::SeqCst) == wanted);
        drop(switched);
        settled(false);
        until("rebuilt", || made.interest.load(Ordering::SeqCst) == NEVER);
    });
    off_in_each_role(&name, |_, texts| assert!(texts.is_empty()));
}

#[test]
fn a_subscriber_that_no_dispatcher_has_promises_nothing() {
    use tracing::Subscriber as _;
    let made = Made::new();
    let metadata = made.metadata.get().unwrap();
    let subscriber = AtraceSubscriber::default().with_filter();
    assert!(tracing::Subscriber::register_callsite(&subscriber, metadata).is_sometimes());
    assert_eq!(tracing::Subscriber::max_level_hint(&subscriber), None);
    assert!(tracing::Subscriber::register_callsite(&AtraceSubscriber::default(), metadata).is_always());
    let filter: &dyn tracing_subscriber::layer::Filter<tracing_subscriber::Registry> =
        &AtraceFilter::default();
    assert!(!filter.callsite_enabled(metadata).is_always());
    assert!(subscriber.current_span().id().is_none());
}

#[test]
fn a_filter_around_layers_of_others_asks_each_time() {
    let name = case!({
        let other = Other::default();
        tracing_subscriber::registry().with(other.clone().with_filter(AtraceFilter::default())).init();
        for n in 0..3 {
            trace();
            assert_eq!(other.seen(), (2 * n, 2 * n));
            let _on = on();
            trace();
        }
        assert_eq!(threads("atrace-watch"), 0);
    });
    let Some(place) = Place::new(&name) else { return };
    place.run(&name, Role::Alone);
    assert!(place.texts().is_empty());
}

#[test]
fn disabled_by_the_program_itself_even_from_within_an_event() {
    struct Enabling(bool);
    impl std::fmt::Debug for Enabling {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            atrace::atrace_set_tracing_enabled(self.0);
            f.write_str("switched")
        }
    }
    let name = case!({
        let _on = on();
        // While a scoped subscriber handles an event, no default subscriber can be set.
        let dispatch = filtered();
        let _default = tracing::dispatcher::set_default(&dispatch);
        settled(true);
        atrace::atrace_set_tracing_enabled(false);
        info!("disabled");
        settled(false);
        atrace::atrace_set_tracing_enabled(true);
        settled(true);
        info!(value = ?Enabling(false));
        info!("disabled");
        settled(false);
        atrace::atrace_set_tracing_enabled(true);
        settled(true);
        info!("done");
    });
    off_in_each_role(&name, |_, texts| assert_eq!(texts, ["I|value = switched", "I|done"]));
}

#[test]
fn a_forked_child_keeps_its_state_until_it_is_told() {
    let name = case!({
        install_filtered();
        let inside = {
            let _on = on();
            settled(true);
            info_span!("before the fork", n = 1).entered()
        };
        settled(false);
        // The child reports each step on a pipe, and the parent then makes the next switch.
        let (mut reports, mut report) = io::pipe().unwrap();
        let child = fork(move || {
            let mut done = || report.write_all(&[0]).unwrap();
            until("the parent's switch", || atrace::atrace_is_tag_enabled(atrace::AtraceTag::App));
            std::thread::sleep(Duration::from_millis(100));
            info!("not told yet");
            assert_eq!(LevelFilter::current(), LevelFilter::OFF);
            atrace_subscriber::after_fork().unwrap();
            settled(true);
            info!("told");
            drop(inside); // Writes no end: the slice belongs to the parent.
            info_span!("of the child", n = 2).in_scope(|| ());
            done();
            settled(false);
            done();
            settled(true);
            info!("twice");
            done();
        });
        // Only the child has the pipe's write end, so the read ends if the child fails.
        let mut step = || drop(reports.read_exact(&mut [0]));
        let switched = on();
        step();
        drop(switched);
        step();
        let _on = on();
        step();
        child();
    });
    each_role(&name, |role, place| {
        place.run(&name, role);
        let messages = place.messages();
        let parent = messages[0].pid;
        let of_child: Vec<_> = messages
            .iter()
            .filter(|message| message.pid != parent)
            .map(|message| message.text.as_str())
            .collect();
        assert_eq!(of_child, ["I|told", "B|of the child, n = 2", "E", "I|twice"], "{role:?}");
    });
}

/// Tests forks while threads of the parent are notified of switches, rebuild the caches, and add and remove
/// subscribers. All of these operations take locks.
#[test]
fn a_child_forked_at_any_moment_follows() {
    let name = case!({
        let _on = on();
        install_filtered();
        let over = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            // Switches tracing for this process only. A switch from outside would take file locks, which a child
            // shares.
            scope.spawn(|| {
                while over.load(Ordering::Relaxed) == 0 {
                    atrace::atrace_set_tracing_enabled(false);
                    std::thread::sleep(Duration::from_micros(200));
                    atrace::atrace_set_tracing_enabled(true);
                    std::thread::sleep(Duration::from_micros(200));
                }
            });
            for _ in 0..100 {
                fork(|| {
                    atrace_subscriber::after_fork().unwrap();
                    for on in [true, false, true] {
                        atrace::atrace_set_tracing_enabled(on);
                        // The maximum level is a single value for all callsites, and changes without any of `tracing`'s
                        // locks.
                        until("it follows", || (LevelFilter::current() == LevelFilter::OFF) != on);
                    }
                })();
            }
            over.store(1, Ordering::Relaxed);
        });
    });
    off_in_each_role(&name, |_, _| ());
}

/// Tests that `atrace doctor` reports that the filter of a forked child has no watch. The doctor reads the state that
/// the child publishes.
#[test]
#[cfg(target_os = "linux")]
fn the_doctor_finds_a_filter_that_nobody_tells() {
    let name = case!({
        use atrace_cli::doctor::{Topic, examine};
        let is_filter_wrong = || {
            let report = examine(std::process::id());
            let wrong: Vec<_> = report.wrong().map(|it| it.topic).collect();
            assert!(report.arrives() == wrong.is_empty(), "{report}");
            assert!(wrong.is_empty() || wrong == [Topic::Filter, Topic::Event], "{report}");
            !wrong.is_empty()
        };
        let _on = on();
        assert!(!is_filter_wrong(), "there is no filter");
        install_filtered();
        settled(true);
        assert!(!is_filter_wrong(), "its thread is there");
        let child = fork(|| {
            assert!(is_filter_wrong(), "the thread is the parent's");
            atrace_subscriber::after_fork().unwrap();
            settled(true);
            assert!(!is_filter_wrong(), "it was mended");
        });
        child();
    });
    each_role(&name, |role, place| {
        place.run(&name, role);
    });
}

/// Tests that `atrace doctor` waits for a watch whose thread was just started and has no name yet.
#[test]
#[cfg(target_os = "linux")]
fn the_doctor_waits_until_a_new_thread_has_its_name() {
    let name = case!({
        let _on = on();
        if !common::delay::named_threads() {
            println!("PUNCTUAL");
        }
        install_filtered();
        settled(true);
        let report = atrace_cli::doctor::examine(std::process::id());
        assert!(report.arrives(), "{report}");
        assert_eq!(threads("atrace-watch"), 1);
    });
    each_role(&name, |role, place| {
        if place.run(&name, role).contains("PUNCTUAL") {
            let _ = writeln!(io::stderr(), "skipped {name}: the kernel can't delay a thread");
        }
    });
}

/// Runs `child` in a forked process. Call the returned closure to wait for it.
#[allow(unsafe_code, reason = "fork has no safe form")]
fn fork(child: impl FnOnce()) -> impl FnOnce() {
    // SAFETY: the child calls `child` and ends. The parent's other threads sleep and hold no lock that the child
    // needs.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let went_well = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).is_ok();
        // SAFETY: no preconditions; ends this process at once.
        unsafe { libc::_exit(if went_well { 0 } else { 1 }) };
    }
    move || {
        let mut status = 0;
        // SAFETY: `pid` is a child of this process, and `status` is writable.
        unsafe { libc::waitpid(pid, &mut status, 0) };
        assert_eq!(status, 0, "the child failed");
    }
}

#[test]
fn subscribers_with_a_watch_each_come_and_go_at_random() {
    const SUBSCRIBERS: u64 = 6000;
    let name = case!({
        let done = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while done.load(Ordering::Relaxed) < SUBSCRIBERS {
                        let dispatch = filtered();
                        let _default = tracing::dispatcher::set_default(&dispatch);
                        let _inside = info_span!("span").entered();
                        std::thread::sleep(Duration::from_micros(50));
                        info!("event");
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            scope.spawn(|| {
                while done.load(Ordering::Relaxed) < SUBSCRIBERS {
                    let _on = on();
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
        });
        until("the watch is gone", || threads("atrace-watch") == 0);
        assert!(Span::current().is_none());
    });
    each_role(&name, |role, place| {
        place.run(&name, role);
        assert!(common::balanced(&place.messages()) > 0);
    });
}

#[test]
fn where_nothing_can_be_traced_off_is_forever_and_free() {
    let name = case!({
        install_filtered();
        assert_eq!(LevelFilter::current(), LevelFilter::OFF);
        assert_eq!(threads("atrace-watch"), 0);
        info!("nowhere");
    });
    each_role(&name, |role, place| {
        let place = place.on();
        let mut command = place.command(&name, role);
        let (success, said) = common::end_of(command.env("ATRACE_BACKEND", "none").spawn().unwrap());
        assert!(success && said.contains("1 passed"), "{said}");
        assert!(place.texts().is_empty(), "{:?}", place.texts());
    });
}

#[test]
fn a_registry_with_fmt_prints_as_ever() {
    #[derive(Clone, Default)]
    struct Lines(Arc<std::sync::Mutex<Vec<u8>>>);
    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let name = case!({
        let lines = Lines::default();
        let writer = lines.clone();
        tracing_subscriber::registry()
            .with(
                tracing_subscriber::fmt::layer()
                    .with_writer(move || writer.clone())
                    .with_filter(LevelFilter::INFO),
            )
            .with(AtraceLayer::default().with_filter(AtraceFilter::default()))
            .init();
        info!("off");
        debug!("off");
        let switched = on();
        until("on", || enabled!(Level::DEBUG));
        info!("on");
        debug!("on");
        drop(switched);
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        assert_eq!(text.lines().count(), 2, "{text}");
    });
    let Some(place) = Place::new(&name) else { return };
    place.run(&name, Role::Layer);
    assert_eq!(place.texts(), ["I|on", "I|on"]);
}
