//! A table as HTML.

use maud::{Markup, html};

use super::number::{interval, ratio};
use super::{Cell, Table};

/// Draws a table with its title as a heading.
pub(crate) fn draw(table: &Table) -> Markup {
    let reasons = table.reasons();
    html! {
        @if !table.title.is_empty() { h3 { (table.title) } }
        div class="scroll" tabindex="0" role="region" aria-label=(table.title) {
            table {
                thead { tr { @for column in &table.columns { th scope="col" { (column) } } } }
                tbody { @for row in &table.rows { tr { @for cell in row { (draw_cell(cell, &reasons)) } } } }
            }
        }
        @for line in table.below() { p class="note" { (line) } }
    }
}

fn draw_cell(cell: &Cell, reasons: &[&str]) -> Markup {
    match cell {
        Cell::Empty => html! { td {} },
        Cell::None(_) => html! { td class="missing" { (cell.said(reasons)) } },
        Cell::Text(text) => html! { td class="text" { (text) } },
        Cell::Name(name) => html! { td { code { (name) } } },
        Cell::List(all) => html! {
            td class="text" { @for (of, cell) in all { div { (cell) " " (of) } } }
        },
        Cell::Value(value) => {
            let class = match (value.noisy, value.own) {
                (true, _) => "noisy",
                (false, true) => "own",
                _ => "",
            };
            let (median, range, unit) = interval(value.median, value.low, value.high, &value.unit);
            html! {
                td class=(class) {
                    b { (median) } @if unit != "ns" && unit != "instructions" { " " (unit) }
                    @if value.noisy { small { "noisy: " (range) } }
                    @else if value.low < value.high { small { (range) } }
                }
            }
        }
        Cell::Ratio(r, bounds) => html! {
            td { (ratio(*r)) @if let Some((low, high)) = bounds { small { (ratio(*low)) "–" (ratio(*high)) } } }
        },
        Cell::Count(_) => html! { td { (cell) } },
    }
}
