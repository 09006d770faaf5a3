//! How a bench ends.

use std::process::ExitCode;

use super::terminal::fail;
use crate::row::Row;

/// Returns how a bench with these rows ends: it fails, and says so, when every one is noisy.
#[must_use]
pub fn exit_code(rows: &[Row]) -> ExitCode {
    if rows.iter().any(|row| !row.noisy) {
        return ExitCode::SUCCESS;
    }
    let why = if rows.is_empty() { "no row was measured" } else { "every row is noisy" };
    fail(1, format_args!("{why}: nothing can be said about this machine"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::Sink;
    use crate::stats::Interval;

    fn row(id: &str, median: f64, half: f64) -> Row {
        let ns = Interval { median, low: median - half, high: median + half, sure: true };
        Row::new(id, ns, Sink::Tracefs)
    }

    #[test]
    fn a_run_fails_only_when_every_row_is_noisy() {
        let (good, bad) = (row("a", 100.0, 1.0), row("b", 100.0, 50.0));
        // `ExitCode` can't be compared.
        let code = |rows: &[Row]| format!("{:?}", exit_code(rows));
        let (ok, failed) = (format!("{:?}", ExitCode::SUCCESS), format!("{:?}", ExitCode::FAILURE));
        assert_eq!(code(&[good.clone(), bad.clone()]), ok);
        assert_eq!(code(&[bad]), failed);
        assert_eq!(code(&[]), failed);
    }
}
