//! The calling process: its ids, rights and limits, and its children.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

use super::c::{self, Call};
use super::{bare, check, file};

/// The process id. From the kernel: bionic keeps it itself, and a child of a bare `clone` finds its parent's there.
pub(crate) fn process_id() -> u32 {
    #[cfg(all(target_os = "android", not(miri)))]
    if let Ok(id) = Call::GETPID.call([0; 3]) {
        return id as u32;
    }
    std::process::id()
}

/// The effective user and group.
pub(crate) fn effective_ids() -> (u32, u32) {
    (c::geteuid(), c::getegid())
}

/// Tells whether the number of this user is no other user's, too: in a namespace that does not map all users, the kernel
/// calls those that it leaves out by one number, and this user may be one of them.
#[cold]
pub(crate) fn is_known_by_number(user: u32) -> bool {
    let mut text = [0; 64];
    let mut words_of = |path| -> [Option<u64>; 3] {
        let len = file::read_start(path, &mut text);
        let mut words = text[..len].split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        [(); 3].map(|()| std::str::from_utf8(words.next()?).ok()?.parse().ok())
    };
    let [of_others, ..] = words_of(c"/proc/sys/kernel/overflowuid");
    // All users, as themselves.
    let all = [Some(0), Some(0), Some(u32::MAX.into())];
    of_others.unwrap_or(65534) != u64::from(user) || words_of(c"/proc/self/uid_map") == all
}

/// What the kernel told the process when it started.
pub(super) fn auxiliary(kind: libc::c_ulong) -> libc::c_ulong {
    c::getauxval(kind)
}

/// Tells whether the process has rights that its caller does not have (`AT_SECURE`).
pub(crate) fn has_elevated_rights() -> bool {
    !cfg!(miri) && auxiliary(libc::AT_SECURE) != 0
}

/// The capabilities that the first thread of the process has or could take: none in most processes.
pub(crate) fn capabilities() -> u64 {
    /// Of sets of 64 bits (`linux/capability.h`).
    const VERSION: u32 = 0x2008_0522;
    let mut header = [VERSION, process_id()];
    // Effective, permitted, inheritable: the low halves, then the high ones.
    let mut sets = [0_u32; 6];
    let (place, content) = ((&raw mut header).expose_provenance(), (&raw mut sets).expose_provenance());
    // SAFETY: the kernel reads and writes two words, and writes six.
    unsafe { bare::call(libc::SYS_capget, [place as isize, content as isize, 0, 0, 0, 0]) };
    u64::from(sets[0] | sets[1]) | u64::from(sets[3] | sets[4]) << 32
}

/// Has `clear` called in children that `fork()` makes; false where that can't be arranged.
pub(crate) fn at_fork(clear: extern "C" fn()) -> bool {
    cfg!(miri) || c::pthread_atfork(None, None, Some(clear)) == 0
}

/// The type of `RLIMIT_…`, another in each libc.
#[cfg(target_env = "gnu")]
pub(crate) type Resource = libc::__rlimit_resource_t;
#[cfg(not(target_env = "gnu"))]
pub(crate) type Resource = libc::c_int;

/// A limit that is none.
const NO_LIMIT: u64 = u64::MAX;

/// Sets a limit of this process, if a new one is given; tells how that went, and what it was: a soft and a hard one, of 64 bits
/// everywhere.
#[inline(never)]
fn limit(of: Resource, new: Option<&[u64; 2]>) -> (libc::c_int, [u64; 2]) {
    let mut old = [NO_LIMIT; 2];
    let new = new.map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the kernel reads two numbers or null, and writes two.
    let result = unsafe { libc::syscall(libc::SYS_prlimit64, 0, of, new, old.as_mut_ptr()) };
    (result as libc::c_int, old)
}

/// The soft limit of this process; `None` where there is none.
pub(crate) fn soft_limit(of: Resource) -> Option<u64> {
    let (_, [soft, _]) = limit(of, None);
    (soft != NO_LIMIT).then_some(soft)
}

/// Lowers a limit of this process to `most`, for good.
pub(crate) fn lower_limit(of: Resource, most: u64) -> io::Result<()> {
    let most = most.min(soft_limit(of).unwrap_or(NO_LIMIT));
    check(limit(of, Some(&[most; 2])).0).map(drop)
}

/// A descriptor of a child, whose number may be another's once it was waited for.
pub(crate) fn process_handle(pid: libc::pid_t) -> io::Result<OwnedFd> {
    file::owned(Call::PIDFD_OPEN.call([pid as isize, 0, 0])?).map(OwnedFd::from)
}

/// Kills a child: by its handle, where there is one.
pub(crate) fn kill(pid: libc::pid_t, handle: Option<&OwnedFd>) {
    let signal = libc::SIGKILL;
    match handle {
        Some(handle) => {
            let _ = Call::PIDFD_SEND_SIGNAL.call([handle.as_raw_fd() as isize, signal as isize, 0]);
        }
        // It was not waited for.
        None => {
            c::kill(pid, signal);
        }
    }
}

/// Takes leave of a child that has ended, and returns its status; 0 where it has not.
pub(crate) fn wait_for(pid: libc::pid_t, status: &mut libc::c_int) -> io::Result<libc::pid_t> {
    check(c::waitpid(pid, status, libc::WNOHANG))
}
