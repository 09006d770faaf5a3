//! How a bench ends.

use std::process::ExitCode;

use super::terminal::fail;
use crate::row::Row;

/// Returns how a bench with these rows ends: it fails, and says so, when nothing is known. A noisy row may well be known beside
/// others.
pub fn exit_code(rows: &[Row]) -> ExitCode {
    let compares = |row: &Row| {
        row.vs.values().chain(row.vs_process.values()).any(|v| v.sure) || row.above.values().any(|a| a.sure)
    };
    if rows.iter().any(|row| !row.noisy || compares(row)) {
        return ExitCode::SUCCESS;
    }
    let why =
        if rows.is_empty() { "no row was measured" } else { "every row is noisy and compared with nothing" };
    fail(1, format_args!("{why}: nothing can be said about this machine"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::Versus;

    #[test]
    fn a_run_fails_only_when_nothing_is_known() {
        let (good, bad) = (Row::around("a", 100.0, 1.0), Row::around("b", 100.0, 50.0));
        // `ExitCode` can't be compared.
        let code = |rows: &[Row]| format!("{:?}", exit_code(rows));
        let (ok, failed) = (format!("{:?}", ExitCode::SUCCESS), format!("{:?}", ExitCode::FAILURE));
        assert_eq!(code(&[good.clone(), bad.clone()]), ok);
        assert_eq!(code(std::slice::from_ref(&bad)), failed);
        for (sure, ends) in [(true, &ok), (false, &failed)] {
            let mut beside = bad.clone();
            beside.vs.insert("c".into(), Versus { ratio: 2.0, low: 1.9, high: 2.1, sure });
            assert_eq!(code(&[beside]), *ends);
        }
        assert_eq!(code(&[]), failed);
    }
}
