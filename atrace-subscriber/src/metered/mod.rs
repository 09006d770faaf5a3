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
//! `PATH`. A relative `PATH` is relative to the directory in which the first subscriber or layer was made. `atrace cost
//! --bill-of PATH` or [`Bill::read`] makes the bill from this file. If the variable is set in several processes, the
//! file contains the measurements of the process that ended last. If an `AtraceLayer` meters itself, other layers are
//! not in the bill. While tracing is off, an `AtraceSubscriber` with a filter gets no events, so the bill does not
//! contain the events of this time.
//!
//! # What is measured
//!
//! *Calls* are counted exactly, per callsite and kind of call: a new span, an enter, an exit, a record, an event, a
//! clone, a close, and a check whether the callsite is enabled. (If a signal handler that traces interrupts the
//! counting of a call, calls may be missing in the count.) With `ATRACE_BILL`, clones and checks are not metered; an
//! `AtraceSubscriber` meters closes only of the spans that it stores; and an `AtraceLayer` meters no close and, while
//! tracing is off, no event, enter or exit.
//!
//! *Times* are sampled. For each callsite and kind of call, the first calls of each thread are timed, and after that
//! one call in 128, chosen at random (fewer if the clock is slow). A call is timed with the processor's counter. During
//! a call of more than 10 µs, the thread may have waited or lost the processor. So for such a call the thread's
//! processor time counts instead of the elapsed time, and time spent waiting (as in a write that blocks) is not in the
//! bill. The processor time is read only for a part of the sample. On systems without a clock for the processor time of
//! a thread, the elapsed time counts. A timed call seems 10 to 20 ns longer than it is, because the code of the meter
//! has displaced code of the program from the processor's caches.
//!
//! *Nested calls* occur when the `Debug` of a value traces, or with a `Metered` within a `Metered`. A nested call
//! counts for its own callsite, and its time is subtracted from the time of the outer call.
//!
//! *Intervals* contain the true value in about 99 of 100 cases. If a few rare calls take most of the time, they contain
//! it in at least 95 of 100 cases (tested with a log-normal distribution of σ = 1.5). Intervals are computed from the
//! variance of the sample and Student's distribution. If expensive calls are so rare that the sample contains none, the
//! interval does not account for them.
//!
//! *Not billed* is the time outside of the subscriber's calls: the time in which the program evaluates arguments,
//! `tracing` checks its caches, and other threads write output that a call has queued. The time that code takes longer
//! because calls have displaced it from the processor's caches is not billed either. The bill states the processor time
//! that threads without any call, such as threads that write queued output, have used since the meter was made. (The
//! bill does not state this time if a thread that has made calls has ended, if more than 64 threads have made calls, or
//! if there was no `/proc` when the meter was made. The table also leaves out a time of less than 0.05 %.) If the
//! subscriber's maximum level excludes a callsite, the subscriber does not know the callsite, so the bill does not
//! contain it. A callsite in which the subscriber has no interest (`Interest::never`) is in the bill with a cost of
//! zero.
//!
//! A meter keeps its memory until the process ends: up to 0.7 MB, 0.7 KB for each callsite, and up to 0.1 MB for each
//! thread (0.6 MB if there are over 1,000 callsites). It reserves 38 MB of address space. A call allocates nothing; the
//! registration of a callsite allocates. A meter recognises about 32,768 live spans and about 5,000 callsites. The
//! calls of further spans and callsites count for the callsite "unknown". Each of 64 threads has its own counters.
//! Further threads share counters, which makes their calls slower.
//!
//! A forked child inherits the counts of its parent, and does not write the file of its parent's measurements.

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
