//! What the models share: loom's `sync`, with the workspace's own shared word, and bounds.

#![allow(dead_code, unreachable_pub, reason = "each model uses a part of this")]

/// What the modelled files take for `crate::sync`.
pub mod sync {
    pub use loom::sync::*;

    /// As that of `atrace-sys`, on loom's pointer.
    #[derive(Debug)]
    pub struct AtomicRef<T: 'static>(atomic::AtomicPtr<T>);

    #[allow(unsafe_code, reason = "what a pointer was made from is a reference for ever")]
    impl<T> AtomicRef<T> {
        pub fn new(target: &'static T) -> Self {
            Self(atomic::AtomicPtr::new(std::ptr::from_ref(target).cast_mut()))
        }

        pub fn get(&self) -> &'static T {
            // SAFETY: only `&'static T` are stored.
            unsafe { &*self.0.load(atomic::Ordering::Acquire) }
        }

        pub fn set(&self, target: &'static T) {
            self.0.store(std::ptr::from_ref(target).cast_mut(), atomic::Ordering::Release);
        }

        pub fn replace(&self, current: &'static T, new: &'static T) -> Result<(), &'static T> {
            let pointer = |target| std::ptr::from_ref::<T>(target).cast_mut();
            let (success, failure) = (atomic::Ordering::AcqRel, atomic::Ordering::Acquire);
            match self.0.compare_exchange(pointer(current), pointer(new), success, failure) {
                Ok(_) => Ok(()),
                // SAFETY: as in `get`.
                Err(present) => Err(unsafe { &*present }),
            }
        }
    }
}

/// Every order in which no more than so many threads are interrupted where they need not be.
pub fn model(interruptions: usize, body: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(interruptions);
    builder.check(body);
}

/// A value that stays: loom forgets it with the run.
pub fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}
