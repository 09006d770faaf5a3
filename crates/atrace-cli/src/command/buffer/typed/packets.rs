//! Encodes the kernel's events as Perfetto's protobuf messages.
//!
//! Each event in [`EVENTS`] becomes Perfetto's message for this event. Any other event becomes a `GenericFtraceEvent`,
//! which has the names and values of the fields that are numbers or texts.
//!
//! Addresses in the kernel are not encoded, because they would show the reader of a trace where in memory the kernel
//! is. So these fields are left out: fields whose type is a pointer, the fields in [`ADDRESSES`], and unsigned numbers
//! in the kernel's half of the 64-bit addresses.
//!
//! Source of the field numbers: Perfetto's `ftrace_event.proto` and the messages that it contains.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs;
use std::path::Path;

use atrace_perfetto::proto::Writer;

use super::pages::{Field, Page};

/// Perfetto's field numbers for each event. A line has the event's name, the number of the event's field in
/// `FtraceEvent`, and the names and numbers of the fields in the event's message.
const EVENTS: &str = "\
print 3 buf=2
sched_switch 4 prev_comm=1 prev_pid=2 prev_prio=3 prev_state=4 next_comm=5 next_pid=6 next_prio=7
cpu_frequency 11 state=1 cpu_id=2
cpu_frequency_limits 12 min_freq=1 max_freq=2 cpu_id=3
cpu_idle 13 state=1 cpu_id=2
clock_enable 14 name=1 state=2 cpu_id=3
clock_disable 15 name=1 state=2 cpu_id=3
clock_set_rate 16 name=1 state=2 cpu_id=3
sched_wakeup 17 comm=1 pid=2 prio=3 success=4 target_cpu=5
sched_blocked_reason 18 pid=1 io_wait=3
sched_waking 20 comm=1 pid=2 prio=3 success=4 target_cpu=5
softirq_entry 24 vec=1
softirq_exit 25 vec=1
softirq_raise 26 vec=1
irq_handler_entry 36 irq=1 name=2
irq_handler_exit 37 irq=1 ret=2
mm_vmscan_direct_reclaim_begin 46 order=1 may_writepage=2 gfp_flags=3
mm_vmscan_direct_reclaim_end 47 nr_reclaimed=1
binder_transaction 50 debug_id=1 target_node=2 to_proc=3 to_thread=4 reply=5 code=6 flags=7
binder_transaction_received 51 debug_id=1
binder_lock 53 tag=1
binder_locked 54 tag=1
binder_unlock 55 tag=1
sched_wakeup_new 114 comm=1 pid=2 prio=3 success=4 target_cpu=5
task_newtask 235 pid=1 comm=2 clone_flags=3 oom_score_adj=4
task_rename 236 pid=1 oldcomm=2 newcomm=3 oom_score_adj=4
sched_process_exec 237 filename=1 pid=2 old_pid=3
sched_process_exit 238 comm=1 pid=2 tgid=3 prio=4
sched_process_fork 239 parent_comm=1 parent_pid=2 child_comm=3 child_pid=4
sched_process_free 240 comm=1 pid=2 prio=3
rss_stat 313 member=1 size=2 curr=3 mm_id=4
binder_transaction_alloc_buf 323 data_size=1 debug_id=2 offsets_size=3 extra_buffers_size=4
oom_score_adj_update 326 comm=1 oom_score_adj=2 pid=3
dma_fence_init 414 context=1 driver=2 seqno=3 timeline=4
dma_fence_emit 415 context=1 driver=2 seqno=3 timeline=4
dma_fence_signaled 416 context=1 driver=2 seqno=3 timeline=4
dma_fence_wait_start 417 context=1 driver=2 seqno=3 timeline=4
dma_fence_wait_end 418 context=1 driver=2 seqno=3 timeline=4
block_io_start 546 dev=1 sector=2 nr_sector=3 bytes=4 ioprio=5 rwbs=6 comm=7
block_io_done 547 dev=1 sector=2 nr_sector=3 bytes=4 ioprio=5 rwbs=6 comm=7";

/// The field number of `GenericFtraceEvent` in `FtraceEvent`.
const GENERIC: u32 = 327;

/// The event of a write to a marker.
pub(super) const PRINT: &str = "print";

/// The names of fields that have an address in the kernel although the type of the field does not show it.
const ADDRESSES: [&str; 3] = ["ip", "caller", "call_site"];

/// The maximum length of an encoded event in bytes. A message to a marker has at most 4 KiB.
const EVENT: usize = 16 << 10;

/// How events of one kind are encoded.
#[derive(Debug)]
struct Format {
    name: String,
    /// The number of the event's field in `FtraceEvent`.
    number: u32,
    /// The fields of the event. If the event is in [`EVENTS`], each field comes with its number in the event's message;
    /// otherwise with 0.
    fields: Vec<(Field, u32)>,
}

impl Format {
    /// Parses the text of an event's file `format`. Returns the event's number in the buffer, and its format.
    fn parse(name: &str, text: &str) -> Option<(u16, Self)> {
        let id = text.lines().find_map(|line| line.strip_prefix("ID:"))?.trim().parse().ok()?;
        let known = EVENTS.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let (number, known) = known.and_then(|rest| rest.split_once(' ')).unwrap_or_default();
        let mut fields: Vec<_> = text.lines().filter_map(Field::parse).map(|field| (field, 0)).collect();
        fields.retain(|(field, _)| !field.name.starts_with("common_") && !is_address(field));
        if !known.is_empty() {
            fields.retain_mut(|(field, number)| {
                let mut numbers = known.split(' ').filter_map(|pair| pair.split_once('='));
                let found = numbers.find(|(name, _)| *name == field.name);
                *number = found.and_then(|(_, number)| number.parse().ok()).unwrap_or(0);
                *number > 0
            });
        }
        Some((id, Self { name: name.to_owned(), number: number.parse().unwrap_or(GENERIC), fields }))
    }

    /// Writes the message of the event.
    fn encode(&self, data: &[u8], event: &mut Writer<'_>) {
        event.message(self.number, |message| {
            if self.number != GENERIC {
                for (field, number) in &self.fields {
                    match Content::of(field, data) {
                        Some(Content::Text(text)) => _ = message.bytes(*number, text.as_bytes()),
                        Some(Content::Number(value)) => _ = message.number(*number, value),
                        None => {}
                    }
                }
                return;
            }
            message.bytes(1, self.name.as_bytes());
            for (field, _) in &self.fields {
                let Some(content) = Content::of(field, data) else { continue };
                message.message(2, |part| {
                    part.bytes(1, field.name.as_bytes());
                    match content {
                        Content::Text(text) => part.bytes(3, text.as_bytes()),
                        Content::Number(value) => part.number(if field.is_signed { 4 } else { 5 }, value),
                    };
                });
            }
        });
    }
}

fn is_address(field: &Field) -> bool {
    field.kind.contains('*') || ADDRESSES.contains(&&*field.name)
}

/// Returns whether an unsigned number is an address in the kernel of a 64-bit system. The 4095 highest numbers are not
/// addresses, but negated error numbers.
fn is_in_kernel(number: u64) -> bool {
    const ERRNO_MAX: u64 = 4095;
    (0xffff_0000_0000_0000..=u64::MAX - ERRNO_MAX).contains(&number)
}

/// The value of a field of an event.
enum Content<'a> {
    Text(Cow<'a, str>),
    Number(u64),
}

impl<'a> Content<'a> {
    /// Reads a field. Returns `None` if the field is neither a number nor a text.
    fn of(field: &Field, data: &'a [u8]) -> Option<Self> {
        let Field { kind, offset, size, .. } = field;
        if !kind.ends_with(']') {
            let number = field.number(data).filter(|number| field.is_signed || !is_in_kernel(*number));
            return number.map(Self::Number);
        }
        if !kind.contains("char[") || kind.contains("unsigned") {
            return None;
        }
        let text = if kind.starts_with("__data_loc") || kind.starts_with("__rel_loc") {
            // The field has the length of the text in its upper 16 bits, and the offset of the text in its lower 16
            // bits. The offset counts from the event's begin or, for `__rel_loc`, from the field's end.
            let place = field.number(data)? as usize;
            let from = if kind.starts_with("__rel_loc") { offset + size } else { 0 };
            data.get(from + (place & 0xffff)..)?.get(..place >> 16)?
        } else {
            // The last field of an event may have a variable length. Its size in the format is then 0, and it extends
            // to the end of the data.
            data.get(*offset..)?.get(..*size).filter(|text| !text.is_empty()).or(data.get(*offset..))?
        };
        let text = text.split(|&byte| byte == 0).next()?;
        Some(Self::Text(String::from_utf8_lossy(text)))
    }
}

/// How the events of a buffer are encoded.
#[derive(Debug)]
pub(super) struct Formats {
    formats: HashMap<u16, Format>,
    thread: Field,
}

impl Formats {
    /// Reads the formats of `events`. Each item is the path of an event, or of a group of events, below the directory
    /// `events` of tracefs. Returns `None` if the field with the thread id is not found.
    pub(super) fn read(root: &Path, events: &[String]) -> Option<Self> {
        let (mut formats, mut thread) = (HashMap::new(), None);
        let mut add = |path: &Path| {
            let text = fs::read_to_string(path.join("format")).ok()?;
            thread = text.lines().filter_map(Field::parse).find(|field| field.name == "common_pid");
            formats.extend(Format::parse(path.file_name()?.to_str()?, &text));
            Some(())
        };
        for event in events {
            let path = root.join("events").join(event);
            if add(&path).is_none() {
                fs::read_dir(&path).into_iter().flatten().flatten().for_each(|it| _ = add(&it.path()));
            }
        }
        Some(Self { formats, thread: thread? })
    }

    /// Returns the packet with the events of a page. Returns `None` if the packet would be empty (no event of the page
    /// is known and wanted) and no events before the page were lost.
    ///
    /// `is_wanted` gets the text of a message to a marker, and returns whether to include the message in the packet.
    pub(super) fn packet(
        &self,
        cpu: u32,
        page: Page<'_>,
        is_wanted: impl Fn(&[u8]) -> bool,
    ) -> Option<Vec<u8>> {
        let (mut head, mut room) = ([0; 32], [0; EVENT]);
        let is_after_loss = page.is_after_loss;
        let mut events = Vec::new();
        for (time, data) in page {
            let Some(format) = data.first_chunk().and_then(|id| self.formats.get(&u16::from_ne_bytes(*id)))
            else {
                continue;
            };
            if format.name == PRINT
                && let Some((field, _)) = format.fields.first()
                && let Some(Content::Text(text)) = Content::of(field, data)
                && !is_wanted(text.as_bytes())
            {
                continue;
            }
            let mut writer = Writer::new(&mut room);
            writer.number(1, time);
            writer.number(2, self.thread.number(data).unwrap_or(0) & u64::from(u32::MAX));
            format.encode(data, &mut writer);
            let Some(event) = writer.finish() else { continue };
            let mut head = [0; 16];
            let mut writer = Writer::new(&mut head);
            writer.length(2, event.len());
            events.extend_from_slice(writer.finish()?);
            events.extend_from_slice(event);
        }
        if events.is_empty() && !is_after_loss {
            return None;
        }
        // `FtraceEventBundle`: the CPU, the events, and whether events before this page were lost.
        let mut writer = Writer::new(&mut head);
        writer.number(1, cpu.into());
        if is_after_loss {
            writer.number(3, 1);
        }
        let start = writer.finish()?;
        let mut packet = vec![0; 16];
        let mut writer = Writer::new(&mut packet);
        writer.length(1, start.len() + events.len());
        let len = writer.finish()?.len();
        packet.truncate(len);
        packet.extend_from_slice(start);
        packet.append(&mut events);
        Some(packet)
    }
}

#[cfg(test)]
mod tests {
    use atrace_perfetto::proto::{Reader, Value};

    use super::super::pages::Layout;
    use super::*;

    const COMMON: &str = "format:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
        \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n";

    fn formats(place: &Path, events: &[(&str, u16, &str)]) -> Formats {
        for (name, id, fields) in events {
            let path = place.join("events").join(name);
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join("format"), format!("name: x\nID: {id}\n{COMMON}{fields}\nprint fmt: x\n"))
                .unwrap();
        }
        Formats::read(place, &events.iter().map(|(name, ..)| (*name).to_owned()).collect::<Vec<_>>()).unwrap()
    }

    /// Encodes a page with these events as a packet, and returns the events in the packet.
    fn encoded(formats: &Formats, events: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let layout = "field: u64 timestamp; offset:0; size:8; signed:0;\n\
            field: local_t commit; offset:8; size:8; signed:1;\nfield: char data; offset:16; size:4080; signed:0;";
        let layout = Layout::parse(layout).unwrap();
        let mut page = [&7_u64.to_ne_bytes()[..], &4000_u64.to_ne_bytes()].concat();
        for event in events {
            page.extend([0_u32, event.len() as u32 + 4].map(u32::to_ne_bytes).as_flattened());
            page.extend(event);
        }
        let packet = formats.packet(3, layout.page(&page).unwrap(), |text| text != b"unwanted").unwrap();
        let bundle = Reader::first(&packet, 1).unwrap().bytes();
        assert_eq!(Reader::first(bundle, 1), Some(Value::Number(3)));
        Reader::new(bundle)
            .filter(|(field, _)| *field == 2)
            .map(|(_, event)| event.bytes().to_vec())
            .collect()
    }

    fn event(id: u16, data: &[u8]) -> Vec<u8> {
        let mut event = [&id.to_ne_bytes()[..], &[0; 2], &42_u32.to_ne_bytes(), data].concat();
        event.resize(event.len().next_multiple_of(4), 0);
        event
    }

    #[test]
    fn events_with_and_without_a_message_are_encoded() {
        let place = tempfile::tempdir().unwrap();
        let switch = "\tfield:char prev_comm[16];\toffset:8;\tsize:16;\tsigned:0;\n\
            \tfield:long prev_state;\toffset:24;\tsize:8;\tsigned:1;\n";
        let other = "\tfield:void * secret;\toffset:8;\tsize:8;\tsigned:0;\n\
            \tfield:int error;\toffset:16;\tsize:4;\tsigned:1;\n\
            \tfield:__data_loc char[] path;\toffset:20;\tsize:4;\tsigned:0;\n";
        let print = "\tfield:unsigned long ip;\toffset:8;\tsize:8;\tsigned:0;\n\
            \tfield:char buf[];\toffset:16;\tsize:0;\tsigned:0;\n";
        let events = [("sched/sched_switch", 1, switch), ("vfs/other", 2, other), ("ftrace/print", 3, print)];
        let formats = formats(place.path(), &events);
        let location = 24_u32 | 5 << 16;
        let got = encoded(
            &formats,
            &[
                event(1, &[b"a\xffname\0\0\0\0\0\0\0\0\0\0", &256_u64.to_ne_bytes()[..]].concat()),
                event(
                    2,
                    &[&[9; 8][..], &(-2_i32).to_ne_bytes(), &location.to_ne_bytes(), b"/tmp\0"].concat(),
                ),
                event(3, b"\x09\x09\x09\x09\x09\x09\x09\x09unwanted\0"),
                event(3, b"\x09\x09\x09\x09\x09\x09\x09\x09I|1|x\n\0"),
                // An event of an unknown kind, and an event whose data is cut.
                event(4, b""),
                event(1, b""),
            ],
        );
        let field = |event: &[u8], field| Reader::first(event, field).map(|value| value.bytes().to_vec());
        assert_eq!(got.len(), 4);
        assert_eq!(Reader::first(&got[0], 1), Some(Value::Number(7)));
        assert_eq!(Reader::first(&got[0], 2), Some(Value::Number(42)));
        let switch = field(&got[0], 4).unwrap();
        assert_eq!(field(&switch, 1).unwrap(), "a\u{fffd}name".as_bytes());
        assert_eq!(Reader::first(&switch, 4), Some(Value::Number(256)));
        let other = field(&got[1], GENERIC).unwrap();
        assert_eq!(field(&other, 1).unwrap(), b"other");
        let parts: Vec<_> = Reader::new(&other).skip(1).map(|(_, part)| part.bytes()).collect();
        assert_eq!(
            parts,
            [&b"\x0a\x05error\x20\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"[..], b"\x0a\x04path\x1a\x04/tmp"]
        );
        assert_eq!(field(&field(&got[2], 3).unwrap(), 2).unwrap(), b"I|1|x\n");
        // In an event that is cut, the field `prev_comm` is empty, and the other fields are missing.
        assert_eq!(field(&got[3], 4).unwrap(), b"\x0a\0");
    }

    #[test]
    fn addresses_in_the_kernel_are_left_out() {
        let place = tempfile::tempdir().unwrap();
        let fields = [
            ("void * pointer", 1_u64),
            ("unsigned long call_site", 1),
            ("unsigned long object", 0xffff_8880_1234_5678),
            ("unsigned long user", 0x7fff_1234_5678),
            ("unsigned long failed", u64::MAX - 11),
            ("long back", u64::MAX << 40),
        ];
        let lines = fields.iter().enumerate().map(|(at, (field, _))| {
            let signed = u8::from(field.starts_with("long"));
            format!("\tfield:{field};\toffset:{};\tsize:8;\tsigned:{signed};\n", 8 + 8 * at)
        });
        let formats = formats(place.path(), &[("kmem/other", 2, &lines.collect::<String>())]);
        let data = fields.map(|(_, value)| value.to_ne_bytes());
        let got = encoded(&formats, &[event(2, data.as_flattened())]);
        let other = Reader::first(&got[0], GENERIC).unwrap().bytes();
        let parts = Reader::new(other).skip(1);
        let names: Vec<_> =
            parts.map(|(_, part)| Reader::first(part.bytes(), 1).unwrap().bytes().to_vec()).collect();
        assert_eq!(names, [&b"user"[..], b"failed", b"back"]);
    }

    #[test]
    fn the_list_is_in_order() {
        let lines = EVENTS.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let numbers: Vec<u32> = lines
            .map(|words| {
                assert!(
                    words.len() > 2
                        && words[2..].iter().all(|pair| pair
                            .split_once('=')
                            .is_some_and(|(_, number)| number.parse::<u32>().is_ok_and(|number| number > 0))),
                    "{words:?}"
                );
                words[1].parse().unwrap()
            })
            .collect();
        assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
    }
}
