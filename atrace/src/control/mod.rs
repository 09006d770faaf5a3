//! Switching tracing on and off through the properties, as the `atrace` command does on Android.
//!
//! A switch reaches every process that reads the same properties: on Android all of them, on a host those of
//! the same user. What was written is listed in the returned [`Switched`], which takes it back when dropped.
//!
//! ```no_run
//! use atrace::control::Control;
//!
//! let switched = Control::open()?.enable_this_process()?;
//! println!("{switched}"); // the properties, before and after
//! // … events of AtraceTag::App are written …
//! drop(switched); // as it was before
//! # Ok::<(), atrace::control::Error>(())
//! ```
//!
//! # Who switches at the same time
//!
//! On a host, a switch is one step under the lock of the store ([`Properties::transaction`]): of those who switch at
//! once, in any process or thread, each waits for the others, and nothing is lost. Who is killed in the middle leaves
//! a list of patterns that is whole, and perhaps not announced yet: processes hear of it with the next switch.
//! [`Control::patience`] says how long to wait.
//!
//! Android has no lock for that. There the threads of a process take turns; with other processes, what was written
//! is looked at again, twice in 10 ms, and written again where it is gone, up to eight times. What remains: who
//! is held up for longer than that between reading and writing may undo what another switched meanwhile.
//!
//! Setting `debug.atrace.*` needs the rights of the shell or of root there.

use std::ffi::CString;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use atrace_sys::fork::{Generation, generation};
use atrace_sys::process::{self, ErrnoGuard};
use atrace_sys::properties::{self, PATIENCE, Properties, Transaction, VALUE_MAX, Value};

use crate::AtraceTag;
use crate::flags::{self, APP_NUMBER, APPS_MAX, AppKey, FLAGS};

/// Why a switch failed.
#[derive(Debug)]
pub struct Error {
    context: String,
    source: Option<atrace_sys::properties::Error>,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.context)?;
        match &self.source {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}

fn failed(context: impl Into<String>) -> impl FnOnce(atrace_sys::properties::Error) -> Error {
    |source| Error { context: context.into(), source: Some(source) }
}

/// How often a switch is written where others can come between, and how far apart it is looked at twice.
const ATTEMPTS: usize = 8;
const PAUSE: Duration = Duration::from_millis(10);

/// The properties to switch.
#[derive(Clone, Debug)]
pub struct Control {
    store: Store,
    patience: Duration,
}

#[derive(Clone, Debug)]
enum Store {
    /// The one that this process follows.
    Own(&'static Properties),
    /// Another, which goes with the last who uses it.
    Other(Arc<Properties>),
}

impl Control {
    /// Switches with the properties that this process itself follows.
    ///
    /// # Errors
    ///
    /// When they can't be opened.
    pub fn open() -> Result<Self, Error> {
        let _errno = ErrnoGuard::new();
        let own = Properties::open().map_err(failed("opening the properties"))?;
        Ok(Self { store: Store::Own(own), patience: PATIENCE })
    }

    /// Switches with the properties of another user of this host. On Android all users have the same.
    ///
    /// # Errors
    ///
    /// When they can't be opened: only root may open those of others.
    pub fn open_user(uid: u32) -> Result<Self, Error> {
        let _errno = ErrnoGuard::new();
        Self::other(Properties::open_uid(uid), || format!("opening the properties of user {uid}"))
    }

    /// Switches with the property store at `path`, on a host. It is closed when this, what is cloned of it and
    /// what it switched are dropped.
    ///
    /// # Errors
    ///
    /// When it can't be opened.
    pub fn open_path(path: &Path) -> Result<Self, Error> {
        let _errno = ErrnoGuard::new();
        Self::other(Properties::open_path(path), || format!("opening the properties at {}", path.display()))
    }

    /// Switches with the property store at `path`, on a host, if it is there: creates nothing.
    ///
    /// # Errors
    ///
    /// When it can't be opened.
    pub fn open_existing(path: &Path) -> Result<Self, Error> {
        let _errno = ErrnoGuard::new();
        Self::other(Properties::open_existing(path), || {
            format!("opening the properties at {}", path.display())
        })
    }

    fn other(
        opened: Result<Properties, properties::Error>,
        context: impl FnOnce() -> String,
    ) -> Result<Self, Error> {
        let store = opened.map_err(|source| Error { context: context(), source: Some(source) })?;
        Ok(Self { store: Store::Other(Arc::new(store)), patience: PATIENCE })
    }

    /// Waits at most this long for others who are switching, in place of two seconds: also to take a switch back.
    pub fn patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    fn properties(&self) -> &Properties {
        match &self.store {
            Store::Own(own) => own,
            Store::Other(other) => other,
        }
    }

    /// Returns the app patterns in force.
    pub fn patterns(&self) -> Vec<String> {
        self.raw_patterns().iter().map(|pattern| String::from_utf8_lossy(pattern).into_owned()).collect()
    }

    /// Returns the tags that `debug.atrace.tags.enableflags` enables for every process, and none while it is
    /// no number.
    pub fn tags(&self) -> AtraceTag {
        tags(self.properties())
    }

    /// Enables [`AtraceTag::App`] in this process, by a pattern that matches its name (argv\[0\]).
    ///
    /// A name that is too long for a property (91 bytes) is given by its end, as `*/name`, which other
    /// programs may match too: the returned [`Switched`] shows it.
    ///
    /// # Errors
    ///
    /// When a property can't be set, or the process has no name.
    pub fn enable_this_process(&self) -> Result<Switched, Error> {
        self.enable_pattern(this_process()?)
    }

    /// Enables [`AtraceTag::App`] in the processes whose argv\[0\] matches the shell pattern `pattern`.
    ///
    /// `*` matches any text, `/` included; `?` and `[…]` are special too, a backslash is not.
    ///
    /// # Errors
    ///
    /// When the pattern is empty, longer than 91 bytes or contains a NUL, or a property can't be set.
    pub fn enable(&self, pattern: &str) -> Result<Switched, Error> {
        self.enable_pattern(pattern.as_bytes().to_vec())
    }

    fn enable_pattern(&self, pattern: Vec<u8>) -> Result<Switched, Error> {
        if pattern.is_empty() {
            return Err(Error { context: "an empty pattern matches no process".to_owned(), source: None });
        }
        self.switch(|switched, store| {
            switched.add_pattern(store, &pattern)?;
            switched.undo.push(Undo::RemovePattern(pattern));
            switched.announce(store, None)
        })
    }

    /// Disables [`AtraceTag::App`] in this process: takes away every pattern that matches its name.
    ///
    /// Such a pattern may have enabled other processes too.
    ///
    /// # Errors
    ///
    /// When a property can't be set.
    pub fn disable_this_process(&self) -> Result<Switched, Error> {
        process::reread_argv0();
        self.disable_where(|pattern| {
            CString::new(pattern).is_ok_and(|pattern| {
                process::with_argv0(|name| name.is_some_and(|name| process::matches(&pattern, name)))
            })
        })
    }

    /// Takes the app pattern `pattern` away, every time it is listed.
    ///
    /// # Errors
    ///
    /// When a property can't be set.
    pub fn disable(&self, pattern: &str) -> Result<Switched, Error> {
        self.disable_where(|other| other == pattern.as_bytes())
    }

    /// Takes the app pattern `pattern` away once, where it is listed last: what [`enable`](Self::enable) did, from another
    /// process.
    ///
    /// # Errors
    ///
    /// When a property can't be set.
    pub fn disable_once(&self, pattern: &str) -> Result<Switched, Error> {
        self.switch(|switched, store| {
            let Some(last) = slots(store).iter().rposition(|slot| slot == pattern.as_bytes()) else {
                return Ok(());
            };
            switched.empty_slot(store, last)?;
            switched.undo.push(Undo::AddPattern(pattern.as_bytes().to_vec()));
            switched.shorten(store)?;
            switched.announce(store, None)
        })
    }

    fn disable_where(&self, gone: impl Fn(&[u8]) -> bool) -> Result<Switched, Error> {
        self.switch(|switched, store| {
            let listed = slots(store).into_iter().enumerate();
            let away: Vec<_> = listed.filter(|(_, slot)| !slot.is_empty() && gone(slot)).collect();
            if away.is_empty() {
                return Ok(());
            }
            for (index, pattern) in away {
                switched.empty_slot(store, index)?;
                switched.undo.push(Undo::AddPattern(pattern));
            }
            switched.shorten(store)?;
            switched.announce(store, None)
        })
    }

    /// Enables these tags in every process, in addition to those enabled now. ([`AtraceTag::App`] has no
    /// effect here.)
    ///
    /// A mask can't tell that two want the same tag: who enabled it first takes it away again.
    ///
    /// # Errors
    ///
    /// When a property can't be set.
    pub fn enable_tags(&self, tags: AtraceTag) -> Result<Switched, Error> {
        self.change_tags(tags, AtraceTag::empty())
    }

    /// Disables these tags in every process.
    ///
    /// # Errors
    ///
    /// When a property can't be set.
    pub fn disable_tags(&self, tags: AtraceTag) -> Result<Switched, Error> {
        self.change_tags(AtraceTag::empty(), tags)
    }

    fn change_tags(&self, on: AtraceTag, off: AtraceTag) -> Result<Switched, Error> {
        self.switch(|switched, store| {
            let present = tags(store);
            let on = (on & AtraceTag::ValidMask) - present;
            let off = off & present;
            switched.undo.push(Undo::Tags { on: off, off: on });
            switched.announce(store, Some((on, off)))
        })
    }

    /// Switches as one step; puts back what was done where the rest fails.
    fn switch(
        &self,
        how: impl FnOnce(&mut Switched, &mut dyn Access) -> Result<(), Error>,
    ) -> Result<Switched, Error> {
        let _errno = ErrnoGuard::new();
        let mut store = self.transaction()?;
        let mut switched = Switched::new(self.clone());
        match how(&mut switched, &mut store) {
            Ok(()) => Ok(switched),
            Err(reason) => {
                // What could not be announced once will not be now; the patterns are as they were.
                let _ = switched.put_back(&mut store);
                Err(reason)
            }
        }
    }

    fn transaction(&self) -> Result<Transaction<'_>, Error> {
        self.properties().transaction(self.patience).map_err(failed("switching"))
    }

    /// The value of a property; empty where it is not set.
    #[cfg(feature = "tracefs")]
    pub(crate) fn text(&self, key: &str) -> Vec<u8> {
        text(self.properties(), key)
    }

    /// The serial of the flags, which changes at each switch; None where they are not set.
    #[cfg(feature = "tracefs")]
    pub(crate) fn serial(&self) -> Option<u32> {
        Some(self.properties().find(FLAGS)?.serial())
    }

    /// The patterns, byte for byte.
    pub(crate) fn raw_patterns(&self) -> Vec<Vec<u8>> {
        slots(self.properties()).into_iter().filter(|slot| !slot.is_empty()).collect()
    }
}

/// Properties, to be read.
trait Read {
    fn value(&self, key: &str) -> Option<Value>;
}

/// Properties, to be read and set as one step.
trait Access: Read {
    fn write(&mut self, key: &str, value: &[u8]) -> Result<(), properties::Error>;
    /// Nobody else can come between.
    fn is_alone(&self) -> bool;
}

impl Read for Properties {
    fn value(&self, key: &str) -> Option<Value> {
        self.get(key).ok().flatten()
    }
}

impl Read for Transaction<'_> {
    fn value(&self, key: &str) -> Option<Value> {
        self.get(key).ok().flatten()
    }
}

impl Access for Transaction<'_> {
    fn write(&mut self, key: &str, value: &[u8]) -> Result<(), properties::Error> {
        self.set(key, value)
    }

    fn is_alone(&self) -> bool {
        Transaction::is_alone(self)
    }
}

/// The value of a property; empty where it is not set.
fn text(store: &(impl Read + ?Sized), key: &str) -> Vec<u8> {
    store.value(key).map_or(Vec::new(), |value| value.as_bytes().to_vec())
}

fn tags(store: &(impl Read + ?Sized)) -> AtraceTag {
    let flags = flags::parse_flags(&text(store, FLAGS));
    AtraceTag::from_bits_retain(flags.unwrap_or(0)) & AtraceTag::ValidMask
}

/// The list of patterns. One that was taken away left its slot empty, so that the list is whole at each moment: one
/// that moves would be listed twice, or not at all, when who moves it is killed.
fn slots(store: &(impl Read + ?Sized)) -> Vec<Vec<u8>> {
    let number = flags::app_number(|key| store.value(key)).min(APPS_MAX);
    (0..number).map(|index| text(store, AppKey::new(index).as_str())).collect()
}

fn slot_key(index: usize) -> AppKey {
    AppKey::new(i32::try_from(index).unwrap_or(APPS_MAX))
}

/// Tells whether what was written is still so, and stays so.
fn stays(store: &dyn Access, so: impl Fn(&dyn Access) -> bool) -> bool {
    store.is_alone()
        || so(store) && {
            std::thread::sleep(PAUSE);
            so(store)
        }
}

fn disturbed() -> Error {
    Error { context: "other processes undo the switch each time".to_owned(), source: None }
}

/// One property that was set.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Change {
    /// The property.
    pub key: String,
    /// Its value before; empty where it was not set.
    pub before: String,
    /// Its value now.
    pub after: String,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?} -> {:?}", self.key, self.before, self.after)
    }
}

#[derive(Debug)]
enum Undo {
    RemovePattern(Vec<u8>),
    AddPattern(Vec<u8>),
    Tags { on: AtraceTag, off: AtraceTag },
}

/// What a switch wrote; takes it back when dropped.
///
/// Only what this switch did is undone: patterns and tags that others switched since stay. `Display` lists the
/// properties, a line each.
///
/// In a forked child it takes nothing back, the switch being its parent's.
#[derive(Debug)]
#[must_use = "the switch is taken back when this is dropped"]
pub struct Switched {
    control: Control,
    by: Generation,
    changes: Vec<Change>,
    undo: Vec<Undo>,
    /// What the flags were set to, and their text before.
    flags: Option<(Vec<u8>, Vec<u8>)>,
}

impl fmt::Display for Switched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, change) in self.changes.iter().enumerate() {
            write!(f, "{}{change}", if index > 0 { "\n" } else { "" })?;
        }
        Ok(())
    }
}

impl Switched {
    fn new(control: Control) -> Self {
        Self { control, by: generation(), changes: Vec::new(), undo: Vec::new(), flags: None }
    }

    /// The properties that were set, in order.
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// Leaves everything as it was switched.
    pub fn keep(mut self) {
        self.undo.clear();
    }

    /// Takes the switch back now.
    ///
    /// # Errors
    ///
    /// When a property can't be set; a drop would say so on stderr.
    pub fn restore(mut self) -> Result<(), Error> {
        let restored = self.take_back();
        self.undo.clear(); // It was tried.
        restored
    }

    fn take_back(&mut self) -> Result<(), Error> {
        if self.undo.is_empty() || self.by != generation() {
            return Ok(());
        }
        let _errno = ErrnoGuard::new();
        let control = self.control.clone();
        self.put_back(&mut control.transaction()?)
    }

    fn put_back(&mut self, store: &mut dyn Access) -> Result<(), Error> {
        if self.undo.is_empty() {
            return Ok(());
        }
        let mut tags = None;
        for step in std::mem::take(&mut self.undo).into_iter().rev() {
            match step {
                Undo::RemovePattern(pattern) => {
                    if let Some(last) = slots(store).iter().rposition(|slot| *slot == pattern) {
                        self.empty_slot(store, last)?;
                        self.shorten(store)?;
                    }
                }
                Undo::AddPattern(pattern) => self.add_pattern(store, &pattern)?,
                Undo::Tags { on, off } => tags = Some((on, off)),
            }
        }
        self.announce(store, tags)
    }

    fn add_pattern(&mut self, store: &mut dyn Access, pattern: &[u8]) -> Result<(), Error> {
        let mut taken = None;
        for _ in 0..ATTEMPTS {
            let slots = slots(store);
            if slots.len() == APPS_MAX as usize && !slots.iter().any(Vec::is_empty) {
                let context = format!("there are {APPS_MAX} app patterns already");
                return Err(Error { context, source: None });
            }
            let index = match taken {
                // It is still there, but others made the list shorter.
                Some(index) if text(store, slot_key(index).as_str()) == pattern => index,
                _ => {
                    let free = slots.iter().position(Vec::is_empty).unwrap_or(slots.len());
                    self.set(store, slot_key(free).as_str(), pattern)?;
                    free
                }
            };
            taken = Some(index);
            if slots.len() <= index {
                self.set(store, APP_NUMBER, (index + 1).to_string().as_bytes())?;
            }
            if stays(store, |store| self::slots(store).get(index).is_some_and(|slot| slot == pattern)) {
                return Ok(());
            }
        }
        Err(disturbed())
    }

    fn empty_slot(&mut self, store: &mut dyn Access, index: usize) -> Result<(), Error> {
        self.set(store, slot_key(index).as_str(), b"")
    }

    /// Ends the list after the last pattern.
    fn shorten(&mut self, store: &mut dyn Access) -> Result<(), Error> {
        let slots = slots(store);
        let number = slots.iter().rposition(|slot| !slot.is_empty()).map_or(0, |last| last + 1);
        if number == slots.len() {
            return Ok(());
        }
        // None is the same as zero; put back which of the two it was.
        let first = self.changes.iter().find(|change| change.key == APP_NUMBER);
        if number == 0 && first.is_some_and(|first| first.before.is_empty()) {
            return self.set(store, APP_NUMBER, b"");
        }
        self.set(store, APP_NUMBER, number.to_string().as_bytes())
    }

    /// Sets the flags, with tags on and off or to what they are: processes look at nothing before these change.
    fn announce(
        &mut self,
        store: &mut dyn Access,
        change: Option<(AtraceTag, AtraceTag)>,
    ) -> Result<(), Error> {
        for _ in 0..ATTEMPTS {
            let present = text(store, FLAGS);
            let tags = change.map(|(on, off)| (tags(store) | on) - off);
            let written = match (&self.flags, tags) {
                // Back to the very text that stood there, if it means that.
                (Some((after, before)), _)
                    if *after == present
                        && tags.is_none_or(|tags| flags::parse_flags_or_0(before) == tags.bits()) =>
                {
                    before.clone()
                }
                (_, Some(tags)) => format!("{:#x}", tags.bits()).into_bytes(),
                (_, None) if flags::parse_flags(&present).is_some() => present.clone(),
                // No number, and so nothing would be enabled.
                (_, None) => b"0".to_vec(),
            };
            self.set(store, FLAGS, &written)?;
            self.flags = Some((written, present));
            let Some((on, off)) = change else { return Ok(()) };
            if stays(store, |store| self::tags(store).contains(on) && !self::tags(store).intersects(off)) {
                return Ok(());
            }
        }
        Err(disturbed())
    }

    fn set(&mut self, store: &mut dyn Access, key: &str, value: &[u8]) -> Result<(), Error> {
        let before = store.value(key);
        store.write(key, value).map_err(failed(format!("setting {key}")))?;
        self.changes.push(Change {
            key: key.to_owned(),
            before: before.map_or(String::new(), |value| value.to_string_lossy().into_owned()),
            after: String::from_utf8_lossy(value).into_owned(),
        });
        Ok(())
    }
}

impl Drop for Switched {
    fn drop(&mut self) {
        if let Err(reason) = self.take_back() {
            process::complain(&format!("atrace: could not take a switch back: {reason}"));
        }
    }
}

/// A pattern that matches the name of this process.
fn this_process() -> Result<Vec<u8>, Error> {
    process::reread_argv0();
    process::with_argv0(|name| match name.map(|name| name.to_bytes()) {
        Some(name) if !name.is_empty() => Ok(pattern_for(name)),
        _ => Err(Error { context: "this process has no name (argv[0] is empty)".to_owned(), source: None }),
    })
}

/// A pattern of at most 91 bytes that matches `name`: it alone, or as `*` and an end of it where it is too
/// long.
pub(crate) fn pattern_for(name: &[u8]) -> Vec<u8> {
    let whole = literal(name);
    if whole.len() <= VALUE_MAX {
        return whole;
    }
    let fits = |start: &usize| literal(&name[*start..]).len() < VALUE_MAX;
    let at_slash = (0..name.len()).filter(|&at| name[at] == b'/').find(fits);
    let start = at_slash.or_else(|| (0..name.len()).find(fits)).unwrap_or(name.len());
    [b"*", literal(&name[start..]).as_slice()].concat()
}

/// `text` as a pattern that matches it alone. A backslash escapes nothing here, brackets do.
fn literal(text: &[u8]) -> Vec<u8> {
    text.iter().fold(Vec::new(), |mut pattern, &byte| {
        match byte {
            b'*' | b'?' | b'[' => pattern.extend([b'[', byte, b']']),
            _ => pattern.push(byte),
        }
        pattern
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "fnmatch is foreign code")]
    fn a_pattern_matches_the_name_it_was_made_for() {
        let long = format!("/a/{}/bench-0123456789abcdef", "deep/".repeat(40));
        let endless = "x".repeat(300);
        for name in ["/bin/true", "a*b?c[d]e\\f", "[*]", long.as_str(), endless.as_str(), "naïve/…"] {
            let pattern = pattern_for(name.as_bytes());
            assert!(pattern.len() <= VALUE_MAX, "{name}");
            let c = |text: &[u8]| CString::new(text).unwrap();
            assert!(
                process::matches(&c(&pattern), &c(name.as_bytes())),
                "{name}: {}",
                pattern.escape_ascii()
            );
        }
        assert_eq!(pattern_for(b"/bin/true"), b"/bin/true");
        // As long as a value may be, and one byte longer.
        assert_eq!(pattern_for(&[b'x'; 91]), [b'x'; 91]);
        assert_eq!(pattern_for(&[b'x'; 92]), [&b"*"[..], &[b'x'; 90]].concat());
        assert!(pattern_for(long.as_bytes()).starts_with(b"*/deep/"));
        let other = CString::new(pattern_for(b"a*b")).unwrap();
        assert!(!process::matches(&other, c"axb"));
    }

    /// A store of which another process sets properties too, right after ours: what can happen on Android.
    struct Disturbed<'a> {
        store: &'a Properties,
        /// After which key of ours is set, which one is, and to what; each once.
        others: Vec<(&'a str, &'a str, &'a str)>,
    }

    impl Read for Disturbed<'_> {
        fn value(&self, key: &str) -> Option<Value> {
            self.store.value(key)
        }
    }

    impl Access for Disturbed<'_> {
        fn write(&mut self, key: &str, value: &[u8]) -> Result<(), properties::Error> {
            self.store.set(key, value)?;
            if let Some(at) = self.others.iter().position(|other| other.0 == key) {
                let (_, key, value) = self.others.remove(at);
                self.store.set(key, value)?;
            }
            Ok(())
        }

        fn is_alone(&self) -> bool {
            false
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    #[cfg_attr(miri, ignore = "no files")]
    fn what_others_undo_is_written_again() {
        const SLOT: &str = "debug.atrace.app_0";
        let place = tempfile::tempdir().unwrap();
        type Other = (&'static str, &'static str, &'static str);
        let cases: [(&[Other], &[&str]); 5] = [
            (&[], &["own"]),
            // They took the same slot.
            (&[(SLOT, SLOT, "other")], &["other", "own"]),
            // They did not see it, and ended the list before it.
            (&[(APP_NUMBER, APP_NUMBER, "0")], &["own"]),
            // Both, after each other.
            (&[(SLOT, SLOT, "other"), (APP_NUMBER, APP_NUMBER, "1")], &["other", "own"]),
            // Someone takes it away each time.
            (&[(APP_NUMBER, APP_NUMBER, "0"); ATTEMPTS], &[]),
        ];
        for (number, (others, expected)) in cases.into_iter().enumerate() {
            let control = Control::open_path(&place.path().join(number.to_string())).unwrap();
            let mut switched = Switched::new(control.clone());
            let mut store = Disturbed { store: control.properties(), others: others.to_vec() };
            let added = switched.add_pattern(&mut store, b"own");
            assert!(store.others.is_empty());
            assert_eq!(added.is_ok(), !expected.is_empty(), "{number}");
            assert_eq!(control.patterns(), expected, "{number}");
        }
        let control = Control::open_path(&place.path().join("tags")).unwrap();
        let mut switched = Switched::new(control.clone());
        let others = vec![(FLAGS, FLAGS, "0x2"), (FLAGS, FLAGS, "0x8")];
        let mut store = Disturbed { store: control.properties(), others };
        switched.announce(&mut store, Some((AtraceTag::Camera, AtraceTag::Graphics))).unwrap();
        assert_eq!(control.tags(), AtraceTag::Camera | AtraceTag::View);
        let mut store =
            Disturbed { store: control.properties(), others: vec![(FLAGS, FLAGS, "0"); ATTEMPTS] };
        assert!(switched.announce(&mut store, Some((AtraceTag::Video, AtraceTag::empty()))).is_err());
    }
}
