//! ATrace for Rust: events in the kernel's trace buffer, where Perfetto draws them.
//!
//! ```
//! use atrace::{AtraceTag, begin_scoped_event, atrace_int};
//!
//! fn frame(queued: i32) {
//!     let _frame = begin_scoped_event(AtraceTag::App, "frame"); // a slice, until the end of the scope
//!     atrace_int(AtraceTag::App, "queued", queued);             // a counter
//! }
//! # frame(3);
//! ```
//!
//! Off, an event costs three loads and a branch: under a nanosecond, no call. On, it costs one `write(2)` of
//! a message built on the stack and a few nanoseconds. Neither allocates. No function panics, blocks, signals
//! or changes errno, whatever the name, the state of the trace buffer or the content of the properties.
//!
//! # When is it on?
//!
//! Tracing is switched from outside, by system properties: Android's, or on a Linux host those of a small
//! store of our own (one per user, see [`control`]). An event is written when one of its tags is enabled:
//!
//! - [`AtraceTag::App`], when a pattern `debug.atrace.app_0` … matches the name of the process;
//! - any other tag, when its bit is set in `debug.atrace.tags.enableflags`.
//!
//! A switch is noticed by the first event after it. [`atrace_is_tag_enabled`] asks before costly work, and
//! [`watch()`](watch::watch) calls back when the enabled tags change.
//!
//! # Where do events go?
//!
//! On Android to libcutils where it can be loaded, else (in an app) to libandroid, else (in a statically
//! linked executable) to the kernel's `trace_marker`; on a Linux host to `trace_marker`, which usually only
//! root may open (then tracing is off, and [`sink()`] says why); on other systems nowhere. Environment
//! variables choose otherwise, except in a process with elevated rights (`AT_SECURE`). A wrong value is
//! reported on stderr, once, and tracing is off.
//!
//! | variable | value |
//! |---|---|
//! | `ATRACE_BACKEND` | `marker`, `cutils`, `cutils:/path/libcutils.so`, `ndk`, `ndk:/path/libandroid.so`, `perfetto` (its service alone), `none` |
//! | `ATRACE_MARKER` | a path, or `fd:N:DEV:INO`: the inherited descriptor N, which must be the file with that device and inode. Files of tracefs, regular files and character devices only |
//! | `ATRACE_PROPERTIES` | the file of another property store (hosts) |
//! | `ATRACE_SHMEM_KB` | the size of the memory that is shared with Perfetto's service: 64 to 32768, 1024 by default. What a program writes within 10 ms and more has to fit, or events are lost |
//! | `ATRACE_STATE` | `none`: the process publishes no state (hosts) |
//!
//! On a host a process that traces publishes what it found, its *state*, in a memory file (`memfd_create`) of
//! one page, whose descriptor has a high number like that of the marker. Root and the same user can read it,
//! which is what `atrace doctor` does. [`state`] says what is in it. It is written
//! where properties are read, not by events, and the descriptor may be closed.
//!
//! That is found out once, as the program or library is loaded, before `main`: a variable that the program sets for itself
//! comes too late, and no event opens anything. What failed
//! then for want of a descriptor or memory is tried again whenever [`atrace_init`], [`atrace_get_enabled_tags`], [`sink()`],
//! [`atrace_update_tags`] or [`atrace_set_tracing_enabled`] is called, and once a second by a [watch](watch::watch).
//!
//! An old libcutils lacks functions (the end of a slice before Android 8; instants and tracks before 13):
//! those events are written to `trace_marker` in its form. libandroid knows [`AtraceTag::App`] alone, and
//! neither instants nor tracks: an instant becomes a slice without duration, a slice on a track an async
//! slice named after the track. Its async slices and counters need Android 10; before that they are dropped.
//! Whether tracing is on is what it says; it says so before each event, too, so the end of a slice may be
//! missing when tracing is switched off in between.
//!
//! # Perfetto's service
//!
//! [`perfetto::connect`] makes the process a producer of Perfetto's tracing service: events of the tags that a session asks
//! for then go into memory shared with it, without a system call and without any right. Where a tag is on for ATrace as
//! well, its events go there, unless the property `debug.atrace.prefer_sdk` has its bit; never both ways. The same
//! functions write them, [`atrace_is_tag_enabled`] and watches see both, [`atrace_set_tracing_enabled`] parks both.
//! [`perfetto::record_to`] records the process into a file, with no service at all.
//!
//! Bytes of names stay there as they are, and an event is cut at some KiB. An end that no begin of the session belongs to
//! is not written. An event in a signal handler that interrupts another event of its thread is lost, and counted. With
//! `ATRACE_BACKEND=perfetto` the process' first event connects, and waits up to 5 s for a service that is there to say which
//! sessions there are; not in a signal handler: on a signal stack, or while a signal is blocked that has a handler. What does
//! not wait, or for longer, is lost, and counted.
//!
//! # Descriptors
//!
//! The marker is kept open, at the highest number that the soft limit allows, 4095 at most: a program that closes
//! what it did not open, and then opens files of its own, gets the lowest. A closed marker is opened again by the
//! next event, which is not lost. If its number became that of something else meanwhile, events are written there
//! until that is noticed:
//!
//! - by a thread's first event, and each 256th from then on: so 255 events of a thread go astray at most (on Android
//!   256 of a stack), and after `fork` as many of the child's;
//! - at each switch of tracing;
//! - at once, when a message is not taken whole: by a socket without a peer, a full pipe that does not block, a file
//!   open for reading.
//!
//! From then on nothing is written there: the marker is opened at another number, where there is one to be had, and
//! dropped where there is none ([`SinkInfo::dropped`]). Until then a pipe or socket at the number may block, or raise
//! SIGPIPE. A regular file must not grow past `RLIMIT_FSIZE`, which would raise SIGXFSZ: one that has such a limit is
//! no place for events, and a limit that is set later is noticed as above. Room for 256 KiB per thread must be left
//! below it, unless [`atrace_update_tags`] is called after setting it.
//!
//! # Confinement
//!
//! A process that takes system calls away from itself (seccomp) calls [`atrace_init`] first, in a forked child
//! [`atrace_update_tags`]. From then on events and switches need `write` and `fstat` (`newfstatat` in new libcs),
//! and `prlimit64` where events go to a regular file; a [watch](watch::watch) also needs `futex`, and what the
//! allocator needs. An event in Perfetto's memory asks for its thread now and then (`gettid`, `prctl`). A descriptor that
//! was closed is opened again, which needs more. The name of the process is read then and kept, also in children:
//! who changes it calls [`atrace_update_tags`].
//!
//! After [`atrace_init`] an event and a switch have room on a signal stack of 8 KiB, also where nothing was optimised; one with
//! arguments on 16 KiB.
//!
//! # The command
//!
//! `cargo install atrace-cli` installs the command `atrace`: `run` starts a program and saves what it traces in a file for
//! <https://ui.perfetto.dev>, and `doctor` says why nothing is traced. This library does not depend on it.
//!
//! # Names
//!
//! A name may hold anything and be of any length. What could forge or damage another event is replaced: bytes
//! 0x00–0x1F and 0x7F become `?`, and so does the `<` of `</script>`, which ends a trace for Perfetto's
//! reader; `|` becomes `/` except in the name of a begin. A message has at most 1023 bytes, libcutils' limit:
//! a longer name is cut, between characters; a track is cut only where it would leave no room for a character
//! of the name and a cookie, the same in every event of that track. An empty name is written as it is in a
//! begin, and as `?` elsewhere, where Perfetto would refuse the event.
//!
//! Each function that takes a name has two companions that spare a `String`: `…_fmt` takes `format_args!`,
//! `…_with` a closure that writes the name piece by piece. Neither formats anything while the tag is off.
//!
//! # Arguments
//!
//! The functions that end in `_args` take typed arguments and flows, [`Arg`]: text behind the name by ATrace, values of their
//! types in Perfetto's memory. All arguments of an event have 2 KiB there, a text 1,000 bytes: one that is cut ends in `…`,
//! and an argument `left_out` says how many had no room. They take a [`Name`] as well, which Perfetto's service is sent once;
//! [`trace_name!`] and [`trace_method!`] have one.
//!
//! # Pairing
//!
//! `atrace_begin` and `atrace_end` nest, per thread. They are stateless, as in C: when tracing is switched on
//! or off in between, one of the two is missing. [`ScopedEvent`] writes its end exactly when its begin was
//! written.
//!
//! # Fork
//!
//! A forked child may trace at once, under its own process id. (Not between `vfork` and `exec`.)
//!
//! # Signal handlers
//!
//! An event may be written in a signal handler, whatever it interrupts, and in a child that the handler forks: nothing
//! below an event allocates, takes a lock, or starts a thread of the C library, and errno stays as it was. What formats a
//! name or an argument is the program's own code. Two exceptions are the system's: libcutils takes a lock of its own where it
//! reads its tags anew, after a switch; and a library that is loaded by `dlopen` has its thread-locals made by the C library at
//! the first event of each thread: one allocation with glibc 2.36, none from the second event on. (Before Android 10 all
//! thread-locals are made so.)
//!
//! The wire format and the rules of the properties are those of AOSP's libcutils (`libcutils/trace-dev.inc`);
//! what the reader accepts is Perfetto's systrace importer's.

mod args;
mod began;
pub mod control;
mod enabled;
mod events;
mod flags;
mod gate;
#[cfg(not(no_tracing))]
mod load;
mod macros;
mod message;
mod name;
pub mod perfetto;
#[cfg(all(feature = "perfetto", not(no_tracing)))]
mod producer;
#[cfg(any(no_tracing, not(feature = "perfetto")))]
#[path = "no_perfetto.rs"]
#[expect(dead_code, missing_docs, reason = "it has the names of what is encoded, and nothing is")]
mod producer;
mod refresh;
mod scoped;
mod sink;
pub mod state;
mod status;
mod tag;
mod typed;
pub mod watch;
mod way;

/// What threads share; in the models, loom's.
mod sync {
    pub(crate) use atrace_sys::AtomicRef;
    pub(crate) use std::sync::{Mutex, MutexGuard, atomic};
}

pub use args::Arg;
pub use enabled::{Enabled, Glance, PreparedTag, glance};
pub use events::*;
#[cfg(not(no_tracing))]
pub use load::skip_load;
pub use message::NameWriter;
pub use name::{EventName, Name};
pub use scoped::{ScopedEvent, begin_scoped_event, begin_scoped_event_fmt, begin_scoped_event_with};
pub use sink::choice::sink;
pub use sink::{SinkInfo, SinkKind};
pub use tag::AtraceTag;
pub use typed::{
    atrace_async_for_track_begin_args, atrace_begin_args, atrace_instant_args, atrace_instant_for_track_args,
    atrace_int64_name, begin_scoped_event_args,
};

#[doc(hidden)]
pub use macros::private as __private;
#[doc(hidden)]
pub use message::{__Text, __with_text};

/// For `atrace-subscriber`: callsites, and arguments that are encoded by who knows their types.
#[doc(hidden)]
pub mod __typed {
    pub use crate::producer::{
        About, ArgKey as Key, Encoder, FLOW_ROOM, Number, Scalar, Site, flow, flow_number,
    };
    pub use crate::sink::first::are_two_ways as is_used;
    pub use crate::way::{Ways, only_atrace, only_perfetto};
}

/// For `atrace-subscriber`: a subscriber began, or ceased, to keep what it was told of the tags.
#[doc(hidden)]
pub fn __note_filter(began: bool) {
    state::note_filter(began);
}
