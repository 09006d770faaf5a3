//! Writes the report as a single HTML file without scripts, embedded fonts or network access. A plot is an SVG image in
//! the colours of the page. A line of a plot has a mark for each compared result, and the axis of nanoseconds is
//! logarithmic.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::report::model::{Finding, Group, Line, Part, Plot, Point, Report, Section};
use crate::row::Known;
use crate::table;
use crate::table::number::{coordinate as at, time};

/// The colours and fonts of plots, which are used in the page and in separate SVG files.
const PLOT_STYLE: &str = include_str!("plot.css");
const PAGE_STYLE: &str = include_str!("page.css");

/// The content security policy of the page. It makes browsers load and execute nothing, even if the files of
/// measurements contain HTML.
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
                style { (PreEscaped(PAGE_STYLE)) }
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
            div class="scroll" { (svg(plot)) }
            @if !plot.caption.is_empty() { figcaption { (plot.caption) } }
        }
    }
}

// The layout of a plot in units of about a pixel: its width, the height of the title and the legend, the ends of the
// axis, and the heights of a line, a heading and the axis.
const WIDTH: f64 = 870.0;
const TOP: f64 = 58.0;
const LEFT: f64 = 200.0;
const RIGHT: f64 = 620.0;
const LINE: f64 = 26.0;
const HEADING: f64 = 26.0;
const AXIS: f64 = 22.0;
/// For each series of marks: its horizontal position in the legend, its name, and its description. The description of
/// C++ is [`Plot::cc`] instead.
const LEGEND: [(f64, &str, &str); 4] = [
    (8.0, "limit", "limit (nothing traced, or the raw write)"),
    (290.0, "cc", "C++"),
    (540.0, "rust", "Rust (this workspace)"),
    (704.0, "ffi", "Rust through libcutils"),
];

/// Draws a plot as an SVG image, or nothing if the plot has no points. The image contains its styles, so it can also be
/// a separate file.
pub(crate) fn svg(plot: &Plot) -> Markup {
    let points = plot.groups.iter().flat_map(|g| &g.lines).flat_map(|l| &l.points);
    let Some(axis) = Axis::of(points) else { return html! {} };
    let mut y = TOP;
    let mut groups: Vec<(f64, &Group)> = Vec::new();
    for group in plot.groups.iter().filter(|group| !group.lines.is_empty()) {
        groups.push((y, group));
        y += HEADING + LINE * group.lines.len() as f64;
    }
    let bottom = y + 4.0;
    let height = bottom + AXIS + 18.0;
    html! {
        svg class="plot" viewBox=(format!("0 0 {WIDTH} {}", at(height))) role="img" aria-label=(plot.title)
            xmlns="http://www.w3.org/2000/svg" width=(at(WIDTH)) height=(at(height)) {
            style { (PreEscaped(PLOT_STYLE)) }
            rect class="ground" width="100%" height="100%" rx="8" {}
            text class="title" x="12" y="24" { (plot.title) }
            @for (x, series, label) in LEGEND {
                g class=(format!("point {series}")) { (mark(series, x + 6.0, TOP - 16.0)) }
                text class="legend" x=(at(x + 18.0)) y=(at(TOP - 12.0)) { (if series == "cc" { &plot.cc } else { label }) }
            }
            @for power in axis.low..=axis.high {
                @let x = at(axis.x(10_f64.powi(power)));
                line class="grid" x1=(x) x2=(x) y1=(at(TOP + 4.0)) y2=(at(bottom)) {}
                text class="tick" x=(x) y=(at(bottom + 15.0)) text-anchor="middle" { (power_label(power)) }
            }
            text class="tick" x=(at(f64::midpoint(LEFT, RIGHT))) y=(at(bottom + 33.0))
                text-anchor="middle" { "each step ten times as long; 95 % intervals" }
            @for (start, group) in &groups {
                text class="heading" x="2" y=(at(start + 18.0)) { (group.title) }
                @for (index, line) in group.lines.iter().enumerate() {
                    (draw_line(line, start + HEADING + LINE * (index as f64 + 0.5), &axis))
                }
            }
        }
    }
}

fn draw_line(line: &Line, middle: f64, axis: &Axis) -> Markup {
    let y = at(middle + 4.0);
    html! {
        line class="row" x1=(at(LEFT)) x2=(at(RIGHT)) y1=(at(middle)) y2=(at(middle)) {}
        text class="label" x=(at(LEFT - 10.0)) y=(y) text-anchor="end" { (line.label) }
        text class="text" x=(at(RIGHT + 10.0)) y=(y) { (line.text) }
        @for (index, point) in line.points.iter().enumerate() {
            (draw_point(point, middle + spread(index, line.points.len()), axis))
        }
    }
}

/// Returns the vertical offset of the mark with this index among `of` marks on a line. The offsets keep marks with
/// equal values from hiding each other.
fn spread(index: usize, of: usize) -> f64 {
    let (index, of) = (index as f64, of as f64);
    (index - (of - 1.0) / 2.0) * (4.5_f64).min(14.0 / of)
}

fn draw_point(point: &Point, y: f64, axis: &Axis) -> Markup {
    let [low, middle, high] = [point.low, point.median, point.high].map(|value| axis.x(value));
    let known = point.known.words().map(|words| format!("; {words}")).unwrap_or_default();
    let [least, median, most] = [point.low, point.median, point.high].map(time);
    let tip = format!("{}: {median} (95 %: {least} to {most}){known}", point.of);
    let uncertain = if point.known == Known::Well { "" } else { " uncertain" };
    let class = format!("point {}{uncertain}", point.series);
    html! {
        g class=(class) {
            title { (tip) }
            @if high - low > 1.0 {
                line class="interval" x1=(at(low)) x2=(at(high)) y1=(at(y)) y2=(at(y)) {}
            }
            (mark(point.series, middle, y))
        }
    }
}

/// Draws the mark of a result in a plot. Marks of different series differ in shape and in colour.
fn mark(series: &str, x: f64, y: f64) -> Markup {
    let path = match series {
        "rust" => return html! { circle class="mark" cx=(at(x)) cy=(at(y)) r="5" {} },
        "limit" => format!("M{} {}v11h2.4v-11z", at(x - 1.2), at(y - 5.5)),
        "cc" => format!("M{} {}h8v8h-8z", at(x - 4.0), at(y - 4.0)),
        _ => format!("M{} {}l5 5l-5 5l-5 -5z", at(x), at(y - 5.0)),
    };
    html! { path class="mark" d=(path) {} }
}

/// Maps values to positions, on a logarithmic axis between two powers of ten.
#[derive(Debug)]
struct Axis {
    low: i32,
    high: i32,
}

impl Axis {
    fn of<'a>(points: impl Iterator<Item = &'a Point>) -> Option<Self> {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for point in points {
            // A lower bound of zero or below has no logarithm, so the median is used instead.
            low = low.min(if point.low > 1e-3 { point.low } else { point.median });
            high = high.max(point.high);
        }
        let power = |x: f64| x.clamp(1e-3, 1e15).log10();
        let (least, most) = (power(low).floor() as i32, power(high).ceil() as i32);
        (low <= high).then_some(Self { low: least, high: most.max(least + 1) })
    }

    fn x(&self, value: f64) -> f64 {
        let place = (value.max(1e-3).log10() - f64::from(self.low)) / f64::from(self.high - self.low);
        LEFT + place.clamp(0.0, 1.0) * (RIGHT - LEFT)
    }
}

/// Formats ten to the power of `power` nanoseconds, with a suitable unit.
fn power_label(power: i32) -> String {
    let (unit, rest) = match power {
        ..3 => ("ns", power),
        3..6 => ("µs", power - 3),
        6..9 => ("ms", power - 6),
        _ => ("s", power - 9),
    };
    format!("{} {unit}", 10_f64.powi(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(medians: &[(f64, f64, f64)]) -> Plot {
        let point = |&(low, median, high): &(f64, f64, f64)| Point {
            series: "rust",
            median,
            low,
            high,
            known: Known::Well,
            of: "rust/<b>".to_owned(),
        };
        let line = |values| Line { label: "a".into(), text: "b".into(), points: vec![point(values)] };
        let lines = medians.iter().map(line).collect();
        let groups = vec![Group { title: "t".into(), lines }];
        Plot { id: "p".into(), title: "T".into(), caption: String::new(), cc: "C++".into(), groups }
    }

    /// Returns the numbers that an attribute has in all elements with this attribute.
    fn numbers(svg: &str, attribute: &str) -> Vec<f64> {
        let begin = format!(" {attribute}=\"");
        let parts = svg.split(&begin).skip(1);
        parts.map(|part| part.split('"').next().unwrap().parse().unwrap()).collect()
    }

    #[test]
    fn marks_are_where_their_values_are() {
        let plot = plot(&[(1.0, 1.0, 1.0), (30.0, 31.622_776_6, 40.0), (1000.0, 1000.0, 1000.0)]);
        let x = numbers(&svg(&plot).into_string(), "cx");
        // The first circle in the plot belongs to the legend.
        assert_eq!(x[1..], [LEFT, (LEFT + RIGHT) / 2.0, RIGHT]);
    }

    #[test]
    fn nothing_is_drawn_outside() {
        let wild = [(-5.0, 0.0, 1e15), (1e-9, 1e-9, 1e-9), (0.0, 0.0, 0.0), (1e14, 1e14, 1e15)];
        let text = svg(&plot(&wild)).into_string();
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        assert!(text.contains("rust/&lt;b&gt;") && !text.contains("<b>"), "{text}");
        for attribute in ["cx", "x1", "x2"] {
            let all = numbers(&text, attribute);
            assert!(all.iter().all(|x| (0.0..=WIDTH).contains(x)), "{attribute}: {all:?}");
        }
    }

    #[test]
    fn an_empty_plot_is_nothing() {
        assert_eq!(svg(&plot(&[])).into_string(), "");
    }

    #[test]
    fn powers_have_the_unit_that_fits() {
        assert_eq!(
            [-1, 0, 2, 3, 7, 10].map(power_label),
            ["0.1 ns", "1 ns", "100 ns", "1 µs", "10 ms", "10 s"]
        );
    }
}
