//! Events that are written before the service has reported the existing sessions.
//!
//! This is the case at the first event of a process, and while a lost connection is being restored. In this time
//! all tags are *presumed* to be wanted. So every event passes the gate and reaches
//! [`producer::write`](crate::producer::write), which finds no open session.
//!
//! The event then waits for the service's answer, once in each process and for a limited time (100 ms, or 5 s if the
//! caller asked for every event). In a signal handler it does not wait, because the handler may have interrupted a
//! thread that is needed for the answer. While a lost connection is being restored, events do not wait either. An
//! event that does not wait, or whose wait times out, is lost and counted (`early.rs`). If the answer is that there
//! is no session, the counts are reset, because no session wanted these events.
//!
//! If the process exits before the answer and has lost events for this reason, the exit waits for the answer within the
//! same time limit, so that the service can read the count. An exit also waits, for at most a second, if the service can't
//! read the memory (`link/requests.rs`): until the socket thread has sent the memory's content.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::clock;
use crate::pool::{ASK, OWN_SESSION, Shared};
use atrace_sys::fork::generation;
use atrace_sys::process;
use atrace_sys::thread;

use crate::writer::POOL;
use crate::{category, changes};

/// The time that a process waits for the service's answer, in nanoseconds: usually, and if the caller asked for
/// every event.
const USUAL_NS: u64 = 100_000_000;
const PATIENT_NS: u64 = 5_000_000_000;
static PATIENCE: AtomicU64 = AtomicU64::new(USUAL_NS);
/// The time when the process began to connect; 0 means that it has not begun yet.
static BEGUN: AtomicU64 = AtomicU64::new(0);
/// The generation of the process that has the service's answer.
static ANSWERED: AtomicU64 = AtomicU64::new(0);

/// The generation of the process that has a socket thread, or is about to have one.
pub(crate) static LINKED: AtomicU64 = AtomicU64::new(0);

/// Returns whether this process has a socket thread, or is about to have one.
pub fn is_linked() -> bool {
    LINKED.load(Ordering::Acquire) == generation().number()
}

/// Makes the process wait longer.
pub(crate) fn be_patient() {
    PATIENCE.store(PATIENT_NS, Ordering::Relaxed);
}

/// Begins to connect. May run in an event.
pub(crate) fn begin(shared: &Shared) {
    BEGUN.store(clock::asked(), Ordering::Relaxed);
    shared.presume(category::ALL);
}

/// Makes the first event connect.
///
/// This is async-signal-safe, so that a forked child can call it.
pub(crate) fn expect(shared: &Shared) {
    BEGUN.store(0, Ordering::Relaxed);
    shared.presumed.store(ASK | category::ALL, Ordering::Relaxed);
    shared.tags.store(ASK | category::ALL, Ordering::Release);
}

/// Presumes that all tags are wanted, because the connection is lost and may be restored. Runs on the socket
/// thread.
pub(crate) fn presume(shared: &Shared) {
    if shared.presume(category::ALL) {
        changes::changed();
    }
}

/// Stops treating all tags as wanted, because the service has answered, or there is no service.
pub(crate) fn end(shared: &Shared) {
    if shared.open.load(Ordering::Relaxed) & !(1 << OWN_SESSION) == 0 {
        // No session exists, so nobody wanted the lost events.
        for count in [&shared.early, &shared.untold, &shared.unbegun] {
            count.store(0, Ordering::Relaxed);
        }
    }
    let has_changed = shared.presume(0);
    ANSWERED.store(generation().number(), Ordering::Release);
    if has_changed {
        changes::changed();
    }
}

/// Waits for the service's answer, unless this is a signal handler or the process has waited long enough.
pub(crate) fn wait() {
    let is_answered = || !is_linked() || ANSWERED.load(Ordering::Acquire) == generation().number();
    if is_answered() || process::is_in_handler() {
        return;
    }
    // If this is a signal handler that was not recognised as one, it may have interrupted the thread that is about to
    // connect. Then `BEGUN` stays 0, and the time since this call limits the wait.
    let entered = clock::asked();
    let has_time = || {
        let begun = match BEGUN.load(Ordering::Relaxed) {
            0 => entered,
            begun => begun,
        };
        clock::asked() < begun + PATIENCE.load(Ordering::Relaxed)
    };
    while !is_answered() && has_time() {
        thread::pause(Duration::from_millis(1));
    }
}

/// The generation of the process whose connection sends chunks as bytes; 0 if the service reads the memory.
static SENDS: AtomicU64 = AtomicU64::new(0);
/// The process is exiting, and its open chunks must be sent.
static IS_EXITING: AtomicBool = AtomicBool::new(false);
/// The time in milliseconds that an exit waits for that.
const EXIT_MS: u32 = 1000;

/// Sets whether the connection sends chunks as bytes, because the service can't read the memory.
pub(crate) fn set_sends(sends: bool) {
    SENDS.store(if sends { generation().number() } else { 0 }, Ordering::Release);
}

/// Returns whether an exit waits until [`sent`] is called.
pub(crate) fn is_exiting() -> bool {
    IS_EXITING.load(Ordering::Acquire)
}

/// Lets the exit go on.
pub(crate) fn sent() {
    IS_EXITING.store(false, Ordering::Release);
}

/// Waits until the socket thread has sent what the threads have written for sessions, if no process could read it
/// later.
fn wait_for_sent(shared: &Shared) {
    let has_session = || shared.open.load(Ordering::Relaxed) & !(1 << OWN_SESSION) != 0;
    let sends = || SENDS.load(Ordering::Acquire) == generation().number() && has_session();
    IS_EXITING.store(true, Ordering::Release);
    for _ in 0..EXIT_MS {
        if !sends() || !is_exiting() {
            return;
        }
        thread::pause(Duration::from_millis(1));
    }
}

/// Runs when the process exits: waits until the service can read the counts of lost events, and has the
/// last events.
extern "C" fn at_exit() {
    let Some(shared) = POOL.shared() else { return };
    if shared.early.load(Ordering::Relaxed) != 0 {
        wait();
    }
    wait_for_sent(shared);
}

/// The loader calls the functions in this section, of this type, when the process exits or the library is unloaded.
#[used]
#[cfg(not(miri))]
#[expect(unsafe_code, reason = "registering the function at run time could allocate in an event")]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;
