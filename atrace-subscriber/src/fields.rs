//! Formats fields as text in the format of AOSP's subscriber. The text is written into a message, or into a buffer on
//! the stack.
//!
//! For integers, booleans, strings and errors, the visitor has methods of its own; an error is formatted with
//! `Display`. All other values, floating-point numbers among them, are formatted with `Debug`. The `Debug` of a value,
//! and the `Display` of an error, are code of the program, which may do anything:
//!
//! - The code may write events. Such an event gets a separate message, and while `Debug` runs, no lock that the code
//!   could need is held.
//! - The code may write an event with a field that the same code formats, and so recurse without end. So fields are
//!   left out if more than a few formattings are nested.
//! - The code may panic. The text that was written before stays, `<panicked>` follows, and the program
//!   continues.

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt::{self, Write as _};

use atrace::tracer::TextBuffer;
use atrace::{AtraceTag, NameWriter, atrace_f64, atrace_int64};
use atrace_sys::panics::{PANICKED, is_caught};
use atrace_sys::text::cut;
use tracing_core::field::{Field, Visit};
use tracing_core::{Event, Metadata};

/// The prefix of the names of fields that set a counter. The rest of the field's name is the name of the
/// counter.
pub(crate) const COUNTER: &str = "counter.";
/// The name of the field that gives a span an async slice. The value of the field is the name of the track.
pub(crate) const TRACK: &str = "atrace.track";
/// The name of the field whose value names a span, for OpenTelemetry and for this crate.
pub(crate) const OTEL_NAME: &str = "otel.name";
/// The maximum length of a span's stored text in bytes. A message has no room for more.
pub(crate) const TEXT_MAX: usize = 1023;
pub(crate) const SEPARATOR: &str = ", ";

const IS: &str = " = ";
pub(crate) const MESSAGE: &str = "message";
/// The maximum number of formattings that may be nested in each other. An event or span within that many formattings is
/// written without its fields.
const DEEPEST: u32 = 4;

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Calls `format`, which must not panic. Does not call `format` if formatting is nested too deep on this thread.
#[inline(always)]
pub(crate) fn unless_too_deep(format: impl FnOnce()) {
    let depth = DEPTH.get();
    if depth < DEEPEST {
        DEPTH.set(depth + 1);
        format();
        DEPTH.set(depth);
    }
}

/// Calls `format`, unless formatting is nested too deep on this thread. If `format` panics, `<panicked>` is written
/// and the panic is caught.
#[inline(always)]
fn guarded<'a>(writer: &mut NameWriter<'a>, format: impl FnOnce(&mut NameWriter<'a>)) {
    unless_too_deep(|| catching(writer, format));
}

/// Calls `format`, and appends `<panicked>` if it panics.
#[inline(always)]
pub(crate) fn catching<'a>(writer: &mut NameWriter<'a>, format: impl FnOnce(&mut NameWriter<'a>)) {
    if is_caught(|| format(writer)) {
        push(writer, [PANICKED]);
    }
}

/// Appends the pieces one after the other. This function is not inlined, because it is used in rare cases, and for
/// values, which may be long.
#[inline(never)]
pub(crate) fn push<const N: usize>(writer: &mut NameWriter<'_>, pieces: [&str; N]) {
    writer.push_pieces(pieces);
}

/// Writes the text of an event: `message, key = value, …`, or only the message if `fields` is false. If this text is
/// empty, writes `LEVEL event`.
#[inline(always)]
pub(crate) fn write_event(event: &Event<'_>, fields: bool, writer: &mut NameWriter<'_>) {
    let metadata = event.metadata();
    let start = writer.position();
    let of = Subject::Event { is_log: is_log(metadata) };
    guarded(writer, |writer| event.record(&mut FieldText { writer, first: start, fields, of }));
    if writer.position() == start {
        push(writer, [metadata.level().as_str(), " event"]);
    }
}

/// Returns whether the event is a record of the `log` crate, passed on by `tracing-log`. Such an event has fields
/// `log.…` with the record's origin.
fn is_log(metadata: &Metadata<'_>) -> bool {
    metadata.target() == "log" && metadata.name() == "log event"
}

/// Calls `then` with the text of a span and with the name of its track. The text is the span's name and, if `fields` is
/// true, its fields, each after a separator. The track's name is empty if the span has no field [`TRACK`].
pub(crate) fn with_span<T>(
    name: &str,
    fields: bool,
    record: &dyn Fn(&mut dyn Visit),
    then: impl FnOnce(&str, &str) -> T,
) -> T {
    let mut track = String::new();
    let mut text = TextBuffer::default();
    let shown = text.write(|writer| {
        writer.push_pieces([name]);
        let of = Subject::Span { track: &mut track };
        guarded(writer, |writer| record(&mut FieldText { writer, first: NOWHERE, fields, of }));
    });
    then(shown, &track)
}

/// Writes the name that a field gives to a span into `buffer`, and returns the name: the value of the first field that
/// `record` visits and that is listed in `names`. The name is empty if there is no such field.
#[cold]
#[inline(never)]
pub(crate) fn name_in<'a>(
    buffer: &'a mut TextBuffer,
    names: &[Cow<'static, str>],
    record: &dyn Fn(&mut dyn Visit),
) -> &'a str {
    buffer.write(|writer| guarded(writer, |writer| record(&mut NameField { writer, names })))
}

/// A visitor that writes the name that a field gives to a span.
struct NameField<'a, 'b> {
    writer: &'a mut NameWriter<'b>,
    names: &'a [Cow<'static, str>],
}

impl NameField<'_, '_> {
    fn is_name(&self, field: &Field) -> bool {
        self.writer.position() == 0 && self.names.iter().any(|name| name == field.name())
    }
}

impl Visit for NameField<'_, '_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        if self.is_name(field) {
            push(self.writer, [value]);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if self.is_name(field) {
            // An error means that the text is full or that the value's formatting failed. The text so far stays.
            let _ = write!(self.writer, "{value:?}");
        }
    }
}

/// Appends `text` to a stored text, and cuts it if there is not enough room.
pub(crate) fn append(stored: &mut String, text: &str) {
    stored.push_str(cut(text, TEXT_MAX.saturating_sub(stored.len())));
}

/// A value of [`FieldText::first`] that the length of a message never reaches. It is used for spans: the span's name is
/// the first text, so every field gets a separator.
const NOWHERE: usize = usize::MAX;

/// A visitor that writes fields as text.
struct FieldText<'a, 'b> {
    writer: &'a mut NameWriter<'b>,
    /// The length of the message before the text of the event is written. The first text of the event, which is at this
    /// position, gets no separator.
    first: usize,
    /// Whether fields other than the message are written.
    fields: bool,
    of: Subject<'a>,
}

enum Subject<'a> {
    Event { is_log: bool },
    Span { track: &'a mut String },
}

/// The form in which a field is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FieldForm {
    Not,
    /// Only the value of the field is written.
    AsMessage,
    WithName,
}

impl FieldText<'_, '_> {
    #[inline(always)]
    fn shows(&self, name: &str, is_integer: bool) -> FieldForm {
        let is_wanted = match self.of {
            Subject::Event { .. } if name == MESSAGE => return FieldForm::AsMessage,
            Subject::Event { is_log } => {
                !(is_log && name.starts_with("log.") || is_integer && name.starts_with(COUNTER))
            }
            Subject::Span { .. } => name != TRACK,
        };
        if is_wanted && self.fields { FieldForm::WithName } else { FieldForm::Not }
    }

    /// Returns whether the next text is the first text of an event.
    #[inline(always)]
    fn is_first(&self) -> bool {
        self.writer.position() == self.first
    }

    fn text(&mut self, field: &Field, is_integer: bool, text: &str) {
        let name = field.name();
        match self.shows(name, is_integer) {
            FieldForm::Not => {}
            FieldForm::WithName if self.is_first() => push(self.writer, [name, IS, text]),
            FieldForm::WithName => self.writer.push_pieces([SEPARATOR, name, IS, text]),
            FieldForm::AsMessage if self.is_first() => push(self.writer, [text]),
            FieldForm::AsMessage => push(self.writer, [SEPARATOR, text]),
        }
    }

    #[inline]
    fn formatted(&mut self, field: &Field, is_integer: bool, value: fmt::Arguments<'_>) {
        let name = field.name();
        match self.shows(name, is_integer) {
            FieldForm::Not => return,
            FieldForm::WithName if self.is_first() => push(self.writer, [name, IS]),
            FieldForm::WithName => self.writer.push_pieces([SEPARATOR, name, IS]),
            FieldForm::AsMessage if self.is_first() => {}
            FieldForm::AsMessage => push(self.writer, [SEPARATOR]),
        }
        // An error means that the message is full or that a value's formatting failed. The text written so far stays.
        let _ = self.writer.write_fmt(value);
    }
}

impl Visit for FieldText<'_, '_> {
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.text(field, true, itoa::Buffer::new().format(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.text(field, true, itoa::Buffer::new().format(value));
    }

    fn record_i128(&mut self, field: &Field, value: i128) {
        self.formatted(field, true, format_args!("{value}"));
    }

    fn record_u128(&mut self, field: &Field, value: u128) {
        self.formatted(field, true, format_args!("{value}"));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.text(field, false, if value { "true" } else { "false" });
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let name = field.name();
        match self.shows(name, false) {
            FieldForm::WithName if self.is_first() => {
                push(self.writer, [name, " = \"", value, "\""]);
            }
            FieldForm::WithName => self.writer.push_pieces([SEPARATOR, name, " = \"", value, "\""]),
            FieldForm::AsMessage => self.text(field, false, value),
            FieldForm::Not => {
                if let Subject::Span { track } = &mut self.of
                    && name == TRACK
                {
                    track.clear();
                    append(track, value);
                }
            }
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // This is a fast path for the message, which is the first field if there is a message.
        if self.is_first() && field.name() == MESSAGE {
            let _ = write!(self.writer, "{value:?}");
            return;
        }
        self.formatted(field, false, format_args!("{value:?}"));
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.formatted(field, false, format_args!("{value}"));
    }
}

/// Returns whether a field of the callsite may be a counter.
#[inline]
pub(crate) fn has_counter(metadata: &Metadata<'_>) -> bool {
    metadata.fields().iter().any(|field| field.name().starts_with(COUNTER))
}

/// Writes the counters of an event. Counters with floating-point values are written only if `fractions` is true.
/// Returns whether the event also needs an instant, because it has other fields or no counter at all.
#[inline(never)]
pub(crate) fn write_counters(event: &Event<'_>, tag: AtraceTag, fractions: bool) -> bool {
    let mut counters = Counters { tag, fractions, others: false, found: false };
    event.record(&mut counters);
    counters.others || !counters.found
}

/// A visitor that writes counters. The visitor formats nothing, so no code of the program runs.
struct Counters {
    tag: AtraceTag,
    fractions: bool,
    found: bool,
    others: bool,
}

impl Counters {
    fn integer(&mut self, field: &Field, value: impl TryInto<i64>, beyond: i64) {
        match field.name().strip_prefix(COUNTER) {
            Some(name) => {
                self.found = true;
                atrace_int64(self.tag, name, value.try_into().unwrap_or(beyond));
            }
            None => self.others = true,
        }
    }
}

impl Visit for Counters {
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

    fn record_f64(&mut self, field: &Field, value: f64) {
        match field.name().strip_prefix(COUNTER) {
            Some(name) if self.fractions => {
                self.found = true;
                atrace_f64(self.tag, name, value);
            }
            _ => self.others = true,
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn fmt::Debug) {
        self.others = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_text_is_cut_at_a_character() {
        for (before, text, added) in [
            (0, "ä".repeat(600), TEXT_MAX - 1),
            (1, "ä".repeat(600), TEXT_MAX - 1),
            (TEXT_MAX - 3, "abc".to_owned(), 3),
            (TEXT_MAX - 3, "abä".to_owned(), 2),
            (TEXT_MAX, "a".to_owned(), 0),
        ] {
            let mut stored = "x".repeat(before);
            append(&mut stored, &text);
            assert_eq!(stored.len(), before + added, "{before}, {text}");
        }
    }
}
