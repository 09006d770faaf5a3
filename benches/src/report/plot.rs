//! The plots, as SVG that takes its colours from the page.
//!
//! Each is drawn for two widths, as text in a picture that shrinks with the window can't be read: labels beside the
//! marks where there is room, else above them.

use maud::{Markup, PreEscaped, html};

use super::model::{Group, Line, Plot, PlotKind, Point, Series};
use crate::row::PERCENTS;
use crate::table::number::{coordinate as at, percent, time};

/// How a plot is laid out, in units of about a pixel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Layout {
    class: &'static str,
    width: f64,
    /// Where the marks begin and end.
    left: f64,
    right: f64,
    /// Above the marks of a line, for its label, where that is not beside them.
    label: f64,
    line: f64,
}

/// For windows.
pub(crate) const WIDE: Layout =
    Layout { class: "wide", width: 820.0, left: 200.0, right: 620.0, label: 0.0, line: 26.0 };
/// For telephones.
pub(crate) const NARROW: Layout =
    Layout { class: "narrow", width: 360.0, left: 6.0, right: 354.0, label: 17.0, line: 20.0 };

const HEADING: f64 = 26.0;
const AXIS: f64 = 22.0;

/// Draws a plot; nothing if there is nothing to draw.
pub(crate) fn svg(plot: &Plot, layout: Layout) -> Markup {
    picture(plot, layout, None)
}

/// Draws a plot as a file of its own, with its colours.
pub(crate) fn file(plot: &Plot, style: &str) -> String {
    picture(plot, WIDE, Some(style)).into_string()
}

fn picture(plot: &Plot, layout: Layout, style: Option<&str>) -> Markup {
    let points = || plot.groups.iter().flat_map(|g| &g.lines).flat_map(|l| &l.points);
    let Some(axis) = Axis::of(plot.kind, points()) else { return html! {} };
    let legend = Legend::new(points(), layout, plot.kind);
    let title = if style.is_some() { 30.0 } else { 0.0 };
    let top = title + legend.height + 4.0;
    let mut y = top;
    let groups: Vec<(f64, &Group, Vec<f64>)> = plot
        .groups
        .iter()
        .filter(|group| !group.lines.is_empty())
        .map(|group| {
            let start = y;
            y += if group.title.is_empty() { 4.0 } else { HEADING };
            let lines = group.lines.iter().map(|_| {
                let middle = y + layout.label + layout.line / 2.0;
                y += layout.label + layout.line;
                middle
            });
            (start, group, lines.collect())
        })
        .collect();
    let bottom = y + 4.0;
    let height = bottom + AXIS + 18.0;
    let view = format!("0 0 {} {}", at(layout.width), at(height));
    html! {
        svg class=(format!("plot {}", layout.class)) viewBox=(view) role="img" aria-label=(plot.title)
            xmlns=[style.map(|_| "http://www.w3.org/2000/svg")]
            width=[style.map(|_| at(layout.width))] height=[style.map(|_| at(height))] {
            @if let Some(style) = style {
                style { (PreEscaped(style)) }
                rect class="ground" width="100%" height="100%" rx="8" {}
                text class="title" x="12" y="24" { (plot.title) }
            }
            (legend.draw(title))
            @for (tick, label) in axis.ticks() {
                @let x = at(layout.x(axis.place(tick)));
                line class=(if axis.is_reference(tick) { "reference" } else { "grid" })
                    x1=(x) x2=(x) y1=(at(top + 4.0)) y2=(at(bottom)) {}
                text class="tick" x=(x) y=(at(bottom + 15.0)) text-anchor=(layout.anchor(axis.place(tick))) { (label) }
            }
            text class="tick" x=(at(f64::midpoint(layout.left, layout.right))) y=(at(bottom + 33.0))
                text-anchor="middle" { (axis.title()) }
            @for (start, group, middles) in &groups {
                @if !group.title.is_empty() {
                    text class="heading" x="2" y=(at(start + 18.0)) { (group.title) }
                }
                @for (line, middle) in group.lines.iter().zip(middles) {
                    (draw_line(line, *middle, plot.kind, &axis, layout))
                }
            }
        }
    }
}

fn draw_line(line: &Line, middle: f64, kind: PlotKind, axis: &Axis, layout: Layout) -> Markup {
    let beside = layout.label == 0.0;
    let (label_x, label_y) =
        if beside { (layout.left - 10.0, middle + 4.0) } else { (4.0, middle - layout.line / 2.0 - 3.0) };
    let text_x = if beside { layout.right + 10.0 } else { layout.width - 4.0 };
    let label_anchor = if beside { "end" } else { "start" };
    let text_anchor = if beside { "start" } else { "end" };
    html! {
        line class="row" x1=(at(layout.left)) x2=(at(layout.right)) y1=(at(middle)) y2=(at(middle)) {}
        text class="label" x=(at(label_x)) y=(at(label_y)) text-anchor=(label_anchor) { (shortened(&line.label, layout)) }
        text class="text" x=(at(text_x)) y=(at(label_y)) text-anchor=(text_anchor) { (line.text) }
        @for (index, point) in line.points.iter().enumerate() {
            @if kind == PlotKind::Rounds {
                (draw_rounds(point, middle, axis, layout))
            } @else {
                (draw_point(point, middle + spread(index, line.points.len()), kind, axis, layout))
            }
        }
    }
}

/// A label that has the room there is.
fn shortened(label: &str, layout: Layout) -> String {
    let room = if layout.label == 0.0 { 30 } else { 36 };
    match label.chars().count() {
        n if n <= room => label.to_owned(),
        _ => label.chars().take(room - 1).chain(['…']).collect(),
    }
}

/// Marks of one line beside each other, so that equal ones can both be seen.
fn spread(index: usize, of: usize) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a handful of marks")]
    let (index, of) = (index as f64, of as f64);
    (index - (of - 1.0) / 2.0) * (4.5_f64).min(14.0 / of)
}

fn draw_point(point: &Point, y: f64, kind: PlotKind, axis: &Axis, layout: Layout) -> Markup {
    let x = |value: f64| layout.x(axis.place(value));
    let (low, middle, high) = (x(point.low), x(point.median), x(point.high));
    let noisy = if point.noisy { "; noisy: counts as not measured" } else { "" };
    let tip = format!(
        "{}: {} (95 %: {} to {}){noisy}",
        point.of,
        time(point.median),
        time(point.low),
        time(point.high)
    );
    let class = format!("point {}{}", point.series.class(), if point.noisy { " noisy" } else { "" });
    html! {
        g class=(class) {
            title { (tip) }
            @if kind == PlotKind::Ladder {
                line class="stem" x1=(at(layout.left)) x2=(at(middle)) y1=(at(y)) y2=(at(y)) {}
            }
            @if high - low > 1.0 {
                line class="interval" x1=(at(low)) x2=(at(high)) y1=(at(y)) y2=(at(y)) {}
            }
            (mark(point.series, middle, y))
        }
    }
}

/// The marks differ in form as well as in colour.
fn mark(series: Series, x: f64, y: f64) -> Markup {
    let path = match series {
        Series::Rust => return html! { circle class="mark" cx=(at(x)) cy=(at(y)) r="5" {} },
        Series::Limit => format!("M{} {}v11h2.4v-11z", at(x - 1.2), at(y - 5.5)),
        Series::Cc => format!("M{} {}h8v8h-8z", at(x - 4.0), at(y - 4.0)),
        Series::Ffi => format!("M{} {}l5 5l-5 5l-5 -5z", at(x), at(y - 5.0)),
        Series::Peer => format!("M{} {}l5.2 9h-10.4z", at(x), at(y - 5.5)),
    };
    html! { path class="mark" d=(path) {} }
}

fn draw_rounds(point: &Point, y: f64, axis: &Axis, layout: Layout) -> Markup {
    let of = |percent: usize| {
        let index = PERCENTS.iter().position(|p| *p == percent).unwrap_or_default();
        layout.x(axis.place(point.rounds.get(index).copied().unwrap_or(1.0)))
    };
    let tip: Vec<String> = PERCENTS
        .iter()
        .zip(&point.rounds)
        .map(|(p, r)| format!("{p} %: {}", time(r * point.median)))
        .collect();
    html! {
        g class=(format!("point {}", point.series.class())) {
            title { (point.of) ", of the rounds at most: " (tip.join(", ")) }
            line class="interval thin" x1=(at(of(1))) x2=(at(of(99))) y1=(at(y)) y2=(at(y)) {}
            rect class="box outer" x=(at(of(5))) width=(at((of(95) - of(5)).max(0.5))) y=(at(y - 3.0)) height="6" {}
            rect class="box" x=(at(of(25))) width=(at((of(75) - of(25)).max(0.5))) y=(at(y - 6.0)) height="12" {}
            rect class="mark" x=(at(of(50) - 1.0)) width="2" y=(at(y - 8.0)) height="16" {}
        }
    }
}

/// Which mark is whose, above the plot.
struct Legend {
    items: Vec<(f64, f64, Series)>,
    height: f64,
}

impl Legend {
    fn new<'a>(points: impl Iterator<Item = &'a Point>, layout: Layout, kind: PlotKind) -> Self {
        let used: std::collections::BTreeSet<Series> = points.map(|point| point.series).collect();
        let (mut x, mut y) = (8.0, 16.0);
        let mut items = Vec::new();
        for series in Series::ALL.into_iter().filter(|series| used.contains(series)) {
            #[expect(clippy::cast_precision_loss, reason = "a few letters")]
            let width = 22.0 + 6.4 * series.label().chars().count() as f64;
            if x + width > layout.width && x > 8.0 {
                (x, y) = (8.0, y + 20.0);
            }
            items.push((x, y, series));
            x += width + 10.0;
        }
        if kind == PlotKind::Rounds {
            return Self { items: Vec::new(), height: 0.0 };
        }
        Self { items, height: y + 8.0 }
    }

    fn draw(&self, top: f64) -> Markup {
        html! {
            @for (x, y, series) in &self.items {
                g class=(format!("point {}", series.class())) { (mark(*series, x + 6.0, top + y - 4.0)) }
                text class="legend" x=(at(x + 18.0)) y=(at(top + y)) { (series.label()) }
            }
        }
    }
}

impl Layout {
    fn x(self, place: f64) -> f64 {
        self.left + place * (self.right - self.left)
    }

    /// Labels at the ends of an axis that reaches the border stay within.
    fn anchor(self, place: f64) -> &'static str {
        match place {
            p if self.label > 0.0 && p < 0.04 => "start",
            p if self.label > 0.0 && p > 0.96 => "end",
            _ => "middle",
        }
    }
}

/// Where values are, from 0 at the left to 1 at the right.
#[derive(Debug)]
enum Axis {
    /// Between two powers of ten.
    Log { low: i32, high: i32 },
    /// As the logarithm far from zero, straight near it.
    Around { low: f64, high: f64 },
    /// Parts of a median.
    Parts { low: f64, high: f64 },
}

impl Axis {
    fn of<'a>(kind: PlotKind, points: impl Iterator<Item = &'a Point>) -> Option<Self> {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for point in points {
            let (from, to) = match kind {
                PlotKind::Rounds => (point.rounds.get(1).copied()?, point.rounds.get(9).copied()?),
                // A bound of zero is beyond any logarithm.
                PlotKind::Dots | PlotKind::Ladder => {
                    (if point.low > 1e-3 { point.low } else { point.median }, point.high)
                }
                PlotKind::Differences => (point.low, point.high),
            };
            (low, high) = (low.min(from), high.max(to));
        }
        if low > high {
            return None;
        }
        Some(match kind {
            PlotKind::Dots | PlotKind::Ladder => {
                let power = |x: f64| x.clamp(1e-3, 1e15).log10();
                let (low, high) = (power(low).floor() as i32, power(high).ceil() as i32);
                Self::Log { low, high: high.max(low + 1) }
            }
            PlotKind::Differences => {
                let pad = |x: f64| bend(x) * 1.06 + x.signum() * 0.05;
                Self::Around { low: pad(low.min(-1.0)), high: pad(high.max(1.0)) }
            }
            PlotKind::Rounds => {
                // What is further out is drawn at the border.
                let (low, high) = (low.clamp(0.5, 0.98), high.clamp(1.02, 2.0));
                Self::Parts { low: (low * 50.0).floor() / 50.0, high: (high * 50.0).ceil() / 50.0 }
            }
        })
    }

    fn place(&self, value: f64) -> f64 {
        let place = match *self {
            Self::Log { low, high } => (value.max(1e-3).log10() - f64::from(low)) / f64::from(high - low),
            Self::Around { low, high } => (bend(value) - low) / (high - low),
            Self::Parts { low, high } => (value - low) / (high - low),
        };
        place.clamp(0.0, 1.0)
    }

    fn ticks(&self) -> Vec<(f64, String)> {
        match *self {
            Self::Log { low, high } => {
                (low..=high).map(|power| 10_f64.powi(power)).map(|x| (x, power_label(x))).collect()
            }
            Self::Around { low, high } => {
                // Where there is much to show, 1 ns is too near to zero for a label.
                let (first, step) = if high - low > 6.0 { (2, 2) } else { (0, 1) };
                let powers = (first..16).step_by(step);
                let each = powers.flat_map(|power| [-(10_f64.powi(power)), 10_f64.powi(power)]);
                let inside = |x: &f64| (low..=high).contains(&bend(*x));
                each.chain([0.0]).filter(inside).map(|x| (x, power_label(x))).collect()
            }
            Self::Parts { low, high } => {
                let step = [0.01, 0.02, 0.05, 0.1, 0.25].into_iter().find(|step| (high - low) / step <= 8.0);
                let step = step.unwrap_or(0.5);
                let first = ((1.0 - low) / step).floor();
                (0..20)
                    .map(|i| 1.0 + (f64::from(i) - first) * step)
                    .filter(|x| *x <= high + 1e-9)
                    .map(|x| (x, percent(x)))
                    .collect()
            }
        }
    }

    fn is_reference(&self, tick: f64) -> bool {
        match self {
            Self::Log { .. } => false,
            Self::Around { .. } => tick == 0.0,
            Self::Parts { .. } => (tick - 1.0).abs() < 1e-9,
        }
    }

    fn title(&self) -> &'static str {
        match self {
            Self::Log { .. } => "each step ten times as long; 95 % intervals",
            Self::Around { .. } => "time added to one operation; 95 % intervals",
            Self::Parts { .. } => "of the median: half of the rounds (box), 90 % (bar), 98 % (line)",
        }
    }
}

fn bend(x: f64) -> f64 {
    x.signum() * (1.0 + x.abs()).log10()
}

/// A power of ten of nanoseconds, short.
fn power_label(x: f64) -> String {
    let text = match x.abs() {
        0.0 => return "0".to_owned(),
        a if a < 1.0 => format!("{a} ns"),
        a if a < 1e3 => format!("{a:.0} ns"),
        a if a < 1e6 => format!("{:.0} µs", a / 1e3),
        a if a < 1e9 => format!("{:.0} ms", a / 1e6),
        a => format!("{:.0} s", a / 1e9),
    };
    if x < 0.0 { format!("−{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(kind: PlotKind, medians: &[(f64, f64, f64)]) -> Plot {
        let point = |&(low, median, high): &(f64, f64, f64)| Point {
            series: Series::Rust,
            median,
            low,
            high,
            noisy: false,
            of: "rust/<b>".to_owned(),
            rounds: [0.9, 0.95, 0.98, 0.99, 1.0, 1.0, 1.0, 1.01, 1.1, 1.2, 9.0].to_vec(),
        };
        let line = |values| Line { label: "a".into(), text: "b".into(), points: vec![point(values)] };
        let lines = medians.iter().map(line).collect();
        let groups = vec![Group { title: "t".into(), lines }];
        Plot { id: "p".into(), title: "T".into(), caption: String::new(), kind, groups }
    }

    /// The numbers of an attribute, of everything that has it.
    fn numbers(svg: &str, attribute: &str) -> Vec<f64> {
        let begin = format!(" {attribute}=\"");
        let parts = svg.split(&begin).skip(1);
        parts.map(|part| part.split('"').next().unwrap().parse().unwrap()).collect()
    }

    #[test]
    fn marks_are_where_their_values_are() {
        let text = svg(
            &plot(PlotKind::Dots, &[(1.0, 1.0, 1.0), (30.0, 31.622_776_6, 40.0), (1000.0, 1000.0, 1000.0)]),
            WIDE,
        );
        let x = numbers(&text.into_string(), "cx");
        // The legend's is the first.
        assert_eq!(x[1..], [WIDE.left, (WIDE.left + WIDE.right) / 2.0, WIDE.right]);
    }

    #[test]
    fn nothing_is_drawn_outside() {
        let wild = [(-5.0, 0.0, 1e15), (1e-9, 1e-9, 1e-9), (0.0, 0.0, 0.0), (1e14, 1e14, 1e15)];
        for kind in [PlotKind::Dots, PlotKind::Ladder, PlotKind::Differences, PlotKind::Rounds] {
            for layout in [WIDE, NARROW] {
                let text = svg(&plot(kind, &wild), layout).into_string();
                assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
                assert!(text.contains("rust/&lt;b&gt;") && !text.contains("<b>"), "{text}");
                for attribute in ["cx", "x1", "x2"] {
                    let all = numbers(&text, attribute);
                    assert!(
                        all.iter().all(|x| (0.0..=layout.width).contains(x)),
                        "{kind:?} {attribute}: {all:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn an_empty_plot_is_nothing() {
        assert_eq!(svg(&plot(PlotKind::Dots, &[]), WIDE).into_string(), "");
    }
}
