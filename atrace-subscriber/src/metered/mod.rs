//! The bill: how much processor time each callsite costs.
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
//! [`AtraceLayer`](crate::AtraceLayer) need not be changed: with the environment variable `ATRACE_BILL=PATH` these
//! types meter themselves. When the process ends by `exit` or by returning from `main`, the measurements are written to
//! `PATH`, relative to the directory in which the first subscriber or layer was made, and `atrace cost --bill-of PATH` or
//! [`Bill::read`] makes the bill. If the variable is set in several processes, the file contains the measurements of the
//! process that ended last. If an `AtraceLayer` meters itself,
//! other layers are not in the bill. While tracing is off, an `AtraceSubscriber` with a filter gets no events, so the
//! bill does not contain these events.
//!
//! # What is measured
//!
//! *Calls* are counted exactly, per callsite and kind of call: a new span, an enter, an exit, a record, an event, a
//! clone, a close, and a check whether the callsite is enabled. (If a signal handler that traces interrupts a count,
//! the count may be lost.) With `ATRACE_BILL`, clones and checks are not metered; an `AtraceSubscriber` meters the close of
//! stored spans only; and an `AtraceLayer` meters no close and, while tracing is off, no event, enter or exit.
//!
//! *Times* are sampled. For each callsite and kind of call, the first calls of each thread are timed, and after that
//! one call in 128, chosen at random (fewer if the clock is slow). A call is timed with the processor's counter. During
//! a call of more than 10 µs, the thread may have waited or lost the processor. So for such a call the thread's
//! processor time counts instead of the elapsed time. The processor time is read for a part of the sample. So time
//! spent waiting, as in a write that blocks, is not in the bill. Systems without a clock for the processor time of a
//! thread use elapsed time instead. A timed call seems 10 to 20 ns longer than it is, because the code of the meter has
//! displaced code of the program from the processor's caches.
//!
//! *Nested calls* occur when the `Debug` of a value traces, or with a `Metered` within a `Metered`. A nested call
//! counts for its own callsite, and its time is subtracted from the time of the outer call.
//!
//! *Intervals* contain the true value in about 99 of 100 cases or, if a few rare calls take most of the time, in at
//! least 95 (tested with a log-normal distribution of σ = 1.5). Intervals are computed from the variance of the sample
//! and Student's distribution. If expensive calls are so rare that the sample contains none, the interval does not
//! account for them.
//!
//! *Not billed* is the time outside of the subscriber's calls: the program evaluates arguments, `tracing` checks its
//! caches, other threads write what a call has queued, and code is displaced from the processor's caches. The bill
//! states the processor time of threads that have made no call, such as threads that write queued output, since the meter
//! was made. (This line is missing if a thread that has made calls has ended, if more than 64 threads have made calls, if
//! there was no `/proc` then, or if it would say less than 0.05 %.) If the
//! subscriber's maximum level excludes a callsite, the
//! subscriber does not know the callsite. A callsite that the subscriber never wants is in the bill with zero.
//!
//! The memory of a meter is kept until the process ends: up to 0.7 MB, 0.7 KB for each callsite, and up to 0.1 MB for
//! each thread, or 0.6 MB if there are over 1,000 callsites (38 MB of addresses are reserved). A call allocates nothing;
//! the registration of a callsite allocates. About 32,768 spans that are alive and about 5,000 callsites are recognised;
//! all other calls count for the callsite "unknown". Each of 64 threads has its own counters; further threads share
//! counters, which takes longer.
//!
//! A forked child inherits the counts of its parent, and does not write its parent's file.

mod asked;
mod counter;
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
