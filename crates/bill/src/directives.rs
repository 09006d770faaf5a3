//! Suggests the filter directives that would save the most processor time.
//!
//! A directive `target=level` of `Targets` and `EnvFilter` applies to all targets that begin with `target`, except to
//! targets to which a directive with a longer target applies. The directive disables the callsites of its targets that
//! are more verbose than `level`. The saving is the sum of the costs of these callsites.

use crate::bill::{Bill, LEVELS};
use crate::estimate::Estimate;

/// The maximum number of directives that are suggested.
const MOST: usize = 5;
/// The minimum share of the bill that a suggested directive saves.
const LEAST: f64 = 0.01;

/// A directive, and the cost that it saves.
#[derive(Debug, PartialEq)]
pub(crate) struct Directive {
    pub(crate) text: String,
    pub(crate) ns: Estimate,
}

/// Returns the directives that save the most, the best first. The savings must not be added up, because two directives
/// may disable the same callsites.
pub(crate) fn best(bill: &Bill) -> Vec<Directive> {
    let known = || bill.lines.iter().filter(|line| line.level > 0);
    let all = known().map(|line| &*line.target);
    // The targets of possible directives: each target of a callsite, and the crate of this target.
    let mut targets: Vec<_> = all.flat_map(|it| [it, it.split("::").next().unwrap_or(it)]).collect();
    targets.sort_unstable_by_key(|target| (std::cmp::Reverse(target.len()), *target));
    targets.dedup();
    let mut found: Vec<Directive> = Vec::new();
    for target in targets.into_iter().filter(|target| is_valid(target)) {
        // A directive must save over 10 % more than each suggested directive for a narrower target (a longer target
        // that begins with this one), and over 10 % more than a suggested directive with a less strict level.
        let narrower = found.iter().filter(|other| other.text.starts_with(target));
        let mut least =
            narrower.fold(LEAST * bill.total_ns.sum, |least, other| least.max(1.1 * other.ns.sum));
        for level in (0..5_u8).rev() {
            let saved = known().filter(|line| line.target.starts_with(target) && line.level > level);
            let ns = saved.fold(Estimate::default(), |sum, line| sum.plus(line.ns));
            if ns.sum > least {
                least = 1.1 * ns.sum;
                found.push(Directive { text: format!("{target}={}", LEVELS[usize::from(level)]), ns });
            }
        }
    }
    found.sort_by(|one, other| other.ns.sum.total_cmp(&one.ns.sum));
    found.truncate(MOST);
    found
}

/// Returns whether `EnvFilter` certainly accepts the target. (`EnvFilter` is stricter than `Targets`.)
fn is_valid(target: &str) -> bool {
    !target.is_empty() && target.chars().all(|char| char.is_ascii_alphanumeric() || "_:-".contains(char))
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::filter::{LevelFilter, Targets};

    use super::*;
    use crate::table::tests::bill;

    #[test]
    fn directives_are_valid_and_save_what_they_say() {
        let bill = bill();
        let best = best(&bill);
        let texts: Vec<_> = best.iter().map(|directive| &*directive.text).collect();
        assert_eq!(texts, ["app=warn", "app::state=info"]);
        for directive in best {
            let filter: Targets = format!("trace,{}", directive.text).parse().unwrap();
            let is_disabled = |target: &str, level: u8| {
                let level: LevelFilter = LEVELS[usize::from(level)].parse().unwrap();
                level.into_level().is_some_and(|level| !filter.would_enable(target, &level))
            };
            let saved = bill.lines.iter().filter(|line| is_disabled(&line.target, line.level));
            let saved: f64 = saved.map(|line| line.ns.sum).sum();
            assert_eq!(saved, directive.ns.sum, "{}", directive.text);
        }
    }

    #[test]
    fn a_target_that_no_filter_can_name_has_no_directive() {
        assert!(is_valid("my_crate::state") && is_valid("my-crate"));
        assert!(["", "a b", "a=b", "a[b]", "ä", "a,b"].iter().all(|target| !is_valid(target)));
    }
}
