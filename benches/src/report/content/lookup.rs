//! Finds what was measured.

use super::super::input::Place;
use crate::row::{Row, Versus};

/// A ratio of a row to another, from interleaved rounds or alternating processes.
pub(crate) fn versus<'a>(row: &'a Row, base: &str) -> Option<&'a Versus> {
    row.vs.get(base).or_else(|| row.vs_process.get(base))
}

/// A row that can be relied on.
pub(super) fn good<'a>(place: &'a Place, bench: &str, id: &str) -> Option<&'a Row> {
    place.row(bench, id).filter(|row| !row.noisy)
}
