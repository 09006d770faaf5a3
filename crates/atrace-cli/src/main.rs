//! The program `atrace`. Its code is in the library [`atrace_cli`].

/// A constructor that prevents the command itself from being traced: after it has run, the crate `atrace` opens no file
/// and creates no property store at load. So it must run before the constructor of the crate `atrace`. The linker puts
/// `.init_array` sections with a number in their name first, and the loader runs the constructors in the order of the
/// sections.
#[cfg(any(target_os = "linux", target_os = "android"))]
#[used]
#[expect(
    unsafe_code,
    reason = "the section has addresses of functions, which may ignore what they are called with"
)]
#[unsafe(link_section = ".init_array.00101")]
static NOT_TRACED: extern "C" fn() = atrace::skip_load;

#[cfg(any(target_os = "linux", target_os = "android"))]
fn main() -> std::process::ExitCode {
    atrace_cli::main()
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn main() -> std::process::ExitCode {
    eprintln!("atrace: tracing exists only on Linux and Android");
    std::process::ExitCode::FAILURE
}
