//! Pins threads to CPUs.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// Keeps the calling thread on one CPU until the `Pin` is dropped. Threads and processes that the thread starts in the
/// meantime also run only on this CPU, and stay there after the `Pin` was dropped.
#[derive(Debug)]
pub struct Pin {
    before: CpuSet,
    /// The number of the CPU on which the thread is kept.
    pub cpu: usize,
}

impl Pin {
    /// Pins the calling thread to the CPU on which it runs.
    ///
    /// # Errors
    ///
    /// Returns the kernel's error.
    pub fn here() -> io::Result<Self> {
        Self::to(sched_getcpu())
    }

    /// Pins the calling thread to the CPU with the number `cpu`.
    ///
    /// # Errors
    ///
    /// Returns the kernel's error.
    pub fn to(cpu: usize) -> io::Result<Self> {
        let before = sched_getaffinity(None)?;
        let mut one = CpuSet::new();
        one.set(cpu);
        sched_setaffinity(None, &one)?;
        Ok(Self { before, cpu })
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        // An error is ignored. The previous set of CPUs was allowed, so setting it can only fail if CPUs were taken
        // away since; then it is harmless that the thread stays pinned.
        let _ = sched_setaffinity(None, &self.before);
    }
}

/// Returns the number of the CPU for the thread with index `place`. Different indices get different CPUs, as long as
/// there are enough CPUs on which the calling thread may run.
///
/// # Errors
///
/// Returns the kernel's error.
pub fn of_place(place: usize) -> io::Result<usize> {
    let allowed = allowed()?;
    allowed.get(place % allowed.len().max(1)).copied().ok_or_else(|| io::Error::other(NONE))
}

/// Returns the number of the last CPU on which the calling thread may run. (Interrupts tend to be handled by the first
/// CPU, so the last CPU is disturbed less.)
///
/// # Errors
///
/// Returns the kernel's error.
pub fn last() -> io::Result<usize> {
    allowed()?.pop().ok_or_else(|| io::Error::other(NONE))
}

const NONE: &str = "this thread is not allowed to run on any CPU";

fn allowed() -> io::Result<Vec<usize>> {
    let allowed = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_is_allowed() {
        let last = last().unwrap();
        let pin = Pin::to(last).unwrap();
        assert_eq!((sched_getcpu(), pin.cpu), (last, last));
    }

    #[test]
    fn pins_and_restores() {
        let before = sched_getaffinity(None).unwrap();
        let pin = Pin::here().unwrap();
        assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
        assert_eq!(sched_getcpu(), pin.cpu);
        drop(pin);
        assert_eq!(sched_getaffinity(None).unwrap(), before);
    }

    #[test]
    fn places_have_a_cpu_each_while_there_are_any() {
        let allowed = sched_getaffinity(None).unwrap();
        let count = allowed.count() as usize;
        let cpus: Vec<_> = (0..2 * count).map(|place| of_place(place).unwrap()).collect();
        assert!(cpus.iter().all(|&cpu| allowed.is_set(cpu)));
        assert!(cpus[..count].is_sorted_by(|a, b| a < b));
        assert_eq!(cpus[..count], cpus[count..]);
        assert_eq!(cpus[count - 1], last().unwrap());
    }
}
