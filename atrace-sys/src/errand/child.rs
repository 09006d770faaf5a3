//! The child that does an errand: it gives up all it has, works, answers and ends.

use std::fs::File;
use std::os::fd::{AsRawFd as _, IntoRawFd as _};
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{ANSWER_MAX, User};
use crate::system::c::{self, CapabilityHeader};
use crate::system::{self, file};

/// How much memory the child may have beside what its maker has, how large a file, how many descriptors.
const MEMORY: u64 = 256 << 20;
const FILE: u64 = 1 << 20;
const DESCRIPTORS: u64 = 256;

/// What the child does; it ends in here.
pub(super) fn live(user: User, maker: u32, pipe: &File, work: impl FnOnce() -> Vec<u8>) -> ! {
    let done = catch_unwind(AssertUnwindSafe(|| {
        if become_user(user, maker, pipe).is_none() {
            return false;
        }
        let answer = work();
        let Some(length) = u32::try_from(answer.len()).ok().filter(|length| *length as usize <= ANSWER_MAX)
        else {
            return false;
        };
        // To the number that `become_user` moved the pipe to.
        let mut rest = &[&length.to_le_bytes(), &answer[..]].concat()[..];
        while let Ok(taken @ 1..) = file::write(PIPE, rest) {
            rest = &rest[taken..];
        }
        rest.is_empty()
    }));
    // Without what its maker would do at its end.
    c::_exit(if done.is_ok_and(|done| done) { 0 } else { 1 })
}

/// The number of the pipe in the child.
pub(super) const PIPE: libc::c_int = 3;

/// Gives up everything but the pipe, for good.
fn become_user(user: User, maker: u32, pipe: &File) -> Option<()> {
    // SAFETY: numbers, C strings and live structures; the child has one thread, and nobody else uses its descriptors,
    // its signals or its environment.
    unsafe {
        // Before the first right is given up, so that there is no moment in which the user could trace it.
        hold(libc::prctl(libc::PR_SET_DUMPABLE, 0))?;
        for signal in 1..=64 {
            libc::signal(signal, libc::SIG_DFL);
        }
        system::signals::unblock_all();
        // Away from the terminal, which could be typed into.
        libc::setsid();
        libc::clearenv();
        libc::umask(0o077);
        hold(libc::chdir(c"/".as_ptr()))?;
        leave_descriptors(pipe)?;
        limits()?;
        if user.uid != system::effective_ids().0 {
            hold(libc::setgroups(0, std::ptr::null()))?;
            // The kernel would take it for "as it is".
            if user.uid == u32::MAX || user.gid == u32::MAX {
                return None;
            }
            hold(libc::setresgid(user.gid, user.gid, user.gid))?;
            hold(libc::setresuid(user.uid, user.uid, user.uid))?;
            drop_capabilities()?;
            // What was given up must not come back.
            if libc::setresuid(u32::MAX, 0, u32::MAX) == 0 {
                return None;
            }
        }
        hold(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
        // Both are reset by the change of the user.
        hold(libc::prctl(libc::PR_SET_DUMPABLE, 0))?;
        hold(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))?;
        // Should the maker be gone already, or not come to end it.
        libc::alarm(5);
    }
    (std::os::unix::process::parent_id() == maker).then_some(())
}

fn hold(result: libc::c_int) -> Option<()> {
    (result == 0).then_some(())
}

/// Closes all but the pipe, and has /dev/null for the first three.
fn leave_descriptors(pipe: &File) -> Option<()> {
    let null = file::open(c"/dev/null", libc::O_RDWR).ok()?.into_raw_fd();
    // Beyond those that are given new files below.
    let beyond = |fd| file::control(fd, libc::F_DUPFD, 10).ok();
    let (null, pipe) = (beyond(null)?, beyond(pipe.as_raw_fd())?);
    for (from, to) in [(null, 0), (null, 1), (null, 2), (pipe, PIPE)] {
        file::close(to);
        if file::control(from, libc::F_DUPFD, to).ok()? != to {
            return None;
        }
    }
    let first = PIPE + 1;
    if !system::close_range(first as libc::c_uint, 0) {
        // Before Linux 5.9.
        let last = system::soft_limit(libc::RLIMIT_NOFILE).unwrap_or(u64::MAX).min(1 << 20);
        (first..last as libc::c_int).for_each(file::close);
    }
    Some(())
}

/// No core, two seconds of work, a little memory, small files, no children.
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

/// Also those that the process kept across the change of its user, or could give to a program.
fn drop_capabilities() -> Option<()> {
    // _LINUX_CAPABILITY_VERSION_3 of linux/capability.h: three sets of 64 bits, in two halves.
    let mut header = CapabilityHeader { version: 0x2008_0522, pid: 0 };
    hold(c::capset(&mut header, &[0; 6]))
}
