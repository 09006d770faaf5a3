//! Calls functions of the program when the enabled tags change.
//!
//! A program that only writes events does not need a watch, because the first event after a switch of tracing notices
//! the switch. A watch is for code that caches results which depend on the tags, such as the interest cache of
//! `tracing`.
//!
//! # How it works
//!
//! Watches share a thread, which starts with the first watch and stops when the last watch ends. The thread sleeps in
//! the kernel (on a futex) until the serial of the properties changes. A change of Perfetto's sessions wakes the
//! thread, too. No signal is delivered on the thread. `watch/notifier.rs` makes sure that each callback is called for
//! the last change, that the calls are in the order of the changes, and that a callback is never called by two threads
//! at once.
//!
//! # Cost
//!
//! A second thread makes some system calls of a single-threaded program slower: while threads share a descriptor table,
//! the kernel counts references at each system call with a descriptor. A watching thread that has given up its
//! descriptors does not cause this cost: see [`watch_without_descriptors`]. So there are at most two watching threads,
//! one with descriptors and one without.
//!
//! # Ticks
//!
//! While a session of Perfetto's wants events, the watching threads call a tracer's [tick](on_tick) function 20 times a
//! second. A tracer may hold data of a thread back until the thread's next event. The tick lets the tracer write these
//! data even if the thread has no next event.
//!
//! # Forks
//!
//! A forked child has no watch until it begins one, even if its parent had watches.

mod notifier;

use std::cell::Cell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use atrace_sys::OnceRef;
use atrace_sys::fork::PerProcess;
use atrace_sys::properties::Properties;
use atrace_sys::{futex, process, thread};

use self::notifier::{Notifier, Registered};
use crate::backend::BackendTags;
use crate::producer;
use crate::sink::{self, choice};
use crate::{AtraceTag, refresh, state};

/// A callback. Its arguments are the tags that were last reported, and the tags that are enabled now.
type Callback = Arc<dyn Fn(BackendTags, BackendTags) + Send + Sync>;

/// A guard that keeps a callback registered. Dropping it ends the watch.
///
/// When the drop returns, the callback may still be running on another thread.
#[derive(Debug)]
#[must_use = "the watch ends when this is dropped"]
pub struct Watch {
    watchers: &'static Watchers,
    id: u64,
    /// Whether the state page ([`crate::state`]) counts this watch as a tracer's watch.
    is_counted: bool,
}

impl Watch {
    /// Returns one word with the tags that were last reported to the callbacks, separately for each backend. If nothing
    /// was reported yet, returns the tags that were enabled when the first watch began. A tracer stores the word, and
    /// passes it to [`backend_tags_enable`](crate::tracer::backend_tags_enable).
    ///
    /// Each change after these tags is reported to the callbacks. So a tracer that starts from these tags misses no
    /// change. Call this only in the process that began the watch.
    pub fn backend_tags(&self) -> u64 {
        self.watchers.notifier.last().to_word()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _errno = process::ErrnoGuard::new();
        if self.is_counted {
            state::note_tracer(false);
        }
        let present = self.watchers.thread().present.get();
        if present.is_some_and(|present| std::ptr::eq(present, self.watchers)) {
            self.watchers.remove(self.id);
        }
    }
}

/// Calls `callback` with the enabled tags each time they change, until the returned [`Watch`] is dropped.
///
/// The callback runs on this crate's *watching thread*, or on a thread that calls a function which may change the tags
/// at once: [`atrace_set_tracing_enabled`], [`atrace_update_tags`], [`atrace_init`](crate::atrace_init),
/// [`perfetto::connect`](crate::perfetto::connect) or [`perfetto::record_to`](crate::perfetto::record_to). The callback
/// is never called by two threads at once, and the calls are in the order of the changes. If another thread is calling
/// callbacks, these functions wait until the callbacks have returned, for about a second at most. If several changes
/// happen before the callback returns, only the last change is reported. The callback is called only for changes, not
/// for the tags that are enabled when the watch begins. A panic in the callback is caught.
///
/// A caller that also needs the tags which are enabled now calls
/// [`atrace_get_enabled_tags`](crate::atrace_get_enabled_tags) after this function. In this order the caller misses no
/// change, because later changes are reported to the callback.
///
/// If tracing can't be switched on in this process (see [`sink()`](crate::sink())), the watching thread is not started
/// until [`atrace_init`](crate::atrace_init), [`perfetto::connect`](crate::perfetto::connect) or
/// [`perfetto::record_to`](crate::perfetto::record_to) is called. If the sink could not be opened for lack of
/// descriptors or memory, the watching thread tries to open it again each second.
///
/// [`atrace_set_tracing_enabled`]: crate::atrace_set_tracing_enabled
/// [`atrace_update_tags`]: crate::atrace_update_tags
///
/// # Errors
///
/// Returns an error if the thread can't be started.
///
/// # Examples
///
/// ```
/// use atrace::AtraceTag;
///
/// let watch = atrace::watch::watch(|tags| {
///     println!("database events: {}", tags.contains(AtraceTag::Database));
/// })?;
/// # drop(watch);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn watch(callback: impl Fn(AtraceTag) + Send + Sync + 'static) -> io::Result<Watch> {
    ORDINARY.add(Arc::new(with_tags(callback)))
}

/// Does the same as [`watch`], on a thread without file descriptors, so that system calls of the program's other
/// threads stay as fast as before.
///
/// The callback must not use descriptors (read, write, open, close) and must not start threads: the thread has an empty
/// descriptor table of its own. On kernels before 5.9, and on Android before version 13, the thread is an ordinary
/// thread, with the descriptors of the process.
///
/// # Errors
///
/// Returns an error if the thread can't be started.
pub fn watch_without_descriptors(callback: impl Fn(AtraceTag) + Send + Sync + 'static) -> io::Result<Watch> {
    DETACHED.add(Arc::new(with_tags(callback)))
}

/// Adapts a callback that does not distinguish backends. The result calls `callback` only if the union of all backends'
/// tags changes.
fn with_tags(callback: impl Fn(AtraceTag)) -> impl Fn(BackendTags, BackendTags) {
    move |before, now| {
        if before.union() != now.union() {
            callback(now.union());
        }
    }
}

/// Calls `body`, for which a callback on another thread may be waiting. Functions that switch tracing usually wait for
/// running callbacks; within `body` they do not wait, because such a callback would be waiting for them. `body` must
/// not panic.
pub fn as_callback<T>(body: impl FnOnce() -> T) -> T {
    let outer = IN_CALLBACK.replace(true);
    let returned = body();
    IN_CALLBACK.set(outer);
    returned
}

/// Does the same as [`watch`], for a tracer that caches which tags are enabled. The callback gets the tags from
/// [`Watch::backend_tags`].
///
/// The callback is also called if a tag stays enabled, but for another backend. The argument of the callback is true on
/// this crate's watching thread, and false on a thread of the program that switches tracing. If `has_descriptors` is
/// false, the watch uses the thread of [`watch_without_descriptors`].
///
/// The state page ([`state_page`](crate::state_page)) has the number of these watches, by which `atrace doctor` detects
/// a forked child whose tracer has no watch.
///
/// # Errors
///
/// Returns an error if the thread can't be started.
pub fn watch_backends(callback: fn(bool), has_descriptors: bool) -> io::Result<Watch> {
    let thread = if has_descriptors { &ORDINARY } else { &DETACHED };
    let mut watch = thread.add(Arc::new(move |_, _| callback(WATCHING.get())))?;
    watch.is_counted = true;
    state::note_tracer(true);
    Ok(watch)
}

/// The time between two ticks (calls of a tracer's function while a session of Perfetto's wants events).
const TICK: Duration = Duration::from_millis(50);

static ON_TICK: OnceRef<fn()> = OnceRef::new();

/// Makes a thread of this crate call `body` every 50 ms while a session of Perfetto's wants events. Only the first call
/// in the process has an effect. In a forked child, the parent's `body` is called once the child has a watch.
///
/// `body` may run on two threads at once. `body` must not use file descriptors. If no thread can be started, `body` is
/// never called.
pub fn on_tick(body: &'static fn()) {
    let _ = ON_TICK.set(body);
    start_ticks();
}

/// Starts the watching threads that this process needs once it may have sessions of Perfetto: a thread for watches that
/// began while the tags could not change, and a thread for ticks.
///
/// # Errors
///
/// Returns an error if a thread for watches can't be started. In this case, the other threads are started nevertheless.
pub(crate) fn sessions_are_possible() -> io::Result<()> {
    let mut started = Ok(());
    for watchers in [&ORDINARY, &DETACHED].into_iter().filter_map(|thread| thread.present.get()) {
        started = started.and(watchers.notifier.ensure_thread(|| watchers.start()));
    }
    start_ticks();
    started
}

/// If a tracer has called [`on_tick`] and this process may have sessions, starts a watching thread for the ticks,
/// unless such a thread exists.
fn start_ticks() {
    static TICKS: PerProcess<OnceLock<Option<Watch>>> = PerProcess::new();
    if ON_TICK.get().is_some() && sink::is_perfetto_enabled() {
        TICKS.get_or_make(OnceLock::new).get_or_init(|| DETACHED.add(Arc::new(|_, _| ())).ok());
        sessions_changed(); // A thread that has slept until now begins to tick.
    }
}

/// Calls the tracer's tick function, if a session wants events and the last tick was at least [`TICK`] ago. (The last
/// tick may be more recent, because the thread also wakes for other reasons, and there may be two threads.) Returns the
/// time until the next tick, or `None` if no session wants events.
fn tick() -> Option<Duration> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let is_wanted = |word: &AtomicU64| word.load(Ordering::Relaxed) & AtraceTag::ValidMask.bits() != 0;
    let body = ON_TICK.get().filter(|_| producer::tags_word().is_some_and(is_wanted))?;
    let (now, next) = (producer::now(), NEXT.load(Ordering::Relaxed));
    if now < next {
        return Some(Duration::from_nanos(next - now));
    }
    let later = now.saturating_add(TICK.as_nanos() as u64);
    if NEXT.compare_exchange(next, later, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
        body();
    }
    Some(TICK)
}

thread_local! {
    static WATCHING: Cell<bool> = const { Cell::new(false) };
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// The maximum number of times that a function that switches tracing checks whether the callbacks on another thread
/// have ended. All checks together take little more than a second.
const LOOKS: u32 = 5000;

/// Calls the callbacks if the tags have changed. Call this after a change that the properties do not show. If another
/// thread is calling the callbacks already, waits for that thread, so that the callbacks have run when the program's
/// function returns.
pub(crate) fn tags_may_have_changed() {
    let _errno = process::ErrnoGuard::new();
    let mut looks = 0..LOOKS;
    for thread in [&ORDINARY, &DETACHED] {
        if let Some(watchers) = thread.present.get() {
            watchers.deliver();
            let is_own = WATCHING.get() || IN_CALLBACK.get();
            while !is_own && watchers.notifier.is_notifying() && looks.next().is_some() {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
    }
}

/// Wakes the watching threads when the tags that sessions want have changed. Usually the socket thread, which talks to
/// Perfetto's service, calls this function. The function itself calls no callback.
fn sessions_changed() {
    for thread in [&ORDINARY, &DETACHED] {
        if let Some(watchers) = thread.present.get() {
            watchers.nudge();
        }
    }
}

/// One of the two watching threads with its callbacks. A forked child has watching threads of its own.
struct WatchThread {
    present: PerProcess<Watchers>,
    detached: bool,
}

static ORDINARY: WatchThread = WatchThread { present: PerProcess::new(), detached: false };
static DETACHED: WatchThread = WatchThread { present: PerProcess::new(), detached: true };

impl WatchThread {
    fn add(&self, callback: Callback) -> io::Result<Watch> {
        let _errno = process::ErrnoGuard::new();
        self.present.get_or_make(|| Watchers::new(self.detached)).add(callback)
    }
}

struct Watchers {
    detached: bool,
    /// The number of times that the watching thread was told to look again, because it must stop or because the tags of
    /// Perfetto's sessions have changed. The thread does not fall asleep if this number has changed since the thread
    /// last read it. In a process without properties, the thread sleeps on this word (a futex).
    nudges: AtomicU32,
    /// The callbacks, and the flag by which the thread is stopped.
    notifier: Notifier<BackendTags, Callback, Arc<AtomicBool>>,
}

impl std::fmt::Debug for Watchers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watchers").field("detached", &self.detached).finish_non_exhaustive()
    }
}

impl Watchers {
    fn new(detached: bool) -> Self {
        let state = Registered {
            callbacks: Vec::new(),
            next_id: 0,
            last: BackendTags::NONE,
            notifying: false,
            again: false,
            thread: None,
        };
        Self { detached, nudges: AtomicU32::new(0), notifier: Notifier(Mutex::new(state)) }
    }

    fn thread(&self) -> &'static WatchThread {
        if self.detached { &DETACHED } else { &ORDINARY }
    }

    fn add(&'static self, callback: Callback) -> io::Result<Watch> {
        self.notifier.add(callback, BackendTags::now(), || self.start()).map(|id| Watch {
            watchers: self,
            id,
            is_counted: false,
        })
    }

    /// Starts the thread, and returns the flag by which it is stopped. Returns `None` if the tags can't change.
    fn start(&'static self) -> io::Result<Option<Arc<AtomicBool>>> {
        let sink = choice::chosen();
        let may_have_sessions = sink::is_perfetto_enabled() || producer::is_linked();
        if sink.properties().is_none() && !sink.is_waiting() && !may_have_sessions {
            return Ok(None);
        }
        static SESSIONS_CHANGED: fn() = sessions_changed;
        producer::on_change(&SESSIONS_CHANGED);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        thread::spawn_quiet("atrace-watch", move || {
            WATCHING.set(true);
            let properties = self.properties_when_there(&stopped);
            if self.detached {
                thread::leave_descriptors();
            }
            match properties {
                Some(properties) => self.follow(properties, &stopped),
                None => self.follow_sessions(&stopped),
            }
        })?;
        Ok(Some(stop))
    }

    fn remove(&self, id: u64) {
        let (callback, stop) = self.notifier.remove(id);
        if let Some(stop) = stop {
            stop.store(true, Ordering::Release);
            self.nudge();
            wake_until_gone(&stop);
        }
        drop(callback); // This runs code of the program, so the lock is not held here.
    }

    /// Waits until the sink is chosen or the watch's thread must stop. Returns the system properties that the sink
    /// reads, or `None` if the sink reads none. Meanwhile, calls the callbacks if sessions change the enabled tags.
    fn properties_when_there(&self, stop: &AtomicBool) -> Option<&'static Properties> {
        while choice::chosen().is_waiting() && !stop.load(Ordering::Acquire) {
            self.deliver();
            std::thread::sleep(Duration::from_secs(1));
        }
        choice::present().properties()
    }

    /// Waits for changes of the properties and calls the callbacks, until the thread is stopped.
    fn follow(&self, properties: &Properties, stop: &AtomicBool) {
        self.follow_by(stop, |nudges| {
            let (what, serial) = refresh::awaited(properties);
            move |after| {
                // If the last answer of libcutils or libandroid may be out of date, the thread asks again, even if no
                // event does.
                let after = after.or_else(refresh::look_again_after);
                let is_nudged = || self.nudges.load(Ordering::Acquire) != nudges;
                properties.wait_unless(what, serial, after, is_nudged).is_ok()
            }
        });
    }

    /// Waits for changes of Perfetto's sessions and calls the callbacks, in a process without properties, until the
    /// thread is stopped.
    fn follow_sessions(&self, stop: &AtomicBool) {
        self.follow_by(stop, |nudges| {
            move |after: Option<Duration>| {
                futex::wait(&self.nudges, nudges, after.unwrap_or(Duration::MAX)).is_ok()
            }
        });
    }

    /// Calls the callbacks after each change, until the thread is stopped. `look` reads the state that the changes
    /// depend on, and returns the function that waits for the next change, for at most a given time. That function
    /// returns false if the system denies the wait, for example by a seccomp filter. In that case, the thread polls.
    fn follow_by<W: FnOnce(Option<Duration>) -> bool>(&self, stop: &AtomicBool, look: impl Fn(u32) -> W) {
        loop {
            let nudges = self.nudges.load(Ordering::Acquire);
            if stop.load(Ordering::Acquire) {
                return;
            }
            let wait = look(nudges);
            self.deliver();
            if !wait(tick()) {
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }

    /// Wakes the thread, so that it checks the tags again. Async-signal-safe.
    #[inline(never)]
    fn nudge(&self) {
        self.nudges.fetch_add(1, Ordering::Release);
        futex::wake(&self.nudges);
        if let Some(properties) = choice::present().properties() {
            properties.wake(refresh::awaited(properties).0);
        }
    }

    /// Calls the callbacks if the enabled tags differ from the tags that were reported last.
    fn deliver(&self) {
        self.notifier.notify(BackendTags::now, |callback, before, now| {
            // A panic of a callback is caught, so that it does not affect the other watches; the panic hook has
            // reported it. If `callback` is the last reference, the callback is dropped here, which may panic, too.
            // Dropping the payload of that panic may panic again.
            let called = as_callback(|| catch_unwind(AssertUnwindSafe(move || callback(before, now))));
            if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(called))) {
                std::mem::forget(another);
            }
        });
    }
}

/// Wakes a thread that must stop, again and again until the thread has dropped its reference to `stop`. A single wake
/// does not suffice, because it may come just before the thread falls asleep.
///
/// This function waits for at most about 4 ms. The thread may end later, for example if it is itself the caller of this
/// function. In a process without properties the function does not wait.
fn wake_until_gone(stop: &Arc<AtomicBool>) {
    let Some(properties) = choice::present().properties() else { return };
    for _ in 0..20 {
        properties.wake(refresh::awaited(properties).0);
        if Arc::strong_count(stop) == 1 {
            break;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}
