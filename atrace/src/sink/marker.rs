//! The kernel's marker as a sink: each message is one `write(2)`.

use atrace_sys::marker::Marker;
use atrace_sys::properties::Properties;

use super::open::{self, Failure};

#[derive(Debug)]
pub(crate) struct MarkerSink {
    pub(super) marker: Marker,
    pub(super) properties: &'static Properties,
}

impl MarkerSink {
    pub(super) fn open() -> Result<Self, Failure> {
        // The marker is opened first, because a process that may not write to the marker needs no property store.
        let marker = open::marker()?;
        Ok(Self { marker, properties: open::properties()? })
    }
}
