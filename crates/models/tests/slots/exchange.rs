//! Models two threads that each try to take two of three free slots. One of the threads then frees the first slot that
//! it took. No two threads may have the same slot at the same time.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

use super::slots;
use super::sync::atomic::AtomicU64;

struct Stack {
    free: slots::Free,
    links: [slots::Link; 3],
    /// Data that only the holder of a slot may access.
    held: [(AtomicBool, UnsafeCell<()>); 3],
}

impl Stack {
    fn take(&self) -> Option<u32> {
        let index = self.free.take(|index| self.links.get(index as usize))?;
        let (is_held, inside) = &self.held[index as usize];
        assert!(!is_held.swap(true, Ordering::Relaxed), "slot {index} has two holders");
        inside.with_mut(|_| ());
        Some(index)
    }

    fn put_back(&self, index: u32) {
        let (is_held, inside) = &self.held[index as usize];
        inside.with_mut(|_| ());
        is_held.store(false, Ordering::Relaxed);
        self.free.put_back(index, &self.links[index as usize]);
    }
}

fn exchange() {
    let stack = Arc::new(Stack {
        free: slots::Free::new(AtomicU64::new(slots::NONE_FREE)),
        links: std::array::from_fn(|_| slots::Link::new()),
        held: std::array::from_fn(|_| (AtomicBool::new(true), UnsafeCell::new(()))),
    });
    (0..3).for_each(|index| stack.put_back(index));
    let other = Arc::clone(&stack);
    let other = thread::spawn(move || {
        let [first, second] = [other.take(), other.take()];
        first.into_iter().for_each(|first| other.put_back(first));
        second
    });
    let mine = [stack.take(), stack.take()];
    let others = other.join().unwrap();
    let mut all: Vec<u32> = mine.into_iter().chain([others, stack.take()]).flatten().collect();
    all.sort_unstable();
    assert_eq!(all, [0, 1, 2]);
}

pub(crate) fn check() {
    bounded(exchange);
}

/// Runs the model in every order with at most three preemptions.
pub(crate) fn bounded(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}
