//! The content of a store: how it is read while others write it, and how it is written.
//!
//! Everything here works on atomics, because other processes write the memory, and trusts nothing that it
//! loads: each count and length is checked before use. A model runs this file with a [layout](super::layout) of a
//! few bytes.
//!
//! The lowest bit of an entry's serial tells which of its two values is in force; the rest is the area serial
//! that its last writer gave, 31 bits wide and never 0. A writer, holding the lock of the file, fills the
//! value that is not in force and then stores the serial: there is no moment at which no value is in force.
//! An entry is complete before the count says that it is there, and neither moves nor goes away after that.
//! The area's serial is stored last: who sees it sees what it announces.

use super::layout::{CAPACITY, KEY_ROOM, MAGIC, VALUE_ROOM};
use super::{Key, ReadError, Value};
use crate::sync::atomic::{AtomicU8, AtomicU32, Ordering, fence};

/// How often a reader tries when the value changes under it. A writer makes several system calls for each
/// change, so even the second attempt is rare.
const ATTEMPTS: usize = 64;

/// The whole of a store.
#[repr(C)]
pub(super) struct Area {
    pub(super) magic: [AtomicU8; MAGIC.len()],
    pub(super) capacity: AtomicU32,
    pub(super) count: AtomicU32,
    pub(super) serial: AtomicU32,
    pub(super) reserved: [AtomicU8; 44],
    pub(super) entries: [Entry; CAPACITY],
}

/// One property.
#[repr(C)]
pub(super) struct Entry {
    pub(super) serial: AtomicU32,
    pub(super) key_len: AtomicU32,
    pub(super) key: [AtomicU8; KEY_ROOM],
    pub(super) values: [[AtomicU8; VALUE_ROOM]; 2],
}

/// Loads with acquire ordering from memory that may be mapped read-only, where Rust allows relaxed loads only.
pub(super) fn acquire(word: &AtomicU32) -> u32 {
    let loaded = word.load(Ordering::Relaxed);
    fence(Ordering::Acquire);
    loaded
}

/// Returns the area serial that follows: 31 bits, never 0.
pub(super) fn next(serial: u32) -> u32 {
    match serial.wrapping_add(1) & (u32::MAX >> 1) {
        0 => 1,
        next => next,
    }
}

impl Area {
    /// Checks the header; tells what is wrong with it.
    pub(super) fn validate(&self) -> Result<(), &'static str> {
        if !self.magic.iter().zip(MAGIC).all(|(found, wanted)| found.load(Ordering::Relaxed) == wanted) {
            return Err("it does not begin like a property store of this version");
        }
        if self.capacity.load(Ordering::Relaxed) != CAPACITY as u32 {
            return Err("its capacity is another");
        }
        self.count().map(drop)
    }

    pub(super) fn count(&self) -> Result<usize, &'static str> {
        let count = acquire(&self.count) as usize;
        if count <= CAPACITY { Ok(count) } else { Err("it counts more properties than there is room for") }
    }

    /// Returns the futex word of the area serial.
    pub(super) fn serial(&self) -> &AtomicU32 {
        &self.serial
    }

    /// Returns the published entries; with a count that makes no sense, all that there is room for.
    fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().take(acquire(&self.count) as usize)
    }

    /// Finds a property; an error means that it was not found, but something is wrong with the store.
    pub(super) fn find(&self, key: &Key) -> Result<Option<&Entry>, &'static str> {
        let mut fault = self.count().err();
        for entry in self.entries() {
            match entry.has(key) {
                Ok(true) => return Ok(Some(entry)),
                Ok(false) => {}
                Err(wrong) => fault = Some(wrong),
            }
        }
        fault.map_or(Ok(None), Err)
    }

    /// Passes on each property, then reports the last fault met on the way.
    pub(super) fn for_each(&self, then: &mut dyn FnMut(&str, &Value, u32)) -> Result<(), ReadError> {
        let mut fault = self.count().err().map(ReadError::Damaged);
        for entry in self.entries() {
            match entry.key().map_err(ReadError::Damaged).and_then(|key| Ok((key, entry.read()?))) {
                Ok((key, (serial, value))) => then(key.as_str(), &value, serial),
                Err(wrong) => fault = Some(wrong),
            }
        }
        fault.map_or(Ok(()), Err)
    }
}

impl Entry {
    /// Returns the futex word of the serial.
    pub(super) fn serial(&self) -> &AtomicU32 {
        &self.serial
    }

    fn key_len(&self) -> Result<usize, &'static str> {
        match self.key_len.load(Ordering::Relaxed) as usize {
            len @ 1..KEY_ROOM if self.key[len].load(Ordering::Relaxed) == 0 => Ok(len),
            _ => Err("the length of a key is wrong"),
        }
    }

    fn has(&self, key: &Key) -> Result<bool, &'static str> {
        let (len, key) = (self.key_len()?, key.as_bytes());
        Ok(len == key.len()
            && self.key.iter().zip(key).all(|(found, key)| found.load(Ordering::Relaxed) == *key))
    }

    fn key(&self) -> Result<Key, &'static str> {
        let mut bytes = [0; KEY_ROOM];
        for (to, from) in bytes.iter_mut().zip(&self.key) {
            *to = from.load(Ordering::Relaxed);
        }
        Key::from_bytes(&bytes[..self.key_len()?]).map_err(|_| "a key has characters that none may have")
    }

    /// Reads the serial and the value that was in force with it.
    pub(super) fn read(&self) -> Result<(u32, Value), ReadError> {
        for _ in 0..ATTEMPTS {
            let serial = acquire(&self.serial);
            let bytes = &self.values[(serial & 1) as usize];
            let (value, terminated) = Value::until_nul(bytes.iter().map(|byte| byte.load(Ordering::Relaxed)));
            // Pairs with the fence in `Writable::fill`: whoever saw a byte of a later value sees a later
            // serial.
            fence(Ordering::Acquire);
            if self.serial.load(Ordering::Relaxed) == serial {
                return if terminated {
                    Ok((serial, value))
                } else {
                    Err(ReadError::Damaged("a value has no end"))
                };
            }
            std::hint::spin_loop();
        }
        Err(ReadError::Busy)
    }
}

/// Why a property could not be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SetError {
    /// The store makes no sense; says why.
    Damaged(&'static str),
    /// There is no room for another property.
    Full,
}

/// An area in writable memory, whose lock the caller holds: only one exists at a time for one store.
pub(super) struct Writable<'a>(&'a Area);

impl<'a> Writable<'a> {
    /// Wraps an area that the caller has mapped for writing and locked against other writers.
    pub(super) fn new(area: &'a Area) -> Self {
        Self(area)
    }

    /// Sets a property, creating it when absent; returns the words whose sleepers must be woken.
    ///
    /// May be cut off between any two stores: what is in force then is the old or the new value.
    pub(super) fn set(&self, key: &Key, value: &Value) -> Result<[&'a AtomicU32; 2], SetError> {
        let area = self.0;
        area.validate().map_err(SetError::Damaged)?;
        // Where another property is damaged, this one can still be added.
        let found = area.find(key).unwrap_or_default();
        let mut serial = next(area.serial.load(Ordering::Relaxed));
        let entry = match found {
            Some(entry) => {
                let old = entry.serial.load(Ordering::Relaxed);
                if old >> 1 == serial {
                    // A writer died after this entry's serial and before the area's: never give a serial twice.
                    serial = next(serial);
                }
                let unused = !old & 1;
                Self::fill(&entry.values[unused as usize], value);
                entry.serial.store(serial << 1 | unused, Ordering::Release);
                entry
            }
            None => {
                let count = area.count().map_err(SetError::Damaged)?;
                let entry = area.entries.get(count).ok_or(SetError::Full)?;
                for (to, from) in entry.key.iter().zip(key.padded()) {
                    to.store(*from, Ordering::Relaxed);
                }
                entry.key_len.store(key.as_bytes().len() as u32, Ordering::Relaxed);
                Self::fill(&entry.values[0], value);
                Self::fill(&entry.values[1], &Value::default());
                entry.serial.store(serial << 1, Ordering::Release);
                area.count.store(count as u32 + 1, Ordering::Release);
                entry
            }
        };
        area.serial.store(serial, Ordering::Release);
        Ok([&entry.serial, &area.serial])
    }

    /// Writes a value that is not in force.
    fn fill(bytes: &[AtomicU8; VALUE_ROOM], value: &Value) {
        // A reader that sees one of these bytes must see the serial that put the other value in force, which
        // may have been stored by another process; the lock orders it before this fence.
        fence(Ordering::Release);
        let padding = std::iter::repeat_n(0, VALUE_ROOM - value.as_bytes().len());
        for (to, from) in bytes.iter().zip(value.as_bytes().iter().copied().chain(padding)) {
            to.store(from, Ordering::Relaxed);
        }
    }
}
