//! Saves the content of a ring buffer, and keeps the buffer if that fails.

use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};

use crate::tracefs::Instance;

use crate::command::buffer::names;
use crate::command::file::{Output, systrace};
use crate::command::terminal::{Failure, Result, failed, quoted_path, shown_path};

/// The mark of a recording that could not be saved: it is stopped, and its buffer does not overwrite.
const MARK: &str = "options/overwrite";

/// Saves the trace, with the names of its processes: there are perhaps as many as `processes`.
pub(crate) fn save_from(
    instance: &Instance,
    mut output: Output,
    processes: usize,
    mut name: impl FnMut(u32) -> Option<String>,
) -> Result<PathBuf> {
    let kept = names::kept()?;
    // The names that the kernel kept are those of threads, and so of main threads too.
    let name = |process: u32| name(process).or_else(|| kept.get(&process).cloned());
    let problem = format!("can't save {}", shown_path(output.named()));
    let saved = File::open(instance.path().join("trace")).and_then(|source| {
        let source = BufReader::with_capacity(1 << 16, source);
        output.fill(|to| systrace::write(source, to, processes, name))
    });
    saved.map_err(failed(&problem))?;
    output.finish().map_err(failed(problem))
}

/// Saves the trace of an instance of ours. Where that fails the instance stays, and the error says how to get
/// at it.
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

/// The error of a recording that could not be saved, and what brings it to a file.
pub(crate) fn kept(e: Failure, rescue: &str) -> Failure {
    Failure::new(format!("{e}\natrace: nothing is lost yet; make room and run: {rescue}"))
}

/// Leaves an instance that could not be saved, marked so that nobody removes it.
pub(crate) fn keep(instance: Instance) -> PathBuf {
    let _ = instance.control(MARK, "0");
    instance.keep()
}

/// Whether an instance holds a recording that could not be saved.
pub(crate) fn is_kept(path: &Path) -> bool {
    fs::read_to_string(path.join(MARK)).is_ok_and(|text| text.trim() == "0")
}

/// What brings an unsaved recording to a file.
pub(crate) fn rescue(path: &Path) -> String {
    format!("cat {} > FILE; rmdir {}", quoted_path(&path.join("trace")), quoted_path(path))
}
