//! What was measured: the rounds of every case, and what can be said about them.

use std::fmt;
use std::time::Duration;

use super::rounds::Stopped;
use crate::row::{Above, Row, Sink, Versus};
use crate::stats::Interval;
use crate::stats::sample::{self, Sample};

/// A case that is compared to another.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Compared {
    pub(crate) id: String,
    pub(crate) base: String,
    /// The highest ratio that is promised.
    pub(crate) at_most: Option<f64>,
    /// Whether the difference is wanted, too.
    pub(crate) above: bool,
}

/// The rounds of cases that ran beside each other.
#[derive(Clone, Debug)]
pub struct Measured {
    pub(crate) ids: Vec<String>,
    /// For every case, its slices; those of a round are at the same place.
    pub(crate) samples: Vec<Vec<Sample>>,
    pub(crate) comparisons: Vec<Compared>,
    pub(crate) stopped: Stopped,
    pub(crate) took: Duration,
    pub(crate) floor: Duration,
}

impl Measured {
    /// Returns the ids of the cases.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.ids.iter().map(|id| &id[..])
    }

    fn samples(&self, id: &str) -> Option<&[Sample]> {
        Some(&self.samples[self.ids.iter().position(|i| i == id)?])
    }

    /// How long the chain takes at the speed that times are given at: the same for all cases.
    fn reference(&self) -> f64 {
        sample::reference(self.samples.iter().flatten())
    }

    /// Returns the nanoseconds of one operation, for every round, as they were.
    pub fn rounds(&self, id: &str) -> Option<Vec<f64>> {
        Some(self.samples(id)?.iter().map(|sample| sample.ns).collect())
    }

    /// Returns the nanoseconds of one operation, at the reference speed.
    pub fn ns(&self, id: &str) -> Option<Interval> {
        sample::at_reference(self.samples(id)?, self.reference())
    }

    /// Returns how many times as long as `base` the case `id` takes.
    pub fn ratio(&self, id: &str, base: &str) -> Option<Interval> {
        sample::ratio(self.samples(id)?, self.samples(base)?)
    }

    /// Returns how many nanoseconds longer than `base` the case `id` takes, at the reference speed.
    pub fn difference(&self, id: &str, base: &str) -> Option<Interval> {
        sample::difference(self.samples(id)?, self.samples(base)?, self.reference())
    }

    /// Returns how many times as long as `unit` the case `id` takes beyond what `base` does.
    pub fn excess(&self, id: &str, base: &str, unit: &str) -> Option<Interval> {
        sample::excess(self.samples(id)?, self.samples(base)?, self.samples(unit)?)
    }

    /// Returns why there were no more rounds.
    pub fn stopped(&self) -> Stopped {
        self.stopped
    }

    /// Makes the row of every case, in their order, with the ratios that were asked for.
    ///
    /// A case without a median, because a round was not a finite number, has no row.
    pub fn rows(&self, sink: Sink) -> Vec<Row> {
        self.ids.iter().filter_map(|id| self.row(id, sink)).collect()
    }

    /// Makes the row of one case.
    pub fn row(&self, id: &str, sink: Sink) -> Option<Row> {
        let mut row = Row::new(id, self.ns(id)?, sink).with_rounds(&self.rounds(id)?);
        row.speeds = sample::range(self.samples(id)?, self.reference());
        for Compared { base, above, .. } in self.comparisons.iter().filter(|asked| asked.id == id) {
            if let Some(ratio) = self.ratio(id, base) {
                row.vs.insert(base.clone(), Versus::from(ratio));
            }
            if let Some(ns) = self.difference(id, base).filter(|_| *above) {
                row.above.insert(base.clone(), Above::from(ns));
            }
        }
        Some(row)
    }
}

impl fmt::Display for Measured {
    /// Says in one line how much was measured and why no more.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rounds = self.samples.iter().map(Vec::len).max().unwrap_or(0);
        write!(f, "{} cases, {rounds} rounds in {:.1} s", self.ids.len(), self.took.as_secs_f64())?;
        match self.stopped {
            Stopped::Tight => write!(f, ": everything is decided")?,
            Stopped::Rounds => write!(f, ": the most rounds allowed; mind the intervals")?,
            Stopped::Budget => write!(f, ": time was up; mind the intervals")?,
            Stopped::Once => return write!(f, ": each ran once, nothing was measured"),
        }
        if self.floor > Duration::ZERO {
            write!(f, " (a reading of the timer takes {} ns)", self.floor.as_nanos())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_the_ratios_that_were_asked_for() {
        let measured = Measured {
            ids: vec!["rust/a".into(), "cc/a".into()],
            samples: [1.0, 4.0].map(|ns| vec![Sample::of(ns); 20]).into(),
            comparisons: vec![Compared {
                id: "rust/a".into(),
                base: "cc/a".into(),
                at_most: None,
                above: true,
            }],
            stopped: Stopped::Tight,
            took: Duration::from_millis(1234),
            floor: Duration::from_nanos(20),
        };
        let rows = measured.rows(Sink::Null);
        assert_eq!(rows.len(), 2);
        assert_eq!((rows[0].median, rows[0].noisy, rows[0].sink), (1.0, false, Sink::Null));
        assert_eq!(rows[0].vs["cc/a"].ratio, 0.25);
        assert!(rows[0].vs_process.is_empty() && rows[1].vs.is_empty());
        assert_eq!((rows[0].above["cc/a"].ns, rows[0].speeds), (-3.0, Some([1.0, 1.0])));
        assert_eq!(measured.difference("rust/a", "cc/a").unwrap().median, -3.0);
        assert!(measured.ratio("rust/a", "cc/b").is_none());
        assert_eq!(
            measured.to_string(),
            "2 cases, 20 rounds in 1.2 s: everything is decided (a reading of the timer takes 20 ns)"
        );
    }
}
