//! C strings as arguments and results of foreign functions.

use std::ffi::{CStr, c_char};
use std::marker::PhantomData;
use std::ptr::NonNull;

/// A C string as it is passed to C: a pointer that is never null.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct CText<'a>(NonNull<c_char>, PhantomData<&'a CStr>);

impl<'a> From<&'a CStr> for CText<'a> {
    #[inline]
    fn from(text: &'a CStr) -> Self {
        Self(NonNull::from(text).cast(), PhantomData)
    }
}

impl<'a> CText<'a> {
    /// Finds the length of the text, and returns the text.
    pub(crate) fn to_c_str(self) -> &'a CStr {
        // SAFETY: made from a `CStr`, or by a C function whose declaration states the lifetime.
        unsafe { CStr::from_ptr(self.0.as_ptr()) }
    }
}
