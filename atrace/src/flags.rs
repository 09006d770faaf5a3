//! What the properties say: which tags are enabled in this process, by libcutils' rules.
//!
//! - `debug.atrace.tags.enableflags` is the mask, as `strtoull(…, 0)` reads it; anything that is no number,
//!   or too large, enables nothing at all.
//! - [`AtraceTag::App`] ignores the mask: it is enabled when one of `debug.atrace.app_0` … `app_{N-1}`
//!   matches argv\[0\], N being `debug.atrace.app_number`.
//! - [`AtraceTag::Always`] is enabled, unless the mask is no number.

use std::ffi::CStr;
use std::fmt::Write as _;

use atrace_sys::process;
use atrace_sys::properties::Value;

use crate::AtraceTag;

/// The property that holds the mask, and whose serial tells that something changed.
pub(crate) const FLAGS: &str = "debug.atrace.tags.enableflags";
/// The property that tells how many app patterns there are.
pub(crate) const APP_NUMBER: &str = "debug.atrace.app_number";
/// What the properties of the app patterns start with.
pub(crate) const APP_PREFIX: &str = "debug.atrace.app_";

/// How many patterns are looked at, at most. libcutils would ask for as many as a damaged number says.
pub(crate) const APPS_MAX: i32 = 1024;

/// The key of the pattern with this number.
#[derive(Clone, Copy)]
pub(crate) struct AppKey {
    text: [u8; APP_PREFIX.len() + 11],
    len: usize,
}

impl AppKey {
    pub(crate) fn new(number: i32) -> Self {
        let mut key = Self { text: [0; APP_PREFIX.len() + 11], len: 0 };
        // Fits: an i32 has at most eleven characters.
        let _ = write!(key, "{APP_PREFIX}{number}");
        key
    }

    pub(crate) fn as_str(&self) -> &str {
        self.text.get(..self.len).and_then(|text| str::from_utf8(text).ok()).unwrap_or("")
    }
}

impl std::fmt::Write for AppKey {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let place = self.text.get_mut(self.len..self.len + text.len()).ok_or(std::fmt::Error)?;
        place.copy_from_slice(text.as_bytes());
        self.len += text.len();
        Ok(())
    }
}

/// Returns the tags that are enabled, `get` reading a property.
pub(crate) fn enabled_tags(get: impl Fn(&str) -> Option<Value>) -> AtraceTag {
    let Some(flags) = flags(&get) else { return AtraceTag::empty() };
    let mut tags = AtraceTag::from_bits_retain(flags);
    tags.set(AtraceTag::App, app_matches(&get));
    (tags | AtraceTag::Always) & AtraceTag::ValidMask
}

/// A call: its value is on a stack that may be a signal handler's.
#[inline(never)]
fn flags(get: &impl Fn(&str) -> Option<Value>) -> Option<u64> {
    match get(FLAGS) {
        Some(value) if !value.as_bytes().is_empty() => parse_flags(value.as_bytes()),
        _ => Some(0),
    }
}

/// Returns how many app patterns the properties name.
pub(crate) fn app_number(get: impl Fn(&str) -> Option<Value>) -> i32 {
    get(APP_NUMBER).map_or(0, |value| parse_i32(value.as_bytes()).unwrap_or(0))
}

fn app_matches(get: &impl Fn(&str) -> Option<Value>) -> bool {
    let number = app_number(get).min(APPS_MAX);
    if number <= 0 {
        return false;
    }
    process::with_argv0(|name| {
        name.is_some_and(|name| {
            (0..number).any(|index| pattern_matches(get(AppKey::new(index).as_str()), name))
        })
    })
}

fn pattern_matches(pattern: Option<Value>, name: &CStr) -> bool {
    match pattern {
        Some(pattern) => process::matches(pattern.as_c_str(), name),
        None => process::matches(c"", name),
    }
}

/// Reads a number as C's `strtoull` with base 0 does: spaces, a sign, `0x` or `0` or decimal. None: not only a
/// number, or one that is too large.
pub(crate) fn parse_flags(text: &[u8]) -> Option<u64> {
    let (number, rest) = parse_prefix(text)?;
    let value = number?;
    (rest.is_empty() && value != u64::MAX).then_some(value)
}

/// [`parse_flags`], an empty text and what is no number being 0.
pub(crate) fn parse_flags_or_0(text: &[u8]) -> u64 {
    parse_flags(text).unwrap_or(0)
}

/// Reads a number as libcutils' `property_get_int32` does: as `strtoimax` with base 0, whatever follows.
fn parse_i32(text: &[u8]) -> Option<i32> {
    let negative = text.trim_ascii_start_c().first() == Some(&b'-');
    let value = parse_prefix(text)?.0?;
    // The magnitude: a negative number came back negated, as strtoull does it.
    let magnitude = i64::try_from(if negative { value.wrapping_neg() } else { value }).ok()?;
    i32::try_from(if negative { -magnitude } else { magnitude }).ok()
}

trait TrimC {
    fn trim_ascii_start_c(&self) -> &Self;
}

impl TrimC for [u8] {
    /// Without what C's `isspace` takes for space, the vertical tab included.
    fn trim_ascii_start_c(&self) -> &[u8] {
        let spaces = self.iter().take_while(|byte| matches!(byte, b' ' | b'\t'..=b'\r')).count();
        self.get(spaces..).unwrap_or_default()
    }
}

/// The number a text starts with (None: out of range) and what follows it; None where there is no number.
fn parse_prefix(text: &[u8]) -> Option<(Option<u64>, &[u8])> {
    let text = text.trim_ascii_start_c();
    let (negative, text) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        rest => (false, rest),
    };
    let (base, digits) = match text {
        [b'0', b'x' | b'X', rest @ ..] if rest.first().is_some_and(u8::is_ascii_hexdigit) => (16, rest),
        [b'0', ..] => (8, text),
        rest => (10, rest),
    };
    let mut value = Some(0_u64);
    let mut length = 0;
    while let Some(digit) = digits.get(length).and_then(|&byte| char::from(byte).to_digit(base)) {
        value = value.and_then(|value| value.checked_mul(base.into())?.checked_add(digit.into()));
        length += 1;
    }
    if length == 0 {
        return None;
    }
    Some((value.map(|value| if negative { value.wrapping_neg() } else { value }), digits.get(length..)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_read_as_c_reads_them() {
        let cases: [(&str, Option<u64>); 22] = [
            ("0", Some(0)),
            ("4096", Some(4096)),
            ("0x1000", Some(4096)),
            ("0X1f", Some(31)),
            ("010000", Some(4096)),
            (" \t\n\x0b\x0c\r7", Some(7)),
            ("+7", Some(7)),
            ("-1", None), // ULLONG_MAX, which libcutils takes for too large
            ("-2", Some(u64::MAX - 1)),
            ("18446744073709551614", Some(u64::MAX - 1)),
            ("18446744073709551615", None),
            ("18446744073709551616", None),
            ("0xffffffffffffffff", None),
            ("", None),
            (" ", None),
            ("0x", None),
            ("0xg", None),
            ("08", None),
            ("12 ", None),
            ("1e3", None),
            ("on", None),
            ("--1", None),
        ];
        for (text, expected) in cases {
            assert_eq!(parse_flags(text.as_bytes()), expected, "{text:?}");
        }
    }

    #[test]
    fn numbers_of_apps_are_read_as_c_reads_them() {
        let cases: [(&str, Option<i32>); 11] = [
            ("3", Some(3)),
            ("3 apps", Some(3)),
            ("0x10", Some(16)),
            ("-3", Some(-3)),
            ("2147483647", Some(i32::MAX)),
            ("2147483648", None),
            ("-2147483648", Some(i32::MIN)),
            ("99999999999999999999999", None),
            ("", None),
            ("many", None),
            ("-", None),
        ];
        for (text, expected) in cases {
            assert_eq!(parse_i32(text.as_bytes()), expected, "{text:?}");
        }
    }

    /// What the C library makes of a text, and what libcutils makes of that.
    #[test]
    #[cfg_attr(miri, ignore = "the C library's functions are what it is about")]
    #[allow(unsafe_code, reason = "C's functions are called")]
    fn numbers_are_read_as_the_c_library_reads_them() {
        use std::ffi::{CString, c_char, c_int, c_ulonglong};
        // The signatures are those of stdlib.h and inttypes.h, where intmax_t has 64 bits.
        unsafe extern "C" {
            fn strtoull(text: *const c_char, end: *mut *mut c_char, base: c_int) -> c_ulonglong;
            fn strtoimax(text: *const c_char, end: *mut *mut c_char, base: c_int) -> i64;
        }
        fn errno() -> i32 {
            std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
        }
        fn clear_errno() {
            #[cfg(target_os = "android")]
            use libc::__errno as errno_location;
            #[cfg(not(target_os = "android"))]
            use libc::__errno_location as errno_location;
            // SAFETY: the calling thread's own errno.
            unsafe { *errno_location() = 0 };
        }
        fn c_flags(text: &CString) -> Option<u64> {
            clear_errno();
            let mut end = std::ptr::null_mut();
            // SAFETY: a C string, and a place for the end.
            let value = unsafe { strtoull(text.as_ptr(), &mut end, 0) };
            let range = errno() == libc::ERANGE;
            // SAFETY: `end` points into the text.
            let rest = unsafe { *end } != 0;
            (!text.is_empty() && !rest && !range && value != u64::MAX).then_some(value)
        }
        fn c_i32(text: &CString) -> Option<i32> {
            clear_errno();
            let mut end = std::ptr::null_mut();
            // SAFETY: as above.
            let value = unsafe { strtoimax(text.as_ptr(), &mut end, 0) };
            let range = errno() == libc::ERANGE;
            (!std::ptr::eq(end, text.as_ptr()) && !range).then(|| i32::try_from(value).ok())?
        }

        /// Whether no digit stands behind a `0x`, which old bionics do not take for the number 0.
        fn has_bare_prefix(text: &str) -> bool {
            let text = text.to_ascii_lowercase();
            text.match_indices("0x")
                .any(|(at, it)| !text[at + it.len()..].starts_with(|c: char| c.is_ascii_hexdigit()))
        }

        let mut numbers = 0;
        let mut check = |text: &str| {
            if cfg!(target_os = "android") && has_bare_prefix(text) {
                return;
            }
            let c = CString::new(text).unwrap();
            assert_eq!(parse_flags(text.as_bytes()), c_flags(&c), "{text:?}");
            assert_eq!(parse_i32(text.as_bytes()), c_i32(&c), "{text:?}");
            numbers += usize::from(c_flags(&c).is_some());
        };

        // What a number consists of, each part missing, as it should be, repeated, and not of the kind.
        const SPACES: [&str; 4] = ["", " ", "\t\n\x0b\x0c\r ", "\u{a0}"];
        const SIGNS: [&str; 5] = ["", "-", "+", "--", "+-"];
        const PREFIXES: [&str; 5] = ["", "0", "0x", "0X", "x"];
        // The largest of 31, 32, 63 and 64 bits and the first beyond, by each base.
        const DIGITS: [&str; 26] = [
            "",
            "0",
            "1",
            "7",
            "8",
            "9",
            "a",
            "F",
            "g",
            "2147483647",
            "2147483648",
            "2147483649",
            "9223372036854775807",
            "9223372036854775808",
            "9223372036854775809",
            "18446744073709551615",
            "18446744073709551616",
            "7fffffff",
            "80000000",
            "7fffffffffffffff",
            "8000000000000000",
            "ffffffffffffffff",
            "10000000000000000",
            "777777777777777777777",
            "1777777777777777777777",
            "2000000000000000000000",
        ];
        const TAILS: [&str; 7] = ["", " ", "8", "x", "0x", "-", "."];
        for spaces in SPACES {
            for sign in SIGNS {
                for prefix in PREFIXES {
                    for digits in DIGITS {
                        for tail in TAILS {
                            check(&[spaces, sign, prefix, digits, tail].concat());
                        }
                    }
                }
            }
        }
        // Every byte that can stand in a text, before a number, as its only digit, within it and behind it.
        for byte in 1..=0x7f {
            let byte = char::from(byte);
            for text in [
                format!("{byte}1"),
                format!("{byte}"),
                format!("0x{byte}1"),
                format!("1{byte}2"),
                format!("1{byte}"),
            ] {
                check(&text);
            }
        }
        assert!(numbers > 500, "too few of the texts are numbers: {numbers}");
    }

    #[test]
    fn keys_are_numbered() {
        assert_eq!(AppKey::new(0).as_str(), "debug.atrace.app_0");
        assert_eq!(AppKey::new(i32::MIN).as_str(), "debug.atrace.app_-2147483648");
    }
}
