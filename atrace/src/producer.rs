//! The parts of Perfetto's producer, the crate `atrace-perfetto`, that this crate uses.
//!
//! In a build without the feature `perfetto`, and on systems without tracing, `no_perfetto.rs` replaces this
//! module.

pub use atrace_perfetto::args::{Encoder, Key as ArgKey, Scalar};
pub use atrace_perfetto::callsite::{About, Number, Site};
pub use atrace_perfetto::clock::now;
pub use atrace_perfetto::producer::flow_number;
pub use atrace_perfetto::recording::Recording;

pub(crate) use atrace_perfetto::args::{Put, TRACK_NAME_MAX, flow, put_scalar, put_text};
pub(crate) use atrace_perfetto::changes::on_change;
pub(crate) use atrace_perfetto::connection_state::ConnectionState;
pub(crate) use atrace_perfetto::event::{
    Amount, Call, Event, Named, OnTrack, Traced, TracedOnTrack, Track, TrackKey, Type, WholeArgs, Written,
};
pub(crate) use atrace_perfetto::producer::{
    can_be_used, connect, connection_state, count, end, end_traced, expect_events, is_linked,
    is_service_there, lost, seek, start_if_expected, tags_word, write, write_as, write_text,
};
pub(crate) use atrace_perfetto::recording::begin as record;
pub(crate) use atrace_perfetto::{ASK, COMPARE, category, hash};

pub(crate) use atrace_sys::thread::note_name;

use crate::AtraceTag;

/// Whether this build of the crate can write events for Perfetto's service.
pub(crate) const EXISTS: bool = true;

/// Returns the tags that Perfetto's sessions want. In a process that connects at its first event (a forked child, or
/// with `ATRACE_BACKEND=perfetto`), the first call connects.
#[inline(always)]
pub(crate) fn tags() -> AtraceTag {
    AtraceTag::from_bits_retain(atrace_perfetto::producer::tags())
}
