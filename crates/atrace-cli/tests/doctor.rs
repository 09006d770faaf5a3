//! Tests faults that prevent an event from arriving: each fault is injected into a real process and must be found by
//! the doctor. Some faults are then repaired, after which the doctor must not find them.

#![cfg(target_os = "linux")]

#[path = "../../../atrace/tests/common/mod.rs"]
mod common;
mod here;
#[allow(unreachable_pub, reason = "the library's own tests use it, too")]
#[path = "../../../atrace/tests/standins/mod.rs"]
mod standins;

#[allow(unsafe_code, reason = "descriptors are closed and processes forked and stopped as a C program would")]
mod cases {
    use std::fs;
    use std::io::{BufRead as _, BufReader, Read as _};
    use std::os::unix::process::CommandExt as _;
    use std::process::{Child, Command, Stdio};

    use atrace::*;
    use atrace_cli::doctor::{self, Level, Report, Topic, examine_program};

    use crate::common::{self, Place, case, descriptor_of, is_root, until};
    use crate::standins;

    const TAG: AtraceTag = AtraceTag::App;

    /// Injects the fault that the environment variable `FAULT` names into this process, prints `READY`, and waits until
    /// the test releases the process.
    fn patient() {
        atrace_instant(TAG, "before");
        let marker = std::env::var("ATRACE_MARKER").unwrap_or_default();
        match std::env::var("FAULT").unwrap_or_default().as_str() {
            "disabled" => atrace_set_tracing_enabled(false),
            "closed" => {
                let fd = descriptor_of(marker.as_ref()).expect("the marker");
                // SAFETY: closing the marker's descriptor is the fault under test.
                unsafe { libc::close(fd) };
                fs::rename(&marker, marker.clone() + ".away").unwrap();
                fs::write(&marker, "").unwrap();
            }
            "closed all" => common::close_all(),
            "dropped" => (0..3).for_each(|_| atrace_instant(TAG, "dropped")),
            fault @ ("forked" | "forked and traced") => {
                let watch = (fault == "forked").then(|| watch::watch_backends(|_| (), true).unwrap());
                // SAFETY: the child makes only calls that are allowed after a fork.
                let child = unsafe { libc::fork() };
                assert!(child >= 0);
                if child == 0 {
                    if fault == "forked and traced" {
                        atrace_set_tracing_enabled(false);
                    }
                    // SAFETY: the arguments are numbers. The child ends with its parent, or after 60 seconds.
                    unsafe {
                        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                        libc::alarm(60);
                        libc::pause();
                        libc::_exit(0);
                    }
                }
                println!("CHILD {child}");
                std::mem::forget(watch);
            }
            "watched" => {
                std::mem::forget(watch::watch_backends(|_| (), true).unwrap());
            }
            _ => {}
        }
        println!("READY");
        let _ = std::io::stdin().read(&mut [0]);
        atrace_instant(TAG, "after");
    }

    /// A running process with a fault. Dropping the `Waiting` releases the process.
    struct Waiting {
        child: Child,
        said: Vec<String>,
    }

    impl Waiting {
        fn start(command: &mut Command, fault: &str) -> Self {
            let mut child = command.env("FAULT", fault).stdin(Stdio::piped()).spawn().unwrap();
            let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
            let said = lines.take_while(|line| !line.ends_with("READY")).collect();
            Self { child, said }
        }

        fn pid(&self) -> u32 {
            self.child.id()
        }
    }

    impl Drop for Waiting {
        fn drop(&mut self) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }

    /// Checks that the report contains this fault with a suggested repair, the consequence that the test event does not
    /// arrive, and no other fault.
    fn finds(report: &Report, topic: Topic, text: &str) {
        let wrong: Vec<_> = report.wrong().map(|it| it.topic).collect();
        assert_eq!(wrong, [topic, Topic::Event], "{report}");
        let found = report.wrong().next().unwrap();
        assert!(found.text.contains(text), "{text:?} is not said:\n{report}");
        assert!(found.mend.as_ref().is_some_and(|mend| !mend.is_empty()), "{report}");
        assert!(!report.arrives(), "{report}");
    }

    /// Examines a process. If the doctor gets no answer in time, as on a busy machine, examines the process again, at
    /// most 20 times in all.
    fn examine(pid: u32) -> Report {
        let mut all = (0..20).map(|_| doctor::examine(pid));
        all.find(|report| !report.to_string().contains("no answer in time")).expect("an answer in time")
    }

    fn is_healthy(report: &Report) {
        assert!(report.arrives(), "{report}");
        assert_eq!(report.wrong().count(), 0, "{report}");
    }

    #[test]
    fn what_the_ring_buffer_does_not_take() {
        let name = case!({ patient() });
        let Some(place) = Place::kernel(&name) else { return };
        let place = place.on();
        let instance = place.instance();
        let waiting = Waiting::start(&mut place.command(&name), "");
        let look = || examine(waiting.pid());
        is_healthy(&look());
        let probes = || place.messages().iter().filter(|it| it.ends_with("|atrace doctor")).count();
        assert_eq!(probes(), 1, "the event was not tried");
        let root = instance.path().display();

        instance.set_tracing_on(false).unwrap();
        finds(&look(), Topic::TracingOn, "records nothing");
        assert_eq!(look().wrong().next().unwrap().mend, Some(format!("echo 1 > {root}/tracing_on")));
        instance.set_tracing_on(true).unwrap();
        is_healthy(&look());

        // Before Linux 4.4, instances do not have this option for themselves: one option is for all of them.
        if instance.path().join("options/markers").exists() {
            instance.set_option("markers", false).unwrap();
            finds(&look(), Topic::Markers, "takes no markers");
            instance.set_option("markers", true).unwrap();
            is_healthy(&look());
        }
    }

    #[test]
    fn what_the_properties_do_not_say() {
        let name = case!({ patient() });
        let Some(place) = Place::kernel(&name) else { return };
        // The name is short because the path of a program in a deep directory would be longer than the longest pattern.
        let waiting = Waiting::start(place.command(&name).arg0("doctor-waits"), "");
        let look = || examine(waiting.pid());
        let report = look();
        finds(&report, Topic::Pattern, "none is on");
        // Makes the repair that the report suggests.
        let mend = report.wrong().next().unwrap().mend.clone().unwrap();
        let pattern =
            mend.strip_prefix("atrace on '").and_then(|rest| rest.strip_suffix('\'')).expect("a command");
        let switched = place.control().enable(pattern).unwrap();
        let report = look();
        is_healthy(&report);
        // The waiting process has not noticed that tracing was switched on. That is no fault: it notices at its next
        // event.
        assert!(
            report.findings().iter().any(|it| it.topic == Topic::Serial && it.level == Level::Note),
            "{report}"
        );
        drop(switched);
        finds(&look(), Topic::Pattern, "none is on");
        let place = place.on();
        is_healthy(&look());

        place.set("debug.atrace.tags.enableflags", "0x1000 and more");
        finds(&look(), Topic::Tags, "is no number");
        place.set("debug.atrace.tags.enableflags", "0");
        is_healthy(&look());

        // The store is deleted. The next process that opens the store creates a new one.
        fs::remove_file(place.properties()).unwrap();
        place.control().enable("*").unwrap().keep();
        finds(&look(), Topic::Properties, "deleted or replaced");
        drop(waiting); // The process must end before its ring buffer is removed.
    }

    #[test]
    fn a_name_that_no_pattern_can_hold() {
        let name = case!({ patient() });
        let Some(place) = Place::kernel(&name) else { return };
        let long = format!("/a/{}/service", "deep/".repeat(30));
        place.control().enable(&long[..91]).unwrap().keep();
        let mut command = place.command(&name);
        let waiting = Waiting::start(command.arg0(&long), "");
        let report = examine(waiting.pid());
        finds(&report, Topic::Name, "at most 91");
        let mend = report.wrong().next().unwrap().mend.clone().unwrap();
        let pattern =
            mend.strip_prefix("atrace on '").and_then(|rest| rest.strip_suffix('\'')).expect("a command");
        assert!(pattern.len() <= 91);
        place.control().enable(pattern).unwrap().keep();
        is_healthy(&examine(waiting.pid()));
    }

    #[test]
    fn a_store_of_random_bytes() {
        let name = case!({ patient() });
        let Some(place) = Place::kernel(&name) else { return };
        let place = place.on();
        let length = fs::metadata(place.properties()).unwrap().len() as usize;
        for (content, text) in [(vec![0x5a; length], "property store"), (vec![0; 100], "property store")] {
            fs::write(place.properties(), content).unwrap();
            let waiting = Waiting::start(&mut place.command(&name), "");
            finds(&examine(waiting.pid()), Topic::Properties, text);
        }
    }

    #[test]
    fn a_backend_that_writes_nothing() {
        let name = case!({ patient() });
        let Some(place) = Place::kernel(&name) else { return };
        let place = place.on();
        let of = |variable: &str, value: &str| {
            let waiting = Waiting::start(place.command(&name).env(variable, value), "");
            examine(waiting.pid())
        };
        finds(&of("ATRACE_BACKEND", "none"), Topic::Backend, "ATRACE_BACKEND=none");
        finds(&of("ATRACE_BACKEND", "kernel"), Topic::Backend, "is not one of marker");
        finds(&of("ATRACE_BACKEND", "cutils:/no/libcutils.so"), Topic::Library, "/no/libcutils.so");
        finds(&of("ATRACE_MARKER", "/no/such/marker"), Topic::Marker, "/no/such/marker");
        finds(&of("ATRACE_MARKER", "/dev/null"), Topic::Backend, "/dev/null");
        finds(
            &of("ATRACE_MARKER", "/sys/kernel/tracing/instances/gone/trace_marker"),
            Topic::Buffer,
            "is gone",
        );
        is_healthy(&of("ATRACE_BACKEND", "marker"));
        let report = of("ATRACE_STATE", "none");
        finds(&report, Topic::State, "publishes no state");
    }

    /// Tests a process that writes only for Perfetto and publishes no state. As on Android, the doctor knows only the
    /// environment of the process. No pattern in a property would make the process trace.
    #[test]
    fn who_writes_by_perfetto_alone_and_says_nothing() {
        let name = case!({ patient() });
        let place = Place::file();
        let mut command = place.command(&name);
        command.env("ATRACE_STATE", "none").env("ATRACE_BACKEND", "perfetto");
        let report = examine(Waiting::start(&mut command, "").pid());
        assert!(!report.findings().iter().any(|it| it.topic == Topic::Pattern), "{report}");
        let event = report.findings().iter().find(|it| it.topic == Topic::Event).expect("a note");
        assert!(event.text.contains("whether one wants its events can't be seen"), "{report}");
    }

    /// Tests that the report names the functions that a library lacks, and the path at which the library was found.
    #[test]
    fn a_library_that_lacks_functions() {
        let name = case!({ patient() });
        let Some(place) = Place::kernel(&name) else { return };
        let place = place.on();
        for (level, lacks) in [(23, Some("atrace_instant_body")), (34, None)] {
            let library = standins::build("libcutils", level, &place.path(""));
            let value = format!("cutils:{}", library.display());
            let waiting = Waiting::start(place.command(&name).env("ATRACE_BACKEND", value), "");
            let report = examine(waiting.pid());
            is_healthy(&report);
            let found = report.findings().iter().filter(|it| it.topic == Topic::Library);
            let text = found.map(|it| it.text.as_str()).collect::<Vec<_>>().join("; ");
            assert!(text.contains(library.to_str().unwrap()), "{report}");
            assert_eq!(text.contains("it lacks "), lacks.is_some(), "{report}");
            assert!(text.contains(lacks.unwrap_or_default()), "{report}");
        }
    }

    #[test]
    fn what_a_process_does_to_itself() {
        let name = case!({ patient() });
        let Some(place) = Place::kernel(&name) else { return };
        let place = place.on();
        let waiting = Waiting::start(&mut place.command(&name), "disabled");
        finds(&examine(waiting.pid()), Topic::Disabled, "disabled tracing for itself");

        let waiting = Waiting::start(&mut place.command(&name), "closed all");
        finds(&examine(waiting.pid()), Topic::State, "closed its descriptors");

        // SAFETY: the process is a child that was not waited for.
        let stop = |waiting: &Waiting, number| unsafe { libc::kill(waiting.pid().cast_signed(), number) };
        let waiting = Waiting::start(&mut place.command(&name), "");
        assert_eq!(stop(&waiting, libc::SIGSTOP), 0);
        let status = format!("/proc/{}/stat", waiting.pid());
        until("it is stopped", || fs::read_to_string(&status).unwrap().contains(") T "));
        let report = examine(waiting.pid());
        finds(&report, Topic::Process, "is stopped");
        assert_eq!(report.wrong().next().unwrap().mend, Some(format!("kill -CONT {}", waiting.pid())));
        assert_eq!(stop(&waiting, libc::SIGCONT), 0);
        until("it goes on", || !fs::read_to_string(&status).unwrap().contains(") T "));
        is_healthy(&examine(waiting.pid()));
        let pid = waiting.pid();
        drop(waiting);
        let report = examine(pid);
        assert_eq!(report.wrong().next().map(|it| it.topic), Some(Topic::Process), "{report}");
    }

    #[test]
    fn a_descriptor_that_was_closed() {
        let name = case!({ patient() });
        // Uses a file as the marker, because the fault puts another file in the marker's place, which is impossible in
        // tracefs.
        let place = Place::file().on();
        is_healthy(&examine(Waiting::start(&mut place.command(&name), "").pid()));
        let waiting = Waiting::start(&mut place.command(&name), "closed");
        finds(&examine(waiting.pid()), Topic::Descriptor, "the program closed descriptor");
    }

    #[test]
    fn events_that_were_lost() {
        let name = case!({ patient() });
        let Some(place) = Place::kernel(&name) else { return };
        let place = place.on();
        place.instance().set_tracing_on(false).unwrap();
        let waiting = Waiting::start(&mut place.command(&name), "dropped");
        place.instance().set_tracing_on(true).unwrap();
        let report = examine(waiting.pid());
        is_healthy(&report);
        let lost = report.findings().iter().find(|it| it.topic == Topic::Lost).expect("a note");
        // Four events are lost: the first event of the program, and the three events that the fault `dropped` writes.
        // The process publishes its state at the first, second and fourth lost event.
        assert!(
            lost.text.contains("at least 4 events") && lost.text.contains("Bad file descriptor"),
            "{report}"
        );
    }

    #[test]
    fn a_filter_that_nobody_tells() {
        let name = case!({ patient() });
        let Some(place) = Place::kernel(&name) else { return };
        let place = place.on();
        let waiting = Waiting::start(&mut place.command(&name), "watched");
        is_healthy(&examine(waiting.pid()));
        drop(place.control().enable("another").unwrap());
        // The thread that watches the properties may notice the change late.
        until("its filter has followed", || {
            let report = examine(waiting.pid());
            report.findings().iter().any(|it| it.topic == Topic::Serial && it.level == Level::Good)
        });
        is_healthy(&examine(waiting.pid()));

        let waiting = Waiting::start(&mut place.command(&name), "forked");
        is_healthy(&examine(waiting.pid()));
        let child =
            waiting.said.iter().find_map(|line| line.split_once("CHILD ")).unwrap().1.parse().unwrap();
        let report = examine(child);
        finds(&report, Topic::Filter, "no thread tells it");
        assert!(report.findings().iter().any(|it| it.text.contains("its parent's")), "{report}");
    }

    #[test]
    fn a_child_speaks_for_itself() {
        let name = case!({ patient() });
        let Some(place) = Place::kernel(&name) else { return };
        let place = place.on();
        let waiting = Waiting::start(&mut place.command(&name), "forked and traced");
        let child =
            waiting.said.iter().find_map(|line| line.split_once("CHILD ")).unwrap().1.parse().unwrap();
        until("the child has said something", || {
            let report = examine(child);
            !report.findings().iter().any(|it| it.text.contains("its parent's"))
        });
        finds(&examine(child), Topic::Disabled, "disabled tracing for itself");
        is_healthy(&examine(waiting.pid()));
    }

    /// Tests the reports for an ordinary user, who may neither write to the kernel's marker nor examine a process of
    /// another user.
    #[test]
    fn what_a_plain_user_may_not() {
        let name = case!({
            if std::env::var_os("LOOK_AT").is_none() {
                return patient();
            }
            let pid = std::env::var("LOOK_AT").unwrap().parse().unwrap();
            finds(&examine(pid), Topic::State, "for user 0 and root");
        });
        if !is_root(&name) {
            return;
        }
        let place = Place::file().on();
        fs::set_permissions(place.path(""), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let program = place.path("program");
        common::copy_program(std::env::current_exe().unwrap(), &program);
        let waiting = Waiting::start(&mut place.command(&name), "");
        let mut plain = place.command_of(&program, &name);
        plain.env("LOOK_AT", waiting.pid().to_string()).uid(65534).gid(65534);
        common::run(&mut plain);
        // The process uses the kernel's own marker, and a separate directory for the properties.
        let own = place.path("own");
        fs::create_dir(&own).unwrap();
        std::os::unix::fs::chown(&own, Some(65534), None).unwrap();
        let mut command = place.command_of(&program, &name);
        command
            .env_remove("ATRACE_MARKER")
            .env("ATRACE_PROPERTIES", own.join("properties"))
            .uid(65534)
            .gid(65534);
        let waiting = Waiting::start(&mut command, "");
        let report = examine(waiting.pid());
        let wrong: Vec<_> = report.wrong().map(|it| it.topic).collect();
        assert_eq!(wrong, [Topic::Marker, Topic::Event], "{report}");
    }

    #[test]
    fn a_program_that_is_to_be_started() {
        let name = case!({
            // The doctor finds no fault in these cases, because `atrace run` records any program, whatever is switched
            // on.
            let notes = |program: Option<&str>, text: &str| {
                let report = examine_program(program);
                is_healthy(&report);
                assert!(report.findings().iter().any(|it| it.text.contains(text)), "{report}");
            };
            notes(Some("/usr/bin/some-program"), "/usr/bin/some-program");
            notes(None, "no program traces");
            let switched = common::control().enable("*/some-program").unwrap();
            is_healthy(&examine_program(Some("/usr/bin/some-program")));
            notes(Some("/usr/bin/other"), "on are */some-program");
            is_healthy(&examine_program(None));
            drop(switched);
        });
        let Some(place) = Place::kernel(&name) else { return };
        place.run(&name);
    }
}

/// Situations of a user, each with the line of the doctor's report that tells the user what to do.
#[allow(unsafe_code, reason = "descriptors are closed and processes forked as a C program would")]
mod situations {
    use std::fs;
    use std::io::{BufRead as _, BufReader};
    use std::os::unix::process::CommandExt as _;
    use std::process::{Child, Command, Stdio};

    use atrace::*;

    use crate::common::{case, is_root, until};
    use crate::here::{Here, USER, end};

    /// The user who calls the doctor, and the user of the examined process.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Who {
        Root,
        User,
    }
    use Who::{Root, User};

    /// The argument of the doctor: a process or a program.
    #[derive(Clone, Copy, Debug)]
    enum About {
        /// The doctor gets no argument.
        Nothing,
        Name(&'static str),
        /// The doctor gets the name of a running program. `words` is the command that starts the program, and `does` is
        /// the program's work.
        Program {
            words: &'static str,
            does: &'static str,
        },
    }
    use About::{Name, Nothing, Program};

    const fn program(words: &'static str, does: &'static str) -> About {
        Program { words, does }
    }

    /// The command that starts a program in another mount namespace, in which tracefs is not mounted.
    const WITHOUT_TRACEFS: &str = "unshare -m sh -c 'mount -t tmpfs none /sys/kernel && exec \"$0\" \"$@\"'";
    /// The command that starts a program whose root directory has neither tracefs nor `/dev/shm`.
    const IN_CHROOT: &str = "unshare -m sh -c 'mkdir -p root && mount --rbind / root && mount -t tmpfs none root/sys \
        && mount -t tmpfs none root/dev && exec chroot root \"$0\" \"$@\"'";

    /// The situations. Each entry has the user who calls the doctor, the doctor's argument, the line of the report that
    /// tells the user what to do, and whether events arrive. The report must contain a fault exactly if events do not
    /// arrive.
    const SITUATIONS: [(Who, About, &str, bool); 17] = [
        (User, Nothing, "`atrace run -- CMD` records a program by Perfetto, without any rights", true),
        (Root, Nothing, "`atrace run -- CMD` records a program by Perfetto, without any rights", true),
        (
            User,
            Name("not-there"),
            "`atrace run -- CMD` records a program by Perfetto, without any rights",
            true,
        ),
        (User, Name("999999999"), "-> pgrep -af NAME", false),
        (
            User,
            program("./atrace run -f -o out --", ""),
            "ok    event      an event written now, of a category",
            true,
        ),
        (
            Root,
            program("./atrace run -f -o out --", ""),
            "ok    event      an event written now, of a category",
            true,
        ),
        (
            User,
            program("./atrace run -f -o out --", "watches"),
            "ok    service    the process last reported: ",
            true,
        ),
        // Only root may write to the marker, and the program looks for a recording to which it could connect.
        (User, program("", "watches"), "-> atrace record -a '", false),
        (User, program("", "connects"), "-> atrace record -a '", false),
        (Root, program(WITHOUT_TRACEFS, "watches"), "mount tracefs with: ", false),
        (Root, program(IN_CHROOT, "watches"), "-> atrace record -a '", false),
        (Root, program("", "watches"), "-> atrace on '", false),
        (Root, program("", "forks"), "-> have the child call atrace_subscriber::after_fork()", false),
        (User, program("env ATRACE_BACKEND=marked", ""), "-> start it without ATRACE_BACKEND", false),
        (User, program("env ATRACE_BACKEND=perfetto", "connects"), "-> atrace record -a '", false),
        (User, program("env ATRACE_STATE=none", ""), "-> have it begin with atrace::atrace_init()", false),
        (User, program("sh -c 'exec sleep 100'", "sleeps"), "-> atrace run -- CMD", false),
    ];

    /// Does the work of the program that the doctor examines.
    fn patient() {
        let does = std::env::var("DOES").unwrap_or_default();
        atrace_init();
        let mut shown = std::process::id();
        match &*does {
            "watches" | "forks" => {
                std::mem::forget(watch::watch_backends(|_| (), true).unwrap());
                if does == "forks" {
                    // SAFETY: the child waits for its parent's end.
                    let child = unsafe { libc::fork() };
                    if child == 0 {
                        // SAFETY: the arguments are numbers.
                        unsafe {
                            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                            libc::alarm(600);
                            libc::pause();
                            libc::_exit(0);
                        }
                    }
                    shown = child.cast_unsigned();
                }
            }
            "connects" => {
                perfetto::connect();
                until("it has asked", || !perfetto::status().to_string().contains("connecting"));
            }
            _ => {}
        }
        if std::env::var("ATRACE_BACKEND").is_ok_and(|backend| backend == "perfetto") && does != "connects" {
            until("it is recorded", || perfetto::status().sessions() > 0);
        }
        println!("PATIENT {shown}");
        let _ = std::io::stdin().lines().next();
    }

    /// A running program. Dropping the `Running` ends the program and all processes that it has started.
    struct Running(Child);

    impl Drop for Running {
        fn drop(&mut self) {
            // SAFETY: the child is the leader of a process group of its own, and was not waited for.
            unsafe { libc::kill(-self.0.id().cast_signed(), libc::SIGKILL) };
            let _ = self.0.wait();
        }
    }

    fn user(command: &mut Command, who: Who) -> &mut Command {
        if who == User && common_is_root() { command.uid(USER).gid(USER) } else { command }
    }

    fn common_is_root() -> bool {
        // SAFETY: no preconditions.
        unsafe { libc::geteuid() == 0 }
    }

    #[test]
    fn each_situation_has_a_line_that_helps() {
        let name = case!({ patient() });
        let here = Here::new();
        if common_is_root() {
            std::os::unix::fs::chown(here.0.path(), Some(USER), None).unwrap();
        }
        for (index, (who, about, helps, arrives)) in SITUATIONS.into_iter().enumerate() {
            if who == Root && !is_root(&name) {
                continue;
            }
            let _ = fs::remove_file(here.path("out"));
            let properties = here.path(&format!("properties-{index}"));
            let with = |mut command: Command| {
                command.env("ATRACE_PROPERTIES", &properties);
                user(&mut command, who);
                command
            };
            let mut running = None;
            let asked = match about {
                Nothing => None,
                Name(name) => Some(name.to_owned()),
                Program { words, does } => {
                    let script = format!("exec {words} \"$0\" \"$@\"");
                    let mut command = with(here.cleared("sh".as_ref(), &name));
                    if does == "connects" {
                        // The program must not find the machine's service.
                        command.env("PERFETTO_PRODUCER_SOCK_NAME", here.path("no-service"));
                    }
                    command.env("DOES", does).args(["-c", &script]).arg(here.path("program"));
                    command.args([&*name, "--exact", "--nocapture", "--test-threads=1"]);
                    let mut child = command
                        .process_group(0)
                        .stdin(Stdio::piped())
                        .stderr(Stdio::inherit())
                        .spawn()
                        .unwrap();
                    let said = BufReader::new(child.stdout.take().unwrap());
                    let pid = child.id();
                    running = Some((Running(child), does));
                    let pid = if does == "sleeps" {
                        let link = format!("/proc/{pid}/cmdline");
                        until("it sleeps", || fs::read(&link).unwrap().starts_with(b"sleep"));
                        pid.to_string()
                    } else {
                        let mut lines = said.lines().map(Result::unwrap);
                        let line = lines.find_map(|line| Some(line.split_once("PATIENT ")?.1.to_owned()));
                        line.unwrap_or_else(|| panic!("{index}: {about:?} ended"))
                    };
                    Some(pid)
                }
            };
            let ran = end(with(here.atrace(&name)).arg("doctor").args(asked.as_deref()));
            let about = format!("{index}: {who:?}, {about:?}");
            assert!(ran.stdout.contains(helps), "{about}: {helps} is missing:\n{}", ran.stdout);
            assert_eq!(ran.status.success(), arrives, "{about}:\n{}", ran.stdout);
            assert_eq!(ran.stdout.contains("WRONG"), !arrives, "{about}:\n{}", ran.stdout);
            let forks = running.as_ref().is_some_and(|(_, does)| *does == "forks");
            assert_eq!(ran.stdout.contains("forked"), forks, "{about}:\n{}", ran.stdout);
            drop(running);
        }
    }

    /// Tests the doctor with a program that does not run, in an environment in which events go to Perfetto alone.
    #[test]
    fn run_records_a_program_for_perfetto_alone() {
        let name = case!({});
        let here = Here::new();
        let mut command = here.atrace(&name);
        command.env("ATRACE_PROPERTIES", here.path("properties")).env("ATRACE_BACKEND", "perfetto");
        let ran = end(command.args(["doctor", "not-there"]));
        let arrives = "ok    event      an event of a program that `atrace run -- CMD` starts arrives";
        assert!(ran.status.success() && ran.stdout.contains(arrives), "{ran:?}");
        assert!(ran.stdout.contains("note  backend    ATRACE_BACKEND=perfetto"), "{ran:?}");
    }

    /// Tests that the doctor does not examine a process of another user, and names the command that root can use.
    #[test]
    fn a_process_of_another_user_is_for_root() {
        let name = case!({});
        if !is_root(&name) {
            return;
        }
        let here = Here::new();
        let pid = std::process::id().to_string();
        let ran = end(user(&mut here.atrace(&name), User).args(["doctor", &pid]));
        assert!(ran.stdout.contains(&format!("-> sudo atrace doctor {pid}")), "{ran:?}");
        assert!(!ran.status.success() && !ran.stdout.contains("forked"), "{ran:?}");
    }
}
