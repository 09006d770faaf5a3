//! Runs the bench under callgrind, and reads what it leaves.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::{Counted, ONLY};

/// What has the C library copy alike on all processors. (Valgrind has no AVX-512 to offer anyway.)
const TUNABLES: &str = "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX512BW,-ERMS,-FSRM";

/// Starts a program where every process' id has five digits; fails before it does if that can't be.
const FIVE_DIGITS: &str = "echo 9999 >/proc/sys/kernel/ns_last_pid && exec \"$@\"";

/// Instructions by the function of the bench and the number of the case.
type Counts = BTreeMap<(String, usize), u64>;

/// Runs every case of these, and returns the instructions of all its operations.
pub(crate) fn count(counted: &[Counted]) -> Result<Counts, String> {
    possible()?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let bench =
        ["bench", "--quiet", "-p", "atrace-benches", "--features", "instructions", "--bench", "instructions"];
    let bench: Vec<OsString> = [cargo].into_iter().chain(bench.map(OsString::from)).collect();
    // Built outside of the namespace, where nothing is special.
    let built = command(&bench, &["--no-run"]).status().map_err(|e| format!("cargo: {e}"))?;
    if !built.success() {
        return Err("the bench could not be built: see above".to_owned());
    }
    // Half of them are the subscriber's. What is counted does not depend on what runs beside it.
    let (tracing, events): (Vec<_>, Vec<_>) = counted.iter().partition(|who| **who == Counted::Tracing);
    std::thread::scope(|scope| {
        let beside = scope.spawn(|| run(&bench, &tracing));
        let mut counts = run(&bench, &events)?;
        counts.extend(beside.join().map_err(|_| "a thread that counts panicked")??);
        Ok(counts)
    })
}

/// Runs the cases of these, one after the other.
fn run(bench: &[OsString], counted: &[&Counted]) -> Result<Counts, String> {
    let temp =
        tempfile::Builder::new().prefix("atrace-instructions-").tempdir().map_err(|e| e.to_string())?;
    let sink = temp.path().join("marker");
    std::fs::write(&sink, "").map_err(|e| format!("{}: {e}", sink.display()))?;
    let home = temp.path().join("gungraun");
    let only = counted.iter().map(|who| who.function()).collect::<Vec<_>>().join(",");
    let mut run = command(&namespaced(bench), &["--", "--save-summary=json", "--nosummary=true"]);
    run.env("GUNGRAUN_HOME", &home)
        .env(ONLY, only)
        .env("ATRACE_MARKER", &sink)
        .env("ATRACE_PROPERTIES", temp.path().join("properties"))
        .env("PERFETTO_PRODUCER_SOCK_NAME", temp.path().join("service"))
        .env("GLIBC_TUNABLES", TUNABLES)
        .env_remove("ATRACE_BACKEND");
    let output =
        run.stdout(Stdio::piped()).stderr(Stdio::piped()).output().map_err(|e| format!("cargo: {e}"))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        let lines: Vec<&str> = text.lines().collect();
        let end = lines[lines.len().saturating_sub(40)..].join("\n");
        return Err(format!("the bench failed with {}:\n{end}", output.status));
    }
    let mut counts = BTreeMap::new();
    collect(&home, &mut counts)?;
    Ok(counts)
}

/// Whether all that is needed is here, else what to do.
fn possible() -> Result<(), String> {
    if !cfg!(target_arch = "x86_64") {
        return Err("instructions are counted on x86_64".to_owned());
    }
    #[cfg(target_arch = "x86_64")]
    if !std::arch::is_x86_feature_detected!("avx2") {
        return Err("the counts are of processors with AVX2, which this one has not".to_owned());
    }
    let answers = |program: &str| {
        let status =
            Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    };
    if !answers("valgrind") {
        return Err("valgrind is needed: apt-get install valgrind".to_owned());
    }
    let runner = std::env::var("GUNGRAUN_RUNNER").unwrap_or_else(|_| "gungraun-runner".to_owned());
    if !answers(&runner) {
        return Err(format!(
            "gungraun-runner is needed: cargo install gungraun-runner --version {}",
            env!("ATRACE_BENCHES_GUNGRAUN")
        ));
    }
    Ok(())
}

fn command(words: &[OsString], more: &[&str]) -> Command {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).args(more).stdin(Stdio::null());
    command
}

/// Returns `words` as the command of a namespace where ids have five digits, or as they are where there is none.
fn namespaced(words: &[OsString]) -> Vec<OsString> {
    for rights in [&[][..], &["--user", "--map-root-user"]] {
        let mut unshare: Vec<OsString> = vec!["unshare".into()];
        unshare.extend(rights.iter().map(OsString::from));
        unshare.extend(
            ["--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", FIVE_DIGITS, "sh"]
                .map(OsString::from),
        );
        let works = command(&unshare, &["true"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
        if works.is_ok_and(|status| status.success()) {
            return unshare.into_iter().chain(words.iter().cloned()).collect();
        }
    }
    words.to_vec()
}

/// Reads all `summary.json` below `dir`.
fn collect(dir: &Path, counts: &mut BTreeMap<(String, usize), u64>) -> Result<(), String> {
    let entries = std::fs::read_dir(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        if path.is_dir() {
            collect(&path, counts)?;
        } else if path.file_name().is_some_and(|name| name == "summary.json") {
            let text = std::fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
            let summary = serde_json::from_slice(&text).map_err(|e| format!("{}: {e}", path.display()))?;
            let (key, count) = read(&summary).ok_or_else(|| {
                format!(
                    "{}: not the summary of a version of gungraun-runner that is known here",
                    path.display()
                )
            })?;
            counts.insert(key, count);
        }
    }
    Ok(())
}

/// Which case a summary is of, and its instructions.
fn read(summary: &Value) -> Option<((String, usize), u64)> {
    let function = summary.get("function_name")?.as_str()?.to_owned();
    let index = summary.get("id")?.as_str()?.rsplit('_').next()?.parse().ok()?;
    let count = summary.pointer("/profiles/0/data/total/metrics/Ir/values/new")?.as_u64()?;
    Some(((function, index), count))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn summaries_are_read() {
        let text = r#"{"function_name": "rust", "id": "case_24", "profiles": [{"tool": "Callgrind",
            "data": {"total": {"metrics": {"Ir": {"values": {"new": 250784}}}}}}]}"#;
        let summary: Value = serde_json::from_str(text).unwrap();
        assert_eq!(read(&summary), Some((("rust".to_owned(), 24), 250_784)));
        assert_eq!(read(&Value::Null), None);
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("a/b");
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("summary.json"), text).unwrap();
        let mut counts = BTreeMap::new();
        collect(temp.path(), &mut counts).unwrap();
        assert_eq!(counts[&("rust".to_owned(), 24)], 250_784);
        std::fs::write(dir.join("summary.json"), "{}").unwrap();
        assert!(collect(temp.path(), &mut counts).unwrap_err().contains("not the summary of a version"));
    }

    #[test]
    fn a_namespace_gives_five_digits() {
        // The command itself is the first of its namespace; those that it starts are what is counted.
        let words = ["sh", "-c", "sh -c 'echo $$'; true"].map(OsString::from);
        let there = namespaced(&words);
        if there == words {
            // Not `eprintln!`, which libtest hides.
            let _ = writeln!(
                std::io::stderr(),
                "skipped: this kernel lets nobody make a namespace of process ids here"
            );
            return;
        }
        let output = command(&there, &[]).output().unwrap();
        let id: u32 = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
        assert!((10_000..100_000).contains(&id), "{id}");
    }
}
