//! Tests random programs with spans, through Perfetto's backend. Spans are entered and exited in any order,
//! recorded, and moved between threads, both while the shared memory is full and while it has room.
//!
//! At each event, the program writes down which spans it is in, and for which of these spans the begin of a slice was
//! certainly written. In the trace, these slices must be open at that event. If the program is in no span, no slice may
//! be open.
#![cfg(not(no_tracing))]

#[path = "../../../atrace/tests/common/mod.rs"]
mod common;

mod cases {
    use std::collections::HashMap;
    use std::os::unix::fs::MetadataExt as _;
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;
    use std::time::Duration;

    use atrace::perfetto;
    use atrace_cli::service::{Service, Storage};
    use atrace_real_service::{Event, Trace};
    use atrace_subscriber::{AsyncSpans, AtraceLayer, AtraceSubscriber};
    use tracing::field::Empty;
    use tracing::span::EnteredSpan;
    use tracing::{Span, info, info_span};
    use tracing_subscriber::prelude::*;

    use crate::common::{Hold, Place, case, copied, run, until};
    use fastrand::Rng;

    fn lost() -> u64 {
        perfetto::status().lost()
    }

    /// A span that the thread is in.
    struct In {
        serial: usize,
        /// Whether the begin of the slice was certainly written.
        is_open: bool,
        guard: Option<EnteredSpan>,
    }

    /// The data that the program writes down at an event: the spans whose slices are open, and whether the thread is in
    /// any span.
    #[derive(Default)]
    struct Noted {
        open: Vec<usize>,
        is_in_any: bool,
    }

    struct Program {
        random: Rng,
        spans: Vec<(usize, Span)>,
        /// Whether async slices are written for the spans, instead of slices on threads.
        are_hidden: bool,
        serial: usize,
        noted: Vec<Noted>,
        trace: PathBuf,
        /// Prevents the service from reading the shared memory, so that it stays full.
        hold: Option<Hold>,
    }

    impl Program {
        fn make(&mut self) {
            self.serial += 1;
            let serial = self.serial;
            let span = match self.random.usize(..4) {
                0 => info_span!("request", serial, later = Empty, atrace.track = "requests"),
                1 => info_span!("other", serial, later = Empty),
                _ => info_span!("span", serial, later = Empty),
            };
            self.spans.push((serial, span));
        }

        /// Returns the index of a random span. If there is none, creates one first.
        fn any(&mut self) -> usize {
            if self.spans.is_empty() {
                self.make();
            }
            self.random.usize(..self.spans.len())
        }

        fn enter(&mut self, inside: &mut Vec<In>) {
            let at = self.any();
            let (serial, span) = self.spans[at].clone();
            let before = lost();
            let guard = Some(span.entered());
            inside.push(In { serial, is_open: !self.are_hidden && lost() == before, guard });
        }

        fn leave(&mut self, inside: &mut Vec<In>) {
            if inside.is_empty() {
                return;
            }
            let last = inside.len() - 1;
            let at = if self.random.usize(..4) == 0 { self.random.usize(..inside.len()) } else { last };
            // If the thread has entered a span several times, an exit belongs to the last entry.
            let serial = inside[at].serial;
            let at = inside.iter().rposition(|entered| entered.serial == serial).unwrap();
            let before = lost();
            drop(inside[at].guard.take());
            inside.remove(at);
            // Slices of spans that were entered later have begun again, or their begins were lost.
            if lost() > before && at != last {
                inside.iter_mut().for_each(|entered| entered.is_open = false);
            }
        }

        fn record(&mut self) {
            let at = self.any();
            let (serial, span) = &self.spans[at];
            span.record("later", serial * 1000 + self.random.usize(..1000));
        }

        fn event(&mut self, inside: &[In]) {
            let open =
                inside.iter().filter(|entered| entered.is_open).map(|entered| entered.serial).collect();
            info!(number = self.noted.len(), "event");
            self.noted.push(Noted { open, is_in_any: !inside.is_empty() });
        }

        /// Stops the service from writing its trace, and writes events until the shared memory is full.
        fn fill(&mut self, inside: &[In]) {
            self.hold.get_or_insert_with(|| Hold::new(&self.trace));
            let before = lost();
            while lost() == before {
                assert!(perfetto::status().sessions() > 0, "nothing can be lost any more");
                self.event(inside);
            }
        }

        fn step(&mut self, inside: &mut Vec<In>, may_move: bool) {
            match self.random.usize(..1000) {
                0..100 => self.make(),
                100..400 => self.enter(inside),
                400..720 => self.leave(inside),
                720..800 => self.record(),
                800..900 => self.event(inside),
                900..950 => {
                    let at = self.any();
                    self.spans.swap_remove(at);
                }
                950..955 => (0..self.random.usize(..3000)).for_each(|_| self.event(inside)),
                955..960 => self.fill(inside),
                960..970 => {
                    // Enters so many spans that the span stack may need more than its fixed memory.
                    for _ in 0..self.random.usize(..100) {
                        self.enter(inside);
                    }
                    for _ in 0..self.random.usize(..200) {
                        self.leave(inside);
                    }
                }
                970..990 => {
                    self.hold = None;
                    std::thread::sleep(Duration::from_micros(100 << self.random.usize(..8)));
                }
                _ if may_move => self.in_a_thread(50, false),
                _ => {}
            }
        }

        fn in_a_thread(&mut self, steps: usize, may_move: bool) {
            std::thread::scope(|scope| {
                let body = || {
                    let mut inside = Vec::new();
                    for _ in 0..steps {
                        self.step(&mut inside, may_move);
                    }
                    while !inside.is_empty() {
                        self.leave(&mut inside);
                    }
                    self.hold = None;
                    // Waits until there is room again, and the unmatched ends (which had no room before) are written.
                    until("there is room", || {
                        std::thread::sleep(Duration::from_millis(1));
                        let before = lost();
                        self.event(&[]);
                        lost() == before
                    });
                };
                scope.spawn(body).join().unwrap();
            });
        }
    }

    fn argument(event: &Event, name: &str) -> Option<usize> {
        let mut named = event.args.iter().filter(|(of, _)| of == name);
        named.next_back().map(|(_, value)| value.parse().unwrap())
    }

    fn compare(events: &[Event], noted: &[Noted]) {
        let (mut threads, mut tracks) = (HashMap::<u64, Vec<usize>>::new(), HashMap::<u64, i64>::new());
        for event in events {
            assert!(event.args.iter().all(|(name, value)| name != "?" && value != "?"), "{event:?}");
            if let Some(track) = event.track {
                *tracks.entry(track).or_default() += if event.kind == 1 { 1 } else { -1 };
                continue;
            }
            let open = threads.entry(event.sequence).or_default();
            match event.kind {
                1 => open.push(argument(event, "serial").unwrap()),
                2 => {
                    let serial = open.pop().unwrap_or_else(|| panic!("an end without a begin: {event:?}"));
                    let recorded = argument(event, "later").map(|value| value / 1000);
                    assert!(recorded.is_none_or(|of| of == serial), "of {serial}: {event:?}");
                }
                _ => {
                    let Noted { open: expected, is_in_any } = &noted[argument(event, "number").unwrap()];
                    let mut left = open.clone();
                    for serial in expected {
                        let at = left.iter().position(|open| open == serial);
                        left.swap_remove(
                            at.unwrap_or_else(|| panic!("{serial} of {expected:?} is not open: {open:?}")),
                        );
                    }
                    assert!(*is_in_any || open.is_empty(), "open outside of all spans: {open:?}");
                }
            }
        }
        assert!(threads.values().all(Vec::is_empty), "{threads:?}");
        assert!(tracks.values().all(|open| *open >= 0), "an end without a begin: {tracks:?}");
    }

    #[test]
    fn slices_are_open_where_the_program_is_in_their_spans() {
        let name = case!({
            let seed: usize = std::env::var("SEED").unwrap().parse().unwrap();
            let directory = tempfile::tempdir().unwrap();
            let path = |name: &str| directory.path().join(name);
            let listener = UnixListener::bind(path("socket")).unwrap();
            let user = std::fs::metadata(path("socket")).unwrap().uid();
            let (file, copier) = copied(&path("trace"));
            let service = Service::start(listener, user, Storage::File { file, max: None }).unwrap();
            // The service's socket is at the default path, relative to the working directory that is set here.
            std::env::set_current_dir(directory.path()).unwrap();
            perfetto::connect();
            until("it is connected", || perfetto::status().sessions() == 1);
            let mode = [None, Some(AsyncSpans::Beside), Some(AsyncSpans::Instead)][seed % 3];
            if seed.is_multiple_of(2) {
                let subscriber = AtraceSubscriber::default();
                let subscriber = match mode {
                    Some(mode) => subscriber.with_async_spans("", mode),
                    None => subscriber,
                };
                tracing::subscriber::set_global_default(subscriber).unwrap();
            } else {
                let layer = AtraceLayer::default();
                let layer = match mode {
                    Some(mode) => layer.with_async_spans("", mode),
                    None => layer,
                };
                tracing_subscriber::registry().with(layer).init();
            }
            let mut program = Program {
                random: Rng::with_seed(seed as u64),
                spans: Vec::new(),
                are_hidden: mode == Some(AsyncSpans::Instead),
                serial: 0,
                noted: Vec::new(),
                trace: path("trace"),
                hold: None,
            };
            for _ in 0..4 {
                program.in_a_thread(400, true);
            }
            drop(program.spans);
            let lost = lost();
            service.finish();
            copier.join().unwrap();
            let trace = Trace::open(&path("trace"));
            println!("LOST {lost} of {} and {}", trace.events().len(), program.noted.len());
            assert!(lost > 0, "the memory was never full");
            compare(&trace.events(), &program.noted);
        });
        let seeds = match std::env::var("SEED") {
            Ok(seed) => seed.parse().unwrap()..seed.parse::<u64>().unwrap() + 1,
            Err(_) => 0..if std::env::var_os("ATRACE_LONG_TESTS").is_some() { 300 } else { 3 },
        };
        for seed in seeds {
            eprintln!("seed {seed}");
            let place = Place::file();
            let mut command = place.command(&name);
            command.env("SEED", seed.to_string()).env("ATRACE_SHMEM_KB", "64");
            let ran = run(command.env("PERFETTO_PRODUCER_SOCK_NAME", "socket"));
            eprintln!("{:?}", ran.said("LOST"));
        }
    }
}
