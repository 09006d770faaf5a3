//! The promises ("bars") about all workloads. It is promised that a mode (configuration of instrumentation and tracing)
//! and its twin, such as `filtered` and `nosub`, take the same time; that the modes `on` and `perfetto` allocate as
//! much as the mode `nosub`; and that no measurement loses an event.
//!
//! When a bench runs as a test with all its cases, this module also checks that we have a number for each line of the
//! original benchmark's tables, or a reason why there is no number.

use crate::catalogue::Id;
use crate::catalogue::published::{Field, Line, Measured, originals};
use crate::measure::workload::Workload;
use crate::measure::workload::results::Results;
use crate::promise::{Judged, Verdict};
use crate::row::Row;
use crate::stats::Interval;

/// Judges the promise that a mode takes as long as its [twin](super::Mode::twin), over all cases. In each case, the
/// allowed difference is 2 ns (for each unit of `Info::per`) or 1 % of the time, whichever is more. Each measured
/// difference is divided by the allowed difference. The promise is kept if the median of these quotients over all
/// cases, with its interval, is within ±1. The promise is also missed if a single case certainly differs by more than
/// twice the allowed difference. The factor of two allows for chance, because there are many cases. One case alone is
/// seldom measured with a precision of 1 %: twins execute the same instructions, but the loader places their code and
/// data differently. Returns `None` if no measurements of the two modes could be compared.
fn as_long_as_its_twin(results: &Results, mode: usize, twin: usize) -> Option<Judged> {
    let modes = &results.modes;
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

/// Judges the promise that the operation of a row allocates as much as in the mode `base`. `allocs` and `bytes` are the
/// differences for one operation. If the counts are not `exact`, because other threads allocate at any time, the
/// promise allows a difference of less than half an allocation per operation.
fn no_allocations_above(row: &Row, base: &str, (allocs, bytes): (f64, f64), exact: bool) -> Judged {
    let (of, mode) = Id::case_and_mode(&row.id).unwrap_or((&row.id, "it"));
    let promise = format!("{mode} allocates what {base} does");
    let (asked, kept) = match exact {
        true => ("0", allocs == 0.0 && bytes == 0.0),
        false => ("0 ± 0.5: the runtime's allocations vary", allocs.abs() < 0.5),
    };
    let judged = Judged::new(promise, of, format!("{allocs:+.3} allocs"), asked, Verdict::kept_if(kept));
    let judged = judged.more(format!("{bytes:+.1} B"));
    if exact { judged.exact() } else { judged }
}

/// Judges the promise that the times of the parts of a part add up to the time of that part. Returns `None` if no part
/// of an operation has parts of its own.
fn parts_add_up(results: &Results) -> Option<Judged> {
    let all = results.parts_of_parts();
    let off = |(_, ratio): &&(String, f64)| (ratio - 1.0).abs();
    let (id, ratio) = all.iter().max_by(|a, b| off(a).total_cmp(&off(b)))?;
    let of = if all.len() == 1 { id.clone() } else { format!("all {}, {id} furthest off", all.len()) };
    let verdict = Verdict::kept_if((ratio - 1.0).abs() <= 0.02);
    let promise = "the parts of a part, measured separately, take as long as it";
    let judged = Judged::new(promise, of, format!("{ratio:.3}"), "1 ± 0.02", verdict);
    Some(judged.more("means over all slices, without an interval"))
}

/// Judges, for one workload, the promises about all workloads.
pub(super) fn common(results: &Results) -> Vec<Judged> {
    let mut bars = Vec::new();
    for mode in 0..results.modes.len() {
        let twin = results.twin(mode);
        bars.extend((twin != mode).then(|| as_long_as_its_twin(results, mode, twin)).flatten());
    }
    for case in results.traced_cases() {
        // Allocations are judged even if no times can be compared, because counts of allocations do not depend on the
        // processor's speed.
        for mode in ["on", "perfetto"] {
            let more = results.allocated_above(case, mode, "nosub");
            let row = results.row(case, mode).zip(more);
            let exact = results.allocates_exactly(case) && mode == "on";
            bars.extend(row.map(|(row, more)| no_allocations_above(row, "nosub", more, exact)));
        }
    }
    bars.extend(parts_add_up(results));
    let [lossy, whole] = results.whole;
    if lossy + whole > 0 {
        let promise = "slices in Perfetto's memory without a lost event";
        let measured = format!("{whole} of {}", lossy + whole);
        let verdict = if lossy == 0 { Verdict::Kept } else { Verdict::Open };
        let judged = Judged::new(promise, "all cases", measured, "all", verdict);
        bars.push(judged.more("the others are left out"));
    }
    bars
}

/// Returns a message about the first number that we lack for a line of the original benchmark's tables, or for a ratio
/// that shows one of its findings. Returns `None` if no number is missing.
pub(super) fn unanswered<W: Workload>(results: &Results) -> Option<String> {
    let originals = originals().into_iter().filter(|original| original.bench == W::NAME);
    // If the published number is not 0, our number must not be 0 either, unless the line gives a reason.
    let says = |number: f64, may_be_zero: bool| may_be_zero || number != 0.0;
    let measured = |row: &Row, field: Field, may_be_zero: bool| match field {
        Field::Time | Field::PerSecond => true,
        Field::Allocations => row.allocs.is_some_and(|allocs| says(allocs, may_be_zero)),
        Field::Rate | Field::Bytes => row.bytes.is_some_and(|bytes| says(bytes, may_be_zero)),
        Field::Count(name) => row.counts.get(name).is_some_and(|count| says(*count, may_be_zero)),
    };
    let row_of = |id: &str| results.rows().iter().find(|row| row.id == id);
    let mut all = originals.flat_map(|original| {
        let line = |line: Line| {
            let of = line.here.ok()?;
            let is_left_out = line.none.is_some() && row_of(of.id).is_none();
            (!is_left_out).then_some((of, line.zero.is_some() || line.there == Some(0.0)))
        };
        // If a row may be missing for a line, it may also be missing for a ratio.
        let lines = original.groups.iter().flatten();
        let may_miss: Vec<&str> = lines
            .filter(|line| line.none.is_some())
            .filter_map(|line| Some(line.here.as_ref().ok()?.id))
            .collect();
        let is_needed = move |of: &Measured| !may_miss.contains(&of.id) || row_of(of.id).is_some();
        let checks = original.findings.into_iter().flat_map(|finding| finding.checks);
        let checks = checks.flat_map(|check| [check.of, check.by]).filter(is_needed).map(|of| (of, false));
        original.groups.into_iter().flatten().filter_map(line).chain(checks)
    });
    let (missing, _) = all
        .find(|(of, may_be_zero)| !row_of(of.id).is_some_and(|row| measured(row, of.field, *may_be_zero)))?;
    Some(format!(
        "the original has a line of {} ({:?}), for which there is no number",
        missing.id, missing.field
    ))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fastrand::Rng;

    use super::super::case::Slice;
    use super::super::case::{Case, Done, Info};
    use super::super::mode::Mode;
    use super::super::results::Names;
    use super::*;
    use crate::row::Sink;
    use crate::stats::sample::Sample;

    /// Judges artificial results of `filtered` and `nosub`, which are twins (modes that must take the same time): in
    /// each case, `nosub` takes 1000 ns and `filtered` takes `more[case]` ns more. The time of each slice of `filtered`
    /// deviates by up to `noise` ns.
    fn twins(more: &[i64], noise: i64) -> Judged {
        let cases = (0..more.len()).map(|n| Case::new(Info::of(format!("rust/{n}")), |_| Ok(Done::new())));
        let mut results = Results::new(Mode::all(), cases.collect(), Sink::Null, Names::default());
        let mut random = Rng::with_seed(5);
        for _ in 0..10 {
            results.generations += 1;
            for turn in 0..10 {
                for (case, more) in more.iter().enumerate() {
                    for (mode, more) in [(1, 0), (2, more + random.i64(-noise..=noise))] {
                        let took = Duration::from_nanos(1000_u64.saturating_add_signed(more));
                        let slice = Slice { took, elapsed: took, chain: [1.0; 2], done: Done::new() };
                        results.add((case, mode), turn, 1, &slice);
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
        // All cases take 3 % more than the 1000 ns of `nosub`, and 1 % is allowed.
        assert_eq!(twins(&[30; 13], 100).verdict, Verdict::Missed);
        let at_limit = twins(&[10; 13], 60);
        assert_eq!(at_limit.verdict, Verdict::Open, "{at_limit:?}");
    }

    /// Adds a generation (the results of one set of processes) with ten slices. The first `lossy` of these slices lost
    /// an event and took less time.
    fn slices(results: &mut Results, lossy: usize) {
        results.generations += 1;
        for turn in 0..10 {
            let lost = u64::from(turn < lossy);
            let took = Duration::from_nanos(1000 - 900 * lost);
            let done = Done { lost: Some(lost), ..Done::new() };
            results.add((0, 5), turn, 1, &Slice { took, elapsed: took, chain: [1.0; 2], done });
        }
    }

    #[test]
    fn a_slice_that_lost_events_is_left_out() {
        let kept = ("10 of 10", Verdict::Kept);
        let open = ("9 of 10", Verdict::Open);
        // All slices of the first generation lost an event; the other generations still give a result.
        let more = ("18 of 30", Verdict::Open);
        for (lossy, (whole, verdict)) in [(&[0][..], kept), (&[1], open), (&[10, 2, 0], more)] {
            let cases = vec![Case::new(Info::of("rust/a"), |_| Ok(Done::new()))];
            let mut results = Results::new(Mode::all(), cases, Sink::Null, Names::default());
            lossy.iter().for_each(|lossy| slices(&mut results, *lossy));
            results.finish();
            let row = results.row("rust/a", "perfetto").unwrap();
            let left = 10 * lossy.len() - lossy.iter().sum::<usize>();
            assert_eq!((row.low, row.rounds.as_ref().unwrap().n), (1000.0, left));
            let judged =
                common(&results).into_iter().find(|judged| judged.promise.contains("without a lost event"));
            let judged = judged.unwrap();
            assert_eq!((&judged.measured[..], judged.verdict), (whole, verdict));
        }
    }

    #[test]
    fn the_parts_of_a_part_have_to_add_up_to_it() {
        let judged = |switch: &[u64]| {
            let cases = vec![Case::new(Info::of("rust/a"), |_| Ok(Done::new()))];
            let mut results = Results::new(vec![Mode::NONE], cases, Sink::Null, Names::default());
            results.generations += 1;
            for (turn, switch) in switch.iter().enumerate() {
                let part = |done: Done, name, micros| done.part(name, Duration::from_micros(micros), 1);
                let mut done = part(part(Done::new(), "creation", 50), "resume", 1000);
                done = part(part(done, "resume/compute", 800), "resume/switch", *switch);
                let took = Duration::from_micros(1100);
                results.add((0, 0), turn, 1, &Slice { took, elapsed: took, chain: [1.0; 2], done });
            }
            results.finish();
            common(&results).into_iter().find(|judged| judged.promise.contains("parts of a part"))
        };
        // The median of the slices counts, so a single slice may differ.
        for (switch, verdict, ratio) in
            [(&[190, 190, 150, 210][..], Verdict::Kept, "0.985"), (&[170, 170], Verdict::Missed, "0.970")]
        {
            let judged = judged(switch).unwrap();
            assert_eq!((&judged.of[..], judged.verdict), ("rust/a/resume/none", verdict));
            assert_eq!(judged.measured, ratio);
        }
        assert_eq!(judged(&[]), None);
    }

    #[test]
    fn raw_writes_are_those_of_all_messages_of_an_operation() {
        let cases = vec![Case::new(Info::of("rust/a"), |_| Ok(Done::new()))];
        let mut results = Results::new(Mode::all(), cases, Sink::Null, Names::default());
        results.generations += 1;
        let took = Duration::from_micros(10);
        let slice =
            Slice { took, elapsed: took, chain: [1.0; 2], done: Done { messages: 60, ..Done::new() } };
        results.add_raw((0, 4), 0, 20, &slice, (Sample::of(100.0), false));
        results.finish();
        assert_eq!(
            results.rows().iter().find(|row| row.id == "limit/raw_writes_of/rust/a/on").unwrap().median,
            300.0
        );
    }

    #[test]
    fn a_rate_is_that_of_all_operations() {
        let cases = vec![Case::new(Info::of("rust/a"), |_| Ok(Done::new()))];
        let mut results = Results::new(vec![Mode::NONE], cases, Sink::Null, Names::default());
        results.generations += 1;
        let took = Duration::from_millis(10);
        let done = |occurrences| Done::new().rate("ops_per_s", occurrences, took);
        results.add((0, 0), 0, 1, &Slice { took, elapsed: took, chain: [1.0; 2], done: done(1.0) });
        (0..3).for_each(|_| results.add_rates("rust/a", "none", &done(5.0)));
        results.finish();
        let row = results.row("rust/a", "none").unwrap();
        assert_eq!((row.counts["ops_per_s"], row.ranges["ops_per_s"]), (400.0, [100.0, 500.0]));
    }

    #[test]
    fn the_rates_of_one_process_are_one_generation() {
        let cases = vec![Case::new(Info::of("rust/a"), |_| Ok(Done::new()))];
        let mut results = Results::new(vec![Mode::NONE], cases, Sink::Null, Names::default());
        let took = Duration::from_millis(10);
        let done = |occurrences| Done::new().rate("ops_per_s", occurrences, took);
        // The process with ten rates counts as one generation, so there are ten samples, and the lowest and the highest
        // are outside of the interval. With 19 samples, the four lowest and the four highest would be outside.
        for occurrences in 1..=9 {
            results.generations += 1;
            let slice = Slice { took, elapsed: took, chain: [1.0; 2], done: done(f64::from(occurrences)) };
            results.add((0, 0), 0, 1, &slice);
        }
        (0..10).for_each(|_| results.add_rates("rust/a", "none", &done(5.0)));
        results.finish();
        let row = results.row("rust/a", "none").unwrap();
        assert_eq!((row.counts["ops_per_s"], row.ranges["ops_per_s"]), (500.0, [200.0, 800.0]));
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
