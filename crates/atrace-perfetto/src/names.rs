//! Lists of static names, stored as one text.
//!
//! An array of `&str` would hold an address for each name, which the loader has to relocate when the program starts.
//! A single text has no such cost; to find a name takes a scan, which is rare.

/// Names with a separator between them.
#[derive(Debug)]
pub(crate) struct Names {
    row: &'static str,
    between: u8,
}

impl Names {
    /// Creates a list from names separated by spaces.
    pub(crate) const fn new(row: &'static str) -> Self {
        Self::separated_by(row, b' ')
    }

    /// Creates a list from names separated by this byte.
    pub(crate) const fn separated_by(row: &'static str, between: u8) -> Self {
        Self { row, between }
    }

    fn all(&self) -> impl Iterator<Item = &'static [u8]> {
        self.row.as_bytes().split(|byte| *byte == self.between)
    }

    /// Returns the name at this index, or an empty text if there is none.
    #[inline(never)]
    pub(crate) fn at(&self, place: usize) -> &'static str {
        self.all().nth(place).and_then(|name| str::from_utf8(name).ok()).unwrap_or_default()
    }

    /// Returns the index of a name.
    pub(crate) fn place(&self, name: &[u8]) -> Option<usize> {
        self.all().position(|word| word == name)
    }
}
