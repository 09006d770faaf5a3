//! Fuzzes how the doctor parses and displays the page in which a process publishes its state.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code)]
#[path = "../../src/doctor/facts.rs"]
mod facts;

use facts::Published;

fuzz_target!(|bytes: &[u8]| {
    // The bytes are parsed twice: in a page of the right length whose first word says that no write is in progress, and
    // as they are.
    let mut page = vec![0; atrace_sys::state::SIZE];
    page[..8].copy_from_slice(&2_u64.to_ne_bytes());
    let length = bytes.len().min(page.len() - 8);
    page[8..8 + length].copy_from_slice(&bytes[..length]);
    for page in [&page, bytes] {
        let Some(text) = atrace_sys::state::text_of(page) else { continue };
        let state = Published::parse(text);
        state.marker();
        for key in ["serial", "tags", "filters"] {
            state.number(key);
        }
        for text in state.all("lacks").chain(state.get("place")) {
            let shown = atrace_cli::escape::shown(text).to_string();
            assert!(!shown.chars().any(char::is_control));
            assert!(!atrace_cli::escape::quoted(text).chars().any(char::is_control));
        }
    }
});
