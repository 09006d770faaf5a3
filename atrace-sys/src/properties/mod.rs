//! System properties: short texts with dotted names. Every process can read them, and few processes change
//! them.
//!
//! Properties switch tracing on: `debug.atrace.tags.enableflags` holds the mask of enabled tags; `debug.atrace.app_0`
//! and so on hold the names of programs that trace. Android has system properties, which are accessed through bionic. A
//! Linux host has no system properties. There, each user has a small file, `/dev/shm/atrace-<uid>/properties`, which
//! the first process that needs it creates (`ATRACE_PROPERTIES` names another file). `docs/design.md` explains where
//! the file is and how it is protected.
//!
//! - Each property has a *serial*, which changes whenever the property is set, even to the same value. A reader that
//!   caches a value with its serial can check by one load whether the value is still valid ([`Property::serial_word`]).
//!   The only meaningful operation on two serials is to compare them for equality.
//! - The *area serial* changes when any property is set or created. After such a change, a property that did not exist
//!   before may exist.
//! - Readers take no lock, make no system call and never wait. Writers lock the file by `flock`. If a writer is
//!   killed, either the old or the new value remains.
//! - If the file of a host is deleted or replaced, processes that have it open continue to read the old file, and
//!   setting a property fails ([`ErrorKind::Replaced`]) until the process is restarted. [`Properties::check`] detects
//!   this in advance.
//! - The content of the file is checked at each access: random bytes result in [`ErrorKind::Damaged`] or in a wrong
//!   value, never in a crash. But if the owner of the file truncates it while it is mapped, the processes that read it
//!   are killed (SIGBUS).
//! - Any thread may call all functions, even in a forked child. A read allocates only if it fails. The functions may
//!   change errno: see [`ErrnoGuard`](crate::process::ErrnoGuard).

#[cfg(target_os = "android")]
mod bionic;
mod error;
#[cfg(target_os = "linux")]
mod host;
mod pattern;
mod text;

#[cfg(target_os = "android")]
use self::bionic as backend;
#[cfg(target_os = "linux")]
use self::host as backend;
#[cfg(no_tracing)]
use crate::system::properties as backend;

use std::fmt;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

pub use self::error::{Error, ErrorKind};
pub use self::pattern::pattern_for;
pub(crate) use self::text::Key;
pub use self::text::{FLAGS, KEY_MAX, VALUE_MAX, Value};
use crate::word::OnceRef;

/// The default time to wait for another process that is in the middle of a change.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// A property store that can be opened.
#[derive(Clone, Copy)]
#[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "only a host has several stores"))]
pub(crate) enum Which<'a> {
    /// The store of this process.
    Own,
    /// The store at this path. The store is created if it does not exist.
    Path(&'a Path),
    /// The store at this path, which must exist.
    Existing(&'a Path),
    /// The store of the user with this id.
    User(u32),
}

/// The store that [`Properties::open`] has opened.
static OWN: OnceRef<Properties> = OnceRef::new();

/// An open store of system properties.
///
/// On a host the store has no file descriptor, only a read-only mapping of 98368 bytes, which is unmapped when the
/// [`Properties`] are dropped. The store that [`open`](Self::open) returns is never dropped.
///
/// # Examples
///
/// ```
/// use atrace_sys::properties::Properties;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # if cfg!(target_os = "android") { return Ok(()); }
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("properties");
/// let properties = Properties::open_path(&path)?;
/// properties.set("debug.example", "on")?;
/// assert_eq!(properties.get("debug.example")?.unwrap().as_bytes(), b"on");
///
/// let example = properties.find("debug.example").unwrap();
/// let before = example.serial();
/// properties.set("debug.example", "off")?;
/// assert_ne!(example.serial(), before);
/// # Ok(())
/// # }
/// ```
pub struct Properties(backend::Store);

impl Properties {
    /// Opens the store of this process. Every later call returns the same store.
    ///
    /// On a host, this is the file that the variable `ATRACE_PROPERTIES` names or, if it is not set, the store of
    /// the effective user id. The store is created if it does not exist. A forked child of this process keeps the
    /// store, even if the child's user id changes.
    ///
    /// # Errors
    ///
    /// Returns an error if the store can't be opened or created, or can't be trusted ([`ErrorKind::Foreign`],
    /// [`ErrorKind::Damaged`], …). The next call tries again. The function may sleep up to [`PATIENCE`] if another
    /// process is in the middle of a change (root giving a directory to the store's user, or a process deleting the
    /// store): see [`try_open`](Self::try_open).
    pub fn open() -> Result<&'static Self, Error> {
        Self::open_within(PATIENCE)
    }

    /// Opens the store of this process as [`open`](Self::open) does, but never waits.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`open`](Self::open), and [`ErrorKind::Busy`] if [`open`](Self::open) would
    /// wait.
    pub fn try_open() -> Result<&'static Self, Error> {
        Self::open_within(Duration::ZERO)
    }

    fn open_within(patience: Duration) -> Result<&'static Self, Error> {
        match OWN.get() {
            Some(open) => Ok(open),
            None => Ok(OWN.keep(Box::new(Self(backend::Store::open(Which::Own, patience)?)))),
        }
    }

    /// Opens the store at `path` on a host, and creates it if it does not exist. The directory of the store
    /// must exist.
    ///
    /// The file must belong to the effective user; if the effective user is root, the file may belong to the owner of
    /// its directory instead. A relative path starts at the process's present working directory.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`open`](Self::open); [`ErrorKind::Missing`] if the directory does not exist;
    /// and always [`ErrorKind::Unsupported`] on Android.
    pub fn open_path(path: &Path) -> Result<Self, Error> {
        backend::Store::open(Which::Path(path), PATIENCE).map(Self)
    }

    /// Opens the store at `path` as [`open_path`](Self::open_path) does, but does not create it.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`open_path`](Self::open_path), and [`ErrorKind::Missing`] if the file
    /// does not exist.
    pub fn open_existing(path: &Path) -> Result<Self, Error> {
        backend::Store::open(Which::Existing(path), PATIENCE).map(Self)
    }

    /// Opens the store of a user on a host, and creates it if it does not exist. On Android all users share the
    /// system's store.
    ///
    /// Root may open the store of any user; if root creates the store, it belongs to that user.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`open`](Self::open), and [`ErrorKind::Foreign`] if this process belongs neither to root
    /// nor to that user.
    pub fn open_uid(uid: u32) -> Result<Self, Error> {
        backend::Store::open(Which::User(uid), PATIENCE).map(Self)
    }

    /// Returns the path of a user's store on a host; on Android, the path of the system's properties.
    pub fn path_for_uid(uid: u32) -> PathBuf {
        backend::Store::path_for_uid(uid)
    }

    /// Returns the absolute path of this store.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Checks that the path of this store still leads to the file that was opened, and that this process may write to
    /// the file.
    ///
    /// The check usually takes a few system calls. If the store can't be opened for a temporary reason, the check may
    /// take as long as [`open`](Self::open). On Android the check does nothing.
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::Replaced`] if the file was deleted or replaced since it was opened; otherwise
    /// the errors of [`open`](Self::open).
    pub fn check(&self) -> Result<(), Error> {
        self.0.check()
    }

    /// Reads a property. Returns `None` if the property does not exist.
    ///
    /// An empty value, which Android's tools treat as "not set", is returned unchanged. On a host, the
    /// function never blocks.
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::BadKey`] for an invalid key, [`ErrorKind::Damaged`] if the store is damaged, and
    /// [`ErrorKind::Busy`] if the value changed during each of many attempts to read it.
    #[doc(alias = "__system_property_get")]
    #[inline(never)]
    pub fn get(&self, key: &str) -> Result<Option<Value>, Error> {
        match self.0.find(&Key::new(key)?).map_err(|fault| self.0.damaged(fault))? {
            Some(property) => self.0.read(property).map(|(_, value)| Some(value)),
            None => Ok(None),
        }
    }

    /// Sets a property, creates it if it does not exist, and wakes the threads that wait for it.
    ///
    /// The serial of the property changes even if its value does not. A value has at most [`VALUE_MAX`] bytes,
    /// without NUL. Android's property service also requires UTF-8 and the permission to set the property.
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::BadKey`] for an invalid key; [`ErrorKind::BadValue`] for an invalid value;
    /// [`ErrorKind::Full`] if a host's store already has 256 properties; [`ErrorKind::Busy`] if another writer did not
    /// finish within [`PATIENCE`]; [`ErrorKind::Replaced`] if the file is no longer at its path; [`ErrorKind::Refused`]
    /// if Android's property service refuses.
    #[doc(alias = "__system_property_set")]
    pub fn set(&self, key: &str, value: impl AsRef<[u8]>) -> Result<(), Error> {
        let (key, value) = (Key::new(key)?, Value::new(value.as_ref())?);
        self.0.begin(PATIENCE)?.set(&self.0, &key, &value)
    }

    /// Begins a transaction, which ends when the [`Transaction`] is dropped.
    ///
    /// On a host, no other writer of any process or thread can set a property during the transaction, and the call
    /// waits at most `patience` for the lock. A thread must not begin two transactions in the same store. Each property
    /// takes effect, and wakes waiting threads, as soon as it is set. So if the process is killed, the properties that
    /// it has set so far remain set. Android has no lock between processes. There, a transaction excludes only the
    /// other threads of this process: see [`Transaction::is_alone`].
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::Busy`] if another writer did not finish in time, and [`ErrorKind::Replaced`] if the file
    /// is no longer at its path.
    ///
    /// # Examples
    ///
    /// ```
    /// use atrace_sys::properties::{PATIENCE, Properties};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # if cfg!(target_os = "android") { return Ok(()); }
    /// # let directory = tempfile::tempdir()?;
    /// # let properties = Properties::open_path(&directory.path().join("properties"))?;
    /// let mut transaction = properties.transaction(PATIENCE)?;
    /// let before = transaction.get("debug.count")?.map_or(0, |count| count.as_bytes().len());
    /// transaction.set("debug.count", "x".repeat(before + 1))?;
    /// drop(transaction);
    /// # assert_eq!(properties.get("debug.count")?.unwrap().as_bytes(), b"x");
    /// # Ok(())
    /// # }
    /// ```
    pub fn transaction(&self, patience: Duration) -> Result<Transaction<'_>, Error> {
        Ok(Transaction { properties: self, turn: self.0.begin(patience)?, _thread: PhantomData })
    }

    /// Finds a property, so that it can be read many times. Returns `None` if the property does not exist or
    /// the store is damaged.
    #[doc(alias = "__system_property_find")]
    pub fn find(&self, key: &str) -> Option<Property<'_>> {
        // The key is passed by reference: without optimization, moves would make five copies of the key on the stack,
        // which may be the small stack of a signal handler.
        let Ok(key) = &Key::new(key) else { return None };
        self.0.find(key).ok()?.map(Property)
    }

    /// Returns Android's API level, `ro.build.version.sdk`, or `None` if it is not set, as on a
    /// host.
    #[doc(alias = "android_get_device_api_level")]
    pub fn api_level(&self) -> Option<u32> {
        std::str::from_utf8(self.get("ro.build.version.sdk").ok()??.as_bytes().trim_ascii())
            .ok()?
            .parse()
            .ok()
    }

    /// Calls `then` with the key, value and serial of each property, in the order of the store.
    ///
    /// # Errors
    ///
    /// Returns an error, after all other properties were passed to `then`, if a property is damaged or could not
    /// be read because it kept changing.
    #[doc(alias = "__system_property_foreach")]
    pub fn for_each(&self, mut then: impl FnMut(&str, &Value, u32)) -> Result<(), Error> {
        self.0.for_each(&mut then)
    }

    /// Returns a number that changes when any property is set or created.
    ///
    /// On Android 5, whose bionic has no such number, this always returns 0.
    #[doc(alias = "__system_property_area_serial")]
    pub fn area_serial(&self) -> u32 {
        self.0.area_serial()
    }

    /// Returns the word that holds the area serial, or `None` if the word can't be loaded directly.
    ///
    /// On a host this is always `Some`. On Android, init changes the word, and the word is returned only if its value
    /// equals the result of `__system_property_area_serial`.
    ///
    /// Only relaxed loads are allowed: the memory is mapped read-only, and Rust guarantees nothing for other loads
    /// there. If later reads depend on the serial, call [`area_serial`](Self::area_serial), which has the
    /// necessary fence.
    pub fn area_serial_word(&self) -> Option<&AtomicU32> {
        self.0.area_serial_word()
    }

    /// Blocks until the serial of `what` differs from `old_serial`, and returns the new serial. Returns
    /// `None` after `timeout`.
    ///
    /// Read the serial first, then the data that depends on it, and then wait with that serial. In this order no
    /// change is missed, though several changes may appear as one. Without a `timeout` this waits forever. The
    /// timeout is measured by the monotonic clock.
    ///
    /// The thread sleeps on a shared futex. (If a writer on a host is killed just before it wakes the waiting threads,
    /// they wake by themselves up to ten seconds later.) On an Android version whose serials can't be loaded directly,
    /// the thread sleeps in bionic or, before Android 8, checks the serial every 50 ms.
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::Io`] if the system denies the wait, as a seccomp filter may, and
    /// [`ErrorKind::Unsupported`] for [`Wait::Any`] on Android 5.
    ///
    /// # Examples
    ///
    /// ```
    /// use atrace_sys::properties::{Properties, Wait};
    /// use std::time::Duration;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # if cfg!(target_os = "android") { return Ok(()); }
    /// # let directory = tempfile::tempdir()?;
    /// # let properties = Properties::open_path(&directory.path().join("properties"))?;
    /// let before = properties.area_serial();
    /// assert_eq!(properties.wait(Wait::Any, before, Some(Duration::from_millis(1)))?, None);
    /// properties.set("debug.example", "on")?;
    /// assert_eq!(properties.wait(Wait::Any, before, None)?, Some(properties.area_serial()));
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "__system_property_wait")]
    pub fn wait(
        &self,
        what: Wait<'_>,
        old_serial: u32,
        timeout: Option<Duration>,
    ) -> Result<Option<u32>, Error> {
        self.0.wait(what.property(), old_serial, timeout, || false)
    }

    /// Waits as [`wait`](Self::wait) does, but returns `None` once `must_stop` returns true.
    ///
    /// To stop a waiting thread, change the data that `must_stop` reads, and then call [`wake`](Self::wake). Usually
    /// the thread then returns at once. If the thread was just about to sleep, it misses the wake-up. In that case the
    /// thread returns at the next wake-up, or at the latest after ten seconds (on Android, half a minute).
    ///
    /// # Errors
    ///
    /// Returns the errors of [`wait`](Self::wait).
    pub fn wait_unless(
        &self,
        what: Wait<'_>,
        old_serial: u32,
        timeout: Option<Duration>,
        must_stop: impl Fn() -> bool,
    ) -> Result<Option<u32>, Error> {
        self.0.wait(what.property(), old_serial, timeout, must_stop)
    }

    /// Makes threads that wait for `what`, in any process, check whether they must stop.
    pub fn wake(&self, what: Wait<'_>) {
        self.0.wake(what.property());
    }
}

impl fmt::Debug for Properties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Properties").field("path", &self.path()).finish_non_exhaustive()
    }
}

/// A property of a store. A `Property` is valid as long as the store is open, because properties are never removed.
///
/// The property belongs to the store in which it was found, even if the file of the store is deleted.
///
/// ```compile_fail,E0505
/// # use atrace_sys::properties::Properties;
/// # let properties = Properties::open_path("store".as_ref())?;
/// let property = properties.find("debug.example");
/// drop(properties);
/// property.map(|property| property.serial());
/// # Ok::<(), atrace_sys::properties::Error>(())
/// ```
#[derive(Clone, Copy)]
#[doc(alias = "prop_info")]
pub struct Property<'a>(backend::Property<'a>);

impl<'a> Property<'a> {
    /// Returns the serial, which changes each time the property is set.
    ///
    /// Data that is read after this call is at least as new as the serial.
    #[doc(alias = "__system_property_serial")]
    #[inline]
    pub fn serial(&self) -> u32 {
        self.0.serial()
    }

    /// Returns the word that holds the serial, or `None` if the word can't be loaded directly.
    ///
    /// On a host this is always `Some`. On Android, the word is internal to bionic, and is returned only if its value
    /// equals the result of `__system_property_serial`.
    ///
    /// Only relaxed loads are allowed: the memory is mapped read-only, and Rust guarantees nothing for other loads
    /// there. Compare the word with the serial that [`read`](Self::read) returned. If they differ, call `read` again,
    /// which has the necessary fence.
    pub fn serial_word(&self) -> Option<&'a AtomicU32> {
        self.0.serial_word()
    }

    /// Reads the value and its serial, and returns the serial first. Returns `None` if the property's entry in the
    /// store is damaged, or if the property changed during each of many attempts.
    ///
    /// Android's read-only properties (`ro.*`) may be longer than a [`Value`], which then contains their
    /// first [`VALUE_MAX`] bytes.
    #[doc(alias = "__system_property_read_callback")]
    pub fn read(&self) -> Option<(u32, Value)> {
        self.0.read().ok()
    }
}

impl fmt::Debug for Property<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Property").field("serial", &self.serial()).finish_non_exhaustive()
    }
}

/// The kind of change that [`Properties::wait`] waits for.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Wait<'a> {
    /// Waits until any property of the store is set or created, that is, until the area serial changes.
    Any,
    /// Waits until this property is set, that is, until the property's serial changes.
    Property(Property<'a>),
}

impl<'a> Wait<'a> {
    fn property(self) -> Option<backend::Property<'a>> {
        match self {
            Self::Any => None,
            Self::Property(Property(property)) => Some(property),
        }
    }
}

/// The reason why an existing property could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(target_os = "android", expect(dead_code, reason = "bionic's store is never damaged"))]
pub(crate) enum ReadError {
    /// The store is damaged: the value, the key, or a number such as that of the entries is not valid. The text says
    /// which of these.
    Damaged(&'static str),
    /// The property changed during each attempt to read it.
    Busy,
}

/// The right to set properties while no other writer can set one (on Android: no other writer of this process).
/// Dropping the `Transaction` ends the transaction.
///
/// A transaction belongs to the thread that began it. On a host, a child that is forked during the transaction can't
/// set a property with its copy of the transaction ([`ErrorKind::Busy`]). Dropping the child's copy does not end the
/// transaction.
pub struct Transaction<'a> {
    properties: &'a Properties,
    turn: backend::Turn,
    _thread: PhantomData<*const ()>,
}

impl Transaction<'_> {
    /// Reads a property as [`Properties::get`] does.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Properties::get`].
    pub fn get(&self, key: &str) -> Result<Option<Value>, Error> {
        self.properties.get(key)
    }

    /// Sets a property as [`Properties::set`] does, but does not wait for other writers.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Properties::set`].
    pub fn set(&mut self, key: &str, value: impl AsRef<[u8]>) -> Result<(), Error> {
        self.turn.set(&self.properties.0, &Key::new(key)?, &Value::new(value.as_ref())?)
    }

    /// Returns whether the transaction prevents other processes from setting properties: true on a host, false on
    /// Android. On Android the caller has to check whether the properties still have the values that it has set.
    pub fn is_alone(&self) -> bool {
        backend::Turn::IS_ALONE
    }
}

impl fmt::Debug for Transaction<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction").field("properties", self.properties).finish_non_exhaustive()
    }
}
