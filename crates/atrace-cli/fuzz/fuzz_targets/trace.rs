//! Fuzzes the parsers and writers for the text of a trace, with arbitrary names and messages of other users.
//!
//! The parsers are not public, so their sources are compiled into this target.

#![no_main]

use std::io::Cursor;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;

#[allow(dead_code)]
#[path = "../../src/tracefs/markers.rs"]
mod markers;
#[path = "../../src/command/file/systrace.rs"]
mod systrace;
#[path = "../../src/command/buffer/text.rs"]
mod text;
/// The module `markers` at the path by which the command's sources import it.
mod tracefs {
    pub(crate) use crate::markers;
}

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    /// Arbitrary bytes, which are read as the text of a trace.
    bytes: &'a [u8],
    /// Events that the kernel may have written.
    events: Vec<Event<'a>>,
    room: u8,
}

#[derive(Arbitrary, Debug)]
struct Event<'a> {
    name: &'a [u8],
    thread: u32,
    process: Option<u32>,
    cpu: u16,
    /// Whether the event is printed as kernels before 5.10 print it.
    is_old: bool,
    seconds: u32,
    micros: u32,
    payload: &'a [u8],
}

impl Event<'_> {
    /// Returns a thread's name: at most 15 bytes without a NUL, and without leading spaces, which would look like the
    /// padding of the column.
    fn name(&self) -> Vec<u8> {
        let name: Vec<u8> = self.name.iter().copied().take_while(|byte| *byte != 0).take(15).collect();
        let spaces = name.iter().take_while(|byte| **byte == b' ').count();
        name[spaces..].to_vec()
    }

    /// Returns a payload of one line, because further lines could look like other events.
    fn payload(&self) -> Vec<u8> {
        self.payload.iter().copied().filter(|byte| !matches!(byte, 0 | b'\n')).collect()
    }

    fn thread(&self) -> u32 {
        self.thread % 4_194_304
    }

    fn line(&self) -> Vec<u8> {
        let name = self.name();
        let mut line = vec![b' '; 16 - name.len()];
        line.extend(name);
        let width = if self.is_old { 5 } else { 7 };
        let process = self.process.map_or("-".repeat(width), |process| format!("{process:width$}"));
        line.extend(format!("-{:<width$} ({process}) [{:03}] ", self.thread(), self.cpu).into_bytes());
        let time = format!(".....   {}.{:06}: ", self.seconds, self.micros % 1_000_000);
        line.extend(time.into_bytes());
        line.extend(b"tracing_mark_write: ");
        line.extend(self.payload());
        line.push(b'\n');
        line
    }
}

/// Checks that the HTML page has each part once, whatever the trace contains, and that the page's list of processes is
/// valid.
fn check_picture(trace: &[u8], room: usize) -> Vec<u8> {
    let mut page = Cursor::new(Vec::new());
    let name = |process: u32| (process % 3 == 0).then(|| String::from_utf8_lossy(trace).into_owned());
    systrace::write(trace, None, &mut page, room, name).expect("a page in memory");
    let page = page.into_inner();
    assert!(page.starts_with(b"<!DOCTYPE html>\n<html><body>\n<script class=\"trace-data\""));
    assert!(page.ends_with(b"</script>\n</body></html>\n"));
    assert_eq!(page.windows(8).filter(|part| *part == b"</script").count(), 2);
    let list = page.windows(10).position(|part| part == b"</script>\n").expect("an end");
    let list = std::str::from_utf8(&page[..list]).expect("a list of text");
    for line in list.lines().skip(5) {
        let columns: Vec<_> = line.split(' ').collect();
        assert!(columns.len() == 10 && columns[8] == columns[9] && line.len() <= 160, "{line:?}");
    }
    page
}

fuzz_target!(|input: Input<'_>| {
    let read = markers::Markers::parse(input.bytes).count();
    let text::Started { processes, names, events } = text::started(input.bytes);
    assert!(names.len() <= processes.len() && processes.len() as u64 <= events && read as u64 <= events);
    text::kept(input.bytes);
    let _ = systrace::owner(input.bytes);
    check_picture(input.bytes, usize::from(input.room));

    let trace: Vec<u8> = input.events.iter().flat_map(Event::line).collect();
    let read: Vec<_> = markers::Markers::parse(trace.as_slice()).collect();
    assert_eq!(read.len(), input.events.len());
    for (event, marker) in input.events.iter().zip(&read) {
        assert_eq!((&marker.task, marker.tid, marker.tgid), (&event.name(), event.thread(), event.process));
        assert_eq!((marker.cpu, &marker.payload), (u32::from(event.cpu), &event.payload()));
    }
    let page = check_picture(&trace, usize::from(input.room));
    // Each event is one line of the HTML page.
    let lines = page.split(|byte| *byte == b'\n').filter(|line| markers::Header::parse(line).is_some());
    assert_eq!(lines.count(), input.events.len());
});
