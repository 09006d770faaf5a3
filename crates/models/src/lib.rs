//! Models of the libraries' lock-free parts. [loom](https://docs.rs/loom) runs them in every order that their threads
//! can take.
//!
//! Each file in `tests/` includes a source file of a library unchanged (`#[path]`). The included file finds loom's
//! types in `crate::sync`, where the library has the standard library's. So a modelled file must use `crate::sync`
//! for everything that threads share, must have no statics, and must construct its types in functions that need not
//! be `const`.
//!
//! Run with `cargo test -p atrace-models`. `LOOM_LOG=trace` prints a counterexample.
