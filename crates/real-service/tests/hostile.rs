//! Tests a program that connects to a hostile service, which sends garbage, does not answer, or shares memory that can
//! shrink. The program must continue to run, and report the state of its connection.
#![cfg(not(no_tracing))]

use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use atrace::{AtraceTag, atrace_begin, atrace_end, perfetto};
use atrace_perfetto::proto::Writer;
use atrace_perfetto::socket::Socket;

/// How long the program may take to report the awaited state. Even on a busy machine, the program does not take so
/// long.
const PATIENCE: Duration = Duration::from_secs(600);

/// Does the work of the tested program: connects, and traces until the connection state contains the text `awaited`,
/// and there is neither a connection nor a session. (Arbitrary bytes may be a correct answer, so there can be a
/// connection and a session for a moment.)
fn trace(awaited: &str) {
    perfetto::connect();
    let start = Instant::now();
    loop {
        atrace_begin(AtraceTag::App, "slice");
        atrace_end(AtraceTag::App);
        let status = perfetto::status();
        let is_over =
            status.to_string().contains(awaited) && !status.is_connected() && status.sessions() == 0;
        if is_over && start.elapsed() >= Duration::from_millis(300) {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "{status}");
    }
}

/// Runs this test as a program whose service handles each connection with `serve`. The program ends when its connection
/// state contains the text `awaited`. Returns false in the process of the program itself.
fn program(test: &str, awaited: &str, serve: impl Fn(UnixStream) + Send + 'static) -> bool {
    if std::env::var_os("ATRACE_TEST_PROGRAM").is_some() {
        trace(awaited);
        return false;
    }
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("service");
    let listener = UnixListener::bind(&socket).unwrap();
    let connections = Arc::new(AtomicU32::new(0));
    let counted = connections.clone();
    std::thread::spawn(move || {
        listener.incoming().flatten().for_each(|stream| {
            serve(stream);
            counted.fetch_add(1, Ordering::Relaxed);
        });
    });
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture"]).env("ATRACE_TEST_PROGRAM", test);
    command.env("ATRACE_BACKEND", "perfetto").env("PERFETTO_PRODUCER_SOCK_NAME", &socket);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{output:?}");
    assert!(connections.load(Ordering::Relaxed) > 0, "no connection was served");
    true
}

fn answer(stream: &mut UnixStream, body: impl FnOnce(&mut Writer<'_>)) {
    let mut bytes = [0; 1024];
    let mut writer = Writer::new(&mut bytes);
    body(&mut writer);
    let frame = writer.finish().unwrap();
    let _ = stream.write_all(&(frame.len() as u32).to_le_bytes());
    let _ = stream.write_all(frame);
}

/// Replies as a service that has these methods.
fn bound(stream: &mut UnixStream, methods: &[&str]) {
    answer(stream, |frame| {
        frame.number(2, 1).message(4, |reply| {
            reply.number(1, 1).number(2, 1);
            for (number, name) in (1..).zip(methods) {
                reply.message(3, |method| {
                    method.number(1, number).bytes(2, name.as_bytes());
                });
            }
        });
    });
}

const METHODS: [&str; 5] =
    ["InitializeConnection", "RegisterDataSource", "CommitData", "GetAsyncCommand", "RegisterTraceWriter"];

#[test]
fn garbage() {
    program("garbage", "sent an invalid message", |mut stream| {
        let _ = stream.write_all(&[0xff; 4096]);
        let _ = stream.read(&mut [0; 16]);
    });
}

#[test]
fn every_byte_of_what_a_service_says_may_be_wrong() {
    let seed = std::sync::atomic::AtomicU64::new(1);
    program("every_byte_of_what_a_service_says_may_be_wrong", "", move |mut stream| {
        let mut seed = seed.fetch_add(0x9e37_79b9_7f4a_7c15, std::sync::atomic::Ordering::Relaxed);
        bound(&mut stream, &METHODS);
        for _ in 0..50 {
            let mut bytes = [0_u8; 40];
            for byte in &mut bytes {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                *byte = (seed >> 56) as u8;
            }
            // Replies to the requests with arbitrary content.
            answer(&mut stream, |frame| {
                frame.number(2, 1 + seed % 6).message(6, |reply| {
                    reply.number(1, 1).number(2, 1).bytes(3, &bytes[..(seed % 40) as usize]);
                });
            });
        }
        let _ = stream.read(&mut [0; 16]);
    });
}

#[test]
fn a_service_that_hangs() {
    program("a_service_that_hangs", "connecting", |stream| {
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_secs(60));
            drop(stream);
        });
    });
}

#[test]
fn a_service_that_knows_too_little() {
    program("a_service_that_knows_too_little", "a request that is needed", |mut stream| {
        bound(&mut stream, &METHODS[..2]);
        let _ = stream.read(&mut [0; 16]);
    });
}

/// Tests a service that refuses the program's memory and sends memory of its own, which the service could truncate. The
/// program offers its own memory at once, and after the refusal does not connect again for a while.
#[test]
fn memory_that_can_shrink() {
    let (start, connections) = (Instant::now(), Arc::new(AtomicU32::new(0)));
    let counted = connections.clone();
    let was_run = program("memory_that_can_shrink", "can't share memory", move |mut stream| {
        counted.fetch_add(1, Ordering::Relaxed);
        bound(&mut stream, &METHODS);
        let ours_is_refused = |request: u64, stream: &mut UnixStream| {
            answer(stream, |frame| {
                frame.number(2, request).message(6, |reply| {
                    reply.number(1, 1).bytes(3, b"");
                });
            });
        };
        ours_is_refused(2, &mut stream);
        // Sends the command `SetupTracing`, with a file as the service's memory.
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        let mut bytes = [0; 64];
        let mut writer = Writer::new(&mut bytes);
        writer.number(2, 3).message(6, |reply| {
            reply.number(1, 1).number(2, 1).bytes(3, b"\x1a\x02\x08\x08");
        });
        let frame = writer.finish().unwrap();
        let whole = [&(frame.len() as u32).to_le_bytes()[..], frame].concat();
        let socket = Socket::new(stream.try_clone().unwrap().into());
        assert!(socket.send(&whole, Some(file.as_raw_fd())));
        let mut sink = Vec::new();
        let _ = stream.read_to_end(&mut sink);
    });
    if was_run {
        // The program makes at most two connections each time, and then pauses for 100 ms.
        let most = 2 * (1 + start.elapsed().as_millis() / 100);
        let connections = connections.load(Ordering::Relaxed);
        assert!((2..=most).contains(&connections.into()), "{connections} of {most}");
    }
}
