//! What measures: clocks, processors, counted allocations, what the kernel knows of a thread; and work of a known cost,
//! for the tests that prove the rest.
//!
//! What is counted is held by a test that fails when it is counted wrongly:
//!
//! | counter | held by |
//! |---|---|
//! | allocations, bytes, frees, peak | `tests/alloc.rs`, exactly |
//! | minor faults, threads started, their states, threads alive | the tests of [`profile`] |
//! | threads started, as cells | the bench `threads` fails unless they are as many as operations |
//! | messages | the sink's own count after each slice; `tests/workload.rs` writes too many and too few |
//! | polls (`suspension`, `threads`) | messages are as many as polls say, so the sink's count is another if polls are wrong |
//! | resumes (`coroutines`) | a batch fails unless they are as many as its tasks; `cc-bench`'s `coroutines_say_what_they_take` |
//! | `new` and frames of C++ | the same test |
//! | frames of backtraces (`live`) | a dump fails where there are none and should be, or the other way around |

pub mod alloc;
pub mod chain;
pub mod clock;
pub mod cpu;
pub mod profile;
