//! Copies of the messages that programs write to the kernel's top-level marker (Linux 6.16).
//!
//! C and C++ programs open the top-level marker themselves, so `atrace run` must record it, too. The kernel copies the
//! messages that all programs write to this marker to a separate buffer. So other programs' messages take no room in
//! the buffer of the recorded program, and are not counted as its events. The messages of the recorded program are
//! selected when the recording is saved.

use std::fs::File;
use std::io::BufReader;

use crate::command::buffer::ring::{self, Processes};
use crate::command::buffer::top::Silence;
use crate::command::file::systrace::Copied;
use crate::command::terminal::{Result, failed, say, shown_path, thousands};
use crate::tracefs::{self, Instance};

/// The prefix of the tracefs instances that receive copies of messages.
pub(crate) const PREFIX: &str = "atrace-copies";

/// A buffer that receives copies of messages. Dropping the `Copies` removes the buffer.
pub(crate) struct Copies {
    instance: Instance,
    silence: Option<Silence>,
}

impl Copies {
    /// Creates a buffer for copies, as large as the recorded program's buffer if there is enough memory. Returns `None`
    /// if the kernel can't copy messages.
    pub(crate) fn make(kb: Option<u64>) -> Result<Option<Self>> {
        if !tracefs::can_copy(&tracefs::root()?) {
            return Ok(None);
        }
        let instance = ring::make(PREFIX, kb).or_else(|_| ring::make(PREFIX, None))?;
        Ok(Some(Self { instance, silence: None }))
    }

    pub(crate) fn start(&mut self) -> Result {
        self.silence = Silence::start(tracefs::root()?)?;
        Ok(self.instance.set_option(tracefs::COPY, true)?)
    }

    /// Checks whether another process has switched the top-level buffer on. If so, makes the marker write to that
    /// buffer again.
    pub(crate) fn look(&mut self) {
        Silence::look(&mut self.silence);
    }

    pub(crate) fn stop(&mut self) -> Result {
        // Copying is switched off first, before the buffer: while a buffer that gets copies is off, writes to the
        // top-level marker fail.
        self.instance.set_option(tracefs::COPY, false)?;
        self.silence = None;
        Ok(self.instance.set_tracing_on(false)?)
    }

    /// Reports that copies were lost, or that messages of other programs could not be left out.
    pub(crate) fn report(&self, processes: &Processes) {
        let stats = self.instance.stats().unwrap_or_default();
        if stats.lost() > 0 {
            say(format_args!(
                "all programs together wrote {} messages to the kernel's top-level marker, of which {} were lost: if this \
                 program's are among them, a larger --buffer keeps them",
                thousands(stats.written()),
                thousands(stats.lost())
            ));
        }
        if stats.entries > 0 && !processes.is_known() {
            say(
                "the program had too many processes to know them all: messages of other programs may be among its own",
            );
        }
    }

    pub(crate) fn instance(&self) -> &Instance {
        &self.instance
    }

    pub(crate) fn into_instance(self) -> Instance {
        self.instance
    }
}

/// Returns the text of the buffer `instance`, which holds copies. `systrace::write` adds this text to the file of a
/// recording.
pub(crate) fn copied<'a>(instance: &Instance, is_wanted: &'a dyn Fn(u32) -> bool) -> Result<Copied<'a>> {
    let path = instance.path().join("trace");
    let text = File::open(&path).map_err(failed(shown_path(&path)))?;
    Ok(Copied { text: Box::new(BufReader::with_capacity(1 << 16, text)), is_wanted })
}
