//! The findings of the doctor, and their text. On a terminal, the text of a finding is one line, and so is its remedy,
//! even if they contain text that comes from other users.

use std::fmt;

use crate::escape::shown;

/// Declares the topics, each with its name in the output.
macro_rules! topics {
    ($($(#[$doc:meta])* $topic:ident: $name:literal,)*) => {
        /// The subject of a finding.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Topic {
            $($(#[$doc])* $topic,)*
        }

        impl Topic {
            /// Returns the name of the topic in the output.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$topic => $name,)*
                }
            }
        }
    };
}

topics! {
    /// Whether the process exists and runs.
    Process: "process",
    /// The state that the process publishes.
    State: "state",
    /// The kind of backend that the process uses.
    Backend: "backend",
    /// Perfetto's tracing service.
    Service: "service",
    /// The library to which events go, and the functions that it has.
    Library: "library",
    /// Whether tracefs is mounted.
    Mount: "mount",
    /// The marker to which events are written.
    Marker: "marker",
    /// The process's descriptor of the marker.
    Descriptor: "descriptor",
    /// The ring buffer behind the marker.
    Buffer: "buffer",
    /// Whether the ring buffer records.
    TracingOn: "tracing_on",
    /// Whether the ring buffer takes messages that are written to its marker.
    Markers: "markers",
    /// The property store.
    Properties: "properties",
    /// The mask of tags in the properties.
    Tags: "tags",
    /// The app patterns in the properties, and the name of the process.
    Pattern: "pattern",
    /// The length of the process's name.
    Name: "name",
    /// Whether the process disabled tracing for itself.
    Disabled: "disabled",
    /// Whether the process has read the properties since their last change.
    Serial: "serial",
    /// Subscribers that cache the enabled tags, and the thread that notifies them of changes.
    Filter: "filter",
    /// Events that could not be written.
    Lost: "lost",
    /// Whether an event that is written now arrives in the trace.
    Event: "event",
}

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Level {
    /// The check found no fault.
    Good,
    /// A remark: events arrive nevertheless, or it is unknown whether events arrive.
    Note,
    /// The check found a fault. The fault prevents events from arriving (all events, or events of some kinds), or it
    /// prevents the doctor from seeing whether events arrive.
    Wrong,
}

/// The result of one check.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Finding {
    /// The subject of the check.
    pub topic: Topic,
    /// The severity of the result.
    pub level: Level,
    /// The result as one line of text.
    pub text: String,
    /// How to repair the fault, or what else to do, as a command or in words.
    pub mend: Option<String>,
}

/// The findings about a process or a program.
#[derive(Clone, Debug, Default)]
pub struct Report(pub(super) Vec<Finding>);

impl Report {
    /// Returns the findings, in the order of the checks.
    pub fn findings(&self) -> &[Finding] {
        &self.0
    }

    /// Returns whether an event that is written now arrives, as far as the doctor can see: the finding with the topic
    /// [`Topic::Event`] has the level [`Level::Good`], and no other check failed.
    pub fn arrives(&self) -> bool {
        self.0.iter().any(|it| it.topic == Topic::Event && it.level == Level::Good)
            && self.wrong().next().is_none()
    }

    /// Returns the findings of level [`Level::Wrong`].
    pub fn wrong(&self) -> impl Iterator<Item = &Finding> {
        self.0.iter().filter(|it| it.level == Level::Wrong)
    }

    /// Adds a finding. The text and the remedy are escaped, so that each of them is one line.
    pub(super) fn add(&mut self, topic: Topic, level: Level, text: impl Into<String>, mend: Option<String>) {
        let (text, mend) = (shown(&text.into()).to_string(), mend.map(|mend| shown(&mend).to_string()));
        self.0.push(Finding { topic, level, text, mend });
    }

    pub(super) fn good(&mut self, topic: Topic, text: impl Into<String>) {
        self.add(topic, Level::Good, text, None);
    }

    pub(super) fn note(&mut self, topic: Topic, text: impl Into<String>) {
        self.add(topic, Level::Note, text, None);
    }

    /// Adds a finding with a suggested action. The finding does not prevent events from arriving.
    pub(super) fn hint(&mut self, topic: Topic, text: impl Into<String>, mend: impl Into<String>) {
        self.add(topic, Level::Note, text, Some(mend.into()));
    }

    /// Removes the findings with the topic [`Topic::Event`], and turns all faults into notes, because events arrive
    /// through another backend.
    pub(super) fn forgive(&mut self) {
        self.0.retain(|it| it.topic != Topic::Event);
        let wrong = self.0.iter_mut().filter(|it| it.level == Level::Wrong);
        wrong.for_each(|it| it.level = Level::Note);
    }

    pub(super) fn bad(&mut self, topic: Topic, text: impl Into<String>, mend: impl Into<String>) {
        self.add(topic, Level::Wrong, text, Some(mend.into()));
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
