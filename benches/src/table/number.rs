//! Formats numbers for readers: most with two or three significant digits, and times with a suitable unit.

use crate::row::Versus;
use crate::stats::{Interval, NOISY_RATIO};

/// Formats a time with its unit.
pub(crate) fn time(ns: f64) -> String {
    let (scaled, unit) = scale(ns);
    format!("{} {unit}", digits(scaled))
}

/// Formats a median and its interval. Times get a unit that suits the median. Returns three texts: the median, the
/// range of the interval, and the unit. The first two texts do not contain the unit.
pub(crate) fn interval(median: f64, low: f64, high: f64, unit: &str) -> (String, String, String) {
    let (divisor, unit) = if unit == "ns" {
        let (scaled, unit) = scale(median);
        (if scaled == 0.0 { 1.0 } else { median / scaled }, unit.to_owned())
    } else {
        (1.0, unit.to_owned())
    };
    let places = if unit == "instructions" && median >= 10.0 { 0 } else { places(median / divisor) };
    let f = |x: f64| format!("{:.places$}", x / divisor);
    let between = if low < 0.0 { " to " } else { "–" };
    (f(median), format!("{}{between}{}", f(low), f(high)), unit)
}

/// Formats a number with a number of decimals that depends on its size: none from 100 on, one from 10 on, two from 0.1
/// on, three from 0.001 on, and five below 0.001.
pub(crate) fn digits(x: f64) -> String {
    let places = places(x);
    format!("{x:.places$}")
}

fn places(x: f64) -> usize {
    match x.abs() {
        a if a > 0.0 && a < 0.000_95 => 5,
        a if a > 0.0 && a < 0.0995 => 3,
        a if a < 9.995 => 2,
        a if a < 99.95 => 1,
        _ => 0,
    }
}

fn scale(ns: f64) -> (f64, &'static str) {
    match ns.abs() {
        a if a < 9_999.5 => (ns, "ns"),
        a if a < 9_999_500.0 => (ns / 1e3, "µs"),
        a if a < 9_999_500_000.0 => (ns / 1e6, "ms"),
        _ => (ns / 1e9, "s"),
    }
}

/// Formats a ratio.
pub(crate) fn ratio(r: f64) -> String {
    match r {
        r if r > 0.0 && r < 0.000_5 => format!("{r:.0e}"),
        r if r < 0.1 => format!("{r:.3}"),
        r if r < 100.0 => format!("{r:.2}"),
        r => format!("{r:.0}"),
    }
}

/// Formats a ratio without its interval, for places with little room. If the interval is wide (it reaches more than 5 %
/// below or above the ratio), the text also has the interval.
pub(crate) fn versus(of: &Versus) -> String {
    let is_wide = Interval::from(*of).relative() > NOISY_RATIO;
    let range = if is_wide { format!(" ({}–{})", ratio(of.low), ratio(of.high)) } else { String::new() };
    ratio(of.ratio) + &range + &of.known().remark()
}

/// Formats a count, without decimals if it is a whole number.
pub(crate) fn count(x: f64) -> String {
    match x {
        x if x.fract() == 0.0 => format!("{x:.0}"),
        x if x.abs() < 0.01 => format!("{x:.4}"),
        x => format!("{x:.2}"),
    }
}

/// Formats a fraction as a percentage.
pub(crate) fn percent(part: f64) -> String {
    let percent = part * 100.0;
    if percent.abs() < 9.95 && percent.fract().abs() > 0.05 {
        format!("{percent:.1} %")
    } else {
        format!("{percent:.0} %")
    }
}

/// Formats a coordinate for an SVG attribute, with at most one decimal.
pub(crate) fn coordinate(x: f64) -> String {
    let text = format!("{x:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wide_interval_is_shown_where_there_is_no_room_for_it() {
        let of = |low, high, sure| versus(&Versus { ratio: 0.64, low, high, sure });
        assert_eq!(of(0.63, 0.65, true), "0.64");
        assert_eq!(of(0.4, 0.9, true), "0.64 (0.40–0.90)");
        assert_eq!(of(0.63, 0.65, false), "0.64, from too few pairs");
    }

    #[test]
    fn three_digits_and_a_unit() {
        let all = [0.541, 9.994, 9.996, 386.4, 9_999.4, 12_345.0, 2.5e7, 4e10, -386.4];
        let texts = all.map(time);
        let expected =
            ["0.54 ns", "9.99 ns", "10.0 ns", "386 ns", "9999 ns", "12.3 µs", "25.0 ms", "40.0 s", "-386 ns"];
        assert_eq!(texts, expected);
        assert_eq!(interval(12_345.0, 12_000.0, 13_000.0, "ns").1, "12.0–13.0");
        assert_eq!(interval(0.0, -1.0, 1.0, "ns").1, "-1.00 to 1.00");
        assert_eq!(interval(12.25, 12.25, 12.25, "instructions").0, "12");
        assert_eq!([0.0667, 0.617, 11.66, 123.4].map(ratio), ["0.067", "0.62", "11.66", "123"]);
        assert_eq!([0.0, 4e-7].map(ratio), ["0.000", "4e-7"]);
        assert_eq!([0.0, 0.0001, 0.0013].map(digits), ["0.00", "0.00010", "0.001"]);
        assert_eq!([0.0, 2.0, 0.0025, 1.5].map(count), ["0", "2", "0.0025", "1.50"]);
        assert_eq!([0.05, 0.123, 0.013].map(percent), ["5 %", "12 %", "1.3 %"]);
        assert_eq!([1.0, 1.25].map(coordinate), ["1", "1.2"]);
    }
}
