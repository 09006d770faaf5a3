//! Formats the bill as JSON.

use std::fmt::{Debug, Write as _};

use crate::bill::{Bill, LEVELS, Line, NOT_BILLED};
use crate::directives;
use crate::estimate::Estimate;
use crate::raw::Call;

impl Bill {
    /// Returns the bill as a JSON object, with all callsites.
    ///
    /// Times are in nanoseconds. Each callsite, each directive and the object `total` have the members `ns` (the
    /// estimated cost or, for a directive, the saving), and `low` and `high` (the bounds of the estimate's 99 %
    /// interval). `whole_ns` is the processor time of the process without the time that metering has taken. If `whole`
    /// is `"elapsed time"`, the system does not report the processor time, and `whole_ns` is computed from the elapsed
    /// time. `other_threads_ns` is the processor time of threads that made no call, such as writer threads, or null.
    /// `file`, `line`, `target` and `level` are missing if they are unknown. The member `calls` of a callsite has the
    /// number of calls of each kind.
    pub fn to_json(&self) -> String {
        let callsites: Vec<_> = self.lines.iter().map(callsite).collect();
        let directive =
            |it: directives::Directive| format!("{{\"directive\":{},{}}}", text(&it.text), time(it.ns));
        let directives: Vec<_> = directives::best(self).into_iter().map(directive).collect();
        format!(
            "{{\"subject\":{},\"whole\":{},\"whole_ns\":{:.0},\"other_threads_ns\":{},\"elapsed_ns\":{:.0},\"metering_ns\":{:.0},\
             \"untimed_call_ns\":{:.2},\"calls\":{},\"timed_calls\":{},\"total\":{{{}}},\"not_billed\":{},\
             \"callsites\":[{}],\"directives\":[{}]}}",
            text(&self.subject),
            text(if self.is_processor_time { "processor time" } else { "elapsed time" }),
            self.whole_ns,
            self.others_ns.map_or("null".to_owned(), |ns| ns.to_string()),
            self.elapsed_ns,
            self.metering_ns,
            self.untimed_ns,
            self.calls,
            self.timed,
            time(self.total_ns),
            text(NOT_BILLED),
            callsites.join(","),
            directives.join(",")
        )
    }
}

fn callsite(line: &Line) -> String {
    let word = |it: &dyn Debug| text(&format!("{it:?}").to_lowercase());
    let mut all = format!("{{\"name\":{},\"kind\":{}", text(&line.name), word(&line.kind));
    if line.level > 0 {
        let level = LEVELS[usize::from(line.level)];
        let _ = write!(all, ",\"target\":{},\"level\":{}", text(&line.target), text(level));
    }
    if let Some((file, number)) = &line.place {
        let _ = write!(all, ",\"file\":{},\"line\":{number}", text(file));
    }
    let calls = Call::ALL.map(|call| format!("{}:{}", word(&call), line.calls(call)));
    let _ = write!(
        all,
        ",\"fields\":{},\"uses\":{},\"each_ns\":{:.1},{},\"calls\":{{{}}}}}",
        line.fields,
        line.uses(),
        line.each_ns(),
        time(line.ns),
        calls.join(",")
    );
    all
}

fn time(ns: Estimate) -> String {
    format!("\"ns\":{:.0},\"low\":{:.0},\"high\":{:.0}", ns.sum, ns.low(), ns.high())
}

/// Returns the text as a JSON string, in quotes and escaped.
fn text(text: &str) -> String {
    let mut quoted = String::from('"');
    for char in text.chars() {
        match char {
            '"' | '\\' => quoted.extend(['\\', char]),
            char if char < ' ' => quoted += &format!("\\u{:04x}", u32::from(char)),
            char => quoted.push(char),
        }
    }
    quoted.push('"');
    quoted
}
