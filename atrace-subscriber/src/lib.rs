//! Writes the spans and events of [`tracing`](https://docs.rs/tracing) to Android's ATrace and to
//! [Perfetto](https://ui.perfetto.dev), which displays them.
//!
//! ```
//! use atrace_subscriber::AtraceSubscriber;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! tracing::subscriber::set_global_default(AtraceSubscriber::default().with_filter())?;
//!
//! let _frame = tracing::info_span!("frame", number = 7).entered(); // a slice, until the end of the scope
//! tracing::info!(queued = 3, "decoding");                          // an instant
//! tracing::info!(counter.queued = 3);                              // a counter
//! # Ok(())
//! # }
//! ```
//!
//! While tracing is off, a program with this subscriber runs as fast as without a subscriber. While tracing is on, an
//! event of ATrace costs little more than the system call that writes it, and an event in Perfetto's shared memory
//! costs far less. The [`atrace`] crate decides when tracing is on and where events go.
//!
//! # Which type to use
//!
//! | the program | uses |
//! |---|---|
//! | has no other subscriber or layer | [`AtraceSubscriber`]`::default().`[`with_filter()`](AtraceSubscriber::with_filter): no registry, hardly any allocation, free while off |
//! | has other layers | `registry().with(…)`, with [`AtraceLayer`]`::default().with_filter(`[`AtraceFilter`]`::default())` among the layers: while off, the others work as usual |
//! | uses the crate `log` alone | `atrace_subscriber::init_log()`, with the feature `log-bridge`; `init_log_beside(logger, level)` if it has a logger |
//! | has other layers, which are needed only while tracing is on | the layers, and [`AtraceFilter`]`::default()` as the last one: while off, the whole stack is silent and free |
//! | wants spans created while off to appear when they are entered later | [`AtraceSubscriber`] or [`AtraceLayer`] without a filter: while off, an event costs a call that does nothing |
//! | wants all events in ATrace only, or in Perfetto only | any of these, with a tag for [one backend](#one-backend) |
//! | used AOSP's `atrace_tracing_subscriber` | [`AtraceSubscriber`], alone or as a layer, as in AOSP; its [`with_filter()`](AtraceSubscriber::with_filter) silences the whole stack |
//!
//! # One backend
//!
//! [`atrace`] chooses a backend for each event. The event goes to Perfetto if its tag is enabled only by a session, or
//! if its tag is enabled for both backends and the property `debug.atrace.prefer_sdk` has the tag's bit. Otherwise the
//! event goes to ATrace. [`only_atrace`](atrace::tracer::only_atrace) and
//! [`only_perfetto`](atrace::tracer::only_perfetto) return a tag for one backend. A subscriber, layer or filter with
//! such a tag ignores the other backend. Two layers, one for each backend, write each event to every backend that wants
//! it.
//!
//! ```
//! use atrace::AtraceTag;
//! use atrace::tracer::{only_atrace, only_perfetto};
//! use atrace_subscriber::AtraceLayer;
//! use tracing_subscriber::prelude::*;
//!
//! let [to_atrace, to_perfetto] = [only_atrace, only_perfetto].map(|only| AtraceLayer::new(only(AtraceTag::App)));
//! # let _ = || {
//! tracing_subscriber::registry().with(to_atrace).with(to_perfetto).init();
//! # };
//! ```
//!
//! # Filters
//!
//! The program filters levels and targets as usual with `tracing-subscriber`:
//!
//! ```
//! use atrace_subscriber::{AtraceFilter, AtraceLayer, AtraceSubscriber};
//! use tracing_subscriber::filter::{FilterExt as _, LevelFilter};
//! use tracing_subscriber::prelude::*;
//!
//! let alone = AtraceSubscriber::default().with_filter().with(LevelFilter::DEBUG);
//! let layer = AtraceLayer::default().with_filter(AtraceFilter::default().and(LevelFilter::DEBUG));
//! # let _ = (alone, tracing_subscriber::registry().with(layer));
//! ```
//!
//! A user can add a filter without recompiling the program: by the environment variable `ATRACE_FILTER`, or by
//! `atrace run --filter`. This filter is a list of targets and levels in the language of
//! [`Targets`](tracing_subscriber::filter::Targets), such as `info,sqlx=off`. An event or a span is then recorded only
//! if it passes both the program's filter and the user's filter. The variable is read once per process. If its value
//! can't be parsed, an error is printed on stderr and the variable is ignored. Processes with elevated rights always
//! ignore it.
//!
//! | the program uses | a callsite that `ATRACE_FILTER` excludes |
//! |---|---|
//! | [`AtraceSubscriber`] alone | is disabled: it costs what it costs without a subscriber |
//! | a layer with an [`AtraceFilter`] | is disabled, too, unless another layer wants it |
//! | a layer without a filter | is not recorded; each event and span is compared with the directives |
//!
//! The feature `live` is for a program that hangs:
//! [`live::LiveLayer`](https://docs.rs/atrace-subscriber/latest/atrace_subscriber/live/), a layer, shows which spans
//! are alive, where each span was created, and which threads are in it.
//!
//! [`metered`] measures how much processor time each span or event costs, with the types of this crate or with any
//! other subscriber.
//!
//! # How spans and events are shown by ATrace
//!
//! | in the program | in the trace |
//! |---|---|
//! | an event | an instant of its thread: `message, key = value, …` |
//! | an event without a message | `key = value, …`; without fields either, `LEVEL event` |
//! | a field `counter.NAME = n` of an event, an integer | the counter `NAME`; an event with no other fields makes no instant |
//! | entering and leaving a span | a slice of its thread: `name, key = value, …` |
//! | entering a span again, for example at each poll of a future | another slice, on whichever thread |
//! | leaving a span before one that was entered later | the younger slices end with it and begin again, each up to eight times |
//! | leaving more spans in the order of their entry | after that, an older slice ends a little late: with the younger ones, or when as many ends wait as slices would begin again |
//! | a field `otel.name` of a span, or one of [`with_name_field`](AtraceLayer::with_name_field) | the span's name; it remains a field |
//! | `Span::record` | fields that show from the next time the span is entered; for an async slice, an instant on its track at once |
//! | a span with a field `atrace.track = "NAME"` | also an async slice on the track `NAME`, from the span's creation until it closes |
//! | a span, after [`with_async_spans`](AtraceLayer::with_async_spans), unless it says `Never` | an async slice on the track named by its target, in addition to slices on threads or instead of them |
//! | a span created while off, entered while on | a slice with its name, and with its fields after [`with_fields_while_off`](AtraceLayer::with_fields_while_off); with a filter nothing, because the span was never created |
//! | fields after [`without_fields`](AtraceLayer::without_fields) | nothing, except messages, counters, and the fields that name a span or its track |
//! | a value that is a `str` | its text in quotes, not escaped; as the message, without quotes |
//! | an error | its `Display` |
//! | any other value | its `Debug`; `%value` makes that its `Display` |
//! | a value that panics while it is formatted | the text written so far, `<panicked>`, and nothing further of that event; the program continues (where panics unwind) |
//! | a record of the `log` crate, through `tracing-log` | an event, without the fields for its origin |
//! | targets, levels, parents, `follows_from` | nothing, except the level in `LEVEL event`; by default, the track of a span's async slice has the name of the span's target |
//!
//! The text has the form of AOSP's subscriber. A message has at most 1023 bytes, and bytes that could damage the trace
//! are replaced: see [Names](atrace#names). An event's fields are formatted directly into its message, on the stack.
//!
//! # How spans and events are shown by Perfetto
//!
//! If events go to Perfetto ([`atrace::perfetto`]; [One backend](#one-backend) says when), fields are not added to
//! names as text: a viewer gets constant names, and arguments with their types.
//!
//! | in the program | in the trace |
//! |---|---|
//! | an event | an instant of its thread, named by its message or, without one, by the name that `name: "…"` gives it, else `module:line` |
//! | entering and leaving a span | a slice of its thread, named by the span alone |
//! | a field `otel.name` of a span, or one of [`with_name_field`](AtraceLayer::with_name_field) | the name of its slices; it remains an argument |
//! | a field | an argument with its type: bool, int, uint, float, text; `i128`, bytes, errors and `Debug` values are text |
//! | a field `counter.NAME = n` of an event, an integer or a float | the counter `NAME` |
//! | a span that is asynchronous: entered again, or not closed right after its exit | also a slice for its whole [life](#lives), on a lane: a track apart from the threads' tracks |
//! | `Span::record` | arguments at the end of the span's slice on this thread, if one is open, and at the begin of later slices; for a life or an async slice, at its end |
//! | a thread | a track with the name that the kernel has for the thread, cut at 15 bytes; with the whole name after [`note_thread_name`](atrace::perfetto::note_thread_name), which tokio's `on_thread_start` can call |
//! | the level | an argument `level` |
//! | the target | a category in addition to the tag's; only the tag's category decides whether a session gets the event |
//! | file and line | the source location |
//! | a span that is entered again, on whichever thread | another slice, and an arrow to it (a flow) from the one before; the first arrow comes from the life |
//! | `follows_from` | an arrow from the last slice of the one span to the slices of the other |
//! | a span with a field `atrace.track` | an async slice on the track of that name, in place of the life; overlapping slices are on tracks of one name, which the viewer merges |
//! | a span created while tracing was off or events went to ATrace | a slice with its name; with its arguments if tracing was off, [`with_fields_while_off`](AtraceLayer::with_fields_while_off) was called, and the process was connected to the service or could be recorded when the span was created |
//! | a record of the `log` crate | an event, with `log.file` and the like as arguments |
//! | a value that panics | the text written so far and `<panicked>`, and nothing further of that event |
//! | a text argument of more than 997 bytes, or for which there is less room | its beginning and `…`; if arguments have no room, an argument `left_out` has their number |
//!
//! The constant data of a callsite, such as its source location, is sent once by each thread, and again after many
//! events. If a program has more than 16,000 callsites, each event of a further callsite contains the callsite's data.
//! Without other layers, [`AtraceSubscriber`] usually stores nothing about a span without fields if the last 16 spans
//! of its callsite were [synchronous](#lives). So no arrow leads to or from such a span.
//!
//! # Lives
//!
//! For Perfetto, the *life* of an asynchronous span is one slice, from the creation of the span until it closes,
//! whatever threads poll it. The polls are slices on the threads; an arrow leads from the life to the first poll, and
//! from each poll to the next. So the life of a request's span shows how long the request took, the lives of its
//! descendants show what the request did, and the gaps between the polls show where the request waited.
//!
//! - *Which spans.* A synchronous span is entered once, on one thread, and closes right after it was left. It needs no
//!   life. All other spans that are entered have a life (for the exceptions see *Callsites*). A span is known to be
//!   asynchronous at the first of these signs: the span is entered again; its thread, after leaving the span, enters
//!   another span; the life of a descendant begins; the span closes, but not right after its exit; or up to 100 ms have
//!   passed since its thread left the span (or since its creation, if it was never entered). If the last 16 spans of
//!   the callsite were synchronous, the crate does not notice when the thread leaves the span. Then the second sign
//!   does not count, and half a second from the first entry takes the place of the 100 ms. Once the span is known to be
//!   asynchronous, its life begins in the trace, with the time of the span's creation. So the trace contains a span
//!   that hangs, or that is alive when the process is killed.
//! - *Callsites.* If the last span of a callsite was asynchronous, the life of the callsite's next span begins when
//!   that span is created. If that next span turns out to be synchronous, it has a life nevertheless. After 16
//!   synchronous spans in a row of a callsite without fields, only every 1024th span of the callsite is examined. So
//!   asynchronous spans have no life until one of them is examined.
//! - *Lanes.* Lives are drawn on *lanes*. A lane is a track with the name of the outermost span on it, usually a root
//!   span. A life is nested in the life of the span's parent, on the same lane. A life that overlaps the life of a
//!   sibling is instead put on a free lane with the name of its own span. So there are hardly more lanes than lives
//!   that are open at the same time.
//! - *Parents.* The parent of a span is its explicit parent. Without an explicit parent, it is the innermost stored
//!   span that the thread was in at the creation. (Of the 32 outermost spans that the thread is in, the innermost 16
//!   are examined.) A span closes only after the lives of its children have ended, as in a `Registry`. (Without a
//!   registry, a span does not wait for a child whose life has not begun yet.)
//! - *Numbers.* Every life has an argument `span`, a number that identifies the span within its process. If the parent
//!   is stored, the life also has an argument `parent`, the parent's number. The polls have the same arguments, so SQL
//!   can join polls and lives (`docs/perfetto.md` has such queries). The first slice of a span may lack these
//!   arguments, if the last 16 spans of its callsite were synchronous.
//! - *Sessions.* A span that is created while tracing is off, or while its events go to ATrace, has no life. A life is
//!   written only to the sessions that were open when its begin was written.
//!
//! [`with_async_spans`](AtraceLayer::with_async_spans) selects slices on threads only, lives only, or both. If nothing
//! more happens to an asynchronous span, the thread of the [`watch`](mod@atrace::watch), which notices switches of
//! tracing, begins the life of the span. This thread wakes 20 times a second while a session wants events, and
//! otherwise sleeps. Without this thread, as in a forked child, such a life begins later, for example when the span
//! closes.
//!
//! # Features
//!
//! - `perfetto` (default): the backend for Perfetto's service. This feature enables the feature of the same name of
//!   [`atrace`].
//! - `log` (default): a filter changes the maximum level of the crate `tracing` at each switch. This feature then gives
//!   the crate `log` the same maximum level, unless the two levels differed before the switch.
//! - `log-bridge`: `init_log` and `init_log_beside`, for a program that uses only `log`.
//! - `live`: the module `live`, with a layer that records which spans are alive and where each span was created.
//!
//! # Rules
//!
//! *Pairing.* When a thread leaves a span whose begin was written, the end is written, even if tracing was switched off
//! meanwhile. No end is written without its begin. All subscribers and layers of a process share one span stack per
//! thread. A slice that the program itself begins with [`atrace::atrace_begin`] must not overlap a span's slice in
//! part: it must lie within that slice or enclose it.
//!
//! *Threads.* A span may be created on one thread, and entered, recorded and closed on other threads. A thread may
//! still create spans and events while the thread ends.
//!
//! *Formatting.* The `Debug` of a value may itself write events, whose values are then formatted, too. If four
//! formattings are nested in this way, an event that the innermost formatting writes has neither its fields nor its
//! message.
//!
//! *Switching.* Without a filter, a switch of tracing takes effect at the next event. With a filter, a thread of this
//! process must notice the switch first. This takes about a millisecond if a processor is free for that thread. See
//! [`AtraceSubscriber::with_filter`].
//!
//! *Signals.* With [`AtraceSubscriber`] alone, a signal handler may create, enter and leave spans wherever it
//! interrupts its thread. The handler must leave the spans that it has entered. (A `Registry` panics if a handler
//! interrupts its code and uses it.) A handler must not allocate or wait for a lock. At the first use of a callsite,
//! `tracing` may take a lock, and this crate allocates if its table of callsites has to grow. This crate also
//! allocates:
//!
//! - when more stored spans are alive than ever before (spans with fields are stored; for Perfetto also others),
//! - when more [lives](#lives) are open than ever before,
//! - when the fields of a span need more room than before,
//! - for a span with a field `atrace.track`, or with a field that names the span (`otel.name`),
//! - when a thread is more than 32 spans deep for the first time.
//!
//! To make sure that no handler allocates, first do all of this outside of a handler: create the largest number of
//! spans that the program needs, let as many of them be asynchronous as the program does, and enter them as deep as the
//! program does.
//!
//! *Fork.* A forked child may trace at once, and waits for no thread of its parent. With a filter, its callsites stay
//! enabled or disabled as its parent's were during the fork, until the child calls [`after_fork`]. The child does not
//! end the spans that its parent had entered. With a filter, after a switch of tracing, another thread makes `tracing`
//! query the subscribers about all callsites again. Meanwhile `fork()` waits: usually for less than a millisecond, for
//! about a second at most.
//!
//! *Other systems.* On systems without ATrace the crate compiles, and writes nothing.
//!
//! The text format is that of AOSP's `libatrace_tracing_subscriber`. Perfetto's systrace importer reads this format.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod async_spans;
mod callsites;
mod directives;
mod fields;
mod filter;
mod interest_cache;
mod lanes;
mod layer;
#[cfg(feature = "live")]
pub mod live;
#[cfg(feature = "log-bridge")]
mod log_bridge;
pub mod metered;
mod parts;
mod recorder;
mod slots;
mod span;
mod span_stack;
mod span_store;
mod subscriber;
mod typed;

/// Tests the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// The atomic types that threads share. The loom models (`crates/models`) use loom's types in place of this module.
mod sync {
    pub(crate) use std::sync::atomic;
}

pub use async_spans::AsyncSpans;
pub use filter::AtraceFilter;
pub use interest_cache::after_fork;
pub use layer::{Atrace, AtraceLayer};
#[cfg(feature = "log-bridge")]
pub use log_bridge::{init_log, init_log_beside};
pub use subscriber::AtraceSubscriber;
