//! Runs test cases in separate processes, whose messages are read back from the kernel.
//!
//! The global subscriber, `tracing`'s interest cache and the backend belong to the process. So a test runs its case
//! in a separate process: the same program, with the same test selected, an environment variable that makes the
//! process run the case, and a private tracefs instance and property store. Only root can create an instance; other
//! users see that the test is skipped.
//!
//! Android has one property store for all processes. A test that has a [`Place`] holds the store's lock, and other
//! tests, even of other programs, wait for the lock.

#![allow(
    dead_code,
    unused_macros,
    unused_imports,
    unreachable_pub,
    reason = "each test program uses a part of this"
)]

#[path = "../../../atrace/tests/common/mod.rs"]
mod cases;

use std::process::{Child, Command};
use std::time::Duration;

use atrace::control::{Control, ThisProcess};
use atrace_cli::tracefs::Instance;
use atrace_subscriber::{AtraceFilter, AtraceLayer, AtraceSubscriber};
use tracing::level_filters::LevelFilter;
use tracing::{Dispatch, Level, enabled};
use tracing_subscriber::prelude::*;

#[cfg(target_os = "linux")]
pub(crate) use self::cases::delay;
#[cfg(target_arch = "x86_64")]
pub(crate) use self::cases::step_by_step;
pub(crate) use self::cases::{case, is_case, name_of, until};

const ROLE: &str = "SUBSCRIBER_TEST_ROLE";

/// Installs the subscriber with these options, in the [`Role`] that was selected for this process.
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

/// How a program uses the subscriber: alone, or as a layer.
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

/// The private ring buffer and property store of a test. Dropping the `Place` removes both.
pub struct Place(cases::Place);

impl Place {
    pub fn new(test: &str) -> Option<Self> {
        let place = cases::Place::kernel(test)?;
        place.instance().set_buffer_kb(8192).unwrap();
        Some(Self(place))
    }

    /// Switches tracing on for all processes that use this place's property store.
    pub fn on(self) -> Self {
        Self(self.0.on())
    }

    pub fn control(&self) -> Control {
        self.0.control()
    }

    pub fn instance(&self) -> &Instance {
        self.0.instance()
    }

    /// Returns the messages in order, with the threads that wrote them. Panics if the kernel has lost any messages.
    pub fn messages(&self) -> Vec<Message> {
        assert_eq!(self.instance().stats().unwrap().lost(), 0, "the ring buffer is too small for this test");
        self.instance()
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

    /// Returns the texts of the messages: `B|name`, `E`, `I|text` …
    pub fn texts(&self) -> Vec<String> {
        self.messages().into_iter().map(|message| message.text).collect()
    }

    pub fn command(&self, case: &str, role: Role) -> Command {
        let mut command = self.0.command(case);
        command.env(ROLE, format!("{role:?}"));
        command
    }

    /// Runs the test case in a separate process, which must succeed. Returns the output of the process.
    pub fn run(&self, case: &str, role: Role) -> String {
        said(&cases::run(&mut self.command(case, role)))
    }
}

/// Returns everything that a case printed.
fn said(ran: &cases::Ran) -> String {
    format!("{:?}\n{}\n{}", ran.status, ran.stdout, ran.stderr)
}

/// Calls `test` for every [`Role`], each time with a new [`Place`] in which tracing is off. The calls run at the same
/// time, because most cases wait most of the time. On Android, which has one property store, they run one after the
/// other.
pub fn each_role(case: &str, test: impl Fn(Role, Place) + Sync) {
    let places: Vec<_> = ROLES.iter().map_while(|&role| Some((role, Place::new(case)?))).collect();
    if cfg!(target_os = "android") {
        return places.into_iter().for_each(|(role, place)| test(role, place));
    }
    let test = &test;
    std::thread::scope(|scope| {
        let start = |(role, place)| scope.spawn(move || test(role, place));
        let threads: Vec<_> = places.into_iter().map(start).collect();
        for result in threads.into_iter().map(|thread| thread.join()).collect::<Vec<_>>() {
            result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
    });
}

/// Runs the test case in every [`Role`], each time in a new [`Place`] and with tracing on. Passes the role and the
/// texts of the messages to `look`.
pub fn in_each_role(case: &str, look: impl Fn(Role, Vec<String>) + Sync) {
    each_role(case, |role, place| {
        let place = place.on();
        place.run(case, role);
        look(role, place.texts());
    });
}

/// Runs the test case in every [`Role`], with tracing off at first. The case itself switches tracing.
pub fn off_in_each_role(case: &str, look: impl Fn(Role, Vec<String>) + Sync) {
    each_role(case, |role, place| {
        let said = place.run(case, role);
        for line in said.lines().filter_map(|line| line.split_once("NOTE ")) {
            eprintln!("{case} ({role:?}): {}", line.1);
        }
        look(role, place.texts());
    });
}

/// A message in the kernel's buffer. Its text lacks the process id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub pid: u32,
    pub tid: u32,
    pub nanos: u64,
    pub text: String,
}

/// Waits for a process. Returns whether it succeeded, and its output.
pub fn end_of(child: Child) -> (bool, String) {
    let ran = cases::end_of(child);
    (ran.status.success(), said(&ran))
}

/// Returns the subscriber with a filter, in the [`Role`] that was selected for this process.
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

/// Waits until callsites are enabled in `tracing`'s interest cache or, if `on` is false, disabled. Returns how long
/// this took.
pub fn settled(on: bool) -> Duration {
    until("the caches follow", || {
        enabled!(Level::TRACE) == on && (LevelFilter::current() == LevelFilter::OFF) != on
    })
}

/// Switches tracing on for this process until the returned value is dropped.
pub fn on() -> atrace::control::Switched {
    Control::open().unwrap().enable(ThisProcess).unwrap()
}

/// Checks that every begin of every thread has its end, and that no end lacks a begin. Returns the number of
/// begins.
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
