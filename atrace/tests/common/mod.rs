//! Runs test cases in separate processes, each with its own marker and property store.
//!
//! The backend, the enabled tags and the watches belong to the process, and some of these can't change after the first
//! event. So the process of a test starts a second process, which runs the test's *case*. The second process runs the
//! same program with the same test selected, and has a private marker and property store. An environment variable tells
//! the second process to run the case. The tests that need the kernel's marker create a tracefs instance each. Only
//! root can create an instance; other users see that these tests are skipped.
//!
//! Android has one property store for all processes. A test that has a [`Place`] holds a lock, for which all other
//! tests wait, even tests of other programs.

#![allow(
    dead_code,
    unused_macros,
    unused_imports,
    unreachable_pub,
    reason = "each test program uses a part of this"
)]
#![allow(unsafe_code, reason = "errno and descriptors are set and looked at as C does it")]

mod buffer;
#[cfg(target_os = "linux")]
pub mod delay;

use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use atrace::control::{Control, Properties};
use atrace_cli::tracefs::Instance;

use self::buffer::Buffer;

const CASE: &str = "ATRACE_TEST_CASE";

/// The time limit for the process of a test case, and for each wait of a test. Even on a busy or emulated machine,
/// neither needs so much time. So a test that exceeds the limit counts as hung, and fails.
const PATIENCE: Duration = Duration::from_secs(600);

/// If this process was started to run this test's case (see the module), runs the block and returns from the test
/// function. Otherwise the macro's value is the test's name.
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

/// Runs `work`. After each instruction, the processor raises SIGTRAP.
#[allow(dead_code, unsafe_code, reason = "not every test steps; only an instruction sets the flag")]
#[cfg(target_arch = "x86_64")]
pub fn step_by_step(work: impl FnOnce()) {
    // SAFETY: changes one bit of the flags register, through the stack.
    unsafe { std::arch::asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq") };
    work();
    // SAFETY: changes one bit of the flags register, through the stack.
    unsafe { std::arch::asm!("pushfq", "and qword ptr [rsp], ~0x100", "popfq") };
}

/// Executes this test case once more under a seccomp filter, unless the filter is already in force. The filter refuses
/// `MADV_WIPEONFORK` as a kernel before 4.14 does. The filter must exist when the program starts, because the library
/// calls `madvise` before `main`.
#[allow(
    dead_code,
    unsafe_code,
    reason = "not every test has such cases; a filter can't be set in another way"
)]
#[cfg(target_os = "linux")]
pub fn with_an_old_kernel() {
    use std::os::unix::process::CommandExt as _;

    const IS_OLD: &str = "ATRACE_TEST_OLD_KERNEL";
    if std::env::var_os(IS_OLD).is_some() {
        return;
    }
    let op = |code: u32, k: u32, jf: u8| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    let is = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    // In the data that the kernel passes to the filter, the system call's number is at offset 0. Its third argument has
    // eight bytes and begins at offset 32.
    let third = 32 + if cfg!(target_endian = "big") { 4 } else { 0 };
    let mut filter = [
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        op(is, libc::SYS_madvise as u32, 3),
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, third, 0),
        op(is, libc::MADV_WIPEONFORK as u32, 1),
        op(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EINVAL as u32, 0),
        op(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: `program` points to the live filter and has its length.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
    }
    let mut args = std::env::args_os();
    let mut again = std::process::Command::new("/proc/self/exe");
    let again = again.arg0(args.next().unwrap()).args(args).env(IS_OLD, "1");
    panic!("{}", again.exec());
}

/// Makes the kernel answer a system call with this action of seccomp, from now on, if the calling thread or a thread
/// that it creates makes the call. With the flag `SECCOMP_FILTER_FLAG_TSYNC`, the kernel does this for all threads of
/// the process.
#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
pub fn deny(call: libc::c_long, action: u32, flags: libc::c_ulong) {
    let op = |code: u32, k: u32, jt: u8| libc::sock_filter { code: code as u16, jt, jf: 0, k };
    let mut filter = [
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, call as u32, 1),
        op(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0),
        op(libc::BPF_RET | libc::BPF_K, action, 0),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: `program` points to the live filter and has its length.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let set = libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program);
        assert_eq!(set, 0);
    }
}

/// Returns the name of the test function that contains the item whose reference is passed.
pub fn name_of<T>(_: &T) -> String {
    let path = std::any::type_name::<T>();
    let path = path.rsplit_once("::").map_or(path, |(path, _)| path);
    path.split_once("::").map_or(path, |(_, path)| path).to_owned()
}

pub fn is_case(name: &str) -> bool {
    std::env::var_os(CASE).is_some_and(|case| case == name)
}

/// The kind of the marker that a test case writes to.
enum Marker {
    File,
    Kernel(Buffer),
}

/// A directory with a property store, and a marker. Dropping the `Place` removes the directory and the marker.
pub struct Place {
    directory: tempfile::TempDir,
    marker: Marker,
    _turn: Option<Arc<File>>,
}

/// Takes the lock of this file (`flock`), waiting if necessary. The lock is held until the returned file is closed.
fn locked(path: &Path) -> File {
    let file = File::options().create(true).append(true).read(true).open(path).unwrap();
    // SAFETY: an open descriptor.
    assert_eq!(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) }, 0);
    file
}

/// Returns a pipe for a service's trace, and the thread that copies the pipe to the file `trace` until the pipe is
/// closed. While a [`Hold`] exists, the thread takes at most one more block from the pipe. Once the pipe is full, the
/// service waits in a write to the pipe, and does not read the memory that it shares with the producers. So the shared
/// memory becomes full on any machine, however fast the service is.
pub fn copied(trace: &Path) -> (File, JoinHandle<()>) {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let (mut file, lock) = (File::create(trace).unwrap(), lock_of(trace));
    let copy = move || {
        let mut block = [0; 4096];
        loop {
            let len = reader.read(&mut block).unwrap();
            if len == 0 {
                break;
            }
            let _may_go_on = locked(&lock);
            file.write_all(&block[..len]).unwrap();
        }
    };
    (OwnedFd::from(writer).into(), std::thread::spawn(copy))
}

/// Stops the thread of [`copied`] from copying until the `Hold` is dropped. The thread may be in another process.
#[derive(Debug)]
pub struct Hold(File);

impl Hold {
    /// Stops the thread that copies to the file `trace`.
    pub fn new(trace: &Path) -> Self {
        Self(locked(&lock_of(trace)))
    }
}

fn lock_of(trace: &Path) -> PathBuf {
    trace.with_extension("lock")
}

/// Takes and returns the tests' lock of Android's single property store. The lock is held until all [`Place`]s of this
/// thread are dropped. The process of a test case takes no lock, because the process that started it holds the lock. On
/// other systems, returns `None`.
fn turn() -> Option<Arc<File>> {
    thread_local!(static TURN: RefCell<Weak<File>> = const { RefCell::new(Weak::new()) });
    if cfg!(not(target_os = "android")) || std::env::var_os(CASE).is_some() {
        return None;
    }
    let lock = || Arc::new(locked(&std::env::temp_dir().join("atrace-tests.lock")));
    TURN.with_borrow_mut(|turn| {
        let file = turn.upgrade().unwrap_or_else(lock);
        *turn = Arc::downgrade(&file);
        Some(file)
    })
}

impl Place {
    /// Creates a place whose marker is an ordinary file, to which messages are appended.
    pub fn file() -> Self {
        let place = Self { _turn: turn(), directory: tempfile::tempdir().unwrap(), marker: Marker::File };
        std::fs::write(place.marker(), "").unwrap();
        place
    }

    /// Creates a place whose marker belongs to a ring buffer of the kernel. If no buffer can be created, prints the
    /// reason and returns `None`.
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

    /// Switches tracing on for all processes that use this place's property store.
    pub fn on(self) -> Self {
        self.control().enable("*").unwrap().keep();
        self
    }

    pub fn control(&self) -> Control {
        if cfg!(target_os = "android") {
            return control();
        }
        Control::from(Properties::open_path(&self.properties()).unwrap())
    }

    /// Sets a property in the place's property store to exactly this value.
    pub fn set(&self, key: &str, value: &str) {
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

    /// Returns the text that was written to the marker of a place that [`file`](Self::file) has created.
    pub fn text(&self) -> String {
        String::from_utf8(std::fs::read(self.path("marker")).unwrap()).unwrap()
    }

    /// Returns the messages in the ring buffer. Panics if the kernel has lost messages.
    pub fn messages(&self) -> Vec<String> {
        assert_eq!(self.instance().stats().unwrap().lost(), 0, "the ring buffer is too small for this test");
        let messages = self.instance().markers().unwrap();
        messages.map(|marker| String::from_utf8(marker.payload).unwrap()).collect()
    }

    /// Returns the command that runs the test case in a separate process.
    pub fn command(&self, case: &str) -> Command {
        self.command_of(&std::env::current_exe().unwrap(), case)
    }

    /// Returns the same command as [`command`](Self::command), but with `program` as the path of this test program.
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

    /// Runs the test case in a separate process. Panics if the case fails.
    pub fn run(&self, case: &str) -> Ran {
        run(&mut self.command(case))
    }
}

/// Removes the directory. Android's property store can't be removed, so the values of its `debug.atrace.` properties
/// are set to empty texts, for the next test.
impl Drop for Place {
    fn drop(&mut self) {
        if cfg!(target_os = "android") {
            let mut keys = Vec::new();
            let store = Properties::open().unwrap();
            let _ = store.for_each(|key, _, _| keys.push(key.to_owned())); // A property that is being changed belongs to no test.
            keys.retain(|key| key.starts_with("debug.atrace."));
            keys.sort(); // The flags come last, because a change of the flags makes processes read all properties.
            for key in keys {
                self.set(&key, "");
            }
        }
    }
}

/// The exit status and the output of a process that has run a test's case.
#[derive(Debug)]
pub struct Ran {
    pub pid: u32,
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    /// Returns a part of each output line that contains this word: the part after the word.
    pub fn said(&self, word: &str) -> Vec<&str> {
        // The word may be in the middle of a line, because the test harness does not end its own line before the case
        // prints.
        self.stdout.lines().filter_map(|line| Some(line.split_once(word)?.1.trim())).collect()
    }

    /// Returns two numbers that the command `atrace` has printed to stderr: the number of written events, and the
    /// number of lost events.
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

/// Runs the command of a test case. Panics if the case fails.
pub fn run(command: &mut Command) -> Ran {
    let ran = end_of(command.spawn().unwrap());
    assert!(ran.status.success(), "{:?}\n{}\n{}", ran.status, ran.stdout, ran.stderr);
    assert!(ran.stdout.contains("1 passed"), "the case was not found:\n{}", ran.stdout);
    ran
}

/// Waits until the process of a test case has ended. Does not check whether the case has succeeded.
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
        // An old dynamic linker prints warnings about newer programs.
        stderr = stderr.split_inclusive('\n').filter(|line| !line.starts_with("WARNING: linker: ")).collect();
    }
    // Prints the case's messages about skipped checks again, so that they appear in the test's output.
    for line in stderr.lines().filter(|line| line.starts_with("skipped")) {
        let _ = writeln!(std::io::stderr(), "{line}");
    }
    let ran = Ran { pid: child.id(), status, stdout: text(stdout), stderr };
    assert!(!hung, "the case hung:\n{}\n{}", ran.stdout, ran.stderr);
    ran
}

/// Copies a program that will be executed. A child process does the copying: if this process opened the file for
/// writing, a child that another thread forks at that time would have a copy of the descriptor. A program that is open
/// for writing can't be executed (ETXTBSY).
pub fn copy_program(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    let copied = Command::new("cp").args([from.as_ref(), to.as_ref()]).status().unwrap();
    assert!(copied.success(), "{}", to.as_ref().display());
}

/// Waits until the condition `so` is true, and returns how long this took. The test fails if the condition is still
/// false after [`PATIENCE`].
pub fn until(what: &str, mut so: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < PATIENCE, "waited in vain until {what}");
        std::thread::sleep(Duration::from_micros(100));
    }
    start.elapsed()
}

/// Forks this process. A child that panics ends with status 101. Without this function's panic hook, a panic would end
/// only the child's thread. The child would end with this thread, and its status would be 0.
#[allow(unsafe_code, reason = "fork has no safe form")]
pub fn fork() -> libc::pid_t {
    // SAFETY: the child runs code of the caller, which is responsible for the functions that the child calls.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork: {}", std::io::Error::last_os_error());
    if child == 0 {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            print(panic);
            // SAFETY: no preconditions; ends the child at once.
            unsafe { libc::_exit(101) };
        }));
    }
    child
}

/// Returns the [`Control`] that changes the properties which switch tracing in this process.
pub fn control() -> Control {
    Control::open().unwrap()
}

/// Returns this process's id, in the form in which messages contain the id.
pub fn pid() -> u32 {
    std::process::id()
}

#[cfg(target_os = "android")]
use libc::__errno as errno_location;
#[cfg(not(target_os = "android"))]
use libc::__errno_location as errno_location;

pub fn set_errno(value: i32) {
    // SAFETY: `errno_location` returns a valid pointer to the calling thread's errno.
    unsafe { *errno_location() = value };
}

pub fn errno() -> i32 {
    // SAFETY: `errno_location` returns a valid pointer to the calling thread's errno.
    unsafe { *errno_location() }
}

#[cfg(target_env = "gnu")]
pub type Resource = libc::__rlimit_resource_t;
#[cfg(not(target_env = "gnu"))]
pub type Resource = libc::c_int;

/// Sets the soft and the hard limit of this process for the resource `of`.
pub fn limit(of: Resource, soft: libc::rlim_t, hard: libc::rlim_t) -> std::io::Result<()> {
    let limit = libc::rlimit { rlim_cur: soft, rlim_max: hard };
    // SAFETY: `limit` is a live rlimit.
    match unsafe { libc::setrlimit(of, &limit) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Makes the command start its program with this soft and this hard limit for the resource `of`.
pub fn limited(command: &mut Command, of: Resource, soft: libc::rlim_t, hard: libc::rlim_t) -> &mut Command {
    // SAFETY: `setrlimit` may be called between fork and exec.
    unsafe { command.pre_exec(move || limit(of, soft, hard)) }
}

/// Returns a command that starts the same program with a single free descriptor. When the library is loaded, it needs
/// two descriptors, for the marker and for the properties. So in this program it cannot trace at first.
pub fn without_descriptors(command: &Command) -> Command {
    // The shell opens the descriptors 3 to 6. With the standard descriptors and the limit of 8, only descriptor 7 is
    // free.
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

/// Closes the descriptors that [`without_descriptors`] opened, and restores the usual limit.
pub fn free_descriptors() {
    limit(libc::RLIMIT_NOFILE, 1024, 4096).unwrap();
    let all = descriptors();
    for (number, _) in all.iter().filter(|(number, path)| *number > 2 && path == Path::new("/dev/null")) {
        // SAFETY: no other code uses these descriptors.
        unsafe { libc::close(*number) };
    }
}

/// Returns the open descriptors of this process, except the descriptor that this function uses and the descriptor of
/// the published state.
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

/// Closes all descriptors except the standard descriptors, as some programs do at their start. After this call, no code
/// of this process may use these descriptors. The function does not call `close_range(2)`, which needs Linux 5.9.
pub fn close_all() {
    // The descriptor of the directory itself is in the list, too, but it is closed when all names have been read.
    let all: Vec<_> =
        std::fs::read_dir("/proc/self/fd").unwrap().flatten().map(|entry| entry.file_name()).collect();
    let numbers = all.iter().filter_map(|name| name.to_str()?.parse::<i32>().ok());
    for number in numbers.filter(|number| *number > 2) {
        // SAFETY: no code of this process uses the descriptor any more.
        unsafe { libc::close(number) };
    }
}

/// Returns the number of threads of this process.
pub fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// Returns the number of a descriptor of this process that refers to the file with this path.
pub fn descriptor_of(path: &Path) -> Option<i32> {
    descriptors().into_iter().find(|(_, other)| other == path).map(|(number, _)| number)
}

/// Prints that a test, or a part of a test, was skipped. Writes directly to stderr, because the test harness captures
/// the output of `eprintln!` and hides it if the test passes.
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

/// Returns the master side of a new pseudoterminal, and the path of the slave side.
pub fn terminal() -> (File, PathBuf) {
    // SAFETY: the descriptor is new and only the file owns it. The name is a C string.
    unsafe {
        let master = libc::posix_openpt(libc::O_RDWR | libc::O_NOCTTY);
        assert!(master >= 0 && libc::grantpt(master) == 0 && libc::unlockpt(master) == 0);
        let mut name = [0; 128];
        assert_eq!(libc::ptsname_r(master, name.as_mut_ptr(), name.len()), 0);
        let name = std::ffi::CStr::from_ptr(name.as_ptr());
        (File::from_raw_fd(master), name.to_str().unwrap().into())
    }
}

/// Returns a file's device number and inode number as `dev:ino`, the form in which `ATRACE_MARKER=fd:…` contains them.
pub fn identity(path: &Path) -> String {
    use std::os::unix::fs::MetadataExt;
    let data = std::fs::metadata(path).unwrap();
    format!("{}:{}", data.dev(), data.ino())
}

/// A generator of pseudorandom numbers. The test chooses the seed, so that a failure can be repeated.
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

/// Returns a TCP connection whose send queue is full of bytes that no one reads. Because of these bytes and the option
/// `SO_LINGER`, the last `close` of the connection blocks for 40 seconds.
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
    // SAFETY: `linger` is alive and has the given size.
    let done =
        unsafe { libc::setsockopt(stream.as_raw_fd(), level, option, (&raw const linger).cast(), size) };
    assert_eq!(done, 0);
    stream.into()
}
