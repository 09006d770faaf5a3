//! The file that a recording is saved to: whole or not at all.
//!
//! It is written beside its place under another name and moved there at the end, so that neither a full disk
//! nor a signal leaves half a file, and nothing that exists is touched unless that was asked for.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Write as _};
use std::os::unix::fs::fchown;
use std::path::{Path, PathBuf};

use super::caller::Caller;
use super::failure::{Failure, Result, failed};

/// A file in the making; without [`finish`](Self::finish) it goes.
#[derive(Debug)]
pub(crate) struct Output {
    /// As the user named it.
    named: PathBuf,
    path: PathBuf,
    temporary: PathBuf,
    file: File,
    replace: bool,
    is_moved: bool,
}

impl Output {
    /// Makes sure that `path` can be written, before there is anything to write.
    pub(crate) fn create(path: &Path, replace: bool, owner: Option<&Caller>) -> Result<Self> {
        let named = path.to_owned();
        let mut path = path.to_owned();
        match fs::symlink_metadata(&path) {
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => return Err(failed(path.display())(e)),
            Ok(_) if !replace => {
                return Err(Failure::new(format!(
                    "{} exists already: name another file with -o, or replace it with --force",
                    path.display()
                )));
            }
            Ok(_) => {
                path = fs::canonicalize(&path).map_err(failed(path.display()))?;
                if !fs::metadata(&path).is_ok_and(|data| data.is_file()) {
                    return Err(Failure::new(format!(
                        "{} is no regular file: name another with -o",
                        path.display()
                    )));
                }
            }
        }
        let Some(name) = path.file_name() else {
            return Err(Failure::new(format!("{} names no file: name one with -o", path.display())));
        };
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}", std::process::id()));
        let temporary = path.with_file_name(hidden);
        let opened = OpenOptions::new().write(true).create_new(true).open(&temporary);
        let file = opened.map_err(|e| {
            Failure::new(format!("can't write to {}: {e}: name another place with -o", path.display()))
        })?;
        let output = Self { named, path, temporary, file, replace, is_moved: false };
        if let Some(owner) = owner {
            fchown(&output.file, Some(owner.uid), Some(owner.gid)).map_err(failed(format!(
                "giving {} to user {}",
                output.path.display(),
                owner.uid
            )))?;
        }
        Ok(output)
    }

    /// The file as the user named it.
    pub(crate) fn named(&self) -> &Path {
        &self.named
    }

    /// Has `write` write the file, and makes sure that there was room for it.
    pub(crate) fn fill(
        &mut self,
        write: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut writer = BufWriter::with_capacity(1 << 16, &self.file);
        write(&mut writer)?;
        writer.flush()?;
        drop(writer);
        self.file.sync_data()
    }

    /// Moves the file to its place.
    pub(crate) fn finish(mut self) -> io::Result<PathBuf> {
        if self.replace {
            fs::rename(&self.temporary, &self.path)?;
        } else {
            match fs::hard_link(&self.temporary, &self.path) {
                Ok(()) => fs::remove_file(&self.temporary)?,
                Err(e) if e.kind() == ErrorKind::AlreadyExists => return Err(e),
                // A file system without links.
                Err(_) if fs::symlink_metadata(&self.path).is_err() => {
                    fs::rename(&self.temporary, &self.path)?;
                }
                Err(e) => return Err(e),
            }
        }
        self.is_moved = true;
        Ok(self.named.clone())
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if !self.is_moved {
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_whole_or_not_there() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("out");
        drop(Output::create(&path, false, None).unwrap());
        assert_eq!(names(place.path()), [""; 0]);
        let mut output = Output::create(&path, false, None).unwrap();
        output.fill(|to| to.write_all(b"text")).unwrap();
        assert!(!path.exists());
        output.finish().unwrap();
        assert_eq!((fs::read(&path).unwrap(), names(place.path())), (b"text".to_vec(), vec!["out".into()]));
    }

    #[test]
    fn nothing_is_replaced_unasked() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("out");
        fs::write(&path, "mine").unwrap();
        let refused = Output::create(&path, false, None).unwrap_err().to_string();
        assert!(refused.contains("exists already") && refused.contains("--force"), "{refused}");
        // Made by somebody meanwhile.
        fs::remove_file(&path).unwrap();
        let output = Output::create(&path, false, None).unwrap();
        fs::write(&path, "mine").unwrap();
        assert_eq!(output.finish().unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert_eq!((fs::read(&path).unwrap(), names(place.path())), (b"mine".to_vec(), vec!["out".into()]));
        let mut output = Output::create(&path, true, None).unwrap();
        output.fill(|to| to.write_all(b"new")).unwrap();
        output.finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
    }

    #[test]
    fn only_files_are_replaced() {
        let place = tempfile::tempdir().unwrap();
        for path in [Path::new("/dev/null"), place.path()] {
            let refused = Output::create(path, true, None).unwrap_err().to_string();
            assert!(refused.contains("no regular file"), "{refused}");
        }
        let link = place.path().join("link");
        std::os::unix::fs::symlink(place.path().join("file"), &link).unwrap();
        fs::write(place.path().join("file"), "old").unwrap();
        Output::create(&link, true, None).unwrap().finish().unwrap();
        assert_eq!(fs::read(place.path().join("file")).unwrap(), b"");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        let missing = Output::create(&place.path().join("no/out"), false, None).unwrap_err().to_string();
        assert!(missing.contains("can't write to") && missing.contains("-o"), "{missing}");
    }
}
