//! Model of watches and of the subscriber's queries: atrace/src/watch/notifier.rs,
//! atrace-subscriber/src/interest_cache/queries.rs.

mod common;
use common::{leak, model, sync};

#[path = "../../../atrace/src/watch/notifier.rs"]
mod notifier;
#[path = "../../../atrace-subscriber/src/interest_cache/queries.rs"]
mod queries;

use loom::thread;
use notifier::{Notifier, Registered};
use queries::Queries;
use sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sync::{Arc, Mutex};

const OFF: u64 = 0;
const ON: u64 = 1;

fn notifier<C: Clone>() -> Notifier<u64, C, ()> {
    Notifier(Mutex::new(Registered {
        callbacks: Vec::new(),
        next_id: 0,
        last: OFF,
        notifying: false,
        again: false,
        thread: None,
    }))
}

fn queries() -> Queries {
    Queries { tags: AtomicU64::new(OFF), asked: AtomicU64::new(0), settled: AtomicU64::new(0) }
}

struct Watching {
    tags: AtomicU64,
    notifier: Notifier<u64, Arc<Told>, ()>,
}

struct Told {
    is_told: AtomicBool,
    last: AtomicU64,
}

fn look() -> Result<Option<()>, ()> {
    Ok(Some(()))
}

fn the_last_change_is_told(tell: fn(&Watching)) {
    model(3, move || {
        let told = Arc::new(Told { is_told: AtomicBool::new(false), last: AtomicU64::new(0) });
        let watching = leak(Watching { tags: AtomicU64::new(0), notifier: notifier() });
        watching.notifier.add(Arc::clone(&told), 0, look).unwrap();
        let other = thread::spawn(move || {
            watching.tags.fetch_add(1, Ordering::AcqRel);
            tell(watching);
        });
        watching.tags.fetch_add(1, Ordering::AcqRel);
        tell(watching);
        other.join().unwrap();
        assert_eq!(told.last.load(Ordering::Relaxed), 2, "the last change was not told");
        assert!(!watching.notifier.is_notifying(), "a switch would wait for nobody");
        watching.notifier.remove(0);
    });
}

fn call(told: Arc<Told>, before: u64, tags: u64) {
    assert!(!told.is_told.swap(true, Ordering::Relaxed), "two at once");
    assert!(told.last.load(Ordering::Relaxed) < tags, "told twice, or out of order");
    assert_eq!(told.last.load(Ordering::Relaxed), before, "before was not what was told last");
    told.last.store(tags, Ordering::Relaxed);
    told.is_told.store(false, Ordering::Relaxed);
}

#[test]
fn changes_are_told_in_order_and_the_last_always() {
    the_last_change_is_told(|it| it.notifier.notify(|| it.tags.load(Ordering::Acquire), call));
}

#[test]
#[should_panic(expected = "the last change was not told")]
fn who_leaves_no_word_is_not_heard() {
    the_last_change_is_told(|it| {
        let mut state = it.notifier.0.lock().unwrap();
        if state.notifying {
            return;
        }
        state.notifying = true;
        let tags = it.tags.load(Ordering::Acquire);
        if tags != state.last {
            let before = std::mem::replace(&mut state.last, tags);
            let told = Arc::clone(&state.callbacks[0].1);
            drop(state);
            call(told, before, tags);
            state = it.notifier.0.lock().unwrap();
        }
        state.notifying = false;
    });
}

/// A user of watches, as the subscriber's interest cache is: the enabled tags, the watch, and the tags by which the
/// user answers queries.
struct Rebuilder {
    tags: AtomicU64,
    notifier: Notifier<u64, (), ()>,
    /// The number of the current watch.
    watch: Mutex<Option<u64>>,
    queries: Queries,
}

impl Rebuilder {
    fn new() -> &'static Self {
        leak(Self {
            tags: AtomicU64::new(OFF),
            notifier: notifier(),
            watch: Mutex::new(None),
            queries: queries(),
        })
    }

    fn begin(&self) {
        let mut watch = self.watch.lock().unwrap();
        let id = self.notifier.add((), self.tags.load(Ordering::Acquire), look).unwrap();
        self.queries.switch(self.notifier.last());
        *watch = Some(id);
    }

    fn end(&self) {
        let watch = self.watch.lock().unwrap().take();
        self.notifier.remove(watch.unwrap());
    }

    /// Does the work of the watch's thread.
    fn look(&self, switched: fn(&Self, u64)) {
        self.notifier.notify(|| self.tags.load(Ordering::Acquire), |(), _, tags| switched(self, tags));
    }
}

/// Models a watch that is dropped while its callback runs, and another watch that is started at that time.
fn the_tags_are_those_told_last(switched: fn(&Rebuilder, u64)) {
    model(3, move || {
        let rebuilder = Rebuilder::new();
        rebuilder.begin();
        rebuilder.tags.store(ON, Ordering::Release);
        let thread_of_the_first = thread::spawn(move || rebuilder.look(switched));
        rebuilder.end();
        rebuilder.tags.store(OFF, Ordering::Release);
        rebuilder.begin();
        thread_of_the_first.join().unwrap();
        rebuilder.look(switched);
        assert_eq!(rebuilder.queries.ask(false), OFF, "overwritten");
        rebuilder.end();
    });
}

#[test]
fn a_dropped_watch_overwrites_nothing() {
    the_tags_are_those_told_last(|rebuilder, _| {
        let watch = rebuilder.watch.lock().unwrap();
        if watch.is_some() {
            rebuilder.queries.switch(rebuilder.notifier.last());
        }
    });
}

#[test]
#[should_panic(expected = "overwritten")]
fn a_dropped_watch_overwrote_what_is_newer() {
    the_tags_are_those_told_last(|rebuilder, tags| {
        let _watch = rebuilder.watch.lock().unwrap();
        rebuilder.queries.switch(tags);
    });
}

/// Models a watch that has no thread yet, while a thread becomes necessary and the watch is dropped. The thread must be
/// stopped.
fn no_thread_stays(ensure: fn(&Notifier<u64, (), ()>) -> bool) {
    model(3, move || {
        let notifier = leak(notifier());
        let id = notifier.add((), OFF, || Ok::<_, ()>(None)).unwrap();
        let started = leak(AtomicU64::new(0));
        let other = thread::spawn(move || started.store(ensure(notifier).into(), Ordering::Relaxed));
        let stopped = notifier.remove(id).1.is_some();
        other.join().unwrap();
        assert_eq!(started.load(Ordering::Relaxed) == 1, stopped, "nobody stops the thread");
    });
}

#[test]
fn a_thread_that_was_started_later_is_stopped() {
    no_thread_stays(|notifier| {
        let mut is_started = false;
        let start = || {
            is_started = true;
            look()
        };
        notifier.ensure_thread(start).unwrap();
        is_started
    });
}

#[test]
#[should_panic(expected = "nobody stops the thread")]
fn a_thread_for_no_watch_stayed() {
    no_thread_stays(|notifier| {
        let mut state = notifier.0.lock().unwrap();
        let is_started = state.thread.is_none();
        state.thread = Some(());
        is_started
    });
}

/// Models a query whether a callsite is enabled, while tracing is switched. The answer is stored at any later time.
fn an_old_answer_is_known_of(ask: fn(&Queries) -> u64, switch: fn(&Queries), is_open: fn(&Queries) -> bool) {
    model(3, move || {
        let queries = leak(queries());
        let kept = leak(AtomicU64::new(OFF));
        let asker = thread::spawn(move || kept.store(ask(queries), Ordering::SeqCst));
        switch(queries);
        // This is the rebuild of the interest cache, which stores a new answer.
        kept.store(queries.ask(false), Ordering::SeqCst);
        let is_repeated = is_open(queries);
        asker.join().unwrap();
        assert!(is_repeated || kept.load(Ordering::SeqCst) == ON, "silenced");
    });
}

#[test]
fn of_a_question_and_a_switch_one_sees_the_other() {
    an_old_answer_is_known_of(
        |queries| queries.ask(true),
        |queries| queries.switch(ON),
        |queries| queries.open().is_some(),
    );
}

#[test]
#[should_panic(expected = "silenced")]
fn with_release_and_acquire_neither_saw_the_other() {
    an_old_answer_is_known_of(
        |queries| {
            queries.asked.store(1, Ordering::Release);
            queries.tags.load(Ordering::Acquire)
        },
        |queries| queries.tags.store(ON, Ordering::Release),
        |queries| queries.asked.load(Ordering::Acquire) != 0,
    );
}

/// Models open queries. A query is open until `settle` is called for it, because `tracing`'s caches may not have its
/// answer yet. A settled query does not become open again, and a later query is open.
#[test]
fn a_question_after_those_settled_is_open() {
    model(3, || {
        let queries = leak(queries());
        queries.ask(true);
        let asked = queries.open().unwrap();
        let asker = thread::spawn(move || queries.ask(true));
        queries.settle(asked);
        let before = queries.open();
        asker.join().unwrap();
        assert!(before.is_none_or(|asked| asked == 2));
        assert_eq!(queries.open(), Some(2));
        queries.settle(2);
        queries.settle(1);
        assert_eq!(queries.open(), None);
    });
}
