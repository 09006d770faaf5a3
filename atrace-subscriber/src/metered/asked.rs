//! The meter that is used if the environment variable `ATRACE_BILL=PATH` is set.
//!
//! All `AtraceSubscriber`s and `AtraceLayer`s of the process share the meter (a `LiveLayer` is not metered). When the
//! process ends, the measurements are written to a new file, which is then renamed to `PATH`, so that a reader always
//! finds a complete file. The new file replaces a link or file at `PATH`. If the variable is set in several processes,
//! the file contains the measurements of the process that ended last.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::panic::catch_unwind;
use std::path::{self, PathBuf};

use atrace_sys::{OnceRef, fork, process};

use super::Meter;

const VARIABLE: &str = "ATRACE_BILL";

struct BillRequest {
    path: PathBuf,
    meter: Meter,
    by: fork::Generation,
}

static ASKED: OnceRef<Option<BillRequest>> = OnceRef::new();

/// Returns the meter of this crate's subscribers and layers, if `ATRACE_BILL` is set.
pub(crate) fn asked() -> Option<Meter> {
    let asked = ASKED.get_or_make(|| {
        let path = process::variable(VARIABLE)?;
        // The path is made absolute now, because the program may change its directory before it ends.
        let path = path::absolute(&path).unwrap_or_else(|_| path.into());
        if !process::at_exit(write_at_exit) {
            process::complain(&format!("atrace: {VARIABLE} has no effect: there is no bill on this system"));
            return None;
        }
        let meter = Meter::new("AtraceSubscriber, or AtraceLayer without the rest of its stack");
        Some(BillRequest { path, meter, by: fork::generation() })
    });
    asked.as_ref().map(|asked| asked.meter)
}

extern "C" fn write_at_exit() {
    let written = catch_unwind(|| {
        let Some(Some(asked)) = ASKED.get() else { return };
        if asked.by == fork::generation()
            && let Err(error) = asked.write()
        {
            let path = asked.path.display();
            process::complain(&format!("atrace: {VARIABLE}: can't write the bill to {path}: {error}"));
        }
    });
    written.unwrap_or_else(std::mem::forget); // Dropping the panic's payload may panic.
}

impl BillRequest {
    fn write(&self) -> io::Result<()> {
        let mut new = self.path.clone().into_os_string();
        new.push(format!(".{}.new", process::raw_id()));
        let mut file = File::create_new(&new).or_else(|error| {
            // An earlier process with the same id may have left this file behind. Like `create_new`, `remove_file`
            // follows no link.
            if error.kind() == ErrorKind::AlreadyExists {
                fs::remove_file(&new)?;
            }
            File::create_new(&new)
        })?;
        let written = file.write_all(&self.meter.0.raw()).and_then(|()| fs::rename(&new, &self.path));
        written.inspect_err(|_| drop(fs::remove_file(&new)))
    }
}
