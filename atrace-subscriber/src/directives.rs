//! Applies the filter that a user sets without recompiling the program: the variable
//! `ATRACE_FILTER`.
//!
//! Its language is that of [`Targets`]. The variable is read once, when the first subscriber, layer or filter of this crate is
//! made. Processes with elevated rights ignore it, as they ignore all variables of these crates.

use std::sync::OnceLock;

use atrace_sys::process;
use tracing_core::{LevelFilter, Metadata};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::Layer;
use tracing_subscriber::registry::Registry;

/// The variable with the filter.
const VARIABLE: &str = "ATRACE_FILTER";

static GIVEN: OnceLock<Option<Targets>> = OnceLock::new();

/// The directives of `ATRACE_FILTER`, or none, which let everything through.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Directives(Option<&'static Targets>);

impl Directives {
    /// Returns the directives of this process. If they can't be parsed, prints one line and returns none.
    pub(crate) fn of_process() -> Self {
        Self(GIVEN.get_or_init(read).as_ref())
    }

    /// Returns whether everything passes.
    pub(crate) fn are_none(self) -> bool {
        self.0.is_none()
    }

    /// Returns whether spans and events of this callsite are to be recorded.
    #[inline]
    pub(crate) fn pass(self, metadata: &Metadata<'_>) -> bool {
        self.0.is_none_or(|targets| would_enable(targets, metadata))
    }

    /// Returns the more restrictive of `limit` and the maximum level that the directives let through.
    pub(crate) fn limit(self, limit: Option<LevelFilter>) -> Option<LevelFilter> {
        let own = self.0.and_then(<Targets as Layer<Registry>>::max_level_hint);
        match (own, limit) {
            (Some(own), Some(limit)) => Some(own.min(limit)),
            (own, limit) => own.or(limit),
        }
    }
}

/// Out of line: most processes have no directives.
#[cold]
#[inline(never)]
fn would_enable(targets: &Targets, metadata: &Metadata<'_>) -> bool {
    targets.would_enable(metadata.target(), metadata.level())
}

fn read() -> Option<Targets> {
    let given = process::variable(VARIABLE)?;
    let text = given.to_string_lossy();
    match text.parse() {
        Ok(targets) => Some(targets),
        Err(e) => {
            process::complain(&format!(
                "atrace: {VARIABLE}={text}: {e}: nothing is filtered; write for example info,sqlx=off\n"
            ));
            None
        }
    }
}
