//! Switching tracing on and off through the properties, as the `atrace` command does on Android.
//!
//! A switch reaches every process that reads the same properties: on Android all of them, on a host those of
//! the same user. What was written is listed in the returned [`Switched`], which takes it back when dropped.
//!
//! ```no_run
//! use atrace::control::Control;
//!
//! let switched = Control::open()?.enable_this_process()?;
//! println!("{switched}"); // the properties, before and after
//! // … events of AtraceTag::App are written …
//! drop(switched); // as it was before
//! # Ok::<(), atrace::control::Error>(())
//! ```
//!
//! On Android, setting `debug.atrace.*` needs the rights of the shell or of root.

use std::ffi::CString;
use std::fmt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use atrace_sys::process::{self, ErrnoGuard};
use atrace_sys::properties::{Properties, VALUE_MAX, Value};

use crate::AtraceTag;
use crate::flags::{self, APP_NUMBER, APPS_MAX, AppKey, FLAGS};

/// Why a switch failed.
#[derive(Debug)]
pub struct Error {
    context: String,
    source: Option<atrace_sys::properties::Error>,
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

fn failed(context: impl Into<String>) -> impl FnOnce(atrace_sys::properties::Error) -> Error {
    |source| Error { context: context.into(), source: Some(source) }
}

/// The properties to switch.
#[derive(Clone, Copy, Debug)]
pub struct Control {
    properties: &'static Properties,
}

impl Control {
    /// Switches with the properties that this process itself follows.
    ///
    /// # Errors
    ///
    /// When they can't be opened.
    pub fn open() -> Result<Self, Error> {
        let _errno = ErrnoGuard::new();
        Properties::open().map(|properties| Self { properties }).map_err(failed("opening the properties"))
    }

    /// Switches with the properties of another user of this host. On Android all users have the same.
    ///
    /// # Errors
    ///
    /// When they can't be opened: only root may open those of others.
    pub fn open_user(uid: u32) -> Result<Self, Error> {
        let _errno = ErrnoGuard::new();
        Self::keep(Properties::open_uid(uid), || format!("opening the properties of user {uid}"))
    }

    /// Switches with the property store at `path`, on a host.
    ///
    /// # Errors
    ///
    /// When it can't be opened.
    pub fn open_path(path: &Path) -> Result<Self, Error> {
        let _errno = ErrnoGuard::new();
        Self::keep(Properties::open_path(path), || format!("opening the properties at {}", path.display()))
    }

    /// Switches with the property store at `path`, on a host, if it is there: creates nothing.
    ///
    /// # Errors
    ///
    /// When it can't be opened.
    pub fn open_existing(path: &Path) -> Result<Self, Error> {
        let _errno = ErrnoGuard::new();
        Self::keep(Properties::open_existing(path), || {
            format!("opening the properties at {}", path.display())
        })
    }

    /// Keeps a store for the life of the process, as its mapping is kept anyway.
    fn keep(
        opened: Result<Properties, atrace_sys::properties::Error>,
        context: impl FnOnce() -> String,
    ) -> Result<Self, Error> {
        match opened {
            Ok(properties) => Ok(Self { properties: Box::leak(Box::new(properties)) }),
            Err(source) => Err(Error { context: context(), source: Some(source) }),
        }
    }

    /// Returns the app patterns in force.
    pub fn patterns(&self) -> Vec<String> {
        self.raw_patterns().iter().map(|pattern| String::from_utf8_lossy(pattern).into_owned()).collect()
    }

    /// Returns the tags that `debug.atrace.tags.enableflags` enables for every process, and none while it is
    /// no number.
    pub fn tags(&self) -> AtraceTag {
        let flags = self.read(FLAGS).and_then(|value| flags::parse_flags(value.as_bytes()));
        AtraceTag::from_bits_retain(flags.unwrap_or(0)) & AtraceTag::ValidMask
    }

    /// Enables [`AtraceTag::App`] in this process, by a pattern that matches its name (argv\[0\]).
    ///
    /// A name that is too long for a property (91 bytes) is given by its end, as `*/name`, which other
    /// programs may match too: the returned [`Switched`] shows it.
    ///
    /// # Errors
    ///
    /// When a property can't be set, or the process has no name.
    pub fn enable_this_process(&self) -> Result<Switched, Error> {
        self.enable_pattern(this_process()?)
    }

    /// Enables [`AtraceTag::App`] in the processes whose argv\[0\] matches the shell pattern `pattern`.
    ///
    /// `*` matches any text, `/` included; `?` and `[…]` are special too, a backslash is not.
    ///
    /// # Errors
    ///
    /// When the pattern is empty, longer than 91 bytes or contains a NUL, or a property can't be set.
    pub fn enable(&self, pattern: &str) -> Result<Switched, Error> {
        self.enable_pattern(pattern.as_bytes().to_vec())
    }

    fn enable_pattern(&self, pattern: Vec<u8>) -> Result<Switched, Error> {
        if pattern.is_empty() {
            return Err(Error { context: "an empty pattern matches no process".to_owned(), source: None });
        }
        let mut switched = self.begin();
        let _lock = lock();
        switched.add_pattern(&pattern)?;
        switched.undo.push(Undo::RemovePattern(pattern));
        switched.announce(None)?;
        Ok(switched)
    }

    /// Disables [`AtraceTag::App`] in this process: takes away every pattern that matches its name.
    ///
    /// Such a pattern may have enabled other processes too.
    ///
    /// # Errors
    ///
    /// When a property can't be set.
    pub fn disable_this_process(&self) -> Result<Switched, Error> {
        self.disable_where(|pattern| {
            CString::new(pattern).is_ok_and(|pattern| {
                process::with_argv0(|name| name.is_some_and(|name| process::matches(&pattern, name)))
            })
        })
    }

    /// Takes the app pattern `pattern` away, every time it is listed.
    ///
    /// # Errors
    ///
    /// When a property can't be set.
    pub fn disable(&self, pattern: &str) -> Result<Switched, Error> {
        self.disable_where(|other| other == pattern.as_bytes())
    }

    /// Takes the app pattern `pattern` away once, where it is listed last: what [`enable`](Self::enable) did, from another
    /// process.
    ///
    /// # Errors
    ///
    /// When a property can't be set.
    pub fn disable_once(&self, pattern: &str) -> Result<Switched, Error> {
        let mut switched = self.begin();
        let _lock = lock();
        let mut patterns = self.raw_patterns();
        if let Some(last) = patterns.iter().rposition(|other| other == pattern.as_bytes()) {
            switched.undo.push(Undo::AddPattern(patterns.remove(last)));
            switched.set_patterns(&patterns)?;
            switched.announce(None)?;
        }
        Ok(switched)
    }

    fn disable_where(&self, gone: impl Fn(&[u8]) -> bool) -> Result<Switched, Error> {
        let mut switched = self.begin();
        let _lock = lock();
        let (away, kept): (Vec<_>, Vec<_>) =
            self.raw_patterns().into_iter().partition(|pattern| gone(pattern));
        if !away.is_empty() {
            switched.undo.extend(away.into_iter().map(Undo::AddPattern));
            switched.set_patterns(&kept)?;
            switched.announce(None)?;
        }
        Ok(switched)
    }

    /// Enables these tags in every process, in addition to those enabled now. ([`AtraceTag::App`] has no
    /// effect here.)
    ///
    /// A mask can't tell that two want the same tag: who enabled it first takes it away again.
    ///
    /// # Errors
    ///
    /// When a property can't be set.
    pub fn enable_tags(&self, tags: AtraceTag) -> Result<Switched, Error> {
        self.change_tags(tags, AtraceTag::empty())
    }

    /// Disables these tags in every process.
    ///
    /// # Errors
    ///
    /// When a property can't be set.
    pub fn disable_tags(&self, tags: AtraceTag) -> Result<Switched, Error> {
        self.change_tags(AtraceTag::empty(), tags)
    }

    fn change_tags(&self, on: AtraceTag, off: AtraceTag) -> Result<Switched, Error> {
        let mut switched = self.begin();
        let _lock = lock();
        let present = self.tags();
        let on = (on & AtraceTag::ValidMask) - present;
        let off = off & present;
        switched.undo.push(Undo::Tags { on: off, off: on });
        switched.announce(Some((present | on) - off))?;
        Ok(switched)
    }

    fn begin(&self) -> Switched {
        Switched { control: *self, changes: Vec::new(), undo: Vec::new(), flags: None }
    }

    fn read(&self, key: &str) -> Option<Value> {
        self.properties.get(key).ok().flatten().filter(|value| !value.as_bytes().is_empty())
    }

    /// The value of a property; empty where it is not set.
    #[cfg(feature = "tracefs")]
    pub(crate) fn text(&self, key: &str) -> Vec<u8> {
        self.read(key).map_or(Vec::new(), |value| value.as_bytes().to_vec())
    }

    /// The serial of the flags, which changes at each switch; None where they are not set.
    #[cfg(feature = "tracefs")]
    pub(crate) fn serial(&self) -> Option<u32> {
        Some(self.properties.find(FLAGS)?.serial())
    }

    pub(crate) fn raw_patterns(&self) -> Vec<Vec<u8>> {
        let number = flags::app_number(|key| self.read(key)).min(APPS_MAX);
        let pattern =
            |index| self.read(AppKey::new(index).as_str()).map_or(Vec::new(), |v| v.as_bytes().to_vec());
        (0..number).map(pattern).collect()
    }
}

/// Reading the patterns and writing them back is no single step: the threads of a process take turns.
fn lock() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One property that was set.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Change {
    /// The property.
    pub key: String,
    /// Its value before; empty where it was not set.
    pub before: String,
    /// Its value now.
    pub after: String,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?} -> {:?}", self.key, self.before, self.after)
    }
}

#[derive(Debug)]
enum Undo {
    RemovePattern(Vec<u8>),
    AddPattern(Vec<u8>),
    Tags { on: AtraceTag, off: AtraceTag },
}

/// What a switch wrote; takes it back when dropped.
///
/// Only what this switch did is undone: patterns and tags that others switched since stay. `Display` lists the
/// properties, a line each.
#[derive(Debug)]
#[must_use = "the switch is taken back when this is dropped"]
pub struct Switched {
    control: Control,
    changes: Vec<Change>,
    undo: Vec<Undo>,
    /// What the flags were set to, and their text before.
    flags: Option<(Vec<u8>, Vec<u8>)>,
}

impl fmt::Display for Switched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, change) in self.changes.iter().enumerate() {
            write!(f, "{}{change}", if index > 0 { "\n" } else { "" })?;
        }
        Ok(())
    }
}

impl Switched {
    /// The properties that were set, in order.
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// Leaves everything as it was switched.
    pub fn keep(mut self) {
        self.undo.clear();
    }

    /// Takes the switch back now.
    ///
    /// # Errors
    ///
    /// When a property can't be set; a drop would say so on stderr.
    pub fn restore(mut self) -> Result<(), Error> {
        self.take_back()
    }

    fn take_back(&mut self) -> Result<(), Error> {
        if self.undo.is_empty() {
            return Ok(());
        }
        let _lock = lock();
        let mut tags = None;
        for step in std::mem::take(&mut self.undo).into_iter().rev() {
            match step {
                Undo::RemovePattern(pattern) => {
                    let mut patterns = self.control.raw_patterns();
                    if let Some(last) = patterns.iter().rposition(|other| *other == pattern) {
                        patterns.remove(last);
                        self.set_patterns(&patterns)?;
                    }
                }
                Undo::AddPattern(pattern) => self.add_pattern(&pattern)?,
                Undo::Tags { on, off } => tags = Some((self.control.tags() | on) - off),
            }
        }
        self.announce(tags)
    }

    fn add_pattern(&mut self, pattern: &[u8]) -> Result<(), Error> {
        let number = flags::app_number(|key| self.control.read(key)).clamp(0, APPS_MAX);
        if number == APPS_MAX {
            return Err(Error {
                context: format!("there are {APPS_MAX} app patterns already"),
                source: None,
            });
        }
        self.set(AppKey::new(number).as_str(), pattern)?;
        self.set(APP_NUMBER, (number + 1).to_string().as_bytes())
    }

    /// Writes the patterns from the first that differs, then their number; what is left over becomes empty.
    fn set_patterns(&mut self, patterns: &[Vec<u8>]) -> Result<(), Error> {
        let present = self.control.raw_patterns();
        for index in 0..present.len().max(patterns.len()) {
            let new = patterns.get(index).map_or(&[][..], Vec::as_slice);
            if present.get(index).map(Vec::as_slice) != Some(new) {
                let number = i32::try_from(index).unwrap_or(APPS_MAX);
                self.set(AppKey::new(number).as_str(), new)?;
            }
        }
        // None is the same as zero; put back which of the two it was.
        let first =
            self.changes.iter().find(|change| change.key == APP_NUMBER).map(|change| change.before.clone());
        match first {
            Some(before) if patterns.is_empty() && before.is_empty() => self.set(APP_NUMBER, b""),
            _ => self.set(APP_NUMBER, patterns.len().to_string().as_bytes()),
        }
    }

    /// Sets the flags, to `tags` or to what they are: processes look at nothing before these change.
    fn announce(&mut self, tags: Option<AtraceTag>) -> Result<(), Error> {
        let present = self.control.read(FLAGS).map_or(Vec::new(), |value| value.as_bytes().to_vec());
        let written = match (&self.flags, tags) {
            // Back to the very text that stood there, if it means that.
            (Some((after, before)), _)
                if *after == present
                    && tags.is_none_or(|tags| flags::parse_flags_or_0(before) == tags.bits()) =>
            {
                before.clone()
            }
            (_, Some(tags)) => format!("{:#x}", tags.bits()).into_bytes(),
            (_, None) if flags::parse_flags(&present).is_some() => present.clone(),
            // No number, and so nothing would be enabled.
            (_, None) => b"0".to_vec(),
        };
        self.set(FLAGS, &written)?;
        self.flags = Some((written, present));
        Ok(())
    }

    fn set(&mut self, key: &str, value: &[u8]) -> Result<(), Error> {
        let _errno = ErrnoGuard::new();
        let before = self.control.properties.get(key).ok().flatten();
        self.control.properties.set(key, value).map_err(failed(format!("setting {key}")))?;
        self.changes.push(Change {
            key: key.to_owned(),
            before: before.map_or(String::new(), |value| value.to_string_lossy().into_owned()),
            after: String::from_utf8_lossy(value).into_owned(),
        });
        Ok(())
    }
}

impl Drop for Switched {
    fn drop(&mut self) {
        if let Err(reason) = self.take_back() {
            process::complain(&format!("atrace: could not take a switch back: {reason}"));
        }
    }
}

/// A pattern that matches the name of this process.
fn this_process() -> Result<Vec<u8>, Error> {
    process::with_argv0(|name| match name.map(|name| name.to_bytes()) {
        Some(name) if !name.is_empty() => Ok(pattern_for(name)),
        _ => Err(Error { context: "this process has no name (argv[0] is empty)".to_owned(), source: None }),
    })
}

/// A pattern of at most 91 bytes that matches `name`: it alone, or as `*` and an end of it where it is too
/// long.
pub(crate) fn pattern_for(name: &[u8]) -> Vec<u8> {
    let whole = literal(name);
    if whole.len() <= VALUE_MAX {
        return whole;
    }
    let fits = |start: &usize| literal(&name[*start..]).len() < VALUE_MAX;
    let at_slash = (0..name.len()).filter(|&at| name[at] == b'/').find(fits);
    let start = at_slash.or_else(|| (0..name.len()).find(fits)).unwrap_or(name.len());
    [b"*", literal(&name[start..]).as_slice()].concat()
}

/// `text` as a pattern that matches it alone. A backslash escapes nothing here, brackets do.
fn literal(text: &[u8]) -> Vec<u8> {
    text.iter().fold(Vec::new(), |mut pattern, &byte| {
        match byte {
            b'*' | b'?' | b'[' => pattern.extend([b'[', byte, b']']),
            _ => pattern.push(byte),
        }
        pattern
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "fnmatch is foreign code")]
    fn a_pattern_matches_the_name_it_was_made_for() {
        let long = format!("/a/{}/bench-0123456789abcdef", "deep/".repeat(40));
        let endless = "x".repeat(300);
        for name in ["/bin/true", "a*b?c[d]e\\f", "[*]", long.as_str(), endless.as_str(), "naïve/…"] {
            let pattern = pattern_for(name.as_bytes());
            assert!(pattern.len() <= VALUE_MAX, "{name}");
            let c = |text: &[u8]| CString::new(text).unwrap();
            assert!(
                process::matches(&c(&pattern), &c(name.as_bytes())),
                "{name}: {}",
                pattern.escape_ascii()
            );
        }
        assert_eq!(pattern_for(b"/bin/true"), b"/bin/true");
        assert!(pattern_for(long.as_bytes()).starts_with(b"*/deep/"));
        let other = CString::new(pattern_for(b"a*b")).unwrap();
        assert!(!process::matches(&other, c"axb"));
    }
}
