//! Fields as text, in AOSP's form, written straight to where it is needed.
//!
//! That is the message of an event on the stack, or the slot of a span. Each type of value has its own way
//! there, so that only what has no other form goes through `Debug`. Formatting runs code of the program,
//! which may do anything: trace (it gets a message of its own, and nothing is locked or borrowed that it
//! could meet), trace itself without end (below a few levels its fields are left out), or panic (what it
//! wrote so far stays, then comes `<panicked>`, and the program goes on).

use std::cell::Cell;
use std::fmt::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};

use atrace::NameWriter;
use tracing_core::field::{Field, Visit};
use tracing_core::{Event, Metadata};

/// A field of an event whose integer goes to the counter that the rest of its name names.
pub(crate) const COUNTER: &str = "counter.";
/// A field of a span that asks for an async slice on the named track.
pub(crate) const TRACK: &str = "atrace.track";
/// The bytes of text that are kept of a span's fields: a message has no more.
pub(crate) const FIELDS_MAX: usize = 1023;

const MESSAGE: &str = "message";
/// Events within the formatting of an event, before their fields are left out.
const DEEPEST: u32 = 4;

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Calls `format` unless this thread is formatting too deep below another; tells whether it came to its end.
fn guarded(format: impl FnOnce()) -> Formatted {
    let depth = DEPTH.get();
    if depth >= DEEPEST {
        return Formatted::NotAtAll;
    }
    DEPTH.set(depth + 1);
    let result = catch_unwind(AssertUnwindSafe(format));
    DEPTH.set(depth);
    match result {
        Ok(()) => Formatted::Whole,
        Err(panic) => {
            // The payload is the program's too: its drop may panic.
            let _ = catch_unwind(AssertUnwindSafe(|| drop(panic)));
            Formatted::Panicked
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Formatted {
    Whole,
    Panicked,
    NotAtAll,
}

const PANICKED: &str = "<panicked>";

/// Writes an event: `message, key = value, …`, without `fields` the message alone, and `LEVEL event` where
/// that is nothing.
pub(crate) fn write_event(event: &Event<'_>, fields: bool, writer: &mut NameWriter<'_>) {
    let metadata = event.metadata();
    let mut text = EventText { writer, fields, is_log: is_log(metadata), begun: false };
    let formatted = guarded(|| event.record(&mut text));
    let begun = text.begun;
    if formatted == Formatted::Panicked {
        writer.push_str(PANICKED);
    } else if !begun {
        writer.push_str(metadata.level().as_str());
        writer.push_str(" event");
    }
}

/// Tells whether the event is a record of the `log` crate, brought by `tracing-log`, whose fields say where
/// it is from.
fn is_log(metadata: &Metadata<'_>) -> bool {
    metadata.target() == "log" && metadata.name() == "log event"
}

/// The text of an event.
struct EventText<'a, 'b> {
    writer: &'a mut NameWriter<'b>,
    fields: bool,
    is_log: bool,
    /// Something was written.
    begun: bool,
}

impl EventText<'_, '_> {
    /// Writes as `fmt::Write`, which is a call: `push_str` is much code each time, except for a literal.
    fn push(&mut self, text: &str) {
        self.begun |= !text.is_empty();
        let _ = self.writer.write_str(text);
    }

    /// Writes the separator, if there is something to separate.
    #[inline(always)]
    fn separate(&mut self) {
        if self.begun {
            self.writer.push_str(", ");
        }
    }

    fn skips(&self, name: &str) -> bool {
        self.is_log && name.starts_with("log.")
    }
}

impl Write for EventText<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text);
        if self.writer.is_full() { Err(fmt::Error) } else { Ok(()) }
    }
}

/// What a visitor of fields does with the names.
trait Text: Write {
    /// Writes what stands before the value of the field, and how it ends; None if the field is not wanted.
    fn head(&mut self, field: &Field, kind: Value) -> Option<&'static str>;

    fn put(&mut self, text: &str);
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Value {
    Text,
    Integer,
    Other,
}

impl Text for EventText<'_, '_> {
    #[inline]
    fn head(&mut self, field: &Field, kind: Value) -> Option<&'static str> {
        let name = field.name();
        if name == MESSAGE {
            self.separate();
            return Some("");
        }
        if !self.fields || self.skips(name) || (kind == Value::Integer && name.starts_with(COUNTER)) {
            return None;
        }
        self.separate();
        self.push(name);
        if kind == Value::Text {
            self.writer.push_str(" = \"");
            Some("\"")
        } else {
            self.writer.push_str(" = ");
            Some("")
        }
    }

    fn put(&mut self, text: &str) {
        self.push(text);
    }
}

/// The fields of a span, each behind a separator.
pub(crate) struct SpanText<'a> {
    fields: Option<&'a mut String>,
    track: &'a mut String,
    is_full: bool,
}

impl<'a> SpanText<'a> {
    /// Writes the fields to `fields`, if they are wanted, and the name of the track, if there is one, to
    /// `track`.
    pub(crate) fn write(
        fields: Option<&'a mut String>,
        track: &'a mut String,
        record: impl FnOnce(&mut dyn Visit),
    ) {
        let mut text = SpanText { fields, track, is_full: false };
        if guarded(|| record(&mut text)) == Formatted::Panicked {
            text.put(PANICKED);
        }
    }
}

impl SpanText<'_> {
    /// Adds text to fields as far as it fits.
    pub(crate) fn append(fields: &mut String, text: &str) {
        fields.push_str(cut(text, FIELDS_MAX.saturating_sub(fields.len()), &mut false));
    }
}

impl Write for SpanText<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.put(text);
        if self.is_full { Err(fmt::Error) } else { Ok(()) }
    }
}

impl Text for SpanText<'_> {
    fn head(&mut self, field: &Field, kind: Value) -> Option<&'static str> {
        let name = field.name();
        if self.fields.is_none() || name == TRACK {
            return None;
        }
        self.put(", ");
        self.put(name);
        let (before, after) = if kind == Value::Text { (" = \"", "\"") } else { (" = ", "") };
        self.put(before);
        Some(after)
    }

    fn put(&mut self, text: &str) {
        let Some(fields) = self.fields.as_deref_mut().filter(|_| !self.is_full) else { return };
        let text = cut(text, FIELDS_MAX.saturating_sub(fields.len()), &mut self.is_full);
        fields.push_str(text);
    }
}

/// As much of `text` as fits in `room` bytes.
fn cut<'a>(text: &'a str, room: usize, is_cut: &mut bool) -> &'a str {
    if text.len() <= room {
        return text;
    }
    *is_cut = true;
    let end = (0..=room).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    &text[..end]
}

/// The ways of the types, the same for every text.
macro_rules! visit {
    ($(fn $record:ident($type:ty);)*) => {
        $(fn $record(&mut self, field: &Field, value: $type) {
            if self.head(field, Value::Integer).is_some() {
                self.put(itoa::Buffer::new().format(value));
            }
        })*

        fn record_bool(&mut self, field: &Field, value: bool) {
            if self.head(field, Value::Other).is_some() {
                self.put(if value { "true" } else { "false" });
            }
        }

        fn record_f64(&mut self, field: &Field, value: f64) {
            self.record_debug(field, &value);
        }

        fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
            if self.head(field, Value::Other).is_some() {
                // An error is the text being full, or a value that gave up: what came out stays.
                let _ = write!(self, "{value:?}");
            }
        }

        fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
            if self.head(field, Value::Other).is_some() {
                let _ = write!(self, "{value}");
            }
        }
    };
}

impl Visit for EventText<'_, '_> {
    visit! {
        fn record_i64(i64);
        fn record_u64(u64);
        fn record_i128(i128);
        fn record_u128(u128);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if let Some(tail) = self.head(field, Value::Text) {
            self.push(value);
            if !tail.is_empty() {
                self.writer.push_str("\"");
            }
        }
    }
}

impl Visit for SpanText<'_> {
    visit! {
        fn record_i64(i64);
        fn record_u64(u64);
        fn record_i128(i128);
        fn record_u128(u128);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == TRACK {
            self.track.clear();
            self.track.push_str(cut(value, FIELDS_MAX, &mut false));
        } else if let Some(tail) = self.head(field, Value::Text) {
            self.put(value);
            self.put(tail);
        }
    }
}

/// Tells whether one of the fields may be a counter.
#[inline]
pub(crate) fn has_counter(metadata: &Metadata<'_>) -> bool {
    metadata.fields().iter().any(|field| field.name().starts_with(COUNTER))
}

/// Calls `counter` with the names and values of the event's counters; tells whether there is something else
/// to be shown.
pub(crate) fn each_counter(event: &Event<'_>, counter: impl FnMut(&'static str, i64)) -> bool {
    let mut counters = Counters { counter, others: false, found: false };
    event.record(&mut counters);
    counters.others || !counters.found
}

/// Looks at integers and formats nothing: no code of the program runs.
struct Counters<F> {
    counter: F,
    found: bool,
    others: bool,
}

impl<F: FnMut(&'static str, i64)> Counters<F> {
    fn integer(&mut self, field: &Field, value: impl TryInto<i64>, beyond: i64) {
        match field.name().strip_prefix(COUNTER) {
            Some(name) => {
                self.found = true;
                (self.counter)(name, value.try_into().unwrap_or(beyond));
            }
            None => self.others = true,
        }
    }
}

impl<F: FnMut(&'static str, i64)> Visit for Counters<F> {
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.integer(field, value, i64::MAX);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.integer(field, value, i64::MAX);
    }

    fn record_i128(&mut self, field: &Field, value: i128) {
        self.integer(field, value, if value < 0 { i64::MIN } else { i64::MAX });
    }

    fn record_u128(&mut self, field: &Field, value: u128) {
        self.integer(field, value, i64::MAX);
    }

    fn record_debug(&mut self, _: &Field, _: &dyn fmt::Debug) {
        self.others = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_follows_what_was_cut() {
        for (room, kept) in [(0, 0), (1, 0), (2, 2), (3, 2), (4, 4), (9, 4)] {
            let before = "x".repeat(FIELDS_MAX - room);
            let (mut fields, mut track) = (before.clone(), String::new());
            // Cut within a character, it leaves room for what is shorter.
            let mut text = SpanText { fields: Some(&mut fields), track: &mut track, is_full: false };
            let has_room = text.write_str("éé").is_ok();
            assert_eq!(has_room, room >= 4, "{room}");
            let more = text.write_str("a").is_ok();
            assert_eq!(more, room > 4, "{room}");
            let after = if room > 4 { "a" } else { "" };
            assert_eq!(fields[before.len()..], format!("{}{after}", &"éé"[..kept]), "{room}");
        }
    }
}
