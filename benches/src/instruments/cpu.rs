//! Staying on one CPU.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// Keeps the calling thread, and the threads and processes it starts, on one CPU until dropped.
#[derive(Debug)]
pub struct Pin {
    before: CpuSet,
    cpu: usize,
}

impl Pin {
    /// Pins the calling thread to the CPU it runs on.
    ///
    /// # Errors
    ///
    /// What the kernel answered.
    pub fn here() -> io::Result<Self> {
        Self::to(sched_getcpu())
    }

    /// Pins the calling thread to the CPU of this number.
    ///
    /// # Errors
    ///
    /// What the kernel answered.
    pub fn to(cpu: usize) -> io::Result<Self> {
        let before = sched_getaffinity(None)?;
        let mut one = CpuSet::new();
        one.set(cpu);
        sched_setaffinity(None, &one)?;
        Ok(Self { before, cpu })
    }

    /// Returns the number of that CPU.
    pub fn cpu(&self) -> usize {
        self.cpu
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        // It was allowed before; if a CPU was taken away since, staying is harmless.
        let _ = sched_setaffinity(None, &self.before);
    }
}

/// Returns the number of the CPU for the thread of this place among several: another one for each, as long as there are
/// CPUs that the calling thread may run on.
///
/// # Errors
///
/// What the kernel answered.
pub fn of_place(place: usize) -> io::Result<usize> {
    let allowed = sched_getaffinity(None)?;
    let count = usize::try_from(allowed.count()).unwrap_or(0).max(1);
    let all = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu));
    all.cycle().nth(place % count).ok_or_else(|| io::Error::other("this thread may run on no CPU"))
}

/// Returns the number of the last CPU that the calling thread may run on: interrupts rather go to the first.
///
/// # Errors
///
/// What the kernel answered.
pub fn last() -> io::Result<usize> {
    let allowed = sched_getaffinity(None)?;
    let last = (0..CpuSet::MAX_CPU).rev().find(|&cpu| allowed.is_set(cpu));
    last.ok_or_else(|| io::Error::other("this thread may run on no CPU"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_is_allowed() {
        let last = last().unwrap();
        let pin = Pin::to(last).unwrap();
        assert_eq!((sched_getcpu(), pin.cpu()), (last, last));
    }

    #[test]
    fn pins_and_restores() {
        let before = sched_getaffinity(None).unwrap();
        let pin = Pin::here().unwrap();
        assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
        assert_eq!(sched_getcpu(), pin.cpu());
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
