//! References that threads share and replace: atomic pointers that are only ever given `&'static` references, so that
//! reading through them is safe.
//!
//! - [`AtomicRef`] always refers to something: a load needs no check. The gate of `atrace` loads a serial through one,
//!   which lies in a mapped property store or in bionic's.
//! - [`OnceRef`] is empty at first: all zeroes, so that a large table of them takes no room in a program.
//!
//! Kept by hand because `OnceLock` and `LazyLock` wait for the thread that initialises them, which a forked child has
//! not.

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A `&'static T` that can be replaced atomically, from any thread.
///
/// # Examples
///
/// ```
/// use atrace_sys::AtomicRef;
/// use std::sync::atomic::{AtomicU32, Ordering};
///
/// static FIRST: AtomicU32 = AtomicU32::new(1);
/// static SECOND: AtomicU32 = AtomicU32::new(2);
/// static PLACE: AtomicRef<AtomicU32> = AtomicRef::new(&FIRST);
///
/// assert_eq!(PLACE.get().load(Ordering::Relaxed), 1);
/// PLACE.set(&SECOND);
/// assert_eq!(PLACE.get().load(Ordering::Relaxed), 2);
/// ```
#[derive(Debug)]
pub struct AtomicRef<T: Sync + 'static>(OnceRef<T>);

impl<T: Sync + 'static> AtomicRef<T> {
    /// Makes a reference that can be replaced later.
    pub const fn new(target: &'static T) -> Self {
        Self(OnceRef(AtomicPtr::new(std::ptr::from_ref(target).cast_mut()), PhantomData))
    }

    /// Returns what it refers to now.
    #[inline(always)]
    pub fn get(&self) -> &'static T {
        // SAFETY: never null, and from a `&'static T`: `new`, `set` and `replace` accept nothing else.
        unsafe { &*self.0.0.load(Ordering::Acquire) }
    }

    /// Makes it refer to `target`.
    pub fn set(&self, target: &'static T) {
        self.0.put(Some(target));
    }

    /// Makes it refer to the content of `new`, which is never freed then, if it still refers to `current`;
    /// else drops `new`.
    ///
    /// # Errors
    ///
    /// Returns the present reference when another thread was faster.
    pub fn publish(&self, current: &'static T, new: Box<T>) -> Result<&'static T, &'static T> {
        offer(new, |new| self.replace(current, new))
    }

    /// Makes it refer to `new` if it still refers to `current`; else returns what it refers to.
    ///
    /// # Errors
    ///
    /// Returns the present reference when another thread was faster.
    pub fn replace(&self, current: &'static T, new: &'static T) -> Result<(), &'static T> {
        self.0.replace(Some(current), new).map_err(|present| present.unwrap_or(current))
    }
}

/// A `&'static T` that is not there yet, and once it is, stays.
///
/// # Examples
///
/// ```
/// use atrace_sys::OnceRef;
///
/// static PLACE: OnceRef<u32> = OnceRef::new();
///
/// assert_eq!(PLACE.get(), None);
/// assert_eq!(PLACE.set(&1), Ok(()));
/// assert_eq!(PLACE.set(&2), Err(&1));
/// assert_eq!(PLACE.get(), Some(&1));
/// ```
#[derive(Debug)]
pub struct OnceRef<T: Sync + 'static>(AtomicPtr<T>, PhantomData<&'static T>);

impl<T: Sync + 'static> OnceRef<T> {
    /// Makes an empty place.
    pub const fn new() -> Self {
        Self(AtomicPtr::new(std::ptr::null_mut()), PhantomData)
    }

    /// Returns what was set.
    #[inline(always)]
    pub fn get(&self) -> Option<&'static T> {
        Self::target(self.0.load(Ordering::Acquire))
    }

    #[inline(always)]
    fn target(pointer: *mut T) -> Option<&'static T> {
        // SAFETY: null, or from a `&'static T`: `put` and `replace` accept nothing else.
        unsafe { pointer.as_ref() }
    }

    fn pointer(target: Option<&'static T>) -> *mut T {
        target.map_or(std::ptr::null_mut(), |target| std::ptr::from_ref(target).cast_mut())
    }

    /// Sets what it refers to from now on; waits for nobody.
    ///
    /// # Errors
    ///
    /// Returns what it refers to when something, be it the same, was set before.
    pub fn set(&self, target: &'static T) -> Result<(), &'static T> {
        self.replace(None, target).map_err(|present| present.unwrap_or(target))
    }

    /// Makes it refer to `target`, or to nothing, whatever it refers to.
    pub fn put(&self, target: Option<&'static T>) {
        self.0.store(Self::pointer(target), Ordering::Release);
    }

    /// Empties it; returns what it referred to, which nobody else gets from it.
    #[cfg(not(no_tracing))]
    pub fn take(&self) -> Option<&'static T> {
        Self::target(self.0.swap(std::ptr::null_mut(), Ordering::AcqRel))
    }

    /// Makes it refer to what `new` owns, which is never freed then, if it still refers to `current`; else `new` is dropped.
    ///
    /// # Errors
    ///
    /// Returns what it refers to where that is not `current`.
    #[cfg(not(no_tracing))]
    pub fn offer(
        &self,
        current: Option<&'static T>,
        new: impl Place<Target = T>,
    ) -> Result<&'static T, Option<&'static T>> {
        offer(new, |new| self.replace(current, new))
    }

    /// Makes it refer to `new` if it still refers to `current`; else returns what it refers to.
    pub(crate) fn replace(
        &self,
        current: Option<&'static T>,
        new: &'static T,
    ) -> Result<(), Option<&'static T>> {
        let (current, new) = (Self::pointer(current), Self::pointer(Some(new)));
        let replaced = self.0.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire);
        replaced.map(drop).map_err(Self::target)
    }

    /// Returns what was set, making and leaking it now if need be.
    ///
    /// Of threads that come at once each makes one, the first to finish is right, and what the others made is dropped:
    /// nobody waits, also not in a forked child for a thread of its parent's.
    pub fn get_or_make(&self, make: impl FnOnce() -> T) -> &'static T {
        self.get().unwrap_or_else(|| self.keep(Box::new(make())))
    }

    /// Sets the content of `new`, which is never freed then, unless something was set before; returns what is set.
    pub fn keep(&self, new: impl Place<Target = T>) -> &'static T {
        let (Ok(set) | Err(set)) = offer(new, |new| self.set(new));
        set
    }
}

impl<T: Sync + 'static> Default for OnceRef<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// What owns a value that stays where it is until its owner is dropped, also when the owner is moved.
///
/// # Safety
///
/// It must be so, and `deref` must give that value each time.
pub unsafe trait Place: Deref {}

// SAFETY: the value is in the heap, and only its address is moved.
unsafe impl<T> Place for Box<T> {}

/// Has `set` publish what `new` owns, which is never dropped then; `new` is dropped where that fails.
///
/// `set` must not have published it where it fails.
pub(crate) fn offer<L: Place<Target: 'static>, E>(
    new: L,
    set: impl FnOnce(&'static L::Target) -> Result<(), E>,
) -> Result<&'static L::Target, E> {
    let owner = ManuallyDrop::new(new);
    // SAFETY: lives for ever unless the owner is dropped below, where nobody else has seen it.
    let new = unsafe { &*std::ptr::from_ref(&**owner) };
    set(new).map(|()| new).inspect_err(|_| drop(ManuallyDrop::into_inner(owner)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn who_publishes_late_gets_the_present_and_its_own_is_dropped() {
        struct Counted(u32, Option<Arc<()>>);
        static FIRST: Counted = Counted(1, None);
        static PLACE: AtomicRef<Counted> = AtomicRef::new(&FIRST);
        let count = Arc::new(());
        let counted = |number| Box::new(Counted(number, Some(Arc::clone(&count))));
        assert_eq!(PLACE.publish(&FIRST, counted(2)).map(|new| new.0).ok(), Some(2));
        assert_eq!(Arc::strong_count(&count), 2);
        assert_eq!(PLACE.publish(&FIRST, counted(3)).map_err(|present| present.0).err(), Some(2));
        assert_eq!(Arc::strong_count(&count), 2);
        assert_eq!(PLACE.get().0, 2);
        assert!(PLACE.get().1.is_some());
    }

    #[test]
    fn threads_that_publish_at_once_agree() {
        static FIRST: AtomicU32 = AtomicU32::new(0);
        static PLACE: AtomicRef<AtomicU32> = AtomicRef::new(&FIRST);
        let threads = if cfg!(miri) { 3 } else { 16 };
        let agreed: Vec<u32> = std::thread::scope(|scope| {
            let threads: Vec<_> = (1..=threads)
                .map(|number| {
                    scope.spawn(move || match PLACE.publish(&FIRST, Box::new(AtomicU32::new(number))) {
                        Ok(present) | Err(present) => present.load(Ordering::Relaxed),
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(agreed.iter().all(|number| *number == agreed[0] && *number > 0), "{agreed:?}");
    }

    #[test]
    fn threads_that_make_at_once_agree_and_one_stays() {
        static PLACE: OnceRef<Arc<()>> = OnceRef::new();
        let count = Arc::new(());
        let made: Vec<_> = std::thread::scope(|scope| {
            let make = || std::ptr::from_ref(PLACE.get_or_make(|| Arc::clone(&count))).addr();
            let threads: Vec<_> = (0..if cfg!(miri) { 3 } else { 16 }).map(|_| scope.spawn(make)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(made.iter().all(|address| *address == made[0]));
        assert_eq!(Arc::strong_count(&count), 2);
    }

    #[test]
    fn who_sets_first_is_right() {
        static NUMBERS: [u32; 8] = [0, 1, 2, 3, 4, 5, 6, 7];
        static PLACE: OnceRef<u32> = OnceRef::new();
        assert_eq!(PLACE.get(), None);
        let set: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = NUMBERS.iter().map(|number| scope.spawn(|| PLACE.set(number))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let present = PLACE.get().unwrap();
        assert_eq!(set.iter().filter(|set| set.is_ok()).count(), 1);
        assert_eq!(set[*present as usize], Ok(()));
        assert!(set.iter().all(|set| set.is_ok_and(|()| true) || *set == Err(present)));
    }
}
