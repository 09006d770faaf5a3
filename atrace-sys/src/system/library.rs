//! Shared libraries that are there or not, opened at run time and never closed: what their initialisers began goes on.

use std::ffi::{CStr, CString, OsStr, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::ptr::NonNull;

use super::{Plain, zeros};

/// An open library.
#[derive(Clone, Copy)]
pub(crate) struct Library(*mut c_void);

impl Library {
    /// What is loaded already.
    #[cfg(all(target_os = "android", not(target_feature = "crt-static")))]
    pub(crate) const LOADED: Self = Self(libc::RTLD_DEFAULT);

    /// Opens a library; else says why not, as the dynamic linker tells it. Allocates.
    pub(crate) fn open(name: &OsStr) -> Result<Self, String> {
        let fault = |reason: &str| format!("{}: {reason}", name.display());
        let path = CString::new(name.as_bytes()).map_err(|_| fault("the path contains a NUL byte"))?;
        // SAFETY: called with the names of Android's own libraries, whose initialisers harm no running program,
        // and with a path of the user's choice, which is ignored in a process with elevated rights.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
        if !library.is_null() {
            return Ok(Self(library));
        }
        // SAFETY: no preconditions; null, or a C string that is this thread's until its next call of the dynamic linker.
        let reason = unsafe { text(libc::dlerror()) }.map(CStr::to_string_lossy);
        let reason = reason.as_deref().unwrap_or("the dynamic linker does not say why");
        Err(fault(reason.strip_prefix("dlopen failed: ").unwrap_or(reason)))
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

    /// Returns the address of a symbol, if the library has it.
    #[inline(never)]
    pub(crate) fn address(self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: an open library and a C string.
        NonNull::new(unsafe { libc::dlsym(self.0, name.as_ptr()) })
    }
}

// SAFETY: a handle of the dynamic linker's, which any thread may use.
unsafe impl Sync for Library {}

// SAFETY: zeros are null pointers.
unsafe impl Plain for libc::Dl_info {}

/// The path of the library that a function is in; empty where the dynamic linker does not tell.
pub(crate) fn library_of(function: *const c_void) -> &'static CStr {
    let mut found: libc::Dl_info = zeros();
    // SAFETY: any address may be asked for, and `found` is writable. The text is the dynamic linker's, valid while the
    // library is loaded: always.
    unsafe {
        libc::dladdr(function, &mut found);
        text(found.dli_fname)
    }
    .unwrap_or_default()
}

/// A text of C's, unless it is null.
///
/// # Safety
///
/// Null, or a C string that lives as long as is said.
unsafe fn text<'a>(text: *const std::ffi::c_char) -> Option<&'a CStr> {
    // SAFETY: as promised.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })
}
