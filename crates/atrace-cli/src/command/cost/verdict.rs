//! The verdict about the difference between the two sides of a comparison, in words.

use atrace_paired::{Interval, looks};

/// If the interval of a difference includes zero, and its ends are at most this far from zero (as a fraction), the
/// verdict is that there is no difference.
const NONE: f64 = 0.01;

/// The verdict about one quantity. Differences are fractions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Verdict {
    /// The interval excludes zero.
    Differs(Interval),
    /// The interval includes zero, and is narrow. The first value is the distance from zero of the end that is farther
    /// from zero.
    Same(f64, Interval),
    /// The interval includes zero, and is too wide for the verdict `Same`.
    Open(Interval),
    /// The pairs give no interval with the required confidence: there are too few pairs, or the reference work can
    /// explain a difference of any size (`atrace_paired::ranks`).
    TooFew,
}

impl Verdict {
    pub(super) fn of(difference: Option<Interval>) -> Self {
        let Some(it) = difference.filter(|it| it.sure) else { return Self::TooFew };
        let most = it.high.max(-it.low);
        if it.low > 0.0 || it.high < 0.0 {
            Self::Differs(it)
        } else if most <= NONE || looks::is_decided(it) {
            Self::Same(most, it)
        } else {
            Self::Open(it)
        }
    }

    pub(super) fn interval(&self) -> Option<Interval> {
        match *self {
            Self::Differs(it) | Self::Same(_, it) | Self::Open(it) => Some(it),
            Self::TooFew => None,
        }
    }

    /// Returns the verdict as a word for JSON.
    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::Differs(_) => "differs",
            Self::Same(..) => "no difference",
            Self::Open(_) | Self::TooFew => "not decided",
        }
    }

    /// Returns the verdict as a sentence. `subject` is the cause of the difference: "tracing", or the second of
    /// two commands.
    pub(super) fn sentence(&self, subject: &str, of: &str, seconds: f64) -> String {
        match self {
            Self::Differs(it) if it.low > 0.0 => {
                format!("{subject} costs {} of {of}", percents(*it))
            }
            Self::Differs(it) => {
                let less = Interval { median: -it.median, low: -it.high, high: -it.low, ..*it };
                format!("{subject} saves {} of {of}", percents(less))
            }
            Self::Same(most, _) => format!("no difference above {} % in {of}", percent(*most, f64::ceil)),
            Self::Open(it) => format!(
                "not decided in {seconds:.0} s: {of} between {} and {} %",
                signed(it.low, f64::floor),
                signed(it.high, f64::ceil)
            ),
            Self::TooFew => {
                format!("not decided in {seconds:.0} s: {of}, because the pairs give no 99 % interval")
            }
        }
    }
}

/// Formats a difference with its interval, in percent. The ends of the interval are rounded outwards.
fn percents(it: Interval) -> String {
    format!(
        "{} % ({}–{})",
        percent(it.median, f64::round),
        percent(it.low, f64::floor),
        percent(it.high, f64::ceil)
    )
}

/// Formats a fraction in percent, rounded by a function such as `f64::ceil`. Small fractions get two decimals.
fn percent(fraction: f64, round: fn(f64) -> f64) -> String {
    let percent = fraction * 100.0;
    let decimals: usize = match percent.abs() {
        small if small < 0.95 => 2,
        large if large >= 99.5 => 0,
        _ => 1,
    };
    let scale = 10_f64.powi(decimals as i32);
    // The products have rounding errors. Because of such an error, a number that needs no rounding must not be rounded
    // up or down.
    let exact = percent * scale;
    let nearest = exact.round();
    let shown = if (exact - nearest).abs() < 1e-6 { nearest } else { round(exact) } / scale;
    format!("{shown:.decimals$}")
}

/// Formats a fraction in percent, with its sign. The number with its sign is rounded by a function such as `f64::ceil`.
fn signed(fraction: f64, round: fn(f64) -> f64) -> String {
    let text = percent(fraction, round);
    match text.strip_prefix('-') {
        Some(number) => format!("−{number}"),
        None => format!("+{text}"),
    }
}

/// Formats a difference and its interval, all with their signs. The ends of the interval are rounded outwards.
pub(super) fn difference(it: Interval) -> String {
    format!(
        "{} % ({} … {})",
        signed(it.median, f64::round),
        signed(it.low, f64::floor),
        signed(it.high, f64::ceil)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(median: f64, low: f64, high: f64) -> String {
        let it = Interval { median, low, high, sure: true };
        Verdict::of(Some(it)).sentence("tracing", "wall time", 60.0)
    }

    #[test]
    fn a_difference_is_said_in_words() {
        assert_eq!(said(0.021, 0.018, 0.024), "tracing costs 2.1 % (1.8–2.4) of wall time");
        assert_eq!(said(-0.05, -0.06, -0.04), "tracing saves 5.0 % (4.0–6.0) of wall time");
        assert_eq!(said(0.001, -0.0011, 0.0035), "no difference above 0.35 % in wall time");
        assert_eq!(said(0.0, -0.0101, 0.03), "not decided in 60 s: wall time between −1.1 and +3.0 %");
        assert_eq!(said(0.021, 0.01751, 0.02449), "tracing costs 2.1 % (1.7–2.5) of wall time");
        assert_eq!(said(-0.021, -0.02449, -0.01751), "tracing saves 2.1 % (1.7–2.5) of wall time");
        let it = Interval { median: -0.001, low: -0.02444, high: 0.02444, sure: true };
        assert_eq!(difference(it), "−0.10 % (−2.5 … +2.5)");
        assert_eq!(said(1.5, 1.2, 1.9), "tracing costs 150 % (120–190) of wall time");
    }

    #[test]
    fn few_pairs_are_no_verdict() {
        let few = Interval { sure: false, ..Interval::around(0.3, 0.1) };
        for none in [None, Some(few)] {
            assert_eq!(Verdict::of(none), Verdict::TooFew);
        }
        assert!(Verdict::TooFew.sentence("tracing", "processor time", 1.0).contains("no 99 % interval"));
    }
}
