//! Makes app patterns: values of the properties `debug.atrace.app_N` that match a process name.

use super::VALUE_MAX;

/// Returns a pattern of at most 91 bytes that matches the process name `name`.
///
/// The pattern is the name with its special characters in brackets. If that pattern would be too long, the pattern is
/// `*` followed by the last part of the name. If possible, this part starts at a `/`.
pub fn pattern_for(name: &[u8]) -> Vec<u8> {
    let whole = literal(name);
    if whole.len() <= VALUE_MAX {
        return whole;
    }
    let fits = |start: &usize| literal(&name[*start..]).len() < VALUE_MAX;
    let at_slash = (0..name.len()).filter(|&at| name[at] == b'/').find(fits);
    let start = at_slash.or_else(|| (0..name.len()).find(fits)).unwrap_or(name.len());
    [b"*", literal(&name[start..]).as_slice()].concat()
}

/// Returns a pattern that matches only `text`. Special characters are in brackets, because a backslash escapes
/// nothing in a pattern.
fn literal(text: &[u8]) -> Vec<u8> {
    text.iter().fold(Vec::new(), |mut pattern, &byte| {
        match byte {
            b'*' | b'?' | b'[' => pattern.extend([b'[', byte, b']']),
            _ => pattern.push(byte),
        }
        pattern
    })
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;

    use super::*;
    use crate::process;

    #[test]
    #[cfg_attr(miri, ignore = "fnmatch is foreign code")]
    fn a_pattern_matches_the_name_it_was_made_for() {
        let long = format!("/a/{}/bench-0123456789abcdef", "deep/".repeat(40));
        let endless = "x".repeat(300);
        for name in ["/bin/true", "a*b?c[d]e\\f", "[*]", long.as_str(), endless.as_str(), "naïve/…"] {
            let pattern = pattern_for(name.as_bytes());
            assert!(pattern.len() <= VALUE_MAX, "{name}");
            let c = |text: &[u8]| CString::new(text).unwrap();
            assert!(
                process::matches(&c(&pattern), &c(name.as_bytes())),
                "{name}: {}",
                pattern.escape_ascii()
            );
        }
        assert_eq!(pattern_for(b"/bin/true"), b"/bin/true");
        // A name of the maximum length of a value, and a name that is one byte longer.
        assert_eq!(pattern_for(&[b'x'; 91]), [b'x'; 91]);
        assert_eq!(pattern_for(&[b'x'; 92]), [&b"*"[..], &[b'x'; 90]].concat());
        assert!(pattern_for(long.as_bytes()).starts_with(b"*/deep/"));
        let other = CString::new(pattern_for(b"a*b")).unwrap();
        assert!(!process::matches(&other, c"axb"));
    }
}
