//! The HTTP server answers whoever asks, leaves no connections behind, and ends with whoever started it.
//!
//! No libtest: this binary runs itself as the server, and as a process that starts one and is killed (`HELPER`).

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use atrace_benches::harness::http::{self, Server};
use atrace_benches::harness::supervise;
use atrace_benches::measure::processes;

const HELPER: &str = "ATRACE_BENCHES_TEST_HELPER";

fn main() -> ExitCode {
    let ended = |result: io::Result<()>| result.map_or(ExitCode::from(3), |()| ExitCode::SUCCESS);
    match std::env::var(HELPER).as_deref() {
        Ok("serve") => ended(http::serve()),
        Ok("serve adopted") => supervise::run(|_| ended(http::serve())),
        Ok("start") => {
            let server = Server::start(&mut helper("serve")).unwrap();
            println!("{}", server.pid());
            loop {
                std::thread::park();
            }
        }
        Ok("start adopted") => {
            // Its stdin is this process', which the test holds open.
            let mut server =
                processes::adopt(&mut helper("serve adopted")).stdin(Stdio::inherit()).spawn().unwrap();
            println!("{}", server.id());
            server.wait().unwrap();
            ExitCode::FAILURE
        }
        Ok(other) => panic!("no helper is called {other}"),
        Err(_) => {
            answers();
            leaves_nothing_of_connections();
            who_says_nothing_is_in_nobodys_way();
            ends_when_dropped();
            ends_with_who_started_it("start");
            ends_with_who_started_it("start adopted");
            does_not_start();
            println!("http: all is as it should be");
            ExitCode::SUCCESS
        }
    }
}

fn helper(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(HELPER, name);
    command
}

fn start() -> Server {
    Server::start(&mut helper("serve")).unwrap()
}

fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // One that nobody has waited for yet has ended all the same.
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

fn assert_ends(pid: u32) {
    let start = Instant::now();
    while is_alive(pid) {
        assert!(start.elapsed() < Duration::from_secs(10), "process {pid} is still there");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn answers() {
    let server = start();
    let address = server.address();
    for delay in [0, 5, 20] {
        let start = Instant::now();
        http::get(address, delay, u64::MAX).unwrap();
        assert!(start.elapsed() >= Duration::from_millis(delay.into()));
    }
    std::thread::scope(|scope| {
        for thread in 0..8 {
            scope.spawn(move || (0..300).for_each(|n| http::get(address, 0, thread * 1_000 + n).unwrap()));
        }
    });
    let refused = http::get(address, http::LONGEST + 1, 1).unwrap_err();
    assert!(refused.to_string().contains("404"), "{refused}");
}

/// Also not the ports, of which there are less than thirty thousand.
fn leaves_nothing_of_connections() {
    let Ok(_) = std::fs::read_to_string("/proc/net/tcp") else {
        return println!("skipped leaves_nothing_of_connections: /proc/net/tcp can't be read");
    };
    let server = start();
    (0..500).for_each(|n| http::get(server.address(), 0, n).unwrap());
    let port = format!(":{:04X} ", server.address().port());
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let left: Vec<_> = table.lines().filter(|line| line.contains(&port)).collect();
    // The socket that listens, and the last of the connections if the server has not yet looked at it.
    assert!((1..=2).contains(&left.len()), "{left:#?}");
    assert!(left[0].contains(" 0A "), "{left:#?}");
}

fn who_says_nothing_is_in_nobodys_way() {
    let server = start();
    let silent: Vec<_> = (0..4).map(|_| TcpStream::connect(server.address()).unwrap()).collect();
    let mut slow = TcpStream::connect(server.address()).unwrap();
    slow.write_all(b"GET /0/1").unwrap();
    http::get(server.address(), 0, 2).unwrap();
    // Nor is one that sends what is not HTTP, and one that goes without its answer.
    let mut other = TcpStream::connect(server.address()).unwrap();
    other.write_all(&[0xff; 2048]).unwrap();
    let mut gone = TcpStream::connect(server.address()).unwrap();
    gone.write_all(b"GET /20/1 HTTP/1.1\r\n\r\n").unwrap();
    http::reset(&gone).unwrap();
    drop(gone);
    http::get(server.address(), 0, 3).unwrap();
    drop(silent);
}

fn ends_when_dropped() {
    let server = start();
    let (pid, address) = (server.pid(), server.address());
    // Also while someone is connected.
    let mut stream = TcpStream::connect(address).unwrap();
    let start = Instant::now();
    drop(server);
    assert!(start.elapsed() < Duration::from_secs(2), "it had to be killed");
    assert!(!is_alive(pid));
    assert!(matches!(stream.read(&mut [0]), Ok(0) | Err(_)));
    assert!(http::get(address, 0, 1).is_err());
}

fn ends_with_who_started_it(name: &str) {
    let mut parent: Child = helper(name).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let _stdin = parent.stdin.take();
    let mut stdout = BufReader::new(parent.stdout.take().unwrap()).lines();
    let mut pid = None;
    let mut listens = name == "start";
    // Of the adopted one, stdout is the same pipe: it says where it listens once it can be killed.
    while pid.is_none() || !listens {
        let line = stdout.next().unwrap().unwrap();
        listens |= line.contains("http: ");
        pid = pid.or(line.parse().ok());
    }
    let pid = pid.unwrap();
    assert!(is_alive(pid));
    parent.kill().unwrap();
    parent.wait().unwrap();
    assert_ends(pid);
}

fn does_not_start() {
    let ended = Server::start(&mut Command::new("/bin/true")).unwrap_err().to_string();
    assert!(ended.contains("exit status: 0: it did not say where it listens"), "{ended}");
    assert!(Server::start(&mut Command::new("/nonexistent")).is_err());
}
