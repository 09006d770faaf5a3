//! Names in a row, as one text: for each name of an array the program would have an address to fill in when it is loaded.

/// The name at this place of a row, names with a space between; an empty one behind its end.
#[inline(never)]
pub(super) fn at(row: &'static str, place: usize) -> &'static str {
    row.split_ascii_whitespace().nth(place).unwrap_or_default()
}
