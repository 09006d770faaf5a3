//! The report as one HTML file that needs nothing else: no script, no font, no network.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::model::{Finding, Part, Plot, Report, Section};
use super::plot;
use crate::table;

/// The colours and letters of plots, on a page or alone.
pub(crate) const PLOT_STYLE: &str = include_str!("plot.css");
const PAGE_STYLE: &str = include_str!("page.css");

/// Nothing is loaded and nothing runs, whatever a measured file may hold.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; img-src data:";

pub(crate) fn page(report: &Report) -> String {
    let markup = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (report.title) }
                link rel="icon" href="data:,";
                style { (PreEscaped(PLOT_STYLE)) (PreEscaped(PAGE_STYLE)) }
            }
            body {
                header {
                    h1 { (report.title) }
                    @if !report.about.is_empty() { p class="about" { (report.about) } }
                    ul class="findings" { @for finding in &report.findings { (card(finding)) } }
                    (warnings(&report.warnings))
                    nav { @for section in &report.sections { a href=(format!("#{}", section.id)) { (section.title) } } }
                }
                main { @for section in &report.sections { (draw(section)) } }
            }
        }
    };
    markup.into_string()
}

fn card(finding: &Finding) -> Markup {
    html! {
        li {
            span { (finding.what) }
            b { (finding.value.as_deref().unwrap_or("not measured")) }
            @for beside in &finding.beside { span { (beside) } }
        }
    }
}

fn warnings(all: &[String]) -> Markup {
    html! {
        @if !all.is_empty() {
            details class="warnings" open[all.len() <= 4] {
                summary { @if all.len() == 1 { "One warning" } @else { (all.len()) " warnings" } }
                ul { @for warning in all { li { (warning) } } }
            }
        }
    }
}

fn draw(section: &Section) -> Markup {
    html! {
        section id=(section.id) {
            h2 { (section.title) }
            @for text in &section.text { p { (text) } }
            @for part in &section.parts { (part_of(part)) }
        }
    }
}

fn part_of(part: &Part) -> Markup {
    match part {
        Part::Table(table) => table::draw(table),
        Part::Plot(plot) => figure(plot),
        Part::Folded(summary, table) => html! {
            details class="rows" { summary { (summary) } (table::draw(table)) }
        },
    }
}

fn figure(plot: &Plot) -> Markup {
    html! {
        figure id=(format!("plot-{}", plot.id)) data-plot="dots" {
            h3 { (plot.title) }
            div class="scroll" { (plot::svg(plot, None)) }
            @if !plot.caption.is_empty() { figcaption { (plot.caption) } }
        }
    }
}
