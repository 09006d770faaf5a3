//! The command line of `on-device`.

use std::path::PathBuf;

use clap::Parser;

use super::build::Abi;

/// Runs the benches on an Android device and brings the results back
///
/// It builds the benches with the NDK of $ANDROID_NDK_HOME, pushes them, runs them with tracing switched by the
/// device's own properties, as root where the device allows it, and leaves target/overhead/<device>/*.json,
/// device.json beside them, and target/criterion/<device>/. On the device everything is as it was before, also after a
/// failure or Ctrl-C.
#[derive(Clone, Debug, PartialEq, Eq, Parser)]
#[command(name = "on-device", args_override_self = true, after_help = STATUS)]
pub(crate) struct DeviceArgs {
    /// Which device, as `adb devices` lists it, where there are several (else $ANDROID_SERIAL)
    #[arg(short, long)]
    pub(crate) serial: Option<String>,
    /// x86_64 or arm64-v8a; without it, what the device says it runs best
    #[arg(long, value_parser = abi)]
    pub(crate) abi: Option<Abi>,
    /// Take less time and be less sure
    #[arg(long)]
    pub(crate) quick: bool,
    /// Build nothing: the benches are the executable files in DIR
    #[arg(long, value_name = "DIR")]
    pub(crate) executables: Option<PathBuf>,
}

const STATUS: &str = "\
$ADB is the adb to call, without it the one on the PATH.

Exit status: 0; 1 something on this machine; 2 usage; 3 adb or the device; 4 a permission there; 5 the build; 6 the
push; 7 a bench; 8 the pull; 9 the clean-up; 128 + n after signal n.";

fn abi(name: &str) -> Result<Abi, String> {
    Abi::named(name).ok_or_else(|| "it is x86_64 or arm64-v8a".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<DeviceArgs, String> {
        let line = ["on-device"].into_iter().chain(line.split_whitespace());
        DeviceArgs::try_parse_from(line).map_err(|e| e.to_string())
    }

    #[test]
    fn command_lines() {
        let args = parse("--serial emulator-5554 --abi=arm64-v8a --quick").unwrap();
        assert_eq!(args.serial.as_deref(), Some("emulator-5554"));
        assert_eq!((args.abi, args.quick), (Some(Abi::Arm64), true));
        let none = DeviceArgs { serial: None, abi: None, quick: false, executables: None };
        assert_eq!(parse("").unwrap(), none);
        assert!(parse("--help").unwrap_err().contains("as it was before"));
        assert_eq!(parse("-s x --executables d").unwrap().executables, Some("d".into()));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (line, part) in [
            ("--serial", "--serial <SERIAL>"),
            ("--abi armeabi-v7a", "'armeabi-v7a' for '--abi <ABI>': it is x86_64 or arm64-v8a"),
            ("--quick=yes", "'yes' for '--quick'"),
            ("on_begin", "unexpected argument 'on_begin'"),
        ] {
            let e = parse(line).unwrap_err();
            assert!(e.starts_with("error: ") && e.contains(part), "{line}: {e}");
        }
    }
}
