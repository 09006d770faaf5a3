//! Adds the directory of the shared libraries of `cc-bench` to the runtime search path of the benches, for benches that
//! are started without cargo. Passes the versions of the compilers to the benches.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=RUSTC");
    if let Ok(directory) = std::env::var("DEP_CC_BENCH_LIBDIR") {
        println!("cargo::rustc-link-arg=-Wl,-rpath,{directory}");
    }
    let rustc = std::env::var("RUSTC").ok().and_then(version).unwrap_or_default();
    let cxx = std::env::var("DEP_CC_BENCH_COMPILER").unwrap_or_default();
    println!("cargo::rustc-env=ATRACE_BENCHES_RUSTC={rustc}");
    println!("cargo::rustc-env=ATRACE_BENCHES_CXX={cxx}");
}

/// Returns the first line of a compiler's version output.
fn version(compiler: String) -> Option<String> {
    let output = Command::new(compiler).arg("--version").output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).lines().next()?.trim().to_owned())
}
