//! A session like that of `atrace run`. Its file is discarded.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use rustix::process::geteuid;

use super::program::{Environment, Variables};
use crate::command::file::chance;
use crate::command::program::{ProgramStore, ServiceSocket};
use crate::command::terminal::{Result, failed, shown_path};
use crate::service::{Keep, Report, Service};

/// The state that all sessions share.
pub(super) struct Sessions {
    environment: Environment,
    _store: ProgramStore,
}

impl Sessions {
    pub(super) fn make() -> Result<Self> {
        let store = ProgramStore::make(None)?;
        store.switch_off();
        Ok(Self { environment: Environment { store: store.path().to_owned() }, _store: store })
    }

    /// Returns a path that does not exist yet, in a directory that belongs to this user alone and is
    /// removed at the end.
    pub(super) fn place(&self, name: &str) -> PathBuf {
        self.environment.store.with_file_name(name)
    }

    /// Returns the environment of a program that is not traced.
    pub(super) fn off(&self) -> Variables {
        self.environment.off()
    }

    /// Starts a session for one program.
    pub(super) fn start(&self) -> Result<Session> {
        let (place, listener) = ServiceSocket::make(None)?;
        let keep = Keep::File { file: unnamed()?, max: None };
        let service = Service::start(listener, geteuid().as_raw(), keep);
        let service = service.map_err(failed("starting the service"))?;
        Ok(Session { on: self.environment.on(place.path.clone()), service, _place: place })
    }
}

pub(super) struct Session {
    /// The environment of the program that is traced.
    pub(super) on: Variables,
    pub(super) service: Service,
    _place: ServiceSocket,
}

impl Session {
    pub(super) fn finish(self) -> Report {
        self.service.finish()
    }
}

/// Creates a file in the directory for temporary files and removes its name.
fn unnamed() -> Result<File> {
    let path = std::env::temp_dir().join(format!("atrace-cost-{}-{:016x}", std::process::id(), chance()));
    let create = || {
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        std::fs::remove_file(&path)?;
        Ok(file)
    };
    create().map_err(failed::<std::io::Error>(format!("a file for the trace, {}", shown_path(&path))))
}
