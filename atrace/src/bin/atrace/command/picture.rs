//! A trace in the form that Perfetto draws best: the kernel's text in the HTML that Android's systrace made.
//!
//! Before the text there is room for a list of processes, from which Perfetto takes their names; the text
//! alone names threads only. Which processes are in it is known at its end: the list is written to a place
//! that was kept free.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Seek, SeekFrom, Write};

/// What tells Perfetto's reader that a part follows, and that it ends.
const BEGIN: &str = "<script class=\"trace-data\" type=\"application/text\">\n";
const END: &str = "</script>\n";

const HEAD: &str = "<!DOCTYPE html>\n<html><body>\n";
const LIST: &str = "PROCESS DUMP\nUSER PID PPID VSZ RSS WCHAN PC S NAME COMM\n";

/// The longest line of the list, with the longest name.
const LINE: usize = 160;
const NAME: usize = 60;

/// Copies the text of a trace and adds the names of up to `processes` processes: `name` says them, else that
/// of the main thread is taken.
pub(crate) fn write(
    mut from: impl BufRead,
    to: &mut (impl Write + Seek),
    processes: usize,
    mut name: impl FnMut(u32) -> Option<String>,
) -> io::Result<()> {
    let room = BEGIN.len() + LIST.len() + END.len() + processes * LINE;
    write!(to, "{HEAD}{:room$}\n{BEGIN}", "")?;
    let mut mains = BTreeMap::<u32, Vec<u8>>::new();
    let mut line = Vec::new();
    loop {
        line.clear();
        if from.read_until(b'\n', &mut line)? == 0 {
            break;
        }
        if let Some((task, thread, process)) = owner(&line) {
            let main = mains.entry(process).or_default();
            if thread == process && task != b"<...>" && main != task {
                *main = task.to_vec();
            }
        }
        // Whoever wrote this, it would be the end for the reader.
        while let Some(at) = line.windows(8).position(|text| text == b"</script") {
            line[at] = b'?';
        }
        to.write_all(&line)?;
    }
    writeln!(to, "{END}</body></html>")?;
    to.seek(SeekFrom::Start(HEAD.len() as u64))?;
    write!(to, "{BEGIN}{LIST}")?;
    for (process, main) in mains.into_iter().take(processes) {
        let main = (!main.is_empty()).then(|| String::from_utf8_lossy(&main).into_owned());
        let name = name(process).or(main).unwrap_or_default();
        let plain = |c: char| if c.is_ascii_graphic() && c != '<' { c } else { '_' };
        let name: String = name.chars().take(NAME).map(plain).collect();
        if !name.is_empty() {
            writeln!(to, "- {process} 0 0 0 - - - {name} {name}")?;
        }
    }
    write!(to, "{END}")
}

/// The thread's name, its number and its process' in a line `TASK-TID (TGID) …`; a name fills 16 columns.
fn owner(line: &[u8]) -> Option<(&[u8], u32, u32)> {
    let (task, rest) = line.split_at_checked(16)?;
    let rest = rest.strip_prefix(b"-")?;
    let open = rest.iter().take(16).position(|&byte| byte == b'(')?;
    let close = rest.iter().take(32).position(|&byte| byte == b')')?;
    let number = |bytes: &[u8]| std::str::from_utf8(bytes).ok()?.trim().parse().ok();
    Some((task.trim_ascii_start(), number(rest.get(..open)?)?, number(rest.get(open + 1..close)?)?))
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
            \x20          <...>-78      (-------) [000] ...1. 1.000004: tracing_mark_write: E|78\n";
        let mut got = io::Cursor::new(Vec::new());
        let name = |process| (process == 77).then(|| "its <name".to_owned() + &"x".repeat(500));
        write(text.as_bytes(), &mut got, 2, name).unwrap();
        let got = String::from_utf8(got.into_inner()).unwrap();
        // What is around the text stays whole.
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
}
