//! Tests a program that uses only the crate `log`, whose records become events.

#[path = "../../atrace/tests/common/mod.rs"]
mod common;
#[allow(dead_code, unreachable_pub, reason = "this module is shared with the tests in `crates/real-service`")]
#[path = "../../crates/real-service/src/trace.rs"]
mod trace;

mod cases {
    use std::sync::Mutex;

    use crate::common::{self, case};
    use crate::trace::Trace;

    #[test]
    fn records_are_events_while_it_is_recorded() {
        let name = case!({
            atrace_subscriber::init_log().unwrap();
            assert!(atrace_subscriber::init_log().is_err());
            assert_eq!(log::max_level(), log::LevelFilter::Off);
            log::error!("before");
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("trace");
            let recording = atrace::perfetto::record_to(&path).unwrap();
            log::info!("{} records", 2);
            log::trace!(target: "sqlx", "second");
            recording.finish().unwrap();
            let events = Trace::open(&path).events();
            let names: Vec<_> = events.iter().map(|event| event.name.as_deref().unwrap()).collect();
            assert_eq!(names, [&b"2 records"[..], b"second"]);
            let target = ("log.target".to_owned(), "sqlx".to_owned());
            assert!(events[1].args.contains(&target), "{events:?}");
        });
        common::Place::file().run(&name);
    }

    /// Tests that the program's logger gets the same records, whether tracing is on or off.
    #[test]
    fn the_programs_logger_stays() {
        struct Own(Mutex<Vec<String>>);
        impl log::Log for &'static Own {
            fn enabled(&self, _: &log::Metadata<'_>) -> bool {
                true
            }
            fn log(&self, record: &log::Record<'_>) {
                self.0.lock().unwrap().push(record.args().to_string());
            }
            fn flush(&self) {}
        }
        static OWN: Own = Own(Mutex::new(Vec::new()));
        let name = case!({
            atrace_subscriber::init_log_beside(&OWN, log::LevelFilter::Warn).unwrap();
            assert!(atrace_subscriber::init_log_beside(&OWN, log::LevelFilter::Warn).is_err());
            let records = |when: &str| {
                log::warn!("warning {when}");
                log::debug!("more {when}");
            };
            assert_eq!(log::max_level(), log::LevelFilter::Warn);
            records("before");
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("trace");
            let recording = atrace::perfetto::record_to(&path).unwrap();
            assert_eq!(log::max_level(), log::LevelFilter::Trace);
            records("during");
            recording.finish().unwrap();
            common::until("it is off", || log::max_level() == log::LevelFilter::Warn);
            records("after");
            let events = Trace::open(&path).events();
            let names: Vec<_> = events.iter().map(|event| event.name.as_deref().unwrap()).collect();
            assert_eq!(names, [&b"warning during"[..], b"more during"]);
            assert_eq!(*OWN.0.lock().unwrap(), ["warning before", "warning during", "warning after"]);
        });
        common::Place::file().run(&name);
    }

    #[test]
    fn the_users_filter_knows_the_targets_of_records() {
        let name = case!({
            atrace_subscriber::init_log().unwrap();
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("trace");
            let recording = atrace::perfetto::record_to(&path).unwrap();
            for target in ["sqlx", "app"] {
                log::info!(target: target, "of {target}");
                log::debug!(target: target, "less important");
            }
            recording.finish().unwrap();
            let events = Trace::open(&path).events();
            let names: Vec<_> = events.iter().map(|event| event.name.as_deref().unwrap()).collect();
            assert_eq!(names, [&b"of app"[..]]);
        });
        let place = common::Place::file();
        let mut command = place.command(&name);
        common::run(command.env("ATRACE_FILTER", "info,sqlx=off"));
    }
}
