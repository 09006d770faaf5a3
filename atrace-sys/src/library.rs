//! Shared libraries that are there or not, opened at run time and never closed: what their initialisers began goes on.

use std::ffi::{CStr, CString, OsStr, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::ptr::NonNull;

/// An open library.
#[derive(Clone, Copy)]
pub(crate) struct Library(NonNull<c_void>);

impl Library {
    /// Opens a library; else says why not, as the dynamic linker tells it.
    pub(crate) fn open(name: &OsStr) -> Result<Self, String> {
        let fault = |reason: &str| format!("{}: {reason}", name.display());
        let path = CString::new(name.as_bytes()).map_err(|_| fault("the path contains a NUL byte"))?;
        // SAFETY: called with the names of Android's own libraries, whose initialisers harm no running program,
        // and with a path of the user's choice, which is ignored in a process with elevated rights.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
        NonNull::new(library).map(Self).ok_or_else(|| {
            // SAFETY: no preconditions.
            let reason = NonNull::new(unsafe { libc::dlerror() });
            // SAFETY: a C string that is this thread's until its next call of the dynamic linker.
            let reason = reason.map(|reason| unsafe { CStr::from_ptr(reason.as_ptr()) }.to_string_lossy());
            let reason = reason.as_deref().unwrap_or("the dynamic linker does not say why");
            fault(reason.strip_prefix("dlopen failed: ").unwrap_or(reason))
        })
    }

    /// Returns a function, or a pointer to a variable, if the library has it.
    ///
    /// # Safety
    ///
    /// The library's symbol of this name must be of that type.
    #[inline(always)]
    pub(crate) unsafe fn get<T: Copy>(self, name: &CStr) -> Option<T> {
        const { assert!(size_of::<T>() == size_of::<NonNull<c_void>>()) };
        let address = self.address(name)?;
        // SAFETY: a pointer of T's size, which by the caller's promise points to what T says.
        Some(unsafe { std::mem::transmute_copy(&address) })
    }

    #[inline(never)]
    fn address(self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: an open library and a C string.
        NonNull::new(unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr()) })
    }
}
