//! Who called the command: under `sudo`, the program it starts and the files it writes are that user's.

use std::ffi::{CString, OsString};
use std::path::PathBuf;

use atrace::shown::shown;
use nix::unistd::{Gid, Uid, User, getegid, geteuid, getgrouplist, getgroups, setegid, seteuid, setgroups};

use crate::command::terminal::{Failure, Result, failed, say};

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
        Self::of(uid, number("SUDO_GID")?).map(Some)
    }

    /// The user with this number, in this group or that which the system knows.
    pub(crate) fn of(uid: u32, gid: Option<u32>) -> Result<Self> {
        let user = User::from_uid(Uid::from_raw(uid)).map_err(failed(format!("looking up user {uid}")))?;
        let gid = gid.or(user.as_ref().map(|user| user.gid.as_raw())).unwrap_or(uid);
        let groups = match &user {
            Some(user) => {
                let name = CString::new(user.name.as_str()).unwrap_or_default();
                let groups = getgrouplist(&name, Gid::from_raw(gid))
                    .map_err(failed(format!("looking up the groups of {}", shown(&user.name))))?;
                groups.into_iter().map(Gid::as_raw).collect()
            }
            None => vec![gid],
        };
        let known = user.map(|user| (user.name.into(), user.dir));
        Ok(Self { uid, gid, groups, known })
    }

    /// Does the work with the rights of this user, whatever the paths it meets turn out to be, and takes root's
    /// back. The process stays root's: the user can neither trace nor signal it.
    pub(crate) fn act<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let problem = |e| failed(format!("acting as user {}", self.uid))(e);
        let _back = Back { groups: getgroups().map_err(problem)?, gid: getegid() };
        let groups: Vec<_> = self.groups.iter().copied().map(Gid::from_raw).collect();
        setgroups(&groups).map_err(problem)?;
        setegid(Gid::from_raw(self.gid)).map_err(problem)?;
        seteuid(Uid::from_raw(self.uid)).map_err(problem)?;
        work()
    }
}

/// Root's rights, taken back when this is dropped.
struct Back {
    groups: Vec<Gid>,
    gid: Gid,
}

impl Drop for Back {
    fn drop(&mut self) {
        let done =
            seteuid(Uid::from_raw(0)).and_then(|()| setegid(self.gid)).and_then(|()| setgroups(&self.groups));
        if let Err(e) = done {
            // Half one user and half another, nothing that follows can be right.
            say(format_args!("taking root's rights back: {e}"));
            std::process::exit(125);
        }
    }
}
