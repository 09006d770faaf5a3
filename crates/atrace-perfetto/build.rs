//! Sets two `cfg` flags for the code of this crate: one if the target system has no tracing (as the build of
//! `atrace-sys` has determined), and one if the program is built for size.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(no_tracing)");
    if std::env::var_os("DEP_CUTILS_NO_TRACING").is_some() {
        println!("cargo::rustc-cfg=no_tracing");
    }
    // A program that is built for size has no fast path: src/producer.rs.
    println!("cargo::rustc-check-cfg=cfg(small)");
    if std::env::var_os("OPT_LEVEL").is_some_and(|level| level == "s" || level == "z") {
        println!("cargo::rustc-cfg=small");
    }
}
