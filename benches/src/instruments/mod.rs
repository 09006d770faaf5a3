//! The measuring instruments: clocks, CPUs, the allocation counter, the kernel's information about threads, and the
//! chain: instructions with a known cost, with which the benches' own measurements are tested.
//!
//! For each counter, there is a check that fails if the counter is wrong:
//!
//! | counter | checked by |
//! |---|---|
//! | allocations, bytes, frees, peak, minor faults | `tests/alloc.rs`, exact values |
//! | threads started, their states and frames, living threads | the tests of [`profile`] |
//! | faults, polls, threads started, throughput (`threads`) | the bench `threads` as a test, with a known number of pages |
//! | threads started, in the table | the bench `threads` fails unless their number equals the number of operations |
//! | messages | the number in the sink after each measurement; `tests/workload.rs` writes too many and too few |
//! | polls (`suspension`, `threads`) | messages follow from polls, so the check of messages fails if polls are wrong |
//! | resumes (`coroutines`) | a batch fails unless resumes equal tasks; `cc-bench`'s `coroutines_say_what_they_take` |
//! | `new` and frames of C++; parts per task | `coroutines_say_what_they_take`; `coroutines` as a test, artificial batch |
//! | events through Perfetto | the consumer's count, and an exact count once; `tests/workload.rs` writes too many |
//! | measurements that lost events | `tests/workload.rs` has a case that certainly loses events, and others |
//! | waits (`suspension`) | the channel's test, with futures that were not ready; boxed handlers allocate per wait |
//! | frames of backtraces (`live`) | the bench fails unless each dump has as many frames as a reference dump |

pub mod alloc;
pub mod chain;
pub mod clock;
pub mod cpu;
pub mod profile;
