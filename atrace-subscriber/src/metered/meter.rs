//! The meter: counts the calls of a subscriber, and times some of them.
//!
//! # A call that is not timed
//!
//! For each callsite and thread there is a line of counters, which is a cache line of the processor. The number of a
//! callsite is usually the hash of its metadata's address. So the line is found without a lookup in the table of
//! callsites. The last word of the line is the address of the metadata, and confirms that the line belongs to the
//! callsite. For a span, a table finds the number of the callsite by the span's id. The counter of a kind of call also
//! shows whether the call has to be timed (`counter.rs`), so a call that is not timed writes only this word. All other
//! cases are handled by [`State::time_slowly`].
//!
//! # A timed call
//!
//! During a timed call, the thread has no lane (its own set of counters). So all calls that are nested in the timed
//! call are handled by `time_slowly`. They are timed as well, and their times are subtracted from the time of the outer
//! call.
//!
//! # A long call
//!
//! During a call of more than 10 µs (a *long* call), the thread may have waited or lost the processor. For a long call,
//! the thread's processor time counts instead of the elapsed time, so the processor time has to be read before and
//! after the call. Reading the processor time takes a system call. This system call takes longer than most metered
//! calls, and makes later calls slower. So the processor time is read only for one of 32 samples, and for eight more
//! samples after each long call. In this way, all readings of the processor time together take less time than the long
//! calls. The estimate for long calls is the product of two values: their share among the samples for which the
//! processor time was not read, and their mean processor time in the samples for which it was read. (A thread that has
//! just read its processor time loses the processor more often, so the latter samples would give a wrong share.)

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use atrace_bill::{Bill, Call, Kind, Process, Sample, Sampled, Writer};
use atrace_sys::{Line, OnceRef, timer, zeroed_lines};
use tracing_core::{Interest, Metadata};

use super::counter::{self, ONE_IN_MAX};
use super::thread::{self, LANE, LANES, NONE, Thread, Times};
use crate::callsites::{self, Callsite, level_of};

/// For each callsite, kind of call and thread, the number of first calls that are all timed.
const FIRSTS: u64 = 16;
/// After the first calls, one of this many calls of a kind is timed on average. The number is larger if the clock is
/// slow.
const ONE_IN: u32 = 128;
/// The number of calls that are made to measure what metering itself costs. For the measurement in which every call is
/// timed, a tenth of this number of calls is made.
const TRIES: u32 = 1000;
/// The callsite number that is used for all calls whose callsite is unknown.
pub(super) const UNKNOWN: usize = callsites::FIRST_NUMBERS;
/// The duration from which a call is *long*: its processor time counts instead of the elapsed time.
const LONG: Duration = Duration::from_micros(10);

/// The index, in a thread's line of counters for a callsite, of the word with the address of the callsite's metadata.
/// The words before that word count the calls of each kind.
const ADDRESS: usize = 7;

/// Returns the index of the counter for a kind of call. New spans and events share a counter, because no
/// callsite has both.
const fn place_of(call: Call) -> usize {
    match call {
        Call::Check => 0,
        Call::New | Call::Event => 1,
        Call::Enter => 2,
        Call::Exit => 3,
        Call::Record => 4,
        Call::Clone => 5,
        Call::Close => 6,
    }
}

/// The measured times of one kind of call, in ticks of the counter.
#[derive(Default)]
struct Timed {
    firsts: AtomicU64,
    of_firsts: AtomicU64,
    /// The times of the samples for which the processor time was not read. The time of a long call counts as 0 here.
    short: Sum,
    /// The number of long calls among the samples in `short`.
    longs: AtomicU64,
    /// The times of the long calls among the samples for which the processor time was read.
    long: Sum,
    /// The number of calls that were not long among the samples for which the processor time was read.
    others: AtomicU64,
    /// Whether any of the measured calls was long (took at least [`LONG`]).
    has_long: AtomicBool,
}

#[derive(Default)]
struct Sum {
    number: AtomicU64,
    sum: AtomicU64,
    /// The sum of the squares, as the bits of an `f64`.
    squares: AtomicU64,
}

impl Sum {
    fn add(&self, ticks: u64) {
        if ticks > 0 {
            self.sum.fetch_add(ticks, Ordering::Relaxed);
            let more = |bits| Some((f64::from_bits(bits) + (ticks as f64).powi(2)).to_bits());
            let _ = self.squares.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        }
        // A reader that sees the increased number of values also sees sums that include at least as many values.
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
    /// Returns whether to read the processor time for the next sample. `calls` is the number of calls so far. For the
    /// first calls, another rule applies, because they are often long.
    fn reads(&self, calls: u64) -> bool {
        let number = |of: &AtomicU64| of.load(Ordering::Relaxed);
        let [without, longs] = [&self.short.number, &self.longs].map(number);
        let [with, with_long] = [&self.others, &self.long.number].map(number);
        match calls < FIRSTS {
            true => self.has_long.load(Ordering::Relaxed) || calls < 2,
            // At most every other sample reads the processor time. So after a long call, the samples with and without
            // the processor time alternate, and both are drawn from the same calls.
            false => (with + with_long + without) % 2 == 1 && (with < without / 32 + 8 * (longs + with_long)),
        }
    }

    /// Discards all samples, except the times of long calls for which the processor time was read.
    fn clear(&self) {
        let Sum { number, sum, squares } = &self.short;
        let all = [number, sum, squares, &self.firsts, &self.of_firsts, &self.others, &self.longs];
        all.iter().for_each(|it| it.store(0, Ordering::Relaxed));
    }

    /// Adds a sample. `reads` means that the call's processor time was read, and `is_long` that the call was long.
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
            if is_long {
                self.longs.fetch_add(1, Ordering::Relaxed);
            }
            self.short.add(if is_long { 0 } else { ticks });
        }
    }
}

/// The measured times of the calls of one callsite.
#[derive(Default)]
struct Site([Timed; ADDRESS]);

/// The clock of the meter: the processor's counter or, if there is no such counter, the nanoseconds since a start time.
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

/// The readings of several clocks when a meter was made.
struct StartTimes {
    instant: Instant,
    ticks: u64,
    /// The processor time of the process when the meter was made.
    processor: Option<u64>,
    threads: Option<Times>,
}

/// The state of a meter. It is never freed, so that callsites, threads and handles can refer to it.
pub(super) struct State {
    /// A description of the metered calls, for users.
    subject: &'static str,
    ticks: Ticks,
    began: StartTimes,
    one_in: AtomicU32,
    /// The lines of counters. Each lane (the counters of one thread) has a line for each callsite, in the order of the
    /// callsites' numbers. After the lanes, there are the lines that all threads without a lane share.
    lines: &'static [Line; LANE * (LANES + 1)],
    /// The samples of the callsites, by the callsites' numbers. The last entry is for unknown callsites.
    sites: Box<[OnceRef<Site>]>,
    /// Whether a callsite was registered with this meter, by the callsite's number.
    registered: Box<[AtomicBool]>,
    /// The duration [`LONG`] in ticks.
    long: AtomicU64,
    /// The number of ticks between the two clock readings of a timed call that does nothing.
    empty: AtomicU64,
    /// The number of ticks that metering adds to a timed call.
    timing: AtomicU64,
    /// The time that metering adds to a call that is not timed, in picoseconds.
    untimed: AtomicU64,
}

/// Makes the [`Bill`] of a metered subscriber. All functions may be called at any time and on any thread.
///
/// A `Meter` is a handle: all copies of it belong to the same subscriber.
#[derive(Clone, Copy)]
pub struct Meter(pub(super) &'static State);

impl std::fmt::Debug for Meter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Meter").field("subject", &self.0.subject).finish_non_exhaustive()
    }
}

impl Meter {
    /// Makes a meter, and measures for about a millisecond what metering costs.
    pub(super) fn new(subject: &'static str) -> Self {
        let ticks = Ticks(if timer::has_counter() { None } else { Some(Instant::now()) });
        let state: &'static State = Box::leak(Box::new(State {
            subject,
            ticks,
            began: StartTimes {
                instant: Instant::now(),
                ticks: ticks.now(),
                processor: timer::process_time(),
                threads: Times::now(),
            },
            one_in: AtomicU32::new(ONE_IN),
            lines: zeroed_lines(),
            sites: (0..=UNKNOWN).map(|_| OnceRef::new()).collect(),
            registered: (0..UNKNOWN).map(|_| AtomicBool::new(false)).collect(),
            long: AtomicU64::new(u64::MAX),
            empty: AtomicU64::new(0),
            timing: AtomicU64::new(0),
            untimed: AtomicU64::new(0),
        }));
        state.calibrate();
        Self(state)
    }

    /// Returns the bill: the cost of each callsite so far. Allocates memory.
    pub fn bill(&self) -> Bill {
        Bill::read(&self.0.raw()).unwrap_or_default()
    }

    /// Registers a callsite, and allocates the memory for its measurements. If a callsite is not registered, its first
    /// call allocates this memory.
    #[cold]
    #[inline(never)]
    pub(crate) fn register(self, metadata: &'static Metadata<'static>, interest: &Interest) {
        let number = self.0.register(metadata);
        if !interest.is_never() {
            self.0.sites[number].get_or_make(Site::default);
        }
    }
}

/// Calls `body`, which belongs to the callsite that `metadata` returns. If there is a meter and a callsite, the meter
/// counts the call.
///
/// The code contains only one call of `body`, so that the compiler inlines `body` as it would without a meter.
#[inline(always)]
pub(crate) fn billed<R>(
    meter: Option<Meter>,
    metadata: impl FnOnce() -> Option<&'static Metadata<'static>>,
    call: Call,
    body: impl FnOnce() -> R,
) -> R {
    #[cold]
    #[inline(never)]
    fn begin(meter: Meter, metadata: Option<&'static Metadata<'static>>, call: Call) -> Option<Timing> {
        let metadata = metadata?;
        if meter.0.passes(metadata, call).is_some() { None } else { meter.0.time(metadata, call) }
    }
    #[cold]
    #[inline(never)]
    fn end(timing: Option<Timing>) {
        drop(timing);
    }
    let timing = ManuallyDrop::new(meter.and_then(|meter| begin(meter, metadata(), call)));
    let result = body();
    if timing.is_some() {
        end(ManuallyDrop::into_inner(timing));
    }
    result
}

impl State {
    /// Adds a callsite to the bill. Returns the number of the callsite.
    #[cold]
    #[inline(never)]
    fn register(&self, metadata: &'static Metadata<'static>) -> usize {
        let number = Callsite::of(metadata).map(|callsite| callsite.number() as usize);
        let Some(number) = number.filter(|number| *number < UNKNOWN) else { return UNKNOWN };
        self.registered[number].store(true, Ordering::Relaxed);
        number
    }

    /// Returns the line of counters of a callsite for a lane, or `None` if there is no such lane.
    #[inline(always)]
    fn line(&self, number: usize, lane: usize) -> Option<&'static Line> {
        self.lines.get(lane.wrapping_add(number))
    }

    pub(super) fn set_one_in(&self, one_in: u32) {
        self.one_in.store(one_in.clamp(1, ONE_IN_MAX), Ordering::Relaxed);
    }

    /// Counts a call that is not timed, and returns the number of the callsite. Returns `None`, and counts nothing, if
    /// the call may have to be timed.
    #[inline(always)]
    pub(super) fn passes(&self, metadata: &'static Metadata<'static>, call: Call) -> Option<usize> {
        let number = callsites::first_place(metadata);
        let address = std::ptr::from_ref(metadata).addr() as u64;
        let line = self.line(number, thread::with(|thread| thread.lane.get()))?;
        let passes =
            line.0[ADDRESS].load(Ordering::Relaxed) == address && counter::passes(&line.0[place_of(call)]);
        passes.then_some(number)
    }

    /// Does the same as [`passes`](Self::passes), for the callsite with this number. Returns whether the call was
    /// counted.
    #[inline(always)]
    pub(super) fn number_passes(&self, number: usize, call: Call) -> bool {
        let line = thread::with(|thread| self.line(number, thread.lane.get()));
        line.is_some_and(|line| counter::passes(&line.0[place_of(call)]))
    }

    /// Counts a call that begins now, and times it if it is in the sample. The call ends when the returned value is
    /// dropped.
    #[cold]
    #[inline(never)]
    pub(super) fn time(&'static self, metadata: &'static Metadata<'static>, call: Call) -> Option<Timing> {
        let mut number = number_of(metadata);
        if !self.registered.get(number).is_some_and(|it| it.load(Ordering::Relaxed)) {
            number = self.register(metadata);
        }
        if number == callsites::first_place(metadata)
            && let Some(line) = self.line(number, thread::with(|thread| thread.lane.get()))
        {
            line.0[ADDRESS].store(std::ptr::from_ref(metadata).addr() as u64, Ordering::Relaxed);
        }
        self.time_number(number, call)
    }

    /// Does the same as [`time`](Self::time), for the callsite with this number.
    #[inline(always)]
    pub(super) fn time_number(&'static self, number: usize, call: Call) -> Option<Timing> {
        if self.number_passes(number, call) {
            return None;
        }
        thread::with(|thread| self.time_slowly(thread, number, call))
    }

    #[cold]
    #[inline(never)]
    fn time_slowly(&'static self, thread: &Thread, number: usize, call: Call) -> Option<Timing> {
        thread.prepare(|| self.ticks.now());
        let is_nested = thread.is_timing();
        let (place, one_in) = (place_of(call), self.one_in.load(Ordering::Relaxed));
        let left = |calls| if is_nested || calls + 1 < FIRSTS { 0 } else { thread.random_left(one_in) };
        let counter = &self.line(number, thread.first_line())?.0[place];
        let calls = counter::count(counter, left).or(is_nested.then_some(0))?;
        let timed = (!is_nested).then(|| &self.sites[number].get_or_make(Site::default).0[place]);
        let outer = (thread.nested.replace(0), thread.reads.get());
        let reads = timed.map_or(outer.1, |timed| timed.reads(calls));
        thread.lane.set(NONE);
        thread.reads.set(reads);
        let processor = if reads { timer::thread_time() } else { None };
        let begin = self.ticks.now();
        Some(Timing { state: self, timed, is_first: calls < FIRSTS, outer, processor, begin })
    }

    /// Returns the duration of a tick in nanoseconds.
    fn ns_per_tick(&self) -> f64 {
        let ticks = self.ticks.now().wrapping_sub(self.began.ticks).max(1);
        self.began.instant.elapsed().as_nanos() as f64 / ticks as f64
    }

    /// Measures what metering costs, and the duration of [`LONG`] in ticks of the counter.
    #[cold]
    #[inline(never)]
    fn calibrate(&'static self) {
        // The measured calls are calls of the unknown callsite. Its samples and its counter are cleared afterwards.
        drop(self.time_number(UNKNOWN, Call::Enter));
        let Some(site) = self.sites[UNKNOWN].get() else { return };
        let timed = &site.0[place_of(Call::Enter)];
        let [mut untimed, mut timing, mut empty] = [u64::MAX; 3];
        // The shortest time of several groups of calls counts, because that group was not interrupted.
        for _ in 0..if cfg!(miri) { 1 } else { 20 } {
            untimed = untimed.min(self.try_calls(TRIES, ONE_IN_MAX));
            timing = timing.min(self.try_calls(TRIES / 10, 1));
            timed.clear();
            // As in a program, most calls before a timed call are not timed.
            self.try_calls(TRIES, 100);
            let sample = timed.short.sample();
            empty = empty.min(sample.sum as u64 / sample.number.max(1));
        }
        let ns = self.ns_per_tick();
        self.empty.store(empty, Ordering::Relaxed);
        self.timing.store(timing / u64::from(TRIES / 10), Ordering::Relaxed);
        self.untimed.store((untimed as f64 * ns * 1000.0 / f64::from(TRIES)) as u64, Ordering::Relaxed);
        if timer::thread_time().is_some() {
            self.long.store((LONG.as_nanos() as f64 / ns) as u64, Ordering::Relaxed);
        }
        timed.clear();
        self.try_counter().store(0, Ordering::Relaxed);
        // So few calls are timed that timing adds at most half a nanosecond to the mean duration of a call.
        let enough = (2.0 * (timing / u64::from(TRIES / 10)) as f64 * ns) as u32;
        self.set_one_in(enough.clamp(ONE_IN, 64 * ONE_IN));
    }

    /// Makes `number` calls of the unknown callsite, and times one of `one_in` of them. Returns how long all calls
    /// took, in ticks.
    #[inline(never)]
    fn try_calls(&'static self, number: u32, one_in: u32) -> u64 {
        self.set_one_in(one_in);
        self.try_counter().store(counter::word(FIRSTS, 2 * u64::from(one_in - 1)), Ordering::Relaxed);
        let start = self.ticks.now();
        for _ in 0..number {
            if !self.number_passes(UNKNOWN, Call::Enter) {
                drop(self.time_number(UNKNOWN, Call::Enter));
            }
        }
        self.ticks.now().wrapping_sub(start)
    }

    /// Returns the counter of the calls that [`try_calls`](Self::try_calls) makes.
    fn try_counter(&self) -> &'static AtomicU64 {
        let line = thread::with(Thread::first_line) + UNKNOWN;
        &self.lines[line].0[place_of(Call::Enter)]
    }

    /// Returns the measurements in the form in which [`Bill::read`] reads them.
    pub(super) fn raw(&self) -> Vec<u8> {
        let StartTimes { instant, processor, threads, .. } = &self.began;
        let processor = processor.zip(timer::process_time()).map(|(then, now)| now.saturating_sub(then));
        let callers = threads.as_ref().and_then(thread::processor_time);
        let ns = self.ns_per_tick();
        let long = self.long.load(Ordering::Relaxed) as f64;
        let mut writer = Writer::new(&Process {
            subject: self.subject,
            ns_per_tick: ns,
            processor_ns: processor,
            others_ns: processor.zip(callers).map(|(all, callers)| all.saturating_sub(callers)),
            elapsed_ns: instant.elapsed().as_nanos() as u64,
            untimed_ns: self.untimed.load(Ordering::Relaxed) as f64 / 1000.0,
            timing_ns: self.timing.load(Ordering::Relaxed) as f64 * ns,
        });
        for (number, site) in self.sites.iter().enumerate() {
            let is_registered = |at: &AtomicBool| at.load(Ordering::Relaxed);
            let metadata = Callsite::from_number(number as u32).metadata();
            let metadata = metadata.filter(|_| self.registered.get(number).is_some_and(is_registered));
            if metadata.is_some() || number == UNKNOWN {
                let of_callsite = metadata.map(described).unwrap_or_default();
                let absent = if of_callsite.kind == Kind::Event { Call::New } else { Call::Event };
                writer.callsite(&of_callsite, |call| match site.get() {
                    Some(site) if call != absent => self.sampled(number, site, place_of(call), long),
                    _ => Sampled::default(),
                });
            }
        }
        writer.finish()
    }

    fn sampled(&self, number: usize, site: &Site, place: usize, long_at_least: f64) -> Sampled {
        let timed = &site.0[place];
        let firsts = timed.firsts.load(Ordering::Acquire);
        let (short, long) = (timed.short.sample(), timed.long.sample());
        let lines = (0..=LANES).filter_map(|lane| self.line(number, lane * LANE));
        Sampled {
            timed: firsts + short.number + long.number + timed.others.load(Ordering::Relaxed),
            calls: lines.map(|line| counter::calls(line.0[place].load(Ordering::Relaxed))).sum(),
            firsts,
            of_firsts: timed.of_firsts.load(Ordering::Relaxed) as f64,
            longs: timed.longs.load(Ordering::Relaxed),
            short,
            long,
            long_at_least,
        }
    }
}

/// Returns the number of the callsite with this metadata, which need not be `'static`.
#[inline(always)]
pub(super) fn number_of(metadata: &Metadata<'_>) -> usize {
    Callsite::find(metadata).map_or(UNKNOWN, |callsite| UNKNOWN.min(callsite.number() as usize))
}

/// Returns the description of a callsite for the bill.
fn described(metadata: &'static Metadata<'static>) -> atrace_bill::Callsite<'static> {
    let is_span = metadata.is_span();
    let fields = metadata.fields().iter().filter(|field| is_span || field.name() != "message");
    atrace_bill::Callsite {
        kind: if is_span { Kind::Span } else { Kind::Event },
        level: level_of(metadata),
        fields: fields.count() as u32,
        name: metadata.name(),
        target: metadata.target(),
        file: metadata.file().unwrap_or_default(),
        line: metadata.line().unwrap_or_default(),
    }
}

/// A timed call that has begun. The call ends when the `Timing` is dropped.
#[must_use]
pub(super) struct Timing {
    state: &'static State,
    /// The measured times to which this call is added. `None` for a nested call, whose time is only subtracted from the
    /// time of the outer call.
    timed: Option<&'static Timed>,
    is_first: bool,
    /// The values of the thread's fields `nested` and `reads` before this call.
    outer: (u64, bool),
    /// The thread's processor time before the call, if it was read.
    processor: Option<u64>,
    begin: u64,
}

impl Drop for Timing {
    #[inline(always)]
    fn drop(&mut self) {
        self.end(self.state.ticks.now());
    }
}

impl Timing {
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
            let Some(timed) = self.timed else {
                // The time of the outer call also contains the metering of this call.
                let metering = state.timing.load(Ordering::Relaxed);
                return thread.nested.set(self.outer.0 + took + metering);
            };
            timed.add(self.is_first, self.processor.is_some(), elapsed > long, own, long);
            thread.end_timing();
        });
    }
}
