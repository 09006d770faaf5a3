//! Tests that the workloads' harness measures the cost that each mode of tracing adds, and detects a workload with
//! wrong results.
//!
//! This test does not use libtest, because the binary runs itself as a bench, with a process for each mode. `HELPER`
//! selects the bench's fault.

#[path = "../../atrace/tests/common/buffer.rs"]
#[allow(unreachable_pub, reason = "other test programs use it, too")]
mod buffer;

use std::fs::OpenOptions;
use std::hint::black_box;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::{Command, ExitCode, Output};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use self::buffer::Buffer;
use atrace::AtraceTag;
use atrace_benches::harness::args::Args;
use atrace_benches::instruments::alloc::Counting;
use atrace_benches::instruments::chain;
use atrace_benches::measure::workload::{self, Case, Done, Fixture, Info, Mode, Results, Tracing, Workload};
use atrace_benches::promise::{Judged, Verdict};
use atrace_benches::row;
use atrace_benches::stats::sample::SAME_SPEED;
use atrace_benches::table::{Cell, Table};
use atrace_cli::tracefs::Instance;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const HELPER: &str = "ATRACE_BENCHES_TEST_HELPER";

fn main() -> ExitCode {
    match helper() {
        Some(_) => workload::run::<Known>(),
        None => {
            tests();
            ExitCode::SUCCESS
        }
    }
}

fn helper() -> Option<String> {
    std::env::var(HELPER).ok()
}

/// Whether this process runs in the mode `slower`, which only this test has.
static SLOWER: AtomicBool = AtomicBool::new(false);

/// A workload whose results are known.
struct Known;

/// The number of events of a burst, and the length of each event's name. The burst has 200 MB, which the service can't
/// read as fast as the events are written, however long the writer takes for an event.
const BURST: u64 = 200_000;
const NAME: usize = 1000;
/// The number of additional cases that write nothing.
const QUIET: u64 = 8;

/// The environment variable that the fixture sets for the processes of the modes, so that they see that the fixture
/// exists.
const FIXTURE: &str = "ATRACE_BENCHES_TEST_FIXTURE";

/// Whether the fixture exists. Set only in the bench's own process.
static ATTENDED: AtomicBool = AtomicBool::new(false);

/// A part of the fixture, which resets [`ATTENDED`] when it is dropped.
struct Guest;

impl Drop for Guest {
    fn drop(&mut self) {
        ATTENDED.store(false, Relaxed);
    }
}

impl Workload for Known {
    const NAME: &'static str = "known";

    fn cases<T: Tracing>() -> Vec<Case> {
        let on = atrace::atrace_is_tag_enabled(AtraceTag::App);
        let wrong = helper().unwrap_or_default();
        let is = |what: &str| wrong == what;
        let by_perfetto = std::env::var_os("PERFETTO_PRODUCER_SOCK_NAME").is_some();
        let more = on && is(if by_perfetto { "more by perfetto" } else { "more" });
        // Through Perfetto, the expected number of events is a range, because each span may be asynchronous, and then
        // has two more events. The number of additional events must exceed this range.
        let extra = if by_perfetto { 1000 } else { 1 };
        let (messages, death) = (is("messages") && !by_perfetto, is("death") && T::COMPILED_IN);
        let miscounted = u64::from(is("count"));
        // With the fault `loud`, the case writes to the marker without the subscriber, although tracing is off.
        let loud = (is("loud") && T::COMPILED_IN && !on).then(|| std::env::var_os("ATRACE_MARKER").unwrap());
        if is("lossy") {
            // Writes more events than the shared memory has room for before the service reads them.
            let name = "n".repeat(NAME);
            let burst = move |n| {
                (0..n * BURST).for_each(|_| atrace::atrace_instant(AtraceTag::App, &name));
                Ok(Done { messages: n * BURST, ..Done::new() })
            };
            let mut cases = vec![Case::new(Info { counted: false, ..Info::of("rust/burst") }, burst)];
            // Adds several cases that write nothing, because the order of the cases is random.
            cases.extend(
                (0..QUIET).map(|i| Case::new(Info::of(format!("rust/quiet_{i}")), |_| Ok(Done::new()))),
            );
            return cases;
        }
        let span = Case::new(Info::of("rust/span"), move |n| {
            for _ in 0..n {
                let span = T::span(|| tracing::info_span!("known"));
                T::within(&span, || chain::run::<1>(1));
            }
            if more {
                (0..extra).for_each(|_| atrace::atrace_instant(AtraceTag::App, "one more"));
            }
            if let Some(marker) = &loud {
                // The message has this process's id, because only messages with this id are counted in a shared buffer.
                let message = format!("E|{}", std::process::id());
                OpenOptions::new().append(true).open(marker).unwrap().write_all(message.as_bytes()).unwrap();
            }
            if death {
                std::process::abort();
            }
            Ok(Done { messages: 2 * n + u64::from(messages), ..Done::new() }.count("spans", n + miscounted))
        });
        let (leak, long) = (is("leak") && on, if is("time") { 40 } else { 0 });
        let boxes = Case::new(Info { counted_over: 1000, ..Info::of("rust/boxes") }, move |n| {
            for i in 0..n {
                // The first allocation is made only in the instrumented program, and the second only while tracing is
                // on.
                black_box(T::COMPILED_IN.then(|| Box::new([i; 3])));
                black_box(leak.then(|| Box::new(i)));
                black_box(Box::new(i));
            }
            Ok(Done::new().part("two", Duration::from_nanos(n << long), n).gauge("threads", 3.0))
        });
        let (mut runs, result) = (0, is("result"));
        let checked =
            Case::new(Info { beside: Some("chains".to_owned()), ..Info::of("rust/checked") }, move |n| {
                if SLOWER.load(Relaxed) {
                    chain::run::<8>(n)
                } else {
                    chain::run::<2>(n)
                };
                runs += 1;
                if std::env::var(FIXTURE).as_deref() != Ok("a guest") {
                    return Err("nobody is there".to_owned());
                }
                if result && runs > 2 {
                    Err("6 times 9 is 42".to_owned())
                } else {
                    Ok(Done::new().gauge("n", n as f64))
                }
            });
        let (mut kept, uneven) = (Vec::new(), is("uneven"));
        let uneven =
            Case::new(Info { beside: Some("chains".to_owned()), ..Info::of("rust/uneven") }, move |n| {
                if uneven {
                    kept = vec![n; kept.len() + 1];
                }
                chain::run::<1>(n);
                Ok(Done::new())
            });
        let laps = u64::from(is("uncounted"));
        let slice = Some(Duration::from_millis(16));
        let info = Info { traced: false, counted: false, one_core: true, slice, ..Info::of("cc/alone") };
        let alone = Case::new(info, move |n| {
            chain::run::<1>(n);
            Ok(Done { took: Some(Duration::from_nanos(7 * n)), ..Done::new() }
                .count("laps", n + laps)
                .gauge("n", n as f64))
        });
        vec![span.has("spans", || 1.0), boxes, checked, uneven, alone.has("laps", || 1.0)]
    }

    fn modes() -> Vec<Mode> {
        let mut modes = Mode::all();
        modes.push(Mode { bases: &["nosub"], ..Mode::new("slower", || SLOWER.store(true, Relaxed)) });
        modes
    }

    fn seconds() -> u64 {
        // This is so long that a generation (a set of processes) of a quick run has several rounds. So no result
        // depends on a single slice, which may have been interrupted.
        if helper().as_deref() == Some("brief") { 5 } else { 30 }
    }

    fn fixture() -> io::Result<Fixture> {
        ATTENDED.store(true, Relaxed);
        Ok(Fixture::of(Guest).with_env(FIXTURE, "a guest"))
    }

    fn profile(results: &mut Results, args: &Args) -> io::Result<()> {
        let attended = f64::from(u8::from(ATTENDED.load(Relaxed)));
        results.gauge("rust/span", "on", "attended", attended);
        results.gauge("rust/span", "off", "quick", f64::from(u8::from(args.quick)));
        results.gauge("rust/nothing", "on", "attended", attended);
        Ok(())
    }

    fn tables(results: &Results) -> Vec<Table> {
        assert!(!ATTENDED.load(Relaxed));
        if helper().as_deref() == Some("lossy") {
            // A slice that has lost events gives no time, so this case has no row for the mode `perfetto`.
            let has = |mode| results.row("rust/burst", mode).is_some();
            assert_eq!(["nosub", "on", "perfetto"].map(has), [true, true, false]);
            // Events that were lost before a slice do not count for the slice.
            let quiet = |i| results.row(&format!("rust/quiet_{i}"), "perfetto").is_some();
            assert!((0..QUIET).all(quiet));
        }
        let threads = results.row("rust/boxes", "off").map(|row| row.counts["threads"]);
        assert!(threads.is_none_or(|threads| threads == 3.0), "{threads:?}");
        // Two cases are compared by the turns in which both ran.
        let more = results.difference(("rust/checked", "off"), ("rust/uneven", "off"));
        let both =
            results.row("rust/checked", "off").is_some() && results.row("rust/uneven", "off").is_some();
        assert_eq!(more.is_some(), both);
        assert!(more.is_none_or(|more| !more.sure || more.median > 0.0), "{more:?}");
        let ids: Vec<_> = results.rows().iter().map(|row| &row.id[..]).collect();
        let mut table =
            Table::new(format!("reported {} rows: {}", ids.len(), ids.join(" ")), ["case", "number"]);
        let cells = if helper().as_deref() == Some("hole") { 1 } else { 2 };
        table.push([Cell::name("known"), Cell::none("there is none")].into_iter().take(cells));
        vec![table]
    }

    fn bars(_: &Results) -> Vec<Judged> {
        vec![{
            let kept = helper().as_deref() != Some("promise");
            Judged::new("a broken promise", "x", "1", "0", Verdict::kept_if(kept)).exact()
        }]
    }
}

/// Runs this binary as a bench whose workload has the fault `wrong`.
fn bench(wrong: &str, arguments: &[&str], rows: &Path) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(arguments).env(HELPER, wrong).env("ATRACE_OVERHEAD_DIR", rows);
    // If a ring buffer can be created, the bench counts the messages in it. Otherwise, with `--test`, a file shows
    // whether anything was written.
    command.env_remove("ATRACE_BENCH_SINK");
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn of<'a>(rows: &'a [row::Row], id: &str) -> &'a row::Row {
    rows.iter().find(|row| row.id == id).unwrap_or_else(|| panic!("no row {id}"))
}

/// Returns whether the times of a run have the expected relations. On a busy machine, six pairs of rounds decide
/// little, and intervals are wide, so this function compares the medians.
fn is_undisturbed(rows: &[row::Row]) -> bool {
    let row = |id: &str| of(rows, id);
    let above = |id: &str| row(id).above["nosub"].ns;
    // The case `cc/alone` asks for longer slices. The tests of the module `plan` test the exact length.
    let operations = |id: &str| row(id).counts["n"];
    let found = [
        ("no additional time of a part", row("rust/boxes/two/off").above["none"].ns.abs() <= SAME_SPEED),
        ("longer slices", operations("cc/alone") > operations("rust/checked/off")),
        ("a slower mode", row("rust/checked/slower").vs_process["rust/checked/nosub"].ratio > 1.2),
        // While tracing is on, a span is written, which takes a hundred times as long as the check while tracing is
        // off.
        ("a write", above("rust/span/on") > above("rust/span/off")),
        // A span that is recorded through Perfetto takes longer than the span without a subscriber.
        ("a recorded span", above("rust/span/perfetto") > 0.0),
    ];
    println!("{found:?}");
    found.iter().all(|(_, is_found)| *is_found)
}

fn tests() {
    let temp = tempfile::tempdir().unwrap();
    let has_marker = Buffer::create("atrace-benches-test").is_ok();
    if !has_marker {
        eprintln!("skipped what only the kernel's marker tells in workload: there is none here");
    }

    // As a test, the bench runs each case once, and leaves no files.
    for how in ["", "lossy"] {
        let fine = bench(how, &["--test"], temp.path());
        assert!(fine.status.success(), "{how}: {}", text(&fine.stderr));
        assert!(text(&fine.stdout).contains("nothing was measured"), "{how}: {}", text(&fine.stdout));
    }
    assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 0);

    // A workload with a fault fails, and the output names the fault. Nothing is measured, so all of these benches run
    // at the same time.
    let fails = &|wrong: &str, says: &str| {
        let output = bench(wrong, &["--test"], temp.path());
        assert!(!output.status.success(), "{wrong} went well");
        let said = text(&output.stderr);
        assert!(said.contains(says), "{wrong} should say {says}: {said}");
        println!("{wrong}: {}", said.trim());
    };
    let mut faults = vec![
        ("result", "rust/checked: 6 times 9 is 42"),
        ("uneven", "mode none, rust/uneven: allocates Counts"),
        ("count", "rust/span: 100 operations have counted Some(101) spans, there are 100"),
        ("uncounted", "cc/alone: 1 operations have counted Some(2) laps, there are 1"),
        ("time", "rust/boxes: in "),
        ("promise", "a promise that is an exact count is broken"),
        ("hole", "has a hole: known"),
        ("leak", "a promise that is an exact count is broken"),
        ("death", "rust/span: the process ended with signal: 6"),
        ("more by perfetto", "events were written, "),
        ("loud", "rust/span: 0 messages should have been written, the sink got"),
    ];
    if has_marker {
        faults.extend([
            ("messages", "mode on, rust/span: 3 messages should have been written, the sink got 2"),
            ("more", "mode on, rust/span: 2 messages should have been written, the sink got 3"),
        ]);
    }
    std::thread::scope(|scope| {
        for (wrong, says) in faults {
            scope.spawn(move || fails(wrong, says));
        }
    });

    // Makes quick runs, until the results of a run are undisturbed: on a busy machine a run may be disturbed.
    let quick = |_| {
        let quick = bench("", &["--bench", "--quick"], temp.path());
        assert!(quick.status.success(), "{}", text(&quick.stderr));
        // If stdout is a pipe, the bench prints one line, and writes the rest of its output into a file.
        let line = text(&quick.stdout);
        assert!(line.starts_with("known: 37 rows in ") && line.lines().count() == 1 || !has_marker, "{line}");
        let said = std::fs::read_to_string(temp.path().join("known.txt")).unwrap();
        println!("{line}{said}");
        assert!(said.contains("reported 37 rows") || !has_marker, "{said}");
        row::read(&temp.path().join("known.json")).unwrap()
    };
    let rows = (0..5).map(quick).find(|rows| is_undisturbed(rows)).expect("a run that finds what is known");
    let outside: Vec<_> = rows.iter().filter(|row| !row.is_in_range()).collect();
    assert!(outside.is_empty(), "converted out of what was measured: {outside:?}");
    let row = |id: &str| of(&rows, id);
    let boxes = row("rust/boxes/on");
    assert_eq!((boxes.allocs, boxes.bytes), (Some(2.0), Some(32.0)));
    assert_eq!((boxes.above["none"].allocs, boxes.above["none"].bytes), (Some(1.0), Some(24.0)));
    assert_eq!((boxes.above["nosub"].allocs, boxes.above["nosub"].bytes), (Some(0.0), Some(0.0)));
    assert_eq!(boxes.counts["threads"], 3.0);
    assert_eq!(row("rust/span/on").counts["spans"], 1.0);
    // The values that the workload measures outside of the rounds, in `profile`, are also in the rows.
    assert_eq!((row("rust/span/on").counts["attended"], row("rust/span/off").counts["quick"]), (1.0, 1.0));
    // The time of a part is the time that the case reports, in every mode.
    let part = row("rust/boxes/two/off");
    // The times of the single rounds are not converted to the reference speed, but the median is.
    let seen = |row: &row::Row| row.rounds.as_ref().map(|rounds| rounds.at[5]);
    assert_eq!((seen(part), part.allocs), (Some(1.0), None));
    // A case without modes has one row, with the time that the case reports.
    let alone: Vec<_> = rows.iter().filter(|row| row.id.starts_with("cc/")).collect();
    assert_eq!((alone.len(), &alone[0].id[..], seen(alone[0])), (1, "cc/alone", Some(7.0)));
    // If allocations were not counted, their number is missing in the row, not zero.
    assert_eq!((alone[0].allocs, alone[0].bytes), (None, None));
    // The mode `slower`, which only this bench has, is compared with the base that the bench gives for it.
    assert_eq!(row("rust/checked/slower").above.keys().collect::<Vec<_>>(), ["nosub"]);
    if has_marker {
        let raw = row("limit/raw_writes_of/rust/span/on");
        let expected = row("rust/span/on").above["nosub"].ns / raw.median;
        // The row has no ratio if the ratio's interval reaches below zero, as on a busy machine.
        let ratio = row("rust/span/on").above["nosub"].raw_writes.map_or(expected, |times| times.ratio);
        // A median of ratios differs from a ratio of medians, and the machine may be busy. So this checks only that
        // both have the same unit.
        assert!((0.01..100.0).contains(&(ratio / expected)), "{ratio} should be about {expected}");
    }

    // With `--help`, no case runs.
    let help = bench("result", &["--bench", "--help"], &temp.path().join("known.json"));
    assert!(help.status.success() && text(&help.stdout).starts_with("usage: "), "{}", text(&help.stdout));

    // A filter keeps all modes of the cases that it selects.
    let listed = bench("", &["--list", "--bench"], temp.path());
    let listed = text(&listed.stdout);
    assert!(listed.contains("rust/span/filtered: benchmark\n") && listed.contains("cc/alone: benchmark\n"));
    assert_eq!(listed.lines().count(), 4 * 7 + 1);
    let one = bench("brief", &["--bench", "--quick", "checked/slower"], temp.path());
    assert!(one.status.success(), "{}", text(&one.stderr));
    let modes = ["none", "nosub", "filtered", "off", "on", "perfetto", "slower"]
        .map(|mode| format!("rust/checked/{mode}"));
    assert!(
        text(&one.stdout).contains(&format!("reported 7 rows: {}", modes.join(" "))),
        "{}",
        text(&one.stdout)
    );
    let none = bench("", &["--bench", "--quick", "no such thing"], temp.path());
    assert!(none.status.success(), "{}", text(&none.stderr));
    assert!(text(&none.stdout).contains("--list shows them"), "{}", text(&none.stdout));
    // After a run of one case, the earlier rows of the other cases are still in the file.
    assert_eq!(row::read(&temp.path().join("known.json")).unwrap(), rows);
    // If the rows can't be written, the bench reports that before it measures.
    let nowhere = bench("", &["--bench", "--quick"], &temp.path().join("known.json"));
    assert_eq!((nowhere.status.code(), text(&nowhere.stdout).contains("reported")), (Some(1), false));
    assert!(text(&nowhere.stderr).contains("error: writing"), "{}", text(&nowhere.stderr));
    println!("workload: what is added is found, and what is wrong is found out");
}
