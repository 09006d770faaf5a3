//! The bill: which callsite costs how much processor time.
//!
//! ```
//! use atrace_subscriber::metered::Metered;
//! use tracing_subscriber::prelude::*;
//!
//! let metered = Metered::new(tracing_subscriber::registry().with(tracing_subscriber::fmt::layer()));
//! let meter = metered.meter();
//! # let _ = || {
//! metered.init();
//! // … the program runs; at any time:
//! println!("{}", meter.bill());
//! # };
//! ```
//!
//! [`Metered`] wraps any subscriber. A program that uses [`AtraceSubscriber`](crate::AtraceSubscriber) or
//! [`AtraceLayer`](crate::AtraceLayer) need not be changed: with the environment variable `ATRACE_BILL=PATH` these meter themselves.
//! When the process ends by `exit` or by returning from `main`, the numbers are written to `PATH`, and `atrace cost --bill-of PATH` or
//! [`Bill::read`] makes the bill. If several processes have the variable, the file is that of the one that ended last. Of `AtraceLayer`, only its own
//! part is billed; while tracing is off, `AtraceSubscriber` takes no events, so none are billed.
//!
//! # What is measured
//!
//! *Calls* are counted exactly, per callsite and kind of call: a new span, an enter, an exit, a record, an event, a clone, a
//! close, and a check whether the callsite is enabled. (A signal handler that traces in the middle of a count may lose it.)
//!
//! *Times* are sampled: of each callsite and kind, the first calls of each thread, and then a random one of 128, or fewer where
//! the clock is slow. A timed call
//! is measured with the processor's counter. A call that takes more than 10 µs may have waited or lost the processor; of such a
//! call the thread's processor time counts, which is read for a part of the sample. So waiting, as in a write that blocks, is
//! not in the bill. Systems without a clock for the processor time of a thread have elapsed time instead. A timed call seems
//! 10 to 20 ns longer than it is, because the meter's code has displaced some of the program's.
//!
//! *Nested calls*, as by a value whose `Debug` traces or by a `Metered` within a `Metered`, count for their own callsite, and are
//! subtracted from the outer call.
//!
//! *Intervals* hold the truth in about 99 of 100 cases, and if a few rare calls take most of the time, in at least 95 (tested
//! with a log-normal distribution of σ = 1.5). They follow from the variance of the sample and Student's distribution. Calls that
//! are too rare to be in the sample can't be in the interval.
//!
//! *Not billed* is what happens outside of the subscriber's calls: the program evaluates arguments, `tracing` checks its caches,
//! other threads write what a call has queued, and code is displaced from the processor's caches. What threads have used that made no call, such as writers, is told if
//! no thread that did has ended. A callsite that is filtered by the
//! subscriber's maximum level is unknown to it. A callsite that the subscriber never wants is in the bill with zero.
//!
//! The memory of a meter is kept until the process ends: 0.4 MB, and 5 KB for each callsite (of 38 MB of reserved addresses). A call allocates nothing; a callsite
//! allocates when it is registered. Up to 32,768 spans may be alive, and about 5,000 callsites exist; calls beyond that count
//! for the callsite "unknown". Each of 64 threads has its own counters; further threads share some, which takes longer.
//!
//! A forked child inherits the counts of its parent, and does not write its parent's file.

mod asked;
mod ids;
mod meter;
mod thread;
mod wrapper;

pub use atrace_bill::Bill;
pub(crate) use atrace_bill::Call;

pub(crate) use self::asked::asked;
pub use self::meter::Meter;
pub(crate) use self::meter::billed;
pub use self::wrapper::Metered;
