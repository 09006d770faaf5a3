//! Tests a producer (a process that writes events for Perfetto) behind Perfetto's relay. The relay forwards bytes, but
//! no descriptors, to the service of another machine. So that service gets no shared memory: the commit requests
//! contain the bytes of the chunks (pieces of the producer's memory).
//!
//! The service in this test does not use the code of this workspace's service. It answers like Google's service on a
//! TCP socket, and stores chunks by the rules of Google's service.

#![cfg(not(no_tracing))]

mod common;
#[allow(dead_code, unreachable_pub, reason = "this module is shared with the tests in `crates/real-service`")]
#[path = "../../crates/real-service/src/trace.rs"]
mod trace;

mod cases {
    use std::collections::BTreeMap;
    use std::io::Write as _;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::path::Path;
    use std::process::Child;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};

    use atrace::*;
    use atrace_perfetto::proto::{Reader, Value, Writer};
    use atrace_perfetto::socket::Socket;
    use atrace_perfetto::wire::{self, Body};

    use crate::common::{self, Place, case, until};
    use crate::trace::{Event, Losses, Trace};

    const TAG: AtraceTag = AtraceTag::App;
    /// The methods of the service, in the order in which Google's service lists them. The number of a method is its
    /// index in this list plus 1.
    const METHODS: [&str; 12] = [
        "InitializeConnection",
        "RegisterDataSource",
        "UnregisterDataSource",
        "CommitData",
        "GetAsyncCommand",
        "RegisterTraceWriter",
        "UnregisterTraceWriter",
        "NotifyDataSourceStarted",
        "NotifyDataSourceStopped",
        "ActivateTriggers",
        "Sync",
        "UpdateDataSource",
    ];
    const INSTANCE: u64 = 7;
    const BUFFER: u64 = 300;

    /// A chunk that the service has received. `packets` is the number of its finished packets, and `bytes` are the
    /// bytes after its header.
    #[derive(Debug)]
    struct Chunk {
        is_complete: bool,
        packets: u16,
        bytes: Vec<u8>,
    }

    /// The data that the service has received on one connection.
    #[derive(Debug, Default)]
    struct Host {
        /// The number of the request `GetAsyncCommand`. The service sends its commands as replies to this request.
        commands: u64,
        registered: Vec<u64>,
        /// The chunks, by the number of the trace writer and the number of the chunk in its sequence.
        chunks: BTreeMap<(u16, u32), Chunk>,
        /// How many times the service received a chunk to which a thread was still writing.
        incomplete: usize,
        flushed: u64,
        has_stopped: bool,
    }

    impl Host {
        fn commit(&mut self, arguments: &[u8]) {
            for (field, value) in Reader::new(arguments) {
                match field {
                    1 => self.take(value.bytes()),
                    3 => self.flushed = value.number(),
                    _ => panic!("{field}"),
                }
            }
        }

        fn take(&mut self, entry: &[u8]) {
            let number = |field| Reader::first(entry, field).map_or(0, Value::number);
            assert_eq!(number(3), BUFFER);
            let data = Reader::first(entry, 4).expect("there is no other way to the bytes").bytes();
            let (header, bytes) = data.split_first_chunk::<8>().unwrap();
            let word = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
            let key = (word(4), u32::from_le_bytes([header[0], header[1], header[2], header[3]]));
            let is_complete = number(5) == 0;
            assert_eq!(word(6) >> 10, 0, "no packet continues in another chunk");
            self.incomplete += usize::from(!is_complete);
            let packets = word(6) - u16::from(!is_complete);
            assert!(self.registered.contains(&key.0.into()));
            if let Some(before) = self.chunks.get(&key) {
                assert!(!before.is_complete && before.packets <= packets, "{key:?}");
                assert_eq!(before.bytes.len(), bytes.len(), "{key:?}");
            }
            // The previous chunk must be complete. Otherwise a reader of the trace would find a gap.
            assert!(
                key.1 == 0 || self.chunks.get(&(key.0, key.1 - 1)).is_some_and(|it| it.is_complete),
                "{key:?}"
            );
            self.chunks.insert(key, Chunk { is_complete, packets, bytes: bytes.to_vec() });
        }

        fn invoke(&mut self, name: &str, request: u64, arguments: &[u8]) {
            let first = |field| Reader::first(arguments, field).map_or(0, Value::number);
            match name {
                "CommitData" => self.commit(arguments),
                "GetAsyncCommand" => self.commands = request,
                "RegisterTraceWriter" => {
                    assert_eq!(first(2), BUFFER);
                    self.registered.push(first(1));
                }
                "NotifyDataSourceStopped" => self.has_stopped = first(1) == INSTANCE,
                _ => {}
            }
        }

        /// Returns the trace that consists of the data received so far.
        fn trace(&self) -> Trace {
            let mut packets = Vec::new();
            for ((writer, _), chunk) in &self.chunks {
                let mut rest = &chunk.bytes[..];
                for _ in 0..chunk.packets {
                    let (mut len, mut size) = (0, 0);
                    while size == 0 || rest[size - 1] & 0x80 != 0 {
                        len |= usize::from(rest[size] & 0x7f) << (7 * size);
                        size += 1;
                    }
                    let mut packet = vec![0; len + 32];
                    let mut whose = Writer::new(&mut packet);
                    whose.raw(&rest[size..size + len]);
                    whose.number(10, (*writer).into());
                    packets.extend((len > 0).then(|| whose.finish().unwrap().to_vec()));
                    rest = &rest[size + len..];
                }
            }
            Trace::new(packets)
        }
    }

    /// The relay and the service in one object, which serves all connections, one after the other.
    #[derive(Clone)]
    struct Service {
        host: Arc<Mutex<Host>>,
        connections: Arc<AtomicUsize>,
        /// How many connections the relay has ended because it received a descriptor.
        refused: Arc<AtomicUsize>,
        stream: Arc<Mutex<Option<UnixStream>>>,
    }

    impl Service {
        fn start(socket: &Path) -> Self {
            let listener = UnixListener::bind(socket).unwrap();
            let service = Self {
                host: Arc::default(),
                connections: Arc::default(),
                refused: Arc::default(),
                stream: Arc::default(),
            };
            let this = service.clone();
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    this.connections.fetch_add(1, Ordering::SeqCst);
                    *this.stream.lock().unwrap() = Some(stream.try_clone().unwrap());
                    this.serve(&stream);
                    let _ = stream.shutdown(std::net::Shutdown::Both);
                }
            });
            service
        }

        /// Serves a connection until it ends. Ends the connection if it receives a descriptor, as the relay does.
        fn serve(&self, stream: &UnixStream) {
            let socket = Socket::new(stream.try_clone().unwrap().into());
            let (mut inbox, mut more) = (Vec::new(), [0; 4096]);
            while socket.wait(None) {
                let Ok(received) = socket.receive(&mut more) else { return };
                let Some((len, descriptor)) = received else { continue };
                if descriptor.is_some() {
                    self.refused.fetch_add(1, Ordering::SeqCst);
                    return;
                }
                inbox.extend_from_slice(&more[..len]);
                while let Some((frame, len)) = wire::split(&inbox).unwrap() {
                    self.handle(frame.request, frame.body);
                    inbox.drain(..len);
                }
            }
        }

        fn handle(&self, request: u64, body: Body<'_>) {
            let mut bytes = [0; 1024];
            match body {
                Body::Bind(b"ProducerPort") => {
                    self.send(wire::bound(&mut bytes, request, &METHODS).unwrap());
                }
                Body::Invoke { method, wants_reply, arguments } => {
                    let name = METHODS[method.method as usize - 1];
                    self.host.lock().unwrap().invoke(name, request, arguments);
                    if wants_reply && name != "GetAsyncCommand" {
                        self.send(
                            wire::reply_to(
                                &mut bytes,
                                request,
                                false,
                                Some(|reply: &mut Writer<'_>| {
                                    if name == "InitializeConnection" {
                                        // Tells the producer not to use shared memory, but to send the bytes of its
                                        // chunks.
                                        reply.number(1, 0).number(2, 1).number(3, 1);
                                    }
                                }),
                            )
                            .unwrap(),
                        );
                    }
                    if name == "RegisterDataSource" {
                        self.command(3, |setup| _ = setup.number(1, 4));
                        for field in [6, 1] {
                            self.command(field, |start| {
                                start.number(1, INSTANCE).message(2, |config| {
                                    config.bytes(1, b"track_event").number(2, BUFFER);
                                });
                            });
                        }
                    }
                }
                other => panic!("{other:?}"),
            }
        }

        fn send(&self, frame: &[u8]) {
            self.stream.lock().unwrap().as_mut().unwrap().write_all(frame).unwrap();
        }

        fn command(&self, field: u32, write: impl FnOnce(&mut Writer<'_>)) {
            let (mut bytes, request) = ([0; 256], self.host.lock().unwrap().commands);
            let command = |reply: &mut Writer<'_>| _ = reply.message(field, write);
            self.send(wire::reply_to(&mut bytes, request, true, Some(command)).unwrap());
        }

        /// Asks the producer to commit all events that it has written, and waits until the producer has answered.
        fn flush(&self, request: u64) {
            self.command(5, |flush| _ = flush.number(1, INSTANCE).number(2, request));
            until("the flush is answered", || self.host.lock().unwrap().flushed == request);
        }

        /// Checks that the relay has ended `refused` connections, and that there was exactly one other connection.
        fn had_one_connection(&self, refused: usize) {
            let counts = [&self.refused, &self.connections].map(|count| count.load(Ordering::SeqCst));
            assert_eq!(counts, [refused, refused + 1]);
        }

        /// Ends the session.
        fn stop(&self) {
            self.command(2, |stop| _ = stop.number(1, INSTANCE));
            until("the session has stopped", || self.host.lock().unwrap().has_stopped);
        }

        /// Returns the events that have arrived. Checks that the trace reports no loss.
        fn events(&self) -> Vec<Event> {
            let trace = self.host.lock().unwrap().trace();
            assert_eq!(trace.losses(), Losses::default());
            trace.events()
        }
    }

    /// The number of slices that each thread writes in a round (see [`write_rounds`]). The events that all threads
    /// write in one round fit into the memory.
    const EVENTS: usize = 1500;
    const THREADS: usize = 4;

    /// Writes slices with arguments, some of which need a large chunk.
    fn write(round: usize) {
        let long = "x".repeat(700);
        for number in 0..EVENTS {
            let text = if number % 500 == 0 { &long } else { "short" };
            let _slice = begin_scoped_event_args(
                TAG,
                "slice",
                &[Arg::Uint("number", number as u64), Arg::Str("text", text)],
            );
            if number == 0 {
                atrace_int(TAG, "round", round as i32);
            }
        }
    }

    fn step(name: &str) {
        std::fs::write(std::env::var_os("STEPS").map(std::path::PathBuf::from).unwrap().join(name), "")
            .unwrap();
    }

    fn wait_for(name: &str) {
        let steps = std::path::PathBuf::from(std::env::var_os("STEPS").unwrap());
        until(name, || steps.join(name).exists());
    }

    /// Starts a service, and the test case as its producer. If `offers` is given, the producer offers shared memory of
    /// this size (`ATRACE_SHMEM_KB`).
    fn start(place: &Place, case: &str, offers: Option<&str>) -> (Service, Child) {
        let socket = place.path("socket");
        let service = Service::start(&socket);
        let mut command = place.command(case);
        command.envs(offers.map(|size| ("ATRACE_SHMEM_KB", size)));
        command.env("PERFETTO_PRODUCER_SOCK_NAME", &socket).env("ATRACE_BACKEND", "perfetto");
        let program = command.env("STEPS", place.path("")).spawn().unwrap();
        (service, program)
    }

    #[test]
    fn all_events_arrive_through_a_relay() {
        let name = case!({ write_rounds() });
        all_arrive(&name, None);
    }

    /// Tests a producer that offers shared memory. The relay ends the connection on which it receives the memory's
    /// descriptor, and the producer connects again without an offer.
    #[test]
    fn all_events_arrive_through_a_relay_if_memory_is_offered() {
        let name = case!({ write_rounds() });
        all_arrive(&name, Some("1024"));
    }

    fn write_rounds() {
        perfetto::connect();
        let barrier = std::sync::Barrier::new(THREADS);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for round in 0..3 {
                        write(round);
                        if barrier.wait().is_leader() {
                            step(&format!("written-{round}"));
                        }
                        // The threads continue to run, and keep chunks that are not complete.
                        wait_for(&format!("go-{round}"));
                    }
                });
            }
        });
        assert_eq!(perfetto::status().lost(), 0);
    }

    fn all_arrive(case: &str, offers: Option<&str>) {
        let place = Place::file();
        let (service, program) = start(&place, case, offers);
        let per_round = THREADS * (2 * EVENTS + 1);
        for round in 0..3 {
            until("the events are written", || place.path(&format!("written-{round}")).exists());
            if round < 2 {
                service.flush(round as u64 + 1);
            } else {
                service.stop();
            }
            assert_eq!(service.events().len(), (round + 1) * per_round);
            std::fs::write(place.path(&format!("go-{round}")), "").unwrap();
        }
        let ran = common::end_of(program);
        assert!(ran.status.success(), "{ran:?}");
        service.had_one_connection(offers.iter().len());
        let events = service.events();
        let sequences: std::collections::HashSet<_> = events.iter().map(|event| event.sequence).collect();
        assert_eq!(sequences.len(), THREADS);
        for sequence in sequences {
            let own: Vec<_> = events.iter().filter(|event| event.sequence == sequence).collect();
            assert!(own.is_sorted_by_key(|event| event.time));
            let numbers: Vec<_> =
                own.iter().filter(|event| event.kind == 1).map(|event| &event.args[0].1).collect();
            let expected = (0..3).flat_map(|_| 0..EVENTS).map(|number| number.to_string());
            assert!(numbers.into_iter().cloned().eq(expected));
        }
        let host = service.host.lock().unwrap();
        assert!(host.chunks.values().all(|chunk| chunk.is_complete));
    }

    /// Tests the end of a program. Before the program ends, it must send its incomplete chunks, because the service
    /// can't read its memory.
    #[test]
    fn a_program_that_ends_sends_its_last_events() {
        let name = case!({
            perfetto::connect();
            atrace_instant(TAG, "first");
            std::thread::sleep(std::time::Duration::from_millis(300)); // The socket thread checks for chunks less often.
            atrace_instant(TAG, "last");
        });
        let place = Place::file();
        let (service, program) = start(&place, &name, None);
        let ran = common::end_of(program);
        assert!(ran.status.success(), "{ran:?}");
        let names = || service.events().iter().map(Event::name).collect::<Vec<_>>();
        until("the last event is there", || names() == ["first", "last"]);
        service.had_one_connection(0);
    }

    /// Tests a service that requests flushes again and again while threads write events. The service must not get a
    /// chunk before it has the complete previous chunk of the same thread ([`Host::take`] checks this).
    #[test]
    fn flushes_of_busy_threads_leave_no_gap() {
        let name = case!({
            perfetto::connect();
            let done = std::sync::atomic::AtomicBool::new(false);
            let barrier = std::sync::Barrier::new(THREADS);
            std::thread::scope(|scope| {
                for _ in 0..THREADS {
                    scope.spawn(|| {
                        atrace_instant(TAG, "busy");
                        if barrier.wait().is_leader() {
                            step("busy");
                        }
                        while !done.load(Ordering::Relaxed) {
                            (0..100).for_each(|_| atrace_instant(TAG, "busy"));
                            // Without this pause, the threads would write so many events that the test would take long
                            // to read them.
                            std::thread::sleep(std::time::Duration::from_millis(1));
                        }
                    });
                }
                wait_for("done");
                done.store(true, Ordering::Relaxed);
            });
        });
        let place = Place::file();
        let (service, program) = start(&place, &name, None);
        until("all threads write", || place.path("busy").exists());
        for request in 1..=12 {
            service.flush(request);
        }
        let packets = || {
            let host = service.host.lock().unwrap();
            host.chunks.values().map(|chunk| u32::from(chunk.packets)).sum::<u32>()
        };
        // Some packets contain no event, so flushes continue until there are at least 2000 packets.
        for request in (13..10_000).take_while(|_| packets() < 2000) {
            service.flush(request);
        }
        assert!(packets() >= 2000);
        let incomplete = service.host.lock().unwrap().incomplete;
        service.stop();
        std::fs::write(place.path("done"), "").unwrap();
        let ran = common::end_of(program);
        assert!(ran.status.success(), "{ran:?}");
        service.had_one_connection(0);
        assert!(incomplete > 0);
        assert!(service.host.lock().unwrap().trace().events().len() > 1000);
    }
}
