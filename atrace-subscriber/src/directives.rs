//! Applies the filter in the environment variable `ATRACE_FILTER`, which a user can set without recompiling
//! the program.
//!
//! The filter is written in the language of [`Targets`](tracing_subscriber::filter::Targets): directives with commas
//! between them. A directive is `TARGET=LEVEL`, or only a level, which is for all targets, or only a target, which is
//! for all levels. If the targets of several directives are prefixes of a callsite's target, the directive with the
//! longest target applies. If several directives have that target, the last of them applies.
//!
//! This module does not use the type `Targets`, which also parses lists of fields, and keeps a sorted set. The code of
//! `Targets` would add 11 KiB to every program, although hardly any program has such a filter.
//!
//! The variable is read once, when the program makes the first `AtraceSubscriber`, `AtraceLayer` or `AtraceFilter`. A
//! process with elevated rights ignores this variable, as it ignores all variables of these crates.

use std::sync::OnceLock;

use atrace_sys::process;
use tracing_core::metadata::ParseLevelFilterError;
use tracing_core::{LevelFilter, Metadata};

/// The name of the environment variable with the filter.
const VARIABLE: &str = "ATRACE_FILTER";

static GIVEN: OnceLock<Option<Filter>> = OnceLock::new();

/// The directives of `ATRACE_FILTER`. If there are none, all spans and events pass.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Directives(Option<&'static Filter>);

impl Directives {
    /// Returns the directives of this process. If the directives can't be parsed, prints one line and returns no
    /// directives.
    pub(crate) fn of_process() -> Self {
        Self(GIVEN.get_or_init(read).as_ref())
    }

    /// Returns whether there are no directives, so that all spans and events pass.
    pub(crate) fn are_none(self) -> bool {
        self.0.is_none()
    }

    /// Returns whether spans and events of this callsite are to be recorded.
    #[inline]
    pub(crate) fn pass(self, metadata: &Metadata<'_>) -> bool {
        self.0.is_none_or(|filter| *metadata.level() <= filter.level_of(metadata.target()))
    }

    /// Returns the more restrictive of `limit` and the maximum level that the directives let through.
    pub(crate) fn limit(self, limit: Option<LevelFilter>) -> Option<LevelFilter> {
        let own = self.0.map(Filter::max_level);
        match (own, limit) {
            (Some(own), Some(limit)) => Some(own.min(limit)),
            (own, limit) => own.or(limit),
        }
    }
}

/// Parsed directives, each with a target and a level. An empty target stands for all targets.
#[derive(Debug)]
struct Filter(Vec<(String, LevelFilter)>);

impl Filter {
    fn parse(text: &str) -> Result<Self, ParseLevelFilterError> {
        let mut directives = Vec::new();
        for directive in text.split(',') {
            let (target, level) = match directive.split_once('=') {
                Some((target, level)) => (target, level.parse()?),
                None => match directive.parse() {
                    Ok(level) => ("", level),
                    Err(_) => (directive, LevelFilter::TRACE),
                },
            };
            directives.push((target.to_owned(), level));
        }
        Ok(Self(directives))
    }

    /// Returns the level up to which spans and events of a target pass. This function is not inlined, because most
    /// processes have no directives.
    #[cold]
    #[inline(never)]
    fn level_of(&self, target: &str) -> LevelFilter {
        let fitting = self.0.iter().filter(|(prefix, _)| target.starts_with(&**prefix));
        fitting.max_by_key(|(prefix, _)| prefix.len()).map_or(LevelFilter::OFF, |(_, level)| *level)
    }

    fn max_level(&self) -> LevelFilter {
        self.0.iter().map(|(_, level)| *level).max().unwrap_or(LevelFilter::OFF)
    }
}

fn read() -> Option<Filter> {
    let given = process::variable(VARIABLE)?;
    let text = given.to_string_lossy();
    match Filter::parse(&text) {
        Ok(filter) => Some(filter),
        Err(e) => {
            process::complain(&format!(
                "atrace: {VARIABLE}={text}: {e}: nothing is filtered; write for example info,sqlx=off"
            ));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use tracing_core::Level;
    use tracing_subscriber::filter::Targets;
    use tracing_subscriber::layer::Layer;
    use tracing_subscriber::registry::Registry;

    use super::*;

    /// Checks that a filter in the language of `Targets` has the same meaning here.
    #[test]
    fn a_filter_means_what_targets_mean() {
        let filters = [
            "info",
            "",
            "3",
            "OFF",
            "my_crate",
            "info,sqlx=off",
            "sqlx=off,info",
            "a=info,a::b=trace,a::b::c=off",
            "a::b=trace,a=error,warn",
            "a=info,a=trace",
            "=debug",
            "a=",
            "info,a[{field}]=trace",
            "loud",
            "a=loud",
            "a=info=debug",
            "a,,b=warn",
            "é=info",
        ];
        let targets = ["", "a", "a::b", "a::b::c", "ab", "sqlx", "sqlx::query", "my_crate", "loud", "é::a"];
        let levels = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE];
        for text in filters {
            let (own, expected) = (Filter::parse(text), text.parse::<Targets>());
            assert_eq!(own.is_ok(), expected.is_ok(), "{text:?}");
            let Some((own, expected)) = own.ok().zip(expected.ok()) else { continue };
            assert_eq!(
                Some(own.max_level()),
                <Targets as Layer<Registry>>::max_level_hint(&expected),
                "{text:?}"
            );
            for (target, level) in targets.iter().flat_map(|target| levels.map(|level| (*target, level))) {
                let passes = level <= own.level_of(target);
                assert_eq!(passes, expected.would_enable(target, &level), "{text:?}: {target} {level}");
            }
        }
    }
}
