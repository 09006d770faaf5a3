//! The packet fields that the service reads, and the packets that the service itself writes.
//!
//! The field numbers come from Perfetto's `trace_packet.proto` and from the definitions of the messages in a packet.

use atrace_perfetto::clock;
use atrace_perfetto::proto::{Reader, Value, Writer};
use rustix::time::{ClockId, clock_gettime};

use super::report::Counts;

/// The numbers of the fields that only the service may write. These fields show which producer a packet comes from, or
/// describe the trace.
const RESERVED: [u32; 9] = [3, 10, 33, 35, 36, 50, 69, 79, 98];

/// The facts about a producer's packet that the service needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// The number of the packet's sequence. Only the service writes this number.
    pub(crate) sequence: u64,
    /// Whether the packet is an event of a program.
    pub(crate) is_event: bool,
    /// Whether the packet reports that packets before it were lost.
    pub(crate) tells_loss: bool,
    /// Whether the packet begins its sequence's incremental state (the definitions that later packets refer to) anew.
    pub(crate) clears_state: bool,
    /// Whether a reader needs the incremental state to decode the packet.
    pub(crate) needs_state: bool,
}

/// Collects the [`Facts`] about a packet from its fields.
fn facts<'a>(fields: impl Iterator<Item = (u32, Value<'a>)>) -> Facts {
    let mut facts = Facts::default();
    for (field, value) in fields {
        match field {
            10 => facts.sequence = value.number(),
            11 => facts.is_event = true,
            13 => {
                facts.clears_state = value.number() & 1 != 0;
                facts.needs_state = value.number() & 2 != 0;
            }
            42 => facts.tells_loss = value.number() != 0,
            _ => {}
        }
    }
    facts
}

/// Returns the number in a field of a message, or 0 if the field is missing.
pub(crate) fn number(message: &[u8], field: u32) -> u64 {
    Reader::first(message, field).map_or(0, Value::number)
}

/// Returns the bytes in a field of a message, or an empty slice if the field is missing.
pub(crate) fn bytes(message: &[u8], field: u32) -> &[u8] {
    Reader::first(message, field).map_or(&[], Value::bytes)
}

/// Collects the [`Facts`] about a packet of a producer. Returns `None` if the packet can't be parsed, or has a field
/// that only the service may write.
pub(crate) fn look(packet: &[u8]) -> Option<Facts> {
    let mut fields = Reader::new(packet);
    let mut is_reserved = false;
    let facts = facts(fields.by_ref().inspect(|(field, _)| is_reserved |= RESERVED.contains(field)));
    (fields.is_whole() && !is_reserved).then_some(facts)
}

/// Returns the id and the name of the thread that a packet describes, or `None` if it describes no thread.
pub(crate) fn thread(packet: &[u8]) -> Option<(u32, &[u8])> {
    let thread = Reader::first(Reader::first(packet, 60)?.bytes(), 4)?.bytes();
    let number = Reader::first(thread, 2)?.number();
    Some((u32::try_from(number).ok()?, bytes(thread, 5)))
}

/// Collects the [`Facts`] about a stored packet. `kept` is the packet with the header that it has in the trace file.
pub(crate) fn look_again(kept: &[u8]) -> Facts {
    facts(Reader::new(bytes(kept, 1)))
}

/// Writes the `DataSourceConfig` of the session: track events of all categories.
pub(crate) fn source_config(config: &mut Writer<'_>, buffer: u32, waits: bool) {
    config.bytes(1, super::SOURCE).number(2, buffer.into());
    if waits {
        const STALL_THEN_DROP: u64 = 3;
        config.number(9, STALL_THEN_DROP); // buffer_exhausted_policy
    }
    config.message(113, |categories| {
        // The pattern that enables all categories.
        categories.bytes(2, b"*");
    });
}

/// Returns the packet that `body` writes, or an empty packet if it would be longer than `room` bytes.
pub(crate) fn packet(room: usize, body: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
    let mut bytes = vec![0; room];
    let mut writer = Writer::new(&mut bytes);
    body(&mut writer);
    let len = writer.finish().map_or(0, <[u8]>::len);
    bytes.truncate(len);
    bytes
}

/// Returns a packet with a snapshot of the system's clocks.
pub(crate) fn clocks() -> Vec<u8> {
    // The numbers are the values of Perfetto's enum `BuiltinClock`.
    let clocks = [
        (6, ClockId::Boottime),
        (1, ClockId::Realtime),
        (2, ClockId::RealtimeCoarse),
        (3, ClockId::Monotonic),
        (4, ClockId::MonotonicCoarse),
        (5, ClockId::MonotonicRaw),
    ];
    packet(256, |packet| {
        packet.number(8, clock::asked()).message(6, |snapshot| {
            for (number, clock) in clocks {
                let time = clock_gettime(clock);
                let ns = time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec as u64;
                snapshot.message(1, |clock| {
                    clock.number(1, number).number(2, ns);
                });
            }
            snapshot.number(2, 6);
        });
    })
}

/// Returns a packet with the configuration of the recording.
pub(crate) fn config(kib: u64, is_ring: bool) -> Vec<u8> {
    packet(256, |packet| {
        packet.message(33, |config| {
            config.message(1, |buffer| {
                buffer.number(1, kib).number(4, if is_ring { 1 } else { 2 });
            });
            config.message(2, |source| {
                source.message(1, |source| source_config(source, 0, false));
            });
        });
    })
}

/// Returns a packet with the statistics of the recording.
pub(crate) fn stats(counts: &Counts) -> Vec<u8> {
    packet(256, |packet| {
        packet.number(8, clock::asked()).message(35, |stats| {
            stats.message(1, |buffer| {
                buffer.number(1, counts.bytes).number(2, counts.chunks).number(14, counts.bytes);
                buffer.number(17, counts.chunks).number(5, counts.patches).number(9, counts.lies);
                buffer.number(19, counts.losses);
            });
            stats.number(2, counts.connected).number(3, counts.producers).number(5, counts.sources);
            stats.number(6, 1).number(7, 1).number(10, counts.invalid);
        });
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_looked_at() {
        let event = Facts { is_event: true, needs_state: true, ..Facts::default() };
        assert_eq!(look(b"\x40\x01\x68\x02\x5a\x02\x48\x01"), Some(event));
        let first = Facts { clears_state: true, tells_loss: true, ..Facts::default() };
        assert_eq!(look(b"\x68\x01\xd0\x02\x01"), Some(first));
        assert_eq!(look(b""), Some(Facts::default()));
        // A packet that is cut, and packets with fields that only the service may write, are invalid.
        assert_eq!(look(b"\x5a\x02\x48"), None);
        assert_eq!([look(b"\x18\x01"), look(b"\x50\x01"), look(b"\xf8\x04\x01")], [None; 3]);
    }

    #[test]
    fn what_the_service_says_has_room() {
        let counts = Counts { bytes: u64::MAX, losses: u64::MAX, ..Counts::default() };
        for packet in [clocks(), config(u64::MAX, true), stats(&counts)] {
            let mut reader = Reader::new(&packet);
            assert!(reader.by_ref().count() > 0 && reader.is_whole());
        }
    }
}
