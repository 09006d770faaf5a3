//! Matches shell patterns on hosts (Linux other than Android). The C library's `fnmatch` is not used: if the program
//! has chosen a locale, `fnmatch` allocates and takes a lock, and code that writes an event may do neither.
//!
//! The syntax is that of `fnmatch(3)` with `FNM_NOESCAPE` in the locale "C": `*`, `?`, and sets of bytes in brackets. A
//! set may contain ranges, and a `!` or `^` at its start makes it the set of all other bytes. A bracket that is not
//! closed is an ordinary character. A set may also contain classes such as `[:alpha:]`, but no collating symbols or
//! equivalence classes.

/// Returns whether the whole of `text` matches the pattern. The time is at most proportional to the length of the text
/// times the square of the length of the pattern.
pub(crate) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut in_pattern, mut in_text) = (0, 0);
    // The positions in the pattern and in the text from which to try again, if the part of the pattern after the last
    // `*` does not match.
    let mut again = None;
    loop {
        let rest = &pattern[in_pattern..];
        if rest.first() == Some(&b'*') {
            in_pattern += 1;
            again = Some((in_pattern, in_text + 1));
            continue;
        }
        let len = match text.get(in_text) {
            Some(byte) => one(rest, *byte),
            None if rest.is_empty() => return true,
            None => None,
        };
        match (len, again) {
            (Some(len), _) => (in_pattern, in_text) = (in_pattern + len, in_text + 1),
            (None, Some(next)) if next.1 <= text.len() => {
                (in_pattern, in_text) = next;
                again = Some((next.0, next.1 + 1));
            }
            _ => return false,
        }
    }
}

/// Returns the length of the first element of the pattern (`?`, a set, or an ordinary byte), or `None` if that element
/// does not match the byte.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    let (first, rest) = pattern.split_first()?;
    let (len, is_match) = match first {
        b'?' => (1, true),
        b'[' => set(rest, byte).map_or((1, byte == b'['), |(len, has)| (1 + len, has)),
        literal => (1, *literal == byte),
    };
    is_match.then_some(len)
}

/// Returns the length of a set, from behind its opening bracket up to and including its closing bracket, and whether
/// the set contains the byte. Returns `None` if the bracket is not closed.
fn set(pattern: &[u8], byte: u8) -> Option<(usize, bool)> {
    let start = usize::from(matches!(pattern.first(), Some(b'!' | b'^')));
    let (mut at, mut has) = (start, false);
    loop {
        if let Some((len, is_in)) = class(&pattern[at..], byte) {
            (at, has) = (at + len, has | is_in);
            continue;
        }
        let low = *pattern.get(at)?;
        // A closing bracket in the first position is a member of the set.
        if low == b']' && at > start {
            return Some((at + 1, has == (start == 0)));
        }
        let (high, len) = match pattern[at + 1..] {
            [b'-', high, ..] if high != b']' => (high, 3),
            _ => (low, 1),
        };
        at += len;
        has |= (low..=high).contains(&byte);
    }
}

/// Returns the length of a class such as `[:alpha:]` at the start of `pattern`, and whether the class contains the
/// byte. Returns `None` if `pattern` does not start with a class of a known name.
fn class(pattern: &[u8], byte: u8) -> Option<(usize, bool)> {
    let name = pattern.strip_prefix(b"[:")?;
    let len = name.windows(2).position(|end| end == b":]")?;
    let is_in = match &name[..len] {
        b"alnum" => byte.is_ascii_alphanumeric(),
        b"alpha" => byte.is_ascii_alphabetic(),
        b"blank" => matches!(byte, b' ' | b'\t'),
        b"cntrl" => byte.is_ascii_control(),
        b"digit" => byte.is_ascii_digit(),
        b"graph" => byte.is_ascii_graphic(),
        b"lower" => byte.is_ascii_lowercase(),
        b"print" => byte.is_ascii_graphic() || byte == b' ',
        b"punct" => byte.is_ascii_punctuation(),
        b"space" => byte.is_ascii_whitespace() || byte == 0x0b,
        b"upper" => byte.is_ascii_uppercase(),
        b"xdigit" => byte.is_ascii_hexdigit(),
        _ => return None,
    };
    Some((b"[:".len() + len + b":]".len(), is_in))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares the results with those of the C library's `fnmatch`, for random patterns and texts, and for chosen
    /// patterns with every nonzero byte.
    #[test]
    #[cfg_attr(miri, ignore = "fnmatch is foreign code")]
    #[cfg(not(no_tracing))]
    fn results_are_those_of_the_c_library() {
        use crate::c_text::CText;
        use crate::system::c::fnmatch;

        let check = |pattern: &[u8], text: &[u8]| {
            let c = |text: &[u8]| std::ffi::CString::new(text).unwrap();
            let (of_pattern, of_text) = (c(pattern), c(text));
            let by_library =
                fnmatch(CText::from(&*of_pattern), CText::from(&*of_text), libc::FNM_NOESCAPE) == 0;
            let shown = (pattern.escape_ascii().to_string(), text.escape_ascii().to_string());
            assert_eq!(matches(pattern, text), by_library, "{shown:?}");
        };
        let mut random = 1_u64;
        let mut next = |below: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) as usize % below
        };
        let mut some =
            |of: &[u8], most: usize| -> Vec<u8> { (0..next(most + 1)).map(|_| of[next(of.len())]).collect() };
        for _ in 0..300_000 {
            check(&some(b"ab-[]!^*?\\/\xc3", 8), &some(b"abc-[]!^\\/.\xc3", 6));
        }
        for pattern in [&b"[a-c]*[!a-c]"[..], b"[]-a]", b"[c-a]", b"[a-]", b"[", b"[!", b"[^]a]", b"**?"] {
            (1..=255_u8).for_each(|byte| check(pattern, &[byte]));
        }
        let names = "alnum alpha blank cntrl digit graph lower print punct space upper xdigit";
        for pattern in names.split(' ').flat_map(|name| [format!("[[:{name}:]]"), format!("[!x[:{name}:]-]")])
        {
            let pattern = pattern.as_bytes();
            (0..=255_u8).filter(|byte| *byte != 0).for_each(|byte| check(pattern, &[byte]));
        }
    }
}
