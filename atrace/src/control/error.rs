//! The error of the functions that switch tracing on or off.

use std::fmt;

use atrace_sys::properties;

/// The reason why tracing could not be switched. The method `source` returns the error of the property store, if this
/// error was the reason. The errors of [`Properties`](super::Properties) can be converted into this type.
#[derive(Debug)]
pub struct Error {
    context: String,
    source: Option<properties::Error>,
}

impl Error {
    pub(super) fn new(context: impl Into<String>) -> Self {
        Self { context: context.into(), source: None }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.context)?;
        match &self.source {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}

impl From<properties::Error> for Error {
    fn from(source: properties::Error) -> Self {
        failed("properties")(source)
    }
}

pub(super) fn failed(context: impl Into<String>) -> impl FnOnce(properties::Error) -> Error {
    |source| Error { context: context.into(), source: Some(source) }
}
