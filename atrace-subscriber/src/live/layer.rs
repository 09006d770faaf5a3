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
use super::spans::{Backtraces, LiveSpans};
use super::stack::{DEEPEST, Walk};
use super::table::Description;
use crate::fields::{self, SEPARATOR, TEXT_MAX, TRACK};

/// A layer over a `Registry` that records which spans are alive. By default it stores no backtraces.
///
/// ```
/// use atrace_subscriber::live::LiveLayer;
/// use atrace_subscriber::{AtraceFilter, AtraceLayer};
/// use tracing_subscriber::prelude::*;
///
/// let live = LiveLayer::default().with_backtraces(64).with_sanitised(true);
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
/// *Threads.* All functions may be called on any thread, at any time, even by code that `tracing` calls, such as a
/// value's `Debug` or another layer. A dump copies the spans in parts, one part after the other. The copy of a span is
/// consistent, but the copies of two spans may show different moments. A span that is created or closed during the dump
/// may or may not appear. No thread waits for a dump longer than it takes to copy one part. If a signal interrupts a
/// thread inside this layer, the spans that the signal handler creates are not shown.
///
/// *Cost.* The creation of a span reads the clock, adds an entry to a table, and formats the span's fields. Entering
/// and leaving a span look up this entry. The table never shrinks: it keeps memory for the largest number of spans that
/// were ever alive at once, and for the return addresses that [may be stored](Self::with_backtraces) for each of these
/// spans.
///
/// *Fork.* A forked child begins without spans, because the spans of its parent belong only to the parent. The child
/// waits for no thread of its parent. The parent's data stays in the child's memory, unused. If another thread of the
/// parent was looking up symbols during the fork, functions have no names in the child: that thread held a lock and
/// does not exist in the child, so the lock is never released there.
///
/// *Registry.* The layer needs a `Registry` below it, which reports when a span closes. If only another layer has a
/// filter, such as an [`AtraceLayer`](crate::AtraceLayer), this layer sees all spans, whether tracing is on or off. If
/// the whole stack of layers has a filter, this layer sees only spans that the filter lets through.
#[derive(Debug, Default)]
pub struct LiveLayer {
    /// The maximum number of return addresses that are stored for a span.
    depth: usize,
    has_eager_symbols: bool,
    sanitised: bool,
    hidden: Vec<Cow<'static, str>>,
    /// The method by which return addresses are found. `None` means [`Walk::default`].
    walk: Option<Walk>,
    spans: OnceLock<Arc<LiveSpans>>,
}

impl LiveLayer {
    /// Stores the backtrace of each span's creation: the innermost return addresses on the stack, at most `depth` and
    /// at most 256. A depth of 64 is enough for most programs. With 0, the default, no backtraces are stored. The layer
    /// has memory for `depth` addresses for each span: eight bytes for each address (on a 64-bit system).
    ///
    /// The functions at these addresses are looked up when the frames are requested, once per address. See also
    /// [`with_eager_symbols`](Self::with_eager_symbols). In an `async` program, the backtrace shows the poll during
    /// which the span was created, and thus which future awaits which other future.
    ///
    /// [`with_sanitised`](Self::with_sanitised) leaves out the frames of the runtime and of `tracing`.
    ///
    /// [`Walk`] determines how addresses are found. **A program for x86-64 should be compiled with frame pointers**
    /// (`RUSTFLAGS="-C force-frame-pointers=yes"`). Without frame pointers, the unwinder finds the addresses, which
    /// takes far longer. Rust's standard library is compiled with frame pointers, and programs for 64-bit ARM have them
    /// by default.
    ///
    /// Functions have names if the binary has symbols. Frames also have files and lines if the program has
    /// debug information (`debug = "line-tables-only"` in the profile).
    #[must_use]
    pub fn with_backtraces(mut self, depth: usize) -> Self {
        self.depth = depth.min(DEEPEST);
        self.changed()
    }

    /// If `yes`, looks up the functions of a backtrace when its span is created, and not when the frames are requested.
    /// Without backtraces this has no effect.
    ///
    /// With this option a span costs far more: functions are looked up anew for each backtrace, and memory is allocated
    /// for each name. The option is for programs that unload libraries: after a library was unloaded, an address of its
    /// functions may belong to another function.
    #[must_use]
    pub fn with_eager_symbols(mut self, yes: bool) -> Self {
        self.has_eager_symbols = yes;
        self.changed()
    }

    /// If `yes`, leaves the frames of the runtime and of the tracing crates out of backtraces. Without backtraces this
    /// has no effect.
    ///
    /// The frames of these functions are left out:
    ///
    /// - functions of the crates `std`, `core`, `alloc`, `test`, `backtrace`, `tracing`, `tracing_core`,
    ///   `tracing_subscriber`, `tracing_futures`, `tracing_log`, `tokio`, `tokio_util`, `futures`, `futures_core`,
    ///   `futures_util`, `futures_executor`, `async_executor`, `async_task`, `atrace` and this crate;
    /// - functions that start threads and programs, such as `_start`, `__libc_start_main`, `start_thread`, `clone`, and
    ///   C's `main`;
    /// - functions without a name, except if no function of the backtrace has a name.
    ///
    /// A method belongs to the crate of its type: `<my_app::Task as core::future::Future>::poll` belongs to `my_app`.
    /// If the type has no path (`<F as core::ops::FnOnce>::call_once`), the method belongs to the crate of its trait.
    #[must_use]
    pub fn with_sanitised(mut self, yes: bool) -> Self {
        self.sanitised = yes;
        self.changed()
    }

    /// Makes [`with_sanitised`](Self::with_sanitised) also leave out the functions whose paths begin with one of these
    /// prefixes, such as `"axum::"`.
    #[must_use]
    pub fn with_hidden<T: Into<Cow<'static, str>>>(mut self, paths: impl IntoIterator<Item = T>) -> Self {
        self.hidden.extend(paths.into_iter().map(Into::into));
        self.changed()
    }

    /// Sets how return addresses are found. The default is [`Walk::default`].
    #[must_use]
    pub fn with_walk(mut self, walk: Walk) -> Self {
        self.walk = Some(walk);
        self.changed()
    }

    /// Returns a handle that dumps the spans of this layer, even after the layer has become part of a subscriber.
    ///
    /// Set all options before you call this function: a change of an option makes another layer, whose spans the handle
    /// does not show.
    pub fn handle(&self) -> Handle {
        Handle { spans: Arc::clone(self.spans()) }
    }

    /// Gives the layer a new set of spans after a change of its options. A handle that was created before the change
    /// shows no spans.
    fn changed(mut self) -> Self {
        self.spans = OnceLock::new();
        self
    }

    #[inline]
    fn spans(&self) -> &Arc<LiveSpans> {
        let spans = self.spans.get_or_init(|| {
            let is_eager = self.has_eager_symbols;
            let backtraces = || Backtraces { walk: self.walk.unwrap_or_default(), is_eager };
            let rules = Rules::new(self.sanitised, self.hidden.clone());
            Arc::new(LiveSpans::new(self.depth, rules, (self.depth > 0).then(backtraces)))
        });
        spans.list();
        spans
    }
}

/// A handle that dumps the spans of one layer. Its clones refer to the same layer.
#[derive(Clone, Debug)]
pub struct Handle {
    spans: Arc<LiveSpans>,
}

impl Handle {
    /// Returns the spans of the layer that are alive now.
    pub fn dump(&self) -> Dump {
        Dump::of(std::slice::from_ref(&self.spans))
    }
}

/// Returns the fields that `record` visits as text, `key = value, …`, or `None` if there are no fields.
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

/// Joins two texts with a separator. A result that is longer than [`TEXT_MAX`] is cut.
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
        // Initialises the layer before the first span.
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
            // Fails if another thread has recorded fields of this span meanwhile. Then the loop tries again.
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

    /// This is a single test, because it counts the layers of the whole process.
    #[test]
    #[cfg_attr(miri, ignore = "a registry takes miri minutes to make")]
    fn a_layer_counts_from_its_dispatcher_or_handle_on() {
        let known = || all().len();
        let layer = LiveLayer::default();
        assert_eq!(known(), 0);
        let dispatch: Dispatch = tracing_subscriber::registry().with(layer).into();
        assert_eq!(known(), 1, "before its first span");
        // An option that is set after a handle was taken makes another layer.
        let layer = LiveLayer::default();
        let before = layer.handle();
        let layer = layer.with_backtraces(1).with_walk(Walk::Unwinding);
        let after = layer.handle();
        let walk_of = |handle: &Handle| handle.spans.backtraces.map(|backtraces| backtraces.walk);
        assert_eq!((walk_of(&before), walk_of(&after)), (None, Some(Walk::Unwinding)));
        let default = LiveLayer::default().with_backtraces(64).handle();
        assert_eq!(walk_of(&default), Some(Walk::default()));
        drop(default);
        let other: Dispatch = tracing_subscriber::registry().with(layer).into();
        with_default(&other, || {
            let _span = info_span!("seen");
            assert_eq!(
                (before.dump().spans().len(), after.dump().spans().len(), dump().spans().len()),
                (0, 1, 1)
            );
            let dump = after.dump();
            assert_eq!(dump.spans().map(|span| span.addresses().len()).collect::<Vec<_>>(), [1]);
        });
        drop((before, after, other));
        // Layers that were dropped are removed from the list when the next one is added.
        for _ in 0..100 {
            drop(LiveLayer::default().handle());
        }
        assert_eq!(known(), 2);
        drop(dispatch);
    }
}
