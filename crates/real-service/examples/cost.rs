//! Measures the cost of an event through Perfetto's backend, and the cost of reading the clock, while a session is
//! open. Each line has the minimum and the median of 200 rounds.
//!
//! Run this example with `cargo run --release -p atrace-real-service --features real --example cost`.

use std::hint::black_box;
use std::process::Command;
use std::time::Instant;

use atrace::{Arg, AtraceTag, Name, perfetto};
use atrace_real_service::{Config, Service, Session};
use tracing::{info, info_span};

static NAME: Name = Name::new("abcdefghij");
const EVENTS: u32 = 2000;
const SOCKET: &str = "PERFETTO_PRODUCER_SOCK_NAME";

fn rounds(name: &str, body: impl Fn(u32)) {
    let mut best = f64::MAX;
    let mut all = Vec::new();
    for _ in 0..200 {
        let start = Instant::now();
        for number in 0..EVENTS {
            body(number);
        }
        let ns = start.elapsed().as_nanos() as f64 / f64::from(EVENTS);
        best = best.min(ns);
        all.push(ns);
        // Gives the reader time to keep up.
        std::thread::sleep(std::time::Duration::from_millis(3));
    }
    all.sort_by(f64::total_cmp);
    println!("{name:<28} {best:8.1} {:8.1}", all[all.len() / 2]);
}

/// Starts the service and a session, and measures in a child process, whose environment names the service.
fn main() {
    if std::env::var_os(SOCKET).is_some() {
        return measure();
    }
    let directory = tempfile::tempdir().expect("a directory");
    let Some(service) = Service::start(directory.path()) else { return };
    let session = Session::start(&service, &Config::default());
    let program = std::env::current_exe().expect("the program has a path");
    let status = Command::new(program).env(SOCKET, service.producers()).status().expect("the program starts");
    println!("{status}, {} packets", session.stop().packets());
}

fn measure() {
    perfetto::connect();
    let tag = AtraceTag::App;
    println!("{:<28} {:>8} {:>8}  ns, {}", "", "minimum", "median", perfetto::status());
    rounds("clock", |_| {
        black_box(atrace_perfetto::clock::now());
    });
    rounds("begin/10 + end, an event", |number| {
        if number % 2 == 0 {
            atrace::atrace_begin(tag, black_box("abcdefghij"))
        } else {
            atrace::atrace_end(tag)
        }
    });
    rounds("literal/10 + end, an event", |number| {
        if number % 2 == 0 { atrace::atrace_begin_args(tag, &NAME, &[]) } else { atrace::atrace_end(tag) }
    });
    rounds("literal, four arguments", |number| {
        let args = [Arg::Uint("number", number.into()), Arg::Str("text", "last"), Arg::Bool("yes", true)];
        atrace::atrace_instant_args(tag, &NAME, &[args[0], args[1], args[2], Arg::Float("f", 0.5)]);
    });
    rounds("instant/10", |_| atrace::atrace_instant(tag, black_box("abcdefghij")));
    rounds("instant/1000", |_| atrace::atrace_instant(tag, black_box(LONG)));
    rounds("counter", |number| atrace::atrace_int(tag, black_box("abcdefghij"), number as i32));
    rounds("async begin", |number| atrace::atrace_async_begin(tag, black_box("abcdefghij"), number as i32));
    rounds("instant_with", |_| {
        atrace::atrace_instant_args(
            tag,
            |writer: &mut atrace::NameWriter<'_>| writer.push_str(black_box("abcdefghij")),
            &[],
        )
    });
    let vector = vec![1, 2, 3, 4];
    tracing::subscriber::with_default(atrace_subscriber::AtraceSubscriber::default(), || {
        rounds("event", |_| info!("bench info event"));
        rounds("event, four fields", |_| {
            info!(arg1 = 123, arg2 = "argument", arg3 = ?vector, arg4 = "last", "bench info event");
        });
        rounds("span", |_| drop(info_span!("bench span").entered()));
        rounds("span, four fields", |_| {
            drop(
                info_span!("bench span", arg1 = 123, arg2 = "argument", arg3 = ?vector, arg4 = "last")
                    .entered(),
            );
        });
    });
    println!("{}", perfetto::status());
}

const LONG: &str = {
    const BYTES: [u8; 1000] = [b'x'; 1000];
    match str::from_utf8(&BYTES) {
        Ok(text) => text,
        Err(_) => "",
    }
};
