//! Work on the property stores of other users, which root must not trust: a child does it as the store's user.
//!
//! The answer is bytes, and a failure is a line of output. No user can keep root from the others: the children run at
//! once; each user has [a second](PATIENCE) in one run of the command, and all together have [ten](LONGEST).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use atrace::AtraceTag;
use atrace::control::{Control, Error, Switched};
use atrace_sys::errand::{Errand, PATIENCE, User, answers};
use atrace_sys::properties::{self, ErrorKind};

use crate::command::stores::content::Content;

/// How many errands are under way at once.
const TOGETHER: usize = 16;

/// After this no further one is begun: a user can have thousands of numbers.
const LONGEST: Duration = Duration::from_secs(10);

const NO_ANSWER: &str = "no answer";

/// What is to be done with a store.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    Look,
    /// Adds each pattern that is not listed more often than that.
    Enable(Vec<(String, usize)>),
    /// Takes the pattern away, as often as it is listed.
    Disable(String),
    /// Takes each pattern away once, provided that it is listed more often than that.
    TakeBack(Vec<(String, usize)>),
    /// Switches everything on, or off.
    All(bool),
}

impl Work {
    /// A store that is not there is made for this.
    fn makes(&self) -> bool {
        matches!(self, Self::Enable(_) | Self::All(true))
    }
}

/// Which store it is.
#[derive(Clone, Debug)]
pub(crate) enum Location {
    OfUser(u32),
    At(PathBuf),
    /// That of this process, which is everybody's on Android.
    Own,
}

impl Location {
    /// Makes it only where something is to be switched on.
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

    /// Does the work in this process, and returns what the store holds then.
    pub(crate) fn perform(&self, work: &Work) -> Result<Content, Error> {
        self.perform_within(work, properties::PATIENCE)
    }

    /// Waits at most this long for others who switch.
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
            // All or none: what was done is taken back when one fails.
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

/// What is done, where, and as which user if not in this process.
pub(crate) type Piece = (Option<User>, Location, Work);

/// Does the work at a path as that user, or in this process.
pub(crate) fn perform_one(user: Option<User>, path: &Path, work: Work) -> Result<(), String> {
    let result = perform_all(&[(user, Location::At(path.to_owned()), work)]).pop();
    result.map_or_else(|| Err(NO_ANSWER.to_owned()), |result| result.map(drop))
}

/// How much time each user has used up in this run of the command.
static SPENT: Mutex<BTreeMap<u32, Duration>> = Mutex::new(BTreeMap::new());

/// How much of a user's second is left.
pub(crate) fn left(uid: u32) -> Duration {
    let spent = SPENT.lock().unwrap_or_else(PoisonError::into_inner);
    PATIENCE.saturating_sub(spent.get(&uid).copied().unwrap_or_default())
}

/// Does each piece of work, and returns the results in their order.
pub(crate) fn perform_all(pieces: &[Piece]) -> Vec<Result<Content, String>> {
    let mut spent = SPENT.lock().unwrap_or_else(PoisonError::into_inner);
    let start = Instant::now();
    let mut results = Vec::new();
    for pieces in pieces.chunks(TOGETHER) {
        let is_late = start.elapsed() > LONGEST;
        let begin = |(user, location, work): &Piece| {
            let Some(user) = user else { return Ok(None) };
            // A little remains for taking back what was switched on.
            let least = if matches!(work, Work::TakeBack(_)) { PATIENCE / 10 } else { Duration::ZERO };
            let left = PATIENCE.saturating_sub(spent.get(&user.uid).copied().unwrap_or_default()).max(least);
            if is_late || left.is_zero() {
                let (late, again) =
                    ("as other users took too long to answer", "again, as its answers took too long");
                return Err(format!("not asked {}", if is_late { late } else { again }));
            }
            // So that it can say who holds the lock.
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
