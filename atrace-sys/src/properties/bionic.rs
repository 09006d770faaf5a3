//! The properties of Android, through bionic.
//!
//! Functions that every bionic since Android 5 exports are linked directly. Three functions are looked up at run time.
//! If one of them is missing, code of this module takes its place: `__system_property_area_serial` before Android 6,
//! `__system_property_read_callback` and `__system_property_wait` before Android 8. In a statically linked executable
//! no function can be looked up, but its bionic comes from the NDK and has all functions.

use std::ffi::{CStr, c_int, c_void};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use super::error::{Error, ErrorKind};
use super::text::{Key, Value};
use super::{ReadError, Which};
use crate::c_text::CText;
use crate::fork::PerProcess;
use crate::sync::atomic::{AtomicPtr, AtomicU32, Ordering, fence};
use crate::system::{Mapped, Shared, file, futex};
use crate::word::OnceRef;

/// The path of the system's properties.
const PATH: &str = "/dev/__properties__";

/// The interval at which a sleeping thread checks whether it must stop.
const STOP_POLL: Duration = Duration::from_secs(30);

/// The interval at which a thread checks for a change, on versions whose bionic has no function that waits.
const POLL: Duration = Duration::from_millis(50);

/// The interval at which a thread tries again to get the right to write properties ([`Turn`]).
const TURN_POLL: Duration = Duration::from_millis(1);

/// The maximum number of attempts to read a property. An attempt fails if a writer changes the property meanwhile.
const ATTEMPTS: usize = 64;

unsafe extern "C" {
    // SAFETY: the signatures, and those of the types below, are those of bionic's sys/_system_properties.h and
    // sys/system_properties.h. Each function accepts any property of bionic and any text. The buffers are larger than
    // PROP_NAME_MAX and PROP_VALUE_MAX.
    safe fn __system_property_find(name: CText<'_>) -> Option<Property<'static>>;
    safe fn __system_property_read(
        property: Property<'_>,
        name: &mut [u8; 256],
        value: &mut [u8; 256],
    ) -> c_int;
    safe fn __system_property_serial(property: Property<'_>) -> u32;
    safe fn __system_property_set(name: CText<'_>, value: CText<'_>) -> c_int;
    fn __system_property_foreach(then: Collect, cookie: *mut c_void) -> c_int;
}

type Collect = unsafe extern "C" fn(Property<'static>, cookie: *mut c_void);

type AreaSerial = extern "C" fn() -> u32;
/// The name, the serial and the value of a property, as the callback stores them.
type Received = (&'static CStr, u32, Value);
/// A callback that gets a place to store its result, and the name, the value and the serial of a property. The name
/// stays valid as long as the property exists.
type Receive = extern "C" fn(&mut Received, CText<'static>, CText<'_>, u32);
type ReadCallback = extern "C" fn(Property<'_>, Receive, &mut Received);
/// A function that takes a property, its old serial, a pointer for the new serial, and a timeout. If no property is
/// given, the function waits for a change of any property.
type WaitFor = extern "C" fn(Option<Property<'_>>, u32, &mut u32, &libc::timespec) -> bool;

static AREA_SERIAL: Symbol<AreaSerial> = Symbol::new(c"__system_property_area_serial");
static READ_CALLBACK: Symbol<ReadCallback> = Symbol::new(c"__system_property_read_callback");
static WAIT: Symbol<WaitFor> = Symbol::new(c"__system_property_wait");

/// A function of bionic that may be missing. The function is looked up once. `F` is its type.
struct Symbol<F> {
    name: &'static CStr,
    /// The address of the function: null before it was looked up, and [`Symbol::missing`] if the function
    /// does not exist.
    address: AtomicPtr<c_void>,
    _type: PhantomData<F>,
}

impl<F: Copy> Symbol<F> {
    const fn new(name: &'static CStr) -> Self {
        Self { name, address: AtomicPtr::new(std::ptr::null_mut()), _type: PhantomData }
    }

    /// Returns an address that no function has. It is stored in place of the address of a missing function.
    fn missing(&self) -> *mut c_void {
        (&raw const self.address).cast_mut().cast()
    }

    fn get(&self) -> Option<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        let mut address = self.address.load(Ordering::Relaxed);
        if address.is_null() {
            address = look_up(self.name).map_or(self.missing(), NonNull::as_ptr);
            self.address.store(address, Ordering::Relaxed);
        }
        // SAFETY: bionic's function of this name has this type. Data and function pointers have the same representation
        // on Android.
        (address != self.missing()).then(|| unsafe { std::mem::transmute_copy(&address) })
    }
}

#[cfg(not(target_feature = "crt-static"))]
fn look_up(name: &CStr) -> Option<NonNull<c_void>> {
    crate::system::Library::LOADED.address(name)
}

#[cfg(target_feature = "crt-static")]
fn look_up(name: &CStr) -> Option<NonNull<c_void>> {
    unsafe extern "C" {
        // SAFETY: only the addresses of these functions are taken. Each function is called with the signature of
        // bionic's header.
        fn __system_property_area_serial();
        fn __system_property_read_callback();
        fn __system_property_wait();
    }
    let function: unsafe extern "C" fn() = match name.to_bytes() {
        b"__system_property_area_serial" => __system_property_area_serial,
        b"__system_property_read_callback" => __system_property_read_callback,
        b"__system_property_wait" => __system_property_wait,
        _ => return None,
    };
    NonNull::new(function as *mut c_void)
}

/// The system's property store. Bionic maps its memory before `main`, so this type needs no fields.
pub(super) struct Store;

impl Store {
    pub(super) fn open(which: Which<'_>, _: Duration) -> Result<Self, Error> {
        match which {
            Which::Own | Which::User(_) => Ok(Self),
            Which::Path(_) | Which::Existing(_) => {
                Err(Error::new(ErrorKind::Unsupported, &"Android has one property store; open that"))
            }
        }
    }

    pub(super) fn path_for_uid(_: u32) -> PathBuf {
        PATH.into()
    }

    pub(super) fn path(&self) -> &Path {
        Path::new(PATH)
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        Ok(())
    }

    pub(super) fn find(&self, key: &Key) -> Result<Option<Property<'_>>, &'static str> {
        Ok(__system_property_find(key.as_c_str().into()))
    }

    pub(super) fn damaged(&self, fault: &'static str) -> Error {
        Error::new(ErrorKind::Damaged, &fault)
    }

    pub(super) fn read(&self, property: Property<'_>) -> Result<(u32, Value), Error> {
        property.read().map_err(|_| {
            Error::new(
                ErrorKind::Busy,
                &"a property is set faster than it can be read; find the process that sets it",
            )
        })
    }

    /// Waits until this thread has the right to write properties, which only one thread of this process has at a time.
    /// Android has no lock between processes.
    pub(super) fn begin(&self, patience: Duration) -> Result<Turn, Error> {
        static TURN: PerProcess<Mutex<()>> = PerProcess::new();
        let turn = TURN.get_or_make(Mutex::default);
        let start = Instant::now();
        loop {
            match turn.try_lock() {
                Ok(guard) => return Ok(Turn(guard)),
                Err(TryLockError::Poisoned(poisoned)) => return Ok(Turn(poisoned.into_inner())),
                Err(TryLockError::WouldBlock) if start.elapsed() >= patience => {
                    return Err(Error::new(
                        ErrorKind::Busy,
                        &"another thread does not finish setting properties",
                    ));
                }
                Err(TryLockError::WouldBlock) => std::thread::sleep(TURN_POLL),
            }
        }
    }

    pub(super) fn for_each(&self, then: &mut dyn FnMut(&str, &Value, u32)) -> Result<(), Error> {
        /// # Safety
        ///
        /// Only bionic may call this function, as its header describes: with a property and the `cookie` that was
        /// passed to bionic.
        unsafe extern "C" fn collect(property: Property<'static>, cookie: *mut c_void) {
            // SAFETY: the cookie is the vector below, to which there is no other reference during the call.
            let found = unsafe { &mut *cookie.cast::<Vec<Property<'static>>>() };
            found.push(property);
        }
        // The properties are collected first, so that a panic of `then` does not unwind through bionic.
        let mut found: Vec<Property<'static>> = Vec::new();
        // SAFETY: the callback fits the cookie, and neither is used after the call.
        unsafe { __system_property_foreach(collect, (&raw mut found).cast()) };
        let mut busy = false;
        for property in found {
            match property.read_named(|name, serial, value| then(&name.to_string_lossy(), &value, serial)) {
                Some(()) => {}
                None => busy = true,
            }
        }
        if busy {
            return Err(Error::new(ErrorKind::Busy, &"a property was set faster than it could be read"));
        }
        Ok(())
    }

    pub(super) fn area_serial(&self) -> u32 {
        AREA_SERIAL.get().map_or(0, |area_serial| area_serial())
    }

    pub(super) fn area_serial_word(&self) -> Option<&'static AtomicU32> {
        static AREA: OnceRef<Area> = OnceRef::new();
        let area = match AREA.get() {
            Some(area) => area,
            None => AREA.keep(Area::map()?),
        };
        agreed(&area.serial, || self.area_serial())
    }

    /// Wakes threads that sleep on the serial of `property`. A thread that sleeps on the serial in one of bionic's
    /// functions wakes up, too, but sleeps again.
    pub(super) fn wake(&self, property: Option<Property<'_>>) {
        if let Some(word) = self.word_of(property) {
            futex::wake(word);
        }
    }

    fn word_of<'a>(&self, property: Option<Property<'a>>) -> Option<&'a AtomicU32> {
        property.map_or_else(|| self.area_serial_word(), Property::serial_word)
    }

    pub(super) fn wait(
        &self,
        property: Option<Property<'_>>,
        old_serial: u32,
        timeout: Option<Duration>,
        must_stop: impl Fn() -> bool,
    ) -> Result<Option<u32>, Error> {
        if WAIT.get().is_none() && property.is_none() && AREA_SERIAL.get().is_none() {
            return Err(Error::new(
                ErrorKind::Unsupported,
                &"this version of Android can't report a change of any property; wait for a single property",
            ));
        }
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let serial = property.map_or_else(|| self.area_serial(), Property::serial);
            if serial != old_serial {
                return Ok(Some(serial));
            }
            let left =
                deadline.map_or(STOP_POLL, |deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_zero() || must_stop() {
                return Ok(None);
            }
            // In every Android version, bionic's own function sleeps on this word, too. But a thread that sleeps in
            // bionic can't be stopped.
            if let Some(word) = self.word_of(property)
                && futex::wait(word, old_serial, left.min(STOP_POLL)).is_ok()
            {
                continue;
            }
            match WAIT.get() {
                Some(wait) => {
                    let timeout = futex::timespec(left.min(STOP_POLL));
                    let mut serial = old_serial;
                    wait(property, old_serial, &mut serial, &timeout);
                }
                None => std::thread::sleep(left.min(POLL)),
            }
        }
    }
}

/// Returns `word` if its value equals the serial that bionic reports (`reported`). Otherwise returns `None`.
fn agreed(word: &'static AtomicU32, reported: impl Fn() -> u32) -> Option<&'static AtomicU32> {
    // There is more than one attempt, because the word may be changing right now.
    for _ in 0..ATTEMPTS {
        let before = word.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let reported = reported();
        fence(Ordering::Acquire);
        let after = word.load(Ordering::Relaxed);
        if before == after {
            return (before == reported).then_some(word);
        }
    }
    None
}

/// The first fields of a property area: those that this module uses.
#[repr(C)]
struct Area {
    bytes_used: AtomicU32,
    serial: AtomicU32,
    magic: AtomicU32,
    version: AtomicU32,
}

// SAFETY: `Area` consists of atomics.
unsafe impl Shared for Area {}

impl Area {
    const MAGIC: u32 = 0x504f_5250;
    /// The version of a property area's layout, which bionic has used since Android 5.
    const VERSION: u32 = 0xfc6e_d0ab;

    /// Maps the area that holds the serial of the whole store. Bionic has mapped the same area, but does not publish
    /// the address.
    fn map() -> Option<Mapped<Self>> {
        // The second path is for Android 5 and 6, which have a single file.
        [c"/dev/__properties__/properties_serial", c"/dev/__properties__"].into_iter().find_map(|path| {
            let file = file::open(path, libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK).ok()?;
            if file.metadata().ok()?.len() < size_of::<Self>() as u64 {
                return None;
            }
            let area = Mapped::<Self>::of_file(&file, false).ok()?;
            let is_known = area.magic.load(Ordering::Relaxed) == Self::MAGIC
                && area.version.load(Ordering::Relaxed) == Self::VERSION;
            is_known.then_some(area)
        })
    }
}

/// The right to write properties. Only one thread of this process has the right at a time, until the thread drops this
/// value.
pub(super) struct Turn(#[expect(dead_code, reason = "held until it is dropped")] MutexGuard<'static, ()>);

impl Turn {
    /// Whether no other process can set a property while this process has the right to write: false on Android.
    pub(super) const IS_ALONE: bool = false;

    pub(super) fn set(&self, _: &Store, key: &Key, value: &Value) -> Result<(), Error> {
        let result = __system_property_set(key.as_c_str().into(), value.as_c_str().into());
        if result == 0 {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Refused,
            &format_args!(
                "Android did not set the property {} (code {result}): only the shell user, root and parts of the \
                 system may set debug properties; use adb shell setprop, and see adb logcat for the reason",
                key.as_str()
            ),
        ))
    }
}

/// A property of bionic. Bionic does not remove a property while its memory is mapped, that is, until the
/// process ends.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(super) struct Property<'a>(NonNull<c_void>, PhantomData<&'a AtomicU32>);

// SAFETY: any thread may call bionic's functions with a prop_info, which is never freed.
unsafe impl Send for Property<'_> {}
// SAFETY: any thread may call bionic's functions with a prop_info, even while other threads do so.
unsafe impl Sync for Property<'_> {}

impl<'a> Property<'a> {
    pub(super) fn serial(self) -> u32 {
        __system_property_serial(self)
    }

    pub(super) fn serial_word(self) -> Option<&'a AtomicU32> {
        let word = self.0.as_ptr().cast::<u32>();
        if !word.is_aligned() {
            return None;
        }
        // SAFETY: since Android 5 a prop_info begins with its serial, a 32-bit atomic. In any case a prop_info is at
        // least a word long, mapped until the process ends, and written only by another process.
        let word = unsafe { AtomicU32::from_ptr(word) };
        agreed(word, || self.serial())
    }

    pub(super) fn read(self) -> Result<(u32, Value), ReadError> {
        self.read_named(|_, serial, value| (serial, value)).ok_or(ReadError::Busy)
    }

    /// Reads the name, the serial and the value of the property, and passes them to `then`. Returns `None` if the
    /// property changed during each attempt.
    fn read_named<R>(self, then: impl FnOnce(&CStr, u32, Value) -> R) -> Option<R> {
        match READ_CALLBACK.get() {
            Some(read) => Some(self.read_new(read, then)),
            None => self.read_old(then),
        }
    }

    /// Reads the property by the function that bionic has since Android 8: the value may have any length, and is cut to
    /// the size of a [`Value`].
    fn read_new<R>(self, read: ReadCallback, then: impl FnOnce(&CStr, u32, Value) -> R) -> R {
        extern "C" fn receive(received: &mut Received, name: CText<'static>, value: CText<'_>, serial: u32) {
            let (value, _) = Value::until_nul(value.to_c_str().to_bytes_with_nul().iter().copied());
            *received = (name.to_c_str(), serial, value);
        }
        let mut received: Received = (c"", 0, Value::default());
        read(self, receive, &mut received);
        let (name, serial, value) = received;
        then(name, serial, value)
    }

    /// Reads the property by the function for Android 5 to 7: the name has at most 31 bytes.
    fn read_old<R>(self, then: impl FnOnce(&CStr, u32, Value) -> R) -> Option<R> {
        let (mut name, mut value) = ([0u8; 256], [0u8; 256]);
        for _ in 0..ATTEMPTS {
            let before = self.serial();
            __system_property_read(self, &mut name, &mut value);
            if self.serial() == before {
                let (value, _) = Value::until_nul(value.into_iter());
                return Some(then(CStr::from_bytes_until_nul(&name).unwrap_or_default(), before, value));
            }
        }
        None
    }
}
