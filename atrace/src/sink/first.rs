//! What an event looks at first: the sink, or that the process has two ways.
//!
//! A process that never was a producer of Perfetto's service has its sink here, and an event pays nothing for there
//! being another way. From when it is one on, [`Sink::Ways`] stands here, and each event is asked which way it goes.

use atrace_sys::AtomicRef;

use super::Sink;
use crate::producer;

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

/// Makes this process ready to be a producer of Perfetto's service, and has each event asked which way it goes from now on.
/// Returns false where there is no memory for that.
pub(crate) fn have_two_ways() -> bool {
    let is_ready = producer::can_be_used();
    if is_ready {
        FIRST.set(&WAYS);
    }
    is_ready
}

/// Whether it is what stands here where there are two ways. By its address: another look at which kind of sink it is would be
/// joined with the one before it, and the marker would pay for that.
#[inline(always)]
pub(crate) fn is_two_ways(sink: &'static Sink) -> bool {
    producer::EXISTS && std::ptr::eq(sink, &WAYS)
}

/// Whether this process, or an ancestor of it, was ever made ready.
#[inline]
pub fn are_two_ways() -> bool {
    producer::EXISTS && matches!(FIRST.get(), Sink::Ways)
}
