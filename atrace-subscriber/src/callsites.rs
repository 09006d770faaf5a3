//! The table of callsites, which maps the number of a callsite to the callsite's metadata.
//!
//! A span is not stored if it has no fields, no life (a slice from the span's creation until it closes) and no async
//! slice: its [`Span`](crate::span::Span) holds the number of its callsite, and the callsite's metadata has the name. A
//! callsite is added to the table when its number is first needed. No callsite is ever removed, because callsites live
//! forever. A lookup takes no lock. It usually examines one bucket, and at most [`TRIES`] buckets of each part of the
//! table.
//!
//! The table is a lock-free hash table with linear probing. It consists of parts, and grows by adding a part. A thread
//! takes a bucket by a compare-and-swap of the metadata's address, and publishes a newly allocated part by another
//! compare-and-swap. So no thread ever waits for another thread. (In a forked child, the thread to wait for might not
//! exist.)

use std::sync::atomic::{AtomicU32, Ordering};

use atrace::tracer::{About, Number, Site};
use atrace_sys::OnceRef;
use tracing_core::{Level, Metadata};

/// The number of buckets in the first part. This part is not on the heap.
const FIRST: usize = if cfg!(miri) { 32 } else { 1024 };
/// Each part is larger than the part before it by the factor 2^`GROWTH`.
const GROWTH: u32 = if cfg!(miri) { 1 } else { 3 };
const PARTS: usize = 4;
/// The number of buckets in the first two parts. The number of each callsite in these parts is less than this value.
pub(crate) const FIRST_NUMBERS: usize = FIRST + (FIRST << GROWTH);
/// The maximum number of buckets that a search examines in each part.
const TRIES: usize = 8;

/// The data of a callsite: its metadata; the number by which packets in Perfetto's memory refer to the callsite;
/// whether its last spans were synchronous; the effect of a recorder's options on its spans; and a number that
/// identifies the lanes (tracks for lives) that have its name.
struct Bucket {
    metadata: OnceRef<Metadata<'static>>,
    number: Number,
    kind: Kind,
    answers: AtomicU32,
    lanes: AtomicU32,
}

impl Bucket {
    const fn new() -> Self {
        Self {
            metadata: OnceRef::new(),
            number: Number::new(),
            kind: Kind(AtomicU32::new(0)),
            answers: AtomicU32::new(0),
            lanes: AtomicU32::new(0),
        }
    }

    /// Returns the bucket of the callsite with this metadata, and adds the callsite to the table if necessary. Returns
    /// `None` if the table is full.
    #[inline(always)]
    fn of(metadata: &'static Metadata<'static>) -> Option<&'static Self> {
        let first = &FIRST_PART[place(metadata, FIRST)];
        if first.is_of(metadata) { Some(first) } else { Callsite::search(metadata)?.bucket() }
    }

    #[inline(always)]
    fn is_of(&self, metadata: &Metadata<'_>) -> bool {
        self.metadata.get().is_some_and(|present| std::ptr::eq(present, metadata))
    }
}

static FIRST_PART: [Bucket; FIRST] = [const { Bucket::new() }; FIRST];
/// The parts on the heap. A part is allocated when a callsite finds no free bucket in the parts before it.
static FURTHER_PARTS: [OnceRef<Box<[Bucket]>>; PARTS] = [const { OnceRef::new() }; PARTS];

/// Whether the last spans of a callsite were synchronous (entered once, and closed right after they were left): the
/// number of synchronous spans in a row, or [`Kind::ASYNC`].
///
/// The value is used to guess whether the next span is synchronous. If several threads count at the same time, some
/// spans may not be counted.
struct Kind(AtomicU32);

impl Kind {
    /// The value of a [`Kind`] if the callsite's last span was asynchronous.
    const ASYNC: u32 = u32::MAX;
    /// The number of synchronous spans after which the next span is presumed to be synchronous as well.
    const ENOUGH: u32 = 16;
    /// One of this many spans that are presumed to be synchronous is watched nevertheless.
    const SAMPLED: u32 = 1024;

    /// Returns whether the next span must be watched to find out whether it is synchronous, and counts the span if it
    /// is presumed to be synchronous: see [`Callsite::has_to_be_watched`].
    #[inline(always)]
    fn has_to_be_watched(&self) -> bool {
        let is = self.0.load(Ordering::Relaxed);
        if !(Self::ENOUGH..Self::ASYNC).contains(&is) {
            return true;
        }
        let next = if is == Self::ASYNC - 1 { Self::ENOUGH } else { is + 1 };
        self.0.store(next, Ordering::Relaxed);
        next % Self::SAMPLED == 0
    }
}

/// A callsite, identified by the number of its bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Callsite(u32);

impl Callsite {
    pub(crate) const fn from_number(number: u32) -> Self {
        Self(number)
    }

    pub(crate) const fn number(self) -> u32 {
        self.0
    }

    /// Returns the callsite with this metadata, and adds the callsite to the table if necessary. Returns `None` if the
    /// table is full.
    #[inline]
    pub(crate) fn of(metadata: &'static Metadata<'static>) -> Option<Self> {
        Self::known(metadata).or_else(|| Self::search(metadata))
    }

    /// Returns the callsite with this metadata if it is in the first bucket that a search examines. This is an inlined
    /// fast path of [`of`](Self::of).
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

    /// Returns the callsite with this metadata, or `None` if it is not in the table. The metadata need not be
    /// `'static`.
    #[inline]
    pub(crate) fn find(metadata: &Metadata<'_>) -> Option<Self> {
        let at = place(metadata, FIRST);
        if FIRST_PART[at].is_of(metadata) { Some(Self(at as u32)) } else { Self::find_further(metadata) }
    }

    #[inline(never)]
    fn find_further(metadata: &Metadata<'_>) -> Option<Self> {
        let mut base = 0;
        for part in 0..=PARTS {
            let buckets = buckets(part, false)?;
            let first = place(metadata, buckets.len());
            let mut tries = (first..first + TRIES).map(|at| at % buckets.len());
            if let Some(at) = tries.find(|at| buckets[*at].is_of(metadata)) {
                return u32::try_from(base + at).ok().map(Self);
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

    /// Returns the callsite's data, or `None` if no callsite has this number.
    #[inline(always)]
    pub(crate) fn info(self) -> Option<CallsiteInfo> {
        let bucket = self.bucket()?;
        Some(CallsiteInfo { metadata: bucket.metadata.get()?, number: Some(&bucket.number) })
    }

    /// Returns a number (never 0) that identifies the lanes with the callsite's name. If no number is stored for the
    /// callsite, calls `find` with the name, and stores the number that `find` returns.
    #[inline(always)]
    pub(crate) fn lanes(self, find: impl FnOnce(&str) -> u32) -> Option<u32> {
        let bucket = self.bucket()?;
        let known = bucket.lanes.load(Ordering::Relaxed);
        if known != 0 {
            return Some(known);
        }
        let found = find(bucket.metadata.get()?.name());
        bucket.lanes.store(found, Ordering::Relaxed);
        Some(found)
    }

    #[inline]
    fn bucket(self) -> Option<&'static Bucket> {
        let number = self.0 as usize;
        FIRST_PART.get(number).or_else(|| Self::further(number - FIRST))
    }

    /// Returns whether a new span of the callsite must be watched, to find out whether it is synchronous. If the result
    /// is false, the span counts as synchronous. Call this once for each new span, because this function counts the
    /// spans that are presumed to be synchronous.
    #[inline]
    pub(crate) fn has_to_be_watched(self) -> bool {
        self.bucket().is_some_and(|bucket| bucket.kind.has_to_be_watched())
    }

    /// Records whether a span of the callsite was asynchronous.
    pub(crate) fn learn(self, is_async: bool) {
        let Some(Kind(kind)) = self.bucket().map(|bucket| &bucket.kind) else { return };
        let is = kind.load(Ordering::Relaxed);
        match is {
            _ if is_async => kind.store(Kind::ASYNC, Ordering::Relaxed),
            Kind::ASYNC => kind.store(0, Ordering::Relaxed),
            ..Kind::ENOUGH => kind.store(is + 1, Ordering::Relaxed),
            _ => {}
        }
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

/// A callsite that was found in the table, with a reference to its data, so that several queries need only one lookup.
#[derive(Clone, Copy)]
pub(crate) struct Found {
    pub(crate) callsite: Callsite,
    metadata: &'static Metadata<'static>,
    bucket: &'static Bucket,
}

impl Found {
    /// Finds the callsite with this metadata, and adds it to the table if necessary. Returns `None` if the
    /// table is full.
    #[inline(always)]
    pub(crate) fn of(metadata: &'static Metadata<'static>) -> Option<Self> {
        let at = place(metadata, FIRST);
        let bucket = &FIRST_PART[at];
        if bucket.is_of(metadata) {
            Some(Self { callsite: Callsite(at as u32), metadata, bucket })
        } else {
            let callsite = Callsite::search(metadata)?;
            Some(Self { callsite, metadata, bucket: callsite.bucket()? })
        }
    }

    #[inline(always)]
    pub(crate) fn info(self) -> CallsiteInfo {
        CallsiteInfo { metadata: self.metadata, number: Some(&self.bucket.number) }
    }

    /// Returns the value that [`set_answers`](Self::set_answers) has stored, or 0 if there is none.
    #[inline(always)]
    pub(crate) fn answers(self) -> u32 {
        self.bucket.answers.load(Ordering::Relaxed)
    }

    /// Stores the effect that the options of a recorder (a subscriber or a layer) have on the callsite's spans. This
    /// replaces the value that another recorder has stored.
    pub(crate) fn set_answers(self, answers: u32) {
        self.bucket.answers.store(answers, Ordering::Relaxed);
    }

    /// Returns whether the callsite's last span was asynchronous.
    #[inline(always)]
    pub(crate) fn was_async(self) -> bool {
        self.bucket.kind.0.load(Ordering::Relaxed) == Kind::ASYNC
    }

    /// Returns whether the callsite's next span is presumed to be synchronous.
    #[inline(always)]
    pub(crate) fn is_presumed_sync(self) -> bool {
        (Kind::ENOUGH..Kind::ASYNC).contains(&self.bucket.kind.0.load(Ordering::Relaxed))
    }
}

/// Returns the level of a callsite as a number: from 1 for `ERROR` to 5 for `TRACE`.
#[inline]
pub(crate) fn level_of(metadata: &Metadata<'_>) -> u8 {
    match *metadata.level() {
        Level::ERROR => 1,
        Level::WARN => 2,
        Level::INFO => 3,
        Level::DEBUG => 4,
        Level::TRACE => 5,
    }
}

/// The constant data of a callsite, for Perfetto.
pub(crate) struct CallsiteInfo {
    metadata: &'static Metadata<'static>,
    /// The number by which packets refer to the callsite, or `None` if the table of callsites is full.
    number: Option<&'static Number>,
}

/// Formats only the name, because code that formats all metadata would be large.
impl std::fmt::Debug for CallsiteInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.metadata.name())
    }
}

impl CallsiteInfo {
    /// Finds the data of the callsite with this metadata.
    #[inline(always)]
    pub(crate) fn of(metadata: &'static Metadata<'static>) -> Self {
        Self { metadata, number: Bucket::of(metadata).map(|bucket| &bucket.number) }
    }

    /// Returns the callsite in the form in which a span's slices refer to it: with a number, unless the table is
    /// full.
    #[inline]
    pub(crate) fn site(&self) -> Site<'_> {
        Site::new(self.number, self.metadata.name(), level_of(self.metadata), self)
    }

    /// Returns the callsite in the form in which an event refers to it. In this form, the callsite's name is the module
    /// path, because the name that `tracing` gives to an event contains a path on the machine that compiled the
    /// program.
    #[inline]
    pub(crate) fn event_site(&self) -> Site<'_> {
        Site::new(self.number, self.module(), level_of(self.metadata), self)
    }

    /// Returns the line of the callsite.
    pub(crate) fn line(&self) -> Option<u32> {
        self.metadata.line()
    }

    /// Returns the name that the program has chosen for an event, or `None` if the event has the default name of
    /// `tracing`, `event FILE:LINE`.
    pub(crate) fn own_name(&self) -> Option<&'static str> {
        let place = self.metadata.name().strip_prefix("event ").zip(self.metadata.file());
        let is_made = place
            .is_some_and(|(place, file)| place.strip_prefix(file).is_some_and(|line| line.starts_with(':')));
        (!is_made).then_some(self.metadata.name())
    }

    /// Returns the module path of the callsite, or its target if it has no module path.
    #[inline]
    pub(crate) fn module(&self) -> &'static str {
        self.metadata.module_path().unwrap_or(self.metadata.target())
    }
}

impl About for CallsiteInfo {
    fn target(&self) -> &str {
        self.metadata.target()
    }

    fn location(&self) -> Option<(&str, u32)> {
        self.metadata.file().zip(self.metadata.line())
    }

    fn arguments(&self, each: &mut dyn FnMut(&str)) {
        self.metadata.fields().iter().for_each(|field| each(field.name()));
    }
}

/// Returns the buckets of a part, or `None` if the part does not exist. If `fill` is true, allocates a part that does
/// not exist.
fn buckets(part: usize, fill: bool) -> Option<&'static [Bucket]> {
    let Some(further) = part.checked_sub(1) else { return Some(&FIRST_PART) };
    let cell = FURTHER_PARTS.get(further)?;
    let make = || (0..FIRST << (GROWTH * part as u32)).map(|_| Bucket::new()).collect();
    Some(if fill { cell.get_or_make(make) } else { cell.get()? })
}

/// Returns the number of the first bucket that a search for a callsite examines.
#[inline(always)]
pub(crate) fn first_place(metadata: &Metadata<'_>) -> usize {
    place(metadata, FIRST)
}

/// Returns the index of the first bucket that a search examines, among `buckets` buckets (a power of two). This is
/// Fibonacci hashing (Knuth, "The Art of Computer Programming", volume 3, 6.4), which distributes addresses well
/// although their lowest bits are equal.
#[inline(always)]
fn place(metadata: &Metadata<'_>, buckets: usize) -> usize {
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
