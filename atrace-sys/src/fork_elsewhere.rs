//! Which process is this? On systems without tracing: always the same one.
//!
//! [`Generation`] and [`PerProcess`] as on Linux, for what is compiled everywhere. A forked child is not told from
//! its parent.

use std::fmt;
use std::num::NonZeroU64;

use crate::OnceRef;

/// A process among those that come from each other by forking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Generation(NonZeroU64);

impl Generation {
    /// A number, never zero.
    #[inline(always)]
    pub const fn number(self) -> u64 {
        self.0.get()
    }
}

/// Returns the one generation that there is.
#[inline(always)]
pub const fn generation() -> Generation {
    Generation(NonZeroU64::MIN)
}

/// A value that a process makes once.
pub struct PerProcess<T: Sync + 'static>(OnceRef<T>);

impl<T: Sync + 'static> PerProcess<T> {
    /// Makes an empty place.
    pub const fn new() -> Self {
        Self(OnceRef::new())
    }

    /// Returns what was made.
    #[inline]
    pub fn get(&self) -> Option<&'static T> {
        self.0.get()
    }

    /// Returns what was made, making it now if need be: see [`OnceRef::get_or_make`].
    #[inline]
    pub fn get_or_make(&self, make: impl FnOnce() -> T) -> &'static T {
        self.0.get_or_make(make)
    }
}

impl<T: Sync + 'static> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Sync + fmt::Debug + 'static> fmt::Debug for PerProcess<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PerProcess").field(&self.get()).finish()
    }
}
