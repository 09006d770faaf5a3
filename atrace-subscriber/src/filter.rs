//! The filter for a stack with other layers.

use atrace::{AtraceTag, atrace_is_tag_enabled};
use tracing_core::{Dispatch, Interest, LevelFilter, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Filter, Layer};

use crate::Way;
use crate::follow::{Answer, Follower, ORDINARY};

/// Lets spans and events through while a tag is enabled: for one layer of a stack, or, as a layer itself, for
/// all.
///
/// As the filter of an [`AtraceLayer`](crate::AtraceLayer) it has that layer cost little while off, and
/// leaves the other layers alone:
///
/// ```
/// use atrace_subscriber::{AtraceFilter, AtraceLayer};
/// use tracing_subscriber::filter::LevelFilter;
/// use tracing_subscriber::prelude::*;
///
/// # let _ = || {
/// tracing_subscriber::registry()
///     .with(tracing_subscriber::fmt::layer().with_filter(LevelFilter::INFO)) // as ever, on or off
///     .with(AtraceLayer::default().with_filter(AtraceFilter::default())) // while traced, everything
///     .init();
/// # };
/// ```
///
/// As a layer, `.with(AtraceFilter::default())`, it silences the *whole stack* while off: for programs in
/// which nobody but ATrace listens, which then pay nothing while off.
/// [`AtraceSubscriber::with_filter`](crate::AtraceSubscriber::with_filter) is the same for a subscriber that
/// is alone.
///
/// It combines with others as every filter does, `AtraceFilter::default().and(LevelFilter::DEBUG)` (with
/// `FilterExt`).
///
/// While off, a callsite that no other layer wants is cached as disabled, and the maximum level is what the
/// other layers want. While on, the filter of a layer answers at each span and event rather than once a
/// callsite: `tracing-subscriber` drops spans of layers whose filter's answer is kept, when something asks in
/// between ([tokio-rs/tracing#2519][issue]).
///
/// What is kept follows the switch as [`AtraceSubscriber::with_filter`](crate::AtraceSubscriber::with_filter)
/// says, by an ordinary thread, in stacks that contain a layer of this crate; around layers of others only,
/// it answers each time.
///
/// [issue]: https://github.com/tokio-rs/tracing/issues/2519
#[derive(Debug)]
pub struct AtraceFilter {
    tag: AtraceTag,
    follower: Follower,
}

impl Default for AtraceFilter {
    /// For the tag [`AtraceTag::App`].
    fn default() -> Self {
        Self::new(AtraceTag::App)
    }
}

impl AtraceFilter {
    /// Makes a filter that lets through while `tag` is enabled. Give it the tag of the layer.
    pub fn new(tag: AtraceTag) -> Self {
        Self { tag, follower: Follower::new() }
    }

    /// Lets through while the tag is enabled for this way. Give it the way of the layer, if that has one.
    #[must_use]
    pub fn with_way(self, way: Way) -> Self {
        Self { tag: way.only(self.tag), ..self }
    }

    /// Has no thread watch the switch: every span and event asks, which costs some nanoseconds while off.
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
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        atrace_is_tag_enabled(self.tag)
    }

    fn callsite_enabled(&self, _: &'static Metadata<'static>) -> Interest {
        match self.answer() {
            Answer::Off => Interest::never(),
            Answer::On | Answer::Ask => Interest::sometimes(),
        }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(if self.answer() == Answer::Off { LevelFilter::OFF } else { LevelFilter::TRACE })
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
