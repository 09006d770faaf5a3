//! The content of a store: its layout, how it is read while others write it, and how it is written.
//!
//! Everything here works on atomics, because other processes write the memory, and trusts nothing that it
//! loads: each count and length is checked before use.
//!
//! # Layout
//!
//! Numbers are in the byte order of the machine. A header of 64 bytes is followed by 256 entries of 384
//! bytes:
//!
//! | header | | entry | |
//! |---|---|---|---|
//! | 0 | magic, `ATRPROP` and the version, 1 | 0 | u32 serial, a futex word |
//! | 8 | u32 capacity, 256 | 4 | u32 length of the key |
//! | 12 | u32 count of published entries | 8 | key, closed by a NUL, 184 bytes |
//! | 16 | u32 area serial, a futex word | 192 | value 0, closed by a NUL, 96 bytes |
//! | 20 | zeros | 288 | value 1, closed by a NUL, 96 bytes |
//!
//! The lowest bit of an entry's serial tells which of its two values is in force; the rest is the area serial
//! that its last writer gave, 31 bits wide and never 0. A writer, holding the lock of the file, fills the
//! value that is not in force and then stores the serial: there is no moment at which no value is in force.
//! An entry is complete before the count says that it is there, and neither moves nor goes away after that.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering, fence};

use super::super::ReadError;
use super::super::text::{KEY_MAX, Key, VALUE_MAX, Value};

/// The first bytes of a store: a name and the version of the layout.
const MAGIC: [u8; 8] = *b"ATRPROP\x01";

/// How many properties a store holds.
pub(super) const CAPACITY: usize = 256;

/// How often a reader tries when the value changes under it. A writer makes several system calls for each
/// change, so even the second attempt is rare.
const ATTEMPTS: usize = 64;

/// The whole of a store.
#[repr(C)]
pub(super) struct Area {
    magic: [AtomicU8; 8],
    capacity: AtomicU32,
    count: AtomicU32,
    serial: AtomicU32,
    _reserved: [AtomicU8; 44],
    entries: [Entry; CAPACITY],
}

/// One property.
#[repr(C)]
pub(super) struct Entry {
    serial: AtomicU32,
    key_len: AtomicU32,
    key: [AtomicU8; KEY_MAX + 1],
    values: [[AtomicU8; 96]; 2],
}

const _: () = {
    assert!(size_of::<Area>() == 98368);
    assert!(std::mem::offset_of!(Area, capacity) == 8);
    assert!(std::mem::offset_of!(Area, count) == 12);
    assert!(std::mem::offset_of!(Area, serial) == 16);
    assert!(std::mem::offset_of!(Area, entries) == 64);
    assert!(size_of::<Entry>() == 384);
    assert!(std::mem::offset_of!(Entry, key_len) == 4);
    assert!(std::mem::offset_of!(Entry, key) == 8);
    assert!(std::mem::offset_of!(Entry, values) == 192);
};

/// Loads with acquire ordering from memory that may be mapped read-only, where Rust allows relaxed loads only.
pub(super) fn acquire(word: &AtomicU32) -> u32 {
    let loaded = word.load(Ordering::Relaxed);
    fence(Ordering::Acquire);
    loaded
}

/// Returns the area serial that follows: 31 bits, never 0.
fn next(serial: u32) -> u32 {
    match serial.wrapping_add(1) & (u32::MAX >> 1) {
        0 => 1,
        next => next,
    }
}

impl Area {
    /// Returns the content of an empty store.
    pub(super) fn image() -> Vec<u8> {
        let mut image = vec![0; size_of::<Area>()];
        image[..8].copy_from_slice(&MAGIC);
        image[8..12].copy_from_slice(&(CAPACITY as u32).to_ne_bytes());
        image[16..20].copy_from_slice(&1u32.to_ne_bytes());
        image
    }

    /// Checks the header; tells what is wrong with it.
    pub(super) fn validate(&self) -> Result<(), &'static str> {
        if !self.magic.iter().zip(MAGIC).all(|(found, wanted)| found.load(Ordering::Relaxed) == wanted) {
            return Err("it does not begin like a property store of this version");
        }
        if self.capacity.load(Ordering::Relaxed) != CAPACITY as u32 {
            return Err("its capacity is not 256");
        }
        self.count().map(drop)
    }

    fn count(&self) -> Result<usize, &'static str> {
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
            len @ 1..=KEY_MAX if self.key[len].load(Ordering::Relaxed) == 0 => Ok(len),
            _ => Err("the length of a key is wrong"),
        }
    }

    fn has(&self, key: &Key) -> Result<bool, &'static str> {
        let (len, key) = (self.key_len()?, key.as_bytes());
        Ok(len == key.len()
            && self.key.iter().zip(key).all(|(found, key)| found.load(Ordering::Relaxed) == *key))
    }

    fn key(&self) -> Result<Key, &'static str> {
        let mut bytes = [0; KEY_MAX];
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
    fn fill(bytes: &[AtomicU8; 96], value: &Value) {
        // A reader that sees one of these bytes must see the serial that put the other value in force, which
        // may have been stored by another process; the lock orders it before this fence.
        fence(Ordering::Release);
        let padding = std::iter::repeat_n(0, 96 - value.as_bytes().len());
        for (to, from) in bytes.iter().zip(value.as_bytes().iter().copied().chain(padding)) {
            to.store(from, Ordering::Relaxed);
        }
    }
}

const _: () = assert!(VALUE_MAX < 96);

#[cfg(test)]
mod tests {
    use super::*;

    /// An empty store in ordinary memory.
    fn area() -> Box<Area> {
        let area = Area {
            magic: MAGIC.map(AtomicU8::new),
            capacity: AtomicU32::new(CAPACITY as u32),
            count: AtomicU32::new(0),
            serial: AtomicU32::new(1),
            _reserved: [const { AtomicU8::new(0) }; 44],
            entries: [const {
                Entry {
                    serial: AtomicU32::new(0),
                    key_len: AtomicU32::new(0),
                    key: [const { AtomicU8::new(0) }; KEY_MAX + 1],
                    values: [const { [const { AtomicU8::new(0) }; 96] }; 2],
                }
            }; CAPACITY],
        };
        Box::new(area)
    }

    fn key(text: &str) -> Key {
        Key::new(text).unwrap()
    }

    fn value(text: &str) -> Value {
        Value::new(text.as_bytes()).unwrap()
    }

    fn set(area: &Area, name: &str, text: &str) -> Result<u32, SetError> {
        Writable::new(area).set(&key(name), &value(text)).map(|[serial, _]| serial.load(Ordering::Relaxed))
    }

    fn get(area: &Area, name: &str) -> Option<Value> {
        area.find(&key(name)).unwrap().map(|entry| entry.read().unwrap().1)
    }

    #[test]
    fn every_set_changes_both_serials_and_the_slot() {
        let area = area();
        assert_eq!(get(&area, "a"), None);
        let mut seen = Vec::new();
        for text in ["1", "2", "2", ""] {
            let serial = set(&area, "a", text).unwrap();
            assert!(!seen.contains(&serial));
            assert_eq!(serial >> 1, area.serial.load(Ordering::Relaxed));
            assert_eq!(serial & 1, seen.len() as u32 & 1);
            assert_eq!(get(&area, "a"), Some(value(text)));
            seen.push(serial);
        }
        assert_eq!(area.count(), Ok(1));
    }

    #[test]
    fn serials_wrap_within_31_bits_and_skip_zero() {
        assert_eq!(next(1), 2);
        assert_eq!(next(0x7fff_fffe), 0x7fff_ffff);
        assert_eq!(next(0x7fff_ffff), 1);
        assert_eq!(next(u32::MAX), 1);
        let area = area();
        area.serial.store(0x7fff_ffff, Ordering::Relaxed);
        assert_eq!(set(&area, "a", "1"), Ok(1 << 1));
    }

    #[test]
    fn a_writer_that_died_before_the_area_serial_costs_no_change() {
        let area = area();
        let mut last = set(&area, "a", "0").unwrap();
        for round in 1..5 {
            // As if the writer had been killed just after the entry's serial.
            area.serial.store(1, Ordering::Relaxed);
            let serial = set(&area, "a", &round.to_string()).unwrap();
            assert_ne!(serial, last);
            assert_ne!(serial >> 1, last >> 1);
            last = serial;
        }
    }

    #[test]
    fn an_unpublished_entry_is_written_anew() {
        let area = area();
        set(&area, "a.long.key", "0").unwrap();
        area.count.store(0, Ordering::Relaxed);
        assert_eq!(get(&area, "a.long.key"), None);
        set(&area, "b", "1").unwrap();
        assert_eq!(get(&area, "b"), Some(value("1")));
        assert_eq!(get(&area, "a.long.key"), None);
    }

    #[test]
    #[cfg_attr(miri, ignore = "slow")]
    fn the_257th_property_finds_no_room() {
        let area = area();
        for number in 0..CAPACITY {
            set(&area, &format!("k{number}"), "v").unwrap();
        }
        assert_eq!(set(&area, "one.more", "v"), Err(SetError::Full));
        assert!(set(&area, "k255", "w").is_ok());
        let mut count = 0;
        area.for_each(&mut |_, _, _| count += 1).unwrap();
        assert_eq!(count, CAPACITY);
    }

    #[test]
    fn hostile_numbers_are_faults() {
        let area = area();
        set(&area, "a", "1").unwrap();
        set(&area, "b", "2").unwrap();
        let counts: &[u32] = if cfg!(miri) { &[257] } else { &[257, 1 << 31, u32::MAX] };
        for &count in counts {
            area.count.store(count, Ordering::Relaxed);
            assert_eq!(get(&area, "b"), Some(value("2")), "what is there is still found");
            assert!(area.find(&key("c")).is_err());
            assert!(area.validate().is_err());
            assert!(matches!(set(&area, "a", "1"), Err(SetError::Damaged(_))));
            assert!(matches!(area.for_each(&mut |_, _, _| {}), Err(ReadError::Damaged(_))));
        }
        area.count.store(2, Ordering::Relaxed);
        for len in [0, 2, 184, 185, 1 << 31, u32::MAX] {
            area.entries[0].key_len.store(len, Ordering::Relaxed);
            let found = area.find(&key("a"));
            assert!(matches!(found, Err(_) | Ok(None)), "length {len}");
            assert_eq!(get(&area, "b"), Some(value("2")));
        }
        area.entries[0].key_len.store(1, Ordering::Relaxed);
        area.capacity.store(512, Ordering::Relaxed);
        assert!(area.validate().is_err());
    }

    #[test]
    fn unterminated_texts_are_faults_that_setting_repairs() {
        let area = area();
        set(&area, "a", "1").unwrap();
        let entry = &area.entries[0];
        for slot in &entry.values {
            slot.iter().for_each(|byte| byte.store(b'x', Ordering::Relaxed));
        }
        assert_eq!(entry.read(), Err(ReadError::Damaged("a value has no end")));
        set(&area, "a", "2").unwrap();
        assert_eq!(get(&area, "a"), Some(value("2")));
        entry.key[1].store(b'x', Ordering::Relaxed);
        assert!(area.find(&key("a")).is_err());
        entry.key[1].store(0, Ordering::Relaxed);
        entry.key[0].store(b'/', Ordering::Relaxed);
        let result = area.for_each(&mut |_, _, _| panic!("an illegal key was passed on"));
        assert!(matches!(result, Err(ReadError::Damaged(_))));
    }

    /// Readers race with a writer: Miri explores what the hardware at hand may never do.
    #[test]
    fn values_are_never_torn() {
        let area = area();
        set(&area, "a", &"a".repeat(VALUE_MAX)).unwrap();
        let rounds = if cfg!(miri) { 4 } else { 20_000 };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..rounds {
                    let letter = char::from(b'a' + (round % 26) as u8);
                    let len = if round % 3 == 0 { 5 } else { VALUE_MAX };
                    set(&area, "a", &letter.to_string().repeat(len)).unwrap();
                }
            });
            for _ in 0..2 {
                scope.spawn(|| {
                    let entry = area.find(&key("a")).unwrap().unwrap();
                    for _ in 0..rounds {
                        match entry.read() {
                            Ok((_, value)) => {
                                let bytes = value.as_bytes();
                                assert!(bytes.len() == 5 || bytes.len() == VALUE_MAX);
                                assert!(bytes.iter().all(|byte| *byte == bytes[0]), "{value:?}");
                            }
                            Err(error) => assert_eq!(error, ReadError::Busy),
                        }
                    }
                });
            }
        });
    }
}
