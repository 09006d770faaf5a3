//! Tests `.cargo/adb-runner` with a directory in place of a device: a substitute for `adb` runs the runner's scripts in
//! this machine's shell.
#![cfg(not(target_os = "android"))]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// A script that replaces `adb` and maps a device's paths to the directory. As on Android before version 7, the exit
/// status of a command on the device is lost: `adb shell` always ends with status 0.
const ADB: &str = r##"#!/bin/sh
here=$(dirname "$0")
map() { printf '%s' "$1" | sed "s#/data/local/tmp#$here/data#g"; }
verb=$1
shift
case $verb in
get-state) cat "$here/state" || exit 1 ;;
get-serialno) echo "emulator-5554" ;;
shell) env -i PATH="$here/bin:$PATH" sh -c "$(map "$1")"; exit 0 ;;
push) cp "$1" "$(map "$2")" ;;
pull) cp -R "$(map "$1")" "$2" ;;
*) exit 9 ;;
esac
"##;

const BENCH: &str = r#"#!/bin/sh
for word in "$@"; do echo "argument: $word"; done
echo "user: $(id -u), $ATRACE_BENCH_ORIGINAL, $RUST_TEST_THREADS, ${UNRELATED-none}"
mkdir -p "$ATRACE_OVERHEAD_DIR" "$CRITERION_HOME/case"
echo '[]' >"$ATRACE_OVERHEAD_DIR/atrace.json"
echo data >"$CRITERION_HOME/case/estimates.json"
touch "$TMPDIR/temporary"
[ "$1" != sleep ] || exec sleep 600
exit 7
"#;

struct Device {
    temp: TempDir,
}

impl Device {
    fn new() -> Self {
        let this = Self { temp: tempfile::tempdir().unwrap() };
        for dir in ["bin", "data", "target/deps"] {
            fs::create_dir_all(this.path(dir)).unwrap();
        }
        fs::write(this.path("state"), "device\n").unwrap();
        fs::write(this.path("target/CACHEDIR.TAG"), "").unwrap();
        this.program("adb", ADB);
        this.program("target/deps/bench-0123", BENCH);
        this.program("bin/getprop", "#!/bin/sh\necho \"of $1\"\n");
        this.program("bin/id", "#!/bin/sh\necho ${FAKE_UID:-2000}\n");
        this
    }

    fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    fn program(&self, name: &str, text: &str) {
        // Another process (`cp`) writes the program file: if this process wrote it, a child that another thread forks
        // at that time would have the file open for writing, too, and the kernel would refuse to execute the file.
        let source = self.path("text");
        fs::write(&source, text).unwrap();
        assert!(Command::new("cp").arg(source).arg(self.path(name)).status().unwrap().success());
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn command(&self, args: &[&str]) -> Command {
        let runner = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.cargo/adb-runner");
        let mut command = Command::new(runner);
        command.arg(self.path("target/deps/bench-0123")).args(args).env("ADB", self.path("adb"));
        command.env("ATRACE_BENCH_ORIGINAL", "it's 1").env("RUST_TEST_THREADS", "3").env("UNRELATED", "some");
        command.stdin(Stdio::null());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_program_runs_there_and_its_results_are_here() {
    let device = Device::new();
    let ran = device.run(&["--bench", "it's $HOME", "", "a\nb"]);
    assert_eq!(ran.status.code(), Some(7), "{ran:?}");
    let said =
        "argument: --bench\nargument: it's $HOME\nargument: \nargument: a\nb\nuser: 2000, it's 1, 3, none\n";
    assert_eq!(text(&ran.stdout), said);
    assert!(text(&ran.stderr).contains("without root"), "{ran:?}");
    let read = |name: &str| fs::read_to_string(device.path(name)).unwrap();
    let name = "of_ro.product.model-emulator-5554";
    assert_eq!(read(&format!("target/overhead/{name}/atrace.json")), "[]\n");
    assert_eq!(read(&format!("target/criterion/{name}/case/estimates.json")), "data\n");
    let about: serde_json::Value =
        serde_json::from_str(&read(&format!("target/overhead/{name}/device.json"))).unwrap();
    assert_eq!(about["api_level"], "of ro.build.version.sdk");
    // A second run adds its results to the existing results. The runner has removed the program from the device.
    device.program("target/deps/bench-0123", &BENCH.replace("atrace.json", "live.json"));
    assert_eq!(device.run(&[]).status.code(), Some(7));
    assert_eq!(read(&format!("target/overhead/{name}/live.json")), "[]\n");
    assert_eq!(read(&format!("target/overhead/{name}/atrace.json")), "[]\n");
    assert!(!device.path("data/atrace-bench/bench-0123").exists());
}

#[test]
fn it_runs_as_root_by_either_su() {
    let program = "#!/bin/sh\n[ \"$1\" = 0 ] || exit 1\nshift\nFAKE_UID=0 exec \"$@\"\n";
    let script = "#!/bin/sh\n[ \"$1\" = -c ] || exit 1\nFAKE_UID=0 exec sh -c \"$2\"\n";
    for su in [program, script] {
        let device = Device::new();
        device.program("bin/su", su);
        let ran = device.run(&["it's"]);
        assert_eq!(ran.status.code(), Some(7), "{ran:?}");
        assert_eq!(text(&ran.stdout), "argument: it's\nuser: 0, it's 1, 3, none\n");
        assert_eq!(text(&ran.stderr), "");
    }
}

#[test]
fn what_is_missing_is_said() {
    let device = Device::new();
    fs::remove_file(device.path("state")).unwrap();
    let ran = device.run(&[]);
    assert!(ran.status.code() == Some(3) && text(&ran.stderr).contains("no device: "), "{ran:?}");
    let ran = device.command(&[]).env("ADB", "/nowhere/adb").output().unwrap();
    assert!(
        ran.status.code() == Some(3) && text(&ran.stderr).contains("there is no /nowhere/adb"),
        "{ran:?}"
    );
}

#[test]
fn a_signal_ends_the_program() {
    let device = Device::new();
    let runner = device.command(&["sleep"]).stdout(Stdio::null()).spawn().unwrap();
    let start = Instant::now();
    while !device.path("data/atrace-bench/tmp/temporary").exists() {
        assert!(start.elapsed() < Duration::from_secs(120), "it does not start");
        std::thread::sleep(Duration::from_millis(10));
    }
    let told = Instant::now();
    kill_process(Pid::from_child(&runner), Signal::TERM).unwrap();
    assert_eq!(runner.wait_with_output().unwrap().status.code(), Some(130));
    assert!(told.elapsed() < Duration::from_secs(300), "the program ended by itself");
    assert!(!device.path("data/atrace-bench/pid").exists());
}
