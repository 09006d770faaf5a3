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
        let before = sched_getaffinity(None)?;
        let cpu = sched_getcpu();
        let mut one = CpuSet::new();
        one.set(cpu);
        sched_setaffinity(None, &one)?;
        Ok(Self { before, cpu })
    }

    /// Returns the number of that CPU.
    #[must_use]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_and_restores() {
        let before = sched_getaffinity(None).unwrap();
        let pin = Pin::here().unwrap();
        assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
        assert_eq!(sched_getcpu(), pin.cpu());
        drop(pin);
        assert_eq!(sched_getaffinity(None).unwrap(), before);
    }
}
