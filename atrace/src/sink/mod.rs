//! ATrace's backends, called sinks here: libcutils, libandroid, the kernel's marker.
//!
//! [`Sink::write`] is the only function that sends an event of ATrace's out of the process. `choice.rs` decides which sink a process
//! has. Each sink has a file of its own here, which also opens it; what it needs of the system is in `atrace-sys`.
//!
//! To add a sink, a file or a library:
//! - add a variant to [`Sink`] and an arm to each function below (the compiler does not find all of them),
//! - add a line to `choice.rs`,
//! - add what users see of it to `info.rs`, and to `doctor/sink.rs` in `crates/atrace-cli`,
//! - tell `refresh.rs` how it is switched on,
//! - add a line to `row/model.rs` in the benches, so that it is measured.
//!
//! A backend that takes no messages, as Perfetto's, is a `Way` (`way.rs`) and no sink.

pub(crate) mod choice;
mod cutils;
mod debounce;
pub(crate) mod first;
mod info;
mod marker;
mod ndk;
mod open;
mod reload;
#[cfg(test)]
mod tests;

use atrace_sys::marker::{Marker, MarkerKind};
use atrace_sys::process;
use atrace_sys::properties::Properties;
use atrace_sys::state::Text;

use self::cutils::CutilsSink;
pub(crate) use self::debounce::APART;
pub use self::info::{SinkInfo, SinkKind};
use self::marker::MarkerSink;
use self::ndk::NdkSink;
use self::open::Failure;
use crate::message::{Kind, Message, NameWriter, Texts};
use crate::producer::Written;

/// A place for messages, and the properties that switch it.
#[derive(Debug)]
pub(crate) enum Sink {
    /// Nobody asked yet.
    Unchosen,
    /// Nowhere: tracing is off in this process, and why.
    Off(Failure),
    /// The sink, or Perfetto's memory: stands in [`first`] only.
    Ways,
    Marker(MarkerSink),
    Cutils(CutilsSink),
    Ndk(NdkSink),
}

impl Sink {
    /// Writes an event, whatever is enabled. (Inlined as [`Message`] is: the properties are
    /// read with no message on the stack where that would be large.)
    #[cfg_attr(debug_assertions, inline(never))]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn write(
        &self,
        kind: Kind,
        track: Option<&str>,
        name: Option<impl FnOnce(&mut NameWriter<'_>)>,
    ) -> Option<Written> {
        let id = process::id();
        let mut message = Message::new();
        let texts = message.encode(kind, id, track, name);
        let is_written = match self {
            Self::Marker(sink) => sink.marker.write(message.bytes()),
            other => other.call(kind, &mut message, texts),
        };
        is_written.then_some(Written::ByAtrace)
    }

    /// [`write`](Self::write) with a name that is there, out of line.
    #[inline(never)]
    pub(crate) fn write_str(&self, kind: Kind, track: Option<&str>, name: Option<&str>) -> Option<Written> {
        self.write(kind, track, name.map(|name| move |writer: &mut NameWriter<'_>| writer.push_str(name)))
    }

    /// Hands a message to the sinks that are libraries.
    #[inline(never)]
    fn call(&self, kind: Kind, message: &mut Message, texts: Texts) -> bool {
        match self {
            Self::Cutils(sink) => sink.write(kind, message, texts),
            Self::Ndk(sink) => sink.write(kind, message, texts),
            Self::Unchosen | Self::Off(_) | Self::Ways | Self::Marker(_) => false,
        }
    }

    pub(crate) fn properties(&self) -> Option<&'static Properties> {
        match self {
            Self::Marker(sink) => Some(sink.properties),
            Self::Cutils(sink) => sink.properties,
            Self::Ndk(sink) => Some(sink.properties),
            Self::Unchosen | Self::Off(_) | Self::Ways => None,
        }
    }

    /// Tells whether what a library said of the tags last is sure; else it is to be asked again soon.
    pub(crate) fn is_settled(&self) -> bool {
        match self {
            Self::Cutils(sink) => sink.is_current(),
            Self::Ndk(sink) => sink.is_settled(),
            _ => true,
        }
    }

    /// Tells whether events go nowhere for now: nothing was chosen yet, or nothing could be had for a reason that may pass.
    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self, Self::Unchosen | Self::Off(Failure { may_pass: true, .. }))
    }

    /// Tells whether it is one.
    #[inline(always)]
    pub(crate) fn is_open(&self) -> bool {
        !matches!(self, Self::Unchosen | Self::Off(_) | Self::Ways)
    }

    /// Has the marker looked at, whether it still is what was opened.
    pub(crate) fn check(&self) {
        if let Some(marker) = self.marker() {
            marker.check();
        }
    }

    fn marker(&self) -> Option<&Marker> {
        match self {
            Self::Marker(sink) => Some(&sink.marker),
            Self::Cutils(sink) => sink.marker.as_ref(),
            _ => None,
        }
    }

    fn kind(&self) -> SinkKind {
        match self {
            Self::Unchosen | Self::Off(_) | Self::Ways => SinkKind::None,
            Self::Marker(sink) => match sink.marker.kind() {
                MarkerKind::File => SinkKind::File,
                MarkerKind::Device => SinkKind::Device,
                _ => SinkKind::Tracefs,
            },
            Self::Cutils(_) => SinkKind::Cutils,
            Self::Ndk(_) => SinkKind::Ndk,
        }
    }

    /// What the program is told of it.
    fn info(&self) -> SinkInfo {
        let (detail, dropped) = match self {
            Self::Unchosen | Self::Ways => ("not chosen".to_owned(), 0),
            Self::Off(Failure { reason, .. }) => (format!("nowhere: {reason}"), 0),
            Self::Marker(sink) => (sink.marker.describe(), sink.marker.failures().0),
            Self::Cutils(_) => ("libcutils".to_owned(), 0),
            Self::Ndk(_) => ("libandroid".to_owned(), 0),
        };
        SinkInfo { kind: self.kind(), detail, dropped }
    }

    /// Writes what other processes are told of it: lines of the state page ([`crate::state`]).
    pub(crate) fn describe(&self, text: &mut Text<'_>) {
        text.line("sink", format_args!("{:?}", self.kind()));
        match self {
            Self::Unchosen | Self::Ways | Self::Marker(_) => {}
            Self::Off(failure) => text.line("reason", &failure.reason),
            Self::Cutils(sink) => {
                text.line("library", sink.library.path());
                sink.library.lacks(|function| text.line("lacks", function));
            }
            Self::Ndk(_) => text.line("library", "libandroid.so"),
        }
        if let Some(marker) = self.marker() {
            text.line("place", marker.place());
            text.line("marker", marker.identity());
            let (dropped, code) = marker.failures();
            if dropped > 0 {
                text.line("dropped", format_args!("{dropped} {code}"));
            }
        }
        if let Some(properties) = self.properties() {
            text.line("properties", properties.path().display());
        }
    }
}
