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
//! # Who switches at the same time
//!
//! On a host, a switch is one step under the lock of the store ([`Properties::transaction`]): all who switch wait for
//! each other, as long as [`Control::patience`] says, and nothing is lost. The lock is its holder's until it is released or
//! the holder ends: who waited in vain has an error and changed nothing, and a [`Switched`] that is dropped then says on
//! stderr that it stays on. A process that is killed in the middle leaves a list of patterns that is whole; others may
//! hear of the change only with the next switch.
//!
//! Android has no such lock. There the threads of a process take turns; a switch looks twice in 10 ms whether another
//! process undid what it wrote, and writes it again, up to eight times. Setting `debug.atrace.*` needs the rights of
//! the shell or of root there.

mod access;
mod error;
mod pattern;
mod switched;

use std::ffi::CString;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use atrace_sys::process::{self, ErrnoGuard};
use atrace_sys::properties::{self, Properties};

use self::access::{Access, Owner, Read as _, Shared};
pub use self::error::Error;
use self::error::failed;
pub use self::pattern::pattern_for;
use self::pattern::this_process;
use self::switched::Undo;
pub use self::switched::{Change, Switched};
use crate::AtraceTag;
pub use crate::flags::{FLAGS, parse_flags};

/// The properties to switch.
#[derive(Clone, Debug)]
pub struct Control {
    properties: Shared,
}

impl Control {
    /// Switches with the properties that this process itself follows.
    ///
    /// # Errors
    ///
    /// When they can't be opened.
    pub fn open() -> Result<Self, Error> {
        let _errno = ErrnoGuard::new();
        let own = Properties::open().map_err(failed("opening the properties"))?;
        Ok(Self { properties: Shared::new(Owner::Process(own)) })
    }

    /// Switches with the properties of another user of this host. On Android all users have the same.
    ///
    /// # Errors
    ///
    /// When they can't be opened: only root may open those of others.
    pub fn open_user(uid: u32) -> Result<Self, Error> {
        let _errno = ErrnoGuard::new();
        Self::other(Properties::open_uid(uid), || format!("opening the properties of user {uid}"))
    }

    /// Switches with the property store at `path`, on a host. It is closed when this, what is cloned of it and
    /// what it switched are dropped.
    ///
    /// # Errors
    ///
    /// When it can't be opened.
    pub fn open_path(path: &Path) -> Result<Self, Error> {
        let _errno = ErrnoGuard::new();
        Self::other(Properties::open_path(path), || format!("opening the properties at {}", path.display()))
    }

    /// Switches with the property store at `path`, on a host, if it is there: creates nothing.
    ///
    /// # Errors
    ///
    /// When it can't be opened.
    pub fn open_existing(path: &Path) -> Result<Self, Error> {
        let _errno = ErrnoGuard::new();
        Self::other(Properties::open_existing(path), || {
            format!("opening the properties at {}", path.display())
        })
    }

    fn other(
        opened: Result<Properties, properties::Error>,
        context: impl FnOnce() -> String,
    ) -> Result<Self, Error> {
        let opened = opened.map_err(|error| failed(context())(error))?;
        Ok(Self { properties: Shared::new(Owner::Sharers(Arc::new(opened))) })
    }

    /// Waits at most this long for others who are switching, in place of two seconds: also to take a switch back.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.properties.patience = patience;
        self
    }

    /// Returns the properties themselves, to read one as it is.
    pub fn properties(&self) -> &Properties {
        self.properties.properties()
    }

    /// Returns the app patterns in force.
    pub fn patterns(&self) -> Vec<String> {
        self.raw_patterns().iter().map(|pattern| String::from_utf8_lossy(pattern).into_owned()).collect()
    }

    /// Returns the tags that `debug.atrace.tags.enableflags` enables for every process, and none while it is
    /// no number.
    pub fn tags(&self) -> AtraceTag {
        self.properties().tags()
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

    /// Enables the pattern as [`enable`](Self::enable) does, but only where it is listed at most `beside` times: whoever
    /// else is switching, it is not listed once more for nothing.
    ///
    /// # Errors
    ///
    /// Those of [`enable`](Self::enable).
    pub fn enable_once(&self, pattern: &str, beside: usize) -> Result<Switched, Error> {
        self.enable_beside(pattern.as_bytes().to_vec(), beside)
    }

    fn enable_pattern(&self, pattern: Vec<u8>) -> Result<Switched, Error> {
        self.enable_beside(pattern, usize::MAX)
    }

    fn enable_beside(&self, pattern: Vec<u8>, beside: usize) -> Result<Switched, Error> {
        if pattern.is_empty() {
            return Err(Error::new("an empty pattern matches no process"));
        }
        self.switch(|switched, store| {
            if store.slots().iter().filter(|slot| **slot == pattern).count() > beside {
                return Ok(());
            }
            switched.add_pattern(store, &pattern)?;
            switched.undo.push(Undo::RemovePattern(pattern));
            switched.announce(store, None)
        })
    }

    /// Disables [`AtraceTag::App`] in this process: takes away every pattern that matches its name.
    ///
    /// Such a pattern may have enabled other processes too.
    ///
    /// # Errors
    ///
    /// When a property can't be set.
    pub fn disable_this_process(&self) -> Result<Switched, Error> {
        process::reread_argv0();
        self.disable_where(usize::MAX, |pattern| {
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
        self.disable_where(usize::MAX, |other| other == pattern.as_bytes())
    }

    /// Takes the app pattern `pattern` away once, where it is listed last: what [`enable`](Self::enable) did, from another
    /// process.
    ///
    /// # Errors
    ///
    /// When a property can't be set.
    pub fn disable_once(&self, pattern: &str) -> Result<Switched, Error> {
        self.disable_where(1, |other| other == pattern.as_bytes())
    }

    /// Takes patterns away, from the end of the list, at most so many.
    fn disable_where(&self, most: usize, gone: impl Fn(&[u8]) -> bool) -> Result<Switched, Error> {
        self.switch(|switched, store| {
            let listed = store.slots().into_iter().enumerate().rev();
            let away = listed.filter(|(_, slot)| !slot.is_empty() && gone(slot)).take(most);
            for (index, pattern) in away {
                switched.empty_slot(store, index)?;
                switched.undo.push(Undo::AddPattern(pattern));
            }
            if switched.undo.is_empty() {
                return Ok(());
            }
            switched.shorten(store)?;
            switched.announce(store, None)
        })
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
        self.switch(|switched, store| {
            let present = store.tags();
            let on = (on & AtraceTag::ValidMask) - present;
            let off = off & present;
            switched.undo.push(Undo::Tags { on: off, off: on });
            switched.announce(store, Some((on, off)))
        })
    }

    /// Switches as one step; puts back what was done where the rest fails.
    fn switch(
        &self,
        how: impl FnOnce(&mut Switched, &mut dyn Access) -> Result<(), Error>,
    ) -> Result<Switched, Error> {
        let _errno = ErrnoGuard::new();
        let mut store = self.properties.transaction()?;
        let mut switched = Switched::new(self.properties.clone());
        match how(&mut switched, &mut store) {
            Ok(()) => Ok(switched),
            Err(reason) => {
                // What could not be announced once will not be now; the patterns are as they were.
                let _ = switched.put_back(&mut store);
                Err(reason)
            }
        }
    }

    /// Returns the app patterns in force, byte for byte: a pattern may be no UTF-8.
    pub fn raw_patterns(&self) -> Vec<Vec<u8>> {
        self.properties().patterns()
    }
}
