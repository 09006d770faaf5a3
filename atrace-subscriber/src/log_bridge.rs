//! Turns records of the crate `log` into events of `tracing`, for programs that use only `log`.

use std::error::Error;
use std::sync::atomic::Ordering;

use log::{LevelFilter, Log, Metadata, Record};
use tracing_core::Dispatch;
use tracing_log::LogTracer;
use tracing_subscriber::util::{SubscriberInitExt as _, TryInitError};

use crate::AtraceSubscriber;
use crate::interest_cache::{OWN_LEVEL, set_log_level};

/// Writes what the program logs with the crate `log` to ATrace or to Perfetto. Installs an
/// [`AtraceSubscriber`] with a [filter](AtraceSubscriber::with_filter), and a logger that passes
/// records on to the subscriber.
///
/// A program that uses only `log` and has no logger needs no other call. A program that has a logger calls
/// [`init_log_beside`] instead. While tracing is off, the maximum level of `log` is [`Off`](LevelFilter::Off), so a
/// record costs one load and a comparison.
///
/// # Errors
///
/// Returns an error if the program has a logger or a global subscriber already. If the program has a logger, but no
/// global subscriber, the subscriber is installed nevertheless, and records of `log` are not passed on to it.
pub fn init_log() -> Result<(), TryInitError> {
    AtraceSubscriber::default().with_filter().try_init()?;
    set_log_level(tracing_core::LevelFilter::current);
    Ok(())
}

/// Does the same as [`init_log`], and also installs the program's own logger.
///
/// The logger gets the records up to `level`, and no others, whether tracing is on or off. While tracing is off, the
/// maximum level of `log` is `level`.
///
/// ```
/// # struct Logger;
/// # impl log::Log for Logger {
/// #     fn enabled(&self, _: &log::Metadata<'_>) -> bool { true }
/// #     fn log(&self, record: &log::Record<'_>) { eprintln!("{}", record.args()) }
/// #     fn flush(&self) {}
/// # }
/// # fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let logger = Logger; // such as env_logger::builder().build(), in place of init()
/// atrace_subscriber::init_log_beside(logger, log::LevelFilter::Info)?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// Returns an error if the program has a logger or a global subscriber already. If the program has a global subscriber,
/// but no logger, the logger is installed nevertheless, and records of `log` go to that subscriber, too.
pub fn init_log_beside(
    logger: impl Log + 'static,
    level: LevelFilter,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    log::set_boxed_logger(Box::new(BothLoggers { logger, level, tracer: LogTracer::new() }))?;
    OWN_LEVEL.store(level as usize, Ordering::Relaxed);
    let subscriber = Dispatch::new(AtraceSubscriber::default().with_filter());
    let done = tracing_core::dispatcher::set_global_default(subscriber);
    set_log_level(tracing_core::LevelFilter::current);
    Ok(done?)
}

/// The program's logger, together with the logger that passes records on to `tracing`.
struct BothLoggers<L> {
    logger: L,
    level: LevelFilter,
    tracer: LogTracer,
}

impl<L: Log> Log for BothLoggers<L> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= self.level && self.logger.enabled(metadata) || self.tracer.enabled(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        if record.level() <= self.level {
            self.logger.log(record);
        }
        self.tracer.log(record);
    }

    fn flush(&self) {
        self.logger.flush();
    }
}
