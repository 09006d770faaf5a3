//! A directory in which the command is run, and the files and buffers that the command leaves behind.

#![allow(dead_code, unreachable_pub, reason = "each test program uses a part of this")]
#![allow(unsafe_code, reason = "processes are signalled as a C program would")]

use std::fs;
use std::io::{BufRead as _, BufReader, Lines};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};

use atrace_cli::tracefs;

use crate::common::{self, Ran};

pub const COMMAND: &str = env!("CARGO_BIN_EXE_atrace");
/// The user id of `nobody`.
pub const USER: u32 = 65534;

/// Runs the command to its end. Once the command has written `text` to stderr, creates the file `said`, for which the
/// recorded program waits.
pub fn ended_when_told(command: &mut Command, text: &str, said: &Path) -> Ran {
    let mut child = command.spawn().unwrap();
    let mut stderr = String::new();
    for line in BufReader::new(child.stderr.take().unwrap()).lines() {
        stderr += &format!("{}\n", line.unwrap());
        if stderr.contains(text) {
            fs::write(said, "").unwrap();
        }
    }
    Ran { stderr, ..common::end_of(child) }
}

/// The message of the command when it stops recording a program that still runs.
pub const OVER: &str = "no more is recorded; the program goes on";

/// A directory that every user may enter. It contains the command and this test program.
pub struct Here(pub tempfile::TempDir);

impl Here {
    pub fn new() -> Self {
        let here = Self(tempfile::Builder::new().prefix("atrace-command").tempdir().unwrap());
        fs::set_permissions(here.0.path(), fs::Permissions::from_mode(0o755)).unwrap();
        here.take_in(COMMAND.as_ref(), "atrace");
        here.take_in(&std::env::current_exe().unwrap(), "program");
        here
    }

    /// Gives the program a name in this directory, by a hard link. The program is copied only if no hard link can be
    /// made, such as from another file system.
    fn take_in(&self, program: &Path, name: &str) {
        if fs::hard_link(program, self.path(name)).is_err() {
            common::copy_program(program, self.path(name));
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Returns the command `atrace`, which is not started yet. The command runs this test program, and the command's
    /// environment makes the test program do the work of the test case `case`.
    pub fn atrace(&self, case: &str) -> Command {
        self.cleared(&self.path("atrace"), case)
    }

    pub fn cleared(&self, program: &Path, case: &str) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"ATRACE_")
                || name.as_encoded_bytes().starts_with(b"SUDO_")
            {
                command.env_remove(name);
            }
        }
        command.env("ATRACE_TEST_CASE", case).current_dir(self.0.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        with_usual_signals(&mut command);
        command
    }

    /// Returns the command `atrace run --kernel -o out … -- program case`.
    pub fn run(&self, case: &str, options: &[&str]) -> Command {
        self.run_to("out", case, options)
    }

    pub fn run_to(&self, output: &str, case: &str, options: &[&str]) -> Command {
        let mut command = self.atrace(case);
        command.args(["run", "--kernel", "-o", output]).args(options).arg("--").arg(self.path("program"));
        command.args([case, "--exact", "--nocapture", "--test-threads=1"]);
        command
    }

    /// Returns the command that runs this script in a separate mount namespace.
    pub fn apart(&self, script: &str) -> Command {
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", script]).current_dir(self.0.path());
        command.env_remove("SUDO_UID").env_remove("ATRACE_PROPERTIES");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        with_usual_signals(&mut command);
        command
    }

    pub fn saved(&self) -> String {
        fs::read_to_string(self.path("out")).unwrap()
    }

    /// Returns the names of the files in the directory, except for the two programs.
    pub fn files(&self) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(self.0.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name != "atrace" && name != "program")
            .collect();
        names.sort();
        names
    }
}

pub fn end(command: &mut Command) -> Ran {
    common::end_of(command.spawn().unwrap())
}

/// A running command `atrace record`, and the text that it has written to stderr so far.
pub struct Recording {
    pub child: Child,
    lines: Lines<BufReader<ChildStderr>>,
    said: String,
}

impl Recording {
    /// Starts the command, and waits until it records.
    pub fn start(record: &mut Command) -> Self {
        let mut child = record.spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut said = String::new();
        while !said.contains("; Ctrl-C ends it and saves") {
            let line = lines.next().unwrap_or_else(|| panic!("{said}")).unwrap();
            said += &format!("{line}\n");
        }
        Self { child, lines, said }
    }

    /// Ends the recording by a signal, as Ctrl-C does.
    pub fn stop(mut self) -> Ran {
        signal(&self.child, libc::SIGINT);
        self.lines.for_each(|line| self.said += &format!("{}\n", line.unwrap()));
        let ran = Ran { stderr: self.said, ..common::end_of(self.child) };
        assert!(ran.status.success(), "{ran:?}");
        ran
    }
}

/// Resets the signals that ask a program to end: the started program must not ignore these signals, even if this
/// process ignores them, as under `nohup`.
pub fn with_usual_signals(command: &mut Command) {
    let reset = || {
        for number in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM] {
            // SAFETY: `SIG_DFL` is valid, and no handler function is installed.
            unsafe { libc::signal(number, libc::SIG_DFL) };
        }
        Ok(())
    };
    // SAFETY: `signal` may be called between fork and exec.
    unsafe { command.pre_exec(reset) };
}

/// Makes the command run under a system call filter that answers `memfd_create` as a kernel before 3.17 does.
#[cfg(target_os = "linux")]
pub fn without_memory_files(command: &mut Command) -> &mut Command {
    refusing(command, libc::SYS_memfd_create, libc::ENOSYS)
}

/// Makes the command run under a system call filter that answers a system call with an error.
#[cfg(target_os = "linux")]
pub fn refusing(command: &mut Command, call: libc::c_long, errno: i32) -> &mut Command {
    let op = |code: u32, k: u32, jf: u8| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    let filter = [
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, call as u32, 1),
        op(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | errno.cast_unsigned(), 0),
        op(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0),
    ];
    // SAFETY: `prctl` may be called between fork and exec. The filter lives as long as the closure.
    unsafe {
        command.pre_exec(move || {
            let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
            let done = libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0;
            if done { Ok(()) } else { Err(std::io::Error::last_os_error()) }
        })
    }
}

pub fn signal(child: &Child, number: i32) {
    // SAFETY: the process is a child that was not waited for.
    assert_eq!(unsafe { libc::kill(i32::try_from(child.id()).unwrap(), number) }, 0);
}

/// Returns the tracefs instances and the directories in `/dev/shm` that the command with the process id `pid` created
/// and did not remove.
pub fn left_by(pid: u32) -> Vec<PathBuf> {
    let instances = tracefs::root().unwrap().join("instances");
    let entries = [instances, "/dev/shm".into()].into_iter().flat_map(|path| fs::read_dir(path).unwrap());
    let is_its = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        ["recording", "kernel", "copies", "names"]
            .iter()
            .any(|kind| name.starts_with(&format!("atrace-{kind}-{pid}-")))
            || name.starts_with(&format!("atrace-run-{pid}-"))
    };
    entries.map(|entry| entry.unwrap().path()).filter(is_its).collect()
}

/// Returns the directories in `/dev/shm` that the command `atrace run` with the process id `pid` created and did not
/// remove.
pub fn runs_left_by(pid: u32) -> Vec<PathBuf> {
    let entries = fs::read_dir("/dev/shm").unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.to_str().unwrap().contains(&format!("/atrace-run-{pid}-"))).collect()
}

/// Returns the messages of the process `pid` in the text of the saved file.
pub fn messages(saved: &str, pid: u32) -> Vec<&str> {
    let of_it = |line: &&str| line.contains(&format!("({pid:>7})"));
    saved
        .lines()
        .filter(of_it)
        .filter_map(|line| Some(line.split_once(": tracing_mark_write: ")?.1))
        .collect()
}
