//! What an event looks at first: the sink, or that the process has two ways.
//!
//! A process that never was a producer of Perfetto's service has its sink here, and an event pays nothing for there
//! being another way. From when it is one on, [`Sink::Ways`] stands here, and each event is asked which way it goes.

use atrace_sys::AtomicRef;

use super::Sink;

pub(super) static UNCHOSEN: Sink = Sink::Unchosen;
static WAYS: Sink = Sink::Ways;
static FIRST: AtomicRef<Sink> = AtomicRef::new(&UNCHOSEN);

/// What stands here now.
#[inline(always)]
pub(crate) fn present() -> &'static Sink {
    FIRST.get()
}

/// The sink was chosen, which was `before`.
pub(super) fn is_chosen(before: &'static Sink, sink: &'static Sink) {
    let _ = FIRST.replace(before, sink); // Or there are two ways.
}

/// From now on there are two ways.
#[cfg_attr(any(no_tracing, not(feature = "perfetto")), expect(dead_code, reason = "there is no other way"))]
pub(crate) fn have_two_ways() {
    FIRST.set(&WAYS);
}

/// Whether there are two ways.
#[cfg_attr(any(no_tracing, not(feature = "perfetto")), expect(dead_code, reason = "there is no other way"))]
pub(crate) fn are_two_ways() -> bool {
    matches!(FIRST.get(), Sink::Ways)
}
