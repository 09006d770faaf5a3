//! A value of each process: see [`PerProcess`].

use std::fmt;

use super::{Generation, Turn, generation};
use crate::word::{OnceRef, offer};

/// A value that every process makes for itself: a forked child does not see its parent's.
///
/// For what a thread of the parent may have been in the middle of at the fork, above all locks. What a process has
/// made stays until it ends; what its parent had made stays in the child's memory, unused.
///
/// # Examples
///
/// ```
/// use std::sync::Mutex;
/// use atrace_sys::fork::PerProcess;
///
/// static NAMES: PerProcess<Mutex<Vec<String>>> = PerProcess::new();
///
/// NAMES.get_or_make(Default::default).lock().unwrap().push("one".to_owned());
/// assert_eq!(NAMES.get().unwrap().lock().unwrap().len(), 1); // In a child: None.
/// ```
pub struct PerProcess<T: Sync + 'static>(OnceRef<Made<T>>);

struct Made<T> {
    by: Generation,
    value: T,
}

impl<T: Sync + 'static> PerProcess<T> {
    /// Makes a place that is empty in every process.
    pub const fn new() -> Self {
        Self(OnceRef::new())
    }

    /// Returns what this process made; `None` if it has made nothing yet, whatever its parent had.
    #[inline]
    pub fn get(&self) -> Option<&'static T> {
        self.0.get().filter(|made| made.by == generation()).map(|made| &made.value)
    }

    /// Returns what was made last, by this process or the nearest ancestor that made any.
    ///
    /// Of an ancestor's, one of its threads may have been in the middle of changing it at the fork.
    pub fn inherited(&self) -> Option<&'static T> {
        self.0.get().map(|made| &made.value)
    }

    /// Returns what this process made, making it now if need be.
    ///
    /// Of threads that come at once, each makes one, the first to finish is right, and what the others made is
    /// dropped: nobody waits.
    #[inline]
    pub fn get_or_make(&self, make: impl FnOnce() -> T) -> &'static T {
        match self.get() {
            Some(value) => value,
            None => self.make(make),
        }
    }

    #[cold]
    fn make(&self, make: impl FnOnce() -> T) -> &'static T {
        let new = Box::new(Made { by: generation(), value: make() });
        let made = offer(new, |new| {
            let mut present = self.0.get();
            loop {
                if let Some(made) = present
                    && made.by == generation()
                {
                    return Err(made);
                }
                match self.0.replace(present, new) {
                    Ok(()) => return Ok(()),
                    Err(faster) => present = faster,
                }
            }
        });
        let (Ok(made) | Err(made)) = made;
        &made.value
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

impl Turn {
    /// Makes a turn that nobody has.
    pub const fn new() -> Self {
        Self(std::sync::atomic::AtomicU64::new(0))
    }

    /// Does the work, unless another thread of this process is doing it, which then does its own once more.
    pub fn run(&self, mut work: impl FnMut()) {
        self.run_as(generation().number(), &mut work);
    }
}
