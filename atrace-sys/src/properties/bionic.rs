//! Android's own properties, through bionic.
//!
//! What every bionic since Android 5 exports is linked. The rest is looked up at run time and replaced where
//! it is missing: before Android 6 (`__system_property_area_serial`) or 8 (`__system_property_read_callback`,
//! `__system_property_wait`). In a statically linked executable nothing can be looked up, but its bionic is
//! the NDK's and has them all.

use std::ffi::{CStr, c_int, c_void};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use super::ReadError;
use super::error::{Error, ErrorKind};
use super::text::{Key, Value};
use crate::c_text::CText;
use crate::fork::PerProcess;
use crate::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering, fence};
use crate::system::{Mapped, Shared, file, futex};
use crate::word::OnceRef;

/// Where the system keeps its properties.
const PATH: &str = "/dev/__properties__";

/// How often a sleeping thread looks whether it is to stop.
const STOP_POLL: Duration = Duration::from_secs(30);

/// How often to look where bionic can't wait.
const POLL: Duration = Duration::from_millis(50);

/// How often to look whether it is this thread's turn to write.
const TURN_POLL: Duration = Duration::from_millis(1);

/// How often to attempt what a writer can disturb.
const ATTEMPTS: usize = 64;

unsafe extern "C" {
    // SAFETY: the signatures, and those of the types below, are those of bionic's sys/_system_properties.h and
    // sys/system_properties.h. Each may be called with any property of bionic's, and texts. The buffers have more room than
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
/// The name, the serial and the value.
type Received = (&'static CStr, u32, Value);
/// Takes the name, the value and the serial. The name lives as long as the property.
type Receive = extern "C" fn(&mut Received, CText<'static>, CText<'_>, u32);
type ReadCallback = extern "C" fn(Property<'_>, Receive, &mut Received);
/// Takes the old serial and a place for the new one. No property: any.
type WaitFor = extern "C" fn(Option<Property<'_>>, u32, &mut u32, &libc::timespec) -> bool;

static AREA_SERIAL: Symbol<AreaSerial> = Symbol::new(c"__system_property_area_serial");
static READ_CALLBACK: Symbol<ReadCallback> = Symbol::new(c"__system_property_read_callback");
static WAIT: Symbol<WaitFor> = Symbol::new(c"__system_property_wait");

/// A function of bionic that may be missing, looked up once: one of the three above, which have these types.
struct Symbol<F> {
    name: &'static CStr,
    /// Null until looked up; [`Symbol::missing`] when it is not there.
    address: AtomicPtr<c_void>,
    _type: PhantomData<F>,
}

impl<F: Copy> Symbol<F> {
    const fn new(name: &'static CStr) -> Self {
        Self { name, address: AtomicPtr::new(std::ptr::null_mut()), _type: PhantomData }
    }

    /// An address at which no function is.
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
        // SAFETY: bionic's function of this name has this type; a data pointer and a function pointer are alike here.
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
        // SAFETY: their addresses are taken, and each is called as what bionic's header says only.
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

/// The system's store: bionic maps it before `main`, so there is nothing to keep.
pub(super) struct Store;

impl Store {
    pub(super) fn open_own(_: Duration) -> Result<Self, Error> {
        Ok(Self)
    }

    pub(super) fn open_path(_: &Path) -> Result<Self, Error> {
        Err(Error::new(ErrorKind::Unsupported, "Android has one property store; open that"))
    }

    pub(super) fn open_existing(path: &Path) -> Result<Self, Error> {
        Self::open_path(path)
    }

    pub(super) fn open_uid(_: u32) -> Result<Self, Error> {
        Ok(Self)
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

    pub(super) fn find(&self, key: &Key) -> Result<Option<Property<'_>>, Error> {
        Ok(__system_property_find(key.as_c_str().into()))
    }

    pub(super) fn read(&self, property: Property<'_>) -> Result<(u32, Value), Error> {
        property.read().map_err(|_| {
            Error::new(
                ErrorKind::Busy,
                "a property is set faster than it can be read; find out who does that",
            )
        })
    }

    /// Has the threads of this process take turns. Android has nothing that processes could do that with.
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
                        "another thread does not finish setting properties",
                    ));
                }
                Err(TryLockError::WouldBlock) => std::thread::sleep(TURN_POLL),
            }
        }
    }

    pub(super) fn for_each(&self, then: &mut dyn FnMut(&str, &Value, u32)) -> Result<(), Error> {
        /// # Safety
        /// Called by bionic, as its header says, with the cookie that is given below.
        unsafe extern "C" fn collect(property: Property<'static>, cookie: *mut c_void) {
            // SAFETY: the cookie is the vector below, which is borrowed by nothing else during the call.
            let found = unsafe { &mut *cookie.cast::<Vec<Property<'static>>>() };
            found.push(property);
        }
        // Collected first, so that a panic of `then` does not unwind through bionic.
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
            return Err(Error::new(ErrorKind::Busy, "a property was set faster than it could be read"));
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

    /// Wakes those who sleep here, and for nothing those who sleep in bionic.
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
        stop: &AtomicBool,
    ) -> Result<Option<u32>, Error> {
        if WAIT.get().is_none() && property.is_none() && AREA_SERIAL.get().is_none() {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "this Android can't tell that any property changed; wait for a single one",
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
            if left.is_zero() || stop.load(Ordering::Acquire) {
                return Ok(None);
            }
            // The word is what bionic sleeps on, in every version; but a thread that sleeps in bionic can't
            // be woken to stop.
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

/// Returns the word if it is what bionic's function tells.
fn agreed(word: &'static AtomicU32, told: impl Fn() -> u32) -> Option<&'static AtomicU32> {
    // More than one attempt, as it may just be changing.
    for _ in 0..ATTEMPTS {
        let before = word.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let told = told();
        fence(Ordering::Acquire);
        let after = word.load(Ordering::Relaxed);
        if before == after {
            return (before == told).then_some(word);
        }
    }
    None
}

/// What of an area is looked at: its start.
#[repr(C)]
struct Area {
    bytes_used: AtomicU32,
    serial: AtomicU32,
    magic: AtomicU32,
    version: AtomicU32,
}

// SAFETY: atomics.
unsafe impl Shared for Area {}

impl Area {
    const MAGIC: u32 = 0x504f_5250;
    /// Of the layout that bionic has used since Android 5.
    const VERSION: u32 = 0xfc6e_d0ab;

    /// Maps the area whose serial is that of the whole store: bionic has it mapped, too, but tells nobody where.
    fn map() -> Option<Mapped<Self>> {
        // The second: Android 5 and 6, where all is in one file.
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

/// The right to write among the threads of this process.
pub(super) struct Turn(#[expect(dead_code, reason = "held, and dropped")] MutexGuard<'static, ()>);

impl Turn {
    /// Other processes may come between.
    pub(super) const IS_ALONE: bool = false;

    pub(super) fn set(&self, _: &Store, key: &Key, value: &Value) -> Result<(), Error> {
        let result = __system_property_set(key.as_c_str().into(), value.as_c_str().into());
        if result == 0 {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Refused,
            format!(
                "Android did not set the property {} (code {result}): only the shell user, root and parts of the \
                 system may set debug properties; use adb shell setprop, and see adb logcat for the reason",
                key.as_str()
            ),
        ))
    }
}

/// A property of bionic's, which it never removes while its memory is mapped: until the process ends.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(super) struct Property<'a>(NonNull<c_void>, PhantomData<&'a AtomicU32>);

// SAFETY: bionic's functions on a prop_info may be called from any thread, and it is never freed.
unsafe impl Send for Property<'_> {}
// SAFETY: as above.
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
        // SAFETY: a prop_info has begun with its serial, a 32-bit atomic, since Android 5; it is at least a
        // word long in any case, mapped until the process ends, and written only by another process.
        let word = unsafe { AtomicU32::from_ptr(word) };
        agreed(word, || self.serial())
    }

    pub(super) fn read(self) -> Result<(u32, Value), ReadError> {
        self.read_named(|_, serial, value| (serial, value)).ok_or(ReadError::Busy)
    }

    /// Reads name, serial and value and passes them on; `None` if they changed at each attempt.
    fn read_named<R>(self, then: impl FnOnce(&CStr, u32, Value) -> R) -> Option<R> {
        match READ_CALLBACK.get() {
            Some(read) => Some(self.read_new(read, then)),
            None => self.read_old(then),
        }
    }

    /// Reads as Android 8 and later do: values of any length, cut to what a [`Value`] holds.
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

    /// Reads as Android 5 to 7 do, where names have up to 31 bytes.
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
