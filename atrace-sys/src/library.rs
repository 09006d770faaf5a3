//! Shared libraries that are there or not, opened at run time.

use std::error::Error as _;
use std::ffi::OsStr;

/// Opens a library; else says why not, as the dynamic linker tells it.
pub(crate) fn open(name: &OsStr) -> Result<libloading::Library, String> {
    // SAFETY: called with the names of Android's own libraries, whose initialisers harm no running program,
    // and with a path of the user's choice, which is ignored in a process with elevated rights.
    unsafe { libloading::Library::new(name) }.map_err(|error| {
        let reason = error.source().map_or_else(|| error.to_string(), ToString::to_string);
        format!("{}: {}", name.display(), reason.trim_start_matches("dlopen failed: "))
    })
}
