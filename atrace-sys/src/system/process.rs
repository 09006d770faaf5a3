//! The calling process: its ids, rights and limits, and its children.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

use super::{Plain, check, file, zeros};

/// The process id. From the kernel: bionic keeps it itself, and a child of a bare `clone` finds its parent's there.
pub(crate) fn process_id() -> u32 {
    #[cfg(all(target_os = "android", not(miri)))]
    // SAFETY: no preconditions.
    if let Ok(id) = u32::try_from(unsafe { libc::syscall(libc::SYS_getpid) }) {
        return id;
    }
    std::process::id()
}

/// The effective user and group.
pub(crate) fn effective_ids() -> (u32, u32) {
    // SAFETY: no preconditions.
    unsafe { (libc::geteuid(), libc::getegid()) }
}

/// What the kernel told the process when it started.
pub(super) fn auxiliary(kind: libc::c_ulong) -> libc::c_ulong {
    // SAFETY: no preconditions.
    unsafe { libc::getauxval(kind) }
}

/// Tells whether the process has rights that its caller does not have (`AT_SECURE`).
pub(crate) fn has_elevated_rights() -> bool {
    !cfg!(miri) && auxiliary(libc::AT_SECURE) != 0
}

/// Has `clear` called in children that `fork()` makes; false where that can't be arranged.
pub(crate) fn at_fork(clear: extern "C" fn()) -> bool {
    // SAFETY: a function without preconditions.
    cfg!(miri) || unsafe { libc::pthread_atfork(None, None, Some(clear)) } == 0
}

/// The type of `RLIMIT_…`, another in each libc.
#[cfg(target_env = "gnu")]
pub(crate) type Resource = libc::__rlimit_resource_t;
#[cfg(not(target_env = "gnu"))]
pub(crate) type Resource = libc::c_int;

// SAFETY: zeros are two numbers.
unsafe impl Plain for libc::rlimit {}

/// The soft limit of this process; `None` where there is none.
pub(crate) fn soft_limit(of: Resource) -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, ..zeros() };
    // SAFETY: `limit` is writable and of the right type. On failure it stays at "no limit".
    unsafe { libc::getrlimit(of, &mut limit) };
    #[allow(clippy::unnecessary_cast, reason = "it has 32 bits on some systems")]
    (limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur as u64)
}

/// Lowers a limit of this process to `most`, for good.
pub(crate) fn lower_limit(of: Resource, most: u64) -> io::Result<()> {
    let most = most.min(soft_limit(of).unwrap_or(u64::MAX));
    let most = libc::rlim_t::try_from(most).unwrap_or(libc::rlim_t::MAX);
    let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
    // SAFETY: a resource and a live structure.
    check(unsafe { libc::setrlimit(of, &limit) }).map(drop)
}

/// A descriptor of a child, whose number may be another's once it was waited for.
pub(crate) fn process_handle(pid: libc::pid_t) -> io::Result<OwnedFd> {
    // SAFETY: numbers; the result is checked.
    file::owned(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) }).map(OwnedFd::from)
}

/// Kills a child: by its handle, where there is one.
pub(crate) fn kill(pid: libc::pid_t, handle: Option<&OwnedFd>) {
    let nothing = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: a descriptor of ours, a signal, and nothing more about it; or a child that was not waited for.
    unsafe {
        match handle {
            Some(handle) => {
                libc::syscall(libc::SYS_pidfd_send_signal, handle.as_raw_fd(), libc::SIGKILL, nothing, 0);
            }
            None => {
                libc::kill(pid, libc::SIGKILL);
            }
        }
    }
}

/// Takes leave of a child that has ended, and returns its status; 0 where it has not.
pub(crate) fn wait_for(pid: libc::pid_t, status: &mut libc::c_int) -> io::Result<libc::pid_t> {
    // SAFETY: the status is writable.
    check(unsafe { libc::waitpid(pid, status, libc::WNOHANG) })
}
