//! The state page: a text that describes the tracing of this process, for other processes such as `atrace
//! doctor`.
//!
//! [`state_page`] lists the lines of the page. The process writes the page again after it has read the properties, when
//! events can't be written (after 1, 2, 4, 8 … failures), when a tracer's watch begins or ends, and when Perfetto's
//! sessions or the connection change. So an event usually writes the page only if the event is the first one after a
//! switch of tracing, or if the event itself can't be written.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use atrace_sys::process;
use atrace_sys::state::{self, TEXT_MAX, Text};

use crate::AtraceTag;
use crate::gate::{self, DISABLED_BIT};
use crate::producer;
use crate::sink::{self, choice};
use crate::status::status;

/// The serial and the tags that were last read from the gate (`gate/mod.rs`). They are used while the gate has no valid
/// tags, because a thread is reading the properties. The half of the word that holds the tags has no bit for the tag
/// `NotReady`, so [`DISABLED_BIT`] stands for that tag.
static LAST: AtomicU64 = AtomicU64::new(0);

fn packed(serial: u32, tags: AtraceTag) -> u64 {
    let disabled = if tags.contains(AtraceTag::NotReady) { DISABLED_BIT } else { 0 };
    u64::from(serial) << 32 | disabled | (tags.bits() & AtraceTag::ValidMask.bits())
}

/// Publishes `tags` in the state page, unless this function has also made the previous publication, with the same tags.
/// Use this function for tags that are never published at the gate.
pub(crate) fn publish_unsure(tags: AtraceTag) {
    let tags = packed(0, tags);
    if LAST.swap(tags, Ordering::Relaxed) != tags {
        publish();
    }
}

static FILTERS: AtomicU32 = AtomicU32::new(0);

/// Updates the number of watches by tracers that cache the enabled tags: adds one if `began` is true, and otherwise
/// subtracts one. Then publishes the page.
pub(crate) fn note_tracer(began: bool) {
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

/// Returns the text of this process's state page, with the present values. This also works in a process that publishes
/// no state: on Android, and with `ATRACE_STATE=none`.
///
/// The page has one `key value` per line:
///
/// | key | value |
/// |---|---|
/// | `version` | the version of this crate |
/// | `pid` | the process that the page describes; a forked child that has not published yet shows its parent's page |
/// | `sink` | a word of [`SinkInfo::kind`](crate::SinkInfo::kind), except `Perfetto` |
/// | `reason` | why there is no sink of ATrace |
/// | `place`, `marker` | where the marker was opened; its descriptor, device and inode |
/// | `dropped` | how many events could not be written, and the last errno |
/// | `library`, `lacks` | the library that events go to; a function that the library does not have |
/// | `properties` | the property store |
/// | `serial`, `tags` | the serial that was last read (see below), and the tags enabled since, in hexadecimal |
/// | `perfetto` | the state of the connection to Perfetto's service, if the process may connect; a system error is `errno N` |
/// | `filters` | the number of [tracers' watches](crate::watch::watch_backends) |
///
/// `serial` is the serial of the property `debug.atrace.tags.enableflags` or, if this property does not exist, of the
/// whole property store. In a forked child, `filters` also counts the parent's watches, which do not run in the child.
///
/// # Examples
///
/// ```
/// let state = atrace::state_page();
/// let mut lines = state.split(|&byte| byte == b'\n');
/// assert_eq!(lines.next(), Some(concat!("version ", env!("CARGO_PKG_VERSION")).as_bytes()));
/// ```
pub fn state_page() -> Vec<u8> {
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
    // The tags are read from the gate here. If the caller that read the properties passed them in, the slower of two
    // such callers would overwrite newer tags.
    if let Some((serial, tags)) = gate::published() {
        LAST.store(packed(serial, tags), Ordering::Relaxed);
    }
    let last = LAST.load(Ordering::Relaxed);
    text.line("serial", last >> 32);
    let tags = if last & DISABLED_BIT != 0 {
        AtraceTag::NotReady.bits()
    } else {
        last & AtraceTag::ValidMask.bits()
    };
    text.line("tags", format_args!("{tags:#x}"));
    let filters = FILTERS.load(Ordering::Relaxed);
    if filters > 0 {
        text.line("filters", filters);
    }
    if sink::is_perfetto_enabled() || producer::is_linked() {
        text.line("perfetto", format_args!("{:#}", status()));
    }
    choice::present().describe(text);
}
