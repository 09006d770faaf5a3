//! What was measured on a device, beside this machine.

use super::super::input::Machine;
use super::super::model::{Part, Section, slug};
use crate::catalogue::{ATRACE, SUBSCRIBER, Who, published};
use crate::table::of_rows;
use crate::table::{Cell, Table};

/// The original's cases on a device, beside this machine's ratios.
pub(super) fn of_device(name: &str, device: &Machine, here: &Machine) -> Section {
    let mut table = Table::new(
        "The original's cases",
        ["case", "C++", "Rust", "Rust of C++", "Rust of C++, this machine", "allocations"],
    );
    let ratio_in = |place: &Machine, case: &published::OfEvent| {
        let [rust, cc] = [Who::Rust, Who::Cc].map(|who| case.id(who).to_string());
        Cell::ratio(place.row(ATRACE, &rust).and_then(|r| r.versus(&cc))).or_not_measured()
    };
    for case in &published::EVENTS {
        let row = |who| device.row(ATRACE, &case.id(who).to_string());
        table.push([
            Cell::Name(case.id(Who::Rust).name()),
            Cell::value(row(Who::Cc)),
            Cell::value(row(Who::Rust)),
            ratio_in(device, case),
            ratio_in(here, case),
            Cell::count(row(Who::Rust).and_then(|r| r.allocs)).or_not_measured(),
        ]);
    }
    let mut twelve = Table::new("The crate tracing", ["case", "device", "this machine", "allocations"]);
    for case in &published::TRACING {
        let id = case.id().to_string();
        let row = device.row(SUBSCRIBER, &id);
        twelve.push([
            Cell::Name(case.id().name()),
            Cell::value(row),
            Cell::value(here.row(SUBSCRIBER, &id)),
            Cell::count(row.and_then(|r| r.allocs)).or_not_measured(),
        ]);
    }
    let mut about = Table::new("The device", ["", ""]);
    device.device.iter().for_each(|(key, value)| about.push([key, value].map(Cell::text)));
    let mut parts = vec![Part::Table(table), Part::Table(twelve), Part::Table(about)];
    for (bench, found) in &device.benches {
        parts.push(Part::Folded(
            format!("{bench}: every row"),
            vec![Part::Table(of_rows(bench, &found.rows))],
        ));
    }
    Section::new(format!("device-{}", slug(name)), format!("Device: {name}"), parts)
}
