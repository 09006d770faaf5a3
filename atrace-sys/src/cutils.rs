//! The real libcutils, loaded at run time or linked into a platform build (`--cfg
//! atrace_link_cutils`).
//!
//! The libcutils of old Android versions lacks some functions: Android 6 has no `atrace_end_body`; the functions for
//! instants and tracks came with Android 13. So each method that writes a message returns whether the library has the
//! function for this message. If the library lacks the function, the caller writes the event to the marker. The library
//! is never unloaded.
//!
//! # One symbol, two signatures
//!
//! `atrace_async_for_track_end_body` takes `(track, name, cookie)` in Android 13 and `(track, cookie)` since Android
//! 14. The symbol does not show the signature, and a call with the wrong signature would make the library use a cookie
//! as a pointer. So on Android the signature is chosen by the API level; if the level is not known, the function counts
//! as missing. Android 13's function is called with an empty text as `track`, and with the track as `name`. The
//! function then writes `name` in the place of the track, so that the message is the same as in Android 14. (If `name`
//! were empty instead of `track`, the message would have an empty field.)

use std::borrow::Cow;
use std::ffi::{CStr, OsStr, c_char};
use std::fmt;
use std::sync::atomic::AtomicU64;

use crate::bindings;
use crate::system::library_of;

/// The reason why a library of the system can't be used.
#[derive(Debug)]
pub struct LibraryError(pub(crate) String);

impl fmt::Display for LibraryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for LibraryError {}

/// The name of a function as a C string.
#[cfg(not(atrace_link_cutils))]
macro_rules! c_name {
    ($name:ident) => {
        const {
            match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => unreachable!(),
            }
        }
    };
}

/// Declares `Functions`, the table of libcutils' functions. The compiler compares the types with the bindings that
/// bindgen has made from libcutils' header.
macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident: fn($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions of libcutils that this module uses. A function that the library does not have is `None`.
        #[derive(Clone, Copy, Debug)]
        struct Functions {
            $($(#[$doc])* $name: Option<unsafe extern "C" fn($($argument: $type),*) $(-> $result)?>,)*
        }

        impl Functions {
            const COUNT: usize = [$(stringify!($name)),*].len();

            /// Returns the name of each function and whether it was found.
            fn all(&self) -> [(&'static str, bool); Self::COUNT] {
                [$((stringify!($name), self.$name.is_some())),*]
            }

            /// Returns the functions of a library that was opened at run time.
            #[cfg(not(atrace_link_cutils))]
            fn of(library: crate::system::Library) -> Self {
                Self {
                    $(
                        // SAFETY: in every version of libcutils, the symbol of this name has the type of the field. For
                        // the exception, `atrace_async_for_track_end_body`, see `TrackEnd`.
                        $name: unsafe { library.get(c_name!($name)) },
                    )*
                }
            }

            /// Returns the functions of the libcutils that was linked. The compiler checks that each function has the
            /// type that the header declares.
            #[cfg(atrace_link_cutils)]
            fn linked() -> Self {
                Self { $($name: Some(bindings::$name),)* }
            }
        }

        /// Fails to compile if the table and the header disagree about a type. This function is never called, so it
        /// does not make a program need libcutils at link time.
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

/// The API level of Android 13, in which `atrace_async_for_track_end_body` also takes a name.
const ANDROID_13: u32 = 33;

type TakesTrack = unsafe extern "C" fn(track: *const c_char, cookie: i32);
type TakesName = unsafe extern "C" fn(track: *const c_char, name: *const c_char, cookie: i32);

/// The signature of `atrace_async_for_track_end_body`.
#[derive(Clone, Copy, Debug)]
enum TrackEnd {
    /// `atrace_async_for_track_end_body` is missing, or its signature is not known.
    Not,
    /// The function takes `(track, cookie)`.
    WithTrack(TakesTrack),
    /// The function takes `(track, name, cookie)`.
    WithName(TakesName),
}

impl TrackEnd {
    fn of(functions: &Functions, api_level: Option<u32>) -> Self {
        let Some(function) = functions.atrace_async_for_track_end_body else { return Self::Not };
        // A process of the vendor partition may load the libcutils of an older Android version than that of the device.
        match vendor_level(library_of(function as *const _).to_bytes()).unwrap_or(api_level) {
            Some(ANDROID_13) => {
                // SAFETY: both types are C functions. `TakesName` is the type in Android 13, the first version that has
                // the function.
                Self::WithName(unsafe { std::mem::transmute::<TakesTrack, TakesName>(function) })
            }
            Some(level) if level > ANDROID_13 => Self::WithTrack(function),
            // On a host, the function has the header's signature: only Android's libcutils has several versions.
            None if cfg!(not(target_os = "android")) => Self::WithTrack(function),
            _ => Self::Not,
        }
    }
}

/// Returns the API level of a library of the VNDK (libraries for Android's vendor partition). The name of the library's
/// directory shows the level: `/apex/com.android.vndk.v33/lib64/`, `/system/lib64/vndk-sp-29/`. Returns `Some(None)` if
/// the name of the directory has no API level, and `None` if the library is not part of the VNDK.
fn vendor_level(path: &[u8]) -> Option<Option<u32>> {
    let directories = path.get(..path.iter().rposition(|&byte| byte == b'/')?)?;
    let vndk = directories.windows(4).position(|part| part == b"vndk")?;
    let directory = directories.get(vndk..)?.split(|&byte| byte == b'/').next()?;
    let level = directory.rsplit(|byte| !byte.is_ascii_digit()).next()?;
    Some(std::str::from_utf8(level).ok().and_then(|level| level.parse().ok()))
}

/// A loaded libcutils.
///
/// Any thread may call the methods. The methods may change errno.
#[derive(Debug)]
pub struct Cutils {
    functions: Functions,
    track_end: TrackEnd,
    enabled_tags: &'static AtomicU64,
    path: Cow<'static, str>,
}

/// Calls a function of the library if the library has it. Returns whether the library has it.
macro_rules! call {
    ($self:ident.$name:ident($($argument:expr),*)) => {
        match $self.functions.$name {
            Some(function) => {
                // SAFETY: the function has this type (see `functions!`), all texts are C strings that outlive the call,
                // and any thread may call libcutils.
                unsafe { function($($argument),*) };
                true
            }
            None => false,
        }
    };
}

impl Cutils {
    /// Loads the library at `path` or, if `path` is `None`, the library that the dynamic linker finds as
    /// `libcutils.so`.
    ///
    /// In a platform build (`--cfg atrace_link_cutils`) the linked library is used, and `path` must be `None`.
    ///
    /// # Errors
    ///
    /// Returns an error if the library can't be loaded, or lacks a symbol that every libcutils has.
    #[cfg(not(atrace_link_cutils))]
    pub fn load(path: Option<&OsStr>) -> Result<Self, LibraryError> {
        let name = path.unwrap_or(OsStr::new("libcutils.so"));
        let library = crate::system::Library::open(name).map_err(LibraryError)?;
        let functions = Functions::of(library);
        // SAFETY: the symbol is an aligned uint64_t in every version. The library writes it by 64-bit stores and is
        // never unloaded.
        let tags = unsafe { library.get::<&'static AtomicU64>(c"atrace_enabled_tags") };
        let (Some(enabled_tags), Some(_), Some(_)) =
            (tags, functions.atrace_begin_body, functions.atrace_update_tags)
        else {
            return Err(LibraryError(format!(
                "{} lacks atrace_enabled_tags, atrace_begin_body or atrace_update_tags: it is no libcutils that traces",
                name.display()
            )));
        };
        Ok(Self::new(functions, enabled_tags))
    }

    /// Returns the library that was linked in the platform build.
    ///
    /// # Errors
    ///
    /// Returns an error if `path` is given.
    #[cfg(atrace_link_cutils)]
    pub fn load(path: Option<&OsStr>) -> Result<Self, LibraryError> {
        if let Some(path) = path {
            return Err(LibraryError(format!("{}: libcutils is linked into this program", path.display())));
        }
        let tags = (&raw const bindings::atrace_enabled_tags).cast::<AtomicU64>();
        // SAFETY: the symbol is an aligned uint64_t that lives as long as the program. The library writes it by 64-bit
        // stores.
        let enabled_tags = unsafe { &*tags };
        let functions = Functions::linked();
        Ok(Self::new(functions, enabled_tags))
    }

    fn new(functions: Functions, enabled_tags: &'static AtomicU64) -> Self {
        let path = functions
            .atrace_begin_body
            .map_or(c"", |function| library_of(function as *const _))
            .to_string_lossy();
        Self { functions, track_end: TrackEnd::of(&functions, None), enabled_tags, path }
    }

    /// Returns the path of the library, or an empty text if the dynamic linker does not know it.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Calls `then` with the name of each function that the library lacks, or whose signature is not known. If the
    /// library has one of `atrace_init` and `atrace_setup`, the other one does not count as missing.
    pub fn lacks(&self, mut then: impl FnMut(&'static str)) {
        for (name, is_there) in self.functions.all() {
            if !self.can_call(name, is_there) {
                then(name);
            }
        }
    }

    #[inline(never)]
    fn can_call(&self, name: &str, is_there: bool) -> bool {
        match (name, self.track_end) {
            ("atrace_async_for_track_end_body", TrackEnd::Not) => false,
            // `atrace_init` and `atrace_setup` do the same, so one of them suffices.
            ("atrace_init" | "atrace_setup", _) => {
                self.functions.atrace_init.is_some() || self.functions.atrace_setup.is_some()
            }
            _ => is_there,
        }
    }

    /// Sets the API level ([`Properties::api_level`](crate::properties::Properties::api_level)). Without this call, the
    /// end of a slice on a track is not written through Android's libcutils, unless the library belongs to the VNDK,
    /// whose paths show the level.
    #[must_use]
    pub fn for_api_level(self, level: Option<u32>) -> Self {
        Self { track_end: TrackEnd::of(&self.functions, level), ..self }
    }

    /// Returns the word that holds the library's mask of enabled tags. The library's own functions read the same word.
    #[doc(alias = "atrace_enabled_tags")]
    pub fn enabled_tags(&self) -> &'static AtomicU64 {
        self.enabled_tags
    }

    /// Makes the library open the marker, if the marker is not open yet, and read the enabled tags again, if the
    /// library notices that they have changed.
    #[doc(alias = "atrace_init")]
    #[doc(alias = "atrace_setup")]
    pub fn init(&self) {
        let _ = call!(self.atrace_init()) || call!(self.atrace_setup());
    }

    /// Makes the library read the enabled tags from the properties.
    #[doc(alias = "atrace_update_tags")]
    pub fn update_tags(&self) {
        call!(self.atrace_update_tags());
    }

    /// If `enabled` is false, sets the library's mask to `ATRACE_TAG_NOT_READY`; otherwise makes the library read the
    /// tags again.
    #[doc(alias = "atrace_set_tracing_enabled")]
    pub fn set_tracing_enabled(&self, enabled: bool) {
        call!(self.atrace_set_tracing_enabled(enabled));
    }

    /// Writes a message `B`, the begin of a slice. Like the methods below, this method returns whether the library has
    /// the function for its kind of message.
    #[doc(alias = "atrace_begin_body")]
    #[inline]
    pub fn begin(&self, name: &CStr) -> bool {
        call!(self.atrace_begin_body(name.as_ptr()))
    }

    /// Writes a message `E`, the end of a slice.
    #[doc(alias = "atrace_end_body")]
    #[inline]
    pub fn end(&self) -> bool {
        call!(self.atrace_end_body())
    }

    /// Writes a message `S`, the begin of an async slice.
    #[doc(alias = "atrace_async_begin_body")]
    #[inline]
    pub fn async_begin(&self, name: &CStr, cookie: i32) -> bool {
        call!(self.atrace_async_begin_body(name.as_ptr(), cookie))
    }

    /// Writes a message `F`, the end of an async slice.
    #[doc(alias = "atrace_async_end_body")]
    #[inline]
    pub fn async_end(&self, name: &CStr, cookie: i32) -> bool {
        call!(self.atrace_async_end_body(name.as_ptr(), cookie))
    }

    /// Writes a message `G`, the begin of an async slice on a track.
    #[doc(alias = "atrace_async_for_track_begin_body")]
    #[inline]
    pub fn async_for_track_begin(&self, track: &CStr, name: &CStr, cookie: i32) -> bool {
        call!(self.atrace_async_for_track_begin_body(track.as_ptr(), name.as_ptr(), cookie))
    }

    /// Writes a message `H`, the end of an async slice on a track.
    #[doc(alias = "atrace_async_for_track_end_body")]
    #[inline]
    pub fn async_for_track_end(&self, track: &CStr, cookie: i32) -> bool {
        // SAFETY: the function has this type (see `TrackEnd::of`), and any thread may call it with C strings.
        unsafe {
            match self.track_end {
                TrackEnd::Not => return false,
                TrackEnd::WithTrack(function) => function(track.as_ptr(), cookie),
                TrackEnd::WithName(function) => function(c"".as_ptr(), track.as_ptr(), cookie),
            }
        }
        true
    }

    /// Writes a message `I`, an instant.
    #[doc(alias = "atrace_instant_body")]
    #[inline]
    pub fn instant(&self, name: &CStr) -> bool {
        call!(self.atrace_instant_body(name.as_ptr()))
    }

    /// Writes a message `N`, an instant on a track.
    #[doc(alias = "atrace_instant_for_track_body")]
    #[inline]
    pub fn instant_for_track(&self, track: &CStr, name: &CStr) -> bool {
        call!(self.atrace_instant_for_track_body(track.as_ptr(), name.as_ptr()))
    }

    /// Writes a message `C`, a counter's value of 32 bits.
    #[doc(alias = "atrace_int_body")]
    #[inline]
    pub fn int(&self, name: &CStr, value: i32) -> bool {
        call!(self.atrace_int_body(name.as_ptr(), value))
    }

    /// Writes a message `C`, a counter's value of 64 bits.
    #[doc(alias = "atrace_int64_body")]
    #[inline]
    pub fn int64(&self, name: &CStr, value: i64) -> bool {
        call!(self.atrace_int64_body(name.as_ptr(), value))
    }
}

#[cfg(test)]
mod tests {
    use super::vendor_level;

    #[test]
    fn libraries_of_the_vndk_tell_their_level() {
        assert_eq!(vendor_level(b"/apex/com.android.vndk.v33/lib64/libcutils.so"), Some(Some(33)));
        assert_eq!(vendor_level(b"/system/lib64/vndk-sp-29/libcutils.so"), Some(Some(29)));
        assert_eq!(vendor_level(b"/system/lib64/vndk-sp/libcutils.so"), Some(None));
        assert_eq!(vendor_level(b"/system/lib64/libcutils.so"), None);
        assert_eq!(vendor_level(b"libcutils.so"), None);
        assert_eq!(vendor_level(b""), None);
    }
}
