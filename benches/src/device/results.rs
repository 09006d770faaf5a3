//! Brings the results of a device to where those of this machine are.

use std::io;
use std::path::{Path, PathBuf};

use super::adb::Adb;
use super::error::{Error, Step, at};
use super::record::Record;
use crate::row;

/// Where the results go.
#[derive(Debug)]
pub(crate) struct Results {
    /// The directory of measured files, and of Criterion's data.
    overhead: PathBuf,
    criterion: PathBuf,
    /// What the directory of this device is called in both.
    name: String,
}

impl Results {
    /// Makes sure, before anything is measured, that there is a place for the results of the device `name`.
    pub(crate) fn new(name: &str) -> Result<Self, Error> {
        let criterion =
            row::env_path("CRITERION_HOME").unwrap_or_else(|| row::target_dir().join("criterion"));
        let this = Self { overhead: row::dir(), criterion, name: name.to_owned() };
        for dir in [&this.overhead, &this.criterion] {
            std::fs::create_dir_all(dir).map_err(at(Step::Here, format!("making {}", dir.display())))?;
        }
        Ok(this)
    }

    /// Copies the results from `directory` on the device; returns where they are.
    ///
    /// They replace what an earlier run left, once all has arrived.
    pub(crate) fn pull(
        &self,
        adb: &Adb<'_>,
        directory: &str,
        record: &Record,
    ) -> Result<(PathBuf, PathBuf), Error> {
        let here = |dir: &Path| {
            let temp = tempfile::Builder::new().prefix(".on-device-").tempdir_in(dir);
            temp.map_err(at(Step::Pull, format!("making a directory in {}", dir.display())))
        };
        let (rows, criterion) = (here(&self.overhead)?, here(&self.criterion)?);
        let (new_rows, new_criterion) = (rows.path().join("rows"), criterion.path().join("data"));
        adb.pull(&format!("{directory}/overhead"), &new_rows)?;
        adb.pull(&format!("{directory}/criterion"), &new_criterion)?;
        check(&new_rows)?;
        let describe = || -> io::Result<()> {
            let text = serde_json::to_string_pretty(record)? + "\n";
            std::fs::write(new_rows.join("device.json"), text)
        };
        describe().map_err(at(Step::Pull, "writing device.json"))?;
        let to = (self.overhead.join(&self.name), self.criterion.join(&self.name));
        replace(&new_rows, &to.0)?;
        replace(&new_criterion, &to.1)?;
        Ok(to)
    }
}

/// Whether there are rows, and all can be read.
fn check(rows: &Path) -> Result<(), Error> {
    let files = std::fs::read_dir(rows).map_err(at(Step::Pull, rows.display()))?;
    let json = files
        .filter_map(|file| Some(file.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|e| e == "json"));
    let mut any = false;
    for path in json {
        let rows = row::read(&path).map_err(at(Step::Pull, "what was pulled is damaged"))?;
        any |= !rows.is_empty();
    }
    match any {
        true => Ok(()),
        false => {
            Err(Error::new(Step::Pull, "the benches left no rows on the device: see above what they said"))
        }
    }
}

/// Puts a new directory where an old one may be, on the same file system.
fn replace(new: &Path, old: &Path) -> Result<(), Error> {
    let all = || {
        match std::fs::remove_dir_all(old) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        std::fs::rename(new, old)
    };
    all().map_err(at(Step::Pull, format!("replacing {}", old.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_checked() {
        let temp = tempfile::tempdir().unwrap();
        let why = || check(temp.path()).unwrap_err().to_string();
        assert!(why().contains("no rows"));
        std::fs::write(temp.path().join("a.json"), "[]").unwrap();
        assert!(why().contains("no rows"));
        std::fs::write(temp.path().join("b.json"), "[").unwrap();
        assert!(why().contains("damaged") && why().contains("b.json"));
        std::fs::remove_file(temp.path().join("b.json")).unwrap();
        let row =
            r#"[{"id": "a", "unit": "ns", "median": 1, "low": 1, "high": 1, "sink": "ndk", "noisy": false}]"#;
        std::fs::write(temp.path().join("c.json"), row).unwrap();
        check(temp.path()).unwrap();
    }

    #[test]
    fn old_results_are_replaced() {
        let temp = tempfile::tempdir().unwrap();
        let (old, new) = (temp.path().join("old"), temp.path().join("new"));
        for round in ["1", "2"] {
            std::fs::create_dir(&new).unwrap();
            std::fs::write(new.join(round), "").unwrap();
            replace(&new, &old).unwrap();
            assert!(old.join(round).exists() && !new.exists());
        }
        assert!(!old.join("1").exists());
    }
}
