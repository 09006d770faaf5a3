//! The environment of a measurement: the machine, its configuration, and its load by other programs. The environment is
//! stored beside the rows (the results), so that a reader can later judge how reliable the numbers are.
//!
//! When a bench writes its rows, it also writes `environment/<bench>.json`, in the directory of the rows. The load is
//! measured from the call of [`start`] until the rows are written. It is the CPU time that was used neither by this
//! process nor by its children that have ended.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cc_bench::coroutines::Compiler;
use serde::{Deserialize, Serialize};

use super::replace;

/// The name of the directory with the files of environments, within the directory of the rows (results).
pub const DIRECTORY: &str = "environment";

/// The machine, its load, and the versions of the software. Unknown values are empty.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Environment {
    /// The time at which this environment was recorded, in seconds since 1970.
    pub time: u64,
    /// The time from the start of the bench until this environment was recorded, in seconds.
    pub seconds: f64,
    /// The model of the CPU.
    pub cpu: String,
    /// The number of CPUs on which this program may run.
    pub cpus: usize,
    /// Whether the machine is a virtual machine, according to the flags of an x86 processor. Other processors have no
    /// such flag.
    pub guest: bool,
    /// The architecture of the program.
    pub arch: String,
    /// The name of the operating system, from `/etc/os-release`.
    pub system: String,
    /// The kernel's release.
    pub kernel: String,
    /// The kernel's mitigation of the vulnerability SRSO (speculative return stack overflow), which affects the cost of
    /// a return from a system call.
    pub returns: String,
    /// The frequency governors of the CPUs, without duplicates. Most virtual machines have no governors.
    pub governors: Vec<String>,
    /// The version of the Rust compiler.
    pub rustc: String,
    /// The version of the C++ compiler.
    pub cxx: String,
    /// The versions of the other compilers that have compiled the C++ tasks of the bench `coroutines`.
    pub cxx_others: Vec<String>,
    /// The current commit of the sources.
    pub commit: String,
    /// Whether the sources had changes that were not committed.
    pub changed: bool,
    /// The destination of events, as the library `atrace` reports it.
    pub sink: String,
    /// Whether the run was short (`--quick`).
    pub quick: bool,
    /// The load of the machine by other programs.
    pub load: Option<Load>,
}

/// The load of a machine by other programs than the bench.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// The fraction of the time of all CPUs that other programs used.
    pub others: f64,
    /// The fraction of the time of all CPUs that the hypervisor gave to other virtual machines.
    pub stolen: f64,
    /// The average number of runnable threads in the minute before the bench started.
    pub before: f64,
}

impl Environment {
    /// Describes this machine, this program and the sources from which it was built.
    pub fn here() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        let start = START.get();
        let seconds = start.map_or(0.0, |start| start.at.elapsed().as_secs_f64());
        let load = start.and_then(|start| start.ticks?.until(Ticks::now()?, start.average));
        Self {
            time: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
            seconds: (seconds * 10.0).round() / 10.0,
            cpu: field(&cpuinfo, "model name").or_else(|| field(&cpuinfo, "Hardware")).unwrap_or_default(),
            cpus: std::thread::available_parallelism().map_or(0, usize::from),
            guest: field(&cpuinfo, "flags").is_some_and(|f| f.split(' ').any(|flag| flag == "hypervisor")),
            arch: std::env::consts::ARCH.to_owned(),
            system: pretty_name(&read("/etc/os-release")),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            returns: read("/sys/devices/system/cpu/vulnerabilities/spec_rstack_overflow").trim().to_owned(),
            governors: governors(),
            rustc: env!("ATRACE_BENCHES_RUSTC").to_owned(),
            cxx: env!("ATRACE_BENCHES_CXX").to_owned(),
            cxx_others: other_compilers(),
            commit: commit(),
            changed: git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|s| !s.is_empty()),
            sink: atrace::sink().to_string(),
            quick: std::env::args_os().any(|arg| arg == "--quick"),
            load,
        }
    }
}

/// Returns the versions of the compilers that have compiled the C++ tasks, except the compiler that cargo selected for
/// all C++ code.
fn other_compilers() -> Vec<String> {
    let is_clang = env!("ATRACE_BENCHES_CXX").contains("clang");
    let others = Compiler::ALL.into_iter().filter(|&compiler| (compiler == Compiler::Clang) != is_clang);
    let named = |version: String| if version.contains("Clang") { version } else { format!("g++ {version}") };
    others.filter_map(Compiler::version).map(named).collect()
}

/// Begins to measure the load of the machine. Only the first call has an effect.
pub fn start() {
    let average = std::fs::read_to_string("/proc/loadavg").ok();
    let average = average.and_then(|text| text.split(' ').next()?.parse().ok()).unwrap_or(0.0);
    let _ = START.set(Start { at: Instant::now(), ticks: Ticks::now(), average });
}

static START: OnceLock<Start> = OnceLock::new();

struct Start {
    at: Instant,
    ticks: Option<Ticks>,
    average: f64,
}

/// CPU times since the start of the machine, in ticks.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Ticks {
    all: u64,
    busy: u64,
    stolen: u64,
    own: u64,
}

impl Ticks {
    fn now() -> Option<Self> {
        let stat = std::fs::read_to_string("/proc/stat").ok()?;
        let own = std::fs::read_to_string("/proc/self/stat").ok()?;
        Self::parse(&stat, &own)
    }

    /// Reads `/proc/stat` and `/proc/self/stat`.
    fn parse(stat: &str, own: &str) -> Option<Self> {
        let cpu = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let cpu: Vec<u64> = cpu.split_whitespace().map_while(|n| n.parse().ok()).collect();
        // The fields are user, nice, system, idle, iowait, irq, softirq and steal. The time that is used by virtual
        // machines on this machine is part of user.
        let &[user, nice, system, idle, wait, irq, soft, stolen, ..] = &cpu[..] else { return None };
        let busy = user + nice + system + irq + soft;
        // The process name, which may contain any characters, ends at the last `)`. The 12th to the 15th field after
        // the name are the user and system time of this process and of the children for which it has waited.
        let own = own.rsplit_once(')')?.1.split_whitespace().skip(11).take(4);
        let own = own.map_while(|n| n.parse::<u64>().ok()).sum();
        Some(Self { all: busy + idle + wait + stolen, busy, stolen, own })
    }

    fn until(self, end: Self, before: f64) -> Option<Load> {
        let f = |ticks: u64| ticks as f64;
        let all = end.all.checked_sub(self.all).filter(|&all| all > 0)?;
        let part = |ticks: u64| (f(ticks) / f(all) * 1000.0).round() / 1000.0;
        let own = end.own.saturating_sub(self.own);
        Some(Load {
            others: part(end.busy.saturating_sub(self.busy).saturating_sub(own)),
            stolen: part(end.stolen.saturating_sub(self.stolen)),
            before,
        })
    }
}

/// Returns the value of the first line `name : value` in `text`, the content of `/proc/cpuinfo`.
fn field(text: &str, name: &str) -> Option<String> {
    let value = |line: &str| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    };
    text.lines().find_map(value)
}

fn pretty_name(os_release: &str) -> String {
    let name = os_release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.unwrap_or_default().trim_matches('"').to_owned()
}

fn governors() -> Vec<String> {
    let policies = std::fs::read_dir("/sys/devices/system/cpu/cpufreq").into_iter().flatten().flatten();
    let read =
        |dir: PathBuf| Some(std::fs::read_to_string(dir.join("scaling_governor")).ok()?.trim().to_owned());
    let all: BTreeSet<_> = policies.filter_map(|policy| read(policy.path())).collect();
    all.into_iter().collect()
}

/// Returns the current commit of the directory of sources from which this program was built, or an empty text if git
/// does not report a commit.
pub(crate) fn commit() -> String {
    git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or_default()
}

fn git(args: &[&str]) -> Option<String> {
    let sources = env!("CARGO_MANIFEST_DIR");
    let mut command = Command::new("git");
    command.args(["-c", &format!("safe.directory={}", Path::new(sources).parent()?.display())]);
    command.args(["-C", sources]).args(args);
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Writes the current environment of the bench `bench` to a file below the directory `dir`.
pub(crate) fn write_to(dir: &Path, bench: &str) -> io::Result<()> {
    let text = serde_json::to_string_pretty(&Environment::here())? + "\n";
    replace(&dir.join(DIRECTORY), &format!("{bench}.json"), text.as_bytes())
}

/// Reads the environment of the bench `bench` from its file below the directory `dir`. Returns `None` if the file can't
/// be read.
pub(crate) fn read_from(dir: &Path, bench: &str) -> Option<Environment> {
    serde_json::from_slice(&std::fs::read(dir.join(DIRECTORY).join(format!("{bench}.json"))).ok()?).ok()
}

/// Formats a time in UTC.
pub fn date(time: u64) -> String {
    // The time is limited to the end of the year 9999. Only a damaged file has a later time.
    let at = UNIX_EPOCH + Duration::from_secs(time.min(253_402_300_799));
    humantime::format_rfc3339_seconds(at).to_string().replace('T', " ").replace('Z', " UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "cpu  100 0 50 800 10 0 5 35 0 0\ncpu0 1 2 3\n";

    fn own(user: u64, children: u64) -> String {
        format!("7 (a ) b) S 1 7 7 0 -1 4194560 90 0 0 0 {user} 5 {children} 0 20 0 1 0 9 9 9")
    }

    #[test]
    fn the_load_is_what_others_did() {
        let start = Ticks::parse(STAT, &own(20, 0)).unwrap();
        assert_eq!(start, Ticks { all: 1000, busy: 155, stolen: 35, own: 25 });
        let later = "cpu  400 0 150 1200 10 0 5 235 0 0\n";
        let end = Ticks::parse(later, &own(120, 150)).unwrap();
        // Of 1000 ticks, the processors were busy for 400, of which this process and its children used 250, and 200
        // were stolen (used by other guests).
        assert_eq!(start.until(end, 0.5), Some(Load { others: 0.15, stolen: 0.2, before: 0.5 }));
        assert_eq!(start.until(start, 0.5), None);
        assert_eq!(Ticks::parse("cpu 1 2", &own(0, 0)), None);
    }

    #[test]
    fn this_machine_is_described() {
        start();
        let here = Environment::here();
        assert!(here.cpus > 0 && !here.kernel.is_empty() && here.rustc.starts_with("rustc 1."), "{here:?}");
        assert!(!here.cxx.is_empty(), "{here:?}");
        let text = serde_json::to_string(&here).unwrap();
        assert_eq!(serde_json::from_str::<Environment>(&text).unwrap(), here);
    }

    #[test]
    fn fields_and_names() {
        assert_eq!(field("a : 1\nmodel name\t: X: 2\n", "model name").as_deref(), Some("X: 2"));
        assert_eq!(pretty_name("ID=x\nPRETTY_NAME=\"Debian 12\"\n"), "Debian 12");
        assert_eq!(date(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(date(u64::MAX), "9999-12-31 23:59:59 UTC");
    }
}
