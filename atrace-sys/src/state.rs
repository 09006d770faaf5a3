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

use std::fmt;
#[cfg(all(target_os = "linux", not(miri)))]
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering, fence};

/// The name of the file: in `/proc/PID/fd` it reads `/memfd:atrace-state (deleted)`.
pub const NAME: &str = "atrace-state";

/// How long the file is, and how long the text can be: a word comes before it.
pub const SIZE: usize = 4096;
const WORDS: usize = SIZE / 8;
/// How long a text can be; what is longer is cut.
pub const TEXT_MAX: usize = SIZE - 8;

/// A text in the making, on the stack.
pub struct Text {
    bytes: [u8; TEXT_MAX],
    length: usize,
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Text").field("length", &self.length).finish_non_exhaustive()
    }
}

impl Default for Text {
    fn default() -> Self {
        Self::new()
    }
}

impl Text {
    /// Makes an empty text.
    pub fn new() -> Self {
        Self { bytes: [0; TEXT_MAX], length: 0 }
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

struct Value<'a>(&'a mut Text);

impl fmt::Write for Value<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for &byte in text.as_bytes() {
            self.0.push(&[if byte < 0x20 || byte == 0x7f { b'?' } else { byte }]);
        }
        Ok(())
    }
}

/// Publishes the text that `compose` makes as the state of the calling process.
///
/// When two threads come at once, one leaves it to the other, which composes once more.
#[cfg(any(not(target_os = "linux"), miri))]
pub fn publish(_compose: &dyn Fn(&mut Text)) {}

/// Publishes the text that `compose` makes as the state of the calling process.
///
/// When two threads come at once, one leaves it to the other, which composes once more.
#[cfg(all(target_os = "linux", not(miri)))]
pub fn publish(compose: &dyn Fn(&mut Text)) {
    let _errno = crate::process::ErrnoGuard::new();
    let this = u64::from_ne_bytes(crate::process::id().bytes());
    while take_turn(this) {
        AGAIN.store(false, Ordering::SeqCst);
        if let Some(page) = page_of(this) {
            let mut text = Text::new();
            compose(&mut text);
            page.write(&text.bytes);
        }
        TURN.store(0, Ordering::SeqCst);
        if !AGAIN.load(Ordering::SeqCst) {
            break;
        }
    }
}

/// The process, by its [id](crate::process::id), one of whose threads is publishing.
#[cfg(all(target_os = "linux", not(miri)))]
static TURN: AtomicU64 = AtomicU64::new(0);
/// Somebody came meanwhile.
#[cfg(all(target_os = "linux", not(miri)))]
static AGAIN: AtomicBool = AtomicBool::new(false);
/// The process whose page this is, if it could have one.
#[cfg(all(target_os = "linux", not(miri)))]
static OWNER: AtomicU64 = AtomicU64::new(0);
#[cfg(all(target_os = "linux", not(miri)))]
static PAGE: AtomicPtr<Page> = AtomicPtr::new(std::ptr::null_mut());

#[cfg(all(target_os = "linux", not(miri)))]
fn take_turn(this: u64) -> bool {
    let mut present = TURN.compare_exchange(0, this, Ordering::SeqCst, Ordering::SeqCst);
    if let Err(other) = present
        && other != this
    {
        // Of the parent, whose thread is not in this process.
        present = TURN.compare_exchange(other, this, Ordering::SeqCst, Ordering::SeqCst);
    }
    if present.is_err() {
        AGAIN.store(true, Ordering::SeqCst);
        // It may have ended just before that.
        return TURN.compare_exchange(0, this, Ordering::SeqCst, Ordering::SeqCst).is_ok();
    }
    true
}

/// The page of this process, made if need be. Called by who has the turn.
#[cfg(all(target_os = "linux", not(miri)))]
fn page_of(this: u64) -> Option<&'static Page> {
    if OWNER.load(Ordering::Acquire) != this {
        if crate::thread::has_left_descriptors() {
            return None; // What this thread opens, nobody could see.
        }
        let wanted = crate::process::variable("ATRACE_STATE").is_none_or(|value| value != "none");
        let page = if wanted { Page::make() } else { None };
        PAGE.store(page.unwrap_or(std::ptr::null_mut()), Ordering::Release);
        // Also where it could not be had: it is not tried at every event.
        OWNER.store(this, Ordering::Release);
    }
    // SAFETY: null, or a page that `make` mapped, which is never unmapped.
    unsafe { PAGE.load(Ordering::Acquire).as_ref() }
}

/// The mapped file.
#[cfg(all(target_os = "linux", not(miri)))]
#[repr(C, align(8))]
struct Page {
    sequence: AtomicU64,
    words: [AtomicU64; WORDS - 1],
}

#[cfg(all(target_os = "linux", not(miri)))]
impl Page {
    fn make() -> Option<*mut Self> {
        const NAME_OF_FILE: &std::ffi::CStr = c"atrace-state";
        // SAFETY: a C string and flags. By number: not every libc has the function.
        let made = unsafe {
            libc::syscall(
                libc::SYS_memfd_create,
                NAME_OF_FILE.as_ptr(),
                libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING,
            )
        };
        let fd = i32::try_from(made).ok().filter(|fd| *fd >= 0)?;
        let page = Self::map(fd);
        // To a number that programs don't reuse.
        // SAFETY: the descriptor was made above and is nobody else's.
        unsafe {
            if page.is_none() || libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, crate::marker::LOWEST_FD) >= 0 {
                libc::close(fd);
            }
        }
        page
    }

    fn map(fd: i32) -> Option<*mut Self> {
        let zeros = [0_u8; SIZE];
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // Written, so that there is memory for it now and not when a store would end the process.
        // SAFETY: a descriptor of ours; readable memory of that length.
        let ready = unsafe {
            libc::write(fd, zeros.as_ptr().cast(), SIZE) == SIZE as isize
                && libc::fcntl(fd, libc::F_ADD_SEALS, seals) == 0
        };
        if !ready {
            return None;
        }
        // SAFETY: a new mapping of a file that has this size and, sealed, keeps it.
        let place = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                SIZE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd,
                0,
            )
        };
        (place != libc::MAP_FAILED).then_some(place.cast())
    }

    fn write(&self, text: &[u8; TEXT_MAX]) {
        let sequence = self.sequence.load(Ordering::Relaxed) | 1;
        self.sequence.store(sequence, Ordering::Relaxed);
        fence(Ordering::Release);
        for (word, bytes) in self.words.iter().zip(text.chunks_exact(8)) {
            let mut copy = [0; 8];
            copy.copy_from_slice(bytes);
            word.store(u64::from_ne_bytes(copy), Ordering::Relaxed);
        }
        self.sequence.store(sequence.wrapping_add(1), Ordering::Release);
    }
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
