//! Perfetto's own SDK as a producer of this workspace's service. The SDK offers no memory, and spreads packets over
//! several chunks.
#![cfg(not(no_tracing))]

use std::fs::File;
use std::io::Write as _;
use std::os::unix::net::UnixListener;
use std::process::Command;

use atrace_cli::service::{Keep, Service};
use atrace_real_service::{Losses, Trace, processed, program};

#[test]
fn perfettos_sdk_is_recorded_by_this_service() {
    const EVENTS: usize = 2000;
    let Some(program) = program() else {
        // Not `eprintln!`, whose output libtest hides.
        let _ = writeln!(std::io::stderr(), "skipped: needs the feature `real`");
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let (socket, path) = (directory.path().join("socket"), directory.path().join("trace"));
    let listener = UnixListener::bind(&socket).unwrap();
    let keep = Keep::File { file: File::create(&path).unwrap(), max: None };
    let service = Service::start(listener, atrace_sys::process::user(), keep).unwrap();
    let mut sdk = Command::new(program);
    sdk.args(["produce", &EVENTS.to_string()]).env("PERFETTO_PRODUCER_SOCK_NAME", &socket);
    let mut sdk = sdk.spawn().unwrap();
    while service.events() < 2 * EVENTS as u64 {
        assert_eq!(sdk.try_wait().unwrap(), None, "the program ended");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    sdk.kill().unwrap();
    sdk.wait().unwrap();
    let report = service.finish();
    assert_eq!(
        (report.counts.producers, report.counts.losses, report.counts.invalid),
        (1, 0, 0),
        "{report:?}"
    );
    assert_eq!(report.cut_off, []);
    assert_eq!(report.counts.events, 2 * EVENTS as u64);
    assert!(report.counts.patches > 0, "nothing was mended: {report:?}");
    let trace = Trace::open(&path);
    assert_eq!((trace.events().len(), trace.losses()), (2 * EVENTS, Losses::default()));
    let statements = [
        "select name, value from stats where severity in ('error', 'data_loss') and value > 0",
        "select count(*) from slice where name = 'sdk slice' and dur >= 0",
        "select count(*) from slice join args using (arg_set_id) where flat_key = 'debug.text' and length(string_value) = 20000",
        "select count(*) from slice join args using (arg_set_id) where flat_key = 'debug.number'",
    ];
    if let Some(answers) = processed(&path, &statements) {
        let rows: Vec<_> = answers.iter().map(|it| it.split_once("\"rows\":").unwrap().1).collect();
        assert_eq!(rows, ["[]}", "[[2000]]}", "[[20]]}", "[[1980]]}"]);
    }
}
