//! The properties of a host: a mapped file for each user. The [parent module](super) describes its place and
//! guarantees.

mod area;
mod attempt;
mod create;
mod layout;
mod location;
mod lock;
mod open;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use self::area::{Area, Entry, SetError, Writable, acquire};
use self::location::Location;
use self::lock::Lock;
use self::open::Identity;
use super::error::{Error, ErrorKind};
use super::text::{Key, Value};
use super::{PATIENCE, ReadError};
use crate::system::{Mapped, Shared, effective_ids, futex};

/// The longest time that a waiting thread sleeps before it looks by itself. A writer may be killed between changing a
/// value and waking the threads that wait for it.
const LONGEST_SLEEP: Duration = Duration::from_secs(10);

// SAFETY: it consists of atomics.
unsafe impl Shared for Area {}

/// An open store.
pub(super) struct Store {
    location: Location,
    identity: Identity,
    map: Mapped<Area>,
}

impl Store {
    pub(super) fn open_own(patience: Duration) -> Result<Self, Error> {
        match crate::process::variable("ATRACE_PROPERTIES") {
            Some(path) => Self::open(Location::of_path(Path::new(&path))?, patience),
            None => Self::open(Location::of_user(effective_ids().0)?, patience),
        }
    }

    pub(super) fn open_path(path: &Path) -> Result<Self, Error> {
        Self::open(Location::of_path(path)?, PATIENCE)
    }

    pub(super) fn open_existing(path: &Path) -> Result<Self, Error> {
        let location = Location::of_path(path)?;
        let opened = location.open_existing(PATIENCE)?;
        Self::map(location, opened)
    }

    pub(super) fn open_uid(uid: u32) -> Result<Self, Error> {
        Self::open(Location::of_user(uid)?, PATIENCE)
    }

    pub(super) fn path_for_uid(uid: u32) -> PathBuf {
        Location::path_of_user(uid)
    }

    fn open(location: Location, patience: Duration) -> Result<Self, Error> {
        let opened = location.open(patience)?;
        Self::map(location, opened)
    }

    fn map(location: Location, (file, identity): (File, Identity)) -> Result<Self, Error> {
        let map = Mapped::<Area>::of_file(&file, false).map_err(|error| {
            location.error(ErrorKind::Io, &"can't map the property store into memory").because(error.into())
        })?;
        map.validate().map_err(|fault| location.damaged(&fault))?;
        Ok(Self { location, identity, map })
    }

    fn area(&self) -> &Area {
        &self.map
    }

    pub(super) fn path(&self) -> &Path {
        self.location.path()
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        self.location.reopen(self.identity, PATIENCE)?;
        self.area().validate().map_err(|fault| self.location.damaged(&fault))
    }

    pub(super) fn find(&self, key: &Key) -> Result<Option<Property<'_>>, Error> {
        let found = self.area().find(key).map_err(|fault| self.location.damaged(&fault))?;
        Ok(found.map(|entry| Property { entry }))
    }

    pub(super) fn read(&self, property: Property<'_>) -> Result<(u32, Value), Error> {
        property.read().map_err(|error| self.read_error(error))
    }

    fn read_error(&self, error: ReadError) -> Error {
        match error {
            ReadError::Damaged(fault) => self.location.damaged(&fault),
            ReadError::Busy => self.location.error(
                ErrorKind::Busy,
                &"another process sets a property faster than it can be read; find it with fuser or lslocks",
            ),
        }
    }

    /// Locks the store for writing.
    pub(super) fn begin(&self, patience: Duration) -> Result<Turn, Error> {
        let start = Instant::now();
        // Opened anew each time. A descriptor that is kept could be closed or reused by the program, is shared with
        // forked children, and would not show that the file was replaced.
        let file = self.location.reopen(self.identity, patience)?;
        let map = Mapped::<Area>::of_file(&file, true).map_err(|error| {
            self.location
                .error(ErrorKind::Io, &"can't map the property store for writing")
                .because(error.into())
        })?;
        let lock = self.location.lock(file, patience.saturating_sub(start.elapsed()))?;
        Ok(Turn { lock, map })
    }

    pub(super) fn for_each(&self, then: &mut dyn FnMut(&str, &Value, u32)) -> Result<(), Error> {
        self.area().for_each(then).map_err(|error| self.read_error(error))
    }

    pub(super) fn area_serial(&self) -> u32 {
        acquire(self.area().serial())
    }

    pub(super) fn area_serial_word(&self) -> Option<&AtomicU32> {
        Some(self.area().serial())
    }

    fn word_of<'a>(&'a self, property: Option<Property<'a>>) -> &'a AtomicU32 {
        property.map_or(self.area().serial(), |property| property.entry.serial())
    }

    pub(super) fn wake(&self, property: Option<Property<'_>>) {
        futex::wake(self.word_of(property));
    }

    pub(super) fn wait(
        &self,
        property: Option<Property<'_>>,
        old_serial: u32,
        timeout: Option<Duration>,
        stop: &AtomicBool,
    ) -> Result<Option<u32>, Error> {
        let word = self.word_of(property);
        // A time that the clock can't represent is no limit.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let serial = acquire(word);
            if serial != old_serial {
                return Ok(Some(serial));
            }
            let left =
                deadline.map_or(LONGEST_SLEEP, |deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_zero() || stop.load(Ordering::Acquire) {
                return Ok(None);
            }
            futex::wait(word, old_serial, left.min(LONGEST_SLEEP)).map_err(|error| {
                self.location
                    .error(ErrorKind::Io, &"can't wait for a property (is futex denied?)")
                    .because(error.into())
            })?;
        }
    }
}

/// The right to write to a store, which only one writer has at a time.
pub(super) struct Turn {
    lock: Lock,
    map: Mapped<Area>,
}

impl Turn {
    /// No other writer can set a property in between.
    pub(super) const IS_ALONE: bool = true;

    pub(super) fn set(&self, store: &Store, key: &Key, value: &Value) -> Result<(), Error> {
        let location = &store.location;
        if !self.lock.is_of_this_process() {
            return Err(location.error(ErrorKind::Busy, &"the lock of the property store is the parent's"));
        }
        let words = Writable::new(&self.map).set(key, value).map_err(|error| match error {
            SetError::Damaged(fault) => location.damaged(&fault),
            SetError::Full => location.error(
                ErrorKind::Full,
                &format_args!(
                    "no room for {}: the property store holds {} properties, and none is ever removed; delete the \
                     file when no program uses it",
                    key.as_str(),
                    layout::CAPACITY
                ),
            ),
        })?;
        words.into_iter().for_each(futex::wake);
        Ok(())
    }
}

/// A property of a mapped store.
#[derive(Clone, Copy)]
pub(super) struct Property<'a> {
    entry: &'a Entry,
}

impl<'a> Property<'a> {
    #[inline]
    pub(super) fn serial(self) -> u32 {
        acquire(self.entry.serial())
    }

    pub(super) fn serial_word(self) -> Option<&'a AtomicU32> {
        Some(self.entry.serial())
    }

    pub(super) fn read(self) -> Result<(u32, Value), ReadError> {
        self.entry.read()
    }
}
