//! A tracer for the crate `log`, built on `atrace::tracer`: each record becomes an instant.
//!
//! For ATrace the instant's name is `LEVEL target: message`. For Perfetto the name is the message, and the level, the
//! target and the source location are data of the callsite.

use std::fmt::Write as _;

use atrace::tracer::{About, Encoder, GateCheck, PreparedTag, Site, TextBuffer};
use atrace::{AtraceTag, NameWriter};
use log::{Level, LevelFilter, Log, Metadata, Record, debug, error, info};

struct Tracer {
    tag: PreparedTag,
}

impl Log for Tracer {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        self.tag.check().is_some()
    }

    fn log(&self, record: &Record<'_>) {
        if let Some(check) = self.tag.check() {
            write_instant(check, record);
        }
    }

    fn flush(&self) {}
}

/// Writes a record as an instant. This function is not inlined, so that the caller stays small: tracing is usually off.
#[inline(never)]
fn write_instant(check: GateCheck, record: &Record<'_>) {
    let Some(enabled) = check.enabled() else { return };
    if enabled.is_perfetto() {
        let origin = Origin(record);
        // `log` has no static data for each callsite. So a callsite has no number, and its texts are sent with each
        // event.
        let site = Site::new(None, "log", record.level() as u8, &origin);
        let mut text = TextBuffer::default();
        let message = text.write(|writer| writer.push_fmt(*record.args()));
        let mut arguments = Encoder::new();
        arguments.str(site.key(0, "logger"), "log");
        enabled.instant_at(&site, Some(message), arguments.finish());
    } else {
        enabled.instant(|writer: &mut NameWriter<'_>| {
            // An error means that the message is full. The text written so far stays.
            let _ = write!(writer, "{} {}: ", record.level(), record.target());
            writer.push_fmt(*record.args());
        });
    }
}

/// The information that a record has about its callsite.
#[derive(Debug)]
struct Origin<'a>(&'a Record<'a>);

impl About for Origin<'_> {
    fn target(&self) -> &str {
        self.0.target()
    }

    fn location(&self) -> Option<(&str, u32)> {
        self.0.file().zip(self.0.line())
    }

    fn arguments(&self, each: &mut dyn FnMut(&str)) {
        each("logger");
    }
}

pub(crate) fn main() {
    static TRACER: Tracer = Tracer { tag: PreparedTag::new(AtraceTag::App) };
    const { assert!(Level::Error as u8 == 1 && Level::Trace as u8 == 5) }; // `Site::new` takes these numbers.
    log::set_logger(&TRACER).expect("no other logger is set");
    log::set_max_level(LevelFilter::Trace);
    info!("started");
    debug!("block {} of {}", 7, 9);
    error!("failed");
}
