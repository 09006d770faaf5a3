//! Names in a row, as one text: for each name of an array the program would have an address to fill in when it is loaded.

/// Names with one byte between, and where each ends.
#[derive(Debug)]
pub(super) struct Words<const N: usize> {
    row: &'static str,
    ends: [u16; N],
}

impl<const N: usize> Words<N> {
    /// The `N` names of a row, names with a space between.
    pub(super) const fn new(row: &'static str) -> Self {
        Self::apart(row, b' ')
    }

    /// The `N` names of a row, with this byte between.
    pub(super) const fn apart(row: &'static str, between: u8) -> Self {
        let (bytes, mut ends) = (row.as_bytes(), [0; N]);
        let (mut word, mut at) = (0, 0);
        assert!(bytes.len() <= u16::MAX as usize);
        while at <= bytes.len() {
            if at == bytes.len() || bytes[at] == between {
                ends[word] = at as u16;
                word += 1;
            }
            at += 1;
        }
        assert!(word == N);
        Self { row, ends }
    }

    /// The name at this place; an empty one behind the last.
    pub(super) fn at(&self, place: usize) -> &'static str {
        let start = match place.checked_sub(1).map(|before| self.ends.get(before)) {
            None => 0,
            Some(Some(end)) => usize::from(*end) + 1,
            Some(None) => return "",
        };
        self.ends.get(place).and_then(|end| self.row.get(start..usize::from(*end))).unwrap_or_default()
    }

    /// The place of a name.
    pub(super) fn place(&self, name: &[u8]) -> Option<usize> {
        (0..N).find(|place| self.at(*place).as_bytes() == name)
    }
}
