//! A consumer of Perfetto's service: starts a session, ends the session, and reads the trace.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::time::Duration;

use atrace_perfetto::proto::{Reader, Writer};
use atrace_perfetto::socket::{Socket, Trust};
use atrace_perfetto::wire::{self, Body, FRAME_MAX, Method, PREFIX};

use crate::{Service, Trace};

/// The configuration of a session.
#[derive(Clone, Debug)]
pub struct Config {
    /// The size of the session's buffer in KiB.
    pub buffer_kib: u64,
    /// Whether a full buffer overwrites the oldest packets, instead of discarding new packets.
    pub is_ring: bool,
    /// The patterns of the enabled categories.
    pub enabled: Vec<&'static str>,
    /// The patterns of the disabled categories.
    pub disabled: Vec<&'static str>,
    /// Further fields of the `TrackEventConfig`: their numbers and values.
    pub track_event: Vec<(u32, u64)>,
    /// Further fields of the `DataSourceConfig`: their numbers and values.
    pub source: Vec<(u32, u64)>,
    /// The interval at which the service asks the producers to clear their incremental state (the definitions that
    /// later packets refer to), in milliseconds. 0 means that the service never asks.
    pub clear_ms: u64,
    /// Further fields (numbers and values) of the `ProducerConfig` of all producers that [`producers`](Self::producers)
    /// names.
    pub producer: Vec<(u32, u64)>,
    /// The names of the producers that get the fields in [`producer`](Self::producer).
    pub producers: Vec<String>,
    /// Whether producers of other machines are traced, too.
    pub all_machines: bool,
    /// The file to which the service writes the trace, several times a second, while the session runs.
    pub file: Option<PathBuf>,
}

impl Default for Config {
    fn default() -> Self {
        // The buffer has room for 10,000 threads with two chunks each, which write 90 MB.
        Self {
            buffer_kib: 256 << 10,
            is_ring: true,
            enabled: Vec::new(),
            disabled: Vec::new(),
            track_event: Vec::new(),
            source: Vec::new(),
            clear_ms: 0,
            producer: Vec::new(),
            producers: Vec::new(),
            all_machines: false,
            file: None,
        }
    }
}

impl Config {
    fn write(&self, config: &mut Writer<'_>) {
        config.message(1, |buffer| {
            buffer.number(1, self.buffer_kib).number(4, if self.is_ring { 1 } else { 2 });
        });
        config.message(2, |source| {
            source.message(1, |source| {
                source.bytes(1, b"track_event").message(113, |lists| {
                    for name in &self.disabled {
                        lists.bytes(1, name.as_bytes());
                    }
                    for name in &self.enabled {
                        lists.bytes(2, name.as_bytes());
                    }
                    for (field, value) in &self.track_event {
                        lists.number(*field, *value);
                    }
                });
                for (field, value) in &self.source {
                    source.number(*field, *value);
                }
            });
        });
        for name in &self.producers {
            config.message(6, |producer| {
                producer.bytes(1, name.as_bytes());
                for (field, value) in &self.producer {
                    producer.number(*field, *value);
                }
            });
        }
        if self.clear_ms != 0 {
            config.message(21, |state| {
                state.number(1, self.clear_ms);
            });
        }
        if self.all_machines {
            config.number(43, 1);
        }
        if self.file.is_some() {
            // The service writes the file every 200 ms, and flushes the producers every second.
            config.number(8, 1).number(9, 200).number(13, 1000);
        }
    }
}

/// A running session.
#[derive(Debug)]
pub struct Session {
    socket: Socket,
    inbox: Vec<u8>,
    request: u64,
    methods: Vec<(Vec<u8>, Method)>,
    enabled: u64,
    file: Option<PathBuf>,
}

impl Session {
    /// Starts a session and waits until the service has begun it.
    pub fn start(service: &Service, config: &Config) -> Self {
        let name = service.consumers();
        let socket = Socket::connect(name.as_os_str(), Trust::Any).expect("the service listens");
        let mut session = Self {
            socket,
            inbox: Vec::new(),
            request: 1,
            methods: Vec::new(),
            enabled: 0,
            file: config.file.clone(),
        };
        let mut bytes = vec![0; 256];
        assert!(session.socket.send(wire::bind(&mut bytes, 1, "ConsumerPort").expect("it fits"), None));
        session.methods = session.receive(|request, body| match body {
            Body::Bound(bound) if request == 1 => Some(
                wire::methods(bound).expect("bound").map(|(name, method)| (name.to_vec(), method)).collect(),
            ),
            _ => None,
        });
        let file = config.file.as_ref().map(|path| File::create_new(path).expect("a new file"));
        session.enabled = session.invoke_with("EnableTracing", file.as_ref(), |arguments| {
            arguments.message(1, |trace| config.write(trace));
        });
        // The service answers this query after it has handled the previous request.
        session.call("QueryCapabilities");
        session
    }

    fn invoke(&mut self, method: &str, arguments: impl FnOnce(&mut Writer<'_>)) -> u64 {
        self.invoke_with(method, None, arguments)
    }

    fn invoke_with(
        &mut self,
        method: &str,
        file: Option<&File>,
        arguments: impl FnOnce(&mut Writer<'_>),
    ) -> u64 {
        self.request += 1;
        let found = self.methods.iter().find(|(name, _)| name == method.as_bytes()).expect(method).1;
        let mut bytes = vec![0; FRAME_MAX + PREFIX];
        let frame = wire::invoke(&mut bytes, self.request, found, true, arguments).expect("it fits");
        assert!(self.socket.send(frame, file.map(AsRawFd::as_raw_fd)));
        self.request
    }

    fn call(&mut self, method: &str) {
        let wanted = self.invoke(method, |_| ());
        self.wait_for(wanted);
    }

    fn wait_for(&mut self, wanted: u64) {
        self.receive(|request, body| match body {
            Body::Reply { is_success, .. } if request == wanted => {
                assert!(is_success);
                Some(())
            }
            _ => None,
        });
    }

    /// Receives frames from the service until `what` returns a value for a frame. Returns that value.
    fn receive<T>(&mut self, mut what: impl FnMut(u64, Body<'_>) -> Option<T>) -> T {
        loop {
            while let Some((frame, len)) = wire::split(&self.inbox).expect("a frame") {
                let found = what(frame.request, frame.body);
                self.inbox.drain(..len);
                if let Some(found) = found {
                    return found;
                }
            }
            assert!(self.socket.wait(Some(Duration::from_secs(30))), "the service does not answer");
            let old = self.inbox.len();
            self.inbox.resize(old + FRAME_MAX, 0);
            let got = self.socket.receive(&mut self.inbox[old..]).expect("the service is there");
            self.inbox.truncate(old + got.map_or(0, |(len, _)| len));
        }
    }

    /// Makes the producers commit their chunks.
    pub fn flush(&mut self) {
        self.call("Flush");
    }

    /// Ends the session and returns the trace.
    pub fn stop(mut self) -> Trace {
        // There is no flush before this call, because the service would wait for a producer that has just ended.
        self.call("DisableTracing");
        self.wait_for(self.enabled);
        if let Some(file) = self.file.take() {
            self.call("FreeBuffers");
            return Trace::open(&file);
        }
        let wanted = self.invoke("ReadBuffers", |_| ());
        let (mut packets, mut packet) = (Vec::new(), Vec::new());
        self.receive(|request, body| {
            let Body::Reply { is_success, has_more, reply } = body else { return None };
            if request != wanted {
                return None;
            }
            assert!(is_success);
            for (_, slice) in Reader::new(reply).filter(|(field, _)| *field == 2) {
                let part = Reader::first(slice.bytes(), 1).map_or(&[][..], |data| data.bytes());
                packet.extend_from_slice(part);
                if Reader::first(slice.bytes(), 2).is_some_and(|last| last.number() != 0) {
                    packets.push(std::mem::take(&mut packet));
                }
            }
            (!has_more).then_some(())
        });
        self.call("FreeBuffers");
        Trace::new(packets)
    }
}
