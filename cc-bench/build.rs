//! Compiles the C++ loops that the benches measure, and a libcutils. On a host, the loops call this libcutils. For
//! Android, this libcutils is only needed for linking, because the NDK has no libcutils: at run time, the device's
//! library of the same name is loaded. A statically linked executable can't load the device's library, so it contains
//! this libcutils.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src");
    println!("cargo::rerun-if-changed=cutils");
    // Builds again if a directory changes, because another compiler may have been installed there.
    for directory in
        ["/usr/bin", "/usr/local/bin"].into_iter().filter(|directory| Path::new(directory).is_dir())
    {
        println!("cargo::rerun-if-changed={directory}");
    }

    let system = variable("CARGO_CFG_TARGET_OS");
    let include = PathBuf::from(variable("DEP_CUTILS_INCLUDE"));
    println!("cargo::rerun-if-changed={}", include.display());

    cxx(cxx_build::bridge("src/lib.rs")).file("src/bench.cc").include(&include).compile("cc_bench_loops");
    tasks(&include);

    println!("cargo::metadata=compiler={}", compiler());

    let directory = PathBuf::from(variable("OUT_DIR")).join("lib");
    if system == "linux" {
        build_cutils(&include, &directory);
    } else if std::env::var("CARGO_CFG_TARGET_FEATURE")
        .is_ok_and(|all| all.split(',').any(|it| it == "crt-static"))
    {
        let sources = ANDROIDS.map(|source| Path::new("cutils").join(source));
        cxx(cc::Build::new()).files(sources).include(&include).compile("cc_bench_cutils");
    } else {
        std::fs::create_dir_all(&directory)
            .unwrap_or_else(|reason| panic!("{}: {reason}", directory.display()));
        shared_library(
            &directory,
            "cutils",
            &ANDROIDS,
            &["-I".into(), include.display().to_string(), "-nostdlib++".into()],
        );
        println!("cargo::rustc-link-search=native={}", directory.display());
        println!("cargo::rustc-link-lib=dylib=cutils");
    }
    if system == "android"
        && std::env::var("CXXSTDLIB_".to_owned() + &variable("TARGET").replace('-', "_"))
            .is_ok_and(|library| library == "c++_static")
    {
        // The NDK's static libc++ has two parts. The compiler's driver would link both, but it is told to link nothing
        // by default, so the second part is named here.
        println!("cargo::rustc-link-lib=c++abi");
    }
}

/// The sources for Android. The code for properties is not among them, because bionic has this code.
const ANDROIDS: [&str; 4] = ["trace.cc", "marker.cc", "log.cc", "process.cc"];

/// Reads a variable that cargo always sets.
fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|reason| panic!("{name}: {reason}"))
}

/// Returns the first line of the compiler's version output.
fn compiler() -> String {
    let output = cxx(cc::Build::new()).get_compiler().to_command().arg("--version").output();
    let output = output.map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&output).lines().next().unwrap_or_default().trim().to_owned()
}

/// Sets flags that make the C++ code the same in every cargo profile, so that results do not depend on how the Rust
/// code was built.
fn cxx(mut build: cc::Build) -> cc::Build {
    build.cpp(true).std("c++20").opt_level(2).force_frame_pointer(false).warnings(true);
    build
}

/// Compiles the C++ tasks with the compiler that the crate `cc` selects. Unless this is a cross-compilation, the other
/// one of the compilers g++ and clang++ also compiles the tasks, if it is installed and supports coroutines.
fn tasks(include: &Path) {
    let compile = |mut build: cc::Build, name: &str| {
        build.file("src/tasks.cc");
        build.try_compile(&format!("cc_bench_tasks_{name}"))
    };
    let chosen = as_the_original(cxx(cc::Build::new()));
    let is_clang = chosen.get_compiler().is_like_clang();
    let own = if is_clang { "clang" } else { "gcc" };
    compile(chosen, own).unwrap_or_else(|reason| panic!("src/tasks.cc: {reason}"));
    let mut compiled = vec![own];
    if variable("HOST") == variable("TARGET") && variable("CARGO_CFG_TARGET_OS") == "linux" {
        let versions = (15..=30).rev().map(|version| format!("clang++-{version}"));
        let others: Vec<String> =
            if is_clang { vec!["g++".into()] } else { versions.chain(["clang++".into()]).collect() };
        let name = if is_clang { "gcc" } else { "clang" };
        let is_compiled = |other: &String| {
            let mut build = cxx(cc::Build::new());
            // Most of these compilers are not installed, which is no reason for a warning.
            build.compiler(other).cargo_warnings(false);
            Command::new(other).arg("--version").output().is_ok()
                && compile(as_the_original(build), name).is_ok()
        };
        compiled.extend(others.iter().any(is_compiled).then_some(name));
    }
    let mut bridge = as_the_original(cxx(cxx_build::bridge("src/coroutines.rs")));
    for name in compiled {
        bridge.define(&format!("CC_BENCH_{}", name.to_uppercase()), None);
    }
    bridge.file("src/coroutines.cc").include(include).include("src").compile("cc_bench_coroutines");
}

/// Sets the flags of the original benchmark of coroutines: `-O3`, and C++23 if the compiler has it.
fn as_the_original(mut build: cc::Build) -> cc::Build {
    if build.is_flag_supported("-std=c++23").unwrap_or(false) {
        build.std("c++23");
    }
    build.opt_level(3);
    build
}

/// Builds `libproperties.so` and `libcutils.so` in `directory`, and links `libcutils.so`.
fn build_cutils(include: &Path, directory: &Path) {
    std::fs::create_dir_all(directory).unwrap_or_else(|reason| panic!("{}: {reason}", directory.display()));
    shared_library(directory, "properties", &["properties.cc", "process.cc"], &[]);
    shared_library(
        directory,
        "cutils",
        &["trace.cc", "marker.cc", "log.cc"],
        &[
            "-I".into(),
            include.display().to_string(),
            "-L".into(),
            directory.display().to_string(),
            "-lproperties".into(),
        ],
    );
    println!("cargo::rustc-link-search=native={}", directory.display());
    println!("cargo::rustc-link-lib=dylib=cutils");
    println!("cargo::rustc-link-arg=-Wl,-rpath,{}", directory.display());
    println!("cargo::metadata=libdir={}", directory.display());
}

/// Builds one shared library with the properties of Android's: it exports only the ABI, its symbols are bound when it
/// is loaded, and no call within the library can be intercepted by another library (gcc supports such interception by
/// default, clang does not).
fn shared_library(directory: &Path, name: &str, sources: &[&str], arguments: &[String]) {
    let mut build = cxx(cc::Build::new());
    build.pic(true);
    for flag in ["-fvisibility=hidden", "-fno-semantic-interposition", "-fno-exceptions", "-fno-rtti"] {
        build.flag(flag);
    }
    let mut compiler = build.get_compiler().to_command();
    compiler
        .args(sources.iter().map(|source| Path::new("cutils").join(source)))
        .args(["-shared", "-Wl,-z,now,-z,relro,-z,defs,--as-needed,--enable-new-dtags"])
        .arg(format!("-Wl,-soname,lib{name}.so"))
        .arg("-Wl,-rpath,$ORIGIN")
        .args(arguments)
        .arg("-o")
        .arg(directory.join(format!("lib{name}.so")));
    let status = compiler.status().unwrap_or_else(|reason| panic!("{compiler:?}: {reason}"));
    assert!(status.success(), "{compiler:?}: {status}");
}
