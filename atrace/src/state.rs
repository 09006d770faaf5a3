//! The state page: what this process says of its tracing, for other processes to read. The doctor (`atrace doctor`) does.
//!
//! It is text, a line `key value` each, published when the properties were read again, events could not be written, a
//! filter came or went, or Perfetto's sessions want other tags; never by an event. Its keys:
//!
//! | key | value |
//! |---|---|
//! | `version` | of this crate |
//! | `pid` | of the process it is about; a forked child that has said nothing shows its parent's |
//! | `sink` | a [`SinkKind`](crate::SinkKind) |
//! | `reason` | why events go nowhere |
//! | `place`, `marker` | where the marker was opened; its descriptor, device and inode |
//! | `dropped` | how many events could not be written, and the last errno |
//! | `library`, `lacks` | the library that events go to; functions that it has not |
//! | `properties` | the property store |
//! | `serial`, `tags` | the serial of the flags when they were read last, and the tags enabled since, hexadecimal |
//! | `perfetto` | how it stands to Perfetto's service, if it was asked to; an error of the system's is `errno N` |
//! | `filters` | how many subscribers keep what they were told of the tags |

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use atrace_sys::process;
use atrace_sys::state::{self, TEXT_MAX, Text};

use crate::AtraceTag;
use crate::gate;
use crate::sink::{choice, first};
use crate::status::status;

/// The serial and the tags that were published last, for while the gate is claimed. `NotReady` does not fit: it
/// has a bit of its own.
static LAST: AtomicU64 = AtomicU64::new(0);
const PARKED: u64 = 1 << 31;

fn packed(serial: u32, tags: AtraceTag) -> u64 {
    let parked = if tags.contains(AtraceTag::NotReady) { PARKED } else { 0 };
    u64::from(serial) << 32 | parked | (tags.bits() & AtraceTag::ValidMask.bits())
}

/// Publishes that these tags are enabled, where the gate is not told so, if they were not published last.
pub(crate) fn publish_unsure(tags: AtraceTag) {
    let tags = packed(0, tags);
    if LAST.swap(tags, Ordering::Relaxed) != tags {
        publish();
    }
}

static FILTERS: AtomicU32 = AtomicU32::new(0);

/// A subscriber began, or ceased, to keep what it was told of the tags.
pub(crate) fn note_filter(began: bool) {
    if began {
        FILTERS.fetch_add(1, Ordering::Relaxed);
    } else {
        FILTERS.fetch_sub(1, Ordering::Relaxed);
    }
    let _undisturbed = process::Undisturbed::new();
    publish();
}

pub(crate) fn publish() {
    state::publish(&describe);
}

/// Returns what this process would publish now, also where it publishes nothing: on Android, and with `ATRACE_STATE=none`.
///
/// ```
/// let state = atrace::state::text();
/// let mut lines = state.split(|&byte| byte == b'\n');
/// assert_eq!(lines.next(), Some(concat!("version ", env!("CARGO_PKG_VERSION")).as_bytes()));
/// ```
pub fn text() -> Vec<u8> {
    let mut page = [0; TEXT_MAX];
    let mut text = Text::new(&mut page);
    describe(&mut text);
    text.bytes().to_vec()
}

fn describe(text: &mut Text<'_>) {
    text.line("version", env!("CARGO_PKG_VERSION"));
    let id = process::id();
    let digits = id.bytes();
    text.line("pid", str::from_utf8(&digits[..id.len_with_bar() - 1]).unwrap_or("?"));
    // Not handed over by who read the properties: of two, the slower one would overwrite what is newer.
    if let Some((serial, tags)) = gate::published() {
        LAST.store(packed(serial, tags), Ordering::Relaxed);
    }
    let last = LAST.load(Ordering::Relaxed);
    text.line("serial", last >> 32);
    let tags =
        if last & PARKED != 0 { AtraceTag::NotReady.bits() } else { last & AtraceTag::ValidMask.bits() };
    text.line("tags", format_args!("{tags:#x}"));
    let filters = FILTERS.load(Ordering::Relaxed);
    if filters > 0 {
        text.line("filters", filters);
    }
    if first::are_two_ways() {
        text.line("perfetto", format_args!("{:#}", status()));
    }
    choice::present().describe(text);
}
