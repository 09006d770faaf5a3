//! Clocks, and the cost of reading a clock.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Returns the CPU time that the calling thread has used.
pub fn thread_cpu() -> Duration {
    duration(ClockId::ThreadCPUTime)
}

/// Returns the CPU time that all threads of this process have used.
pub fn process_cpu() -> Duration {
    duration(ClockId::ProcessCPUTime)
}

fn duration(of: ClockId) -> Duration {
    let t = clock_gettime(of);
    // Neither the seconds nor the nanoseconds are negative.
    Duration::new(t.tv_sec.unsigned_abs(), u32::try_from(t.tv_nsec).unwrap_or(0))
}

/// Returns the shortest time that [`Instant`] can measure: the median difference of two consecutive readings.
///
/// A period of measuring must take much longer than this time.
pub fn timer_floor() -> Duration {
    let mut pairs: Vec<Duration> = (0..1001)
        .map(|_| {
            let start = Instant::now();
            start.elapsed()
        })
        .collect();
    pairs.sort_unstable();
    pairs[pairs.len() / 2]
}

/// Returns how many nanoseconds a reading of the clock takes. The result is the minimum of 30 means of a thousand
/// readings each, because other work on the processor can only make a mean larger.
pub fn reading() -> f64 {
    const READINGS: u32 = 1000;
    let mean = |_| {
        let start = Instant::now();
        for _ in 1..READINGS {
            std::hint::black_box(Instant::now());
        }
        start.elapsed().as_secs_f64() * 1e9 / f64::from(READINGS)
    };
    (0..30).map(mean).fold(f64::INFINITY, f64::min)
}

/// Returns a closure that calls `run`, and returns the duration of the call.
pub fn timed(mut run: impl FnMut(u64)) -> impl FnMut(u64) -> Duration {
    move |n| {
        let start = Instant::now();
        run(n);
        start.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_time_passes_only_while_working() {
        let start = thread_cpu();
        std::thread::sleep(Duration::from_millis(20));
        let slept = thread_cpu() - start;
        assert!(slept < Duration::from_millis(10), "{slept:?}");
        while thread_cpu() - start < Duration::from_millis(20) {}
    }

    #[test]
    fn the_timer_is_finer_than_a_slice() {
        assert!(timer_floor() < Duration::from_micros(20));
        assert!((0.5..20_000.0).contains(&reading()));
    }
}
