//! The calling process: its ids, rights, limits, name and children. The module also has functions of the C library that
//! parse texts.

use std::ffi::{CStr, c_int};

use super::errno::{errno, set_errno};
use super::{ErrnoGuard, Mapped, Plain, Result, c, file, stay_loaded};
use crate::c_text::CText;
use crate::word::{OnceRef, offer};

/// Returns the id of the calling process as a number. This makes a system call, because bionic, and glibc before 2.25,
/// cache the id. In a child that was made by the system call `clone` alone, they would return the parent's id.
#[inline]
pub fn process_id() -> u32 {
    #[cfg(not(miri))]
    if let Ok(id) = c::getpid() {
        return id as u32;
    }
    std::process::id()
}

/// Returns the effective user id and the effective group id.
pub(crate) fn effective_ids() -> (u32, u32) {
    (c::geteuid(), c::getegid())
}

/// Returns whether the id `user` stands for a single user. A user namespace need not map all users, and the kernel
/// shows all unmapped users with one and the same id. If `user` is that id and not all users are mapped, this returns
/// false.
#[cold]
pub(crate) fn is_known_by_number(user: u32) -> bool {
    let mut text = [0; 64];
    let mut words_of = |path| -> [Option<u64>; 3] {
        let len = file::read_start(path, &mut text);
        let mut words = text[..len].split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        [(); 3].map(|()| std::str::from_utf8(words.next()?).ok()?.parse().ok())
    };
    let [of_others, ..] = words_of(c"/proc/sys/kernel/overflowuid");
    // The content of `uid_map` that maps each user to the same id.
    let all = [Some(0), Some(0), Some(u32::MAX.into())];
    of_others.unwrap_or(65534) != u64::from(user) || words_of(c"/proc/self/uid_map") == all
}

/// Returns an entry of the auxiliary vector, which the kernel passes to a program (`getauxval(3)`).
pub(super) fn auxiliary(kind: libc::c_ulong) -> libc::c_ulong {
    c::getauxval(kind)
}

/// Returns whether the process has rights that the process which executed it does not have (`AT_SECURE`: set-user-id,
/// file capabilities).
///
/// Such a process must not be controlled by its environment, so all `ATRACE_*` variables are ignored.
pub fn has_elevated_rights() -> bool {
    !cfg!(miri) && auxiliary(libc::AT_SECURE) != 0
}

/// Returns the capabilities (`capabilities(7)`) that the process's first thread has or could take. The value is 0 in
/// most processes.
///
/// Async-signal-safe.
pub fn capabilities() -> u64 {
    let mut header = [c::CAPABILITY_VERSION, process_id()];
    // The effective, permitted and inheritable set: first their three low halves, then their three high halves.
    let mut sets = [0; 6];
    let _ = c::capget(&mut header, &mut sets);
    u64::from(sets[0] | sets[1]) | u64::from(sets[3] | sets[4]) << 32
}

/// Registers `body` to be called in each child of `fork()`, before `fork()` returns in the child. Returns false if the
/// registration fails.
///
/// `body` must be async-signal-safe. It is not called in a child that was made by the system call `clone` alone. If
/// `body` is in a shared library, the library stays loaded. May allocate.
pub fn at_fork(body: extern "C" fn()) -> bool {
    stay_loaded();
    cfg!(miri) || c::pthread_atfork(None, None, Some(body)) == 0
}

/// Registers three functions to be called at each `fork()`: `before` in the thread that forks, before the fork;
/// `in_parent` in that thread after the fork; and `in_child` in the child. Returns false if the registration fails.
///
/// The functions must be async-signal-safe. They are not called if a child is made by the system call `clone` alone. If
/// they are in a shared library, the library stays loaded. May allocate.
pub fn around_fork(before: extern "C" fn(), in_parent: extern "C" fn(), in_child: extern "C" fn()) -> bool {
    stay_loaded();
    cfg!(miri) || c::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) == 0
}

/// Registers `body` to be called when the process ends by `exit` or by returning from `main`. Returns false if the
/// registration fails.
///
/// `body` is also called in a forked child that ends in this way. If `body` is in a shared library, the library stays
/// loaded. May allocate.
pub fn at_exit(body: extern "C" fn()) -> bool {
    stay_loaded();
    cfg!(miri) || c::atexit(body) == 0
}

/// The type of the constants `RLIMIT_…`, which differs between C libraries.
#[cfg(target_env = "gnu")]
pub(crate) type Resource = libc::__rlimit_resource_t;
#[cfg(not(target_env = "gnu"))]
pub(crate) type Resource = libc::c_int;

/// The value of a resource limit that means "no limit".
const NO_LIMIT: u64 = u64::MAX;

/// Returns a soft limit of this process, or `None` if there is no limit.
pub(crate) fn soft_limit(of: Resource) -> Option<u64> {
    let mut limits = [NO_LIMIT; 2];
    let _ = c::prlimit(of as libc::c_int, None, &mut limits);
    Some(limits[0]).filter(|soft| *soft != NO_LIMIT)
}

/// Lowers a resource limit of this process to `most`, unless the limit is lower already. Only a privileged process can
/// raise the limit again.
pub(crate) fn lower_limit(of: Resource, most: u64) -> Result<()> {
    let most = most.min(soft_limit(of).unwrap_or(NO_LIMIT));
    c::prlimit(of as libc::c_int, Some(&[most; 2]), &mut [0; 2]).map(drop)
}

/// Returns whether `text` matches a shell pattern as in libcutils: `fnmatch(pattern, text, FNM_NOESCAPE)`.
///
/// `*` also matches `/`, and a backslash is an ordinary character. On a host the patterns are those of `glob.rs`.
pub fn fnmatch(pattern: &CStr, text: &CStr) -> bool {
    #[cfg(target_os = "android")]
    return c::fnmatch(pattern.into(), text.into(), libc::FNM_NOESCAPE) == 0;
    #[cfg(not(target_os = "android"))]
    crate::glob::matches(pattern.to_bytes(), text.to_bytes())
}

/// Parses a number as C's `strtoull` with base 0 does: after optional spaces and an optional sign, a hexadecimal number
/// with `0x`, an octal number with `0`, or a decimal number.
///
/// Returns the number (`None` if it is too large) and the rest of the text. If the text does not begin with a number,
/// the number is 0 and the rest is the whole text.
pub fn strtoull(text: &CStr) -> (Option<u64>, &CStr) {
    read(text, c::strtoull)
}

/// Parses a signed number as C's `strtoimax` with base 0 does. In all other respects, this is the
/// same as [`number`](crate::process::number).
pub fn strtoimax(text: &CStr) -> (Option<i64>, &CStr) {
    read(text, c::strtoimax)
}

type Read<'a, T> = extern "C" fn(CText<'a>, &mut CText<'a>, c_int) -> T;

fn read<'a, T>(text: &'a CStr, by: Read<'a, T>) -> (Option<T>, &'a CStr) {
    let _errno = ErrnoGuard::new();
    set_errno(0);
    let mut end = text.into();
    let value = by(text.into(), &mut end, 0);
    let is_in_range = errno() != libc::ERANGE;
    (is_in_range.then_some(value), end.to_c_str())
}

/// The string argv\[0\], padded with zeroes.
struct Argv0([u8; Self::SIZE]);

// SAFETY: zeroes are valid bytes.
unsafe impl Plain for Argv0 {}

impl Argv0 {
    const SIZE: usize = 4096;

    /// Reads argv\[0\] as libcutils does: at most 4095 bytes and at most one line.
    ///
    /// The string is read into a mapping, because the caller may be a signal handler, whose stack may be small
    /// and during which the heap may be locked.
    fn read() -> Option<Mapped<Self>> {
        Mapped::filled(|Self(text)| {
            let length = file::read_start(c"/proc/self/cmdline", &mut text[..Self::SIZE - 1]);
            let end = text.iter().position(|byte| *byte == 0).unwrap_or(length);
            let end = text[..end].iter().position(|byte| *byte == b'\n').map_or(end, |at| at + 1);
            text[end..].fill(0);
            length > 0
        })
    }
}

/// The string argv\[0\] as it was last read.
static ARGV0: OnceRef<Argv0> = OnceRef::new();

/// Reads argv\[0\] again and caches it for [`with_argv0`](crate::process::with_argv0), because some processes, such as
/// the children of Android's Zygote, rename themselves.
///
/// The old string stays in memory, because another thread may be using it.
#[inline(never)]
pub fn reread_argv0() {
    loop {
        let present = ARGV0.get();
        let Some(new) = Argv0::read() else { return };
        if present.is_some_and(|present| present.0 == new.0) {
            return;
        }
        // Only replaces the name that was compared above, so that an older name never replaces a newer one.
        if offer(new, |new| ARGV0.replace(present, new)).is_ok() {
            return;
        }
    }
}

#[inline(never)]
pub(crate) fn read_argv0() -> Option<&'static CStr> {
    if ARGV0.get().is_none() {
        reread_argv0();
    }
    ARGV0.get().and_then(|Argv0(text)| CStr::from_bytes_until_nul(text).ok())
}
