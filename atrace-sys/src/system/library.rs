//! Shared libraries. Libraries are opened at run time and never closed, because threads that a library's initialisers
//! have started may still run.
//!
//! This crate itself may be part of a shared library, such as a plugin, that the program may close: see
//! [`stay_loaded`].

use std::ffi::{CStr, CString, OsStr, c_int, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::c_text::CText;

unsafe extern "C" {
    // SAFETY: the signatures are those of dlfcn.h. `dladdr` accepts any address. The texts that it finds belong to the
    // dynamic linker and are valid while the library is loaded: all callers ask about libraries that are never closed,
    // or about the library whose code is running. `dlsym` accepts any open library.
    safe fn dladdr(address: *const c_void, found: &mut DlInfo) -> c_int;
    fn dlerror<'a>() -> Option<CText<'a>>;
    safe fn dlsym(library: Library, name: CText<'_>) -> Option<NonNull<c_void>>;
}

/// The C structure `Dl_info`: the file to which an address belongs, and the address at which the file is loaded; the
/// nearest symbol below the address, and the address of that symbol.
#[repr(C)]
struct DlInfo {
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
    /// The program and all libraries whose symbols are visible to others.
    #[cfg(all(target_os = "android", not(target_feature = "crt-static")))]
    pub(crate) const LOADED: Self = Self(libc::RTLD_DEFAULT);

    /// Opens a library. If that fails, returns the library's name and the reason, usually in the dynamic linker's
    /// words. Allocates.
    pub(crate) fn open(name: &OsStr) -> Result<Self, String> {
        let fault = |reason: &str| format!("{}: {reason}", name.display());
        let path = CString::new(name.as_bytes()).map_err(|_| fault("the path contains a NUL byte"))?;
        let library = load(&path, libc::RTLD_LAZY | libc::RTLD_LOCAL);
        if !library.is_null() {
            return Ok(Self(library));
        }
        // SAFETY: the text is valid until this thread's next call of the dynamic linker, and the last use of the text
        // is before that call.
        let reason = unsafe { dlerror() }.map(|reason| reason.to_c_str().to_string_lossy());
        let reason = reason.as_deref().unwrap_or("the dynamic linker gives no reason");
        Err(fault(reason.strip_prefix("dlopen failed: ").unwrap_or(reason)))
    }

    /// Returns a function, or a pointer to a variable, if the library has the symbol.
    ///
    /// # Safety
    ///
    /// The library's symbol of this name must have the type `T`.
    #[inline(always)]
    pub(crate) unsafe fn get<T: Copy>(self, name: &CStr) -> Option<T> {
        const { assert!(size_of::<T>() == size_of::<NonNull<c_void>>()) };
        let address = self.address(name)?;
        // SAFETY: `T` has the size of a pointer. By the caller's contract, the symbol at the address has the type `T`.
        Some(unsafe { std::mem::transmute_copy(&address) })
    }

    /// Returns the address of a symbol, or `None` if the library lacks it. May allocate.
    #[inline(never)]
    pub(crate) fn address(self, name: &CStr) -> Option<NonNull<c_void>> {
        dlsym(self, name.into())
    }
}

// SAFETY: a `Library` is a handle of the dynamic linker, which any thread may use.
unsafe impl Sync for Library {}

/// Returns the dynamic linker's information about an address. If there is no information, all pointers of the result
/// are null.
fn find(address: *const c_void) -> DlInfo {
    let mut found = DlInfo { file: None, start: ptr::null(), symbol: None, address: ptr::null() };
    dladdr(address, &mut found);
    found
}

/// Returns the path of the library that contains a function, or an empty text if the dynamic linker does not know
/// it.
pub(crate) fn library_of(function: *const c_void) -> &'static CStr {
    find(function).file.map(CText::to_c_str).unwrap_or_default()
}

/// Keeps the shared library that contains this code loaded until the process ends. Does nothing if the code belongs to
/// the program itself.
///
/// Call this function before the C library is given a callback into this code: the body of a thread, a fork handler, or
/// a destructor of a thread key. After `dlclose`, the C library would jump to memory that is no longer mapped. Call it
/// before a descriptor is left open, too, because otherwise the library would open another descriptor each time it is
/// loaded again.
///
/// The first call allocates and takes the dynamic linker's lock. Later calls neither allocate nor take the lock.
pub fn stay_loaded() {
    static IS_DONE: AtomicBool = AtomicBool::new(false);
    if cfg!(miri) || IS_DONE.swap(true, Ordering::Relaxed) {
        return;
    }
    let own = find(stay_loaded as *const c_void);
    let program = find(ptr::with_exposed_provenance(super::auxiliary(libc::AT_PHDR) as usize));
    if let Some(path) = own.file
        && own.start != program.start
    {
        // The call adds a reference to the library, which is never given back.
        load(path.to_c_str(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
    }
}

/// Returns a handle of a library, or null.
fn load(path: &CStr, flags: libc::c_int) -> *mut c_void {
    // SAFETY: running the library's initialisers is sound in each of three cases. The library is loaded already, so no
    // initialiser runs. Or it is Android's own library, whose initialisers do no harm to a running program. Or the user
    // has chosen its path; a process with elevated rights ignores such a path.
    unsafe { libc::dlopen(path.as_ptr(), flags) }
}
