//! Tests that the committed bindings are equal to the bindings that bindgen generates from the header. Runs only with
//! the feature `bindgen`.
#![cfg(feature = "bindgen")]

use std::io::Write as _;

/// The name of an environment variable. If its value is 1, the test writes the committed file instead of comparing the
/// file.
const UPDATE: &str = "ATRACE_SYS_UPDATE_BINDINGS";

#[test]
fn committed_bindings_are_fresh() {
    if env!("ATRACE_SYS_FOREIGN_HEADER") == "1" {
        // `eprintln!` is not used, because libtest hides its output.
        let _ = writeln!(
            std::io::stderr(),
            "skipped: ATRACE_SYS_INCLUDE_DIR names another header, whose bindings are not committed"
        );
        return;
    }
    let committed = concat!(env!("CARGO_MANIFEST_DIR"), "/src/bindings.rs");
    let generated = include_str!(concat!(env!("OUT_DIR"), "/bindings.rs"));
    if std::env::var_os(UPDATE).is_some_and(|value| value == "1") {
        std::fs::write(committed, generated).unwrap_or_else(|reason| panic!("{committed}: {reason}"));
        return;
    }
    let present = std::fs::read_to_string(committed).unwrap_or_else(|reason| panic!("{committed}: {reason}"));
    let differing = present.lines().zip(generated.lines()).position(|(old, new)| old != new);
    assert!(
        present == generated,
        "src/bindings.rs is not what include/cutils/trace.h gives (first difference in line {}); refresh it with\n\
         {UPDATE}=1 cargo test -p atrace-sys --features bindgen --test bindings_fresh",
        differing.unwrap_or_else(|| present.lines().count().min(generated.lines().count())) + 1
    );
}
