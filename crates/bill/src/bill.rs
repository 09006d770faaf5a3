//! The bill: the cost of each callsite, estimated from the measurements of a meter.

use crate::estimate::Estimate;
use crate::raw::{self, Call, Callsite, Kind};

/// The processor time that the calls of a `tracing` subscriber have taken, for each callsite. The bill can be formatted
/// as a table ([`Display`](std::fmt::Display)) or as JSON.
///
/// The table lists the callsites that have cost the most. With `{:#}` it lists all callsites.
///
/// | column | |
/// |---|---|
/// | share of processor time | the callsite's share of the process's processor time, with its 99 % interval |
/// | ns each | nanoseconds of one span with all its calls, or of one event |
/// | calls | the number of spans or events |
/// | kind | the calls (on average) and the fields of a span, or the number of an event's fields without the message |
/// | callsite | the name of a span, or the target of an event |
/// | where | the file and line of the callsite |
///
/// The process's processor time is the time of all its threads since the meter was made, without the time of metering
/// itself.
#[derive(Clone, Debug, Default)]
pub struct Bill {
    pub(crate) subject: String,
    /// The processor time of the process in nanoseconds, without the time that metering has taken. If the processor
    /// time is unknown, the elapsed time is used instead.
    pub(crate) whole_ns: f64,
    pub(crate) is_processor_time: bool,
    /// The processor time of the threads that made no call, if it is known.
    pub(crate) others_ns: Option<u64>,
    pub(crate) elapsed_ns: f64,
    pub(crate) metering_ns: f64,
    pub(crate) untimed_ns: f64,
    pub(crate) calls: u64,
    pub(crate) timed: u64,
    pub(crate) total_ns: Estimate,
    /// The callsites, the most expensive first.
    pub(crate) lines: Vec<Line>,
}

/// A line of the bill: a callsite and its cost.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) kind: Kind,
    /// The name of a span. For an event, this is the event's target, because the name of an event is its source
    /// location.
    pub(crate) name: String,
    /// The target of the callsite, or an empty text if the callsite is unknown.
    pub(crate) target: String,
    pub(crate) level: u8,
    /// The number of fields, without the message of an event.
    pub(crate) fields: u32,
    /// The file and the line of the callsite, if they are known.
    pub(crate) place: Option<(String, u32)>,
    pub(crate) calls: [u64; Call::ALL.len()],
    pub(crate) ns: Estimate,
}

/// The names of levels, by their numbers.
pub(crate) const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

impl Bill {
    /// Estimates the costs from the bytes that a [`Writer`](crate::Writer) of this version has written. Returns
    /// `None` if the bytes were not written by such a writer.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let (process, callsites) = raw::read(bytes)?;
        let all = || callsites.iter().flat_map(|(_, sampled)| sampled);
        let calls = total(all().map(|sampled| sampled.calls));
        let timed = total(all().map(|sampled| sampled.timed));
        let metering_ns = calls as f64 * process.untimed_ns + timed as f64 * process.timing_ns;
        let mut lines: Vec<_> = callsites
            .iter()
            .map(|(callsite, sampled)| {
                let costs = sampled.iter().map(|one| one.estimate());
                let ns = costs.fold(Estimate::default(), Estimate::plus).times(process.ns_per_tick);
                Line::new(callsite, sampled.map(|sampled| sampled.calls), ns)
            })
            .filter(|line| line.kind != Kind::Unknown || line.is_used())
            .collect();
        lines.sort_by(|one, other| {
            other.ns.sum.total_cmp(&one.ns.sum).then_with(|| one.place.cmp(&other.place))
        });
        let whole_ns = process.processor_ns.unwrap_or(process.elapsed_ns) as f64 - metering_ns;
        Some(Self {
            subject: process.subject.to_owned(),
            whole_ns: whole_ns.max(1.0),
            is_processor_time: process.processor_ns.is_some(),
            others_ns: process.others_ns,
            elapsed_ns: process.elapsed_ns as f64,
            metering_ns,
            untimed_ns: process.untimed_ns,
            calls,
            timed,
            total_ns: lines.iter().fold(Estimate::default(), |sum, line| sum.plus(line.ns)),
            lines,
        })
    }
}

fn total(numbers: impl Iterator<Item = u64>) -> u64 {
    numbers.fold(0, u64::saturating_add)
}

impl Line {
    fn new(callsite: &Callsite<'_>, calls: [u64; Call::ALL.len()], ns: Estimate) -> Self {
        let name = match callsite.kind {
            Kind::Unknown => "unknown",
            Kind::Span => callsite.name,
            Kind::Event => callsite.target,
        };
        Self {
            kind: callsite.kind,
            name: name.to_owned(),
            target: callsite.target.to_owned(),
            level: callsite.level,
            fields: callsite.fields,
            place: (!callsite.file.is_empty()).then(|| (short(callsite.file).to_owned(), callsite.line)),
            calls,
            ns,
        }
    }

    pub(crate) fn calls(&self, call: Call) -> u64 {
        self.calls[call as usize]
    }

    /// Returns whether the callsite caused any call of the subscriber.
    pub(crate) fn is_used(&self) -> bool {
        self.calls.iter().any(|calls| *calls > 0)
    }

    /// Returns the number of spans or events of the callsite. If all spans of the callsite were created before the
    /// meter existed, returns how many times the spans were entered.
    pub(crate) fn uses(&self) -> u64 {
        let uses = [Call::New, Call::Event, Call::Enter].map(|call| self.calls(call));
        uses.into_iter().find(|uses| *uses > 0).unwrap_or_default()
    }

    /// Returns the cost of one span or event in nanoseconds. If the callsite had no span and no event, returns the
    /// average cost of a call.
    pub(crate) fn each_ns(&self) -> f64 {
        let uses = if self.uses() > 0 { self.uses() } else { total(self.calls.into_iter()).max(1) };
        self.ns.sum / uses as f64
    }
}

/// Shortens the path of a source file, if the file belongs to a crate from a registry: the result begins with the name
/// of the crate.
fn short(file: &str) -> &str {
    let of_registry = file.split_once("registry/src/").or_else(|| file.split_once(r"registry\src\"));
    let of_crate = of_registry.and_then(|(_, after)| after.split_once(['/', '\\']));
    of_crate.map_or(file, |(_, path)| path)
}

/// A text for users that names the parts of tracing's cost that no line of the bill contains.
pub(crate) const NOT_BILLED: &str = "the evaluation of arguments, the caches of `tracing`, and what calls displace from \
    the processor's caches";
