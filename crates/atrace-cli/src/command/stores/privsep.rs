//! Privilege separation for the property stores of other users.
//!
//! # Why
//!
//! A store belongs to its user, who can truncate it, lock it forever, or put a link in its place. Root must not open
//! it. So a child process takes on the user's ids and does the work (`atrace_sys::errand`).
//!
//! # How it works
//!
//! The child's answer is bytes, which are parsed as untrusted [`Content`]. A failure is a line of output and does not
//! stop the rest.
//!
//! No user can keep root from the stores of the others: up to sixteen children run at once; each user has [one
//! second](PATIENCE) in one run of the command; and no child is started after [ten seconds](LONGEST).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use atrace::AtraceTag;
use atrace::control::{Control, Error, Switched};
use atrace_sys::errand::{Errand, PATIENCE, User, answers};
use atrace_sys::properties::{self, ErrorKind};

use crate::command::stores::content::Content;

/// How many children run at once.
const TOGETHER: usize = 16;

/// No further child is started after this time: a person can own thousands of user ids.
const LONGEST: Duration = Duration::from_secs(10);

const NO_ANSWER: &str = "no answer";

/// The operation on a store.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    Look,
    /// Adds each pattern, unless the store lists it more often than the number says.
    Enable(Vec<(String, usize)>),
    /// Removes all entries of the pattern.
    Disable(String),
    /// Removes one entry of each pattern, if the store lists it more often than the number says.
    TakeBack(Vec<(String, usize)>),
    /// Switches all tags and all programs on or off.
    All(bool),
}

impl Work {
    /// Tells whether the operation creates the store if it does not exist.
    fn makes(&self) -> bool {
        matches!(self, Self::Enable(_) | Self::All(true))
    }
}

/// Identifies a store.
#[derive(Clone, Debug)]
pub(crate) enum Location {
    OfUser(u32),
    At(PathBuf),
    /// The store that this process uses itself. On Android all processes share it.
    Own,
}

impl Location {
    /// Opens the store. Creates it only for an operation that switches something on.
    fn open(&self, work: &Work) -> Result<Control, Error> {
        let path = |path: &Path| {
            if work.makes() { Control::open_path(path) } else { Control::open_existing(path) }
        };
        match self {
            Self::OfUser(uid) if work.makes() => Control::open_user(*uid),
            Self::OfUser(uid) => path(&properties::Properties::path_for_uid(*uid)),
            Self::At(at) => path(at),
            Self::Own => Control::open(),
        }
    }

    /// Does the work in this process, and returns the store's content after it.
    pub(crate) fn perform(&self, work: &Work) -> Result<Content, Error> {
        self.perform_within(work, properties::PATIENCE)
    }

    /// The same. Waits at most `patience` for other processes that hold the store's lock.
    fn perform_within(&self, work: &Work, patience: Duration) -> Result<Content, Error> {
        match self.open(work) {
            Ok(control) => perform(&control.patience(patience), work),
            Err(e) if is_missing(&e) => Ok(Content::default()),
            Err(e) => Err(e),
        }
    }
}

fn is_missing(e: &Error) -> bool {
    let source = std::error::Error::source(e).and_then(|e| e.downcast_ref::<properties::Error>());
    source.is_some_and(|e| e.kind() == ErrorKind::Missing)
}

fn perform(control: &Control, work: &Work) -> Result<Content, Error> {
    match work {
        Work::Look => {}
        Work::Enable(patterns) => {
            let enable = |(pattern, beside): &(String, usize)| control.enable_once(pattern, *beside);
            // All patterns or none: if one fails, dropping the others' `Switched` undoes them.
            let done = patterns.iter().map(enable).collect::<Result<Vec<_>, _>>()?;
            done.into_iter().for_each(Switched::keep);
        }
        Work::All(true) => {
            control.enable_tags(AtraceTag::all())?.keep();
            control.enable("*")?.keep();
        }
        Work::All(false) => {
            control.disable("*")?.keep();
            control.disable_tags(AtraceTag::all())?.keep();
        }
        Work::Disable(pattern) => control.disable(pattern)?.keep(),
        Work::TakeBack(patterns) => {
            for (pattern, at_least) in patterns {
                let listed = control.patterns().iter().filter(|other| *other == pattern).count();
                if listed > *at_least {
                    control.disable_once(pattern)?.keep();
                }
            }
        }
    }
    Ok(Content { patterns: control.patterns(), tags: control.tags() & AtraceTag::ValidMask })
}

/// A piece of work: the user to do it as (`None`: in this process), the store, and the operation.
pub(crate) type Piece = (Option<User>, Location, Work);

/// Does the work on the store at a path, as `user` or in this process.
pub(crate) fn perform_one(user: Option<User>, path: &Path, work: Work) -> Result<(), String> {
    let result = perform_all(&[(user, Location::At(path.to_owned()), work)]).pop();
    result.map_or_else(|| Err(NO_ANSWER.to_owned()), |result| result.map(drop))
}

/// The time that each user has used up in this run of the command.
static SPENT: Mutex<BTreeMap<u32, Duration>> = Mutex::new(BTreeMap::new());

/// Returns how much of a user's second is left.
pub(crate) fn left(uid: u32) -> Duration {
    let spent = SPENT.lock().unwrap_or_else(PoisonError::into_inner);
    PATIENCE.saturating_sub(spent.get(&uid).copied().unwrap_or_default())
}

/// Does all pieces of work, and returns the results in the same order.
pub(crate) fn perform_all(pieces: &[Piece]) -> Vec<Result<Content, String>> {
    let mut spent = SPENT.lock().unwrap_or_else(PoisonError::into_inner);
    let start = Instant::now();
    let mut results = Vec::new();
    for pieces in pieces.chunks(TOGETHER) {
        let is_late = start.elapsed() > LONGEST;
        let begin = |(user, location, work): &Piece| {
            let Some(user) = user else { return Ok(None) };
            // A small rest of the time is reserved for switching off what was switched on.
            let least = if matches!(work, Work::TakeBack(_)) { PATIENCE / 10 } else { Duration::ZERO };
            let left = PATIENCE.saturating_sub(spent.get(&user.uid).copied().unwrap_or_default()).max(least);
            if is_late || left.is_zero() {
                let (late, again) =
                    ("as other users took too long to answer", "again, as its answers took too long");
                return Err(format!("not asked {}", if is_late { late } else { again }));
            }
            // Half of the time, so that the child can still report which process holds the lock.
            let work = || match location.perform_within(work, left / 2) {
                Ok(content) => content.bytes(),
                Err(e) => Content::fault(&e.to_string()),
            };
            Errand::start(*user, left, work).map(Some).map_err(|e| e.to_string())
        };
        let mut errands = Vec::new();
        let begun: Vec<_> =
            pieces.iter().map(begin).map(|begun| begun.map(|errand| errands.extend(errand))).collect();
        let mut answers = answers(errands).into_iter();
        for (begun, (user, location, work)) in begun.into_iter().zip(pieces) {
            results.push(begun.and_then(|()| {
                let Some(user) = user else { return location.perform(work).map_err(|e| e.to_string()) };
                let (answer, time) = answers.next().ok_or(NO_ANSWER)?;
                *spent.entry(user.uid).or_default() += time;
                Content::parse(&answer.map_err(|e| e.to_string())?)
            }));
        }
    }
    results
}
