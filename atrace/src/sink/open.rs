//! Opens the resources that several sinks need, the marker and the properties, according to the environment variables.
//! [`Failure`] is the reason why a sink, or a resource that it needs, can't be opened.

use std::error::Error as _;
use std::{fmt, io};

use atrace_sys::marker::{Marker, MarkerError};
use atrace_sys::process;
use atrace_sys::properties::{Error as PropertiesError, ErrorKind, Properties};

/// The reason why there is no sink, so that events go nowhere.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(super) reason: String,
    /// Whether a later attempt may succeed: see [`process::may_pass`].
    pub(super) may_pass: bool,
}

impl Failure {
    /// Returns a failure that would not pass: a later attempt would fail, too.
    #[cold]
    #[inline(never)]
    pub(super) fn lasting(reason: &dyn fmt::Display) -> Self {
        Self { reason: reason.to_string(), may_pass: false }
    }
}

impl From<MarkerError> for Failure {
    #[cold]
    fn from(error: MarkerError) -> Self {
        Self { reason: error.to_string(), may_pass: error.may_pass() }
    }
}

impl From<PropertiesError> for Failure {
    #[cold]
    fn from(error: PropertiesError) -> Self {
        let source = error.source().and_then(|source| source.downcast_ref::<io::Error>());
        let code = source.and_then(io::Error::raw_os_error);
        let may_pass = error.kind() == ErrorKind::Busy || code.is_some_and(process::may_pass);
        Self { reason: error.to_string(), may_pass }
    }
}

/// Returns whether this environment variable has a value.
pub(super) fn is_set(variable: &str) -> bool {
    process::variable(variable).is_some()
}

pub(super) fn marker() -> Result<Marker, Failure> {
    let Some(value) = process::variable("ATRACE_MARKER") else { return Ok(Marker::open()?) };
    Marker::open_named(&value).map_err(|error| {
        let Failure { reason, may_pass } = error.into();
        Failure { reason: format!("ATRACE_MARKER: {reason}"), may_pass }
    })
}

pub(super) fn properties() -> Result<&'static Properties, Failure> {
    Ok(Properties::try_open()?)
}

/// Returns the resource in `opened`, on which the sink does not depend, or `None` if this resource could not be opened.
/// But returns the error if the environment variable `variable` has a value, or if a later attempt may succeed.
pub(super) fn if_there<T>(opened: Result<T, Failure>, variable: &str) -> Result<Option<T>, Failure> {
    match opened {
        Ok(opened) => Ok(Some(opened)),
        Err(failure) if failure.may_pass || is_set(variable) => Err(failure),
        Err(_) => Ok(None),
    }
}
