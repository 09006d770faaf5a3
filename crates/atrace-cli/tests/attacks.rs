//! `atrace run` under attack by programs that it serves. When the command is asked to end, it must end. The command
//! must not use memory or descriptors without limit. If root runs the tests, the attacks come from a program of another
//! user, as under `sudo`; otherwise, from a program of the user who runs the tests.
//!
//! The service limits the cost of an attack by processes of the user that it serves. The service does not promise that
//! other programs of that user are still recorded during an attack.
#![cfg(target_os = "linux")]

#[path = "../../../atrace/tests/common/mod.rs"]
mod common;
mod here;
mod peer;
#[allow(dead_code, unreachable_pub, reason = "this module is shared with the tests in `crates/real-service`")]
#[path = "../../real-service/src/trace.rs"]
mod trace;

#[allow(unsafe_code, reason = "attackers do what C programs can")]
mod cases {
    use std::fs;
    use std::os::fd::{AsRawFd as _, OwnedFd};
    use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
    use std::os::unix::process::CommandExt as _;
    use std::path::{Path, PathBuf};
    use std::process::{Child, Command};
    use std::time::{Duration, Instant};

    use atrace::*;
    use atrace_perfetto::foreign::{CONTINUES, GOES_ON, NEEDS_PATCHES, State};
    use atrace_perfetto::proto::Writer;
    use atrace_perfetto::socket::Socket;
    use atrace_perfetto::wire::{self, ChunkPlace};

    use crate::common::{self, Ran, case, until};
    use crate::here::{Here, OVER, USER, ended_when_told, signal};
    use crate::peer::{COMPLETE, Memory, PAGE, Producer, SEALS, memory, method};
    use crate::trace::Trace;

    const TAG: AtraceTag = AtraceTag::App;
    /// The time in which the command must end after it was asked to end: the documented promise plus a margin for an
    /// unoptimized build. On a busy machine, the command may take longer, by the factor `slowness`.
    const ENDS: Duration = Duration::from_secs(6);
    /// The memory that the command may use in addition to the ring buffer of `--ring`: the documented promise plus a
    /// margin for an unoptimized build.
    const MEMORY_MIB: u64 = 200;
    /// The maximum number of descriptors that the command may use.
    const DESCRIPTORS: usize = 256;

    /// Does the work of the program that the command runs: forks an attacker, which waits to be killed after its
    /// attack, and then sleeps. If `HONEST` is set in the environment, the program does not attack: it writes one event
    /// as soon as a session wants the event.
    fn play(attack: fn(&Path, &dyn Fn())) {
        let socket = PathBuf::from(std::env::var_os("PERFETTO_PRODUCER_SOCK_NAME").unwrap());
        if std::env::var_os("HONEST").is_some() {
            let start = Instant::now();
            while !atrace_is_tag_enabled(TAG) {
                assert!(start.elapsed() < Duration::from_secs(100), "refused");
                std::thread::sleep(Duration::from_millis(1));
            }
            return atrace_instant(TAG, "honest");
        }
        // SAFETY: the child attacks and ends. It uses no lock or other state that another thread may have held during
        // the fork.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let null = fs::File::options().read(true).write(true).open("/dev/null").unwrap();
            // SAFETY: both are descriptors of this process.
            (0..2).for_each(|fd| unsafe { assert_eq!(libc::dup2(null.as_raw_fd(), fd), fd) });
            let said = fs::File::create("said").unwrap();
            // SAFETY: both are descriptors of this process.
            assert_eq!(unsafe { libc::dup2(said.as_raw_fd(), 2) }, 2);
            common::limit(libc::RLIMIT_NOFILE, 1024, 4096).unwrap();
            let ready = || fs::write("ready", "").unwrap();
            attack(&socket, &ready);
            // `ready` is also called if the attack ended early because the service disconnected the attacker.
            ready();
            std::thread::sleep(Duration::from_secs(100));
            // SAFETY: ends the child at once, without the destructors and handlers that its parent would run.
            unsafe { libc::_exit(0) };
        }
        fs::write("socket", socket.as_os_str().as_encoded_bytes()).unwrap();
        fs::write("attacker", child.to_string()).unwrap();
        loop {
            std::thread::sleep(Duration::from_secs(100));
        }
    }

    fn is_root() -> bool {
        // SAFETY: no preconditions.
        unsafe { libc::geteuid() == 0 }
    }

    /// A directory to which the attacker's user may write, and in which the command runs the test case.
    struct Place(Here);

    impl Place {
        fn new() -> Self {
            let here = Here::new();
            fs::create_dir(here.path("place")).unwrap();
            fs::set_permissions(here.path("place"), fs::Permissions::from_mode(0o777)).unwrap();
            Self(here)
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.path("place").join(name)
        }

        fn run(&self, case: &str, options: &[&str]) -> Command {
            let mut command = self.0.atrace(case);
            command.args(["run", "-fo", "out"]).args(options).arg("--").arg(self.0.path("program"));
            command.args([case, "--exact", "--nocapture", "--test-threads=1"]);
            command.current_dir(self.0.path("place"));
            if is_root() {
                command.env("SUDO_UID", USER.to_string()).env("SUDO_GID", USER.to_string());
            }
            command
        }

        /// Runs an honest program of the same user. The program fails if no session records it within 100 seconds.
        fn honest(&self, case: &str) -> Ran {
            let mut command = self.0.cleared(&self.0.path("program"), case);
            command.args([case, "--exact", "--nocapture", "--test-threads=1"]).env("HONEST", "1");
            command.current_dir(self.path("")).env("ATRACE_BACKEND", "perfetto");
            command.env("PERFETTO_PRODUCER_SOCK_NAME", fs::read_to_string(self.path("socket")).unwrap());
            if is_root() {
                command.uid(USER).gid(USER);
            }
            common::end_of(command.spawn().unwrap())
        }
    }

    /// The resources that the command used while it was attacked.
    #[derive(Debug)]
    struct Borne {
        ran: Ran,
        /// The time from the signal to the command's end.
        ended_after: Duration,
        /// The factor by which the load slowed the machine down, measured after the command's end if the end was late;
        /// otherwise 1.
        slowness: f64,
        memory_mib: u64,
        descriptors: usize,
        /// The share of one processor that the command used after the attack had begun.
        processor: f64,
        /// Whether an honest program was recorded during the attack.
        honest: bool,
    }

    impl Borne {
        #[track_caller]
        fn is_bounded(&self, memory_mib: u64) {
            assert!(self.ended_after < ENDS.mul_f64(self.slowness), "{self:?}");
            assert!(self.memory_mib <= memory_mib, "{self:?}");
            assert!(self.descriptors <= DESCRIPTORS, "{self:?}");
            assert_eq!(self.ran.status.code(), Some(128 + libc::SIGINT), "{self:?}");
        }
    }

    /// The command and the program that it runs. Dropping the `Served` kills both, so that none remains if the test
    /// fails.
    struct Served(Option<Child>);

    impl Served {
        fn start(command: &mut Command) -> Self {
            Self(Some(command.process_group(0).spawn().unwrap()))
        }

        fn child(&mut self) -> &mut Child {
            self.0.as_mut().unwrap()
        }

        fn end(mut self) -> Ran {
            common::end_of(self.0.take().unwrap())
        }
    }

    impl Drop for Served {
        fn drop(&mut self) {
            if let Some(child) = &mut self.0 {
                // SAFETY: the process group of a child that was not waited for, so its number is not reused.
                unsafe { libc::kill(-child.id().cast_signed(), libc::SIGKILL) };
                let _ = child.wait();
            }
        }
    }

    /// The process id of an attacker. Dropping the `Attacker` kills the process.
    struct Attacker(libc::pid_t);

    impl Attacker {
        /// Returns whether the process still runs. A process that panicked remains as a zombie.
        fn is_running(&self) -> bool {
            fs::read_to_string(format!("/proc/{}/stat", self.0)).is_ok_and(|stat| !stat.contains(") Z "))
        }
    }

    impl Drop for Attacker {
        fn drop(&mut self) {
            // SAFETY: the process belongs to this test. The process's parent is gone, and this test did not wait for
            // the process.
            unsafe { libc::kill(self.0, libc::SIGKILL) };
        }
    }

    fn descriptors(child: &Child) -> usize {
        fs::read_dir(format!("/proc/{}/fd", child.id())).map_or(0, Iterator::count)
    }

    /// Returns the maximum memory that the process has used so far, in MiB.
    fn memory_mib(child: &Child) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        peak.trim().trim_end_matches(" kB").parse::<u64>().unwrap() >> 10
    }

    /// Returns the processor time that the process has used.
    fn processor(child: &Child) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        let fields: Vec<_> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        let ticks: u32 = [11, 12].map(|at: usize| fields[at].parse::<u32>().unwrap()).iter().sum();
        Duration::from_millis(10) * ticks
    }

    /// Returns the factor by which the present load slows this thread down: elapsed time divided by processor time.
    fn slowness() -> f64 {
        let worked = || {
            let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            // SAFETY: `time` is writable.
            assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) }, 0);
            time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
        };
        let (start, before) = (Instant::now(), worked());
        while worked() < before + 0.1 {}
        start.elapsed().as_secs_f64() / (worked() - before)
    }

    /// Runs the attack under the command for a while, and then asks the command to end. Returns the resources that the
    /// command used. The attacker runs until this function kills it.
    fn bear(case: &str, options: &[&str], time: Duration, with_honest: bool) -> Borne {
        bear_with(case, options, time, with_honest, 1024)
    }

    /// Does the same as [`bear`], with a limit of the command's descriptors. The attacker raises the limit for itself.
    fn bear_with(case: &str, options: &[&str], time: Duration, with_honest: bool, limit: u64) -> Borne {
        let place = Place::new();
        let mut command = place.run(case, options);
        let mut served = Served::start(common::limited(&mut command, libc::RLIMIT_NOFILE, limit, 4096));
        until("the attacker has a number", || {
            fs::read_to_string(place.path("attacker")).is_ok_and(|text| !text.is_empty())
        });
        let attacker = Attacker(fs::read_to_string(place.path("attacker")).unwrap().parse().unwrap());
        let begun = Instant::now();
        while !place.path("ready").exists() {
            let waits = attacker.is_running() && begun.elapsed() < Duration::from_secs(600);
            let said = || fs::read_to_string(place.path("said")).unwrap();
            assert!(waits || place.path("ready").exists(), "the attack does not begin: {}", said());
            std::thread::sleep(Duration::from_millis(1));
        }
        let child = served.child();
        let (start, before) = (Instant::now(), processor(child));
        let honest = with_honest.then(|| place.honest(case));
        let mut most = 0;
        while start.elapsed() < time {
            most = most.max(descriptors(child));
            std::thread::sleep(Duration::from_millis(5));
        }
        let processor = (processor(child) - before).as_secs_f64() / start.elapsed().as_secs_f64();
        let memory_mib = memory_mib(child);
        signal(child, libc::SIGINT);
        let told = Instant::now();
        let ran = served.end();
        let ended_after = told.elapsed();
        // The attack still goes on here, as it did while the command ended.
        let slowness = if ended_after < ENDS { 1.0 } else { slowness() };
        drop(attacker);
        let honest = honest.is_some_and(|ran| {
            let events = Trace::open(&place.path("out")).events();
            ran.status.success() && events.iter().any(|event| event.pid == u64::from(ran.pid))
        });
        Borne { ran, ended_after, slowness, memory_mib, descriptors: most, processor, honest }
    }

    const SHORT: Duration = Duration::from_secs(2);

    /// Sends a request that the service does not answer, with a descriptor if `file` is given. Returns false if the
    /// service has closed the connection.
    fn say(
        socket: &Socket,
        number: u32,
        file: Option<&OwnedFd>,
        arguments: impl FnOnce(&mut Writer<'_>),
    ) -> bool {
        let mut bytes = vec![0; 128 << 10];
        let frame = wire::invoke(&mut bytes, 9, method(number), false, arguments).unwrap();
        socket.send(frame, file.map(std::os::fd::AsRawFd::as_raw_fd))
    }

    /// Attacks with descriptors of which the last `close` blocks. They are sent in several ways: as the shared memory,
    /// with a request that needs no descriptor, with an incomplete frame, after a fault that disconnects the sender,
    /// and several at once.
    fn lingers(socket: &Path, ready: &dyn Fn()) {
        let mut kept = Vec::new();
        // Closes the descriptor in a thread, because `close` blocks if the service has already closed its copy.
        let close = |file: OwnedFd| drop(std::thread::spawn(move || drop(file)));
        let send = |socket: &Socket, frame: &[u8]| {
            let file = common::lingering();
            socket.send(frame, Some(file.as_raw_fd()));
            close(file);
        };
        let send_request = |socket: &Socket| {
            let file = common::lingering();
            let is_heard = say(socket, 11, Some(&file), |_| ());
            close(file);
            is_heard
        };
        let first = Producer::bare(socket);
        send_request(&first.socket);
        kept.push(first.socket);
        for round in 0..25 {
            if round == 3 {
                ready();
            }
            let mut producer = Producer::bare(socket);
            let file = common::lingering();
            producer.initialize(&file, PAGE as u64);
            close(file);
            kept.push(producer.socket);
            // Does not wait for an answer, because the service's threads that would receive the memory may all be
            // blocked in a last `close`.
            let mut producer = Producer::bare(socket);
            producer.initialize(&memory(4 * PAGE, SEALS), PAGE as u64);
            let is_heard = send_request(&producer.socket);
            kept.push(producer.socket);
            let bare = Producer::bare(socket);
            send(&bare.socket, &[9, 0, 0, 0]);
            kept.push(bare.socket);
            let bare = Producer::bare(socket);
            bare.socket.send(&[0xff; 8], None);
            send(&bare.socket, &[0xff; 8]);
            kept.push(bare.socket);
            if !is_heard && round > 20 {
                return;
            }
        }
    }

    #[test]
    fn a_socket_that_lingers_when_it_is_closed_holds_up_nobody() {
        let name = case!({ play(lingers) });
        bear(&name, &[], SHORT, false).is_bounded(MEMORY_MIB);
    }

    /// Connects a producer with 32 MiB of memory in pages of 32 KiB, each of which is one chunk.
    fn large(socket: &Path) -> Producer {
        let file = memory(32 << 20, SEALS);
        let mut producer = Producer::bare(socket);
        producer.initialize(&file, 32 << 10);
        producer.begin();
        producer.memory = Memory::new(&file, 32 << 10);
        producer
    }

    /// Reports the first `chunks` chunks of each of these pages to the service as complete. Returns false if the
    /// service has closed the connection.
    fn commit(producer: &Producer, pages: impl Iterator<Item = u32>, chunks: u32) -> bool {
        say(&producer.socket, 4, None, |commit| {
            for page in pages {
                for chunk in 0..chunks {
                    ChunkPlace { page, chunk, buffer: 1 }.write(commit);
                }
            }
        })
    }

    fn is_taken(producer: &Producer, page: u32) -> bool {
        producer.memory.seen.state(page, 0) != Some(State::Complete)
    }

    /// Attacks with two connections of 1,009 writers. Each writer has a packet that never ends: it continues in each
    /// next chunk of the writer.
    fn continues(socket: &Path, ready: &dyn Fn()) {
        let mut producers = [large(socket), large(socket)];
        for number in 0.. {
            for producer in &mut producers {
                for writer in 1..=1009_u32 {
                    let start = (writer as usize - 1) << 15;
                    let flags = if number == 0 { GOES_ON } else { GOES_ON | CONTINUES };
                    let head = [number, u32::from(flags) << 26 | 1 << 16 | writer];
                    let bytes: Vec<_> = head.iter().flat_map(|word| word.to_ne_bytes()).collect();
                    let length = [0xe0, 0xf9, 0x81, 0x00]; // 31,968
                    let bytes = [bytes.as_slice(), &length].concat();
                    producer.memory.file.write_all_at(&bytes, start as u64 + 8).unwrap();
                    producer.memory.store(start, 1 << 28 | COMPLETE);
                }
                for first in [0, 500] {
                    if !commit(producer, first..(first + 509), 1) {
                        return;
                    }
                }
            }
            if number == 2 {
                ready();
            }
            while producers.iter().any(|producer| !is_taken(producer, 1008)) {
                if !producers.iter().all(|producer| say(&producer.socket, 11, None, |_| ())) {
                    return;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    #[test]
    fn packets_that_never_end_have_one_limit() {
        let name = case!({ play(continues) });
        bear(&name, &[], 5 * SHORT / 2, false).is_bounded(MEMORY_MIB);
    }

    /// Attacks with 60 connections, each of which has 14,000 chunks that wait for patches, and frames full of
    /// patches for the last of these chunks.
    fn waits(socket: &Path, ready: &dyn Fn()) {
        const PAGES: u32 = 1024;
        let mut words = vec![0_u32; PAGES as usize * PAGE / 4];
        for page in 0..PAGES {
            let start = page as usize * PAGE / 4;
            for chunk in 0..14 {
                let at = start + 2 + chunk as usize * 73;
                words[at] = page * 14 + chunk;
                words[at + 1] = u32::from(NEEDS_PATCHES) << 26 | 1 << 16 | 1;
            }
            words[start] = 5 << 28 | 0x0fff_ffff;
        }
        let content: Vec<u8> = words.into_iter().flat_map(u32::to_ne_bytes).collect();
        let producers: Vec<_> = (0..60)
            .map(|_| {
                let file = memory(4 << 20, SEALS);
                let mut producer = Producer::bare(socket);
                producer.initialize(&file, PAGE as u64);
                producer.begin();
                producer.memory = Memory::new(&file, PAGE);
                producer.memory.file.write_all_at(&content, 0).unwrap();
                for first in (0..PAGES).step_by(256) {
                    commit(&producer, first..first + 256, 14);
                }
                producer
            })
            .collect();
        let mut bytes = vec![0; 128 << 10];
        let frame = wire::invoke(&mut bytes, 9, method(4), false, |commit| {
            for _ in 0..9000 {
                commit.message(2, |entry| {
                    entry.number(2, 1).number(3, (PAGES * 14 - 1).into()).number(5, 1);
                });
            }
        });
        let frame = frame.unwrap();
        std::thread::scope(|scope| {
            for producer in &producers {
                scope.spawn(|| while producer.socket.send(frame, None) {});
            }
            ready();
        });
    }

    #[test]
    fn work_without_end_does_not_keep_it_from_ending() {
        let name = case!({ play(waits) });
        bear(&name, &[], SHORT, false).is_bounded(MEMORY_MIB);
    }

    /// Attacks with many connections, each of which sends a descriptor with an incomplete frame.
    fn descriptors_unasked(socket: &Path, ready: &dyn Fn()) {
        let file = memory(PAGE, SEALS);
        let connections: Vec<_> = (0..503)
            .map(|_| {
                let producer = Producer::bare(socket);
                producer.socket.send(&[9, 0, 0, 0], Some(file.as_raw_fd()));
                producer.socket
            })
            .collect();
        ready();
        std::mem::forget(connections);
        // Makes further connections, which wait to be accepted.
        let more: Vec<_> = (0..200).map(|_| std::os::unix::net::UnixStream::connect(socket)).collect();
        std::mem::forget(more);
    }

    #[test]
    fn descriptors_that_nobody_asked_for_are_not_kept() {
        let name = case!({ play(descriptors_unasked) });
        let borne = bear(&name, &[], SHORT, false);
        borne.is_bounded(MEMORY_MIB);
        assert!(borne.processor < 0.5, "{borne:?}");
    }

    /// Attacks with as many connections as possible, each of which sends the request `InitializeConnection`.
    fn greets(socket: &Path, ready: &dyn Fn()) {
        let mut connections = Vec::new();
        for _ in 0..1000 {
            let Ok(stream) = std::os::unix::net::UnixStream::connect(socket) else { break };
            let socket = Socket::new(stream.into());
            let mut bytes = [0; 256];
            let _ = socket.send(wire::bind(&mut bytes, 1, "ProducerPort").unwrap(), None);
            say(&socket, 1, None, |arguments| {
                arguments.number(1, PAGE as u64);
            });
            // Waits until the service has replied, or has refused the connection.
            let answered = || matches!(socket.receive(&mut [0; 4096]), Ok(None));
            while answered() && socket.wait(Some(Duration::from_secs(1))) {}
            connections.push(socket);
        }
        ready();
        std::mem::forget(connections);
    }

    #[test]
    fn one_process_does_not_take_every_place() {
        let name = case!({ play(greets) });
        let borne = bear(&name, &[], SHORT, true);
        borne.is_bounded(MEMORY_MIB);
        assert!(borne.honest, "{borne:?}");
    }

    /// Attacks with chunks full of small events, as fast as the service reads them.
    fn floods(socket: &Path, ready: &dyn Fn()) {
        const CHUNKS: u32 = 64;
        let producer = large(socket);
        let bytes = [4, 0x5a, 2, 0x48, 3].repeat(1023);
        for round in 0.. {
            for page in 0..CHUNKS {
                let start = (page as usize) << 15;
                let head = [round * CHUNKS + page, 1023 << 16 | 1];
                let head: Vec<_> = head.iter().flat_map(|word| word.to_ne_bytes()).collect();
                producer
                    .memory
                    .file
                    .write_all_at(&[&head, bytes.as_slice()].concat(), start as u64 + 8)
                    .unwrap();
                producer.memory.store(start, 1 << 28 | COMPLETE);
            }
            if !commit(&producer, 0..CHUNKS, 1) {
                return;
            }
            // By now, the service has made 19 MB of packets from the chunks.
            if round == 12 {
                ready();
            }
            while !is_taken(&producer, CHUNKS - 1) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    #[test]
    fn a_ring_takes_no_more_memory_than_it_is_to() {
        let name = case!({ play(floods) });
        let check = |mib: u64| {
            let borne = bear(&name, &["--ring", "--buffer", &(mib << 10).to_string()], SHORT, false);
            // The ring is full when the attack is ready. The upper bound also contains the memory that the command
            // needs without an attack.
            assert!((mib..=mib * 5 / 4 + 16).contains(&borne.memory_mib), "{borne:?}");
        };
        std::thread::scope(|scope| {
            scope.spawn(|| check(1));
            check(16);
        });
    }

    /// Makes all attacks at the same time. A separate process repeats each attack.
    fn storms(socket: &Path, ready: &dyn Fn()) {
        for attack in [lingers, continues, waits, descriptors_unasked, greets, floods] {
            // SAFETY: the child attacks, and ends with its parent.
            if unsafe { libc::fork() } == 0 {
                // SAFETY: the arguments are numbers.
                unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
                loop {
                    // An attack panics when the service disconnects it. Its descriptors are closed when it panics or
                    // ends.
                    let _ = std::panic::catch_unwind(|| attack(socket, &|| ()));
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
        }
        std::thread::sleep(Duration::from_secs(1));
        ready();
        std::thread::sleep(Duration::from_secs(200));
    }

    /// Tests all attacks at the same time, for a minute if `ATRACE_LONG_TESTS=1` is set.
    #[test]
    fn a_storm_of_attacks_is_borne() {
        let name = case!({ play(storms) });
        let is_long = std::env::var_os("ATRACE_LONG_TESTS").is_some();
        let time = if is_long { Duration::from_secs(60) } else { SHORT };
        bear(&name, &[], time, false).is_bounded(MEMORY_MIB);
    }

    /// Makes the command run under a filter that makes these system calls fail with EPERM.
    fn denied<const N: usize>(command: &mut Command, calls: [libc::c_long; N]) -> &mut Command {
        let step = |code: u32, k, jt, jf| libc::sock_filter { code: code as u16, jt, jf, k };
        let mut filter = vec![step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0)];
        for call in calls {
            filter.push(step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, call as u32, 0, 1));
            filter.push(step(
                libc::BPF_RET | libc::BPF_K,
                libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
                0,
                0,
            ));
        }
        filter.push(step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0));
        // SAFETY: `prctl` may be called between fork and exec. The filter lives as long as the closure.
        unsafe {
            command.pre_exec(move || {
                let program =
                    libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
                let done = libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                    && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0;
                if done { Ok(()) } else { Err(std::io::Error::last_os_error()) }
            })
        }
    }

    /// Runs a program that traces for three seconds. Returns the command's result, and the processor time that the
    /// command has used during these three seconds.
    fn traced_for_a_while(place: &Place, command: &mut Command) -> (Ran, Duration) {
        let mut served = Served::start(command);
        until("the program has traced for a while", || place.path("ready").exists());
        let took = processor(served.child());
        fs::write(place.path("go"), "").unwrap();
        (served.end(), took)
    }

    fn trace_for_a_while() {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(3) {
            atrace_instant(TAG, "now and then");
            std::thread::sleep(Duration::from_millis(10));
        }
        fs::write("ready", "").unwrap();
        until("it may end", || Path::new("go").exists());
    }

    #[test]
    fn without_a_call_to_wait_by_nothing_spins() {
        let name = case!({ trace_for_a_while() });
        // The system call `poll` can't be denied, because every Rust program calls it when it starts. So `ppoll` is
        // denied.
        let place = Place::new();
        let (ran, took) = traced_for_a_while(&place, denied(&mut place.run(&name, &[]), [libc::SYS_ppoll]));
        assert!(ran.status.success(), "{ran:?}");
        assert!(took < Duration::from_secs(1) && ran.stderr.contains("saved out"), "{took:?}: {ran:?}");
        // The library in the recorded program can't wait by `ppoll` either: it checks its socket from time to time.
        assert!(!Trace::open(&place.path("out")).events().is_empty(), "{ran:?}");
    }

    #[test]
    fn with_few_descriptors_nothing_spins() {
        let name = case!({ play(descriptors_unasked) });
        let borne = bear_with(&name, &[], SHORT, false, 24);
        borne.is_bounded(MEMORY_MIB);
        assert!(borne.processor < 0.5, "{borne:?}");
    }

    #[test]
    fn a_limit_of_files_ends_the_recording_and_not_the_program() {
        const LIMIT: u64 = 2 << 20;
        let name = case!({
            until("it is connected", || atrace_is_tag_enabled(TAG));
            for number in 0.. {
                atrace_instant_args(
                    TAG,
                    format_args!("event {number} of many that are long {:0200}", 0),
                    &[],
                );
                if number % 100 == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                if number % 1000 == 0 && !atrace_is_tag_enabled(TAG) {
                    break;
                }
            }
            until("the command has said that the recording is over", || Path::new("said").exists());
            println!("ENDED {}", 1);
        });
        let place = Place::new();
        let mut command = place.run(&name, &[]);
        let limited = common::limited(&mut command, libc::RLIMIT_FSIZE, LIMIT, LIMIT);
        let ran = ended_when_told(limited, OVER, &place.path("said"));
        assert_eq!(ran.said("ENDED"), ["1"], "{ran:?}");
        for text in ["no more is recorded; the program goes on", "File too large", "out ends too early"] {
            assert!(ran.stderr.contains(text), "{text}: {ran:?}");
        }
        assert_eq!(ran.status.code(), Some(125), "{ran:?}");
        let size = fs::metadata(place.path("out")).unwrap().len();
        assert!((LIMIT / 2..=LIMIT).contains(&size), "{size}");
        assert!(Trace::open(&place.path("out")).events().len() > 1000);
    }
}
