//! Tests long names and arguments, in packets that span several chunks.
#![cfg(not(no_tracing))]

use atrace::{
    Arg, AtraceTag, Name, atrace_async_begin, atrace_async_end, atrace_begin, atrace_begin_args, atrace_end,
    atrace_instant, atrace_instant_args, perfetto,
};
use atrace_cli::service::{Service, Storage};
use atrace_real_service::{Event, Losses, Setup, Trace, WRONG, is_program, place};

const TAG: AtraceTag = AtraceTag::App;
const MAX: usize = 64 << 10;

/// Returns a text of this length. The letters depend on `seed`.
fn text(len: usize, seed: usize) -> String {
    (0..len).map(|at| char::from(b'a' + ((at + at / 26 + seed) % 26) as u8)).collect()
}

/// Returns the arguments of an event: a hundred arguments with these names. Half of the arguments have these texts as
/// values, the others have numbers.
fn args<'a>(names: &'a [String], texts: &'a [String]) -> Vec<Arg<'a>> {
    let pairs = names.iter().zip(texts).enumerate();
    pairs
        .map(|(at, (name, text))| match at % 2 {
            0 => Arg::Str(name, text),
            _ => Arg::Uint(name, at as u64),
        })
        .collect()
}

/// Lengths of texts, near the limits at which a packet gets another form.
const LENGTHS: [usize; 12] = [0, 95, 1000, 1025, 6144, 6145, 8000, 8192, 16_384, 20_000, MAX - 1, MAX];

fn write_events() {
    static NAME: Name = Name::new("constant");
    for (seed, len) in LENGTHS.into_iter().enumerate() {
        let long = text(len, seed);
        atrace_begin(TAG, &long);
        atrace_instant(TAG, &long);
        atrace_begin_args(TAG, long.as_str(), &[Arg::Flow(9), Arg::Str("text", &long), Arg::Int("last", -1)]);
        atrace_instant_args(TAG, &NAME, &[Arg::Str("text", &long), Arg::Float("last", 0.5)]);
        atrace_end(TAG);
        atrace_end(TAG);
        atrace_async_begin(TAG, &long, 1);
        atrace_async_end(TAG, &long, 1);
        // Gives the reader time to keep up.
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let names: Vec<_> = (0..100).map(|number| format!("argument {number}")).collect();
    let texts: Vec<_> = (0..100).map(|number| text(3000, number)).collect();
    atrace_instant_args(TAG, "hundred", &args(&names, &texts));
    atrace_instant(TAG, &text(MAX + 10, 0));
}

fn check(events: &[Event]) {
    let mut events = events.iter();
    let mut next = || events.next().unwrap();
    let arg = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    for (seed, len) in LENGTHS.into_iter().enumerate() {
        let long = text(len, seed);
        let kinds_and_args = [
            (1, vec![]),
            (3, vec![]),
            (1, vec![arg("text", &long), arg("last", "-1")]),
            (3, vec![arg("text", &long), arg("last", "0.5")]),
            (2, vec![]),
            (2, vec![]),
            (1, vec![]),
            (2, vec![]),
        ];
        for (place, (kind, args)) in kinds_and_args.into_iter().enumerate() {
            let found = next();
            let name = match (kind, place) {
                (2, _) => "end",
                (_, 3) => "constant",
                _ => &long,
            };
            assert!(found.name() == name, "{len} {place}: a name of {}", found.name().len());
            assert!(found.args == args, "{len} {place}: {} arguments", found.args.len());
            assert_eq!((found.kind, found.flows.len()), (kind, usize::from(place == 2)), "{len} {place}");
        }
    }
    let hundred = next();
    assert_eq!((hundred.name().as_str(), hundred.args.len()), ("hundred", 100));
    for (at, (name, value)) in hundred.args.iter().enumerate() {
        assert_eq!(*name, format!("argument {at}"));
        assert_eq!(*value, if at % 2 == 0 { text(3000, at) } else { at.to_string() });
    }
    assert!(next().name() == text(MAX, 0));
    assert!(events.next().is_none());
}

#[test]
fn long_texts_are_whole() {
    const TEST: &str = "long_texts_are_whole";
    if is_program(TEST) {
        perfetto::connect();
        write_events();
        let recording = perfetto::record_to(place("own")).unwrap();
        write_events();
        return recording.finish().unwrap();
    }
    for sessions in [1, 2] {
        let Some(setup) = Setup::start(TEST) else { return };
        let sessions: Vec<_> = (0..sessions).map(|_| setup.session()).collect();
        assert!(setup.program().status().unwrap().success());
        for session in sessions {
            let trace = session.stop();
            let events = trace.events();
            assert_eq!(trace.losses(), Losses::default());
            let (first, second) = events.split_at(events.len() / 2);
            check(first);
            check(second);
            let long = format!("select count(*) from slice where length(name) = {MAX}");
            let Some(answers) = setup.rows(&trace, &[WRONG, &long]) else { continue };
            assert_eq!(answers, ["[]", "[[10]]"]);
        }
        check(&Trace::open(&setup.place("own")).events());
    }
}

/// Tests that the service of `atrace run` joins the parts of a long packet, too.
#[test]
fn long_texts_are_whole_in_this_service() {
    const TEST: &str = "long_texts_are_whole_in_this_service";
    if is_program(TEST) {
        perfetto::connect();
        return write_events();
    }
    let directory = tempfile::tempdir().unwrap();
    let (socket, path) = (directory.path().join("socket"), directory.path().join("trace"));
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let keep = Storage::File { file: std::fs::File::create(&path).unwrap(), max: None };
    let service = Service::start(listener, atrace_sys::process::user(), keep).unwrap();
    let mut program = std::process::Command::new(std::env::current_exe().unwrap());
    program.args([TEST, "--exact", "--nocapture"]).env("ATRACE_TEST_PROGRAM", TEST);
    program.env("ATRACE_BACKEND", "perfetto").env("PERFETTO_PRODUCER_SOCK_NAME", &socket);
    assert!(program.status().unwrap().success());
    let report = service.finish();
    assert_eq!((report.counts.losses, report.counts.invalid), (0, 0), "{report:?}");
    check(&Trace::open(&path).events());
}

/// Tests an event whose packet needs more chunks than the memory has room for: the event is lost, counted and reported.
/// The later events are complete.
#[test]
fn a_text_without_room_is_lost() {
    const TEST: &str = "a_text_without_room_is_lost";
    if is_program(TEST) {
        perfetto::connect();
        let long = text(MAX, 0);
        for _ in 0..20 {
            atrace_begin_args(TAG, "args", &[Arg::Str("a", &long), Arg::Str("b", &long)]);
            // A thread that found no room looks for room again only after two milliseconds.
            std::thread::sleep(std::time::Duration::from_millis(10));
            atrace_begin(TAG, "inner");
            atrace_end(TAG);
            atrace_end(TAG);
        }
        let lost = perfetto::status().lost();
        return std::fs::write(place("lost"), lost.to_string()).unwrap();
    }
    let Some(setup) = Setup::start(TEST) else { return };
    let session = setup.session();
    assert!(setup.program().env("ATRACE_SHMEM_KB", "64").status().unwrap().success());
    let trace = session.stop();
    let lost: usize = std::fs::read_to_string(setup.place("lost")).unwrap().parse().unwrap();
    let events = trace.events();
    assert!(lost >= 40 && trace.losses().told > 0, "{lost} {:?} {}", trace.losses(), trace.packets());
    assert_eq!(events.len() + lost, 80);
    let of = |kind| events.iter().filter(|event| event.kind == kind).count();
    assert_eq!(of(1), of(2));
    assert!(events.iter().all(|event| event.name() != "args") && of(1) > 0);
}
