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

use rustix::thread::gettid;

/// What a thread is found doing. The kernel knows more states; the others are for moments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ThreadState {
    /// On a CPU, or waiting for one (`R`).
    Running,
    /// Waiting for something, with or without a time limit (`S`, `I`).
    Sleeping,
    /// Waiting for something that can't be interrupted, such as a page or another thread's memory map (`D`).
    Blocked,
    /// Ended, and not quite gone (`X`, `Z`).
    Ending,
    /// Stopped, traced, parked, or what a later kernel knows.
    Other,
}

impl ThreadState {
    /// All of them, in order.
    pub const ALL: [Self; 5] = [Self::Running, Self::Sleeping, Self::Blocked, Self::Ending, Self::Other];

    /// The state that proc_pid_stat(5) calls so.
    fn of(letter: char) -> Self {
        match letter {
            'R' => Self::Running,
            'S' | 'I' => Self::Sleeping,
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
    #[must_use]
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
}

impl Samples {
    /// Returns how many threads were alive, on average; `None` if it never looked.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 samples")]
    pub fn mean_alive(&self) -> Option<f64> {
        (self.looks > 0).then(|| self.alive as f64 / self.looks as f64)
    }

    /// Returns the part of a role's samples that were in this state; `None` if there was no sample of the role.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 samples")]
    pub fn part(&self, role: &str, state: ThreadState) -> Option<f64> {
        let of = |state: Option<ThreadState>| -> u64 {
            let all =
                self.states.iter().filter(|((r, s), _)| *r == role && state.is_none_or(|state| state == *s));
            all.map(|(_, n)| n).sum()
        };
        let all = of(None);
        (all > 0).then(|| of(Some(state)) as f64 / all as f64)
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
            let mut samples = Samples { fewest: u64::MAX, ..Samples::default() };
            let mut random = fastrand::Rng::with_seed(0xA7ACE);
            let mut stat = String::new();
            loop {
                // From half of it to one and a half.
                let pause = every.mul_f64(0.5 + random.f64());
                match stopped.recv_timeout(pause) {
                    Err(RecvTimeoutError::Timeout) => look(&mut samples, &role, &mut stat)?,
                    _ => break,
                }
            }
            samples.fewest = samples.fewest.min(samples.most);
            Ok(samples)
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

/// Looks at all threads but the calling one, once.
fn look(samples: &mut Samples, role: &impl Fn(i32) -> &'static str, stat: &mut String) -> io::Result<()> {
    let own = gettid().as_raw_nonzero().get();
    let mut alive = 0;
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
        *samples.states.entry((role(tid), ThreadState::of(letter))).or_default() += 1;
        alive += 1;
    }
    samples.looks += 1;
    samples.alive += alive;
    samples.most = samples.most.max(alive);
    samples.fewest = samples.fewest.min(alive);
    Ok(())
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
        assert_eq!(
            ["R", "S", "D", "Z", "t"].map(|s| ThreadState::of(s.chars().next().unwrap())),
            ThreadState::ALL
        );
    }

    #[test]
    fn faults_are_those_of_the_pages_touched() {
        const PAGES: usize = 2_000;
        // In a thread that ends before they are counted.
        let touch = || {
            // 4096 is the smallest page there is: a larger one faults less often. Written page by page, as zeros
            // are not touched.
            let mut memory = vec![0_u8; PAGES * 4096];
            memory.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
            std::hint::black_box(&memory);
        };
        let before = minor_faults().unwrap();
        std::thread::spawn(touch).join().unwrap();
        let faults = minor_faults().unwrap() - before;
        // Huge pages would make it fewer: 2 MiB each, where the kernel gives them without being asked.
        assert!(faults >= 4, "{faults}");
        assert!(minor_faults().unwrap() >= before + faults);
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
    fn states_are_found_by_role() {
        static BUSY: AtomicI32 = AtomicI32::new(0);
        static IDLE: AtomicI32 = AtomicI32::new(0);
        static DONE: AtomicBool = AtomicBool::new(false);
        let barrier = Barrier::new(3);
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
            barrier.wait();
            let role = |tid: i32| match tid {
                _ if tid == BUSY.load(Relaxed) => "busy",
                _ if tid == IDLE.load(Relaxed) => "idle",
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
            // The two end, and the third waits no more.
            scope.spawn(|| barrier.wait());
            barrier.wait();
            samples.unwrap()
        });
        assert!(samples.looks >= 5, "{samples:?}");
        assert_eq!(samples.part("busy", ThreadState::Running), Some(1.0), "{samples:?}");
        // It may be on its way to sleep at the first.
        assert!(samples.part("idle", ThreadState::Sleeping).unwrap() > 0.5, "{samples:?}");
        assert!(samples.part("nobody", ThreadState::Running).is_none());
        let roles: Vec<_> = samples.roles().collect();
        assert_eq!(roles, ["busy", "idle", "other"]);
        let of =
            |role: &str| samples.states.iter().filter(|((r, _), _)| *r == role).map(|(_, n)| n).sum::<u64>();
        assert_eq!((of("busy"), of("idle")), (samples.looks, samples.looks));
        // These two, and the one that runs this test at least.
        assert!(samples.fewest >= 3 && samples.most >= samples.fewest, "{samples:?}");
        assert!((samples.fewest as f64..=samples.most as f64).contains(&samples.mean_alive().unwrap()));
    }
}
