//! Determines from the properties which tags are enabled in this process, by the rules of libcutils:
//!
//! - `debug.atrace.tags.enableflags` is the mask of tags, a number that is parsed as by `strtoull(…, 0)`. If the text
//!   is not a number, or the number is too large, no tag is enabled. An empty or missing property counts as 0.
//! - [`AtraceTag::App`] does not depend on the bits of this number. It is enabled if one of the patterns
//!   `debug.atrace.app_0` … `app_{N-1}` matches argv\[0\] (or, on a host, the last path component of argv\[0\]), where
//!   N is the value of `debug.atrace.app_number`.
//! - [`AtraceTag::Always`] is enabled if the mask is a number, even if it is 0.
//!
//! Source: `libcutils/trace-dev.inc` of AOSP.

use std::ffi::CStr;
use std::fmt::Write as _;

use atrace_sys::process;
use atrace_sys::properties::{FLAGS, Value};

use crate::AtraceTag;

/// The property with the number of app patterns.
pub(crate) const APP_NUMBER: &str = "debug.atrace.app_number";
/// The prefix of the properties with the app patterns.
pub(crate) const APP_PREFIX: &str = "debug.atrace.app_";

/// The maximum number of patterns that are read. libcutils has no maximum: if the property with the number of patterns
/// is damaged, libcutils reads as many patterns as the damaged value says.
pub(crate) const APPS_MAX: i32 = 1024;

/// The name of the property that holds an app pattern, in a buffer on the stack.
#[derive(Clone, Copy)]
pub(crate) struct AppKey {
    text: [u8; APP_PREFIX.len() + 11],
    len: usize,
}

impl AppKey {
    pub(crate) fn new(number: i32) -> Self {
        let mut key = Self { text: [0; APP_PREFIX.len() + 11], len: 0 };
        // The key fits into the buffer, because an i32 has at most eleven characters.
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

/// Returns the enabled tags. `get` returns the value of a property.
pub(crate) fn enabled_tags(get: impl Fn(&str) -> Option<Value>) -> AtraceTag {
    let Some(flags) = flags(&get) else { return AtraceTag::empty() };
    let mut tags = AtraceTag::from_bits_retain(flags);
    tags.set(AtraceTag::App, app_matches(&get));
    (tags | AtraceTag::Always) & AtraceTag::ValidMask
}

/// Returns the mask of tags, or `None` if the property is not a number. This function is not inlined, because the value
/// of the property takes room on the stack, and the stack of a signal handler may be small.
#[inline(never)]
fn flags(get: &impl Fn(&str) -> Option<Value>) -> Option<u64> {
    match get(FLAGS) {
        Some(value) if !value.is_empty() => value.mask(),
        _ => Some(0),
    }
}

/// Returns the number of app patterns.
pub(crate) fn app_number(get: impl Fn(&str) -> Option<Value>) -> i32 {
    get(APP_NUMBER).as_ref().and_then(parse_i32).unwrap_or(0)
}

fn app_matches(get: &impl Fn(&str) -> Option<Value>) -> bool {
    let number = app_number(get).min(APPS_MAX);
    if number <= 0 {
        return false;
    }
    process::with_argv0(|name| {
        let Some(name) = name else { return false };
        // This is a loop, not an iterator: in an unoptimised build each adaptor takes room on the stack, which may be a
        // signal handler's.
        for index in 0..number {
            if pattern_matches(get(AppKey::new(index).as_str()), name) {
                return true;
            }
        }
        false
    })
}

fn pattern_matches(pattern: Option<Value>, name: &CStr) -> bool {
    match pattern {
        Some(pattern) => process::matches_name(pattern.as_c_str(), name),
        None => process::matches_name(c"", name),
    }
}

/// Parses the text of a mask of tags, as [`Value::mask`] does.
pub(crate) fn parse_mask(text: &[u8]) -> Option<u64> {
    Value::new(text).ok()?.mask()
}

/// Parses the number at the start of a text, as libcutils' `property_get_int32` does. Any text may follow the
/// number.
fn parse_i32(text: &Value) -> Option<i32> {
    let (number, rest) = process::signed_number(text.as_c_str());
    let is_number = rest.count_bytes() < text.as_bytes().len();
    i32::try_from(number.filter(|_| is_number)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "the C library reads them")]
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
            assert_eq!(parse_i32(&Value::new(text.as_bytes()).unwrap()), expected, "{text:?}");
        }
    }

    #[test]
    fn keys_are_numbered() {
        assert_eq!(AppKey::new(0).as_str(), "debug.atrace.app_0");
        assert_eq!(AppKey::new(i32::MIN).as_str(), "debug.atrace.app_-2147483648");
    }
}
