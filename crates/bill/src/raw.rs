//! The measurements of a meter, encoded as bytes.
//!
//! All numbers have eight bytes, in little-endian order; a text is encoded as its length and its UTF-8 bytes. The bytes
//! begin with [`MAGIC`] and a [`Process`]. Then follow, for each callsite, a [`Callsite`], a mask of the kinds of calls
//! that were made, and a [`Sampled`] for each of these kinds. Only a reader of the same version can read the bytes.

use crate::estimate::{Sample, Sampled};

const MAGIC: u64 = u64::from_le_bytes(*b"ATRbill1");

/// The kinds of calls of a `tracing` subscriber, which a meter counts separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// A call of `enabled` or `event_enabled`.
    Check,
    /// A call of `new_span`.
    New,
    /// A call of `enter`.
    Enter,
    /// A call of `exit`.
    Exit,
    /// A call of `record` or `record_follows_from`.
    Record,
    /// A call of `event`.
    Event,
    /// A call of `clone_span`.
    Clone,
    /// A call of `try_close`.
    Close,
}

impl Call {
    /// All kinds of calls, in the order of their numbers.
    pub const ALL: [Self; 8] = {
        use Call::{Check, Clone, Close, Enter, Event, Exit, New, Record};
        [Check, New, Enter, Exit, Record, Event, Clone, Close]
    };
}

/// Data about a metered process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Process<'a> {
    /// A description of the metered subscriber, for users.
    pub subject: &'a str,
    /// The duration of a tick in nanoseconds.
    pub ns_per_tick: f64,
    /// The processor time of the process since the meter was made, in nanoseconds, if the system reports it.
    pub processor_ns: Option<u64>,
    /// The processor time of the threads that made no call, in nanoseconds, if it is known.
    pub others_ns: Option<u64>,
    /// The elapsed time since the meter was made, in nanoseconds.
    pub elapsed_ns: u64,
    /// The time that metering adds to a call that is not timed, in nanoseconds.
    pub untimed_ns: f64,
    /// The time that metering adds to a timed call, beyond `untimed_ns`, in nanoseconds.
    pub timing_ns: f64,
}

/// The kind of a callsite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// Not a callsite: the entry for all calls whose callsite is unknown.
    #[default]
    Unknown,
    /// The callsite of a span.
    Span,
    /// The callsite of an event.
    Event,
}

/// A callsite, as the program describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Callsite<'a> {
    /// The kind of the callsite.
    pub kind: Kind,
    /// The level of the callsite, from 1 (`error`) to 5 (`trace`), or 0 if the callsite is unknown.
    pub level: u8,
    /// The number of fields, without the message of an event.
    pub fields: u32,
    /// The name of the callsite.
    pub name: &'a str,
    /// The target of the callsite.
    pub target: &'a str,
    /// The source file of the callsite, or an empty text if it is unknown.
    pub file: &'a str,
    /// The line of the callsite in the source file.
    pub line: u32,
}

/// Encodes the measurements of a meter.
#[derive(Debug)]
pub struct Writer(Vec<u8>);

impl Writer {
    /// Creates a writer, and writes the data about the process.
    pub fn new(process: &Process<'_>) -> Self {
        let mut new = Self(Vec::new());
        new.number(MAGIC);
        new.text(process.subject);
        let [ns_per_tick, untimed, timing] =
            [process.ns_per_tick, process.untimed_ns, process.timing_ns].map(f64::to_bits);
        let [processor, others] = [process.processor_ns, process.others_ns].map(|ns| ns.unwrap_or(u64::MAX));
        [ns_per_tick, processor, others, process.elapsed_ns, untimed, timing]
            .iter()
            .for_each(|it| new.number(*it));
        new
    }

    /// Adds a callsite. `sampled` returns the measurements of each kind of call.
    pub fn callsite(&mut self, callsite: &Callsite<'_>, sampled: impl Fn(Call) -> Sampled) {
        let numbers = [callsite.kind as u32, u32::from(callsite.level), callsite.fields, callsite.line];
        numbers.iter().for_each(|it| self.number(u64::from(*it)));
        [callsite.name, callsite.target, callsite.file].iter().for_each(|it| self.text(it));
        let place = self.0.len();
        self.number(0);
        for call in Call::ALL {
            let sampled = sampled(call);
            if sampled.calls > 0 {
                self.0[place] |= 1 << call as u8;
                numbers_of(&sampled).iter().for_each(|it| self.number(*it));
            }
        }
    }

    /// Returns the bytes.
    pub fn finish(self) -> Vec<u8> {
        self.0
    }

    fn number(&mut self, number: u64) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.0.extend_from_slice(text.as_bytes());
    }
}

/// The callsites of a process, each with the measurements of its calls, by the kind of call.
type Callsites<'a> = Vec<(Callsite<'a>, [Sampled; Call::ALL.len()])>;

/// Reads the bytes that a [`Writer`] has written. Returns `None` if the bytes were not written by such a
/// writer.
pub(crate) fn read(bytes: &[u8]) -> Option<(Process<'_>, Callsites<'_>)> {
    let mut reader = Reader(bytes);
    if reader.number()? != MAGIC {
        return None;
    }
    let subject = reader.text()?;
    let ns_per_tick = reader.time()?;
    let processor_ns = Some(reader.number()?).filter(|ns| *ns != u64::MAX);
    let others_ns = Some(reader.number()?).filter(|ns| *ns != u64::MAX);
    let elapsed_ns = reader.number()?;
    let (untimed_ns, timing_ns) = (reader.time()?, reader.time()?);
    let process =
        Process { subject, ns_per_tick, processor_ns, others_ns, elapsed_ns, untimed_ns, timing_ns };
    let mut callsites = Vec::new();
    while !reader.0.is_empty() {
        callsites.push((reader.callsite()?, reader.calls()?));
    }
    Some((process, callsites))
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn number(&mut self) -> Option<u64> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*number))
    }

    fn small<T: TryFrom<u64>>(&mut self) -> Option<T> {
        self.number()?.try_into().ok()
    }

    fn time(&mut self) -> Option<f64> {
        Some(f64::from_bits(self.number()?)).filter(|time| time.is_finite() && *time >= 0.0)
    }

    fn text(&mut self) -> Option<&'a str> {
        let length = self.small()?;
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        std::str::from_utf8(text).ok()
    }

    fn callsite(&mut self) -> Option<Callsite<'a>> {
        Some(Callsite {
            kind: *[Kind::Unknown, Kind::Span, Kind::Event].get(self.small::<usize>()?)?,
            level: self.small().filter(|level| *level <= 5)?,
            fields: self.small()?,
            line: self.small()?,
            name: self.text()?,
            target: self.text()?,
            file: self.text()?,
        })
    }

    fn calls(&mut self) -> Option<[Sampled; Call::ALL.len()]> {
        let mask = self.number()?;
        let mut all = [Sampled::default(); Call::ALL.len()];
        for call in Call::ALL.into_iter().filter(|call| mask & 1 << *call as u8 != 0) {
            all[call as usize] = self.sampled()?;
        }
        Some(all)
    }

    fn sample(&mut self) -> Option<Sample> {
        Some(Sample { number: self.number()?, sum: self.time()?, squares: self.time()? })
    }

    fn sampled(&mut self) -> Option<Sampled> {
        Some(Sampled {
            calls: self.number()?,
            timed: self.number()?,
            firsts: self.number()?,
            of_firsts: self.time()?,
            short: self.sample()?,
            longs: self.number()?,
            long: self.sample()?,
            long_at_least: self.time()?,
        })
    }
}

/// Returns the numbers of a [`Sampled`] in the order in which `Reader::sampled` reads them.
fn numbers_of(it: &Sampled) -> Vec<u64> {
    let of = |it: Sample| [it.number, it.sum.to_bits(), it.squares.to_bits()];
    let first = [it.calls, it.timed, it.firsts, it.of_firsts.to_bits()];
    [&first[..], &of(it.short), &[it.longs], &of(it.long), &[it.long_at_least.to_bits()]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_all_else_is_refused() {
        let process = Process {
            subject: "a subscriber",
            ns_per_tick: 0.5,
            processor_ns: None,
            others_ns: Some(3),
            elapsed_ns: 9,
            untimed_ns: 1.5,
            timing_ns: 7.0,
        };
        let callsite = Callsite {
            kind: Kind::Event,
            level: 5,
            fields: 3,
            name: "event ä",
            target: "target",
            file: "src/lib.rs",
            line: 8,
        };
        let of = |number| Sample { number, sum: 2.0 * number as f64, squares: 5.5 };
        let sampled = Sampled {
            calls: 100,
            timed: 9,
            firsts: 2,
            of_firsts: 30.0,
            short: of(4),
            longs: 1,
            long: of(3),
            long_at_least: 40.0,
        };
        let measured = |call| if call == Call::Event { sampled } else { Sampled::default() };
        let mut writer = Writer::new(&process);
        writer.callsite(&callsite, measured);
        writer.callsite(&Callsite::default(), |_| Sampled::default());
        let bytes = writer.finish();
        let (read_process, callsites) = read(&bytes).unwrap();
        assert_eq!(read_process, process);
        assert_eq!(callsites[0], (callsite, Call::ALL.map(measured)));
        assert_eq!(callsites[1].0, Callsite::default());
        // A file that was cut can be read only if the cut is after the data of the process or after a callsite.
        let whole = |end: &usize| read(&bytes[..*end]).is_some();
        assert_eq!((0..bytes.len()).filter(whole).count(), 2);
        // The reader must not panic, whichever byte of the file is changed.
        for at in 0..bytes.len() {
            for value in [0, 7, 0x80, 0xff] {
                let mut changed = bytes.clone();
                changed[at] = value;
                if let Some(bill) = crate::Bill::read(&changed) {
                    let _ = (bill.to_string(), bill.to_json());
                }
            }
        }
    }
}
