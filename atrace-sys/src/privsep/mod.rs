//! Privilege separation: work that is done with the rights of another user, in a child process.
//!
//! # Why
//!
//! A privileged process must not use files that another user publishes: that user can truncate a mapped file,
//! hold a lock forever, or let a path lead anywhere. A [`Worker`] opens and reads such files with the rights of that
//! user.
//!
//! # How
//!
//! The child is forked, irrevocably takes on the user id and group id of that user, and sends its answer, a sequence of
//! bytes, through a pipe. The child has a copy of its parent's memory and nothing else: no descriptor except the pipe
//! and `/dev/null`, no capability (unless the user is the parent's own), no terminal, no environment. That user can't
//! trace the child (`ptrace`), and the child leaves no core file. Whatever happens to the child, the parent gets an
//! answer or an error, at the latest a tenth of a second after the end of the time that the parent has set. The parent
//! parses the answer as untrusted [bytes](Answer).
//!
//! The child does not execute another program (`exec`), for two reasons: there is no program file that every user can
//! read, and the user could trace the child after an `exec`.
//!
//! # Limits
//!
//! After the fork, the work allocates memory, although the parent may have threads. The C libraries allow this. If
//! another thread held a lock of the program during the fork, this lock stays held in the child, and a worker that
//! needs the lock runs out of time. The parent gets a SIGCHLD, as for every child. The answer arrives even if the
//! parent ignores that signal or reaps the child elsewhere.

mod child;

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::{Duration, Instant};

use crate::system::{self, Descriptor, Errno, c, file};

/// The maximum time that a worker may take.
pub const PATIENCE: Duration = Duration::from_secs(1);

/// The maximum size of a worker's answer in bytes.
pub const ANSWER_MAX: usize = 1 << 16;

/// The user and group ids that the child takes on. If the user is not the parent's own, the child has no supplementary
/// groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    /// The user id with which the child works.
    pub uid: u32,
    /// The group id with which the child works.
    pub gid: u32,
}

impl User {
    /// Returns the effective user and group of this process.
    pub fn present() -> Self {
        let (uid, gid) = system::effective_ids();
        Self { uid, gid }
    }
}

/// The reason why the child gave no answer.
#[derive(Debug)]
#[non_exhaustive]
pub enum Failure {
    /// The child could not be started.
    NotStarted(io::Error),
    /// The child did not answer in time.
    Late,
    /// The child ended without an answer, because of the signal with this number. The number is 0 if the child ended by
    /// itself (for example because it could not change to the user's ids), or if its answer was incomplete.
    Ended(i32),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotStarted(e) => write!(f, "no process could be started with that user's rights: {e}"),
            Self::Late => {
                f.write_str("no answer in time (is a lock held, or does a file system not answer?)")
            }
            Self::Ended(libc::SIGBUS) => f.write_str("a file was cut short while it was read"),
            Self::Ended(0) => f.write_str(
                "the child process ended without an answer; perhaps it could not take on that user's rights",
            ),
            Self::Ended(signal) => {
                write!(f, "the child process with that user's rights was ended by signal {signal}")
            }
        }
    }
}

impl std::error::Error for Failure {}

/// A child process that works with another user's rights. Dropping the `Worker` kills the child.
#[derive(Debug)]
pub struct Worker {
    pid: libc::pid_t,
    /// A descriptor that refers to the child (pidfd), if the kernel has such descriptors. The process id does not
    /// suffice: after the child was reaped, its id may belong to another process.
    handle: Option<Descriptor>,
    pipe: File,
    /// The bytes that were read from the pipe so far: a length and the answer.
    said: Vec<u8>,
    start: Instant,
    deadline: Instant,
    is_over: bool,
}

impl Worker {
    /// Starts `work` with the rights of `user`. The work may take as long as `patience`, but at most [`PATIENCE`]. The
    /// answer, which `work` returns, may have at most [`ANSWER_MAX`] bytes.
    ///
    /// Several workers can run at once. Only root can start a worker with the ids of another user. Any user can start a
    /// worker with the user's own ids, which protects the parent from a crash or a hang of the work.
    ///
    /// # Errors
    ///
    /// Returns [`Failure::NotStarted`] if the child could not be started.
    pub fn start(user: User, patience: Duration, work: impl FnOnce() -> Vec<u8>) -> Result<Self, Failure> {
        let start = Instant::now();
        let (answer, pipe) = pipe().map_err(Failure::NotStarted)?;
        let parent = std::process::id();
        // SAFETY: the child only calls `child::live`, which never returns.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            child::live(user, parent, &pipe, work);
        }
        if pid < 0 {
            return Err(Failure::NotStarted(io::Error::last_os_error()));
        }
        let handle = c::pidfd_open(pid).ok().map(Descriptor::new);
        let deadline = start + patience.min(PATIENCE);
        Ok(Self { pid, handle, pipe: answer, said: Vec::new(), start, deadline, is_over: false })
    }

    /// Waits for the answer until the worker's time is over.
    ///
    /// # Errors
    ///
    /// Returns the reason if the child gave no answer in time.
    pub fn answer(self) -> Result<Vec<u8>, Failure> {
        answers(vec![self]).pop().map_or(Err(Failure::Late), |(answer, _)| answer)
    }

    /// Reads the bytes that have arrived. Returns `None` if the answer is not complete.
    fn read(&mut self) -> Option<Result<Vec<u8>, Failure>> {
        let mut chunk = [0; 4096];
        loop {
            match self.pipe.read(&mut chunk) {
                Ok(length) if length > 0 => self.said.extend_from_slice(&chunk[..length]),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return None,
                _ => return Some(Err(Failure::Ended(self.end()))),
            }
            let Some((length, answer)) = self.said.split_first_chunk::<4>() else { continue };
            let length = u32::from_le_bytes(*length) as usize;
            if length > ANSWER_MAX || answer.len() > length {
                return Some(Err(Failure::Ended(self.end())));
            }
            if answer.len() == length {
                return Some(Ok(answer.to_vec()));
            }
        }
    }

    /// Kills and reaps the child. If a signal had already ended the child, returns the number of that signal; otherwise
    /// returns 0.
    ///
    /// This function does not wait forever for the end of the child, because a child that is blocked in a file system
    /// can't be killed. Such a child stays behind, and becomes a child of init when this process ends.
    fn end(&mut self) -> i32 {
        if std::mem::replace(&mut self.is_over, true) {
            return 0;
        }
        let mut status = 0;
        let mut is_gone = || match c::waitpid(self.pid, &mut status, libc::WNOHANG) {
            gone @ 0.. => gone > 0,
            _ => Errno::last() != Errno(libc::EINTR),
        };
        // When a child ends, its pipe is closed first, and its exit status is available a little later.
        let mut is_killed = false;
        for attempt in 0..100 {
            if is_gone() {
                break;
            }
            if attempt == 20 {
                is_killed = true;
                self.kill();
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        if libc::WIFSIGNALED(status) && !is_killed { libc::WTERMSIG(status) } else { 0 }
    }

    fn kill(&self) {
        match &self.handle {
            Some(handle) => _ = c::pidfd_send_signal(handle.as_raw_fd(), libc::SIGKILL),
            // Unless the program has reaped the child elsewhere, the id still belongs to the child.
            None => _ = c::kill(self.pid, libc::SIGKILL),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if !self.is_over {
            self.kill();
            self.end();
        }
    }
}

/// Waits for the answers of all workers, but for each worker only until the time of that worker is over. Returns each
/// worker's answer, and how long the worker took.
pub fn answers(mut workers: Vec<Worker>) -> Vec<(Result<Vec<u8>, Failure>, Duration)> {
    let mut results: Vec<_> = workers.iter().map(|_| None).collect();
    loop {
        let mut places = Vec::new();
        let now = Instant::now();
        let mut longest = Duration::ZERO;
        for (worker, result) in workers.iter_mut().zip(&mut results).filter(|(_, result)| result.is_none()) {
            // The pipe is read first, because an answer that came in time counts even if it is read late.
            match (worker.read(), worker.deadline.checked_duration_since(now)) {
                (Some(answer), _) => *result = Some((answer, worker.start.elapsed())),
                (None, None) => *result = Some((Err(Failure::Late), worker.start.elapsed())),
                (None, Some(left)) => {
                    longest = if places.is_empty() { left } else { longest.min(left) };
                    places.push(libc::pollfd {
                        fd: worker.pipe.as_raw_fd(),
                        events: libc::POLLIN,
                        revents: 0,
                    });
                }
            }
        }
        if places.is_empty() {
            return results.into_iter().flatten().collect();
        }
        let _ = file::poll(&mut places, Some(longest));
    }
}

/// Makes a pipe whose read end does not block.
fn pipe() -> io::Result<(File, File)> {
    let (answer, pipe) = io::pipe()?;
    file::control(answer.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK)?;
    Ok((OwnedFd::from(answer).into(), OwnedFd::from(pipe).into()))
}

/// The maximum number of parts of an answer.
const PARTS_MAX: usize = 1024;

/// An answer of several parts that is being composed. Each part is encoded as its length (u32, little endian) and
/// its bytes.
#[derive(Clone, Debug, Default)]
pub struct Answer(Vec<u8>);

impl Answer {
    /// Adds a part to the answer. A part of more than [`ANSWER_MAX`] bytes is cut.
    pub fn add(&mut self, part: impl AsRef<[u8]>) -> &mut Self {
        let part = part.as_ref();
        let part = &part[..part.len().min(ANSWER_MAX)];
        self.0.extend_from_slice(&(part.len() as u32).to_le_bytes());
        self.0.extend_from_slice(part);
        self
    }

    /// Returns the bytes of the answer.
    pub fn bytes(self) -> Vec<u8> {
        self.0
    }
}

/// Splits an answer into its parts. Returns `None` if the answer is malformed or has more than 1024 parts.
///
/// # Examples
///
/// ```
/// use atrace_sys::privsep::{Answer, parse};
///
/// let mut answer = Answer::default();
/// answer.add("one").add("");
/// let bytes = answer.bytes();
/// assert_eq!(parse(&bytes), Some(vec![&b"one"[..], b""]));
/// assert_eq!(parse(&bytes[1..]), None);
/// ```
pub fn parse(mut bytes: &[u8]) -> Option<Vec<&[u8]>> {
    let mut parts = Vec::new();
    while !bytes.is_empty() {
        let (length, rest) = bytes.split_first_chunk::<4>()?;
        let (part, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        if parts.len() == PARTS_MAX {
            return None;
        }
        parts.push(part);
        bytes = rest;
    }
    Some(parts)
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::child::PIPE;
    use super::*;

    fn ask(work: impl Fn() -> Vec<u8>) -> Result<Vec<u8>, Failure> {
        ask_as(User::present(), work)
    }

    /// Runs a worker and returns its answer. On a busy machine the worker's process may not answer in time, so up to 20
    /// workers are started.
    fn ask_as(user: User, work: impl Fn() -> Vec<u8>) -> Result<Vec<u8>, Failure> {
        let is_in_time = |answer: &Result<_, _>| !matches!(answer, Err(Failure::Late));
        let mut tries = (0..20).map(|_| Worker::start(user, PATIENCE, &work)?.answer());
        tries.find(is_in_time).unwrap_or(Err(Failure::Late))
    }

    #[test]
    fn an_answer_arrives_whole_or_not_at_all() {
        assert_eq!(ask(Vec::new).unwrap(), b"");
        let long: Vec<_> = (0..ANSWER_MAX).map(|at| at as u8).collect();
        assert_eq!(ask(|| long.clone()).unwrap(), long);
        assert!(matches!(ask(|| vec![0; ANSWER_MAX + 1]), Err(Failure::Ended(0))));
        assert!(matches!(ask(|| panic!("in the child")), Err(Failure::Ended(0))));
        // SAFETY: raises the signal that is tested.
        let raises = || unsafe {
            libc::raise(libc::SIGBUS);
            Vec::new()
        };
        // The parent kills a child that closes its pipe but does not end soon after, as may happen on a busy machine.
        // Such a child is tried again.
        let killed = (0..20).map(|_| ask(raises)).find(|answer| !matches!(answer, Err(Failure::Ended(0))));
        assert!(matches!(killed, Some(Err(Failure::Ended(libc::SIGBUS)))), "{killed:?}");
        // Tests a child that ends after it has written only a part of its answer.
        let half = ask(|| {
            // SAFETY: writes to the pipe of this child.
            unsafe {
                libc::write(PIPE, [9_u8, 0, 0, 0, 1].as_ptr().cast(), 5);
                libc::_exit(0)
            }
        });
        assert!(matches!(half, Err(Failure::Ended(0))), "{half:?}");
    }

    #[test]
    fn whoever_does_not_answer_is_not_waited_for() {
        let pid = std::sync::atomic::AtomicI32::new(0);
        let worker = Worker::start(User::present(), PATIENCE, || {
            loop {
                std::thread::sleep(Duration::from_secs(1));
            }
        })
        .unwrap();
        pid.store(worker.pid, std::sync::atomic::Ordering::Relaxed);
        assert!(matches!(worker.answer(), Err(Failure::Late)));
        // The child was killed. On a busy machine it may still run when the parent stops waiting for its end.
        let (pid, start) = (pid.into_inner(), Instant::now());
        // SAFETY: `waitpid` accepts a null pointer, because the status is not needed.
        while unsafe { libc::waitpid(pid, std::ptr::null_mut(), libc::WNOHANG) } == 0 {
            assert!(start.elapsed() < Duration::from_secs(600), "it lives");
        }
        // SAFETY: signal 0 only checks whether the process exists.
        assert_eq!(unsafe { libc::kill(pid, 0) }, -1);
        // The parent does not wait for a child that closes its pipe and keeps running, either.
        let stays = ask(|| {
            // SAFETY: closes the pipe of this child.
            unsafe { libc::close(PIPE) };
            loop {
                std::thread::sleep(Duration::from_secs(1));
            }
        });
        assert!(matches!(stays, Err(Failure::Ended(0))), "{stays:?}");
    }

    /// Tests that the time which is reported for a quick worker does not include the time of a slow worker.
    #[test]
    fn one_that_does_not_answer_holds_no_other_up() {
        let start = |is_slow| {
            Worker::start(User::present(), PATIENCE, move || {
                if is_slow {
                    std::thread::sleep(Duration::from_secs(100));
                }
                b"here".to_vec()
            })
        };
        let mut tries = (0..20).map(|_| {
            let workers = [true, false, true, false].map(|is_slow| start(is_slow).unwrap());
            answers(workers.into())
        });
        // On a busy machine, the process of a quick worker may not answer in time.
        let are_in_time = |answers: &Vec<(Result<_, _>, Duration)>| {
            !answers.iter().skip(1).step_by(2).any(|(answer, _)| matches!(answer, Err(Failure::Late)))
        };
        let answers = tries.find(are_in_time).expect("the quick ones answer");
        for (index, (answer, time)) in answers.iter().enumerate() {
            let is_slow = index % 2 == 0;
            assert_eq!(matches!(answer, Ok(answer) if answer == b"here"), !is_slow, "{index}: {answer:?}");
            assert_eq!(*time >= PATIENCE, is_slow, "{index}: {time:?}");
        }
    }

    /// Tests that the child does not drop its parent's guards. The command `atrace` holds guards that undo its changes
    /// when they are dropped, and the processes of workers are the command's only children that do not execute another
    /// program.
    #[test]
    fn no_guard_of_the_parents_is_dropped_in_the_child() {
        struct Guard(std::path::PathBuf);
        impl Drop for Guard {
            fn drop(&mut self) {
                std::fs::write(&self.0, "").unwrap();
            }
        }
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("dropped");
        let guard = Guard(path.clone());
        assert!(ask(Vec::new).is_ok());
        assert!(ask(|| panic!("in the child")).is_err());
        assert!(!path.exists());
        drop(guard);
        assert!(path.exists());
    }

    /// Tests that a child has no environment variables and no descriptors of its parent. If this test runs as root,
    /// also checks that the child has none of root's rights.
    #[test]
    fn nothing_of_the_parents_is_left() {
        let is_root = User::present().uid == 0;
        let user = if is_root { User { uid: 64_003, gid: 64_003 } } else { User::present() };
        let look = || {
            let mut found = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
            for entry in std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten() {
                let to = std::fs::read_link(entry.path()).unwrap_or_default();
                found += &format!("fd {}\n", to.display());
            }
            found += &format!("variables {}\n", std::env::vars_os().count());
            // SAFETY: no preconditions.
            let (dumpable, session) =
                unsafe { (libc::prctl(libc::PR_GET_DUMPABLE), libc::getsid(0) == libc::getpid()) };
            found += &format!("dumpable {dumpable}\nsession {session}\n");
            found.into_bytes()
        };
        let said = String::from_utf8(ask_as(user, look).unwrap()).unwrap();
        let ids = |name: &str, id: u32| format!("\n{name}:\t{id}\t{id}\t{id}\t{id}\n");
        assert!(said.contains(&ids("Uid", user.uid)) && said.contains(&ids("Gid", user.gid)), "{said}");
        for line in ["NoNewPrivs:\t1\n", "variables 0\n", "dumpable 0\n", "session true\n"] {
            assert!(said.contains(line), "{line:?}: {said}");
        }
        if is_root {
            for line in [
                "Groups:\t \n",
                "CapInh:\t0000000000000000\n",
                "CapPrm:\t0000000000000000\n",
                "CapEff:\t0000000000000000\n",
            ] {
                assert!(said.contains(line), "{line:?}: {said}");
            }
        }
        let open: Vec<_> = said.lines().filter_map(|line| line.strip_prefix("fd ")).collect();
        assert_eq!(open.iter().filter(|to| **to == "/dev/null").count(), 3, "{said}");
        // The child has its pipe open, besides `/dev/null` and the descriptor with which it lists its descriptors.
        assert_eq!(open.iter().filter(|to| to.starts_with("pipe:")).count(), 1, "{said}");
        assert!(open.len() <= 5, "{said}");
    }
}
