//! Tests `atrace run` as a tracing service, from a program's first event to the file, as an ordinary user.

#[path = "../../../atrace/tests/common/mod.rs"]
mod common;
mod here;
#[allow(dead_code, unreachable_pub, reason = "this module is shared with the tests in `crates/real-service`")]
#[path = "../../real-service/src/trace.rs"]
mod trace;

#[allow(unsafe_code, reason = "processes fork, and are killed, as C programs")]
mod cases {
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    use std::os::unix::net::UnixListener;
    use std::os::unix::process::CommandExt as _;
    use std::path::{Path, PathBuf};
    use std::process::{Child, Command, Stdio};
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    use atrace::perfetto;
    use atrace::tracer::{GateCheck, PreparedTag};
    use atrace::*;
    use atrace_perfetto::proto::Reader;
    use atrace_perfetto::socket::Trust;

    use crate::common::{self, Ran, case, is_root, until};
    #[cfg(target_os = "linux")]
    use crate::here::refusing;
    use crate::here::{Here, OVER, USER, end, ended_when_told, runs_left_by, signal};
    use crate::trace::{Event, Losses, Trace, processed};

    const TAG: AtraceTag = AtraceTag::App;

    /// A directory to which the ordinary user may write, and in which the command records the program of the test case.
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

        fn files(&self) -> Vec<String> {
            let entries = fs::read_dir(self.0.path("place")).unwrap();
            let mut names: Vec<_> =
                entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        }

        /// Returns the command `atrace run -o out … -- program case` of a user without special rights.
        fn run(&self, case: &str, options: &[&str]) -> Command {
            let mut command = self.0.atrace(case);
            command.args(["run", "-o", "out"]).args(options).arg("--").arg(self.0.path("program"));
            command.args([case, "--exact", "--nocapture", "--test-threads=1"]);
            command.current_dir(self.0.path("place"));
            as_user(&mut command);
            command
        }

        /// Reads the trace. Perfetto's own reader must find no fault in the trace.
        fn trace(&self, name: &str) -> Trace {
            sound(&self.path(name));
            Trace::open(&self.path(name))
        }
    }

    fn as_user(command: &mut Command) {
        // SAFETY: no preconditions.
        if unsafe { libc::geteuid() } == 0 {
            command.uid(USER).gid(USER);
        }
    }

    /// Checks that Perfetto's own reader finds no error and no loss in the trace.
    fn sound(path: &Path) {
        const FAULTS: &str =
            "SELECT name, value FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0";
        if let Some(answers) = processed(path, &[FAULTS]) {
            assert!(answers[0].contains("\"rows\":[]"), "{answers:?}");
        }
    }

    fn names(events: &[Event], pid: u64) -> Vec<String> {
        let of_it = events.iter().filter(|event| event.pid == pid);
        let name = |event: &Event| event.name.as_ref().map(|name| String::from_utf8_lossy(name).into_owned());
        of_it.map(|event| name(event).unwrap_or_else(|| "end".to_owned())).collect()
    }

    fn number(ran: &Ran, word: &str) -> u64 {
        ran.said(word).iter().map(|text| text.parse::<u64>().unwrap()).sum()
    }

    /// Forks a process that traces and ends at once. Returns the process id, and whether the process was connected
    /// before the wait of its first event timed out (on a busy machine, the connection may take longer than that wait).
    fn forked(name: &str) -> (i32, bool) {
        let mut status = 0;
        // SAFETY: the child only traces, which is allowed after a fork, and ends.
        let child = unsafe {
            let child = common::fork();
            if child == 0 {
                let is_in_time = atrace_is_tag_enabled(TAG);
                atrace_instant(TAG, name);
                libc::_exit(i32::from(!is_in_time));
            }
            libc::waitpid(child, &raw mut status, 0);
            child
        };
        (child, status == 0)
    }

    #[test]
    fn a_program_and_its_children_are_recorded_without_rights() {
        let name = case!({
            until("it is connected", || atrace_is_tag_enabled(TAG));
            assert!(atrace_is_tag_enabled(AtraceTag::Camera));
            let slice = begin_scoped_event(TAG, "parent");
            println!("PARENT {}", common::pid());
            if std::env::var_os("CHILD").is_none() {
                println!(
                    "FORKED {}",
                    (0..100).map(|_| forked("forked")).find(|(_, is_in_time)| *is_in_time).unwrap().0
                );
                let mut again = Command::new(std::env::current_exe().unwrap());
                again.args(std::env::args_os().skip(1)).env("CHILD", "1").stdout(Stdio::inherit());
                assert_eq!(again.status().unwrap().code(), Some(7));
            }
            std::thread::spawn(|| drop(begin_scoped_event(TAG, "in a thread"))).join().unwrap();
            drop(slice);
            eprintln!("said on stderr");
            std::process::exit(7);
        });
        let place = Place::new();
        let ran = end(&mut place.run(&name, &[]));
        assert_eq!(ran.status.code(), Some(7), "{ran:?}");
        assert!(ran.stderr.contains("9 events written, none lost\n"), "{ran:?}");
        assert!(ran.stderr.contains("saved out: open it at https://ui.perfetto.dev"), "{ran:?}");
        assert_eq!(place.files(), ["out"]);
        let trace = place.trace("out");
        let events = trace.events();
        let expected = ["end", "end", "in a thread", "parent"];
        let parents: Vec<u64> = ran.said("PARENT").iter().map(|pid| pid.parse().unwrap()).collect();
        assert_eq!(parents.len(), 2, "{ran:?}");
        for pid in parents {
            let mut found = names(&events, pid);
            found.sort();
            assert_eq!(found, expected, "{ran:?}");
        }
        assert_eq!(names(&events, number(&ran, "FORKED")), ["forked"]);
        assert!(events.iter().all(|event| event.categories == ["app"] || event.kind == 2));
        assert_eq!(trace.losses(), Losses::default());
        assert!(runs_left_by(ran.pid).is_empty());
    }

    #[test]
    fn a_program_of_two_events_that_ends_at_once_has_both() {
        let name = case!({
            atrace_begin(TAG, "one");
            atrace_end(TAG);
            // Prints 0 if the process was not connected: on a busy machine, the connection may take longer than a first
            // event waits.
            println!("PID {}", if perfetto::status().sessions() > 0 { common::pid() } else { 0 });
            // SAFETY: no preconditions. The process ends without cleanup on purpose.
            unsafe { libc::_exit(0) };
        });
        let place = Place::new();
        let mut in_time = 0;
        for _ in 0..20 {
            let ran = end(&mut place.run(&name, &["-f"]));
            assert!(ran.status.success(), "{ran:?}");
            let pid = number(&ran, "PID");
            if pid > 0 {
                in_time += 1;
                assert_eq!(names(&Trace::open(&place.path("out")).events(), pid), ["one", "end"], "{ran:?}");
            }
        }
        assert!(in_time > 0);
        sound(&place.path("out"));
    }

    #[test]
    fn what_was_written_before_sigkill_is_there() {
        let name = case!({
            let events: usize = std::env::var("EVENTS").unwrap().parse().unwrap();
            until("it is connected", || atrace_is_tag_enabled(TAG));
            let written = Barrier::new(4);
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        for number in 0..events {
                            atrace_instant_args(TAG, format_args!("event {number}"), &[]);
                            if number % 100 == 99 {
                                std::thread::sleep(Duration::from_millis(1));
                            }
                        }
                        // The thread stays alive, with a chunk of the shared memory that it has not committed (passed
                        // to the service).
                        written.wait();
                        loop {
                            std::thread::park();
                        }
                    });
                }
                written.wait();
                println!("LOST {}", perfetto::status().lost());
                // SAFETY: no preconditions.
                unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            });
        });
        let place = Place::new();
        for events in [1, 7, 1000, 12_345] {
            let ran = end(place.run(&name, &["-f"]).env("EVENTS", events.to_string()));
            assert_eq!(ran.status.code(), Some(128 + libc::SIGKILL), "{ran:?}");
            assert_eq!(number(&ran, "LOST"), 0, "{ran:?}");
            assert_eq!(place.trace("out").events().len(), 3 * events, "{ran:?}");
        }
    }

    /// Tests that no event is lost while two threads each write a thousand events per millisecond. (An unoptimized
    /// build writes fewer.)
    #[test]
    fn steady_threads_lose_nothing() {
        const EVENTS: u64 = if cfg!(debug_assertions) { 100 } else { 1000 };
        let name = case!({
            let rounds: u64 = std::env::var("ROUNDS").unwrap().parse().unwrap();
            until("it is connected", || atrace_is_tag_enabled(TAG));
            let body = move || {
                let start = Instant::now();
                for round in 1..=rounds {
                    for _ in 0..EVENTS / 2 {
                        atrace_begin(TAG, "tencharact");
                        atrace_end(TAG);
                    }
                    // If a round is late, the next round still begins after a pause of at least 100 µs.
                    let due = Duration::from_millis(round);
                    std::thread::sleep(due.saturating_sub(start.elapsed()).max(Duration::from_micros(100)));
                }
            };
            // Joins the threads, because a scope does not wait until they have ended completely. At its end, a thread
            // counts its unmatched ends of slices as lost.
            let threads = [(); 2].map(|()| std::thread::spawn(body));
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            println!("WRITTEN {}", rounds * 2 * EVENTS);
            println!("LOST {}", perfetto::status().lost());
        });
        let rounds = if is_long() { "10000" } else { "500" };
        // On a busy machine the shared memory may become full before the service runs. Then the losses must be
        // reported, and the program runs again.
        let place = (0..8).map(|_| Place::new()).find(|place| {
            let ran = end(place.run(&name, &[]).env("ROUNDS", rounds));
            let trace = Trace::open(&place.path("out"));
            let (written, lost) = (number(&ran, "WRITTEN"), number(&ran, "LOST"));
            assert_eq!(trace.events().len() as u64 + lost, written, "{ran:?}");
            assert_eq!(lost == 0, trace.losses() == Losses::default(), "{ran:?}");
            lost == 0
        });
        let place = place.expect("one of eight runs loses nothing");
        if !is_long() {
            sound(&place.path("out"));
        }
    }

    fn is_long() -> bool {
        std::env::var_os("ATRACE_LONG_TESTS").is_some()
    }

    #[test]
    fn a_thousand_threads_that_live_lose_nothing() {
        const THREADS: usize = 1000;
        let name = case!({
            until("it is connected", || atrace_is_tag_enabled(TAG));
            let all = Barrier::new(THREADS);
            std::thread::scope(|scope| {
                for _ in 0..THREADS {
                    let body = || {
                        for number in 0..3 {
                            all.wait();
                            atrace_instant_args(
                                TAG,
                                format_args!("event {number} of a thread that lives"),
                                &[],
                            );
                            std::thread::sleep(Duration::from_millis(if is_long() { 1000 } else { 100 }));
                        }
                        all.wait();
                    };
                    std::thread::Builder::new().stack_size(64 << 10).spawn_scoped(scope, body).unwrap();
                }
            });
            println!("LOST {}", perfetto::status().lost());
        });
        let place = Place::new();
        let ran = end(&mut place.run(&name, &[]));
        assert!(ran.status.success() && number(&ran, "LOST") == 0, "{ran:?}");
        let trace = place.trace("out");
        assert_eq!((trace.events().len(), trace.losses()), (3 * THREADS, Losses::default()), "{ran:?}");
    }

    #[test]
    fn without_a_pause_what_is_written_is_read_or_counted_as_lost() {
        const THREADS: u64 = 4;
        const ROUNDS: u64 = 25_000;
        let name = case!({
            until("it is connected", || atrace_is_tag_enabled(TAG));
            let body = || {
                for _ in 0..ROUNDS {
                    atrace_begin(TAG, "begun without a pause");
                    atrace_instant(TAG, "within it");
                    atrace_end(TAG);
                }
            };
            // Joins the threads, because a scope does not wait until they have ended completely. At its end, a thread
            // counts its unmatched ends of slices as lost.
            let threads: Vec<_> = (0..THREADS).map(|_| std::thread::spawn(body)).collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            println!("LOST {}", perfetto::status().lost());
        });
        let place = Place::new();
        // The shared memory is much smaller than the events that are written.
        let ran = end(place.run(&name, &[]).env("ATRACE_SHMEM_KB", "512"));
        assert!(ran.status.success(), "{ran:?}");
        let trace = Trace::open(&place.path("out"));
        let (read, lost) = (trace.events().len() as u64, number(&ran, "LOST"));
        assert_eq!(read + lost, THREADS * ROUNDS * 3, "{read} + {lost}: {ran:?}");
        let losses = trace.losses();
        assert_eq!((losses.told > 0, losses.found), (lost > 0, 0), "{ran:?}");
        assert_eq!(ran.told(), (read, lost), "{ran:?}");
    }

    /// Returns the number of events in the file.
    fn count(path: &Path) -> u64 {
        let bytes = fs::read(path).unwrap();
        let packets = Reader::new(&bytes).filter(|(field, _)| *field == 1);
        packets.filter(|(_, packet)| Reader::first(packet.bytes(), 11).is_some()).count() as u64
    }

    /// Tests a burst of events that begins while the program's socket thread sleeps. In the runs with `--wait`, the
    /// shared memory is much smaller than the burst.
    #[test]
    fn a_burst_after_silence_is_read_or_counted_and_with_wait_nothing_is_lost() {
        let name = case!({
            let number = |name| std::env::var(name).unwrap().parse::<u64>().unwrap();
            let (threads, spans) = (number("THREADS"), number("SPANS"));
            until("it is connected", || atrace_is_tag_enabled(TAG));
            atrace_instant(TAG, "before the silence");
            std::thread::sleep(Duration::from_secs(3));
            let burst = move || {
                for _ in 0..spans / threads {
                    drop(begin_scoped_event(TAG, "in a burst"));
                }
            };
            let all: Vec<_> = (0..threads).map(|_| std::thread::spawn(burst)).collect();
            all.into_iter().for_each(|thread| thread.join().unwrap());
            println!("LOST {}", perfetto::status().lost());
        });
        const MANY: u64 = 1_000_000;
        const FEWER: u64 = 200_000;
        let all =
            [(1, MANY, "", false), (8, MANY, "", false), (1, FEWER, "256", true), (8, FEWER, "256", true)];
        let start = |(threads, spans, memory, waits): (u64, u64, &str, bool)| {
            let place = Place::new();
            let mut command = place.run(&name, if waits { &["--wait"] } else { &[] });
            command.env("THREADS", threads.to_string()).env("SPANS", spans.to_string());
            let child = command.env("ATRACE_SHMEM_KB", memory).spawn().unwrap();
            (place, child)
        };
        // Waits for the end of a run, and returns how many events were lost.
        let end = |spans: u64, (place, child): (Place, Child)| {
            let ran = common::end_of(child);
            assert!(ran.status.success() && !ran.stderr.contains("cut off"), "{ran:?}");
            let (written, lost) = ran.told();
            assert_eq!(count(&place.path("out")), written, "{ran:?}");
            assert_eq!((written + lost, lost), (2 * spans + 1, number(&ran, "LOST")), "{ran:?}");
            lost
        };
        // Starts all programs at once, so that their pauses before the burst pass at the same time.
        let started = all.map(start);
        for (how, started) in all.into_iter().zip(started) {
            let (threads, spans, _, waits) = how;
            let mut lost = end(spans, started);
            // With `--wait`, a thread waits for at most a second. On a busy machine, the service may get no processor
            // for longer than that.
            for _ in 0..2 {
                if waits && lost > 0 {
                    lost = end(spans, start(how));
                }
            }
            assert!(lost == 0 || !waits, "{threads} threads: {lost}");
        }
    }

    /// Tests a loss at the very end of a program: the thread has no chunk of the shared memory left in which it could
    /// report the loss, and the process ends before a chunk becomes free.
    #[test]
    fn what_a_program_lost_last_is_told() {
        let name = case!({
            let events = std::env::var("EVENTS").unwrap();
            let is_killed = std::env::var_os("KILLED").is_some();
            let work = move || {
                until("it is connected", || atrace_is_tag_enabled(TAG));
                let mut written = 0;
                let mut lost = Vec::new();
                // Writes until ten losses were seen, so that the program ends while events are being lost.
                while lost.len() < 10 {
                    let before = perfetto::status().lost();
                    match events.as_str() {
                        "instants" => atrace_instant(TAG, "without a pause"),
                        "long" => atrace_instant(TAG, &"long".repeat(500)),
                        _ => {
                            drop(begin_scoped_event(TAG, "without a pause"));
                            written += 1;
                        }
                    }
                    written += 1;
                    if perfetto::status().lost() > before {
                        lost.push(before);
                    }
                }
                println!("WRITTEN {written}");
                // SAFETY: no preconditions. The process ends without cleanup on purpose.
                unsafe {
                    if is_killed {
                        libc::kill(libc::getpid(), libc::SIGKILL);
                    }
                    libc::_exit(0);
                }
            };
            std::thread::Builder::new().name("worker".to_owned()).spawn(work).unwrap().join().unwrap();
        });
        for (events, is_killed) in [("instants", false), ("long", false), ("slices", false), ("slices", true)]
        {
            let place = Place::new();
            let mut command = place.run(&name, &[]);
            command.env("EVENTS", events).env("ATRACE_SHMEM_KB", "64");
            if is_killed {
                command.env("KILLED", "yes");
            }
            let ran = end(&mut command);
            assert_eq!(ran.status.code(), Some(if is_killed { 128 + libc::SIGKILL } else { 0 }), "{ran:?}");
            assert_eq!(ran.stderr.contains("the program was killed by SIGKILL"), is_killed, "{ran:?}");
            let trace = Trace::open(&place.path("out"));
            let (written, lost) = ran.told();
            assert!(lost >= 10, "{ran:?}");
            assert_eq!(
                (written, written + lost),
                (trace.events().len() as u64, number(&ran, "WRITTEN")),
                "{ran:?}"
            );
            for text in ["in the threads worker (", "its memory has 64 KB; ATRACE_SHMEM_KB=128 in"] {
                assert!(ran.stderr.contains(text), "{text}: {ran:?}");
            }
            assert_eq!(trace.losses().found, 0);
            assert!(trace.losses().told > 0);
        }
    }

    /// Tests that slices are nested correctly after a thread has lost hundreds of slices. A slice's guard writes the
    /// end of the slice even if the begin was lost.
    #[test]
    fn slices_after_a_loss_are_those_that_the_program_made() {
        let name = case!({
            until("it is connected", || atrace_is_tag_enabled(TAG));
            let lost = || perfetto::status().lost();
            let _outer = begin_scoped_event(TAG, "outer");
            for kind in 0..3 {
                let before = lost();
                while lost() < before + 1000 {
                    match kind {
                        0 => {
                            let enabled = PreparedTag::new(TAG).check().and_then(GateCheck::enabled);
                            let slice = enabled.and_then(|enabled| enabled.begin("flood"));
                            slice.into_iter().for_each(|slice| slice.end(None));
                        }
                        1 => drop(begin_scoped_event(TAG, "flood")),
                        _ => {
                            atrace_begin(TAG, "flood");
                            atrace_end(TAG);
                        }
                    }
                }
                until("what is there is read, and a chunk is found again", || {
                    std::thread::sleep(Duration::from_millis(5));
                    let before = lost();
                    drop(begin_scoped_event(TAG, "flood"));
                    lost() == before
                });
                let before = lost();
                for _ in 0..10 {
                    let _later = begin_scoped_event(TAG, "later");
                    let nested = begin_scoped_event(TAG, "nested");
                    atrace_begin(TAG, "unguarded");
                    atrace_end(TAG);
                    drop(nested);
                }
                assert_eq!(lost(), before);
            }
        });
        let place = Place::new();
        let ran = end(place.run(&name, &[]).env("ATRACE_SHMEM_KB", "1024"));
        assert!(ran.status.success(), "{ran:?}");
        let (mut open, mut seen) = (Vec::new(), Vec::new());
        for event in Trace::open(&place.path("out")).events() {
            match event.kind {
                1 => open.push(String::from_utf8(event.name.unwrap()).unwrap()),
                _ => {
                    let name = open.pop().unwrap();
                    if name != "flood" {
                        seen.push((name, open.join(" ")));
                    }
                }
            }
        }
        let three = [("unguarded", "outer later nested"), ("nested", "outer later"), ("later", "outer")];
        let mut expected = three.repeat(30);
        expected.push(("outer", ""));
        let seen: Vec<_> = seen.iter().map(|(name, within)| (&name[..], &within[..])).collect();
        assert_eq!((seen, open), (expected, Vec::new()));
    }

    /// Runs the command in a separate mount namespace, in which the command's output goes to a disk of `kb` KiB.
    fn on_a_disk(place: &Place, case: &str, kb: u32, options: &str) -> Ran {
        fs::create_dir(place.path("disk")).unwrap();
        let script = format!(
            "mount -t tmpfs -o size={kb}k,mode=777 none place/disk && cd place && \
             setpriv --reuid {USER} --regid {USER} --clear-groups ../atrace run -o disk/out {options} -- \
             ../program {case} --exact --nocapture --test-threads=1; code=$?; \
             ls -a disk >listed; cp disk/out out; exit $code"
        );
        ended_when_told(place.0.apart(&script).env("ATRACE_TEST_CASE", case), OVER, &place.path("said"))
    }

    #[test]
    fn a_full_disk_ends_the_recording_and_not_the_program() {
        let name = case!({
            until("it is connected", || atrace_is_tag_enabled(TAG));
            for number in 0..50_000 {
                atrace_instant_args(TAG, format_args!("event {number}"), &[]);
                if number % 100 == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            until("the command has said that the recording is over", || Path::new("said").exists());
            println!("ENDED {}", 1);
        });
        if !is_root(&name) {
            return;
        }
        let place = Place::new();
        let ran = on_a_disk(&place, &name, 256, "");
        assert_eq!(ran.status.code(), Some(125), "{ran:?}");
        assert_eq!(ran.said("ENDED"), ["1"]);
        for text in
            ["no more is recorded; the program goes on", "disk/out ends too early: No space left on device"]
        {
            assert!(ran.stderr.contains(text), "{text}: {ran:?}");
        }
        for text in ["none lost", "saved"] {
            assert!(!ran.stderr.contains(text), "{text}: {ran:?}");
        }
        assert_eq!(fs::read_to_string(place.path("listed")).unwrap(), ".\n..\nout\n");
        let events = place.trace("out").events();
        assert!(events.len() > 1000 && events.len() < 50_000, "{}", events.len());
        let said: usize = ran
            .stderr
            .lines()
            .find_map(|line| {
                let number = line.strip_prefix("atrace: ")?.strip_suffix(" events written")?;
                number.replace(',', "").parse().ok()
            })
            .unwrap();
        assert_eq!(said, events.len(), "{ran:?}");
        assert_eq!(events[0].name.as_deref(), Some(&b"event 0"[..]));
    }

    #[test]
    fn a_file_grows_to_its_size_and_no_further() {
        let name = case!({
            until("it is connected", || atrace_is_tag_enabled(TAG));
            for number in 0..20_000 {
                atrace_instant_args(TAG, format_args!("event {number}"), &[]);
                if number % 100 == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            until("the command has said that the recording is over", || Path::new("said").exists());
        });
        let place = Place::new();
        let ran = ended_when_told(&mut place.run(&name, &["--max-size", "100K"]), OVER, &place.path("said"));
        assert!(ran.status.success() && place.path("said").exists(), "{ran:?}");
        assert!(ran.stderr.contains("the file has the size of --max-size"), "{ran:?}");
        assert!(!ran.stderr.contains("none lost"), "{ran:?}");
        let size = fs::metadata(place.path("out")).unwrap().len();
        assert!((98_000..=102_400).contains(&size), "{size}");
        let events = place.trace("out").events().len();
        assert!((1000..20_000).contains(&events), "{events}");
    }

    fn wait_for_line(path: &Path) {
        until("the program says that it is so far", || path.exists());
    }

    #[test]
    fn a_ring_keeps_the_last_and_is_saved_when_asked() {
        let name = case!({
            until("it is connected", || atrace_is_tag_enabled(TAG));
            let note = |name: &str| fs::write(name, "").unwrap();
            for number in 0.. {
                atrace_instant_args(TAG, format_args!("event {number}"), &[]);
                if number % 100 == 0 {
                    // The pauses make the program so slow that nothing is lost while the service waits for a processor.
                    std::thread::sleep(Duration::from_millis(4));
                }
                if number == 30_000 {
                    note("much");
                }
                if number > 30_000 && number % 1000 == 0 && Path::new("go").exists() {
                    atrace_instant(TAG, "the last");
                    note("ready");
                    std::thread::sleep(Duration::from_secs(100));
                }
            }
        });
        let place = Place::new();
        let child = place.run(&name, &["--ring", "--buffer", "256"]).spawn().unwrap();
        wait_for_line(&place.path("much"));
        for number in [1, 2] {
            signal(&child, libc::SIGUSR1);
            wait_for_line(&place.path(&format!("out.{number}")));
        }
        fs::write(place.path("go"), "").unwrap();
        wait_for_line(&place.path("ready"));
        signal(&child, libc::SIGINT);
        let ran = common::end_of(child);
        assert_eq!(ran.status.code(), Some(128 + libc::SIGINT), "{ran:?}");
        assert_eq!(place.files(), ["go", "much", "out", "out.1", "out.2", "ready"]);
        for name in ["out", "out.1", "out.2"] {
            let size = fs::metadata(place.path(name)).unwrap().len();
            assert!((100_000..400_000).contains(&size), "{name}: {size}");
            let events = place.trace(name).events();
            // The numbers of the events in each file follow each other without a gap.
            let numbers: Vec<u32> = names(&events, events[0].pid)
                .iter()
                .filter_map(|name| name.strip_prefix("event ")?.parse().ok())
                .collect();
            assert!(numbers.len() > 1000 && numbers[0] > 10_000, "{name}: {numbers:?}");
            assert!(numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{name}");
        }
        assert_eq!(place.trace("out").events().last().unwrap().name.as_deref(), Some(&b"the last"[..]));
    }

    #[test]
    fn a_killed_command_leaves_a_trace_that_can_be_read() {
        let name = case!({
            until("it is connected", || atrace_is_tag_enabled(TAG));
            let command = std::os::unix::process::parent_id();
            for number in 0.. {
                atrace_instant_args(TAG, format_args!("event {number}"), &[]);
                std::thread::sleep(Duration::from_millis(1));
                if std::os::unix::process::parent_id() != command {
                    return; // The command has been killed.
                }
            }
        });
        let place = Place::new();
        let mut child = place.run(&name, &[]).spawn().unwrap();
        let live = place.path(&format!(".out.{}", child.id()));
        // After each write of the command, the file is a complete trace.
        until("there is something", || live.exists() && !Trace::open(&live).events().is_empty());
        child.kill().unwrap();
        let _ = child.wait();
        let events = place.trace(live.file_name().unwrap().to_str().unwrap()).events().len();
        assert!(events > 0);
        // The killed command's directory is removed by the next command of the same user, which may also be a command
        // of another test.
        let mut next = place.0.atrace(&name);
        next.args(["run", "-fo", "out", "--", "true"]).current_dir(place.path(""));
        as_user(&mut next);
        let ran = end(&mut next);
        // The command gives the killed command's recording a name, and reports this name once.
        let said = format!("out.2 has the recording of a command (process {}) that ended before", child.id());
        assert!(ran.stderr.contains(&said) && !live.exists(), "{ran:?}");
        assert!(place.trace("out.2").events().len() >= events);
        assert!(runs_left_by(child.id()).is_empty());
    }

    #[test]
    fn under_sudo_the_program_and_the_file_are_the_callers() {
        let name = case!({
            until("it is connected", || atrace_is_tag_enabled(TAG));
            // SAFETY: no preconditions.
            println!("IDS {} {}", unsafe { libc::getuid() }, unsafe { libc::getgid() });
            let socket = PathBuf::from(std::env::var_os("PERFETTO_PRODUCER_SOCK_NAME").unwrap());
            let owners = [socket.parent().unwrap(), &socket].map(|path| fs::metadata(path).unwrap());
            println!("PLACE {:?}", owners.map(|data| (data.uid(), data.mode() & 0o777)));
            atrace_instant(TAG, "written");
            println!("HELD {}", fs::remove_file(&socket).is_err());
        });
        if !is_root(&name) {
            return;
        }
        let here = Here::new();
        let mut command = here.run(&name, &[]);
        let mut as_callers = Command::new(command.get_program());
        let plain = command.get_args().filter(|argument| *argument != "--kernel");
        as_callers.args(plain).current_dir(here.path("")).env("ATRACE_TEST_CASE", &name);
        as_callers.env("SUDO_UID", USER.to_string()).env("SUDO_GID", USER.to_string());
        as_callers.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let ran = end(&mut as_callers);
        assert!(ran.status.success(), "{ran:?}");
        assert_eq!(ran.said("IDS"), ["65534 65534"]);
        assert_eq!(ran.said("PLACE"), ["[(0, 457), (65534, 384)]"]);
        assert_eq!(ran.said("HELD"), ["true"]);
        assert_eq!(fs::metadata(here.path("out")).unwrap().uid(), USER);
        let events = Trace::open(&here.path("out")).events();
        assert_eq!(events.len(), 1);
        // Runs the command as root, without sudo.
        command.args([&name]);
        let mut roots = Command::new(command.get_program());
        roots.args(["run", "-fo", "out", "--"]).arg(here.path("program"));
        roots.args([&name, "--exact", "--nocapture", "--test-threads=1"]).current_dir(here.path(""));
        roots.env("ATRACE_TEST_CASE", &name).env_remove("SUDO_UID");
        roots.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let ran = end(&mut roots);
        assert_eq!(ran.said("PLACE"), ["[(0, 448), (0, 384)]"], "{ran:?}");
        assert!(ran.stderr.contains("1 events written, none lost"), "{ran:?}");
    }

    #[test]
    fn the_memory_is_as_large_as_the_environment_says() {
        let name = case!({
            let shared = || {
                let maps = fs::read_to_string("/proc/self/maps").unwrap();
                let line = maps.lines().find(|line| line.contains("memfd:atrace-perfetto"))?;
                let (from, to) = line.split(' ').next().unwrap().split_once('-').unwrap();
                let [from, to] = [from, to].map(|place| u64::from_str_radix(place, 16).unwrap());
                Some((to - from) / 1024)
            };
            atrace::perfetto::connect();
            until("it is connected, or can't be", || {
                let said = atrace::perfetto::status().to_string();
                said.contains("ATRACE_SHMEM_KB") || atrace_is_tag_enabled(TAG)
            });
            println!("SHARED {:?} {}", shared(), atrace::perfetto::status());
        });
        let place = Place::new();
        for (said, is) in [("", "Some(32768)"), ("64", "Some(64)"), ("32768", "Some(32768)")] {
            let ran = end(place.run(&name, &["-f"]).env("ATRACE_SHMEM_KB", said));
            assert!(ran.said("SHARED")[0].starts_with(is), "{said}: {ran:?}");
        }
        for said in ["4M", "63", "32769", "-1", "99999999999"] {
            let ran = end(place.run(&name, &["-f"]).env("ATRACE_SHMEM_KB", said));
            let why = "None Perfetto's service: ATRACE_SHMEM_KB is not a number from 64 to 32768";
            assert!(ran.said("SHARED")[0].starts_with(why), "{said}: {ran:?}");
        }
    }

    /// Makes the command start with SIGCHLD ignored.
    fn ignoring_children(command: &mut Command) -> &mut Command {
        let ignore = || {
            // SAFETY: `SIG_IGN` is valid, and no handler function is installed.
            unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
            Ok(())
        };
        // SAFETY: `signal` may be called between fork and exec.
        unsafe { command.pre_exec(ignore) }
    }

    /// Prints whether this process ignores SIGCHLD.
    fn tell_ignored() {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
        let mask = u64::from_str_radix(mask.trim(), 16).unwrap();
        println!("IGNORED {}", mask >> (libc::SIGCHLD - 1) & 1);
    }

    /// Tests a command that inherits that SIGCHLD is ignored, so that the kernel would drop the exit statuses of its
    /// children. The command must still know how the program ends, and the program must inherit the same setting of
    /// SIGCHLD.
    #[test]
    fn a_command_that_should_ignore_its_children_still_knows_their_end() {
        let name = case!({
            until("it is connected", || atrace_is_tag_enabled(TAG));
            atrace_instant(TAG, "written");
            tell_ignored();
            std::process::exit(3);
        });
        let place = Place::new();
        for is_ignored in [true, false] {
            let mut command = place.run(&name, &["-f"]);
            if is_ignored {
                ignoring_children(&mut command);
            }
            let ran = end(&mut command);
            assert_eq!(ran.status.code(), Some(3), "{ran:?}");
            assert!(ran.stderr.contains("1 events written, none lost"), "{ran:?}");
            assert_eq!(place.trace("out").events().len(), 1);
            assert_eq!(ran.said("IGNORED"), [u8::from(is_ignored).to_string()]);
        }
        if is_root(&name) {
            let here = Here::new();
            let mut command = here.run("no case", &[]);
            let ran = end(ignoring_children(&mut command));
            assert!(ran.status.success() && here.files() == ["out"], "{ran:?}");
        }
        let mut cost = place.0.atrace(&name);
        cost.args(["cost", "--time", "20s", "--", "sh", "-c", "exit 3"]).current_dir(place.path(""));
        let ran = end(ignoring_children(&mut cost));
        assert!(ran.stderr.contains("exit status 3") || ran.stderr.contains("exit status: 3"), "{ran:?}");
    }

    /// Tests an error of the command after the program has started: the recording is saved nevertheless.
    #[test]
    #[cfg(target_os = "linux")]
    fn an_error_of_the_command_loses_no_recording() {
        let name = case!({
            until("it is connected", || atrace_is_tag_enabled(TAG));
            atrace_instant(TAG, "written");
        });
        let place = Place::new();
        let ran = end(refusing(&mut place.run(&name, &[]), libc::SYS_wait4, libc::EPERM));
        assert_eq!(ran.status.code(), Some(125), "{ran:?}");
        assert!(
            ran.stderr.contains("waiting for the program") && ran.stderr.contains("saved out"),
            "{ran:?}"
        );
        assert_eq!(place.trace("out").events().len(), 1);
    }

    /// Overwrites the environment with which this process was started, as a server does that shows its state in `ps`.
    fn overwrite_environment() {
        unsafe extern "C" {
            // SAFETY: this is the declaration in POSIX: an array of C strings that ends with a null pointer.
            static environ: *const *mut libc::c_char;
        }
        // SAFETY: the calling thread is the only thread of this process. The pointers before the null pointer point to
        // C strings, which nothing reads afterwards.
        unsafe {
            let mut at = environ;
            while !(*at).is_null() {
                libc::memset((*at).cast(), 0, libc::strlen(*at));
                at = at.add(1);
            }
        }
        assert!(!fs::read_to_string("/proc/self/environ").unwrap().contains("ATRACE_TEST_CASE"));
    }

    /// Tests a process that outlives the program and whose environment is overwritten. The command must find the
    /// process by its connection to the service.
    #[test]
    fn what_outlives_the_program_without_its_environment_is_recorded() {
        let name = case!({
            let (mut ready, tell) = std::io::pipe().unwrap();
            // SAFETY: the child only traces, which is allowed after a fork, and ends.
            if unsafe { libc::fork() } == 0 {
                until("it is connected", || atrace_is_tag_enabled(TAG));
                overwrite_environment();
                drop(tell);
                until("the command has said that the program has ended", || Path::new("said").exists());
                atrace_instant(TAG, "after the program");
                // SAFETY: no preconditions.
                unsafe { libc::_exit(0) };
            }
            drop(tell);
            std::io::Read::read(&mut ready, &mut [0]).unwrap();
        });
        let place = Place::new();
        let mut command = place.run(&name, &[]);
        let ran = ended_when_told(
            command.stdout(Stdio::null()),
            "the program has ended, but ",
            &place.path("said"),
        );
        assert!(ran.status.success() && ran.stderr.contains("still runs"), "{ran:?}");
        let events = place.trace("out").events();
        assert!(events.iter().any(|event| event.name.as_deref() == Some(b"after the program")), "{ran:?}");
    }

    /// Tests all limits of the number of threads and processes of a user: the command either refuses before the program
    /// starts, or records the program to its end.
    #[test]
    fn a_limit_of_threads_ends_no_recording() {
        /// The id of a user who has no processes in other tests.
        const ALONE: u32 = 64_011;
        let name = case!({});
        if !is_root(&name) {
            return;
        }
        let place = Place::new();
        let mut statuses = Vec::new();
        for limit in 1..12 {
            let mut command = place.0.atrace(&name);
            command.args(["run", "-fo", "out", "--", "sh", "-c", "echo STARTED; exit 3"]);
            command.current_dir(place.path("")).uid(ALONE).gid(ALONE);
            let ran = end(common::limited(&mut command, libc::RLIMIT_NPROC, limit, limit));
            let has_file = place.files() == ["out"];
            let is_recorded = ran.stdout.contains("STARTED") && ran.status.code() == Some(3) && has_file;
            let is_refused = !ran.stdout.contains("STARTED") && ran.status.code() == Some(125) && !has_file;
            assert!((is_recorded || is_refused) && !ran.stderr.contains("panicked"), "{limit}: {ran:?}");
            statuses.push(ran.status.code());
            let _ = fs::remove_file(place.path("out"));
        }
        assert_eq!((statuses[0], statuses[10]), (Some(125), Some(3)), "{statuses:?}");
    }

    #[test]
    fn why_nothing_was_recorded_is_said() {
        let name = case!({});
        let place = Place::new();
        let of = |arguments: &[&str]| {
            let mut command = place.0.atrace(&name);
            command.args(arguments).current_dir(place.path(""));
            as_user(&mut command);
            end(&mut command)
        };
        let ran = of(&["run", "-o", "none", "--", "true"]);
        assert!(ran.status.success(), "{ran:?}");
        assert!(
            ran.stderr.contains("0 events written") && ran.stderr.contains("nobody connected"),
            "{ran:?}"
        );
        let ran = of(&["run", "-o", "no/out", "--", "true"]);
        assert_eq!(ran.status.code(), Some(125), "{ran:?}");
        assert!(ran.stderr.contains("can't write to no/out"), "{ran:?}");
        let ran = of(&["run", "-o", "none", "--", "true"]);
        assert!(ran.stderr.contains("none exists already"), "{ran:?}");
        let ran = of(&["run", "--ring", "--max-size", "1M", "--", "true"]);
        assert_eq!(ran.status.code(), Some(2), "{ran:?}");
        assert_eq!(place.files(), ["none"]);

        let filtered = [
            "run",
            "-fo",
            "none",
            "--filter",
            "info,sqlx=off",
            "--",
            "sh",
            "-c",
            "echo filter: $ATRACE_FILTER",
        ];
        assert_eq!(of(&filtered).said("filter: "), ["info,sqlx=off"]);
        let ran = of(&["run", "-fo", "none", "--filter", "sqlx=loud", "--", "true"]);
        assert_eq!(ran.status.code(), Some(2), "{ran:?}");
        assert!(ran.stderr.contains("sqlx=loud") && ran.stderr.contains("such as info,sqlx=off"), "{ran:?}");
    }

    #[test]
    fn the_filter_is_named_if_no_event_came() {
        let name = case!({
            atrace::atrace_init();
        });
        let place = Place::new();
        let text = "the program connected and wrote no event";
        let excluded = format!("{text}: the filter off may exclude all of its events");
        for ran in [
            end(&mut place.run(&name, &["--filter", "off"])),
            end(place.run(&name, &["-f"]).env("ATRACE_FILTER", "off")),
        ] {
            assert!(ran.stderr.contains(&excluded), "{ran:?}");
        }
        let ran = end(&mut place.run(&name, &["-f"]));
        assert!(ran.stderr.lines().any(|line| line.ends_with(text)), "{ran:?}");
    }

    /// Tests `record` without a system service: `record` itself is the service, at the path at which programs look for
    /// the system's service.
    #[test]
    fn programs_that_run_are_recorded_by_a_service_for_a_while() {
        let name = case!({
            // The program runs until the file `runs` is removed.
            while Path::new("runs").exists() {
                drop(begin_scoped_event(TAG, "while it runs"));
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let place = Place::new();
        fs::write(place.path("runs"), "").unwrap();
        let socket = place.path("socket");
        // Leaves a socket at which no process listens, as a killed service does.
        drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        let mut program = place.0.cleared(&place.0.path("program"), &name);
        program.args([&name, "--exact", "--nocapture", "--test-threads=1"]).current_dir(place.path(""));
        program.env("ATRACE_BACKEND", "perfetto").env("PERFETTO_PRODUCER_SOCK_NAME", &socket);
        as_user(&mut program);
        let program = program.spawn().unwrap();
        fs::remove_file(&socket).unwrap();
        let record = |patterns: &[&str]| {
            let mut record = place.0.atrace(&name);
            record.args(["record", "-fo", "out"]).args(patterns).current_dir(place.path(""));
            record
                .env("PERFETTO_PRODUCER_SOCK_NAME", &socket)
                .env("PERFETTO_CONSUMER_SOCK_NAME", "/nonexistent");
            as_user(&mut record);
            record
        };
        let child = record(&["-a", "*/program", "-t", "2min"]).spawn().unwrap();
        let live = place.path(&format!(".out.{}", child.id()));
        until("there is something", || live.exists() && Trace::open(&live).events().len() > 10);
        let ask = |arguments: &[&str]| {
            let mut command = place.0.atrace(&name);
            command.args(arguments).env("PERFETTO_CONSUMER_SOCK_NAME", "/nonexistent");
            as_user(&mut command);
            end(&mut command).stdout
        };
        let said = ask(&["doctor", &program.id().to_string()]);
        assert!(said.contains("the process last reported: Perfetto's service: "), "{said}");
        // No pattern is switched on: the session wants the events, so the doctor needs none.
        assert!(said.contains("of a category that a session wants, is in its trace"), "{said}");
        assert!(!said.contains("WRONG"), "{said}");
        let said = ask(&["status"]);
        assert!(
            said.contains("Perfetto's service: none at /nonexistent: can't connect to its socket"),
            "{said}"
        );
        let line = |said: &str| {
            said.lines().find(|line| line.contains(&format!("  {} (", program.id()))).map(str::to_owned)
        };
        let own = line(&said).expect(&said);
        assert!(own.ends_with(": connected, 1 sessions (all categories), 0 events lost"), "{said}");
        // Root's command examines the process with the rights of the program's user, and reports the same.
        let said = end(place.0.atrace(&name).arg("status")).stdout;
        assert_eq!(line(&said).as_ref(), Some(&own), "{said}");
        signal(&child, libc::SIGINT);
        let ran = common::end_of(child);
        assert!(ran.status.success() && ran.stderr.contains("saved out"), "{ran:?}");
        assert!(ran.stderr.contains("no Perfetto service runs here: this command acts as one"), "{ran:?}");
        until("the process says that it is over", || {
            line(&ask(&["status"])).is_some_and(|own| !own.contains("1 sessions"))
        });
        let said = ask(&["doctor", &program.id().to_string()]);
        assert!(said.contains("would not arrive: no session of Perfetto's service wants it"), "{said}");
        let events = place.trace("out").events();
        assert!(events.len() > 10 && events.iter().all(|event| event.pid == u64::from(program.id())));
        assert!(!socket.exists());
        // No program with another name is recorded.
        let ran = end(&mut record(&["-a", "*/other", "-t", "300ms"]));
        assert!(ran.status.success() && ran.stderr.contains("atrace: 0 events written"), "{ran:?}");
        fs::remove_file(place.path("runs")).unwrap();
        assert!(common::end_of(program).status.success());
    }

    /// Returns the command `atrace record -fo out …` of an ordinary user. The command itself is the service at this
    /// socket.
    fn record_at(place: &Place, socket: &Path, case: &str, options: &[&str]) -> Command {
        let mut record = place.0.atrace(case);
        record.args(["record", "-fo", "out"]).args(options).current_dir(place.path(""));
        record.env("PERFETTO_PRODUCER_SOCK_NAME", socket).env("PERFETTO_CONSUMER_SOCK_NAME", "/nonexistent");
        as_user(&mut record);
        record
    }

    #[test]
    fn a_record_that_ends_leaves_a_later_ones_socket() {
        let name = case!({});
        let place = Place::new();
        let socket = place.path("socket");
        let record = || {
            let child = record_at(&place, &socket, &name, &["-t", "2min"]).spawn().unwrap();
            let threads = || fs::read_dir(format!("/proc/{}/task", child.id())).unwrap().count();
            until("its service runs", || socket.exists() && threads() > 1);
            child
        };
        let first = record();
        fs::remove_file(&socket).unwrap();
        let second = record();
        signal(&first, libc::SIGINT);
        let ran = common::end_of(first);
        assert!(ran.status.success(), "{ran:?}");
        assert!(socket.exists(), "{ran:?}");
        signal(&second, libc::SIGINT);
        let ran = common::end_of(second);
        assert!(ran.status.success() && !socket.exists(), "{ran:?}");
    }

    /// Tests that the command removes only sockets of services that have ended. It must not remove a file, a link, or
    /// the socket of a service that accepts no more connections, and it must not wait for such a service.
    #[test]
    fn what_is_no_left_socket_stays() {
        let name = case!({});
        let place = Place::new();
        let socket = place.path("socket");
        let refused = |what: &str| {
            let ran = end(&mut record_at(&place, &socket, &name, &["-t", "100ms"]));
            assert_eq!(ran.status.code(), Some(1), "{what}: {ran:?}");
            assert!(ran.stderr.contains("listening at "), "{what}: {ran:?}");
        };
        fs::write(&socket, "mine").unwrap();
        refused("a file");
        assert_eq!(fs::read_to_string(&socket).unwrap(), "mine");
        fs::remove_file(&socket).unwrap();
        drop(UnixListener::bind(place.path("left")).unwrap());
        std::os::unix::fs::symlink(place.path("left"), &socket).unwrap();
        refused("a link");
        assert!(socket.is_symlink() && place.path("left").exists());
        fs::remove_file(&socket).unwrap();
        // Fills the listener's queue of connections.
        let listener = UnixListener::bind(&socket).unwrap();
        fs::set_permissions(&socket, fs::Permissions::from_mode(0o777)).unwrap();
        let connect = || atrace_perfetto::socket::Socket::connect(socket.as_os_str(), Trust::Any);
        let waiting: Vec<_> = std::iter::from_fn(|| connect().ok()).collect();
        assert!(!waiting.is_empty());
        refused("a service that hangs");
        assert!(socket.exists());
        drop(listener);
    }

    /// Tests a program whose threads fork many processes, which end soon. All processes that were connected in time
    /// must be recorded.
    #[test]
    fn a_storm_of_forks_is_recorded() {
        const FORKS: usize = 300;
        let name = case!({
            until("it is connected", || atrace_is_tag_enabled(TAG));
            atrace_instant(TAG, "first");
            let in_time = AtomicUsize::new(0);
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        for _ in 0..FORKS / 4 {
                            in_time.fetch_add(usize::from(forked("forked").1), Ordering::Relaxed);
                        }
                    });
                }
            });
            println!("FORKED {}", in_time.into_inner());
        });
        let place = Place::new();
        let ran = end(&mut place.run(&name, &[]));
        assert!(ran.status.success(), "{ran:?}");
        let events = place.trace("out").events();
        let mut pids: Vec<_> = events.iter().map(|event| event.pid).collect();
        pids.sort();
        pids.dedup();
        // Each child has at most one event in the trace. A child that counts as late may still have been connected
        // before its event.
        let in_time = number(&ran, "FORKED") as usize;
        assert_eq!(pids.len(), events.len(), "{ran:?}");
        assert!(in_time > 0 && (in_time + 1..=FORKS + 1).contains(&events.len()), "{ran:?}");
        assert!(!ran.stderr.contains("cut off"), "{ran:?}");
    }
}
