//! The text of a note, line by line.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use crate::command::stores::Store;

/// The first word of the line after a switch: the patterns of a store are on.
const DONE: &str = "done";

/// The lines that cancel the patterns, or the output.
pub(crate) const UNDONE: &str = "undone";
pub(crate) const SAVED: &str = "saved";

/// The first word of the line with the file to save the recording to.
const OUTPUT: &str = "output";

/// A pattern that a recording switches on in a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NotedPattern {
    /// The user whose store it is; `None` if `path` alone identifies the store.
    pub(crate) uid: Option<u32>,
    pub(crate) path: PathBuf,
    /// The pattern is switched off again only if the store lists it more often than this. The number is how often it
    /// was listed before the switch, and 0 once the switch is known to be done.
    pub(crate) before: usize,
    pub(crate) pattern: String,
}

impl NotedPattern {
    pub(crate) fn new(store: &Store, before: usize, pattern: &str) -> Self {
        Self { uid: store.uid, path: store.path.clone(), before, pattern: pattern.to_owned() }
    }

    pub(crate) fn is_of(&self, store: &Store) -> bool {
        self.uid == store.uid && self.path == store.path
    }

    /// Notes that the pattern was switched on.
    pub(crate) fn done(&mut self) {
        self.before = 0;
    }

    pub(crate) fn line(&self) -> String {
        let (path, pattern) = (hex(self.path.as_os_str().as_bytes()), hex(self.pattern.as_bytes()));
        format!("{} {} {path} {pattern}\n", word(self.uid), self.before)
    }
}

/// Returns the line which says that the patterns of a store were switched on.
pub(crate) fn done_line(uid: Option<u32>, path: &Path) -> String {
    format!("{DONE} {} {}\n", word(uid), hex(path.as_os_str().as_bytes()))
}

/// The file to save a recording to, and the user and group that it will belong to, if not those of the saving
/// process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Destination {
    pub(crate) path: PathBuf,
    pub(crate) owner: Option<(u32, u32)>,
}

impl Destination {
    pub(crate) fn line(&self) -> String {
        let (uid, gid) = self.owner.unzip();
        format!("{OUTPUT} {} {} {}\n", word(uid), word(gid), hex(self.path.as_os_str().as_bytes()))
    }
}

/// The content of a note, without the parts that are cancelled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NoteText {
    /// The id of the boot in which the note was written.
    pub(crate) boot: String,
    pub(crate) output: Option<Destination>,
    pub(crate) entries: Vec<NotedPattern>,
}

impl NoteText {
    /// Parses the complete lines of a note. Returns `None` if a line is invalid.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut lines = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
        let mut parsed = Self { boot: lines.next()?.to_owned(), ..Self::default() };
        for line in lines {
            match *line.split(' ').collect::<Vec<_>>() {
                [DONE, uid, path] => {
                    let (uid, path) = (number(uid)?, path_of(path)?);
                    let of_store = |entry: &&mut NotedPattern| entry.uid == uid && entry.path == path;
                    parsed.entries.iter_mut().filter(of_store).for_each(NotedPattern::done);
                }
                [UNDONE] => parsed.entries.clear(),
                [SAVED] => parsed.output = None,
                [OUTPUT, uid, gid, path] => {
                    let path = path_of(path).filter(|path| path.is_absolute())?;
                    parsed.output = Some(Destination { path, owner: number(uid)?.zip(number(gid)?) });
                }
                [uid, before, path, pattern] => parsed.entries.push(NotedPattern {
                    uid: number(uid)?,
                    path: path_of(path)?,
                    before: before.parse().ok()?,
                    pattern: String::from_utf8(bytes(pattern)?).ok()?,
                }),
                _ => return None,
            }
        }
        Some(parsed)
    }
}

/// Formats a number, or `-` if there is none.
fn word(number: Option<u32>) -> String {
    number.map_or("-".to_owned(), |number| number.to_string())
}

fn number(word: &str) -> Option<Option<u32>> {
    if word == "-" { Some(None) } else { word.parse().ok().map(Some) }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(hex: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = hex.chars().map(|digit| Some(digit.to_digit(16)? as u8)).collect();
    let (pairs, []) = digits.as_ref()?.as_chunks::<2>() else { return None };
    Some(pairs.iter().map(|[high, low]| high << 4 | low).collect())
}

fn path_of(hex: &str) -> Option<PathBuf> {
    Some(OsString::from_vec(bytes(hex)?).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(uid: Option<u32>, pattern: &str) -> NotedPattern {
        let path = OsString::from_vec(b"/a b\xff".to_vec()).into();
        NotedPattern { uid, path, before: 3, pattern: pattern.to_owned() }
    }

    #[test]
    fn what_was_written_down_is_read() {
        let entries = vec![entry(Some(7), "*/a \n'"), entry(None, "ü")];
        let mut text = "boot\n".to_owned();
        entries.iter().for_each(|entry| text += &entry.line());
        let mut expected = NoteText { boot: "boot".into(), output: None, entries };
        assert_eq!(NoteText::parse(&text).as_ref(), Some(&expected));
        // The command was killed while it wrote the last line, which is ignored.
        assert_eq!(NoteText::parse(&(text.clone() + "9 0 2f 2a")).as_ref(), Some(&expected));
        text += &done_line(expected.entries[0].uid, &expected.entries[0].path);
        expected.entries[0].before = 0;
        assert_eq!(NoteText::parse(&text).as_ref(), Some(&expected));
        for owner in [None, Some((1000, 100)), Some((u32::MAX, 0))] {
            let output = Destination { path: "/a b/c\n d ".into(), owner };
            let text = text.clone() + &output.line();
            expected.output = Some(output);
            assert_eq!(NoteText::parse(&text).as_ref(), Some(&expected));
            let undone = NoteText { entries: Vec::new(), ..expected.clone() };
            assert_eq!(NoteText::parse(&(text.clone() + "undone\n")), Some(undone));
            let saved = NoteText { output: None, ..expected.clone() };
            assert_eq!(NoteText::parse(&(text + "saved\n")), Some(saved));
        }
        for wrong in [
            "",
            "b\n1\n",
            "b\nx 0 2f 2a\n",
            "b\n1 0 2 2a\n",
            "b\n1 0 2f zz\n",
            "b\n1 -1 2f 2a\n",
            "b\n1 0 2f ff\n",
            "b\ndone\n",
            "b\ndone 1 2\n",
            "b\noutput 1 1 61\n",
            "b\noutput - - \n",
            "b\noutput x 1 2f\n",
            "b\noutput 1 2f\n",
        ] {
            assert_eq!(NoteText::parse(wrong), None, "{wrong:?}");
        }
    }
}
