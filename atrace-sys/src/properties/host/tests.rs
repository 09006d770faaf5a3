//! Tests of the [area](super::area), the memory that contains the properties of a store.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use super::area::{Area, Entry, SetError, Writable, next};
use super::layout::{CAPACITY, KEY_ROOM, MAGIC, VALUE_ROOM};
use super::*;
use crate::properties::VALUE_MAX;

/// Returns an empty store in ordinary memory.
fn area() -> Box<Area> {
    let area = Area {
        magic: MAGIC.map(AtomicU8::new),
        capacity: AtomicU32::new(CAPACITY as u32),
        count: AtomicU32::new(0),
        serial: AtomicU32::new(1),
        reserved: [const { AtomicU8::new(0) }; 44],
        entries: [const {
            Entry {
                serial: AtomicU32::new(0),
                key_len: AtomicU32::new(0),
                key: [const { AtomicU8::new(0) }; KEY_ROOM],
                values: [const { [const { AtomicU8::new(0) }; VALUE_ROOM] }; 2],
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
        // Simulates a writer that was killed just after it had stored the entry's serial.
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
fn the_257th_property_finds_no_room() {
    let area = area();
    for number in 0..CAPACITY {
        set(&area, &format!("k{number}"), "v").unwrap();
    }
    assert_eq!(set(&area, "one.more", "v"), Err(SetError::Full));
    assert!(set(&area, &format!("k{}", CAPACITY - 1), "w").is_ok());
    let mut count = 0;
    area.for_each(&mut |_, _, _| count += 1).unwrap();
    assert_eq!(count, CAPACITY);
}

#[test]
fn hostile_numbers_are_faults() {
    let area = area();
    set(&area, "a", "1").unwrap();
    set(&area, "b", "2").unwrap();
    for count in [CAPACITY as u32 + 1, 1 << 31, u32::MAX] {
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

/// Tests that readers see only complete values while a writer changes a property. Under Miri, the test also explores
/// orders of memory accesses that the present hardware may never show.
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

/// Tests that a reader which sees a new count of properties also finds the new property. Also tests that a reader which
/// sees a new area serial also sees the change that this serial announces.
#[test]
fn what_is_announced_is_there() {
    let rounds = if cfg!(miri) { 2 } else { 40 };
    let keys: Vec<_> = (0..CAPACITY).map(|number| key(&format!("property.{number}"))).collect();
    for _ in 0..rounds {
        let area = area();
        let last = 1 + keys.len() as u32;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for (number, key) in keys.iter().enumerate() {
                    Writable::new(&area).set(key, &value(&number.to_string())).unwrap();
                }
            });
            scope.spawn(|| {
                for (number, key) in keys.iter().enumerate() {
                    let entry = loop {
                        match area.find(key) {
                            Ok(Some(entry)) => break entry,
                            Ok(None) => std::hint::spin_loop(),
                            Err(fault) => panic!("property {number}: {fault}"),
                        }
                    };
                    assert_eq!(entry.read().unwrap().1, value(&number.to_string()));
                }
            });
            scope.spawn(|| {
                let mut seen = 1;
                while seen < last {
                    let serial = acquire(area.serial());
                    if serial == seen {
                        std::hint::spin_loop();
                        continue;
                    }
                    seen = serial;
                    // The change that sets the first property changes the area serial from 1 to 2.
                    let number = serial - 2;
                    let entry = area.find(&keys[number as usize]).unwrap().expect("its serial is out");
                    assert_eq!(entry.read().unwrap().1, value(&number.to_string()));
                }
            });
        });
    }
}
