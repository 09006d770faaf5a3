//! Rebuilds the interest cache of `tracing` when tracing is switched on or off, for filters.
//!
//! # The problem
//!
//! For each callsite, `tracing` asks each subscriber once whether it is interested in the callsite, and caches the
//! answer (the *interest cache*). It also caches the maximum level. While a subscriber answers `Interest::never` and
//! `LevelFilter::OFF`, a callsite costs one load and a comparison. But other processes switch tracing on and off, and
//! after a switch the cached answers are wrong.
//!
//! # How it works
//!
//! A filter has a [`Follower`], which answers according to the enabled tags that a [`watch`](atrace::watch) (a thread
//! that notices switches of tracing) reported last. After a switch, the watch calls a [`Rebuilder`], which makes
//! `tracing` ask the subscribers about all callsites again:
//!
//! - During a rebuild, one of this crate's dispatchers is the default dispatcher of the thread. This is needed if there
//!   is only a single dispatcher, because `tracing` then asks only the thread's default dispatcher.
//! - The answers come from the tags that the watch has reported, not from the properties. If the watch reports other
//!   tags during a rebuild, another rebuild follows.
//! - The maximum level of the crate `log` is set as well, if it equalled the maximum level of `tracing` before the
//!   rebuild.
//!
//! # Late answers
//!
//! The hard case is an answer that was given before the switch and is cached after the rebuild. `tracing` does not
//! report when it caches an answer. So the queries that do not belong to a rebuild are [counted](queries). If there
//! were such queries since the previous series of repetitions began, a new series begins: the rebuild is repeated after
//! pauses that double, from 1 ms to 8 s. After the last repetition, the answers to all queries before the series are
//! assumed to be in the caches.
//!
//! # Threads
//!
//! A rebuild runs on the thread of a watch or on a thread that was started for the rebuild. A thread of the program may
//! be in a call of its dispatcher, where no default dispatcher can be set. (In [`after_fork`], or if no thread can be
//! started, the rebuild runs on the calling thread.) Only one thread rebuilds at a time (see [`Turn`]). If the program
//! switches tracing by a function of `atrace`, the function waits until the rebuild has ended, but for a second at
//! most. The wait is limited because a layer may call the function while `tracing` queries that layer; then the rebuild
//! waits for the layer. If the thread of a watch notices the switch first, that thread waits for the rebuild, and the
//! function waits for that thread.
//!
//! There are two rebuilders, one for each kind of watch. A rebuild queries every layer, and may drop the last reference
//! to a stack. Layers are code of other crates, which may use file descriptors. So stacks with other layers use the
//! watch whose thread has descriptors ([`ORDINARY`]). Subscribers without other layers use the watch whose thread has
//! no descriptors ([`DETACHED`]).
//!
//! # Forks
//!
//! A forked child has no watch until [`after_fork`] starts one. The child inherits its parent's followers (filters that
//! follow the switches) and dispatches (references to subscribers). Two copies of these are stored, so that one of the
//! copies is consistent, whatever a thread of the parent was doing during the fork. The child makes new locks for
//! itself. But a child inherits a lock of `tracing`, which may be locked during a rebuild. So a fork waits for the end
//! of a rebuild ([`forks`]).

mod forks;
mod queries;

use std::cell::Cell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::thread::Thread;
use std::time::Duration;

use atrace::AtraceTag;
use atrace::tracer::backend_tags_enable;
use atrace::watch::{Watch, as_callback, watch_backends};
use atrace_sys::fork::{PerProcess, Turn};
use atrace_sys::thread::spawn_quiet;
use tracing_core::dispatcher::{self, WeakDispatch};
use tracing_core::{Dispatch, Interest, LevelFilter, callsite};

use self::queries::Queries;

/// The pause before the first repetition of a rebuild.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// The longest pause between two repetitions of a rebuild.
const LAST_PAUSE: Duration = Duration::from_millis(8192);
/// The name of the threads that are started for rebuilds and for their repetitions.
const THREAD: &str = "atrace-rebuild";

/// The longest time that a function that switches tracing waits for the end of the rebuild. The time is limited because
/// the rebuild itself may wait for the code that has called the function.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// No thread repeats the rebuild of the interest cache.
const IDLE: u8 = 0;
/// A thread repeats the rebuild of the interest cache.
const SETTLING: u8 = 1;
/// Tracing was switched again, so the series of repeated rebuilds starts anew.
const AGAIN: u8 = 2;

thread_local! {
    /// Whether this crate is rebuilding the interest cache of `tracing` on this thread.
    static REBUILDING: Cell<bool> = const { Cell::new(false) };
}

/// Rebuilds the caches of `tracing` at each switch of tracing, for all followers that share a watch.
pub(crate) struct Rebuilder {
    here: PerProcess<OfProcess>,
    queries: Queries,
    /// Whether a dispatch was ever added to this rebuilder.
    has_dispatch: AtomicBool,
    start: fn() -> io::Result<Watch>,
    last_pause: Duration,
}

/// The part of a rebuilder that each process has for itself. A forked child inherits only the [`Members`].
struct OfProcess {
    threads: Mutex<Threads>,
    /// Two copies of the same value, changed one after the other while `threads` is locked. So during a fork, at
    /// least one copy is consistent and not locked.
    members: [Mutex<Members>; 2],
    /// The state of the repetitions: [`IDLE`], [`SETTLING`] or [`AGAIN`].
    settling: AtomicU8,
    /// The switches after which a thread may wait for a rebuild. The next rebuild that begins serves all of them,
    /// whichever thread runs the rebuild.
    switches: Mutex<Switches>,
    /// Notified when a rebuild has ended.
    has_rebuilt: Condvar,
}

/// The numbers of the last switches. Each switch that a thread notices gets the next number, and so does each call of
/// [`after_fork`].
#[derive(Clone, Copy, Default)]
struct Switches {
    last: u64,
    /// The number of the last switch after which a rebuild has begun and ended.
    rebuilt: u64,
}

#[derive(Default)]
struct Threads {
    watch: Option<Watch>,
    /// The last thread that repeated the rebuild.
    settler: Option<Thread>,
}

/// The part of a rebuilder that a forked child inherits from its parent.
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
            switches: Mutex::default(),
            has_rebuilt: Condvar::new(),
        }
    }

    /// Changes both copies of the members. The caller must hold the lock of `threads`.
    #[inline(never)]
    fn change(&self, _locked: &mut Threads, change: &dyn Fn(&mut Members)) {
        self.members.iter().for_each(|members| change(&mut lock(members)));
    }

    /// Locks the first copy of the members. The caller must hold the lock of `threads`.
    fn members(&self, _locked: &Threads) -> MutexGuard<'_, Members> {
        lock(&self.members[0])
    }

    /// Returns one of the dispatches that have not been dropped yet, or `None` if there is none.
    #[inline(never)]
    fn dispatch(&self) -> Option<Dispatch> {
        let threads = lock(&self.threads);
        self.members(&threads).dispatches.iter().find_map(WeakDispatch::upgrade)
    }
}

/// The rebuilder for stacks with other layers. The thread of its watch has file descriptors, because a rebuild runs
/// code of other crates.
pub(crate) static ORDINARY: Rebuilder =
    Rebuilder::new(|| watch_backends(|is_watching| ORDINARY.switched(is_watching), true), LAST_PAUSE);
/// The rebuilder for subscribers without other layers. The thread of its watch has no file descriptors.
pub(crate) static DETACHED: Rebuilder =
    Rebuilder::new(|| watch_backends(|is_watching| DETACHED.switched(is_watching), false), LAST_PAUSE);

impl Rebuilder {
    const fn new(start: fn() -> io::Result<Watch>, last_pause: Duration) -> Self {
        let queries =
            Queries { tags: AtomicU64::new(0), asked: AtomicU64::new(0), settled: AtomicU64::new(0) };
        Self { here: PerProcess::new(), queries, has_dispatch: AtomicBool::new(false), start, last_pause }
    }

    fn here(&self) -> &'static OfProcess {
        self.here.get_or_make(|| OfProcess::heir_of(self.here.inherited()))
    }

    /// Adds a dispatch that a rebuild may use as the default.
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
        drop(alive); // The lock is released before, because dropping the last reference runs foreign code.
    }

    /// Counts one more [`Follower`] (the part of a filter that follows the switches of tracing), and starts the watch
    /// unless it already runs.
    fn add_follower(&self) -> io::Result<()> {
        forks::prepare();
        let here = self.here();
        let mut threads = lock(&here.threads);
        if threads.watch.is_none() {
            let watch = (self.start)()?;
            // If the watch calls back meanwhile, the callback waits for the lock, and then stores newer tags.
            self.queries.switch(watch.backend_tags());
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
        drop(watch); // The lock is released before, because this drop waits for the watch's thread for a moment.
    }

    /// Runs after a switch of tracing. The watch calls this, on its own thread if `is_watching` is true.
    fn switched(&'static self, is_watching: bool) {
        {
            let here = self.here();
            let threads = lock(&here.threads);
            // The tags come from the present watch and not from the callback's arguments. This callback may belong to a
            // watch that was dropped while the callback ran. The present watch has then begun later, and its tags are
            // newer.
            let Some(watch) = &threads.watch else { return };
            self.queries.switch(watch.backend_tags());
        }
        let number = self.next_switch();
        if is_watching || spawn_quiet(THREAD, || self.rebuild_and_settle()).is_err() {
            self.rebuild_and_settle();
        }
        self.wait_until_rebuilt(number);
    }

    fn next_switch(&self) -> u64 {
        let mut switches = lock(&self.here().switches);
        switches.last += 1;
        switches.last
    }

    /// Waits until a rebuild that began after the switch with this number has ended, but not for longer than
    /// [`LONGEST_WAIT`]. If the program itself has switched tracing, its call waits for the watch that calls this
    /// function. So the caches are rebuilt before the program creates its next span, and that span is recorded.
    fn wait_until_rebuilt(&self, number: u64) {
        if !REBUILDING.get() {
            let here = self.here();
            let is_waiting = |switches: &mut Switches| switches.rebuilt < number;
            let _ = here.has_rebuilt.wait_timeout_while(lock(&here.switches), LONGEST_WAIT, is_waiting);
        }
    }

    fn rebuild_and_settle(&'static self) {
        self.rebuild();
        self.settle_if_open();
    }

    fn settle_if_open(&'static self) {
        if self.queries.open().is_none() {
            return;
        }
        let here = self.here();
        if here.settling.swap(AGAIN, Ordering::SeqCst) != IDLE {
            if let Some(settler) = &lock(&here.threads).settler {
                settler.unpark();
            }
            return;
        }
        // The calling thread may have no file descriptors. The new thread needs none, either.
        if spawn_quiet(THREAD, || self.settle(here)).is_err() {
            here.settling.store(IDLE, Ordering::SeqCst);
        }
    }

    fn settle(&self, here: &OfProcess) {
        lock(&here.threads).settler = Some(std::thread::current());
        loop {
            here.settling.store(SETTLING, Ordering::SeqCst);
            let Some(asked) = self.queries.open() else {
                return here.settling.store(IDLE, Ordering::SeqCst);
            };
            let mut pause = FIRST_PAUSE;
            while pause <= self.last_pause && here.settling.load(Ordering::SeqCst) == SETTLING {
                std::thread::park_timeout(pause);
                self.rebuild();
                pause *= 2;
            }
            if here.settling.compare_exchange(SETTLING, IDLE, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                return self.queries.settle(asked);
            }
        }
    }

    /// Makes `tracing` ask the subscribers about every callsite again, while one of this crate's dispatches is the
    /// thread's default.
    fn rebuild(&self) {
        static TURN: Turn = Turn::new();
        TURN.run(|| {
            // This turn may also do the work of the other rebuilder. So a dispatch of either rebuilder is used, and the
            // waiting threads of both are notified.
            let rebuilders = [self, &ORDINARY, &DETACHED];
            let served = rebuilders.map(|it| (it.here(), lock(&it.here().switches).last));
            // Only foreign code can panic here. The panic hook has reported the panic; the next rebuild must not be affected.
            let _ = catch_unwind(AssertUnwindSafe(|| {
                let dispatch = rebuilders.iter().find_map(|it| it.here().dispatch());
                let Some(dispatch) = dispatch else { return };
                let before = LevelFilter::current();
                REBUILDING.set(true);
                let rebuild = || {
                    forks::apart(|| dispatcher::with_default(&dispatch, callsite::rebuild_interest_cache));
                };
                // A layer that is queried may switch tracing, while the thread of a watch waits for this rebuild.
                // `as_callback` prevents the layer from waiting for that thread.
                let _ = as_callback(|| catch_unwind(AssertUnwindSafe(rebuild)));
                REBUILDING.set(false);
                follow_with_log(before, LevelFilter::current());
            }));
            for (here, last) in served {
                lock(&here.switches).rebuilt = last;
                here.has_rebuilt.notify_all();
            }
        });
    }

    fn after_fork(&'static self) -> io::Result<()> {
        let here = self.here();
        let mut threads = lock(&here.threads);
        if here.members(&threads).followers == 0 {
            return Ok(());
        }
        forks::prepare();
        let watch = (self.start)()?;
        self.queries.switch(watch.backend_tags());
        let before = threads.watch.replace(watch);
        drop(threads);
        drop(before);
        let number = self.next_switch();
        self.rebuild_and_settle();
        self.wait_until_rebuilt(number); // The thread of the new watch may be rebuilding.
        Ok(())
    }
}

/// The level of the program's own logger. The maximum level of `log` is never set below this level.
#[cfg(feature = "log-bridge")]
pub(crate) static OWN_LEVEL: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

/// Returns the maximum level of `log` that corresponds to a level of `tracing`, and at least the level of the program's
/// own logger.
#[cfg(feature = "log")]
fn as_log(level: LevelFilter) -> log::LevelFilter {
    let same = match level {
        LevelFilter::ERROR => log::LevelFilter::Error,
        LevelFilter::WARN => log::LevelFilter::Warn,
        LevelFilter::INFO => log::LevelFilter::Info,
        LevelFilter::DEBUG => log::LevelFilter::Debug,
        LevelFilter::TRACE => log::LevelFilter::Trace,
        _ => log::LevelFilter::Off,
    };
    #[cfg(feature = "log-bridge")]
    let same = {
        let own = log::LevelFilter::iter().nth(OWN_LEVEL.load(Ordering::Relaxed));
        same.max(own.unwrap_or(log::LevelFilter::Off))
    };
    same
}

/// Sets the maximum level of `log` to the maximum level of `tracing`, if the two levels agreed before the rebuild.
///
/// The two levels agree after `SubscriberInitExt::init`. If a program has set another level for its logger, that
/// level stays.
#[cfg(feature = "log")]
fn follow_with_log(before: LevelFilter, after: LevelFilter) {
    if log::max_level() == as_log(before) {
        log::set_max_level(as_log(after));
    }
}

/// Sets the maximum level of `log` to the maximum level of `tracing`, which `current` returns. If a rebuild changes the
/// level of `tracing` meanwhile, either this function or the rebuild sets the new level.
#[cfg(feature = "log-bridge")]
pub(crate) fn set_log_level(current: impl Fn() -> LevelFilter) {
    loop {
        let level = current();
        log::set_max_level(as_log(level));
        if current() == level {
            return;
        }
    }
}

#[cfg(not(feature = "log"))]
fn follow_with_log(_before: LevelFilter, _after: LevelFilter) {}

/// The answer to a query about a callsite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    On,
    Off,
    /// The answer must not be cached, because no thread would notice a switch of tracing.
    Ask,
}

/// The part of a filter that answers the queries of `tracing`. The answer depends on whether the filter's tag is
/// enabled. The tag may be restricted to one backend.
#[derive(Debug)]
pub(crate) struct Follower {
    watches: bool,
    rebuilder: OnceLock<&'static Rebuilder>,
}

impl std::fmt::Debug for Rebuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rebuilder").field("tags", &self.queries.tags).finish_non_exhaustive()
    }
}

impl Follower {
    pub(crate) const fn new() -> Self {
        Self { watches: true, rebuilder: OnceLock::new() }
    }

    pub(crate) const fn without_watch() -> Self {
        Self { watches: false, rebuilder: OnceLock::new() }
    }

    /// Begins to follow the switches of tracing, if the rebuilder has a dispatch. If no thread can be started that
    /// notices the switches, no answer is cached, and the filter is asked about every event.
    pub(crate) fn follow(&self, rebuilder: &'static Rebuilder) {
        if self.watches
            && rebuilder.has_dispatch.load(Ordering::Acquire)
            && self.rebuilder.get().is_none()
            && rebuilder.add_follower().is_ok()
            && self.rebuilder.set(rebuilder).is_err()
        {
            rebuilder.remove_follower(); // Another thread has set the rebuilder first.
        }
    }

    pub(crate) fn answer(&self, tag: AtraceTag) -> Answer {
        let Some(rebuilder) = self.rebuilder.get() else { return Answer::Ask };
        let ways = rebuilder.queries.ask(!REBUILDING.get());
        if backend_tags_enable(ways, tag) { Answer::On } else { Answer::Off }
    }

    /// Returns the answer of a filter for a subscriber or for a whole stack. This answer can be cached, because spans
    /// are lost only if the answers of a single layer's filter are cached (tokio-rs/tracing#2519).
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
        }
    }
}

/// Makes the filters follow switches of tracing again in a forked child.
///
/// A child has none of its parent's threads, so its callsites stay enabled or disabled as they were during the fork.
/// Call this once in the child, outside of any span or event. The function starts the thread that notices switches
/// again, and applies switches that happened since the fork. A process that is forked from a prepared process, such as
/// an app from Android's zygote, should call this function after the fork, or create its subscriber only after the
/// fork. A child need not call this function if it has no filter, or if its filters are [without a
/// watch](crate::AtraceFilter::without_watch).
///
/// Do not fork while another thread creates a dispatcher of `tracing`: the first dispatcher that the child creates
/// would wait forever. This is true of every program that uses `tracing`. A fork by the C library waits while a thread of
/// this crate makes `tracing` query the subscribers, but for a second at most; a bare `clone` does not wait.
///
/// # Errors
///
/// Returns an error if the thread that notices switches can't be started.
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
        /// Whether the subscriber of a test panics on this thread.
        static PANICS: Cell<bool> = const { Cell::new(false) };
        /// The number of times that the subscriber of a test was queried on this thread.
        static ASKED: Cell<u32> = const { Cell::new(0) };
    }

    /// A subscriber that calls a function when it is asked about a callsite.
    struct Asked(fn() -> Interest);

    impl Subscriber for Asked {
        fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
            (self.0)()
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

    /// Tests that after a panic in a rebuild, queries on this thread are counted again, because they no longer belong
    /// to the rebuild.
    #[test]
    fn a_rebuild_that_panics_is_over() {
        let dispatch = Dispatch::new(Asked(|| {
            ASKED.set(ASKED.get() + 1);
            assert!(!PANICS.get(), "on purpose");
            Interest::never()
        }));
        dispatcher::with_default(&dispatch, || tracing::info!("a callsite to be asked"));
        ORDINARY.add_dispatch(&dispatch);
        for panics in [true, false] {
            PANICS.set(panics);
            let (before, start) = (ASKED.get(), std::time::Instant::now());
            // While another test is rebuilding, `rebuild` leaves the work to that test.
            while ASKED.get() == before {
                assert!(start.elapsed() < std::time::Duration::from_secs(300), "nobody is asked");
                ORDINARY.rebuild();
                assert!(!REBUILDING.get());
            }
        }
    }

    /// Tests that a switch waits for its rebuild, although another thread is already rebuilding, and does this rebuild
    /// as well. If the thread of the watch has noticed the switch, the program waits for that thread.
    #[cfg(not(miri))] // Miri cannot block signals, as the thread that rebuilds does.
    #[test]
    fn a_switch_waits_for_the_thread_that_rebuilds_for_it() {
        thread_local!(static HOLDS: Cell<bool> = const { Cell::new(false) });
        static STEPS: std::sync::Barrier = std::sync::Barrier::new(2);
        let dispatch = Dispatch::new(Asked(|| {
            if HOLDS.replace(false) {
                STEPS.wait();
                STEPS.wait();
            }
            Interest::never()
        }));
        dispatcher::with_default(&dispatch, || tracing::info!("a callsite to be asked"));
        ORDINARY.add_dispatch(&dispatch);
        ORDINARY.add_follower().unwrap();
        // Returns false if this thread was so slow on a busy machine that it looked only after the longest wait.
        let is_in_time = |is_watching| {
            let rebuilding = std::thread::spawn(|| {
                HOLDS.set(true);
                while HOLDS.get() {
                    ORDINARY.rebuild(); // While another test is rebuilding, this leaves the work to that test.
                }
            });
            STEPS.wait();
            let (sender, switched) = std::sync::mpsc::channel();
            let start = std::time::Instant::now();
            let switching = std::thread::spawn(move || {
                ORDINARY.switched(is_watching);
                sender.send(()).unwrap();
            });
            let told = switched.recv_timeout(LONGEST_WAIT / 5);
            let is_in_time = start.elapsed() < LONGEST_WAIT;
            assert!(
                told.is_err() || !is_in_time,
                "the switch took effect before the rebuild (on the thread of the watch: {is_watching})"
            );
            STEPS.wait();
            switching.join().unwrap();
            rebuilding.join().unwrap();
            is_in_time
        };
        for is_watching in [false, true] {
            assert!((0..20).any(|_| is_in_time(is_watching)), "never looked in time");
        }
        ORDINARY.remove_follower();
    }

    /// A rebuilder whose repetitions are over in about 15 ms. The test calls it, instead of a watch.
    static QUICK: Rebuilder = Rebuilder::new(|| watch_backends(|_| (), false), Duration::from_millis(8));

    /// Tests that a switch after the repetitions needs only a single rebuild, if only rebuilds by this crate query the
    /// subscribers. The test runs in a process of its own, because a new dispatch of another test queries as well.
    #[cfg(not(miri))]
    #[test]
    fn where_nobody_asks_a_switch_rebuilds_once() {
        const CASE: &str = "ATRACE_REBUILDS_ONCE";
        if std::env::var_os(CASE).is_none() {
            let test = "interest_cache::tests::where_nobody_asks_a_switch_rebuilds_once";
            let mut command = std::process::Command::new(std::env::current_exe().unwrap());
            let ran = command.args([test, "--exact"]).env(CASE, "1").output().unwrap();
            let said = String::from_utf8_lossy(&ran.stdout);
            assert!(ran.status.success() && said.contains("1 passed"), "{said}");
            return;
        }
        static FOLLOWER: Follower = Follower::new();
        static ANSWERS: AtomicU64 = AtomicU64::new(0);
        let settled = || {
            while QUICK.queries.open().is_some() || QUICK.here().settling.load(Ordering::SeqCst) != IDLE {
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        let dispatch = Dispatch::new(Asked(|| {
            ANSWERS.fetch_add(1, Ordering::SeqCst);
            FOLLOWER.interest(AtraceTag::App)
        }));
        QUICK.add_dispatch(&dispatch);
        FOLLOWER.follow(&QUICK);
        dispatcher::with_default(&dispatch, || tracing::error!("a callsite to be asked"));
        assert_eq!(ANSWERS.load(Ordering::SeqCst), 1);
        assert!(QUICK.queries.open().is_some());
        // The first switch makes a rebuild and 4 repetitions, which settle the queries of the callsite's registration.
        QUICK.switched(true);
        settled();
        assert_eq!(ANSWERS.load(Ordering::SeqCst), 1 + 1 + 4);
        QUICK.switched(true);
        settled();
        assert_eq!(ANSWERS.load(Ordering::SeqCst), 1 + 1 + 4 + 1);
    }

    /// This is a single test, because the level of `log` belongs to the whole process.
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
        // A rebuild changes the level between the first look and the change of the level of `log`.
        #[cfg(feature = "log-bridge")]
        for (after, as_log) in levels {
            log::set_max_level(log::LevelFilter::Error);
            let is_first = Cell::new(true);
            set_log_level(|| {
                if !is_first.replace(false) {
                    return after;
                }
                follow_with_log(LevelFilter::WARN, after);
                LevelFilter::WARN
            });
            assert_eq!(log::max_level(), as_log);
        }
    }
}
