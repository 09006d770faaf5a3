//! Perfetto's producer, the crate `atrace-perfetto`: what this crate uses of it.
//!
//! In a build without it, `no_perfetto.rs` stands in place of this module.

pub use atrace_perfetto::args::{Encoder, FLOW_ROOM, Key as ArgKey, Scalar, flow};
pub use atrace_perfetto::callsite::{About, Number, Site};
pub use atrace_perfetto::producer::flow_number;
pub use atrace_perfetto::recording::Recording;

pub(crate) use atrace_perfetto::args::TRACK_NAME_MAX;
pub(crate) use atrace_perfetto::changes::on_change;
pub(crate) use atrace_perfetto::event::{Amount, Event, Track, TrackKey, Type, Written};
pub(crate) use atrace_perfetto::producer::{
    begun, can_be_used, connect, count, end, expect_events, lost, named, on_track, standing,
    start_if_expected, tags_word, text, traced, write,
};
pub(crate) use atrace_perfetto::recording::begin as record;
pub(crate) use atrace_perfetto::standing::Standing;
pub(crate) use atrace_perfetto::{ASK, category, hash};

use crate::AtraceTag;

/// In this build a process can be a producer.
pub(crate) const EXISTS: bool = true;

/// The tags that sessions want. In a forked child the first to ask connects it.
#[inline(always)]
pub(crate) fn tags() -> AtraceTag {
    AtraceTag::from_bits_retain(atrace_perfetto::producer::tags())
}
