//! The calling process: its id as text, its name, its rights and its errno.
//!
//! The id is defined in [`fork`](crate::fork), because it is cached in memory that is wiped in a forked child.

use std::ffi::{CStr, OsStr, OsString};

pub use crate::fork::{ProcessId, id};
use crate::system;
pub use crate::system::{
    ErrnoGuard, at_exit, fnmatch as matches, has_elevated_rights, may_pass, process_id as raw_id,
    reread_argv0, strtoimax as signed_number, strtoull as number,
};
#[cfg(not(no_tracing))]
pub use crate::system::{capabilities as rights, signals::seem_to_be_handled as is_in_handler, stay_loaded};

/// Returns the effective user id of the calling process.
pub fn user() -> u32 {
    system::effective_ids().0
}

/// Returns the start time of the process, in clock ticks since boot (`starttime` of `/proc/PID/stat`), or 0 if it
/// can't be read. The start time and the process id together identify a process uniquely.
///
/// Async-signal-safe.
#[cfg(not(no_tracing))]
pub fn start_time() -> u64 {
    // The second field, the name of the process, is in parentheses and may itself contain parentheses.
    let mut text = [0; 1024];
    let length = system::file::read_start(c"/proc/self/stat", &mut text);
    let after_name = text[..length].rsplit(|byte| *byte == b')').next().unwrap_or_default();
    let ticks = after_name.split(|byte| *byte == b' ').nth(20).unwrap_or_default();
    ticks.iter().fold(0, |number, digit| number * 10 + u64::from(digit.wrapping_sub(b'0') % 10))
}

/// Returns the value of an environment variable, or `None` if it is unset or empty, or if the process has
/// elevated rights.
pub fn variable(name: &str) -> Option<OsString> {
    if has_elevated_rights() {
        return None;
    }
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// Returns the part of a text that follows `prefix`, or `None` if the text does not begin with `prefix`.
pub fn strip_prefix<'a>(text: &'a OsStr, prefix: &str) -> Option<&'a OsStr> {
    text.as_encoded_bytes().strip_prefix(prefix.as_bytes()).map(system::os_str)
}

/// Calls `then` with argv\[0\], cut to the length to which libcutils cuts it. Calls `then` with `None` if the command
/// line is empty or can't be read.
///
/// The string is read once and then cached, because a process may later give up its right to open files. Forked
/// children inherit the cached string. After the process was renamed, call [`reread_argv0`].
pub fn with_argv0<R>(then: impl FnOnce(Option<&CStr>) -> R) -> R {
    then(system::read_argv0())
}

/// Returns whether an app pattern (a value of `debug.atrace.app_N`) matches the name of a process (argv\[0\]): the
/// whole name or, on a host, the part after its last `/`. On Android, the pattern must match the whole name, as in
/// Android's libcutils.
pub fn matches_name(pattern: &CStr, name: &CStr) -> bool {
    if matches(pattern, name) {
        return true;
    }
    let Some(slash) = name.to_bytes().iter().rposition(|byte| *byte == b'/') else { return false };
    let last =
        name.to_bytes_with_nul().get(slash + 1..).and_then(|last| CStr::from_bytes_with_nul(last).ok());
    cfg!(not(target_os = "android")) && last.is_some_and(|last| !last.is_empty() && matches(pattern, last))
}

/// A guard that saves errno and restores errno when the guard is dropped, as an [`ErrnoGuard`] does. As long as the
/// guard exists, the calling thread can't be cancelled by `pthread_cancel`.
///
/// Functions that open or read files are cancellation points. If a thread were cancelled in such a function, glibc
/// would unwind the thread's stack, which must not happen through Rust code. A cancellation that is requested while the
/// guard exists takes effect at the program's next cancellation point.
#[derive(Debug)]
#[must_use = "the thread can be cancelled again when this is dropped"]
pub struct Undisturbed {
    _errno: ErrnoGuard,
    cancel_state: i32,
}

impl Undisturbed {
    /// Saves the calling thread's errno and disables cancellation.
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

/// The value of `PTHREAD_CANCEL_DISABLE` in glibc and in musl.
const CANCEL_DISABLE: i32 = 1;

/// Writes a line to stderr. If stderr is not ready for writing, or has no reader, the line is dropped.
///
/// The function takes no lock of the standard library, so it also works in a child that was forked while another thread
/// was printing.
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
        /// Returns the time since the system's start in hundredths of a second, the unit of `start_time`.
        fn uptime() -> u64 {
            let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
            let seconds: f64 = uptime.split(' ').next().unwrap().parse().unwrap();
            (seconds * 100.0) as u64
        }
        let (own, before) = (start_time(), uptime());
        assert_eq!(start_time(), own);
        // SAFETY: the child reads two files and ends.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            let started = start_time();
            // `start_time` and `uptime` are rounded, so their values may differ by 2.
            let is_right = started >= own && started + 2 >= before && started <= uptime() + 2;
            // SAFETY: no preconditions; ends the child.
            unsafe { libc::_exit(i32::from(!is_right)) };
        }
        let mut status = 0;
        // SAFETY: `status` is writable.
        assert_eq!((unsafe { libc::waitpid(child, &raw mut status, 0) }, status), (child, 0));
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
    #[cfg(target_os = "linux")]
    fn names_match_whole_or_by_their_last_part() {
        for (pattern, name, is_it) in [
            (c"name", c"/a/b/name", true),
            (c"*name", c"/a/b/name", true),
            (c"/a/b/name", c"/a/b/name", true),
            (c"b/name", c"/a/b/name", false),
            (c"n?me", c"./name", true),
            (c"nam", c"/a/name", false),
            (c"name", c"name", true),
            (c"", c"/a/", false),
            (c"", c"", true),
            (c"a", c"a/", false),
        ] {
            assert_eq!(matches_name(pattern, name), is_it, "{pattern:?} {name:?}");
        }
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
