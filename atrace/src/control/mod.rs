//! Switches tracing on and off by setting properties, as the command `atrace` does on Android.
//!
//! A switch of tracing reaches every process that reads the same properties: on Android all processes, on a *host*
//! (Linux without Android) the processes of the same user. The functions of [`Control`] that switch tracing return a
//! [`Switched`], which lists the properties that were set. Dropping the [`Switched`] undoes the changes.
//!
//! ```no_run
//! use atrace::control::{Control, ThisProcess};
//!
//! let switched = Control::open()?.enable(ThisProcess)?;
//! println!("{switched}"); // the properties, before and after
//! // … events of AtraceTag::App are written …
//! drop(switched); // takes the switch back
//! # Ok::<(), atrace::control::Error>(())
//! ```
//!
//! # Simultaneous switches
//!
//! *Hosts.* A change is made in one step, under the lock of the property store ([`Properties::transaction`]). So no
//! change is lost. Processes and threads that change properties wait for the lock, but at most for the time that
//! [`Control::patience`] sets. If a caller does not get the lock in time, the function returns an error and has changed
//! nothing. If a [`Switched`] does not get the lock when it is dropped, it prints on stderr that its changes stay. If a
//! process is killed in the middle of a change, the list of patterns is still valid, but other processes may notice
//! this change only when the properties are changed again.
//!
//! *Android* has no lock for its properties. Only one thread of a process changes properties at a time. After this
//! thread has added a pattern or changed the mask of tags, it checks twice, 10 ms apart, whether another process has
//! undone the change. If so, it repeats the change. After eight attempts, it returns an error. Setting `debug.atrace.*`
//! needs the rights of the shell or of root.

mod access;
mod error;
mod switched;
mod target;

use std::sync::Arc;
use std::time::Duration;

use atrace_sys::process::ErrnoGuard;
pub use atrace_sys::properties::Properties;

use self::access::{Access, Owner, Read as _, Shared};
pub use self::error::Error;
pub use self::switched::Switched;
use self::switched::Undo;
pub use self::target::{Target, ThisProcess};
use crate::AtraceTag;

/// Access to the properties that switch tracing on and off.
#[derive(Clone, Debug)]
pub struct Control {
    properties: Shared,
}

impl Control {
    /// Opens the properties that switch tracing of this process. For other properties, use
    /// [`Control::from`](#impl-From%3CProperties%3E-for-Control).
    ///
    /// # Errors
    ///
    /// Returns an error if the properties can't be opened.
    pub fn open() -> Result<Self, Error> {
        let _errno = ErrnoGuard::new();
        let own = Properties::open()?;
        Ok(Self { properties: Shared::new(Owner::Process(own)) })
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

    /// Returns the app patterns that are set. They are returned as bytes, because a pattern need not be UTF-8.
    pub fn patterns(&self) -> Vec<Vec<u8>> {
        self.properties().patterns()
    }

    /// Returns the tags that `debug.atrace.tags.enableflags` enables for every process. If the property's value is not
    /// a number, no tag is enabled. The bit of [`AtraceTag::App`] has no meaning here, because the app patterns switch
    /// this tag.
    pub fn tags(&self) -> AtraceTag {
        self.properties().tags()
    }

    /// Switches programs or tags on. [`Target`] lists the types of targets, and what is switched for each type.
    ///
    /// Dropping the returned [`Switched`] takes the switch back.
    ///
    /// # Errors
    ///
    /// Returns an error if a property can't be set; if a pattern is empty, is longer than 91 bytes or contains a NUL; if
    /// there are 1024 patterns already; or if the target is [`ThisProcess`] and the process has no name.
    pub fn enable(&self, target: impl Target) -> Result<Switched, Error> {
        target.enable(self)
    }

    /// Switches programs or tags off. [`Target`] lists the types of targets, and what is switched
    /// for each type.
    ///
    /// Dropping the returned [`Switched`] takes the switch back.
    ///
    /// # Errors
    ///
    /// Returns an error if a property can't be set.
    pub fn disable(&self, target: impl Target) -> Result<Switched, Error> {
        target.disable(self)
    }

    /// Adds the pattern to the list, if the list contains this pattern at most `beside` times.
    fn add(&self, pattern: &[u8], beside: usize) -> Result<Switched, Error> {
        if pattern.is_empty() {
            return Err(Error::new("an empty pattern matches no process"));
        }
        self.switch(|switched, store| {
            if store.slots().iter().filter(|slot| *slot == pattern).count() > beside {
                return Ok(());
            }
            switched.add_pattern(store, pattern)?;
            switched.undo.push(Undo::RemovePattern(pattern.to_vec()));
            switched.announce(store, None)
        })
    }

    /// If `is_meant` returns true for more than `beside` of the listed patterns, removes at most `most` of these
    /// patterns, starting from the end of the list.
    fn remove(
        &self,
        is_meant: impl Fn(&[u8]) -> bool,
        beside: usize,
        most: usize,
    ) -> Result<Switched, Error> {
        self.switch(|switched, store| {
            let listed = store.slots().into_iter().enumerate();
            let meant: Vec<_> = listed.filter(|(_, slot)| !slot.is_empty() && is_meant(slot)).collect();
            if meant.len() <= beside {
                return Ok(());
            }
            for (index, pattern) in meant.into_iter().rev().take(most) {
                switched.empty_slot(store, index)?;
                switched.undo.push(Undo::AddPattern(pattern));
            }
            switched.shorten(store)?;
            switched.announce(store, None)
        })
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
                // If `how` failed to set the property of the mask of tags, this call may fail for the same reason. It
                // sets that property last, so the patterns are restored anyway.
                let _ = switched.put_back(&mut store);
                Err(reason)
            }
        }
    }
}

/// Makes a control of the given properties, such as the properties of another user ([`Properties::open_uid`]) or, on a
/// host, the properties in a file ([`Properties::open_path`], [`Properties::open_existing`]). The properties are closed
/// when the control, its clones and the [`Switched`] values that these returned are dropped.
///
/// # Examples
///
/// ```
/// use atrace::control::{Control, Properties};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # if cfg!(target_os = "android") { return Ok(()); }
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("properties");
/// let control = Control::from(Properties::open_path(&path)?);
/// control.enable("my_service")?.keep();
/// assert_eq!(control.patterns(), [b"my_service"]);
/// # Ok(())
/// # }
/// ```
impl From<Properties> for Control {
    fn from(properties: Properties) -> Self {
        Self { properties: Shared::new(Owner::Sharers(Arc::new(properties))) }
    }
}
