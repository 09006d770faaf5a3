//! Why a run on a device failed.

use std::fmt;

use crate::harness::supervise::by_signal;

/// What failed; the number is the exit status (2: the command line).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Something on this machine that is nobody's fault.
    Here = 1,
    Device = 3,
    Permission = 4,
    Build = 5,
    Push = 6,
    Bench = 7,
    Pull = 8,
    CleanUp = 9,
}

/// What failed, how, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Error {
    code: u8,
    message: String,
}

impl Error {
    pub(crate) fn new(step: Step, message: impl Into<String>) -> Self {
        Self { code: step as u8, message: message.into() }
    }

    /// Of a run that was asked to end.
    pub(crate) fn interrupted(signal: i32) -> Self {
        Self { code: by_signal(signal), message: "interrupted".to_owned() }
    }

    /// Returns the exit status.
    pub(crate) fn code(&self) -> u8 {
        self.code
    }

    /// Whether it is the device that is at fault: what else is tried there fails too.
    pub(crate) fn is_device(&self) -> bool {
        self.code == Step::Device as u8
    }

    /// Whether the run was asked to end.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.code > 128
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Gives what the system answered a step and a context.
pub(crate) fn at(step: Step, context: impl fmt::Display) -> impl FnOnce(std::io::Error) -> Error {
    move |e| Error::new(step, format!("{context}: {e}"))
}
