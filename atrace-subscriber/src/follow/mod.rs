//! Filter mode: updates what `tracing` caches about callsites when tracing is switched.
//!
//! While a subscriber answers `Interest::never` and `LevelFilter::OFF`, a callsite costs one load and a comparison. But
//! `tracing` caches these answers, so they must be asked again after a switch. A [`watch`](atrace::watch) then calls a
//! [`Rebuilder`], which rebuilds the caches:
//!
//! - with one of our dispatchers as the default, because with a single dispatcher `tracing` asks only the current default;
//! - with answers from the tags that the watch reported last, so that they are the same throughout a rebuild;
//! - repeatedly, at pauses that double, as long as a query from before the switch may still store an old answer. Such
//!   queries are [counted](questions), because nothing reports when their answers are stored;
//! - together with the maximum level of `log`, if it agreed with `tracing`'s before;
//! - on a watching thread, or a thread started for it: inside a dispatcher of the program, no default can be set.
//!
//! Rebuilds take [turns](Turn), and no thread waits for one: a layer may switch tracing while it is asked. After a fork,
//! the child has its parent's followers and dispatches. They are stored twice, so that one copy is consistent whatever a
//! thread of the parent was doing. The child has its own locks.
//!
//! There are two rebuilders, one for each kind of watch. A thread without descriptors must not run foreign code, which may
//! want to write to a file; a rebuild asks every layer, and may drop the last reference to a stack.

mod questions;

use std::cell::Cell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::thread::Thread;
use std::time::Duration;

use atrace::__typed::Ways;
use atrace::AtraceTag;
use atrace::watch::{__watch_ways, Watch, on_watching_thread};
use atrace_sys::fork::{PerProcess, Turn};
use atrace_sys::thread::spawn_quiet;
use tracing_core::dispatcher::{self, WeakDispatch};
use tracing_core::{Dispatch, Interest, LevelFilter, callsite};

use self::questions::Questions;

/// How long after a switch the first repetition of its rebuild is, and the longest pause between two.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LAST_PAUSE: Duration = Duration::from_millis(8192);

const IDLE: u8 = 0;
const SETTLING: u8 = 1;
/// It was switched once more: begin anew.
const AGAIN: u8 = 2;

thread_local! {
    /// This thread is rebuilding on our behalf.
    static REBUILDING: Cell<bool> = const { Cell::new(false) };
}

/// Rebuilds what `tracing` caches at each switch, for the followers that share a watch.
pub(crate) struct Rebuilder {
    here: PerProcess<OfProcess>,
    questions: Questions,
    /// Some dispatch was registered here once.
    has_dispatch: AtomicBool,
    start: fn() -> io::Result<Watch>,
}

/// What each process has for itself.
struct OfProcess {
    threads: Mutex<Threads>,
    /// The same twice, changed one after the other while `threads` is locked: so at a fork one is whole.
    members: [Mutex<Members>; 2],
    /// Whether a thread is repeating the rebuild: one of the values above.
    settling: AtomicU8,
}

#[derive(Default)]
struct Threads {
    watch: Option<Watch>,
    /// The last thread that repeated the rebuild.
    settler: Option<Thread>,
}

/// What a child has from its parent.
#[derive(Clone, Default)]
struct Members {
    followers: usize,
    dispatches: Vec<WeakDispatch>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl OfProcess {
    fn heir_of(parent: Option<&Self>) -> Self {
        #[inline(never)]
        fn whole(members: &Mutex<Members>) -> Option<Members> {
            match members.try_lock() {
                Ok(members) => Some(members.clone()),
                Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner().clone()),
                Err(TryLockError::WouldBlock) => None,
            }
        }
        let members = parent.and_then(|parent| parent.members.iter().find_map(whole)).unwrap_or_default();
        Self {
            threads: Mutex::default(),
            members: [Mutex::new(members.clone()), Mutex::new(members)],
            settling: AtomicU8::new(IDLE),
        }
    }

    /// Changes both copies; under the lock of `threads`.
    #[inline(never)]
    fn change(&self, _locked: &mut Threads, change: &dyn Fn(&mut Members)) {
        self.members.iter().for_each(|members| change(&mut lock(members)));
    }

    /// Under the lock of `threads`.
    fn members(&self, _locked: &Threads) -> MutexGuard<'_, Members> {
        lock(&self.members[0])
    }

    /// One of the dispatches that are not dropped yet.
    #[inline(never)]
    fn dispatch(&self) -> Option<Dispatch> {
        let threads = lock(&self.threads);
        self.members(&threads).dispatches.iter().find_map(WeakDispatch::upgrade)
    }
}

/// For stacks, where layers of others are asked.
pub(crate) static ORDINARY: Rebuilder = Rebuilder::new(|| __watch_ways(|| ORDINARY.switched(), true));
/// For subscribers that are alone.
pub(crate) static DETACHED: Rebuilder = Rebuilder::new(|| __watch_ways(|| DETACHED.switched(), false));

impl Rebuilder {
    const fn new(start: fn() -> io::Result<Watch>) -> Self {
        let questions =
            Questions { tags: AtomicU64::new(0), asked: AtomicU64::new(0), settled: AtomicU64::new(0) };
        Self { here: PerProcess::new(), questions, has_dispatch: AtomicBool::new(false), start }
    }

    fn here(&self) -> &'static OfProcess {
        self.here.get_or_make(|| OfProcess::heir_of(self.here.inherited()))
    }

    /// Adds a dispatch to those in whose name a rebuild may run.
    pub(crate) fn add_dispatch(&self, dispatch: &Dispatch) {
        let here = self.here();
        let mut threads = lock(&here.threads);
        let alive: Vec<_> = here.members(&threads).dispatches.iter().map(WeakDispatch::upgrade).collect();
        here.change(&mut threads, &|members| {
            let mut is_alive = alive.iter().map(Option::is_some);
            members.dispatches.retain(|_| is_alive.next().unwrap_or(true));
            members.dispatches.push(dispatch.downgrade());
        });
        self.has_dispatch.store(true, Ordering::Release);
        drop(threads);
        drop(alive); // Perhaps the last references: not under the lock.
    }

    /// Adds one who wants to be told, and has the watch run.
    fn add_follower(&self) -> io::Result<()> {
        let here = self.here();
        let mut threads = lock(&here.threads);
        if threads.watch.is_none() {
            let watch = (self.start)()?;
            // A callback that comes meanwhile waits for the lock, and knows better.
            self.questions.switch(watch.__ways().to_word());
            threads.watch = Some(watch);
        }
        here.change(&mut threads, &|members| members.followers += 1);
        Ok(())
    }

    fn remove_follower(&self) {
        let here = self.here();
        let mut threads = lock(&here.threads);
        here.change(&mut threads, &|members| members.followers -= 1);
        let is_last = here.members(&threads).followers == 0;
        let watch = if is_last { threads.watch.take() } else { None };
        drop(threads);
        drop(watch); // Waits for its thread a little.
    }

    /// What the watch calls.
    fn switched(&'static self) {
        {
            let here = self.here();
            let threads = lock(&here.threads);
            // Not what the callback was called with: it may be that of a watch that was dropped while it ran,
            // and the tags of another one, begun since, are newer.
            let Some(watch) = &threads.watch else { return };
            self.questions.switch(watch.__ways().to_word());
        }
        if on_watching_thread() {
            return self.rebuild_and_settle();
        }
        if spawn_quiet("atrace-rebuild", || self.rebuild_and_settle()).is_err() {
            self.rebuild_and_settle();
        }
    }

    fn rebuild_and_settle(&'static self) {
        self.rebuild();
        if self.questions.open().is_none() {
            return;
        }
        let here = self.here();
        if here.settling.swap(AGAIN, Ordering::SeqCst) != IDLE {
            if let Some(settler) = &lock(&here.threads).settler {
                settler.unpark();
            }
            return;
        }
        // Even a thread without descriptors may start this one, which needs none either.
        if spawn_quiet("atrace-rebuild", || self.settle(here)).is_err() {
            here.settling.store(IDLE, Ordering::SeqCst);
        }
    }

    fn settle(&self, here: &OfProcess) {
        lock(&here.threads).settler = Some(std::thread::current());
        loop {
            here.settling.store(SETTLING, Ordering::SeqCst);
            let Some(asked) = self.questions.open() else {
                return here.settling.store(IDLE, Ordering::SeqCst);
            };
            let mut pause = FIRST_PAUSE;
            while pause <= LAST_PAUSE && here.settling.load(Ordering::SeqCst) == SETTLING {
                std::thread::park_timeout(pause);
                self.rebuild();
                pause *= 2;
            }
            if here.settling.compare_exchange(SETTLING, IDLE, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                return self.questions.settle(asked);
            }
        }
    }

    /// Has every callsite asked again, in the name of one of our dispatches.
    fn rebuild(&self) {
        static TURN: Turn = Turn::new();
        TURN.run(|| {
            // What panics here is somebody else's, and reported by the panic hook; the next rebuild must find
            // all in order.
            let _ = catch_unwind(AssertUnwindSafe(|| {
                // Perhaps on behalf of the other rebuilder, too.
                let dispatch = [self, &ORDINARY, &DETACHED].iter().find_map(|it| it.here().dispatch());
                let Some(dispatch) = dispatch else { return };
                let before = LevelFilter::current();
                REBUILDING.set(true);
                let rebuild = || dispatcher::with_default(&dispatch, callsite::rebuild_interest_cache);
                let _ = catch_unwind(AssertUnwindSafe(rebuild));
                REBUILDING.set(false);
                follow_with_log(before, LevelFilter::current());
            }));
        });
    }

    fn after_fork(&'static self) -> io::Result<()> {
        let here = self.here();
        let mut threads = lock(&here.threads);
        if here.members(&threads).followers == 0 {
            return Ok(());
        }
        let watch = (self.start)()?;
        self.questions.switch(watch.__ways().to_word());
        let before = threads.watch.replace(watch);
        drop(threads);
        drop(before);
        self.rebuild_and_settle();
        Ok(())
    }
}

/// Lets the maximum level of `log` follow that of `tracing`, if it was the same before.
///
/// `SubscriberInitExt::init` makes it so. A program that chose another level for its own logger keeps it.
#[cfg(feature = "log")]
fn follow_with_log(before: LevelFilter, after: LevelFilter) {
    let as_log = |level| match level {
        LevelFilter::ERROR => log::LevelFilter::Error,
        LevelFilter::WARN => log::LevelFilter::Warn,
        LevelFilter::INFO => log::LevelFilter::Info,
        LevelFilter::DEBUG => log::LevelFilter::Debug,
        LevelFilter::TRACE => log::LevelFilter::Trace,
        _ => log::LevelFilter::Off,
    };
    if log::max_level() == as_log(before) {
        log::set_max_level(as_log(after));
    }
}

#[cfg(not(feature = "log"))]
fn follow_with_log(_before: LevelFilter, _after: LevelFilter) {}

/// What a callsite may be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    On,
    Off,
    /// Nothing that may be kept: nobody would tell when it changes.
    Ask,
}

/// One who answers for callsites by whether a tag is enabled, for its way if it is a tag of one.
#[derive(Debug)]
pub(crate) struct Follower {
    watches: bool,
    rebuilder: OnceLock<&'static Rebuilder>,
}

impl std::fmt::Debug for Rebuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rebuilder").field("tags", &self.questions.tags).finish_non_exhaustive()
    }
}

impl Follower {
    pub(crate) const fn new() -> Self {
        Self { watches: true, rebuilder: OnceLock::new() }
    }

    pub(crate) const fn without_watch() -> Self {
        Self { watches: false, rebuilder: OnceLock::new() }
    }

    /// Follows the switch from now on, once the rebuilder knows a dispatch. Where no thread can be started, every
    /// event is asked.
    pub(crate) fn follow(&self, rebuilder: &'static Rebuilder) {
        if self.watches
            && rebuilder.has_dispatch.load(Ordering::Acquire)
            && self.rebuilder.get().is_none()
            && rebuilder.add_follower().is_ok()
        {
            if self.rebuilder.set(rebuilder).is_ok() {
                atrace::__note_filter(true);
            } else {
                rebuilder.remove_follower(); // Another thread was faster.
            }
        }
    }

    pub(crate) fn answer(&self, tag: AtraceTag) -> Answer {
        let Some(rebuilder) = self.rebuilder.get() else { return Answer::Ask };
        let ways = rebuilder.questions.ask(!REBUILDING.get());
        if Ways::word_enables(ways, tag) { Answer::On } else { Answer::Off }
    }

    /// For a callsite of which no one else may be asked in between.
    pub(crate) fn interest(&self, tag: AtraceTag) -> Interest {
        match self.answer(tag) {
            Answer::On => Interest::always(),
            Answer::Off => Interest::never(),
            Answer::Ask => Interest::sometimes(),
        }
    }

    pub(crate) fn max_level_hint(&self, tag: AtraceTag) -> Option<LevelFilter> {
        (self.answer(tag) == Answer::Off).then_some(LevelFilter::OFF)
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        if let Some(rebuilder) = self.rebuilder.get() {
            rebuilder.remove_follower();
            atrace::__note_filter(false);
        }
    }
}

/// Has the filter mode follow the switch in a forked child.
///
/// A child has none of its parent's threads, and so its callsites keep the state that they had at the fork:
/// on or off. Call this in the child, once, to start the watch anew and catch up with what was switched
/// meanwhile. Hosts that fork their programs from a prepared process, as Zygote does, call it after the fork,
/// outside of any span or event, or make their subscriber only then. Without filter mode, and in filter mode
/// without a watch, a child needs nothing.
///
/// Fork while no other thread is making a `tracing` dispatcher, or the child's first one waits forever; that
/// is so without this crate, too.
///
/// # Errors
///
/// When the thread can't be started.
///
/// # Examples
///
/// ```
/// # fn in_child() -> std::io::Result<()> {
/// atrace_subscriber::after_fork()?;
/// # Ok(())
/// # }
/// ```
pub fn after_fork() -> io::Result<()> {
    ORDINARY.after_fork()?;
    DETACHED.after_fork()
}

#[cfg(test)]
mod tests {
    use tracing_core::span::{Attributes, Id, Record};
    use tracing_core::{Event, Metadata, Subscriber};

    use super::*;

    thread_local! {
        static PANICS: Cell<bool> = const { Cell::new(false) };
    }

    /// Panics when a callsite is registered on a thread where it is to.
    struct Panics;

    impl Subscriber for Panics {
        fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
            assert!(!PANICS.get(), "on purpose");
            Interest::never()
        }

        fn enabled(&self, _: &Metadata<'_>) -> bool {
            false
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, _: &Event<'_>) {}
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    /// Whoever asks on this thread after that is counted again, as no rebuild of ours.
    #[test]
    fn a_rebuild_that_panics_is_over() {
        let dispatch = Dispatch::new(Panics);
        dispatcher::with_default(&dispatch, || tracing::info!("a callsite to be asked"));
        ORDINARY.add_dispatch(&dispatch);
        PANICS.set(true);
        ORDINARY.rebuild();
        assert!(!REBUILDING.get());
        // And the next one finds all in order.
        PANICS.set(false);
        ORDINARY.rebuild();
        assert!(!REBUILDING.get());
    }

    /// The level of `log` belongs to the process: one test for all of it.
    #[cfg(feature = "log")]
    #[test]
    fn each_level_of_log_follows_its_own() {
        let levels = [
            (LevelFilter::OFF, log::LevelFilter::Off),
            (LevelFilter::ERROR, log::LevelFilter::Error),
            (LevelFilter::WARN, log::LevelFilter::Warn),
            (LevelFilter::INFO, log::LevelFilter::Info),
            (LevelFilter::DEBUG, log::LevelFilter::Debug),
            (LevelFilter::TRACE, log::LevelFilter::Trace),
        ];
        for (before, as_log) in levels {
            for (after, expected) in levels {
                log::set_max_level(as_log);
                follow_with_log(before, after);
                assert_eq!(log::max_level(), expected);
            }
            for (_, other) in levels.into_iter().filter(|(_, other)| *other != as_log) {
                log::set_max_level(other);
                follow_with_log(before, LevelFilter::INFO);
                assert_eq!(log::max_level(), other, "somebody else chose it");
            }
        }
    }
}
