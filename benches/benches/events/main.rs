//! Measures what an event costs, in Rust and in C++, with tracing off and on. Compares the costs with lower limits,
//! such as the cost of a `write(2)`.
//!
//! The cases include those of AOSP's `libatrace_rust_benchmark`, under AOSP's names. They are measured in Rust
//! (`rust/`), in C++ (`cc/`, printed as `BM_…`), in Rust through the libcutils that C++ calls (`ffi/`), and with the
//! Perfetto backend (`perfetto/`). The cases `ffi/` and `perfetto/` run in processes of their own, because the backend
//! of a process can't be changed. Cases that are compared are measured in interleaved rounds. The cases `rust/` and
//! `cc/` are then also measured by Criterion. The rows (results) are in `target/overhead/atrace.json`.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::hint::black_box;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::process::ExitCode;
use std::time::Duration;

use atrace::control::{Control, Switched, ThisProcess};
use atrace::tracer::TextBuffer;
use atrace::{AtraceTag, atrace_begin, atrace_get_enabled_tags, atrace_is_tag_enabled};
use atrace_benches::catalogue::{ATRACE, EVENTS, Event, Id, LITERALS, State, Who, promises, published};
use atrace_benches::harness::output::{Output, fail};
use atrace_benches::harness::{Session, child, exit_code, supervise};
use atrace_benches::instruments::alloc::{Counting, per_op};
use atrace_benches::instruments::clock::{thread_cpu, timed};
use atrace_benches::measure::paired::{Config, Paired};
use atrace_benches::measure::threads::scale;
use atrace_benches::measure::{instructions, workload};
use atrace_benches::promise::Judged;
use atrace_benches::report::criterion_lines;
use atrace_benches::row::Row;
use atrace_benches::subjects::events::{Operation, c_text, operations, text};
use atrace_benches::table::{Cell, of_rows};

use self::criterion_cases::{Cases, can_run};
use self::watch::Watched;

#[path = "../common/criterion.rs"]
mod criterion_cases;
mod perfetto;
#[cfg(feature = "peer-perfetto-recorder")]
mod recorder;
#[cfg(feature = "peer-perfetto-sdk")]
mod sdk;
mod watch;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const TAG: AtraceTag = AtraceTag::App;
/// The number of operations over which allocations are counted.
const COUNTED: u64 = 10_000;

fn main() -> ExitCode {
    supervise::run(|session| bench(&session).unwrap_or_else(|reason| fail(1, reason)))
}

fn bench(session: &Session) -> io::Result<ExitCode> {
    if session.args.list {
        let of = |state| EVENTS.iter().map(move |event| Id::event(Who::Rust, state, event));
        let ids = State::ALL.into_iter().flat_map(of);
        for id in ids.chain(EVENTS.iter().chain(LITERALS.iter()).map(perfetto::id)) {
            println!("{id}: benchmark");
        }
        return Ok(ExitCode::SUCCESS);
    }
    if workload::take_part::<Watched>(session)? {
        return Ok(ExitCode::SUCCESS);
    }
    let mode = session.args.mode.as_deref();
    if mode == Some(perfetto::READS) {
        return perfetto::read_beside().map(|()| ExitCode::SUCCESS);
    }
    let switch = Switch::new()?;
    if let Some(mode) = mode {
        child::report(&match mode {
            "ffi" => through_libcutils(session, &switch)?,
            perfetto::MODE => perfetto::measure(session, &switch)?,
            perfetto::SESSIONS => perfetto::measure_sessions(session)?,
            other => return Err(io::Error::other(format!("there is no mode {other}"))),
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    let output = Output::begin(ATRACE, &session.args)?;
    println!("sink: {}; switched by the properties, verified by {}", atrace::sink(), session.verified_by());
    say_what_is_missing(session);
    let mut rows = Vec::new();
    let mut section = |title: &str, part: Vec<Row>| {
        let mut table = of_rows(title, &part);
        for name in table.rows.iter_mut().filter_map(|row| row.first_mut()) {
            *name = Cell::name(Id::of(&name.to_string()).label());
        }
        println!("\n{table}");
        let _ = io::stdout().flush();
        rows.extend(part);
    };
    section("off", off(session, &switch)?);
    section("on", on(session, &switch)?);
    section("names", names(session, &switch)?);
    section("ffi", ffi()?);
    section("Perfetto's memory", perfetto::rows()?);
    section("threads", threads(session, &switch)?);
    section("watch", workload::measure::<Watched>(session)?.rows().to_vec());
    let instructions = instructions::of_this_commit();
    for row in &mut rows {
        row.counts.extend(instructions.get(&row.id).map(|n| ("instructions".to_owned(), *n)));
    }
    output.criterion(|| criterion(session, &switch))?;
    // If the bench runs as a test, it measures no times, so only promises about counts are judged.
    let is_test = session.args.test;
    let promised = |group: &str| if is_test { Vec::new() } else { promises::of(group) };
    let ratios = [promised("events"), promised("perfetto")].concat();
    let differences = Judged::of_differences(&promised("differences"), &rows);
    let judged = [Judged::of_rows(&ratios, &rows), differences].concat();
    output.end(&rows, &judged)?;
    let none_asked = rows.is_empty() && !session.args.filters.is_empty();
    if none_asked {
        println!("no case has an id or a name with that in it; --list shows them");
    }
    Ok(if is_test || none_asked { ExitCode::SUCCESS } else { exit_code(&rows) })
}

/// Prints which C++ rows (results) can't be measured, with a line for each reason.
fn say_what_is_missing(session: &Session) {
    let mut missing = BTreeMap::<_, Vec<_>>::new();
    for Operation { event, missing: why, .. } in operations() {
        if let Some(why) = why {
            missing.entry(why).or_default().push(event.name);
        }
    }
    for (why, names) in missing {
        println!("no C++ rows of {}: {why}", names.join(", "));
    }
    if !session.is_where_libcutils_writes() {
        println!(
            "no C++ rows and none through libcutils with tracing on: libcutils writes to the kernel alone, which this \
             process may not"
        );
    }
}

/// Switches tracing on and off in this process through the properties, for both Rust and C++.
struct Switch {
    control: Control,
}

impl Switch {
    fn new() -> io::Result<Self> {
        let control = Control::open().map_err(io::Error::other)?;
        // Create the properties now: libcutils never notices properties that did not exist when it first looked for
        // them.
        control.enable(ThisProcess).and_then(Switched::restore).map_err(io::Error::other)?;
        let this = Self { control };
        this.check(false)?;
        Ok(this)
    }

    fn on(&self) -> io::Result<Switched> {
        let switched = self.control.enable(ThisProcess).map_err(io::Error::other)?;
        self.check(true)?;
        Ok(switched)
    }

    fn check(&self, on: bool) -> io::Result<()> {
        let cc = match cc_bench::missing("atrace_get_enabled_tags") {
            // Without this function of libcutils, there are no C++ rows, so the state of C++ does not matter.
            Some(_) => on,
            None => cc_bench::enabled_tags() & TAG.bits() != 0,
        };
        let rust = atrace_get_enabled_tags().contains(TAG);
        if (rust, cc) == (on, on) {
            return Ok(());
        }
        let (sink, is) = (atrace::sink(), format!("Rust says {rust} and C++ {cc}"));
        Err(io::Error::other(format!("switched to on = {on}, but {is}; {sink}")))
    }
}

/// Returns an error if an operation of `run` does not write exactly `events` events to the sink.
fn verify(session: &Session, id: &str, run: &mut dyn FnMut(u64), events: u64) -> io::Result<()> {
    match session.wrote(|| run(1))? {
        // If the sink is a file, only its length is known, so the check is whether anything was written.
        Some(got) if (got == events) || (session.instance.is_none() && (got > 0) == (events > 0)) => Ok(()),
        None => Ok(()),
        Some(got) => {
            Err(io::Error::other(format!("{id} should have written {events} events; the sink got {got}")))
        }
    }
}

/// Measures every kind of event in Rust and in C++, and the cases that `add` adds. `state` says whether tracing is off
/// or on meanwhile. `who` is the name of the Rust implementation in the ids of rows (results).
fn compare(
    session: &Session,
    state: State,
    who: &Who,
    add: impl for<'a> FnOnce(&mut Paired<'a>),
) -> io::Result<Vec<Row>> {
    let mut counted = Vec::new();
    let mut paired = Paired::new(Config::of(&session.args));
    let promised = promises::of("events");
    for Operation { event, mut rust, cc, .. } in operations() {
        let messages = if state == State::On { event.messages } else { 0 };
        let [rust_id, cc_id] = [who.clone(), Who::Cc].map(|who| Id::event(who, state, event).to_string());
        verify(session, &rust_id, &mut rust, messages)?;
        let written = if state == State::On { session.messages()?.unwrap_or_default() } else { Vec::new() };
        counted.push((rust_id.clone(), per_op(COUNTED, &mut rust)));
        paired.case(&rust_id, rust);
        if *who == Who::Rust && !written.is_empty() {
            // This case makes only the system call, with the same bytes. The additional time of the event is the cost
            // of this library.
            let least = Id::limit(&format!("inline_write_{}", event.name)).to_string();
            let (file, writes) = (marker(session)?, cc_bench::InlineWrites::of(&written));
            paired.case(&least, move |n| _ = writes.run(file.as_fd(), n));
            paired.compare_above(&rust_id, &least);
        }
        if let Some(mut cc) = cc.filter(|_| state == State::Off || session.is_where_libcutils_writes()) {
            verify(session, &cc_id, &mut cc, messages)?;
            paired.case(&cc_id, cc);
            paired.compare(&rust_id, &cc_id);
        }
    }
    add(&mut paired);
    paired.promise(&promised);
    paired.select(&session.args);
    let measured = paired.run();
    println!("\n{}, {}: {measured}", state.name(), who.name());
    let rows = measured.rows(session.sink()).into_iter().map(|row| {
        let allocs = counted.iter().find(|(id, _)| *id == row.id).and_then(|(_, count)| *count);
        row.with_allocs(allocs)
    });
    let mut rows: Vec<Row> = rows.collect();
    if *who == Who::Rust {
        count_cpu_time(session, state, &mut rows);
    }
    Ok(rows)
}

/// Measures the CPU time of the C++ cases for which AOSP published a result. As in Google Benchmark, a case runs with
/// more and more iterations, until a run takes half a second (less in a quick run). The CPU time of an iteration and
/// the number of iterations are added to the counts of the case's row, as `cpu_ns` and `iterations`.
fn count_cpu_time(session: &Session, state: State, rows: &mut [Row]) {
    let least = match &session.args {
        args if args.test => Duration::ZERO,
        args if args.quick => Duration::from_millis(50),
        _ => Duration::from_millis(500),
    };
    for Operation { event, cc, .. } in operations() {
        let is_published = published::EVENTS.iter().any(|of| of.state == state && of.event == event.name);
        let id = Id::event(Who::Cc, state, event).to_string();
        let row = rows.iter_mut().find(|row| row.id == id);
        let Some(((row, mut run), true)) = row.zip(cc).zip(Some(is_published)) else { continue };
        let mut iterations = 1000;
        let took = loop {
            let start = thread_cpu();
            run(iterations);
            let took = thread_cpu() - start;
            if took >= least {
                break took;
            }
            iterations *= if took * 10 < least { 10 } else { 2 };
        };
        row.counts.insert("cpu_ns".to_owned(), took.as_secs_f64() * 1e9 / iterations as f64);
        row.counts.insert("iterations".to_owned(), iterations as f64);
    }
}

/// Adds cases of operations that write no event: a test whether a tag is on, a query of all enabled tags, and a begin
/// with a tag that stays off.
fn questions(paired: &mut Paired<'_>, state: State) {
    let id = |who: &str, what: &str| format!("{who}/tracing_{}_{what}", state.name());
    let (name, c_name) = (text(10), c_text(&text(10)));
    paired.case(id("rust", "is_tag_enabled"), |n| {
        (0..n).for_each(|_| _ = black_box(atrace_is_tag_enabled(black_box(TAG))));
    });
    paired.case(id("rust", "get_enabled_tags"), |n| {
        (0..n).for_each(|_| _ = black_box(atrace_get_enabled_tags()))
    });
    paired.case(id("rust", "begin_other_tag/10"), move |n| {
        (0..n).for_each(|_| atrace_begin(AtraceTag::ActivityManager, &name));
    });
    if cc_bench::missing("atrace_get_enabled_tags").is_none() {
        paired.case(id("cc", "is_tag_enabled"), |n| _ = black_box(cc_bench::is_enabled(n)));
        paired.case(id("cc", "get_enabled_tags"), |n| _ = black_box(cc_bench::get_tags(n)));
        paired.case(id("cc", "begin_other_tag/10"), move |n| cc_bench::begin_other_tag(&c_name, n));
        for what in ["is_tag_enabled", "get_enabled_tags", "begin_other_tag/10"] {
            paired.compare(id("rust", what), id("cc", what));
        }
    }
}

/// Adds cases of the events for which AOSP published results. They are written by code like AOSP's Rust wrapper of
/// libcutils, which this library replaces.
fn aosp_like(paired: &mut Paired<'_>, state: State) {
    const TAG: u64 = cc_bench::TAG;
    if cc_bench::missing("atrace_end_body").is_some() {
        return;
    }
    for published::OfEvent { state: of, event, .. } in published::EVENTS.iter() {
        let event = Event::named(event).filter(|_| *of == state);
        let Some(event) = event else { continue };
        let [rust, wrapped] = [Who::Rust, Who::AospLike].map(|who| Id::event(who, state, event).to_string());
        let name = text(if event.name == "begin/1000" { 1000 } else { 10 });
        match event.name {
            "end" => paired.case(&wrapped, |n| (0..n).for_each(|_| cc_bench::wrapper::end(TAG))),
            _ => paired.case(&wrapped, move |n| (0..n).for_each(|_| cc_bench::wrapper::begin(TAG, &name))),
        }
        paired.compare(&rust, &wrapped);
        if event.cc.is_some_and(|function| cc_bench::missing(function).is_none()) {
            paired.compare(&wrapped, Id::event(Who::Cc, state, event).to_string());
        }
    }
}

fn off(session: &Session, switch: &Switch) -> io::Result<Vec<Row>> {
    switch.check(false)?;
    compare(session, State::Off, &Who::Rust, |paired| {
        aosp_like(paired, State::Off);
        questions(paired, State::Off);
        paired.case("limit/empty_loop", |n| (0..n).for_each(|i| _ = black_box(i)));
        let word = std::sync::atomic::AtomicU64::new(0);
        paired.case("limit/load_and_test", move |n| {
            let word = black_box(&word);
            (0..n).for_each(|_| {
                if word.load(std::sync::atomic::Ordering::Relaxed) != 0 {
                    black_box(());
                }
            });
        });
        copies(paired);
        paired.compare("rust/tracing_off_begin/10", "limit/load_and_test");
        paired.compare("rust/tracing_off_begin/1000", "rust/tracing_off_begin/10");
    })
}

/// Adds and compares two ways to copy a text and check its characters: the vector code in atrace's `message/copy.rs`,
/// and a plain loop.
fn copies(paired: &mut Paired<'_>) {
    let name = text(1000);
    paired.case("rust/text_of_1000", move |n| {
        let copy = |_| {
            black_box(TextBuffer::default().write(|writer| writer.push_str(black_box(&name))));
        };
        (0..n).for_each(copy);
    });
    let (name, mut to) = (text(1000), [0; 1024]);
    paired.case("limit/plain_copy_of_1000", move |n| {
        (0..n).for_each(|_| _ = black_box(plain_copy(black_box(name.as_bytes()), black_box(&mut to))));
    });
    paired.compare("rust/text_of_1000", "limit/plain_copy_of_1000");
}

/// Copies a text in a plain loop. Returns whether the text has a byte that must not be in a message.
#[inline(never)]
fn plain_copy(from: &[u8], to: &mut [u8]) -> bool {
    let mut found = false;
    for (&from, to) in from.iter().zip(to) {
        *to = from;
        found |= (from < 0x20) | (from == 0x7f) | (from == b'<');
    }
    found
}

/// Opens the file to which messages are written (the marker), for writes without this library.
fn marker(session: &Session) -> io::Result<File> {
    let path = session.marker.as_ref().ok_or_else(|| io::Error::other("there is no marker to write to"))?;
    OpenOptions::new().append(true).open(path)
}

/// Calls the system's `write(2)` with the bytes of an event `n` times, without this library.
fn raw_write(file: &File, message: &[u8], n: u64) {
    let whole = cc_bench::raw_write(file.as_fd(), message, n);
    assert_eq!(whole, n, "the sink takes no raw writes");
}

fn on(session: &Session, switch: &Switch) -> io::Result<Vec<Row>> {
    let _on = switch.on()?;
    let pid = std::process::id();
    let file = marker(session)?;
    let null = OpenOptions::new().write(true).open("/dev/null")?;
    compare(session, State::On, &Who::Rust, |paired| {
        questions(paired, State::On);
        if session.is_where_libcutils_writes() {
            aosp_like(paired, State::On);
        }
        paired.case("limit/getppid", |n| (0..n).for_each(|_| _ = black_box(rustix::process::getppid())));
        let message = format!("B|{pid}|{}", text(10)).into_bytes();
        paired.case("limit/write_dev_null", move |n| raw_write(&null, &message, n));
        for (name, message) in [
            ("begin/10", format!("B|{pid}|{}", text(10))),
            ("begin/1000", format!("B|{pid}|{}", text(1000))),
            ("end", format!("E|{pid}")),
        ] {
            let event = Event::named(name).expect("the catalogue has it");
            let base = Id::raw_write(event.name).to_string();
            let file = file.try_clone().expect("a descriptor is left");
            paired.case(&base, move |n| raw_write(&file, message.as_bytes(), n));
            paired.compare(Id::event(Who::Rust, State::On, event).to_string(), &base);
            if session.is_where_libcutils_writes() && cc_bench::missing("atrace_end_body").is_none() {
                paired.compare(Id::event(Who::Cc, State::On, event).to_string(), &base);
            }
        }
    })
}

/// Measures how the length of the name changes the cost of the begin of a slice, with tracing off and with tracing on.
/// With tracing on, the cost is compared with a `write(2)` of the same bytes.
fn names(session: &Session, switch: &Switch) -> io::Result<Vec<Row>> {
    const LENGTHS: [usize; 8] = [1, 3, 10, 30, 100, 300, 600, 1000];
    let config = Config::of(&session.args);
    let config = Config { budget: config.budget / 2, ..config };
    let mut rows = Vec::new();
    let id = |state, length| format!("rust/{}_name/{length}", State::name(state));
    for state in State::ALL {
        let _on = if state == State::On { Some(switch.on()?) } else { None };
        let file = marker(session)?;
        let mut paired = Paired::new(config.clone());
        for length in LENGTHS {
            let name = text(length);
            paired.case(id(state, length), move |n| (0..n).for_each(|_| atrace_begin(TAG, &name)));
            if state == State::On {
                let message = format!("B|{}|{}", std::process::id(), text(length));
                let raw = Id::raw_write(format_args!("name/{length}")).to_string();
                let file = file.try_clone()?;
                paired.case(&raw, move |n| raw_write(&file, message.as_bytes(), n));
                paired.compare(id(state, length), raw);
            } else {
                paired.compare(id(state, length), id(state, 10));
            }
        }
        paired.select(&session.args);
        rows.extend(paired.run().rows(session.sink()));
    }
    Ok(rows)
}

/// Measures the events in Rust through the libcutils that C++ calls, in a child process that has this libcutils as its
/// backend.
fn ffi() -> io::Result<Vec<Row>> {
    if cfg!(target_feature = "crt-static") {
        println!("\nffi: a statically linked executable can load no libcutils");
        return Ok(Vec::new());
    }
    child::rows("ffi", &[("ATRACE_BACKEND", &format!("cutils:{}", cc_bench::cutils_library().display()))])
}

fn through_libcutils(session: &Session, switch: &Switch) -> io::Result<Vec<Row>> {
    let mut rows = compare(session, State::Off, &Who::Ffi, |_| ())?;
    if session.is_where_libcutils_writes() {
        match switch.on() {
            Ok(_on) => rows.extend(compare(session, State::On, &Who::Ffi, |_| ())?),
            // Before Android 12, libcutils only traces programs or systems that are debuggable.
            Err(e) if cfg!(target_os = "android") => {
                println!(
                    "no rows through libcutils with tracing on (an old libcutils requires ro.debuggable=1): {e}"
                );
            }
            Err(e) => return Err(e),
        }
    }
    rows.retain(|row| Id::of(&row.id).who == Who::Ffi);
    Ok(rows)
}

fn threads(session: &Session, switch: &Switch) -> io::Result<Vec<Row>> {
    let config = Config::of(&session.args);
    let numbers: &[usize] = if config.once { &[1, 2] } else { &[1, 2, 4, 8] };
    let mut rows = Vec::new();
    let begin = &EVENTS[0];
    let cc_is_there = cc_bench::missing("atrace_begin_body").is_none();
    for state in State::ALL {
        let _on = if state == State::On { Some(switch.on()?) } else { None };
        let name = text(10);
        for who in [Who::Rust, Who::Cc] {
            let is_rust = who == Who::Rust;
            let is_there =
                is_rust || cc_is_there && (state == State::Off || session.is_where_libcutils_writes());
            let id = Id::event(who, state, begin).to_string();
            if !session.args.selects(&id) || !is_there {
                continue;
            }
            let measured = scale(numbers, &config, |_| {
                let (rust, cc) = (name.clone(), c_text(&name));
                move |n| match is_rust {
                    true => (0..n).for_each(|_| atrace_begin(TAG, &rust)),
                    false => cc_bench::begin(&cc, n),
                }
            });
            rows.extend(measured.rows(&id, session.sink()));
        }
    }
    Ok(rows)
}

/// Measures the selected cases with Criterion, which has its own statistics and compares its results with the results
/// of its last run.
fn criterion(session: &Session, switch: &Switch) -> io::Result<()> {
    println!();
    if !can_run(&session.args) {
        return Ok(());
    }
    let mut cases = Cases::new(&session.args);
    for state in State::ALL {
        let _on = if state == State::On { Some(switch.on()?) } else { None };
        for Operation { event, rust, cc, .. } in operations() {
            let cc = cc.filter(|_| state == State::Off || session.is_where_libcutils_writes());
            for (who, run) in [(Who::Rust, rust)].into_iter().chain(cc.map(|cc| (Who::Cc, cc))) {
                let id = Id::event(who, state, event);
                cases.case(&id.to_string(), &id.in_criterion(), timed(run));
            }
        }
    }
    session.clear()?;
    println!("{}", criterion_lines(&cases.end()));
    Ok(())
}
