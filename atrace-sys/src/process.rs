//! What a tracer must know of its own process: its id as text, its name, its rights, its errno.
//!
//! The id is asked for at every event, and glibc's `getpid()` is a system call (160 ns). It is therefore
//! kept, already in decimal, where a forked child finds nothing and asks again: see [`fork`].

use std::ffi::CStr;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicPtr, Ordering};

pub use crate::errno::ErrnoGuard;
pub(crate) use crate::errno::errno;
use crate::fork;

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
    ProcessId::from_word(fork::kept(|| ProcessId::new(present_id()).word()))
}

/// Asks the kernel: bionic keeps the id itself, and a child of a bare `clone` finds its parent's there.
fn present_id() -> u32 {
    #[cfg(all(target_os = "android", not(miri)))]
    // SAFETY: no preconditions.
    if let Ok(id) = u32::try_from(unsafe { libc::syscall(libc::SYS_getpid) }) {
        return id;
    }
    std::process::id()
}

/// Tells whether the process runs with rights its caller does not have (`AT_SECURE`: set-user-id, file
/// capabilities).
///
/// Such a process must not be steered by its environment, so every `ATRACE_*` variable is ignored there.
pub fn has_elevated_rights() -> bool {
    // SAFETY: getauxval has no preconditions.
    !cfg!(miri) && unsafe { libc::getauxval(libc::AT_SECURE) } != 0
}

/// Reads an `ATRACE_*` environment variable; `None` when unset, empty, or in a process with elevated rights.
pub fn variable(name: &str) -> Option<std::ffi::OsString> {
    if has_elevated_rights() {
        return None;
    }
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// The first string of `/proc/self/cmdline`, in a mapping of its own: NUL-terminated.
#[repr(transparent)]
struct Argv0([u8; Self::SIZE]);

impl Argv0 {
    const SIZE: usize = 4096;

    /// Reads it as libcutils does: at most 4095 bytes, at most one line.
    ///
    /// Into a mapping, as the stack may be a small one and the heap locked: a signal handler may ask.
    fn read() -> Option<&'static mut Self> {
        if cfg!(miri) {
            return None;
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, of zeros.
        let place = unsafe { libc::mmap(std::ptr::null_mut(), Self::SIZE, protection, flags, -1, 0) };
        if place == libc::MAP_FAILED {
            return None;
        }
        // SAFETY: as large as the mapping, which nobody else knows; unmapped by `forget` only.
        let new = unsafe { &mut *place.cast::<Self>() };
        let length = read_file(c"/proc/self/cmdline", &mut new.0[..Self::SIZE - 1]);
        if length == 0 {
            new.forget();
            return None;
        }
        let end = new.0.iter().position(|byte| *byte == 0).unwrap_or(length);
        let end = new.0[..end].iter().position(|byte| *byte == b'\n').map_or(end, |at| at + 1);
        new.0[end..].fill(0);
        Some(new)
    }

    fn forget(&'static mut self) {
        // SAFETY: mapped by `read` in this size; there is no other reference.
        unsafe { libc::munmap(std::ptr::from_mut(self).cast(), Self::SIZE) };
    }

    fn text(&self) -> Option<&CStr> {
        CStr::from_bytes_until_nul(&self.0).ok()
    }
}

/// What was read last; null before.
static ARGV0: AtomicPtr<Argv0> = AtomicPtr::new(std::ptr::null_mut());

/// Reads the process' argv\[0\] again, and keeps it for [`with_argv0`]: hosts such as Zygote rename themselves.
///
/// A name that was kept before stays in memory, as it may be in use.
pub fn reread_argv0() {
    loop {
        let present = ARGV0.load(Ordering::Acquire);
        let Some(new) = Argv0::read() else { return };
        // SAFETY: null, or what `read` mapped and this function kept, which stays.
        let is_same = unsafe { present.as_ref() }.is_some_and(|present| present.0 == new.0);
        if is_same {
            return new.forget();
        }
        // Read since then: no older name takes the place of a newer.
        if ARGV0.compare_exchange(present, new, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            return;
        }
        new.forget();
    }
}

/// Calls `then` with the process' argv\[0\], cut as libcutils cuts it; `None` where it can't be read or there is
/// none.
///
/// It is read once and then kept, also in a forked child: a process may take away its own right to open files. Who
/// was renamed calls [`reread_argv0`].
pub fn with_argv0<R>(then: impl FnOnce(Option<&CStr>) -> R) -> R {
    if ARGV0.load(Ordering::Acquire).is_null() {
        reread_argv0();
    }
    // SAFETY: null, or a mapping that stays, see `reread_argv0`.
    then(unsafe { ARGV0.load(Ordering::Acquire).as_ref() }.and_then(Argv0::text))
}

/// Tells whether what failed with this errno may succeed soon: there was no descriptor or memory to be had.
pub fn may_pass(errno: i32) -> bool {
    matches!(errno, libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EAGAIN | libc::EINTR)
}

/// Fills `buffer` from the start of a file; returns how much there was, 0 on any error.
pub(crate) fn read_file(path: &CStr, buffer: &mut [u8]) -> usize {
    // SAFETY: the path is a C string.
    let fd = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if fd < 0 {
        return 0;
    }
    let mut length = 0;
    while length < buffer.len() {
        let rest = &mut buffer[length..];
        // SAFETY: `rest` is writable memory of that length, and the descriptor is ours.
        let got = unsafe { libc::read(fd, rest.as_mut_ptr().cast(), rest.len()) };
        match usize::try_from(got) {
            Ok(0) => break,
            Ok(got) => length += got,
            Err(_) if errno() == libc::EINTR => {}
            Err(_) => break,
        }
    }
    // SAFETY: opened above, closed once.
    unsafe { libc::close(fd) };
    length
}

/// Tells whether `text` matches the shell pattern as libcutils asks it: `fnmatch(pattern, text, FNM_NOESCAPE)`.
///
/// `*` crosses `/`, a backslash is an ordinary character.
#[doc(alias = "fnmatch")]
pub fn matches(pattern: &CStr, text: &CStr) -> bool {
    // SAFETY: both are C strings.
    unsafe { libc::fnmatch(pattern.as_ptr(), text.as_ptr(), libc::FNM_NOESCAPE) == 0 }
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
        Self { _errno: errno, cancel_state: set_cancel_state(CANCEL_DISABLE) }
    }
}

impl Default for Undisturbed {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Undisturbed {
    fn drop(&mut self) {
        set_cancel_state(self.cancel_state);
    }
}

/// `PTHREAD_CANCEL_DISABLE`, alike in glibc and musl.
const CANCEL_DISABLE: i32 = 1;

/// Sets whether the calling thread can be cancelled; returns what it was.
#[cfg(all(target_os = "linux", not(miri)))]
fn set_cancel_state(state: i32) -> i32 {
    // The signature is that of pthread.h.
    unsafe extern "C" {
        fn pthread_setcancelstate(state: i32, old: *mut i32) -> i32;
    }
    let mut old = 0;
    // SAFETY: `old` is writable; the state is one of the two, and no cancellation point.
    unsafe { pthread_setcancelstate(state, &mut old) };
    old
}

/// Bionic has no cancellation.
#[cfg(not(all(target_os = "linux", not(miri))))]
fn set_cancel_state(state: i32) -> i32 {
    state
}

/// Writes a line to stderr, unless that could block or signal the program: then the line is lost.
///
/// Takes no lock, so that a child forked while another thread printed can complain too.
pub fn complain(line: &str) {
    let _undisturbed = Undisturbed::new();
    let mut bytes: Vec<u8> =
        line.bytes().map(|byte| if byte < 0x20 || byte == 0x7f { b'?' } else { byte }).collect();
    // What a pipe that has room at all has room for.
    bytes.truncate(1023);
    bytes.push(b'\n');
    let mut place = libc::pollfd { fd: libc::STDERR_FILENO, events: libc::POLLOUT, revents: 0 };
    // SAFETY: one writable pollfd.
    if unsafe { libc::poll(&mut place, 1, 0) } != 1 || place.revents != libc::POLLOUT {
        return; // Closed, a pipe or socket nobody reads, or full.
    }
    // The reader may go at any moment, and a program in the background be stopped for writing to its
    // terminal: both signals are for this thread, so they can be held back here.
    let mut held = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
    let mut before = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
    let mut pending = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the sets are writable, and each is initialised before it is read.
    let was_pending = unsafe {
        libc::sigemptyset(held.as_mut_ptr());
        libc::sigaddset(held.as_mut_ptr(), libc::SIGPIPE);
        libc::sigaddset(held.as_mut_ptr(), libc::SIGTTOU);
        libc::sigpending(pending.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, held.as_ptr(), before.as_mut_ptr());
        libc::sigismember(pending.as_ptr(), libc::SIGPIPE) == 1
    };
    // SAFETY: `bytes` is readable memory of that length.
    let written = unsafe { libc::write(libc::STDERR_FILENO, bytes.as_ptr().cast(), bytes.len()) };
    if written < 0 && errno() == libc::EPIPE && !was_pending {
        // The system call itself: Android's bionic has `sigtimedwait` since 6 only. Its set has 64 bits
        // everywhere, and no time, of either width, is zeros.
        let (broken, now) = (1_u64 << (libc::SIGPIPE - 1), [0_u64; 2]);
        let taken = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: takes the signal of the write above; the kernel reads eight bytes of the set and a time,
        // and returns at once.
        unsafe {
            libc::syscall(libc::SYS_rt_sigtimedwait, &raw const broken, taken, &raw const now, 8_usize)
        };
    }
    // SAFETY: `before` is what pthread_sigmask stored above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
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
