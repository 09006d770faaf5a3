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
//!   silence a callsite, or everything, while on. Nothing tells when such an asker is done. So the time of
//!   the last question that did not come from our own rebuild is noted, and if it was shortly before a
//!   switch, the rebuild is repeated at growing intervals over the following second.
//! - *`log` stays off*: its maximum level is a word of its own, which `SubscriberInitExt::init` derives from
//!   `tracing`'s once. Where it agreed with `tracing`'s before the rebuild, it is made to agree again.
//! - *The program tells us within one of its own dispatches*, through `atrace_set_tracing_enabled`: a default
//!   can't be set there. So only a watching thread rebuilds at once, anywhere else a thread is started for
//!   it.
//!
//! There are two boards, one for each kind of watch. A thread without descriptors must not run foreign code,
//! which may want to write to a file; a rebuild asks every layer, and may come to drop the last reference to
//! a stack.

use std::cell::Cell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use atrace::AtraceTag;
use atrace::watch::{Watch, on_watching_thread, watch, watch_without_descriptors};
use tracing_core::dispatcher::{self, WeakDispatch};
use tracing_core::{Dispatch, Interest, LevelFilter, callsite};

/// How long after a question its answer may still be on its way to a cache.
const SETTLED_AFTER: Duration = Duration::from_secs(1);

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
    state: Mutex<State>,
    /// The tags that the watch told last.
    tags: AtomicU64,
    /// When somebody else than we asked last, in milliseconds from [`started`]; 0 for never.
    asked: AtomicU64,
    /// Whether a thread is repeating the rebuild: one of the values below.
    settling: AtomicU8,
    /// Some dispatch was registered here once.
    has_dispatch: AtomicBool,
    start: fn() -> io::Result<Watch>,
}

struct State {
    followers: usize,
    watch: Option<Watch>,
    dispatches: Vec<WeakDispatch>,
}

/// For stacks, where layers of others are asked.
pub(crate) static ORDINARY: Board = Board::new(|| watch(|tags| ORDINARY.switched(tags)));
/// For subscribers that are alone.
pub(crate) static DETACHED: Board = Board::new(|| watch_without_descriptors(|tags| DETACHED.switched(tags)));

impl Board {
    const fn new(start: fn() -> io::Result<Watch>) -> Self {
        Self {
            state: Mutex::new(State { followers: 0, watch: None, dispatches: Vec::new() }),
            tags: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            settling: AtomicU8::new(IDLE),
            has_dispatch: AtomicBool::new(false),
            start,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a dispatch to those in whose name a rebuild may run.
    pub(crate) fn add_dispatch(&self, dispatch: &Dispatch) {
        let mut state = self.lock();
        let alive: Vec<_> = state.dispatches.iter().map(WeakDispatch::upgrade).collect();
        let mut is_alive = alive.iter().map(Option::is_some);
        state.dispatches.retain(|_| is_alive.next().unwrap_or(true));
        state.dispatches.push(dispatch.downgrade());
        self.has_dispatch.store(true, Ordering::Release);
        drop(state);
        drop(alive); // Perhaps the last references: not under the lock.
    }

    /// Adds one who wants to be told, and has the watch run.
    fn add_follower(&self) -> io::Result<()> {
        let mut state = self.lock();
        if state.watch.is_none() {
            let watch = (self.start)()?;
            // A callback that comes meanwhile waits for the lock, and knows better.
            self.tags.store(watch.tags().bits(), Ordering::Release);
            state.watch = Some(watch);
        }
        state.followers += 1;
        Ok(())
    }

    fn remove_follower(&self) {
        let mut state = self.lock();
        state.followers -= 1;
        let watch = if state.followers == 0 { state.watch.take() } else { None };
        drop(state);
        drop(watch); // Waits for its thread a little.
    }

    /// What the watch calls.
    fn switched(&'static self, tags: AtraceTag) {
        {
            let _state = self.lock();
            self.tags.store(tags.bits(), Ordering::Release);
        }
        if on_watching_thread() {
            return self.rebuild_and_settle();
        }
        let thread = std::thread::Builder::new().name("atrace-rebuild".to_owned());
        if thread.spawn(|| self.rebuild_and_settle()).is_err() {
            self.rebuild_and_settle();
        }
    }

    fn rebuild_and_settle(&'static self) {
        let asked = match self.asked.load(Ordering::Acquire) {
            0 => None,
            asked => now().checked_sub(Duration::from_millis(asked)),
        };
        self.rebuild();
        let soon = asked.is_some_and(|ago| ago < SETTLED_AFTER);
        if !soon || self.settling.swap(AGAIN, Ordering::AcqRel) != IDLE {
            return;
        }
        // Even a thread without descriptors may start this one, which needs none either.
        let thread = std::thread::Builder::new().name("atrace-rebuild".to_owned());
        if thread.spawn(|| self.settle()).is_err() {
            self.settling.store(IDLE, Ordering::Release);
        }
    }

    fn settle(&self) {
        loop {
            self.settling.store(SETTLING, Ordering::Release);
            let mut pause = Duration::from_millis(1);
            while pause < SETTLED_AFTER && self.settling.load(Ordering::Acquire) == SETTLING {
                std::thread::sleep(pause);
                self.rebuild();
                pause *= 2;
            }
            if self.settling.compare_exchange(SETTLING, IDLE, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return;
            }
        }
    }

    /// Has every callsite asked again, in the name of one of our dispatches.
    fn rebuild(&self) {
        let dispatches: Vec<_> = self.lock().dispatches.iter().map(WeakDispatch::upgrade).collect();
        if let Some(dispatch) = dispatches.iter().flatten().next() {
            let _turn = Turn::wait();
            let before = LevelFilter::current();
            // A layer of somebody else's that panics is reported by the panic hook; the next rebuild must
            // find all in order.
            let rebuild = || dispatcher::with_default(dispatch, callsite::rebuild_interest_cache);
            let _ = catch_unwind(AssertUnwindSafe(rebuild));
            follow_with_log(before, LevelFilter::current());
        }
    }

    fn after_fork(&'static self) -> io::Result<()> {
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(io::ErrorKind::WouldBlock.into()),
        };
        if state.followers == 0 {
            return Ok(());
        }
        let watch = (self.start)()?;
        self.tags.store(watch.tags().bits(), Ordering::Release);
        let before = state.watch.replace(watch);
        drop(state);
        drop(before);
        self.settling.store(IDLE, Ordering::Release);
        self.rebuild_and_settle();
        Ok(())
    }

    fn note_question(&self) {
        if !REBUILDING.get() {
            let now = u64::try_from(now().as_millis()).unwrap_or(u64::MAX);
            self.asked.store(now.max(1), Ordering::Release);
        }
    }
}

/// The time since the first question.
fn now() -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}

/// One rebuild at a time, so that none stores what an earlier state of another subscriber was.
struct Turn;

/// The process that is rebuilding, 0 for none: a forked child must not wait for its parent's thread.
static REBUILDER: AtomicU32 = AtomicU32::new(0);

impl Turn {
    fn wait() -> Self {
        let this = std::process::id();
        loop {
            match REBUILDER.compare_exchange(0, this, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => {
                    REBUILDING.set(true);
                    return Self;
                }
                Err(other) if other == this => std::thread::sleep(Duration::from_micros(50)),
                Err(parent) => {
                    let _ = REBUILDER.compare_exchange(parent, 0, Ordering::Relaxed, Ordering::Relaxed);
                }
            }
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        REBUILDING.set(false);
        REBUILDER.store(0, Ordering::Release);
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
        f.debug_struct("Board").field("tags", &self.tags).finish_non_exhaustive()
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
        board.note_question();
        let tags = AtraceTag::from_bits_retain(board.tags.load(Ordering::Acquire));
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
/// When the thread can't be started, or another thread of the parent was just adding a subscriber at the fork
/// (`WouldBlock`).
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
