//! The model of `slots.rs`, with a fault: the count of changes in the stack's head never changes. The model must find
//! this fault (the ABA problem).

#[path = "slots/exchange.rs"]
mod exchange;
#[allow(dead_code, reason = "only the free slots are run")]
#[path = "../../../atrace-subscriber/src/slots.rs"]
mod slots;

mod sync {
    pub(crate) mod atomic {
        pub(crate) use loom::sync::atomic::{AtomicU32, Ordering, fence};

        const INDEX: u64 = u32::MAX as u64;

        pub(crate) struct AtomicU64(loom::sync::atomic::AtomicU64);

        impl AtomicU64 {
            pub(crate) fn new(value: u64) -> Self {
                Self(loom::sync::atomic::AtomicU64::new(value & INDEX))
            }

            pub(crate) fn load(&self, order: Ordering) -> u64 {
                self.0.load(order)
            }

            pub(crate) fn store(&self, value: u64, order: Ordering) {
                self.0.store(value, order);
            }

            pub(crate) fn compare_exchange_weak(
                &self,
                present: u64,
                new: u64,
                success: Ordering,
                failure: Ordering,
            ) -> Result<u64, u64> {
                self.0.compare_exchange_weak(present & INDEX, new & INDEX, success, failure)
            }

            pub(crate) fn fetch_update(
                &self,
                success: Ordering,
                failure: Ordering,
                update: impl FnMut(u64) -> Option<u64>,
            ) -> Result<u64, u64> {
                self.0.fetch_update(success, failure, update)
            }
        }
    }
}

#[test]
#[should_panic(expected = "has two holders")]
fn without_the_count_a_late_swap_gives_a_slot_to_two() {
    exchange::check();
}
