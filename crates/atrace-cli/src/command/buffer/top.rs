//! The kernel's top-level buffer, which all users share. It is used only if no one else uses it, and restored
//! afterwards.
//!
//! A recording changes its switch, clock, size and options. The old values are noted first. They are written back in
//! reverse order when [`Top`] is dropped. A forked child that drops its copy changes nothing.

use std::fs;
use std::path::{Path, PathBuf};

use crate::escape::shown;
use crate::tracefs::{self, Instance};
use atrace_sys::fork::{Generation, generation};

use crate::command::buffer::ring;
use crate::command::terminal::{Failure, Result, failed, quoted_path, say, shown_path};

/// The top-level buffer. Dropping it undoes all changes.
pub(crate) struct Top {
    pub(crate) instance: Instance,
    /// The files that are changed and their old contents, in the order of the changes.
    before: Vec<(PathBuf, String)>,
    /// The recorded events are to be removed from the buffer.
    empties: bool,
    by: Generation,
}

impl Top {
    /// Tells whether the kernel can copy the messages of the top-level marker to an instance.
    pub(crate) fn can_be_copied() -> Result<bool> {
        Ok(tracefs::root()?.join("options").join(tracefs::COPY).exists())
    }

    /// If the top-level buffer is switched off, makes its marker write only to instances that want copies.
    pub(crate) fn silence() -> Result<Option<Self>> {
        let root = tracefs::root()?;
        if read(&root.join("tracing_on"))? != "0" {
            return Ok(None);
        }
        let mut top =
            Self { instance: Instance::attach(&root)?, before: Vec::new(), empties: false, by: generation() };
        top.note(root.join("options").join(tracefs::COPY))?;
        top.instance.set_option(tracefs::COPY, false)?;
        Ok(Some(top))
    }

    /// Takes the buffer to record into it. Fails if someone else uses it, or if it has events and `discard` is false.
    pub(crate) fn take(discard: bool) -> Result<Self> {
        let root = tracefs::root()?;
        let instance = Instance::attach(&root)?;
        if let Ok(tracer) = read(&root.join("current_tracer"))
            && tracer != "nop"
        {
            return Err(Failure::new(format!(
                "somebody uses the kernel's trace buffer with the tracer {}: end that, or run: echo nop > {}",
                shown(&tracer),
                quoted_path(&root.join("current_tracer"))
            )));
        }
        if let Some(event) = read(&root.join("set_event")).unwrap_or_default().lines().next() {
            return Err(Failure::new(format!(
                "somebody records events of the kernel ({}, …) in its top-level buffer: end that, or run: echo > {}",
                shown(event),
                quoted_path(&root.join("set_event"))
            )));
        }
        let held = instance.stats()?.entries;
        if held > 0 && !discard {
            return Err(Failure::new(format!(
                "the kernel's top-level buffer holds {held} events, which this recording would discard: save {}, or give --discard",
                shown_path(&root.join("trace"))
            )));
        }
        let mut top = Self { instance, before: Vec::new(), empties: true, by: generation() };
        for file in ["tracing_on", "trace_clock", "options/record-tgid"] {
            top.note(root.join(file))?;
        }
        let cpus = root.join("per_cpu");
        for cpu in fs::read_dir(&cpus).map_err(failed(shown_path(&cpus)))?.flatten() {
            top.note(cpu.path().join("buffer_size_kb"))?;
        }
        top.instance.set_tracing_on(false)?;
        Ok(top)
    }

    /// Leaves the recorded events in the buffer. Its clock and size then have to stay, too.
    pub(crate) fn keep_content(&mut self) {
        self.empties = false;
        self.before.retain(|(path, _)| !path.ends_with("trace_clock") && !path.ends_with("buffer_size_kb"));
    }

    fn note(&mut self, path: PathBuf) -> Result {
        let text = read(&path)?;
        let between = |start, end| Some(text.split_once(start)?.1.split_once(end)?.0);
        // A file with several choices has the current one in brackets. `7 (expanded: 1408)`: the buffer gets the second
        // size with its first event, and can't be made smaller afterwards.
        let value = between("[", "]").or_else(|| between("expanded: ", ")")).unwrap_or(&text).to_owned();
        self.before.push((path, value));
        Ok(())
    }

    fn put_back(&mut self) -> Result {
        if self.empties {
            self.instance.set_tracing_on(false)?;
            // `take` checked that no one else had events enabled.
            self.instance.control("events/enable", "0")?;
            let filter = format!("events/{}/filter", ring::TEACHER);
            if self.instance.path().join(&filter).exists() {
                self.instance.control(&filter, "0")?;
            }
            self.instance.clear()?;
        }
        let mut problems = Vec::new();
        // The switch `tracing_on` was noted first, so it is written back last.
        for (path, value) in self.before.drain(..).rev() {
            if let Err(e) = fs::write(&path, &value) {
                problems.push(format!("{}={}: {e}", shown_path(&path), shown(&value)));
            }
        }
        if problems.is_empty() { Ok(()) } else { Err(Failure::new(problems.join("; "))) }
    }
}

impl Drop for Top {
    fn drop(&mut self) {
        if self.by != generation() {
            return; // This is a copy in a forked child.
        }
        if let Err(e) = self.put_back() {
            say(format_args!("putting the kernel's trace buffer back: {e}"));
        }
    }
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map(|text| text.trim().to_owned()).map_err(failed(shown_path(path)))
}
