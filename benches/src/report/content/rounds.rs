//! How sure the main cases are: how their rounds were distributed, and what Criterion says.

use super::super::input::Machine;
use super::super::model::{Group, Line, Part, Plot, PlotKind, Point, Section};
use crate::catalogue::{ATRACE, Id, SUBSCRIBER, State, Who, published};
use crate::row::Row;
use crate::table::{Cell, Table, Value};

/// How the rounds of the main cases were distributed.
pub(super) fn rounds(here: &Machine) -> Option<Section> {
    let mut groups = Vec::new();
    for state in State::ALL {
        let cases = published::EVENTS.iter().filter(|case| case.state == state);
        let ids = cases.flat_map(|case| [Who::Cc, Who::Rust].map(|who| case.id(who).to_string()));
        let lines = ids.filter_map(|id| distribution(here.row(ATRACE, &id)?, here)).collect();
        groups.push(Group { title: format!("Tracing {}", state.name()), lines });
    }
    let ids = published::TRACING.iter().map(|case| case.id().to_string());
    let lines = ids.filter_map(|id| distribution(here.row(SUBSCRIBER, &id)?, here)).collect();
    groups.push(Group { title: "The crate tracing".to_owned(), lines });
    groups.retain(|group| !group.lines.is_empty());
    let plot = (!groups.is_empty()).then(|| Part::Plot(Plot {
        id: "rounds".to_owned(),
        title: "How the rounds were distributed".to_owned(),
        caption: "The rounds of the benches, or where they were not kept Criterion's samples. Each round of the first two groups is a slice of 0.3 ms, each of the third a process.".to_owned(),
        kind: PlotKind::Rounds,
        groups,
    }));
    let criterion = criterion_table(here).map(|table| {
        Part::Folded("What Criterion says of the same cases".to_owned(), vec![Part::Table(table)])
    });
    let parts: Vec<Part> = plot.into_iter().chain(criterion).collect();
    (!parts.is_empty()).then(|| Section::new("rounds", "How sure this is", parts))
}

fn distribution(row: &Row, here: &Machine) -> Option<Line> {
    let criterion = || here.criterion.get(&Id::of(&row.id).in_criterion())?.samples.as_ref();
    let (rounds, what) = match &row.rounds {
        Some(rounds) if rounds.n >= 6 => (rounds, "rounds"),
        _ => (criterion().filter(|samples| samples.n >= 6)?, "samples"),
    };
    let median = rounds.at[5];
    if median <= 0.0 {
        return None;
    }
    let mut point = Point::of(row);
    point.median = median;
    point.rounds = rounds.at.iter().map(|x| x / median).collect();
    let off = |part: f64| format!("{:.1}", part.abs() * 100.0);
    let text =
        format!("−{} … +{} % of {} {what}", off(1.0 - point.rounds[2]), off(point.rounds[8] - 1.0), rounds.n);
    let id = Id::of(&row.id);
    let label = if id.who == Who::Cc { format!("C++ {}", id.short()) } else { id.short() };
    Some(Line { label, text, points: vec![point] })
}

fn criterion_table(here: &Machine) -> Option<Table> {
    let mut table = Table::new("Criterion", ["case", "Criterion's median", "the benches' median", "ratio"]).with_note("Criterion runs a case for a second by itself, minutes after the benches compared it with others round by round: what differs between the two is the machine's drift.");
    for bench in [ATRACE, SUBSCRIBER] {
        for row in here.benches.get(bench).iter().flat_map(|bench| &bench.rows) {
            let Some(estimate) = here.criterion.get(&Id::of(&row.id).in_criterion()) else { continue };
            let value = Value {
                median: estimate.median,
                low: estimate.low,
                high: estimate.high,
                unit: "ns".to_owned(),
                noisy: false,
                own: Id::of(&row.id).who == Who::Rust,
            };
            let ratio = if row.median > 0.0 {
                Cell::Ratio(estimate.median / row.median, None)
            } else {
                Cell::none("the median is 0")
            };
            table.push([Cell::Name(row.id.clone()), Cell::Value(value), Cell::value(Some(row)), ratio]);
        }
    }
    (!table.rows.is_empty()).then_some(table)
}
