//! Determines when the socket thread tries again to connect to the service.
//!
//! In a process that asked for the connection, the thread tries again after pauses that double. In a process that only
//! [seeks](crate::producer::seek) a service, the thread sleeps after a failed attempt until the *serial* changes, or
//! the process asks for the connection. After it has lost a connection, it first tries once more. The serial is a word
//! in the property store of the process's user. `atrace record` changes the serial once it listens for connections. The
//! thread polls the serial only if the system denies the futex call by which the thread sleeps.
//!
//! The thread loads the serial before an attempt, and sleeps afterwards only if the serial is still the same. So it
//! does not miss a service that starts after the attempt.
//!
//! A process may confine itself to few system calls (seccomp) while the thread sleeps or is connected. After that, the
//! thread must not connect: the kernel may end the process for a system call that is no longer allowed, whether this
//! thread or an event for Perfetto makes the call. So [`seek`](crate::producer::seek) waits until the thread has
//! recorded the process's present confinement and has made its first attempt. This wait takes some 100 µs. It takes
//! longer if the thread is not scheduled, as on a busy machine, or if the service's queue of connections is full. The
//! limit of the wait is 5 s.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::clock;
use crate::startup::is_linked;
use atrace_sys::fork::generation;
use atrace_sys::thread::confinement::Confinement;
use atrace_sys::{OnceRef, futex, thread};

/// The shortest pause between two attempts, in milliseconds.
const FIRST: u64 = 100;
/// The longest pause between two attempts, in milliseconds.
const LAST: u64 = 30_000;
/// The maximum duration of one sleep of a socket thread that has rights which the process may give up. At this
/// interval, the thread checks whether the process still has these rights.
const WITH_RIGHTS: Duration = Duration::from_secs(1);
/// The maximum duration of one sleep of a socket thread that has no rights which the process may give up.
const LONG: Duration = Duration::from_secs(3600);

/// Whether the process tries to connect again at intervals, even if no service has announced itself.
static IS_PERSISTENT: AtomicBool = AtomicBool::new(false);
/// The serial: a word in memory that changes when a service may have started.
static SERIAL: OnceRef<AtomicU32> = OnceRef::new();

/// The generation (see [`atrace_sys::fork`]) of the process whose socket thread sleeps until the serial changes; 0 if
/// the thread does not sleep or sleeps for a limited time.
static ASLEEP: AtomicU64 = AtomicU64::new(0);

/// Makes the process try to connect again and again. Returns whether the socket thread was asleep to wait for a change
/// of the serial. In that case, this call wakes the thread, which tries at once.
pub(crate) fn be_persistent() -> bool {
    IS_PERSISTENT.store(true, Ordering::SeqCst);
    let is_asleep = || ASLEEP.load(Ordering::SeqCst) == generation().number();
    let (was_asleep, until) = (is_asleep(), clock::asked() + PATIENCE);
    // If the thread is only about to sleep, a wake has no effect. So the wake is repeated. Other processes that sleep
    // on this word are woken, too, but see that the word has not changed.
    while is_asleep() && clock::asked() < until {
        SERIAL.get().into_iter().for_each(futex::wake);
        thread::pause(LOOK);
    }
    was_asleep
}

/// Returns whether the process tries to connect again and again.
pub(crate) fn is_persistent() -> bool {
    IS_PERSISTENT.load(Ordering::SeqCst) || SERIAL.get().is_none()
}

/// Sets the serial: a word in memory that changes when a service may have started. Only the first call has an effect.
pub(crate) fn set_serial(serial: &'static AtomicU32) {
    let _ = SERIAL.set(serial);
}

/// The generation (see [`atrace_sys::fork`]) of the process whose socket thread has made its first attempt. After the
/// attempt, the thread is connected, or sleeps until the next attempt.
static BEGUN: AtomicU64 = AtomicU64::new(0);
/// The maximum time that a thread of the program waits for the socket thread in this module, in nanoseconds.
const PATIENCE: u64 = 5_000_000_000;
/// The pause between two checks of a waiting thread whether its wait is over.
const LOOK: Duration = Duration::from_micros(50);

/// Waits until the socket thread has made its first attempt, or the process has no socket thread. Waits for at most
/// [`PATIENCE`].
pub(crate) fn wait_for_first() {
    let until = clock::asked() + PATIENCE;
    let has_begun = || BEGUN.load(Ordering::Acquire) == generation().number();
    while is_linked() && !has_begun() && clock::asked() < until {
        thread::pause(LOOK);
    }
}

/// Ends the wait of other threads for the first attempt.
fn end_first() {
    BEGUN.store(generation().number(), Ordering::Release);
}

/// The state of the socket thread's attempts to connect.
pub(super) struct Attempts {
    /// The pause after the present attempt, in milliseconds.
    pause: u64,
    /// The value of [`SERIAL`] before the present attempt.
    seen: u32,
    /// The seccomp filters that the process had when the thread started. `None` if the filters are not checked, because
    /// the thread shares the process's descriptors, or the process asked for the connection.
    confinement: Option<Confinement>,
}

impl Attempts {
    pub(super) fn new(has_own_descriptors: bool) -> Self {
        let confinement = (has_own_descriptors && !is_persistent()).then(Confinement::now);
        Self { pause: FIRST, seen: 0, confinement }
    }

    /// Begins an attempt.
    pub(super) fn begin(&mut self) {
        self.seen = SERIAL.get().map_or(0, |serial| serial.load(Ordering::Relaxed));
    }

    /// Records that the attempt has succeeded: the thread is connected.
    pub(super) fn is_connected(&self) {
        end_first();
    }

    /// Records that the service has answered, so that the next pause is the shortest one.
    pub(super) fn had_success(&mut self) {
        self.pause = FIRST;
    }

    /// Returns whether the process has confined itself since the thread started, and has not asked for the connection.
    /// In that case, the thread must not connect.
    pub(super) fn is_confined(&mut self) -> bool {
        !is_persistent() && self.confinement.as_mut().is_some_and(Confinement::is_new)
    }

    /// Sleeps until the next attempt is due, and then returns true. Returns false as soon as `is_over` returns true. If
    /// `has_rights` is true, `is_over` is called each second. If a lost connection must not be restored, because the
    /// process has confined itself, calls `give_up`.
    pub(super) fn pause(
        &mut self,
        was_connected: bool,
        has_rights: bool,
        is_over: impl Fn() -> bool,
        give_up: impl Fn(),
    ) -> bool {
        let mut until = (is_persistent() || was_connected).then(|| clock::asked() + self.pause * 1_000_000);
        self.pause = LAST.min(2 * self.pause);
        end_first();
        loop {
            if is_over() {
                return false;
            }
            let left = until.map_or(LONG, |until| Duration::from_nanos(until.saturating_sub(clock::asked())));
            if left.is_zero() {
                if !self.is_confined() {
                    return true;
                }
                until = None;
                give_up();
                continue;
            }
            let left = left.min(if has_rights { WITH_RIGHTS } else { LONG });
            let Some(serial) = SERIAL.get() else {
                thread::pause(left);
                continue;
            };
            ASLEEP.store(if until.is_none() { generation().number() } else { 0 }, Ordering::SeqCst);
            let has_asked = until.is_none() && is_persistent();
            if !has_asked && futex::wait(serial, self.seen, left).is_err() {
                thread::pause(left.min(WITH_RIGHTS)); // The system denies the futex call.
            }
            ASLEEP.store(0, Ordering::SeqCst);
            if has_asked {
                self.pause = FIRST;
                return true;
            }
            let now = serial.load(Ordering::Relaxed);
            if now != self.seen {
                self.seen = now;
                if !self.is_confined() {
                    self.pause = FIRST;
                    return true;
                }
            }
        }
    }
}
