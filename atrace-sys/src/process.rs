//! What a tracer must know of its own process: its id as text, its name, its rights, its errno.
//!
//! The id is asked for at every event, and glibc's `getpid()` is a system call. It is therefore
//! kept, already in decimal, where a forked child finds nothing and asks again: see [`fork`].

use std::ffi::{CStr, OsStr, OsString};
use std::num::NonZeroU64;

pub use crate::system::ErrnoGuard;
use crate::{fork, system};

/// The process id as it stands in a message: its decimal digits and a closing `|`, in memory order, then zeros.
///
/// Linux' largest id is 4194304 (`PID_MAX_LIMIT`), so seven digits and the bar fill the eight bytes.
///
/// # Examples
///
/// ```
/// let id = atrace_sys::process::id();
/// assert_eq!(id.text(), std::process::id().to_string().as_bytes());
/// assert_eq!(id.bytes()[id.text().len()], b'|');
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProcessId(NonZeroU64);

impl ProcessId {
    /// Writes `pid` in decimal: its last seven digits, which on Linux are all.
    pub fn new(pid: u32) -> Self {
        let mut digits = [0; 10];
        let mut at = digits.len();
        let mut rest = pid;
        loop {
            at -= 1;
            digits[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        let digits = &digits[at.max(3)..];
        let mut bytes = [0; 8];
        bytes[..digits.len()].copy_from_slice(digits);
        bytes[digits.len()] = b'|';
        // A digit and a bar are never zero; MIN can't be reached.
        Self(NonZeroU64::new(u64::from_ne_bytes(bytes)).unwrap_or(NonZeroU64::MIN))
    }

    /// An id from the word that [`word`](Self::word) returned.
    #[inline(always)]
    const fn from_word(word: NonZeroU64) -> Self {
        Self(word)
    }

    /// The eight bytes as a number, in memory order.
    const fn word(self) -> NonZeroU64 {
        self.0
    }

    /// The eight bytes: digits, `|`, zeros.
    #[inline(always)]
    pub fn bytes(&self) -> [u8; 8] {
        self.0.get().to_ne_bytes()
    }

    /// How many of the bytes are used: the digits and the bar.
    #[inline(always)]
    pub fn len_with_bar(&self) -> usize {
        // Little end first: the unused bytes are the high ones.
        8 - (u64::from_le(self.0.get()).leading_zeros() / 8) as usize
    }

    /// The digits alone.
    pub fn text(&self) -> Vec<u8> {
        self.bytes()[..self.len_with_bar() - 1].to_vec()
    }
}

/// Returns the id of the calling process, also right after a fork.
///
/// Costs two loads. A `vfork` child shares its parent's memory and would be told its parent's id: it must not
/// trace before it executes a program.
#[inline(always)]
pub fn id() -> ProcessId {
    ProcessId::from_word(fork::kept(|| ProcessId::new(system::process_id()).word()))
}

/// Returns the id of the calling process as a number; asks the kernel.
#[inline]
pub fn raw_id() -> u32 {
    system::process_id()
}

/// Returns the effective user id of the calling process.
pub fn user() -> u32 {
    system::effective_ids().0
}

/// Tells whether the process runs with rights its caller does not have (`AT_SECURE`: set-user-id, file
/// capabilities).
///
/// Such a process must not be steered by its environment, so every `ATRACE_*` variable is ignored there.
pub fn has_elevated_rights() -> bool {
    system::has_elevated_rights()
}

/// When the process started, in ticks since the machine did (`starttime` of `/proc/PID/stat`): with its number it tells the
/// process from all others. 0 where it can't be read. Async-signal-safe.
#[cfg(not(no_tracing))]
pub fn start_time() -> u64 {
    // The name, the second field, is in brackets and may have any.
    let mut text = [0; 1024];
    let length = system::file::read_start(c"/proc/self/stat", &mut text);
    let after_name = text[..length].rsplit(|byte| *byte == b')').next().unwrap_or_default();
    let ticks = after_name.split(|byte| *byte == b' ').nth(20).unwrap_or_default();
    ticks.iter().fold(0, |number, digit| number * 10 + u64::from(digit.wrapping_sub(b'0') % 10))
}

/// The rights (`capabilities(7)`) that the process has or could take, by its first thread; 0 in most processes. Async-signal-safe.
#[cfg(not(no_tracing))]
pub fn rights() -> u64 {
    system::capabilities()
}

/// Tells whether the calling thread seems to be in a signal's handler, where nothing should wait: on the stack for such, or
/// with a signal blocked that has a handler.
#[cfg(not(no_tracing))]
pub fn is_in_handler() -> bool {
    system::signals::seem_to_be_handled()
}

/// Reads a variable of the environment; `None` when unset, empty, or in a process with elevated rights.
pub fn variable(name: &str) -> Option<OsString> {
    if has_elevated_rights() {
        return None;
    }
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// Returns what follows `prefix` in a text of the system's; `None` where it begins otherwise.
pub fn strip_prefix<'a>(text: &'a OsStr, prefix: &str) -> Option<&'a OsStr> {
    text.as_encoded_bytes().strip_prefix(prefix.as_bytes()).map(system::os_str)
}

/// Reads the process' argv\[0\] again, and keeps it for [`with_argv0`]: hosts such as Zygote rename themselves.
///
/// A name that was kept before stays in memory, as it may be in use.
pub fn reread_argv0() {
    system::argv0::reread();
}

/// Calls `then` with the process' argv\[0\], cut as libcutils cuts it; `None` where it can't be read or there is
/// none.
///
/// It is read once and then kept, also in a forked child: a process may take away its own right to open files. Who
/// was renamed calls [`reread_argv0`].
pub fn with_argv0<R>(then: impl FnOnce(Option<&CStr>) -> R) -> R {
    then(system::argv0::read())
}

/// Tells whether what failed with this errno may succeed soon: there was no descriptor or memory to be had.
pub fn may_pass(errno: i32) -> bool {
    system::may_pass(errno)
}

/// Tells whether `text` matches the shell pattern as libcutils asks it: `fnmatch(pattern, text, FNM_NOESCAPE)`.
///
/// `*` crosses `/`, a backslash is an ordinary character.
#[doc(alias = "fnmatch")]
pub fn matches(pattern: &CStr, text: &CStr) -> bool {
    system::fnmatch(pattern, text)
}

/// Reads a number as C's `strtoull` with base 0 does: spaces, a sign, `0x` or `0` or decimal. Returns it, `None` if it is
/// too large, and what follows it: all of the text where there is no number.
#[doc(alias = "strtoull")]
pub fn number(text: &CStr) -> (Option<u64>, &CStr) {
    system::strtoull(text)
}

/// Reads a number as C's `strtoimax` with base 0 does: [`number`] with a sign.
#[doc(alias = "strtoimax")]
pub fn signed_number(text: &CStr) -> (Option<i64>, &CStr) {
    system::strtoimax(text)
}

/// An [`ErrnoGuard`] that also keeps `pthread_cancel` away from the calling thread.
///
/// Opening and reading files are cancellation points: the thread would end in the middle, and the unwinding
/// that glibc does then must not pass through Rust. A cancellation that comes meanwhile is acted on at the
/// host's next cancellation point.
#[derive(Debug)]
#[must_use = "the thread can be cancelled again when this is dropped"]
pub struct Undisturbed {
    _errno: ErrnoGuard,
    cancel_state: i32,
}

impl Undisturbed {
    /// Notes the calling thread's errno, and has cancellation wait.
    pub fn new() -> Self {
        let errno = ErrnoGuard::new();
        Self { _errno: errno, cancel_state: system::set_cancelable(CANCEL_DISABLE) }
    }
}

impl Default for Undisturbed {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Undisturbed {
    fn drop(&mut self) {
        system::set_cancelable(self.cancel_state);
    }
}

/// `PTHREAD_CANCEL_DISABLE`, alike in glibc and musl.
const CANCEL_DISABLE: i32 = 1;

/// Writes a line to stderr, unless that could block or signal the program: then the line is lost.
///
/// Takes no lock, so that a child forked while another thread printed can complain too.
pub fn complain(line: &str) {
    let _undisturbed = Undisturbed::new();
    system::complain(line);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_every_length_are_text_and_a_bar() {
        for pid in [1, 9, 10, 99_999, 4_194_304] {
            let id = ProcessId::new(pid);
            assert_eq!(id.text(), pid.to_string().as_bytes());
            assert_eq!(id.bytes()[id.len_with_bar() - 1], b'|');
            assert!(id.bytes()[id.len_with_bar()..].iter().all(|&byte| byte == 0));
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "no /proc")]
    #[cfg(target_os = "linux")]
    fn a_process_has_started_before_its_child() {
        let own = start_time();
        let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
        let seconds: f64 = uptime.split(' ').next().unwrap().parse().unwrap();
        assert!(own > 0 && (own as f64) / 100.0 <= seconds + 1.0, "{own} {seconds}");
        assert_eq!(start_time(), own);
    }

    #[test]
    #[cfg_attr(miri, ignore = "fnmatch is foreign code")]
    fn patterns_match_as_in_libcutils() {
        assert!(matches(c"*", c"/a/b"));
        assert!(matches(c"*name", c"/a/b/name"));
        assert!(matches(c"/a/*", c"/a/b/c"));
        assert!(matches(c"[ab]", c"b"));
        assert!(!matches(c"[ab]", c"[ab]"));
        assert!(matches(c"\\*", c"\\anything"));
        assert!(!matches(c"", c"a"));
        assert!(matches(c"", c""));
    }

    #[test]
    #[cfg_attr(miri, ignore = "fnmatch is foreign code")]
    fn a_hostile_pattern_ends_soon() {
        let pattern = std::ffi::CString::new("*a".repeat(45)).unwrap();
        let text = std::ffi::CString::new("a".repeat(4000) + "b").unwrap();
        assert!(!matches(&pattern, &text));
    }

    #[test]
    #[cfg_attr(miri, ignore = "no /proc")]
    fn argv0_is_that_of_this_program() {
        let first = std::env::args_os().next().unwrap();
        with_argv0(|name| assert_eq!(name.unwrap().to_bytes(), first.as_encoded_bytes()));
    }
}
