//! Who called the command: under `sudo`, the program it starts and the files it writes are that user's.

use std::ffi::{CString, OsString};
use std::path::PathBuf;

use nix::unistd::{Gid, Uid, User, geteuid, getgrouplist};

use super::failure::{Failure, Result, failed};

/// A user to run a program as.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
    /// Their name and home, where the system knows them.
    pub(crate) known: Option<(OsString, PathBuf)>,
}

impl Caller {
    /// The user who called `sudo` (or `pkexec`); None where nobody else did.
    pub(crate) fn behind_sudo() -> Result<Option<Self>> {
        if !geteuid().is_root() {
            return Ok(None);
        }
        let number = |name: &str| match std::env::var(name) {
            Ok(text) => text
                .parse::<u32>()
                .map(Some)
                .map_err(|_| Failure::new(format!("{name}={text:?} is no user or group: unset it"))),
            Err(_) => Ok(None),
        };
        let Some(uid) = number("SUDO_UID")?.or(number("PKEXEC_UID")?).filter(|uid| *uid != 0) else {
            return Ok(None);
        };
        let user = User::from_uid(Uid::from_raw(uid)).map_err(failed(format!("looking up user {uid}")))?;
        let gid = number("SUDO_GID")?.or(user.as_ref().map(|user| user.gid.as_raw())).unwrap_or(uid);
        let groups = match &user {
            Some(user) => {
                let name = CString::new(user.name.as_str()).unwrap_or_default();
                let groups = getgrouplist(&name, Gid::from_raw(gid))
                    .map_err(failed(format!("looking up the groups of {}", user.name)))?;
                groups.into_iter().map(Gid::as_raw).collect()
            }
            None => vec![gid],
        };
        let known = user.map(|user| (user.name.into(), user.dir));
        Ok(Some(Self { uid, gid, groups, known }))
    }
}
