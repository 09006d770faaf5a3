//! Tests that the HTTP server of the bench `threads` answers its client, leaves no connections behind, and ends with
//! the process that started it.
//!
//! This test does not use libtest, because the binary starts itself as the server.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use atrace_benches::subjects::http::{Exchange, Server, get, serve};

/// The environment variable that is set in the server's process.
const SERVER: &str = "ATRACE_BENCHES_TEST_SERVER";

fn main() {
    if std::env::var_os(SERVER).is_some() {
        return serve().unwrap();
    }
    answers_after_the_delay_and_leaves_no_connection();
    another_question_closes_the_connection();
    ends_when_its_starter_does_and_is_killed_when_dropped();
    the_right_answer_in_any_pieces_is_taken_and_no_other();
    the_longest_question_fits();
    println!("http: the server answers its client, and ends");
}

fn command() -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(SERVER, "1");
    command
}

fn answers_after_the_delay_and_leaves_no_connection() {
    let server = Server::start(&mut command()).unwrap();
    for (delay, number) in [(0, 0), (0, 9), (5, 10), (20, u64::MAX)] {
        let start = Instant::now();
        get(server.address(), delay, number).unwrap();
        assert!(start.elapsed() >= Duration::from_millis(delay.into()));
    }
    (0..200).for_each(|number| get(server.address(), 0, number).unwrap());
    let port = format!(":{:04X} ", server.address().port());
    let left = std::fs::read_to_string("/proc/net/tcp").unwrap();
    // 06 is the state TIME_WAIT in `/proc/net/tcp`.
    assert!(!left.lines().any(|line| line.contains(&port) && line.contains(" 06 ")), "{left}");
}

fn another_question_closes_the_connection() {
    let server = Server::start(&mut command()).unwrap();
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.write_all(b"GET /nowhere HTTP/1.1\r\n\r\n").unwrap();
    assert_eq!(stream.read(&mut [0; 8]).unwrap(), 0);
}

fn ends_when_its_starter_does_and_is_killed_when_dropped() {
    let mut server = command().stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    drop(server.stdin.take());
    assert!(server.wait().unwrap().success());

    let server = Server::start(&mut command()).unwrap();
    let address = server.address();
    drop(server);
    assert!(get(address, 0, 1).is_err());
}

/// Receives this answer to a request for the number 42, in pieces of `piece` bytes. Returns whether the answer is
/// complete, or the error.
fn received(answer: &[u8], piece: usize) -> std::io::Result<bool> {
    let mut exchange = Exchange::new(0, 42);
    let mut complete = false;
    for piece in answer.chunks(piece) {
        exchange.room()[..piece.len()].copy_from_slice(piece);
        complete = exchange.received(piece.len())?;
    }
    Ok(complete)
}

fn the_right_answer_in_any_pieces_is_taken_and_no_other() {
    const RIGHT: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 3\r\n\r\n42\n";
    for piece in 1..=RIGHT.len() {
        assert!(received(RIGHT.as_bytes(), piece).unwrap(), "{piece}");
    }
    assert!(!received(&RIGHT.as_bytes()[..RIGHT.len() - 1], 7).unwrap());
    for (right, wrong) in [("42", "43"), ("h: 3", "h: 4"), ("200", "404"), ("42\n", "42\n\n")] {
        let e = received(RIGHT.replace(right, wrong).as_bytes(), 128).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidData, "{wrong}: {e}");
    }
    assert_eq!(Exchange::new(0, 1).received(0).unwrap_err().kind(), ErrorKind::UnexpectedEof);
}

fn the_longest_question_fits() {
    let exchange = Exchange::new(u32::MAX, u64::MAX);
    assert!(exchange.question().ends_with(b"/18446744073709551615 HTTP/1.1\r\nHost: localhost\r\n\r\n"));
}
