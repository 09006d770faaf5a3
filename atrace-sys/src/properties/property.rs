//! A single property, and what can be waited for.

use std::fmt;
use std::sync::atomic::AtomicU32;

use super::{Value, backend};

/// A property that was found: a handle that is valid as long as its store is open, as properties are never
/// removed.
///
/// It stays with the store it was found in, also if the file is deleted.
///
/// ```compile_fail,E0505
/// # use atrace_sys::properties::Properties;
/// # let properties = Properties::open_path("store".as_ref())?;
/// let property = properties.find("debug.example");
/// drop(properties);
/// property.map(|property| property.serial());
/// # Ok::<(), atrace_sys::properties::Error>(())
/// ```
#[derive(Clone, Copy)]
#[doc(alias = "prop_info")]
pub struct Property<'a>(pub(super) backend::Property<'a>);

impl<'a> Property<'a> {
    /// Returns the serial, which changes each time the property is set.
    ///
    /// What is read after it is at least as new as the serial.
    #[doc(alias = "__system_property_serial")]
    #[inline]
    pub fn serial(&self) -> u32 {
        self.0.serial()
    }

    /// Returns the word that holds the serial, where it can be loaded directly.
    ///
    /// Always `Some` on a host. On Android the word is bionic's, and returned only if it was seen to agree
    /// with `__system_property_serial`.
    ///
    /// Only relaxed loads are allowed: the memory is mapped read-only, and Rust promises no more for that.
    /// Compare the word with the serial that [`read`](Self::read) gave; when it differs, `read` again: it has
    /// the fence.
    pub fn serial_word(&self) -> Option<&'a AtomicU32> {
        self.0.serial_word()
    }

    /// Reads the value and the serial that belongs to it; `None` where they make no sense, or changed again
    /// at each of many attempts.
    ///
    /// Android's read-only properties (`ro.*`) may be longer than a [`Value`]: then it holds the first
    /// [`VALUE_MAX`](super::VALUE_MAX) bytes.
    #[doc(alias = "__system_property_read_callback")]
    pub fn read(&self) -> Option<(u32, Value)> {
        self.0.read().ok()
    }
}

impl fmt::Debug for Property<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Property").field("serial", &self.serial()).finish_non_exhaustive()
    }
}

/// What [`Properties::wait`](super::Properties::wait) waits for.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Wait<'a> {
    /// Any property of the store being set or created; its serial is the area serial.
    Any,
    /// This property being set.
    Property(Property<'a>),
}

impl<'a> Wait<'a> {
    pub(super) fn property(self) -> Option<backend::Property<'a>> {
        match self {
            Self::Any => None,
            Self::Property(Property(property)) => Some(property),
        }
    }
}

/// Why a property could not be read although it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(target_os = "android", expect(dead_code, reason = "bionic's store is not for us to doubt"))]
pub(crate) enum ReadError {
    /// What is stored can't be a value, key or count; says which.
    Damaged(&'static str),
    /// It changed at each attempt.
    Busy,
}
