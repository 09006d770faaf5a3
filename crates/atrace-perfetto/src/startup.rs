//! Before the service has said which sessions there are: at a process' first event, and while a lost connection is made again.
//!
//! Meanwhile all tags are *presumed* to be wanted. An event that finds no session open waits for the service's answer, once
//! a process and for a limited time; in a signal's handler, where a thread that is needed may be interrupted, it does not wait. What is
//! not waited for is lost, and counted: in memory that the service reads, so that it learns of it however the process
//! ends. Where the answer is that there is no session, nothing was lost.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock;
use crate::pool::{OWN_SESSION, Shared};
use atrace_sys::fork::generation;
use atrace_sys::process;
use atrace_sys::thread;

use crate::writer::POOL;
use crate::{category, changes};

/// In the word of all tags: they are not known, the first event is to ask.
pub const ASK: u64 = 1 << 62;

/// How long a process waits for the service's answer: as a rule, and where every event is asked for.
const USUAL_NS: u64 = 100_000_000;
const PATIENT_NS: u64 = 5_000_000_000;
static PATIENCE: AtomicU64 = AtomicU64::new(USUAL_NS);
/// When the process began to connect; 0: it is about to.
static BEGUN: AtomicU64 = AtomicU64::new(0);
/// The process that has the service's answer, by its generation.
static ANSWERED: AtomicU64 = AtomicU64::new(0);

/// The process that has a socket's thread, by its generation.
pub(crate) static LINKED: AtomicU64 = AtomicU64::new(0);

/// Whether this process has, or is about to have, a socket's thread.
pub(crate) fn is_linked() -> bool {
    LINKED.load(Ordering::Acquire) == generation().number()
}

/// Has the process wait for longer.
pub(crate) fn be_patient() {
    PATIENCE.store(PATIENT_NS, Ordering::Relaxed);
}

/// The process begins to connect, perhaps in an event.
pub(crate) fn begin(shared: &Shared) {
    BEGUN.store(clock::asked(), Ordering::Relaxed);
    shared.presume(category::ALL);
}

/// The first event is to connect. Async-signal-safe: also for a forked child.
pub(crate) fn expect(shared: &Shared) {
    BEGUN.store(0, Ordering::Relaxed);
    shared.presumed.store(ASK | category::ALL, Ordering::Relaxed);
    shared.tags.store(ASK | category::ALL, Ordering::Release);
}

/// The connection is lost, and may come back: on the socket's thread.
pub(crate) fn presume(shared: &Shared) {
    if shared.presume(category::ALL) {
        changes::changed();
    }
}

/// The service has answered, or there is none.
pub(crate) fn end(shared: &Shared) {
    if shared.open.load(Ordering::Relaxed) & !(1 << OWN_SESSION) == 0 {
        // Nobody wanted it.
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

/// Waits for the service's answer; not in a signal's handler, nor where this process has waited for long enough.
pub(crate) fn wait() {
    let is_answered = || !is_linked() || ANSWERED.load(Ordering::Acquire) == generation().number();
    if is_answered() || process::is_in_handler() {
        return;
    }
    // A handler that nothing tells from other code may have interrupted who is about to connect: it has an end here, too.
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

/// Runs as the process exits: the service is still to learn of the events that could not wait.
extern "C" fn at_exit() {
    if POOL.shared().is_some_and(|shared| shared.early.load(Ordering::Relaxed) != 0) {
        wait();
    }
}

/// The loader calls the functions that this section names, which have this type, when the process exits or the library is
/// unloaded.
#[used]
#[cfg(not(miri))]
#[expect(unsafe_code, reason = "to register the function at run time could allocate, in an event")]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;
