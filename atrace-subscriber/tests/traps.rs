//! Tests that spans and events of callsites that are registered with `tracing` call no allocator and no lock. The
//! documentation promises this for `AtraceSubscriber` without other layers, which a signal handler may use. (`tracing`
//! takes a lock for a new callsite, and a registry allocates.)
//!
//! `atrace/tests/traps/traps.c` lists the functions whose calls the test detects.
#![cfg(all(target_os = "linux", target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]
#![allow(unsafe_code, reason = "a library's functions are found by their names, and children forked")]

#[path = "../../atrace/tests/common/mod.rs"]
mod common;

use std::path::Path;
use std::process::Command;

use atrace_subscriber::AtraceSubscriber;
use tracing::{Span, info, info_span};

use common::{Place, case};

const KINDS: &[(&str, fn())] = &[
    ("event", || info!("message")),
    ("event with fields", || info!(number = 7, text = "text", "message {}", 7)),
    ("span", || drop(info_span!("span"))),
    ("span entered", || drop(info_span!("entered").entered())),
    ("span with fields", || drop(info_span!("fields", number = 7, text = "text").entered())),
    ("recorded", || {
        let span = info_span!("recorded", number = tracing::field::Empty).entered();
        span.record("number", 7);
    }),
    ("cloned", || {
        let span = info_span!("cloned");
        let other = span.clone();
        drop(span);
        other.in_scope(|| info!("inside"));
    }),
    ("current", || {
        let _span = info_span!("current").entered();
        drop(Span::current());
    }),
    ("counter", || info!(counter.number = 7)),
];

type State = (&'static str, fn(fn()));
/// The situations in which each kind of event is tested: as the second event, as one of many events, and after a fork.
/// `tracing` has registered the callsites before, because the test first writes each kind of event once.
const STATES: &[State] = &[
    ("another one", |event| {
        event();
        trapped(event, 1);
    }),
    ("many", |event| trapped(event, 300)),
    ("after a fork", |event| in_child(|| trapped(event, 1))),
];

fn trapped(event: fn(), times: u32) {
    // SAFETY: both functions have these types, and are in the library that was loaded first.
    let (arm, disarm) = unsafe {
        let arm = libc::dlsym(libc::RTLD_DEFAULT, c"traps_arm".as_ptr());
        let disarm = libc::dlsym(libc::RTLD_DEFAULT, c"traps_disarm".as_ptr());
        assert!(!arm.is_null() && !disarm.is_null(), "without the library this tests nothing");
        (
            std::mem::transmute::<*mut libc::c_void, extern "C" fn()>(arm),
            std::mem::transmute::<*mut libc::c_void, extern "C" fn() -> i32>(disarm),
        )
    };
    arm();
    for _ in 0..times {
        event();
    }
    assert_eq!(disarm(), 0, "what was called is on stderr");
}

fn in_child(body: impl FnOnce()) {
    // SAFETY: the child ends without returning from here, also after a panic.
    unsafe {
        let child = libc::fork();
        assert!(child >= 0);
        if child == 0 {
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
            libc::_exit(i32::from(ended.is_err()));
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &mut status, 0), child);
        assert_eq!(status, 0);
    }
}

#[test]
fn spans_and_events_reach_no_allocator_and_no_lock() {
    let name = case!({
        let is_recorded = std::env::var_os("RECORDED").is_some();
        let recording = is_recorded.then(|| atrace::perfetto::record_to("/dev/null").unwrap());
        tracing::subscriber::set_global_default(AtraceSubscriber::default()).unwrap();
        assert!(tracing::enabled!(tracing::Level::INFO));
        KINDS.iter().for_each(|(_, event)| event());
        for (state, run) in STATES {
            for (kind, event) in KINDS {
                eprintln!("{state}: {kind}");
                run(*event);
            }
        }
        drop(recording);
    });
    for recorded in [false, true] {
        // A recording by Perfetto contains the events even if tracing by ATrace is off.
        let place = if recorded { Place::file() } else { Place::file().on() };
        let built = place.path("traps.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../atrace/tests/traps/traps.c");
        let mut compiler = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
        compiler.args(["-shared", "-fPIC", "-O1"]).arg(source).arg("-o").arg(&built).arg("-ldl");
        assert!(compiler.status().unwrap().success(), "{compiler:?}");
        let mut command = place.command(&name);
        command.env("LD_PRELOAD", &built);
        if recorded {
            command.env("RECORDED", "yes");
        }
        common::run(&mut command);
        assert_eq!(place.text().is_empty(), recorded);
    }
}
