//! Calls a function at the end of each thread that has called [`note`], by the destructor of a thread key.
//!
//! glibc has room for the values of 32 keys in each thread, and allocates memory for the values of further keys. If the
//! key of this module is one of these further keys, the end of a thread is not noticed, because code that writes an
//! event must not allocate.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::OnceRef;
use crate::system::{Errno, Result, c, stay_loaded};

/// The number of the thread key plus 1, or 0 if there is no key.
static KEY: AtomicU32 = AtomicU32::new(0);
static AT_END: OnceRef<fn(usize)> = OnceRef::new();

extern "C" fn run(place: *mut c_void) {
    if let Some(at_end) = AT_END.get() {
        at_end(place.addr().wrapping_sub(1));
    }
}

/// Creates the thread key. When a thread that has called [`note`] ends, the thread calls `at_end` with the number that
/// it has passed to [`note`]. If the caller is in a shared library, the library stays loaded.
///
/// # Errors
///
/// Returns an error if the system has no more thread keys.
pub fn prepare(at_end: &'static fn(usize)) -> Result<()> {
    let _ = AT_END.set(at_end); // Only the first call of `set` has an effect.
    if KEY.load(Ordering::Acquire) != 0 {
        return Ok(());
    }
    stay_loaded();
    let mut key: libc::pthread_key_t = 0;
    let code = c::pthread_key_create(&mut key, Some(run));
    if code != 0 {
        return Err(Errno(code));
    }
    if KEY.compare_exchange(0, key as u32 + 1, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        // SAFETY: the key was made above, and no thread uses it.
        unsafe { libc::pthread_key_delete(key) };
    }
    Ok(())
}

/// The number of thread keys whose values each thread can store without an allocation.
const WITHOUT_ALLOCATION: u32 = if cfg!(target_env = "gnu") { 32 } else { u32::MAX };

/// Registers the calling thread: when it ends, the function that was passed to [`prepare`] is called with the number
/// `place`. Returns false if the thread can't be registered.
pub fn note(place: usize) -> bool {
    let key = KEY.load(Ordering::Acquire).checked_sub(1).filter(|key| *key < WITHOUT_ALLOCATION);
    let Some(key) = key else { return false };
    // SAFETY: this module has created the key. The value is never dereferenced. It is not null, because the destructor
    // of a key is not called for a null value.
    unsafe { libc::pthread_setspecific(key as libc::pthread_key_t, ptr::without_provenance(place + 1)) == 0 }
}
