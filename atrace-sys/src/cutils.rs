//! The real libcutils: found at run time, or linked into a platform build (`--cfg atrace_link_cutils`).
//!
//! No Android version exports all of its functions: Android 6 has no `atrace_end_body`, no instants and no tracks. So
//! a method here answers whether the library has the function, and the caller writes the event through the marker
//! where it has not. The library is never unloaded.

use std::ffi::{CStr, OsStr, c_char};
use std::fmt;
use std::sync::atomic::AtomicU64;

use crate::bindings;

/// Why libcutils can't be used.
#[derive(Debug)]
pub struct CutilsError(String);

impl fmt::Display for CutilsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CutilsError {}

/// Declares the table of functions once: the type of each is that of the header's binding.
macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident: fn($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions of libcutils that were found.
        #[derive(Clone, Copy, Debug)]
        struct Functions {
            $($(#[$doc])* $name: Option<unsafe extern "C" fn($($argument: $type),*) $(-> $result)?>,)*
        }

        impl Functions {
            /// Those of a library opened at run time.
            #[cfg(not(atrace_link_cutils))]
            fn of(library: &libloading::Library) -> Self {
                Self {
                    $(
                        // SAFETY: libcutils' symbol of that name has that type in every version (the exception,
                        // `atrace_async_for_track_end_body`, is treated where it is called).
                        $name: unsafe { library.get(stringify!($name)) }.ok().map(|symbol| *symbol),
                    )*
                }
            }

            /// Those that the linker bound, each checked against the header's declaration.
            #[cfg(atrace_link_cutils)]
            fn linked() -> Self {
                Self { $($name: Some(bindings::$name),)* }
            }
        }

        /// Fails to compile where the table and the header disagree; never called, so nothing is linked for it.
        #[allow(dead_code)]
        fn agrees_with_the_header() {
            $(let _: unsafe extern "C" fn($($type),*) $(-> $result)? = bindings::$name;)*
        }
    };
}

functions! {
    atrace_init: fn();
    atrace_setup: fn();
    atrace_update_tags: fn();
    atrace_set_tracing_enabled: fn(enabled: bool);
    atrace_begin_body: fn(name: *const c_char);
    atrace_end_body: fn();
    atrace_async_begin_body: fn(name: *const c_char, cookie: i32);
    atrace_async_end_body: fn(name: *const c_char, cookie: i32);
    atrace_async_for_track_begin_body: fn(track: *const c_char, name: *const c_char, cookie: i32);
    atrace_async_for_track_end_body: fn(track: *const c_char, cookie: i32);
    atrace_instant_body: fn(name: *const c_char);
    atrace_instant_for_track_body: fn(track: *const c_char, name: *const c_char);
    atrace_int_body: fn(name: *const c_char, value: i32);
    atrace_int64_body: fn(name: *const c_char, value: i64);
}

/// A loaded libcutils.
///
/// Its methods may be called from any thread. They may change errno.
#[derive(Debug)]
pub struct Cutils {
    functions: Functions,
    enabled_tags: &'static AtomicU64,
}

/// Calls a function of the library if it has it; tells whether it has.
macro_rules! call {
    ($self:ident.$name:ident($($argument:expr),*)) => {
        match $self.functions.$name {
            Some(function) => {
                // SAFETY: the function has this type (see `functions!`), strings are C strings that outlive the
                // call, and libcutils may be called from any thread.
                unsafe { function($($argument),*) };
                true
            }
            None => false,
        }
    };
}

impl Cutils {
    /// Loads the library at `path`, or the one the dynamic linker finds as `libcutils.so`.
    ///
    /// In a platform build (`--cfg atrace_link_cutils`) it is the one linked, and `path` must be `None`.
    ///
    /// # Errors
    ///
    /// Says why it can't be loaded, or which symbol it lacks that every libcutils has.
    #[cfg(not(atrace_link_cutils))]
    pub fn load(path: Option<&OsStr>) -> Result<Self, CutilsError> {
        let name = path.unwrap_or(OsStr::new("libcutils.so"));
        // SAFETY: libcutils' initialisers do nothing that could harm a running program. A path of the user's choice
        // comes from ATRACE_BACKEND, which is ignored in a process with elevated rights.
        let library = unsafe { libloading::Library::new(name) }
            .map_err(|reason| CutilsError(format!("{}: {reason}", name.display())))?;
        let functions = Functions::of(&library);
        // SAFETY: a uint64_t in every version, aligned, never unmapped because the library is leaked below.
        let tags = unsafe { library.get::<*const AtomicU64>("atrace_enabled_tags") }.map(|symbol| *symbol);
        let (Ok(tags), Some(_), Some(_)) = (tags, functions.atrace_begin_body, functions.atrace_update_tags)
        else {
            return Err(CutilsError(format!(
                "{} lacks atrace_enabled_tags, atrace_begin_body or atrace_update_tags: it is no libcutils that traces",
                name.display()
            )));
        };
        std::mem::forget(library);
        // SAFETY: as above; C code writes it only by whole 64-bit stores.
        Ok(Self { functions, enabled_tags: unsafe { &*tags } })
    }

    /// Takes the library that the platform build linked.
    ///
    /// # Errors
    ///
    /// When `path` names another one.
    #[cfg(atrace_link_cutils)]
    pub fn load(path: Option<&OsStr>) -> Result<Self, CutilsError> {
        if let Some(path) = path {
            return Err(CutilsError(format!("{}: libcutils is linked into this program", path.display())));
        }
        let tags = (&raw const bindings::atrace_enabled_tags).cast::<AtomicU64>();
        // SAFETY: an aligned uint64_t that lives as long as the program; C code writes it by whole 64-bit stores.
        Ok(Self { functions: Functions::linked(), enabled_tags: unsafe { &*tags } })
    }

    /// The library's tag mask, as its own functions read it.
    #[doc(alias = "atrace_enabled_tags")]
    pub fn enabled_tags(&self) -> &'static AtomicU64 {
        self.enabled_tags
    }

    /// Has the library open the marker, if it has not, and read the tags if it knows that they changed.
    #[doc(alias = "atrace_init")]
    #[doc(alias = "atrace_setup")]
    pub fn init(&self) {
        let _ = call!(self.atrace_init()) || call!(self.atrace_setup());
    }

    /// Has the library read the tags anew.
    #[doc(alias = "atrace_update_tags")]
    pub fn update_tags(&self) {
        call!(self.atrace_update_tags());
    }

    /// Parks the library's mask at `ATRACE_TAG_NOT_READY`, or has it read the tags again.
    #[doc(alias = "atrace_set_tracing_enabled")]
    pub fn set_tracing_enabled(&self, enabled: bool) {
        call!(self.atrace_set_tracing_enabled(enabled));
    }

    /// Writes `B`. Tells whether the library has the function, as all the following do.
    #[doc(alias = "atrace_begin_body")]
    #[inline]
    pub fn begin(&self, name: &CStr) -> bool {
        call!(self.atrace_begin_body(name.as_ptr()))
    }

    /// Writes `E`.
    #[doc(alias = "atrace_end_body")]
    #[inline]
    pub fn end(&self) -> bool {
        call!(self.atrace_end_body())
    }

    /// Writes `S`.
    #[doc(alias = "atrace_async_begin_body")]
    #[inline]
    pub fn async_begin(&self, name: &CStr, cookie: i32) -> bool {
        call!(self.atrace_async_begin_body(name.as_ptr(), cookie))
    }

    /// Writes `F`.
    #[doc(alias = "atrace_async_end_body")]
    #[inline]
    pub fn async_end(&self, name: &CStr, cookie: i32) -> bool {
        call!(self.atrace_async_end_body(name.as_ptr(), cookie))
    }

    /// Writes `G`.
    #[doc(alias = "atrace_async_for_track_begin_body")]
    #[inline]
    pub fn async_for_track_begin(&self, track: &CStr, name: &CStr, cookie: i32) -> bool {
        call!(self.atrace_async_for_track_begin_body(track.as_ptr(), name.as_ptr(), cookie))
    }

    /// Writes `H`.
    #[doc(alias = "atrace_async_for_track_end_body")]
    #[inline]
    pub fn async_for_track_end(&self, track: &CStr, cookie: i32) -> bool {
        call!(self.atrace_async_for_track_end_body(track.as_ptr(), cookie))
    }

    /// Writes `I`.
    #[doc(alias = "atrace_instant_body")]
    #[inline]
    pub fn instant(&self, name: &CStr) -> bool {
        call!(self.atrace_instant_body(name.as_ptr()))
    }

    /// Writes `N`.
    #[doc(alias = "atrace_instant_for_track_body")]
    #[inline]
    pub fn instant_for_track(&self, track: &CStr, name: &CStr) -> bool {
        call!(self.atrace_instant_for_track_body(track.as_ptr(), name.as_ptr()))
    }

    /// Writes `C` of a 32-bit value.
    #[doc(alias = "atrace_int_body")]
    #[inline]
    pub fn int(&self, name: &CStr, value: i32) -> bool {
        call!(self.atrace_int_body(name.as_ptr(), value))
    }

    /// Writes `C` of a 64-bit value.
    #[doc(alias = "atrace_int64_body")]
    #[inline]
    pub fn int64(&self, name: &CStr, value: i64) -> bool {
        call!(self.atrace_int64_body(name.as_ptr(), value))
    }
}
