//! Atomic references: atomic pointers that only ever hold `&'static` references, so that loading them is safe.
//!
//! - [`AtomicRef`] always holds a reference, so a load needs no check. For example, each event of `atrace` loads the
//!   serial of a property through an `AtomicRef`, because the serial may be in a mapped property store or in memory of
//!   bionic.
//! - [`OnceRef`] is empty at first. An empty `OnceRef` consists of zeroes, so a large table of them takes no room in
//!   the file of a program.
//!
//! `OnceLock` and `LazyLock` can't be used here: with them, a thread waits while another thread initialises the value,
//! and that other thread may not exist in a forked child.

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// A `&'static T` that any thread can replace atomically.
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
    /// Creates a reference to `target`.
    pub const fn new(target: &'static T) -> Self {
        Self(OnceRef(AtomicPtr::new(std::ptr::from_ref(target).cast_mut()), PhantomData))
    }

    /// Returns the present reference.
    #[inline(always)]
    pub fn get(&self) -> &'static T {
        // SAFETY: the pointer is never null and comes from a `&'static T`, because `new`, `set` and `replace` accept
        // nothing else.
        unsafe { &*self.0.0.load(Ordering::Acquire) }
    }

    /// Replaces the reference by `target`.
    pub fn set(&self, target: &'static T) {
        self.0.put(Some(target));
    }

    /// If the present reference is still `current`, replaces it by a reference to the value in `new`, which is then
    /// never freed. Otherwise drops `new`.
    ///
    /// # Errors
    ///
    /// Returns the present reference as an error if it is not `current`.
    pub fn publish(&self, current: &'static T, new: Box<T>) -> Result<&'static T, &'static T> {
        offer(new, |new| self.replace(current, new))
    }

    /// Replaces the reference by `new`, if the present reference is still `current`.
    ///
    /// # Errors
    ///
    /// Returns the present reference as an error if it is not `current`.
    pub fn replace(&self, current: &'static T, new: &'static T) -> Result<(), &'static T> {
        self.0.replace(Some(current), new).map_err(|present| present.unwrap_or(current))
    }
}

/// An atomic reference that is either empty or a `&'static T`. It is empty at first and is usually set once.
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
    /// Creates an empty reference.
    pub const fn new() -> Self {
        Self(AtomicPtr::new(std::ptr::null_mut()), PhantomData)
    }

    /// Returns the reference, or `None` if it is empty.
    #[inline(always)]
    pub fn get(&self) -> Option<&'static T> {
        Self::target(self.0.load(Ordering::Acquire))
    }

    #[inline(always)]
    fn target(pointer: *mut T) -> Option<&'static T> {
        // SAFETY: the pointer is null or comes from a `&'static T`, because `put` and `replace` accept nothing else.
        unsafe { pointer.as_ref() }
    }

    fn pointer(target: Option<&'static T>) -> *mut T {
        target.map_or(std::ptr::null_mut(), |target| std::ptr::from_ref(target).cast_mut())
    }

    /// Sets the reference, without ever waiting.
    ///
    /// # Errors
    ///
    /// Returns the present reference as an error if a reference was set before, even if it equals `target`.
    pub fn set(&self, target: &'static T) -> Result<(), &'static T> {
        self.replace(None, target).map_err(|present| present.unwrap_or(target))
    }

    /// Sets the reference to `target`, or empties it, whether or not it was set before.
    pub fn put(&self, target: Option<&'static T>) {
        self.0.store(Self::pointer(target), Ordering::Release);
    }

    /// Empties the reference and returns its former value. If several threads call this function at
    /// once, only one of them gets the value.
    #[cfg(not(no_tracing))]
    pub fn take(&self) -> Option<&'static T> {
        Self::target(self.0.swap(std::ptr::null_mut(), Ordering::AcqRel))
    }

    /// If the present reference is still `current`, sets it to the value in `new`, which is then never freed. Otherwise
    /// drops `new`.
    ///
    /// # Errors
    ///
    /// Returns the present reference as an error if it is not `current`.
    #[cfg(not(no_tracing))]
    pub fn offer(
        &self,
        current: Option<&'static T>,
        new: impl Place<Target = T>,
    ) -> Result<&'static T, Option<&'static T>> {
        offer(new, |new| self.replace(current, new))
    }

    /// Sets the reference to `new`, if the present reference is still `current`. Otherwise returns the
    /// present reference as an error.
    pub(crate) fn replace(
        &self,
        current: Option<&'static T>,
        new: &'static T,
    ) -> Result<(), Option<&'static T>> {
        let (current, new) = (Self::pointer(current), Self::pointer(Some(new)));
        let replaced = self.0.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire);
        replaced.map(drop).map_err(Self::target)
    }

    /// Returns the reference. If it is empty, sets it to the result of `find` first, unless another thread
    /// sets it meanwhile.
    pub fn get_or(&self, find: impl FnOnce() -> &'static T) -> &'static T {
        self.get().unwrap_or_else(|| {
            let found = find();
            self.set(found).err().unwrap_or(found)
        })
    }

    /// Returns the reference. If it is empty, sets it first to the result of `make`, which is then never
    /// freed.
    ///
    /// If several threads call this function at once, each may create a value; the first value is stored and the others
    /// are dropped. No thread waits for another thread, which might not exist in a forked child.
    pub fn get_or_make(&self, make: impl FnOnce() -> T) -> &'static T {
        self.get().unwrap_or_else(|| self.keep(Box::new(make())))
    }

    /// Unless the reference is already set, sets it to the value in `new`, which is then never freed. Returns the
    /// present reference.
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

/// An owner of a value whose address stays the same until the owner is dropped, even if the owner is moved.
///
/// # Safety
///
/// The address of the value must stay the same, and `deref` must always return the value at that address.
pub unsafe trait Place: Deref {}

// SAFETY: the value is on the heap; moving the box moves only its address.
unsafe impl<T> Place for Box<T> {}

/// Calls `set` with a reference to the value in `new`. If `set` succeeds, the value is never dropped; otherwise `new`
/// is dropped.
///
/// If `set` fails, it must not have published the reference.
pub(crate) fn offer<L: Place<Target: 'static>, E>(
    new: L,
    set: impl FnOnce(&'static L::Target) -> Result<(), E>,
) -> Result<&'static L::Target, E> {
    let owner = ManuallyDrop::new(new);
    // SAFETY: the value lives forever, unless the owner is dropped below; in that case nobody else has seen the
    // reference.
    let new = unsafe { &*std::ptr::from_ref(&**owner) };
    set(new).map(|()| new).inspect_err(|_| drop(ManuallyDrop::into_inner(owner)))
}

/// Eight words that share a cache line of the processor.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Line(pub [AtomicU64; 8]);

/// Allocates cache lines that are never freed. Their words are 0. The system provides memory for the pages of the lines
/// only when they are first used.
pub fn zeroed_lines<const COUNT: usize>() -> &'static [Line; COUNT] {
    // Std asks the allocator for zeroed memory, which leaves new pages untouched, only if the type's alignment is
    // small. So this function allocates words instead of lines, and one line more than needed, so that the words
    // contain enough aligned lines.
    let words = Box::leak(vec![0_u64; 8 * (COUNT + 1)].into_boxed_slice());
    // Miri does not report memory as leaked if a static points to the beginning of that memory.
    #[cfg(miri)]
    {
        static KEPT: std::sync::Mutex<Vec<AtomicPtr<u64>>> = std::sync::Mutex::new(Vec::new());
        KEPT.lock().into_iter().for_each(|mut kept| kept.push(AtomicPtr::new(words.as_mut_ptr())));
    }
    // SAFETY: atomics have the size and the bits of their integers, the lines are an aligned part of the words, and
    // nothing else refers to the words.
    let (_, lines, _) = unsafe { words.align_to_mut::<Line>() };
    lines.first_chunk().expect("an aligned part of so many lines")
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
