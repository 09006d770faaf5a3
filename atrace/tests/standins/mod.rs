//! Small libraries that tests use in place of libcutils and libandroid of an Android version. A test builds a library
//! when it needs the library.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds a replacement of `library` (`libcutils` or `libandroid`) in `directory`. The replacement has the functions
/// that the library has in the Android version with this API level.
pub fn build(library: &str, api_level: u32, directory: &Path) -> PathBuf {
    // The sources are searched upwards from the crate's directory, because the tests of several crates include this
    // file.
    let above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let mut sources = above.map(|it| it.join("atrace/tests/standins").join(library).with_extension("c"));
    let source = sources.find(|source| source.exists()).expect("it is in the workspace");
    let built = directory.join(format!("{library}.{api_level}.so"));
    let mut compiler = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    compiler
        .args(["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"])
        .arg(format!("-DANDROID={api_level}"))
        .arg(source)
        .arg("-o")
        .arg(&built);
    let status = compiler.status().unwrap_or_else(|reason| panic!("{compiler:?}: {reason}"));
    assert!(status.success(), "{compiler:?}: {status}");
    built
}
