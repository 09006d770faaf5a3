//! The options that a session requests in addition to its categories, as bits. They are read from the session's
//! `DataSourceConfig`.
//!
//! Source: Perfetto's `data_source_config.proto` and `track_event_config.proto`.

use crate::category::TRACK_EVENT_CONFIG;
use crate::proto::{Reader, Value};

/// Events are written without arguments (`filter_debug_annotations`).
pub(crate) const NO_ARGUMENTS: u32 = 1;
/// Names that are not constants of a callsite are replaced (`filter_dynamic_event_names`).
pub(crate) const NO_NAMES: u32 = 2;
/// The options which demand that parts of events are left out or replaced.
pub(crate) const FILTERS: u32 = NO_ARGUMENTS | NO_NAMES;
/// If there is no room for an event, its thread first waits for room, for a limited time, before the event is lost
/// (`buffer_exhausted_policy`).
pub(crate) const STALL: u32 = 4;

/// Each event on a thread's track also contains the thread's processor time (`enable_thread_time_sampling`).
pub(crate) const THREAD_TIME: u32 = 8;
/// The options that exclude the fast paths. If a session requests one of these options, events for this session take
/// the slower path ([`Writer::event`](crate::writer::Writer::event)).
pub(crate) const NOT_FAST: u32 = FILTERS | THREAD_TIME;

/// Returns the options of a session.
pub(crate) fn options(config: &[u8]) -> u32 {
    const EXHAUSTED: u32 = 9;
    const STALL_THEN_ABORT: u64 = 2;
    const STALL_THEN_DROP: u64 = 3;
    let number = |of, field| Reader::first(of, field).map_or(0, Value::number);
    let events = Reader::first(config, TRACK_EVENT_CONFIG).map_or(&[][..], |events| events.bytes());
    let bit = |is_asked, bit| if is_asked { bit } else { 0 };
    bit(number(events, 7) != 0, NO_ARGUMENTS)
        | bit(number(events, 9) != 0, NO_NAMES)
        | bit(number(events, 8) != 0, THREAD_TIME)
        | bit(matches!(number(config, EXHAUSTED), STALL_THEN_ABORT | STALL_THEN_DROP), STALL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::Writer;

    #[test]
    fn options_are_read() {
        for (arguments, times, names, policy, expected) in [
            (0, 0, 0, 0, 0),
            (1, 0, 0, 1, NO_ARGUMENTS),
            (0, 0, 1, 2, NO_NAMES | STALL),
            (1, 0, 1, 3, NO_ARGUMENTS | NO_NAMES | STALL),
            (0, 1, 0, 4, THREAD_TIME),
        ] {
            let mut bytes = [0; 64];
            let mut writer = Writer::new(&mut bytes);
            writer.number(9, policy).message(113, |events| {
                events.number(7, arguments).number(8, times).number(9, names);
            });
            assert_eq!(options(writer.finish().unwrap()), expected);
        }
        assert_eq!(options(&[]), 0);
    }
}
