//! Tells the linker where the C++ side's shared libraries are, for programs that are started outside cargo.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if let Ok(directory) = std::env::var("DEP_CC_BENCH_LIBDIR") {
        println!("cargo::rustc-link-arg=-Wl,-rpath,{directory}");
    }
}
