//! Runs each test in its own process, because libcutils opens its marker and finds its property only once in a process,
//! as the environment variables say.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use atrace_sys::properties::Properties;

/// The environment variable with the directory of a test's files. It is set only in the separate process that runs the
/// test.
const PLACE: &str = "CC_BENCH_TEST_PLACE";

/// The files of one test, for the process that runs the test.
pub(crate) struct Place {
    directory: PathBuf,
    properties: Properties,
}

/// Runs `test` in a new process of this test binary, with a marker file and a property store of its own.
///
/// `name` is the name of the calling test function. The process has no LD_LIBRARY_PATH: it must find libcutils like a
/// binary that is started without cargo.
pub(crate) fn alone(name: &str, test: impl FnOnce(&Place)) {
    alone_with(name, |_, _| {}, test);
}

/// Does the same as [`alone`], but calls `prepare`, which can change how the process is started. `prepare`
/// also gets the path of the marker.
pub(crate) fn alone_with(name: &str, prepare: impl FnOnce(&mut Command, &Path), test: impl FnOnce(&Place)) {
    if let Some(directory) = std::env::var_os(PLACE) {
        let directory = PathBuf::from(directory);
        let properties = Properties::open_path(&directory.join("properties")).unwrap();
        return test(&Place { directory, properties });
    }
    let directory = tempfile::tempdir().unwrap();
    let marker = directory.path().join("marker");
    File::create(&marker).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([name, "--exact", "--nocapture"])
        .env(PLACE, directory.path())
        .env("ATRACE_MARKER", &marker)
        .env("ATRACE_PROPERTIES", directory.path().join("properties"))
        .env_remove("LD_LIBRARY_PATH");
    prepare(&mut command, &marker);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{}\n{text}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}

#[allow(dead_code, reason = "not every test binary needs all of it")]
impl Place {
    pub(crate) fn set(&self, key: &str, value: &str) {
        self.properties.set(key, value).unwrap();
    }

    /// Switches tracing on for this process.
    pub(crate) fn switch_on(&self) {
        self.set("debug.atrace.app_0", "*");
        self.set("debug.atrace.app_number", "1");
        self.set("debug.atrace.tags.enableflags", "0");
    }

    pub(crate) fn path(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.directory.join(name.as_ref())
    }

    /// Runs `calls`, and returns the bytes that these calls have written to the marker file.
    pub(crate) fn written_by(&self, calls: impl FnOnce()) -> String {
        let marker = self.path("marker");
        let before = std::fs::read(&marker).unwrap().len();
        calls();
        String::from_utf8(std::fs::read(&marker).unwrap()[before..].to_vec()).unwrap()
    }

    /// Writes the end of a line to the marker file, because messages have no terminator.
    pub(crate) fn end_line(&self) {
        OpenOptions::new().append(true).open(self.path("marker")).unwrap().write_all(b"\n").unwrap();
    }
}
