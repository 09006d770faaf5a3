//! The fields that the service reads of a packet, and the packets that it writes itself.

use atrace_perfetto::clock;
use atrace_perfetto::proto::{Reader, Value, Writer};
use rustix::time::{ClockId, clock_gettime};

use super::report::Counts;

/// Fields of a packet that the service alone writes: whose it is, and what it says of the trace.
const RESERVED: [u32; 9] = [3, 10, 33, 35, 36, 50, 69, 79, 98];

/// What a producer's packet is, as far as the service asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// An event of a program.
    pub(crate) is_event: bool,
    /// It says that something was lost before it.
    pub(crate) tells_loss: bool,
    /// State is told anew.
    pub(crate) clears_state: bool,
    /// It can't be understood without that.
    pub(crate) needs_state: bool,
}

impl Facts {
    fn note(&mut self, field: u32, value: Value<'_>) {
        match field {
            11 => self.is_event = true,
            13 => {
                self.clears_state = value.number() & 1 != 0;
                self.needs_state = value.number() & 2 != 0;
            }
            42 => self.tells_loss = value.number() != 0,
            _ => {}
        }
    }
}

/// Looks at a packet; `None` where it is no message, or has what is the service's.
pub(crate) fn look(packet: &[u8]) -> Option<Facts> {
    let mut facts = Facts::default();
    let mut fields = Reader::new(packet);
    for (field, value) in &mut fields {
        if RESERVED.contains(&field) {
            return None;
        }
        facts.note(field, value);
    }
    fields.is_whole().then_some(facts)
}

/// The thread that a packet describes: the system's number, and the name.
pub(crate) fn thread(packet: &[u8]) -> Option<(u32, &[u8])> {
    let thread = Reader::first(Reader::first(packet, 60)?.bytes(), 4)?.bytes();
    let number = Reader::first(thread, 2)?.number();
    let name = Reader::first(thread, 5).map_or(&[][..], Value::bytes);
    Some((u32::try_from(number).ok()?, name))
}

/// Looks at a packet that was kept, as it is in the file; returns the number of its sequence, too.
pub(crate) fn look_again(kept: &[u8]) -> (u64, Facts) {
    let (mut sequence, mut facts) = (0, Facts::default());
    for (field, value) in Reader::new(Reader::first(kept, 1).map_or(&[], Value::bytes)) {
        match field {
            10 => sequence = value.number(),
            field => facts.note(field, value),
        }
    }
    (sequence, facts)
}

/// The category that a session asks for: all.
const ALL: &[u8] = b"*";

/// The `DataSourceConfig` of the one session: events, of all categories.
pub(crate) fn source_config(config: &mut Writer<'_>, buffer: u32) {
    config.bytes(1, super::SOURCE).number(2, buffer.into());
    config.message(113, |categories| {
        categories.bytes(2, ALL);
    });
}

/// Has `body` write a packet of at most `room` bytes.
fn packet(room: usize, body: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
    let mut bytes = vec![0; room];
    let mut writer = Writer::new(&mut bytes);
    body(&mut writer);
    let len = writer.finish().map_or(0, <[u8]>::len);
    bytes.truncate(len);
    bytes
}

/// Says what all clocks show now.
pub(crate) fn clocks() -> Vec<u8> {
    // By `BuiltinClock`.
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

/// Says what is recorded.
pub(crate) fn config(kib: u64, is_ring: bool) -> Vec<u8> {
    packet(256, |packet| {
        packet.message(33, |config| {
            config.message(1, |buffer| {
                buffer.number(1, kib).number(4, if is_ring { 1 } else { 2 });
            });
            config.message(2, |source| {
                source.message(1, |source| source_config(source, 0));
            });
        });
    })
}

/// Says how it went.
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
        // Cut, and with whose it is.
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
