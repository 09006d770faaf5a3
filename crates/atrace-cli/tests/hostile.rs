//! Tests root's command against hostile users, who attack with the published states and the names of their processes,
//! and with locks, truncated files and planted files.
//!
//! Each case runs in a separate mount namespace with a private `/dev/shm` and `/run`. The users have ids that no system
//! uses. With `ATRACE_LONG_TESTS=1` the storm (many random attacks at the same time) lasts a minute.

#![cfg(target_os = "linux")]

#[path = "../../../atrace/tests/common/mod.rs"]
mod common;
mod here;

#[allow(unsafe_code, reason = "attackers do what C programs can")]
mod cases {
    use std::ffi::CString;
    use std::fs::{self, File, OpenOptions, Permissions};
    use std::io::{Read as _, Write as _};
    use std::os::fd::{AsRawFd as _, FromRawFd as _, RawFd};
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, chown};
    use std::os::unix::net::UnixListener;
    use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
    use std::path::{Path, PathBuf};
    use std::process::{Child, Command, Stdio};
    use std::sync::{PoisonError, RwLock};
    use std::time::{Duration, Instant};

    use atrace::control::{Control, Properties};
    use atrace::*;
    use atrace_cli::doctor::{Topic, examine};
    use atrace_cli::tracefs;

    use crate::common::{self, Chance, Ran, case, is_root, until};
    use crate::here::with_usual_signals;

    const TAG: AtraceTag = AtraceTag::App;
    const COMMAND: &str = env!("CARGO_BIN_EXE_atrace");
    /// The id of a hostile user.
    const MALLORY: u32 = 64_001;
    /// The id of another hostile user.
    const TRUDY: u32 = 64_002;
    /// The id of an honest user.
    const ALICE: u32 = 64_009;
    /// The ids of users that only the storm uses. The storm's attackers kill every process of these users, so no other
    /// test may have processes of these users.
    const STORM: [u32; 3] = [64_021, 64_031, 64_041];

    /// A test with hundreds of processes holds this lock for writing, so that no other test runs at the same time.
    /// Otherwise the load would slow down the commands of other tests, which spend at most one second on each user.
    static LOAD: RwLock<()> = RwLock::new(());

    /// Runs the test case in a separate mount namespace. The case must succeed.
    fn apart(name: &str) {
        let _turn = LOAD.read().unwrap_or_else(PoisonError::into_inner);
        run_apart(name);
    }

    /// Runs the test case as [`apart`] does, while no other case runs.
    fn apart_alone(name: &str) {
        let _turn = LOAD.write().unwrap_or_else(PoisonError::into_inner);
        run_apart(name);
    }

    fn run_apart(name: &str) {
        let script =
            "mount -t tmpfs -o mode=1777 none /dev/shm && mount -t tmpfs none /run && exec \"$0\" \"$@\"";
        let mut command = Command::new("unshare");
        for (name, _) in std::env::vars_os() {
            let name_bytes = name.as_encoded_bytes();
            if name_bytes.starts_with(b"ATRACE_") && name_bytes != b"ATRACE_LONG_TESTS"
                || name_bytes.starts_with(b"SUDO_")
            {
                command.env_remove(name);
            }
        }
        command.args(["-m", "sh", "-c", script]).arg(std::env::current_exe().unwrap());
        command.args([name, "--exact", "--nocapture", "--test-threads=1"]).env("ATRACE_TEST_CASE", name);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let ran = common::run(&mut command);
        let told: Vec<_> = ran
            .stderr
            .lines()
            .filter(|line| line.starts_with("storm: ") || line.starts_with("planted: "))
            .collect();
        if !told.is_empty() {
            let _ = writeln!(std::io::stderr(), "{}", told.join("\n"));
        }
    }

    /// A directory that every user may enter. It contains the command, this test program, and files of root that must
    /// stay unchanged.
    struct Here {
        place: tempfile::TempDir,
        canaries: Vec<(PathBuf, Canary)>,
    }

    type Canary = (Vec<u8>, u32, u32, i64, i64, u64);

    impl Here {
        fn new() -> Self {
            let place = tempfile::Builder::new().prefix("atrace-hostile").tempdir().unwrap();
            fs::set_permissions(place.path(), Permissions::from_mode(0o755)).unwrap();
            common::copy_program(COMMAND, place.path().join("atrace"));
            common::copy_program(std::env::current_exe().unwrap(), place.path().join("program"));
            fs::create_dir(place.path().join("canaries")).unwrap();
            let mut here = Self { place, canaries: Vec::new() };
            for (name, mode) in [("readable", 0o644), ("secret", 0o600), ("properties", 0o600)] {
                let path = here.path("canaries").join(name);
                fs::write(&path, format!("{name}, as root wrote it")).unwrap();
                fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            }
            here.canaries = here.look();
            here
        }

        fn path(&self, name: &str) -> PathBuf {
            self.place.path().join(name)
        }

        fn canary(&self, name: &str) -> PathBuf {
            self.path("canaries").join(name)
        }

        /// Returns the content and attributes of root's files.
        fn look(&self) -> Vec<(PathBuf, Canary)> {
            let mut all: Vec<_> = fs::read_dir(self.path("canaries"))
                .unwrap()
                .map(|entry| {
                    let path = entry.unwrap().path();
                    let data = fs::symlink_metadata(&path).unwrap();
                    let canary = (
                        fs::read(&path).unwrap(),
                        data.uid(),
                        data.mode(),
                        data.mtime(),
                        data.mtime_nsec(),
                        data.ino(),
                    );
                    (path, canary)
                })
                .collect();
            all.sort();
            all
        }

        #[track_caller]
        fn is_unharmed(&self) {
            let now = self.look();
            let changed: Vec<_> = now.iter().filter(|it| !self.canaries.contains(it)).collect();
            assert!(changed.is_empty(), "touched: {changed:?}");
            assert_eq!(now.len(), self.canaries.len());
        }

        fn command(&self, args: &[&str]) -> Command {
            let mut command = Command::new(self.path("atrace"));
            command.args(args).env_remove("ATRACE_TEST_CASE").current_dir(self.place.path());
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            with_usual_signals(&mut command);
            command
        }

        /// Runs the command as root.
        fn atrace(&self, args: &[&str]) -> Ran {
            Self::in_time(&mut self.command(args))
        }

        fn atrace_of(&self, uid: u32, args: &[&str]) -> Ran {
            Self::in_time(self.command(args).uid(uid).gid(uid))
        }

        /// Runs a command. If the command reports that it could not reach ALICE's store in time, runs the command
        /// again, at most five times in all. ALICE does not attack, but on a busy machine, the command's limit of one
        /// second for each user may be too short. Returns the last run, with the stderr of all runs.
        fn in_time(command: &mut Command) -> Ran {
            let mut before = String::new();
            for _ in 0..5 {
                let mut ran = common::end_of(command.spawn().unwrap());
                let is_late = |line: &str| {
                    let is_hers = line.contains(&format!("user {ALICE}: "));
                    is_hers && (line.contains("no answer in time") || line.contains("took too long"))
                };
                let is_again = ran.stderr.lines().chain(ran.stdout.lines()).any(is_late);
                ran.stderr.insert_str(0, &before);
                if !is_again {
                    return ran;
                }
                before = ran.stderr;
            }
            panic!("ALICE is never asked in time: {before}");
        }

        /// Starts a program that traces, as this user and under the name `argv0`. Returns when the program has written
        /// an event.
        fn program(&self, uid: u32, case: &str, argv0: &[u8]) -> Attacker {
            let mut command = Command::new(self.path("program"));
            command.arg0(std::ffi::OsStr::from_bytes(argv0));
            command.args([case, "--exact", "--nocapture", "--test-threads=1"]);
            command.env("ATRACE_TEST_CASE", case).env("ROLE", "program").uid(uid).gid(uid);
            let marker = self.path(&format!("marker-{uid}"));
            fs::write(&marker, "").unwrap();
            chown(&marker, Some(uid), Some(uid)).unwrap();
            command.env("ATRACE_MARKER", marker);
            command.current_dir(self.place.path()).stdin(Stdio::null()).stdout(Stdio::piped());
            let mut child = command.stderr(Stdio::null()).spawn().unwrap();
            let mut out = child.stdout.take().unwrap();
            let mut said = Vec::new();
            while !said.ends_with(b"READY\n") {
                let mut byte = [0];
                assert_eq!(out.read(&mut byte).unwrap(), 1, "{}", String::from_utf8_lossy(&said));
                said.push(byte[0]);
            }
            Attacker(child.id().cast_signed(), Some(child))
        }
    }

    fn is_program() -> bool {
        std::env::var_os("ROLE").is_some()
    }

    /// Does the work of a program that traces.
    fn traces() {
        atrace_instant(TAG, "one");
        println!("READY");
        std::thread::sleep(Duration::from_secs(100));
    }

    /// A process of another user. Dropping the `Attacker` kills the process.
    struct Attacker(libc::pid_t, Option<Child>);

    impl Attacker {
        /// Runs `harm` in a process of the user `uid`. Returns when `harm` has called its argument.
        fn start(uid: u32, harm: impl FnOnce(&dyn Fn())) -> Self {
            let (mut told, mut tell) = std::io::pipe().unwrap();
            // SAFETY: the child ends in the block below. It does not use the locks that it may have inherited, and
            // its parent kills it.
            let pid = unsafe { libc::fork() };
            assert!(pid >= 0);
            if pid == 0 {
                let _ = become_user(uid);
                drop(told);
                harm(&|| tell_of(&tell));
                std::thread::sleep(Duration::from_secs(1000));
                // SAFETY: ends the child at once, without the destructors and handlers that its parent would run.
                unsafe { libc::_exit(0) };
            }
            tell.flush().unwrap();
            drop(tell);
            let attacker = Self(pid, None);
            assert_eq!(told.read(&mut [0]).unwrap(), 1, "the attacker failed");
            attacker
        }

        /// Returns whether the attacker's process still runs.
        fn attacks(&mut self) -> bool {
            // SAFETY: the process is a child that was not waited for. A null pointer is allowed here.
            unsafe { libc::waitpid(self.0, std::ptr::null_mut(), libc::WNOHANG) == 0 }
        }

        fn pid(&self) -> String {
            self.0.to_string()
        }

        fn number(&self) -> u32 {
            self.0.cast_unsigned()
        }
    }

    /// A command that runs in the background. Dropping the `Recording` kills the command.
    struct Recording(Option<Child>);

    impl Recording {
        fn start(here: &Here, args: &[&str]) -> Self {
            Self(Some(here.command(args).spawn().unwrap()))
        }

        /// Starts the command, and waits until it has switched on the programs of all users. On a busy machine, the
        /// command's limit of one second for each user may be too short. If the programs are not switched on within 10
        /// seconds, the command is killed and started again.
        fn start_for_all(here: &Here, args: &[&str], is_on: impl Fn() -> bool) -> Self {
            for _ in 0..5 {
                let (record, start) = (Self::start(here, args), Instant::now());
                while start.elapsed() < Duration::from_secs(10) {
                    if is_on() {
                        return record;
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
                drop(record);
                assert!(here.atrace(&["status"]).status.success());
            }
            panic!("no recording switches all users on");
        }

        fn pid(&self) -> u32 {
            self.0.as_ref().unwrap().id()
        }

        fn end(mut self) -> Ran {
            common::end_of(self.0.take().unwrap())
        }

        /// Asks the command to end.
        fn stop(self) -> Ran {
            // SAFETY: the process is a child that was not waited for.
            assert_eq!(unsafe { libc::kill(self.pid().cast_signed(), libc::SIGINT) }, 0);
            self.end()
        }
    }

    /// Sends SIGKILL to the command.
    impl Drop for Recording {
        fn drop(&mut self) {
            if let Some(child) = &mut self.0 {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }

    fn tell_of(mut tell: &std::io::PipeWriter) {
        tell.write_all(b".").unwrap();
    }

    fn become_user(uid: u32) -> bool {
        // SAFETY: the arguments are numbers, and an empty list of groups.
        unsafe {
            let became = libc::setgroups(0, std::ptr::null()) == 0
                && libc::setresgid(uid, uid, uid) == 0
                && libc::setresuid(uid, uid, uid) == 0;
            libc::prctl(libc::PR_SET_DUMPABLE, 1);
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            became
        }
    }

    impl Drop for Attacker {
        fn drop(&mut self) {
            // SAFETY: the process is a child that was not waited for.
            unsafe {
                libc::kill(self.0, libc::SIGKILL);
                if self.1.is_none() {
                    libc::waitpid(self.0, std::ptr::null_mut(), 0);
                }
            }
            if let Some(child) = &mut self.1 {
                let _ = child.wait();
            }
        }
    }

    fn store(uid: u32) -> PathBuf {
        format!("/dev/shm/atrace-{uid}/properties").into()
    }

    /// Returns the patterns in the user's store. Root opens the store directly, so the test must make sure that no
    /// attacker changes the store at that time.
    fn patterns(uid: u32) -> Vec<String> {
        let patterns = Control::from(Properties::open_uid(uid).unwrap()).patterns();
        patterns.into_iter().map(|pattern| String::from_utf8(pattern).unwrap()).collect()
    }

    /// Publishes a memory file that looks like the published state of a process.
    fn publish(lines: &str) -> RawFd {
        let fd = publish_unsealed(lines);
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: the descriptor is open.
        assert_eq!(unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, seals) }, 0);
        fd
    }

    fn publish_unsealed(lines: &str) -> RawFd {
        let mut page = vec![0; 4096];
        page[0] = 2;
        page[8..8 + lines.len()].copy_from_slice(lines.as_bytes());
        // SAFETY: the name is a C string. The descriptor stays open.
        let fd = unsafe { libc::memfd_create(c"atrace-state".as_ptr(), libc::MFD_ALLOW_SEALING) };
        assert!(fd >= 0);
        // SAFETY: the descriptor was just created and has no other owner.
        let file = unsafe { File::from_raw_fd(fd) };
        file.write_all_at(&page, 0).unwrap();
        std::mem::forget(file);
        fd
    }

    fn open(path: &Path, flags: libc::c_int) -> RawFd {
        let path = CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: the path is a C string. The descriptor stays open.
        let fd = unsafe { libc::open(path.as_ptr(), flags) };
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        fd
    }

    fn make_fifo(path: &Path) {
        let path = CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: the path is a C string.
        assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
    }

    /// Returns the text of a published state. It claims that this process writes to the marker by the descriptor
    /// `marker`.
    fn says(marker: RawFd, properties: &Path) -> String {
        let data = fs::metadata(format!("/proc/self/fd/{marker}")).unwrap();
        let place = fs::read_link(format!("/proc/self/fd/{marker}")).unwrap();
        format!(
            "version 0.1.0\npid {}\nserial 2\ntags 0x2\nsink Tracefs\nplace {}\nmarker {marker}:{}:{}\nproperties {}\n",
            std::process::id(),
            place.display(),
            data.dev(),
            data.ino(),
            properties.display()
        )
    }

    /// Checks that the output consists of lines of printable text.
    #[track_caller]
    fn is_plain(ran: &Ran) {
        for text in [&ran.stdout, &ran.stderr] {
            assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
        }
    }

    #[test]
    fn the_doctor_writes_to_no_file_that_a_process_names() {
        let name = case!({
            let here = Here::new();
            let victim = here.canary("readable");
            for (flags, path) in [(libc::O_PATH, here.canary("secret")), (libc::O_RDONLY, victim)] {
                let mallory = Attacker::start(MALLORY, |ready| {
                    Control::from(Properties::open_uid(MALLORY).unwrap()).enable("*").unwrap().keep();
                    publish(&says(open(&path, flags), &store(MALLORY)));
                    ready();
                });
                let ran = here.atrace(&["doctor", &mallory.pid()]);
                here.is_unharmed();
                assert_eq!(ran.status.code(), Some(1), "{ran:?}");
                assert!(ran.stdout.contains("WRONG marker"), "{ran:?}");
                assert!(!examine(mallory.number()).arrives());
                here.is_unharmed();
            }
        });
        if is_root(&name) {
            apart(&name);
        }
    }

    /// Tests root's doctor where tracefs is not mounted. The examined process publishes a descriptor of a marker to
    /// which the process's user may not write. The doctor must not write to the marker by this descriptor, either.
    #[test]
    fn without_tracefs_the_doctor_writes_to_no_descriptor() {
        let name = case!({
            let here = Here::new();
            let instance = tracefs::Instance::create("atrace-test-").unwrap();
            let marker = open(&instance.marker_path(), libc::O_PATH);
            let mallory = Attacker::start(MALLORY, |ready| {
                Control::from(Properties::open_uid(MALLORY).unwrap()).enable("*").unwrap().keep();
                publish(&says(marker, &store(MALLORY)));
                ready();
            });
            let mut command = Command::new("unshare");
            command.args(["-m", "sh", "-c", "mount -t tmpfs none /sys/kernel && exec \"$0\" doctor \"$1\""]);
            command.arg(here.path("atrace")).arg(mallory.pid()).env_remove("ATRACE_TEST_CASE");
            command.current_dir(here.place.path()).stdin(Stdio::null());
            let ran = common::end_of(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
            assert_eq!(instance.stats().unwrap().written(), 0, "{ran:?}");
            assert!(
                ran.stdout.contains("WRONG mount") && ran.stdout.contains("-> mount -t tracefs"),
                "{ran:?}"
            );
        });
        if is_root(&name) {
            apart(&name);
        }
    }

    #[test]
    fn the_doctor_makes_no_store_that_a_process_names() {
        let name = case!({
            let here = Here::new();
            let marker = tracefs::root().unwrap().join("trace_marker");
            for planted in [here.canary("planted"), "/dev/shm/planted".into()] {
                let mallory = Attacker::start(MALLORY, |ready| {
                    let fd = open(&marker.with_file_name(""), libc::O_PATH);
                    publish(&says(fd, &planted));
                    ready();
                });
                // On a busy machine the doctor may get no answer in time.
                let mut all = (0..20).map(|_| here.atrace(&["doctor", &mallory.pid()]));
                let ran =
                    all.find(|ran| !ran.stdout.contains("no answer in time")).expect("an answer in time");
                assert!(ran.stdout.contains(&format!("{} is not there yet", planted.display())), "{ran:?}");
                assert!(!planted.exists(), "{ran:?}");
                here.is_unharmed();
                examine(mallory.number());
                assert!(!planted.exists());
            }
        });
        if is_root(&name) {
            apart(&name);
        }
    }

    /// Tests a store that is deleted, as happens at the end of a login session.
    #[test]
    fn a_deleted_store_stays_its_users() {
        let name = case!({
            if is_program() {
                return traces();
            }
            let here = Here::new();
            let program = here.program(ALICE, &name_of_case(), b"alices-program");
            assert!(here.atrace_of(ALICE, &["on", "alices-program"]).status.success());
            fs::remove_file(store(ALICE)).unwrap();
            let ran = here.atrace(&["doctor", &program.pid()]);
            assert!(ran.stdout.contains("WRONG properties"), "{ran:?}");
            assert!(!store(ALICE).exists() || fs::metadata(store(ALICE)).unwrap().uid() == ALICE, "{ran:?}");
            // Makes the repair that the report suggests.
            drop(program);
            let program = here.program(ALICE, &name_of_case(), b"alices-program");
            assert!(here.atrace_of(ALICE, &["on", "alices-program"]).status.success());
            let ran = here.atrace(&["doctor", &program.pid()]);
            assert!(ran.stdout.contains("ok    properties"), "{ran:?}");
            assert_eq!(fs::metadata(store(ALICE)).unwrap().uid(), ALICE);
        });
        if is_root(&name) {
            apart(&name);
        }
    }

    /// Returns the directories of commands `atrace run` that belong to the user.
    fn runs_of(uid: u32) -> Vec<PathBuf> {
        let entries = fs::read_dir("/dev/shm").unwrap().map(|entry| entry.unwrap().path());
        let is_theirs = |path: &PathBuf| {
            path.to_str().unwrap().starts_with("/dev/shm/atrace-run-")
                && fs::metadata(path).unwrap().uid() == uid
        };
        entries.filter(is_theirs).collect()
    }

    /// Tests an attacker that creates many directories whose names resemble those of the directories of the next
    /// commands `atrace run`.
    #[test]
    fn directories_that_another_user_plants_hold_no_run_up() {
        let name = case!({
            let here = Here::new();
            let hers = here.path("hers");
            fs::create_dir(&hers).unwrap();
            chown(&hers, Some(TRUDY), Some(TRUDY)).unwrap();
            let run = |uid: u32| {
                let mut command = here.command(&["run", "-f", "-o", "out", "--", "true"]);
                command.uid(uid).gid(uid).current_dir(if uid == 0 { here.path("") } else { hers.clone() });
                let start = Instant::now();
                (common::end_of(command.spawn().unwrap()), start.elapsed())
            };
            let alone = [TRUDY, 0].map(|uid| run(uid).1).into_iter().max().unwrap();
            let _mallory = Attacker::start(MALLORY, |ready| {
                let plant = |name: String| {
                    let planted = Path::new("/dev/shm").join(format!("atrace-run-{name}"));
                    fs::create_dir(&planted).unwrap();
                    planted
                };
                // The planted directories look like those of killed commands: no process has the ids in their names.
                for number in 0..5000 {
                    fs::write(plant((10_000_000 + number).to_string()).join("producers"), "").unwrap();
                }
                for pid in std::process::id()..std::process::id() + 100 {
                    plant(pid.to_string());
                    (1..100).for_each(|number| _ = plant(format!("{pid}-{number}")));
                }
                ready();
            });
            let planted = runs_of(MALLORY);
            for uid in [0, TRUDY] {
                let (ran, took) = run(uid);
                eprintln!("planted: the run of user {uid} took {took:?}, {alone:?} before");
                assert!(ran.status.success(), "{ran:?}");
                assert!(took < alone + Duration::from_secs(5), "{took:?}, {alone:?} before");
                assert_eq!(runs_of(uid), [""; 0].map(PathBuf::from));
            }
            assert_eq!(runs_of(MALLORY).len(), planted.len());
        });
        if is_root(&name) {
            apart(&name);
        }
    }

    /// Tests a command in a separate PID namespace while another `atrace run` is running outside of it. The other
    /// command's process does not exist in the namespace, but its directory must not be removed.
    #[test]
    fn the_directory_of_a_run_stays_while_the_run_lives() {
        let name = case!({
            let here = Here::new();
            let hers = here.path("hers");
            fs::create_dir(&hers).unwrap();
            chown(&hers, Some(ALICE), Some(ALICE)).unwrap();
            let as_alice = |command: &mut Command| {
                command.uid(ALICE).gid(ALICE).current_dir(&hers);
            };
            let script = "touch ready; while [ -e ready ]; do sleep 0.05; done; \
                          [ -S \"$PERFETTO_PRODUCER_SOCK_NAME\" ]";
            let mut run = here.command(&["run", "-f", "-o", "first", "--", "sh", "-c", script]);
            as_alice(&mut run);
            let first = Recording(Some(run.spawn().unwrap()));
            until("the program runs", || hers.join("ready").exists());
            let living = runs_of(ALICE);
            assert_eq!(living.len(), 1);
            let mut run = Command::new("unshare");
            run.args(["-Upf", "--mount-proc"]).arg(here.path("atrace"));
            run.args(["run", "-f", "-o", "second", "--", "true"]).env_remove("ATRACE_TEST_CASE");
            run.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            as_alice(&mut run);
            let ran = common::end_of(run.spawn().unwrap());
            assert!(ran.status.success(), "{ran:?}");
            assert_eq!(runs_of(ALICE), living, "{ran:?}");
            fs::remove_file(hers.join("ready")).unwrap();
            let ran = first.end();
            assert!(ran.status.success(), "{ran:?}");
            assert_eq!(runs_of(ALICE), [""; 0].map(PathBuf::from));
        });
        if is_root(&name) {
            apart(&name);
        }
    }

    /// Tests a user namespace that does not map all users: in it, the kernel shows the same id for all users that are
    /// not mapped.
    #[test]
    fn another_users_service_is_not_trusted_for_a_number_of_many() {
        let name = case!({
            let here = Here::new();
            let place = Path::new("/run/perfetto");
            fs::create_dir(place).unwrap();
            fs::set_permissions(place, Permissions::from_mode(0o777)).unwrap();
            let socket = place.join("traced-consumer.sock");
            let listen = |uid| {
                let socket = socket.clone();
                Attacker::start(uid, move |ready| {
                    let _ = fs::remove_file(&socket);
                    let listener = UnixListener::bind(&socket).unwrap();
                    fs::set_permissions(&socket, Permissions::from_mode(0o777)).unwrap();
                    ready();
                    // Closes each connection. A command that trusts the service sees this.
                    listener.incoming().for_each(drop);
                })
            };
            let theirs = here.path("theirs");
            fs::create_dir(&theirs).unwrap();
            let unshared = |uid: u32, options: &[&str]| {
                let mut command = Command::new("unshare");
                command.args(options).arg(here.path("atrace")).arg("status").env_remove("ATRACE_TEST_CASE");
                chown(&theirs, Some(uid), Some(uid)).unwrap();
                command.uid(uid).gid(uid);
                command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
                command
            };
            let status = |uid: u32, options: &[&str]| {
                let mut command = unshared(uid, options);
                let store = theirs.join(format!("{uid}"));
                common::end_of(command.env("ATRACE_PROPERTIES", store).spawn().unwrap())
            };
            let nobody = 65_534;
            // Tests services of the command's user, of another user, and of root.
            for (listens, uid, options, is_trusted) in [
                (MALLORY, ALICE, &["-U"][..], false),
                (MALLORY, ALICE, &["-U", "--map-user=65534"], false),
                (MALLORY, ALICE, &["-U", "--map-user=1000"], false),
                (MALLORY, nobody, &[], false),
                (ALICE, ALICE, &["-U"], false),
                (0, ALICE, &["-U"], false),
                (ALICE, ALICE, &["-U", "--map-user=1000"], true),
                (ALICE, ALICE, &["-U", "-r"], true),
                (nobody, nobody, &[], true),
                (0, ALICE, &[], true),
            ] {
                let _service = listen(listens);
                let ran = status(uid, options);
                let case = format!("of {listens} for {uid} {options:?}: {ran:?}");
                assert!(ran.stdout.contains("Perfetto's service: none at "), "{case}");
                assert_eq!(!ran.stdout.contains("it runs as user"), is_trusted, "{case}");
                fs::remove_file(&socket).unwrap();
            }
            // A property store of an unmapped user is not trusted either, and none is created for the id of unmapped
            // users.
            let ran = common::end_of(unshared(ALICE, &["-U"]).spawn().unwrap());
            assert!(ran.stderr.contains("every user whom this namespace of users does not map"), "{ran:?}");
            assert!(!store(nobody).parent().unwrap().exists());
            assert!(common::end_of(unshared(nobody, &[]).spawn().unwrap()).status.success());
            assert_eq!(fs::metadata(store(nobody)).unwrap().uid(), nobody);
        });
        if is_root(&name) {
            apart(&name);
        }
    }

    /// Tests a service that runs as a special user, as a distribution may configure it, in a directory that only root
    /// could have given to that user.
    #[test]
    fn the_owner_of_the_services_directory_is_trusted_if_only_root_chose_it() {
        const TRACED: u32 = 64_010;
        let name = case!({
            if is_program() {
                perfetto::connect();
                let connection_state = || perfetto::status().to_string();
                until("the producer has tried to connect", || !connection_state().contains("connecting"));
                println!("{}", connection_state());
                std::process::exit(0);
            }
            let own_name = std::env::var("ATRACE_TEST_CASE").unwrap(); // The programs inherit this variable.
            let (command, program) = ("/run/command", "/run/program");
            common::copy_program(COMMAND, command);
            common::copy_program(std::env::current_exe().unwrap(), program);
            let mounted =
                Command::new("mount").args(["-t", "tmpfs", "-o", "mode=1777", "none", "/tmp"]).status();
            assert!(mounted.unwrap().success());
            let change = |path: &str, uid, mode| {
                chown(path, Some(uid), Some(uid)).unwrap();
                fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
            };
            // Root binds the sockets, because the listening user may not be allowed to.
            let listen = |uid, consumers: &str, producers: &str| {
                let listeners = [consumers, producers].map(|path| {
                    let _ = fs::remove_file(path);
                    let listener = UnixListener::bind(path).unwrap();
                    change(path, uid, 0o777);
                    listener
                });
                Attacker::start(uid, move |ready| {
                    for listener in &listeners {
                        // SAFETY: the socket is open. From now on, the kernel names this user as the peer of each
                        // connection.
                        assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 128) }, 0);
                    }
                    ready();
                    std::thread::scope(|scope| {
                        for listener in &listeners {
                            scope.spawn(|| listener.incoming().for_each(drop));
                        }
                    });
                })
            };
            let run = |command: &mut Command, uid| {
                command.uid(uid).gid(uid).current_dir("/");
                command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
                common::end_of(command.spawn().unwrap())
            };
            let check = |case: &str, uid: u32, is_trusted: bool| {
                let ran = run(Command::new(command).arg("status").env_remove("ATRACE_TEST_CASE"), uid);
                assert!(ran.stdout.contains("Perfetto's service: none at "), "{case}: {ran:?}");
                assert_eq!(!ran.stdout.contains("it runs as user"), is_trusted, "{case}: {ran:?}");
                let mut producer = Command::new(program);
                producer.args([&own_name, "--exact", "--nocapture"]);
                producer.env("ROLE", "program").env("ATRACE_BACKEND", "perfetto");
                let ran = run(&mut producer, uid);
                assert!(
                    ran.status.success() && ran.stdout.contains("Perfetto's service: "),
                    "{case}: {ran:?}"
                );
                assert_eq!(!ran.stdout.contains("it runs as user"), is_trusted, "{case}: {ran:?}");
            };
            let place = "/run/perfetto";
            let sockets = ["/run/perfetto/traced-consumer.sock", "/run/perfetto/traced-producer.sock"];
            for (run_owner, run_mode, owner, mode, listens, is_trusted) in [
                (0, 0o755, TRACED, 0o755, TRACED, true),
                // The listening user is not the owner of the directory.
                (0, 0o755, TRACED, 0o755, MALLORY, false),
                (0, 0o755, 0, 0o755, TRACED, false),
                // Users other than root could have put the directory there, or could have mounted their own directory
                // over it.
                (0, 0o1777, TRACED, 0o755, TRACED, false),
                (0, 0o775, TRACED, 0o755, TRACED, false),
                (TRACED, 0o755, TRACED, 0o755, TRACED, false),
                (0, 0o755, TRACED, 0o777, TRACED, false),
                (0, 0o755, TRACED, 0o775, TRACED, false),
            ] {
                let case = format!("{run_owner} {run_mode:o}, {owner} {mode:o}, {listens}");
                fs::create_dir(place).unwrap();
                change(place, owner, mode);
                change("/run", run_owner, run_mode);
                let _service = listen(listens, sockets[0], sockets[1]);
                for uid in [ALICE, 0] {
                    check(&case, uid, is_trusted);
                }
                fs::remove_dir_all(place).unwrap();
            }
            change("/run", 0, 0o755);
            // A symbolic link is not trusted, although root created it.
            fs::create_dir("/run/elsewhere").unwrap();
            change("/run/elsewhere", TRACED, 0o755);
            std::os::unix::fs::symlink("elsewhere", place).unwrap();
            let service = listen(TRACED, sockets[0], sockets[1]);
            check("a link", ALICE, false);
            drop(service);
            fs::remove_file(place).unwrap();
            // Every user can listen at a socket in `/tmp`, so a service there is not trusted.
            let _service = listen(TRACED, "/tmp/perfetto-consumer", "/tmp/perfetto-producer");
            check("in /tmp", ALICE, false);
        });
        if is_root(&name) {
            apart(&name);
        }
    }

    /// Tests a user who has more processes than the command asks for their states. The processes of other users must
    /// still be shown.
    #[test]
    fn a_user_of_many_processes_hides_no_other_user() {
        // The command asks fewer processes, so the test does not depend on its speed.
        const MANY: usize = 1500;
        let name = case!({
            let here = Here::new();
            let publish_connection_state = || {
                let pid = std::process::id();
                publish(&format!(
                    "version 0.1.0\npid {pid}\nperfetto Perfetto's service: connected, of {pid}\n"
                ));
            };
            let mallory = Attacker::start(MALLORY, |ready| {
                let many = open(Path::new("/dev/null"), libc::O_RDONLY);
                // SAFETY: the descriptor is open. `dup` has no other preconditions.
                (0..500).for_each(|_| assert!(unsafe { libc::dup(many) } > 0));
                let (mut told, mut tell) = std::io::pipe().unwrap();
                for _ in 0..MANY {
                    // SAFETY: the child publishes a state, and sleeps until it is killed at the end of this process.
                    let child = unsafe { libc::fork() };
                    assert!(child >= 0, "the limit of processes is too low");
                    if child == 0 {
                        // SAFETY: the arguments are numbers.
                        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
                        publish_connection_state();
                        tell.write_all(b".").unwrap();
                        std::thread::sleep(Duration::from_secs(1000));
                    }
                }
                told.read_exact(&mut [0; MANY]).unwrap();
                ready();
            });
            let alice = Attacker::start(ALICE, |ready| {
                publish_connection_state();
                ready();
            });
            let line = format!(": connected, of {}\n", alice.number());
            // On a busy machine, the second that the command spends on ALICE may be too short in one run. The processes
            // of another user never use up ALICE's second.
            until("hers is told", || {
                let ran = here.atrace(&["status"]);
                assert!(ran.status.success(), "{ran:?}");
                let unasked = format!("(not all processes of user {MALLORY} were asked");
                ran.stdout.contains(&line) && ran.stdout.contains(&unasked)
            });
            // ALICE sees her own processes without the rights of root.
            until("she is told", || here.atrace_of(ALICE, &["status"]).stdout.contains(&line));
            drop(mallory);
        });
        if is_root(&name) {
            apart_alone(&name);
        }
    }

    fn name_of_case() -> String {
        std::env::var("ATRACE_TEST_CASE").unwrap()
    }

    #[test]
    fn a_store_that_is_cut_short_ends_no_recording() {
        let name = case!({
            let here = Here::new();
            for uid in [MALLORY, ALICE] {
                assert!(here.atrace_of(uid, &["status"]).status.success());
            }
            let record = Recording::start_for_all(
                &here,
                &["record", "-t", "1h", "-a", "*/some-program", "--wait", "-o", "out"],
                || {
                    [0, ALICE, MALLORY].iter().all(|&uid| {
                        fs::read(store(uid))
                            .is_ok_and(|bytes| bytes.windows(14).any(|it| it == b"*/some-program"))
                    })
                },
            );
            OpenOptions::new().write(true).open(store(MALLORY)).unwrap().set_len(0).unwrap();
            let ran = record.stop();
            assert_eq!(ran.status.signal(), None, "{ran:?}");
            assert!(ran.status.success() && ran.stderr.contains("saved out"), "{ran:?}");
            assert!(ran.stderr.contains(&format!("user {MALLORY}: ")), "{ran:?}");
            assert_eq!((patterns(0), patterns(ALICE)), (vec![], vec![]));
            // The truncated store does not end a command that only reads stores. The command still shows the other
            // users.
            let ran = here.atrace(&["status"]);
            assert!(ran.status.success() && ran.stdout.contains(&format!("user {ALICE}")), "{ran:?}");
            assert!(ran.stderr.contains(&format!("user {MALLORY}: ")), "{ran:?}");
        });
        if is_root(&name) {
            apart(&name);
        }
    }

    /// Tests a program that damages the store that `run` has created for it. The store belongs to the program's user.
    #[test]
    fn a_program_that_harms_its_store_ends_no_run() {
        let name = case!({
            let here = Here::new();
            let harms = [
                ": > \"$ATRACE_PROPERTIES\"",
                "rm -r \"${ATRACE_PROPERTIES%/*}\"",
                "d=${ATRACE_PROPERTIES%/*}; rm -r $d; ln -s $PWD/canaries $d",
                "rm \"$ATRACE_PROPERTIES\"; mkfifo \"$ATRACE_PROPERTIES\"",
                "exec 9<\"$ATRACE_PROPERTIES\"; flock -x 9; sleep 3 >/dev/null 2>&1 &",
            ];
            let mut held = 0;
            for harm in harms {
                let mut run =
                    here.command(&["run", "--kernel", "-f", "-o", "out", "--", "/bin/sh", "-c", harm]);
                run.env("SUDO_UID", MALLORY.to_string()).env("SUDO_GID", MALLORY.to_string());
                let ran = common::end_of(run.spawn().unwrap());
                assert_eq!(ran.status.code(), Some(0), "{harm}: {ran:?}");
                assert!(ran.stderr.contains("saved out"), "{harm}: {ran:?}");
                here.is_unharmed();
                held = ran.pid;
                // Everything that `run` created is removed, except for files that the user put in its place. This
                // happens at the end of the run or, if a busy machine leaves no time, in the next run.
                let own = format!("atrace-run-{}-", ran.pid);
                let is_left = || {
                    fs::read_dir("/dev/shm").unwrap().flatten().any(|entry| {
                        entry.file_name().to_str().unwrap().starts_with(&own)
                            && entry.file_type().is_ok_and(|kind| kind.is_dir())
                    })
                };
                until("its directory is gone", || {
                    if is_left() {
                        let mut run = here.command(&["run", "-f", "-o", "out", "--", "true"]);
                        run.env("SUDO_UID", MALLORY.to_string()).env("SUDO_GID", MALLORY.to_string());
                        common::end_of(run.spawn().unwrap());
                    }
                    !is_left()
                });
            }
            // A later recording removes the tracefs instance that the last program held open.
            let instances = tracefs::root().unwrap().join("instances");
            until("nothing is held any more", || {
                let ran = here.atrace(&["run", "--kernel", "-f", "-o", "out", "--", "true"]);
                assert!(ran.status.success(), "{ran:?}");
                let left = fs::read_dir(&instances).unwrap().flatten();
                let is_ours = |name: &str| name.starts_with(&format!("atrace-recording-{held}-"));
                !left.into_iter().any(|entry| entry.file_name().to_str().is_some_and(is_ours))
            });
            here.is_unharmed();
        });
        if is_root(&name) {
            apart(&name);
        }
    }

    /// Checks that the command changes the stores of other users, whatever the attacker did to the attacker's own
    /// store, and that the command reports its failure to change the attacker's store.
    fn others_go_on(here: &Here, what: &str) {
        // On a busy machine, the command's work for ALICE may exceed its limit of one second. Then the command runs
        // again.
        let atrace = |args: &[&str]| {
            let late = format!("user {ALICE}: ");
            let mut runs = std::iter::repeat_with(|| here.atrace(args)).take(100);
            runs.find(|ran| !ran.stderr.contains(&late)).unwrap_or_else(|| panic!("{what}: {late}"))
        };
        let ran = atrace(&["on", "one-program"]);
        assert!(ran.status.success(), "{what}: {ran:?}");
        assert!(ran.stderr.contains(&format!("user {MALLORY}: ")), "{what}: {ran:?}");
        assert_eq!((patterns(0), patterns(ALICE)), (vec!["one-program".into()], vec!["one-program".into()]));
        let ran = atrace(&["off", "one-program"]);
        // If the command was repeated because it was late, the earlier attempt may have succeeded after all.
        assert!(ran.status.success() || ran.stderr.contains("is not switched on"), "{what}: {ran:?}");
        assert_eq!((patterns(0), patterns(ALICE)), (vec![], vec![]), "{what}");
        let ran = atrace(&["record", "-t", "100ms", "-a", "other-program", "--wait", "-f", "-o", "out"]);
        assert!(ran.status.success() && ran.stderr.contains("saved out"), "{what}: {ran:?}");
        assert_eq!((patterns(0), patterns(ALICE)), (vec![], vec![]), "{what}");
        let ran = atrace(&["status"]);
        assert!(ran.status.success() && ran.stdout.contains(&format!("user {ALICE}")), "{what}: {ran:?}");
    }

    #[test]
    fn a_store_that_is_locked_or_full_holds_nobody_up() {
        let name = case!({
            let here = Here::new();
            assert!(here.atrace_of(ALICE, &["status"]).status.success());
            let mallory = Attacker::start(MALLORY, |ready| {
                Properties::open_uid(MALLORY).unwrap();
                let fd = open(&store(MALLORY), libc::O_RDWR);
                // SAFETY: the descriptor is open.
                assert_eq!(unsafe { libc::flock(fd, libc::LOCK_EX) }, 0);
                ready();
            });
            others_go_on(&here, "locked");
            drop(mallory);
            let _mallory = Attacker::start(MALLORY, |ready| {
                let properties = Properties::open_uid(MALLORY).unwrap();
                for number in 0.. {
                    if properties.set(&format!("mallory.{number}"), "x").is_err() {
                        break;
                    }
                }
                ready();
            });
            others_go_on(&here, "full");
        });
        if is_root(&name) {
            apart(&name);
        }
    }

    #[test]
    fn what_is_planted_in_place_of_a_store_is_left_alone() {
        let name = case!({
            let here = Here::new();
            assert!(here.atrace_of(ALICE, &["status"]).status.success());
            for what in ["a FIFO", "a link", "a directory", "random bytes"] {
                let plant = |path: &Path| match what {
                    "a FIFO" => make_fifo(path),
                    "a link" => std::os::unix::fs::symlink(here.canary("properties"), path).unwrap(),
                    "a directory" => fs::create_dir(path).unwrap(),
                    _ => fs::write(path, vec![0x5a; 98_368]).unwrap(),
                };
                let mallory = Attacker::start(MALLORY, |ready| {
                    let directory = store(MALLORY).parent().unwrap().to_owned();
                    let _ = fs::remove_dir_all(&directory);
                    fs::create_dir(&directory).unwrap();
                    fs::set_permissions(&directory, Permissions::from_mode(0o700)).unwrap();
                    plant(&store(MALLORY));
                    ready();
                });
                others_go_on(&here, what);
                here.is_unharmed();
                drop(mallory);
            }
            // A link has replaced the store's directory.
            let _mallory = Attacker::start(MALLORY, |ready| {
                let directory = store(MALLORY).parent().unwrap().to_owned();
                fs::remove_dir_all(&directory).unwrap();
                std::os::unix::fs::symlink(here.path("canaries"), &directory).unwrap();
                ready();
            });
            others_go_on(&here, "a link to a directory");
            here.is_unharmed();
        });
        if is_root(&name) {
            apart(&name);
        }
    }

    /// Tests an attacker that creates the folder of root's own store. Root must not use the folder or a file in it.
    #[test]
    fn the_place_of_roots_own_store_can_be_taken() {
        let name = case!({
            let here = Here::new();
            assert!(here.atrace_of(ALICE, &["on", "hers"]).status.success());
            // This test program created the directory of root's store when it was loaded.
            let _ = fs::remove_dir_all(store(0).parent().unwrap());
            let _mallory = Attacker::start(MALLORY, |ready| {
                forge_note(store(0).parent().unwrap(), &here);
                ready();
            });
            let ran = here.atrace(&["record", "-t", "100ms", "-a", "other", "--wait", "-f", "-o", "out"]);
            assert!(ran.status.success() && ran.stderr.contains("user root (0): "), "{ran:?}");
            let ran = here.atrace(&["status"]);
            assert!(ran.status.success() && ran.stdout.contains("pattern hers\n"), "{ran:?}");
            assert_eq!(patterns(ALICE), ["hers"]);
        });
        if is_root(&name) {
            apart(&name);
        }
    }

    /// Creates a folder with a forged note, in which a recording would list what must be done if it is killed. The
    /// note's process has ended. The note claims that it has added Alice's pattern, and names a file to which its
    /// recording must be saved.
    fn forge_note(folder: &Path, here: &Here) {
        let hex = |text: &str| text.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        let path = |path: PathBuf| hex(path.to_str().unwrap());
        let (planted, alices) = (path(here.canary("planted")), path(store(ALICE)));
        let text = format!("{boot}output - - {planted}\n{ALICE} 0 {alices} {}\n", hex("hers"));
        fs::create_dir(folder).unwrap();
        fs::set_permissions(folder, Permissions::from_mode(0o700)).unwrap();
        fs::write(folder.join("recording-1-1"), text).unwrap();
    }

    #[test]
    fn the_folder_of_roots_notes_can_be_taken() {
        let name = case!({
            let here = Here::new();
            assert!(here.atrace_of(ALICE, &["on", "hers"]).status.success());
            let folder = Path::new("/run/atrace");
            let mallory = Attacker::start(MALLORY, |ready| {
                forge_note(folder, &here);
                ready();
            });
            let ran = here.atrace(&["status"]);
            assert!(ran.status.success() && ran.stderr.is_empty(), "{ran:?}");
            let ran = here.atrace(&["record", "-t", "100ms", "-a", "other", "--wait", "-f", "-o", "out"]);
            assert!(!ran.status.success() && ran.stderr.contains("is not this user's alone"), "{ran:?}");
            let ran = here.atrace(&["run", "--kernel", "-f", "-o", "out", "--", "true"]);
            assert!(ran.status.success(), "{ran:?}");
            assert_eq!(patterns(ALICE), ["hers"]);
            here.is_unharmed();
            drop(mallory);
            // The same note, written by root, is trusted: the pattern is switched off, and the note stays until the
            // next `run`.
            fs::remove_dir_all(folder).unwrap();
            forge_note(folder, &here);
            let ran = here.atrace(&["status"]);
            assert!(ran.stderr.contains("as recording 1 was killed: hers"), "{ran:?}");
            assert_eq!(patterns(ALICE), [""; 0]);
            assert!(here.atrace(&["status"]).stderr.is_empty());
            assert_eq!(fs::read_dir(folder).unwrap().count(), 1);
            let ran = here.atrace(&["run", "--kernel", "-f", "-o", "out", "--", "true"]);
            assert!(ran.status.success(), "{ran:?}");
            assert_eq!(fs::read_dir(folder).unwrap().count(), 0, "{ran:?}");
            here.is_unharmed();
        });
        if is_root(&name) {
            apart(&name);
        }
    }

    #[test]
    fn a_fifo_does_not_hold_the_doctor_up() {
        let name = case!({
            let here = Here::new();
            let mallory = Attacker::start(MALLORY, |ready| {
                Control::from(Properties::open_uid(MALLORY).unwrap()).enable("*").unwrap().keep();
                let fifo = store(MALLORY).with_file_name("fifo");
                make_fifo(&fifo);
                publish(&says(open(&fifo, libc::O_PATH), &store(MALLORY)));
                ready();
            });
            let ran = here.atrace(&["doctor", &mallory.pid()]);
            assert!(ran.status.code() == Some(1) && ran.stdout.contains("WRONG marker"), "{ran:?}");
            drop(mallory);
            // A FIFO with the name of the memory file of a published state, in a file system that only its creator can
            // see.
            let mallory = Attacker::start(MALLORY, |ready| {
                // SAFETY: the arguments are numbers and C strings.
                unsafe {
                    assert_eq!(libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS), 0);
                    let ids = format!("0 {MALLORY} 1");
                    for (file, text) in [("uid_map", &*ids), ("setgroups", "deny"), ("gid_map", &*ids)] {
                        fs::write(format!("/proc/self/{file}"), text).unwrap();
                    }
                    let (none, place) = (c"none".as_ptr(), c"/dev/shm".as_ptr());
                    assert_eq!(libc::mount(none, place, c"tmpfs".as_ptr(), 0, std::ptr::null()), 0);
                    let fifo = Path::new("/dev/shm/memfd:atrace-state (deleted)");
                    make_fifo(fifo);
                    open(fifo, libc::O_PATH);
                    assert_eq!(libc::umount2(place, libc::MNT_DETACH), 0);
                }
                ready();
            });
            // On a busy machine the doctor may get no answer in time.
            let mut all = (0..20).map(|_| here.atrace(&["doctor", &mallory.pid()]));
            let ran = all.find(|ran| !ran.stdout.contains("no answer in time")).expect("an answer in time");
            assert_eq!(ran.status.code(), Some(1), "{ran:?}");
        });
        if is_root(&name) {
            apart(&name);
        }
    }

    /// Tests that names and patterns of other users do no harm in the output: they contain no control sequence of a
    /// terminal, can't forge a line of the output, and are quoted in suggested shell commands.
    #[test]
    fn names_and_patterns_of_others_are_text() {
        let name = case!({
            if is_program() {
                return traces();
            }
            let here = Here::new();
            let argv0 = b"svc'; touch pwned #\x1bc\x07 \xe2\x80\xae".as_slice();
            let program = here.program(MALLORY, &name_of_case(), argv0);
            let mallory = Attacker::start(MALLORY, |ready| {
                let control = Control::from(Properties::open_uid(MALLORY).unwrap());
                control.enable("evil\x1b[2J\nok    event      an event written now arrived").unwrap().keep();
                ready();
            });
            let ran = here.atrace(&["doctor", &program.pid()]);
            is_plain(&ran);
            assert!(!ran.stdout.contains("\nok    event"), "{ran:?}");
            let advice = ran.stdout.lines().find(|line| line.contains("-> atrace on ")).expect(&ran.stdout);
            let advice = advice.split_once("-> atrace on ").unwrap().1;
            let script = format!("atrace() {{ printf %s \"$2\"; }}; atrace on {advice}");
            let pasted =
                Command::new("bash").args(["-c", &script]).current_dir(here.path("")).output().unwrap();
            assert!(!here.path("pwned").exists(), "{advice}");
            assert_eq!(pasted.stdout, argv0, "{advice}");
            for args in [&["status"][..], &["on", "*svc*"], &["off", "nothing"], &["status"]] {
                let ran = here.atrace(args);
                is_plain(&ran);
                assert!(!ran.stdout.contains("\nok    event"), "{ran:?}");
            }
            let ran = here.atrace(&["record", "-t", "100ms", "-a", "*svc*", "-f", "-o", "out"]);
            assert!(ran.status.success(), "{ran:?}");
            is_plain(&ran);
            let ran = here.atrace(&["record", "-t", "100ms", "-a", "vc", "-f", "-o", "out"]);
            assert!(ran.stderr.contains("no running process matches vc"), "{ran:?}");
            is_plain(&ran);
            drop(mallory);
        });
        if is_root(&name) {
            apart(&name);
        }
    }

    /// Tests an ordinary user who switches on a program that only another user runs.
    #[test]
    fn a_program_of_another_user_matches_and_is_not_switched_on() {
        let name = case!({
            if is_program() {
                return traces();
            }
            let here = Here::new();
            let mallory = here.program(MALLORY, &name_of_case(), b"mallorys-program");
            let ran = here.atrace_of(ALICE, &["on", "mallorys-program"]);
            assert!(ran.status.success() && !ran.stdout.contains("on: "), "{ran:?}");
            assert!(ran.stderr.contains("only root can switch programs of other users"), "{ran:?}");
            assert!(!ran.stderr.contains("no running process matches"), "{ran:?}");
            drop(mallory);
        });
        if is_root(&name) {
            apart(&name);
        }
    }

    #[test]
    fn what_a_killed_recording_switched_on_is_taken_away() {
        let name = case!({
            let here = Here::new();
            assert!(here.atrace_of(ALICE, &["status"]).status.success());
            let is_on = |uid| patterns(uid).contains(&"*/recorded".to_owned());
            let ways = [
                &["status"][..],
                &["on", "*/another"],
                &["off", "*/another"],
                &["record", "-t", "50ms", "-c", "sched", "-o", "out", "-f"],
            ];
            for next in ways {
                let record = Recording::start_for_all(
                    &here,
                    &["record", "-a", "*/recorded", "--wait", "-f", "-o", "out"],
                    || store(0).exists() && is_on(0) && is_on(ALICE),
                );
                let ran = here.atrace(&["status"]);
                let told = format!("because recording {} runs", record.pid());
                assert!(ran.stdout.contains(&told) && is_on(ALICE), "{ran:?}");
                drop(record);
                assert!(is_on(0) && is_on(ALICE));
                let ran = here.atrace(next);
                assert!(ran.status.success(), "{ran:?}");
                assert!(ran.stderr.contains("*/recorded") && ran.stderr.contains("recording"), "{ran:?}");
                for uid in [0, ALICE] {
                    assert!(!patterns(uid).contains(&"*/recorded".to_owned()), "{next:?}: {ran:?}");
                }
                let again = here.atrace(&["status"]);
                assert!(!again.stderr.contains("*/recorded"), "said twice: {again:?}");
            }
        });
        if is_root(&name) {
            apart(&name);
        }
    }

    /// Tests that patterns of a running recording are not removed by a command in a separate PID namespace, in which
    /// the recording process does not exist.
    #[test]
    fn what_a_recording_switched_on_stays_while_it_lives() {
        let name = case!({
            let here = Here::new();
            let record = Recording::start(&here, &["record", "-a", "*/living", "--wait", "-f", "-o", "out"]);
            until("it is switched on", || store(0).exists() && patterns(0) == ["*/living"]);
            let mut status = Command::new("unshare");
            status.args(["-pf", "--mount-proc"]).arg(here.path("atrace")).arg("status");
            status.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let ran = common::end_of(status.env_remove("ATRACE_TEST_CASE").spawn().unwrap());
            assert!(ran.status.success() && !ran.stderr.contains("was killed"), "{ran:?}");
            assert_eq!(patterns(0), ["*/living"], "{ran:?}");
            drop(record);
            let ran = here.atrace(&["status"]);
            assert!(ran.stderr.contains("was killed"), "{ran:?}");
            assert_eq!(patterns(0), [""; 0]);
        });
        if is_root(&name) {
            apart(&name);
        }
    }

    /// Tests that only the patterns of a killed recording are removed. Patterns that were on before the recording, or
    /// were switched on during the recording, stay on.
    #[test]
    fn only_what_a_killed_recording_switched_on_is_taken_away() {
        let name = case!({
            let here = Here::new();
            assert!(here.atrace_of(ALICE, &["on", "*/both"]).status.success());
            let record = Recording::start_for_all(
                &here,
                &["record", "-a", "*/both", "-a", "*/later", "--wait", "-f", "-o", "out"],
                || patterns(ALICE).len() == 3,
            );
            assert!(here.atrace(&["on", "*/later"]).status.success());
            drop(record);
            let ran = here.atrace(&["status"]);
            assert!(ran.status.success(), "{ran:?}");
            assert_eq!(patterns(ALICE), ["*/both", "*/later"]);
            assert_eq!(patterns(0), ["*/later"]);
        });
        if is_root(&name) {
            apart(&name);
        }
    }

    /// Tests a user whose store is locked while a command switches off the pattern that a killed recording has left on.
    /// A later command switches the pattern off in this store only.
    #[test]
    fn what_could_not_be_switched_off_is_tried_again() {
        let name = case!({
            let here = Here::new();
            assert!(here.atrace_of(ALICE, &["status"]).status.success());
            drop(Recording::start_for_all(
                &here,
                &["record", "-a", "*/kept", "--wait", "-f", "-o", "out"],
                || store(0).exists() && [0, ALICE].iter().all(|uid| patterns(*uid) == ["*/kept"]),
            ));
            let lock = open(&store(ALICE), libc::O_RDWR);
            // SAFETY: the descriptor is open.
            assert_eq!(unsafe { libc::flock(lock, libc::LOCK_EX) }, 0);
            let ran = here.atrace(&["status"]);
            assert!(ran.stderr.contains("not switched off again, user "), "{ran:?}");
            assert!(!ran.stderr.contains("switched off what was left on"), "{ran:?}");
            assert_eq!(patterns(0), [""; 0]);
            // Root switches on the same pattern, which must stay on.
            assert!(here.atrace(&["on", "*/kept"]).status.success());
            // SAFETY: the descriptor is open.
            assert_eq!(unsafe { libc::flock(lock, libc::LOCK_UN) }, 0);
            let ran = here.atrace(&["status"]);
            assert!(ran.stderr.contains("switched off what was left on"), "{ran:?}");
            assert_eq!((patterns(0), patterns(ALICE)), (vec!["*/kept".to_owned()], vec![]));
            assert_eq!(here.atrace(&["status"]).stderr, "");
        });
        if is_root(&name) {
            apart(&name);
        }
    }

    /// Tests a user whose process claims to be connected to the service of root's recording, although only root's
    /// processes can connect to that service. The recording must still switch tracing on for the programs of all users.
    #[test]
    fn who_claims_to_be_connected_keeps_nobody_from_being_recorded() {
        let name = case!({
            let here = Here::new();
            assert!(here.atrace_of(ALICE, &["status"]).status.success());
            let _mallory = Attacker::start(MALLORY, |ready| {
                let pid = std::process::id();
                publish(&format!(
                    "version 0.1.0\npid {pid}\nperfetto Perfetto's service: connected, 1 sessions\n"
                ));
                ready();
            });
            let _alice = Attacker::start(ALICE, |ready| ready());
            let program = std::env::args().next().unwrap();
            drop(Recording::start_for_all(
                &here,
                &["record", "-c", "sched", "-a", &program, "-f", "-o", "out"],
                || [0, ALICE].iter().all(|uid| store(*uid).exists() && patterns(*uid).contains(&program)),
            ));
        });
        if is_root(&name) {
            apart(&name);
        }
    }

    /// Tests the doctor with a user who has more processes than the doctor can examine in the second that it spends on
    /// a user.
    #[test]
    fn the_doctor_spends_a_second_on_the_processes_of_a_user() {
        let name = case!({
            let here = Here::new();
            let mallory = Attacker::start(MALLORY, |ready| {
                // The more descriptors a process has, the longer the doctor takes to find the process's state.
                let many = open(Path::new("/dev/null"), libc::O_RDONLY);
                // SAFETY: the descriptor is open. `dup` has no other preconditions.
                (0..500).for_each(|_| assert!(unsafe { libc::dup(many) } > 0));
                for _ in 0..1500 {
                    // SAFETY: the child sleeps until its parent ends.
                    if unsafe { libc::fork() } == 0 {
                        // SAFETY: the arguments are numbers.
                        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
                        std::thread::sleep(Duration::from_secs(1000));
                    }
                }
                ready();
            });
            let alice = Attacker::start(ALICE, |ready| ready());
            let program = std::env::args().next().unwrap();
            let ran = here.atrace(&["doctor", &program]);
            let line = format!("more processes of user {MALLORY}, because the others took a second");
            assert!(ran.stdout.contains(&line), "{ran:?}");
            let is_told = |pid: u32| ran.stdout.contains(&format!("process {pid}, "));
            assert!(is_told(alice.number()) && is_told(std::process::id()), "{ran:?}");
            drop(mallory);
        });
        if is_root(&name) {
            apart_alone(&name);
        }
    }

    /// Tests a user who switches a pattern on after a recording has read the stores, and before the recording adds the
    /// same pattern. Then the recording is killed.
    #[test]
    fn what_was_switched_on_while_a_recording_began_stays() {
        let name = case!({
            let here = Here::new();
            assert!(here.atrace_of(ALICE, &["status"]).status.success());
            // The recording blocks when it reports that it has removed a file, because the pipe for its output is full.
            let mut gone = Command::new("true").spawn().unwrap();
            gone.wait().unwrap();
            let leftover = here.path(&format!(".out.{}.atrace", gone.id()));
            fs::write(&leftover, "").unwrap();
            let (mut said, mut say) = std::io::pipe().unwrap();
            // SAFETY: the descriptor is open; the other arguments are numbers.
            let size = unsafe { libc::fcntl(say.as_raw_fd(), libc::F_SETPIPE_SZ, 4096) };
            say.write_all(&vec![b' '; usize::try_from(size).unwrap()]).unwrap();
            let args = ["record", "-a", "*/meant", "--wait", "-f", "-o", "out"];
            let record = Recording(Some(here.command(&args).stderr(say).spawn().unwrap()));
            until("it has looked at the stores", || !leftover.exists());
            assert!(here.atrace_of(ALICE, &["on", "*/meant"]).status.success());
            let lock = open(&store(ALICE), libc::O_RDWR);
            // SAFETY: the descriptor is open.
            assert_eq!(unsafe { libc::flock(lock, libc::LOCK_EX) }, 0);
            let reader = std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
            until("it has written down what it switches on", || {
                let mut notes = fs::read_dir("/run/atrace").into_iter().flatten().flatten();
                notes.any(|note| fs::read_to_string(note.path()).is_ok_and(|text| text.lines().count() >= 4))
            });
            drop(record);
            reader.join().unwrap().unwrap();
            // SAFETY: the descriptor is open.
            assert_eq!(unsafe { libc::flock(lock, libc::LOCK_UN) }, 0);
            let ran = here.atrace(&["status"]);
            assert!(ran.stderr.contains("was killed: */meant"), "{ran:?}");
            assert_eq!(patterns(ALICE), ["*/meant"]);
        });
        if is_root(&name) {
            apart(&name);
        }
    }

    /// Makes one random attack of the storm on the user's own store.
    fn harm(uid: u32, chance: &mut Chance, canaries: &Path) {
        let (file, directory) = (store(uid), store(uid).parent().unwrap().to_owned());
        let fresh = || {
            let _ = fs::remove_file(&directory);
            let _ = fs::remove_dir_all(&directory);
            let _ = fs::create_dir(&directory);
            let _ = fs::set_permissions(&directory, Permissions::from_mode(0o700));
        };
        let healthy = || {
            fresh();
            Properties::open_uid(uid).map(Control::from).ok()
        };
        match chance.below(11) {
            0 | 1 => {
                healthy();
                for _ in 0..200 {
                    if let Ok(file) = OpenOptions::new().write(true).open(&file) {
                        let _ = file.set_len(0);
                        let _ = file.set_len(98_368);
                    }
                }
            }
            2 => {
                healthy();
                if let Ok(file) = File::open(&file) {
                    // SAFETY: the descriptor is open. The lock ends when the descriptor is closed.
                    unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) };
                    std::thread::sleep(Duration::from_millis(chance.below(3000) as u64));
                }
            }
            3 => {
                fresh();
                // `mkfifo` fails if root's command has created the file in the meantime.
                let _ = Command::new("mkfifo").arg(&file).stderr(Stdio::null()).status();
            }
            4 => {
                fresh();
                let _ = std::os::unix::fs::symlink(canaries.join("properties"), &file);
            }
            5 => {
                fresh();
                let _ = fs::create_dir(&file);
            }
            6 => {
                let _ = fs::remove_dir_all(&directory);
                let _ = std::os::unix::fs::symlink(canaries, &directory);
            }
            7 => {
                if let Some(control) = healthy() {
                    while let Ok(switched) = control.enable("x\x1b[2J\ny") {
                        switched.keep();
                    }
                }
            }
            8 => {
                healthy();
                if let Ok(file) = OpenOptions::new().write(true).open(&file) {
                    for _ in 0..200 {
                        let _ = file.write_all_at(&chance.next().to_ne_bytes(), chance.below(98_360) as u64);
                    }
                }
            }
            // Signals all processes of this user. These include the children of root's command that work with the
            // user's rights.
            9 => {
                let signal = [libc::SIGSTOP, libc::SIGKILL][chance.below(2)];
                for _ in 0..100 {
                    // SAFETY: the signal goes to all processes that this user may signal, except this one.
                    unsafe { libc::kill(-1, signal) };
                    std::thread::sleep(Duration::from_micros(200));
                }
            }
            _ => fresh(),
        }
        std::thread::sleep(Duration::from_millis(chance.below(5) as u64));
    }

    /// Makes one random attack of a process that publishes a false state of its tracing: the text is wrong or names a
    /// wrong descriptor.
    fn lie(chance: &mut Chance, canaries: &Path) {
        let victims = [canaries.join("secret"), canaries.join("readable"), "/dev/shm/trudy-fifo".into()];
        let _ = fs::remove_file(&victims[2]);
        make_fifo(&victims[2]);
        common::close_all();
        let marker = open(&victims[chance.below(3)], libc::O_PATH);
        let planted = canaries.join("planted");
        let mut lines = says(marker, if chance.below(2) == 0 { &planted } else { &victims[2] });
        if chance.below(3) == 0 {
            lines = (0..3000).map(|_| char::from(chance.below(127) as u8 + 1)).collect();
        }
        let fd = if chance.below(2) == 0 { publish(&lines) } else { publish_unsealed(&lines) };
        // SAFETY: the descriptor was just created.
        let file = std::mem::ManuallyDrop::new(unsafe { File::from_raw_fd(fd) });
        for _ in 0..chance.below(200) {
            let _ = file.set_len([0, 10, 4095, 1 << 30][chance.below(4)]);
            let _ = file.write_all_at(&lines.as_bytes()[..8], 0);
        }
        std::thread::sleep(Duration::from_millis(chance.below(20) as u64));
    }

    #[test]
    fn a_storm_of_harm_touches_nothing() {
        let name = case!({
            let here = Here::new();
            assert!(here.atrace_of(ALICE, &["status"]).status.success());
            let canaries = here.path("canaries");
            let forever = |ready: &dyn Fn(), mut step: Box<dyn FnMut()>| {
                ready();
                loop {
                    step();
                }
            };
            let mut mallories = STORM.map(|uid| {
                Attacker::start(uid, |ready| {
                    let (mut chance, canaries) = (Chance(u64::from(uid)), canaries.clone());
                    forever(ready, Box::new(move || harm(uid, &mut chance, &canaries)));
                })
            });
            let mut trudy = Attacker::start(TRUDY, |ready| {
                Control::from(Properties::open_uid(TRUDY).unwrap()).enable("*").unwrap().keep();
                let (mut chance, canaries) = (Chance(7), canaries.clone());
                forever(ready, Box::new(move || lie(&mut chance, &canaries)));
            });
            let long = std::env::var_os("ATRACE_LONG_TESTS").is_some();
            let time = Duration::from_secs(if long { 60 } else { 3 });
            let pid = trudy.pid();
            let commands = [
                &["status"][..],
                &["record", "-t", "20ms", "-a", "storm", "--wait", "-f", "-o", "out"],
                &["doctor", &pid],
                &["on", "storm-too"],
                &["off", "storm-too"],
            ];
            let (start, mut count, mut longest) = (Instant::now(), 0, (Duration::ZERO, ""));
            while start.elapsed() < time {
                for args in commands {
                    let before = Instant::now();
                    let ran = here.atrace(args);
                    longest = longest.max((before.elapsed(), args[0]));
                    count += 1;
                    assert_eq!(ran.status.signal(), None, "{args:?}: {ran:?}");
                    let may_fail = match args[0] {
                        "doctor" => true,
                        // If the command was repeated because it was late, the earlier attempt may have succeeded after
                        // all.
                        "off" => ran.stderr.contains("\"storm-too\" is not switched on"),
                        _ => false,
                    };
                    assert!(
                        ran.status.success() || may_fail && ran.status.code() == Some(1),
                        "{args:?}: {ran:?}"
                    );
                    is_plain(&ran);
                    here.is_unharmed();
                }
            }
            assert_eq!((patterns(0), patterns(ALICE)), (vec![], vec![]));
            assert!(mallories.iter_mut().chain([&mut trudy]).all(Attacker::attacks));
            eprintln!("storm: {count} commands, the longest {} in {:?}", longest.1, longest.0);
        });
        if is_root(&name) {
            apart(&name);
        }
    }

    /// Tests that root does not examine programs that hide their memory from their own user, or that have more rights
    /// than their user.
    #[test]
    fn a_process_that_hides_from_its_user_is_not_looked_into() {
        let name = case!({
            let here = Here::new();
            let mallory = Attacker::start(MALLORY, |ready| {
                Control::from(Properties::open_uid(MALLORY).unwrap()).enable("*").unwrap().keep();
                publish(&says(open(&here.canary("secret"), libc::O_PATH), &here.canary("planted")));
                // The process's files in /proc now belong to root.
                // SAFETY: the arguments are numbers.
                unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0) };
                ready();
            });
            assert_eq!(fs::metadata(format!("/proc/{}/status", mallory.pid())).unwrap().uid(), 0);
            let ran = here.atrace(&["doctor", &mallory.pid()]);
            assert!(ran.status.code() == Some(1) && ran.stdout.contains("WRONG state"), "{ran:?}");
            here.is_unharmed();
            let report = examine(mallory.number());
            assert!(report.wrong().any(|it| it.topic == Topic::State), "{report}");
            here.is_unharmed();
        });
        if is_root(&name) {
            apart(&name);
        }
    }
}
