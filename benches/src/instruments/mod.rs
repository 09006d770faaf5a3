//! What measures: clocks, processors, counted allocations, what the kernel knows of a thread; and work of a known cost,
//! for the tests that prove the rest.

pub mod alloc;
pub mod chain;
pub mod clock;
pub mod cpu;
pub mod profile;
