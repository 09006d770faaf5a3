//! Collects the facts about a process with the rights of its user, and changes nothing.
//!
//! If the caller is root, an [`Errand`] does this: a child process that takes on the ids of the process's user. If
//! that user is root, too, the work still happens in a separate process. Other callers do it themselves.
//!
//! The process's user controls everything that is read here. So each file is read up to a fixed size, and no file is
//! opened that could block or that has an unexpected type.

use std::ffi::{CString, OsStr};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use atrace_sys::errand::{Errand, Failure, User};
use atrace_sys::properties::Properties;
use atrace_sys::state::NAME;
use atrace_sys::{probe, process};

use super::facts::{Descriptor, Facts, Page, Presence, StoreFacts};
use super::published::Published;
use crate::process::{Process, Status};
use atrace::control::{Control, FLAGS};

/// The most threads of a process that are examined.
const THREADS: usize = 1 << 16;
/// The most state pages that are read. A process has its own page and those that it inherited by `fork`.
const STATES: usize = 64;

/// Returns the user whose ids the child takes on to examine a process: the first of the process's ids that is not
/// root's.
///
/// If a process's ids are mixed, the kernel may refuse access to each of the users.
pub(super) fn user(status: &Status) -> Option<User> {
    let id = |key| {
        let ids = status.numbers(key);
        ids.iter().copied().find(|id| *id != 0).or(ids.first().copied())
    };
    Some(User { uid: id("Uid")?, gid: id("Gid")? })
}

/// Collects the facts about a process, in a child if the caller is root. The time that this takes comes off `left`.
pub(super) fn facts(pid: u32, status: &Status, left: &mut Duration) -> Result<Facts, Failure> {
    if pid == std::process::id() {
        return Ok(own());
    }
    let user = user(status).ok_or(Failure::Ended(0))?;
    let numbers = status.get("NSpid").map_or_else(|| pid.to_string(), str::to_owned);
    if User::present().uid != 0 || cfg!(target_os = "android") {
        return Ok(of(pid, user.uid, &numbers));
    }
    let start = Instant::now();
    let errand = Errand::start(user, *left, || of(pid, user.uid, &numbers).bytes());
    let answer = errand.and_then(Errand::answer);
    *left = left.saturating_sub(start.elapsed());
    let answer = answer?;
    Facts::parse(&answer).ok_or(Failure::Ended(0))
}

/// Collects the facts about the calling process.
pub(super) fn own() -> Facts {
    let pid = std::process::id();
    atrace::atrace_init();
    let text = atrace::state::text();
    let variable = |name: &str| process::variable(name).map(OsStringExt::into_vec);
    complete(pid, User::present().uid, Page::Text { text, is_parents: false }, variable)
}

/// Collects the facts about another process.
fn of(pid: u32, uid: u32, numbers: &str) -> Facts {
    let environment = Process(pid).environment();
    complete(pid, uid, page(pid, numbers), |name| environment.get(name).map(<[u8]>::to_vec))
}

fn complete(pid: u32, uid: u32, page: Page, variable: impl Fn(&str) -> Option<Vec<u8>>) -> Facts {
    let name = Process(pid).argv0().map(CString::into_bytes);
    let marker = variable("ATRACE_MARKER");
    let has_marker = marker.as_deref().is_some_and(|marker| as_path(marker).exists());
    let state = published(&page);
    let properties = variable("ATRACE_PROPERTIES");
    let named = state.as_ref().and_then(|state| Some(state.get("properties")?.as_bytes().to_vec()));
    let place = named.or_else(|| properties.clone()).map(|place| as_path(&place).to_owned());
    Facts {
        name,
        backend: variable("ATRACE_BACKEND"),
        marker,
        properties,
        has_marker,
        descriptor: state.map_or(Descriptor::default(), |state| descriptor(pid, &state)),
        page,
        has_watch: has_watch(pid),
        store: store(pid, &place.unwrap_or_else(|| Properties::path_for_uid(uid))),
    }
}

fn as_path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

/// Finds and reads the state that a process publishes.
pub(super) fn page(pid: u32, numbers: &str) -> Page {
    let process = Process(pid);
    let descriptors = match process.descriptors() {
        Ok(descriptors) => descriptors,
        Err(e) => return Page::Unseen(e.raw_os_error().unwrap_or(0).max(1)),
    };
    let link = format!("/memfd:{NAME} ");
    let files = descriptors.filter(|(_, to)| to.as_os_str().as_bytes().starts_with(link.as_bytes()));
    let texts: Vec<_> = files
        .take(STATES)
        .filter_map(|(fd, _)| probe::read_state(&process.path(&format!("fd/{fd}"))))
        .collect();
    // In a nested PID namespace a process has several ids.
    let is_own = |text: &Vec<u8>| {
        let state = Published::parse(text);
        state.get("pid").is_some_and(|pid| numbers.split_whitespace().any(|number| number == pid))
    };
    if let Some(text) = texts.iter().find(|text| is_own(text)) {
        return Page::Text { text: text.clone(), is_parents: false };
    }
    match texts.into_iter().next() {
        Some(text) => Page::Text { text, is_parents: true },
        None => Page::Nothing,
    }
}

/// Parses the page, if there is one.
pub(super) fn published(page: &Page) -> Option<Published> {
    match page {
        Page::Text { text, .. } => Some(Published::parse(text)),
        _ => None,
    }
}

/// Examines the marker's descriptor with the help of `/proc`.
fn descriptor(pid: u32, state: &Published) -> Descriptor {
    let Some((fd, identity)) = state.marker() else { return Descriptor::default() };
    let own = Process(pid).path(&format!("fd/{fd}"));
    let is_it = |path: &Path| fs::metadata(path).is_ok_and(|data| (data.dev(), data.ino()) == identity);
    let place = state.get("place").unwrap_or_default();
    let place = match place.strip_prefix("fd:").map(str::parse::<u32>) {
        Some(Ok(number)) => Process(pid).path(&format!("fd/{number}")),
        _ => PathBuf::from(place),
    };
    Descriptor {
        link: fs::read_link(&own).ok().map(|link| link.into_os_string().into_vec()),
        is_it: is_it(&own),
        is_place: is_it(&place),
        has_place: place.exists(),
    }
}

fn has_watch(pid: u32) -> bool {
    let process = Process(pid);
    let threads = fs::read_dir(process.path("task")).into_iter().flatten().flatten().take(THREADS);
    threads
        .filter_map(|thread| process.read(&format!("task/{}/comm", thread.file_name().to_str()?)))
        .any(|name| name.trim_ascii_end() == b"atrace-watch")
}

/// Reads the property store that the process uses. Creates no store.
fn store(pid: u32, place: &Path) -> StoreFacts {
    let mut store = StoreFacts { path: Some(place.as_os_str().as_bytes().to_vec()), ..StoreFacts::default() };
    if cfg!(target_os = "linux") {
        let deleted = [b" ", place.as_os_str().as_bytes(), b" (deleted)"].concat();
        let maps = Process(pid).read("maps").unwrap_or_default();
        store.is_stale = maps.split(|&byte| byte == b'\n').any(|line| line.ends_with(&deleted));
        if fs::symlink_metadata(place).is_err() {
            let is_hidden =
                |parent: &Path| fs::read_dir(parent).is_err_and(|e| e.kind() == ErrorKind::PermissionDenied);
            let is_hidden = place.parent().is_some_and(is_hidden);
            store.presence = if is_hidden { Presence::Hidden } else { Presence::Absent };
            return store;
        }
    }
    store.presence = Presence::There;
    let opened = if cfg!(target_os = "android") { Control::open() } else { Control::open_existing(place) };
    match opened {
        Ok(control) => {
            let properties = control.properties();
            let value = properties.get(FLAGS).ok().flatten();
            store.flags = value.map_or(Vec::new(), |value| value.as_bytes().to_vec());
            store.patterns = control.raw_patterns();
            store.serial = properties.find(FLAGS).map(|property| property.serial());
        }
        Err(e) => store.fault = Some(e.to_string().into_bytes()),
    }
    store
}
