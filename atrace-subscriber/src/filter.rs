//! The filter for subscriber stacks with other layers.

use atrace::{AtraceTag, atrace_is_tag_enabled};
use tracing_core::{Dispatch, Interest, LevelFilter, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Filter, Layer};

use crate::directives::Directives;
use crate::interest_cache::{Answer, Follower, ORDINARY};

/// A filter that lets spans and events through while a tag is enabled. It is used as the filter of one layer, or as a
/// layer that filters for the whole stack.
///
/// As the filter of an [`AtraceLayer`](crate::AtraceLayer), it makes the layer cheap while the tag is off, and does not
/// affect the other layers:
///
/// ```
/// use atrace_subscriber::{AtraceFilter, AtraceLayer};
/// use tracing_subscriber::filter::LevelFilter;
/// use tracing_subscriber::prelude::*;
///
/// # let _ = || {
/// tracing_subscriber::registry()
///     .with(tracing_subscriber::fmt::layer().with_filter(LevelFilter::INFO)) // independent of the tag
///     .with(AtraceLayer::default().with_filter(AtraceFilter::default())) // everything while the tag is on
///     .init();
/// # };
/// ```
///
/// As a layer, `.with(AtraceFilter::default())`, the filter silences the *whole stack* while the tag is off. Use the
/// filter in this way if all layers of the program are only needed while tracing is on. While tracing is off, the
/// layers cost nothing. [`AtraceSubscriber::with_filter`](crate::AtraceSubscriber::with_filter) does the same for a
/// subscriber without other layers.
///
/// The filter can be combined with other filters: `AtraceFilter::default().and(LevelFilter::DEBUG)`, with
/// `tracing_subscriber::filter::FilterExt` in scope. As the filter of a layer, it also applies the user's filter
/// ([`ATRACE_FILTER`](crate#filters)). As a layer, the filter does not apply the user's filter: the layers and
/// subscribers of this crate apply the user's filter themselves, and other layers get all spans and events while the
/// tag is on.
///
/// # Caching
///
/// While the tag is off, `tracing` caches a callsite that no other layer wants as disabled, and the maximum level is
/// that of the other layers. While the tag is on, a filter of a single layer is called at each span and event that
/// `ATRACE_FILTER` does not exclude. Its answers are not cached: `tracing-subscriber` loses spans of a layer whose
/// filter's answers are cached, if the program queries another callsite before it creates the span
/// ([tokio-rs/tracing#2519][issue]).
///
/// After a switch of tracing, an ordinary thread rebuilds the caches, as described at
/// [`AtraceSubscriber::with_filter`](crate::AtraceSubscriber::with_filter). This requires that a stack contains an
/// [`AtraceLayer`](crate::AtraceLayer), an [`AtraceSubscriber`](crate::AtraceSubscriber) or this type as a layer. If no
/// stack of the process contains one of these, the filter is called at each span and event.
///
/// [issue]: https://github.com/tokio-rs/tracing/issues/2519
#[derive(Debug)]
pub struct AtraceFilter {
    tag: AtraceTag,
    follower: Follower,
    directives: Directives,
}

impl Default for AtraceFilter {
    /// Makes a filter for the tag [`AtraceTag::App`].
    fn default() -> Self {
        Self::new(AtraceTag::App)
    }
}

impl AtraceFilter {
    /// Makes a filter that lets spans and events through while `tag` is enabled. Pass the tag of the layer, which may
    /// be restricted [to one backend](crate#one-backend).
    pub fn new(tag: AtraceTag) -> Self {
        Self { tag, follower: Follower::new(), directives: Directives::of_process() }
    }

    /// Makes the filter work without the thread that notices switches of tracing. Without this thread, `tracing` can't
    /// cache the filter's answers. So the tag is checked at every new span and every event, which costs a few
    /// nanoseconds while the tag is off.
    ///
    /// To use a filter without the thread for an [`AtraceSubscriber`](crate::AtraceSubscriber) that has no other
    /// layers, add the filter as a layer:
    ///
    /// ```
    /// use atrace_subscriber::{AtraceFilter, AtraceSubscriber};
    /// use tracing_subscriber::prelude::*;
    ///
    /// # let _ = || {
    /// AtraceSubscriber::default().with(AtraceFilter::default().without_watch()).init();
    /// # };
    /// ```
    #[must_use]
    pub fn without_watch(self) -> Self {
        Self { follower: Follower::without_watch(), ..self }
    }

    fn answer(&self) -> Answer {
        self.follower.follow(&ORDINARY);
        self.follower.answer(self.tag)
    }
}

impl<S> Filter<S> for AtraceFilter {
    fn enabled(&self, metadata: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        atrace_is_tag_enabled(self.tag) && self.directives.pass(metadata)
    }

    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        match self.answer() {
            Answer::On | Answer::Ask if self.directives.pass(metadata) => Interest::sometimes(),
            _ => Interest::never(),
        }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        let level = if self.answer() == Answer::Off { LevelFilter::OFF } else { LevelFilter::TRACE };
        self.directives.limit(Some(level))
    }
}

impl<S: Subscriber> Layer<S> for AtraceFilter {
    fn on_register_dispatch(&self, dispatch: &Dispatch) {
        ORDINARY.add_dispatch(dispatch);
        self.follower.follow(&ORDINARY);
    }

    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        self.follower.interest(self.tag)
    }

    fn enabled(&self, _: &Metadata<'_>, _: Context<'_, S>) -> bool {
        atrace_is_tag_enabled(self.tag)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        self.follower.max_level_hint(self.tag)
    }
}
