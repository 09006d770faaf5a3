//! Tests random programs. The trace of a program must contain exactly the events that the program has written, except
//! the events that the program has counted as lost.
//!
//! The shared memory is small and the program writes events in bursts, so many events are lost. Between the bursts
//! there is room for events again. The program knows which events are lost, because it reads
//! [`Status::lost`](atrace::perfetto::Status::lost) before and after each event. All other events must be in the
//! service's trace, in their order, with their arguments. While the program runs, it begins and ends recordings of
//! itself. Each of these recordings must contain all events that were written during it.

#![cfg(not(no_tracing))]

mod common;
#[allow(dead_code, unreachable_pub, reason = "this module is shared with the tests in `crates/real-service`")]
#[path = "../../crates/real-service/src/trace.rs"]
mod trace;

#[allow(unsafe_code, reason = "processes fork as C programs do")]
mod cases {
    use std::collections::HashMap;
    use std::fs;
    use std::os::unix::net::UnixListener;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::time::Duration;

    use atrace::perfetto::{self, Recording};
    use atrace::tracer::{GateCheck, NamedTrack, PreparedTag, Slice, TrackSlice};
    use atrace::*;
    use atrace_cli::service::{Report, Service, Storage};

    use crate::common::{Hold, Place, case, copied, run, until};
    use crate::trace::{Event, Trace, processed};
    use fastrand::Rng;

    const TAGS: [AtraceTag; 3] =
        [AtraceTag::App, AtraceTag::View, AtraceTag::App.union(AtraceTag::WindowManager)];
    /// The number of levels of threads. The main thread starts threads of level 0, and threads of one level start
    /// threads of the next level.
    const LEVELS: usize = 3;

    static NAMES: [Name; LEVELS] = [Name::new("L0 a name"), Name::new("L1 a name"), Name::new("L2 a name")];

    fn lost() -> u64 {
        perfetto::status().lost()
    }

    /// The expected content of a trace: for each level of threads, the events as lines of text. If a line has a `@`,
    /// the part after the `@` is the name of the event's track.
    #[derive(Default)]
    struct Expected {
        lines: [Vec<String>; LEVELS],
        /// For each level, the number of open slices of the level's present thread.
        depth: [u32; LEVELS],
    }

    /// A slice that a thread has begun and not yet ended.
    enum Open {
        Unguarded(AtraceTag),
        Guarded(Option<Slice>),
        Scoped(ScopedEvent),
    }

    /// Begins a slice as a tracer (a library that passes events on to `atrace`) does.
    fn begin(tag: AtraceTag, name: impl EventName) -> Option<Slice> {
        PreparedTag::new(tag).check().and_then(GateCheck::enabled)?.begin(name)
    }

    fn track(name: &str, cookie: i32) -> NamedTrack<'_> {
        NamedTrack::new(name, NamedTrack::hash_of(name), cookie)
    }

    struct OnTrack {
        slice: Option<TrackSlice>,
        cookie: i32,
        /// The number of the recording during which the slice began.
        recording: u32,
    }

    struct Program {
        random: Rng,
        directory: PathBuf,
        /// The number of the service's sessions. With several sessions, it is unknown which session has lost which
        /// event. So every event that at least one session could contain is expected.
        sessions: u64,
        /// The events that must be in the service's trace. `recording` has the events that must be in the present
        /// recording.
        service: Expected,
        recording: Option<(Recording, Expected)>,
        recordings: u32,
        tracks: Vec<OnTrack>,
        serial: u32,
    }

    impl Program {
        fn name(&mut self, level: usize) -> String {
            self.serial += 1;
            let len = match self.random.u64(..40) {
                0 => 900,
                1..=3 => 200,
                _ => self.random.u64(..30),
            };
            format!("L{level} {} {}", self.serial, "n".repeat(len as usize))
        }

        /// Calls `body`, which writes one event. Returns whether the event was lost.
        fn event(&mut self, level: usize, line: &str, body: impl FnOnce()) -> bool {
            let before = lost();
            body();
            let lost = lost() - before;
            assert!(lost <= self.sessions, "{lost} lost of {line:?}");
            if lost == 0 || self.sessions > 1 {
                self.service.lines[level].push(line.to_owned());
            }
            if let Some((_, expected)) = &mut self.recording {
                expected.lines[level].push(line.to_owned());
            }
            lost > 0
        }

        fn begin(&mut self, level: usize) -> (Open, bool) {
            let (name, tag) = (self.name(level), TAGS[self.random.u64(..3) as usize]);
            let kind = self.random.u64(..8);
            let args = [Arg::Uint("serial", self.serial.into()), Arg::Str("text", "value")];
            let shown = match kind {
                0 | 1 => format!("1 {name} serial={} text=value ", self.serial),
                2 => format!("1 L{level} a name "),
                _ => format!("1 {name} "),
            };
            if kind == 5 {
                // The closure that writes the name also writes an event. This event comes before the begin.
                let inner = self.name(level);
                self.event(level, &format!("3 {inner} "), || atrace_instant(tag, &inner));
            }
            let mut open = None;
            let is_lost = self.event(level, &shown, || {
                open = Some(match kind {
                    0 => {
                        atrace_begin_args(tag, &*name, &args);
                        Open::Unguarded(tag)
                    }
                    1 => Open::Scoped(begin_scoped_event_args(tag, &*name, &args)),
                    2 => Open::Scoped(begin_scoped_event_args(tag, &NAMES[level], &[])),
                    3 => Open::Guarded(begin(tag, &name)),
                    4 => Open::Guarded(begin(tag, |writer: &mut NameWriter<'_>| writer.push_str(&name))),
                    5 => Open::Scoped(begin_scoped_event(tag, &name)),
                    6 => {
                        atrace_begin_args(tag, format_args!("{name}"), &[]);
                        Open::Unguarded(tag)
                    }
                    _ => {
                        atrace_begin(tag, &name);
                        Open::Unguarded(tag)
                    }
                });
            });
            if let Some((_, expected)) = &mut self.recording {
                expected.depth[level] += 1;
            }
            (open.unwrap(), is_lost)
        }

        fn end(&mut self, level: usize, (open, was_lost): (Open, bool)) {
            let before = lost();
            match open {
                Open::Unguarded(tag) => atrace_end(tag),
                Open::Guarded(slice) => slice.into_iter().for_each(|slice| slice.end(None)),
                Open::Scoped(event) => drop(event),
            }
            if self.sessions == 1 {
                assert_eq!(lost() - before, u64::from(was_lost), "an end is lost as its begin was");
            }
            if !was_lost || self.sessions > 1 {
                self.service.lines[level].push("2 ".to_owned());
            }
            if let Some((_, Expected { lines, depth })) = &mut self.recording
                && depth[level] > 0
            {
                lines[level].push("2 ".to_owned());
                depth[level] -= 1;
            }
        }

        fn begin_on_track(&mut self, level: usize) {
            let (name, tag) = (self.name(level), TAGS[self.random.u64(..3) as usize]);
            let cookie = self.serial.cast_signed();
            let (mut slice, mut text) = (None, name.clone());
            self.event(level, &format!("1 {name} @{cookie}"), || {
                slice = TrackSlice::begin(
                    tag,
                    "track",
                    |writer: &mut NameWriter<'_>| writer.push_str(&text),
                    cookie,
                );
                text.clear();
            });
            self.tracks.push(OnTrack { slice, cookie, recording: self.recordings });
        }

        fn end_on_track(&mut self, level: usize) {
            if self.tracks.is_empty() {
                return;
            }
            let at = self.random.u64(..self.tracks.len() as u64) as usize;
            let OnTrack { slice, cookie, recording } = self.tracks.swap_remove(at);
            let (is_written, before, line) = (slice.is_some(), lost(), format!("2 @{cookie}"));
            if let Some(slice) = slice {
                slice.end(&track("track", cookie), None, 0);
            }
            let lost = lost() - before;
            assert!(lost <= if is_written { self.sessions } else { 0 });
            if is_written && (lost == 0 || self.sessions > 1) {
                self.service.lines[level].push(line.clone());
            }
            if let Some((_, expected)) = &mut self.recording
                && is_written
                && recording == self.recordings
            {
                expected.lines[level].push(line);
            }
        }

        /// Writes an event that is neither the begin nor the end of a slice.
        fn other(&mut self, level: usize) {
            let (name, tag) = (self.name(level), TAGS[self.random.u64(..3) as usize]);
            let number = i64::from(self.serial) - 1000;
            match self.random.u64(..8) {
                0 => {
                    _ = self.event(level, &format!("3 {name} @instants"), || {
                        atrace_instant_for_track(tag, "instants", &name)
                    })
                }
                1 => {
                    let shown = format!("3 {name} number={number} ");
                    self.event(level, &shown, || {
                        atrace_instant_args(tag, &*name, &[Arg::Int("number", number)])
                    });
                }
                2 | 3 => {
                    let counter = format!("counter {}", self.random.u64(..12));
                    self.event(level, &format!("4 {number} @{counter}"), || {
                        atrace_int64(tag, &counter, number)
                    });
                }
                4 => {
                    let shown = format!("3 L{level} a name ");
                    self.event(level, &shown, || atrace_instant_args(tag, &NAMES[level], &[]));
                }
                _ => _ = self.event(level, &format!("3 {name} "), || atrace_instant(tag, &name)),
            }
        }

        /// Disables tracing for a while. While tracing is disabled, no slice begins, but open slices end.
        fn disabled(&mut self, level: usize, open: &mut Vec<(Open, bool)>) {
            atrace_set_tracing_enabled(false);
            let before = lost();
            let none = begin_scoped_event(AtraceTag::App, "disabled");
            atrace_instant(AtraceTag::App, "disabled");
            atrace_begin(AtraceTag::App, "disabled");
            atrace_end(AtraceTag::App);
            drop(none);
            assert_eq!(lost(), before);
            while open.last().is_some_and(|(open, _)| !matches!(open, Open::Unguarded(_))) {
                let last = open.pop().unwrap();
                self.end(level, last);
            }
            atrace_set_tracing_enabled(true);
        }

        /// Forks a child, which ends its copies of the open slices and writes an event. Of the child, only this event
        /// is in the trace.
        fn fork(&mut self, open: &mut Vec<(Open, bool)>) {
            // SAFETY: the child only writes events, which it may do, and ends.
            unsafe {
                let child = crate::common::fork();
                if child == 0 {
                    while let Some((open, _)) = open.pop() {
                        match open {
                            Open::Unguarded(tag) => atrace_end(tag),
                            Open::Guarded(slice) => slice.into_iter().for_each(|slice| slice.end(None)),
                            Open::Scoped(event) => drop(event),
                        }
                    }
                    self.tracks.drain(..).for_each(|OnTrack { slice, cookie, .. }| {
                        if let Some(slice) = slice {
                            slice.end(&track("track", cookie), None, 0);
                        }
                    });
                    atrace_instant(AtraceTag::App, "child");
                    libc::_exit(0);
                }
                let mut status = 0;
                libc::waitpid(child, &raw mut status, 0);
                assert_eq!(status, 0);
            }
        }

        fn switch_recording(&mut self) {
            let path = |number: u32| self.directory.join(format!("recording {number}"));
            match self.recording.take() {
                None => {
                    self.recordings += 1;
                    let recording = perfetto::record_to(path(self.recordings)).unwrap();
                    self.recording = Some((recording, Expected::default()));
                }
                Some((recording, expected)) => {
                    recording.finish().unwrap();
                    compare(&Trace::open(&path(self.recordings)).events(), &expected.lines);
                }
            }
        }

        fn step(&mut self, level: usize, open: &mut Vec<(Open, bool)>) {
            let tag = AtraceTag::App;
            match self.random.u64(..1000) {
                0..300 => open.push(self.begin(level)),
                300..600 => {
                    if let Some(last) = open.pop() {
                        self.end(level, last);
                    }
                }
                600..650 => self.begin_on_track(level),
                650..700 => self.end_on_track(level),
                700..900 => self.other(level),
                900..905 => {
                    let _hold = Hold::new(&self.directory.join("trace"));
                    let before = lost();
                    while lost() == before {
                        assert!(perfetto::status().sessions() > 0, "nothing can be lost any more");
                        self.other(level);
                    }
                }
                905..930 => (0..self.random.u64(..2000)).for_each(|_| self.other(level)),
                930..940 => {
                    // Begins up to 199 nested slices, and then ends up to 299 slices.
                    for _ in 0..self.random.u64(..200) {
                        open.push(self.begin(level));
                    }
                    for _ in 0..self.random.u64(..300) {
                        if let Some(last) = open.pop() {
                            self.end(level, last);
                        }
                    }
                }
                940..970 => std::thread::sleep(Duration::from_micros(100 << self.random.u64(..8))),
                970..980 => self.disabled(level, open),
                980..985 => self.switch_recording(),
                985..990 => {
                    let panics = |_: &mut NameWriter<'_>| resume_unwind(Box::new(()));
                    let begin = || _ = begin(tag, panics);
                    assert!(catch_unwind(AssertUnwindSafe(begin)).is_err());
                }
                990..999 => self.in_a_thread(level + 1),
                _ => self.fork(open),
            }
        }

        fn in_a_thread(&mut self, level: usize) {
            if level == LEVELS {
                return;
            }
            let before = std::thread::scope(|scope| {
                let body = || {
                    if let Some((_, expected)) = &mut self.recording {
                        expected.depth[level] = 0;
                    }
                    // With this event, the thread takes over the data of the previous thread of its level in the
                    // producer, and so that thread's sequence of packets, before another thread does.
                    self.other(level);
                    let mut open = Vec::new();
                    for _ in 0..400 >> (2 * level) {
                        self.step(level, &mut open);
                    }
                    while let Some(last) = open.pop() {
                        self.end(level, last);
                    }
                    // With several sessions, it is unknown how many ends the thread could not write. So it waits for
                    // room.
                    let mut has_room = self.sessions == 1;
                    while !has_room {
                        std::thread::sleep(Duration::from_millis(1));
                        let before = lost();
                        self.other(level);
                        has_room = lost() == before;
                    }
                    lost()
                };
                // Joined explicitly, because a scope does not wait for the end of a thread. The ends of slices that a
                // thread could not write are counted as lost when the thread ends.
                scope.spawn(body).join().unwrap()
            });
            let owed = if self.sessions == 1 { lost() - before } else { 0 };
            for _ in 0..owed {
                assert_eq!(self.service.lines[level].pop().as_deref(), Some("2 "));
            }
        }
    }

    /// Returns the line of text that represents an event (see [`Expected`]), and the event's track.
    fn line(event: &Event) -> (String, Option<u64>) {
        let name = match event.value {
            Some(value) if event.kind == 4 => value.to_string(),
            _ => event.name.as_ref().map_or(String::new(), |_| event.name()),
        };
        let mut line = format!("{} {name}", event.kind);
        if !name.is_empty() {
            line.push(' ');
        }
        event.args.iter().for_each(|(name, value)| line += &format!("{name}={value} "));
        (line, event.track)
    }

    fn compare(events: &[Event], expected: &[Vec<String>; LEVELS]) {
        let mut sequences: HashMap<u64, Vec<(String, Option<u64>)>> = HashMap::new();
        events.iter().for_each(|event| sequences.entry(event.sequence).or_default().push(line(event)));
        let (mut tracks, mut keys) = (HashMap::new(), HashMap::new());
        for lines in sequences.into_values() {
            let named = |line: &str| line.split_once(" L")?.1.get(..1)?.parse::<usize>().ok();
            let level = lines.iter().find_map(|(line, _)| named(line));
            // A sequence of few events may have no name that shows the level. In this case the lines are compared.
            let text =
                |line: &'_ String| line.split_once('@').map_or(line.clone(), |(text, _)| text.to_owned());
            let same = |expected: &&Vec<String>| {
                expected.iter().map(text).eq(lines.iter().map(|(line, _)| line.clone()))
            };
            let expected = level.map_or_else(|| expected.iter().find(same), |level| expected.get(level));
            let expected = expected.unwrap_or_else(|| panic!("whose? {lines:?}"));
            let around = |at: usize| {
                let range = at.saturating_sub(5)..at + 5;
                let mut text = String::new();
                for at in range {
                    text += &format!("{at}: {:?}, expected {:?}\n", lines.get(at), expected.get(at));
                }
                text
            };
            for (at, (line, track)) in lines.iter().enumerate() {
                let expected =
                    expected.get(at).map_or(("nothing", None), |expected| match expected.split_once('@') {
                        Some((line, key)) => (line, Some(key.to_owned())),
                        None => (&**expected, None),
                    });
                assert_eq!(
                    (&**line, track.is_some()),
                    (expected.0, expected.1.is_some()),
                    "\n{}",
                    around(at)
                );
                if let (Some(track), Some(key)) = (*track, expected.1) {
                    assert_eq!(keys.entry(track).or_insert(key.clone()), &key);
                    assert_eq!(*tracks.entry(key).or_insert(track), track);
                }
            }
            assert_eq!(lines.len(), expected.len(), "\n{}", around(lines.len()));
        }
        let found: usize = events.len();
        assert_eq!(found, expected.iter().map(Vec::len).sum::<usize>(), "of some threads nothing came");
    }

    /// Runs the test case while a service with `sessions` sessions records it.
    fn recorded(place: &Place, case: &str, seed: u64, sessions: u32) -> Report {
        let socket = place.path(&format!("socket {seed}"));
        let (file, copier) = copied(&place.path("trace"));
        // SAFETY: no preconditions.
        let user = unsafe { libc::geteuid() };
        let listener = UnixListener::bind(&socket).unwrap();
        let service =
            Service::start_sessions(listener, user, sessions, Storage::File { file, max: None }).unwrap();
        let mut command = place.command(case);
        command
            .env("PERFETTO_PRODUCER_SOCK_NAME", &socket)
            .env("ATRACE_SHMEM_KB", (64 * sessions).to_string())
            .env("SESSIONS", sessions.to_string());
        command.env("SEED", seed.to_string()).env("DIRECTORY", place.path(""));
        run(&mut command);
        let report = service.finish();
        copier.join().unwrap();
        report
    }

    fn seed() -> u64 {
        std::env::var("SEED").unwrap().parse().unwrap()
    }

    fn seeds(short: u64) -> std::ops::Range<u64> {
        match std::env::var("SEED") {
            Ok(seed) => seed.parse().unwrap()..seed.parse::<u64>().unwrap() + 1,
            Err(_) => 0..if std::env::var_os("ATRACE_LONG_TESTS").is_some() { 300 } else { short },
        }
    }

    /// Tests names of several lengths. A name that is too long is cut, but no event is lost while there is room in the
    /// memory.
    #[test]
    fn names_of_any_length_are_there() {
        let name = case!({
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("trace");
            let tag = AtraceTag::App;
            for len in [1000, 3000, 4000, 5000, 6144, 1 << 20] {
                let recording = perfetto::record_to(&path).unwrap();
                let name = "n".repeat(len);
                atrace_begin(tag, &name);
                atrace_end(tag);
                atrace_async_begin(tag, &name, 7);
                atrace_async_end(tag, &name, 7);
                TrackSlice::begin(tag, &name, |writer: &mut NameWriter<'_>| writer.push_str(&name), 7)
                    .unwrap()
                    .end(&track(&name, 7), None, 0);
                atrace_instant_for_track(tag, &name, &name);
                atrace_int64(tag, &name, 7);
                let all = [Arg::Str("one", &name), Arg::Str("two", &name)];
                atrace_async_for_track_begin_args(tag, &name, &*name, 8, &all);
                atrace_async_for_track_end(tag, &name, 8);
                recording.finish().unwrap();
                let mut tracks = HashMap::new();
                let mut kinds = Vec::new();
                for event in Trace::open(&path).events() {
                    kinds.push(event.kind);
                    match event.kind {
                        1 => *tracks.entry(event.track).or_insert(0) += 1,
                        2 => *tracks.get_mut(&event.track).unwrap() -= 1,
                        _ => {}
                    }
                    assert!(event.name.is_none_or(|name| name.len() >= len.min(1000)));
                }
                assert_eq!(
                    (kinds, perfetto::status().lost()),
                    (vec![1, 2, 1, 2, 1, 2, 3, 4, 1, 2], 0),
                    "{len}"
                );
                assert!(tracks.into_values().all(|open| open == 0));
            }
        });
        Place::file().run(&name);
    }

    /// Tests a slice whose name ends one recording and starts another one: the second recording has both the begin and
    /// the end of the slice.
    #[test]
    fn a_slice_whose_name_takes_long_ends_where_it_began() {
        let name = case!({
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("trace");
            let mut recording = Some(perfetto::record_to(directory.path().join("before")).unwrap());
            let switch = |name: &mut NameWriter<'_>| {
                recording.take().unwrap().finish().unwrap();
                recording = Some(perfetto::record_to(&path).unwrap());
                name.push_str("name");
            };
            let slice = TrackSlice::begin(AtraceTag::App, "track", switch, 7).unwrap();
            slice.end(&track("track", 7), None, 0);
            recording.unwrap().finish().unwrap();
            let kinds: Vec<_> = Trace::open(&path).events().iter().map(|event| event.kind).collect();
            assert_eq!(kinds, [1, 2]);
        });
        Place::file().run(&name);
    }

    static IS_HANDLED: AtomicBool = AtomicBool::new(false);
    static MAY_GO_ON: AtomicBool = AtomicBool::new(false);
    static WRITTEN: AtomicU64 = AtomicU64::new(0);
    static IS_PAUSED: AtomicBool = AtomicBool::new(false);

    /// Handles a signal: stops the interrupted thread until `MAY_GO_ON` is set, but for little more than 100 ms at
    /// most.
    extern "C" fn stop(_: libc::c_int) {
        IS_HANDLED.store(true, Ordering::Release);
        for _ in 0..100 {
            if MAY_GO_ON.load(Ordering::Acquire) {
                break;
            }
            // SAFETY: no preconditions.
            unsafe { libc::usleep(1000) };
        }
    }

    /// Tests a recording that begins while a thread is stopped at a random point of a slice on a track. The recording
    /// contains the end of a slice only if it contains the begin.
    #[test]
    fn a_recording_that_begins_within_a_slice_on_a_track_has_both_ends_or_none() {
        let name = case!({
            perfetto::connect();
            until("it is connected", || atrace_is_tag_enabled(AtraceTag::App));
            // SAFETY: the handler may run anywhere.
            let before = unsafe { libc::signal(libc::SIGUSR1, stop as *const () as libc::sighandler_t) };
            assert_ne!(before, libc::SIG_ERR);
            let directory = PathBuf::from(std::env::var_os("DIRECTORY").unwrap());
            let (send, receive) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                // SAFETY: no preconditions.
                send.send(unsafe { libc::pthread_self() }).unwrap();
                loop {
                    // The thread pauses while a recording is read: its events would only make the service's trace
                    // longer.
                    until("it goes on", || !IS_PAUSED.load(Ordering::Relaxed));
                    if let Some(slice) = TrackSlice::begin(AtraceTag::App, "track", "name", 7) {
                        slice.end(&track("track", 7), None, 0);
                    }
                    WRITTEN.fetch_add(1, Ordering::Relaxed);
                }
            });
            let (thread, path) = (receive.recv().unwrap(), directory.join("recorded"));
            let mut recorded = 0;
            for round in 0..100 {
                IS_HANDLED.store(false, Ordering::Relaxed);
                MAY_GO_ON.store(false, Ordering::Relaxed);
                let written = WRITTEN.load(Ordering::Relaxed);
                IS_PAUSED.store(false, Ordering::Relaxed);
                until("the thread writes", || WRITTEN.load(Ordering::Relaxed) > written + 2);
                // SAFETY: the thread runs until the process ends.
                assert_eq!(unsafe { libc::pthread_kill(thread, libc::SIGUSR1) }, 0);
                until("the thread is stopped", || IS_HANDLED.load(Ordering::Acquire));
                // The start of the recording fails if the thread is stopped in the middle of an event.
                let recording = perfetto::record_to(&path);
                let written = WRITTEN.load(Ordering::Relaxed);
                MAY_GO_ON.store(true, Ordering::Release);
                until("the thread goes on", || WRITTEN.load(Ordering::Relaxed) > written + 2);
                IS_PAUSED.store(true, Ordering::Relaxed);
                let recording = match recording {
                    Ok(recording) => recording,
                    Err(error) => {
                        assert_eq!(error.kind(), std::io::ErrorKind::TimedOut, "{error}");
                        continue;
                    }
                };
                recorded += 1;
                recording.finish().unwrap();
                let kinds: Vec<_> = Trace::open(&path).events().iter().map(|event| event.kind).collect();
                // Each slice must end before the next slice begins. Only the last slice may have no end.
                let are_whole = kinds.chunks(2).all(|two| matches!(two, [1, 2] | [1]));
                assert!(!kinds.is_empty() && are_whole, "round {round}: {kinds:?}");
            }
            assert!(recorded > 0);
        });
        let place = Place::file();
        recorded(&place, &name, 0, 1);
    }

    /// Runs a random program, and writes the events that its trace must contain to files.
    fn program() {
        perfetto::connect();
        // On a busy machine, tags may be enabled before the service has reported its sessions.
        let sessions = std::env::var("SESSIONS").unwrap().parse().unwrap();
        until("its sessions are open", || u64::from(perfetto::status().sessions()) == sessions);
        let directory = PathBuf::from(std::env::var_os("DIRECTORY").unwrap());
        let mut program = Program {
            random: Rng::with_seed(seed()),
            directory: directory.clone(),
            sessions,
            service: Expected::default(),
            recording: None,
            recordings: 0,
            tracks: Vec::new(),
            serial: 0,
        };
        for _ in 0..5 {
            program.in_a_thread(0);
        }
        if program.recording.is_some() {
            program.switch_recording();
        }
        for (level, lines) in program.service.lines.iter().enumerate() {
            fs::write(directory.join(format!("expected {level}")), lines.join("\n")).unwrap();
        }
        fs::write(directory.join("pid"), std::process::id().to_string()).unwrap();
        fs::write(directory.join("lost"), lost().to_string()).unwrap();
    }

    /// Returns the data that [`program`] has written to files: the lines of each level, the process id, and the number
    /// of lost events.
    fn noted(place: &Place) -> ([Vec<String>; LEVELS], u64, u64) {
        let said = |name: &str| fs::read_to_string(place.path(name)).unwrap();
        let lines = |level| said(&format!("expected {level}")).lines().map(str::to_owned).collect();
        (std::array::from_fn(lines), said("pid").parse().unwrap(), said("lost").parse().unwrap())
    }

    #[test]
    fn a_trace_has_what_the_program_did() {
        let name = case!({ program() });
        let mut all_lost = 0;
        for seed in seeds(2) {
            eprintln!("seed {seed}");
            let (place, start) = (Place::file(), std::time::Instant::now());
            let report = recorded(&place, &name, seed, 1);
            let (expected, pid, lost) = noted(&place);
            let trace = Trace::open(&place.path("trace"));
            let (events, others): (Vec<_>, Vec<_>) =
                trace.events().into_iter().partition(|event| event.pid == pid);
            assert!(others.iter().all(|event| event.kind == 3 && event.name() == "child"));
            compare(&events, &expected);
            let slices =
                events.iter().filter(|event| event.kind == 1 || event.kind == 3).count() + others.len();
            let errors = "select name from stats where severity = 'error' and value > 0";
            let queries = ["select count(*) from slice", errors];
            // Queries are made only for every tenth seed, because each query takes seconds.
            let answers =
                seed.is_multiple_of(10).then(|| processed(&place.path("trace"), &queries)).flatten();
            if let Some(answers) = answers {
                assert!(answers[0].contains(&format!("[[{slices}]]")), "{answers:?}, not {slices}");
                assert!(answers[1].contains("\"rows\":[]"), "{answers:?}");
            }
            assert_eq!(trace.losses().found, 0);
            assert_eq!(report.counts.losses > 0, lost > 0, "{lost}: {report:?}");
            eprintln!("{} events, {lost} lost, {:?}", events.len(), start.elapsed());
            all_lost += lost;
        }
        assert!(all_lost > 0, "the memory was never full");
    }

    /// The slices that are open at each line of a level, except at lines that are a begin or an end of a slice. They
    /// form a linked list: an entry of `begins` has the line of a begin, and the index of the next outer begin.
    struct Stacks {
        at: HashMap<String, Option<usize>>,
        begins: Vec<(String, Option<usize>)>,
    }

    impl Stacks {
        fn of(lines: &[String]) -> Self {
            let (mut at, mut begins, mut open) = (HashMap::new(), Vec::new(), None);
            for line in lines {
                match line.as_bytes()[0] {
                    _ if line.contains('@') => {}
                    b'1' => {
                        begins.push((line.clone(), open));
                        open = Some(begins.len() - 1);
                    }
                    b'2' => open = begins[open.unwrap()].1,
                    _ => _ = at.insert(line.clone(), open),
                }
            }
            Self { at, begins }
        }

        /// Returns whether all slices in `open` are open at this event, in this order.
        fn has(&self, event: &str, open: &[String]) -> bool {
            let (mut left, mut next) = (open.iter().rev().peekable(), self.at[event]);
            while let Some((line, before)) = next.map(|next| &self.begins[next]) {
                left.next_if(|open| *open == line);
                next = *before;
            }
            left.next().is_none()
        }
    }

    /// Tests several sessions, each of which loses different events. In each session, the slices must be nested as in
    /// the program.
    #[test]
    fn each_of_several_sessions_has_slices_as_the_program_made_them() {
        let name = case!({ program() });
        for seed in seeds(1) {
            let sessions = 2 + seed as u32 % 7;
            eprintln!("seed {seed}, {sessions} sessions");
            let place = Place::file();
            recorded(&place, &name, seed, sessions);
            let (expected, pid, lost) = noted(&place);
            let stacks = expected.each_ref().map(|lines| Stacks::of(lines));
            let events = Trace::open(&place.path("trace")).events();
            let mut sequences: HashMap<u64, Vec<String>> = HashMap::new();
            let mut found = 0;
            for event in events.iter().filter(|event| event.pid == pid) {
                found += 1;
                let open = sequences.entry(event.sequence).or_default();
                let (line, track) = line(event);
                match event.kind {
                    _ if track.is_some() => {}
                    1 => open.push(line),
                    2 => _ = open.pop().expect("an end without a begin"),
                    // Several events have this name. The events with unique names are enough for the test.
                    _ if line.contains("a name") => {}
                    _ => {
                        let level: usize = line[3..4].parse().unwrap();
                        assert!(stacks[level].has(&line, open), "at {line}: {open:?}");
                    }
                }
            }
            let written = expected.iter().map(Vec::len).sum::<usize>() as u64 * u64::from(sessions);
            assert_eq!(found + lost, written, "{found} and {lost}");
            eprintln!("{found} events, {lost} lost");
        }
    }
}
