//! A small HTTP/1.1 server on this machine, in a process of its own, and the exchange with it.
//!
//! A workload that does input and output needs someone to talk to. The internet would be what is measured; a server in
//! the same process would be part of its threads, allocations and faults. So the bench starts itself once more as
//! [`Server`], which answers `GET /<delay>/<number>` after that many milliseconds with that number: whoever asks knows
//! that the answer is to *this* question ([`Exchange`]).
//!
//! The server ends with whoever started it, however that ends: it reads its stdin, which the system closes, and
//! [adopted](crate::measure::processes::adopt) it is killed by the kernel too.
//!
//! One connection is one question, as in the benchmark that this is from. At ten thousand a second that would leave all
//! ports waiting for stragglers (`TIME_WAIT`) in three seconds, so whoever has the whole answer [resets](reset) the
//! connection: then nothing of it is left on either side. The server keeps connections, as HTTP/1.1 has it, and closes
//! when the other has: an early end of the stream would wake an asynchronous client once more or not, by chance.

use std::fmt::Write as _;
use std::io::{self, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_linger;

/// What the line begins with that says where the server listens.
const READY: &str = "atrace-benches http: ";

/// How many connections are served at a time; others wait.
const WORKERS: usize = 4;

/// The longest delay, in milliseconds.
pub const LONGEST: u32 = 1_000;

/// A connection that says nothing for so long is closed: others wait for its thread.
const PATIENCE: Duration = Duration::from_secs(5);

/// The most bytes of a request.
const MOST: usize = 1_024;

/// A server in a process of its own, which ends when this is dropped.
#[derive(Debug)]
pub struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    /// Starts a server: `command` has to be a program that calls [`serve`].
    ///
    /// Of an [adopted](crate::measure::processes::adopt) command, the calling thread must live as long as the server.
    ///
    /// # Errors
    ///
    /// What the system answered, or that the program ended without listening.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let address = child.stdout.take().map(|stdout| listening(BufReader::new(stdout)));
        match address {
            Some(Ok(address)) => Ok(Self { child, address }),
            other => {
                drop(child.stdin.take());
                let status = child.wait()?;
                let why = other
                    .map_or_else(String::new, |r| r.err().map_or_else(String::new, |e| format!(": {e}")));
                Err(io::Error::other(format!("the HTTP server ended with {status}{why}")))
            }
        }
    }

    /// Returns where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the number of its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // It reads its stdin while others are served, so it ends at once; should it not, it must not be waited for.
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(2) {
            match self.child.try_wait() {
                Ok(None) => std::thread::sleep(Duration::from_millis(1)),
                _ => return,
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads where the server listens.
fn listening(mut stdout: impl io::BufRead) -> io::Result<SocketAddr> {
    let mut line = String::new();
    while stdout.read_line(&mut line)? > 0 {
        if let Some(address) = line.strip_prefix(READY) {
            return address.trim().parse().map_err(io::Error::other);
        }
        line.clear();
    }
    Err(io::Error::other("it did not say where it listens"))
}

/// Is the server: listens on a port of the loopback device, says on stdout which, and serves until stdin ends.
///
/// # Errors
///
/// What the system answered before there was a server.
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
            // What a client does wrong is its own matter, and what it closes is closed.
            Ok((stream, _)) => drop(connection(&stream)),
            // Out of descriptors or memory: others give some back.
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Answers what comes on one connection.
fn connection(stream: &TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    talk(stream, stream, std::thread::sleep)
}

/// Answers the requests of `input` on `output`, until it ends or asks for something else than there is.
fn talk(mut input: impl Read, mut output: impl Write, sleep: impl Fn(Duration)) -> io::Result<()> {
    let mut buffer = [0; MOST];
    let mut filled = 0;
    loop {
        let request = match parse(&buffer[..filled]) {
            Ok(Some(request)) => request,
            Ok(None) if filled < MOST => match input.read(&mut buffer[filled..]) {
                Ok(0) => return Ok(()),
                Ok(n) => {
                    filled += n;
                    continue;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            },
            Ok(None) => return answer(&mut output, "431 Request Header Fields Too Large", "", true),
            Err(status) => return answer(&mut output, status, "", true),
        };
        buffer.copy_within(request.length..filled, 0);
        filled -= request.length;
        if request.delay > 0 {
            sleep(Duration::from_millis(request.delay.into()));
        }
        let mut body = Text::<24>::new();
        let _ = writeln!(body, "{}", request.number);
        answer(&mut output, "200 OK", body.as_str(), request.close)?;
        if request.close {
            return Ok(());
        }
    }
}

fn answer(output: &mut impl Write, status: &str, body: &str, close: bool) -> io::Result<()> {
    let mut text = Text::<192>::new();
    let close = if close { "Connection: close\r\n" } else { "" };
    // It fits: status and body are from here.
    let _ = write!(
        text,
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\n{close}Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    output.write_all(text.as_str().as_bytes())
}

/// What is understood of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Request {
    delay: u32,
    number: u64,
    /// The other wants the connection to be closed then.
    close: bool,
    /// Of the request, in bytes.
    length: usize,
}

/// Reads a request; `None` while it is not complete, or the status that refuses it.
fn parse(bytes: &[u8]) -> Result<Option<Request>, &'static str> {
    const BAD: &str = "400 Bad Request";
    let mut headers = [httparse::EMPTY_HEADER; 16];
    let mut request = httparse::Request::new(&mut headers);
    let length = match request.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => return Err("431 Request Header Fields Too Large"),
        Err(_) => return Err(BAD),
    };
    if request.method != Some("GET") {
        return Err("405 Method Not Allowed");
    }
    let has = |name: &str| request.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
    if has("content-length").or(has("transfer-encoding")).is_some() {
        // There is nothing to be said beside what is asked, and what is not read would be taken for a request.
        return Err(BAD);
    }
    let close = request.version == Some(0)
        || has("connection").is_some_and(|header| header.value.eq_ignore_ascii_case(b"close"));
    let path = request.path.and_then(|path| path.strip_prefix('/')?.split_once('/'));
    let numbers = path.and_then(|(delay, number)| Some((delay.parse().ok()?, number.parse().ok()?)));
    match numbers {
        Some((delay, number)) if delay <= LONGEST => Ok(Some(Request { delay, number, close, length })),
        _ => Err("404 Not Found"),
    }
}

/// A short text that is not on the heap; what does not fit is an error.
struct Text<const N: usize> {
    bytes: [u8; N],
    length: usize,
}

impl<const N: usize> Text<N> {
    fn new() -> Self {
        Self { bytes: [0; N], length: 0 }
    }

    fn as_str(&self) -> &str {
        // Only whole strings were written.
        std::str::from_utf8(&self.bytes[..self.length]).unwrap_or_default()
    }
}

impl<const N: usize> std::fmt::Write for Text<N> {
    fn write_str(&mut self, s: &str) -> std::fmt::Result {
        let end = self.length + s.len();
        self.bytes.get_mut(self.length..end).ok_or(std::fmt::Error)?.copy_from_slice(s.as_bytes());
        self.length = end;
        Ok(())
    }
}

/// One question and its answer, without the way they travel: the same for clients that block and others. Allocates
/// nothing.
///
/// Write the [question](Self::question), then read into the [room](Self::room) and say how much that was, until the
/// answer is complete.
pub struct Exchange {
    number: u64,
    question: Text<96>,
    answer: [u8; 192],
    filled: usize,
}

impl std::fmt::Debug for Exchange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exchange").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Exchange {
    /// Begins to ask for `number`, to be answered after `delay` milliseconds, of which there are at most [`LONGEST`].
    #[must_use]
    pub fn new(delay: u32, number: u64) -> Self {
        let mut question = Text::new();
        // It fits: 68 bytes with the longest numbers.
        let _ = write!(question, "GET /{delay}/{number} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        Self { number, question, answer: [0; 192], filled: 0 }
    }

    /// What is to be sent.
    #[must_use]
    pub fn question(&self) -> &[u8] {
        self.question.as_str().as_bytes()
    }

    /// Where to read the next part of the answer to.
    pub fn room(&mut self) -> &mut [u8] {
        &mut self.answer[self.filled..]
    }

    /// Takes the next `read` bytes that were read, and tells whether the answer is complete and right.
    ///
    /// # Errors
    ///
    /// When nothing was read, or it is another answer than it should be.
    pub fn received(&mut self, read: usize) -> io::Result<bool> {
        if read == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the answer ended too early"));
        }
        self.filled += read;
        let wrong = |what: String| Err(io::Error::new(io::ErrorKind::InvalidData, what));
        let bytes = &self.answer[..self.filled];
        let mut headers = [httparse::EMPTY_HEADER; 8];
        let mut response = httparse::Response::new(&mut headers);
        let head = match response.parse(bytes) {
            Ok(httparse::Status::Complete(head)) => head,
            Ok(httparse::Status::Partial) if self.filled < self.answer.len() => return Ok(false),
            Ok(httparse::Status::Partial) => return wrong("the answer is too long".into()),
            Err(e) => return wrong(format!("the answer is not HTTP: {e}")),
        };
        if response.code != Some(200) {
            return wrong(format!("the status is {:?}", response.code));
        }
        let length =
            response.headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-length"));
        let length: Option<usize> =
            length.and_then(|header| std::str::from_utf8(header.value).ok()?.parse().ok());
        let mut expected = Text::<24>::new();
        let _ = writeln!(expected, "{}", self.number);
        let expected = expected.as_str().as_bytes();
        let body = &bytes[head..];
        if length != Some(expected.len()) || !expected.starts_with(body) {
            let body = String::from_utf8_lossy(body);
            return wrong(format!("the answer to {} is {body:?}, of {length:?} bytes", self.number));
        }
        Ok(body.len() == expected.len())
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
/// What the system answered, or what is wrong with the answer.
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

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// What is answered to these bytes, read in pieces of `piece` bytes, and how long was slept.
    fn talk_of(bytes: &[u8], piece: usize) -> (String, Vec<u64>) {
        struct Pieces<'a>(std::slice::Chunks<'a, u8>);
        impl Read for Pieces<'_> {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                let piece = self.0.next().unwrap_or_default();
                let n = piece.len().min(buffer.len());
                buffer[..n].copy_from_slice(&piece[..n]);
                Ok(n)
            }
        }
        let mut output = Vec::new();
        let slept = RefCell::new(Vec::new());
        let sleep = |d: Duration| slept.borrow_mut().push(d.as_millis() as u64);
        talk(Pieces(bytes.chunks(piece)), &mut output, sleep).unwrap();
        (String::from_utf8(output).unwrap(), slept.take())
    }

    const KEPT: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 3\r\n\r\n42\n";

    #[test]
    fn a_question_in_any_pieces_is_answered() {
        let exchange = Exchange::new(5, 42);
        for piece in 1..=exchange.question().len() {
            assert_eq!(talk_of(exchange.question(), piece), (KEPT.to_owned(), vec![5]), "{piece}");
        }
        assert_eq!(talk_of(b"", 1), (String::new(), vec![]));
    }

    #[test]
    fn connections_are_kept_until_asked() {
        let two = [Exchange::new(0, 42).question(), Exchange::new(7, 42).question()].concat();
        assert_eq!(talk_of(&two, two.len()), ([KEPT, KEPT].concat(), vec![7]));
        let close = "GET /0/42 HTTP/1.1\r\nconnection: Close\r\n\r\n".repeat(2);
        let closed = KEPT.replace("Content-L", "Connection: close\r\nContent-L");
        assert_eq!(talk_of(close.as_bytes(), 4096), (closed.clone(), vec![]));
        assert_eq!(talk_of(b"GET /0/42 HTTP/1.0\r\n\r\n", 4096), (closed, vec![]));
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        let status = |bytes: &[u8]| {
            let (text, slept) = talk_of(bytes, 512);
            assert!(slept.is_empty());
            assert!(text.is_empty() || text.contains("\r\nConnection: close\r\n"), "{text}");
            text.split(' ').nth(1).map(str::to_owned).unwrap_or_default()
        };
        let get = |path: &str| status(format!("GET {path} HTTP/1.1\r\n\r\n").as_bytes());
        assert_eq!(get("/1001/1"), "404");
        assert_eq!(get("/-1/1"), "404");
        assert_eq!(get("/0"), "404");
        assert_eq!(get("/0/18446744073709551616"), "404");
        assert_eq!(get("http://localhost/0/1"), "404");
        assert_eq!(status(b"POST /0/1 HTTP/1.1\r\n\r\n"), "405");
        assert_eq!(status(b"GET /0/1 HTTP/1.1\r\nContent-Length: 5\r\n\r\nGET /"), "400");
        assert_eq!(status(b"\0\x16\x03\x01"), "400");
        assert_eq!(status(&[b'a'; 4096]), "431");
        assert_eq!(status(format!("GET /0/1 HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(17)).as_bytes()), "431");
        // Not complete, and there is no more.
        assert_eq!(status(b"GET /0/1 HTTP/1.1\r\n"), "");
    }

    /// What is said of this answer to question 42, in pieces.
    fn received(answer: &[u8], piece: usize) -> io::Result<bool> {
        let mut exchange = Exchange::new(0, 42);
        let mut complete = false;
        for piece in answer.chunks(piece) {
            assert!(!complete, "there is more");
            exchange.room()[..piece.len()].copy_from_slice(piece);
            complete = exchange.received(piece.len())?;
        }
        Ok(complete)
    }

    #[test]
    fn the_right_answer_in_any_pieces_is_taken() {
        for piece in 1..=KEPT.len() {
            assert!(received(KEPT.as_bytes(), piece).unwrap(), "{piece}");
        }
        assert!(!received(&KEPT.as_bytes()[..KEPT.len() - 1], 7).unwrap());
    }

    #[test]
    fn another_answer_is_an_error() {
        let wrong = |from: &str, to: &str| {
            let answer = KEPT.replace(from, to);
            assert_ne!(answer, KEPT);
            received(answer.as_bytes(), 192).unwrap_err().to_string()
        };
        assert!(wrong("42", "43").contains("43"));
        assert!(wrong("42\n", "42\n\n").contains("the answer to 42 is"));
        assert!(wrong("h: 3", "h: 4").contains("Some(4)"));
        assert!(wrong("200", "404").contains("404"));
        assert!(wrong("HTTP", "SMTP").contains("not HTTP"));
        assert!(wrong("\r\n\r\n42\n", &format!("\r\nA: {}", "b".repeat(192 - 65))).contains("too long"));
        let mut exchange = Exchange::new(0, 42);
        assert_eq!(exchange.received(0).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn the_longest_question_fits() {
        let exchange = Exchange::new(u32::MAX, u64::MAX);
        assert!(exchange.question().ends_with(b"/18446744073709551615 HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    }

    #[test]
    fn where_it_listens_is_read() {
        let read = |text: &str| listening(text.as_bytes());
        assert_eq!(read(&format!("hello\n{READY}127.0.0.1:80\n")).unwrap(), ([127, 0, 0, 1], 80).into());
        assert!(read("hello\n").is_err() && read(&format!("{READY}nowhere\n")).is_err());
    }
}
