//! Tests the less usual cases of `atrace run`: where a recording is written, how a recording is saved after its command
//! was killed, which signals reach the program, and the messages about programs that can't be recorded.
//!
//! In these tests, the ids of users other than root are ids that no system assigns.

#![cfg(target_os = "linux")]

#[path = "../../../atrace/tests/common/mod.rs"]
mod common;
mod here;

#[allow(unsafe_code, reason = "processes are forked, signalled and given terminals as a C program would")]
mod cases {
    use std::fs;
    use std::io::Write as _;
    use std::os::unix::fs::{
        MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, chown, lchown, symlink,
    };
    use std::os::unix::process::CommandExt as _;
    use std::path::{Path, PathBuf};
    use std::process::{Child, Command, Stdio};
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::{Duration, Instant};

    use atrace::*;
    use atrace_cli::tracefs;

    use crate::common::{self, Ran, case, is_root, terminal, until};
    use crate::here::{Here, end, left_by, signal};

    const TAG: AtraceTag = AtraceTag::App;
    /// The id of the user who calls sudo.
    const CALLER: u32 = 64_101;
    /// The id of the user who attacks.
    const ATTACKER: u32 = 64_102;

    fn refused(ran: &Ran, text: &str) {
        assert_eq!(ran.status.code(), Some(125), "{ran:?}");
        assert!(ran.stderr.contains(text), "{text:?} is not said: {ran:?}");
    }

    /// Returns the id of a process that has ended.
    fn dead() -> u32 {
        let mut gone = Command::new("true").spawn().unwrap();
        gone.wait().unwrap();
        gone.id()
    }

    /// Creates a directory of this user with these permissions.
    fn directory(here: &Here, name: &str, user: u32, mode: u32) -> PathBuf {
        let path = here.path(name);
        fs::create_dir(&path).unwrap();
        chown(&path, Some(user), Some(user)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    fn owned_link(to: &Path, at: &Path, user: u32) {
        symlink(to, at).unwrap();
        lchown(at, Some(user), Some(user)).unwrap();
    }

    #[test]
    fn root_follows_no_planted_link() {
        let name = case!({ atrace_instant(TAG, "written") });
        if !is_root(&name) {
            return;
        }
        let here = Here::new();
        let victim = here.path("victim");
        fs::write(&victim, "root's").unwrap();
        let shared = directory(&here, "shared", 0, 0o1777);
        let theirs = directory(&here, "theirs", ATTACKER, 0o755);
        let open = directory(&here, "open", 0, 0o777);
        owned_link(&victim, &shared.join("out"), ATTACKER);
        owned_link(&victim, &theirs.join("out"), ATTACKER);
        let untouched = || assert_eq!(fs::read_to_string(&victim).unwrap(), "root's");

        // In a sticky directory, a shell's `>` would not follow the link either.
        refused(&end(&mut here.run_to("shared/out", &name, &["--force"])), "is user 64102's, in a directory");
        assert!(fs::symlink_metadata(shared.join("out")).unwrap().is_symlink());
        untouched();
        refused(&end(&mut here.run_to("shared/out", &name, &[])), "exists already");
        refused(&end(&mut here.run_to("open/out", &name, &[])), "every user may replace the files in");
        assert_eq!(fs::read_dir(&open).unwrap().count(), 0);
        // In other directories, the link is replaced, not the file that it leads to.
        let ran = end(&mut here.run_to("theirs/out", &name, &["--force"]));
        assert!(ran.status.success(), "{ran:?}");
        untouched();
        let data = fs::symlink_metadata(theirs.join("out")).unwrap();
        assert!(data.is_file() && data.uid() == 0 && data.mode() & 0o777 == 0o600, "{data:?}");
        // An attacker creates files at the names that it can predict for the unfinished output. The command uses the
        // next name, without waiting.
        let script = format!(
            "ln -s {} .out.$$.atrace; ln -s {} .out.$$; exec ../atrace run -o out -- true",
            victim.display(),
            victim.display()
        );
        let mut command = here.cleared(Path::new("sh"), &name);
        let ran = end(command.args(["-c", &script]).current_dir(&shared).arg("sh"));
        refused(&ran, "exists already");
        fs::remove_file(shared.join("out")).unwrap();
        let mut command = here.cleared(Path::new("sh"), &name);
        let ran = end(command.args(["-c", &script]).current_dir(&shared));
        assert!(ran.status.success(), "{ran:?}");
        assert!(fs::symlink_metadata(shared.join("out")).unwrap().is_file());
        untouched();
    }

    fn under_sudo(command: &mut Command) -> &mut Command {
        command.env("SUDO_UID", CALLER.to_string()).env("SUDO_GID", CALLER.to_string())
    }

    #[test]
    fn under_sudo_a_path_leads_only_where_the_caller_may_go() {
        let name = case!({ atrace_instant(TAG, "written") });
        if !is_root(&name) {
            return;
        }
        let here = Here::new();
        let home = directory(&here, "home", CALLER, 0o700);
        let roots = directory(&here, "roots", 0, 0o755);
        fs::write(roots.join("victim"), "root's").unwrap();
        // A link to root's directory has replaced the named directory.
        owned_link(&roots, &home.join("swapped"), CALLER);
        refused(
            &end(under_sudo(&mut here.run_to("home/swapped/out", &name, &[]))),
            "can't write to home/swapped/out: Permission denied",
        );
        owned_link(&roots.join("victim"), &home.join("link"), CALLER);
        refused(&end(under_sudo(&mut here.run_to("home/link", &name, &["-f"]))), "Permission denied");
        assert_eq!(fs::read_to_string(roots.join("victim")).unwrap(), "root's");
        assert_eq!(fs::read_dir(&roots).unwrap().count(), 1);
        // In their own directories, users write as usual, even through their own links.
        fs::write(home.join("own"), "old").unwrap();
        chown(home.join("own"), Some(CALLER), Some(CALLER)).unwrap();
        owned_link(&home.join("own"), &home.join("to-own"), CALLER);
        for output in ["home/new", "home/to-own"] {
            let ran = end(under_sudo(&mut here.run_to(output, &name, &["-f"])));
            assert!(ran.status.success(), "{ran:?}");
        }
        for file in ["new", "own"] {
            let data = fs::symlink_metadata(home.join(file)).unwrap();
            assert!(data.is_file() && data.uid() == CALLER && data.gid() == CALLER, "{file}: {data:?}");
            assert!(fs::read_to_string(home.join(file)).unwrap().contains("|written\n"), "{file}");
        }
        assert!(fs::symlink_metadata(home.join("to-own")).unwrap().is_symlink());
    }

    /// The process id of a command that left kernel buffers that it could not save. Dropping the `Kept` removes them.
    struct Kept(u32);

    impl Drop for Kept {
        fn drop(&mut self) {
            left_by(self.0).iter().for_each(|path| drop(fs::remove_dir(path)));
        }
    }

    /// Tests that a command under sudo removes an unfinished file with the caller's rights, with which the file was
    /// created.
    #[test]
    fn under_sudo_nothing_is_removed_that_the_caller_may_not_remove() {
        let name = case!({
            say_ready();
            std::thread::sleep(Duration::from_secs(100));
        });
        if !is_root(&name) {
            return;
        }
        let here = Here::new();
        let home = directory(&here, "home", CALLER, 0o755);
        for (owner, left) in [(CALLER, 0), (0, 1)] {
            let (child, _) = started(&here, under_sudo(&mut here.run_to("home/out", &name, &["-f"])));
            let _kept = Kept(child.id());
            fs::create_dir(home.join("out")).unwrap();
            chown(&home, Some(owner), None).unwrap();
            signal(&child, libc::SIGTERM);
            refused(&common::end_of(child), "can't save home/out");
            fs::remove_dir(home.join("out")).unwrap();
            fs::remove_file(home.join("ready")).unwrap();
            assert_eq!(fs::read_dir(&home).unwrap().count(), left, "of user {owner}");
        }
    }

    /// Tests that a program under sudo gets the caller's groups, even groups without a name, and groups that none of
    /// the user's other processes has.
    #[test]
    fn under_sudo_the_program_is_in_the_callers_groups() {
        let name = case!({
            let status = fs::read_to_string("/proc/self/status").unwrap();
            let groups = status.lines().find(|line| line.starts_with("Groups:")).unwrap();
            println!("{}", groups.split_whitespace().collect::<Vec<_>>().join(" "));
        });
        if !is_root(&name) {
            return;
        }
        let here = Here::new();
        directory(&here, "home", CALLER, 0o700);
        let mut command = here.run_to("home/out", &name, &[]);
        // SAFETY: the closure makes only async-signal-safe calls between fork and exec.
        unsafe { under_sudo(&mut command).pre_exec(leave_to_child) };
        let ran = end(&mut command);
        assert!(ran.status.success(), "{ran:?}");
        assert_eq!(ran.said("Groups: "), [format!("{CALLER} 64103 64104")], "{ran:?}");
        assert_eq!(fs::metadata(here.path("home/out")).unwrap().uid(), CALLER);
    }

    /// Forks, and returns only in the child, which stays root. The parent takes on the ids of sudo's caller, and ends
    /// with the child's exit status.
    fn leave_to_child() -> std::io::Result<()> {
        // SAFETY: the arguments are writable numbers, and a list of three groups.
        unsafe {
            let mut pipe = [0; 2];
            assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
            let child = libc::fork();
            if child == 0 {
                libc::close(pipe[1]);
                let byte = pipe.as_mut_ptr().cast();
                return if libc::read(pipe[0], byte, 1) == 1 {
                    Ok(())
                } else {
                    Err(std::io::Error::last_os_error())
                };
            }
            let groups = [64_104, CALLER, 64_103];
            let became = libc::setgroups(groups.len(), groups.as_ptr()) == 0
                && libc::setresgid(CALLER, CALLER, CALLER) == 0
                && libc::setresuid(CALLER, CALLER, CALLER) == 0;
            libc::write(pipe[1], b".".as_ptr().cast(), became.into());
            // The closed descriptors include the pipe by which the starting process learns that the program was
            // executed.
            (3..100).for_each(|number| assert!(libc::close(number) < 1));
            let mut status = 0;
            libc::waitpid(child, &mut status, 0);
            libc::_exit(libc::WEXITSTATUS(status));
        }
    }

    #[test]
    fn under_sudo_the_callers_store_harms_nobody() {
        let name = case!({
            let store = std::env::var("ATRACE_PROPERTIES").unwrap();
            atrace_instant(TAG, "before");
            match std::env::var("HOW").unwrap().as_str() {
                "truncate" => fs::OpenOptions::new().write(true).open(store).unwrap().set_len(0).unwrap(),
                "remove" => fs::remove_file(store).unwrap(),
                "pipe" => {
                    fs::remove_file(&store).unwrap();
                    let store = std::ffi::CString::new(store).unwrap();
                    // SAFETY: the path is a C string.
                    assert_eq!(unsafe { libc::mkfifo(store.as_ptr(), 0o600) }, 0);
                }
                _ => {}
            }
            // Ends the process without running the destructors that a process that traces would run.
            println!("IS OVER");
            // SAFETY: ends this process at once.
            unsafe { libc::_exit(3) };
        });
        if !is_root(&name) {
            return;
        }
        let here = Here::new();
        for how in ["none", "truncate", "remove", "pipe"] {
            let ran = end(under_sudo(&mut here.run(&name, &["-f"])).env("HOW", how));
            assert_eq!(ran.status.code(), Some(3), "{how}: {ran:?}");
            assert!(ran.stdout.contains("IS OVER") && here.saved().contains("|before\n"), "{how}: {ran:?}");
            fs::remove_file(here.path("out")).unwrap();
            let is_told = ran.stderr.contains("switching off what is left");
            assert!(!is_told || matches!(how, "truncate" | "pipe"), "{how}: {ran:?}");
            assert_eq!(left_by(ran.pid), Vec::<PathBuf>::new());
        }
    }

    /// Tests a `record` that was killed. Events still go to the killed command's buffer, until another command saves
    /// and removes the buffer.
    #[test]
    fn a_killed_record_is_saved() {
        let name = case!({});
        if !is_root(&name) {
            return;
        }
        if !tracefs::root().is_ok_and(|root| root.join("events/sched").exists()) {
            return common::skipped(&name, "this kernel has no events of the scheduler");
        }
        let here = Here::new();
        directory(&here, "home", 0, 0o700);
        let mut command = here.atrace(&name);
        let record = command.args(["record", "--kernel", "-c", "sched", "-o", "home/saved"]);
        let mut child = record.env("ATRACE_PROPERTIES", here.path("properties")).spawn().unwrap();
        until("there are events", || {
            let instances =
                left_by(child.id()).into_iter().filter_map(|it| tracefs::Instance::attach(it).ok());
            child.try_wait().unwrap().is_some()
                || instances.filter_map(|it| it.stats().ok()).any(|stats| stats.entries > 1000)
        });
        assert!(child.try_wait().unwrap().is_none(), "{:?}", common::end_of(child));
        child.kill().unwrap();
        child.wait().unwrap();
        until("it is saved and gone", || {
            let ran = end(here.atrace(&name).args(["run", "--kernel", "-fo", "next", "--", "true"]));
            assert!(ran.status.success(), "{ran:?}");
            left_by(child.id()).is_empty()
        });
        let saved = fs::read_to_string(here.path("home/saved")).unwrap();
        assert!(saved.matches(": sched_switch: ").count() > 100 && saved.ends_with("</html>\n"));
    }

    #[test]
    fn unfinished_files_are_removed() {
        let name = case!({});
        if !is_root(&name) {
            return;
        }
        let here = Here::new();
        let place = directory(&here, "place", 0, 0o1777);
        let pid = dead();
        let mine = [format!(".out.{pid}.atrace"), format!(".other.{pid}-1f.atrace")];
        // A file that a killed command wrote while events arrived is a valid trace. The next command renames the file,
        // and reports the new name once.
        let live = format!(".out.{pid}");
        for name in mine.iter().chain([&live]) {
            fs::write(place.join(name), "half").unwrap();
        }
        // Files that must stay: those of living processes and of other users, and those that no killed command has
        // left.
        let kept = [
            format!(".out.{}.atrace", std::process::id()),
            format!(".theirs.{pid}.atrace"),
            format!(".link.{pid}.atrace"),
            format!(".else.{pid}"),
            format!("out.{pid}.atrace"),
        ];
        for name in &kept {
            fs::write(place.join(name), "kept").unwrap();
        }
        chown(place.join(&kept[1]), Some(ATTACKER), None).unwrap();
        fs::remove_file(place.join(&kept[2])).unwrap();
        owned_link(&here.path("program"), &place.join(&kept[2]), ATTACKER);
        let ran = end(here.atrace(&name).args(["run", "--kernel", "-o", "place/out", "--", "true"]));
        assert!(ran.status.success(), "{ran:?}");
        for name in &mine {
            assert!(fs::symlink_metadata(place.join(name)).is_err(), "{name} is left: {ran:?}");
            assert!(ran.stderr.contains(&format!("removed {name}, which")), "{ran:?}");
        }
        assert!(ran.stderr.contains("out.2 has the recording of a command"), "{ran:?}");
        assert_eq!(fs::read(place.join("out.2")).unwrap(), b"half");
        let next = end(here.atrace(&name).args(["run", "--kernel", "-fo", "place/out", "--", "true"]));
        assert!(!next.stderr.contains("has the recording of a command"), "{next:?}");
        assert!(fs::symlink_metadata(place.join(&live)).is_err(), "{live} is left: {ran:?}");
        for name in &kept {
            assert!(fs::symlink_metadata(place.join(name)).is_ok(), "{name} is gone: {ran:?}");
        }
    }

    /// Starts the command, and waits until the command's program has written its events and then has created the file
    /// `ready`. Returns the command's process, and the program's process id.
    fn started(here: &Here, command: &mut Command) -> (Child, i32) {
        let ready = here.path("home/ready");
        let _ = fs::remove_file(&ready);
        let child = command.spawn().unwrap();
        until("the program is ready", || fs::read_to_string(&ready).is_ok_and(|text| text.ends_with('\n')));
        (child, fs::read_to_string(&ready).unwrap().trim().parse().unwrap())
    }

    fn say_ready() {
        fs::write("home/ready", format!("{}\n", common::pid())).unwrap();
    }

    /// Starts the command and its program, and kills both. Returns the process id of the command, and the process id of
    /// the program.
    fn killed(here: &Here, command: &mut Command) -> (u32, i32) {
        let (mut child, program) = started(here, command);
        child.kill().unwrap();
        child.wait().unwrap();
        // SAFETY: the process is the program that was started. Only init waits for it.
        unsafe { libc::kill(program, libc::SIGKILL) };
        until("the program is gone", || {
            let state = fs::read_to_string(format!("/proc/{program}/stat")).unwrap_or_default();
            state.is_empty() || state.contains(") Z ")
        });
        (child.id(), program)
    }

    #[test]
    fn a_recording_whose_command_was_killed_is_saved() {
        let name = case!({
            atrace_instant(TAG, "precious");
            say_ready();
            std::thread::sleep(Duration::from_secs(100));
        });
        if !is_root(&name) {
            return;
        }
        let here = Here::new();
        directory(&here, "home", CALLER, 0o755);
        let next = || {
            let ran = end(here.atrace(&name).args(["run", "--kernel", "-fo", "next", "--", "true"]));
            assert!(ran.status.success(), "{ran:?}");
        };
        // The recording is saved to the file, and for the user, that are in the killed command's note. Another command
        // that runs at this moment may save it.
        let (command, program) = killed(&here, under_sudo(&mut here.run_to("home/saved", &name, &[])));
        assert!(!left_by(command).is_empty());
        until("it is saved", || {
            next();
            here.path("home/saved").exists()
        });
        until("its buffer is gone", || {
            next();
            left_by(command).iter().all(|path| !path.starts_with("/sys"))
        });
        let data = fs::metadata(here.path("home/saved")).unwrap();
        assert_eq!((data.uid(), data.gid()), (CALLER, CALLER));
        let saved = fs::read_to_string(here.path("home/saved")).unwrap();
        assert!(saved.contains("|precious\n") && saved.ends_with("</html>\n"), "{saved}");
        assert!(saved.contains(&format!("- {program} 0 0 0 - - - program program\n")), "{saved}");
        until("its note is gone", || {
            next();
            let mut notes = fs::read_dir("/run/atrace").into_iter().flatten().flatten();
            let its = format!("recording-{command}-");
            !notes.any(|entry| entry.file_name().to_str().is_some_and(|name| name.starts_with(&its)))
        });

        // If another file has the name of the output by now, the recording is saved in root's home directory.
        let (command, _) = killed(&here, &mut here.run_to("home/ready2", &name, &[]));
        fs::write(here.path("home/ready2"), "mine").unwrap();
        let elsewhere = PathBuf::from(format!("/root/atrace-recording-{command}-0.ftrace"));
        until("it is saved elsewhere", || {
            next();
            fs::read_to_string(&elsewhere).is_ok_and(|text| text.ends_with("</html>\n"))
        });
        let data = fs::metadata(&elsewhere).unwrap();
        let saved = fs::read_to_string(&elsewhere).unwrap();
        fs::remove_file(&elsewhere).unwrap();
        assert!(saved.contains("|precious\n") && data.mode() & 0o777 == 0o600 && data.uid() == 0);
        assert_eq!(fs::read_to_string(here.path("home/ready2")).unwrap(), "mine");
        until("its buffer is gone", || {
            next();
            left_by(command).iter().all(|path| !path.starts_with("/sys"))
        });
    }

    static CAME: AtomicU32 = AtomicU32::new(0);

    extern "C" fn count(_: libc::c_int) {
        CAME.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts signals until 0.9 seconds after the last awaited signal, and then prints how many signals arrived.
    /// `SIGNALS` is the number of awaited signals, by default 1.
    fn count_signals() {
        let awaited = std::env::var("SIGNALS").map_or(1, |number| number.parse().unwrap());
        for number in [libc::SIGTERM, libc::SIGINT] {
            // SAFETY: the handler only counts.
            unsafe { libc::signal(number, count as *const () as libc::sighandler_t) };
        }
        if std::env::var_os("APART").is_some() {
            // SAFETY: no preconditions.
            assert_eq!(unsafe { libc::setpgid(0, 0) }, 0);
        }
        say_ready();
        // Does not sleep, because the kernel merges two pending signals of the same number into one.
        let mut end = Instant::now() + Duration::from_secs(100);
        while Instant::now() < end {
            if awaited > 1 && CAME.load(Ordering::Relaxed) == 1 {
                fs::write("home/came", "").unwrap();
            }
            if CAME.load(Ordering::Relaxed) >= awaited {
                // This is longer than a further signal would take to arrive.
                end = end.min(Instant::now() + Duration::from_millis(900));
            }
        }
        println!("CAME {}", CAME.load(Ordering::Relaxed));
    }

    /// Checks that the command's program counted this number of signals.
    fn counted(child: Child, signals: &str) {
        let ran = common::end_of(child);
        assert_eq!(ran.said("CAME "), [signals], "{ran:?}");
    }

    fn home() -> Here {
        let here = Here::new();
        directory(&here, "home", 0, 0o700);
        here
    }

    #[test]
    fn a_signal_to_the_command_arrives_once() {
        let name = case!({ count_signals() });
        if !is_root(&name) {
            return;
        }
        let here = home();
        let (child, _) = started(&here, &mut here.run(&name, &["-f"]));
        signal(&child, libc::SIGTERM);
        counted(child, "1");
        // If one signal is sent to the program and another to the command, the program gets two signals.
        let (child, program) = started(&here, here.run(&name, &["-f"]).env("SIGNALS", "2"));
        // SAFETY: the process is the program that was started.
        assert_eq!(unsafe { libc::kill(program, libc::SIGTERM) }, 0);
        until("the first has come", || here.path("home/came").exists());
        signal(&child, libc::SIGTERM);
        counted(child, "2");
    }

    /// Returns the witness, which is the process by which the command knows that a signal was sent to its process
    /// group: the command's child that is not the program.
    fn witness(command: &Child, program: i32) -> i32 {
        let is_its = |pid: &i32| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            status.contains(&format!("\nPPid:\t{}\n", command.id()))
        };
        let all = fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
        let found: Vec<i32> = all.filter(is_its).filter(|pid| *pid != program).collect();
        assert_eq!(found.len(), 1, "{found:?}");
        found[0]
    }

    #[test]
    fn a_signal_to_the_group_arrives_once() {
        let name = case!({ count_signals() });
        if !is_root(&name) {
            return;
        }
        let run = |number, apart: bool, is_late: bool| {
            let here = home();
            let mut command = here.run(&name, &["-f"]);
            command.process_group(0).envs(apart.then_some(("APART", "1")));
            let (child, program) = started(&here, &mut command);
            let witness = is_late.then(|| witness(&child, program));
            let send = |to: i32, number| {
                // SAFETY: the processes were started by the test, and the child was not waited for.
                assert_eq!(unsafe { libc::kill(to, number) }, 0);
            };
            witness.into_iter().for_each(|witness| send(witness, libc::SIGSTOP));
            send(-i32::try_from(child.id()).unwrap(), number);
            if let Some(witness) = witness {
                std::thread::sleep(Duration::from_millis(400));
                send(witness, libc::SIGCONT);
            }
            counted(child, "1");
        };
        // One after the other, as the command waits only for a limited time until it knows that the whole group got the
        // signal.
        for number in [libc::SIGTERM, libc::SIGINT, libc::SIGTERM, libc::SIGINT] {
            run(number, false, false);
        }
        // Signals a group that the program has left.
        run(libc::SIGTERM, true, false);
        // Stops the witness (the process that reports signals) for a while.
        run(libc::SIGTERM, false, true);
    }

    #[test]
    fn a_signal_from_the_keys_arrives_once() {
        let name = case!({ count_signals() });
        if !is_root(&name) {
            return;
        }
        let here = home();
        let (mut master, slave) = terminal();
        let mut command = here.run(&name, &["-f"]);
        let slave = fs::OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOCTTY).open(slave);
        command.stdin(Stdio::from(slave.unwrap()));
        // SAFETY: setsid and ioctl are async-signal-safe.
        unsafe {
            command.pre_exec(|| {
                if libc::setsid() < 0 || libc::ioctl(0, libc::TIOCSCTTY, 0) != 0 {
                    return Err(std::io::Error::last_os_error());
                }
                Ok(())
            });
        }
        let (child, _) = started(&here, &mut command);
        master.write_all(b"\x03").unwrap();
        counted(child, "1");
        drop(master); // Not dropped earlier, because the terminal would hang up.
    }

    /// Tests a signal that arrives before the program runs. The process that reports signals (the witness) is replaced
    /// by a script that sends a signal to its group.
    #[test]
    fn a_signal_before_the_program_is_there_ends_the_command() {
        let name = case!({ println!("STARTED") });
        if !is_root(&name) {
            return;
        }
        let here = Here::new();
        fs::rename(here.path("atrace"), here.path("moved")).unwrap();
        fs::write(here.path("text"), "#!/bin/sh\nkill -$SIGNAL 0; sleep 100\n").unwrap();
        common::copy_program(here.path("text"), here.path("atrace (deleted)"));
        fs::remove_file(here.path("text")).unwrap();
        fs::set_permissions(here.path("atrace (deleted)"), fs::Permissions::from_mode(0o755)).unwrap();
        for number in [libc::SIGINT, libc::SIGTERM] {
            common::copy_program(here.path("moved"), here.path("atrace"));
            // The file of the running command is unlinked, so the kernel reports its path with " (deleted)" at the end.
            let mut command = here.cleared(Path::new("sh"), &name);
            let script = "exec 9<atrace; rm atrace; exec /proc/self/fd/9 \"$@\"";
            command.args(["-c", script, "sh", "run", "-o", "out", "--", "./program", &name, "--exact"]);
            let ran = end(command.env("SIGNAL", number.to_string()).process_group(0));
            assert_eq!(ran.status.code(), Some(128 + number), "{ran:?}");
            assert!(ran.stderr.contains("before the program was started"), "{ran:?}");
            assert!(!ran.stdout.contains("STARTED") && left_by(ran.pid).is_empty(), "{ran:?}");
            assert_eq!(here.files(), ["atrace (deleted)", "moved"]);
        }
    }

    #[test]
    fn closed_descriptors_are_told_of() {
        let name = case!({
            let end = Instant::now() + Duration::from_millis(std::env::var("MS").unwrap().parse().unwrap());
            atrace_instant(TAG, "before");
            common::close_all();
            for number in 0.. {
                atrace_int(TAG, "after", number);
                std::thread::sleep(Duration::from_millis(10));
                if Instant::now() > end {
                    break;
                }
            }
        });
        if !is_root(&name) {
            return;
        }
        let here = Here::new();
        // The command examines the program twice a second, and less often on a busy machine, so it may miss a short
        // program.
        let is_told = |ms: u32| {
            let ran = end(here.run(&name, &["-f"]).env("MS", ms.to_string()));
            assert!(ran.status.success(), "{ran:?}");
            eprintln!("{ran:?}");
            let is_told =
                ran.stderr.contains("/program) closed the descriptor of the marker (100): events after that");
            assert_eq!(is_told, !ran.stderr.contains("none lost"), "{ran:?}");
            is_told
        };
        assert!([1000, 4000, 16_000].into_iter().any(is_told), "nothing is told");
        // The command does not report a process that has never used the marker.
        let ran = end(here.run("none", &["-f"]).env("ATRACE_TEST_CASE", "none"));
        assert!(!ran.stderr.contains("closed the descriptor"), "{ran:?}");
    }

    #[test]
    fn why_nothing_was_written_is_told() {
        let name = case!({});
        if !is_root(&name) {
            return;
        }
        let here = Here::new();
        let elevated = here.path("elevated");
        common::copy_program("/bin/sleep", &elevated);
        chown(&elevated, Some(CALLER), None).unwrap();
        fs::set_permissions(&elevated, fs::Permissions::from_mode(0o4755)).unwrap();
        let user = CALLER.to_string();
        let became = format!("(sleep) became user {CALLER}, who can't read");
        let mut programs: Vec<(&'static str, &str)> = vec![
            ("exec sleep $0", "does not use ATrace, or ended before it could"),
            ("exec env -i sleep $0", "(sleep) was started without ATRACE_MARKER in its environment"),
            ("exec 100>&-; sleep $0; :", "closed the descriptor of the marker (100)"),
            ("exec setpriv --reuid $1 --regid $1 --clear-groups sleep $0", &became),
            ("exec ./elevated $0", "(./elevated) has elevated rights"),
        ];
        // The command examines the programs twice a second, and less often on a busy machine, so the test tries longer
        // programs, too.
        for seconds in ["1.5", "6", "24"] {
            let start = |(number, (script, reason)): (usize, (&'static str, _))| {
                let (mut command, output) = (here.atrace(&name), format!("out.{number}"));
                command.args(["run", "--kernel", "-fo", &output, "--", "bash", "-c", script, seconds, &user]);
                (command.spawn().unwrap(), (script, reason))
            };
            let all: Vec<_> = programs.into_iter().enumerate().map(start).collect();
            programs = Vec::new();
            for (child, program) in all {
                let ran = common::end_of(child);
                assert!(ran.status.success() && !ran.stderr.contains("none lost"), "{ran:?}");
                if !ran.stderr.contains(program.1) {
                    eprintln!("{program:?}: {ran:?}");
                    programs.push(program);
                }
            }
        }
        assert!(programs.is_empty(), "{programs:?}");
    }

    #[test]
    fn all_processes_have_names_whatever_they_are_called() {
        let name = case!({
            std::thread::Builder::new()
                .name("a\nthread".to_owned())
                .spawn(|| {
                    for _ in 0..20 {
                        atrace_instant(TAG, "in a thread");
                        // The kernel records the thread's name when it switches from or to the thread.
                        std::thread::sleep(Duration::from_millis(2));
                    }
                })
                .unwrap()
                .join()
                .unwrap();
            let marker = std::env::var("ATRACE_MARKER").unwrap();
            let number = marker.split(':').nth(1).unwrap();
            let script =
                format!("for i in $(seq 150); do bash -c 'printf \"I|$$|in a child\" >&{number}'; done; :");
            assert!(Command::new("bash").args(["-c", &script]).status().unwrap().success());
            println!("PID {}", common::pid());
        });
        if !is_root(&name) {
            return;
        }
        let here = Here::new();
        let odd = here.path("pro\ngram");
        common::copy_program(here.path("program"), &odd);
        let mut command = here.atrace(&name);
        command.args(["run", "--kernel", "-o", "out", "--"]).arg(&odd).args([
            &name,
            "--exact",
            "--nocapture",
            "--test-threads=1",
        ]);
        let ran = end(&mut command);
        assert!(ran.status.success(), "{ran:?}");
        let saved = here.saved();
        let pid: u32 = ran.said("PID ")[0].parse().unwrap();
        let list: Vec<_> = saved.lines().filter(|line| line.starts_with("- ")).collect();
        assert_eq!(list.len(), 151, "{list:?}");
        assert_eq!(list.iter().filter(|line| line.ends_with(" bash bash")).count(), 150);
        assert!(list.contains(&format!("- {pid} 0 0 0 - - - pro_gram pro_gram").as_str()), "{list:?}");
        let message = format!(": tracing_mark_write: I|{pid}|in a thread\n");
        assert_eq!(saved.matches(&message).count(), 20);
        // The kernel may have forgotten the thread's name, because it keeps a limited number of names for the whole
        // machine.
        assert!(saved.contains("        a_thread-") || saved.contains("           <...>-"), "{saved}");
        assert!(!saved.contains("\nthread-"), "{saved}");
        assert_eq!(saved.matches("|in a child\n").count(), 150);
    }

    #[test]
    fn nothing_foreign_reaches_the_terminal_as_it_is() {
        let name = case!({});
        if !is_root(&name) {
            return;
        }
        let here = Here::new();
        let odd = "no\x1b[2J\nprogram";
        let ran = end(here.atrace(&name).args(["run", "--kernel", "-o", "out", "--", odd]));
        assert!(ran.stderr.contains("no\\x1b[2J\\x0aprogram: No such file"), "{ran:?}");
        let ran =
            end(here.atrace(&name).args(["run", "--kernel", "-o", &format!("{odd}/out"), "--", "true"]));
        assert!(ran.stderr.contains("can't write to no\\x1b[2J\\x0aprogram/out"), "{ran:?}");
        // The process that holds the recording's buffer open has a hostile name.
        let script = "(unset ATRACE_PROPERTIES; exec -a $'a\\e[2Jb' sleep 60 >/dev/null 2>&1) & echo $! >holder; sleep 0.3";
        let ran = end(here.atrace(&name).args(["run", "--kernel", "-o", odd, "--", "bash", "-c", script]));
        let holder = fs::read_to_string(here.path("holder")).unwrap();
        let killed = Command::new("kill").arg(holder.trim()).status().unwrap();
        assert!(killed.success(), "{holder}");
        assert!(ran.stderr.contains("(a\\x1b[2Jb)") && !ran.stderr.contains('\x1b'), "{ran:?}");
        assert!(ran.stderr.contains("saved no\\x1b[2J\\x0aprogram: open it"), "{ran:?}");
        until("its buffer can go", || {
            let _ = end(here.atrace(&name).args(["run", "--kernel", "-fo", "out", "--", "true"]));
            left_by(ran.pid).is_empty()
        });
    }

    #[test]
    fn output_that_is_lost_is_a_failure() {
        let name = case!({});
        let here = Here::new();
        for args in [&["status"][..], &["doctor"], &["--help"], &["--version"]] {
            let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
            let mut command = here.atrace(&name);
            command.args(args).stdout(full).env("ATRACE_PROPERTIES", here.path("properties"));
            let ran = end(&mut command);
            assert_eq!(ran.status.code(), Some(1), "{args:?}: {ran:?}");
            assert!(
                ran.stderr.contains("the output is not whole: No space left on device"),
                "{args:?}: {ran:?}"
            );
            // It is no error if the reader of the output has closed the pipe.
            let (reader, writer) = std::io::pipe().unwrap();
            drop(reader);
            let mut command = here.atrace(&name);
            command.args(args).stdout(writer).env("ATRACE_PROPERTIES", here.path("properties"));
            assert!(!end(&mut command).stderr.contains("the output"), "{args:?}");
        }
    }

    #[test]
    fn patterns_that_match_nothing_are_refused() {
        let name = case!({});
        let here = Here::new();
        for pattern in ["[", "*/svc[", "[z-a]", "a\nb"] {
            for args in [&["on", pattern][..], &["record", "-t", "1s", "-a", pattern]] {
                let mut command = here.atrace(&name);
                let ran = end(command.args(args).env("ATRACE_PROPERTIES", here.path("properties")));
                assert_eq!(ran.status.code(), Some(1), "{args:?}: {ran:?}");
                assert!(
                    ran.stderr.contains("matches nothing: ") && !ran.stderr.contains("a\nb"),
                    "{args:?}: {ran:?}"
                );
            }
        }
    }
}
