//! Refuses patterns that can't match any name, before a user waits for a recording with one.
//!
//! Sets of characters are checked with `fnmatch`, which the traced programs use, too.

use std::ffi::CString;

use crate::escape::shown;
use atrace_sys::process::matches;
use atrace_sys::properties::VALUE_MAX;

use crate::command::terminal::{Failure, Result};

/// Refuses patterns that match no name, or that don't mean what they seem to.
pub(crate) fn check_all(patterns: &[String]) -> Result<()> {
    patterns.iter().try_for_each(|pattern| check(pattern))
}

fn check(pattern: &str) -> Result<()> {
    let refused = |what: &str, help: &str| {
        Err(Failure::new(format!("the pattern {} matches nothing: {what}; {help}", shown(pattern))))
    };
    if pattern.is_empty() {
        return Err(Failure::new("an empty pattern matches no process"));
    }
    if pattern.len() > VALUE_MAX {
        let start = (pattern.len() - (VALUE_MAX - 1)..pattern.len()).find(|&at| pattern.is_char_boundary(at));
        let end = start.and_then(|start| pattern.get(start..)).unwrap_or_default();
        return Err(Failure::new(format!(
            "a pattern has at most {VALUE_MAX} bytes, this has {}: give its end, as '*{}'",
            pattern.len(),
            shown(end)
        )));
    }
    if pattern.contains('\0') {
        return refused("it holds a NUL byte", "leave that out");
    }
    // A name is the first line of argv[0], including its line end.
    if pattern.find('\n').is_some_and(|at| at + 1 < pattern.len()) {
        return refused("a name is one line", "give the part before the line end, and '*'");
    }
    let bytes = pattern.as_bytes();
    let mut at = 0;
    while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
        if !rest.starts_with(b"[") {
            at += 1;
            continue;
        }
        let Some(len) = set(rest) else {
            return refused("its '[' begins a set that has no ']'", "for the character itself write '[[]'");
        };
        let set = rest.get(..len).unwrap_or_default();
        if !has_member(set) {
            let set = String::from_utf8_lossy(set);
            let what = format!("no character is in its set {}", shown(set.as_ref()));
            return refused(&what, "write '?' for any character, '*' for any text, '[[]' for '[' itself");
        }
        at += len;
    }
    Ok(())
}

/// Returns the length of the set of characters at the start of `bytes`, including its brackets, or `None` if it has
/// no end.
fn set(bytes: &[u8]) -> Option<usize> {
    let mut at = 1;
    at += usize::from(matches!(bytes.get(at), Some(b'!' | b'^')));
    // A `]` in the first position is a member of the set.
    at += usize::from(bytes.get(at) == Some(&b']'));
    loop {
        match (bytes.get(at)?, bytes.get(at + 1)) {
            (b']', _) => return Some(at + 1),
            // A class such as `[:alpha:]` has an end of its own.
            (b'[', Some(&kind @ (b':' | b'.' | b'='))) => {
                let inner = bytes.get(at + 2..)?;
                match inner.windows(2).position(|end| end == [kind, b']']) {
                    Some(len) => at += len + 4,
                    None => at += 1,
                }
            }
            _ => at += 1,
        }
    }
}

fn has_member(set: &[u8]) -> bool {
    let Ok(set) = CString::new(set) else { return false };
    (1..=u8::MAX).any(|byte| CString::new([byte]).is_ok_and(|text| matches(&set, &text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_that_match_something_pass() {
        for (pattern, name) in [
            ("*", "x"),
            ("/usr/bin/[a-z]*", "/usr/bin/x"),
            ("[]]", "]"),
            ("[!]]x", "ax"),
            ("[[]", "["),
            ("x]", "x]"),
            ("[[:alpha:]_]", "_"),
            ("[^a]", "b"),
            ("[a\\]", "\\"),
            ("line\n", "line\n"),
        ] {
            check(pattern).unwrap();
            let (pattern, name) = (CString::new(pattern).unwrap(), CString::new(name).unwrap());
            assert!(matches(&pattern, &name), "{pattern:?} {name:?}");
        }
    }

    #[test]
    fn patterns_that_match_nothing_are_refused() {
        for pattern in
            ["[", "*/svc[", "[]", "[!]", "[a", "[[:alpha:]", "[z-a]x", "[[:no-class:]]", "a\nb", "\0"]
        {
            let refused = check(pattern).unwrap_err().to_string();
            assert!(refused.contains("matches nothing"), "{refused}");
            assert!(!refused.contains('\n') && !refused.contains('\0'), "{refused:?}");
        }
        assert!(check("*/svc[").unwrap_err().to_string().contains("'[[]'"));
    }
}
