//! The command line of `on-device`.

use std::ffi::OsString;
use std::path::PathBuf;

use super::build::Abi;
use super::error::{Error, Step};

pub(crate) const HELP: &str = "\
Runs the benches on an Android device and brings the results back.

cargo run -p atrace-benches --bin on-device -- [--serial SERIAL] [--abi x86_64|arm64-v8a] [--quick]

  --serial SERIAL    which device, as `adb devices` lists it, where there are several (else $ANDROID_SERIAL)
  --abi ABI          x86_64 or arm64-v8a; without it, what the device says it runs best
  --quick            take less time and be less sure
  --executables DIR  build nothing: the benches are the executable files in DIR
  --help             say this

It builds the benches with the NDK of $ANDROID_NDK_HOME, pushes them, runs them with tracing switched by
the device's own properties, as root where the device allows it, and leaves target/overhead/<device>/*.json,
device.json beside them, and target/criterion/<device>/. On the device everything is as it was before, also
after a failure or Ctrl-C.

$ADB is the adb to call, without it the one on the PATH.

Exit status: 0; 1 something on this machine; 2 usage; 3 adb or the device; 4 a permission there; 5 the build;
6 the push; 7 a bench; 8 the pull; 9 the clean-up; 128 + n after signal n.
";

/// What the command line asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Args {
    pub(crate) serial: Option<String>,
    pub(crate) abi: Option<Abi>,
    pub(crate) quick: bool,
    /// Where the benches are, already built.
    pub(crate) executables: Option<PathBuf>,
    pub(crate) help: bool,
}

impl Args {
    /// Reads a command line without the program's name.
    pub(crate) fn parse<S: Into<OsString>>(args: impl IntoIterator<Item = S>) -> Result<Self, Error> {
        let usage = |what: String| Error::new(Step::Usage, format!("{what}; --help says what there is"));
        let mut parsed = Self::default();
        let mut args = args.into_iter().map(Into::into);
        while let Some(arg) = args.next() {
            let text = arg.to_str().ok_or_else(|| usage(format!("{} is not UTF-8", arg.display())))?;
            let (flag, inline) = match text.split_once('=') {
                Some((flag, value)) => (flag, Some(OsString::from(value))),
                None => (text, None),
            };
            let has_inline = inline.is_some();
            let mut value = || {
                inline.clone().or_else(|| args.next()).ok_or_else(|| usage(format!("{flag} needs a value")))
            };
            let utf8 = |value: OsString| {
                value.into_string().map_err(|value| usage(format!("{} is not UTF-8", value.display())))
            };
            match flag {
                "--serial" | "-s" => parsed.serial = Some(utf8(value()?)?),
                "--abi" => {
                    let name = utf8(value()?)?;
                    let abi = Abi::named(&name);
                    parsed.abi =
                        Some(abi.ok_or_else(|| {
                            usage(format!("there is no --abi {name}: x86_64 or arm64-v8a"))
                        })?);
                }
                "--executables" => parsed.executables = Some(value()?.into()),
                "--quick" if !has_inline => parsed.quick = true,
                "--help" | "-h" if !has_inline => parsed.help = true,
                _ => return Err(usage(format!("{text} is not understood"))),
            }
        }
        Ok(parsed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Args, String> {
        Args::parse(line.split_whitespace()).map_err(|e| e.to_string())
    }

    #[test]
    fn command_lines() {
        let args = parse("--serial emulator-5554 --abi=arm64-v8a --quick").unwrap();
        assert_eq!(args.serial.as_deref(), Some("emulator-5554"));
        assert_eq!((args.abi, args.quick), (Some(Abi::Arm64), true));
        assert_eq!(parse("").unwrap(), Args::default());
        assert!(parse("-h").unwrap().help);
        assert_eq!(parse("--executables d").unwrap().executables, Some("d".into()));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let starts = |line: &str, what: &str| {
            let e = parse(line).unwrap_err();
            assert!(e.starts_with(what) && e.ends_with("--help says what there is"), "{e}");
        };
        starts("--serial", "--serial needs a value");
        starts("--abi armeabi-v7a", "there is no --abi armeabi-v7a: x86_64 or arm64-v8a");
        starts("--quick=yes", "--quick=yes is not understood");
        starts("on_begin", "on_begin is not understood");
    }
}
