//! The child process of a [`Worker`](super::Worker): it takes on the rights of the worker's user, does the work, sends
//! the answer, and ends.

use std::fs::File;
use std::os::fd::{AsRawFd as _, IntoRawFd as _};
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{ANSWER_MAX, User};
use crate::system::c::{self, CAPABILITY_VERSION};
use crate::system::signals::{Signals, mask};
use crate::system::{self, file};

/// The maximum number of bytes of memory that the child may use in addition to the memory that it has inherited.
const MEMORY: u64 = 256 << 20;
/// The maximum size of a file that the child writes, in bytes.
const FILE: u64 = 1 << 20;
/// The maximum number of descriptors of the child.
const DESCRIPTORS: u64 = 256;

/// Runs the child process. This function never returns.
pub(super) fn live(user: User, parent: u32, pipe: &File, work: impl FnOnce() -> Vec<u8>) -> ! {
    let done = catch_unwind(AssertUnwindSafe(|| {
        if become_user(user, parent, pipe).is_none() {
            return false;
        }
        let answer = work();
        let Some(length) = u32::try_from(answer.len()).ok().filter(|length| *length as usize <= ANSWER_MAX)
        else {
            return false;
        };
        // `become_user` has moved the pipe to the number `PIPE`.
        let mut rest = &[&length.to_le_bytes(), &answer[..]].concat()[..];
        while let Ok(taken @ 1..) = file::write(PIPE, rest) {
            rest = &rest[taken..];
        }
        rest.is_empty()
    }));
    // `_exit` ends the child without calling the exit handlers that the parent has registered.
    c::_exit(if done.is_ok_and(|done| done) { 0 } else { 1 })
}

/// The number of the pipe's descriptor in the child.
pub(super) const PIPE: libc::c_int = 3;

/// Irrevocably takes on the rights of `user`, unless the process has that user's id already. Also sets resource limits,
/// and closes all inherited descriptors except that of the pipe. The descriptors 0, 1 and 2 become `/dev/null`. Returns
/// `None` if a necessary step fails.
fn become_user(user: User, parent: u32, pipe: &File) -> Option<()> {
    // SAFETY: the arguments are numbers, C strings and live structures. The child has one thread, so no other code uses
    // its descriptors, signals or environment.
    unsafe {
        // This is done before any right is given up, so that there is no moment at which the user can trace the process
        // (`ptrace`).
        hold(libc::prctl(libc::PR_SET_DUMPABLE, 0))?;
        for signal in 1..=64 {
            libc::signal(signal, libc::SIG_DFL);
        }
        mask(libc::SIG_SETMASK, &Signals::of([]));
        // Detaches the child from the terminal, because a process can inject input into its terminal.
        libc::setsid();
        libc::clearenv();
        libc::umask(0o077);
        hold(libc::chdir(c"/".as_ptr()))?;
        leave_descriptors(pipe)?;
        limits()?;
        if user.uid != system::effective_ids().0 {
            hold(libc::setgroups(0, std::ptr::null()))?;
            // The kernel takes the id `u32::MAX` for "unchanged".
            if user.uid == u32::MAX || user.gid == u32::MAX {
                return None;
            }
            hold(libc::setresgid(user.gid, user.gid, user.gid))?;
            hold(libc::setresuid(user.uid, user.uid, user.uid))?;
            drop_capabilities()?;
            // Checks that the process can't become root again: this call must fail.
            if libc::setresuid(u32::MAX, 0, u32::MAX) == 0 {
                return None;
            }
        }
        hold(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
        // These two settings come after the change of the user, because that change resets both.
        hold(libc::prctl(libc::PR_SET_DUMPABLE, 0))?;
        hold(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))?;
        // Ends the child after five seconds, in case the parent is already gone, or does not end the child.
        libc::alarm(5);
    }
    (std::os::unix::process::parent_id() == parent).then_some(())
}

fn hold(result: libc::c_int) -> Option<()> {
    (result == 0).then_some(())
}

/// Closes all descriptors except the pipe, and opens `/dev/null` as the descriptors 0, 1 and 2.
fn leave_descriptors(pipe: &File) -> Option<()> {
    let null = file::open(c"/dev/null", libc::O_RDWR).ok()?.into_raw_fd();
    // Duplicates both descriptors to numbers above those that the loop below replaces.
    let beyond = |fd| file::control(fd, libc::F_DUPFD, 10).ok();
    let (null, pipe) = (beyond(null)?, beyond(pipe.as_raw_fd())?);
    for (from, to) in [(null, 0), (null, 1), (null, 2), (pipe, PIPE)] {
        file::close(to);
        if file::control(from, libc::F_DUPFD, to).ok()? != to {
            return None;
        }
    }
    let first = PIPE + 1;
    if !system::close_range(first, 0) {
        // Linux before 5.9 has no `close_range`.
        let last = system::soft_limit(libc::RLIMIT_NOFILE).unwrap_or(u64::MAX).min(1 << 20);
        (first..last as libc::c_int).for_each(file::close);
    }
    Some(())
}

/// Sets resource limits: no core file, two seconds of CPU time, little memory, small files, few descriptors, no child
/// processes.
fn limits() -> Option<()> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let present = statm.split(' ').next()?.parse::<u64>().ok()?.checked_mul(system::page_size() as u64)?;
    let limits = [
        (libc::RLIMIT_CORE, 0),
        (libc::RLIMIT_CPU, 2),
        (libc::RLIMIT_AS, present.saturating_add(MEMORY)),
        (libc::RLIMIT_FSIZE, FILE),
        (libc::RLIMIT_NOFILE, DESCRIPTORS),
        (libc::RLIMIT_NPROC, 0),
    ];
    limits.into_iter().try_for_each(|(what, most)| system::lower_limit(what, most).ok())
}

/// Drops all capabilities, including those that the process kept when it changed its user id, and those that it could
/// pass on to a program by `exec`.
fn drop_capabilities() -> Option<()> {
    hold(c::capset(&mut [CAPABILITY_VERSION, 0], &[0; 6]))
}
