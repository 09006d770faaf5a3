//! Applies the filter in the environment variable `ATRACE_FILTER`, which a user can set without recompiling
//! the program.
//!
//! The filter is written in the language of [`Targets`]. The variable is read once, when the program makes the first
//! subscriber, layer or filter of this crate. A process with elevated rights ignores this variable, as it ignores all
//! variables of these crates.

use std::sync::OnceLock;

use atrace_sys::process;
use tracing_core::{LevelFilter, Metadata};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::Layer;
use tracing_subscriber::registry::Registry;

/// The name of the environment variable with the filter.
const VARIABLE: &str = "ATRACE_FILTER";

static GIVEN: OnceLock<Option<Targets>> = OnceLock::new();

/// The directives of `ATRACE_FILTER`. If there are none, all spans and events pass.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Directives(Option<&'static Targets>);

impl Directives {
    /// Returns the directives of this process. If they can't be parsed, prints one line and returns none.
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

/// Returns whether the directives enable a callsite. This function is not inlined, because most processes
/// have no directives.
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
