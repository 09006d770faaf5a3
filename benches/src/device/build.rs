//! Builds the benches for a device with the NDK, and finds what came out.
//!
//! All that a build needs of an NDK is four variables, so it is plain cargo that builds. Who has set
//! them needs no NDK.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::child::{self, Ended, Interrupt, Stream};
use super::error::{Error, Step, at};
use crate::row::env_path;

/// The oldest Android that Rust programs run on.
const API: u32 = 21;

/// What machine code a device runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Abi {
    X86_64,
    Arm64,
}

impl Abi {
    /// Returns the one that Android calls by this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        [Self::X86_64, Self::Arm64].into_iter().find(|abi| abi.name() == name)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Arm64 => "arm64-v8a",
        }
    }

    fn target(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64-linux-android",
            Self::Arm64 => "aarch64-linux-android",
        }
    }

    /// The variables that a build reads, with the program of the NDK that each names.
    fn variables(self) -> [(String, String); 4] {
        let target = self.target();
        let underscored = target.replace('-', "_");
        let clang = format!("{target}{API}-clang");
        [
            (format!("CARGO_TARGET_{}_LINKER", underscored.to_uppercase()), clang.clone()),
            (format!("CC_{underscored}"), clang.clone()),
            (format!("CXX_{underscored}"), format!("{clang}++")),
            (format!("AR_{underscored}"), "llvm-ar".to_owned()),
        ]
    }

    /// The variable that says to link the C++ library statically: the other one is not on a device.
    fn cxx_library(self) -> (String, &'static str) {
        (format!("CXXSTDLIB_{}", self.target().replace('-', "_")), "c++_static")
    }
}

/// An executable to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bench {
    /// The name of the bench, without what cargo adds.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
}

/// Builds every bench of this package.
pub(crate) fn build(abi: Abi, interrupt: &Interrupt) -> Result<Vec<Bench>, Error> {
    let program = |name: &str, usual: &str| std::env::var_os(name).unwrap_or_else(|| usual.into());
    let mut command = Command::new(program("CARGO", "cargo"));
    command.args(["bench", "--package", "atrace-benches", "--benches", "--no-run"]);
    command.args(["--target", abi.target(), "--message-format", "json-render-diagnostics"]);
    if let Some(package) = env_path("CARGO_MANIFEST_DIR") {
        command.arg("--manifest-path").arg(package.join("Cargo.toml"));
    }
    command.envs(environment(abi, env_path, &|ndk| programs(ndk))?);
    let library = abi.cxx_library();
    if env_path(&library.0).is_none() {
        command.env(library.0, library.1);
    }
    let mut messages = String::new();
    let ended = child::run(&mut command, interrupt, None, true, |stream, line| {
        if stream == Stream::Out {
            messages.push_str(&String::from_utf8_lossy(line));
        }
    });
    match ended.map_err(at(Step::Build, format!("{} can't be run", command.get_program().display())))? {
        Ended::Interrupted(signal) => return Err(Error::interrupted(signal)),
        Ended::ByItself(status) if status.success() => {}
        Ended::ByItself(status) => {
            let why = match has_target(&program("RUSTC", "rustc"), abi, interrupt) {
                false => format!("Rust has no library for {0}: `rustup target add {0}`", abi.target()),
                true => "what it said is above".to_owned(),
            };
            return Err(Error::new(Step::Build, format!("the build failed, cargo with {status}: {why}")));
        }
        Ended::TimedOut => unreachable!("there is no limit"),
    }
    let benches = executables(&messages);
    if benches.is_empty() {
        return Err(Error::new(Step::Build, "cargo built no bench: see [[bench]] in benches/Cargo.toml"));
    }
    Ok(benches)
}

/// Whether rustc has the target's libraries; where it does not say, yes.
fn has_target(rustc: &OsString, abi: Abi, interrupt: &Interrupt) -> bool {
    let mut directory = String::new();
    let mut command = Command::new(rustc);
    command.args(["--print", "target-libdir", "--target", abi.target()]);
    let ended = child::run(&mut command, interrupt, None, false, |stream, line| {
        if stream == Stream::Out {
            directory.push_str(&String::from_utf8_lossy(line));
        }
    });
    !matches!(ended, Ok(Ended::ByItself(status)) if status.success()) || Path::new(directory.trim()).is_dir()
}

/// Returns the variables that are not set yet, from the NDK.
fn environment(
    abi: Abi,
    env: impl Fn(&str) -> Option<PathBuf>,
    programs: &dyn Fn(&Path) -> Option<PathBuf>,
) -> Result<Vec<(String, PathBuf)>, Error> {
    let missing: Vec<_> = abi.variables().into_iter().filter(|(name, _)| env(name).is_none()).collect();
    if missing.is_empty() {
        return Ok(Vec::new());
    }
    let no_ndk = |what: String| {
        let names: Vec<_> = missing.iter().map(|(name, _)| &name[..]).collect();
        Error::new(
            Step::Build,
            format!(
                "{what}: install it (https://developer.android.com/ndk/downloads, r23 or newer) and name its \
                 directory in ANDROID_NDK_HOME; or set {} yourself",
                names.join(", ")
            ),
        )
    };
    let named = ["ANDROID_NDK_HOME", "ANDROID_NDK_ROOT", "NDK_HOME"];
    let (ndk, from) = named
        .into_iter()
        .find_map(|name| Some((env(name)?, name)))
        .or_else(|| {
            let sdk = ["ANDROID_HOME", "ANDROID_SDK_ROOT"].into_iter().find_map(&env)?;
            Some((newest(&sdk.join("ndk"))?, "ANDROID_HOME"))
        })
        .ok_or_else(|| no_ndk("the NDK is not found".to_owned()))?;
    let bin = programs(&ndk)
        .ok_or_else(|| no_ndk(format!("there is no NDK in {}, which {from} names", ndk.display())))?;
    let of = |(name, program): (String, String)| {
        let path = bin.join(program);
        match path.is_file() {
            true => Ok((name, path)),
            false => Err(no_ndk(format!("the NDK that {from} names has no {}", path.display()))),
        }
    };
    missing.iter().cloned().map(of).collect()
}

/// The directory of an NDK's programs, which is named after the machine they run on.
fn programs(ndk: &Path) -> Option<PathBuf> {
    let all = std::fs::read_dir(ndk.join("toolchains/llvm/prebuilt")).ok()?;
    all.filter_map(|host| Some(host.ok()?.path().join("bin"))).find(|bin| bin.is_dir())
}

/// The newest of the NDKs that an SDK has, by their version numbers.
fn newest(ndks: &Path) -> Option<PathBuf> {
    let numbers = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.split('.').map(|part| part.parse().unwrap_or(0)).collect::<Vec<u64>>()
    };
    std::fs::read_dir(ndks).ok()?.filter_map(|ndk| Some(ndk.ok()?.path())).max_by_key(numbers)
}

/// The benches among the messages of cargo.
fn executables(messages: &str) -> Vec<Bench> {
    let bench = |line: &str| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let target = &message["target"];
        let is_bench = target["kind"].as_array()?.iter().any(|kind| kind == "bench");
        let (name, path) = (target["name"].as_str()?, message["executable"].as_str()?);
        (is_bench && message["reason"] == "compiler-artifact")
            .then(|| Bench { name: name.to_owned(), path: path.into() })
    };
    messages.lines().filter_map(bench).collect()
}

/// The benches in a directory: all executable files.
pub(crate) fn built(directory: &Path) -> Result<Vec<Bench>, Error> {
    use std::os::unix::fs::PermissionsExt as _;
    let all = || -> io::Result<Vec<Bench>> {
        let mut benches = Vec::new();
        for entry in std::fs::read_dir(directory)? {
            let path = entry?.path();
            let meta = path.metadata()?;
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if meta.is_file() && meta.permissions().mode() & 0o111 != 0 {
                benches.push(Bench { name: without_hash(&name).to_owned(), path });
            }
        }
        benches.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(benches)
    };
    let benches = all().map_err(at(Step::Build, directory.display()))?;
    if benches.is_empty() {
        return Err(Error::new(
            Step::Build,
            format!(
                "{} has no executable files: build the benches, or leave --executables away",
                directory.display()
            ),
        ));
    }
    let twice = benches.windows(2).find(|two| two[0].name == two[1].name);
    if let Some([one, other]) = twice {
        let what = format!(
            "{} and {} are the same bench: remove the older one",
            one.path.display(),
            other.path.display()
        );
        return Err(Error::new(Step::Build, what));
    }
    Ok(benches)
}

/// Takes away what cargo adds to the name of a bench.
fn without_hash(name: &str) -> &str {
    match name.rsplit_once('-') {
        Some((before, hash)) if hash.len() == 16 && hash.bytes().all(|b| b.is_ascii_hexdigit()) => before,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn benches_are_found_in_cargos_messages() {
        let messages = r#"
{"reason":"compiler-artifact","target":{"kind":["lib"],"name":"atrace"},"executable":null}
{"reason":"compiler-artifact","target":{"kind":["bin"],"name":"on-device"},"executable":"/t/on-device"}
not JSON
{"reason":"compiler-artifact","target":{"kind":["bench"],"name":"atrace"},"executable":"/t/atrace-0"}
{"reason":"compiler-artifact","target":{"kind":["bench"],"name":"subscriber"},"executable":"/t/subscriber-0"}
{"reason":"build-finished","success":true}"#;
        let found: Vec<_> = executables(messages).into_iter().map(|bench| bench.name).collect();
        assert_eq!(found, ["atrace", "subscriber"]);
    }

    #[test]
    fn the_ndk_is_found() {
        let temp = tempfile::tempdir().unwrap();
        let sdk = temp.path();
        for version in ["9.1.0", "26.1.10909125", "27.0.12077973"] {
            let bin = sdk.join("ndk").join(version).join("toolchains/llvm/prebuilt/some-host/bin");
            std::fs::create_dir_all(&bin).unwrap();
            for program in ["x86_64-linux-android21-clang", "x86_64-linux-android21-clang++", "llvm-ar"] {
                std::fs::write(bin.join(program), "").unwrap();
            }
        }
        let old = sdk.join("ndk/9.1.0");
        let env = |set: &[(&str, &Path)], abi| {
            let find = |name: &str| set.iter().find(|(n, _)| *n == name).map(|(_, path)| path.to_path_buf());
            environment(abi, find, &|ndk| programs(ndk)).map_err(|e| e.to_string())
        };
        let found = env(&[("ANDROID_HOME", sdk)], Abi::X86_64).unwrap();
        let names: Vec<_> = found.iter().map(|(name, _)| &name[..]).collect();
        assert_eq!(
            names,
            [
                "CARGO_TARGET_X86_64_LINUX_ANDROID_LINKER",
                "CC_x86_64_linux_android",
                "CXX_x86_64_linux_android",
                "AR_x86_64_linux_android"
            ]
        );
        assert!(found.iter().all(|(_, path)| path.starts_with(sdk.join("ndk/27.0.12077973"))), "{found:?}");
        assert!(found[2].1.ends_with("x86_64-linux-android21-clang++"));

        let set = [("ANDROID_NDK_HOME", &old as &Path), ("AR_x86_64_linux_android", Path::new("ar"))];
        let found = env(&set, Abi::X86_64).unwrap();
        assert_eq!(found.len(), 3);
        assert!(found.iter().all(|(_, path)| path.starts_with(&old)));

        let none = env(&[], Abi::X86_64).unwrap_err();
        assert!(
            none.starts_with("the NDK is not found: install it") && none.contains("ANDROID_NDK_HOME"),
            "{none}"
        );
        let empty = env(&[("NDK_HOME", &sdk.join("x"))], Abi::X86_64).unwrap_err();
        assert!(empty.contains("which NDK_HOME names"), "{empty}");
        let arm = env(&[("NDK_HOME", &old)], Abi::Arm64).unwrap_err();
        assert!(arm.contains("has no") && arm.contains("aarch64-linux-android21-clang"), "{arm}");
    }

    #[test]
    fn hashes_are_cut() {
        assert_eq!(without_hash("atrace-0123456789abcdef"), "atrace");
        assert_eq!(without_hash("atrace"), "atrace");
        assert_eq!(without_hash("on-device"), "on-device");
    }
}
