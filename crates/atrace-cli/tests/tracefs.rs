//! Tests the removal of an instance that another process holds open.
//!
//! This is a separate test program with a single test. A forked child has a copy of each descriptor until it executes
//! its program. So if other tests in this process forked children, an instance could be held open at any moment.

#[path = "../../../atrace/tests/common/mod.rs"]
mod common;

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use atrace_cli::tracefs::{Instance, sweep};

fn hold(instance: &Path) -> File {
    OpenOptions::new().write(true).open(instance.join("trace_marker")).unwrap()
}

#[test]
fn a_busy_instance_is_reported_and_swept_later() {
    let prefix = format!("atrace-tracefs-sweep{}", std::process::id());
    let alive = match Instance::create(&prefix) {
        Ok(alive) => alive,
        Err(reason) => return common::skipped("a_busy_instance_is_reported_and_swept_later", reason),
    };
    // The process has ended and was waited for, so its id belongs to no process.
    let mut gone = Command::new("true").spawn().unwrap();
    gone.wait().unwrap();
    let orphan = alive.path().with_file_name(format!("{prefix}-{}-0", gone.id()));
    fs::create_dir(&orphan).unwrap();
    let swept = || {
        let swept = sweep(&prefix).unwrap();
        (swept.removed, swept.busy)
    };
    let (none, one) = (Vec::<PathBuf>::new(), vec![orphan.clone()]);
    let held = hold(&orphan);
    assert_eq!(swept(), (none.clone(), one.clone()));
    drop(held);
    assert_eq!(swept(), (one, none));
    assert!(!orphan.exists() && alive.path().exists());

    let held = hold(alive.path());
    let path = alive.path().to_owned();
    assert_eq!(alive.remove().unwrap_err().kind(), ErrorKind::ResourceBusy);
    drop(held);
    fs::remove_dir(path).unwrap();
}
