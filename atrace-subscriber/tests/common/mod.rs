//! Cases in processes of their own, whose messages come back from the kernel.
//!
//! The global subscriber, `tracing`'s caches and the place where events go belong to the process. So a test runs its case in
//! a process of its own: this very program again, asked for this very test, with a variable that says so, a tracefs
//! instance and a property store that nobody else has. Only root can make an instance; elsewhere a test says that it is skipped.
//!
//! On Android there is one store of properties: who has a place has the store, and tests of this and of other programs wait for it.

#![allow(
    dead_code,
    unused_macros,
    unused_imports,
    unreachable_pub,
    reason = "each test program uses a part of this"
)]

use std::cell::RefCell;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::AsRawFd as _;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use atrace::control::Control;
use atrace::tracefs::Instance;
use atrace_subscriber::{AtraceFilter, AtraceLayer, AtraceSubscriber};
use tracing::level_filters::LevelFilter;
use tracing::{Dispatch, Level, enabled};
use tracing_subscriber::prelude::*;

const CASE: &str = "SUBSCRIBER_TEST_CASE";
const ROLE: &str = "SUBSCRIBER_TEST_ROLE";
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs the block as the case of this test, in the process that is to be it; else is the name of the test.
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

/// Installs the subscriber in the role that the case is to play, with these options.
macro_rules! install {
    ($($options:tt)*) => {{
        use tracing_subscriber::layer::SubscriberExt as _;
        let installed = match $crate::common::role() {
            $crate::common::Role::Alone => {
                tracing::subscriber::set_global_default(atrace_subscriber::AtraceSubscriber::default()$($options)*)
            }
            $crate::common::Role::Layer => tracing::subscriber::set_global_default(
                tracing_subscriber::registry().with(atrace_subscriber::AtraceLayer::default()$($options)*),
            ),
            $crate::common::Role::Aosp => tracing::subscriber::set_global_default(
                tracing_subscriber::registry().with(atrace_subscriber::AtraceSubscriber::default()$($options)*),
            ),
        };
        installed.expect("no other subscriber was set");
    }};
}
pub(crate) use install;

/// The ways in which a program may use the subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// `AtraceSubscriber`, without a registry.
    Alone,
    /// `AtraceLayer` over a registry.
    Layer,
    /// `AtraceSubscriber` as a layer over a registry.
    Aosp,
}

pub const ROLES: [Role; 3] = [Role::Alone, Role::Layer, Role::Aosp];

pub fn role() -> Role {
    let role = std::env::var(ROLE).unwrap_or_default();
    ROLES.into_iter().find(|it| format!("{it:?}") == role).unwrap_or(Role::Alone)
}

pub fn name_of<T>(_: &T) -> String {
    let path = std::any::type_name::<T>();
    let path = path.rsplit_once("::").map_or(path, |(path, _)| path);
    path.split_once("::").map_or(path, |(_, path)| path).to_owned()
}

pub fn is_case(name: &str) -> bool {
    std::env::var_os(CASE).is_some_and(|case| case == name)
}

/// A ring buffer and a property store, which go when it is dropped.
pub struct Place {
    directory: tempfile::TempDir,
    instance: Instance,
    _turn: Option<Arc<File>>,
}

/// The lock of Android's one store, until all places of this thread are gone. A case has that of its test.
#[allow(unsafe_code, reason = "a file is locked as C does it")]
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
    pub fn new(test: &str) -> Option<Self> {
        match Instance::create("atrace-subscriber-test") {
            Ok(instance) => {
                instance.set_buffer_kb(8192).unwrap();
                Some(Self { directory: tempfile::tempdir().unwrap(), instance, _turn: turn() })
            }
            Err(reason) => {
                eprintln!("skipped {test}: {reason}");
                None
            }
        }
    }

    /// Has all processes of this store trace.
    pub fn on(self) -> Self {
        self.control().enable("*").unwrap().keep();
        self
    }

    pub fn control(&self) -> Control {
        match cfg!(target_os = "android") {
            true => Control::open().unwrap(),
            false => Control::open_path(&self.directory.path().join("properties")).unwrap(),
        }
    }

    pub fn instance(&self) -> &Instance {
        &self.instance
    }

    /// The messages, in order, by whom they are from. Fails if the kernel lost any.
    pub fn messages(&self) -> Vec<Message> {
        assert_eq!(self.instance.stats().unwrap().lost(), 0, "the ring buffer is too small for this test");
        self.instance
            .markers()
            .unwrap()
            .map(|marker| {
                let text = String::from_utf8(marker.payload).unwrap();
                let mut parts = text.splitn(3, '|');
                let kind = parts.next().unwrap();
                let pid = parts.next().unwrap().parse().unwrap();
                let text = parts.next().map_or(kind.to_owned(), |rest| format!("{kind}|{rest}"));
                Message { pid, tid: marker.tid, nanos: marker.timestamp, text }
            })
            .collect()
    }

    /// The messages' texts: `B|name`, `E`, `I|text` …
    pub fn texts(&self) -> Vec<String> {
        self.messages().into_iter().map(|message| message.text).collect()
    }

    pub fn command(&self, case: &str, role: Role) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        for (name, _) in
            std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"ATRACE_"))
        {
            command.env_remove(name);
        }
        command
            .args([case, "--exact", "--nocapture", "--test-threads=1"])
            .env(CASE, case)
            .env(ROLE, format!("{role:?}"))
            .env("ATRACE_MARKER", self.instance.marker_path())
            .env("ATRACE_PROPERTIES", self.directory.path().join("properties"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Runs the case, which must succeed; returns what it said.
    pub fn run(&self, case: &str, role: Role) -> String {
        let (success, said) = end_of(self.command(case, role).spawn().unwrap());
        assert!(success, "{said}");
        assert!(said.contains("1 passed"), "the case was not found:\n{said}");
        said
    }
}

/// A store is not removed with its directory where it is the system's: the next test finds it as if it were new.
impl Drop for Place {
    fn drop(&mut self) {
        if cfg!(target_os = "android") {
            let control = self.control();
            for pattern in control.patterns() {
                control.disable(&pattern).unwrap().keep();
            }
        }
    }
}

/// Runs the case in every role, each with tracing on and a place of its own, and looks at what it wrote.
pub fn in_each_role(case: &str, look: impl Fn(Role, Vec<String>)) {
    for role in ROLES {
        let Some(place) = Place::new(case) else { return };
        let place = place.on();
        place.run(case, role);
        look(role, place.texts());
    }
}

/// Runs the case in every role with tracing off at first; it switches by itself.
pub fn off_in_each_role(case: &str, look: impl Fn(Role, Vec<String>)) {
    for role in ROLES {
        let Some(place) = Place::new(case) else { return };
        let said = place.run(case, role);
        for line in said.lines().filter_map(|line| line.split_once("NOTE ")) {
            eprintln!("{case} ({role:?}): {}", line.1);
        }
        look(role, place.texts());
    }
}

/// A message of the kernel's, without the process in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub pid: u32,
    pub tid: u32,
    pub nanos: u64,
    pub text: String,
}

/// Waits for a process: whether it succeeded, and all that it said.
pub fn end_of(mut child: Child) -> (bool, String) {
    let stdout = child.stdout.take().unwrap();
    let stderr = child.stderr.take().unwrap();
    let read = |mut pipe: Box<dyn std::io::Read + Send>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = pipe.read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        })
    };
    let (stdout, stderr) = (read(Box::new(stdout)), read(Box::new(stderr)));
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
    let said = format!("{:?}\n{}\n{}", status, stdout.join().unwrap(), stderr.join().unwrap());
    assert!(!hung, "the case hung:\n{said}");
    (status.success(), said)
}

/// The subscriber in filter mode, in the role that the case is to play.
pub fn filtered() -> Dispatch {
    match role() {
        Role::Alone => AtraceSubscriber::default().with_filter().into(),
        Role::Layer => tracing_subscriber::registry()
            .with(AtraceLayer::default().with_filter(AtraceFilter::default()))
            .into(),
        Role::Aosp => tracing_subscriber::registry().with(AtraceSubscriber::default().with_filter()).into(),
    }
}

pub fn install_filtered() {
    tracing::dispatcher::set_global_default(filtered()).unwrap();
}

/// Waits until what `tracing` caches is that tracing is on, or off.
pub fn settled(on: bool) -> Duration {
    until("the caches follow", || {
        enabled!(Level::TRACE) == on && (LevelFilter::current() == LevelFilter::OFF) != on
    })
}

/// Waits until it is so.
pub fn until(what: &str, mut so: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < PATIENCE, "waited in vain until {what}");
        std::thread::sleep(Duration::from_micros(100));
    }
    start.elapsed()
}

/// Switches this process on, until the returned value is dropped.
pub fn on() -> atrace::control::Switched {
    Control::open().unwrap().enable_this_process().unwrap()
}

/// Every begin of every thread has its end, none ends what was not begun; returns the number of begins.
pub fn balanced(messages: &[Message]) -> usize {
    let mut open = std::collections::HashMap::<u32, Vec<&str>>::new();
    let mut begins = 0;
    for message in messages {
        let open = open.entry(message.tid).or_default();
        if let Some(name) = message.text.strip_prefix("B|") {
            open.push(name);
            begins += 1;
        } else if message.text == "E" {
            assert!(open.pop().is_some(), "an end without a begin on thread {}", message.tid);
        }
    }
    for (thread, open) in open {
        assert!(open.is_empty(), "never ended on thread {thread}: {open:?}");
    }
    begins
}
