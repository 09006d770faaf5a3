//! The command line of `instructions`.

use std::ffi::OsString;
use std::path::PathBuf;

pub(crate) const HELP: &str = "\
Counts the instructions of every kind of event under callgrind, and holds them against bounds.

cargo run -p atrace-benches --bin instructions -- [--check] [--update] [--twice]

  --check        fail where an operation takes over 3 % more than benches/bounds.toml says
  --update       write the counts to benches/bounds.toml
  --twice        count twice, and fail where the two differ by more than 0.1 %
  --bounds FILE  other bounds
  --from FILE    count nothing: take the rows of an earlier run
  --help         say this

It needs valgrind, and gungraun-runner of the version that Cargo.lock has of gungraun:

  apt-get install valgrind && cargo install gungraun-runner --version VERSION

Exit status: 0; 1 too many instructions; 2 usage, or something that is needed is not there.
";

/// What the command line asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Args {
    pub(crate) check: bool,
    pub(crate) update: bool,
    pub(crate) twice: bool,
    pub(crate) bounds: Option<PathBuf>,
    pub(crate) from: Option<PathBuf>,
    pub(crate) help: bool,
}

impl Args {
    /// Reads a command line without the program's name.
    pub(crate) fn parse<S: Into<OsString>>(args: impl IntoIterator<Item = S>) -> Result<Self, String> {
        let usage = |what: String| format!("{what}; --help says what there is");
        let mut parsed = Self::default();
        let mut args = args.into_iter().map(Into::into);
        while let Some(arg) = args.next() {
            let mut value = |flag: &str| args.next().ok_or_else(|| usage(format!("{flag} needs a value")));
            match arg.to_str() {
                Some("--check") => parsed.check = true,
                Some("--update") => parsed.update = true,
                Some("--twice") => parsed.twice = true,
                Some("--bounds") => parsed.bounds = Some(value("--bounds")?.into()),
                Some("--from") => parsed.from = Some(value("--from")?.into()),
                Some("--help" | "-h") => parsed.help = true,
                _ => return Err(usage(format!("{} is not understood", arg.display()))),
            }
        }
        if parsed.check && parsed.update {
            return Err(usage("--check would check what --update has just written".to_owned()));
        }
        if parsed.twice && parsed.from.is_some() {
            return Err(usage("--twice counts, and --from counts nothing".to_owned()));
        }
        Ok(parsed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines() {
        let parse = |line: &str| Args::parse(line.split_whitespace());
        let args = parse("--check --twice --bounds b").unwrap();
        assert!(args.check && args.twice && !args.update);
        assert_eq!(args.bounds, Some("b".into()));
        for (line, part) in [
            ("--check --update", "has just written"),
            ("--bounds", "--bounds needs a value"),
            ("--twice --from x", "counts nothing"),
            ("x", "x is not understood"),
        ] {
            let e = parse(line).unwrap_err();
            assert!(e.contains(part) && e.ends_with("--help says what there is"), "{line}: {e}");
        }
    }
}
