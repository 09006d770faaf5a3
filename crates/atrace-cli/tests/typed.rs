//! Tests traces with events of the kernel and of a program, both as Perfetto's packets.

#![cfg(target_os = "linux")]

#[path = "../../../atrace/tests/common/mod.rs"]
mod common;
mod here;
#[allow(dead_code, unreachable_pub, reason = "only its way to Perfetto's reader is used here")]
#[path = "../../real-service/src/trace.rs"]
mod trace;

#[allow(unsafe_code, reason = "the command is told to end as by a terminal")]
mod cases {
    use std::fs;
    use std::io::{BufRead as _, BufReader};
    use std::os::unix::process::CommandExt as _;
    use std::path::Path;

    use atrace::*;
    use atrace_cli::tracefs;
    use atrace_perfetto::proto::Reader;

    use crate::common::{self, case, is_root, skipped, until};
    use crate::here::{Here, Recording, USER, end, ended_when_told, left_by, signal};

    const TAG: AtraceTag = AtraceTag::App;
    /// The name of a thread. The kernel keeps only the first 15 bytes of it.
    const THREAD: &str = "its thread with a name of forty letters.";

    /// An event of the kernel: its time, its thread, the number of the protobuf field for its kind of event, and the
    /// encoded content of this field.
    struct Kernel {
        time: u64,
        thread: u64,
        kind: u32,
        message: Vec<u8>,
    }

    /// Returns the number in a field, or 0 if the field is missing.
    fn number(message: &[u8], field: u32) -> u64 {
        Reader::first(message, field).map_or(0, |value| value.number())
    }

    fn text(message: &[u8], field: u32) -> String {
        let value = Reader::first(message, field);
        value.map_or(String::new(), |value| String::from_utf8_lossy(value.bytes()).into_owned())
    }

    /// Returns the packets of the trace file `path`.
    fn packets(path: &Path) -> Vec<Vec<u8>> {
        let trace = fs::read(path).unwrap();
        let mut reader = Reader::new(&trace);
        let packets = reader.by_ref().map(|(_, packet)| packet.bytes().to_vec()).collect();
        assert!(reader.is_whole());
        packets
    }

    /// Returns the events of the kernel. Checks that the events of each CPU are in the order of their times.
    fn kernel(packets: &[Vec<u8>]) -> Vec<Kernel> {
        let mut events = Vec::new();
        let mut last = std::collections::HashMap::new();
        for bundle in packets.iter().filter_map(|packet| Reader::first(packet, 1)) {
            let cpu = number(bundle.bytes(), 1);
            for (_, event) in Reader::new(bundle.bytes()).filter(|(field, _)| *field == 2) {
                let event = event.bytes();
                let (kind, message) = Reader::new(event).find(|(field, _)| *field > 2).unwrap();
                let (time, thread) = (number(event, 1), number(event, 2));
                events.push(Kernel { time, thread, kind, message: message.bytes().to_vec() });
                // Messages to the marker (kind 3) are not checked, because messages to the top-level marker come from
                // another buffer.
                if kind != 3 {
                    let last = last.entry(cpu).or_insert(0);
                    assert!(*last <= time, "CPU {cpu}");
                    *last = time;
                }
            }
        }
        events
    }

    fn boot_time() -> u64 {
        let time = fs::read_to_string("/proc/uptime").unwrap();
        (time.split(' ').next().unwrap().parse::<f64>().unwrap() * 1e9) as u64
    }

    fn is_possible(name: &str) -> bool {
        is_root(name) && {
            let clocks = fs::read_to_string(tracefs::root().unwrap().join("trace_clock")).unwrap();
            let has = clocks.contains("boot") && tracefs::root().unwrap().join("events/sched").exists();
            if !has {
                skipped(name, "this kernel has no clock boot, or no events of the scheduler");
            }
            has
        }
    }

    #[test]
    fn the_kernel_and_a_program_are_in_one_trace() {
        let name = case!({
            until("it is recorded", || atrace_is_tag_enabled(TAG));
            let slice =
                begin_scoped_event_args(TAG, "slice with arguments", &[atrace::Arg::Int("answer", 42)]);
            let thread = std::thread::Builder::new().name(THREAD.to_owned());
            let body = || {
                perfetto::note_thread_name();
                atrace_instant(TAG, "of a thread");
                // SAFETY: this signal is ignored by default.
                unsafe { libc::raise(libc::SIGWINCH) }
            };
            thread.spawn(body).unwrap().join().unwrap();
            drop(slice);
            println!("PID {}", common::pid());
        });
        if !is_possible(&name) {
            return;
        }
        let here = Here::new();
        let start = boot_time();
        let mut command = here.atrace(&name);
        command.args(["run", "-c", "sched,freq,irq,signal", "--"]).arg(here.path("program"));
        let ran = end(command.args([&*name, "--exact", "--nocapture", "--test-threads=1"]));
        assert!(ran.status.success(), "{ran:?}");
        assert!(ran.stderr.contains(" events of the kernel written"), "{ran:?}");
        assert!(ran.stderr.contains("saved program.pftrace: open it"), "{ran:?}");
        let pid: u64 = ran.said("PID")[0].parse().unwrap();
        let packets = packets(&here.path("program.pftrace"));
        let events = kernel(&packets);
        // The kernel's events have the same clock as the other packets.
        assert!(events.iter().all(|it| (start..boot_time()).contains(&(it.time + 10_000_000))));
        let of = |kind| events.iter().filter(move |it| it.kind == kind);
        // The program's main thread ran, slept (its state is given as a number), and was woken.
        assert!(of(4).any(|it| number(&it.message, 6) == pid), "it never ran");
        let slept = of(4).filter(|it| number(&it.message, 2) == pid && number(&it.message, 4) == 1);
        assert!(slept.count() > 0, "it never slept");
        assert!(of(20).any(|it| number(&it.message, 2) == pid), "it was never woken");
        assert!(of(4).all(|it| it.thread == number(&it.message, 2)), "others than who runs switched");
        // The program's second thread began, was named, and ended.
        let thread = of(236).find(|it| text(&it.message, 3) == THREAD[..15]).expect("a name").thread;
        assert!(of(235).any(|it| number(&it.message, 1) == thread && number(&it.message, 3) & 0x10000 != 0));
        assert!(of(238).any(|it| it.thread == thread), "it never ended");
        // The thread raised a signal, which is a generic event in the trace.
        let raised = of(327).any(|it| it.thread == thread && text(&it.message, 1) == "signal_generate");
        assert!(raised, "it raised no signal");
        // Other processes have their names in the trace.
        let this = u64::from(std::process::id());
        let trees: Vec<_> = packets.iter().filter_map(|packet| Reader::first(packet, 2)).collect();
        let of_this = trees.iter().filter_map(|tree| Reader::first(tree.bytes(), 1)).any(|process| {
            number(process.bytes(), 1) == this && text(process.bytes(), 3).starts_with("typed-")
        });
        assert!(of_this, "this process has no name");
        // In the trace, the arguments of the program's events are typed.
        let slice = packets.iter().filter_map(|packet| Reader::first(packet, 11)).any(|event| {
            Reader::new(event.bytes()).any(|(field, annotation)| {
                field == 4 && Reader::new(annotation.bytes()).any(|(_, value)| value.number() == 42)
            })
        });
        assert!(slice, "the slice has no argument");
        assert_eq!(left_by(ran.pid), [""; 0].map(std::path::PathBuf::from));
        // Checks the trace by Perfetto's own reader. Context switches that the kernel itself did not write are not
        // counted as faults.
        const STATES: &str = "SELECT count(*) > 0 FROM thread_state JOIN thread USING (utid) \
            JOIN process USING (upid) WHERE pid = PID AND state = 'STATE'";
        const FAULTS: &str = "SELECT name, value FROM stats WHERE severity IN ('error', 'data_loss') \
            AND value > 0 AND name != 'mismatched_sched_switch_tids'";
        // Perfetto's reader lists generic events in the same table as typed events, with their arguments.
        const RAISED: &str = "SELECT count(*) FROM ftrace_event JOIN thread USING (utid) \
            WHERE ftrace_event.name = 'signal_generate' AND extract_arg(arg_set_id, 'sig') = 28 AND tid = TID";
        let raised = RAISED.replace("TID", &thread.to_string());
        // The thread has its whole name, although the name in the kernel's events is cut.
        let named = format!("SELECT count(*) FROM thread WHERE tid = {thread} AND name = '{THREAD}'");
        let of_state = |state| STATES.replace("PID", &pid.to_string()).replace("STATE", state);
        let (runs, sleeps) = (of_state("Running"), of_state("S"));
        if let Some(answers) =
            crate::trace::processed(&here.path("program.pftrace"), &[FAULTS, &runs, &sleeps, &raised, &named])
        {
            assert!(answers[0].contains("\"rows\":[]"), "{answers:?}");
            assert!(answers[1..].iter().all(|it| it.contains("\"rows\":[[1]]")), "{answers:?}");
        }
    }

    /// Tests that the trace has the messages that C and C++ programs write to the kernel's top-level marker.
    #[test]
    fn messages_to_the_top_level_marker_are_in_the_trace() {
        let name = case!({});
        if !is_possible(&name) {
            return;
        }
        let root = tracefs::root().unwrap();
        if !root.join("options").join(tracefs::COPY).exists() {
            return skipped(&name, "this kernel copies no messages");
        }
        let marker = root.join("trace_marker");
        let script =
            format!("echo \"I|$$|of the program\" >{0}; echo \"I|1|of another\" >{0}", marker.display());
        let here = Here::new();
        let ran =
            end(here.atrace(&name).args(["run", "-c", "sched", "-o", "out", "--", "sh", "-c", &script]));
        assert!(ran.status.success(), "{ran:?}");
        let events = kernel(&packets(&here.path("out")));
        let printed: Vec<_> =
            events.iter().filter(|it| it.kind == 3).map(|it| text(&it.message, 2)).collect();
        let [printed] = &*printed else { panic!("{printed:?} of {ran:?}") };
        assert!(printed.ends_with("|of the program\n"), "{printed:?}");
    }

    #[test]
    fn nothing_is_left_of_a_program_that_cant_be_started() {
        let name = case!({});
        if !is_possible(&name) {
            return;
        }
        let here = Here::new();
        let ran = end(here.atrace(&name).args(["run", "-c", "sched", "--", "/no/such/program"]));
        assert_eq!(ran.status.code(), Some(127), "{ran:?}");
        assert_eq!(ran.stderr.lines().count(), 1, "{ran:?}");
        assert_eq!((left_by(ran.pid), here.files()), (vec![], vec![]), "{ran:?}");
    }

    #[test]
    fn root_records_the_kernel_and_programs_that_run() {
        let name = case!({
            atrace_init();
            until("it is recorded", || atrace::perfetto::status().sessions() == 1);
            atrace_instant(TAG, "of a program that runs");
        });
        if !is_possible(&name) {
            return;
        }
        let here = Here::new();
        let record = |output: &str, options: &[&str]| {
            let mut command = here.atrace(&name);
            command.args(["record", "-c", "sched", "-o", output]).args(options);
            command.env("PERFETTO_PRODUCER_SOCK_NAME", here.path("producers"));
            command.env("PERFETTO_CONSUMER_SOCK_NAME", here.path("consumers"));
            command.env("ATRACE_PROPERTIES", here.path("properties"));
            command
        };
        if !tracefs::root().unwrap().join("options").join(tracefs::COPY).exists() {
            return skipped(&name, "this kernel copies no messages");
        }
        let mut program = here.cleared(&here.path("program"), &name);
        program.args([&*name, "--exact", "--nocapture", "--test-threads=1"]);
        program.env("PERFETTO_PRODUCER_SOCK_NAME", here.path("producers"));
        let program = program.env("ATRACE_PROPERTIES", here.path("properties")).spawn().unwrap();
        // Ctrl-C ends the recording when the file has some events.
        let child = record("out", &[]).spawn().unwrap();
        until("there are events", || {
            let hidden = here.path(&format!(".out.{}", child.id()));
            fs::metadata(hidden).is_ok_and(|data| data.len() > 100_000)
        });
        assert!(common::end_of(program).status.success());
        signal(&child, libc::SIGINT);
        let ran = common::end_of(child);
        assert!(ran.status.success(), "{ran:?}");
        let events = kernel(&packets(&here.path("out")));
        assert!(events.iter().filter(|it| it.kind == 4).count() > 100, "{}: {ran:?}", events.len());
        assert_eq!((left_by(ran.pid).len(), here.path("producers").exists()), (0, false), "{ran:?}");
        let bytes = fs::read(here.path("out")).unwrap();
        assert!(bytes.windows(22).any(|it| it == b"of a program that runs"), "{ran:?}");
    }

    /// Tests a program that starts before, or after, tracing by ATrace is switched on for programs that are not
    /// connected. No event must be recorded twice, and every event that is not recorded must be reported as lost.
    #[test]
    fn a_program_that_connects_late_is_recorded_once() {
        let name = case!({
            let Ok(word) = std::env::var("WORD") else {
                // This process matches the pattern and never connects. It ends when the test closes its standard input.
                std::thread::spawn(|| {
                    let start = std::time::Instant::now();
                    while !atrace_is_tag_enabled(TAG) {
                        std::thread::sleep(std::time::Duration::from_millis(10));
                        if start.elapsed() > std::time::Duration::from_secs(300) {
                            std::process::exit(1);
                        }
                    }
                    eprintln!("tracing is on");
                });
                return std::io::stdin().lines().for_each(drop);
            };
            atrace_init();
            for number in 0..200 {
                atrace_instant(TAG, &format!("{word} {number:03}"));
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        });
        if !is_possible(&name) {
            return;
        }
        if !tracefs::root().unwrap().join("options").join(tracefs::COPY).exists() {
            return skipped(&name, "this kernel copies no messages");
        }
        let record_late = &|is_on| {
            let here = Here::new();
            let with = |mut command: std::process::Command| {
                command.env("PERFETTO_PRODUCER_SOCK_NAME", here.path("producers"));
                command.env("PERFETTO_CONSUMER_SOCK_NAME", here.path("consumers"));
                command.env("ATRACE_PROPERTIES", here.path("properties"));
                command
            };
            // The word differs in the two recordings, because each recording gets all programs' messages to the marker.
            let word = format!("late-{is_on}");
            let start = || {
                let mut program = with(here.cleared(&here.path("program"), &name));
                program.args([&*name, "--exact", "--nocapture", "--test-threads=1"]);
                program
            };
            let mut idle = start();
            idle.env("PERFETTO_PRODUCER_SOCK_NAME", here.path("none"));
            let mut idle = idle.stdin(std::process::Stdio::piped()).spawn().unwrap();
            let mut command = with(here.atrace(&name));
            let pattern = here.path("program");
            let recording = Recording::start(
                command.args(["record", "-f", "-c", "sched", "-o", "out", "-a"]).arg(pattern),
            );
            if is_on {
                let mut told = BufReader::new(idle.stderr.take().unwrap()).lines().map_while(Result::ok);
                assert!(told.any(|line| line == "tracing is on"));
            } else {
                std::thread::sleep(std::time::Duration::from_secs(1));
            }
            let program = end(start().env("WORD", &word));
            assert!(program.status.success(), "{program:?}");
            let ran = recording.stop();
            drop(idle.stdin.take());
            assert!(common::end_of(idle).status.success());
            let trace = fs::read(here.path("out")).unwrap();
            // The trace of a busy machine is long, so the test searches it only once.
            let found = trace.windows(word.len() + 4).filter_map(|it| {
                str::from_utf8(it.strip_prefix(word.as_bytes())?.strip_prefix(b" ")?).ok()?.parse().ok()
            });
            let mut numbers: Vec<u32> = found.collect();
            numbers.sort_unstable();
            assert!(numbers.is_sorted_by(|a, b| a < b), "{word}: {numbers:?}, {ran:?}");
            let lost = 200 - numbers.len() as u64;
            // On a machine that is busy for seconds, the program's events before its connection are lost. The command
            // must report these losses.
            assert_eq!(lost, ran.told().1, "{word}: {ran:?}");
            let message = format!("I|{}|{word} ", program.pid);
            let is_marked = trace.windows(message.len()).any(|it| it == message.as_bytes());
            assert!(is_marked || !is_on, "tracing by ATrace was not on: {ran:?}");
        };
        std::thread::scope(|scope| {
            for is_on in [false, true] {
                scope.spawn(move || record_late(is_on));
            }
        });
    }

    /// Tests that the command does not call a recording complete that lacks events of the kernel.
    #[test]
    fn events_of_the_kernel_that_are_not_in_the_file_are_not_called_complete() {
        let name = case!({});
        if !is_possible(&name) {
            return;
        }
        let here = Here::new();
        let mut command = here.atrace(&name);
        let script = "while [ ! -e said ]; do sleep 0.01; done";
        command.args(["run", "-c", "sched", "--max-size", "64K", "--", "sh", "-c", script]);
        let mut child = command.spawn().unwrap();
        let mut said = String::new();
        for line in BufReader::new(child.stderr.take().unwrap()).lines() {
            said += &format!("{}\n", line.unwrap());
            if said.contains("no more is recorded; the program goes on") {
                fs::write(here.path("said"), "").unwrap();
            }
        }
        assert!(common::end_of(child).status.success(), "{said}");
        assert!(said.contains(" events of the kernel written\n") && !said.contains("none lost"), "{said}");
    }

    /// A shell command that makes the statistics of a command's buffer unreadable, in a mount namespace. `PID` is the
    /// process id of the command that records.
    const BREAKS: &str =
        "mount --bind /dev/null $(echo /sys/kernel/tracing/instances/atrace-[rk]e*-PID-*/per_cpu/cpu0/stats)";

    /// Tests recordings whose buffers' statistics become unreadable: what was recorded is saved, and the command does
    /// not call the recording complete.
    #[test]
    fn an_error_does_not_lose_the_recording() {
        let name = case!({});
        if !is_possible(&name) {
            return;
        }
        if !tracefs::root().unwrap().join("options").join(tracefs::COPY).exists() {
            return skipped(&name, "this kernel copies no messages");
        }
        let here = Here::new();
        let run = format!("{}; sleep 1", BREAKS.replace("PID", "$PPID"));
        let script = format!(
            "export PERFETTO_PRODUCER_SOCK_NAME=$PWD/producers PERFETTO_CONSUMER_SOCK_NAME=$PWD/consumers
            ./atrace run -c sched -o out -- sh -c '{run}'
            echo RUN $?
            ./atrace record -c sched -o recorded 2>record.err & pid=$!
            until grep -q ' events, ' record.err; do kill -0 $pid || exit 9; sleep 0.05; done
            {0}
            wait $pid
            echo RECORD $?
            cat record.err
            ./atrace run --kernel -c sched -o text -- sh -c '{run}' 2>&1
            echo RUN $?
            ./atrace record --kernel -c sched -o text2 2>record.err & pid=$!
            until grep -q ' events$' record.err; do kill -0 $pid || exit 9; sleep 0.05; done
            {0}
            wait $pid
            echo RECORD $?
            cat record.err",
            BREAKS.replace("PID", "$pid")
        );
        let ran = end(&mut here.apart(&script));
        assert_eq!((ran.said("RUN"), ran.said("RECORD")), (vec!["125"; 2], vec!["1"; 2]), "{ran:?}");
        for (said, file) in [(&ran.stderr, "out"), (&ran.stdout, "recorded")] {
            assert!(said.contains("stats is not understood"), "{ran:?}");
            assert!(said.contains(" events of the kernel written\n"), "{ran:?}");
            assert!(said.contains(&format!("saved {file}: open it")), "{ran:?}");
            let events = kernel(&packets(&here.path(file)));
            assert!(events.iter().any(|it| it.kind == 4), "{file}: {ran:?}");
        }
        assert!(ran.stderr.contains("no more events of the kernel are recorded: "), "{ran:?}");
        for file in ["text", "text2"] {
            assert!(fs::read_to_string(here.path(file)).unwrap().contains(": sched_switch: "), "{ran:?}");
        }
        // Only the programs' packets are reported as complete.
        let whole = ran.stdout.lines().chain(ran.stderr.lines()).filter(|line| line.contains("none lost"));
        assert!(whole.eq(["atrace: 0 events written, none lost"; 2]), "{ran:?}");
    }

    /// Tests that a recording's buffers are kept if the buffer with the copies of top-level messages can't be read.
    #[test]
    fn messages_that_cant_be_read_are_kept() {
        let name = case!({});
        if !is_possible(&name) {
            return;
        }
        if !tracefs::root().unwrap().join("options").join(tracefs::COPY).exists() {
            return skipped(&name, "this kernel copies no messages");
        }
        let here = Here::new();
        // A socket can't be opened as a file, so the instance's file `trace`, over which the socket is mounted, can't
        // be read.
        let _socket = std::os::unix::net::UnixListener::bind(here.path("socket")).unwrap();
        let place = "/sys/kernel/tracing/instances/atrace-copies-$PPID-*/trace";
        let script = format!(
            "exec ./atrace run --kernel -o out -- sh -c 'mount --bind {} $(echo {place})'",
            here.path("socket").display()
        );
        let ran = end(&mut here.apart(&script));
        let kept = left_by(ran.pid);
        kept.iter().for_each(|instance| fs::remove_dir(instance).unwrap());
        assert_eq!(ran.status.code(), Some(125), "{ran:?}");
        assert!(ran.stderr.contains("nothing is lost yet; make room and run: cat "), "{ran:?}");
        assert_eq!((kept.len(), here.files()), (2, vec!["socket".to_owned()]), "{ran:?}");
    }

    /// Tests that an ordinary user's command records a program that a script leaves in the background, until the
    /// program ends.
    #[test]
    fn what_outlives_the_program_is_recorded() {
        let name = case!({
            println!("LATE {}", common::pid());
            // Waits for the end of the script, which is the parent of this process.
            let script: u32 = std::env::var("SCRIPT").unwrap().parse().unwrap();
            until("the script has ended", || std::os::unix::process::parent_id() != script);
            until("it is recorded", || atrace_is_tag_enabled(TAG));
            until("the command has said that the script has ended", || Path::new("said").exists());
            atrace_instant(TAG, "after the script");
            if std::env::var_os("STAYS").is_some() {
                println!("STAYS");
                std::thread::sleep(std::time::Duration::from_secs(600));
            }
        });
        let here = Here::new();
        fs::create_dir(here.path("place")).unwrap();
        let is_user = |command: &mut std::process::Command| {
            // SAFETY: no preconditions.
            if unsafe { libc::geteuid() } == 0 {
                std::os::unix::fs::chown(here.path("place"), Some(USER), Some(USER)).unwrap();
                command.uid(USER).gid(USER);
            }
        };
        let run = |script: &str| {
            let mut command = here.atrace(&name);
            command.args(["run", "--", "sh", "-c", script]).arg(here.path("program"));
            command.args([&*name, "--exact", "--nocapture", "--test-threads=1"]);
            command.current_dir(here.path("place"));
            is_user(&mut command);
            command
        };
        let script = "SCRIPT=$$ \"$0\" \"$@\" & exit 7";
        let recorded = |file: &str| {
            let trace = fs::read(here.path("place").join(file)).unwrap();
            trace.windows(16).any(|part| part == b"after the script")
        };
        let ended = "the program has ended, but ";
        let ran = ended_when_told(&mut run(script), ended, &here.path("place/said"));
        assert_eq!(ran.status.code(), Some(7), "{ran:?}");
        assert!(ran.stderr.contains("still runs"), "{ran:?}");
        assert!(recorded("sh.pftrace"), "{ran:?}");
        // The second run saves to another file. A signal to the command ends the recording, but not the program.
        let mut child = run(&format!("STAYS= {script}")).spawn().unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        let (mut line, mut late) = (String::new(), 0);
        while !line.ends_with("STAYS\n") {
            line.clear();
            assert!(said.read_line(&mut line).unwrap() > 0, "it ended");
            late = line.trim().split_once("LATE ").map_or(late, |(_, pid)| pid.parse().unwrap());
        }
        let mut told = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        assert!(told.any(|line| line.contains(ended)), "the end of the script is not told");
        signal(&child, libc::SIGINT);
        until("the command has ended", || child.try_wait().unwrap().is_some());
        // The command's output stays open as long as the program lives, so the program is killed.
        // SAFETY: the process was just seen to run, and ends after ten minutes at the earliest.
        let lives = unsafe { libc::kill(late, libc::SIGKILL) };
        let told = told.collect::<Vec<_>>().join("\n");
        let ran = common::end_of(child);
        assert_eq!((ran.status.code(), lives), (Some(7), 0), "{told}");
        assert!(told.contains("their events are no longer recorded"), "{told}");
        assert!(told.contains("saved sh.2.pftrace") && recorded("sh.2.pftrace"), "{told}");
    }
}
