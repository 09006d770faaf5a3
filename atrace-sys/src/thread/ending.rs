//! How a program is told that a thread ends: by a key of the C library.
//!
//! glibc has room for 32 keys in each thread, and allocates for more. With a later key a thread's end is not noticed.

use std::ffi::c_void;
use std::io;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::OnceRef;
use crate::system::c;

/// The key and 1; 0: none.
static KEY: AtomicU32 = AtomicU32::new(0);
static AT_END: OnceRef<fn(usize)> = OnceRef::new();

extern "C" fn run(place: *mut c_void) {
    if let Some(at_end) = AT_END.get() {
        at_end(place.addr().wrapping_sub(1));
    }
}

/// Makes the key; `at_end` is called with its number by each thread that ends and has [noted](note) one.
///
/// # Errors
///
/// When there are no more keys.
pub fn prepare(at_end: &'static fn(usize)) -> io::Result<()> {
    let _ = AT_END.set(at_end); // Once.
    if KEY.load(Ordering::Acquire) != 0 {
        return Ok(());
    }
    let mut key: libc::pthread_key_t = 0;
    let code = c::pthread_key_create(&mut key, Some(run));
    if code != 0 {
        return Err(io::Error::from_raw_os_error(code));
    }
    if KEY.compare_exchange(0, key as u32 + 1, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        // SAFETY: made above, and no thread has used it.
        unsafe { libc::pthread_key_delete(key) };
    }
    Ok(())
}

/// As many keys have room in each thread.
const WITHOUT_ALLOCATION: u32 = if cfg!(target_env = "gnu") { 32 } else { u32::MAX };

/// Has the calling thread's end noticed, with this number; returns false where that can't be.
pub fn note(place: usize) -> bool {
    let key = KEY.load(Ordering::Acquire).checked_sub(1).filter(|key| *key < WITHOUT_ALLOCATION);
    let Some(key) = key else { return false };
    // SAFETY: a key of ours; the value is not followed, but must not be null.
    unsafe { libc::pthread_setspecific(key as libc::pthread_key_t, ptr::without_provenance(place + 1)) == 0 }
}
