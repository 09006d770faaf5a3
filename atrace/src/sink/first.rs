//! The reference that an event loads first. It refers to the sink or, if the backend has to be chosen for each event,
//! to the value [`Sink::PerEvent`].
//!
//! As long as no event can go to Perfetto, the reference leads to the process's sink, so choosing a backend costs an
//! event nothing. After that, the reference leads to [`Sink::PerEvent`], and `backend.rs` chooses the backend for each
//! event.

use atrace_sys::AtomicRef;

use super::Sink;
use crate::producer;

pub(super) static UNCHOSEN: Sink = Sink::Unchosen;
static PER_EVENT: Sink = Sink::PerEvent;
static FIRST: AtomicRef<Sink> = AtomicRef::new(&UNCHOSEN);

/// Returns the reference that an event loads first.
#[inline(always)]
pub(crate) fn present() -> &'static Sink {
    FIRST.get()
}

/// Makes the reference lead to `sink`, which was chosen. If the backend is chosen for each event, that stays.
pub(super) fn is_chosen(sink: &'static Sink) {
    let before = FIRST.get();
    if before.is_waiting() {
        let _ = FIRST.replace(before, sink); // Fails only if another thread does this.
    }
}

/// Prepares this process to be a producer of Perfetto's service, and makes each event choose its backend from now on.
/// Returns false if there is no memory for a producer.
pub(crate) fn enable_perfetto() -> bool {
    let is_ready = producer::can_be_used();
    if is_ready {
        choose_per_event();
    }
    is_ready
}

/// Makes each event choose its backend from now on, in a process that was prepared to be a producer. Async-signal-safe.
pub(crate) fn choose_per_event() {
    FIRST.set(&PER_EVENT);
}

/// Returns whether `sink` is [`Sink::PerEvent`], which means that the backend is chosen for each event.
///
/// The addresses are compared. The compiler would merge a test of the enum's variant with the test before it, which
/// would make events for the marker slower.
#[inline(always)]
pub(crate) fn is_per_event(sink: &'static Sink) -> bool {
    producer::EXISTS && std::ptr::eq(sink, &PER_EVENT)
}

/// Returns whether events of this process may go to Perfetto: the backend is chosen for each event.
#[inline]
pub fn is_perfetto_enabled() -> bool {
    producer::EXISTS && matches!(FIRST.get(), Sink::PerEvent)
}
