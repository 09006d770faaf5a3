//! What a program does with the crate `tracing`.

/// What a program does with `tracing`: the bodies of the original benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TracingCase {
    /// An event without fields.
    Event,
    /// An event with four.
    EventArgs,
    /// A span without fields, entered and left.
    Span,
    /// A span with four.
    SpanArgs,
}

impl TracingCase {
    /// All, in the order of the tables.
    pub const ALL: [Self; 4] = [Self::Event, Self::EventArgs, Self::Span, Self::SpanArgs];

    /// As in ids.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Event => "event",
            Self::EventArgs => "event_args",
            Self::Span => "span",
            Self::SpanArgs => "span_args",
        }
    }

    /// In words.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Event => "event",
            Self::EventArgs => "event, 4 fields",
            Self::Span => "span",
            Self::SpanArgs => "span, 4 fields",
        }
    }

    /// How many messages it writes while it is traced.
    #[must_use]
    pub const fn messages(self) -> u64 {
        match self {
            Self::Event | Self::EventArgs => 1,
            Self::Span | Self::SpanArgs => 2,
        }
    }
}
