//! The property stores that a command must change to switch tracing: one for each user on Linux, one for all
//! users on Android.
//!
//! # Privilege separation
//!
//! A store belongs to its user, who can truncate it, lock it forever, or put a link in its place. Root must not open
//! it. So a child process with the user's ids does the work (`privsep`). The child answers with bytes, which are parsed
//! as untrusted [`Content`]. If the work fails for a user, a line of output says so, and the stores of the other users
//! are still changed. In one run of the command, all work for one user may take [one second](PATIENCE) in total. Even
//! when this time is used up, the work that switches patterns off again may take a tenth of a second.
//!
//! # Patterns
//!
//! Patterns that can't match any name are refused at once ([`check_all`]), so that no user waits in vain for the events
//! of such a pattern. Sets of characters are checked with the matcher that the traced programs use. Except on Android,
//! this matcher is a part of the library.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, CString, OsString};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use atrace::AtraceTag;
use atrace::control::{Control, Error, Switched};
use atrace_sys::privsep::{PATIENCE, User};
use atrace_sys::properties::{self, ErrorKind, Properties, VALUE_MAX};
use rustix::process::geteuid;
use uzers::get_user_by_uid;

use crate::command::caller::Caller;
use crate::command::stores::content::Content;
use crate::command::terminal::{Failure, Result, say};
use crate::escape::shown;
use crate::privsep;
use crate::process::{Process, matches};

/// The group `nogroup`, for users that the system does not know.
const NO_GROUP: u32 = 65534;

/// The maximum number of messages about directories whose name and owner do not agree.
const NAMED: usize = 5;

/// A property store that can be changed.
pub(crate) struct Store {
    /// The user whose ids a child process needs in order to use the store, or `None` if this process can use the store
    /// itself.
    user: Option<User>,
    /// The user who owns the store, or `None` if all users share it or an environment variable names its
    /// path.
    pub(crate) uid: Option<u32>,
    pub(crate) path: PathBuf,
    /// The patterns and tags of the store when it was read.
    pub(crate) content: Content,
}

impl Store {
    /// Describes the owner in words or, if the store has no known owner, returns the store's path.
    pub(crate) fn owner(&self) -> String {
        self.uid.map_or_else(|| shown(self.path.as_os_str().as_encoded_bytes()).to_string(), owner)
    }

    fn own() -> Self {
        let named = atrace_sys::process::variable("ATRACE_PROPERTIES").map(PathBuf::from);
        match named {
            Some(path) => Self::of(None, path),
            None if cfg!(target_os = "android") => Self::of(None, Properties::path_for_uid(0)),
            None => Self::of_user(geteuid().as_raw()),
        }
    }

    pub(crate) fn of_user(uid: u32) -> Self {
        Self::of(Some(uid), Properties::path_for_uid(uid))
    }

    /// Returns the store of the user `uid` or, if `uid` is `None`, the store at `path`, which all users share or an
    /// environment variable names. If this process is root's and the store belongs to another user, a child process
    /// with that user's ids will use the store.
    pub(crate) fn of(uid: Option<u32>, path: PathBuf) -> Self {
        let is_shared = uid.is_none() && cfg!(target_os = "android");
        let of_file = || Some(fs::symlink_metadata(&path).ok()?.uid()).filter(|_| !is_shared);
        let own = geteuid().as_raw();
        let user = uid.or_else(of_file).filter(|owner| own == 0 && *owner != own).map(become_user);
        Self { user, uid, path, content: Content::default() }
    }

    /// Returns the store at `path`, for a program that runs as `user` or, if `user` is `None`, as the user of this
    /// process.
    pub(crate) fn of_program(user: Option<User>, path: PathBuf) -> Self {
        Self { user, uid: None, path, content: Content::default() }
    }

    /// Opens the store. Creates it only for work that [creates](Work::makes) a store.
    fn open(&self, work: &Work) -> std::result::Result<Control, Error> {
        match self.uid {
            Some(uid) if work.makes() => Ok(Properties::open_uid(uid)?.into()),
            None if cfg!(target_os = "android") => Control::open(),
            _ if work.makes() => Ok(Properties::open_path(&self.path)?.into()),
            _ => Ok(Properties::open_existing(&self.path)?.into()),
        }
    }

    /// Does the work in this process, and returns the new content of the store. Waits at most `patience` for other
    /// processes that hold the store's lock.
    fn perform(&self, work: &Work, patience: Duration) -> std::result::Result<Content, Error> {
        let control = match self.open(work) {
            Err(e) if is_missing(&e) => return Ok(Content::default()),
            opened => opened?.patience(patience),
        };
        work.perform(&control)?;
        let text = |pattern: &Vec<u8>| String::from_utf8_lossy(pattern).into_owned();
        let patterns = control.patterns().iter().map(text).collect();
        Ok(Content { patterns, tags: control.tags() & AtraceTag::ValidMask })
    }

    /// Returns whether the process uses this store.
    pub(crate) fn is_of(&self, process: &ProcessData) -> bool {
        match (self.uid, &process.store) {
            (_, Some(path)) => self.path.as_os_str() == path,
            (Some(uid), None) => process.uid == Some(uid),
            (None, None) => cfg!(target_os = "android"),
        }
    }
}

/// Data about a process. It is read only once, and not again for each pattern, because a user may have thousands of
/// processes and hundreds of patterns.
pub(crate) struct ProcessData {
    pub(crate) process: Process,
    name: Option<CString>,
    uid: Option<u32>,
    /// The path in the process's variable `ATRACE_PROPERTIES`.
    store: Option<OsString>,
}

impl ProcessData {
    pub(crate) fn of(process: Process) -> Self {
        let (name, uid) = (process.argv0(), process.uid());
        Self { process, name, uid, store: process.variable("ATRACE_PROPERTIES") }
    }

    /// Returns whether an app pattern matches the process's name.
    pub(crate) fn matches(&self, pattern: &CStr) -> bool {
        self.name.as_ref().is_some_and(|name| atrace_sys::process::matches_name(pattern, name))
    }
}

/// Describes a user in words.
fn owner(uid: u32) -> String {
    match get_user_by_uid(uid) {
        Some(user) => format!("user {} ({uid})", shown(user.name().as_encoded_bytes())),
        None => format!("user {uid}"),
    }
}

fn become_user(uid: u32) -> User {
    User { uid, gid: get_user_by_uid(uid).map_or(NO_GROUP, |user| user.primary_group_id()) }
}

/// Does work on each store, and returns the new contents. This process first works on the stores that it may use
/// itself. After that, work on the stores of other users is done with the rights of these users, for several
/// users at once.
pub(crate) fn perform<'a>(
    stores: impl IntoIterator<Item = &'a Store>,
    mut work: impl FnMut(&Store) -> Work,
) -> Vec<(&'a Store, std::result::Result<Content, String>)> {
    let tasks = stores.into_iter().map(|store| (store.user, store, work(store)));
    let (others, own): (Vec<_>, Vec<_>) = tasks.partition(|(user, ..)| user.is_some());
    let perform = |(_, store, work): (_, &'a Store, Work)| {
        (store, store.perform(&work, properties::PATIENCE).map_err(|e| e.to_string()))
    };
    let mut results: Vec<_> = own.into_iter().map(perform).collect();
    privsep::ask(
        &others,
        |(user, _, work)| {
            let user = user.unwrap_or_else(User::present);
            // Even a user without any time left gets a little time, to switch off the patterns that were switched on.
            let least = if matches!(work, Work::TakeBack(_)) { PATIENCE / 10 } else { Duration::ZERO };
            (user, left(user.uid).max(least))
        },
        // The child waits for the lock for half of the time at most, so that it can still report which process holds
        // the lock.
        |(_, store, work), left| match store.perform(work, left / 2) {
            Ok(content) => content.bytes(),
            Err(e) => Content::fault(&e.to_string()),
        },
        [
            "not asked, because other users took too long to answer",
            "not asked again, because its answers took too long",
        ],
        |(user, store, _), answer, time| {
            let uid = user.map_or(0, |user| user.uid);
            *SPENT.lock().unwrap_or_else(PoisonError::into_inner).entry(uid).or_default() += time;
            results.push((store, answer.and_then(|answer| Content::parse(&answer))));
        },
    );
    results
}

/// Returns the stores that this user may change. The caller's own store is created if it does not exist.
///
/// For root, these are the stores of all users that have a store, of the users in `needed`, and of the user who called
/// `sudo`. But if `ATRACE_PROPERTIES` names a store, the function returns only that store. A store that can't be
/// reached or trusted is reported in a line of output, and the other stores are returned. Root's own store can be such
/// a store, because another user may have created a file at its path. An ordinary user has only one store. If this
/// store can't be reached, the function returns an error.
pub(crate) fn all(needed: impl IntoIterator<Item = u32>) -> Result<Vec<Store>> {
    let mut stores = vec![Store::own()];
    let is_for_all = stores[0].uid == Some(0);
    if is_for_all {
        let mut users: BTreeSet<u32> = existing().into_iter().collect();
        users.extend(needed);
        users.extend(Caller::behind_sudo()?.map(|caller| caller.uid));
        users.remove(&0);
        stores.extend(users.into_iter().map(Store::of_user));
    }
    let mut is_own = true;
    let look = |_: &Store| {
        if std::mem::take(&mut is_own) { Work::Enable(Vec::new()) } else { Work::Look }
    };
    let contents: Vec<_> = perform(&stores, look).into_iter().map(|(_, content)| content).collect();
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

/// Reports that a store could not be reached.
pub(crate) fn miss(store: &Store, why: &str) {
    say(format_args!("not reached, {}: {}", store.owner(), shown(why)));
}

/// Handles a store that could not be changed. For the caller's own store, the function returns an error; for another
/// user's store, it prints a line and returns no error.
pub(crate) fn refuse(store: &Store, why: &str) -> Result {
    if store.user.is_none() {
        return Err(Failure::new(format!("{}: {}", store.owner(), shown(why))));
    }
    miss(store, why);
    Ok(())
}

/// Returns the users, except root, that have a store. If a file has the name of a user's directory but is not a
/// directory that belongs to that user, the file is reported and ignored.
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
            say(format_args!("not reached, {}: {} is not that user's directory", owner(uid), path.display()));
        }
    }
    if planted > NAMED {
        say(format_args!("not reached: {} more users, for the same reason", planted - NAMED));
    }
    users
}

/// The operation on a store.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    Look,
    /// Adds each pattern, unless the store already lists the pattern more than the given number of times.
    Enable(Vec<(String, usize)>),
    /// Removes all entries of the pattern.
    Disable(String),
    /// Removes one entry of each pattern, if the store lists the pattern more than the given number of times.
    TakeBack(Vec<(String, usize)>),
    /// Enables or disables all tags for all programs.
    All(bool),
}

impl Work {
    /// Returns whether the operation creates the store if it does not exist.
    fn makes(&self) -> bool {
        matches!(self, Self::Enable(_) | Self::All(true))
    }

    fn perform(&self, control: &Control) -> std::result::Result<(), Error> {
        match self {
            Self::Look => {}
            Self::Enable(patterns) => {
                let enable = |(pattern, beside): &(String, usize)| control.enable((pattern, *beside));
                // Adds all patterns or none: if one can't be added, the `Switched` values of the others are dropped,
                // which removes those patterns again.
                let done = patterns.iter().map(enable).collect::<std::result::Result<Vec<_>, _>>()?;
                done.into_iter().for_each(Switched::keep);
            }
            Self::All(true) => {
                control.enable(AtraceTag::all())?.keep();
                control.enable("*")?.keep();
            }
            Self::All(false) => {
                control.disable("*")?.keep();
                control.disable(AtraceTag::all())?.keep();
            }
            Self::Disable(pattern) => control.disable(pattern)?.keep(),
            Self::TakeBack(patterns) => {
                for (pattern, beside) in patterns {
                    control.disable((pattern, *beside))?.keep();
                }
            }
        }
        Ok(())
    }
}

fn is_missing(e: &Error) -> bool {
    let source = std::error::Error::source(e).and_then(|e| e.downcast_ref::<properties::Error>());
    source.is_some_and(|e| e.kind() == ErrorKind::Missing)
}

/// The time that this run of the command has spent on each user's store.
static SPENT: Mutex<BTreeMap<u32, Duration>> = Mutex::new(BTreeMap::new());

/// Returns how much time this run of the command may still spend on the store of the user `uid`. The total for each
/// user is [`PATIENCE`].
pub(crate) fn left(uid: u32) -> Duration {
    let spent = SPENT.lock().unwrap_or_else(PoisonError::into_inner);
    PATIENCE.saturating_sub(spent.get(&uid).copied().unwrap_or_default())
}

/// Returns an error if a pattern is too long, can't match any name, or has another meaning than it seems to have.
pub(crate) fn check_all(patterns: &[String]) -> Result {
    patterns.iter().try_for_each(|pattern| check(pattern))
}

fn check(pattern: &str) -> Result {
    let refused = |what: &str, help: &str| {
        Err(Failure::new(format!("the pattern {} matches nothing: {what}; {help}", shown(pattern))))
    };
    if pattern.is_empty() {
        return Err(Failure::new("an empty pattern matches no process"));
    }
    if pattern.len() > VALUE_MAX {
        let start = (pattern.len() - (VALUE_MAX - 1)..pattern.len()).find(|&at| pattern.is_char_boundary(at));
        let end = start.and_then(|start| pattern.get(start..)).unwrap_or_default();
        return Err(Failure::new(format!(
            "a pattern has at most {VALUE_MAX} bytes, this has {}: give its end, as '*{}'",
            pattern.len(),
            shown(end)
        )));
    }
    if pattern.contains('\0') {
        return refused("it holds a NUL byte", "leave that out");
    }
    // A name is the first line of argv[0], including its line end.
    if pattern.find('\n').is_some_and(|at| at + 1 < pattern.len()) {
        return refused("a name is one line", "give the part before the line end, and '*'");
    }
    let mut rest = pattern;
    while let Some(at) = rest.find('[') {
        rest = &rest[at..];
        let Some(len) = set(rest.as_bytes()) else {
            return refused("its '[' begins a set that has no ']'", "for the character itself write '[[]'");
        };
        let (set, behind) = rest.split_at(len);
        if !has_member(set) {
            let what = format!("its set {} contains no character", shown(set));
            return refused(&what, "write '?' for any character, '*' for any text, '[[]' for '[' itself");
        }
        rest = behind;
    }
    Ok(())
}

/// Returns the length of the set of characters (`[…]`) at the start of `bytes`, including its brackets, or `None` if
/// the set has no closing bracket.
fn set(bytes: &[u8]) -> Option<usize> {
    let mut at = 1;
    at += usize::from(matches!(bytes.get(at), Some(b'!' | b'^')));
    // A `]` in the first position is a member of the set.
    at += usize::from(bytes.get(at) == Some(&b']'));
    loop {
        match (bytes.get(at)?, bytes.get(at + 1)) {
            (b']', _) => return Some(at + 1),
            // The `]` of a class such as `[:alpha:]` does not end the set.
            (b'[', Some(&kind @ (b':' | b'.' | b'='))) => {
                let inner = bytes.get(at + 2..)?;
                match inner.windows(2).position(|end| end == [kind, b']']) {
                    Some(len) => at += len + 4,
                    None => at += 1,
                }
            }
            _ => at += 1,
        }
    }
}

fn has_member(set: &str) -> bool {
    (1..=u8::MAX).any(|byte| matches(set.as_bytes(), &[byte]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_that_match_something_pass() {
        for (pattern, name) in [
            ("*", "x"),
            ("/usr/bin/[a-z]*", "/usr/bin/x"),
            ("[]]", "]"),
            ("[!]]x", "ax"),
            ("[[]", "["),
            ("x]", "x]"),
            ("[[:alpha:]_]", "_"),
            ("[^a]", "b"),
            ("[a\\]", "\\"),
            ("line\n", "line\n"),
        ] {
            check(pattern).unwrap();
            assert!(matches(pattern.as_bytes(), name.as_bytes()), "{pattern:?} {name:?}");
        }
    }

    #[test]
    fn patterns_that_match_nothing_are_refused() {
        for pattern in
            ["[", "*/svc[", "[]", "[!]", "[a", "[[:alpha:]", "[z-a]x", "[[:no-class:]]", "a\nb", "\0"]
        {
            let refused = check(pattern).unwrap_err().to_string();
            assert!(refused.contains("matches nothing"), "{refused}");
            assert!(!refused.contains('\n') && !refused.contains('\0'), "{refused:?}");
        }
        assert!(check("*/svc[").unwrap_err().to_string().contains("'[[]'"));
    }
}
