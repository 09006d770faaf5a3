//! The HTTP server to which the threads and tasks of the bench `threads` send requests, and the client's side of a
//! request. The server runs in a process of its own.
//!
//! The server answers `GET /<delay>/<number>` after `<delay>` milliseconds with `<number>`, so a client can check that
//! the answer belongs to its request. The server only supports such requests. For any other request, it closes the
//! connection.
//!
//! - The server ends when its stdin is closed, which happens when its parent ends. If the server is started [in a
//!   mode](crate::harness::child::in_mode), the kernel also kills the server when its parent ends.
//! - A connection carries one request. The client [resets](reset) the connection after the answer, so that the kernel
//!   keeps no state of it. At ten thousand connections a second, normally closed connections (in the state `TIME_WAIT`)
//!   would occupy all ports within three seconds.
//! - After an answer, the server waits until the client has closed the connection. If the server closed the connection
//!   first, the end of the stream would sometimes wake an asynchronous client once more.

use std::fmt;
use std::io::{self, Cursor, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::process::Command;
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;

use crate::harness::child::Helper;

/// The prefix of the line on stdout with the server's address.
const READY: &str = "atrace-benches http: ";

/// The number of connections that are served at the same time. Each of the two clients may have its current connection,
/// and its previous connection if the server has not noticed its end yet.
const WORKERS: usize = 4;

/// A server in a process of its own. Dropping this value ends the process.
#[derive(Debug)]
pub struct Server {
    _process: Helper,
    address: SocketAddr,
}

impl Server {
    /// Starts a server by running `command`, whose program must call [`serve`].
    ///
    /// # Errors
    ///
    /// Returns an error if the server can't be started, or if it ends before it has printed its address.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        let mut process = Helper::start(command)?;
        match process.hear(READY)? {
            Some(address) => {
                Ok(Self { address: address.parse().map_err(io::Error::other)?, _process: process })
            }
            None => Err(io::Error::other(format!("the HTTP server ended with {}", process.end()?))),
        }
    }

    /// Returns the server's address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Does the work of the server's process: listens on a port of the loopback device, prints the address on stdout, and
/// serves until stdin is closed.
///
/// # Errors
///
/// Returns the system's error.
pub fn serve() -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    for _ in 0..WORKERS {
        let listener = listener.try_clone()?;
        std::thread::Builder::new().spawn(move || work(&listener))?;
    }
    let mut out = io::stdout();
    writeln!(out, "{READY}{address}")?;
    out.flush()?;
    io::copy(&mut io::stdin(), &mut io::sink()).map(drop)
}

/// Accepts connections and serves them one after the other, forever.
fn work(listener: &TcpListener) {
    // With the default timer slack, a delay would be up to 50 µs longer.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    loop {
        match listener.accept() {
            // An error of the connection is ignored here. The client notices it, because the connection is closed.
            Ok((stream, _)) => drop(talk(&stream)),
            // The process is out of descriptors or memory. Other threads will release some.
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Answers the request on a connection, and waits until the client has closed the connection.
fn talk(mut stream: &TcpStream) -> io::Result<()> {
    let mut buffer = [0; 96];
    let mut filled = 0;
    while !buffer[..filled].ends_with(b"\r\n\r\n") {
        match stream.read(&mut buffer[filled..])? {
            0 => return Ok(()),
            read => filled += read,
        }
    }
    let Some((delay, number)) = asked(&buffer[..filled]) else { return Ok(()) };
    if delay > 0 {
        std::thread::sleep(Duration::from_millis(delay));
    }
    stream.write_all(bytes(&answer(number)))?;
    stream.read(&mut buffer).map(drop)
}

/// Returns the delay and the number from the text of a request, or `None` if the request is of another form.
fn asked(question: &[u8]) -> Option<(u64, u64)> {
    let path = std::str::from_utf8(question).ok()?.strip_prefix("GET /")?;
    let (delay, number) = path.split_once(" HTTP/1.1\r\n")?.0.split_once('/')?;
    Some((delay.parse().ok()?, number.parse().ok()?))
}

/// A short text on the stack.
type Text = Cursor<[u8; 128]>;

fn text(args: fmt::Arguments<'_>) -> Text {
    let mut text = Text::new([0; 128]);
    // The text fits, even with the longest numbers.
    let _ = text.write_fmt(args);
    text
}

fn bytes(text: &Text) -> &[u8] {
    &text.get_ref()[..usize::try_from(text.position()).unwrap_or(0)]
}

fn answer(number: u64) -> Text {
    let digits = number.checked_ilog10().unwrap_or(0) + 1;
    text(format_args!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n{number}\n",
        digits + 1
    ))
}

/// A request and its answer. The type does no input or output itself, so blocking and asynchronous clients can use it.
/// It allocates nothing.
///
/// To use it, write the [request](Self::question) to the connection. Then repeatedly read into the
/// [buffer](Self::room), and pass the number of bytes to [`received`](Self::received), until the answer is complete.
#[derive(Debug)]
pub struct Exchange {
    question: Text,
    expected: Text,
    answer: [u8; 128],
    filled: usize,
}

impl Exchange {
    /// Makes a request that the server answers with `number` after `delay` milliseconds.
    pub fn new(delay: u32, number: u64) -> Self {
        let question = text(format_args!("GET /{delay}/{number} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
        Self { question, expected: answer(number), answer: [0; 128], filled: 0 }
    }

    /// Returns the bytes of the request.
    pub fn question(&self) -> &[u8] {
        bytes(&self.question)
    }

    /// Returns the buffer for the next part of the answer.
    pub fn room(&mut self) -> &mut [u8] {
        &mut self.answer[self.filled..]
    }

    /// Checks the next part of the answer: the `read` bytes that were just read into the [buffer](Self::room). Returns
    /// whether the answer is complete.
    ///
    /// # Errors
    ///
    /// Returns an error if the answer is wrong, or if `read` is 0, which means that the connection was closed.
    pub fn received(&mut self, read: usize) -> io::Result<bool> {
        if read == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the answer ended too early"));
        }
        self.filled += read;
        let (answer, expected) = (&self.answer[..self.filled], bytes(&self.expected));
        if !expected.starts_with(answer) {
            let answer = String::from_utf8_lossy(answer);
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("the answer is {answer:?}")));
        }
        Ok(answer.len() == expected.len())
    }
}

/// Sets an option of a connection so that it is closed with a reset when it is dropped, and the kernel keeps no state
/// of it. Data that is not delivered yet is then lost.
///
/// # Errors
///
/// Returns the system's error.
pub fn reset(stream: impl AsFd) -> io::Result<()> {
    Ok(set_socket_linger(stream, Some(Duration::ZERO))?)
}

/// Sends one request on a new connection, and waits for the right answer.
///
/// # Errors
///
/// Returns an error if there is no answer, or if the answer is wrong.
pub fn get(address: SocketAddr, delay: u32, number: u64) -> io::Result<()> {
    let mut exchange = Exchange::new(delay, number);
    let mut stream = TcpStream::connect(address)?;
    reset(&stream)?;
    stream.write_all(exchange.question())?;
    loop {
        let read = stream.read(exchange.room())?;
        if exchange.received(read)? {
            return Ok(());
        }
    }
}
