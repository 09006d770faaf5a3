//! Tests Perfetto's own service on a busy machine. This is a separate test program, because its load would disturb
//! other tests.
#![cfg(not(no_tracing))]
#![expect(unsafe_code, reason = "programs that end as C programs do")]

mod load;

use atrace::perfetto;
use atrace_real_service::{Setup, is_program, place};

/// Tests programs that end at once, while other processes use all processors. The events in the trace and the events
/// that are counted as lost are together exactly the events that were written.
#[test]
fn on_a_busy_machine_every_event_is_recorded_or_counted() {
    const TEST: &str = "on_a_busy_machine_every_event_is_recorded_or_counted";
    if is_program(TEST) {
        let number = std::env::var("NUMBER").unwrap().parse().unwrap();
        load::write_all(number, || {
            let lost = perfetto::status().lost();
            if lost > 0 {
                std::fs::write(place(&format!("lost-{}", std::process::id())), lost.to_string()).unwrap();
            }
        });
        // SAFETY: no preconditions; ends this process.
        unsafe { libc::_exit(0) };
    }
    let Some(setup) = Setup::start(TEST) else { return };
    let session = setup.session();
    let written = load::all(|number| {
        let status = setup.program().env("NUMBER", number.to_string()).status().unwrap();
        assert!(status.success(), "{number}: {status}");
        load::events(number)
    });
    let trace = session.stop();
    let lost = std::fs::read_dir(setup.directory()).unwrap().flatten().filter_map(|entry| {
        let is_lost = entry.file_name().to_string_lossy().starts_with("lost-");
        is_lost.then(|| std::fs::read_to_string(entry.path()).unwrap().parse::<usize>().unwrap())
    });
    let (read, lost) = (trace.events().len(), lost.sum::<usize>());
    assert_eq!(read + lost, written, "{read} + {lost}");
    assert_eq!(trace.losses().found, 0);
}
