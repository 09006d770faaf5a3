//! Model of reloading libcutils' tags: atrace/src/sink/reload.rs.

mod common;
use common::{leak, model, sync};

#[path = "../../../atrace/src/sink/reload.rs"]
mod reload;

use loom::thread;
use reload::Reload;
use sync::atomic::{AtomicU32, AtomicU64, Ordering};

struct Library {
    reload: Reload,
    reloaded_as_it_was: AtomicU32,
    serial: AtomicU32,
    value: AtomicU64,
    mask: AtomicU64,
}

impl Library {
    fn new() -> &'static Self {
        leak(Self {
            reload: Reload(AtomicU64::new(0)),
            reloaded_as_it_was: AtomicU32::new(0),
            serial: AtomicU32::new(2),
            value: AtomicU64::new(1),
            mask: AtomicU64::new(0),
        })
    }

    /// Reads and stores the tags as libcutils does: no lock is held during both operations. (A read-modify-write always
    /// reads the newest value. To read an older value would have the same effect as to set the value later.)
    fn update_tags(&self) {
        let value = self.value.fetch_add(0, Ordering::Acquire);
        self.mask.store(value, Ordering::Relaxed);
    }

    fn switch(&self) {
        self.value.swap(2, Ordering::Release);
        self.serial.swap(4, Ordering::Release);
    }

    fn now(&self) -> (u32, u32) {
        let serial = self.serial.fetch_add(0, Ordering::Acquire);
        (serial, serial)
    }

    /// Returns the tags if they are known to be current.
    fn tags(&self) -> Option<u64> {
        self.reload.follow(1, || self.now(), || self.update_tags())?;
        Some(self.mask.load(Ordering::Relaxed))
    }

    fn tags_as_they_were(&self) -> Option<u64> {
        let follow = |serial| {
            if self.reloaded_as_it_was.load(Ordering::Acquire) == serial {
                return false;
            }
            self.update_tags();
            self.reloaded_as_it_was.store(serial, Ordering::Release);
            true
        };
        let mut serial = self.now().0;
        for _ in 0..16 {
            if !follow(serial) {
                break;
            }
            let now = self.now().0;
            if now == serial {
                break;
            }
            serial = now;
        }
        Some(self.mask.load(Ordering::Relaxed))
    }
}

fn the_mask_is_current(tags: fn(&Library) -> Option<u64>) {
    model(2, move || {
        let library = Library::new();
        let event = thread::spawn(move || tags(library));
        library.switch();
        tags(library);
        event.join().unwrap();
        assert_eq!(tags(library), Some(2), "the mask is old");
    });
}

#[test]
fn the_mask_is_that_of_the_serial_followed() {
    the_mask_is_current(Library::tags);
}

#[test]
#[should_panic(expected = "the mask is old")]
fn a_thread_that_was_slow_left_the_mask_old() {
    the_mask_is_current(Library::tags_as_they_were);
}

/// Models functions that make the library read the properties although no serial has changed.
#[test]
fn what_no_serial_tells_is_followed_up() {
    model(3, || {
        let library = Library::new();
        let other = thread::spawn(move || library.reload.force(1, || library.update_tags()));
        library.switch();
        library.tags();
        other.join().unwrap();
        assert_eq!(library.tags(), Some(2), "the mask is old");
    });
}

/// Models a forked child whose parent had a thread that was reading the properties. The child does not have that
/// thread.
#[test]
fn a_child_is_current() {
    model(3, || {
        let library = Library::new();
        library.switch();
        library.reload.force(1, || {
            let child = library.reload.follow(2, || library.now(), || library.update_tags());
            assert_eq!(child, Some(4));
            assert!(library.reload.is_current());
        });
        assert!(library.reload.is_current(), "the thread that forked changes nothing of the child's");
        assert_eq!(library.mask.load(Ordering::Relaxed), 2);
    });
}
