//! The calling process: its ids, rights and limits, and its children.

use std::os::fd::{AsRawFd as _, OwnedFd};

use super::c::{self, Call};
use super::{Result, bare, check, file};

/// Returns the process id. On Android the kernel is asked, because bionic caches the id, and a child of a bare
/// `clone` would get its parent's.
pub(crate) fn process_id() -> u32 {
    #[cfg(all(target_os = "android", not(miri)))]
    if let Ok(id) = Call::GETPID.call([0; 3]) {
        return id as u32;
    }
    std::process::id()
}

/// Returns the effective user and group ids.
pub(crate) fn effective_ids() -> (u32, u32) {
    (c::geteuid(), c::getegid())
}

/// Returns whether no other user has the same id. In a user namespace that does not map all users, the kernel shows
/// all unmapped users with one id, and `user` may be one of them.
#[cold]
pub(crate) fn is_known_by_number(user: u32) -> bool {
    let mut text = [0; 64];
    let mut words_of = |path| -> [Option<u64>; 3] {
        let len = file::read_start(path, &mut text);
        let mut words = text[..len].split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        [(); 3].map(|()| std::str::from_utf8(words.next()?).ok()?.parse().ok())
    };
    let [of_others, ..] = words_of(c"/proc/sys/kernel/overflowuid");
    // An identity mapping of all users.
    let all = [Some(0), Some(0), Some(u32::MAX.into())];
    of_others.unwrap_or(65534) != u64::from(user) || words_of(c"/proc/self/uid_map") == all
}

/// Returns an entry of the auxiliary vector.
pub(super) fn auxiliary(kind: libc::c_ulong) -> libc::c_ulong {
    c::getauxval(kind)
}

/// Returns whether the process has rights that its caller does not have (`AT_SECURE`).
pub(crate) fn has_elevated_rights() -> bool {
    !cfg!(miri) && auxiliary(libc::AT_SECURE) != 0
}

/// Returns the capabilities that the first thread of the process has or could take; 0 in most processes.
pub(crate) fn capabilities() -> u64 {
    /// The version with sets of 64 bits (`linux/capability.h`).
    const VERSION: u32 = 0x2008_0522;
    let mut header = [VERSION, process_id()];
    // Effective, permitted, inheritable: first the three low halves, then the three high ones.
    let mut sets = [0_u32; 6];
    let (place, content) = ((&raw mut header).expose_provenance(), (&raw mut sets).expose_provenance());
    // SAFETY: the kernel reads and writes two words at the first address, and writes six at the second.
    unsafe { bare::call(libc::SYS_capget, [place as isize, content as isize, 0, 0, 0, 0]) };
    u64::from(sets[0] | sets[1]) | u64::from(sets[3] | sets[4]) << 32
}

/// Registers `clear` to be called in children of `fork()`. Returns false if that fails.
pub(crate) fn at_fork(clear: extern "C" fn()) -> bool {
    cfg!(miri) || c::pthread_atfork(None, None, Some(clear)) == 0
}

/// The type of `RLIMIT_…`, which differs between libcs.
#[cfg(target_env = "gnu")]
pub(crate) type Resource = libc::__rlimit_resource_t;
#[cfg(not(target_env = "gnu"))]
pub(crate) type Resource = libc::c_int;

/// The value of no limit.
const NO_LIMIT: u64 = u64::MAX;

/// Sets a resource limit of this process if `new` is given. Returns the result, and the former soft and hard limits,
/// which have 64 bits everywhere.
#[inline(never)]
fn limit(of: Resource, new: Option<&[u64; 2]>) -> (libc::c_int, [u64; 2]) {
    let mut old = [NO_LIMIT; 2];
    let new = new.map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the kernel reads two numbers or null, and writes two numbers.
    let result = unsafe { libc::syscall(libc::SYS_prlimit64, 0, of, new, old.as_mut_ptr()) };
    (result as libc::c_int, old)
}

/// Returns a soft limit of this process; `None` if there is no limit.
pub(crate) fn soft_limit(of: Resource) -> Option<u64> {
    let (_, [soft, _]) = limit(of, None);
    (soft != NO_LIMIT).then_some(soft)
}

/// Lowers a limit of this process to `most`, irrevocably.
pub(crate) fn lower_limit(of: Resource, most: u64) -> Result<()> {
    let most = most.min(soft_limit(of).unwrap_or(NO_LIMIT));
    check(limit(of, Some(&[most; 2])).0).map(drop)
}

/// Returns a descriptor of a child. Unlike its id, it can't refer to another process after the child was reaped.
pub(crate) fn process_handle(pid: libc::pid_t) -> Result<OwnedFd> {
    file::owned(Call::PIDFD_OPEN.call([pid as isize, 0, 0])?).map(OwnedFd::from)
}

/// Kills a child, by its descriptor if there is one.
pub(crate) fn kill(pid: libc::pid_t, handle: Option<&OwnedFd>) {
    let signal = libc::SIGKILL;
    match handle {
        Some(handle) => {
            let _ = Call::PIDFD_SEND_SIGNAL.call([handle.as_raw_fd() as isize, signal as isize, 0]);
        }
        // The child was not reaped yet, so the id is still its own.
        None => {
            c::kill(pid, signal);
        }
    }
}

/// Reaps a child. Returns its id and sets `status` if it has ended; otherwise returns 0.
pub(crate) fn wait_for(pid: libc::pid_t, status: &mut libc::c_int) -> Result<libc::pid_t> {
    check(c::waitpid(pid, status, libc::WNOHANG))
}
