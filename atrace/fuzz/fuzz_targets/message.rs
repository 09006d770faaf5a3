//! Any event at all: the encoder against the plain one, and all that is promised of a message.
//!
//! The encoder is no part of the crate's interface, so its source is compiled into this target.

#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;

#[allow(dead_code)]
#[path = "../../src/message/mod.rs"]
mod message;
#[path = "../../../atrace-sys/src/panics.rs"]
mod panics;
#[path = "../../src/message/reference.rs"]
mod reference;

use message::{Kind, Message, NameWriter};

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    kind: u8,
    pid: u32,
    /// Short inputs make long texts: each is repeated.
    track: (u16, &'a str),
    name: (u16, &'a str),
    /// What follows the repeated name, so that a cut falls on something else.
    rest: &'a str,
    number: i64,
}

fn repeated((times, text): (u16, &str)) -> String {
    let most = 1200 / text.len().max(1) + 1;
    text.repeat((usize::from(times) % most).max(1))
}

fuzz_target!(|input: Input<'_>| {
    let event = reference::Event {
        kind: reference::KINDS[usize::from(input.kind) % reference::KINDS.len()](input.number),
        // The numbers that Linux gives.
        pid: input.pid % 4_194_304 + 1,
        track: repeated(input.track),
        name: repeated(input.name) + input.rest,
    };
    event.check();
});
