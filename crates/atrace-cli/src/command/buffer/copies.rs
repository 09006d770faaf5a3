//! Copies of the messages that programs write to the kernel's top-level marker (Linux 6.16).
//!
//! C and C++ programs open the top-level marker themselves. The kernel copies the messages of all programs to a
//! separate buffer, so that other programs' messages take no room in the program's buffer and are not counted. The
//! messages of the program are selected when the recording is saved.

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
    /// Creates a buffer for copies, as large as the program's buffer if there is enough memory. Returns `None` if the
    /// kernel can't copy messages.
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

    /// Checks whether another process has switched the top-level buffer on. If so, the marker writes to that buffer
    /// again.
    pub(crate) fn look(&mut self) {
        Silence::look(&mut self.silence);
    }

    pub(crate) fn stop(&mut self) -> Result {
        // First, because a write to the top-level marker fails if a buffer that gets copies is off.
        self.instance.set_option(tracefs::COPY, false)?;
        self.silence = None;
        Ok(self.instance.set_tracing_on(false)?)
    }

    /// Reports copies that were lost, and copies of other programs that could not be left out.
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

/// Returns the text of the buffer `instance`, which holds copies. The text is to be added to the file of a recording.
pub(crate) fn copied<'a>(instance: &Instance, is_wanted: &'a dyn Fn(u32) -> bool) -> Result<Copied<'a>> {
    let path = instance.path().join("trace");
    let text = File::open(&path).map_err(failed(shown_path(&path)))?;
    Ok(Copied { text: Box::new(BufReader::with_capacity(1 << 16, text)), is_wanted })
}
