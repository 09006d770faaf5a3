//! Criterion's data: `<case>/new/{benchmark,estimates}.json`.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::reading::{Problems, entries, json};
use crate::row;
use crate::table::number::time;

/// The most cases that are read, and how deep below its directory Criterion keeps them.
const MAX_CASES: usize = 2_000;
const MAX_DEPTH: usize = 5;

/// What Criterion says of a case, in nanoseconds: the median between its bounds.
pub(crate) type Estimate = [f64; 3];

/// Reads all cases below `dir`: the full id of each, what is known, and the directory right below `dir` that it is
/// in, which for a device has the device's name.
pub(crate) fn read(dir: &Path, problems: &mut Problems) -> Vec<(String, Estimate, Option<String>)> {
    let mut found = Vec::new();
    let mut todo: Vec<(PathBuf, usize, Option<String>)> = vec![(dir.to_owned(), 0, None)];
    while let Some((dir, depth, first)) = todo.pop() {
        for (name, path) in entries(&dir, problems).into_iter().rev() {
            if !path.is_dir() || matches!(&name[..], "base" | "change" | "report") {
                continue;
            }
            if name == "new" {
                if found.len() == MAX_CASES {
                    problems.add(format!("{}: more than {MAX_CASES} cases", dir.display()));
                    return found;
                }
                match case(&path) {
                    Ok((id, estimate)) => found.push((id, estimate, first.clone())),
                    Err(e) => problems.add(e),
                }
            } else if depth < MAX_DEPTH {
                let first = first.clone().or_else(|| Some(name.clone()));
                todo.push((path, depth + 1, first));
            }
        }
    }
    found
}

/// Returns where Criterion's data is.
pub(super) fn home() -> PathBuf {
    row::env_path("CRITERION_HOME").unwrap_or_else(|| row::target_dir().join("criterion"))
}

/// Returns what Criterion has found of these cases, each on a line: what it prints itself has the time on another line than a long
/// name, so that who looks for times finds no name.
pub fn lines(names: &[String]) -> String {
    lines_of(&home(), names)
}

fn lines_of(home: &Path, names: &[String]) -> String {
    let found = read(home, &mut Problems::default());
    let line = |name: &String| {
        let (_, estimate, _) = found.iter().find(|(id, ..)| id == name)?;
        let [low, median, high] = *estimate;
        Some(format!("{name:<32} time:   [{} {} {}]\n", time(low), time(median), time(high)))
    };
    names.iter().filter_map(line).collect()
}

fn case(dir: &Path) -> Result<(String, Estimate), String> {
    let benchmark = json(&dir.join("benchmark.json"))?;
    let id = benchmark.get("full_id").and_then(Value::as_str);
    let id = id.ok_or_else(|| format!("{}: benchmark.json has no full_id", dir.display()))?;
    let estimates = json(&dir.join("estimates.json"))?;
    let number = |pointer: &str| estimates.pointer(pointer).and_then(Value::as_f64).filter(|x| *x >= 0.0);
    let median = number("/median/point_estimate");
    let low = number("/median/confidence_interval/lower_bound");
    let high = number("/median/confidence_interval/upper_bound");
    let (Some(median), Some(low), Some(high)) = (median, low, high) else {
        return Err(format!("{}: estimates.json has no median with its interval", dir.display()));
    };
    if !(low <= median && median <= high && high <= 1e15) {
        return Err(format!("{}: {median} is not a median between {low} and {high}", dir.display()));
    }
    Ok((id.to_owned(), [low, median, high]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_stands_beside_its_time() {
        let home = tempfile::tempdir().unwrap();
        let name = "BM_TracingOnAtraceAsyncForTrackBegin".to_owned();
        let dir = home.path().join(&name).join("new");
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("benchmark.json"), format!(r#"{{"full_id": "{name}"}}"#)).unwrap();
        let bounds = r#"{"lower_bound": 6.02, "upper_bound": 6.06}"#;
        let estimates =
            format!(r#"{{"median": {{"point_estimate": 6.04, "confidence_interval": {bounds}}}}}"#);
        std::fs::write(dir.join("estimates.json"), estimates).unwrap();
        let lines = lines_of(home.path(), &[name.clone(), "nobody".to_owned()]);
        assert_eq!(lines, format!("{name} time:   [6.02 ns 6.04 ns 6.06 ns]\n"));
    }
}
