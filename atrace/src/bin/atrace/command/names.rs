//! The names of the processes of a program, which is seldom there any more when they are wanted: from a small
//! buffer of its own, in which the kernel notes each program that one of them becomes.

use std::collections::HashMap;
use std::path::Path;

use atrace::tracefs::{self, Instance};

use super::buffer::{PREFIX, set_size};
use super::failure::Result;

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
    pub(crate) fn place(&self) -> Option<&Path> {
        self.0.as_ref().map(Instance::path)
    }

    /// Begins to note what becomes of the calling process and its children.
    pub(crate) fn begin(instance: &Path) -> std::io::Result<()> {
        std::fs::write(instance.join("set_event_pid"), std::process::id().to_string())?;
        std::fs::write(instance.join(EVENT), "1")
    }

    /// The program that each process became last, without its path.
    pub(crate) fn read(&self) -> HashMap<u32, String> {
        let text = self.0.as_ref().and_then(|instance| instance.read_trace().ok()).unwrap_or_default();
        parse(&String::from_utf8_lossy(&text))
    }
}

/// Reads lines that end in `sched_process_exec: filename=/bin/sh pid=42 old_pid=42`.
fn parse(text: &str) -> HashMap<u32, String> {
    let one = |line: &str| {
        let (path, rest) = line.split_once(": sched_process_exec: filename=")?.1.rsplit_once(" pid=")?;
        let name = path.rsplit('/').next().filter(|name| !name.is_empty())?;
        Some((rest.split(' ').next()?.parse().ok()?, name.to_owned()))
    };
    text.lines().filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_program_counts() {
        let text = "# tracer: nop\n\
            \x20 sh-42 [001] ..... 1.000001: sched_process_exec: filename=/bin/sh pid=42 old_pid=42\n\
            \x20 a b-43 [001] ..... 1.000002: sched_process_exec: filename=./dir/a pid=b pid=43 old_pid=43\n\
            \x20 x-42 [001] ..... 1.000003: sched_process_exec: filename=x pid=42 old_pid=42\n\
            \x20 x-44 [001] ..... 1.000003: sched_process_exec: filename= pid=44 old_pid=44\n";
        let mut names: Vec<_> = parse(text).into_iter().collect();
        names.sort();
        assert_eq!(names, [(42, "x".to_owned()), (43, "a pid=b".to_owned())]);
    }
}
