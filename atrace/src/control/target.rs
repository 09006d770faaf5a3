//! The targets of a switch: programs, or tags.

use std::ffi::CString;

use atrace_sys::process;
use atrace_sys::properties::pattern_for;

use self::switch::Switch;
use super::{Control, Error, Switched};
use crate::AtraceTag;

/// A target that [`Control::enable`] and [`Control::disable`] switch.
///
/// | type | `enable` | `disable` |
/// |---|---|---|
/// | `&str`, `&String`, `&[u8]`, …: a pattern | adds the pattern to the list of app patterns | removes the pattern, every time that it is listed |
/// | `(&str, usize)`, …: a pattern and a number | adds the pattern, unless it is listed more often than the number says | removes the last entry of the pattern, if it is listed more often than the number says |
/// | [`ThisProcess`] | adds a pattern that matches the name of this process | removes all patterns that match this name |
/// | [`AtraceTag`] | enables the tags in every process | disables the tags in every process |
///
/// # Patterns
///
/// A pattern enables [`AtraceTag::App`] in the processes whose argv\[0\] it matches. On a host, it is enough if the
/// last path component of argv\[0\] matches. In a pattern, `*` matches any text, including `/`. `?` and `[…]` have the
/// meaning that they have in shell patterns; a backslash is an ordinary character. A pattern has 1 to 91 bytes, none of
/// which is NUL. Android also requires UTF-8.
///
/// The list may contain the same pattern several times, once for each caller of `enable`. The number in a pair of a
/// pattern and a number says how many of these entries belong to other callers. On a host, no other process can change
/// the list between the check of the number and the change. So even if several processes enable `("name", 0)` at once,
/// the pattern is listed once.
///
/// A removed pattern may also match other processes. The tag is then disabled in these processes, too, unless another
/// pattern matches them.
///
/// # Tags
///
/// The tags are enabled in addition to those that are enabled already. [`AtraceTag::App`] has no effect here.
///
/// The mask of enabled tags does not count how many callers want a tag. If two callers enable the same tag, only the
/// [`Switched`] of the first caller disables the tag again, even if the [`Switched`] of the second is still in use.
///
/// # Examples
///
/// ```no_run
/// use atrace::AtraceTag;
/// use atrace::control::{Control, ThisProcess};
///
/// let control = Control::open()?;
/// let own = control.enable(ThisProcess)?;
/// let services = control.enable("*_service")?;
/// let tags = control.enable(AtraceTag::Database | AtraceTag::Network)?;
/// // … these are dropped at the end of the scope, which takes the switches back
///
/// control.disable("*_service")?.keep(); // for good
/// # Ok::<(), atrace::control::Error>(())
/// ```
pub trait Target: Switch {}

impl<T: Switch> Target for T {}

/// This process, as a [`Target`] of a switch.
///
/// The pattern that [`Control::enable`] adds is the name of the process (argv\[0\]). If the name is too long for a
/// property (91 bytes), the pattern is `*` and the end of the name, such as `*/name`. Such a pattern may also match
/// other programs. The [`Switched`] shows the pattern.
#[derive(Clone, Copy, Debug)]
pub struct ThisProcess;

mod switch {
    use crate::control::{Control, Error, Switched};

    /// The operations on a target. Other crates have no access to this trait, so their types can't be targets.
    pub trait Switch {
        /// Switches the target on.
        fn enable(self, control: &Control) -> Result<Switched, Error>;

        /// Switches the target off.
        fn disable(self, control: &Control) -> Result<Switched, Error>;
    }
}

impl<P: AsRef<[u8]> + ?Sized> Switch for &P {
    fn enable(self, control: &Control) -> Result<Switched, Error> {
        control.add(self.as_ref(), usize::MAX)
    }

    fn disable(self, control: &Control) -> Result<Switched, Error> {
        control.remove(|pattern| pattern == self.as_ref(), 0, usize::MAX)
    }
}

impl<P: AsRef<[u8]> + ?Sized> Switch for (&P, usize) {
    fn enable(self, control: &Control) -> Result<Switched, Error> {
        control.add(self.0.as_ref(), self.1)
    }

    fn disable(self, control: &Control) -> Result<Switched, Error> {
        control.remove(|pattern| pattern == self.0.as_ref(), self.1, 1)
    }
}

impl Switch for AtraceTag {
    fn enable(self, control: &Control) -> Result<Switched, Error> {
        control.change_tags(self, Self::empty())
    }

    fn disable(self, control: &Control) -> Result<Switched, Error> {
        control.change_tags(Self::empty(), self)
    }
}

impl Switch for ThisProcess {
    fn enable(self, control: &Control) -> Result<Switched, Error> {
        process::reread_argv0();
        let own = process::with_argv0(|name| match name.map(|name| name.to_bytes()) {
            Some(name) if !name.is_empty() => Ok(pattern_for(name)),
            _ => Err(Error::new("this process has no name (argv[0] is empty)")),
        });
        control.enable(&own?)
    }

    fn disable(self, control: &Control) -> Result<Switched, Error> {
        process::reread_argv0();
        let is_own = |pattern: &[u8]| {
            CString::new(pattern).is_ok_and(|pattern| {
                process::with_argv0(|name| name.is_some_and(|name| process::matches_name(&pattern, name)))
            })
        };
        control.remove(is_own, 0, usize::MAX)
    }
}
