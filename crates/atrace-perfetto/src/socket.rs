//! The addresses at which the tracing service listens, and the [`Socket`] that is connected to it.

use std::ffi::{OsStr, OsString};

use atrace_sys::process::variable;
use atrace_sys::socket::may_be_there;
use atrace_sys::socket::may_enter;
pub use atrace_sys::socket::{Refused, Socket, Trust, peer};

/// The usual addresses for producers and for consumers. An environment variable may name another address.
#[cfg(target_os = "android")]
const PRODUCERS: [&str; 2] = ["/dev/socket/traced_producer"; 2];
#[cfg(target_os = "android")]
const CONSUMERS: [&str; 2] = ["/dev/socket/traced_consumer"; 2];
#[cfg(not(target_os = "android"))]
const PRODUCERS: [&str; 2] = ["/run/perfetto/traced-producer.sock", "/tmp/perfetto-producer"];
#[cfg(not(target_os = "android"))]
const CONSUMERS: [&str; 2] = ["/run/perfetto/traced-consumer.sock", "/tmp/perfetto-consumer"];

/// Returns the address for producers that the environment variable `PERFETTO_PRODUCER_SOCK_NAME` names, or `None`. The
/// variable is ignored in a process with elevated rights.
pub fn named_producers() -> Option<OsString> {
    variable("PERFETTO_PRODUCER_SOCK_NAME")
}

/// Returns the address for producers, and the rule by which a process that listens there is trusted. The address comes
/// from the [environment variable](named_producers), if it is set; otherwise it is the usual address.
pub fn producers(named: Option<&OsStr>) -> (&OsStr, Trust) {
    named.map_or_else(|| usual(PRODUCERS), |name| (name, Trust::Any))
}

/// Returns whether a service may be listening for producers: whether a file exists at the address for producers, or the
/// address is abstract.
pub(crate) fn has_producers(named: Option<&OsStr>) -> bool {
    may_be_there(producers(named).0)
}

/// Returns the address for consumers, and the rule by which a process that listens there is trusted, as [`producers`]
/// does.
pub fn consumers() -> (OsString, Trust) {
    let named = variable("PERFETTO_CONSUMER_SOCK_NAME").map(|name| (name, Trust::Any));
    named.unwrap_or_else(|| {
        let (name, trust) = usual(CONSUMERS);
        (name.to_owned(), trust)
    })
}

/// Returns the first of two addresses if the process may access the first address's directory, otherwise the second
/// address.
fn usual([first, other]: [&'static str; 2]) -> (&'static OsStr, Trust) {
    let has_run = may_enter(c"/run/perfetto/");
    ((if has_run { first } else { other }).as_ref(), Trust::Usual)
}
