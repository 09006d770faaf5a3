//! Tests typed arguments, flows, and interned names, with Perfetto's own service.
#![cfg(not(no_tracing))]

use atrace::{
    Arg, AtraceTag, Name, atrace_async_for_track_begin_args, atrace_async_for_track_end, atrace_begin_args,
    atrace_end, atrace_instant_args, atrace_instant_for_track_args, begin_scoped_event_args, perfetto,
    trace_method, trace_name,
};
use atrace_real_service::{Setup, WRONG, is_program};

const TAG: AtraceTag = AtraceTag::App;

fn method() {
    trace_method!(TAG);
}

#[test]
fn arguments_keep_their_types() {
    const ROLE: &str = "arguments_keep_their_types";
    static NAME: Name = Name::new("constant");
    if is_program(ROLE) {
        perfetto::connect();
        let all = [
            Arg::Bool("yes", true),
            Arg::Int("int", -7),
            Arg::Uint("uint", u64::MAX),
            Arg::Float("float", 0.5),
            Arg::Str("str", "a | text\n"),
        ];
        for _ in 0..2 {
            atrace_begin_args(TAG, "begin", &all);
            atrace_instant_args(TAG, &NAME, &[Arg::Flow(7)]);
            atrace_end(TAG);
            drop(begin_scoped_event_args(TAG, &NAME, &[Arg::Flow(7)]));
            atrace_async_for_track_begin_args(TAG, "row", "on a row", 1, &all[..2]);
            atrace_instant_for_track_args(TAG, "row", &NAME, &all[1..2]);
            atrace_async_for_track_end(TAG, "row", 1);
            method();
            trace_name!(TAG, "literal", Arg::Str("long", &"x".repeat(5000)), Arg::Uint("next", 1));
        }
        return;
    }
    let Some(setup) = Setup::start(ROLE) else { return };
    let trace = setup.traced();
    let arg = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let all = [
        arg("yes", "true"),
        arg("int", "-7"),
        arg("uint", "18446744073709551615"),
        arg("float", "0.5"),
        arg("str", "a | text\n"),
    ];
    let long = arg("long", &"x".repeat(5000));
    let once = vec![
        ("begin".to_owned(), false, all.to_vec(), vec![]),
        ("constant".to_owned(), true, vec![], vec![7]),
        ("end".to_owned(), false, vec![], vec![]),
        ("constant".to_owned(), true, vec![], vec![7]),
        ("end".to_owned(), false, vec![], vec![]),
        ("on a row".to_owned(), false, all[..2].to_vec(), vec![]),
        ("constant".to_owned(), true, all[1..2].to_vec(), vec![]),
        ("end".to_owned(), false, vec![], vec![]),
        ("arguments::method".to_owned(), true, vec![], vec![]),
        ("end".to_owned(), false, vec![], vec![]),
        ("literal".to_owned(), true, vec![long, arg("next", "1")], vec![]),
        ("end".to_owned(), false, vec![], vec![]),
    ];
    let found: Vec<_> =
        trace.events().into_iter().map(|it| (it.name(), it.is_interned, it.args, it.flows)).collect();
    assert_eq!(found, [once.clone(), once].concat());
    let args = "select key, coalesce(string_value, display_value), value_type from args where arg_set_id = \
                (select arg_set_id from slice where name = 'begin' limit 1) and key like 'debug.%' order by id";
    let flows = "select count(*) from flow";
    let Some(answers) = setup.rows(&trace, &[WRONG, args, flows]) else { return };
    assert_eq!(answers[0], "[]");
    // The trace processor's integer columns are signed, so it shows the largest unsigned number as -1.
    assert_eq!(
        answers[1],
        "[[\"debug.yes\",\"true\",\"bool\"],[\"debug.int\",\"-7\",\"int\"],\
         [\"debug.uint\",\"-1\",\"uint\"],[\"debug.float\",\"0.5\",\"real\"],\
         [\"debug.str\",\"a | text\\n\",\"string\"]]"
    );
    assert_eq!(answers[2], "[[3]]");
}

/// Tests that the definitions of interned names are repeated when readers may have lost them: after some chunks, and
/// after a loss.
#[test]
fn names_are_told_again() {
    const ROLE: &str = "names_are_told_again";
    const EVENTS: usize = 20_000;
    static NAMES: [Name; 3] = [Name::new("first"), Name::new("second"), Name::new("third")];
    if is_program(ROLE) {
        perfetto::connect();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for number in 0..EVENTS {
                        let args = [Arg::Uint("number", number as u64), Arg::Str("rest", "text")];
                        atrace_begin_args(TAG, &NAMES[number % 3], &args[..number % 3]);
                        atrace_end(TAG);
                    }
                });
            }
        });
        return;
    }
    let Some(setup) = Setup::start(ROLE) else { return };
    let trace = setup.traced();
    let events = trace.events();
    let begins = events.iter().filter(|event| event.kind == 1);
    let mut seen = [0; 3];
    for begin in begins {
        let place = ["first", "second", "third"].iter().position(|known| begin.name() == *known);
        let place = place.unwrap_or_else(|| panic!("{begin:?}"));
        assert!(begin.is_interned && begin.args.len() == place);
        seen[place] += 1;
    }
    assert!(seen.iter().all(|seen| *seen > 100), "{seen:?}");
    let wrong = "select name, value from stats where severity = 'error' and value > 0";
    let unnamed = "select count(*) from slice where name is null";
    let Some(answers) = setup.rows(&trace, &[wrong, unnamed]) else { return };
    assert_eq!(answers, ["[]", "[[0]]"]);
}

/// Tests more than 16,352 callsites: the names of further callsites are not interned, but written in each event.
#[test]
fn more_names_than_numbers() {
    const ROLE: &str = "more_names_than_numbers";
    const NAMES: usize = 17_000;
    if is_program(ROLE) {
        perfetto::connect();
        let names: Vec<&'static Name> = (0..NAMES)
            .map(|number| {
                &*Box::leak(Box::new(Name::new(Box::leak(format!("name {number}").into_boxed_str()))))
            })
            .collect();
        for round in 0..2 {
            for name in &names {
                atrace_instant_args(TAG, *name, &[Arg::Int("round", round)]);
            }
            // Gives the reader time to keep up.
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        return;
    }
    let Some(setup) = Setup::start(ROLE) else { return };
    let trace = setup.traced();
    let mut found = [0, 0];
    for event in trace.events() {
        let name = event.name();
        let number: usize = name.strip_prefix("name ").expect(&name).parse().unwrap();
        assert_eq!(event.is_interned, number < 16_384 - 32);
        found[usize::from(event.is_interned)] += 1;
    }
    assert!(!found.contains(&0), "{found:?}");
}
