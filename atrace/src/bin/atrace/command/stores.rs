//! The property stores that a switch must reach: one for each user on a host, one for all on Android.

use std::collections::BTreeSet;
use std::path::PathBuf;

use atrace::control::{Control, Error, Switched};
use atrace_sys::properties::Properties;
use nix::unistd::{User, geteuid};

use super::caller::Caller;
use super::failure::{Failure, Result, say};
use super::processes;

/// A property store that can be switched.
pub(crate) struct Store {
    pub(crate) control: Control,
    /// Whose it is; None where it is everybody's, or of a place that a variable names.
    pub(crate) uid: Option<u32>,
    pub(crate) path: PathBuf,
}

impl Store {
    /// Whose it is, in words.
    pub(crate) fn owner(&self) -> String {
        let Some(uid) = self.uid else { return self.path.display().to_string() };
        match User::from_uid(uid.into()) {
            Ok(Some(user)) => format!("user {} ({uid})", user.name),
            _ => format!("user {uid}"),
        }
    }

    fn own() -> Result<Self> {
        let control = Control::open()?;
        let named = atrace_sys::process::variable("ATRACE_PROPERTIES").map(PathBuf::from);
        let uid =
            if named.is_some() || cfg!(target_os = "android") { None } else { Some(geteuid().as_raw()) };
        let path = named.unwrap_or_else(|| Properties::path_for_uid(geteuid().as_raw()));
        Ok(Self { control, uid, path })
    }

    /// The process follows this store.
    pub(crate) fn is_of(&self, process: processes::Process) -> bool {
        match (self.uid, process.variable("ATRACE_PROPERTIES")) {
            (_, Some(path)) => self.path.as_os_str() == path,
            (Some(uid), None) => process.uid() == Some(uid),
            (None, None) => cfg!(target_os = "android"),
        }
    }
}

/// The stores that exist, as far as this user may switch them; and that of who called, made if need be.
///
/// For root these are the stores of all users, and that of each user `needed` is asked for.
pub(crate) fn all(needed: impl IntoIterator<Item = u32>) -> Result<Vec<Store>> {
    let own = Store::own()?;
    let Some(uid) = own.uid else { return Ok(vec![own]) };
    let mut stores = vec![own];
    if uid != 0 {
        return Ok(stores);
    }
    let mut users: BTreeSet<u32> = existing().into_iter().collect();
    users.extend(needed);
    users.extend(Caller::behind_sudo()?.map(|caller| caller.uid));
    users.remove(&uid);
    for uid in users {
        match Control::open_user(uid) {
            Ok(control) => {
                stores.push(Store { control, uid: Some(uid), path: Properties::path_for_uid(uid) });
            }
            // One that can't be trusted must not keep the others from being switched.
            Err(e) => say(format_args!("not reached: {e}")),
        }
    }
    Ok(stores)
}

/// The users who have a store.
fn existing() -> Vec<u32> {
    let example = Properties::path_for_uid(0);
    let place = example.parent().and_then(|path| path.parent());
    let entries = place.and_then(|place| std::fs::read_dir(place).ok());
    let names = entries.into_iter().flatten().flatten().map(|entry| entry.file_name());
    names.filter_map(|name| name.to_str()?.strip_prefix("atrace-")?.parse().ok()).collect()
}

/// Does the same to all stores; takes back what was done where it fails for one.
pub(crate) fn switch(
    stores: &[Store],
    mut to: impl FnMut(&Control) -> std::result::Result<Switched, Error>,
) -> Result<Vec<Switched>> {
    let mut done = Vec::new();
    for store in stores {
        done.push(to(&store.control).map_err(|e| Failure::new(format!("{}: {e}", store.owner())))?);
    }
    Ok(done)
}
