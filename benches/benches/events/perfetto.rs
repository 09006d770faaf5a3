//! Measures the cost of an event with the Perfetto backend, and for comparison with the marker backend, while a
//! Perfetto consumer (the `Reader`) records. Each number of sessions is measured in a process of its own, because a
//! process that has connected as a producer stays connected.
//!
//! Both backends are on at the same time. The properties switch tracing on for one tag, whose events go to the marker.
//! The session switches tracing on for all tags, and the bench writes events of another tag, which go to the memory
//! that is shared with the service. Before each measurement, the bench waits until the memory has room. At the end,
//! every event must have arrived or must be counted as lost, and few may be lost; otherwise the bench fails.

use std::hint::black_box;
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use atrace::{AtraceTag, atrace_begin};
use atrace_benches::catalogue::promises::{self, GROWTH, SYSTEM_CALLS};
use atrace_benches::catalogue::{EVENTS, Event, Id, LITERALS, State, Who};
use atrace_benches::harness::Session;
use atrace_benches::harness::args::Args;
use atrace_benches::harness::child::{self, Helper};
use atrace_benches::harness::reader::{Reader, Reading};
use atrace_benches::instruments::alloc::per_op;
use atrace_benches::instruments::clock::process_cpu;
use atrace_benches::instruments::cpu::{Pin, of_place};
use atrace_benches::measure::paired::{Case, Config, Paired};
use atrace_benches::measure::threads::{Make, scale_beside};
use atrace_benches::row::{Row, Sink, Versus};
use atrace_benches::stats::{self, Interval};
use atrace_benches::subjects::events::{Run, in_rust, text};
use atrace_benches::subjects::shared::Shared;
use atrace_cli::tracefs::Instance;
use atrace_perfetto::clock;
use rustix::thread::sched_getcpu;

use super::{Switch, marker, raw_write};

/// The role of the process that measures with one Perfetto session.
pub(crate) const MODE: &str = "perfetto";
/// The role of a process that measures with several Perfetto sessions.
pub(crate) const SESSIONS: &str = "perfetto_sessions";

/// The role of a process that reads memory into which the measuring process copies bytes.
pub(crate) const READS: &str = "perfetto_reads";
/// The environment variable with the path of the memory that a process in the role [`READS`] reads.
const READ: &str = "ATRACE_BENCH_MEMORY";

/// The tag of events for the marker backend, which the properties switch on.
const MARKED: AtraceTag = AtraceTag::App;
/// The tag of events for the Perfetto backend, which only the session switches on.
const SHARED: AtraceTag = AtraceTag::Hal;

/// The size in bytes of the memory that is shared with the service.
const MEMORY: u64 = 1 << 20;
/// The maximum number of bytes that the events of a measurement take in the shared memory. The events of the warm-up
/// before a measurement may take the same number of bytes.
const PART: u64 = 128 << 10;
/// The size of the largest chunk in bytes. (The service reads a chunk that is not full only once a second, so the
/// events in it arrive late.)
const CHUNK: u64 = 8 << 10;

/// Measures all rows (results) of this module, in child processes, one for each number of sessions.
pub(crate) fn rows() -> io::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (mode, sessions) in [(MODE, 1), (SESSIONS, 2), (SESSIONS, 4), (SESSIONS, 8)] {
        match Reader::with_sessions(sessions) {
            Ok(reader) => rows.extend(child::rows(mode, &reader.env())?),
            Err(e) => {
                println!("no rows of Perfetto's backend: {e}");
                break;
            }
        }
    }
    Ok(rows)
}

fn config(args: &Args) -> Config {
    let (min_rounds, max_rounds, budget) = if args.quick { (30, 120, 3) } else { (100, 600, 15) };
    match Config::of(args) {
        test if test.once => test,
        config => Config { min_rounds, max_rounds, budget: Duration::from_secs(budget), ..config },
    }
}

/// Returns the first value for a test, the second for a quick run, and the third for a full run.
fn by_length<T>(args: &Args, [test, quick, full]: [T; 3]) -> T {
    match args {
        Args { test: true, .. } => test,
        Args { quick: true, .. } => quick,
        _ => full,
    }
}

/// An account of the free space in the shared memory, by which the bench avoids that events are lost.
struct Room {
    reading: Reading,
    /// The number of events that this process has written.
    written: AtomicU64,
    /// An upper bound of the number of bytes that were written to the shared memory since it was last known to be free.
    used: AtomicU64,
    /// An upper bound of the number of events in a chunk that is not full, which arrive late.
    open: AtomicU64,
    /// The number of lost events that affect no result, because the measurements in which they were lost were
    /// discarded.
    excused: AtomicU64,
}

impl Room {
    fn new() -> io::Result<Self> {
        let [written, used, open, excused] = [0; 4].map(AtomicU64::new);
        Ok(Self { reading: Reading::begin()?, written, used, open, excused })
    }

    /// Waits until the shared memory has room for the events of a measurement and its warm-up.
    fn make(&self) {
        if self.used.load(Relaxed) + 2 * PART > MEMORY * 3 / 4 {
            self.empty();
        }
    }

    fn empty(&self) {
        let came = self.reading.wait_for([self.written.load(Relaxed); 2], self.open.load(Relaxed));
        came.expect("the reader takes what is written");
        self.used.store(0, Relaxed);
    }

    fn wrote(&self, events: u64, size: Size) {
        let sessions = u64::from(self.reading.sessions());
        self.written.fetch_add(events, Relaxed);
        self.used.fetch_add(events * sessions * size.most, Relaxed);
        self.open.store(CHUNK / size.least + 1, Relaxed);
    }

    /// Returns the maximum number of operations in a measurement, for an operation that writes `messages` events.
    fn most(&self, messages: u64, size: Size) -> u64 {
        PART / (messages * size.most * u64::from(self.reading.sessions()))
    }

    /// Adds a case that writes events to the shared memory.
    fn add<'a>(&'a self, paired: &mut Paired<'a>, id: String, event: &'static Event, mut run: Run) {
        let size = Size::of(event);
        let most = self.most(event.messages, size);
        let run = move |n| {
            run(n);
            self.wrote(n * event.messages, size);
        };
        let before = move || {
            if event.name == "end" {
                self.begin(2 * most);
            }
            self.make();
        };
        paired.add(Case::new(id, run).before(before).at_most(most));
    }

    /// Begins `slices` slices in the trace, so that their ends can be measured: an end without a begin is not written.
    fn begin(&self, slices: u64) {
        self.empty();
        in_rust::<{ SHARED.bits() }>(&LITERALS[0])(slices);
        self.wrote(slices, Size::of(&LITERALS[0]));
        self.empty();
    }

    /// Returns an error if an event has neither arrived nor been counted as lost, or if more than one in a thousand
    /// events was lost.
    fn check(&self) -> io::Result<()> {
        let written = self.written.load(Relaxed);
        self.reading.wait_for([written; 2], 0)?;
        let (come, lost) = self.reading.come_and_lost()?;
        let excused = self.excused.load(Relaxed);
        let status = atrace::perfetto::status();
        println!("{written} events were written, {come} arrived, {lost} were lost; {status}");
        let too_many = format!("{lost} of {written} events were lost, so the measurement is not valid");
        if (lost - excused) * 1000 > come { Err(io::Error::other(too_many)) } else { Ok(()) }
    }
}

/// The minimum and the maximum number of bytes that an event takes in the shared memory.
#[derive(Clone, Copy)]
struct Size {
    least: u64,
    most: u64,
}

impl Size {
    fn of(event: &Event) -> Self {
        let name = if event.name == "begin/1000" { 1000 } else { 0 };
        // The packet of an event on a named track may be preceded by a description of the track.
        let has_track = ["int", "async", "track"].iter().any(|track| event.name.starts_with(track));
        Self { least: 6 + name, most: 60 + name + if has_track { 100 } else { 0 } }
    }
}

fn begin() -> &'static Event {
    &EVENTS[0]
}

pub(crate) fn id(event: &'static Event) -> Id {
    Id::event(Who::Perfetto, State::On, event)
}

/// Adds two cases that are lower limits for the cost of an event: a reading of the clock, and a `write(2)` to the
/// marker. Returns their ids.
fn add_limits(paired: &mut Paired<'_>, session: &Session) -> io::Result<[String; 2]> {
    let (stamp, raw) = (Id::limit("timestamp").to_string(), Id::raw_write(begin().name).to_string());
    paired.case(&stamp, |n| (0..n).for_each(|_| _ = black_box(clock::now())));
    let (file, message) = (marker(session)?, format!("B|{}|{}", std::process::id(), text(10)).into_bytes());
    paired.case(&raw, move |n| raw_write(&file, &message, n));
    Ok([stamp, raw])
}

/// Measures all rows (results) with one Perfetto session, in this process, which connects to the service as a producer.
pub(crate) fn measure(session: &Session, switch: &Switch) -> io::Result<Vec<Row>> {
    let room = Room::new()?;
    let _on = switch.on()?;
    both_are_on(session, &room)?;
    let mut rows = events(session, &room)?;
    room.check()?;
    rows.extend(threads(session, &room));
    room.check()?;
    rows.extend(whole_machine(session, &room)?);
    count_system_calls(session, &room, &mut rows);
    room.check()?;
    Ok(rows)
}

/// Checks that both backends are on. Returns an error if the events of the tag `MARKED` do not go to the marker, or if
/// the events of the tag `SHARED` do not go to the consumer.
fn both_are_on(session: &Session, room: &Room) -> io::Result<()> {
    const EVENTS: u64 = 3;
    let write = |tag| (0..EVENTS).for_each(|_| atrace_begin(tag, "which way"));
    if session.wrote(|| write(MARKED))? == Some(0) {
        return Err(io::Error::other("events of the marker's tag do not arrive at the marker"));
    }
    if session.wrote(|| write(SHARED))?.is_some_and(|got| got > 0) {
        return Err(io::Error::other("events of the session's tag arrive at the marker"));
    }
    room.wrote(EVENTS, Size::of(begin()));
    room.reading.wait_for([room.written.load(Relaxed); 2], 0)
}

/// Measures every kind of event with the Perfetto backend, in the same rounds as some events with the marker backend
/// and as the lower limits of the cost.
fn events(session: &Session, room: &Room) -> io::Result<Vec<Row>> {
    let text_id = |event: &'static Event| id(event).to_string();
    let mut paired = Paired::new(config(&session.args));
    let [stamp, raw] = add_limits(&mut paired, session)?;
    let mut allocs = Vec::new();
    for event in EVENTS.iter().chain(LITERALS.iter()) {
        allocs.push((text_id(event), allocations(room, event)));
        room.add(&mut paired, text_id(event), event, in_rust::<{ SHARED.bits() }>(event));
        paired.compare_above(text_id(event), &stamp);
        if event != begin() {
            paired.compare(text_id(event), text_id(begin()));
        }
        let marked = Id::event(Who::Rust, State::On, event);
        if ["begin/10", "begin/1000", "end", "int", "async_begin"].contains(&event.name) {
            paired.case(marked.to_string(), in_rust::<{ MARKED.bits() }>(event));
            paired.compare(text_id(event), marked.to_string());
        }
    }
    for event in [begin(), &LITERALS[0]] {
        paired.compare(text_id(event), &raw);
    }
    let copy = Id::limit("copy_of_990").to_string();
    let (mut shared, bytes) = (Shared::new(usize::try_from(MEMORY).expect("it is a mebibyte"))?, text(990));
    // Writing to memory is more expensive if another processor has read the memory. The service reads the memory of the
    // Perfetto backend, so a process reads the copies, too.
    let mut beside = Helper::start(child::in_mode(READS)?.env(READ, shared.path()))?;
    let copies = move |n| (0..n).for_each(|_| shared.copy(black_box(bytes.as_bytes())));
    let read = move || {
        beside.tell(&sched_getcpu().to_ne_bytes());
        beside.hear("").ok().flatten().expect("the process that reads the copies was started");
    };
    paired.add(Case::new(&copy, copies).before(read).at_most(PART / 990));
    let long = Event::named("begin/1000").expect("it is of the catalogue");
    paired.compare(text_id(long), &copy);
    #[cfg(feature = "peer-perfetto-recorder")]
    super::recorder::add(&mut paired, room.most(2, Size::of(begin())));
    #[cfg(feature = "peer-perfetto-sdk")]
    {
        super::sdk::connect(MEMORY)?;
        let wrote = move |events| room.wrote(events, Size::of(begin()));
        super::sdk::add(&mut paired, room.most(2, Size::of(begin())), wrote, move || room.make());
    }
    paired.promise(&promises::of("perfetto"));
    paired.select(&session.args);
    let measured = paired.run();
    println!("\non, perfetto: {measured}");
    let is_row = |id: &str| {
        let who = Id::of(id).who;
        who == Who::Perfetto || who.peer().is_some() || id == stamp || id == copy
    };
    let ids: Vec<_> = measured.ids().filter(|id| is_row(id)).map(str::to_owned).collect();
    let row = |id: String| {
        let counted = allocs.iter().find(|(of, _)| *of == id).and_then(|(_, allocs)| *allocs);
        let is_kept = Id::of(&id).who.peer() == Some("perfetto-recorder");
        let sink = if is_kept { Sink::None } else { Sink::Perfetto };
        Some(measured.row(&id, sink)?.with_allocs(counted))
    };
    let mut rows: Vec<Row> = ids.into_iter().filter_map(row).collect();
    let (long, short) = (text_id(long), text_id(begin()));
    if let (Some(ns), Some(times)) =
        (measured.difference(&long, &short), measured.excess(&long, &short, &copy))
    {
        let mut more = Row::new("perfetto/on_990_more", ns, Sink::Perfetto);
        more.vs.insert(copy, Versus::from(times));
        rows.push(more);
    }
    Ok(rows)
}

/// Runs as the process that reads the copied bytes. For each request on stdin, which has the number of the measuring
/// process's CPU, it reads the whole memory on another CPU. Returns when stdin is closed.
pub(crate) fn read_beside() -> io::Result<()> {
    let path = std::env::var_os(READ).ok_or_else(|| io::Error::other("there is nothing to read"))?;
    let shared = Shared::open(Path::new(&path))?;
    let mut theirs = [0; size_of::<usize>()];
    while io::stdin().read_exact(&mut theirs).is_ok() {
        let theirs = usize::from_ne_bytes(theirs);
        let other = (0..).map(of_place).take(2).filter_map(Result::ok).find(|cpu| *cpu != theirs);
        let _pin = other.map(Pin::to).transpose()?;
        black_box(shared.sum());
        println!();
    }
    Ok(())
}

/// Counts the allocations of an operation. The result is the lowest of three counts, because the producer's socket
/// thread (which talks to the service) may allocate at the same time.
fn allocations(room: &Room, event: &Event) -> Option<atrace_benches::instruments::alloc::PerOp> {
    const COUNTED: u64 = 500;
    let size = Size::of(event);
    let n = COUNTED.min(room.most(event.messages, size));
    let count = |_| {
        room.begin(COUNTED + 1);
        let counted = per_op(n, in_rust::<{ SHARED.bits() }>(event));
        room.wrote((n + 1) * event.messages, size);
        counted
    };
    (0..3).filter_map(count).min_by_key(|counted| counted.total.allocs)
}

/// Measures the CPU time of an event if several threads write events. For comparison, measures threads that read the
/// clock and fill memory of their own.
fn threads(session: &Session, room: &Room) -> Vec<Row> {
    let (own, size) = (Id::limit("own_memory").to_string(), Size::of(begin()));
    let id = id(begin()).to_string();
    if !session.args.selects(&id) {
        return Vec::new();
    }
    let config = config(&session.args);
    let numbers: &[usize] = if config.once { &[1, 2] } else { &[1, 2, 8] };
    // Measurements are short, so that the memory has room for the events of all threads.
    let config =
        Config { slice: Duration::from_micros(12), min_rounds: config.min_rounds.max(2) * 4, ..config };
    let name = text(10);
    let write: Make<'_> = &|_| {
        let name = name.clone();
        Box::new(move |n| {
            (0..n).for_each(|_| atrace_begin(SHARED, &name));
            room.wrote(n, size);
        })
    };
    let fill: Make<'_> = &|_| {
        let (name, mut memory, mut at) = (name.clone(), vec![0; 128 << 10], 0);
        Box::new(move |n| {
            for _ in 0..n {
                let place: &mut [u8] = &mut memory[at..at + 32];
                place[..8].copy_from_slice(&clock::now().to_ne_bytes());
                place[8..18].copy_from_slice(black_box(name.as_bytes()));
                black_box(&place);
                at = (at + 32) % (128 << 10);
            }
        })
    };
    let [written, filled] = scale_beside(numbers, &config, || room.empty(), [write, fill]);
    let mut rows = written.rows(&id, Sink::Perfetto);
    // For each number of threads above 1, compare the growth of CPU time of the threads that write events with that of
    // the threads that fill memory.
    for (row, &n) in rows.iter_mut().zip(numbers).filter(|(_, n)| **n > 1) {
        let growth = written.growth(&filled, n, 1);
        row.vs.extend(growth.map(|growth| (format!("limit/{GROWTH}/{n}_threads"), Versus::from(growth))));
    }
    rows.extend(filled.rows(&own, Sink::None));
    rows
}

/// Measures the CPU time of an event in all threads and processes that handle the event, at a thousand events per
/// millisecond. With the marker backend, only the calling thread handles it. With the Perfetto backend, the calling
/// thread, the socket thread (which talks to the service), and the service, which writes a file, handle it.
fn whole_machine(session: &Session, room: &Room) -> io::Result<Vec<Row>> {
    const EACH: u64 = 1000;
    const WAKE: u64 = 5000;
    let args = &session.args;
    let ids = [(Who::Perfetto, SHARED), (Who::Rust, MARKED)]
        .map(|(who, tag)| (Id::begin_in(who, "whole_machine"), tag));
    if !args.selects(&ids[0].0.to_string()) {
        return Ok(Vec::new());
    }
    let (rounds, pauses) = by_length(args, [(1, 2), (8, 60), (12, 120)]);
    let name = text(10);
    let mut times = [const { Vec::new() }; 2];
    let mut left_out = 0;
    for _ in 0..rounds {
        let lost = atrace::perfetto::status().lost();
        for ((id, tag), times) in ids.iter().zip(&mut times) {
            let is_shared = id.who == Who::Perfetto;
            let used = || -> io::Result<Duration> {
                let reader = if is_shared { room.reading.taken()?.cpu } else { Duration::ZERO };
                Ok(process_cpu() + reader)
            };
            if is_shared {
                // Wake up the socket thread, which checks for events more often after it has found some. The memory has
                // room for the events that are written for this purpose.
                (0..WAKE).for_each(|_| atrace_begin(*tag, &name));
                room.wrote(WAKE, Size::of(begin()));
            }
            room.empty();
            let before = used()?;
            let start = Instant::now();
            for pause in 1..=pauses {
                (0..EACH).for_each(|_| atrace_begin(*tag, &name));
                let next = start + Duration::from_millis(pause);
                std::thread::sleep(next.saturating_duration_since(Instant::now()));
            }
            if is_shared {
                room.wrote(EACH * pauses, Size::of(begin()));
                room.empty();
            }
            times.push((used()? - before).as_secs_f64() * 1e9 / (EACH * pauses) as f64);
        }
        // A lost event takes less time, so the times of this round are discarded if events were lost.
        let lost = atrace::perfetto::status().lost() - lost;
        if lost > 0 {
            room.excused.fetch_add(lost, Relaxed);
            times.iter_mut().for_each(|times| _ = times.pop());
            left_out += 1;
        }
    }
    if left_out > 0 {
        let why = "because events were lost: other programs used the processors";
        println!("whole machine: {left_out} of {rounds} rounds are left out, {why}");
    }
    let [shared, marked] = times;
    let base = ids[1].0.to_string();
    let row = |(id, _): &(Id, AtraceTag), times: &[f64], sink| {
        Some(Row::new(id.to_string(), Interval::of(times)?, sink).with_rounds(times))
    };
    let mut rows: Vec<_> = row(&ids[0], &shared, Sink::Perfetto).into_iter().collect();
    if let (Some(row), Some(ratio)) = (rows.first_mut(), stats::ratio(&shared, &marked)) {
        row.vs.insert(base, Versus::from(ratio));
    }
    rows.extend(row(&ids[1], &marked, session.sink()));
    Ok(rows)
}

/// Counts the system calls that all threads of this process make while the process writes 100,000 events a second, in
/// ten periods. The kernel's own trace events of system calls are counted.
fn count_system_calls(session: &Session, room: &Room, rows: &mut [Row]) {
    let Some(row) = rows.iter_mut().find(|row| row.id == id(begin()).to_string()) else { return };
    let time = by_length(&session.args, [10, 500, 2000]);
    let before = atrace::perfetto::status().lost();
    let calls = system_calls(room, Duration::from_millis(time));
    let lost = atrace::perfetto::status().lost() - before;
    match calls {
        Ok(_) if lost > 0 => {
            // The count is discarded, because the process makes other system calls when an event is lost. The losses do
            // not affect the results that were measured before.
            room.excused.fetch_add(lost, Relaxed);
            println!(
                "system calls are not counted: {lost} events were lost: other programs used the processors"
            );
        }
        Ok(calls) => {
            let name = SYSTEM_CALLS.0.to_owned();
            row.counts.insert(name.clone(), calls.median);
            row.ranges.insert(name, [calls.low, calls.high]);
        }
        Err(e) => println!("system calls are not counted: {e}"),
    }
}

fn system_calls(room: &Room, time: Duration) -> io::Result<Interval> {
    const EACH: u64 = 100;
    const PERIODS: u32 = 10;
    /// The number of system calls that this function itself makes in each period: the `close` at the end of switching
    /// the kernel's events on, and the `openat` and `write` for switching them off.
    const OWN: u64 = 3;
    let instance = Instance::create("atrace-bench")?;
    let tasks =
        std::fs::read_dir("/proc/self/task")?.filter_map(|task| task.ok()?.file_name().into_string().ok());
    instance.control("set_event_pid", &tasks.collect::<Vec<_>>().join(" "))?;
    let name = text(10);
    let (mut all, mut written) = (Vec::new(), 0);
    for _ in 0..PERIODS {
        room.empty();
        instance.control("events/raw_syscalls/sys_enter/enable", "1")?;
        let (start, mut bursts) = (Instant::now(), 0);
        while bursts == 0 || start.elapsed() < time / PERIODS {
            (0..EACH).for_each(|_| atrace_begin(SHARED, &name));
            bursts += 1;
            // The thread waits actively, because a sleep would be a system call.
            while start.elapsed() < Duration::from_millis(1) * bursts {
                std::hint::spin_loop();
            }
        }
        instance.control("events/raw_syscalls/sys_enter/enable", "0")?;
        let events = EACH * u64::from(bursts);
        room.wrote(events, Size::of(begin()));
        let before = std::mem::replace(&mut written, instance.stats()?.written());
        all.push((written - before).saturating_sub(OWN) as f64 / events as f64);
    }
    Interval::of(&all).ok_or_else(|| io::Error::other("no period"))
}

/// Measures the begin of a slice that several Perfetto sessions record.
pub(crate) fn measure_sessions(session: &Session) -> io::Result<Vec<Row>> {
    let room = Room::new()?;
    let sessions = room.reading.sessions();
    let id = Id::begin_in(Who::Perfetto, &format!("{sessions}_sessions")).to_string();
    let mut paired = Paired::new(Config { budget: Duration::from_secs(3), ..config(&session.args) });
    room.add(&mut paired, id.clone(), begin(), in_rust::<{ SHARED.bits() }>(begin()));
    let [stamp, raw] = add_limits(&mut paired, session)?;
    paired.compare(&id, &raw);
    paired.compare_above(&id, &stamp);
    paired.select(&session.args);
    let measured = paired.run();
    println!("\n{sessions} sessions: {measured}");
    room.check()?;
    Ok(measured.row(&id, Sink::Perfetto).into_iter().collect())
}
