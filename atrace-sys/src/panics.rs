//! Calls code of the program that may panic, such as the formatting of a value.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The text that is written in place of the remaining output of a value whose formatting panics.
pub const PANICKED: &str = "<panicked>";

/// Calls `format`, and returns whether it panicked.
#[inline(always)]
pub fn is_caught(format: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(format)).is_err_and(|payload| {
        discard(payload);
        true
    })
}

/// Drops the payload of a panic. If dropping the payload panics too, the second payload is leaked.
#[cold]
#[inline(never)]
fn discard(payload: Box<dyn Any + Send>) {
    if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(another);
    }
}
