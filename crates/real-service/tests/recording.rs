//! Tests a process that records itself with `record_to`.
#![cfg(not(no_tracing))]
#![expect(unsafe_code, reason = "a program that forks")]

use std::process::Command;

use atrace::{AtraceTag, atrace_begin, atrace_end, atrace_instant, perfetto};
use atrace_real_service::{Trace, processed};

/// Runs this test again in a separate process. Returns `None` in that process.
fn program(test: &str) -> Option<(tempfile::TempDir, u32)> {
    if std::env::var_os("DIRECTORY").is_some() {
        return None;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture"]).env("DIRECTORY", directory.path());
    command.env("ATRACE_BACKEND", "none");
    let mut child = command.spawn().unwrap();
    assert!(child.wait().unwrap().success());
    Some((directory, child.id()))
}

fn place(name: &str) -> std::path::PathBuf {
    std::path::Path::new(&std::env::var_os("DIRECTORY").unwrap()).join(name)
}

#[test]
fn a_process_records_itself_twice() {
    let Some((directory, pid)) = program("a_process_records_itself_twice") else {
        assert!(!atrace::atrace_is_tag_enabled(AtraceTag::App));
        atrace_instant(AtraceTag::App, "before");
        for name in ["first", "second"] {
            let recording = perfetto::record_to(place(name)).unwrap();
            assert!(atrace::atrace_is_tag_enabled(AtraceTag::View));
            assert!(perfetto::record_to(place("third")).is_err());
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        for number in 0..300 {
                            atrace_begin(AtraceTag::App, name);
                            atrace::atrace_int(AtraceTag::App, "number", number);
                            atrace_end(AtraceTag::App);
                        }
                    });
                }
            });
            // This slice is open when the recording ends.
            let open = atrace::begin_scoped_event(AtraceTag::View, "open");
            recording.finish().unwrap();
            assert!(!atrace::atrace_is_tag_enabled(AtraceTag::View));
            drop(open);
            atrace_instant(AtraceTag::App, "not recorded");
        }
        let recording = perfetto::record_to(place("parent")).unwrap();
        // SAFETY: the child traces, and ends without returning.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let is_done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                atrace_instant(AtraceTag::App, "child's");
                drop(recording);
            }));
            // SAFETY: no preconditions; ends the child at once.
            unsafe { libc::_exit(is_done.is_err().into()) };
        }
        let mut status = 0;
        // SAFETY: `status` is writable.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        atrace_instant(AtraceTag::App, "parent's");
        return;
    };
    for name in ["first", "second"] {
        let path = directory.path().join(name);
        let trace = Trace::open(&path);
        let events = trace.events();
        assert!(events.iter().all(|event| event.pid == u64::from(pid)));
        let named =
            |wanted: &str| events.iter().filter(|one| one.name.as_deref() == Some(wanted.as_bytes())).count();
        assert_eq!((named(name), named("open"), named("not recorded")), (1200, 1, 0));
        assert_eq!(events.iter().filter(|event| event.kind == 2).count(), 1200);
        assert_eq!(events.iter().filter_map(|event| event.value).sum::<i64>(), 4 * (299 * 300 / 2));
        let wrong = "select name, value from stats where severity in ('error', 'data_loss') and value > 0";
        let threads = "select count(distinct utid), count(*) from thread_track join slice on slice.track_id = thread_track.id";
        if let Some(answers) = processed(&path, &[wrong, threads]) {
            assert!(answers[0].ends_with("\"rows\":[]}"), "{answers:?}");
            assert!(answers[1].ends_with("\"rows\":[[5,1201]]}"), "{answers:?}");
        }
    }
    let names: Vec<_> = Trace::open(&directory.path().join("parent"))
        .events()
        .into_iter()
        .filter_map(|event| event.name)
        .collect();
    assert_eq!(names, [b"parent's"]);
}

/// Tests a program with so many thread keys that glibc would have to allocate memory for the value of one more key.
#[test]
#[cfg(target_env = "gnu")]
fn a_threads_first_event_allocates_nothing_whatever_keys_there_are() {
    const TEST: &str = "a_threads_first_event_allocates_nothing_whatever_keys_there_are";
    let Some((directory, _)) = program(TEST) else {
        for _ in 0..40 {
            let mut key = 0;
            // SAFETY: `key` is writable, and there is no destructor.
            assert_eq!(unsafe { libc::pthread_key_create(&raw mut key, None) }, 0);
        }
        let recording = perfetto::record_to(place("keys")).unwrap();
        // SAFETY: no preconditions.
        let used = || unsafe { libc::mallinfo2() }.uordblks;
        let first = move || {
            // Makes a first allocation, because the allocator needs further memory at a thread's first allocation.
            drop(std::hint::black_box(vec![1_u8; 100]));
            let before = used();
            atrace_instant(AtraceTag::App, "first");
            assert_eq!(used(), before);
        };
        for _ in 0..3 {
            std::thread::spawn(first).join().unwrap();
        }
        // Long enough for the library to notice the ends of threads and to free their slots.
        std::thread::sleep(std::time::Duration::from_millis(2_500));
        std::thread::spawn(first).join().unwrap();
        recording.finish().unwrap();
        return;
    };
    let events = Trace::open(&directory.path().join("keys")).events();
    assert_eq!(events.len(), 4);
    let sequences: std::collections::BTreeSet<_> = events.iter().map(|event| event.sequence).collect();
    assert!(sequences.len() < 4, "no place was given back");
}
