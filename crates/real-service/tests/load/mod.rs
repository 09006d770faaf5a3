//! Programs that end right after writing their events, on a busy machine. Two tests record them: one uses the service
//! of the command `atrace`, the other Perfetto's own service.

#![allow(unreachable_pub, reason = "it is a module of two test programs")]

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use atrace::{AtraceTag, atrace_begin_args, atrace_end, begin_scoped_event};

/// Returns how many events program `number` writes: 200 to 2,000.
pub fn events(number: usize) -> usize {
    200 + number * 7_919 % 451 * 4
}

fn write(events: usize) {
    for number in 0..events / 2 {
        if number % 2 == 0 {
            drop(begin_scoped_event(AtraceTag::App, "scope"));
        } else {
            atrace_begin_args(AtraceTag::App, format_args!("slice {number}"), &[]);
            atrace_end(AtraceTag::App);
        }
    }
}

/// Forks a child that writes this number of events, calls `at_end`, and ends at once.
#[expect(unsafe_code, reason = "forks as C programs do")]
fn write_in_child(events: usize, at_end: fn()) {
    // SAFETY: the child only traces, which a forked child may do, and ends.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            write(events);
            at_end();
            libc::_exit(0);
        }
        let mut status = 1;
        libc::waitpid(child, &raw mut status, 0);
        assert_eq!((child > 0, status), (true, 0), "the child failed");
    }
}

/// Writes the events of program `number`, and calls `at_end` in each of its processes. `number` determines which
/// threads and processes write the events.
pub fn write_all(number: usize, at_end: fn()) {
    let (all, quarter) = (events(number), events(number) / 4 / 2 * 2);
    match number % 4 {
        0 => write(all),
        1 => {
            let threads = [quarter, quarter, quarter, all - 3 * quarter];
            let threads = threads.map(|events| std::thread::spawn(move || write(events)));
            threads.into_iter().for_each(|thread| thread.join().expect("it ends"));
        }
        2 => {
            write(quarter);
            for events in [quarter, quarter, all - 3 * quarter] {
                write_in_child(events, at_end);
            }
        }
        // Forks a child before the parent's first event, and then more children on several threads at once.
        _ => {
            write_in_child(quarter, at_end);
            let threads = [quarter, quarter];
            let threads = threads.map(|events| std::thread::spawn(move || write_in_child(events, at_end)));
            threads.into_iter().for_each(|thread| thread.join().expect("it ends"));
            write(all - 3 * quarter);
        }
    }
    at_end();
}

/// Load on the machine during a test, until the `Busy` is dropped.
#[derive(Debug)]
pub struct Busy {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Busy {
    /// Starts this many threads that never sleep, and a compiler that runs repeatedly.
    pub fn start(neighbours: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let spin = |stop: &AtomicBool| {
            while !stop.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        };
        let start = |work: fn(&AtomicBool)| {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || work(&stop))
        };
        let threads = (0..neighbours).map(|_| start(spin)).chain([start(compile)]).collect();
        Self { stop, threads }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

fn compile(stop: &AtomicBool) {
    let Ok(directory) = tempfile::tempdir() else { return };
    let source = directory.path().join("source.rs");
    let function = |number| {
        format!(
            "pub fn f{number}(x: &[u64]) -> String {{ x.iter().map(|y| format!(\"{{}}\", y % {number})).collect() }}\n"
        )
    };
    if std::fs::write(&source, (1..400).map(function).collect::<String>()).is_err() {
        return;
    }
    while !stop.load(Ordering::Relaxed) && compile_once(&source, directory.path(), stop) {}
}

/// Compiles a source file once. Returns false if there is no compiler.
fn compile_once(source: &Path, directory: &Path, stop: &AtomicBool) -> bool {
    let mut command = Command::new(option_env!("RUSTC").unwrap_or("rustc"));
    command.args(["-O", "--crate-type=lib", "--out-dir"]).arg(directory).arg(source);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let Ok(mut compiler) = command.spawn() else { return false };
    while matches!(compiler.try_wait(), Ok(None)) {
        if stop.load(Ordering::Relaxed) {
            let _ = compiler.kill();
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

/// Returns the number of programs to record, and the number of busy threads.
pub fn size() -> (usize, usize) {
    if std::env::var_os("ATRACE_LONG_TESTS").is_some() { (1000, 30) } else { (30, 4) }
}

/// Calls `run` with the number of each program, several at once. Returns the sum of the results.
pub fn all(run: impl Fn(usize) -> usize + Sync) -> usize {
    let (programs, neighbours) = size();
    let _busy = Busy::start(neighbours);
    let (next, sum) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= programs {
                        return;
                    }
                    sum.fetch_add(run(number), Ordering::Relaxed);
                }
            });
        }
    });
    sum.into_inner()
}
