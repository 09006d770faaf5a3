//! Handles events that are written before the service has reported which sessions exist.
//!
//! These are the first events of a process, and the events that are written while a lost connection is being restored.
//! During this time all tags are *presumed* to be wanted. So every event passes the gate (the check whether its tag is
//! on) and reaches [`producer::write`](crate::producer::write), which finds no open session of the service. A recording
//! of this process may be open; it gets the event in any case.
//!
//! The event then waits for the service's answer, once in each process and for a limited time (100 ms, or 5 s if
//! [`be_patient`] was called). An event in a signal handler does not wait, because the handler may have interrupted a
//! thread that is needed for the answer. While a lost connection is being restored, events do not wait either. An event
//! that does not wait, or whose wait times out, is lost and counted (`early.rs`). If the answer is that no session
//! exists, the counts are reset, because no session wanted the lost events.
//!
//! If the process has lost events and exits before the service has answered, the exit waits for the answer for the same
//! limited time, so that the service can read the count of lost events. If the process exits while a lost connection is
//! being restored, and has lost events in this time, the exit waits in the same way, and up to 200 ms longer. If the
//! service can't read the memory (`link/requests.rs`), an exit also waits, for at most a second, until the socket
//! thread has sent the bytes of the chunks.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::clock;
use crate::pool::{ASK, Shared};
use atrace_sys::fork::generation;
use atrace_sys::process;
use atrace_sys::thread;

use crate::writer::POOL;
use crate::{category, changes};

/// How long a process usually waits for the service's answer, in nanoseconds.
const USUAL_NS: u64 = 100_000_000;
const PATIENT_NS: u64 = 5_000_000_000;
/// How long the socket thread takes until it restores a lost connection, in nanoseconds: it waits for threads that are
/// in the middle of an event, and then pauses before it connects.
const RESTORING_NS: u64 = 200_000_000;
static PATIENCE: AtomicU64 = AtomicU64::new(USUAL_NS);
/// The time at which the process began to connect to the service, or 0 before that.
static BEGUN: AtomicU64 = AtomicU64::new(0);
/// The generation (see [`generation`]) of the process that last learned which sessions exist, or that there is no
/// service. This is the present process or an ancestor.
static ANSWERED: AtomicU64 = AtomicU64::new(0);

/// The generation (see [`generation`]) of the process that has a socket thread, or is about to have one.
pub(crate) static LINKED: AtomicU64 = AtomicU64::new(0);

/// Returns whether this process has a socket thread, or is about to have one.
pub fn is_linked() -> bool {
    LINKED.load(Ordering::Acquire) == generation().number()
}

/// Makes the process wait for the service's answer for up to 5 s instead of 100 ms.
pub(crate) fn be_patient() {
    PATIENCE.store(PATIENT_NS, Ordering::Relaxed);
}

/// Presumes that all tags are wanted, because the process begins to connect to the service. An event may call this
/// function.
pub(crate) fn begin(shared: &Shared) {
    BEGUN.store(clock::asked(), Ordering::Relaxed);
    shared.presume(category::ALL);
}

/// Makes the first event of this process connect to the service.
///
/// Async-signal-safe, so that a forked child can call it.
pub(crate) fn expect(shared: &Shared) {
    BEGUN.store(0, Ordering::Relaxed);
    shared.presume(ASK | category::ALL);
}

/// Presumes that all tags are wanted, because the connection is lost and may be restored. Only the socket
/// thread calls this.
pub(crate) fn presume(shared: &Shared) {
    if shared.presume(category::ALL) {
        changes::changed();
    }
}

/// Stops treating all tags as wanted, because the service has answered, no service exists, or this process can't use
/// the service.
#[inline(never)]
pub(crate) fn end(shared: &Shared) {
    if !shared.has_service() {
        // No session exists, so nobody wanted the lost events.
        shared.early.clear();
    }
    give_up(shared);
}

/// Stops treating all tags as wanted. The counts of lost events stay.
#[inline(never)]
pub(crate) fn give_up(shared: &Shared) {
    let has_changed = shared.presume(0);
    ANSWERED.store(generation().number(), Ordering::Release);
    if has_changed {
        changes::changed();
    }
}

/// Waits for the service's answer. Does not wait in a signal handler, or if the maximum time has passed since the
/// process began to connect.
pub(crate) fn wait() {
    wait_until(&is_answered, &BEGUN, 0);
}

/// Waits for the service's answer, but no longer than the maximum time, counted from this call.
pub(crate) fn wait_anew() {
    wait_until(&is_answered, &AtomicU64::new(0), 0);
}

/// Waits until `is_connected` returns true, but no longer than the maximum time, counted from this call. This function
/// is for a process that learned at an earlier attempt that there is no service: [`wait`] would return at once.
pub(crate) fn wait_for_another(is_connected: &dyn Fn() -> bool) {
    wait_until(is_connected, &AtomicU64::new(0), 0);
}

fn is_answered() -> bool {
    ANSWERED.load(Ordering::Acquire) == generation().number()
}

/// Waits until `is_done` returns true or the process has no socket thread, but at most for the maximum time and `more`
/// nanoseconds. The wait is counted from the time in `begun`, or from this call while `begun` is 0. Does not wait in a
/// signal handler, or in a thread that has given up system calls.
#[inline(never)]
fn wait_until(is_done: &dyn Fn() -> bool, begun: &AtomicU64, more: u64) {
    // If this is a signal handler that was not recognised as one, it may have interrupted the thread that is about to
    // connect. Then `BEGUN` stays 0, and the time since this call limits the wait.
    let entered = clock::asked();
    let has_time = || {
        let begun = match begun.load(Ordering::Relaxed) {
            0 => entered,
            begun => begun,
        };
        clock::asked() < begun + PATIENCE.load(Ordering::Relaxed) + more
    };
    let is_over = || !is_linked() || is_done() || !has_time();
    // The second and the third check make system calls, so they come last.
    if is_over() || thread::is_confined() || process::is_in_handler() {
        return;
    }
    while !is_over() {
        thread::pause(Duration::from_millis(1));
    }
}

/// The generation (see [`generation`]) of the process whose connection sends the bytes of chunks, or 0 if the service
/// reads the memory.
static SENDS: AtomicU64 = AtomicU64::new(0);
/// Whether the process is exiting, so that the chunks which threads have not completed must be sent, too.
static IS_EXITING: AtomicBool = AtomicBool::new(false);
/// How long an exit waits until all chunks were sent, in milliseconds.
const EXIT_MS: u32 = 1000;

/// Sets whether the connection sends the bytes of chunks, because the service can't read the memory.
pub(crate) fn set_sends(sends: bool) {
    SENDS.store(if sends { generation().number() } else { 0 }, Ordering::Release);
}

/// Returns whether the exiting process waits for a call of [`sent`].
pub(crate) fn is_exiting() -> bool {
    IS_EXITING.load(Ordering::Acquire)
}

/// Ends the wait of the exiting process, because all chunks were sent, also those that threads have not completed.
pub(crate) fn sent() {
    IS_EXITING.store(false, Ordering::Release);
}

/// Waits until the socket thread has sent the events that threads have written for sessions. Waits only if the
/// service can't read the memory, and not in a thread that has given up system calls.
fn wait_for_sent(shared: &Shared) {
    let sends = || SENDS.load(Ordering::Acquire) == generation().number() && shared.has_service();
    IS_EXITING.store(true, Ordering::Release);
    if !sends() || thread::is_confined() {
        return;
    }
    for _ in 0..EXIT_MS {
        if !sends() || !is_exiting() {
            return;
        }
        thread::pause(Duration::from_millis(1));
    }
}

/// Runs when the process exits or the library is unloaded. Waits, for a limited time, until the service can read the
/// counts of lost events, and has got the last events.
extern "C" fn at_exit() {
    let Some(shared) = POOL.shared() else { return };
    if shared.early.events.load(Ordering::Relaxed) != 0 {
        wait();
    }
    // After the first answer, `wait` never waits again. So the exit needs another wait for a lost connection that is
    // being restored.
    let is_restored = || shared.presumed.load(Ordering::Acquire) == 0;
    if is_answered() && shared.early.has_unpublished() {
        wait_until(&is_restored, &AtomicU64::new(0), RESTORING_NS);
    }
    wait_for_sent(shared);
}

/// The address of [`at_exit`] in the section of functions that the loader calls when the process exits or the
/// library is unloaded.
#[used]
#[cfg(not(miri))]
#[expect(unsafe_code, reason = "registering the function at run time could allocate in an event")]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;
