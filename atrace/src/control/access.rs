//! Reads and sets the properties that switch tracing. On a host (Linux without Android), a change reads and sets the
//! properties in one atomic step; Android has no lock that makes this possible.

use std::sync::Arc;
use std::time::Duration;

use atrace_sys::properties::{self, FLAGS, PATIENCE, Properties, Transaction, Value};

use super::error::{Error, failed};
use crate::AtraceTag;
use crate::flags::{self, APPS_MAX, AppKey};

/// The properties that a [`Control`](super::Control) shares with the [`Switched`](super::Switched) values
/// that it returned.
#[derive(Clone, Debug)]
pub(super) struct Shared {
    owner: Owner,
    /// How long to wait for other threads and processes that are changing the same properties.
    pub(super) patience: Duration,
}

#[derive(Clone, Debug)]
pub(super) enum Owner {
    /// The properties that this process itself reads for its events. These properties are never closed.
    Process(&'static Properties),
    /// Properties that are closed when the last `Control` or `Switched` that shares them is dropped.
    Sharers(Arc<Properties>),
}

impl Shared {
    pub(super) fn new(owner: Owner) -> Self {
        Self { owner, patience: PATIENCE }
    }

    pub(super) fn properties(&self) -> &Properties {
        match &self.owner {
            Owner::Process(properties) => properties,
            Owner::Sharers(properties) => properties,
        }
    }

    pub(super) fn transaction(&self) -> Result<Transaction<'_>, Error> {
        self.properties().transaction(self.patience).map_err(failed("switching"))
    }
}

/// Read access to the properties.
pub(super) trait Read {
    fn value(&self, key: &str) -> Option<Value>;

    /// Returns the value of a property, which is empty if the property is not set.
    fn text(&self, key: &str) -> Vec<u8> {
        self.value(key).map_or(Vec::new(), |value| value.as_bytes().to_vec())
    }

    /// Returns the tags that are enabled for every process.
    fn tags(&self) -> AtraceTag {
        let flags = self.value(FLAGS).and_then(|value| value.mask());
        AtraceTag::from_bits_retain(flags.unwrap_or(0)) & AtraceTag::ValidMask
    }

    /// Returns the slots of the list of app patterns: the values of `debug.atrace.app_0`, `debug.atrace.app_1` ….
    ///
    /// If a pattern is removed, its slot becomes empty; the patterns after it do not move. So the list is valid at each
    /// moment. If the patterns moved instead, a process that is killed while it moves a pattern would leave that
    /// pattern listed twice or not at all.
    fn slots(&self) -> Vec<Vec<u8>> {
        let number = flags::app_number(|key| self.value(key)).min(APPS_MAX);
        (0..number).map(|index| self.text(AppKey::new(index).as_str())).collect()
    }

    /// Returns the app patterns that are set (the slots that are not empty), as bytes.
    fn patterns(&self) -> Vec<Vec<u8>> {
        self.slots().into_iter().filter(|slot| !slot.is_empty()).collect()
    }
}

/// Read and write access to the properties during one change.
pub(super) trait Access: Read {
    fn write(&mut self, key: &str, value: &[u8]) -> Result<(), properties::Error>;
    /// Returns whether the system prevents other processes from setting properties during this change.
    fn is_alone(&self) -> bool;
}

impl Read for Properties {
    fn value(&self, key: &str) -> Option<Value> {
        self.get(key).ok().flatten()
    }
}

impl Read for Transaction<'_> {
    fn value(&self, key: &str) -> Option<Value> {
        self.get(key).ok().flatten()
    }
}

impl Access for Transaction<'_> {
    fn write(&mut self, key: &str, value: &[u8]) -> Result<(), properties::Error> {
        self.set(key, value)
    }

    fn is_alone(&self) -> bool {
        Transaction::is_alone(self)
    }
}
