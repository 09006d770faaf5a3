//! Sets a `cfg` flag if this system does not support tracing. With the feature `real`, also compiles `service.cc`
//! together with the single C++ file in the crate `perfetto-sdk-sys`.
//!
//! If `ATRACE_REAL_SERVICE` names a program that this script has built before, the script uses that program and
//! compiles nothing.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=service.cc");
    println!("cargo::rustc-check-cfg=cfg(no_tracing)");
    if env::var_os("DEP_CUTILS_NO_TRACING").is_some() {
        println!("cargo::rustc-cfg=no_tracing");
    }
    println!("cargo::rerun-if-env-changed=ATRACE_REAL_SERVICE");
    if env::var_os("CARGO_FEATURE_REAL").is_none() {
        return;
    }
    let program = env::var_os("ATRACE_REAL_SERVICE").map_or_else(compile, PathBuf::from);
    println!("cargo::rustc-env=REAL_SERVICE={}", program.display());
}

fn compile() -> PathBuf {
    let program = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it")).join("service");
    let compiler = cc::Build::new().cpp(true).debug(false).opt_level(1).warnings(false).get_compiler();
    let mut command = compiler.to_command();
    command.args(["-std=c++17", "-O1", "-DNDEBUG", "-w", "-I"]).arg(source().parent().expect("a file"));
    command.arg("service.cc").arg("-o").arg(&program).args(["-lpthread", "-lrt"]);
    let status = command.status().expect("a C++ compiler");
    assert!(status.success(), "Perfetto's service can't be compiled");
    fs::exists(&program).expect("it can be looked for").then_some(program).expect("it was compiled")
}

/// Returns the path of the file with Perfetto's source.
fn source() -> PathBuf {
    let cargo = env::var_os("CARGO").expect("cargo sets it");
    let output = Command::new(cargo).args(["metadata", "--format-version=1"]).output().expect("cargo runs");
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    let packages = metadata["packages"].as_array().expect("a list");
    let manifest = packages.iter().find(|package| package["name"] == "perfetto-sdk-sys");
    let manifest =
        manifest.and_then(|package| package["manifest_path"].as_str()).expect("it is a dependency");
    Path::new(manifest).with_file_name("libperfetto_c").join("perfetto_c.cc")
}
