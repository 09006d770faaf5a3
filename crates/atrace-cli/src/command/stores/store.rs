//! The property stores that a switch must reach: one for each user on Linux, one for all users on Android.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, OsString};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::escape::shown;
use atrace_sys::errand;
use atrace_sys::properties::Properties;
use rustix::process::geteuid;
use uzers::get_user_by_uid;

use crate::command::caller::Caller;
use crate::command::processes::Process;
use crate::command::stores::content::Content;
use crate::command::stores::privsep::{Location, Work, perform_all};
use crate::command::terminal::{Failure, Result, say};

/// The group `nogroup`, for users that the system does not know.
const NO_GROUP: u32 = 65534;

/// The maximum number of messages about directories with an invalid owner.
const NAMED: usize = 5;

/// A property store that can be switched.
pub(crate) struct Store {
    location: Location,
    /// The user whose ids a child takes on to use the store, if that is another user.
    user: Option<errand::User>,
    /// The user whose store it is; `None` if all users share it, or if a variable names its path.
    pub(crate) uid: Option<u32>,
    pub(crate) path: PathBuf,
    /// The content when the store was read.
    pub(crate) content: Content,
}

impl Store {
    /// Describes the owner in words.
    pub(crate) fn owner(&self) -> String {
        self.uid.map_or_else(|| shown(self.path.as_os_str().as_encoded_bytes()).to_string(), owner)
    }

    fn own() -> Self {
        let named = atrace_sys::process::variable("ATRACE_PROPERTIES").map(PathBuf::from);
        match named {
            Some(path) => Self::at(path),
            None if cfg!(target_os = "android") => Self::of(Location::Own, None, Properties::path_for_uid(0)),
            None => Self::of_user(geteuid().as_raw()),
        }
    }

    pub(crate) fn of_user(uid: u32) -> Self {
        Self::of(Location::OfUser(uid), Some(uid), Properties::path_for_uid(uid))
    }

    /// The store at a path that a variable named. If this is root, the file may belong to another user.
    pub(crate) fn at(path: PathBuf) -> Self {
        let location = if cfg!(target_os = "android") { Location::Own } else { Location::At(path.clone()) };
        Self::of(location, None, path)
    }

    fn of(location: Location, uid: Option<u32>, path: PathBuf) -> Self {
        let of_file = || Some(fs::symlink_metadata(&path).ok()?.uid());
        let owner = uid.or_else(|| if matches!(location, Location::Own) { None } else { of_file() });
        let own = geteuid().as_raw();
        let user = owner.filter(|owner| own == 0 && *owner != own).map(become_user);
        Self { location, user, uid, path, content: Content::default() }
    }

    /// Tells whether the process uses this store.
    pub(crate) fn is_of(&self, process: &Follower) -> bool {
        match (self.uid, &process.store) {
            (_, Some(path)) => self.path.as_os_str() == path,
            (Some(uid), None) => process.uid == Some(uid),
            (None, None) => cfg!(target_os = "android"),
        }
    }
}

/// The facts about a process, which are read once: a user may have thousands of processes and hundreds of patterns.
pub(crate) struct Follower {
    pub(crate) process: Process,
    name: Option<CString>,
    uid: Option<u32>,
    /// The path in the variable `ATRACE_PROPERTIES`.
    store: Option<OsString>,
}

impl Follower {
    pub(crate) fn of(process: Process) -> Self {
        let (name, uid) = (process.argv0(), process.uid());
        Self { process, name, uid, store: process.variable("ATRACE_PROPERTIES") }
    }

    /// Tells whether an app pattern matches the process's name.
    pub(crate) fn matches(&self, pattern: &CStr) -> bool {
        self.name.as_ref().is_some_and(|name| atrace_sys::process::matches(pattern, name))
    }
}

/// Describes a user in words.
fn owner(uid: u32) -> String {
    match get_user_by_uid(uid) {
        Some(user) => format!("user {} ({uid})", shown(user.name().as_encoded_bytes())),
        None => format!("user {uid}"),
    }
}

fn become_user(uid: u32) -> errand::User {
    errand::User { uid, gid: get_user_by_uid(uid).map_or(NO_GROUP, |user| user.primary_group_id()) }
}

/// Does work on each store, and returns the contents after it. Stores of other users are used with the rights of
/// these users, several at once.
pub(crate) fn perform<'a>(
    stores: impl IntoIterator<Item = &'a Store>,
    mut work: impl FnMut(&Store) -> Work,
) -> Vec<(&'a Store, std::result::Result<Content, String>)> {
    let stores: Vec<_> = stores.into_iter().collect();
    let piece = |store: &&Store| (store.user, store.location.clone(), work(store));
    let pieces: Vec<_> = stores.iter().map(piece).collect();
    stores.into_iter().zip(perform_all(&pieces)).collect()
}

/// Returns the stores that this user may switch. The caller's own store is created if it does not exist.
///
/// For root, these are the stores of all users that have one, and of the users in `needed`. If a store can't be
/// reached or trusted, a line of output says so, and the others are returned. This includes root's own store, because
/// another user may have taken its path. Other users have only their own store, and if it can't be reached, this
/// function fails.
pub(crate) fn all(needed: impl IntoIterator<Item = u32>) -> Result<Vec<Store>> {
    let mut stores = vec![Store::own()];
    let made = perform_all(&[(stores[0].user, stores[0].location.clone(), Work::Enable(Vec::new()))]);
    let is_for_all = stores[0].uid == Some(0);
    if is_for_all {
        let mut users: BTreeSet<u32> = existing().into_iter().collect();
        users.extend(needed);
        users.extend(Caller::behind_sudo()?.map(|caller| caller.uid));
        users.remove(&0);
        stores.extend(users.into_iter().map(Store::of_user));
    }
    let others = perform(stores.iter().skip(1), |_| Work::Look);
    let contents: Vec<_> = made.into_iter().chain(others.into_iter().map(|(_, content)| content)).collect();
    let mut reached = Vec::new();
    for (index, (mut store, content)) in stores.into_iter().zip(contents).enumerate() {
        match content {
            Ok(content) => {
                store.content = content;
                reached.push(store);
            }
            Err(e) if index == 0 && !is_for_all => return Err(Failure::new(shown(&e).to_string())),
            Err(e) => miss(&store, &e),
        }
    }
    Ok(reached)
}

/// Reports that a store was not reached.
pub(crate) fn miss(store: &Store, why: &str) {
    say(format_args!("not reached, {}: {}", store.owner(), shown(why)));
}

/// Handles a store that could not be switched. For the caller's own store this is an error; for another user's, it is
/// reported.
pub(crate) fn refuse(store: &Store, why: &str) -> Result<()> {
    if store.user.is_none() {
        return Err(Failure::new(format!("{}: {}", store.owner(), shown(why))));
    }
    miss(store, why);
    Ok(())
}

/// Returns the other users that have a store. A file with the name of a user's directory that is no directory of that
/// user is reported and ignored.
fn existing() -> Vec<u32> {
    let example = Properties::path_for_uid(0);
    let Some(place) = example.parent().and_then(Path::parent) else { return Vec::new() };
    let mut users = Vec::new();
    let mut planted = 0;
    for entry in fs::read_dir(place).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let digits = name.to_str().and_then(|name| name.strip_prefix("atrace-")).unwrap_or_default();
        let uid = digits.parse::<u32>().ok().filter(|uid| uid.to_string() == digits);
        let Some(uid) = uid.filter(|uid| *uid != 0) else { continue };
        let is_theirs = entry.metadata().is_ok_and(|data| data.is_dir() && data.uid() == uid);
        if is_theirs {
            users.push(uid);
            continue;
        }
        planted += 1;
        if planted <= NAMED {
            let path = entry.path();
            say(format_args!("not reached, {}: {} is no directory of theirs", owner(uid), path.display()));
        }
    }
    if planted > NAMED {
        say(format_args!("not reached: {} more like that", planted - NAMED));
    }
    users
}
