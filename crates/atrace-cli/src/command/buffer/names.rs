//! The names of a program's processes, most of which have ended before the recording is saved. They come from a separate
//! small buffer, in which the kernel records each program that a process executes.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use crate::tracefs::{self, Instance};

use crate::command::buffer::ring::set_size;
use crate::command::buffer::text;
use crate::command::terminal::Result;

/// What the instances for names are called.
pub(crate) const PREFIX: &str = "atrace-names";

const EVENT: &str = "events/sched/sched_process_exec/enable";

#[derive(Debug)]
pub(crate) struct Names(Option<Instance>);

impl Names {
    /// Where the kernel has no such event, there will be no names.
    pub(crate) fn make() -> Result<Self> {
        if !tracefs::root()?.join(EVENT).exists() {
            return Ok(Self(None));
        }
        let instance = Instance::create(PREFIX)?;
        set_size(&instance, 64)?;
        // Of the processes in `set_event_pid` and their children; nobody is in there yet.
        instance.set_option("event-fork", true)?;
        Ok(Self(Some(instance)))
    }

    /// The directory of the buffer, for [`begin`](Self::begin).
    pub(crate) fn directory(&self) -> Option<&Path> {
        self.0.as_ref().map(Instance::path)
    }

    /// Begins to note what becomes of the calling process and its children.
    pub(crate) fn begin(instance: &Path) -> std::io::Result<()> {
        fs::write(instance.join("set_event_pid"), std::process::id().to_string())?;
        fs::write(instance.join(EVENT), "1")
    }

    /// The threads of the program that there are now, wherever they have been reparented to.
    pub(crate) fn living(&self) -> Vec<u32> {
        let path = self.directory().map(|directory| directory.join("set_event_pid"));
        let text = path.and_then(|path| fs::read_to_string(path).ok()).unwrap_or_default();
        text.lines().filter_map(|line| line.trim().parse().ok()).collect()
    }

    /// The program that each process became last, without its path.
    pub(crate) fn read(&self) -> HashMap<u32, String> {
        self.0.as_ref().map(read).unwrap_or_default()
    }
}

/// The same, from the buffer of whoever made it.
pub(crate) fn read(instance: &Instance) -> HashMap<u32, String> {
    let (Ok(text), Ok(stats)) = (instance.read_trace(), instance.stats()) else { return HashMap::new() };
    let (names, events) = text::execs(&text);
    // Else a file is called so that it looks like several events, and no name is to be trusted.
    if events == stats.entries { names } else { HashMap::new() }
}

/// The names of threads that the kernel kept.
pub(crate) fn kept() -> Result<HashMap<u32, String>> {
    let text = fs::read(tracefs::root()?.join("saved_cmdlines")).unwrap_or_default();
    Ok(text::kept(&text))
}
