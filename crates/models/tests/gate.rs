//! Model of the gate, which each event checks to learn which tags are enabled: atrace/src/gate/word.rs.

mod common;
use common::{leak, model, sync};

#[allow(unreachable_pub, reason = "public in its library")]
#[path = "../../../atrace-sys/src/fork/turn.rs"]
mod turn;
#[path = "../../../atrace/src/gate/word.rs"]
mod word;

use loom::thread;
use sync::AtomicRef;
use sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use turn::Turn;
use word::{CLAIMED, Gate, SERIAL_SHIFT, Serial};

const OFF: u64 = 0;
const ON: u64 = 1;
const CHANGED: u64 = 0xffff_ffff << SERIAL_SHIFT | CLAIMED;

/// A gate, and the properties that another process sets.
struct World {
    gate: Gate,
    nothing: &'static AtomicU32,
    area: &'static AtomicU32,
    /// The serial of the property, which is zero until the property exists.
    property: &'static AtomicU32,
    value: AtomicU64,
    /// A value that changes without a change of a serial, like the app patterns.
    pattern: AtomicU64,
    /// The state that was last published in the state page.
    said: AtomicU64,
    /// The right to publish the state, which one thread has at a time.
    turn: Turn,
}

/// Returns a [`World`]. The value is leaked, because its words must exist as long as the program.
fn world(property: u32) -> &'static World {
    let nothing = leak(AtomicU32::new(0));
    leak(World {
        gate: Gate {
            serial: AtomicRef::new(nothing),
            local: AtomicU64::new(CLAIMED),
            foreign: AtomicRef::new(leak(AtomicU64::new(0))),
            claims: AtomicU32::new(100),
        },
        nothing,
        area: leak(AtomicU32::new(1)),
        property: leak(AtomicU32::new(property)),
        value: AtomicU64::new(OFF),
        pattern: AtomicU64::new(OFF),
        said: AtomicU64::new(0),
        turn: Turn(AtomicU64::new(0)),
    })
}

impl World {
    /// Sets the property, or creates it: stores the value first, and then the serials.
    fn set(&self, value: u64, serial: u32) {
        self.value.store(value, Ordering::Relaxed);
        self.property.store(serial, Ordering::Release);
        self.area.fetch_add(1, Ordering::Release);
    }

    fn serial(&self) -> Serial {
        match self.property.load(Ordering::Acquire) {
            0 => {
                Serial { word: Some(self.area), value: self.area.load(Ordering::Acquire), is_property: false }
            }
            value => Serial { word: Some(self.property), value, is_property: true },
        }
    }

    fn found(&self) -> u64 {
        self.value.load(Ordering::Acquire) | self.pattern.load(Ordering::Acquire)
    }

    fn read(&self) -> (u64, bool) {
        let find = |_: &Serial| {
            let found = self.found();
            (Some(found), found)
        };
        self.gate.read(self.nothing, || self.serial(), find)
    }

    /// Checks the gate, as each event does.
    fn is_on(&self) -> bool {
        let (local, _) = self.gate.look();
        let found = if local & CHANGED != 0 { self.read().0 } else { local };
        found & ON != 0
    }

    /// Reads as a faulty earlier version did: every reader sets the gate's reference to the serial.
    fn read_as_it_was(&self) {
        let claim = u64::from(self.gate.claims.fetch_add(1, Ordering::Relaxed)) << SERIAL_SHIFT | CLAIMED;
        self.gate.local.swap(claim, Ordering::AcqRel);
        let serial = self.serial();
        let found = self.found();
        self.gate.serial.set(serial.word.unwrap());
        let found = u64::from(serial.value) << SERIAL_SHIFT | found;
        let _ = self.gate.local.compare_exchange(claim, found, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Reads in the wrong order, as a faulty version would: first the tags, then the serial.
    fn read_the_wrong_way_round(&self) {
        let found = std::cell::Cell::new(0);
        let watch = || {
            found.set(self.found());
            self.serial()
        };
        self.gate.read(self.nothing, watch, |_| (Some(found.get()), ()));
    }
}

fn a_switch_is_seen_by_the_next_event(event: fn(&World) -> bool) {
    model(3, move || {
        let world = world(2);
        world.read();
        let switched = leak(AtomicBool::new(false));
        let events: Vec<_> = (0..2)
            .map(|_| {
                thread::spawn(move || {
                    let is_later = switched.load(Ordering::Acquire);
                    assert!(event(world) || !is_later, "off after it was switched on");
                })
            })
            .collect();
        world.set(ON, 4);
        switched.store(true, Ordering::Release);
        assert!(event(world));
        events.into_iter().for_each(|event| event.join().unwrap());
        assert!(event(world));
    });
}

#[test]
fn who_switched_before_an_event_is_seen_by_it() {
    a_switch_is_seen_by_the_next_event(World::is_on);
}

#[test]
#[should_panic(expected = "is_on")]
fn tags_read_before_the_serial_are_old() {
    model(3, || {
        let world = world(2);
        let event = thread::spawn(move || world.read_the_wrong_way_round());
        world.set(ON, 4);
        event.join().unwrap();
        assert!(world.is_on(), "is_on");
    });
}

/// Models a property that is created between the reads of two threads. Later the serial of the whole store gets the
/// value that the property's serial had at first, so that a gate that compares the wrong serial would see no change.
fn the_word_compared_is_that_of_the_serial(read: fn(&World)) {
    model(3, move || {
        let world = world(0);
        let reading: Vec<_> = (0..2).map(|_| thread::spawn(move || read(world))).collect();
        world.set(ON, 3);
        reading.into_iter().for_each(|reading| reading.join().unwrap());
        world.set(OFF, 5);
        assert_eq!(world.area.load(Ordering::Relaxed), 3);
        assert!(!world.is_on(), "on after it was switched off");
        world.set(ON, 7);
        assert!(world.is_on());
    });
}

#[test]
fn the_property_is_found_within_a_claim() {
    the_word_compared_is_that_of_the_serial(|world| {
        world.read();
    });
}

#[test]
#[should_panic(expected = "on after it was switched off")]
fn a_word_set_outside_the_claim_is_that_of_another_serial() {
    the_word_compared_is_that_of_the_serial(World::read_as_it_was);
}

/// Models a change of a value without a change of a serial. The change is noticed because the program makes the gate
/// read the value again.
fn the_slower_reader_does_not_overwrite(publish: fn(&World)) {
    model(3, move || {
        let world = world(2);
        world.read();
        let slow = thread::spawn(move || publish(world));
        world.pattern.store(ON, Ordering::Release);
        world.read();
        slow.join().unwrap();
        assert!(world.is_on(), "overwritten");
    });
}

#[test]
fn a_claim_that_was_overtaken_publishes_nothing() {
    the_slower_reader_does_not_overwrite(|world| {
        world.read();
    });
}

#[test]
#[should_panic(expected = "overwritten")]
fn without_claims_the_slower_reader_wins() {
    the_slower_reader_does_not_overwrite(|world| {
        let serial = world.serial();
        let found = world.found();
        world.gate.local.store(u64::from(serial.value) << SERIAL_SHIFT | found, Ordering::Release);
    });
}

fn the_state_says_what_holds(read: fn(&World)) {
    model(3, move || {
        let world = world(2);
        world.set(ON, 4);
        let reading = thread::spawn(move || read(world));
        world.set(OFF, 6);
        read(world);
        reading.join().unwrap();
        let (local, _) = world.gate.look();
        if local & CHANGED == 0 {
            assert_eq!(world.said.load(Ordering::Relaxed) >> SERIAL_SHIFT, 6, "said of a healthy gate");
        }
    });
}

#[test]
fn the_state_is_read_off_the_gate() {
    the_state_says_what_holds(|world| {
        if world.read().1 {
            world.turn.run_as(1, &mut || {
                let local = world.gate.local.load(Ordering::Acquire);
                if local & CLAIMED == 0 {
                    world.said.store(local, Ordering::Relaxed);
                }
            });
        }
    });
}

#[test]
#[should_panic(expected = "said of a healthy gate")]
fn a_reader_that_says_what_it_read_says_what_held_before() {
    the_state_says_what_holds(|world| {
        let read = std::cell::Cell::new(0);
        let watch = || {
            let serial = world.serial();
            read.set(serial.value);
            serial
        };
        let (found, _) = world.gate.read(world.nothing, watch, |_| {
            let found = world.found();
            (Some(found), found)
        });
        world.said.store(u64::from(read.get()) << SERIAL_SHIFT | found, Ordering::Relaxed);
    });
}
