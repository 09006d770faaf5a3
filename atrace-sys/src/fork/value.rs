//! Values that each process makes for itself: see [`PerProcess`].

use std::fmt;

use super::{Generation, Turn, generation};
use crate::word::{OnceRef, offer};

/// A value that each process makes for itself. A forked child does not see its parent's value.
///
/// It is for values that a thread of the parent may have been changing during the fork, above all locks. A process's
/// value stays until the process ends. The values of ancestors stay in memory unused.
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
    /// Creates an instance that has no value in any process.
    pub const fn new() -> Self {
        Self(OnceRef::new())
    }

    /// Returns this process's value; `None` if it was not made yet.
    #[inline]
    pub fn get(&self) -> Option<&'static T> {
        self.0.get().filter(|made| made.by == generation()).map(|made| &made.value)
    }

    /// Returns the value that was made last, by this process or its nearest ancestor that made one.
    ///
    /// A thread of that ancestor may have been changing the value during the fork.
    pub fn inherited(&self) -> Option<&'static T> {
        self.0.get().map(|made| &made.value)
    }

    /// Returns this process's value, making it if necessary.
    ///
    /// If several threads come at once, each makes a value; the first one is kept and the others are dropped. No
    /// thread waits.
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
    /// Creates a turn that no thread has.
    pub const fn new() -> Self {
        Self(std::sync::atomic::AtomicU64::new(0))
    }

    /// Does the work. If another thread of this process is in the middle of it, this thread returns at once, and the other
    /// thread does the work once more.
    pub fn run(&self, mut work: impl FnMut()) {
        self.run_as(generation().number(), &mut work);
    }
}
