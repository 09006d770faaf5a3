//! The user who called the command. Under `sudo`, the started program and the written files belong to that user.

use std::ffi::OsString;
use std::path::PathBuf;

use rustix::io::Errno;
use rustix::process::{Gid, Uid, getegid, geteuid, getgroups};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use uzers::os::unix::UserExt as _;
use uzers::{get_user_by_uid, get_user_groups};

use crate::command::processes::Process;
use crate::command::terminal::{Failure, Result, failed, say};

/// No user and no group: the kernel takes it for "as it is".
pub(crate) const UNCHANGED: u32 = u32::MAX;

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
        let Some(uid) = id("SUDO_UID")?.or(id("PKEXEC_UID")?).filter(|uid| *uid != 0) else {
            return Ok(None);
        };
        Ok(Some(Self::of(uid, id("SUDO_GID")?)))
    }

    /// The user with this number, in this group or that which the system knows.
    pub(crate) fn of(uid: u32, gid: Option<u32>) -> Self {
        let user = get_user_by_uid(uid);
        let gid = gid.or(user.as_ref().map(|user| user.primary_group_id())).unwrap_or(uid);
        let listed = || {
            let groups = user.as_ref().and_then(|user| get_user_groups(user.name(), gid));
            groups.unwrap_or_default().iter().map(|group| group.gid()).collect()
        };
        let others = groups_of_ancestor(uid).unwrap_or_else(listed);
        let others = others.into_iter().filter(|other| *other != gid);
        let groups = std::iter::once(gid).chain(others).collect();
        let known = user.map(|user| (user.name().to_owned(), user.home_dir().to_owned()));
        Self { uid, gid, groups, known }
    }

    /// Does the work with the rights of this user, whatever the paths it meets turn out to be, and takes root's
    /// back. The process stays root's: the user can neither trace nor signal it.
    pub(crate) fn act<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let problem = |e| failed(format!("acting as user {}", self.uid))(e);
        if [self.uid, self.gid].contains(&UNCHANGED) {
            return Err(problem(Errno::INVAL));
        }
        let _back = Back { groups: getgroups().map_err(problem)?, gid: getegid() };
        let groups: Vec<_> = self.groups.iter().copied().map(Gid::from_raw).collect();
        set_thread_groups(&groups).map_err(problem)?;
        set_thread_res_gid(None, Gid::from_raw(self.gid), None).map_err(problem)?;
        set_thread_res_uid(None, Uid::from_raw(self.uid), None).map_err(problem)?;
        work()
    }
}

/// The user or group whose number a variable has.
fn id(variable: &str) -> Result<Option<u32>> {
    let Some(text) = std::env::var_os(variable) else { return Ok(None) };
    let digits = text.to_str().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    match digits.and_then(|digits| digits.parse().ok()).filter(|id| *id != UNCHANGED) {
        Some(id) => Ok(Some(id)),
        None => Err(Failure::new(format!("{variable}={text:?} is no user or group: unset it"))),
    }
}

/// The groups of the process of this user that this one comes from: also those that have no name, or that its user took on
/// since (`newgrp`). What a user's process is in, any other of theirs may be in.
fn groups_of_ancestor(uid: u32) -> Option<Vec<u32>> {
    let mut process = Process::this();
    loop {
        let status = process.status()?;
        if let [real, effective, ..] = *status.numbers("Uid")
            && (real, effective) == (uid, uid)
        {
            return Some(status.numbers("Groups"));
        }
        process = Process(*status.numbers("PPid").first().filter(|parent| **parent != 0)?);
    }
}

/// Root's rights, taken back when this is dropped. They are those of the thread.
struct Back {
    groups: Vec<Gid>,
    gid: Gid,
}

impl Drop for Back {
    fn drop(&mut self) {
        let done = set_thread_res_uid(None, Uid::ROOT, None)
            .and_then(|()| set_thread_res_gid(None, self.gid, None))
            .and_then(|()| set_thread_groups(&self.groups));
        if let Err(e) = done {
            // Half one user and half another, nothing that follows can be right.
            say(format_args!("taking root's rights back: {e}"));
            std::process::exit(125);
        }
    }
}
