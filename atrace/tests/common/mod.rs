//! Cases in processes of their own, and places of their own for what they write.
//!
//! Where events go, whether they are on and who watches that belongs to the process, and the first event chooses part of it for
//! good. So a test runs its case in a process of its own: this very program again, asked for this very test, with a variable
//! that tells it to be the case, and with a marker and a property store that nobody else has. The tests that need the kernel's
//! marker make a tracefs instance each, which only root can; they say so when they are skipped.
//!
//! On Android there is one store of properties: who has a place has the store, and tests of this and of other programs wait for it.

#![allow(
    dead_code,
    unused_macros,
    unused_imports,
    unreachable_pub,
    reason = "each test program uses a part of this"
)]
#![allow(unsafe_code, reason = "errno and descriptors are set and looked at as C does it")]

mod buffer;

use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use atrace::control::Control;
use atrace_cli::tracefs::Instance;

use self::buffer::Buffer;

const CASE: &str = "ATRACE_TEST_CASE";

/// A hang is a failure, but not for ever. No test waits so long otherwise.
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs the block as the case of this test and returns, in the process that is to be it; else is the name of the test.
macro_rules! case {
    ($case:block) => {{
        fn here() {}
        let name = $crate::common::name_of(&here);
        if $crate::common::is_case(&name) {
            #[allow(unreachable_code, clippy::unused_unit)]
            {
                $case;
                return;
            }
        }
        name
    }};
}
pub(crate) use case;

/// The name of the test function in which the item is defined.
pub fn name_of<T>(_: &T) -> String {
    let path = std::any::type_name::<T>();
    let path = path.rsplit_once("::").map_or(path, |(path, _)| path);
    path.split_once("::").map_or(path, |(_, path)| path).to_owned()
}

pub fn is_case(name: &str) -> bool {
    std::env::var_os(CASE).is_some_and(|case| case == name)
}

/// Where the events of a case go.
enum Marker {
    File,
    Kernel(Buffer),
}

/// A directory with a property store and a marker, which go with it.
pub struct Place {
    directory: tempfile::TempDir,
    marker: Marker,
    _turn: Option<Arc<File>>,
}

/// The lock of Android's one store, until all places of this thread are gone. A case has that of its test.
fn turn() -> Option<Arc<File>> {
    thread_local!(static TURN: RefCell<Weak<File>> = const { RefCell::new(Weak::new()) });
    if cfg!(not(target_os = "android")) || std::env::var_os(CASE).is_some() {
        return None;
    }
    let lock = || {
        let path = std::env::temp_dir().join("atrace-tests.lock");
        let file = File::options().create(true).append(true).read(true).open(path).unwrap();
        // SAFETY: an open descriptor.
        assert_eq!(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) }, 0);
        Arc::new(file)
    };
    TURN.with_borrow_mut(|turn| {
        let file = turn.upgrade().unwrap_or_else(lock);
        *turn = Arc::downgrade(&file);
        Some(file)
    })
}

impl Place {
    /// Events go to a file, one after the other.
    pub fn file() -> Self {
        let place = Self { _turn: turn(), directory: tempfile::tempdir().unwrap(), marker: Marker::File };
        std::fs::write(place.marker(), "").unwrap();
        place
    }

    /// Events go to a ring buffer of the kernel's; None, and a line that says why, where that can't be had.
    pub fn kernel(test: &str) -> Option<Self> {
        match Buffer::create("atrace-test") {
            Ok(buffer) => {
                buffer.set_buffer_kb(2048).unwrap();
                let (directory, marker) = (tempfile::tempdir().unwrap(), Marker::Kernel(buffer));
                Some(Self { directory, marker, _turn: turn() })
            }
            Err(reason) => {
                skipped(test, reason);
                None
            }
        }
    }

    /// Has all processes of this store trace as applications.
    pub fn on(self) -> Self {
        self.control().enable("*").unwrap().keep();
        self
    }

    pub fn control(&self) -> Control {
        if cfg!(target_os = "android") { control() } else { Control::open_path(&self.properties()).unwrap() }
    }

    /// Sets a property as it is.
    pub fn set(&self, key: &str, value: &str) {
        use atrace_sys::properties::Properties;
        if cfg!(target_os = "android") {
            Properties::open().unwrap().set(key, value).unwrap();
        } else {
            Properties::open_path(&self.properties()).unwrap().set(key, value).unwrap();
        }
    }

    pub fn properties(&self) -> PathBuf {
        self.path("properties")
    }

    pub fn marker(&self) -> PathBuf {
        match &self.marker {
            Marker::File => self.path("marker"),
            Marker::Kernel(buffer) => buffer.marker_path(),
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn instance(&self) -> &Instance {
        match &self.marker {
            Marker::Kernel(buffer) => buffer,
            Marker::File => panic!("this place has no instance"),
        }
    }

    /// What was written to the file.
    pub fn text(&self) -> String {
        String::from_utf8(std::fs::read(self.path("marker")).unwrap()).unwrap()
    }

    /// What was written to the ring buffer. Fails if the kernel lost anything.
    pub fn messages(&self) -> Vec<String> {
        assert_eq!(self.instance().stats().unwrap().lost(), 0, "the ring buffer is too small for this test");
        let messages = self.instance().markers().unwrap();
        messages.map(|marker| String::from_utf8(marker.payload).unwrap()).collect()
    }

    /// The process that is to be the case, not started yet.
    pub fn command(&self, case: &str) -> Command {
        self.command_of(&std::env::current_exe().unwrap(), case)
    }

    /// The same with another name of this program.
    pub fn command_of(&self, program: &Path, case: &str) -> Command {
        let mut command = Command::new(program);
        for (name, _) in
            std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"ATRACE_"))
        {
            command.env_remove(name);
        }
        command
            .args([case, "--exact", "--nocapture", "--test-threads=1"])
            .env(CASE, case)
            .env("ATRACE_MARKER", self.marker())
            .env("ATRACE_PROPERTIES", self.properties())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Runs the case, which must succeed.
    pub fn run(&self, case: &str) -> Ran {
        run(&mut self.command(case))
    }
}

/// A store is not removed with its directory where it is the system's: the next test finds it as if it were new.
impl Drop for Place {
    fn drop(&mut self) {
        if cfg!(target_os = "android") {
            let mut keys = Vec::new();
            let store = atrace_sys::properties::Properties::open().unwrap();
            let _ = store.for_each(|key, _, _| keys.push(key.to_owned())); // A busy one is not ours.
            keys.retain(|key| key.starts_with("debug.atrace."));
            keys.sort(); // The flags are last: processes look again when they are set.
            for key in keys {
                self.set(&key, "");
            }
        }
    }
}

/// What became of a case.
#[derive(Debug)]
pub struct Ran {
    pub pid: u32,
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    /// The lines that the case printed with this word before them.
    pub fn said(&self, word: &str) -> Vec<&str> {
        // The harness leaves its own line open when the case prints its first.
        self.stdout.lines().filter_map(|line| Some(line.split_once(word)?.1.trim())).collect()
    }

    /// How many events were written and lost, as the command says.
    pub fn told(&self) -> (u64, u64) {
        let line = self.stderr.lines().find(|line| line.contains(" events written")).unwrap();
        let (written, lost) = line.split_once(" events written, ").unwrap();
        let number = |text: &str| {
            let digits: String = text.chars().filter(char::is_ascii_digit).collect();
            digits.parse::<u64>().unwrap_or(0)
        };
        assert!(lost == "none lost" || lost.ends_with(" lost"), "{line}");
        (number(written), number(lost))
    }
}

/// Runs a case, which must succeed.
pub fn run(command: &mut Command) -> Ran {
    let ran = end_of(command.spawn().unwrap());
    assert!(ran.status.success(), "{:?}\n{}\n{}", ran.status, ran.stdout, ran.stderr);
    assert!(ran.stdout.contains("1 passed"), "the case was not found:\n{}", ran.stdout);
    ran
}

/// Waits for a case, however it ends.
pub fn end_of(mut child: Child) -> Ran {
    fn reader(mut pipe: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = pipe.read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        })
    }
    let stdout = child.stdout.take().map(reader);
    let stderr = child.stderr.take().map(reader);
    let start = Instant::now();
    let mut hung = false;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if start.elapsed() > PATIENCE {
            hung = true;
            child.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let text = |reader: Option<std::thread::JoinHandle<String>>| {
        reader.map_or(String::new(), |it| it.join().unwrap())
    };
    let mut stderr = text(stderr);
    if cfg!(target_os = "android") {
        // An old dynamic linker says so of programs that are newer.
        stderr = stderr.split_inclusive('\n').filter(|line| !line.starts_with("WARNING: linker: ")).collect();
    }
    let ran = Ran { pid: child.id(), status, stdout: text(stdout), stderr };
    assert!(!hung, "the case hung:\n{}\n{}", ran.stdout, ran.stderr);
    ran
}

/// Copies a program that is to be executed. Not by this process: of a descriptor that writes to it, what another thread
/// forks meanwhile would have a copy, and no program is executed while somebody may write to it (ETXTBSY).
pub fn copy_program(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    let copied = Command::new("cp").args([from.as_ref(), to.as_ref()]).status().unwrap();
    assert!(copied.success(), "{}", to.as_ref().display());
}

/// Waits until it is so, and says how long. That it takes long is no failure; that it never comes is.
pub fn until(what: &str, mut so: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < PATIENCE, "waited in vain until {what}");
        std::thread::sleep(Duration::from_micros(100));
    }
    start.elapsed()
}

/// The properties that the calling process follows.
pub fn control() -> Control {
    Control::open().unwrap()
}

/// The number of this process, as messages have it.
pub fn pid() -> u32 {
    std::process::id()
}

#[cfg(target_os = "android")]
use libc::__errno as errno_location;
#[cfg(not(target_os = "android"))]
use libc::__errno_location as errno_location;

pub fn set_errno(value: i32) {
    // SAFETY: the calling thread's own errno.
    unsafe { *errno_location() = value };
}

pub fn errno() -> i32 {
    // SAFETY: the calling thread's own errno.
    unsafe { *errno_location() }
}

#[cfg(target_env = "gnu")]
pub type Resource = libc::__rlimit_resource_t;
#[cfg(not(target_env = "gnu"))]
pub type Resource = libc::c_int;

/// Limits this process, softly and hard.
pub fn limit(of: Resource, soft: libc::rlim_t, hard: libc::rlim_t) -> std::io::Result<()> {
    let limit = libc::rlimit { rlim_cur: soft, rlim_max: hard };
    // SAFETY: a live rlimit.
    match unsafe { libc::setrlimit(of, &limit) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Has a program begin with such a limit.
pub fn limited(command: &mut Command, of: Resource, soft: libc::rlim_t, hard: libc::rlim_t) -> &mut Command {
    // SAFETY: setrlimit may be called between fork and exec.
    unsafe { command.pre_exec(move || limit(of, soft, hard)) }
}

/// A program that begins with no descriptor to be had but one, with which it is loaded: the library opens nothing then.
pub fn without_descriptors(command: &Command) -> Command {
    // By a shell, which has no descriptors but these.
    let script = "exec 3</dev/null 4</dev/null 5</dev/null 6</dev/null && ulimit -Sn 8 && exec \"$0\" \"$@\"";
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    shell
}

/// Closes what [`without_descriptors`] opened, and has there be as many as usual.
pub fn free_descriptors() {
    limit(libc::RLIMIT_NOFILE, 1024, 4096).unwrap();
    let all = descriptors();
    for (number, _) in all.iter().filter(|(number, path)| *number > 2 && path == Path::new("/dev/null")) {
        // SAFETY: nobody uses them.
        unsafe { libc::close(*number) };
    }
}

/// The open descriptors of this process, without the one that looks and the one of the published state.
pub fn descriptors() -> Vec<(i32, PathBuf)> {
    let mut all: Vec<_> = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let number = entry.file_name().to_str()?.parse().ok()?;
            Some((number, std::fs::read_link(entry.path()).ok()?))
        })
        .filter(|(_, path)| {
            !path.starts_with("/proc") && path.to_str() != Some("/memfd:atrace-state (deleted)")
        })
        .collect();
    all.sort();
    all
}

/// The threads of this process.
pub fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// The number of the descriptor that this process has of the file.
pub fn descriptor_of(path: &Path) -> Option<i32> {
    descriptors().into_iter().find(|(_, other)| other == path).map(|(number, _)| number)
}

/// Says that a test, or a part of it, was not done. Past the harness, which hides what a test that passes prints.
pub fn skipped(test: &str, reason: impl std::fmt::Display) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr(), "skipped {test}: {reason}");
}

pub fn is_root(test: &str) -> bool {
    // SAFETY: no preconditions.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        skipped(test, "only root can do this");
    }
    root
}

/// The master of a terminal, and the path of its other end.
pub fn terminal() -> (File, PathBuf) {
    // SAFETY: a new descriptor, owned by the file alone; the name is a C string.
    unsafe {
        let master = libc::posix_openpt(libc::O_RDWR | libc::O_NOCTTY);
        assert!(master >= 0 && libc::grantpt(master) == 0 && libc::unlockpt(master) == 0);
        let mut name = [0; 128];
        assert_eq!(libc::ptsname_r(master, name.as_mut_ptr(), name.len()), 0);
        let name = std::ffi::CStr::from_ptr(name.as_ptr());
        (File::from_raw_fd(master), name.to_str().unwrap().into())
    }
}

/// `dev:ino` of a file, as `ATRACE_MARKER=fd:…` has it.
pub fn identity(path: &Path) -> String {
    use std::os::unix::fs::MetadataExt;
    let data = std::fs::metadata(path).unwrap();
    format!("{}:{}", data.dev(), data.ino())
}

/// A source of chance that is the same on each run, so that a failure can be repeated.
pub struct Chance(pub u64);

impl Chance {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

pub fn os(text: impl AsRef<OsStr>) -> OsString {
    text.as_ref().to_owned()
}

/// A TCP connection with bytes that nobody reads, whose last close waits for that, 40 seconds.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub fn lingering() -> std::os::fd::OwnedFd {
    use std::io::Write as _;
    use std::net::{TcpListener, TcpStream};
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    std::mem::forget(listener.accept().unwrap());
    stream.set_nonblocking(true).unwrap();
    while stream.write(&[0; 1 << 16]).is_ok() {}
    let linger = libc::linger { l_onoff: 1, l_linger: 40 };
    let size = size_of::<libc::linger>() as libc::socklen_t;
    let (level, option) = (libc::SOL_SOCKET, libc::SO_LINGER);
    // SAFETY: a linger of that size.
    let done =
        unsafe { libc::setsockopt(stream.as_raw_fd(), level, option, (&raw const linger).cast(), size) };
    assert_eq!(done, 0);
    stream.into()
}
