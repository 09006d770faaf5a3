//! libandroid's `ATrace_*` functions: the tracing interface that Android offers to apps, which can't load libcutils.
//!
//! The interface has slices (Android 6), async slices and counters (Android 10), all with the tag APP; it has no
//! instants and no tracks. Each of its functions checks by itself whether the tag is enabled. The library is never
//! unloaded.

use std::ffi::{CStr, OsStr};

use crate::c_text::CText;
use crate::cutils::LibraryError;

type Named = extern "C" fn(name: CText<'_>);
/// The type of a function that takes a name and a number, which is a cookie or the value of a counter.
type Numbered<N> = extern "C" fn(name: CText<'_>, number: N);

/// A loaded libandroid.
///
/// Any thread may call the methods. The methods may change errno. A method that writes an event and returns a `bool`
/// returns false if the library lacks the function for the event.
#[derive(Debug)]
pub struct Ndk {
    is_enabled: extern "C" fn() -> bool,
    begin: Named,
    end: extern "C" fn(),
    async_begin: Option<Numbered<i32>>,
    async_end: Option<Numbered<i32>>,
    counter: Option<Numbered<i64>>,
}

fn call<N>(function: Option<Numbered<N>>, name: &CStr, number: N) -> bool {
    function.map(|function| function(name.into(), number)).is_some()
}

impl Ndk {
    /// Loads the library at `path` or, if `path` is `None`, the library that the dynamic linker finds as
    /// `libandroid.so`.
    ///
    /// # Errors
    ///
    /// Returns an error if the library can't be loaded, or is older than Android 6.
    pub fn load(path: Option<&OsStr>) -> Result<Self, LibraryError> {
        let name = path.unwrap_or(OsStr::new("libandroid.so"));
        let library = crate::system::Library::open(name).map_err(LibraryError)?;
        // SAFETY: the functions have had these types since they exist (`android/trace.h` of the NDK), and accept any
        // text.
        let (is_enabled, begin, end, async_begin, async_end, counter) = unsafe {
            (
                library.get(c"ATrace_isEnabled"),
                library.get(c"ATrace_beginSection"),
                library.get(c"ATrace_endSection"),
                library.get(c"ATrace_beginAsyncSection"),
                library.get(c"ATrace_endAsyncSection"),
                library.get(c"ATrace_setCounter"),
            )
        };
        let (Some(is_enabled), Some(begin), Some(end)) = (is_enabled, begin, end) else {
            return Err(LibraryError(format!(
                "{} lacks ATrace_isEnabled, ATrace_beginSection or ATrace_endSection: Android before 6 has none of them",
                name.display()
            )));
        };
        Ok(Self { is_enabled, begin, end, async_begin, async_end, counter })
    }

    /// Returns whether the tag APP is enabled.
    #[doc(alias = "ATrace_isEnabled")]
    pub fn is_enabled(&self) -> bool {
        (self.is_enabled)()
    }

    /// Begins a slice of the calling thread.
    #[doc(alias = "ATrace_beginSection")]
    #[inline]
    pub fn begin(&self, name: &CStr) {
        (self.begin)(name.into());
    }

    /// Ends the calling thread's innermost slice.
    #[doc(alias = "ATrace_endSection")]
    #[inline]
    pub fn end(&self) {
        (self.end)();
    }

    /// Begins an async slice, which `name` and `cookie` identify.
    #[doc(alias = "ATrace_beginAsyncSection")]
    #[inline]
    pub fn async_begin(&self, name: &CStr, cookie: i32) -> bool {
        call(self.async_begin, name, cookie)
    }

    /// Ends the async slice with this name and cookie.
    #[doc(alias = "ATrace_endAsyncSection")]
    #[inline]
    pub fn async_end(&self, name: &CStr, cookie: i32) -> bool {
        call(self.async_end, name, cookie)
    }

    /// Sets the counter `name` to `value`.
    #[doc(alias = "ATrace_setCounter")]
    #[inline]
    pub fn counter(&self, name: &CStr, value: i64) -> bool {
        call(self.counter, name, value)
    }
}
