//! Threads for calls that a producer can make sleep in the kernel: the last close of a descriptor.
//!
//! For a TCP socket with `SO_LINGER`, the close takes as long as the socket's owner chose. The kernel closes descriptors,
//! too: those that do not fit where a message is received and, when a connection is closed, those that were not received.
//! So these threads also receive the descriptors beside a message, and close connections.
//!
//! There are few threads and few places in the queue, and at least one thread from the start.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;

const THREADS: usize = 8;
const WAITING: usize = 64;

type Task = Box<dyn FnOnce() + Send>;

/// The threads, which end once this is dropped and nothing waits any more.
#[derive(Debug)]
pub(super) struct Elsewhere(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Task>,
    threads: usize,
    idle: usize,
    is_over: bool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut state = self.state();
        loop {
            if let Some(task) = state.waiting.pop_front() {
                drop(state);
                task();
                state = self.state();
            } else if state.is_over {
                return;
            } else {
                state.idle += 1;
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
            }
        }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl Elsewhere {
    /// Starts the first thread.
    ///
    /// # Errors
    ///
    /// When there is none.
    pub(super) fn start() -> io::Result<Self> {
        let elsewhere = Self(Arc::default());
        elsewhere.add_thread(&mut elsewhere.0.state())?;
        Ok(elsewhere)
    }

    fn add_thread(&self, state: &mut State) -> io::Result<()> {
        let shared = Arc::clone(&self.0);
        Builder::new().name("atrace-close".to_owned()).spawn(move || shared.work())?;
        state.threads += 1;
        Ok(())
    }

    /// Whether something more can wait.
    pub(super) fn has_room(&self) -> bool {
        self.0.state().waiting.len() < WAITING
    }

    /// How much waits or is being done.
    pub(super) fn len(&self) -> usize {
        let state = self.0.state();
        state.waiting.len() + state.threads - state.idle
    }

    /// Has a thread do it soon.
    pub(super) fn run(&self, task: impl FnOnce() + Send + 'static) {
        let mut state = self.0.state();
        state.waiting.push_back(Box::new(task));
        if state.waiting.len() > state.idle && state.threads < THREADS {
            // Without one more, those that there are do it later.
            let _ = self.add_thread(&mut state);
        }
        self.0.changed.notify_one();
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        self.0.state().is_over = true;
        self.0.changed.notify_all();
    }
}
