//! The resources that another process uses: processor time, memory, and instructions.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;

use crate::system::{Descriptor, c, clock_time, zeros};

/// The resources that a process has used, including those of the children for which it waited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The processor time in nanoseconds, both in the program's code and in the kernel on behalf of the program. If
    /// children are included, or [`wait`] was called before the process had ended, the resolution is a microsecond.
    pub processor_ns: u64,
    /// The number of page faults.
    pub faults: u64,
    /// The number of context switches.
    pub switches: u64,
    /// The largest resident size that the process, or one of the children for which it waited, has had, in KiB.
    pub peak_kib: u64,
}

/// Returns the processor time of a process in nanoseconds, without the time of its children. The time includes the time
/// of threads that have ended. A process that has ended still has a processor time until its parent waits for it.
///
/// # Errors
///
/// Returns `EINVAL` if there is no such process.
pub fn processor_time(process: u32) -> io::Result<u64> {
    // The kernel's number of a process's clock consists of the inverted process id, shifted by three bits, and 2 for
    // the scheduler's precise time.
    let clock = !(process as libc::clockid_t) << 3 | 2;
    clock_time(clock, true).ok_or_else(io::Error::last_os_error)
}

/// Waits until a child has ended. Returns the child's status, encoded as by `wait(2)`, and the resources that the child
/// has used.
///
/// # Errors
///
/// Returns `ECHILD` if this process has no such child.
pub fn wait(child: u32) -> io::Result<(i32, Usage)> {
    // The child's own clock counts nanoseconds. `wait4` reports microseconds and includes the child's children.
    let own_ns = processor_time(child).unwrap_or_default();
    let (mut status, mut usage) = (0, zeros::<libc::rusage>());
    while let Err(e) = c::wait4(child as i32, &mut status, &mut usage) {
        if e.0 != libc::EINTR {
            return Err(io::Error::from_raw_os_error(e.0));
        }
    }
    let micros = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
    let all_ns = (micros(usage.ru_utime) + micros(usage.ru_stime)) * 1000;
    let used = Usage {
        processor_ns: own_ns.max(all_ns),
        faults: usage.ru_minflt as u64 + usage.ru_majflt as u64,
        switches: usage.ru_nvcsw as u64 + usage.ru_nivcsw as u64,
        peak_kib: usage.ru_maxrss as u64,
    };
    Ok((status, used))
}

/// A counter of the instructions of the processes that the calling thread starts, and of their children.
///
/// In each process, the counting begins when the process executes a program. The count still includes the instructions
/// of a process after the process has ended.
#[derive(Debug)]
pub struct Instructions(File);

impl Instructions {
    /// Starts to count. If the system does not let this user count instructions in the kernel, only instructions
    /// outside the kernel are counted.
    ///
    /// # Errors
    ///
    /// Returns `ENOENT` if the processor has no such counter, as in most virtual machines, and `EACCES` if the system
    /// forbids this user to count (see `perf_event_paranoid`).
    pub fn of_children() -> io::Result<Self> {
        Self::open(0, 1)
    }

    /// Opens a counter. `linux/perf_event.h` lists the types and events of counters.
    fn open(kind: u32, event: u64) -> io::Result<Self> {
        const CLOSE_ON_EXEC: i32 = 8;
        // The counter is disabled at first, is inherited by children, does not count in the hypervisor, and is enabled
        // by `exec`.
        const FLAGS: u64 = 1 | 1 << 1 | 1 << 6 | 1 << 12;
        const NO_KERNEL: u64 = 1 << 5;
        let first = u64::from_ne_bytes({
            let [size, kind] = [64_u32, kind].map(u32::to_ne_bytes);
            [kind, size].concat().try_into().unwrap_or_default()
        });
        let with = |flags: u64| c::perf_event_open(&[first, event, 0, 0, 0, flags, 0, 0], CLOSE_ON_EXEC);
        let opened = with(FLAGS).or_else(|_| with(FLAGS | NO_KERNEL));
        let fd = opened.map_err(|e| io::Error::from_raw_os_error(e.0))?;
        Ok(Self(OwnedFd::from(Descriptor::new(fd)).into()))
    }

    /// Returns the number of instructions counted so far.
    ///
    /// # Errors
    ///
    /// Returns the system's error if the counter can't be read.
    pub fn read(&self) -> io::Result<u64> {
        let mut count = [0; 8];
        (&self.0).read_exact(&mut count)?;
        Ok(u64::from_ne_bytes(count))
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    fn child(script: &str) -> u32 {
        Command::new("sh").args(["-c", script]).stdout(Stdio::null()).spawn().unwrap().id()
    }

    #[test]
    fn a_childs_time_is_known_until_it_is_waited_for() {
        let process = child("i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; exit 3");
        let known = processor_time(process).unwrap();
        let (status, usage) = wait(process).unwrap();
        assert_eq!(status, 3 << 8);
        assert!(usage.processor_ns >= known, "{usage:?} {known}");
        assert!(usage.processor_ns > 100_000 && usage.faults > 10 && usage.peak_kib > 100, "{usage:?}");
        assert!(processor_time(process).is_err() && wait(process).is_err());
        assert!(processor_time(std::process::id()).unwrap() > 0);
    }

    #[test]
    fn children_of_a_child_are_included() {
        let loops = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done";
        let [alone, nested] = [loops.to_owned(), format!("(sh -c '{loops}'); :")].map(|script| {
            let (_, usage) = wait(child(&script)).unwrap();
            usage.processor_ns
        });
        assert!(nested > alone / 4, "{nested} {alone}");
    }

    #[test]
    fn a_counter_sees_the_programs_that_are_started() {
        // The arguments select page faults, which every kernel counts itself, without a counter of the processor.
        let Ok(counter) = Instructions::open(1, 2) else {
            // `eprintln!` is not used, because libtest hides its output.
            let _ = std::io::Write::write_all(
                &mut std::io::stderr(),
                b"skipped: this user may not count events\n",
            );
            return;
        };
        assert_eq!(counter.read().unwrap(), 0);
        wait(child("(sh -c :)")).unwrap();
        assert!(counter.read().unwrap() > 20);
    }
}
