//! Where a message goes: chosen once, at the first event or question, and never changed.
//!
//! But where nothing could be opened for want of descriptors or memory, it is tried again ([`retry`]): at ever more
//! events, and whenever somebody asks.

pub(crate) mod debounce;
mod reload;

use std::error::Error as _;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;
use std::{fmt, io};

use atrace_sys::AtomicRef;
use atrace_sys::cutils::Cutils;
use atrace_sys::fork::generation;
use atrace_sys::marker::{Marker, MarkerError, MarkerKind};
use atrace_sys::ndk::Ndk;
use atrace_sys::process::{self, ErrnoGuard, Undisturbed};
use atrace_sys::properties::{Error as PropertiesError, ErrorKind, Properties};
use atrace_sys::state::Text;

use self::debounce::Answers;
use self::reload::Told;
use crate::AtraceTag;
use crate::gate::{Glance, Watched};
use crate::message::{Kind, Message, NameWriter, Texts};
use crate::state;

/// A place for messages, and the properties that switch it.
#[derive(Debug)]
pub(crate) enum Sink {
    /// Nobody asked yet.
    Unchosen,
    /// Nowhere: tracing is off in this process, and why.
    Off(Failure),
    Marker(MarkerSink),
    Cutils(CutilsSink),
    Ndk(NdkSink),
}

/// Why events go nowhere.
#[derive(Debug)]
pub(crate) struct Failure {
    reason: String,
    /// It may be otherwise soon: see [`process::may_pass`].
    may_pass: bool,
}

impl Failure {
    /// For life.
    fn lasting(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), may_pass: false }
    }
}

impl From<MarkerError> for Failure {
    fn from(error: MarkerError) -> Self {
        Self { reason: error.to_string(), may_pass: error.may_pass() }
    }
}

impl From<PropertiesError> for Failure {
    fn from(error: PropertiesError) -> Self {
        let source = error.source().and_then(|source| source.downcast_ref::<io::Error>());
        let code = source.and_then(io::Error::raw_os_error);
        let may_pass = error.kind() == ErrorKind::Busy || code.is_some_and(process::may_pass);
        Self { reason: error.to_string(), may_pass }
    }
}

#[derive(Debug)]
pub(crate) struct MarkerSink {
    marker: Marker,
    properties: &'static Properties,
}

#[derive(Debug)]
pub(crate) struct CutilsSink {
    pub(crate) library: Cutils,
    /// For the events that this libcutils has no function for.
    marker: Option<Marker>,
    properties: Option<&'static Properties>,
    told: Told,
}

#[derive(Debug)]
pub(crate) struct NdkSink {
    pub(crate) library: Ndk,
    /// Their serial tells when to ask the library again whether tracing is enabled.
    properties: &'static Properties,
    answers: Answers,
    chosen: Instant,
}

impl CutilsSink {
    /// Has the library know the flags of now, with a serial that was read before: it would not notice by itself
    /// a property that appeared late. None where that can't be made sure.
    pub(crate) fn follow(
        &self,
        properties: Option<&'static Properties>,
        watched: impl Fn(&'static Properties) -> Watched,
    ) -> Option<Watched> {
        let Some(properties) = properties else {
            self.have(Cutils::init);
            return None;
        };
        let now = || {
            let watched = watched(properties);
            (watched.serial, watched)
        };
        self.told.follow(generation().number(), now, || {
            self.library.init();
            self.library.update_tags();
        })
    }

    /// Calls a function of the library that has it read its tags.
    pub(crate) fn have(&self, read: impl Fn(&Cutils)) {
        self.told.forget(generation().number(), || read(&self.library));
    }
}

impl NdkSink {
    /// Asks the library whether tracing is enabled, and tells whether its answer is sure.
    pub(crate) fn ask(&self, serial: u32) -> (bool, bool) {
        self.answers.ask(serial, || self.chosen.elapsed(), || self.library.is_enabled())
    }
}

impl Sink {
    /// Writes what others may know of it; see [`state`].
    pub(crate) fn describe(&self, text: &mut Text<'_>) {
        let kind = self.kind();
        text.line("sink", format_args!("{kind:?}"));
        match self {
            Self::Unchosen => {}
            Self::Off(failure) => text.line("reason", &failure.reason),
            Self::Marker(sink) => describe_marker(&sink.marker, text),
            Self::Cutils(sink) => {
                text.line("library", sink.library.path());
                sink.library.lacks(|function| text.line("lacks", function));
                if let Some(marker) = &sink.marker {
                    describe_marker(marker, text);
                }
            }
            Self::Ndk(_) => text.line("library", "libandroid.so"),
        }
        if let Some(properties) = self.properties() {
            text.line("properties", properties.path().display());
        }
    }

    fn kind(&self) -> SinkKind {
        match self {
            Self::Unchosen | Self::Off(_) => SinkKind::None,
            Self::Marker(sink) => match sink.marker.kind() {
                MarkerKind::File => SinkKind::File,
                MarkerKind::Device => SinkKind::Device,
                _ => SinkKind::Tracefs,
            },
            Self::Cutils(_) => SinkKind::Cutils,
            Self::Ndk(_) => SinkKind::Ndk,
        }
    }
}

fn describe_marker(marker: &Marker, text: &mut Text<'_>) {
    text.line("place", marker.place());
    text.line("marker", marker.identity());
    let (dropped, code) = marker.failures();
    if dropped > 0 {
        text.line("dropped", format_args!("{dropped} {code}"));
    }
}

static UNCHOSEN: Sink = Sink::Unchosen;
static SINK: AtomicRef<Sink> = AtomicRef::new(&UNCHOSEN);

impl Sink {
    pub(crate) fn properties(&self) -> Option<&'static Properties> {
        match self {
            Self::Marker(sink) => Some(sink.properties),
            Self::Cutils(sink) => sink.properties,
            Self::Ndk(sink) => Some(sink.properties),
            Self::Unchosen | Self::Off(_) => None,
        }
    }

    /// Whether what a library said of the tags last is sure; else it is to be asked again soon.
    pub(crate) fn is_settled(&self) -> bool {
        match self {
            Self::Cutils(sink) => sink.told.is_told(),
            Self::Ndk(sink) => sink.answers.are_settled(),
            _ => true,
        }
    }
}

/// The sink as it is now, without choosing.
#[inline(always)]
pub(crate) fn present() -> &'static Sink {
    SINK.get()
}

/// The sink, chosen by now. Two threads may choose at once, or a child be forked meanwhile: the first to
/// finish is right, nobody waits.
pub(crate) fn chosen() -> &'static Sink {
    let present = SINK.get();
    if !present.is_open() {
        return present;
    }
    let _undisturbed = Undisturbed::new();
    let (sink, complaint) = choose();
    if let (Sink::Off(_), Sink::Off(Failure { may_pass: true, .. })) = (present, &sink) {
        return present; // As before: what is published stays in memory for ever.
    }
    match SINK.publish(present, Box::new(sink)) {
        Ok(sink) => {
            static TOLD: fn() = state::publish;
            atrace_sys::marker::on_failure(&TOLD);
            if sink.properties().is_some() {
                process::with_argv0(|_| ()); // Now, while files may be opened.
            }
            if let Some(complaint) = complaint {
                process::complain(&format!("atrace: {complaint}; tracing is off"));
            }
            sink
        }
        Err(faster) => faster,
    }
}

/// Tells whether this event is one at which to choose again; costs no system call. After a choice that may be
/// another soon: the 1st event, the 2nd, the 4th and so on, later each 1024th.
pub(crate) fn retry() -> bool {
    static ASKED: AtomicU32 = AtomicU32::new(0);
    let asked = ASKED.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
    asked.is_multiple_of(1024) || asked.is_power_of_two()
}

impl Sink {
    /// Tells whether it is still to be chosen, or may be chosen otherwise.
    fn is_open(&self) -> bool {
        matches!(self, Self::Unchosen) || self.is_waiting()
    }

    /// Tells whether events go nowhere for a reason that may pass.
    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self, Self::Off(Failure { may_pass: true, .. }))
    }

    /// Has the marker looked at, whether it still is what was opened.
    pub(crate) fn check(&self) {
        match self {
            Self::Marker(sink) => sink.marker.check(),
            Self::Cutils(CutilsSink { marker: Some(marker), .. }) => marker.check(),
            _ => {}
        }
    }
}

/// Chooses as the crate's documentation says. The second: a wrong value of a variable, to be complained about.
fn choose() -> (Sink, Option<String>) {
    let backend = process::variable("ATRACE_BACKEND");
    let sink = match backend.as_ref().map(|value| value.as_encoded_bytes()) {
        None => return by_default(),
        Some(b"marker") => marker(),
        Some(b"none") => return (Sink::Off(Failure::lasting("ATRACE_BACKEND=none")), None),
        Some(b"cutils") => cutils(None),
        Some(b"ndk") => ndk(None),
        Some(value) => {
            if let Some(path) = value.strip_prefix(b"cutils:") {
                cutils(Some(OsStr::from_bytes(path)))
            } else if let Some(path) = value.strip_prefix(b"ndk:") {
                ndk(Some(OsStr::from_bytes(path)))
            } else {
                Err(Failure::lasting(format!(
                    "ATRACE_BACKEND={} is none of marker, cutils, cutils:/path/libcutils.so, ndk, \
                     ndk:/path/libandroid.so, none",
                    String::from_utf8_lossy(value)
                )))
            }
        }
    };
    sink.map_or_else(|failure| off(failure, true), |sink| (sink, None))
}

/// No sink, and a complaint if one is due: not of what may pass.
fn off(failure: Failure, complain: bool) -> (Sink, Option<String>) {
    let complaint = (complain && !failure.may_pass).then(|| failure.reason.clone());
    (Sink::Off(failure), complaint)
}

#[cfg(target_os = "android")]
fn by_default() -> (Sink, Option<String>) {
    in_androids_order(None, None)
}

/// Where the marker is named, the marker. Else libcutils where the dynamic linker lets us have it, which it
/// does not in an app; else libandroid, which is there in an app; else the marker, all that a statically
/// linked program has.
#[cfg(any(target_os = "android", test))]
fn in_androids_order(libcutils: Option<&OsStr>, libandroid: Option<&OsStr>) -> (Sink, Option<String>) {
    if is_named("ATRACE_MARKER") {
        return marker_by_default();
    }
    let not_cutils = match cutils(libcutils) {
        Ok(sink) => return (sink, None),
        Err(failure) if failure.may_pass => return off(failure, false),
        Err(failure) => failure.reason,
    };
    let not_ndk = match ndk(libandroid) {
        Ok(sink) => return (sink, None),
        Err(failure) if failure.may_pass => return off(failure, false),
        Err(failure) => failure.reason,
    };
    match marker_by_default() {
        (Sink::Off(Failure { reason, may_pass }), complaint) => {
            let reason = format!("{reason}; nor can be loaded {not_cutils}; {not_ndk}");
            (Sink::Off(Failure { reason, may_pass }), complaint)
        }
        found => found,
    }
}

#[cfg(not(target_os = "android"))]
fn by_default() -> (Sink, Option<String>) {
    marker_by_default()
}

/// The marker. That it can't be opened is usual (only root may), so nobody is told; a place that a variable
/// names is not.
fn marker_by_default() -> (Sink, Option<String>) {
    match marker() {
        Ok(sink) => (sink, None),
        Err(failure) => off(failure, is_named("ATRACE_MARKER") || is_named("ATRACE_PROPERTIES")),
    }
}

fn is_named(variable: &str) -> bool {
    process::variable(variable).is_some()
}

fn open_marker() -> Result<Marker, Failure> {
    match process::variable("ATRACE_MARKER") {
        None => Marker::open().map_err(Failure::from),
        Some(value) => Marker::open_named(&value).map_err(|error| Failure {
            reason: format!("ATRACE_MARKER: {error}"),
            may_pass: error.may_pass(),
        }),
    }
}

fn open_properties() -> Result<&'static Properties, Failure> {
    Properties::try_open().map_err(Failure::from)
}

fn marker() -> Result<Sink, Failure> {
    // The marker first: who may not write there needs no property store made.
    let marker = open_marker()?;
    let properties = open_properties()?;
    Ok(Sink::Marker(MarkerSink { marker, properties }))
}

/// What libcutils can do without, unless a variable names it; or it may be had soon.
fn if_needed<T>(opened: Result<T, Failure>, variable: &str) -> Result<Option<T>, Failure> {
    match opened {
        Ok(opened) => Ok(Some(opened)),
        Err(failure) if failure.may_pass || is_named(variable) => Err(failure),
        Err(_) => Ok(None),
    }
}

fn cutils(path: Option<&OsStr>) -> Result<Sink, Failure> {
    let library = Cutils::load(path).map_err(|reason| Failure::lasting(reason.to_string()))?;
    let properties = if_needed(open_properties(), "ATRACE_PROPERTIES")?;
    let library = library.for_api_level(properties.and_then(Properties::api_level));
    let marker = if_needed(open_marker(), "ATRACE_MARKER")?;
    library.init();
    Ok(Sink::Cutils(CutilsSink { library, marker, properties, told: Told(AtomicU64::new(0)) }))
}

fn ndk(path: Option<&OsStr>) -> Result<Sink, Failure> {
    let library = Ndk::load(path).map_err(|reason| Failure::lasting(reason.to_string()))?;
    let properties = open_properties()?;
    let answers = Answers(AtomicU64::new(0));
    Ok(Sink::Ndk(NdkSink { library, properties, answers, chosen: Instant::now() }))
}

/// A number at the end of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Number {
    None,
    Cookie(i32),
    Int(i32),
    Int64(i64),
}

impl Number {
    #[inline(always)]
    fn value(self) -> Option<i64> {
        match self {
            Self::None => None,
            Self::Cookie(value) | Self::Int(value) => Some(value.into()),
            Self::Int64(value) => Some(value),
        }
    }
}

/// Writes an event whose tag was seen enabled; tells whether it was written.
#[inline(always)]
pub(crate) fn emit(
    glance: Glance,
    tag: AtraceTag,
    kind: Kind,
    track: Option<&str>,
    name: Option<impl FnOnce(&mut NameWriter<'_>)>,
    number: Number,
) -> bool {
    glance.enabled(tag).is_some_and(|sink| write(sink, kind, track, name, number))
}

/// Writes an event, whatever is enabled. (Inlined as [`Message`] is: the properties are read with no message on the
/// stack where that would be large.)
#[cfg_attr(debug_assertions, inline(never))]
#[cfg_attr(not(debug_assertions), inline(always))]
pub(crate) fn write(
    sink: &'static Sink,
    kind: Kind,
    track: Option<&str>,
    name: Option<impl FnOnce(&mut NameWriter<'_>)>,
    number: Number,
) -> bool {
    let id = process::id();
    let mut message = Message::new();
    let texts = message.encode(kind, id, track, name, number.value());
    match sink {
        Sink::Marker(sink) => sink.marker.write(message.bytes()),
        Sink::Cutils(sink) => call_library(sink, kind, &mut message, texts, number),
        Sink::Ndk(sink) => call_ndk(&sink.library, kind, &mut message, texts, number),
        Sink::Unchosen | Sink::Off(_) => false,
    }
}

#[cfg_attr(debug_assertions, inline(never))]
#[cfg_attr(not(debug_assertions), inline(always))]
fn call_library(sink: &CutilsSink, kind: Kind, message: &mut Message, texts: Texts, number: Number) -> bool {
    let CutilsSink { library, marker, .. } = sink;
    let _errno = ErrnoGuard::new();
    let length = message.bytes().len();
    let (track, name) = message.c_strings(texts);
    let written = match (kind, number) {
        (Kind::Begin, _) => library.begin(name),
        (Kind::End, _) => library.end(),
        (Kind::AsyncBegin, Number::Cookie(cookie)) => library.async_begin(name, cookie),
        (Kind::AsyncEnd, Number::Cookie(cookie)) => library.async_end(name, cookie),
        (Kind::TrackBegin, Number::Cookie(cookie)) => library.async_for_track_begin(track, name, cookie),
        (Kind::TrackEnd, Number::Cookie(cookie)) => library.async_for_track_end(track, cookie),
        (Kind::Instant, _) => library.instant(name),
        (Kind::TrackInstant, _) => library.instant_for_track(track, name),
        (Kind::Counter, Number::Int(value)) => library.int(name, value),
        (Kind::Counter, Number::Int64(value)) => library.int64(name, value),
        _ => false,
    };
    // A libcutils too old to have the function: the message itself, in libcutils' form.
    written || write_restored(marker.as_ref(), message, texts, length)
}

#[cold]
#[inline(never)]
fn write_restored(marker: Option<&Marker>, message: &mut Message, texts: Texts, length: usize) -> bool {
    marker.is_some_and(|marker| marker.write(message.restore(texts, length)))
}

/// Calls libandroid, with the nearest it has to what it has not: a slice without duration for an instant, an
/// async slice that bears the name of the track for one on a track (its end knows no other). What is too new
/// for it is dropped.
#[inline(never)]
fn call_ndk(library: &Ndk, kind: Kind, message: &mut Message, texts: Texts, number: Number) -> bool {
    let _errno = ErrnoGuard::new();
    let (track, name) = message.c_strings(texts);
    match (kind, number) {
        (Kind::Begin, _) => library.begin(name),
        (Kind::End, _) => library.end(),
        (Kind::Instant | Kind::TrackInstant, _) => {
            library.begin(name);
            library.end();
        }
        (Kind::AsyncBegin, Number::Cookie(cookie)) => return library.async_begin(name, cookie),
        (Kind::AsyncEnd, Number::Cookie(cookie)) => return library.async_end(name, cookie),
        (Kind::TrackBegin, Number::Cookie(cookie)) => return library.async_begin(track, cookie),
        (Kind::TrackEnd, Number::Cookie(cookie)) => return library.async_end(track, cookie),
        (Kind::Counter, Number::Int(value)) => return library.counter(name, value.into()),
        (Kind::Counter, Number::Int64(value)) => return library.counter(name, value),
        _ => return false,
    }
    true
}

/// Where this process' events go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SinkKind {
    /// Nowhere: tracing is off in this process.
    None,
    /// The kernel's ring buffer, through `trace_marker`.
    Tracefs,
    /// A regular file that `ATRACE_MARKER` names.
    File,
    /// A character device that `ATRACE_MARKER` names.
    Device,
    /// libcutils.
    Cutils,
    /// libandroid's `ATrace_*`.
    Ndk,
}

/// Where this process' events go, and why.
///
/// # Examples
///
/// ```
/// let sink = atrace::sink();
/// println!("{sink}");
/// if sink.kind() == atrace::SinkKind::None {
///     // Not allowed to write to the kernel's marker: every event is dropped.
/// }
/// ```
#[derive(Clone, Debug)]
pub struct SinkInfo {
    kind: SinkKind,
    detail: String,
    dropped: u64,
}

impl SinkInfo {
    /// The kind of place.
    pub fn kind(&self) -> SinkKind {
        self.kind
    }

    /// How many events were lost because writing them failed: a full disk, a ring buffer that is switched off.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}

impl fmt::Display for SinkInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

/// Tells where this process' events go, choosing now if no event was written yet.
pub fn sink() -> SinkInfo {
    match chosen() {
        Sink::Unchosen => SinkInfo { kind: SinkKind::None, detail: "not chosen".to_owned(), dropped: 0 },
        Sink::Off(Failure { reason, .. }) => {
            SinkInfo { kind: SinkKind::None, detail: format!("nowhere: {reason}"), dropped: 0 }
        }
        Sink::Marker(MarkerSink { marker, .. }) => {
            let kind = chosen().kind();
            SinkInfo { kind, detail: marker.describe(), dropped: marker.failures().0 }
        }
        Sink::Cutils(_) => SinkInfo { kind: SinkKind::Cutils, detail: "libcutils".to_owned(), dropped: 0 },
        Sink::Ndk(_) => SinkInfo { kind: SinkKind::Ndk, detail: "libandroid".to_owned(), dropped: 0 },
    }
}

#[cfg(all(test, target_os = "linux"))]
#[path = "../../tests/standins/mod.rs"]
#[expect(unreachable_pub, reason = "a module of the integration tests")]
mod standins;

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// What an app sees, which may load libandroid alone, and a service, and a program that can load nothing.
    #[test]
    #[cfg_attr(miri, ignore = "loads libraries")]
    fn android_prefers_libcutils_then_libandroid_then_the_marker() {
        const NAME: &str = "sink::tests::android_prefers_libcutils_then_libandroid_then_the_marker";
        let directory = tempfile::tempdir().unwrap();
        // In a process of its own, with properties of its own: those of the user are not made for a test.
        if !is_named("ATRACE_PROPERTIES") {
            let mut again = std::process::Command::new(std::env::current_exe().unwrap());
            again.args([NAME, "--exact"]).env("ATRACE_PROPERTIES", directory.path().join("properties"));
            let output = again.output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && said.contains("1 passed"), "{said}");
            return;
        }
        let libcutils = standins::build("libcutils", 34, directory.path());
        let libandroid = standins::build("libandroid", 29, directory.path());
        let missing = OsStr::new("/nonexistent/library.so");
        let choose = |libcutils, libandroid| in_androids_order(Some(libcutils), Some(libandroid)).0;
        assert!(matches!(choose(libcutils.as_os_str(), libandroid.as_os_str()), Sink::Cutils(_)));
        assert!(matches!(choose(missing, libandroid.as_os_str()), Sink::Ndk(_)));
        match choose(missing, missing) {
            Sink::Marker(_) => {}
            Sink::Off(Failure { reason, .. }) => {
                assert_eq!(reason.matches("/nonexistent/library.so").count(), 2, "{reason}");
            }
            other => panic!("{other:?}"),
        }
    }
}
