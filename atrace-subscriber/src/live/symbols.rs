//! Which functions return addresses are in.
//!
//! Looking one up takes tens of microseconds, and the first of a binary reads its debug information. So each
//! address is looked up once, and each whole backtrace is put together once, for all dumps; as many are
//! kept as a large program has, then everything is forgotten and begins anew.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use super::rules::Rules;

/// Addresses that are remembered.
const ADDRESSES: usize = 1 << 15;
/// Backtraces that are remembered.
const BACKTRACES: usize = 1 << 12;

/// A function that was called, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    address: usize,
    function: Option<Box<str>>,
    file: Option<Box<str>>,
    line: Option<u32>,
    column: Option<u32>,
}

impl Frame {
    /// Returns the return address: behind the call. Functions that were inlined have that of the one they were
    /// inlined into.
    pub fn address(&self) -> usize {
        self.address
    }

    /// Returns the function's path, demangled; None where the binary has no symbol for it.
    pub fn function(&self) -> Option<&str> {
        self.function.as_deref()
    }

    /// Returns the source file, as the compiler was told; None where there is no debug information.
    pub fn file(&self) -> Option<&str> {
        self.file.as_deref()
    }

    /// Returns the line of the call, from 1.
    pub fn line(&self) -> Option<u32> {
        self.line
    }

    /// Returns the column of the call, from 1.
    pub fn column(&self) -> Option<u32> {
        self.column
    }
}

impl fmt::Display for Frame {
    /// Writes `function (file:line:column)`, as much of it as is known, or else the address.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.function() {
            Some(function) => f.write_str(function)?,
            None => write!(f, "{:#x}", self.address)?,
        }
        let Some(file) = self.file() else { return Ok(()) };
        write!(f, " ({file}")?;
        for number in [self.line, self.column].into_iter().flatten() {
            write!(f, ":{number}")?;
        }
        f.write_str(")")
    }
}

/// A backtrace with symbols, as it is shared.
pub(super) type Frames = Arc<[Arc<Frame>]>;

/// Looks an address up: the functions inlined there, innermost first, and the one that they are in.
fn look_up(address: usize) -> Vec<Arc<Frame>> {
    let mut frames = Vec::new();
    backtrace::resolve(std::ptr::without_provenance_mut(address), |symbol| {
        frames.push(Arc::new(Frame {
            address,
            // Without the hash of the old names.
            function: symbol.name().map(|name| format!("{name:#}").into()),
            file: symbol.filename().map(|file| file.display().to_string().into()),
            line: symbol.lineno().filter(|line| *line != 0),
            column: symbol.colno().filter(|column| *column != 0),
        }));
    });
    if frames.is_empty() {
        frames.push(Arc::new(Frame { address, function: None, file: None, line: None, column: None }));
    }
    frames
}

/// Looks a backtrace up without remembering anything.
pub(super) fn look_up_afresh(addresses: &[usize], rules: &Rules) -> Frames {
    without_hidden(addresses.iter().flat_map(|address| look_up(*address)).collect(), rules)
}

/// Leaves out what the rules hide; and what has no name, if there is anything that has.
fn without_hidden(mut frames: Vec<Arc<Frame>>, rules: &Rules) -> Frames {
    if rules.hide_anything() && frames.iter().any(|frame| frame.function().is_some()) {
        frames.retain(|frame| frame.function().is_some_and(|function| !rules.hide(function, frame.file())));
    }
    frames.into()
}

struct Known {
    addresses: Box<[usize]>,
    rules: u32,
    frames: Frames,
}

#[derive(Default)]
struct Memory {
    by_address: HashMap<usize, Box<[Arc<Frame>]>>,
    /// By the hash of what they are known by; where two have the same, the last is.
    backtraces: HashMap<u64, Known>,
}

static MEMORY: LazyLock<Mutex<Memory>> = LazyLock::new(Mutex::default);
static HASH: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// None where another thread holds it for longer than it reasonably can: in a forked child it may not exist.
fn memory() -> Option<MutexGuard<'static, Memory>> {
    for _ in 0..100 {
        match MEMORY.try_lock() {
            Ok(memory) => return Some(memory),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_micros(100)),
        }
    }
    None
}

/// The frames of a backtrace, of those that the rules show.
pub(super) fn frames(addresses: &[usize], rules: &Rules) -> Frames {
    let hash = HASH.hash_one((addresses, rules.number));
    if let Some(memory) = memory()
        && let Some(known) = memory.backtraces.get(&hash)
        && *known.addresses == *addresses
        && known.rules == rules.number
    {
        return Arc::clone(&known.frames);
    }
    let mut all = Vec::new();
    for &address in addresses {
        let known = memory().and_then(|memory| Some(memory.by_address.get(&address)?.to_vec()));
        let known = known.unwrap_or_else(|| {
            let frames = look_up(address);
            if let Some(mut memory) = memory() {
                if memory.by_address.len() >= ADDRESSES {
                    memory.by_address.clear();
                }
                memory.by_address.insert(address, frames.clone().into());
            }
            frames
        });
        all.extend(known);
    }
    let frames = without_hidden(all, rules);
    if let Some(mut memory) = memory() {
        if memory.backtraces.len() >= BACKTRACES {
            memory.backtraces.clear();
        }
        let known = Known { addresses: addresses.into(), rules: rules.number, frames: Arc::clone(&frames) };
        memory.backtraces.insert(hash, known);
    }
    frames
}
