//! Model of the property store, which is read while it is written: atrace-sys/src/properties/host/area.rs.

mod sync {
    pub(crate) use loom::sync::atomic;
}

#[allow(dead_code, reason = "a model does not list the properties")]
#[path = "../../../atrace-sys/src/properties/host/area.rs"]
mod area;

mod layout {
    //! The sizes are as small as possible: a torn value consists of two different digits.
    pub(crate) const MAGIC: [u8; 1] = *b"A";
    pub(crate) const CAPACITY: usize = 2;
    pub(crate) const KEY_ROOM: usize = 2;
    pub(crate) const VALUE_ROOM: usize = 3;
}

use std::sync::Arc;

use loom::sync::Mutex;
use loom::thread;

use area::{Area, Entry, Writable, acquire};
use layout::{CAPACITY, KEY_ROOM, MAGIC};
use sync::atomic::{AtomicU8, AtomicU32};

#[derive(Debug)]
#[allow(dead_code, reason = "said when a model fails")]
enum ReadError {
    Damaged(&'static str),
    Busy,
}

/// A key of one letter.
struct Key([u8; KEY_ROOM]);

impl Key {
    fn from_bytes(key: &[u8]) -> Result<Self, &'static str> {
        Ok(Self([key[0], 0]))
    }

    fn as_bytes(&self) -> &[u8] {
        &self.0[..1]
    }

    fn as_str(&self) -> &str {
        std::str::from_utf8(self.as_bytes()).unwrap()
    }

    fn padded(&self) -> &[u8; KEY_ROOM] {
        &self.0
    }
}

const KEYS: [Key; CAPACITY] = [Key(*b"k\0"), Key(*b"l\0")];

/// A value: the same digit twice, or no digit.
#[derive(Default)]
struct Value(Vec<u8>);

impl Value {
    fn until_nul(source: impl Iterator<Item = u8>) -> (Self, bool) {
        let bytes: Vec<u8> = source.collect();
        let end = bytes.iter().position(|byte| *byte == 0);
        (Self(bytes[..end.unwrap_or(bytes.len())].to_vec()), end.is_some())
    }

    fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// A store whose writers set numbers in order, each as a digit that is written twice.
struct Store {
    area: Area,
    lock: Mutex<()>,
}

impl Store {
    fn new() -> Arc<Self> {
        fn zeros<const N: usize>() -> [AtomicU8; N] {
            std::array::from_fn(|_| AtomicU8::new(0))
        }
        let entry = || Entry {
            serial: AtomicU32::new(0),
            key_len: AtomicU32::new(0),
            key: zeros(),
            values: std::array::from_fn(|_| zeros()),
        };
        let area = Area {
            magic: MAGIC.map(AtomicU8::new),
            capacity: AtomicU32::new(CAPACITY as u32),
            count: AtomicU32::new(0),
            serial: AtomicU32::new(1),
            reserved: zeros(),
            entries: std::array::from_fn(|_| entry()),
        };
        Arc::new(Self { area, lock: Mutex::new(()) })
    }

    /// Sets a property to a value that equals its new serial.
    fn set(&self, key: &Key) {
        let _lock = self.lock.lock().unwrap();
        let number = acquire(self.area.serial()) + 1;
        let digit = b'0' + u8::try_from(number).unwrap();
        assert!(Writable::new(&self.area).set(key, &Value(vec![digit; 2])).is_ok());
    }

    /// Reads a property and its serial. Returns `None` if the property does not exist.
    fn get(&self, key: &Key) -> Option<(u32, u32)> {
        let entry = self.area.find(key).unwrap()?;
        let (serial, value) = entry.read().unwrap();
        assert!(value.0.len() == 2 && value.0[0] == value.0[1], "torn: {:?}", value.0);
        Some((serial >> 1, u32::from(value.0[0] - b'0')))
    }
}

fn model(test: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.max_branches = 10_000;
    builder.check(test);
}

// loom runs the first thread first. It tries another order where a second thread later loads a word that the first
// thread has stored. For each word, loom only remembers the last load. So a writer that loads a word before it stores
// the word hides an earlier load by a reader. To avoid that, the first thread writes if there is only one writer.

#[test]
fn a_value_is_whole_and_of_its_serial() {
    model(|| {
        let store = Store::new();
        store.set(&KEYS[0]);
        let reader = thread::spawn({
            let store = store.clone();
            move || {
                let mut last = 0;
                for _ in 0..2 {
                    let (serial, value) = store.get(&KEYS[0]).unwrap();
                    assert_eq!(serial, value);
                    assert!(value >= last, "older than what was read before");
                    last = value;
                }
            }
        });
        (0..2).for_each(|_| store.set(&KEYS[0]));
        reader.join().unwrap();
    });
}

#[test]
fn what_is_announced_is_there() {
    model(|| {
        let store = Store::new();
        let reader = thread::spawn({
            let store = store.clone();
            move || {
                let seen = acquire(store.area.serial());
                // The first property has the serial 2.
                for (key, number) in KEYS.iter().zip(2..) {
                    match store.get(key) {
                        Some(found) => assert_eq!(found, (number, number)),
                        None => assert!(seen < number, "its serial is out"),
                    }
                }
            }
        });
        KEYS.iter().for_each(|key| store.set(key));
        reader.join().unwrap();
    });
}

/// Tests that a reader that sees a new area serial also sees the new value of an existing property.
#[test]
fn what_is_announced_is_in_force() {
    model(|| {
        let store = Store::new();
        store.set(&KEYS[0]);
        let reader = thread::spawn({
            let store = store.clone();
            move || {
                let seen = acquire(store.area.serial());
                let (_, value) = store.get(&KEYS[0]).unwrap();
                assert!(value >= seen, "its serial is out");
            }
        });
        store.set(&KEYS[0]);
        reader.join().unwrap();
    });
}

/// Models two writers of one property. A reader sees each value with its own serial, and the store counts both changes.
#[test]
fn writers_take_turns() {
    model(|| {
        let store = Store::new();
        store.set(&KEYS[0]);
        let writers = [0, 1].map(|_| {
            let store = store.clone();
            thread::spawn(move || store.set(&KEYS[0]))
        });
        let (serial, value) = store.get(&KEYS[0]).unwrap();
        assert_eq!(serial, value);
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        assert_eq!(store.get(&KEYS[0]), Some((4, 4)));
    });
}
