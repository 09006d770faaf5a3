//! Counts the calls of a subscriber, and times some of them.
//!
//! # A call that is not timed
//!
//! The callsite's counters are found by the metadata's address, or by the span's id. The thread's lane of counters is increased, and
//! the thread's number of calls until the next sample decreased. All else is in [`State::time_slowly`].
//!
//! # A timed call
//!
//! While it runs, the thread's number of remaining calls is 0, so all calls nested in it take the slow path, are timed, and are
//! subtracted from it.
//!
//! # A long call
//!
//! A call of more than 10 µs may have waited, or its thread may have lost the processor. Then its processor time counts, which
//! has to be read before the call as well. That is a system call, which takes longer than most calls, and after which the next
//! call is slower than it would be. So it is read before one of eight samples, more often where long calls were seen. What long calls take together is
//! their share of the samples without that reading, times their mean in the samples with it. (A thread that has just asked for its
//! processor time loses the processor more often, so those samples do not tell the share.)

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use atrace_bill::{Bill, Call, Kind, Process, Sample, Sampled, Writer};
use atrace_sys::{OnceRef, timer};
use tracing_core::{Interest, Metadata};

use super::ids::{Ids, Place};
use super::thread::{self, LANES, Thread};
use crate::callsites::{self, Callsite, CallsiteInfo};

/// So many calls of each callsite, kind and thread are all timed.
const FIRSTS: u64 = 16;
/// One of so many calls is timed.
const ONE_IN: u32 = 128;
/// Of a call that takes longer, the processor time counts.
const LONG: Duration = Duration::from_micros(10);

/// How often a thread has made each kind of call: a cache line.
#[derive(Default)]
#[repr(align(64))]
struct Lane([AtomicU64; Call::ALL.len()]);

/// What was measured of a kind of call, in ticks.
#[derive(Default)]
struct Timed {
    firsts: AtomicU64,
    of_firsts: AtomicU64,
    /// Samples without the processor time.
    short: Sum,
    /// How many of these were long.
    longs: AtomicU64,
    /// Samples with it that were long, and how many were not.
    long: Sum,
    others: AtomicU64,
    /// Whether a call was long.
    has_long: AtomicBool,
}

#[derive(Default)]
struct Sum {
    number: AtomicU64,
    sum: AtomicU64,
    /// The bits of an `f64`.
    squares: AtomicU64,
}

impl Sum {
    fn add(&self, ticks: u64) {
        if ticks > 0 {
            self.sum.fetch_add(ticks, Ordering::Relaxed);
            let more = |bits| Some((f64::from_bits(bits) + (ticks as f64).powi(2)).to_bits());
            let _ = self.squares.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        }
        // The sums are never of fewer calls than this.
        self.number.fetch_add(1, Ordering::Release);
    }

    fn sample(&self) -> Sample {
        Sample {
            number: self.number.load(Ordering::Acquire),
            sum: self.sum.load(Ordering::Relaxed) as f64,
            squares: f64::from_bits(self.squares.load(Ordering::Relaxed)),
        }
    }
}

impl Timed {
    /// Returns whether to read the processor time before the next sample. The first calls are often long.
    fn reads(&self, calls: u64) -> bool {
        let [has_long, is_first] = [self.has_long.load(Ordering::Relaxed), calls < FIRSTS];
        let number =
            || [&self.short.number, &self.long.number, &self.others].map(|it| it.load(Ordering::Relaxed));
        match is_first {
            true => has_long || calls < 2,
            false => number().iter().sum::<u64>() % if has_long { 2 } else { 8 } == 1,
        }
    }

    /// Adds a call. `reads`: its processor time was read; `is_long`: it took more time than `long`.
    fn add(&self, is_first: bool, reads: bool, is_long: bool, ticks: u64, long: u64) {
        if is_long {
            self.has_long.store(true, Ordering::Relaxed);
        }
        if is_first {
            let ticks = if reads { ticks } else { ticks.min(long) };
            self.of_firsts.fetch_add(ticks, Ordering::Relaxed);
            self.firsts.fetch_add(1, Ordering::Release);
        } else if reads && is_long {
            self.long.add(ticks);
        } else if reads {
            self.others.fetch_add(1, Ordering::Relaxed);
        } else {
            self.longs.fetch_add(u64::from(is_long), Ordering::Relaxed);
            self.short.add(if is_long { 0 } else { ticks });
        }
    }
}

/// The counters of a callsite.
struct Site {
    lanes: [Lane; LANES],
    shared: Lane,
    timed: [Timed; Call::ALL.len()],
}

impl Site {
    fn new() -> Self {
        Self {
            lanes: std::array::from_fn(|_| Lane::default()),
            shared: Lane::default(),
            timed: Default::default(),
        }
    }

    /// Counts a call of a thread. Returns how many it had made before; those of a shared lane count together.
    fn count(&self, lane: usize, call: Call) -> u64 {
        match self.lanes.get(lane) {
            Some(lane) => {
                let calls = lane.0[call as usize].load(Ordering::Relaxed);
                lane.0[call as usize].store(calls + 1, Ordering::Relaxed);
                calls
            }
            None => self.shared.0[call as usize].fetch_add(1, Ordering::Relaxed),
        }
    }

    fn sampled(&self, call: Call, long_at_least: f64) -> Sampled {
        let timed = &self.timed[call as usize];
        let firsts = timed.firsts.load(Ordering::Acquire);
        let lanes = self.lanes.iter().chain([&self.shared]);
        let (short, long) = (timed.short.sample(), timed.long.sample());
        Sampled {
            timed: firsts + short.number + long.number + timed.others.load(Ordering::Relaxed),
            calls: lanes.map(|lane| lane.0[call as usize].load(Ordering::Relaxed)).sum(),
            firsts,
            of_firsts: timed.of_firsts.load(Ordering::Relaxed) as f64,
            longs: timed.longs.load(Ordering::Relaxed),
            short,
            long,
            long_at_least,
        }
    }
}

/// The counter: the processor's, or nanoseconds since this moment.
#[derive(Clone, Copy)]
struct Ticks(Option<Instant>);

impl Ticks {
    #[inline(always)]
    fn now(self) -> u64 {
        match self.0 {
            None => timer::counter(),
            Some(start) => start.elapsed().as_nanos() as u64,
        }
    }
}

/// What a meter consists of. It is never freed, so that callsites, threads and handles can refer to it.
pub(super) struct State {
    /// What calls are metered, for people.
    subject: &'static str,
    ticks: Ticks,
    began: (Instant, u64, Option<u64>),
    one_in: AtomicU32,
    /// The counters of the callsites, by their numbers.
    sites: Box<[OnceRef<Site>]>,
    /// Which callsites were registered here, by their numbers.
    registered: Box<[AtomicBool]>,
    unknown: Site,
    /// The callsites of spans, if the subscriber does not tell them.
    ids: Option<Ids>,
    /// The ticks of [`LONG`].
    long: AtomicU64,
    /// The ticks between the two readings of a timed call, if the call does nothing.
    empty: AtomicU64,
    /// The ticks that timed calls have taken more than they measured.
    around: AtomicU64,
    /// The picoseconds of a call that is not timed.
    untimed: AtomicU64,
}

/// Makes the [`Bill`] of a metered subscriber, at any time and from any thread.
///
/// A handle: copies belong to the same subscriber.
#[derive(Clone, Copy)]
pub struct Meter(pub(super) &'static State);

impl std::fmt::Debug for Meter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Meter").field("subject", &self.0.subject).finish_non_exhaustive()
    }
}

impl Meter {
    /// Makes a meter, and measures for about a millisecond what metering costs.
    pub(super) fn new(subject: &'static str, has_ids: bool) -> Self {
        let ticks = Ticks(if timer::has_counter() { None } else { Some(Instant::now()) });
        let numbers = callsites::FIRST_NUMBERS;
        let state: &'static State = Box::leak(Box::new(State {
            subject,
            ticks,
            began: (Instant::now(), ticks.now(), timer::process_time()),
            one_in: AtomicU32::new(ONE_IN),
            sites: (0..numbers).map(|_| OnceRef::new()).collect(),
            registered: (0..numbers).map(|_| AtomicBool::new(false)).collect(),
            unknown: Site::new(),
            ids: has_ids.then(Ids::new),
            long: AtomicU64::new(u64::MAX),
            empty: AtomicU64::new(0),
            around: AtomicU64::new(0),
            untimed: AtomicU64::new(0),
        }));
        state.calibrate();
        Self(state)
    }

    /// Returns what each callsite has cost so far. Allocates.
    pub fn bill(&self) -> Bill {
        Bill::read(&self.raw()).unwrap_or_default()
    }

    /// Returns the numbers, of which [`Bill::read`] makes the bill.
    pub(super) fn raw(&self) -> Vec<u8> {
        self.0.raw()
    }

    /// Prepares a callsite: only the first call of a callsite that was not prepared allocates.
    #[cold]
    #[inline(never)]
    pub(crate) fn register(self, metadata: &'static Metadata<'static>, interest: &Interest) {
        self.0.register(metadata, !interest.is_never());
    }
}

/// Calls `body`, which belongs to the callsite that `metadata` returns. A meter counts it, if there is one.
///
/// `body` is called in one place, so the compiler inlines it where it inlined it without a meter.
#[inline(always)]
pub(crate) fn billed<R>(
    meter: Option<Meter>,
    metadata: impl FnOnce() -> Option<&'static Metadata<'static>>,
    call: Call,
    body: impl FnOnce() -> R,
) -> R {
    #[cold]
    #[inline(never)]
    fn begin(meter: Meter, metadata: Option<&'static Metadata<'static>>, call: Call) -> Timing {
        meter.0.time(metadata.map_or(Which::Unknown, Which::Callsite), call)
    }
    #[cold]
    #[inline(never)]
    fn end(timing: Timing) {
        drop(timing);
    }
    let timing = meter.map(|meter| std::mem::ManuallyDrop::new(begin(meter, metadata(), call)));
    let result = body();
    if let Some(timing) = timing {
        end(std::mem::ManuallyDrop::into_inner(timing));
    }
    result
}

/// Which callsite a call belongs to.
#[derive(Clone, Copy)]
pub(super) enum Which<'a> {
    Callsite(&'static Metadata<'static>),
    /// A callsite that may be gone when the call returns.
    Passing(&'a Metadata<'a>),
    /// The callsite of a span that was found.
    Number(u32),
    Unknown,
}

impl State {
    #[cold]
    #[inline(never)]
    fn register(&'static self, metadata: &'static Metadata<'static>, is_wanted: bool) -> &'static Site {
        let number = Callsite::of(metadata).map(|callsite| callsite.number() as usize);
        let Some(number) = number.filter(|number| *number < self.sites.len()) else { return &self.unknown };
        self.registered[number].store(true, Ordering::Relaxed);
        if is_wanted { self.sites[number].get_or_make(Site::new) } else { &self.unknown }
    }

    #[inline(always)]
    fn site_of(&self, number: u32) -> Option<&'static Site> {
        self.sites.get(number as usize)?.get()
    }

    #[inline]
    fn site(&'static self, which: Which<'_>) -> &'static Site {
        let site = |metadata: &Metadata<'_>| self.site_of(Callsite::find(metadata)?.number());
        match which {
            Which::Callsite(metadata) => site(metadata).unwrap_or_else(|| self.register(metadata, true)),
            Which::Passing(metadata) => site(metadata).unwrap_or(&self.unknown),
            Which::Number(number) => self.site_of(number).unwrap_or(&self.unknown),
            Which::Unknown => &self.unknown,
        }
    }

    /// Notes the callsite of a new span.
    pub(super) fn note(&self, id: u64, metadata: &'static Metadata<'static>) {
        if let Some(callsite) = Callsite::find(metadata) {
            self.note_number(id, callsite.number());
        }
    }

    /// Notes the callsite's number of a new span.
    pub(super) fn note_number(&self, id: u64, callsite: u32) {
        if let Some(ids) = &self.ids {
            ids.add(id, callsite);
        }
    }

    /// Returns the callsite of a span, and where it was noted.
    #[inline]
    pub(super) fn span(&self, id: u64) -> (Which<'static>, Option<Place>) {
        match self.ids.as_ref().and_then(|ids| ids.find(id)) {
            Some((place, number)) => (Which::Number(number), Some(place)),
            None => (Which::Unknown, None),
        }
    }

    /// Forgets a span that was closed.
    pub(super) fn forget(&self, place: Place) {
        if let Some(ids) = &self.ids {
            ids.remove(place);
        }
    }

    pub(super) fn set_one_in(&self, one_in: u32) {
        self.one_in.store(one_in.max(1), Ordering::Relaxed);
        thread::with(|thread| thread.choose(one_in));
    }

    /// Counts a call that begins now, and times it if it is in the sample. The call ends when the result is dropped.
    #[inline]
    pub(super) fn time(&'static self, which: Which<'_>, call: Call) -> Timing {
        self.time_site(self.site(which), call)
    }

    #[inline]
    fn time_site(&'static self, site: &'static Site, call: Call) -> Timing {
        thread::with(|thread| {
            let left = thread.left.get();
            if left > 1
                && let Some(lane) = site.lanes.get(thread.lane.get())
            {
                let count = &lane.0[call as usize];
                let calls = count.load(Ordering::Relaxed);
                if calls >= FIRSTS {
                    count.store(calls + 1, Ordering::Relaxed);
                    thread.left.set(left - 1);
                    return Timing(None);
                }
            }
            self.time_slowly(thread, site, call)
        })
    }

    #[cold]
    #[inline(never)]
    fn time_slowly(&'static self, thread: &Thread, site: &'static Site, call: Call) -> Timing {
        thread.prepare(self.ticks.now(), self.one_in.load(Ordering::Relaxed));
        let calls = site.count(thread.lane.get(), call);
        let is_first = calls < FIRSTS;
        let is_nested = thread.is_timing.get();
        let left = thread.left.get();
        if !is_nested && !is_first && left > 1 {
            thread.left.set(left - 1);
            return Timing(None);
        }
        let entered = self.ticks.now();
        let timed = &site.timed[call as usize];
        let outer = (thread.nested.replace(0), thread.reads.get());
        let reads = if is_nested { outer.1 } else { timed.reads(calls) };
        thread.is_timing.set(true);
        thread.reads.set(reads);
        thread.left.set(0);
        let processor = if reads { timer::thread_time() } else { None };
        let timed = (!is_nested).then_some(timed);
        let begin = self.ticks.now();
        Timing(Some(Running { state: self, timed, is_first, left, outer, processor, entered, begin }))
    }

    /// Returns how many nanoseconds a tick has.
    fn ns_per_tick(&self) -> f64 {
        let (instant, ticks, _) = self.began;
        let ticks = self.ticks.now().wrapping_sub(ticks).max(1);
        instant.elapsed().as_nanos() as f64 / ticks as f64
    }

    /// Measures what metering costs, and the speed of the counter.
    #[cold]
    #[inline(never)]
    fn calibrate(&'static self) {
        const CALLS: u32 = 1000;
        const ROUNDS: usize = if cfg!(miri) { 1 } else { 20 };
        let probe = Box::leak(Box::new(Site::new())); // 4 KB that no thread refers to afterwards.
        let call = |left| {
            if let Some(left) = left {
                thread::with(|thread| thread.left.set(left));
            }
            drop(self.time_site(std::hint::black_box(probe), Call::Enter));
        };
        (0..=FIRSTS).for_each(|_| call(None));
        let short = &probe.timed[Call::Enter as usize].short;
        // Of some groups, the one with the least mean was not interrupted.
        let (mut empty, mut untimed) = (u64::MAX, u64::MAX);
        for _ in 0..ROUNDS {
            let before = short.sample();
            for _ in 0..10 {
                // As in a program: most calls before it are not timed.
                (0..30).for_each(|_| call(Some(CALLS)));
                call(Some(1));
            }
            let now = short.sample();
            let mean = (now.sum - before.sum) as u64 / (now.number - before.number).max(1);
            empty = empty.min(mean);
        }
        for _ in 0..ROUNDS {
            let start = self.ticks.now();
            thread::with(|thread| thread.left.set(2 * CALLS));
            for id in 0..CALLS {
                std::hint::black_box(self.span(std::hint::black_box(u64::from(id) + 1)));
                call(None);
            }
            untimed = untimed.min(self.ticks.now().wrapping_sub(start));
        }
        let ns = self.ns_per_tick();
        self.empty.store(empty, Ordering::Relaxed);
        self.untimed.store((untimed as f64 * ns * 1000.0 / f64::from(CALLS)) as u64, Ordering::Relaxed);
        if timer::thread_time().is_some() {
            self.long.store((LONG.as_nanos() as f64 / ns) as u64, Ordering::Relaxed);
        }
        thread::with(|thread| thread.choose(self.one_in.load(Ordering::Relaxed)));
    }

    fn raw(&self) -> Vec<u8> {
        let (began, _, processor) = self.began;
        let ns = self.ns_per_tick();
        let long = self.long.load(Ordering::Relaxed) as f64;
        let mut writer = Writer::new(&Process {
            subject: self.subject,
            ns_per_tick: ns,
            processor_ns: processor.zip(timer::process_time()).map(|(then, now)| now.saturating_sub(then)),
            elapsed_ns: began.elapsed().as_nanos() as u64,
            untimed_ns: self.untimed.load(Ordering::Relaxed) as f64 / 1000.0,
            timing_ns: self.around.load(Ordering::Relaxed) as f64 * ns,
        });
        let mut add = |metadata: Option<&'static Metadata<'static>>, site: Option<&Site>| {
            writer.callsite(&metadata.map(described).unwrap_or_default(), |call| {
                site.map(|site| site.sampled(call, long)).unwrap_or_default()
            });
        };
        for (number, registered) in self.registered.iter().enumerate() {
            let metadata = Callsite::from_number(number as u32).metadata();
            if registered.load(Ordering::Relaxed) && metadata.is_some() {
                add(metadata, self.site_of(number as u32));
            }
        }
        add(None, Some(&self.unknown));
        writer.finish()
    }
}

/// Describes a callsite for the bill.
fn described(metadata: &'static Metadata<'static>) -> atrace_bill::Callsite<'static> {
    let is_span = metadata.is_span();
    let fields = metadata.fields().iter().filter(|field| is_span || field.name() != "message");
    atrace_bill::Callsite {
        kind: if is_span { Kind::Span } else { Kind::Event },
        level: CallsiteInfo(metadata).level(),
        fields: fields.count() as u32,
        name: metadata.name(),
        target: metadata.target(),
        file: metadata.file().unwrap_or_default(),
        line: metadata.line().unwrap_or_default(),
    }
}

/// A call that has begun. It ends when this is dropped.
#[must_use]
pub(super) struct Timing(Option<Running>);

/// A timed call.
struct Running {
    state: &'static State,
    /// `None` in a nested call, whose time is only subtracted.
    timed: Option<&'static Timed>,
    is_first: bool,
    /// What the thread had before.
    left: u32,
    outer: (u64, bool),
    /// The thread's processor time before the call, if it was read.
    processor: Option<u64>,
    entered: u64,
    begin: u64,
}

impl Drop for Timing {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(running) = &self.0 {
            running.end(running.state.ticks.now());
        }
    }
}

impl Running {
    #[cold]
    #[inline(never)]
    fn end(&self, end: u64) {
        let state = self.state;
        let long = state.long.load(Ordering::Relaxed);
        let elapsed = end.wrapping_sub(self.begin).saturating_sub(state.empty.load(Ordering::Relaxed));
        let mut took = elapsed;
        if elapsed > long
            && let Some(time) = self.processor.zip(timer::thread_time())
        {
            took = took.min((time.1.saturating_sub(time.0) as f64 / state.ns_per_tick()) as u64);
        }
        thread::with(|thread| {
            let own = took.saturating_sub(thread.nested.get());
            thread.reads.set(self.outer.1);
            let before = self.begin.saturating_sub(self.entered);
            let Some(timed) = self.timed else {
                // For the outer call, this one began when it was entered.
                return thread.nested.set(self.outer.0 + took + before);
            };
            timed.add(self.is_first, self.processor.is_some(), elapsed > long, own, long);
            thread.is_timing.set(false);
            match self.left > 1 {
                true => thread.left.set(self.left),
                false => thread.choose(state.one_in.load(Ordering::Relaxed)),
            }
            let after = state.ticks.now().wrapping_sub(end);
            state.around.fetch_add((before + after).min(long), Ordering::Relaxed);
        });
    }
}
