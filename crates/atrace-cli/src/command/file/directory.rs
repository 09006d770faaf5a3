//! Opens directories: any directory by its path, or only a directory that no one but root can change.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path};

use rustix::fs::{CWD, Mode, OFlags, fstat, openat};

/// The flags for a directory that only serves as the start of other paths.
const NAMED: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

pub(crate) fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    Ok(openat(CWD, path, NAMED, Mode::empty())?)
}

/// Opens a directory if only root can change it and the path to it. That is true if root owns every component of the
/// path, no component is a symbolic link, and other users may write only to sticky directories, in which they can't
/// replace root's files.
pub(crate) fn roots_own(path: &Path) -> Option<OwnedFd> {
    let path = std::path::absolute(path).ok()?;
    let mut steps = path.components().peekable();
    let mut directory: Option<OwnedFd> = None;
    while let Some(step) = steps.next() {
        let name = match step {
            Component::RootDir | Component::Normal(_) => step.as_os_str(),
            Component::CurDir => continue,
            Component::ParentDir | Component::Prefix(_) => return None,
        };
        let next = match &directory {
            Some(directory) => openat(directory, name, NAMED | OFlags::NOFOLLOW, Mode::empty()),
            None => openat(CWD, name, NAMED | OFlags::NOFOLLOW, Mode::empty()),
        };
        let next = next.ok()?;
        let data = fstat(&next).ok()?;
        let mode = Mode::from_raw_mode(data.st_mode);
        let is_sticky = mode.contains(Mode::SVTX) && steps.peek().is_some();
        if data.st_uid != 0 || mode.intersects(SHARED) && !is_sticky {
            return None;
        }
        directory = Some(next);
    }
    directory
}

/// The permissions that let other users than the owner write.
pub(crate) const SHARED: Mode = Mode::WGRP.union(Mode::WOTH);

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn roots_own_is_what_nobody_else_can_change() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let place = tempfile::tempdir().unwrap();
        let (directory, link) = (place.path().join("directory"), place.path().join("link"));
        fs::create_dir(&directory).unwrap();
        symlink(&directory, &link).unwrap();
        let set = |mode| fs::set_permissions(&directory, fs::Permissions::from_mode(mode)).unwrap();
        for (mode, is_own) in [(0o755, true), (0o700, true), (0o775, false), (0o777, false), (0o1777, false)]
        {
            set(mode);
            assert_eq!(roots_own(&directory).is_some(), is_own, "{mode:o}");
        }
        set(0o755);
        assert!(roots_own(&link).is_none() && roots_own(&directory.join("../directory")).is_none());
        assert!(roots_own(&directory.join("none")).is_none());
        // A sticky directory: other users may create files in it, but not replace root's.
        fs::create_dir(directory.join("inner")).unwrap();
        set(0o1777);
        assert!(roots_own(&directory.join("inner")).is_some());
        set(0o777);
        assert!(roots_own(&directory.join("inner")).is_none());
        set(0o755);
        std::os::unix::fs::chown(&directory, Some(64_102), None).unwrap();
        assert!(roots_own(&directory.join("inner")).is_none());
    }
}
