//! Tests producers (processes that write events for Perfetto) whose service restarts or hangs: their memory, their lost
//! events, and the connection state that they publish.

#![cfg(not(no_tracing))]

mod common;

#[allow(unsafe_code, reason = "a process' user is asked for as C does it")]
mod cases {
    use std::fs::{self, File};
    use std::os::unix::net::UnixListener;
    use std::path::{Path, PathBuf};
    use std::time::{Duration, Instant};

    use atrace::*;
    use atrace_cli::service::{Report, Service, Storage};

    use crate::common::{self, Hold, Place, case, copied, until};

    const TAG: AtraceTag = AtraceTag::App;

    fn listen(socket: &Path) -> UnixListener {
        let _ = fs::remove_file(socket);
        UnixListener::bind(socket).unwrap()
    }

    fn serve(listener: UnixListener) -> Service {
        serve_into(tempfile::tempfile().unwrap(), listener)
    }

    fn serve_into(file: File, listener: UnixListener) -> Service {
        // SAFETY: no preconditions.
        let user = unsafe { libc::geteuid() };
        Service::start(listener, user, Storage::File { file, max: None }).unwrap()
    }

    /// Returns the connection state that a process published last.
    fn connection_state(process: u32) -> Option<String> {
        atrace_cli::doctor::connection_states(&[process], |_| Duration::from_secs(1)).known.remove(&process)
    }

    /// An environment variable that limits glibc to one heap. Otherwise glibc may reserve 64 MiB of address space for
    /// each thread that allocates while another thread does. How many threads do so depends on how busy the machine is.
    const ONE_HEAP: (&str, &str) = ("MALLOC_ARENA_MAX", "1");

    /// Returns the size of a process's address space and of its memory, in KiB.
    fn size(process: impl std::fmt::Display) -> [u64; 2] {
        let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
        ["VmSize:", "VmRSS:"].map(|name| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim().trim_end_matches(" kB").parse().unwrap()
        })
    }

    /// Tests a service that ends and starts again many times. At each end of the service, threads are writing to the
    /// memory that they share with the service.
    #[test]
    fn a_service_that_comes_back_again_and_again_costs_no_memory() {
        const WARM_UP: u32 = 5;
        let times = if std::env::var_os("ATRACE_LONG_TESTS").is_some() { 1000 } else { 20 };
        let name = case!({
            perfetto::connect();
            // The program runs until this file is removed, or until its directory is removed after a failed test.
            let goes_on = std::env::var_os("GOES_ON").unwrap();
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        while Path::new(&goes_on).exists() {
                            for _ in 0..200 {
                                drop(begin_scoped_event(TAG, "a slice of a thread that does not look up"));
                            }
                            // The service reads all events, but more slowly than threads can write them.
                            std::thread::sleep(Duration::from_millis(5));
                        }
                    });
                }
            });
        });
        let place = Place::file();
        let (socket, goes_on) = (place.path("socket"), place.path("goes_on"));
        fs::write(&goes_on, "").unwrap();
        let mut command = place.command(&name);
        command
            .env("PERFETTO_PRODUCER_SOCK_NAME", &socket)
            .env("GOES_ON", &goes_on)
            .env(ONE_HEAP.0, ONE_HEAP.1);
        let mut producer = None;
        let mut sizes = Vec::new();
        let grew =
            |sizes: &[[u64; 2]]| sizes[1][0] >= sizes[0][0] + 1024 || sizes[1][1] >= sizes[0][1] + 1024;
        // If a thread is preempted in an event when a service ends (on a busy machine), the memory of this service is
        // kept for good. So there are up to three series of services. In one of them, the process must not grow.
        for time in 1..=WARM_UP + 3 * times {
            let service = serve(listen(&socket));
            let producer = producer.get_or_insert_with(|| command.spawn().unwrap());
            until("it writes", || service.events() > 1000);
            let Report { cut_off, counts, .. } = service.finish();
            assert!(cut_off.is_empty() && counts.invalid == 0, "{cut_off:?} {counts:?}");
            if time % times == WARM_UP {
                let state = || connection_state(producer.id());
                until("it is gone", || state().is_some_and(|how| how.contains("Connection refused")));
                sizes.push(size(producer.id()));
                if sizes.windows(2).any(|pair| !grew(pair)) {
                    break;
                }
            }
        }
        fs::remove_file(goes_on).unwrap();
        let ran = common::end_of(producer.unwrap());
        assert!(ran.status.success(), "{ran:?}");
        println!("KiB of addresses and of memory, each after {times} more services: {sizes:?}");
        // `grew` compares the sizes with one MiB, the size of the memory that is shared with one service.
        assert!(sizes.windows(2).any(|pair| !grew(pair)), "{sizes:?}");
    }

    /// Tests that successive recordings that a process makes of itself use the same memory.
    #[test]
    fn recordings_use_their_memory_again() {
        let name = case!({
            let record = || {
                let directory = tempfile::tempdir().unwrap();
                let recording = perfetto::record_to(directory.path().join("trace")).unwrap();
                atrace_instant(TAG, "recorded");
                recording.finish().unwrap();
            };
            (0..5).for_each(|_| record());
            println!("ADDRESSES {}", size("self")[0]);
            (0..20).for_each(|_| record());
            println!("ADDRESSES {}", size("self")[0]);
        });
        let place = Place::file();
        let ran = common::run(place.command(&name).env(ONE_HEAP.0, ONE_HEAP.1));
        let kib: Vec<i64> = ran.said("ADDRESSES").iter().map(|kib| kib.parse().unwrap()).collect();
        // Each recording needs 32 MiB of address space. The test fails if 20 recordings together leave even an eighth
        // of this space (4 MiB) in use.
        assert!(kib[1] - kib[0] < 4096, "{ran:?}");
    }

    /// Tests a service that reads no requests for eight seconds, because it is still writing the events of earlier
    /// requests to its trace.
    #[test]
    fn a_busy_service_keeps_its_producers() {
        let name = case!({
            let text = "n".repeat(500);
            perfetto::connect();
            until("it is connected", || perfetto::status().sessions() == 1);
            let hold = Hold::new(&PathBuf::from(std::env::var_os("TRACE").unwrap()));
            let (start, mut number) = (Instant::now(), 0);
            while start.elapsed() < Duration::from_secs(8) {
                // Each commit has about one chunk, so the commits fill the socket's queue before the events fill the
                // memory.
                (0..8).for_each(|_| atrace_instant(TAG, &text));
                number += 8;
                std::thread::sleep(Duration::from_millis(2));
                assert_eq!(perfetto::status().sessions(), 1, "{}", perfetto::status());
            }
            drop(hold);
            println!("EVENTS {number}");
        });
        let place = Place::file();
        let (trace, socket) = (place.path("trace"), place.path("socket"));
        let (file, copier) = copied(&trace);
        let service = serve_into(file, listen(&socket));
        let mut command = place.command(&name);
        command.env("TRACE", &trace).env("ATRACE_SHMEM_KB", "32768");
        let ran = common::run(command.env("PERFETTO_PRODUCER_SOCK_NAME", &socket));
        let counts = service.finish().counts;
        copier.join().unwrap();
        assert_eq!(counts.producers, 1, "{counts:?}");
        assert_eq!(ran.said("EVENTS"), [(counts.events + counts.lost).to_string()], "{counts:?}");
    }

    /// Tests events that a process loses after its service has ended and before it has connected to the next service.
    /// The process exits soon after, but the next service still gets the number of lost events.
    #[test]
    fn the_next_service_counts_what_was_lost_without_a_connection() {
        let name = case!({
            let directory = PathBuf::from(std::env::var_os("DIRECTORY").unwrap());
            if std::env::var_os("SERVES").is_some() {
                let service = serve(listen(&directory.join("socket")));
                fs::write(directory.join("serves"), "").unwrap();
                until("it has an event", || service.events() == 1);
                fs::write(directory.join("connected"), "").unwrap();
                std::thread::sleep(Duration::from_secs(600)); // The test kills this process earlier.
            }
            atrace_instant(TAG, "recorded");
            assert_eq!(perfetto::status().sessions(), 1);
            until("the service has ended", || perfetto::status().sessions() == 0);
            (0..3).for_each(|_| atrace_instant(TAG, "lost"));
            fs::write(directory.join("lost"), "").unwrap();
            assert_eq!(perfetto::status().lost(), 3);
        });
        let place = Place::file();
        let (socket, connected, lost) = (place.path("socket"), place.path("connected"), place.path("lost"));
        let command = |name: &str| {
            let mut command = place.command(name);
            command.env("DIRECTORY", place.path(""));
            command
        };
        let mut first = command(&name).env("SERVES", "").spawn().unwrap();
        until("it serves", || place.path("serves").exists());
        let mut program = command(&name);
        // With `ATRACE_BACKEND=perfetto`, the first event and an exit wait for a service, for five seconds.
        program.env("ATRACE_BACKEND", "perfetto").env("PERFETTO_PRODUCER_SOCK_NAME", &socket);
        let program = program.spawn().unwrap();
        until("it is connected", || connected.exists());
        // The program finds a listening socket when it connects again, but no service answers yet.
        let next = listen(&socket);
        first.kill().unwrap();
        first.wait().unwrap();
        until("it has lost events", || lost.exists());
        let service = serve(next);
        let ran = common::end_of(program);
        assert!(ran.status.success(), "{ran:?}");
        let counts = service.finish().counts;
        assert_eq!((counts.events, counts.lost), (0, 3), "{counts:?}");
    }

    /// Tests the state of the connection that a process publishes in its state page, and that the commands `atrace
    /// doctor` and `atrace status` show.
    #[test]
    fn the_state_page_has_the_state_of_the_connection() {
        let name = case!({
            perfetto::connect();
            // The test kills this process. The time limit is needed only if the test itself is killed.
            std::thread::sleep(Duration::from_secs(600));
        });
        let place = Place::file();
        let socket = place.path("socket");
        let mut command = place.command(&name);
        command.env("PERFETTO_PRODUCER_SOCK_NAME", &socket);
        let mut producer = command.spawn().unwrap();
        let says = |what: &str| {
            let page = || connection_state(producer.id()).unwrap_or_default();
            until(&format!("its page says {what}"), || page().contains(what));
        };
        says("No such file or directory");
        drop(UnixListener::bind(&socket).unwrap());
        says("Connection refused");
        let service = serve(listen(&socket));
        says("connected, 1 sessions");
        service.finish();
        says("Connection refused");
        producer.kill().unwrap();
        producer.wait().unwrap();
    }

    /// Tests a service that closes each connection. The program tries to connect at longer and longer intervals, as it
    /// does if there is no service.
    #[test]
    fn a_service_that_accepts_and_closes_is_left_alone() {
        let name = case!({
            perfetto::connect();
            // The test kills this process. The time limit is needed only if the test itself is killed.
            std::thread::sleep(Duration::from_secs(600));
        });
        let place = Place::file();
        let socket = place.path("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        listener.set_nonblocking(true).unwrap();
        let mut command = place.command(&name);
        command.env("PERFETTO_PRODUCER_SOCK_NAME", &socket);
        let mut producer = command.spawn().unwrap();
        let mut times = Vec::new();
        until("it was asked for three seconds", || {
            if listener.accept().is_ok() {
                times.push(Instant::now());
            }
            times.first().is_some_and(|first| first.elapsed() > Duration::from_secs(3))
        });
        // A service that answers resets the interval: after this service has ended, the program soon connects again.
        let service = serve(listen(&socket));
        until("it is connected", || connected(producer.id()));
        // The next socket listens before the service ends, so the program finds a listener immediately.
        let next = place.path("next");
        let listener = UnixListener::bind(&next).unwrap();
        fs::rename(&next, &socket).unwrap();
        service.finish();
        let mut again = Vec::new();
        while again.len() < 3 {
            drop(listener.accept().unwrap());
            again.push(Instant::now());
        }
        producer.kill().unwrap();
        producer.wait().unwrap();
        println!("asked {} times in 3 s; then after {:?}", times.len(), again[2] - again[0]);
        // The program tries again after 100 ms, 200 ms, 400 ms and 800 ms.
        assert!(times.len() <= 6, "{} times", times.len());
        assert!(again[2] - again[0] < Duration::from_secs(5), "{:?}", again[2] - again[0]);
    }

    fn connected(process: u32) -> bool {
        connection_state(process).is_some_and(|how| how.contains("connected, "))
    }

    /// Tests that a first event waits only a limited time for a service that accepts no connection.
    #[test]
    fn a_service_that_hangs_is_not_waited_for() {
        let name = case!({
            let start = Instant::now();
            atrace_instant(TAG, "first");
            assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
            println!("STATUS {}", perfetto::status());
        });
        let place = Place::file();
        let socket = place.path("socket");
        let _hangs = UnixListener::bind(&socket).unwrap();
        let mut command = place.command(&name);
        command.env("PERFETTO_PRODUCER_SOCK_NAME", &socket).env("ATRACE_BACKEND", "perfetto");
        let ran = common::run(&mut command);
        assert!(ran.said("STATUS")[0].contains("connecting"), "{ran:?}");
    }
}
