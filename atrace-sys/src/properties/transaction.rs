//! Several properties read and set as one step.

use std::fmt;
use std::marker::PhantomData;

use super::text::Key;
use super::{Error, Properties, Value, backend};

/// Some properties being read and set as one step; ends when dropped.
///
/// It is its thread's. A child that is forked meanwhile can set nothing by it
/// ([`ErrorKind::Busy`](super::ErrorKind::Busy) on a host), and its copy ends nothing.
pub struct Transaction<'a> {
    pub(super) properties: &'a Properties,
    pub(super) turn: backend::Turn,
    pub(super) _thread: PhantomData<*const ()>,
}

impl Transaction<'_> {
    /// As [`Properties::get`].
    ///
    /// # Errors
    ///
    /// As [`Properties::get`].
    pub fn get(&self, key: &str) -> Result<Option<Value>, Error> {
        self.properties.get(key)
    }

    /// As [`Properties::set`], without waiting.
    ///
    /// # Errors
    ///
    /// As [`Properties::set`].
    pub fn set(&mut self, key: &str, value: impl AsRef<[u8]>) -> Result<(), Error> {
        self.turn.set(&self.properties.0, &Key::new(key)?, &Value::new(value.as_ref())?)
    }

    /// Tells whether no other process can come between: always on a host, never on Android. There, look again
    /// whether what was set is still so.
    pub fn is_alone(&self) -> bool {
        backend::Turn::IS_ALONE
    }
}

impl fmt::Debug for Transaction<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction").field("properties", self.properties).finish_non_exhaustive()
    }
}
