//! The name of a row (a measured result): `<who>/<what>`, where `<who>` is the implementation and `<what>` the measured
//! operation.

use std::fmt;

use serde::Deserialize;

use super::kinds::{Event, TracingCase};

/// The implementation that a row (a measured result) is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    /// A lower limit of the cost: the cost without tracing, or of the least work that could trace. The costs of
    /// implementations are compared with such limits.
    Limit,
    /// The C++ implementation.
    Cc,
    /// This workspace, with events that go to the trace marker.
    Rust,
    /// This workspace, with events that go through libcutils.
    Ffi,
    /// This workspace, with events that go to the memory that it shares with Perfetto's service.
    Perfetto,
    /// Rust code like AOSP's wrapper of libcutils, which calls C for each event and makes a C string for each name.
    AospLike,
    /// A crate of another project, named `peer-<crate>`, or a name that this version of the benches does not know.
    Other(String),
}

impl Who {
    /// Returns the crate's name if the implementation is a crate of another project.
    pub fn peer(&self) -> Option<&str> {
        match self {
            Self::Other(name) => name.strip_prefix("peer-"),
            _ => None,
        }
    }

    /// Returns the name of the implementation in the ids of rows.
    pub fn name(&self) -> &str {
        match self {
            Self::Limit => "limit",
            Self::Cc => "cc",
            Self::Rust => "rust",
            Self::Ffi => "ffi",
            Self::AospLike => "aosp-like",
            Self::Perfetto => "perfetto",
            Self::Other(name) => name,
        }
    }
}

/// Whether tracing is on during the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Tracing is compiled in, but switched off.
    Off,
    /// Tracing is on, and messages are written.
    On,
}

impl State {
    /// Both states, in the order of the tables.
    pub const ALL: [Self; 2] = [Self::Off, Self::On];

    /// Returns the name of the state in the ids of rows.
    pub const fn name(self) -> &'static str {
        ["off", "on"][self as usize]
    }
}

/// The name of a row, that is, of a measured result.
///
/// # Examples
///
/// ```
/// use atrace_benches::catalogue::{Id, State, Who};
///
/// let id = Id::of("rust/tracing_on_begin/10");
/// assert_eq!(id.who, Who::Rust);
/// assert_eq!(id.as_event().map(|(state, event)| (state, event.name)), Some((State::On, "begin/10")));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Id {
    /// The implementation that the row measures.
    pub who: Who,
    /// The name of the measured operation, which is the same for each implementation:
    ///
    /// | name | operation |
    /// |---|---|
    /// | `tracing_off_begin/10` | a kind of event |
    /// | `tracing_off_begin/10/2_threads` | a kind of event on several threads |
    /// | `on_name/300` | the begin of a slice whose name has this number of characters |
    /// | `filtered_span` | a `tracing` case under a kind of subscriber |
    /// | `on_begin_watched/10` | a begin in a special process: here, one with a thread that watches the properties |
    /// | `raw_write_end`, `raw_write_name/300`, `raw_write_of_on_span` | `write(2)` of the same bytes as an event |
    pub name: String,
}

impl Id {
    /// Makes an id from an implementation and a name.
    pub fn new(who: Who, name: impl Into<String>) -> Self {
        Self { who, name: name.into() }
    }

    /// Makes the id of an event's row, in a state of tracing.
    pub fn event(who: Who, state: State, event: &Event) -> Self {
        Self::new(who, format!("tracing_{}_{}", state.name(), event.name))
    }

    /// Makes the id of the row for the begin of a slice in a special process, such as `watched`.
    pub fn begin_in(who: Who, process: &str) -> Self {
        Self::new(who, format!("on_begin_{process}/10"))
    }

    /// Makes the id of a `write(2)` of the bytes of an event, of a name, or of a `tracing` case.
    pub fn raw_write(of: impl fmt::Display) -> Self {
        Self::new(Who::Limit, format!("raw_write_{of}"))
    }

    /// Makes the id of a limit (a lower limit of the cost) from the limit's name.
    pub fn limit(name: &str) -> Self {
        Self::new(Who::Limit, name)
    }

    /// Parses the text of an id.
    pub fn of(text: &str) -> Self {
        let (who, name) = text.split_once('/').unwrap_or(("", text));
        let known = [Who::Limit, Who::Cc, Who::Rust, Who::Ffi, Who::Perfetto, Who::AospLike];
        let known = known.into_iter().find(|known| known.name() == who);
        Self::new(known.unwrap_or_else(|| Who::Other(who.to_owned())), name)
    }

    /// Returns the id of this operation in the implementation `who`.
    pub fn with_who(&self, who: Who) -> Self {
        Self::new(who, self.name.clone())
    }

    /// Returns the state of tracing and the kind of event, if the operation is an event. Returns `None` for an event
    /// with a number of threads in its name.
    pub fn as_event(&self) -> Option<(State, &'static Event)> {
        let of = |state: State| {
            let name = self.name.strip_prefix("tracing_")?.strip_prefix(state.name())?.strip_prefix('_')?;
            Some((state, Event::named(name)?))
        };
        State::ALL.into_iter().find_map(of)
    }

    /// Returns whether the operation is an event that is measured on a certain number of threads.
    pub fn is_by_threads(&self) -> bool {
        self.name.starts_with("tracing_")
            && ["_thread", "_threads"].iter().any(|end| self.name.ends_with(end))
    }

    /// Returns the kind of subscriber and the case, if the operation is a `tracing` case. The kind is empty for a crate
    /// of another project in its default configuration.
    pub fn as_tracing(&self) -> Option<(&str, TracingCase)> {
        let name = Some(&self.name[..]).filter(|name| !name.starts_with("raw_write_"))?;
        let kind_of = |case: TracingCase| Some((name.strip_suffix(case.name())?, case));
        let (kind, case) = TracingCase::ALL.into_iter().find_map(kind_of)?;
        Some((if kind.is_empty() { kind } else { kind.strip_suffix('_')? }, case))
    }

    /// Returns the id of the same operation with tracing off. Returns `None` if this id is not for tracing on, or if
    /// the operation is not measured in both states.
    pub fn off(&self) -> Option<Self> {
        let has_states = self.as_event().is_some() || self.as_tracing().is_some() || self.is_by_threads();
        let name = match self.name.strip_prefix("on_name/") {
            Some(length) => format!("off_name/{length}"),
            None => format!("tracing_off_{}", self.name.strip_prefix("tracing_on_").filter(|_| has_states)?),
        };
        Some(Self::new(self.who.clone(), name))
    }

    /// Returns the name that Google Benchmark gives to the C++ case of an event, such as `BM_TracingOffAtraceEnd`. If
    /// this is not the id of such a case, returns the text of the id.
    pub fn label(&self) -> String {
        if self.who != Who::Cc || self.as_event().is_none() && !self.is_by_threads() {
            return self.to_string();
        }
        let mut out = String::from("BM_Tracing");
        for (index, part) in self.name.split('_').skip(1).enumerate() {
            out.push_str(if index == 1 { "Atrace" } else { "" });
            let mut chars = part.chars();
            out.extend(chars.next().into_iter().flat_map(char::to_uppercase));
            out.push_str(chars.as_str());
        }
        out
    }

    /// Returns the id without the implementation and without the prefix `tracing_`, for tables whose title says both.
    pub fn short(&self) -> &str {
        self.name.strip_prefix("tracing_").unwrap_or(&self.name)
    }

    /// Returns the name of the case in Criterion's output. The cases of AOSP's benchmarks have AOSP's names. AOSP
    /// measures its subscriber as a layer, so AOSP's names, such as `tracing_off_event`, are the names of the cases
    /// with our layer. The names of the cases with our subscriber alone have the prefix `alone_`.
    pub fn in_criterion(&self) -> String {
        if self.who != Who::Rust {
            return self.label();
        }
        match self.as_tracing() {
            Some(("layer_off" | "layer_on", _)) => self.name.replacen("layer", "tracing", 1),
            Some(("layer_filtered", _)) => self.name.replacen("layer_", "", 1),
            Some(("tracing_off" | "tracing_on" | "filtered", _)) => format!("alone_{}", self.name),
            _ => self.name.clone(),
        }
    }

    /// Joins a workload's case and mode (the configuration of instrumentation and subscriber) to the id of a row.
    pub fn of_workload(case: &str, mode: &str) -> String {
        format!("{case}/{mode}")
    }

    /// Splits the id of a workload's row into the case and the mode (the configuration of instrumentation and
    /// subscriber).
    pub fn case_and_mode(text: &str) -> Option<(&str, &str)> {
        text.rsplit_once('/')
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.who.name() {
            "" => f.write_str(&self.name),
            who => write!(f, "{who}/{}", self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_id_prints_what_was_parsed() {
        let event = |state, name: &str| Some((state, Event::named(name).unwrap()));
        for (text, of_event, of_tracing) in [
            ("rust/tracing_off_begin/10", event(State::Off, "begin/10"), None),
            ("cc/tracing_on_end", event(State::On, "end"), None),
            ("perfetto/tracing_on_begin_literal/10", event(State::On, "begin_literal/10"), None),
            ("rust/tracing_off_begin/10/1_thread", None, None),
            ("rust/on_name/1000", None, None),
            ("limit/raw_write_begin/10", None, None),
            ("limit/raw_write_of_layer_on_span_args", None, None),
            ("rust/tracing_on_event", None, Some(("tracing_on", TracingCase::Event))),
            ("limit/noop_always_event_args", None, Some(("noop_always", TracingCase::EventArgs))),
            ("peer-fastrace/span", None, Some(("", TracingCase::Span))),
            ("peer-fastrace/off_span", None, Some(("off", TracingCase::Span))),
            ("rust/on_begin_watched/10", None, None),
            ("limit/empty_loop", None, None),
            ("rust/task/on", None, None),
            ("nobody", None, None),
        ] {
            let id = Id::of(text);
            assert_eq!((id.as_event(), id.as_tracing(), &id.to_string()[..]), (of_event, of_tracing, text));
        }
        assert_eq!(Id::of("peer-x/event").who, Who::Other("peer-x".into()));
        assert_eq!(Id::of("perfetto/tracing_on_end").who, Who::Perfetto);
        assert_eq!(Id::begin_in(Who::Rust, "watched").to_string(), "rust/on_begin_watched/10");
        assert_eq!(Id::raw_write("end").to_string(), "limit/raw_write_end");
    }

    /// Tests that the cases of a layer have the same names in Criterion as the cases of AOSP's benchmark.
    #[test]
    fn criterion_has_the_names_of_the_originals() {
        for (id, name) in [
            ("rust/layer_off_event", "tracing_off_event"),
            ("rust/layer_filtered_span_args", "filtered_span_args"),
            ("rust/layer_on_span", "tracing_on_span"),
            ("rust/tracing_off_event", "alone_tracing_off_event"),
            ("rust/filtered_span", "alone_filtered_span"),
            ("rust/tracing_off_begin/10", "tracing_off_begin/10"),
            ("cc/tracing_off_end", "BM_TracingOffAtraceEnd"),
        ] {
            assert_eq!(Id::of(id).in_criterion(), name);
        }
    }

    #[test]
    fn an_operation_that_is_on_has_one_that_is_off() {
        let off = |text: &str| Id::of(text).off().map(|id| id.to_string());
        assert_eq!(off("cc/tracing_on_scoped").unwrap(), "cc/tracing_off_scoped");
        assert_eq!(off("rust/tracing_on_span").unwrap(), "rust/tracing_off_span");
        assert_eq!(off("rust/on_name/3").unwrap(), "rust/off_name/3");
        assert_eq!(
            [
                "rust/on_filtered_span",
                "limit/getppid",
                "cc/tracing_off_end",
                "rust/tracing_on_is_tag_enabled"
            ]
            .map(off),
            [const { None }; 4]
        );
    }

    #[test]
    fn labels_are_the_originals() {
        for (id, label) in [
            ("cc/tracing_off_begin/1000", "BM_TracingOffAtraceBegin/1000"),
            ("cc/tracing_on_async_end", "BM_TracingOnAtraceAsyncEnd"),
            ("rust/tracing_on_end", "rust/tracing_on_end"),
        ] {
            assert_eq!(Id::of(id).label(), label);
        }
    }

    #[test]
    fn workloads_have_a_case_and_a_mode() {
        assert_eq!(Id::case_and_mode(&Id::of_workload("rust/task", "on")), Some(("rust/task", "on")));
    }
}
