//! The checks of this bench's own code, which run if the bench is called with `--test`.

use std::time::Duration;

use atrace_benches::measure::workload::{Bare, Done, Wrong};

use super::clients::Share;
use super::jobs::Work;
use super::operations::Team;
use super::{Job, Kind, Setup, count};

#[path = "../../tests/common/pages.rs"]
mod pages;

use self::pages::{touch, without_huge_pages};

/// Work that touches new pages.
#[derive(Clone, Copy, Debug)]
struct Pages;

impl Pages {
    const OF_ONE: usize = 1000;
}

impl Work for Pages {
    type Output = ();

    fn block(self, _: u64) -> Result<(), Wrong> {
        touch(Self::OF_ONE);
        Ok(())
    }

    fn span(_: u64) -> tracing::Span {
        tracing::Span::none()
    }

    fn event() {}

    fn check((): &(), _: Option<&()>) -> Result<(), Wrong> {
        Ok(())
    }
}

/// Checks the counters of page faults, polls and started threads, with operations for which these numbers are known.
pub(crate) fn prove() -> Result<(), Wrong> {
    let share = |ops, seconds| Share { ops, took: Duration::from_secs(seconds) };
    let shares = [share(4, 2), share(6, 3)];
    assert_eq!(Share::time(&shares), Duration::from_secs(5));
    // Both clients are busy for two seconds, in which each of them has finished four operations.
    assert_eq!(Share::all_busy(&shares), (8.0, Duration::from_secs(2)));
    // If one of the clients had no operation, there was no time in which both were busy.
    assert_eq!(Share::all_busy(&[share(4, 2), share(0, 0)]), (0.0, Duration::ZERO));
    let kinds = || [Kind::Kernel, Kind::Task].into_iter().try_for_each(prove_of);
    without_huge_pages(kinds).map_err(|e| format!("huge pages: {e}"))?
}

fn prove_of(kind: Kind) -> Result<(), Wrong> {
    let mut team = Team::of::<Bare, _>(kind, Pages)?;
    for n in [1, 8] {
        let done = team.run(Setup { kind, job: Job::Nonio }, n)?;
        let [Some(faults), Some(polls), Some(started)] =
            [count::FAULTS, count::POLLS, count::STARTED].map(|name| counted(&done, name))
        else {
            return Err(format!("something is not counted: {done:?}"));
        };
        let pages = (Pages::OF_ONE as u64 * n) as f64;
        // The stack of a thread causes some additional faults.
        if !(pages..pages * 1.2).contains(&faults) {
            return Err(format!("{kind:?}: {faults} page faults of {pages} pages"));
        }
        let (is_polled, is_started) = match kind {
            Kind::Kernel => (0.0, n as f64),
            Kind::Task => (n as f64, started),
        };
        if (polls, started) != (is_polled, is_started) {
            return Err(format!("{kind:?}: {n} operations: {done:?}"));
        }
    }
    Ok(())
}

/// Returns the count `name` in the results of a run.
fn counted(done: &Done, name: &str) -> Option<f64> {
    done.counts.iter().find_map(|(of, total)| (of == name).then_some(*total as f64))
}
