//! Formats fields as text, in AOSP's form, into a message or a text on the stack.
//!
//! Each type of value has its own method; only values without one are formatted with `Debug`. That runs code of the
//! program, which may do anything:
//!
//! - It may trace. It gets a separate message, and nothing that it could need is locked or borrowed.
//! - It may trace recursively without end. Below a few levels fields are left out.
//! - It may panic. The text written so far stays, `<panicked>` follows, and the program continues.

use std::cell::Cell;
use std::fmt::{self, Write as _};

use atrace::{Enabled, NameWriter};
use tracing_core::field::{Field, Visit};
use tracing_core::{Event, Metadata};

/// A field of an event whose integer goes to the counter that the rest of its name names.
pub(crate) const COUNTER: &str = "counter.";
/// A field of a span that asks for an async slice on the named track.
pub(crate) const TRACK: &str = "atrace.track";
/// The bytes of text that are kept of a span: a message has no more.
pub(crate) const TEXT_MAX: usize = 1023;
pub(crate) const SEPARATOR: &str = ", ";

const IS: &str = " = ";
pub(crate) const MESSAGE: &str = "message";
/// Events within the formatting of an event, before their fields are left out.
const DEEPEST: u32 = 4;

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Calls `format`, which does not panic, unless this thread is formatting too deep below another.
#[inline(always)]
pub(crate) fn unless_too_deep(format: impl FnOnce()) {
    let depth = DEPTH.get();
    if depth < DEEPEST {
        DEPTH.set(depth + 1);
        format();
        DEPTH.set(depth);
    }
}

/// Calls `format` unless this thread is formatting too deep below another. Where it panics, `<panicked>` follows.
#[inline(always)]
fn guarded<'a>(writer: &mut NameWriter<'a>, format: impl FnOnce(&mut NameWriter<'a>)) {
    unless_too_deep(|| writer.__catching(format));
}

/// Writes an event: `message, key = value, …`, without `fields` the message alone, and `LEVEL event` where
/// that is nothing.
#[inline(always)]
pub(crate) fn write_event(event: &Event<'_>, fields: bool, writer: &mut NameWriter<'_>) {
    let metadata = event.metadata();
    let start = writer.__len();
    let of = Of::Event { is_log: is_log(metadata) };
    guarded(writer, |writer| event.record(&mut FieldText { writer, first: start, fields, of }));
    if writer.__len() == start {
        writer.__push_what_fits(&[metadata.level().as_str(), " event"]);
    }
}

/// Tells whether the event is a record of the `log` crate, brought by `tracing-log`, whose fields say where
/// it is from.
fn is_log(metadata: &Metadata<'_>) -> bool {
    metadata.target() == "log" && metadata.name() == "log event"
}

/// Calls `then` with the name and behind it, if they are wanted, the fields of a span, each behind a separator; and with
/// the name of its track, which is empty if it has none.
pub(crate) fn with_span<T>(
    name: &str,
    fields: bool,
    record: &dyn Fn(&mut dyn Visit),
    then: impl FnOnce(&str, &str) -> T,
) -> T {
    atrace::__with_text(
        |writer| {
            let mut track = String::new();
            writer.__push_pieces([name]);
            let of = Of::Span { track: &mut track };
            guarded(writer, |writer| record(&mut FieldText { writer, first: NOWHERE, fields, of }));
            track
        },
        |text, track| then(text, &track),
    )
}

/// Adds as much of `text` as fits to a text that is kept.
pub(crate) fn append(kept: &mut String, text: &str) {
    let room = TEXT_MAX.saturating_sub(kept.len()).min(text.len());
    let end = (0..=room).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    kept.push_str(&text[..end]);
}

/// In place of [`FieldText::first`], for a span: its name was written before.
const NOWHERE: usize = usize::MAX;

/// A visitor that writes what it visits.
struct FieldText<'a, 'b> {
    writer: &'a mut NameWriter<'b>,
    /// Where the first of an event's text is written, which needs no separator.
    first: usize,
    /// Not only messages are wanted.
    fields: bool,
    of: Of<'a>,
}

enum Of<'a> {
    Event { is_log: bool },
    Span { track: &'a mut String },
}

/// How a field is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shown {
    Not,
    /// Its value alone.
    AsMessage,
    WithName,
}

impl FieldText<'_, '_> {
    #[inline(always)]
    fn shows(&self, name: &str, is_integer: bool) -> Shown {
        let is_wanted = match self.of {
            Of::Event { .. } if name == MESSAGE => return Shown::AsMessage,
            Of::Event { is_log } => {
                !(is_log && name.starts_with("log.") || is_integer && name.starts_with(COUNTER))
            }
            Of::Span { .. } => name != TRACK,
        };
        if is_wanted && self.fields { Shown::WithName } else { Shown::Not }
    }

    /// Tells whether it writes the first of an event's text.
    #[inline(always)]
    fn is_first(&self) -> bool {
        self.writer.__len() == self.first
    }

    fn text(&mut self, field: &Field, is_integer: bool, text: &str) {
        let name = field.name();
        match self.shows(name, is_integer) {
            Shown::Not => {}
            Shown::WithName if self.is_first() => self.writer.__push_what_fits(&[name, IS, text]),
            Shown::WithName => self.writer.__push_pieces([SEPARATOR, name, IS, text]),
            Shown::AsMessage if self.is_first() => self.writer.__push_what_fits(&[text]),
            Shown::AsMessage => self.writer.__push_what_fits(&[SEPARATOR, text]),
        }
    }

    #[inline]
    fn formatted(&mut self, field: &Field, is_integer: bool, value: fmt::Arguments<'_>) {
        let name = field.name();
        match self.shows(name, is_integer) {
            Shown::Not => return,
            Shown::WithName if self.is_first() => self.writer.__push_what_fits(&[name, IS]),
            Shown::WithName => self.writer.__push_pieces([SEPARATOR, name, IS]),
            Shown::AsMessage if self.is_first() => {}
            Shown::AsMessage => self.writer.__push_what_fits(&[SEPARATOR]),
        }
        // An error is the text being full, or a value that gave up: what came out stays.
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
            Shown::WithName if self.is_first() => {
                self.writer.__push_what_fits(&[name, " = \"", value, "\""]);
            }
            Shown::WithName => self.writer.__push_pieces([SEPARATOR, name, " = \"", value, "\""]),
            Shown::AsMessage => self.text(field, false, value),
            Shown::Not => {
                if let Of::Span { track } = &mut self.of
                    && name == TRACK
                {
                    track.clear();
                    append(track, value);
                }
            }
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // The message comes first, if there is one.
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

/// Tells whether one of the fields may be a counter.
#[inline]
pub(crate) fn has_counter(metadata: &Metadata<'_>) -> bool {
    metadata.fields().iter().any(|field| field.name().starts_with(COUNTER))
}

/// Writes the event's counters, those with a fraction if they are; tells whether there is something else to be shown.
#[inline(never)]
pub(crate) fn write_counters(event: &Event<'_>, enabled: Enabled, fractions: bool) -> bool {
    let mut counters = Counters { enabled, fractions, others: false, found: false };
    event.record(&mut counters);
    counters.others || !counters.found
}

/// Looks at numbers and formats nothing: no code of the program runs.
struct Counters {
    enabled: Enabled,
    fractions: bool,
    found: bool,
    others: bool,
}

impl Counters {
    fn integer(&mut self, field: &Field, value: impl TryInto<i64>, beyond: i64) {
        match field.name().strip_prefix(COUNTER) {
            Some(name) => {
                self.found = true;
                self.enabled.int64(name, value.try_into().unwrap_or(beyond));
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
                self.enabled.f64(name, value);
            }
            _ => self.others = true,
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn fmt::Debug) {
        self.others = true;
    }
}
