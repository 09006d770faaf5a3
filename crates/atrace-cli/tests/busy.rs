//! Tests `atrace run` on a busy machine. This is a separate test program, because its load would disturb other
//! tests.

#[path = "../../../atrace/tests/common/mod.rs"]
mod common;
mod here;
#[path = "../../real-service/tests/load/mod.rs"]
mod load;
#[allow(dead_code, unreachable_pub, reason = "this module is shared with the tests in `crates/real-service`")]
#[path = "../../real-service/src/trace.rs"]
mod trace;

#[allow(unsafe_code, reason = "processes fork, and end, as C programs")]
mod cases {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::process::CommandExt as _;

    use crate::common::case;
    use crate::here::{Here, USER, end};
    use crate::load;
    use crate::trace::Trace;

    /// Tests programs that end at once, while other processes use all processors. The number of events in the trace
    /// plus the number of events that are reported as lost must be the number of written events.
    #[test]
    fn on_a_busy_machine_every_event_is_recorded() {
        let name = case!({
            let number = std::env::var("NUMBER").unwrap().parse().unwrap();
            load::write_all(number, || ());
            // SAFETY: no preconditions. The process ends without cleanup on purpose.
            unsafe { libc::_exit(0) };
        });
        let here = Here::new();
        fs::create_dir(here.path("place")).unwrap();
        fs::set_permissions(here.path("place"), fs::Permissions::from_mode(0o777)).unwrap();
        let out_of = |number: usize| here.path("place").join(format!("out{number}"));
        let run = |number: usize| {
            let out = out_of(number);
            let mut command = here.atrace(&name);
            command.args(["run", "-o"]).arg(&out).arg("--").arg(here.path("program"));
            command.args([&name, "--exact", "--nocapture", "--test-threads=1"]);
            command.env("NUMBER", number.to_string());
            // SAFETY: no preconditions.
            if unsafe { libc::geteuid() } == 0 {
                command.uid(USER).gid(USER);
            }
            let ran = end(&mut command);
            assert!(ran.status.success(), "{number}: {ran:?}");
            let (read, lost) = ran.told();
            let found = Trace::open(&out).events().len() as u64;
            assert_eq!((read, read + lost), (found, load::events(number) as u64), "{number}: {ran:?}");
            fs::remove_file(&out).unwrap();
            lost as usize
        };
        // A program that gets no processor for seconds connects too late, and loses its first events. One of three runs
        // must lose no event.
        let lost = load::all(|number| (0..3).map(|_| run(number)).find(|lost| *lost == 0).unwrap_or(1));
        assert_eq!(lost, 0);
    }
}
