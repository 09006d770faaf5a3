//! The name of a row: `<who>/<what>`, the implementation and the measured operation.

use std::fmt;

use super::kinds::{Event, TracingCase};

/// The implementation that a row measures.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    /// A lower limit of the cost: no tracing, or the least work that could trace. Other rows are compared
    /// with it.
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
    /// A crate of another project, `peer-<crate>`, or a name that this version does not know.
    Other(String),
}

impl Who {
    /// Returns the crate's name if the row measures a crate of another project.
    pub fn peer(&self) -> Option<&str> {
        match self {
            Self::Other(name) => name.strip_prefix("peer-"),
            _ => None,
        }
    }
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Limit => "limit",
            Self::Cc => "cc",
            Self::Rust => "rust",
            Self::Ffi => "ffi",
            Self::AospLike => "aosp-like",
            Self::Perfetto => "perfetto",
            Self::Other(name) => name,
        })
    }
}

/// Whether tracing is on during the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Tracing is compiled in, but switched off.
    Off,
    /// Tracing is on, and messages are written.
    On,
}

impl State {
    /// Both states, in the order of the tables.
    pub const ALL: [Self; 2] = [Self::Off, Self::On];

    /// Returns the name of the state in ids.
    pub const fn name(self) -> &'static str {
        ["off", "on"][self as usize]
    }
}

/// The operation that a row measures.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum What {
    /// A kind of event: `tracing_off_begin/10`.
    Event(State, &'static Event),
    /// A kind of event on several threads: `tracing_off_begin/10/2_threads`.
    Threads(State, &'static Event, usize),
    /// The begin of a slice whose name has this number of characters: `on_name/300`.
    Name(State, usize),
    /// A `tracing` case under a kind of subscriber: `filtered_span`. The kind is empty for a crate of another project
    /// in its default state.
    Tracing(String, TracingCase),
    /// A begin in a special process, such as a process with a watch: `on_begin_watched/10`.
    Watched(String),
    /// A `write(2)` of the bytes of an event (`raw_write_end`), of a begin with a name of this length
    /// (`raw_write_name/300`), or of a `tracing` case (`raw_write_of_on_span`).
    RawWrite(String),
    /// Any other name, such as the row of a workload.
    Other(String),
}

/// The name of a row.
///
/// # Examples
///
/// ```
/// use atrace_benches::catalogue::{Id, State, What, Who};
///
/// let id = Id::of("rust/tracing_on_begin/10");
/// assert_eq!(id.who, Who::Rust);
/// assert_eq!(id.with_state(State::Off).unwrap().to_string(), "rust/tracing_off_begin/10");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Id {
    /// The implementation.
    pub who: Who,
    /// The measured operation.
    pub what: What,
}

impl Id {
    /// Makes the id of an event.
    pub fn event(who: Who, state: State, event: &'static Event) -> Self {
        Self { who, what: What::Event(state, event) }
    }

    /// Makes the id of a [raw write](What::RawWrite).
    pub fn raw_write(of: impl fmt::Display) -> Self {
        Self { who: Who::Limit, what: What::RawWrite(of.to_string()) }
    }

    /// Makes the id of a limit, from its name.
    pub fn limit(name: &str) -> Self {
        Self { who: Who::Limit, what: What::Other(name.to_owned()) }
    }

    /// Parses an id. An unknown name becomes [`Other`](What::Other).
    pub fn of(text: &str) -> Self {
        let (who, what) = text.split_once('/').unwrap_or(("", text));
        let who = match who {
            "limit" => Who::Limit,
            "cc" => Who::Cc,
            "rust" => Who::Rust,
            "ffi" => Who::Ffi,
            "aosp-like" => Who::AospLike,
            "perfetto" => Who::Perfetto,
            other => Who::Other(other.to_owned()),
        };
        Self { who, what: What::of(what) }
    }

    /// Returns the id without the implementation.
    pub fn name(&self) -> String {
        self.what.to_string()
    }

    /// Returns the id of the same operation in another implementation.
    pub fn with_who(&self, who: Who) -> Self {
        Self { who, what: self.what.clone() }
    }

    /// Returns the id of the same operation in another state, or `None` if the operation has no states.
    pub fn with_state(&self, state: State) -> Option<Self> {
        let what = match &self.what {
            What::Event(_, event) => What::Event(state, event),
            What::Threads(_, event, n) => What::Threads(state, event, *n),
            What::Name(_, length) => What::Name(state, *length),
            What::Tracing(_, case) if self.state().is_some() => {
                What::Tracing(format!("tracing_{}", state.name()), *case)
            }
            _ => return None,
        };
        Some(Self { who: self.who.clone(), what })
    }

    /// Returns whether tracing is on, or `None` if the id has no state.
    pub fn state(&self) -> Option<State> {
        match &self.what {
            What::Event(state, _) | What::Threads(state, ..) | What::Name(state, _) => Some(*state),
            What::Tracing(kind, _) => {
                State::ALL.into_iter().find(|s| *kind == format!("tracing_{}", s.name()))
            }
            _ => None,
        }
    }

    /// Returns the name of the case in the original benchmark. C++ cases have Google Benchmark's form of name.
    pub fn label(&self) -> String {
        match (&self.who, &self.what) {
            (Who::Cc, What::Event(..) | What::Threads(..)) => {
                let (name, mut out) = (self.name(), String::from("BM_Tracing"));
                for (index, part) in name.split('_').skip(1).enumerate() {
                    out.push_str(if index == 1 { "Atrace" } else { "" });
                    let mut chars = part.chars();
                    out.extend(chars.next().into_iter().flat_map(char::to_uppercase));
                    out.push_str(chars.as_str());
                }
                out
            }
            _ => self.to_string(),
        }
    }

    /// Returns the id without the implementation and without the prefix `tracing_`, for tables whose title has both.
    pub fn short(&self) -> String {
        let name = self.name();
        name.strip_prefix("tracing_").map(str::to_owned).unwrap_or(name)
    }

    /// Returns the name of the case in Criterion's output.
    pub fn in_criterion(&self) -> String {
        if self.who == Who::Rust { self.name() } else { self.label() }
    }

    /// Joins a workload's case and mode (its configuration of instrumentation and subscriber) to an id.
    pub fn of_workload(case: &str, mode: &str) -> String {
        format!("{case}/{mode}")
    }

    /// Splits the id of a workload's row into case and mode.
    pub fn case_and_mode(text: &str) -> Option<(&str, &str)> {
        text.rsplit_once('/')
    }
}

impl What {
    fn of(text: &str) -> Self {
        Self::known(text).unwrap_or_else(|| Self::Other(text.to_owned()))
    }

    fn known(text: &str) -> Option<Self> {
        for state in State::ALL {
            if let Some(length) = text.strip_prefix(state.name()).and_then(|rest| rest.strip_prefix("_name/"))
            {
                return Some(Self::Name(state, number(length)?));
            }
            let Some(name) = text.strip_prefix("tracing_").and_then(|rest| rest.strip_prefix(state.name()))
            else {
                continue;
            };
            let Some(name) = name.strip_prefix('_') else { continue };
            if let Some(event) = Event::named(name) {
                return Some(Self::Event(state, event));
            }
            let parts = name.rsplit_once('/').and_then(|(n, t)| Some((Event::named(n)?, t)));
            if let Some((event, threads)) = parts {
                let n = threads.strip_suffix("_threads").or(threads.strip_suffix("_thread"))?;
                return Some(Self::Threads(state, event, number(n)?));
            }
        }
        if let Some(kind) = text.strip_prefix("on_begin_").and_then(|rest| rest.strip_suffix("/10")) {
            return Some(Self::Watched(kind.to_owned()));
        }
        if let Some(of) = text.strip_prefix("raw_write_") {
            let length = |of: &str| number(of.strip_prefix("name/")?);
            let case = || tracing(of.strip_prefix("of_")?);
            let is_known = Event::named(of).is_some() || length(of).is_some() || case().is_some();
            return is_known.then(|| Self::RawWrite(of.to_owned()));
        }
        tracing(text).map(|(kind, case)| Self::Tracing(kind.to_owned(), case))
    }
}

/// Splits a name into the kind of subscriber and the `tracing` case.
fn tracing(text: &str) -> Option<(&str, TracingCase)> {
    let kind_of = |case: TracingCase| Some((text.strip_suffix(case.name())?, case));
    let (kind, case) = TracingCase::ALL.into_iter().find_map(kind_of)?;
    Some((if kind.is_empty() { kind } else { kind.strip_suffix('_')? }, case))
}

/// Parses a number in the form that ids have: without sign and leading zeros.
fn number(text: &str) -> Option<usize> {
    text.parse().ok().filter(|number: &usize| number.to_string() == text)
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.who {
            Who::Other(name) if name.is_empty() => write!(f, "{}", self.what),
            who => write!(f, "{who}/{}", self.what),
        }
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Event(state, event) => write!(f, "tracing_{}_{}", state.name(), event.name),
            Self::Threads(state, event, n) => {
                let s = if *n == 1 { "" } else { "s" };
                write!(f, "tracing_{}_{}/{n}_thread{s}", state.name(), event.name)
            }
            Self::Name(state, length) => write!(f, "{}_name/{length}", state.name()),
            Self::Tracing(kind, case) if kind.is_empty() => f.write_str(case.name()),
            Self::Tracing(kind, case) => write!(f, "{kind}_{}", case.name()),
            Self::Watched(kind) => write!(f, "on_begin_{kind}/10"),
            Self::RawWrite(of) => write!(f, "raw_write_{of}"),
            Self::Other(name) => f.write_str(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_id_prints_what_was_parsed() {
        let begin = Event::named("begin/10").unwrap();
        let end = Event::named("end").unwrap();
        let literal = Event::named("begin_literal/10").unwrap();
        for (text, what) in [
            ("rust/tracing_off_begin/10", What::Event(State::Off, begin)),
            ("cc/tracing_on_end", What::Event(State::On, end)),
            ("rust/tracing_off_begin/10/1_thread", What::Threads(State::Off, begin, 1)),
            ("cc/tracing_on_begin/10/8_threads", What::Threads(State::On, begin, 8)),
            ("rust/on_name/1000", What::Name(State::On, 1000)),
            ("limit/raw_write_begin/10", What::RawWrite("begin/10".into())),
            ("limit/raw_write_name/3", What::RawWrite("name/3".into())),
            ("limit/raw_write_of_layer_on_span_args", What::RawWrite("of_layer_on_span_args".into())),
            ("limit/raw_write_of_on_spam", What::Other("raw_write_of_on_spam".into())),
            ("rust/tracing_on_event", What::Tracing("tracing_on".into(), TracingCase::Event)),
            ("limit/noop_always_event_args", What::Tracing("noop_always".into(), TracingCase::EventArgs)),
            ("peer-fastrace/span", What::Tracing(String::new(), TracingCase::Span)),
            ("peer-fastrace/off_span", What::Tracing("off".into(), TracingCase::Span)),
            ("rust/on_begin_watched/10", What::Watched("watched".into())),
            ("perfetto/on_begin_2_sessions/10", What::Watched("2_sessions".into())),
            ("perfetto/tracing_on_begin_literal/10", What::Event(State::On, literal)),
            ("perfetto/tracing_on_begin/10/8_threads", What::Threads(State::On, begin, 8)),
            ("perfetto/on_990_more", What::Other("on_990_more".into())),
            ("limit/empty_loop", What::Other("empty_loop".into())),
            ("rust/task/on", What::Other("task/on".into())),
            ("limit/raw_writes_of/rust/task", What::Other("raw_writes_of/rust/task".into())),
            ("rust/on_name/007", What::Other("on_name/007".into())),
            ("rust/tracing_off_begin/10/x_threads", What::Other("tracing_off_begin/10/x_threads".into())),
            ("nobody", What::Other("nobody".into())),
        ] {
            let id = Id::of(text);
            assert_eq!((id.what.clone(), id.to_string()), (what, text.to_owned()));
        }
        assert_eq!(Id::of("peer-x/event").who, Who::Other("peer-x".into()));
        assert_eq!(Id::of("perfetto/tracing_on_end").who, Who::Perfetto);
    }

    #[test]
    fn states_are_exchanged_where_there_are_two() {
        let off = |text: &str| Id::of(text).with_state(State::Off).map(|id| id.to_string());
        assert_eq!(off("cc/tracing_on_scoped").unwrap(), "cc/tracing_off_scoped");
        assert_eq!(off("rust/tracing_on_span").unwrap(), "rust/tracing_off_span");
        assert_eq!(off("rust/on_name/3").unwrap(), "rust/off_name/3");
        assert_eq!(off("rust/on_filtered_span"), None);
        assert_eq!(off("limit/getppid"), None);
        assert_eq!(Id::of("rust/tracing_on_span").state(), Some(State::On));
        assert_eq!(Id::of("rust/layer_on_span").state(), None);
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
