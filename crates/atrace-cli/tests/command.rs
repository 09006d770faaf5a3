//! Tests the command `atrace`, from its start to the file that it saves: recordings by root with the kernel's buffers,
//! and messages for a user without rights.

#[path = "../../../atrace/tests/common/mod.rs"]
mod common;
mod here;

#[allow(unsafe_code, reason = "a disk is mounted and processes are signalled as a C program would")]
mod cases {
    use std::ffi::OsStr;
    use std::fs;
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::os::fd::AsRawFd as _;
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
    use std::os::unix::process::CommandExt as _;
    use std::path::PathBuf;
    use std::process::{Child, Command, Stdio};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, PoisonError, RwLock};
    use std::time::{Duration, Instant};

    use atrace::control::{Control, Properties};
    use atrace::*;
    use atrace_cli::tracefs;

    use crate::common::{self, Ran, case, is_root, until};
    #[cfg(target_os = "linux")]
    use crate::here::without_memory_files;
    use crate::here::{Here, USER, end, left_by, messages, signal};

    const TAG: AtraceTag = AtraceTag::App;

    /// Tests that an unknown option is taken neither for the name of a program nor for a pattern.
    #[test]
    fn an_unknown_option_is_refused() {
        let name = case!({ println!("STARTED") });
        let here = Here::new();
        for subcommand in ["run", "cost", "record", "on", "off", "status", "doctor", "man"] {
            let mut command = here.atrace(&name);
            command.args([subcommand, "--bogus"]).arg(here.path("program"));
            let ran = end(command.args([&*name, "--exact", "--nocapture"]));
            assert_eq!(ran.status.code(), Some(2), "{subcommand}: {ran:?}");
            assert!(ran.stderr.contains("unexpected argument '--bogus'"), "{subcommand}: {ran:?}");
            assert!(!ran.stdout.contains("STARTED"), "{subcommand}: {ran:?}");
        }
        assert_eq!(here.files(), [""; 0]);
    }

    #[test]
    #[cfg_attr(target_os = "android", ignore = "`run` is refused there")]
    fn a_program_and_its_children_are_recorded() {
        let name = case!({
            assert!(atrace_is_tag_enabled(TAG) && atrace_is_tag_enabled(AtraceTag::Camera));
            atrace_begin(TAG, "parent");
            if std::env::var_os("CHILD").is_none() {
                let mut again = Command::new(std::env::current_exe().unwrap());
                again.arg0("another name").args(std::env::args_os().skip(1)).env("CHILD", "1");
                let child = again.stdout(Stdio::null()).spawn().unwrap();
                println!("CHILD {}", child.id());
                println!("PARENT {}", common::pid());
                assert_eq!(common::end_of(child).status.code(), Some(7));
            }
            std::thread::Builder::new()
                .name("a thread".to_owned())
                .spawn(|| drop(begin_scoped_event(TAG, "in a thread")))
                .unwrap()
                .join()
                .unwrap();
            atrace_end(TAG);
            eprintln!("said on stderr");
            std::process::exit(7);
        });
        if !is_root(&name) {
            return;
        }
        let here = Here::new();
        let own = Control::from(Properties::open_path(&here.path("properties")).unwrap());
        own.enable("nobody").unwrap().keep();
        let before = fs::read(here.path("properties")).unwrap();
        let mut command = here.run(&name, &[]);
        let ran = end(command.env("ATRACE_PROPERTIES", here.path("properties")));
        assert_eq!(ran.status.code(), Some(7), "{ran:?}");
        assert!(ran.stderr.contains("said on stderr\n"), "{ran:?}");
        // Each of the two programs writes four events.
        assert!(ran.stderr.contains("8 events written, none lost\n"), "{ran:?}");
        assert!(ran.stderr.contains("saved out: open it at https://ui.perfetto.dev"), "{ran:?}");
        let saved = here.saved();
        for word in ["PARENT", "CHILD"] {
            let pid: u32 = ran.said(word)[0].parse().unwrap();
            let expected = ["B|{}|parent", "B|{}|in a thread", "E|{}", "E|{}"]
                .map(|it| it.replace("{}", &pid.to_string()));
            assert_eq!(messages(&saved, pid), expected);
            assert!(saved.contains(&format!("- {pid} 0 0 0 - - - program")), "{saved}");
        }
        assert!(saved.contains("        a thread-"), "{saved}");
        let last = saved.lines().rfind(|line| line.contains("tracing_mark_write")).unwrap();
        let seconds: f64 =
            last.split(": tracing_mark_write").next().unwrap().rsplit(' ').next().unwrap().parse().unwrap();
        assert!((boot_time() - seconds).abs() < 60.0, "not the clock that counts from the start: {last}");
        assert_eq!(
            fs::read(here.path("properties")).unwrap(),
            before,
            "the user's own properties were touched"
        );
        assert_eq!(left_by(ran.pid), Vec::<PathBuf>::new());
        assert_eq!(here.files(), ["out", "properties"]);
    }

    fn boot_time() -> f64 {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is a writable timespec.
        unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut time) };
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    }

    #[test]
    #[cfg_attr(target_os = "android", ignore = "`run` is refused there")]
    fn signals_reach_the_program_and_its_end_is_told() {
        let name = case!({
            atrace_instant(TAG, "ready");
            match std::env::var("HOW").unwrap().as_str() {
                "kill" => {
                    // SAFETY: no preconditions.
                    unsafe { libc::raise(libc::SIGKILL) };
                }
                _ => std::thread::sleep(Duration::from_secs(100)),
            }
        });
        if !is_root(&name) {
            return;
        }
        let here = Here::new();
        let ran = end(here.run(&name, &[]).env("HOW", "kill"));
        assert_eq!(ran.status.code(), Some(128 + libc::SIGKILL), "{ran:?}");
        assert!(here.saved().contains("|ready\n"));
        for number in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            fs::remove_file(here.path("out")).unwrap();
            let mut child = here.run(&name, &["--force"]).env("HOW", "sleep").spawn().unwrap();
            let pid = child.id();
            let mut written = || {
                if child.try_wait().unwrap().is_some() {
                    return true;
                }
                let instances = left_by(pid).into_iter().filter_map(|it| tracefs::Instance::attach(it).ok());
                instances.filter_map(|it| it.markers().ok()).any(|mut markers| markers.next().is_some())
            };
            until("the program is ready", &mut written);
            if child.try_wait().unwrap().is_none() {
                signal(&child, number);
            }
            let ran = common::end_of(child);
            assert_eq!(ran.status.code(), Some(128 + number), "{ran:?}");
            assert!(here.saved().contains("|ready\n") && left_by(ran.pid).is_empty());
        }
    }

    #[test]
    #[cfg_attr(target_os = "android", ignore = "`run` is refused there")]
    fn under_sudo_the_program_is_the_callers() {
        let name = case!({
            let status = fs::read_to_string("/proc/self/status").unwrap();
            for line in status.lines().filter(|line| line.starts_with("CapEff") || line.starts_with("Groups"))
            {
                println!("STATUS {}", line.split_whitespace().collect::<Vec<_>>().join(" "));
            }
            // SAFETY: no preconditions.
            println!("IDS {} {} {}", unsafe { libc::getuid() }, unsafe { libc::geteuid() }, unsafe {
                libc::getgid()
            });
            println!("ENV {:?} {:?}", std::env::var("USER"), std::env::var("SUDO_UID"));
            let store = PathBuf::from(std::env::var_os("ATRACE_PROPERTIES").unwrap());
            let owners = [store.parent().unwrap(), &store].map(|path| fs::metadata(path).unwrap().uid());
            println!("STORE {owners:?}");
            println!("DENIED {}", fs::File::open("/sys/kernel/tracing/trace").is_err());
            // SAFETY: the signal sets are writable.
            let blocked = unsafe {
                let mut set = std::mem::zeroed();
                libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut set);
                (1..32).filter(|&number| libc::sigismember(&set, number) == 1).count()
            };
            println!("BLOCKED {blocked}");
            atrace_instant(TAG, "written");
        });
        if !is_root(&name) {
            return;
        }
        let here = Here::new();
        let mut command = here.run(&name, &[]);
        let ran = end(command.env("SUDO_UID", USER.to_string()).env("SUDO_GID", USER.to_string()));
        assert!(ran.status.success(), "{ran:?}");
        assert_eq!(ran.said("IDS"), ["65534 65534 65534"]);
        assert_eq!(ran.said("STATUS"), ["Groups: 65534", "CapEff: 0000000000000000"]);
        assert_eq!(ran.said("ENV"), ["Ok(\"nobody\") Err(NotPresent)"]);
        assert_eq!((ran.said("DENIED"), ran.said("BLOCKED")), (vec!["true"], vec!["0"]));
        assert_eq!(ran.said("STORE"), ["[65534, 65534]"]);
        assert!(here.saved().contains("|written\n"));
        let data = fs::metadata(here.path("out")).unwrap();
        assert_eq!((data.uid(), data.gid()), (USER, USER));
        // With `--root`, the program keeps root's ids.
        let mut command = here.run(&name, &["--root", "-f"]);
        let ran = end(command.env("SUDO_UID", USER.to_string()).env("SUDO_GID", USER.to_string()));
        assert_eq!((ran.said("IDS"), ran.said("DENIED")), (vec!["0 0 0"], vec!["false"]), "{ran:?}");
        // The store belongs to root: if a process of root opened a store of another user, that user could truncate the
        // store and so kill the process with SIGBUS.
        assert_eq!(ran.said("STORE"), ["[0, 0]"]);
        let ran = end(here.run(&name, &["-f"]).env("SUDO_UID", "somebody"));
        assert_eq!(ran.status.code(), Some(125));
        assert!(ran.stderr.contains("SUDO_UID=\"somebody\" is not a user"), "{ran:?}");
    }

    /// Tests callers whose ids are no ids of users. The kernel takes the highest number for "leave the id unchanged",
    /// so the program would keep root's ids.
    #[test]
    #[cfg_attr(target_os = "android", ignore = "`run` is refused there")]
    fn a_caller_that_is_no_user_is_refused() {
        let name = case!({ println!("STARTED") });
        if !is_root(&name) {
            return;
        }
        let here = Here::new();
        let last = u32::MAX.to_string();
        let wrong: [&[u8]; 10] =
            [last.as_bytes(), b"-1", b"+1", b"", b" 1", b"1 ", b"1\n", b"4294967296", b"0x1", b"1\xff"];
        for wrong in wrong.map(OsStr::from_bytes) {
            for variable in ["SUDO_UID", "SUDO_GID", "PKEXEC_UID"] {
                for options in [&[][..], &["--kernel"], &["--root"]] {
                    let mut command = here.atrace(&name);
                    command.arg("run").args(options).args(["-o", "out", "--"]).arg(here.path("program"));
                    command.args([&name, "--exact", "--nocapture"]);
                    command.env("SUDO_UID", USER.to_string()).env(variable, wrong);
                    let ran = end(&mut command);
                    assert_eq!(ran.status.code(), Some(125), "{variable}={wrong:?} {options:?}: {ran:?}");
                    assert!(ran.stderr.contains(&format!("{variable}=")), "{ran:?}");
                    assert!(!ran.stdout.contains("STARTED"), "{variable}={wrong:?}: {ran:?}");
                    assert_eq!(here.files(), [""; 0]);
                }
            }
        }
    }

    fn refused(ran: &Ran, status: i32, texts: &[&str]) {
        assert_eq!(ran.status.code(), Some(status), "{ran:?}");
        for text in texts {
            assert!(ran.stderr.contains(text), "{text:?} is not said: {ran:?}");
        }
    }

    #[test]
    #[cfg_attr(target_os = "android", ignore = "`run` is refused there")]
    fn what_can_not_be_done_is_said_and_changes_nothing() {
        let name = case!({ println!("STARTED") });
        if !is_root(&name) {
            return;
        }
        let here = Here::new();
        let of = |args: &[&str]| end(here.atrace(&name).args(args));
        refused(
            &of(&["run", "--kernel", "-o", "out", "--", "/nonexistent/program"]),
            127,
            &["/nonexistent/program: No such file"],
        );
        refused(
            &of(&["run", "--kernel", "-o", "out", "--", "/etc/passwd"]),
            126,
            &["/etc/passwd: Permission denied"],
        );
        refused(
            &of(&["run", "--kernel", "-o", "no/out", "--", "true"]),
            125,
            &["can't write to no/out", "-o"],
        );
        refused(
            &of(&["run", "--kernel", "-b", "999999999999", "--", "true"]),
            125,
            &["--buffer 999999999999", "at most"],
        );
        refused(&of(&["run"]), 2, &["Usage: atrace run"]);
        refused(&of(&["run", "--kernel", "-b", "0", "--", "true"]), 2, &["0 is not in"]);
        assert_eq!(here.files(), [""; 0]);
        fs::write(here.path("out"), "mine").unwrap();
        let ran = end(&mut here.run(&name, &[]));
        refused(&ran, 125, &["out exists already", "-o", "--force"]);
        assert!(!ran.stdout.contains("STARTED"));
        assert_eq!((here.saved().as_str(), left_by(ran.pid).len()), ("mine", 0));

        let plain = |args: &[&str]| end(here.atrace(&name).args(args).uid(USER).gid(USER));
        let root_only = ["no permission to use /sys/kernel/tracing", "sudo"];
        refused(&plain(&["run", "--kernel", "-o", "out2", "--", "true"]), 125, &root_only);
        refused(&plain(&["record", "-t", "1s", "-c", "sched", "-o", "out2"]), 1, &root_only);
        assert_eq!(here.files(), ["out"]);
    }

    /// Runs the command without tracefs, in a separate mount namespace.
    #[test]
    #[cfg_attr(target_os = "android", ignore = "`run` is refused there")]
    fn without_tracefs_its_mounting_is_told() {
        let name = case!({});
        if !is_root(&name) {
            return;
        }
        let here = Here::new();
        let ran =
            end(&mut here.apart("mount -t tmpfs none /sys/kernel && exec ./atrace run --kernel -- true"));
        refused(&ran, 125, &["tracefs is not mounted", "mount -t tracefs nodev /sys/kernel/tracing"]);
    }

    /// Tests kernels that lack the clock `boot` and the option `record-tgid`. A directory of ordinary files takes the
    /// place of tracefs, in a separate mount namespace.
    #[test]
    #[cfg_attr(target_os = "android", ignore = "`record` uses the device's buffer")]
    fn old_kernels_record_what_they_can() {
        let name = case!({});
        if !is_root(&name) {
            return;
        }
        let here = Here::new();
        let script = r#"
            set -e
            mount -t tmpfs none /sys/kernel
            top=/sys/kernel/debug/tracing
            [ "$OPTION" = none ] && top=/sys/kernel/tracing
            mkdir -p $top/instances $top/options $top/per_cpu/cpu0 $top/events/sched/sched_switch $top/events/sched/sched_process_exit
            cd $top
            touch trace trace_marker set_event saved_cmdlines
            echo nop >current_tracer; echo "$CLOCKS" >trace_clock; printf 0 >tracing_on
            [ "$OPTION" = none ] || printf 0 >options/$OPTION
            echo '7 (expanded: 1408)' >per_cpu/cpu0/buffer_size_kb; cp per_cpu/cpu0/buffer_size_kb buffer_size_kb
            printf 'entries: 0\noverrun: 0\ncommit overrun: 0\nbytes: 0\ndropped events: 0\n' >per_cpu/cpu0/stats
            for event in . sched sched/sched_switch sched/sched_process_exit; do printf 0 >events/$event/enable; printf 0 >events/$event/filter; done
            echo "42 sh" >saved_cmdlines
            cd "$HERE"
            ./atrace record -fo out $OF &
            until [ "$(cat $top/tracing_on)" = 1 ]; do sleep 0.01; kill -0 $!; done
            cd $top
            # What the kernel would have written, and the clock as it shows the one that is selected.
            echo "$SELECTED" >trace_clock; cat "$TEXT" >trace; cp options/* "$HERE" || [ "$OPTION" = none ]
            cd "$HERE"
            kill -TERM $!
            wait $!
            cat $top/tracing_on $top/trace_clock $top/options/* 2>/dev/null | tr '\n' ' ' | sed 's/^/AFTER /'
        "#;
        let texts = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/tracefs/texts");
        // Linux 3.10, and Android's Linux 3.18.
        let kernels = [
            ("[local] global counter uptime perf", "local [global] counter", "none", "3.10.txt"),
            ("[local] global counter uptime perf mono", "local global [mono]", "print-tgid", "5.4.txt"),
        ];
        // Records events of the kernel, and then events of programs.
        for ((clocks, selected, option, text), of) in kernels
            .into_iter()
            .flat_map(|kernel| ["-c sched", "--wait -a */not-there"].map(|of| (kernel, of)))
        {
            let mut command = here.apart(script);
            command.env("CLOCKS", clocks).env("SELECTED", selected).env("OPTION", option).env("OF", of);
            let ran = end(command.env("TEXT", texts.join(text)).env("HERE", here.path("")));
            assert!(ran.status.success(), "{ran:?}");
            let clock = if option == "none" { "global" } else { "mono" };
            let remark = format!(
                "this kernel has no trace clock boot (Linux 4.10): the timestamps are of {clock}, which"
            );
            assert!(ran.stderr.contains(&remark), "{ran:?}");
            let saved = here.saved();
            assert!(saved.contains(&format!("\n# {remark}")), "{saved}");
            assert!(saved.contains("|an old name\n") && saved.contains("\n- 42 "), "{saved}");
            assert_eq!(ran.stderr.contains("which process a thread belongs to"), option == "none", "{ran:?}");
            // The kernel's option was on during the recording.
            if option != "none" {
                assert_eq!(fs::read_to_string(here.path(option)).unwrap(), "1");
            }
            assert!(ran.stdout.contains("AFTER 0local"), "{ran:?}");
        }
    }

    /// Tests a buffer that the command creates on an old kernel. A directory of ordinary files takes the place of
    /// tracefs. The recorded program is a shell script. The script also writes the files that the kernel would write:
    /// the trace with the program's messages, and the selected clock.
    #[test]
    #[cfg(target_os = "linux")]
    fn old_kernels_record_a_program() {
        let name = case!({
            let _slice = begin_scoped_event(TAG, "outer");
            atrace_int(TAG, "count", 7);
            println!("PROGRAM {}", common::pid());
        });
        if !is_root(&name) {
            return;
        }
        let here = Here::new();
        let library = here.path("instances.so");
        let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/instances/instances.c");
        let mut compiler = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
        compiler.args(["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]).arg(source);
        assert!(compiler.arg("-o").arg(&library).arg("-ldl").status().unwrap().success());
        let program = r#"
            ./program "$ATRACE_TEST_CASE" --exact --nocapture --test-threads=1 >said || exit
            grep -o 'PROGRAM [0-9]*' said
            pid=$(grep -o 'PROGRAM [0-9]*' said | cut -d ' ' -f 2)
            cd $TOP/instances/*
            echo "CLOCK $(head -c 8 trace_clock)"
            echo "ENABLED $(cat events/sched/*/enable)"
            echo "$SELECTED" >trace_clock
            sed 's/[A-Z]|[0-9]/\n&/g' trace_marker | grep . >messages
            (sed '/^#/!d' "$TEXT"; while read -r message; do
                printf '%16s-%-5s [000] ...1    12.000001: tracing_mark_write: %s\n' program $pid "$message"
            done <messages) >trace
            sed -i "s/entries: 0/entries: $(wc -l <messages)/" per_cpu/cpu0/stats
            echo "$pid program" >$TOP/saved_cmdlines
        "#;
        let script = r#"
            set -e
            mount -t tmpfs none /sys/kernel
            export TOP=/sys/kernel/debug/tracing INSTANCE=/sys/kernel/instance
            mkdir -p $TOP/instances $TOP/options $INSTANCE/per_cpu/cpu0
            cd $INSTANCE
            for event in sched_switch sched_process_exit; do
                mkdir -p events/sched/$event
                printf 0 >events/sched/$event/enable; printf 0 >events/sched/$event/filter
            done
            touch trace trace_marker set_event
            echo "$CLOCKS" >trace_clock; printf 1 >tracing_on; echo 1408 >buffer_size_kb
            printf 'entries: 0\noverrun: 0\ncommit overrun: 0\nbytes: 0\n' >per_cpu/cpu0/stats
            cp -r . $TOP
            cd "$HERE"
            LD_PRELOAD=$HERE/instances.so ./atrace run -fo out $OPTION -- sh -c "$PROGRAM"
            echo "LEFT $(ls $TOP/instances)"
        "#;
        let text = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/tracefs/texts/3.10.txt");
        // Linux 3.10 and 3.18, whose tracefs instances have no options.
        let kernels = [
            ("[local] global counter uptime perf", "local [global] counter", "global"),
            ("[local] global counter uptime perf mono", "local global [mono]", "mono"),
        ];
        for ((clocks, selected, clock), option) in kernels
            .into_iter()
            .flat_map(|kernel| ["--kernel", "-c sched/sched_switch"].map(|option| (kernel, option)))
        {
            let mut command = here.apart(script);
            command
                .env("CLOCKS", clocks)
                .env("SELECTED", selected)
                .env("OPTION", option)
                .env("PROGRAM", program);
            command.env("ATRACE_TEST_CASE", &name).env("TEXT", &text).env("HERE", here.0.path());
            let ran = end(&mut command);
            assert!(ran.status.success(), "{ran:?}");
            let remark = format!(
                "this kernel has no trace clock boot (Linux 4.10): the timestamps are of {clock}, which"
            );
            for text in [&*remark, "which process a thread belongs to", "3 events written, none lost\n"] {
                assert!(ran.stderr.contains(text), "{text}: {ran:?}");
            }
            assert!(ran.said("CLOCK")[0].starts_with(clock), "{ran:?}");
            assert_eq!(ran.said("ENABLED"), [if option == "--kernel" { "10" } else { "11" }], "{ran:?}");
            assert_eq!(ran.said("LEFT"), [""], "{ran:?}");
            let (saved, pid) = (here.saved(), ran.said("PROGRAM")[0]);
            assert!(saved.contains(&format!("\n# {remark}")), "{saved}");
            let found = saved.lines().filter_map(|line| Some(line.split_once("tracing_mark_write: ")?.1));
            let expected = [format!("B|{pid}|outer"), format!("C|{pid}|count|7"), format!("E|{pid}")];
            assert_eq!(found.collect::<Vec<_>>(), expected, "{saved}");
            assert!(saved.contains(&format!("- {pid} 0 0 0 - - - program")), "{saved}");
        }
    }

    /// Tests a kernel before Linux 3.17, which has no memory files (`memfd_create`).
    #[test]
    #[cfg(target_os = "linux")]
    fn without_memory_files_programs_are_recorded() {
        let name = case!({
            atrace_instant(TAG, "written");
            if let Some(path) = std::env::var_os("UNTIL").map(PathBuf::from) {
                until("it is switched on", || atrace_is_tag_enabled(TAG));
                until("it is told to end", || path.exists());
            }
        });
        let here = Here::new();
        let run = || {
            let mut command = here.atrace(&name);
            command.args(["run", "-fo", "out", "--"]).arg(here.path("program"));
            command.args([&name, "--exact", "--nocapture", "--test-threads=1"]);
            command
        };
        let ran = end(without_memory_files(&mut run()));
        assert!(ran.status.success() && ran.stderr.contains("1 events written, none lost\n"), "{ran:?}");
        // The time of the measurement is also the limit of each run. On a busy machine, a run may exceed the shortest
        // limit.
        let mut costs = ["1s", "5s", "30s", "2min"].into_iter().map(|time| {
            let mut cost = here.atrace(&name);
            cost.args(["cost", "-t", time, "--json", "--"]).arg(here.path("program"));
            end(without_memory_files(cost.args([&name, "--exact", "--nocapture", "--test-threads=1"])))
        });
        let ran = costs.find(|ran| !ran.stderr.contains("had not ended after")).unwrap();
        assert!(
            ran.status.success() && ran.stdout.contains("\"events\":{\"off\":0.0,\"on\":1.0}"),
            "{ran:?}"
        );

        // `atrace doctor` sees the state that a program publishes.
        let mut program = here.cleared(&here.path("program"), &name);
        program.args([&name, "--exact", "--nocapture", "--test-threads=1"]).env("UNTIL", here.path("end"));
        fs::write(here.path("marker"), "").unwrap();
        program.env("ATRACE_MARKER", here.path("marker"));
        let program =
            without_memory_files(program.env("ATRACE_PROPERTIES", here.path("properties"))).spawn().unwrap();
        let pid = program.id().to_string();
        let doctor = || {
            let mut command = here.atrace(&name);
            end(without_memory_files(
                command.args(["doctor", &pid]).env("ATRACE_PROPERTIES", here.path("properties")),
            ))
        };
        let state = format!("ok    state      atrace {}\n", env!("CARGO_PKG_VERSION"));
        until("it says its state", || doctor().stdout.contains(&state));

        // `atrace on` switches the program on, and `atrace status` shows the program.
        let pattern = here.path("program").into_os_string().into_string().unwrap();
        let of = |args: &[&str]| {
            let mut command = here.atrace(&name);
            command.args(args).env("ATRACE_PROPERTIES", here.path("properties"));
            let ran = end(without_memory_files(&mut command));
            assert!(ran.status.success() && ran.stderr.is_empty(), "{ran:?}");
            ran.stdout
        };
        assert!(of(&["on", &pattern]).starts_with(&format!("on: {pid} (")));
        until("it has noticed", || doctor().stdout.contains("ok    pattern"));
        let shown = of(&["status"]);
        assert!(shown.contains(&format!("pattern {pattern}\n    {pid} (")), "{shown}");
        fs::write(here.path("end"), "").unwrap();
        assert!(common::end_of(program).status.success());
        of(&["off", &pattern]);
        assert!(!of(&["status"]).contains(&pattern));

        // Root's command refuses to use memory that another user could shorten.
        if is_root(&name) {
            let ran = end(without_memory_files(
                run().env("SUDO_UID", USER.to_string()).env("SUDO_GID", USER.to_string()),
            ));
            refused(&ran, 125, &["this kernel (before 3.17) has no memory files", "--kernel or --root"]);
        }
    }

    #[test]
    #[cfg_attr(target_os = "android", ignore = "`run` is refused there")]
    fn the_advised_buffer_keeps_all_events() {
        let name = case!({
            for number in 0..50_000 {
                atrace_int(TAG, "number", number);
            }
        });
        if !is_root(&name) {
            return;
        }
        let here = Here::new();
        let ran = end(&mut here.run(&name, &["--buffer", "512"]));
        assert!(ran.status.success(), "{ran:?}");
        let line = ran.stderr.lines().find(|line| line.contains("50,000 events written")).expect("a report");
        let lost = line.split_once("lost ").unwrap().1.split_once(':').unwrap().0.replace(',', "");
        let lost: usize = lost.parse().expect("a number");
        // Each CPU has a buffer of the given size, and the program may have run on two CPUs. So the number of kept
        // events is not known in advance.
        let kept = here.saved().matches("tracing_mark_write: C|").count();
        assert!(lost > 0 && kept + lost == 50_000, "{kept} {line}");
        assert!(line.ends_with(" would have kept them"), "{line}");
        let advised = line.split_once("--buffer ").unwrap().1.split(' ').next().unwrap();
        let ran = end(&mut here.run(&name, &["--force", "--buffer", advised]));
        assert!(ran.stderr.contains("50,000 events written, none lost\n"), "{advised}: {ran:?}");
        let saved = here.saved();
        assert_eq!(saved.matches("tracing_mark_write: C|").count(), 50_000);
        assert!(saved.contains("|number|0\n") && saved.contains("|number|49999\n"));
    }

    /// Returns whether the kernel copies messages of the top-level marker to tracefs instances.
    fn copies(test: &str) -> bool {
        let can = tracefs::root().unwrap().join("options").join(tracefs::COPY).exists();
        if !can {
            common::skipped(test, "the kernel copies no messages (before 6.16)");
        }
        can
    }

    /// Writes a message to the top-level marker, as a C or C++ program does.
    fn write_to_top(message: &str) {
        let marker = tracefs::root().unwrap().join("trace_marker");
        fs::OpenOptions::new().write(true).open(marker).unwrap().write_all(message.as_bytes()).unwrap();
    }

    /// A thread that writes messages to the top-level marker, as another program might. Dropping the `Other` ends the
    /// thread.
    struct Other(Arc<AtomicBool>, Option<std::thread::JoinHandle<()>>);

    impl Other {
        fn start() -> Self {
            let ends = Arc::new(AtomicBool::new(false));
            let (end, pid) = (Arc::clone(&ends), common::pid());
            let thread = std::thread::spawn(move || {
                while !end.load(Ordering::Relaxed) {
                    write_to_top(&format!("I|{pid}|by another program"));
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            Self(ends, Some(thread))
        }
    }

    impl Drop for Other {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
            self.1.take().map(std::thread::JoinHandle::join);
        }
    }

    /// Tests that the program's messages to the top-level marker are recorded and counted, and that messages of other
    /// programs are not.
    #[test]
    #[cfg_attr(target_os = "android", ignore = "`run` is refused there")]
    fn what_a_program_writes_to_the_top_level_marker_is_recorded() {
        let name = case!({
            let pid = common::pid();
            println!("PROGRAM {pid}");
            write_to_top(&format!("B|{pid}|by the program"));
            // The parentheses in the script make `sh` fork a child that executes no program.
            let marker = tracefs::root().unwrap().join("trace_marker");
            let script = "(printf 'I|1|by a grandchild' > \"$0\"; true); true";
            let status = Command::new("sh").args(["-c", script]).arg(marker).status().unwrap();
            assert!(status.success());
            // Writes from a thread that did not exist when the program started.
            let thread = std::thread::spawn(move || write_to_top(&format!("I|{pid}|by a thread")));
            thread.join().unwrap();
            atrace_instant(TAG, "by the library");
            write_to_top(&format!("E|{pid}"));
        });
        if !is_root(&name) || !copies(&name) {
            return;
        }
        let here = Here::new();
        let _top = TOP.read().unwrap_or_else(PoisonError::into_inner);
        let other = Other::start();
        let ran = end(&mut here.run(&name, &[]));
        assert!(ran.status.success(), "{ran:?}");
        assert!(ran.stderr.contains("5 events written, none lost\n"), "{ran:?}");
        let (saved, pid) = (here.saved(), ran.said("PROGRAM")[0].parse().unwrap());
        let mut got = messages(&saved, pid);
        got.sort_unstable();
        let expected = ["B|{}|by the program", "E|{}", "I|{}|by a thread", "I|{}|by the library"];
        assert_eq!(got, expected.map(|it| it.replace("{}", &pid.to_string())), "{saved}");
        assert!(saved.contains(": tracing_mark_write: I|1|by a grandchild\n"), "{saved}");
        assert!(!saved.contains("by another program"), "{saved}");
        assert_eq!(left_by(ran.pid), Vec::<PathBuf>::new());

        // Records a program that writes no message.
        let ran = end(here.atrace(&name).args(["run", "--kernel", "-fo", "out", "--", "sleep", "0.1"]));
        assert!(ran.stderr.contains("0 events written") && ran.stderr.contains("wrote none"), "{ran:?}");
        assert!(!here.saved().contains("by another program"));
        drop(other);
    }

    /// A mounted file system of a test. Dropping the `Mounted` unmounts it, even if the test fails.
    struct Mounted(std::ffi::CString);

    impl Drop for Mounted {
        fn drop(&mut self) {
            // SAFETY: the path is a C string.
            unsafe { libc::umount2(self.0.as_ptr(), libc::MNT_DETACH) };
        }
    }

    #[test]
    #[cfg_attr(target_os = "android", ignore = "`run` is refused there")]
    fn a_full_disk_loses_nothing() {
        let name = case!({
            for number in 0..5000 {
                atrace_int(TAG, "number", number);
            }
        });
        if !is_root(&name) {
            return;
        }
        let here = Here::new();
        let disk = here.path("disk");
        fs::create_dir(&disk).unwrap();
        let target = std::ffi::CString::new(disk.to_str().unwrap()).unwrap();
        // SAFETY: the arguments are C strings.
        let mounted = unsafe {
            libc::mount(c"tmpfs".as_ptr(), target.as_ptr(), c"tmpfs".as_ptr(), 0, c"size=64k".as_ptr().cast())
        };
        if mounted != 0 {
            common::skipped(&name, "can't mount a small tmpfs");
            return;
        }
        let _mounted = Mounted(target);
        let ran = end(&mut here.run_to("disk/out", &name, &[]));
        refused(&ran, 125, &["can't save disk/out: No space left on device", "nothing is lost yet"]);
        assert_eq!(fs::read_dir(&disk).unwrap().count(), 0, "half a file was left");
        let rescue = ran.stderr.lines().find_map(|line| line.split_once("make room and run: ")).unwrap().1;
        // The next recording does not touch the buffer with the unsaved recording, and reports this buffer.
        let other = end(here.atrace(&name).args(["run", "--kernel", "-o", "other", "--", "true"]));
        assert!(other.stderr.contains("still holds a recording that could not be saved"), "{other:?}");
        let kept = here.path("kept");
        let rescued =
            Command::new("sh").args(["-ec", &rescue.replace("FILE", kept.to_str().unwrap())]).status();
        assert!(rescued.unwrap().success(), "{rescue}");
        assert_eq!(fs::read_to_string(kept).unwrap().matches("|number|").count(), 5000);
        assert_eq!(left_by(ran.pid), Vec::<PathBuf>::new());
    }

    /// The path of a FIFO. Dropping the `Ending` makes the reader of the FIFO reach the end of its input.
    struct Ending(PathBuf);

    impl Drop for Ending {
        fn drop(&mut self) {
            // Opening the FIFO for writing fails until the reader has opened it.
            let open = || fs::OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(&self.0);
            let is_waiting = |_: &u32| open().is_err();
            (0..1000).take_while(is_waiting).for_each(|_| std::thread::sleep(Duration::from_millis(10)));
        }
    }

    #[test]
    #[cfg_attr(target_os = "android", ignore = "`run` is refused there")]
    fn a_child_that_stays_is_named_and_swept_later() {
        let name = case!({});
        if !is_root(&name) {
            return;
        }
        let here = Here::new();
        assert!(Command::new("mkfifo").arg(here.path("fifo")).status().unwrap().success());
        let mut command = here.atrace(&name);
        // The program's child runs until the `Ending` is dropped. The command does not wait for the child, because the
        // child does not have the environment of the recording. The command does not wait for the end of the child's
        // output, either.
        let script = "env -i cat fifo >/dev/null 2>&1 & exit 5";
        let child = Ending(here.path("fifo"));
        let ran = end(command.args(["run", "--kernel", "-o", "out", "--", "sh", "-c", script]));
        assert_eq!(ran.status.code(), Some(5), "{ran:?}");
        assert!(ran.stderr.contains("is still held open by") && ran.stderr.contains("(cat)"), "{ran:?}");
        let left = left_by(ran.pid);
        assert_eq!(left.len(), 1, "{left:?}");
        drop(child);
        until("the child is gone", || {
            std::thread::sleep(Duration::from_millis(100));
            let path = left[0].join("trace_marker");
            let others = fs::read_dir("/proc")
                .unwrap()
                .flatten()
                .filter_map(|entry| fs::read_dir(entry.path().join("fd")).ok());
            !others.flatten().flatten().any(|fd| fs::read_link(fd.path()).is_ok_and(|to| to == path))
        });
        // Recordings of other tests that run at this moment may hold the instance's directory open, so that it can't be
        // removed yet, or may already have removed it.
        until("the next recording removes it", || {
            let next = end(here.atrace(&name).args(["run", "--kernel", "-fo", "out", "--", "true"]));
            assert!(next.status.success(), "{next:?}");
            !left[0].exists()
        });
    }

    /// A program with a unique name that traces until it is asked to end.
    struct Running {
        child: Child,
        pattern: String,
    }

    impl Running {
        fn start(here: &Here, case: &str, name: &str) -> Self {
            let path = here.path(name);
            common::copy_program(here.path("program"), &path);
            let mut program = here.cleared(&path, case);
            program.args([case, "--exact", "--nocapture", "--test-threads=1"]);
            program.env("ATRACE_PROPERTIES", here.path("properties"));
            let child = program.stdout(Stdio::null()).spawn().unwrap();
            Self { child, pattern: format!("*/{name}") }
        }
    }

    impl Drop for Running {
        fn drop(&mut self) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }

    fn traces_on() {
        let start = Instant::now();
        let mut number = 0;
        // The test kills this process. The limit is for the case that the test itself was killed.
        while start.elapsed() < Duration::from_secs(1000) {
            atrace_int(TAG, "ticks", number);
            number += 1;
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Returns the settings of the kernel's top-level buffer.
    fn top() -> Vec<String> {
        let files =
            ["tracing_on", "trace_clock", "options/record-tgid", "set_event", "options/copy_trace_marker"];
        let read = |file: &str| fs::read_to_string(tracefs::root().unwrap().join(file)).unwrap_or_default();
        let mut all = files.map(read).to_vec();
        if all[0].trim() == "0" {
            all.pop(); // While the buffer is off, other tests' commands may change this setting.
        }
        all
    }

    /// A lock for the kernel's top-level buffer. A test that records into this buffer holds the lock for writing,
    /// because the recording switches the buffer off for a moment. In that moment, other tests could not write to the
    /// buffer's marker, and would see a buffer that is off.
    static TOP: RwLock<()> = RwLock::new(());

    /// Asks the command to end as soon as it has written a line to stderr for which `is_enough` returns `Some(true)`.
    /// For other lines, `is_enough` returns `Some(false)` or `None`.
    fn end_when(mut child: Child, is_enough: impl Fn(&str) -> Option<bool>) -> Ran {
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        let mut said = String::new();
        for line in &mut lines {
            said += &format!("{line}\n");
            if is_enough(&line) == Some(true) {
                signal(&child, libc::SIGINT);
                break;
            }
        }
        lines.for_each(|line| said += &format!("{line}\n"));
        Ran { stderr: said, ..common::end_of(child) }
    }

    #[test]
    #[cfg_attr(target_os = "android", ignore = "the store is the system's")]
    fn running_programs_are_recorded_for_a_while() {
        let name = case!({ traces_on() });
        if !is_root(&name) {
            return;
        }
        let here = Here::new();
        let _alone = TOP.write().unwrap_or_else(PoisonError::into_inner);
        let mut running = Running::start(&here, &name, "recorded-program");
        let pid = running.child.id();
        let control = Control::from(Properties::open_path(&here.path("properties")).unwrap());
        let before = top();
        let record = |options: &[&str]| {
            let mut command = here.atrace(&name);
            command.args(["record", "-f", "-o", "out", "-a", &running.pattern]).args(options);
            command.env("ATRACE_PROPERTIES", here.path("properties"));
            command
        };
        for options in [&["-t", "1h"][..], &["-t", "1h", "-c", "sched", "--top", "--discard"], &["-t", "4s"]]
        {
            let child = record(options).spawn().unwrap();
            let ran = if options.contains(&"1h") {
                // Ends the command when it reports that more than 100 events are recorded.
                end_when(child, |line| {
                    let events = line.split_once(" s of 3600 s, ")?.1.strip_suffix(" events")?;
                    Some(events.replace(',', "").parse::<u32>().unwrap() > 100)
                })
            } else {
                common::end_of(child)
            };
            assert!(ran.status.success() && ran.stderr.contains("saved out"), "{ran:?}");
            let saved = here.saved();
            let ticks = messages(&saved, pid).into_iter().filter(|it| it.contains("|ticks|")).count();
            assert!(ticks > 0, "{options:?}: {}", ran.stderr);
            assert!(saved.contains(&format!("- {pid} 0 0 0 - - - recorded-program ")), "its name is missing");
            assert_eq!(saved.contains(": sched_switch: "), options.contains(&"sched"), "{options:?}");
            assert_eq!((top(), control.patterns()), (before.clone(), vec![]), "{options:?}");
            assert_eq!(left_by(ran.pid), Vec::<PathBuf>::new());
        }
        // Records until Ctrl-C, which also saves the recording.
        fs::remove_file(here.path("out")).unwrap();
        let child = record(&[]).spawn().unwrap();
        until("the program is recorded", || {
            let instances = left_by(child.id());
            let mut all = instances.into_iter().filter_map(|it| tracefs::Instance::attach(it).ok());
            all.any(|it| it.stats().is_ok_and(|stats| stats.entries > 0))
        });
        signal(&child, libc::SIGINT);
        let ran = common::end_of(child);
        assert!(ran.status.success(), "{ran:?}");
        assert!(here.saved().contains("|ticks|") && control.patterns().is_empty());
        assert!(running.child.try_wait().unwrap().is_none(), "the program was ended");
        assert_eq!((top(), left_by(ran.pid)), (before, vec![]));
    }

    /// Returns a script that uses the kernel's top-level buffer and a private `/run`. The command keeps its notes
    /// there: files that say what must be saved and restored if the command is killed.
    fn with_own_notes(script: &str) -> String {
        format!(
            "set -e
            mount -t tmpfs -o mode=755 none /run
            top=/sys/kernel/tracing
            settings() {{ echo SETTINGS $1 $(cat $top/tracing_on) $(grep -c . $top/set_event); }}
            {script}"
        )
    }

    /// Tests that the next recording saves what a killed recording has left in the top-level buffer, and restores the
    /// buffer's settings.
    #[test]
    #[cfg_attr(target_os = "android", ignore = "`record` uses the device's buffer")]
    fn the_top_level_buffer_of_a_killed_recording_is_saved_and_restored() {
        let name = case!({});
        if !is_root(&name) {
            return;
        }
        let here = Here::new();
        let _alone = TOP.write().unwrap_or_else(PoisonError::into_inner);
        let before = top();
        let script = "
            ./atrace record -o out -c sched --top --discard -t 1h 2>err & killed=$!
            until grep -q ' events$' err; do kill -0 $killed; sleep 0.05; done
            kill -9 $killed
            wait $killed || true
            settings killed
            ./atrace record -o next -c sched -t 10ms 2>&1
            ./atrace record -o again -c sched --top --discard -t 10ms 2>&1";
        let ran = end(&mut here.apart(&with_own_notes(script)));
        assert!(ran.status.success(), "{ran:?}");
        let is_changed = ran.stdout.contains("SETTINGS killed 1 ") && !ran.stdout.contains("killed 1 0");
        assert!(is_changed, "{ran:?}");
        assert!(ran.stdout.contains("/out: a recording whose command (process "), "{ran:?}");
        assert_eq!(ran.stdout.matches("restored the kernel's top-level buffer").count(), 1, "{ran:?}");
        assert!(here.saved().contains(": sched_switch: "));
        assert_eq!(top(), before);
        assert_eq!(here.files(), ["again", "err", "next", "out"]);
    }

    /// Tests that a recording in the top-level buffer that could not be saved is not overwritten, and that the next
    /// recording saves it.
    #[test]
    #[cfg_attr(target_os = "android", ignore = "`record` uses the device's buffer")]
    fn a_recording_in_the_top_level_buffer_waits_for_room() {
        let name = case!({});
        if !is_root(&name) {
            return;
        }
        let here = Here::new();
        let _alone = TOP.write().unwrap_or_else(PoisonError::into_inner);
        let before = top();
        let script = "
            mkdir small; mount -t tmpfs -o size=16k none small
            ./atrace record -o small/out -c sched --top --discard -t 1s && exit 9
            settings full
            ./atrace record -o next -c sched -t 10ms
            settings still
            mount -o remount,size=64m small
            ./atrace record -fo next -c sched -t 10ms
            cp small/out out";
        let ran = end(&mut here.apart(&with_own_notes(script)));
        assert!(ran.status.success(), "{ran:?}");
        assert!(ran.stderr.contains("nothing is lost yet"), "{ran:?}");
        assert!(ran.stdout.contains("SETTINGS full 0 0\nSETTINGS still 0 0\n"), "{ran:?}");
        assert!(ran.stderr.contains("the next recording saves it\n"), "{ran:?}");
        assert!(here.saved().contains(": sched_switch: "));
        assert_eq!(top(), before);
    }

    /// Starts a recording into the kernel's top-level buffer, kills the recording, and then runs `script`, all with a
    /// private folder for notes. Checks that the buffer's settings are then the same as before the recording.
    #[track_caller]
    fn after_a_killed_recording(name: &str, script: &str) -> Option<(Here, Ran)> {
        if !is_root(name) {
            return None;
        }
        let here = Here::new();
        let _alone = TOP.write().unwrap_or_else(PoisonError::into_inner);
        let before = top();
        let script = format!(
            "begin() {{
                ./atrace record -o $1 -c sched --top --discard -t 1h 2>$1.err & pid=$!
                until grep -q ' events$' $1.err; do kill -0 $pid; sleep 0.05; done
            }}
            ended() {{ wait $pid || true; pid=; }}
            pid=
            # If the script fails, no recording stays.
            trap '[ -z \"$pid\" ] || kill -9 $pid' EXIT
            begin out
            kill -9 $pid
            ended
            {script}"
        );
        let ran = end(&mut here.apart(&with_own_notes(&script)));
        assert!(ran.status.success(), "{ran:?}");
        assert_eq!(top(), before, "{ran:?}");
        Some((here, ran))
    }

    /// Tests that a killed recording's settings are not restored if another program has changed them since.
    #[test]
    #[cfg_attr(target_os = "android", ignore = "`record` uses the device's buffer")]
    fn the_top_level_buffer_of_another_program_is_left_alone() {
        let name = case!({});
        let script = "
            echo 0 >$top/events/enable
            echo global >$top/trace_clock
            echo 1 >$top/events/sched/sched_switch/enable
            ./atrace record -o next -c sched -t 10ms 2>&1
            settings others
            grep -o '\\[.*\\]' $top/trace_clock
            # The killed recording's settings.
            echo 0 >$top/events/enable
            echo 0 >$top/events/sched/sched_process_exit/filter
            echo local >$top/trace_clock
            echo 0 >$top/options/record-tgid
            echo 1408 >$top/buffer_size_kb
            ./atrace record -o again -c sched -t 10ms 2>&1";
        let Some((here, ran)) = after_a_killed_recording(&name, script) else { return };
        assert!(ran.stdout.contains("SETTINGS others 1 1\n[global]\n"), "{ran:?}");
        assert_eq!(
            ran.stdout.matches("another program has changed the kernel's top-level").count(),
            1,
            "{ran:?}"
        );
        assert!(!ran.stdout.contains("restored the kernel's"), "{ran:?}");
        assert_eq!(here.files(), ["again", "next", "out.err"]);
    }

    /// Tests that a later recording tries again to restore a setting that could not be restored.
    #[test]
    #[cfg_attr(target_os = "android", ignore = "`record` uses the device's buffer")]
    fn what_cant_be_restored_is_restored_later() {
        let name = case!({});
        let script = "
            clock=$top/trace_clock
            mount --bind $clock $clock
            mount -o remount,ro,bind $clock
            ./atrace record -o next -c sched -t 10ms 2>&1
            echo FAILED
            umount $clock
            ./atrace record -o again -c sched -t 10ms 2>&1";
        let Some((here, ran)) = after_a_killed_recording(&name, script) else { return };
        let (failed, again) = ran.stdout.split_once("FAILED").unwrap();
        assert!(failed.contains("/out: a recording") && failed.contains("trace_clock="), "{ran:?}");
        assert!(
            !failed.contains("restored the kernel's") && again.contains("restored the kernel's"),
            "{ran:?}"
        );
        assert!(here.saved().contains(": sched_switch: "));
        assert_eq!(here.files(), ["again", "next", "out", "out.err"]);
    }

    /// Tests that a recording with `--discard` may discard an older recording that can't be saved. Another command that
    /// finds the older recording's note must then not end the new recording.
    #[test]
    #[cfg_attr(target_os = "android", ignore = "`record` uses the device's buffer")]
    fn a_discarded_recording_does_not_end_the_next() {
        let name = case!({});
        let script = "
            mkdir small; mount -t tmpfs -o size=16k none small
            ./atrace record -o small/out -c sched --top --discard -t 1s 2>&1 && exit 9
            begin live
            ./atrace record -o next -c sched -t 10ms 2>&1
            ./atrace record -o top -c sched --top --discard -t 10ms 2>&1 && exit 9
            settings live
            kill -TERM $pid
            ended";
        let Some((here, ran)) = after_a_killed_recording(&name, script) else { return };
        let said = fs::read_to_string(here.path("live.err")).unwrap();
        assert!(
            said.contains("the next recording saves it\n") && here.path("live").exists(),
            "{said}, {ran:?}"
        );
        assert!(ran.stdout.contains(" uses the kernel's top-level buffer: wait"), "{ran:?}");
        assert!(ran.stdout.contains("SETTINGS live 1 ") && !ran.stdout.contains("live 1 0"), "{ran:?}");
    }

    #[test]
    #[cfg_attr(target_os = "android", ignore = "the store is the system's")]
    fn a_recording_of_nothing_is_refused() {
        let name = case!({ traces_on() });
        if !is_root(&name) {
            return;
        }
        let here = Here::new();
        let _running = Running::start(&here, &name, "similar-program");
        let of = |args: &[&str]| {
            let mut command = here.atrace(&name);
            end(command.args(args).env("ATRACE_PROPERTIES", here.path("properties")))
        };
        refused(&of(&["record", "-t", "1s"]), 1, &["nothing to record", "-a PATTERN", "-c sched"]);
        let ran = of(&["record", "-t", "1s", "-a", "similar-progra"]);
        refused(&ran, 1, &["no running process matches similar-progra", "/similar-program)", "--wait"]);
        refused(&of(&["record", "-t", "1s", "-a", ""]), 1, &["empty pattern"]);
        let long = format!("/long/{}/name", "x".repeat(90));
        let end = "x".repeat(85) + "/name";
        refused(
            &of(&["record", "-t", "1s", "-a", &long]),
            1,
            &["at most 91 bytes, this has 101", &format!("'*{end}'")],
        );
        refused(&of(&["record", "-t", "1s", "-c", "shed"]), 1, &["\"shed\" is no category", "sched", "irq"]);
        refused(&of(&["record", "-t", "1s", "-c", "../sched"]), 1, &["no category"]);
        refused(&of(&["record", "-t", "soon", "-c", "sched"]), 2, &["none of ms, s, m, h"]);
        fs::write(here.path("out"), "mine").unwrap();
        refused(&of(&["record", "-t", "1s", "-c", "sched", "-o", "out"]), 1, &["exists already"]);
        assert_eq!(here.saved(), "mine");
        assert_eq!(here.files(), ["out", "properties", "similar-program"]);
    }

    #[test]
    fn patterns_are_switched_and_shown() {
        let name = case!({ traces_on() });
        if cfg!(target_os = "android") {
            return;
        }
        let here = Here::new();
        let running = Running::start(&here, &name, "switched-program");
        let pid = running.child.id();
        let of = |args: &[&str]| {
            let mut command = here.atrace(&name);
            end(command.args(args).env("ATRACE_PROPERTIES", here.path("properties")))
        };
        let ran = of(&["on", &running.pattern]);
        assert!(ran.status.success() && ran.stdout.contains(&format!("on: {pid} (")), "{ran:?}");
        // Switching on the same pattern again adds no second entry.
        assert!(of(&["on", &running.pattern]).status.success());
        let control = Control::from(Properties::open_path(&here.path("properties")).unwrap());
        assert_eq!(control.patterns(), [running.pattern.as_bytes()]);
        let ran = of(&["status"]);
        assert!(
            ran.stdout.contains("pattern */switched-program\n")
                && ran.stdout.contains(&format!("    {pid} (")),
            "{ran:?}"
        );
        let ran = of(&["on", "*/not-there"]);
        assert!(
            ran.status.success() && ran.stderr.contains("no running process matches */not-there"),
            "{ran:?}"
        );
        let ran = of(&["off", "*/not-there", "other"]);
        refused(&ran, 1, &["\"other\" is not switched on; switched on: \"*/switched-program\""]);
        assert!(of(&["off", &running.pattern]).status.success());
        assert_eq!(control.patterns(), [b""; 0]);
        refused(&of(&["off", &running.pattern]), 1, &["switched on: nothing"]);
        refused(&of(&["on", ""]), 1, &["empty pattern"]);
    }

    /// Tests a user whose programs may not write to the kernel's buffer.
    #[test]
    #[cfg_attr(target_os = "android", ignore = "an app's events go through libcutils")]
    fn who_may_not_write_to_the_marker_is_told_when_switching_on() {
        let name = case!({});
        if !is_root(&name) {
            return;
        }
        let here = Here::new();
        let own = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(own.path(), Some(USER), Some(USER)).unwrap();
        for user in [USER, 0] {
            let mut command = here.atrace(&name);
            command.args(["on", "*/not-there"]).env("ATRACE_PROPERTIES", own.path().join("properties"));
            let ran = end(command.uid(user).gid(user));
            assert!(ran.status.success(), "{ran:?}");
            assert_eq!(
                ran.stderr.contains("the events of your programs go nowhere"),
                user == USER,
                "{ran:?}"
            );
        }
    }

    /// Tests several commands that switch the same pattern on at once. All commands wait for the lock of the property
    /// store. The pattern must be listed once, whatever content of the store each command has read before.
    #[test]
    #[cfg_attr(target_os = "android", ignore = "the store has no lock")]
    fn who_switch_the_same_on_at_once_list_it_once() {
        let here = Here::new();
        let place = here.path("properties");
        let control = Control::from(Properties::open_path(&place).unwrap());
        for _ in 0..3 {
            let lock = fs::File::open(&place).unwrap();
            // SAFETY: the descriptor is open.
            assert_eq!(unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX) }, 0);
            let start = |_| {
                let mut command = here.atrace("none");
                command.args(["on", "*/same", "*/same"]).env("ATRACE_PROPERTIES", &place).spawn().unwrap()
            };
            let all: Vec<_> = (0..4).map(start).collect();
            std::thread::sleep(Duration::from_millis(300));
            drop(lock);
            for one in all {
                let ran = common::end_of(one);
                assert!(ran.status.success(), "{ran:?}");
            }
            assert_eq!(control.patterns(), [b"*/same"]);
            control.disable("*/same").unwrap().keep();
        }
    }

    /// Tests that root's command switches the programs of all users. The test uses a private `/dev/shm`.
    #[test]
    #[cfg_attr(target_os = "android", ignore = "the store is the system's")]
    fn root_switches_the_programs_of_every_user() {
        let name = case!({ traces_on() });
        if !is_root(&name) {
            return;
        }
        let here = Here::new();
        let script = r#"
            set -e
            mount -t tmpfs -o mode=1777 none /dev/shm
            setpriv --reuid 65534 --regid 65534 --clear-groups sleep 600 & user=$!
            setpriv --reuid 1 --regid 1 --clear-groups ./atrace status >/dev/null
            until [ "$(tr '\0' ' ' </proc/$user/cmdline)" = 'sleep 600 ' ]; do sleep 0.01; kill -0 $user; done
            echo "USER $user"
            ./atrace on 'sleep'
            ./atrace status
            stat -c '%u %a %n' /dev/shm/atrace-*/properties /dev/shm/atrace-*
            setpriv --reuid 65534 --regid 65534 --clear-groups ./atrace status | sed 's/^/NOBODY /'
            ./atrace off 'sleep'
            setpriv --reuid 65534 --regid 65534 --clear-groups ./atrace status | sed 's/^/AFTER /'
            kill $user
        "#;
        let ran = end(&mut here.apart(script));
        assert!(ran.status.success(), "{ran:?}");
        for uid in ["0", "1", "65534"] {
            let (file, directory) = (
                format!("{uid} 600 /dev/shm/atrace-{uid}/properties\n"),
                format!("{uid} 700 /dev/shm/atrace-{uid}\n"),
            );
            assert!(ran.stdout.contains(&file) && ran.stdout.contains(&directory), "{ran:?}");
        }
        let program = ran.said("USER ")[0];
        assert!(ran.stdout.contains(&format!("on: {program} (sleep)")), "{ran:?}");
        assert!(ran.stdout.contains("NOBODY   pattern sleep\n"), "{ran:?}");
        assert!(ran.stdout.contains("AFTER   patterns: none\n"), "{ran:?}");
    }

    #[test]
    #[cfg_attr(target_os = "android", ignore = "the store is the system's")]
    fn the_doctor_tells_by_its_status_whether_events_arrive() {
        let name = case!({ traces_on() });
        if !is_root(&name) {
            return;
        }
        let _top = TOP.read().unwrap_or_else(PoisonError::into_inner);
        let here = Here::new();
        let running = Running::start(&here, &name, "doctored-program");
        let pid = running.child.id().to_string();
        let of = |args: &[&str]| {
            let mut command = here.atrace(&name);
            end(command.arg("doctor").args(args).env("ATRACE_PROPERTIES", here.path("properties")))
        };
        let healthy = |ran: &Ran| {
            assert!(ran.status.success() && !ran.stdout.contains("WRONG"), "{ran:?}");
            let last = ran.stdout.lines().last().unwrap();
            assert!(last.starts_with("ok    event      an event written now arrived"), "{ran:?}");
        };
        let ill = |ran: &Ran, topic: &str, mend: &str| {
            assert_eq!(ran.status.code(), Some(1), "{ran:?}");
            let wrong = ran.stdout.split_once(&format!("WRONG {topic:<11}")).expect(topic).1;
            assert!(
                wrong.lines().nth(1).is_some_and(|line| line.contains("-> ") && line.contains(mend)),
                "{ran:?}"
            );
        };
        until("it says its state", || !of(&[&pid]).stdout.contains("publishes no state"));
        let path = here.path("doctored-program");
        let command = format!("atrace on '{}'", path.display());
        ill(&of(&[&pid]), "pattern", &command);
        ill(&of(&["doctored-program"]), "pattern", &command);
        ill(&of(&[path.to_str().unwrap()]), "pattern", &command);
        let mut on = here.atrace(&name);
        let on = end(on.args(["on", &running.pattern]).env("ATRACE_PROPERTIES", here.path("properties")));
        assert!(on.status.success(), "{on:?}");
        for patient in [&pid, "doctored-program", &running.pattern] {
            healthy(&of(&[patient]));
        }
        healthy(&of(&[]));
        let ran = of(&["a-program-that-is-not-there"]);
        assert!(
            ran.stdout.starts_with("no running process is called a-program-that-is-not-there"),
            "{ran:?}"
        );
        assert!(ran.status.success() && !ran.stdout.contains("WRONG"), "{ran:?}");
        assert!(ran.stdout.contains("-> atrace on 'a-program-that-is-not-there'"), "{ran:?}");
        ill(&of(&["999999999"]), "process", "pgrep");
        refused(&of(&[""]), 1, &["an empty name"]);
        let plain = end(here.atrace(&name).args(["doctor", &pid]).uid(USER).gid(USER));
        ill(&plain, "state", &format!("sudo atrace doctor {pid}"));

        let ran = end(&mut here.apart("mount -t tmpfs none /sys/kernel && exec ./atrace doctor"));
        // The doctor succeeds without tracefs, because `atrace run` does not need tracefs.
        assert!(ran.status.success(), "{ran:?}");
        assert!(ran.stdout.contains("-> mount -t tracefs nodev /sys/kernel/tracing"), "{ran:?}");
    }

    #[test]
    fn help_names_the_commands() {
        let name = case!({});
        let here = Here::new();
        let ran = end(here.atrace(&name).arg("--help"));
        assert!(ran.status.success(), "{ran:?}");
        for command in ["run", "record", "on", "off", "status", "doctor"] {
            assert!(ran.stdout.contains(&format!("\n  {command} ")), "{}", ran.stdout);
        }
        assert!(!ran.stdout.contains("__become"));
        assert!(ran.stdout.contains("Examples:\n  atrace run -- "), "{}", ran.stdout);
        let pages = here.path("pages");
        fs::create_dir(&pages).unwrap();
        assert!(end(here.atrace(&name).arg("man").arg(&pages)).status.success());
        for (page, text) in [("atrace", "atrace run"), ("atrace-record", "recording.pftrace")] {
            let page = fs::read_to_string(pages.join(format!("{page}.1"))).unwrap().replace('\\', "");
            assert!(page.contains(text), "{page}");
        }
        assert_eq!(end(here.atrace(&name).arg("rum")).status.code(), Some(2));
    }
}
