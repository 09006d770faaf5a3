//! Files that are replaced whole.

use std::io::{self, Write as _};
use std::path::Path;

/// Makes `name` in `dir`, which is made if needed, a file with this content. Whoever reads meanwhile gets all of
/// the old one or all of the new.
pub(crate) fn replace(dir: &Path, name: &str, content: &[u8]) -> io::Result<()> {
    let path = dir.join(name);
    let all = || {
        std::fs::create_dir_all(dir)?;
        let mut temp = tempfile::Builder::new().prefix(".overhead-").tempfile_in(dir)?;
        temp.write_all(content)?;
        make_readable(temp.as_file())?;
        temp.persist(&path).map_err(|e| e.error)?;
        Ok(())
    };
    all().map_err(|e: io::Error| io::Error::new(e.kind(), format!("writing {}: {e}", path.display())))
}

/// A temporary file is its owner's alone; a result is for everyone, as if it had been created.
fn make_readable(file: &std::fs::File) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    file.set_permissions(std::fs::Permissions::from_mode(0o644))
}
