//! Tests `atrace record` with the system's service: the command's requests, and its reactions to the service's
//! behaviour.
//!
//! A *stand-in* takes the place of the service. It answers as Perfetto's service does, reports the producers and data
//! sources that a test names, and writes the trace that the test has prepared.

#[path = "../../../atrace/tests/common/mod.rs"]
mod common;
mod here;

#[allow(unsafe_code, reason = "the command is told to end as by a terminal")]
mod cases {
    use std::fs::{self, File};
    use std::io::Write as _;
    use std::os::fd::{AsFd as _, OwnedFd};
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::os::unix::process::CommandExt as _;
    use std::path::PathBuf;
    use std::process::Command;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    use atrace::control::{Control, Properties};
    use atrace_cli::tracefs;
    use atrace_perfetto::proto::{Reader, Writer};
    use atrace_perfetto::socket::{Socket, peer};
    use atrace_perfetto::wire::{self, Body, FRAME_MAX, PREFIX};

    use crate::common::{self, Ran, case, is_root};
    use crate::here::{Here, USER, end, signal};

    const METHODS: [&str; 6] =
        ["QueryServiceState", "EnableTracing", "QueryCapabilities", "Flush", "DisableTracing", "FreeBuffers"];

    /// The behaviour of the stand-in for the system's service.
    #[derive(Clone, Default)]
    struct System {
        producers: Vec<&'static str>,
        sources: Vec<&'static str>,
        trace: Vec<u8>,
        /// Whether the service exits (closes the connection) as soon as a recording has begun.
        goes: bool,
        /// Whether the service ends a recording as soon as it has begun, as a service does if the disk is full.
        ends: bool,
        /// The error that the service reports.
        fault: &'static str,
        /// Whether the service sends parts of a reply without end.
        floods: bool,
        /// Whether the service, after a recording has begun, sends a part of a frame and then nothing more.
        hangs: bool,
        /// Whether the service answers a request to bind with an invalid frame.
        garbles: bool,
        /// Whether the command gets SIGINT while it waits for the service's replies at the start and at the end of a
        /// recording.
        interrupts: bool,
        /// Whether the service, after a recording has begun, sends a descriptor whose `close` blocks for a long time.
        lingers: bool,
    }

    impl System {
        /// Serves all connections until the test's process ends. The returned channel gets the configuration of each
        /// session.
        fn serve(self, here: &Here) -> Receiver<Vec<u8>> {
            let listener = UnixListener::bind(here.path("consumers")).unwrap();
            let (sender, receiver) = channel();
            std::thread::spawn(move || {
                for stream in listener.incoming() {
                    self.clone().answer(stream.unwrap(), &sender);
                }
            });
            receiver
        }

        /// Answers the requests of one consumer until either side closes the connection.
        fn answer(self, stream: UnixStream, begun: &Sender<Vec<u8>>) {
            let command = peer(stream.as_fd()).unwrap().0.cast_signed();
            let socket = Socket::new(OwnedFd::from(stream));
            let (mut inbox, mut bytes) = (Vec::new(), vec![0; FRAME_MAX + PREFIX]);
            let (mut file, mut enabled) = (None, 0);
            loop {
                while let Some((frame, len)) = wire::split(&inbox).unwrap() {
                    let request = frame.request;
                    let nothing = Some(|_: &mut Writer<'_>| ());
                    let send = |frame: Option<&[u8]>| socket.send(frame.unwrap(), None);
                    match frame.body {
                        Body::Bind(_) if self.garbles => _ = send(Some(&[0xff; 8])),
                        Body::Bind(_) => _ = send(wire::bound(&mut bytes, request, &METHODS)),
                        Body::Invoke { method, arguments, .. } => match METHODS[method.method as usize - 1] {
                            "QueryServiceState" => {
                                let names = |reply: &mut Writer<'_>| {
                                    reply.message(1, |state| {
                                        (0..1000).for_each(|_| _ = state.message(1, |_| ()));
                                    });
                                };
                                let mut flood = || {
                                    let frame = wire::reply_to(&mut bytes, request, true, Some(names));
                                    socket.send(frame.unwrap(), None)
                                };
                                if self.floods {
                                    while flood() {}
                                    return;
                                }
                                let state =
                                    |reply: &mut Writer<'_>| _ = reply.message(1, |state| self.state(state));
                                send(wire::reply_to(&mut bytes, request, false, Some(state)));
                            }
                            "EnableTracing" => {
                                enabled = request;
                                // Sending fails in tests that do not read the configuration.
                                let _ = begun.send(Reader::first(arguments, 1).unwrap().bytes().to_vec());
                                let mut file = File::from(OwnedFd::from(Option::take(&mut file).unwrap()));
                                file.write_all(&self.trace).unwrap();
                            }
                            name => {
                                if self.interrupts && ["QueryCapabilities", "Flush"].contains(&name) {
                                    // Sends the signal several times, because the command may not be waiting for the
                                    // reply yet.
                                    for _ in 0..10 {
                                        // SAFETY: the command runs as long as this test waits for its end.
                                        assert_eq!(unsafe { libc::kill(command, libc::SIGINT) }, 0);
                                        std::thread::sleep(Duration::from_millis(20));
                                    }
                                }
                                send(wire::reply_to(&mut bytes, request, false, nothing));
                                if self.goes && name == "QueryCapabilities" {
                                    return;
                                }
                                if name == "DisableTracing" || self.ends && name == "QueryCapabilities" {
                                    let fault = |reply: &mut Writer<'_>| {
                                        if !self.fault.is_empty() {
                                            reply.bytes(3, self.fault.as_bytes());
                                        }
                                    };
                                    send(wire::reply_to(&mut bytes, enabled, false, Some(fault)));
                                }
                                if self.lingers && name == "QueryCapabilities" {
                                    let file = common::lingering();
                                    socket.send(&[9], Some(std::os::fd::AsRawFd::as_raw_fd(&file)));
                                    drop(file); // The descriptor that was sent is still open.
                                    while socket.receive(&mut [0; 4096]).is_ok() {
                                        socket.wait(None);
                                    }
                                    return;
                                }
                                if self.hangs && name == "QueryCapabilities" {
                                    socket.send(&[9], None);
                                    while socket.receive(&mut [0; 4096]).is_ok() {
                                        socket.wait(None);
                                    }
                                    return;
                                }
                            }
                        },
                        _ => panic!("{frame:?}"),
                    }
                    inbox.drain(..len);
                }
                let mut part = [0; 4096];
                socket.wait(None);
                match socket.receive(&mut part) {
                    Ok(got) => {
                        let (len, descriptor) = got.unwrap_or((0, None));
                        inbox.extend_from_slice(&part[..len]);
                        file = descriptor.or(file);
                    }
                    Err(_) => return,
                }
            }
        }

        fn state(&self, state: &mut Writer<'_>) {
            for name in &self.producers {
                state.message(1, |producer| _ = producer.bytes(2, name.as_bytes()));
            }
            for name in &self.sources {
                state.message(2, |source| {
                    _ = source.message(1, |source| _ = source.bytes(1, name.as_bytes()))
                });
            }
        }
    }

    /// Returns the command `atrace record -fo out …`, with the stand-in as the system's service and with a private
    /// property store.
    fn record(here: &Here, case: &str, options: &[&str]) -> Command {
        let mut command = here.atrace(case);
        command
            .args(["record", "-fo", "out"])
            .args(options)
            .env("ATRACE_PROPERTIES", here.path("properties"));
        command.env("PERFETTO_CONSUMER_SOCK_NAME", here.path("consumers"));
        command.env("PERFETTO_PRODUCER_SOCK_NAME", here.path("producers"));
        command
    }

    /// Returns the events and apps that a configuration requests from the data source `linux.ftrace`, or `None` if the
    /// configuration does not request this data source.
    fn of_kernel(config: &[u8]) -> Option<(Vec<String>, Vec<String>)> {
        let sources = Reader::new(config).filter(|(field, _)| *field == 2);
        let source = |bytes| Reader::first(bytes, 1).unwrap().bytes();
        let mut kernel = sources.filter_map(|(_, value)| Reader::first(source(value.bytes()), 100));
        let kernel = kernel.next()?.bytes();
        let texts = |wanted| {
            let fields = Reader::new(kernel).filter(|(field, _)| *field == wanted);
            fields.map(|(_, value)| String::from_utf8(value.bytes().to_vec()).unwrap()).collect()
        };
        Some((texts(1), texts(3)))
    }

    /// Returns the bytes of a trace that consists of these packets.
    fn trace(packets: &[&dyn Fn(&mut Writer<'_>)]) -> Vec<u8> {
        let mut bytes = vec![0; 4096];
        let mut writer = Writer::new(&mut bytes);
        for packet in packets {
            writer.message(1, |writer| packet(writer));
        }
        writer.finish().unwrap().to_vec()
    }

    fn patterns(here: &Here) -> Vec<Vec<u8>> {
        Control::from(Properties::open_path(&here.path("properties")).unwrap()).patterns()
    }

    const KERNEL: [&str; 2] = ["track_event", "linux.ftrace"];

    /// Tests that the command switches tracing on in programs that use ATrace, because on Linux the service does not.
    #[test]
    fn programs_that_trace_by_atrace_are_switched_on_meanwhile() {
        let name = case!({});
        let here = Here::new();
        let system =
            System { producers: vec!["/its/producer"], sources: KERNEL.to_vec(), ..System::default() };
        let begun = system.serve(&here);
        let child = record(&here, &name, &["-a", "*/producer", "-a", "*/other"]).spawn().unwrap();
        let (events, apps) = of_kernel(&begun.recv().unwrap()).expect("the kernel's source");
        assert!(events.contains(&"ftrace/print".to_owned()), "{events:?}");
        if cfg!(target_os = "android") {
            assert_eq!(apps, ["*/other"]);
        } else {
            assert_eq!(apps, [""; 0]);
            // A program that is already a producer is recorded by the service, so only the other pattern is switched
            // on.
            common::until("the other is on", || patterns(&here) == [b"*/other"]);
        }
        signal(&child, libc::SIGINT);
        let ran = common::end_of(child);
        assert!(ran.status.success() && ran.stderr.contains("saved out"), "{ran:?}");
        assert_eq!(patterns(&here), [b""; 0]);
    }

    /// Tests that the marker's events are requested from the service if a pattern was on before the recording, and that
    /// no events of the kernel are requested if no pattern was on.
    #[test]
    fn what_is_on_already_is_recorded() {
        let name = case!({});
        let here = Here::new();
        let begun = System { sources: KERNEL.to_vec(), ..System::default() }.serve(&here);
        for is_on in [false, true] {
            if is_on {
                Control::from(Properties::open_path(&here.path("properties")).unwrap())
                    .enable("*/other")
                    .unwrap()
                    .keep();
            }
            let ran = end(&mut record(&here, &name, &["-t", "1ms"]));
            assert!(ran.status.success(), "{ran:?}");
            let kernel = of_kernel(&begun.recv().unwrap());
            let wanted = is_on.then(|| (vec!["ftrace/print".to_owned()], vec![]));
            // On Android, the system's property store is used, in which patterns may be on.
            assert!(kernel == wanted || cfg!(target_os = "android"), "{kernel:?}");
        }
    }

    /// Tests a service that exits during a recording: the recording ends, and the data that the service has written is
    /// saved.
    #[test]
    fn what_a_service_wrote_before_it_went_is_saved() {
        let name = case!({});
        let here = Here::new();
        let trace = trace(&[&|packet| _ = packet.number(10, 1)]);
        System { trace: trace.clone(), goes: true, ..System::default() }.serve(&here);
        // The command runs without `-t`, so only the service's end can end the recording.
        let ran = end(&mut record(&here, &name, &[]));
        assert_eq!(ran.status.code(), Some(1), "{ran:?}");
        assert!(ran.stderr.contains("saved out"), "{ran:?}");
        assert!(ran.stderr.contains("the service ended the recording"), "{ran:?}");
        assert_eq!(fs::read(here.path("out")).unwrap(), trace);
    }

    /// Tests a service that ends the recording, as if its disk were full, and keeps running.
    #[test]
    fn what_a_service_wrote_before_it_ended_the_recording_is_saved() {
        let name = case!({});
        let here = Here::new();
        let trace = trace(&[&|packet| _ = packet.number(10, 1)]);
        System { trace: trace.clone(), ends: true, ..System::default() }.serve(&here);
        let ran = end(&mut record(&here, &name, &[]));
        assert_eq!(ran.status.code(), Some(1), "{ran:?}");
        assert!(ran.stderr.contains("saved out"), "{ran:?}");
        assert!(
            ran.stderr.contains("the service ended the recording: it does not say why; the disk may be full")
        );
        assert_eq!(fs::read(here.path("out")).unwrap(), trace);
    }

    #[test]
    fn what_a_service_says_is_text() {
        let name = case!({});
        let here = Here::new();
        System { ends: true, fault: "evil\x1b[2J\rnone\natrace: saved", ..System::default() }.serve(&here);
        let ran = end(&mut record(&here, &name, &[]));
        assert_eq!(ran.status.code(), Some(1), "{ran:?}");
        assert!(ran.stderr.contains(r"evil\x1b[2J\x0dnone\x0aatrace: saved"), "{ran:?}");
        assert!(ran.stderr.chars().all(|c| c == '\n' || !c.is_control()), "{ran:?}");
    }

    #[test]
    fn an_answer_without_an_end_is_not_read_to_the_end() {
        let name = case!({});
        let here = Here::new();
        System { floods: true, ..System::default() }.serve(&here);
        let mut command = record(&here, &name, &["-t", "1ms"]);
        let ran = end(common::limited(&mut command, libc::RLIMIT_AS, 1 << 30, 1 << 30));
        assert_eq!(ran.status.code(), Some(1), "{ran:?}");
        assert!(ran.stderr.contains("the service's reply is too long"), "{ran:?}");
    }

    /// Tests a service that sends an incomplete frame and then nothing. The recording goes on, and the command waits
    /// only a limited time for the recording's end.
    #[test]
    fn a_service_that_hangs_is_not_waited_for() {
        let name = case!({});
        let here = Here::new();
        System { hangs: true, ..System::default() }.serve(&here);
        let start = std::time::Instant::now();
        let ran = end(&mut record(&here, &name, &["-t", "100ms"]));
        assert_eq!(ran.status.code(), Some(1), "{ran:?}");
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}: {ran:?}", start.elapsed());
        assert!(ran.stderr.contains("timed out"), "{ran:?}");
    }

    /// Tests Ctrl-C while the command starts a recording, and again while the command ends the recording.
    #[test]
    fn a_signal_does_not_end_a_wait_for_the_service() {
        let name = case!({});
        let here = Here::new();
        let trace = trace(&[&|packet| _ = packet.number(10, 1)]);
        System { trace: trace.clone(), interrupts: true, ..System::default() }.serve(&here);
        let ran = end(&mut record(&here, &name, &[]));
        assert!(ran.status.success() && ran.stderr.contains("saved out"), "{ran:?}");
        assert_eq!(fs::read(here.path("out")).unwrap(), trace);
    }

    #[test]
    fn a_service_that_sends_garbage_is_not_called_slow() {
        let name = case!({});
        let here = Here::new();
        System { garbles: true, ..System::default() }.serve(&here);
        let mut command = here.atrace(&name);
        command.env("ATRACE_PROPERTIES", here.path("properties"));
        let ran = end(command.arg("status").env("PERFETTO_CONSUMER_SOCK_NAME", here.path("consumers")));
        assert!(ran.status.success(), "{ran:?}");
        assert!(ran.stdout.contains("consumers: the service sent an invalid frame\n"), "{ran:?}");
    }

    /// Tests that the command does not close a descriptor that the service sends. Closing it would take 40 s.
    #[test]
    fn a_descriptor_that_a_service_sends_is_not_closed() {
        let name = case!({});
        let here = Here::new();
        System { lingers: true, ..System::default() }.serve(&here);
        let start = std::time::Instant::now();
        let ran = end(&mut record(&here, &name, &["-t", "100ms"]));
        assert_eq!(ran.status.code(), Some(1), "{ran:?}");
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}: {ran:?}", start.elapsed());
    }

    #[test]
    fn what_the_service_lost_is_said() {
        let name = case!({});
        let here = Here::new();
        let told = trace(&[
            &|packet| _ = packet.number(10, 7).number(42, 1), // The first packet of a sequence: no loss before it.
            &|packet| _ = packet.number(10, 7).number(42, 1),
            &|packet| _ = packet.number(10, 7),
            &|packet| _ = packet.number(10, 7).number(42, 256),
            &|packet| _ = packet.message(1, |bundle| _ = bundle.number(1, 0).number(3, 1)),
            &|packet| {
                packet.message(34, |stats| {
                    _ = stats.bytes(6, b"power/cpu_idle").bytes(6, b"power/clock_enable")
                });
            },
            // The service writes statistics repeatedly; only the last ones count.
            &|packet| _ = packet.message(35, |stats| _ = stats.message(1, |buffer| _ = buffer.number(3, 4))),
            &|packet| {
                packet.message(35, |stats| {
                    _ = stats.message(1, |buffer| _ = buffer.number(3, 5)).number(14, 1)
                });
            },
        ]);
        System { sources: KERNEL.to_vec(), trace: told, ..System::default() }.serve(&here);
        let ran = end(&mut record(&here, &name, &["-t", "1ms"]));
        assert!(ran.status.success(), "{ran:?}");
        for line in [
            "2 times events were lost, because a program wrote faster than they could be read",
            "5 chunks of the buffer were overwritten before they were saved: a larger --buffer avoids this",
            "once a program did not commit its chunks in time",
            "once events of the kernel were lost",
        ] {
            assert!(ran.stderr.contains(line), "{line}: {ran:?}");
        }
    }

    #[test]
    fn nothing_is_said_of_a_whole_trace() {
        let name = case!({});
        let here = Here::new();
        let trace = trace(&[
            &|packet| _ = packet.number(10, 7).number(42, 1),
            &|packet| _ = packet.message(1, |bundle| _ = bundle.number(1, 0)),
            &|packet| _ = packet.message(35, |stats| _ = stats.message(1, |buffer| _ = buffer.number(3, 0))),
        ]);
        System { trace, ..System::default() }.serve(&here);
        let ran = end(&mut record(&here, &name, &["-t", "1ms"]));
        assert!(ran.status.success(), "{ran:?}");
        assert!(!ran.stderr.contains("lost") && !ran.stderr.contains("overwritten"), "{ran:?}");
    }

    /// Tests that an invalid category is refused before the recording begins, as in recordings without a service.
    #[test]
    fn categories_that_are_none_are_refused() {
        let name = case!({});
        let here = Here::new();
        let begun = System { sources: KERNEL.to_vec(), ..System::default() }.serve(&here);
        let run = |categories: &str| end(&mut record(&here, &name, &["-t", "1ms", "-c", categories]));
        let is_refused = |ran: Ran, category: &str| {
            assert_eq!(ran.status.code(), Some(1), "{ran:?}");
            assert!(ran.stderr.contains(&format!("{category:?} is no category")), "{ran:?}");
            let no_trace =
                here.files().iter().all(|name| ["consumers", "properties"].contains(&name.as_str()));
            assert!(begun.try_recv().is_err() && no_trace, "{ran:?}");
        };
        is_refused(run("sched,../sched"), "../sched");
        if let Ok(root) = tracefs::root() {
            is_refused(run("no_such_group"), "no_such_group");
            // The command requests only events that this kernel has.
            let ran = run("sched");
            assert!(ran.status.success(), "{ran:?}");
            let (events, _) = of_kernel(&begun.recv_timeout(Duration::from_secs(30)).unwrap()).unwrap();
            assert!(events.contains(&"sched/sched_switch".to_owned()), "{events:?}");
            let is_there = |event: &String| root.join("events").join(event.trim_end_matches("/*")).is_dir();
            assert!(events.iter().all(is_there), "{events:?}");
        } else {
            common::skipped(&name, "needs tracefs");
        }
    }

    /// Tests a user who may not read tracefs. The command must say that it could not check the names of the events.
    #[test]
    fn categories_that_cant_be_seen_are_said() {
        let name = case!({});
        if !is_root(&name) {
            return;
        }
        let here = Here::new();
        fs::set_permissions(here.path(""), fs::Permissions::from_mode(0o777)).unwrap();
        let begun = System { sources: KERNEL.to_vec(), ..System::default() }.serve(&here);
        fs::set_permissions(here.path("consumers"), fs::Permissions::from_mode(0o666)).unwrap();
        let mut command = record(&here, &name, &["-t", "1ms", "-c", "no_such_group,idle"]);
        let ran = end(command.env_remove("ATRACE_PROPERTIES").uid(USER).gid(USER));
        assert!(ran.status.success(), "{ran:?}");
        assert_eq!(
            ran.stderr.matches("this user can't see whether this kernel has events of no_such_group").count(),
            1
        );
        let (events, _) = of_kernel(&begun.recv().unwrap()).unwrap();
        assert_eq!(events, ["no_such_group/*", "power/cpu_idle", "ftrace/print"]);
    }

    #[test]
    fn a_user_who_may_not_record_is_told() {
        let name = case!({});
        if !is_root(&name) {
            return;
        }
        let here = Here::new();
        fs::set_permissions(here.path(""), fs::Permissions::from_mode(0o777)).unwrap();
        let listeners = ["consumers", "producers"].map(|name| UnixListener::bind(here.path(name)).unwrap());
        let closed = |name: &str| -> PathBuf {
            fs::set_permissions(here.path(name), fs::Permissions::from_mode(0o600)).unwrap();
            here.path(name)
        };
        closed("consumers");
        let mut command = record(&here, &name, &["-t", "1ms"]);
        let ran = end(command.env_remove("ATRACE_PROPERTIES").uid(USER).gid(USER));
        assert_eq!(ran.status.code(), Some(1), "{ran:?}");
        let said =
            "the service there does not let this user record: can't connect to its socket: Permission denied";
        assert!(ran.stderr.contains(said), "{ran:?}");
        drop(listeners);
    }
}
