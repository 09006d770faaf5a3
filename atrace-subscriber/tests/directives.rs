//! Tests `ATRACE_FILTER`, a filter of spans and events that the user can set without changing the program.

mod common;

use atrace_subscriber::AtraceSubscriber;
use common::{Role, case, each_role, end_of, install, install_filtered, role, until};
use tracing::level_filters::LevelFilter;
use tracing::{Dispatch, Level, debug, enabled, info, info_span, warn};

/// Writes spans and events of several targets and levels.
fn write_events() {
    for round in 0..2 {
        info_span!(target: "sqlx::query", "query", round).in_scope(|| info!(target: "sqlx", "row"));
        info_span!("request", round).in_scope(|| debug!("detail"));
        info_span!(target: "sqlx", "no fields").in_scope(|| warn!("late"));
    }
}

/// Runs the test case in each `Role` with this filter. Calls `look` with the role, the messages and the output.
fn in_each_role(case: &str, filter: &str, look: impl Fn(Role, Vec<String>, String) + Sync) {
    each_role(case, |role, place| {
        let place = place.on();
        let mut command = place.command(case, role);
        command.env("ATRACE_FILTER", filter);
        let (succeeded, output) = end_of(command.spawn().unwrap());
        assert!(succeeded, "{role:?}: {output}");
        look(role, place.texts(), output);
    });
}

const LEFT: [&str; 4] = ["B|request, round = 0", "E", "I|late", "B|request, round = 1"];

#[test]
fn what_is_filtered_is_not_written() {
    let name = case!({
        install!();
        write_events();
    });
    in_each_role(&name, "info,sqlx=off", |role, texts, _| {
        assert_eq!(texts, [&LEFT[..], &["E", "I|late"]].concat(), "{role:?}");
    });
}

/// Tests that `tracing` caches callsites and the maximum level as if the program did not have the callsites that the
/// filter rejects.
#[test]
fn what_is_filtered_is_not_asked_for_again() {
    let name = case!({
        install_filtered();
        if role() == Role::Aosp {
            return; // This filter answers for the whole stack.
        }
        until("the caches follow", || enabled!(Level::INFO) && LevelFilter::current() == LevelFilter::INFO);
        write_events();
        assert!(!enabled!(target: "sqlx", Level::ERROR) && !enabled!(Level::DEBUG) && enabled!(Level::INFO));
        assert!(info_span!(target: "sqlx", "query").is_disabled());
    });
    in_each_role(&name, "info,sqlx=off", |role, texts, _| {
        if role != Role::Aosp {
            assert_eq!(texts, [&LEFT[..], &["E", "I|late"]].concat(), "{role:?}");
        }
    });
}

#[test]
fn a_wrong_filter_is_one_line_and_filters_nothing() {
    let name = case!({
        install!();
        drop(Dispatch::new(AtraceSubscriber::default())); // A second subscriber does not read the variable again.
        info!("written");
    });
    in_each_role(&name, "info,sqlx=loud", |role, texts, output| {
        assert_eq!(texts, ["I|written"], "{role:?}");
        let lines: Vec<_> = output.lines().filter(|line| line.contains("ATRACE_FILTER")).collect();
        let reason = "loud".parse::<LevelFilter>().unwrap_err();
        let expected = format!(
            "atrace: ATRACE_FILTER=info,sqlx=loud: {reason}: nothing is filtered; write for example info,sqlx=off"
        );
        assert_eq!(lines, [expected], "{role:?}");
    });
}
