//! ATrace's sinks: libcutils, libandroid, and the kernel's marker.
//!
//! A process has at most one sink. `choice.rs` chooses it when the program is loaded, and [`Sink::write`] writes an
//! event to it. Each sink has a file in this folder, with the code that opens the sink and writes to it. The system
//! interfaces that a sink needs are in `atrace-sys`.
//!
//! An event loads one reference, [`first`]. As long as no event can go to Perfetto, the reference leads to the
//! process's sink, so events for the marker need no code that chooses a backend. Once events can go to Perfetto, the
//! reference leads to [`Sink::PerEvent`], and `backend.rs` chooses the backend for each event.
//!
//! # How to add a sink
//!
//! To add a sink that is a file or a library:
//! - add a variant to [`Sink`] and an arm to each function below (the compiler does not find all of them),
//! - add a line to `choice.rs`,
//! - add the sink's description for users to `info.rs`, and to `doctor/sink.rs` in `crates/atrace-cli`,
//! - make `refresh.rs` detect that tracing is switched on for the sink,
//! - add a variant to `Sink` in `benches/src/row/mod.rs`, and an arm to `Session::sink` in
//!   `benches/src/harness/session.rs`, so that the rows of the benches name the sink.
//!
//! A backend that does not take text messages, such as Perfetto's, is not a sink but a variant of `Backend`
//! (`backend.rs`).

pub(crate) mod choice;
mod cutils;
mod debounce;
mod info;
mod marker;
mod ndk;
mod open;
mod reload;
#[cfg(test)]
mod tests;

use atrace_sys::AtomicRef;
use atrace_sys::marker::{Marker, MarkerKind};
use atrace_sys::process;
use atrace_sys::properties::Properties;
use atrace_sys::state::Text;

use self::cutils::CutilsSink;
pub(crate) use self::debounce::APART;
pub use self::info::SinkInfo;
use self::marker::MarkerSink;
use self::ndk::NdkSink;
use self::open::Failure;
use crate::args::Arguments;
use crate::event::Event;
use crate::message::{Message, NameWriter, WriteName};
use crate::producer::{self, Written};

static UNCHOSEN: Sink = Sink::Unchosen;
static PER_EVENT: Sink = Sink::PerEvent;
static FIRST: AtomicRef<Sink> = AtomicRef::new(&UNCHOSEN);

/// Returns the reference that an event loads first: the sink, or [`Sink::PerEvent`].
#[inline(always)]
pub(crate) fn first() -> &'static Sink {
    FIRST.get()
}

/// Makes the reference that [`first`] returns lead to `sink`, the chosen sink. If the reference leads to
/// [`Sink::PerEvent`] or to a chosen sink already, it does not change.
fn is_chosen(sink: &'static Sink) {
    let before = FIRST.get();
    if before.is_waiting() {
        let _ = FIRST.replace(before, sink); // Fails only if another thread has just changed the reference.
    }
}

/// Prepares this process to be a producer of Perfetto's service, and makes each event choose its backend from now on.
/// Returns false if there is no memory for a producer.
pub(crate) fn enable_perfetto() -> bool {
    let is_ready = producer::can_be_used();
    if is_ready {
        choose_per_event();
    }
    is_ready
}

/// Makes each event choose its backend from now on, in a process that was prepared to be a producer. Async-signal-safe.
pub(crate) fn choose_per_event() {
    FIRST.set(&PER_EVENT);
}

/// Returns whether `sink` is [`Sink::PerEvent`], which means that the backend is chosen for each event.
///
/// This function compares addresses. If it tested the enum's variant, the compiler would merge this test with the test
/// before it, which would make events for the marker slower.
#[inline(always)]
pub(crate) fn is_per_event(sink: &'static Sink) -> bool {
    producer::EXISTS && std::ptr::eq(sink, &PER_EVENT)
}

/// Returns whether events of this process may go to Perfetto, that is, whether the backend is chosen for each event.
#[inline]
pub fn is_perfetto_enabled() -> bool {
    producer::EXISTS && matches!(FIRST.get(), Sink::PerEvent)
}

/// A name, and the arguments that are appended to it as text.
struct NameAndArgs<'a, N> {
    name: N,
    args: Option<&'a dyn Arguments>,
}

impl<N: WriteName> WriteName for NameAndArgs<'_, N> {
    #[inline(always)]
    fn write(self, writer: &mut NameWriter<'_>) {
        self.name.write(writer);
        if let Some(args) = self.args {
            args.push(writer);
        }
    }
}

/// A destination of ATrace's messages, with access to the properties that switch tracing.
#[derive(Debug)]
pub(crate) enum Sink {
    /// The sink has not been chosen yet.
    Unchosen,
    /// There is no sink; the failure is the reason. Events for ATrace are dropped.
    Off(Failure),
    /// The backend is chosen for each event: the sink, or Perfetto's memory. Only the reference that [`first`] returns
    /// can lead to this value.
    PerEvent,
    Marker(MarkerSink),
    Cutils(CutilsSink),
    Ndk(NdkSink),
}

impl Sink {
    /// Writes an event, without checking whether its tag is enabled. Returns `None` if the event was not written.
    ///
    /// ATrace has only integers: a floating-point value is rounded, and NaN and infinities are dropped.
    ///
    /// This function is inlined only in optimised builds, because in other builds it would make the stack frames of its
    /// callers large.
    #[cfg_attr(debug_assertions, inline(never))]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn write<N: WriteName>(&self, event: Event<'_, N>) -> Option<Written> {
        let kind = event.kind;
        if kind.is_dropped() {
            return None;
        }
        // This test comes before the encoding. So a caller that already knows that this is the marker needs no test
        // after the encoding.
        let marker = if let Self::Marker(sink) = self { Some(&sink.marker) } else { None };
        let mut message = Message::new();
        let Event { track, name, args, .. } = event;
        let texts = message.encode(kind, process::id(), track, name.map(|name| NameAndArgs { name, args }));
        let is_written = match (marker, self) {
            (Some(marker), _) => marker.write(message.bytes()),
            (None, Self::Cutils(sink)) => sink.write(kind, &mut message, texts),
            (None, Self::Ndk(sink)) => sink.write(kind, &mut message, texts),
            (None, Self::Unchosen | Self::Off(_) | Self::PerEvent | Self::Marker(_)) => false,
        };
        is_written.then_some(Written::ByAtrace)
    }

    /// Returns whether this is the marker.
    #[inline(always)]
    pub(crate) fn is_marker(&self) -> bool {
        matches!(self, Self::Marker(_))
    }

    pub(crate) fn properties(&self) -> Option<&'static Properties> {
        match self {
            Self::Marker(sink) => Some(sink.properties),
            Self::Cutils(sink) => sink.properties,
            Self::Ndk(sink) => Some(sink.properties),
            Self::Unchosen | Self::Off(_) | Self::PerEvent => None,
        }
    }

    /// Returns whether the last answer of a library about the enabled tags is up to date. If the answer is not up to
    /// date, the library must be asked again soon.
    pub(crate) fn is_settled(&self) -> bool {
        match self {
            Self::Cutils(sink) => sink.is_current(),
            Self::Ndk(sink) => sink.is_settled(),
            _ => true,
        }
    }

    /// Returns whether a sink may still be chosen: no choice was made yet, or opening failed for a temporary
    /// reason.
    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self, Self::Unchosen | Self::Off(Failure { may_pass: true, .. }))
    }

    /// Returns whether events can be written to this sink.
    #[inline(always)]
    pub(crate) fn is_open(&self) -> bool {
        !matches!(self, Self::Unchosen | Self::Off(_) | Self::PerEvent)
    }

    /// Checks whether the marker's descriptor still refers to the file that was opened. If not, opens the marker again.
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

    /// Returns the word for this sink: see [`SinkInfo::kind`].
    fn kind(&self) -> &'static str {
        match self {
            Self::Unchosen | Self::Off(_) | Self::PerEvent => "None",
            Self::Marker(sink) => match sink.marker.kind() {
                MarkerKind::File => "File",
                MarkerKind::Device => "Device",
                _ => "Tracefs",
            },
            Self::Cutils(_) => "Cutils",
            Self::Ndk(_) => "Ndk",
        }
    }

    /// Returns the description of the sink that the program can print.
    fn info(&self) -> SinkInfo {
        let (detail, dropped) = match self {
            Self::Unchosen | Self::PerEvent => ("not chosen".to_owned(), 0),
            Self::Off(Failure { reason, .. }) => (format!("nowhere: {reason}"), 0),
            Self::Marker(sink) => (sink.marker.describe(), sink.marker.failures().0),
            Self::Cutils(_) => ("libcutils".to_owned(), 0),
            Self::Ndk(_) => ("libandroid".to_owned(), 0),
        };
        SinkInfo { kind: self.kind(), detail, dropped }
    }

    /// Writes the description of the sink for other processes, as lines of the state page ([`crate::state`]).
    pub(crate) fn describe(&self, text: &mut Text<'_>) {
        text.line("sink", self.kind());
        match self {
            Self::Unchosen | Self::PerEvent | Self::Marker(_) => {}
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
