//! Calling code of the program that may panic, such as the formatting of a value.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Written in place of what a panicking value did not write.
pub const PANICKED: &str = "<panicked>";

/// Calls `format`; returns whether it panicked.
#[inline(always)]
pub fn is_caught(format: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(format)).is_err_and(|payload| {
        discard(payload);
        true
    })
}

/// Drops the payload of a panic. If that panics too, the second payload is leaked.
#[cold]
#[inline(never)]
fn discard(payload: Box<dyn Any + Send>) {
    if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(another);
    }
}
