//! Tests producers of another machine. A relay between such a producer and Perfetto's service forwards bytes, but no
//! descriptors.
//!
//! By default, a thread of the test takes the place of Perfetto's `traced_relay`. `ATRACE_TEST_RELAY` can name the real
//! relay: a program whose arguments are the address at which it listens and the address of the service, and which
//! prints `ready`.
#![cfg(not(no_tracing))]

use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use atrace::{Arg, AtraceTag, begin_scoped_event_args, perfetto};
use atrace_perfetto::proto::Writer;
use atrace_perfetto::socket::Socket;
use atrace_real_service::{Config, Losses, Session, Setup, Trace, WRONG, is_program, place, step, wait_for};

const TAG: AtraceTag = AtraceTag::App;
const THREADS: usize = 4;
/// The number of slices that a thread writes. All slices fit into the shared memory.
const SLICES: usize = 3000;

/// The process of Perfetto's relay, or `None` if a thread of this process is the relay. Dropping the `Relay` kills the
/// process.
struct Relay(Option<Child>);

impl Relay {
    fn start(socket: &Path, port: u16) -> Self {
        let Some(program) = std::env::var_os("ATRACE_TEST_RELAY") else {
            let listener = UnixListener::bind(socket).unwrap();
            std::thread::spawn(move || {
                listener.incoming().flatten().for_each(|producer| relay(producer, port))
            });
            return Self(None);
        };
        let mut command = Command::new(program);
        command.arg(socket).arg(format!("127.0.0.1:{port}")).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self(Some(child))
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Sends the producer's process id to the service, and then forwards the bytes of both sides.
fn relay(mut producer: UnixStream, port: u16) {
    let mut service = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let (pid, user) = atrace_sys::socket::peer(producer.as_raw_fd()).unwrap();
    let mut bytes = [0; 128];
    let mut frame = Writer::new(&mut bytes);
    frame.message(8, |identity| {
        identity.number(1, pid.into()).number(2, user.into()).bytes(3, b"another machine");
    });
    let frame = frame.finish().unwrap();
    service.write_all(&(frame.len() as u32).to_le_bytes()).unwrap();
    service.write_all(frame).unwrap();
    let (from, to) = (producer.try_clone().unwrap(), service.try_clone().unwrap());
    std::thread::spawn(move || {
        forward_until_descriptor(from, &to);
        let _ = to.shutdown(Shutdown::Both);
    });
    std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(len @ 1..) = service.read(&mut bytes) {
            if producer.write_all(&bytes[..len]).is_err() {
                break;
            }
        }
        let _ = producer.shutdown(Shutdown::Both);
    });
}

/// Forwards the bytes of a producer. Ends the connection if a descriptor arrives, as Perfetto's relay does.
fn forward_until_descriptor(from: UnixStream, mut to: impl Write) {
    let (from, mut bytes) = (Socket::new(from.into()), [0; 4096]);
    while from.wait(None) {
        match from.receive(&mut bytes) {
            Ok(Some((len, None))) if to.write_all(&bytes[..len]).is_ok() => {}
            Ok(None) => {}
            _ => return,
        }
    }
}

/// Does the work of the tested program: writes slices in threads that run until the test ends them.
fn write() {
    perfetto::connect();
    let barrier = std::sync::Barrier::new(THREADS);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            atrace_real_service::until("the test is done", || {
                place("exit").exists() || place("done").exists()
            });
            if place("exit").exists() {
                std::process::exit(0);
            }
        });
        for _ in 0..THREADS {
            scope.spawn(|| {
                for number in 0..SLICES {
                    let _slice = begin_scoped_event_args(TAG, "slice", &[Arg::Uint("number", number as u64)]);
                }
                if barrier.wait().is_leader() {
                    std::fs::write(place("state"), perfetto::status().to_string()).unwrap();
                    step(&place("written"));
                }
                wait_for(&place("done"));
            });
        }
    });
}

/// Runs the program of a test behind a relay until its events are written. After that, `end` ends the program
/// and the session.
fn traced(test: &'static str, end: impl FnOnce(&Setup, Child, Session) -> Trace) {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let Some(setup) = Setup::start_for_relays(test, Some(port)) else { return };
    let socket = setup.place("relay");
    let _relay = Relay::start(&socket, port);
    let session = Session::start(&setup.service, &Config { all_machines: true, ..Config::default() });
    let program = setup.program().env("PERFETTO_PRODUCER_SOCK_NAME", &socket).spawn().unwrap();
    wait_for(&setup.place("written"));
    let state = std::fs::read_to_string(setup.place("state")).unwrap();
    assert!(state.contains("connected, 1 sessions") && state.ends_with(", 0 events lost"), "{state}");
    let trace = end(&setup, program, session);
    let events = trace.events();
    assert_eq!((events.len(), trace.losses()), (2 * THREADS * SLICES, Losses::default()));
    let slices = "select count(*), sum(dur >= 0), count(distinct utid), count(distinct upid) from slice
        join thread_track on thread_track.id = track_id join thread using (utid)";
    if let Some(rows) = setup.rows(&trace, &[WRONG, slices]) {
        let all = THREADS * SLICES;
        assert_eq!(rows, ["[]".to_owned(), format!("[[{all},{all},{THREADS},1]]")]);
    }
}

#[test]
fn all_events_arrive() {
    const TEST: &str = "all_events_arrive";
    if is_program(TEST) {
        return write();
    }
    traced(TEST, |setup, mut program, session| {
        let trace = session.stop();
        step(&setup.place("done"));
        assert!(program.wait().unwrap().success());
        trace
    });
}

/// Tests that all events that were written before a flush are in the trace, although their chunks were open when the
/// program was killed.
#[test]
fn a_flush_saves_the_events_of_a_killed_program() {
    const TEST: &str = "a_flush_saves_the_events_of_a_killed_program";
    if is_program(TEST) {
        return write();
    }
    traced(TEST, |_, mut program, mut session| {
        session.flush();
        program.kill().unwrap();
        program.wait().unwrap();
        session.stop()
    });
}

/// Tests that all events that the threads have written are in the trace, although the program ended before the session.
#[test]
fn a_program_that_ends_sends_its_last_events() {
    const TEST: &str = "a_program_that_ends_sends_its_last_events";
    if is_program(TEST) {
        return write();
    }
    traced(TEST, |setup, mut program, session| {
        // Makes the program exit. Its threads end with the process.
        std::fs::write(setup.place("exit"), "").unwrap();
        assert!(program.wait().unwrap().success());
        session.stop()
    });
}
