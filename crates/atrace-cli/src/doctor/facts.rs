//! The facts about a process, and their encoding in the answer of the child that collected them.
//!
//! Nothing here calls the system. The encoded bytes come from another user, so numbers are checked and texts stay
//! bytes.
//!
//! # Format
//!
//! An answer is a list of words (`atrace_sys::errand::Words`) in a fixed order. A value that may be missing is a word
//! that starts with 1, followed by the value, or the single byte 0. Numbers are little-endian. The patterns come
//! last, one word each.

use atrace_sys::errand::{Words, parse};

/// Everything that the process, its user or its files tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    /// argv\[0\].
    pub(super) name: Option<Vec<u8>>,
    /// `ATRACE_BACKEND`, `ATRACE_MARKER` and `ATRACE_PROPERTIES` in the environment that the process was started
    /// with.
    pub(super) backend: Option<Vec<u8>>,
    pub(super) marker: Option<Vec<u8>>,
    pub(super) properties: Option<Vec<u8>>,
    /// The file that `ATRACE_MARKER` names exists.
    pub(super) has_marker: bool,
    pub(super) page: Page,
    pub(super) descriptor: Descriptor,
    /// The process has a thread that watches the properties.
    pub(super) has_watch: bool,
    pub(super) store: StoreFacts,
}

/// The state that the process publishes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Page {
    #[default]
    Nothing,
    /// The process can't be examined; the value is the errno.
    Unseen(i32),
    /// The published state. It is the parent's if the process was forked and has published nothing since.
    Text { text: Vec<u8>, is_parents: bool },
}

/// The descriptor of the marker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Descriptor {
    /// The file that the descriptor refers to now; `None` if it is closed.
    pub(super) link: Option<Vec<u8>>,
    /// The descriptor still refers to the marker.
    pub(super) is_it: bool,
    /// The path that the marker was opened with still leads to the marker (`is_place`), or to any file (`has_place`).
    pub(super) is_place: bool,
    pub(super) has_place: bool,
}

/// The property store of the process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct StoreFacts {
    /// `None` if the path is unknown.
    pub(super) path: Option<Vec<u8>>,
    pub(super) presence: Presence,
    /// The process has mapped a store of this path that was deleted.
    pub(super) is_stale: bool,
    /// Why the store can't be used.
    pub(super) fault: Option<Vec<u8>>,
    /// The text of the tag mask, and the property's serial if it is set.
    pub(super) flags: Vec<u8>,
    pub(super) serial: Option<u32>,
    pub(super) patterns: Vec<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Presence {
    There,
    #[default]
    Absent,
    /// This process may not read the store's directory.
    Hidden,
}

impl Facts {
    /// Encodes the facts.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut words = Words::default();
        for text in [&self.name, &self.backend, &self.marker, &self.properties] {
            option(&mut words, text.as_deref());
        }
        let (page, errno, is_parents) = match &self.page {
            Page::Nothing => (None, 0, false),
            Page::Unseen(errno) => (None, *errno, false),
            Page::Text { text, is_parents } => (Some(&text[..]), 0, *is_parents),
        };
        option(&mut words, page);
        words.add(errno.to_le_bytes());
        option(&mut words, self.descriptor.link.as_deref());
        let store = &self.store;
        let bits = [
            self.has_marker,
            is_parents,
            self.descriptor.is_it,
            self.descriptor.is_place,
            self.descriptor.has_place,
            self.has_watch,
            store.is_stale,
        ];
        words.add(bits.map(u8::from));
        option(&mut words, store.path.as_deref());
        words.add([store.presence as u8]);
        option(&mut words, store.fault.as_deref());
        words.add(&store.flags);
        option(&mut words, store.serial.map(u32::to_le_bytes).as_ref().map(|bytes| &bytes[..]));
        store.patterns.iter().for_each(|pattern| {
            words.add(pattern);
        });
        words.bytes()
    }

    /// Decodes the facts; `None` if the bytes are not a valid answer.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let words = &mut parse(bytes)?.into_iter();
        let [name, backend, marker, properties, page] = read_options(words)?;
        let errno = i32::from_le_bytes(words.next()?.try_into().ok()?);
        let [link] = read_options(words)?;
        let bits: [u8; 7] = words.next()?.try_into().ok()?;
        let [has_marker, is_parents, is_it, is_place, has_place, has_watch, is_stale] =
            bits.map(|bit| bit != 0);
        let [path] = read_options(words)?;
        let presence = match words.next()? {
            [0] => Presence::There,
            [1] => Presence::Absent,
            [2] => Presence::Hidden,
            _ => return None,
        };
        let [fault] = read_options(words)?;
        let flags = words.next()?.to_vec();
        let [serial] = read_options(words)?;
        let serial = match serial {
            Some(serial) => Some(u32::from_le_bytes(serial.try_into().ok()?)),
            None => None,
        };
        let page = match (page, errno) {
            (Some(text), _) => Page::Text { text, is_parents },
            (None, 0) => Page::Nothing,
            (None, errno) => Page::Unseen(errno),
        };
        let patterns = words.map(<[u8]>::to_vec).collect();
        let descriptor = Descriptor { link, is_it, is_place, has_place };
        let store = StoreFacts { path, presence, is_stale, fault, flags, serial, patterns };
        Some(Self { name, backend, marker, properties, has_marker, page, descriptor, has_watch, store })
    }
}

/// Adds a value that may be missing: 1 and the value, or 0.
fn option(words: &mut Words, text: Option<&[u8]>) {
    match text {
        Some(text) => words.add([&[1], text].concat()),
        None => words.add([0]),
    };
}

fn read_options<'a, const N: usize>(
    words: &mut impl Iterator<Item = &'a [u8]>,
) -> Option<[Option<Vec<u8>>; N]> {
    let mut options = [const { None }; N];
    for option in &mut options {
        *option = match words.next()?.split_first()? {
            (0, []) => None,
            (1, text) => Some(text.to_vec()),
            _ => return None,
        };
    }
    Some(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> Facts {
        Facts {
            name: Some(b"/bin/name".to_vec()),
            marker: Some(Vec::new()),
            has_marker: true,
            page: Page::Text { text: b"pid 1\n\xff".to_vec(), is_parents: true },
            descriptor: Descriptor { link: Some(b"/a".to_vec()), is_place: true, ..Descriptor::default() },
            has_watch: true,
            store: StoreFacts {
                path: Some(b"/b".to_vec()),
                presence: Presence::Hidden,
                fault: Some(b"damaged".to_vec()),
                flags: b"0x2".to_vec(),
                serial: Some(77),
                patterns: vec![b"*".to_vec(), Vec::new()],
                ..StoreFacts::default()
            },
            ..Facts::default()
        }
    }

    #[test]
    fn an_answer_is_read() {
        let unseen = Facts { page: Page::Unseen(13), ..Facts::default() };
        for facts in [some(), unseen, Facts::default()] {
            assert_eq!(Facts::parse(&facts.bytes()).as_ref(), Some(&facts));
        }
    }

    /// Changes each byte of an answer and cuts it at each length: the reader never panics.
    #[test]
    fn no_answer_ends_the_reader() {
        let bytes = some().bytes();
        for at in 0..bytes.len() {
            // An answer that is cut between two patterns is valid.
            if let Some(facts) = Facts::parse(&bytes[..at]) {
                assert!(facts.store.patterns.len() < 2, "{at}");
            }
            for byte in [0, 1, 2, 0x7f, 0xff] {
                let mut bytes = bytes.clone();
                bytes[at] = byte;
                if let Some(facts) = Facts::parse(&bytes) {
                    assert_eq!(Facts::parse(&facts.bytes()), Some(facts));
                }
            }
        }
        assert_eq!(Facts::parse(b""), None);
    }
}
