//! Names in a row, as one text: for each name of an array the program would have an address to fill in when it is loaded.

/// Names with one byte between.
#[derive(Debug)]
pub(crate) struct Words {
    row: &'static str,
    between: u8,
}

impl Words {
    /// The names of a row, with a space between.
    pub(crate) const fn new(row: &'static str) -> Self {
        Self::apart(row, b' ')
    }

    /// The names of a row, with this byte between.
    pub(crate) const fn apart(row: &'static str, between: u8) -> Self {
        Self { row, between }
    }

    fn all(&self) -> impl Iterator<Item = &'static [u8]> {
        self.row.as_bytes().split(|byte| *byte == self.between)
    }

    /// The name at this place; an empty one behind the last.
    #[inline(never)]
    pub(crate) fn at(&self, place: usize) -> &'static str {
        self.all().nth(place).and_then(|name| str::from_utf8(name).ok()).unwrap_or_default()
    }

    /// The place of a name.
    pub(crate) fn place(&self, name: &[u8]) -> Option<usize> {
        self.all().position(|word| word == name)
    }
}
