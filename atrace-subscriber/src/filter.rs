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
/// As a layer, `.with(AtraceFilter::default())`, it silences the *whole stack* while the tag is off. Use the filter in
/// this way if all layers of the program are only needed while tracing is on. While tracing is off, the layers cost
/// nothing. [`AtraceSubscriber::with_filter`](crate::AtraceSubscriber::with_filter) does the same for a subscriber
/// without other layers.
///
/// The filter can be combined with other filters: `AtraceFilter::default().and(LevelFilter::DEBUG)`, with
/// `tracing_subscriber::filter::FilterExt` in scope. As the filter of a layer, it also applies the user's filter
/// ([`ATRACE_FILTER`](crate#filters)). As a layer, it does not: the layers and subscribers of this crate apply the
/// user's filter themselves, and other layers see all spans and events while the tag is on.
///
/// # Caching
///
/// While the tag is off, a callsite that no other layer wants is cached as disabled, and the maximum level is the
/// maximum level of the other layers. While the tag is on, the filter of a layer is asked at each span and event that
/// `ATRACE_FILTER` does not exclude, and its answers are not cached, because `tracing-subscriber` loses spans of layers
/// with a cached filter if the program queries another callsite in between ([tokio-rs/tracing#2519][issue]).
///
/// The caches are rebuilt after a switch of tracing as described at
/// [`AtraceSubscriber::with_filter`](crate::AtraceSubscriber::with_filter), on an ordinary thread, if the stack
/// contains an [`AtraceLayer`](crate::AtraceLayer), an [`AtraceSubscriber`](crate::AtraceSubscriber) or this type as a
/// layer. If no stack of the process contains any of these, the filter is asked at each span and event.
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

    /// Uses no thread that notices a switch of tracing. Without the thread, `tracing` can cache no answer. So every new
    /// span and every event checks the tag, which costs a few nanoseconds while the tag is off.
    ///
    /// An [`AtraceSubscriber`](crate::AtraceSubscriber) without other layers has such a filter as a layer:
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
