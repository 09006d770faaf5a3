//! Sets the properties that switch tracing, and undoes the changes.
//!
//! # Order
//!
//! The property `debug.atrace.tags.enableflags` holds the mask of enabled tags. Processes read all properties again
//! when this property is set. So after a change of the app patterns, this property is set to the value that it already
//! has.
//!
//! The list of app patterns has slots (`debug.atrace.app_0` …) and a length (`debug.atrace.app_number`). A new
//! pattern takes the first empty slot, or a new slot at the end; the length is set after the slot. To remove a
//! pattern, its slot is emptied, and then the list is shortened to end after its last pattern. So the list is valid
//! after each step, even if the process is killed.
//!
//! # Taking back
//!
//! Each step of a change is recorded as an [`Undo`]. The steps are undone in reverse order. Other processes may have
//! changed the properties meanwhile. So a pattern that must be removed is searched for again, and only the tags that
//! this change has switched are switched back. If the resulting mask equals the mask before the change, the property
//! gets its old text again.
//!
//! # Without a lock
//!
//! On Android another process may set the properties at the same time. So after a pattern was added or the mask was
//! changed, the process checks twice, [`PAUSE`] apart, whether the change still holds. If not, it repeats the change.
//! It makes at most [`ATTEMPTS`] attempts.

use std::fmt;
use std::time::Duration;

use atrace_sys::fork::{Generation, generation};
use atrace_sys::process::{self, ErrnoGuard};
use atrace_sys::properties::FLAGS;

use super::access::{Access, Shared};
use super::error::{Error, failed};
use crate::AtraceTag;
use crate::flags::{self, APP_NUMBER, APPS_MAX, AppKey};

/// The maximum number of times that a property is set if other processes undo the change.
const ATTEMPTS: usize = 8;
/// The time between the two checks whether a property still has its value.
const PAUSE: Duration = Duration::from_millis(10);

/// Returns whether the condition `so` holds now and still holds after [`PAUSE`]. If no other process can set properties
/// meanwhile, returns true without a check.
fn stays(store: &dyn Access, so: impl Fn(&dyn Access) -> bool) -> bool {
    store.is_alone()
        || so(store) && {
            std::thread::sleep(PAUSE);
            so(store)
        }
}

fn disturbed() -> Error {
    Error::new("other processes undo the switch each time")
}

fn slot_key(index: usize) -> AppKey {
    AppKey::new(i32::try_from(index).unwrap_or(APPS_MAX))
}

/// A property that was set: its key, and its values before and after.
#[derive(Clone, Debug)]
struct Change {
    key: String,
    /// The value before the switch, empty if the property was not set.
    before: String,
    after: String,
}

/// A step that undoes a part of a change.
#[derive(Debug)]
pub(super) enum Undo {
    RemovePattern(Vec<u8>),
    AddPattern(Vec<u8>),
    Tags { on: AtraceTag, off: AtraceTag },
}

/// The changes of the properties that a function of [`Control`](super::Control) made. Dropping the `Switched` undoes
/// the changes.
///
/// Only these changes are undone. Patterns and tags that other processes have changed since then stay. `Display` lists
/// the properties that were set, in order, one per line: `key: "before" -> "after"`. `before` is empty if the property
/// was not set.
///
/// If a forked child drops its copy of a `Switched`, nothing is undone, because the changes belong to the parent.
#[derive(Debug)]
#[must_use = "the switch is taken back when this is dropped"]
pub struct Switched {
    properties: Shared,
    by: Generation,
    changes: Vec<Change>,
    pub(super) undo: Vec<Undo>,
    /// The text to which the property of the mask of enabled tags was last set, and the property's text before that.
    flags: Option<(Vec<u8>, Vec<u8>)>,
}

impl fmt::Display for Switched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, change) in self.changes.iter().enumerate() {
            let Change { key, before, after } = change;
            write!(f, "{}{key}: {before:?} -> {after:?}", if index > 0 { "\n" } else { "" })?;
        }
        Ok(())
    }
}

impl Switched {
    pub(super) fn new(properties: Shared) -> Self {
        Self { properties, by: generation(), changes: Vec::new(), undo: Vec::new(), flags: None }
    }

    /// Makes the changes permanent: dropping the `Switched` no longer undoes them.
    pub fn keep(mut self) {
        self.undo.clear();
    }

    /// Undoes the changes now.
    ///
    /// # Errors
    ///
    /// Returns an error if a property can't be set. (If the `Switched` is dropped instead, such an error is printed on
    /// stderr.)
    pub fn restore(mut self) -> Result<(), Error> {
        let restored = self.take_back();
        self.undo.clear(); // The drop must not try again.
        restored
    }

    fn take_back(&mut self) -> Result<(), Error> {
        if self.undo.is_empty() || self.by != generation() {
            return Ok(());
        }
        let _errno = ErrnoGuard::new();
        let properties = self.properties.clone();
        self.put_back(&mut properties.transaction()?)
    }

    pub(super) fn put_back(&mut self, store: &mut dyn Access) -> Result<(), Error> {
        if self.undo.is_empty() {
            return Ok(());
        }
        let mut tags = None;
        for step in std::mem::take(&mut self.undo).into_iter().rev() {
            match step {
                Undo::RemovePattern(pattern) => {
                    if let Some(last) = store.slots().iter().rposition(|slot| *slot == pattern) {
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

    /// Adds the pattern to the list. If that fails, the pattern is in no slot.
    pub(super) fn add_pattern(&mut self, store: &mut dyn Access, pattern: &[u8]) -> Result<(), Error> {
        let mut taken = None;
        let added = self.take_slot(store, pattern, &mut taken);
        if let (Err(_), Some(index)) = (&added, taken)
            && store.text(slot_key(index).as_str()) == pattern
        {
            // The caller gets the error of the attempt to add the pattern, even if this removal fails, too.
            let _ = self.empty_slot(store, index).and_then(|()| self.shorten(store));
        }
        added
    }

    /// Sets a free slot to the pattern, and sets `taken` to the slot's number.
    fn take_slot(
        &mut self,
        store: &mut dyn Access,
        pattern: &[u8],
        taken: &mut Option<usize>,
    ) -> Result<(), Error> {
        for _ in 0..ATTEMPTS {
            let slots = store.slots();
            if slots.len() == APPS_MAX as usize && !slots.iter().any(Vec::is_empty) {
                return Err(Error::new(format!("there are {APPS_MAX} app patterns already")));
            }
            let index = match *taken {
                // The pattern is still in its slot, but another process has made the list shorter.
                Some(index) if store.text(slot_key(index).as_str()) == pattern => index,
                _ => {
                    let free = slots.iter().position(Vec::is_empty).unwrap_or(slots.len());
                    self.set(store, slot_key(free).as_str(), pattern)?;
                    free
                }
            };
            *taken = Some(index);
            if slots.len() <= index {
                self.set(store, APP_NUMBER, (index + 1).to_string().as_bytes())?;
            }
            if stays(store, |store| store.slots().get(index).is_some_and(|slot| slot == pattern)) {
                return Ok(());
            }
        }
        Err(disturbed())
    }

    pub(super) fn empty_slot(&mut self, store: &mut dyn Access, index: usize) -> Result<(), Error> {
        self.set(store, slot_key(index).as_str(), b"")
    }

    /// Shortens the list of app patterns so that it ends after its last pattern.
    pub(super) fn shorten(&mut self, store: &mut dyn Access) -> Result<(), Error> {
        let slots = store.slots();
        let number = slots.iter().rposition(|slot| !slot.is_empty()).map_or(0, |last| last + 1);
        if number == slots.len() {
            return Ok(());
        }
        // A property `APP_NUMBER` that is not set means zero. If it was not set before this switch, it is cleared
        // instead of set to zero.
        let first = self.changes.iter().find(|change| change.key == APP_NUMBER);
        if number == 0 && first.is_some_and(|first| first.before.is_empty()) {
            return self.set(store, APP_NUMBER, b"");
        }
        self.set(store, APP_NUMBER, number.to_string().as_bytes())
    }

    /// Sets the mask of enabled tags. If `change` is given, its first tags are enabled and its second tags are
    /// disabled; otherwise the mask keeps its value.
    ///
    /// Every change ends with a call of this function, because processes read the properties again only when the mask
    /// is set.
    pub(super) fn announce(
        &mut self,
        store: &mut dyn Access,
        change: Option<(AtraceTag, AtraceTag)>,
    ) -> Result<(), Error> {
        for _ in 0..ATTEMPTS {
            let present = store.text(FLAGS);
            let tags = change.map(|(on, off)| (store.tags() | on) - off);
            let written = match (&self.flags, tags) {
                // Restores the exact text that the property had before this switch, if this text stands for the wanted
                // tags.
                (Some((after, before)), _)
                    if *after == present
                        && tags.is_none_or(|tags| flags::parse_mask(before).unwrap_or(0) == tags.bits()) =>
                {
                    before.clone()
                }
                (_, Some(tags)) => format!("{:#x}", tags.bits()).into_bytes(),
                (_, None) if flags::parse_mask(&present).is_some() => present.clone(),
                // The present value is not a number, so no tag would be enabled.
                (_, None) => b"0".to_vec(),
            };
            self.set(store, FLAGS, &written)?;
            self.flags = Some((written, present));
            let Some((on, off)) = change else { return Ok(()) };
            if stays(store, |store| store.tags().contains(on) && !store.tags().intersects(off)) {
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

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::sync::Arc;

    use atrace_sys::properties::{self, Properties, Value};

    use super::super::access::{Owner, Read};
    use super::*;

    /// A property store in which another process sets a property right after this process has set one, as can
    /// happen on Android.
    struct Disturbed<'a> {
        store: &'a Properties,
        /// The properties that the other process sets: two keys and a value each. After this process has set the first
        /// key, the other process sets the second key to the value. Each entry is used once.
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
    #[cfg_attr(miri, ignore = "no files")]
    fn what_others_undo_is_written_again() {
        const SLOT: &str = "debug.atrace.app_0";
        let place = tempfile::tempdir().unwrap();
        let open = |name: &str| {
            let properties = Properties::open_path(&place.path().join(name)).unwrap();
            Shared::new(Owner::Sharers(Arc::new(properties)))
        };
        type Other = (&'static str, &'static str, &'static str);
        let cases: [(&[Other], &[&str]); 5] = [
            (&[], &["own"]),
            // The other process has written its pattern into the same property.
            (&[(SLOT, SLOT, "other")], &["other", "own"]),
            // The other process did not see this process's pattern, and set a count that excludes this pattern.
            (&[(APP_NUMBER, APP_NUMBER, "0")], &["own"]),
            // The other process first writes its pattern into the same property, and later sets a count that excludes
            // this process's pattern.
            (&[(SLOT, SLOT, "other"), (APP_NUMBER, APP_NUMBER, "1")], &["other", "own"]),
            // The other process removes the pattern each time.
            (&[(APP_NUMBER, APP_NUMBER, "0"); ATTEMPTS], &[]),
        ];
        for (number, (others, expected)) in cases.into_iter().enumerate() {
            let shared = open(&number.to_string());
            let mut switched = Switched::new(shared.clone());
            let mut store = Disturbed { store: shared.properties(), others: others.to_vec() };
            let added = switched.add_pattern(&mut store, b"own");
            assert!(store.others.is_empty());
            assert_eq!(added.is_ok(), !expected.is_empty(), "{number}");
            let slot = shared.properties().value(SLOT).map(|value| value.to_string_lossy().into_owned());
            assert_eq!(slot.is_none_or(|slot| slot.is_empty()), expected.is_empty(), "{number}");
            let patterns = shared.properties().patterns();
            assert!(patterns.iter().eq(expected.iter().map(|it| it.as_bytes())), "{number}: {patterns:?}");
        }
        let shared = open("tags");
        let mut switched = Switched::new(shared.clone());
        let others = vec![(FLAGS, FLAGS, "0x2"), (FLAGS, FLAGS, "0x8")];
        let mut store = Disturbed { store: shared.properties(), others };
        switched.announce(&mut store, Some((AtraceTag::Camera, AtraceTag::Graphics))).unwrap();
        assert_eq!(shared.properties().tags(), AtraceTag::Camera | AtraceTag::View);
        let mut store = Disturbed { store: shared.properties(), others: vec![(FLAGS, FLAGS, "0"); ATTEMPTS] };
        assert!(switched.announce(&mut store, Some((AtraceTag::Video, AtraceTag::empty()))).is_err());
    }
}
