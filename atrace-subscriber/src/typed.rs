//! Encodes fields as typed arguments, for Perfetto's memory.
//!
//! `fields.rs` formats the same fields as text. As described there, the formatting of a value may panic, write events
//! or recurse without end. All arguments of an event are encoded on the stack before the event uses shared memory. So
//! the formatting of a value may itself write events.

use std::fmt;

use atrace::tracer::{Enabled, Encoder, Scalar, Site, TextBuffer};
use atrace::{AtraceTag, NameWriter};
use tracing_core::Event;
use tracing_core::field::{Field, Visit};

use crate::callsites::CallsiteInfo;
use crate::fields::{self, COUNTER, MESSAGE, TRACK, push};

/// Writes an event: its counters and, unless it has only counters, an instant. The name of the instant is the message.
/// If the event has no message, the instant has the name that the program gave to the event, or else `module:line`.
pub(crate) fn event(enabled: Enabled, tag: AtraceTag, event: &Event<'_>, has_fields: bool) {
    let metadata = event.metadata();
    if fields::has_counter(metadata) && !fields::write_counters(event, tag, true) {
        return;
    }
    let known = CallsiteInfo::of(metadata);
    let site = known.event_site();
    let mut args = Encoder::new();
    let mut text = TextBuffer::default();
    let name = text.write(|message| {
        let of = Subject::Event(message);
        fields::unless_too_deep(|| event.record(&mut Arguments::new(&mut args, &site, has_fields, of)));
    });
    let name = if name.is_empty() { name_without_message(&mut text, &known) } else { name };
    enabled.instant_at(&site, Some(name), args.finish());
}

/// Writes the name of an event without a message.
#[cold]
#[inline(never)]
fn name_without_message<'a>(text: &'a mut TextBuffer, known: &CallsiteInfo) -> &'a str {
    text.write(|writer| match (known.own_name(), known.line()) {
        (Some(name), _) => push(writer, [name]),
        (None, Some(line)) => {
            push(writer, [known.module(), ":", itoa::Buffer::new().format(line)]);
        }
        (None, None) => push(writer, [known.module()]),
    })
}

/// Encodes the fields of a span, if `has_fields` is true. Returns the name of the span's track, or an empty text if the
/// span has no track of its own.
#[inline(never)]
pub(crate) fn encode_span(
    args: &mut Encoder,
    known: &CallsiteInfo,
    has_fields: bool,
    record: &dyn Fn(&mut dyn Visit),
) -> String {
    let mut track = String::new();
    let of = Subject::Span { track: &mut track };
    fields::unless_too_deep(|| record(&mut Arguments::new(args, &known.site(), has_fields, of)));
    track
}

/// A visitor that encodes fields as arguments.
struct Arguments<'a, 'b> {
    args: &'a mut Encoder,
    site: &'a Site<'a>,
    /// Whether fields other than the message are encoded.
    has_fields: bool,
    /// Whether the formatting of a value has panicked. After that, no further field is encoded.
    has_ended: bool,
    of: Subject<'a, 'b>,
}

enum Subject<'a, 'b> {
    /// The visitor encodes an event, and writes the event's message with this writer.
    Event(&'a mut NameWriter<'b>),
    Span {
        track: &'a mut String,
    },
}

impl<'a, 'b> Arguments<'a, 'b> {
    fn new(args: &'a mut Encoder, site: &'a Site<'a>, has_fields: bool, of: Subject<'a, 'b>) -> Self {
        Self { args, site, has_fields, has_ended: false, of }
    }

    /// Returns whether the field of the span or event becomes an argument.
    #[inline(always)]
    fn shows(&self, name: &str, is_number: bool) -> bool {
        let is_other = match self.of {
            Subject::Event(_) => name != MESSAGE && !(is_number && name.starts_with(COUNTER)),
            Subject::Span { .. } => name != TRACK,
        };
        is_other && self.has_fields && !self.has_ended
    }

    /// Encodes a number or a bool. One function serves all these types, because the code is large.
    #[inline(never)]
    fn number(&mut self, field: &Field, is_number: bool, value: Scalar) {
        let name = field.name();
        if self.shows(name, is_number) {
            self.args.scalar(self.site.key(field.index(), name), value);
        }
    }

    #[inline(never)]
    fn argument(&mut self, field: &Field, is_number: bool, value: fmt::Arguments<'_>) {
        let name = field.name();
        if self.shows(name, is_number) {
            self.has_ended = !self.args.formatted(self.site.key(field.index(), name), value);
        }
    }

    /// Formats a value as text: as the message of an event, or as an argument.
    #[inline(never)]
    fn formatted(&mut self, field: &Field, is_number: bool, value: fmt::Arguments<'_>) {
        if !self.message(field.name(), value) {
            self.argument(field, is_number, value);
        }
    }

    /// Writes the value if the field is an event's message. Returns false if the field is not a message.
    #[inline(always)]
    fn message(&mut self, name: &str, value: fmt::Arguments<'_>) -> bool {
        let Subject::Event(message) = &mut self.of else { return false };
        if name != MESSAGE {
            return false;
        }
        if !self.has_ended {
            let mut is_whole = false;
            fields::catching(message, |message| {
                // An error means that the text is full or that a value's formatting failed. The text written so far stays.
                let _ = fmt::Write::write_fmt(message, value);
                is_whole = true;
            });
            self.has_ended = !is_whole;
        }
        true
    }
}

impl Visit for Arguments<'_, '_> {
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.number(field, true, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.number(field, true, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.number(field, true, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.number(field, false, value.into());
    }

    fn record_i128(&mut self, field: &Field, value: i128) {
        self.formatted(field, true, format_args!("{value}"));
    }

    fn record_u128(&mut self, field: &Field, value: u128) {
        self.formatted(field, true, format_args!("{value}"));
    }

    #[inline]
    fn record_str(&mut self, field: &Field, value: &str) {
        let name = field.name();
        if self.shows(name, false) {
            return self.args.str(self.site.key(field.index(), name), value);
        }
        match &mut self.of {
            Subject::Event(message) if name == MESSAGE && !self.has_ended => push(message, [value]),
            Subject::Span { track } if name == TRACK => {
                track.clear();
                fields::append(track, value);
            }
            _ => {}
        }
    }

    /// Encodes a value by its `Debug`, or writes the message of an event. The message has a fast path, because most
    /// events have only a message.
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if !self.message(field.name(), format_args!("{value:?}")) {
            self.argument(field, false, format_args!("{value:?}"));
        }
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.formatted(field, false, format_args!("{value}"));
    }
}
