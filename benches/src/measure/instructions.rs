//! Counts instructions and compares the counts with upper bounds.
//!
//! A time shows what an event costs on one machine. A count of instructions shows whether the code has changed, even on
//! a busy machine. The bench `instructions` starts its own program under callgrind, in a process for each case
//! (measured operation), and writes the counts to `target/overhead/instructions.json` for the report. With `--check`,
//! it counts only the cases that have bounds, and fails if an operation takes over 3 % more instructions than its bound
//! in `benches/bounds.toml`.
//!
//! A count is the average over [`OPERATIONS`] operations. It includes the program's own instructions and the loop
//! around the operation, but not the kernel's instructions in system calls. The sink of messages is a file, so neither
//! root's rights nor tracefs are needed.
//!
//! # Why two runs give the same
//!
//! - The file of bounds names the compiler that has produced the counted code, and the bounds apply only to this
//!   compiler.
//! - The C library selects its routines for copying memory by the type of processor. `GLIBC_TUNABLES` makes the
//!   selection the same on all processors. `atrace` has two copy routines, one with AVX2 and one without. The routine
//!   with AVX2 is counted, so the bench refuses to run on processors without AVX2.
//! - For the Perfetto backend, the process records its own events. Before the producer can read the time from the
//!   processor's counter, each event calls the system's clock, which takes more instructions. So counting begins only
//!   when the counter is used. To count events while tracing is off, the process connects to a service without a
//!   session. The service is a thread of the process, but callgrind counts only the thread that runs the operations.
//! - The C++ code formats the process id in each message, so its count depends on the number of digits of the id. If
//!   the kernel allows a PID namespace (for root, or by user namespaces), each process runs in a namespace in which its
//!   id has five digits. If not, the counts of C++ vary by some 20 instructions for each digit. So these counts have no
//!   bounds.
//! - Counts of C++, and of Rust through libcutils, depend on the machine's C++ compiler and library. These counts have
//!   no bounds, and neither do the counts of baselines (lower limits of the cost).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use clap::Parser;
use serde::Deserialize;

use crate::catalogue::{BENCHES, INSTRUCTIONS, Id, Who};
use crate::harness::output::{fail, say};
use crate::row::{self, Row, Sink, environment};
use crate::stats::Interval;
use crate::table::of_rows;

/// The number of operations over which instructions are counted.
pub const OPERATIONS: u64 = 1000;
/// The percentage by which a count may exceed its bound.
const GROWTH: f64 = 3.0;

const NEEDS: &str = "\
It needs valgrind: apt-get install valgrind.

Exit status: 0; 1 too many instructions; 2 wrong usage, or a required program is missing.";

/// Counts the instructions of every kind of event under callgrind, and compares them with bounds
#[derive(Clone, Debug, PartialEq, Eq, Parser)]
#[command(name = "instructions", args_override_self = true, after_help = NEEDS)]
struct Args {
    /// Fail if an operation takes over 3 % more than benches/bounds.toml says
    #[arg(long)]
    check: bool,
    /// Write the counts to benches/bounds.toml
    #[arg(long, conflicts_with = "check")]
    update: bool,
    /// Count this case in this process, which callgrind runs
    #[arg(long, value_name = "ID", hide = true)]
    case: Option<String>,
    /// The argument that `cargo bench` adds
    #[arg(long, hide = true)]
    bench: bool,
}

/// Returns the stored counts of instructions of one operation, by row id. Returns an empty map if they were not counted
/// at the current commit, because they then do not describe the code that is timed now.
pub fn of_this_commit() -> BTreeMap<String, f64> {
    let dir = row::dir();
    let counted_at = environment::read_from(&dir, INSTRUCTIONS).map(|environment| environment.commit);
    let known = counted_at.filter(|commit| !commit.is_empty() && *commit == environment::commit());
    let rows = known.and_then(|_| row::read(&dir.join(format!("{INSTRUCTIONS}.json"))).ok());
    rows.unwrap_or_default().into_iter().map(|row| (row.id, row.median)).collect()
}

/// Runs the bench with the command line of this process. Each case runs in a process of its own, which calls
/// `run_case`. `run_case` must run the counted operations in a function whose name contains [`FUNCTION`].
pub fn main(run_case: impl FnOnce(&Id)) -> ExitCode {
    let args = Args::parse();
    match &args.case {
        Some(id) => run_case(&Id::of(id)),
        None => return run(&args).unwrap_or_else(|e| fail(2, e)),
    }
    ExitCode::SUCCESS
}

fn run(args: &Args) -> Result<ExitCode, String> {
    environment::start();
    let rustc = environment::Environment::here().rustc;
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("bounds.toml");
    // The bounds are read before counting, which takes minutes, so that errors are found early.
    let bounds = if args.check { Some(Bounds::read(&path)?.for_compiler(&rustc)?) } else { None };
    let ids: Vec<Id> = ids().into_iter().filter(|id| !args.check || is_own(id)).collect();
    let mut rows = count(&ids)?;
    say(of_rows("instructions of one operation", &rows));
    if !args.check {
        let written = row::write(INSTRUCTIONS, &rows).map_err(|e| e.to_string())?;
        say(format_args!("rows: {}", written.display()));
    }
    if args.update {
        let new = Bounds::of(&rustc, &rows);
        new.write(&path)?;
        say(format_args!("{} bounds: {}", new.instructions.len(), path.display()));
    }
    let Some(bounds) = bounds else { return Ok(ExitCode::SUCCESS) };
    let (mut kept, mut text) = bounds.check(&rows);
    // With the Perfetto backend, the instructions for taking another chunk are 2.5 % of those of the shortest event.
    // Whether another chunk is taken depends on the fill level of the first chunk, and so on timing. So the lowest of
    // up to three counts is compared.
    for _ in 0..2 {
        if kept {
            break;
        }
        say(format_args!("{text}\ncounted again, for the fewest"));
        rows = fewest(rows, &count(&ids)?);
        (kept, text) = bounds.check(&rows);
    }
    say(text);
    Ok(if kept { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the ids of all counted cases.
fn ids() -> Vec<Id> {
    BENCHES.iter().filter(|bench| bench.name == INSTRUCTIONS).flat_map(|bench| bench.rows()).collect()
}

/// Returns whether a case runs this workspace's own code. Only the counts of such cases have bounds.
fn is_own(id: &Id) -> bool {
    matches!(id.who, Who::Rust | Who::Perfetto)
}

/// A substring of the name of the function in which callgrind counts instructions.
pub const FUNCTION: &str = "count_operations";

/// The value of `GLIBC_TUNABLES` that makes the C library copy memory in the same way on all processors. (Under
/// Valgrind, programs can't use AVX-512 anyway.)
const TUNABLES: &str = "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX512BW,-ERMS,-FSRM";

/// A shell command that runs a program in a process whose id has five digits. If the id can't be chosen, the command
/// fails and does not run the program. The shell itself is process 1 of the namespace. If the program were the last
/// command, the shell would replace itself by the program, which would then be process 1. So `exit` follows the
/// program.
const FIVE_DIGITS: &str = "echo 9999 >/proc/sys/kernel/ns_last_pid && \"$@\"; exit";

/// Counts the instructions of each case once. Several cases run in parallel, because other processes do not affect a
/// count.
fn count(ids: &[Id]) -> Result<Vec<Row>, String> {
    if !cfg!(target_arch = "x86_64") {
        return Err("instructions are counted on x86_64".to_owned());
    }
    #[cfg(target_arch = "x86_64")]
    if !std::arch::is_x86_feature_detected!("avx2") {
        return Err("the counts require a processor with AVX2, which this one lacks".to_owned());
    }
    if !answers(Command::new("valgrind").arg("--version")) {
        return Err("valgrind is needed: apt-get install valgrind".to_owned());
    }
    let (next, namespace) = (AtomicUsize::new(0), namespace());
    let rows = Mutex::new(vec![None; ids.len()]);
    let work = || -> Result<(), String> {
        while let Some((index, id)) = Some(next.fetch_add(1, Relaxed)).and_then(|i| Some((i, ids.get(i)?))) {
            let row = count_one(id, &namespace)?;
            rows.lock().map_err(|e| e.to_string())?[index] = Some(row);
        }
        Ok(())
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        all.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread that counts panicked")?)
    })?;
    Ok(rows.into_inner().map_err(|e| e.to_string())?.into_iter().flatten().collect())
}

fn count_one(id: &Id, namespace: &[String]) -> Result<Row, String> {
    let counts = run_one(id, namespace).map_err(|e| format!("{id}: {e}"))?;
    let total = total(&counts).ok_or_else(|| format!("{id}: callgrind has counted nothing"))?;
    let each = Interval::around(total as f64 / OPERATIONS as f64, 0.0);
    Ok(Row { unit: INSTRUCTIONS.to_owned(), ..Row::new(id.to_string(), each, Sink::File) })
}

/// Runs the process of a case under callgrind, and returns the content of callgrind's output file.
fn run_one(id: &Id, namespace: &[String]) -> io::Result<String> {
    let temp = tempfile::Builder::new().prefix("atrace-instructions-").tempdir()?;
    let place = |name: &str| temp.path().join(name);
    std::fs::write(place("marker"), "")?;
    let mut command = Command::new(namespace.first().map_or("valgrind", String::as_str));
    command.args(namespace.iter().skip(1)).args((!namespace.is_empty()).then_some("valgrind"));
    command.args(["--tool=callgrind", "--quiet", "--collect-atstart=no", "--fair-sched=try"]);
    command.arg(format!("--toggle-collect=*{FUNCTION}*"));
    command.arg(format!("--callgrind-out-file={}", place("counts").display()));
    command.arg(std::env::current_exe()?).args(["--bench", "--case", &id.to_string()]);
    // The process only has the environment variables that are set here for the case.
    command.env_clear().envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
    command.env("GLIBC_TUNABLES", TUNABLES).env("ATRACE_MARKER", place("marker"));
    command.env("ATRACE_PROPERTIES", place("properties"));
    command.env("PERFETTO_PRODUCER_SOCK_NAME", place("service"));
    if id.who == Who::Ffi {
        command.env("ATRACE_BACKEND", format!("cutils:{}", cc_bench::cutils_library().display()));
    }
    let output = command.stdin(Stdio::null()).output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let why = format!("its process ended with {}:\n{}", output.status, said.trim_end());
        return Err(io::Error::other(why));
    }
    std::fs::read_to_string(place("counts"))
}

/// Returns the total number of instructions from callgrind's output, or `None` if the output has no total above 0.
fn total(counts: &str) -> Option<u64> {
    let total = counts.lines().find_map(|line| line.strip_prefix("totals: "))?;
    total.trim().parse().ok().filter(|&total| total > 0)
}

fn answers(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

/// Returns the words of the command that starts a program in a PID namespace in which its id has five digits. Returns
/// an empty list if the kernel does not allow such a namespace.
fn namespace() -> Vec<String> {
    let words = |rights: &[&str]| -> Vec<String> {
        let shell = ["--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", FIVE_DIGITS, "sh"];
        ["unshare"].iter().chain(rights).chain(&shell).map(|&word| word.to_owned()).collect()
    };
    let works = |words: &Vec<String>| answers(Command::new(&words[0]).args(&words[1..]).arg("true"));
    [&[][..], &["--user", "--map-root-user"]].map(words).into_iter().find(works).unwrap_or_default()
}

/// Returns, for each case, the row with the lower count from two runs.
fn fewest(mut rows: Vec<Row>, again: &[Row]) -> Vec<Row> {
    for row in &mut rows {
        let other = again.iter().find(|other| other.id == row.id);
        if let Some(other) = other.filter(|other| other.median < row.median) {
            *row = other.clone();
        }
    }
    rows
}

/// The content of `bounds.toml`: the upper bounds of the numbers of instructions of operations.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Bounds {
    /// The compiler that produced the counted code.
    rustc: String,
    /// The percentage by which a count may exceed its bound.
    growth: f64,
    /// The bounds by row id: for each operation, the accepted number of instructions.
    instructions: BTreeMap<String, f64>,
}

impl Bounds {
    fn read(path: &Path) -> Result<Self, String> {
        let error = |what: &dyn std::fmt::Display| format!("{}: {what}", path.display());
        let text = std::fs::read_to_string(path).map_err(|e| format!("{}; --update makes it", error(&e)))?;
        let bounds: Self = toml::from_str(&text).map_err(|e| error(&e))?;
        let counts = bounds.instructions.values().chain([&bounds.growth]);
        if bounds.instructions.is_empty() || !counts.into_iter().all(|n| n.is_finite() && *n > 0.0) {
            return Err(error(&"every bound is a number above zero, and there are some"));
        }
        Ok(bounds)
    }

    /// Makes bounds from those counts in `rows` that are of this workspace's own code.
    fn of(rustc: &str, rows: &[Row]) -> Self {
        let own = rows.iter().filter(|row| is_own(&Id::of(&row.id)));
        // The counts are rounded to two decimals, because smaller fractions come from the call of the loop around the
        // operations.
        let instructions = own.map(|row| (row.id.clone(), (row.median * 100.0).round() / 100.0)).collect();
        Self { rustc: version(rustc).to_owned(), growth: GROWTH, instructions }
    }

    fn write(&self, path: &Path) -> Result<(), String> {
        let mut text = String::from(
            "# How many instructions of its own an operation takes, counted by callgrind on x86_64; `.ci/run` fails where\n\
             # it takes more than `growth` percent above. To accept the counts of a new version or of another compiler, run\n\
             #     cargo bench -p atrace-benches --features instructions --bench instructions -- --update\n\
             # What is counted, and why it does not depend on the machine: benches/src/measure/instructions.rs.\n\n",
        );
        let _ = write!(text, "rustc = \"{}\"\ngrowth = {:.1}\n\n[instructions]\n", self.rustc, self.growth);
        for (id, count) in &self.instructions {
            let _ = writeln!(text, "\"{id}\" = {count:.2}");
        }
        let dir = path.parent().unwrap_or(Path::new("."));
        let name = path.file_name().and_then(|name| name.to_str()).ok_or("bounds have a file name")?;
        row::replace(dir, name, text.as_bytes()).map_err(|e| e.to_string())
    }

    /// Returns the bounds if they apply to the compiler `rustc`.
    fn for_compiler(self, rustc: &str) -> Result<Self, String> {
        match version(rustc) {
            here if here == self.rustc => Ok(self),
            here => Err(format!(
                "the bounds are of code compiled by Rust {0}, this is Rust {here}: take that one (`cargo +{0} bench …`), or \
                 take this one over with --update",
                self.rustc
            )),
        }
    }

    /// Compares counts with the bounds. Returns true if all bounded cases were counted, all counts have a bound, and no
    /// count is too high. Also returns a message for the user.
    fn check(&self, rows: &[Row]) -> (bool, String) {
        let most = 1.0 + self.growth / 100.0;
        let (mut lines, mut passes, mut fewer) = (Vec::new(), !self.instructions.is_empty(), "");
        for (id, bound) in &self.instructions {
            let Some(row) = rows.iter().find(|row| row.id == *id) else {
                lines.push(format!("MISSING {id}: has a bound, and was not counted"));
                passes = false;
                continue;
            };
            let part = row.median / bound;
            let what = match part {
                part if part > most => "MORE   ",
                part if part < 1.0 / most => "fewer  ",
                _ => continue,
            };
            passes &= part <= most;
            fewer = "; --update takes over those that take fewer";
            let (count, percent) = (row.median, (part - 1.0) * 100.0);
            lines.push(format!("{what} {id}: {count:.2} instructions, bound {bound:.2} ({percent:+.1} %)"));
        }
        let unknown = |row: &&Row| is_own(&Id::of(&row.id)) && !self.instructions.contains_key(&row.id);
        for Row { id, .. } in rows.iter().filter(unknown) {
            lines.push(format!("UNKNOWN {id}: was counted, and has no bound"));
            passes = false;
        }
        let (n, growth) = (self.instructions.len(), self.growth);
        lines.push(match passes {
            true => format!("{n} operations take at most {growth} % more instructions than their bounds{fewer}"),
            false => "FAILED: see above. If this is intended, run it with --update, and commit benches/bounds.toml with a word on why"
                .to_owned(),
        });
        (passes, lines.join("\n"))
    }
}

/// Returns the version number from the output of `rustc --version`.
fn version(rustc: &str) -> &str {
    rustc.split(' ').nth(1).unwrap_or(rustc)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::catalogue::{SUBSCRIBERS, TracingCase};

    const RUSTC: &str = "rustc 1.95.0 (59807616e 2026-04-14)";

    fn row(id: &str, n: f64) -> Row {
        Row::new(id, Interval::around(n, 0.0), Sink::File)
    }

    fn rows(begin: f64) -> Vec<Row> {
        vec![row("rust/tracing_on_begin/10", begin), row("rust/tracing_off_end", 4.0), row("cc/x", 1700.0)]
    }

    #[test]
    fn command_lines() {
        let parse = |line: &str| {
            let line = ["instructions"].into_iter().chain(line.split_whitespace());
            Args::try_parse_from(line).map_err(|e| e.to_string())
        };
        let args = parse("--bench --check").unwrap();
        assert!(args.check && !args.update);
        for (line, part) in [
            ("--check --update", "'--check' cannot be used with '--update'"),
            ("x", "unexpected argument 'x'"),
        ] {
            let e = parse(line).unwrap_err();
            assert!(e.starts_with("error: ") && e.contains(part), "{line}: {e}");
        }
    }

    #[test]
    fn ids_are_those_of_the_other_benches() {
        let ids = ids();
        let of = |who: &Who, events: bool| {
            let is_event = |id: &&Id| id.as_event().is_some() == events;
            ids.iter().filter(|id| id.who == *who).filter(is_event).count()
        };
        assert_eq!([Who::Rust, Who::Ffi, Who::Cc, Who::Perfetto].map(|who| of(&who, true)), [28, 28, 24, 18]);
        assert_eq!([Who::Limit, Who::Rust, Who::Perfetto].map(|who| of(&who, false)), [16, 24, 24]);
        for subscriber in SUBSCRIBERS.iter().filter(|subscriber| subscriber.counted) {
            assert!(
                TracingCase::ALL.iter().all(|case| ids.contains(&subscriber.id(*case))),
                "{subscriber:?}"
            );
        }
    }

    #[test]
    fn the_bounds_are_of_what_is_counted() {
        let bounds = Bounds::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("bounds.toml")).unwrap();
        let own: std::collections::BTreeSet<String> =
            ids().iter().filter(|id| is_own(id)).map(Id::to_string).collect();
        assert_eq!(bounds.instructions.keys().cloned().collect::<std::collections::BTreeSet<_>>(), own);
    }

    #[test]
    fn the_lower_of_two_counts_is_taken() {
        let (a, b) = ([row("a", 100.0), row("b", 1000.0)], [row("b", 999.0), row("a", 101.0)]);
        let least: Vec<f64> = fewest(a.to_vec(), &b).iter().map(|row| row.median).collect();
        assert_eq!(least, [100.0, 999.0]);
    }

    #[test]
    fn totals_are_read() {
        assert_eq!(total("events: Ir\n\nfn=(1) f\n12 250784\n\ntotals: 250784\n"), Some(250_784));
        for none in ["", "events: Ir\ntotals: 0\n", "totals: x\n"] {
            assert_eq!(total(none), None);
        }
    }

    #[test]
    fn a_namespace_gives_five_digits() {
        let namespace = namespace();
        if namespace.is_empty() {
            // Writes without `eprintln!`, whose output libtest hides.
            let _ = writeln!(
                std::io::stderr(),
                "skipped: this kernel lets nobody make a namespace of process ids here"
            );
            return;
        }
        let mut command = Command::new(&namespace[0]);
        let output = command.args(&namespace[1..]).args(["sh", "-c", "echo $$; exit 7"]).output().unwrap();
        let id: u32 = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
        assert!((10_000..100_000).contains(&id), "{id}");
        assert_eq!(output.status.code(), Some(7));
    }

    #[test]
    fn four_percent_fail_and_two_pass() {
        let bounds = Bounds::of(RUSTC, &rows(100.0));
        assert_eq!(bounds.instructions.len(), 2);
        assert!(bounds.check(&rows(100.0)).0);
        assert!(bounds.check(&rows(102.0)).0);
        let (passes, text) = bounds.check(&rows(104.0));
        assert!(!passes);
        assert!(
            text.starts_with(
                "MORE    rust/tracing_on_begin/10: 104.00 instructions, bound 100.00 (+4.0 %)\n"
            ),
            "{text}"
        );
        assert!(text.contains("--update"), "{text}");
        let (passes, text) = bounds.check(&rows(90.0));
        assert!(passes && text.contains("fewer   rust/tracing_on_begin/10"), "{text}");
    }

    #[test]
    fn what_is_not_there_fails() {
        let bounds = Bounds::of(RUSTC, &rows(100.0));
        let (passes, text) = bounds.check(&rows(100.0)[1..]);
        assert!(!passes && text.starts_with("MISSING rust/tracing_on_begin/10"), "{text}");
        let (passes, text) = Bounds::of(RUSTC, &rows(100.0)[1..]).check(&rows(100.0));
        assert!(!passes && text.starts_with("UNKNOWN rust/tracing_on_begin/10"), "{text}");
    }

    #[test]
    fn what_is_written_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bounds.toml");
        let bounds = Bounds::of(RUSTC, &rows(100.257));
        bounds.write(&path).unwrap();
        assert_eq!(Bounds::read(&path).unwrap(), bounds);
        assert_eq!(bounds.instructions["rust/tracing_on_begin/10"], 100.26);
        let other = bounds.clone().for_compiler("rustc 1.96.0 (x)").unwrap_err();
        assert!(other.contains("`cargo +1.95.0 bench"), "{other}");
        assert!(bounds.for_compiler(RUSTC).is_ok());
        for (text, why) in [
            ("", "missing field"),
            ("rustc = 7\n", "invalid type"),
            ("rustc = \"1\"\ngrowth = 3.0\n[instructions]\n", "there are some"),
            ("rustc = \"1\"\ngrowth = nan\n[instructions]\na = 1.0\n", "above zero"),
            ("rustc = \"1\"\ngrowth = 3.0\nother = 1\n[instructions]\na = 1.0\n", "unknown field"),
        ] {
            std::fs::write(&path, text).unwrap();
            let e = Bounds::read(&path).unwrap_err();
            assert!(e.contains(why) && e.contains("bounds.toml"), "{text}: {e}");
        }
        let none = Bounds::read(&dir.path().join("none.toml")).unwrap_err();
        assert!(none.contains("--update makes it"), "{none}");
    }
}
