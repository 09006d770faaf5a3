//! Fuzzes the parsers for answers of a child process with another user's rights: the facts that the doctor asks for,
//! and the content of a property store.
//!
//! The parsers are not public, so their sources are compiled into this target.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code)]
#[path = "../../src/command/stores/content.rs"]
mod content;
#[allow(dead_code)]
#[path = "../../src/doctor/facts.rs"]
mod facts;

use content::Content;
use facts::Facts;

fuzz_target!(|bytes: &[u8]| {
    if let Some(facts) = Facts::parse(bytes) {
        assert_eq!(Facts::parse(&facts.bytes()), Some(facts));
    }
    if let Ok(content) = Content::parse(bytes) {
        assert_eq!(Content::parse(&content.bytes()), Ok(content));
    }
});
