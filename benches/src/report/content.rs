//! Makes the report of what was measured: the tables, the plots, and what to be warned of.

use std::collections::{BTreeMap, BTreeSet};

use super::expected;
use super::input::{Input, Place};
use super::model::{
    Cell, Finding, Group, Kind, Line, Measured, Part, Plot, Point, Report, Section, Table, Value,
};
use super::number::{count, digits, percent, ratio, time};
use crate::catalogue::published;
use crate::row::environment::{Environment, date};
use crate::row::{Row, Sink, Versus};

/// The four cases of the bench `subscriber`, and what they are called.
const CASES: [(&str, &str); 4] = [
    ("event", "event"),
    ("event_args", "event, 4 fields"),
    ("span", "span"),
    ("span_args", "span, 4 fields"),
];

/// The benches that have sections of their own.
const KNOWN: [&str; 3] = ["atrace", "subscriber", INSTRUCTIONS];
const INSTRUCTIONS: &str = "instructions";

/// Makes the report.
pub(crate) fn report(input: Input) -> Report {
    let Input { here, devices, problems, .. } = input;
    let mut report = Report {
        title: "What tracing costs".to_owned(),
        summary: summary(&here),
        about: about(&here),
        findings: findings(&here),
        warnings: warnings(&here),
        ..Report::default()
    };
    for (name, device) in &devices {
        let of = format!("on {name}: ");
        report.warnings.extend(doubts(device).into_iter().map(|warning| of.clone() + &warning));
    }
    report.warnings.extend(problems.into_vec());
    let sections = [wrapper(&here), subscriber(&here), kinds(&here), circumstances(&here)];
    report.sections.extend(sections.into_iter().flatten());
    report.sections.extend(workloads(&here));
    report.sections.extend(instructions(&here));
    report.sections.extend(rounds(&here));
    report.sections.extend(devices.iter().map(|(name, device)| of_device(name, device, &here)));
    report.sections.push(environments(&here));
    report.sections.push(reading());
    report.sections.extend(everything(&here));
    let measured = |place: Place| {
        let bench = |(name, bench): (String, super::input::Bench)| {
            (name, Measured { environment: bench.environment, rows: bench.rows })
        };
        place.benches.into_iter().map(bench).collect()
    };
    report.measured = devices.into_iter().map(|(name, place)| (name, measured(place))).collect();
    report.measured.insert(String::new(), measured(here));
    report
}

/// A ratio of a row to another, from interleaved rounds or alternating processes.
pub(crate) fn versus<'a>(row: &'a Row, base: &str) -> Option<&'a Versus> {
    row.vs.get(base).or_else(|| row.vs_process.get(base))
}

/// A row that can be relied on.
fn good<'a>(place: &'a Place, bench: &str, id: &str) -> Option<&'a Row> {
    place.row(bench, id).filter(|row| !row.noisy)
}

fn summary(here: &Place) -> String {
    let row = |id: &str| good(here, "atrace", id);
    let mut text = Vec::new();
    if let Some(off) = row("rust/tracing_off_begin/10") {
        let of_cc = versus(off, "cc/tracing_off_begin/10")
            .map(|v| format!(", {} of what C++ pays", percent(v.ratio)));
        text.push(format!("Off, an event costs {}{}.", time(off.median), of_cc.unwrap_or_default()));
    }
    if let Some(on) = row("rust/tracing_on_begin/10") {
        let mut parts = Vec::new();
        for (base, what) in [
            ("cc/tracing_on_begin/10", "of what C++ pays"),
            ("limit/raw_write_begin/10", "of a bare write(2) of the same bytes"),
        ] {
            parts.extend(versus(on, base).map(|v| format!("{} {what}", percent(v.ratio))));
        }
        let parts = if parts.is_empty() { String::new() } else { format!(": {}", parts.join(", ")) };
        text.push(format!("On, it costs {}{parts}.", time(on.median)));
    }
    if let Some((row, v)) = good(here, "subscriber", "rust/tracing_on_event")
        .and_then(|row| Some((row, versus(row, "limit/raw_write_of_on_event")?)))
    {
        text.push(format!(
            "An event of the crate tracing, on, costs {}, {} of the bare write.",
            time(row.median),
            percent(v.ratio)
        ));
    }
    if text.is_empty() {
        return "Nothing was measured yet that could be summed up: run `cargo bench`.".to_owned();
    }
    text.join(" ")
}

/// Says in one line on what the first bench ran.
fn about(here: &Place) -> String {
    let Some(e) = here.benches.values().find_map(|bench| bench.environment.as_ref()) else {
        return String::new();
    };
    let cpus = format!("{} CPUs{}", e.cpus, if e.guest { " of a guest" } else { "" });
    let parts =
        [e.cpu.clone(), cpus, format!("Linux {}", e.kernel), e.rustc.clone(), e.cxx.clone(), date(e.time)];
    let commit = if e.commit.is_empty() { String::new() } else { format!("commit {}", e.commit) };
    parts.into_iter().chain([commit]).filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" · ")
}

fn findings(here: &Place) -> Vec<Finding> {
    let finding = |what: &str, bench: &str, id: &str, bases: &[(&str, &str)]| {
        let row = here.row(bench, id);
        let value = row.map(|row| if row.noisy { "too noisy".to_owned() } else { time(row.median) });
        let beside = bases.iter().filter_map(|(base, name)| {
            let v = versus(row?, base)?;
            Some(format!("{} of {name} ({}–{})", ratio(v.ratio), ratio(v.low), ratio(v.high)))
        });
        Finding { what: what.to_owned(), value, beside: beside.collect() }
    };
    let mut all = vec![
        finding(
            "an event, off",
            "atrace",
            "rust/tracing_off_begin/10",
            &[("cc/tracing_off_begin/10", "C++")],
        ),
        finding(
            "an event, on",
            "atrace",
            "rust/tracing_on_begin/10",
            &[("cc/tracing_on_begin/10", "C++"), ("limit/raw_write_begin/10", "the raw write")],
        ),
        finding(
            "an event of tracing, filtered",
            "subscriber",
            "rust/filtered_event",
            &[("limit/no_subscriber_event", "no subscriber")],
        ),
        finding(
            "an event of tracing, on",
            "subscriber",
            "rust/tracing_on_event",
            &[("limit/raw_write_of_on_event", "the raw write")],
        ),
    ];
    let counted: Vec<&Row> = KNOWN
        .iter()
        .filter_map(|bench| here.benches.get(*bench))
        .flat_map(|bench| &bench.rows)
        .filter(|row| row.id.starts_with("rust/") && row.allocs.is_some())
        .collect();
    let (allocating, free): (Vec<&Row>, Vec<&Row>) = counted.iter().partition(|row| row.allocs > Some(0.0));
    let mut beside = vec![format!("in {} of {} cases they were counted in", free.len(), counted.len())];
    beside.extend(
        allocating.iter().take(2).map(|row| format!("{}: {}", row.id, count(row.allocs.unwrap_or(0.0)))),
    );
    beside.extend((allocating.len() > 2).then(|| format!("and {} more allocate", allocating.len() - 2)));
    all.push(Finding {
        what: "allocations an event".to_owned(),
        value: (!counted.is_empty())
            .then(|| if free.is_empty() { "some".to_owned() } else { "0".to_owned() }),
        beside,
    });
    all.extend(filtered(here));
    all
}

/// What a reader should know before believing anything.
fn warnings(here: &Place) -> Vec<String> {
    let mut all = Vec::new();
    for (bench, how) in expected::BENCHES {
        match here.benches.get(bench) {
            None => all.push(format!("the bench {bench} has left nothing: run `{how}`")),
            Some(found) => {
                let missing: Vec<String> = expected::rows(bench)
                    .into_iter()
                    .filter(|id| !found.rows.iter().any(|row| row.id == *id))
                    .collect();
                if !missing.is_empty() {
                    all.push(format!("the bench {bench} has left no row {}", listed(&missing)));
                }
            }
        }
    }
    all.extend(doubts(here));
    all
}

/// What is doubtful in what was measured in a place.
fn doubts(place: &Place) -> Vec<String> {
    let mut all = Vec::new();
    for (name, bench) in &place.benches {
        let noisy: Vec<String> =
            bench.rows.iter().filter(|row| row.noisy).map(|row| row.id.clone()).collect();
        if !noisy.is_empty() {
            all.push(format!(
                "{} of {} rows of {name} are too uncertain and count as not measured: {}",
                noisy.len(),
                bench.rows.len(),
                listed(&noisy)
            ));
        }
        let close: Vec<String> = bench.rows.iter().filter_map(|on| too_close(on, &bench.rows)).collect();
        if !close.is_empty() {
            all.push(format!(
                "on costs about what off costs, so perhaps nothing was switched on: {}",
                listed(&close)
            ));
        }
        if name != INSTRUCTIONS
            && bench.rows.iter().any(|row| matches!(row.sink, Sink::Null | Sink::File | Sink::None))
        {
            all.push(format!(
                "{name} was not measured into the kernel's marker (run it as root, with tracefs): its rows \"on\" are of /dev/null or a file"
            ));
        }
        let Some(environment) = &bench.environment else { continue };
        if environment.quick {
            all.push(format!("{name} was measured with --quick: less sure than a full run"));
        }
        if environment.changed {
            all.push(format!(
                "{name} was measured with sources changed since commit {}: nobody can repeat that",
                environment.commit
            ));
        }
        if let Some(load) = environment.load {
            if load.others > 0.05 {
                all.push(format!(
                    "while {name} was measured, other programs took {} of the CPUs",
                    percent(load.others)
                ));
            }
            if load.stolen > 0.02 {
                all.push(format!(
                    "while {name} was measured, the host took {} of the CPUs away",
                    percent(load.stolen)
                ));
            }
        }
    }
    let environments: Vec<(&String, &Environment)> =
        place.benches.iter().filter_map(|(name, bench)| Some((name, bench.environment.as_ref()?))).collect();
    let mut differ = |what: &str, field: fn(&Environment) -> &str| {
        let values: BTreeSet<&str> =
            environments.iter().map(|(_, e)| field(e)).filter(|v| !v.is_empty()).collect();
        if values.len() > 1 {
            let each: Vec<String> =
                environments.iter().map(|(name, e)| format!("{name}: {}", field(e))).collect();
            all.push(format!("the benches ran with different {what} ({})", each.join(", ")));
        }
    };
    differ("commits", |e| &e.commit);
    differ("kernels", |e| &e.kernel);
    differ("CPUs", |e| &e.cpu);
    differ("compilers", |e| &e.rustc);
    all
}

/// Whether the row is one with tracing on that costs about what it costs off: the original's authors warn of this.
fn too_close(on: &Row, rows: &[Row]) -> Option<String> {
    let other = on.id.replacen("/tracing_on_", "/tracing_off_", 1);
    let off = rows.iter().find(|row| row.id == other && row.id != on.id)?;
    (on.unit == "ns" && on.low < 3.0 * off.high)
        .then(|| format!("{} ({} and {})", on.id, time(on.median), time(off.median)))
}

/// The first few of many.
fn listed(all: &[String]) -> String {
    const SHOWN: usize = 6;
    let mut text = all.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    if all.len() > SHOWN {
        text.push_str(&format!(" and {} more", all.len() - SHOWN));
    }
    text
}

/// The first table of the original, with what C++ and Rust cost here.
fn wrapper(here: &Place) -> Option<Section> {
    let bench = here.benches.get("atrace")?;
    let row = |id: String| bench.rows.iter().find(|row| row.id == id);
    let counted = |id: String| here.row(INSTRUCTIONS, &id).map(|row| row.median);
    let ratio_of = |name: &str, who: &str, base: &str| {
        Cell::ratio(row(format!("{who}/{name}")).and_then(|r| versus(r, &format!("{base}/{name}"))))
    };
    let limit = |name: &str| {
        let base = format!("limit/raw_write_{}", name.trim_start_matches("tracing_on_"));
        Cell::ratio(row(format!("rust/{name}")).and_then(|r| versus(r, &base)))
    };
    let instructions = |name: &str| {
        let pair = (counted(format!("rust/{name}")), counted(format!("cc/{name}")));
        match pair {
            (Some(rust), Some(cc)) => {
                Cell::Text(format!("{} / {}", digits_of_count(rust), digits_of_count(cc)))
            }
            (Some(rust), None) => Cell::Text(digits_of_count(rust)),
            _ => Cell::Empty,
        }
    };
    let published = |p: published::Published| {
        Cell::Value(Value {
            median: p.ns,
            low: p.low,
            high: p.high,
            unit: "ns".to_owned(),
            noisy: false,
            own: false,
        })
    };
    let mut first = Table {
        title: "The original benchmark, there and here".to_owned(),
        columns: [
            "case",
            "there: C++",
            "there: Rust",
            "Rust of C++",
            "here: C++",
            "here: Rust",
            "Rust of C++",
            "of the raw write",
            "through libcutils",
            "allocations",
            "instructions, Rust / C++",
        ]
        .map(str::to_owned)
        .to_vec(),
        note: "\"There\" are the times that the authors of AOSP's libatrace_rust published, from a Cuttlefish virtual device; only ratios can be compared with another machine's. Rust through libcutils is what their wrapper does.".to_owned(),
        ..Table::default()
    };
    for case in published::WRAPPER {
        let name = case.name;
        let rust = row(format!("rust/{name}"));
        first.rows.push(vec![
            Cell::Name(name.to_owned()),
            published(case.cc),
            published(case.rust),
            Cell::Ratio(case.rust.ns / case.cc.ns, None),
            Cell::value(row(format!("cc/{name}"))),
            Cell::value(rust),
            ratio_of(name, "rust", "cc"),
            limit(name),
            ratio_of(name, "ffi", "cc"),
            Cell::count(rust.and_then(|r| r.allocs)),
            instructions(name),
        ]);
    }
    let mut more = Table {
        title: "Every kind of event".to_owned(),
        columns: [
            "case",
            "C++",
            "Rust",
            "Rust of C++",
            "through libcutils",
            "of C++",
            "allocations",
            "instructions, Rust / C++",
        ]
        .map(str::to_owned)
        .to_vec(),
        ..Table::default()
    };
    let in_seed = |name: &str| published::WRAPPER.iter().any(|case| case.name == name);
    for rust in &bench.rows {
        let Some(name) = rust.id.strip_prefix("rust/").filter(|name| name.starts_with("tracing_")) else {
            continue;
        };
        if in_seed(name) || name.ends_with("_thread") || name.ends_with("_threads") {
            continue;
        }
        more.rows.push(vec![
            Cell::Name(name.to_owned()),
            row(format!("cc/{name}")).map_or(Cell::Empty, |r| Cell::value(Some(r))),
            Cell::value(Some(rust)),
            ratio_of(name, "rust", "cc"),
            row(format!("ffi/{name}")).map_or(Cell::Empty, |r| Cell::value(Some(r))),
            ratio_of(name, "ffi", "cc"),
            Cell::count(rust.allocs),
            instructions(name),
        ]);
    }
    let mut parts = Vec::new();
    parts.extend(main_plot(here).map(Part::Plot));
    parts.push(Part::Table(first.dense()));
    if !more.rows.is_empty() {
        parts.push(Part::Table(more.dense()));
    }
    parts.extend(ladder(here).map(Part::Plot));
    Some(Section {
        id: "events".to_owned(),
        title: "One event: Rust, C++ and the machine's limits".to_owned(),
        text: vec!["Nanoseconds of one operation in a loop, tracing switched off and on by the system's properties, and verified to be so by what arrived.".to_owned()],
        parts,
    })
}

fn digits_of_count(count: f64) -> String {
    if count < 10.0 { digits(count) } else { format!("{count:.0}") }
}

/// The plot that says most: off and on, each beside what it can be compared with.
pub(crate) fn main_plot(here: &Place) -> Option<Plot> {
    const EVENTS: [(&str, &str); 5] = [
        ("begin/10", "begin, 10 characters"),
        ("begin/1000", "begin, 1000 characters"),
        ("end", "end"),
        ("scoped", "scope: begin and end"),
        ("int", "counter"),
    ];
    let line = |label: &str, ids: &[(&str, String)], base: &str| {
        let rows: Vec<&Row> = ids.iter().filter_map(|(bench, id)| here.row(bench, id)).collect();
        let own = rows.iter().find(|row| row.id.starts_with("rust/"))?;
        let text =
            match ids.iter().find_map(|(_, id)| id.starts_with(base).then(|| versus(own, id)).flatten()) {
                Some(v) => format!("{}, {} of {}", time(own.median), ratio(v.ratio), base_name(base)),
                None => time(own.median),
            };
        Some(Line { label: label.to_owned(), text, points: rows.into_iter().map(Point::of).collect() })
    };
    let mut groups = Vec::new();
    for (state, limit) in [("off", "load_and_test"), ("on", "")] {
        let lines = EVENTS.iter().filter_map(|(name, label)| {
            let limit =
                if limit.is_empty() { format!("limit/raw_write_{name}") } else { format!("limit/{limit}") };
            let ids = [
                ("atrace", limit),
                ("atrace", format!("cc/tracing_{state}_{name}")),
                ("atrace", format!("rust/tracing_{state}_{name}")),
                ("atrace", format!("ffi/tracing_{state}_{name}")),
            ];
            line(label, &ids, "cc/")
        });
        groups.push(Group { title: format!("Tracing {state}"), lines: lines.collect() });
    }
    for (title, who, base) in [
        ("The crate tracing, filtered", "filtered", "no_subscriber"),
        ("The crate tracing, on", "tracing_on", "raw_write_of_on"),
    ] {
        let lines = CASES.iter().filter_map(|(case, label)| {
            let ids = [
                ("subscriber", format!("limit/{base}_{case}")),
                ("subscriber", format!("rust/{who}_{case}")),
            ];
            line(label, &ids, "limit/")
        });
        groups.push(Group { title: title.to_owned(), lines: lines.collect() });
    }
    groups.retain(|group| !group.lines.is_empty());
    (!groups.is_empty()).then(|| Plot {
        id: "costs".to_owned(),
        title: "What an event costs".to_owned(),
        caption: "Medians with 95 % intervals, most of them narrower than the marks. The limit is a load and a test while off, and while on a write(2) of the very bytes; of the crate tracing, a program without a subscriber, and the writes.".to_owned(),
        kind: Kind::Dots,
        groups,
    })
}

fn base_name(base: &str) -> &'static str {
    match base {
        "cc/" => "C++",
        _ => "the limit",
    }
}

/// From the limit up to what others take, off and on.
fn ladder(here: &Place) -> Option<Plot> {
    const NAMED: [(&str, &str, &str, &str); 23] = [
        ("off", "atrace", "limit/empty_loop", "an empty loop"),
        ("off", "atrace", "limit/load_and_test", "a load and a test"),
        ("off", "atrace", "rust/tracing_off_begin/10", "begin"),
        ("off", "atrace", "cc/tracing_off_begin/10", "begin in C++"),
        ("off", "atrace", "ffi/tracing_off_begin/10", "begin, libcutils' mask"),
        ("off", "subscriber", "limit/no_subscriber_event", "tracing, no subscriber"),
        ("off", "subscriber", "rust/filtered_event", "tracing, filtered"),
        ("off", "subscriber", "rust/tracing_off_event", "tracing, not filtered"),
        ("off", "subscriber", "limit/noop_always_event", "tracing, does nothing"),
        ("off", "subscriber", "limit/registry_event", "tracing, Registry alone"),
        ("off", "subscriber", "rust/layer_filtered_event", "tracing, layer filtered"),
        ("off", "subscriber", "rust/layer_off_event", "tracing, layer"),
        ("on", "atrace", "limit/getppid", "any system call (getppid)"),
        ("on", "atrace", "limit/write_dev_null", "write(2) to /dev/null"),
        ("on", "atrace", "limit/inline_syscall_begin/10", "write inline, unguarded"),
        ("on", "atrace", "limit/raw_write_begin/10", "write(2) to the marker"),
        ("on", "atrace", "rust/tracing_on_begin/10", "begin"),
        ("on", "atrace", "rust/tracing_on_begin_fmt", "begin, formatted"),
        ("on", "atrace", "ffi/tracing_on_begin/10", "begin through libcutils"),
        ("on", "atrace", "cc/tracing_on_begin/10", "begin in C++"),
        ("on", "subscriber", "rust/tracing_on_event", "tracing, subscriber"),
        ("on", "subscriber", "rust/layer_on_event", "tracing, layer"),
        ("on", "subscriber", "rust/on_filtered_event", "tracing, filter and on"),
    ];
    let mut groups = Vec::new();
    for state in ["off", "on"] {
        let named = NAMED.iter().filter(|(s, ..)| *s == state);
        let mut all: Vec<(&Row, String)> = named
            .filter_map(|(_, bench, id, label)| Some((here.row(bench, id)?, (*label).to_owned())))
            .collect();
        // Each peer does its own thing with an event: in a file, a queue, or thrown away.
        for row in here.benches.get("subscriber").iter().flat_map(|bench| &bench.rows) {
            let Some((who, case)) = row.id.strip_prefix("peer-").and_then(|id| id.split_once('/')) else {
                continue;
            };
            match (state, case) {
                ("on", "event") => all.push((row, who.to_owned())),
                ("off", "off_event") => all.push((row, format!("{who}, off"))),
                _ => {}
            }
        }
        all.sort_by(|a, b| a.0.median.total_cmp(&b.0.median));
        let line = |(row, label): (&Row, String)| Line {
            label,
            text: if row.noisy { format!("{} (noisy)", time(row.median)) } else { time(row.median) },
            points: vec![Point::of(row)],
        };
        let lines = all.into_iter().map(line).collect();
        groups.push(Group { title: format!("One event, {state}"), lines });
    }
    groups.retain(|group| !group.lines.is_empty());
    (!groups.is_empty()).then(|| Plot {
        id: "ladder".to_owned(),
        title: "From the limit up".to_owned(),
        caption: "One event without fields. Peers write to sinks of their own or throw away, so they are no like for like; they are what else one could take.".to_owned(),
        kind: Kind::Ladder,
        groups,
    })
}

/// The second table of the original.
fn subscriber(here: &Place) -> Option<Section> {
    let bench = here.benches.get("subscriber")?;
    let row = |id: &str| bench.rows.iter().find(|row| row.id == id);
    let mut table = Table {
        title: "The original's twelve, there and here".to_owned(),
        columns: ["case", "there", "here", "of what", "ratio", "allocations", "instructions"].map(str::to_owned).to_vec(),
        note: "Filtered is compared with a program that has no subscriber, off with a subscriber that takes everything and does nothing, on with raw writes of the same messages (one for an event, two for a span).".to_owned(),
        ..Table::default()
    };
    for case in published::SUBSCRIBER {
        let own = row(&format!("rust/{}", case.name));
        let base = own.and_then(|own| own.vs.iter().chain(&own.vs_process).next());
        table.rows.push(vec![
            Cell::Name(case.name.to_owned()),
            Cell::Value(Value {
                median: case.rust.ns,
                low: case.rust.low,
                high: case.rust.high,
                unit: "ns".to_owned(),
                noisy: false,
                own: false,
            }),
            Cell::value(own),
            base.map_or(Cell::Empty, |(base, _)| Cell::Text(base.clone())),
            Cell::ratio(base.map(|(_, v)| v)),
            Cell::count(own.and_then(|r| r.allocs)),
            Cell::count(here.row(INSTRUCTIONS, &format!("rust/{}", case.name)).map(|r| r.median)),
        ]);
    }
    Some(Section {
        id: "twelve".to_owned(),
        title: "The crate tracing: the subscriber's twelve".to_owned(),
        text: vec!["An event and a span, without and with four fields, through AtraceSubscriber.".to_owned()],
        parts: vec![Part::Table(table.dense())],
    })
}

/// Every kind of subscriber beside the others.
fn kinds(here: &Place) -> Option<Section> {
    let bench = here.benches.get("subscriber")?;
    let mut kinds: Vec<(String, BTreeMap<&str, &Row>)> = Vec::new();
    for row in &bench.rows {
        // The longest case first, as one's name ends with another's.
        let cases = ["event_args", "span_args", "event", "span"];
        let Some((kind, case)) = cases.iter().find_map(|case| Some((row.id.strip_suffix(case)?, *case)))
        else {
            continue;
        };
        let kind = kind.trim_end_matches(['_', '/']).to_owned();
        match kinds.iter_mut().find(|(other, _)| *other == kind) {
            Some((_, cases)) => _ = cases.insert(case, row),
            None => kinds.push((kind, BTreeMap::from([(case, row)]))),
        }
    }
    kinds.retain(|(kind, _)| !kind.starts_with("limit/raw_write"));
    let mut table = Table {
        title: "All kinds of subscriber".to_owned(),
        columns: ["kind"]
            .into_iter()
            .chain(CASES.map(|(_, label)| label))
            .chain(["allocations of a span with fields"])
            .map(str::to_owned)
            .collect(),
        ..Table::default()
    };
    for (kind, cases) in &kinds {
        let mut cells = vec![Cell::Name(kind.clone())];
        cells
            .extend(CASES.map(|(case, _)| cases.get(case).map_or(Cell::Empty, |row| Cell::value(Some(row)))));
        cells.push(Cell::count(cases.get("span_args").and_then(|row| row.allocs)));
        table.rows.push(cells);
    }
    let peers = kinds.iter().any(|(kind, _)| kind.starts_with("peer-"));
    let text = match peers {
        true => {
            "Peers are what else a program could take; each writes to a sink of its own, so what they cost beside the write differs too."
        }
        false => {
            "Peers were not measured: `cargo bench -p atrace-benches --features peers --bench subscriber` adds them."
        }
    };
    Some(Section {
        id: "kinds".to_owned(),
        title: "Subscribers beside each other".to_owned(),
        text: vec![text.to_owned()],
        parts: vec![Part::Table(table)],
    })
}

/// What changes the cost of an event: its name, threads, a watch.
fn circumstances(here: &Place) -> Option<Section> {
    let bench = here.benches.get("atrace")?;
    let mut parts = Vec::new();
    let mut lines = Vec::new();
    for row in &bench.rows {
        let Some((state, length)) = row.id.strip_prefix("rust/").and_then(|id| id.split_once("_name/"))
        else {
            continue;
        };
        let raw = format!("limit/raw_write_name/{length}");
        let text = versus(row, &raw).map(|v| format!(", {} of the raw write", ratio(v.ratio)));
        let raw = bench.rows.iter().find(|row| row.id == raw && state == "on");
        lines.push(Line {
            label: format!("{length} characters, {state}"),
            text: time(row.median) + &text.unwrap_or_default(),
            points: raw.into_iter().chain([row]).map(Point::of).collect(),
        });
    }
    if !lines.is_empty() {
        parts.push(Part::Plot(Plot {
            id: "names".to_owned(),
            title: "The length of the name".to_owned(),
            caption: String::new(),
            kind: Kind::Dots,
            groups: vec![Group { title: String::new(), lines }],
        }));
    }
    for (title, note, select) in [
        (
            "Threads",
            "CPU time of one operation when several threads run it. From two threads on, every write(2) of a process pays for the shared table of descriptors, in any language.",
            (|id: &str| id.ends_with("_thread") || id.ends_with("_threads")) as fn(&str) -> bool,
        ),
        ("A thread that watches", "In processes of their own.", |id: &str| id.starts_with("rust/on_begin_")),
    ] {
        let rows: Vec<&Row> = bench.rows.iter().filter(|row| select(&row.id)).collect();
        if !rows.is_empty() {
            let mut table = plain_table(title, &rows);
            table.note = note.to_owned();
            parts.push(Part::Table(table));
        }
    }
    (!parts.is_empty()).then(|| Section {
        id: "circumstances".to_owned(),
        title: "Names, threads, a watch".to_owned(),
        text: Vec::new(),
        parts,
    })
}

/// A table of rows as they are.
fn plain_table(title: &str, rows: &[&Row]) -> Table {
    let has = |f: &dyn Fn(&Row) -> bool| rows.iter().any(|row| f(row));
    let (allocs, bytes) = (has(&|r| r.allocs.is_some()), has(&|r| r.bytes.is_some_and(|b| b > 0.0)));
    let versus = has(&|r| !r.vs.is_empty() || !r.vs_process.is_empty());
    let mut columns = vec!["case", "median"];
    columns.extend(versus.then_some("compared"));
    columns.extend(allocs.then_some("allocations"));
    columns.extend(bytes.then_some("bytes"));
    let counts = has(&|r| !r.counts.is_empty());
    columns.extend(counts.then_some("counted"));
    let mut table = Table {
        title: title.to_owned(),
        columns: columns.into_iter().map(str::to_owned).collect(),
        ..Table::default()
    };
    for row in rows {
        let mut cells = vec![Cell::Name(row.id.clone()), Cell::value(Some(row))];
        if versus {
            let all = row.vs.iter().chain(&row.vs_process);
            let all: Vec<_> = all
                .filter(|(base, _)| **base != row.id)
                .map(|(base, v)| (of(&row.id, base), Cell::ratio(Some(v))))
                .collect();
            cells.push(if all.is_empty() { Cell::Empty } else { Cell::List(all) });
        }
        if allocs {
            cells.push(Cell::count(row.allocs));
        }
        if bytes {
            cells.push(Cell::count(row.bytes));
        }
        if counts {
            let all = counted_of(row);
            cells.push(if all.is_empty() { Cell::Empty } else { Cell::List(all) });
        }
        table.rows.push(cells);
    }
    table
}

/// The first few things that were counted, and were there; report.json has all.
fn counted_of(row: &Row) -> Vec<(String, Cell)> {
    let there = row.counts.iter().filter(|(_, n)| **n != 0.0);
    there.take(5).map(|(what, n)| (what.clone(), Cell::Count(*n))).collect()
}

/// What a row is compared to, as short as it is clear.
fn of(id: &str, base: &str) -> String {
    let split = |id: &str| id.split_once('/').map(|(who, rest)| (who.to_owned(), rest.to_owned()));
    match (split(id), split(base)) {
        (Some((_, mine)), Some((who, theirs))) if mine == theirs => format!("of {who}"),
        _ => format!("of {base}"),
    }
}

/// The benches that have no section of their own above.
fn workloads(here: &Place) -> Vec<Section> {
    let known = |name: &String| KNOWN.contains(&&name[..]);
    let benches = here.benches.iter().filter(|(name, bench)| !known(name) && !bench.rows.is_empty());
    benches.map(|(name, bench)| workload(name, &bench.rows)).collect()
}

/// Splits the id of a workload's row into its case and its mode.
fn case_and_mode(row: &Row) -> Option<(&str, &str)> {
    row.id.rsplit_once('/')
}

/// A program with and without tracing: what each mode adds to each case.
fn workload(name: &str, rows: &[Row]) -> Section {
    // The mode that the others are held against: that which most of them name.
    let mut named: BTreeMap<&str, usize> = BTreeMap::new();
    for base in rows.iter().flat_map(|row| row.above.keys()) {
        *named.entry(base).or_default() += 1;
    }
    let base = named.iter().max_by_key(|(_, n)| **n).map(|(base, _)| *base).unwrap_or_default();
    let mut cases: Vec<&str> = Vec::new();
    let mut modes: Vec<&str> = Vec::new();
    for row in rows.iter().filter(|row| row.above.contains_key(base)) {
        let Some((case, mode)) = case_and_mode(row) else { continue };
        if !cases.contains(&case) {
            cases.push(case);
        }
        if !modes.contains(&mode) {
            modes.push(mode);
        }
    }
    let find = |case: &str, mode: &str| rows.iter().find(|row| case_and_mode(row) == Some((case, mode)));
    let mut table = Table { title: format!("{name}: what each mode adds"), ..Table::default() };
    table.columns = vec!["case".to_owned(), base.to_owned()];
    table.columns.extend(modes.iter().map(|mode| format!("{mode} adds")));
    table.columns.extend(["allocations added", "counted"].map(str::to_owned));
    let mut groups = Vec::new();
    let mut told: Vec<&str> = Vec::new();
    for case in &cases {
        let plain = find(case, base);
        told.extend(plain.map(|row| &row.id[..]));
        let mut cells =
            vec![Cell::Name((*case).to_owned()), plain.map_or(Cell::Empty, |row| Cell::value(Some(row)))];
        let mut lines = Vec::new();
        let (mut allocations, mut counted) = (Vec::new(), Vec::new());
        for mode in &modes {
            let Some((row, above)) = find(case, mode).and_then(|row| Some((row, row.above.get(base)?)))
            else {
                cells.push(Cell::Empty);
                continue;
            };
            told.push(&row.id);
            cells.push(Cell::Value(Value {
                median: above.ns,
                low: above.low,
                high: above.high,
                unit: "ns".to_owned(),
                noisy: row.noisy,
                own: true,
            }));
            if let Some(n) = above.allocs.filter(|n| *n != 0.0) {
                allocations.push((format!("in {mode}"), Cell::Count(n)));
            }
            counted = counted_of(row);
            let sign = if above.ns < 0.0 { "" } else { "+" };
            let writes = above
                .raw_writes
                .map(|v| format!(", {} of the raw writes", ratio(v.ratio)))
                .unwrap_or_default();
            lines.push(Line {
                label: (*mode).to_owned(),
                text: format!("{sign}{}{writes}", time(above.ns)),
                points: vec![Point {
                    median: above.ns,
                    low: above.low,
                    high: above.high,
                    of: format!("{} above {base}", row.id),
                    ..Point::of(row)
                }],
            });
        }
        cells.push(match allocations.is_empty() {
            true => Cell::Text("0".to_owned()),
            false => Cell::List(allocations),
        });
        cells.push(if counted.is_empty() { Cell::Empty } else { Cell::List(counted) });
        table.rows.push(cells);
        groups.push(Group { title: (*case).to_owned(), lines });
    }
    let mut parts = Vec::new();
    if !cases.is_empty() {
        parts.push(Part::Plot(Plot {
            id: format!("workload-{}", slug(name)),
            title: format!("{name}: what tracing adds to {base}"),
            caption: "An interval with zero in it is no difference that was measured.".to_owned(),
            kind: Kind::Differences,
            groups,
        }));
        parts.push(Part::Table(table.dense()));
    }
    let rest: Vec<&Row> = rows.iter().filter(|row| !told.contains(&&row.id[..])).collect();
    if !rest.is_empty() {
        let table = Part::Table(plain_table(&format!("{name}: all else that was measured"), &rest));
        parts.push(match rest.len() {
            n if n <= 30 || cases.is_empty() => table,
            n => Part::Folded(format!("{name}: {n} more rows"), vec![table]),
        });
    }
    Section {
        id: format!("bench-{}", slug(name)),
        title: format!("Workload: {name}"),
        text: vec![format!(
            "Time, allocations and counts of one operation of the workload; what a mode adds is the median difference to \"{}\", with its interval.",
            if base.is_empty() { "the same without tracing" } else { base }
        )],
        parts,
    }
}

/// Whether filtered tracing costs programs anything, over all workloads.
fn filtered(here: &Place) -> Option<Finding> {
    let all: Vec<(&Row, crate::row::Above)> = here
        .benches
        .values()
        .flat_map(|bench| &bench.rows)
        .filter(|row| !row.noisy && row.id.ends_with("/filtered"))
        .filter_map(|row| Some((row, *row.above.get("nosub")?)))
        .collect();
    let (none, some): (Vec<_>, Vec<_>) =
        all.iter().partition(|(_, above)| above.low <= 0.0 && above.high >= 0.0);
    let mut beside =
        vec![format!("that can be measured, in {} of {} cases, above no subscriber", none.len(), all.len())];
    beside.extend(some.iter().take(2).map(|(row, above)| {
        let sign = if above.ns < 0.0 { "" } else { "+" };
        format!("{}: {sign}{}", row.id, time(above.ns))
    }));
    let value = if none.is_empty() { "some".to_owned() } else { "nothing".to_owned() };
    (!all.is_empty()).then(|| Finding {
        what: "programs, filtered, pay".to_owned(),
        value: Some(value),
        beside,
    })
}

fn slug(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect()
}

fn instructions(here: &Place) -> Option<Section> {
    let rows: Vec<&Row> = here.benches.get(INSTRUCTIONS)?.rows.iter().collect();
    let mut table = plain_table("Instructions of one operation", &rows);
    table.note = "Instructions of the program, counted by callgrind: not those of the kernel. The same from run to run, so that a change of one instruction is seen on the busiest machine.".to_owned();
    (!rows.is_empty()).then(|| Section {
        id: INSTRUCTIONS.to_owned(),
        title: "Instructions".to_owned(),
        text: Vec::new(),
        parts: vec![Part::Folded(format!("{} cases", rows.len()), vec![Part::Table(table)])],
    })
}

/// How the rounds of the main cases were distributed.
fn rounds(here: &Place) -> Option<Section> {
    let mut groups = Vec::new();
    for state in ["off", "on"] {
        let mut lines = Vec::new();
        for case in
            published::WRAPPER.iter().filter(|case| case.name.starts_with(&format!("tracing_{state}")))
        {
            for who in ["cc", "rust"] {
                let Some(row) = here.row("atrace", &format!("{who}/{}", case.name)) else { continue };
                lines.extend(distribution(row, here));
            }
        }
        groups.push(Group { title: format!("Tracing {state}"), lines });
    }
    let mut lines = Vec::new();
    for case in published::SUBSCRIBER {
        if let Some(row) = here.row("subscriber", &format!("rust/{}", case.name)) {
            lines.extend(distribution(row, here));
        }
    }
    groups.push(Group { title: "The crate tracing".to_owned(), lines });
    groups.retain(|group| !group.lines.is_empty());
    let plot = (!groups.is_empty()).then(|| Part::Plot(Plot {
        id: "rounds".to_owned(),
        title: "How the rounds were distributed".to_owned(),
        caption: "The rounds of the benches, or where they were not kept Criterion's samples. Each round of the first two groups is a slice of 0.3 ms, each of the third a process.".to_owned(),
        kind: Kind::Rounds,
        groups,
    }));
    let criterion = criterion_table(here).map(|table| {
        Part::Folded("What Criterion says of the same cases".to_owned(), vec![Part::Table(table)])
    });
    let parts: Vec<Part> = plot.into_iter().chain(criterion).collect();
    (!parts.is_empty()).then(|| Section {
        id: "rounds".to_owned(),
        title: "How sure this is".to_owned(),
        text: Vec::new(),
        parts,
    })
}

fn distribution(row: &Row, here: &Place) -> Option<Line> {
    let criterion = || here.criterion.get(&criterion_id(&row.id))?.samples.as_ref();
    let (rounds, what) = match &row.rounds {
        Some(rounds) if rounds.n >= 6 => (rounds, "rounds"),
        _ => (criterion().filter(|samples| samples.n >= 6)?, "samples"),
    };
    let median = rounds.at[5];
    if median <= 0.0 {
        return None;
    }
    let mut point = Point::of(row);
    point.median = median;
    point.rounds = rounds.at.iter().map(|x| x / median).collect();
    let off = |part: f64| format!("{:.1}", part.abs() * 100.0);
    let text =
        format!("−{} … +{} % of {} {what}", off(1.0 - point.rounds[2]), off(point.rounds[8] - 1.0), rounds.n);
    let label = match row.id.split_once("/tracing_") {
        Some(("cc", name)) => format!("C++ {name}"),
        Some((_, name)) => name.to_owned(),
        None => row.id.trim_start_matches("rust/").to_owned(),
    };
    Some(Line { label, text, points: vec![point] })
}

/// What Criterion calls the case of a row.
fn criterion_id(id: &str) -> String {
    published::label(id).trim_start_matches("rust/").to_owned()
}

fn criterion_table(here: &Place) -> Option<Table> {
    let mut table = Table {
        title: "Criterion".to_owned(),
        columns: ["case", "Criterion's median", "the benches' median", "ratio"].map(str::to_owned).to_vec(),
        note: "Criterion runs a case for a second by itself, minutes after the benches compared it with others round by round: what differs between the two is the machine's drift.".to_owned(),
        ..Table::default()
    };
    for bench in ["atrace", "subscriber"] {
        for row in here.benches.get(bench).iter().flat_map(|bench| &bench.rows) {
            let Some(estimate) = here.criterion.get(&criterion_id(&row.id)) else { continue };
            let value = Value {
                median: estimate.median,
                low: estimate.low,
                high: estimate.high,
                unit: "ns".to_owned(),
                noisy: false,
                own: row.id.starts_with("rust/"),
            };
            let ratio =
                if row.median > 0.0 { Cell::Ratio(estimate.median / row.median, None) } else { Cell::Empty };
            table.rows.push(vec![
                Cell::Name(row.id.clone()),
                Cell::Value(value),
                Cell::value(Some(row)),
                ratio,
            ]);
        }
    }
    (!table.rows.is_empty()).then_some(table)
}

/// The original's cases on a device, beside this machine's ratios.
fn of_device(name: &str, device: &Place, here: &Place) -> Section {
    let mut table = Table {
        title: "The original's cases".to_owned(),
        columns: ["case", "C++", "Rust", "Rust of C++", "Rust of C++, this machine", "allocations"]
            .map(str::to_owned)
            .to_vec(),
        ..Table::default()
    };
    let ratio_in = |place: &Place, name: &str| {
        Cell::ratio(
            place.row("atrace", &format!("rust/{name}")).and_then(|r| versus(r, &format!("cc/{name}"))),
        )
    };
    for case in published::WRAPPER {
        let row = |who: &str| device.row("atrace", &format!("{who}/{}", case.name));
        table.rows.push(vec![
            Cell::Name(case.name.to_owned()),
            Cell::value(row("cc")),
            Cell::value(row("rust")),
            ratio_in(device, case.name),
            ratio_in(here, case.name),
            Cell::count(row("rust").and_then(|r| r.allocs)),
        ]);
    }
    let mut twelve = Table {
        title: "The crate tracing".to_owned(),
        columns: ["case", "device", "this machine", "allocations"].map(str::to_owned).to_vec(),
        ..Table::default()
    };
    for case in published::SUBSCRIBER {
        let id = format!("rust/{}", case.name);
        let row = device.row("subscriber", &id);
        twelve.rows.push(vec![
            Cell::Name(case.name.to_owned()),
            Cell::value(row),
            Cell::value(here.row("subscriber", &id)),
            Cell::count(row.and_then(|r| r.allocs)),
        ]);
    }
    let about = Table {
        title: "The device".to_owned(),
        columns: vec!["".to_owned(), "".to_owned()],
        rows: device
            .device
            .iter()
            .map(|(key, value)| vec![Cell::Text(key.clone()), Cell::Text(value.clone())])
            .collect(),
        ..Table::default()
    };
    let mut parts = vec![Part::Table(table), Part::Table(twelve), Part::Table(about)];
    for (bench, found) in &device.benches {
        let rows: Vec<&Row> = found.rows.iter().collect();
        parts.push(Part::Folded(format!("{bench}: every row"), vec![Part::Table(plain_table(bench, &rows))]));
    }
    Section {
        id: format!("device-{}", slug(name)),
        title: format!("Device: {name}"),
        text: Vec::new(),
        parts,
    }
}

/// What is told of an environment, and how.
type Field<'a> = (&'a str, &'a dyn Fn(&Environment) -> String);

fn environments(here: &Place) -> Section {
    let benches: Vec<(&String, &Environment)> =
        here.benches.iter().filter_map(|(name, bench)| Some((name, bench.environment.as_ref()?))).collect();
    let fields: [Field<'_>; 14] = [
        ("measured until", &|e| date(e.time)),
        ("for", &|e| time(e.seconds * 1e9)),
        ("CPU", &|e| e.cpu.clone()),
        ("CPUs", &|e| format!("{}{}, {}", e.cpus, if e.guest { " of a guest" } else { "" }, e.arch)),
        ("governor", &|e| {
            if e.governors.is_empty() {
                "none: the clock is the host's".to_owned()
            } else {
                e.governors.join(", ")
            }
        }),
        ("system", &|e| e.system.clone()),
        ("kernel", &|e| e.kernel.clone()),
        ("defence against SRSO", &|e| e.returns.clone()),
        ("Rust", &|e| e.rustc.clone()),
        ("C++", &|e| e.cxx.clone()),
        ("commit", &|e| format!("{}{}", e.commit, if e.changed { ", with changes" } else { "" })),
        ("sink", &|e| e.sink.clone()),
        ("run", &|e| if e.quick { "--quick".to_owned() } else { "full".to_owned() }),
        ("load meanwhile", &|e| {
            e.load.map_or("unknown".to_owned(), |load| {
                format!(
                    "others {}, host {}, load average before {}",
                    percent(load.others),
                    percent(load.stolen),
                    digits(load.before)
                )
            })
        }),
    ];
    let mut table = Table { title: "Environment".to_owned(), ..Table::default() };
    table.columns =
        [String::new()].into_iter().chain(benches.iter().map(|(name, _)| (*name).clone())).collect();
    for (name, field) in fields {
        let values: Vec<String> = benches.iter().map(|(_, e)| field(e)).collect();
        // What is the same everywhere is said once.
        let same = values.len() > 1 && values.iter().all(|value| *value == values[0]);
        let cells = values.into_iter().enumerate().map(|(index, value)| match value {
            _ if same && index > 0 => Cell::Text("same".to_owned()),
            value if value.is_empty() => Cell::Empty,
            value => Cell::Text(value),
        });
        table.rows.push([Cell::Text(name.to_owned())].into_iter().chain(cells).collect());
    }
    let text = match benches.is_empty() {
        true => vec![
            "The benches left no description of the machine (an older version's results): measure again."
                .to_owned(),
        ],
        false => Vec::new(),
    };
    let parts = if benches.is_empty() { Vec::new() } else { vec![Part::Table(table)] };
    Section { id: "environment".to_owned(), title: "What it was measured on".to_owned(), text, parts }
}

fn reading() -> Section {
    Section {
        id: "reading".to_owned(),
        title: "How to read this".to_owned(),
        text: [
            "Every number is the median over rounds, with the bounds of its 95 % interval in small print. The cases of one comparison run in turn within each round, so what disturbs the machine disturbs both; a ratio is the median of the rounds' ratios, with an interval of its own. Compare ratios; times move from machine to machine and from day to day.",
            "A row whose interval is wider than 5 % and 0.15 ns to each side is noisy and counts as not measured.",
            "Where two subscribers are compared, which a process can't hold both, whole processes take turns and each is one round.",
            "Below a nanosecond, a difference of 0.3 ns is a matter of where the linker put the code.",
        ]
        .map(str::to_owned)
        .to_vec(),
        parts: Vec::new(),
    }
}

fn everything(here: &Place) -> Option<Section> {
    let parts: Vec<Part> = here
        .benches
        .iter()
        .filter(|(name, _)| ["atrace", "subscriber"].contains(&&name[..]))
        .map(|(name, bench)| {
            let rows: Vec<&Row> = bench.rows.iter().collect();
            Part::Folded(format!("{name}: {} rows", rows.len()), vec![Part::Table(plain_table(name, &rows))])
        })
        .collect();
    (!parts.is_empty()).then(|| Section {
        id: "rows".to_owned(),
        title: "Every row".to_owned(),
        text: Vec::new(),
        parts,
    })
}

#[cfg(test)]
mod tests {
    use super::super::model::Series;
    use super::*;

    #[test]
    fn series_are_told_by_ids() {
        assert_eq!(Series::of("peer-tracing-chrome/event"), Series::Peer);
        assert_eq!(of("rust/a/10", "cc/a/10"), "of cc");
        assert_eq!(of("rust/a", "limit/b"), "of limit/b");
    }
}
