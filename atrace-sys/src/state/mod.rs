//! The published state of a process's tracing: a page of text in a memory file, which other processes can read.
//!
//! The file is made by `memfd_create(2)` with the name [`NAME`]. The file is visible in `/proc/PID/fd` to root and to
//! processes of the same user, and is gone when its process ends. (Before Linux 3.17, it is a file in `/dev/shm` whose
//! name is removed at once.) The content of the file is a seqlock: a word that is odd during a write and changes with
//! each write, then the text, padded with zeroes.
//!
//! The text is written through a mapping, so writing needs neither a system call nor a descriptor. Even a thread with
//! an empty descriptor table of its own can write the text. If the program has closed the descriptor, no other process
//! can read the text. The file is sealed, so that no process can shrink it below the mapping. A forked child does not
//! write to its parent's page. The child creates its own page when it first publishes its state. [`prepare`] (or, if it
//! was not called, the first [`publish`]) allocates, and reads the environment, and for this it may wait for the
//! environment's lock. The other functions of this module neither wait nor allocate. No function of this module changes
//! errno.
//!
//! With `ATRACE_STATE=none` no state is published. This setting is for hosts on which a process must not have an
//! additional descriptor. On Android no state is ever published, because a system call filter kills apps that make
//! system calls unknown to the filter.

#[cfg(all(target_os = "linux", not(miri)))]
mod page;
#[cfg(all(target_os = "linux", not(miri)))]
mod words;

use std::fmt;

/// The name of the file. In `/proc/PID/fd` it appears as `/memfd:atrace-state (deleted)`.
pub const NAME: &str = "atrace-state";

/// The size of the file in bytes.
pub const SIZE: usize = 4096;
/// The maximum size of the text in bytes: the size of the file without its first word. A longer text is cut.
pub const TEXT_MAX: usize = SIZE - 8;

/// The text of a state while it is being composed.
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
    /// Creates an empty text in `bytes`.
    pub fn new(bytes: &'a mut [u8]) -> Self {
        Self { bytes, length: 0 }
    }

    /// Returns the bytes of the text so far.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Adds a line `key value`. Control characters in the value become `?`.
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

/// Reads the environment variables, so that [`publish`] does not have to read them.
pub fn prepare() {
    #[cfg(all(target_os = "linux", not(miri)))]
    page::is_wanted();
}

/// Publishes the state of the calling process: the text that `compose` writes.
///
/// If two threads call this function at once, only one of them publishes its text. That thread then calls its `compose`
/// once more.
pub fn publish(compose: &dyn Fn(&mut Text<'_>)) {
    #[cfg(all(target_os = "linux", not(miri)))]
    page::publish(compose);
    let _ = compose;
}

/// Returns the text in `file`, the content of a state's memory file. Returns `None` if a write was in progress when the
/// first word was read, or if the content is not a state. A caller that reads the file while the file may change must
/// read the first word again after the content, to see whether a write has changed it.
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
