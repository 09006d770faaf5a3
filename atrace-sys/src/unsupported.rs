//! Replaces the module [`system`](crate::system) on systems without tracing. On these systems, each attempt to open a
//! property store, a marker or a library fails, so tracing is always off.
//!
//! In this module, types that stand for an open property store or library have no values.

use std::ffi::{CStr, OsStr, c_void};
use std::io;

use crate::word::Place;

/// Does nothing: on these systems, this crate never changes errno.
#[derive(Debug, Default)]
#[must_use = "errno is put back when this is dropped"]
pub struct ErrnoGuard(std::marker::PhantomData<*mut i32>);

impl ErrnoGuard {
    /// Does nothing.
    pub fn new() -> Self {
        Self::default()
    }
}

/// Types for which zeroes are valid.
///
/// # Safety
///
/// Zeroes must be a valid value of the type.
pub(crate) unsafe trait Plain {}

/// Returns the id of the calling process.
pub fn process_id() -> u32 {
    std::process::id()
}

pub(crate) mod futex {
    //! Futexes do not exist on these systems.

    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

    /// Returns an error.
    ///
    /// # Errors
    ///
    /// Always returns an error, because futexes do not exist.
    pub fn wait(_: &AtomicU32, _: u32, _: Duration) -> std::io::Result<()> {
        Err(std::io::ErrorKind::Unsupported.into())
    }

    /// Does nothing.
    pub fn wake(_: &AtomicU32) {}
}

pub(crate) fn effective_ids() -> (u32, u32) {
    (0, 0)
}

/// Returns whether the process has rights that the process which executed it does not have; on this
/// system always false.
pub fn has_elevated_rights() -> bool {
    false
}

pub(crate) fn set_cancelable(state: i32) -> i32 {
    state
}

pub(crate) fn wiped_on_fork<T>() -> Option<impl Place<Target = T>> {
    None::<Box<T>>
}

/// Registers nothing, and returns false: this system has no fork that this library supports.
pub fn around_fork(_: extern "C" fn(), _: extern "C" fn(), _: extern "C" fn()) -> bool {
    false
}

/// Registers nothing, and returns true. So a child has the same generation (the number that identifies a process) as
/// its parent if both have the same process id. This is harmless, because no event is ever written.
pub fn at_fork(_: extern "C" fn()) -> bool {
    true
}

/// Registers nothing, and returns false.
pub fn at_exit(_: extern "C" fn()) -> bool {
    false
}

/// Returns `None`: the processor time is not known.
pub fn thread_time() -> Option<u64> {
    None
}

/// Returns `None`: the processor time is not known.
pub fn process_time() -> Option<u64> {
    None
}

/// Returns `None`: the processor time is not known.
pub fn time_of_thread(_: u32) -> Option<u64> {
    None
}

/// Returns whether an error is temporary; on this system always false.
pub fn may_pass(_: i32) -> bool {
    false
}

pub(crate) fn complain(line: &str) {
    use io::Write as _;
    let _ = writeln!(io::stderr(), "{line}");
}

/// Returns whether a text matches a pattern; on this system always false.
pub fn fnmatch(_: &CStr, _: &CStr) -> bool {
    false
}

/// Parses nothing. Returns no number, and the whole text as the rest.
pub fn strtoull(text: &CStr) -> (Option<u64>, &CStr) {
    (None, text)
}

/// Parses nothing. Returns no number, and the whole text as the rest.
pub fn strtoimax(text: &CStr) -> (Option<i64>, &CStr) {
    (None, text)
}

pub(crate) fn spawn(name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(body).map(drop)
}

pub(crate) fn leave_descriptors() -> bool {
    false
}

pub(crate) const fn is_bare() -> bool {
    false
}

/// Returns `None`: threads have no numbers here.
pub fn thread_number() -> Option<u32> {
    None
}

/// Returns true: on these systems, this crate can't find out whether a thread has ended.
pub fn is_thread(_: u32) -> bool {
    true
}

/// Returns `None`: the bounds of the stack are not known.
pub fn stack_bounds() -> Option<(usize, usize)> {
    None
}

/// Returns `None`: on this system it is not known which memory is mapped.
pub fn mapped_from(_: usize, _: usize) -> Option<usize> {
    None
}

/// Does nothing: on this system, argv\[0\] is not read.
pub fn reread_argv0() {}

pub(crate) fn read_argv0() -> Option<&'static CStr> {
    None
}

pub(crate) fn os_str(bytes: &[u8]) -> &OsStr {
    OsStr::new(std::str::from_utf8(bytes).unwrap_or_default())
}

#[derive(Clone, Copy)]
pub(crate) enum Library {}

impl Library {
    pub(crate) fn open(name: &OsStr) -> Result<Self, String> {
        Err(format!("{}: this system has no libcutils with tracing", name.display()))
    }

    /// # Safety
    ///
    /// This is never called, because the type has no values.
    pub(crate) unsafe fn get<T>(self, _: &CStr) -> Option<T> {
        match self {}
    }
}

pub(crate) fn library_of(_: *const c_void) -> &'static CStr {
    c""
}

pub(crate) mod marker {
    use std::ffi::CStr;
    use std::fmt;

    use crate::marker::{Identity, Marker, MarkerKind};

    pub(crate) struct Opened {
        pub(crate) fd: i32,
        pub(crate) kind: MarkerKind,
        pub(crate) identity: Identity,
    }

    /// The reason why a file can't be the marker: this system has no markers.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Fault;

    impl Fault {
        pub(crate) fn code(self) -> i32 {
            0
        }
    }

    impl fmt::Display for Fault {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(": this system has no trace_marker")
        }
    }

    pub(crate) fn open_checked(_: &CStr, _: Option<i32>) -> Result<Opened, Fault> {
        Err(Fault)
    }

    pub(crate) fn inherit_checked(_: i32, _: Identity, _: Option<i32>) -> Result<Opened, Fault> {
        Err(Fault)
    }

    pub(crate) fn identity_of(_: i32) -> Option<(Identity, u32)> {
        None
    }

    pub(crate) fn close(_: i32) {}

    impl Marker {
        /// Writes nothing, because this system has no marker. Returns false.
        pub fn write(&self, _: &[u8]) -> bool {
            false
        }

        /// Does nothing.
        pub fn check(&self) {}
    }
}

pub(crate) mod properties {
    use std::convert::Infallible;
    use std::marker::PhantomData;
    use std::path::{Path, PathBuf};
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

    use crate::properties::{Error, ErrorKind, Key, ReadError, Value, Which};

    pub(crate) struct Store(Infallible);
    pub(crate) struct Turn(Infallible);
    #[derive(Clone, Copy)]
    pub(crate) struct Property<'a>(Infallible, PhantomData<&'a ()>);

    impl Store {
        pub(crate) fn open(_: Which<'_>, _: Duration) -> Result<Self, Error> {
            Err(Error::new(ErrorKind::Unsupported, &"this system has no properties for tracing"))
        }
        pub(crate) fn path_for_uid(_: u32) -> PathBuf {
            PathBuf::new()
        }
    }

    /// Defines functions of a type without values.
    macro_rules! never {
        ($($name:ident($($argument:ty),*) -> $result:ty;)*) => {
            $(pub(crate) fn $name(&self, $(_: $argument),*) -> $result {
                match self.0 {}
            })*
        };
    }

    impl Store {
        never! {
            path() -> &Path;
            check() -> Result<(), Error>;
            find(&Key) -> Result<Option<Property<'_>>, &'static str>;
            damaged(&'static str) -> Error;
            read(Property<'_>) -> Result<(u32, Value), Error>;
            begin(Duration) -> Result<Turn, Error>;
            for_each(&mut dyn FnMut(&str, &Value, u32)) -> Result<(), Error>;
            area_serial() -> u32;
            area_serial_word() -> Option<&AtomicU32>;
            wake(Option<Property<'_>>) -> ();
            wait(Option<Property<'_>>, u32, Option<Duration>, impl Fn() -> bool) -> Result<Option<u32>, Error>;
        }
    }

    impl Turn {
        pub(crate) const IS_ALONE: bool = true;
        never! {
            set(&Store, &Key, &Value) -> Result<(), Error>;
        }
    }

    impl<'a> Property<'a> {
        never! {
            serial() -> u32;
            serial_word() -> Option<&'a AtomicU32>;
            read() -> Result<(u32, Value), ReadError>;
        }
    }
}
