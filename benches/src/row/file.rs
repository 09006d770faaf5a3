//! Where the measured files are; to write one and to read it.

use std::io;
use std::path::{Path, PathBuf};

use super::environment;
use super::model::Row;
use super::replacement::replace;

/// Returns the directory of measured files: what `ATRACE_OVERHEAD_DIR` names, else `overhead` in
/// the target directory that this program was built in.
///
/// That is the one of `CARGO_TARGET_DIR`, if absolute; else the nearest above the program that
/// cargo marked (`CACHEDIR.TAG`) or that is called `target`; else `target` here.
pub fn dir() -> PathBuf {
    env_path("ATRACE_OVERHEAD_DIR").unwrap_or_else(|| target_dir().join("overhead"))
}

/// Returns the target directory that this program was built in.
pub(crate) fn target_dir() -> PathBuf {
    target_dir_of(env_path("CARGO_TARGET_DIR"), std::env::current_exe().ok().as_deref())
}

/// Returns the path that a variable names; empty is as good as unset.
pub(crate) fn env_path(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

fn target_dir_of(target: Option<PathBuf>, exe: Option<&Path>) -> PathBuf {
    let is_target = |dir: &&Path| {
        dir.join("CACHEDIR.TAG").is_file() || dir.file_name().is_some_and(|name| name == "target")
    };
    target
        .filter(|dir| dir.is_absolute())
        .or_else(|| exe?.ancestors().skip(1).find(is_target).map(Path::to_owned))
        .unwrap_or_else(|| PathBuf::from("target"))
}

/// Writes the rows of `bench` to its file in [`dir`], with the [environment] beside it, and
/// returns which that is.
///
/// # Errors
///
/// What the system answered, with the file it was about. The old file is there until the new one
/// is complete.
pub fn write(bench: &str, rows: &[Row]) -> io::Result<PathBuf> {
    let dir = dir();
    let path = write_to(&dir, bench, rows)?;
    environment::write_to(&dir, bench)?;
    Ok(path)
}

/// Tells whether the rows of `bench` can be written where they will be.
///
/// # Errors
///
/// As [`write()`].
pub fn can_write(bench: &str) -> io::Result<()> {
    let dir = dir();
    let path = dir.join(format!("{bench}.json"));
    let all = || std::fs::create_dir_all(&dir).and_then(|()| tempfile::tempfile_in(&dir)).map(drop);
    all().map_err(|e| io::Error::new(e.kind(), format!("writing {}: {e}", path.display())))
}

/// Writes the rows of `bench` to its file in `dir` and returns which that is.
///
/// # Errors
///
/// As [`write()`].
pub fn write_to(dir: &Path, bench: &str, rows: &[Row]) -> io::Result<PathBuf> {
    let name = format!("{bench}.json");
    // One row a line: good to read, and to compare.
    let mut text = String::from("[");
    for (i, row) in rows.iter().enumerate() {
        text.push_str(if i == 0 { "\n" } else { ",\n" });
        text.push_str(&serde_json::to_string(row)?);
    }
    text.push_str("\n]\n");
    replace(dir, &name, text.as_bytes())?;
    Ok(dir.join(name))
}

/// Reads a measured file.
///
/// # Errors
///
/// What the system answered, or `InvalidData`, with the file it was about.
pub fn read(path: &Path) -> io::Result<Vec<Row>> {
    let all = || Ok(serde_json::from_slice(&std::fs::read(path)?)?);
    all().map_err(|e: io::Error| io::Error::new(e.kind(), format!("reading {}: {e}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::Versus;

    #[test]
    fn what_is_written_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let nested = dir.path().join("a/b");
        let mut rows = vec![Row::around("rust/x", 627.25, 1.5), Row::around("cc/x", 1.0, 0.5)];
        rows[0].allocs = Some(1.5);
        rows[0].vs_process.insert("cc/x".into(), Versus { ratio: 3.0, low: 2.5, high: 4.0, sure: true });
        let path = write_to(&nested, "main", &rows).unwrap();
        assert_eq!(path, nested.join("main.json"));
        assert_eq!(read(&path).unwrap(), rows);
        assert!(rows[1].noisy);
        write_to(&nested, "main", &rows[..1]).unwrap();
        assert_eq!(read(&path).unwrap(), rows[..1]);
        write_to(&nested, "main", &[]).unwrap();
        assert_eq!(read(&path).unwrap(), []);
        assert_eq!(std::fs::read_dir(&nested).unwrap().count(), 1);
        let none = read(&nested.join("none.json")).unwrap_err();
        assert!(none.to_string().contains("none.json"), "{none}");
    }

    #[test]
    fn the_directory_is_found() {
        let temp = tempfile::tempdir().unwrap();
        let exe = temp.path().join("odd/release/deps/bench-0");
        let some = |s: &str| Some(PathBuf::from(s));
        assert_eq!(target_dir_of(some("/t"), Some(&exe)), Path::new("/t"));
        let named = Path::new("/w/target/release/deps/bench-0");
        assert_eq!(target_dir_of(some("relative"), Some(named)), Path::new("/w/target"));
        assert_eq!(target_dir_of(None, Some(&exe)), Path::new("target"));
        std::fs::create_dir_all(exe.parent().unwrap()).unwrap();
        std::fs::write(temp.path().join("odd/CACHEDIR.TAG"), "").unwrap();
        assert_eq!(target_dir_of(None, Some(&exe)), temp.path().join("odd"));
    }
}
