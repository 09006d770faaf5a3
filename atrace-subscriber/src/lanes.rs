//! Lanes: the tracks on which the lives of spans are drawn. The life of a span is a slice from its creation
//! until it closes.
//!
//! Slices on one track must nest. A lane is a track that shows one outermost life at a time, usually that of a root
//! span, and, within that life, the lives of descendants that fit. A life is nested in its parent's life, on the
//! parent's lane, if the parent's life is the innermost life on that lane, and if the lane has had no event since the
//! nested life began. A life that does not fit there takes another lane, as the life of a root span does. A free lane
//! is used again by a later life of the same name. So there are hardly more lanes than lives that are open at the same
//! time.
//!
//! Several lanes may have the same name; their tracks differ by a number. The free lanes of a name form a Treiber stack
//! (`slots.rs`). Lanes are allocated in chunks and never move. No thread waits.

mod occupancy;

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use atrace::tracer::NamedTrack;
use atrace_sys::OnceRef;

use crate::callsites::Callsite;
use crate::lanes::occupancy::Occupancy;
use crate::parts;
use crate::slots::{Free, Link, NONE_FREE};

/// The number of lanes in the first chunk (a block of lanes that is allocated at once).
const FIRST_CHUNK: usize = 16;
/// The maximum number of chunks of lanes.
const CHUNKS: usize = 20;
/// The number of lists of free lanes. A name gets a list of its own if one of the [`TRIES`] entries that are tried for
/// the name is free. Otherwise the name shares a list with another name.
const NAMES: usize = 256;
/// The number of entries that are tried for a name in the table of names.
const TRIES: usize = 8;
/// The maximum number of free lanes that are tried for a life. A life whose begin is written late may not fit on the
/// first of them.
const PASSED: usize = 8;

/// A lane, by its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lane(u32);

struct Entry {
    link: Link,
    /// The index of the lane's name among [`OF_NAMES`].
    name: AtomicU32,
    /// The lane's number among the lanes whose names have the same index.
    number: AtomicU32,
    /// The callsite of the outermost life on the lane or, if the lane is free, of the last outermost life. The track
    /// has the callsite's name.
    callsite: AtomicU32,
    /// The hash of the lane's name.
    hash: AtomicU64,
    occupancy: Occupancy,
}

impl Entry {
    fn new() -> Self {
        Self {
            link: Link::new(),
            name: AtomicU32::new(0),
            number: AtomicU32::new(0),
            callsite: AtomicU32::new(u32::MAX),
            hash: AtomicU64::new(0),
            occupancy: Occupancy::new(),
        }
    }

    /// Returns the cookie of the lane's track. The two highest bits are set, so that the cookie differs from the small
    /// numbers that programs choose, and from the cookies of spans.
    fn cookie(&self) -> i32 {
        (self.number.load(Ordering::Relaxed) | 0xc000_0000).cast_signed()
    }
}

/// A name of lanes, and the stack of the free lanes with this name.
struct Name {
    /// The hash of the name, or 0 if the entry is not in use.
    hash: AtomicU64,
    free: Free,
    made: AtomicU32,
}

static OF_NAMES: [Name; NAMES] = [const {
    Name { hash: AtomicU64::new(0), free: Free::new(AtomicU64::new(NONE_FREE)), made: AtomicU32::new(0) }
}; NAMES];
static CHUNK: [OnceRef<Box<[Entry]>>; CHUNKS] = [const { OnceRef::new() }; CHUNKS];
/// The number of lanes that this process has made.
static MADE: AtomicU32 = AtomicU32::new(0);

fn entry(index: u32) -> Option<&'static Entry> {
    let (chunk, at) = parts::locate(index as usize, FIRST_CHUNK);
    CHUNK.get(chunk)?.get()?.get(at)
}

/// Returns the index of a name among [`OF_NAMES`]. If there are too many names, several names share an index.
fn index_of(name: &str) -> usize {
    // 64-bit FNV-1a.
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, mix).max(1);
    let first = hash as usize % NAMES;
    let is_of = |at: &usize| {
        let taken = OF_NAMES[*at].hash.compare_exchange(0, hash, Ordering::Relaxed, Ordering::Relaxed);
        taken.is_ok() || taken == Err(hash)
    };
    (0..TRIES).map(|more| (first + more) % NAMES).find(is_of).unwrap_or(first)
}

impl Lane {
    pub(crate) const fn from_number(number: u32) -> Self {
        Self(number)
    }

    pub(crate) const fn number(self) -> u32 {
        self.0
    }

    /// Takes a free lane of the callsite's name for a life that began at `time`, or makes a lane. Returns `None` if
    /// there is no room for another lane.
    pub(crate) fn take(callsite: Callsite, life: u64, time: u64) -> Option<Self> {
        let seen = Cell::new(None);
        let link = |index| {
            seen.set(entry(index));
            Some(&seen.get()?.link)
        };
        let name = callsite.lanes(|name| index_of(name) as u32 + 1)? as usize - 1;
        let of_name = &OF_NAMES[name];
        let mut passed = [0; PASSED];
        let mut count = 0;
        let mut found = None;
        // A life whose begin is written late does not fit on a lane that another life has left after `time`.
        while let Some(index) = of_name.free.take(link) {
            found = seen.get().filter(|lane| lane.occupancy.is_silent_since(time)).map(|lane| (index, lane));
            if found.is_some() {
                break;
            }
            passed[count] = index;
            count += 1;
            if count == PASSED {
                break;
            }
        }
        for index in passed[..count].iter().rev() {
            entry(*index).into_iter().for_each(|lane| of_name.free.put_back(*index, &lane.link));
        }
        let (index, lane) = found.or_else(|| Self::make(name))?;
        if lane.callsite.load(Ordering::Relaxed) != callsite.number() {
            lane.hash.store(NamedTrack::hash_of(callsite.metadata()?.name()), Ordering::Relaxed);
            lane.callsite.store(callsite.number(), Ordering::Relaxed);
        }
        lane.occupancy.take(life, time);
        Some(Self(index))
    }

    #[cold]
    fn make(name: usize) -> Option<(u32, &'static Entry)> {
        let most = u32::try_from(parts::room(CHUNKS, FIRST_CHUNK)).unwrap_or(u32::MAX);
        let more = |made| (made < most).then_some(made + 1);
        let index = MADE.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        let (chunk, at) = parts::locate(index as usize, FIRST_CHUNK);
        let make = || (0..FIRST_CHUNK << chunk).map(|_| Entry::new()).collect();
        let lane = CHUNK.get(chunk)?.get_or_make(make).get(at)?;
        lane.name.store(name as u32, Ordering::Relaxed);
        lane.number.store(OF_NAMES[name].made.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        Some((index, lane))
    }

    /// Puts a life that began at `time` on this lane, in the life of its parent, whose number is `parent`. Returns
    /// false if the life does not fit on the lane.
    pub(crate) fn nest(self, parent: u64, life: u64, time: u64) -> bool {
        entry(self.0).is_some_and(|lane| lane.occupancy.nest(parent, life, time))
    }

    /// Removes the innermost life, which ends at `now`, from the lane. First calls `end` with the time of the end, so
    /// that `end` writes the end. `below` is the number of the life in which the removed life is nested. If `below` is
    /// 0, the removed life is not nested, and the lane becomes free.
    ///
    /// Threads may read the clock in one order and call this function in another order. So the end gets a time that is
    /// later than the lane's last event, even if `now` is not.
    pub(crate) fn leave(self, below: u64, now: u64, end: impl FnOnce(u64)) {
        let Some(lane) = entry(self.0) else { return end(now) };
        lane.occupancy.leave(below, now, end);
        if below == 0 {
            OF_NAMES[lane.name.load(Ordering::Relaxed) as usize].free.put_back(self.0, &lane.link);
        }
    }

    /// Returns the lane's track.
    pub(crate) fn track(self) -> Option<NamedTrack<'static>> {
        let lane = entry(self.0)?;
        let name = Callsite::from_number(lane.callsite.load(Ordering::Relaxed)).metadata()?.name();
        Some(NamedTrack::new(name, lane.hash.load(Ordering::Relaxed), lane.cookie()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::callsites::metadata_of_a_test;

    fn callsite(name: &'static str) -> Callsite {
        Callsite::of(metadata_of_a_test(name, "target")).unwrap()
    }

    #[test]
    fn a_free_lane_is_used_again_by_lives_of_its_name() {
        let (one, other, same) = (callsite("lanes one"), callsite("lanes other"), callsite("lanes one"));
        let first = Lane::take(one, 1, 10).unwrap();
        let second = Lane::take(one, 2, 11).unwrap();
        let tracks = [first, second].map(|lane| lane.track().unwrap());
        let hash = NamedTrack::hash_of("lanes one");
        let expected = |lane: Lane| NamedTrack::new("lanes one", hash, entry(lane.0).unwrap().cookie());
        assert_eq!(tracks, [first, second].map(expected));
        assert_ne!((first, tracks[0]), (second, tracks[1]));
        first.leave(0, 20, |time| assert_eq!(time, 20));
        assert_ne!(Lane::take(other, 3, 21), Some(first));
        assert_eq!(Lane::take(same, 4, 21), Some(first));
        // This life gets another lane, because it began before the last life on the lane `second` ended.
        second.leave(0, 30, |_| ());
        let late = Lane::take(one, 5, 29).unwrap();
        assert!(late != first && late != second);
        assert_eq!(Lane::take(one, 6, 31), Some(second));
    }

    #[test]
    fn a_life_nests_while_it_fits() {
        let lane = Lane::take(callsite("lanes nested"), 1, 10).unwrap();
        assert!(lane.nest(1, 2, 11));
        // Life 3 overlaps its sibling 2, and life 4 is a child of life 3. Neither fits.
        assert!(!lane.nest(1, 3, 12) && !lane.nest(3, 4, 12));
        assert!(lane.nest(2, 5, 13));
        lane.leave(2, 14, |_| ());
        // The clock has gone back, so the end gets a later time than the clock's.
        lane.leave(1, 13, |time| assert_eq!(time, 15));
        assert!(!lane.nest(1, 6, 15) && lane.nest(1, 6, 16));
        lane.leave(1, 17, |_| ());
        lane.leave(0, 18, |_| ());
        assert!(!lane.nest(1, 7, 19));
    }

    #[test]
    fn threads_share_lanes_and_make_no_more_than_they_need() {
        let callsite = callsite("lanes shared");
        let time = AtomicU64::new(1);
        let now = || time.fetch_add(1, Ordering::Relaxed);
        let lanes: Vec<_> = std::thread::scope(|scope| {
            let run = |thread: u64| {
                (0..if cfg!(miri) { 10 } else { 1000 })
                    .map(|_| {
                        let lane = Lane::take(callsite, thread, now()).unwrap();
                        lane.leave(0, now(), |_| ());
                        lane.track().unwrap()
                    })
                    .collect::<std::collections::HashSet<_>>()
            };
            let threads: Vec<_> = (1..=4).map(|thread| scope.spawn(move || run(thread))).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        let lanes: std::collections::HashSet<_> = lanes.into_iter().collect();
        // A thread that was not scheduled between two steps may find a later event on a lane, and then needs another
        // lane.
        assert!(lanes.len() <= 4 * (1 + PASSED), "{}", lanes.len());
    }
}
