//! Functions of the C library, and system calls, that are safe with every argument that their types allow. If an
//! argument is an invalid number, the call returns an error.
//!
//! The crate `libc` declares the same functions with raw pointers. Functions with a parameter of a type that exists in
//! two widths (`off_t`, `time_t`) are called through the crate `libc`, because such a C function has several symbols,
//! one for each width.

use std::convert::Infallible;
use std::ffi::{CStr, c_int, c_long, c_ulong, c_ulonglong, c_void};
use std::ptr;
use std::sync::atomic::AtomicU32;

use super::{Errno, Result, bare};
use crate::c_text::CText;

unsafe extern "C" {
    // SAFETY: the signatures are those of the C libraries' headers. A reference stands for a pointer that the
    // function does not keep.
    pub(crate) safe fn _exit(status: c_int) -> !;
    pub(crate) safe fn atexit(body: extern "C" fn()) -> c_int;
    pub(crate) safe fn capset(header: &mut [u32; 2], sets: &[u32; 6]) -> c_int;
    #[cfg(target_os = "linux")]
    pub(crate) safe fn flock(fd: c_int, operation: c_int) -> c_int;
    pub(crate) safe fn getauxval(kind: c_ulong) -> c_ulong;
    pub(crate) safe fn getegid() -> libc::gid_t;
    pub(crate) safe fn geteuid() -> libc::uid_t;
    pub(crate) safe fn gettid() -> libc::pid_t;
    pub(crate) safe fn isatty(fd: c_int) -> c_int;
    pub(crate) safe fn kill(process: libc::pid_t, signal: c_int) -> c_int;
    pub(crate) safe fn waitpid(process: libc::pid_t, status: &mut c_int, options: c_int) -> libc::pid_t;
    // Functions for threads.
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
    // Functions for signals.
    pub(crate) safe fn pthread_sigmask(how: c_int, new: &libc::sigset_t, old: &mut libc::sigset_t) -> c_int;
    pub(crate) safe fn sigaction(signal: c_int, new: Absent, old: &mut libc::sigaction) -> c_int;
    pub(crate) safe fn sigaddset(set: &mut libc::sigset_t, signal: c_int) -> c_int;
    pub(crate) safe fn sigaltstack(new: Absent, old: &mut libc::stack_t) -> c_int;
    pub(crate) safe fn sigemptyset(set: &mut libc::sigset_t) -> c_int;
    pub(crate) safe fn sigismember(set: &libc::sigset_t, signal: c_int) -> c_int;
    pub(crate) safe fn sigpending(set: &mut libc::sigset_t) -> c_int;
    // Functions for texts. They set `end` to a position in the text.
    #[cfg(any(test, target_os = "android"))]
    pub(crate) safe fn fnmatch(pattern: CText<'_>, text: CText<'_>, flags: c_int) -> c_int;
    pub(crate) safe fn strtoimax<'a>(text: CText<'a>, end: &mut CText<'a>, base: c_int) -> i64;
    pub(crate) safe fn strtoull<'a>(text: CText<'a>, end: &mut CText<'a>, base: c_int) -> c_ulonglong;
    // Functions for the names of files.
    #[cfg(target_os = "linux")]
    pub(crate) safe fn linkat(from: c_int, old: CText<'_>, to: c_int, new: CText<'_>, flags: c_int) -> c_int;
    #[cfg(target_os = "linux")]
    pub(crate) safe fn unlinkat(directory: c_int, name: CText<'_>, flags: c_int) -> c_int;
}

/// An optional pointer argument that is always null.
pub(crate) type Absent = Option<&'static Infallible>;

/// `_LINUX_CAPABILITY_VERSION_3` of `linux/capability.h`. In this version, the capability calls use three sets of 64
/// bits, in two halves each. The calls' header has two words: the version, and the process id or 0. If the kernel does
/// not support this version, it overwrites the version in the header with the number of another version.
pub(crate) const CAPABILITY_VERSION: u32 = 0x2008_0522;

/// A parameter of a system call: a number, or the address of memory.
trait Parameter {
    fn number(self) -> isize;
}

impl Parameter for c_int {
    fn number(self) -> isize {
        self as isize
    }
}

impl Parameter for usize {
    fn number(self) -> isize {
        self as isize
    }
}

impl<T> Parameter for *const T {
    fn number(self) -> isize {
        self.expose_provenance() as isize
    }
}

/// Returns the six parameters of a system call: `numbers`, followed by zeroes for the parameters that the call does not
/// have.
#[inline(always)]
fn padded<const N: usize>(numbers: [isize; N]) -> [isize; 6] {
    let mut all = [0; 6];
    all[..N].copy_from_slice(&numbers);
    all
}

/// Declares system calls, with their numbers and parameters. Where possible, the calls are made without the C library.
/// They leave errno unchanged.
macro_rules! calls {
    ($($(#[$attribute:meta])* $name:ident($($argument:ident: $type:ty),*) = $number:path, [$($value:expr),*];)*) => {$(
        $(#[$attribute])*
        pub(crate) fn $name($($argument: $type),*) -> Result<isize> {
            // The numbers are computed within the call, so that a temporary value lives until the kernel has returned.
            // SAFETY: the system call of this number has these parameters. The kernel writes only to memory that is
            // borrowed as mutable or is atomic, not more than the type's size or the given length, and keeps no
            // address. If an address is wrong, the kernel returns an error.
            answer(unsafe { bare::call($number, padded([$($value.number()),*])) })
        }
    )*};
}

calls! {
    #[cfg(not(miri))]
    close(fd: c_int) = libc::SYS_close, [fd];
    close_range(first: c_int, last: c_int, flags: c_int) = CLOSE_RANGE, [first, last, flags];
    connect(socket: c_int, to: &libc::sockaddr_un, len: usize) = libc::SYS_connect, [socket, ptr::from_ref(to), len];
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    counter_mode(mode: &mut c_int) = libc::SYS_prctl, [libc::PR_GET_TSC, ptr::from_mut(mode).cast_const()];
    faccessat(directory: c_int, name: &CStr, mode: c_int) = libc::SYS_faccessat, [directory, name.as_ptr(), mode];
    #[cfg(bare)]
    fcntl(fd: c_int, command: c_int, number: c_int) = libc::SYS_fcntl, [fd, command, number];
    #[cfg(bare)]
    fstat(fd: c_int, to: &mut libc::stat) = FSTAT, [fd, ptr::from_mut(to).cast_const()];
    #[cfg(bare)]
    ftruncate(fd: c_int, size: usize) = FTRUNCATE, [fd, size];
    futex_wait(word: &AtomicU32, expected: c_int, timeout: &libc::timespec) =
        libc::SYS_futex, [ptr::from_ref(word), libc::FUTEX_WAIT, expected, ptr::from_ref(timeout)];
    futex_wake(word: &AtomicU32, most: c_int) = libc::SYS_futex, [ptr::from_ref(word), libc::FUTEX_WAKE, most];
    /// With version 3 of the header, the kernel fills three sets of 64 bits, in two halves each; with version 1, it
    /// fills only the lower halves.
    capget(header: &mut [u32; 2], sets: &mut [u32; 6]) =
        libc::SYS_capget, [ptr::from_mut(header).cast_const(), ptr::from_mut(sets).cast_const()];
    #[cfg(not(miri))]
    getpid() = libc::SYS_getpid, [0];
    gettid_of_kernel() = libc::SYS_gettid, [0];
    membarrier(command: c_int) = libc::SYS_membarrier, [command, 0, 0];
    /// Writes one byte to `pages` for each page of the address range from `start`. Does not access the range itself.
    mincore(start: usize, pages: &mut [u8]) = libc::SYS_mincore,
        [start, pages.len() * super::page_size(), pages.as_mut_ptr().cast_const()];
    memfd_create(name: &CStr, flags: c_int) = libc::SYS_memfd_create, [name.as_ptr(), flags];
    name_of_thread(name: &mut [u8; 16]) = libc::SYS_prctl, [libc::PR_GET_NAME, ptr::from_mut(name).cast_const()];
    name_thread(name: &[u8; 16]) = libc::SYS_prctl, [libc::PR_SET_NAME, ptr::from_ref(name)];
    openat(directory: c_int, name: &CStr, flags: c_int, mode: c_int) =
        libc::SYS_openat, [directory, name.as_ptr(), flags, mode];
    peer(socket: c_int, peer: &mut libc::ucred) = libc::SYS_getsockopt, [
        socket,
        libc::SOL_SOCKET,
        libc::SO_PEERCRED,
        ptr::from_mut(peer).cast_const(),
        ptr::from_mut(&mut (size_of::<libc::ucred>() as libc::socklen_t)).cast_const()
    ];
    /// `attributes` is the first version of the kernel's structure `perf_event_attr`, which has 64 bytes.
    perf_event_open(attributes: &[u64; 8], flags: c_int) =
        libc::SYS_perf_event_open, [ptr::from_ref(attributes), 0, -1, -1, flags];
    pidfd_open(process: c_int) = libc::SYS_pidfd_open, [process, 0];
    pidfd_send_signal(process: c_int, signal: c_int) = libc::SYS_pidfd_send_signal, [process, signal, 0];
    /// A variant of `poll` whose timeout the kernel may change to the remaining time.
    #[cfg(bare)]
    ppoll(places: &mut [libc::pollfd], timeout: Option<&mut libc::timespec>) = libc::SYS_ppoll, [
        places.as_mut_ptr().cast_const(),
        places.len(),
        timeout.map_or(ptr::null(), |time| ptr::from_mut(time).cast_const())
    ];
    prlimit(resource: c_int, new: Option<&[u64; 2]>, old: &mut [u64; 2]) = libc::SYS_prlimit64,
        [0, resource, new.map_or(ptr::null(), ptr::from_ref), ptr::from_mut(old).cast_const()];
    read(fd: c_int, to: &mut [u8]) = libc::SYS_read, [fd, to.as_mut_ptr().cast_const(), to.len()];
    #[cfg(target_os = "linux")]
    renameat2(directory: c_int, from: &CStr, to: &CStr, flags: libc::c_uint) = libc::SYS_renameat2,
        [directory, from.as_ptr(), directory, to.as_ptr(), flags as c_int];
    seccomp_mode() = libc::SYS_prctl, [libc::PR_GET_SECCOMP];
    /// The kernel's set of signals has eight bytes on every architecture except MIPS.
    rt_sigprocmask(how: c_int, new: &u64, old: &mut u64) =
        libc::SYS_rt_sigprocmask, [how, ptr::from_ref(new), ptr::from_mut(old).cast_const(), 8];
    /// Two zeroes in `time` mean a timeout of 0, whether the kernel reads 32-bit or 64-bit numbers.
    rt_sigtimedwait(set: &u64, time: &[u64; 2]) =
        libc::SYS_rt_sigtimedwait, [ptr::from_ref(set), 0, ptr::from_ref(time), 8];
    sendmsg(socket: c_int, message: &libc::msghdr, flags: c_int) =
        libc::SYS_sendmsg, [socket, ptr::from_ref(message), flags];
    socket(family: c_int, kind: c_int) = libc::SYS_socket, [family, kind, 0];
    tgkill(process: c_int, thread: c_int, signal: c_int) = libc::SYS_tgkill, [process, thread, signal];
    unlink(path: &CStr) = libc::SYS_unlinkat, [libc::AT_FDCWD, path.as_ptr(), 0];
    wait4(process: c_int, status: &mut c_int, usage: &mut libc::rusage) = libc::SYS_wait4,
        [process, ptr::from_mut(status).cast_const(), 0, ptr::from_mut(usage).cast_const()];
    #[cfg(not(miri))]
    write(fd: c_int, from: &[u8]) = libc::SYS_write, [fd, from.as_ptr(), from.len()];
}

/// The number of the system call `close_range`, which is the same on every architecture except Alpha and MIPS. The
/// crate `libc` lacks this call for some Android targets.
const CLOSE_RANGE: c_long = 436;
/// The numbers of the system calls `fstat` and `ftruncate`, which the crate `libc` lacks for some Android targets.
#[cfg(bare)]
const FSTAT: c_long = if cfg!(target_arch = "x86_64") { 5 } else { 80 };
#[cfg(bare)]
const FTRUNCATE: c_long = if cfg!(target_arch = "x86_64") { 77 } else { 46 };

/// Converts the result of a system call: a negated errno becomes an error. All other numbers are results, even negative
/// ones: half of the addresses of a 32-bit process are negative numbers.
pub(crate) fn answer(result: isize) -> Result<isize> {
    const ERRNO_MAX: isize = 4095;
    if (-ERRNO_MAX..0).contains(&result) { Err(Errno(-result as i32)) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_not_an_error() {
        assert_eq!(answer(-1), Err(Errno(1)));
        assert_eq!(answer(-4095), Err(Errno(4095)));
        for result in [0, 1, -4096, isize::MIN] {
            assert_eq!(answer(result), Ok(result));
        }
    }
}
