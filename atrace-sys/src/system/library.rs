//! Shared libraries that are there or not, opened at run time and never closed: what their initialisers began goes on.

use std::ffi::{CStr, CString, OsStr, c_int, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::ptr::{self, NonNull};

use crate::c_text::CText;

unsafe extern "C" {
    // SAFETY: the signatures are those of dlfcn.h; a symbol's address may be asked of any open library.
    fn dladdr(address: *const c_void, found: &mut Found) -> c_int;
    fn dlerror<'a>() -> Option<CText<'a>>;
    safe fn dlsym(library: Library, name: CText<'_>) -> Option<NonNull<c_void>>;
}

/// `Dl_info`: which file an address is of, and where it begins; the symbol below the address, and where that begins.
#[repr(C)]
struct Found {
    file: Option<CText<'static>>,
    start: *const c_void,
    symbol: Option<CText<'static>>,
    address: *const c_void,
}

/// An open library.
#[repr(transparent)]
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
        // SAFETY: a C string that is this thread's until its next call of the dynamic linker, and is not used then.
        let reason = unsafe { dlerror() }.map(|reason| reason.to_c_str().to_string_lossy());
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
        dlsym(self, name.into())
    }
}

// SAFETY: a handle of the dynamic linker's, which any thread may use.
unsafe impl Sync for Library {}

/// The path of the library that a function is in; empty where the dynamic linker does not tell.
pub(crate) fn library_of(function: *const c_void) -> &'static CStr {
    let mut found = Found { file: None, start: ptr::null(), symbol: None, address: ptr::null() };
    // SAFETY: any address may be asked for. The text is the dynamic linker's, valid while the library is loaded: always.
    unsafe { dladdr(function, &mut found) };
    found.file.map(CText::to_c_str).unwrap_or_default()
}
