//! Finds the functions to which return addresses belong.
//!
//! A lookup takes long, and the first lookup in a binary reads the binary's debug information. So the functions of each
//! address, and each whole backtrace, are cached for all dumps. The caches have room for a large program. A cache that
//! is full is cleared.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use atrace_sys::fork::{PerProcess, generation};
use rustc_hash::FxHashMap;

use super::rules::Rules;

/// The maximum number of cached addresses.
const ADDRESSES: usize = 1 << 15;
/// The maximum number of cached backtraces.
const BACKTRACES: usize = 1 << 12;

/// A function in a backtrace, and the source position of the call that the function was making.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    address: usize,
    function: Option<Box<str>>,
    location: Option<(Box<str>, u32, u32)>,
}

impl Frame {
    /// Returns the return address, which follows the call. An inlined function has the same return address as the
    /// function into which it was inlined.
    pub fn address(&self) -> usize {
        self.address
    }

    /// Returns the demangled path of the function, or `None` if the binary has no symbol for it.
    pub fn function(&self) -> Option<&str> {
        self.function.as_deref()
    }

    /// Returns the source position of the call: the path of the file (usually an absolute path), the line and the
    /// column. Lines and columns count from 1; 0 means that the line or the column is unknown. Returns `None` if there
    /// is no debug information.
    pub fn location(&self) -> Option<(&str, u32, u32)> {
        self.location.as_ref().map(|(file, line, column)| (&**file, *line, *column))
    }
}

impl fmt::Display for Frame {
    /// Formats `function (file:line:column)`, or the parts of it that are known. If the function's name is unknown, the
    /// return address is written instead.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.function() {
            Some(function) => f.write_str(function)?,
            None => write!(f, "{:#x}", self.address)?,
        }
        let Some((file, line, column)) = self.location() else { return Ok(()) };
        write!(f, " ({file}")?;
        for number in [line, column].into_iter().filter(|number| *number != 0) {
            write!(f, ":{number}")?;
        }
        f.write_str(")")
    }
}

/// A backtrace whose functions were looked up.
pub(super) type Frames = Arc<[Arc<Frame>]>;

/// The generation of a process (a number that changes at each fork), and the number of its threads that are looking up
/// symbols. Each of these threads holds a lock of the crate `backtrace`, or waits for this lock.
///
/// In a forked child, this value may show that threads of the parent were looking up symbols during the fork. One of
/// these threads may have held the lock. The thread does not exist in the child, so the lock is [`LOST`] there.
static LOOKING: AtomicU64 = AtomicU64::new(0);

const THREADS: u64 = 0xffff;
/// A value in place of the number of threads in [`LOOKING`]. It means that the lock of the crate `backtrace` will never
/// be released in this process.
const LOST: u64 = THREADS;

/// Returns the generation of this process, shifted into the bits of [`LOOKING`] above the number of threads.
fn process() -> u64 {
    generation().number() << THREADS.count_ones()
}

struct Looking(u64);

impl Looking {
    /// Adds the calling thread to the number of threads that are looking up symbols. Returns `None` if the lock of the
    /// crate `backtrace` will never be released in this process.
    fn new() -> Option<Self> {
        let process = process();
        let more = |looking: u64| match looking & THREADS {
            LOST => None,
            threads if looking - threads == process => Some(looking + 1),
            0 => Some(process + 1),
            _ => Some(process + LOST),
        };
        let before = LOOKING.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        (before & THREADS == 0 || before & !THREADS == process).then_some(Self(process))
    }
}

impl Drop for Looking {
    fn drop(&mut self) {
        let less = |looking: u64| {
            let is_counted = looking & !THREADS == self.0 && ![0, LOST].contains(&(looking & THREADS));
            is_counted.then(|| looking - 1)
        };
        let _ = LOOKING.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
}

/// Looks up an address. Returns the functions that are inlined at this address, the innermost first, and then the
/// function that contains them. If no function is found, returns one frame without a name.
fn look_up(address: usize) -> Vec<Arc<Frame>> {
    let mut frames = Vec::new();
    let symbol = |symbol: &backtrace::Symbol| {
        frames.push(Arc::new(Frame {
            address,
            // `#` omits the hash of the legacy mangling.
            function: symbol.name().map(|name| format!("{name:#}").into()),
            location: symbol.filename().map(|file| {
                let number = Option::unwrap_or_default;
                (file.display().to_string().into(), number(symbol.lineno()), number(symbol.colno()))
            }),
        }));
    };
    // Under miri, an address without provenance identifies no function.
    if !cfg!(miri)
        && let Some(_looking) = Looking::new()
    {
        backtrace::resolve(std::ptr::without_provenance_mut(address), symbol);
    }
    if frames.is_empty() {
        frames.push(Arc::new(Frame { address, function: None, location: None }));
    }
    frames
}

/// Looks up the functions of a backtrace without using the caches.
pub(super) fn look_up_afresh(addresses: &[usize], rules: &Rules) -> Frames {
    without_hidden(addresses.iter().flat_map(|address| look_up(*address)).collect(), rules)
}

/// Leaves out the frames that the rules hide and the frames without a name. If the rules hide no functions, or if no
/// frame has a name, all frames stay.
fn without_hidden(mut frames: Vec<Arc<Frame>>, rules: &Rules) -> Frames {
    if rules.hide_anything() && frames.iter().any(|frame| frame.function().is_some()) {
        frames.retain(|frame| {
            frame
                .function()
                .is_some_and(|function| !rules.hide(function, frame.location().map(|(file, ..)| file)))
        });
    }
    frames.into()
}

/// The cache of functions and backtraces.
#[derive(Default)]
struct Cache {
    by_address: FxHashMap<usize, Box<[Arc<Frame>]>>,
    /// The backtraces by their addresses. Each backtrace is stored with the number of the rules that were applied to
    /// it.
    by_backtrace: FxHashMap<Box<[usize]>, (u32, Frames)>,
}

/// The cache of this process. A forked child begins with an empty cache, because a thread of its parent may hold the
/// lock of the parent's cache.
static CACHE: PerProcess<Mutex<Cache>> = PerProcess::new();

/// Whether the last attempt to lock the cache failed.
static STUCK: AtomicBool = AtomicBool::new(false);

/// Locks the cache. Returns `None` after 100 failed attempts, because the caller may be a signal handler that has
/// interrupted the thread that holds the lock. After such a failure, each call makes only one attempt, until an attempt
/// succeeds.
fn cache() -> Option<MutexGuard<'static, Cache>> {
    let mut tries = if STUCK.load(Ordering::Relaxed) { 1 } else { 100 };
    loop {
        let cache = match CACHE.get_or_make(Mutex::default).try_lock() {
            Ok(cache) => cache,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                tries -= 1;
                if tries == 0 {
                    STUCK.store(true, Ordering::Relaxed);
                    return None;
                }
                std::thread::sleep(Duration::from_micros(100));
                continue;
            }
        };
        STUCK.store(false, Ordering::Relaxed);
        return Some(cache);
    }
}

/// Returns the frames of a backtrace, without the frames that the rules hide.
pub(super) fn frames(addresses: &[usize], rules: &Rules) -> Frames {
    let known = cache().and_then(|cache| cache.by_backtrace.get(addresses).cloned());
    if let Some((_, frames)) = known.filter(|(number, _)| *number == rules.number) {
        return frames;
    }
    let mut all = Vec::new();
    for &address in addresses {
        let known = cache().and_then(|cache| Some(cache.by_address.get(&address)?.to_vec()));
        let known = known.unwrap_or_else(|| {
            let frames = look_up(address);
            if let Some(mut cache) = cache() {
                if cache.by_address.len() >= ADDRESSES {
                    cache.by_address.clear();
                }
                cache.by_address.insert(address, frames.clone().into());
            }
            frames
        });
        all.extend(known);
    }
    let frames = without_hidden(all, rules);
    if let Some(mut cache) = cache() {
        if cache.by_backtrace.len() >= BACKTRACES {
            cache.by_backtrace.clear();
        }
        cache.by_backtrace.insert(addresses.into(), (rules.number, Arc::clone(&frames)));
    }
    frames
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// An address at which there is no function.
    const NOWHERE: usize = 0x10;

    fn plain() -> Rules {
        Rules::new(false, Vec::new())
    }

    fn named(function: Option<&str>) -> Arc<Frame> {
        let function = function.map(Into::into);
        Arc::new(Frame { address: NOWHERE, function, location: None })
    }

    fn names(frames: &Frames) -> Vec<Option<&str>> {
        frames.iter().map(|frame| frame.function()).collect()
    }

    #[test]
    fn what_has_no_name_is_hidden_where_anything_has_one() {
        let sanitised = Rules::new(true, Vec::new());
        let of = |names: &[Option<&str>]| names.iter().map(|name| named(*name)).collect::<Vec<_>>();
        let some = [None, Some("app::run"), None, Some("std::rt::lang_start"), Some("app::main")];
        assert_eq!(names(&without_hidden(of(&some), &sanitised)), [Some("app::run"), Some("app::main")]);
        assert_eq!(names(&without_hidden(of(&some), &plain())), some);
        assert_eq!(names(&without_hidden(of(&[None, None]), &sanitised)), [None, None]);
        assert_eq!(names(&without_hidden(of(&[None, Some("std::f")]), &sanitised)), [None; 0]);
    }

    #[test]
    fn a_frame_says_what_is_known_of_it() {
        let frame = |function: Option<&str>, line_and_column: Option<(u32, u32)>| {
            let function = function.map(Into::into);
            let location = line_and_column.map(|(line, column)| ("a.rs".into(), line, column));
            Frame { address: 0x7f01, function, location }.to_string()
        };
        assert_eq!(frame(Some("a::f"), Some((7, 3))), "a::f (a.rs:7:3)");
        assert_eq!(frame(Some("a::f"), Some((7, 0))), "a::f (a.rs:7)");
        assert_eq!(frame(Some("a::f"), Some((0, 0))), "a::f (a.rs)");
        assert_eq!(frame(Some("a::f"), None), "a::f");
        assert_eq!(frame(None, None), "0x7f01");
        assert_eq!(frame(None, Some((7, 0))), "0x7f01 (a.rs:7)");
    }

    #[test]
    fn an_address_that_is_in_no_function_is_a_frame_too() {
        for frames in [frames(&[NOWHERE], &plain()), look_up_afresh(&[NOWHERE], &plain())] {
            let [frame] = &*frames else { panic!("{frames:?}") };
            assert_eq!((frame.address(), frame.function(), frame.location()), (NOWHERE, None, None));
        }
    }

    /// Checks that the size of the cache is bounded, and that no thread waits for its lock. This is a single
    /// test, because the cache is shared.
    #[test]
    fn the_cache_is_bounded_and_not_waited_for() {
        let sizes = || {
            let cache = cache().expect("nobody holds it");
            (cache.by_address.len(), cache.by_backtrace.len())
        };
        let rules = plain();
        let once = frames(&[NOWHERE, NOWHERE + 1], &rules);
        assert!(Arc::ptr_eq(&once, &frames(&[NOWHERE, NOWHERE + 1], &rules)));
        assert!(!Arc::ptr_eq(&once, &frames(&[NOWHERE, NOWHERE + 1], &plain())), "of other rules");
        assert!(!Arc::ptr_eq(&once, &frames(&[NOWHERE + 1, NOWHERE], &rules)));
        // Looks up more backtraces and more addresses than the cache may hold, except under miri.
        let (several, each) = if cfg!(miri) { (3, 2) } else { (BACKTRACES + 50, ADDRESSES / BACKTRACES + 1) };
        let mut most = (0, 0);
        for at in 0..several {
            let addresses: Vec<usize> = (0..each).map(|n| NOWHERE + 2 + at * each + n).collect();
            assert_eq!(frames(&addresses, &rules).len(), each);
            let (addresses, backtraces) = sizes();
            assert!(addresses <= ADDRESSES && backtraces <= BACKTRACES, "{addresses} {backtraces}");
            most = (most.0.max(addresses), most.1.max(backtraces));
        }
        assert!(cfg!(miri) || most.0 + each > ADDRESSES && most.1 == BACKTRACES, "{most:?}");

        let held = cache().expect("nobody holds it");
        let (send, receive) = mpsc::channel();
        let times = if cfg!(miri) { 20 } else { 200 };
        let looks = std::thread::spawn(move || {
            for at in 0..times {
                send.send(frames(&[NOWHERE + at, NOWHERE], &plain()).len()).expect("somebody waits");
            }
        });
        for _ in 0..times {
            let found = receive.recv_timeout(Duration::from_secs(30));
            assert_eq!(found, Ok(2), "it waits for whoever has the cache");
        }
        assert!(STUCK.load(Ordering::Relaxed), "it is asked for, for long, each time");
        drop(held);
        looks.join().expect("it ends");
        assert_eq!(frames(&[NOWHERE], &rules).len(), 1);
        assert!(!STUCK.load(Ordering::Relaxed));
    }
}
