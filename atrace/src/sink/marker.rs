//! The kernel's marker as a sink: each message is one `write(2)`.

use atrace_sys::marker::Marker;
use atrace_sys::properties::Properties;

use super::open::{self, Failure};
use crate::event::Event;
use crate::message::{Message, WriteName};
use crate::producer::Written;

#[derive(Debug)]
pub(crate) struct MarkerSink {
    pub(super) marker: Marker,
    pub(super) properties: &'static Properties,
}

impl MarkerSink {
    pub(super) fn open() -> Result<Self, Failure> {
        // The marker first: a process that may not write to it needs no property store.
        let marker = open::marker()?;
        Ok(Self { marker, properties: open::properties()? })
    }

    /// Writes an event as [`Sink::write`](super::Sink::write) does. This function is inlined in the same builds as the
    /// functions of [`Message`].
    #[cfg_attr(debug_assertions, inline(never))]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn write<N: WriteName>(&self, event: Event<'_, N>) -> Option<Written> {
        if event.kind.is_dropped() {
            return None;
        }
        let mut message = Message::new();
        event.encode(&mut message);
        self.marker.write(message.bytes()).then_some(Written::ByAtrace)
    }
}
