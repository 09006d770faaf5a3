//! The facts about a process, and how the child process that collected them encodes them in its answer.
//!
//! This module makes no system calls. The encoded bytes come from another user, so numbers are checked and texts
//! are treated as bytes.
//!
//! # Facts
//!
//! A fact has a name and a value. A fact whose value is true or false is present if it is true, and missing if it is
//! false.
//!
//! - `name`: argv\[0\];
//! - `ATRACE_BACKEND`, `ATRACE_MARKER`, `ATRACE_PROPERTIES`: the variables with which the process was started;
//! - `has_marker`: the file that `ATRACE_MARKER` names exists;
//! - `has_watch`: the process has a thread that watches the properties;
//! - `has_namesakes`: two threads have the same name, so a new thread may still have the name of the thread that
//!   started it;
//! - `page`: the state of tracing that the process publishes; `is_parents`: this state belongs to the parent, because
//!   the process was forked and has not published a state since; `is_forked`: the process has a state that it inherited
//!   by a fork; `unseen`: the errno if the process can't be examined;
//! - `link`: the file to which the marker's descriptor refers now; missing if the descriptor is closed;
//! - `is_it`: the marker's descriptor still refers to the marker;
//! - `is_place`: the path by which the marker was opened still leads to the marker; `has_place`: a file exists at that
//!   path, be it the marker or another file;
//! - `store`: the path of the property store; `is_there`: the store exists; `is_hidden`: the user may not read the
//!   store's directory;
//! - `is_stale`: the process has mapped a store that had this path and was deleted;
//! - `fault`: the reason why the store can't be used;
//! - `flags`, `serial`: the value and the serial of the property with the mask of tags, if the property is set;
//! - `pattern`: an app pattern; there is one fact for each pattern.
//!
//! # Format
//!
//! An answer is a list of parts (`atrace_sys::privsep::Answer`): one part `name NUL value` for each fact, and the part
//! `end` after the last fact.
//!
//! # The published state
//!
//! The state that a process publishes consists of lines of a key and a value ([`Published`]).

use atrace_sys::privsep::{Answer, parse};

/// All facts about a process that were collected from the process, its user and its files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Facts(Vec<(Vec<u8>, Vec<u8>)>);

impl Facts {
    pub(super) fn add(&mut self, name: &str, value: impl AsRef<[u8]>) {
        self.0.push((name.into(), value.as_ref().to_vec()));
    }

    /// Adds a fact that is either true or false.
    pub(super) fn note(&mut self, name: &str, is_so: bool) {
        if is_so {
            self.add(name, "");
        }
    }

    /// Returns the values of all facts with this name.
    pub(super) fn all(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        self.0.iter().filter(move |(other, _)| other == name.as_bytes()).map(|(_, value)| &value[..])
    }

    /// Returns the value of the fact with this name. If there are several facts with this name, returns the last value.
    pub(super) fn get(&self, name: &str) -> Option<&[u8]> {
        self.all(name).last()
    }

    pub(super) fn is(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    pub(super) fn number<T: std::str::FromStr>(&self, name: &str) -> Option<T> {
        str::from_utf8(self.get(name)?).ok()?.parse().ok()
    }

    /// Parses the published state, if there is one.
    pub(super) fn published(&self) -> Option<Published> {
        self.get("page").map(Published::parse)
    }

    /// Encodes the facts.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut answer = Answer::default();
        self.0.iter().for_each(|(name, value)| _ = answer.add([name, &b"\0"[..], value].concat()));
        answer.add("end");
        answer.bytes()
    }

    /// Decodes the facts. Returns `None` if the bytes are not a valid answer.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let parts = parse(bytes)?;
        let [facts @ .., b"end"] = &parts[..] else { return None };
        let fact = |word: &&[u8]| {
            let (name, value) = word.split_at_checked(word.iter().position(|&byte| byte == 0)?)?;
            Some((name.to_vec(), value.get(1..)?.to_vec()))
        };
        facts.iter().map(fact).collect::<Option<_>>().map(Self)
    }
}

/// The lines of a published state. The documentation of [`atrace::state_page`] lists the keys.
#[derive(Clone, Debug, Default)]
pub(super) struct Published(String);

impl Published {
    pub(super) fn parse(text: &[u8]) -> Self {
        Self(String::from_utf8_lossy(text).lines().map(with_text).collect())
    }

    /// Returns the values of all lines that begin with this key.
    pub(super) fn all(&self, key: &str) -> impl Iterator<Item = &str> {
        self.0.lines().filter_map(move |line| line.strip_prefix(key)?.strip_prefix(' '))
    }

    pub(super) fn get(&self, key: &str) -> Option<&str> {
        self.all(key).last()
    }

    pub(super) fn number(&self, key: &str) -> Option<u64> {
        let text = self.get(key)?;
        match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        }
    }

    /// Returns the number of sessions of Perfetto's service in which the process takes part, from the text of
    /// its connection state.
    pub(super) fn sessions(&self) -> u64 {
        let text = self.get("perfetto").and_then(|state| state.split_once(": connected, "));
        let number = text.and_then(|(_, rest)| rest.split_once(" sessions"));
        number.and_then(|(number, _)| number.parse().ok()).unwrap_or(0)
    }

    /// Returns the number of the marker's descriptor, and the device and inode of the marker's file.
    pub(super) fn marker(&self) -> Option<(u32, (u64, u64))> {
        let mut parts = self.get("marker")?.split(':');
        let fd = parts.next()?.parse().ok()?;
        let identity = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        Some((fd, identity))
    }
}

/// Returns the line with a line feed. If the line ends with an error number (`errno N`), the number is replaced by the
/// system's text for the error.
fn with_text(line: &str) -> String {
    let parts = line.rsplit_once("errno ").and_then(|(before, code)| Some((before, code.parse().ok()?)));
    match parts {
        Some((before, code)) => format!("{before}{}\n", std::io::Error::from_raw_os_error(code)),
        None => format!("{line}\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> Facts {
        let mut facts = Facts::default();
        facts.add("name", "/bin/name");
        facts.add("page", b"pid 1\n\xff");
        facts.note("is_parents", true);
        facts.note("is_stale", false);
        facts.add("serial", "77");
        facts.add("pattern", "*");
        facts.add("pattern", "");
        facts
    }

    #[test]
    fn an_answer_is_read() {
        for facts in [some(), Facts::default()] {
            assert_eq!(Facts::parse(&facts.bytes()).as_ref(), Some(&facts));
        }
        let facts = some();
        assert_eq!(facts.get("name"), Some(&b"/bin/name"[..]));
        assert!(facts.is("is_parents") && !facts.is("is_stale"));
        assert_eq!((facts.number("serial"), facts.number::<u32>("name")), (Some(77), None));
        assert_eq!(facts.all("pattern").collect::<Vec<_>>(), [&b"*"[..], b""]);
        assert_eq!(facts.published().unwrap().get("pid"), Some("1"));
    }

    /// Tests answers in which each byte was changed, and answers that were cut at each length. The decoder must never
    /// panic.
    #[test]
    fn no_answer_ends_the_reader() {
        let bytes = some().bytes();
        for at in 0..bytes.len() {
            assert_eq!(Facts::parse(&bytes[..at]), None, "{at}");
            for byte in [0, 1, 2, 0x7f, 0xff] {
                let mut bytes = bytes.clone();
                bytes[at] = byte;
                if let Some(facts) = Facts::parse(&bytes) {
                    assert_eq!(Facts::parse(&facts.bytes()), Some(facts));
                }
            }
        }
    }

    #[test]
    fn an_error_of_the_system_has_its_text() {
        let refused = std::io::Error::from_raw_os_error(111);
        let of = |text: &[u8]| Published::parse(text).get("perfetto").unwrap().to_owned();
        assert_eq!(
            of(b"perfetto can't connect to its socket: errno 111\n"),
            format!("can't connect to its socket: {refused}")
        );
        assert_eq!(of(b"perfetto connected\n"), "connected");
    }
}
