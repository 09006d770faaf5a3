//! The table of callsites: finds a span's metadata by a number.
//!
//! A span whose fields need no storage needs no storage at all: its id holds the number of its callsite, and the
//! callsite's metadata has the name. The first span of each callsite adds the metadata to the table. Nothing is ever
//! removed, because callsites live forever. A lookup takes no lock, only a few loads, the same each time.
//!
//! The table is a lock-free hash table with linear probing that grows by parts. One compare-and-swap of the metadata's
//! address takes a bucket, and one more publishes a part that was allocated before. So no thread ever waits for another,
//! which would not exist in a forked child.

use atrace::tracer::{About, Number, Site};
use atrace_sys::OnceRef;
use tracing_core::{Level, Metadata};

/// Buckets in the first part, which is not on the heap.
const FIRST: usize = if cfg!(miri) { 32 } else { 1024 };
/// Each further part is this much larger than the one before.
const GROWTH: u32 = if cfg!(miri) { 1 } else { 3 };
const PARTS: usize = 4;
/// Buckets that are tried in one part.
const TRIES: usize = 8;

/// A callsite's metadata, and the number by which it is interned in Perfetto's memory.
struct Bucket {
    metadata: OnceRef<Metadata<'static>>,
    number: Number,
}

impl Bucket {
    const fn new() -> Self {
        Self { metadata: OnceRef::new(), number: Number::new() }
    }

    /// Returns the bucket of the callsite with this metadata, or `None` if the table is full.
    #[inline(always)]
    fn of(metadata: &'static Metadata<'static>) -> Option<&'static Self> {
        let first = &FIRST_PART[place(metadata, FIRST)];
        if first.is_of(metadata) { Some(first) } else { Callsite::search(metadata)?.bucket() }
    }

    #[inline(always)]
    fn is_of(&self, metadata: &'static Metadata<'static>) -> bool {
        self.metadata.get().is_some_and(|present| std::ptr::eq(present, metadata))
    }
}

static FIRST_PART: [Bucket; FIRST] = [const { Bucket::new() }; FIRST];
/// The parts on the heap. Each is allocated when a callsite found no bucket in the parts before it.
static FURTHER_PARTS: [OnceRef<Box<[Bucket]>>; PARTS] = [const { OnceRef::new() }; PARTS];

/// A callsite, as the number of its bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Callsite(u32);

impl Callsite {
    pub(crate) const fn from_number(number: u32) -> Self {
        Self(number)
    }

    pub(crate) const fn number(self) -> u32 {
        self.0
    }

    /// Returns the callsite with this metadata, adding it if necessary. `None` if the table is full.
    #[inline]
    pub(crate) fn of(metadata: &'static Metadata<'static>) -> Option<Self> {
        Self::known(metadata).or_else(|| Self::search(metadata))
    }

    /// Returns the callsite if it is in the first bucket that is tried: an inlined fast path of [`of`](Self::of).
    #[inline(always)]
    pub(crate) fn known(metadata: &'static Metadata<'static>) -> Option<Self> {
        let at = place(metadata, FIRST);
        FIRST_PART[at].is_of(metadata).then_some(Self(at as u32))
    }

    #[cold]
    #[inline(never)]
    fn search(metadata: &'static Metadata<'static>) -> Option<Self> {
        let mut base = 0;
        for part in 0..=PARTS {
            let buckets = buckets(part, true)?;
            let first = place(metadata, buckets.len());
            for at in (0..TRIES).map(|n| (first + n) % buckets.len()) {
                match buckets[at].metadata.set(metadata) {
                    Err(present) if !std::ptr::eq(present, metadata) => {}
                    _ => return u32::try_from(base + at).ok().map(Self),
                }
            }
            base += buckets.len();
        }
        None
    }

    /// Returns the metadata, or `None` if no callsite has this number.
    #[inline]
    pub(crate) fn metadata(self) -> Option<&'static Metadata<'static>> {
        self.bucket()?.metadata.get()
    }

    #[inline]
    fn bucket(self) -> Option<&'static Bucket> {
        let number = self.0 as usize;
        FIRST_PART.get(number).or_else(|| Self::further(number - FIRST))
    }

    #[cold]
    fn further(mut number: usize) -> Option<&'static Bucket> {
        for part in 1..=PARTS {
            let buckets = buckets(part, false)?;
            match buckets.get(number) {
                Some(bucket) => return Some(bucket),
                None => number -= buckets.len(),
            }
        }
        None
    }
}

/// The constant data of a callsite, for Perfetto.
pub(crate) struct CallsiteInfo(pub(crate) &'static Metadata<'static>);

/// Writes only the name: the `Debug` of all metadata would be much code.
impl std::fmt::Debug for CallsiteInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.name())
    }
}

impl CallsiteInfo {
    /// Returns the callsite as an event refers to it: with a number, unless the table is full.
    #[inline]
    pub(crate) fn site(&self) -> Site<'_> {
        let level = match *self.0.level() {
            Level::ERROR => 1,
            Level::WARN => 2,
            Level::INFO => 3,
            Level::DEBUG => 4,
            Level::TRACE => 5,
        };
        Site::new(Bucket::of(self.0).map(|bucket| &bucket.number), self.0.name(), level, self)
    }
}

impl About for CallsiteInfo {
    fn target(&self) -> &str {
        self.0.target()
    }

    fn place(&self) -> Option<(&str, u32)> {
        self.0.file().zip(self.0.line())
    }

    fn arguments(&self, each: &mut dyn FnMut(&str)) {
        self.0.fields().iter().for_each(|field| each(field.name()));
    }
}

/// Returns the buckets of a part. `fill` allocates the part if it does not exist.
fn buckets(part: usize, fill: bool) -> Option<&'static [Bucket]> {
    let Some(further) = part.checked_sub(1) else { return Some(&FIRST_PART) };
    let cell = FURTHER_PARTS.get(further)?;
    let make = || (0..FIRST << (GROWTH * part as u32)).map(|_| Bucket::new()).collect();
    Some(if fill { cell.get_or_make(make) } else { cell.get()? })
}

/// Returns the first of `buckets` (a power of two) that is tried. This is Fibonacci hashing (Knuth, "The Art of Computer
/// Programming", volume 3, 6.4): it spreads addresses, whose lowest bits are all the same.
#[inline(always)]
fn place(metadata: &'static Metadata<'static>, buckets: usize) -> usize {
    let key = std::ptr::from_ref(metadata) as usize;
    // 2^64 divided by the golden ratio. The highest bits of the product depend on all bits of the key.
    ((key as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - buckets.ilog2())) as usize
}

/// Returns metadata of a span without fields and without a registered callsite.
#[cfg(test)]
pub(crate) fn metadata_of_a_test(name: &'static str, target: &'static str) -> &'static Metadata<'static> {
    use tracing_core::{Interest, Kind, Level, callsite::Identifier, field::FieldSet};

    struct NoCallsite;

    impl tracing_core::Callsite for NoCallsite {
        fn set_interest(&self, _: Interest) {}

        fn metadata(&self) -> &Metadata<'_> {
            unreachable!("never registered")
        }
    }

    let fields = FieldSet::new(&[], Identifier(&NoCallsite));
    Box::leak(Box::new(Metadata::new(name, target, Level::INFO, None, None, None, fields, Kind::SPAN)))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn more_callsites_than_the_first_part_holds_are_numbered_once_and_found() {
        let all: Vec<_> = (0..if cfg!(miri) { 3 } else { 5 } * FIRST)
            .map(|_| metadata_of_a_test("name", "target"))
            .collect();
        let number = || all.iter().map(|metadata| Callsite::of(metadata).unwrap()).collect::<Vec<_>>();
        let numbers = std::thread::scope(|scope| {
            let threads = if cfg!(miri) { 2 } else { 4 };
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(number)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        assert!(numbers.iter().all(|other| *other == numbers[0]));
        assert_eq!(numbers[0].iter().map(|it| it.number()).collect::<HashSet<_>>().len(), all.len());
        for (metadata, callsite) in all.iter().zip(number()) {
            assert!(std::ptr::eq(callsite.metadata().unwrap(), *metadata));
        }
    }
}
