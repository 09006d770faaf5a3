//! Tests that the committed bindings are those that bindgen makes from the header. Runs only with the feature
//! `bindgen`.
#![cfg(feature = "bindgen")]

use std::io::Write as _;

/// The variable which, if it is 1, makes the test write the committed file instead of comparing it.
const UPDATE: &str = "ATRACE_SYS_UPDATE_BINDINGS";

#[test]
fn committed_bindings_are_fresh() {
    if env!("ATRACE_SYS_FOREIGN_HEADER") == "1" {
        // Not `eprintln!`, which libtest hides.
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
