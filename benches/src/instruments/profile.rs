//! Reads the kernel's information about this process: its threads, their states, and page faults.
//!
//! [`Sampler`] repeatedly reads the states of all threads and counts the states, like a sampling profiler.
//! [`minor_faults`] returns an exact number of page faults. [`Started`] counts exactly the threads that ran a task:
//! each such thread adds itself to the count. The kernel's information comes from `/proc`, so no privileges are needed,
//! and the information exists on Android, too.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::thread::gettid;

/// The state of a thread in a sample. States of the kernel that have no variant of their own count as `Other`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ThreadState {
    /// The thread runs on a CPU, or waits for a CPU (`R`).
    Running,
    /// The thread waits (`S`, `I`), and no time limit of the wait is known.
    Waiting,
    /// The thread waits (`S`, `I`) with a time limit.
    TimedWaiting,
    /// The thread waits uninterruptibly, for example for a page or for another thread's memory map (`D`).
    Blocked,
    /// The thread is ending (`X`, `Z`).
    Ending,
    /// The thread is stopped, traced, parked, or in a state that this code does not know.
    Other,
}

impl ThreadState {
    /// All states, in order.
    pub const ALL: [Self; 6] =
        [Self::Running, Self::Waiting, Self::TimedWaiting, Self::Blocked, Self::Ending, Self::Other];

    /// Returns Java's name of the state, or a name of the same form for a state that Java does not have.
    pub const fn name(self) -> &'static str {
        ["RUNNABLE", "WAITING", "TIMED_WAITING", "BLOCKED", "ENDING", "OTHER"][self as usize]
    }

    /// Returns the state for a letter of proc_pid_stat(5).
    fn of(letter: char) -> Self {
        match letter {
            'R' => Self::Running,
            'S' | 'I' => Self::Waiting,
            'D' => Self::Blocked,
            'X' | 'x' | 'Z' => Self::Ending,
            _ => Self::Other,
        }
    }
}

/// The kinds of object for which a thread can wait. Each kind has substrings of the names of the kernel functions in
/// which a thread waits for such an object. The names of these functions differ between kernel versions.
pub const WAITS: [(&str, &[&str]); 3] = [
    // The thread waits for another thread: for a lock, a condition, to be unparked, or for the end of the other thread.
    ("futex", &["futex"]),
    // The thread waits until one of several file descriptors is ready.
    ("epoll", &["ep_poll", "epoll"]),
    // The thread waits for a socket, in a system call that reads, writes, connects or accepts.
    ("socket", &["wait_woken", "sk_", "tcp_", "inet_", "sock"]),
];

/// Returns the kind of object (see [`WAITS`]) for which a thread waits in the kernel function `function`.
pub fn wait_of(function: &str) -> Option<&'static str> {
    let is_in = |names: &[&str]| names.iter().any(|name| function.contains(name));
    WAITS.iter().find_map(|(wait, names)| is_in(names).then_some(*wait))
}

/// Returns the fields of a `stat` file, beginning with the third field, the state. The second field, the name, ends at
/// the last `)`, because it may contain spaces and parentheses.
fn fields(stat: &str) -> Option<impl Iterator<Item = &str>> {
    Some(stat.rsplit_once(')')?.1.split_ascii_whitespace())
}

/// Returns whether a waiting thread waits with a time limit. `function` is the kernel function in which the thread
/// waits, and `syscall` is the content of the thread's `syscall` file. Waits with a time limit are a sleep, a futex
/// wait whose fourth argument is a time, and an epoll wait whose fourth argument is a number of milliseconds other than
/// -1.
fn is_timed(function: &str, syscall: &str) -> bool {
    let fourth = || {
        let hex = syscall.split_ascii_whitespace().nth(4)?.strip_prefix("0x")?;
        u64::from_str_radix(hex, 16).ok()
    };
    match function {
        function if function.contains("nanosleep") => true,
        function if function.starts_with("futex") => fourth().is_some_and(|time| time != 0),
        function if function.contains("ep_poll") || function.contains("epoll") => {
            fourth().is_some_and(|milliseconds| milliseconds as u32 != u32::MAX)
        }
        _ => false,
    }
}

/// Returns the number of page faults of this process that needed no input or output, including faults of ended threads.
/// The function allocates no memory.
///
/// # Errors
///
/// Returns the system's error, or `InvalidData` if `/proc/self/stat` does not match
/// proc_pid_stat(5).
pub fn minor_faults() -> io::Result<u64> {
    // The buffer is on the stack, because allocations may be counted at the same time. It has room for the file's 52
    // fields, one of which is a name.
    let mut stat = [0; 2048];
    let read = std::fs::File::open("/proc/self/stat")?.read(&mut stat)?;
    let stat = std::str::from_utf8(&stat[..read]).unwrap_or_default();
    // The number of faults is the tenth field of the file. `fields` begins with the third.
    let faults = fields(stat).and_then(|mut fields| fields.nth(7)?.parse().ok());
    faults.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("/proc/self/stat: {stat:?}")))
}

/// Counts the threads that ran a task. Each such thread calls [`seen`](Self::seen), and is counted only at its first
/// call.
///
/// A call of `seen` costs a load and a store of a thread-local variable. The first call of a thread also costs an
/// atomic addition.
#[derive(Debug)]
pub struct Started;

static STARTED: AtomicU64 = AtomicU64::new(0);
thread_local! {
    static SEEN: Cell<bool> = const { Cell::new(false) };
}

impl Started {
    /// Counts the calling thread if it was not counted yet.
    #[inline]
    pub fn seen() {
        if !SEEN.replace(true) {
            STARTED.fetch_add(1, Relaxed);
        }
    }

    /// Returns how many threads of this process have been counted so far.
    pub fn count() -> u64 {
        STARTED.load(Relaxed)
    }
}

/// A thread in a sample: the role of the thread, its state and, if it can be read, the name of the kernel function in
/// which the thread is. This function is the top frame of the thread's kernel stack, which the user of the process may
/// read.
pub type Found = (&'static str, ThreadState, Option<String>);

/// The sums over all samples of a [`Sampler`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Samples {
    /// The number of samples that were taken, each of which has all threads.
    pub looks: u64,
    /// The sum, over all samples, of the number of living threads.
    pub alive: u64,
    /// For each combination of role, state and kernel function, the number of times that a thread with this combination
    /// was in a sample.
    pub found: BTreeMap<Found, u64>,
}

impl Samples {
    /// Adds a sample of all threads.
    pub fn add(&mut self, found: impl IntoIterator<Item = Found>) {
        for thread in found {
            *self.found.entry(thread).or_default() += 1;
            self.alive += 1;
        }
        self.looks += 1;
    }

    /// Returns the mean number of living threads, or `None` if the sampler has taken no sample.
    pub fn mean_alive(&self) -> Option<f64> {
        (self.looks > 0).then(|| self.alive as f64 / self.looks as f64)
    }

    /// Returns the fraction of the sampled threads for which `is` is true, or 0 if no thread was sampled.
    pub fn part(&self, is: impl Fn(&Found) -> bool) -> f64 {
        let count = self.found.iter().filter(|(found, _)| is(found)).map(|(_, n)| n).sum::<u64>();
        count as f64 / self.alive.max(1) as f64
    }

    /// Returns the fraction of the sampled threads of a role that were in the state `state`, or 0 if no thread of the
    /// role was sampled.
    pub fn part_of_role(&self, role: &str, state: ThreadState) -> f64 {
        let all = self.part(|found| found.0 == role);
        let part = self.part(|found| (found.0, found.1) == (role, state));
        if all > 0.0 { part / all } else { 0.0 }
    }
}

/// A thread that repeatedly samples all other threads of the process, until it is [stopped](Sampler::stop).
///
/// The sampler allocates and takes CPU time, so do not measure allocations or CPU time while the sampler runs. The
/// sampler does not count itself.
#[derive(Debug)]
pub struct Sampler {
    stop: Sender<()>,
    thread: JoinHandle<io::Result<Samples>>,
}

impl Sampler {
    /// Starts the sampler. The pauses between samples are random, between half and one and a half of `every`, so that
    /// the samples do not synchronize with the sampled threads. `role` returns the role of the thread with a given
    /// thread id.
    ///
    /// # Errors
    ///
    /// Returns the system's error if the thread could not be started.
    pub fn start(every: Duration, role: impl Fn(i32) -> &'static str + Send + 'static) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let thread = std::thread::Builder::new().name("sampler".into()).spawn(move || {
            let mut samples = Samples::default();
            let mut random = fastrand::Rng::with_seed(0xA7ACE);
            loop {
                // The pause is between half and one and a half of `every`.
                let pause = every.mul_f64(0.5 + random.f64());
                let is_over = stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout);
                // At least one sample is taken, even if the sampler is stopped at once.
                if !is_over || samples.looks == 0 {
                    samples.add(look(&role)?);
                }
                if is_over {
                    return Ok(samples);
                }
            }
        })?;
        Ok(Self { stop, thread })
    }

    /// Ends the sampler and returns the sums of its samples.
    ///
    /// # Errors
    ///
    /// Returns the system's error if `/proc/self/task` could not be read.
    pub fn stop(self) -> io::Result<Samples> {
        // Sending fails only if the sampler's thread has already ended with an error. `join` returns this error.
        let _ = self.stop.send(());
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// Takes one sample of all threads of this process except the calling thread.
fn look(role: &impl Fn(i32) -> &'static str) -> io::Result<Vec<Found>> {
    let own = gettid().as_raw_nonzero().get();
    let mut all = Vec::new();
    for task in std::fs::read_dir("/proc/self/task")? {
        let task = task?;
        let Some(tid) = task.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if tid == own {
            continue;
        }
        // Reading fails if the thread has ended since it was listed.
        let read = |name: &str| std::fs::read_to_string(task.path().join(name)).ok();
        let Some(letter) = read("stat").and_then(|stat| fields(&stat)?.next()?.chars().next()) else {
            continue;
        };
        let mut state = ThreadState::of(letter);
        // While the thread runs, the file `wchan` names no function: its content is `0`.
        let frame = read("wchan").map(|frame| frame.trim().to_owned());
        let frame = frame.filter(|frame| state != ThreadState::Running && frame.len() > 1);
        if let (ThreadState::Waiting, Some(frame), Some(syscall)) = (state, &frame, read("syscall"))
            && is_timed(frame, &syscall)
        {
            state = ThreadState::TimedWaiting;
        }
        all.push((role(tid), state, frame));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32};

    use super::*;

    #[test]
    fn a_name_may_look_like_fields() {
        let stat = "1234 (a) R (b c) S 1 2 3 4 5 6 77 8 9\n";
        assert_eq!(fields(stat).unwrap().next(), Some("S"));
        assert_eq!(fields(stat).unwrap().nth(7), Some("77"));
        assert!(fields("1234 a").is_none());
        let mut all = ThreadState::ALL.to_vec();
        all.retain(|state| *state != ThreadState::TimedWaiting);
        assert_eq!(['R', 'S', 'D', 'Z', 't'].map(ThreadState::of)[..], all);
    }

    #[test]
    fn a_time_limit_is_an_argument() {
        assert!(is_timed("hrtimer_nanosleep", "230 0x0 0x0 0x7 0x7 0x0 0x0 0x7 0x7"));
        assert!(is_timed("futex_do_wait", "202 0x5 0x80 0x1 0x7f00 0x0 0x0 0x7 0x7"));
        assert!(!is_timed("futex_do_wait", "202 0x5 0x80 0x1 0x0 0x0 0x0 0x7 0x7"));
        assert!(is_timed("do_epoll_wait", "232 0x5 0x7 0x1 0x3e8 0x0 0x0 0x7 0x7"));
        assert!(!is_timed("ep_poll", "232 0x5 0x7 0x1 0xffffffff 0x0 0x0 0x7 0x7"));
        assert!(!is_timed("ep_poll", "22 0x5 0x7 0x1 0xffffffffffffffff 0x0 0x0 0x7 0x7"));
        assert!(
            !is_timed("wait_woken", "0 0x5 0x7 0x1 0x1 0x0 0x0 0x7 0x7")
                && !is_timed("futex_wait", "running")
        );
    }

    #[test]
    fn a_thread_counts_once() {
        // The counter belongs to the process, but no other test in this process calls `seen`.
        let before = Started::count();
        Started::seen();
        Started::seen();
        assert_eq!(Started::count() - before, 1);
        std::thread::scope(|scope| {
            for _ in 0..7 {
                scope.spawn(|| (0..3).for_each(|_| Started::seen()));
            }
        });
        assert_eq!(Started::count() - before, 8);
    }

    #[test]
    fn what_looks_find_is_added_up() {
        let (waiting, frame) = (ThreadState::Waiting, |name: &str| Some(name.to_owned()));
        let mut samples = Samples::default();
        assert_eq!(samples.mean_alive(), None);
        samples.add([
            ("a", waiting, frame("f")),
            ("a", ThreadState::Running, None),
            ("b", waiting, frame("f")),
        ]);
        samples.add([("b", waiting, frame("g"))]);
        assert_eq!((samples.looks, samples.alive), (2, 4));
        assert_eq!((samples.mean_alive(), samples.part(|found| found.1 == waiting)), (Some(2.0), 0.75));
        assert_eq!(["a", "b", "c"].map(|role| samples.part_of_role(role, waiting)), [0.5, 1.0, 0.0]);
        assert_eq!(samples.part(|found| found.2 == frame("f")), 0.5);
        let waits = ["futex_do_wait", "do_epoll_wait", "wait_woken", "f"].map(wait_of);
        assert_eq!(waits, [Some("futex"), Some("epoll"), Some("socket"), None]);
    }

    #[test]
    fn states_are_found_by_role() {
        static BUSY: AtomicI32 = AtomicI32::new(0);
        static IDLE: AtomicI32 = AtomicI32::new(0);
        static TIMED: AtomicI32 = AtomicI32::new(0);
        static DONE: AtomicBool = AtomicBool::new(false);
        static LOOKS: AtomicU32 = AtomicU32::new(0);
        let barrier = Barrier::new(4);
        let samples = std::thread::scope(|scope| {
            scope.spawn(|| {
                BUSY.store(gettid().as_raw_nonzero().get(), Relaxed);
                barrier.wait();
                while !DONE.load(Relaxed) {
                    std::hint::spin_loop();
                }
            });
            scope.spawn(|| {
                IDLE.store(gettid().as_raw_nonzero().get(), Relaxed);
                barrier.wait();
                barrier.wait();
            });
            scope.spawn(|| {
                TIMED.store(gettid().as_raw_nonzero().get(), Relaxed);
                barrier.wait();
                while !DONE.load(Relaxed) {
                    std::thread::park_timeout(Duration::from_secs(3));
                }
            });
            barrier.wait();
            let role = |tid: i32| match tid {
                _ if tid == BUSY.load(Relaxed) => {
                    LOOKS.fetch_add(1, Relaxed);
                    "busy"
                }
                _ if tid == IDLE.load(Relaxed) => "idle",
                _ if tid == TIMED.load(Relaxed) => "timed",
                _ if tid == gettid().as_raw_nonzero().get() => "sampler",
                _ => "other",
            };
            let sleeps = |tid: &AtomicI32| {
                let stat = std::fs::read_to_string(format!("/proc/self/task/{}/stat", tid.load(Relaxed)));
                stat.unwrap().contains(") S ")
            };
            while ![&IDLE, &TIMED].into_iter().all(sleeps) {
                std::thread::yield_now();
            }
            let sampler = Sampler::start(Duration::from_millis(1), role).unwrap();
            while LOOKS.load(Relaxed) < 20 {
                std::thread::sleep(Duration::from_millis(1));
            }
            let samples = sampler.stop();
            DONE.store(true, Relaxed);
            // Wakes all threads that wait at the barrier, also the one that waits without a time limit.
            for _ in 0..3 {
                scope.spawn(|| barrier.wait());
            }
            samples.unwrap()
        });
        assert!(samples.looks >= 20, "{samples:?}");
        assert_eq!(samples.part_of_role("busy", ThreadState::Running), 1.0, "{samples:?}");
        assert!(samples.part_of_role("idle", ThreadState::Waiting) > 0.5, "{samples:?}");
        assert!(samples.part_of_role("timed", ThreadState::TimedWaiting) > 0.5, "{samples:?}");
        // Both waiting threads wait for a futex, so they are in the kernel's function for futexes. A running thread is
        // in no kernel function.
        for state in [ThreadState::Waiting, ThreadState::TimedWaiting] {
            let is_in_futex = |(_, of, frame): &Found| {
                *of == state && frame.as_ref().is_some_and(|frame| frame.contains("futex"))
            };
            assert!(samples.part(is_in_futex) > 0.0);
        }
        assert_eq!(samples.part(|found| found.1 == ThreadState::Running && found.2.is_some()), 0.0);
        let all: f64 = ThreadState::ALL.iter().map(|state| samples.part(|found| found.1 == *state)).sum();
        assert!((all - 1.0).abs() < 1e-9);
        let of = |role: &str| {
            samples.found.iter().filter(|(found, _)| found.0 == role).map(|(_, n)| n).sum::<u64>()
        };
        assert_eq!((of("sampler"), of("other") > 0), (0, true));
        assert_eq!((of("busy"), of("idle")), (samples.looks, samples.looks));
        // Alive are at least the three threads and the thread that runs this test.
        assert!(samples.mean_alive().unwrap() >= 4.0, "{samples:?}");
    }
}
