//! What a test knows of a workload: that each line of its original's tables has a row.

use super::Workload;
use super::results::Results;
use crate::catalogue::published::lines::{Field, Line, originals};
use crate::row::Row;

/// Tells which row, or number of a row, there should be of a line of an original and is not; `None`: there are all.
pub(super) fn unanswered<W: Workload>(results: &Results) -> Option<String> {
    let originals = originals().into_iter().filter(|original| original.bench == W::NAME);
    // Nor is it 0 where the original's is not, without a reason.
    let says = |number: f64, may_be_zero: bool| may_be_zero || number != 0.0;
    let measured = |row: &Row, field: Field, may_be_zero: bool| match field {
        Field::Time | Field::PerSecond => true,
        Field::Rate | Field::Bytes => row.bytes.is_some_and(|bytes| says(bytes, may_be_zero)),
        Field::Count(name) => row.counts.get(name).is_some_and(|count| says(*count, may_be_zero)),
    };
    let mut all = originals.flat_map(|original| {
        let line = |line: Line| Some((line.here.ok()?, line.zero.is_some() || line.there == Some(0.0)));
        let checks = [original.check.of, original.check.by].map(|of| (of, false));
        original.groups.into_iter().flatten().filter_map(line).chain(checks)
    });
    let (missing, _) = all.find(|(of, may_be_zero)| {
        !results.rows().iter().any(|row| row.id == of.id && measured(row, of.field, *may_be_zero))
    })?;
    Some(format!("the original has a line of {} ({:?}): there is no such number", missing.id, missing.field))
}
