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
    pub const fn name(self) -> &'static str {
        ["event", "event_args", "span", "span_args"][self as usize]
    }

    /// In words.
    pub const fn label(self) -> &'static str {
        ["event", "event, 4 fields", "span", "span, 4 fields"][self as usize]
    }

    /// How many messages it writes while it is traced.
    pub const fn messages(self) -> u64 {
        [1, 1, 2, 2][self as usize]
    }
}
