//! The properties of a host: a mapped file per user, see the [parent module](super) for its place and promises.

mod area;
mod files;
mod sys;

use std::fs::File;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use self::area::{Area, Entry, SetError, Writable, acquire};
use self::files::{Identity, Location};
use self::sys::Map;
use super::ReadError;
use super::error::{Error, ErrorKind};
use super::futex;
use super::text::{Key, Value};

/// How long a waiting thread sleeps at most before it looks by itself: a writer can be killed between
/// changing a value and waking who waits for it.
const LONGEST_SLEEP: Duration = Duration::from_secs(10);

/// An open store.
pub(super) struct Store {
    location: Location,
    identity: Identity,
    /// Stays when the store is dropped, as properties refer to it; [`Store::discard`] takes it back.
    map: ManuallyDrop<Map>,
}

impl Store {
    pub(super) fn open_own() -> Result<Self, Error> {
        match crate::process::variable("ATRACE_PROPERTIES") {
            Some(path) => Self::open_path(Path::new(&path)),
            None => Self::open_uid(sys::geteuid()),
        }
    }

    pub(super) fn open_path(path: &Path) -> Result<Self, Error> {
        Self::open(Location::of_path(path)?)
    }

    pub(super) fn open_existing(path: &Path) -> Result<Self, Error> {
        let location = Location::of_path(path)?;
        let opened = location.open_existing()?;
        Self::map(location, opened)
    }

    pub(super) fn open_uid(uid: u32) -> Result<Self, Error> {
        Self::open(Location::of_user(uid)?)
    }

    pub(super) fn path_for_uid(uid: u32) -> PathBuf {
        Location::path_of_user(uid)
    }

    fn open(location: Location) -> Result<Self, Error> {
        let opened = location.open()?;
        Self::map(location, opened)
    }

    fn map(location: Location, (file, identity): (File, Identity)) -> Result<Self, Error> {
        let map = Map::new(&file, false).map_err(|error| {
            location.error(ErrorKind::Io, "can't map the property store into memory").because(error)
        })?;
        map.area().validate().map_err(|fault| location.damaged(fault))?;
        Ok(Self { location, identity, map: ManuallyDrop::new(map) })
    }

    /// Takes back the memory.
    ///
    /// # Safety
    ///
    /// No property or word of this store may be in use any more.
    pub(super) unsafe fn discard(self) {
        drop(ManuallyDrop::into_inner(self.map));
    }

    fn area(&self) -> &'static Area {
        // SAFETY: only `discard` drops the map, whose caller promises that nothing of it is used any more.
        unsafe { self.map.area_forever() }
    }

    pub(super) fn path(&self) -> &Path {
        self.location.path()
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        self.location.reopen(self.identity)?;
        self.area().validate().map_err(|fault| self.location.damaged(fault))
    }

    pub(super) fn find(&self, key: &Key) -> Result<Option<Property>, Error> {
        let found = self.area().find(key).map_err(|fault| self.location.damaged(fault))?;
        Ok(found.map(|entry| Property { entry }))
    }

    pub(super) fn read(&self, property: Property) -> Result<(u32, Value), Error> {
        property.read().map_err(|error| self.read_error(error))
    }

    fn read_error(&self, error: ReadError) -> Error {
        match error {
            ReadError::Damaged(fault) => self.location.damaged(fault),
            ReadError::Busy => self.location.error(
                ErrorKind::Busy,
                "another process sets a property faster than it can be read; find it with fuser or lslocks",
            ),
        }
    }

    pub(super) fn set(&self, key: &Key, value: &Value) -> Result<(), Error> {
        // Opened anew each time: a descriptor that is kept can be closed or reused by the host program, is
        // shared with forked children, and would not tell that the file was replaced.
        let file = self.location.reopen(self.identity)?;
        let _lock = self.location.lock(&file)?;
        let map = Map::new(&file, true).map_err(|error| {
            self.location.error(ErrorKind::Io, "can't map the property store for writing").because(error)
        })?;
        let words = Writable::new(map.area()).set(key, value).map_err(|error| match error {
            SetError::Damaged(fault) => self.location.damaged(fault),
            SetError::Full => self.location.error(
                ErrorKind::Full,
                format!(
                    "no room for {}: the property store holds {} properties, and none is ever removed; delete the \
                     file when no program uses it",
                    key.as_str(),
                    area::CAPACITY
                ),
            ),
        })?;
        words.into_iter().for_each(futex::wake);
        Ok(())
    }

    pub(super) fn for_each(&self, then: &mut dyn FnMut(&str, &Value, u32)) -> Result<(), Error> {
        self.area().for_each(then).map_err(|error| self.read_error(error))
    }

    pub(super) fn area_serial(&self) -> u32 {
        acquire(self.area().serial())
    }

    pub(super) fn area_serial_word(&self) -> Option<&'static AtomicU32> {
        Some(self.area().serial())
    }

    fn word_of(&self, property: Option<Property>) -> &'static AtomicU32 {
        property.map_or(self.area().serial(), |property| property.entry.serial())
    }

    pub(super) fn wake(&self, property: Option<Property>) {
        futex::wake(self.word_of(property));
    }

    pub(super) fn wait(
        &self,
        property: Option<Property>,
        old_serial: u32,
        timeout: Option<Duration>,
        stop: &AtomicBool,
    ) -> Result<Option<u32>, Error> {
        let word = self.word_of(property);
        // Too far away for the clock is without limit.
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
                    .error(ErrorKind::Io, "can't wait for a property (is futex denied?)")
                    .because(error)
            })?;
        }
    }
}

/// A property of a mapped store.
#[derive(Clone, Copy)]
pub(super) struct Property {
    entry: &'static Entry,
}

impl Property {
    #[inline]
    pub(super) fn serial(self) -> u32 {
        acquire(self.entry.serial())
    }

    pub(super) fn serial_word(self) -> Option<&'static AtomicU32> {
        Some(self.entry.serial())
    }

    pub(super) fn read(self) -> Result<(u32, Value), ReadError> {
        self.entry.read()
    }
}
