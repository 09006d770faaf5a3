//! Keys and values of properties. Keys and values are checked when they are created, and do not use the heap.

use std::borrow::Cow;
use std::ffi::CStr;
use std::fmt;

use super::error::{Error, ErrorKind};
use crate::process;

/// The maximum size of a key in bytes.
///
/// An entry of the host's store has room for a key of this length. Android 8 and later allow longer keys, but no
/// property of ATrace has a longer key; Android 7 and earlier refuse keys of more than 31 bytes.
pub const KEY_MAX: usize = 183;

/// The property with the mask of enabled tags. Each switch of tracing sets this property last, so a change of its
/// serial means that the properties must be read again.
pub const FLAGS: &str = "debug.atrace.tags.enableflags";

/// The maximum size of a value in bytes, as on Android (`PROP_VALUE_MAX` without the NUL).
#[doc(alias = "PROP_VALUE_MAX")]
pub const VALUE_MAX: usize = 91;

/// A valid key, as a C string.
#[derive(Clone)]
pub(crate) struct Key {
    /// The key, padded with zeroes.
    bytes: [u8; KEY_MAX + 1],
    len: usize,
}

impl Key {
    /// Checks a key by the rules of Android's init.
    pub(crate) fn new(key: &str) -> Result<Self, Error> {
        Self::from_bytes(key.as_bytes()).map_err(|fault| {
            // The key is cut, so that a key of a megabyte does not make a message of a megabyte.
            let shown = format!("{key:.KEY_MAX$}");
            Error::new(ErrorKind::BadKey, &format_args!("{shown:?} can't be a property's key: {fault}"))
        })
    }

    /// Checks a key. If the key breaks a rule, returns an error that states the rule.
    pub(crate) fn from_bytes(key: &[u8]) -> Result<Self, &'static str> {
        let len = key.len();
        if len == 0 {
            return Err("it is empty");
        }
        if len > KEY_MAX {
            return Err("it is longer than 183 bytes");
        }
        if !key.iter().all(|byte| byte.is_ascii_alphanumeric() || b"._@:-".contains(byte)) {
            return Err("only ASCII letters, digits and . _ @ : - are allowed");
        }
        if key[0] == b'.' || key[len - 1] == b'.' || key.windows(2).any(|pair| pair == b"..") {
            return Err("a dot must stand between two other characters");
        }
        let mut bytes = [0; KEY_MAX + 1];
        bytes[..len].copy_from_slice(key);
        Ok(Self { bytes, len })
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    pub(crate) fn as_str(&self) -> &str {
        // A key is ASCII, so the conversion never fails.
        std::str::from_utf8(self.as_bytes()).unwrap_or_default()
    }

    #[cfg(target_os = "android")]
    pub(crate) fn as_c_str(&self) -> &CStr {
        // The padding of a key always contains a NUL.
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or_default()
    }

    /// Returns the key with its padding, as an entry of the store holds it.
    #[cfg(target_os = "linux")]
    pub(crate) fn padded(&self) -> &[u8; KEY_MAX + 1] {
        &self.bytes
    }
}

/// The value of a property: at most [`VALUE_MAX`] bytes without a NUL. A `Value` does not use the heap.
///
/// The value is UTF-8 by convention only. Android treats an empty value as "not set".
///
/// # Examples
///
/// ```
/// use atrace_sys::properties::Value;
///
/// assert!(Value::default().is_empty());
/// assert_eq!(Value::new(b"0x1000").unwrap().as_c_str(), c"0x1000");
/// assert!(Value::new(&[b'a'; 92]).is_err());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Value {
    /// The value, padded with at least one zero.
    bytes: [u8; VALUE_MAX + 1],
}

impl Value {
    /// Creates a value from bytes.
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::BadValue`] if there are more than [`VALUE_MAX`] bytes, or if one of them is a
    /// NUL.
    pub fn new(value: &[u8]) -> Result<Self, Error> {
        if value.len() > VALUE_MAX {
            return Err(Error::new(
                ErrorKind::BadValue,
                &format_args!(
                    "a property's value holds at most {VALUE_MAX} bytes, this one has {}; to name a long program path, use \
                 a pattern such as *name",
                    value.len()
                ),
            ));
        }
        if value.contains(&0) {
            return Err(Error::new(ErrorKind::BadValue, &"a property's value can't contain a NUL byte"));
        }
        let mut bytes = [0; VALUE_MAX + 1];
        bytes[..value.len()].copy_from_slice(value);
        Ok(Self { bytes })
    }

    /// Creates a value from the bytes before the first NUL, but from at most [`VALUE_MAX`] bytes. Returns the value,
    /// and whether a NUL follows these bytes.
    pub(crate) fn until_nul(source: impl Iterator<Item = u8>) -> (Self, bool) {
        let mut bytes = [0; VALUE_MAX + 1];
        for (index, byte) in source.take(VALUE_MAX + 1).enumerate() {
            if byte == 0 {
                return (Self { bytes }, true);
            }
            bytes[index] = byte;
        }
        bytes[VALUE_MAX] = 0;
        (Self { bytes }, false)
    }

    /// Parses a mask of tags, such as the value of [`FLAGS`], as libcutils does: by `strtoull(…, 0)`.
    ///
    /// Returns `None` if the value is empty, if anything follows the number, or if the number is `ULLONG_MAX` or larger.
    pub fn mask(&self) -> Option<u64> {
        let (number, rest) = process::number(self.as_c_str());
        number.filter(|&number| number != u64::MAX && rest.is_empty() && !self.is_empty())
    }

    /// Returns the bytes of the value.
    pub fn as_bytes(&self) -> &[u8] {
        self.as_c_str().to_bytes()
    }

    /// Returns the value as a C string.
    pub fn as_c_str(&self) -> &CStr {
        // The last byte of `bytes` is always 0.
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or_default()
    }

    /// Returns the value as text. Bytes that are not UTF-8 become U+FFFD.
    pub fn to_string_lossy(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(self.as_bytes())
    }

    /// Returns whether the value is empty, which Android treats as "not set".
    pub fn is_empty(&self) -> bool {
        self.bytes[0] == 0
    }
}

impl Default for Value {
    /// Creates an empty value.
    fn default() -> Self {
        Self { bytes: [0; VALUE_MAX + 1] }
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.to_string_lossy(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "the C library reads them")]
    fn masks_are_read_as_c_reads_them() {
        let cases: [(&str, Option<u64>); 22] = [
            ("0", Some(0)),
            ("4096", Some(4096)),
            ("0x1000", Some(4096)),
            ("0X1f", Some(31)),
            ("010000", Some(4096)),
            (" \t\n\x0b\x0c\r7", Some(7)),
            ("+7", Some(7)),
            ("-1", None), // `strtoull` returns ULLONG_MAX, which libcutils treats as an overflow
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
            assert_eq!(Value::new(text.as_bytes()).unwrap().mask(), expected, "{text:?}");
        }
    }

    #[test]
    fn keys_follow_the_rules_of_init() {
        for good in ["a", "debug.atrace.tags.enableflags", "a@b:c-d_e.F9", "-", &"k".repeat(KEY_MAX)] {
            let key = Key::new(good).unwrap();
            assert_eq!(key.as_str(), good);
        }
        for bad in
            ["", ".", ".a", "a.", "a..b", "a b", "a/b", "a\0b", "a=b", "ä", "a\n", &"k".repeat(KEY_MAX + 1)]
        {
            let error = Key::new(bad).err().unwrap_or_else(|| panic!("{bad:?} was taken"));
            assert_eq!(error.kind(), ErrorKind::BadKey);
        }
    }

    #[test]
    fn a_huge_bad_key_makes_a_small_message() {
        assert!(Key::new(&"\0".repeat(1 << 20)).err().unwrap().to_string().len() < 2000);
    }

    #[test]
    fn values_hold_up_to_91_bytes() {
        assert_eq!(Value::new(b"").unwrap(), Value::default());
        assert_eq!(Value::new(&[b'v'; VALUE_MAX]).unwrap().as_bytes(), [b'v'; VALUE_MAX]);
        assert_eq!(Value::new(&[b'v'; VALUE_MAX + 1]).unwrap_err().kind(), ErrorKind::BadValue);
        assert_eq!(Value::new(b"a\0").unwrap_err().kind(), ErrorKind::BadValue);
        assert_eq!(Value::new(b"a\xffb").unwrap().to_string_lossy(), "a\u{fffd}b");
    }

    #[test]
    fn reading_ends_at_the_first_nul_or_the_limit() {
        let (value, terminated) = Value::until_nul(b"ab\0cd".iter().copied());
        assert_eq!((value.as_bytes(), terminated), (&b"ab"[..], true));
        let (value, terminated) = Value::until_nul(std::iter::repeat(b'x'));
        assert_eq!((value.as_bytes(), terminated), (&[b'x'; VALUE_MAX][..], false));
        let (value, terminated) = Value::until_nul(std::iter::repeat_n(b'x', VALUE_MAX).chain([0]));
        assert_eq!((value.as_bytes(), terminated), (&[b'x'; VALUE_MAX][..], true));
    }
}
