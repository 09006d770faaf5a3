//! The findings, and their text: one terminal line for each, whatever other users wrote into it.

use std::fmt;

use crate::escape::shown;

/// The topics, each with the word for it.
macro_rules! topics {
    ($($(#[$doc:meta])* $topic:ident: $name:literal,)*) => {
        /// What was looked at.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Topic {
            $($(#[$doc])* $topic,)*
        }

        impl Topic {
            /// The word for it.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$topic => $name,)*
                }
            }
        }
    };
}

topics! {
    /// The process: is it there, and does it run?
    Process: "process",
    /// What the process says of itself.
    State: "state",
    /// The kind of place that was chosen for events.
    Backend: "backend",
    /// Perfetto's tracing service.
    Service: "service",
    /// The library that events go to, and which functions it has.
    Library: "library",
    /// Whether tracefs is mounted.
    Mount: "mount",
    /// The marker that events are written to.
    Marker: "marker",
    /// The process' descriptor of the marker.
    Descriptor: "descriptor",
    /// The ring buffer behind the marker.
    Buffer: "buffer",
    /// Whether the ring buffer records.
    TracingOn: "tracing_on",
    /// Whether the ring buffer takes markers.
    Markers: "markers",
    /// The property store.
    Properties: "properties",
    /// The mask of tags in the properties.
    Tags: "tags",
    /// The app patterns in the properties, and the name of the process.
    Pattern: "pattern",
    /// The length of that name.
    Name: "name",
    /// Whether the process disabled tracing for itself.
    Disabled: "disabled",
    /// Whether the process noticed the properties' last change.
    Serial: "serial",
    /// Subscribers that keep what they were told, and the thread that tells them.
    Filter: "filter",
    /// Events that could not be written.
    Lost: "lost",
    /// Whether an event written now arrives.
    Event: "event",
}

/// How it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Level {
    /// As it must be.
    Good,
    /// Worth knowing; events arrive nevertheless, or it can't be told.
    Note,
    /// No event arrives.
    Wrong,
}

/// One thing that was looked at.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Finding {
    /// What it is about.
    pub topic: Topic,
    /// How it is.
    pub level: Level,
    /// What was found.
    pub text: String,
    /// What to do about it: mostly a command.
    pub mend: Option<String>,
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Report(pub(super) Vec<Finding>);

impl Report {
    /// The findings, in the order of an event's way.
    pub fn findings(&self) -> &[Finding] {
        &self.0
    }

    /// Whether an event written now arrives: that was tried, and nothing is wrong.
    pub fn arrives(&self) -> bool {
        self.0.iter().any(|it| it.topic == Topic::Event && it.level == Level::Good)
            && self.wrong().next().is_none()
    }

    /// What is wrong.
    pub fn wrong(&self) -> impl Iterator<Item = &Finding> {
        self.0.iter().filter(|it| it.level == Level::Wrong)
    }

    /// Shows the text as one line.
    pub(super) fn add(&mut self, topic: Topic, level: Level, text: impl Into<String>) -> &mut Finding {
        self.0.push(Finding { topic, level, text: shown(&text.into()).to_string(), mend: None });
        let last = self.0.len() - 1;
        &mut self.0[last]
    }

    pub(super) fn good(&mut self, topic: Topic, text: impl Into<String>) {
        self.add(topic, Level::Good, text);
    }

    pub(super) fn note(&mut self, topic: Topic, text: impl Into<String>) {
        self.add(topic, Level::Note, text);
    }

    pub(super) fn bad(&mut self, topic: Topic, text: impl Into<String>, mend: impl Into<String>) {
        self.add(topic, Level::Wrong, text).mend = Some(shown(&mend.into()).to_string());
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Finding { topic, level, text, mend }) in self.0.iter().enumerate() {
            let level = match level {
                Level::Good => "ok",
                Level::Note => "note",
                Level::Wrong => "WRONG",
            };
            write!(f, "{}{level:<6}{:<11}{text}", if index > 0 { "\n" } else { "" }, topic.name())?;
            if let Some(mend) = mend {
                write!(f, "\n      {:<11}-> {mend}", "")?;
            }
        }
        Ok(())
    }
}
