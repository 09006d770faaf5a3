//! A session like a session of `atrace run`, except that the recorded file is discarded.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use rustix::process::geteuid;

use super::program::Variables;
use crate::command::file::chance;
use crate::command::program::{ProgramStore, ServiceSocket, memory_kb};
use crate::command::terminal::{Result, failed, shown_path};
use crate::service::{Service, Storage};

/// The state that all sessions share.
pub(super) struct Sessions {
    /// A property store in which tracing is off.
    store: ProgramStore,
}

impl Sessions {
    pub(super) fn make() -> Result<Self> {
        let store = ProgramStore::make(None)?;
        store.switch_off();
        Ok(Self { store })
    }

    /// Returns the path for a file with this name, in a directory that only this user can access and that is removed at
    /// the end of the command.
    pub(super) fn place(&self, name: &str) -> PathBuf {
        self.store.path().with_file_name(name)
    }

    /// Returns the environment variables with which a program is not traced, even if tracing is switched on in the
    /// user's own property store.
    pub(super) fn off(&self) -> Variables {
        vec![
            ("ATRACE_PROPERTIES", Some(self.store.path().into())),
            ("PERFETTO_PRODUCER_SOCK_NAME", Some(self.place("no-service").into())),
            ("ATRACE_BACKEND", None),
            ("ATRACE_MARKER", None),
        ]
    }

    /// Returns the environment variables with which a program connects to the session's `socket`. `atrace run` sets the
    /// same variables, except for `ATRACE_PROPERTIES`.
    fn on(&self, socket: PathBuf) -> Variables {
        let mut all = self.off();
        all[1].1 = Some(socket.into());
        all[2].1 = Some("perfetto".into());
        all.push(("ATRACE_SHMEM_KB", Some(memory_kb())));
        all
    }

    /// Starts a session for one program.
    pub(super) fn start(&self) -> Result<Session> {
        let (place, listener) = ServiceSocket::make(None)?;
        let keep = Storage::File { file: unnamed()?, max: None };
        let service = Service::start(listener, geteuid().as_raw(), keep);
        let service = service.map_err(failed("starting the service"))?;
        Ok(Session { on: self.on(place.path.clone()), service, _place: place })
    }
}

pub(super) struct Session {
    /// The environment variables with which a program is traced.
    pub(super) on: Variables,
    pub(super) service: Service,
    _place: ServiceSocket,
}

/// Creates a file in the directory for temporary files and removes its name, so the file is deleted when it is closed.
fn unnamed() -> Result<File> {
    let path = std::env::temp_dir().join(format!("atrace-cost-{}-{:016x}", std::process::id(), chance()));
    let create = || {
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        std::fs::remove_file(&path)?;
        Ok(file)
    };
    create().map_err(failed::<std::io::Error>(format!("a file for the trace, {}", shown_path(&path))))
}
