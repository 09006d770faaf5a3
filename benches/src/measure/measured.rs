//! What was measured: the rounds of every case, and what can be said about them.

use std::fmt;
use std::time::Duration;

use crate::row::{Row, Sink, Versus};
use crate::stats::{self, Interval};

/// Why there were no more rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// Everything that was asked for is known well enough.
    Tight,
    /// There were as many as allowed, and not everything is known well enough.
    Rounds,
    /// Time was up, and not everything is known well enough.
    Budget,
    /// A test: nothing was measured.
    Once,
}

/// The rounds of cases that ran beside each other.
#[derive(Clone, Debug)]
pub struct Measured {
    pub(crate) ids: Vec<String>,
    /// For every case, the nanoseconds of one operation in every round.
    pub(crate) rounds: Vec<Vec<f64>>,
    pub(crate) comparisons: Vec<(String, String)>,
    pub(crate) stopped: Stopped,
    pub(crate) took: Duration,
    pub(crate) floor: Duration,
}

impl Measured {
    /// Returns the ids of the cases.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.ids.iter().map(|id| &id[..])
    }

    /// Returns the nanoseconds of one operation, for every round.
    #[must_use]
    pub fn rounds(&self, id: &str) -> Option<&[f64]> {
        Some(&self.rounds[self.ids.iter().position(|i| i == id)?])
    }

    /// Returns the nanoseconds of one operation.
    #[must_use]
    pub fn ns(&self, id: &str) -> Option<Interval> {
        Interval::of(self.rounds(id)?)
    }

    /// Returns how many times as long as `base` the case `id` takes.
    #[must_use]
    pub fn ratio(&self, id: &str, base: &str) -> Option<Interval> {
        stats::ratio(self.rounds(id)?, self.rounds(base)?)
    }

    /// Returns how many nanoseconds longer than `base` the case `id` takes.
    #[must_use]
    pub fn difference(&self, id: &str, base: &str) -> Option<Interval> {
        stats::difference(self.rounds(id)?, self.rounds(base)?)
    }

    /// Returns why there were no more rounds.
    #[must_use]
    pub fn stopped(&self) -> Stopped {
        self.stopped
    }

    /// Makes the row of every case, in their order, with the ratios that were asked for.
    ///
    /// A case without a median, because a round was not a finite number, has no row.
    #[must_use]
    pub fn rows(&self, sink: Sink) -> Vec<Row> {
        self.ids.iter().filter_map(|id| self.row(id, sink)).collect()
    }

    /// Makes the row of one case.
    #[must_use]
    pub fn row(&self, id: &str, sink: Sink) -> Option<Row> {
        let mut row = Row::new(id, self.ns(id)?, sink).with_rounds(self.rounds(id)?);
        for (_, base) in self.comparisons.iter().filter(|(i, _)| i == id) {
            if let Some(ratio) = self.ratio(id, base) {
                row.vs.insert(base.clone(), Versus::from(ratio));
            }
        }
        Some(row)
    }
}

impl fmt::Display for Measured {
    /// Says in one line how much was measured and why no more.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rounds = self.rounds.first().map_or(0, Vec::len);
        write!(f, "{} cases, {rounds} rounds in {:.1} s", self.ids.len(), self.took.as_secs_f64())?;
        match self.stopped {
            Stopped::Tight => write!(f, ": every comparison is tight")?,
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
            rounds: vec![vec![1.0; 20], vec![4.0; 20]],
            comparisons: vec![("rust/a".into(), "cc/a".into())],
            stopped: Stopped::Tight,
            took: Duration::from_millis(1234),
            floor: Duration::from_nanos(20),
        };
        let rows = measured.rows(Sink::Null);
        assert_eq!(rows.len(), 2);
        assert_eq!((rows[0].median, rows[0].noisy, rows[0].sink), (1.0, false, Sink::Null));
        assert_eq!(rows[0].vs["cc/a"].ratio, 0.25);
        assert!(rows[0].vs_process.is_empty() && rows[1].vs.is_empty());
        assert_eq!(measured.difference("rust/a", "cc/a").unwrap().median, -3.0);
        assert!(measured.ratio("rust/a", "cc/b").is_none());
        assert_eq!(
            measured.to_string(),
            "2 cases, 20 rounds in 1.2 s: every comparison is tight (a reading of the timer takes 20 ns)"
        );
    }
}
