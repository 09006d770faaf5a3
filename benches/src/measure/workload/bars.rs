//! What is promised of all workloads: that twins, such as `filtered` and `nosub`, take equally long, that `on` and `perfetto`
//! allocate what `nosub` does, and that no slice loses an event.

use super::results::Results;
use crate::catalogue::Id;
use crate::promise::{Judged, Verdict};
use crate::row::Row;
use crate::stats::Interval;

/// Makes the promise that a mode takes as long as its [twin](super::Mode::same_as), in all cases together: in each, a
/// difference may be 2 ns or 1 %, whichever is more, and the median of all differences, as parts of that, is within it. It is
/// missed, too, where a case by itself is known to differ by more than twice that, as some of many are outside by chance. One case alone is seldom known to 1 %: the twins run
/// the same instructions, and what is left between them is where the loader has put things. `None` where nothing was compared.
fn as_long_as_its_twin(results: &Results, mode: usize, twin: usize) -> Option<Judged> {
    let modes = results.modes();
    let together = results.apart(&results.twins(mode), mode)?;
    let alone = results.twins(mode).into_iter();
    let alone: Vec<(&str, Interval)> =
        alone.filter_map(|case| Some((results.case_id(case), results.apart(&[case], mode)?))).collect();
    let all = alone.len();
    let outside = |of: &Interval| Verdict::within([-2.0, 2.0], *of) == Verdict::Missed;
    let outside: Vec<&str> = alone.iter().filter(|(_, of)| outside(of)).map(|(case, _)| *case).collect();
    let judge = |apart: Interval| Verdict::within([-1.0, 1.0], apart);
    let verdict = if outside.is_empty() { judge(together) } else { Verdict::Missed };
    let Interval { median, low, high, .. } = together;
    let name = format!("{} takes as long as {}", modes[mode].name, modes[twin].name);
    let cases = match (outside.is_empty(), &alone[..]) {
        (false, _) => outside.join(", "),
        (true, [(case, _)]) => (*case).to_owned(),
        (true, _) => format!("all {all} cases"),
    };
    let limit = "0 ± 1 of 2 ns or 1 %, whichever is more";
    let judged = Judged::new(name, cases, format!("{median:+.2}"), limit, verdict);
    let known = alone.iter().filter(|(_, of)| judge(*of) == Verdict::Kept).count();
    Some(judged.more(format!("{low:+.2} – {high:+.2}; {known} of {all} by themselves")))
}

/// Makes the promise that a row allocates what `base` does, where that can be told exactly; where a runtime's own threads
/// allocate when they please, it is missed by one allocation every other operation.
fn no_allocations_above(row: &Row, base: &str, (allocs, bytes): (f64, f64), exact: bool) -> Judged {
    let (promise, of) = named(row, "allocates what", base);
    let (asked, kept) = match exact {
        true => ("0", allocs == 0.0 && bytes == 0.0),
        false => ("0 ± 0.5: what the runtime allocates differs", allocs.abs() < 0.5),
    };
    let judged = Judged::new(promise, of, format!("{allocs:+.3} allocs"), asked, Verdict::kept_if(kept));
    let judged = judged.more(format!("{bytes:+.1} B"));
    if exact { judged.exact() } else { judged }
}

/// What a promise about a row and another mode is called, and the case that it is about.
fn named(row: &Row, says: &str, base: &str) -> (String, String) {
    let (case, mode) = Id::case_and_mode(&row.id).unwrap_or((&row.id, "it"));
    let does = if says.starts_with("allocates") { " does" } else { "" };
    (format!("{mode} {says} {base}{does}"), case.to_owned())
}

/// What is promised of all workloads.
pub(super) fn common(results: &Results) -> Vec<Judged> {
    let mut bars = Vec::new();
    for mode in 0..results.modes().len() {
        let twin = results.twin(mode);
        bars.extend((twin != mode).then(|| as_long_as_its_twin(results, mode, twin)).flatten());
    }
    for case in results.traced_cases() {
        // Whether there are times to compare or not: what is counted does not hang on the processor's speed.
        for mode in ["on", "perfetto"] {
            let more = results.allocated_above(case, mode, "nosub");
            let row = results.row(case, mode).zip(more);
            let exact = results.allocates_exactly(case) && mode == "on";
            bars.extend(row.map(|(row, more)| no_allocations_above(row, "nosub", more, exact)));
        }
    }
    let [lossy, whole] = results.whole();
    if lossy + whole > 0 {
        let (promise, measured) =
            ("slices by Perfetto's way that lose no event", format!("{whole} of {}", lossy + whole));
        let verdict = if lossy == 0 { Verdict::Kept } else { Verdict::Open };
        bars.push(
            Judged::new(promise, "all cases", measured, "all", verdict).more("the others are left out"),
        );
    }
    bars
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fastrand::Rng;

    use super::super::case::{Case, Done};
    use super::super::exchange::Slice;
    use super::super::mode::Mode;
    use super::super::results::Names;
    use super::*;
    use crate::row::Sink;
    use crate::stats::sample::Sample;

    /// What is promised of twins where `filtered` takes as many nanoseconds more than the 1000 of `nosub` as told for each case,
    /// in slices each of which is off by so many at most.
    fn twins(more: &[i64], noise: i64) -> Judged {
        let cases = (0..more.len()).map(|n| Case::new(format!("rust/{n}"), |_| Ok(Done::new())));
        let mut results = Results::new(Mode::all(), cases.collect(), Sink::Null, Names::default());
        let mut random = Rng::with_seed(5);
        for _ in 0..10 {
            results.begin_generation();
            for turn in 0..10 {
                for (case, more) in more.iter().enumerate() {
                    for (mode, more) in [(1, 0), (2, more + random.i64(-noise..=noise))] {
                        let took = Duration::from_nanos(1000_u64.saturating_add_signed(more));
                        let slice = Slice { took, elapsed: took, chain: [1.0; 2], done: Done::new() };
                        results.add(case, mode, turn, 1, &slice);
                    }
                }
            }
        }
        results.finish();
        common(&results).into_iter().find(|judged| judged.promise.contains("as long as")).unwrap()
    }

    #[test]
    fn twins_are_judged_by_all_cases_together() {
        let one = twins(&[0], 60);
        assert_eq!((&one.of[..], one.verdict), ("rust/0", Verdict::Open), "{one:?}");
        let all = twins(&[0; 13], 60);
        assert_eq!((&all.of[..], all.verdict), ("all 13 cases", Verdict::Kept), "{all:?}");
        assert_eq!(all.promise, "filtered takes as long as nosub");
        // All of them take 3 % more than 1000 ns, where 1 % is allowed.
        assert_eq!(twins(&[30; 13], 100).verdict, Verdict::Missed);
        let at_limit = twins(&[10; 13], 60);
        assert_eq!(at_limit.verdict, Verdict::Open, "{at_limit:?}");
    }

    /// Another generation of ten slices, of which so many lost an event, and took less.
    fn slices(results: &mut Results, lossy: usize) {
        results.begin_generation();
        for turn in 0..10 {
            let lost = u64::from(turn < lossy);
            let took = Duration::from_nanos(1000 - 900 * lost);
            let done = Done { lost: Some(lost), ..Done::new() };
            results.add(0, 5, turn, 1, &Slice { took, elapsed: took, chain: [1.0; 2], done });
        }
    }

    #[test]
    fn a_slice_that_lost_events_is_left_out() {
        let kept = ("10 of 10", Verdict::Kept);
        let open = ("9 of 10", Verdict::Open);
        // A whole generation, the first: what the others say is known.
        let more = ("18 of 30", Verdict::Open);
        for (lossy, (whole, verdict)) in [(&[0][..], kept), (&[1], open), (&[10, 2, 0], more)] {
            let cases = vec![Case::new("rust/a", |_| Ok(Done::new()))];
            let mut results = Results::new(Mode::all(), cases, Sink::Null, Names::default());
            lossy.iter().for_each(|lossy| slices(&mut results, *lossy));
            results.finish();
            let row = results.row("rust/a", "perfetto").unwrap();
            let left = 10 * lossy.len() - lossy.iter().sum::<usize>();
            assert_eq!((row.low, row.rounds.as_ref().unwrap().n), (1000.0, left));
            let judged = common(&results).into_iter().find(|judged| judged.promise.contains("lose no event"));
            let judged = judged.unwrap();
            assert_eq!((&judged.measured[..], judged.verdict), (whole, verdict));
        }
    }

    #[test]
    fn raw_writes_are_those_of_all_messages_of_an_operation() {
        let cases = vec![Case::new("rust/a", |_| Ok(Done::new()))];
        let mut results = Results::new(Mode::all(), cases, Sink::Null, Names::default());
        results.begin_generation();
        let took = Duration::from_micros(10);
        let slice = Slice { took, elapsed: took, chain: [1.0; 2], done: Done::new().messages(60) };
        results.add_raw((0, 4), 0, Sample::of(100.0), false, 20, &slice);
        results.finish();
        assert_eq!(
            results.rows().iter().find(|row| row.id == "limit/raw_writes_of/rust/a/on").unwrap().median,
            300.0
        );
    }

    #[test]
    fn a_case_that_is_known_to_be_outside_is_not_made_up_for() {
        let mut more = [0; 13];
        more[4] = 90;
        let judged = twins(&more, 3);
        assert_eq!((&judged.of[..], judged.verdict), ("rust/4", Verdict::Missed), "{judged:?}");
        assert!(judged.more.ends_with("; 12 of 13 by themselves"), "{judged:?}");
    }

    #[test]
    fn what_allocates_when_it_pleases_may_differ_a_little() {
        let ns = Interval::around(1.0, 0.0);
        let kept = |allocs: f64| {
            let row = Row::new("a/on", ns, Sink::Null);
            no_allocations_above(&row, "nosub", (allocs, 0.0), false).verdict == Verdict::Kept
        };
        assert!(kept(0.0) && kept(0.4) && kept(-0.4));
        assert!(!kept(0.5) && !kept(1.0) && !kept(-0.6));
    }
}
