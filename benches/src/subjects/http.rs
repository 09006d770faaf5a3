//! The HTTP server that threads and tasks ask, in a process of its own, and the exchange with it.
//!
//! The server answers `GET /<delay>/<number>` after that many milliseconds with that number, so whoever asks knows that
//! the answer is to *this* question. It knows its one client: anything else that it is asked closes the connection.
//!
//! - The server ends when its stdin does, which is when whoever started it ends. When it is
//!   [adopted](crate::harness::child::adopt), the kernel also kills it then.
//! - A connection carries one question. The client [resets](reset) it after the answer: at ten thousand a second, closing
//!   would leave all ports waiting for stragglers (`TIME_WAIT`) in three seconds.
//! - The server never closes first after an answer: an early end of the stream would wake an asynchronous client once
//!   more, or not, by chance.

use std::fmt;
use std::io::{self, BufRead, BufReader, Cursor, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;

/// What the line begins with that says where the server listens.
const READY: &str = "atrace-benches http: ";

/// How many connections are served at a time: each client's, and that which it has just left.
const WORKERS: usize = 4;

/// A server in a process of its own, which ends when this is dropped.
#[derive(Debug)]
pub struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    /// Starts a server: `command` has to be a program that calls [`serve`].
    ///
    /// # Errors
    ///
    /// When it can't be started, or ends.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut said = BufReader::new(child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?);
        let mut line = String::new();
        while said.read_line(&mut line)? > 0 {
            if let Some((_, address)) = line.split_once(READY) {
                let address = address.trim().parse().map_err(io::Error::other)?;
                return Ok(Self { child, address });
            }
            line.clear();
        }
        drop(child.stdin.take());
        Err(io::Error::other(format!("the HTTP server ended with {}", child.wait()?)))
    }

    /// Returns where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It has nothing to finish.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Is the server: listens on a port of the loopback device, says on stdout which, and serves until stdin ends.
///
/// # Errors
///
/// What the system answered.
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

/// Serves one connection after the other.
fn work(listener: &TcpListener) {
    // A delay is not to be 50 µs longer so that others can be served at once.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    loop {
        match listener.accept() {
            // A question that can't be read or answered is seen by the client, whose connection is closed.
            Ok((stream, _)) => drop(talk(&stream)),
            // Out of descriptors or memory: others give some back.
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Answers the question of one connection, and waits until the client has left.
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

/// The delay and the number that a question asks for.
fn asked(question: &[u8]) -> Option<(u64, u64)> {
    let path = std::str::from_utf8(question).ok()?.strip_prefix("GET /")?;
    let (delay, number) = path.split_once(" HTTP/1.1\r\n")?.0.split_once('/')?;
    Some((delay.parse().ok()?, number.parse().ok()?))
}

/// A short text that is not on the heap.
type Text = Cursor<[u8; 128]>;

fn text(args: fmt::Arguments<'_>) -> Text {
    let mut text = Text::new([0; 128]);
    // It fits, with the longest numbers.
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

/// One question and its answer, without the way they travel: the same for clients that block and others. Allocates
/// nothing.
///
/// Write the [question](Self::question), then read into the [room](Self::room) and say how much that was, until the
/// answer is complete.
#[derive(Debug)]
pub struct Exchange {
    question: Text,
    expected: Text,
    answer: [u8; 128],
    filled: usize,
}

impl Exchange {
    /// Begins to ask for `number`, to be answered after `delay` milliseconds.
    pub fn new(delay: u32, number: u64) -> Self {
        let question = text(format_args!("GET /{delay}/{number} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
        Self { question, expected: answer(number), answer: [0; 128], filled: 0 }
    }

    /// What is to be sent.
    pub fn question(&self) -> &[u8] {
        bytes(&self.question)
    }

    /// Where to read the next part of the answer to.
    pub fn room(&mut self) -> &mut [u8] {
        &mut self.answer[self.filled..]
    }

    /// Takes the next `read` bytes that were read, and tells whether the answer is complete.
    ///
    /// # Errors
    ///
    /// When it is another than it should be.
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

/// Closes a connection, when it is dropped, without leaving anything of it behind. What was not delivered is lost.
///
/// # Errors
///
/// What the system answered.
pub fn reset(stream: impl AsFd) -> io::Result<()> {
    Ok(set_socket_linger(stream, Some(Duration::ZERO))?)
}

/// Asks one question on a connection of its own, and waits for the right answer.
///
/// # Errors
///
/// When there is none, or another.
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
