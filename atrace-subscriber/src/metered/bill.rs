//! What each callsite has cost, from its counts.

use tracing_core::{Level, Metadata};

use super::estimate::{Estimate, Sampled};
use super::meter::Call;

/// What was counted and timed. Times without a unit are ticks.
pub(super) struct Counts {
    pub(super) subject: &'static str,
    pub(super) ns_per_tick: f64,
    pub(super) processor_ns: Option<u64>,
    pub(super) elapsed_ns: u64,
    /// What metering takes for a call that is not timed.
    pub(super) untimed_ns: f64,
    /// What metering has taken more for timed calls.
    pub(super) timing_ns: f64,
    /// `None`: the calls whose callsite is unknown.
    pub(super) callsites: Vec<(Option<&'static Metadata<'static>>, [Sampled; Call::ALL.len()])>,
}

/// What a subscriber's calls have cost, by callsite: a table ([`Display`](std::fmt::Display)) or JSON.
///
/// The table has the callsites that cost most; with `{:#}` it has all.
///
/// | column | |
/// |---|---|
/// | share of processor time | of all threads of the process since the meter was made, without what metering itself has taken; with its interval at 99 % |
/// | ns each | nanoseconds of one span with all its calls, or of one event |
/// | calls | how many spans or events there were |
/// | kind | what one span consists of on average, or the number of an event's fields beside its message |
/// | callsite | its name, or the target of an event |
/// | where | its file and line |
#[derive(Clone, Debug)]
pub struct Bill {
    pub(super) subject: &'static str,
    /// The processor time of the process without what metering has taken, or, where it is unknown, the elapsed time.
    pub(super) whole_ns: f64,
    pub(super) is_processor_time: bool,
    pub(super) elapsed_ns: f64,
    pub(super) metering_ns: f64,
    pub(super) untimed_ns: f64,
    pub(super) calls: u64,
    pub(super) timed: u64,
    pub(super) total_ns: Estimate,
    /// The callsites, the most expensive first.
    pub(super) lines: Vec<Line>,
}

/// What a callsite has cost.
#[derive(Clone, Debug)]
pub(super) struct Line {
    /// `None`: the calls whose callsite is unknown.
    pub(super) callsite: Option<&'static Metadata<'static>>,
    pub(super) calls: [u64; Call::ALL.len()],
    pub(super) ns: Estimate,
}

impl Bill {
    pub(super) fn new(counts: Counts) -> Self {
        let all = counts.callsites.iter().flat_map(|(_, sampled)| sampled);
        let calls: u64 = all.clone().map(|sampled| sampled.calls).sum();
        let timed: u64 = all.map(|sampled| sampled.timed).sum();
        let metering_ns = calls as f64 * counts.untimed_ns + counts.timing_ns;
        let mut lines: Vec<_> = counts
            .callsites
            .iter()
            .map(|(callsite, sampled)| Line {
                callsite: *callsite,
                calls: sampled.map(|sampled| sampled.calls),
                ns: sampled
                    .iter()
                    .fold(Estimate::default(), |sum, one| sum.plus(one.estimate()))
                    .times(counts.ns_per_tick),
            })
            .filter(|line| line.callsite.is_some() || line.calls.iter().any(|calls| *calls > 0))
            .collect();
        lines.sort_by(|one, other| {
            other.ns.sum.total_cmp(&one.ns.sum).then_with(|| one.place().cmp(&other.place()))
        });
        let whole_ns = counts.processor_ns.unwrap_or(counts.elapsed_ns) as f64 - metering_ns;
        Self {
            subject: counts.subject,
            whole_ns: whole_ns.max(1.0),
            is_processor_time: counts.processor_ns.is_some(),
            elapsed_ns: counts.elapsed_ns as f64,
            metering_ns,
            untimed_ns: counts.untimed_ns,
            calls,
            timed,
            total_ns: lines.iter().fold(Estimate::default(), |sum, line| sum.plus(line.ns)),
            lines,
        }
    }
}

impl Line {
    pub(super) fn calls(&self, call: Call) -> u64 {
        self.calls[call as usize]
    }

    pub(super) fn is_span(&self) -> bool {
        self.callsite.is_some_and(Metadata::is_span)
    }

    /// Returns how many spans or events there were; of a span that was created before there was a meter, how often it was entered.
    pub(super) fn uses(&self) -> u64 {
        let uses = [Call::New, Call::Event, Call::Enter].map(|call| self.calls(call));
        uses.into_iter().find(|uses| *uses > 0).unwrap_or_default()
    }

    /// Returns the nanoseconds of one span or event; of all calls, if there were neither.
    pub(super) fn each_ns(&self) -> f64 {
        let uses = if self.uses() > 0 { self.uses() } else { self.calls.iter().sum::<u64>().max(1) };
        self.ns.sum / uses as f64
    }

    /// Returns the name of a span. An event's name is its place, so its target is returned.
    pub(super) fn name(&self) -> &'static str {
        match self.callsite {
            None => "unknown",
            Some(metadata) if metadata.is_span() => metadata.name(),
            Some(metadata) => metadata.target(),
        }
    }

    pub(super) fn target_and_level(&self) -> Option<(&'static str, Level)> {
        self.callsite.map(|metadata| (metadata.target(), *metadata.level()))
    }

    /// Returns the number of fields beside an event's message.
    pub(super) fn fields(&self) -> usize {
        let names = self.callsite.into_iter().flat_map(|metadata| metadata.fields().iter());
        names.filter(|field| self.is_span() || field.name() != "message").count()
    }

    /// Returns the file and the line. The path of a crate from a registry begins with the crate's name.
    pub(super) fn place(&self) -> Option<(&'static str, u32)> {
        let (file, line) = self.callsite.and_then(|metadata| metadata.file().zip(metadata.line()))?;
        let of_crate = |(_, after): (_, &'static str)| after.split_once(['/', '\\']).map(|(_, path)| path);
        let short =
            file.split_once("registry/src/").or_else(|| file.split_once(r"registry\src\")).and_then(of_crate);
        Some((short.unwrap_or(file), line))
    }
}

/// Names the system's parts that the bill does not have.
pub(super) const NOT_BILLED: &str = "the evaluation of arguments, the caches of `tracing`, threads that write \
    what a call has queued, and what calls displace from the processor's caches";
