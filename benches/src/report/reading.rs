//! Reads files that others may have written: nothing that blocks, never ends or is huge, and no character that changes how
//! the text around it is read.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use serde_json::Value;

/// No file of ours is a hundredth of this.
const MAX_FILE: u64 = 16 << 20;
/// The most characters of a text.
const MAX_TEXT: usize = 300;
/// The most problems that are named one by one.
const MAX_PROBLEMS: usize = 50;

/// What could not be used, and why.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    all: Vec<String>,
    more: usize,
}

impl Problems {
    pub(crate) fn add(&mut self, problem: impl Into<String>) {
        match self.all.len() < MAX_PROBLEMS {
            true => self.all.push(clean(&problem.into(), 500)),
            false => self.more += 1,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(crate) fn into_vec(mut self) -> Vec<String> {
        if self.more > 0 {
            self.all.push(format!("and {} more", self.more));
        }
        self.all
    }
}

/// Returns `text` without what could change how the text around it is read: control characters, and those that
/// turn the direction of writing; and no longer than `max` characters.
pub(crate) fn clean(text: &str, max: usize) -> String {
    let bad = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2028}' | '\u{2029}' | '\u{2066}'..='\u{2069}')
    };
    let mut chars = text.chars().map(|c| if bad(c) { '\u{fffd}' } else { c });
    let mut out: String = chars.by_ref().take(max).collect();
    if chars.next().is_some() {
        out.push('…');
    }
    out
}

/// Reads a file of JSON that is not too large.
pub(crate) fn json(path: &Path) -> Result<Value, String> {
    let read = || -> io::Result<Value> {
        // Nothing that blocks or never ends.
        if !std::fs::metadata(path)?.is_file() {
            return Err(io::Error::other("not a file"));
        }
        let mut text = Vec::new();
        File::open(path)?.take(MAX_FILE + 1).read_to_end(&mut text)?;
        if text.len() as u64 > MAX_FILE {
            return Err(io::Error::other(format!("larger than {} MiB", MAX_FILE >> 20)));
        }
        Ok(cleaned(serde_json::from_slice(&text)?))
    };
    read().map_err(|e| format!("{} can't be read: {e}", path.display()))
}

/// The value with all its texts [clean].
fn cleaned(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(clean(&text, MAX_TEXT)),
        Value::Array(all) => all.into_iter().map(cleaned).collect(),
        Value::Object(all) => {
            all.into_iter().map(|(key, value)| (clean(&key, MAX_TEXT), cleaned(value))).collect()
        }
        other => other,
    }
}

/// Returns what is in a directory, by name. One that does not exist is empty.
pub(crate) fn entries(dir: &Path, problems: &mut Problems) -> BTreeMap<String, std::path::PathBuf> {
    match std::fs::read_dir(dir) {
        Ok(entries) => entries
            .filter_map(Result::ok)
            .filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())))
            .filter(|(name, _)| !name.starts_with('.'))
            .take(10_000)
            .collect(),
        Err(e) if e.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
        Err(e) => {
            problems.add(format!("{} can't be read: {e}", dir.display()));
            BTreeMap::new()
        }
    }
}
