//! The option that selects where spans are shown.

/// Where a span is shown: on the threads that enter it, as an async slice for its whole life, or both.
///
/// See [`AtraceLayer::with_async_spans`](crate::AtraceLayer::with_async_spans).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AsyncSpans {
    /// Spans are shown on threads only.
    Never,
    /// Spans are shown on threads and also as async slices. For Perfetto, a span has an async slice only if it is
    /// [asynchronous](crate#lives); for ATrace, every span has one.
    Beside,
    /// Spans are shown as an async slice only, whether they are asynchronous or not.
    Instead,
}
