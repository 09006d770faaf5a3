//! The user who called the command. Under `sudo`, the started program runs as that user (unless `--root` is given), and
//! the written files belong to that user.
//!
//! [`Caller::act`] calls a function with the user's rights inside this process. It changes the effective ids of the
//! calling thread only, and changes them back afterwards. The ids of other threads stay root's.

use std::ffi::OsString;
use std::path::PathBuf;

use rustix::io::Errno;
use rustix::process::{Gid, Uid, getegid, geteuid, getgroups};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use uzers::os::unix::UserExt as _;
use uzers::{get_user_by_uid, get_user_groups};

use crate::command::terminal::{Failure, Result, failed, say};
use crate::process::Process;

/// The number that means "leave unchanged" for `setresuid` and `setresgid`. It is not a valid user or group id.
const UNCHANGED: u32 = u32::MAX;

/// A user as whom a program can be run.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// All groups of the user, the primary group first.
    pub(crate) groups: Vec<u32>,
    /// The user's name and home directory, if the system knows them.
    pub(crate) known: Option<(OsString, PathBuf)>,
}

impl Caller {
    /// Returns the user who called this command through `sudo` or `pkexec`. Returns `None` if the command was not
    /// called in this way, or if root has done so.
    pub(crate) fn behind_sudo() -> Result<Option<Self>> {
        if !geteuid().is_root() {
            return Ok(None);
        }
        let Some(uid) = id("SUDO_UID")?.or(id("PKEXEC_UID")?).filter(|uid| *uid != 0) else {
            return Ok(None);
        };
        Ok(Some(Self::of(uid, id("SUDO_GID")?)))
    }

    /// Returns the user with the id `uid`. The primary group is `gid` or, if `gid` is `None`, the user's primary group
    /// on this system. If `gid` is `None` and the system does not know the user, the primary group is the group with
    /// the number `uid`.
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

    /// Calls `work` with the rights of this user, and restores root's rights afterwards. So even if paths that `work`
    /// uses lead to unexpected places, `work` can do nothing that the user could not do. The real user id stays root's,
    /// so the user can neither trace (`ptrace`) nor signal this process.
    pub(crate) fn act<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let problem = |e| failed(format!("acting as user {}", self.uid))(e);
        let _back = RootGuard { groups: getgroups().map_err(problem)?, gid: getegid() };
        take_on(self.uid, &self.groups, false).map_err(problem)?;
        work()
    }
}

/// Sets the effective user id, the effective group id and the groups of the calling thread. If `is_final` is true, also
/// sets the real and saved ids, and the change can't be undone. The first of `groups` becomes the primary group.
pub(crate) fn take_on(uid: u32, groups: &[u32], is_final: bool) -> rustix::io::Result<()> {
    let gid = *groups.first().ok_or(Errno::INVAL)?;
    if [uid, gid].contains(&UNCHANGED) {
        return Err(Errno::INVAL);
    }
    let groups: Vec<_> = groups.iter().copied().map(Gid::from_raw).collect();
    set_thread_groups(&groups)?;
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    let (other_uid, other_gid) = (is_final.then_some(uid), is_final.then_some(gid));
    set_thread_res_gid(other_gid, gid, other_gid)?;
    set_thread_res_uid(other_uid, uid, other_uid)
}

/// Parses a user or group id in an environment variable.
fn id(variable: &str) -> Result<Option<u32>> {
    let Some(text) = std::env::var_os(variable) else { return Ok(None) };
    let digits = text.to_str().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    match digits.and_then(|digits| digits.parse().ok()).filter(|id| *id != UNCHANGED) {
        Some(id) => Ok(Some(id)),
        None => Err(Failure::new(format!("{variable}={text:?} is not a user or group: unset the variable"))),
    }
}

/// Returns the groups of the nearest ancestor process that runs as this user. Among these may be groups without a name,
/// and groups that the user joined after the login (`newgrp`). The program may get all of these groups, because a
/// process of the user already has them.
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

/// A guard that restores root's rights, for the calling thread, when the guard is dropped.
struct RootGuard {
    groups: Vec<Gid>,
    gid: Gid,
}

impl Drop for RootGuard {
    fn drop(&mut self) {
        let done = set_thread_res_uid(None, Uid::ROOT, None)
            .and_then(|()| set_thread_res_gid(None, self.gid, None))
            .and_then(|()| set_thread_groups(&self.groups));
        if let Err(e) = done {
            // The thread may now have ids of two users, with which nothing can be done safely. So the command ends.
            say(format_args!("taking root's rights back: {e}"));
            std::process::exit(125);
        }
    }
}
