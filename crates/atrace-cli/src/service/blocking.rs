//! A small thread pool for calls that a producer can make block in the kernel.
//!
//! # The problem
//!
//! The call is the last `close` of a descriptor. Closing a TCP socket with `SO_LINGER` takes as long as the socket's
//! owner chose, and a producer may send such a socket. It may do so even where none is expected: the kernel closes
//! descriptors that do not fit into the buffer of `recvmsg`, and, when a connection is closed, those that were never
//! received.
//!
//! # How it works
//!
//! The pool's threads make all such calls: they receive messages that carry descriptors, and they close connections
//! and the descriptors that were sent. The service's own thread never does.
//!
//! The numbers of threads and of waiting tasks are limited. The first thread is started with the pool, so a task is
//! always done at some time. Callers ask [`has_room`](Blocking::has_room) before they add a task that a producer can
//! cause.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;

const THREADS: usize = 8;
const WAITING: usize = 64;

type Task = Box<dyn FnOnce() + Send>;

/// The pool. Its threads end after it was dropped and the last task is done.
#[derive(Debug)]
pub(super) struct Blocking(Arc<Shared>);

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

impl Blocking {
    /// Starts the first thread.
    ///
    /// # Errors
    ///
    /// Fails if no thread can be started.
    pub(super) fn start() -> io::Result<Self> {
        let blocking = Self(Arc::default());
        blocking.add_thread(&mut blocking.0.state())?;
        Ok(blocking)
    }

    fn add_thread(&self, state: &mut State) -> io::Result<()> {
        let shared = Arc::clone(&self.0);
        Builder::new().name("atrace-close".to_owned()).spawn(move || shared.work())?;
        state.threads += 1;
        Ok(())
    }

    /// Tells whether the queue has room for a task.
    pub(super) fn has_room(&self) -> bool {
        self.0.state().waiting.len() < WAITING
    }

    /// Returns the number of tasks that wait or run.
    pub(super) fn len(&self) -> usize {
        let state = self.0.state();
        state.waiting.len() + state.threads - state.idle
    }

    /// Adds a task to the queue. The limit of the queue is not checked.
    pub(super) fn run(&self, task: impl FnOnce() + Send + 'static) {
        let mut state = self.0.state();
        state.waiting.push_back(Box::new(task));
        if state.waiting.len() > state.idle && state.threads < THREADS {
            // If no further thread can be started, the existing threads do the task later.
            let _ = self.add_thread(&mut state);
        }
        self.0.changed.notify_one();
    }
}

impl Drop for Blocking {
    fn drop(&mut self) {
        self.0.state().is_over = true;
        self.0.changed.notify_all();
    }
}
