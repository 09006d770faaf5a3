//! Model of the lives on a lane: `atrace-subscriber/src/lanes/occupancy.rs`.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

#[path = "../../../atrace-subscriber/src/lanes/occupancy.rs"]
mod occupancy;

mod sync {
    pub(crate) use loom::sync::atomic;
}

use occupancy::Occupancy;

const PARENT: u64 = 1;

/// A lane, the clock, and the events of the lane: their lives and times, in the order in which they were written.
struct Lane {
    occupancy: Occupancy,
    clock: AtomicU64,
    events: std::sync::Mutex<Vec<(u64, u64)>>,
    /// A cell by which loom checks that no two threads access the events at the same time. The mutex above is not
    /// loom's, so loom does not see it.
    access: UnsafeCell<()>,
}

impl Lane {
    /// Returns a lane with the begin of the parent's life.
    fn new() -> Arc<Self> {
        let lane = Self {
            occupancy: Occupancy::new(),
            clock: AtomicU64::new(1),
            events: std::sync::Mutex::default(),
            access: UnsafeCell::new(()),
        };
        let time = lane.now();
        lane.occupancy.take(PARENT, time);
        lane.write(PARENT, time);
        Arc::new(lane)
    }

    /// Reads the clock, which is coarse: two readings in a row may return the same time. All threads see the readings
    /// in one order.
    fn now(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::Relaxed) / 2
    }

    /// Writes an event. Loom reports a fault if two threads write at the same time.
    fn write(&self, life: u64, time: u64) {
        self.access.with_mut(|_| self.events.lock().unwrap().push((life, time)));
    }

    /// Begins and ends a life, if the life fits into the parent's life. Returns whether it fits.
    fn live(&self, life: u64) -> bool {
        let time = self.now();
        let fits = self.occupancy.nest(PARENT, life, time);
        if fits {
            self.write(life, time);
            self.leave(life, PARENT);
        }
        fits
    }

    fn leave(&self, life: u64, below: u64) {
        self.occupancy.leave(below, self.now(), |time| self.write(life, time));
    }

    /// Ends the parent's life, and checks that each event has a later time than the event before it. Returns the lives in
    /// the order of their events.
    fn finish(&self) -> Vec<u64> {
        self.leave(PARENT, 0);
        let events = self.access.with(|_| self.events.lock().unwrap().clone());
        assert!(events.is_sorted_by(|(_, before), (_, after)| before < after), "{events:?}");
        events.into_iter().map(|(life, _)| life).collect()
    }
}

/// Models the lives of siblings on two threads: the lane gets both lives, one after the other, or only one of them.
#[test]
fn lives_on_a_lane_nest_and_their_times_increase() {
    loom::model(|| {
        let lane = Lane::new();
        let other = Arc::clone(&lane);
        let other = thread::spawn(move || other.live(3));
        let is_here = lane.live(2);
        let is_there = other.join().unwrap();
        let here = if is_here { &[2, 2][..] } else { &[] };
        let there = if is_there { &[3, 3][..] } else { &[] };
        let lives = lane.finish();
        let in_order = |children: [&[u64]; 2]| [&[PARENT], children[0], children[1], &[PARENT]].concat();
        assert!(lives == in_order([here, there]) || lives == in_order([there, here]), "{lives:?}");
        assert!(is_here || is_there);
    });
}

/// Models the life of a child that began before the last event of the lane. The life does not fit, and the lane does
/// not change.
#[test]
fn a_life_that_began_before_the_last_event_does_not_fit() {
    loom::model(|| {
        let lane = Lane::new();
        let before = lane.now();
        let other = Arc::clone(&lane);
        let other = thread::spawn(move || other.live(3));
        let is_there = other.join().unwrap();
        assert!(is_there && !lane.occupancy.nest(PARENT, 2, before));
        lane.clock.fetch_add(2, Ordering::Relaxed);
        assert!(lane.live(4));
        assert_eq!(lane.finish(), [PARENT, 3, 3, 4, 4, PARENT]);
    });
}
