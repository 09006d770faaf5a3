//! Takes over from the build of `atrace-sys` whether the target system has no tracing.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(no_tracing)");
    if std::env::var_os("DEP_CUTILS_NO_TRACING").is_some() {
        println!("cargo::rustc-cfg=no_tracing");
    }
}
