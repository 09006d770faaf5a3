//! `on-device` against a device that is none: a directory, and a stand-in for `adb` that runs the scripts with
//! this machine's shell, where `getprop`, `setprop` and `id` are the device's. As on a device, what was started
//! there outlives the connection that started it.
//!
//! Not on Android: it is the other end, and the stand-in takes the place of its directories.
#![cfg(not(target_os = "android"))]

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

const ADB: &str = r##"#!/bin/sh
here=$(dirname "$0")
all="$*"
# What a test waits for, and what does not end by itself.
hang() { echo $$ > "$here/hung"; sleep 60; }
slow() { echo $$ > "$here/slow"; sleep 2; }
fail() { echo "$1" >&2; exit 1; }
. "$here/rules"
if [ "$1" = devices ]; then echo "List of devices attached"; cat "$here/devices"; exit 0; fi
[ "$1 $2" = "-s emulator-5554" ] || fail "adb: device '$2' not found"
verb=$3
shift 3
# A device's paths to ours; what a script printed may come back in another.
map() { printf '%s' "$1" | sed "s#/data/local/tmp#$here/data#g; s#\\(^\\|[^A-Za-z0-9]\\)/sys/#\\1$here/sys/#g"; }
case $verb in
shell)
    if [ -e "$here/rooted" ]; then FAKE_UID=0; export FAKE_UID; fi
    script=$(map "$1")
    PATH="$here/bin:$PATH" setsid sh -c "$script" &
    wait $! ;;
push) cp "$1" "$(map "$2")" && echo "1 file pushed" ;;
pull) cp -r "$(map "$1")" "$2" && echo "2 files pulled" ;;
root) if [ -e "$here/allows-root" ]; then touch "$here/rooted"; echo "restarting adbd as root"
      else echo "adbd cannot run as root in production builds"; fi ;;
unroot) rm -f "$here/rooted" ;;
wait-for-device) ;;
*) fail "adb: unknown command $verb" ;;
esac
"##;

const GETPROP: &str = r#"#!/bin/sh
props=$(dirname "$0")/../props
if [ $# = 1 ]; then cat "$props/$1" 2>/dev/null; echo; exit 0; fi
for key in "$props"/*; do echo "[${key##*/}]: [$(cat "$key")]"; done
"#;

const SETPROP: &str = r#"#!/bin/sh
here=$(dirname "$0")/..
[ -e "$here/forbids-setprop" ] && { echo "setprop: failed to set property '$1' to '$2'" >&2; exit 1; }
[ $# = 2 ] || { echo "usage: setprop NAME VALUE" >&2; exit 1; }
printf %s "$2" > "$here/props/$1"
"#;

const ID: &str = "#!/bin/sh\necho ${FAKE_UID:-2000}\n";

/// AOSP's: a user and a program.
const SU: &str = "#!/bin/sh\n[ \"$1\" = 0 ] || exit 1\nshift\nFAKE_UID=0 exec \"$@\"\n";

/// Of a rooted device: a script.
const ROOTED_SU: &str = "#!/bin/sh\n[ \"$1\" = -c ] || exit 1\nFAKE_UID=0 exec sh -c \"$2\"\n";

const ROWS: &str =
    r#"[{"id": "rust/a", "unit": "ns", "median": 1, "low": 1, "high": 1, "sink": "cutils", "noisy": false}]"#;

/// A bench that says what it finds, switches tracing and leaves results.
const BENCH: &str = r#"#!/bin/sh
echo "arguments: $*, user: $(id -u), ring buffer: $(cat SYS/kernel/tracing/tracing_on)"
setprop debug.atrace.app_0 '*/bench'
setprop debug.atrace.app_7 'new'
setprop debug.atrace.app_number 8
setprop debug.atrace.tags.enableflags 0x1000
echo 'ROWS' > "$ATRACE_OVERHEAD_DIR/$(basename "$0").json"
mkdir -p "$CRITERION_HOME/tracing_off" && echo data > "$CRITERION_HOME/tracing_off/estimates.json"
touch "$TMPDIR/left-behind"
"#;

/// A device, and what it was at first.
struct Device {
    temp: TempDir,
}

impl Device {
    fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        let this = Self { temp };
        for dir in ["bin", "props", "data", "benches", "target", "sys/kernel/tracing"] {
            fs::create_dir_all(this.path(dir)).unwrap();
        }
        for (policy, governor) in [("policy0", "schedutil"), ("policy4", "performance")] {
            this.write(&format!("sys/devices/system/cpu/cpufreq/{policy}/scaling_governor"), governor);
        }
        this.program("adb", ADB);
        this.program("bin/getprop", GETPROP);
        this.program("bin/setprop", SETPROP);
        this.program("bin/id", ID);
        this.write("rules", "");
        this.write(
            "devices",
            "emulator-5554\tdevice product:p model:sdk_gphone64 device:emu64x transport_id:1\n",
        );
        this.write("sys/kernel/tracing/trace_marker", "");
        this.write("sys/kernel/tracing/tracing_on", "0\n");
        for (key, value) in [
            ("ro.product.model", "sdk gphone64"),
            ("ro.product.device", "emu64x"),
            ("ro.build.version.sdk", "34"),
            ("ro.product.cpu.abi", "x86_64"),
            ("ro.product.cpu.abilist", "x86_64,arm64-v8a"),
            ("ro.build.fingerprint", "google/sdk/emu64x:14/U/1:userdebug/dev-keys"),
            ("debug.atrace.app_0", "it's [mine]"),
            ("debug.atrace.app_number", "1"),
            ("debug.atrace.tags.enableflags", "0x2"),
            ("debug.other", "x"),
        ] {
            this.write(&format!("props/{key}"), value);
        }
        this.bench("atrace-0123456789abcdef", BENCH);
        this
    }

    fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn program(&self, name: &str, text: &str) {
        self.write(name, text);
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn bench(&self, name: &str, script: &str) {
        let sys = self.path("sys").display().to_string();
        let here = self.temp.path().display().to_string();
        let script = script.replace("SYS", &sys).replace("ROWS", ROWS).replace("HERE", &here);
        self.program(&format!("benches/{name}"), &script);
    }

    /// Adds a rule: what the stand-in does when it is called with something that contains `pattern`.
    fn rule(&self, pattern: &str, action: &str) {
        let old = fs::read_to_string(self.path("rules")).unwrap();
        self.write("rules", &format!("{old}case \"$all\" in *\"{pattern}\"*) {action} ;; esac\n"));
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_on-device"));
        for name in ["CRITERION_HOME", "ATRACE_OVERHEAD_DIR", "ANDROID_SERIAL", "CARGO_MANIFEST_DIR"] {
            command.env_remove(name);
        }
        command.env("ADB", self.path("adb")).env("CARGO_TARGET_DIR", self.path("target")).args(args);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn start(&self, args: &[&str]) -> Run {
        let benches = self.path("benches");
        let built = ["--executables", benches.to_str().unwrap()];
        Run { child: self.command(&[&built, args].concat()).spawn().unwrap() }
    }

    fn run(&self, args: &[&str]) -> Ended {
        self.start(args).end()
    }

    /// Everything on the device that a run may change.
    fn state(&self) -> Vec<String> {
        let mut state: Vec<_> = ["data", "props", "sys/kernel/tracing"]
            .iter()
            .flat_map(|dir| fs::read_dir(self.path(dir)).unwrap())
            .map(|entry| {
                let path = entry.unwrap().path();
                format!("{}={}", path.display(), fs::read_to_string(&path).unwrap_or_default().trim())
            })
            // A property that is not set can only become one that is empty.
            .filter(|line| !(line.contains("/props/debug.atrace.") && line.ends_with('=')))
            .collect();
        state.push(format!("root: {}", self.path("rooted").exists()));
        state.sort();
        state
    }

    /// Runs, and asserts that it fails so and leaves the device as it was.
    fn fails(&self, args: &[&str], code: i32, words: &[&str]) -> Ended {
        let before = self.state();
        let ended = self.run(args);
        assert_eq!(ended.code, Some(code), "{ended:?}");
        // One error of its own, after what others said.
        assert!(
            ended.stderr.trim_end().lines().last().is_some_and(|line| line.starts_with("error: ")),
            "{ended:?}"
        );
        assert!(!ended.stderr.contains("left on the device"), "{ended:?}");
        for word in words {
            assert!(ended.stderr.contains(word), "{word:?} is not in {ended:?}");
        }
        assert_eq!(self.state(), before, "{ended:?}");
        ended
    }

    /// Waits for a file of the stand-in's; returns its content.
    fn wait_for(&self, name: &str) -> String {
        let start = Instant::now();
        loop {
            match fs::read_to_string(self.path(name)) {
                Ok(text) if text.ends_with('\n') => return text.trim().to_owned(),
                _ => assert!(start.elapsed() < Duration::from_secs(120), "{name} does not come"),
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

struct Run {
    child: Child,
}

impl Run {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn end(mut self) -> Ended {
        let mut stderr = self.child.stderr.take().unwrap();
        let errors = std::thread::spawn(move || {
            let mut text = String::new();
            stderr.read_to_string(&mut text).map(|_| text).unwrap()
        });
        let stdout = BufReader::new(self.child.stdout.take().unwrap());
        let stdout = stdout.lines().map(Result::unwrap).collect::<Vec<_>>().join("\n");
        let code = self.child.wait().unwrap().code();
        Ended { code, stdout, stderr: errors.join().unwrap() }
    }
}

#[derive(Debug)]
struct Ended {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

fn is_running(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

const NAME: &str = "sdk_gphone64-emulator-5554";

fn is_json(path: &Path) -> serde_json::Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn a_run_brings_the_results_and_leaves_nothing() {
    let device = Device::new();
    device.bench("subscriber-00000000000000aa", BENCH);
    let before = device.state();
    // What an earlier run left is replaced.
    device.write(&format!("target/overhead/{NAME}/old.json"), "[]");
    let ended = device.run(&["--quick"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(device.state(), before, "{ended:?}");
    assert_eq!(
        ended.stdout.matches("arguments: --bench --quick, user: 2000, ring buffer: 1").count(),
        2,
        "{ended:?}"
    );
    let steps = [
        "device: emulator-5554, sdk gphone64 (emu64x), API level 34, x86_64",
        "user: shell",
        "push: atrace,",
    ];
    for step in
        steps.iter().chain(&["push: subscriber,", "run: atrace", "run: subscriber", "pull: ", "clean-up: "])
    {
        assert!(ended.stdout.contains(step), "{step:?} is not in {ended:?}");
    }

    let rows = device.path("target/overhead").join(NAME);
    assert_eq!(is_json(&rows.join("atrace.json"))[0]["id"], "rust/a");
    assert_eq!(is_json(&rows.join("subscriber.json"))[0]["id"], "rust/a");
    assert!(!rows.join("old.json").exists());
    let recorded = is_json(&rows.join("device.json"));
    for (key, value) in [
        ("model", "sdk gphone64"),
        ("device", "emu64x"),
        ("serial", "emulator-5554"),
        ("abi", "x86_64"),
        ("fingerprint", "google/sdk/emu64x:14/U/1:userdebug/dev-keys"),
    ] {
        assert_eq!(recorded[key], value, "{recorded}");
    }
    assert_eq!(recorded["api_level"], 34);
    assert!(!recorded["kernel"].as_str().unwrap().is_empty());
    assert_eq!(recorded["governors"]["policy4"], "performance");
    assert_eq!((&recorded["root"], &recorded["quick"]), (&false.into(), &true.into()));
    assert_eq!(recorded["benches"]["subscriber"], true);
    let data = device.path("target/criterion").join(NAME).join("tracing_off/estimates.json");
    assert_eq!(fs::read_to_string(data).unwrap(), "data\n");
    for dir in ["target/overhead", "target/criterion"] {
        assert_eq!(fs::read_dir(device.path(dir)).unwrap().count(), 1, "something is left in {dir}");
    }
}

#[test]
fn root_is_taken_where_it_is_given() {
    for way in ["adb", "su", "rooted su"] {
        let device = Device::new();
        match way {
            "adb" => device.write("allows-root", ""),
            "su" => device.program("bin/su", SU),
            _ => device.program("bin/su", ROOTED_SU),
        }
        let before = device.state();
        let ended = device.run(&[]);
        assert_eq!(ended.code, Some(0), "{way}: {ended:?}");
        assert!(ended.stdout.contains("user: 0, ring buffer: 1"), "{way}: {ended:?}");
        assert_eq!(device.state(), before, "{way}: {ended:?}");
        assert_eq!(is_json(&device.path("target/overhead").join(NAME).join("device.json"))["root"], true);
    }
}

#[test]
fn what_was_on_stays_on() {
    let device = Device::new();
    device.write("sys/kernel/tracing/tracing_on", "1\n");
    fs::remove_file(device.path("props/debug.atrace.app_0")).unwrap();
    fs::remove_file(device.path("props/debug.atrace.app_number")).unwrap();
    fs::remove_file(device.path("props/debug.atrace.tags.enableflags")).unwrap();
    let before = device.state();
    assert_eq!(device.run(&[]).code, Some(0));
    assert_eq!(device.state(), before);
}

#[test]
fn adb_is_missing() {
    let device = Device::new();
    let ended = device.command(&[]).env("ADB", "/nonexistent/adb").output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(3));
    assert!(
        said.contains("there is no /nonexistent/adb: install") && said.contains("ADB=/path/of/adb"),
        "{said}"
    );
    // Without the variable, it is the one of the PATH.
    let ended = device.command(&[]).env_remove("ADB").env("PATH", device.path("bin")).output().unwrap();
    assert!(String::from_utf8_lossy(&ended.stderr).contains("there is no adb: install"), "{ended:?}");
}

#[test]
fn devices_that_can_not_be_used() {
    let device = Device::new();
    let list = |text: &str| device.write("devices", text);
    list("\n");
    device.fails(&[], 3, &["there is no device: switch on USB debugging"]);
    list("emulator-5554\tdevice model:A transport_id:1\n0A1B\tdevice model:B transport_id:2\n");
    device.fails(
        &[],
        3,
        &["there are 2 devices: emulator-5554 (A, device), 0A1B (B, device); name one with --serial"],
    );
    device.fails(
        &["--serial", "FFFF"],
        3,
        &["there is no device FFFF; name one of these: emulator-5554 (A, device)"],
    );
    assert_eq!(device.run(&["--serial", "emulator-5554"]).code, Some(0));
    list("0A1B\tunauthorized usb:1-1\n");
    device.fails(&[], 3, &["0A1B is unauthorised: unlock it and allow USB debugging"]);
    list("0A1B\toffline usb:1-1\n");
    device.fails(&[], 3, &["0A1B is offline: connect it again"]);
    list("0A1B\tno permissions (missing udev rules? user is in the plugdev group); see [http://x]\n");
    device.fails(&[], 3, &["this user may not use 0A1B", "udev"]);
    list("0A1B\trecovery usb:1-1\n");
    device.fails(&[], 3, &["0A1B is in the state recovery: boot Android"]);
}

#[test]
fn the_serial_may_be_in_the_environment() {
    let device = Device::new();
    let output = device.command(&[]).env("ANDROID_SERIAL", "FFFF").output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("there is no device FFFF"), "{output:?}");
}

#[test]
fn machine_code_that_does_not_fit() {
    let device = Device::new();
    device.write("props/ro.product.cpu.abilist", "x86_64,x86");
    device.fails(
        &["--abi", "arm64-v8a"],
        3,
        &["does not run arm64-v8a: leave --abi away, or name one of x86_64,x86"],
    );
    device.write("props/ro.product.cpu.abi", "armeabi-v7a");
    device.fails(
        &[],
        3,
        &["runs armeabi-v7a; the benches are for x86_64 and arm64-v8a: take another device"],
    );
    let before = device.state();
    let usage = device.run(&["--abi", "mips"]);
    assert!(usage.code == Some(2) && usage.stderr.contains("'mips' for '--abi <ABI>'"), "{usage:?}");
    assert_eq!(device.state(), before);
}

#[test]
fn permissions_that_are_missing() {
    let device = Device::new();
    device.write("forbids-setprop", "");
    let what = "no permission on emulator-5554 to set the properties debug.atrace.* (setprop: failed to set";
    device.fails(&[], 4, &[what, "use a device that gives root"]);

    let device = Device::new();
    fs::remove_file(device.path("sys/kernel/tracing/trace_marker")).unwrap();
    fs::create_dir(device.path("sys/kernel/tracing/trace_marker")).unwrap();
    device.fails(
        &[],
        4,
        &["no permission on emulator-5554 to write to the kernel's trace_marker", "gives root"],
    );

    let device = Device::new();
    device.rule("echo 1 >", "echo 'Permission denied'; echo on-device-status=1; exit 0");
    device.fails(&[], 4, &["to switch the kernel's ring buffer on (Permission denied)"]);
}

#[test]
fn benches_that_are_not_there() {
    let device = Device::new();
    let run = |dir: &str| {
        let output = device.command(&["--executables", dir]).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, said) = run("/nonexistent");
    assert!(code == Some(5) && said.contains("/nonexistent: No such file"), "{said}");
    let (code, said) = run(device.path("data").to_str().unwrap());
    assert!(code == Some(5) && said.contains("has no executable files"), "{said}");
    device.bench("atrace-ffffffffffffffff", BENCH);
    device.fails(&[], 5, &["are the same bench: remove the older one"]);
}

/// A cargo that says where the benches are.
fn with_cargo(device: &Device, script: &str) -> Command {
    device.program("cargo", &script.replace("HERE", device.temp.path().to_str().unwrap()));
    device.program("rustc", &format!("#!/bin/sh\necho {}\n", device.path("nonexistent").display()));
    let ndk = device.path("ndk/toolchains/llvm/prebuilt/host/bin");
    for program in ["x86_64-linux-android21-clang", "x86_64-linux-android21-clang++", "llvm-ar"] {
        device.program(ndk.join(program).to_str().unwrap(), "");
    }
    let mut command = device.command(&[]);
    command.env("CARGO", device.path("cargo")).env("RUSTC", device.path("rustc"));
    for name in ["LINKER", "CC", "CXX", "AR"] {
        command.env_remove(format!("{name}_x86_64_linux_android"));
        command.env_remove(format!("CARGO_TARGET_X86_64_LINUX_ANDROID_{name}"));
    }
    for name in ["ANDROID_NDK_ROOT", "NDK_HOME", "ANDROID_HOME", "ANDROID_SDK_ROOT"] {
        command.env_remove(name);
    }
    command.env("ANDROID_NDK_HOME", device.path("ndk"));
    command
}

const CARGO: &str = r#"#!/bin/sh
echo "$*" > HERE/cargo-arguments
env > HERE/cargo-environment
echo '{"reason":"compiler-artifact","target":{"kind":["bin"],"name":"on-device"},"executable":"/nonexistent"}'
echo '{"reason":"compiler-artifact","target":{"kind":["bench"],"name":"atrace"},"executable":"HERE/benches/atrace-0123456789abcdef"}'
echo '{"reason":"build-finished","success":true}'
"#;

#[test]
fn the_build_is_cargos_with_the_ndk() {
    let device = Device::new();
    let mut command = with_cargo(&device, CARGO);
    let before = device.state();
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(device.state(), before);
    let arguments = fs::read_to_string(device.path("cargo-arguments")).unwrap();
    assert!(arguments.starts_with("bench --package atrace-benches --benches --no-run"), "{arguments}");
    assert!(arguments.contains("--target x86_64-linux-android"), "{arguments}");
    let environment = fs::read_to_string(device.path("cargo-environment")).unwrap();
    let bin = device.path("ndk/toolchains/llvm/prebuilt/host/bin");
    assert!(environment.contains("CXXSTDLIB_x86_64_linux_android=c++_static\n"), "{environment}");
    for (name, program) in [
        ("CARGO_TARGET_X86_64_LINUX_ANDROID_LINKER", "x86_64-linux-android21-clang"),
        ("CC_x86_64_linux_android", "x86_64-linux-android21-clang"),
        ("CXX_x86_64_linux_android", "x86_64-linux-android21-clang++"),
        ("AR_x86_64_linux_android", "llvm-ar"),
    ] {
        let line = format!("{name}={}\n", bin.join(program).display());
        assert!(environment.contains(&line), "{line} is not in {environment}");
    }
}

#[test]
fn builds_that_fail() {
    let device = Device::new();
    let before = device.state();
    let check = |command: &mut Command, words: &[&str]| {
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(5), "{said}");
        for word in words {
            assert!(said.contains(word), "{word:?} is not in {said}");
        }
        assert_eq!(device.state(), before, "{said}");
    };
    let failing = "#!/bin/sh\necho 'error[E0463]: a reason' >&2\nexit 101\n";
    check(
        &mut with_cargo(&device, failing),
        &[
            "a reason",
            "the build failed, cargo with exit status: 101",
            "`rustup target add x86_64-linux-android`",
        ],
    );
    let mut command = with_cargo(&device, failing);
    device.program("rustc", "#!/bin/sh\necho /\n");
    check(&mut command, &["what it said is above"]);
    check(&mut with_cargo(&device, "#!/bin/sh\n"), &["cargo built no bench"]);
    let mut command = with_cargo(&device, CARGO);
    check(command.env("CARGO", "/nonexistent/cargo"), &["/nonexistent/cargo can't be run: No such file"]);
    let mut command = with_cargo(&device, CARGO);
    check(command.env_remove("ANDROID_NDK_HOME"), &["the NDK is not found: install it", "ANDROID_NDK_HOME"]);
    let mut command = with_cargo(&device, CARGO);
    check(
        command.env("ANDROID_NDK_HOME", "/nonexistent"),
        &["there is no NDK in /nonexistent, which ANDROID_NDK_HOME"],
    );
    let mut command = with_cargo(&device, CARGO);
    fs::remove_file(device.path("ndk/toolchains/llvm/prebuilt/host/bin/llvm-ar")).unwrap();
    check(&mut command, &["has no", "llvm-ar"]);
}

#[test]
fn the_disk_of_the_device_is_full() {
    let full = "fail \"adb: error: failed to copy: remote write failed: No space left on device\"";
    let what = "the disk of emulator-5554 is full: make room";
    let device = Device::new();
    device.rule(" push ", full);
    device.fails(&[], 6, &[what]);

    let device = Device::new();
    device.rule("mkdir ", "echo 'mkdir: No space left on device'; echo on-device-status=1; exit 0");
    device.fails(&[], 6, &[what]);

    let device = Device::new();
    device.bench(
        "atrace",
        "#!/bin/sh\necho 'error: writing x: No space left on device (os error 28)' >&2\nexit 1\n",
    );
    fs::remove_file(device.path("benches/atrace-0123456789abcdef")).unwrap();
    device.fails(&[], 7, &["the bench atrace failed with status 1", what]);
}

#[test]
fn a_bench_fails() {
    let device = Device::new();
    // What an earlier run left is better than nothing.
    device.write(&format!("target/overhead/{NAME}/old.json"), "[]");
    device.bench("atrace-0123456789abcdef", &(BENCH.to_owned() + "echo 'its reason' >&2\nexit 7\n"));
    device.fails(&[], 7, &["its reason", "the bench atrace failed with status 7"]);
    assert!(device.path("target/overhead").join(NAME).join("old.json").exists());

    // The others run all the same, and bring their rows.
    device.bench("subscriber", BENCH);
    let ended = device.fails(&[], 7, &["the bench atrace failed with status 7"]);
    assert!(!ended.stderr.contains("subscriber"), "{ended:?}");
    let recorded = is_json(&device.path("target/overhead").join(NAME).join("device.json"));
    assert_eq!(
        (&recorded["benches"]["atrace"], &recorded["benches"]["subscriber"]),
        (&false.into(), &true.into())
    );

    let device = Device::new();
    device.bench("atrace-0123456789abcdef", "#!/bin/sh\nkill -SEGV $$\n");
    device.fails(&[], 7, &["the bench atrace failed with status 139: signal 11 ended it"]);
}

#[test]
fn results_that_do_not_come() {
    let device = Device::new();
    device.rule(" pull ", "fail \"adb: error: failed to stat remote object\"");
    device.fails(
        &[],
        8,
        &["pull /data/local/tmp/atrace-bench-", "failed: adb: error: failed to stat remote object"],
    );
    assert_eq!(fs::read_dir(device.path("target/overhead")).unwrap().count(), 0);

    let device = Device::new();
    device.bench("atrace-0123456789abcdef", "#!/bin/sh\n");
    device.fails(&[], 8, &["the benches left no rows on the device"]);
}

#[test]
fn failures_at_each_step_leave_nothing() {
    for (pattern, code) in
        [("getprop", 3), ("uname", 3), ("id -u", 4), ("enableflags", 3), ("trace_marker", 3)]
    {
        let device = Device::new();
        let action = match pattern {
            // No root; then the marker is refused.
            "id -u" => {
                device.rule("trace_marker", "echo on-device-status=1; exit 0");
                "exit 1"
            }
            // Once: the clean-up sets it too.
            "enableflags" => "[ -e \"$here/once\" ] || { touch \"$here/once\"; fail \"error: closed\"; }",
            _ => "fail \"error: closed\"",
        };
        device.rule(pattern, action);
        let words: &[&str] =
            if code == 3 { &["the connection to emulator-5554 broke", "closed"] } else { &[] };
        device.fails(&[], code, words);
    }
    for (pattern, code) in [("mkdir ", 3), (" push ", 6), ("exec env", 3), ("chmod -R", 3), (" pull ", 8)] {
        let device = Device::new();
        device.rule(pattern, "fail \"error: device 'emulator-5554' not found\"");
        device.fails(&[], code, &["emulator-5554 is gone: connect it again"]);
    }
    let device = Device::new();
    device.rule("mkdir ", "fail \"error: device offline\"");
    device.fails(&[], 3, &["emulator-5554 is offline"]);
    let device = Device::new();
    device.rule("mkdir ", "fail \"error: device unauthorized.\"");
    device.fails(&[], 3, &["emulator-5554 is unauthorised"]);
}

#[test]
fn what_can_not_be_cleaned_is_said() {
    let device = Device::new();
    device.rule("rm -rf", "fail \"error: device offline\"");
    let before = device.state();
    let ended = device.run(&[]);
    assert_eq!(ended.code, Some(9), "{ended:?}");
    assert!(ended.stderr.contains("left on the device: /data/local/tmp/atrace-bench-"), "{ended:?}");
    assert!(
        ended.stderr.contains("by hand: adb -s emulator-5554 shell 'rm -rf /data/local/tmp/"),
        "{ended:?}"
    );
    // The other steps were done; the results are there.
    let data = |line: &&String| !line.contains("/data/");
    assert_eq!(device.state().iter().filter(data).collect::<Vec<_>>(), before.iter().collect::<Vec<_>>());
    assert!(device.path("target/overhead").join(NAME).join("atrace.json").exists());
}

#[test]
fn ctrl_c_at_each_step_leaves_nothing() {
    let steps = [
        "devices -l",
        "getprop",
        "uname",
        "id -u",
        " root",
        "enableflags",
        "trace_marker",
        "echo 1 >",
        "mkdir ",
    ];
    for step in steps.iter().chain(&[" push ", "exec env", "chmod -R", " pull "]) {
        let device = Device::new();
        device.write("allows-root", "");
        device.rule(step, "[ -e \"$here/hung\" ] || hang");
        let before = device.state();
        let run = device.start(&[]);
        let hung = device.wait_for("hung");
        run.signal(Signal::INT);
        let ended = run.end();
        assert_eq!(ended.code, Some(130), "{step}: {ended:?}");
        assert!(ended.stderr.contains("error: interrupted"), "{step}: {ended:?}");
        assert!(!is_running(&hung), "{step}: the stand-in for adb still runs");
        assert_eq!(device.state(), before, "{step}: {ended:?}");
    }
}

/// A bench that runs until it is asked to end, and cleans up then.
const ENDLESS: &str = r#"#!/bin/sh
setprop debug.atrace.app_0 '*/bench'
setprop debug.atrace.tags.enableflags 0x1000
sleep 60 > /dev/null 2>&1 &
trap 'kill $!; echo yes > HERE/asked; exit 143' TERM
echo $$ > HERE/bench
wait
"#;

#[test]
fn ctrl_c_ends_the_bench_on_the_device() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let device = Device::new();
        device.bench("atrace-0123456789abcdef", ENDLESS);
        let before = device.state();
        let run = device.start(&[]);
        let bench = device.wait_for("bench");
        run.signal(signal);
        let ended = run.end();
        assert_eq!(ended.code, Some(code), "{ended:?}");
        assert!(device.path("asked").exists() && !is_running(&bench), "{ended:?}");
        assert_eq!(device.state(), before, "{ended:?}");
    }
}

#[test]
fn a_bench_that_its_connection_left_is_ended() {
    let device = Device::new();
    device.bench("atrace-0123456789abcdef", ENDLESS);
    // The connection breaks while the bench runs.
    let gone = "echo $$ > \"$here/connection\"";
    device.rule("exec env", gone);
    let before = device.state();
    let run = device.start(&[]);
    let bench = device.wait_for("bench");
    let connection = device.wait_for("connection").parse().unwrap();
    kill_process(Pid::from_raw(connection).unwrap(), Signal::KILL).unwrap();
    let ended = run.end();
    assert_eq!(ended.code, Some(3), "{ended:?}");
    assert!(ended.stdout.contains("waiting for the device to come back"), "{ended:?}");
    assert!(device.path("asked").exists() && !is_running(&bench), "{ended:?}");
    assert_eq!(device.state(), before, "{ended:?}");
}

#[test]
fn a_second_ctrl_c_does_not_end_the_clean_up() {
    for step in ["rm -rf", "setprop 'debug.atrace.app_0'"] {
        let device = Device::new();
        device.bench("atrace-0123456789abcdef", ENDLESS);
        device.rule(step, "slow");
        let before = device.state();
        let run = device.start(&[]);
        device.wait_for("bench");
        run.signal(Signal::INT);
        device.wait_for("slow");
        run.signal(Signal::INT);
        std::thread::sleep(Duration::from_millis(300));
        run.signal(Signal::TERM);
        let ended = run.end();
        assert_eq!(ended.code, Some(130), "{ended:?}");
        assert!(ended.stderr.contains("still cleaning up the device"), "{ended:?}");
        assert_eq!(device.state(), before, "{step}: {ended:?}");
    }
}

#[test]
fn ctrl_c_ends_the_build() {
    let device = Device::new();
    let mut command = with_cargo(&device, "#!/bin/sh\necho $$ > HERE/building\nsleep 60\n");
    let before = device.state();
    let run = Run { child: command.spawn().unwrap() };
    let cargo = device.wait_for("building");
    run.signal(Signal::INT);
    assert_eq!(run.end().code, Some(130));
    assert!(!is_running(&cargo));
    assert_eq!(device.state(), before);
}

#[test]
fn help_says_what_there_is() {
    let output = Command::new(env!("CARGO_BIN_EXE_on-device")).arg("--help").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success());
    for word in ["--serial", "--abi", "--quick", "--executables", "$ADB", "Exit status"] {
        assert!(said.contains(word), "{said}");
    }
}
