//! Models of the libraries' lock-free parts. [loom](https://docs.rs/loom) runs them in every order in which their
//! threads can be scheduled; most models are limited to orders with at most two or three preemptions.
//!
//! Each model in `tests/` includes one or more source files of the libraries unchanged (`#[path]`). In an included
//! file, `crate::sync` has loom's types; in the library, it has the types of the standard library. So a modelled file
//! must use `crate::sync` for all data that threads share, must have no statics, and must construct its types in
//! functions that need not be `const`.
//!
//! Run the models with `cargo test -p atrace-models`. `LOOM_LOG=trace` prints the steps of a counterexample.
