//! Writes the spans and events of [`tracing`](https://docs.rs/tracing) to Android's ATrace, to be shown in
//! [Perfetto](https://ui.perfetto.dev).
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
//! While tracing is off, a program with this subscriber runs as fast as without a subscriber. While it is on, an event
//! costs the system call that writes it and little more. The [`atrace`] crate decides when tracing is on and where
//! events go.
//!
//! # Which type to use
//!
//! | the program | uses |
//! |---|---|
//! | has no other subscriber or layer | [`AtraceSubscriber`]`::default().`[`with_filter()`](AtraceSubscriber::with_filter): no registry, no allocation, free while off |
//! | has other layers | `registry().with(…)`, with [`AtraceLayer`]`::default().with_filter(`[`AtraceFilter`]`::default())` among the layers: while off, the others work as usual |
//! | has other layers, which may work only while ATrace is on | the layers, and [`AtraceFilter`]`::default()` as the last one: while off, the whole stack is silent and free |
//! | wants spans created while off to appear when they are entered later | either of the two without a filter: while off, an event costs a call that does nothing |
//! | wants all events in ATrace only, or in Perfetto only | any of these, [`with_way`](AtraceLayer::with_way) |
//! | used AOSP's `atrace_tracing_subscriber` | [`AtraceSubscriber`], alone or as a layer, as in AOSP; its [`with_filter()`](AtraceSubscriber::with_filter) silences the whole stack |
//!
//! Levels and targets are filtered as usual in `tracing-subscriber`:
//! `AtraceLayer::default().with_filter(AtraceFilter::default().and(LevelFilter::DEBUG))`, or
//! `AtraceSubscriber::default().with(LevelFilter::DEBUG)`.
//!
//! With the feature `live`, [`live::LiveLayer`](https://docs.rs/atrace-subscriber/latest/atrace_subscriber/live/), as a further layer,
//! shows which spans are alive, where each was created and which threads are inside: for a program that hangs.
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
//! | `Span::record` | fields that show from the next time the span is entered; for an async slice, an instant on its track at once |
//! | a span with a field `atrace.track = "NAME"` | also an async slice on the track `NAME`, from the span's creation until it closes |
//! | a span, after [`with_async_spans`](AtraceLayer::with_async_spans) or [`with_async_target`](AtraceLayer::with_async_target) | an async slice on the track named by its target, in addition to slices on threads or instead of them |
//! | a span created while off, entered while on | a slice with its name, and with its fields after [`with_fields_while_off`](AtraceLayer::with_fields_while_off); with a filter nothing, because the span was never created |
//! | fields after [`without_fields`](AtraceLayer::without_fields) | nothing, except messages and counters |
//! | a value that is a `str` | its text in quotes, not escaped; as the message, without quotes |
//! | an error | its `Display` |
//! | any other value | its `Debug`; `%value` makes that its `Display` |
//! | a value that panics while it is formatted | the text written so far, `<panicked>`, and nothing further of that event; the program continues (where panics unwind) |
//! | a record of the `log` crate, through `tracing-log` | an event, without the fields for its origin |
//! | targets, levels, parents, `follows_from` | nothing; a span's target is the name of its async slice's track |
//!
//! The text is that of AOSP's subscriber. A message has at most 1023 bytes, and bytes that could damage the trace are
//! replaced; see [Names](atrace#names). Fields are written directly into the message, on the stack.
//!
//! # How spans and events are shown by Perfetto
//!
//! If only a session of Perfetto's service wants the tag ([`atrace::perfetto`]), fields are not text: a viewer gets
//! constant names, and values with their types.
//!
//! | in the program | in the trace |
//! |---|---|
//! | an event | an instant of its thread, named by its message or, without one, by its callsite |
//! | entering and leaving a span | a slice of its thread, named by the span alone |
//! | a field | an argument with its type: bool, int, uint, float, text; `i128`, bytes, errors and `Debug` values are text |
//! | a field `counter.NAME = n` of an event, an integer or a float | the counter `NAME` |
//! | `Span::record` | arguments at the end of the slice that this thread is in, and of later slices; for an async slice, at its end |
//! | the level | an argument `level` |
//! | the target | a category in addition to the tag's; only the tag's category decides whether a session gets the event |
//! | file and line | the source location |
//! | a span that is entered again, on whichever thread | another slice, and an arrow to it (a flow) from the one before |
//! | `follows_from` | an arrow from the last slice of the one span to the slices of the other |
//! | an async slice | an async slice; overlapping slices are on tracks of one name, which the viewer merges |
//! | a span created while tracing was off or events went to ATrace | a slice with its name; with its arguments after [`with_fields_while_off`](AtraceLayer::with_fields_while_off) |
//! | a record of the `log` crate | an event, with `log.file` and the like as arguments |
//! | a value that panics | the text written so far and `<panicked>`, and nothing further of that event |
//! | a text of more than 1,000 bytes | its beginning and `…`; if arguments have no room, an argument `left_out` has their number |
//!
//! The constant data of a callsite is sent once per thread and some chunks of memory; beyond 16,000 callsites, with each
//! event. [`AtraceSubscriber`] alone stores nothing about a span without fields, so no arrow leads to or from such a span.
//!
//! # Rules
//!
//! *Pairing.* Every begin that is written gets its end, on its thread, however tracing is switched in
//! between. No end is written without its begin. All subscribers and layers of a process share one span stack
//! per thread. Slices that the program itself begins with [`atrace::atrace_begin`] must lie within a span or
//! enclose it.
//!
//! *Threads.* A span may be created, entered, recorded and closed on any threads. While a thread ends, it may
//! still trace.
//!
//! *Formatting.* A value's `Debug` may itself trace; four levels below an event or span, fields are left out.
//!
//! *Switching.* Without a filter, a switch takes effect at the next event. With a filter, a thread of this process
//! must notice it first, which takes about a millisecond if that thread gets a processor. See
//! [`AtraceSubscriber::with_filter`].
//!
//! *Signals.* With [`AtraceSubscriber`] alone, a handler may create, enter and leave spans wherever it interrupts its
//! thread; it must leave the spans that it entered. (A `Registry` panics when it is interrupted within itself.) Like
//! any handler it must not allocate. `tracing` allocates at the first use of a callsite. This crate allocates when
//! more spans with fields are alive than ever before, or when a thread is more than 32 spans deep for the first time.
//! To avoid this in a handler, create as many spans, or enter them as deep, once outside of it.
//!
//! *Fork.* A child may trace at once and waits for no thread of its parent's. With a filter it keeps its parent's on or
//! off state until [`after_fork`]. It does not end the spans that its parent was in.
//!
//! *Other systems.* On systems without ATrace everything compiles and nothing is written.
//!
//! The text format is that of AOSP's `libatrace_tracing_subscriber`; the rules of the reader are those of
//! Perfetto's systrace importer.
#![cfg_attr(not(feature = "live"), forbid(unsafe_code))]

mod callsites;
mod fields;
mod filter;
mod interest_cache;
mod layer;
#[cfg(feature = "live")]
pub mod live;
mod parts;
mod recorder;
mod slots;
mod span;
mod span_stack;
mod span_store;
mod subscriber;
mod typed;

/// The types that threads share. In the models they are loom's.
mod sync {
    pub(crate) use std::sync::atomic;
}

pub use filter::AtraceFilter;
pub use interest_cache::after_fork;
pub use layer::{AsyncSpans, AtraceLayer, Way};
pub use subscriber::AtraceSubscriber;
