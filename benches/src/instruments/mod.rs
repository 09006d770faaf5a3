//! What measures: clocks, processors, counted allocations, what the kernel knows of a thread; and work of a known cost,
//! for the tests that prove the rest.
//!
//! What is counted is held by a test that fails when it is counted wrongly:
//!
//! | counter | held by |
//! |---|---|
//! | allocations, bytes, frees, peak, minor faults | `tests/alloc.rs`, exactly |
//! | threads started, their states and frames, threads alive | the tests of [`profile`] |
//! | faults, polls, threads started, throughput (`threads`) | the bench as a test, by operations that touch so many pages |
//! | threads started, as cells | the bench `threads` fails unless they are as many as operations |
//! | messages | the sink's own count after each slice; `tests/workload.rs` writes too many and too few |
//! | polls (`suspension`, `threads`) | messages are as many as polls say, so the sink's count is another if polls are wrong |
//! | resumes (`coroutines`) | a batch fails unless they are as many as its tasks; `cc-bench`'s `coroutines_say_what_they_take` |
//! | `new` and frames of C++; parts, per task | the same test; the bench as a test, of a batch that is made up |
//! | events by Perfetto's way | the reader's own count, and once exactly; `tests/workload.rs` writes too many |
//! | slices that lost events | `tests/workload.rs` has one that is sure to, and some that do not |
//! | waits (`suspension`) | the channel's test, by futures that were not ready; a boxed handler allocates once for each |
//! | frames of backtraces (`live`) | a slice fails unless each of its dumps has as many as one that is counted apart |

pub mod alloc;
pub mod chain;
pub mod clock;
pub mod cpu;
pub mod profile;
