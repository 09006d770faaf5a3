//! Passes the location of the C header to dependent crates, links libcutils in platform builds, and runs bindgen if the
//! feature `bindgen` is enabled.

use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let include = PathBuf::from(variable("CARGO_MANIFEST_DIR")).join("include");
    // Dependents find `cutils/trace.h` below DEP_CUTILS_INCLUDE.
    println!("cargo::metadata=include={}", include.display());

    // The cfg names the missing part, so that a build without this script is a build for Linux or Android. The build
    // scripts of dependents find the same fact in DEP_CUTILS_NO_TRACING.
    println!("cargo::rustc-check-cfg=cfg(no_tracing)");
    if !matches!(variable("CARGO_CFG_TARGET_OS").as_str(), "linux" | "android") {
        println!("cargo::rustc-cfg=no_tracing");
        println!("cargo::metadata=no_tracing=yes");
    }

    // System calls without the C library, and threads that it does not know: `src/system/bare.rs`.
    println!("cargo::rustc-check-cfg=cfg(bare)");
    let has_calls = matches!(variable("CARGO_CFG_TARGET_ARCH").as_str(), "x86_64" | "aarch64")
        && variable("CARGO_CFG_TARGET_POINTER_WIDTH") == "64"
        && matches!(variable("CARGO_CFG_TARGET_OS").as_str(), "linux" | "android");
    // Miri supports only functions of the C library.
    if has_calls && std::env::var_os("CARGO_CFG_MIRI").is_none() {
        println!("cargo::rustc-cfg=bare");
    }

    println!("cargo::rustc-check-cfg=cfg(atrace_link_cutils)");
    if std::env::var_os("CARGO_CFG_ATRACE_LINK_CUTILS").is_some() {
        println!("cargo::rustc-link-lib=dylib=cutils");
    }

    #[cfg(feature = "bindgen")]
    generate_bindings(&include);
}

/// Reads an environment variable that cargo always sets for build scripts.
fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|reason| panic!("{name}: {reason}"))
}

/// Writes `bindings.rs` into OUT_DIR: from the crate's own header, or from `cutils/trace.h` below
/// `ATRACE_SYS_INCLUDE_DIR`.
///
/// The generated file depends on the header alone, and not on the target, the sysroot or an installed formatter.
#[cfg(feature = "bindgen")]
fn generate_bindings(own: &std::path::Path) {
    use bindgen::callbacks::{IntKind, ParseCallbacks};

    const ORIGIN: &str = "\
// Made by build.rs, with the version of bindgen above, from include/cutils/trace.h. Not to be edited. To refresh:
// ATRACE_SYS_UPDATE_BINDINGS=1 cargo test -p atrace-sys --features bindgen --test bindings_fresh";

    /// Gives every constant of a tag the type of the tag mask. By default, bindgen chooses the smallest type that holds
    /// the constant's value.
    #[derive(Debug)]
    struct TagsAre64Bit;

    impl ParseCallbacks for TagsAre64Bit {
        fn int_macro(&self, name: &str, _: i64) -> Option<IntKind> {
            name.starts_with("ATRACE_TAG_").then_some(IntKind::U64)
        }
    }

    println!("cargo::rerun-if-env-changed=ATRACE_SYS_INCLUDE_DIR");
    let foreign = std::env::var_os("ATRACE_SYS_INCLUDE_DIR").map(PathBuf::from);
    let include = foreign.as_deref().unwrap_or(own);
    let header = include.join("cutils").join("trace.h");
    println!("cargo::rerun-if-changed={}", header.display());
    println!("cargo::rustc-env=ATRACE_SYS_FOREIGN_HEADER={}", u8::from(foreign.is_some()));

    let mut builder = bindgen::Builder::default()
        .header(header.to_string_lossy())
        .clang_arg(format!("-I{}", include.display()))
        .allowlist_function("atrace_.*")
        .allowlist_var("atrace_.*|ATRACE_TAG_.*")
        .parse_callbacks(Box::new(TagsAre64Bit))
        .use_core()
        .ctypes_prefix("core::ffi")
        .merge_extern_blocks(true)
        .layout_tests(false)
        .formatter(bindgen::Formatter::Prettyplease)
        .rust_edition(bindgen::RustEdition::Edition2024);
    builder = match foreign {
        // It includes the C library's headers; a cross build says where they are in BINDGEN_EXTRA_CLANG_ARGS.
        Some(_) => builder,
        // It needs the compiler's own headers only, so no sysroot for the target has to be there.
        None => builder.clang_arg("-ffreestanding").raw_line(ORIGIN),
    };
    let bindings = builder.generate().unwrap_or_else(|reason| panic!("{}: {reason}", header.display()));
    let out = PathBuf::from(variable("OUT_DIR")).join("bindings.rs");
    let declared = "unsafe extern \"C\" {";
    let text = bindings
        .to_string()
        .replace(declared, &format!("{declared}\n    // SAFETY: the header declares them so."));
    std::fs::write(&out, text).unwrap_or_else(|reason| panic!("{}: {reason}", out.display()));
}
