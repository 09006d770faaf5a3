//! Notes with the cleanup that a killed command leaves: the patterns to switch off, and the file to save its
//! recording to.
//!
//! # Format
//!
//! Before `run` and `record` change anything, they write a note `recording-PID-START`. Its lines are:
//!
//! 1. the machine's boot id;
//! 2. `output`: the file to save the recording to;
//! 3. a line for each pattern and store that is about to be switched, with the number of times that the pattern is
//!    listed now;
//! 4. `done`, after the switch in a store;
//! 5. `undone` or `saved`, which cancel the patterns or the output.
//!
//! Paths and patterns are in hexadecimal. A note with nothing left to do is removed.
//!
//! # Recovery
//!
//! A command that finds the note of an ended process locks it and does the cleanup: [`sweep`] switches the patterns
//! off; the recordings in [`unsaved`] are saved by `buffer::sweep`. A note from before the last boot is removed,
//! because its stores and buffers no longer exist.

mod folder;
mod note;
mod text;

pub(crate) use self::note::{Note, forget, sweep, unsaved};
