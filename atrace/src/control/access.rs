//! The properties that switch tracing, as they are read and set as one step.

use std::sync::Arc;
use std::time::Duration;

use atrace_sys::properties::{self, PATIENCE, Properties, Transaction, Value};

use super::error::{Error, failed};
use crate::AtraceTag;
use crate::flags::{self, APPS_MAX, AppKey, FLAGS};

/// The properties that a control and its switches share.
#[derive(Clone, Debug)]
pub(super) struct Shared {
    owner: Owner,
    /// How long to wait for others who switch.
    pub(super) patience: Duration,
}

#[derive(Clone, Debug)]
pub(super) enum Owner {
    /// The process, which follows them.
    Process(&'static Properties),
    /// Those who share them: they are closed with the last.
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

/// Properties, to be read.
pub(super) trait Read {
    fn value(&self, key: &str) -> Option<Value>;

    /// The value of a property; empty where it is not set.
    fn text(&self, key: &str) -> Vec<u8> {
        self.value(key).map_or(Vec::new(), |value| value.as_bytes().to_vec())
    }

    /// The tags that are enabled for every process.
    fn tags(&self) -> AtraceTag {
        let flags = flags::parse_flags(&self.text(FLAGS));
        AtraceTag::from_bits_retain(flags.unwrap_or(0)) & AtraceTag::ValidMask
    }

    /// The list of patterns. One that was taken away left its slot empty, so that the list is whole at each moment: one
    /// that moves would be listed twice, or not at all, when who moves it is killed.
    fn slots(&self) -> Vec<Vec<u8>> {
        let number = flags::app_number(|key| self.value(key)).min(APPS_MAX);
        (0..number).map(|index| self.text(AppKey::new(index).as_str())).collect()
    }

    /// The patterns in force, byte for byte.
    fn patterns(&self) -> Vec<Vec<u8>> {
        self.slots().into_iter().filter(|slot| !slot.is_empty()).collect()
    }
}

/// Properties, to be read and set as one step.
pub(super) trait Access: Read {
    fn write(&mut self, key: &str, value: &[u8]) -> Result<(), properties::Error>;
    /// Nobody else can come between.
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
