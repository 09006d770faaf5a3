//! The measuring instruments: clocks, CPUs, the allocation counter, the kernel's information about threads, and the
//! chain, whose cost is known and with which the harness is tested.
//!
//! A test fails if a counter is wrong:
//!
//! | counter | checked by |
//! |---|---|
//! | allocations, bytes, frees, peak, minor faults | `tests/alloc.rs`, exact values |
//! | threads started, their states and frames, living threads | the tests of [`profile`] |
//! | faults, polls, threads started, throughput (`threads`) | the bench `threads` as a test, with a known number of pages |
//! | threads started, in the table | the bench `threads` fails unless their number equals the number of operations |
//! | messages | the number in the sink after each slice; `tests/workload.rs` writes too many and too few |
//! | polls (`suspension`, `threads`) | messages follow from polls, so the check of messages fails if polls are wrong |
//! | resumes (`coroutines`) | a batch fails unless they equal its tasks; `cc-bench`'s `coroutines_say_what_they_take` |
//! | `new` and frames of C++; parts per task | `coroutines_say_what_they_take`; `coroutines` as a test, artificial batch |
//! | events through Perfetto | the consumer's count, and an exact count once; `tests/workload.rs` writes too many |
//! | slices that lost events | `tests/workload.rs` has a case that certainly loses events, and cases that do not |
//! | waits (`suspension`) | the channel's test, with futures that were not ready; a boxed handler allocates per wait |
//! | frames of backtraces (`live`) | a slice fails unless each of its dumps has as many frames as a reference dump |

pub mod alloc;
pub mod chain;
pub mod clock;
pub mod cpu;
pub mod profile;
