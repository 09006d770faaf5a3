//! What a value's formatting may do to its program: panic.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Stands in place of what a value that panics did not write.
pub const PANICKED: &str = "<panicked>";

/// Calls `format`, and tells whether it panicked.
#[inline(always)]
pub fn is_caught(format: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(format)).is_err_and(|payload| {
        discard(payload);
        true
    })
}

/// Drops what was thrown, which may throw again; what is thrown then is not even dropped.
#[cold]
#[inline(never)]
fn discard(payload: Box<dyn Any + Send>) {
    if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(another);
    }
}
