//! Answers of several parts: for each its length (u32, little endian) and its bytes.

/// The maximum number of parts.
const MOST: usize = 1024;

/// An answer that is being composed.
#[derive(Clone, Debug, Default)]
pub struct Words(Vec<u8>);

impl Words {
    /// Adds a part, which is cut to [`ANSWER_MAX`](super::ANSWER_MAX) bytes.
    pub fn add(&mut self, part: impl AsRef<[u8]>) -> &mut Self {
        let part = part.as_ref();
        let part = &part[..part.len().min(super::ANSWER_MAX)];
        self.0.extend_from_slice(&(part.len() as u32).to_le_bytes());
        self.0.extend_from_slice(part);
        self
    }

    /// Returns the bytes of the answer.
    pub fn bytes(self) -> Vec<u8> {
        self.0
    }
}

/// Splits an answer into its parts; `None` if it is malformed or has more than 1024 parts.
///
/// # Examples
///
/// ```
/// use atrace_sys::errand::{Words, parse};
///
/// let mut words = Words::default();
/// words.add("one").add("");
/// let bytes = words.bytes();
/// assert_eq!(parse(&bytes), Some(vec![&b"one"[..], b""]));
/// assert_eq!(parse(&bytes[1..]), None);
/// ```
pub fn parse(mut bytes: &[u8]) -> Option<Vec<&[u8]>> {
    let mut words = Vec::new();
    while !bytes.is_empty() {
        let (length, rest) = bytes.split_first_chunk::<4>()?;
        let (word, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        if words.len() == MOST {
            return None;
        }
        words.push(word);
        bytes = rest;
    }
    Some(words)
}
