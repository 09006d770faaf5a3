//! Pins threads to CPUs.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// Keeps the calling thread on one CPU until the `Pin` is dropped. The threads and processes that it starts meanwhile
/// stay on this CPU.
#[derive(Debug)]
pub struct Pin {
    before: CpuSet,
    /// The number of the CPU.
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

    /// Pins the calling thread to the CPU of this number.
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
        // The previous set of CPUs was allowed. If a CPU was taken away since, staying pinned is harmless.
        let _ = sched_setaffinity(None, &self.before);
    }
}

/// Returns the CPU for the thread with index `place`. Each index gets another CPU, as long as there are CPUs on which
/// the calling thread may run.
///
/// # Errors
///
/// Returns the kernel's error.
pub fn of_place(place: usize) -> io::Result<usize> {
    let allowed = allowed()?;
    allowed.get(place % allowed.len().max(1)).copied().ok_or_else(|| io::Error::other(NONE))
}

/// Returns the last CPU on which the calling thread may run. (Interrupts tend to be handled by the first
/// CPU.)
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
