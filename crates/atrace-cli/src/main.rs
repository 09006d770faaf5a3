//! The program `atrace`. Its code is in the library [`atrace_cli`].

/// Prevents the command itself from being traced: the crate `atrace` opens no file and creates no property store at
/// load. The linker puts the functions of sections with a number in their name before the functions of other sections,
/// and the loader runs the functions in that order, so this function runs before `atrace`'s own constructor.
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
