//! A C string, as the type of an argument or a result of a foreign function.

use std::ffi::{CStr, c_char};
use std::marker::PhantomData;
use std::ptr::NonNull;

/// A C string, as C passes it: never null.
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
    /// The text, whose length is looked for.
    pub(crate) fn to_c_str(self) -> &'a CStr {
        // SAFETY: made of such a text, or C's, which says how long it lives where it is declared.
        unsafe { CStr::from_ptr(self.0.as_ptr()) }
    }
}
