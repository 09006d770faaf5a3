//! The child that does an errand: it gives up all it has, works, answers and ends.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{ANSWER_MAX, User};

/// How much memory the child may have beside what its maker has, how large a file, how many descriptors.
const MEMORY: u64 = 256 << 20;
const FILE: u64 = 1 << 20;
const DESCRIPTORS: u64 = 256;

/// What the child does; it ends in here.
pub(super) fn live(user: User, maker: libc::pid_t, pipe: &File, work: impl FnOnce() -> Vec<u8>) -> ! {
    let done = catch_unwind(AssertUnwindSafe(|| {
        if become_user(user, maker, pipe).is_none() {
            return false;
        }
        let answer = work();
        let Some(length) = u32::try_from(answer.len()).ok().filter(|length| *length as usize <= ANSWER_MAX)
        else {
            return false;
        };
        // SAFETY: the number that `become_user` moved the pipe to, which is nobody else's.
        let mut pipe = unsafe { File::from_raw_fd(PIPE) };
        pipe.write_all(&length.to_le_bytes()).and_then(|()| pipe.write_all(&answer)).is_ok()
    }));
    // SAFETY: ends the process without what its maker would do at its end.
    unsafe { libc::_exit(if done.is_ok_and(|done| done) { 0 } else { 1 }) }
}

/// The number of the pipe in the child.
pub(super) const PIPE: libc::c_int = 3;

/// Gives up everything but the pipe, for good.
fn become_user(user: User, maker: libc::pid_t, pipe: &File) -> Option<()> {
    // SAFETY: numbers, C strings and live structures; the child has one thread, and nobody else uses its descriptors,
    // its signals or its environment.
    unsafe {
        // Before the first right is given up, so that there is no moment in which the user could trace it.
        hold(libc::prctl(libc::PR_SET_DUMPABLE, 0))?;
        for signal in 1..=64 {
            libc::signal(signal, libc::SIG_DFL);
        }
        let mut none = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
        // Away from the terminal, which could be typed into.
        libc::setsid();
        libc::clearenv();
        libc::umask(0o077);
        hold(libc::chdir(c"/".as_ptr()))?;
        leave_descriptors(pipe)?;
        limits()?;
        if user.uid != libc::geteuid() {
            hold(libc::setgroups(0, std::ptr::null()))?;
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
        if libc::getppid() != maker {
            return None;
        }
    }
    Some(())
}

fn hold(result: libc::c_int) -> Option<()> {
    (result == 0).then_some(())
}

/// Closes all but the pipe, and has /dev/null for the first three.
fn leave_descriptors(pipe: &File) -> Option<()> {
    // SAFETY: numbers and a C string; nobody else in this process uses a descriptor.
    unsafe {
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        // Beyond those that are given new files below.
        let (null, pipe) =
            (libc::fcntl(null, libc::F_DUPFD, 10), libc::fcntl(pipe.as_raw_fd(), libc::F_DUPFD, 10));
        for (from, to) in [(null, 0), (null, 1), (null, 2), (pipe, PIPE)] {
            if libc::dup2(from, to) != to {
                return None;
            }
        }
        let first = PIPE + 1;
        if libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, 0) == 0 {
            return Some(());
        }
        // Before Linux 5.9.
        let mut limit = std::mem::zeroed::<libc::rlimit>();
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        let last = libc::c_int::try_from(limit.rlim_cur).unwrap_or(libc::c_int::MAX).min(1 << 20);
        (first..last).for_each(|fd| {
            libc::close(fd);
        });
    }
    Some(())
}

/// No core, two seconds of work, a little memory, small files, no children.
fn limits() -> Option<()> {
    // SAFETY: no preconditions.
    let page = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok()?;
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let present = statm.split(' ').next()?.parse::<u64>().ok()?.checked_mul(page)?;
    let limit = |what, most: u64| {
        let most = libc::rlim_t::try_from(most).unwrap_or(libc::rlim_t::MAX);
        // SAFETY: a resource and a live structure.
        unsafe {
            let mut limit = std::mem::zeroed::<libc::rlimit>();
            libc::getrlimit(what, &mut limit);
            limit.rlim_cur = limit.rlim_cur.min(most);
            limit.rlim_max = limit.rlim_cur;
            hold(libc::setrlimit(what, &limit))
        }
    };
    limit(libc::RLIMIT_CORE, 0)?;
    limit(libc::RLIMIT_CPU, 2)?;
    limit(libc::RLIMIT_AS, present.saturating_add(MEMORY))?;
    limit(libc::RLIMIT_FSIZE, FILE)?;
    limit(libc::RLIMIT_NOFILE, DESCRIPTORS)?;
    limit(libc::RLIMIT_NPROC, 0)
}

/// Also those that the process kept across the change of its user, or could give to a program.
fn drop_capabilities() -> Option<()> {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: libc::c_int,
    }
    // _LINUX_CAPABILITY_VERSION_3 of linux/capability.h: three sets of 64 bits, in two halves.
    let header = Header { version: 0x2008_0522, pid: 0 };
    let none = [0_u32; 6];
    // SAFETY: what capset(2) reads, live.
    let done = unsafe { libc::syscall(libc::SYS_capset, &raw const header, none.as_ptr()) };
    (done == 0).then_some(())
}
