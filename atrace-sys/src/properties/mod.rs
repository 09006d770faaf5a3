//! System properties: short texts under dotted names, read by every process and changed by few.
//!
//! ATrace is switched with them: `debug.atrace.tags.enableflags` holds the tag mask, `debug.atrace.app_0` and
//! so on the programs that may trace for themselves. On Android they are the system's own, through bionic. A
//! Linux host has none: there each user has a small file, `/dev/shm/atrace-<uid>/properties`, made by whoever asks
//! first (`ATRACE_PROPERTIES` names another). `docs/design.md` says why it is there and what protects it.
//!
//! - Each property has a *serial*, which changes whenever the property is set, also to the value that it has. Who keeps
//!   a value keeps its serial, and one load tells whether it still holds ([`Property::serial_word`]). Serials are for
//!   comparing only.
//! - The *area serial* changes when any property is set or appears: it tells when to look again for one that was not
//!   there.
//! - Readers take no lock, make no system call and never wait. Writers take turns by `flock`; one that is killed
//!   leaves the old value or the new one.
//! - When the file of a host is deleted or replaced, who has it open keeps reading the old one, and setting fails
//!   ([`ErrorKind::Replaced`]) until the process is started anew; [`Properties::check`] tells it beforehand.
//! - What a file holds is checked at each access: random bytes are [`ErrorKind::Damaged`], never a crash. But if
//!   its owner cuts it short while it is mapped, the processes that read it are killed (SIGBUS).
//! - Everything may be called from any thread and in a forked child. Reading does not allocate unless it fails. errno
//!   is *not* preserved: see [`ErrnoGuard`](crate::process::ErrnoGuard).

#[cfg(target_os = "android")]
mod bionic;
mod error;
#[cfg(target_os = "linux")]
mod host;
mod property;
mod text;
mod transaction;

#[cfg(target_os = "android")]
use self::bionic as backend;
#[cfg(target_os = "linux")]
use self::host as backend;
#[cfg(no_tracing)]
use crate::system::properties as backend;

use std::fmt;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::Duration;

pub use self::error::{Error, ErrorKind};
pub(crate) use self::property::ReadError;
pub use self::property::{Property, Wait};
pub(crate) use self::text::Key;
pub use self::text::{KEY_MAX, VALUE_MAX, Value};
pub use self::transaction::Transaction;
use crate::word::OnceRef;

/// How long to wait for another process that is in the middle of something, unless told otherwise.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// The store that [`Properties::open`] opened.
static OWN: OnceRef<Properties> = OnceRef::new();

/// An open store of system properties.
///
/// On a host it keeps no file descriptor, only a read-only mapping of 98368 bytes, taken back when this is
/// dropped. The one of [`open`](Self::open) stays.
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
    /// Opens the store of this process; opened once, the same is returned ever after.
    ///
    /// On a host it is the file that `ATRACE_PROPERTIES` names, else the store of the effective user id, and
    /// it is created when absent. A child of this process keeps it, whatever its user id becomes.
    ///
    /// # Errors
    ///
    /// Fails when the store can't be opened or created, or is not to be trusted ([`ErrorKind::Foreign`],
    /// [`ErrorKind::Damaged`], …). A failure is not kept: the next call tries again. May sleep up to [`PATIENCE`]
    /// where another process is in the middle of something (root of giving a directory to its user, somebody of
    /// deleting the store): see [`try_open`](Self::try_open).
    pub fn open() -> Result<&'static Self, Error> {
        Self::open_within(PATIENCE)
    }

    /// [`open`](Self::open), without ever waiting.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open); [`ErrorKind::Busy`] where that would wait.
    pub fn try_open() -> Result<&'static Self, Error> {
        Self::open_within(Duration::ZERO)
    }

    fn open_within(patience: Duration) -> Result<&'static Self, Error> {
        match OWN.get() {
            Some(open) => Ok(open),
            None => Ok(OWN.keep(Box::new(Self(backend::Store::open_own(patience)?)))),
        }
    }

    /// Opens the store at `path` on a host, and creates it when absent; its directory must exist.
    ///
    /// The file must belong to the effective user; for root, to root or the owner of its directory.
    /// A relative path counts from the current directory of this moment.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open); [`ErrorKind::Missing`] without the directory; on Android always
    /// [`ErrorKind::Unsupported`].
    pub fn open_path(path: &Path) -> Result<Self, Error> {
        backend::Store::open_path(path).map(Self)
    }

    /// Opens the store at `path` on a host if it is there: [`open_path`](Self::open_path), which creates nothing.
    ///
    /// # Errors
    ///
    /// As [`open_path`](Self::open_path); [`ErrorKind::Missing`] without the file.
    pub fn open_existing(path: &Path) -> Result<Self, Error> {
        backend::Store::open_existing(path).map(Self)
    }

    /// Opens the store of a user on a host, and creates it when absent; on Android all users share the
    /// system's.
    ///
    /// Root may open anyone's: what it creates then belongs to that user.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open); [`ErrorKind::Foreign`] when neither root nor that user asks.
    pub fn open_uid(uid: u32) -> Result<Self, Error> {
        backend::Store::open_uid(uid).map(Self)
    }

    /// Returns where the store of a user is on a host; on Android, where the system keeps its properties.
    pub fn path_for_uid(uid: u32) -> PathBuf {
        backend::Store::path_for_uid(uid)
    }

    /// Returns where this store is, as an absolute path.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Checks that the store still is the one that other processes find at its path, and fit to be written.
    ///
    /// Costs a few system calls. On Android there is nothing to check.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Replaced`] when the file was deleted or replaced since it was opened, else as
    /// [`open`](Self::open).
    pub fn check(&self) -> Result<(), Error> {
        self.0.check()
    }

    /// Reads a property; `None` when there is none of that name.
    ///
    /// An empty value is what Android's tools treat as "not set"; it is returned as it is. Never blocks on a
    /// host.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::BadKey`] for a key that no property can have, [`ErrorKind::Damaged`] where the store
    /// makes no sense, [`ErrorKind::Busy`] when the value changed again at each of many attempts to read it.
    #[doc(alias = "__system_property_get")]
    pub fn get(&self, key: &str) -> Result<Option<Value>, Error> {
        match self.0.find(&Key::new(key)?)? {
            Some(property) => self.0.read(property).map(|(_, value)| Some(value)),
            None => Ok(None),
        }
    }

    /// Sets a property, and creates it when absent; wakes who waits for it.
    ///
    /// The serial changes even if the value is the one it had. A value is at most [`VALUE_MAX`] bytes,
    /// without NUL. Android's property service also demands UTF-8, and the right to set this property.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::BadKey`] and [`ErrorKind::BadValue`] for what no property can be; [`ErrorKind::Full`]
    /// when a host's store has its 256 properties; [`ErrorKind::Busy`] when another writer did not finish
    /// within [`PATIENCE`]; [`ErrorKind::Replaced`] when the file is no longer at its path;
    /// [`ErrorKind::Refused`] when Android's property service says no.
    #[doc(alias = "__system_property_set")]
    pub fn set(&self, key: &str, value: impl AsRef<[u8]>) -> Result<(), Error> {
        let (key, value) = (Key::new(key)?, Value::new(value.as_ref())?);
        self.0.begin(PATIENCE)?.set(&self.0, &key, &value)
    }

    /// Begins to read and set properties as one step: until it is dropped, no other writer comes between.
    ///
    /// On a host that holds for all processes and threads, and waits at most `patience` for its turn. A thread
    /// must not begin two in the same store. Each property is in force, and wakes who waits for it, once it is set: who
    /// is killed in the middle leaves what was set until then. On Android, where processes have nothing to take turns by,
    /// it holds only for the threads of this process: see [`Transaction::is_alone`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Busy`] when another writer did not finish in time; [`ErrorKind::Replaced`] when the file
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

    /// Finds a property, to read it many times; `None` when there is none of that name, or the store is
    /// damaged.
    #[doc(alias = "__system_property_find")]
    pub fn find(&self, key: &str) -> Option<Property<'_>> {
        // Looked at where it is: moved about, it would be there five times where nothing is optimised, on a stack that
        // may be a signal handler's.
        let Ok(key) = &Key::new(key) else { return None };
        self.0.find(key).ok()?.map(Property)
    }

    /// Returns Android's API level, `ro.build.version.sdk`; `None` where it is not set, as on a host.
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
    /// Reports a damaged or ever-changing property after having passed on all others.
    #[doc(alias = "__system_property_foreach")]
    pub fn for_each(&self, mut then: impl FnMut(&str, &Value, u32)) -> Result<(), Error> {
        self.0.for_each(&mut then)
    }

    /// Returns a number that changes when any property is set or appears.
    ///
    /// It is always 0 on Android 5, whose bionic does not tell.
    #[doc(alias = "__system_property_area_serial")]
    pub fn area_serial(&self) -> u32 {
        self.0.area_serial()
    }

    /// Returns the word that holds the area serial, where it can be loaded directly.
    ///
    /// Always `Some` on a host. On Android it is read from where init keeps it, and returned only if it was
    /// seen to agree with `__system_property_area_serial`.
    ///
    /// Only relaxed loads are allowed: the memory is mapped read-only, and Rust promises no more for that.
    /// Where what is read afterwards depends on it, use [`area_serial`](Self::area_serial), which adds the
    /// fence.
    pub fn area_serial_word(&self) -> Option<&AtomicU32> {
        self.0.area_serial_word()
    }

    /// Blocks until the serial of `what` is another than `old_serial`, and returns it; `None` after
    /// `timeout`.
    ///
    /// Read the serial first, then what depends on it, then wait with that serial: nothing is missed then,
    /// though several changes may be seen as one. `None` as `timeout` waits without limit. The clock is the
    /// monotonic one.
    ///
    /// It sleeps in a shared futex (on a host, a writer killed just before waking others delays them up to
    /// ten seconds); on an Android whose serials can't be loaded directly in bionic, or, before Android 8, by
    /// looking every 50 ms.
    ///
    /// # Errors
    ///
    /// Fails where the system denies the wait, as a seccomp filter may ([`ErrorKind::Io`]);
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
        self.0.wait(what.property(), old_serial, timeout, &AtomicBool::new(false))
    }

    /// [`wait`](Self::wait), which also ends, with `None`, once `stop` is set.
    ///
    /// Set it, then call [`wake`](Self::wake). The waiting thread then ends at once; only if it was just
    /// about to sleep does it miss the call, and ends at the next one or within ten seconds, on Android half
    /// a minute.
    ///
    /// # Errors
    ///
    /// As [`wait`](Self::wait).
    pub fn wait_unless(
        &self,
        what: Wait<'_>,
        old_serial: u32,
        timeout: Option<Duration>,
        stop: &AtomicBool,
    ) -> Result<Option<u32>, Error> {
        self.0.wait(what.property(), old_serial, timeout, stop)
    }

    /// Has the threads that wait for `what`, in any process, look whether they are to stop.
    pub fn wake(&self, what: Wait<'_>) {
        self.0.wake(what.property());
    }
}

impl fmt::Debug for Properties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Properties").field("path", &self.path()).finish_non_exhaustive()
    }
}
