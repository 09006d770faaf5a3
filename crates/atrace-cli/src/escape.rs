//! Escapes text that other users chose, so that it can be printed on a terminal or used in a shell command.
//!
//! Process names, patterns and paths of other users may contain any bytes: control sequences for the terminal, line
//! ends that forge a line of the output, or quotes that end a word of a shell command. The command and the doctor
//! escape all such text before they print it.

use std::fmt::{self, Write as _};

/// Returns a display of another user's text on one line, in which all characters that are not printable are escaped.
///
/// Control characters, line ends, direction marks, zero-width characters, and bytes that are not UTF-8 are escaped
/// (`\x1b`, `\u{202e}`). A backslash is not escaped: the result is for human readers and can't be decoded.
///
/// # Examples
///
/// ```
/// use atrace_cli::escape::shown;
///
/// assert_eq!(shown("naïve *name").to_string(), "naïve *name");
/// assert_eq!(shown("a\x1b[2Jb\nc").to_string(), r"a\x1b[2Jb\x0ac");
/// assert_eq!(shown(b"\xff\xe2\x80\xae").to_string(), r"\xff\u{202e}");
/// ```
pub fn shown<T: AsRef<[u8]> + ?Sized>(text: &T) -> impl fmt::Display + '_ {
    struct Shown<'a>(&'a [u8]);
    impl fmt::Display for Shown<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            for chunk in self.0.utf8_chunks() {
                chunk.valid().chars().try_for_each(|c| show(c, f))?;
                chunk.invalid().iter().try_for_each(|byte| write!(f, "\\x{byte:02x}"))?;
            }
            Ok(())
        }
    }
    Shown(text.as_ref())
}

fn show(c: char, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match c {
        '\\' | '\'' | '"' => f.write_char(c),
        _ if c.is_ascii_control() => write!(f, "\\x{:02x}", u32::from(c)),
        // `escape_debug` uses Rust's own table of printable characters.
        _ if c.escape_debug().len() > 1 => write!(f, "{}", c.escape_unicode()),
        _ => f.write_char(c),
    }
}

/// Quotes a text as one word of a POSIX shell, for commands that the output suggests.
///
/// A text with characters that are not printable is quoted as `$'…'`. bash, zsh and mksh understand this form, and so
/// does every shell that follows POSIX.1-2024.
///
/// # Examples
///
/// ```
/// use atrace_cli::escape::quoted;
///
/// assert_eq!(quoted("plain-name"), "plain-name");
/// assert_eq!(quoted("*svc'; touch x"), r"'*svc'\''; touch x'");
/// assert_eq!(quoted("a\nb"), r"$'a\012b'");
/// ```
pub fn quoted<T: AsRef<[u8]> + ?Sized>(text: &T) -> String {
    let bytes = text.as_ref();
    let printable = std::str::from_utf8(bytes)
        .ok()
        .filter(|text| text.chars().all(|c| matches!(c, '\\' | '\'' | '"') || c.escape_debug().len() == 1));
    match printable {
        Some(text) if !text.is_empty() && text.bytes().all(is_plain) && !text.starts_with('~') => {
            text.to_owned()
        }
        Some(text) => format!("'{}'", text.replace('\'', r"'\''")),
        None => {
            let mut word = String::from("$'");
            for &byte in bytes {
                match byte {
                    b'\\' | b'\'' => word.extend(['\\', char::from(byte)]),
                    b' '..=b'~' => word.push(char::from(byte)),
                    // The escape always has three digits, because the next character may be a digit, too.
                    _ => {
                        let _ = write!(word, "\\{byte:03o}");
                    }
                }
            }
            word + "'"
        }
    }
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_-./:=@%+,".contains(&byte) || byte >= 0x80
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_back_what_was_quoted() {
        let hostile = [
            "",
            "plain",
            "a b",
            "'",
            "*svc'; touch /tmp/x; '",
            "$(id)",
            "`id`",
            "~root",
            "-n",
            "a\nb",
            "\x1b[2J1",
            "\\x41",
            "a\\",
            "\u{202e}x",
            "!!",
            "ü",
        ];
        let random = (0..200_u32).map(|seed| {
            let byte = |n: u32| (seed.wrapping_mul(2_654_435_761).rotate_left(n * 5) ^ n) as u8;
            (0..12).map(byte).map(|byte| byte.max(1)).collect::<Vec<u8>>()
        });
        for text in hostile.iter().map(|text| text.as_bytes().to_vec()).chain(random) {
            let quoted = quoted(&text);
            assert!(!quoted.chars().any(char::is_control), "{quoted:?}");
            let script = format!("printf %s {quoted}");
            let output = std::process::Command::new("bash").args(["-c", &script]).output().unwrap();
            assert_eq!(output.stdout, text, "{quoted}");
        }
    }

    #[test]
    fn nothing_that_is_shown_moves_the_cursor() {
        for code in (0..0x3000).chain(0xfe00..0x1_0100).filter_map(char::from_u32) {
            let text = shown(&code.to_string()).to_string();
            assert!(
                text.chars().all(|c| matches!(c, '\\' | '\'' | '"') || c.escape_debug().len() == 1),
                "{code:?}"
            );
        }
    }
}
