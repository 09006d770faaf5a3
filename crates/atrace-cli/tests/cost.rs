//! Tests `atrace cost`, from its arguments to its output. No test depends on absolute times: the tests compare two
//! programs, one of which does far more work than the other.

#[path = "../../../atrace/tests/common/mod.rs"]
mod common;
mod here;

mod cases {
    use std::fmt::Write as _;
    use std::fs::{self, Permissions};
    use std::io::{self, Write as _};
    use std::os::unix::prelude::*;
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use atrace::*;
    use rustix::process::{Pid, Signal, getpgid, getppid, kill_process, setpgid};
    use rustix::time::{ClockId, clock_gettime};
    use serde_json::Value;

    use crate::common::{Ran, case, end_of, is_root, limited, until};
    use crate::here::{Here, runs_left_by, signal};

    const TAG: AtraceTag = AtraceTag::App;

    /// Returns the command `atrace cost` with these options.
    fn cost(here: &Here, case: &str, options: &[&str]) -> Command {
        let mut command = here.atrace(case);
        command.arg("cost").args(options);
        command
    }

    /// Adds the program of a test case to the arguments of the command.
    fn of_case<'a>(command: &'a mut Command, here: &Here, case: &str) -> &'a mut Command {
        command.arg("--").arg(here.path("program")).args([case, "--exact", "--nocapture", "--test-threads=1"])
    }

    /// Runs the command to its end. Checks that the command leaves no files behind.
    fn ended(command: &mut Command) -> Ran {
        let child = command.spawn().unwrap();
        let ran = end_of(child);
        assert_eq!(runs_left_by(ran.pid), [] as [std::path::PathBuf; 0]);
        ran
    }

    /// Runs the command that `command` returns for a number of seconds. This number is the time of the measurement and
    /// also the limit of each run. On a busy machine, a run may exceed the shortest limit; then a longer one is tried.
    fn ended_in_time(mut command: impl FnMut(u32) -> Command) -> Ran {
        let mut all = [1, 5, 30, 120].into_iter().map(|seconds| ended(&mut command(seconds)));
        all.find(|ran| !ran.stderr.contains("had not ended after"))
            .expect("a run takes less than two minutes")
    }

    fn json(ran: &Ran) -> Value {
        assert!(ran.status.success(), "{ran:?}");
        serde_json::from_str(&ran.stdout).unwrap_or_else(|e| panic!("{e}: {ran:?}"))
    }

    /// Returns the lower and upper bound of the difference in a row of the JSON output.
    fn difference(of: &Value) -> [f64; 2] {
        ["low", "high"].map(|bound| of["difference"][bound].as_f64().unwrap_or_else(|| panic!("{of}")))
    }

    /// Returns whether this process was started with tracing on. If so, waits until tracing is on in this process.
    fn is_on() -> bool {
        let is_on = std::env::var_os("ATRACE_BACKEND").is_some();
        if is_on {
            until("it is connected", || atrace_is_tag_enabled(TAG));
        }
        is_on
    }

    fn work(times: u64) {
        let mut x = times;
        for _ in 0..times * 100_000 {
            x = std::hint::black_box((x ^ (x >> 29)).wrapping_mul(0xD6E8_FEB8_6659_FD93));
        }
    }

    #[test]
    fn more_work_while_traced_is_found() {
        let name = case!({
            // Works until the whole process has used this processor time, because on a fast machine, the start of a
            // process costs as much as some of the work.
            let all = Duration::from_millis(if is_on() { 120 } else { 40 });
            while Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap() < all {
                work(1);
            }
            atrace_instant(TAG, "worked");
        });
        let here = Here::new();
        let all = json(&with_enough_time("10s", |time| {
            ended(of_case(&mut cost(&here, &name, &["--time", time, "--json"]), &here, &name))
        }));
        let used = &all["processor_time"];
        let [low, high] = difference(used);
        assert_eq!(used["verdict"], "differs", "{all}");
        // The interval contains the true difference in only 99 of 100 runs, and the connection to the service costs
        // some time, too. So the bounds are wide.
        assert!(1.0 < low && low < 2.2 && high > 1.5, "{all}");
        assert!(used["off_ns"].as_f64().unwrap() < used["on_ns"].as_f64().unwrap());
        assert_eq!(all["events"]["on"], 1.0, "{all}");
        assert_eq!(all["events_lost"]["on"], 0.0);
        for name in ["wall_time", "page_faults", "context_switches", "bytes_recorded"] {
            assert!(all.get(name).is_some(), "{name}: {all}");
        }
        assert!(all["pairs"].as_u64().unwrap() >= 9 && all["confidence"] == 0.99);
    }

    #[test]
    fn two_commands_are_compared_in_words_and_as_a_table() {
        let here = Here::new();
        let count = |to: u32| format!("i=0; while [ $i -lt {to} ]; do i=$((i+1)); done");
        let ran = with_enough_time("5s", |time| {
            ended(&mut cost(&here, "", &["--time", time, "--off", &count(5_000), "--on", &count(50_000)]))
        });
        assert!(ran.status.success(), "{ran:?}");
        for part in [
            "the second command costs ",
            " of processor time\n",
            " of wall time\n",
            "difference (99 %)\n",
            " pairs in ",
        ] {
            assert!(ran.stdout.contains(part), "{part}: {ran:?}");
        }
        assert!(!ran.stdout.contains("events"), "{ran:?}");
    }

    /// Runs the command with options that it must refuse. Returns its message and exit status. The command must print
    /// no result.
    fn refused(options: &[&str]) -> (String, i32) {
        let here = Here::new();
        let ran = ended(&mut cost(&here, "", options));
        assert_eq!(ran.stdout, "", "a figure is pretended: {ran:?}");
        assert_eq!(ran.stderr.matches("atrace: ").count(), ran.stderr.lines().count(), "{ran:?}");
        (ran.stderr, ran.status.code().unwrap())
    }

    /// Measures for the time `first`, and then for longer if this was too short for an interval. An interval needs nine
    /// pairs (of a service: ten), and on a busy machine the slices and runs take longer.
    fn with_enough_time(first: &str, mut measure: impl FnMut(&str) -> Ran) -> Ran {
        let mut all = [first, "60s", "300s"].into_iter().map(&mut measure);
        let is_short = |ran: &Ran| {
            let is_undecided = |all: &Value| {
                let rows = ["processor_time", "processor_time_per_unit"];
                rows.iter().any(|row| all.get(row).is_some_and(|row| row["difference"].is_null()))
            };
            let has_few = ran.status.success()
                && serde_json::from_str(&ran.stdout)
                    .is_ok_and(|all: Value| all["pairs"].as_u64() < Some(9) || is_undecided(&all));
            has_few || ran.stdout.contains("no 99 % interval") || ran.stderr.contains("give it --time")
        };
        all.find(|ran| !is_short(ran)).expect("enough time")
    }

    #[test]
    fn what_cannot_be_measured_is_an_error_in_words() {
        // A shell script that prints lines for a while and then becomes the service.
        let starts = |service: &str| {
            format!("i=0; while [ $i -lt 15 ]; do echo; sleep 0.03; i=$((i+1)); done; {service}")
        };
        let only_on = "echo why >&2; test -z \"$ATRACE_BACKEND\" || exit 3";
        for (options, status, texts) in [
            (&["--", "no-such-program"][..], 127, &["no-such-program: No such file"][..]),
            (&["--", "/"], 126, &["/: Permission denied"]),
            (
                &["--", "sh", "-c", "echo it breaks >&2; exit 7"],
                125,
                &["it breaks", "fails (off): exit status 7"],
            ),
            (&["--", "sh", "-c", "kill -SEGV $$"], 125, &["killed by signal 11"]),
            (
                &["--", "sh", "-c", only_on],
                125,
                &["why", "ends differently when it is traced: exit status 3"],
            ),
            (&["--", "true"], 125, &["wrote no event", "--off and --on"]),
            (&["--time", "300ms", "--", "sleep", "1000"], 125, &["had not ended after 0.3 s", "--switch"]),
            (&["--off", "true", "--on", "exit 2"], 125, &["the second command fails: exit status 2"]),
            (
                &["--time", "1s", "--switch", "--unit", "lines", "--", "true"],
                125,
                &["ended", "without --switch"],
            ),
            (&["--time", "1s", "--switch", "--unit", "echo 7", "--", "sleep", "9"], 125, &["did not grow"]),
            (
                &[
                    &["--time", "600s", "--slice", "100ms", "--switch", "--unit"][..],
                    &["date +%s%N", "--", "sleep", "99"],
                ]
                .concat(),
                125,
                &["the service's processor time did not grow"],
            ),
            (
                &[
                    &["--time", "3s", "--switch", "--unit", "lines", "--", "sh", "-c"][..],
                    &["while :; do echo; sleep 0.4; done"],
                ]
                .concat(),
                125,
                &["has to grow in each slice", "give it --time "],
            ),
            (
                &[
                    &["--time", "9s", "--slice", "100ms", "--switch", "--unit", "lines"][..],
                    &["--", "sh", "-c", &starts("while :; do sleep 3; echo; done")],
                ]
                .concat(),
                125,
                &["has to grow in each slice", "give it --time "],
            ),
            (
                // When a service ends, the command does not wait for the end of the slice.
                &[
                    &["--time", "6000m", "--slice", "60m", "--switch", "--unit", "lines"][..],
                    &["--", "sh", "-c", &starts("sleep 1; exit 3")],
                ]
                .concat(),
                125,
                &["the program ended (exit status 3)"],
            ),
            (
                &["--time", "1s", "--switch", "--unit", "false", "--", "sleep", "9"],
                125,
                &["has to print a number"],
            ),
        ] {
            let (said, code) = refused(options);
            assert_eq!(code, status, "{options:?}: {said}");
            for text in texts {
                assert!(said.contains(text), "{options:?}: {said}");
            }
            let is_service = options.contains(&"--switch");
            assert!(!is_service || said.lines().count() == 1, "{options:?}: {said}");
        }
        for options in [&["--switch", "--", "true"][..], &["--off", "true"], &[], &["--time", "0s", "true"]] {
            let here = Here::new();
            let ran = ended(&mut cost(&here, "", options));
            assert_eq!(ran.status.code(), Some(2), "{options:?}: {ran:?}");
        }
    }

    #[test]
    fn a_program_that_fails_in_a_later_run_is_no_result() {
        let here = Here::new();
        for (options, text) in [
            (
                &["--off", "echo >>runs; test $(wc -l <runs) -lt 4", "--on", "true"][..],
                "the program fails (first)",
            ),
            (
                &["--off", "true", "--on", "echo >>runs; test $(wc -l <runs) -lt 4"],
                "the second command fails",
            ),
        ] {
            let directory = tempfile::tempdir().unwrap();
            let ran = ended(cost(&here, "", options).current_dir(directory.path()));
            assert!(ran.status.code() == Some(125) && ran.stdout.is_empty(), "{ran:?}");
            assert!(ran.stderr.contains(text), "{ran:?}");
        }
    }

    #[test]
    fn a_program_that_prints_something_else_is_told_of() {
        let here = Here::new();
        let notes = |off: &str, on: &str| {
            // On a busy machine, the shortest time may not be enough for the two pairs that are needed.
            let runs = ["1s", "5s", "30s"].into_iter().map(|time| {
                ended(&mut cost(&here, "", &["--time", time, "--json", "--off", off, "--on", on]))
            });
            let mut all =
                runs.filter(|ran| !ran.stderr.contains("had not ended after")).map(|ran| json(&ran));
            let all = all.find(|all| all["pairs"].as_u64() > Some(1)).expect("two pairs");
            let mut text = String::new();
            for note in all["notes"].as_array().unwrap() {
                writeln!(text, "{}", note.as_str().unwrap()).unwrap();
            }
            text
        };
        assert!(notes("echo a", "echo b").contains("printed something else in"));
        assert!(!notes("echo a", "echo a").contains("printed something else"));
        // Programs that print something else in each run (such as the time) are not reported.
        assert!(!notes("echo $$", "echo $$").contains("printed something else"));
    }

    #[test]
    fn times_in_two_groups_are_told_of() {
        let here = Here::new();
        let are_told_of = |scale: u32| {
            let [short, long, time] = [0.02, 0.5, 9.0].map(|seconds| seconds * f64::from(scale));
            // Both sides are alike, so the measurement is not decided early, and uses all of its time.
            let [off, on] = ["first", "second"].map(|side| {
                format!(
                    "echo >>{side}; test $(($(wc -l <{side}) % 4)) -gt 0 && sleep {short} || sleep {long}"
                )
            });
            let directory = tempfile::tempdir().unwrap();
            let time = format!("{time}s");
            let mut command = cost(&here, "", &["--time", &time, "--json", "--off", &off, "--on", &on]);
            let all = json(&ended(command.current_dir(directory.path())));
            eprintln!("{all}");
            let notes: Vec<_> = all["notes"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
            let of = |side: &str| notes.iter().any(|note| note.starts_with(side) && note.contains("bimodal"));
            of("first:") && of("second:")
        };
        // On a busy machine the two groups of times may overlap, or there may be no time for the twenty pairs that are
        // needed. Longer runs help.
        assert!([1, 4, 16].into_iter().any(are_told_of), "the groups are not told of");
    }

    #[test]
    fn few_runs_decide_nothing() {
        let here = Here::new();
        let ran = ended_in_time(|seconds| {
            let (time, sleep) = (format!("{seconds}s"), format!("sleep {}", 0.3 * f64::from(seconds)));
            cost(&here, "", &["--time", &time, "--off", &sleep, "--on", &sleep])
        });
        assert!(ran.status.success(), "{ran:?}");
        assert!(ran.stdout.contains("not decided in ") && ran.stdout.contains("no 99 % interval"), "{ran:?}");
        assert!(ran.stdout.contains("9 pairs are needed"), "{ran:?}");
    }

    #[test]
    fn much_output_and_a_process_that_stays_do_not_matter() {
        let here = Here::new();
        let much = "head -c 20000000 /dev/zero; sleep 3 &";
        let ran = ended_in_time(|seconds| {
            let time = format!("{}s", 2 * seconds);
            cost(&here, "", &["--time", &time, "--json", "--off", much, "--on", much])
        });
        assert_eq!(
            json(&ran)["notes"]
                .as_array()
                .unwrap()
                .iter()
                .filter(|it| it.as_str().unwrap().contains("printed"))
                .count(),
            0
        );
    }

    #[test]
    fn a_service_is_switched_while_it_works() {
        let name = case!({
            // The service prints a line for each unit of work. While the service is traced, a unit is three times as
            // much work.
            loop {
                work(if atrace_is_tag_enabled(TAG) { 6 } else { 2 });
                drop(begin_scoped_event(TAG, "unit"));
                println!("unit");
                let _ = std::io::stdout().flush();
            }
        });
        let here = Here::new();
        let all = json(&with_enough_time("10s", |time| {
            let options = ["--time", time, "--json", "--switch", "--slice", "250ms", "--unit", "lines"];
            ended(of_case(&mut cost(&here, &name, &options), &here, &name))
        }));
        let each = &all["processor_time_per_unit"];
        let [low, high] = difference(each);
        assert_eq!(each["verdict"], "differs", "{all}");
        assert!(low > 1.0 && low < 2.2 && high > 1.5, "{all}");
        assert!(all["units_per_second"]["on"].as_f64().unwrap() > 0.0, "{all}");
        for side in ["off_ns", "on_ns"] {
            assert!(all["reference_work"][side].as_f64().unwrap() > 1000.0, "{all}");
        }
        // The numbers of events are totals, not medians of slices, so they have another name.
        assert!(all["events_in_all"]["on"].as_f64().unwrap() > 10.0 && all.get("events").is_none(), "{all}");
    }

    #[test]
    fn a_service_that_ignores_sigchld_is_measured_if_it_has_no_children() {
        let name = case!({
            if std::env::var_os("FORKS").is_some() {
                Command::new("yes").status().unwrap();
            }
            loop {
                work(1);
                drop(begin_scoped_event(TAG, "unit"));
                println!("unit");
            }
        });
        let here = Here::new();
        let command = |time: &str| {
            let options = ["--slice", "100ms", "--json", "--switch", "--unit", "lines", "--"];
            let mut command = cost(&here, &name, &[&["--time", time], &options[..]].concat());
            command.args(["env", "--ignore-signal=CHLD"]).arg(here.path("program"));
            command.args([&name, "--exact", "--nocapture", "--test-threads=1"]);
            command
        };
        let all = json(&with_enough_time("10s", |time| ended(&mut command(time))));
        assert!(all["processor_time_per_unit"]["on_ns"].as_f64() > Some(0.0), "{all}");
        assert!(all["notes"].to_string().contains("ignores SIGCHLD"), "{all}");
        let ran = ended(command("60s").env("FORKS", "1"));
        assert_eq!((ran.status.code(), &*ran.stdout), (Some(125), ""), "{ran:?}");
        assert!(ran.stderr.contains("ignores SIGCHLD") && ran.stderr.contains("--default-signal"), "{ran:?}");
    }

    #[test]
    fn pairs_without_the_time_of_a_process_are_not_counted() {
        let name = case!({
            let unit = || {
                drop(begin_scoped_event(TAG, "unit"));
                println!("unit");
            };
            let work_until = |is_on| {
                while atrace_is_tag_enabled(TAG) != is_on {
                    work(1);
                    unit();
                }
            };
            // Works in the first four slices, in each of which the command must see processor time until it has seen an
            // event.
            for is_on in [true, false, true, false] {
                work_until(is_on);
            }
            // The processor time of the process that works is lost when its parent ends without having waited for it.
            // The parent ends in a traced slice, so the time was known at the slice's begin and is unknown at its end.
            loop {
                let works = "cat /dev/zero >/dev/null & echo $!; exec sleep 1000 >&-";
                let mut parent =
                    Command::new("sh").args(["-c", works]).stdout(Stdio::piped()).spawn().unwrap();
                let said = io::read_to_string(parent.stdout.take().unwrap()).unwrap();
                let works = Pid::from_raw(said.trim().parse().unwrap()).unwrap();
                let units_while = |is_on| {
                    while atrace_is_tag_enabled(TAG) == is_on {
                        unit();
                        std::thread::sleep(Duration::from_millis(10));
                    }
                };
                units_while(false);
                std::thread::sleep(Duration::from_millis(120)); // Until the slice has begun.
                parent.kill().unwrap();
                parent.wait().unwrap();
                kill_process(works, Signal::KILL).unwrap();
                units_while(true);
            }
        });
        let here = Here::new();
        // On a busy machine the slices are longer, so a short measurement may have no pair that lost processor time.
        let are_told = |time| {
            let options = ["--slice", "200ms", "--json", "--switch", "--unit", "lines", "--time", time];
            let ran = ended(of_case(&mut cost(&here, &name, &options), &here, &name));
            ran.status.success() && json(&ran)["notes"].to_string().contains("some pairs are not counted")
        };
        assert!(["10s", "60s", "300s"].into_iter().any(are_told), "the pairs are not told of");
    }

    /// Leaves the process group that the command has created for this program, as a program with job control does.
    fn leave_the_group() {
        setpgid(None, Some(getpgid(getppid()).unwrap())).unwrap();
    }

    /// Works for a minute and then creates the file `ended`. The command must kill the process before that.
    fn go_on() {
        for _ in 0..1200 {
            println!("unit");
            std::thread::sleep(Duration::from_millis(50));
        }
        fs::write("ended", "").unwrap();
    }

    #[test]
    fn a_program_outside_of_its_group_is_killed() {
        let name = case!({
            leave_the_group();
            fs::write("begun", "").unwrap();
            go_on();
        });
        let here = Here::new();
        let ran = ended(of_case(&mut cost(&here, &name, &["--time", "400ms"]), &here, &name));
        assert!(
            ran.status.code() == Some(125) && ran.stderr.contains("after 0.4 s and was killed"),
            "{ran:?}"
        );
        assert!(!here.path("ended").exists());

        let _ = fs::remove_file(here.path("begun"));
        let child = of_case(&mut cost(&here, &name, &[]), &here, &name).spawn().unwrap();
        until("the program runs", || here.path("begun").exists());
        signal(&child, libc::SIGTERM);
        assert_eq!(end_of(child).status.code(), Some(128 + libc::SIGTERM));
        assert!(!here.path("ended").exists());

        // The command fails if a service writes no event.
        let options = ["--time", "600s", "--switch", "--slice", "100ms", "--unit", "lines"];
        let ran = ended(of_case(&mut cost(&here, &name, &options), &here, &name));
        assert!(ran.status.code() == Some(125) && ran.stderr.contains("wrote no event"), "{ran:?}");
        assert!(!here.path("ended").exists());
    }

    #[test]
    fn a_program_that_may_not_be_killed_is_named() {
        const USER: u32 = 48_153;
        if !is_root("a_program_that_may_not_be_killed_is_named") {
            return;
        }
        let here = Here::new();
        // This program becomes root, as under `sudo`.
        crate::common::copy_program("/usr/bin/setpriv", here.path("sudo"));
        fs::set_permissions(here.path("sudo"), Permissions::from_mode(0o4755)).unwrap();
        let root = "exec ./sudo --reuid 0 --clear-groups sh -c 'echo $$ >pid; exec sleep 200 2>&1'";
        // This program is a server that becomes root, as under `sudo`, and starts a worker that runs as the caller.
        let server = "exec ./sudo --reuid 0 --clear-groups sh -c \
                      'echo $$ >pid; setpriv --reuid 48153 --clear-groups sleep 200 & exec sleep 200 2>&1'";
        let service = |program| ["--switch", "--unit", "lines", "--", "sh", "-c", program];
        for options in [
            &["--off", root, "--on", "true"][..],
            &["--off", server, "--on", "true"],
            &service(root),
            &service(server),
        ] {
            let _ = fs::remove_file(here.path("pid"));
            // On a busy machine, the program may not have become root yet.
            let mut all = ["400ms", "5s", "60s"].into_iter().map(|time| {
                let mut command = cost(&here, "", &[&["--time", time], options].concat());
                ended(command.uid(USER).gid(USER))
            });
            let ran = all.find(|_| here.path("pid").exists()).expect("the program runs");
            let pid = fs::read_to_string(here.path("pid")).unwrap();
            let is_alive = fs::read(format!("/proc/{}/cmdline", pid.trim())).is_ok_and(|it| !it.is_empty());
            let named = format!("process {}, can't be ended: Operation not permitted", pid.trim());
            assert!(ran.stderr.contains(&named) && !ran.stderr.contains("was killed"), "{ran:?}");
            assert!(ran.status.code() == Some(125) && is_alive, "{ran:?}");
            Command::new("kill").arg(pid.trim()).status().unwrap();
        }
    }

    #[test]
    fn the_last_word_of_much_output_is_the_number_of_units() {
        let grows = "head -c 20000 /dev/zero | tr '\\0' x; echo; echo >>units; wc -l <units";
        let options = ["--time", "600s", "--slice", "100ms", "--switch", "--unit", grows, "--", "yes"];
        let (said, status) = refused(&options);
        assert!(status == 125 && said.contains("wrote no event"), "{said}");
    }

    #[test]
    fn the_end_of_stderr_is_shown() {
        let fails = "i=0; while [ $i -lt 100 ]; do echo $i is a line of sixty bytes, which stands on stderr >&2; \
                     i=$((i+1)); done; exit 1";
        let (said, _) = refused(&["--off", fails, "--on", "true"]);
        assert!(said.contains("stderr: 0 is") && said.contains("stderr: 99 is"), "{said}");
        let (said, _) = refused(&["--off", &fails.replace("100", "1000"), "--on", "true"]);
        assert!(!said.contains("stderr: 0 is") && said.contains("stderr: 999 is"), "{said}");
    }

    #[test]
    fn a_unit_command_that_hangs_ends() {
        let here = Here::new();
        let hangs = "touch asked; sleep 60; touch ended; echo 1";
        let options = ["--time", "1s", "--switch", "--unit", hangs, "--", "sleep", "100"];
        let (said, status) = {
            let ran = ended(&mut cost(&here, "", &options));
            (ran.stderr, ran.status.code())
        };
        assert!(
            status == Some(125) && said.contains("--unit: the command had not ended after 10 s"),
            "{said}"
        );
        assert!(!here.path("ended").exists());

        fs::remove_file(here.path("asked")).unwrap();
        let child = cost(&here, "", &options).spawn().unwrap();
        until("the command runs", || here.path("asked").exists());
        signal(&child, libc::SIGTERM);
        let ran = end_of(child);
        assert_eq!(ran.status.code(), Some(128 + libc::SIGTERM), "{ran:?}");
        assert!(!here.path("ended").exists());
    }

    #[test]
    fn processes_that_a_run_leaves_are_killed_and_told_of_once() {
        let here = Here::new();
        let leaves = "sleep 48153 & echo $! >>pids";
        let all = json(&ended_in_time(|seconds| {
            cost(&here, "", &["--time", &format!("{seconds}s"), "--json", "--off", leaves, "--on", leaves])
        }));
        let notes = all["notes"].as_array().unwrap().iter();
        let told = notes.filter(|note| note.as_str().unwrap().contains("in the background")).count();
        assert_eq!(told, 1, "{all}");
        let pids = fs::read_to_string(here.path("pids")).unwrap();
        let lives = |pid: &str| {
            fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|it| it.starts_with(b"sleep\x0048153"))
        };
        assert!(pids.lines().count() >= 4, "{pids}");
        // A killed process exists until it gets a processor, so its end is waited for.
        until("all are killed", || !pids.lines().any(lives));
    }

    #[test]
    fn a_limit_of_threads_is_an_error_and_leaves_no_program() {
        if !is_root("a_limit_of_threads_is_an_error_and_leaves_no_program") {
            return;
        }
        // This user has no other processes.
        let user = 2_000_000 + std::process::id();
        let here = Here::new();
        fs::set_permissions(here.0.path(), Permissions::from_mode(0o777)).unwrap();
        for options in [
            &["--off", "true", "--on", "true"][..],
            &["--slice", "20ms", "--switch", "--unit", "lines", "--", "yes"],
        ] {
            let is_refused = |number: u64| {
                let mut command = cost(&here, "", &[&["--time", "1s"], options].concat());
                command.uid(user).gid(user);
                let ran = ended(limited(&mut command, libc::RLIMIT_NPROC, number, number));
                assert!(!ran.stderr.contains("panicked"), "{number}: {ran:?}");
                let is_left = |entry: &fs::DirEntry| {
                    let is_process =
                        entry.file_name().to_string_lossy().bytes().all(|it| it.is_ascii_digit());
                    is_process && entry.metadata().is_ok_and(|data| data.uid() == user)
                };
                // A killed process exists until it gets a processor, so its end is waited for.
                until(&format!("none is left: {number}: {ran:?}"), || {
                    !fs::read_dir("/proc").unwrap().flatten().any(|entry| is_left(&entry))
                });
                let is_refused = ran.stderr.contains("Resource temporarily unavailable");
                let is_error = !ran.status.success() && ran.stdout.is_empty();
                assert!(!is_refused || is_error, "{number}: {ran:?}");
                is_refused
            };
            let enough = (1..20).find(|number| !is_refused(*number)).unwrap();
            assert!(enough > 1, "the program is a process, too");
        }
    }

    #[test]
    fn a_bill_is_shown_and_its_absence_is_told() {
        let name = case!({
            if is_on() {
                atrace_instant(TAG, "worked");
            }
            // Writes the bill (the costs of each callsite) as atrace-subscriber does at the end of a program.
            if let (Some(path), true) =
                (std::env::var_os("ATRACE_BILL"), std::env::var_os("BILLED").is_some())
            {
                let bytes = match std::env::var("BILLED").as_deref() {
                    Ok("other") => b"not a bill".to_vec(),
                    _ => bill(),
                };
                std::fs::write(path, bytes).unwrap();
            }
            std::thread::sleep(Duration::from_millis(1));
        });
        let here = Here::new();
        let run = |billed: Option<&str>, options: &[&str]| {
            ended_in_time(|seconds| {
                let time = format!("{seconds}s");
                let mut command = cost(&here, &name, &[&["--time", &time, "--bill"], options].concat());
                command.envs(billed.map(|billed| ("BILLED", billed)));
                of_case(&mut command, &here, &name);
                command
            })
        };
        let ran = run(Some("1"), &[]);
        assert!(
            ran.status.success() && ran.stdout.contains("\n| 10.0 % ") && !ran.stdout.contains('\x1b'),
            "{ran:?}"
        );
        let bill_of = |ran: &Ran| json(ran)["bill"].clone();
        let of_run = bill_of(&run(Some("1"), &["--json"]));
        assert_eq!(of_run["callsites"][0]["name"], "na\x1b[2Jme");
        let ran = run(None, &[]);
        assert!(!ran.status.success() && ran.stderr.contains("wrote no bill"), "{ran:?}");
        let ran = run(Some("other"), &[]);
        assert!(!ran.status.success() && ran.stderr.contains("has another version"), "{ran:?}");

        // Shows the bill of a program that the command has not started.
        let path = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&path, bill()).unwrap();
        let path = path.path().to_str().unwrap();
        let ran = ended(&mut cost(&here, "", &["--bill-of", path]));
        assert!(ran.status.success() && ran.stdout.contains("| 10.0 % "), "{ran:?}");
        let ran = ended(&mut cost(&here, "", &["--bill-of", path, "--json"]));
        assert_eq!(json(&ran), of_run);
    }

    /// Returns an artificial bill (the measured costs of each callsite) of a process in which one event took a tenth of
    /// the processor time.
    fn bill() -> Vec<u8> {
        use atrace_bill::{Call, Callsite, Kind, Process, Sampled, Writer};

        let process =
            Process { ns_per_tick: 1.0, processor_ns: Some(1000), elapsed_ns: 2000, ..Process::default() };
        let mut writer = Writer::new(&process);
        let callsite = Callsite { kind: Kind::Span, level: 3, name: "na\x1b[2Jme", ..Callsite::default() };
        writer.callsite(&callsite, |call| match call {
            Call::New => Sampled { calls: 1, firsts: 1, of_firsts: 100.0, ..Sampled::default() },
            _ => Sampled::default(),
        });
        writer.finish()
    }
}
