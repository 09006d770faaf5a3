//! Encodes random events. Compares each message with the message of a second, simple encoder, and checks all properties
//! of messages that the documentation promises.
//!
//! The encoder is not public, so its source files are compiled into this target.

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
    /// The number of repetitions of a text, and the text. The repetitions make long texts from short inputs.
    track: (u16, &'a str),
    name: (u16, &'a str),
    /// The text after the repeated name. With this text, a name can also be cut at characters that are not in the
    /// repeated text.
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
        // A process id in the range of Linux: 1 to 4,194,304.
        pid: input.pid % 4_194_304 + 1,
        track: repeated(input.track),
        name: repeated(input.name) + input.rest,
    };
    event.check();
});
