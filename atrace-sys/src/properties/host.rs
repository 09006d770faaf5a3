//! The properties of a host: a mapped file for each user. The [parent module](super) describes the path of the file and
//! the guarantees for its users.

mod area;
mod file;
mod layout;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

use self::area::{Area, Entry, SetError, Writable, acquire};
use self::file::{Identity, Location, Lock};
use super::error::{Error, ErrorKind};
use super::text::{Key, Value};
use super::{PATIENCE, ReadError, Which};
use crate::system::{Mapped, Shared, effective_ids, futex};

/// The longest time that a waiting thread sleeps before it checks the serial without being woken. A writer may be
/// killed between changing a value and waking the threads that wait for it.
const LONGEST_SLEEP: Duration = Duration::from_secs(10);

// SAFETY: `Area` consists of atomics.
unsafe impl Shared for Area {}

/// An open property store.
pub(super) struct Store {
    location: Location,
    identity: Identity,
    map: Mapped<Area>,
}

impl Store {
    pub(super) fn path_for_uid(uid: u32) -> PathBuf {
        Location::path_of_user(uid)
    }

    pub(super) fn open(which: Which<'_>, patience: Duration) -> Result<Self, Error> {
        let location = match (which, crate::process::variable("ATRACE_PROPERTIES")) {
            (Which::Own, Some(path)) => Location::of_path(Path::new(&path))?,
            (Which::Own, None) => Location::of_user(effective_ids().0)?,
            (Which::Path(path) | Which::Existing(path), _) => Location::of_path(path)?,
            (Which::User(uid), _) => Location::of_user(uid)?,
        };
        let (file, identity) = location.open(!matches!(which, Which::Existing(_)), patience)?;
        let map = Mapped::<Area>::of_file(&file, false)
            .map_err(|error| location.io("can't map the property store into memory", error.into()))?;
        map.validate().map_err(|fault| location.damaged(&fault))?;
        Ok(Self { location, identity, map })
    }

    pub(super) fn path(&self) -> &Path {
        &self.location.path
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        self.location.reopen(self.identity, PATIENCE)?;
        self.map.validate().map_err(|fault| self.location.damaged(&fault))
    }

    /// Finds a property. If the store is damaged, returns a text that describes the fault. Does not allocate.
    pub(super) fn find(&self, key: &Key) -> Result<Option<Property<'_>>, &'static str> {
        Ok(self.map.find(key)?.map(|entry| Property { entry }))
    }

    pub(super) fn damaged(&self, fault: &'static str) -> Error {
        self.location.damaged(&fault)
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

    /// Takes the lock of the store, and with it the right to write.
    pub(super) fn begin(&self, patience: Duration) -> Result<Turn, Error> {
        let start = Instant::now();
        // The file is opened anew each time. If the descriptor were kept, the program could close it and reuse its
        // number, forked children would share it, and the descriptor would not show that the file was replaced.
        let file = self.location.reopen(self.identity, patience)?;
        let map = Mapped::<Area>::of_file(&file, true)
            .map_err(|error| self.location.io("can't map the property store for writing", error.into()))?;
        let lock = self.location.lock(file, patience.saturating_sub(start.elapsed()))?;
        Ok(Turn { lock, map })
    }

    pub(super) fn for_each(&self, then: &mut dyn FnMut(&str, &Value, u32)) -> Result<(), Error> {
        self.map.for_each(then).map_err(|error| self.read_error(error))
    }

    pub(super) fn area_serial(&self) -> u32 {
        acquire(self.map.serial())
    }

    pub(super) fn area_serial_word(&self) -> Option<&AtomicU32> {
        Some(self.map.serial())
    }

    fn word_of<'a>(&'a self, property: Option<Property<'a>>) -> &'a AtomicU32 {
        property.map_or(self.map.serial(), |property| property.entry.serial())
    }

    pub(super) fn wake(&self, property: Option<Property<'_>>) {
        futex::wake(self.word_of(property));
    }

    pub(super) fn wait(
        &self,
        property: Option<Property<'_>>,
        old_serial: u32,
        timeout: Option<Duration>,
        must_stop: impl Fn() -> bool,
    ) -> Result<Option<u32>, Error> {
        let word = self.word_of(property);
        // A timeout that ends at a time which the clock can't represent is no limit.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let serial = acquire(word);
            if serial != old_serial {
                return Ok(Some(serial));
            }
            let left =
                deadline.map_or(LONGEST_SLEEP, |deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_zero() || must_stop() {
                return Ok(None);
            }
            futex::wait(word, old_serial, left.min(LONGEST_SLEEP)).map_err(|error| {
                self.location.io("can't wait for a property (is futex denied?)", error.into())
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
    /// Whether no other process can set a property while this process has the right to write: true on a host.
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
