//! Writes a trace in a format that Perfetto reads: the kernel's text, in the HTML of Android's systrace.
//!
//! The text contains only the names of threads. Perfetto takes the names of processes from a list before the text. The
//! list is complete only when the whole text was copied, so space is reserved for the list before the text. If the
//! space is too small, the text is moved.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufWriter, Read, Seek, SeekFrom, Write};

use crate::tracefs::markers::Header;

/// The HTML tag that Perfetto's reader expects before the list of processes, and before the text.
const BEGIN: &str = "<script class=\"trace-data\" type=\"application/text\">\n";
/// The HTML tag that Perfetto's reader expects after the list of processes, and after the text.
const END: &str = "</script>\n";

const HEAD: &str = "<!DOCTYPE html>\n<html><body>\n";
const LIST: &str = "PROCESS DUMP\nUSER PID PPID VSZ RSS WCHAN PC S NAME COMM\n";

/// The maximum length of a line of the list of processes, in bytes.
const LINE: usize = 160;
/// The maximum length of a name in the list of processes, in bytes.
const NAME: usize = 60;

/// A second text that is added to a trace. Only the events of some processes are copied from this text.
pub(crate) struct Copied<'a> {
    pub(crate) text: Box<dyn BufRead>,
    pub(crate) is_wanted: &'a dyn Fn(u32) -> bool,
}

/// Copies the text of a trace and adds the names of its processes. `name` returns the name of a process; if it returns
/// `None`, the name of the process's main thread is used. Space is reserved for `processes` names; if there are more
/// names, the text is moved. The events of a second text are appended to the first text. Their order does not matter,
/// because readers sort the events. Returns the number of events that were copied from the second text.
pub(crate) fn write(
    mut from: impl BufRead,
    copied: Option<Copied<'_>>,
    to: &mut (impl Read + Write + Seek),
    processes: usize,
    mut name: impl FnMut(u32) -> Option<String>,
) -> io::Result<u64> {
    let room = BEGIN.len() + LIST.len() + END.len() + processes * LINE;
    let mut mains = BTreeMap::<u32, Vec<u8>>::new();
    let mut text = BufWriter::with_capacity(1 << 16, &mut *to);
    text.write_all(HEAD.as_bytes())?;
    // The spaces are not written with a format width, because such a width is at most 65,535.
    io::copy(&mut io::repeat(b' ').take(room as u64), &mut text)?;
    write!(text, "\n{BEGIN}")?;
    copy(&mut from, &mut text, &mut mains, |_| true)?;
    let mut number = 0;
    if let Some(Copied { text: mut more, is_wanted }) = copied {
        number = copy(&mut *more, &mut text, &mut mains, is_wanted)?;
    }
    writeln!(text, "{END}</body></html>")?;
    text.flush()?;
    drop(text);

    let mut list = format!("{BEGIN}{LIST}").into_bytes();
    for (process, main) in mains {
        let main = (!main.is_empty()).then(|| String::from_utf8_lossy(&main).into_owned());
        let name = name(process).or(main).unwrap_or_default();
        let plain = |c: char| if c.is_ascii_graphic() && c != '<' { c } else { '_' };
        let name: String = name.chars().take(NAME).map(plain).collect();
        if !name.is_empty() {
            writeln!(list, "- {process} 0 0 0 - - - {name} {name}")?;
        }
    }
    write!(list, "{END}")?;
    if let Some(more) = list.len().checked_sub(room).filter(|more| *more > 0) {
        move_up(to, (HEAD.len() + room) as u64, more as u64)?;
    }
    to.seek(SeekFrom::Start(HEAD.len() as u64))?;
    to.write_all(&list)?;
    Ok(number)
}

/// Copies the events of the processes for which `is_wanted` returns true, and events whose process is not known.
/// Collects the names of main threads in `mains`. Returns the number of events that were copied.
fn copy(
    from: &mut (impl BufRead + ?Sized),
    to: &mut impl Write,
    mains: &mut BTreeMap<u32, Vec<u8>>,
    is_wanted: impl Fn(u32) -> bool,
) -> io::Result<u64> {
    // Lines that begin no event belong to the event before them.
    let (mut line, mut number, mut is_its) = (Vec::new(), 0, true);
    loop {
        let start = read_event(from, &mut line)?;
        if line.is_empty() {
            return Ok(number);
        }
        if let Some(start) = start {
            let event = owner(line.get(start..).unwrap_or_default());
            is_its = event.is_none_or(|(_, _, process)| is_wanted(process));
            if let Some((task, thread, process)) = event.filter(|_| is_its) {
                let main = mains.entry(process).or_default();
                if thread == process && task != b"<...>" && main != task {
                    *main = task.to_vec();
                }
            }
            number += u64::from(is_its);
        }
        // For the reader, `</script` ends the whole text, even if it stands in a program's message.
        while let Some(at) = line.windows(8).position(|text| text == b"</script") {
            line[at] = b'?';
        }
        if is_its {
            to.write_all(&line)?;
        }
    }
}

/// Reads the next line. If a thread's name contains line ends, reads all lines of that event's header and replaces
/// these line ends by `_`. Returns the index in `line` at which an event begins, or `None` if no event begins in
/// `line`.
fn read_event(from: &mut (impl BufRead + ?Sized), line: &mut Vec<u8>) -> io::Result<Option<usize>> {
    line.clear();
    // A short line that begins with a space may be a part of a thread's name.
    while from.read_until(b'\n', line)? > 0 && line.len() <= Header::TASK && line.starts_with(b" ") {}
    let ends = line.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
    let start =
        [0].into_iter().chain(ends).find(|&at| line.get(at..).is_some_and(|it| Header::parse(it).is_some()));
    let name = start.and_then(|start| line.get_mut(start..start + Header::TASK)).unwrap_or_default();
    name.iter_mut().filter(|byte| **byte == b'\n').for_each(|byte| *byte = b'_');
    Ok(start)
}

/// Moves all bytes after `from` by `by` bytes towards the end of the file. Copies the last bytes first, so that no byte
/// is overwritten before it was copied.
fn move_up(file: &mut (impl Read + Write + Seek), from: u64, by: u64) -> io::Result<()> {
    let mut buffer = vec![0; 1 << 20];
    let mut end = file.seek(SeekFrom::End(0))?;
    while end > from {
        let len = (end - from).min(buffer.len() as u64);
        end -= len;
        let part = buffer.get_mut(..usize::try_from(len).unwrap_or(0)).unwrap_or_default();
        file.seek(SeekFrom::Start(end))?;
        file.read_exact(part)?;
        file.seek(SeekFrom::Start(end + by))?;
        file.write_all(part)?;
    }
    Ok(())
}

/// Returns the thread's name, the thread id and the process id from the header of an event. If the kernel has not
/// stored the process id, which can happen while another recording ends, the function takes the process id from the
/// message.
pub(crate) fn owner(line: &[u8]) -> Option<(&[u8], u32, u32)> {
    let header = Header::parse(line)?;
    let message = || line.get(header.len..)?.strip_prefix(b"tracing_mark_write: ");
    let process = header.tgid.or_else(|| writer(message()?))?;
    Some((header.task, header.tid, process))
}

/// Returns the process id that a message to a marker contains: `B|PID|…`.
pub(crate) fn writer(message: &[u8]) -> Option<u32> {
    let mut parts = message.trim_ascii_end().split(|&byte| byte == b'|');
    let kind = parts.next()?;
    let process = std::str::from_utf8(parts.next()?).ok()?;
    process.parse().ok().filter(|_| kind.len() == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_listed_under_their_names() {
        let text = "# tracer: nop\n#\n\
            \x20         worker-24884   (  24879) [000] ...1. 1.000001: tracing_mark_write: B|24879|x\n\
            \x20   main thread)-24879   (  24879) [000] ...1. 1.000002: tracing_mark_write: E|24879\n\
            \x20          other-77      (     77) [000] ...1. 1.000003: tracing_mark_write: I|77|</script>\n\
            \x20          <...>-79      (-------) [000] ...1. 1.000004: tracing_mark_write: E|78\n";
        let mut got = io::Cursor::new(Vec::new());
        let name = |process| (process == 77).then(|| "its <name".to_owned() + &"x".repeat(500));
        write(text.as_bytes(), None, &mut got, 2, name).unwrap();
        let got = String::from_utf8(got.into_inner()).unwrap();
        // The HTML before and after the trace's text is complete.
        assert!(got.starts_with(HEAD) && got.contains(" \n<script"), "{got}");
        assert!(got.contains("I|77|?/script>\n") && got.matches("</script>").count() == 2, "{got}");
        let list: Vec<_> = got.lines().filter(|line| line.starts_with("- ")).collect();
        let its = "its__name".to_owned() + &"x".repeat(NAME - 9);
        let expected = [
            format!("- 77 0 0 0 - - - {its} {its}"),
            "- 24879 0 0 0 - - - main_thread) main_thread)".to_owned(),
        ];
        assert_eq!(list, expected);
    }

    #[test]
    fn processes_of_every_kernel_are_listed() {
        for text in crate::tracefs::TEXTS {
            let mut got = io::Cursor::new(Vec::new());
            write(text.as_bytes(), None, &mut got, 2, |pid| Some(format!("name-{pid}"))).unwrap();
            let got = String::from_utf8(got.into_inner()).unwrap();
            assert!(got.contains(text) && got.contains("\n- 42 0 0 0 - - - name-42 name-42\n"), "{got}");
        }
    }

    #[test]
    fn of_a_second_text_only_the_wanted_processes_are_copied() {
        let line = |task: &str, process: &str, text: &str| {
            format!("{task:>16}-8       ({process:>7}) [000] ..... 1.000001: tracing_mark_write: {text}\n")
        };
        let first = line("first", "7", "I|7|of the first");
        let second = [
            "# tracer: nop\n".to_owned(),
            line("other", "9", "I|7|of another\nits second line"),
            line("second", "7", "I|7|wanted\nits second line"),
            line("<...>", "-------", "I|9|of another"),
            line("<...>", "-------", "I|7|wanted"),
            line("<...>", "-------", "nobody's"),
        ]
        .concat();
        let mut got = io::Cursor::new(Vec::new());
        let copied = Copied { text: Box::new(io::Cursor::new(second)), is_wanted: &|process| process == 7 };
        let number = write(first.as_bytes(), Some(copied), &mut got, 2, |_| None).unwrap();
        let got = String::from_utf8(got.into_inner()).unwrap();
        assert_eq!(number, 3, "{got}");
        assert_eq!((got.matches("wanted").count(), got.matches("second line").count()), (2, 1), "{got}");
        assert!(
            got.contains("of the first") && got.contains("nobody's") && !got.contains("another"),
            "{got}"
        );
    }

    #[test]
    fn the_text_makes_way_for_a_long_list() {
        let line = |pid: u32| {
            format!("{:>16}-{pid:<7} ({pid:>7}) [000] ..... 1.000001: tracing_mark_write: E|{pid}\n", "main")
        };
        let text: String = (1..20_000).map(line).collect();
        let saved = |room| {
            let mut got = io::Cursor::new(Vec::new());
            write(text.as_bytes(), None, &mut got, room, |pid| Some(format!("name-{pid}"))).unwrap();
            String::from_utf8(got.into_inner()).unwrap()
        };
        let (tight, wide) = (saved(2), saved(20_000));
        let without = |text: &str| text.replace(' ', "");
        assert!(tight.contains(&text) && without(&tight) == without(&wide));
        assert_eq!(tight.matches("\n- ").count(), 19_999);
    }

    #[test]
    fn a_name_with_a_newline_is_one_of_an_event() {
        let event = "-7       (      7) [000] ..... 1.000001: tracing_mark_write: B|7|x\n";
        let other = "             one-8       (      8) [000] ..... 1.000001: tracing_mark_write: B|8|a\nb\n";
        let text = format!("{:>16}{event}{other}{:>16}{event} y\n{other}", "a\nb", "\n\nc\n");
        let mut got = io::Cursor::new(Vec::new());
        write(text.as_bytes(), None, &mut got, 2, |_| None).unwrap();
        let got = String::from_utf8(got.into_inner()).unwrap();
        assert!(
            got.contains(&format!("{:>16}{event}{other}{:>16}{event} y\n{other}", "a_b", "__c_")),
            "{got}"
        );
        assert!(got.contains("- 7 0 0 0 - - - __c_ __c_\n- 8 0 0 0 - - - one one\n"), "{got}");
    }
}
