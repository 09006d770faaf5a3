//! Tests that the report shows the measurements, whatever the files contain, and that the comparison with a saved run
//! fails exactly when it should.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use atrace_benches::catalogue::{EVENTS, Id, LITERALS, State, Who, published};
use atrace_benches::row::{self, Above, Row, Sink, Versus};
use atrace_benches::stats::Interval;

/// A directory of files with measurements, and the reports that are made from it.
struct Ground {
    dir: tempfile::TempDir,
}

/// The output and the files of a run of `report`.
#[derive(Debug)]
struct Ran {
    status: Option<i32>,
    out: String,
    err: String,
    html: String,
    /// The text of the HTML page, without markup.
    text: String,
    json: String,
}

impl Ground {
    fn new() -> Self {
        let this = Self { dir: tempfile::tempdir().unwrap() };
        fs::create_dir(this.measured()).unwrap();
        this
    }

    fn measured(&self) -> PathBuf {
        self.dir.path().join("overhead")
    }

    fn write(&self, bench: &str, rows: &[Row]) {
        row::write_to(&self.measured(), bench, rows).unwrap();
    }

    fn file(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// Copies the report to the place where `.ci/run` examines it in a browser.
    fn keep(&self, name: &str) {
        let to = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&to).unwrap();
        fs::copy(self.dir.path().join("report/report.html"), to.join("report.html")).unwrap();
    }

    fn run(&self, args: &str) -> Ran {
        let out = self.dir.path().join("report");
        let output = Command::new(env!("CARGO_BIN_EXE_report"))
            .arg("--measured")
            .arg(self.measured())
            .arg("--criterion")
            .arg(self.dir.path().join("criterion"))
            .arg("--out")
            .arg(&out)
            .args(args.split_whitespace())
            .output()
            .unwrap();
        let read = |name: &str| fs::read_to_string(out.join(name)).unwrap_or_default();
        let html = read("report.html");
        Ran {
            text: text_of(&html),
            status: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
            html,
            json: read("report.json"),
        }
    }

    /// Runs `report` on the files, and checks that it has this exit status and that its output contains these words.
    #[track_caller]
    fn expect(&self, args: &str, status: i32, words: &[&str]) -> Ran {
        let ran = self.run(args);
        assert_eq!(ran.status, Some(status), "{}{}", ran.out, ran.err);
        for word in words {
            assert!(
                ran.out.contains(word) || ran.err.contains(word),
                "no {word:?} in {}{}",
                ran.out,
                ran.err
            );
        }
        ran
    }
}

/// Returns the text of an HTML page: a line for each heading, paragraph, list entry and table row, with bars between
/// the cells.
fn text_of(html: &str) -> String {
    let mut text = html.to_owned();
    for (tag, sign) in [
        ("<h2>", "\n## "),
        ("<p", "\n<"),
        ("<li>", "\n- "),
        ("<tr>", "\n| "),
        ("</td>", " | "),
        ("</th>", " | "),
        ("<small>", " ("),
        ("</small>", ")"),
    ] {
        text = text.replace(tag, sign);
    }
    let (first, rest) = text.split_once('<').unwrap_or((&text, ""));
    let outside = rest.split('<').map(|part| part.split_once('>').map_or("", |(_, text)| text));
    first.to_owned() + &outside.collect::<String>()
}

fn row(id: &str, ns: f64) -> Row {
    let ns = Interval { median: ns, low: ns * 0.99, high: ns * 1.01, sure: true };
    let rounds: Vec<f64> = (0..100).map(|i| ns.median * (0.95 + f64::from(i) / 1000.0)).collect();
    Row { allocs: Some(0.0), bytes: Some(0.0), ..Row::new(id, ns, Sink::Tracefs).with_rounds(&rounds) }
}

fn compared(id: &str, ns: f64, base: &str, ratio: f64, half: f64) -> Row {
    let mut row = row(id, ns);
    row.vs.insert(
        base.to_owned(),
        Versus { ratio, low: ratio * (1.0 - half), high: ratio * (1.0 + half), sure: true },
    );
    row
}

/// Creates the result files of a run of the benches, with rows for most sections of the report.
fn full() -> Ground {
    let ground = Ground::new();
    let mut rows = vec![row("limit/load_and_test", 0.3)];
    for case in published::EVENTS.iter() {
        let on = case.state == State::On;
        let (cc, rust) = if on { (600.0, 400.0) } else { (4.0, 0.6) };
        let base = case.id(Who::Cc).to_string();
        let mut own = compared(&case.id(Who::Rust).to_string(), rust, &base, rust / cc, 0.01);
        if on {
            let raw = format!("limit/raw_write_{}", case.event);
            own.vs.insert(raw.clone(), Versus { ratio: 0.8, low: 0.79, high: 0.81, sure: true });
            rows.push(row(&raw, 500.0));
        }
        let ffi = compared(&case.id(Who::Ffi).to_string(), cc, &base, 1.0, 0.01);
        rows.extend([own, row(&base, cc), ffi]);
    }
    for event in EVENTS.iter().chain(LITERALS.iter()) {
        let id = Id::event(Who::Perfetto, State::On, event).to_string();
        let mut own = compared(&id, 30.0, "limit/raw_write_begin/10", 0.06, 0.01);
        own.above.insert("limit/timestamp".to_owned(), above(15.0));
        rows.push(own);
    }
    rows.push(compared("rust/tracing_on_method", 800.0, "limit/x", 1.0, 0.01));
    rows.extend(["limit/timestamp", "perfetto/tracing_on_begin/10/8_threads"].map(|id| row(id, 15.0)));
    rows.extend(["perfetto", "rust"].map(|who| row(&format!("{who}/on_begin_whole_machine/10"), 50.0)));
    ground.write("atrace", &rows);
    let twelve = published::TRACING.iter().flat_map(|case| {
        let ns = if case.kind == "tracing_on" { 500.0 } else { 6.0 };
        [case.id(), case.as_a_layer()].map(|id| compared(&id.to_string(), ns, "limit/x", 1.0, 0.01))
    });
    ground.write("subscriber", &twelve.collect::<Vec<_>>());
    let mut rows = vec![row("rust/work/none", 1000.0)];
    rows[0].counts.insert("polls".to_owned(), 3.0);
    for (mode, ns) in [("nosub", 0.5), ("filtered", 0.2), ("off", 40.0), ("on", 800.0)] {
        let mut own = row(&format!("rust/work/{mode}"), 1000.0 + ns);
        own.counts.insert("polls".to_owned(), 3.0);
        own.above.insert("none".to_owned(), above(ns));
        if mode != "nosub" {
            own.above.insert("nosub".to_owned(), above(ns - 0.5));
        }
        rows.push(own);
    }
    ground.write("sums", &rows);
    ground
}

fn above(ns: f64) -> Above {
    let ns = Interval::around(ns, 1.0);
    Above { allocs: Some(0.0), ..Above::from(ns) }
}

#[test]
fn a_run_is_told() {
    let ground = full();
    let ran = ground.expect(
        "",
        0,
        &[
            "an event, off: 0.60 ns, 0.15 of C++ (0.15–0.15)",
            "0.80 of a `write(2)` of the same bytes",
            "report.html",
        ],
    );
    assert!(ran.html.contains("id=\"plot-costs\" data-plot=\"dots\""));
    let events = published::EVENTS.iter().map(|case| case.id(Who::Rust).name);
    for case in events.chain(published::TRACING.iter().map(|case| case.id().name)) {
        assert!(ran.text.contains(&case), "no {case}");
    }
    // The report shows the numbers of AOSP's benchmark beside those of this run.
    assert!(
        ran.text.contains(
            "| tracing_on_begin/10 | 1119 | 1293 (1285–1304) | 1.16 | 600 (594–606) | 400 (396–404)"
        ),
        "{}",
        ran.text
    );
    assert!(
        ran.text.contains(
            "| rust/work | 1000 (990–1010) | 0.50 (-0.50 to 1.50) | 0.20 (-0.80 to 1.20) | 40.0 (39.0–41.0) | 800 (799–801) | 0 | 3 polls |"
        ),
        "{}",
        ran.text
    );
    ground.keep("report");
    // The page loads no other file, and has no scripts.
    assert!(!ran.html.contains("<script") && !ran.html.contains("src=") && !ran.html.contains("@import"));
    assert!(!ran.html.replace("http://www.w3.org/2000/svg", "").contains("http:"));
    let json: serde_json::Value = serde_json::from_str(&ran.json).unwrap();
    assert_eq!(json["measured"][""]["subscriber"]["rows"].as_array().unwrap().len(), 24);
    let svg = fs::read_to_string(ground.dir.path().join("report/costs.svg")).unwrap();
    assert!(svg.starts_with("<svg ") && svg.contains("xmlns=\"http://www.w3.org/2000/svg\""));
}

/// Returns the table of a part of report.json. The table may be in a folded section.
fn table(part: &serde_json::Value) -> Option<&serde_json::Value> {
    part.get("table").or_else(|| part.pointer("/folded/1"))
}

#[test]
fn every_table_has_its_form_and_every_cell_a_number_or_a_reason() {
    let ground = full();
    ground.file("overhead/environment/atrace.json", r#"{"cpu": "A", "kernel": "6.1"}"#);
    ground.file(
        "overhead/promises/atrace.json",
        r#"[{"promise": "off, of C++", "of": "off_end", "measured": "0.13", "more": "0.12–0.14", "limit": "≤ 0.20", "verdict": "kept", "exact": false}]"#,
    );
    let ran = ground.expect("", 0, &[]);
    let report: serde_json::Value = serde_json::from_str(&ran.json).unwrap();
    let mut forms = String::new();
    for section in report["sections"].as_array().unwrap() {
        for table in section["parts"].as_array().unwrap().iter().filter_map(table) {
            let columns: Vec<_> =
                table["columns"].as_array().unwrap().iter().map(|c| c.as_str().unwrap()).collect();
            let rows = table["rows"].as_array().unwrap();
            forms.push_str(&format!(
                "{}: {} x {}\n",
                section["id"].as_str().unwrap(),
                rows.len(),
                columns.join(", ")
            ));
            for row in rows.iter().map(|row| row.as_array().unwrap()) {
                assert_eq!(row.len(), columns.len(), "{}: {row:?}", section["id"]);
                assert!(row.iter().all(|cell| cell != "empty"), "{}: {row:?}", section["id"]);
            }
        }
    }
    assert_eq!(forms, include_str!("golden/tables.txt"), "\n{forms}");
    // The reason for each empty cell is below its table.
    for why in ["off, nothing is written", "not measured in this run", "there is no collector here"] {
        assert!(ran.text.contains(&format!(": {why}")), "{why}");
    }
}

/// Returns the part of a page of documentation that lies between the marks `<!-- costs …` and `<!-- /costs -->`.
fn costs(text: &str) -> &str {
    let begin = text.find("<!-- costs ").expect("the mark is there");
    let end = text.find("<!-- /costs -->").expect("its end is there");
    &text[begin..end]
}

#[test]
fn the_documentation_is_of_the_same_rows() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |name: &str| fs::read_to_string(root.join(name)).unwrap();
    let (readme, document) = (read("README.md"), read("docs/costs.md"));
    assert_eq!(costs(&readme), costs(&document), "`report --docs` makes both");
    assert_eq!(costs(&readme).lines().filter(|line| line.contains("| **")).count(), 8);
    assert!(readme.lines().count() <= 175, "{}", readme.lines().count());
    // People read this document, so the text outside of the generated tables is limited. The length of the generated
    // tables depends on the run.
    let written = document.split("<!-- /").map(|part| part.split("<!-- made ").next().unwrap_or_default());
    let written: usize = written.map(|part| part.lines().count()).sum();
    assert!(written <= 300, "{written}");
}

#[test]
fn the_documentation_is_made_of_rows() {
    let ground = full();
    let root = ground.dir.path().join("checkout");
    let docs = format!("--docs {}", root.display());
    fs::create_dir_all(root.join("docs")).unwrap();
    fs::write(root.join("README.md"), "before\n").unwrap();
    let with_docs = |status: i32, words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_report"));
        command.arg("--measured").arg(ground.measured()).args(docs.split_whitespace());
        let output = command.output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(status), "{said}");
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
    };
    with_docs(2, &["README.md: nothing between"]);
    fs::write(root.join("README.md"), "before\n<!-- costs 0 -->\n<!-- /costs -->\nafter\n").unwrap();
    with_docs(2, &["reading", "costs.md"]);
    fs::write(root.join("docs/costs.md"), "above\n<!-- costs 0 -->\n<!-- /costs -->\nbelow\n").unwrap();
    with_docs(0, &["costs.md", "README.md", "; 0 of "]);
    let read = |name: &str| fs::read_to_string(root.join(name)).unwrap();
    let (readme, document) = (read("README.md"), read("docs/costs.md"));
    assert!(
        readme.starts_with("before\n<!-- costs ") && readme.ends_with("<!-- /costs -->\nafter\n"),
        "{readme}"
    );
    assert!(readme.contains("| an event, off | **0.60** | 0.15 of C++ |"), "{readme}");
    assert_eq!(costs(&readme), costs(&document));
    assert!(document.starts_with("above\n<!-- costs ") && document.ends_with("<!-- /costs -->\nbelow\n"));
    assert!(read("docs/costs.svg").starts_with("<svg"));
    // If the benches ran on a host, the C++ numbers are those of this workspace's libcutils.
    ground.file("overhead/environment/atrace.json", r#"{"system": "A"}"#);
    with_docs(0, &[]);
    let on_a_host = "| an event, off | **0.60** | 0.15 of C++ with this workspace's libcutils |";
    assert!(read("README.md").contains(on_a_host), "{}", read("README.md"));
    assert!(read("docs/costs.svg").contains("C++ with this workspace's libcutils"));
    // If a row changes, the generated part of README.md changes, too.
    let mut rows = row::read(&ground.measured().join("subscriber.json")).unwrap();
    rows[0].median += 0.001;
    // The time in a row with a wide interval counts as not known if the row is compared with no other row.
    rows[1] = Row { noisy: true, ..row(&rows[1].id, 6.0) };
    ground.write("subscriber", &rows);
    with_docs(0, &["; 1 of ", " own times in its tables are not known"]);
    assert_ne!(costs(&read("README.md")), costs(&readme));
    fs::remove_file(ground.measured().join("subscriber.json")).unwrap();
    with_docs(2, &["not measured: rust/filtered_event"]);
}

#[test]
fn what_is_missing_is_named() {
    let ground = Ground::new();
    let ran = ground.expect("", 0, &["Nothing was measured yet"]);
    assert!(ran.html.contains("the bench atrace has left nothing: run `cargo bench"), "{}", ran.html);
    assert!(ran.text.contains("not measured"));
    let ground = full();
    let ran = ground.expect("", 0, &["warnings"]);
    assert!(ran.text.contains("the bench atrace has left no row rust/tracing_off_scoped"), "{}", ran.text);
    assert!(ran.text.contains("the bench instructions has left nothing"));
    fs::remove_file(ground.measured().join("subscriber.json")).unwrap();
    let ran = ground.expect("", 0, &[]);
    assert!(ran.text.contains("the bench subscriber has left nothing"));
    ground.expect("--measured /nowhere/at/all", 2, &["/nowhere/at/all: no directory"]);
}

#[test]
fn doubts_are_told() {
    let ground = full();
    let mut rows = row::read(&ground.measured().join("atrace.json")).unwrap();
    let find = |rows: &mut Vec<Row>, id: &str| rows.iter().position(|row| row.id == id).unwrap();
    let index = find(&mut rows, "rust/tracing_on_end");
    rows[index] = row("rust/tracing_on_end", 0.9);
    for id in ["cc/tracing_on_end", "limit/load_and_test"] {
        let index = find(&mut rows, id);
        rows[index].noisy = true;
    }
    rows[0].sink = Sink::Null;
    ground.write("atrace", &rows);
    ground.file(
        "overhead/environment/atrace.json",
        r#"{"cpu": "A", "kernel": "6.1", "commit": "abc", "changed": true, "quick": true, "load": {"others": 0.3, "stolen": 0.1, "before": 2}}"#,
    );
    ground.file("overhead/environment/subscriber.json", r#"{"cpu": "B", "kernel": "6.1", "commit": "abc"}"#);
    let ran = ground.expect("", 0, &[]);
    for doubt in [
        "perhaps tracing was not switched on: rust/tracing_on_end (0.90 ns and 0.60 ns)",
        "rows of atrace are uncertain, because the machine's speed varied; their ratios are known: cc/tracing_on_end",
        "rows of atrace are not known, neither their times nor a ratio: limit/load_and_test",
        "atrace was not measured into the kernel's marker",
        "atrace was measured with --quick",
        "sources changed since commit abc",
        "other programs took 30 % of the CPUs",
        "the host took 10 % of the CPUs away",
        "different CPUs (atrace: A, subscriber: B)",
    ] {
        assert!(ran.text.contains(doubt), "no {doubt:?} in {}", ran.text);
    }
    assert!(!ran.text.contains("different kernels"));
}

#[test]
fn a_file_cut_anywhere_is_survived() {
    let ground = full();
    let path = ground.measured().join("atrace.json");
    let whole = fs::read(&path).unwrap();
    for length in (0..whole.len() - 2).step_by(whole.len() / 40) {
        fs::write(&path, &whole[..length]).unwrap();
        let ran = ground.expect("", 0, &[]);
        assert!(ran.text.contains("atrace.json can't be read"), "{length}: {}", ran.text);
        // The report still shows the row of another file, which can be read.
        assert!(ran.text.contains("| tracing_on_span_args | 3699"), "{length}");
    }
    ground.expect("--save x", 2, &["nothing is saved as x"]);
    assert!(!ground.measured().join("saved/x").exists());
}

#[test]
fn hostile_files_do_nothing() {
    const EVIL: &str = "<script>alert(1)</script>\\\"'><img src=x onerror=alert(1)>|\\u202e]]>-->{{7*7}}";
    let ground = full();
    let id = format!("rust/{EVIL}");
    let row = |id: &str, numbers: &str| {
        format!(
            r#"{{"id": "{id}", "unit": "{EVIL}", {numbers}, "sink": "{EVIL}", "noisy": false, "vs": {{"{EVIL}": {{"ratio": 2, "low": 1, "high": 3}}}}}}"#
        )
    };
    let good = r#""median": 1, "low": 1, "high": 1"#;
    let bad = [
        r#""median": 1e999, "low": 1, "high": 1"#,
        r#""median": 1e300, "low": 1e300, "high": 1e301"#,
        r#""median": 5, "low": 9, "high": 1"#,
        r#""median": -1e16, "low": -1e17, "high": 1"#,
        r#""median": "<u>", "low": 1, "high": 1"#,
        r#""median": null, "low": 1, "high": 1"#,
    ];
    let mut rows =
        vec![row(&id, good), row(&id, good), "7".into(), "null".into(), "[[[[]]]]".into(), row("", good)];
    rows.push(row(&"x".repeat(100_000), good));
    rows.push(row("rust/rounds", &format!(r#"{good}, "rounds": {{"n": 3, "at": [1e300, null]}}"#)));
    rows.push(row("rust/allocs", &format!(r#"{good}, "allocs": -1"#)));
    rows.push(row("rust/zero", r#""median": 0, "low": 0, "high": 0"#));
    rows.push(row("rust/negative", r#""median": -5, "low": -6, "high": -4"#));
    ground.file("overhead/evil.json", format!("[{}]", rows.join(",")));
    // Some of these rows are not valid JSON, so each row has its own file.
    for (index, numbers) in bad.iter().enumerate() {
        ground.file(&format!("overhead/bad{index}.json"), format!("[{}]", row("rust/bad", numbers)));
    }
    ground.file("overhead/<img src=x>.json", format!("[{}]", row("rust/name", good)));
    ground.file("overhead/object.json", r#"{"a": [1, 2]}"#);
    ground.file("overhead/bytes.json", b"[\"\xff\xfe\"]");
    ground.file("overhead/deep.json", "[".repeat(1_000_000));
    ground.file("overhead/large.json", vec![b' '; 20 << 20]);
    fs::create_dir(ground.measured().join("directory.json")).unwrap();
    let fifo = Command::new("mkfifo").arg(ground.measured().join("fifo.json")).status().unwrap();
    assert!(fifo.success());
    std::os::unix::fs::symlink("/dev/zero", ground.measured().join("zero.json")).unwrap();
    ground.file(
        "overhead/promises/atrace.json",
        format!(
            r#"[{{"promise": "{EVIL}", "of": "{EVIL}", "measured": "", "more": "", "limit": "", "verdict": "kept", "exact": false}}]"#
        ),
    );
    let fifo = Command::new("mkfifo").arg(ground.measured().join("promises/live.json")).status().unwrap();
    assert!(fifo.success());
    std::os::unix::fs::symlink("loop.json", ground.measured().join("loop.json")).unwrap();
    ground.file(
        "overhead/environment/atrace.json",
        format!(
            r#"{{"cpu": "{EVIL}", "time": 18446744073709551615, "seconds": -1e300, "governors": ["{EVIL}"]}}"#
        ),
    );
    ground.file("overhead/environment/evil.json", r#"{"cpu": 7}"#);
    ground.file("overhead/phone/device.json", format!(r#"{{"model": "{EVIL}", "{EVIL}": [1]}}"#));
    ground.file("overhead/phone/atrace.json", format!("[{}]", row(&id, good)));
    ground.file("criterion/a/new/benchmark.json", format!(r#"{{"full_id": "{EVIL}"}}"#));
    ground.file("criterion/a/new/estimates.json", r#"{"median": {"point_estimate": -1}}"#);
    ground.file("criterion/b/new/benchmark.json", "[]");
    std::os::unix::fs::symlink(".", ground.dir.path().join("criterion/again")).unwrap();

    let ran = ground.expect("", 0, &["warnings"]);
    assert!(!ran.err.contains("panicked"), "{}", ran.err);
    ground.keep("report-hostile");
    for tag in ["<script", "<img", "<u>"] {
        assert!(!ran.html.contains(tag), "{tag} in the page");
    }
    assert!(ran.html.contains("&lt;script&gt;alert(1)"), "it is shown, as text");
    assert!(!ran.html.contains('\u{202e}') && !ran.json.contains('\u{202e}'));
    assert!(!ran.html.contains("NaN") && !ran.html.contains("inf\""));
    serde_json::from_str::<serde_json::Value>(&ran.json).unwrap();
    for (file, why) in [
        ("evil.json", "is there twice"),
        ("evil.json", "1 to 200 bytes"),
        ("evil.json", "rust/allocs&quot; are out of range"),
        ("bad0.json", "out of range"),
        ("bad1.json", "is not a median between"),
        ("bad2.json", "is not a median between"),
        ("object.json", "not an array of rows"),
        ("bytes.json", "can't be read"),
        ("deep.json", "can't be read: recursion limit"),
        ("large.json", "larger than"),
        ("fifo.json", "not a file"),
        ("promises/live.json", "not a file"),
        ("zero.json", "not a file"),
        ("estimates.json", "no median"),
    ] {
        let told = ran.text.lines().any(|line| line.contains(file) && line.contains(why));
        assert!(told, "nothing is said of {file}: {why}: {}", ran.text.split("## One").next().unwrap());
    }
    // The report still shows the valid rows.
    assert!(ran.text.contains("| tracing_on_span_args | 3699"));
}

#[test]
fn a_device_is_shown() {
    let ground = full();
    fs::create_dir(ground.measured().join("Pixel")).unwrap();
    fs::copy(ground.measured().join("atrace.json"), ground.measured().join("Pixel/atrace.json")).unwrap();
    ground.file("overhead/Pixel/device.json", r#"{"model": "Pixel 6", "api_level": 34}"#);
    let ran = ground.expect("", 0, &[]);
    assert!(ran.text.contains("## Device: Pixel") && ran.text.contains("| api_level | 34 |"), "{}", ran.text);
    // The saved results include the rows of the device. The report does not take the directory of saved results for a
    // device.
    ground.expect("--save a", 0, &["saved as a"]);
    ground.expect("--compare a", 0, &["no row is more than 5 % worse"]);
    fs::remove_file(ground.measured().join("Pixel/atrace.json")).unwrap();
    let ran = ground.expect("--compare a", 1, &["MISSING  Pixel: atrace: rust/tracing_on_end"]);
    assert_eq!(ran.text.matches("## Device: ").count(), 1);
}

#[test]
fn a_full_run_is_small() {
    let ground = full();
    // Makes about as many rows as the benches write.
    let base = "limit/base";
    for bench in ["suspension", "coroutines", "threads", "live", "subscriber", "atrace"] {
        let known = row::read(&ground.measured().join(format!("{bench}.json"))).unwrap_or_default();
        let more = (0..200)
            .map(|i| compared(&format!("rust/{bench}_case_{i}"), 100.0 + f64::from(i), base, 1.1, 0.02));
        ground.write(bench, &known.into_iter().chain(more).collect::<Vec<_>>());
    }
    for i in 0..100 {
        ground.file(
            &format!("criterion/c{i}/new/benchmark.json"),
            format!(r#"{{"full_id": "atrace_case_{i}"}}"#),
        );
        ground.file(
            &format!("criterion/c{i}/new/estimates.json"),
            r#"{"median": {"point_estimate": 2, "confidence_interval": {"lower_bound": 1, "upper_bound": 3}}}"#,
        );
    }
    let ran = ground.expect("", 0, &[]);
    assert!(ran.text.contains("What Criterion says"));
    let sizes = [ran.html.len(), ran.json.len()];
    assert!(sizes.iter().all(|&size| size <= 2 << 20), "{sizes:?}");
}

/// Saves a run with the rows `then`, replaces these rows with the rows `now`, and compares the rows with the saved run.
#[track_caller]
fn change(then: Vec<Row>, now: Vec<Row>, status: i32, words: &[&str]) -> Ran {
    change_of("atrace", then, now, status, words)
}

#[track_caller]
fn change_of(bench: &str, then: Vec<Row>, now: Vec<Row>, status: i32, words: &[&str]) -> Ran {
    let ground = Ground::new();
    ground.write(bench, &then);
    ground.expect("--save old", 0, &["saved as old"]);
    ground.write(bench, &now);
    ground.expect("--compare old --max-regression 5%", status, words)
}

fn pair(ns: f64, ratio: f64, half: f64) -> Vec<Row> {
    vec![compared("rust/a", ns, "cc/a", ratio, half), row("cc/a", ns / ratio)]
}

#[test]
fn the_same_passes() {
    change(
        pair(400.0, 0.6, 0.01),
        pair(400.0, 0.6, 0.01),
        0,
        &["no row is more than 5 % worse than in old (1 comparisons)"],
    );
}

#[test]
fn worse_for_sure_fails_and_is_named() {
    let ran = change(
        pair(400.0, 0.6, 0.01),
        pair(440.0, 0.66, 0.01),
        1,
        &[
            "WORSE    atrace: rust/a, ratio to cc/a: 0.60 → 0.66, × 1.10 (1.08–1.12)",
            "FAILED: against old, 1 rows",
        ],
    );
    assert!(
        ran.text.contains("## Compared with old")
            && ran.text.contains("WORSE    atrace: rust/a, ratio to cc/a: 0.60 → 0.66")
    );
    // A similar change that is smaller than the allowed maximum is no failure.
    change(pair(400.0, 0.6, 0.001), pair(416.0, 0.624, 0.001), 0, &[]);
    // An improvement is no failure.
    change(pair(400.0, 0.6, 0.01), pair(300.0, 0.45, 0.01), 0, &["better   atrace: rust/a"]);
}

#[test]
fn noise_does_not_fail() {
    // A growth by a tenth is no failure if the intervals are 4 % wide on each side.
    change(pair(400.0, 0.6, 0.04), pair(440.0, 0.66, 0.04), 0, &["no row is more"]);
    // If the machine was too unsteady to judge times, the ratios are still judged.
    let noisy = |ns: f64, ratio: f64| {
        let mut rows = pair(ns, ratio, 0.01);
        rows.push(row("rust/alone", ns));
        rows.iter_mut().for_each(|row| row.noisy = true);
        rows
    };
    change(noisy(400.0, 0.6), noisy(900.0, 0.6), 0, &["noisy    atrace: rust/alone: not judged"]);
    change(noisy(400.0, 0.6), noisy(400.0, 0.7), 1, &["WORSE    atrace: rust/a, ratio to cc/a"]);
    // If all rows are noisy, the comparison fails.
    let alone = noisy(400.0, 0.6)[2..].to_vec();
    change(alone.clone(), alone, 1, &["FAILED: no row can be judged"]);
}

#[test]
fn what_moves_with_the_machine_does_not_fail() {
    let run = |factor: f64, own: f64| {
        vec![
            row("limit/x", 10.0 * factor),
            row("cc/x", 40.0 * factor),
            row("rust/alone", 30.0 * factor * own),
        ]
    };
    change(run(1.0, 1.0), run(2.0, 1.0), 0, &["no row is more"]);
    change(
        run(1.0, 1.0),
        run(2.0, 1.2),
        1,
        &["WORSE    atrace: rust/alone, time, by 2.00 of the machine: 30.0 ns → 72.0 ns, × 1.20 (1.15–1.25)"],
    );
    // Rows that do not measure this workspace's code may become slower without a failure.
    change(run(1.0, 1.0), vec![row("limit/x", 90.0), row("cc/x", 40.0), row("rust/alone", 30.0)], 0, &[]);
}

#[test]
fn what_is_added_to_a_workload_is_compared() {
    let change = |then, now, status, words: &[&str]| change_of("threads", then, now, status, words);
    let run = |workload: f64, ns: f64| {
        let mut on = row("rust/work/on", workload + ns);
        on.above.insert("nosub".to_owned(), above(ns));
        vec![row("rust/work/nosub", workload), on, row("limit/raw", 100.0)]
    };
    change(run(1000.0, 800.0), run(1000.0, 820.0), 0, &["no row is more"]);
    change(
        run(1000.0, 800.0),
        run(1000.0, 880.0),
        1,
        &["WORSE    threads: rust/work/on, what it is above nosub"],
    );
    // If tracing added no time before, the added time may grow to 1 % of the workload's time of 1000 ns.
    change(run(1000.0, 0.0), run(1000.0, 10.0), 0, &["no row is more"]);
    change(run(1000.0, 0.0), run(1000.0, 14.0), 1, &["WORSE"]);
    // The time of the workload without tracing is not judged.
    change(run(1000.0, 800.0), run(2000.0, 800.0), 0, &["no row is more"]);
    // On a machine that has become half as fast, unchanged code takes twice the time. Code that takes the same time
    // there has become twice as fast.
    let slower = |ns: f64| {
        let mut rows = run(2000.0, ns);
        rows[2] = row("limit/raw", 200.0);
        rows
    };
    let ran = change(run(1000.0, 800.0), slower(1600.0), 0, &["no row is more"]);
    assert!(!ran.out.contains("better"), "{}", ran.out);
    change(run(1000.0, 800.0), slower(800.0), 0, &["better   threads: rust/work/on, what it is above nosub"]);
    change(
        run(1000.0, 800.0),
        slower(1760.0),
        1,
        &["WORSE    threads: rust/work/on, what it is above nosub"],
    );
    let mut without = run(1000.0, 800.0);
    without[1].above.clear();
    change(run(1000.0, 800.0), without, 1, &["MISSING  threads: rust/work/on: what it is above nosub"]);
}

#[test]
fn a_difference_does_not_make_a_bench_a_workload() {
    let run = |alone: f64| {
        let mut event = row("rust/event", 40.0);
        event.above.insert("limit/raw".to_owned(), above(10.0));
        vec![event, row("rust/alone", alone), row("limit/raw", 30.0)]
    };
    for bench in ["atrace", "subscriber"] {
        change_of(bench, run(30.0), run(36.0), 1, &["WORSE", "rust/alone, time, by 1.00 of the machine"]);
    }
    // In the bench of a workload, times that are not above a base are the workload's own, so they are not judged.
    change_of("threads", run(30.0), run(36.0), 0, &["no row is more"]);
}

#[test]
fn less_than_half_a_nanosecond_does_not_fail() {
    change(pair(0.5, 0.12, 0.01), pair(0.9, 0.22, 0.01), 0, &["no row is more"]);
    change(pair(0.5, 0.12, 0.01), pair(1.5, 0.36, 0.01), 1, &["WORSE"]);
}

#[test]
fn allocations_and_missing_rows_fail() {
    let mut more = pair(400.0, 0.6, 0.01);
    more[0].allocs = Some(1.0);
    change(pair(400.0, 0.6, 0.01), more, 1, &["WORSE    atrace: rust/a, allocations: 0 → 1"]);
    change(pair(400.0, 0.6, 0.01), pair(400.0, 0.6, 0.01)[1..].to_vec(), 1, &["MISSING  atrace: rust/a"]);
    let mut without = pair(400.0, 0.6, 0.01);
    without[0].vs.clear();
    change(pair(400.0, 0.6, 0.01), without, 1, &["MISSING  atrace: rust/a: the ratio to cc/a"]);
}

#[test]
fn an_events_allocations_are_shown_as_the_most_of_a_case() {
    for (allocs, shown) in [(0.0, "0"), (1.5, "up to 1.50")] {
        let ground = full();
        let rows = [row("rust/a", 1.0), Row { allocs: Some(allocs), ..row("rust/b", 1.0) }];
        ground.write("atrace", &rows);
        let said = ground.run("").out;
        assert!(said.contains(&format!("allocations an event: {shown}, none in ")), "{said}");
    }
}

#[test]
fn instructions_are_exact() {
    let count = |n: f64| {
        let mut row = Row::new("rust/a", Interval::around(n, 0.0), Sink::File);
        row.unit = "instructions".to_owned();
        vec![row]
    };
    change(count(100.0), count(104.0), 0, &["no row is more"]);
    change(
        count(100.0),
        count(106.0),
        1,
        &["WORSE    atrace: rust/a, instructions: 100 instructions → 106 instructions"],
    );
    change(count(4.0), count(5.0), 1, &["WORSE"]);
}

#[test]
fn what_was_saved_is_kept_and_found() {
    let ground = full();
    ground.expect("--compare gone", 2, &["nothing was saved yet", "`--save gone` makes it"]);
    ground.expect("--save one", 0, &[]);
    ground.expect("--save one", 0, &[]);
    ground.expect("--compare two", 2, &["saved: one"]);
    ground.expect("--save ../two", 2, &["a name is made of"]);
    // Results that fail the comparison are not saved.
    ground.write("atrace", &[row("rust/x", 1.0)]);
    ground.expect("--compare one --save one", 1, &["not saved as one"]);
    assert!(row::read(&ground.measured().join("saved/one/atrace.json")).unwrap().len() > 10);
    fs::write(ground.measured().join("saved/one/subscriber.json"), "[").unwrap();
    ground.expect("--compare one", 1, &["PROBLEM", "subscriber.json"]);
    // A saved file that can't be read is a failure, even if all other rows are unchanged.
    ground.write("atrace", &row::read(&ground.measured().join("saved/one/atrace.json")).unwrap());
    ground.expect("--compare one", 1, &["PROBLEM", "FAILED: what was saved as one can't be read whole"]);
    let left: Vec<_> = fs::read_dir(ground.measured().join("saved")).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[test]
fn a_place_that_takes_no_report_is_an_error() {
    let ground = full();
    ground.file("report", "a file where the directory should be");
    ground.expect("", 2, &["error: writing", "report.html"]);
}
