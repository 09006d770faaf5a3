//! Lists of static names, stored as one text.
//!
//! An array of `&str` would hold an address for each name, which the loader has to relocate when the program starts. A
//! single text has no such cost. To find a name, the text has to be scanned, but names are rarely looked up.

/// A text of names, and the byte that separates the names.
#[derive(Debug)]
pub(crate) struct Names(pub(crate) &'static str, pub(crate) u8);

impl Names {
    fn all(&self) -> impl Iterator<Item = &'static [u8]> {
        self.0.as_bytes().split(|byte| *byte == self.1)
    }

    /// Returns the name at the index `place`, or an empty text if there is none.
    #[inline(never)]
    pub(crate) fn at(&self, place: usize) -> &'static str {
        self.all().nth(place).and_then(|name| str::from_utf8(name).ok()).unwrap_or_default()
    }

    /// Returns the index of a name, or `None` if the name is not in the list.
    pub(crate) fn place(&self, name: &[u8]) -> Option<usize> {
        self.all().position(|word| word == name)
    }
}
