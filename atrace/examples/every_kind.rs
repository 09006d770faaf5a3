//! Writes every kind of event under ordinary and hostile names, and prints what Perfetto should find in the
//! trace.
//!
//! `.ci/perfetto/every-kind.sh` runs this program with a separate trace buffer, and compares the output with
//! the result of Perfetto's trace processor. The output is JSON in the form that `.ci/perfetto/check.mjs`
//! reads.

use atrace::control::{Control, ThisProcess};
use atrace::{
    AtraceTag, atrace_async_begin, atrace_async_end, atrace_async_for_track_begin,
    atrace_async_for_track_end, atrace_begin, atrace_end, atrace_instant, atrace_instant_for_track,
    atrace_int, atrace_int64, begin_scoped_event, begin_scoped_event_args,
};

const TAG: AtraceTag = AtraceTag::App;

/// A name, and how Perfetto shows it in three positions: in a begin, at the end of another event, and before
/// another field.
struct Name {
    given: String,
    begin: String,
    last: String,
    inner: String,
}

fn names() -> Vec<Name> {
    let same = |given: &str, shown: &str| Name {
        given: given.into(),
        begin: shown.into(),
        last: shown.into(),
        inner: shown.into(),
    };
    let bars = |given: &str, begin: &str| {
        let other = begin.replace('|', "/");
        Name { given: given.into(), begin: begin.into(), last: other.clone(), inner: other }
    };
    // The longest name has two bytes per character, so that the limit may fall within a character. `B|`, the pid and
    // `|` come before the name.
    let head = 2 + std::process::id().to_string().len() + 1;
    let room = |behind: usize| "é".repeat((1023 - head - behind) / 2);
    vec![
        same("plain", "plain"),
        same("new\nline", "new?line"),
        same("nul\0byte", "nul?byte"),
        same("tab\t, return\r, delete\x7f.", "tab?, return?, delete?."),
        same("quotes \" ' and \\ <b> %s", "quotes \" ' and \\ <b> %s"),
        same("a </script> b", "a ?/script> b"),
        same("ünïcödé ✓ 🦀", "ünïcödé ✓ 🦀"),
        bars("a|b|c", "a|b|c"),
        bars("x\nE|1\nB|1|forged", "x?E|1?B|1|forged"),
        Name {
            given: String::new(),
            begin: "[empty slice name]".into(),
            last: "?".into(),
            inner: "?".into(),
        },
        Name {
            given: "   ".into(),
            begin: "[empty slice name]".into(),
            last: "  ?".into(),
            inner: "   ".into(),
        },
        // The cookie and the value below have one digit.
        Name { given: "é".repeat(500_000), begin: room(0), last: room(0), inner: room(2) },
    ]
}

/// Waits for more than a microsecond. A text trace has whole microseconds, so a shorter slice would not
/// differ from an instant.
fn pause() {
    std::thread::sleep(std::time::Duration::from_micros(20));
}

fn json(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let switched = Control::open()?.enable(ThisProcess)?;
    let (mut slices, mut asyncs, mut instants, mut counters) = (vec![], vec![], vec![], vec![]);
    for name in names() {
        let Name { given, begin, last, inner } = &name;
        atrace_begin(TAG, given);
        pause();
        atrace_end(TAG);
        // Perfetto takes two of the names for empty.
        let count = names().iter().filter(|other| other.begin == *begin).count();
        slices.push(format!("{{\"name\": {}, \"count\": {count}}}", json(begin)));

        atrace_async_begin(TAG, given, 7);
        pause();
        atrace_async_end(TAG, given, 7);
        asyncs.push(format!("{{\"name\": {}, \"cookie\": 7}}", json(inner)));

        atrace_async_for_track_begin(TAG, "row", given, 7);
        pause();
        atrace_async_for_track_end(TAG, "row", 7);
        asyncs.push(format!("{{\"name\": {}, \"track\": \"row\"}}", json(&row(inner))));

        atrace_instant(TAG, given);
        instants.push(format!("{{\"name\": {}}}", json(last)));

        atrace_instant_for_track(TAG, "moments", given);
        instants.push(format!("{{\"name\": {}, \"track\": \"moments\"}}", json(&moment(last))));

        atrace_int(TAG, given, 7);
        counters.push(format!("{{\"name\": {}, \"values\": [7]}}", json(inner)));
    }

    // A track that is too long for its events is cut to the same text in all of them, so that its slices still end.
    let track = "t".repeat(5000);
    let head = 2 + std::process::id().to_string().len() + 1;
    let shown = "t".repeat(1023 - head - 17);
    atrace_async_for_track_begin(TAG, &track, "on a long track", i32::MIN);
    pause();
    atrace_async_for_track_end(TAG, &track, i32::MIN);
    // Beside the longest cookie, there is only room for the first bytes of the name.
    asyncs.push(format!("{{\"name\": \"on a\", \"track\": {}}}", json(&shown)));

    for value in [i64::from(i32::MIN), 0, 1 << 53] {
        atrace_int64(TAG, "extremes", value);
    }
    counters.push("{\"name\": \"extremes\", \"values\": [-2147483648, 0, 9007199254740992]}".to_owned());
    {
        let _outer = begin_scoped_event(TAG, "outer");
        let _inner = begin_scoped_event_args(TAG, format_args!("inner {}", 1), &[]);
        pause();
    }
    slices.push("{\"name\": \"outer\"}".to_owned());
    slices.push("{\"name\": \"inner 1\", \"parent\": \"outer\"}".to_owned());
    // Some texts could make Perfetto's reader stop without an error. This last instant shows that it did not stop.
    atrace_instant(TAG, "the end");
    instants.push("{\"name\": \"the end\"}".to_owned());
    switched.restore()?;

    println!("{{\"pid\": {}, \"exact\": true,", std::process::id());
    for (key, entries) in
        [("slices", slices), ("async", asyncs), ("instants", instants), ("counters", counters)]
    {
        println!("\"{key}\": [\n  {}\n],", entries.join(",\n  "));
    }
    println!("\"stats\": {{\"systrace_parse_failure\": 0}}}}");
    Ok(())
}

/// Returns a long name as it is shown on the track `row`: shortened to leave room for the track, a `|` and the cookie.
fn row(name: &str) -> String {
    cut_for_track(name, "row")
}

/// Returns a long name as it is shown on the track `moments`: shortened to leave room for the track and a
/// `|`.
fn moment(name: &str) -> String {
    cut_for_track(name, "moments")
}

fn cut_for_track(name: &str, track: &str) -> String {
    if name.chars().count() < 100 {
        return name.to_owned();
    }
    let head = 2 + std::process::id().to_string().len() + 1;
    let behind = if track == "row" { 2 } else { 0 };
    "é".repeat((1023 - head - track.len() - 1 - behind) / 2)
}
