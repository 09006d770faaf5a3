#[path = "../../../../atrace/tests/common/buffer.rs"]
#[allow(unreachable_pub, reason = "the test programs use it, too")]
mod buffer;

use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};

use self::buffer::Buffer;
use super::instance::maker;
use super::*;

/// Returns a new tracefs instance. If no instance can be created, prints why the test is skipped, and returns `None`.
pub(crate) fn instance(test: &str) -> Option<Buffer> {
    match Buffer::create("atrace-tracefs-test") {
        Ok(instance) => Some(instance),
        Err(e) => {
            // Writes without `eprintln!`, because libtest hides the output of `eprintln!` in tests that pass.
            let _ = writeln!(io::stderr(), "skipped {test}: {e}");
            None
        }
    }
}

fn write(instance: &Instance, message: &[u8]) -> io::Result<()> {
    OpenOptions::new().write(true).open(instance.marker_path())?.write(message).map(drop)
}

/// Returns the columns with the thread's name and id as the kernel prints them, followed by `rest`.
fn line(task: &str, tid: u32, rest: &str) -> String {
    format!("{task:>16}-{tid:<7} {rest}")
}

fn payloads(text: &str) -> Vec<String> {
    Markers::parse(text).map(|m| m.text().into_owned()).collect()
}

#[test]
fn parses_every_shape_of_line() {
    let text = [
        "# tracer: nop\n#\n#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION\n".to_owned(),
        line("<...>", 4795, "[000] ...1.   811.025064: tracing_mark_write: B|1|he llo\n"),
        line("a-7 [003] b: c", 12, "(     11) [017] d..2. 99811.000001: tracing_mark_write: E|11\n"),
        line("idle", 0, "(-------) [001] .....     7: tracing_mark_write: C|1|x|2\n"),
        "##### CPU 1 buffer started ####\n".to_owned(),
        line("x", 1_234_567, "[1023]     5.000002: tracing_mark_write: \n"),
        "CPU:1 [LOST 12 EVENTS]\n".to_owned(),
        line("x", 1, "[000] d..3.     6.000000: sched_waking: comm=a pid=2\n"),
        line("x", 1, "[000] .....     6.000001: tracing_mark_write:   two  "),
    ]
    .concat();
    let got: Vec<_> = Markers::parse(text).collect();
    let marker = |task: &str, tid, tgid, cpu, timestamp, payload: &str| Marker {
        task: task.into(),
        tid,
        tgid,
        cpu,
        timestamp,
        payload: payload.into(),
    };
    assert_eq!(
        got,
        [
            marker("<...>", 4795, None, 0, 811_025_064_000, "B|1|he llo"),
            marker("a-7 [003] b: c", 12, Some(11), 17, 99_811_000_001_000, "E|11"),
            marker("idle", 0, None, 1, 7, "C|1|x|2"),
            marker("x", 1_234_567, None, 1023, 5_000_002_000, ""),
            marker("x", 1, None, 0, 6_000_001_000, "  two  "),
        ]
    );
}

#[test]
fn parses_the_text_of_every_kernel() {
    for text in TEXTS {
        let has_processes = text.contains("TGID");
        let got: Vec<_> = Markers::parse(text)
            .map(|m| {
                (
                    String::from_utf8(m.task.clone()).unwrap(),
                    m.tid,
                    m.tgid,
                    m.timestamp,
                    m.text().into_owned(),
                )
            })
            .collect();
        let process = Some(42).filter(|_| has_processes);
        let marker = |task: &str, tid, process, micros: u64, payload: &str| {
            (task.to_owned(), tid, process, 12_000_000_000 + micros * 1000, payload.to_owned())
        };
        assert_eq!(
            got,
            [
                marker("<...>", 99, None, 2, "B|42|an old name"),
                marker("Binder:42_1", 4242, process, 3, "C|42|n|7"),
                marker("a-7 [003] b: c", 12345, process, 4, "E|42"),
                marker("x", 123_456, process, 5, "E|42"),
            ],
            "{text}"
        );
    }
}

#[test]
fn keeps_further_lines_of_a_payload() {
    let head = line("x", 1, "[000] .....     6.000001: tracing_mark_write: ");
    assert_eq!(payloads(&format!("{head}a\nb\n# c\n{head}d\n")), ["a\nb\n# c", "d"]);
    assert_eq!(payloads(&format!("{head}it says x-1 [000] ..... 1.0: tracing_mark_write: y\n")).len(), 1);
    let other = head.replace("tracing_mark_write", "sched_waking");
    assert_eq!(payloads(&format!("{other}a\nb\n{head}c")), ["c"]);
}

#[test]
fn a_name_with_a_newline_is_a_name() {
    let head = |name: &str| line(name, 12, "(     11) [000] .....     6.000001: tracing_mark_write: ");
    let text = format!("{}B|1|x\n{}B|2|y\n{}I|3|z\n", head("one"), head("a\nb"), head("\n\nc\n"));
    let got: Vec<_> = Markers::parse(text).collect();
    let tasks: Vec<_> = got.iter().map(|marker| &marker.task[..]).collect();
    assert_eq!(tasks, [&b"one"[..], b"a\nb", b"\n\nc\n"]);
    assert_eq!(got.iter().map(Marker::text).collect::<Vec<_>>(), ["B|1|x", "B|2|y", "I|3|z"]);
    // A thread's name is too short to forge a complete header of an event.
    let forged = line("-1[2] 3: x", 9, "[000] .....     6.000001: tracing_mark_write: B|9|y\n");
    let text = format!("{}B|1|x\n {}\n{forged}", head("one"), "z".repeat(8));
    assert_eq!(payloads(&text), [format!("B|1|x\n {}", "z".repeat(8)), "B|9|y".to_owned()]);
}

#[test]
fn survives_any_prefix_and_any_byte() {
    let line = line("<...>", 4795, "(     11) [000] ...1.   811.025064: tracing_mark_write: B|1|n\n");
    for cut in 0..line.len() {
        assert!(Markers::parse(&line.as_bytes()[..cut]).count() <= 1);
        for byte in [0, b' ', b'-', b':', b'[', b'9', b'\n', 0xFF] {
            let mut odd = line.as_bytes().to_vec();
            odd[cut] = byte;
            assert!(Markers::parse(odd).count() <= 1);
        }
    }
}

#[test]
fn a_maker_is_found_only_under_its_own_prefix() {
    assert_eq!(maker("a-12-0", "a"), Some(12));
    assert_eq!(maker("a-b-12-0", "a-b"), Some(12));
    for (name, prefix) in
        [("a-b-12-0", "a"), ("a-12", "a"), ("a-+2-0", "a"), ("a-12-0-1", "a"), ("ab-1-2", "a")]
    {
        assert_eq!(maker(name, prefix), None, "{name}");
    }
}

#[test]
fn bad_names_are_refused() {
    for name in ["", ".", "..", "a/b", "a\0b"] {
        assert_eq!(Instance::create(name).unwrap_err().kind(), ErrorKind::InvalidInput, "{name:?}");
    }
}

#[test]
fn stats_are_summed() {
    let text = "entries: 3\noverrun: 2\ncommit overrun: 1\nbytes: 148\noldest event ts:   811.025064\n\
                now ts:   811.028539\ndropped events: 4\nread events: 5\n";
    let cpu = Stats::parse(text).unwrap();
    let sum = Stats::sum(&[cpu, cpu]);
    assert_eq!(sum, Stats { entries: 6, overrun: 4, dropped: 10, read: 10, bytes: 296 });
    assert_eq!((sum.written(), sum.lost()), (30, 14));
    assert!(Stats::parse("entries: 3\n").is_none());
}

/// Tests that statistics are read correctly while they change: the kernel generates the text anew for each `read`, so
/// the reader must not mix parts of two texts.
#[test]
fn stats_are_whole_while_they_change() {
    let Some(instance) = instance("stats_are_whole_while_they_change") else {
        return;
    };
    let is_read = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // This thread makes the numbers gain and lose a digit again and again.
        scope.spawn(|| {
            while !is_read.load(Ordering::Relaxed) {
                instance.clear().unwrap();
                (0..12).for_each(|_| _ = write(&instance, b"E|1"));
            }
        });
        let read: Vec<_> = (0..20_000).map(|_| instance.stats()).collect();
        is_read.store(true, Ordering::Relaxed);
        let failed: Vec<_> = read.into_iter().filter_map(Result::err).collect();
        assert!(failed.is_empty(), "{} failed: {:?}", failed.len(), failed[0]);
    });
}

#[test]
fn what_is_written_is_read_back() {
    let Some(instance) = instance("what_is_written_is_read_back") else {
        return;
    };
    instance.set_clock("boot").unwrap();
    instance.set_option("record-tgid", true).unwrap();
    instance.set_buffer_kb(64).unwrap();
    let odd: &[u8] = b"odd\x01\xFF [007] fake-1 (2) [001] ..... 1.0: tracing_mark_write: x ";
    for message in [b"B|1|he llo", odd, b"E|1"] {
        write(&instance, message).unwrap();
    }
    let got: Vec<_> = instance.markers().unwrap().collect();
    assert_eq!(got.iter().map(|m| &m.payload[..]).collect::<Vec<_>>(), [b"B|1|he llo", odd, b"E|1"]);
    assert!(got.windows(2).all(|w| w[0].timestamp <= w[1].timestamp));
    assert_eq!(instance.stats().unwrap().entries, 3);
    instance.clear().unwrap();
    assert_eq!(instance.stats().unwrap().written(), 0);
    instance.set_tracing_on(false).unwrap();
    assert!(write(&instance, b"E|1").is_err());
    instance.set_tracing_on(true).unwrap();
    assert!(instance.set_clock("no such clock").is_err());
    assert!(instance.set_option("no-such-option", true).is_err());
    drop(Instance::attach(instance.path()).unwrap());
    assert!(instance.path().exists());
    let path = instance.path().to_owned();
    drop(instance);
    assert!(Instance::attach(&path).is_err());
}

#[test]
fn instances_differ_between_threads_and_go_with_their_drop() {
    let Some(first) = instance("instances_differ_between_threads_and_go_with_their_drop") else {
        return;
    };
    let removed = Instance::create("atrace-tracefs-test").unwrap();
    let path = removed.path().to_owned();
    assert!(path.exists());
    removed.remove().unwrap();
    assert!(!path.exists());
    let made: Vec<Instance> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..4).map(|_| scope.spawn(|| Instance::create("atrace-tracefs-test").unwrap())).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    let mut paths: Vec<_> = made.iter().chain([&*first]).map(|i| i.path().to_owned()).collect();
    paths.sort();
    paths.dedup();
    assert_eq!(paths.len(), 5);
    drop((made, first));
    assert!(paths.iter().all(|p| !p.exists()));
}
