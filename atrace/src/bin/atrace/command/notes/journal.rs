//! Where a running command is to save its recording, for the one that finds it dead.
//!
//! Root notes it for root, below `/run`: the place goes at the next start of the system, as the recordings do.
//! Nobody else can write there, so what is read is what a command wrote.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File};
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use atrace_sys::fork::{Generation, generation};
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, geteuid, unlinkat};

use crate::command::caller::Caller;
use crate::command::file::output::roots_own;

const DIRECTORY: &str = "/run/atrace";

/// The note of this command, which goes when it is dropped: then there is nothing to be saved any more.
#[derive(Debug)]
pub(crate) struct Journal {
    directory: OwnedFd,
    by: Generation,
}

/// What a command was to write, and whose it was to be.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Noted {
    pub(crate) path: PathBuf,
    pub(crate) owner: Option<(u32, u32)>,
}

impl Journal {
    /// Notes it; None where there is no such place.
    pub(crate) fn note(path: &Path, owner: Option<&Caller>) -> Option<Self> {
        if !geteuid().is_root() {
            return None;
        }
        let _ = DirBuilder::new().mode(0o700).create(DIRECTORY);
        let directory = directory()?;
        let path = std::path::absolute(path).ok()?;
        let text = Noted { path, owner: owner.map(|owner| (owner.uid, owner.gid)) }.text();
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_TRUNC | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let file =
            openat(&directory, name(std::process::id()).as_str(), flags, Mode::S_IRUSR | Mode::S_IWUSR);
        File::from(file.ok()?).write_all(&text).ok()?;
        Some(Self { directory, by: generation() })
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        if self.by == generation() {
            let name = name(std::process::id());
            let _ = unlinkat(&self.directory, name.as_str(), UnlinkatFlags::NoRemoveDir);
        }
    }
}

/// What the command with this number noted.
pub(crate) fn of(pid: u32) -> Option<Noted> {
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let file = openat(directory()?, name(pid).as_str(), flags, Mode::empty()).ok()?;
    let mut text = Vec::new();
    File::from(file).take(1 << 16).read_to_end(&mut text).ok()?;
    Noted::parse(&text)
}

/// Forgets what a command noted.
pub(crate) fn forget(pid: u32) {
    if let Some(directory) = directory() {
        let _ = unlinkat(directory, name(pid).as_str(), UnlinkatFlags::NoRemoveDir);
    }
}

fn directory() -> Option<OwnedFd> {
    roots_own(Path::new(DIRECTORY))
}

fn name(pid: u32) -> String {
    pid.to_string()
}

impl Noted {
    /// `UID GID PATH`, or `- PATH`.
    fn text(&self) -> Vec<u8> {
        let mut text = self.owner.map_or("-".to_owned(), |(uid, gid)| format!("{uid} {gid}")).into_bytes();
        text.push(b' ');
        text.extend_from_slice(self.path.as_os_str().as_bytes());
        text
    }

    fn parse(text: &[u8]) -> Option<Self> {
        let path =
            |rest: &[u8]| (rest.first() == Some(&b'/')).then(|| PathBuf::from(OsStr::from_bytes(rest)));
        if let Some(rest) = text.strip_prefix(b"- ") {
            return Some(Self { path: path(rest)?, owner: None });
        }
        let mut parts = text.splitn(3, |&byte| byte == b' ');
        let mut number = || std::str::from_utf8(parts.next()?).ok()?.parse().ok();
        let owner = Some((number()?, number()?));
        Some(Self { path: path(parts.next()?)?, owner })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_is_read() {
        for path in ["/a", "/a b/c\n d ", "/- 1 2 /x"] {
            for owner in [None, Some((1000, 100)), Some((u32::MAX, 0))] {
                let noted = Noted { path: path.into(), owner };
                assert_eq!(Noted::parse(&noted.text()), Some(noted));
            }
        }
        for text in ["", "-", "- ", "- a", "1 2", "1 2 ", "1 2 a", "1 x /a", "-1 2 /a", "1 /a"] {
            assert_eq!(Noted::parse(text.as_bytes()), None, "{text}");
        }
    }
}
