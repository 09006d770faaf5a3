//! Common parts of the models: the module `sync` with loom's types, the workspace's own `AtomicRef` with an atomic
//! pointer of loom, and a limit for the number of preemptions.

#![allow(dead_code, unreachable_pub, reason = "each model uses a part of this")]

/// The types that the modelled files import as `crate::sync`.
pub mod sync {
    pub use loom::sync::*;

    /// Works as the `AtomicRef` of `atrace-sys`, with an atomic pointer of loom.
    #[derive(Debug)]
    pub struct AtomicRef<T: 'static>(atomic::AtomicPtr<T>);

    #[allow(unsafe_code, reason = "each pointer was made from a `&'static T`")]
    impl<T> AtomicRef<T> {
        pub fn new(target: &'static T) -> Self {
            Self(atomic::AtomicPtr::new(std::ptr::from_ref(target).cast_mut()))
        }

        pub fn get(&self) -> &'static T {
            // SAFETY: only pointers to `&'static T` are stored.
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
                // SAFETY: only pointers to `&'static T` are stored.
                Err(present) => Err(unsafe { &*present }),
            }
        }
    }
}

/// Runs the model in every order with at most this many preemptions.
pub fn model(interruptions: usize, body: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(interruptions);
    builder.check(body);
}

/// Leaks a value, because the modelled code refers to data that exists until the process ends.
pub fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}
