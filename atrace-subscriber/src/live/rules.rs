//! Decides which functions of a backtrace belong to the runtime or to the tracing crates. These functions are left out
//! of the backtrace.

use std::borrow::Cow;
use std::sync::atomic::{AtomicU32, Ordering};

/// The crates whose functions are left out of backtraces.
const CRATES: [&str; 20] = [
    "std",
    "core",
    "alloc",
    "test",
    "backtrace",
    "tracing",
    "tracing_core",
    "tracing_subscriber",
    "tracing_futures",
    "tracing_log",
    "atrace",
    "atrace_subscriber",
    "tokio",
    "tokio_util",
    "futures",
    "futures_core",
    "futures_util",
    "futures_executor",
    "async_executor",
    "async_task",
];
/// The names of functions that belong to no crate and are left out of backtraces. `main` in this list is C's function;
/// the `main` of a Rust program has the path `name_of_the_crate::main`.
const NAMES: [&str; 13] = [
    "main",
    "_start",
    "__rust_try",
    "__rust_begin_short_backtrace",
    "__rust_end_short_backtrace",
    "__libc_start_main",
    "__libc_start_main_impl",
    "__libc_start_call_main",
    "__libc_init",
    "start_thread",
    "clone",
    "clone3",
    "__pthread_start(void*)",
];

/// The rules by which functions are left out of a backtrace.
#[derive(Debug)]
pub(super) struct Rules {
    /// A number that identifies these rules among all rules of the process.
    pub(super) number: u32,
    sanitised: bool,
    /// The prefixes of the paths of further functions that are left out of backtraces.
    hidden: Vec<Cow<'static, str>>,
}

impl Rules {
    pub(super) fn new(sanitised: bool, hidden: Vec<Cow<'static, str>>) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        Self { number: NEXT.fetch_add(1, Ordering::Relaxed), sanitised, hidden }
    }

    /// Returns whether these rules leave out any function.
    pub(super) fn hide_anything(&self) -> bool {
        self.sanitised
    }

    /// Returns whether a function is left out of backtraces. `function` is the function's demangled name. `file`, its
    /// source file, is used only if the name has no path.
    pub(super) fn hide(&self, function: &str, file: Option<&str>) -> bool {
        if !self.sanitised {
            return false;
        }
        let path = path(function);
        if NAMES.contains(&path) || self.hidden.iter().any(|beginning| path.starts_with(&**beginning)) {
            return true;
        }
        match crate_of(path) {
            Some(name) => CRATES.contains(&name),
            None => file.and_then(crate_of_file).is_some_and(|name| {
                let is_of = |beginning: &str| beginning.strip_suffix("::").is_some_and(|of| is(of, name));
                CRATES.iter().any(|of| is(of, name)) || self.hidden.iter().any(|of| is_of(of))
            }),
        }
    }
}

/// Returns the crate with which a function's path begins. Returns `None` for a name without a path, such as
/// `poll<tokio::time::Sleep>`. If the debug information consists only of line tables, all names have this form.
fn crate_of(path: &str) -> Option<&str> {
    let end = path.find(['<', '(', ' ', '{']).unwrap_or(path.len());
    path[..end].split_once("::").map(|(name, _)| name)
}

/// Returns the origin of a source file, as its path shows it: the name of a crate of the standard library, of a package
/// from a registry, or of a Git repository. Returns `None` for other files.
fn crate_of_file(file: &str) -> Option<&str> {
    let mut parts = file.split(['/', '\\']);
    if let Some((_, library)) = file.split_once("/library/").filter(|_| file.starts_with("/rustc/")) {
        return library.split('/').next();
    }
    match parts.find(|part| *part == "registry" || *part == "checkouts")? {
        // registry/src/HOST/NAME-1.2.3
        "registry" => {
            let package = parts.nth(2)?;
            let mut dashes = package.match_indices('-').map(|(at, _)| package.split_at(at));
            let (name, _) = dashes.find(|(_, rest)| rest[1..].starts_with(|c: char| c.is_ascii_digit()))?;
            Some(name)
        }
        // checkouts/REPOSITORY-0123456789abcdef
        _ => parts.next()?.rsplit_once('-').map(|(name, _)| name),
    }
}

/// Returns whether `package` is the name of the crate `of`. The package's name may have `-` where the crate's name has
/// `_`.
fn is(of: &str, package: &str) -> bool {
    let same = |(a, b): (u8, u8)| a == b || (a == b'_' && b == b'-');
    of.len() == package.len() && of.bytes().zip(package.bytes()).all(same)
}

/// Returns the path of a function to which the rules are applied. For a method, this is the path of the method's type.
/// If the type has no path (a type parameter or a tuple), it is the path of the method's trait.
fn path(function: &str) -> &str {
    let Some(inner) = function.strip_prefix('<') else { return function };
    let (of, rest) = split_type(inner);
    let of = type_path(of);
    match rest.strip_prefix(" as ") {
        Some(of_trait) if !of.contains("::") => path(of_trait),
        _ => path(of),
    }
}

/// Splits `Type as Trait>::method` or `Type>::method` after the type.
fn split_type(text: &str) -> (&str, &str) {
    let mut depth = 0_u32;
    let mut before = ' ';
    for (at, c) in text.char_indices() {
        match c {
            '<' | '(' | '[' | '{' => depth += 1,
            // The `>` of `->` is no closing bracket.
            '>' if before == '-' => {}
            '>' | ')' | ']' | '}' if depth == 0 => return text.split_at(at),
            '>' | ')' | ']' | '}' => depth -= 1,
            ' ' if depth == 0 && text[at..].starts_with(" as ") => return text.split_at(at),
            _ => {}
        }
        before = c;
    }
    (text, "")
}

/// Returns the path of a type, without the references, pointers, brackets and `dyn` before the path.
fn type_path(of: &str) -> &str {
    let mut of = of;
    loop {
        let before = of;
        for prefix in ["&", "*", "mut ", "const ", "dyn ", "[", "("] {
            of = of.strip_prefix(prefix).unwrap_or(of).trim_start();
        }
        if of == before {
            return of;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> Rules {
        Rules::new(true, vec!["axum::".into(), "my_app::glue".into()])
    }

    #[test]
    fn frames_of_runtime_and_tracing_are_hidden() {
        let rules = rules();
        for name in [
            "std::rt::lang_start::{{closure}}",
            "std::sys::backtrace::__rust_begin_short_backtrace",
            "core::ops::function::FnOnce::call_once",
            "<alloc::boxed::Box<F,A> as core::ops::function::FnOnce<Args>>::call_once",
            "<core::panic::unwind_safe::AssertUnwindSafe<F> as core::ops::function::FnOnce<()>>::call_once",
            "<core::pin::Pin<&mut my_app::Task> as core::future::future::Future>::poll",
            "tokio::runtime::task::raw::poll",
            "<tokio::task::local::RunUntil<T> as core::future::future::Future>::poll",
            "<tracing::instrument::Instrumented<my_app::work::{{closure}}> as core::future::future::Future>::poll",
            "tracing_core::dispatcher::get_default",
            "<F as futures_util::fns::FnOnce1<A>>::call_once",
            "<&mut F as core::future::future::Future>::poll",
            "<() as std::process::Termination>::report",
            "<[core::fmt::Arguments]>::iter",
            "main",
            "_start",
            "__libc_start_call_main",
            "axum::serve::serve::{{closure}}",
            "my_app::glue::run",
        ] {
            assert!(rules.hide(name, None), "{name}: {}", path(name));
        }
    }

    #[test]
    fn frames_of_the_program_are_not() {
        let rules = rules();
        for name in [
            "my_app::main",
            "my_app::main::{{closure}}",
            "<my_app::Task as core::future::future::Future>::poll",
            "<my_app::Task<fn() -> u8> as core::future::future::Future>::poll",
            "<&mut my_app::Task as core::future::future::Future>::poll",
            "<my_app::work::{closure#0} as core::ops::function::FnOnce<()>>::call_once",
            "<dyn my_app::Plugin>::run",
            "<T as my_app::Plugin>::run",
            "<(A, B) as my_app::Plugin>::run",
            "tokio_like::run",
            "standard::main",
            "mainly",
            "c_function",
            "",
            "<",
            "<a as",
        ] {
            assert!(!rules.hide(name, None), "{name}: {}", path(name));
        }
        assert!(!Rules::new(false, vec!["axum::".into()]).hide("std::rt::lang_start", None));
    }

    #[test]
    fn bare_names_are_told_by_their_files() {
        let rules = rules();
        let registry = "/home/me/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f";
        let hidden = |name: &str, file: &str| rules.hide(name, Some(file));
        assert!(hidden("call_once<()>", "/rustc/59807616e1/library/core/src/ops/function.rs"));
        assert!(hidden("poll<app::Task>", &format!("{registry}/tokio-1.54.1/src/park.rs")));
        assert!(hidden("{closure#0}", &format!("{registry}/tracing-core-0.1.36/src/dispatcher.rs")));
        assert!(hidden("run", &format!("{registry}/axum-0.8.1/src/serve.rs")));
        assert!(hidden("run", r"C:\Users\me\.cargo\registry\src\index\tokio-1.54.1\src\park.rs"));
        assert!(hidden(
            "run",
            "/home/me/.cargo/git/checkouts/tokio-377c595163f99a10/6b37b4e/tokio/src/park.rs"
        ));
        assert!(!hidden("run", &format!("{registry}/axum-extra-0.8.1/src/serve.rs")));
        assert!(!hidden("{async_fn#0}", "/home/me/tokio-1.0/src/main.rs"));
        assert!(!hidden("poll<tokio::time::Sleep>", "src/main.rs"));
        // A function's path takes precedence over its file.
        assert!(!hidden("my_app::generic::<u8>", "/rustc/59807616e1/library/core/src/ops/function.rs"));
        assert_eq!(crate_of_file(""), None);
        assert_eq!(crate_of_file("/home/me/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f"), None);
    }
}
