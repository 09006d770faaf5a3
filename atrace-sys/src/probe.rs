//! Opens files whose paths an untrusted process has chosen. Each file is examined before it is opened, and opening
//! never waits for the peer of a FIFO.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::time::Duration;

use crate::marker::open::on_tracefs;
use crate::state::{SIZE, text_of};
use crate::system::file;

/// Opens the marker at `path` for writing, if the file is on tracefs (or debugfs) and has the device and inode of
/// `identity`.
///
/// A symbolic link at the end of the path is refused, unless `is_followed` is true. The descriptors in `/proc/PID/fd`
/// are symbolic links.
///
/// # Errors
///
/// Returns the error of the system, or `InvalidInput` if the path leads to another file.
pub fn open_marker(path: &Path, identity: (u64, u64), is_followed: bool) -> io::Result<File> {
    let found = look_at(path, is_followed)?;
    let data = found.metadata()?;
    if !data.is_file() || (data.dev(), data.ino()) != identity || !on_tracefs(found.as_raw_fd()) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "this is not the marker that the process named",
        ));
    }
    Ok(file::reopen(&found, libc::O_WRONLY)?)
}

/// Reads the [state](crate::state) that another process publishes, through that process's descriptor in `/proc`.
/// Returns `None` if the file can't be read, is not a state, or was being written at each of a hundred attempts.
///
/// The other process may write its state at the same time.
pub fn read_state(path: &Path) -> Option<Vec<u8>> {
    let found = look_at(path, true).ok()?;
    let data = found.metadata().ok()?;
    if !data.is_file() || data.len() != SIZE as u64 {
        return None;
    }
    let again = file::reopen(&found, libc::O_RDONLY).ok()?;
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    // A file that is not a memory file has no seals.
    if file::seals(again.as_raw_fd()) & seals != seals {
        return None;
    }
    for _ in 0..100 {
        let (mut page, mut sequence) = ([0; SIZE], [0; 8]);
        again.read_exact_at(&mut page, 0).ok()?;
        again.read_exact_at(&mut sequence, 0).ok()?;
        if page[..8] == sequence
            && let Some(text) = text_of(&page)
        {
            return Some(text.to_vec());
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    None
}

/// Opens a file only for examining it (`O_PATH`).
fn look_at(path: &Path, is_followed: bool) -> io::Result<File> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    Ok(file::open(&name, libc::O_PATH | if is_followed { 0 } else { libc::O_NOFOLLOW })?)
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;

    #[test]
    fn nothing_else_is_opened() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("file");
        std::fs::write(&file, "mine").unwrap();
        let link = place.path().join("link");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let data = file.metadata().unwrap();
        for path in [&file, &link] {
            let refused = open_marker(path, (data.dev(), data.ino()), false).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput, "{}", path.display());
        }
        let marker = Path::new("/sys/kernel/tracing/trace_marker");
        let Ok(data) = marker.metadata() else { return };
        let is_allowed = std::fs::OpenOptions::new().write(true).open(marker).is_ok();
        assert_eq!(open_marker(marker, (data.dev(), data.ino()), false).is_ok(), is_allowed);
        let link = place.path().join("marker");
        std::os::unix::fs::symlink(marker, &link).unwrap();
        for (path, inode) in [(marker, data.ino() + 1), (&link, data.ino())] {
            let refused = open_marker(path, (data.dev(), inode), false).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput, "{}", path.display());
        }
    }
}
