//! The threads that are inside spans, in the form in which a dump shows them.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::sync::Arc;

use atrace_sys::fork::{Generation, generation};

/// A thread that is inside a span.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    number: Option<u32>,
    name: Option<Box<str>>,
}

impl Thread {
    /// Returns the kernel's thread id, which traces and `/proc/self/task` show. Returns `None` on systems other than
    /// Linux and Android.
    pub fn number(&self) -> Option<u32> {
        self.number
    }

    /// Returns the name that the thread had when it entered a span for the first time.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    fn new() -> Arc<Self> {
        let name = std::thread::current().name().map(Into::into);
        Arc::new(Self { number: atrace_sys::thread::number(), name })
    }
}

impl fmt::Display for Thread {
    /// Writes `name (number)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name().unwrap_or("a thread"))?;
        match self.number {
            Some(number) => write!(f, " ({number})"),
            None => Ok(()),
        }
    }
}

thread_local! {
    /// The calling thread, and the generation (a number that changes at each fork) of the process that has stored the
    /// thread here. In a forked child, the thread has another id, so it is stored again.
    static THIS: RefCell<Option<(Generation, Arc<Thread>)>> = const { RefCell::new(None) };
    static BUSY: Cell<bool> = const { Cell::new(false) };
}

/// Returns the calling thread. If the thread is ending and its thread-locals are already destroyed, each call reads the
/// thread's name again.
pub(super) fn this() -> Arc<Thread> {
    let generation = generation();
    let known = THIS.try_with(|this| {
        let mut this = this.try_borrow_mut().ok()?;
        match &mut *this {
            Some((of, thread)) if *of == generation => Some(Arc::clone(thread)),
            other => {
                let thread = Thread::new();
                *other = Some((generation, Arc::clone(&thread)));
                Some(thread)
            }
        }
    });
    known.ok().flatten().unwrap_or_else(Thread::new)
}

/// A guard that exists while the calling thread uses the table. Code that interrupts the thread during this time (a
/// signal handler, or an allocator that traces) must not use the table, because it would wait for a lock that its own
/// thread holds.
pub(super) struct Busy(());

impl Busy {
    pub(super) fn new() -> Option<Self> {
        // If the thread is busy already, not even a temporary guard may be made, because its drop would clear the flag.
        (!BUSY.replace(true)).then(|| Self(()))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        BUSY.set(false);
    }
}
