//! Reads files that other users may have written. Reading never blocks, refuses endless or huge files, and replaces
//! characters that would change how the surrounding text is displayed.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use serde_json::Value;

/// The maximum size of a file in bytes. The files that the benches write are dozens of times smaller.
const MAX_FILE: u64 = 16 << 20;
/// The maximum number of characters of a text in a file.
const MAX_TEXT: usize = 300;
/// Replaces control characters and characters that change the direction of writing, which could change how the
/// surrounding text is displayed. Shortens the text to `max` characters.
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

/// Reads a JSON file of limited size.
pub(crate) fn json(path: &Path) -> Result<Value, String> {
    let read = || -> io::Result<Value> {
        // Reading anything but a regular file could block or never end.
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

/// Applies [clean] to all texts of a JSON value, including the keys of objects.
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
