//! What was measured on a device, beside this machine.

use super::super::input::Machine;
use super::super::model::{Part, Section, slug};
use crate::catalogue::{ATRACE, SUBSCRIBER, Who, published};
use crate::table::of_rows;
use crate::table::{Cell, Table};

/// The original's cases on a device, beside this machine's ratios.
pub(super) fn of_device(name: &str, device: &Machine, here: &Machine) -> Section {
    let mut table = Table {
        title: "The original's cases".to_owned(),
        columns: ["case", "C++", "Rust", "Rust of C++", "Rust of C++, this machine", "allocations"]
            .map(str::to_owned)
            .to_vec(),
        ..Table::default()
    };
    let ratio_in = |place: &Machine, case: &published::OfEvent| {
        let [rust, cc] = [Who::Rust, Who::Cc].map(|who| case.id(who).to_string());
        Cell::ratio(place.row(ATRACE, &rust).and_then(|r| r.versus(&cc))).or_not_measured()
    };
    for case in &published::EVENTS {
        let row = |who| device.row(ATRACE, &case.id(who).to_string());
        table.rows.push(vec![
            Cell::Name(case.id(Who::Rust).name()),
            Cell::value(row(Who::Cc)),
            Cell::value(row(Who::Rust)),
            ratio_in(device, case),
            ratio_in(here, case),
            Cell::count(row(Who::Rust).and_then(|r| r.allocs)).or_not_measured(),
        ]);
    }
    let mut twelve = Table {
        title: "The crate tracing".to_owned(),
        columns: ["case", "device", "this machine", "allocations"].map(str::to_owned).to_vec(),
        ..Table::default()
    };
    for case in &published::TRACING {
        let id = case.id().to_string();
        let row = device.row(SUBSCRIBER, &id);
        twelve.rows.push(vec![
            Cell::Name(case.id().name()),
            Cell::value(row),
            Cell::value(here.row(SUBSCRIBER, &id)),
            Cell::count(row.and_then(|r| r.allocs)).or_not_measured(),
        ]);
    }
    let about = Table {
        title: "The device".to_owned(),
        columns: vec!["".to_owned(), "".to_owned()],
        rows: device
            .device
            .iter()
            .map(|(key, value)| vec![Cell::Text(key.clone()), Cell::Text(value.clone())])
            .collect(),
        ..Table::default()
    };
    let mut parts = vec![Part::Table(table), Part::Table(twelve), Part::Table(about)];
    for (bench, found) in &device.benches {
        parts.push(Part::Folded(
            format!("{bench}: every row"),
            vec![Part::Table(of_rows(bench, &found.rows))],
        ));
    }
    Section {
        id: format!("device-{}", slug(name)),
        title: format!("Device: {name}"),
        text: Vec::new(),
        parts,
    }
}
