//! Measures the speed of the processors that a service uses. The measure is the processor time of a fixed piece of
//! work, the *reference work*.
//!
//! A thread does the reference work at intervals, on the processors on which the service may run. The work is to write
//! to a pipe and to read from it. This work uses the kernel and memory, because the time of a service depends on these,
//! and on the neighbours of a virtual machine, as much as on the processor's clock. Before each piece of work, some of
//! the work is done without being measured. So the measured time does not depend on the contents of the caches, which
//! tracing changes.

use std::io::{Read as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::Builder;
use std::time::Duration;

use atrace_sys::timer::thread_time;
use rustix::process::Pid;
use rustix::thread::{sched_getaffinity, sched_setaffinity};

use crate::command::terminal::{Result, failed};

/// The pause between two pieces of work.
const PAUSE: Duration = Duration::from_millis(10);
/// The number of round trips through the pipe in a piece of work. All round trips together take about 50 µs.
const TRIPS: u32 = 100;
/// The number of unmeasured round trips before each piece of work.
const BEFORE: u32 = 20;

/// The reference work that was done so far: its processor time in nanoseconds, and the number of its pieces. Dropping
/// the `Reference` ends the work.
pub(super) struct Reference(Arc<[AtomicU64; 2]>);

impl Reference {
    /// Starts the reference work on the processors of `service`.
    pub(super) fn start(service: Pid) -> Result<Self> {
        let done = Arc::new([const { AtomicU64::new(0) }; 2]);
        let ((mut reader, mut writer), work) = (std::io::pipe()?, Arc::clone(&done));
        let mut trips = move |number| {
            let mut bytes = [0; 256];
            for _ in 0..number {
                let _ = writer.write(&bytes).and_then(|_| reader.read(&mut bytes));
            }
        };
        let repeat = move || {
            let mut cpus = None;
            while Arc::strong_count(&work) > 1 {
                std::thread::sleep(PAUSE);
                // A service may choose its processors after its start, as with `taskset`.
                let of_service = sched_getaffinity(Some(service)).ok();
                if cpus != of_service {
                    cpus = of_service;
                    let _ = cpus.map(|cpus| sched_setaffinity(None, &cpus));
                }
                trips(BEFORE);
                let begin = thread_time();
                trips(TRIPS);
                let spent = begin.zip(thread_time()).map_or(0, |(begin, end)| end - begin);
                work[0].fetch_add(spent, Ordering::Relaxed);
                work[1].fetch_add(1, Ordering::Relaxed);
            }
        };
        Builder::new().spawn(repeat).map_err(failed("starting a thread"))?;
        Ok(Self(done))
    }

    /// Returns the processor time of all work so far, in nanoseconds, and the number of pieces.
    pub(super) fn done(&self) -> [f64; 2] {
        [0, 1].map(|at| self.0[at].load(Ordering::Relaxed) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_measured_until_its_end() {
        let reference = Reference::start(rustix::process::getpid()).unwrap();
        while reference.done()[1] < 3.0 {
            std::thread::sleep(PAUSE);
        }
        let [spent, pieces] = reference.done();
        // A round trip of the reference work consists of two system calls.
        assert!(spent > pieces * f64::from(TRIPS) * 10.0, "{spent} {pieces}");
        let work = Arc::downgrade(&reference.0);
        drop(reference);
        while work.strong_count() > 0 {
            std::thread::sleep(PAUSE);
        }
    }
}
