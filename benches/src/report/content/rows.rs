//! Rows as they are: of instructions, of the benches of events and subscribers, and of devices; and what Criterion says.

use super::super::input::Machine;
use super::super::model::{Part, Section, slug};
use crate::catalogue::{ATRACE, INSTRUCTIONS, Id, SUBSCRIBER};
use crate::table::{Cell, Table, Value, of_rows};

pub(super) fn instructions(here: &Machine) -> Option<Section> {
    let rows = &here.benches.get(INSTRUCTIONS)?.rows;
    let table = of_rows("Instructions of one operation", rows).with_note("Instructions of the program, counted by callgrind: not those of the kernel. The same from run to run, so that a change of one instruction is seen on the busiest machine.");
    let parts = vec![Part::Folded(format!("{} cases", rows.len()), table)];
    (!rows.is_empty()).then(|| Section::new(INSTRUCTIONS, "Instructions", parts))
}

pub(super) fn everything(here: &Machine) -> Option<Section> {
    let benches = here.benches.iter().filter(|(name, _)| [ATRACE, SUBSCRIBER].contains(&&name[..]));
    let part = |(name, bench): (&String, &super::Bench)| {
        Part::Folded(format!("{name}: {} rows", bench.rows.len()), of_rows(name, &bench.rows))
    };
    let parts: Vec<Part> = benches.map(part).collect();
    (!parts.is_empty()).then(|| Section::new("rows", "Every row", parts))
}

/// What was measured on a device.
pub(super) fn of_device(name: &str, device: &Machine) -> Section {
    let mut about = Table::new("The device", ["", ""]);
    device.device.iter().for_each(|(key, value)| about.push([key, value].map(Cell::text)));
    let rows = |(bench, found): (&String, &super::Bench)| {
        Part::Folded(format!("{bench}: every row"), of_rows(bench, &found.rows))
    };
    let parts = [Part::Table(about)].into_iter().chain(device.benches.iter().map(rows)).collect();
    Section::new(format!("device-{}", slug(name)), format!("Device: {name}"), parts)
}

/// What Criterion says of the cases that the benches have compared.
pub(super) fn criterion(here: &Machine) -> Option<Section> {
    let mut table = Table::new("Criterion", ["case", "Criterion's median", "the benches' median", "ratio"]).with_note("Criterion runs a case for a second by itself, minutes after the benches compared it with others round by round: what differs between the two is the machine's drift.");
    for row in [ATRACE, SUBSCRIBER].iter().filter_map(|bench| here.benches.get(*bench)).flat_map(|b| &b.rows)
    {
        let Some(&[low, median, high]) = here.criterion.get(&Id::of(&row.id).in_criterion()) else {
            continue;
        };
        let ratio = match row.median {
            ns if ns > 0.0 => Cell::Ratio(median / ns, None),
            _ => Cell::none("the median is 0"),
        };
        table.push([
            Cell::name(&row.id),
            Cell::Value(Value::times(low, median, high)),
            Cell::value(Some(row)),
            ratio,
        ]);
    }
    let parts = vec![Part::Folded("What Criterion says of the same cases".to_owned(), table)];
    (!here.criterion.is_empty()).then(|| Section::new("criterion", "How sure this is", parts))
}
