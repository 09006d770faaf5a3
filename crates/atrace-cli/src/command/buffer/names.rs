//! The names of a program's processes, most of which have ended before the recording is saved.
//!
//! The names come from a small separate ring buffer. In it the kernel records `sched_process_exec`, the event of a
//! process that executes a program, for the started program and its children (`set_event_pid`, option `event-fork`).

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use crate::tracefs::{self, Instance};

use crate::command::buffer::ring::set_size;
use crate::command::buffer::text;
use crate::command::terminal::Result;

/// The prefix of the instances for names.
pub(crate) const PREFIX: &str = "atrace-names";

const EVENT: &str = "events/sched/sched_process_exec/enable";

#[derive(Debug)]
pub(crate) struct Names(Option<Instance>);

impl Names {
    /// Creates the buffer. If the kernel lacks the event, there are no names.
    pub(crate) fn make() -> Result<Self> {
        if !tracefs::root()?.join(EVENT).exists() {
            return Ok(Self(None));
        }
        let instance = Instance::create(PREFIX)?;
        set_size(&instance, 64)?;
        // The option covers the processes in `set_event_pid` and their children. No process is in it yet.
        instance.set_option("event-fork", true)?;
        Ok(Self(Some(instance)))
    }

    /// Returns the directory of the buffer: the argument of [`begin`](Self::begin).
    pub(crate) fn directory(&self) -> Option<&Path> {
        self.0.as_ref().map(Instance::path)
    }

    /// Starts to record the programs that the calling process and its children execute.
    pub(crate) fn begin(instance: &Path) -> std::io::Result<()> {
        fs::write(instance.join("set_event_pid"), std::process::id().to_string())?;
        fs::write(instance.join(EVENT), "1")
    }

    /// Returns the threads of the program that exist now, even if they have another parent by now.
    pub(crate) fn living(&self) -> Vec<u32> {
        let path = self.directory().map(|directory| directory.join("set_event_pid"));
        let text = path.and_then(|path| fs::read_to_string(path).ok()).unwrap_or_default();
        text.lines().filter_map(|line| line.trim().parse().ok()).collect()
    }

    /// Returns, for each process, the name of the program that it executed last, without the path.
    pub(crate) fn read(&self) -> HashMap<u32, String> {
        self.0.as_ref().map(read).unwrap_or_default()
    }
}

/// Reads the names from a buffer that any command created.
pub(crate) fn read(instance: &Instance) -> HashMap<u32, String> {
    let (Ok(text), Ok(stats)) = (instance.read_trace(), instance.stats()) else { return HashMap::new() };
    let (names, events) = text::execs(&text);
    // If the counts differ, the name of a file imitates further events, and no name can be trusted.
    if events == stats.entries { names } else { HashMap::new() }
}

/// Returns the names of threads that the kernel has kept.
pub(crate) fn kept() -> Result<HashMap<u32, String>> {
    let text = fs::read(tracefs::root()?.join("saved_cmdlines")).unwrap_or_default();
    Ok(text::kept(&text))
}
