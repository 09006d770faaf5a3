//! Instrumentation that is compiled in, or not.

use std::future::Future;

use tracing::instrument::{Instrument as _, Instrumented};

/// How a workload is instrumented: a case is generic over this, so that the mode `none` is other machine code
/// and its futures are as small as if nobody had thought of tracing.
///
/// Spans are made by closures, since [`Bare`] makes none. Futures are `Send + 'static`, to be spawned
/// wherever the workload likes.
pub trait Tracing: 'static {
    /// Whether anything is instrumented.
    const COMPILED_IN: bool;

    /// A span, or nothing.
    type Span: Clone + Send + Sync + 'static;

    /// A future within a span, or just the future.
    type Spanned<F: Future + Send + 'static>: Future<Output = F::Output> + Send + 'static;

    /// Makes a span, such as `T::span(|| info_span!("task"))`.
    fn span(make: impl FnOnce() -> tracing::Span) -> Self::Span;

    /// Runs `f` within the span: entered before, exited after.
    fn within<R>(span: &Self::Span, f: impl FnOnce() -> R) -> R;

    /// Wraps `future` as `future.instrument(make())`: each poll of it is within the span.
    fn spanned<F: Future + Send + 'static>(
        future: F,
        make: impl FnOnce() -> tracing::Span,
    ) -> Self::Spanned<F>;

    /// Does something else, such as `T::event(|| info!("late"))`.
    fn event(f: impl FnOnce());
}

/// No instrumentation: the mode `none`.
#[derive(Clone, Copy, Debug)]
pub enum Bare {}

/// Instrumented: every other mode.
#[derive(Clone, Copy, Debug)]
pub enum Traced {}

impl Tracing for Bare {
    const COMPILED_IN: bool = false;
    type Span = ();
    type Spanned<F: Future + Send + 'static> = F;

    #[inline(always)]
    fn span(_: impl FnOnce() -> tracing::Span) {}

    #[inline(always)]
    fn within<R>((): &(), f: impl FnOnce() -> R) -> R {
        f()
    }

    #[inline(always)]
    fn spanned<F: Future + Send + 'static>(future: F, _: impl FnOnce() -> tracing::Span) -> F {
        future
    }

    #[inline(always)]
    fn event(_: impl FnOnce()) {}
}

impl Tracing for Traced {
    const COMPILED_IN: bool = true;
    type Span = tracing::Span;
    type Spanned<F: Future + Send + 'static> = Instrumented<F>;

    #[inline(always)]
    fn span(make: impl FnOnce() -> tracing::Span) -> tracing::Span {
        make()
    }

    #[inline(always)]
    fn within<R>(span: &tracing::Span, f: impl FnOnce() -> R) -> R {
        let _entered = span.enter();
        f()
    }

    #[inline(always)]
    fn spanned<F: Future + Send + 'static>(
        future: F,
        make: impl FnOnce() -> tracing::Span,
    ) -> Instrumented<F> {
        future.instrument(make())
    }

    #[inline(always)]
    fn event(f: impl FnOnce()) {
        f();
    }
}
