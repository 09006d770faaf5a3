//! Tests that no name can damage a trace. The tests call the functions that write events, and read the trace. (The
//! tests of the encoder alone are in `atrace/src/message`.)

mod common;

use std::fmt::{self, Write as _};

use atrace::*;
use common::{Place, case};

const TAG: AtraceTag = AtraceTag::App;

const HOSTILE: [&str; 14] = [
    "nul\0nul",
    "new\nline",
    "carriage\rreturn",
    "tab\ttab",
    "esc\x1b[31m",
    "del\x7f",
    "a|b||c|",
    "é€😀\u{7f}\u{80}\u{7ff}\u{ffff}\u{10ffff}",
    "</script>",
    "a</script></script>",
    "",
    " ",
    "   ",
    "B|1|forged\n# tracer: nop\nE|1",
];

fn escaped(name: &str, begin: bool) -> String {
    let name = name.replace("</script>", "?/script>");
    name.chars()
        .map(|c| {
            if c.is_ascii_control() {
                '?'
            } else if c == '|' && !begin {
                '/'
            } else {
                c
            }
        })
        .collect()
}

/// Returns a name in the form in which messages contain it. An empty name becomes `?`. If the name is the `last` part
/// of a message and consists of spaces, its last space becomes `?`.
fn visible(name: String, last: bool) -> String {
    match name.strip_suffix(' ') {
        None if name.is_empty() => "?".to_owned(),
        Some(rest) if last && name.trim_matches(' ').is_empty() => format!("{rest}?"),
        _ => name,
    }
}

fn write_hostile() {
    for name in HOSTILE {
        atrace_begin(TAG, name);
        atrace_begin_args(TAG, format_args!("{name}"), &[]);
        // Writes the name in pieces, so that sequences across two pieces are tested, too.
        atrace_begin_args(
            TAG,
            |writer: &mut NameWriter<'_>| {
                name.chars().for_each(|c| writer.push_str(c.encode_utf8(&mut [0; 4])))
            },
            &[],
        );
        atrace_end(TAG);
        atrace_async_begin(TAG, name, -1);
        atrace_async_end(TAG, name, -1);
        atrace_async_for_track_begin(TAG, name, name, 5);
        atrace_async_for_track_end(TAG, name, 5);
        atrace_instant(TAG, name);
        atrace_instant_for_track(TAG, name, name);
        atrace_int(TAG, name, 3);
        atrace_int64(TAG, name, i64::MAX);
    }
}

fn hostile_by(pid: u32) -> Vec<String> {
    let mut all = Vec::new();
    for name in HOSTILE {
        let begin = escaped(name, true);
        let inner = visible(escaped(name, false), false);
        let last = visible(escaped(name, false), true);
        all.extend(std::iter::repeat_n(format!("B|{pid}|{begin}"), 3));
        all.push(format!("E|{pid}"));
        all.push(format!("S|{pid}|{inner}|-1"));
        all.push(format!("F|{pid}|{inner}|-1"));
        all.push(format!("G|{pid}|{inner}|{inner}|5"));
        all.push(format!("H|{pid}|{inner}|5"));
        all.push(format!("I|{pid}|{last}"));
        all.push(format!("N|{pid}|{inner}|{last}"));
        all.push(format!("C|{pid}|{inner}|3"));
        all.push(format!("C|{pid}|{inner}|{}", i64::MAX));
    }
    all
}

#[test]
fn hostile_names_are_made_harmless() {
    let name = case!({ write_hostile() });
    let place = Place::file().on();
    let pid = place.run(&name).pid;
    assert_eq!(place.text(), hostile_by(pid).concat());
}

#[test]
fn hostile_names_forge_nothing_in_the_kernels_trace() {
    let name = case!({ write_hostile() });
    let Some(place) = Place::kernel(&name) else { return };
    let place = place.on();
    let pid = place.run(&name).pid;
    assert_eq!(place.messages(), hostile_by(pid));
    // Reads the trace line by line, as a reader of the kernel's text does. Every line must be an event.
    let text = place.instance().read_trace().unwrap();
    let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty() && !line.starts_with(b"#"));
    assert_eq!(lines.count(), hostile_by(pid).len());
    assert!(!text.contains(&0) && !text.contains(&0x1b));
}

#[test]
fn a_huge_name_is_cut_to_what_a_message_holds() {
    let name = case!({
        let huge = "é".repeat(1 << 19);
        for tail in ["", "x"] {
            let name = format!("{tail}{huge}");
            atrace_begin(TAG, &name);
            atrace_begin_args(TAG, format_args!("{name}"), &[]);
            atrace_async_for_track_begin(TAG, &name, &name, i32::MIN);
            atrace_async_for_track_end(TAG, &name, 1);
            atrace_instant_for_track(TAG, &name, &name);
            atrace_instant_for_track(TAG, &name, "short");
            atrace_int64(TAG, &name, i64::MIN);
        }
    });
    let Some(place) = Place::kernel(&name) else { return };
    let place = place.on();
    let pid = place.run(&name).pid.to_string();
    let messages = place.messages();
    assert_eq!(messages.len(), 14);
    for messages in messages.chunks(7) {
        let [begin, fmt, g, h, n, short, counter] = messages else { unreachable!() };
        assert_eq!(begin, fmt);
        for message in messages {
            assert!(message.len() <= 1023, "{}", message.len());
            assert_eq!(message.split('|').nth(1), Some(&*pid));
        }
        // Names are not cut more than necessary. Each character here has two bytes, so a message may have one byte less
        // than the maximum.
        for full in [begin, g, n, counter] {
            assert!(
                full.len() >= 1022 || full.starts_with('G') && full.len() >= 1018,
                "{} {full}",
                full.len()
            );
        }
        let track = g.split('|').nth(2);
        assert!([h, n, short].iter().all(|message| message.split('|').nth(2) == track));
        assert!(short.ends_with("|short") && counter.ends_with("é|-9223372036854775808"));
        assert!(g.ends_with("|-2147483648") && h.ends_with("|1"));
        assert!(!g.split('|').nth(3).unwrap().is_empty());
    }
}

struct Panics(&'static str, bool);

impl fmt::Display for Panics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)?;
        if self.1 {
            // The thrown value panics again when it is dropped.
            struct Bomb;
            impl Drop for Bomb {
                fn drop(&mut self) {
                    std::panic::resume_unwind(Box::new("again"));
                }
            }
            std::panic::resume_unwind(Box::new(Bomb));
        }
        panic!("no text for this value");
    }
}

struct Fails;

impl fmt::Display for Fails {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("some")?;
        Err(fmt::Error)
    }
}

struct Endless;

impl fmt::Display for Endless {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        loop {
            f.write_str("endless ")?;
        }
    }
}

struct Traces;

impl fmt::Display for Traces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        atrace_begin_args(TAG, format_args!("within{}", 1), &[]);
        let _within = begin_scoped_event(TAG, "scope");
        atrace_end(TAG);
        f.write_str("traces")
    }
}

#[test]
fn values_that_misbehave_harm_nothing() {
    let name = case!({
        std::panic::set_hook(Box::new(|_| {}));
        atrace_instant_args(TAG, format_args!("a {} b", Panics("half", false)), &[]);
        atrace_instant_args(TAG, format_args!("a {} b", Panics("bomb", true)), &[]);
        atrace_instant_args(TAG, format_args!("{}", Panics("", false)), &[]);
        atrace_counter(TAG, format_args!("n{}", Panics("", false)), 9);
        atrace_instant_args(
            TAG,
            |name: &mut NameWriter<'_>| {
                name.push_fmt(format_args!("{}", Panics("p", false)));
                name.push_str(" goes on");
            },
            &[],
        );
        atrace_instant_args(TAG, format_args!("a {} b", Fails), &[]);
        atrace_instant_args(TAG, format_args!("<{}>", Traces), &[]);
        atrace_async_begin_named(TAG, format_args!("{Endless}"), 77);
        atrace_async_begin_named(
            TAG,
            |name: &mut NameWriter<'_>| {
                while write!(name, "full ").is_ok() {}
                name.push_str("nothing");
                name.push_fmt(format_args!("{}", Panics("p", true)));
            },
            78,
        );
        // If the closure that writes the name panics, the library does not catch the panic, and no event is written.
        let passed =
            std::panic::catch_unwind(|| atrace_begin_args(TAG, |_: &mut NameWriter<'_>| panic!("own"), &[]));
        assert!(passed.is_err());
        atrace_end(TAG);
    });
    let place = Place::file().on();
    let pid = place.run(&name).pid;
    let p = format!("|{pid}");
    let room = 1023 - format!("S{p}||77").len();
    let endless: String = "endless ".chars().cycle().take(room).collect();
    let full: String = "full ".chars().cycle().take(room).collect();
    let expected = [
        format!("I{p}|a half<panicked>"),
        format!("I{p}|a bomb<panicked>"),
        format!("I{p}|<panicked>"),
        format!("C{p}|n<panicked>|9"),
        format!("I{p}|p<panicked> goes on"),
        format!("I{p}|a some"),
        format!("B{p}|within1B{p}|scopeE{p}E{p}I{p}|<traces>"),
        format!("S{p}|{endless}|77"),
        format!("S{p}|{full}|78"),
        format!("E{p}"),
    ];
    assert_eq!(place.text(), expected.concat());
}

#[test]
fn a_full_message_is_exactly_1023_bytes() {
    let name = case!({
        let room = 1023 - format!("B|{}|", common::pid()).len();
        for length in [room - 1, room, room + 1, room + 1000] {
            atrace_begin(TAG, &"x".repeat(length));
        }
    });
    let Some(place) = Place::kernel(&name) else { return };
    let place = place.on();
    place.run(&name);
    let lengths: Vec<usize> = place.messages().iter().map(String::len).collect();
    assert_eq!(lengths, [1022, 1023, 1023, 1023]);
}
