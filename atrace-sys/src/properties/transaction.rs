//! Transactions: reading and setting several properties as one step.

use std::fmt;
use std::marker::PhantomData;

use super::text::Key;
use super::{Error, Properties, Value, backend};

/// A transaction, which ends when it is dropped.
///
/// It belongs to its thread. A child that is forked during the transaction can't set anything with it
/// ([`ErrorKind::Busy`](super::ErrorKind::Busy) on a host), and dropping its copy does not end the transaction.
pub struct Transaction<'a> {
    pub(super) properties: &'a Properties,
    pub(super) turn: backend::Turn,
    pub(super) _thread: PhantomData<*const ()>,
}

impl Transaction<'_> {
    /// Reads a property, like [`Properties::get`].
    ///
    /// # Errors
    ///
    /// Those of [`Properties::get`].
    pub fn get(&self, key: &str) -> Result<Option<Value>, Error> {
        self.properties.get(key)
    }

    /// Sets a property, like [`Properties::set`], but never waits.
    ///
    /// # Errors
    ///
    /// Those of [`Properties::set`].
    pub fn set(&mut self, key: &str, value: impl AsRef<[u8]>) -> Result<(), Error> {
        self.turn.set(&self.properties.0, &Key::new(key)?, &Value::new(value.as_ref())?)
    }

    /// Returns whether no other process can set a property in between: always on a host, never on Android. There the
    /// caller has to check whether what it has set is still so.
    pub fn is_alone(&self) -> bool {
        backend::Turn::IS_ALONE
    }
}

impl fmt::Debug for Transaction<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction").field("properties", self.properties).finish_non_exhaustive()
    }
}
