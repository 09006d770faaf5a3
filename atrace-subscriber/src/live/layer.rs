//! The layer that records when spans are created and closed.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use tracing_core::field::Visit;
use tracing_core::span::{Attributes, Id, Record};
use tracing_core::{Dispatch, Subscriber};
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;

use super::dump::Dump;
use super::rules::Rules;
use super::spans::{LiveSpans, Symbols};
use super::stack::{DEEPEST, Walk};
use super::table::Description;
use crate::fields::{self, SEPARATOR, TEXT_MAX, TRACK};

/// Knows the spans that are alive, as a layer over a `Registry`.
///
/// ```
/// use atrace_subscriber::live::LiveLayer;
/// use atrace_subscriber::{AtraceFilter, AtraceLayer};
/// use tracing_subscriber::prelude::*;
///
/// let live = LiveLayer::new().with_backtraces(true).with_sanitised(true);
/// let handle = live.handle();
/// tracing_subscriber::registry()
///     .with(live)
///     .with(AtraceLayer::default().with_filter(AtraceFilter::default()))
///     .init();
///
/// let _span = tracing::info_span!("work").entered();
/// eprintln!("{}", handle.dump());
/// ```
///
/// # Rules
///
/// *Threads.* Everything may be called on any thread, at any time, also within what `tracing` calls: by a
/// value's `Debug`, by another layer. A dump looks at one part of the spans after the other: each record is as
/// it was at one moment, two of them perhaps not at the same, and a span that is made or closed meanwhile may
/// or may not be in it. Nobody waits longer than the copying of such a part takes. Spans that a signal handler
/// makes on a thread that was just in here are not shown.
///
/// *Cost.* A span costs a clock reading, an entry in a table, and the formatting of its fields; entering and
/// leaving look it up there. Memory stays with the layer for as many spans as were alive at a time, each with room for
/// the return addresses that [may be kept](Self::with_depth).
///
/// *Fork.* A child begins with none: the spans of its parent are not its own. It waits for no thread of its parent's;
/// what those had stays in its memory, unused. In one that was forked while another thread looked symbols up,
/// functions have no names: a lock is held by a thread that is not there.
///
/// *Registry.* The layer needs a span's life to be kept: a `Registry` below it. Beside an
/// [`AtraceLayer`](crate::AtraceLayer) with a filter of its own, spans are alive for this layer on or off; below
/// a filter for the whole stack, only what the filter lets through.
#[derive(Debug)]
pub struct LiveLayer {
    backtraces: bool,
    symbols: Symbols,
    sanitised: bool,
    hidden: Vec<Cow<'static, str>>,
    depth: usize,
    /// None until it matters.
    walk: Option<Walk>,
    spans: OnceLock<Arc<LiveSpans>>,
}

impl Default for LiveLayer {
    fn default() -> Self {
        Self::new()
    }
}

impl LiveLayer {
    /// Makes a layer that keeps no backtraces.
    pub fn new() -> Self {
        Self {
            backtraces: false,
            symbols: Symbols::Lazy,
            sanitised: false,
            hidden: Vec::new(),
            depth: 64,
            walk: None,
            spans: OnceLock::new(),
        }
    }

    /// Keeps with each span the backtrace of its creation.
    ///
    /// What is kept is the return addresses of the stack that made the span. What functions these are is looked up when
    /// someone asks ([`Symbols::Lazy`]), once an address, or at each creation ([`Symbols::Eager`]), which costs far more. In
    /// an `async` program the stack of a creation is that of the poll: who awaits whom at that moment.
    ///
    /// [`with_sanitised`](Self::with_sanitised) leaves out the frames of the runtime and of `tracing`.
    ///
    /// How addresses are found is [`Walk`]'s to say. **A program on x86-64 should be compiled with frame pointers**,
    /// `RUSTFLAGS="-C force-frame-pointers=yes"`: else the unwinder finds them, which takes far longer. (Rust's standard
    /// library has them already; 64-bit ARM always has.) Functions have names where the binary has symbols, files and lines
    /// where it has debug information, `debug = "line-tables-only"` in the profile.
    #[must_use]
    pub fn with_backtraces(mut self, yes: bool) -> Self {
        self.backtraces = yes;
        self.changed()
    }

    /// Says when their functions are looked up. Without backtraces it means nothing.
    #[must_use]
    pub fn with_symbols(mut self, when: Symbols) -> Self {
        self.symbols = when;
        self.changed()
    }

    /// Leaves the frames of the runtime and of tracing out of backtraces. Without backtraces it means nothing.
    ///
    /// These are the functions of the crates `std`, `core`, `alloc`, `test`, `backtrace`, `tracing` and its
    /// parts, `tokio`, `tokio_util`, `futures` and its parts, `async_executor`, `async_task`, `atrace` and
    /// this one, and those that start threads and programs (`_start`, `__libc_start_main`, `start_thread`,
    /// `clone`, C's `main`); and functions without a name, unless none has. A method counts to the crate
    /// of its type, `<my_app::Task as core::future::Future>::poll` to `my_app`; if its type is not named (`<F as
    /// core::ops::FnOnce>::call_once`) to that of its trait.
    #[must_use]
    pub fn with_sanitised(mut self, yes: bool) -> Self {
        self.sanitised = yes;
        self.changed()
    }

    /// Has sanitising leave out more: functions whose path begins with one of these, such as `"axum::"`.
    #[must_use]
    pub fn with_hidden<T: Into<Cow<'static, str>>>(mut self, paths: impl IntoIterator<Item = T>) -> Self {
        self.hidden.extend(paths.into_iter().map(Into::into));
        self.changed()
    }

    /// Keeps at most this many return addresses of a creation, the innermost; 64 if this is not called, and 256
    /// at most.
    ///
    /// Their room stays with the layer, eight bytes each for every span.
    #[must_use]
    pub fn with_depth(mut self, addresses: usize) -> Self {
        self.depth = addresses.clamp(1, DEEPEST);
        self.changed()
    }

    /// Says how return addresses are found; [`Walk::of_this_program`] if this is not called.
    #[must_use]
    pub fn with_walk(mut self, walk: Walk) -> Self {
        self.walk = Some(walk);
        self.changed()
    }

    /// Returns what dumps the spans of this layer, now and once it is part of a subscriber.
    pub fn handle(&self) -> Handle {
        Handle { spans: Arc::clone(self.spans()) }
    }

    /// Handles that were taken before are of a layer that never was.
    fn changed(mut self) -> Self {
        self.spans = OnceLock::new();
        self
    }

    #[inline]
    fn spans(&self) -> &Arc<LiveSpans> {
        let spans = self.spans.get_or_init(|| {
            let walk = || self.walk.unwrap_or_else(Walk::of_this_program);
            let backtraces = self.backtraces.then(|| (walk(), self.symbols));
            let rules = Rules::new(self.sanitised, self.hidden.clone());
            Arc::new(LiveSpans::new(self.depth, rules, backtraces))
        });
        spans.list();
        spans
    }
}

/// Dumps the spans of one layer. Its clones are of the same layer.
#[derive(Clone, Debug)]
pub struct Handle {
    spans: Arc<LiveSpans>,
}

impl Handle {
    /// Returns what is alive now.
    pub fn dump(&self) -> Dump {
        Dump::of(std::slice::from_ref(&self.spans))
    }

    /// Returns how this layer finds the return addresses of creations; None if it keeps no backtraces.
    pub fn walk(&self) -> Option<Walk> {
        self.spans.backtraces.map(|(walk, _)| walk)
    }
}

/// The fields as text, `key = value, …`; None if there are none to be shown.
fn text(record: &dyn Fn(&mut dyn Visit)) -> Option<Arc<str>> {
    fields::with_span("", true, record, |text, track| {
        if track.is_empty() {
            return text.strip_prefix(SEPARATOR).map(Arc::from);
        }
        let mut all = text.to_owned();
        fields::append(&mut all, &format!("{SEPARATOR}{TRACK} = \"{track}\""));
        all.strip_prefix(SEPARATOR).map(Arc::from)
    })
}

/// Both, as far as they fit.
fn join(before: &str, new: &str) -> Arc<str> {
    let mut all = before.to_owned();
    if before.len() + SEPARATOR.len() < TEXT_MAX {
        all.push_str(SEPARATOR);
        fields::append(&mut all, new);
    }
    all.into()
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for LiveLayer {
    fn on_register_dispatch(&self, _: &Dispatch) {
        // Whatever has to be found out is found out before the first span.
        self.spans();
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let fields = if attributes.is_empty() { None } else { text(&|visit| attributes.record(visit)) };
        let parent = if attributes.is_root() {
            None
        } else {
            context.span(id).and_then(|span| span.parent()).map(|parent| parent.id().into_u64())
        };
        self.spans().insert(Description {
            id: id.into_u64(),
            parent,
            metadata: attributes.metadata(),
            at: Instant::now(),
            fields,
            frames: None,
        });
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, _: Context<'_, S>) {
        if values.is_empty() {
            return;
        }
        let (table, id) = (&self.spans().table, id.into_u64());
        let Some(new) = text(&|visit| values.record(visit)) else { return };
        loop {
            let before = table.fields(id);
            let all = match &before {
                Some(before) => join(before, &new),
                None => Arc::clone(&new),
            };
            // Unless another thread recorded something meanwhile.
            if table.set_fields(id, before.as_ref(), all) {
                return;
            }
        }
    }

    fn on_enter(&self, id: &Id, _: Context<'_, S>) {
        self.spans().table.enter(id.into_u64());
    }

    fn on_exit(&self, id: &Id, _: Context<'_, S>) {
        self.spans().table.exit(id.into_u64());
    }

    fn on_close(&self, id: Id, _: Context<'_, S>) {
        self.spans().table.remove(id.into_u64());
    }
}

#[cfg(test)]
mod tests {
    use tracing::info_span;
    use tracing_core::dispatcher::with_default;
    use tracing_subscriber::prelude::*;

    use super::super::dump::dump;
    use super::super::spans::all;
    use super::*;

    /// One test: it counts what all of this process are.
    #[test]
    #[cfg_attr(miri, ignore = "a registry takes miri minutes to make")]
    fn a_layer_counts_from_its_dispatcher_or_handle_on() {
        let known = || all().len();
        let layer = LiveLayer::new();
        assert_eq!(known(), 0);
        let dispatch: Dispatch = tracing_subscriber::registry().with(layer).into();
        assert_eq!(known(), 1, "before its first span");
        // What is set after a handle was taken is of another.
        let layer = LiveLayer::new();
        let before = layer.handle();
        let layer = layer.with_backtraces(true).with_walk(Walk::Unwinding).with_depth(0);
        let after = layer.handle();
        assert_eq!((before.walk(), after.walk()), (None, Some(Walk::Unwinding)));
        let other: Dispatch = tracing_subscriber::registry().with(layer).into();
        with_default(&other, || {
            let _span = info_span!("seen");
            assert_eq!((before.dump().len(), after.dump().len(), dump().len()), (0, 1, 1));
            let dump = after.dump();
            let addresses = dump.spans().map(|span| span.backtrace().map(|trace| trace.addresses().len()));
            assert_eq!(addresses.collect::<Vec<_>>(), [Some(1)], "one at least");
        });
        drop((before, after, other));
        // Those that are gone are forgotten with the next.
        for _ in 0..100 {
            drop(LiveLayer::new().handle());
        }
        assert_eq!(known(), 2);
        drop(dispatch);
    }
}
