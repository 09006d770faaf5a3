//! What a process says of its tracing, where another one can read it: a page of text in a memory file.
//!
//! The file is made by `memfd_create(2)` under the name [`NAME`] and shows in `/proc/PID/fd`, for root and for
//! processes of the same user. It holds a page: first a word that is odd while the rest is being written and
//! another one after each writing, then text, then zeros. It goes with its process and leaves nothing behind.
//!
//! The text is written through a mapping: without a system call, also by threads that have no descriptors,
//! and when the host has closed the descriptor (then nobody can read it). The file is sealed, so that nobody
//! can cut it shorter under the mapping. A forked child does not write into its parent's page: it makes one
//! when it has something to say. Nothing here allocates, waits, or touches errno.
//!
//! `ATRACE_STATE=none` has no state published, for hosts that may not have a descriptor more. On Android there
//! is none either: filters of system calls end the apps that make calls they do not know.

#[cfg(all(target_os = "linux", not(miri)))]
mod page;
#[cfg(all(target_os = "linux", not(miri)))]
mod words;

use std::fmt;

/// The name of the file: in `/proc/PID/fd` it reads `/memfd:atrace-state (deleted)`.
pub const NAME: &str = "atrace-state";

/// How long the file is, and how long the text can be: a word comes before it.
pub const SIZE: usize = 4096;
/// How long a text can be; what is longer is cut.
pub const TEXT_MAX: usize = SIZE - 8;

/// A text in the making.
pub struct Text<'a> {
    bytes: &'a mut [u8],
    length: usize,
}

impl fmt::Debug for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Text").field("length", &self.length).finish_non_exhaustive()
    }
}

impl<'a> Text<'a> {
    /// Makes an empty text in this memory.
    pub fn new(bytes: &'a mut [u8]) -> Self {
        Self { bytes, length: 0 }
    }

    /// What was added.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Adds a line `key value`. What is no printable character of the value becomes `?`.
    pub fn line(&mut self, key: &str, value: impl fmt::Display) {
        use fmt::Write as _;
        self.push(key.as_bytes());
        self.push(b" ");
        let _ = write!(Value(self), "{value}");
        self.push(b"\n");
    }

    fn push(&mut self, bytes: &[u8]) {
        let room = &mut self.bytes[self.length..];
        let length = bytes.len().min(room.len());
        room[..length].copy_from_slice(&bytes[..length]);
        self.length += length;
    }
}

struct Value<'a, 'b>(&'a mut Text<'b>);

impl fmt::Write for Value<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for &byte in text.as_bytes() {
            self.0.push(&[if byte < 0x20 || byte == 0x7f { b'?' } else { byte }]);
        }
        Ok(())
    }
}

/// Reads the environment, so that [`publish`] need not.
pub fn prepare() {
    #[cfg(all(target_os = "linux", not(miri)))]
    page::is_wanted();
}

/// Publishes the text that `compose` makes as the state of the calling process.
///
/// When two threads come at once, one leaves it to the other, which composes once more.
pub fn publish(compose: &dyn Fn(&mut Text<'_>)) {
    #[cfg(all(target_os = "linux", not(miri)))]
    page::publish(compose);
    let _ = compose;
}

/// Takes the text out of what was read of a file; `None` where it was just being written, or is none of ours.
pub fn text_of(file: &[u8]) -> Option<&[u8]> {
    let (sequence, text) = file.split_first_chunk::<8>()?;
    let sequence = u64::from_ne_bytes(*sequence);
    if file.len() != SIZE || sequence == 0 || sequence % 2 == 1 {
        return None;
    }
    let end = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
    text.get(..end)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "no memory files")]
    fn what_is_published_last_is_read() {
        let read = || {
            let entries = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
            let ours = |path: &std::path::PathBuf| {
                std::fs::read_link(path).is_ok_and(|link| link.to_string_lossy().contains(NAME))
            };
            let path = entries.map(|entry| entry.path()).find(ours).expect("a descriptor");
            let file = std::fs::read(path).unwrap();
            String::from_utf8(text_of(&file).expect("a text").to_vec()).unwrap()
        };
        std::thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || {
                    for number in 0..1000 {
                        publish(&|text| text.line("thread", format_args!("{thread} {number}")));
                    }
                });
            }
        });
        publish(&|text| {
            text.line("key", "a value\nthat is \x7f two lines");
            text.line("long", "x".repeat(5000));
        });
        let text = read();
        assert!(text.starts_with("key a value?that is ? two lines\nlong xxx"), "{text}");
        assert_eq!(text.len(), TEXT_MAX);
    }

    #[test]
    fn other_files_are_no_state() {
        let mut file = vec![0; SIZE];
        assert_eq!(text_of(&file), None);
        file[..8].copy_from_slice(&2_u64.to_ne_bytes());
        file[8..10].copy_from_slice(b"a\n");
        assert_eq!(text_of(&file), Some(&b"a\n"[..]));
        assert_eq!(text_of(&file[..SIZE - 1]), None);
        file[..8].copy_from_slice(&3_u64.to_ne_bytes());
        assert_eq!(text_of(&file), None);
        assert_eq!(text_of(b""), None);
    }
}
