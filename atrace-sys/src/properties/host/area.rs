//! Reads and writes the content of a property store, while other processes may write the same store.
//!
//! Other processes write the memory, so all code here uses atomics and trusts nothing that it loads: each count and
//! length is checked before it is used. A loom model uses this file with a [layout](super::layout) of a few bytes.
//!
//! # Algorithm
//!
//! Each entry is a double-buffered seqlock. It has two values and a serial. The lowest bit of the serial selects the
//! current value. The other 31 bits count the changes of the whole store: each change takes the next number, which is
//! never 0. A writer holds the lock of the file. It writes to the value that is not current, and then stores the
//! serial. So there is a current value at every moment, even if the writer is killed. A reader loads the serial, the
//! value, and the serial again; if the serial has changed, the reader tries again. `state/words.rs` names the source
//! for the fences.
//!
//! An entry is complete before the count includes it. After that it is neither moved nor removed. A writer stores
//! the serial of the whole area last: a reader that sees the new area serial also sees the changes that the writer
//! made before.

use super::layout::{CAPACITY, KEY_ROOM, MAGIC, VALUE_ROOM};
use super::{Key, ReadError, Value};
use crate::sync::atomic::{AtomicU8, AtomicU32, Ordering, fence};

/// The maximum number of times that a reader tries to read a value that keeps changing. A writer makes several system
/// calls for each change, so even a second attempt is rare.
const ATTEMPTS: usize = 64;

/// A property store in memory: the header and the entries, as `layout.rs` describes them.
#[repr(C)]
pub(super) struct Area {
    pub(super) magic: [AtomicU8; MAGIC.len()],
    pub(super) capacity: AtomicU32,
    pub(super) count: AtomicU32,
    pub(super) serial: AtomicU32,
    pub(super) reserved: [AtomicU8; 44],
    pub(super) entries: [Entry; CAPACITY],
}

/// The entry of a property.
#[repr(C)]
pub(super) struct Entry {
    pub(super) serial: AtomicU32,
    pub(super) key_len: AtomicU32,
    pub(super) key: [AtomicU8; KEY_ROOM],
    pub(super) values: [[AtomicU8; VALUE_ROOM]; 2],
}

/// Loads a word with acquire ordering. The word may be in memory that is mapped read-only, where Rust allows only
/// relaxed loads.
pub(super) fn acquire(word: &AtomicU32) -> u32 {
    let loaded = word.load(Ordering::Relaxed);
    fence(Ordering::Acquire);
    loaded
}

/// Returns the area serial that follows `serial`: a number of 31 bits, which is never 0.
pub(super) fn next(serial: u32) -> u32 {
    match serial.wrapping_add(1) & (u32::MAX >> 1) {
        0 => 1,
        next => next,
    }
}

impl Area {
    /// Checks the header. Returns a text that describes the fault if the header is not valid.
    pub(super) fn validate(&self) -> Result<(), &'static str> {
        if !self.magic.iter().zip(MAGIC).all(|(found, wanted)| found.load(Ordering::Relaxed) == wanted) {
            return Err("it does not begin like a property store of this version");
        }
        if self.capacity.load(Ordering::Relaxed) != CAPACITY as u32 {
            return Err("its capacity is not that of this version");
        }
        self.count().map(drop)
    }

    pub(super) fn count(&self) -> Result<usize, &'static str> {
        let count = acquire(&self.count) as usize;
        if count <= CAPACITY { Ok(count) } else { Err("it counts more properties than there is room for") }
    }

    /// Returns the word that holds the area serial. Threads sleep on this word (a futex).
    pub(super) fn serial(&self) -> &AtomicU32 {
        &self.serial
    }

    /// Returns the entries that the count includes, or all entries if the count is not valid.
    fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().take(acquire(&self.count) as usize)
    }

    /// Finds a property. Returns an error if the property was not found and the store is damaged. The error's text
    /// describes the damage.
    #[inline(never)]
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

    /// Calls `then` with each property. Returns the last fault that was found, if there was one.
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
    /// Returns the word that holds the serial of the property. Threads sleep on this word (a futex).
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
        Key::from_bytes(&bytes[..self.key_len()?]).map_err(|_| "a key has characters that are not allowed")
    }

    /// Reads the value and its serial. Returns the serial first.
    #[inline(never)]
    pub(super) fn read(&self) -> Result<(u32, Value), ReadError> {
        for _ in 0..ATTEMPTS {
            let serial = acquire(&self.serial);
            let bytes = &self.values[(serial & 1) as usize];
            let (value, terminated) = Value::until_nul(bytes.iter().map(|byte| byte.load(Ordering::Relaxed)));
            // Pairs with the fence in `Writable::fill`: a reader that saw a byte of a later value sees a later
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

/// The reason why a property could not be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SetError {
    /// The store is damaged. The text describes the damage.
    Damaged(&'static str),
    /// There is no room for another property.
    Full,
}

/// An area in writable memory. Its user holds the lock of the store, so a store has at most one `Writable` at any time.
pub(super) struct Writable<'a>(&'a Area);

impl<'a> Writable<'a> {
    /// Creates a writable area. The caller must have mapped `area` for writing, and must hold the lock of the
    /// store.
    pub(super) fn new(area: &'a Area) -> Self {
        Self(area)
    }

    /// Sets a property, and creates it if it does not exist. Returns the futex words on which sleeping
    /// threads must be woken.
    ///
    /// If the process is killed between any two memory stores, either the old or the new value is current.
    pub(super) fn set(&self, key: &Key, value: &Value) -> Result<[&'a AtomicU32; 2], SetError> {
        let area = self.0;
        area.validate().map_err(SetError::Damaged)?;
        // An error of `find` is ignored: if another property is damaged, this property can still be added.
        let found = area.find(key).unwrap_or_default();
        let mut serial = next(area.serial.load(Ordering::Relaxed));
        let entry = match found {
            Some(entry) => {
                let old = entry.serial.load(Ordering::Relaxed);
                if old >> 1 == serial {
                    // A writer was killed after it stored this entry's serial and before it stored the area serial. No
                    // serial may be used twice.
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

    /// Writes `value` over that one of an entry's two values that is not current.
    fn fill(bytes: &[AtomicU8; VALUE_ROOM], value: &Value) {
        // A reader that sees one of these bytes must also see the serial that made the other value current. Another
        // process may have stored that serial; the lock of the file orders that store before this fence.
        fence(Ordering::Release);
        let padding = std::iter::repeat_n(0, VALUE_ROOM - value.as_bytes().len());
        for (to, from) in bytes.iter().zip(value.as_bytes().iter().copied().chain(padding)) {
            to.store(from, Ordering::Relaxed);
        }
    }
}
