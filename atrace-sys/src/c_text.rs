//! C strings as arguments and results of foreign functions.

use std::ffi::{CStr, c_char};
use std::marker::PhantomData;
use std::ptr::NonNull;

/// A C string in the form in which C functions take and return it: a pointer that is never null.
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
    /// Searches for the NUL at the end of the text, and returns the text as a `CStr`.
    pub(crate) fn to_c_str(self) -> &'a CStr {
        // SAFETY: the pointer comes from a `CStr`, or from a C function whose declaration states how long the text is
        // valid.
        unsafe { CStr::from_ptr(self.0.as_ptr()) }
    }
}
