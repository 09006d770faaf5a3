//! Tests of the source files that the loom models include (such files can't contain tests), and functions that tests of
//! several files use.

use std::sync::atomic::{AtomicU32, Ordering};

use super::abi::*;

/// Starts the test once more in a new process, because all tests of a process share the pool. Returns true in the new
/// process, which must do the test, and false in the process that has started it. The new process has a name of the
/// maximum length.
pub(crate) fn is_alone(test: &str) -> bool {
    const ALONE: &str = "ATRACE_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    use std::os::unix::process::CommandExt as _;
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    let ran = command.arg0("x".repeat(100)).args(["--exact", test]).env(ALONE, "1").output().unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success() && said.contains("1 passed"), "{said}");
    false
}

#[test]
fn chunks_are_taken_completed_read_and_freed() {
    let header = AtomicU32::new(0);
    assert_eq!(take(&header, Layout::Whole), Some(0));
    assert_eq!(header.load(Ordering::Relaxed), 1 << 28 | 1);
    assert_eq!((take(&header, Layout::Whole), take(&header, Layout::Small)), (None, None));
    assert!(!begin_reading(&header, 0));
    complete(&header, 0);
    assert_eq!(header.load(Ordering::Relaxed), 1 << 28 | 3);
    assert!(begin_reading(&header, 0));
    assert_eq!(header.load(Ordering::Relaxed), 1 << 28 | 2);
    free(&header, 0);
    assert_eq!(header.load(Ordering::Relaxed), 0);

    let taken: Vec<_> = std::iter::from_fn(|| take(&header, Layout::Small)).collect();
    assert_eq!(taken, (0..14).collect::<Vec<_>>());
    assert_eq!(header.load(Ordering::Relaxed), 0x5555_5555);
    complete(&header, 13);
    complete(&header, 3);
    assert!(begin_reading(&header, 3));
    free(&header, 3);
    assert_eq!(take(&header, Layout::Small), Some(3));
    assert!(begin_reading(&header, 13) && !begin_reading(&header, 14));
}

#[test]
fn any_word_is_taken_for_something() {
    for layout in 0..8_u32 {
        for states in [0, 0x0fff_ffff, 0x0aaa_aaaa, 0x0555_5555] {
            for reserved in [0, 1 << 31] {
                let word = AtomicU32::new(layout << 28 | states | reserved);
                let before = word.load(Ordering::Relaxed);
                let taken = take(&word, Layout::Small);
                assert!(taken.is_none_or(|chunk| chunk < 14 && before >> (2 * chunk) & 3 == 0));
                assert_eq!(taken.is_some(), word.load(Ordering::Relaxed) != before);
                let _ = begin_reading(&word, 31 & states);
            }
        }
    }
    assert_eq!([1, 2, 4, 7, 14].map(|chunks| chunk_size(4096, chunks)), [4088, 2044, 1020, 584, 292]);
}
