//! A single property, and what a thread can wait for.

use std::fmt;
use std::sync::atomic::AtomicU32;

use super::{Value, backend};

/// A property that was found. It is valid as long as its store is open, because properties are never removed.
///
/// It belongs to the store in which it was found, even if the file is deleted.
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
    /// What is read after this call is at least as new as the serial.
    #[doc(alias = "__system_property_serial")]
    #[inline]
    pub fn serial(&self) -> u32 {
        self.0.serial()
    }

    /// Returns the word that holds the serial, if it can be loaded directly.
    ///
    /// Always `Some` on a host. On Android the word is bionic's, and only returned if it was found to be equal to
    /// `__system_property_serial`.
    ///
    /// Only relaxed loads are allowed: the memory is mapped read-only, for which Rust guarantees no more. Compare the
    /// word with the serial that [`read`](Self::read) returned; if it differs, `read` again, which has the fence.
    pub fn serial_word(&self) -> Option<&'a AtomicU32> {
        self.0.serial_word()
    }

    /// Reads the value and its serial; `None` if the content is not valid, or changed during each of many attempts.
    ///
    /// Android's read-only properties (`ro.*`) may be longer than a [`Value`], which then holds the first
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
    /// Any property of the store is set or created. Its serial is the area serial.
    Any,
    /// This property is set.
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

/// The reason why a property could not be read although it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(target_os = "android", expect(dead_code, reason = "bionic's store is never damaged"))]
pub(crate) enum ReadError {
    /// What is stored is not a valid value, key or count; the text says which.
    Damaged(&'static str),
    /// It changed during each attempt.
    Busy,
}
