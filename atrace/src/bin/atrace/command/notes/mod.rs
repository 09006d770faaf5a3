//! What a killed command leaves to be done, written down: which patterns to switch off, and where its recording goes.
//!
//! Before `run` and `record` change anything, they write a note `recording-PID-START`: in which start of the machine
//! (the first line), where the recording is to be saved (`output`), and what is about to be switched where. `done`
//! follows when that was switched. What is settled is struck out by a further line (`undone`, `saved`), and a note of
//! which nothing remains goes.
//!
//! A command that finds the note of a process that is gone locks it and settles it: `on`, `off`, `status` and `record`
//! take back the patterns; `run` and `record` save what is still in the buffers.

mod folder;
mod note;
mod text;

pub(crate) use self::note::{Note, forget, sweep, unsaved};
