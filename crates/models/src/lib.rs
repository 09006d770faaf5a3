//! Models: the lock-free parts of the libraries, run by [loom](https://docs.rs/loom) in every order that their
//! threads can take.
//!
//! Each file of `tests/` includes one source file of a library as it is (`#[path]`), under a root whose `sync`
//! module is loom's instead of the standard library's. So a modelled file uses `crate::sync` for all that it
//! shares, has no statics, and its types can be made by a function that is no `const`.
//!
//! `cargo test -p atrace-models`; a counterexample is printed with `LOOM_LOG=trace`.
