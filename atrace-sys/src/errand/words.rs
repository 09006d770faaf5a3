//! An answer of several parts: each its length, four bytes with the low one first, and its bytes.

/// How many parts there can be.
const MOST: usize = 1024;

/// Parts in the making.
#[derive(Clone, Debug, Default)]
pub struct Words(Vec<u8>);

impl Words {
    /// Adds a part, which is cut where an answer has no room for it.
    pub fn add(&mut self, part: impl AsRef<[u8]>) -> &mut Self {
        let part = part.as_ref();
        let part = &part[..part.len().min(super::ANSWER_MAX)];
        self.0.extend_from_slice(&(part.len() as u32).to_le_bytes());
        self.0.extend_from_slice(part);
        self
    }

    /// The bytes of the answer.
    pub fn bytes(self) -> Vec<u8> {
        self.0
    }
}

/// Takes the parts apart; `None` where the bytes are none, or too many.
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
