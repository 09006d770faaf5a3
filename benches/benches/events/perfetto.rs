//! What an event costs by Perfetto's way, beside the marker's, while a reader is at work; in processes of their own, as one that
//! is a producer stays one.
//!
//! Tracing is switched on by the properties for one tag, whose events go to the marker, and by the session for all: those of
//! another tag go into the memory that is shared with the service. So both ways are on at once, behind the same gate. Each
//! slice fills a part of that memory, and waits before it until the reader has made room. In the end all that was written has
//! come or was told to be lost, or there are no rows.

use std::hint::black_box;
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use atrace::{AtraceTag, atrace_begin};
use atrace_benches::catalogue::promises::{GROWTH, SYSTEM_CALLS};
use atrace_benches::catalogue::{EVENTS, Event, Id, LITERALS, State, What, Who, promises};
use atrace_benches::harness::args::Args;
use atrace_benches::harness::reader::{Reader, Reading};
use atrace_benches::harness::{Session, child};
use atrace_benches::instruments::alloc::per_op;
use atrace_benches::instruments::clock::process_cpu;
use atrace_benches::instruments::cpu::{Pin, of_place};
use atrace_benches::measure::paired::{Case, Config, Paired};
use atrace_benches::measure::threads::scale_beside;
use atrace_benches::row::{Row, Sink, Versus};
use atrace_benches::stats::{self, Interval};
use atrace_benches::subjects::events::{Run, in_rust, text};
use atrace_benches::subjects::shared::Shared;
use atrace_cli::tracefs::Instance;
use atrace_perfetto::clock;
use rustix::thread::sched_getcpu;

use super::{Switch, marker, raw_write};

/// The process that has all rows with one session.
pub(crate) const MODE: &str = "perfetto";
/// One that has more.
pub(crate) const SESSIONS: &str = "perfetto_sessions";

/// One that reads what another copies.
pub(crate) const READS: &str = "perfetto_reads";
/// The memory that it reads.
const READ: &str = "ATRACE_BENCH_MEMORY";

/// On for the marker.
const MARKED: AtraceTag = AtraceTag::App;
/// On for the session alone.
const SHARED: AtraceTag = AtraceTag::Hal;

/// The memory that is shared with the service.
const MEMORY: u64 = 1 << 20;
/// What a slice and its warm-up fill of it at most, each.
const PART: u64 = 128 << 10;
/// The largest chunk: what of it is not full is with the reader once a second.
const CHUNK: u64 = 8 << 10;

/// Measures in processes of their own.
pub(crate) fn rows() -> io::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (mode, sessions) in [(MODE, 1), (SESSIONS, 2), (SESSIONS, 4), (SESSIONS, 8)] {
        match Reader::with_sessions(sessions) {
            Ok(reader) => rows.extend(child::rows(mode, &reader.env())?),
            Err(e) => {
                println!("no rows of Perfetto's way: {e}");
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

/// What a test takes, what a quick run, or what a full one.
fn by_length<T>(args: &Args, [test, quick, full]: [T; 3]) -> T {
    match args {
        Args { test: true, .. } => test,
        Args { quick: true, .. } => quick,
        _ => full,
    }
}

/// Keeps the books of the shared memory.
struct Room {
    reading: Reading,
    /// Events that were written.
    written: AtomicU64,
    /// Bytes that they took at most, since there was room for all.
    used: AtomicU64,
    /// How many of the last are in a chunk that is not full, at most.
    open: AtomicU64,
    /// Events that were lost in what does not count.
    excused: AtomicU64,
}

impl Room {
    fn new() -> io::Result<Self> {
        let [written, used, open, excused] = [0; 4].map(AtomicU64::new);
        Ok(Self { reading: Reading::begin()?, written, used, open, excused })
    }

    /// Waits for room for a slice.
    fn make(&self) {
        if self.used.load(Relaxed) + 2 * PART > MEMORY * 3 / 4 {
            self.empty();
        }
    }

    fn empty(&self) {
        let came = self.reading.wait_for(self.written.load(Relaxed), self.open.load(Relaxed));
        came.expect("the reader takes what is written");
        self.used.store(0, Relaxed);
    }

    fn wrote(&self, events: u64, size: Size) {
        let sessions = u64::from(self.reading.sessions());
        self.written.fetch_add(events, Relaxed);
        self.used.fetch_add(events * sessions * size.most, Relaxed);
        self.open.store(CHUNK / size.least + 1, Relaxed);
    }

    /// How often an operation runs in a slice.
    fn most(&self, messages: u64, size: Size) -> u64 {
        PART / (messages * size.most * u64::from(self.reading.sessions()))
    }

    /// Adds a case that writes.
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

    /// Begins so many slices: an end that ends nothing is not written.
    fn begin(&self, slices: u64) {
        self.empty();
        in_rust::<{ SHARED.bits() }>(&LITERALS[0])(slices);
        self.wrote(slices, Size::of(&LITERALS[0]));
        self.empty();
    }

    /// Fails unless all events have come or were told to be lost, and hardly one was lost.
    fn check(&self) -> io::Result<()> {
        let written = self.written.load(Relaxed);
        self.reading.wait_for(written, 0)?;
        let (come, lost) = self.reading.come_and_lost()?;
        let excused = self.excused.load(Relaxed);
        println!(
            "{written} events were written, {come} came, {lost} were lost; {}",
            atrace::perfetto::status()
        );
        if (lost - excused) * 1000 > come {
            return Err(io::Error::other(format!(
                "of {written} events {lost} were lost: that is not what is measured"
            )));
        }
        Ok(())
    }
}

/// How many bytes an event takes in the memory, about.
#[derive(Clone, Copy)]
struct Size {
    least: u64,
    most: u64,
}

impl Size {
    fn of(event: &Event) -> Self {
        let name = if event.name == "begin/1000" { 1000 } else { 0 };
        // What is on a track of its own comes with that track's description.
        let has_track = ["int", "async", "track"].iter().any(|track| event.name.starts_with(track));
        Self { least: 6 + name, most: 60 + name + if has_track { 100 } else { 0 } }
    }
}

fn begin() -> &'static Event {
    &EVENTS[0]
}

pub(crate) fn id(event: &Event) -> Id {
    Id {
        who: Who::Perfetto,
        what: What::Event(State::On, Event::named(event.name).expect("it is of the catalogue")),
    }
}

/// All with one session, in this process, which is a producer from then on.
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

/// Fails unless one tag's events go to the marker, and the other's to the reader.
fn both_are_on(session: &Session, room: &Room) -> io::Result<()> {
    const EVENTS: u64 = 3;
    let write = |tag| (0..EVENTS).for_each(|_| atrace_begin(tag, "which way"));
    if session.wrote(|| write(MARKED))? == Some(0) {
        return Err(io::Error::other("what is on for the marker does not go there"));
    }
    if session.wrote(|| write(SHARED))?.is_some_and(|got| got > 0) {
        return Err(io::Error::other("what is on for the session alone goes to the marker"));
    }
    room.wrote(EVENTS, Size::of(begin()));
    room.reading.wait_for(room.written.load(Relaxed), 0)
}

/// Every kind of event, beside the marker's way and the limits.
fn events(session: &Session, room: &Room) -> io::Result<Vec<Row>> {
    let text_id = |event: &Event| id(event).to_string();
    let file = marker(session)?;
    let mut paired = Paired::new(config(session.args()));
    let stamp = Id::limit("timestamp").to_string();
    let mut allocs = Vec::new();
    for event in EVENTS.iter().chain(&LITERALS) {
        allocs.push((text_id(event), allocations(room, event)));
        room.add(&mut paired, text_id(event), event, in_rust::<{ SHARED.bits() }>(event));
        paired.compare_above(text_id(event), &stamp);
        if event != begin() {
            paired.compare(text_id(event), text_id(begin()));
        }
        let marked =
            Id::event(Who::Rust, State::On, Event::named(event.name).expect("it is of the catalogue"));
        if ["begin/10", "begin/1000", "end", "int", "async_begin"].contains(&event.name) {
            paired.case(marked.to_string(), in_rust::<{ MARKED.bits() }>(event));
            paired.compare(text_id(event), marked.to_string());
        }
    }
    paired.case(&stamp, |n| (0..n).for_each(|_| _ = black_box(clock::now())));
    let raw = Id { who: Who::Limit, what: What::RawWrite(begin()) }.to_string();
    let message = format!("B|{}|{}", std::process::id(), text(10)).into_bytes();
    paired.case(&raw, move |n| raw_write(&file, &message, n));
    for event in [begin(), &LITERALS[0]] {
        paired.compare(text_id(event), &raw);
    }
    let copy = Id::limit("copy_of_990").to_string();
    let (mut shared, bytes) = (Shared::new(usize::try_from(MEMORY).expect("it is a mebibyte"))?, text(990));
    // What another processor has read is dearer to write to: that is so by Perfetto's way, too.
    let mut beside = Beside::start(&shared)?;
    let copies = move |n| (0..n).for_each(|_| shared.copy(black_box(bytes.as_bytes())));
    let read = move || beside.read().expect("who reads the copies is there");
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
    paired.select(session.args());
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

/// A process that reads memory when it is told to, on another processor.
struct Beside {
    process: Child,
}

impl Beside {
    fn start(shared: &Shared) -> io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--mode", READS]).env(READ, shared.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        Ok(Self { process: child::adopt(&mut command).spawn()? })
    }

    fn read(&mut self) -> io::Result<()> {
        let (Some(ask), Some(answer)) = (&mut self.process.stdin, &mut self.process.stdout) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        ask.write_all(&sched_getcpu().to_ne_bytes())?;
        answer.read_exact(&mut [0])
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Is that process, until nobody tells it more.
pub(crate) fn read_beside() -> io::Result<()> {
    let path = std::env::var_os(READ).ok_or_else(|| io::Error::other("there is nothing to read"))?;
    let shared = Shared::open(Path::new(&path))?;
    let mut theirs = [0; size_of::<usize>()];
    while io::stdin().read_exact(&mut theirs).is_ok() {
        let theirs = usize::from_ne_bytes(theirs);
        let other = (0..).map(of_place).take(2).filter_map(Result::ok).find(|cpu| *cpu != theirs);
        let _pin = other.map(Pin::to).transpose()?;
        black_box(shared.sum());
        io::stdout().write_all(&[0])?;
        io::stdout().flush()?;
    }
    Ok(())
}

/// What an operation allocates: the least of some tries, as the socket's thread may run beside.
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

/// Threads that write, beside threads that read the clock and fill memory of their own.
fn threads(session: &Session, room: &Room) -> Vec<Row> {
    let (own, size) = (Id::limit("own_memory").to_string(), Size::of(begin()));
    let id = id(begin()).to_string();
    if !session.args().selects(&id) {
        return Vec::new();
    }
    let config = config(session.args());
    let numbers: &[usize] = if config.once { &[1, 2] } else { &[1, 2, 8] };
    // All threads together have room.
    let config =
        Config { slice: Duration::from_micros(12), min_rounds: config.min_rounds.max(2) * 4, ..config };
    let name = text(10);
    let [written, filled] = scale_beside(
        numbers,
        &config,
        || room.empty(),
        [
            &|_| {
                let name = name.clone();
                Box::new(move |n| {
                    (0..n).for_each(|_| atrace_begin(SHARED, &name));
                    room.wrote(n, size);
                })
            },
            &|_| {
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
            },
        ],
    );
    let mut rows = written.rows(&id, Sink::Perfetto);
    for row in &mut rows {
        for &n in numbers {
            if let Some(growth) =
                written.growth(&filled, n, 1).filter(|_| n > 1 && row.id.ends_with(&format!("/{n}_threads")))
            {
                row.vs.insert(format!("limit/{GROWTH}/{n}_threads"), Versus::from(growth));
            }
        }
    }
    rows.extend(filled.rows(&own, Sink::None));
    rows
}

/// The processors' time of an event by all that have to do with it, at a thousand events each millisecond: by the marker's way
/// the caller; by Perfetto's the caller, the socket's thread, and the service that writes a file.
fn whole_machine(session: &Session, room: &Room) -> io::Result<Vec<Row>> {
    const EACH: u64 = 1000;
    const WAKE: u64 = 5000;
    let args = session.args();
    let ids = [(Who::Perfetto, SHARED), (Who::Rust, MARKED)]
        .map(|(who, tag)| (Id { who, what: What::Watched("whole_machine".to_owned()) }, tag));
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
                // The socket's thread looks again soon where something has happened: as long as that takes, there is room for this.
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
        // What is lost takes less time.
        let lost = atrace::perfetto::status().lost() - lost;
        if lost > 0 {
            room.excused.fetch_add(lost, Relaxed);
            times.iter_mut().for_each(|times| _ = times.pop());
            left_out += 1;
        }
    }
    if left_out > 0 {
        println!(
            "whole machine: {left_out} of {rounds} rounds are left out, as events were lost: others took the processors"
        );
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

/// Counts what system calls all threads of this process make, at a hundred thousand events a second, by the kernel's own
/// events of them.
fn count_system_calls(session: &Session, room: &Room, rows: &mut [Row]) {
    let Some(row) = rows.iter_mut().find(|row| row.id == id(begin()).to_string()) else { return };
    let time = by_length(session.args(), [10, 500, 2000]);
    match system_calls(room, Duration::from_millis(time)) {
        Ok(calls) => _ = row.counts.insert(SYSTEM_CALLS.0.to_owned(), calls),
        Err(e) => println!("system calls are not counted: {e}"),
    }
}

fn system_calls(room: &Room, time: Duration) -> io::Result<f64> {
    const EACH: u64 = 100;
    let instance = Instance::create("atrace-bench")?;
    let tasks =
        std::fs::read_dir("/proc/self/task")?.filter_map(|task| task.ok()?.file_name().into_string().ok());
    instance.control("set_event_pid", &tasks.collect::<Vec<_>>().join(" "))?;
    let name = text(10);
    room.empty();
    instance.control("events/raw_syscalls/sys_enter/enable", "1")?;
    let (start, mut bursts) = (Instant::now(), 0);
    while start.elapsed() < time {
        (0..EACH).for_each(|_| atrace_begin(SHARED, &name));
        bursts += 1;
        // A pause that is no system call.
        while start.elapsed() < Duration::from_millis(1) * bursts {
            std::hint::spin_loop();
        }
    }
    instance.control("events/raw_syscalls/sys_enter/enable", "0")?;
    let events = EACH * u64::from(bursts);
    room.wrote(events, Size::of(begin()));
    Ok(instance.stats()?.written() as f64 / events as f64)
}

/// A begin that more than one session gets.
pub(crate) fn measure_sessions(session: &Session) -> io::Result<Vec<Row>> {
    let room = Room::new()?;
    let sessions = room.reading.sessions();
    let id = Id { who: Who::Perfetto, what: What::Watched(format!("{sessions}_sessions")) }.to_string();
    let raw = Id { who: Who::Limit, what: What::RawWrite(begin()) }.to_string();
    let stamp = Id::limit("timestamp").to_string();
    let file = marker(session)?;
    let message = format!("B|{}|{}", std::process::id(), text(10)).into_bytes();
    let mut paired = Paired::new(Config { budget: Duration::from_secs(3), ..config(session.args()) });
    room.add(&mut paired, id.clone(), begin(), in_rust::<{ SHARED.bits() }>(begin()));
    paired.case(&raw, move |n| raw_write(&file, &message, n));
    paired.case(&stamp, |n| (0..n).for_each(|_| _ = black_box(clock::now())));
    paired.compare(&id, &raw);
    paired.compare_above(&id, &stamp);
    paired.select(session.args());
    let measured = paired.run();
    println!("\n{sessions} sessions: {measured}");
    room.check()?;
    Ok(measured.row(&id, Sink::Perfetto).into_iter().collect())
}
