//! Tests lives of spans in a trace that Perfetto's own service writes into a file during the session, so that a
//! reader sorts events before it has all of them.
#![cfg(not(no_tracing))]
#![allow(unsafe_code, reason = "the program kills itself as a C program would")]

use std::future::pending;
use std::os::unix::process::ExitStatusExt as _;
use std::time::{Duration, Instant};

use atrace::perfetto;
use atrace_real_service::{Config, Session, Setup, WRONG, is_program, place};
use atrace_subscriber::AtraceSubscriber;
use tokio::time::sleep;
use tracing::{Instrument as _, info_span};

fn seconds() -> u64 {
    if std::env::var_os("ATRACE_LONG_TESTS").is_some() { 60 } else { 5 }
}

/// Writes the spans of requests that last between 1 and 2,000 ms, each with a query, until the time of the test is
/// over. Returns the number of requests.
async fn requests(task: u64) -> u32 {
    let start = Instant::now();
    let mut number = 0;
    while start.elapsed() < Duration::from_secs(seconds()) {
        let time = Duration::from_millis(1 + [2, 9, 150, 1999][number as usize % 4] * (task % 3 + 1) / 3);
        let query = async move { sleep(time / 2).await }.instrument(info_span!("query"));
        async move {
            query.await;
            sleep(time / 2).await;
        }
        .instrument(info_span!("request", task, number))
        .await;
        number += 1;
    }
    number
}

fn program() {
    perfetto::connect();
    tracing::subscriber::set_global_default(AtraceSubscriber::default()).unwrap();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    runtime.block_on(async {
        tokio::spawn(pending::<()>().instrument(info_span!("alive all the time")));
        let tasks: Vec<_> = (0..8).map(|task| tokio::spawn(requests(task))).collect();
        let mut count = 0;
        for task in tasks {
            count += task.await.unwrap();
        }
        std::fs::write(place("count"), count.to_string()).unwrap();
        tokio::spawn(pending::<()>().instrument(info_span!("polled once")));
        // Waits for the life of the span `polled once` to begin, which takes up to 100 ms, and longer on a busy
        // machine.
        sleep(Duration::from_secs(3)).await;
    });
    // SAFETY: the arguments are numbers; ends this process.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
}

#[test]
fn lives_are_in_a_streamed_trace_of_a_killed_process() {
    const TEST: &str = "lives_are_in_a_streamed_trace_of_a_killed_process";
    if is_program(TEST) {
        return program();
    }
    let Some(setup) = Setup::start(TEST) else { return };
    let config = Config { file: Some(setup.place("streamed")), ..Config::default() };
    let session = Session::start(&setup.service, &config);
    assert_eq!(setup.program().status().unwrap().signal(), Some(libc::SIGKILL));
    let trace = session.stop();
    assert_eq!(trace.losses(), Default::default());
    let lives = "select s.name, count(), sum(s.dur = -1) from slice s join process_track t on t.id = s.track_id group by 1 order by 1";
    let Some(answers) = setup.rows(&trace, &[WRONG, lives]) else { return };
    assert_eq!(answers[0], "[]");
    let count = std::fs::read_to_string(setup.place("count")).unwrap();
    let expected = format!(
        r#"[["alive all the time",1,1],["polled once",1,1],["query",{count},0],["request",{count},0]]"#
    );
    assert_eq!(answers[1], expected);
}
