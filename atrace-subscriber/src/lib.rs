//! Shows the spans and events of [`tracing`](https://docs.rs/tracing) in Android's ATrace, and so in
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
//! While tracing is off, a program with this subscriber runs as fast as without any; while it is on, an event
//! costs the system call that writes it and little more. When it is on, and where events go, is the
//! [`atrace`] crate's to say.
//!
//! # Which of them?
//!
//! | a program in which | sets |
//! |---|---|
//! | only ATrace listens | [`AtraceSubscriber`]`::default().`[`with_filter()`](AtraceSubscriber::with_filter): no registry, nothing allocated, free while off |
//! | others listen too | `registry().with(…)`, with [`AtraceLayer`]`::default().with_filter(`[`AtraceFilter`]`::default())` among the layers: while off, the others go on as ever |
//! | others listen, but only while ATrace does | the layers, and [`AtraceFilter`]`::default()` as the last one: while off, the whole stack is silent and free |
//! | spans made while off shall appear when entered later | either of the two without a filter: while off, an event costs a call that does nothing |
//! | all shall go one way, whichever is on | any of these, [`with_way`](AtraceLayer::with_way) |
//! | AOSP's `atrace_tracing_subscriber` was used | [`AtraceSubscriber`], alone or as a layer as there; its [`with_filter()`](AtraceSubscriber::with_filter) silences the whole stack |
//!
//! Levels and targets are filtered as everywhere in `tracing-subscriber`:
//! `AtraceLayer::default().with_filter(AtraceFilter::default().and(LevelFilter::DEBUG))`, or
//! `AtraceSubscriber::default().with(LevelFilter::DEBUG)`.
//!
//! With the feature `live`, [`live::LiveLayer`](https://docs.rs/atrace-subscriber/latest/atrace_subscriber/live/) beside them
//! tells which spans are alive, where each was made and who is inside: for the program that hangs.
//!
//! # What becomes of it
//!
//! | in the program | in the trace |
//! |---|---|
//! | an event | an instant of its thread: `message, key = value, …` |
//! | an event without a message | `key = value, …`; without fields either, `LEVEL event` |
//! | a field `counter.NAME = n` of an event, an integer | the counter `NAME`; an event of nothing else is no instant |
//! | entering and leaving a span | a slice of its thread: `name, key = value, …` |
//! | a span that is entered again, at each poll of a future for one | another slice, on whichever thread |
//! | leaving a span before one that was entered later | the younger slices end with it and begin again, each up to eight times |
//! | leaving many spans in the order of their entry | from then on, an older slice ends a little late: with the younger ones, or when as many ends wait as slices would begin again |
//! | `Span::record` | shows from the next time the span is entered; where the span is an async slice, as an instant on its track at once |
//! | a span with a field `atrace.track = "NAME"` | also an async slice on the track `NAME`, from when the span is made until it closes |
//! | a span, after [`with_async_spans`](AtraceLayer::with_async_spans) or [`with_async_target`](AtraceLayer::with_async_target) | also, or only, an async slice on the track that its target names |
//! | a span made while off, entered while on | a slice with its name, and with its fields after [`with_fields_while_off`](AtraceLayer::with_fields_while_off); nothing with a filter, for which it was never made |
//! | fields after [`without_fields`](AtraceLayer::without_fields) | nothing, except messages and counters |
//! | a value that is a `str` | its text in quotes, not escaped; as the message, without quotes |
//! | an error | its `Display` |
//! | any other value | its `Debug`, which is what `%value` makes its `Display` |
//! | a value that panics while it is formatted | what it wrote so far, `<panicked>`, and nothing further of that event; the program goes on (where panics unwind) |
//! | a record of the `log` crate, through `tracing-log` | an event, without the fields that say where it is from |
//! | targets, levels, parents, `follows_from` | nothing; a span's target is the name of its async slice's track |
//!
//! The text is that of AOSP's subscriber. A message has at most 1023 bytes and what could damage the trace is
//! replaced; see [Names](atrace#names). Fields are written straight into the message, on the stack.
//!
//! # What becomes of it in Perfetto's memory
//!
//! Where only a session of Perfetto's service asks for the tag ([`atrace::perfetto`]), there is no text: a viewer gets names that
//! are the same each time, and values of their types.
//!
//! | in the program | in the trace |
//! |---|---|
//! | an event | an instant of its thread, named by its message; without one, as its callsite |
//! | entering and leaving a span | a slice of its thread, named by the span alone |
//! | a field | an argument with its type: bool, int, uint, float, text; `i128`, bytes, errors and what is `Debug`, as text |
//! | a field `counter.NAME = n` of an event, a number with a fraction, too | the counter `NAME` |
//! | `Span::record` | arguments at the end of the slice that this thread is in, and of those that begin later; of an async slice, at its end |
//! | the level | an argument `level` |
//! | the target | a category beside the tag's; sessions choose by the tag's alone |
//! | file and line | the source location |
//! | a span that is entered again, on whichever thread | another slice, and an arrow to it (a flow) from the one before |
//! | `follows_from` | an arrow from the last slice of the one span to those of the other |
//! | an async slice | as above; overlapping ones are on tracks of one name, which the viewer merges |
//! | a span made while its events went nowhere, or to ATrace | a slice with its name; with its arguments after [`with_fields_while_off`](AtraceLayer::with_fields_while_off) |
//! | a record of the `log` crate | an event, with `log.file` and the like as arguments |
//! | a value that panics | what it wrote so far and `<panicked>`, and nothing further of that event |
//! | a text of more than 1,000 bytes | its begin and `…`; of arguments that have no room, an argument `left_out` has the number |
//!
//! What a callsite never changes is sent once a thread and some chunks of memory; of more than 16,000 callsites, with each event.
//! With [`AtraceSubscriber`] alone, nothing is kept of a span without fields, so no arrow leads to it or from it.
//!
//! # Rules
//!
//! *Pairing.* Every begin that is written gets its end, on its thread, however tracing is switched in
//! between; and no end is written without its begin. All subscribers and layers of a process share one
//! account of each thread's slices. Slices that the program itself begins with [`atrace::atrace_begin`] must
//! lie within a span or around it.
//!
//! *Threads.* A span may be made, entered, recorded and closed on any threads. While a thread ends, it may
//! still trace.
//!
//! *Formatting.* A value's `Debug` may itself trace; four levels below an event or span, fields are left out.
//!
//! *Switching.* Without a filter a switch counts from the next event on. With one it takes a thread of this
//! process to notice it: about a millisecond where it gets a processor. See
//! [`AtraceSubscriber::with_filter`].
//!
//! *Signals.* With [`AtraceSubscriber`] alone, a handler may make, enter and leave spans wherever it interrupts its
//! thread; it leaves what it entered. (A `Registry` panics when it is interrupted within itself.) As any handler it is
//! not to allocate, which is what `tracing` does at the first use of a callsite, and this crate where more spans with
//! fields are alive than ever before, or a thread is more than 32 spans deep for the first time: then reserve by
//! doing it once outside of a handler.
//!
//! *Fork.* A child may trace at once and waits for no thread of its parent's, but with a filter keeps its state until
//! [`after_fork`]. The spans that its parent was in are not its own to end.
//!
//! *Elsewhere.* On systems without ATrace everything compiles and nothing is written.
//!
//! The form of the text is read off AOSP's `libatrace_tracing_subscriber`; what the reader accepts off
//! Perfetto's systrace importer.
#![cfg_attr(not(feature = "live"), forbid(unsafe_code))]

mod callsites;
mod entered;
mod fields;
mod filter;
mod follow;
mod kept;
mod layer;
#[cfg(feature = "live")]
pub mod live;
mod parts;
mod recorder;
mod slots;
mod span;
mod subscriber;
mod typed;

/// What threads share; in the models, loom's.
mod sync {
    pub(crate) use std::sync::atomic;
}

pub use filter::AtraceFilter;
pub use follow::after_fork;
pub use layer::{AsyncSpans, AtraceLayer, Way};
pub use subscriber::AtraceSubscriber;
