//! Being told when the enabled tags change.
//!
//! Whoever only writes events needs none of this: the gate notices a switch by itself. A watch is for those
//! who keep something that depends on the tags, such as the callsite caches of `tracing`.
//!
//! A watch is one thread, started with the first watch and stopped with the last, that sleeps in the kernel
//! until the properties change. No signal is delivered on it. It is not free for a program that had but one
//! thread: while threads share their descriptors, the kernel counts references at each system call that names
//! one; not beside one that gave up its descriptors, see [`watch_without_descriptors`].
//!
//! A forked child has no watch, whatever its parent had, until it asks for one.

mod notifier;

use std::cell::Cell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use atrace_sys::fork::PerProcess;
use atrace_sys::properties::Properties;
use atrace_sys::{process, thread};

use self::notifier::{Notifier, Registered};
use crate::producer;
use crate::sink::{choice, first};
use crate::way::Ways;
use crate::{AtraceTag, refresh};

/// Is called with what it was called with last, and what is now.
type Callback = Arc<dyn Fn(Ways, Ways) + Send + Sync>;

/// Keeps a callback registered; dropping it ends the watch.
///
/// The callback may still be running when the drop returns.
#[derive(Debug)]
#[must_use = "the watch ends when this is dropped"]
pub struct Watch {
    watchers: &'static Watchers,
    id: u64,
}

impl Watch {
    /// Returns the tags that the callbacks know of: those told last, or those enabled when the watch began.
    ///
    /// A change to other tags will be told, so who begins with these misses none. For the process that began
    /// the watch.
    pub fn tags(&self) -> AtraceTag {
        self.watchers.notifier.last().union()
    }

    /// [`tags`](Self::tags), those of each way.
    #[doc(hidden)]
    pub fn __ways(&self) -> Ways {
        self.watchers.notifier.last()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _errno = process::ErrnoGuard::new();
        let present = self.watchers.thread().present.get();
        if present.is_some_and(|present| std::ptr::eq(present, self.watchers)) {
            self.watchers.remove(self.id);
        }
    }
}

/// Calls `callback` with the enabled tags each time they change, until the returned [`Watch`] is dropped.
///
/// It is called on the watching thread, or on the one that calls [`atrace_set_tracing_enabled`] or
/// [`atrace_update_tags`], never twice at once, and in the order of the changes; of changes that follow each
/// other faster than it returns only the last is reported. It is not called for the tags enabled now. A panic
/// in it is caught.
///
/// Where tracing can't be switched on in this process ([`sink()`](crate::sink())), no thread is started and
/// it is never called. Where it can't for now, for want of descriptors or memory, the thread asks again each second.
///
/// [`atrace_set_tracing_enabled`]: crate::atrace_set_tracing_enabled
/// [`atrace_update_tags`]: crate::atrace_update_tags
///
/// # Errors
///
/// When the thread can't be started.
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

/// [`watch`] on a thread that has no file descriptors, so that it costs the program's other thread less.
///
/// The callback must not read, write, open or close anything, nor start threads: it would meet an empty
/// descriptor table of its own. (Where the kernel is older than 5.9, the thread is an ordinary one.)
///
/// # Errors
///
/// When the thread can't be started.
pub fn watch_without_descriptors(callback: impl Fn(AtraceTag) + Send + Sync + 'static) -> io::Result<Watch> {
    DETACHED.add(Arc::new(with_tags(callback)))
}

/// Whoever does not care which way events go is told of less.
fn with_tags(callback: impl Fn(AtraceTag)) -> impl Fn(Ways, Ways) {
    move |before, now| {
        if before.union() != now.union() {
            callback(now.union());
        }
    }
}

/// For `atrace-subscriber`: calls `callback` also when tags are enabled for another way than before.
#[doc(hidden)]
pub fn __watch_ways(callback: fn(), has_descriptors: bool) -> io::Result<Watch> {
    let thread = if has_descriptors { &ORDINARY } else { &DETACHED };
    thread.add(Arc::new(move |_, _| callback()))
}

thread_local! {
    static WATCHING: Cell<bool> = const { Cell::new(false) };
}

/// Tells whether the calling thread is one that a watch started, on which a callback runs with nothing of the
/// program below it.
pub fn on_watching_thread() -> bool {
    WATCHING.get()
}

/// Tells the watches of a change that the properties don't show.
pub(crate) fn tags_may_have_changed() {
    let _errno = process::ErrnoGuard::new();
    for thread in [&ORDINARY, &DETACHED] {
        if let Some(watchers) = thread.present.get() {
            watchers.deliver();
        }
    }
}

/// Perfetto's sessions want other tags than before. On the socket's thread: it calls nobody back.
fn sessions_changed() {
    for thread in [&ORDINARY, &DETACHED] {
        if let Some(watchers) = thread.present.get() {
            watchers.nudge();
        }
    }
}

/// One of the two threads that watch, and those it serves; others in a forked child.
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
    /// The thread is to look at once: it is to stop, or Perfetto's sessions want other tags than before.
    is_nudged: AtomicBool,
    /// The thread, where no property wakes it.
    sleeper: OnceLock<std::thread::Thread>,
    /// The flag tells the thread to stop.
    notifier: Notifier<Ways, Callback, Arc<AtomicBool>>,
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
            last: Ways::NONE,
            notifying: false,
            again: false,
            thread: None,
        };
        let sleeper = OnceLock::new();
        Self { detached, is_nudged: AtomicBool::new(false), sleeper, notifier: Notifier(Mutex::new(state)) }
    }

    fn thread(&self) -> &'static WatchThread {
        if self.detached { &DETACHED } else { &ORDINARY }
    }

    fn add(&'static self, callback: Callback) -> io::Result<Watch> {
        let start = || {
            let sink = choice::chosen();
            if sink.properties().is_none() && !sink.is_waiting() && !first::are_two_ways() {
                return Ok(None);
            }
            static SESSIONS_CHANGED: fn() = sessions_changed;
            producer::on_change(&SESSIONS_CHANGED);
            let stop = Arc::new(AtomicBool::new(false));
            let stopped = Arc::clone(&stop);
            thread::spawn_quiet("atrace-watch", move || {
                WATCHING.set(true);
                let properties = properties_when_there(&stopped);
                if self.detached {
                    thread::leave_descriptors();
                }
                match properties {
                    Some(properties) => self.follow(properties, &stopped),
                    None => self.follow_sessions(&stopped),
                }
            })?;
            Ok(Some(stop))
        };
        self.notifier.add(callback, Ways::now(), start).map(|id| Watch { watchers: self, id })
    }

    fn remove(&self, id: u64) {
        let (callback, stop) = self.notifier.remove(id);
        if let Some(stop) = stop {
            stop.store(true, Ordering::Release);
            self.nudge();
            wake_until_gone(&stop);
        }
        drop(callback); // May be anything: not under the lock.
    }

    /// What the thread does until it is stopped.
    fn follow(&self, properties: &Properties, stop: &AtomicBool) {
        while !stop.load(Ordering::Acquire) {
            let (what, serial) = refresh::awaited(properties);
            self.deliver();
            // What is not sure yet is asked again, also where no event comes and asks.
            if self.is_nudged.swap(false, Ordering::AcqRel) {
                continue;
            }
            let after = refresh::look_again_after();
            if properties.wait_unless(what, serial, after, &self.is_nudged).is_err() {
                // The system denies the wait, as a seccomp filter may: look instead.
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }

    /// What the thread does where only Perfetto's sessions switch anything.
    fn follow_sessions(&self, stop: &AtomicBool) {
        let _ = self.sleeper.set(std::thread::current());
        while !stop.load(Ordering::Acquire) {
            self.deliver();
            if !self.is_nudged.swap(false, Ordering::AcqRel) {
                std::thread::park();
            }
        }
    }

    /// Has the thread look.
    #[inline(never)]
    fn nudge(&self) {
        self.is_nudged.store(true, Ordering::Release);
        if let Some(sleeper) = self.sleeper.get() {
            sleeper.unpark();
        }
        if let Some(properties) = choice::present().properties() {
            properties.wake(refresh::awaited(properties).0);
        }
    }

    /// Calls back if the tags are not those told last.
    fn deliver(&self) {
        self.notifier.notify(Ways::now, |callback, before, now| {
            // Reported by the panic hook; the other watches must not suffer for it. The callback may be
            // dropped here, and so may panic twice; what it throws may do so once more.
            let called = catch_unwind(AssertUnwindSafe(move || callback(before, now)));
            if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(called))) {
                std::mem::forget(another);
            }
        });
    }
}

/// The properties, as soon as they can be had.
fn properties_when_there(stop: &AtomicBool) -> Option<&'static Properties> {
    while choice::chosen().is_waiting() && !stop.load(Ordering::Acquire) {
        std::thread::sleep(Duration::from_secs(1));
    }
    choice::present().properties()
}

/// Wakes the thread that was told to stop until it has let go of `stop`: one wake may come just before it
/// falls asleep.
///
/// For some milliseconds at most. It may be this very thread, or one whose system can't wake it; then it ends
/// a little later.
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
