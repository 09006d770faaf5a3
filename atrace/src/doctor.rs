//! Why is nothing traced? Looks at everything that an event meets on its way, and says what would mend it.
//!
//! ```
//! let report = atrace::doctor::examine_program(Some("/usr/bin/my_service"));
//! println!("{report}"); // a line for each thing looked at, and after what is wrong another that mends it
//! if !report.arrives() {
//!     // An event that such a program writes now would not arrive.
//! }
//! ```
//!
//! A process tells some of it itself, in a page that others can read; see `atrace_sys::state`. It says nothing
//! before its first event (or question), nor on Android, nor where its host closed every descriptor: then the
//! rest is found out from outside, and what its own state is stays unknown. The page of another user's process
//! is for root.

use std::collections::HashMap;
use std::ffi::{CString, OsStr};
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use atrace_sys::process;
use atrace_sys::properties::{Properties, VALUE_MAX};
use atrace_sys::state::{NAME, SIZE, text_of};

use crate::AtraceTag;
use crate::control::{self, Control};
use crate::flags;
use crate::state;
use crate::tracefs::{self, Instance};

/// What was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Topic {
    /// The process: is it there, and does it run?
    Process,
    /// What the process says of itself.
    State,
    /// The kind of place that was chosen for events.
    Backend,
    /// The library that events go to, and which functions it has.
    Library,
    /// Whether tracefs is mounted.
    Mount,
    /// The marker that events are written to.
    Marker,
    /// The process' descriptor of the marker.
    Descriptor,
    /// The ring buffer behind the marker.
    Buffer,
    /// Whether the ring buffer records.
    TracingOn,
    /// Whether the ring buffer takes markers.
    Markers,
    /// The property store.
    Properties,
    /// The mask of tags in the properties.
    Tags,
    /// The app patterns in the properties, and the name of the process.
    Pattern,
    /// The length of that name.
    Name,
    /// Whether the process disabled tracing for itself.
    Disabled,
    /// Whether the process noticed the properties' last change.
    Serial,
    /// Subscribers that keep what they were told, and the thread that tells them.
    Filter,
    /// Events that could not be written.
    Lost,
    /// Whether an event written now arrives.
    Event,
}

impl Topic {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::State => "state",
            Self::Backend => "backend",
            Self::Library => "library",
            Self::Mount => "mount",
            Self::Marker => "marker",
            Self::Descriptor => "descriptor",
            Self::Buffer => "buffer",
            Self::TracingOn => "tracing_on",
            Self::Markers => "markers",
            Self::Properties => "properties",
            Self::Tags => "tags",
            Self::Pattern => "pattern",
            Self::Name => "name",
            Self::Disabled => "disabled",
            Self::Serial => "serial",
            Self::Filter => "filter",
            Self::Lost => "lost",
            Self::Event => "event",
        }
    }
}

/// How it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Level {
    /// As it must be.
    Good,
    /// Worth knowing; events arrive nevertheless, or it can't be told.
    Note,
    /// No event arrives.
    Wrong,
}

/// One thing that was looked at.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Finding {
    /// What it is about.
    pub topic: Topic,
    /// How it is.
    pub level: Level,
    /// What was found.
    pub text: String,
    /// What to do about it: mostly a command.
    pub mend: Option<String>,
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Report(Vec<Finding>);

impl Report {
    /// The findings, in the order of an event's way.
    pub fn findings(&self) -> &[Finding] {
        &self.0
    }

    /// Whether an event written now arrives: that was tried, and nothing is wrong.
    pub fn arrives(&self) -> bool {
        self.0.iter().any(|it| it.topic == Topic::Event && it.level == Level::Good)
            && self.wrong().next().is_none()
    }

    /// What is wrong.
    pub fn wrong(&self) -> impl Iterator<Item = &Finding> {
        self.0.iter().filter(|it| it.level == Level::Wrong)
    }

    fn add(&mut self, topic: Topic, level: Level, text: impl Into<String>) -> &mut Finding {
        self.0.push(Finding { topic, level, text: text.into(), mend: None });
        let last = self.0.len() - 1;
        &mut self.0[last]
    }

    fn good(&mut self, topic: Topic, text: impl Into<String>) {
        self.add(topic, Level::Good, text);
    }

    fn note(&mut self, topic: Topic, text: impl Into<String>) {
        self.add(topic, Level::Note, text);
    }

    fn bad(&mut self, topic: Topic, text: impl Into<String>, mend: impl Into<String>) {
        self.add(topic, Level::Wrong, text).mend = Some(mend.into());
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Finding { topic, level, text, mend }) in self.0.iter().enumerate() {
            let level = match level {
                Level::Good => "ok",
                Level::Note => "note",
                Level::Wrong => "WRONG",
            };
            write!(f, "{}{level:<6}{:<11}{text}", if index > 0 { "\n" } else { "" }, topic.name())?;
            if let Some(mend) = mend {
                write!(f, "\n      {:<11}-> {mend}", "")?;
            }
        }
        Ok(())
    }
}

/// Looks at a running process.
///
/// It is not disturbed. That an event arrives is tried with one of the calling process' own, an instant in the
/// same ring buffer, where it may write there.
pub fn examine(pid: u32) -> Report {
    let mut report = Report::default();
    let patient = Patient::of(pid);
    if !patient.lives(&mut report) {
        return report;
    }
    let said = patient.state(&mut report);
    report_on(&patient, said, report)
}

/// Looks at what a program would find that this user starts now, in the environment of the calling process:
/// as `argv0`, or under whatever name.
pub fn examine_program(argv0: Option<&str>) -> Report {
    let mut patient = Patient::of(std::process::id());
    patient.name = argv0.and_then(|name| CString::new(name).ok());
    patient.is_new = true;
    report_on(&patient, Some(State::own()), Report::default())
}

fn report_on(patient: &Patient, said: Option<State>, mut report: Report) -> Report {
    let marker = match &said {
        Some(said) => patient.sink(said, &mut report),
        None => {
            patient.unknown_sink(&mut report);
            None
        }
    };
    patient.properties(said.as_ref(), &mut report);
    if let Some(said) = &said {
        patient.follows(said, &mut report);
    }
    event(said.is_some(), marker, &mut report);
    report
}

/// The process that is looked at.
struct Patient {
    pid: u32,
    name: Option<CString>,
    uid: Option<u32>,
    /// It is not there yet: it will have the name, and what this process has.
    is_new: bool,
}

/// The file that events are written to.
enum Written {
    /// Of a ring buffer, whose directory this is; to be opened at one of these places.
    Buffer(PathBuf, Vec<PathBuf>),
    /// Another one, which is there.
    Else,
}

/// What a process says of itself.
struct State {
    fields: HashMap<String, String>,
    lacks: Vec<String>,
    /// It is a forked child, which has said nothing yet: this is its parent's.
    is_parents: bool,
}

impl State {
    fn parse(text: &[u8]) -> Self {
        let text = String::from_utf8_lossy(text);
        let lines = || text.lines().filter_map(|line| line.split_once(' '));
        let lacks = lines().filter(|(key, _)| *key == "lacks").map(|(_, value)| value.to_owned()).collect();
        let fields = lines().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        Self { fields, lacks, is_parents: false }
    }

    /// That of the calling process.
    fn own() -> Self {
        crate::atrace_init();
        let mut parsed = None;
        state::compose(&mut |text| parsed = Some(Self::parse(text)));
        parsed.unwrap_or_else(|| Self::parse(b""))
    }

    fn get(&self, key: &str) -> Option<&str> {
        self.fields.get(key).map(String::as_str)
    }

    fn number(&self, key: &str) -> Option<u64> {
        let text = self.get(key)?;
        match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        }
    }
}

impl Patient {
    fn of(pid: u32) -> Self {
        let path = Path::new("/proc").join(pid.to_string());
        let name = fs::read(path.join("cmdline")).ok().and_then(|text| {
            let name = text.split(|&byte| byte == 0).next().filter(|name| !name.is_empty())?;
            CString::new(name).ok()
        });
        let uid = fs::metadata(&path).ok().map(|data| data.uid());
        Self { pid, name, uid, is_new: false }
    }

    fn path(&self, file: &str) -> PathBuf {
        Path::new("/proc").join(self.pid.to_string()).join(file)
    }

    fn status(&self, key: &str) -> Option<String> {
        let text = fs::read_to_string(self.path("status")).ok()?;
        let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
        Some(value.trim().to_owned())
    }

    /// A variable as the process found it at its start; None also where that may not be seen.
    fn variable(&self, name: &str) -> Option<String> {
        if self.pid == std::process::id() {
            return process::variable(name).map(|value| value.to_string_lossy().into_owned());
        }
        let text = fs::read(self.path("environ")).ok()?;
        let value = text
            .split(|&byte| byte == 0)
            .find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
        Some(String::from_utf8_lossy(value).into_owned()).filter(|value| !value.is_empty())
    }

    fn lives(&self, report: &mut Report) -> bool {
        let Some(status) = self.status("State") else {
            report.bad(Topic::Process, format!("there is no process {}", self.pid), "pgrep -af NAME");
            return false;
        };
        let shown =
            self.name.as_ref().map_or("no name".to_owned(), |name| format!("{:?}", name.to_string_lossy()));
        let text = format!("process {}, {shown}, state {status}", self.pid);
        match status.as_bytes().first() {
            Some(b'T' | b't') => report.bad(
                Topic::Process,
                format!("{text}: it is stopped, and writes nothing"),
                format!("kill -CONT {}", self.pid),
            ),
            Some(b'Z' | b'X') => {
                report.bad(Topic::Process, format!("{text}: it has ended"), "start it again");
                return false;
            }
            _ => report.good(Topic::Process, text),
        }
        true
    }

    /// Finds and reads what the process says of itself.
    fn state(&self, report: &mut Report) -> Option<State> {
        if self.pid == std::process::id() {
            return Some(State::own());
        }
        let entries = match fs::read_dir(self.path("fd")) {
            Ok(entries) => entries,
            Err(e) => {
                let who = self.uid.map_or("its user".to_owned(), |uid| format!("user {uid}"));
                report.bad(
                    Topic::State,
                    format!("what it says of itself can't be seen ({e}): it is for {who} and root"),
                    format!("sudo atrace doctor {}", self.pid),
                );
                return None;
            }
        };
        let link = format!("/memfd:{NAME} ");
        let is_ours = |path: &PathBuf| {
            fs::read_link(path).is_ok_and(|to| to.as_os_str().as_bytes().starts_with(link.as_bytes()))
        };
        let files = entries.flatten().map(|entry| entry.path()).filter(is_ours);
        let mut states: Vec<_> = files.filter_map(|path| read_state(&path)).collect();
        // In another namespace of processes it has more numbers than one.
        let numbers = self.status("NSpid").unwrap_or_else(|| self.pid.to_string());
        for said in &mut states {
            said.is_parents =
                !said.get("pid").is_some_and(|pid| numbers.split_whitespace().any(|number| number == pid));
        }
        states.sort_by_key(|said| said.is_parents);
        let Some(said) = states.into_iter().next() else {
            report.bad(
                Topic::State,
                "it says nothing of itself: it does not use this library, wrote no event yet, closed its descriptors, \
                 or runs with ATRACE_STATE=none",
                "have it begin with atrace::atrace_init()",
            );
            return None;
        };
        if said.is_parents {
            report.note(
                Topic::State,
                "it was forked, and has written no event since: what follows is its parent's",
            );
        } else {
            report.good(Topic::State, format!("atrace {}", said.get("version").unwrap_or("?")));
        }
        Some(said)
    }

    /// Looks at where the events go.
    fn sink(&self, said: &State, report: &mut Report) -> Option<Written> {
        let kind = said.get("sink").unwrap_or("None");
        let place = said.get("place").unwrap_or_default();
        match kind {
            "None" => {
                self.nowhere(said.get("reason").unwrap_or("no event was written yet"), report);
                return None;
            }
            "Cutils" | "Ndk" => {
                let path =
                    said.get("library").filter(|path| !path.is_empty()).unwrap_or("a library of no name");
                report.good(
                    Topic::Backend,
                    format!("events go to {}", if kind == "Ndk" { "libandroid" } else { "libcutils" }),
                );
                report.good(Topic::Library, format!("found: {path}"));
                let lacks = said.lacks.join(", ");
                if !lacks.is_empty() && said.get("marker").is_some() {
                    report.note(
                        Topic::Library,
                        format!("it lacks {lacks}: those events are written to the marker"),
                    );
                } else if !lacks.is_empty() {
                    report.bad(
                        Topic::Library,
                        format!("it lacks {lacks}, or nobody knows their arguments, and there is no marker: those events are dropped"),
                        "a libcutils of this Android (ro.build.version.sdk), or the right to write to trace_marker",
                    );
                }
                // Where the library itself writes, it does not say: what follows is the marker for the rest.
            }
            "File" => {
                report.note(Topic::Backend, format!("events go to the file {place}, not to the kernel"))
            }
            "Device" => {
                report.bad(
                    Topic::Backend,
                    format!("events go to the device {place}, which keeps none"),
                    "start it without ATRACE_MARKER",
                );
            }
            _ => report.good(Topic::Backend, "events go to the kernel's marker"),
        }
        let marker = self.descriptor(said, place, report)?;
        if kind == "File" { Some(Written::Else) } else { self.buffer(&marker, place, report) }
    }

    /// Why events go nowhere.
    fn nowhere(&self, reason: &str, report: &mut Report) {
        let again = "start the program again";
        let backend = self.variable("ATRACE_BACKEND").unwrap_or_default();
        if reason.starts_with("ATRACE_BACKEND") {
            report.bad(
                Topic::Backend,
                format!("events go nowhere: {reason}"),
                "start it without ATRACE_BACKEND",
            );
        } else if backend.starts_with("cutils") || backend.starts_with("ndk") {
            report.bad(
                Topic::Library,
                format!("ATRACE_BACKEND={backend}, and the library can't be used: {reason}"),
                "name one that is there, as cutils:/path/libcutils.so; or start it without ATRACE_BACKEND",
            );
        } else if let Some(reason) = reason.strip_prefix("ATRACE_MARKER: ") {
            let named = self.variable("ATRACE_MARKER").unwrap_or_default();
            let is_gone = named.contains("/instances/") && !Path::new(&named).exists();
            let topic = if is_gone { Topic::Buffer } else { Topic::Marker };
            let text = if is_gone {
                "the ring buffer that ATRACE_MARKER names is gone"
            } else {
                "ATRACE_MARKER can't be used"
            };
            report.bad(
                topic,
                format!("{text}: {reason}"),
                "start it without ATRACE_MARKER, or with one that is there",
            );
        } else if tracefs::root().is_err_and(|e| e.kind() == ErrorKind::NotFound) {
            report.bad(
                Topic::Mount,
                format!("tracefs is not mounted: {reason}"),
                format!("mount -t tracefs nodev /sys/kernel/tracing; then {again}"),
            );
        } else if reason.contains("property store") || reason.contains("propert") {
            report.bad(Topic::Properties, format!("the property store can't be used: {reason}"), again);
        } else {
            report.bad(
                Topic::Marker,
                format!("the marker can't be written to: {reason}"),
                "record it with `sudo atrace run -- PROGRAM`, or run it as root",
            );
        }
    }

    /// Where the process does not say, what it will find.
    fn unknown_sink(&self, report: &mut Report) {
        match tracefs::root() {
            Ok(_) => report.good(Topic::Mount, "tracefs is mounted"),
            Err(e) if e.kind() == ErrorKind::NotFound => {
                report.bad(Topic::Mount, e.to_string(), "mount -t tracefs nodev /sys/kernel/tracing");
            }
            Err(_) => {}
        }
        for name in ["ATRACE_BACKEND", "ATRACE_MARKER"] {
            if let Some(value) = self.variable(name) {
                report.note(Topic::Backend, format!("it was started with {name}={value}"));
            }
        }
    }

    /// The descriptor of the marker as the kernel shows it.
    fn descriptor(&self, said: &State, place: &str, report: &mut Report) -> Option<PathBuf> {
        let marker = said.get("marker")?;
        let mut parts = marker.split(':');
        let fd = parts.next()?;
        let identity = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let own = self.path("fd").join(fd);
        let is_it = |path: &Path| fs::metadata(path).is_ok_and(|data| (data.dev(), data.ino()) == identity);
        if is_it(&own) {
            return Some(own);
        }
        let other = match place.strip_prefix("fd:") {
            Some(number) => self.path("fd").join(number),
            None => PathBuf::from(place),
        };
        let text = match fs::read_link(&own) {
            Ok(link) => format!("descriptor {fd} is not the marker any more, but {}", link.display()),
            Err(_) => format!("the program closed descriptor {fd}, its marker"),
        };
        if is_it(&other) && !own.exists() {
            report.note(Topic::Descriptor, format!("{text}; the next event opens {place} again"));
            return Some(other);
        }
        if other.starts_with("/sys") && !other.exists() {
            report.bad(Topic::Buffer, format!("{text}, and {place} is gone"), "start the program again");
            return None;
        }
        report.bad(
            Topic::Descriptor,
            format!("{text}, and {place} is not it either"),
            "start it again, and have it close its own descriptors only",
        );
        None
    }

    /// The ring buffer behind the marker.
    fn buffer(&self, marker: &Path, place: &str, report: &mut Report) -> Option<Written> {
        let file = fs::read_link(marker).unwrap_or_else(|_| PathBuf::from(place));
        let directory = file.parent()?.to_owned();
        report.good(Topic::Marker, format!("open: {}", file.display()));
        if !directory.exists() {
            report.bad(Topic::Buffer, format!("{} is gone", directory.display()), "start the program again");
            return None;
        }
        let shown = directory.display();
        for (topic, switch) in [(Topic::TracingOn, "tracing_on"), (Topic::Markers, "options/markers")] {
            match fs::read_to_string(directory.join(switch)) {
                Ok(text) if text.trim() == "0" => {
                    let what = if topic == Topic::Markers { "takes no markers" } else { "records nothing" };
                    report.bad(
                        topic,
                        format!("the ring buffer {what}: {shown}/{switch} is 0"),
                        format!("echo 1 > {shown}/{switch}"),
                    );
                }
                Ok(_) => report.good(topic, format!("{shown}/{switch} is 1")),
                Err(e) => report.note(topic, format!("{shown}/{switch}: {e}")),
            }
        }
        Some(Written::Buffer(directory, vec![marker.to_owned(), file]))
    }

    /// Whether the properties switch the process on.
    fn properties(&self, said: Option<&State>, report: &mut Report) {
        let named = said.and_then(|said| said.get("properties").map(str::to_owned));
        let own = || self.variable("ATRACE_PROPERTIES").map(PathBuf::from);
        let of_user = || Some(Properties::path_for_uid(self.uid?));
        let Some(path) = named.map(PathBuf::from).or_else(own).or_else(of_user) else { return };
        if cfg!(not(target_os = "android")) && !path.exists() {
            let why = if path.parent().is_some_and(|parent| {
                fs::read_dir(parent).is_err_and(|e| e.kind() == ErrorKind::PermissionDenied)
            }) {
                "may not be looked at"
            } else {
                "is not there yet: it is made when first needed"
            };
            return report.note(Topic::Properties, format!("{} {why}", path.display()));
        }
        let control = if cfg!(target_os = "android") { Control::open() } else { self.store(&path, report) };
        let control = match control {
            Ok(control) => control,
            Err(e) => {
                // Already said, where it is the reason for going nowhere.
                if !report.0.iter().any(|it| it.topic == Topic::Properties && it.level == Level::Wrong) {
                    let mend =
                        format!("remove {} when no program uses it, and start those again", path.display());
                    report.bad(Topic::Properties, e.to_string(), mend);
                }
                return;
            }
        };
        let raw = control.text(flags::FLAGS);
        let is_number = raw.is_empty() || flags::parse_flags(&raw).is_some();
        let flags_text = String::from_utf8_lossy(&raw).into_owned();
        if !is_number {
            report.bad(
                Topic::Tags,
                format!("{} is no number, which switches everything off: {flags_text:?}", flags::FLAGS),
                "atrace on PATTERN",
            );
        } else {
            let names: Vec<_> = control.tags().iter_names().map(|(name, _)| name).collect();
            let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            report.good(Topic::Tags, format!("{} is {flags_text:?}: {names}, beside App", flags::FLAGS));
        }
        self.pattern(&control, report);
    }

    fn store(&self, path: &Path, report: &mut Report) -> Result<Control, control::Error> {
        let shown = path.display();
        let maps = fs::read_to_string(self.path("maps")).unwrap_or_default();
        let is_stale = maps.lines().any(|line| line.ends_with(&format!(" {shown} (deleted)")));
        if is_stale && !self.is_new {
            report.bad(
                Topic::Properties,
                format!(
                    "{shown} was deleted or replaced since the process opened it, which follows the old one"
                ),
                "start the process again",
            );
        } else {
            report.good(Topic::Properties, format!("{shown}"));
        }
        let opened = Control::open_path(path);
        if opened.is_err() && !is_stale {
            report.0.pop(); // It is not good after all.
        }
        opened
    }

    fn pattern(&self, control: &Control, report: &mut Report) {
        let patterns = control.patterns();
        let listed = if patterns.is_empty() {
            "none is on".to_owned()
        } else {
            format!("on are {}", patterns.join(", "))
        };
        let others = !control.tags().is_empty();
        let Some(name) = &self.name else {
            if patterns.is_empty() && !others {
                report.bad(
                    Topic::Pattern,
                    "no pattern and no tag is on, so no program traces",
                    "atrace on PATTERN",
                );
            } else {
                report.good(Topic::Pattern, listed);
            }
            return;
        };
        let is_meant = |pattern: &&String| {
            CString::new(pattern.as_str()).is_ok_and(|pattern| process::matches(&pattern, name))
        };
        let shown = name.to_string_lossy();
        let length = name.as_bytes().len();
        let mend = format!("atrace on '{}'", String::from_utf8_lossy(&control::pattern_for(name.as_bytes())));
        if let Some(pattern) = patterns.iter().find(is_meant) {
            report.good(Topic::Pattern, format!("{pattern} matches its name, {shown}"));
        } else if length > VALUE_MAX {
            report.bad(
                Topic::Name,
                format!("its name has {length} bytes and a pattern at most {VALUE_MAX}, so only '*' and its end can match; {listed}; {shown}"),
                mend,
            );
        } else {
            let text = format!("no pattern matches its name, {shown}; {listed}");
            if others {
                report.add(Topic::Pattern, Level::Note, text + "; other tags than App are").mend = Some(mend);
            } else {
                report.bad(Topic::Pattern, text, mend);
            }
        }
    }

    /// Whether the process knows what the properties say.
    fn follows(&self, said: &State, report: &mut Report) {
        let tags = AtraceTag::from_bits_retain(said.number("tags").unwrap_or(0));
        if tags.contains(AtraceTag::NotReady) {
            report.bad(
                Topic::Disabled,
                "the program disabled tracing for itself",
                "have it call atrace_set_tracing_enabled(true)",
            );
        }
        let filters = said.number("filters").unwrap_or(0);
        // A thread that was just started names itself a little later.
        let mut is_watched = self.has_watch();
        for _ in 0..20 {
            if is_watched || filters == 0 {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
            is_watched = self.has_watch();
        }
        if filters > 0 && !is_watched {
            report.bad(
                Topic::Filter,
                "its subscriber keeps what it was told of the tags, and no thread tells it: it was forked",
                "have the child call atrace_subscriber::after_fork()",
            );
        } else if filters > 0 {
            report.good(Topic::Filter, "a thread tells its subscriber when the tags change");
        }
        if !self.is_new {
            self.serial(said, filters > 0 && is_watched, report);
        }
        if let Some((count, code)) = said.get("dropped").and_then(|text| text.split_once(' ')) {
            let error = code.parse().map_or(io::Error::other("?"), io::Error::from_raw_os_error);
            report.note(
                Topic::Lost,
                format!("at least {count} events could not be written; the last time: {error}"),
            );
        }
    }

    fn has_watch(&self) -> bool {
        let threads = fs::read_dir(self.path("task")).into_iter().flatten().flatten();
        threads
            .filter_map(|thread| fs::read_to_string(thread.path().join("comm")).ok())
            .any(|name| name.trim_end() == "atrace-watch")
    }

    fn serial(&self, said: &State, is_watched: bool, report: &mut Report) {
        let Some(path) = said.get("properties") else { return };
        let Ok(properties) = Properties::open_path(Path::new(path)) else { return };
        let Some(property) = properties.find(flags::FLAGS) else { return };
        let noticed = |said: &State| said.number("serial") == Some(property.serial().into());
        let is_noticed = noticed(said)
            || (is_watched && {
                // It may be about to.
                std::thread::sleep(Duration::from_millis(200));
                self.state(&mut Report::default()).is_some_and(|said| noticed(&said))
            });
        if is_noticed {
            report.good(Topic::Serial, "it has read the properties since they changed");
        } else if is_watched {
            report.bad(
                Topic::Serial,
                "its watch has not read the properties since they changed",
                format!("kill -CONT {}; else start it again", self.pid),
            );
        } else {
            report.note(
                Topic::Serial,
                "it has not read the properties since they changed: its next event does",
            );
        }
    }
}

/// Reads a page that may be written meanwhile.
fn read_state(path: &Path) -> Option<State> {
    for _ in 0..100 {
        let mut page = Vec::with_capacity(SIZE);
        io::Read::read_to_end(&mut io::Read::take(File::open(path).ok()?, SIZE as u64 + 1), &mut page)
            .ok()?;
        let again = fs::read(path).ok()?;
        if page.first_chunk::<8>() == again.first_chunk::<8>()
            && let Some(text) = text_of(&page)
        {
            return Some(State::parse(text));
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    None
}

/// Tries whether an event arrives, unless it is clear that it would not.
fn event(is_known: bool, written: Option<Written>, report: &mut Report) {
    let wrong: Vec<_> = report.wrong().map(|it| it.topic.name()).collect();
    if !wrong.is_empty() {
        let text = format!("an event written now would not arrive: {}", wrong.join(", "));
        return report.bad(Topic::Event, text, "mend that, and ask again");
    }
    if !is_known {
        return report.bad(
            Topic::Event,
            "whether an event written now arrives is not known",
            "ask again when it says its state",
        );
    }
    match written {
        Some(Written::Buffer(directory, places)) => match probe(&directory, &places) {
            Ok(text) => report.good(Topic::Event, text),
            Err(e) => report.bad(Topic::Event, format!("an event could not be tried: {e}"), "ask as root"),
        },
        Some(Written::Else) => report.good(Topic::Event, "an event written now arrives in the file"),
        None => report.good(Topic::Event, "an event written now is handed to the library"),
    }
}

/// Writes an event of this process and looks for it.
fn probe(directory: &Path, places: &[PathBuf]) -> io::Result<String> {
    let mut last = io::Error::other("there is no marker");
    for place in places {
        let mut marker = match OpenOptions::new().write(true).open(place) {
            Ok(marker) => marker,
            Err(e) => {
                last = e;
                continue;
            }
        };
        let name = OsStr::new("atrace doctor");
        let text = format!("I|{}|{}", std::process::id(), name.display());
        let counted =
            || Instance::attach(directory).and_then(|instance| instance.stats()).map(|stats| stats.written());
        let before = counted();
        marker.write_all(text.as_bytes())?;
        return match (before, counted()) {
            (Ok(before), Ok(after)) if after > before => Ok("an event written now arrived".to_owned()),
            (Ok(_), Ok(_)) => Err(io::Error::other("it was written, and is not in the buffer")),
            _ => Ok("an event written now was taken by the kernel (only root can look whether it is there)"
                .to_owned()),
        };
    }
    Err(last)
}
