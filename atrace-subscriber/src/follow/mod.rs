//! Filter mode: what `tracing` caches about a callsite follows the switch.
//!
//! While a subscriber says `Interest::never` and `LevelFilter::OFF`, a callsite costs what it costs without
//! any subscriber: one load and a comparison. But what is cached must be asked again when tracing is
//! switched, and nothing in `tracing` notices. A [`watch`](atrace::watch) does: it calls back, and the caches
//! are rebuilt. What can go wrong on the way, and what is done about it:
//!
//! - *A rebuild on another thread asks the wrong subscriber.* Where only one exists, `tracing` asks the
//!   default of the rebuilding thread, which for a scoped subscriber is none. So the rebuild runs with one of
//!   ours as that thread's default.
//! - *The tags change back before anyone looks.* Answers come from the tags that the watch told last, not
//!   from those of the moment: so they are the same throughout a rebuild, and after every change that counts
//!   another rebuild follows.
//! - *Somebody asked just before the switch, and stores the answer after the rebuild*: a callsite that is
//!   first hit meanwhile, a `Dispatch` being made, a rebuild of somebody else's. An "off" stored late would
//!   silence a callsite, or everything, while on. Nothing tells when such an asker is done. So questions that did
//!   not come from our own rebuild are [counted](questions), and where some were asked since the last switch that
//!   was settled, the rebuild is repeated at pauses that double, from 1 ms to 8 s: an answer stored D after a
//!   switch holds for no more than another D. (One stored more than 16 s after it holds until the next switch.)
//! - *`log` stays off*: its maximum level is a word of its own, which `SubscriberInitExt::init` derives from
//!   `tracing`'s once. Where it agreed with `tracing`'s before the rebuild, it is made to agree again.
//! - *The program tells us within one of its own dispatches*, through `atrace_set_tracing_enabled`: a default
//!   can't be set there. So only a watching thread rebuilds at once, anywhere else a thread is started for
//!   it.
//!
//! Rebuilds take [turns](Turn): who comes during one has it done once more, and waits for nobody, as it may be a
//! layer that switches while it is asked. A child of fork has the followers and dispatches of its parent, from a
//! copy that is whole whatever a thread of the parent was doing, and locks of its own.
//!
//! There are two boards, one for each kind of watch. A thread without descriptors must not run foreign code,
//! which may want to write to a file; a rebuild asks every layer, and may come to drop the last reference to
//! a stack.

mod questions;

use std::cell::Cell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::thread::Thread;
use std::time::Duration;

use atrace::AtraceTag;
use atrace::watch::{Watch, on_watching_thread, watch, watch_without_descriptors};
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

/// Those who share a watch.
pub(crate) struct Board {
    own: PerProcess<Own>,
    questions: Questions,
    /// Some dispatch was registered here once.
    has_dispatch: AtomicBool,
    start: fn() -> io::Result<Watch>,
}

/// What each process has for itself.
struct Own {
    state: Mutex<State>,
    /// The same twice, changed one after the other while `state` is locked: so at a fork one is whole.
    rolls: [Mutex<Roll>; 2],
    /// Whether a thread is repeating the rebuild: one of the values above.
    settling: AtomicU8,
}

#[derive(Default)]
struct State {
    watch: Option<Watch>,
    /// The last thread that repeated the rebuild.
    settler: Option<Thread>,
}

/// What a child has from its parent.
#[derive(Clone, Default)]
struct Roll {
    followers: usize,
    dispatches: Vec<WeakDispatch>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Own {
    fn heir_of(parent: Option<&Self>) -> Self {
        let whole = |roll: &Mutex<Roll>| match roll.try_lock() {
            Ok(roll) => Some(roll.clone()),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner().clone()),
            Err(TryLockError::WouldBlock) => None,
        };
        let roll = parent.and_then(|parent| parent.rolls.iter().find_map(whole)).unwrap_or_default();
        Self {
            state: Mutex::default(),
            rolls: [Mutex::new(roll.clone()), Mutex::new(roll)],
            settling: AtomicU8::new(IDLE),
        }
    }

    /// Changes both copies; under the lock of `state`.
    fn change(&self, _state: &mut State, change: impl Fn(&mut Roll)) {
        self.rolls.iter().for_each(|roll| change(&mut lock(roll)));
    }

    /// Under the lock of `state`.
    fn roll(&self, _state: &State) -> MutexGuard<'_, Roll> {
        lock(&self.rolls[0])
    }

    /// The dispatches that are not dropped yet.
    fn dispatches(&self) -> Vec<Dispatch> {
        let state = lock(&self.state);
        self.roll(&state).dispatches.iter().filter_map(WeakDispatch::upgrade).collect()
    }
}

/// For stacks, where layers of others are asked.
pub(crate) static ORDINARY: Board = Board::new(|| watch(|_| ORDINARY.switched()));
/// For subscribers that are alone.
pub(crate) static DETACHED: Board = Board::new(|| watch_without_descriptors(|_| DETACHED.switched()));

impl Board {
    const fn new(start: fn() -> io::Result<Watch>) -> Self {
        let questions =
            Questions { tags: AtomicU64::new(0), asked: AtomicU64::new(0), settled: AtomicU64::new(0) };
        Self { own: PerProcess::new(), questions, has_dispatch: AtomicBool::new(false), start }
    }

    fn own(&self) -> &'static Own {
        self.own.get_or_make(|| Own::heir_of(self.own.inherited()))
    }

    /// Adds a dispatch to those in whose name a rebuild may run.
    pub(crate) fn add_dispatch(&self, dispatch: &Dispatch) {
        let own = self.own();
        let mut state = lock(&own.state);
        let dispatches = own.roll(&state).dispatches.clone();
        let alive: Vec<_> = dispatches.iter().map(WeakDispatch::upgrade).collect();
        own.change(&mut state, |roll| {
            let mut is_alive = alive.iter().map(Option::is_some);
            roll.dispatches.retain(|_| is_alive.next().unwrap_or(true));
            roll.dispatches.push(dispatch.downgrade());
        });
        self.has_dispatch.store(true, Ordering::Release);
        drop(state);
        drop(alive); // Perhaps the last references: not under the lock.
    }

    /// Adds one who wants to be told, and has the watch run.
    fn add_follower(&self) -> io::Result<()> {
        let own = self.own();
        let mut state = lock(&own.state);
        if state.watch.is_none() {
            let watch = (self.start)()?;
            // A callback that comes meanwhile waits for the lock, and knows better.
            self.questions.switch(watch.tags().bits());
            state.watch = Some(watch);
        }
        own.change(&mut state, |roll| roll.followers += 1);
        Ok(())
    }

    fn remove_follower(&self) {
        let own = self.own();
        let mut state = lock(&own.state);
        own.change(&mut state, |roll| roll.followers -= 1);
        let is_last = own.roll(&state).followers == 0;
        let watch = if is_last { state.watch.take() } else { None };
        drop(state);
        drop(watch); // Waits for its thread a little.
    }

    /// What the watch calls.
    fn switched(&'static self) {
        {
            let own = self.own();
            let state = lock(&own.state);
            // Not what the callback was called with: it may be that of a watch that was dropped while it ran,
            // and the tags of another one, begun since, are newer.
            let Some(watch) = &state.watch else { return };
            self.questions.switch(watch.tags().bits());
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
        let own = self.own();
        if own.settling.swap(AGAIN, Ordering::SeqCst) != IDLE {
            if let Some(settler) = &lock(&own.state).settler {
                settler.unpark();
            }
            return;
        }
        // Even a thread without descriptors may start this one, which needs none either.
        if spawn_quiet("atrace-rebuild", || self.settle(own)).is_err() {
            own.settling.store(IDLE, Ordering::SeqCst);
        }
    }

    fn settle(&self, own: &Own) {
        lock(&own.state).settler = Some(std::thread::current());
        loop {
            own.settling.store(SETTLING, Ordering::SeqCst);
            let Some(asked) = self.questions.open() else {
                return own.settling.store(IDLE, Ordering::SeqCst);
            };
            let mut pause = FIRST_PAUSE;
            while pause <= LAST_PAUSE && own.settling.load(Ordering::SeqCst) == SETTLING {
                std::thread::park_timeout(pause);
                self.rebuild();
                pause *= 2;
            }
            if own.settling.compare_exchange(SETTLING, IDLE, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
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
                // Perhaps on behalf of the other board, too.
                let dispatches = [self, &ORDINARY, &DETACHED].map(|board| board.own().dispatches());
                let Some(dispatch) = dispatches.iter().flatten().next() else { return };
                let before = LevelFilter::current();
                REBUILDING.set(true);
                let rebuild = || dispatcher::with_default(dispatch, callsite::rebuild_interest_cache);
                let _ = catch_unwind(AssertUnwindSafe(rebuild));
                REBUILDING.set(false);
                follow_with_log(before, LevelFilter::current());
            }));
        });
    }

    fn after_fork(&'static self) -> io::Result<()> {
        let own = self.own();
        let mut state = lock(&own.state);
        if own.roll(&state).followers == 0 {
            return Ok(());
        }
        let watch = (self.start)()?;
        self.questions.switch(watch.tags().bits());
        let before = state.watch.replace(watch);
        drop(state);
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

/// One who answers for callsites by the tags that are enabled.
#[derive(Debug)]
pub(crate) struct Follower {
    tag: AtraceTag,
    watches: bool,
    board: OnceLock<&'static Board>,
}

impl std::fmt::Debug for Board {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Board").field("tags", &self.questions.tags).finish_non_exhaustive()
    }
}

impl Follower {
    pub(crate) const fn new(tag: AtraceTag) -> Self {
        Self { tag, watches: true, board: OnceLock::new() }
    }

    pub(crate) fn without_watch(mut self) -> Self {
        self.watches = false;
        self
    }

    pub(crate) fn tag(&self) -> AtraceTag {
        self.tag
    }

    /// Follows the switch from now on, once the board knows a dispatch. Where no thread can be started, every
    /// event is asked.
    pub(crate) fn follow(&self, board: &'static Board) {
        if self.watches
            && board.has_dispatch.load(Ordering::Acquire)
            && self.board.get().is_none()
            && board.add_follower().is_ok()
        {
            if self.board.set(board).is_ok() {
                atrace::__note_filter(true);
            } else {
                board.remove_follower(); // Another thread was faster.
            }
        }
    }

    pub(crate) fn answer(&self) -> Answer {
        let Some(board) = self.board.get() else { return Answer::Ask };
        let tags = AtraceTag::from_bits_retain(board.questions.ask(!REBUILDING.get()));
        if tags.intersects(self.tag & AtraceTag::ValidMask) { Answer::On } else { Answer::Off }
    }

    /// For a callsite of which no one else may be asked in between.
    pub(crate) fn interest(&self) -> Interest {
        match self.answer() {
            Answer::On => Interest::always(),
            Answer::Off => Interest::never(),
            Answer::Ask => Interest::sometimes(),
        }
    }

    pub(crate) fn max_level_hint(&self) -> Option<LevelFilter> {
        (self.answer() == Answer::Off).then_some(LevelFilter::OFF)
    }

    #[inline]
    pub(crate) fn is_enabled(&self) -> bool {
        atrace::atrace_is_tag_enabled(self.tag)
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        if let Some(board) = self.board.get() {
            board.remove_follower();
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

#[cfg(all(test, feature = "log"))]
mod tests {
    use super::*;

    /// The level of `log` belongs to the process: one test for all of it.
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
