//! Errors of operations on properties. The text of an error suggests a remedy to the user.

use std::path::PathBuf;
use std::{fmt, io};

/// An error of a property or of the property store. Its text says which operation failed, why, and what to do
/// about it.
///
/// The text includes the text of the [`source`](std::error::Error::source), if there is a source.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    path: Option<PathBuf>,
    message: String,
    source: Option<io::Error>,
}

/// The kinds of [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The key is not valid.
    BadKey,
    /// The value is not valid: it is too long or contains a NUL.
    BadValue,
    /// The store has no room for another property.
    Full,
    /// The file or directory can't be trusted: it has a wrong owner or mode, is a symbolic link, or is not a
    /// regular file.
    Foreign,
    /// The content of the store is not valid.
    Damaged,
    /// The directory of the store does not exist, or its file does not exist and is not to be created.
    Missing,
    /// The file was deleted or replaced since the store was opened.
    Replaced,
    /// Another process or thread did not finish a change in time, or kept changing the property that was to be read.
    Busy,
    /// The system's property service refused the change.
    Refused,
    /// This system does not support the operation.
    Unsupported,
    /// Another error of the system, which [`source`](std::error::Error::source) returns.
    Io,
}

impl Error {
    #[cold]
    #[inline(never)]
    pub(crate) fn new(kind: ErrorKind, message: &dyn fmt::Display) -> Self {
        Self(Box::new(Inner { kind, path: None, message: message.to_string(), source: None }))
    }

    /// Adds the path of the store's file to the error.
    #[cfg(target_os = "linux")]
    pub(crate) fn at(mut self, path: &std::path::Path) -> Self {
        self.0.path = Some(path.to_owned());
        self
    }

    /// Adds the error of the system as the source.
    #[cfg(target_os = "linux")]
    pub(crate) fn because(mut self, source: io::Error) -> Self {
        self.0.source = Some(source);
        self
    }

    /// Changes the kind to [`ErrorKind::Busy`], because another process may be in the middle of a change.
    #[cfg(target_os = "linux")]
    pub(crate) fn into_busy(mut self) -> Self {
        self.0.kind = ErrorKind::Busy;
        self
    }

    /// Returns the kind of error.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = &self.0.path {
            write!(f, "{}: ", path.display())?;
        }
        f.write_str(&self.0.message)?;
        if let Some(source) = &self.0.source {
            write!(f, " ({source})")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.0.kind)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_ref().map(|source| source as _)
    }
}
