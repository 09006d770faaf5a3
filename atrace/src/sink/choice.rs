//! Chooses the sink of this process: once, when the library is loaded (`load.rs`).
//!
//! After that, the sink never changes, with one exception. If no sink could be opened for a reason that may pass, such
//! as a lack of descriptors or memory, functions that may allocate try again. An event never chooses a sink, because
//! choosing allocates.
//!
//! Two threads may choose a sink at once, and a child may be forked meanwhile. The first thread that finishes publishes
//! its sink; the others use it. No thread waits. A published sink stays in memory forever, since any thread may hold a
//! reference.

use std::ffi::OsStr;

use atrace_sys::AtomicRef;
use atrace_sys::process::{self, Undisturbed};

use super::open::{self, Failure};
use super::{CutilsSink, MarkerSink, NdkSink, Sink, SinkInfo, UNCHOSEN, enable_perfetto, is_chosen};
use crate::producer::{self, ConnectionState};

static SINK: AtomicRef<Sink> = AtomicRef::new(&UNCHOSEN);

/// Returns the current sink, or [`Sink::Unchosen`] if no sink was chosen yet.
#[inline(always)]
pub(crate) fn present() -> &'static Sink {
    SINK.get()
}

/// Returns where this process's events go. If no sink has been chosen, or if the sink could not be opened for a reason
/// that may pass, such as a lack of descriptors or memory, this function chooses a sink now. Choosing a sink allocates,
/// so a signal handler must not call this function.
pub fn sink() -> SinkInfo {
    let sink = chosen();
    let info = sink.info();
    let (state, _) = producer::connection_state();
    if sink.is_open() || state == ConnectionState::NOT_REQUESTED {
        return info;
    }
    let detail = format!("Perfetto's service: {state}; by ATrace: {}", info.detail);
    SinkInfo { kind: "Perfetto", detail, dropped: producer::lost() }
}

/// Returns the sink, or [`Sink::Unchosen`] if none was chosen yet. An event may call this, because it does not allocate.
#[inline(always)]
pub(crate) fn current() -> &'static Sink {
    // In these builds, the loader does not call `load.rs`. An event can choose the sink safely, because there is
    // nothing to open.
    if cfg!(any(miri, no_tracing)) { chosen() } else { present() }
}

/// Returns the sink. Chooses the sink if no sink was chosen yet, and starts the thread that talks to Perfetto's
/// service, if the process would otherwise start this thread at its first event. This function allocates, so an event
/// must not call it.
pub(crate) fn chosen() -> &'static Sink {
    let sink = choose_now();
    producer::start_if_expected();
    sink
}

/// Returns the sink, and chooses it if no sink was chosen yet.
pub(crate) fn choose_now() -> &'static Sink {
    let present = SINK.get();
    if !present.is_waiting() {
        // This matters in a forked child: another thread of the parent may have published the sink just before the
        // fork, without having called `is_chosen` yet.
        is_chosen(present);
        return present;
    }
    let _undisturbed = Undisturbed::new();
    let chosen = choose();
    let is_wrong = chosen.is_err() && VARIABLES.into_iter().any(open::is_set);
    let sink = chosen.unwrap_or_else(Sink::Off);
    if !matches!(present, Sink::Unchosen) && sink.is_waiting() {
        return present; // A second failure is not published, because each published sink stays in memory forever.
    }
    match SINK.publish(present, Box::new(sink)) {
        Ok(sink) => {
            is_chosen(sink);
            if sink.properties().is_some() {
                process::with_argv0(|_| ()); // Reads the process's name now, while files may be opened.
            }
            if let Sink::Off(Failure { reason, may_pass: false }) = sink
                && is_wrong
            {
                process::complain(&format!("atrace: {reason}; tracing is off"));
            }
            sink
        }
        Err(faster) => faster,
    }
}

/// The variables that select a sink or its properties. If one of these variables is set and no sink can be opened, an
/// error is printed, unless a later attempt may succeed. If none of them is set, it is normal that there is no sink,
/// because only root may open the marker.
const VARIABLES: [&str; 3] = ["ATRACE_BACKEND", "ATRACE_MARKER", "ATRACE_PROPERTIES"];

/// Chooses the sink by the rules in the crate's documentation.
fn choose() -> Result<Sink, Failure> {
    let Some(backend) = process::variable("ATRACE_BACKEND") else { return by_default() };
    match backend.as_encoded_bytes() {
        b"marker" => marker(),
        b"cutils" => cutils(None),
        b"ndk" => ndk(None),
        b"perfetto" => {
            enable_perfetto();
            producer::expect_events();
            Ok(Sink::Off(Failure::lasting(&"ATRACE_BACKEND=perfetto: events go to Perfetto's service alone")))
        }
        b"none" => Ok(Sink::Off(Failure::lasting(&"ATRACE_BACKEND=none"))),
        value => {
            if let Some(path) = process::strip_prefix(&backend, "cutils:") {
                cutils(Some(path))
            } else if let Some(path) = process::strip_prefix(&backend, "ndk:") {
                ndk(Some(path))
            } else {
                Err(Failure::lasting(&format_args!(
                    "ATRACE_BACKEND={} is not one of marker, cutils, cutils:/path/libcutils.so, ndk, \
                     ndk:/path/libandroid.so, perfetto, none",
                    String::from_utf8_lossy(value)
                )))
            }
        }
    }
}

fn marker() -> Result<Sink, Failure> {
    MarkerSink::open().map(Sink::Marker)
}

fn cutils(path: Option<&OsStr>) -> Result<Sink, Failure> {
    CutilsSink::load(path).map(Sink::Cutils)
}

fn ndk(path: Option<&OsStr>) -> Result<Sink, Failure> {
    NdkSink::load(path).map(Sink::Ndk)
}

#[cfg(target_os = "android")]
fn by_default() -> Result<Sink, Failure> {
    in_androids_order(None, None)
}

#[cfg(not(target_os = "android"))]
fn by_default() -> Result<Sink, Failure> {
    marker()
}

/// Chooses the sink on Android: the marker if `ATRACE_MARKER` names one; otherwise libcutils, which the dynamic linker
/// denies to apps; otherwise libandroid, which apps can load; otherwise the marker, which is the only sink of a
/// statically linked program.
#[cfg(any(target_os = "android", test))]
fn in_androids_order(libcutils: Option<&OsStr>, libandroid: Option<&OsStr>) -> Result<Sink, Failure> {
    if open::is_set("ATRACE_MARKER") {
        return marker();
    }
    let not_cutils = match cutils(libcutils) {
        Err(Failure { reason, may_pass: false }) => reason,
        found => return found,
    };
    let not_ndk = match ndk(libandroid) {
        Err(Failure { reason, may_pass: false }) => reason,
        found => return found,
    };
    marker().map_err(|failure| {
        let reason = format!("{}; {not_cutils}; {not_ndk}", failure.reason);
        Failure { reason, ..failure }
    })
}

#[cfg(all(test, target_os = "linux"))]
#[path = "../../tests/standins/mod.rs"]
#[expect(unreachable_pub, reason = "a module of the integration tests")]
mod standins;

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// Tests which sink is chosen in a service, in an app (which may load only libandroid), and in a program that can't
    /// load either library.
    #[test]
    #[cfg_attr(miri, ignore = "loads libraries")]
    fn android_prefers_libcutils_then_libandroid_then_the_marker() {
        const NAME: &str = "sink::choice::tests::android_prefers_libcutils_then_libandroid_then_the_marker";
        let directory = tempfile::tempdir().unwrap();
        // The test runs again in another process, with its own property store, because a test must not create the
        // user's store.
        if !open::is_set("ATRACE_PROPERTIES") {
            let mut again = std::process::Command::new(std::env::current_exe().unwrap());
            again.args([NAME, "--exact"]).env("ATRACE_PROPERTIES", directory.path().join("properties"));
            let output = again.output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && said.contains("1 passed"), "{said}");
            return;
        }
        let libcutils = standins::build("libcutils", 34, directory.path());
        let libandroid = standins::build("libandroid", 29, directory.path());
        let missing = ["/nonexistent/libcutils.so", "/nonexistent/libandroid.so"];
        let choose = |libcutils, libandroid| in_androids_order(Some(libcutils), Some(libandroid));
        assert!(matches!(choose(libcutils.as_os_str(), libandroid.as_os_str()), Ok(Sink::Cutils(_))));
        assert!(matches!(choose(OsStr::new(missing[0]), libandroid.as_os_str()), Ok(Sink::Ndk(_))));
        match choose(OsStr::new(missing[0]), OsStr::new(missing[1])) {
            Ok(Sink::Marker(_)) => {}
            Err(Failure { reason, .. }) => {
                assert!(missing.iter().all(|library| reason.contains(library)), "{reason}");
            }
            other => panic!("{other:?}"),
        }
    }
}
