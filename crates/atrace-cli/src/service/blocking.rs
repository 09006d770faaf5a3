//! A small thread pool for calls that may block in the kernel because of a producer.
//!
//! # The problem
//!
//! The last `close` of an open file or socket may block in the kernel. For example, closing a TCP socket with
//! `SO_LINGER` takes as long as the socket's owner chose, and a producer may send such a socket. The service can't
//! avoid this by receiving no descriptors: the kernel itself closes descriptors that do not fit into the buffer of
//! `recvmsg`, and closes unreceived descriptors together with their connection.
//!
//! # How it works
//!
//! Only the pool's threads make calls that may block in this way: they receive messages that carry descriptors, close
//! unusable descriptors, and close connections. The service's own thread makes no such calls.
//!
//! The numbers of threads and of waiting tasks are limited. The first thread is started together with the pool, so
//! tasks are done even if no further thread can be started. Before the caller adds a task that a producer has caused,
//! the caller must check [`has_room`](Blocking::has_room), except at the end of the service.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;

const THREADS: usize = 8;
const WAITING: usize = 64;

type Task = Box<dyn FnOnce() + Send>;

/// The thread pool. Its threads end after the pool was dropped and the last task is done.
pub(super) struct Blocking {
    tasks: Sender<Task>,
    queue: Arc<Mutex<Receiver<Task>>>,
    /// The number of tasks that wait or run.
    open: Arc<AtomicUsize>,
    threads: usize,
}

impl Blocking {
    /// Creates the pool and starts its first thread.
    ///
    /// # Errors
    ///
    /// Returns an error if no thread can be started.
    pub(super) fn start() -> io::Result<Self> {
        let (tasks, queue) = mpsc::channel();
        let mut pool = Self { tasks, queue: Arc::new(Mutex::new(queue)), open: Arc::default(), threads: 0 };
        pool.add_thread()?;
        Ok(pool)
    }

    fn add_thread(&mut self) -> io::Result<()> {
        let (queue, open) = (Arc::clone(&self.queue), Arc::clone(&self.open));
        let work = move || {
            loop {
                // The thread that waits for the next task holds the queue's lock. A thread that runs a task does not
                // hold it.
                let task = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
                let Ok(task) = task else { return };
                task();
                open.fetch_sub(1, Ordering::Relaxed);
            }
        };
        Builder::new().name("atrace-close".to_owned()).spawn(work)?;
        self.threads += 1;
        Ok(())
    }

    /// Returns whether the queue has room for a task.
    pub(super) fn has_room(&self) -> bool {
        self.len() < self.threads + WAITING
    }

    /// Returns the number of tasks that wait or run.
    pub(super) fn len(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Adds a task to the queue, without checking whether the queue has room.
    pub(super) fn run(&mut self, task: impl FnOnce() + Send + 'static) {
        if self.open.fetch_add(1, Ordering::Relaxed) >= self.threads && self.threads < THREADS {
            // If no further thread can be started, the existing threads do the task later.
            let _ = self.add_thread();
        }
        let _ = self.tasks.send(Box::new(task));
    }
}
