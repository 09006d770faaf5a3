//! Functions of the C library that are safe with all arguments that these types allow. They return an error for wrong
//! numbers.
//!
//! The crate `libc` declares the same functions with raw pointers. Functions with a type that has two widths
//! (`off_t`, `time_t`) are called as `libc` declares them, because each name stands for several functions.

use std::convert::Infallible;
use std::ffi::{c_int, c_long, c_ulong, c_ulonglong, c_void};

use super::{Errno, Result, bare};
use crate::c_text::CText;

unsafe extern "C" {
    // SAFETY: the signatures are those of the C libraries' headers. A reference stands for a pointer that the
    // function does not keep.
    pub(crate) safe fn _exit(status: c_int) -> !;
    pub(crate) safe fn capset(header: &mut CapabilityHeader, sets: &[u32; 6]) -> c_int;
    #[cfg(target_os = "linux")]
    pub(crate) safe fn flock(fd: c_int, operation: c_int) -> c_int;
    pub(crate) safe fn getauxval(kind: c_ulong) -> c_ulong;
    pub(crate) safe fn getegid() -> libc::gid_t;
    pub(crate) safe fn geteuid() -> libc::uid_t;
    pub(crate) safe fn gettid() -> libc::pid_t;
    pub(crate) safe fn isatty(fd: c_int) -> c_int;
    pub(crate) safe fn kill(process: libc::pid_t, signal: c_int) -> c_int;
    pub(crate) safe fn waitpid(process: libc::pid_t, status: &mut c_int, options: c_int) -> libc::pid_t;
    // Threads.
    pub(crate) safe fn pthread_atfork(
        prepare: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>,
    ) -> c_int;
    pub(crate) safe fn pthread_key_create(
        key: &mut libc::pthread_key_t,
        at_end: Option<extern "C" fn(*mut c_void)>,
    ) -> c_int;
    #[cfg(target_os = "android")]
    pub(crate) safe fn pthread_self() -> libc::pthread_t;
    #[cfg(all(target_os = "linux", not(miri)))]
    pub(crate) safe fn pthread_setcancelstate(state: c_int, old: &mut c_int) -> c_int;
    // Signals.
    pub(crate) safe fn pthread_sigmask(how: c_int, new: &libc::sigset_t, old: &mut libc::sigset_t) -> c_int;
    pub(crate) safe fn sigaction(signal: c_int, new: Absent, old: &mut libc::sigaction) -> c_int;
    pub(crate) safe fn sigaddset(set: &mut libc::sigset_t, signal: c_int) -> c_int;
    pub(crate) safe fn sigaltstack(new: Absent, old: &mut libc::stack_t) -> c_int;
    pub(crate) safe fn sigemptyset(set: &mut libc::sigset_t) -> c_int;
    pub(crate) safe fn sigismember(set: &libc::sigset_t, signal: c_int) -> c_int;
    pub(crate) safe fn sigpending(set: &mut libc::sigset_t) -> c_int;
    // Texts. `end` is set to a position in the text.
    pub(crate) safe fn fnmatch(pattern: CText<'_>, text: CText<'_>, flags: c_int) -> c_int;
    pub(crate) safe fn strtoimax<'a>(text: CText<'a>, end: &mut CText<'a>, base: c_int) -> i64;
    pub(crate) safe fn strtoull<'a>(text: CText<'a>, end: &mut CText<'a>, base: c_int) -> c_ulonglong;
    // Names.
    #[cfg(target_os = "linux")]
    pub(crate) safe fn linkat(from: c_int, old: CText<'_>, to: c_int, new: CText<'_>, flags: c_int) -> c_int;
    #[cfg(target_os = "linux")]
    pub(crate) safe fn unlinkat(directory: c_int, name: CText<'_>, flags: c_int) -> c_int;
}

/// An optional pointer argument that is always null.
pub(crate) type Absent = Option<&'static Infallible>;

/// The header of capset(2). The kernel writes the version that it prefers if it does not know this one.
#[repr(C)]
pub(crate) struct CapabilityHeader {
    pub(crate) version: u32,
    pub(crate) pid: c_int,
}

/// Returns the address of bytes, as an argument of a [`Call`].
pub(crate) fn address(bytes: &[u8]) -> isize {
    bytes.as_ptr().expose_provenance() as isize
}

/// A system call that never writes to memory of the process, whatever its arguments are. For arguments that it reads
/// by address, a wrong address gives an error.
#[derive(Clone, Copy)]
pub(crate) struct Call(c_long);

impl Call {
    /// The number is the same on every architecture. The crate `libc` lacks it for some Android targets.
    pub(crate) const CLOSE_RANGE: Self = Self(436);
    #[cfg(not(miri))]
    pub(crate) const CLOSE: Self = Self(libc::SYS_close);
    pub(crate) const CONNECT: Self = Self(libc::SYS_connect);
    pub(crate) const FACCESSAT: Self = Self(libc::SYS_faccessat);
    #[cfg(bare)]
    pub(crate) const FCNTL: Self = Self(libc::SYS_fcntl);
    /// The crate `libc` lacks it for some Android targets.
    #[cfg(bare)]
    pub(crate) const FTRUNCATE: Self = Self(if cfg!(target_arch = "x86_64") { 77 } else { 46 });
    #[cfg(all(target_os = "android", not(miri)))]
    pub(crate) const GETPID: Self = Self(libc::SYS_getpid);
    pub(crate) const MEMBARRIER: Self = Self(libc::SYS_membarrier);
    pub(crate) const MEMFD_CREATE: Self = Self(libc::SYS_memfd_create);
    pub(crate) const OPENAT: Self = Self(libc::SYS_openat);
    pub(crate) const PIDFD_OPEN: Self = Self(libc::SYS_pidfd_open);
    /// The third argument is the address of a `siginfo_t`, or 0.
    pub(crate) const PIDFD_SEND_SIGNAL: Self = Self(libc::SYS_pidfd_send_signal);
    #[cfg(target_os = "linux")]
    pub(crate) const RENAMEAT2: Self = Self(libc::SYS_renameat2);
    pub(crate) const SENDMSG: Self = Self(libc::SYS_sendmsg);
    pub(crate) const SOCKET: Self = Self(libc::SYS_socket);
    pub(crate) const TGKILL: Self = Self(libc::SYS_tgkill);
    #[cfg(not(miri))]
    pub(crate) const WRITE: Self = Self(libc::SYS_write);

    /// Makes the call, without the C library where possible, and leaves errno unchanged. Missing arguments are 0.
    #[inline]
    pub(crate) fn call<const N: usize>(self, numbers: [isize; N]) -> Result<isize> {
        let mut all = [0; 6];
        all[..N].copy_from_slice(&numbers);
        // SAFETY: the type stands only for calls that are safe with all arguments.
        answer(unsafe { bare::call(self.0, all) })
    }
}

/// `fstat(2)`, which writes to memory. The crate `libc` lacks it for some Android targets.
#[cfg(bare)]
pub(crate) const FSTAT: c_long = if cfg!(target_arch = "x86_64") { 5 } else { 80 };

/// Converts the result of a system call: a negated errno becomes an error.
pub(crate) fn answer(result: isize) -> Result<isize> {
    if result < 0 { Err(Errno(-result as i32)) } else { Ok(result) }
}
