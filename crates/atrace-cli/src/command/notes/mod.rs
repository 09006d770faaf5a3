//! Notes with the cleanup for a killed command: which patterns to switch off, and where to save its recording.
//!
//! Before `run` and `record` change anything, they write a note `recording-PID-START`. It contains the machine's boot id
//! (the first line), the file to save the recording to (`output`), and the patterns and stores about to be switched.
//! `done` is added after a switch. A further line (`undone`, `saved`) cancels what is settled, and a note with nothing
//! left to do is removed.
//!
//! A command that finds the note of an ended process locks it and settles it: `on`, `off`, `status` and `record`
//! switch the patterns off; `run` and `record` save what is still in the buffers.

mod folder;
mod note;
mod text;

pub(crate) use self::note::{Note, forget, sweep, unsaved};
