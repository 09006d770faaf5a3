//! Saves the content of a ring buffer, and keeps the buffer if that fails.

use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};

use crate::tracefs::Instance;

use crate::command::buffer::names;
use crate::command::file::{Output, systrace};
use crate::command::terminal::{Failure, Result, failed, quoted_path, shown_path};

/// The mark of a recording that could not be saved: its buffer does not overwrite old events. The recording is
/// stopped already.
const MARK: &str = "options/overwrite";

/// Saves the trace with the names of its processes. `processes` is the expected number of them.
pub(crate) fn save_from(
    instance: &Instance,
    mut output: Output,
    processes: usize,
    mut name: impl FnMut(u32) -> Option<String>,
) -> Result<PathBuf> {
    let kept = names::kept()?;
    // The kernel keeps names of threads. A process's main thread has the process's id, so its name serves, too.
    let name = |process: u32| name(process).or_else(|| kept.get(&process).cloned());
    let problem = format!("can't save {}", shown_path(output.named()));
    let saved = File::open(instance.path().join("trace")).and_then(|source| {
        let source = BufReader::with_capacity(1 << 16, source);
        output.fill(|to| systrace::write(source, to, processes, name))
    });
    saved.map_err(failed(&problem))?;
    output.finish().map_err(failed(problem))
}

/// Saves the trace of one of this command's instances. If that fails, the instance stays, and the error says how to
/// save it by hand.
pub(crate) fn save(
    instance: Instance,
    output: Output,
    processes: usize,
    name: impl FnMut(u32) -> Option<String>,
) -> Result<(PathBuf, Instance)> {
    match save_from(&instance, output, processes, name) {
        Ok(path) => Ok((path, instance)),
        Err(e) => Err(kept(e, &rescue(&keep(instance)))),
    }
}

/// Returns the error for a recording that could not be saved, with the command that saves it.
pub(crate) fn kept(e: Failure, rescue: &str) -> Failure {
    Failure::new(format!("{e}\natrace: nothing is lost yet; make room and run: {rescue}"))
}

/// Marks an instance that could not be saved, so that no command removes it, and leaves it.
pub(crate) fn keep(instance: Instance) -> PathBuf {
    let _ = instance.control(MARK, "0");
    instance.keep()
}

/// Tells whether an instance holds a recording that could not be saved.
pub(crate) fn is_kept(path: &Path) -> bool {
    fs::read_to_string(path.join(MARK)).is_ok_and(|text| text.trim() == "0")
}

/// Returns the shell command that saves a recording by hand.
pub(crate) fn rescue(path: &Path) -> String {
    format!("cat {} > FILE; rmdir {}", quoted_path(&path.join("trace")), quoted_path(path))
}
