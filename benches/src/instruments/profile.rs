//! What the kernel says of this process while it runs: its threads, what they are doing, the pages it touches.
//!
//! [`Sampler`] looks at all threads again and again and counts in which state it finds them, as a sampling profiler
//! does; [`minor_faults`] is exact; [`Started`] counts the threads that ever ran something, exactly, from within.
//! Everything is read from `/proc`, so it needs no rights, and Android has it too.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::thread::{disable_transparent_huge_pages, gettid, transparent_huge_pages_are_disabled};

/// What a thread is found doing. The kernel knows more states; the others are for moments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ThreadState {
    /// On a CPU, or waiting for one (`R`).
    Running,
    /// Waiting for something, without a time limit, or without one that can be read (`S`, `I`).
    Waiting,
    /// Waiting for something, with a time limit.
    TimedWaiting,
    /// Waiting for something that can't be interrupted, such as a page or another thread's memory map (`D`).
    Blocked,
    /// Ended, and not quite gone (`X`, `Z`).
    Ending,
    /// Stopped, traced, parked, or what a later kernel knows.
    Other,
}

impl ThreadState {
    /// All of them, in order.
    pub const ALL: [Self; 6] =
        [Self::Running, Self::Waiting, Self::TimedWaiting, Self::Blocked, Self::Ending, Self::Other];

    /// Java's name of it, where it has one.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Running => "RUNNABLE",
            Self::Waiting => "WAITING",
            Self::TimedWaiting => "TIMED_WAITING",
            Self::Blocked => "BLOCKED",
            Self::Ending => "ENDING",
            Self::Other => "OTHER",
        }
    }

    /// The state that proc_pid_stat(5) calls so.
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

/// The fields of a `stat` file from the state on, which is the third. The name before it may have spaces and
/// parentheses of its own.
fn fields(stat: &str) -> Option<impl Iterator<Item = &str>> {
    Some(stat.rsplit_once(')')?.1.split_ascii_whitespace())
}

/// Tells whether a thread that waits in this function of the kernel, for what its `syscall` file says, does so with a time limit:
/// in a sleep; for a futex whose fourth argument is a time; for epoll whose fourth is a number of milliseconds and not -1.
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

/// Returns how many page faults this process has had that needed no input or output, those of threads that have ended
/// included. Allocates nothing.
///
/// # Errors
///
/// What the system answered, or `InvalidData`, where `/proc/self/stat` is not as in proc_pid_stat(5).
pub fn minor_faults() -> io::Result<u64> {
    // On the stack: allocations are counted meanwhile, too. It is 52 numbers and a name.
    let mut stat = [0; 2048];
    let read = std::fs::File::open("/proc/self/stat")?.read(&mut stat)?;
    let stat = std::str::from_utf8(&stat[..read]).unwrap_or_default();
    // The tenth.
    let faults = fields(stat).and_then(|mut fields| fields.nth(7)?.parse().ok());
    faults.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("/proc/self/stat: {stat:?}")))
}

/// Touches so many pages that nobody has touched before, each of which is a minor fault where there are no [huge
/// pages](without_huge_pages): what [`minor_faults`] is proved with.
pub fn touch(pages: usize) {
    let page = rustix::param::page_size();
    // More than glibc's allocator keeps for itself, so of the kernel each time. Zeros are not touched.
    let mut memory = vec![0_u8; (pages * page).max(48 << 20)];
    memory.iter_mut().step_by(page).take(pages).for_each(|byte| *byte = 1);
    std::hint::black_box(&memory);
}

/// Runs `f` while this process gets no huge pages, which would be touched as one.
///
/// # Errors
///
/// What the kernel answered.
pub fn without_huge_pages<R>(f: impl FnOnce() -> R) -> io::Result<R> {
    let before = transparent_huge_pages_are_disabled()?;
    disable_transparent_huge_pages(true)?;
    let result = f();
    disable_transparent_huge_pages(before)?;
    Ok(result)
}

/// Counts the threads that ran something: each calls [`seen`](Self::seen) whenever it does, and counts once.
///
/// It costs a thread-local load, and an atomic addition the first time.
#[derive(Debug)]
pub struct Started;

static STARTED: AtomicU64 = AtomicU64::new(0);
thread_local! {
    static SEEN: Cell<bool> = const { Cell::new(false) };
}

impl Started {
    /// Counts the calling thread, unless it was.
    #[inline]
    pub fn seen() {
        if !SEEN.replace(true) {
            STARTED.fetch_add(1, Relaxed);
        }
    }

    /// Returns how many threads of this process have been seen so far.
    pub fn count() -> u64 {
        STARTED.load(Relaxed)
    }
}

/// What a [`Sampler`] saw.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Samples {
    /// How often it looked.
    pub looks: u64,
    /// Threads that were alive, added over all looks.
    pub alive: u64,
    /// The most and the fewest threads that were alive at a look.
    pub most: u64,
    /// See `most`.
    pub fewest: u64,
    /// How often a thread of a role was found in a state.
    pub states: BTreeMap<(&'static str, ThreadState), u64>,
    /// How often a thread was found in a state in this function of the kernel: the top frame that its own user may read.
    pub frames: BTreeMap<(ThreadState, String), u64>,
}

impl Samples {
    /// Adds a look: of each thread its role, its state, and where it is in the kernel, if anybody can tell.
    pub fn add(&mut self, found: impl IntoIterator<Item = Found>) {
        let mut alive = 0;
        for (role, state, frame) in found {
            *self.states.entry((role, state)).or_default() += 1;
            if let Some(frame) = frame {
                *self.frames.entry((state, frame)).or_default() += 1;
            }
            alive += 1;
        }
        self.fewest = if self.looks == 0 { alive } else { self.fewest.min(alive) };
        self.most = self.most.max(alive);
        self.alive += alive;
        self.looks += 1;
    }

    /// Returns how many threads were alive, on average; `None` if it never looked.
    pub fn mean_alive(&self) -> Option<f64> {
        (self.looks > 0).then(|| self.alive as f64 / self.looks as f64)
    }

    /// Returns the part of a role's samples that were in this state; `None` if there was no sample of the role.
    pub fn part(&self, role: &str, state: ThreadState) -> Option<f64> {
        let of = |state: Option<ThreadState>| -> u64 {
            let all =
                self.states.iter().filter(|((r, s), _)| *r == role && state.is_none_or(|state| state == *s));
            all.map(|(_, n)| n).sum()
        };
        let all = of(None);
        (all > 0).then(|| of(Some(state)) as f64 / all as f64)
    }

    /// Returns the part of all samples that were in this state; `None` if there was none.
    pub fn part_of_all(&self, state: ThreadState) -> Option<f64> {
        let of = self.states.iter().filter(|((_, s), _)| *s == state).map(|(_, n)| n).sum::<u64>();
        (self.alive > 0).then(|| of as f64 / self.alive as f64)
    }

    /// Returns the part of all samples that were in this state and function of the kernel.
    pub fn frames(&self) -> impl Iterator<Item = (ThreadState, &str, f64)> {
        self.frames.iter().map(|((state, frame), n)| (*state, &frame[..], *n as f64 / self.alive as f64))
    }

    /// Returns the roles that were seen.
    pub fn roles(&self) -> impl Iterator<Item = &'static str> {
        let mut last = None;
        self.states.keys().filter_map(move |(role, _)| (last.replace(*role) != Some(*role)).then_some(*role))
    }
}

/// A thread that looks at all others of the process, about so often, until it is [stopped](Sampler::stop).
///
/// It allocates and takes CPU time: neither is to be counted meanwhile. Itself it does not count.
#[derive(Debug)]
pub struct Sampler {
    stop: Sender<()>,
    thread: JoinHandle<io::Result<Samples>>,
}

impl Sampler {
    /// Starts it. The pauses are random around `every`, so that it does not walk in step with what it looks at.
    /// `role` says of a thread's number whose samples its are.
    ///
    /// # Errors
    ///
    /// What the system answered when a thread was to be started.
    pub fn start(every: Duration, role: impl Fn(i32) -> &'static str + Send + 'static) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let thread = std::thread::Builder::new().name("sampler".into()).spawn(move || {
            let mut samples = Samples::default();
            let mut random = fastrand::Rng::with_seed(0xA7ACE);
            let mut stat = String::new();
            loop {
                // From half of it to one and a half.
                let pause = every.mul_f64(0.5 + random.f64());
                let is_over = stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout);
                // Once at least.
                if !is_over || samples.looks == 0 {
                    samples.add(look(&role, &mut stat)?);
                }
                if is_over {
                    return Ok(samples);
                }
            }
        })?;
        Ok(Self { stop, thread })
    }

    /// Ends it and returns what it saw.
    ///
    /// # Errors
    ///
    /// What the system answered when `/proc/self/task` was to be read.
    pub fn stop(self) -> io::Result<Samples> {
        // It is gone only after an error, which it returns.
        let _ = self.stop.send(());
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// What a look finds of a thread: its role, its state, and the function of the kernel that it is in.
type Found = (&'static str, ThreadState, Option<String>);

/// Looks at all threads but the calling one, once.
fn look(role: &impl Fn(i32) -> &'static str, stat: &mut String) -> io::Result<Vec<Found>> {
    let own = gettid().as_raw_nonzero().get();
    let mut all = Vec::new();
    for task in std::fs::read_dir("/proc/self/task")? {
        let task = task?;
        let Some(tid) = task.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if tid == own {
            continue;
        }
        stat.clear();
        // It may have ended since it was listed.
        let read =
            std::fs::File::open(task.path().join("stat")).and_then(|mut file| file.read_to_string(stat));
        let Some(letter) = read.ok().and_then(|_| fields(stat)?.next()?.chars().next()) else { continue };
        let mut state = ThreadState::of(letter);
        let mut read = |name: &str| {
            stat.clear();
            let file = std::fs::File::open(task.path().join(name));
            file.and_then(|mut file| file.read_to_string(stat)).map(|_| stat.trim().to_owned())
        };
        // Nothing stands there while it runs; and it may run by now.
        let frame = read("wchan").ok().filter(|frame| state != ThreadState::Running && frame.len() > 1);
        if let (ThreadState::Waiting, Some(frame), Ok(syscall)) = (state, &frame, read("syscall"))
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
    use std::sync::atomic::{AtomicBool, AtomicI32};
    use std::time::Instant;

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
        // Other tests of this process don't call `seen`.
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
        assert_eq!((samples.looks, samples.alive, samples.fewest, samples.most), (2, 4, 1, 3));
        assert_eq!((samples.mean_alive(), samples.part_of_all(waiting)), (Some(2.0), Some(0.75)));
        assert_eq!((samples.part("a", waiting), samples.part("b", waiting)), (Some(0.5), Some(1.0)));
        assert_eq!(samples.frames().collect::<Vec<_>>(), [(waiting, "f", 0.5), (waiting, "g", 0.25)]);
        assert_eq!(samples.roles().collect::<Vec<_>>(), ["a", "b"]);
    }

    #[test]
    fn states_are_found_by_role() {
        static BUSY: AtomicI32 = AtomicI32::new(0);
        static IDLE: AtomicI32 = AtomicI32::new(0);
        static TIMED: AtomicI32 = AtomicI32::new(0);
        static DONE: AtomicBool = AtomicBool::new(false);
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
                _ if tid == BUSY.load(Relaxed) => "busy",
                _ if tid == IDLE.load(Relaxed) => "idle",
                _ if tid == TIMED.load(Relaxed) => "timed",
                _ if tid == gettid().as_raw_nonzero().get() => "sampler",
                _ => "other",
            };
            let sampler = Sampler::start(Duration::from_millis(1), role).unwrap();
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(200) {
                std::thread::sleep(Duration::from_millis(10));
            }
            let samples = sampler.stop();
            DONE.store(true, Relaxed);
            // The one that waits without a limit goes on, too.
            for _ in 0..3 {
                scope.spawn(|| barrier.wait());
            }
            samples.unwrap()
        });
        assert!(samples.looks >= 5, "{samples:?}");
        assert_eq!(samples.part("busy", ThreadState::Running), Some(1.0), "{samples:?}");
        // It may be on its way to sleep at the first.
        assert!(samples.part("idle", ThreadState::Waiting).unwrap() > 0.5, "{samples:?}");
        assert!(samples.part("timed", ThreadState::TimedWaiting).unwrap() > 0.5, "{samples:?}");
        // Both wait for a futex, and nobody is anywhere while it runs.
        for state in [ThreadState::Waiting, ThreadState::TimedWaiting] {
            assert!(
                samples
                    .frames()
                    .any(|(of, frame, part)| of == state && frame.contains("futex") && part > 0.0)
            );
        }
        assert!(samples.frames().all(|(state, ..)| state != ThreadState::Running), "{samples:?}");
        let all: f64 = ThreadState::ALL.iter().filter_map(|state| samples.part_of_all(*state)).sum();
        assert!((all - 1.0).abs() < 1e-9);
        assert!(samples.part("nobody", ThreadState::Running).is_none());
        let roles: Vec<_> = samples.roles().collect();
        assert_eq!(roles, ["busy", "idle", "other", "timed"]);
        let of =
            |role: &str| samples.states.iter().filter(|((r, _), _)| *r == role).map(|(_, n)| n).sum::<u64>();
        assert_eq!((of("busy"), of("idle")), (samples.looks, samples.looks));
        // These three, and the one that runs this test at least.
        assert!(samples.fewest >= 4 && samples.most >= samples.fewest, "{samples:?}");
        assert!((samples.fewest as f64..=samples.most as f64).contains(&samples.mean_alive().unwrap()));
    }
}
