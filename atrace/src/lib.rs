//! ATrace for Rust: functions that write events into the kernel's trace buffer or into Perfetto's memory.
//! Perfetto draws the events.
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
//! While tracing is off, an event compares three words and branches, which takes about a nanosecond; it calls no
//! function. While tracing is on, an event for ATrace costs one `write(2)` of a message on the stack, plus a few tens
//! of nanoseconds. An event does not allocate, except in the cases [below](#signal-handlers). The functions that write
//! events do not panic, block, raise a signal or change errno, whatever the text of the name, the state of the trace
//! buffer or the content of the properties are. There are exceptions:
//!
//! - A closure that writes a name may panic.
//! - libcutils takes a lock when it reads the tags after tracing was switched on or off.
//! - An event may block or raise a signal if the program [reuses the number of the marker's descriptor](#descriptors),
//!   or if it sets a limit for the size of files (`RLIMIT_FSIZE`) that is below the size of the file that
//!   `ATRACE_MARKER` names.
//! - Only an event for [Perfetto's service](#perfettos-service) may wait. One of the first events of a process may wait
//!   for the service; any event may wait for room in the shared memory, if a session asks for that.
//!
//! # When is tracing on?
//!
//! Tracing is switched by system properties, usually from outside of the process. On Android, these are the system's
//! properties. On a *host* (a Linux machine without Android), they are in a small property store that this crate
//! provides for each user (see [`control`]). An event is written if one of its tags is enabled:
//!
//! - [`AtraceTag::App`] is enabled if one of the patterns `debug.atrace.app_0` … matches the name of the process;
//! - [`AtraceTag::Always`] is enabled even if no tag was switched on;
//! - any other tag is enabled if its bit is set in `debug.atrace.tags.enableflags`. If this property is not a number, no tag
//!   is enabled.
//!
//! The first event after a switch of tracing notices the switch (libandroid may notice it a moment later).
//! [`atrace_is_tag_enabled`] returns whether a tag is enabled, for code that prepares data only for a trace.
//! [`watch()`](watch::watch) calls a function when the enabled tags change.
//!
//! # Where do events go?
//!
//! | system | backend |
//! |---|---|
//! | Android | libcutils if it can be loaded; else libandroid, which apps can load; else the kernel's `trace_marker`, for statically linked executables |
//! | Linux host | `trace_marker`, which usually only root may open; if it can't be opened, tracing is off and [`sink()`] says why |
//! | other systems | none |
//!
//! Environment variables change these rules, except in a process with elevated rights (`AT_SECURE`). If the process
//! uses one of the first three variables below and its value is invalid, the process writes no events for ATrace, and
//! prints one message about that on stderr. [`perfetto::connect`] and [`perfetto::record_to`] still work in this case.
//!
//! | variable | value |
//! |---|---|
//! | `ATRACE_BACKEND` | `marker`, `cutils`, `cutils:/path/libcutils.so`, `ndk`, `ndk:/path/libandroid.so`, `perfetto` (only Perfetto's service), `none` |
//! | `ATRACE_MARKER` | the path of the file that takes the messages; or `fd:N:DEV:INO`, an inherited descriptor |
//! | `ATRACE_PROPERTIES` | the path of another property store (only on hosts) |
//! | `ATRACE_SHMEM_KB` | the size of the memory that is shared with Perfetto's service, in KiB: 64 to 32768 |
//! | `ATRACE_STATE` | `none`: the process publishes no *state*, which is described below (only on hosts) |
//!
//! With `ATRACE_MARKER=fd:N:DEV:INO`, the descriptor N must refer to the file with this device and inode. The file that
//! `ATRACE_MARKER` names must be in tracefs, a regular file, or a character device that is not a terminal.
//!
//! Without `ATRACE_SHMEM_KB`, the service creates the memory, in the size that the session asks for, by default 1024
//! KiB. `atrace run` sets the variable to 32768, unless the user has set it. Pages that are never used take no physical
//! memory. Events are lost if the memory is full before the service has emptied it.
//!
//! The backend is chosen and opened once: before `main`, or by the `dlopen` that loads the library. So a variable has
//! no effect if the program itself sets it after that. (`ATRACE_SHMEM_KB` is read at the first call of [`atrace_init`],
//! [`perfetto::connect`] or [`perfetto::record_to`].) An event opens no file, with three exceptions: an event reopens
//! the marker if the program has closed it; an event creates the memory file that is described below, if the process
//! has none yet; and the first event of a process reads `/proc/self/stat` if it connects the process to Perfetto's
//! service. If the backend could not be opened for lack of descriptors or memory, these functions try again:
//! [`atrace_init`], [`atrace_get_enabled_tags`], [`sink()`], [`atrace_update_tags`], [`atrace_set_tracing_enabled`],
//! [`perfetto::connect`], [`perfetto::record_to`], and a [watch](watch::watch) once a second.
//!
//! On a host, a process that traces publishes its *state* for `atrace doctor`: the backend, the enabled tags and
//! reasons of failures ([`state_page`] lists them). The state is one page of a memory file (`memfd_create`), whose
//! descriptor has a high number, as the marker's descriptor has. Only root and the same user can read the page. The
//! process writes the page after it has read the properties, and in a few rarer cases; this needs no system call. The
//! program may close the descriptor of the memory file.
//!
//! An old libcutils lacks some functions: before Android 8, the function that ends a slice; before Android 13, the
//! functions for instants and tracks. An event for which libcutils has no function is written to `trace_marker`, in
//! libcutils' format, if the process may open that file. libandroid supports only [`AtraceTag::App`], and neither
//! instants nor tracks: an instant becomes a slice without duration, and a slice on a track becomes an async slice with
//! the name of the track. libandroid has async slices and counters since Android 10; on older versions, async slices
//! and counters are dropped. libandroid itself checks again, at each event, whether tracing is on. So the end of a
//! slice is missing if tracing is switched off before the end.
//!
//! # Perfetto's service
//!
//! [`perfetto::connect`] makes the process a producer of Perfetto's tracing service. If a session of the service wants
//! a tag, events with this tag go into memory that is shared with the service. To write them, the process needs no
//! system call and no special rights. If the tag is enabled for ATrace as well, its events go to ATrace, unless the
//! property `debug.atrace.prefer_sdk` has the tag's bit. No event goes to both. [`perfetto::record_to`] writes the
//! events of the process into a file, without a service.
//!
//! The same functions write events for ATrace and for Perfetto. [`atrace_is_tag_enabled`] and watches consider the tags
//! of both backends, and [`atrace_set_tracing_enabled`] disables both backends.
//!
//! For Perfetto, no bytes of a name are replaced. A name or a string argument that is passed as `&str` may have 64 KiB
//! (the name of a track or a counter 1 KiB); a longer text is cut. An event may have about 256 KiB; for a longer event,
//! lower limits apply, which [Arguments](#arguments) lists. An [`atrace_end`] is dropped if its begin was not recorded
//! in the same session. An event is lost and counted if a signal handler writes it while the handler's thread is in the
//! middle of writing another event.
//!
//! With `ATRACE_BACKEND=perfetto`, the first event connects the process to the service. If a service runs, the event
//! waits until the service has reported which sessions exist, at most 5 s. An event does not wait in a signal handler;
//! the library assumes a handler if the thread is on a signal stack, or if a signal that has a handler is blocked.
//! Events that do not wait, or that wait in vain, are lost and counted.
//!
//! # Descriptors
//!
//! The descriptor of the marker stays open. Its number is the highest free number that the soft limit of descriptors
//! allows, but at most 4095. A program may close descriptors that it did not open, such as the marker's. Files that the
//! program opens later get the lowest free numbers, so they rarely get the marker's number.
//!
//! If the program has closed the marker, the next event opens it again and is not lost, provided that the process may
//! still open it (for `fd:N:DEV:INO`, that descriptor N is still open). But if the program has opened another file
//! meanwhile, and this file got the marker's number, events are written into this wrong file until the library checks
//! the descriptor:
//!
//! - The library checks the descriptor at the first event of a thread, and at each 256th event after that. (On Android,
//!   events are counted for each MiB of stack memory instead, and threads may share a count.) So at most 255 events of
//!   a thread (on Android, of a count) are written to the wrong file, and at most as many events of a forked child;
//! - the library checks the descriptor at each switch of tracing;
//! - the library checks the descriptor at once if only a part of a message or none of it was written, as happens with a
//!   socket without a peer, a full non-blocking pipe, or a file that is open for reading only.
//!
//! If the descriptor refers to another file, the library opens the marker again, under another number. If no number is
//! free, events are dropped ([`SinkInfo::dropped`]). Until the check, an event may block or raise SIGPIPE if a pipe or
//! socket has the marker's number.
//!
//! If an event made a regular file larger than the limit `RLIMIT_FSIZE`, the kernel would raise SIGXFSZ. So no events
//! are written to a regular file while such a limit is set. If the program sets the limit later, the library notices
//! that only when it checks the descriptor, and until then each thread may write up to 256 KiB. So the limit must leave
//! room for 256 KiB per thread, unless the program calls [`atrace_update_tags`] after setting the limit.
//!
//! # Plugins
//!
//! A shared library that contains this crate stays loaded until the process ends. If a program calls `dlclose` and
//! loads the library again, it gets the same instance as before, with the same statics, threads and descriptors. To
//! load a rebuilt library, use another path.
//!
//! # Confinement
//!
//! Before a process gives up system calls (seccomp), it must call [`atrace_init`]. A forked child must call
//! [`atrace_update_tags`] before it does so. After these calls:
//!
//! - events, including the first event after a switch of tracing, need `write` and `fstat` (`newfstatat` in new C
//!   libraries), and `prlimit64` if events go to a regular file;
//! - a [watch](watch::watch) also needs `futex` and the calls of the allocator;
//! - events for Perfetto ask now and then for the ids of the process and the thread, the thread's name, and whether
//!   seccomp confines the thread (`getpid`, `gettid`, `prctl`). Long events, and events that wait for room, also ask
//!   whether they are in a signal handler (`sigaltstack`, `rt_sigprocmask`, `rt_sigaction`). Events that wait also
//!   sleep (`ppoll`);
//! - the process no longer connects to [recordings](atrace_init) that begin after its main thread, or each of its
//!   threads, was confined, or after its main thread has ended. Before Linux 5.9, and after [`perfetto::connect`], the
//!   library does not notice these cases. A filter for all threads must allow the system calls of the thread that talks
//!   to the service, which `docs/security.md` of the repository lists;
//! - without a state page (`ATRACE_STATE=none`, Android), the first event needs `getpid`;
//! - opening the marker again, after the program has closed it, needs more system calls.
//!
//! The name of the process is read once, when the library is loaded or, at the latest, by [`atrace_init`]; a forked
//! child inherits the stored name. A program that changes the name must call [`atrace_update_tags`].
//!
//! # Signal stacks
//!
//! After [`atrace_init`], an event in a signal handler needs 8 KiB of the signal stack, or 16 KiB in an unoptimised
//! build, even if the event notices a switch of tracing. If the code that formats a name needs more stack, add the
//! amount that it needs. In addition, the kernel stores data on the signal stack: at most `getauxval(AT_MINSIGSTKSZ)`
//! bytes, between 1 and 12 KiB depending on the processor.
//!
//! # The command
//!
//! `cargo install --path crates/atrace-cli`, in a checkout, installs the command `atrace`: `run` starts a program and
//! saves its trace in a file for <https://ui.perfetto.dev>, and `doctor` explains why nothing is traced. This library
//! does not depend on the command.
//!
//! # Names
//!
//! A name may contain any characters and have any length. For ATrace, bytes that could forge or damage another event
//! are replaced:
//!
//! - 0x00–0x1F and 0x7F become `?`;
//! - the `<` of `</script>` becomes `?`, because Perfetto's reader takes `</script>` for the end of the trace;
//! - `|` becomes `/`, except in the name of a begin.
//!
//! A message has at most 1023 bytes, libcutils' limit. A name that does not fit is cut between two characters. The name
//! of a track is cut only if it would leave no room for one character of the event's name and the longest cookie. This
//! limit is the same for all events, so a track has the same name in all of its events. An empty name stays empty in
//! the begin of a slice. In other events an empty name becomes `?`, because Perfetto refuses such events without a
//! name.
//!
//! The functions that also exist in AOSP take a name as `&str`. The functions that end in `_args` or `_named`, and
//! [`atrace_counter`], take any [`EventName`], such as `format_args!` or a closure that writes the name piece by piece.
//! These functions format nothing while the tag is off.
//!
//! # Arguments
//!
//! The functions that end in `_args` take typed arguments and flows ([`Arg`]). For ATrace, arguments become text after
//! the name. In Perfetto's memory the arguments keep their types, and a string may have 64 KiB. Lower limits apply to
//! an event that is written in a signal handler, that has more than about 256 KiB, or that goes to a session whose
//! configuration leaves out arguments or names: 1,000 bytes for a string, 2 KiB for all arguments of an event together,
//! and 1 KiB for the event's name (6 KiB if the event has no arguments). The name of an argument has at most 64 bytes.
//! A string that is cut ends in `…`, and an argument `left_out` has the number of arguments for which there was no
//! room. A name that is formatted, or written by a closure, has at most 1023 bytes. In Perfetto's memory, a [`Name`]
//! has at most 512 bytes if events contain a number instead of its text.
//!
//! A name may also be a [`Name`], a constant that each thread usually sends to Perfetto's service only once in many
//! events. [`trace_name!`] and [`trace_method!`] make such a constant.
//!
//! # Tracers
//!
//! A *tracer* passes the events of another library to this crate. The module [`tracer`] has the functions with which a
//! tracer writes events, and the module [`watch`](mod@watch) calls a tracer when tracing is switched. The crate
//! `atrace-subscriber` is a tracer for `tracing`. It also uses the crate `atrace-sys`, for forks and threads.
//!
//! # Pairing
//!
//! `atrace_begin` and `atrace_end` nest on each thread. Like AOSP's functions, they do not record for ATrace which
//! slices are open: if tracing is switched between a begin and its end, one of the two is missing. (In Perfetto's
//! memory, an end without its begin is dropped.) A [`ScopedEvent`] writes its end if and only if its begin was written.
//!
//! # Fork
//!
//! A forked child may trace at once, under its own process id. A child of `vfork` must not trace before `exec`.
//!
//! # Signal handlers
//!
//! An event may be written in a signal handler, whatever the handler interrupts, and in a child that the handler forks.
//! The functions that an event calls do not allocate, take a lock, start a thread with the C library or change errno.
//! The program's own code that formats a name or an argument may do all of this. The library itself has two exceptions:
//!
//! - libcutils takes a lock of its own when it reads the tags after a switch.
//! - In a library that was loaded by `dlopen`, the C library creates the thread-locals at the first event of each
//!   thread. glibc 2.36 allocates once for that. On Android before version 10, the C library creates the thread-locals
//!   of every program in this way.
//!
//! # Features
//!
//! - `perfetto` (default): the backend for Perfetto's service. Without this feature, the functions of
//!   [`perfetto`](mod@perfetto) do nothing, and [`perfetto::record_to`] returns an error.
//!
//! # Sources
//!
//! The wire format and the rules of the properties are those of AOSP's libcutils (`libcutils/trace-dev.inc`).
//! Perfetto's systrace importer reads the format.

/// Tests the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod args;
#[cfg_attr(no_tracing, path = "no_attach.rs")]
mod attach;
mod backend;
pub mod control;
mod event;
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
#[expect(dead_code, missing_docs, reason = "has the items of `producer.rs`, of which nothing is used")]
mod producer;
mod refresh;
mod scoped;
mod sink;
mod slice;
mod state;
mod status;
pub mod tags;
pub mod tracer;
pub mod watch;

/// The synchronisation types of this crate. The models for `loom` (`crates/models`) use loom's types in their place.
mod sync {
    pub(crate) use atrace_sys::AtomicRef;
    pub(crate) use std::sync::{Mutex, MutexGuard, atomic};
}

pub use args::Arg;
pub use events::*;
#[cfg(not(no_tracing))]
pub use load::skip_load;
pub use message::NameWriter;
pub use name::{EventName, Name};
pub use scoped::{ScopedEvent, begin_scoped_event, begin_scoped_event_args};
pub use sink::SinkInfo;
pub use sink::choice::sink;
pub use state::state_page;
pub use tags::AtraceTag;

/// The function that the macros of this crate call. Other code must not use it.
#[doc(hidden)]
pub mod __private {
    pub use crate::scoped::begin_scoped_event_at;
}
