//! Switches tracing on and off by setting properties, as the command `atrace` does on Android.
//!
//! A switch of tracing reaches every process that reads the same properties: on Android all processes, on a host the
//! processes of the same user. The functions of [`Control`] that switch tracing return a [`Switched`], which lists the
//! properties that were set. Dropping the [`Switched`] undoes the changes.
//!
//! ```no_run
//! use atrace::control::Control;
//!
//! let switched = Control::open()?.enable_this_process()?;
//! println!("{switched}"); // the properties, before and after
//! // … events of AtraceTag::App are written …
//! drop(switched); // takes the switch back
//! # Ok::<(), atrace::control::Error>(())
//! ```
//!
//! # Simultaneous switches
//!
//! *Hosts.* A change is made in one step, under the lock of the property store ([`Properties::transaction`]). So no
//! change is lost. Processes and threads that change properties wait for each other, but at most for the time that
//! [`Control::patience`] sets. A caller that does not get the lock in time gets an error and has changed nothing. If a
//! [`Switched`] does not get the lock when it is dropped, it prints on stderr that its changes stay. If a process is
//! killed in the middle of a change, the list of patterns is still valid, but other processes may notice the change
//! only at the next change.
//!
//! *Android* has no lock for its properties. Only one thread of a process changes properties at a time. After it has
//! added a pattern or changed the mask of tags, it checks twice, 10 ms apart, whether another process has undone the
//! change. If so, it sets the properties again, up to eight times. Setting `debug.atrace.*` needs the rights of the
//! shell or of root.

mod access;
mod error;
mod switched;

use std::ffi::CString;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use atrace_sys::process::{self, ErrnoGuard};
use atrace_sys::properties::{self, Properties, pattern_for};

use self::access::{Access, Owner, Read as _, Shared};
pub use self::error::Error;
use self::error::failed;
pub use self::switched::Switched;
use self::switched::Undo;
use crate::AtraceTag;

/// Access to the properties that switch tracing on and off.
#[derive(Clone, Debug)]
pub struct Control {
    properties: Shared,
}

impl Control {
    /// Opens the properties that switch tracing of this process.
    ///
    /// # Errors
    ///
    /// Returns an error if the properties can't be opened.
    pub fn open() -> Result<Self, Error> {
        let _errno = ErrnoGuard::new();
        let own = Properties::open().map_err(failed("opening the properties"))?;
        Ok(Self { properties: Shared::new(Owner::Process(own)) })
    }

    /// Opens the properties of another user of this host. On Android all users have the same properties.
    ///
    /// # Errors
    ///
    /// Returns an error if the properties can't be opened. Only root may open the properties of another user.
    pub fn open_user(uid: u32) -> Result<Self, Error> {
        let _errno = ErrnoGuard::new();
        Self::other(Properties::open_uid(uid), || format!("opening the properties of user {uid}"))
    }

    /// Opens the property store at `path`, on a host, and creates the store if it does not exist. The store is closed
    /// when this control, its clones and the [`Switched`] values that they returned are dropped.
    ///
    /// # Errors
    ///
    /// Returns an error if the store can't be opened.
    pub fn open_path(path: &Path) -> Result<Self, Error> {
        let _errno = ErrnoGuard::new();
        Self::other(Properties::open_path(path), || format!("opening the properties at {}", path.display()))
    }

    /// Opens the property store at `path`, on a host. The store must exist: it is not created.
    ///
    /// # Errors
    ///
    /// Returns an error if the store does not exist or can't be opened.
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

    /// Sets the maximum time for which a change of the properties, or undoing it, waits for other threads and processes
    /// that change properties at the same time. The default is two seconds.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.properties.patience = patience;
        self
    }

    /// Returns the property store, from which a caller can read the unparsed text of a property.
    pub fn properties(&self) -> &Properties {
        self.properties.properties()
    }

    /// Returns the app patterns that are in force. Bytes that are not UTF-8 are replaced.
    pub fn patterns(&self) -> Vec<String> {
        self.raw_patterns().iter().map(|pattern| String::from_utf8_lossy(pattern).into_owned()).collect()
    }

    /// Returns the app patterns that are in force, as bytes, because a pattern need not be UTF-8.
    pub fn raw_patterns(&self) -> Vec<Vec<u8>> {
        self.properties().patterns()
    }

    /// Returns the tags that `debug.atrace.tags.enableflags` enables for every process. If its value is not a number,
    /// no tag is enabled. The bit of [`AtraceTag::App`] has no meaning here.
    pub fn tags(&self) -> AtraceTag {
        self.properties().tags()
    }

    /// Enables [`AtraceTag::App`] in this process, by a pattern that matches its name (argv\[0\]).
    ///
    /// If the name is too long for a property (91 bytes), the pattern is `*` and the end of the name, such as `*/name`.
    /// Other programs may match it, too. The returned [`Switched`] shows the pattern.
    ///
    /// # Errors
    ///
    /// Returns an error if a property can't be set, or if the process has no name.
    pub fn enable_this_process(&self) -> Result<Switched, Error> {
        self.enable_pattern(this_process()?)
    }

    /// Enables [`AtraceTag::App`] in the processes whose argv\[0\] matches the shell pattern `pattern`. On a host, it
    /// is enough if the last path component of argv\[0\] matches.
    ///
    /// In a pattern, `*` matches any text, including `/`. `?` and `[…]` are special, too; a backslash is not.
    ///
    /// # Errors
    ///
    /// Returns an error if the pattern is empty, is longer than 91 bytes or contains a NUL, if there are 1024 patterns
    /// already, or if a property can't be set.
    pub fn enable(&self, pattern: &str) -> Result<Switched, Error> {
        self.enable_pattern(pattern.as_bytes().to_vec())
    }

    /// Enables the pattern as [`enable`](Self::enable) does, if the list contains the pattern at most `beside` times.
    ///
    /// On a host, no other process can change the list between the check and the change. So even if several processes
    /// call this function at once, they add the pattern only until the list contains it `beside` + 1 times.
    ///
    /// # Errors
    ///
    /// Returns an error in the same cases as [`enable`](Self::enable).
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

    /// Disables [`AtraceTag::App`] in this process, by removing all patterns that match its name.
    ///
    /// A removed pattern may also match other processes. The tag is then disabled in these processes, too, unless
    /// another pattern matches them.
    ///
    /// # Errors
    ///
    /// Returns an error if a property can't be set.
    pub fn disable_this_process(&self) -> Result<Switched, Error> {
        process::reread_argv0();
        self.disable_where(usize::MAX, |pattern| {
            CString::new(pattern).is_ok_and(|pattern| {
                process::with_argv0(|name| name.is_some_and(|name| process::matches_name(&pattern, name)))
            })
        })
    }

    /// Removes the app pattern `pattern` from the list, every time that it is listed.
    ///
    /// # Errors
    ///
    /// Returns an error if a property can't be set.
    pub fn disable(&self, pattern: &str) -> Result<Switched, Error> {
        self.disable_where(usize::MAX, |other| other == pattern.as_bytes())
    }

    /// Removes the app pattern `pattern` from the list once: its last entry. This undoes one call of
    /// [`enable`](Self::enable), perhaps the call of another process.
    ///
    /// # Errors
    ///
    /// Returns an error if a property can't be set.
    pub fn disable_once(&self, pattern: &str) -> Result<Switched, Error> {
        self.disable_where(1, |other| other == pattern.as_bytes())
    }

    /// Removes patterns for which `gone` returns true. Removes at most `most` patterns, starting from the end of the
    /// list.
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

    /// Enables `tags` in every process, in addition to the tags that are enabled now. [`AtraceTag::App`] has no
    /// effect here.
    ///
    /// The mask of enabled tags does not count how many callers want a tag. If two callers enable the same tag, only
    /// the [`Switched`] of the first caller disables the tag again, even if the [`Switched`] of the second is still
    /// in use.
    ///
    /// # Errors
    ///
    /// Returns an error if a property can't be set.
    pub fn enable_tags(&self, tags: AtraceTag) -> Result<Switched, Error> {
        self.change_tags(tags, AtraceTag::empty())
    }

    /// Disables `tags` in every process.
    ///
    /// # Errors
    ///
    /// Returns an error if a property can't be set.
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

    /// Changes the properties in one step. If a part of the change fails, the parts that were completed before it are
    /// undone.
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
                // This may fail again where `how` failed, when it sets the flags. By then the patterns are restored.
                let _ = switched.put_back(&mut store);
                Err(reason)
            }
        }
    }
}

/// Returns a pattern that matches the name of this process.
fn this_process() -> Result<Vec<u8>, Error> {
    process::reread_argv0();
    process::with_argv0(|name| match name.map(|name| name.to_bytes()) {
        Some(name) if !name.is_empty() => Ok(pattern_for(name)),
        _ => Err(Error::new("this process has no name (argv[0] is empty)")),
    })
}
